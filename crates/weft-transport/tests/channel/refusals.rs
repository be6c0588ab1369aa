//! Reports of a host about a process that ended: nobody has that port.

use crate::world::{micros, World};
use std::time::Duration;
use weft_transport::testing::{Faults, Faulty, MemLink};
use weft_wire::packet::{ChannelId, PacketKind, Quote};
use weft_wire::Reason;

/// The time until host 0 has lost the other one, and why.
fn time_to_loss(world: &mut World) -> (Duration, Reason) {
    let start = world.now;
    while world.lost(0).is_none() {
        let goes_on = world.turn(start + Duration::from_secs(5)).expect("in order");
        assert!(goes_on, "never lost: {}", world.state());
    }
    (world.now.since(start), world.lost(0).expect("just seen"))
}

/// A quote of a packet that host 0 sent.
fn quote(world: &mut World) -> Quote {
    let channel = world.channel(0);
    let (to, from) = (channel.theirs().id, channel.ours().id);
    let kind = if channel.is_open() { PacketKind::Data } else { PacketKind::Call };
    Quote { kind, to, from, number: weft_wire::packet::FIRST_NUMBER as u32 }
}

#[test]
fn a_process_that_ended_is_known_within_tens_of_milliseconds_if_its_host_lives() {
    for refusals in [1, u32::MAX] {
        let mut world = World::connected(1, 1);
        // Hosts limit the rate of refusals, so one has to suffice.
        world.refuses[1] = Some(refusals);
        world.order(0, 1);
        let (took, reason) = time_to_loss(&mut world);
        assert_eq!(reason, Reason::PeerLost);
        assert!((20..100).contains(&took.as_millis()), "{took:?}");
    }
}

#[test]
fn a_refusal_is_noticed_with_any_data_in_flight_and_each_record_comes_back_once() {
    let mut world = World::connected(3, 1);
    for at in [0, 1] {
        world.hosts[at].program.bytes_most = 30_000;
    }
    world.order(0, 200);
    world.run(Duration::from_millis(2)).expect("in order");
    world.refuses[1] = Some(6);
    let (took, reason) = time_to_loss(&mut world);
    assert_eq!(reason, Reason::PeerLost);
    assert!(took < Duration::from_millis(150), "{took:?}");
    let (_, in_doubt) = world.settle(0).expect("what came back is true");
    assert!(in_doubt > 0);
}

#[test]
fn a_call_to_a_port_that_nobody_has_ends_within_some_tenths_of_a_second() {
    for refusals in [1, u32::MAX] {
        let mut world = World::new(1, 1);
        world.refuses[1] = Some(refusals);
        world.call(0);
        let (took, reason) = time_to_loss(&mut world);
        assert_eq!(reason, Reason::NobodyThere);
        assert!((150..400).contains(&took.as_millis()), "{took:?}");
    }
}

#[test]
fn without_a_refusal_silence_takes_the_suspicion_time() {
    let mut world = World::connected(1, 1);
    world.refuses[1] = Some(0);
    world.order(0, 1);
    let (took, reason) = time_to_loss(&mut world);
    assert_eq!(reason, Reason::Silent);
    assert!(took >= Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_live_peer_answers_whatever_is_said_of_it() {
    // An attacker who sees our packets sends refusals all the time, over paths of many delays and loss rates.
    for (delay, drop) in [(20, 0), (250, 20_000), (20_000, 0), (90_000, 20_000)] {
        let mut world = World::new(1, 7);
        world.links = [1, 2].map(|seed| {
            let faults = Faults { drop, ..Faults::default() };
            Faulty::new(MemLink::new(micros(delay), 10_000_000_000), faults, seed)
        });
        let mut round = 0;
        world.call(0);
        while round < 400 {
            round += 1;
            world.order(0, u32::from(round % 10 == 0));
            let said = quote(&mut world);
            let now = world.now;
            world.channel(0).on_refusal(now, &said);
            world.run(Duration::from_millis(5)).expect("in order");
            assert_eq!(world.lost(0), None, "round {round} over {delay} µs with {drop} ppm lost");
        }
        world.links.iter_mut().for_each(|link| link.faults.drop = 0);
        world.run_until_done(Duration::from_secs(2)).expect("in order");
    }
}

#[test]
fn a_refusal_without_the_ids_and_a_number_that_was_sent_is_nothing() {
    let mut world = World::connected(1, 1);
    let good = quote(&mut world);
    let next = good.number.wrapping_add(1000);
    let forged = [
        Quote { from: ChannelId(good.from.0 ^ 1), ..good },
        Quote { to: ChannelId(good.to.0 ^ 1), ..good },
        Quote { number: next, ..good },
        Quote { kind: PacketKind::Call, to: ChannelId::NOBODY, ..good },
        Quote { kind: PacketKind::Reset, ..good },
    ];
    let now = world.now;
    let packets = world.packets[0];
    for quote in forged {
        assert!(!world.channel(0).on_refusal(now, &quote), "{quote:?}");
    }
    world.run(Duration::from_secs(1)).expect("in order");
    assert_eq!(world.packets[0], packets, "nobody is asked");
    assert!(world.channel(0).on_refusal(now, &good));
    world.run(Duration::from_secs(1)).expect("in order");
    assert_eq!((world.packets[0], world.lost(0)), (packets + 1, None), "it is asked once, and answers");
}

#[test]
fn an_answer_that_waits_in_our_socket_while_we_are_away_counts() {
    let mut world = World::connected(1, 1);
    let (said, now) = (quote(&mut world), world.now);
    assert!(world.channel(0).on_refusal(now, &said));
    world.channel(0).on_timeout(now);
    world.transmit(0);
    // After a long absence the clock is read before the answer is.
    world.now = now + Duration::from_secs(10);
    let now = world.now;
    world.channel(0).on_timeout(now);
    assert_eq!(world.lost(0), None);
    world.run(Duration::from_secs(1)).expect("in order");
    assert_eq!(world.lost(0), None);
}
