//! The process at the other side of a ring is an attacker. Whatever it writes, a consumer finds nothing, finds a record within
//! the limits, or breaks the ring for good. A producer pushes inside its lanes, is refused, or breaks the ring. No look and no push
//! takes more than a few steps, accesses anything outside the ring's memory, or panics.
//!
//! Random, and repeated by `WEFT_SEED=...` as printed.

mod support;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{seed, Access, Contents, Memory, Rng, Tapped};
use weft_shm::mem::CONTROL_LINES;
use weft_shm::ring::COPY_MOST;
use weft_shm::{Consumer, Lanes, MapMem, Producer, RingMem};
use weft_wire::path::{Glance, Peek, PushError, Record};
use weft_wire::setup::Geometry;
use weft_wire::{Head, Kind, LINE, MAX_ARGS, MAX_PAYLOAD};

/// Words that the attacker writes in one test. A build without optimisation writes fewer, only to check that the test works.
const MUTATIONS: u64 = if cfg!(debug_assertions) { 200_000 } else { 10_000_000 };

/// Writes of a thread that scribbles while a consumer reads.
const SCRIBBLES: u64 = if cfg!(debug_assertions) { 20_000 } else { 500_000 };

/// The most headers read in one look: the expected header, and those that four links lead to.
const LOOKS_MOST: u32 = 5;

const TINY: Lanes = Lanes::tiny(12, 40);

fn normal() -> Lanes {
    Lanes::new(4096, 512 << 10)
}

/// The header reads of a consumer.
#[derive(Default)]
struct Watch {
    /// The line of the last header read: where the attacker does the most harm.
    at: Cell<u32>,
    looks: Cell<u32>,
}

impl Watch {
    fn note(&self, access: Access) {
        if let Access::Header(line) = access {
            self.at.set(line);
            self.looks.set(self.looks.get() + 1);
        }
    }
}

/// A header's first word as an attacker would write it: nearly right, and wrong where it hurts.
fn header(rng: &mut Rng) -> u64 {
    if rng.one_in(16) {
        return rng.next();
    }
    let kind = if rng.one_in(64) { rng.below(256) } else { 1 + rng.below(10) };
    let args = if rng.one_in(64) { rng.below(256) } else { rng.below(MAX_ARGS as u64 + 1) };
    let len = match rng.below(64) {
        0 => rng.pick(&[MAX_PAYLOAD as u64 + 1, u64::from(u32::MAX), 1 << 31]),
        1 => rng.pick(&[MAX_PAYLOAD as u64, MAX_PAYLOAD as u64 - 1]),
        2 => rng.below(MAX_PAYLOAD as u64),
        3..8 => rng.pick(&[47, 48, 49, 256, 257, 500, 1023]),
        _ => rng.below(64),
    };
    let reserved = if rng.one_in(128) { rng.below(256) } else { 0 };
    len | kind << 32 | rng.below(256) << 40 | args << 48 | reserved << 56
}

/// One harmful write, most often where the consumer looks next.
fn mutate(mem: &MapMem, lanes: Lanes, at: u32, rng: &mut Rng) {
    let last = (lanes.bytes() / LINE) as u32;
    let line = match rng.below(16) {
        0..12 if at != 0 => at,
        12..15 => CONTROL_LINES + rng.below(64.min(u64::from(last - CONTROL_LINES))) as u32,
        _ => rng.below(u64::from(last)) as u32,
    };
    match rng.below(16) {
        0..12 => mem.publish(line, header(rng)),
        12 => mem.publish(line, 0),
        13 => mem.publish(line, rng.pick(&[Kind::Pad, Kind::Switch]) as u64 * (1 << 32)),
        14 => mem.write(line, rng.next(), &[], &rng.next().to_le_bytes()),
        _ if rng.one_in(2) => mem.set_head(rng.below(2) as usize, rng.next()),
        _ => mem.set_claim(rng.below(2) as usize, rng.next()),
    }
}

