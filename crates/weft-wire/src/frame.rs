//! The frames of a packet, by which the two sides of a channel talk.
//!
//! A frame is a header of four bytes (type, detail, and the length of the body) and a body. All fields are little-endian. A zero in
//! place of a type means that only zeros follow, to the packet's end.
//!
//! The records of a stream follow one another without gaps: the two words of the header as in a ring, then the arguments, four bytes
//! each, then the payload. A `Records` frame carries any run of these bytes: many small records, or a part of a large one. Offsets
//! count a stream's bytes; the wire has their low 32 bits.

use crate::name::array;
use crate::record::packed_payload_at;
use crate::{Epoch, Reason, MAX_ARGS, MAX_PAYLOAD};

/// Bytes ahead of a frame's body.
pub const FRAME_HEADER: usize = 4;

/// Bytes of a `Records` frame ahead of the records.
pub const RECORDS_HEADER: usize = FRAME_HEADER + 8;

/// The most bytes of records in a `Records` frame.
const RECORDS_MOST: usize = u16::MAX as usize - (RECORDS_HEADER - FRAME_HEADER);

/// Bytes of a `Taken` frame.
const TAKEN_FRAME: usize = FRAME_HEADER + 12;

/// Bytes of the longest bitmap of an `Acks` frame: one bit for each packet whose fate may be open.
pub const BITMAP_MOST: usize = crate::packet::SPAN as usize / 8;

/// Bytes of a `Hello` frame. No answer to it is larger, so nobody can make us send more than was sent to us.
pub const HELLO_FRAME: usize = 88;

/// The offset of a stream's first byte: a little below the point where the low 32 bits wrap around, as with packet numbers.
pub const FIRST_OFFSET: u64 = (1 << 33) - (1 << 20);

/// Bytes of the largest record of a stream.
pub const RECORD_MOST: usize = stream_bytes(MAX_ARGS, MAX_PAYLOAD);

/// Bytes that a record with this many arguments and payload bytes takes in a stream. They are a multiple of 8, and so is the payload's
/// offset.
#[inline(always)]
pub const fn stream_bytes(args: usize, payload: usize) -> usize {
    packed_payload_at(args) + payload.next_multiple_of(8)
}

/// Feature: `Unreliable` frames are understood.
pub const UNRELIABLE: u32 = 1;

/// Feature: this side wants checksums to leave payloads out ([`Integrity::Header`](crate::packet::Integrity::Header)).
pub const HEADER_INTEGRITY: u32 = 2;

/// How long a [`Frame::Share`] holds since it was last sent.
pub const SHARE_LASTS: std::time::Duration = std::time::Duration::from_millis(100);

/// Bytes of an `Unreliable` frame ahead of the record's.
pub const UNRELIABLE_HEADER: usize = FRAME_HEADER + 16;

/// A stream of records within a channel: those of one session, in both directions.
///
/// The number is a place in a table and the *life* of the stream there. The lowest bit is the side that opens the stream, the next
/// [`PLACE_BITS`] are the place among that side's streams, and the rest counts the streams that had the place before; it wraps around.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u32);

/// Bits of a stream's number for its place.
pub const PLACE_BITS: u32 = 13;

/// Bits of a stream's number for its life.
const LIFE_BITS: u32 = 32 - 1 - PLACE_BITS;

/// A side of a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Side {
    /// The side that called.
    Caller = 0,
    /// The side that answered.
    Answerer = 1,
}

impl Side {
    /// The other one.
    #[inline]
    pub fn other(self) -> Side {
        match self {
            Side::Caller => Side::Answerer,
            Side::Answerer => Side::Caller,
        }
    }
}

impl StreamId {
    /// The stream of a side at a place, which is below 2^[`PLACE_BITS`], in a life, whose low bits are used.
    #[inline]
    pub fn new(side: Side, place: u32, life: u32) -> StreamId {
        let place = place & ((1 << PLACE_BITS) - 1);
        StreamId(life << (1 + PLACE_BITS) | place << 1 | side as u32)
    }

    /// The side that opens it.
    #[inline(always)]
    pub fn side(self) -> Side {
        match self.0 & 1 {
            0 => Side::Caller,
            _ => Side::Answerer,
        }
    }

