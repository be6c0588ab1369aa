//! The reading half of a stream: reassembles runs of bytes and hands out records.

use crate::bytes::Bytes;
use crate::outgoing::{read_words, Violation};
use crate::ranges::Ranges;
use crate::sequence::widen;
use weft_wire::frame::{stream_bytes, FIRST_OFFSET};
use weft_wire::path::{Peek, Record};
use weft_wire::record::HEADER;
use weft_wire::{HeadWords, Kind, Malformed, MAX_ARGS};

/// The most pieces ahead of holes. A peer that leaves more holes is not acknowledged until it fills some.
pub(crate) const PIECES_MOST: usize = 256;

/// The result of storing a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    /// It is stored, now or earlier.
    Yes,
    /// There is no room to note its place; it has to be sent again.
    NoRoom,
    /// The stream is not open.
    NotOpen,
}

/// The reading half of a stream: its bytes as they arrive, and the records in them. [`Channel::lend`] hands it out.
///
/// [`Channel::lend`]: crate::Channel::lend
///
/// ```text
/// ... told | popped | in hand | whole | holes and pieces | not granted ...
///          ^ taken  ^ read              ^ end              ^ granted
/// ```
#[derive(Debug)]
pub struct Incoming {
    bytes: Bytes,
    /// Everything below may be reported to the writer as taken.
    taken: u64,
    /// Where the next record begins.
    read: u64,
    /// Bytes of the record that was handed out.
    in_hand: u32,
    /// The next record, once its header arrived and was checked: the header, and the record's size. Not all its bytes
    /// may be here.
    next: Option<(HeadWords, u32)>,
    /// Everything below arrived.
    end: u64,
    ahead: Ranges,
    /// The end of the highest piece that arrived.
    top: u64,
    /// How far the writer was told it may go.
    granted: u64,
    /// How far the writer was told records are taken.
    told: u64,
    window: u32,
    args: [u32; MAX_ARGS],
    /// A copy of a payload that wraps around the end of the ring.
    whole: Vec<u8>,
}

impl Incoming {
    /// A stream that begins at `start` and keeps at most `window` bytes.
    pub(crate) fn new(start: u64, window: u32) -> Incoming {
        Incoming {
            bytes: Bytes::default(),
            taken: start,
            read: start,
            in_hand: 0,
            next: None,
            end: start,
            ahead: Ranges::default(),
            top: start,
            granted: start + u64::from(window),
            told: start,
            window,
            args: [0; MAX_ARGS],
            whole: Vec::new(),
        }
    }

    /// Stores a run. Bytes that arrived before stay as they are.
    #[inline]
    pub(crate) fn on_records(&mut self, offset: u32, bytes: &[u8]) -> Result<Stored, Violation> {
        let from = widen(self.end, offset);
        let to = from.checked_add(bytes.len() as u64).filter(|&to| to <= self.granted).ok_or(Violation)?;
        if to <= self.end {
            return Ok(Stored::Yes);
        }
        if from > self.end && self.ahead.len() >= PIECES_MOST && self.ahead.would_add(from, to) {
            return Ok(Stored::NoRoom);
        }
        let new = from.max(self.end);
        self.bytes.reserve(self.read, self.top, to.max(self.top));
        self.bytes.write(new, &bytes[(new - from) as usize..]);
        self.top = self.top.max(to);
        if from > self.end {
            self.ahead.insert(from, to);
            return Ok(Stored::Yes);
        }
        self.end = to;
        while let Some((start, stop)) = self.ahead.first().filter(|&(start, _)| start <= self.end) {
            self.ahead.remove(start, stop);
            self.end = self.end.max(stop);
        }
        Ok(Stored::Yes)
    }

    /// Looks for the next record.
    #[inline]
    pub fn peek(&mut self) -> Peek<'_> {
        let (head, size) = match self.next() {
            Ok(Some(next)) => next,
            Ok(None) => return Peek::Empty,
            Err(malformed) => return Peek::Broken(malformed),
        };
        self.in_hand = size;
        let mut args = [0; MAX_ARGS * 4];
        let args = &mut args[..head.args() * 4];
        self.bytes.read(self.read + HEADER as u64, args);
        for (to, b) in self.args.iter_mut().zip(args.chunks_exact(4)) {
            *to = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
        let [first, second] = self.bytes.slices(self.read + head.packed_payload_at() as u64, head.len());
        let payload = if second.is_empty() {
            first
        } else {
            self.whole.clear();
            self.whole.extend_from_slice(first);
            self.whole.extend_from_slice(second);
            &self.whole
        };
        Peek::Record(Record { head, args: &self.args[..head.args()], payload })
    }

    /// Drops the record in hand. True if it is time to tell the writer.
    #[inline]
    pub fn pop(&mut self) -> bool {
        self.read += u64::from(std::mem::take(&mut self.in_hand));
        self.next = None;
        self.read - self.taken >= u64::from(self.window / 8) && self.release()
    }

    /// Lets the writer know of all that was popped. True if there is something to tell.
    #[inline]
    pub fn release(&mut self) -> bool {
        self.taken = self.read;
        self.taken != self.told
    }

