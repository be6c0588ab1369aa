//! The sessions of a bundle with other hosts: how they begin and end. Each session belongs to two endpoints, and uses
//! one stream of the host's channel.

use super::{Handle, HostId, HostKey, NiEvent, StreamRx, StreamTx};
use crate::{Admitted, Bundle, Call, PeerId, Report, SessionId, Sink};
use std::collections::{BTreeMap, VecDeque};
use weft_wire::frame::StreamId;
use weft_wire::path::{Bells, Rx, Tx};
use weft_wire::{BundleId, EndpointId, Epoch, Name, Reason, Uid};

/// The two ends of a session: our endpoint, and one of a host, with 32 bits of the epoch of its program. Code that finds a
/// session compares the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair {
    host: HostId,
    ours: EndpointId,
    theirs: EndpointId,
    folded_epoch: u32,
}

impl Pair {
    fn new(host: HostId, ours: EndpointId, theirs: (Epoch, EndpointId)) -> Pair {
        let (Epoch(epoch), theirs) = theirs;
        Pair { host, ours, theirs, folded_epoch: (epoch ^ (epoch >> 32)) as u32 }
    }

    /// The key that finds its session. Another pair may have the same key; then it hides the first one, and a further
    /// session is made.
    fn key(&self) -> (u32, u32) {
        // Two odd factors, so that small endpoint numbers do not collide.
        let mixed = self.ours.0.wrapping_mul(0x9e37_79b1) ^ self.theirs.0.wrapping_mul(0x85eb_ca6b) ^ self.folded_epoch;
        (self.host.index, mixed)
    }
}

/// A session and its stream.
#[derive(Debug)]
struct Entry {
    session: SessionId,
    stream: StreamId,
    pair: Pair,
    /// We opened it, so we propose to close it.
    is_ours: bool,
    /// The host knows of it. Until then it may be refused because of the first flow's key, so other flows do not use it.
    is_known: bool,
    /// It is being closed at rest, and no new flow uses it.
    rests: bool,
}

/// Connects a network interface to a bundle.
#[derive(Debug)]
pub struct HostSessions<H> {
    ni: H,
    /// Indexed by session. The streams carry these indexes.
    entries: Vec<Option<Entry>>,
    /// The last session of each pair of endpoints, by the pair's key.
    pairs: BTreeMap<(u32, u32), u32>,
    /// Our calls that wait for hosts to answer.
    calls: BTreeMap<HostId, Vec<Call>>,
    /// Hosts that have sent unreliable messages which were not taken yet.
    unreliable: VecDeque<HostId>,
}

impl<H: Handle> HostSessions<H> {
    /// Makes an object without sessions.
    pub fn new(ni: H) -> HostSessions<H> {
        HostSessions {
            ni,
            entries: Vec::new(),
            pairs: BTreeMap::new(),
            calls: BTreeMap::new(),
            unreliable: VecDeque::new(),
        }
    }

    /// The network interface.
    #[inline(always)]
    pub fn ni(&self) -> &H {
        &self.ni
    }

