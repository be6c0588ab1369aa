//! The network interface between hosts: a value that is polled. It knows no operating system; the link that it is given sends
//! packets and knows the time.
//!
//! ```text
//! on_packet(..)          for each packet that came
//! on_time()              when next_time() says so
//! poll_event()           until there is none; then the bundle is polled
//! flush()                sends what the above and the program left
//! ```
//!
//! One belongs to one bundle, so threads with bundles of their own share none, and a *host* here is a bundle of another process: a
//! channel with one stream each way, which is the path of the one session that the two bundles have. Through its [`Handle`] somebody
//! may see to it while the bundle's program does not: packets, time and what is to be sent, but not the events.

mod burst;
mod hosts;
mod path;
mod sessions;

pub use path::{StreamRx, StreamTx};
pub use sessions::HostSessions;

use crate::report::HostReport;
use burst::{Burst, Progress, BURST_MOST};
use hosts::{Host, Hosts};
use std::cell::{RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::DerefMut;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use weft_transport::rare::{self, Point};
use weft_transport::{Answer, Caller, Control, Door, Incoming, Loose, Lot, Memory, Random, Settings, Time};
use weft_wire::frame::{stream_bytes, StreamId};
use weft_wire::packet::{receiver_of, ChannelId, Packet, PACKET_LEAST};
use weft_wire::path::{Abandoned, Peek, PushError, Traffic};
use weft_wire::setup::Open;
use weft_wire::{Epoch, Head, HostAddress, Kind, Reason};

/// What lies between this network interface and another.
type Channel<M> = weft_transport::Channel<Control, M>;

/// The one stream of a channel, in either direction.
const STREAM: StreamId = StreamId(1);

/// Nothing is gained by keeping records back for others if nothing went to their host for so long.
const LONG_AGO: Duration = Duration::from_micros(50);

/// Hosts that have not shown that they know one of our endpoints and its key. Who calls when there are so many is not heard,
/// and calls again; nor is one whose address has as many of these places already as are left.
const STRANGERS_MOST: usize = 256;

/// Hosts that are kept until they know that it is over, or are taken for dead. What more are told may be lost; the door tells it then.
const CLOSING_MOST: usize = 256;

/// Timers that may be set whatever the hosts are.
const TIMERS_LEAST: usize = 64;

/// A stranger that has shown nothing for so long makes room.
const PATIENCE: Duration = Duration::from_millis(500);

/// What became of a run of packets that was given to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// All went, or are lost as packets may be.
    All,
    /// So many went; the link takes no more now.
    Full(usize),
    /// So many went; the next one is larger than the link carries, and is lost with those behind it.
    TooLarge(usize),
}

/// What carries packets between network interfaces, and says what time it is. No call blocks.
pub trait Link {
    /// What streams that have much under way lie in.
    type Memory: Memory;
    /// The time, which never goes back.
    fn now(&self) -> Time;
    /// Sends packets that lie one behind the other, each of `segment` bytes but the last, which may be shorter.
    fn send(&mut self, to: Way, packets: &[u8], segment: usize) -> Sent;
    /// As [`Link::send`], of packets that lie in memory of the link's. It may be read after the call: all but a last packet that is shorter
    /// stays as it is until the peer has taken what is in it, and what is in a packet that was lost goes again from elsewhere.
    fn send_lasting(&mut self, to: Way, packets: &[u8], segment: usize) -> Sent {
        self.send(to, packets, segment)
    }
    /// Answers a stranger with one packet. If there is no room it is lost, as packets are; it will be asked for again.
    fn answer(&mut self, to: Way, packet: &[u8]) {
        let _ = self.send(to, packet, packet.len());
    }
    /// The way to an address, if any is known. May make system calls.
    fn way_to(&self, address: HostAddress) -> Option<Way> {
        Some(Way { to: address, from: 0 })
    }
    /// Bytes of the packets that the way to a host begins with: the first guess of what gets there. May make system calls.
    fn packet_bytes(&self, to: Way) -> u16;
}

/// A way to a host: where it is, and which of our own addresses it knows us by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Way {
    /// One address.
    pub to: HostAddress,
    /// The number of ours, as the link counts them.
    pub from: u8,
}

