//! The one-way messages between two endpoints for tagged messages; see `docs/tagged.md`.
//!
//! The operation of a message is a [`Word`]'s code, plus bits for the optional parts of an eager or announced message. Its arguments
//! follow; values of 64 bits take two, low half first.

use crate::{Key, MAX_ARGS};

/// Version of this format. The first word carries it, and two sides talk only if it is equal.
pub const TAGGED_VERSION: u32 = 1;

/// What a receiver learns about a message besides its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Label {
    /// Its tag. A message without a tag matches only receives without one.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
}

impl Label {
    /// A tag and no data.
    pub const fn tagged(tag: u64) -> Label {
        Label { tag: Some(tag), data: None }
    }

    /// This label with data.
    #[must_use]
    pub const fn with(self, data: u64) -> Label {
        Label { data: Some(data), ..self }
    }
}

/// An eager or announced message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The messages of a flow are numbered in the order in which they are sent. The number wraps around.
    pub number: u32,
    /// Credit for the other direction.
    pub credit: Told,
    /// Tag and data.
    pub label: Label,
    /// The sender wants to be told when it is stored.
    pub wants_done: bool,
}

/// Messages of the other direction that were matched so far, and their bytes in units of [`UNIT`]. Both wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// Messages.
    pub messages: u16,
    /// Units of eager contents.
    pub units: u16,
}

/// Bytes of a unit of credit.
pub const UNIT: usize = 256;

/// The meaning of a message.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    /// The first word on a flow: the sender's own key.
    Hello(Key),
    /// A message; the payload is its contents.
    Eager(Envelope),
    /// A message of this many bytes, which the receiver fetches.
    Announce(Envelope, u64),
    /// Asks for bytes of message `number`, for a receive of the fetcher.
    Fetch {
        /// The message.
        number: u32,
        /// The receive.
        receive: u32,
        /// How many bytes from its beginning. 0 means that the message is no longer needed.
        bytes: u64,
        /// Credit for the other direction.
        credit: Told,
    },
    /// The payload is the next bytes for this receive.
    Data(u32),
    /// The message of this number was stored.
    Done(u32),
    /// Only credit.
    Credit(Told),
    /// Asks for credit soon.
    Ask,
    /// The endpoint was freed.
    Bye,
}

const HELLO: u8 = 1;
const FETCH: u8 = 2;
const DATA: u8 = 3;
const DONE: u8 = 4;
const CREDIT: u8 = 5;
const ASK: u8 = 6;
const BYE: u8 = 7;
const EAGER: u8 = 0x10;
const ANNOUNCE: u8 = 0x20;
/// Bits of `EAGER` and `ANNOUNCE`.
const HAS_TAG: u8 = 1;
const HAS_DATA: u8 = 2;
const WANTS_DONE: u8 = 4;

/// A word in the form of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed {
    /// The operation.
    pub op: u8,
    args: [u32; MAX_ARGS],
    len: u8,
}

impl Packed {
    #[inline(always)]
    fn new(op: u8, first: &[u32]) -> Packed {
        let mut packed = Packed { op, args: [0; MAX_ARGS], len: 0 };
        for &arg in first {
            packed.push(arg);
        }
        packed
    }

    #[inline(always)]
    fn push(&mut self, arg: u32) {
        if let Some(place) = self.args.get_mut(usize::from(self.len)) {
            *place = arg;
            self.len += 1;
        }
    }

    #[inline(always)]
    fn push_wide(&mut self, value: u64) {
        self.push(value as u32);
        self.push((value >> 32) as u32);
    }

    /// The arguments.
    #[inline(always)]
    pub fn args(&self) -> &[u32] {
        &self.args[..usize::from(self.len)]
    }
}

impl Told {
    #[inline(always)]
    fn pack(self) -> u32 {
        u32::from(self.messages) | u32::from(self.units) << 16
    }

    #[inline(always)]
    fn unpack(word: u32) -> Told {
        Told { messages: word as u16, units: (word >> 16) as u16 }
    }
}

impl Envelope {
    #[inline(always)]
    fn bits(&self) -> u8 {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bit(self.label.tag.is_some(), HAS_TAG)
            | bit(self.label.data.is_some(), HAS_DATA)
            | bit(self.wants_done, WANTS_DONE)
    }

