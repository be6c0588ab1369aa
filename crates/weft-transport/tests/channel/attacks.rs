//! Attacks in large numbers: each in a short form, and the large ones also in a long form for `make soak`. The effect
//! of a single lie is tested in `hostile`.

use crate::hostile::{sealed, Liar, A, START};
use crate::world::{micros, World, MTU};
use std::time::Duration;
use weft_transport::{Answer, Event, OpenError, Random, Verdict};
use weft_wire::frame::{Cookie, Frame, Hello, StreamId, Terms};
use weft_wire::packet::{receiver_of, ChannelId, Header, Packet, PacketKind, FIRST_NUMBER};
use weft_wire::path::Peek;
use weft_wire::{Epoch, Reason};

// ---- queues

#[test]
fn storms_of_words_about_streams_queue_nothing_twice() {
    let mut liar = Liar::new();
    liar.world.order(0, 300);
    liar.world.run(micros(10)).expect("nothing comes");
    let mut memory = 0;
    for n in 0..30_000u32 {
        let reason = Reason::NoRoom;
        let frames = [
            Frame::Records { stream: A, offset: START, bytes: &[4; 16] },
            Frame::Taken { stream: A, taken: START, limit: START.wrapping_add(n) },
            Frame::Nack { stream: A, taken: START, touched: START, reason },
            Frame::Nack { stream: StreamId(2 + n), taken: START, touched: START, reason },
            Frame::Taken { stream: StreamId(2 + n), taken: START, limit: START },
        ];
        assert_eq!(liar.say(&frames), Verdict::Taken);
        if n == 100 {
            memory = liar.world.channel(0).memory();
        }
    }
    assert_eq!(liar.world.channel(0).memory(), memory);
    let events: Vec<Event> = std::iter::from_fn(|| liar.world.channel(0).poll_event()).collect();
    assert_eq!(events, [Event::Readable(A), Event::Refused(A, Reason::NoRoom)]);
}

#[test]
fn a_peer_that_never_hears_last_words_keeps_no_more_streams_than_may_be() {
    let mut liar = Liar::new();
    let most = liar.world.hosts[0].settings.streams_most;
    let mut opened = 0;
    for _ in 0..2 * most {
        let stream = match liar.world.channel(0).open_next() {
            Ok(stream) => stream,
            Err(error) => {
                assert_eq!(error, OpenError::TooMany);
                break;
            }
        };
        opened += 1;
        assert!(liar.world.channel(0).close(stream, Reason::NoRoom).is_empty());
        liar.world.transmit(0);
    }
    assert_eq!(opened, most);
    let memory = liar.world.channel(0).memory();
    assert!(memory < (most as usize + 1) * 320, "{memory} bytes");
}

// ---- P2: forged packets from off the path

/// A forged packet with random ids and fields, except for its target.
fn forged(random: &mut Random, to: ChannelId, callee: Epoch) -> Vec<u8> {
    let to = if random.chance(500_000) { to } else { ChannelId(random.bits() as u32) };
    let from = ChannelId(random.bits() as u32);
    let nonce = random.bits();
    let cookie = Cookie { generation: random.below(2) as u32, value: random.bits() };
    let terms = Terms { features: 0, window: 1 << 17, ack_delay: 0, packet_most: 1472 };
    let hello = Hello { caller: Epoch(random.bits()), callee, nonce, cookie: Some(cookie), terms };
    let offset = START.wrapping_add(random.below(1 << 18) as u32);
    let (kind, frame) = match random.below(6) {
        0 => (PacketKind::Data, Frame::Records { stream: A, offset, bytes: &[4; 32] }),
        1 => (PacketKind::Data, Frame::Nack { stream: A, taken: offset, touched: offset, reason: Reason::NoRoom }),
        2 => (PacketKind::Reset, Frame::Reset { epoch: Epoch(random.bits()) }),
        3 => (PacketKind::Answer, Frame::Refuse { nonce, reason: Reason::NoRoom }),
        4 => (PacketKind::Answer, Frame::Cookie { nonce, cookie }),
        _ => (PacketKind::Call, Frame::Hello(hello)),
    };
    let number = FIRST_NUMBER as u32 + random.below(3000) as u32;
    let acked = Some(FIRST_NUMBER as u32 + random.below(3000) as u32);
    sealed(Header { number, acked, ..Header::new(kind, to, from) }, &frame)
}

