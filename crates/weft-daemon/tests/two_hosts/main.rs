//! Programs on two hosts with a daemon on each, and programs without a daemon.

mod breaks;
mod model;
#[path = "../programs/mod.rs"]
mod programs;
mod world;

use std::time::Duration;
use weft_core::MessageKind::{OneWay, Reply, Request};
use weft_core::Outgoing;
use weft_daemon::Limits;
use weft_transport::Time;
use weft_wire::{Certainty, Epoch, Key, Name, Reason};
use world::{address, World, HELD};

/// The messages that a program got, without replies.
fn got(world: &World, program: usize) -> usize {
    world.programs[program].1.log.messages.iter().filter(|message| message.1 != Reply).count()
}

fn replies(world: &World, program: usize) -> usize {
    world.programs[program].1.log.messages.iter().filter(|message| message.1 == Reply).count()
}

fn nothing_was_lost(world: &World) {
    assert!(world.programs.iter().all(|(_, program)| program.log.returned.is_empty()));
    assert!(world.engines.iter().all(|engine| engine.counters().violations == 0));
}

#[test]
fn programs_of_two_hosts_talk_through_their_daemons() {
    for lose in [0, 50] {
        let mut world = World::new(96);
        world.wire.borrow_mut().lose = lose;
        let (a, b) = (world.attach(0, 1), world.attach(1, 2));
        let (from, to) = (world.endpoint(a, 5), world.endpoint(b, 6));
        let name = world.name(b, to);
        world.map((a, from), 0, name, 6);
        let sizes = [0, 1, 16, 17, 100, 4096, 65_536];
        for round in 0..20u32 {
            for size in sizes {
                let payload = vec![round as u8; size];
                world.send((a, from), 0, OneWay, &[round, size as u32], &payload);
                world.send((a, from), 0, Request, &[round], &payload);
            }
        }
        world.run_until(|world| replies(world, a) == 140 && world.is_settled(a));
        assert_eq!(got(&world, b), 280);
        let messages = &world.programs[b].1.log.messages;
        let sent: Vec<_> = messages.iter().filter(|message| message.1 == OneWay).collect();
        for (message, (round, size)) in sent.iter().zip((0..20u32).flat_map(|round| sizes.map(|size| (round, size)))) {
            assert_eq!(message.3, [round, size as u32], "in order");
            assert_eq!(message.4, vec![round as u8; size]);
        }
        nothing_was_lost(&world);
    }
}

#[test]
fn programs_with_and_without_a_daemon_talk_both_ways() {
    let mut world = World::new(96);
    let programs = [world.attach(0, 1), world.attach(0, 1)];
    let lone = world.lone.name;
    for (nth, program) in programs.into_iter().enumerate() {
        let endpoint = world.endpoint(program, 5);
        world.map((program, endpoint), 0, lone, 7);
        let name = world.name(program, endpoint);
        let state = world.lone.core.state_mut();
        state.map(world.lone.endpoint, nth as u32, name, Key(5)).expect("mapped");
        world.send((program, endpoint), 0, Request, &[nth as u32], b"to the one without a daemon");
    }
    world.run_until(|world| programs.iter().all(|program| replies(world, *program) == 1));
    // Both endpoints have the same number, and the epochs tell them apart.
    let sources: Vec<Epoch> = world.lone.log.sources.iter().map(|name| name.epoch).collect();
    assert_eq!(sources, [Epoch(1000), Epoch(1001)]);
    for nth in 0..2 {
        world.run_until(|world| {
            let message = Outgoing { op: 2, args: &[nth], payload: b"back", completion: None };
            world.lone.core.state_mut().try_request(world.lone.endpoint, nth, message).is_ok()
        });
    }
    world.run_until(|world| world.lone.log.messages == 4);
    assert_eq!(programs.map(|program| got(&world, program)), [1, 1]);
    assert_eq!(world.lone.sessions.ni().borrow().hosts().count(), 1, "one channel for both");
    assert!(world.lone.log.returned.is_empty());
    nothing_was_lost(&world);
}

