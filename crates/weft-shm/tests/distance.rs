//! A consumer right behind a stream of one-way messages lets the producer run ahead, but never for long, and never behind other messages.
// A debug build is too slow for a stream, and without a clock no distance is kept.
#![cfg(all(not(loom), not(debug_assertions), target_arch = "x86_64"))]

mod support;

use std::time::{Duration, Instant};
use support::{visit, Memory, VISIT_MOST as MOST};
use weft_shm::{Consumer, Lanes, MapMem, Producer};
use weft_wire::record::URGENT;
use weft_wire::{Head, Kind};

/// Many times longer than any wait, because other programs may run on the machine.
const LONG: Duration = Duration::from_secs(5);

struct Pair {
    producer: Producer<MapMem>,
    consumer: Consumer<MapMem>,
    pushed: u32,
    taken: u32,
}

impl Pair {
    fn new() -> Pair {
        let memory = Memory::new(Lanes::new(16 << 10, 1 << 20));
        Pair { producer: memory.producer(), consumer: memory.consumer(), pushed: 0, taken: 0 }
    }

    fn push(&mut self, kind: Kind) {
        self.push_marked(kind, 0);
    }

    fn push_marked(&mut self, kind: Kind, slot: u16) {
        self.producer.push(Head { slot, ..Head::new(kind) }, &[self.pushed], &[]).expect("there is room");
        self.pushed += 1;
    }

    fn visit(&mut self) -> u32 {
        let taken = &mut self.taken;
        visit(&mut self.consumer, |record| {
            assert_eq!(record.args, [*taken]);
            *taken += 1;
        })
    }

    /// Messages, a few for each visit, until the consumer keeps its distance.
    fn chase(&mut self) {
        let start = Instant::now();
        while self.consumer.allowance(MOST) == MOST {
            (0..4).for_each(|_| self.push(Kind::Send));
            self.visit();
            assert!(start.elapsed() < LONG, "no distance is kept behind a fast stream");
        }
    }
}

#[test]
fn a_stream_gets_ahead_and_is_followed_at_a_distance() {
    // The wait ends by itself after some microseconds, which happens too early if the thread is preempted just then: so try often.
    let followed = (0..100).any(|_| {
        let mut pair = Pair::new();
        pair.chase();
        (0..1000).for_each(|_| pair.push(Kind::Send));
        while pair.visit() > 0 {}
        pair.taken < pair.pushed && pair.taken > pair.pushed - 200
    });
    assert!(followed);
}

#[test]
fn the_end_of_a_stream_is_taken_soon() {
    let mut pair = Pair::new();
    pair.chase();
    pair.push(Kind::Send);
    let start = Instant::now();
    while pair.taken < pair.pushed {
        pair.visit();
        assert!(start.elapsed() < LONG, "{} of {} were taken", pair.taken, pair.pushed);
    }
}

#[test]
fn a_request_behind_a_stream_does_not_wait() {
    for _ in 0..100 {
        let mut pair = Pair::new();
        pair.chase();
        pair.push(Kind::Request);
        (0..70).for_each(|_| pair.push(Kind::Send));
        assert_eq!(pair.visit(), MOST);
        assert!(pair.taken <= pair.pushed);
    }
}

#[test]
fn urgent_messages_are_no_stream_however_fast_they_come() {
    let mut pair = Pair::new();
    for _ in 0..10_000 {
        // Two at a time: after messages that come one by one a consumer waits for another reason (see `quiet.rs`).
        (0..2).for_each(|_| pair.push_marked(Kind::Send, URGENT));
        assert_eq!((pair.consumer.allowance(MOST), pair.visit()), (MOST, 2));
    }
    pair.chase();
    pair.push_marked(Kind::Send, URGENT);
    assert_eq!(pair.consumer.allowance(MOST), MOST);
}

#[test]
fn a_consumer_that_asks_for_the_bell_takes_everything() {
    for _ in 0..100 {
        let mut pair = Pair::new();
        pair.chase();
        pair.push(Kind::Send);
        pair.consumer.set_attention(true);
        assert_eq!(pair.consumer.allowance(MOST), MOST);
    }
}
