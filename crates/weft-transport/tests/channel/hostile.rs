//! Packets that no honest peer sends.

use crate::world::{micros, World, MTU};
use proptest::prelude::*;
use std::time::Duration;
use weft_transport::sack::{Arrival, Received};
use weft_transport::{Answer, Life, Random, Verdict};
use weft_wire::frame::{
    Accept, Cookie, Frame, Hello, Pause, PauseReason, StreamId, Terms, Writer, BITMAP_MOST, FIRST_OFFSET,
};
use weft_wire::packet::{reseal, reseal_partly, ChannelId, Header, Integrity, Packet, PacketKind};
use weft_wire::packet::{FIRST_NUMBER, HEADER};
use weft_wire::path::Peek;
use weft_wire::{Epoch, Reason};

pub const A: StreamId = StreamId(1);
pub const START: u32 = FIRST_OFFSET as u32;

/// A hostile host 1: it knows the ids, and sends host 0 whatever it likes.
pub struct Liar {
    pub world: World,
    pub header: Header,
    number: u64,
}

impl Liar {
    pub fn new() -> Liar {
        Liar::of(World::connected(1, 9))
    }

    /// Replaces host 1 in a connected world.
    pub fn of(mut world: World) -> Liar {
        let (to, from) = (world.channel(0).ours().id, world.channel(1).ours().id);
        world.hosts[1].channel = None;
        world.links[0].faults.drop = 1_000_000;
        Liar { world, header: Header::new(PacketKind::Data, to, from), number: FIRST_NUMBER + 100 }
    }

