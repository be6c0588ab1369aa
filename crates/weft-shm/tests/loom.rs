//! Every interleaving of a producer and a consumer on tiny rings, and every value that the memory model lets a load
//! return: the consumer sees exactly the records that were pushed, in order, with their contents.
//!
//! The ring is the one that ships; only its memory is loom's. Body words are plain, but each line has a loom cell. The cell
//! fails the test if one side writes a body that the other may still be reading, or reads one that is not known to be written:
//! a stronger check than stale values. Faults planted in the memory show that the models would find a missing order or a
//! missing store.
//!
//! Runs by `RUSTFLAGS="--cfg loom" cargo test -p weft-shm --release --test loom`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64 as PlainU64, Ordering as Plain};
use std::sync::{Arc, OnceLock};
use weft_shm::mem::{CONTROL_LINES, COPY_WORDS};
use weft_shm::{Consumer, Lanes, Producer, RingMem};
use weft_wire::path::{Peek, PushError};
use weft_wire::record::{args_bytes, HEADER};
use weft_wire::{Head, Kind, LINE};

/// A fault planted in the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// `publish` is not a release.
    RelaxedPublish,
    /// `header` is not an acquire.
    RelaxedHeader,
    /// The header behind a record is left as it was.
    NoClear,
    /// The header behind a record is zeroed after the record is published.
    LateClear,
    /// `set_head` is not a release.
    RelaxedSetHead,
    /// `set_head` gives back two lines that the consumer has not read yet.
    EarlySetHead,
    /// `head` is not an acquire.
    RelaxedHead,
}

/// A line of the ring: two words that loom knows one by one, and six that it knows as a whole.
struct Line {
    first: AtomicU64,
    second: AtomicU64,
    body: [PlainU64; 6],
    /// Finds accesses to the body that no order separates.
    access: UnsafeCell<()>,
}

/// Copies of payloads read in place, kept as long as the memory, because loom's words cannot be borrowed as bytes.
#[derive(Default)]
struct Copies(OnceLock<Box<(Vec<u8>, Copies)>>);

impl Copies {
    fn keep(&self, bytes: Vec<u8>) -> &[u8] {
        match self.0.get() {
            Some(kept) => kept.1.keep(bytes),
            None => &self.0.get_or_init(|| Box::new((bytes, Copies::default()))).0,
        }
    }
}

struct Memory {
    heads: [AtomicU64; 2],
    lines: Vec<Line>,
    fault: Fault,
    /// The line that `LateClear` has yet to zero; 0 if none.
    late: PlainU64,
    /// `Switch` records published.
    switches: PlainU64,
    copies: Copies,
}

/// One side's view of ring memory under loom, which runs its threads in turns on one thread; so an `Rc` is enough.
#[derive(Clone)]
struct LoomMem(Rc<Memory>);

impl LoomMem {
    fn new(lanes: Lanes, fault: Fault) -> LoomMem {
        let lines = lanes.bytes() / LINE - CONTROL_LINES as usize;
        LoomMem(Rc::new(Memory {
            heads: [AtomicU64::new(0), AtomicU64::new(0)],
            lines: (0..lines)
                .map(|_| Line {
                    first: AtomicU64::new(0),
                    second: AtomicU64::new(0),
                    body: std::array::from_fn(|_| PlainU64::new(0)),
                    access: UnsafeCell::new(()),
                })
                .collect(),
            fault,
            late: PlainU64::new(0),
            switches: PlainU64::new(0),
            copies: Copies::default(),
        }))
    }

    fn line(&self, line: u32) -> &Line {
        &self.0.lines[(line - CONTROL_LINES) as usize]
    }

    /// `Switch` records published so far.
    fn switches(&self) -> u64 {
        self.0.switches.load(Plain::Relaxed)
    }

    fn unless(&self, fault: Fault, order: Ordering) -> Ordering {
        if self.0.fault == fault {
            Ordering::Relaxed
        } else {
            order
        }
    }

    /// Loads a word of a record's body, `index` words behind the beginning of `line`.
    fn load(&self, line: u32, index: usize) -> u64 {
        let (at, index) = self.word(line, index);
        at.access.with(|_| ());
        match index {
            0 => at.first.load(Ordering::Relaxed),
            1 => at.second.load(Ordering::Relaxed),
            n => at.body[n - 2].load(Plain::Relaxed),
        }
    }

