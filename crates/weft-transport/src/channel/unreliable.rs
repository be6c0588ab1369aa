//! Unreliable messages: sending, and reassembly from pieces.
//!
//! They travel in ordinary packets, so the congestion control and the peer's acknowledgements limit their rate; but
//! they are not sent again if a packet is lost. The packet number identifies a duplicate packet, so no piece arrives
//! twice.

use crate::outgoing::read_words;
use crate::ranges::Ranges;
use std::collections::VecDeque;
use weft_wire::frame::{stream_bytes, Frame, Piece, StreamId, Writer, UNRELIABLE_HEADER};
use weft_wire::path::Record;
use weft_wire::record::{packed_payload_at, HEADER};
use weft_wire::{Head, HeadWords, MAX_ARGS};

/// Bytes that may wait to be sent. One message may always wait.
const WAITING_MOST: usize = 128 << 10;

/// Bytes, and number, of received messages that may wait to be taken.
const CAME_BYTES_MOST: usize = 256 << 10;
const CAME_MOST: usize = 1024;

/// Incomplete messages that are kept.
const PARTS_MOST: usize = 4;

/// An incomplete message is given up once a message arrives whose number differs by more than this.
const AWAY_MOST: u32 = 64;

/// Holes among the received pieces of a message.
const HOLES_MOST: usize = 64;

/// Less room than this for a piece is not worth its header.
const SCRAP: usize = UNRELIABLE_HEADER + 32;

/// A message in the format of a stream.
#[derive(Debug)]
struct Message {
    stream: StreamId,
    bytes: Vec<u8>,
}

/// An incomplete message.
#[derive(Debug)]
struct Part {
    number: u32,
    message: Message,
    came: Ranges,
}

/// The unreliable messages of one channel.
#[derive(Debug, Default)]
pub(super) struct Unreliable {
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    /// The number of the first waiting message, and how many of its bytes were sent.
    number: u32,
    at: usize,
    parts: VecDeque<Part>,
    came: VecDeque<Message>,
    came_bytes: usize,
    /// An event that says so waits in the queue.
    pub is_told: bool,
}

/// An unreliable message that arrived, in memory of its own.
#[derive(Debug)]
pub struct Loose {
    /// The stream to which it belongs.
    pub stream: StreamId,
    head: HeadWords,
    args: [u32; MAX_ARGS],
    bytes: Vec<u8>,
}

impl Loose {
    /// `None` if the bytes are no record.
    fn read(Message { stream, bytes }: Message) -> Option<Loose> {
        let (words, rest) = bytes.split_first_chunk::<HEADER>()?;
        let head = HeadWords::check(read_words(words)).ok()?;
        if bytes.len() != stream_bytes(head.args(), head.len()) {
            return None;
        }
        let mut args = [0; MAX_ARGS];
        for (to, b) in args[..head.args()].iter_mut().zip(rest.chunks_exact(4)) {
            *to = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
        Some(Loose { stream, head, args, bytes })
    }

    /// The record.
    pub fn record(&self) -> Record<'_> {
        let at = self.head.packed_payload_at();
        let payload = self.bytes.get(at..at + self.head.len()).unwrap_or_default();
        Record { head: self.head, args: &self.args[..self.head.args()], payload }
    }
}

impl Unreliable {
    /// No messages; the first to be sent gets this number.
    pub fn from_number(number: u32) -> Unreliable {
        Unreliable { number, ..Unreliable::default() }
    }

    /// Queues a message. False if too much waits.
    pub fn push(&mut self, stream: StreamId, head: Head, args: &[u32], payload: &[u8]) -> bool {
        let size = stream_bytes(args.len(), payload.len());
        if !self.waiting.is_empty() && self.waiting_bytes + size > WAITING_MOST {
            return false;
        }
        let mut bytes = Vec::with_capacity(size);
        let head = Head { args: args.len() as u8, len: payload.len() as u32, ..head };
        head.pack().iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        args.iter().for_each(|arg| bytes.extend(arg.to_le_bytes()));
        bytes.resize(packed_payload_at(args.len()), 0);
        bytes.extend(payload);
        bytes.resize(size, 0);
        self.waiting_bytes += size;
        self.waiting.push_back(Message { stream, bytes });
        true
    }

