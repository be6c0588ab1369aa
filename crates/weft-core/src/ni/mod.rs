//! The network interface between hosts: a value that is polled. It makes no system calls; its link sends packets and
//! tells the time.
//!
//! ```text
//! on_packet(..)          for each packet that arrives
//! take_refusals()        when the link reports packets that could not be delivered
//! on_time()              when next_time() says so
//! poll_event()           until there is none; then the bundle is polled
//! flush()                sends what the above and the program left
//! ```
//!
//! Each bundle has its own network interface, so threads with different bundles share none. A *host* here is a bundle
//! of another process. One channel connects the two. Each of its streams is the path of a session of two endpoints. A
//! [`Handle`] lets another thread serve the interface while the bundle's program computes: packets, timers and sends,
//! but not the events.

mod bounds;
mod burst;
mod gone;
mod guests;
mod hosts;
mod incast;
mod link;
mod path;
mod sessions;
mod streams;

pub use bounds::Bounds;
pub use link::{Link, Sent, Way};
pub use path::{StreamRx, StreamTx};
pub use sessions::HostSessions;

use crate::report::HostReport;
use burst::{Burst, Progress, BURST_MOST};
use gone::Gone;
use guests::Guests;
use hosts::{Host, Hosts};
use incast::Incast;
use std::cell::{RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::DerefMut;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use weft_transport::rare::{self, Point};
use weft_transport::{Answer, Caller, Control, Door, Incoming, Loose, Lot, Random, Settings, SharedRoom, Time};
use weft_wire::frame::{stream_bytes, StreamId};
use weft_wire::packet::{receiver_of, ChannelId, Integrity, Packet, PACKET_LEAST};
use weft_wire::path::{Abandoned, Peek, PushError, Traffic};
use weft_wire::setup::Open;
use weft_wire::{Epoch, Head, HostAddress, Kind, Reason};

/// The channel between this network interface and another.
type Channel<M> = weft_transport::Channel<Control, M>;

/// If nothing was sent to a host for this long, a record is sent at once: waiting for others to share its packet gains
/// nothing.
const LONG_AGO: Duration = Duration::from_micros(50);

/// Largest number of closed hosts that are kept until they acknowledge that, or count as dead. Above this, the notice
/// to a host may be lost; then the door tells it.
const CLOSING_MOST: usize = 256;

/// Number of timers that may be set in addition to those for hosts.
const TIMERS_LEAST: usize = 64;

/// A handle to a network interface, through which the home and the ends of paths share it. Other threads may use it in between.
pub trait Handle: Clone {
    /// The link that carries its packets.
    type Link: Link;
    /// Access to the interface, until dropped.
    type Use<'a>: DerefMut<Target = Ni<Self::Link>>
    where
        Self: 'a;

    /// Gets access to the interface. Only one access may exist at a time.
    fn borrow_mut(&self) -> Self::Use<'_>;
}

/// For use within one thread.
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

/// A host of a network interface. `life` distinguishes it from earlier hosts with the same index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostId {
    /// Index among the hosts.
    pub index: u32,
    life: u32,
}

/// The identity of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostKey {
    /// Its address.
    pub address: HostAddress,
    /// The epoch of its network interface.
    pub epoch: Epoch,
}

/// What happened to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NiEvent {
    /// The host that we called has answered and may get a session.
    Open(HostId),
    /// Records arrived on a stream. A stream without a session must open a flow first: [`Ni::first_open`].
    Readable(HostId, StreamId),
    /// The host has taken more of a stream for which [`Ni::watch_taken`] was called.
    Taken(HostId, StreamId),
    /// Unreliable messages arrived from the host: [`Ni::take_unreliable`].
    Unreliable(HostId),
    /// The host takes no more of a stream. Its session ends now.
    Refused(HostId, StreamId, Reason),
    /// The host proposes to close a stream of its own, if there is no flow on it: [`Ni::answer_rest`].
    Asks(HostId, StreamId),
    /// A stream was closed at rest, as requested. The session with this index is gone.
    Rested(HostId, StreamId, u32),
    /// The host declined to close a stream and keeps using it.
    Stays(HostId, StreamId),
    /// The host is lost or has ended the channel. Its sessions end now.
    Ended(HostId, Reason),
}