    /// Its place among those of that side.
    #[inline(always)]
    pub fn place(self) -> usize {
        (self.0 >> 1 & ((1 << PLACE_BITS) - 1)) as usize
    }

    /// Its place among the streams of both sides, which alternate.
    #[inline(always)]
    pub fn index(self) -> usize {
        (self.0 & ((2 << PLACE_BITS) - 1)) as usize
    }

    /// How many streams had the place before.
    #[inline]
    pub fn life(self) -> u32 {
        self.0 >> (1 + PLACE_BITS)
    }

    /// The next stream at the same place.
    #[inline]
    pub fn next_life(self) -> StreamId {
        StreamId::new(self.side(), self.place() as u32, self.life().wrapping_add(1))
    }

    /// Whether it is later than `other`, a stream of the same place. Lives wrap around: it is the later one if less than half of the range
    /// lies between them.
    #[inline]
    pub fn is_after(self, other: StreamId) -> bool {
        let ahead = self.life().wrapping_sub(other.life()) & ((1 << LIFE_BITS) - 1);
        ahead != 0 && ahead < 1 << (LIFE_BITS - 1)
    }
}

/// What a side of a channel grants the other and asks of it, once, at set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Optional parts of the protocol: those offered in a `Hello`, those agreed in an `Accept`. See [`UNRELIABLE`].
    pub features: u32,
    /// Bytes of each stream that may be under way to this side from the beginning.
    pub window: u32,
    /// The longest time before this side acknowledges, in microseconds.
    pub ack_delay: u16,
    /// The largest packet that this side takes.
    pub packet_most: u16,
}

/// A caller's proof that it receives packets at its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cookie {
    /// The key that it was made with.
    pub generation: u32,
    /// The keyed hash.
    pub value: u64,
}

/// Asks for a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The caller's life.
    pub caller: Epoch,
    /// The life that is called.
    pub callee: Epoch,
    /// Every answer repeats it, so that a stranger who does not see the packets cannot answer.
    pub nonce: u64,
    /// The cookie, once the caller has one.
    pub cookie: Option<Cookie>,
    /// What the caller grants and asks.
    pub terms: Terms,
}

/// Says that there is a channel now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept {
    /// The caller's.
    pub nonce: u64,
    /// The caller's life.
    pub caller: Epoch,
    /// The answerer's life.
    pub callee: Epoch,
    /// What the answerer grants and asks.
    pub terms: Terms,
}

/// A frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// A run of a stream's bytes.
    Records {
        /// The stream.
        stream: StreamId,
        /// The offset of the first byte.
        offset: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The packets that came at or above the header's `acked`. The lowest bit of the first byte stands for `acked` itself.
    Acks {
        /// One bit for each packet, not empty.
        bitmap: &'a [u8],
    },
    /// How far the reader of a stream has taken its records, and how far the writer may go.
    Taken {
        /// The stream.
        stream: StreamId,
        /// All records below this offset were taken.
        taken: u32,
        /// Bytes below this offset may be sent.
        limit: u32,
    },
    /// The reader of a stream takes no more of it.
    Nack {
        /// The stream.
        stream: StreamId,
        /// All records below this offset were taken.
        taken: u32,
        /// Records that begin at or above this offset were never handed to a program, and will not be.
        touched: u32,
        /// Why.
        reason: Reason,
    },
    /// Asks for a channel.
    Hello(Hello),
    /// Asks the caller to call again with this cookie.
    Cookie {
        /// The caller's.
        nonce: u64,
        /// The cookie.
        cookie: Cookie,
    },
    /// There is a channel now.
    Accept(Accept),
    /// There will be no channel.
    Refuse {
        /// The caller's.
        nonce: u64,
        /// Why.
        reason: Reason,
    },
    /// There is no such channel here.
    Reset {
        /// The life of the answerer.
        epoch: Epoch,
    },
    /// Asks for an acknowledgement.
    Ping,
    /// A record that may be lost, or a piece of one. It is never retransmitted.
    Unreliable(Piece<'a>),
    /// The opener of a stream proposes to close it, and sends nothing on it until it has the answer: [`Frame::Rested`] or [`Frame::Stay`].
    Rest(Rest),
    /// The receiver of a [`Frame::Rest`] has closed the stream: both sides have taken all records.
    Rested {
        /// The stream.
        stream: StreamId,
    },
    /// The receiver of this [`Frame::Rest`] goes on with the stream.
    Stay(Rest),
    /// The reader of a stream takes nothing of it for now. It has dropped all bytes at `pause.from` and above.
    Pause {
        /// The stream, and the offset.
        pause: Pause,
        /// Why.
        reason: PauseReason,
    },
    /// The reader of a stream takes it again, from this offset on.
    Resume(Pause),
    /// The sender of this frame cannot read all packets that hosts send to it. For [`SHARE_LASTS`] the receiver of the frame may have no
    /// more than this much under way to it.
    Share {
        /// Bytes of packets.
        bytes: u32,
    },
    /// The sender ends the whole channel. It has closed all its streams before.
    End {
        /// Why.
        reason: Reason,
    },
    /// Zeros to the end of the packet, which make it as large as its sender wants. They ask for an acknowledgement.
    Padding {
        /// How many, at least one.
        bytes: usize,
    },
}

/// How far a stream had come when its opener proposed to close it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// The stream.
    pub stream: StreamId,
    /// The opener sent everything below this offset, and it was taken.
    pub sent: u32,
    /// The opener took everything below this offset.
    pub taken: u32,
}