    /// The next packet, with these frames.
    pub fn packet(&mut self, frames: &[Frame<'_>]) -> Vec<u8> {
        self.number += 1;
        let mut packet = vec![0; MTU];
        let mut writer = Writer::new(&mut packet);
        frames.iter().for_each(|frame| assert!(writer.push(frame), "room"));
        let header = Header { number: self.number as u32, ..self.header };
        let packet = writer.finish();
        header.seal(packet);
        packet.to_vec()
    }

    pub fn say(&mut self, frames: &[Frame<'_>]) -> Verdict {
        let packet = self.packet(frames);
        self.world.take(0, &packet).expect("for the channel")
    }
}

/// A host 0 that calls, with the contents of its call.
fn calling() -> (World, Life, Hello) {
    let mut world = World::new(1, 1);
    world.call(0);
    world.capture = Some(Vec::new());
    world.transmit(0);
    let call = world.capture.take().expect("a capture").remove(0).1;
    let Some(Frame::Hello(hello)) = Packet::decode(&call).expect("a packet").only_frame() else {
        panic!("not a call");
    };
    let ours = world.channel(0).ours();
    (world, ours, hello)
}

/// A packet with one frame.
pub fn sealed(header: Header, frame: &Frame<'_>) -> Vec<u8> {
    let mut packet = vec![0; MTU];
    let mut writer = Writer::new(&mut packet);
    assert!(writer.push(frame), "room");
    let packet = writer.finish();
    header.seal(packet);
    packet.to_vec()
}

/// An answer of a host that keeps no state for the caller.
fn answer(to: Life, frame: &Frame<'_>) -> Vec<u8> {
    sealed(Header::new(PacketKind::Answer, to.id, ChannelId::NOBODY), frame)
}

#[test]
fn forged_ids_do_nothing() {
    let mut world = World::connected(1, 1);
    let to = world.channel(1).ours().id;
    let mut random = Random::new(1);
    for _ in 0..100_000 {
        let from = ChannelId(random.bits() as u32);
        let mut packet = vec![0; 100];
        let mut writer = Writer::new(&mut packet);
        let kind =
            [PacketKind::Data, PacketKind::Reset, PacketKind::Answer, PacketKind::Call][random.below(4) as usize];
        let frame = match kind {
            PacketKind::Reset => Frame::Reset { epoch: Epoch(random.bits()) },
            PacketKind::Answer => Frame::Refuse { nonce: random.bits(), reason: Reason::NoRoom },
            _ => Frame::Records { stream: A, offset: START, bytes: &[4; 16] },
        };
        assert!(writer.push(&frame));
        let header = Header { number: random.bits() as u32, ..Header::new(kind, to, from) };
        let packet = writer.finish();
        header.seal(packet);
        let verdict = world.channel(1).on_packet(weft_transport::Time::from_micros(2_000_000), packet);
        assert_eq!(verdict, Verdict::Foreign);
    }
    assert_eq!(world.channel(1).counters().dropped_foreign, 100_000);
    world.order(0, 100);
    world.order(1, 100);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
}

#[test]
fn an_answer_without_the_nonce_of_the_call_does_nothing() {
    let (mut world, ours, hello) = calling();
    let theirs = world.hosts[1].epoch;
    let accept = Accept { nonce: hello.nonce, caller: ours.epoch, callee: theirs, terms: hello.terms };
    let cookie = Cookie { generation: 1, value: 2 };
    for (kind, frame) in [
        (PacketKind::Data, Frame::Accept(Accept { nonce: hello.nonce ^ 1, ..accept })),
        (PacketKind::Data, Frame::Accept(Accept { caller: Epoch(1), ..accept })),
        (PacketKind::Data, Frame::Ping),
        (PacketKind::Answer, Frame::Cookie { nonce: hello.nonce ^ 1, cookie }),
        (PacketKind::Answer, Frame::Refuse { nonce: hello.nonce ^ 1, reason: Reason::NoRoom }),
        (PacketKind::Answer, Frame::Accept(accept)),
        (PacketKind::Reset, Frame::Reset { epoch: Epoch(1) }),
    ] {
        let header = Header { number: FIRST_NUMBER as u32, ..Header::new(kind, ours.id, ChannelId(5)) };
        assert_eq!(world.take(0, &sealed(header, &frame)), Some(Verdict::Foreign), "{frame:?}");
    }
    assert!(!world.channel(0).is_open());
    world.order(0, 5);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
}

/// A peer is unreachable when it was silent for the suspicion time, not when a call has taken that long. (I1)
#[test]
fn who_was_answered_late_goes_on_calling_but_not_for_ever() {
    for comes_back in [true, false] {
        let (mut world, ours, hello) = calling();
        // Only the answer to one call gets through, just before the suspicion time is over.
        world.links[0].faults.drop = 1_000_000;
        world.links[1].faults.drop = 1_000_000;
        world.run(Duration::from_millis(2_900)).expect("nothing comes");
        let cookie = Cookie { generation: 1, value: 2 };
        assert_eq!(world.take(0, &answer(ours, &Frame::Cookie { nonce: hello.nonce, cookie })), Some(Verdict::Taken));
        world.run(Duration::from_millis(2_500)).expect("nothing comes");
        assert_eq!(world.lost(0), None, "it was heard 2.5 s ago");
        if comes_back {
            world.links[0].faults.drop = 0;
            world.links[1].faults.drop = 0;
            world.order(0, 5);
            world.run_until_done(Duration::from_secs(2)).expect("in order");
        } else {
            world.run(Duration::from_millis(800)).expect("nothing comes");
            assert_eq!(world.lost(0), Some(Reason::NobodyThere));
        }
    }
}

/// Anyone who sees the calls can answer each with another cookie. That must cause no more calls than silence does, and
/// for no longer.
#[test]
fn a_call_that_is_answered_with_another_cookie_each_time_ends_all_the_same() {
    let (mut world, ours, hello) = calling();
    let suspicion = world.hosts[0].settings.suspicion;
    world.links[0].faults.drop = 1_000_000;
    world.links[1].faults.drop = 1_000_000;
    world.run(Duration::from_millis(500)).expect("nothing comes");
    let (first, before) = (world.now, world.packets[0]);
    for value in 0.. {
        let cookie = Cookie { generation: 1, value };
        let verdict = world.take(0, &answer(ours, &Frame::Cookie { nonce: hello.nonce, cookie }));
        if world.lost(0).is_some() {
            assert_eq!(verdict, Some(Verdict::Foreign));
            break;
        }
        assert_eq!(verdict, Some(Verdict::Taken));
        world.run(Duration::from_millis(1)).expect("nothing comes");
        assert!(value < 60_000, "still calling after a minute");
    }
    assert_eq!(world.lost(0), Some(Reason::NobodyThere));
    // The calls are at most a quarter of the suspicion time apart.
    let took = world.now.since(first);
    assert!(took >= suspicion && took < suspicion * 5 / 4, "{took:?}");
    let calls = world.packets[0] - before;
    assert!(calls < 200, "{calls} calls");
}

/// A forged cookie is used like any other, and does not prevent the use of the true one.
#[test]
fn a_forged_cookie_before_the_true_one_costs_a_try() {
    let (mut world, ours, hello) = calling();
    let cookie = Cookie { generation: 1, value: 2 };
    assert_eq!(world.take(0, &answer(ours, &Frame::Cookie { nonce: hello.nonce, cookie })), Some(Verdict::Taken));
    world.order(0, 5);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
}

#[test]
fn a_replayed_capture_delivers_nothing() {
    let mut world = World::connected(2, 1);
    world.capture = Some(Vec::new());
    for at in [0, 1] {
        world.links[at].faults.duplicate = 100_000;
        world.links[at].faults.reorder = 100_000;
        world.links[at].faults.late_most = micros(500);
        world.hosts[at].program.bytes_most = 3_000;
        world.order(at, 2_000);
    }
    world.run_until_done(Duration::from_secs(10)).expect("in order");
    world.run(Duration::from_secs(1)).expect("in order");
    let mut capture = world.capture.take().expect("a capture");
    let mut random = Random::new(2);
    for at in (1..capture.len()).rev() {
        capture.swap(at, random.below(at as u64 + 1) as usize);
    }
    let before = [0, 1].map(|at| (world.channel(at).counters().packets_received, world.packets[at]));
    for (from, packet) in &capture {
        assert_eq!(world.take(1 - from, packet), Some(Verdict::Old));
    }
    for at in [0, 1] {
        let channel = world.channel(at);
        assert!((1..=2).all(|s| matches!(channel.peek(StreamId(s)), Peek::Empty)));
        assert_eq!((channel.counters().packets_received, world.packets[at]), before[at]);
        assert_eq!(world.channel(at).next_timeout(), None);
    }
}

#[test]
fn a_reset_needs_both_ids_and_a_number_that_was_sent() {
    let mut liar = Liar::new();
    liar.world.order(0, 1);
    liar.world.run(micros(10)).expect("nothing comes");
    let header = Header { kind: PacketKind::Reset, ..liar.header };
    let mut reset = |header: Header| {
        let mut packet = [0; HEADER + 12];
        let mut writer = Writer::new(&mut packet);
        assert!(writer.push(&Frame::Reset { epoch: Epoch(1) }));
        header.seal(writer.finish());
        (liar.world.take(0, &packet), liar.world.lost(0))
    };
    let number = FIRST_NUMBER as u32;
    let from = ChannelId(header.from.0 ^ 1);
    assert_eq!(reset(Header { number, from, ..header }), (Some(Verdict::Foreign), None));
    assert_eq!(reset(Header { number: number + 1000, ..header }), (Some(Verdict::Violation), None));
    assert_eq!(reset(Header { number, ..header }), (Some(Verdict::Taken), Some(Reason::WrongEpoch)));
}

#[test]
fn acknowledging_what_was_not_sent_does_nothing() {
    let mut liar = Liar::new();
    liar.world.order(0, 20);
    liar.world.run(micros(10)).expect("nothing comes");
    for acked in [FIRST_NUMBER as u32 + 500, u32::MAX - 5, (FIRST_NUMBER as u32).wrapping_add(1 << 30)] {
        liar.header.acked = Some(acked);
        assert_eq!(liar.say(&[Frame::Ping]), Verdict::Violation);
    }
    liar.header.acked = Some(FIRST_NUMBER as u32);
    assert_eq!(liar.say(&[Frame::Acks { bitmap: &[0xff; 128] }]), Verdict::Violation);
    liar.header.acked = None;
    assert_eq!(liar.say(&[Frame::Acks { bitmap: &[1] }]), Verdict::Violation);
    assert!(!liar.world.channel(0).is_quiet());
    assert_eq!(liar.world.channel(0).counters().dropped_violation, 5);
}

#[test]
fn a_number_that_was_left_out_gives_a_liar_away() {
    // A peer that acknowledges everything that might have been sent names a skipped number sooner or later.
    let mut liar = Liar::new();
    let mut violations = 0;
    for _ in 0..4_000 {
        liar.world.order(0, 1);
        liar.world.run(micros(1)).expect("nothing comes");
        let next = liar.world.packets[0] + FIRST_NUMBER;
        liar.header.acked = Some(FIRST_NUMBER as u32);
        let mut bitmap = [0; 1];
        let skipped = next.saturating_sub(FIRST_NUMBER) as usize;
        bitmap[0] = 1 << (skipped % 8);
        liar.header.acked = Some((FIRST_NUMBER + (skipped as u64 / 8) * 8) as u32);
        violations += u32::from(liar.say(&[Frame::Acks { bitmap: &bitmap }, Frame::Ping]) == Verdict::Violation);
    }
    assert!(violations > 0);
}

#[test]
fn what_was_never_granted_or_taken_is_refused() {
    let mut liar = Liar::new();
    let window = liar.world.hosts[0].settings.window;
    let records = |offset, bytes| Frame::Records { stream: A, offset, bytes };
    for offset in [START.wrapping_add(window), START.wrapping_add(window - 1), START.wrapping_add(1 << 30)] {
        assert_eq!(liar.say(&[records(offset, &[0; 2])]), Verdict::Violation);
    }
    assert_eq!(liar.say(&[records(START.wrapping_add(window - 2), &[0; 2])]), Verdict::Taken);
    let taken = |taken| Frame::Taken { stream: A, taken, limit: u32::MAX };
    assert_eq!(liar.say(&[taken(START + 16)]), Verdict::Violation);
    assert_eq!(
        liar.say(&[Frame::Nack { stream: A, taken: START + 1, touched: 0, reason: Reason::NoRoom }]),
        Verdict::Violation
    );
    let terms = Terms { features: 0, window: 0, ack_delay: 0, packet_most: 0 };
    let hello = Hello { caller: Epoch(1), callee: Epoch(2), nonce: 3, cookie: None, terms };
    for frame in
        [Frame::Hello(hello), Frame::Reset { epoch: Epoch(1) }, Frame::Refuse { nonce: 1, reason: Reason::NoRoom }]
    {
        assert_eq!(liar.say(&[frame]), Verdict::Violation);
    }
    assert_eq!(liar.world.lost(0), None);
}

#[test]
fn holes_and_half_records_fill_no_more_than_the_window() {
    let mut liar = Liar::new();
    let window = liar.world.hosts[0].settings.window;
    let mut random = Random::new(4);
    let mut refused = 0;
    for _ in 0..100_000 {
        let offset = START.wrapping_add(1 + random.below(u64::from(window) - 10) as u32);
        let verdict = liar.say(&[Frame::Records { stream: A, offset, bytes: &[9; 8] }]);
        refused += u32::from(verdict == Verdict::NoRoom);
    }
    let memory = liar.world.channel(0).memory();
    assert!(memory < window as usize + (24 << 10), "{memory} bytes");
    assert!(refused > 1_000, "{refused}");
    // Only the first byte of a record arrives: nothing to read, nothing lost.
    assert!(matches!(liar.world.channel(0).peek(A), Peek::Empty));
}

#[test]
fn a_peer_that_never_acknowledges_costs_a_window_and_is_not_lost_while_it_speaks() {
    let mut liar = Liar::new();
    liar.world.order(0, 1_000_000);
    let (window, send_most) = (liar.world.hosts[0].window.0, liar.world.hosts[0].settings.send_most);
    for _ in 0..1_000 {
        liar.world.run(Duration::from_millis(20)).expect("nothing comes");
        assert_eq!(liar.say(&[Frame::Ping]), Verdict::Taken);
    }
    let memory = liar.world.channel(0).memory();
    assert!(memory < 2 * send_most as usize + (128 << 10), "{memory} bytes");
    let sent = liar.world.bytes[0];
    // One window, then two packets at each timeout (at least 1/32 of the suspicion time apart), and an answer to each ping.
    let most = window + 20_000 / 93 * 2 * MTU as u64 + 1_000 * 40 + (64 << 10);
    assert!(sent > window && sent < most, "{sent} bytes, {most} at most");
    assert_eq!(liar.world.lost(0), None);
    liar.world.run(Duration::from_secs(4)).expect("nothing comes");
    assert_eq!(liar.world.lost(0), Some(Reason::Silent));
}

#[test]
fn a_window_that_is_never_opened_stops_the_writer_for_good_and_for_no_more() {
    let mut liar = Liar::new();
    liar.world.order(0, 1_000_000);
    let mut received = Received::new(FIRST_NUMBER);
    for _ in 0..400 {
        liar.world.capture = Some(Vec::new());
        liar.world.run(Duration::from_millis(50)).expect("nothing comes");
        // Everything arrived, nothing was taken.
        for (_, packet) in liar.world.capture.take().expect("a capture") {
            let header = Packet::decode(&packet).expect("a packet").header;
            if let Arrival::New(number) = received.look(header.number) {
                received.insert(number, header.behind);
            }
        }
        liar.header.acked = Some(received.all_below() as u32);
        let mut bitmap = [0; BITMAP_MOST];
        let bitmap = received.bitmap(&mut bitmap);
        let acks = if bitmap.is_empty() { Frame::Ping } else { Frame::Acks { bitmap } };
        assert_eq!(liar.say(&[acks, Frame::Ping]), Verdict::Taken);
    }
    let memory = liar.world.channel(0).memory();
    assert!(memory < 2 * liar.world.hosts[0].settings.send_most as usize + (64 << 10), "{memory} bytes");
    assert_eq!(liar.world.lost(0), None);
}

#[test]
fn an_authenticator_that_nobody_can_check_is_not_ignored() {
    let mut liar = Liar::new();
    let mut packet = liar.packet(&[]);
    packet.extend([0; 16]);
    packet.extend([10, 0, 0, 0]);
    packet[6] |= 4;
    reseal(&mut packet);
    assert_eq!(liar.world.take(0, &packet), Some(Verdict::Foreign));
    packet[8] ^= 1;
    reseal(&mut packet);
    let door = &liar.world.hosts[0].door;
    assert_eq!(door.answer(liar.world.now, &[1], &packet), Answer::Drop);
}

#[test]
fn the_door_answers_no_more_than_was_asked_and_not_at_all_what_it_does_not_know() {
    let world = World::new(1, 1);
    let door = &world.hosts[1].door;
    let mut random = Random::new(3);
    let terms = Terms { features: 0, window: 1 << 17, ack_delay: 0, packet_most: 1472 };
    for _ in 0..20_000 {
        let callee = if random.chance(500_000) { world.hosts[1].epoch } else { Epoch(random.bits()) };
        let cookie = weft_wire::frame::Cookie { generation: random.below(3) as u32, value: random.bits() };
        let cookie = random.chance(500_000).then_some(cookie);
        let hello = Hello { caller: Epoch(random.bits()), callee, nonce: random.bits(), cookie, terms };
        let mut packet = vec![0; MTU];
        let mut writer = Writer::new(&mut packet);
        let kind = if random.chance(800_000) { PacketKind::Call } else { PacketKind::Data };
        match kind {
            PacketKind::Call => assert!(writer.push(&Frame::Hello(hello))),
            _ => (0..random.below(6)).for_each(|_| assert!(writer.push(&Frame::Ping))),
        }
        let packet = writer.finish();
        Header::new(kind, ChannelId::NOBODY, ChannelId(random.bits() as u32)).seal(packet);
        match door.answer(world.now, &random.bits().to_le_bytes(), packet) {
            Answer::Reply(reply) => {
                assert!(reply.bytes().len() <= packet.len());
                let reply = Packet::decode(reply.bytes()).expect("an answer");
                assert!(matches!(reply.header.kind, PacketKind::Answer | PacketKind::Reset));
            }
            Answer::Admit(caller) => panic!("{caller:?} guessed a cookie"),
            Answer::Drop => assert!(kind == PacketKind::Data && packet.len() < HEADER + 12),
        }
        let is_answered = |packet: &[u8]| door.answer(world.now, &[1], packet) != Answer::Drop;
        assert!(!is_answered(&packet[..packet.len() - 1]));
        for kind in [PacketKind::Answer, PacketKind::Reset] {
            let mut packet = packet.to_vec();
            Header::new(kind, ChannelId(1), ChannelId(2)).seal(&mut packet);
            assert!(!is_answered(&packet));
        }
    }
}

#[test]
fn calls_for_programs_that_may_come_are_left_without_an_answer() {
    let mut world = World::new(1, 1);
    let (now, ours) = (world.now, world.hosts[1].epoch);
    let door = &mut world.hosts[1].door;
    let terms = Terms { features: 0, window: 1 << 17, ack_delay: 0, packet_most: 1472 };
    let answer = |door: &weft_transport::Door, callee| {
        let mut packet = vec![0; MTU];
        let mut writer = Writer::new(&mut packet);
        assert!(writer.push(&Frame::Hello(Hello { caller: Epoch(7), callee, nonce: 9, cookie: None, terms })));
        let packet = writer.finish();
        Header::new(PacketKind::Call, ChannelId::NOBODY, ChannelId(5)).seal(packet);
        match door.answer(now, &[1], packet) {
            Answer::Reply(reply) => Some(reply.invites()),
            _ => None,
        }
    };
    door.wait_for_programs(true);
    assert_eq!((answer(door, ours), answer(door, Epoch(8))), (Some(true), None));
    door.serve(Epoch(8));
    assert_eq!(answer(door, Epoch(8)), Some(true));
    door.wait_for_programs(false);
    assert_eq!(answer(door, Epoch(9)), Some(false), "refused");
}

/// An arbitrary frame.
fn any_frame() -> impl Strategy<Value = (u8, u32, u32, Vec<u8>)> {
    let near = prop_oneof![
        4 => (0u32..3000).prop_map(|n| START.wrapping_add(n)),
        1 => (0u32..1 << 19).prop_map(|n| START.wrapping_add(n)),
        1 => any::<u32>(),
    ];
    (0u8..9, near.clone(), near, proptest::collection::vec(prop_oneof![Just(0u8), Just(4u8), any::<u8>()], 1..80))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_peer_says_memory_stays_bounded_and_nothing_breaks_but_its_own_stream(
        packets in proptest::collection::vec(
            (proptest::collection::vec(any_frame(), 0..5), 0u64..30, proptest::option::of(0u32..300), 0u16..1024, any::<u32>()),
            1..120,
        ),
        leaves_payloads_out in any::<bool>(),
    ) {
        let mut world = World::new(1, 9);
        if leaves_payloads_out {
            world.hosts.iter_mut().for_each(|host| host.settings.integrity = Integrity::Header);
        }
        world.run(micros(100_000)).expect("nothing to go wrong");
        let mut liar = Liar::of(world);
        liar.world.order(0, 300);
        // Both windows of the stream, the window of all new streams, and the stream table.
        let bound = 4 * liar.world.hosts[0].settings.window as usize;
        for (frames, skip, acked, behind, reflected) in packets {
            liar.number += skip;
            liar.header.behind = behind;
            liar.header.acked = acked.map(|n| (FIRST_NUMBER as u32).wrapping_add(n).wrapping_sub(20));
            liar.header.reflected = Some(weft_wire::packet::Reflected { sent_at: reflected, held: behind, lay: behind / 2 });
            let frames: Vec<Frame<'_>> = frames
                .iter()
                .map(|(kind, a, b, bytes)| match kind {
                    0..=2 => Frame::Records { stream: A, offset: *a, bytes },
                    3 => Frame::Taken { stream: A, taken: *a, limit: *b },
                    4 => Frame::Nack { stream: StreamId(1 + a % 2), taken: *a, touched: *b, reason: Reason::NoRoom },
                    5 => Frame::Acks { bitmap: bytes },
                    6 => Frame::Records { stream: StreamId(*a), offset: *b, bytes },
                    7 => {
                        let pause = Pause { stream: StreamId(1 + a % 2), from: *b, round: a % 5 };
                        match a % 3 {
                            0 => Frame::Pause { pause, reason: PauseReason::Crowded },
                            1 => Frame::Share { bytes: *b },
                            _ => Frame::Resume(pause),
                        }
                    }
                    _ => Frame::Ping,
                })
                .collect();
            let mut packet = liar.packet(&frames);
            if leaves_payloads_out {
                // Anywhere: inside frames, at their ends, or after the packet.
                reseal_partly(&mut packet, HEADER + reflected as usize % 200);
            }
            liar.world.take(0, &packet);
            let channel = liar.world.channel(0);
            while let Peek::Record(_) = channel.peek(A) {
                channel.pop(A);
            }
            channel.release(A);
            prop_assert!(channel.memory() < bound);
            // Otherwise the reader of `World` would report records that it does not expect.
            liar.world.hosts[0].program.got.clear();
            liar.world.run(micros(300)).expect("nobody reads");
            prop_assert!(liar.world.channel(0).is_open());
        }
        liar.world.run(Duration::from_secs(10)).expect("nobody reads");
        let channel = liar.world.channel(0);
        // A channel that owes nothing needs no timer.
        prop_assert_eq!(channel.next_timeout(), None, "{:?}", channel.counters());
    }
}
