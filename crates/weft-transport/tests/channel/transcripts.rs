//! One behaviour each.

use crate::world::{micros, record, World, MTU};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_transport::testing::Link;
use weft_transport::{Event, FixedWindow, OpenError, Settings, Verdict};
use weft_wire::frame::{Frame, Side, StreamId};
use weft_wire::packet::{Packet, PacketKind};
use weft_wire::path::{Fate, Peek, PushError};
use weft_wire::{Head, Kind, Reason};

const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);

fn head() -> Head {
    Head::new(Kind::Send)
}

/// The streams whose records a packet carries.
fn streams_of(packet: &[u8]) -> Vec<StreamId> {
    let packet = Packet::decode(packet).expect("a packet");
    let of = |frame| match frame {
        Ok(Frame::Records { stream, .. }) => Some(stream),
        _ => None,
    };
    packet.frames().filter_map(of).collect()
}

#[test]
fn a_message_to_a_quiet_peer_goes_at_once_and_what_follows_shares_packets() {
    let mut world = World::connected(1, 1);
    let (now, mut packet) = (world.now, vec![0; MTU]);
    let channel = world.channel(0);
    assert!(channel.is_quiet());
    channel.send(A, head(), &[1, 2], b"first").expect("room");
    let bytes = channel.transmit(now, &mut packet).expect("at once");
    assert_eq!(bytes, 40 + 12 + 16 + 8 + 8);
    assert!(!channel.is_quiet());
    for _ in 0..40 {
        channel.send(A, head(), &[1, 2], b"more").expect("room");
    }
    // 32 bytes each.
    assert_eq!(channel.transmit(now, &mut packet), Some(40 + 12 + 40 * 32));
    assert_eq!(channel.transmit(now, &mut packet), None);
}

#[test]
fn several_streams_share_a_packet() {
    let mut world = World::connected(5, 1);
    let (now, mut packet) = (world.now, vec![0; MTU]);
    let channel = world.channel(0);
    for stream in 1..=5 {
        channel.send(StreamId(stream), head(), &[], b"small").expect("room");
    }
    let bytes = channel.transmit(now, &mut packet).expect("something to say");
    assert_eq!(streams_of(&packet[..bytes]), (1..=5).map(StreamId).collect::<Vec<_>>());
}

#[test]
fn streams_with_much_to_say_take_turns() {
    let mut world = World::connected(3, 1);
    let (now, mut packet) = (world.now, vec![0; MTU]);
    let channel = world.channel(0);
    for stream in 1..=3 {
        channel.send(StreamId(stream), head(), &[], &[0; 20_000]).expect("room");
    }
    let mut packets = [0; 4];
    for _ in 0..30 {
        let bytes = channel.transmit(now, &mut packet).expect("something to say");
        streams_of(&packet[..bytes]).iter().for_each(|s| packets[s.0 as usize] += 1);
    }
    assert_eq!(packets, [0, 10, 10, 10]);
}

#[test]
fn an_idle_channel_sends_nothing_and_wants_nothing() {
    let mut world = World::connected(2, 1);
    world.order(0, 100);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    world.run(Duration::from_secs(1)).expect("in order");
    let packets = world.packets;
    world.run(Duration::from_secs(3600)).expect("in order");
    assert_eq!(world.packets, packets);
    for at in [0, 1] {
        assert_eq!(world.channel(at).next_timeout(), None);
        assert_eq!(world.lost(at), None);
    }
}

#[test]
fn acknowledgements_ride_on_replies() {
    let mut world = World::connected(1, 1);
    let before = world.packets;
    for _ in 0..100 {
        world.order(0, 1);
        world.run_until_done(Duration::from_secs(1)).expect("in order");
        world.order(1, 1);
        world.run_until_done(Duration::from_secs(1)).expect("in order");
    }
    let packets = [0, 1].map(|at| world.packets[at] - before[at]);
    assert!(packets.iter().all(|p| (100..=104).contains(p)), "{packets:?} packets for 100 there and back");
    world.run(Duration::from_secs(1)).expect("in order");
    let after = [0, 1].map(|at| world.packets[at] - before[at]);
    assert!(after.iter().all(|p| *p <= 106), "{after:?} when all was quiet");
}

#[test]
fn an_acknowledgement_that_nothing_will_ride_with_goes_at_once() {
    for hurries in [false, true] {
        let mut world = World::connected(1, 1);
        world.run(Duration::from_secs(1)).expect("in order");
        let (now, mut packet, mut answer) = (world.now, vec![0; MTU], vec![0; MTU]);
        world.channel(0).send(StreamId(1), head(), &[], &[0; 20]).expect("room");
        let bytes = world.channel(0).transmit(now, &mut packet).expect("something to say");
        world.take(1, &packet[..bytes]).expect("a packet of its peer's");
        if hurries {
            world.channel(1).hurry_acks();
        }
        let acknowledged = world.channel(1).transmit(now, &mut answer);
        assert_eq!(acknowledged.is_some(), hurries);
        if let Some(bytes) = acknowledged {
            world.take(0, &answer[..bytes]).expect("a packet of its peer's");
            assert_eq!(world.channel(0).in_flight(), 0);
        }
    }
}