/// A pause of a stream, or its end. The one with the highest round counts; older ones are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    /// The stream.
    pub stream: StreamId,
    /// Everything below this offset came and is kept. Nothing else is kept.
    pub from: u32,
    /// Counts pauses and resumptions of the stream, and wraps around: odd while it is paused.
    pub round: u32,
}

/// Why the reader of a stream takes nothing for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PauseReason {
    /// The endpoint is not resident: it has no frame in its daemon.
    NotResident = 1,
    /// The endpoint's program has not read what came before.
    QueueFull = 2,
    /// The reader's network interface keeps as much for this channel as it may.
    Crowded = 3,
}

impl PauseReason {
    const ALL: [PauseReason; 3] = [PauseReason::NotResident, PauseReason::QueueFull, PauseReason::Crowded];

    fn from_code(code: u8) -> Option<PauseReason> {
        PauseReason::ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}

impl std::fmt::Display for PauseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PauseReason::NotResident => "not resident",
            PauseReason::QueueFull => "queue full",
            PauseReason::Crowded => "too much waits",
        })
    }
}

/// A piece of a record that may be lost. No byte of a record is sent twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// The stream of its session. The piece is not part of that stream's bytes.
    pub stream: StreamId,
    /// The record's number, counted per channel and direction.
    pub number: u32,
    /// The piece's offset in the record.
    pub at: u32,
    /// Bytes of the whole record, as in a stream: at most [`RECORD_MOST`].
    pub total: u32,
    /// The bytes of the piece, at least one.
    pub bytes: &'a [u8],
}

/// Why bytes are no frame.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The packet ends within it.
    #[error("frame that reaches over the end of its packet")]
    Truncated,
    /// A type that this version does not know.
    #[error("frame of unknown type {0}")]
    Type(u8),
    /// A body of the wrong size.
    #[error("frame of type {kind} with a body of {bytes} bytes")]
    Length {
        /// The type.
        kind: u8,
        /// The body's bytes.
        bytes: u16,
    },
    /// A reason that this version does not know.
    #[error("frame with unknown reason {0}")]
    Reason(u8),
    /// Bytes that must be zero are not.
    #[error("frame with reserved bytes set")]
    Reserved,
    /// A piece that lies beyond the end of its record, or a record larger than the limit.
    #[error("frame with a piece beyond the end of its record, or of a record that is too large")]
    Reach,
}

crate::debug_says_display!(FrameError);

mod code {
    pub const PADDING: u8 = 0;
    pub const RECORDS: u8 = 1;
    pub const ACKS: u8 = 2;
    pub const TAKEN: u8 = 3;
    pub const NACK: u8 = 4;
    pub const HELLO: u8 = 5;
    pub const COOKIE: u8 = 6;
    pub const ACCEPT: u8 = 7;
    pub const REFUSE: u8 = 8;
    pub const RESET: u8 = 9;
    pub const PING: u8 = 10;
    pub const UNRELIABLE: u8 = 11;
    pub const REST: u8 = 12;
    pub const RESTED: u8 = 13;
    pub const STAY: u8 = 14;
    pub const END: u8 = 15;
    pub const PAUSE: u8 = 16;
    pub const RESUME: u8 = 17;
    pub const SHARE: u8 = 18;
}

