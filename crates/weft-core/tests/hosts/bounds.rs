//! What a peer can make grow in a network interface while only the helper serves it.

use crate::world::{address, millis, Core, World, ECHO, KEEP, KEY};
use std::time::Duration;
use weft_core::ni::{NiEvent, Way};
use weft_core::testing::NoBells;
use weft_transport::Settings;
use weft_wire::frame::{Frame, StreamId, Writer};
use weft_wire::packet::{ChannelId, Header, Packet, PacketKind};
use weft_wire::Reason;

/// The second process, turned hostile: it knows the ids, and sends the first whatever it likes.
struct Liar {
    world: World,
    header: Header,
    /// Its stream, and where that ends.
    stream: StreamId,
    offset: u32,
}

impl Liar {
    fn new(settings: Settings) -> Liar {
        let mut world = World::new(2, 3);
        world.processes[0] = world.start(address(0), settings);
        world.network.borrow_mut().log = Some(Vec::new());
        let there = world.processes[1].name;
        world.processes[0].map(there, KEY);
        // The second request waits for its answer, so the peer is asked now and then if it is alive.
        world.request(ECHO, &[], b"");
        world.request(KEEP, &[], b"");
        world.run(millis(10));
        let log = world.network.borrow_mut().log.take().expect("kept");
        let mut liar = Liar {
            world,
            header: Header::new(PacketKind::Data, ChannelId::NOBODY, ChannelId::NOBODY),
            stream: StreamId(0),
            offset: 0,
        };
        for (_, _, bytes) in log.iter().filter(|(from, _, _)| *from == address(1)) {
            let packet = Packet::decode(bytes).expect("a packet");
            if packet.header.kind != PacketKind::Data {
                continue;
            }
            liar.header = Header { acked: None, reflected: None, behind: 0, ..packet.header };
            for frame in packet.frames() {
                if let Ok(Frame::Records { stream, offset, bytes }) = frame {
                    liar.stream = stream;
                    liar.offset = offset.wrapping_add(bytes.len() as u32);
                }
            }
        }
        assert_ne!(liar.offset, 0, "it answered");
        liar.world.processes[1].is_stopped = true;
        liar.world.processes[0].is_computing = true;
        liar
    }

    fn say(&mut self, frame: &Frame<'_>) {
        self.header.number = self.header.number.wrapping_add(1);
        let mut packet = [0; 200];
        let mut writer = Writer::new(&mut packet);
        assert!(writer.push(frame), "room");
        let packet = writer.finish();
        self.header.seal(packet);
        let (now, way) = (self.world.now.get(), Way { to: address(1), from: 0 });
        self.world.processes[0].sessions.ni().borrow_mut().on_packet(now, way, packet);
    }

    fn memory(&self) -> usize {
        self.world.processes[0].sessions.ni().borrow().memory()
    }
}

/// Adds `processes`, each at an address of its own above `beside`, that call the first one.
fn call(world: &mut World, beside: usize, processes: usize) {
    let there = world.processes[0].name;
    for n in 1..=processes {
        let mut caller = world.start(address(beside + n), Settings::default());
        caller.map(there, KEY);
        assert!(caller.try_request(ECHO, &[], b"").is_err(), "no session yet");
        world.processes.push(caller);
    }
}

fn events(world: &World) -> Vec<NiEvent> {
    let mut ni = world.processes[0].sessions.ni().borrow_mut();
    std::iter::from_fn(|| ni.poll_event()).collect()
}

#[test]
fn records_that_come_while_the_program_computes_are_told_once() {
    let mut liar = Liar::new(Settings::default());
    let before = liar.memory();
    for _ in 0..10_000 {
        let (stream, offset) = (liar.stream, liar.offset);
        liar.say(&Frame::Records { stream, offset, bytes: &[4; 16] });
        liar.world.run(Duration::from_micros(20));
    }
    assert!(liar.memory() < before + (16 << 10), "{} bytes, {before} before", liar.memory());
    let events = events(&liar.world);
    assert!(matches!(events[..], [NiEvent::Readable(..)]), "{} events", events.len());
    // After the event is taken, the next records cause another.
    liar.offset = liar.offset.wrapping_add(16);
    let (stream, offset) = (liar.stream, liar.offset);
    liar.say(&Frame::Records { stream, offset, bytes: &[4; 16] });
    assert_eq!(self::events(&liar.world), events);
}