/// A handle to a network interface, by which the home and the ends of paths share it. Others may have it in between.
pub trait Handle: Clone {
    /// What carries its packets.
    type Link: Link;
    /// A use of it, until dropped.
    type Use<'a>: DerefMut<Target = Ni<Self::Link>>
    where
        Self: 'a;

    /// Begins a use of it. There may be one at a time.
    fn borrow_mut(&self) -> Self::Use<'_>;
}

/// Within one thread.
impl<L: Link> Handle for Rc<RefCell<Ni<L>>> {
    type Link = L;
    type Use<'a>
        = RefMut<'a, Ni<L>>
    where
        L: 'a;

    fn borrow_mut(&self) -> RefMut<'_, Ni<L>> {
        RefCell::borrow_mut(self)
    }
}

/// A host of a network interface. The life tells it from earlier ones with the same index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostId {
    /// Index among the hosts.
    pub index: u32,
    life: u32,
}

/// Who a host is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostKey {
    /// Where it is.
    pub address: HostAddress,
    /// The life of its network interface.
    pub epoch: Epoch,
}

/// What happened to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NiEvent {
    /// The host that we called answered: it may be given a session.
    Open(HostId),
    /// Records came from it. A host without a session has to open a flow first: [`Ni::first_open`].
    Readable(HostId),
    /// Messages came from it that might have been lost: [`Ni::take_unreliable`].
    Unreliable(HostId),
    /// The host is lost or takes no more. Its session ends now.
    Ended(HostId, Reason),
}

impl NiEvent {
    fn host(&self) -> HostId {
        match *self {
            NiEvent::Open(id) | NiEvent::Readable(id) | NiEvent::Unreliable(id) | NiEvent::Ended(id, _) => id,
        }
    }
}

/// Random bits that nobody else knows.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// For the cookies.
    pub door: [u64; 2],
    /// For channels' ids and what they draw by lot.
    pub seed: u64,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

/// A host that called us and has no session.
#[derive(Debug)]
struct Stranger {
    id: HostId,
    since: Time,
    origin: Origin,
}

/// Where a stranger calls from: an address, or all those of IPv6 that one may have who has one of them (RFC 4291, section 2.5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Origin([u8; 16]);

impl Origin {
    fn of(address: HostAddress) -> Origin {
        let mut ip = address.ip;
        if ip[..12] != [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
            ip[8..].fill(0);
        }
        Origin(ip)
    }
}

/// A network interface over a link.
#[derive(Debug)]
pub struct Ni<L: Link> {
    link: L,
    door: Door,
    settings: Settings,
    random: Random,
    hosts: Hosts<L::Memory>,
    /// Hosts for which something may have to be sent.
    dirty: Vec<u32>,
    /// The other list, empty but while one is flushed.
    flushed: Vec<u32>,
    /// One of the dirty ones has records that were not sent.
    has_unsent_records: bool,
    /// When a host wants to be looked at. Some say so too early; none too late.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    events: VecDeque<NiEvent>,
    burst: Burst,
    /// Oldest first.
    strangers: VecDeque<Stranger>,
    /// Hosts that are closing.
    closing: usize,
    /// Packets that were damaged or are none, of no channel that is known.
    damaged: u64,
    /// Whole packets that nobody here wanted, those of channels left out.
    refused: u64,
    /// The one that answers when we call ourselves.
    own: Option<HostId>,
    /// Polls until somebody looks at us: none while something waits for [`Ni::flush`].
    turns: Arc<AtomicU32>,
}

impl<L: Link> Ni<L> {
    /// A network interface of the life `epoch`.
    pub fn new(link: L, epoch: Epoch, settings: Settings, secrets: Secrets) -> Ni<L> {
        Ni {
            link,
            door: Door::new(epoch, secrets.door),
            settings,
            random: Random::new(secrets.seed),
            hosts: Hosts::default(),
            dirty: Vec::new(),
            flushed: Vec::new(),
            has_unsent_records: false,
            timers: BinaryHeap::new(),
            events: VecDeque::new(),
            burst: Burst::default(),
            strangers: VecDeque::new(),
            closing: 0,
            damaged: 0,
            refused: 0,
            own: None,
            turns: Arc::default(),
        }
    }

