//! Paused streams: the reader keeps nothing of them, nothing is lost, and other streams go on.

use crate::hostile::Liar;
use crate::world::*;
use std::time::Duration;
use weft_transport::testing::Faults;
use weft_transport::{Random, SharedRoom, Verdict};
use weft_wire::frame::{Frame, Pause, PauseReason, StreamId, FIRST_OFFSET};
use weft_wire::path::{Fate, Peek};
use weft_wire::{Head, Kind, Reason};

const FIRST: StreamId = StreamId(1);
const SECOND: StreamId = StreamId(2);
const START: u32 = FIRST_OFFSET as u32;

fn run(world: &mut World) {
    world.run(micros(100_000)).expect("in order");
}

/// Two hosts with two streams, the first of which is not read at host 1.
fn with_deaf_stream() -> World {
    let mut world = World::new(2, 1);
    // Held bytes are only counted if they are limited.
    world.hosts[1].settings.held_most = 1 << 30;
    run(&mut world);
    world.hosts[0].program.bytes_most = 4000;
    world.hosts[1].program.bytes_most = 4000;
    world.hosts[1].program.deaf = vec![FIRST];
    world
}

#[test]
fn a_paused_stream_keeps_nothing_and_goes_on_where_it_was_stopped() {
    let mut world = with_deaf_stream();
    world.order(0, 60);
    run(&mut world);
    assert_eq!(world.hosts[1].program.got[&SECOND], 60);
    let held = world.channel(1).held();
    assert!(held > 60_000, "{held} bytes of a stream that nobody reads");
    assert!(world.channel(1).pause(FIRST, PauseReason::QueueFull, 0));
    assert_eq!(world.channel(1).held(), 0);
    assert!(world.channel(1).memory() < 16 << 10, "its memory is given back");
    run(&mut world);
    assert!(world.channel(0).is_paused(FIRST) && !world.channel(0).is_paused(SECOND));
    // Nothing of the paused stream is sent meanwhile, and the other stream goes on.
    let bytes = world.bytes[0];
    world.hosts[0].program.to_send.insert(SECOND, (70, 60));
    world.hosts[0].program.to_send.insert(FIRST, (80, 60));
    run(&mut world);
    assert_eq!(world.hosts[1].program.got[&SECOND], 70);
    assert!(world.bytes[0] - bytes < 60_000, "only the second stream's records");
    assert_eq!(world.channel(1).held(), 0);
    world.hosts[1].program.deaf.clear();
    assert!(world.channel(1).resume(FIRST) && !world.channel(1).resume(FIRST));
    world.run_until_done(micros(200_000)).expect("all of it");
}

#[test]
fn a_record_that_was_only_looked_at_comes_again() {
    let mut world = with_deaf_stream();
    world.order(0, 5);
    run(&mut world);
    let channel = world.channel(1);
    channel.peek(FIRST);
    assert!(channel.pause(FIRST, PauseReason::NotResident, 0) && !channel.is_readable(FIRST));
    world.hosts[1].program.deaf.clear();
    world.channel(1).resume(FIRST);
    world.run_until_done(micros(100_000)).expect("each once");
}

#[test]
fn the_first_records_of_a_paused_stream_may_stay() {
    let mut world = with_deaf_stream();
    world.order(0, 60);
    run(&mut world);
    let channel = world.channel(1);
    let all = channel.held();
    assert!(channel.pause(FIRST, PauseReason::QueueFull, 10_000));
    assert!(channel.held() <= 10_000 && channel.held() > 5000, "{} of {all}", channel.held());
    // Less than the first record: it stays completely.
    channel.pause(FIRST, PauseReason::QueueFull, 1);
    assert!(channel.is_readable(FIRST) && channel.held() < 5000);
    let program = &mut world.hosts[1].program;
    program.deaf.clear();
    run(&mut world);
    assert_eq!(world.hosts[1].program.got[&FIRST], 1);
    world.channel(1).resume(FIRST);
    world.run_until_done(micros(200_000)).expect("the others, too");
}

#[test]
fn records_not_taken_by_a_paused_stream_are_certainly_not_delivered() {
    let mut world = with_deaf_stream();
    world.order(0, 20);
    run(&mut world);
    world.channel(1).pause(FIRST, PauseReason::QueueFull, 0);
    run(&mut world);
    world.channel(1).close(FIRST, Reason::PeerLost);
    run(&mut world);
    let returned = world.channel(0).close(FIRST, Reason::PeerLost);
    assert_eq!(returned.iter().filter(|record| record.fate == Fate::Untouched).count(), 20);
}

#[test]
fn a_peer_that_dies_while_it_pauses_a_stream_is_noticed() {
    let mut world = with_deaf_stream();
    world.order(0, 20);
    run(&mut world);
    world.channel(1).pause(FIRST, PauseReason::QueueFull, 0);
    run(&mut world);
    world.links.iter_mut().for_each(|link| link.faults.drop = 1_000_000);
    // A side with data on the stream asks the peer.
    assert!(world.channel(0).waits_for_peer(FIRST));
    world.channel(0).ask();
    world.run(Duration::from_secs(10)).expect("in order");
    assert_eq!(world.lost(0), Some(Reason::Silent));
}

