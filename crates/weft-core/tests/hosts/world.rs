//! Hosts with a bundle each, and the network between them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;
use weft_core::ni::{HostSessions, Link, Ni, Secrets, Sent, StreamRx, StreamTx, Way};
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, Event, MessageKind, Outgoing, Returned, SendError, Settings, Sink, State};
use weft_transport::testing::{Faults, Faulty, Link as _, MemLink};
use weft_transport::{Settings as ChannelSettings, Time};
use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

pub const KEY: Key = Key(7);

/// The operation that asks for an echo, and that of the echo.
pub const ECHO: u8 = 1;
pub const ECHOED: u8 = 2;
/// A request that ends without a reply, and one that is kept.
pub const MUM: u8 = 3;
pub const KEEP: u8 = 4;
/// A one-way message.
pub const NOTE: u8 = 5;
/// An operation that nobody handles.
pub const NOBODYS: u8 = 9;

pub fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The seed of a random test.
pub fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("to run this again: SEED={seed}");
    seed
}

/// The network between the hosts.
#[derive(Default)]
pub struct Network {
    /// By destination and source.
    links: BTreeMap<HostAddress, BTreeMap<HostAddress, Faulty<MemLink>>>,
    pub faults: Faults,
    /// Packets that were sent.
    pub packets: u64,
    /// The number of packets that links still take, if it is limited.
    pub room: Option<usize>,
    /// All packets that were sent, with source and destination, if they are recorded.
    pub log: Option<Vec<(HostAddress, HostAddress, Vec<u8>)>>,
    /// Addresses that nothing reaches.
    pub cut: BTreeSet<HostAddress>,
    /// Addresses to which there is no way.
    pub unreachable: BTreeSet<HostAddress>,
    /// Addresses whose hosts live and refuse packets, because nobody has the port.
    pub refusing: BTreeSet<HostAddress>,
    /// Refused packets and their destinations, by source.
    refused: BTreeMap<HostAddress, VecDeque<(HostAddress, Vec<u8>)>>,
    seed: u64,
}

impl Network {
    /// Drops the packets in flight, and the links.
    pub fn clear(&mut self) {
        self.links.clear();
    }

    fn send(&mut self, now: Time, from: HostAddress, to: HostAddress, packet: &[u8]) {
        self.packets += 1;
        self.seed += 1;
        self.log.iter_mut().for_each(|log| log.push((from, to, packet.to_vec())));
        if self.cut.contains(&to) || self.cut.contains(&from) {
            return;
        }
        if self.refusing.contains(&to) {
            return self.refused.entry(from).or_default().push_back((to, packet.to_vec()));
        }
        let (faults, seed) = (self.faults, self.seed);
        let link = self
            .links
            .entry(to)
            .or_default()
            .entry(from)
            .or_insert_with(|| Faulty::new(MemLink::new(Duration::from_micros(20), 10_000_000_000), faults, seed));
        link.faults = faults;
        link.send(now, packet);
    }

    fn receive(&mut self, now: Time, to: HostAddress) -> Vec<(HostAddress, Vec<u8>)> {
        let mut packets = Vec::new();
        for (from, link) in self.links.get_mut(&to).into_iter().flatten() {
            while let Some(packet) = link.receive(now) {
                packets.push((*from, packet));
            }
        }
        packets
    }
}

/// A host's way into the network.
pub struct SimLink {
    now: Rc<Cell<Time>>,
    here: Vec<HostAddress>,
    network: Rc<RefCell<Network>>,
}

impl Link for SimLink {
    type Memory = Vec<u8>;

    fn now(&self) -> Time {
        self.now.get()
    }

    fn send(&mut self, to: Way, packets: &[u8], segment: usize) -> Sent {
        let network = &mut *self.network.borrow_mut();
        let here = self.here[usize::from(to.from)];
        for (n, packet) in packets.chunks(segment).enumerate() {
            match &mut network.room {
                Some(0) => return Sent::Full(n),
                Some(room) => *room -= 1,
                None => {}
            }
            network.send(self.now.get(), here, to.to, packet);
        }
        Sent::All
    }

    fn next_refusal(&mut self, quoted: &mut [u8]) -> Option<(HostAddress, usize)> {
        let refused = &mut self.network.borrow_mut().refused;
        let (to, packet) = self.here.iter().find_map(|here| refused.get_mut(here)?.pop_front())?;
        let bytes = packet.len().min(quoted.len());
        quoted[..bytes].copy_from_slice(&packet[..bytes]);
        Some((to, bytes))
    }

    /// From our own address in the same network of 256, or from the first one.
    fn way_to(&mut self, address: HostAddress) -> Option<Way> {
        let is_near = |here: &HostAddress| here.ip[..15] == address.ip[..15];
        let from = self.here.iter().position(is_near).unwrap_or(0) as u8;
        (!self.network.borrow().unreachable.contains(&address)).then_some(Way { to: address, from })
    }

