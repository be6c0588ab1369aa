//! The record: a message, or a control word between two sessions, as it lies in a ring.
//!
//! A record begins on a 64-byte line with a header of 16 bytes; the arguments follow, padded to 8 bytes, then the payload.
//! So a message of up to 48 bytes is one line, and a payload is always 8-byte aligned. In a ring a large payload ([`LARGE_LEAST`])
//! begins on a new line; in a stream between hosts it does not.
//!
//! ```text
//! word 0   bits 0..32 payload bytes | 32..40 kind, never 0 | 40..48 operation | 48..56 arguments | 56..64 zero
//! word 1   bits 0..16 flow | 16..32 slot | 32..48 credit: messages | 48..64 credit: lines
//! ```
//!
//! Word 0 is zero exactly where no record has been published.

/// Bytes of a line: the unit of ring space and of the cache's transfers.
pub const LINE: usize = 64;

/// Bytes of the header.
pub const HEADER: usize = 16;

/// The most arguments of a message, 32 bits each (AM-II).
pub const MAX_ARGS: usize = 16;

/// Payloads of at least this many bytes are large: in a ring they begin on a new line, so that whole lines are stored.
pub const LARGE_LEAST: usize = 1024;

/// The most payload bytes of a record.
pub const MAX_PAYLOAD: usize = 64 << 10;

/// Requests that one endpoint may have outstanding at another (32, as in Active Messages II).
pub const WINDOW: usize = 32;

/// What a record is. The number is the wire code; 0 means that no record is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Fills the end of a lane; the next record is at the lane's beginning.
    Pad = 1,
    /// The next record is in the other lane.
    Switch = 2,
    /// Opens a flow; the arguments are those of `setup::Open`. `slot` is the generation: how often the number was opened
    /// before on this session. It wraps around.
    Open = 3,
    /// A one-way message.
    Send = 4,
    /// A request, which ends by a reply, by `Ended` or by `Return`.
    Request = 5,
    /// The reply to the request in `slot`.
    Reply = 6,
    /// Requests that ended without a reply: argument 0 is the bit mask of their slots, and `slot` may be `MOVED`.
    Ended = 7,
    /// A message came back; `op` is the reason's code. `slot` says which message. It is the slot of a request, whose contents its sender
    /// kept; or `RETURNED_SEND` or `RETURNED_REPLY` plus the message's operation, and the message's arguments and payload follow; or
    /// `RETURNED_LONG` plus the slot of a long reply, whose contents its sender kept.
    Return = 8,
    /// Credit of one-way messages: arguments are messages and lines consumed, and messages stored. Without arguments it asks for
    /// credit, or says `GO_ON`.
    Credit = 9,
    /// A one-way message that may be lost: it is neither returned nor acknowledged, and takes no credit. `slot` is the generation of
    /// its flow, because the message can arrive outside of the stream, and late, when another flow has the number.
    Unreliable = 10,
    /// The opener of a flow sends nothing more by it: every message that it sent there has ended.
    Close = 11,
    /// The answer to `Close`, behind all other records about the flow. Its number may be opened again.
    Closed = 12,
    /// Bytes of a long message, which continue those before them. `slot` is that of the request, plus `OF_REPLY` for bytes of its reply.
    /// The first piece has arguments: the message's place in the segment, and its length, 64 bits each.
    Piece = 13,
    /// A long request, with the last of its bytes; `slot` may have `BEGUN`. Without it the record is all of the message, and the last two
    /// arguments are its place.
    Long = 14,
    /// A long reply to the request in `slot`; as `Long`.
    LongReply = 15,
    /// A request for bytes of the segment, which come as a long reply. Arguments, 64 bits each: their place, their number, and their place
    /// in the requester's segment.
    Get = 16,
    /// The long reply to the request in `slot` was taken: its sender need not keep it any more.
    Taken = 17,
}

/// In the slot of a `Long` or `LongReply`: pieces came before it.
pub const BEGUN: u16 = 0x100;

/// In the slot of a `Piece`: the bytes are a reply's.
pub const OF_REPLY: u16 = 0x100;

/// In the slot of a `Return`: a one-way message, in the low byte its operation.
pub const RETURNED_SEND: u16 = 0xff00;

/// In the slot of a `Return`: a reply, in the low byte its operation.
pub const RETURNED_REPLY: u16 = 0xfe00;

/// In the slot of a `Return`: a long reply, in the low byte its slot.
pub const RETURNED_LONG: u16 = 0xfd00;

/// In the slot of a `Send`: the sender wants to be told soon that it was stored.
pub const ASK_STORED: u16 = 1;

/// In the slot of a `Send`: urgent. The receiver takes it at its next poll instead of lagging behind a stream.
pub const URGENT: u16 = 2;