/// Sends a record in a packet of its own, which is delivered. Returns whether the answer goes at once.
fn is_answered_at_once(world: &mut World) -> bool {
    let (now, mut packet, mut answer) = (world.now, vec![0; MTU], vec![0; MTU]);
    world.channel(0).send(A, head(), &[], &[0; 20]).expect("room");
    let bytes = world.channel(0).transmit(now, &mut packet).expect("something to say");
    assert_eq!(world.take(1, &packet[..bytes]), Some(Verdict::Taken));
    let answered = world.channel(1).transmit(now, &mut answer);
    if let Some(bytes) = answered {
        assert_eq!(world.take(0, &answer[..bytes]), Some(Verdict::Taken));
        assert_eq!(world.channel(0).in_flight(), 0, "it acknowledges all");
    }
    answered.is_some()
}

#[test]
fn an_acknowledgement_says_how_long_its_packet_lay_and_how_long_it_was_held() {
    let mut world = World::connected(1, 1);
    world.run(Duration::from_secs(1)).expect("in order");
    let mut packet = vec![0; MTU];
    for (lay, more, told) in
        [(0, 30, (30, 0)), (250, 0, (250, 250)), (250, 30, (280, 250)), (70_000, 1, (65_535, 65_535))]
    {
        let [lay, more] = [lay, more].map(Duration::from_micros);
        let now = world.now;
        world.channel(0).send(A, head(), &[], &[0; 20]).expect("room");
        let bytes = world.channel(0).transmit(now, &mut packet).expect("something to say");
        assert_eq!(world.channel(1).on_packet_of(now + lay, now, &packet[..bytes]), Verdict::Taken);
        world.channel(1).hurry_acks();
        let bytes = world.channel(1).transmit(now + lay + more, &mut packet).expect("the acknowledgement");
        let reflected = Packet::decode(&packet[..bytes]).expect("whole").header.reflected.expect("the time stamp");
        assert_eq!((reflected.held, reflected.lay), told);
        world.now = now + lay + more;
        assert_eq!(world.take(0, &packet[..bytes]), Some(Verdict::Taken));
    }
}

#[test]
fn each_fourth_packet_with_records_is_acknowledged_at_once_and_words_alone_are_not() {
    let mut world = World::connected(1, 1);
    world.run(Duration::from_secs(1)).expect("in order");
    let answered: Vec<bool> = (0..12).map(|_| is_answered_at_once(&mut world)).collect();
    assert_eq!(answered, [false, false, false, true].repeat(3));
    let (now, mut packet) = (world.now, vec![0; MTU]);
    for _ in 0..12 {
        world.channel(0).ask();
        let bytes = world.channel(0).transmit(now, &mut packet).expect("a ping");
        assert_eq!(world.take(1, &packet[..bytes]), Some(Verdict::Taken));
        assert_eq!(world.channel(1).transmit(now, &mut packet), None);
    }
    let due = world.channel(1).next_timeout().expect("an acknowledgement is owed");
    assert_eq!(due.since(now), Settings::default().ack_delay);
}

#[test]
fn a_packet_out_of_order_is_acknowledged_at_once_and_so_is_the_one_that_fills_the_hole() {
    let mut world = World::connected(1, 1);
    world.run(Duration::from_secs(1)).expect("in order");
    let (now, mut answer) = (world.now, vec![0; MTU]);
    let packets = [0, 1].map(|_| {
        let mut packet = vec![0; MTU];
        world.channel(0).send(A, head(), &[], &[0; 20]).expect("room");
        let bytes = world.channel(0).transmit(now, &mut packet).expect("something to say");
        packet.truncate(bytes);
        packet
    });
    let under_way = world.channel(0).in_flight();
    for (packet, left) in [(&packets[1], under_way / 2), (&packets[0], 0)] {
        assert_eq!(world.take(1, packet), Some(Verdict::Taken));
        let bytes = world.channel(1).transmit(now, &mut answer).expect("the acknowledgement goes at once");
        assert_eq!(world.take(0, &answer[..bytes]), Some(Verdict::Taken));
        assert_eq!(world.channel(0).in_flight(), left);
    }
}

