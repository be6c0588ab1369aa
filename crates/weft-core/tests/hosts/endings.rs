//! How messages end whose peer is unreachable or gone.

use crate::world::{address, millis, World, ECHO, KEEP, KEY, NOTE};
use weft_core::{Event, MessageKind, SendError};
use weft_transport::Settings;
use weft_wire::{Certainty, EndpointId, Epoch, Key, Name, Reason};

/// The end of the first message that the first process sends to a name.
fn end_of_first(world: &mut World, name: Name, key: Key) -> (Reason, Certainty) {
    world.processes[0].map(name, key);
    world.request(ECHO, &[1, 2], b"contents");
    world.run(millis(5000));
    let returned = world.processes[0].program.returned.pop().expect("it comes back");
    assert_eq!((&returned.args[..], &returned.payload[..]), (&[1, 2][..], &b"contents"[..]));
    assert!(world.processes[1].program.got.is_empty());
    (returned.reason, returned.certainty)
}

#[test]
fn what_cannot_be_delivered_comes_back_with_the_reason() {
    let not = Certainty::NotDelivered;
    let mut world = World::new(2, 1);
    let there = world.processes[1].name;
    assert_eq!(end_of_first(&mut world, there, Key(8)), (Reason::WrongKey, not));
    let nobody = Name { endpoint: EndpointId(99), ..there };
    assert_eq!(end_of_first(&mut world, nobody, KEY), (Reason::NoSuchEndpoint, not));
    let earlier = Name { epoch: Epoch(1), ..there };
    assert_eq!(end_of_first(&mut world, earlier, KEY), (Reason::WrongEpoch, not));
    let nowhere = Name { address: address(77), ..there };
    assert_eq!(end_of_first(&mut world, nowhere, KEY), (Reason::NobodyThere, not));
    // Afterwards the peer can still be reached.
    world.processes[0].map(there, KEY);
    world.request(ECHO, &[], b"");
    world.run(millis(20));
    assert_eq!(world.processes[0].program.got.len(), 1);
}

#[test]
fn a_silent_peer_is_given_up_after_the_suspicion_time() {
    let mut world = World::connected(1);
    world.processes[1].is_stopped = true;
    world.request(ECHO, &[1], b"a");
    world.send(NOTE, &[2], b"b");
    world.run(millis(2900));
    assert!(world.processes[0].program.returned.is_empty());
    world.run(millis(400));
    let returned = &world.processes[0].program.returned;
    let seen: Vec<_> = returned.iter().map(|r| (r.kind, &r.payload[..], r.reason, r.certainty)).collect();
    // Both were in flight, and may have been delivered.
    assert_eq!(
        seen,
        [
            (MessageKind::OneWay, &b"b"[..], Reason::Silent, Certainty::Unknown),
            (MessageKind::Request, &b"a"[..], Reason::Silent, Certainty::Unknown),
        ]
    );
    assert!(world.processes[0].events.iter().any(|e| matches!(e, Event::PeerLost { reason: Reason::Silent, .. })));
}

#[test]
fn a_peer_that_stops_for_less_is_not_given_up() {
    let mut world = World::connected(1);
    for _ in 0..3 {
        world.processes[1].is_stopped = true;
        world.request(ECHO, &[1], b"a");
        world.run(millis(2500));
        world.processes[1].is_stopped = false;
        world.run(millis(1000));
    }
    assert_eq!((world.processes[0].program.got.len(), world.processes[0].program.returned.len()), (3, 0));
}

#[test]
fn a_peer_that_answered_all_and_died_is_noticed_by_who_waits_for_it() {
    let mut world = World::connected(1);
    world.request(KEEP, &[9], b"kept");
    world.run(millis(100));
    world.processes[1].is_stopped = true;
    // The suspicion time, and one more try.
    world.run(millis(3000 + 120));
    let returned = world.processes[0].program.returned.pop().expect("it comes back");
    assert_eq!((returned.reason, returned.certainty), (Reason::Silent, Certainty::Unknown));
}