#[test]
fn what_cannot_be_delivered_comes_back_with_the_reason() {
    let mut world = World::new(96);
    let (a, b) = (world.attach(0, 1), world.attach(1, 2));
    let (from, to) = (world.endpoint(a, 5), world.endpoint(b, 6));
    let name = world.name(b, to);
    let gone = Name { epoch: Epoch(77), ..name };
    let nowhere = Name { address: address(9), ..name };
    let expected = [
        (name, 9, Reason::WrongKey),
        (Name { endpoint: weft_wire::EndpointId(50), ..name }, 6, Reason::NoSuchEndpoint),
        (gone, 6, Reason::NoSuchEndpoint),
        (nowhere, 6, Reason::NobodyThere),
    ];
    for (index, (name, key, _)) in expected.into_iter().enumerate() {
        world.map((a, from), index as u32, name, key);
        world.send((a, from), index as u32, OneWay, &[index as u32], b"");
    }
    world.run_until(|world| world.programs[a].1.log.returned.len() == 4);
    let mut ends: Vec<_> =
        world.programs[a].1.log.returned.iter().map(|r| (r.args[0], r.reason, r.certainty)).collect();
    ends.sort_by_key(|end| end.0);
    let wanted: Vec<_> = (0..4).map(|at| (at as u32, expected[at].2, Certainty::NotDelivered)).collect();
    assert_eq!(ends, wanted);
    assert_eq!(got(&world, b), 0);
}

#[test]
fn more_endpoints_than_frames_get_what_other_hosts_send() {
    let mut world = World::new(4);
    let (a, b) = (world.attach(0, 1), world.attach(1, 2));
    let from: Vec<_> = (0..32).map(|_| world.endpoint(a, 5)).collect();
    let to: Vec<_> = (0..32).map(|_| world.endpoint(b, 6)).collect();
    for (from, to) in from.iter().zip(&to) {
        let name = world.name(b, *to);
        world.map((a, *from), 0, name, 6);
    }
    for round in 0..20u32 {
        for from in &from {
            world.send((a, *from), 0, Request, &[round], &[7; 200]);
        }
    }
    world.run_until(|world| replies(world, a) == 640 && world.is_settled(a));
    assert_eq!(got(&world, b), 640);
    assert!(world.engines.iter().all(|engine| engine.resident() <= 4));
    nothing_was_lost(&world);
}

#[test]
fn an_endpoint_that_takes_nothing_holds_up_its_own_senders_alone() {
    let mut world = World::new(96);
    let (a, idle, b) = (world.attach(0, 1), world.attach(1, 2), world.attach(1, 2));
    let (from, deaf, to) = (world.endpoint(a, 5), world.endpoint(idle, 6), world.endpoint(b, 6));
    let (to_deaf, to_b) = (world.name(idle, deaf), world.name(b, to));
    world.map((a, from), 0, to_deaf, 6);
    world.map((a, from), 1, to_b, 6);
    world.send((a, from), 0, OneWay, &[0], b"");
    world.run_until(|world| got(world, idle) == 1);
    // From here on it is not polled.
    let (_, quiet) = world.programs.remove(idle);
    let b = b - 1;
    let mut stuck = 0;
    for n in 0..2000u32 {
        let message = Outgoing { op: 1, args: &[n], payload: &[1; 1000], completion: None };
        let state = world.programs[a].1.core.state_mut();
        stuck += u32::from(state.try_send(from, 0, message).is_err());
        world.send((a, from), 1, OneWay, &[n], &[2; 1000]);
    }
    assert!(stuck > 0, "the deaf one is full");
    world.run_until(|world| got(world, b) == 2000);
    // It polls again, and gets everything that its sender's daemon had accepted.
    world.programs.push((1, quiet));
    let deaf = world.programs.len() - 1;
    world.run_until(|world| got(world, deaf) == 2001 - stuck as usize && world.is_settled(a));
    nothing_was_lost(&world);
}

