//! The reading end of a ring.

use super::quiet::Quiet;
use super::{pitch, pitch_of, Lanes, ARENA, COPY_MOST, HOT};
use crate::distance::{Distance, Progress};
use crate::mem::{RingMem, COPY_WORDS};
use std::collections::VecDeque;
use weft_wire::path::{Glance, Peek, Record, Rx};
use weft_wire::record::args_bytes;
use weft_wire::{HeadWords, Kind, Malformed};

#[derive(Debug)]
struct ReadLane {
    first: u32,
    /// The line behind the lane.
    last: u32,
    largest: u32,
    /// The next header, in lines of the memory.
    line: u32,
    /// A record that ends here, or behind it, is followed by a pause (see [`Consumer::pause`]).
    pause: u32,
    /// Added to a line, modulo 2^64, it gives the line's position: the number of lines read since the beginning.
    lap: u64,
    /// The position as last published.
    published: u64,
    /// An eighth of the lane. The cursor is published with the first record that ends this many lines further, or before.
    eighth: u32,
    /// The first line that was read and not yet evicted. Not behind `line`.
    cached: u32,
}

impl ReadLane {
    fn new((first, cap): (u32, u32)) -> ReadLane {
        let (last, eighth) = (first + cap, cap / 8);
        let lap = 0u64.wrapping_sub(first.into());
        let mut lane = ReadLane {
            first,
            last,
            largest: cap / 4,
            line: first,
            pause: first,
            lap,
            published: 0,
            eighth,
            cached: first,
        };
        lane.pause_again();
        lane
    }

    /// The position of a line of this lap.
    #[inline(always)]
    fn pos_of(&self, line: u32) -> u64 {
        self.lap.wrapping_add(line.into())
    }

    #[inline(always)]
    fn pos(&self) -> u64 {
        self.pos_of(self.line)
    }

    /// Begins a new lap at the lane's end.
    fn wrap(&mut self) {
        if self.line == self.last {
            self.lap = self.lap.wrapping_add((self.last - self.first).into());
            (self.line, self.cached) = (self.first, self.first);
        }
    }

    /// Moves behind a link. Has the next record followed by a pause.
    fn advance(&mut self, lines: u32) {
        self.line += lines;
        self.wrap();
        self.pause = self.line;
    }

    /// Sets the next pause: after an eighth of the lane, or at its end.
    fn pause_again(&mut self) {
        self.pause = self.last.min(self.line + self.eighth);
    }
}

/// The reading end. Not shared between threads; every call returns at once.
///
/// ```
/// use weft_shm::{Consumer, Lanes, MapMem, Shared};
/// use weft_wire::path::Peek;
///
/// let lanes = Lanes::new(16 << 10, 512 << 10);
/// let (memory, _descriptor) = Shared::create("a ring", lanes.bytes())?;
/// let mut consumer = Consumer::new(MapMem::new(memory, lanes), lanes);
/// assert!(matches!(consumer.peek(), Peek::Empty)); // one load of the header that is written next
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Consumer<M> {
    mem: M,
    /// The lane in use.
    lane: ReadLane,
    /// The other one.
    other: ReadLane,
    now: usize,
    /// Lines of the record in hand.
    in_hand: u32,
    /// Where the lanes were read to before each refused record that is kept, oldest first.
    held: VecDeque<[u64; 2]>,
    /// Older held records that had to be dropped before they were let go.
    dropped: u32,
    /// The last look found something, so there is likely more behind it.
    finds_more: bool,
    distance: Distance,
    quiet: Quiet,
    scratch: [u64; COPY_WORDS],
    broken: Option<Malformed>,
    /// `Some` if the producer is not trusted.
    foreign: Option<Box<Foreign>>,
}

/// What a consumer keeps about a producer that is not trusted.
#[derive(Debug, Default)]
struct Foreign {
    is_of_other_user: bool,
    /// The payload in hand, copied out of the producer's reach.
    payload: Vec<u8>,
    /// Where each lane was read to when the bell was last rung.
    read_at_bell: [u64; 2],
    /// Rings that had nothing behind them, less the lines that were read.
    idle_rings: u64,
}

/// A producer that rings more often than this without cause is cut off. An honest ring now and then has nothing behind it, because its
/// record was found before.
const IDLE_RINGS_MOST: u64 = 1000;