#[test]
fn timers_that_are_set_again_and_again_do_not_pile_up() {
    let mut liar = Liar::new(Settings { suspicion: Duration::from_secs(300), ..Settings::default() });
    liar.world.processes[0].is_computing = false;
    let before = liar.memory();
    for _ in 0..5_000 {
        liar.say(&Frame::Ping);
        liar.world.run(millis(1) + Duration::from_micros(1));
    }
    assert!(liar.memory() < before + (16 << 10), "{} bytes, {before} before", liar.memory());
    // The valid timer is still there: to ask the peer, a quarter of the suspicion time after it was heard.
    let next = liar.world.processes[0].sessions.ni().borrow().next_time().expect("a timer");
    assert!(next <= liar.world.now.get() + Duration::from_secs(75));
}

#[test]
fn callers_that_come_and_go_while_the_program_computes_leave_nothing() {
    let mut world = World::new(1, 1);
    world.processes[0].is_computing = true;
    for round in 0..3 {
        call(&mut world, 1000 * (round + 1), 300);
        // Call, cookie, call, accept, and the first record.
        world.run(Duration::from_micros(130));
        world.processes.truncate(1);
        world.network.borrow_mut().clear();
        // Their time is up.
        world.now.set(world.now.get() + millis(600));
    }
    let hosts = world.processes[0].sessions.ni().borrow().hosts().count();
    assert_eq!(hosts, 256);
    let memory = world.processes[0].sessions.ni().borrow().memory();
    assert!(memory < 256 * 8192, "{memory} bytes");
    let events = events(&world);
    assert!(events.len() <= hosts, "{} events of {hosts} hosts", events.len());
}

#[test]
fn callers_beyond_the_sessions_that_may_be_are_refused() {
    let mut world = World::new(1, 1);
    let victim = &mut world.processes[0];
    victim.core = Core::new(NoBells, weft_core::Settings { sessions_most: 5, ..Default::default() });
    victim.endpoint = victim.core.state_mut().add_endpoint(victim.name, KEY);
    call(&mut world, 0, 20);
    world.run(millis(2));
    for caller in &mut world.processes[1..] {
        let _ = caller.try_request(ECHO, &[], b"");
    }
    world.run(millis(100));
    let victim = &world.processes[0];
    assert_eq!(victim.core.state().sessions().count(), 5);
    assert_eq!(victim.sessions.ni().borrow().hosts().count(), 5);
    let refused = world.processes[1..].iter().flat_map(|caller| &caller.program.returned);
    assert_eq!(refused.filter(|returned| returned.reason == Reason::NoRoom).count(), 15);
}

/// A peer that knows a key can get a session, have it cut off, ignore that, and call again.
#[test]
fn sessions_that_were_cut_off_and_whose_peers_do_not_listen_are_bounded() {
    let mut world = World::new(1, 1);
    for round in 0..8 {
        call(&mut world, 1000 * (round + 1), 200);
        world.run(Duration::from_micros(130));
        world.processes.truncate(1);
        world.network.borrow_mut().clear();
        let victim = &mut world.processes[0];
        let sessions: Vec<_> = victim.core.state().sessions().map(|(id, _)| id).collect();
        assert_eq!(sessions.len(), 200, "round {round}");
        for session in sessions {
            victim.sessions.close(session, Reason::Violation);
            victim.core.lose(session, Reason::Violation, &mut victim.program);
        }
        world.run(Duration::from_micros(10));
        world.network.borrow_mut().clear();
    }
    let memory = world.processes[0].sessions.ni().borrow().memory();
    assert!(memory < 300 * 8192, "{memory} bytes");
    // After the suspicion time nothing is left of them.
    world.network.borrow_mut().faults.drop = 1_000_000;
    world.run(millis(5_000));
    assert!(world.processes[0].sessions.ni().borrow().memory() < memory / 2);
}