    /// The line and the word within it, `index` words behind the beginning of `line`.
    fn word(&self, line: u32, index: usize) -> (&Line, usize) {
        (self.line(line + (index / 8) as u32), index % 8)
    }
}

impl RingMem for LoomMem {
    fn header(&self, line: u32) -> u64 {
        self.line(line).first.load(self.unless(Fault::RelaxedHeader, Ordering::Acquire))
    }

    fn publish(&self, line: u32, word: u64) {
        self.line(line).first.store(word, self.unless(Fault::RelaxedPublish, Ordering::Release));
        if (word >> 32) as u8 == Kind::Switch as u8 {
            self.0.switches.fetch_add(1, Plain::Relaxed);
        }
        let late = self.0.late.swap(0, Plain::Relaxed);
        if late != 0 {
            self.line(late as u32).first.store(0, Ordering::Relaxed);
        }
    }

    fn clear(&self, line: u32) {
        match self.0.fault {
            Fault::NoClear => {}
            Fault::LateClear => self.0.late.store(u64::from(line), Plain::Relaxed),
            _ => self.line(line).first.store(0, Ordering::Relaxed),
        }
    }

    fn second(&self, line: u32) -> u64 {
        self.line(line).access.with(|_| ());
        self.line(line).second.load(Ordering::Relaxed)
    }

    // Marks, like claims, are read only after the consumer's death.
    fn mark(&self, _line: u32, _second: u64) {}

    fn write(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        let mut bytes: Vec<u8> = args.iter().flat_map(|arg| arg.to_le_bytes()).collect();
        bytes.resize(args_bytes(args.len()), 0);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        self.line(line).access.with_mut(|_| ());
        self.line(line).second.store(second, Ordering::Relaxed);
        for (i, chunk) in bytes.chunks(8).enumerate() {
            let value = u64::from_le_bytes(chunk.try_into().expect("8 bytes"));
            match self.word(line, HEADER / 8 + i) {
                (at, 0) => {
                    at.access.with_mut(|_| ());
                    at.first.store(value, Ordering::Relaxed);
                }
                (at, 1) => at.second.store(value, Ordering::Relaxed),
                (at, n) => at.body[n - 2].store(value, Plain::Relaxed),
            }
        }
    }

    fn copy_out(&self, line: u32, bytes: usize, out: &mut [u64; COPY_WORDS]) {
        self.line(line).access.with(|_| ());
        for (i, value) in out.iter_mut().enumerate().take(bytes.div_ceil(8)) {
            *value = self.load(line, HEADER / 8 + i);
        }
    }

    unsafe fn in_place(&self, line: u32, offset: usize, len: usize) -> &[u8] {
        let mut bytes = Vec::new();
        self.copy_payload(line, offset, len, &mut bytes);
        self.0.copies.keep(bytes)
    }

    fn copy_payload(&self, line: u32, offset: usize, len: usize, out: &mut Vec<u8>) {
        assert_eq!(offset % 8, 0);
        let words = (offset / 8..(offset + len).div_ceil(8)).map(|i| self.load(line, i));
        *out = words.flat_map(u64::to_le_bytes).collect();
        out.truncate(len);
    }

    fn set_head(&self, lane: usize, pos: u64) {
        let pos = if self.0.fault == Fault::EarlySetHead { pos + 2 } else { pos };
        self.0.heads[lane].store(pos, self.unless(Fault::RelaxedSetHead, Ordering::Release));
    }

    fn head(&self, lane: usize) -> u64 {
        self.0.heads[lane].load(self.unless(Fault::RelaxedHead, Ordering::Acquire))
    }

    // Claims are read only after the consumer's death, and attention is a hint: the models do without both.
    fn set_claim(&self, _lane: usize, _pos: u64) {}

    fn claim(&self, _lane: usize) -> u64 {
        panic!("the consumer is alive")
    }

    fn set_attention(&self, _wanted: bool) {}

    fn attention(&self) -> bool {
        false
    }

    fn light_barrier(&self) {}
}

