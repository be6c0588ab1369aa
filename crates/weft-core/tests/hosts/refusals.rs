//! Processes that ended on live hosts: their hosts refuse packets, and messages to them come back soon.

use crate::world::{address, millis, several, World, ECHO, KEEP, KEY, NOTE};
use std::time::Duration;
use weft_core::Event;
use weft_transport::Settings;
use weft_wire::packet::{receiver_of, QUOTE};
use weft_wire::{Certainty, Epoch, Name, Reason};

/// Ends the second process. Its host refuses packets from then on.
fn kill(world: &mut World) {
    let there = world.processes.remove(1).name.address;
    let refusing = &mut world.network.borrow_mut().refusing;
    refusing.extend(there.each());
}

/// Sends messages until `all` have come back. Returns the time that took.
fn time_to_return(world: &mut World, all: usize) -> Duration {
    let start = world.now.get();
    let mut sent = 0;
    while world.processes[0].program.returned.len() < all {
        let more = sent < all as u32;
        match more && world.processes[0].try_send(NOTE, &[sent], b"queued").is_ok() {
            true => sent += 1,
            false => world.run(Duration::from_micros(50)),
        }
        assert!(world.now.get().since(start) < Duration::from_secs(60), "{sent} were sent");
    }
    world.now.get().since(start)
}

#[test]
fn a_peer_that_is_killed_is_lost_at_once_with_all_that_was_under_way() {
    let mut world = World::connected(1);
    world.request(KEEP, &[1], b"kept");
    world.run(millis(10));
    kill(&mut world);
    world.send(NOTE, &[2], b"sent");
    world.run(millis(100));
    let process = &world.processes[0];
    let ends: Vec<_> = process.program.returned.iter().map(|r| (r.args[0], r.reason, r.certainty)).collect();
    assert_eq!(ends, [2, 1].map(|n| (n, Reason::PeerLost, Certainty::Unknown)));
    assert!(process.events.iter().any(|e| matches!(e, Event::PeerLost { reason: Reason::PeerLost, .. })));
    assert_eq!(process.core.state().sessions().count(), 0);
    assert_eq!(process.sessions.ni().borrow().hosts().count(), 0);
}

#[test]
fn a_queue_for_a_dead_peer_comes_back_within_a_second() {
    // With a session, and without one.
    for connected in [true, false] {
        let mut world = if connected { World::connected(1) } else { World::new(2, 1) };
        let there = world.processes[1].name;
        kill(&mut world);
        world.processes[0].map(there, KEY);
        let took = time_to_return(&mut world, 5_000);
        assert!(took < millis(1000), "{took:?}");
        let returned = &world.processes[0].program.returned;
        assert!((0..5_000).eq(returned.iter().map(|r| r.args[0])), "each once, in order");
        let certain = returned.iter().filter(|r| r.certainty == Certainty::NotDelivered).count();
        assert!(certain > 4_000, "{certain}");
    }
}

#[test]
fn a_queue_for_a_host_that_says_nothing_comes_back_with_the_first_call() {
    let mut world = World::new(2, 1);
    let there = world.processes[1].name;
    world.network.borrow_mut().cut.insert(there.address);
    world.processes[0].map(there, KEY);
    let took = time_to_return(&mut world, 5_000);
    assert!(took < millis(4000), "{took:?}");
}

#[test]
fn a_host_that_is_not_there_is_called_once_in_a_second_and_found_when_it_is_back() {
    let mut world = World::new(2, 1);
    let there = world.processes[1].name;
    world.network.borrow_mut().refusing.insert(there.address);
    world.processes[0].map(there, KEY);
    assert!(time_to_return(&mut world, 1) < millis(500));
    let packets = world.network.borrow().packets;
    world.processes[0].program.returned.clear();
    assert!(time_to_return(&mut world, 100) < millis(100), "at once");
    assert_eq!(world.network.borrow().packets, packets, "it is not called");
    assert!(world.processes[0].program.returned.iter().all(|r| r.reason == Reason::NobodyThere));
    // As if a firewall had refused the packets.
    world.network.borrow_mut().refusing.clear();
    world.run(millis(1000));
    world.processes[0].program.returned.clear();
    world.request(ECHO, &[1], b"");
    world.run(millis(10));
    assert_eq!(world.processes[0].program.got.len(), 1);
}

