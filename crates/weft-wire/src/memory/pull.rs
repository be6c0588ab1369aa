//! Pulls: writes whose bytes the owner of a region reads from the memory of the requesting process.

use crate::Reason;

/// Where the bytes of a [`Word::Pull`](super::Word::Pull) are in the requesting process. They stay there until the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The address of the first byte.
    pub from: u64,
    /// The address of a word of 8 bytes. Bytes that are read while its value is not `proof` do not belong to the write.
    pub proof_at: u64,
    /// The value of that word for as long as the bytes are there.
    pub proof: u64,
}

impl Origin {
    /// The length of [`Origin::to_bytes`].
    pub const BYTES: usize = 24;

    /// As a payload.
    pub fn to_bytes(self) -> [u8; Origin::BYTES] {
        let mut bytes = [0; Origin::BYTES];
        for (room, word) in bytes.chunks_exact_mut(8).zip([self.from, self.proof_at, self.proof]) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a payload. `None` if it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Origin> {
        let bytes: &[u8; Origin::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Some(Origin { from: word(0), proof_at: word(8), proof: word(16) })
    }
}

/// How a pull ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullEnd {
    /// All bytes are stored.
    Whole,
    /// The owner cannot read these bytes, and will read no others for the same flow: they must be sent.
    Unreadable {
        /// Some were stored.
        is_partly: bool,
    },
    /// It was refused after it had begun.
    Failed {
        /// Why.
        reason: Reason,
        /// Some bytes were stored.
        is_partly: bool,
    },
}

const WHOLE: u8 = 0;
const UNREADABLE: u8 = 1;
const FAILED: u8 = 2;

impl PullEnd {
    pub(super) fn to_arg(self) -> u32 {
        u32::from_le_bytes(match self {
            PullEnd::Whole => [WHOLE, 0, 0, 0],
            PullEnd::Unreadable { is_partly } => [UNREADABLE, is_partly.into(), 0, 0],
            PullEnd::Failed { reason, is_partly } => [FAILED, is_partly.into(), reason.code(), 0],
        })
    }

    pub(super) fn from_arg(arg: u32) -> Option<PullEnd> {
        Some(match arg.to_le_bytes() {
            [WHOLE, 0, 0, 0] => PullEnd::Whole,
            [UNREADABLE, partly @ 0..=1, 0, 0] => PullEnd::Unreadable { is_partly: partly == 1 },
            [FAILED, partly @ 0..=1, code, 0] => {
                PullEnd::Failed { reason: Reason::from_code(code)?, is_partly: partly == 1 }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_read_back_and_have_one_length() {
        let origin = Origin { from: 0x1122_3344_5566_7788, proof_at: 2, proof: u64::MAX };
        let bytes = origin.to_bytes();
        assert_eq!(bytes[..9], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 2]);
        assert_eq!(Origin::from_bytes(&bytes), Some(origin));
        assert_eq!((Origin::from_bytes(&bytes[1..]), Origin::from_bytes(&[0; 25])), (None, None));
    }

    #[test]
    fn malformed_ends_are_refused() {
        for arg in [3, 1 << 8, 1 | 2 << 8, 1 | 1 << 16, 2, 2 | 200 << 16, 2 | 19 << 16 | 1 << 24] {
            assert_eq!(PullEnd::from_arg(arg), None, "{arg:x}");
        }
    }
}
