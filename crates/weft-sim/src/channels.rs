//! The protocol of the paper that weft comes from, as a model: stop-and-wait on many channels.
//!
//! Each pair of network interfaces has n logical channels; each holds one packet at a time, which is sent again until it is
//! acknowledged. The time-outs double and are randomised. An acknowledgement reflects the packet's time stamp. A packet that is
//! refused, or was retransmitted too often, is unbound from its channel, which then serves others, and is bound to a channel again
//! later. Packets therefore have numbers of their own, and the receiver remembers which ones it took.
//!
//! Where the paper leaves a value open, it is chosen here: the first time-out ([`Channels::timeout`]; there is no round-trip
//! estimate), and how often a packet is sent before it leaves its channel ([`TRIES_MOST`]). Messages larger than a packet go in
//! several. A refused packet is retried without limit: no peer is ever declared dead.

use crate::faults::PerMillion;
use crate::model::{Model, Wire};
use crate::topology::HostId;
use crate::trace::contents_hash;
use crate::workload::Workload;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use weft_transport::rtt::Backoff;
use weft_transport::Time;

/// The protocol's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Channels {
    /// Channels of each pair of hosts.
    pub count: u16,
    /// Time before the first retransmission.
    pub timeout: Duration,
    /// The share of packets that the receiver refuses, as if their endpoint were not resident.
    pub refuses: PerMillion,
}

impl Channels {
    /// This many channels, with the defaults for the rest.
    pub fn new(count: u16) -> Channels {
        Channels { count, timeout: TIMEOUT, refuses: 0 }
    }
}

/// A host that plays its part in a workload with this protocol. Requests and their answers are ordinary messages.
#[derive(Debug)]
pub struct StopAndWait {
    channels: Channels,
    workload: Workload,
    /// What it sends on its own account.
    plan: Plan,
    /// State per other host.
    peers: BTreeMap<HostId, Peer>,
}

/// What a host is to send.
#[derive(Debug)]
struct Plan {
    to: Vec<HostId>,
    left: u64,
    serial: u64,
    /// Messages are requests, which wait for their answers.
    is_asking: bool,
    under_way_most: u64,
    under_way: u64,
}

/// The state shared with one other host.
#[derive(Debug)]
struct Peer {
    channels: Vec<Channel>,
    /// Channels that hold no packet.
    free: Vec<u16>,
    /// Packets that wait for a channel.
    queue: VecDeque<Packet>,
    /// Packets that were unbound, by the time when they may bind again.
    resting: BTreeMap<(Time, u32), Packet>,
    /// The number of the next packet.
    next: u32,
    /// Time-outs of channels: when, and which.
    timeouts: BTreeSet<(Time, u16)>,
    /// The last sequence number received on each channel.
    heard: Vec<u32>,
    taken: Taken,
    /// Incomplete messages of several packets, by the number of their first packet.
    parts: BTreeMap<u32, Vec<Option<Vec<u8>>>>,
}

#[derive(Clone, Debug, Default)]
struct Channel {
    /// Of the packet that it holds, or held last.
    sequence: u32,
    holds: Option<Packet>,
    timeout_at: Time,
    backoff: Backoff,
    tries: u32,
}

/// A packet: a message, or a part of one.
#[derive(Clone, Debug)]
struct Packet {
    number: u32,
    part: u16,
    parts: u16,
    bytes: Vec<u8>,
    /// How often it was unbound.
    rests: Backoff,
}

/// The numbers of packets already taken.
#[derive(Clone, Debug, Default)]
struct Taken {
    /// All numbers below were taken.
    floor: u32,
    above: BTreeSet<u32>,
}

/// How often a packet is sent again before it leaves its channel.
pub const TRIES_MOST: u32 = 8;

/// About four times what a queue of 64 KiB takes at 1 Gb/s.
const TIMEOUT: Duration = Duration::from_millis(2);
const TIMEOUT_MOST: Duration = Duration::from_millis(256);

/// Kind and channel; sequence number; time stamp; packet number; part number and number of parts; checksum; padding, so that
/// packets carry as much as weft's, which have room for keys and names.
const HEADER: usize = 40;

