//! Two hosts, each with a daemon's engine and programs on it, and a program without a daemon, joined by a wire that loses packets.

use crate::programs::{Program, FILE};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use weft_core::ni::{HostSessions, Link, Ni, Secrets, Sent, StreamRx, StreamTx, Way};
use weft_core::port::Allocated;
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, MessageKind, Outgoing, Returned, SendError, Settings, Sink, State};
use weft_daemon::testing::MemSegment;
use weft_daemon::{Engine, Limits};
use weft_transport::{Settings as ChannelSettings, Time};
use weft_wire::segment::Sizes;
use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

/// Bytes that each host keeps of what another one sent and nobody took.
pub const HELD: u32 = 128 << 10;

/// How long a packet takes.
const WAY: Duration = Duration::from_micros(50);

#[derive(Debug)]
struct Packet {
    due: Time,
    to: HostAddress,
    from: HostAddress,
    bytes: Vec<u8>,
}

/// Carries packets, and loses one in so many, if that is not 0.
#[derive(Debug, Default)]
pub struct Wire {
    packets: VecDeque<Packet>,
    pub lose: u64,
    sent: u64,
    /// A host that is cut off.
    pub cut: Option<HostAddress>,
}

#[derive(Debug)]
pub struct SimLink {
    now: Rc<Cell<Time>>,
    here: HostAddress,
    wire: Rc<RefCell<Wire>>,
}

impl Link for SimLink {
    type Memory = Vec<u8>;

    fn now(&self) -> Time {
        self.now.get()
    }

    fn send(&mut self, to: Way, packets: &[u8], segment: usize) -> Sent {
        let mut wire = self.wire.borrow_mut();
        for bytes in packets.chunks(segment) {
            wire.sent += 1;
            // Drops at pseudo-random positions, by a multiplicative hash, so that no traffic pattern always loses the same packet.
            let drawn = wire.sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let is_cut = wire.cut.is_some_and(|cut| cut == to.to || cut == self.here);
            if is_cut || (wire.lose > 0 && drawn % wire.lose == 0) {
                continue;
            }
            let due = self.now.get() + WAY;
            wire.packets.push_back(Packet { due, to: to.to, from: self.here, bytes: bytes.to_vec() });
        }
        Sent::All
    }

    fn packet_bytes(&self, _: Way) -> u16 {
        1472
    }
}

type SimNi = Rc<RefCell<Ni<SimLink>>>;

/// A program with a network interface of its own.
pub struct Lone {
    pub core: Bundle<StreamRx<SimNi>, StreamTx<SimNi>, NoBells>,
    pub sessions: HostSessions<SimNi>,
    pub log: Plain,
    pub endpoint: Endpoint,
    pub name: Name,
}

/// What it received: the number of messages, and their senders. It answers requests with their own contents.
#[derive(Debug, Default)]
pub struct Plain {
    pub messages: usize,
    pub sources: Vec<Name>,
    pub returned: Vec<Returned>,
}

impl Sink<StreamTx<SimNi>> for Plain {
    fn deliver(&mut self, state: &mut State<StreamTx<SimNi>>, message: &Delivery<'_>) -> Result<(), Reason> {
        if message.kind() == MessageKind::Request {
            if let Some(token) = message.take_reply() {
                state.reply(token, message.op(), message.args, message.payload).map_err(|_| Reason::NoRoom)?;
            }
        }
        self.messages += 1;
        self.sources.extend(state.source(message));
        Ok(())
    }

    fn returned(&mut self, _: &mut State<StreamTx<SimNi>>, message: Returned) -> Option<Returned> {
        self.returned.push(message);
        None
    }
}

pub struct World {
    pub wire: Rc<RefCell<Wire>>,
    pub engines: Vec<Engine<MemSegment, SimLink>>,
    /// Each with its host.
    pub programs: Vec<(usize, Program)>,
    /// The sizes of endpoints that are made from now on.
    pub sizes: Sizes,
    /// Programs that do not poll.
    pub stopped: BTreeSet<usize>,
    pub lone: Lone,
    pub now: Rc<Cell<Time>>,
    frames: u32,
    limits: Limits,
    held: u32,
    /// Incarnations of network interfaces.
    lives: u64,
}

pub fn address(host: usize) -> HostAddress {
    HostAddress { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host as u8], port: 4000 }
}

