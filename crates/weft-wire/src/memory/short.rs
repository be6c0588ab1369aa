//! A small write and its reply, by themselves: packed and read in a few instructions, because a program waits for the reply.

use super::{Mark, Word, BYTES, HAS_MARK, WRITE};
use crate::memory::{Credential, Place};

/// A [`Word::Write`] by a key, without a notice, as a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShortWrite {
    /// The region's key.
    pub key: u64,
    /// Bytes from its beginning.
    pub at: u64,
    /// Bytes of the write.
    pub len: u64,
    /// Its name.
    pub mark: Mark,
}

impl ShortWrite {
    /// The operation.
    pub const OP: u8 = WRITE | HAS_MARK;

    /// The arguments.
    #[inline(always)]
    pub fn to_args(self) -> [u32; 8] {
        let ShortWrite { key, at, len, mark } = self;
        let (key, at, len) = (halves(key), halves(at), halves(len));
        [key[0], key[1], at[0], at[1], len[0], len[1], mark.operation, mark.piece]
    }

    /// Reads such a write; `None` for every other word.
    #[inline(always)]
    pub fn unpack(op: u8, args: &[u32]) -> Option<ShortWrite> {
        let args: &[u32; 8] = args.try_into().ok().filter(|_| op == ShortWrite::OP)?;
        let wide = |at: usize| u64::from(args[at]) | u64::from(args[at + 1]) << 32;
        let mark = Mark { operation: args[6], piece: args[7] };
        Some(ShortWrite { key: wide(0), at: wide(2), len: wide(4), mark })
    }

    /// The write as a [`Word`].
    pub fn word(self) -> Word {
        let ShortWrite { key, at, len, mark } = self;
        Word::Write {
            place: Place { by: Credential::Key(key), at },
            len,
            notice: None,
            mark: Some(mark),
            is_part: false,
        }
    }
}

impl std::fmt::Debug for ShortWrite {
    /// Never prints the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.word().fmt(f)
    }
}

#[inline(always)]
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Mark {
    /// The operation of [`Word::Bytes`].
    pub const BYTES: u8 = BYTES;

    /// The arguments of [`Word::Bytes`].
    #[inline(always)]
    pub fn to_args(self) -> [u32; 2] {
        [self.operation, self.piece]
    }

    /// Reads a [`Word::Bytes`]; `None` for every other word.
    #[inline(always)]
    pub fn unpack(op: u8, args: &[u32]) -> Option<Mark> {
        match *args {
            [operation, piece] if op == BYTES => Some(Mark { operation, piece }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_the_words_that_they_stand_for(key: u64, at: u64, len: u64, operation: u32, piece: u32) {
            let mark = Mark { operation, piece };
            let short = ShortWrite { key, at, len, mark };
            let packed = short.word().pack();
            prop_assert_eq!((packed.op, packed.args()), (ShortWrite::OP, &short.to_args()[..]));
            prop_assert_eq!(ShortWrite::unpack(packed.op, packed.args()), Some(short));
            let packed = Word::Bytes(mark).pack();
            prop_assert_eq!((packed.op, packed.args()), (Mark::BYTES, &mark.to_args()[..]));
            prop_assert_eq!(Mark::unpack(packed.op, packed.args()), Some(mark));
        }

        #[test]
        fn no_other_word_is_taken_for_them(op: u8, args in proptest::collection::vec(any::<u32>(), 0..17)) {
            if let Some(short) = ShortWrite::unpack(op, &args) {
                prop_assert_eq!(Word::unpack(op, &args), Some(short.word()));
            }
            if let Some(mark) = Mark::unpack(op, &args) {
                prop_assert_eq!(Word::unpack(op, &args), Some(Word::Bytes(mark)));
            }
        }
    }
}
