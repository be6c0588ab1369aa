//! The ring: records from one producer to one consumer through memory.
//!
//! A record's header lies in its first line and is written last. The consumer polls the header it expects next, never a
//! counter of the producer's: one cache line less per message (U-Net and MU-Net found the same). Before it
//! publishes a record the producer zeroes the header behind it, inside free space, so stale payload is never taken for a
//! header and the consumer writes to no data line. The consumer publishes its cursor lazily; the producer reads it only
//! when it believes the ring to be full.
//!
//! There are two kinds of memory, the *lanes*. The small hot lane keeps its lines in both private caches: it has the best
//! latency. A producer that gets ahead of its consumer, or has a long record, goes on in the arena, whose lines have left
//! the writer's private cache when the reader asks for them: that is several times faster for streams. A `Switch` record
//! leads from one lane to the other, so the ring is one queue, in order. The producer goes back when the arena has been
//! nearly empty for a while. Requests and replies that are read at once use only the arena's beginning.
//!
//! | in each lane | why |
//! | --- | --- |
//! | records are contiguous, and at most a quarter of the lane | they can be read in place; the wasted end stays small |
//! | two lines are always free | one header behind the last record is zero; one line is kept for a `Switch` |

mod consumer;
mod next_source;
mod quiet;
mod ringing;
mod slow_stores;
mod ways;

pub use consumer::Consumer;
pub use ringing::{ring, wakes_by_this_thread, Ringing, Waker};

use crate::copy::SHORT_MOST;
use crate::distance::{Progress, TELL_EVERY};
use crate::mem::{MapMem, RingMem, CONTROL_LINES, COPY_WORDS};
use consumer::{args_of, refusal};
use next_source::NextSource;
use slow_stores::{SlowStores, TIMED_LEAST};
use ways::{SMALL, WAYS, WAYS_OF_STREAMS, WAYS_WITH_EVICTION};
use weft_wire::path::{Abandoned, Fate, PushError, Traffic, SMALL_MOST};
use weft_wire::record::{self, args_bytes, LARGE_LEAST};
use weft_wire::setup::Geometry;
use weft_wire::{Credit, Head, HeadWords, Kind, LINE, MAX_ARGS, MAX_PAYLOAD};

const HOT: usize = 0;
const ARENA: usize = 1;

/// Lines that stay free in a lane: a zero header and a `Switch`.
const SPARE: u64 = 2;

/// Payloads of up to this many bytes, and all payloads of records of two lines, are copied out before anyone looks at them. The plan
/// said 256; between far cores of one trusted class, reading 128 to 256 B in place takes a fifth off the round trip.
pub const COPY_MOST: usize = 64;

/// Lines of a page.
const PAGE_LINES: u32 = 4096 / LINE as u32;

/// The number and size of a ring's lanes. Private to each side; a peer's announcement is checked by [`Lanes::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes {
    hot: u32,
    arena: u32,
}

impl Lanes {
    /// The smallest arena: four of the largest records.
    pub const ARENA_LEAST: u32 = 8192;
    /// The largest arena, 64 MiB.
    pub const ARENA_MOST: u32 = 1 << 20;

    /// Lanes of at least these sizes, each rounded up to pages. `hot_bytes` includes the control lines.
    ///
    /// The hot part is held between 4 KiB and 1 MiB, the arena between 512 KiB and 64 MiB.
    pub fn new(hot_bytes: usize, arena_bytes: usize) -> Lanes {
        let pages = |bytes: usize| bytes.min(1 << 30).div_ceil(4096) as u32 * PAGE_LINES;
        Lanes {
            hot: pages(hot_bytes).clamp(PAGE_LINES, 256 * PAGE_LINES) - CONTROL_LINES,
            arena: pages(arena_bytes).clamp(Self::ARENA_LEAST, Self::ARENA_MOST),
        }
    }

    /// The lanes that a peer announced. `None` if `new` cannot make such lanes.
    pub fn check(geometry: Geometry) -> Option<Lanes> {
        let hot = geometry.hot_lines.checked_add(CONTROL_LINES)?;
        let lanes = Lanes::new(hot as usize * LINE, geometry.arena_lines as usize * LINE);
        (lanes.geometry() == geometry).then_some(lanes)
    }