#[test]
fn packets_hurry_where_fewer_than_four_may_be_under_way_and_half_of_them_are() {
    for (packets, answered) in [(3, [false, true, true]), (4, [false; 3])] {
        let mut world = World::new(1, 1);
        world.hosts[0].window = FixedWindow(packets * MTU as u64);
        world.run(Duration::from_secs(1)).expect("in order");
        assert!(world.channel(0).is_open());
        let (now, mut answer) = (world.now, vec![0; MTU]);
        let is = answered.map(|_| {
            let mut packet = vec![0; MTU];
            world.channel(0).send(A, head(), &[], &[0; 1300]).expect("room");
            let bytes = world.channel(0).transmit(now, &mut packet).expect("something to say");
            assert_eq!(world.take(1, &packet[..bytes]), Some(Verdict::Taken));
            world.channel(1).transmit(now, &mut answer).is_some()
        });
        assert_eq!(is, answered, "{packets} packets");
    }
}

#[test]
fn a_small_message_that_does_not_fill_a_small_window_does_not_hurry() {
    let mut world = World::new(1, 1);
    world.hosts[0].window = FixedWindow(MTU as u64);
    world.run(Duration::from_secs(1)).expect("in order");
    let mut answered = || is_answered_at_once(&mut world);
    assert_eq!([(); 4].map(|()| answered()), [false, false, false, true], "but each fourth as ever");
}

#[test]
fn each_second_packet_hurries_where_fewer_than_sixteen_may_be_under_way_and_half_of_them_are() {
    for (packets, hurries) in [(15, true), (16, false)] {
        let mut world = World::new(1, 1);
        world.hosts[0].window = FixedWindow(packets * MTU as u64);
        let (sent, hurried) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (all, some) = (sent.clone(), hurried.clone());
        world.tamper = Some(Box::new(move |at, packet| {
            let hurries = Packet::decode(packet).expect("whole").header.hurries;
            all.set(all.get() + u32::from(at == 0));
            some.set(some.get() + u32::from(at == 0 && hurries));
            true
        }));
        world.order(0, 20_000);
        world.run_until_done(Duration::from_secs(20)).expect("in order");
        let (sent, hurried) = (sent.get(), hurried.get());
        assert_eq!(hurried > 0, hurries, "{packets} packets: {hurried} of {sent}");
        assert!(2 * hurried <= sent + 1, "{hurried} of {sent}");
    }
}

#[test]
fn a_lost_packet_of_one_stream_does_not_hold_up_another() {
    let mut world = World::connected(2, 1);
    world.tamper = Some(Box::new(|at, packet| at == 1 || !streams_of(packet).contains(&A)));
    world.hosts[0].program.to_send.insert(A, (100, 0));
    world.run(micros(10)).expect("in order");
    world.hosts[0].program.to_send.insert(B, (200, 0));
    // The one-way delay is 250 us.
    world.run(micros(300)).expect("in order");
    assert_eq!([A, B].map(|s| world.hosts[1].program.got[&s]), [0, 200]);
    world.tamper = None;
    world.run_until_done(Duration::from_secs(5)).expect("in order");
}

#[test]
fn a_reader_that_does_not_read_stops_its_writer_and_nobody_else() {
    let mut world = World::connected(2, 1);
    world.hosts[1].program.deaf.push(A);
    world.order(0, 20_000);
    world.run(Duration::from_secs(20)).expect("in order");
    let settings = world.hosts[0].settings;
    let (all, sent) = world.hosts[0].program.to_send[&A];
    assert!(sent < all, "the writer was told that its stream is full");
    assert_eq!(world.hosts[1].program.got[&B], all);
    assert!(world.channel(0).memory() < 3 * settings.send_most as usize);
    assert!(world.channel(1).memory() < 3 * settings.window as usize);
    assert_eq!((world.lost(0), world.lost(1)), (None, None));
    // It only asks now and then whether the peer is alive.
    let packets = world.packets;
    world.run(Duration::from_secs(60)).expect("in order");
    let asked = world.packets[0] - packets[0];
    assert!((60..100).contains(&asked), "{asked} packets in a minute");
    world.hosts[0].program.events.clear();
    world.hosts[1].program.deaf.clear();
    world.run_until_done(Duration::from_secs(5)).expect("in order");
    assert!(world.hosts[0].program.events.contains(&Event::Room(A)));
}

#[test]
fn a_full_stream_refuses_then_has_room() {
    let mut world = World::connected(1, 1);
    world.hosts[1].program.deaf.push(A);
    let channel = world.channel(0);
    let mut sent = 0;
    let (head, args, payload) = record(A, 0, 0);
    while channel.has_room(A, args.len(), payload.len()) {
        channel.send(A, head, &args, &payload).expect("room");
        sent += 1;
    }
    assert_eq!(channel.send(A, head, &args, &payload), Err(PushError::Full));
    assert_eq!(channel.send(A, head, &[0; 17], &[]), Err(PushError::TooLarge));
    assert_eq!(channel.send(StreamId(9), head, &[], &[]), Err(PushError::Gone));
    world.run(Duration::from_secs(1)).expect("in order");
    assert!(!world.hosts[0].program.events.contains(&Event::Room(A)));
    let channel = world.channel(1);
    for _ in 0..sent {
        assert!(matches!(channel.peek(A), Peek::Record(_)));
        channel.pop(A);
    }
    channel.release(A);
    world.run(Duration::from_secs(1)).expect("in order");
    let rooms = world.hosts[0].program.events.iter().filter(|e| **e == Event::Room(A)).count();
    assert_eq!(rooms, 1);
    world.channel(0).send(A, head, &args, &payload).expect("room");
}

