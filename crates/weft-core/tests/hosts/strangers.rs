//! Packets that no honest peer sends.

use crate::world::{address, millis, World, ECHO, KEY};
use weft_core::ni::Way;
use weft_transport::Random;
use weft_transport::Settings;
use weft_wire::frame::{Cookie, Frame, Hello, Terms, Writer};
use weft_wire::packet::{reseal, ChannelId, Header, Packet, PacketKind, PACKET_LEAST};
use weft_wire::{Epoch, HostAddress, Key};

/// The numbers of packets that a process counts as damaged, and as refused.
fn dropped(world: &World, at: usize) -> [u64; 2] {
    let ni = world.processes[at].sessions.ni().borrow();
    [ni.damaged(), ni.refused()]
}

/// A packet with this frame, as anybody may forge it.
fn forged(header: Header, frame: &Frame<'_>) -> Vec<u8> {
    let mut packet = vec![0; PACKET_LEAST];
    let mut writer = Writer::new(&mut packet);
    assert!(writer.push(frame), "room");
    let packet = writer.finish();
    header.seal(packet);
    packet.to_vec()
}

#[test]
fn what_is_forged_well_is_refused_and_counted_wherever_it_fails() {
    let mut world = World::connected(1);
    world.network.borrow_mut().log = Some(Vec::new());
    world.request(ECHO, &[], b"");
    world.run(millis(100));
    let log = world.network.borrow_mut().log.take().expect("kept");
    let mut known = log.iter().map(|(_, to, packet)| (to, Packet::decode(packet).expect("whole").header));
    let (_, known) = known.rfind(|(to, _)| **to == address(1)).expect("a packet to the second");
    let epoch = world.processes[1].name.epoch;
    let (nobody, away) = (ChannelId(77), address(50));
    let terms = Terms { features: 0, window: 1 << 17, ack_delay: 0, packet_most: 1472 };
    let guess = Some(Cookie { generation: 0, value: 1 });
    let hello = |callee, cookie| Frame::Hello(Hello { caller: Epoch(5), callee, nonce: 9, cookie, terms });
    let call = Header::new(PacketKind::Call, ChannelId::NOBODY, nobody);
    let data = |to, from| Header::new(PacketKind::Data, to, from);
    let reset = |to, from| Header::new(PacketKind::Reset, to, from);
    let gone = Frame::Reset { epoch };
    let ping = forged(data(nobody, nobody), &Frame::Ping);
    let (own, sealed) = (address(0), Header { number: known.number.wrapping_add(1), ..known });
    for (what, from, packet) in [
        ("a channel that nobody has", away, ping.clone()),
        ("a channel of somebody else", away, forged(sealed, &Frame::Ping)),
        ("half of the ids", own, forged(data(known.to, nobody), &Frame::Ping)),
        ("a copy", own, forged(known, &Frame::Ping)),
        ("an end of no channel", away, forged(reset(nobody, nobody), &gone)),
        ("an end with half of the ids", own, forged(reset(known.to, nobody), &gone)),
        (
            "an end with a number that was not used",
            own,
            forged(Header { number: 7, ..reset(known.to, known.from) }, &gone),
        ),
        ("an answer to no call", away, forged(Header::new(PacketKind::Answer, nobody, ChannelId::NOBODY), &gone)),
        ("a call for another life", away, forged(call, &hello(Epoch(4), None))),
        ("a call with a cookie that was guessed", away, forged(call, &hello(epoch, guess))),
        ("a call that is none", away, forged(call, &Frame::Ping)),
    ] {
        let before = dropped(&world, 1);
        let now = world.now.get();
        world.processes[1].sessions.ni().borrow_mut().on_packet(now, Way { to: from, from: 0 }, &packet);
        assert_eq!(dropped(&world, 1), [before[0], before[1] + 1], "{what}");
    }
    let before = dropped(&world, 1);
    let now = world.now.get();
    let first = forged(call, &hello(epoch, None));
    world.processes[1].sessions.ni().borrow_mut().on_packet(now, Way { to: away, from: 0 }, &first);
    assert_eq!(dropped(&world, 1), before, "a first call is what honest callers make");
    for bytes in [0, 1, 11, 39] {
        world.processes[1].sessions.ni().borrow_mut().on_packet(now, Way { to: away, from: 0 }, &ping[..bytes]);
    }
    assert_eq!(dropped(&world, 1), [before[0] + 4, before[1]], "what is cut off is damaged");
    world.request(ECHO, &[1], b"");
    world.run(millis(10));
    assert_eq!(world.processes[0].program.got.len(), 2);
    assert_eq!(world.processes[1].core.state().sessions().count(), 1);
}

