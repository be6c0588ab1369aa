//! The descriptors of the rings that a program shares with weftd: 64 bytes each, one ring for each direction of an endpoint.
//!
//! ```text
//! word 0   bits 0..16 lap | 16..24 kind, never 0 | 24..32 zero | 32..64 line
//! word 1   bits 0..32 taken | 32..64 place of the contents in the area, in units of 64 bytes
//! word 2.. of a `Record`: its header, and its contents if they have at most 32 bytes
//!          of a `Closed` or `Refused`: the reason's code | `touched` or `from` << 32
//! ```
//!
//! The first word is stored last. Its lap counts the rounds of the ring, from one, so a ring of zeros is empty, and nobody has to clear
//! descriptors that were read. (MU-Net's ready flag, as a number.) Contents are the record's arguments and payload, as in a stream.

use crate::record::packed_payload_at;
use crate::{HeadWords, Malformed, Reason, LINE};

/// Words of a descriptor.
pub const WORDS: usize = LINE / 8;

/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = LINE;

/// Words of it that hold contents.
pub const INLINE_WORDS: usize = 4;

/// Bytes of contents that a descriptor holds.
pub const INLINE_MOST: usize = INLINE_WORDS * 8;

/// The index of the first word of contents.
const CONTENTS: usize = WORDS - INLINE_WORDS;

/// Bytes of a unit; areas are divided into units.
pub const UNIT: usize = LINE;

/// The number of a line, which joins an endpoint of an attachment with an endpoint elsewhere. Each attachment numbers its own lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LineId(pub u32);

impl LineId {
    /// The line from a system endpoint to the daemon.
    pub const SYSTEM: LineId = LineId(0);
}

/// A place on a line: the low 32 bits of a count of bytes, as the line's records take them in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place(pub u32);

impl Place {
    /// The place `bytes` further on.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, bytes: u32) -> Place {
        Place(self.0.wrapping_add(bytes))
    }

    /// Bytes from `earlier` to here, for places less than half of the number's range apart.
    #[inline(always)]
    pub const fn since(self, earlier: Place) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this lies between the two, both included.
    #[inline(always)]
    pub const fn is_between(self, first: Place, last: Place) -> bool {
        self.since(first) <= last.since(first)
    }
}

/// The meaning of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// A record is sent, or came, by the line.
    Record(HeadWords),
    /// The line was read up to *taken*.
    Taken,
    /// To a program: a peer opened this line. The area has the peer's name.
    Opened,
    /// To a program: the line is refused for now. Records from this place on were dropped; send them again after `Ready`.
    Refused {
        /// Why.
        reason: Reason,
        /// Where the first dropped record begins.
        from: Place,
    },
    /// To a program: send the refused records again.
    Ready,
    /// To the daemon: the next records of the line are those that were refused.
    Again,
    /// The line has ended. Records that begin at or behind `touched` were never handed over; those before *taken* were taken.
    Closed {
        /// Why.
        reason: Reason,
        /// The end of the records that were handed to the peer.
        touched: Place,
    },
}

/// A descriptor without its lap and without contents that it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The line.
    pub line: LineId,
    /// How far its sender, or the peer of its receiver, has taken the records of the line's other direction.
    pub taken: Place,
    /// Where contents begin in the area, in units.
    pub at: u32,
    /// Its meaning.
    pub said: Said,
}

/// The words of a descriptor, as they lie in a ring.
pub type Words = [u64; WORDS];

/// Why words are no descriptor.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// A kind that this version does not know.
    #[error("descriptor of unknown kind {0}")]
    Kind(u8),
    /// Bits that must be zero are not.
    #[error("descriptor with reserved bits set")]
    Reserved,
    /// The record's header.
    #[error("descriptor of a {0}")]
    Head(#[from] Malformed),
    /// A reason that this version does not know.
    #[error("descriptor with unknown reason {0}")]
    Reason(u8),
}

crate::debug_says_display!(DescriptorError);

mod code {
    pub const RECORD: u8 = 1;
    pub const TAKEN: u8 = 2;
    pub const OPENED: u8 = 3;
    pub const CLOSED: u8 = 4;
    pub const REFUSED: u8 = 5;
    pub const READY: u8 = 6;
    pub const AGAIN: u8 = 7;
}

