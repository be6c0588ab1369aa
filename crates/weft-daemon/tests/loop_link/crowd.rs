//! One program beside a thousand endpoints of others that write again and again: the share of its throughput that remains.
//!
//! The clock advances by the time that each turn's work takes, so that the program loses the time that others cost.

use crate::world::World;
use crate::{outgoing, SMALL};
use weft_core::Endpoint;
use weft_daemon::{Counters, Settings};
use weft_wire::segment::{Sizes, PARTS, SYSTEM};

/// Instructions of the daemon's actions, where a remapping includes its bell and its visit, rounded up from
/// `docs/measurements/2026-11-28-weftd-many.md`; and instructions that the processor executes in a nanosecond.
const TURN: u64 = 600;
const MESSAGE: u64 = 420;
const REMAPPING: u64 = 1500;
const PER_NANO: u64 = 3;

/// Endpoints of the crowd.
const CROWD: u32 = 1000;

fn nanos(before: &Counters, after: &Counters) -> u64 {
    let instructions = TURN + MESSAGE * (after.delivered - before.delivered) + REMAPPING * (after.bound - before.bound);
    instructions / PER_NANO
}

/// Makes the crowd's endpoints, of so many users. Each sends to an endpoint of its user.
fn crowd(world: &mut World, users: u32) -> Vec<(usize, Endpoint)> {
    let mut all = Vec::new();
    for user in 0..users {
        let each = CROWD / users;
        let bytes = PARTS + SYSTEM.bytes() + each as usize * SMALL.bytes();
        let from = world.attach_with(2000 + user, bytes, |segment| segment);
        let to = world.attach(2000 + user);
        let sink = world.endpoint_with(to, 1, Sizes { ring_order: 12, ..SMALL }).expect("an endpoint");
        for _ in 0..each {
            let x = world.endpoint_with(from, 1, SMALL).expect("an endpoint");
            world.map((from, x), 0, (to, sink), 1);
            world.send((from, x), 0, &[], b"first");
            all.push((from, x));
        }
    }
    all
}

/// Messages of one program in 20 ms, beside a crowd of `users` users that writes every `every` nanoseconds.
fn messages(users: u32, every: u64) -> usize {
    let mut world = World::new(Settings::default());
    let (from, to) = (world.attach(1000), world.attach(1000));
    let (x, y) = (world.endpoint(from, 1), world.endpoint(to, 2));
    world.map((from, x), 0, (to, y), 2);
    let crowd = crowd(&mut world, users);
    world.send((from, x), 0, &[], b"first");
    world.settle();
    world.programs[to].log.messages.clear();
    let end = world.now.plus_nanos(20_000_000);
    let mut due = world.now.plus_nanos(every / 2);
    while world.now < end {
        if world.now >= due {
            due = world.now.plus_nanos(every);
            for &(program, x) in &crowd {
                let _ = world.programs[program].core.state_mut().try_send(x, 0, outgoing(&[], b"again"));
            }
        }
        while world.programs[from].core.state_mut().try_send(x, 0, outgoing(&[], &[1; 16])).is_ok() {}
        let before = *world.engine.counters();
        world.engine.poll(world.now);
        world.now = world.now.plus_nanos(nanos(&before, world.engine.counters()));
        // Programs are faster than the daemon.
        world.programs.iter_mut().for_each(|program| _ = program.poll());
        (0..2).for_each(|_| _ = world.programs[to].poll() + world.programs[from].poll());
    }
    world.programs[to].log.messages.len()
}

#[test]
fn a_thousand_endpoints_that_write_every_10_ms_cost_others_less_than_a_tenth() {
    let alone = messages(0, u64::MAX);
    let share = |users, every| messages(users, every) as f64 / alone as f64;
    for users in [1, 50] {
        let beside = share(users, 10_000_000);
        assert!(beside >= 0.9, "{users} users: {beside} of {alone}");
    }
    // The measurement does detect a loss.
    let beside = share(1, 500_000);
    assert!(beside < 0.9, "twenty times as often: {beside} of {alone}");
}
