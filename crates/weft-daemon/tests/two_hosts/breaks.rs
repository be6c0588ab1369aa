//! Faults that reviews found, with a test for each.

use crate::got;
use crate::world::{World, HELD};
use std::time::Duration;
use weft_core::MessageKind::OneWay;
use weft_core::{Endpoint, Outgoing};
use weft_wire::segment::{Sizes, AREA_PAGES};

fn try_send(world: &mut World, from: (usize, Endpoint), args: &[u32], len: usize) -> bool {
    let payload = vec![1; len];
    let message = Outgoing { op: 1, args, payload: &payload, completion: None };
    world.programs[from.0].1.core.state_mut().try_send(from.1, 0, message).is_ok()
}

/// The receiver's program does not poll, and has places but too little area for what came.
#[test]
fn a_daemon_sleeps_while_a_record_of_another_host_waits_for_area() {
    let mut world = World::new(96);
    let (a, b) = (world.attach(0, 1), world.attach(1, 2));
    let from = world.endpoint(a, 5);
    let to = world.endpoint(b, 6);
    let name = world.name(b, to);
    world.map((a, from), 0, name, 6);
    world.send((a, from), 0, OneWay, &[0], b"first");
    world.run_until(|world| got(world, b) == 1);
    world.stopped.insert(b);
    for n in 1..20 {
        try_send(&mut world, (a, from), &[n], 60_000);
        world.run(Duration::from_millis(2));
    }
    world.run(Duration::from_secs(2));
    let now = world.now.get();
    let engine = &mut world.engines[1];
    let mut sleeps = 0;
    for _ in 0..100 {
        // As the process does before it sleeps.
        if engine.poll(now) + engine.look_before_sleep() == 0 && !engine.has_work() {
            sleeps += 1;
        }
    }
    assert!(sleeps > 50, "{sleeps} of 100");
}

/// Many streams are paused and lose nothing by it. When they were resumed, the streams behind the first ones used to be forgotten.
#[test]
fn all_paused_streams_go_on_though_the_first_ones_bring_nothing() {
    let mut world = World::holding(96, 1 << 20);
    let (a, b) = (world.attach(0, 1), world.attach(1, 2));
    let bulk: Vec<_> = (0..6).map(|_| world.endpoint(a, 5)).collect();
    let small: Vec<_> = (0..100).map(|_| world.endpoint(a, 5)).collect();
    world.sizes = Sizes { ring_order: 6, area_pages: *AREA_PAGES.start() };
    let to = world.endpoint(b, 6);
    let name = world.name(b, to);
    for from in bulk.iter().chain(&small) {
        world.map((a, *from), 0, name, 6);
        world.send((a, *from), 0, OneWay, &[0], b"first");
    }
    world.run_until(|world| got(world, b) == 106);
    world.stopped.insert(b);
    let mut sent = 106;
    // Its ring and area are filled.
    for n in 0..3u32 {
        sent += usize::from(try_send(&mut world, (a, bulk[0]), &[n], 60_000));
        world.run(Duration::from_millis(1));
    }
    for (n, from) in small.iter().enumerate() {
        sent += usize::from(try_send(&mut world, (a, *from), &[n as u32], 8));
        world.run(Duration::from_millis(1));
    }
    for n in 0..60u32 {
        for from in &bulk {
            sent += usize::from(try_send(&mut world, (a, *from), &[n], 12_000));
        }
        world.run(Duration::from_millis(1));
    }
    world.run(Duration::from_millis(100));
    world.stopped.remove(&b);
    world.run(Duration::from_secs(20));
    assert_eq!(got(&world, b), sent);
    // Some time later each of them sends again.
    for (n, from) in small.iter().enumerate() {
        sent += usize::from(try_send(&mut world, (a, *from), &[n as u32], 8));
    }
    world.run(Duration::from_secs(5));
    assert_eq!(got(&world, b), sent);
}