/// Offset of the checksum, the last field.
const SUM: usize = 32;

const DATA: u8 = 1;
const ACK: u8 = 2;
const NACK: u8 = 3;

/// What a packet's header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Header {
    kind: u8,
    channel: u16,
    sequence: u32,
    stamp: u32,
    number: u32,
    part: u16,
    parts: u16,
}

impl StopAndWait {
    /// What `host`, one of `hosts`, does.
    pub fn new(channels: Channels, workload: &Workload, host: HostId, hosts: u32) -> StopAndWait {
        let to = workload.others(host, hosts);
        let left = if to.is_empty() { 0 } else { workload.count };
        let (is_asking, under_way_most) = (workload.is_asking(), workload.under_way_most());
        let plan = Plan { to, left, serial: 0, is_asking, under_way_most, under_way: 0 };
        StopAndWait { channels, workload: workload.clone(), plan, peers: BTreeMap::new() }
    }

    fn peer(&mut self, host: HostId) -> &mut Peer {
        let count = self.channels.count.max(1);
        self.peers.entry(host).or_insert_with(|| Peer {
            channels: vec![Channel::default(); usize::from(count)],
            free: (0..count).rev().collect(),
            queue: VecDeque::new(),
            resting: BTreeMap::new(),
            next: 0,
            timeouts: BTreeSet::new(),
            heard: vec![0; usize::from(count)],
            taken: Taken::default(),
            parts: BTreeMap::new(),
        })
    }

    /// Sends what the workload asks for, as long as there are free channels.
    fn send_more(&mut self, wire: &mut Wire<'_>) {
        while self.plan.left > 0 && self.plan.under_way < self.plan.under_way_most {
            let to = self.plan.to[(self.plan.serial % self.plan.to.len() as u64) as usize];
            if !self.peer(to).queue.is_empty() {
                break;
            }
            let (args, payload) = self.workload.message(wire.host(), self.plan.serial);
            let payload = payload.to_vec();
            self.plan.serial += 1;
            self.plan.left -= 1;
            self.plan.under_way += u64::from(self.plan.is_asking);
            self.send(wire, to, args, &payload);
        }
        self.set_alarm(wire);
    }

    fn send(&mut self, wire: &mut Wire<'_>, to: HostId, args: [u32; 3], payload: &[u8]) {
        wire.note_sent(to, &args, payload);
        let room = usize::from(wire.packet_bytes()) - HEADER;
        let mut message: Vec<u8> = args.iter().flat_map(|arg| arg.to_le_bytes()).collect();
        message.extend_from_slice(payload);
        let timeout = self.channels.timeout;
        let peer = self.peer(to);
        let parts = message.len().div_ceil(room) as u16;
        for (part, bytes) in (0..).zip(message.chunks(room)) {
            let number = peer.next;
            peer.next = number.wrapping_add(1);
            let (bytes, rests) = (bytes.to_vec(), Backoff::default());
            peer.queue.push_back(Packet { number, part, parts, bytes, rests });
        }
        peer.bind(wire, to, timeout);
    }

    fn set_alarm(&self, wire: &mut Wire<'_>) {
        let timeouts = self.peers.values().filter_map(|peer| peer.timeouts.first().map(|(at, _)| *at));
        let rests = self.peers.values().filter_map(|peer| peer.resting.keys().next().map(|(at, _)| *at));
        timeouts.chain(rests).min().into_iter().for_each(|at| wire.wake_at(at));
    }

    fn on_data(&mut self, wire: &mut Wire<'_>, from: HostId, header: Header, body: &[u8]) {
        let refuses = self.channels.refuses;
        let peer = self.peer(from);
        let Some(heard) = peer.heard.get_mut(usize::from(header.channel)) else { return };
        if (header.sequence.wrapping_sub(*heard) as i32) < 0 {
            // An old copy: its channel has moved on to another packet.
            return;
        }
        *heard = header.sequence;
        let is_refused = refuses > 0 && wire.random().chance(refuses);
        let kind = if is_refused { NACK } else { ACK };
        wire.send(from, &Header { kind, ..header }.packet(&[]));
        if !is_refused && peer.taken.take(header.number) {
            if let Some(message) = peer.on_part(header, body) {
                self.on_message(wire, from, &message);
            }
        }
    }