#[test]
fn garbage_changes_nothing_and_is_answered_with_less() {
    let mut world = World::connected(1);
    world.run(millis(100));
    let mut random = Random::new(5);
    let before = world.network.borrow().packets;
    let dropped = dropped(&world, 1);
    for n in 0..20_000 {
        let mut packet: Vec<u8> = (0..random.below(200)).map(|_| random.bits() as u8).collect();
        if packet.len() >= 40 && n % 2 == 0 {
            packet[4] = 1;
            packet[5] = random.below(6) as u8;
            reseal(&mut packet);
        }
        let now = world.now.get();
        world.processes[1].sessions.ni().borrow_mut().on_packet(now, Way { to: address(50), from: 0 }, &packet);
    }
    assert!(world.network.borrow().packets - before < 20_000);
    let [damaged, refused] = [0, 1].map(|at| self::dropped(&world, 1)[at] - dropped[at]);
    assert_eq!(damaged + refused, 20_000, "each is counted");
    world.run(millis(10));
    world.request(ECHO, &[1], b"");
    world.run(millis(10));
    assert_eq!(world.processes[0].program.got.len(), 1);
    assert_eq!(world.processes[1].core.state().sessions().count(), 1);
}

/// Sends `calls`, 10^5 a second, from forged addresses: some without a cookie, some with a guessed one. Nothing is kept
/// of them, no more bytes are sent than arrive, and an honest caller among them is heard at once. (P7)
fn flood_of_calls(calls: u32) {
    let mut world = World::new(2, 1);
    let there = world.processes[1].name;
    world.processes[0].map(there, KEY);
    let mut random = Random::new(11);
    let nobody: Vec<HostAddress> = (1000..1256).map(address).collect();
    world.network.borrow_mut().cut.extend(&nobody);
    let (mut came, mut sent) = (0, 0);
    for round in 0..calls / 100 {
        for _ in 0..100 {
            let cookie = Cookie { generation: 0, value: random.bits() };
            let cookie = random.chance(500_000).then_some(cookie);
            let terms = Terms { features: 0, window: 1 << 17, ack_delay: 0, packet_most: 1472 };
            let (caller, nonce) = (Epoch(random.bits()), random.bits());
            let hello = Hello { caller, callee: there.epoch, nonce, cookie, terms };
            let mut packet = [0; PACKET_LEAST];
            let mut writer = Writer::new(&mut packet);
            assert!(writer.push(&Frame::Hello(hello)), "room");
            let packet = writer.finish();
            Header::new(PacketKind::Call, ChannelId::NOBODY, ChannelId(random.bits() as u32)).seal(packet);
            came += packet.len();
            let to = nobody[random.below(256) as usize];
            let now = world.now.get();
            world.network.borrow_mut().log = Some(Vec::new());
            world.processes[1].sessions.ni().borrow_mut().on_packet(now, Way { to, from: 0 }, packet);
            let log = world.network.borrow_mut().log.take().expect("kept");
            assert!(log.len() <= 1 && log.iter().all(|(_, _, reply)| reply.len() <= packet.len()));
            sent += log.iter().map(|(_, _, reply)| reply.len()).sum::<usize>();
        }
        if round % 100 == 20 {
            // In the first round there is no session yet.
            let _ = world.processes[0].try_request(ECHO, &[round], b"");
        }
        if round % 100 == 40 {
            world.request(ECHO, &[round], b"");
        }
        world.run(millis(1));
        if round % 100 == 40 {
            let got = world.processes[0].program.got.last();
            assert_eq!(got.map(|got| got.args.clone()), Some(vec![round]), "answered within a millisecond");
        }
    }
    assert!(sent <= came && sent > came / 4, "{sent} bytes for {came}");
    let ni = world.processes[1].sessions.ni().borrow();
    assert_eq!(ni.hosts().count(), 1);
    assert!(ni.memory() < 256 << 10, "{} bytes", ni.memory());
}

#[test]
fn a_flood_of_calls_from_forged_addresses_leaves_nothing_and_holds_nobody_up() {
    flood_of_calls(100_000);
}

#[test]
#[ignore = "ten million calls"]
fn ten_million_calls_from_forged_addresses_leave_nothing_and_hold_nobody_up() {
    flood_of_calls(10_000_000);
}

#[test]
fn callers_without_the_key_get_no_session_and_leave_nothing_behind() {
    let mut world = World::new(1, 1);
    let there = world.processes[0].name;
    for n in 1..=300 {
        let mut caller = world.start(address(n), Settings::default());
        caller.map(there, Key(1));
        assert!(caller.try_request(ECHO, &[n as u32], b"").is_err());
        world.processes.push(caller);
    }
    // Some are heard only when others have been refused.
    world.run(millis(3000));
    for n in 1..=300 {
        let _ = world.processes[n].try_request(ECHO, &[n as u32], b"");
    }
    world.run(millis(20_000));
    let victim = &world.processes[0];
    assert_eq!(victim.core.state().sessions().count(), 0);
    assert_eq!(victim.sessions.ni().borrow().hosts().count(), 0);
    assert!(victim.program.got.is_empty());
    for n in 1..=300 {
        assert_eq!(world.processes[n].program.returned.len(), 1, "caller {n}");
    }
}