/// The packet that says *resume* also acknowledges records that were dropped earlier. They must be sent again nevertheless.
#[test]
fn what_was_dropped_is_sent_again_though_it_was_acknowledged() {
    let mut world = World::connected(2, 1);
    world.order(0, 1);
    run(&mut world);
    // One record of the first stream arrives while that is paused. The pause is not announced yet.
    let (head, args, payload) = record(FIRST, 1, 40);
    world.channel(0).send(FIRST, head, &args, &payload).expect("room");
    world.hosts[0].program.to_send.insert(FIRST, (2, 2));
    world.capture = Some(Vec::new());
    world.tamper = Some(Box::new(|_, _| false));
    world.transmit(0);
    world.tamper = None;
    let packets = world.capture.take().expect("captured");
    world.channel(1).pause(FIRST, PauseReason::NotResident, 0);
    for (_, packet) in &packets {
        assert_eq!(world.take(1, packet), Some(Verdict::Taken));
    }
    assert!(!world.channel(1).is_readable(FIRST) && packets.len() == 1);
    world.channel(1).resume(FIRST);
    world.hosts[1].program.to_send.insert(SECOND, (1, 0));
    world.run_until_done(micros(100_000)).expect("the record, too");
}

/// Pauses and resumptions at any moment, over a bad link and in both directions: each record arrives once.
#[test]
fn streams_that_are_paused_at_any_moment_lose_nothing() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut world = World::connected(4, seed);
    world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 3000);
    let bad = Faults { drop: 100_000, duplicate: 100_000, reorder: 200_000, corrupt: 0, late_most: micros(3000) };
    world.links.iter_mut().for_each(|link| link.faults = bad);
    let mut paused = 0;
    for _ in 0..3000 {
        let (at, stream) = (random.below(2) as usize, StreamId(1 + random.below(4) as u32));
        if random.below(3) == 0 {
            paused += u32::from(world.channel(at).pause(stream, PauseReason::NotResident, 0));
        } else {
            world.channel(at).resume(stream);
        }
        if random.below(4) == 0 {
            world.order(random.below(2) as usize, random.below(4) as u32);
        }
        world.run(micros(random.below(2000))).unwrap_or_else(|error| panic!("{error}, seed {seed}"));
    }
    for (at, stream) in [0, 1].into_iter().flat_map(|at| (1..=4).map(move |stream| (at, StreamId(stream)))) {
        world.channel(at).resume(stream);
    }
    world.run_until_done(Duration::from_secs(60)).unwrap_or_else(|error| panic!("{error}, seed {seed}"));
    assert!(paused > 700, "{paused}");
    assert_eq!([0, 1].map(|at| world.channel(at).held()), [0; 2]);
}

/// A host whose limit is below the sum of its streams' windows keeps to the limit, and takes every record in the end.
#[test]
fn a_channel_keeps_no_more_than_it_may_of_all_streams_together() {
    let mut world = World::new(16, 3);
    let most: u64 = 256 << 10;
    world.hosts[1].settings.held_most = most as u32;
    world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 60_000);
    world.hosts[1].program.deaf = (1..16).map(StreamId).collect();
    run(&mut world);
    world.order(0, 8);
    let mut held = 0;
    for _ in 0..2000 {
        world.run(micros(100)).expect("in order");
        held = held.max(world.channel(1).held());
    }
    assert!(held > most / 2 && held <= most, "{held} bytes of {most}");
    assert!((1..16).any(|stream| world.channel(0).is_paused(StreamId(stream))));
    assert!(world.channel(1).memory() < 2 * most as usize + (64 << 10), "{}", world.channel(1).memory());
    // If the other streams hold all the room, their owner makes room for the one that is read.
    for stream in (1..16).map(StreamId) {
        world.channel(1).pause(stream, PauseReason::QueueFull, 0);
    }
    run(&mut world);
    assert_eq!(world.hosts[1].program.got[&StreamId(16)], 8);
    for stream in (1..16).map(StreamId) {
        world.channel(1).resume(stream);
    }
    world.hosts[1].program.deaf.clear();
    world.run_until_done(Duration::from_secs(60)).expect("all of it");
    assert_eq!(world.channel(1).held(), 0);
}