    fn on_message(&mut self, wire: &mut Wire<'_>, from: HostId, message: &[u8]) {
        let Some((head, payload)) = message.split_first_chunk::<12>() else { return };
        let arg = |n: usize| u32::from_le_bytes([head[n], head[n + 1], head[n + 2], head[n + 3]]);
        let args = [arg(0), arg(4), arg(8)];
        wire.note_delivered(from, &args, payload);
        // The requester sends its own number along, and recognises its answers by it.
        if self.workload.is_asking() {
            match args[2] == wire.host().0 {
                true => self.plan.under_way -= 1,
                false => self.send(wire, from, args, payload),
            }
        }
    }

    /// An acknowledgement or a refusal. The time stamp that it reflects distinguishes this try from earlier ones.
    fn on_answer(&mut self, wire: &mut Wire<'_>, from: HostId, header: Header) {
        let timeout = self.channels.timeout;
        let peer = self.peer(from);
        let Some(channel) = peer.channels.get_mut(usize::from(header.channel)) else { return };
        if channel.sequence != header.sequence {
            return;
        }
        let Some(packet) = channel.holds.take() else { return };
        peer.timeouts.remove(&(channel.timeout_at, header.channel));
        peer.free.push(header.channel);
        if header.kind == NACK {
            peer.rest(wire, packet, timeout);
        }
        peer.bind(wire, from, timeout);
    }
}

impl Model for StopAndWait {
    fn on_start(&mut self, wire: &mut Wire<'_>) {
        self.send_more(wire);
    }

    fn on_packet(&mut self, wire: &mut Wire<'_>, from: HostId, packet: &[u8]) {
        let Some((header, body)) = Header::read(packet) else { return };
        match header.kind {
            DATA => self.on_data(wire, from, header, body),
            ACK | NACK => self.on_answer(wire, from, header),
            _ => {}
        }
        self.send_more(wire);
    }

    fn on_alarm(&mut self, wire: &mut Wire<'_>) {
        let timeout = self.channels.timeout;
        for (host, peer) in &mut self.peers {
            peer.on_time(wire, *host, timeout);
        }
        self.send_more(wire);
    }

    fn is_done(&self) -> bool {
        let is_idle = |peer: &Peer| peer.timeouts.is_empty() && peer.queue.is_empty() && peer.resting.is_empty();
        self.plan.left == 0 && self.plan.under_way == 0 && self.peers.values().all(is_idle)
    }
}

impl Peer {
    /// Gives waiting packets to free channels.
    fn bind(&mut self, wire: &mut Wire<'_>, to: HostId, timeout: Duration) {
        while let Some(number) = self.free.pop() {
            let Some(packet) = self.queue.pop_front() else { return self.free.push(number) };
            let channel = &mut self.channels[usize::from(number)];
            (channel.sequence, channel.holds) = (channel.sequence.wrapping_add(1), Some(packet));
            (channel.backoff, channel.tries) = (Backoff::default(), 0);
            self.transmit(wire, to, number, timeout);
        }
    }

    fn transmit(&mut self, wire: &mut Wire<'_>, to: HostId, number: u16, timeout: Duration) {
        let channel = &mut self.channels[usize::from(number)];
        let Some(packet) = &channel.holds else { return };
        let header = Header {
            kind: DATA,
            channel: number,
            sequence: channel.sequence,
            stamp: (wire.now().as_nanos() / 1000) as u32,
            number: packet.number,
            part: packet.part,
            parts: packet.parts,
        };
        wire.send(to, &header.packet(&packet.bytes));
        channel.timeout_at = wire.now() + channel.backoff.wait(timeout, TIMEOUT_MOST, wire.random());
        self.timeouts.insert((channel.timeout_at, number));
    }