#[test]
fn a_closed_stream_says_for_certain_what_was_taken() {
    let mut world = World::connected(2, 1);
    world.hosts[1].program.deaf.push(A);
    world.order(0, 50);
    world.run(Duration::from_millis(50)).expect("in order");
    // Ten are taken, one is in hand.
    let host = &mut world.hosts[1];
    let channel = host.channel.as_mut().expect("a channel");
    for _ in 0..10 {
        assert_eq!(host.program.read_one(channel, A), Ok(true));
    }
    assert!(matches!(channel.peek(A), Peek::Record(_)));
    assert_eq!(channel.close(A, Reason::NoSuchEndpoint).len(), 0);
    world.run(Duration::from_millis(50)).expect("in order");
    assert!(world.hosts[0].program.events.contains(&Event::Refused(A, Reason::NoSuchEndpoint)));
    assert_eq!(world.channel(0).send(A, head(), &[], &[]), Err(PushError::Gone));
    let returned = world.channel(0).close(A, Reason::NoSuchEndpoint);
    let mut fates = (0, 0);
    world.check_returned(0, A, &returned, &mut fates).expect("what was not delivered comes back");
    assert_eq!(fates, (39, 1));
    assert_eq!(returned[0].fate, Fate::InHand);
    // The other stream is not affected, and nothing is kept of this one once both sides know: opening it again, which
    // nobody should do, would not be noticed.
    world.order(1, 50);
    world.hosts[0].program.got.remove(&A);
    world.hosts[1].program.to_send.remove(&A);
    world.run(Duration::from_millis(50)).expect("in order");
    assert_eq!(world.hosts[0].program.got[&B], 50);
    assert_eq!(world.channel(0).open(A), Ok(()));
}

#[test]
fn streams_are_bounded_and_numbers_used_once() {
    let mut world = World::connected(2, 1);
    let most = world.hosts[0].settings.streams_most;
    let channel = world.channel(0);
    assert_eq!(channel.open(A), Err(OpenError::InUse));
    let first = channel.open_next().expect("room");
    assert_eq!(first, StreamId::new(Side::Caller, 0, 0));
    // The second place is B's.
    for place in 2..most {
        assert_eq!(channel.open_next(), Ok(StreamId::new(Side::Caller, place, 0)));
    }
    let beyond = StreamId::new(Side::Answerer, most, 0);
    assert_eq!((channel.open_next(), channel.open(beyond)), (Err(OpenError::TooMany), Err(OpenError::TooMany)));
    channel.close(B, Reason::PeerLost);
    assert_eq!((channel.open(B), channel.open_next()), (Err(OpenError::InUse), Err(OpenError::TooMany)));
    // The peer knows, and this side knows that it does: the place can be used again.
    world.run(Duration::from_millis(50)).expect("in order");
    let channel = world.channel(0);
    assert_eq!(channel.open_next(), Ok(B.next_life()));
    channel.abandon();
    assert_eq!(channel.open(StreamId(99)), Err(OpenError::Lost));
}

#[test]
fn records_wait_for_the_peer_to_open_their_stream() {
    let mut world = World::connected(1, 1);
    let early = StreamId(7);
    world.channel(0).open(early).expect("room");
    world.hosts[0].program.to_send.insert(early, (10, 0));
    let packets = world.packets[1];
    world.run(micros(510)).expect("in order");
    assert_eq!(world.packets[1], packets + 1, "somebody is here");
    world.run(Duration::from_secs(10)).expect("in order");
    assert_eq!((world.lost(0), world.channel(1).counters().dropped_no_room > 0), (None, true));
    world.channel(1).open(early).expect("room");
    world.hosts[1].program.got.insert(early, 0);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
}

#[test]
fn a_peer_that_restarts_ends_the_channel_and_what_was_not_sent_is_certain() {
    let mut world = World::connected(1, 1);
    world.order(0, 100);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    world.run(Duration::from_secs(1)).expect("in order");
    let (old_epoch, delivered) = (world.hosts[1].epoch, world.hosts[1].program.got.clone());
    world.restart(1);
    assert_ne!(world.hosts[1].epoch, old_epoch);
    world.capture = Some(Vec::new());
    world.order(0, 100_000);
    let start = world.now;
    while world.lost(0).is_none() {
        assert!(world.turn(start + Duration::from_secs(4)).expect("in order"), "{}", world.state());
    }
    assert_eq!(world.lost(0), Some(Reason::WrongEpoch));
    assert!(world.now.since(start) < Duration::from_millis(2), "one round trip");
    assert!(world.hosts[1].channel.is_none() && world.hosts[1].program.got.values().all(|&got| got == 0));
    world.hosts[1].program.got = delivered;
    let (untouched, in_doubt) = world.settle(0).expect("all comes back");
    assert!(untouched > 100 && in_doubt > 100, "{untouched} certain, {in_doubt} in doubt");
    assert_eq!(world.channel(0).send(A, head(), &[], &[]), Err(PushError::Gone));
}

