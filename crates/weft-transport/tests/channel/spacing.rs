//! Pacing: packets spaced evenly over a round trip.

use super::world::{micros, World, MTU};
use std::time::Duration;
use weft_transport::{Acked, Answer, Channel, Congestion, Door, FixedWindow, Life, Lot, Settings, Time, Verdict};
use weft_wire::frame::StreamId;
use weft_wire::packet::ChannelId;
use weft_wire::{Epoch, Head, Kind};

const STREAM: StreamId = StreamId(1);
const WINDOW: u64 = 64 * MTU as u64;

/// A constant window with pacing for all packets.
struct Spaced;

impl Congestion for Spaced {
    fn window(&self) -> u64 {
        WINDOW
    }

    fn spaces(&self, _packet: u64) -> bool {
        true
    }

    fn on_acked(&mut self, _now: Time, _acked: Acked) {}

    fn on_round_trip(&mut self, _now: Time, _took: u64, _lay: u64) {}

    fn on_lost(&mut self, _now: Time, _bytes: u64) {}

    fn on_timeout(&mut self, _now: Time) {}
}

/// A channel that spaces its packets and knows the round trip, and its peer.
fn pair(now: &mut Time, round_trip: Duration) -> (Channel<Spaced>, Channel) {
    let settings = Settings { packet_first: MTU as u16, ..Settings::default() };
    let ours = Life { epoch: Epoch(1), id: ChannelId(11) };
    let theirs = Life { epoch: Epoch(2), id: ChannelId(22) };
    let door = Door::new(theirs.epoch, [3, 4]);
    let mut near = Channel::call(*now, ours, theirs.epoch, settings, Lot { nonce: 5, seed: 6 }, Spaced);
    let mut packet = [0; MTU];
    let bytes = near.transmit(*now, &mut packet).expect("a call");
    *now = *now + round_trip / 2;
    let Answer::Reply(cookie) = door.answer(*now, b"there", &packet[..bytes]) else { panic!("no cookie") };
    *now = *now + round_trip / 2;
    assert_eq!(near.on_packet(*now, cookie.bytes()), Verdict::Taken);
    let bytes = near.transmit(*now, &mut packet).expect("another call");
    let Answer::Admit(caller) = door.answer(*now, b"there", &packet[..bytes]) else { panic!("not admitted") };
    *now = *now + round_trip / 2;
    let lot = Lot { nonce: 7, seed: 8 };
    let mut far = Channel::answer(*now, theirs, &caller, settings, lot, FixedWindow::default());
    let bytes = far.transmit(*now, &mut packet).expect("it accepts");
    *now = *now + round_trip / 2;
    assert_eq!(near.on_packet(*now, &packet[..bytes]), Verdict::Taken);
    near.open(STREAM).expect("room");
    far.open(STREAM).expect("room");
    for _ in 0..40 {
        fill(&mut near, 1);
        let sent = send_all(&mut near, *now);
        *now = *now + round_trip / 2;
        sent.iter().for_each(|packet| assert_eq!(far.on_packet(*now, packet), Verdict::Taken));
        far.hurry_acks();
        let bytes = far.transmit(*now, &mut packet).expect("an acknowledgement");
        *now = *now + round_trip / 2;
        assert_eq!(near.on_packet(*now, &packet[..bytes]), Verdict::Taken);
    }
    (near, far)
}

/// Queues `records`, each of which fills a packet.
fn fill(channel: &mut Channel<Spaced>, records: usize) {
    for _ in 0..records {
        channel.send(STREAM, Head::new(Kind::Send), &[], &[7; MTU - 100]).expect("room");
    }
}

/// All packets that may go now.
fn send_all(channel: &mut Channel<Spaced>, now: Time) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut packet = [0; MTU];
    while let Some(bytes) = channel.transmit(now, &mut packet) {
        packets.push(packet[..bytes].to_vec());
    }
    packets
}

#[test]
fn a_late_sender_sends_a_quarter_of_a_round_trip_at_once_and_then_paces() {
    // 64 packets per round trip, randomly a little fewer: at once go those due in a quarter of a round trip, clamped to
    // between 200 µs and a millisecond.
    for (round_trip, at_once) in [(1600, 14..=17), (400, 28..=33), (8000, 7..=9)] {
        let round_trip = micros(round_trip);
        let mut now = Time::from_micros(1_000_000);
        let (mut channel, _far) = pair(&mut now, round_trip);
        fill(&mut channel, 60);
        now = now + Duration::from_millis(30);
        let first = send_all(&mut channel, now).len();
        assert!(at_once.contains(&first), "{round_trip:?}: {first}");
        let mut later = Vec::new();
        for _ in 0..20 {
            now = now + round_trip / 64;
            later.push(send_all(&mut channel, now).len());
        }
        assert!(later.iter().all(|&packets| packets <= 1), "{later:?}");
        assert!((17..=20).contains(&later.iter().sum::<usize>()), "{later:?}");
        assert!(channel.next_timeout().is_some_and(|at| at <= now + round_trip / 48), "it is called for the next");
    }
}

#[test]
fn early_probes_do_not_delay_packets_after_the_silence() {
    let mut world = World::new(1, 1);
    // With this window a packet goes every 50 ms.
    world.hosts[0].window = FixedWindow(14);
    world.hosts[0].program.bytes_most = MTU - 100;
    world.hosts[1].program.bytes_most = MTU - 100;
    world.order(0, 30);
    world.run(Duration::from_millis(300)).expect("in order");
    world.tamper = Some(Box::new(|_, _| false));
    world.run(Duration::from_millis(150)).expect("in order");
    world.tamper = None;
    // The answer shows what the probes carried and what was lost.
    world.run(Duration::from_millis(60)).expect("in order");
    let before = world.hosts[1].program.got[&STREAM];
    world.run(Duration::from_millis(250)).expect("in order");
    let after = world.hosts[1].program.got[&STREAM];
    assert!(after >= before + 4, "{before} {after}");
    world.run_until_done(Duration::from_secs(3)).expect("in order");
}