/// A network interface of one incarnation.
fn interface(link: SimLink, epoch: Epoch, life: u64, held: u32) -> Ni<SimLink> {
    let settings = ChannelSettings { held_most: held, ..ChannelSettings::default() };
    Ni::new(link, epoch, settings, Secrets { door: [life, 5], seed: life + 9 })
}

fn engine(
    host: usize,
    frames: u32,
    limits: Limits,
    link: SimLink,
    life: u64,
    held: u32,
) -> Engine<MemSegment, SimLink> {
    let settings = weft_daemon::Settings { frames, limits, address: address(host), ..weft_daemon::Settings::default() };
    Engine::with_network(settings, interface(link, Epoch(500 + life), life, held))
}

impl World {
    /// Two daemons with so many frames, at addresses 0 and 1, and a program without a daemon at address 2.
    pub fn new(frames: u32) -> World {
        World::holding(frames, HELD)
    }

    /// The same, with so many bytes that each host keeps.
    pub fn holding(frames: u32, held: u32) -> World {
        World::limited(frames, held, Limits::default())
    }

    /// The same, with limits of what users may hold.
    pub fn limited(frames: u32, held: u32, limits: Limits) -> World {
        let wire = Rc::new(RefCell::new(Wire::default()));
        let now = Rc::new(Cell::new(Time::from_micros(1_000_000)));
        let link = |host| SimLink { now: now.clone(), here: address(host), wire: wire.clone() };
        let engines = vec![engine(0, frames, limits, link(0), 0, held), engine(1, frames, limits, link(1), 1, held)];
        let epoch = Epoch(700);
        let mut core = Bundle::new(NoBells, Settings::default());
        let name = Name { epoch, endpoint: EndpointId(1), uid: Uid(3), address: address(2) };
        let endpoint = core.state_mut().add_endpoint(name, Key(7));
        let sessions = HostSessions::new(Rc::new(RefCell::new(interface(link(2), epoch, 2, held))));
        let lone = Lone { core, sessions, log: Plain::default(), endpoint, name };
        World {
            wire,
            engines,
            programs: Vec::new(),
            sizes: Sizes::default(),
            stopped: BTreeSet::new(),
            lone,
            now,
            frames,
            limits,
            held,
            lives: 3,
        }
    }

    /// Attaches a program on a host. Returns its index.
    pub fn attach(&mut self, host: usize, user: u32) -> usize {
        self.attach_as(host, (user, Epoch(1000 + self.programs.len() as u64)))
    }

    fn attach_as(&mut self, host: usize, who: (u32, Epoch)) -> usize {
        let segment = MemSegment::new(FILE);
        let program = Program::attach(&mut self.engines[host], who, (segment.clone(), segment));
        self.programs.push((host, program));
        self.programs.len() - 1
    }

    /// A program ends.
    pub fn detach(&mut self, program: usize) {
        let (host, program) = self.programs.remove(program);
        self.engines[host].detach(program.id, Reason::PeerLost);
    }

    /// A host's daemon ends and is started again. Its programs do not poll until they are attached again.
    pub fn restart(&mut self, host: usize) {
        let programs = (0..self.programs.len()).filter(|at| self.programs[*at].0 == host);
        self.stopped.extend(programs);
        self.lives += 1;
        let link = SimLink { now: self.now.clone(), here: address(host), wire: self.wire.clone() };
        self.engines[host] = engine(host, self.frames, self.limits, link, self.lives, self.held);
    }

    /// A program of the earlier daemon comes back, with its names. Returns its index.
    pub fn attach_again(&mut self, program: usize) -> usize {
        let (host, old) = &self.programs[program];
        self.attach_as(*host, (old.user.0, old.epoch))
    }

    /// The same, and keeps its place.
    pub fn kill(&mut self, program: usize) {
        self.stopped.insert(program);
        let (host, found) = &self.programs[program];
        self.engines[*host].detach(found.id, Reason::PeerLost);
    }

