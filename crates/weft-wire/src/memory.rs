//! The messages between endpoints for remote memory; see `docs/design/memory.md`.
//!
//! The operation of a message is a [`Word`]'s code, with bits for the word's optional parts. Its arguments follow; values of 64 bits take
//! two, low half first. A refused message comes back with a [`Reason`](crate::Reason), so there is no word for refusals.

mod atomic;
mod pull;
mod short;

pub use atomic::{Atomic, Type};
pub use pull::{Origin, PullEnd};
pub use short::ShortWrite;

use crate::MAX_ARGS;

/// The secret of a cookie.
pub type Secret = [u8; 16];

/// How an operation names a region and proves its right to use it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Credential {
    /// The region's key.
    Key(u64),
    /// A cookie: its place in the owner's table, and its secret.
    Cookie {
        /// The place.
        index: u32,
        /// The secret.
        secret: Secret,
    },
    /// The region's handle.
    Handle(u32),
}

impl std::fmt::Debug for Credential {
    /// Never prints a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credential::Key(_) => "a key",
            Credential::Cookie { .. } => "a cookie",
            Credential::Handle(_) => "a handle",
        })
    }
}

/// A region's key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u64);

impl std::fmt::Debug for RegionKey {
    /// Never prints it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a region's key")
    }
}

impl From<RegionKey> for Credential {
    fn from(key: RegionKey) -> Credential {
        Credential::Key(key.0)
    }
}

/// A region's handle: 32 bits that the owner's table assigned, never 0. Peers can guess it, as they can guess a small key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegionHandle(pub u32);

impl From<RegionHandle> for Credential {
    fn from(handle: RegionHandle) -> Credential {
        Credential::Handle(handle.0)
    }
}

/// A place in a region. Every operation begins with one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The region.
    pub by: Credential,
    /// Bytes from the beginning of the region or, for a cookie, of the cookie's range. For a handle, from the place that the owner chose.
    pub at: u64,
}

impl Place {
    /// The place `at` bytes behind the beginning of the region or of the cookie's range.
    pub fn new(by: impl Into<Credential>, at: u64) -> Place {
        Place { by: by.into(), at }
    }
}

/// The initiator's name for a piece of an operation. The reply repeats it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    /// The operation.
    pub operation: u32,
    /// The piece.
    pub piece: u32,
}

/// The meaning of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// The payload is the first bytes of a write of `len` bytes. If there are more, [`Word::Data`] follows by the same flow.
    Write {
        /// Where the bytes go.
        place: Place,
        /// Bytes of the whole write.
        len: u64,
        /// A value for the owner's program when all bytes are stored.
        notice: Option<u64>,
        /// Its name, if it is a request. Then the payload is the whole write, and the reply has no payload.
        mark: Option<Mark>,
        /// Another write of the same operation follows by the same flow. Has no notice then.
        is_part: bool,
    },
    /// The payload is the next bytes of the flow's write.
    Data,
    /// A request for bytes.
    Read {
        /// Where the bytes are.
        place: Place,
        /// How many bytes.
        len: u32,
        /// Its name.
        mark: Mark,
        /// Another read of the same operation follows by the same flow.
        is_part: bool,
    },
    /// The reply to a request; the payload is the bytes that were read, or the old values.
    Bytes(Mark),
    /// An atomic operation on each of the words at a place, one after the other. The payload is the operands and then, for operations that
    /// [have them](Atomic::has_second), the second operands. If it is a request, the reply has the old values.
    Atomic {
        /// The first word.
        place: Place,
        /// The operation.
        atomic: Atomic,
        /// The type of the words.
        of: Type,
        /// Its name.
        mark: Mark,
        /// More words of the same operation follow by the same flow.
        is_part: bool,
    },
    /// A request to map the memory of a credential. The reply's payload says how, or is empty if it cannot be mapped.
    Attach {
        /// The region.
        by: Credential,
        /// Its name.
        mark: Mark,
    },
    /// A request: a write of `len` bytes, which the owner reads from the memory of the requesting process. The payload is an [`Origin`].
    Pull {
        /// Where the bytes go.
        place: Place,
        /// How many bytes.
        len: u64,
        /// A value for the owner's program when all bytes are stored.
        notice: Option<u64>,
        /// Its name.
        mark: Mark,
        /// Another write of the same operation follows by the same flow. Has no notice then.
        is_part: bool,
    },
    /// The reply to a pull that the owner has begun.
    Pulled(Mark, PullEnd),
}