    /// As announced to a peer.
    pub fn geometry(&self) -> Geometry {
        Geometry { hot_lines: self.hot, arena_lines: self.arena }
    }

    /// Bytes of the ring's memory.
    pub fn bytes(&self) -> usize {
        (CONTROL_LINES + self.hot + self.arena) as usize * LINE
    }

    /// (first line, lines) of each lane.
    fn ranges(&self) -> [(u32, u32); 2] {
        [(CONTROL_LINES, self.hot), (CONTROL_LINES + self.hot, self.arena)]
    }

    /// Lanes of any size, for exhaustive tests on tiny rings.
    #[doc(hidden)]
    pub const fn tiny(hot: u32, arena: u32) -> Lanes {
        Lanes { hot, arena }
    }
}

/// A hook at each store of a push, for tests that kill the producer there. Production uses `()`, which does nothing.
pub trait Steps {
    /// Called just before the store of that number.
    fn before(&mut self, store: u32);
}

impl Steps for () {
    #[inline(always)]
    fn before(&mut self, _store: u32) {}
}

/// The stores of a push, in the order they are made.
pub mod store {
    /// Second header word, arguments and payload.
    pub const BODY: u32 = 1;
    /// The zero header behind the record, if it is not zero already.
    pub const CLEAR: u32 = 2;
    /// The record's own header, when something else publishes it (`Pad` or `Switch`).
    pub const HEADER: u32 = 3;
    /// The header behind a `Switch`.
    pub const CLEAR_LINK: u32 = 4;
    /// The header that makes everything visible.
    pub const PUBLISH: u32 = 5;
    /// Zero headers for the records that follow.
    pub const AHEAD: u32 = 6;
    /// After the last store.
    pub const DONE: u32 = 7;
    /// All of them.
    pub const ALL: [u32; 7] = [BODY, CLEAR, HEADER, CLEAR_LINK, PUBLISH, AHEAD, DONE];
}

/// What is pushed: a header and the slices that follow it.
#[derive(Clone, Copy)]
struct Item<'a> {
    words: [u64; 2],
    args: &'a [u32],
    payload: &'a [u8],
}

impl Item<'_> {
    fn streams(&self) -> bool {
        HeadWords::check(self.words).is_ok_and(HeadWords::streams)
    }

    #[inline(always)]
    fn pitch(&self) -> u32 {
        pitch(record::lines(self.args.len(), self.payload.len()), self.streams())
    }
}

/// Records of at least this many lines are *long* and go to the arena: those with a payload of `LARGE_LEAST` bytes or more, and those that
/// are as long because of their arguments.
const LONG: u32 = record::lines(0, LARGE_LEAST);
/// Lines that stay unused behind a long record, unless it belongs to a stream. A consumer that reads line after line makes its processor
/// prefetch the lines that follow. If these belonged to the next record, the producer would have to take them back before it writes there.
/// Eight unused lines halve the round trip of 4 KiB in a bare ring, and four change nothing. With fifteen, records of 2, 4 and 8 KiB
/// begin a multiple of sixteen lines apart, which is a few percent better than eight (docs/design/payloads.md).
const GAP: u32 = 15;
/// Lines that stay unused behind a record of one line that belongs to no stream, because a processor that reads a line prefetches the next
/// one, too. Even, so that such records use all sets of a cache: 16 B there and back take 125 ns, and 131 with one unused line. See also
/// `quiet.rs`.
const APART: u32 = 2;

/// The lines from the beginning of a record to that of the next one.
#[inline(always)]
const fn pitch(lines: u32, streams: bool) -> u32 {
    match lines {
        lines if streams => lines,
        1 => 1 + APART,
        lines if lines < LONG => lines,
        lines => lines + GAP,
    }
}

/// The pitch of the record with this header.
#[inline(always)]
fn pitch_of(head: HeadWords) -> u32 {
    pitch(head.lines(), head.streams())
}

/// A lane as its producer sees it. For the lane in use, `at` and `pos` are those of the last slow push; the [`Cursor`] has
/// what came since.
#[derive(Debug)]
struct WriteLane {
    first: u32,
    cap: u32,
    largest: u32,
    /// Next line to write, within the lane.
    at: u32,
    /// Lines written since the beginning, padding included.
    pos: u64,
    /// `pos` must not pass this: the consumer's last known cursor and the lane's size.
    limit: u64,
    skipped: Skipped,
}

