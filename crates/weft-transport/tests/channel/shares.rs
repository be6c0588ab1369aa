//! The share that an overloaded host lets each of its peers have in flight.

use crate::hostile::Liar;
use crate::world::{micros, World, MTU};
use std::time::Duration;
use weft_transport::Verdict;
use weft_wire::frame::{Frame, SHARE_LASTS};

const SHARE: u32 = 2 * MTU as u32;

/// Has host 0 send `records`, and returns the most bytes that it had in flight.
fn most_under_way(world: &mut World, records: u32) -> u64 {
    world.order(0, records);
    let end = world.now + Duration::from_secs(5);
    let mut most = 0;
    while !world.is_done() {
        assert!(world.turn(end).expect("in order"), "{}", world.state());
        most = most.max(world.channel(0).in_flight());
    }
    most
}

#[test]
fn a_peer_has_no_more_than_its_share_under_way_until_that_lapses() {
    let mut world = World::connected(1, 3);
    world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 1000);
    let freely = most_under_way(&mut world, 400);
    assert!(freely > 4 * u64::from(SHARE), "{freely}");
    world.channel(1).grant(Some(SHARE));
    // The first acknowledgement carries the share.
    most_under_way(&mut world, 20);
    let bounded = most_under_way(&mut world, 400);
    assert!(bounded < u64::from(SHARE) + MTU as u64, "{bounded}: it may be exceeded by less than a packet");
    world.channel(1).grant(None);
    assert!(most_under_way(&mut world, 20) <= u64::from(SHARE) + MTU as u64, "it still holds");
    world.run(SHARE_LASTS + micros(1000)).expect("nothing");
    // The first packet of the peer after that time ends it.
    most_under_way(&mut world, 20);
    assert!(most_under_way(&mut world, 400) > 4 * u64::from(SHARE));
}

#[test]
fn whatever_share_a_peer_tells_messages_go_on() {
    for bytes in [0, 1, u32::MAX] {
        let mut world = World::connected(1, 5);
        world.channel(1).grant(Some(bytes));
        world.order(0, 200);
        world.run_until_done(Duration::from_secs(5)).expect("all of it");
    }
    let mut liar = Liar::new();
    assert_eq!(liar.say(&[Frame::Share { bytes: 0 }, Frame::Share { bytes: 7 }]), Verdict::Taken);
    assert_eq!(liar.world.channel(0).congestion_window(), 7, "the last one counts");
}
