//! Checksums that leave payloads out if both sides ask for it.

use crate::hostile::{Liar, A, START};
use crate::world::{micros, World, MTU};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_transport::testing::Faults;
use weft_transport::{Caller, Channel, FixedWindow, Life, Lot, Random, Settings, Time, Verdict};
use weft_wire::frame::{stream_bytes, Frame, Terms, HEADER_INTEGRITY, UNRELIABLE};
use weft_wire::packet::{ChannelId, Header, Integrity, Packet, PacketError, PacketKind, HEADER, RECORD_COVERED};
use weft_wire::{Epoch, Head, Kind, Reason};

use Integrity::{Full, Header as HeaderOnly};

/// Two unconnected hosts with one stream, which ask for these integrities.
fn world_of(wanted: [Integrity; 2], seed: u64) -> World {
    let mut world = World::new(1, seed);
    for (host, integrity) in world.hosts.iter_mut().zip(wanted) {
        host.settings.integrity = integrity;
        host.program.bytes_most = 20_000;
    }
    world
}

/// Reads a packet whatever its checksum covers.
fn read(packet: &[u8]) -> Packet<'_> {
    Packet::decode_as(packet, HeaderOnly).expect("whole")
}

/// Damages packets of host 0 that are larger than half a frame, at the byte that `choose` returns, if any. Counts them.
fn damage(world: &mut World, choose: impl Fn(&Packet<'_>, usize) -> Option<usize> + 'static) -> Rc<Cell<u64>> {
    let damaged = Rc::new(Cell::new(0));
    let count = damaged.clone();
    let mut large = 0;
    world.tamper = Some(Box::new(move |at, packet| {
        large += u64::from(at == 0 && packet.len() > MTU / 2);
        if at == 0 && packet.len() > MTU / 2 && large % 3 == 0 {
            if let Some(place) = choose(&read(packet), packet.len()) {
                packet[place] ^= 0x10;
                count.set(count.get() + 1);
            }
        }
        true
    }));
    damaged
}

#[test]
fn payloads_are_left_out_only_if_both_sides_want_it() {
    for (wanted, agreed) in [
        ([Full, Full], Full),
        ([HeaderOnly, Full], Full),
        ([Full, HeaderOnly], Full),
        ([HeaderOnly, HeaderOnly], HeaderOnly),
    ] {
        let mut world = world_of(wanted, 1);
        world.capture = Some(Vec::new());
        world.order(0, 50);
        world.order(1, 50);
        world.run_until_done(Duration::from_secs(1)).expect("in order");
        for at in [0, 1] {
            assert_eq!((world.channel(at).integrity(), world.channel(at).integrity_wanted()), (agreed, wanted[at]));
        }
        let capture = world.capture.take().expect("a capture");
        for side in [0, 1] {
            let of_side = capture.iter().filter(|(at, _)| *at == side);
            let partly = of_side.filter(|(_, packet)| read(packet).covered() < packet.len()).count();
            assert_eq!(partly > 100, agreed == HeaderOnly, "{wanted:?}: {partly} packets of side {side}");
        }
    }
}

#[test]
fn a_peer_that_does_not_know_of_it_has_everything_covered() {
    let now = Time::from_micros(1_000_000);
    let life = Life { epoch: Epoch(1), id: ChannelId(1) };
    let settings = Settings { integrity: HeaderOnly, ..Settings::default() };
    for (features, agreed) in [(0, 0), (UNRELIABLE, UNRELIABLE), (u32::MAX, UNRELIABLE | HEADER_INTEGRITY)] {
        let terms = Terms { features, window: 1 << 17, ack_delay: 0, packet_most: 1472 };
        let caller = Caller { epoch: Epoch(2), id: ChannelId(2), nonce: 3, terms, sent_at: 0, arrived: now };
        let lot = Lot { nonce: 4, seed: 5 };
        let mut channel = Channel::answer(now, life, &caller, settings, lot, FixedWindow::default());
        let expected = if agreed & HEADER_INTEGRITY == 0 { Full } else { HeaderOnly };
        assert_eq!(channel.integrity(), expected);
        let mut packet = [0; MTU];
        let bytes = channel.transmit(now, &mut packet).expect("it accepts the call");
        let said = read(&packet[..bytes]).frames().find_map(|frame| match frame {
            Ok(Frame::Accept(accept)) => Some(accept.terms.features),
            _ => None,
        });
        assert_eq!(said, Some(agreed));
    }
}

#[test]
fn damage_of_what_is_left_out_is_delivered_and_the_ledger_sees_it() {
    let mut world = world_of([HeaderOnly; 2], 2);
    let damaged = damage(&mut world, |packet, len| Some(packet.covered()).filter(|covered| *covered < len));
    world.order(0, 100);
    let told = world.run_until_done(Duration::from_secs(1)).expect_err("a record that is another one");
    assert!(told.contains("record"), "{told}");
    assert!(damaged.get() > 0);
    assert_eq!(world.channel(1).counters().dropped_malformed, 0);
}

#[test]
fn damage_of_what_is_covered_is_found() {
    for seed in 1..=20 {
        let mut world = world_of([HeaderOnly; 2], seed);
        let random = Cell::new(seed);
        let damaged = damage(&mut world, move |packet, _| {
            let mut lot = Random::new(random.get());
            random.set(lot.bits());
            Some(lot.below(packet.covered() as u64) as usize)
        });
        world.order(0, 100);
        world.run_until_done(Duration::from_secs(60)).expect("in order, and as they were");
        let counters = *world.channel(1).counters();
        // Damage to an id makes the packet one of another channel.
        assert!(damaged.get() > 20 && counters.dropped_malformed > damaged.get() / 2, "{counters:?}");
        assert_eq!(counters.dropped_violation, 0);
    }
}

#[test]
fn with_one_side_that_does_not_want_it_all_damage_is_found() {
    for wanted in [[HeaderOnly, Full], [Full, HeaderOnly]] {
        let mut world = world_of(wanted, 3);
        let damaged = damage(&mut world, |_, len| Some(len - 9));
        world.order(0, 100);
        world.run_until_done(Duration::from_secs(60)).expect("in order, and as they were");
        let found = world.channel(1).counters().dropped_malformed;
        assert!(damaged.get() > 20 && found == damaged.get(), "{found} of {}", damaged.get());
    }
}

#[test]
fn packets_are_covered_to_their_end_until_both_sides_know_what_was_agreed() {
    let mut world = world_of([HeaderOnly; 2], 4);
    world.capture = Some(Vec::new());
    // Both sides have much to send from the first packet on, and set-up takes several tries.
    world.links.iter_mut().for_each(|link| link.faults = Faults { drop: 300_000, ..Faults::default() });
    world.order(0, 30);
    world.order(1, 30);
    world.run_until_done(Duration::from_secs(60)).expect("in order");
    let capture = world.capture.take().expect("a capture");
    let (mut accepts, mut partly) = (0, 0);
    for (_, packet) in &capture {
        let read = read(packet);
        let accepts_now = read.frames().any(|frame| matches!(frame, Ok(Frame::Accept(_))));
        accepts += u64::from(accepts_now);
        if accepts_now || read.header.kind != PacketKind::Data {
            assert_eq!(read.covered(), packet.len());
        }
        partly += u64::from(read.covered() < packet.len());
    }
    assert!(accepts > 0 && partly > 0, "{accepts} packets with an accept, {partly} covered in part");
}

/// For each byte of a captured stream, whether it lies in the covered beginning of a record.
fn beginnings(capture: &[(usize, Vec<u8>)], side: usize) -> Vec<bool> {
    let mut bytes: Vec<u8> = Vec::new();
    for (_, packet) in capture.iter().filter(|(at, _)| *at == side) {
        for frame in read(packet).frames().flatten() {
            if let Frame::Records { offset, bytes: run, .. } = frame {
                let from = offset.wrapping_sub(START) as usize;
                bytes.resize(bytes.len().max(from + run.len()), 0);
                bytes[from..from + run.len()].copy_from_slice(run);
            }
        }
    }
    let mut are = vec![false; bytes.len()];
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + 16) {
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let head = Head::unpack([word(0), word(8)]).expect("a record");
        let end = at + stream_bytes(head.args.into(), head.len as usize);
        let last = end.min(at + RECORD_COVERED).min(are.len());
        are[at..last].fill(true);
        at = end;
    }
    are
}

