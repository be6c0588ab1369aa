//! Unreliable messages.

use crate::hostile::{Liar, A};
use crate::world::{micros, World, MTU};
use std::time::Duration;
use weft_transport::{Caller, Channel, Event, FixedWindow, Life, Lot, Random, Settings, Time, Verdict};
use weft_wire::frame::{Frame, Piece, StreamId, Terms, RECORD_MOST, UNRELIABLE};
use weft_wire::packet::{ChannelId, Packet};
use weft_wire::path::PushError;
use weft_wire::record::{HEADER, LINE};
use weft_wire::{Epoch, Head, Kind};

fn send(world: &mut World, op: u8, payload: &[u8]) -> Result<(), PushError> {
    let head = Head { op, ..Head::new(Kind::Unreliable) };
    world.channel(0).send_unreliable(A, head, &[u32::from(op), 2, 3], payload)
}

/// The packets that the first host has to send now.
fn packets(world: &mut World) -> Vec<Vec<u8>> {
    let now = world.now;
    std::iter::from_fn(|| {
        let mut packet = vec![0; MTU];
        let bytes = world.channel(0).transmit(now, &mut packet)?;
        packet.truncate(bytes);
        Some(packet)
    })
    .collect()
}

/// The operations and payloads of the messages that arrived at a host.
fn came(world: &mut World, at: usize) -> Vec<(u8, Vec<u8>)> {
    let channel = world.channel(at);
    std::iter::from_fn(|| channel.take_unreliable())
        .map(|message| {
            let record = message.record();
            assert_eq!(record.args, [u32::from(record.head.op()), 2, 3]);
            (record.head.op(), record.payload.to_vec())
        })
        .collect()
}

#[test]
fn each_comes_once_whatever_its_size_and_however_its_pieces_are_mixed() {
    for size in [0, 1, 1_300, 1_400, 9_999, 65_536] {
        let mut world = World::connected(1, 1);
        let payload: Vec<u8> = (0..size).map(|n| n as u8).collect();
        send(&mut world, 7, &payload).expect("room");
        let mut packets = packets(&mut world);
        packets.reverse();
        for packet in &packets {
            assert_eq!(world.take(1, packet), Some(Verdict::Taken));
        }
        assert_eq!(came(&mut world, 1), [(7, payload)], "{size} B");
        for packet in &packets {
            assert_eq!(world.take(1, packet), Some(Verdict::Old));
        }
        assert_eq!(came(&mut world, 1), []);
    }
}

#[test]
fn what_is_lost_takes_its_message_along_and_neither_goes_again_nor_holds_others_up() {
    let mut world = World::connected(1, 1);
    for op in 0..10 {
        send(&mut world, op, &[op; 2_000]).expect("room");
    }
    let sent = packets(&mut world);
    for (n, packet) in sent.iter().enumerate().filter(|(n, _)| *n != 3) {
        assert_eq!(world.take(1, packet), Some(Verdict::Taken), "{n}");
    }
    let ops: Vec<u8> = came(&mut world, 1).iter().map(|(op, _)| *op).collect();
    assert!((8..10).contains(&ops.len()), "{ops:?}");
    let bytes = world.bytes;
    world.run(Duration::from_secs(20)).expect("in order");
    assert!(world.bytes[0] - bytes[0] < 500, "nothing goes again but a question for an answer");
    assert_eq!(came(&mut world, 1), []);
    assert!(world.channel(0).is_quiet());
}

