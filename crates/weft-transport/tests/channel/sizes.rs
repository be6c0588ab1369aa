//! Packet sizes: found by trial, reduced when the path shrinks; and runs of packets of one size.

use crate::world::{micros, seed, World};
use std::time::Duration;
use weft_transport::testing::Faults;
use weft_wire::frame::{Frame, StreamId};
use weft_wire::packet::{Packet, HEADER, PACKET_LEAST};
use weft_wire::{Head, Kind};

/// The size of buffers: the largest packets of a jumbo link, without Ethernet's headers.
const BUFFER: usize = 9000;

/// Two hosts whose links carry `carries` bytes, while the hosts assume 1,200.
fn world(streams: u32, carries: usize, seed: u64) -> World {
    let mut world = World::new(streams, seed);
    world.mtu = BUFFER;
    for at in [0, 1] {
        world.hosts[at].settings.packet_first = 1200;
        world.hosts[at].program.bytes_most = 30_000;
        world.links[at].carries = carries;
    }
    world.run(micros(100_000)).expect("nothing to go wrong");
    assert!([0, 1].iter().all(|&at| world.channel(at).is_open()));
    world
}

/// Sends `records` of up to 30,000 bytes each way.
fn stream(world: &mut World, records: u32) {
    for at in [0, 1] {
        world.order(at, records);
    }
    world.run_until_done(Duration::from_secs(20)).expect("exactly once, in order");
}

fn is_trial(packet: &[u8]) -> bool {
    matches!(Packet::decode(packet).map(|p| p.only_frame()), Ok(Some(Frame::Padding { .. })))
}

#[test]
fn the_size_that_a_path_carries_is_found() {
    for (carries, least) in [(8972, 8972), (1472, 1472), (1200, 1200), (548, 548), (1400, 1330), (4000, 3000)] {
        let mut world = world(1, carries, 1);
        stream(&mut world, 400);
        for at in [0, 1] {
            let size = world.channel(at).packet_size();
            assert!((least..=carries).contains(&size), "{size} of {carries}");
            let counters = *world.channel(at).counters();
            assert!(counters.trials_sent <= 8, "{counters:?}");
        }
    }
}

#[test]
fn on_a_path_that_carries_the_announced_size_a_search_causes_no_timeout() {
    let mut world = world(1, 1472, 1);
    stream(&mut world, 60);
    for at in [0, 1] {
        let counters = *world.channel(at).counters();
        assert_eq!((counters.timeouts, counters.packets_lost, counters.dropped_violation), (0, 0, 0), "{counters:?}");
        assert!(counters.trials_sent > counters.trials_lost && counters.trials_lost > 0, "{counters:?}");
    }
}

#[test]
fn a_first_size_that_is_too_large_is_reduced() {
    for (first, carries) in [(1472, 1400), (9000, 1472), (9000, 700)] {
        let mut world = World::new(1, 1);
        world.mtu = BUFFER;
        for at in [0, 1] {
            world.hosts[at].settings.packet_first = first;
            world.hosts[at].program.bytes_most = 30_000;
            world.links[at].carries = carries;
        }
        let start = world.now;
        stream(&mut world, 20);
        let took = world.now.since(start);
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(world.channel(0).packet_size() <= carries);
    }
}

#[test]
fn a_path_that_shrinks_holds_a_stream_up_for_a_few_timeouts_and_loses_nothing() {
    for carries in [8000, 1472, 1300, 548] {
        let mut world = world(2, 8972, 1);
        stream(&mut world, 60);
        assert_eq!(world.channel(0).packet_size(), 8972);
        for at in [0, 1] {
            world.order(at, 60);
        }
        world.run(micros(400)).expect("in order");
        assert!(!world.is_done());
        world.links.iter_mut().for_each(|link| link.carries = carries);
        let start = world.now;
        world.run_until_done(Duration::from_secs(5)).expect("exactly once, in order");
        let took = world.now.since(start);
        let timeouts = [0, 1].map(|at| world.channel(at).counters().timeouts);
        println!("to {carries}: {took:?} for the rest of the stream, {timeouts:?} time-outs");
        assert!(took < Duration::from_millis(250), "{took:?}, to {carries}");
        for at in [0, 1] {
            let size = world.channel(at).packet_size();
            assert!(size <= carries && size == if carries < 1200 { 548 } else { 1200 }, "{size} of {carries}");
        }
        assert_eq!([0, 1].map(|at| world.lost(at)), [None, None]);
        // Nothing is tried within a minute; then the size is found again.
        let trials = world.channel(0).counters().trials_sent;
        world.run(Duration::from_secs(50)).expect("in order");
        stream(&mut world, 30);
        assert_eq!(world.channel(0).counters().trials_sent, trials);
        world.run(Duration::from_secs(10)).expect("in order");
        world.links.iter_mut().for_each(|link| link.carries = 8972);
        stream(&mut world, 60);
        assert_eq!(world.channel(0).packet_size(), 8972);
    }
}

