//! Links, switches, and the packets under way: everything that happens between hosts.

use crate::faults::{Done, Faults, Harm, PerMillion};
use crate::queue::EventQueue;
use crate::series::Sampler;
use crate::topology::{Hop, Links, Topology};
use crate::trace::{contents_hash, Trace};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;
use weft_core::ni;
use weft_transport::{Random, Time};
use weft_wire::HostAddress;

/// A link, in both directions alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Bits per second.
    pub rate: u64,
    /// From one end to the other.
    pub delay: Duration,
    /// Added to the delay of each packet by lot, up to this.
    pub jitter: Duration,
    /// Bytes that wait at its beginning, at most; packets that find no room are dropped.
    pub queue: u32,
    /// Bytes around each packet.
    pub overhead: u32,
    /// Bytes of the largest packet that it is said to carry, headers of IP and UDP not counted.
    pub packet_bytes: u16,
}

impl Default for Link {
    /// 10 Gb/s, 5 µs, room for 512 KiB, and what Ethernet, IPv4 and UDP put around packets.
    fn default() -> Link {
        Link {
            rate: 10_000_000_000,
            delay: Duration::from_micros(5),
            jitter: Duration::ZERO,
            queue: 512 << 10,
            overhead: 66,
            packet_bytes: 1472,
        }
    }
}

/// What happens at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A packet is at the end of a link.
    Arrive { port: u32, packet: u32 },
    /// A packet was held back for long enough, unless it went on before.
    Release { port: u32, packet: u32, held: u32 },
    /// A host looks at what came, at its timers and at its program.
    Look { host: u32 },
    /// A host's timer or alarm may be due.
    Timer { host: u32 },
    /// A host does what is to be done now and then.
    Tidy { host: u32 },
    /// The plan has a change.
    Change { number: u32 },
}

/// The one direction of a link.
#[derive(Debug)]
struct Port {
    link: Link,
    /// Picoseconds of one byte.
    byte_time: u64,
    /// When the last byte of what waits will have gone, in picoseconds.
    free_at: u64,
    harm: Harm,
    jitter: Random,
    /// Packets so far.
    passed: u64,
    /// Those that are held back: until so many have passed.
    held: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Port {
    /// Bytes that have not gone.
    #[inline]
    fn waiting(&self, now: u64) -> u64 {
        self.free_at.saturating_sub(now * 1000) / self.byte_time.max(1)
    }
}

/// A packet under way. Its place is used again.
#[derive(Debug, Default)]
struct Packet {
    bytes: Vec<u8>,
    from: u32,
    to: u32,
    /// When it came to its host.
    came_at: u64,
    /// The number of its stay among the held ones, or of the last.
    held: u32,
    is_held: bool,
}

/// What waits at a host.
#[derive(Debug)]
struct Inbox {
    packets: Vec<u32>,
    bytes: usize,
    is_up: bool,
    /// When it looks, if it will.
    look_at: Option<u64>,
    /// It does not look before.
    next_look: u64,
}

/// All links, and what is under way.
#[derive(Debug)]
pub(crate) struct Network {
    pub now: u64,
    topology: Topology,
    queue: EventQueue<Event>,
    packets: Vec<Packet>,
    free: Vec<u32>,
    ports: Vec<Port>,
    inboxes: Vec<Inbox>,
    /// By sender times hosts plus receiver; empty while nobody is cut off.
    cuts: Vec<bool>,
    holds: u32,
    /// How often a link has no room, in a million packets.
    pub full: PerMillion,
    whims: Random,
    pub done: Done,
    pub trace: Trace,
    pub events: u64,
    pub sampler: Sampler,
}

/// Bytes that wait at a host for its look, at most: a socket's buffer.
pub(crate) const INBOX_BYTES: usize = 4 << 20;

/// A host looks at most once in this time.
const LOOK_EVERY: u64 = 1000;

/// The port of all hosts.
const UDP_PORT: u16 = 4000;

/// Where a host is.
pub(crate) fn address(host: u32) -> HostAddress {
    let [a, b] = (host as u16).to_be_bytes();
    HostAddress { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, a, b], port: UDP_PORT }
}

/// The host that is there.
pub(crate) fn host_at(address: HostAddress) -> u32 {
    u32::from(u16::from_be_bytes([address.ip[14], address.ip[15]]))
}