/// The payload of record `number` when it takes `lines`: different from every other record's in each word.
fn payload(number: u16, lines: u32) -> Vec<u8> {
    let bytes = if lines == 1 { 16 } else { (lines as usize - 1) * LINE };
    (0..bytes as u32 / 4).flat_map(|i| (u32::from(number) << 16 | i | 0x8000).to_le_bytes()).collect()
}

fn push(producer: &mut Producer<LoomMem>, number: u16, lines: u32) -> Result<(), PushError> {
    let head = Head { flow: number, ..Head::new(Kind::Send) };
    producer.push(head, &[], &payload(number, lines))
}

/// Pushes the records `numbers`, whose lengths are those of `lines` in turn, waiting for room.
fn push_all(producer: &mut Producer<LoomMem>, numbers: std::ops::Range<u16>, lines: &[u32]) {
    for number in numbers {
        let lines = lines[usize::from(number) % lines.len()];
        while let Err(refused) = push(producer, number, lines) {
            assert_eq!(refused, PushError::Full);
            thread::yield_now();
        }
    }
}

/// Takes the next record if there is one; it must be record `number`.
fn take(consumer: &mut Consumer<LoomMem>, number: u16, lines: &[u32]) -> bool {
    match consumer.peek() {
        Peek::Empty => return false,
        Peek::Broken(malformed) => panic!("broken: {malformed}"),
        Peek::Record(record) => {
            assert_eq!(record.head.flow(), number);
            assert_eq!(record.payload, payload(number, lines[usize::from(number) % lines.len()]));
        }
    }
    consumer.pop();
    true
}

fn take_all(consumer: &mut Consumer<LoomMem>, numbers: std::ops::Range<u16>, lines: &[u32]) {
    for number in numbers {
        while !take(consumer, number, lines) {
            thread::yield_now();
        }
    }
}

/// A model: a ring, records that went through before the race begins, and records that race.
#[derive(Clone, Copy)]
struct Model {
    lanes: Lanes,
    /// Lengths of the records in lines, in turn.
    lines: &'static [u32],
    /// Records pushed and taken one by one before the race.
    before: u16,
    /// Records pushed before the race and not taken; fewer if the ring is full earlier.
    waiting: u16,
    /// Records pushed while the consumer takes all.
    racing: u16,
    /// The fewest switches of lanes in any order of events.
    switches: u64,
    preemptions: usize,
}

impl Model {
    fn check(self, fault: Fault) {
        self.run(fault, move |mem, mut producer, mut consumer| {
            for number in 0..self.before {
                push(&mut producer, number, self.lines_of(number)).expect("room");
                assert!(take(&mut consumer, number, self.lines));
            }
            let mut pushed = self.before;
            while pushed < self.before + self.waiting && push(&mut producer, pushed, self.lines_of(pushed)).is_ok() {
                pushed += 1;
            }
            let races = pushed..pushed + self.racing;
            let producing = thread::spawn(move || push_all(&mut producer, races, self.lines));
            take_all(&mut consumer, self.before..pushed + self.racing, self.lines);
            producing.join().expect("producer");
            assert!(mem.switches() >= self.switches);
            assert!(matches!(consumer.peek(), Peek::Empty));
        });
    }

    /// Explores `test` with a fresh ring.
    fn run<F>(self, fault: Fault, test: F)
    where
        F: Fn(LoomMem, Producer<LoomMem>, Consumer<LoomMem>) + Send + Sync + 'static,
    {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(self.preemptions);
        builder.max_branches = 20_000;
        builder.check(move || {
            let mem = LoomMem::new(self.lanes, fault);
            test(mem.clone(), Producer::new(mem.clone(), self.lanes), Consumer::new(mem, self.lanes));
        });
    }

    fn lines_of(&self, number: u16) -> u32 {
        self.lines[usize::from(number) % self.lines.len()]
    }

    /// Whether the model fails with this fault in the memory.
    fn finds(self, fault: Fault) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.check(fault))).is_err()
    }
}

/// From a fresh ring through wraps of both lanes, of two records each.
const WRAP: Model =
    Model { lanes: Lanes::tiny(4, 4), lines: &[1], before: 0, waiting: 0, racing: 7, switches: 0, preemptions: 3 };

