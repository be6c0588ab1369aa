//! How a producer stores payloads while its consumer is far, and which lines the consumer evicts.

mod support;

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use support::{Access, Machine, Memory, Tapped};
use weft_shm::{Consumer, Lanes, Producer};
use weft_wire::path::Peek;
use weft_wire::{record, Head, Kind};

/// A core that is far, by its distance in nanoseconds.
const FAR: u64 = 240;
/// Nanoseconds that the stores of a line take between near cores.
const QUICK: u64 = 5;
/// If they wait for each line.
const SLOW: u64 = 25;
/// If they touch pages for the first time.
const FAULTS: u64 = 500;

/// How many payloads of 4 KiB make a MiB.
const MIB: u32 = 256;
const PAYLOAD: [u8; 4096] = [7; 4096];

/// Lines of the arena.
const ARENA: u32 = 8 << 14;

/// What happened while messages were passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Seen {
    /// Messages that went past the caches.
    past: u32,
    /// Lines that the consumer evicted.
    evicted: u32,
}

/// Runs a program with a ring to a far consumer, on a machine whose stores take `store` nanoseconds a line. The program gets a function
/// that pushes a number of messages, each of which is read at once, and returns how many of them went past the caches.
fn on_a_machine(store: u64, program: impl Fn(&Machine, &mut dyn FnMut(Kind, &[u8], u32) -> u32)) {
    on(Machine::new(FAR, store), |machine, pass| {
        program(machine, &mut |kind, payload, n| pass(&[kind], payload, n).past)
    });
}

/// As [`on_a_machine`], on any machine. The function pushes several messages at once and returns all that was seen. Checks that only lines
/// that were read are evicted, one after the other.
fn on(machine: Machine, program: impl Fn(&Machine, &mut dyn FnMut(&[Kind], &[u8], u32) -> Seen)) {
    with_an_arena(ARENA, machine, program);
}

/// As [`on`], with an arena of this many lines.
fn with_an_arena(
    arena: u32,
    machine: Machine,
    program: impl Fn(&Machine, &mut dyn FnMut(&[Kind], &[u8], u32) -> Seen),
) {
    let memory = Memory::new(Lanes::new(16 << 10, arena as usize * 64));
    let machine = Arc::new(machine);
    let (producers, consumers) = (memory.map(), memory.map());
    let (seen, evicted_to) = (Cell::new(Seen::default()), Cell::new(None));
    // The last header that was looked at, whether one was in the hot lane since, and the lines of each record.
    let (looked, was_hot, lines) = (Cell::new(0), Cell::new(false), Cell::new(0));
    let first = (memory.lanes.bytes() / 64) as u32 - arena;
    let tap = |access| match access {
        Access::PastCaches => seen.set(Seen { past: seen.get().past + 1, ..seen.get() }),
        Access::Header(line) => {
            looked.set(line);
            was_hot.set(was_hot.get() || line < first);
        }
        Access::Evict(from, to) if from < to => {
            // At most to the end of the record that was popped just now.
            let read_to = looked.get() + lines.get();
            assert!(first <= from && to <= read_to, "{from} to {to}, read to {read_to}");
            // Lines that were read just before the consumer left the arena may stay in its cache.
            let (last, left) = (evicted_to.replace(Some(to)), was_hot.replace(false));
            let goes_on = last.is_none_or(|line| line == from || from == first || (left && line < from));
            assert!(goes_on, "{from} to {to} comes late");
            seen.set(Seen { evicted: seen.get().evicted + to - from, ..seen.get() });
        }
        _ => {}
    };
    let mut producer = Producer::new(Tapped::on(&producers, tap, machine.clone()), memory.lanes);
    let mut consumer = Consumer::new(Tapped::on(&consumers, tap, machine.clone()), memory.lanes);
    program(&machine, &mut |kinds, payload, messages| {
        seen.set(Seen::default());
        // Fifteen lines stay unused behind a request.
        let gap = if kinds.contains(&Kind::Request) { 15 } else { 0 };
        lines.set(record::lines(1, payload.len()) + gap);
        for number in 0..messages {
            for &kind in kinds {
                producer.push(Head::new(kind), &[number], payload).expect("room");
            }
            for _ in kinds {
                let Peek::Record(record) = consumer.peek() else { panic!("message {number} is missing") };
                assert_eq!((record.args, record.payload), (&[number][..], payload));
                consumer.pop();
            }
            consumer.release();
        }
        seen.get()
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
        // Streams of this size always go past the caches, except the first few before the producer knows how far its consumer is.
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
        // Far again: slow stores have to be seen once more.
        machine.distance.store(FAR, Relaxed);
        machine.store.store(QUICK, Relaxed);
        assert_eq!(pass(Kind::Request, &PAYLOAD, 8 * MIB), 0);
    });
}