    /// Calls a host, unless it is known: then that one is told. An [`NiEvent::Open`] follows, or an `Ended`.
    ///
    /// If it has several addresses the first one that a way leads to is called; while it does not answer, all of them side by
    /// side. The one that answers first is used from then on. None of the others keeps anything: before the second call,
    /// which has the cookie, nobody does.
    pub fn call(&mut self, to: HostKey) -> HostId {
        if let Some(id) = self.find(to) {
            return id;
        }
        let now = self.link.now();
        let mut ways = to.address.each().filter_map(|address| self.link.way_to(address));
        let way = ways.next().unwrap_or(Way { to: to.address, from: 0 });
        let others: Vec<Way> = ways.collect();
        let settings = self.settings_for(std::iter::once(&way).chain(&others));
        let (life, lot) = self.draw();
        let channel = Channel::call_in(now, life, to.epoch, settings, lot, settings.congestion.into());
        let id = self.add(Host { others, ..Host::new(HostKey { address: way.to, ..to }, way, channel) });
        self.flush_host(id.index, now, u32::MAX);
        id
    }

    /// The host with this address, or one of these, and this life, unless it is ending.
    pub fn find(&self, key: HostKey) -> Option<HostId> {
        key.address.each().find_map(|address| self.hosts.find(HostKey { address, ..key }))
    }

    /// Who a host is.
    pub fn key(&self, id: HostId) -> Option<HostKey> {
        Some(self.hosts.get(id)?.key)
    }

    /// Whether the channel to a host is open.
    pub fn is_open(&self, id: HostId) -> bool {
        self.hosts.get(id).is_some_and(|h| h.channel.is_open())
    }

    /// What a host that called us opens with its first record, which it must before it gets a session. An error if the record
    /// is something else; none if it is not there yet.
    pub fn first_open(&mut self, id: HostId) -> Option<Result<Open, Reason>> {
        match self.hosts.get_mut(id)?.channel.peek(STREAM) {
            Peek::Empty => None,
            Peek::Record(record) if record.head.is(Kind::Open) => {
                Some(Open::from_args(record.args).ok_or(Reason::Violation))
            }
            Peek::Record(_) | Peek::Broken(_) => Some(Err(Reason::Violation)),
        }
    }

    /// The host has a session from now on.
    pub fn join(&mut self, id: HostId) {
        self.strangers.retain(|stranger| stranger.id != id);
    }

    /// How the channel to a host stands.
    pub fn report(&mut self, id: HostId) -> Option<HostReport> {
        let Host { channel, way, .. } = self.hosts.get_mut(id)?;
        channel.catch_up();
        Some(HostReport {
            address: way.to,
            round_trip: channel.rtt().smoothed(),
            least_round_trip: channel.rtt().least(),
            in_flight: channel.in_flight(),
            window: channel.congestion_window(),
            packet_bytes: channel.packet_size(),
            has_unsent: channel.has_unsent(),
            waits_for_peer: channel.waits_for_peer(STREAM),
            silences: channel.silences(),
            counters: *channel.counters(),
        })
    }

    /// Packets that came and were damaged or are none, whoever they were of.
    pub fn damaged(&self) -> u64 {
        self.damaged + self.hosts.dropped().damaged
    }

    /// Whole packets that came and were refused, whoever they were of: forged, of another life, from elsewhere than the channel
    /// that they name, copies, or such as say what cannot be. Some were answered, with no more than their own bytes.
    pub fn refused(&self) -> u64 {
        self.refused + self.hosts.dropped().refused
    }

    /// Messages given up by channels that may be lost: see [`weft_transport::Counters::unreliable_dropped`].
    pub fn unreliable_dropped(&self) -> u64 {
        self.hosts.dropped().unreliable
    }

    /// Bytes of memory that it takes besides itself and its link: its channels, and what waits for hosts and for the program.
    pub fn memory(&self) -> usize {
        use std::mem::size_of;
        self.hosts.memory()
            + (self.dirty.capacity() + self.flushed.capacity()) * size_of::<u32>()
            + self.timers.capacity() * size_of::<(Time, u32)>()
            + self.events.capacity() * size_of::<NiEvent>()
            + self.strangers.capacity() * size_of::<Stranger>()
            + self.burst.memory()
    }

