//! The ring compared with a plain queue: whatever is pushed and popped, in whatever order and sizes, both hold the same records.
//!
//! Random, with shrinking, and repeated by `WEFT_SEED=...` as printed.

mod support;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};
use std::collections::VecDeque;
use std::fmt::Debug;
use support::{pitch, seed, Contents, Memory, Rng};
use weft_shm::mem::CONTROL_LINES;
use weft_shm::{Consumer, Lanes, MapMem, Producer, RingMem};
use weft_wire::path::{Abandoned, Fate, Glance, Peek, PushError};
use weft_wire::record::payload_at;
use weft_wire::{Head, Kind, LINE, MAX_ARGS, MAX_PAYLOAD};

/// What a test does to a ring.
#[derive(Clone, Debug)]
enum Op {
    /// Pushes a record with this many arguments and payload bytes.
    Push(usize, usize),
    /// Pushes this many records, with this many payload bytes each.
    Burst(u16, usize),
    /// Pushes and pops in turns.
    Turns(u16, usize),
    /// As `Turns`, but the consumer publishes its cursor each time, as it does before it goes to rest.
    CalmTurns(u16, usize),
    /// Pops this many records.
    Pop(u16),
    /// Looks at the next record and leaves it.
    Look,
    Release,
    GiveBack,
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..64usize, 3 => 0..600usize, 2 => 0..6000usize, 1 => 0..=MAX_PAYLOAD]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..=MAX_ARGS, len()).prop_map(|(args, len)| Op::Push(args, len)),
        2 => (1..300u16, 0..200usize).prop_map(|(n, len)| Op::Burst(n, len)),
        2 => (1..200u16, 0..200usize).prop_map(|(n, len)| Op::Turns(n, len)),
        1 => (1..3000u16, 0..40usize).prop_map(|(n, len)| Op::CalmTurns(n, len)),
        1 => (1..40u16, 0..=MAX_PAYLOAD).prop_map(|(n, len)| Op::CalmTurns(n, len)),
        3 => (1..20u16).prop_map(Op::Pop),
        1 => (1..400u16).prop_map(Op::Pop),
        1 => Just(Op::Look),
        1 => Just(Op::Release),
        1 => Just(Op::GiveBack),
    ]
}

fn lanes() -> impl Strategy<Value = Lanes> {
    // The largest record of the arena is never smaller than that of the hot lane, as in all lanes of `Lanes::new`.
    let tiny = (4..40u32, 0..160u32).prop_map(|(hot, more)| Lanes::tiny(hot, hot + more));
    let normal = (0..64usize, 0..2048usize).prop_map(|(hot, arena)| Lanes::new(hot << 10, arena << 10));
    prop_oneof![tiny, normal]
}

/// A ring and the queue that it must be like.
struct Pair {
    producer: Producer<MapMem>,
    consumer: Consumer<MapMem>,
    queue: VecDeque<Contents>,
    pushed: u64,
    largest: u32,
    /// The last record popped. If the consumer dies it may seem to be still in hand.
    last: Option<Contents>,
    looked: bool,
}

impl Pair {
    fn new(lanes: Lanes) -> Pair {
        let memory = Memory::new(lanes);
        let (producer, consumer) = (memory.producer(), memory.consumer());
        let largest = lanes.geometry().arena_lines / 4;
        Pair { producer, consumer, queue: VecDeque::new(), pushed: 0, largest, last: None, looked: false }
    }

    /// Pushes a record if there is room for it, and compares the result with that of `has_room`.
    fn push(&mut self, args: usize, len: usize) -> Result<bool, TestCaseError> {
        let contents = Contents::new(self.pushed, args, len);
        if contents.pitch() > self.largest {
            return Ok(false);
        }
        let room = self.producer.has_room(contents.lines());
        match self.producer.push(contents.head, &contents.args, &contents.payload) {
            Ok(()) => {
                self.pushed += 1;
                self.queue.push_back(contents);
                Ok(true)
            }
            Err(error) => {
                prop_assert_eq!(error, PushError::Full);
                prop_assert!(!room, "{} lines refused, where has_room saw room", contents.lines());
                prop_assert!(!self.queue.is_empty(), "an empty ring refused {} lines", contents.lines());
                Ok(false)
            }
        }
    }

