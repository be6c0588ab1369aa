//! Programs that ring all their bells in every turn and take nothing, beside one that always has something to send.

use crate::world::World;
use crate::{outgoing, SMALL};
use weft_core::Endpoint;
use weft_daemon::testing::MemSegment;
use weft_daemon::Settings;
use weft_wire::segment::{Segment, PARTS, SYSTEM, TO_DAEMON};

/// Programs of the flood.
const FLOOD: u32 = 64;

/// Programs each of which has filled the ring of an endpoint, and is not polled any more. Returns the memory with their bells.
fn flood(world: &mut World, count: u32) -> Vec<MemSegment> {
    let mut all = Vec::new();
    for number in 0..count {
        let program = world.attach_with(2000 + number, PARTS + SYSTEM.bytes() + 2 * SMALL.bytes(), |segment| segment);
        let [x, y] = [1, 2].map(|key| world.endpoint_with(program, key, SMALL).expect("an endpoint"));
        world.map((program, x), 0, (program, y), 2);
        world.send((program, x), 0, &[], b"first");
        all.push((program, x));
    }
    world.settle();
    let fill = |(program, x): (usize, Endpoint)| {
        while world.programs[program].core.state_mut().try_send(x, 0, outgoing(&[], &[7; 16])).is_ok() {}
        world.programs[program].sessions.port().borrow().platform().segment.clone()
    };
    all.into_iter().map(fill).collect()
}

/// Messages that one program and the flood get through in so many turns.
fn messages(count: u32) -> (usize, u64) {
    const TURNS: u32 = 20_000;
    let mut world = World::new(Settings::default());
    let (from, to) = (world.attach(1000), world.attach(1000));
    let (x, y) = (world.endpoint_with(from, 1, SMALL).expect("room"), world.endpoint_with(to, 2, SMALL).expect("room"));
    world.map((from, x), 0, (to, y), 2);
    world.send((from, x), 0, &[], b"first");
    let flood = flood(&mut world, count);
    world.programs[to].log.messages.clear();
    let before = world.engine.counters().delivered;
    for _ in 0..TURNS {
        world.now = world.now.plus_nanos(10_000);
        while world.programs[from].core.state_mut().try_send(x, 0, outgoing(&[], &[1; 16])).is_ok() {}
        // The bells of existing and missing endpoints, and of the control plane.
        flood.iter().for_each(|segment| (0..64).for_each(|part| segment.ring(TO_DAEMON, part)));
        world.engine.poll(world.now);
        [from, to].iter().for_each(|program| _ = world.programs[*program].poll());
    }
    let victims = world.programs[to].log.messages.len();
    (victims, world.engine.counters().delivered - before - victims as u64)
}

#[test]
fn programs_that_ring_always_and_take_nothing_leave_others_what_they_get_alone() {
    let (alone, _) = messages(0);
    let (beside, floods) = messages(FLOOD);
    assert!(beside * 10 >= alone * 9, "{beside} of {alone}");
    // What fits into one ring of each, plus the words about the victim's flows.
    assert!(floods <= u64::from(FLOOD * SMALL.ring()) + beside as u64, "{floods}");
}