    /// Ends a host: tells it why and what was taken. [`StreamTx::abandoned`] has what it did not surely take.
    ///
    /// [`StreamTx::abandoned`]: weft_wire::path::Tx::abandoned
    pub fn close(&mut self, id: HostId, reason: Reason) {
        let strangers = self.strangers.len();
        self.strangers.retain(|stranger| stranger.id != id);
        let is_stranger = self.strangers.len() < strangers;
        let Some(host) = self.hosts.get_mut(id).filter(|h| !h.is_closing) else { return };
        let given_up = match host.channel.lost() {
            Some(_) => host.channel.abandon().into_iter().flat_map(|(_, records)| records).collect(),
            None => host.channel.close(STREAM, reason),
        };
        host.abandoned = given_up;
        host.is_closing = true;
        self.closing += 1;
        self.hosts.forget_key(id);
        if is_stranger {
            // Told once; if that is lost, the door tells it. Nothing of a stranger is kept, nor of what it said: others come in its
            // place, and perhaps nobody hears of any of them for long.
            let now = self.link.now();
            self.flush_host(id.index, now, u32::MAX);
            self.events.retain(|event| event.host() != id);
            return self.remove(id.index);
        }
        self.mark(id.index);
    }

    /// Whether this host is to be asked now and then if it is there.
    pub fn keep_watch(&mut self, id: HostId, wanted: bool) {
        if let Some(host) = self.hosts.get_mut(id).filter(|h| h.is_watched != wanted) {
            host.is_watched = wanted;
            host.channel.keep_watch(wanted);
            self.mark(id.index);
        }
    }

    /// Takes a packet in that came just now.
    #[inline]
    pub fn on_packet(&mut self, now: Time, way: Way, bytes: &[u8]) {
        self.on_packet_of(now, now, way, bytes);
    }

    /// Takes a packet in that came to this host at `came_at`, and was not looked at before now.
    #[inline]
    pub fn on_packet_of(&mut self, now: Time, came_at: Time, way: Way, bytes: &[u8]) {
        let Some(receiver) = receiver_of(bytes) else { return self.damaged += 1 };
        match self.hosts.by_channel(receiver) {
            Some(index) => {
                let Some(host) = self.hosts.at(index) else { return };
                if !host.others.is_empty() {
                    return self.on_answer(now, index, way, bytes);
                }
                if host.way != way {
                    return self.refuse(bytes);
                }
                host.channel.on_packet_of(now, came_at, bytes);
                let has_events = host.channel.has_events();
                self.mark(index);
                if has_events {
                    self.take_events(index);
                }
            }
            None => self.on_stranger(now, way, bytes),
        }
    }

    /// What happened, oldest first. That records came from a host is told once until it was heard.
    #[inline]
    pub fn poll_event(&mut self) -> Option<NiEvent> {
        let event = self.events.pop_front()?;
        if let NiEvent::Readable(id) = event {
            if let Some(host) = self.hosts.get_mut(id) {
                host.is_told_readable = false;
            }
        }
        Some(event)
    }

    /// The next message from a host that might have been lost. Once there is none, the next one is told.
    pub fn take_unreliable(&mut self, id: HostId) -> Option<Loose> {
        let host = self.hosts.get_mut(id)?;
        let message = host.channel.take_unreliable();
        host.is_told_unreliable &= message.is_some();
        message
    }

    /// Whether there is something for [`Ni::poll_event`].
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When [`Ni::on_time`] is to be called at the latest.
    #[inline]
    pub fn next_time(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Forgets timers that nothing waits for any more: after this, [`Ni::next_time`] is none if nothing is under way.
    pub fn drop_stale_timers(&mut self) {
        while let Some(&Reverse((at, index))) = self.timers.peek() {
            let wanted = match self.hosts.at(index).filter(|h| h.timer_at == Some(at)) {
                Some(host) => {
                    let next = host.channel.next_timeout();
                    if next.is_some_and(|next| next <= at) {
                        return;
                    }
                    host.timer_at = next;
                    next
                }
                None => None,
            };
            self.timers.pop();
            self.timers.extend(wanted.map(|at| Reverse((at, index))));
        }
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Time) {
        while let Some(&Reverse((at, index))) = self.timers.peek().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            let Some(host) = self.hosts.at(index).filter(|h| h.timer_at == Some(at)) else { continue };
            host.timer_at = None;
            if host.channel.next_timeout().is_some_and(|at| at <= now) {
                host.channel.on_timeout(now);
                self.take_events(index);
            }
            self.mark(index);
        }
    }