    /// What to tell the writer: how far records are taken, and how far it may go.
    #[inline]
    pub(crate) fn news(&self) -> (u64, u64) {
        (self.taken, self.granted.max(self.taken + u64::from(self.window)))
    }

    /// Notes that the writer was told this.
    #[inline]
    pub(crate) fn note_told(&mut self, (taken, limit): (u64, u64)) {
        (self.told, self.granted) = (taken, limit);
    }

    /// Drops what was not taken. The first record stays if it is whole, and so do whole records behind it within `keep`
    /// bytes; with 0 nothing stays, not even a record in hand. The beginning of a record never stays: it would be
    /// useless until the rest arrives again.
    pub(crate) fn drop_untaken(&mut self, keep: u32) {
        self.ahead.clear();
        self.end = if keep == 0 { self.read } else { self.whole_to(keep) };
        if self.end == self.read {
            (self.in_hand, self.next) = (0, None);
        }
        self.top = self.end;
        self.rest();
        self.trim();
    }

    /// The end of the last whole record within `keep` bytes, or of the first one if that is larger.
    fn whole_to(&self, keep: u32) -> u64 {
        let mut at = self.read;
        while self.end - at >= HEADER as u64 {
            let Ok(head) = HeadWords::check(read_words(&self.bytes.array(at))) else {
                // The reader will find it malformed.
                return self.end;
            };
            let next = at + stream_bytes(head.args(), head.len()) as u64;
            if next > self.end || (at > self.read && next - self.read > u64::from(keep)) {
                break;
            }
            at = next;
        }
        at
    }

    /// Frees memory if it holds much more than it needs.
    pub fn trim(&mut self) {
        self.bytes.trim(self.read, self.top);
    }

    /// Checks a run that is dropped instead of stored.
    pub(crate) fn on_dropped(&self, offset: u32, bytes: &[u8]) -> Result<(), Violation> {
        let to = widen(self.end, offset).checked_add(bytes.len() as u64);
        to.filter(|&to| to <= self.granted).map(|_| ()).ok_or(Violation)
    }

    /// Bytes that arrived and were not taken, holes included.
    #[inline]
    pub fn held(&self) -> u32 {
        (self.top - self.read) as u32
    }

    /// Bytes of memory that they lie in.
    #[inline]
    pub(crate) fn kept_in(&self) -> u32 {
        self.bytes.memory() as u32
    }

    /// Gives the memory back if there is nothing in it.
    pub(crate) fn rest(&mut self) {
        if self.read == self.top {
            self.free();
        }
    }

    /// Ends the stream. Returns how far records were taken, and the end of what was handed out. Nothing is handed out
    /// afterwards.
    pub(crate) fn end(&mut self) -> (u64, u64) {
        let touched = self.read + u64::from(self.in_hand);
        (self.taken, self.read) = (self.read, touched);
        (self.in_hand, self.next, self.end, self.top) = (0, None, touched, touched);
        self.free();
        (self.taken, touched)
    }

    /// How far records were taken and released, if nothing is left.
    pub(crate) fn all_taken(&self) -> Option<u64> {
        (self.taken == self.end && self.read == self.top).then_some(self.taken)
    }

    /// Whether a record was taken.
    #[inline]
    pub(crate) fn has_taken(&self) -> bool {
        self.read > FIRST_OFFSET
    }

    /// One more than the highest byte that arrived.
    #[inline]
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// By how much a run would move that.
    pub(crate) fn grows(&self, offset: u32, bytes: usize) -> u64 {
        widen(self.end, offset).saturating_add(bytes as u64).saturating_sub(self.top)
    }

    /// The end of the contiguous bytes.
    pub(crate) fn came_to(&self) -> u64 {
        self.end
    }

    /// Whether there is a whole record, or malformed data.
    #[inline]
    pub fn is_readable(&mut self) -> bool {
        self.next().map_or(true, |next| next.is_some())
    }

