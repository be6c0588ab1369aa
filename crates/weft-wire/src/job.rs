//! The messages between a process of a job and its launcher, over the socket that the process inherits from `weft run`.
//!
//! ```text
//! process                          launcher
//!   Give(bytes for all) ->
//!                                <- All(the bytes of each process, by rank), once all processes have given theirs
//!   Missing(rank) ->                 another rank does not answer, so this process may fail
//!   Exit(status) ->                  the whole job ends
//! ```
//!
//! A message is a head of [`HEAD_BYTES`], then as many bytes as the head says. Numbers are little-endian. Launcher and process may be of
//! different versions of weft: [`Socket`] carries [`VERSION`].

use std::fmt;
use std::str::FromStr;

/// Version of these messages.
pub const VERSION: u8 = 2;

/// The environment variable with the process's rank in the job.
pub const RANK: &str = "WEFT_RANK";
/// The environment variable with the number of processes of the job.
pub const SIZE: &str = "WEFT_SIZE";
/// The environment variable with the process's [`Socket`].
pub const JOB: &str = "WEFT_JOB";

/// The most processes of a job.
pub const SIZE_MOST: u32 = 4096;

/// The most bytes that a process gives.
pub const GIFT_MOST: usize = 4096;

/// Bytes of a message's head.
pub const HEAD_BYTES: usize = 8;

/// Bytes in front of each gift.
const LENGTH_BYTES: usize = 4;

/// The socket to the launcher: a descriptor that the process inherits. The inode tells it from another file that a program in between may
/// have opened under that number.
///
/// ```
/// use weft_wire::job::Socket;
///
/// let socket = Socket { descriptor: 5, inode: 81_213 };
/// assert_eq!(socket.to_string(), "2:5:81213");
/// assert_eq!("2:5:81213".parse(), Ok(socket));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// Its number.
    pub descriptor: i32,
    /// Its inode, as `fstat` says.
    pub inode: u64,
}

/// Why a text is no [`Socket`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// It is of another version.
    #[error("the launcher speaks version {0} of the messages of jobs, this weft speaks {VERSION}; use the same weft on both sides")]
    Version(u8),
    /// It is not what a launcher writes.
    #[error("a launcher of weft writes VERSION:DESCRIPTOR:INODE there; to run outside of a job, unset WEFT_JOB, WEFT_RANK and WEFT_SIZE")]
    Malformed,
}

crate::debug_says_display!(SocketError);

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}:{}:{}", self.descriptor, self.inode)
    }
}

impl FromStr for Socket {
    type Err = SocketError;

    fn from_str(text: &str) -> Result<Socket, SocketError> {
        let (version, rest) = text.split_once(':').ok_or(SocketError::Malformed)?;
        let version = version.parse().map_err(|_| SocketError::Malformed)?;
        if version != VERSION {
            return Err(SocketError::Version(version));
        }
        let (descriptor, inode) = rest.split_once(':').ok_or(SocketError::Malformed)?;
        let descriptor = descriptor.parse().ok().filter(|&number| number >= 0).ok_or(SocketError::Malformed)?;
        let inode = inode.parse().map_err(|_| SocketError::Malformed)?;
        Ok(Socket { descriptor, inode })
    }
}

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// This many bytes follow, which are for every process of the job.
    Give(u32),
    /// The job ends with this status. Nothing follows.
    Exit(i32),
    /// This many bytes follow: the gifts of all processes, see [`gifts`].
    All(u32),
    /// This rank of the job does not answer the sender. Nothing follows.
    Missing(u32),
}

impl Head {
    /// The head's bytes.
    pub fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let (kind, value) = match self {
            Head::Give(bytes) => (1, bytes.to_le_bytes()),
            Head::Exit(status) => (2, status.to_le_bytes()),
            Head::All(bytes) => (3, bytes.to_le_bytes()),
            Head::Missing(rank) => (4, rank.to_le_bytes()),
        };
        let mut all = [0; HEAD_BYTES];
        all[0] = kind;
        all[4..].copy_from_slice(&value);
        all
    }

    /// Reads a head. `None` if it is malformed, announces more bytes than are allowed, or names a rank that no job has.
    pub fn from_bytes(bytes: [u8; HEAD_BYTES]) -> Option<Head> {
        let [kind, 0, 0, 0, a, b, c, d] = bytes else { return None };
        let value = u32::from_le_bytes([a, b, c, d]);
        match kind {
            1 => (value as usize <= GIFT_MOST).then_some(Head::Give(value)),
            2 => Some(Head::Exit(value as i32)),
            3 => (value as usize <= all_most()).then_some(Head::All(value)),
            4 => (value < SIZE_MOST).then_some(Head::Missing(value)),
            _ => None,
        }
    }
}

/// Bytes of all gifts of the largest job.
fn all_most() -> usize {
    SIZE_MOST as usize * (LENGTH_BYTES + GIFT_MOST)
}

/// Appends a gift to those of the ranks before it.
pub fn push_gift(to: &mut Vec<u8>, gift: &[u8]) {
    to.extend_from_slice(&(gift.len() as u32).to_le_bytes());
    to.extend_from_slice(gift);
}

/// The gifts of `size` ranks. `None` if the bytes are not exactly that many gifts.
///
/// ```
/// use weft_wire::job::{gifts, push_gift};
///
/// let mut all = Vec::new();
/// push_gift(&mut all, b"of rank 0");
/// push_gift(&mut all, b"");
/// assert_eq!(gifts(&all, 2), Some(vec![&b"of rank 0"[..], b""]));
/// assert_eq!(gifts(&all, 3), None);
/// ```
pub fn gifts(mut all: &[u8], size: u32) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    for _ in 0..size {
        let (length, rest) = all.split_first_chunk::<LENGTH_BYTES>()?;
        let (gift, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        found.push(gift);
        all = rest;
    }
    all.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_launcher_writes_names_no_socket() {
        for text in ["", "2", "2:", "2:5", "2:-5:7", "2:5:", "2:5:7:9", "x:5:7", "2:5:x", "300:5:7"] {
            assert_eq!(text.parse::<Socket>(), Err(SocketError::Malformed), "{text}");
        }
        assert_eq!("1:anything".parse::<Socket>(), Err(SocketError::Version(1)));
    }

    #[test]
    fn heads_read_back_and_those_with_too_large_numbers_are_refused() {
        let missing = Head::Missing(SIZE_MOST - 1);
        for head in [Head::Give(0), Head::Give(GIFT_MOST as u32), Head::Exit(-3), Head::All(4096), missing] {
            assert_eq!(Head::from_bytes(head.to_bytes()), Some(head));
        }
        for head in [Head::Give(GIFT_MOST as u32 + 1), Head::All(u32::MAX), Head::Missing(SIZE_MOST)] {
            assert_eq!(Head::from_bytes(head.to_bytes()), None);
        }
        for bytes in [[4; 8], [0; 8]] {
            assert_eq!(Head::from_bytes(bytes), None);
        }
    }
}