/// The frames of a packet.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// The frames in these bytes.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Frames<'a> {
        Frames { rest: bytes }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if *self.rest.first()? == code::PADDING {
            return Some(padding(std::mem::take(&mut self.rest)));
        }
        let Some((frame, rest)) = split(self.rest) else {
            self.rest = &[];
            return Some(Err(FrameError::Truncated));
        };
        let (kind, detail, body) = frame;
        let frame = Frame::read(kind, detail, body);
        self.rest = if frame.is_ok() { rest } else { &[] };
        Some(frame)
    }
}

/// Reads padding: a zero, and all bytes behind it to the end of the packet.
#[cold]
fn padding(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
    match bytes.iter().all(|&b| b == 0) {
        true => Ok(Frame::Padding { bytes: bytes.len() }),
        false => Err(FrameError::Reserved),
    }
}

/// Type, detail and body of a frame.
type Parts<'a> = (u8, u8, &'a [u8]);

/// The first frame, and what follows it.
#[inline(always)]
fn split(bytes: &[u8]) -> Option<(Parts<'_>, &[u8])> {
    let (&[kind, detail, low, high], rest) = bytes.split_first_chunk::<FRAME_HEADER>()?;
    let (body, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
    Some(((kind, detail, body), rest))
}

impl<'a> Frame<'a> {
    /// Reads a frame from its three parts. Total. The frames of most packets are read here, others out of line.
    #[inline]
    fn read(kind: u8, detail: u8, body: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        match (kind, body) {
            (code::RECORDS, [s0, s1, s2, s3, o0, o1, o2, o3, bytes @ ..]) if detail == 0 && !bytes.is_empty() => {
                let stream = StreamId(u32::from_le_bytes([*s0, *s1, *s2, *s3]));
                Ok(Frame::Records { stream, offset: u32::from_le_bytes([*o0, *o1, *o2, *o3]), bytes })
            }
            (code::TAKEN, [s0, s1, s2, s3, t0, t1, t2, t3, l0, l1, l2, l3]) if detail == 0 => Ok(Frame::Taken {
                stream: StreamId(u32::from_le_bytes([*s0, *s1, *s2, *s3])),
                taken: u32::from_le_bytes([*t0, *t1, *t2, *t3]),
                limit: u32::from_le_bytes([*l0, *l1, *l2, *l3]),
            }),
            _ => Frame::read_other(kind, detail, body),
        }
    }

    fn read_other(kind: u8, detail: u8, body: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let wanted = match kind {
            code::RECORDS => body.len().max(9),
            code::ACKS => body.len().clamp(1, BITMAP_MOST),
            code::TAKEN | code::NACK | code::REST | code::STAY | code::PAUSE | code::RESUME => 12,
            code::HELLO => HELLO_FRAME - FRAME_HEADER,
            code::COOKIE => 20,
            code::ACCEPT => 36,
            code::REFUSE | code::RESET => 8,
            code::PING | code::END => 0,
            code::RESTED | code::SHARE => 4,
            code::UNRELIABLE => body.len().max(17),
            _ => return Err(FrameError::Type(kind)),
        };
        if body.len() != wanted {
            return Err(FrameError::Length { kind, bytes: body.len() as u16 });
        }
        let reason = || Reason::from_code(detail).ok_or(FrameError::Reason(detail));
        let frame = match kind {
            code::NACK => {
                let [stream, taken, touched] = three(body);
                return Ok(Frame::Nack { stream: StreamId(stream), taken, touched, reason: reason()? });
            }
            code::REFUSE => return Ok(Frame::Refuse { nonce: u64_at(body, 0), reason: reason()? }),
            code::END => return Ok(Frame::End { reason: reason()? }),
            code::PAUSE => {
                let reason = PauseReason::from_code(detail).ok_or(FrameError::Reason(detail))?;
                return Ok(Frame::Pause { pause: Pause::read(body), reason });
            }
            code::HELLO => return Hello::read(detail, body).map(Frame::Hello),
            code::ACKS => Frame::Acks { bitmap: body },
            code::COOKIE => Frame::Cookie {
                nonce: u64_at(body, 0),
                cookie: Cookie { value: u64_at(body, 8), generation: u32_at(body, 16) },
            },
            code::ACCEPT => Frame::Accept(Accept {
                nonce: u64_at(body, 0),
                caller: Epoch(u64_at(body, 8)),
                callee: Epoch(u64_at(body, 16)),
                terms: Terms::read(&body[24..36]),
            }),
            code::RESET => Frame::Reset { epoch: Epoch(u64_at(body, 0)) },
            code::UNRELIABLE => Frame::Unreliable(Piece::read(body).ok_or(FrameError::Reach)?),
            code::REST => Frame::Rest(Rest::read(body)),
            code::STAY => Frame::Stay(Rest::read(body)),
            code::RESTED => Frame::Rested { stream: StreamId(u32_at(body, 0)) },
            code::RESUME => Frame::Resume(Pause::read(body)),
            code::SHARE => Frame::Share { bytes: u32_at(body, 0) },
            _ => Frame::Ping,
        };
        // RECORDS and TAKEN come here only with a detail that is not zero.
        if detail != 0 {
            return Err(FrameError::Reserved);
        }
        Ok(frame)
    }
}

impl<'a> Piece<'a> {
    /// Reads a body of more than 16 bytes. `None` if the piece lies beyond its record, or the record is larger than the limit.
    fn read(body: &'a [u8]) -> Option<Piece<'a>> {
        let (fields, bytes) = body.split_at_checked(16)?;
        let [stream, number, at] = three(fields);
        let total = u32_at(fields, 12);
        let end = u64::from(at) + bytes.len() as u64;
        let fits = end <= u64::from(total) && total as usize <= RECORD_MOST;
        fits.then_some(Piece { stream: StreamId(stream), number, at, total, bytes })
    }

    fn fields(&self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..12].copy_from_slice(&words([self.stream.0, self.number, self.at]));
        b[12..].copy_from_slice(&self.total.to_le_bytes());
        b
    }
}

impl Rest {
    fn read(body: &[u8]) -> Rest {
        let [stream, sent, taken] = three(body);
        Rest { stream: StreamId(stream), sent, taken }
    }

    fn body(&self) -> [u8; 12] {
        words([self.stream.0, self.sent, self.taken])
    }
}

impl Pause {
    fn read(body: &[u8]) -> Pause {
        let [stream, from, round] = three(body);
        Pause { stream: StreamId(stream), from, round }
    }

    fn body(&self) -> [u8; 12] {
        words([self.stream.0, self.from, self.round])
    }
}

impl Terms {
    fn read(body: &[u8]) -> Terms {
        Terms {
            features: u32_at(body, 0),
            window: u32_at(body, 4),
            ack_delay: u16_at(body, 8),
            packet_most: u16_at(body, 10),
        }
    }

    fn bytes(&self) -> [u8; 12] {
        let mut b = [0; 12];
        b[..4].copy_from_slice(&self.features.to_le_bytes());
        b[4..8].copy_from_slice(&self.window.to_le_bytes());
        b[8..10].copy_from_slice(&self.ack_delay.to_le_bytes());
        b[10..].copy_from_slice(&self.packet_most.to_le_bytes());
        b
    }
}

impl Hello {
    fn read(detail: u8, body: &[u8]) -> Result<Hello, FrameError> {
        let cookie = Cookie { value: u64_at(body, 24), generation: u32_at(body, 32) };
        let none = Cookie { value: 0, generation: 0 };
        if detail > 1 || (detail == 0 && cookie != none) || body[48..].iter().any(|&b| b != 0) {
            return Err(FrameError::Reserved);
        }
        Ok(Hello {
            caller: Epoch(u64_at(body, 0)),
            callee: Epoch(u64_at(body, 8)),
            nonce: u64_at(body, 16),
            cookie: (detail == 1).then_some(cookie),
            terms: Terms::read(&body[36..48]),
        })
    }

    fn body(&self) -> [u8; HELLO_FRAME - FRAME_HEADER] {
        let mut b = [0; HELLO_FRAME - FRAME_HEADER];
        b[..8].copy_from_slice(&self.caller.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.callee.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.nonce.to_le_bytes());
        if let Some(cookie) = self.cookie {
            b[24..32].copy_from_slice(&cookie.value.to_le_bytes());
            b[32..36].copy_from_slice(&cookie.generation.to_le_bytes());
        }
        b[36..48].copy_from_slice(&self.terms.bytes());
        b
    }
}

/// Writes frames into a packet, behind its header.
#[derive(Debug)]
pub struct Writer<'a> {
    packet: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// A writer for a packet that has room for a header.
    ///
    /// # Panics
    /// If it has no such room.
    #[inline]
    pub fn new(packet: &'a mut [u8]) -> Writer<'a> {
        assert!(packet.len() >= crate::packet::HEADER, "room for a header");
        Writer { packet, at: crate::packet::HEADER }
    }

    /// Writes a frame. False, with nothing written, if there is no room for it. Padding must be the last frame.
    pub fn push(&mut self, frame: &Frame<'_>) -> bool {
        match *frame {
            Frame::Records { stream, offset, bytes } => self.push_records(stream, offset, [bytes, &[]]),
            Frame::Acks { bitmap } => self.put(code::ACKS, 0, &[bitmap]),
            Frame::Taken { stream, taken, limit } => self.push_taken(stream, taken, limit),
            Frame::Nack { stream, taken, touched, reason } => {
                self.put(code::NACK, reason.code(), &[&words([stream.0, taken, touched])])
            }
            Frame::Hello(hello) => self.put(code::HELLO, u8::from(hello.cookie.is_some()), &[&hello.body()]),
            Frame::Cookie { nonce, cookie } => {
                let body: [&[u8]; 3] =
                    [&nonce.to_le_bytes(), &cookie.value.to_le_bytes(), &cookie.generation.to_le_bytes()];
                self.put(code::COOKIE, 0, &body)
            }
            Frame::Accept(accept) => {
                let Accept { nonce, caller, callee, terms } = accept;
                let body: [&[u8]; 4] =
                    [&nonce.to_le_bytes(), &caller.0.to_le_bytes(), &callee.0.to_le_bytes(), &terms.bytes()];
                self.put(code::ACCEPT, 0, &body)
            }
            Frame::Refuse { nonce, reason } => self.put(code::REFUSE, reason.code(), &[&nonce.to_le_bytes()]),
            Frame::Reset { epoch } => self.put(code::RESET, 0, &[&epoch.0.to_le_bytes()]),
            Frame::Ping => self.put(code::PING, 0, &[]),
            Frame::Unreliable(piece) => self.put(code::UNRELIABLE, 0, &[&piece.fields(), piece.bytes]),
            Frame::Rest(rest) => self.put(code::REST, 0, &[&rest.body()]),
            Frame::Rested { stream } => self.put(code::RESTED, 0, &[&stream.0.to_le_bytes()]),
            Frame::Stay(rest) => self.put(code::STAY, 0, &[&rest.body()]),
            Frame::Pause { pause, reason } => self.put(code::PAUSE, reason as u8, &[&pause.body()]),
            Frame::Resume(pause) => self.put(code::RESUME, 0, &[&pause.body()]),
            Frame::Share { bytes } => self.put(code::SHARE, 0, &[&bytes.to_le_bytes()]),
            Frame::End { reason } => self.put(code::END, reason.code(), &[]),
            Frame::Padding { bytes } => {
                let fits = bytes <= self.room();
                if fits {
                    self.packet[self.at..self.at + bytes].fill(code::PADDING);
                    self.at += bytes;
                }
                fits
            }
        }
    }

    /// Fills the rest of the packet with padding. No frame can follow it.
    #[inline]
    pub fn fill(&mut self) {
        self.push(&Frame::Padding { bytes: self.room() });
    }

    /// Writes a `Records` frame whose bytes lie in two pieces, the second of which may be empty.
    #[inline]
    pub fn push_records(&mut self, stream: StreamId, offset: u32, bytes: [&[u8]; 2]) -> bool {
        let [first, second] = bytes;
        let len = first.len() + second.len();
        let end = self.at + RECORDS_HEADER + len;
        let Some(frame) = self.packet.get_mut(self.at..end).filter(|_| len <= RECORDS_MOST) else { return false };
        let Some((header, rest)) = frame.split_first_chunk_mut() else { return false };
        *header = records_header(stream, offset, len as u16);
        let (to, rest) = rest.split_at_mut(first.len());
        to.copy_from_slice(first);
        if !second.is_empty() {
            rest.copy_from_slice(second);
        }
        self.at = end;
        true
    }

    /// Writes a `Taken` frame.
    #[inline]
    pub fn push_taken(&mut self, stream: StreamId, taken: u32, limit: u32) -> bool {
        let end = self.at + TAKEN_FRAME;
        let Some(frame) = self.packet.get_mut(self.at..end) else { return false };
        let [b0, b1, b2, b3] = stream.0.to_le_bytes();
        let [b4, b5, b6, b7] = taken.to_le_bytes();
        let [b8, b9, b10, b11] = limit.to_le_bytes();
        let length = (TAKEN_FRAME - FRAME_HEADER) as u8;
        frame.copy_from_slice(&[code::TAKEN, 0, length, 0, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11]);
        self.at = end;
        true
    }

    /// Bytes that are left.
    #[inline]
    pub fn room(&self) -> usize {
        self.packet.len() - self.at
    }

    /// Whether there are no frames yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == crate::packet::HEADER
    }

    /// The packet as far as it was written. Its header is not written yet.
    #[inline]
    pub fn finish(self) -> &'a mut [u8] {
        &mut self.packet[..self.at]
    }

    #[inline(always)]
    fn put(&mut self, kind: u8, detail: u8, body: &[&[u8]]) -> bool {
        let bytes: usize = body.iter().map(|part| part.len()).sum();
        let Ok(length) = u16::try_from(bytes) else { return false };
        if self.room() < FRAME_HEADER + bytes {
            return false;
        }
        let [low, high] = length.to_le_bytes();
        for part in [&[kind, detail, low, high][..]].iter().chain(body) {
            self.packet[self.at..self.at + part.len()].copy_from_slice(part);
            self.at += part.len();
        }
        true
    }
}

