//! How endpoints share the daemon when all want more than there is.

use crate::outgoing;
use crate::world::World;
use weft_core::Endpoint;
use weft_daemon::Settings;
use weft_wire::segment::Sizes;
use weft_wire::Uid;

/// Rings that hold more than a visit of the largest weight takes.
const LARGE: Sizes = Sizes { ring_order: 11, area_pages: 1024 };

/// Programs of users with these weights, each with an endpoint that sends to one of a program of its own.
fn senders(world: &mut World, weights: &[u32]) -> Vec<(usize, Endpoint)> {
    let mut senders = Vec::new();
    for (at, &weight) in weights.iter().enumerate() {
        let user = 1000 + at as u32;
        world.engine.set_weight(Uid(user), weight);
        let (from, to) = (world.attach(user), world.attach(user));
        let (x, y) = (world.endpoint_with(from, 1, LARGE), world.endpoint_with(to, 2, LARGE));
        let (x, y) = (x.expect("an endpoint"), y.expect("an endpoint"));
        world.map((from, x), 0, (to, y), 2);
        world.send((from, x), 0, &[], b"first");
        senders.push((from, x));
    }
    world.settle();
    senders
}

/// Sends as much as there is room for, in so many turns. Returns how many messages each receiver got.
fn shares(world: &mut World, senders: &[(usize, Endpoint)], payload: &[u8], turns: u32) -> Vec<usize> {
    world.programs.iter_mut().for_each(|program| program.log.messages.clear());
    for _ in 0..turns {
        for &(program, endpoint) in senders {
            let state = world.programs[program].core.state_mut();
            while state.try_send(endpoint, 0, outgoing(&[], payload)).is_ok() {}
        }
        world.turn();
        // The receivers are faster than the daemon, so its turns are the bottleneck.
        for &(program, _) in senders {
            (0..12).for_each(|_| _ = world.programs[program + 1].poll());
            world.programs[program].poll();
        }
    }
    senders.iter().map(|(program, _)| world.programs[program + 1].log.messages.len()).collect()
}

#[test]
fn equal_weights_get_equal_shares() {
    let mut world = World::new(Settings::default());
    let senders = senders(&mut world, &[1; 20]);
    let shares = shares(&mut world, &senders, &[1; 16], 100);
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), &share| {
        let share = share as f64;
        (sum + share, squares + share * share)
    });
    // Jain's index: 1 if all are equal.
    let jain = sum * sum / (shares.len() as f64 * squares);
    assert!(jain >= 0.98 && sum > 60_000.0, "{jain}: {shares:?}");
}

#[test]
fn weights_are_shares() {
    let mut world = World::new(Settings::default());
    let weights = [1, 2, 4, 1, 2, 4];
    let senders = senders(&mut world, &weights);
    for payload in [&[1; 16][..], &[1; 2000][..]] {
        let shares = shares(&mut world, &senders, payload, 100);
        let unit = shares.iter().sum::<usize>() as f64 / f64::from(weights.iter().sum::<u32>());
        for (share, weight) in shares.iter().zip(weights) {
            let error = *share as f64 / (unit * f64::from(weight)) - 1.0;
            assert!(error.abs() <= 0.05, "{error}: {shares:?}");
        }
    }
}

#[test]
fn a_light_sender_waits_for_one_visit_to_each_of_the_others() {
    let mut world = World::new(Settings::default());
    let all = senders(&mut world, &[1; 30]);
    let ((program, endpoint), bulk) = (all[0], &all[1..]);
    world.programs.iter_mut().for_each(|program| program.log.messages.clear());
    let mut longest = 0;
    for round in 0..60 {
        for &(program, endpoint) in bulk {
            let state = world.programs[program].core.state_mut();
            while state.try_send(endpoint, 0, outgoing(&[], &[1; 30])).is_ok() {}
        }
        let state = world.programs[program].core.state_mut();
        state.try_send(endpoint, 0, outgoing(&[], b"one")).expect("room");
        let before = world.engine.counters().delivered;
        while world.programs[program + 1].log.messages.len() <= round {
            world.turn();
        }
        longest = longest.max(world.engine.counters().delivered - before);
    }
    // A turn visits several endpoints, so those behind it in the last turn count as well.
    assert!(longest <= 64 * (bulk.len() as u64 + 16), "{longest}");
}