    /// Calls the host of a name.
    pub fn call<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, call: Call)
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
    {
        if self.refuse_at_once(core, &call) {
            return;
        }
        let Name { address, epoch, .. } = call.name;
        let host = self.ni.borrow_mut().call(HostKey { address, epoch });
        let is_open = self.ni.borrow_mut().is_open(host);
        match is_open {
            true => self.connect(core, host, call),
            false => self.calls.entry(host).or_default().push(call),
        }
    }

    /// Handles the events of the network interface. Returns true if records wait; then poll the bundle.
    #[inline]
    pub fn take_events<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, sink: &mut S) -> bool
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
        S: Sink<T>,
    {
        self.close_rests(core);
        let mut is_readable = false;
        loop {
            let Some(event) = self.ni.borrow_mut().poll_event() else { return is_readable };
            match event {
                NiEvent::Readable(host, stream) => {
                    is_readable = true;
                    let index = self.ni.borrow_mut().session(host, stream);
                    match index.and_then(|index| self.entry(index)) {
                        Some(entry) => {
                            core.ring(entry.session);
                            if !std::mem::replace(&mut entry.is_known, true) {
                                self.ni.borrow_mut().accept(host);
                            }
                        }
                        None => self.admit(core, host, stream),
                    }
                }
                NiEvent::Unreliable(host) => {
                    is_readable = true;
                    self.unreliable.push_back(host);
                }
                other => self.take_rare_event(core, other, sink),
            }
        }
    }

    #[cold]
    fn take_rare_event<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, event: NiEvent, sink: &mut S)
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
        S: Sink<T>,
    {
        match event {
            NiEvent::Open(host) => {
                for call in self.calls.remove(&host).unwrap_or_default() {
                    self.connect(core, host, call);
                }
                self.lead_others_to(core, host);
            }
            NiEvent::Refused(host, stream, reason) => {
                if let Some(session) = self.session_of(host, stream) {
                    self.forget(session);
                    // This asks for the records that the host has not taken, and so closes the stream.
                    core.lose(session, reason, sink);
                }
                self.ni.borrow_mut().close_stream(host, stream, reason);
                self.close_strange(host, reason);
            }
            NiEvent::Asks(host, stream) => {
                let session = self.session_of(host, stream);
                let agrees = session.is_some_and(|session| core.state().is_at_rest(session));
                if self.ni.borrow_mut().answer_rest(host, stream, agrees) {
                    session.into_iter().for_each(|session| {
                        self.forget(session);
                        core.forget(session);
                    });
                }
            }
            NiEvent::Rested(host, stream, index) => {
                self.ni.borrow_mut().accept(host);
                // Its session may have been cut off meanwhile.
                let entry = self.entry(index).filter(|entry| (entry.pair.host, entry.stream) == (host, stream));
                let Some(session) = entry.map(|entry| entry.session) else { return };
                self.forget(session);
                if !core.forget(session) {
                    // No flow is opened on a stream that is being closed.
                    core.lose(session, Reason::PeerLost, sink);
                }
            }
            NiEvent::Stays(host, stream) => {
                let index = self.ni.borrow_mut().session(host, stream);
                index.and_then(|index| self.entry(index)).into_iter().for_each(|entry| entry.rests = false);
            }
            NiEvent::Ended(host, reason) => self.end(core, host, reason, sink),
            NiEvent::Readable(..) | NiEvent::Unreliable(_) | NiEvent::Taken(..) => {}
        }
    }

    /// Connects calls to other programs to a host that has answered, if its interface serves them too: of several
    /// simultaneous calls it answers only one.
    #[cold]
    fn lead_others_to<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, host: HostId)
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
    {
        let leads = |call: &Call, ni: &H| {
            let Name { address, epoch, .. } = call.name;
            ni.borrow_mut().find(HostKey { address, epoch }) == Some(host)
        };
        let is_same = |calls: &Vec<Call>| calls.first().is_some_and(|call| leads(call, &self.ni));
        let others: Vec<HostId> = self.calls.iter().filter(|(_, calls)| is_same(calls)).map(|(id, _)| *id).collect();
        for other in others {
            for call in self.calls.remove(&other).unwrap_or_default() {
                self.connect(core, host, call);
            }
            self.ni.borrow_mut().close(other, Reason::Closed);
        }
    }

    /// Delivers at most `budget` unreliable messages. Returns their number. Call this after a poll, which takes the
    /// records that open their flows.
    #[inline]
    pub fn take_unreliable<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, budget: u32, sink: &mut S) -> u32
    where
        R: Rx,
        T: Tx,
        B: Bells,
        S: Sink<T>,
    {
        if self.unreliable.is_empty() {
            return 0;
        }
        self.hand_over_unreliable(core, budget, sink)
    }

    /// Whether more unreliable messages wait than the last budget allowed.
    pub fn has_unreliable(&self) -> bool {
        !self.unreliable.is_empty()
    }

    #[cold]
    fn hand_over_unreliable<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, budget: u32, sink: &mut S) -> u32
    where
        R: Rx,
        T: Tx,
        B: Bells,
        S: Sink<T>,
    {
        let mut taken = 0;
        while taken < budget {
            let Some(&host) = self.unreliable.front() else { break };
            let Some(message) = self.ni.borrow_mut().take_unreliable(host) else {
                self.unreliable.pop_front();
                continue;
            };
            // Without a session no flow is open, so the message is dropped.
            if let Some(session) = self.session_of(host, message.stream) {
                core.take_unreliable(session, message.record(), sink);
            }
            taken += 1;
        }
        taken
    }

    /// Closes the stream of a session that was cut off here, and tells the host why; the channel too if it has no other. Call
    /// before [`Bundle::lose`].
    pub fn close(&mut self, session: SessionId, reason: Reason) {
        let Some(Entry { stream, pair, .. }) = self.forget(session) else { return };
        self.ni.borrow_mut().close_stream(pair.host, stream, reason);
        self.close_unused(pair.host, reason);
    }

    /// Adds the state of the sessions' channels to a report.
    #[cold]
    pub fn report_into(&self, report: &mut Report) {
        let mut ni = self.ni.borrow_mut();
        report.packets_damaged = ni.damaged();
        report.packets_refused = ni.refused();
        report.counters.unreliable_dropped += ni.unreliable_dropped();
        for peer in &mut report.sessions {
            let entry = self.entries.get(peer.id.index as usize).and_then(Option::as_ref);
            let Some(Entry { stream, pair, .. }) = entry.filter(|entry| entry.session == peer.id) else { continue };
            peer.host = ni.report(pair.host);
            let waits = ni.waits_for_peer(pair.host, *stream);
            peer.host.iter_mut().for_each(|report| report.waits_for_peer = waits);
        }
    }

    /// Probes the hosts from which something is expected, so that their deaths are noticed, and closes streams at rest.
    /// Call this from time to time.
    #[cold]
    pub fn keep_watch<R: Rx, T: Tx, B: Bells>(&mut self, core: &Bundle<R, T, B>) {
        let mut ni = self.ni.borrow_mut();
        for entry in self.entries.iter_mut().flatten() {
            if core.state().awaits(entry.session) {
                ni.want_watch(entry.pair.host);
            }
            if entry.is_ours && !entry.rests && core.state().is_at_rest(entry.session) {
                entry.rests = true;
                ni.wish_rest(entry.pair.host, entry.stream);
            }
        }
        ni.keep_watch();
    }

    /// Tells all hosts that this bundle is gone. Returns the number of messages that may be lost: those not taken by
    /// hosts that have not acknowledged everything.
    pub fn say_goodbye(&mut self) -> u64 {
        let mut ni = self.ni.borrow_mut();
        let hosts: Vec<(HostId, bool)> = ni.hosts().map(|(id, _)| (id, ni.has_acknowledged(id))).collect();
        let mut left = 0;
        for (id, has_all_come) in hosts {
            ni.close(id, Reason::PeerLost);
            if !has_all_come {
                left += ni.take_all_abandoned(id).iter().filter(|record| record.head.kind.is_message()).count() as u64;
            }
        }
        ni.flush();
        left
    }

    /// Closes the streams whose last flow has closed. [`HostSessions::take_events`] does it too. Call this before the
    /// bundle sleeps, because polls may have closed more.
    #[inline]
    pub fn close_rests<R: Rx, T: Tx, B: Bells>(&mut self, core: &mut Bundle<R, T, B>) {
        if core.state().has_rests() {
            self.wish_rests(core);
        }
    }

    #[cold]
    fn wish_rests<R: Rx, T: Tx, B: Bells>(&mut self, core: &mut Bundle<R, T, B>) {
        for session in core.state_mut().take_rests() {
            self.wish_rest(core, session);
        }
    }

    fn wish_rest<R: Rx, T: Tx, B: Bells>(&mut self, core: &Bundle<R, T, B>, session: SessionId) {
        let Some(entry) = self.entry(session.index).filter(|entry| entry.session == session) else { return };
        if entry.is_ours && !entry.rests && core.state().is_at_rest(session) {
            entry.rests = true;
            let (host, stream) = (entry.pair.host, entry.stream);
            self.ni.borrow_mut().wish_rest(host, stream);
        }
    }

    /// Makes a session for a stream that a host opened, if the endpoint of its first flow admits it. Otherwise refuses
    /// the stream.
    #[cold]
    fn admit<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, host: HostId, stream: StreamId)
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
    {
        let Some(first) = self.ni.borrow_mut().first_open(host, stream) else { return };
        let admitted = first.and_then(|open| Ok((core.state().admits(&open)?, open)));
        let reason = match admitted {
            Err(reason) => reason,
            Ok((admitted, open)) => {
                let mut ni = self.ni.borrow_mut();
                let has_room = !ni.is_stranger(host) || ni.has_room_for_host();
                let is_let_in = admitted != Admitted::WithoutKey || ni.admit_guest(host, stream);
                drop(ni);
                let epoch = open.source_epoch.or_else(|| self.ni.borrow_mut().key(host).map(|key| key.epoch));
                let epoch = epoch.unwrap_or(Epoch(0));
                let pair = Pair::new(host, open.destination, (epoch, open.source));
                match (has_room && is_let_in).then(|| self.give_session(core, stream, (pair, epoch), false)).flatten() {
                    Some(session) => return core.ring(session),
                    None => Reason::NoRoom,
                }
            }
        };
        self.ni.borrow_mut().refuse_stream(host, stream, reason);
    }

    /// Connects a call to the stream of its two endpoints. Opens one if there is none that the host knows of.
    #[cold]
    fn connect<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, host: HostId, call: Call)
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
    {
        // A call of a freed endpoint is dropped.
        let Ok(ours) = core.state().name(call.endpoint).map(|name| name.endpoint) else { return };
        let epoch = call.name.epoch;
        let pair = Pair::new(host, ours, (epoch, call.name.endpoint));
        if let Some(session) = self.known(core, pair, epoch) {
            return core.state_mut().connected(call, session);
        }
        let stream = self.ni.borrow_mut().open_stream(host);
        let session = stream.and_then(|stream| self.give_session(core, stream, (pair, epoch), true));
        match (stream, session) {
            (_, Some(session)) => {
                core.state_mut().connected(call, session);
                // The call may no longer be wanted.
                self.wish_rest(core, session);
            }
            (stream, None) => {
                stream.into_iter().for_each(|stream| self.ni.borrow_mut().wish_rest(host, stream));
                core.state_mut().refused(call, Reason::NoRoom);
                self.close_strange(host, Reason::NoRoom);
            }
        }
    }

    /// The session of two endpoints that another flow may use.
    fn known<R, T, B>(&self, core: &Bundle<R, T, B>, pair: Pair, epoch: Epoch) -> Option<SessionId>
    where
        R: Rx,
        T: Tx,
        B: Bells,
    {
        let index = *self.pairs.get(&pair.key())?;
        let entry = self.entries.get(index as usize)?.as_ref().filter(|entry| entry.pair == pair && !entry.rests)?;
        if core.state().peer_epoch(entry.session) != Some(epoch) {
            return None;
        }
        (entry.is_known || self.ni.borrow_mut().is_confirmed(pair.host, entry.stream)).then_some(entry.session)
    }

    /// Makes the session of a stream. `None` if there is no room.
    fn give_session<R, T, B>(
        &mut self,
        core: &mut Bundle<R, T, B>,
        stream: StreamId,
        (pair, epoch): (Pair, Epoch),
        is_ours: bool,
    ) -> Option<SessionId>
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
    {
        let host = pair.host;
        let HostKey { address, .. } = self.ni.borrow_mut().key(host)?;
        let index = core.reserve()?;
        // The peer's user is unknown here: the peer states it for each flow.
        let peer = PeerId { epoch, bundle: BundleId(0), uid: Uid::UNKNOWN, address };
        let tx = StreamTx::new(self.ni.clone(), host, stream);
        let rx = StreamRx::new(self.ni.clone(), host, stream);
        let session = core.attach(index, peer, tx.into(), rx.into());
        let mut ni = self.ni.borrow_mut();
        ni.join(host);
        ni.set_session(host, stream, index);
        if !is_ours {
            ni.accept(host);
        }
        let at = index as usize;
        if self.entries.len() <= at {
            if self.entries.capacity() <= at {
                // Grow by an eighth, like the sessions themselves.
                self.entries.reserve_exact(at + at / 8 + 1 - self.entries.len());
            }
            self.entries.resize_with(at + 1, || None);
        }
        self.entries[at] = Some(Entry { session, stream, pair, is_ours, is_known: !is_ours, rests: false });
        self.pairs.insert(pair.key(), index);
        Some(session)
    }

    fn end<R: Rx, T: Tx, B: Bells, S: Sink<T>>(
        &mut self,
        core: &mut Bundle<R, T, B>,
        host: HostId,
        reason: Reason,
        sink: &mut S,
    ) {
        let of_host = self.entries.iter().flatten().filter(|entry| entry.pair.host == host);
        let sessions: Vec<SessionId> = of_host.map(|entry| entry.session).collect();
        for session in sessions {
            self.forget(session);
            core.lose(session, reason, sink);
        }
        self.ni.borrow_mut().close(host, reason);
        for call in self.calls.remove(&host).unwrap_or_default() {
            core.state_mut().refused(call, reason);
        }
    }

    /// Forgets a session whose stream was closed.
    fn forget(&mut self, session: SessionId) -> Option<Entry> {
        let place = self.entries.get_mut(session.index as usize)?;
        let entry = place.take_if(|entry| entry.session == session)?;
        let key = entry.pair.key();
        if self.pairs.get(&key) == Some(&session.index) {
            self.pairs.remove(&key);
        }
        Some(entry)
    }

    #[inline]
    fn entry(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    fn session_of(&mut self, host: HostId, stream: StreamId) -> Option<SessionId> {
        let index = self.ni.borrow_mut().session(host, stream)?;
        self.entry(index).map(|entry| entry.session)
    }

    /// Closes the channel to a host that never had a session with us, if it is unused: it would occupy a stranger's
    /// place there.
    fn close_strange(&mut self, host: HostId, reason: Reason) {
        let is_accepted = self.ni.borrow_mut().is_accepted(host);
        if !is_accepted {
            self.close_unused(host, reason);
        }
    }

    /// Closes the channel to a host if it is unused.
    fn close_unused(&mut self, host: HostId, reason: Reason) {
        let mut ni = self.ni.borrow_mut();
        if !self.calls.contains_key(&host) && !ni.has_streams(host) {
            ni.close(host, reason);
        }
    }
}