/// A packet that is refused for another frame is not acknowledged, so a copy of it is not recognised as a duplicate.
#[test]
fn a_packet_that_is_refused_hands_nothing_over_and_a_copy_that_is_taken_does_once() {
    let mut liar = Liar::new();
    let bytes: Vec<u8> =
        Head { op: 9, ..Head::new(Kind::Unreliable) }.pack().iter().flat_map(|w| w.to_le_bytes()).collect();
    let piece = Frame::Unreliable(Piece { stream: A, number: 0, at: 0, total: bytes.len() as u32, bytes: &bytes });
    let early = Frame::Records { stream: StreamId(2), offset: 0, bytes: &[0; 8] };
    assert_eq!(liar.say(&[piece, early]), Verdict::NoRoom);
    assert!(liar.world.channel(0).take_unreliable().is_none());
    assert_eq!(liar.say(&[piece, Frame::Taken { stream: A, taken: 1, limit: 1 }]), Verdict::Violation);
    assert!(liar.world.channel(0).take_unreliable().is_none());
    assert_eq!(liar.say(&[piece]), Verdict::Taken);
    assert_eq!(liar.world.channel(0).take_unreliable().map(|m| m.record().head.op()), Some(9));
    assert!(liar.world.channel(0).take_unreliable().is_none());
}

#[test]
fn records_and_they_share_packets_half_and_half() {
    let mut world = World::connected(1, 1);
    world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 1_000);
    for op in 0..20 {
        send(&mut world, op, &[op; 1_000]).expect("room");
    }
    world.order(0, 40);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    assert_eq!(came(&mut world, 1).len(), 20);
    let packets = world.packets[0];
    assert!(packets < 40, "{packets} packets for 40 kB");
}

#[test]
fn what_the_window_does_not_let_go_waits_and_then_it_is_full() {
    let mut world = World::connected(1, 1);
    let mut sent = 0;
    while send(&mut world, 1, &[0; 1_000]).is_ok() {
        sent += 1;
        assert!(sent < 10_000, "it is full at some time");
        let now = world.now;
        while world.channel(0).transmit(now, &mut [0; MTU]).is_some() {}
    }
    // 128 KiB in flight, half of the window, and as much waiting.
    assert!((240..270).contains(&sent), "{sent}");
    assert_eq!(send(&mut world, 1, &[0; 65_536]), Err(PushError::Full));
    assert!(!world.channel(0).has_room(A, 0, 0));
    world.run(Duration::from_secs(2)).expect("in order");
    assert!(world.channel(0).has_room(A, 0, 0), "what was lost is not waited for");
}

#[test]
fn a_peer_that_does_not_know_them_is_sent_none_and_they_are_counted() {
    let now = Time::from_micros(1_000_000);
    let life = Life { epoch: Epoch(1), id: ChannelId(1) };
    for (features, went) in [(0, false), (2, false), (UNRELIABLE, true), (u32::MAX, true)] {
        let terms = Terms { features, window: 1 << 17, ack_delay: 0, packet_most: 1472 };
        let caller = Caller { epoch: Epoch(2), id: ChannelId(2), nonce: 3, terms, sent_at: 0, arrived: now };
        let lot = Lot { nonce: 4, seed: 5 };
        let mut channel = Channel::answer(now, life, &caller, Settings::default(), lot, FixedWindow::default());
        channel.open(A).expect("the first");
        channel.send_unreliable(A, Head::new(Kind::Unreliable), &[], &[0; 100]).expect("sent, or dropped");
        assert_eq!((channel.is_quiet(), channel.counters().unreliable_dropped), (!went, u64::from(!went)));
        let mut packet = [0; MTU];
        let bytes = channel.transmit(now, &mut packet).expect("it accepts the call");
        let packet = Packet::decode(&packet[..bytes]).expect("whole");
        let agreed = packet.frames().find_map(|frame| match frame {
            Ok(Frame::Accept(accept)) => Some(accept.terms.features),
            _ => None,
        });
        assert_eq!(agreed, Some(features & UNRELIABLE));
        assert_eq!(packet.frames().any(|frame| matches!(frame, Ok(Frame::Unreliable(_)))), went);
    }
}