/// Links (`Pad`, `Switch`) followed in one look: an honest ring has at most two in a row, a hostile one no end of them.
const LINKS_MOST: u32 = 4;

impl<M: RingMem> Consumer<M> {
    /// The reading end of a fresh ring whose producer is trusted.
    ///
    /// Long payloads of a trusted producer are handed out where they lie, as `&[u8]`. That is sound only if the producer does not
    /// change a payload before its record is popped, which nothing can check. So the producer must be of this process's trusted
    /// class: the kernel lets it write to all memory of this process anyway. For every other producer call
    /// [`Consumer::distrust`] before the first look.
    pub fn new(mem: M, lanes: Lanes) -> Consumer<M> {
        let [hot, arena] = lanes.ranges();
        Consumer {
            mem,
            lane: ReadLane::new(hot),
            other: ReadLane::new(arena),
            now: HOT,
            in_hand: 0,
            held: VecDeque::new(),
            dropped: 0,
            finds_more: false,
            distance: Distance::default(),
            quiet: Quiet::default(),
            scratch: [0; COPY_WORDS],
            broken: None,
            foreign: None,
        }
    }

    /// The producer is not trusted: payloads are copied out before they are handed out, and its rings counted.
    pub fn distrust(mut self, is_of_other_user: bool) -> Consumer<M> {
        self.foreign = Some(Box::new(Foreign { is_of_other_user, ..Foreign::default() }));
        self
    }

    /// Counts a ring of a producer's that is not trusted. False if there were too many that had nothing behind them.
    #[cold]
    fn note_foreign_bell(&mut self) -> bool {
        let positions = self.positions();
        let Some(foreign) = &mut self.foreign else { return true };
        let before = std::mem::replace(&mut foreign.read_at_bell, positions);
        let lines = (positions[0] - before[0]).saturating_add(positions[1] - before[1]);
        foreign.idle_rings = match lines {
            0 => foreign.idle_rings + 1,
            lines => foreign.idle_rings.saturating_sub(lines),
        };
        foreign.idle_rings <= IDLE_RINGS_MOST
    }