/// Lines skipped by turning back to a lane's beginning: padding that nobody writes or reads.
#[derive(Debug, Default)]
struct Skipped {
    /// Since the beginning.
    all: u64,
    /// By the last turn.
    last: u64,
    /// The position behind the lines of the last turn.
    behind: u64,
}

/// Where a record goes: line within the lane, and the lines of padding before it.
#[derive(Clone, Copy)]
struct Place {
    at: u32,
    padding: u32,
}

impl WriteLane {
    fn new((first, cap): (u32, u32), largest: u32) -> WriteLane {
        let (largest, limit) = (largest.min(cap / 4), u64::from(cap));
        WriteLane { first, cap, largest, at: 0, pos: 0, limit, skipped: Skipped::default() }
    }

    /// Where a record of `lines` fits now, by the consumer's last known cursor.
    fn place(&self, lines: u32) -> Option<Place> {
        let place = if self.at + lines <= self.cap {
            Place { at: self.at, padding: 0 }
        } else {
            Place { at: 0, padding: self.cap - self.at }
        };
        let end = self.pos + u64::from(place.padding) + u64::from(lines);
        (lines <= self.largest && end + SPARE <= self.limit).then_some(place)
    }

    /// A place at the lane's beginning, if enough of the lane is used to turn back and the consumer is close behind. Counts the skipped
    /// lines, so the caller must write the record there.
    fn turn(&mut self, lines: u32) -> Option<Place> {
        let padding = self.cap - self.at;
        let behind = self.pos + u64::from(padding);
        let is_time = self.at >= TURN_LINES && self.outstanding() <= u64::from(TURN_LINES / 2);
        if !is_time || lines > self.largest || behind + u64::from(lines) + SPARE > self.limit {
            return None;
        }
        self.skipped = Skipped { all: self.skipped.all + u64::from(padding), last: padding.into(), behind };
        Some(Place { at: 0, padding })
    }

    /// Lines written and, by the consumer's last known cursor, read, without those that were skipped.
    fn written_and_read(&self) -> (u64, u64) {
        let read = self.pos - self.outstanding();
        let skipped_ahead = if read < self.skipped.behind { self.skipped.last } else { 0 };
        (self.pos - self.skipped.all, read - (self.skipped.all - skipped_ahead))
    }

    fn wrapped(&self, at: u32) -> u32 {
        if at == self.cap {
            0
        } else {
            at
        }
    }

    fn advance(&mut self, place: Place, lines: u32) {
        self.pos += u64::from(place.padding + lines);
        self.at = self.wrapped(place.at + lines);
    }

    /// Lines that the consumer has not given back, by its last known cursor.
    fn outstanding(&self) -> u64 {
        self.pos - (self.limit - u64::from(self.cap))
    }
}

/// Between far cores, the fewest lines zeroed ahead behind a record that is not long. With 32 requests under way a pair took 95 ns with
/// three, 106 with one. (Measured when records of one line lay without unused lines between them.) A near consumer would take the lines
/// back before they are written.
const AHEAD_FAR: u32 = 3;
/// A core is far if a line takes more than this many nanoseconds to come from it. Cores that share a cache were seen at 15 to 30, others
/// at 105 to 130.
const FAR: u64 = 70;
/// Lines pushed to the arena between two looks at whether it has run empty.
const CALM_EVERY: u32 = 2048;
/// Looks in a row that must find it nearly empty before the producer goes back to the hot lane.
const CALM_LOOKS: u32 = 4;
/// The most lines of a nearly empty arena.
const CALM_LINES: u64 = 64;
/// Records that belong to no stream use this many lines of the arena, if the consumer keeps up, and then turn back to its beginning. That
/// is the size of a private cache of 1 MiB, so both sides have dropped the lines into the shared cache by then. With half of it the
/// reader still has them, and the writer must take them back.
const TURN_LINES: u32 = 16384;

/// The producer's place in the lane in use, in lines of the memory. All that a common push reads and writes.
#[derive(Debug)]
struct Cursor {
    /// The next header.
    line: u32,
    /// Records that end at or before this line take the common path.
    end: u32,
    /// Larger records take the slow path.
    largest: u32,
    /// The lines from `line` to before this one have zero first words.
    zeroed: u32,
    /// A line further on with a zero first word: the next record ends there if it is as long as the last one. A record written over it
    /// does no harm: no later record ends there. 0 if there is no such line.
    guessed: u32,
    /// Lines before this one are free.
    free: u32,
    /// At least this many lines are zeroed ahead.
    ahead: u32,
}