    /// Operation and arguments of an eager message, if it has a tag and no data. That is the common case, and the number of arguments is
    /// known at compile time.
    #[inline(always)]
    pub fn pack_plain(&self) -> Option<(u8, [u32; 4])> {
        let Label { tag: Some(tag), data: None } = self.label else { return None };
        let op = EAGER | HAS_TAG | if self.wants_done { WANTS_DONE } else { 0 };
        Some((op, [self.number, self.credit.pack(), tag as u32, (tag >> 32) as u32]))
    }

    /// Operation and arguments of an eager message, if it has a tag and data, as MPICH's messages have.
    #[inline(always)]
    pub fn pack_plain_with_data(&self) -> Option<(u8, [u32; 6])> {
        let Label { tag: Some(tag), data: Some(data) } = self.label else { return None };
        let op = EAGER | HAS_TAG | HAS_DATA | if self.wants_done { WANTS_DONE } else { 0 };
        let [tag, data] = [tag, data].map(|value| [value as u32, (value >> 32) as u32]);
        Some((op, [self.number, self.credit.pack(), tag[0], tag[1], data[0], data[1]]))
    }

    /// Reads an eager message that has a tag; [`Word::unpack`] reads any. Total.
    #[inline(always)]
    pub fn plain(op: u8, args: &[u32]) -> Option<Envelope> {
        let (number, credit, tag, data) = match *args {
            [number, credit, low, high] if op & !WANTS_DONE == EAGER | HAS_TAG => {
                (number, credit, wide(low, high), None)
            }
            [number, credit, low, high, data_low, data_high] if op & !WANTS_DONE == EAGER | HAS_TAG | HAS_DATA => {
                (number, credit, wide(low, high), Some(wide(data_low, data_high)))
            }
            _ => return None,
        };
        let label = Label { tag: Some(tag), data };
        Some(Envelope { number, credit: Told::unpack(credit), label, wants_done: op & WANTS_DONE != 0 })
    }

    #[inline(always)]
    fn pack(&self, op: u8, len: Option<u64>) -> Packed {
        let mut packed = Packed::new(op | self.bits(), &[self.number, self.credit.pack()]);
        for value in [self.label.tag, len, self.label.data].into_iter().flatten() {
            packed.push_wide(value);
        }
        packed
    }
}

impl Word {
    /// The word in the form of a message.
    #[inline(always)]
    pub fn pack(&self) -> Packed {
        match *self {
            Word::Hello(key) => {
                let mut packed = Packed::new(HELLO, &[TAGGED_VERSION]);
                packed.push_wide(key.0);
                packed
            }
            Word::Eager(envelope) => envelope.pack(EAGER, None),
            Word::Announce(envelope, len) => envelope.pack(ANNOUNCE, Some(len)),
            Word::Fetch { number, receive, bytes, credit } => {
                let mut packed = Packed::new(FETCH, &[number, receive]);
                packed.push_wide(bytes);
                packed.push(credit.pack());
                packed
            }
            Word::Data(receive) => Packed::new(DATA, &[receive]),
            Word::Done(number) => Packed::new(DONE, &[number]),
            Word::Credit(told) => Packed::new(CREDIT, &[told.pack()]),
            Word::Ask => Packed::new(ASK, &[]),
            Word::Bye => Packed::new(BYE, &[]),
        }
    }

    /// Reads a word. Total; `None` if it is malformed.
    #[inline(always)]
    pub fn unpack(op: u8, args: &[u32]) -> Option<Word> {
        match op & !(HAS_TAG | HAS_DATA | WANTS_DONE) {
            EAGER => unpack_envelope(op, args, false).map(|(envelope, _)| Word::Eager(envelope)),
            ANNOUNCE => unpack_envelope(op, args, true).map(|(envelope, len)| Word::Announce(envelope, len)),
            _ => unpack_other(op, args),
        }
    }
}

#[inline(always)]
fn wide(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline(always)]
fn unpack_envelope(op: u8, args: &[u32], has_len: bool) -> Option<(Envelope, u64)> {
    let (&[number, credit], mut rest) = args.split_first_chunk()?;
    let mut take = |is_there: bool| {
        if !is_there {
            return Some(None);
        }
        let (&[low, high], behind) = rest.split_first_chunk()?;
        rest = behind;
        Some(Some(wide(low, high)))
    };
    let tag = take(op & HAS_TAG != 0)?;
    let len = take(has_len)?;
    let data = take(op & HAS_DATA != 0)?;
    let (credit, wants_done) = (Told::unpack(credit), op & WANTS_DONE != 0);
    let envelope = Envelope { number, credit, label: Label { tag, data }, wants_done };
    rest.is_empty().then_some((envelope, len.unwrap_or(0)))
}