/// In the slot of an `Ended`: the flow's destination lives in another bundle now. Call it again; until that call succeeds, this flow still
/// leads to it.
pub const MOVED: u16 = 1;

/// In the slot of a `Credit` without arguments: all refused messages of this ordered flow came back, and the receiver takes messages again.
pub const GO_ON: u16 = 1;

/// In the operation of an `Open`: the flow is ordered. Once one of its messages was refused, all that follow are refused until [`GO_ON`].
pub const ORDERED: u8 = 1;

/// Consumed one-way messages of a flow that the sender may count as free again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credit {
    /// Messages.
    pub messages: u16,
    /// Their ring lines.
    pub lines: u16,
}

/// The header of a record.
///
/// ```
/// use weft_wire::{Head, Kind};
///
/// let head = Head { op: 3, args: 1, len: 100, ..Head::new(Kind::Request) };
/// assert_eq!(head.lines(), 2); // 16 bytes, 8 of arguments, 100 of payload
/// let words = head.pack();
/// assert_eq!(Head::unpack(words), Ok(head));
/// assert!(Head::unpack([words[0] | 1 << 63, words[1]]).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What the record is.
    pub kind: Kind,
    /// The client's operation: an Active Message handler's number.
    pub op: u8,
    /// Number of arguments, at most [`MAX_ARGS`].
    pub args: u8,
    /// Bytes of payload, at most [`MAX_PAYLOAD`].
    pub len: u32,
    /// The flow within the session.
    pub flow: u16,
    /// The request's slot within the flow's window.
    pub slot: u16,
    /// Credit that rides along.
    pub credit: Credit,
}

/// Words that are no header.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A kind that this version does not know.
    #[error("record of unknown kind {0}")]
    Kind(u8),
    /// More than [`MAX_ARGS`] arguments.
    #[error("record with {0} arguments, at most {MAX_ARGS} are allowed")]
    Args(u8),
    /// More than [`MAX_PAYLOAD`] bytes.
    #[error("record of {0} bytes, at most {MAX_PAYLOAD} are allowed")]
    Length(u32),
    /// Reserved bits are not zero.
    #[error("record with reserved bits set")]
    Reserved,
    /// The record does not fit where it lies.
    #[error("record of {0} lines reaches over the end of its lane")]
    Reach(u32),
}

crate::debug_says_display!(Malformed);

impl Head {
    /// A header of this kind with everything else zero.
    pub const fn new(kind: Kind) -> Head {
        Head { kind, op: 0, args: 0, len: 0, flow: 0, slot: 0, credit: Credit { messages: 0, lines: 0 } }
    }

    /// The two words of the header.
    #[inline(always)]
    pub fn pack(&self) -> [u64; 2] {
        let word0 =
            u64::from(self.len) | (self.kind as u64) << 32 | u64::from(self.op) << 40 | u64::from(self.args) << 48;
        let word1 = u64::from(self.flow)
            | u64::from(self.slot) << 16
            | u64::from(self.credit.messages) << 32
            | u64::from(self.credit.lines) << 48;
        [word0, word1]
    }

    /// Reads a header. Total, and everything it returns is within the limits above.
    #[inline(always)]
    pub fn unpack(words: [u64; 2]) -> Result<Head, Malformed> {
        HeadWords::check(words).map(HeadWords::head)
    }

    /// Whether the record is one of a stream of one-way messages, which may be read some microseconds later.
    #[inline(always)]
    pub fn streams(&self) -> bool {
        self.kind == Kind::Send && self.slot & URGENT == 0
    }

    /// The lines that the record takes, for values within the limits: at most 1,026.
    #[inline(always)]
    pub fn lines(&self) -> u32 {
        lines(usize::from(self.args), self.len as usize)
    }
}

/// The two words of a header that was read and checked. Each field is extracted where it is used: a reader that unpacks all of them
/// first has more values than registers, on the one path where that shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeadWords {
    /// Its kind is known, its argument count and length are within the limits, its reserved bits are zero.
    first: u64,
    second: u64,
}

impl HeadWords {
    /// Accepts the words if they are a header within the limits above. Total.
    #[inline(always)]
    pub fn check(words: [u64; 2]) -> Result<HeadWords, Malformed> {
        let [w0, second] = words;
        let known = (Kind::FIRST..=Kind::LAST).contains(&((w0 >> 32) as u8));
        match known && w0 >> 48 <= MAX_ARGS as u64 && w0 as u32 <= MAX_PAYLOAD as u32 {
            true => Ok(HeadWords { first: w0, second }),
            false => Err(malformed(w0)),
        }
    }