#[test]
fn the_beginning_of_every_record_is_covered_however_packets_are_cut() {
    for (seed, bytes_most, loss) in
        [(1, 60_000, 0), (2, 60_000, 50_000), (3, 3_000, 20_000), (4, 400, 20_000), (5, 40, 0)]
    {
        let mut world = world_of([HeaderOnly; 2], seed);
        world.hosts.iter_mut().for_each(|host| host.program.bytes_most = bytes_most);
        world.links.iter_mut().for_each(|link| link.faults = Faults { drop: loss, ..Faults::default() });
        world.run(micros(100_000)).expect("nothing to go wrong");
        world.capture = Some(Vec::new());
        world.order(0, if bytes_most > 400 { 200 } else { 5_000 });
        world.run_until_done(Duration::from_secs(60)).expect("in order");
        assert!(world.runs[0] > 0, "packets that lay ready");
        let capture = world.capture.take().expect("a capture");
        let are_beginnings = beginnings(&capture, 0);
        let (mut left_out, mut all) = (0, 0);
        for (_, packet) in capture.iter().filter(|(at, _)| *at == 0) {
            let read = read(packet);
            (left_out, all) = (left_out + packet.len() - read.covered(), all + packet.len());
            let last = read.frames().last();
            if let Some(Ok(Frame::Records { offset, bytes, .. })) = last {
                let end = offset.wrapping_sub(START) as usize + bytes.len();
                let from = end - (packet.len() - read.covered());
                assert!(read.covered() >= packet.len() - bytes.len(), "headers of frames are covered");
                assert!(are_beginnings[from..end].iter().all(|is| !is), "bytes {from}..{end} of the stream");
            } else {
                assert_eq!(read.covered(), packet.len());
            }
        }
        match bytes_most {
            60_000 => assert!(left_out > all * 9 / 10, "{left_out} of {all} bytes"),
            3_000 => assert!(left_out > all / 4, "{left_out} of {all} bytes"),
            _ => assert!(left_out < all / 2, "{left_out} of {all} bytes"),
        }
    }
}