/// The addresses of the lanes.
fn lanes_in(mem: &MapMem, lanes: Lanes) -> Range<*const u8> {
    // SAFETY: nobody has begun to write. The slice ends here, and only its addresses are taken.
    unsafe { mem.in_place(CONTROL_LINES, 0, lanes.bytes() - CONTROL_LINES as usize * LINE) }.as_ptr_range()
}

/// Everything that a program may rely on in a record, whoever wrote it.
fn check_limits(record: &Record<'_>, mapped: &Range<*const u8>) {
    let Record { head, args, payload } = record;
    assert!(args.len() <= MAX_ARGS && payload.len() <= MAX_PAYLOAD);
    assert_eq!((args.len(), payload.len()), (head.args(), head.len()));
    assert!(!matches!(head.kind(), Kind::Pad | Kind::Switch), "a link was handed out");
    let lies = payload.as_ptr_range();
    let inside = mapped.start <= lies.start && lies.end <= mapped.end;
    assert_eq!(
        inside,
        payload.len() > COPY_MOST && head.lines() > 2,
        "small payloads are copied, large ones lie in the lanes"
    );
    std::hint::black_box((payload.first(), payload.last(), args.last()));
}

/// The outcomes of a number of mutations.
#[derive(Default, Debug)]
struct Seen {
    glanced: u64,
    records: u64,
    large: u64,
    empty: u64,
    broken: u64,
}

/// Mutates the memory below a consumer again and again; takes a new consumer when the ring broke.
fn attack_consumer(lanes: Lanes, mutations: u64, rng: &mut Rng) -> Seen {
    let memory = Memory::new(lanes);
    let mem = memory.map();
    let mapped = lanes_in(&mem, lanes);
    let mut seen = Seen::default();
    let mut done = 0;
    while done < mutations {
        let watch = Watch::default();
        let mut consumer = Consumer::new(Tapped::new(&mem, |access| watch.note(access)), lanes);
        let mut broken_for = 0;
        while done < mutations && broken_for < 8 {
            mutate(&mem, lanes, watch.at.get(), rng);
            done += 1;
            if rng.one_in(2) {
                if let Glance::Record(record) = consumer.glance() {
                    assert_eq!(broken_for, 0, "a record after the ring broke");
                    check_limits(&record, &mapped);
                    seen.glanced += 1;
                    seen.large += u64::from(record.payload.len() > COPY_MOST);
                }
            }
            watch.looks.set(0);
            match consumer.peek() {
                Peek::Empty => seen.empty += 1,
                Peek::Broken(_) => broken_for += 1,
                Peek::Record(record) => {
                    assert_eq!(broken_for, 0, "a record after the ring broke");
                    check_limits(&record, &mapped);
                    seen.records += 1;
                    seen.large += u64::from(record.payload.len() > COPY_MOST);
                }
            }
            assert!(watch.looks.get() <= LOOKS_MOST, "{} headers read in one look", watch.looks.get());
            match rng.below(16) {
                0..10 => consumer.pop(), // must be harmless even if nothing is in hand
                10 => consumer.release(),
                _ => {}
            }
        }
        seen.broken += u64::from(broken_for > 0);
    }
    seen
}

#[test]
fn a_consumer_survives_ten_million_hostile_writes() {
    let mut rng = Rng(seed());
    for lanes in [TINY, normal()] {
        let seen = attack_consumer(lanes, MUTATIONS / 2, &mut rng);
        println!("{lanes:?}: {seen:?}");
        assert!(
            seen.records > 1000 && seen.glanced > 1000 && seen.large > 100 && seen.empty > 1000 && seen.broken > 1000,
            "a tame attack"
        );
    }
}