#[test]
fn the_ends_of_programs_and_hosts_are_told() {
    let mut world = World::new(96);
    let (a, b) = (world.attach(0, 1), world.attach(1, 2));
    let (from, to) = (world.endpoint(a, 5), world.endpoint(b, 6));
    let name = world.name(b, to);
    world.map((a, from), 0, name, 6);
    world.send((a, from), 0, Request, &[1], b"");
    world.run_until(|world| replies(world, a) == 1);
    // The program ends while a message of ours is under way.
    world.send((a, from), 0, Request, &[2], b"");
    world.detach(b);
    world.run_until(|world| world.programs[a].1.log.returned.len() + replies(world, a) == 2);
    assert_eq!(world.engines[1].kept().iter().map(|kept| kept.1).sum::<usize>(), 0, "{:?}", world.engines[1].kept());
    // The host is cut off.
    let c = world.attach(1, 2);
    let other = world.endpoint(c, 6);
    let name = world.name(c, other);
    world.map((a, from), 1, name, 6);
    let before = replies(&world, a);
    world.send((a, from), 1, Request, &[3], b"");
    world.run_until(|world| replies(world, a) == before + 1);
    world.wire.borrow_mut().cut = Some(address(1));
    let returned = world.programs[a].1.log.returned.len();
    world.send((a, from), 1, Request, &[4], b"");
    world.run_until(|world| world.programs[a].1.log.returned.len() == returned + 1);
    assert_eq!(world.programs[a].1.log.returned.last().map(|r| r.reason), Some(Reason::Silent));
    world.run(Duration::from_millis(10));
    world.detach(a);
    assert_eq!(world.engines[0].kept().iter().map(|kept| kept.1).sum::<usize>(), 0, "{:?}", world.engines[0].kept());
}

#[test]
fn streams_to_an_endpoint_without_room_wait_up_to_a_limit() {
    let mut world = World::new(96);
    let deaf = world.attach(1, 2);
    let to = world.endpoint(deaf, 6);
    let name = world.name(deaf, to);
    let state = world.lone.core.state_mut();
    let ours = world.lone.name;
    let senders: Vec<_> = (0..1300)
        .map(|number| {
            let endpoint = state.add_endpoint(Name { endpoint: weft_wire::EndpointId(10 + number), ..ours }, Key(7));
            state.map(endpoint, 0, name, Key(6)).expect("mapped");
            endpoint
        })
        .collect();
    let (_, quiet) = world.programs.remove(deaf);
    // The first ones fill its ring.
    let mut sent = 0;
    for from in senders {
        for _ in 0..3 {
            let message = Outgoing { op: 1, args: &[1], payload: &[3; 500], completion: None };
            sent += usize::from(world.lone.core.state_mut().try_send(from, 0, message).is_ok());
            world.turn();
        }
    }
    world.run(Duration::from_millis(20));
    let kept = world.engines[1].kept();
    let far = kept.iter().find(|kept| kept.0 == "far").expect("it is told").1;
    assert!(far > 1024, "{kept:?}");
    let held = held_of(&mut world, 1);
    assert!(held < 100_000, "{held} bytes are kept of streams that wait");
    world.programs.push((1, quiet));
    world.run_until(|world| got(world, 0) + world.lone.log.returned.len() == sent);
    // Those beyond the limit were refused.
    let returned = &world.lone.log.returned;
    assert!((1..600).contains(&returned.len()), "{}", returned.len());
    assert!(returned.iter().all(|message| message.reason == Reason::NoRoom));
}

/// Bytes that a host keeps of what came from others and was not taken.
fn held_of(world: &mut World, host: usize) -> u64 {
    let ni = world.engines[host].network().expect("it has one");
    let hosts: Vec<_> = ni.hosts().map(|(id, _)| id).collect();
    hosts.into_iter().map(|id| ni.held(id)).sum()
}

/// Endpoints that take nothing: their host keeps little of what comes for them, other endpoints go on, and nothing is lost.
#[test]
fn what_comes_for_endpoints_that_take_nothing_is_not_kept() {
    let mut world = World::new(4);
    let (a, idle, b) = (world.attach(0, 1), world.attach(1, 2), world.attach(1, 3));
    let to = world.endpoint(b, 6);
    let to = world.name(b, to);
    let from = world.endpoint(a, 5);
    world.map((a, from), 0, to, 6);
    let pairs: Vec<_> = (0..24)
        .map(|_| {
            let (from, deaf) = (world.endpoint(a, 5), world.endpoint(idle, 6));
            let name = world.name(idle, deaf);
            world.map((a, from), 0, name, 6);
            from
        })
        .collect();
    let (_, quiet) = world.programs.remove(idle);
    let b = b - 1;
    // More than their rings and areas hold, and much more than the host keeps.
    let (mut sent, mut most) = (0, 0);
    for n in 0..400u32 {
        for from in &pairs {
            let message = Outgoing { op: 1, args: &[n], payload: &[1; 4000], completion: None };
            sent += usize::from(world.programs[a].1.core.state_mut().try_send(*from, 0, message).is_ok());
        }
        world.send((a, from), 0, OneWay, &[n], &[2; 1000]);
        world.turn();
        most = most.max(held_of(&mut world, 1));
    }
    world.run_until(|world| got(world, b) == 400);
    world.run(Duration::from_millis(20));
    most = most.max(held_of(&mut world, 1));
    assert!(
        world.engines[1].counters().paused >= 12 && most <= u64::from(HELD),
        "{most} {:?}",
        world.engines[1].counters()
    );
    let left = held_of(&mut world, 1);
    assert!(left <= u64::from(HELD) / 2, "{left}");
    // The daemon has nothing to do meanwhile, so it may sleep.
    let now = world.now.get();
    let work: Vec<u32> = (0..20).map(|_| world.engines[1].poll(now)).collect();
    assert_eq!(work[10..].iter().sum::<u32>(), 0, "{work:?}");
    world.programs.push((1, quiet));
    let deaf = world.programs.len() - 1;
    world.run_until(|world| got(world, deaf) == sent && world.is_settled(a));
    nothing_was_lost(&world);
    assert_eq!(held_of(&mut world, 1), 0);
}