/// The header of a `Records` frame whose bytes are in place already.
///
/// # Panics
/// If there are more bytes than a frame can have.
#[inline]
pub fn records_header(stream: StreamId, offset: u32, bytes: u16) -> [u8; RECORDS_HEADER] {
    let length = bytes.checked_add((RECORDS_HEADER - FRAME_HEADER) as u16).expect("bytes of one frame");
    let [low, high] = length.to_le_bytes();
    let [s0, s1, s2, s3] = stream.0.to_le_bytes();
    let [o0, o1, o2, o3] = offset.to_le_bytes();
    [code::RECORDS, 0, low, high, s0, s1, s2, s3, o0, o1, o2, o3]
}

/// Where the last of these frames ends, if a checksum over the first `covered` bytes is allowed: only bytes of records in the last frame
/// may lie behind them.
pub(crate) fn end_behind(frames: &[u8], covered: usize) -> Option<usize> {
    let mut at = 0;
    loop {
        let &[kind, _, low, high] = frames.get(at..)?.first_chunk::<FRAME_HEADER>()?;
        let end = at + FRAME_HEADER + usize::from(u16::from_le_bytes([low, high]));
        if end > covered {
            let ahead = match kind {
                code::RECORDS => RECORDS_HEADER,
                code::UNRELIABLE => UNRELIABLE_HEADER,
                _ => return None,
            };
            return Some(end).filter(|end| at + ahead <= covered && *end <= frames.len());
        }
        at = end;
    }
}

fn words(words: [u32; 3]) -> [u8; 12] {
    let mut b = [0; 12];
    for (to, word) in b.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    b
}

/// The three words of a body that has 12 bytes.
fn three(body: &[u8]) -> [u32; 3] {
    [u32_at(body, 0), u32_at(body, 4), u32_at(body, 8)]
}

fn u64_at(body: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(&body[at..at + 8]))
}

fn u32_at(body: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(&body[at..at + 4]))
}

fn u16_at(body: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(&body[at..at + 2]))
}
