//! One behaviour each.

use crate::world::{address, millis, World, ECHO, ECHOED, KEEP, KEY, MUM, NOBODYS, NOTE};
use weft_core::{Event, MessageKind, Outgoing};
use weft_transport::Settings;
use weft_wire::{Certainty, Key, Reason};

#[test]
fn a_request_is_answered_by_another_host_which_knows_who_asked() {
    let mut world = World::new(2, 1);
    let there = world.processes[1].name;
    world.processes[0].map(there, KEY);
    world.request(ECHO, &[1, 2], b"payload");
    world.run(millis(10));
    let [here, other] = [0, 1].map(|n| world.processes[n].name);
    let asked = &world.processes[1].program.got[0];
    assert_eq!((asked.kind, &asked.args[..], asked.source), (MessageKind::Request, &[1, 2][..], Some(here)));
    let answer = &world.processes[0].program.got[0];
    assert_eq!((answer.kind, answer.op, &answer.payload[..]), (MessageKind::Reply, ECHOED, &b"payload"[..]));
    assert_eq!(answer.source, Some(other));
}

#[test]
fn every_size_crosses() {
    let mut world = World::connected(1);
    for len in [0, 1, 7, 8, 1471, 1472, 1473, 9000, 65_535, 65_536] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        for args in [0, 1, 2, 15, 16] {
            let args: Vec<u32> = (0..args).collect();
            world.request(ECHO, &args, &payload);
            world.run(millis(20));
            let answer = world.processes[0].program.got.pop().expect("an answer");
            assert!(answer.args == args && answer.payload == payload, "{len} bytes, {} arguments", args.len());
        }
    }
}

#[test]
fn records_that_the_other_host_has_no_room_for_are_not_sent() {
    let mut world = World::new(1, 1);
    let narrow = world.start(address(1), Settings { window: 128 << 10, ..Settings::default() });
    let there = narrow.name;
    world.processes.push(narrow);
    world.processes[0].map(there, KEY);
    world.request(ECHO, &[], b"");
    world.run(millis(10));
    let has_sent_all = |world: &World| world.processes[0].sessions.ni().borrow().has_sent_all();
    assert!(has_sent_all(&world));
    world.processes[1].is_stopped = true;
    for n in 0..3 {
        world.processes[0].try_send(NOTE, &[n], &[0; 60_000]).expect("room");
    }
    world.run(millis(1));
    assert!(!has_sent_all(&world));
    world.processes[1].is_stopped = false;
    world.run(millis(50));
    assert!(has_sent_all(&world));
}

#[test]
fn thirty_two_requests_then_full_then_room() {
    let mut world = World::connected(1);
    for n in 0..32 {
        world.processes[0].try_request(ECHO, &[n], b"").expect("a window of 32");
    }
    assert!(world.processes[0].try_request(ECHO, &[32], b"").is_err());
    world.run(millis(10));
    let answers: Vec<u32> = world.processes[0].program.got.iter().map(|got| got.args[0]).collect();
    assert_eq!(answers, (0..32).collect::<Vec<u32>>());
    assert!(world.processes[0].events.iter().any(|e| matches!(e, Event::CanSend { .. })));
}

#[test]
fn a_request_without_a_reply_ends_and_completes() {
    let mut world = World::connected(1);
    let process = &mut world.processes[0];
    let message = Outgoing { op: MUM, args: &[], payload: b"", completion: Some(42) };
    process.core.state_mut().try_request(process.endpoint, 0, message).expect("room");
    world.run(millis(10));
    assert_eq!(world.processes[0].events, [Event::Completed(42)]);
}

#[test]
fn a_one_way_message_completes_when_it_is_stored() {
    let mut world = World::connected(1);
    let process = &mut world.processes[0];
    let message = Outgoing { op: NOTE, args: &[5], payload: b"", completion: Some(43) };
    process.core.state_mut().try_send(process.endpoint, 0, message).expect("room");
    world.run(millis(10));
    assert_eq!(world.processes[1].program.got.len(), 1);
    assert_eq!(world.processes[0].events, [Event::Completed(43)]);
}

#[test]
fn a_lone_message_goes_at_once_and_what_follows_shares_packets() {
    let mut world = World::connected(1);
    world.run(millis(50));
    let sent = |world: &World| world.network.borrow().packets;
    let before = sent(&world);
    world.processes[0].try_send(NOTE, &[1], b"").expect("room");
    assert_eq!(sent(&world), before + 1, "without a poll");
    for n in 0..30 {
        world.processes[0].try_send(NOTE, &[n], b"").expect("room");
    }
    assert_eq!(sent(&world), before + 1);
    world.processes[0].sessions.ni().borrow_mut().flush();
    assert_eq!(sent(&world), before + 2);
}