    fn packet_bytes(&self, _to: Way) -> u16 {
        1472
    }
}

/// A network interface, as its home and its paths share it.
type SimNi = Rc<RefCell<Ni<SimLink>>>;

pub type Core = Bundle<StreamRx<SimNi>, StreamTx<SimNi>, NoBells>;

/// A message that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Got {
    pub kind: MessageKind,
    pub op: u8,
    pub args: Vec<u32>,
    pub payload: Vec<u8>,
    pub source: Option<Name>,
}

/// The program of a process.
#[derive(Default)]
pub struct Program {
    pub got: Vec<Got>,
    pub returned: Vec<Returned>,
    /// One-way messages are counted, not kept.
    pub counts_only: bool,
    pub notes: u64,
    /// A planted fault that a test must find: the note that is dropped.
    pub loses: Option<u64>,
    /// The numbers of endpoints, if they are checked: all messages to an endpoint carry its number as an argument.
    pub numbers: Option<BTreeMap<Endpoint, u32>>,
    /// The arguments of messages that arrived at the wrong endpoint.
    pub mixed_up: Vec<Vec<u32>>,
    kept: Vec<weft_core::ReplyToken>,
}

impl Sink<StreamTx<SimNi>> for Program {
    fn deliver(&mut self, state: &mut State<StreamTx<SimNi>>, message: &Delivery<'_>) -> Result<(), Reason> {
        if message.op() == NOBODYS {
            return Err(Reason::NoHandler);
        }
        if let Some(numbers) = &self.numbers {
            // Requests and notes begin with the receiver's number. Requests end with the number of the requesting
            // endpoint, which the reply is checked against.
            let said = if message.kind() == MessageKind::Reply { message.args.last() } else { message.args.first() };
            if said != numbers.get(&message.endpoint) {
                self.mixed_up.push(message.args.to_vec());
            }
        }
        if message.kind() == MessageKind::OneWay && self.counts_only {
            if self.loses == Some(self.notes) {
                self.loses = None;
                return Ok(());
            }
            assert_eq!(message.args[0], self.notes as u32, "notes come in the order they were sent, each once");
            self.notes += 1;
            return Ok(());
        }
        if message.kind() == MessageKind::Request && message.op() == ECHO {
            let token = message.take_reply().expect("a request");
            state.reply(token, ECHOED, message.args, message.payload).expect("small, and its peer lives");
        } else if message.op() == KEEP {
            self.kept.extend(message.take_reply());
        }
        let (args, payload) = (message.args.to_vec(), message.payload.to_vec());
        self.got.push(Got { kind: message.kind(), op: message.op(), args, payload, source: state.source(message) });
        Ok(())
    }

    fn returned(&mut self, _state: &mut State<StreamTx<SimNi>>, message: Returned) -> Option<Returned> {
        self.returned.push(message);
        None
    }
}

/// A process with one bundle and one endpoint.
pub struct Process {
    pub core: Core,
    pub sessions: HostSessions<SimNi>,
    pub program: Program,
    pub endpoint: Endpoint,
    pub name: Name,
    pub events: Vec<Event>,
    /// It was stopped or killed, and does nothing.
    pub is_stopped: bool,
    /// Its program computes: packets are taken and timers run, as by the helper, and nothing else.
    pub is_computing: bool,
}

impl Process {
    /// Maps another process at index 0.
    pub fn map(&mut self, name: Name, key: Key) {
        self.core.state_mut().map(self.endpoint, 0, name, key).expect("an endpoint");
    }

    pub fn try_request(&mut self, op: u8, args: &[u32], payload: &[u8]) -> Result<(), SendError> {
        let message = Outgoing { op, args, payload, completion: None };
        self.core.state_mut().try_request(self.endpoint, 0, message)
    }

    pub fn try_send(&mut self, op: u8, args: &[u32], payload: &[u8]) -> Result<(), SendError> {
        let message = Outgoing { op, args, payload, completion: None };
        self.core.state_mut().try_send(self.endpoint, 0, message)
    }

    fn turn(&mut self, now: Time) {
        if self.is_computing {
            let ni = &mut *self.sessions.ni().borrow_mut();
            ni.take_refusals(now);
            ni.on_time(now);
            return ni.flush_and_acknowledge();
        }
        self.sessions.ni().borrow_mut().take_refusals(now);
        while self.sessions.take_events(&mut self.core, &mut self.program) {
            while self.core.poll(256, &mut self.program) > 0 {}
        }
        self.core.poll(256, &mut self.program);
        while self.sessions.take_unreliable(&mut self.core, 256, &mut self.program) > 0 {}
        for call in self.core.state_mut().take_calls() {
            self.sessions.call(&mut self.core, call);
        }
        for broken in self.core.take_broken() {
            self.sessions.close(broken, Reason::Violation);
            self.core.lose(broken, Reason::Violation, &mut self.program);
        }
        self.sessions.keep_watch(&self.core);
        self.sessions.ni().borrow_mut().on_time(now);
        self.sessions.ni().borrow_mut().flush();
        while let Some(event) = self.core.state_mut().next_event() {
            self.events.push(event);
        }
    }
}