const WRITE: u8 = 1;
const DATA: u8 = 2;
const READ: u8 = 3;
const BYTES: u8 = 4;
const ATOMIC: u8 = 5;
const PULL: u8 = 6;
const PULLED: u8 = 7;
const ATTACH: u8 = IS_PART;
/// Bits of an operation.
const BY_COOKIE: u8 = 0x80;
const HAS_NOTICE: u8 = 0x40;
const HAS_MARK: u8 = 0x20;
const BY_HANDLE: u8 = 0x10;
/// For writes, reads, atomic operations and pulls. Of the other codes, one is this bit itself, and the rest are invalid with it.
const IS_PART: u8 = 0x08;

/// A word in the form of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed {
    /// The operation.
    pub op: u8,
    args: [u32; MAX_ARGS],
    len: u8,
}

impl Packed {
    fn new(op: u8) -> Packed {
        Packed { op, args: [0; MAX_ARGS], len: 0 }
    }

    fn of_part(op: u8, is_part: bool) -> Packed {
        Packed::new(if is_part { op | IS_PART } else { op })
    }

    fn push(&mut self, arg: u32) {
        if let Some(place) = self.args.get_mut(usize::from(self.len)) {
            *place = arg;
            self.len += 1;
        }
    }

    fn push_wide(&mut self, value: u64) {
        self.push(value as u32);
        self.push((value >> 32) as u32);
    }

    fn push_credential(&mut self, by: Credential) {
        match by {
            Credential::Key(key) => self.push_wide(key),
            Credential::Cookie { index, secret } => {
                self.op |= BY_COOKIE;
                self.push(index);
                let (low, high) = halves(secret);
                self.push_wide(low);
                self.push_wide(high);
            }
            Credential::Handle(handle) => {
                self.op |= BY_HANDLE;
                self.push(handle);
            }
        }
    }

    fn push_place(&mut self, place: Place) {
        self.push_credential(place.by);
        self.push_wide(place.at);
    }

    fn push_mark(&mut self, mark: Mark) {
        self.push(mark.operation);
        self.push(mark.piece);
    }

    /// The arguments.
    pub fn args(&self) -> &[u32] {
        &self.args[..usize::from(self.len)]
    }
}

fn halves(secret: Secret) -> (u64, u64) {
    let whole = u128::from_le_bytes(secret);
    (whole as u64, (whole >> 64) as u64)
}

/// Arguments that are read one after the other.
struct Args<'a>(&'a [u32]);

impl Args<'_> {
    fn one(&mut self) -> Option<u32> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn wide(&mut self) -> Option<u64> {
        let (&[low, high], rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from(low) | u64::from(high) << 32)
    }

    /// A credential, of the kind that the bits of the operation say.
    fn credential(&mut self, by: u8) -> Option<Credential> {
        Some(match by {
            0 => Credential::Key(self.wide()?),
            BY_HANDLE => Credential::Handle(self.one()?),
            BY_COOKIE => {
                let index = self.one()?;
                let (low, high) = (self.wide()?, self.wide()?);
                Credential::Cookie { index, secret: (u128::from(low) | u128::from(high) << 64).to_le_bytes() }
            }
            _ => return None,
        })
    }

    fn place(&mut self, by: u8) -> Option<Place> {
        Some(Place { by: self.credential(by)?, at: self.wide()? })
    }

    fn mark(&mut self) -> Option<Mark> {
        Some(Mark { operation: self.one()?, piece: self.one()? })
    }
}

impl Word {
    /// The word in the form of a message.
    pub fn pack(&self) -> Packed {
        match *self {
            Word::Write { place, len, notice, mark, is_part } => {
                let mut packed = Packed::of_part(WRITE, is_part);
                packed.push_place(place);
                packed.push_wide(len);
                if let Some(mark) = mark {
                    packed.op |= HAS_MARK;
                    packed.push_mark(mark);
                }
                if let Some(notice) = notice {
                    packed.op |= HAS_NOTICE;
                    packed.push_wide(notice);
                }
                packed
            }
            Word::Data => Packed::new(DATA),
            Word::Read { place, len, mark, is_part } => {
                let mut packed = Packed::of_part(READ, is_part);
                packed.push_place(place);
                packed.push(len);
                packed.push_mark(mark);
                packed
            }
            Word::Bytes(mark) => {
                let mut packed = Packed::new(BYTES);
                packed.push_mark(mark);
                packed
            }
            Word::Atomic { place, atomic, of, mark, is_part } => {
                let mut packed = Packed::of_part(ATOMIC, is_part);
                packed.push_place(place);
                packed.push(u32::from(atomic as u8) | u32::from(of as u8) << 8);
                packed.push_mark(mark);
                packed
            }
            Word::Attach { by, mark } => {
                let mut packed = Packed::new(ATTACH);
                packed.push_credential(by);
                packed.push_mark(mark);
                packed
            }
            Word::Pull { place, len, notice, mark, is_part } => {
                let mut packed = Packed::of_part(PULL, is_part);
                packed.push_place(place);
                packed.push_wide(len);
                packed.push_mark(mark);
                if let Some(notice) = notice {
                    packed.op |= HAS_NOTICE;
                    packed.push_wide(notice);
                }
                packed
            }
            Word::Pulled(mark, end) => {
                let mut packed = Packed::new(PULLED);
                packed.push_mark(mark);
                packed.push(end.to_arg());
                packed
            }
        }
    }