/// Records of one and two lines at the end of a lap of the hot lane, where padding is needed.
const PADDED: Model = Model {
    lanes: Lanes::tiny(9, 12),
    lines: &[1, 2, 2, 2],
    before: 4,
    waiting: 1,
    racing: 6,
    switches: 0,
    preemptions: 3,
};

/// The hot lane is full, so the race goes through the `Switch` into the arena and round it.
const SWITCH: Model = Model {
    lanes: Lanes::tiny(4, 8),
    lines: &[1, 2, 1],
    before: 0,
    waiting: 1,
    racing: 5,
    switches: 1,
    preemptions: 3,
};

/// Records that end where a header was zeroed ahead, and others.
const GUESSED: Model = Model {
    lanes: Lanes::tiny(30, 30),
    lines: &[4, 4, 4, 2, 5, 4],
    before: 5,
    waiting: 2,
    racing: 6,
    switches: 0,
    preemptions: 3,
};

/// The producer is in the arena and has found it empty for so long that the next push returns to the hot lane. The race
/// goes through that `Switch` and then through another into the arena.
fn back() -> Model {
    let (lanes, lines) = (Lanes::tiny(4, 8), &[2, 1]);
    let mut before = Model { lanes, lines, before: 0, waiting: 0, racing: 0, switches: 0, preemptions: 0 };
    let pushes = Arc::new(PlainU64::new(0));
    let counted = pushes.clone();
    before.run(Fault::None, move |mem, mut producer, mut consumer| {
        let mut number = 0;
        while mem.switches() < 2 {
            push(&mut producer, number, lines[usize::from(number) % 2]).expect("room");
            assert!(take(&mut consumer, number, lines));
            number += 1;
        }
        counted.store(u64::from(number - 1), Plain::Relaxed);
    });
    before.before = pushes.load(Plain::Relaxed) as u16;
    Model { racing: 6, switches: 3, preemptions: 3, ..before }
}

/// Full lanes, in which the consumer publishes its cursor for every second line only.
const LAZY: Model = Model {
    lanes: Lanes::tiny(16, 16),
    lines: &[1, 3],
    before: 6,
    waiting: 100,
    racing: 3,
    switches: 1,
    preemptions: 3,
};

#[test]
fn records_arrive_in_order_through_wraps() {
    WRAP.check(Fault::None);
}

#[test]
fn records_arrive_in_order_through_padding() {
    PADDED.check(Fault::None);
}

#[test]
fn records_arrive_in_order_where_headers_are_zeroed_ahead() {
    GUESSED.check(Fault::None);
}

#[test]
fn records_arrive_in_order_through_the_switch_to_the_arena() {
    SWITCH.check(Fault::None);
}

#[test]
fn records_arrive_in_order_through_the_switch_back() {
    back().check(Fault::None);
}

#[test]
fn a_full_ring_recovers_by_a_cursor_that_is_published_lazily() {
    LAZY.check(Fault::None);
}

#[test]
fn a_publish_without_release_is_found() {
    assert!(WRAP.finds(Fault::RelaxedPublish));
    assert!(PADDED.finds(Fault::RelaxedPublish));
    assert!(SWITCH.finds(Fault::RelaxedPublish));
}

#[test]
fn a_header_read_without_acquire_is_found() {
    assert!(WRAP.finds(Fault::RelaxedHeader));
}

#[test]
fn a_header_behind_that_is_not_cleared_is_found() {
    assert!(WRAP.finds(Fault::NoClear));
    assert!(back().finds(Fault::NoClear));
}

#[test]
fn a_header_behind_that_is_cleared_too_late_is_found() {
    assert!(WRAP.finds(Fault::LateClear));
    assert!(GUESSED.finds(Fault::LateClear));
}

#[test]
fn a_cursor_without_release_or_acquire_is_found() {
    assert!(WRAP.finds(Fault::RelaxedSetHead));
    assert!(WRAP.finds(Fault::RelaxedHead));
}

#[test]
fn a_cursor_that_runs_ahead_is_found() {
    assert!(LAZY.finds(Fault::EarlySetHead));
}
