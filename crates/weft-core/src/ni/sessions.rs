//! The sessions of a bundle with other hosts: how they begin and end.

use super::{Handle, HostId, HostKey, NiEvent, StreamRx, StreamTx};
use crate::{Admitted, Bundle, Call, PeerId, Report, SessionId, Sink};
use std::collections::VecDeque;
use weft_wire::path::{Bells, Rx, Tx};
use weft_wire::{BundleId, Name, Reason, Uid};

/// A host, with its session or the calls that wait for one.
#[derive(Debug)]
struct Entry {
    host: HostId,
    session: Option<SessionId>,
    /// Our calls that wait for the host to answer.
    calls: Vec<Call>,
}

/// Connects a network interface to a bundle.
#[derive(Debug)]
pub struct HostSessions<H> {
    ni: H,
    /// Indexed by host.
    entries: Vec<Option<Entry>>,
    /// Hosts that have sent unreliable messages which were not taken yet.
    unreliable: VecDeque<HostId>,
}

impl<H: Handle> HostSessions<H> {
    /// Makes an object without sessions.
    pub fn new(ni: H) -> HostSessions<H> {
        HostSessions { ni, entries: Vec::new(), unreliable: VecDeque::new() }
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
        let entry = self.entry(host);
        match entry.session {
            Some(session) => core.state_mut().connected(call, session),
            None => entry.calls.push(call),
        }
        if self.ni.borrow_mut().is_open(host) {
            self.give_session(core, host);
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
        let mut is_readable = false;
        loop {
            let Some(event) = self.ni.borrow_mut().poll_event() else { return is_readable };
            match event {
                NiEvent::Readable(host) => {
                    is_readable = true;
                    match self.session_of(host) {
                        Some(session) => core.ring(session),
                        None => self.admit(core, host),
                    }
                }
                NiEvent::Open(host) => self.give_session(core, host),
                NiEvent::Unreliable(host) => {
                    is_readable = true;
                    self.unreliable.push_back(host);
                }
                NiEvent::Ended(host, reason) => self.end(core, host, reason, sink),
            }
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
            if let Some(session) = self.session_of(host) {
                core.take_unreliable(session, message.record(), sink);
            }
            taken += 1;
        }
        taken
    }

    /// Closes the channel of a session that was cut off here, and tells the host why. Call before [`Bundle::lose`].
    pub fn close(&mut self, session: SessionId, reason: Reason) {
        let found = self.entries.iter().flatten().find(|e| e.session == Some(session)).map(|e| e.host);
        if let Some(host) = found {
            self.ni.borrow_mut().close(host, reason);
            self.entries[host.index as usize] = None;
        }
    }

    /// Adds the state of the sessions' channels to a report.
    #[cold]
    pub fn report_into(&self, report: &mut Report) {
        let mut ni = self.ni.borrow_mut();
        report.packets_damaged = ni.damaged();
        report.packets_refused = ni.refused();
        report.counters.unreliable_dropped += ni.unreliable_dropped();
        for entry in self.entries.iter().flatten() {
            if let Some(peer) = entry.session.and_then(|id| report.sessions.iter_mut().find(|s| s.id == id)) {
                peer.host = ni.report(entry.host);
            }
        }
    }

    /// Has the hosts probed from which something is expected, so that their deaths are noticed. Call this from time to
    /// time.
    #[cold]
    pub fn keep_watch<R: Rx, T: Tx, B: Bells>(&mut self, core: &Bundle<R, T, B>) {
        let mut ni = self.ni.borrow_mut();
        for entry in self.entries.iter().flatten() {
            if let Some(session) = entry.session {
                ni.keep_watch(entry.host, core.state().awaits(session));
            }
        }
    }

    /// Tells all hosts that this bundle is gone. Returns the number of messages that may be lost: those that were not taken, to
    /// hosts that have not acknowledged everything.
    pub fn say_goodbye(&mut self) -> u64 {
        let mut ni = self.ni.borrow_mut();
        let hosts: Vec<(HostId, bool)> = ni.hosts().map(|(id, _)| (id, ni.has_acknowledged(id))).collect();
        let mut left = 0;
        for (id, has_all_come) in hosts {
            ni.close(id, Reason::PeerLost);
            if !has_all_come {
                left += ni.take_abandoned(id).iter().filter(|record| record.head.kind.is_message()).count() as u64;
            }
        }
        ni.flush();
        left
    }

    /// Gives a session to a host that called us, if the endpoint that it opens first admits it.
    #[cold]
    fn admit<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, host: HostId)
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
    {
        let Some(first) = self.ni.borrow_mut().first_open(host) else { return };
        match first.and_then(|open| core.state().admits(&open)) {
            Ok(Admitted::WithoutKey) if !self.ni.borrow_mut().admit_guest(host) => {
                self.ni.borrow_mut().close(host, Reason::NoRoom);
            }
            Ok(_) => self.give_session(core, host),
            Err(reason) => self.ni.borrow_mut().close(host, reason),
        }
    }

    /// Makes the session over the channel to a host, for the calls that wait for it too.
    fn give_session<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, host: HostId)
    where
        R: Rx + From<StreamRx<H>>,
        T: Tx + From<StreamTx<H>>,
        B: Bells,
    {
        if self.session_of(host).is_some() {
            return;
        }
        let Some(HostKey { address, epoch }) = self.ni.borrow_mut().key(host) else { return };
        let Some(index) = core.reserve() else {
            self.ni.borrow_mut().close(host, Reason::NoRoom);
            for call in self.take_entry(host) {
                core.state_mut().refused(call, Reason::NoRoom);
            }
            return;
        };
        // The peer's user is unknown here: the peer states it for each flow.
        let peer = PeerId { epoch, bundle: BundleId(0), uid: Uid::UNKNOWN, address };
        let tx = StreamTx::new(self.ni.clone(), host);
        let rx = StreamRx::new(self.ni.clone(), host);
        let session = core.attach(index, peer, tx.into(), rx.into());
        self.ni.borrow_mut().join(host);
        let entry = self.entry(host);
        entry.session = Some(session);
        for call in std::mem::take(&mut entry.calls) {
            core.state_mut().connected(call, session);
        }
        core.ring(session);
    }

    fn end<R: Rx, T: Tx, B: Bells, S: Sink<T>>(
        &mut self,
        core: &mut Bundle<R, T, B>,
        host: HostId,
        reason: Reason,
        sink: &mut S,
    ) {
        if let Some(session) = self.session_of(host) {
            core.lose(session, reason, sink);
        }
        self.ni.borrow_mut().close(host, reason);
        for call in self.take_entry(host) {
            core.state_mut().refused(call, reason);
        }
    }

    /// Removes a host. Returns the calls that waited for it.
    fn take_entry(&mut self, host: HostId) -> Vec<Call> {
        let place = self.entries.get_mut(host.index as usize);
        place.and_then(|p| p.take_if(|e| e.host == host)).map(|e| e.calls).unwrap_or_default()
    }

    #[inline]
    fn session_of(&self, host: HostId) -> Option<SessionId> {
        self.entries.get(host.index as usize)?.as_ref().filter(|e| e.host == host)?.session
    }

    fn entry(&mut self, host: HostId) -> &mut Entry {
        let index = host.index as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        let place = &mut self.entries[index];
        if place.as_ref().is_none_or(|e| e.host != host) {
            *place = None;
        }
        place.get_or_insert(Entry { host, session: None, calls: Vec::new() })
    }
}