    /// Whether the writer may be waiting for room: a quarter of the window is free and not yet reported.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.taken - self.told >= u64::from(self.window / 4)
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        std::mem::size_of::<Self>() + self.bytes.memory() + self.ahead.memory() + self.whole.capacity()
    }

    /// The header and size of the next record, if all of it is here. Called several times per record.
    #[inline]
    fn next(&mut self) -> Result<Option<(HeadWords, u32)>, Malformed> {
        let here = self.end - self.read;
        if self.next.is_some() {
            return Ok(self.next.filter(|&(_, size)| u64::from(size) <= here));
        }
        if here < HEADER as u64 {
            return Ok(None);
        }
        self.look(here)
    }

    /// Like [`Incoming::next`], for a record whose header is here.
    fn look(&mut self, here: u64) -> Result<Option<(HeadWords, u32)>, Malformed> {
        let head = HeadWords::check(read_words(&self.bytes.array(self.read)))?;
        if head.is(Kind::Pad) || head.is(Kind::Switch) {
            return Err(Malformed::Kind(head.kind() as u8));
        }
        let size = stream_bytes(head.args(), head.len()) as u32;
        self.next = Some((head, size));
        Ok(self.next.filter(|_| u64::from(size) <= here))
    }

    fn free(&mut self) {
        self.bytes.free();
        self.ahead.clear();
        self.whole = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outgoing::Outgoing;
    use proptest::prelude::*;
    use weft_wire::Head;

    const WINDOW: u32 = 1 << 17;

    fn popped(incoming: &mut Incoming) -> Option<(Vec<u32>, Vec<u8>)> {
        let record = match incoming.peek() {
            Peek::Record(record) => (record.args.to_vec(), record.payload.to_vec()),
            Peek::Empty => return None,
            Peek::Broken(malformed) => panic!("{malformed}"),
        };
        incoming.pop();
        Some(record)
    }

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in_however_they_were_cut_and_mixed(
            sizes in proptest::collection::vec((0usize..17, prop_oneof![0usize..100, 0usize..5000]), 1..20),
            most in 1usize..3000,
            order in proptest::collection::vec(any::<u32>(), 1..20),
            start in prop_oneof![Just(0u64), (1u64 << 32) - 30_000..1 << 32],
        ) {
            let mut out = Outgoing::<Vec<u8>>::new(start, WINDOW, WINDOW);
            let mut incoming = Incoming::new(start, WINDOW);
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (n, &(args, len)) in sizes.iter().enumerate() {
                let args: Vec<u32> = (0..args as u32).map(|a| a << 8 | n as u32).collect();
                let payload: Vec<u8> = (0..len).map(|i| (i + n) as u8).collect();
                out.push(Head::new(Kind::Send), &args, &payload).expect("room");
                sent.push((args, payload));
            }
            let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
            while let Some(run) = out.next_run(most) {
                runs.push((run.from as u32, out.slices(run).concat()));
            }
            // Each run arrives twice, in random order; pieces beyond the bound arrive again at the end.
            let mut again = Vec::new();
            let mut at = 0;
            while !runs.is_empty() {
                let (offset, bytes) = runs.swap_remove(order[at % order.len()] as usize % runs.len());
                at += 1;
                for _ in 0..2 {
                    if incoming.on_records(offset, &bytes) == Ok(Stored::NoRoom) {
                        again.push((offset, bytes.clone()));
                    }
                }
                got.extend(std::iter::from_fn(|| popped(&mut incoming)));
            }
            again.sort_by_key(|(offset, _)| offset.wrapping_sub(start as u32));
            for (offset, bytes) in again {
                prop_assert_eq!(incoming.on_records(offset, &bytes), Ok(Stored::Yes));
            }
            got.extend(std::iter::from_fn(|| popped(&mut incoming)));
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn any_runs_keep_memory_within_bounds(
            runs in proptest::collection::vec((0u32..200_000, 1usize..2000), 0..600),
        ) {
            let mut incoming = Incoming::new(0, WINDOW);
            for (offset, len) in runs {
                let past = offset as usize + len > WINDOW as usize;
                prop_assert_eq!(incoming.on_records(offset, &vec![0; len]).is_err(), past);
                prop_assert!(incoming.memory() <= WINDOW as usize + 2 * PIECES_MOST * 16);
            }
        }
    }

    #[test]
    fn holes_beyond_the_bound_have_to_wait() {
        let mut incoming = Incoming::new(0, WINDOW);
        for hole in 0..PIECES_MOST as u32 {
            assert_eq!(incoming.on_records(10 + hole * 2, &[7]), Ok(Stored::Yes));
        }
        assert_eq!(incoming.on_records(10 + PIECES_MOST as u32 * 2, &[7]), Ok(Stored::NoRoom));
        assert_eq!(incoming.on_records(11, &[7]), Ok(Stored::Yes));
        assert_eq!(incoming.on_records(10 + PIECES_MOST as u32 * 2, &[7]), Ok(Stored::Yes));
    }

    #[test]
    fn what_no_weft_writes_breaks_the_stream() {
        for first in [0u64, 1 << 32, 2 << 32, 18 << 32, 4 << 32 | 17 << 48, 4 << 32 | 70_000] {
            let mut incoming = Incoming::new(0, WINDOW);
            let mut words = first.to_le_bytes().to_vec();
            words.extend([0; 8]);
            assert_eq!(incoming.on_records(0, &words), Ok(Stored::Yes));
            assert!(incoming.is_readable());
            assert!(matches!(incoming.peek(), Peek::Broken(_)), "{first:x}");
        }
    }

    #[test]
    fn the_last_word_tells_taken_from_touched() {
        let mut out = Outgoing::<Vec<u8>>::new(0, WINDOW, WINDOW);
        let mut incoming = Incoming::new(0, WINDOW);
        for _ in 0..3 {
            out.push(Head::new(Kind::Send), &[], &[1; 4]).expect("room");
        }
        let run = out.next_run(100).expect("all");
        assert_eq!(incoming.on_records(0, &out.slices(run).concat()), Ok(Stored::Yes));
        assert!(popped(&mut incoming).is_some());
        assert!(matches!(incoming.peek(), Peek::Record(_)));
        assert_eq!(incoming.end(), (24, 48));
        assert!(matches!(incoming.peek(), Peek::Empty));
    }
}
