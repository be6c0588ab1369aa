//! Bounds of what each user may do in a second. Others notice nothing when one wants more.

use crate::world::World;
use crate::SMALL;
use weft_core::Endpoint;
use weft_daemon::{Rates, Settings};
use weft_wire::attach::Request;
use weft_wire::segment::Sizes;
use weft_wire::{EndpointId, Key};

/// Settings in which users may do one thing a thousand times in a second.
fn settings(set: impl FnOnce(&mut Rates)) -> Settings {
    let mut rates = Rates::default();
    set(&mut rates);
    Settings { rates, ..Settings::default() }
}

/// Runs a second of turns in which a program asks for as much as its ring takes. The work of `runs` in each turn counts too.
fn ask_for_a_second(
    world: &mut World,
    program: usize,
    request: impl Fn(u32) -> Request,
    mut runs: impl FnMut(&mut World),
) {
    let end = world.now.plus_nanos(1_000_000_000);
    let mut next = 0;
    while world.now < end {
        while world.programs[program].sessions.port().borrow_mut().ask(&request(next)).is_some() {
            next += 1;
        }
        world.now = world.now.plus_nanos(90_000);
        world.turn();
        runs(world);
    }
}

#[test]
fn a_user_has_so_many_requests_served_in_a_second_and_another_one_does_not_wait() {
    let mut world = World::new(settings(|rates| rates.requests = 1000));
    let (greedy, other) = (world.attach(1000), world.attach(1001));
    world.endpoint_with(greedy, 1, SMALL).expect("an endpoint");
    let before = world.engine.counters().requests;
    let mut made = 0;
    let mut turns = 0;
    ask_for_a_second(
        &mut world,
        greedy,
        |_| Request::SetKey { part: 1, key: Key(1) },
        |world| {
            turns += 1;
            if turns % 1000 == 0 {
                let begin = world.now;
                world.endpoint_with(other, 1, SMALL).expect("an endpoint");
                assert!(world.now.nanos_since(begin) <= 30_000, "within three turns");
                made += 1;
            }
        },
    );
    let served = world.engine.counters().requests - before - made;
    assert!((1090..=1105).contains(&served) && made >= 9, "{served} requests, {made} of the other one");
    assert!(world.engine.next_time().is_some(), "the daemon sleeps until it may serve the next one");
    assert!(!world.engine.has_work());
}

#[test]
fn a_user_makes_so_many_endpoints_in_a_second_and_none_is_refused() {
    let mut world = World::new(settings(|rates| rates.endpoints = 1000));
    let (greedy, other) = (world.attach_with(1000, 1 << 30, |segment| segment), world.attach(1001));
    let sizes = SMALL;
    let allocate = |id| Request::Allocate { endpoint: EndpointId(id), key: Key(1), admission: 0, sizes };
    ask_for_a_second(&mut world, greedy, allocate, |_| {});
    let made = world.engine.endpoints();
    assert!((1090..=1105).contains(&made), "{made} endpoints");
    world.endpoint_with(other, 1, SMALL).expect("an endpoint");
    // The waiting requests are served later.
    (0..10_000).for_each(|_| _ = world.turn());
    assert!(world.engine.endpoints() > made + 1 && world.engine.next_time().is_none());
}

#[test]
fn an_endpoint_in_a_place_that_is_to_be_cleared_counts_for_more() {
    let mut world = World::new(settings(|rates| rates.endpoints = 1000));
    let program = world.attach(1000);
    let large = Sizes { ring_order: 14, ..SMALL };
    let mut times = 0;
    let end = world.now.plus_nanos(1_000_000_000);
    while world.now < end {
        let endpoint = world.endpoint_with(program, 1, large).expect("an endpoint");
        world.programs[program].core.state_mut().free_endpoint(endpoint).expect("it is there");
        world.programs[program].sessions.port().borrow_mut().ask(&Request::Free { part: 1 }).expect("room");
        times += 1;
    }
    assert!((30..=40).contains(&times), "2 MiB each time: {times}");
}

/// Endpoints that send to others of the same user.
fn pairs(world: &mut World, user: u32, count: u64) -> (usize, Vec<Endpoint>) {
    let (from, to) = (world.attach(user), world.attach(user));
    let senders = (0..count)
        .map(|key| {
            let (x, y) = (world.endpoint_with(from, key, SMALL), world.endpoint_with(to, key, SMALL));
            let (x, y) = (x.expect("an endpoint"), y.expect("an endpoint"));
            world.map((from, x), 0, (to, y), key);
            world.send((from, x), 0, &[], b"first");
            x
        })
        .collect();
    (from, senders)
}

#[test]
fn endpoints_of_a_user_become_resident_so_often_in_a_second_and_those_of_another_one_do_not_wait() {
    let mut world = World::new(Settings { frames: 4, ..settings(|rates| rates.remappings = 1000) });
    let ((greedy, senders), (other, quiet)) = (pairs(&mut world, 1000, 40), pairs(&mut world, 1001, 1));
    world.settle();
    let came = |world: &World, program: usize| world.programs[program + 1].log.messages.len();
    let (before, begin) = (world.engine.counters().bound, world.now);
    let (mut longest, mut round) = (0, came(&world, other));
    while world.now.nanos_since(begin) < 1_000_000_000 {
        for x in &senders {
            let _ = world.programs[greedy].core.state_mut().try_send(*x, 0, crate::outgoing(&[], b"again"));
        }
        if came(&world, other) == round {
            let sent = world.programs[other].core.state_mut().try_send(quiet[0], 0, crate::outgoing(&[], b"one"));
            sent.expect("room");
            round += 1;
            let at = world.now;
            while came(&world, other) < round {
                world.turn();
            }
            longest = longest.max(world.now.nanos_since(at));
        }
        world.now = world.now.plus_nanos(90_000);
        world.turn();
    }
    let bound = world.engine.counters().bound - before;
    assert!((1000..=2400).contains(&bound), "each user's thousand and what it was ahead: {bound}");
    assert!(longest <= 2_000_000, "a message of the other one took {longest} ns");
    world.settle();
    assert_eq!(world.engine.kept().into_iter().find(|(what, _)| *what == "waiting"), Some(("waiting", 0)));
}