    /// Keeps an unbound packet for a while.
    fn rest(&mut self, wire: &mut Wire<'_>, mut packet: Packet, timeout: Duration) {
        let until = wire.now() + packet.rests.wait(timeout, TIMEOUT_MOST, wire.random());
        packet.rests.on_silence();
        self.resting.insert((until, packet.number), packet);
    }

    fn on_time(&mut self, wire: &mut Wire<'_>, to: HostId, timeout: Duration) {
        let now = wire.now();
        while let Some((at, number)) = self.timeouts.first().copied().filter(|(at, _)| *at <= now) {
            self.timeouts.remove(&(at, number));
            let channel = &mut self.channels[usize::from(number)];
            channel.tries += 1;
            channel.backoff.on_silence();
            if channel.tries <= TRIES_MOST {
                self.transmit(wire, to, number, timeout);
            } else if let Some(packet) = channel.holds.take() {
                self.free.push(number);
                self.rest(wire, packet, timeout);
            }
        }
        while let Some(rested) = self.resting.first_entry().filter(|rested| rested.key().0 <= now) {
            self.queue.push_back(rested.remove());
        }
        self.bind(wire, to, timeout);
    }

    /// Adds a part to its message. Returns the message if it is complete.
    fn on_part(&mut self, header: Header, body: &[u8]) -> Option<Vec<u8>> {
        let first = header.number.wrapping_sub(u32::from(header.part));
        let parts = self.parts.entry(first).or_insert_with(|| vec![None; usize::from(header.parts)]);
        *parts.get_mut(usize::from(header.part))? = Some(body.to_vec());
        if parts.iter().any(Option::is_none) {
            return None;
        }
        self.parts.remove(&first).map(|parts| parts.into_iter().flatten().flatten().collect())
    }
}

impl Taken {
    /// True if it was not taken before.
    fn take(&mut self, number: u32) -> bool {
        if number < self.floor || !self.above.insert(number) {
            return false;
        }
        while self.above.remove(&self.floor) {
            self.floor += 1;
        }
        true
    }
}

impl Header {
    /// A packet with this header and body.
    fn packet(&self, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; HEADER + body.len()];
        packet[0] = self.kind;
        packet[2..4].copy_from_slice(&self.channel.to_le_bytes());
        packet[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        packet[8..12].copy_from_slice(&self.stamp.to_le_bytes());
        packet[12..16].copy_from_slice(&self.number.to_le_bytes());
        packet[16..18].copy_from_slice(&self.part.to_le_bytes());
        packet[18..20].copy_from_slice(&self.parts.to_le_bytes());
        packet[HEADER..].copy_from_slice(body);
        let sum = checksum(&packet);
        packet[SUM..HEADER].copy_from_slice(&sum.to_le_bytes());
        packet
    }

    /// A packet's header and body, if the checksum is right.
    fn read(packet: &[u8]) -> Option<(Header, &[u8])> {
        let (head, body) = packet.split_first_chunk::<HEADER>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let is_whole = head[SUM..] == checksum(packet).to_le_bytes();
        let header = Header {
            kind: head[0],
            channel: half(2),
            sequence: word(4),
            stamp: word(8),
            number: word(12),
            part: half(16),
            parts: half(18),
        };
        is_whole.then_some((header, body))
    }
}