    /// Looks for the next record. If there is none, this reads one line that the producer writes.
    #[inline]
    pub fn peek(&mut self) -> Peek<'_> {
        let Some(words) = self.look() else { return Peek::Empty };
        match self.one_line(words) {
            Some((head, pitch)) => Peek::Record(self.hand_out_line(head, pitch)),
            None => self.peek_long(words),
        }
    }

    /// Goes on where the record is longer than a line, or is no message.
    fn peek_long(&mut self, words: [u64; 2]) -> Peek<'_> {
        match self.message(words).or_else(|| self.follow_links(words[0])) {
            Some(head) => Peek::Record(self.hand_out(head)),
            None => self.nothing(),
        }
    }

    /// The header that these words are, if it belongs to a message that stays inside its lane.
    #[inline(always)]
    fn message(&self, words: [u64; 2]) -> Option<HeadWords> {
        HeadWords::check(words).ok().filter(|&head| is_message(head) && self.reaches(pitch_of(head)))
    }

    /// The header that these words are and its record's pitch, if it belongs to a message of one line that stays inside its lane.
    #[inline(always)]
    fn one_line(&mut self, words: [u64; 2]) -> Option<(HeadWords, u32)> {
        let head = HeadWords::of_one_line(words)?;
        // In a stream, let the CPU speculate past the header to the next one. For request/reply, don't: the load would steal the producer's
        // cache line. A data dependency on a bit that is always zero prevents it. (If a compiler ever finds out that the bit is zero, these
        // messages take a few nanoseconds more.)
        let pitch = if head.streams() {
            self.quiet.note_other();
            pitch(1, true)
        } else {
            self.quiet.note_short(self.finds_more);
            pitch(1, false) + (words[0] >> 63) as u32
        };
        let end = self.lane.line + pitch;
        if self.finds_more {
            // There is likely another record of one line behind it. Prefetch no further, and nothing in a ping-pong: that would take lines
            // away that the producer has just made ready.
            self.mem.fetch_ahead(end);
        } else {
            self.finds_more = true;
        }
        (end <= self.lane.last).then_some((head, pitch))
    }

    /// Looks for the next record and hands it out if it is a message. For a short one this reads one line that the producer writes.
    #[inline(always)]
    pub fn glance(&mut self) -> Glance<'_> {
        let Some(words) = self.look() else { return Glance::Empty };
        match self.one_line(words) {
            Some((head, pitch)) => Glance::Record(self.hand_out_line(head, pitch)),
            None => match self.message(words) {
                Some(head) => Glance::Record(self.hand_out(head)),
                None => Glance::More,
            },
        }
    }

    #[inline(always)]
    fn look(&mut self) -> Option<[u64; 2]> {
        let line = self.lane.line;
        let Some(words) = self.mem.look(line) else {
            self.finds_more = false;
            return None;
        };
        Some(words)
    }

    /// Drops the record in hand; its lines go back to the producer with the next publication of the cursor.
    #[inline(always)]
    pub fn pop(&mut self) {
        self.lane.line += std::mem::take(&mut self.in_hand);
        if self.lane.line >= self.lane.pause {
            self.pause();
        }
    }

    /// The work that is due after each eighth of a lane, and at its end.
    #[inline(never)]
    fn pause(&mut self) {
        self.evict();
        self.lane.wrap();
        self.release();
        self.lane.pause_again();
    }

    /// Evicts what was read from the arena since the last call, if the producer has asked for that. Otherwise the producer would have to
    /// take each line from this core's cache when it writes there again (docs/design/small-messages.md, "A far consumer evicts what it has
    /// read").
    fn evict(&mut self) {
        if self.now != ARENA {
            return;
        }
        let cached = std::mem::replace(&mut self.lane.cached, self.lane.line);
        if Progress::unpack(self.mem.progress()).evict {
            self.mem.evict(cached, self.lane.line);
        }
    }

    /// Publishes the cursor. `pop` does so for every eighth of a lane; call this before going to rest.
    #[inline(always)]
    pub fn release(&mut self) {
        let pos = self.lane.pos();
        if self.lane.published != pos {
            if self.held.is_empty() {
                self.lane.published = pos;
                self.mem.set_head(self.now, pos);
            } else {
                self.release_unheld();
            }
        }
    }

    /// How many records to take in this visit, at most `most`: fewer, or none, right behind a fast stream (see the head of
    /// `distance.rs`).
    #[inline(always)]
    pub fn allowance(&mut self, most: u32) -> u32 {
        if self.distance.is_kept() {
            self.keep_distance(most)
        } else if self.quiet.is_asked() {
            self.keep_quiet(most)
        } else {
            most
        }
    }

    #[inline(never)]
    fn keep_quiet(&mut self, most: u32) -> u32 {
        // Messages come one by one here, so the line behind the next one is not prefetched.
        self.finds_more = false;
        self.quiet.allowance(|| self.mem.nanoseconds(), most)
    }

    #[inline(never)]
    fn keep_distance(&mut self, most: u32) -> u32 {
        let pos = self.lane.pos();
        if self.distance.free(pos) == 0 {
            let progress = Progress::unpack(self.mem.progress());
            let ahead = progress.ahead(self.lane.line, (self.lane.first, self.lane.last));
            let (Some(ahead), Some(now)) = (ahead, self.mem.nanoseconds()) else { return most };
            self.distance.look(progress, ahead, pos, now);
        }
        if !self.distance.is_kept() {
            return most;
        }
        self.distance.free(pos).min(u64::from(most)) as u32
    }

    /// A visit took this many one-way messages. It `caught_up` if it took all that there were.
    #[inline(always)]
    pub fn note_visit(&mut self, one_way: u32, caught_up: bool) {
        if self.distance.note_visit(one_way, caught_up) {
            if let Some(now) = self.mem.nanoseconds() {
                self.distance.end_run(Progress::unpack(self.mem.progress()), self.lane.pos(), now);
            }
        }
    }

    /// Marks the record in hand as refused. Its lines, and all behind it, stay in the ring when it is popped. If this process dies, the
    /// sender finds the record there and sees that it was refused.
    ///
    /// A held record is dropped all the same once held lines take half of a lane: otherwise two sides that refuse each other's messages
    /// would wait for each other's room.
    #[cold]
    pub fn hold(&mut self, reason: u8) {
        if self.in_hand > 0 {
            let line = self.lane.line;
            self.mem.mark(line, refused(self.mem.second(line), reason));
            self.held.push_back(self.positions());
        }
    }

    /// Drops this many held records, the oldest first.
    #[cold]
    pub fn let_go(&mut self, records: u32) {
        for _ in 0..records {
            match self.dropped.checked_sub(1) {
                Some(dropped) => self.dropped = dropped,
                None => _ = self.held.pop_front(),
            }
        }
        self.release_unheld();
    }

    /// How far each lane was read.
    fn positions(&self) -> [u64; 2] {
        let mut positions = [self.other.pos(); 2];
        positions[self.now] = self.lane.pos();
        positions
    }

    /// Publishes the cursors as far as nothing is held.
    #[cold]
    fn release_unheld(&mut self) {
        let positions = self.positions();
        let now = self.now;
        let [half, half_of_other] = [&self.lane, &self.other].map(|lane| 4 * u64::from(lane.eighth));
        let takes_too_much =
            |held: &[u64; 2]| positions[now] - held[now] > half || positions[1 - now] - held[1 - now] > half_of_other;
        while self.held.front().is_some_and(takes_too_much) {
            self.held.pop_front();
            self.dropped += 1;
        }
        let upto = self.held.front().copied().unwrap_or(positions);
        for (index, lane) in [(now, &mut self.lane), (1 - now, &mut self.other)] {
            if lane.published != upto[index] {
                lane.published = upto[index];
                self.mem.set_head(index, upto[index]);
            }
        }
    }

    /// Asks the producer to ring the bell for records, or to stop doing so.
    pub fn set_attention(&mut self, wanted: bool) {
        // A ring that is looked at only when its bell rings must be read to the end then, without keeping a distance.
        self.distance.give_up();
        self.mem.set_attention(wanted);
    }

    /// Whether a record of `lines` at the cursor stays inside its lane and is no larger than records may be.
    #[inline(always)]
    fn reaches(&self, lines: u32) -> bool {
        lines <= self.lane.largest && self.lane.line + lines <= self.lane.last
    }

    /// Follows the link with this first word, and those behind it, to a record.
    #[cold]
    #[inline(never)]
    fn follow_links(&mut self, first: u64) -> Option<HeadWords> {
        // A record in hand that turned into a link is no longer in hand: a `pop` must not count its lines in another lane.
        self.in_hand = 0;
        let mut word0 = first;
        for _ in 0..LINKS_MOST {
            if self.broken.is_some() || word0 == 0 {
                return None;
            }
            match HeadWords::check([word0, self.mem.second(self.lane.line)]) {
                Err(malformed) => self.give_up(malformed),
                Ok(head) if head.is(Kind::Pad) => {
                    // Before the padding, of which nothing was read: there can be a lot of it.
                    self.evict();
                    let rest = self.lane.last - self.lane.line;
                    self.lane.advance(rest);
                }
                Ok(head) if head.is(Kind::Switch) => {
                    self.lane.advance(1);
                    self.release();
                    std::mem::swap(&mut self.lane, &mut self.other);
                    self.now = 1 - self.now;
                    self.distance.change_lane(self.lane.pos());
                    self.lane.cached = self.lane.line;
                }
                Ok(head) if self.reaches(pitch_of(head)) => return Some(head),
                Ok(head) => self.give_up(Malformed::Reach(head.lines())),
            }
            word0 = self.mem.header(self.lane.line);
        }
        None
    }

    /// Hands out a record of one line.
    #[inline(always)]
    fn hand_out_line(&mut self, head: HeadWords, pitch: u32) -> Record<'_> {
        self.take_in_hand(pitch);
        let args_len = args_bytes(head.args());
        self.mem.copy_line(self.lane.line, args_len + head.len(), &mut self.scratch);
        let payload = &bytes_of(&self.scratch)[args_len..args_len + head.len()];
        Record { head, args: &args_of(&self.scratch)[..head.args()], payload }
    }

    #[inline(always)]
    fn take_in_hand(&mut self, lines: u32) {
        self.in_hand = lines;
        self.mem.set_claim(self.now, self.lane.pos_of(self.lane.line + lines));
    }

    /// Hands out any record.
    #[inline(always)]
    fn hand_out(&mut self, head: HeadWords) -> Record<'_> {
        let (args, payload) = self.take_body(head);
        Record { head, args, payload }
    }

    /// The arguments and the payload of any record. Takes the header's words as two values and does not return them. As an array they
    /// would be stored one by one and loaded as one, and such a load waits until both stores, and all stores before them, have left the
    /// core.
    #[inline(never)]
    fn take_body(&mut self, head: HeadWords) -> (&[u32], &[u8]) {
        let (line, lines) = (self.lane.line, head.lines());
        self.quiet.note_other();
        if std::mem::replace(&mut self.finds_more, true) {
            self.mem.fetch_ahead(line + pitch(1, head.streams()));
        }
        self.take_in_hand(pitch_of(head));
        let (len, args_len) = (head.len(), args_bytes(head.args()));
        let copied = lines <= 2 || len <= COPY_MOST;
        match lines {
            2 => self.mem.copy_two_lines(line, &mut self.scratch),
            _ => self.mem.copy_out(line, if copied { args_len + len } else { args_len }, &mut self.scratch),
        }
        let payload = match &mut self.foreign {
            _ if copied => &bytes_of(&self.scratch)[args_len..args_len + len],
            // The lines become the producer's again when the cursor is published behind this record. Every call that does so
            // takes `self` exclusively, so the slice has ended by then. Before that this side stores only marks in second header
            // words, also exclusively.
            // SAFETY: nothing on this side writes there while the slice lives, as said above. Nor does the producer if it keeps
            // to the protocol, which is relied on: without `distrust` it is of the trusted class (see `new`).
            None => unsafe { self.mem.in_place(line, head.payload_at(), len) },
            Some(foreign) => {
                self.mem.copy_payload(line, head.payload_at(), len, &mut foreign.payload);
                &foreign.payload
            }
        };
        (&args_of(&self.scratch)[..head.args()], payload)
    }

    /// Breaks the ring for good. With both lanes ending at line 0 no record fits any more, so the common path needs no check of its own.
    fn give_up(&mut self, malformed: Malformed) {
        self.broken = Some(malformed);
        self.lane.last = 0;
        self.other.last = 0;
    }

    #[cold]
    fn nothing(&self) -> Peek<'static> {
        self.broken.map_or(Peek::Empty, Peek::Broken)
    }
}

