//! The sessions of a bundle over lines of weftd: how they begin and end.

use super::{PortEvent, PortHandle, PortRx, PortTx};
use crate::report::Report;
use crate::{Admission, Bundle, Call, PeerId, SessionId, Sink};
use std::collections::{BTreeMap, VecDeque};
use weft_wire::attach::{Answer, Request};
use weft_wire::descriptor::LineId;
use weft_wire::path::{Bells, Rx, Tx};
use weft_wire::segment::{Part, Sizes, PAGE};
use weft_wire::{BundleId, EndpointId, Epoch, Key, Name, Reason, Uid};

/// The most rounds in a turn in which records of different lines are read.
const ROUNDS: u32 = 64;

/// After this many turns without an event, the daemon is told what was read.
const QUIET_TURNS: u32 = 256;

/// The bundle number of a peer that is reached over a line. Its real number is not known.
const BY_LINE: BundleId = BundleId(u32::MAX);

/// An endpoint here and a peer there.
type Pair = (u32, Epoch, EndpointId);

/// What a request was for.
#[derive(Debug)]
enum Asked {
    Open(Call, u32),
    Allocate(EndpointId, Sizes),
    Other,
}

/// A line with its session.
#[derive(Debug)]
struct Entry {
    session: Option<SessionId>,
    pair: Pair,
    /// The peer knows of it. Until then it may be refused because of the first flow's key, so other flows do not use it.
    is_known: bool,
}

/// Whether an endpoint was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocated {
    /// The daemon has not answered.
    NotYet,
    /// The endpoint was made.
    Yes,
    /// The endpoint was refused.
    No(Reason),
}

/// Connects a port to a bundle.
#[derive(Debug)]
pub struct PortSessions<H> {
    port: H,
    user: Uid,
    /// The parts of endpoints.
    parts: BTreeMap<EndpointId, u32>,
    entries: BTreeMap<LineId, Entry>,
    lines: BTreeMap<Pair, LineId>,
    asked: BTreeMap<u16, Asked>,
    /// Calls and changes that wait until there is room for a request.
    calls: VecDeque<Call>,
    changes: VecDeque<Request>,
    /// Parts of freed endpoints, until the daemon has taken everything that they sent.
    freed: Vec<u32>,
    /// The endpoint that was made last.
    allocated: Allocated,
    quiet: u32,
    is_lost: bool,
}

impl<H: PortHandle> PortSessions<H> {
    /// An object without endpoints. According to the daemon the program belongs to `user`.
    pub fn new(port: H, user: Uid) -> PortSessions<H> {
        PortSessions {
            port,
            user,
            parts: BTreeMap::new(),
            entries: BTreeMap::new(),
            lines: BTreeMap::new(),
            asked: BTreeMap::new(),
            calls: VecDeque::new(),
            changes: VecDeque::new(),
            freed: Vec::new(),
            allocated: Allocated::NotYet,
            quiet: 0,
            is_lost: false,
        }
    }

    /// The port.
    #[inline(always)]
    pub fn port(&self) -> &H {
        &self.port
    }

    /// Asks for an endpoint, one at a time. False if there is no room for the request now. [`PortSessions::allocated`]
    /// returns the outcome, once [`PortSessions::look`] has taken the answer.
    pub fn allocate(&mut self, endpoint: EndpointId, key: Key, sizes: Sizes) -> bool {
        let request = Request::Allocate { endpoint, key, admission: Admission::default().code(), sizes };
        let Some(slot) = self.port.borrow_mut().ask_and_wait(&request) else { return false };
        self.asked.insert(slot, Asked::Allocate(endpoint, sizes));
        self.allocated = Allocated::NotYet;
        true
    }

    /// The outcome of the last request for an endpoint.
    pub fn allocated(&self) -> Allocated {
        self.allocated
    }