/// The checksum of everything but itself.
fn checksum(packet: &[u8]) -> u64 {
    contents_hash(contents_hash(0, &[], &packet[..SUM]), &[], &packet[HEADER..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;
    use crate::network::Link;
    use crate::simulation::{Config, Report, Simulation};
    use crate::topology::Topology;
    use crate::workload::{Load, Pattern};

    fn run(config: Config, channels: Channels, workload: Workload) -> Report {
        let mut simulation = simulation(config, channels, &workload);
        simulation.settle(Duration::from_secs(600)).unwrap_or_else(|failure| panic!("{channels:?}: {failure}"))
    }

    fn simulation(config: Config, channels: Channels, workload: &Workload) -> Simulation<Load> {
        let (hosts, all) = (config.topology.hosts(), workload.clone());
        let mut simulation = Simulation::new(config, move |host| all.program(host, hosts));
        for host in (0..hosts).map(HostId) {
            simulation.install(host, StopAndWait::new(channels, workload, host, hosts));
        }
        simulation
    }

    #[test]
    fn each_channel_carries_one_message_per_round_trip() {
        let link = Link { delay: Duration::from_micros(500), ..Link::default() };
        for count in [1, 2, 8, 64] {
            let report = run(
                Config { link, ..Config::default() },
                Channels::new(count),
                Workload::new(Pattern::Bulk, 6400, 1000),
            );
            assert_eq!((report.messages.delivered, report.packets.sent), (6400, 2 * 6400));
            // 12 bytes of arguments; at 10 Gb/s, packet and acknowledgement take 1 µs in addition to the delay of 1 ms.
            let wanted = f64::from(count) * 1012.0 * 8.0 / 1.001e-3;
            let part = report.goodput() / wanted;
            assert!((0.97..1.03).contains(&part), "{count}: {part} of {wanted}");
        }
    }

    #[test]
    fn all_that_may_happen_to_packets_leaves_every_message_delivered_once() {
        let faults = Faults { duplicate: 200_000, reorder: 200_000, corrupt: 100_000, ..Faults::loss(300_000) };
        for (seed, count) in (1..).zip([1, 4, 64]) {
            let channels = Channels { refuses: 100_000, ..Channels::new(count) };
            let report =
                run(Config { seed, faults, ..Config::default() }, channels, Workload::new(Pattern::Bulk, 500, 3000));
            assert_eq!(report.messages.delivered, 500);
            assert!(report.packets.lost > 0 && report.packets.duplicated > 0 && report.packets.corrupted > 0);
            let config = Config { seed, faults, topology: Topology::Star(4), ..Config::default() };
            for pattern in [Pattern::ClientServer, Pattern::AllToAll] {
                let report = run(config, channels, Workload::new(pattern, 200, 100));
                assert_eq!(report.messages.delivered, report.messages.sent);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let hash = |seed| {
            let config = Config { seed, faults: Faults::loss(100_000), ..Config::default() };
            run(config, Channels::new(8), Workload::ping_pong(200)).hash
        };
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }

    #[test]
    fn a_refused_packet_leaves_its_channel_to_others() {
        let channels = Channels { refuses: 100_000, ..Channels::new(1) };
        let report = run(Config::default(), channels, Workload::new(Pattern::Bulk, 1000, 100));
        assert_eq!(report.messages.delivered, 1000);
        let refused = report.packets.sent / 2 - 1000;
        assert!((60..200).contains(&refused), "{refused}");
        // Each rests for at least 2 ms; if the only channel rested too, the run would take 2 ms per refusal.
        assert!(report.time < Duration::from_millis(2) * refused as u32 / 3, "{:?}", report.time);
    }

    #[test]
    fn a_peer_that_is_gone_holds_no_channel() {
        let mut simulation = simulation(Config::default(), Channels::new(4), &Workload::new(Pattern::Bulk, 100, 10));
        simulation.change(crate::Change::Isolate { host: HostId(1), from: true, to: true });
        // Nine tries, the last of which waits for at most 256 ms and a quarter.
        simulation.run_until(Duration::from_secs(2));
        let sent = simulation.report().packets.sent;
        assert!(sent > 4 * u64::from(TRIES_MOST + 1), "{sent}: the other packets had their turn");
        simulation.change(crate::Change::Heal);
        let report = simulation.settle(Duration::from_secs(60)).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(report.messages.delivered, 100);
    }

    #[test]
    fn a_changed_packet_is_rejected() {
        let packet = Header { kind: DATA, number: 7, parts: 1, ..Header::default() }.packet(b"message");
        assert_eq!(Header::read(&packet).map(|(header, body)| (header.number, body)), Some((7, &b"message"[..])));
        for at in 0..packet.len() {
            let mut other = packet.clone();
            other[at] ^= 4;
            assert_eq!(Header::read(&other), None, "byte {at}");
        }
    }
}
