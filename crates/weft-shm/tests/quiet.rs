//! Two sides that send each other one message at a time, and then bursts, receive all of them.
#![cfg(not(loom))]

mod support;

use std::thread;
use std::time::{Duration, Instant};
use support::{visit, Memory};
use weft_shm::{Consumer, Lanes, MapMem, Producer};
use weft_wire::path::PushError;
use weft_wire::{Head, Kind};

const ROUND_TRIPS: u32 = 20_000;
const BURSTS: u32 = 200;
const BURST: u32 = 30;

/// Many times longer than any wait, because other programs may run on the machine.
const LONG: Duration = Duration::from_secs(60);

struct Side {
    producer: Producer<MapMem>,
    consumer: Consumer<MapMem>,
    kind: Kind,
    sent: u32,
    taken: u32,
}

impl Side {
    fn send(&mut self) {
        while let Err(error) = self.producer.push(Head::new(self.kind), &[self.sent], &[]) {
            assert_eq!(error, PushError::Full);
        }
        self.sent += 1;
    }

    fn visit(&mut self) -> u32 {
        let taken = &mut self.taken;
        visit(&mut self.consumer, |record| {
            assert_eq!(record.args, [*taken]);
            *taken += 1;
        })
    }

    fn take_all(&mut self, upto: u32) {
        let start = Instant::now();
        while self.taken < upto {
            if self.visit() == 0 {
                thread::yield_now();
            }
            assert!(start.elapsed() < LONG, "{} of {upto} were taken", self.taken);
        }
    }
}

#[test]
fn all_messages_are_taken_one_by_one_and_in_bursts() {
    let lanes = Lanes::new(16 << 10, 512 << 10);
    let (there, back) = (Memory::new(lanes), Memory::new(lanes));
    let side = |out: &Memory, home: &Memory, kind| Side {
        producer: out.producer(),
        consumer: home.consumer(),
        kind,
        sent: 0,
        taken: 0,
    };
    let (mut asker, mut answerer) = (side(&there, &back, Kind::Request), side(&back, &there, Kind::Reply));
    let all = ROUND_TRIPS + BURSTS * (BURST + 100);
    let answers = thread::spawn(move || {
        while answerer.sent < all {
            answerer.take_all(answerer.sent + 1);
            while answerer.sent < answerer.taken {
                answerer.send();
            }
        }
    });
    let mut ask = |messages: u32| {
        (0..messages).for_each(|_| asker.send());
        asker.take_all(asker.sent);
    };
    (0..ROUND_TRIPS).for_each(|_| ask(1));
    for _ in 0..BURSTS {
        ask(BURST);
        (0..100).for_each(|_| ask(1));
    }
    answers.join().expect("it answered all");
}