/// A payload so long that it goes to the arena, and a number of messages of it that take more than one lap.
const STREAMED: (&[u8], u32) = (&PAYLOAD, ARENA / 64);

#[test]
fn a_far_consumer_evicts_what_it_read_of_a_stream() {
    on(Machine::new(FAR, QUICK).evicting(), |_, pass| {
        let (payload, lap) = STREAMED;
        pass(&[Kind::Send], payload, lap);
        let seen = pass(&[Kind::Send], payload, 8 * lap);
        assert_eq!(seen.past, 0, "with eviction it is stored through the caches");
        // All but the lines that are evicted with the next eighth of the lane.
        let lines = 8 * lap * 65;
        assert!((lines - ARENA / 8..=lines + 8 * 65).contains(&seen.evicted), "{seen:?} of {lines}");
    });
}

#[test]
fn lines_skipped_at_a_turn_are_not_evicted() {
    on(Machine::new(FAR, QUICK).evicting(), |_, pass| {
        let (payload, lap) = STREAMED;
        // Requests turn back early. A message of a stream behind a request asks for eviction before the turn is read.
        let seen = pass(&[Kind::Request, Kind::Send], payload, lap);
        assert!(seen.evicted > 0 && seen.evicted <= 2 * lap * 81, "{seen:?}");
    });
}

#[test]
fn nothing_else_is_evicted() {
    let (payload, lap) = STREAMED;
    let large = vec![7; 16 << 10];
    for (machine, kind, payload) in [
        // Near.
        (Machine::new(30, QUICK).evicting(), Kind::Send, payload),
        // A processor that cannot evict, or loses by it.
        (Machine::new(FAR, QUICK), Kind::Send, payload),
        // Requests: their lines stay in both caches, or have left them by themselves.
        (Machine::new(FAR, QUICK).evicting(), Kind::Request, payload),
        // Past the caches.
        (Machine::new(FAR, QUICK).evicting(), Kind::Send, &large),
    ] {
        on(machine, |_, pass| {
            pass(&[kind], payload, lap);
            assert_eq!(pass(&[kind], payload, 4 * lap).evicted, 0);
        });
    }
}

#[test]
fn streams_of_large_messages_go_past_the_caches_all_the_same() {
    on(Machine::new(FAR, QUICK).evicting(), |_, pass| {
        let large = vec![7; 16 << 10];
        pass(&[Kind::Send], &large, MIB);
        assert_eq!(pass(&[Kind::Send], &large, MIB).past, MIB);
        assert_eq!(pass(&[Kind::Send], &large[..(16 << 10) - 8], MIB).past, 0);
    });
}

#[test]
fn between_near_cores_only_large_messages_of_streams_through_a_small_arena_go_past_the_caches() {
    let large = vec![7; 16 << 10];
    for (arena, evicts, kind, payload, goes_past) in [
        (8 << 10, true, Kind::Send, &large[..], true),
        (8 << 10, true, Kind::Send, &large[..(16 << 10) - 8], false),
        (8 << 10, true, Kind::Request, &large, false),
        // In a larger arena lines leave the producer's cache before they are written again.
        (16 << 10, true, Kind::Send, &large, false),
        // On other processors it was not measured.
        (8 << 10, false, Kind::Send, &large, false),
    ] {
        let mut near = Machine::new(30, QUICK);
        near.evicts = evicts;
        with_an_arena(arena, near, |_, pass| {
            let past = if goes_past { MIB } else { 0 };
            assert_eq!(pass(&[kind], payload, MIB).past, past, "{arena} lines, {kind:?} of {} B", payload.len());
        });
    }
}

#[test]
fn of_streams_of_one_line_only_lines_of_the_arena_are_evicted() {
    on(Machine::new(FAR, QUICK).evicting(), |_, pass| {
        let (payload, bursts) = (&PAYLOAD[..16], 400);
        // More than the hot lane holds, so that the stream comes to the arena, and stays there.
        let burst = [Kind::Send; 600];
        let all = bursts * burst.len() as u32;
        let seen = pass(&burst, payload, bursts);
        assert!((all - ARENA / 8 - 300..=all).contains(&seen.evicted), "{seen:?} of {all}");
        // One by one, messages go back to the hot lane.
        pass(&[Kind::Send], payload, 20_000);
        assert_eq!(pass(&[Kind::Send], payload, 4_000).evicted, 0);
        // And once more to the arena, behind the records that were read there.
        let seen = pass(&burst, payload, bursts);
        assert!((all - ARENA / 4 - 300..=all).contains(&seen.evicted), "{seen:?} of {all}");
    });
}