#[test]
fn a_broken_ring_gives_no_record_again() {
    let memory = Memory::new(TINY);
    let (mem, mut consumer) = (memory.map(), memory.consumer());
    let too_long = Head { len: 4 * LINE as u32, ..Head::new(Kind::Send) };
    for wrong in [255 << 32, too_long.pack()[0]] {
        mem.publish(CONTROL_LINES, wrong);
        assert!(matches!(consumer.peek(), Peek::Broken(_)));
        mem.publish(CONTROL_LINES, Head::new(Kind::Send).pack()[0]);
        assert!(matches!(consumer.peek(), Peek::Broken(_)), "healed by a good header");
        mem.publish(CONTROL_LINES, Head::new(Kind::Switch).pack()[0]);
        assert!(matches!(consumer.peek(), Peek::Broken(_)), "led elsewhere");
        consumer = memory.consumer();
    }
}

#[test]
fn a_record_that_turns_into_a_link_while_in_hand_leads_nowhere_outside() {
    let memory = Memory::new(TINY);
    let (mem, mut consumer) = (memory.map(), memory.consumer());
    let last_of_arena = (TINY.bytes() / LINE) as u32 - 1;
    let arena = last_of_arena + 1 - TINY.geometry().arena_lines;
    let put = |line, head: Head| mem.publish(line, head.pack()[0]);
    // Lead the consumer through the arena to its last line but one, then back to a record in the hot lane.
    let link = Head::new(Kind::Switch);
    put(CONTROL_LINES, link);
    for line in arena..last_of_arena - 1 {
        put(line, Head::new(Kind::Send));
        assert!(matches!(consumer.peek(), Peek::Record(_)));
        consumer.pop();
    }
    put(last_of_arena - 1, link);
    put(CONTROL_LINES + 1, Head { len: 2 * LINE as u32, ..Head::new(Kind::Send) });
    assert!(matches!(consumer.peek(), Peek::Record(_)));
    // The record in hand, of three lines, turns into a link to the last line of the arena, where nothing is.
    put(CONTROL_LINES + 1, link);
    assert!(matches!(consumer.peek(), Peek::Empty));
    consumer.pop();
    assert!(matches!(consumer.peek(), Peek::Empty));
}

#[test]
fn links_that_lead_in_circles_take_a_few_steps_per_look() {
    for kind in [Kind::Pad, Kind::Switch] {
        let memory = Memory::new(TINY);
        let mem = memory.map();
        for line in CONTROL_LINES..(TINY.bytes() / LINE) as u32 {
            mem.publish(line, Head::new(kind).pack()[0]);
        }
        let watch = Watch::default();
        let mut consumer = Consumer::new(Tapped::new(&mem, |access| watch.note(access)), TINY);
        for _ in 0..1000 {
            watch.looks.set(0);
            assert!(!matches!(consumer.peek(), Peek::Record(_)));
            assert!(watch.looks.get() <= LOOKS_MOST);
        }
    }
}

/// A cursor as a hostile consumer would write it. `honest` is one that it published rightly.
fn cursor(honest: u64, rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => rng.next(),
        1 => 1 << 63,
        2 => u64::MAX - rng.below(3),
        3 => honest.wrapping_sub(1 + rng.below(100)),
        4 => honest + 1_000_000 + rng.below(100),
        5 => 0,
        _ => honest,
    }
}