#[test]
fn a_channel_to_the_next_life_hears_nothing_of_the_one_before() {
    let mut world = World::connected(1, 3);
    world.capture = Some(Vec::new());
    world.order(0, 500);
    world.order(1, 500);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    let old = world.capture.take().expect("a capture");
    // Both hosts restart, and all earlier packets are replayed.
    world.restart(0);
    world.restart(1);
    world.hosts[0].calls = true;
    world.run(Duration::from_secs(1)).expect("in order");
    assert!(world.channel(0).is_open() && world.channel(1).is_open());
    for (from, packet) in &old {
        world.take(1 - from, packet);
    }
    world.order(0, 500);
    world.order(1, 500);
    for (from, packet) in old.iter().rev() {
        world.take(1 - from, packet);
    }
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    assert!(world.channel(0).is_open() && world.channel(1).is_open());
}

#[test]
fn a_peer_of_the_same_life_that_forgot_the_channel_is_lost_too() {
    let mut world = World::connected(1, 1);
    world.hosts[1].channel = None;
    world.order(0, 10);
    world.run(Duration::from_millis(10)).expect("nothing comes");
    assert_eq!(world.lost(0), Some(Reason::Silent));
}

#[test]
fn streams_are_opened_once_the_peer_has_answered() {
    let mut world = World::new(1, 1);
    world.call(0);
    assert_eq!(world.channel(0).open_next(), Err(OpenError::Calling));
    world.run(Duration::from_millis(2)).expect("nothing comes");
    assert!(world.channel(0).open_next().is_ok());
}

#[test]
fn calling_the_life_before_is_refused_within_a_round_trip() {
    let mut world = World::new(1, 1);
    world.call(0);
    world.restart(1);
    world.hosts[0].calls = false;
    world.run(Duration::from_millis(2)).expect("nothing comes");
    assert_eq!(world.lost(0), Some(Reason::WrongEpoch));
    assert!(world.hosts[1].channel.is_none());
}

#[test]
fn a_silent_peer_is_lost_after_the_suspicion_time_and_not_before() {
    for suspicion in [Duration::from_millis(50), Duration::from_secs(3), Duration::from_secs(60)] {
        let mut world = World::new(1, 1);
        world.hosts[0].settings.suspicion = suspicion;
        world.run(Duration::from_secs(5)).expect("in order");
        for at in [0, 1] {
            world.links[at].faults.drop = 1_000_000;
        }
        // Nothing was asked, so silence proves nothing.
        world.run(suspicion * 3).expect("in order");
        assert_eq!(world.lost(0), None);
        world.order(0, 1);
        let start = world.now;
        while world.lost(0).is_none() {
            assert!(world.turn(start + suspicion * 3).expect("in order"));
        }
        let took = world.now.since(start);
        assert!(took >= suspicion && took < suspicion + suspicion / 8, "{took:?} of {suspicion:?}");
        assert_eq!(world.lost(0), Some(Reason::Silent));
        assert!(world.channel(0).poll_event().is_some_and(|e| e == Event::Lost(Reason::Silent)));
    }
}

#[test]
fn a_watched_peer_that_falls_silent_is_noticed_though_nothing_is_under_way() {
    let mut world = World::connected(1, 1);
    world.channel(0).keep_watch(true);
    let packets = world.packets[0];
    world.run(Duration::from_secs(30)).expect("in order");
    let asked = world.packets[0] - packets;
    assert!((30..60).contains(&asked), "{asked} packets in 30 s");
    world.hosts[1].channel = None;
    world.links[0].faults.drop = 1_000_000;
    world.run(Duration::from_secs(5)).expect("in order");
    assert_eq!(world.lost(0), Some(Reason::Silent));
}

/// A peer that answered everything, fell silent, and is waited for.
fn silent_and_watched() -> World {
    let mut world = World::connected(1, 1);
    world.order(0, 1);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    world.run(Duration::from_millis(10)).expect("in order");
    assert_eq!(world.channel(0).in_flight(), 0);
    world.channel(0).keep_watch(true);
    world.hosts[1].channel = None;
    world.links[0].faults.drop = 1_000_000;
    world
}

/// How long a peer was silent when it is declared lost.
fn silence_until_lost(world: &mut World) -> Duration {
    let since = world.now;
    while world.lost(0).is_none() {
        assert!(world.now.since(since) < Duration::from_secs(20), "it is noticed");
        world.run(Duration::from_millis(1)).expect("in order");
    }
    world.now.since(since)
}