/// The writing end. Not shared between threads; every call returns at once.
///
/// ```
/// use weft_shm::{Consumer, Lanes, MapMem, Producer, Shared};
/// use weft_wire::path::Peek;
/// use weft_wire::{Head, Kind};
///
/// let lanes = Lanes::new(16 << 10, 512 << 10);
/// let (memory, descriptor) = Shared::create("a ring", lanes.bytes())?; // the reader's
/// let mut consumer = Consumer::new(MapMem::new(memory, lanes), lanes);
/// let theirs = Shared::open(&descriptor, lanes.bytes())?; // in the other process
/// let mut producer = Producer::new(MapMem::new(theirs, lanes), lanes);
///
/// producer.push(Head::new(Kind::Send), &[7], b"hello")?;
/// let Peek::Record(record) = consumer.peek() else { panic!("there is one") };
/// assert_eq!((record.args, record.payload), (&[7][..], &b"hello"[..]));
/// consumer.pop();
/// assert!(matches!(consumer.peek(), Peek::Empty));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Producer<M> {
    mem: M,
    cursor: Cursor,
    lanes: [WriteLane; 2],
    now: usize,
    calm_looks: u32,
    /// Nanoseconds that loads of the consumer's cursor took, the last three times that it had moved.
    distances: [u64; 3],
    /// By the median of `distances`.
    is_far: bool,
    /// Whether the consumer can evict lines.
    can_evict: bool,
    slow_stores: SlowStores,
    next_source: NextSource,
    broken: bool,
}

impl<M: RingMem> Producer<M> {
    /// The writing end of a fresh ring.
    pub fn new(mem: M, lanes: Lanes) -> Producer<M> {
        let [hot, arena] = lanes.ranges();
        let cursor = Cursor { line: 0, end: 0, largest: 0, zeroed: 0, guessed: 0, free: 0, ahead: 0 };
        let lanes = [WriteLane::new(hot, LONG - 1), WriteLane::new(arena, u32::MAX)];
        let mut producer = Producer {
            can_evict: mem.can_evict(),
            mem,
            cursor,
            lanes,
            now: HOT,
            calm_looks: 0,
            distances: [0; 3],
            is_far: false,
            slow_stores: SlowStores::default(),
            next_source: NextSource::default(),
            broken: false,
        };
        producer.place_cursor();
        producer
    }