impl Network {
    pub fn new(topology: Topology, link: Link, trunk: Link, seed: u64) -> Network {
        let mut seeds = Random::new(seed ^ 0x6c69_6e6b);
        let port = |number| {
            let link = if topology.is_trunk(number) { trunk } else { link };
            let (harm, jitter) = (Harm::new(Faults::default(), seeds.bits()), Random::new(seeds.bits()));
            Port { byte_time: byte_time(link.rate), link, free_at: 0, harm, jitter, passed: 0, held: BinaryHeap::new() }
        };
        let inbox = |_| Inbox { packets: Vec::new(), bytes: 0, is_up: true, look_at: None, next_look: 0 };
        Network {
            now: 0,
            topology,
            queue: EventQueue::new(),
            packets: Vec::new(),
            free: Vec::new(),
            ports: (0..topology.ports()).map(port).collect(),
            inboxes: (0..topology.hosts()).map(inbox).collect(),
            cuts: Vec::new(),
            holds: 0,
            full: 0,
            whims: Random::new(seeds.bits()),
            done: Done::default(),
            trace: Trace::new(seed),
            events: 0,
            sampler: Sampler::default(),
        }
    }

    /// The next event that is not the network's own, unless it is later than `end`.
    pub fn next(&mut self, end: u64) -> Option<Event> {
        while let Some((at, event)) = self.queue.pop(end) {
            self.now = at;
            self.events += 1;
            match event {
                Event::Arrive { port, packet } => self.on_arrival(port, packet),
                Event::Release { port, packet, held } => self.on_release(port, packet, held),
                // It looked earlier.
                Event::Look { host } if self.inboxes[host as usize].look_at != Some(at) => self.events -= 1,
                _ => {
                    self.fold(event);
                    return Some(event);
                }
            }
        }
        None
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    /// Sends a packet from a host.
    pub fn send(&mut self, from: u32, to: u32, bytes: &[u8]) {
        self.done.sent += 1;
        let hosts = self.topology.hosts();
        if to >= hosts || to == from || self.cuts.get((from * hosts + to) as usize) == Some(&true) {
            self.done.cut += 1;
            return;
        }
        let id = self.take_place();
        let packet = &mut self.packets[id as usize];
        packet.bytes.clear();
        packet.bytes.extend_from_slice(bytes);
        (packet.from, packet.to) = (from, to);
        self.pass(from, id);
    }

    /// What a host finds at its look.
    pub fn take_inbox(&mut self, host: u32, into: &mut Vec<u32>) {
        let inbox = &mut self.inboxes[host as usize];
        inbox.look_at = None;
        inbox.next_look = self.now + LOOK_EVERY;
        inbox.bytes = 0;
        std::mem::swap(&mut inbox.packets, into);
    }

    /// A packet's bytes, who sent it, and for how long it lay there. The place is to be given back.
    pub fn take_packet(&mut self, id: u32) -> (u32, Vec<u8>, Duration) {
        self.done.arrived += 1;
        let packet = &mut self.packets[id as usize];
        (packet.from, std::mem::take(&mut packet.bytes), Duration::from_nanos(self.now - packet.came_at))
    }

    pub fn give_back(&mut self, id: u32, bytes: Vec<u8>) {
        self.packets[id as usize].bytes = bytes;
        self.free.push(id);
    }

    /// A host is to look, soon or at some time.
    pub fn look(&mut self, host: u32, at: u64) {
        let inbox = &mut self.inboxes[host as usize];
        let at = at.max(inbox.next_look).max(self.now);
        if inbox.is_up && inbox.look_at.is_none_or(|look| at < look) {
            inbox.look_at = Some(at);
            self.queue.push(at, Event::Look { host });
        }
    }

    /// A host comes up or goes down. What waited there is gone.
    pub fn set_up(&mut self, host: u32, is_up: bool) {
        let inbox = &mut self.inboxes[host as usize];
        let waited = std::mem::take(&mut inbox.packets);
        (inbox.is_up, inbox.look_at, inbox.bytes) = (is_up, None, 0);
        inbox.next_look = self.now;
        self.done.not_taken += waited.len() as u64;
        self.free.extend(waited);
    }

    /// A host does not look before.
    pub fn hold_looks(&mut self, host: u32, until: u64) {
        let inbox = &mut self.inboxes[host as usize];
        inbox.next_look = inbox.next_look.max(until);
        inbox.look_at = None;
        self.look(host, until);
    }

    pub fn set_faults(&mut self, links: Links, faults: Faults) {
        self.ports_of(links).for_each(|port| port.harm.faults = faults);
    }

    pub fn set_link(&mut self, links: Links, link: Link) {
        for port in self.ports_of(links) {
            (port.link, port.byte_time) = (link, byte_time(link.rate));
        }
    }

    /// Packets from one host to another vanish from now on, or do not.
    pub fn cut(&mut self, from: u32, to: u32, is_cut: bool) {
        let hosts = self.topology.hosts();
        self.cuts.resize((hosts * hosts) as usize, false);
        if let Some(cut) = self.cuts.get_mut((from * hosts + to) as usize) {
            *cut = is_cut;
        }
    }

    pub fn packet_bytes(&self, host: u32) -> u16 {
        self.ports[host as usize].link.packet_bytes
    }

    /// The most bytes that wait now at the beginning of one of these links.
    pub fn queued(&self, links: Links) -> u64 {
        let those = self.ports.iter().zip(0..).filter(|(_, number)| self.topology.has(links, *number));
        those.map(|(port, _)| port.waiting(self.now)).max().unwrap_or(0)
    }

    fn ports_of(&mut self, links: Links) -> impl Iterator<Item = &mut Port> {
        let topology = self.topology;
        let ports = self.ports.iter_mut().zip(0..);
        ports.filter(move |(_, number)| topology.has(links, *number)).map(|(port, _)| port)
    }

    fn on_arrival(&mut self, port: u32, id: u32) {
        let packet = &self.packets[id as usize];
        match self.topology.after(port, packet.to) {
            Hop::Port(next) => {
                self.trace.fold(self.now ^ u64::from(next) << 48 ^ (packet.bytes.len() as u64) << 32);
                self.pass(next, id);
            }
            Hop::Host => self.on_arrival_at_host(id),
        }
    }

    fn on_arrival_at_host(&mut self, id: u32) {
        let Network { packets, inboxes, trace, now, .. } = self;
        let Packet { bytes, from, to, .. } = &packets[id as usize];
        trace.fold(*now);
        trace.fold(u64::from(*from) << 40 | u64::from(*to) << 20 | bytes.len() as u64);
        // The header, whose checksum stands for the rest.
        for word in bytes.chunks(8).take(5) {
            trace.fold(word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        }
        let (host, inbox) = (*to, &mut inboxes[*to as usize]);
        if !inbox.is_up || inbox.bytes + bytes.len() > INBOX_BYTES {
            self.done.not_taken += 1;
            self.free.push(id);
            return;
        }
        inbox.bytes += bytes.len();
        inbox.packets.push(id);
        packets[id as usize].came_at = *now;
        self.look(host, 0);
    }

    /// A packet at the beginning of a link.
    fn pass(&mut self, number: u32, id: u32) {
        let Network { ports, packets, queue, done, now, sampler, .. } = self;
        let port = &mut ports[number as usize];
        let bytes = packets[id as usize].bytes.len() as u64 + u64::from(port.link.overhead);
        let waits = port.waiting(*now);
        if waits + bytes > u64::from(port.link.queue) {
            done.queue_full += 1;
            self.free.push(id);
            return;
        }
        sampler.note_queue(*now, waits + bytes);
        port.free_at = port.free_at.max(*now * 1000) + bytes * port.byte_time;
        let mut at = port.free_at / 1000 + port.link.delay.as_nanos() as u64;
        if !port.link.jitter.is_zero() {
            at += port.jitter.below(port.link.jitter.as_nanos() as u64);
        }
        port.passed += 1;
        match port.harm.passes(&packets[id as usize].bytes, done) {
            false => self.free.push(id),
            true if port.harm.is_harmless() => queue.push(at, Event::Arrive { port: number, packet: id }),
            true => self.harm(number, id, at),
        }
        self.release_due(number, at);
    }

    /// Does to a packet that gets through, at `at`, what else may happen to it.
    #[cold]
    fn harm(&mut self, number: u32, id: u32, at: u64) {
        let mut happens = |chance: fn(&Faults) -> u32| {
            let harm = &mut self.ports[number as usize].harm;
            harm.chance(chance(&harm.faults))
        };
        let [copied, damaged, held] = [happens(|f| f.duplicate), happens(|f| f.corrupt), happens(|f| f.reorder)];
        if copied {
            self.copy(number, id, at);
        }
        if damaged {
            self.done.corrupted += 1;
            let bytes = &mut self.packets[id as usize].bytes;
            self.ports[number as usize].harm.damage(bytes);
            // Its checksum does not stand for it any more.
            self.trace.fold(contents_hash(0, &[], bytes));
        }
        match held {
            true => self.hold(number, id, at),
            false => self.queue.push(at, Event::Arrive { port: number, packet: id }),
        }
    }

    /// A second copy of a packet that gets to the end of a link at `at`, or later.
    #[cold]
    fn copy(&mut self, number: u32, id: u32, at: u64) {
        self.done.duplicated += 1;
        let copy = self.take_place();
        let bytes = std::mem::take(&mut self.packets[id as usize].bytes);
        let Packet { from, to, .. } = self.packets[id as usize];
        let packet = &mut self.packets[copy as usize];
        packet.bytes.clear();
        packet.bytes.extend_from_slice(&bytes);
        (packet.from, packet.to) = (from, to);
        self.packets[id as usize].bytes = bytes;
        let harm = &mut self.ports[number as usize].harm;
        let late = harm.up_to(harm.faults.copies_late_most);
        self.queue.push(at + late, Event::Arrive { port: number, packet: copy });
    }

    /// Holds a packet back until others have overtaken it.
    fn hold(&mut self, number: u32, id: u32, at: u64) {
        self.done.reordered += 1;
        self.holds = self.holds.wrapping_add(1);
        let port = &mut self.ports[number as usize];
        let until = port.passed + port.harm.overtakers();
        port.held.push(Reverse((until, self.holds, id)));
        let packet = &mut self.packets[id as usize];
        (packet.held, packet.is_held) = (self.holds, true);
        let latest = at + port.harm.faults.held_most.as_nanos() as u64;
        self.queue.push(latest, Event::Release { port: number, packet: id, held: self.holds });
    }

    /// Lets go of held packets that enough others have overtaken: right behind the last of these.
    #[inline]
    fn release_due(&mut self, number: u32, at: u64) {
        let Network { ports, packets, queue, .. } = self;
        let port = &mut ports[number as usize];
        while let Some(&Reverse((_, held, id))) = port.held.peek().filter(|Reverse((until, ..))| *until <= port.passed)
        {
            port.held.pop();
            let packet = &mut packets[id as usize];
            if packet.is_held && packet.held == held {
                packet.is_held = false;
                queue.push(at, Event::Arrive { port: number, packet: id });
            }
        }
    }

    fn on_release(&mut self, port: u32, id: u32, held: u32) {
        let packet = &mut self.packets[id as usize];
        if packet.is_held && packet.held == held {
            packet.is_held = false;
            self.on_arrival(port, id);
        }
    }

    #[inline]
    fn take_place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.packets.push(Packet::default());
            self.packets.len() as u32 - 1
        })
    }

    #[inline]
    fn fold(&mut self, event: Event) {
        let (kind, place) = match event {
            Event::Look { host } => (1, host),
            Event::Timer { host } => (2, host),
            Event::Tidy { host } => (3, host),
            Event::Change { number } => (4, number),
            Event::Arrive { .. } | Event::Release { .. } => return,
        };
        self.trace.fold(self.now);
        self.trace.fold(kind << 32 | u64::from(place));
    }
}

fn byte_time(rate: u64) -> u64 {
    8_000_000_000_000 / rate.max(1)
}

/// A host's way into the network, as its network interface sees it.
#[derive(Debug)]
pub struct SimLink {
    pub(crate) host: u32,
    /// The host's own time, which moves between its looks only.
    pub(crate) local: Rc<Cell<Time>>,
    pub(crate) network: Rc<RefCell<Network>>,
}

impl ni::Link for SimLink {
    type Memory = Vec<u8>;

    fn now(&self) -> Time {
        self.local.get()
    }

    fn send(&mut self, to: ni::Way, packets: &[u8], segment: usize) -> ni::Sent {
        let network = &mut *self.network.borrow_mut();
        for (n, packet) in packets.chunks(segment).enumerate() {
            if network.full > 0 && network.whims.chance(network.full) {
                return ni::Sent::Full(n);
            }
            network.send(self.host, host_at(to.to), packet);
        }
        ni::Sent::All
    }

    fn packet_bytes(&self, _to: ni::Way) -> u16 {
        self.network.borrow().packet_bytes(self.host)
    }
}