/// The longest wait between two tries, plus the granularity of the clock.
const A_TRY: Duration = Duration::from_millis(3000 / 32 * 5 / 4 + 2);

#[test]
fn who_waits_is_told_within_the_suspicion_time_though_nothing_is_under_way() {
    let suspicion = Settings::default().suspicion;
    let mut world = silent_and_watched();
    let silence = silence_until_lost(&mut world);
    assert!(silence <= suspicion + A_TRY, "{silence:?}");
    assert!(silence >= suspicion - A_TRY, "{silence:?}");
}

#[test]
fn what_is_sent_to_a_silent_peer_puts_nothing_off_for_who_waits_already() {
    let suspicion = Settings::default().suspicion;
    let mut world = silent_and_watched();
    let first = suspicion / 5;
    world.run(first).expect("in order");
    world.order(0, 1);
    let silence = first + silence_until_lost(&mut world);
    assert!(silence <= suspicion + A_TRY, "{silence:?}");
    assert!(silence >= suspicion - A_TRY, "{silence:?}");
}

#[test]
fn who_begins_to_wait_long_after_the_peer_was_heard_asks_for_three_quarters_of_the_suspicion_time() {
    let suspicion = Settings::default().suspicion;
    let mut world = World::connected(1, 1);
    world.hosts[1].channel = None;
    world.links[0].faults.drop = 1_000_000;
    world.run(suspicion * 10).expect("in order");
    assert_eq!(world.lost(0), None, "nobody asked");
    world.channel(0).keep_watch(true);
    let silence = silence_until_lost(&mut world);
    assert!(silence >= suspicion * 3 / 4 - A_TRY && silence <= suspicion + A_TRY, "{silence:?}");
}

#[test]
fn whoever_was_stopped_for_half_a_minute_goes_on() {
    for at in [0, 1] {
        let mut world = World::connected(1, 1);
        world.order(0, 3_000);
        world.order(1, 3_000);
        world.run(micros(700)).expect("in order");
        // One side is stopped: its packets wait while the other's time goes on, for less than its suspicion time. Then
        // the first one wakes up to a clock that is far ahead.
        let stopped = world.hosts[at].channel.take();
        let calls = std::mem::replace(&mut world.hosts[0].calls, false);
        let mut waiting = Vec::new();
        let end = world.now + Duration::from_millis(2_500);
        while let Some(next) = world.links[1 - at].next_arrival().filter(|_| world.now < end) {
            world.now = world.now.max(next);
            while let Some(packet) = world.links[1 - at].receive(world.now) {
                waiting.push(packet);
            }
            let other = &mut world.hosts[1 - at].channel;
            if let Some(channel) = other.as_mut().filter(|c| c.next_timeout().is_some()) {
                let next = channel.next_timeout().expect("checked");
                world.now = world.now.max(next);
                channel.on_timeout(world.now);
                world.transmit(1 - at);
            }
        }
        world.hosts[at].channel = stopped;
        world.hosts[0].calls = calls;
        world.now = end + Duration::from_secs(if at == 0 { 30 } else { 0 });
        if at == 1 {
            waiting.drain(..).for_each(|packet| {
                world.take(at, &packet);
            });
        }
        world.run_until_done(Duration::from_secs(5)).expect("nobody is taken for dead");
    }
}

#[test]
fn two_that_were_stopped_together_do_not_take_each_other_for_dead() {
    let mut world = World::connected(1, 1);
    for at in [0, 1] {
        world.links[at].faults.drop = 1_000_000;
    }
    // The peer stops a moment before the caller, which asks it several times, and resumes a moment after it.
    world.order(0, 1);
    world.run(Duration::from_millis(50)).expect("in order");
    world.now = world.now + Duration::from_secs(30);
    world.run(Duration::from_millis(200)).expect("in order");
    assert_eq!(world.lost(0), None);
    for at in [0, 1] {
        world.links[at].faults.drop = 0;
    }
    world.run_until_done(Duration::from_secs(2)).expect("nobody is taken for dead");
    // A dead peer is granted this time only once, even if the program polls rarely.
    world.links[0].faults.drop = 1_000_000;
    world.order(0, 1);
    for _ in 0..8 {
        world.run(Duration::from_millis(100)).expect("in order");
        world.now = world.now + Duration::from_secs(1);
    }
    world.run(Duration::from_millis(100)).expect("in order");
    assert_eq!(world.lost(0), Some(Reason::Silent));
}