    /// Copies a record into the ring and publishes it. `head.args` and `head.len` are set from the slices.
    #[inline(always)]
    pub fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.push_stepped(head, args, payload, &mut ())
    }

    /// `push` with a hook at each store.
    #[inline(always)]
    pub fn push_stepped<S: Steps>(
        &mut self,
        head: Head,
        args: &[u32],
        payload: &[u8],
        steps: &mut S,
    ) -> Result<(), PushError> {
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD {
            return Err(PushError::TooLarge);
        }
        let words = Head { args: args.len() as u8, len: payload.len() as u32, ..head }.pack();
        match self.push_here(words, head.streams(), args, payload, steps) {
            true => Ok(()),
            false => self.push_slow(words[0], words[1], args, payload, steps),
        }
    }

    /// Does what [`weft_wire::path::Tx::push_small`] does.
    #[inline(always)]
    pub fn push_small(&mut self, head: Head, args: &[u32], payload: &[u8]) -> bool {
        if args.len() > MAX_ARGS || payload.len() > SMALL_MOST {
            return false;
        }
        let words = Head { args: args.len() as u8, len: payload.len() as u32, ..head }.pack();
        self.push_here(words, head.streams(), args, payload, &mut ())
    }

    /// The common path of a push. False, with nothing changed, if the record needs the slow path.
    #[inline(always)]
    fn push_here<S: Steps>(
        &mut self,
        words: [u64; 2],
        streams: bool,
        args: &[u32],
        payload: &[u8],
        steps: &mut S,
    ) -> bool {
        let lines = record::lines(args.len(), payload.len());
        let pitch = pitch(lines, streams);
        let Cursor { line, end: short_end, largest, zeroed, guessed, .. } = self.cursor;
        let end = line + pitch;
        if end > short_end || pitch > largest {
            return false;
        }
        steps.before(store::BODY);
        self.write_body(line, words[1], streams, args, payload);
        if end >= zeroed && end != guessed {
            steps.before(store::CLEAR);
            self.mem.clear(end);
        }
        steps.before(store::PUBLISH);
        self.mem.publish(line, words[0]);
        steps.before(store::AHEAD);
        self.zero_ahead(end, lines, streams);
        if payload.len() > SHORT_MOST {
            self.next_source.fetch_behind(payload);
        }
        // The exclusive or says whether a record of a stream crosses a multiple of `TELL_EVERY`.
        if !streams || (line ^ end) >= TELL_EVERY {
            self.tell(end, streams, payload.len());
        }
        steps.before(store::DONE);
        true
    }

    /// Whether the consumer asked for the bell. Ask after a push.
    #[inline(always)]
    pub fn wants_bell(&self) -> bool {
        self.mem.light_barrier();
        self.mem.attention()
    }

    /// Whether a record of `lines` would be taken now. Reads the consumer's cursor if it seems not.
    pub fn has_room(&mut self, lines: u32) -> bool {
        if self.broken {
            return true; // so that the caller pushes, and gets the error
        }
        let lines = pitch(lines, false);
        // The cursor stays as it is. Placing it anew for each question would begin a new stretch each time, and only at the end of
        // a stretch does the producer check whether the arena is calm.
        self.leave_cursor();
        let here = matches!(self.room(self.now, lines), Ok(Some(_)) | Err(_));
        here || (self.now == HOT && matches!(self.room(ARENA, lines), Ok(Some(_)) | Err(_)))
    }

    /// How far the ring was written and, by the consumer's cursor, read. An impossible cursor is ignored: the last possible one counts.
    pub fn traffic(&mut self) -> Traffic {
        self.leave_cursor();
        let mut traffic = Traffic::default();
        for lane in [HOT, ARENA] {
            // The lane keeps the result, and the next push reports an impossible cursor.
            let _ = self.refresh(lane);
            let (written, read) = self.lanes[lane].written_and_read();
            traffic.pushed += written * LINE as u64;
            traffic.taken += read * LINE as u64;
        }
        traffic
    }

    /// The records that the consumer has not surely taken, oldest first. For use when it is dead, for nothing moves then.
    pub fn abandoned(&mut self) -> Vec<Abandoned> {
        self.leave_cursor();
        // A `Switch` ends a lane's part and leads to a part of the other lane; the newest part is in the lane in use, and
        // the other lane has nothing behind its last `Switch`.
        let mut parts = [HOT, ARENA].map(|lane| self.abandoned_in(lane));
        let mut lane = 1 - self.now;
        parts[lane].pop();
        let mut newest_first = Vec::new();
        while parts.iter().any(|parts| !parts.is_empty()) {
            lane = 1 - lane;
            newest_first.extend(parts[lane].pop());
        }
        let mut abandoned: Vec<Abandoned> = newest_first.into_iter().rev().flatten().collect();
        // The last record taken up in a lane is in hand only if none was taken up in the other lane since.
        let mut is_last = true;
        for record in abandoned.iter_mut().rev().filter(|record| record.fate != Fate::Untouched) {
            if record.fate == Fate::InHand && !is_last {
                *record = Abandoned { args: Vec::new(), payload: Vec::new(), fate: Fate::Done, head: record.head };
            }
            is_last = false;
        }
        let surely_done = abandoned.iter().take_while(|record| record.fate == Fate::Done).count();
        abandoned.split_off(surely_done)
    }

    /// Zeroes headers that the next records will need, now that this one is published and nobody waits. Before the publication, the same
    /// store would delay it until the line has come from the consumer's cache.
    ///
    /// Expects the next record to be as long as this one, and zeroes the first word of each of its lines. That also brings the lines into
    /// the producer's cache, which saves 95 ns of a round trip of 256 B. If lines stay unused behind a record, only the header behind the
    /// next one is zeroed.
    ///
    /// Zeroes nothing in a stream through the arena. Its lines are in nobody's cache, and a consumer that reads line after line makes its
    /// processor prefetch the lines ahead, which takes them away again before they are written.
    #[inline(always)]
    fn zero_ahead(&mut self, end: u32, lines: u32, streams: bool) {
        let cursor = &mut self.cursor;
        cursor.line = end;
        let mut zeroed = cursor.zeroed.max(end + 1);
        let pitch = pitch(lines, streams);
        if pitch == lines && !(streams && self.now == ARENA) {
            let upto = (end + lines.max(cursor.ahead) + 1).min(cursor.free);
            while zeroed < upto {
                self.mem.clear(zeroed);
                zeroed += 1;
            }
        } else if !streams && end + pitch < cursor.free {
            cursor.guessed = end + pitch;
            self.mem.clear(cursor.guessed);
        }
        cursor.zeroed = zeroed;
    }

    /// Tells the consumer the producer's place, after a record with a payload of `len` bytes.
    #[inline(always)]
    fn tell(&mut self, line: u32, streams: bool, len: usize) {
        // `urgent` is read back, which is rare: a private copy would cost a store for each record. The consumer could have changed the
        // word, but only the consumer uses it.
        let urgent = if streams { Progress::unpack(self.mem.progress()).urgent } else { line };
        let evict = streams && self.can_evict && self.is_far && len < WAYS_WITH_EVICTION.past_caches_least;
        self.mem.set_progress(Progress { line, urgent, evict }.pack());
    }

    /// Writes everything of a record but the header's first word.
    #[inline(always)]
    fn write_body(&mut self, line: u32, second: u64, streams: bool, args: &[u32], payload: &[u8]) {
        if payload.len() <= SHORT_MOST {
            self.mem.write(line, second, args, payload);
        } else {
            self.write_long(line, second, streams, args, payload);
        }
    }

    /// Writes a record that is not short in the way that suits the distance of the two cores.
    #[inline(never)]
    fn write_long(&mut self, line: u32, second: u64, streams: bool, args: &[u32], payload: &[u8]) {
        let len = payload.len();
        let ways = match streams {
            true if self.can_evict => WAYS_WITH_EVICTION,
            true => WAYS_OF_STREAMS,
            false => WAYS,
        };
        let least = if !streams && self.slow_stores.are_slow() { LARGE_LEAST } else { ways.past_caches_least };
        match self.is_far {
            true if len >= least => self.mem.write_past_caches(line, second, args, payload),
            true if len >= TIMED_LEAST && !streams => {
                let begun = self.mem.nanoseconds();
                self.mem.write(line, second, args, payload);
                if let (Some(begun), Some(now)) = (begun, self.mem.nanoseconds()) {
                    self.slow_stores.note(len, now.saturating_sub(begun));
                }
            }
            false if len >= ways.past_caches_least_if_small && self.lanes[ARENA].cap <= SMALL => {
                self.mem.write_past_caches(line, second, args, payload)
            }
            false if len <= ways.by_lines_most => self.mem.write_by_lines(line, second, args, payload),
            _ => self.mem.write(line, second, args, payload),
        }
    }

    /// Takes the cursor's progress over into its lane.
    fn leave_cursor(&mut self) {
        let lane = &mut self.lanes[self.now];
        let at = self.cursor.line - lane.first;
        lane.pos += u64::from(at - lane.at);
        lane.at = at;
    }

    /// Sets the cursor by its lane.
    fn place_cursor(&mut self) {
        let lane = &self.lanes[self.now];
        let (line, last) = (lane.first + lane.at, lane.first + lane.cap);
        let free = (lane.limit - lane.pos).min(u64::from(lane.cap)) as u32;
        // A record that ends with its lane needs the header at the lane's beginning, and so the slow path.
        let mut end = (line + free).saturating_sub(SPARE as u32).min(last - 1);
        if self.now == ARENA {
            end = end.min(line + CALM_EVERY);
        }
        let ahead = if self.is_far { AHEAD_FAR } else { 1 };
        self.cursor = Cursor {
            line,
            end,
            largest: lane.largest,
            zeroed: line + 1,
            guessed: 0,
            free: (line + free).min(last),
            ahead,
        };
    }

    /// Anything but the common case: the end of a lane, a full lane, a large record, a change of lanes. Takes the header's
    /// words one by one, so that the common case has no need to put them into memory.
    #[cold]
    #[inline(never)]
    fn push_slow<S: Steps>(
        &mut self,
        first: u64,
        second: u64,
        args: &[u32],
        payload: &[u8],
        steps: &mut S,
    ) -> Result<(), PushError> {
        if self.broken {
            return Err(PushError::Broken);
        }
        self.leave_cursor();
        let item = Item { words: [first, second], args, payload };
        let pushed = self.push_anywhere(&item, steps);
        self.place_cursor();
        if pushed.is_ok() {
            self.tell(self.cursor.line, item.streams(), payload.len());
        }
        pushed
    }

    fn push_anywhere<S: Steps>(&mut self, item: &Item<'_>, steps: &mut S) -> Result<(), PushError> {
        let lines = item.pitch();
        if self.now == ARENA && self.is_calm(lines)? {
            return self.push_switched(HOT, item, steps);
        }
        let turn = if self.now == ARENA && !item.streams() { self.lanes[ARENA].turn(lines) } else { None };
        let place = match turn {
            None => self.room(self.now, lines)?,
            turn => turn,
        };
        match place {
            Some(place) => {
                self.write(self.now, place, item, steps);
                Ok(())
            }
            None if self.now == HOT => self.push_switched(ARENA, item, steps),
            None => Err(PushError::Full),
        }
    }

    /// Where a record fits in a lane, asking the consumer's cursor if need be.
    fn room(&mut self, lane: usize, lines: u32) -> Result<Option<Place>, PushError> {
        if let Some(place) = self.lanes[lane].place(lines) {
            return Ok(Some(place));
        }
        if lines <= self.lanes[lane].largest {
            self.refresh(lane)?;
        }
        Ok(self.lanes[lane].place(lines))
    }

    /// Reads the consumer's cursor, once, and believes it only if it is possible.
    fn refresh(&mut self, which: usize) -> Result<(), PushError> {
        let (head, nanoseconds) = self.mem.timed_head(which);
        let lane = &mut self.lanes[which];
        let known = lane.limit - u64::from(lane.cap);
        if head < known || head > lane.pos {
            self.broken = true;
            return Err(PushError::Broken);
        }
        if head != known {
            let [a, b, _] = self.distances;
            self.distances = [nanoseconds, a, b];
            let median = a.max(b).min(a.min(b).max(nanoseconds));
            self.is_far = median > FAR;
            if !self.is_far {
                self.slow_stores.forget();
            }
        }
        lane.limit = head + u64::from(lane.cap);
        Ok(())
    }

    /// Whether the arena has been nearly empty for long enough to go back to the hot lane with a record of `lines`.
    fn is_calm(&mut self, lines: u32) -> Result<bool, PushError> {
        if self.cursor.line >= self.cursor.end.saturating_sub(lines) {
            self.refresh(ARENA)?;
            let calm = self.lanes[ARENA].outstanding() <= CALM_LINES;
            self.calm_looks = if calm { self.calm_looks + 1 } else { 0 };
        }
        Ok(self.calm_looks >= CALM_LOOKS && self.room(HOT, lines)?.is_some())
    }

    /// Writes the record in the other lane and then the `Switch` that leads there.
    fn push_switched<S: Steps>(&mut self, to: usize, item: &Item<'_>, steps: &mut S) -> Result<(), PushError> {
        let from = self.now;
        if item.pitch() > self.lanes[to].largest {
            return Err(if to == ARENA { PushError::TooLarge } else { PushError::Full });
        }
        // The line after the `Switch` becomes the zero header that the producer needs when it comes back.
        let lane = &self.lanes[from];
        let link_fits = lane.pos + SPARE <= lane.limit;
        let (true, Some(place)) = (link_fits, self.room(to, item.pitch())?) else { return Err(PushError::Full) };
        self.write(to, place, item, steps);

        let lane = &mut self.lanes[from];
        let link = Place { at: lane.at, padding: 0 };
        let next = lane.wrapped(link.at + 1);
        steps.before(store::CLEAR_LINK);
        self.mem.clear(lane.first + next);
        steps.before(store::PUBLISH);
        self.mem.publish(lane.first + link.at, Head::new(Kind::Switch).pack()[0]);
        lane.advance(link, 1);
        self.now = to;
        self.calm_looks = 0;
        steps.before(store::DONE);
        Ok(())
    }

    /// Writes a record where it fits: everything else first, the header that makes it visible last.
    fn write<S: Steps>(&mut self, which: usize, place: Place, item: &Item<'_>, steps: &mut S) {
        let lane = &self.lanes[which];
        let lines = item.pitch();
        let line = lane.first + place.at;
        let behind = lane.first + lane.wrapped(place.at + lines);
        steps.before(store::BODY);
        self.write_body(line, item.words[1], item.streams(), item.args, item.payload);
        let lane = &mut self.lanes[which];
        steps.before(store::CLEAR);
        self.mem.clear(behind);
        if place.padding > 0 {
            // The padding leads to the record, so it is the padding's header that publishes it.
            steps.before(store::HEADER);
            self.mem.publish(line, item.words[0]);
            steps.before(store::PUBLISH);
            self.mem.publish(lane.first + lane.at, Head::new(Kind::Pad).pack()[0]);
        } else {
            steps.before(store::PUBLISH);
            self.mem.publish(line, item.words[0]);
        }
        steps.before(store::DONE);
        lane.advance(place, lines);
    }

    /// The abandoned records of a lane, in parts between `Switch`es, oldest first.
    fn abandoned_in(&self, which: usize) -> Vec<Vec<Abandoned>> {
        let mut parts = vec![Vec::new()];
        let lane = &self.lanes[which];
        let (head, claim) = (self.mem.head(which), self.mem.claim(which));
        let outstanding = lane.pos.wrapping_sub(head);
        if outstanding > u64::from(lane.cap) {
            return parts; // the dead peer wrote nonsense: nothing can be said of this lane
        }
        let mut pos = head;
        let mut at = (u64::from(lane.at) + u64::from(lane.cap) - outstanding) % u64::from(lane.cap);
        while pos < lane.pos {
            let line = lane.first + at as u32;
            let Ok(head) = HeadWords::check([self.mem.header(line), self.mem.second(line)]) else {
                return parts;
            };
            let rest = u64::from(lane.cap) - at;
            let lines = match head.kind() {
                Kind::Pad => rest,
                Kind::Switch => 1,
                _ => u64::from(pitch_of(head)),
            };
            if lines > rest {
                return parts;
            }
            pos += lines;
            at = (at + lines) % u64::from(lane.cap);
            let fate = match (pos.cmp(&claim), refusal(head)) {
                (std::cmp::Ordering::Greater, _) => Fate::Untouched,
                (_, Some(reason)) => Fate::Refused(reason),
                // A later record was taken up, so this one was done with.
                (std::cmp::Ordering::Less, None) => Fate::Done,
                (std::cmp::Ordering::Equal, None) => Fate::InHand,
            };
            match head.kind() {
                Kind::Pad => {}
                Kind::Switch => parts.push(Vec::new()),
                _ => parts.last_mut().expect("begins with one").push(self.abandoned_record(line, head, fate)),
            }
        }
        parts
    }

    fn abandoned_record(&self, line: u32, head: HeadWords, fate: Fate) -> Abandoned {
        if fate == Fate::Done {
            return Abandoned { head: head.head(), args: Vec::new(), payload: Vec::new(), fate };
        }
        let mut words = [0; COPY_WORDS];
        self.mem.copy_out(line, args_bytes(head.args()), &mut words);
        let mut payload = Vec::new();
        // A peer that is taken for dead may live and write, and may never have been trusted.
        self.mem.copy_payload(line, head.payload_at(), head.len(), &mut payload);
        let head = match fate {
            Fate::Refused(_) => Head { credit: Credit::default(), ..head.head() },
            _ => head.head(),
        };
        Abandoned { head, args: args_of(&words)[..usize::from(head.args)].to_vec(), payload, fate }
    }
}

impl Producer<MapMem> {
    /// Gives the arena's pages back to the kernel if the producer is in the hot lane and the arena was read to its end.
    ///
    /// Says whether it did. A system call; meant for idle times.
    pub fn give_back_arena(&mut self) -> bool {
        self.leave_cursor();
        let used = self.lanes[ARENA].pos > 0;
        if self.now != HOT || !used || self.refresh(ARENA).is_err() || self.lanes[ARENA].outstanding() > 0 {
            return false;
        }
        // The consumer left the arena by the `Switch` that its cursor has passed, and follows only the next one.
        self.mem.give_back_from(self.lanes[ARENA].first).is_ok()
    }
}