#[test]
fn records_never_sent_were_certainly_not_delivered() {
    let mut world = World::connected(1);
    world.processes[1].is_stopped = true;
    let mut sent = 1;
    world.send(NOTE, &[0], b"in a packet");
    while world.processes[0].try_send(NOTE, &[sent], &[0; 60_000]).is_ok() {
        sent += 1;
    }
    world.run(millis(1));
    while world.processes[0].try_request(KEEP, &[sent], b"").is_ok() {
        sent += 1;
    }
    world.run(millis(5000));
    let returned = &world.processes[0].program.returned;
    assert_eq!(returned.len(), sent as usize);
    assert!(returned.iter().any(|r| r.certainty == Certainty::Unknown));
}

#[test]
fn a_peer_that_leaves_says_so_and_what_it_did_not_take_is_certain() {
    let mut world = World::connected(1);
    world.processes[1].is_stopped = true;
    for n in 0..5 {
        world.send(NOTE, &[n], b"");
    }
    // It leaves without another poll.
    world.processes[1].sessions.say_goodbye();
    let gone = world.processes.remove(1);
    world.run(millis(10));
    let returned = &world.processes[0].program.returned;
    let fates: Vec<_> = returned.iter().map(|r| (r.args[0], r.reason, r.certainty)).collect();
    assert_eq!(fates, [0, 1, 2, 3, 4].map(|n| (n, Reason::PeerLost, Certainty::NotDelivered)));
    drop(gone);
}

#[test]
fn who_sends_to_a_peer_that_left_a_moment_ago_hears_that_and_not_that_it_broke_the_protocol() {
    let mut world = World::connected(1);
    world.request(KEEP, &[1], b"");
    world.run(millis(10));
    // Only the helper runs meanwhile.
    world.processes[0].is_computing = true;
    world.processes[1].sessions.say_goodbye();
    let gone = world.processes.remove(1);
    world.run(millis(10));
    assert_eq!(world.processes[0].try_send(NOTE, &[2], b""), Err(SendError::Full));
    assert_eq!(world.processes[0].try_request(KEEP, &[3], b""), Err(SendError::Full));
    world.processes[0].is_computing = false;
    world.run(millis(10));
    let fates: Vec<_> = world.processes[0].program.returned.iter().map(|r| (r.args[0], r.reason)).collect();
    assert_eq!(fates, [(1, Reason::PeerLost)]);
    let state = world.processes[0].core.state();
    assert_eq!((state.sessions().count(), state.counters().violations), (0, 0));
    drop(gone);
}

#[test]
fn a_restarted_peer_is_another_one() {
    let mut world = World::connected(1);
    let there = world.processes[1].name;
    world.request(KEEP, &[1], b"to the old one");
    world.run(millis(10));
    world.processes[1] = world.start(there.address, Settings::default());
    // The new process reports at once that it is not the old one.
    world.request(ECHO, &[2], b"too late");
    world.run(millis(100));
    let returned = &world.processes[0].program.returned;
    let fates: Vec<_> = returned.iter().map(|r| (r.args[0], r.reason, r.certainty)).collect();
    assert_eq!(fates, [(1, Reason::WrongEpoch, Certainty::Unknown), (2, Reason::WrongEpoch, Certainty::Unknown)]);
    assert!(world.processes[1].program.got.is_empty());
    let now_there = world.processes[1].name;
    world.processes[0].map(now_there, KEY);
    world.request(ECHO, &[3], b"");
    world.run(millis(20));
    assert_eq!(world.processes[1].program.got.len(), 1);
}

#[test]
fn a_peer_that_forgot_us_and_calls_anew_ends_the_old_session() {
    let mut world = World::connected(1);
    let names = [0, 1].map(|n| world.processes[n].name);
    world.request(KEEP, &[1], b"");
    world.run(millis(10));
    // The network is cut until the second process, which waits for something, has given the first one up.
    world.processes[1].map(names[0], KEY);
    world.network.borrow_mut().cut.insert(names[0].address);
    assert!(world.processes[1].try_request(KEEP, &[], b"").is_err());
    world.run(millis(10));
    let _ = world.processes[1].try_request(KEEP, &[], b"");
    world.processes[0].is_stopped = true;
    world.run(millis(5000));
    assert_eq!(world.processes[1].core.state().sessions().count(), 0);
    world.network.borrow_mut().cut.clear();
    world.processes[0].is_stopped = false;
    let _ = world.processes[1].try_request(ECHO, &[5], b"");
    let _ = world.processes[1].try_request(ECHO, &[5], b"");
    // The call is not trusted at once: the first process asks, learns that it was forgotten, and accepts the next call.
    world.run(millis(2000));
    let _ = world.processes[1].try_request(ECHO, &[6], b"");
    world.run(millis(50));
    assert!(world.processes[1].program.got.iter().any(|got| got.args == [6]));
    assert_eq!(world.processes[0].program.returned[0].certainty, Certainty::Unknown);
    assert!([0, 1].iter().all(|&n| world.processes[n].core.state().sessions().count() == 1));
}