    /// Sends what waits, as far as the link takes it.
    #[inline]
    pub fn flush(&mut self) {
        if !self.dirty.is_empty() {
            let now = self.link.now();
            self.flush_dirty(now);
        }
    }

    /// The same, and acknowledges what came: the program computes, so nothing will soon be sent that an acknowledgement could ride
    /// with.
    pub fn flush_and_acknowledge(&mut self) {
        for at in 0..self.dirty.len() {
            if let Some(host) = self.hosts.at(self.dirty[at]) {
                host.channel.hurry_acks();
            }
        }
        self.flush();
    }

    /// Sends the records that wait, and what can ride with them. Acknowledgements alone are left to [`Ni::flush`].
    #[inline]
    pub fn flush_records(&mut self) {
        if self.has_unsent_records {
            let now = self.link.now();
            self.flush_dirty_records(now);
        }
    }

    /// Whether something waits for [`Ni::flush`].
    pub fn has_unsent(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether all records went that were given to hosts.
    pub fn has_sent_all(&self) -> bool {
        self.dirty.is_empty() && self.hosts.all_sent()
    }

    /// Whether the network interfaces of all hosts said that they have what was given to them.
    pub fn is_acknowledged(&self) -> bool {
        self.has_sent_all() && self.hosts.all_acknowledged()
    }

    /// How many polls are to go by before somebody looks at us: whoever polls counts it down, and sets it after a look. It
    /// becomes zero by itself when something is left to be sent.
    pub fn turns(&self) -> Arc<AtomicU32> {
        self.turns.clone()
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The link.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// The hosts there are, those that are ending left out.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, HostKey)> + '_ {
        self.hosts.iter()
    }

    // ---- for the ends of paths

    #[inline]
    fn push(&mut self, id: HostId, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        let Some(host) = self.hosts.get_mut(id) else { return Err(PushError::Gone) };
        let was_quiet = host.channel.is_quiet();
        host.channel.send(STREAM, head, args, payload)?;
        host.unsent += stream_bytes(args.len(), payload.len());
        if was_quiet || host.unsent >= BURST_MOST {
            // What is behind a full run waits for its like: packets are dear, whatever is in them.
            let runs = if was_quiet { u32::MAX } else { 1 };
            let now = self.link.now();
            self.flush_host(id.index, now, runs);
        } else if !self.has_unsent_records || !host.is_marked {
            self.leave_unsent(id.index);
        }
        Ok(())
    }

    #[cold]
    fn push_unreliable(&mut self, id: HostId, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        let Some(host) = self.hosts.get_mut(id) else { return Err(PushError::Gone) };
        let was_quiet = host.channel.is_quiet();
        host.channel.send_unreliable(STREAM, head, args, payload)?;
        host.unsent += stream_bytes(args.len(), payload.len());
        if was_quiet || host.unsent >= BURST_MOST {
            let now = self.link.now();
            self.flush_host(id.index, now, u32::MAX);
        } else {
            self.leave_unsent(id.index);
        }
        Ok(())
    }

    fn has_room(&mut self, id: HostId, payload: usize) -> bool {
        // Of a host that is gone the sender shall hear at once.
        self.hosts.get_mut(id).is_none_or(|h| h.channel.has_room(STREAM, 0, payload))
    }

    fn traffic(&mut self, id: HostId) -> Traffic {
        self.hosts.get_mut(id).map_or_else(Traffic::default, |h| h.channel.traffic(STREAM))
    }

    #[inline]
    fn lend(&mut self, id: HostId) -> Option<Box<Incoming>> {
        let host = self.hosts.get_mut(id)?;
        host.is_readable.then(|| host.channel.lend(STREAM))?
    }

    /// Takes a reading half back. `is_empty` if it holds no whole record.
    #[inline]
    fn take_back(&mut self, id: HostId, half: Box<Incoming>, is_empty: bool) {
        if let Some(host) = self.hosts.get_mut(id) {
            host.is_readable = !is_empty;
            host.channel.take_back(STREAM, half);
            self.mark(id.index);
        }
    }

    fn take_abandoned(&mut self, id: HostId) -> Vec<Abandoned> {
        self.close(id, Reason::PeerLost);
        self.hosts.get_mut(id).map(|h| std::mem::take(&mut h.abandoned)).unwrap_or_default()
    }

    fn rest(&mut self, id: HostId) {
        if let Some(host) = self.hosts.get_mut(id) {
            host.channel.rest();
        }
    }

    // ---- inside

    fn add(&mut self, mut host: Host<L::Memory>) -> HostId {
        // The first stream of a new channel.
        let opened = host.channel.open(STREAM);
        debug_assert!(opened.is_ok());
        let id = self.hosts.add(host);
        // Of the host that had the place before.
        self.dirty.retain(|&index| index != id.index);
        id
    }

    /// For a channel that goes one of these ways: what fits all to begin with, and as much as one of them carries later.
    fn settings_for<'a>(&self, ways: impl Iterator<Item = &'a Way>) -> Settings {
        let most = self.settings.packet_most;
        let packets = ways.map(|way| self.link.packet_bytes(*way).min(most));
        let (least, most) = packets.fold((u16::MAX, 0), |(least, most), bytes| (least.min(bytes), most.max(bytes)));
        Settings { packet_first: least, packet_most: most, ..self.settings }
    }

