//! A stream for each pair of endpoints: opened on demand, refused alone, closed at rest.

use crate::world::{millis, Process, World, ECHO, KEEP, KEY, NOTE};
use weft_core::{Admission, Endpoint, Event, Outgoing, Report, SendError};
use weft_wire::{Certainty, EndpointId, Epoch, Key, Name, Reason};

/// Another endpoint of a process, with its name.
fn endpoint(process: &mut Process, number: u32, key: Key) -> (Endpoint, Name) {
    let name = Name { endpoint: EndpointId(number), ..process.name };
    (process.core.state_mut().add_endpoint(name, key), name)
}

/// Has an endpoint of the first process send, waiting for room.
fn send(world: &mut World, from: Endpoint, to: u32, op: u8, args: &[u32]) {
    let message = Outgoing { op, args, ..Outgoing::default() };
    for _ in 0..1000 {
        let state = world.processes[0].core.state_mut();
        let sent = match op {
            NOTE => state.try_send(from, to, message),
            _ => state.try_request(from, to, message),
        };
        match sent {
            Ok(()) => return,
            Err(SendError::Full) => world.run(millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no room in a second");
}

fn sessions(world: &World) -> [usize; 2] {
    [0, 1].map(|n| world.processes[n].core.state().sessions().count())
}

fn channels(world: &World) -> [usize; 2] {
    [0, 1].map(|n| world.processes[n].sessions.ni().borrow().hosts().count())
}

/// Nothing came back, no loss was reported, and no session was cut off.
fn assert_nothing_was_lost(world: &World) {
    for process in &world.processes {
        let counters = process.core.state().counters();
        assert_eq!((counters.sessions_lost, counters.violations, counters.returned), (0, 0, 0));
        assert!(!process.events.iter().any(|event| matches!(event, Event::PeerLost { .. })));
    }
}

#[test]
fn each_pair_of_endpoints_has_a_session_and_all_share_a_channel() {
    let mut world = World::connected(1);
    let there = world.processes[1].name;
    for number in 10..30 {
        let (from, _) = endpoint(&mut world.processes[0], number, KEY);
        world.processes[0].core.state_mut().map(from, 0, there, KEY).expect("an endpoint");
        send(&mut world, from, 0, ECHO, &[number]);
    }
    world.run(millis(10));
    assert_eq!((sessions(&world), channels(&world)), ([21, 21], [1, 1]));
    assert_eq!(world.processes[0].program.got.len(), 20);
    let mut report = Report::default();
    world.processes[0].core.state_mut().report_into(&mut report);
    world.processes[0].sessions.report_into(&mut report);
    assert_eq!(report.sessions.iter().filter(|session| session.host.is_some()).count(), 21);
    assert_nothing_was_lost(&world);
}

/// Has a process serve a program of this epoch, with an endpoint of this number.
fn serve(process: &mut Process, epoch: Epoch, number: u32) -> Name {
    process.sessions.ni().borrow_mut().serve(epoch);
    let name = Name { epoch, endpoint: EndpointId(number), ..process.name };
    process.core.state_mut().add_endpoint(name, KEY);
    name
}

#[test]
fn programs_behind_one_interface_share_its_channel() {
    let mut world = World::new(2, 1);
    let first = serve(&mut world.processes[1], Epoch(77), 10);
    let second = serve(&mut world.processes[1], Epoch(78), 11);
    let own = world.processes[1].name;
    let (from, _) = endpoint(&mut world.processes[0], 10, KEY);
    for (to, name) in [first, second, own].into_iter().enumerate() {
        world.processes[0].core.state_mut().map(from, to as u32, name, KEY).expect("an endpoint");
        send(&mut world, from, to as u32, ECHO, &[to as u32]);
        world.run(millis(10));
    }
    assert_eq!(world.processes[0].program.got.len(), 3);
    assert_eq!((sessions(&world), channels(&world)), ([3, 3], [1, 1]));
    // A program that does not exist, with an endpoint number that does.
    let nobody = Name { epoch: Epoch(79), ..first };
    world.processes[0].core.state_mut().map(from, 3, nobody, KEY).expect("an endpoint");
    let state = world.processes[0].core.state_mut();
    assert_eq!(state.try_send(from, 3, Outgoing::default()), Err(SendError::Full));
    world.run(millis(10));
    send(&mut world, from, 3, NOTE, &[3]);
    world.run(millis(10));
    let returned = &world.processes[0].program.returned;
    let ends: Vec<_> = returned.iter().map(|r| (r.reason, r.certainty)).collect();
    assert_eq!(ends, [(Reason::NoSuchEndpoint, Certainty::NotDelivered)]);
    assert_eq!((sessions(&world), channels(&world)), ([3, 3], [1, 1]));
}

#[test]
fn programs_that_are_called_at_once_share_a_channel_too() {
    let mut world = World::new(2, 1);
    let names = [77, 78, 79].map(|epoch| serve(&mut world.processes[1], Epoch(epoch), epoch as u32));
    let (from, _) = endpoint(&mut world.processes[0], 10, KEY);
    for (to, name) in (0..).zip(names) {
        let state = world.processes[0].core.state_mut();
        state.map(from, to, name, KEY).expect("an endpoint");
        assert_eq!(state.try_request(from, to, Outgoing { op: ECHO, ..Outgoing::default() }), Err(SendError::Full));
    }
    world.run(millis(10));
    for to in 0..3 {
        send(&mut world, from, to, ECHO, &[to]);
    }
    world.run(millis(10));
    assert_eq!(world.processes[0].program.got.len(), 3);
    assert_eq!((sessions(&world), channels(&world)), ([3, 3], [1, 1]));
    assert_nothing_was_lost(&world);
}

#[test]
fn a_program_that_left_is_not_called_and_one_of_another_life_never_was() {
    let mut world = World::new(2, 1);
    let gone = serve(&mut world.processes[1], Epoch(77), 10);
    world.processes[1].sessions.ni().borrow_mut().dismiss(Epoch(77));
    world.processes[0].map(gone, KEY);
    assert_eq!(world.processes[0].try_send(NOTE, &[1], b""), Err(SendError::Full));
    world.run(millis(10));
    assert_eq!(world.processes[0].try_send(NOTE, &[1], b""), Ok(()));
    world.run(millis(10));
    let ends: Vec<_> = world.processes[0].program.returned.iter().map(|r| r.reason).collect();
    assert_eq!((ends, channels(&world)), (vec![Reason::WrongEpoch], [0, 0]));
}

#[test]
fn two_that_call_each_other_at_once_have_one_channel_if_one_serves_programs() {
    for seed in 0..20 {
        let mut world = World::new(2, seed);
        let program = serve(&mut world.processes[1], Epoch(77), 10);
        let here = world.processes[0].name;
        world.processes[0].map(program, KEY);
        world.processes[1].map(here, KEY);
        for process in &mut world.processes {
            assert_eq!(process.try_request(ECHO, &[1], b""), Err(SendError::Full));
        }
        world.run(millis(10));
        for process in &mut world.processes {
            assert_eq!(process.try_request(ECHO, &[1], b""), Ok(()), "seed {seed}");
        }
        world.run(millis(10));
        assert_eq!(channels(&world), [1, 1], "seed {seed}");
        assert!(world.processes.iter().all(|process| process.program.got.len() == 2), "seed {seed}");
        assert_nothing_was_lost(&world);
    }
}

#[test]
fn the_other_side_uses_the_stream_of_a_pair_that_it_knows() {
    let mut world = World::connected(1);
    let here = world.processes[0].name;
    world.processes[1].map(here, KEY);
    for n in 0..3 {
        while world.processes[1].try_request(ECHO, &[n], b"").is_err() {
            world.run(millis(1));
        }
    }
    world.run(millis(10));
    assert_eq!((sessions(&world), channels(&world)), ([1, 1], [1, 1]));
    assert_eq!(world.processes[1].program.got.len(), 3);
}

#[test]
fn a_refused_endpoint_disturbs_no_other_pair() {
    let mut world = World::connected(1);
    let there = world.processes[1].name;
    let wrong = Name { endpoint: EndpointId(77), ..there };
    let (from, _) = endpoint(&mut world.processes[0], 10, KEY);
    let before = world.processes[0].core.state().sessions().next().expect("one").0;
    world.request(KEEP, &[1], b"under way");
    for (to, name, key) in [(0, there, Key(8)), (1, wrong, KEY)] {
        world.processes[0].core.state_mut().map(from, to, name, key).expect("an endpoint");
        assert_eq!(world.processes[0].core.state_mut().try_send(from, to, Outgoing::default()), Err(SendError::Full));
        world.run(millis(1));
        send(&mut world, from, to, NOTE, &[to]);
        world.run(millis(10));
    }
    let returned = &world.processes[0].program.returned;
    let ends: Vec<_> = returned.iter().map(|r| (r.reason, r.certainty)).collect();
    assert_eq!(ends, [Reason::WrongKey, Reason::NoSuchEndpoint].map(|reason| (reason, Certainty::NotDelivered)));
    assert_eq!((sessions(&world), channels(&world)), ([1, 1], [1, 1]));
    assert_eq!(world.processes[0].core.state().sessions().next().expect("the same").0, before);
    world.send(NOTE, &[2], b"");
    world.run(millis(10));
    assert_eq!(world.processes[1].program.got.last().map(|got| got.args[0]), Some(2));
}

#[test]
fn a_session_without_flows_is_closed_and_nothing_is_said_to_programs() {
    let mut world = World::connected(1);
    let hosts = |world: &World| world.processes[0].sessions.ni().borrow().hosts().next().expect("one").0;
    let before = hosts(&world);
    for round in 0..20 {
        world.send(NOTE, &[round], b"");
        let process = &mut world.processes[0];
        process.core.state_mut().unmap(process.endpoint, 0).expect("mapped");
        world.run(millis(20));
        assert_eq!((sessions(&world), channels(&world)), ([0, 0], [1, 1]), "round {round}");
        assert_eq!(world.processes[1].program.got.len() as u32, round + 1);
        let there = world.processes[1].name;
        world.processes[0].map(there, KEY);
    }
    assert_nothing_was_lost(&world);
    // The channel of the first call carried them all.
    assert_eq!(hosts(&world), before);
}

#[test]
fn a_session_with_a_flow_of_the_other_side_stays() {
    let mut world = World::connected(1);
    let here = world.processes[0].name;
    world.processes[1].map(here, KEY);
    while world.processes[1].try_request(KEEP, &[7], b"").is_err() {
        world.run(millis(1));
    }
    let process = &mut world.processes[0];
    process.core.state_mut().unmap(process.endpoint, 0).expect("mapped");
    world.run(millis(50));
    assert_eq!(sessions(&world), [1, 1]);
    world.processes[1].try_send(NOTE, &[8], b"").expect("a session");
    world.run(millis(10));
    assert_eq!(world.processes[0].program.got.last().map(|got| got.args[0]), Some(8));
    assert_nothing_was_lost(&world);
}

#[test]
fn a_declined_opener_goes_on_and_asks_again_when_the_last_flow_has_closed() {
    let mut world = World::connected(1);
    let here = world.processes[0].name;
    world.processes[1].map(here, KEY);
    // One closes while the other opens: the first one's proposal crosses the other's open.
    let process = &mut world.processes[0];
    process.core.state_mut().unmap(process.endpoint, 0).expect("mapped");
    for step in 0..40 {
        if step % 2 == 0 {
            let _ = world.processes[1].try_send(NOTE, &[step], b"");
        }
        world.run(std::time::Duration::from_micros(37));
    }
    world.run(millis(20));
    assert_eq!(sessions(&world), [1, 1]);
    let process = &mut world.processes[1];
    process.core.state_mut().unmap(process.endpoint, 0).expect("mapped");
    world.run(millis(50));
    assert_eq!(sessions(&world), [0, 0]);
    assert_nothing_was_lost(&world);
}

/// Messages to an endpoint that takes none wait on their own stream.
#[test]
fn a_receiver_that_does_not_read_holds_up_no_other_stream() {
    let mut world = World::connected(1);
    let there = world.processes[1].name;
    let (from, _) = endpoint(&mut world.processes[0], 10, KEY);
    let (deaf, its_name) = endpoint(&mut world.processes[1], 11, KEY);
    world.processes[1].core.state_mut().set_served(deaf, false).expect("an endpoint");
    world.processes[0].core.state_mut().map(from, 0, its_name, KEY).expect("an endpoint");
    let mut sent = 0;
    // More than it may hold: the last sends return *full*.
    for _ in 0..2000 {
        let message = Outgoing { op: NOTE, args: &[sent], payload: &[7; 32 << 10], ..Outgoing::default() };
        match world.processes[0].core.state_mut().try_send(from, 0, message) {
            Ok(()) => sent += 1,
            Err(_) => world.run(millis(1)),
        }
    }
    assert!(sent > 100, "{sent}");
    for n in 0..50 {
        let start = world.now.get();
        world.request(ECHO, &[n], b"");
        world.run(millis(1));
        assert_eq!(world.processes[0].program.got.len() as u32, n + 1, "round {n}");
        assert!(world.now.get().since(start) <= millis(3));
    }
    assert_eq!(world.processes[1].name, there);
}

#[test]
fn sessions_of_guests_give_their_seats_back_when_they_rest() {
    let mut world = World::connected(1);
    let (open, its_name) = endpoint(&mut world.processes[1], 11, Key(99));
    world.processes[1].core.state_mut().set_admission(open, Admission::Anybody).expect("an endpoint");
    let (from, _) = endpoint(&mut world.processes[0], 10, KEY);
    for _ in 0..3 {
        world.processes[0].core.state_mut().map(from, 0, its_name, Key(0)).expect("an endpoint");
        send(&mut world, from, 0, ECHO, &[1]);
        world.run(millis(10));
        assert_eq!(world.processes[1].sessions.ni().borrow().guests(), 1);
        world.processes[0].core.state_mut().unmap(from, 0).expect("mapped");
        world.run(millis(20));
        assert_eq!((world.processes[1].sessions.ni().borrow().guests(), sessions(&world)), (0, [1, 1]));
    }
    assert_nothing_was_lost(&world);
}

/// More pairs than may be new at once, with a process that does not poll for a while.
#[test]
fn many_pairs_that_begin_at_once_all_get_their_streams() {
    let mut world = World::connected(1);
    let there = world.processes[1].name;
    let froms: Vec<Endpoint> = (10..310).map(|number| endpoint(&mut world.processes[0], number, KEY).0).collect();
    world.processes[1].is_computing = true;
    for from in &froms {
        world.processes[0].core.state_mut().map(*from, 0, there, KEY).expect("an endpoint");
        let _ = world.processes[0].core.state_mut().try_send(*from, 0, Outgoing::default());
    }
    world.run(millis(5));
    for from in &froms {
        let message = Outgoing { op: NOTE, args: &[1], ..Outgoing::default() };
        assert!(world.processes[0].core.state_mut().try_send(*from, 0, message).is_ok());
    }
    world.run(millis(200));
    world.processes[1].is_computing = false;
    world.run(millis(2000));
    assert_eq!((sessions(&world), channels(&world)), ([301, 301], [1, 1]));
    assert_eq!(world.processes[1].program.got.len(), 300);
    assert_nothing_was_lost(&world);
}