/// Sends `records` each way, and `packets` forged packets spread over the turns of the hosts. The outcome must be the
/// same as without them: to the nanosecond, and except for one counter.
fn forged_beside_traffic(records: u32, packets: u64) {
    let run = |packets: u64| {
        let mut world = World::connected(1, 6);
        world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 3_000);
        (0..2).for_each(|at| world.order(at, records));
        let (mut random, mut left) = (Random::new(8), packets);
        let end = world.now + Duration::from_secs(60);
        let mut refused = [0; 2];
        while !world.is_done() || left > 0 {
            assert!(world.turn(end).expect("in order") || world.is_done(), "not done");
            let share = if world.is_done() { left } else { left.min(200) };
            for n in 0..share {
                let at = (n % 2) as usize;
                let (ours, epoch) = (world.channel(at).ours().id, world.hosts[at].epoch);
                let packet = forged(&mut random, ours, epoch);
                if receiver_of(&packet) == Some(ours) {
                    let now = world.now;
                    assert_eq!(world.channel(at).on_packet(now, &packet), Verdict::Foreign);
                    refused[at] += 1;
                } else if let Answer::Admit(caller) = world.hosts[at].door.answer(world.now, &[9], &packet) {
                    panic!("{caller:?} guessed a cookie");
                }
            }
            left -= share;
        }
        let counters = [0, 1].map(|at| *world.channel(at).counters());
        assert_eq!(counters.map(|c| c.dropped_foreign), refused);
        (world.now, world.bytes, counters.map(|c| weft_transport::Counters { dropped_foreign: 0, ..c }))
    };
    assert_eq!(run(packets), run(0));
}

#[test]
fn forged_packets_beside_traffic_change_nothing_but_a_count() {
    forged_beside_traffic(1_000, 100_000);
}

#[test]
#[ignore = "ten million packets"]
fn ten_million_forged_packets_beside_traffic_change_nothing_but_a_count() {
    forged_beside_traffic(20_000, 10_000_000);
}

// ---- P3: replays

/// Replays the whole traffic in random order: to the same life while it goes on, and to the next life.
fn replayed(records: u32, times: u32) {
    let mut world = World::connected(2, 4);
    world.capture = Some(Vec::new());
    (0..2).for_each(|at| world.order(at, records));
    world.run_until_done(Duration::from_secs(600)).expect("in order");
    world.run(Duration::from_secs(1)).expect("in order");
    let capture = world.capture.take().expect("a capture");
    let mut random = Random::new(2);
    let received = [0, 1].map(|at| world.channel(at).counters().packets_received);
    let dropped = |world: &mut World| [0, 1].map(|at| world.channel(at).counters().dropped_old);
    let (before, rounds) = (dropped(&mut world), u64::from(times) * capture.len() as u64);
    for _ in 0..rounds {
        let (from, packet) = &capture[random.below(capture.len() as u64) as usize];
        assert_eq!(world.take(1 - from, packet), Some(Verdict::Old));
    }
    let after = dropped(&mut world);
    assert_eq!(after[0] + after[1] - before[0] - before[1], rounds);
    assert_eq!([0, 1].map(|at| world.channel(at).counters().packets_received), received);
    (0..2).for_each(|at| world.order(at, 100));
    world.run_until_done(Duration::from_secs(10)).expect("in order");
    // The next lives have other ids, and a replay of earlier packets must not get into them.
    (0..2).for_each(|at| world.restart(at));
    world.hosts[0].calls = true;
    world.run(Duration::from_secs(1)).expect("a call");
    for (from, packet) in &capture {
        assert_eq!(world.take(1 - from, packet), None, "of a channel that is not there");
    }
    assert!([0, 1].iter().all(|&at| matches!(world.channel(at).peek(A), Peek::Empty)));
}