/// The bytes of a record's contents: its arguments and its payload.
#[inline(always)]
pub fn contents_bytes(head: HeadWords) -> usize {
    packed_payload_at(head.args()).saturating_sub(crate::record::HEADER).saturating_add(head.len())
}

/// Whether a record's contents lie in the descriptor itself.
#[inline(always)]
pub fn is_inline(head: HeadWords) -> bool {
    contents_bytes(head) <= INLINE_MOST
}

/// The units of an area that this many bytes take.
#[inline(always)]
pub const fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT) as u32
}

/// The lap of the first word of a descriptor.
#[inline(always)]
pub const fn lap(first: u64) -> u16 {
    first as u16
}

/// The lap in which a ring of `1 << order` descriptors comes to a position: from 1 to 32,768, and then from 1 again.
#[inline(always)]
pub const fn lap_at(position: u64, order: u32) -> u16 {
    ((position >> order) as u16 & 0x7fff) + 1
}

impl Descriptor {
    /// Its words, for a lap. The words of contents are zero.
    #[inline(always)]
    pub fn words(&self, lap: u16) -> Words {
        let (kind, second, third) = match self.said {
            Said::Record(head) => {
                let [first, second] = head.words();
                (code::RECORD, first, second)
            }
            Said::Taken => (code::TAKEN, 0, 0),
            Said::Opened => (code::OPENED, 0, 0),
            Said::Ready => (code::READY, 0, 0),
            Said::Again => (code::AGAIN, 0, 0),
            Said::Closed { reason, touched: place } => (code::CLOSED, reason_at(reason, place), 0),
            Said::Refused { reason, from: place } => (code::REFUSED, reason_at(reason, place), 0),
        };
        let first = u64::from(lap) | u64::from(kind) << 16 | u64::from(self.line.0) << 32;
        [first, u64::from(self.taken.0) | u64::from(self.at) << 32, second, third, 0, 0, 0, 0]
    }

    /// Reads words that were copied out of a ring. Total. A record's header is within its limits.
    ///
    /// # Errors
    /// If they are no descriptor.
    #[inline(always)]
    pub fn check(words: &Words) -> Result<Descriptor, DescriptorError> {
        let [first, second, third, fourth, ..] = *words;
        if first >> 24 & 0xff != 0 {
            return Err(DescriptorError::Reserved);
        }
        let said = match (first >> 16) as u8 {
            code::RECORD => Said::Record(HeadWords::check([third, fourth])?),
            code::TAKEN => Said::Taken,
            code::OPENED => Said::Opened,
            code::READY => Said::Ready,
            code::AGAIN => Said::Again,
            kind @ (code::CLOSED | code::REFUSED) => {
                let reason = Reason::from_code(third as u8).ok_or(DescriptorError::Reason(third as u8))?;
                let place = Place((third >> 32) as u32);
                match kind {
                    code::CLOSED => Said::Closed { reason, touched: place },
                    _ => Said::Refused { reason, from: place },
                }
            }
            kind => return Err(DescriptorError::Kind(kind)),
        };
        Ok(Descriptor {
            line: LineId((first >> 32) as u32),
            taken: Place(second as u32),
            at: (second >> 32) as u32,
            said,
        })
    }
}

fn reason_at(reason: Reason, place: Place) -> u64 {
    u64::from(reason.code()) | u64::from(place.0) << 32
}

/// The contents that a descriptor holds.
#[inline(always)]
pub fn contents(words: &Words) -> [u64; INLINE_WORDS] {
    let [.., a, b, c, d] = *words;
    [a, b, c, d]
}

/// Puts contents into the words of a descriptor.
#[inline(always)]
pub fn put_contents(words: &mut Words, contents: [u64; INLINE_WORDS]) {
    words[CONTENTS..].copy_from_slice(&contents);
}

/// Packs arguments and payload as a record's contents, replacing the contents of `to`.
pub fn pack(args: &[u32], payload: &[u8], to: &mut Vec<u8>) {
    to.clear();
    args.iter().for_each(|arg| to.extend(arg.to_le_bytes()));
    if args.len() % 2 != 0 {
        to.extend([0; 4]);
    }
    to.extend(payload);
}