/// A channel that takes nothing leaves half of the shared room to others, and these take every record.
#[test]
fn a_channel_that_takes_nothing_leaves_shared_room_to_others() {
    const MOST: u64 = 1 << 20;
    let room = SharedRoom::new(MOST);
    let mut worlds = [World::new(8, 3), World::new(8, 4)];
    for world in &mut worlds {
        world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 60_000);
        run(world);
        world.channel(1).share_room(room.clone());
    }
    let [greedy, other] = &mut worlds;
    greedy.hosts[1].program.deaf = (1..=8).map(StreamId).collect();
    greedy.order(0, 40);
    for _ in 0..500 {
        greedy.run(micros(100)).expect("in order");
    }
    let held = room.used();
    // Memory grows to the next power of two for each stream.
    assert!(held > MOST / 4 && held <= MOST / 2 + (256 << 10), "{held}");
    assert!((1..=8).any(|stream| greedy.channel(0).is_paused(StreamId(stream))));
    other.order(0, 40);
    let mut most = 0;
    for _ in 0..20_000 {
        other.run(micros(100)).expect("in order");
        other.channel(1).look_for_room();
        most = most.max(room.used());
        if other.is_done() {
            break;
        }
    }
    assert!(other.is_done() && most <= MOST, "{most}: {}", other.state());
    // What it holds is free once it is dropped.
    greedy.hosts[1].channel = None;
    other.hosts[1].channel = None;
    assert_eq!(room.used(), 0);
}

#[test]
fn pauses_that_no_honest_peer_says_are_violations() {
    let mut liar = Liar::new();
    let stream = liar.world.channel(0).open_next().expect("room");
    let (head, args, payload) = record(stream, 0, 40);
    liar.world.channel(0).send(stream, head, &args, &payload).expect("room");
    let pause = |from, round| Frame::Pause { pause: Pause { stream, from, round }, reason: PauseReason::QueueFull };
    let resume = |from, round| Frame::Resume(Pause { stream, from, round });
    assert_eq!(liar.say(&[pause(START, 2)]), Verdict::Violation);
    assert_eq!(liar.say(&[resume(START, 1)]), Verdict::Violation);
    assert_eq!(liar.say(&[pause(START + 1000, 1)]), Verdict::Violation, "never sent");
    assert_eq!(liar.say(&[pause(START, 5)]), Verdict::Taken);
    assert!(liar.world.channel(0).is_paused(stream));
    // An older frame changes nothing, and neither does a copy.
    assert_eq!((liar.say(&[resume(START, 4)]), liar.say(&[pause(START, 5)])), (Verdict::Taken, Verdict::Taken));
    assert!(liar.world.channel(0).is_paused(stream));
    assert_eq!(liar.say(&[resume(START - 40, 6)]), Verdict::Taken);
    assert!(!liar.world.channel(0).is_paused(stream));
    // A frame for a stream that does not exist.
    let other = StreamId(999 << 1 | 1);
    assert_eq!(liar.say(&[Frame::Resume(Pause { stream: other, from: 7, round: 2 })]), Verdict::Taken);
}

/// Behind its last whole record a crowded stream may hold a part of one. That part must not occupy the room that the
/// stream itself waits for.
#[test]
fn the_beginnings_of_records_do_not_keep_crowded_streams_out() {
    let mut world = World::new(8, 3);
    world.hosts[1].settings.held_most = 256 << 10;
    world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 60_000);
    world.hosts[1].program.deaf = (1..=8).map(StreamId).collect();
    run(&mut world);
    // A small record, and a large one behind it, on each.
    for stream in (1..=8).map(StreamId) {
        for len in [8, 60_000] {
            let head = Head::new(Kind::Send);
            world.channel(0).send(stream, head, &[], &vec![7; len]).expect("room");
        }
    }
    run(&mut world);
    let mut got = 0;
    for _ in 0..1000 {
        for stream in (1..=8).map(StreamId) {
            while let Peek::Record(_) = world.channel(1).peek(stream) {
                world.channel(1).pop(stream);
                got += 1;
            }
            world.channel(1).release(stream);
        }
        world.run(micros(10_000)).expect("in order");
    }
    assert_eq!(got, 16);
}

/// After a trim, a channel has little more memory than its streams need.
#[test]
fn streams_that_keep_little_have_little_memory() {
    let mut world = World::new(64, 3);
    world.hosts[1].settings.held_most = 512 << 10;
    world.hosts[1].program.deaf = (1..=64).map(StreamId).collect();
    run(&mut world);
    for stream in (1..=64).map(StreamId) {
        let head = Head::new(Kind::Send);
        // One at a time: three large ones are taken, and a small one stays.
        for len in [60_000, 60_000, 60_000, 8] {
            world.channel(0).send(stream, head, &[], &vec![7; len]).expect("room");
        }
        run(&mut world);
        for _ in 0..3 {
            assert!(matches!(world.channel(1).peek(stream), Peek::Record(_)));
            world.channel(1).pop(stream);
        }
        world.channel(1).release(stream);
        run(&mut world);
    }
    world.channel(1).trim();
    let (held, memory) = (world.channel(1).held(), world.channel(1).memory());
    assert!(memory < 2 * (512 << 10), "{memory} bytes of memory for {held} bytes");
}