fn unpack_other(op: u8, args: &[u32]) -> Option<Word> {
    Some(match (op, args) {
        (HELLO, &[TAGGED_VERSION, low, high]) => Word::Hello(Key(wide(low, high))),
        (FETCH, &[number, receive, low, high, credit]) => {
            Word::Fetch { number, receive, bytes: wide(low, high), credit: Told::unpack(credit) }
        }
        (DATA, &[receive]) => Word::Data(receive),
        (DONE, &[number]) => Word::Done(number),
        (CREDIT, &[told]) => Word::Credit(Told::unpack(told)),
        (ASK, []) => Word::Ask,
        (BYE, []) => Word::Bye,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::lines;
    use proptest::prelude::*;

    fn labels() -> impl Strategy<Value = Label> {
        (any::<Option<u64>>(), any::<Option<u64>>()).prop_map(|(tag, data)| Label { tag, data })
    }

    fn told() -> impl Strategy<Value = Told> {
        (any::<u16>(), any::<u16>()).prop_map(|(messages, units)| Told { messages, units })
    }

    fn envelopes() -> impl Strategy<Value = Envelope> {
        (any::<u32>(), told(), labels(), any::<bool>()).prop_map(|(number, credit, label, wants_done)| Envelope {
            number,
            credit,
            label,
            wants_done,
        })
    }

    fn words() -> impl Strategy<Value = Word> {
        prop_oneof![
            any::<u64>().prop_map(|key| Word::Hello(Key(key))),
            envelopes().prop_map(Word::Eager),
            (envelopes(), any::<u64>()).prop_map(|(envelope, len)| Word::Announce(envelope, len)),
            (any::<u32>(), any::<u32>(), any::<u64>(), told())
                .prop_map(|(number, receive, bytes, credit)| Word::Fetch { number, receive, bytes, credit }),
            any::<u32>().prop_map(Word::Data),
            any::<u32>().prop_map(Word::Done),
            told().prop_map(Word::Credit),
            Just(Word::Ask),
            Just(Word::Bye),
        ]
    }

    #[test]
    fn an_eager_message_packs_into_the_golden_arguments() {
        let label = Label { tag: Some(0x1122_3344_5566_7788), data: Some(9) };
        let credit = Told { messages: 3, units: 5 };
        let packed = Word::Eager(Envelope { number: 7, credit, label, wants_done: true }).pack();
        assert_eq!((packed.op, packed.args()), (0x17, &[7, 0x0005_0003, 0x5566_7788, 0x1122_3344, 9, 0][..]));
        assert_eq!(lines(packed.args().len(), 24), 1);
    }

    #[test]
    fn a_hello_of_another_version_is_refused() {
        let mut hello = Word::Hello(Key(1)).pack().args().to_vec();
        hello[0] += 1;
        assert!(Word::unpack(HELLO, &hello).is_none());
    }

    proptest! {
        #[test]
        fn plain_messages_agree_with_words(envelope in envelopes(), op: u8, args in proptest::collection::vec(any::<u32>(), 0..8)) {
            let packed = Word::Eager(envelope).pack();
            if let Some((op, args)) = envelope.pack_plain() {
                prop_assert_eq!((op, &args[..]), (packed.op, packed.args()));
                prop_assert_eq!(Envelope::plain(op, &args), Some(envelope));
            }
            if let Some((op, args)) = envelope.pack_plain_with_data() {
                prop_assert_eq!((op, &args[..]), (packed.op, packed.args()));
                prop_assert_eq!(Envelope::plain(op, &args), Some(envelope));
            }
            prop_assert_eq!(envelope.label.tag.is_some(), Envelope::plain(packed.op, packed.args()).is_some());
            let read = Envelope::plain(op, &args).map(|envelope| Word::Eager(envelope).pack());
            prop_assert!(read.is_none_or(|read| (read.op, read.args()) == (op, &args[..])));
        }

        #[test]
        fn words_read_back(word in words()) {
            let packed = word.pack();
            prop_assert_eq!(Word::unpack(packed.op, packed.args()).map(|word| word.pack()), Some(packed));
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
