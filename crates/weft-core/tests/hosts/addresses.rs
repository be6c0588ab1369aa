//! Hosts with several addresses, and bundles that call themselves.

use crate::world::{address, millis, several, World, ECHO, KEY};
use std::collections::BTreeSet;
use weft_core::MessageKind;
use weft_transport::testing::Faults;
use weft_transport::{Random, Settings};
use weft_wire::{Certainty, HostAddress, Name, Reason};

/// The address of a host in one of the networks. All hosts are in each network.
fn on(network: usize, host: usize) -> HostAddress {
    address(network << 8 | host)
}

/// The addresses of a host in `networks` networks.
fn everywhere(networks: usize, host: usize) -> HostAddress {
    several(&(1..=networks).map(|network| on(network, host)).collect::<Vec<_>>())
}

/// Two hosts in `networks` networks; the first has the second at index 0.
fn two_hosts(networks: usize, seed: u64) -> World {
    let mut world = World::new(0, seed);
    for host in 1..=2 {
        let process = world.start(everywhere(networks, host), Settings::default());
        world.processes.push(process);
    }
    let there = world.processes[1].name;
    world.processes[0].map(there, KEY);
    world.network.borrow_mut().log = Some(Vec::new());
    world
}

/// How long it takes until the first request of the first process is answered.
fn time_to_answer(world: &mut World) -> u64 {
    let start = world.now.get();
    let mut is_sent = false;
    let is_answered = |world: &World| world.processes[0].program.got.iter().any(|got| got.kind == MessageKind::Reply);
    while !is_answered(world) {
        is_sent = is_sent || world.processes[0].try_request(ECHO, &[1], b"").is_ok();
        world.run(millis(1));
        assert!(world.processes[0].program.returned.is_empty(), "{:?}", world.processes[0].program.returned);
        assert!(world.now.get().since(start) < millis(10_000), "never answered");
    }
    world.now.get().since(start).as_millis() as u64
}

/// The addresses that the network has carried packets to.
fn reached(world: &World) -> BTreeSet<HostAddress> {
    let network = world.network.borrow();
    network.log.iter().flatten().map(|(_, to, _)| *to).collect()
}

/// Each side has exactly one session, with the other.
fn assert_one_session(world: &World) {
    for process in &world.processes {
        assert_eq!(process.core.state().sessions().count(), 1);
        assert_eq!(process.sessions.ni().borrow().hosts().count(), 1);
        assert!(process.program.returned.is_empty());
        assert_eq!(process.core.state().counters().sessions_lost, 0);
    }
}

#[test]
fn of_several_addresses_the_first_is_used_and_the_others_hear_nothing() {
    let mut world = two_hosts(3, 1);
    assert!(time_to_answer(&mut world) <= 2);
    world.run(millis(2000));
    assert_eq!(reached(&world), BTreeSet::from([on(1, 1), on(1, 2)]));
    assert_one_session(&world);
    let asked = &world.processes[1].program.got[0];
    assert_eq!(asked.source, Some(world.processes[0].name), "who asked is known by its endpoint");
}

#[test]
fn when_the_first_addresses_are_dead_the_message_arrives_over_another() {
    for dead in 1..=2 {
        let mut world = two_hosts(3, dead as u64);
        for network in 1..=dead {
            world.network.borrow_mut().cut.insert(on(network, 2));
        }
        let time = time_to_answer(&mut world);
        assert!((50..500).contains(&time), "{time} ms");
        world.run(millis(2000));
        assert_one_session(&world);
    }
}

#[test]
fn an_address_without_a_way_to_it_costs_no_time() {
    let mut world = two_hosts(2, 1);
    world.network.borrow_mut().unreachable.insert(on(1, 2));
    assert!(time_to_answer(&mut world) <= 2);
    assert_one_session(&world);
}

#[test]
fn a_host_with_one_address_hears_from_the_address_that_it_called() {
    let mut world = two_hosts(2, 1);
    world.processes[0] = world.start(on(9, 1), Settings::default());
    let there = world.processes[1].name;
    world.processes[0].map(there, KEY);
    world.network.borrow_mut().cut.insert(on(1, 2));
    assert!(time_to_answer(&mut world) < 500);
    world.run(millis(2000));
    assert_one_session(&world);
}

