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
    /// The delay of each packet grows by a random time up to this.
    pub jitter: Duration,
    /// Bytes that may wait at its beginning; packets that find no room are dropped.
    pub queue: u32,
    /// Bytes of framing around each packet.
    pub overhead: u32,
    /// The largest packet that the link claims to carry, without the headers of IP and UDP.
    pub packet_bytes: u16,
}

impl Default for Link {
    /// 10 Gb/s, 5 µs, room for 512 KiB, and the framing of Ethernet, IPv4 and UDP.
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

/// Something that happens at a given time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A packet is at the end of a link.
    Arrive { port: u32, packet: u32 },
    /// A packet was held back for long enough, unless it went on before.
    Release { port: u32, packet: u32, held: u32 },
    /// A host looks at its packets, its timers and its program.
    Look { host: u32 },
    /// A host's timer or alarm may be due.
    Timer { host: u32 },
    /// A host does its periodic housekeeping.
    Tidy { host: u32 },
    /// The plan changes something.
    Change { number: u32 },
}

/// One direction of a link.
#[derive(Debug)]
struct Port {
    link: Link,
    /// Picoseconds of one byte.
    byte_time: u64,
    /// When the last queued byte will have left, in picoseconds.
    free_at: u64,
    harm: Harm,
    jitter: Random,
    /// Packets passed so far.
    passed: u64,
    /// Held packets, each with the value of `passed` at which it is released.
    held: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Port {
    /// Bytes still queued.
    #[inline]
    fn waiting(&self, now: u64) -> u64 {
        self.free_at.saturating_sub(now * 1000) / self.byte_time.max(1)
    }
}

/// A packet under way. Its slot is reused.
#[derive(Debug, Default)]
struct Packet {
    bytes: Vec<u8>,
    from: u32,
    to: u32,
    /// When it reached its host.
    came_at: u64,
    /// The number of its latest hold.
    held: u32,
    is_held: bool,
}

/// What waits at a host.
#[derive(Debug)]
struct Inbox {
    packets: Vec<u32>,
    bytes: usize,
    is_up: bool,
    /// When the host will look next, if that is planned.
    look_at: Option<u64>,
    /// It does not look before this time.
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
    /// Indexed by sender times hosts plus receiver; empty while no pair is cut.
    cuts: Vec<bool>,
    holds: u32,
    /// How often a link refuses a packet, in a million packets.
    pub full: PerMillion,
    whims: Random,
    pub done: Done,
    pub trace: Trace,
    pub events: u64,
    pub sampler: Sampler,
}

/// Bytes that may wait at a host for its look: a socket buffer.
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

/// The host with this address.
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
                // The host looked earlier than this event.
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

    /// The packets that a host finds when it looks.
    pub fn take_inbox(&mut self, host: u32, into: &mut Vec<u32>) {
        let inbox = &mut self.inboxes[host as usize];
        inbox.look_at = None;
        inbox.next_look = self.now + LOOK_EVERY;
        inbox.bytes = 0;
        std::mem::swap(&mut inbox.packets, into);
    }

    /// A packet's bytes, its sender, and how long it waited. The caller gives the slot back with `give_back`.
    pub fn take_packet(&mut self, id: u32) -> (u32, Vec<u8>, Duration) {
        self.done.arrived += 1;
        let packet = &mut self.packets[id as usize];
        (packet.from, std::mem::take(&mut packet.bytes), Duration::from_nanos(self.now - packet.came_at))
    }

    pub fn give_back(&mut self, id: u32, bytes: Vec<u8>) {
        self.packets[id as usize].bytes = bytes;
        self.free.push(id);
    }

    /// A host is to look at `at`, or as soon as it may.
    pub fn look(&mut self, host: u32, at: u64) {
        let inbox = &mut self.inboxes[host as usize];
        let at = at.max(inbox.next_look).max(self.now);
        if inbox.is_up && inbox.look_at.is_none_or(|look| at < look) {
            inbox.look_at = Some(at);
            self.queue.push(at, Event::Look { host });
        }
    }

    /// A host comes up or goes down. Packets that wait there are lost.
    pub fn set_up(&mut self, host: u32, is_up: bool) {
        let inbox = &mut self.inboxes[host as usize];
        let waited = std::mem::take(&mut inbox.packets);
        (inbox.is_up, inbox.look_at, inbox.bytes) = (is_up, None, 0);
        inbox.next_look = self.now;
        self.done.not_taken += waited.len() as u64;
        self.free.extend(waited);
    }

    /// A host does not look before `until`.
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

    /// Packets from one host to another are lost from now on, or get through again.
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

    /// The longest queue at the beginning of any of these links, in bytes.
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
        // Only the header: its checksum covers the rest.
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

    /// A packet enters a link.
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

    /// Applies the other faults to a packet that gets through and arrives at `at`.
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
            // Its checksum no longer covers it: hash all of it.
            self.trace.fold(contents_hash(0, &[], bytes));
        }
        match held {
            true => self.hold(number, id, at),
            false => self.queue.push(at, Event::Arrive { port: number, packet: id }),
        }
    }

    /// Sends a second copy of a packet that arrives at `at`; the copy arrives then or later.
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

    /// Releases held packets that enough others have overtaken, right behind the last of these.
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

/// A host's link, as its network interface sees it.
#[derive(Debug)]
pub struct SimLink {
    pub(crate) host: u32,
    /// The host's own time. It advances only when the host looks.
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
