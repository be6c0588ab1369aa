//! Bad networks.

use crate::world::{millis, seed, World, ECHO, NOTE};
use weft_transport::testing::Faults;

const BAD: Faults = Faults {
    drop: 100_000,
    duplicate: 50_000,
    corrupt: 50_000,
    reorder: 100_000,
    late_most: std::time::Duration::from_micros(300),
};

/// Sends notes that must arrive exactly once and in order over a bad network.
fn notes_over_faults(all: u32, lose: Option<u64>) -> u64 {
    let mut world = World::connected(seed());
    world.network.borrow_mut().faults = BAD;
    world.processes[1].program.counts_only = true;
    world.processes[1].program.loses = lose;
    let mut sent = 0;
    for _ in 0..1_000_000 {
        while sent < all && world.processes[0].try_send(NOTE, &[sent], b"").is_ok() {
            sent += 1;
        }
        world.run(millis(1));
        if sent == all && world.processes[0].core.state().unsettled() == 0 {
            break;
        }
        world.processes[0].core.state_mut().hasten();
    }
    world.processes[1].program.notes
}

#[test]
fn a_million_messages_come_exactly_once_over_drop_duplicate_reorder_and_corrupt() {
    assert_eq!(notes_over_faults(1_000_000, None), 1_000_000);
}

#[test]
#[should_panic(expected = "each once")]
fn a_message_that_is_lost_is_noticed() {
    notes_over_faults(10_000, Some(5000));
}

#[test]
fn requests_are_answered_over_faults() {
    let mut world = World::connected(seed());
    world.network.borrow_mut().faults = BAD;
    for n in 0..2000 {
        world.request(ECHO, &[n], &[n as u8; 100]);
    }
    world.run(millis(2000));
    let answers: Vec<u32> = world.processes[0].program.got.iter().map(|got| got.args[0]).collect();
    assert_eq!(answers, (0..2000).collect::<Vec<u32>>());
    assert!(world.processes[0].program.returned.is_empty());
}
