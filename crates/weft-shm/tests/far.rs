//! How a producer stores payloads while its consumer is far.

mod support;

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use support::{Access, Machine, Memory, Tapped};
use weft_shm::{Lanes, Producer};
use weft_wire::path::Peek;
use weft_wire::{Head, Kind};

/// A core that is far, by its distance in nanoseconds.
const FAR: u64 = 240;
/// Stores of a line, in nanoseconds: as between near cores, and such as wait for each line.
const QUICK: u64 = 5;
const SLOW: u64 = 25;
/// Those that touch pages for the first time.
const FAULTS: u64 = 500;

/// Messages of 4 KiB, and how many make a MiB.
const MIB: u32 = 256;
const PAYLOAD: [u8; 4096] = [7; 4096];

/// A ring to a far consumer, on a machine with such stores, and a program. That is given what pushes so many messages of that payload, each of which is read
/// at once, and says how many of them went past the caches.
fn on_a_machine(store: u64, program: impl Fn(&Machine, &mut dyn FnMut(Kind, &[u8], u32) -> u32)) {
    let memory = Memory::new(Lanes::new(16 << 10, 8 << 20));
    let (map, past) = (memory.map(), Cell::new(0));
    let machine = Arc::new(Machine::new(FAR, store));
    let tap = |access| past.set(past.get() + u32::from(access == Access::PastCaches));
    let mut producer = Producer::new(Tapped::on(&map, tap, machine.clone()), memory.lanes);
    let mut consumer = memory.consumer();
    program(&machine, &mut |kind, payload, messages| {
        let before = past.get();
        for number in 0..messages {
            producer.push(Head::new(kind), &[number], payload).expect("room");
            let Peek::Record(record) = consumer.peek() else { panic!("message {number} is missing") };
            assert_eq!((record.args, record.payload), (&[number][..], payload));
            consumer.pop();
            consumer.release();
        }
        past.get() - before
    });
}

#[test]
fn requests_go_past_the_caches_once_stores_were_slow_for_long_and_streams_at_once() {
    on_a_machine(SLOW, |_, pass| {
        assert_eq!(pass(Kind::Request, &PAYLOAD, MIB), 0, "it is not known yet");
        pass(Kind::Request, &PAYLOAD, 2 * MIB);
        assert_eq!(pass(Kind::Request, &PAYLOAD, MIB), MIB);
    });
    on_a_machine(QUICK, |_, pass| {
        assert_eq!(pass(Kind::Request, &PAYLOAD, 8 * MIB), 0);
        // The first few before the producer knows how far its consumer is.
        assert!(pass(Kind::Send, &PAYLOAD, MIB) > MIB - 10);
    });
}

#[test]
fn only_requests_whose_stores_can_be_seen_decide_and_only_requests_follow() {
    let (shorter, short) = (&PAYLOAD[..1024], &PAYLOAD[..1016]);
    on_a_machine(SLOW, |_, pass| {
        assert_eq!(pass(Kind::Send, short, 32 * MIB), 0);
        // These go there by themselves; the first few before the producer knows how far its consumer is.
        assert!(pass(Kind::Send, shorter, 32 * MIB) > 32 * MIB - 10);
        assert_eq!(pass(Kind::Request, shorter, 32 * MIB), 0);
        assert_eq!(pass(Kind::Request, &PAYLOAD, MIB), 0, "it is not known yet");
        pass(Kind::Request, &PAYLOAD, 2 * MIB);
        assert_eq!(pass(Kind::Request, shorter, MIB), MIB);
        assert_eq!(pass(Kind::Send, short, MIB), 0);
    });
}

#[test]
fn pages_touched_for_the_first_time_do_not_count_as_slow_stores() {
    on_a_machine(FAULTS, |machine, pass| {
        assert_eq!(pass(Kind::Request, &PAYLOAD, MIB), 0);
        machine.store.store(QUICK, Relaxed);
        assert_eq!(pass(Kind::Request, &PAYLOAD, 8 * MIB), 0);
    });
}

#[test]
fn a_consumer_that_comes_near_gets_its_lines_through_the_caches_again() {
    on_a_machine(SLOW, |machine, pass| {
        pass(Kind::Request, &PAYLOAD, 4 * MIB);
        assert_eq!(pass(Kind::Request, &PAYLOAD, MIB), MIB);
        machine.distance.store(20, Relaxed);
        pass(Kind::Request, &PAYLOAD, MIB);
        assert_eq!(pass(Kind::Request, &PAYLOAD, MIB), 0);
        // Far again, it has to be seen once more.
        machine.distance.store(FAR, Relaxed);
        machine.store.store(QUICK, Relaxed);
        assert_eq!(pass(Kind::Request, &PAYLOAD, 8 * MIB), 0);
    });
}