    fn look(&mut self) -> Result<bool, TestCaseError> {
        // `glance` agrees with `peek`, unless it says `More`.
        match (self.consumer.glance(), self.queue.front()) {
            (Glance::Empty, None) | (Glance::More, Some(_)) => {}
            (Glance::Record(record), Some(wanted)) => {
                prop_assert!(wanted.is(&record), "{:?} instead of {:?}", record.head, wanted.head);
            }
            (got, wanted) => return Err(TestCaseError::fail(format!("glanced {got:?} instead of {wanted:?}"))),
        }
        match (self.consumer.peek(), self.queue.front()) {
            (Peek::Empty, None) => Ok(false),
            (Peek::Record(record), Some(wanted)) => {
                prop_assert!(wanted.is(&record), "{:?} instead of {:?}", record.head, wanted.head);
                self.looked = true;
                Ok(true)
            }
            (got, wanted) => Err(TestCaseError::fail(format!("{got:?} instead of {wanted:?}"))),
        }
    }

    fn pop(&mut self) -> Result<bool, TestCaseError> {
        if !self.look()? {
            return Ok(false);
        }
        self.consumer.pop();
        self.last = self.queue.pop_front();
        self.looked = false;
        Ok(true)
    }

    fn apply(&mut self, op: &Op) -> TestCaseResult {
        match *op {
            Op::Push(args, len) => drop(self.push(args, len)?),
            Op::Burst(n, len) => {
                for _ in 0..n {
                    self.push(1, len)?;
                }
            }
            Op::Turns(n, len) => {
                for _ in 0..n {
                    self.push(2, len)?;
                    self.pop()?;
                }
            }
            Op::CalmTurns(n, len) => {
                for _ in 0..n {
                    self.push(0, len)?;
                    self.pop()?;
                    self.consumer.release();
                }
            }
            Op::Pop(n) => {
                for _ in 0..n {
                    self.pop()?;
                }
            }
            Op::Look => drop(self.look()?),
            Op::Release => self.consumer.release(),
            Op::GiveBack => drop(self.producer.give_back_arena()),
        }
        Ok(())
    }

    /// Checks what the producer would say of the records if the consumer died now.
    fn check_abandoned(&mut self) -> TestCaseResult {
        let mut left = VecDeque::from(self.producer.abandoned());
        let same = |left: &Abandoned, wanted: &Contents| {
            (left.head, &left.args, &left.payload) == (wanted.head, &wanted.args, &wanted.payload)
        };
        let wanted = if self.looked { self.queue.pop_front() } else { self.last.take() };
        if self.looked || left.front().is_some_and(|first| first.fate == Fate::InHand) {
            let first = left.pop_front().expect("the record in hand");
            prop_assert_eq!(first.fate, Fate::InHand);
            prop_assert!(wanted.is_some_and(|wanted| same(&first, &wanted)), "in hand: {:?}", first.head);
        }
        prop_assert_eq!(left.len(), self.queue.len());
        for (left, wanted) in left.iter().zip(&self.queue) {
            prop_assert_eq!(left.fate, Fate::Untouched);
            prop_assert!(same(left, wanted), "{:?} instead of {:?}", left.head, wanted.head);
        }
        Ok(())
    }
}

/// Runs a property with the seed that this run has.
fn check<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value) -> TestCaseResult)
where
    S::Value: Debug,
{
    let mut rng = Rng(seed());
    let bytes: Vec<u8> = (0..4).flat_map(|_| rng.next().to_le_bytes()).collect();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    if let Err(failure) = runner.run(&strategy, test) {
        panic!("{failure}");
    }
}

fn ops(most: usize) -> impl Strategy<Value = (Lanes, Vec<Op>)> {
    (lanes(), proptest::collection::vec(op(), 1..most))
}

#[test]
fn the_ring_is_a_queue() {
    check(400, ops(100), |(lanes, ops)| {
        let mut pair = Pair::new(lanes);
        ops.iter().try_for_each(|op| pair.apply(op))?;
        while pair.pop()? {}
        prop_assert!(pair.queue.is_empty(), "{} records lost", pair.queue.len());
        Ok(())
    });
}