/// As [`pack`] for contents that fit a descriptor; `None` for others.
#[inline]
pub fn pack_inline(args: &[u32], payload: &[u8]) -> Option<[u64; INLINE_WORDS]> {
    let at = args.len().next_multiple_of(2) * 4;
    if at + payload.len() > INLINE_MOST {
        return None;
    }
    let mut bytes = [0; INLINE_MOST];
    for (place, arg) in bytes.chunks_exact_mut(4).zip(args) {
        place.copy_from_slice(&arg.to_le_bytes());
    }
    bytes[at..at + payload.len()].copy_from_slice(payload);
    let mut words = [0; INLINE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(crate::name::array(bytes));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Head, Kind};
    use proptest::prelude::*;

    fn descriptor(said: Said) -> Descriptor {
        Descriptor { line: LineId(u32::MAX - 1), taken: Place(77), at: 1 << 20, said }
    }

    #[test]
    fn what_is_written_reads_back() {
        let head = Head { args: 3, len: 65_536, flow: 9, slot: 31, op: 7, ..Head::new(Kind::Request) };
        for said in [
            Said::Record(head.into()),
            Said::Taken,
            Said::Opened,
            Said::Closed { reason: Reason::PeerLost, touched: Place(u32::MAX) },
            Said::Refused { reason: Reason::QueueFull, from: Place(5) },
            Said::Ready,
            Said::Again,
        ] {
            let words = descriptor(said).words(500);
            assert_eq!(lap(words[0]), 500);
            assert_eq!(Descriptor::check(&words), Ok(descriptor(said)));
        }
    }

    #[test]
    fn what_is_no_descriptor_is_an_error_each() {
        let good = descriptor(Said::Closed { reason: Reason::Closed, touched: Place(1) }).words(1);
        let with = |at: usize, word: u64| {
            let mut words = good;
            words[at] = word;
            Descriptor::check(&words)
        };
        let kind = |kind: u64| good[0] & !0xff_0000 | kind << 16;
        assert_eq!(with(0, kind(0)), Err(DescriptorError::Kind(0)));
        assert_eq!(with(0, kind(99)), Err(DescriptorError::Kind(99)));
        assert_eq!(with(0, good[0] | 1 << 24), Err(DescriptorError::Reserved));
        assert_eq!(with(2, 0), Err(DescriptorError::Reason(0)));
        let mut record = descriptor(Said::Record(Head::new(Kind::Send).into())).words(1);
        record[2] = 0;
        assert!(matches!(Descriptor::check(&record), Err(DescriptorError::Head(_))));
    }

    #[test]
    fn laps_begin_with_one_and_wrap_around_without_zero() {
        assert_eq!([0, 7, 8, 16].map(|position| lap_at(position, 3)), [1, 1, 2, 3]);
        let round = 0x8000 * 8;
        assert_eq!([round - 1, round, round + 8].map(|position| lap_at(position, 3)), [0x8000, 1, 2]);
    }

    #[test]
    fn places_wrap_around() {
        let (first, last) = (Place(u32::MAX - 5), Place(10));
        assert_eq!(last.since(first), 16);
        assert!(Place(0).is_between(first, last) && first.is_between(first, last) && last.is_between(first, last));
        assert!(!Place(11).is_between(first, last) && !Place(u32::MAX - 6).is_between(first, last));
    }

    #[test]
    fn contents_that_fit_are_packed_like_those_that_do_not() {
        let mut packed = Vec::new();
        for (args, payload) in [(vec![], 0), (vec![1], 24), (vec![1, 2, 3], 16), (vec![5; 8], 0), (vec![], 32)] {
            let payload: Vec<u8> = (0..payload).collect();
            pack(&args, &payload, &mut packed);
            let words = pack_inline(&args, &payload).expect("they fit");
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(bytes[..packed.len()], packed);
            assert!(bytes[packed.len()..].iter().all(|byte| *byte == 0));
            let head = Head { args: args.len() as u8, len: payload.len() as u32, ..Head::new(Kind::Send) };
            assert_eq!(contents_bytes(head.into()), packed.len());
            assert!(is_inline(head.into()));
        }
        assert_eq!([pack_inline(&[1; 9], b""), pack_inline(&[1], &[0; 25])], [None, None]);
    }

    proptest! {
        #[test]
        fn any_words_are_a_descriptor_or_an_error(words: [u64; WORDS], kind in 0u64..9) {
            let mut words = words;
            words[0] = words[0] & !0xffff_0000 | kind << 16;
            if let Ok(descriptor) = Descriptor::check(&words) {
                prop_assert_eq!(Descriptor::check(&descriptor.words(lap(words[0]))), Ok(descriptor));
            }
        }
    }
}