/// Sending resets the timeout, so the absence must be noticed before that.
#[test]
fn who_sends_before_it_looks_at_the_clock_was_away_all_the_same() {
    let mut world = World::connected(2, 1);
    world.links[0].faults.drop = 1_000_000;
    world.order(0, 1);
    world.run(Duration::from_millis(50)).expect("in order");
    world.now = world.now + Duration::from_secs(30);
    let now = world.now;
    world.channel(0).send(B, head(), &[1], b"").expect("room");
    while world.channel(0).transmit(now, &mut vec![0; MTU]).is_some() {}
    world.run(Duration::from_millis(200)).expect("in order");
    assert_eq!(world.lost(0), None);
}

#[test]
fn the_link_may_begin_to_carry_less_at_any_time() {
    let mut world = World::connected(2, 1);
    for at in [0, 1] {
        world.hosts[at].program.bytes_most = 30_000;
        world.links[at].faults.drop = 50_000;
        world.order(at, 200);
    }
    for mtu in [8972, 548, 1472, 600, 9000, 548] {
        world.mtu = mtu;
        world.run(micros(2_000)).expect("in order");
    }
    world.run_until_done(Duration::from_secs(60)).expect("exactly once, in order");
}

#[test]
fn of_two_that_call_each_other_one_gives_way() {
    for seed in 0..20 {
        let mut world = World::new(2, 100 + seed);
        world.hosts[1].calls = true;
        for at in [0, 1] {
            world.links[at].faults.drop = if seed < 10 { 0 } else { 200_000 };
            world.order(at, 100);
        }
        world.run_until_done(Duration::from_secs(2)).expect("in order");
        let [a, b] = [0, 1].map(|at| (world.channel(at).ours(), world.channel(at).theirs()));
        assert_eq!(a, (b.1, b.0));
        assert_eq!((world.lost(0), world.lost(1)), (None, None));
    }
}

#[test]
fn a_caller_that_vanishes_leaves_nothing_behind() {
    let mut world = World::new(1, 1);
    world.tamper = Some(Box::new(|at, packet| {
        // The answerer's accept never arrives.
        at == 0 || Packet::decode(packet).is_ok_and(|p| p.header.kind != PacketKind::Data)
    }));
    world.run(micros(1_100)).expect("in order");
    assert!(world.channel(1).is_open());
    world.hosts[0].calls = false;
    world.hosts[0].channel = None;
    world.links[0].faults.drop = 1_000_000;
    world.run(Duration::from_secs(4)).expect("in order");
    assert_eq!(world.lost(1), Some(Reason::Silent));
}

#[test]
fn any_packet_of_the_set_up_may_be_lost() {
    for victim in 0..8 {
        for side in [0, 1] {
            let mut world = World::new(1, 10 + victim);
            let mut packets = 0;
            world.tamper = Some(Box::new(move |at, _| {
                packets += u64::from(at == side);
                at != side || packets != victim + 1
            }));
            world.order(0, 3);
            world.order(1, 3);
            world.run_until_done(Duration::from_millis(600)).expect("in order");
            assert!([0, 1].iter().all(|&at| world.lost(at).is_none()));
        }
    }
}

#[test]
fn every_packet_of_the_set_up_may_come_again_and_again() {
    let mut world = World::new(1, 5);
    world.capture = Some(Vec::new());
    world.order(0, 10);
    world.order(1, 10);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    let old = world.capture.take().expect("a capture");
    assert!(old.iter().any(|(_, p)| Packet::decode(p).is_ok_and(|p| p.header.kind == PacketKind::Answer)));
    let ours = [0, 1].map(|at| world.channel(at).ours());
    for _ in 0..3 {
        for (from, packet) in &old {
            let verdict = world.take(1 - from, packet);
            assert!(matches!(verdict, None | Some(Verdict::Old | Verdict::Foreign)), "{verdict:?}");
        }
    }
    world.order(0, 10);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    assert_eq!([0, 1].map(|at| world.channel(at).ours()), ours);
}

#[test]
fn an_idle_channel_takes_less_than_8_kib() {
    let mut world = World::connected(2, 1);
    for at in [0, 1] {
        world.hosts[at].program.bytes_most = 60_000;
        world.order(at, 100);
    }
    world.run_until_done(Duration::from_secs(5)).expect("in order");
    world.run(Duration::from_secs(5)).expect("in order");
    for at in [0, 1] {
        let channel = world.channel(at);
        assert!(channel.memory() > 100_000, "it was in use");
        // The first rest finds that there was traffic.
        (0..2).for_each(|_| channel.rest());
        let rested = channel.memory();
        println!("{rested} bytes, of which the channel itself {}", std::mem::size_of_val(channel));
        assert!(rested < 8 << 10, "{rested} bytes");
    }
    world.order(0, 10);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
}