#[test]
fn both_call_at_once_and_get_one_channel() {
    for seed in 1..20 {
        let mut world = World::new(2, seed);
        let names = [0, 1].map(|n| world.processes[n].name);
        for n in 0..2 {
            world.processes[n].map(names[1 - n], KEY);
            assert!(world.processes[n].try_request(ECHO, &[n as u32], b"").is_err(), "no session yet");
        }
        world.run(millis(20));
        for n in 0..2 {
            world.processes[n].try_request(ECHO, &[n as u32], b"").expect("a session");
        }
        world.run(millis(20));
        for n in 0..2 {
            assert_eq!(world.processes[n].sessions.ni().borrow().hosts().count(), 1, "seed {seed}");
            // Each opened a stream before it learnt of the other's.
            assert!(world.processes[n].core.state().sessions().count() <= 2, "seed {seed}");
            assert_eq!(world.processes[n].program.got.len(), 2);
        }
    }
}

#[test]
fn a_second_endpoint_uses_the_session_that_is_there() {
    let mut world = World::connected(1);
    let there = world.processes[1].name;
    let process = &mut world.processes[0];
    process.core.state_mut().map(process.endpoint, 1, there, KEY).expect("an endpoint");
    let message = Outgoing { op: ECHO, args: &[6], ..Outgoing::default() };
    assert!(process.core.state_mut().try_request(process.endpoint, 1, message).is_err());
    world.run(millis(10));
    let process = &mut world.processes[0];
    process.core.state_mut().try_request(process.endpoint, 1, message).expect("a flow");
    world.run(millis(10));
    assert_eq!(world.processes[0].core.state().sessions().count(), 1);
    assert_eq!(world.processes[0].program.got[0].args, [6]);
}

#[test]
fn a_refused_message_comes_back_with_its_contents() {
    let mut world = World::connected(1);
    world.send(NOBODYS, &[1], b"one way");
    world.request(NOBODYS, &[2], b"request");
    world.run(millis(10));
    let returned = &world.processes[0].program.returned;
    let seen: Vec<_> = returned.iter().map(|r| (r.kind, &r.payload[..], r.reason, r.certainty)).collect();
    assert_eq!(
        seen,
        [
            (MessageKind::OneWay, &b"one way"[..], Reason::NoHandler, Certainty::NotDelivered),
            (MessageKind::Request, &b"request"[..], Reason::NoHandler, Certainty::NotDelivered),
        ]
    );
}

#[test]
fn a_key_that_changes_returns_messages_and_keeps_the_session() {
    let mut world = World::connected(1);
    let other = &mut world.processes[1];
    other.core.state_mut().set_key(other.endpoint, Key(8)).expect("an endpoint");
    world.request(ECHO, &[], b"with the old key");
    world.run(millis(10));
    assert_eq!(world.processes[0].program.returned[0].reason, Reason::WrongKey);
    assert_eq!(world.processes[0].core.state().sessions().count(), 1);
}

#[test]
fn a_link_that_is_full_now_and_then_loses_nothing() {
    let mut world = World::connected(1);
    world.processes[1].program.counts_only = true;
    let mut sent = 0u32;
    for turn in 0..30_000 {
        if sent == 20_000 {
            break;
        }
        world.network.borrow_mut().room = Some(turn % 4);
        while sent < 20_000 && world.processes[0].try_send(NOTE, &[sent], &[1; 100]).is_ok() {
            sent += 1;
        }
        world.run(millis(1));
    }
    world.network.borrow_mut().room = None;
    world.run(millis(1000));
    assert_eq!((sent, world.processes[1].program.notes), (20_000, 20_000));
}

#[test]
fn an_idle_session_sends_nothing_and_a_waiting_one_asks() {
    let mut world = World::connected(1);
    world.run(millis(100));
    let sent = |world: &World| world.network.borrow().packets;
    for process in &world.processes {
        process.sessions.ni().borrow_mut().drop_stale_timers();
        assert_eq!(process.sessions.ni().borrow().next_time(), None, "nothing is waited for");
    }
    let before = sent(&world);
    world.run(millis(100_000));
    assert_eq!(sent(&world), before);
    world.request(KEEP, &[], b"");
    world.run(millis(10_000));
    let asked = sent(&world) - before;
    assert!((10..100).contains(&asked), "{asked} packets in ten seconds");
    assert!(world.processes[0].program.returned.is_empty());
}

#[test]
fn many_hosts_are_served_and_none_waits_for_another() {
    let mut world = World::new(1, 1);
    for n in 1..=300 {
        let mut process = world.start(address(n), Settings::default());
        process.map(world.processes[0].name, KEY);
        world.processes.push(process);
    }
    for n in 1..=300 {
        assert!(world.processes[n].try_request(ECHO, &[n as u32], b"").is_err(), "no session yet");
    }
    // More than the limit of strangers: some have to call twice.
    world.run(millis(500));
    for n in 1..=300 {
        world.processes[n].try_request(ECHO, &[n as u32], b"").expect("a session");
    }
    world.run(millis(50));
    for n in 1..=300 {
        assert_eq!(world.processes[n].program.got[0].args, [n as u32]);
    }
}