/// Lines within the host keep an endpoint full. Lines of another host, old and new, still have their turn.
#[test]
fn senders_of_the_same_host_do_not_keep_others_out() {
    let mut world = World::new(96);
    let (near, far, b) = (world.attach(1, 2), world.attach(0, 1), world.attach(1, 2));
    let to = world.endpoint(b, 6);
    let to = world.name(b, to);
    let nears: Vec<_> = (0..8).map(|_| world.endpoint(near, 5)).collect();
    let fars: Vec<_> = (0..2).map(|_| world.endpoint(far, 5)).collect();
    nears.iter().for_each(|from| world.map((near, *from), 0, to, 6));
    fars.iter().for_each(|from| world.map((far, *from), 0, to, 6));
    for n in 0..8000u32 {
        // Its program takes fewer messages than are sent.
        let (_, mut slow) = world.programs.pop().expect("the last one");
        for from in &nears {
            let message = Outgoing { op: 1, args: &[0], payload: &[1; 2000], completion: None };
            let _ = world.programs[near].1.core.state_mut().try_send(*from, 0, message);
        }
        for (at, from) in (1..).zip(&fars).filter(|(at, _)| *at == 1 || n > 2000) {
            let message = Outgoing { op: 1, args: &[at], payload: &[2; 2000], completion: None };
            let _ = world.programs[far].1.core.state_mut().try_send(*from, 0, message);
        }
        world.turn();
        if n % 2 == 0 {
            slow.poll_some(1);
        }
        world.programs.push((1, slow));
    }
    let mut came = [0; 3];
    for (_, _, _, args, _) in &world.programs[b].1.log.messages {
        came[args[0] as usize] += 1;
    }
    let all: usize = came.iter().sum();
    assert!(came[0] * 4 > all && came[1] * 20 > all && came[2] > 50, "{came:?}");
}

#[test]
fn what_a_program_sent_before_it_ended_is_delivered() {
    let mut world = World::new(2);
    world.wire.borrow_mut().lose = 20;
    let (a, b) = (world.attach(0, 1), world.attach(1, 2));
    let (from, to) = (world.endpoint(a, 5), world.endpoint(b, 6));
    let name = world.name(b, to);
    world.map((a, from), 0, name, 6);
    for n in 0..100u32 {
        world.send((a, from), 0, OneWay, &[n], &[1; 2000]);
    }
    // The daemon has taken them, and the other host has not.
    world.run_until(|world| {
        world.programs[a].1.core.state_mut().flush();
        world.engines[0].counters().sent >= 101
    });
    assert!(got(&world, b) < 100);
    world.detach(a);
    world.run_until(|world| got(world, 0) == 100);
    // Both ends forget the stream and its quota.
    world.run_until(|world| world.engines[0].kept().iter().all(|kept| kept.1 == 0));
    let lines = |world: &World| world.engines[1].kept().iter().find(|kept| kept.0 == "lines").map(|kept| kept.1);
    world.run_until(|world| lines(world) == Some(0));
}