#[test]
fn all_that_answer_side_by_side_leave_one_session_and_no_trace_of_others() {
    for seed in 1..20 {
        let mut world = two_hosts(3, seed);
        world.network.borrow_mut().cut.insert(on(1, 2));
        assert!(world.processes[0].try_request(ECHO, &[1], b"").is_err(), "no session yet");
        world.run(millis(10));
        // The second call goes to all, and all of them answer.
        world.network.borrow_mut().cut.clear();
        assert!(time_to_answer(&mut world) < 300);
        assert_eq!(reached(&world).len(), 6, "all were tried");
        world.run(millis(100));
        let before = world.network.borrow().packets;
        world.run(millis(60_000));
        assert_eq!(world.network.borrow().packets, before, "nothing goes on");
        assert_one_session(&world);
    }
}

#[test]
fn an_address_that_is_somebody_elses_is_passed_over() {
    let mut world = two_hosts(2, 1);
    world.processes[1] = world.start(on(2, 2), Settings::default());
    let other = world.start(on(1, 2), Settings::default());
    world.processes.push(other);
    let there = Name { address: everywhere(2, 2), ..world.processes[1].name };
    world.processes[0].map(there, KEY);
    assert!(time_to_answer(&mut world) <= 5, "the refusal is not waited for");
    assert_eq!(world.processes[2].core.state().sessions().count(), 0);
    assert_eq!(world.processes[2].sessions.ni().borrow().hosts().count(), 0);
}

/// The end of a request of the first process, which must come within `within` milliseconds.
fn end(world: &mut World, within: u64) -> (Reason, Certainty) {
    world.request(ECHO, &[1, 2], b"contents");
    world.run(millis(within));
    let returned = world.processes[0].program.returned.pop().expect("it comes back");
    assert_eq!((&returned.args[..], &returned.payload[..]), (&[1, 2][..], &b"contents"[..]));
    assert_eq!(world.processes[0].sessions.ni().borrow().hosts().count(), 0);
    (returned.reason, returned.certainty)
}

#[test]
fn when_no_address_answers_the_message_comes_back() {
    let mut world = two_hosts(3, 1);
    world.network.borrow_mut().cut.extend((1..=3).map(|network| on(network, 2)));
    assert_eq!(end(&mut world, 4000), (Reason::NobodyThere, Certainty::NotDelivered));
}

#[test]
fn an_earlier_life_is_refused_at_all_addresses_or_at_those_that_answer() {
    for cut in [None, Some(on(1, 2)), Some(on(3, 2))] {
        let mut world = two_hosts(3, 1);
        let earlier = world.processes[1].name;
        world.processes[1] = world.start(earlier.address, Settings::default());
        world.network.borrow_mut().cut.extend(cut);
        let within = if cut.is_some() { 4000 } else { 10 };
        assert_eq!(end(&mut world, within), (Reason::WrongEpoch, Certainty::NotDelivered), "{cut:?}");
        // And the later life can be reached.
        let later = world.processes[1].name;
        world.processes[0].map(later, KEY);
        assert!(time_to_answer(&mut world) < 500);
    }
}

#[test]
fn a_session_that_is_lost_with_its_network_is_made_anew_over_another() {
    let mut world = two_hosts(2, 1);
    time_to_answer(&mut world);
    world.network.borrow_mut().cut.extend([on(1, 1), on(1, 2)]);
    assert_eq!(end(&mut world, 4000), (Reason::Silent, Certainty::Unknown));
    // The next message comes back as well, so that every sender learns of it.
    assert_eq!(end(&mut world, 10), (Reason::Silent, Certainty::NotDelivered));
    world.processes[0].program.got.clear();
    assert!(time_to_answer(&mut world) < 500);
}

#[test]
fn both_call_at_once_over_bad_networks_and_all_is_answered_once() {
    for seed in 1..60 {
        let mut world = two_hosts(3, seed);
        world.network.borrow_mut().faults = Faults { drop: 300, duplicate: 100, reorder: 100, ..Faults::default() };
        let mut random = Random::new(seed);
        // At least one network is left.
        for network in 1..=2 {
            if random.below(2) == 0 {
                world.network.borrow_mut().cut.insert(on(network, 1 + random.below(2) as usize));
            }
        }
        let here = world.processes[0].name;
        world.processes[1].map(here, KEY);
        for n in 0..2 {
            assert!(world.processes[n].try_request(ECHO, &[n as u32], b"").is_err(), "no session yet");
        }
        world.run(millis(2000));
        for n in 0..2 {
            world.processes[n].try_request(ECHO, &[n as u32], b"").expect("a session within two seconds");
        }
        world.run(millis(2000));
        for (n, process) in world.processes.iter().enumerate() {
            let answers = process.program.got.iter().filter(|got| got.kind == MessageKind::Reply);
            assert_eq!(answers.map(|got| got.args[0]).collect::<Vec<_>>(), [n as u32], "seed {seed}");
            assert!(process.program.returned.is_empty(), "seed {seed}");
            // Two if each found the other by another address.
            assert!(process.core.state().sessions().count() <= 2, "seed {seed}");
        }
    }
}