    /// Accepts the words if they are the header of a message, not of a link within the ring, that fits one line with its arguments and
    /// payload. Most records do; two comparisons decide it.
    #[inline(always)]
    pub fn of_one_line(words: [u64; 2]) -> Option<HeadWords> {
        let [first, second] = words;
        // An argument count beyond the limit, or with reserved bits set, makes `body` larger than a line.
        let body = args_bytes((first >> 48) as usize) + first as u32 as usize;
        let is_message = (Kind::Open as u8..=Kind::LAST).contains(&((first >> 32) as u8));
        (is_message && body <= LINE - HEADER).then_some(HeadWords { first, second })
    }

    /// All fields.
    #[inline(always)]
    pub fn head(self) -> Head {
        // The kind was checked, so the fallback is never used.
        let kind = kind_of((self.first >> 32) as u8).unwrap_or(Kind::Pad);
        let (op, flow, slot, credit) = (self.op(), self.flow(), self.slot(), self.credit());
        Head { kind, op, args: self.args() as u8, len: self.len() as u32, flow, slot, credit }
    }

    /// The two words.
    #[inline(always)]
    pub fn words(self) -> [u64; 2] {
        [self.first, self.second]
    }

    /// What the record is.
    #[inline(always)]
    pub fn kind(self) -> Kind {
        self.head().kind
    }

    /// As [`Head::streams`].
    #[inline(always)]
    pub fn streams(self) -> bool {
        self.is(Kind::Send) && self.slot() & URGENT == 0
    }

    /// Whether the record is of this kind.
    #[inline(always)]
    pub fn is(self, kind: Kind) -> bool {
        (self.first >> 32) as u8 == kind as u8
    }

    /// The client's operation.
    #[inline(always)]
    pub fn op(self) -> u8 {
        (self.first >> 40) as u8
    }

    /// Number of arguments, at most [`MAX_ARGS`].
    #[inline(always)]
    pub fn args(self) -> usize {
        (self.first >> 48) as usize
    }

    /// Bytes of payload, at most [`MAX_PAYLOAD`].
    #[inline(always)]
    pub fn len(self) -> usize {
        self.first as u32 as usize
    }

    /// Whether there is no payload.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The flow within the session.
    #[inline(always)]
    pub fn flow(self) -> u16 {
        self.second as u16
    }

    /// The request's slot within the flow's window.
    #[inline(always)]
    pub fn slot(self) -> u16 {
        (self.second >> 16) as u16
    }

    /// Credit that rides along.
    #[inline(always)]
    pub fn credit(self) -> Credit {
        Credit { messages: (self.second >> 32) as u16, lines: (self.second >> 48) as u16 }
    }

    /// Whether credit rides along.
    #[inline(always)]
    pub fn has_credit(self) -> bool {
        self.second >> 32 != 0
    }

    /// Where the payload begins in a ring, in bytes from the record's beginning.
    #[inline(always)]
    pub fn payload_at(self) -> usize {
        payload_at(self.args(), self.len())
    }

    /// Where the payload begins in a stream, where no bytes are left out before it.
    #[inline(always)]
    pub fn packed_payload_at(self) -> usize {
        packed_payload_at(self.args())
    }

    /// The lines that the record takes. At most 1,026.
    #[inline(always)]
    pub fn lines(self) -> u32 {
        lines(self.args(), self.len())
    }
}

impl From<Head> for HeadWords {
    /// # Panics
    /// If the argument count or the length is beyond its limit.
    fn from(head: Head) -> HeadWords {
        HeadWords::check(head.pack()).expect("a header within the limits")
    }
}

impl std::fmt::Debug for HeadWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.head().fmt(f)
    }
}

impl Kind {
    /// Whether the record carries a message of a program: one that is sent, or one that goes back to its sender.
    pub fn is_message(self) -> bool {
        let is_long = matches!(self, Kind::Long | Kind::LongReply | Kind::Get);
        is_long || matches!(self, Kind::Send | Kind::Request | Kind::Reply | Kind::Return)
    }

    /// The smallest code.
    const FIRST: u8 = Kind::Pad as u8;
    /// The largest code; all between are in use.
    const LAST: u8 = Kind::Taken as u8;
}

/// Bytes that `n` arguments take in a record: padded to 8, so that the payload is aligned.
#[inline(always)]
pub const fn args_bytes(n: usize) -> usize {
    (n + (n & 1)) * 4
}

/// Where the payload of a record with this many arguments begins in a stream, in bytes from the record's beginning.
#[inline(always)]
pub const fn packed_payload_at(args: usize) -> usize {
    HEADER + args_bytes(args)
}