pub struct World {
    pub now: Rc<Cell<Time>>,
    pub network: Rc<RefCell<Network>>,
    pub processes: Vec<Process>,
    seed: u64,
}

pub fn address(n: usize) -> HostAddress {
    let [a, b] = (n as u16).to_be_bytes();
    HostAddress { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, a, b], port: 4000 }
}

/// One host address with all of these.
pub fn several(addresses: &[HostAddress]) -> HostAddress {
    let v4 = |address: &HostAddress| Ipv6Addr::from(address.ip).to_ipv4_mapped();
    let addresses: Vec<Ipv4Addr> = addresses.iter().filter_map(v4).collect();
    HostAddress::of_several(&addresses, 4000).expect("some")
}

impl World {
    /// A world of `processes`, each on a host of its own.
    pub fn new(processes: usize, seed: u64) -> World {
        let network = Rc::new(RefCell::new(Network { seed, ..Network::default() }));
        let now = Rc::new(Cell::new(Time::from_micros(1_000_000)));
        let mut world = World { now, network, processes: Vec::new(), seed };
        for n in 0..processes {
            let process = world.start(address(n), ChannelSettings::default());
            world.processes.push(process);
        }
        world
    }

    /// A process at an address, in its first life there or a later one.
    pub fn start(&mut self, address: HostAddress, settings: ChannelSettings) -> Process {
        self.seed += 1;
        let here: Vec<HostAddress> = address.each().collect();
        let epoch = Epoch(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let link = SimLink { now: self.now.clone(), here, network: self.network.clone() };
        let secrets = Secrets { door: [self.seed, 5], seed: self.seed ^ 99 };
        let sessions = HostSessions::new(Rc::new(RefCell::new(Ni::new(link, epoch, settings, secrets))));
        let mut core = Core::new(NoBells, Settings::default());
        let name = Name { epoch, endpoint: EndpointId(3), uid: Uid(1000), address };
        let endpoint = core.state_mut().add_endpoint(name, KEY);
        let program = Program::default();
        Process { core, sessions, program, endpoint, name, events: Vec::new(), is_stopped: false, is_computing: false }
    }

    /// Two processes, the first with the second at index 0, and a session between them.
    pub fn connected(seed: u64) -> World {
        let mut world = World::new(2, seed);
        let there = world.processes[1].name;
        world.processes[0].map(there, KEY);
        world.request(ECHO, &[], b"");
        world.run(millis(10));
        assert_eq!(world.processes[0].program.got.len(), 1);
        for process in &mut world.processes {
            process.program.got.clear();
            process.events.clear();
        }
        world
    }

    /// Has the first process send a request, waiting for room.
    pub fn request(&mut self, op: u8, args: &[u32], payload: &[u8]) {
        self.insist(|process| process.try_request(op, args, payload));
    }

    /// Has the first process send a one-way message, waiting for room.
    pub fn send(&mut self, op: u8, args: &[u32], payload: &[u8]) {
        self.insist(|process| process.try_send(op, args, payload));
    }

    fn insist(&mut self, mut send: impl FnMut(&mut Process) -> Result<(), SendError>) {
        for _ in 0..100_000 {
            match send(&mut self.processes[0]) {
                Ok(()) => return,
                Err(SendError::Full) => self.run(millis(1)),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no room in 100 s");
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now.get() + time;
        loop {
            let now = self.now.get();
            for process in self.processes.iter_mut().filter(|p| !p.is_stopped) {
                for (from, here) in (0..).zip(process.name.address.each()) {
                    let packets = self.network.borrow_mut().receive(now, here);
                    for (to, packet) in packets {
                        process.sessions.ni().borrow_mut().on_packet(now, Way { to, from }, &packet);
                    }
                }
                process.turn(now);
            }
            if now >= end {
                return;
            }
            let arrivals = self
                .network
                .borrow()
                .links
                .values()
                .flat_map(|to| to.values())
                .filter_map(|link| link.next_arrival())
                .min();
            let running = self.processes.iter().filter(|p| !p.is_stopped);
            let timers = running.filter_map(|p| p.sessions.ni().borrow().next_time()).min();
            let next = [arrivals, timers].into_iter().flatten().min().unwrap_or(end);
            // Packets that arrive at a stopped process stay there.
            self.now.set(next.max(now + Duration::from_micros(1)).min(end));
        }
    }
}
