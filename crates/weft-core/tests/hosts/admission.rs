//! Endpoints that admit callers from other hosts without a key, and endpoints that admit nobody.

use crate::world::{address, millis, Process, World, ECHO, KEY};
use weft_core::admission::{BURST, EVERY};
use weft_core::{Admission, MessageKind, SendError};
use weft_transport::Settings;
use weft_wire::{HostAddress, Key, Reason};

/// The most sessions without a key.
const GUESTS_MOST: usize = 256;

/// A world with one process, whose endpoint has this admission.
fn world_that_admits(admission: Admission) -> World {
    let mut world = World::new(1, 1);
    set(&mut world, admission);
    world
}

fn set(world: &mut World, admission: Admission) {
    let Process { core, endpoint, .. } = &mut world.processes[0];
    core.state_mut().set_admission(*endpoint, admission).expect("an endpoint");
}

/// Adds callers with this key, at ports of one address, and has each make its call.
fn call(world: &mut World, host: usize, ports: std::ops::Range<u16>, key: Key) -> std::ops::Range<usize> {
    let (there, first) = (world.processes[0].name, world.processes.len());
    for port in ports {
        let mut caller = world.start(HostAddress { port, ..address(host) }, Settings::default());
        caller.map(there, key);
        assert_eq!(caller.try_request(ECHO, &[], b""), Err(SendError::Full), "no session yet");
        world.processes.push(caller);
    }
    world.run(millis(2));
    first..world.processes.len()
}

/// How many of these callers have a session.
fn admitted(world: &World, callers: std::ops::Range<usize>) -> usize {
    callers.filter(|&n| world.processes[n].core.state().sessions().count() > 0).count()
}

fn guests(world: &World) -> usize {
    world.processes[0].sessions.ni().borrow().guests()
}

#[test]
fn callers_without_the_key_are_admitted_by_endpoints_that_admit_anybody_and_by_no_others() {
    for (admission, with_key, without) in [
        (Admission::Nobody, Some(Reason::Closed), Some(Reason::Closed)),
        (Admission::OwnUser, None, Some(Reason::WrongKey)),
        (Admission::AnyUser, None, Some(Reason::WrongKey)),
        // The user of a process on another host is not known.
        (Admission::OwnUserWithoutKey, None, Some(Reason::WrongKey)),
        (Admission::Anybody, None, None),
    ] {
        for (key, refusal) in [(KEY, with_key), (Key::NONE, without), (Key(1), without)] {
            let mut world = world_that_admits(admission);
            let caller = call(&mut world, 1, 1..2, key).start;
            world.run(millis(20));
            let _ = world.processes[caller].try_request(ECHO, &[7], b"hello");
            world.run(millis(20));
            let what = format!("{admission:?} with {}", key.0);
            let [victim, caller] = &world.processes[..] else { panic!("two processes") };
            assert_eq!(guests(&world), usize::from(refusal.is_none() && key.0 != KEY.0), "{what}");
            match refusal {
                None => {
                    let got = &victim.program.got[0];
                    assert_eq!((got.kind, &got.args[..]), (MessageKind::Request, &[7][..]), "{what}");
                    let source = got.source.expect("a peer of this wire version says who it is");
                    assert_eq!((source, source.address), (caller.name, caller.name.address), "its true source");
                    assert_eq!(caller.program.got.len(), 1, "{what}: the answer");
                }
                Some(reason) => {
                    assert!(victim.program.got.is_empty(), "{what}");
                    assert_eq!(victim.core.state().sessions().count(), 0, "{what}: nothing is kept");
                    assert_eq!(victim.sessions.ni().borrow().hosts().count(), 0, "{what}: nothing is kept");
                    assert_eq!(caller.program.returned[0].reason, reason, "{what}");
                }
            }
        }
    }
}

#[test]
fn an_endpoint_that_closes_returns_what_comes_and_takes_it_again_when_it_opens() {
    let mut world = World::connected(1);
    world.processes.swap(0, 1);
    set(&mut world, Admission::Nobody);
    let ask = |world: &mut World| {
        world.processes[1].try_request(ECHO, &[1], b"").expect("there is a session");
        world.run(millis(10));
        let caller = &mut world.processes[1];
        (std::mem::take(&mut caller.program.got).len(), std::mem::take(&mut caller.program.returned))
    };
    let (answers, returned) = ask(&mut world);
    assert_eq!((answers, returned[0].reason), (0, Reason::Closed));
    // It can send a request to itself, and gets the answer.
    let (there, Process { core, endpoint, .. }) = (world.processes[1].name, &mut world.processes[0]);
    core.state_mut().map(*endpoint, 0, there, KEY).expect("an endpoint");
    let _ = world.processes[0].try_request(ECHO, &[2], b"");
    world.run(millis(10));
    let _ = world.processes[0].try_request(ECHO, &[3], b"");
    world.run(millis(10));
    let answers = world.processes[0].program.got.iter().filter(|got| got.kind == MessageKind::Reply).count();
    assert!(answers > 0, "replies to its own requests come");
    world.processes[1].program.got.clear();
    set(&mut world, Admission::OwnUser);
    let (answers, returned) = ask(&mut world);
    assert_eq!((answers, returned.len()), (1, 0));
}

#[test]
fn sessions_without_a_key_come_in_a_burst_and_then_slowly_for_each_address() {
    let mut world = world_that_admits(Admission::Anybody);
    let callers = call(&mut world, 1, 1..101, Key::NONE);
    world.run(millis(3000));
    assert_eq!(admitted(&world, callers.clone()), BURST as usize, "at once");
    let refused = callers.clone().filter_map(|n| world.processes[n].program.returned.first());
    assert!(refused.clone().all(|returned| returned.reason == Reason::NoRoom));
    // Callers from another address, and callers with the key, are admitted meanwhile.
    let others = call(&mut world, 2, 1..11, Key::NONE);
    let keyed = call(&mut world, 1, 200..210, KEY);
    world.run(millis(100));
    assert_eq!((admitted(&world, others), admitted(&world, keyed)), (10, 10));
    // By now there is an allowance of three seconds again.
    let late = call(&mut world, 1, 300..400, Key::NONE);
    world.run(millis(100));
    let taken = admitted(&world, late);
    let most = GUESTS_MOST / 2 - BURST as usize;
    assert!((20..=most).contains(&taken), "{taken} after 3 s of one in {EVERY:?}");
}

#[test]
fn sessions_without_a_key_leave_room_for_other_addresses_and_for_callers_with_the_key() {
    let mut world = world_that_admits(Admission::Anybody);
    for host in 1..=4 {
        // As fast as they may come, with some of the callers refused.
        for wave in 0..8u16 {
            call(&mut world, host, 1 + wave * 40..1 + wave * 40 + 40, Key::NONE);
            world.run(EVERY * 40);
        }
        // Each address gets half of what those before it left.
        assert_eq!(guests(&world), GUESTS_MOST - (GUESTS_MOST >> host), "of {host}");
    }
    let other = call(&mut world, 100, 1..2, Key::NONE);
    let keyed = call(&mut world, 1, 1000..1001, KEY);
    world.run(millis(100));
    assert_eq!((admitted(&world, other), admitted(&world, keyed)), (1, 1));
    // Seats become free again.
    for process in &mut world.processes[1..] {
        process.sessions.say_goodbye();
    }
    world.run(millis(1000));
    assert_eq!(guests(&world), 0);
}
