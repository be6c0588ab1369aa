//! When the acknowledgements in a packet are processed.

use crate::world::{World, MTU};
use std::time::Duration;
use weft_transport::Verdict;
use weft_wire::frame::StreamId;
use weft_wire::{Head, Kind, Reason};

const A: StreamId = StreamId(1);

fn head() -> Head {
    Head::new(Kind::Send)
}

/// A record there, and one back that acknowledges it, at once.
fn there_and_back(world: &mut World) {
    let now = world.now;
    for at in [0, 1] {
        let mut packet = vec![0; MTU];
        world.channel(at).send(A, head(), &[], &[0; 20]).expect("room");
        let bytes = world.channel(at).transmit(now, &mut packet).expect("something to say");
        assert_eq!(world.take(1 - at, &packet[..bytes]), Some(Verdict::Taken));
    }
}

#[test]
fn what_a_packet_says_of_ours_is_taken_in_once_its_answer_is_under_way() {
    let mut world = World::connected(1, 1);
    world.run(Duration::from_secs(1)).expect("in order");
    let (now, mut packet) = (world.now, vec![0; MTU]);
    there_and_back(&mut world);
    let channel = world.channel(0);
    assert!(channel.in_flight() > 0, "it was taken in before");
    assert!(channel.is_quiet(), "what goes next need not wait");
    channel.send(A, head(), &[], &[0; 20]).expect("room");
    let bytes = channel.transmit(now, &mut packet).expect("something to say");
    assert!(!channel.is_quiet());
    assert!(channel.in_flight() > bytes as u64, "it was taken in before");
    channel.catch_up();
    assert_eq!(channel.in_flight(), bytes as u64);
    assert!(!channel.is_quiet());
}

#[test]
fn what_a_packet_says_of_ours_is_taken_in_before_whatever_it_matters_for() {
    type Then = fn(&mut World);
    let all: [(&str, Then); 5] = [
        ("there is nothing to say", |world| {
            let now = world.now;
            assert_eq!(world.channel(0).transmit(now, &mut [0; MTU]), None);
        }),
        ("time goes by", |world| {
            let now = world.now;
            world.channel(0).on_timeout(now);
        }),
        ("another packet comes", |world| {
            let now = world.now;
            let mut packet = vec![0; MTU];
            world.channel(1).send(A, head(), &[], &[0; 20]).expect("room");
            let bytes = world.channel(1).transmit(now, &mut packet).expect("something to say");
            assert_eq!(world.take(0, &packet[..bytes]), Some(Verdict::Taken));
        }),
        ("its stream is closed", |world| drop(world.channel(0).close(A, Reason::PeerLost))),
        ("it rests", |world| world.channel(0).rest()),
    ];
    for (what, then) in all {
        let mut world = World::connected(1, 1);
        world.run(Duration::from_secs(1)).expect("in order");
        there_and_back(&mut world);
        assert!(world.channel(0).in_flight() > 0, "it was taken in before {what}");
        then(&mut world);
        assert_eq!(world.channel(0).in_flight(), 0, "it was not taken in though {what}");
    }
}