#[test]
fn a_line_without_room_is_listed_once() {
    let mut world = World::new(96);
    let (a, deaf) = (world.attach(0, 1), world.attach(1, 2));
    let (from, to) = (world.endpoint(a, 5), world.endpoint(deaf, 6));
    let name = world.name(deaf, to);
    world.map((a, from), 0, name, 6);
    world.send((a, from), 0, OneWay, &[0], b"");
    world.run_until(|world| got(world, deaf) == 1);
    let (_, quiet) = world.programs.remove(deaf);
    for n in 0..3000u32 {
        let message = Outgoing { op: 1, args: &[n], payload: &[1; 1000], completion: None };
        let _ = world.programs[a].1.core.state_mut().try_send(from, 0, message);
        world.turn();
    }
    let far = world.engines[0].kept().iter().find(|kept| kept.0 == "far").expect("it is told").1;
    assert!(
        far <= 5,
        "its stream, who opened it, its user's share, that it is under way and full: {:?}",
        world.engines[0].kept()
    );
    drop(quiet);
}

#[test]
fn hosts_that_nobody_talks_to_are_let_go() {
    let mut world = World::new(96);
    let a = world.attach(0, 1);
    let from = world.endpoint(a, 5);
    let lone = world.lone.name;
    world.map((a, from), 0, lone, 7);
    world.send((a, from), 0, Request, &[1], b"");
    world.run_until(|world| replies(world, a) == 1);
    let hosts = |world: &mut World| world.engines[0].network().expect("it has one").hosts().count();
    world.run(Duration::from_secs(3));
    assert_eq!(hosts(&mut world), 1, "the line is there");
    world.detach(a);
    world.run_until(|world| hosts(world) == 0);
}

/// What a host sent before it fell silent reaches an endpoint that had no room then. After it the program learns of the end.
#[test]
fn what_came_from_a_host_that_is_gone_is_not_lost() {
    let mut world = World::new(96);
    let slow = world.attach(1, 2);
    let to = world.endpoint(slow, 6);
    let to = world.name(slow, to);
    let from = world.lone.endpoint;
    world.lone.core.state_mut().map(from, 0, to, Key(6)).expect("mapped");
    let (_, program) = world.programs.remove(slow);
    let mut sent = 0;
    while sent < 200 || held_of(&mut world, 1) < 50_000 {
        let message = Outgoing { op: 1, args: &[sent], payload: &[1; 1000], completion: None };
        sent += u32::from(world.lone.core.state_mut().try_send(from, 0, message).is_ok());
        world.turn();
    }
    world.run(Duration::from_millis(20));
    world.wire.borrow_mut().cut = Some(address(2));
    let hosts = |world: &mut World| world.engines[1].network().expect("it has one").hosts().count();
    world.run_until(|world| hosts(world) == 0);
    world.programs.push((1, program));
    world.run_until(|world| got(world, 0) == sent as usize);
    let lines = |world: &World| world.engines[1].kept().iter().find(|kept| kept.0 == "lines").map(|kept| kept.1);
    world.run_until(|world| lines(world) == Some(0));
    assert!(world.programs[0].1.log.messages.iter().enumerate().all(|(n, message)| message.3 == [n as u32]));
}

#[test]
fn a_user_opens_its_share_of_the_streams_to_a_host_and_the_next_user_finds_some() {
    let mut world = World::new(96);
    let (a, b, c) = (world.attach(0, 1), world.attach(0, 2), world.attach(1, 3));
    let to = world.endpoint(c, 6);
    let to = world.name(c, to);
    let lines = |world: &World| world.engines[0].kept().into_iter().find(|(what, _)| *what == "lines").map(|(_, n)| n);
    let mut opened = [0; 2];
    for (program, opened) in [a, b].into_iter().zip(&mut opened) {
        world.endpoint(program, 5);
        let before = lines(&world);
        let mut last = None;
        // The first call waits for the host.
        for _ in 0..300 {
            last = lines(&world);
            let open = weft_wire::attach::Request::Open { part: 1, to };
            while world.programs[program].1.sessions.port().borrow_mut().ask(&open).is_some() {}
            world.run(Duration::from_micros(100));
        }
        *opened = last.zip(before).map_or(0, |(last, before)| last - before);
    }
    assert_eq!(opened, [2048, 682], "a half of 4,096, and a third of the rest");
    world.detach(a);
    world.detach(0);
    world.run(Duration::from_secs(4));
    assert!(world.engines[0].kept().iter().all(|(_, count)| *count == 0), "{:?}", world.engines[0].kept());
}