impl NiEvent {
    fn host(&self) -> HostId {
        match *self {
            NiEvent::Open(id) | NiEvent::Unreliable(id) | NiEvent::Ended(id, _) | NiEvent::Refused(id, _, _) => id,
            NiEvent::Readable(id, _) | NiEvent::Taken(id, _) => id,
            NiEvent::Asks(id, _) | NiEvent::Rested(id, _, _) | NiEvent::Stays(id, _) => id,
        }
    }
}

/// Secret random bits.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// For the door's cookies.
    pub door: [u64; 2],
    /// For channel ids and other random choices.
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
    /// Its first flow was not admitted.
    is_refused: bool,
}

/// The origin of a stranger: an IPv4 address, or the first 64 bits of an IPv6 address, because the owner of one address
/// can use all addresses with these bits (RFC 4291, section 2.5.4).
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

    /// The same in two words.
    fn words(self) -> [u64; 2] {
        let whole = u128::from_le_bytes(self.0);
        [whole as u64, (whole >> 64) as u64]
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
    /// Hosts that may have something to send.
    dirty: Vec<u32>,
    /// The second list of dirty hosts. Empty except during a flush.
    flushed: Vec<u32>,
    /// A dirty host has unsent records.
    has_unsent_records: bool,
    /// When each host wants service. A time may be too early, never too late.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    events: VecDeque<NiEvent>,
    burst: Burst,
    /// Oldest first.
    strangers: VecDeque<Stranger>,
    guests: Guests,
    incast: Incast,
    bounds: Bounds,
    /// Room for received data that all hosts share, if it is limited.
    room: Option<Arc<SharedRoom>>,
    /// Hosts that were found unreachable a moment ago.
    gone: Gone,
    /// Hosts that are closing.
    closing: usize,
    /// Damaged packets, and datagrams that are not packets, that belong to no known channel.
    damaged: u64,
    /// Intact packets that were refused before they reached a channel.
    refused: u64,
    /// The host that answers when we call ourselves.
    own: Option<HostId>,
    /// Polls until the interface is polled again; zero while something waits for [`Ni::flush`].
    turns: Arc<AtomicU32>,
}