#[test]
fn single_large_messages_get_through_a_path_that_shrank() {
    let mut world = world(1, 8972, 1);
    stream(&mut world, 60);
    world.links.iter_mut().for_each(|link| link.carries = 1472);
    let mut slow = 0;
    for _ in 0..40 {
        world.order(0, 1);
        let start = world.now;
        world.run_until_done(Duration::from_secs(1)).expect("exactly once, in order");
        slow += u32::from(world.now.since(start) > Duration::from_millis(5));
        world.run(Duration::from_millis(5)).expect("in order");
    }
    assert!((1..12).contains(&slow), "{slow} of 40 messages waited for time-outs");
}

#[test]
fn silence_alone_is_no_reason_for_smaller_packets() {
    let mut world = world(1, 8972, 1);
    stream(&mut world, 60);
    for _ in 0..5 {
        world.order(0, 60);
        world.run(micros(300)).expect("in order");
        // Only one direction, so that earlier packets are acknowledged.
        world.links[0].faults.drop = 1_000_000;
        world.run(Duration::from_millis(500)).expect("in order");
        assert!(world.channel(0).packet_size() < 8972, "while it lasts, smaller ones are tried");
        world.links[0].faults.drop = 0;
        world.run_until_done(Duration::from_secs(5)).expect("exactly once, in order");
        world.run(Duration::from_millis(100)).expect("in order");
        assert_eq!(world.channel(0).packet_size(), 8972);
    }
}

#[test]
fn chance_loss_neither_hides_a_size_nor_takes_it_away() {
    let first = seed().wrapping_mul(1000);
    let mut found = 0;
    for seed in first..first + 100 {
        let mut world = world(2, 8972, seed);
        for link in &mut world.links {
            link.faults = Faults { drop: 50_000, reorder: 50_000, late_most: micros(500), ..Faults::default() };
        }
        stream(&mut world, 100);
        found += [0, 1].iter().filter(|&&at| world.channel(at).packet_size() == 8972).count();
    }
    // Two sizes are tried twice each, and one in twenty trials is lost by chance.
    assert!(found >= 190, "{found} of 200 found all that the path carries");
}

#[test]
fn lost_trials_cost_nobody_anything() {
    let mut world = world(1, 8972, 1);
    world.tamper = Some(Box::new(|_, packet| !is_trial(packet)));
    stream(&mut world, 400);
    world.run(Duration::from_secs(1)).expect("in order");
    for at in [0, 1] {
        let counters = *world.channel(at).counters();
        assert_eq!((counters.timeouts, counters.packets_lost), (0, 0), "{counters:?}");
        assert_eq!((counters.trials_sent, counters.trials_lost), (8, 8));
        assert_eq!(world.channel(at).packet_size(), 1200);
        assert_eq!(world.channel(at).next_timeout(), None);
    }
}

#[test]
fn an_idle_channel_tries_nothing_and_neither_does_one_with_little_to_say() {
    let mut world = world(1, 8972, 1);
    for at in [0, 1] {
        world.hosts[at].program.bytes_most = 100;
    }
    for _ in 0..20 {
        stream(&mut world, 5);
    }
    world.run(Duration::from_secs(1)).expect("in order");
    assert_eq!([0, 1].map(|at| world.channel(at).counters().trials_sent), [0, 0]);
    // All traffic stops in the middle of a search, with a lost trial.
    world.tamper = Some(Box::new(|_, packet| !is_trial(packet)));
    for at in [0, 1] {
        world.hosts[at].program.bytes_most = 3_000;
    }
    stream(&mut world, 5);
    world.run(Duration::from_secs(1)).expect("in order");
    assert!(world.channel(0).counters().trials_sent > 0);
    let packets = world.packets;
    for _ in 0..10 {
        world.run(Duration::from_secs(3600)).expect("in order");
        [0, 1].into_iter().for_each(|at| world.transmit(at));
    }
    assert_eq!(world.packets, packets);
    assert_eq!([0, 1].map(|at| world.channel(at).next_timeout()), [None, None]);
}

