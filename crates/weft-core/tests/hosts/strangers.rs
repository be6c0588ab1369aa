//! Packets that nobody honest sends.

use crate::world::{address, millis, World, ECHO, KEY};
use weft_core::ni::Way;
use weft_transport::Random;
use weft_transport::Settings;
use weft_wire::packet::reseal;
use weft_wire::Key;

#[test]
fn garbage_changes_nothing_and_is_answered_with_less() {
    let mut world = World::connected(1);
    world.run(millis(100));
    let mut random = Random::new(5);
    let before = world.network.borrow().packets;
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
    world.run(millis(10));
    world.request(ECHO, &[1], b"");
    world.run(millis(10));
    assert_eq!(world.processes[0].program.got.len(), 1);
    assert_eq!(world.processes[1].core.state().sessions().count(), 1);
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
    // Calls are made, cookies come back; then the callers' first records are cut off.
    for _ in 0..40 {
        world.run(millis(1) / 50);
        let hosts = world.processes[0].sessions.ni().borrow().hosts().count();
        assert!(hosts <= 256 + world.processes[0].core.state().sessions().count(), "{hosts}");
    }
}

#[test]
fn everything_that_was_ever_sent_comes_again_and_changes_nothing() {
    for seed in 1..10 {
        let mut world = World::new(2, seed);
        world.network.borrow_mut().log = Some(Vec::new());
        let names = [0, 1].map(|n| world.processes[n].name);
        // Both call at once, so that one of them gives way.
        for n in 0..2 {
            world.processes[n].map(names[1 - n], KEY);
            assert!(world.processes[n].try_request(ECHO, &[n as u32], b"").is_err(), "no session yet");
        }
        world.run(millis(20));
        world.request(ECHO, &[7], b"");
        world.run(millis(20));
        let log = world.network.borrow_mut().log.take().expect("kept");
        for (from, to, packet) in log.iter().chain(log.iter().rev()) {
            let now = world.now.get();
            let process = world.processes.iter().find(|p| p.name.address == *to).expect("one of the two");
            process.sessions.ni().borrow_mut().on_packet(now, Way { to: *from, from: 0 }, packet);
            world.run(millis(1));
        }
        world.run(millis(100));
        world.request(ECHO, &[8], b"");
        world.run(millis(20));
        let answers: Vec<_> = world.processes[0].program.got.iter().map(|got| got.args.clone()).collect();
        assert_eq!(answers.last(), Some(&vec![8]), "seed {seed}");
        assert!(world.processes.iter().all(|p| p.program.returned.is_empty()), "seed {seed}");
        assert!(world.processes.iter().all(|p| p.core.state().counters().sessions_lost == 0), "seed {seed}");
    }
}