#[test]
fn callers_that_say_nothing_are_bounded() {
    let mut world = World::new(1, 1);
    let there = world.processes[0].name;
    for n in 1..=600 {
        let mut caller = world.start(address(n), Settings::default());
        caller.map(there, KEY);
        assert!(caller.try_request(ECHO, &[n as u32], b"").is_err());
        world.processes.push(caller);
    }
    // Calls are made and cookies come back; then the callers' first records are cut off.
    for _ in 0..40 {
        world.run(millis(1) / 50);
        let hosts = world.processes[0].sessions.ni().borrow().hosts().count();
        assert!(hosts <= 256 + world.processes[0].core.state().sessions().count(), "{hosts}");
    }
}

/// Adds `callers` from one address, each with a port of its own, that are admitted and then send nothing.
fn crowd(world: &mut World, host: usize, callers: u16) {
    let there = world.processes[0].name;
    let first = world.processes.len();
    for port in 1..=callers {
        let mut caller = world.start(HostAddress { port, ..address(host) }, Settings::default());
        caller.map(there, KEY);
        assert!(caller.try_request(ECHO, &[], b"").is_err());
        world.processes.push(caller);
    }
    // There and back for the cookie, and there again.
    world.run(millis(1) * 3 / 40);
    for caller in &mut world.processes[first..] {
        caller.is_stopped = true;
    }
}

#[test]
fn callers_from_few_addresses_leave_room_for_others() {
    let mut world = World::new(1, 1);
    let there = world.processes[0].name;
    for host in 1..=8 {
        crowd(&mut world, host, 300);
        let strangers = world.processes[0].sessions.ni().borrow().hosts().count();
        let others = world.processes[0].core.state().sessions().count();
        // Each address takes half of what the previous ones left.
        assert_eq!(strangers - others, 256 - (256 >> host), "of {host}");
        // A caller from another address is heard at once.
        let mut caller = world.start(address(100 + host), Settings::default());
        caller.map(there, KEY);
        assert!(caller.try_request(ECHO, &[], b"").is_err(), "no session yet");
        world.processes.push(caller);
        world.run(millis(1) / 5);
        let caller = world.processes.last_mut().expect("just put there");
        assert!(caller.try_request(ECHO, &[], b"").is_ok(), "a session although {host} hold what they get");
    }
}

#[test]
fn an_address_of_ipv6_counts_with_its_neighbours() {
    let mut world = World::new(1, 1);
    let there = world.processes[0].name;
    for n in 1..=300u16 {
        let [a, b] = n.to_be_bytes();
        let ip = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, a, b, 0, 0, 0, 0, 0, 1];
        let mut caller = world.start(HostAddress { ip, port: 4000 }, Settings::default());
        caller.map(there, KEY);
        assert!(caller.try_request(ECHO, &[], b"").is_err());
        world.processes.push(caller);
    }
    world.run(millis(1) * 3 / 40);
    assert_eq!(world.processes[0].sessions.ni().borrow().hosts().count(), 128);
}

#[test]
fn everything_that_was_ever_sent_comes_again_and_changes_nothing() {
    for seed in 1..10 {
        let mut world = World::new(2, seed);
        world.network.borrow_mut().log = Some(Vec::new());
        let names = [0, 1].map(|n| world.processes[n].name);
        // Both call at the same time, so that one of them gives way.
        for n in 0..2 {
            world.processes[n].map(names[1 - n], KEY);
            assert!(world.processes[n].try_request(ECHO, &[n as u32], b"").is_err(), "no session yet");
        }
        world.run(millis(20));
        world.request(ECHO, &[7], b"");
        world.run(millis(20));
        let log = world.network.borrow_mut().log.take().expect("kept");
        let before: u64 = [0, 1].map(|at| dropped(&world, at)[1]).iter().sum();
        for (from, to, packet) in log.iter().chain(log.iter().rev()) {
            let now = world.now.get();
            let process = world.processes.iter().find(|p| p.name.address == *to).expect("one of the two");
            process.sessions.ni().borrow_mut().on_packet(now, Way { to: *from, from: 0 }, packet);
            world.run(millis(1));
        }
        let is_invited =
            |packet: &Packet<'_>| matches!(packet.only_frame(), Some(Frame::Hello(Hello { cookie: None, .. })));
        let invited = log.iter().filter(|(_, _, packet)| is_invited(&Packet::decode(packet).expect("whole"))).count();
        let refused = [0, 1].map(|at| dropped(&world, at)[1]).iter().sum::<u64>() - before;
        assert!(refused >= 2 * (log.len() - invited) as u64, "seed {seed}: {refused} of {}", 2 * log.len());
        world.run(millis(100));
        world.request(ECHO, &[8], b"");
        world.run(millis(20));
        let answers: Vec<_> = world.processes[0].program.got.iter().map(|got| got.args.clone()).collect();
        assert_eq!(answers.last(), Some(&vec![8]), "seed {seed}");
        assert!(world.processes.iter().all(|p| p.program.returned.is_empty()), "seed {seed}");
        assert!(world.processes.iter().all(|p| p.core.state().counters().sessions_lost == 0), "seed {seed}");
    }
}