#[test]
fn a_size_that_the_link_refuses_is_given_up_at_once() {
    let mut world = world(1, usize::MAX, 1);
    stream(&mut world, 60);
    assert_eq!(world.channel(0).packet_size(), BUFFER);
    world.order(0, 60);
    world.run(micros(100)).expect("in order");
    world.interface = 1472;
    let (start, timeouts) = (world.now, world.channel(0).counters().timeouts);
    world.run_until_done(Duration::from_secs(1)).expect("exactly once, in order");
    assert!(world.now.since(start) < Duration::from_millis(20), "{:?}", world.now.since(start));
    assert_eq!((world.channel(0).packet_size(), world.channel(0).counters().timeouts), (1472, timeouts));
    // Even if a link claims to carry less, packets do not get smaller than what every link carries.
    let now = world.now;
    world.channel(0).too_large(now, 20);
    assert_eq!(world.channel(0).packet_size(), PACKET_LEAST);
    stream(&mut world, 10);
}

#[test]
fn no_packet_is_larger_than_the_peer_takes() {
    let mut world = World::new(1, 1);
    world.mtu = BUFFER;
    world.hosts[1].settings.packet_most = 3000;
    world.capture = Some(Vec::new());
    for at in [0, 1] {
        world.hosts[at].settings.packet_first = 1200;
        world.hosts[at].program.bytes_most = 30_000;
    }
    stream(&mut world, 40);
    assert_eq!([0, 1].map(|at| world.channel(at).packet_size()), [3000, 3000]);
    assert!(world.capture.take().expect("a capture").iter().all(|(_, packet)| packet.len() <= 3000));
}

#[test]
fn packets_of_a_burst_are_equally_large_but_for_the_last() {
    for (streams, bytes) in [(1, 100_000), (7, 20_000), (64, 1300), (64, 700)] {
        let mut world = world(streams, 1472, 1);
        stream(&mut world, 400 / streams.min(10));
        let size = world.channel(0).packet_size();
        assert_eq!(size, 1472);
        world.run(Duration::from_secs(1)).expect("in order");
        let (now, mut packet) = (world.now, vec![0; size]);
        let channel = world.channel(0);
        for odd in 0..bytes / 1000 + 1 {
            for stream in 1..=streams {
                let payload = vec![7; (bytes / (bytes / 1000 + 1) + odd * 13 + stream as usize) % 1300];
                channel.send(StreamId(stream), Head::new(Kind::Send), &[], &payload).expect("room");
            }
        }
        let mut sizes = Vec::new();
        while let Some(bytes) = channel.transmit(now, &mut packet) {
            assert!(Packet::decode(&packet[..bytes]).expect("a packet").frames().all(|frame| frame.is_ok()));
            // Packets that lie ready behind it form a run of their own, so this run ends here.
            sizes.push((bytes, channel.has_run(now)));
        }
        let (last, _) = sizes.pop().expect("some packets");
        assert!(sizes.len() > 20 && last > HEADER && last <= size, "{sizes:?} {last}");
        assert!(sizes.iter().all(|&(bytes, ends)| bytes == size || (ends && bytes < size)), "{sizes:?}");
        assert!(sizes.iter().filter(|&&(bytes, _)| bytes < size).count() <= streams as usize, "{sizes:?}");
        stream_is_taken(&mut world, streams);
    }
}

/// The peer saw none of the packets of the burst, so they are sent again.
fn stream_is_taken(world: &mut World, streams: u32) {
    world.hosts[1].program.deaf = (1..=streams).map(StreamId).collect();
    world.run(Duration::from_secs(1)).expect("in order");
    let channel = world.channel(1);
    for stream in 1..=streams {
        assert!(matches!(channel.peek(StreamId(stream)), weft_wire::path::Peek::Record(_)));
    }
}

#[test]
fn links_lose_what_they_do_not_carry() {
    use weft_transport::testing::{Faulty, Link, MemLink};
    let mut link = Faulty::new(MemLink::new(micros(1), 1_000_000_000), Faults::default(), 1);
    link.carries = 100;
    let now = weft_transport::Time::from_micros(1);
    link.send(now, &[0; 100]);
    link.send(now, &[0; 101]);
    let later = weft_transport::Time::from_micros(100);
    assert_eq!((link.receive(later).map(|p| p.len()), link.receive(later)), (Some(100), None));
    assert_eq!(link.done().too_large, 1);
}