#[test]
fn a_drained_ring_takes_any_legal_record() {
    check(400, (ops(40), 0..=MAX_ARGS, len()), |((lanes, ops), args, len)| {
        let mut pair = Pair::new(lanes);
        ops.iter().try_for_each(|op| pair.apply(op))?;
        while pair.pop()? {}
        let contents = Contents::new(pair.pushed, args, len);
        // `has_room` does not know whether a record belongs to a stream, and counts the unused lines in any case.
        if pitch(contents.lines(), false) <= pair.largest {
            prop_assert!(pair.producer.has_room(contents.lines()));
            prop_assert!(pair.push(args, len)?);
            prop_assert!(pair.pop()?);
        }
        Ok(())
    });
}

#[test]
fn abandoned_records_are_those_not_taken_oldest_first() {
    check(400, ops(40), |(lanes, ops)| {
        let mut pair = Pair::new(lanes);
        ops.iter().try_for_each(|op| pair.apply(op))?;
        pair.check_abandoned()
    });
}

/// The consumer stalls in the arena; the producer has gone back to the hot lane, filled it, and is in the arena again.
#[test]
fn abandoned_records_in_three_parts_are_oldest_first() {
    let lanes = Lanes::new(4096, 512 << 10);
    let back = support::pushes_until_back(lanes);
    let mut pair = Pair::new(lanes);
    let run = |pair: &mut Pair, ops: &[Op]| ops.iter().try_for_each(|op| pair.apply(op)).expect("a queue");
    // Into the arena by a large record; the consumer stays a few records behind until the producer has gone back.
    run(&mut pair, &[Op::Push(0, support::INTO_ARENA), Op::Pop(1), Op::Burst(10, 0)]);
    for _ in 10..back {
        run(&mut pair, &[Op::Push(0, 0), Op::Pop(1), Op::Release]);
    }
    run(&mut pair, &[Op::Burst(100, 0)]);
    assert_eq!(pair.queue.len(), 110);
    pair.check_abandoned().expect("oldest first");
}

#[test]
fn stores_by_lines_and_past_the_caches_store_the_same() {
    let lanes = Lanes::new(4096, 512 << 10);
    let memories = [Memory::new(lanes), Memory::new(lanes), Memory::new(lanes)];
    let [mem, others @ ..] = [0, 1, 2].map(|which| memories[which].map());
    let cases = (CONTROL_LINES..2000u32, 0..=MAX_ARGS, len(), 0..16usize);
    check(2000, cases, |(line, args, len, skip)| {
        // Begins anywhere in its first words, so that all alignments of the source occur.
        let contents = Contents::new(7, args, len + skip);
        let payload = &contents.payload[skip..];
        mem.write(line, 1, &contents.args, payload);
        others[0].write_past_caches(line, 1, &contents.args, payload);
        others[1].write_by_lines(line, 1, &contents.args, payload);
        let bytes = payload_at(args, len) + len;
        let behind = (bytes + 64).next_multiple_of(8);
        let stored = |mem: &MapMem| {
            let mut copy = Vec::new();
            mem.copy_payload(line, 8, behind - 8, &mut copy);
            copy
        };
        for other in &others {
            prop_assert!(stored(&mem) == stored(other));
        }
        Ok(())
    });
}

#[test]
fn a_full_ring_refuses_then_recovers() {
    for lanes in [Lanes::tiny(12, 12), Lanes::tiny(12, 40), Lanes::new(4096, 512 << 10)] {
        let mut pair = Pair::new(lanes);
        for _ in 0..3 {
            while pair.push(4, 30).expect("a queue") {}
            assert!(!pair.producer.has_room(1));
            while pair.pop().expect("a queue") {}
            assert!(pair.producer.has_room(1));
        }
    }
}

#[test]
fn a_record_above_the_limits_is_refused_and_changes_nothing() {
    let mut pair = Pair::new(Lanes::new(4096, 512 << 10));
    let head = Head::new(Kind::Send);
    assert_eq!(pair.producer.push(head, &[0; MAX_ARGS + 1], &[]), Err(PushError::TooLarge));
    assert_eq!(pair.producer.push(head, &[], &[0; MAX_PAYLOAD + 1]), Err(PushError::TooLarge));
    assert!(matches!(pair.consumer.peek(), Peek::Empty));
    assert!(pair.push(MAX_ARGS, MAX_PAYLOAD).expect("a queue"));
    assert!(pair.pop().expect("a queue"));
}