    /// Writes up to `most` bytes into a packet. Returns whether anything was written.
    pub fn write(&mut self, writer: &mut Writer<'_>, most: usize) -> bool {
        let until = writer.room().saturating_sub(most);
        let mut has_written = false;
        while let Some(Message { stream, bytes }) = self.waiting.front() {
            let room = writer.room().saturating_sub(until);
            let left = bytes.len() - self.at;
            if room < SCRAP.min(UNRELIABLE_HEADER + left) {
                break;
            }
            let end = self.at + left.min(room - UNRELIABLE_HEADER);
            let (at, total) = (self.at as u32, bytes.len() as u32);
            let piece = Piece { stream: *stream, number: self.number, at, total, bytes: &bytes[self.at..end] };
            if !writer.push(&Frame::Unreliable(piece)) {
                break;
            }
            has_written = true;
            self.at = end;
            if end == bytes.len() {
                self.waiting_bytes -= bytes.len();
                (self.number, self.at) = (self.number.wrapping_add(1), 0);
                self.waiting.pop_front();
            }
        }
        has_written
    }

    /// Stores a piece. Returns how many messages were given up for lack of room or because parts are missing.
    pub fn on_piece(&mut self, piece: &Piece<'_>) -> u64 {
        let Piece { stream, number, at, total, bytes } = *piece;
        if at == 0 && bytes.len() == total as usize {
            return self.keep(Message { stream, bytes: bytes.to_vec() });
        }
        let before = self.parts.len();
        self.parts.retain(|part| {
            let away = part.number.wrapping_sub(number);
            away.min(away.wrapping_neg()) <= AWAY_MOST
        });
        let mut given_up = (before - self.parts.len()) as u64;
        let is_it = |part: &Part| {
            part.number == number && part.message.stream == stream && part.message.bytes.len() == total as usize
        };
        let place = self.parts.iter().position(is_it).unwrap_or_else(|| {
            if self.parts.len() == PARTS_MOST {
                self.parts.pop_front();
                given_up += 1;
            }
            let message = Message { stream, bytes: vec![0; total as usize] };
            self.parts.push_back(Part { number, message, came: Ranges::default() });
            self.parts.len() - 1
        });
        let part = &mut self.parts[place];
        let range = at as usize..at as usize + bytes.len();
        part.message.bytes[range.clone()].copy_from_slice(bytes);
        part.came.insert(range.start as u64, range.end as u64);
        let is_whole = part.came.first() == Some((0, u64::from(total)));
        if is_whole || part.came.len() > HOLES_MOST {
            let part = self.parts.remove(place);
            given_up += match part.filter(|_| is_whole) {
                Some(part) => self.keep(part.message),
                None => 1,
            };
        }
        given_up
    }

    /// The next complete message.
    pub fn take(&mut self) -> Option<Loose> {
        loop {
            let message = self.came.pop_front()?;
            self.came_bytes -= message.bytes.len();
            if let Some(loose) = Loose::read(message) {
                return Some(loose);
            }
        }
    }

    /// Forgets the messages of a stream that ends.
    pub fn forget(&mut self, stream: StreamId) {
        if self.waiting.front().is_some_and(|message| message.stream == stream) && self.at > 0 {
            (self.number, self.at) = (self.number.wrapping_add(1), 0);
        }
        self.waiting.retain(|message| message.stream != stream);
        self.came.retain(|message| message.stream != stream);
        self.parts.retain(|part| part.message.stream != stream);
        self.waiting_bytes = self.waiting.iter().map(|message| message.bytes.len()).sum();
        self.came_bytes = self.came.iter().map(|message| message.bytes.len()).sum();
    }

    /// Gives up incomplete messages, because the missing parts were lost. Returns how many.
    pub fn rest(&mut self) -> u64 {
        std::mem::take(&mut self.parts).len() as u64
    }

    /// The number of the next message to be sent. It must not be used twice: pieces of two messages would mix.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether something waits to go.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether there is room for most messages.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes <= WAITING_MOST / 2
    }

    /// Whether a message waits to be taken.
    pub fn has_come(&self) -> bool {
        !self.came.is_empty()
    }

    /// Whether it holds nothing but a number.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.came.is_empty() && self.parts.is_empty()
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        use std::mem::size_of;
        let parts = self.parts.iter().map(|part| part.message.bytes.capacity() + part.came.memory());
        let messages = self.waiting.iter().chain(&self.came).map(|message| message.bytes.capacity());
        size_of::<Self>()
            + parts.chain(messages).sum::<usize>()
            + self.parts.capacity() * size_of::<Part>()
            + (self.waiting.capacity() + self.came.capacity()) * size_of::<Message>()
    }

    /// Keeps a message until it is taken. Returns how many were given up for lack of room: this one, or none.
    fn keep(&mut self, message: Message) -> u64 {
        let is_full = self.came.len() >= CAME_MOST || self.came_bytes + message.bytes.len() > CAME_BYTES_MOST;
        if !is_full {
            self.came_bytes += message.bytes.len();
            self.came.push_back(message);
        }
        u64::from(is_full)
    }
}