    /// Reads a word. Total; `None` if it is malformed.
    pub fn unpack(op: u8, args: &[u32]) -> Option<Word> {
        let by = op & (BY_COOKIE | BY_HANDLE);
        let code = op & !(BY_COOKIE | BY_HANDLE);
        let is_part = code & IS_PART != 0;
        let mut args = Args(args);
        let word = match code & !IS_PART {
            READ => Word::Read { place: args.place(by)?, len: args.one()?, mark: args.mark()?, is_part },
            BYTES if by == 0 && !is_part => Word::Bytes(args.mark()?),
            ATOMIC => {
                let place = args.place(by)?;
                let [atomic, of, 0, 0] = args.one()?.to_le_bytes() else { return None };
                let atomic = Atomic::ALL.into_iter().find(|known| *known as u8 == atomic)?;
                let of = Type::ALL.into_iter().find(|known| *known as u8 == of)?;
                Word::Atomic { place, atomic, of, mark: args.mark()?, is_part }
            }
            DATA if by == 0 && !is_part => Word::Data,
            PULLED if by == 0 && !is_part => Word::Pulled(args.mark()?, PullEnd::from_arg(args.one()?)?),
            // The code of `Attach` is the bit itself.
            0 if is_part => Word::Attach { by: args.credential(by)?, mark: args.mark()? },
            // Only the last part of an operation has a notice.
            code if is_part && code & HAS_NOTICE != 0 => return None,
            code if code & !(HAS_NOTICE | HAS_MARK) == WRITE => {
                let (place, len) = (args.place(by)?, args.wide()?);
                let mark = if code & HAS_MARK != 0 { Some(args.mark()?) } else { None };
                let notice = if code & HAS_NOTICE != 0 { Some(args.wide()?) } else { None };
                Word::Write { place, len, notice, mark, is_part }
            }
            code if code & !HAS_NOTICE == PULL => {
                let (place, len, mark) = (args.place(by)?, args.wide()?, args.mark()?);
                let notice = if code & HAS_NOTICE != 0 { Some(args.wide()?) } else { None };
                Word::Pull { place, len, notice, mark, is_part }
            }
            _ => return None,
        };
        args.0.is_empty().then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::lines;
    use proptest::prelude::*;

    fn places() -> impl Strategy<Value = Place> {
        let credentials = prop_oneof![
            any::<u64>().prop_map(Credential::Key),
            (any::<u32>(), any::<Secret>()).prop_map(|(index, secret)| Credential::Cookie { index, secret }),
            any::<u32>().prop_map(Credential::Handle),
        ];
        (credentials, any::<u64>()).prop_map(|(by, at)| Place { by, at })
    }

    fn marks() -> impl Strategy<Value = Mark> {
        (any::<u32>(), any::<u32>()).prop_map(|(operation, piece)| Mark { operation, piece })
    }

    /// A notice, or the mark that more follows, or neither.
    fn ends() -> impl Strategy<Value = (Option<u64>, bool)> {
        prop_oneof![any::<Option<u64>>().prop_map(|notice| (notice, false)), Just((None, true)),]
    }

    fn words() -> impl Strategy<Value = Word> {
        let kinds = (proptest::sample::select(&Atomic::ALL[..]), proptest::sample::select(&Type::ALL[..]));
        prop_oneof![
            (places(), any::<u64>(), ends(), proptest::option::of(marks()))
                .prop_map(|(place, len, (notice, is_part), mark)| Word::Write { place, len, notice, mark, is_part }),
            Just(Word::Data),
            (places(), any::<u32>(), marks(), any::<bool>()).prop_map(|(place, len, mark, is_part)| Word::Read {
                place,
                len,
                mark,
                is_part
            }),
            marks().prop_map(Word::Bytes),
            (places(), marks()).prop_map(|(place, mark)| Word::Attach { by: place.by, mark }),
            (places(), kinds, marks(), any::<bool>()).prop_map(|(place, (atomic, of), mark, is_part)| Word::Atomic {
                place,
                atomic,
                of,
                mark,
                is_part
            }),
            (places(), any::<u64>(), ends(), marks()).prop_map(|(place, len, (notice, is_part), mark)| Word::Pull {
                place,
                len,
                notice,
                mark,
                is_part
            }),
            (marks(), pull_ends()).prop_map(|(mark, end)| Word::Pulled(mark, end)),
        ]
    }

    fn pull_ends() -> impl Strategy<Value = PullEnd> {
        prop_oneof![
            Just(PullEnd::Whole),
            any::<bool>().prop_map(|is_partly| PullEnd::Unreadable { is_partly }),
            any::<bool>().prop_map(|is_partly| PullEnd::Failed { reason: crate::Reason::Revoked, is_partly }),
        ]
    }

    #[test]
    fn words_pack_into_the_golden_arguments() {
        let place = Place { by: Credential::Key(0x1122_3344_5566_7788), at: 5 << 32 | 16 };
        let packed =
            Word::Write { place, len: 8, notice: None, mark: Some(Mark { operation: 2, piece: 0 }), is_part: false }
                .pack();
        assert_eq!((packed.op, &packed.args()[6..]), (0x21, &[2, 0][..]));
        assert_eq!(lines(packed.args().len(), 16), 1, "as a request it has room for 16");
        let packed = Word::Write { place, len: 8, notice: None, mark: None, is_part: false }.pack();
        assert_eq!((packed.op, packed.args()), (1, &[0x5566_7788, 0x1122_3344, 16, 5, 8, 0][..]));
        assert_eq!(lines(packed.args().len(), 24), 1, "24 bytes and what they are about fit into a line");
        let secret = std::array::from_fn(|n| n as u8);
        let place = Place { by: Credential::Cookie { index: 3, secret }, at: 1 };
        let mark = Mark { operation: 7, piece: 9 };
        let packed = Word::Atomic { place, atomic: Atomic::Add, of: Type::F64, mark, is_part: false }.pack();
        let secret = [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c];
        assert_eq!((packed.op, &packed.args()[..5]), (0x85, &[3, secret[0], secret[1], secret[2], secret[3]][..]));
        assert_eq!(packed.args()[5..], [1, 0, 0x0502, 7, 9]);
        let packed = Word::Pull { place, len: 1 << 32 | 2, notice: Some(4), mark, is_part: false }.pack();
        assert_eq!((packed.op, &packed.args()[5..]), (0xc6, &[1, 0, 2, 1, 7, 9, 4, 0][..]));
        let end = PullEnd::Failed { reason: crate::Reason::Revoked, is_partly: true };
        let packed = Word::Pulled(mark, end).pack();
        assert_eq!((packed.op, packed.args()), (7, &[7, 9, 19 << 16 | 1 << 8 | 2][..]));
    }

    #[test]
    fn a_part_of_an_operation_has_a_bit_for_that_and_no_notice() {
        let (place, mark) = (Place::new(RegionKey(1), 2), Mark::default());
        let ops = [
            Word::Write { place, len: 4, notice: None, mark: None, is_part: true }.pack().op,
            Word::Read { place, len: 4, mark, is_part: true }.pack().op,
            Word::Atomic { place, atomic: Atomic::Add, of: Type::U64, mark, is_part: true }.pack().op,
            Word::Pull { place, len: 4, notice: None, mark, is_part: true }.pack().op,
        ];
        assert_eq!(ops, [9, 11, 13, 14]);
        let packed = Word::Write { place, len: 4, notice: Some(7), mark: None, is_part: false }.pack();
        assert!(Word::unpack(packed.op, packed.args()).is_some());
        assert_eq!(Word::unpack(packed.op | 8, packed.args()), None, "a part with a notice");
    }

    #[test]
    fn a_handle_takes_one_argument() {
        let place = Place::new(RegionHandle(0x0010_0003), 8);
        let packed = Word::Write { place, len: 4, notice: None, mark: None, is_part: false }.pack();
        assert_eq!((packed.op, packed.args()), (0x11, &[0x0010_0003, 8, 0, 4, 0][..]));
        assert_eq!(Word::unpack(0x91, packed.args()), None, "by a cookie and by a handle");
        assert_eq!(Word::unpack(0x12, &[]), None, "bytes that follow name nothing");
    }

    #[test]
    fn a_credential_never_tells_its_secret() {
        let place = Place { by: Credential::Cookie { index: 3, secret: [0xab; 16] }, at: 1 };
        assert_eq!(format!("{place:?}"), "Place { by: a cookie, at: 1 }");
        assert_eq!(format!("{:?}", Credential::Key(42)), "a key");
    }

    proptest! {
        #[test]
        fn words_read_back(word in words()) {
            let packed = word.pack();
            prop_assert_eq!(Word::unpack(packed.op, packed.args()), Some(word));
        }

        #[test]
        fn any_arguments_are_a_word_or_none(op: u8, args in proptest::collection::vec(any::<u32>(), 0..17)) {
            if let Some(word) = Word::unpack(op, &args) {
                let packed = word.pack();
                prop_assert_eq!((packed.op, packed.args()), (op, &args[..]));
            }
        }
    }
}