/// Where the payload of a record with this many arguments and payload bytes begins in a ring, in bytes from the record's beginning.
#[inline(always)]
pub const fn payload_at(args: usize, payload: usize) -> usize {
    let packed = packed_payload_at(args);
    if payload < LARGE_LEAST {
        packed
    } else {
        packed.next_multiple_of(LINE)
    }
}

/// The lines that a record with this many arguments and payload bytes takes in a ring, for values within the limits.
#[inline(always)]
pub const fn lines(args: usize, payload: usize) -> u32 {
    ((payload_at(args, payload) + payload + LINE - 1) >> LINE.ilog2()) as u32
}

/// What is wrong with a first word.
#[cold]
fn malformed(word0: u64) -> Malformed {
    let (len, kind, args) = (word0 as u32, (word0 >> 32) as u8, (word0 >> 48) as u8);
    if kind_of(kind).is_none() {
        Malformed::Kind(kind)
    } else if word0 >> 56 != 0 {
        Malformed::Reserved
    } else if usize::from(args) > MAX_ARGS {
        Malformed::Args(args)
    } else {
        Malformed::Length(len)
    }
}

#[inline(always)]
fn kind_of(code: u8) -> Option<Kind> {
    Some(match code {
        1 => Kind::Pad,
        2 => Kind::Switch,
        3 => Kind::Open,
        4 => Kind::Send,
        5 => Kind::Request,
        6 => Kind::Reply,
        7 => Kind::Ended,
        8 => Kind::Return,
        9 => Kind::Credit,
        10 => Kind::Unreliable,
        11 => Kind::Close,
        12 => Kind::Closed,
        13 => Kind::Piece,
        14 => Kind::Long,
        15 => Kind::LongReply,
        16 => Kind::Get,
        17 => Kind::Taken,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_packs_into_the_golden_words() {
        let head = Head {
            kind: Kind::Request,
            op: 7,
            args: 4,
            len: 16,
            flow: 0x0102,
            slot: 31,
            credit: Credit { messages: 3, lines: 5 },
        };
        assert_eq!(head.pack(), [0x0004_0705_0000_0010, 0x0005_0003_001f_0102]);
        assert_eq!(head.lines(), 1);
        assert_eq!(HeadWords::from(head).payload_at(), 32);
    }

    #[test]
    fn up_to_48_bytes_are_one_line_and_the_largest_is_1026() {
        assert_eq!(lines(0, 48), 1);
        assert_eq!(lines(0, 49), 2);
        assert_eq!(lines(4, 32), 1);
        assert_eq!(lines(3, 33), 2);
        assert_eq!(lines(MAX_ARGS, MAX_PAYLOAD), 1026);
    }

    #[test]
    fn large_payloads_begin_on_a_new_line_in_a_ring_but_not_in_a_stream() {
        for args in 0..=MAX_ARGS {
            assert_eq!(payload_at(args, LARGE_LEAST - 1), HEADER + args_bytes(args));
            assert_eq!(payload_at(args, LARGE_LEAST), if args <= 12 { LINE } else { 2 * LINE }, "{args} arguments");
            let head = Head {
                kind: Kind::Send,
                op: 0,
                args: args as u8,
                len: LARGE_LEAST as u32,
                flow: 0,
                slot: 0,
                credit: Credit::default(),
            };
            assert_eq!(HeadWords::from(head).packed_payload_at(), HEADER + args_bytes(args));
        }
        assert_eq!(lines(0, LARGE_LEAST), 17);
    }

    proptest! {
        #[test]
        fn any_words_are_a_header_within_limits_or_an_error(w0: u64, w1: u64) {
            if let Ok(head) = Head::unpack([w0, w1]) {
                prop_assert_eq!(head.pack(), [w0, w1]);
                prop_assert!(head.lines() <= 1026);
            }
        }

        #[test]
        fn records_of_one_line_are_recognised(w0: u64, w1: u64, kind in 0u64..20, args in 0u64..20, len in 0u64..70) {
            for first in [w0, len | kind << 32 | args << 48] {
                let slow = HeadWords::check([first, w1]).ok().filter(|h| h.lines() == 1 && !h.is(Kind::Pad) && !h.is(Kind::Switch));
                prop_assert_eq!(HeadWords::of_one_line([first, w1]), slow);
            }
        }

        #[test]
        fn likely_words_are_a_header_or_an_error(kind in 0u8..20, op: u8, args in 0u8..20, len in 0u32..70_000, w1: u64) {
            let w0 = u64::from(len) | u64::from(kind) << 32 | u64::from(op) << 40 | u64::from(args) << 48;
            let good = (1..=17).contains(&kind) && args <= 16 && len <= 65_536;
            prop_assert_eq!(Head::unpack([w0, w1]).is_ok(), good);
        }
    }
}