/// Cursors that are stale or impossible: they must not make the producer overwrite records that were not read.
#[test]
fn a_lying_cursor_that_gives_nothing_back_costs_no_record() {
    let mut rng = Rng(seed());
    let mut breaks = 0;
    for _ in 0..MUTATIONS / 10_000 {
        let memory = Memory::new(TINY);
        let (mem, published) = (memory.map(), [Cell::new(0), Cell::new(0)]);
        let note = |access| {
            if let Access::SetHead(lane, pos) = access {
                published[lane].set(pos);
            }
        };
        let mut consumer = Consumer::new(Tapped::new(&mem, note), TINY);
        let mut producer = memory.producer();
        let mut model = VecDeque::new();
        let mut broken_for = 0;
        for number in 0..1000 {
            let lane = rng.below(2) as usize;
            let lie = if rng.one_in(100) { cursor(published[lane].get(), &mut rng) } else { published[lane].get() };
            mem.set_head(lane, lie);
            let contents = Contents::new(number, rng.below(4) as usize, rng.below(300) as usize);
            match producer.push(contents.head, &contents.args, &contents.payload) {
                Ok(()) => model.push_back(contents),
                Err(PushError::Full) => assert_eq!(broken_for, 0, "full after the ring broke"),
                Err(PushError::Broken) => broken_for += 1,
                Err(error) => panic!("{} lines: {error}", contents.lines()),
            }
            mem.set_head(lane, published[lane].get());
            while rng.one_in(2) {
                let Peek::Record(record) = consumer.peek() else { break };
                let wanted = model.pop_front().expect("no record that was not pushed");
                assert!(wanted.is(&record), "record {} changed", wanted.head.flow);
                consumer.pop();
            }
        }
        while let Peek::Record(record) = consumer.peek() {
            assert!(model.pop_front().expect("no record that was not pushed").is(&record));
            consumer.pop();
        }
        assert_eq!(model.len(), 0, "records lost");
        breaks += u64::from(broken_for > 0);
    }
    assert!(breaks > 0, "a tame attack");
}

#[test]
fn a_producer_with_a_hostile_consumer_stays_in_its_lanes_and_takes_few_steps() {
    let mut rng = Rng(seed());
    for lanes in [TINY, normal()] {
        let memory = Memory::new(lanes);
        let mem = memory.map();
        let last = (lanes.bytes() / LINE) as u32;
        let mut pushes = 0;
        let (mut broken, mut full) = (0, 0);
        while pushes < MUTATIONS / 20 {
            let (steps, pushed) = (Cell::new(0), Cell::new(0));
            let note = |access| {
                steps.set(steps.get() + 1);
                if let Access::Write(line, lines) = access {
                    assert!(line >= CONTROL_LINES && line + lines <= last, "{lines} lines written at {line}");
                    pushed.set(pushed.get() + u64::from(lines));
                }
            };
            let mut producer = Producer::new(Tapped::new(&mem, note), lanes);
            mem.set_head(0, 0);
            mem.set_head(1, 0);
            let mut told = [0, 0];
            for _ in 0..300 {
                pushes += 1;
                let lane = rng.below(2) as usize;
                told[lane] = told[lane].max(rng.below(pushed.get() / 4 + 1));
                let lie = if rng.one_in(100) { cursor(told[lane], &mut rng) } else { told[lane] };
                mem.set_head(lane, lie);
                mem.set_claim(lane, rng.next());
                steps.set(0);
                let room = producer.has_room(1 + rng.below(3) as u32);
                let payload = [0; 400];
                let len = rng.below(payload.len() as u64) as usize;
                match producer.push(Head::new(Kind::Send), &[], &payload[..len]) {
                    Ok(()) => {}
                    Err(PushError::Full) => full += 1,
                    Err(PushError::Broken) => broken += 1,
                    Err(error) => panic!("{len} bytes: {error}"),
                }
                assert!(steps.get() <= 16, "{} steps, room {room}", steps.get());
                if rng.one_in(50) {
                    assert!(producer.abandoned().len() <= last as usize);
                }
            }
        }
        println!("{lanes:?}: {pushes} pushes, {full} full, {broken} broken");
        assert!(broken > 100, "a tame attack, or too rough a one");
    }
}