#[test]
fn pieces_without_end_and_messages_that_nobody_takes_are_dropped_and_counted() {
    let mut random = Random::new(crate::world::seed());
    let mut liar = Liar::new();
    let (mut most, body) = (0, [0x55; 1_300]);
    for n in 0..60_000u32 {
        let total = 1 + random.below(RECORD_MOST as u64) as u32;
        let at = random.below(u64::from(total)) as u32;
        let bytes = &body[..(body.len()).min((total - at) as usize).min(1 + random.below(1_300) as usize)];
        let number = [n, random.bits() as u32, 7][random.below(3) as usize];
        let stream = if random.chance(50_000) { StreamId(5) } else { A };
        let verdict = liar.say(&[Frame::Unreliable(Piece { stream, number, at, total, bytes })]);
        assert_eq!(verdict, Verdict::Taken);
        most = most.max(liar.world.channel(0).memory());
    }
    for n in 0..5_000u32 {
        let bytes = [1; LINE];
        assert_eq!(
            liar.say(&[Frame::Unreliable(Piece { stream: A, number: n, at: 0, total: LINE as u32, bytes: &bytes })]),
            Verdict::Taken
        );
    }
    most = most.max(liar.world.channel(0).memory());
    assert!(most < 700 << 10, "{most} bytes");
    let dropped = liar.world.channel(0).counters().unreliable_dropped;
    assert!(dropped > 20_000, "{dropped}");
    let events: Vec<Event> = std::iter::from_fn(|| liar.world.channel(0).poll_event()).collect();
    assert_eq!(events, [Event::Unreliable], "told once");
    // None of these was a record.
    assert!(liar.world.channel(0).take_unreliable().is_none());
    let head = Head { len: 8, ..Head::new(Kind::Unreliable) };
    let words: Vec<u8> = head.pack().iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!(words.len(), HEADER);
    let short = Piece { stream: A, number: 1, at: 0, total: HEADER as u32, bytes: &words };
    assert_eq!(liar.say(&[Frame::Unreliable(short)]), Verdict::Taken);
    assert!(liar.world.channel(0).take_unreliable().is_none(), "its payload is missing");
}

#[test]
fn nothing_is_kept_of_a_closed_stream() {
    let mut world = World::connected(1, 1);
    send(&mut world, 1, &[1; 60_000]).expect("room");
    let sent = packets(&mut world);
    assert_eq!(world.take(1, &sent[0]), Some(Verdict::Taken));
    send(&mut world, 2, &[2; 60_000]).expect("room");
    world.channel(0).close(A, weft_wire::Reason::NoRoom);
    world.channel(1).close(A, weft_wire::Reason::NoRoom);
    for packet in &sent[1..] {
        assert_eq!(world.take(1, packet), Some(Verdict::Taken));
    }
    assert_eq!(came(&mut world, 1), []);
    world.run(Duration::from_secs(1)).expect("in order");
    world.run(micros(10)).expect("in order");
    assert_eq!(came(&mut world, 1), []);
    assert!(world.channel(0).is_quiet());
}

/// A sender continues its numbers after a rest: pieces of two messages with the same number would mix.
#[test]
fn what_came_in_part_before_a_rest_is_not_mixed_with_what_comes_after_it() {
    let mut world = World::connected(1, 1);
    let mut part = |op: u8, lost: usize| {
        send(&mut world, op, &[op; 2_000]).expect("room");
        let sent = packets(&mut world);
        assert_eq!(sent.len(), 2);
        assert_eq!(world.take(1, &sent[1 - lost]), Some(Verdict::Taken));
        world.run(Duration::from_secs(20)).expect("in order");
        (0..2).for_each(|_| world.channel(0).rest());
        came(&mut world, 1).len()
    };
    assert_eq!(part(1, 1), 0);
    assert_eq!(part(2, 0), 0, "the first half is of another message");
}

/// If nothing of a message arrives between two rests, the rest of it was lost.
#[test]
fn a_rest_gives_up_what_came_in_part_and_counts_it() {
    let mut world = World::connected(1, 1);
    send(&mut world, 1, &[1; 60_000]).expect("room");
    let sent = packets(&mut world);
    assert_eq!(world.take(1, &sent[0]), Some(Verdict::Taken));
    world.run(Duration::from_secs(20)).expect("in order");
    let before = world.channel(1).memory();
    (0..2).for_each(|_| world.channel(1).rest());
    let channel = world.channel(1);
    assert!(channel.memory() + 60_000 < before, "{} of {before} bytes", channel.memory());
    assert_eq!(channel.counters().unreliable_dropped, 1);
}
