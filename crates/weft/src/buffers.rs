//! Buffers that the program sends from and receives into: vectors, or memory that it lends.

use weft_shm::{Lent, LentMut};

/// The contents to send: bytes that weft owns until the completion, or memory that the program lends.
#[derive(PartialEq, Eq, Debug)]
pub enum Source {
    /// Bytes that come back with the completion.
    Owned(Vec<u8>),
    /// Memory that the program lends until the completion.
    Lent(Lent),
}

/// The buffer to receive into: a vector, or memory that the program lends.
#[derive(PartialEq, Eq, Debug)]
pub enum Target {
    /// A vector whose length bounds the message. It comes back with the completion.
    Owned(Vec<u8>),
    /// Memory that the program lends until the completion.
    Lent(LentMut),
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Source {
        Source::Owned(bytes)
    }
}

impl From<Lent> for Source {
    fn from(lent: Lent) -> Source {
        Source::Lent(lent)
    }
}

impl From<Vec<u8>> for Target {
    fn from(bytes: Vec<u8>) -> Target {
        Target::Owned(bytes)
    }
}

impl From<LentMut> for Target {
    fn from(lent: LentMut) -> Target {
        Target::Lent(lent)
    }
}

impl Source {
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Source::Owned(bytes) => bytes,
            Source::Lent(lent) => lent.bytes(),
        }
    }

    #[inline(always)]
    pub(crate) fn give_back(self) -> Option<Vec<u8>> {
        match self {
            Source::Owned(bytes) => Some(bytes),
            Source::Lent(_) => None,
        }
    }
}

impl Target {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Target::Owned(bytes) => bytes.len(),
            Target::Lent(lent) => lent.len(),
        }
    }

    /// Copies as many bytes as fit. Returns their number.
    #[inline(always)]
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self {
            Target::Owned(room) => {
                let len = bytes.len().min(room.len().saturating_sub(at));
                if len > 0 {
                    room[at..at + len].copy_from_slice(&bytes[..len]);
                }
                len
            }
            Target::Lent(lent) => lent.write(at, bytes),
        }
    }

    #[inline(always)]
    pub(crate) fn give_back(self) -> Option<Vec<u8>> {
        match self {
            Target::Owned(bytes) => Some(bytes),
            Target::Lent(_) => None,
        }
    }
}