#[test]
fn only_payloads_of_unreliable_messages_are_left_out() {
    let mut world = world_of([HeaderOnly; 2], 6);
    world.run(micros(100_000)).expect("nothing to go wrong");
    world.capture = Some(Vec::new());
    let payload: Vec<u8> = (0..20_000).map(|n| n as u8).collect();
    world.channel(0).send_unreliable(A, Head::new(Kind::Unreliable), &[1, 2], &payload).expect("room");
    world.transmit(0);
    let capture = world.capture.take().expect("a capture");
    let mut left_out = 0;
    for (_, packet) in &capture {
        let read = read(packet);
        left_out += packet.len() - read.covered();
        let last = read.frames().last().filter(|_| read.covered() < packet.len());
        if let Some(Ok(Frame::Unreliable(piece))) = last {
            let first = piece.at as usize + piece.bytes.len() - (packet.len() - read.covered());
            assert_eq!(first, (piece.at as usize).max(RECORD_COVERED), "covered up to there");
        }
    }
    assert!(left_out > 19_000, "{left_out} bytes");
    world.run(micros(100_000)).expect("nothing to go wrong");
    assert_eq!(world.channel(1).take_unreliable().map(|m| m.record().payload.to_vec()), Some(payload));
}

#[test]
fn who_leaves_payloads_out_without_agreement_harms_nobody_else() {
    let mut liar = Liar::new();
    let frame = Frame::Records { stream: A, offset: START, bytes: &[4; 600] };
    let mut packet = crate::hostile::sealed(Header { number: 77, ..liar.header }, &frame);
    liar.header.seal_partly(&mut packet, HEADER + 12);
    assert_eq!(liar.world.take(0, &packet), Some(Verdict::Malformed(PacketError::Checksum)));
    assert_eq!(liar.say(&[Frame::Ping]), Verdict::Taken, "the channel goes on");
}

#[test]
fn a_peer_that_has_forgotten_the_channel_says_so_to_a_packet_that_is_covered_in_part() {
    let mut world = world_of([HeaderOnly; 2], 7);
    world.run(micros(100_000)).expect("nothing to go wrong");
    world.restart(1);
    world.order(0, 3);
    world.capture = Some(Vec::new());
    let asked_at = world.now;
    // Only packets that are covered in part get through.
    world.tamper = Some(Box::new(|at, packet| at == 1 || read(packet).covered() < packet.len()));
    while world.lost(0).is_none() {
        let end = asked_at + Duration::from_secs(2);
        assert!(world.turn(end).expect("nothing comes"), "it is told");
    }
    assert_eq!(world.lost(0), Some(Reason::WrongEpoch));
    assert!(world.now < asked_at + micros(2_000), "within a round trip");
}

#[test]
fn streams_that_were_opened_before_the_agreement_leave_payloads_out_as_well() {
    let mut world = world_of([HeaderOnly; 2], 8);
    world.capture = Some(Vec::new());
    world.order(0, 20);
    world.call(0);
    assert!(world.channel(0).is_calling());
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    let capture = world.capture.take().expect("a capture");
    let goes_partly = |(at, packet): &&(usize, Vec<u8>)| *at == 0 && read(packet).covered() < packet.len();
    assert!(capture.iter().filter(goes_partly).count() > 50);
}