    /// Ten microseconds, in which everybody takes a turn.
    pub fn turn(&mut self) {
        let now = self.now.get() + Duration::from_micros(10);
        self.now.set(now);
        let mut late = VecDeque::new();
        let packets = std::mem::take(&mut self.wire.borrow_mut().packets);
        for packet in packets {
            if packet.due > now {
                late.push_back(packet);
                continue;
            }
            let way = Way { to: packet.from, from: 0 };
            match (0..3).find(|host| address(*host) == packet.to) {
                Some(2) => self.lone.sessions.ni().borrow_mut().on_packet(now, way, &packet.bytes),
                Some(host) => {
                    let ni = self.engines[host].network().expect("it has one");
                    ni.on_packet(now, way, &packet.bytes);
                }
                None => {}
            }
        }
        let mut wire = self.wire.borrow_mut();
        late.append(&mut wire.packets);
        wire.packets = late;
        drop(wire);
        for engine in &mut self.engines {
            engine.poll(now);
        }
        for (at, (_, program)) in self.programs.iter_mut().enumerate() {
            if !self.stopped.contains(&at) {
                program.poll();
            }
        }
        self.lone.turn(now);
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now.get() + time;
        while self.now.get() < end {
            self.turn();
        }
    }

    /// Takes turns until a condition holds, for ten seconds at most.
    pub fn run_until(&mut self, mut is_so: impl FnMut(&mut World) -> bool) {
        let end = self.now.get() + Duration::from_secs(10);
        while !is_so(self) {
            if self.now.get() >= end {
                let of = |(host, program): &mut (usize, Program)| {
                    let got: Vec<_> = program.log.messages.iter().map(|message| message.1).collect();
                    (
                        *host,
                        got.len(),
                        program.log.returned.first().map(|r| r.reason),
                        program.core.state_mut().unsettled(),
                    )
                };
                let programs: Vec<_> = self.programs.iter_mut().map(of).collect();
                let kept: Vec<_> = self.engines.iter().map(|engine| (engine.counters(), engine.kept())).collect();
                panic!("it does not come: {programs:?}, {kept:?}");
            }
            self.turn();
        }
    }

    pub fn endpoint(&mut self, program: usize, key: u64) -> Endpoint {
        let (host, found) = &mut self.programs[program];
        let address = address(*host);
        let id = EndpointId(found.next);
        found.next += 1;
        assert!(found.sessions.allocate(id, Key(key), self.sizes));
        loop {
            self.turn();
            match self.programs[program].1.sessions.allocated() {
                Allocated::NotYet => {}
                Allocated::Yes => break,
                Allocated::No(reason) => panic!("{reason:?}"),
            }
        }
        let found = &mut self.programs[program].1;
        let name = Name { epoch: found.epoch, endpoint: id, uid: found.user, address };
        found.core.state_mut().add_endpoint(name, Key(key))
    }

    pub fn name(&self, program: usize, endpoint: Endpoint) -> Name {
        self.programs[program].1.core.state().name(endpoint).expect("an endpoint")
    }

    pub fn map(&mut self, from: (usize, Endpoint), index: u32, to: Name, key: u64) {
        self.programs[from.0].1.core.state_mut().map(from.1, index, to, Key(key)).expect("mapped");
    }

    /// Sends a one-way message, or a request, with turns until there is room.
    pub fn send(&mut self, from: (usize, Endpoint), to: u32, kind: MessageKind, args: &[u32], payload: &[u8]) {
        self.run_until(|world| {
            let state = world.programs[from.0].1.core.state_mut();
            let message = Outgoing { op: 1, args, payload, completion: None };
            let sent = match kind {
                MessageKind::Request => state.try_request(from.1, to, message),
                _ => state.try_send(from.1, to, message),
            };
            match sent {
                Ok(()) => true,
                Err(SendError::Full) => false,
                Err(error) => panic!("{error}"),
            }
        });
    }

    /// Whether nothing of a program's is under way.
    pub fn is_settled(&mut self, program: usize) -> bool {
        let state = self.programs[program].1.core.state_mut();
        state.hasten();
        state.flush() && state.unsettled() == 0
    }
}

impl Lone {
    fn turn(&mut self, now: Time) {
        while self.sessions.take_events(&mut self.core, &mut self.log) {
            while self.core.poll(256, &mut self.log) > 0 {}
        }
        self.core.poll(256, &mut self.log);
        for call in self.core.state_mut().take_calls() {
            self.sessions.call(&mut self.core, call);
        }
        for broken in self.core.take_broken() {
            self.sessions.close(broken, Reason::Violation);
            self.core.lose(broken, Reason::Violation, &mut self.log);
        }
        self.sessions.keep_watch(&self.core);
        let mut ni = self.sessions.ni().borrow_mut();
        ni.on_time(now);
        ni.flush();
    }
}