/// The second header word of a one-way message, marked as refused: the reason stands where other messages carry credit.
fn refused(second: u64, reason: u8) -> u64 {
    second & 0xffff_ffff | u64::from(reason) << 32
}

/// The code of the reason for which a one-way message was refused, if it is marked as refused.
pub(super) fn refusal(head: HeadWords) -> Option<u8> {
    (head.is(Kind::Send) && head.has_credit()).then_some(head.credit().messages as u8)
}

/// Whether a record is for the core, not a link within the ring.
#[inline(always)]
fn is_message(head: HeadWords) -> bool {
    !head.is(Kind::Pad) && !head.is(Kind::Switch)
}

impl<M: RingMem> Rx for Consumer<M> {
    #[inline(always)]
    fn allowance(&mut self, most: u32) -> u32 {
        Consumer::allowance(self, most)
    }

    #[inline(always)]
    fn note_visit(&mut self, one_way: u32, caught_up: bool) {
        Consumer::note_visit(self, one_way, caught_up);
    }

    fn peek(&mut self) -> Peek<'_> {
        Consumer::peek(self)
    }

    #[inline(always)]
    fn glance(&mut self) -> Glance<'_> {
        Consumer::glance(self)
    }

    #[inline(always)]
    fn pop(&mut self) {
        Consumer::pop(self);
    }

    fn hold(&mut self, reason: u8) {
        Consumer::hold(self, reason);
    }

    fn let_go(&mut self, records: u32) {
        Consumer::let_go(self, records);
    }

    #[inline(always)]
    fn release(&mut self) {
        Consumer::release(self);
    }

    fn set_attention(&mut self, wanted: bool) {
        Consumer::set_attention(self, wanted);
    }

    fn is_of_other_user(&self) -> bool {
        self.foreign.as_ref().is_some_and(|f| f.is_of_other_user)
    }

    #[inline(always)]
    fn note_bell(&mut self) -> bool {
        self.foreign.is_none() || self.note_foreign_bell()
    }
}

/// The words as 32-bit arguments.
#[inline(always)]
pub(super) fn args_of(words: &[u64; COPY_WORDS]) -> &[u32] {
    // SAFETY: any 32 bits are a u32. (It is at most as aligned as u64, so nothing is cut off in front.)
    let (before, args, _) = unsafe { words.align_to::<u32>() };
    debug_assert!(before.is_empty());
    args
}

/// The words as bytes.
#[inline(always)]
fn bytes_of(words: &[u64; COPY_WORDS]) -> &[u8] {
    // SAFETY: any 8 bits are a u8.
    unsafe { words.align_to::<u8>() }.1
}