#[test]
fn an_arena_is_given_back_when_both_sides_left_it_and_works_again() {
    let lanes = Lanes::new(4096, 512 << 10);
    let back = support::pushes_until_back(lanes);
    let mut pair = Pair::new(lanes);
    assert!(!pair.producer.give_back_arena(), "given back though never used");
    for round in 0..3 {
        assert!(pair.push(0, support::INTO_ARENA).expect("a queue"));
        assert!(!pair.producer.give_back_arena(), "in round {round} given back with a record in it");
        assert!(pair.pop().expect("a queue"));
        pair.consumer.release();
        // Where in the arena a round begins moves the moment of return a little, from the second round on.
        let mut pushes = 0;
        loop {
            assert!(pair.push(0, 8).expect("a queue"));
            pushes += 1;
            assert!(!pair.producer.give_back_arena(), "in round {round} given back before the consumer left");
            assert!(pair.pop().expect("a queue"));
            pair.consumer.release();
            if pair.producer.give_back_arena() {
                break;
            }
            assert!(pushes < 3 * back, "in round {round} never given back");
        }
    }
    while pair.pop().expect("a queue") {}
}

/// The bytes of memory that a ring uses after 2,000 messages of `BYTES`, each read before the next one. Also checks the producer's traffic.
fn memory_used_by_turns<const BYTES: usize>(kind: Kind) -> u64 {
    const MESSAGES: u64 = 2000;
    let memory = Memory::new(Lanes::new(16 << 10, 8 << 20));
    let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
    let payload = [7; BYTES];
    for number in 0..MESSAGES {
        producer.push(Head::new(kind), &[number as u32], &payload).expect("room");
        let Peek::Record(record) = consumer.peek() else { panic!("message {number} is missing") };
        assert_eq!((record.args, record.payload), (&[number as u32][..], &payload[..]));
        consumer.pop();
        consumer.release();
        let traffic = producer.traffic();
        assert_eq!(traffic.pushed, traffic.taken, "after message {number}");
    }
    // A few more lines than the messages' lead from one lane to the other, or fill the end of one.
    let lines = producer.traffic().pushed / LINE as u64;
    let each = u64::from(pitch(weft_wire::record::lines(1, BYTES), kind == Kind::Send));
    assert!((each * MESSAGES..(each + 2) * MESSAGES).contains(&lines), "{lines} lines");
    rustix::fs::fstat(memory.fd()).expect("own memfd").st_blocks as u64 * 512
}

#[test]
fn requests_that_are_read_at_once_use_a_part_of_the_arena_and_streams_all_of_it() {
    let (requests, stream) = (memory_used_by_turns::<8192>(Kind::Request), memory_used_by_turns::<8192>(Kind::Send));
    assert!(requests <= 3 << 19, "requests: {requests} bytes");
    assert!(stream >= 8 << 20, "a stream: {stream} bytes");
}

#[test]
fn long_records_are_in_the_arena_from_the_first_and_shorter_ones_in_the_hot_lane() {
    let (long, shorter) = (memory_used_by_turns::<1024>(Kind::Request), memory_used_by_turns::<900>(Kind::Request));
    assert!(long >= 1 << 20, "long: {long} bytes");
    assert!(shorter <= 64 << 10, "shorter: {shorter} bytes");
}

/// A consumer that stays two records behind a producer that turns back to the arena's beginning again and again.
#[test]
fn unread_records_on_both_sides_of_a_turn_are_counted_and_abandoned() {
    let memory = Memory::new(Lanes::new(4096, 2 << 20));
    let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
    let payload = [7; 20_000];
    let lines = pitch(weft_wire::record::lines(1, payload.len()), false);
    for number in 0..400 {
        producer.push(Head::new(Kind::Request), &[number], &payload).expect("room");
        if number < 2 {
            continue;
        }
        // Two lines lead from the hot lane to the arena, and from its end to the beginning.
        let traffic = producer.traffic();
        let unread = (traffic.pushed - traffic.taken) / LINE as u64;
        assert!((3 * u64::from(lines)..3 * u64::from(lines) + 3).contains(&unread), "{unread} lines at {number}");
        let Peek::Record(record) = consumer.peek() else { panic!("message {number} is missing") };
        assert_eq!(record.args, [number - 2]);
        consumer.pop();
        consumer.release();
        let untouched = producer.abandoned().into_iter().filter(|record| record.fate == Fate::Untouched);
        assert!(untouched.map(|record| record.args[0]).eq(number - 1..=number), "after {number}");
    }
}