/// Full endpoints have nothing to do in a frame until they have room.
#[test]
fn full_endpoints_do_not_take_each_others_frames() {
    let mut world = World::new(2);
    let (a, b) = (world.attach(0, 1), world.attach(1, 2));
    let from: Vec<_> = (0..6).map(|_| world.endpoint(a, 5)).collect();
    world.sizes = Sizes { ring_order: 4, area_pages: *AREA_PAGES.start() };
    for from in &from {
        let to = world.endpoint(b, 6);
        let name = world.name(b, to);
        world.map((a, *from), 0, name, 6);
        world.send((a, *from), 0, OneWay, &[0], b"first");
    }
    world.run_until(|world| got(world, b) == 6);
    world.stopped.insert(b);
    for n in 1..30 {
        for from in &from {
            try_send(&mut world, (a, *from), &[n], 8);
        }
        world.run(Duration::from_millis(1));
    }
    world.run(Duration::from_secs(1));
    let before = world.engines[1].counters().bound;
    world.run(Duration::from_secs(1));
    let bound = world.engines[1].counters().bound - before;
    println!("bound {bound} in a second in which nothing can be delivered; {:?}", world.engines[1].kept());
    assert!(bound < 50, "{bound}");
}

/// Streams left behind by one user's endpoints do not hold up another user's messages.
#[test]
fn streams_of_endpoints_that_are_gone_hold_up_no_other_user() {
    let mut world = World::holding(96, 1 << 20);
    let (bad_there, bad_here) = (world.attach(0, 1), world.attach(1, 1));
    let (good_there, good_here) = (world.attach(0, 2), world.attach(1, 2));
    let from = world.endpoint(good_there, 5);
    let to = world.endpoint(good_here, 6);
    let name = world.name(good_here, to);
    world.map((good_there, from), 0, name, 6);
    world.sizes = Sizes { ring_order: 4, area_pages: *AREA_PAGES.start() };
    let senders: Vec<_> = (0..20).map(|_| world.endpoint(bad_there, 5)).collect();
    world.sizes = Sizes::default();
    let gone = world.endpoint(bad_here, 6);
    let gone_name = world.name(bad_here, gone);
    for (nth, sender) in senders.iter().enumerate() {
        world.map((bad_there, *sender), 0, gone_name, 6);
        let name = world.name(bad_there, *sender);
        world.map((bad_here, gone), nth as u32, name, 5);
        world.send((bad_there, *sender), 0, OneWay, &[0], b"first");
    }
    world.run_until(|world| got(world, bad_here) == 20);
    // Nobody takes the endpoint's last messages, so its streams stay for a while.
    for nth in 0..20 {
        world.send((bad_here, gone), nth, OneWay, &[0], b"first");
    }
    world.run(Duration::from_millis(5));
    world.stopped.insert(bad_there);
    for _ in 0..30 {
        for nth in 0..20 {
            let message = Outgoing { op: 1, args: &[0], payload: &[1; 40], completion: None };
            _ = world.programs[bad_here].1.core.state_mut().try_send(gone, nth, message);
        }
        world.run(Duration::from_micros(500));
    }
    world.kill(bad_here);
    for n in 0..60 {
        for sender in &senders {
            try_send(&mut world, (bad_there, *sender), &[n], 10_000);
        }
        world.run(Duration::from_micros(500));
    }
    let begin = world.now.get();
    let before = got(&world, good_here);
    for n in 0..20 {
        world.send((good_there, from), 0, OneWay, &[n], &[1; 1000]);
    }
    world.run_until(|world| got(world, good_here) == before + 20);
    let took = world.now.get().nanos_since(begin);
    assert!(took < 100_000_000, "{} ms", took / 1_000_000);
}

/// Small and large records in turn, to programs that now and then do not poll.
#[test]
fn small_and_large_records_in_turn_all_come() {
    small_and_large(HELD, 10, 4);
}

/// The same with what the daemon keeps.
#[test]
fn small_and_large_records_in_turn_all_come_with_what_the_daemon_keeps() {
    small_and_large(weft_daemon::HELD_MOST, 200, 1);
}