#[test]
fn payloads_lie_aligned_whatever_came_before() {
    let mut world = World::connected(1, 1);
    world.hosts[1].program.deaf = vec![A];
    for args in 0..4 {
        for len in 0..20 {
            let channel = world.channel(0);
            channel.send(A, head(), &vec![7; args], &vec![9; len]).expect("room");
        }
    }
    world.run(micros(20_000)).expect("a deaf program");
    let channel = world.channel(1);
    let mut taken = 0;
    while let Peek::Record(record) = channel.peek(A) {
        assert!(record.payload.is_empty() || record.payload.as_ptr() as usize % 8 == 0, "record {taken}");
        channel.pop(A);
        taken += 1;
    }
    assert_eq!(taken, 80);
}

#[test]
fn a_lent_half_is_read_while_the_channel_goes_on() {
    let mut world = World::connected(1, 1);
    world.hosts[1].program.deaf = vec![A];
    for n in 0..3 {
        world.channel(0).send(A, head(), &[n], b"").expect("room");
    }
    world.run(micros(20_000)).expect("a deaf program");
    let now = world.now;
    let mut half = world.channel(1).lend(A).expect("there");
    assert!(world.channel(1).lend(A).is_none() && matches!(world.channel(1).peek(A), Peek::Empty));
    for n in 0..2 {
        let Peek::Record(record) = half.peek() else { panic!("a record") };
        assert_eq!(record.args, [n]);
        half.pop();
        // As a handler would.
        world.channel(1).send(A, head(), &[n], b"").expect("room");
        while world.channel(1).transmit(now, &mut vec![0; MTU]).is_some() {}
    }
    // Data that arrives meanwhile is not acknowledged, so it is sent again.
    world.channel(0).send(A, head(), &[3], b"").expect("room");
    let mut packet = vec![0; MTU];
    let bytes = world.channel(0).transmit(now, &mut packet).expect("a packet");
    assert_eq!(world.channel(1).on_packet(now, &packet[..bytes]), Verdict::NoRoom);
    world.channel(1).take_back(A, half);
    assert_eq!(world.channel(1).on_packet(now, &packet[..bytes]), Verdict::Taken);
    let Peek::Record(record) = world.channel(1).peek(A) else { panic!("a record") };
    assert_eq!(record.args, [2]);
}

/// Carries everything that a channel has to send now to the other.
fn carry(world: &mut World, from: usize) {
    let (now, mut packet) = (world.now, vec![0; MTU]);
    while let Some(bytes) = world.channel(from).transmit(now, &mut packet) {
        assert_eq!(world.channel(1 - from).on_packet(now, &packet[..bytes]), Verdict::Taken);
    }
}

#[test]
fn who_answers_each_record_while_it_reads_tells_with_the_answer_what_it_took_before() {
    let mut world = World::connected(1, 1);
    world.hosts.iter_mut().for_each(|host| host.program.deaf = vec![A]);
    for n in 0..100 {
        let before = world.channel(0).traffic(A).pushed;
        world.channel(0).send(A, head(), &[n], b"").expect("room");
        carry(&mut world, 0);
        let mut half = world.channel(1).lend(A).expect("there");
        assert!(matches!(half.peek(), Peek::Record(record) if record.args == [n]));
        half.pop();
        world.channel(1).send(A, head(), &[n], b"").expect("room");
        carry(&mut world, 1);
        world.channel(1).take_back(A, half);
        let traffic = world.channel(0).traffic(A);
        assert!(traffic.pushed - traffic.taken <= 2 * (traffic.pushed - before), "{n}: {traffic:?}");
    }
}

#[test]
fn a_stream_closed_while_lent_says_that_all_that_came_is_in_doubt() {
    let mut world = World::connected(1, 1);
    world.hosts[1].program.deaf = vec![A];
    for n in 0..2 {
        world.channel(0).send(A, head(), &[n], b"").expect("room");
    }
    world.run(micros(20_000)).expect("a deaf program");
    let half = world.channel(1).lend(A).expect("there");
    world.channel(1).close(A, Reason::PeerLost);
    world.channel(1).take_back(A, half);
    world.run(micros(20_000)).expect("nothing to go wrong");
    let fates: Vec<Fate> = world.channel(0).close(A, Reason::PeerLost).into_iter().map(|r| r.fate).collect();
    assert_eq!(fates, [Fate::InHand, Fate::InHand]);
}

#[test]
fn a_way_on_which_nothing_was_lost_yet_is_waited_for_longer() {
    let mut world = World::connected(1, 1);
    let mut waits = Vec::new();
    for _ in 0..2 {
        world.order(0, 20);
        world.run(Duration::from_secs(1)).expect("in order");
        world.tamper = Some(Box::new(|at, _| at == 1));
        world.order(0, 1);
        let sent_at = world.now;
        world.run(micros(1)).expect("in order");
        let at = world.channel(0).next_timeout().expect("an answer is waited for");
        waits.push(at.since(sent_at));
        world.tamper = None;
    }
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    assert!((10_000..=12_500).contains(&waits[0].as_micros()), "{waits:?}");
    assert!(waits[1] < Duration::from_millis(5), "{waits:?}");
}