impl<L: Link> Ni<L> {
    /// Makes a network interface of the life `epoch`.
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
            guests: Guests::new(secrets.door),
            incast: Incast::default(),
            bounds: Bounds::default(),
            room: None,
            gone: Gone::default(),
            closing: 0,
            damaged: 0,
            refused: 0,
            own: None,
            turns: Arc::default(),
        }
    }

    /// Calls a host, or returns it if it is known. An [`NiEvent::Open`] or an `Ended` follows.
    ///
    /// If the host has several addresses, the first that has a way is called, and all of them in parallel if that one
    /// does not answer. The first one to answer is used from then on. The others keep no state: no host does before the
    /// second call, which carries the cookie.
    pub fn call(&mut self, to: HostKey) -> HostId {
        if let Some(id) = self.find(to) {
            return id;
        }
        let now = self.link.now();
        let mut ways = to.address.each().filter_map(|address| self.link.way_to(address));
        let way = ways.next().unwrap_or(Way { to: to.address, from: 0 });
        let others: Box<[Way]> = ways.collect();
        let settings = self.settings_for(std::iter::once(&way).chain(&*others));
        let (life, lot) = self.draw();
        let mut channel = Channel::call_in(now, life, to.epoch, settings, lot, settings.congestion.into());
        self.room.iter().for_each(|room| channel.share_room(room.clone()));
        let id = self.add(Host { others, ..Host::new(HostKey { address: way.to, ..to }, way, channel) });
        self.flush_host(id.index, now, u32::MAX);
        id
    }

    /// Returns the host with this epoch at one of these addresses, or a host there that serves many programs, unless it
    /// is ending.
    pub fn find(&self, key: HostKey) -> Option<HostId> {
        let exact = key.address.each().find_map(|address| self.hosts.find(HostKey { address, ..key }));
        if exact.is_some_and(|id| self.is_open(id)) {
            return exact;
        }
        // Prefer it to a call in progress: of two simultaneous calls for its programs, an interface answers only one.
        let server = key.address.each().find_map(|address| self.hosts.find_server(address));
        server.or(exact)
    }

    /// Hosts that were called and have not answered.
    pub fn calling(&self) -> usize {
        self.hosts.calling()
    }

    /// Admits hosts that call the program of this epoch, which this interface serves beside its own.
    pub fn serve(&mut self, program: Epoch) {
        self.door.serve(program);
    }

    /// Stops admitting them.
    pub fn dismiss(&mut self, program: Epoch) {
        self.door.dismiss(program);
    }

    /// Sets whether programs may be added soon that are not served yet. While they may, calls for unknown programs get
    /// no answer, and are repeated.
    pub fn wait_for_programs(&mut self, waits: bool) {
        self.door.wait_for_programs(waits);
    }

    /// Returns the identity of a host.
    pub fn key(&self, id: HostId) -> Option<HostKey> {
        Some(self.hosts.get(id)?.key)
    }

    /// Whether the channel to a host is open.
    pub fn is_open(&self, id: HostId) -> bool {
        self.hosts.get(id).is_some_and(|h| h.channel.is_open())
    }

    /// Notes that a host has a session.
    pub fn join(&mut self, id: HostId) {
        self.strangers.retain(|stranger| stranger.id != id);
    }

    /// Whether a host called us and has no session yet.
    pub fn is_stranger(&self, id: HostId) -> bool {
        self.strangers.iter().any(|stranger| stranger.id == id)
    }

    /// Notes that a host and this one have had a session that both knew of.
    pub fn accept(&mut self, id: HostId) {
        self.hosts.get_mut(id).into_iter().for_each(|host| host.is_accepted = true);
    }

    /// Whether [`Ni::accept`] was called for it.
    pub fn is_accepted(&self, id: HostId) -> bool {
        self.hosts.get(id).is_some_and(|host| host.is_accepted)
    }

    /// Returns the state of the channel to a host.
    pub fn report(&mut self, id: HostId) -> Option<HostReport> {
        let Host { channel, way, .. } = self.hosts.get_mut(id)?;
        channel.catch_up();
        Some(HostReport {
            address: way.to,
            round_trip: channel.rtt().smoothed(),
            least_round_trip: channel.rtt().least(),
            in_flight: channel.in_flight(),
            window: channel.congestion_window(),
            integrity: channel.integrity(),
            integrity_wanted: channel.integrity_wanted(),
            packet_bytes: channel.packet_size(),
            has_unsent: channel.has_unsent(),
            waits_for_peer: channel.any_waits_for_peer(),
            silences: channel.silences(),
            counters: *channel.counters(),
        })
    }

    /// Returns the number of damaged packets and of datagrams that are not packets.
    pub fn damaged(&self) -> u64 {
        self.damaged + self.hosts.dropped().damaged
    }

    /// Returns the number of intact packets that were refused: forged, of another epoch, from another address than
    /// their channel's peer, duplicates, or with impossible contents. Some got an answer, which is never larger than
    /// the packet.
    pub fn refused(&self) -> u64 {
        self.refused + self.hosts.dropped().refused
    }

    /// Returns the number of unreliable messages that channels dropped: see
    /// [`weft_transport::Counters::unreliable_dropped`].
    pub fn unreliable_dropped(&self) -> u64 {
        self.hosts.dropped().unreliable
    }

    /// Returns the bytes of heap memory in use, without the link's: channels, and what waits for hosts and for the
    /// program.
    pub fn memory(&self) -> usize {
        use std::mem::size_of;
        self.hosts.memory()
            + (self.dirty.capacity() + self.flushed.capacity()) * size_of::<u32>()
            + self.timers.capacity() * size_of::<(Time, u32)>()
            + self.events.capacity() * size_of::<NiEvent>()
            + self.strangers.capacity() * size_of::<Stranger>()
            + self.burst.memory()
            + self.guests.memory()
            + self.gone.memory()
    }

    /// Closes a host with all its streams, as [`Ni::close_stream`] does, and the channel.
    pub fn close(&mut self, id: HostId, reason: Reason) {
        let strangers = self.strangers.len();
        self.guests.forget_host(id);
        self.strangers.retain(|stranger| stranger.id != id);
        let is_stranger = self.strangers.len() < strangers;
        let Some(host) = self.hosts.get_mut(id).filter(|h| !h.is_closing) else { return };
        let given_up = match host.channel.lost() {
            Some(_) => host.channel.abandon(),
            None => host.channel.end(reason),
        };
        host.abandoned.extend(given_up.into_iter().filter(|(_, records)| !records.is_empty()));
        host.is_closing = true;
        self.closing += 1;
        self.hosts.forget_key(id);
        if is_stranger {
            // Tell it once; if that is lost, the door tells it. Keep nothing of a stranger and drop its events: others
            // take its place, and the program may not poll for long.
            let now = self.link.now();
            self.flush_host(id.index, now, u32::MAX);
            self.events.retain(|event| event.host() != id);
            return self.remove(id.index);
        }
        self.mark(id.index);
    }

    /// A host is probed from time to time to see if it is alive, from the next [`Ni::keep_watch`] until the one after.
    pub fn want_watch(&mut self, id: HostId) {
        self.hosts.get_mut(id).into_iter().for_each(|host| host.is_wanted = true);
    }

    /// Probes the hosts for which [`Ni::want_watch`] was called since the last time, and no others. Frees memory that
    /// channels without streams do not need.
    pub fn keep_watch(&mut self) {
        for index in 0..self.hosts.places() as u32 {
            let Some(host) = self.hosts.at(index).filter(|host| !host.is_closing) else { continue };
            if !host.channel.has_streams() {
                host.channel.rest();
            }
            let wanted = std::mem::take(&mut host.is_wanted);
            let is_news = host.is_watched != wanted;
            if is_news {
                host.is_watched = wanted;
                host.channel.keep_watch(wanted);
            }
            if is_news || self.room.is_some() && host.channel.look_for_room() {
                self.mark(index);
            }
        }
    }

    /// Takes a packet that arrived just now.
    #[inline]
    pub fn on_packet(&mut self, now: Time, way: Way, bytes: &[u8]) {
        self.on_packet_of(now, now, way, bytes);
    }

    /// Takes a packet that arrived at this machine at `came_at` and is read only now.
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
                self.incast.heard(now, host.channel.heard_at());
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

    /// Takes the oldest event. The arrival of records by a stream is reported once until the event is taken.
    #[inline]
    pub fn poll_event(&mut self) -> Option<NiEvent> {
        let event = self.events.pop_front()?;
        if let NiEvent::Readable(id, stream) = event {
            if let Some(host) = self.hosts.get_mut(id) {
                host.channel.mark(stream, false);
            }
        }
        Some(event)
    }

    /// Takes the next unreliable message from a host. After it returns `None`, the next arrival causes an event again.
    pub fn take_unreliable(&mut self, id: HostId) -> Option<Loose> {
        let host = self.hosts.get_mut(id)?;
        let message = host.channel.take_unreliable();
        host.is_told_unreliable &= message.is_some();
        message
    }

    /// Whether [`Ni::poll_event`] has an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the time at which [`Ni::on_time`] must be called at the latest.
    #[inline]
    pub fn next_time(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes timers that nothing waits for. After this, [`Ni::next_time`] is `None` if nothing is in flight.
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

    /// Does everything that is due.
    pub fn on_time(&mut self, now: Time) {
        while let Some(&Reverse((at, index))) = self.timers.peek().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            let Some(host) = self.hosts.at(index).filter(|h| h.timer_at == Some(at)) else { continue };
            host.timer_at = None;
            if host.channel.next_timeout().is_some_and(|at| at <= now) {
                host.channel.on_timeout(now);
                if host.channel.lost().is_some() {
                    self.hosts.id(index).into_iter().for_each(|id| self.remember(now, id));
                }
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

    /// Like [`Ni::flush`], and acknowledges everything received. For use while the program computes, because then no
    /// data will soon carry the acknowledgements.
    pub fn flush_and_acknowledge(&mut self) {
        for at in 0..self.dirty.len() {
            if let Some(host) = self.hosts.at(self.dirty[at]) {
                host.channel.hurry_acks();
            }
        }
        self.flush();
    }

    /// Sends the records that wait, with what fits in their packets. Pure acknowledgements are left to [`Ni::flush`].
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

    /// Whether all records for hosts were sent.
    pub fn has_sent_all(&self) -> bool {
        self.dirty.is_empty() && self.hosts.all_sent()
    }

    /// Whether the network interfaces of all hosts have acknowledged everything.
    pub fn is_acknowledged(&self) -> bool {
        self.has_sent_all() && self.hosts.all_acknowledged()
    }

    /// Whether the network interface of a host has acknowledged everything. True if there is no such host.
    pub fn has_acknowledged(&self, id: HostId) -> bool {
        self.hosts.get(id).is_none_or(|host| host.has_all_come())
    }

    /// Returns the counter of polls until the interface must be polled. The poller counts it down and sets it after
    /// each poll. The interface sets it to zero when something is left to send.
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

    /// Returns the hosts, except those that are ending.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, HostKey)> + '_ {
        self.hosts.iter()
    }

    // ---- inside

    fn add(&mut self, host: Host<L::Memory>) -> HostId {
        self.incast.met();
        let id = self.hosts.add(host);
        // Remove the entry of the host that had this place before.
        self.dirty.retain(|&index| index != id.index);
        id
    }

    /// Returns the settings of a channel that may use any of these ways: it begins with a packet size that fits all of
    /// them, and may grow to the largest that one carries.
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
        self.gone.forget(way.to);
        match self.door.answer(now, &way.to.to_bytes(), bytes) {
            Answer::Reply(reply) => {
                self.refused += u64::from(!reply.invites());
                self.link.answer(way, reply.bytes());
            }
            Answer::Admit(caller) => self.admit(now, way, &caller),
            Answer::Drop => self.refuse(bytes),
        }
    }

    /// Counts a packet that is dropped, as a channel would. A packet without a channel may belong to one, if its id is
    /// damaged.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, bytes: &[u8]) {
        *if Packet::decode_as(bytes, Integrity::Header).is_ok() { &mut self.refused } else { &mut self.damaged } += 1;
    }

    /// Handles a packet from a host that we called by several addresses, while it is not known which one is right.
    #[cold]
    #[inline(never)]
    fn on_answer(&mut self, now: Time, index: u32, way: Way, bytes: &[u8]) {
        let Some((id, host)) = self.hosts.id(index).zip(self.hosts.at(index)) else { return };
        let mut others: Vec<Way> = std::iter::once(host.way).chain(host.others.iter().copied()).collect();
        let Some(place) = others.iter().position(|other| *other == way) else { return self.refuse(bytes) };
        others.remove(place);
        if let Some(reason) = host.channel.refusal(bytes) {
            // This address belongs, or belonged, to another host. One of the others may be right.
            host.refusal = Some(reason);
            host.has_called = true;
            host.channel.call_again(now);
            let preferred = others.remove(0);
            self.hosts.set_ways(id, preferred, others.into());
            return self.mark(index);
        }
        host.channel.on_packet(now, bytes);
        if !host.channel.is_unheard() {
            self.hosts.set_ways(id, way, Box::default());
        }
        self.mark(index);
        self.take_events(index);
    }

    fn admit(&mut self, now: Time, way: Way, caller: &Caller) {
        let key = HostKey { address: way.to, epoch: caller.epoch };
        let called = self.hosts.by_channel(caller.id);
        if called.and_then(|index| self.hosts.at(index)).is_some_and(|host| host.channel.made(caller)) {
            // We called ourselves: a second host of ours answers, unless this packet is a duplicate.
            if self.own.and_then(|id| self.hosts.get(id)).is_some_and(|host| host.channel.is_of(caller)) {
                self.refused += 1;
                return;
            }
            self.own = self.answer(now, key, way, caller);
            return;
        }
        let known = self.hosts.find_by(key, way.from);
        // A host that we call by the epoch of a program may call us with the epoch of its interface.
        if let Some(id) = known.or_else(|| self.hosts.find_called(key.address, way.from)) {
            let Some(host) = self.hosts.get_mut(id) else { return };
            if host.channel.is_of(caller) {
                // A duplicate of the call that opened this channel. Our answer is under way, or was lost and is
                // repeated.
                self.refused += 1;
                return;
            }
            if host.channel.give_way(caller) {
                self.hosts.set_ways(id, way, Box::default());
                self.mark(id.index);
                return self.take_events(id.index);
            }
            if !host.channel.is_open() {
                // We called each other at the same time, and the host must give way.
                return;
            }
            // Either the host has forgotten us and calls again, or this is an old call that arrived late. Ask it: if it
            // has forgotten us it says so, this channel ends, and its next call is admitted.
            host.channel.ask();
            self.refused += 1;
            return self.mark(id.index);
        }
        self.answer(now, key, way, caller);
    }

    /// Makes a channel for a caller, if there is a place for another stranger.
    fn answer(&mut self, now: Time, key: HostKey, way: Way, caller: &Caller) -> Option<HostId> {
        let origin = Origin::of(way.to);
        if rare::fires(Point::StrangerUnheard) || !self.make_place(now, origin) {
            self.refused += 1;
            return None;
        }
        let settings = self.settings_for(std::iter::once(&way));
        let (life, lot) = self.draw();
        let mut channel = Channel::answer_in(now, life, caller, settings, lot, settings.congestion.into());
        self.room.iter().for_each(|room| channel.share_room(room.clone()));
        let id = self.add(Host::new(key, way, channel));
        self.strangers.push_back(Stranger { id, since: now, origin, is_refused: false });
        self.mark(id.index);
        Some(id)
    }

    /// Ends a host. The owner of its session gets an event and closes it.
    fn end(&mut self, id: HostId, reason: Reason) {
        // The program has not yet seen what a stranger sent before it left. So the stranger keeps its place until the
        // program polls, or another stranger needs the place.
        let has_spoken = self.hosts.get_mut(id).is_some_and(|host| host.channel.has_readable());
        if !has_spoken && self.is_stranger(id) {
            return self.close(id, reason);
        }
        // A refusal by a wrong host is more informative than silence.
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

    /// Turns a channel's events into events of the interface.
    #[inline]
    fn take_events(&mut self, index: u32) {
        use weft_transport::Event;
        while let Some((id, host)) = self.hosts.entry(index) {
            let Some(event) = host.channel.poll_event() else { return };
            match event {
                Event::Open => {
                    let epoch = host.channel.theirs().epoch;
                    if epoch != host.key.epoch {
                        self.hosts.learn(id, epoch);
                    }
                    self.events.push_back(NiEvent::Open(id));
                }
                // Reported once: a peer can cause it with every packet, and while the program computes nobody takes
                // events.
                Event::Readable(stream) => {
                    if host.channel.mark(stream, true) == Some(false) {
                        self.events.push_back(NiEvent::Readable(id, stream));
                    }
                }
                Event::Unreliable => {
                    if !std::mem::replace(&mut host.is_told_unreliable, true) {
                        self.events.push_back(NiEvent::Unreliable(id));
                    }
                }
                // Blocked sessions look for room by themselves.
                Event::Room(_) => {}
                Event::Taken(stream) => self.events.push_back(NiEvent::Taken(id, stream)),
                Event::Refused(stream, reason) => self.events.push_back(NiEvent::Refused(id, stream, reason)),
                Event::Asks(stream) => self.events.push_back(NiEvent::Asks(id, stream)),
                Event::Rested(stream, owner) => self.events.push_back(NiEvent::Rested(id, stream, owner)),
                Event::Stays(stream) => self.events.push_back(NiEvent::Stays(id, stream)),
                Event::Ended(reason) | Event::Lost(reason) => self.end(id, reason),
            }
        }
    }

    #[inline]
    fn mark(&mut self, index: u32) {
        if let Some(host) = self.hosts.at(index).filter(|h| !h.is_marked) {
            host.is_marked = true;
            self.dirty.push(index);
            // Relaxed: the value only decides when to poll.
            self.turns.store(0, Ordering::Relaxed);
        }
    }

    /// Leaves records unsent, so that they share packets with later ones. If nothing was sent to the host for long,
    /// sends them at once.
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
        // The lists are swapped, so that a host for which the link has no room can be marked again meanwhile.
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

    /// Sends a host what waits for it, as far as the link takes it, in at most `runs` runs.
    #[inline]
    fn flush_host(&mut self, index: u32, now: Time, runs: u32) {
        let Ni { hosts, burst, link, incast, .. } = self;
        let Some(host) = hosts.at(index) else { return };
        if !host.others.is_empty() {
            return self.flush_call(index, now);
        }
        host.channel.grant(incast.share(now, || link.room()));
        match burst.send(&mut host.channel, host.way, now, runs, link) {
            // Records that flow control or congestion control holds back stay until the channel asks.
            Progress::All => host.unsent = usize::from(host.channel.has_waiting()),
            Progress::Some(bytes) => {
                host.unsent = host.unsent.saturating_sub(bytes).max(1);
                self.has_unsent_records = true;
                self.mark(index);
            }
            Progress::LinkFull => return self.mark(index),
        }
        self.settle_host(index, now);
    }

    /// Calls a host that has several addresses: first at the preferred one, from the second time on at all of them. A
    /// call that the link does not take is lost, because calls are repeated.
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

    /// Does what follows a send: removes a host that has finished closing, or sets its timer.
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

    /// Sets a timer. A peer can cause one with each packet, and stale timers stay until they expire, which may be far
    /// ahead. So stale timers are removed when there are many.
    #[inline]
    fn set_timer(&mut self, at: Time, index: u32) {
        self.timers.push(Reverse((at, index)));
        if self.timers.len() > TIMERS_LEAST + 2 * self.hosts.places() || rare::fires(Point::TimersSorted) {
            self.timers.clear();
            self.timers.extend(self.hosts.timers().map(Reverse));
        }
    }
}