fn small_and_large(held: u32, pairs: usize, seeds: u64) {
    // A bundle has a bounded number of sessions.
    let programs = pairs.div_ceil(60);
    for seed in 0..seeds {
        let mut random = weft_transport::Random::new(seed);
        let mut world = World::holding(512, held);
        let all: Vec<_> = (0..programs).map(|_| (world.attach(0, 1), world.attach(1, 2))).collect();
        let mut from = Vec::new();
        for pair in 0..pairs {
            let (a, b) = all[pair % programs];
            let (sender, to) = (world.endpoint(a, 5), world.endpoint(b, 6));
            let name = world.name(b, to);
            world.map((a, sender), 0, name, 6);
            world.send((a, sender), 0, OneWay, &[0], b"first");
            from.push((a, sender));
        }
        let got = |world: &World| all.iter().map(|(_, b)| got(world, *b)).sum::<usize>();
        world.run_until(|world| got(world) == pairs);
        let mut sent = pairs;
        for n in 0..40u32 {
            for from in &from {
                for len in [8, 60_000] {
                    sent += usize::from(try_send(&mut world, *from, &[n], len));
                }
            }
            if random.below(2) == 0 {
                world.stopped.extend(all.iter().map(|(_, b)| *b));
            }
            world.run(Duration::from_micros(random.below(600)));
            world.stopped.clear();
            world.run(Duration::from_micros(random.below(600)));
        }
        world.run(Duration::from_secs(2));
        assert_eq!(got(&world), sent, "seed {seed}");
    }
}

/// A user that calls missing hosts does not disturb the calls of others.
#[test]
fn calls_to_nowhere_refuse_no_other_users_calls() {
    let mut world = World::new(96);
    let (bad, good, there) = (world.attach(0, 1), world.attach(0, 2), world.attach(1, 2));
    let more: Vec<_> = (0..20).map(|n| if n == 0 { bad } else { world.attach(0, 1) }).collect();
    let callers: Vec<_> = more.iter().map(|at| (*at, world.endpoint(*at, 5))).collect();
    for n in 0..400u32 {
        let name = weft_wire::Name {
            epoch: weft_wire::Epoch(90_000 + u64::from(n)),
            endpoint: weft_wire::EndpointId(1),
            uid: weft_wire::Uid(1),
            address: crate::world::address(9),
        };
        let (bad, caller) = callers[n as usize % 20];
        world.map((bad, caller), n / 20, name, 6);
        let message = Outgoing { op: 1, args: &[n], payload: &[], completion: None };
        _ = world.programs[bad].1.core.state_mut().try_send(caller, n / 20, message);
        world.run(Duration::from_micros(100));
    }
    let (from, to) = (world.endpoint(good, 5), world.endpoint(there, 6));
    let name = world.name(there, to);
    world.map((good, from), 0, name, 6);
    world.send((good, from), 0, OneWay, &[0], b"to a host that is there");
    world.run(Duration::from_secs(1));
    assert_eq!(got(&world, there), 1);
}

/// A user whose endpoint is full, with many callers, leaves room for the waiting callers of another user's endpoint.
#[test]
fn callers_that_wait_for_one_users_endpoint_leave_room_for_those_of_another() {
    let mut world = World::new(4096);
    let bad_here = world.attach(1, 1);
    world.sizes = Sizes { ring_order: 4, area_pages: *AREA_PAGES.start() };
    let (deaf, good_here) = (world.endpoint(bad_here, 6), world.attach(1, 2));
    let to = world.endpoint(good_here, 6);
    let (deaf_name, good_name) = (world.name(bad_here, deaf), world.name(good_here, to));
    world.stopped.extend([bad_here, good_here]);
    for _ in 0..11 {
        let program = world.attach(0, 1);
        for _ in 0..100 {
            let from = world.endpoint(program, 5);
            world.map((program, from), 0, deaf_name, 6);
            try_send(&mut world, (program, from), &[0], 8);
            world.run(Duration::from_micros(200));
        }
        world.run(Duration::from_millis(5));
    }
    let good = world.attach(0, 2);
    let from: Vec<_> = (0..20).map(|_| world.endpoint(good, 5)).collect();
    for from in &from {
        world.map((good, *from), 0, good_name, 6);
        world.send((good, *from), 0, OneWay, &[0], &[1; 8]);
        world.run(Duration::from_millis(5));
    }
    world.run(Duration::from_millis(100));
    world.stopped.remove(&good_here);
    world.run(Duration::from_secs(1));
    let returned: Vec<_> = world.programs[good].1.log.returned.iter().map(|r| r.reason).collect();
    world.run(Duration::from_secs(8));
    assert_eq!((got(&world, good_here), returned.len()), (20, 0));
}