/// A daemon that has just started lets other hosts wait for programs that may come back. Those programs keep their names.
#[test]
fn what_comes_for_programs_that_are_not_back_yet_waits() {
    let mut world = World::new(96);
    let (a, b, c) = (world.attach(0, 1), world.attach(1, 2), world.attach(1, 2));
    let (from, to, other) = (world.endpoint(a, 5), world.endpoint(b, 6), world.endpoint(c, 6));
    let (to, other) = (world.name(b, to), world.name(c, other));
    world.map((a, from), 0, to, 6);
    world.map((a, from), 1, other, 6);
    world.send((a, from), 0, Request, &[1], b"");
    world.run_until(|world| replies(world, a) == 1);
    world.restart(1);
    // A message to the daemon before this one comes back, and so does the next message: its route is known to have ended.
    let returned = |world: &World| world.programs[a].1.log.returned.len();
    for before in [0, 1] {
        world.send((a, from), 0, Request, &[2], b"");
        world.run_until(|world| returned(world) == before + 1);
    }
    // Then the new daemon is called. Its host lets the call wait for the first program, and a stream for the second one.
    for (index, program) in [(0, b), (1, c)] {
        let message = Outgoing { op: 1, args: &[3], payload: b"", completion: None };
        assert!(world.programs[a].1.core.state_mut().try_request(from, index, message).is_err());
        world.run(Duration::from_millis(300));
        let program = world.attach_again(program);
        world.endpoint(program, 6);
        let before = replies(&world, a);
        world.send((a, from), index, Request, &[4], b"");
        world.run_until(|world| replies(world, a) == before + 1);
    }
    assert!(world.now.get() < Time::from_micros(2_900_000));
    assert_eq!(returned(&world), 2);
    // Later it is refused at once.
    world.run(Duration::from_secs(2));
    let unknown = Name { epoch: Epoch(4711), ..to };
    world.map((a, from), 2, unknown, 6);
    world.send((a, from), 2, OneWay, &[5], b"");
    world.run_until(|world| returned(world) == 3);
    assert_eq!(world.programs[a].1.log.returned[2].certainty, Certainty::NotDelivered);
}

/// A user that sends to endpoints which take nothing has a share of what may be under way, and another user is not held up.
#[test]
fn a_user_has_a_share_of_what_is_under_way_to_other_hosts() {
    // One MiB for all users.
    let mut world = World::limited(96, HELD, Limits { under_way: 64, ..Limits::default() });
    let (a, b, deaf, good) = (world.attach(0, 1), world.attach(0, 2), world.attach(1, 3), world.attach(1, 3));
    let froms: Vec<_> = (0..16).map(|_| world.endpoint(a, 5)).collect();
    for from in &froms {
        let to = world.endpoint(deaf, 6);
        let to = world.name(deaf, to);
        world.map((a, *from), 0, to, 6);
    }
    let (from, to) = (world.endpoint(b, 5), world.endpoint(good, 6));
    let to = world.name(good, to);
    world.map((b, from), 0, to, 6);
    world.stopped.insert(deaf);
    let mut sent = 0;
    for n in 0..300u32 {
        for from in &froms {
            let message = Outgoing { op: 1, args: &[n], payload: &[1; 8000], completion: None };
            sent += usize::from(world.programs[a].1.core.state_mut().try_send(*from, 0, message).is_ok());
        }
        world.send((b, from), 0, OneWay, &[n], &[2; 60_000]);
        world.turn();
    }
    // Half of a MiB, and 16 KiB for each line, in rings of memory that grow in steps.
    let memory = world.engines[0].network().expect("it has one").memory();
    assert!(memory < 2 << 20, "{memory} bytes");
    world.run_until(|world| got(world, good) == 300);
    world.stopped.clear();
    world.run_until(|world| got(world, deaf) == sent && world.is_settled(a) && world.is_settled(b));
    // A paused stream stays paused until there is room for what it brings.
    let paused = world.engines[1].counters().paused;
    assert!(sent > 500 && paused < 3 * sent as u64, "{sent} sent, {paused} times paused");
    nothing_was_lost(&world);
    world.detach(b);
    world.detach(a);
    world.run(Duration::from_secs(4));
    assert!(world.engines[0].kept().iter().all(|(_, count)| *count == 0), "{:?}", world.engines[0].kept());
}