#[test]
fn a_host_that_was_not_there_is_there_once_it_is_heard() {
    let mut world = World::new(2, 1);
    let names = [0, 1].map(|n| world.processes[n].name);
    world.network.borrow_mut().refusing.insert(names[1].address);
    world.processes[0].map(names[1], KEY);
    time_to_return(&mut world, 1);
    world.network.borrow_mut().refusing.clear();
    // The host calls, and is not admitted.
    world.processes[1].map(names[0], weft_wire::Key(9));
    assert!(world.processes[1].try_request(ECHO, &[2], b"").is_err(), "no session yet");
    world.run(millis(10));
    assert_eq!(world.processes[0].core.state().sessions().count(), 0);
    world.processes[0].program.returned.clear();
    world.request(ECHO, &[1], b"");
    world.run(millis(10));
    assert_eq!((world.processes[0].program.got.len(), world.processes[0].program.returned.len()), (1, 0));
}

#[test]
fn hosts_that_are_not_there_are_remembered_up_to_a_bound() {
    let mut world = World::new(1, 1);
    let own = world.processes[0].name;
    let memory = |world: &World| world.processes[0].sessions.ni().borrow().memory();
    let mut after_first = 0;
    // Several of these rounds fit in a second.
    for round in 0..8 {
        for n in 0..300 {
            let there = Name { epoch: Epoch(7), address: address(1000 * (round + 1) + n), ..own };
            world.network.borrow_mut().refusing.insert(there.address);
            world.processes[0].map(there, KEY);
            assert!(world.processes[0].try_request(ECHO, &[], b"").is_err(), "no session yet");
            world.run(Duration::from_micros(10));
        }
        world.run(millis(220));
        assert_eq!(world.processes[0].sessions.ni().borrow().hosts().count(), 0);
        after_first = if round == 0 { memory(&world) } else { after_first };
    }
    assert!(memory(&world) <= after_first + 1000, "{} bytes, and {after_first} after the first", memory(&world));
}

#[test]
fn of_several_addresses_those_that_refuse_are_passed_over() {
    let on = |network: usize, host: usize| address(network << 8 | host);
    let everywhere = |host: usize| several(&[1, 2, 3].map(|network| on(network, host)));
    for refusing in 0..=3 {
        let mut world = World::new(0, 1);
        for host in 1..=2 {
            let process = world.start(everywhere(host), Settings::default());
            world.processes.push(process);
        }
        world.network.borrow_mut().refusing.extend((1..=refusing).map(|network| on(network, 2)));
        let there = world.processes[1].name;
        world.processes[0].map(there, KEY);
        let start = world.now.get();
        world.request(ECHO, &[1], b"");
        world.run(millis(5));
        let took = world.now.get().since(start);
        let ends = (world.processes[0].program.got.len(), world.processes[0].program.returned.len());
        match refusing {
            3 => {
                assert_eq!(ends, (0, 1));
                assert!(took < millis(500), "{took:?}");
            }
            _ => {
                assert_eq!(ends, (1, 0));
                assert!(took < millis(50), "{took:?}");
            }
        }
    }
}

#[test]
fn forged_refusals_end_no_session_and_no_call() {
    let mut world = World::new(2, 1);
    let there = world.processes[1].name;
    world.processes[0].map(there, KEY);
    world.network.borrow_mut().log = Some(Vec::new());
    assert!(world.processes[0].try_request(ECHO, &[0], b"").is_err(), "no session yet");
    for round in 0..500 {
        // Quote all packets that were sent to it, whole or cut, with ids that match or do not.
        let log = world.network.borrow_mut().log.replace(Vec::new()).expect("kept");
        for (_, to, packet) in log.iter().filter(|(_, to, _)| *to == there.address) {
            let now = world.now.get();
            let mut ni = world.processes[0].sessions.ni().borrow_mut();
            for bytes in [0, 4, QUOTE - 1, QUOTE, packet.len()] {
                ni.on_refusal(now, *to, &packet[..bytes]);
            }
            let mut other = packet.clone();
            other[12] ^= 1;
            ni.on_refusal(now, *to, &other);
            ni.on_refusal(now, address(99), packet);
            assert!(receiver_of(packet).is_some());
        }
        world.run(millis(3));
        if round % 10 == 0 {
            let _ = world.processes[0].try_request(ECHO, &[round], b"");
        }
    }
    world.run(millis(100));
    let process = &world.processes[0];
    assert_eq!((process.program.returned.len(), process.core.state().counters().sessions_lost), (0, 0));
    assert!(process.program.got.len() > 40, "{}", process.program.got.len());
    assert!(process.sessions.ni().borrow().refused() > 1000);
}