/// A block of lines that all look like headers, as an attacker would write it over a whole lane.
fn block(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    let mut block = Vec::with_capacity(bytes);
    while block.len() < bytes {
        let word = if rng.one_in(4) { 0 } else { header(rng) };
        block.extend(word.to_le_bytes());
        for _ in 1..LINE / 8 {
            block.extend(rng.next().to_le_bytes());
        }
    }
    block
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The writes go through the kernel, so that they race with the consumer's loads as another process's do.
#[test]
fn a_consumer_survives_a_peer_that_scribbles_while_it_reads() {
    let mut rng = Rng(seed());
    let lanes = normal();
    let memory = Memory::new(lanes);
    let mem = memory.map();
    let file = File::from(memory.fd_again());
    let mapped = lanes_in(&mem, lanes);
    let (stop, scribbles) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut scribbler_rng = Rng(rng.next());
    let (mut records, mut broken, mut looks) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        let _stop = OnDrop(|| stop.store(true, Ordering::Relaxed)); // also if an assertion fails
        let scribbling = scope.spawn(|| {
            let hot = (lanes.geometry().hot_lines + CONTROL_LINES) as usize * LINE;
            while !stop.load(Ordering::Relaxed) {
                let block = block(&mut scribbler_rng, hot);
                // The hot lane, or the beginning of the arena; now and then all of it in small pieces.
                let at = scribbler_rng.pick(&[CONTROL_LINES as usize * LINE, hot]);
                let end = block.len().min(lanes.bytes() - at);
                let step = scribbler_rng.pick(&[24, LINE, hot]);
                for from in (0..end).step_by(step) {
                    let piece = &block[from..end.min(from + step)];
                    file.write_all_at(piece, (at + from) as u64).expect("write to the memfd");
                    scribbles.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        while scribbles.load(Ordering::Relaxed) < SCRIBBLES || records < 10_000 || broken < 1_000 {
            let watch = Watch::default();
            let mut consumer = Consumer::new(Tapped::new(&mem, |access| watch.note(access)), lanes);
            let (mut broken_for, mut idle) = (0, 0);
            // A consumer that was led to lines where nobody scribbles is given up, too.
            while broken_for < 4 && idle < 5_000 {
                looks += 1;
                if looks % 1024 == 0 {
                    assert!(!scribbling.is_finished(), "the scribbler failed");
                    std::thread::yield_now();
                }
                watch.looks.set(0);
                match consumer.peek() {
                    Peek::Empty => idle += 1,
                    Peek::Broken(_) => broken_for += 1,
                    Peek::Record(record) => {
                        assert_eq!(broken_for, 0, "a record after the ring broke");
                        check_limits(&record, &mapped);
                        records += 1;
                        idle = 0;
                        if record.payload.len() <= COPY_MOST {
                            let first = sum(record.payload);
                            assert_eq!(first, sum(record.payload), "a copied payload changed");
                        }
                        consumer.pop();
                    }
                }
                assert!(watch.looks.get() <= LOOKS_MOST);
            }
            broken += u64::from(broken_for > 0);
        }
    });
    println!("{looks} looks, {records} records, {broken} broken rings");
}

fn sum(bytes: &[u8]) -> u64 {
    std::hint::black_box(bytes).iter().map(|&b| u64::from(b)).sum()
}

#[test]
fn an_announced_shape_is_taken_within_bounds_only() {
    let mut rng = Rng(seed());
    let mut taken = 0;
    for _ in 0..MUTATIONS / 100 {
        let good = Lanes::new(rng.below(2 << 20) as usize, rng.below(128 << 20) as usize);
        assert_eq!(Lanes::check(good.geometry()), Some(good));
        let Geometry { hot_lines, arena_lines } = good.geometry();
        let geometry = match rng.below(4) {
            0 => Geometry { hot_lines: rng.next() as u32, arena_lines },
            1 => Geometry { hot_lines, arena_lines: rng.next() as u32 },
            2 => Geometry { hot_lines: rng.next() as u32, arena_lines: rng.next() as u32 },
            _ => Geometry { hot_lines: (hot_lines + 1).wrapping_sub(rng.below(3) as u32), arena_lines },
        };
        if let Some(lanes) = Lanes::check(geometry) {
            taken += 1;
            assert_eq!(lanes.geometry(), geometry);
            assert!(lanes.bytes() <= 65 << 20 && lanes.bytes() % 4096 == 0);
            assert!(geometry.hot_lines >= 60 && geometry.arena_lines >= Lanes::ARENA_LEAST);
        }
    }
    assert!(taken > 0);
    assert_eq!(Lanes::check(Geometry { hot_lines: u32::MAX, arena_lines: u32::MAX }), None);
}