#[test]
fn what_was_captured_comes_again_and_is_taken_for_old() {
    replayed(500, 3);
}

#[test]
#[ignore = "a long capture, a hundred times"]
fn a_long_capture_replayed_a_hundred_times_is_recognised_as_old() {
    replayed(100_000, 100);
}

// ---- P6: acknowledgements that lie

/// A peer that acknowledges packets before they can have arrived: each lie gains it at most one window, and sooner or
/// later one names a number that was skipped.
#[test]
fn each_acknowledgement_of_what_has_not_come_gains_a_window_at_most() {
    let mut liar = Liar::new();
    liar.world.hosts[0].program.bytes_most = 1_000;
    liar.world.order(0, 1_000_000);
    let window = liar.world.channel(0).congestion_window();
    let (mut lies, mut found) = (0u64, 0);
    for _ in 0..2_000 {
        liar.world.run(micros(1)).expect("nothing comes");
        // The peer does not know how many packets were sent; it guesses from the window.
        let guess = FIRST_NUMBER + liar.world.packets[0];
        liar.header.acked = Some(guess as u32);
        let taken = Frame::Taken { stream: A, taken: START, limit: START.wrapping_add(1 << 29) };
        match liar.say(&[taken]) {
            Verdict::Taken => lies += 1,
            Verdict::Violation => found += 1,
            other => panic!("{other:?}"),
        }
    }
    let sent = liar.world.bytes[0];
    assert!(sent <= (lies + found + 2) * (window + MTU as u64), "{sent} bytes for {lies} lies");
    // The peer took nothing, so the sender sends no more than it keeps, apart from control frames.
    let most = u64::from(liar.world.hosts[0].settings.send_most);
    assert!(sent < 2 * most + 2_000 * 60, "{sent} bytes");
    let memory = liar.world.channel(0).memory();
    assert!(memory < 2 * most as usize + (64 << 10), "{memory} bytes");
    assert_eq!(liar.world.channel(0).counters().dropped_violation, found);
    // Once the peer is silent it is lost like any other.
    liar.world.run(Duration::from_secs(8)).expect("nothing comes");
    assert_eq!(liar.world.lost(0), Some(Reason::Silent));
}

// ---- P10: packets cut and lengthened

#[test]
fn packets_cut_anywhere_or_with_junk_behind_are_refused_and_the_whole_one_is_taken() {
    let mut world = World::connected(1, 2);
    world.capture = Some(Vec::new());
    world.order(0, 40);
    world.hosts.iter_mut().for_each(|host| host.program.bytes_most = 300);
    let mut packets = Vec::new();
    world.tamper = Some(Box::new(|_, _| false));
    world.run(micros(50)).expect("nothing comes");
    packets.extend(world.capture.take().expect("a capture").into_iter().filter(|(from, _)| *from == 0));
    world.tamper = None;
    assert!(packets.len() >= 3, "{} packets", packets.len());
    let mut refused = 0;
    let before = world.channel(1).counters().packets_received;
    for (nth, (_, packet)) in (0..).zip(&packets) {
        let malformed = |verdict: Option<Verdict>| matches!(verdict, Some(Verdict::Malformed(_)) | None);
        for cut in 0..packet.len() {
            refused += u64::from(world.take(1, &packet[..cut]).is_some());
            assert!(malformed(world.take(1, &packet[cut.max(1)..])), "the rest from {cut} on");
        }
        for junk in 1..60 {
            let longer = [&packet[..], &vec![junk as u8 % 3; junk]].concat();
            assert!(malformed(world.take(1, &longer)), "{junk} bytes behind");
        }
        assert_eq!(world.channel(1).counters().packets_received, before + nth);
        let header = Packet::decode(packet).expect("whole").header;
        assert_eq!((header.kind, world.take(1, packet)), (PacketKind::Data, Some(Verdict::Taken)));
    }
    assert!(world.channel(1).counters().dropped_malformed >= refused);
    world.run_until_done(Duration::from_secs(5)).expect("in order");
}