#[test]
fn an_endpoint_that_is_mapped_anew_at_another_address_is_not_refused_for_the_old_one() {
    let mut world = two_hosts(1, 1);
    let there = world.processes[1].name;
    // Nobody is there; another call goes to the endpoint's real address.
    world.processes[0].map(Name { address: on(1, 77), ..there }, KEY);
    assert!(world.processes[0].try_request(ECHO, &[1], b"").is_err(), "no session yet");
    world.run(millis(2950));
    world.network.borrow_mut().cut.insert(on(1, 2));
    world.processes[0].map(there, KEY);
    assert!(world.processes[0].try_request(ECHO, &[1], b"").is_err(), "no session yet");
    world.run(millis(500));
    world.network.borrow_mut().cut.clear();
    assert!(time_to_answer(&mut world) < 500);
}

#[test]
fn a_host_is_reached_at_each_of_its_addresses_from_a_single_one() {
    let mut world = two_hosts(3, 1);
    world.processes[0] = world.start(on(9, 1), Settings::default());
    for network in 1..=3 {
        let there = Name { address: on(network, 2), ..world.processes[1].name };
        world.processes[0].map(there, KEY);
        world.processes[0].program.got.clear();
        assert!(time_to_answer(&mut world) <= 2);
    }
    // Mapping the name with another address closes the earlier flow, and with it the session; the channels stay.
    world.run(millis(50));
    for process in &world.processes {
        assert_eq!(process.sessions.ni().borrow().hosts().count(), 3);
        assert_eq!(process.core.state().sessions().count(), 1);
        assert_eq!(process.core.state().counters().sessions_lost, 0);
    }
}

#[test]
fn a_bundle_that_calls_itself_is_answered() {
    for networks in [1, 3] {
        let mut world = World::new(0, 1);
        let process = world.start(everywhere(networks, 1), Settings::default());
        world.processes.push(process);
        let own = world.processes[0].name;
        world.processes[0].map(own, KEY);
        for n in 0..100 {
            world.request(ECHO, &[n], &[5; 3000]);
            world.run(millis(10));
        }
        let answers = world.processes[0].program.got.iter().filter(|got| got.kind == MessageKind::Reply);
        assert_eq!(answers.map(|got| got.args[0]).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        let process = &world.processes[0];
        assert!(process.program.got.iter().all(|got| got.source == Some(own)));
        // The two ends of one session.
        assert_eq!(process.core.state().sessions().count(), 2);
        assert_eq!(process.sessions.ni().borrow().hosts().count(), 2);
        assert!(process.program.returned.is_empty());
    }
}

#[test]
fn duplicates_of_an_own_call_change_nothing() {
    let mut world = World::new(1, 1);
    world.network.borrow_mut().faults = Faults { duplicate: 500, reorder: 200, ..Faults::default() };
    world.network.borrow_mut().log = Some(Vec::new());
    let own = world.processes[0].name;
    world.processes[0].map(own, KEY);
    world.request(ECHO, &[1], b"");
    world.run(millis(50));
    let log = world.network.borrow_mut().log.take().expect("kept");
    for (from, _, packet) in log.iter().chain(log.iter().rev()) {
        let way = weft_core::ni::Way { to: *from, from: 0 };
        let now = world.now.get();
        world.processes[0].sessions.ni().borrow_mut().on_packet(now, way, packet);
        world.run(millis(1));
    }
    world.request(ECHO, &[2], b"");
    world.run(millis(50));
    let process = &world.processes[0];
    assert_eq!(process.program.got.iter().filter(|got| got.kind == MessageKind::Reply).count(), 2);
    assert_eq!(process.sessions.ni().borrow().hosts().count(), 2);
    assert_eq!(process.core.state().counters().sessions_lost, 0);
}

#[test]
fn a_bundle_that_calls_itself_by_a_wrong_name_learns_why() {
    let mut world = World::new(1, 1);
    let own = world.processes[0].name;
    let nobody = Name { endpoint: weft_wire::EndpointId(99), ..own };
    world.processes[0].map(nobody, KEY);
    assert_eq!(end(&mut world, 100), (Reason::NoSuchEndpoint, Certainty::NotDelivered));
    world.processes[0].map(own, weft_wire::Key(1));
    assert_eq!(end(&mut world, 100), (Reason::WrongKey, Certainty::NotDelivered));
    world.processes[0].map(own, KEY);
    world.request(ECHO, &[1], b"");
    world.run(millis(50));
    assert_eq!(world.processes[0].program.got.len(), 2);
}