    fn draw(&mut self) -> (weft_transport::Life, Lot) {
        let id = loop {
            let id = ChannelId(self.random.bits() as u32);
            if id != ChannelId::NOBODY && self.hosts.by_channel(id).is_none() {
                break id;
            }
        };
        (self.door.life(id), Lot { nonce: self.random.bits(), seed: self.random.bits() })
    }

    #[cold]
    #[inline(never)]
    fn on_stranger(&mut self, now: Time, way: Way, bytes: &[u8]) {
        match self.door.answer(now, &way.to.to_bytes(), bytes) {
            Answer::Reply(reply) => {
                self.refused += u64::from(!reply.invites());
                self.link.answer(way, reply.bytes());
            }
            Answer::Admit(caller) => self.admit(now, way, &caller),
            Answer::Drop => self.refuse(bytes),
        }
    }

    /// Counts a packet that is dropped, as a channel would: some were of one, and the damage is in its id.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, bytes: &[u8]) {
        *if Packet::decode(bytes).is_ok() { &mut self.refused } else { &mut self.damaged } += 1;
    }

    /// What one says whom we called, while there are several that it may be.
    #[cold]
    #[inline(never)]
    fn on_answer(&mut self, now: Time, index: u32, way: Way, bytes: &[u8]) {
        let Some((id, host)) = self.hosts.id(index).zip(self.hosts.at(index)) else { return };
        let mut others: Vec<Way> = std::iter::once(host.way).chain(host.others.iter().copied()).collect();
        let Some(place) = others.iter().position(|other| *other == way) else { return self.refuse(bytes) };
        others.remove(place);
        if let Some(reason) = host.channel.refusal(bytes) {
            // This is somebody else's address, or was: one of the others may be right.
            host.refusal = Some(reason);
            host.has_called = true;
            host.channel.call_again(now);
            let preferred = others.remove(0);
            self.hosts.set_ways(id, preferred, others);
            return self.mark(index);
        }
        host.channel.on_packet(now, bytes);
        if !host.channel.is_unheard() {
            self.hosts.set_ways(id, way, Vec::new());
        }
        self.mark(index);
        self.take_events(index);
    }

    fn admit(&mut self, now: Time, way: Way, caller: &Caller) {
        let key = HostKey { address: way.to, epoch: caller.epoch };
        let called = self.hosts.by_channel(caller.id);
        if called.and_then(|index| self.hosts.at(index)).is_some_and(|host| host.channel.made(caller)) {
            // We called ourselves: another host of ours answers, unless this is a copy.
            if self.own.and_then(|id| self.hosts.get(id)).is_some_and(|host| host.channel.is_of(caller)) {
                self.refused += 1;
                return;
            }
            self.own = self.answer(now, key, way, caller);
            return;
        }
        if let Some(id) = self.hosts.find_by(key, way.from) {
            let Some(host) = self.hosts.get_mut(id) else { return };
            if host.channel.is_of(caller) {
                // A copy of the call that opened this channel: our answer is under way, or was lost and goes again by itself.
                self.refused += 1;
                return;
            }
            if host.channel.give_way(caller) {
                self.hosts.set_ways(id, way, Vec::new());
                self.mark(id.index);
                return self.take_events(id.index);
            }
            if !host.channel.is_open() {
                // We called it at the same time, and it is the one to give way.
                return;
            }
            // It has forgotten us and calls anew, or this call is old and was late. If the first, it says so when it is asked, and
            // its next call finds nobody in its way.
            host.channel.ask();
            self.refused += 1;
            return self.mark(id.index);
        }
        self.answer(now, key, way, caller);
    }

    /// A channel for a caller, if there is a place for one more stranger.
    fn answer(&mut self, now: Time, key: HostKey, way: Way, caller: &Caller) -> Option<HostId> {
        let origin = Origin::of(way.to);
        if rare::fires(Point::StrangerUnheard) || !self.make_place(now, origin) {
            self.refused += 1;
            return None;
        }
        let settings = self.settings_for(std::iter::once(&way));
        let (life, lot) = self.draw();
        let channel = Channel::answer_in(now, life, caller, settings, lot, settings.congestion.into());
        let id = self.add(Host::new(key, way, channel));
        self.strangers.push_back(Stranger { id, since: now, origin });
        self.mark(id.index);
        Some(id)
    }

    /// Whether a stranger gets a place, perhaps that of one whose time is up. No origin gets more places than stay free (the
    /// dynamic thresholds of Choudhury and Hahne, 1998): so one that takes all it can leaves half of them, the next half of these.
    fn make_place(&mut self, now: Time, origin: Origin) -> bool {
        let taken = self.strangers.iter().filter(|stranger| stranger.origin == origin).count();
        if taken < STRANGERS_MOST.saturating_sub(self.strangers.len()) {
            return true;
        }
        let oldest = self.strangers.iter().find(|stranger| taken == 0 || stranger.origin == origin);
        match oldest.filter(|stranger| now.since(stranger.since) >= PATIENCE).map(|stranger| stranger.id) {
            Some(id) => {
                self.close(id, Reason::NoRoom);
                true
            }
            None => false,
        }
    }

    /// The host is no more; whoever has a session with it is told, and closes it.
    fn end(&mut self, id: HostId, reason: Reason) {
        if self.strangers.iter().any(|stranger| stranger.id == id) {
            return self.close(id, reason);
        }
        // Silence says less than what one said who was called for it.
        let refusal = self.hosts.get(id).and_then(|host| host.refusal);
        let reason = refusal.filter(|_| reason == Reason::NobodyThere).unwrap_or(reason);
        self.hosts.forget_key(id);
        if self.hosts.get(id).is_some_and(|h| !h.is_closing) {
            self.events.push_back(NiEvent::Ended(id, reason));
        }
    }

    /// Forgets a host that is closing.
    fn remove(&mut self, index: u32) {
        self.closing = self.closing.saturating_sub(1);
        self.hosts.remove(index);
    }

    /// Passes on what a channel tells.
    #[inline]
    fn take_events(&mut self, index: u32) {
        use weft_transport::Event;
        while let Some((id, host)) = self.hosts.entry(index) {
            let Some(event) = host.channel.poll_event() else { return };
            match event {
                Event::Open => self.events.push_back(NiEvent::Open(id)),
                // A peer can have that happen with each packet, and nobody hears of it while the program computes: it is told once.
                Event::Readable(_) => {
                    host.is_readable = true;
                    if !std::mem::replace(&mut host.is_told_readable, true) {
                        self.events.push_back(NiEvent::Readable(id));
                    }
                }
                Event::Unreliable => {
                    if !std::mem::replace(&mut host.is_told_unreliable, true) {
                        self.events.push_back(NiEvent::Unreliable(id));
                    }
                }
                // Blocked sessions look for room by themselves.
                Event::Room(_) => {}
                Event::Refused(_, reason) | Event::Lost(reason) => self.end(id, reason),
            }
        }
    }

    #[inline]
    fn mark(&mut self, index: u32) {
        if let Some(host) = self.hosts.at(index).filter(|h| !h.is_marked) {
            host.is_marked = true;
            self.dirty.push(index);
            // Relaxed: it only says when to look.
            self.turns.store(0, Ordering::Relaxed);
        }
    }

    /// Records wait that are to share a packet with those behind them, unless it is long since one went there.
    fn leave_unsent(&mut self, index: u32) {
        let now = self.link.now();
        let Some(host) = self.hosts.at(index) else { return };
        if now.since(host.sent_at) >= LONG_AGO {
            return self.flush_host(index, now, u32::MAX);
        }
        self.has_unsent_records = true;
        self.mark(index);
    }

    fn flush_dirty_records(&mut self, now: Time) {
        self.has_unsent_records = false;
        for at in 0..self.dirty.len() {
            let index = self.dirty[at];
            if self.hosts.at(index).is_some_and(|h| h.unsent > 0) {
                self.flush_host(index, now, u32::MAX);
            }
        }
    }

    fn flush_dirty(&mut self, now: Time) {
        self.has_unsent_records = false;
        // Two lists that change places, so that hosts which the link has no room for can be marked again meanwhile.
        std::mem::swap(&mut self.dirty, &mut self.flushed);
        for at in 0..self.flushed.len() {
            let index = self.flushed[at];
            if let Some(host) = self.hosts.at(index) {
                host.is_marked = false;
                self.flush_host(index, now, u32::MAX);
            }
        }
        self.flushed.clear();
    }

    /// Sends what a host is to get, as far as the link takes it, and at most so many runs.
    #[inline]
    fn flush_host(&mut self, index: u32, now: Time, runs: u32) {
        let Ni { hosts, burst, link, .. } = self;
        let Some(host) = hosts.at(index) else { return };
        if !host.others.is_empty() {
            return self.flush_call(index, now);
        }
        match burst.send(&mut host.channel, host.way, now, runs, link) {
            // What the peer has no room for, or must not be under way yet, is kept until it says so.
            Progress::All => host.unsent = usize::from(host.channel.has_unsent()),
            Progress::Some(bytes) => {
                host.unsent = host.unsent.saturating_sub(bytes).max(1);
                self.has_unsent_records = true;
                self.mark(index);
            }
            Progress::LinkFull => return self.mark(index),
        }
        self.settle_host(index, now);
    }

    /// Calls a host that has several addresses: the preferred one, and from the second time on all of them. What the link does
    /// not take is lost, for the call is repeated.
    #[cold]
    #[inline(never)]
    fn flush_call(&mut self, index: u32, now: Time) {
        let Ni { hosts, link, .. } = self;
        let Some(host) = hosts.at(index) else { return };
        let mut packet = [0; PACKET_LEAST];
        if let Some(bytes) = host.channel.transmit(now, &mut packet) {
            let others = host.others.iter().filter(|_| host.has_called);
            for way in std::iter::once(&host.way).chain(others) {
                let _ = link.send(*way, &packet[..bytes], bytes);
            }
            host.has_called = true;
        }
        self.settle_host(index, now);
    }

    /// What is to be done with a host once it was sent all that it gets now.
    #[inline]
    fn settle_host(&mut self, index: u32, now: Time) {
        let Some(host) = self.hosts.at(index) else { return };
        host.sent_at = now;
        host.channel.catch_up();
        let knows = host.channel.lost().is_some() || host.channel.is_quiet();
        let is_crowded = self.closing > CLOSING_MOST || rare::fires(Point::ClosingForgotten);
        if host.is_closing && host.abandoned.is_empty() && (knows || is_crowded) {
            return self.remove(index);
        }
        let Some(at) = host.channel.next_timeout() else { return };
        if host.timer_at.is_none_or(|timer| at < timer) {
            host.timer_at = Some(at);
            self.set_timer(at, index);
        }
    }

    /// Each packet of a peer may set a timer, and old ones stay until their time has come, which may be far ahead: if they are many
    /// they are sorted out.
    #[inline]
    fn set_timer(&mut self, at: Time, index: u32) {
        self.timers.push(Reverse((at, index)));
        if self.timers.len() > TIMERS_LEAST + 2 * self.hosts.places() || rare::fires(Point::TimersSorted) {
            self.timers.clear();
            self.timers.extend(self.hosts.timers().map(Reverse));
        }
    }
}
