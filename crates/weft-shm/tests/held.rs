//! Records that the consumer refused and holds: the producer finds them when the consumer dies, and gets their room back when
//! they are let go.
#![cfg(not(loom))]

mod support;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use std::collections::VecDeque;
use support::{Contents, Memory};
use weft_shm::{Consumer, Lanes, MapMem, Producer};
use weft_wire::path::{Fate, Peek};

#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    Take,
    Refuse,
    LetGo,
}

/// Operations with few enough small records not to fill half of the hot lane, and some records that go through the arena.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![6 => 0usize..100, 1 => 5_000usize..6_000];
    let op = prop_oneof![
        4 => len.prop_map(Op::Push),
        3 => Just(Op::Take),
        2 => Just(Op::Refuse),
        1 => Just(Op::LetGo),
    ];
    proptest::collection::vec(op, 1..60)
}

struct Pair {
    producer: Producer<MapMem>,
    consumer: Consumer<MapMem>,
    /// All records since the first that the producer may find, with their fates: `None` for those not taken.
    records: VecDeque<(Contents, Option<Fate>)>,
    pushed: usize,
}

impl Pair {
    fn push(&mut self, len: usize) {
        let mut contents = Contents::new(self.pushed as u64, self.pushed % 17, len);
        contents.head.kind = weft_wire::Kind::Send;
        contents.head.credit = weft_wire::Credit::default();
        if self.producer.push(contents.head, &contents.args, &contents.payload).is_ok() {
            self.pushed += 1;
            self.records.push_back((contents, None));
        }
    }

    fn take(&mut self, refusal: Option<u8>) -> TestCaseResult {
        let next = self.records.iter_mut().find(|(_, fate)| fate.is_none());
        match (self.consumer.peek(), next) {
            (Peek::Record(record), Some((wanted, fate))) => {
                prop_assert!(wanted.is(&record));
                *fate = Some(refusal.map_or(Fate::Done, Fate::Refused));
            }
            (Peek::Empty, None) => return Ok(()),
            (got, wanted) => return Err(TestCaseError::fail(format!("{got:?} instead of {wanted:?}"))),
        }
        if let Some(reason) = refusal {
            self.consumer.hold(reason);
        }
        self.consumer.pop();
        Ok(())
    }

    fn let_go(&mut self) {
        if let Some(oldest) = self.records.iter_mut().find(|(_, fate)| matches!(fate, Some(Fate::Refused(_)))) {
            oldest.1 = Some(Fate::Done);
            self.consumer.let_go(1);
        }
    }

    /// Checks what the producer would find if the consumer died now.
    fn check(&mut self) -> TestCaseResult {
        self.consumer.release();
        while self.records.front().is_some_and(|(_, fate)| *fate == Some(Fate::Done)) {
            self.records.pop_front();
        }
        let left = self.producer.abandoned();
        prop_assert_eq!(left.len(), self.records.len());
        let last_taken = self.records.iter().rposition(|(_, fate)| fate.is_some());
        for (at, (left, (wanted, fate))) in left.iter().zip(&self.records).enumerate() {
            let fate = match *fate {
                // The producer cannot know whether the last one is still in hand.
                Some(Fate::Done) if Some(at) == last_taken => Fate::InHand,
                fate => fate.unwrap_or(Fate::Untouched),
            };
            prop_assert_eq!(left.fate, fate, "record {} of {}", at, self.records.len());
            prop_assert_eq!(left.head, wanted.head);
            if fate != Fate::Done {
                prop_assert!(left.args == wanted.args && left.payload == wanted.payload);
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn held_records_are_found_with_all_that_came_behind_them(before in 0usize..2_000, large in 0usize..20, ops in ops()) {
        let lanes = Lanes::new(16 << 10, 512 << 10);
        let memory = Memory::new(lanes);
        let (producer, consumer) = (Producer::new(memory.map(), lanes), Consumer::new(memory.map(), lanes));
        let mut pair = Pair { producer, consumer, records: VecDeque::new(), pushed: 0 };
        for number in 0..before {
            pair.push(if number % 100 < large { 5_000 } else { number % 90 });
            pair.take(None)?;
            pair.consumer.release();
            pair.records.clear();
        }
        for op in ops {
            match op {
                Op::Push(len) => pair.push(len),
                Op::Take => pair.take(None)?,
                Op::Refuse => pair.take(Some(9))?,
                Op::LetGo => pair.let_go(),
            }
            pair.check()?;
        }
        while pair.records.iter().any(|(_, fate)| matches!(fate, Some(Fate::Refused(_)))) {
            pair.let_go();
        }
        while pair.records.iter().any(|(_, fate)| fate.is_none()) {
            pair.take(None)?;
        }
        pair.consumer.release();
        prop_assert!(pair.producer.abandoned().is_empty());
        prop_assert!(pair.producer.has_room(1_000), "all room is there again");
    }
}

#[test]
fn what_is_held_never_takes_more_than_half_a_lane() {
    let lanes = Lanes::new(16 << 10, 512 << 10);
    let memory = Memory::new(lanes);
    let (mut producer, mut consumer) = (Producer::new(memory.map(), lanes), Consumer::new(memory.map(), lanes));
    // Nobody lets a record go, and the ring goes on all the same.
    for number in 0..200_000u64 {
        let mut contents = Contents::new(number, 0, 40);
        contents.head.kind = weft_wire::Kind::Send;
        contents.head.credit = weft_wire::Credit::default();
        producer.push(contents.head, &contents.args, &contents.payload).expect("room");
        assert!(matches!(consumer.peek(), Peek::Record(_)));
        consumer.hold(1);
        consumer.pop();
    }
    let held = producer.abandoned();
    assert!((50..4_100).contains(&held.len()), "{}", held.len());
    assert!(held.iter().all(|record| record.fate == Fate::Refused(1)));
    consumer.let_go(200_000);
    assert_eq!(producer.abandoned(), []);
}