#[test]
fn a_network_that_was_down_is_reported_as_silence_on_both_sides() {
    let mut world = World::connected(1);
    let names = [0, 1].map(|n| world.processes[n].name);
    world.processes[1].map(names[0], KEY);
    // The second process has nothing in flight, and does not notice.
    world.network.borrow_mut().cut.insert(names[1].address);
    world.request(KEEP, &[1], b"");
    world.run(millis(5000));
    world.network.borrow_mut().cut.clear();
    let returned = world.processes[0].program.returned.pop().expect("it comes back");
    assert_eq!((returned.reason, returned.certainty), (Reason::Silent, Certainty::Unknown));
    // It learns from the first process, which has given it up, that there is no such session any more.
    assert_eq!(world.processes[1].core.state().sessions().count(), 1);
    for n in 0..3 {
        let _ = world.processes[1].try_request(ECHO, &[n], b"");
        world.run(millis(100));
    }
    let process = &world.processes[1];
    let ends: Vec<_> = process.program.returned.iter().map(|r| r.reason).collect();
    assert!(!ends.is_empty() && ends.iter().all(|reason| *reason == Reason::Silent), "{ends:?}");
    world.request(ECHO, &[7], b"");
    world.run(millis(100));
    let lost = [0, 1].map(|n| &world.processes[n].events).into_iter().flatten();
    assert!(lost.clone().any(|e| matches!(e, Event::PeerLost { .. })));
    assert!(lost.clone().all(|e| !matches!(e, Event::PeerLost { reason: Reason::PeerLost, .. })));
}

/// Everything was acknowledged, so the receiver must deliver it, although its program has not polled since the first packet.
#[test]
fn messages_of_a_caller_that_left_are_delivered_to_a_program_that_polls_later() {
    for kills in [false, true] {
        let mut world = World::new(2, 1);
        world.processes[1].is_computing = true;
        let there = world.processes[1].name;
        world.processes[0].map(there, KEY);
        for number in 0..100 {
            world.send(NOTE, &[number], b"noted");
        }
        world.run(millis(50));
        if kills {
            world.processes[0].is_stopped = true;
            world.run(millis(4000));
        } else {
            assert_eq!(world.processes[0].sessions.say_goodbye(), 0, "all was acknowledged");
            world.run(millis(50));
        }
        assert!(world.processes[1].program.got.is_empty());
        world.processes[1].is_computing = false;
        world.run(millis(50));
        assert_eq!(world.processes[1].program.got.len(), 100, "killed: {kills}");
        if !kills {
            assert_eq!(world.processes[1].core.state().sessions().count(), 0);
            world.run(millis(5000));
            assert_eq!(world.processes[1].sessions.ni().borrow().hosts().count(), 0);
        }
    }
}

/// A caller that has sent nothing to the program leaves nothing behind, and one without the key is not heard.
#[test]
fn callers_that_leave_a_program_that_computes_are_heard_only_with_the_key() {
    let mut world = World::new(2, 1);
    world.processes[1].is_computing = true;
    let there = world.processes[1].name;
    world.processes[0].map(there, Key(8));
    world.send(NOTE, &[1], b"noted");
    world.run(millis(50));
    world.processes[0].sessions.say_goodbye();
    world.run(millis(50));
    world.processes[1].is_computing = false;
    world.run(millis(5000));
    assert!(world.processes[1].program.got.is_empty());
    assert_eq!(world.processes[1].core.state().sessions().count(), 0);
    assert_eq!(world.processes[1].sessions.ni().borrow().hosts().count(), 0);
}