    /// Looks for the answer to the last request for an endpoint, and leaves everything else for later.
    pub fn look_for_endpoint(&mut self) -> Allocated {
        let mut port = self.port.borrow_mut();
        port.look();
        let mut others = VecDeque::new();
        while let Some(event) = port.poll_event() {
            match event {
                PortEvent::Answered(slot, answer) if matches!(self.asked.get(&slot), Some(Asked::Allocate(..))) => {
                    let Some(Asked::Allocate(endpoint, sizes)) = self.asked.remove(&slot) else { continue };
                    port.end_request(slot);
                    self.allocated = match answer {
                        Answer::Part { part, page } => {
                            self.parts.insert(endpoint, part);
                            port.add_part(part, Part { at: page as usize * PAGE, sizes });
                            Allocated::Yes
                        }
                        Answer::Refused(reason) => Allocated::No(reason),
                        _ => Allocated::No(Reason::Violation),
                    };
                }
                other => others.push_back(other),
            }
        }
        port.put_back(others);
        self.allocated
    }

    /// Asks for an endpoint that an earlier daemon had. The request goes after earlier ones.
    pub fn restore(&mut self, endpoint: EndpointId, key: Key, admission: Admission, sizes: Sizes) {
        self.change(Request::Allocate { endpoint, key, admission: admission.code(), sizes });
    }

    /// An endpoint's key has changed.
    pub fn set_key(&mut self, endpoint: EndpointId, key: Key) {
        if let Some(&part) = self.parts.get(&endpoint) {
            self.change(Request::SetKey { part, key });
        }
    }

    /// An endpoint's admission has changed.
    pub fn set_admission(&mut self, endpoint: EndpointId, admission: Admission) {
        if let Some(&part) = self.parts.get(&endpoint) {
            self.change(Request::SetAdmission { part, admission: admission.code() });
        }
    }

    /// Frees an endpoint. Call it once the core has sent everything for it. The daemon is told once it has taken all
    /// that was sent and refused none of it.
    pub fn free(&mut self, endpoint: EndpointId) {
        if let Some(part) = self.parts.remove(&endpoint).filter(|_| !self.is_lost) {
            self.freed.push(part);
        }
    }

    /// Calls a peer for an endpoint here.
    pub fn call<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, call: Call)
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
    {
        let part = core.state().name(call.endpoint).ok().and_then(|name| self.parts.get(&name.endpoint).copied());
        let Some(part) = part.filter(|_| !self.is_lost) else {
            return core.state_mut().refused(call, Reason::NobodyThere);
        };
        let pair = (part, call.name.epoch, call.name.endpoint);
        let known = self.lines.get(&pair).and_then(|line| self.entries.get(line)).filter(|entry| entry.is_known);
        if let Some(session) = known.and_then(|entry| entry.session) {
            return core.state_mut().connected(call, session);
        }
        let asked = self.port.borrow_mut().ask(&Request::Open { part, to: call.name });
        match asked {
            Some(slot) => _ = self.asked.insert(slot, Asked::Open(call, part)),
            None => self.calls.push_back(call),
        }
    }

    /// Takes what arrived, and passes records to the bundle. Returns how many messages were taken.
    #[inline]
    pub fn look<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, budget: u32, sink: &mut S) -> u32
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
        S: Sink<T>,
    {
        let mut work = 0;
        for _ in 0..ROUNDS {
            self.port.borrow_mut().look();
            if !self.take_events(core, sink) {
                break;
            }
            work += core.poll(budget, sink);
            if work >= budget {
                break;
            }
        }
        if !self.calls.is_empty() || !self.changes.is_empty() {
            self.ask_again(core);
        }
        if !self.freed.is_empty() {
            self.end_freed(core, sink);
        }
        match work {
            0 => {
                self.quiet = self.quiet.saturating_add(1);
                if self.quiet == QUIET_TURNS {
                    self.port.borrow_mut().tell_all();
                }
            }
            _ => self.quiet = 0,
        }
        work
    }

    /// Tells the daemon of everything that was read. Call it before the bundle sleeps.
    pub fn lie_down(&mut self) {
        self.port.borrow_mut().tell_all();
    }

    /// Whether there is work that no bell reports.
    pub fn has_unfinished(&self) -> bool {
        if self.is_lost {
            return false;
        }
        let port = self.port.borrow_mut();
        !self.calls.is_empty()
            || !self.changes.is_empty()
            || port.has_unfinished()
            || self.freed.iter().any(|part| !port.has_taken_all(*part))
    }

    /// Closes the line of a session that was cut off here. Call before [`Bundle::lose`].
    pub fn close(&mut self, session: SessionId, reason: Reason) {
        let found = self.entries.iter().find(|(_, entry)| entry.session == Some(session)).map(|(line, _)| *line);
        if let Some(line) = found {
            self.port.borrow_mut().leave(line, reason);
            self.forget(line);
        }
    }

    /// The daemon is gone: takes what it has delivered, and ends all sessions.
    pub fn lose_all<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, sink: &mut S)
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
        S: Sink<T>,
    {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        self.look(core, u32::MAX, sink);
        self.port.borrow_mut().daemon_ended();
        for (_, entry) in std::mem::take(&mut self.entries) {
            if let Some(session) = entry.session {
                core.lose(session, Reason::PeerLost, sink);
            }
        }
        self.lines.clear();
        let calls = std::mem::take(&mut self.calls);
        let asked = std::mem::take(&mut self.asked).into_values();
        let calls = calls.into_iter().chain(asked.filter_map(|asked| match asked {
            Asked::Open(call, _) => Some(call),
            _ => None,
        }));
        for call in calls {
            core.state_mut().refused(call, Reason::NobodyThere);
        }
        self.changes.clear();
        self.freed.clear();
        self.allocated = Allocated::No(Reason::NobodyThere);
    }

    /// Marks the sessions of lines in a report.
    #[cold]
    pub fn report_into(&self, report: &mut Report) {
        for entry in self.entries.values() {
            let its = report.sessions.iter_mut().find(|session| Some(session.id) == entry.session);
            its.into_iter().for_each(|session| session.is_by_daemon = true);
        }
    }

    /// Whether the daemon is gone, or broke the protocol.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Ends the sessions of freed endpoints that have sent everything.
    #[cold]
    fn end_freed<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, sink: &mut S)
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
        S: Sink<T>,
    {
        core.state_mut().flush();
        for part in std::mem::take(&mut self.freed) {
            let those = || self.entries.iter().filter(|(_, entry)| entry.pair.0 == part);
            let has_said_all =
                those().all(|(_, entry)| entry.session.is_none_or(|session| core.state().has_said_all(session)));
            if !has_said_all || !self.port.borrow_mut().is_at_rest(part) {
                self.freed.push(part);
                continue;
            }
            let lines: Vec<LineId> = those().map(|(line, _)| *line).collect();
            self.port.borrow_mut().remove_part(part);
            for line in lines {
                if let Some(session) = self.entries.get(&line).and_then(|entry| entry.session) {
                    core.lose(session, Reason::Closed, sink);
                }
                self.forget(line);
            }
            // A line that the daemon opens before it learns of the end is dropped with the endpoint.
            for asked in self.asked.values_mut() {
                match std::mem::replace(asked, Asked::Other) {
                    Asked::Open(call, of) if of == part => core.state_mut().refused(call, Reason::NoSuchEndpoint),
                    other => *asked = other,
                }
            }
            self.change(Request::Free { part });
        }
    }

    fn change(&mut self, request: Request) {
        if self.is_lost {
            return;
        }
        // Keep the order: queue it after the waiting ones.
        self.changes.push_back(request);
        self.ask_changes();
    }

    fn ask_changes(&mut self) {
        while let Some(request) = self.changes.front() {
            let Some(slot) = self.port.borrow_mut().ask(request) else { return };
            let asked = match *request {
                Request::Allocate { endpoint, sizes, .. } => Asked::Allocate(endpoint, sizes),
                _ => Asked::Other,
            };
            self.asked.insert(slot, asked);
            self.changes.pop_front();
        }
    }

    #[cold]
    fn ask_again<R, T, B>(&mut self, core: &mut Bundle<R, T, B>)
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
    {
        self.ask_changes();
        for call in std::mem::take(&mut self.calls) {
            self.call(core, call);
        }
    }

    /// Handles what the daemon reported. Returns true if records wait; then the bundle has to be polled.
    fn take_events<R, T, B, S>(&mut self, core: &mut Bundle<R, T, B>, sink: &mut S) -> bool
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
        S: Sink<T>,
    {
        let mut is_readable = false;
        loop {
            let Some(event) = self.port.borrow_mut().poll_event() else { return is_readable };
            match event {
                PortEvent::Readable(line) => {
                    is_readable = true;
                    let entry = self.entries.get_mut(&line);
                    match entry.and_then(|entry| entry.session.inspect(|_| entry.is_known = true)) {
                        Some(session) => core.ring(session),
                        None => self.port.borrow_mut().leave(line, Reason::NoRoom),
                    }
                }
                PortEvent::Opened(line, part, name) => self.opened(core, line, part, &name),
                PortEvent::Ended(line, reason) => {
                    if let Some(session) = self.entries.get(&line).and_then(|entry| entry.session) {
                        // This asks for the records that the peer has not taken, and so leaves the line.
                        core.lose(session, reason, sink);
                    }
                    self.port.borrow_mut().leave(line, reason);
                    self.forget(line);
                }
                PortEvent::Answered(slot, answer) => self.answered(core, slot, answer),
                PortEvent::Broken => self.lose_all(core, sink),
            }
        }
    }

    #[cold]
    fn opened<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, line: LineId, part: u32, name: &Name)
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
    {
        let peer = PeerId { epoch: name.epoch, bundle: BY_LINE, uid: name.uid, address: name.address };
        if self.give_session(core, line, peer, (part, name.epoch, name.endpoint), true).is_none() {
            self.port.borrow_mut().leave(line, Reason::NoRoom);
        }
    }

    #[cold]
    fn answered<R, T, B>(&mut self, core: &mut Bundle<R, T, B>, slot: u16, answer: Answer)
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
    {
        self.port.borrow_mut().end_request(slot);
        match (self.asked.remove(&slot), answer) {
            (Some(Asked::Open(call, part)), Answer::Line(line, user)) => {
                let line = LineId(line);
                self.port.borrow_mut().add_line(line, part);
                let name = call.name;
                let reason = match () {
                    () if user != Uid::UNKNOWN && !user.is_same_as(name.uid) => Reason::WrongOwner,
                    () => {
                        let peer = PeerId { epoch: name.epoch, bundle: BY_LINE, uid: user, address: name.address };
                        match self.give_session(core, line, peer, (part, name.epoch, name.endpoint), false) {
                            Some(session) => return core.state_mut().connected(call, session),
                            None => Reason::NoRoom,
                        }
                    }
                };
                self.port.borrow_mut().leave(line, reason);
                core.state_mut().refused(call, reason);
            }
            (Some(Asked::Open(call, _)), Answer::Refused(reason)) => core.state_mut().refused(call, reason),
            (Some(Asked::Allocate(endpoint, sizes)), Answer::Part { part, page }) => {
                self.parts.insert(endpoint, part);
                self.port.borrow_mut().add_part(part, Part { at: page as usize * PAGE, sizes });
                self.allocated = Allocated::Yes;
            }
            (Some(Asked::Allocate(..)), Answer::Refused(reason)) => self.allocated = Allocated::No(reason),
            _ => {}
        }
    }

    fn give_session<R, T, B>(
        &mut self,
        core: &mut Bundle<R, T, B>,
        line: LineId,
        peer: PeerId,
        pair: Pair,
        is_known: bool,
    ) -> Option<SessionId>
    where
        R: Rx + From<PortRx<H>>,
        T: Tx + From<PortTx<H>>,
        B: Bells,
    {
        let index = core.reserve()?;
        let is_other = peer.uid != Uid::UNKNOWN && !peer.uid.is_same_as(self.user);
        let tx = PortTx::new(self.port.clone(), line);
        let rx = PortRx::new(self.port.clone(), line, is_other);
        let session = core.attach(index, peer, tx.into(), rx.into());
        self.entries.insert(line, Entry { session: Some(session), pair, is_known });
        self.lines.insert(pair, line);
        Some(session)
    }

    fn forget(&mut self, line: LineId) {
        if let Some(entry) = self.entries.remove(&line) {
            if self.lines.get(&entry.pair) == Some(&line) {
                self.lines.remove(&entry.pair);
            }
        }
    }
}
