//! What a bundle is at, as plain values: for whoever looks at it from outside. Nothing is counted for this; all of it is read from
//! what is there anyway, when somebody asks.

use crate::endpoint::{Endpoint, EndpointState, Endpoints, Route, Translation};
use crate::event::Counters;
use crate::session::{FlowId, FlowIn, FlowOut, PeerId, Phase, Session, SessionId};
use crate::state::State;
use std::time::Duration;
use weft_transport::Grant;
use weft_wire::path::{Traffic, Tx};
use weft_wire::record::{lines, MAX_ARGS};
use weft_wire::{HostAddress, Name, Reason, Uid, MAX_PAYLOAD};

/// Rows of a report: endpoints, sessions, flows and destinations together.
pub const ROWS_MOST: usize = 1024;

/// Entries of translation tables that are looked at for one report.
const ENTRIES_MOST: usize = 16 << 10;

/// A bundle at one moment. Rows above [`ROWS_MOST`] are counted only.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// What was counted since the bundle was made.
    pub counters: Counters,
    /// Messages sent whose end is not known or not told.
    pub unsettled: u64,
    /// Packets from other hosts that were dropped because they were damaged, or are none.
    pub packets_damaged: u64,
    /// Whole packets from the network that were refused: forged, copies, of another life, or from elsewhere than their channel's
    /// peer.
    pub packets_refused: u64,
    /// Its endpoints.
    pub endpoints: Vec<EndpointReport>,
    /// Its sessions.
    pub sessions: Vec<SessionReport>,
    /// Where its messages go, session by session.
    pub flows_out: Vec<FlowOutReport>,
    /// Where its messages come from, session by session.
    pub flows_in: Vec<FlowInReport>,
    /// Destinations without a session, to which something was to be sent.
    pub destinations: Vec<DestinationReport>,
    /// Rows that had no place, and entries of translation tables that were not looked at.
    pub left_out: usize,
}

/// An endpoint.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EndpointReport {
    /// Which one.
    pub endpoint: Endpoint,
    /// Its name.
    pub name: Name,
    /// Whether messages are handed to it.
    pub is_served: bool,
    /// Messages that wait because it is not.
    pub parked: usize,
}

/// A session.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SessionReport {
    /// Which one.
    pub id: SessionId,
    /// Who is at the other end.
    pub peer: PeerId,
    /// How far the path to the peer was written and read.
    pub traffic: Traffic,
    /// Whether it has room for the largest message.
    pub has_room: bool,
    /// Replies and returned messages that wait for room.
    pub backlog: usize,
    /// Bytes of these.
    pub backlog_bytes: usize,
    /// The channel below it, if the peer is reached over the network.
    pub host: Option<HostReport>,
}

/// A channel to another host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostReport {
    /// Where it leads.
    pub address: HostAddress,
    /// The round-trip time, once it was measured.
    pub round_trip: Option<Duration>,
    /// The shortest one that was seen.
    pub least_round_trip: Option<Duration>,
    /// Bytes of packets that were neither acknowledged nor given up.
    pub in_flight: u64,
    /// Bytes that may be so, as the congestion control has it.
    pub window: u64,
    /// Bytes of the largest packets that get through, as far as is known.
    pub packet_bytes: usize,
    /// Records wait that were not sent to their end.
    pub has_unsent: bool,
    /// More would be sent if the peer had room: its program does not take what came.
    pub waits_for_peer: bool,
    /// How often in a row nothing was heard in time.
    pub silences: u32,
    /// What was counted.
    pub counters: weft_transport::Counters,
}

/// From one of our endpoints to one of the peer's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowOutReport {
    /// The session that it is of.
    pub session: SessionId,
    /// Our endpoint.
    pub endpoint: Endpoint,
    /// The peer's.
    pub to: Name,
    /// One-way messages sent since the flow was opened.
    pub sent: u64,
    /// Requests sent since then.
    pub requests_sent: u64,
    /// Requests under way, of a window of 32.
    pub requests: u32,
    /// Credit for one-way messages that is left.
    pub credit: Grant,
    /// One-way messages that are not known to be stored.
    pub unstored: u64,
    /// Somebody was told *full* and has not been told of room since.
    pub wants_room: bool,
    /// What keeps a message from being sent now.
    pub limit: Limit,
}

/// From one of the peer's endpoints to one of ours.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowInReport {
    /// The session that it is of.
    pub session: SessionId,
    /// Our endpoint.
    pub endpoint: Endpoint,
    /// The peer's.
    pub from: Name,
    /// Requests that came and were not answered.
    pub requests: u32,
}

/// An entry of a translation table that leads to no session.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DestinationReport {
    /// Our endpoint.
    pub endpoint: Endpoint,
    /// Whom it names.
    pub name: Name,
    /// Why the last call was refused. `None` while it is being called.
    pub refused: Option<Reason>,
}

/// What keeps a message from being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Nothing does.
    Nothing,
    /// Requests: 32 are under way. One-way messages go.
    Window,
    /// One-way messages: the receiver granted no more. Requests go.
    Credit,
    /// There is no room on the way to the peer.
    Room,
    /// As much is under way in the network as may be.
    Congestion,
}

impl Report {
    /// One row more, if there is a place for it.
    fn take_place(&mut self) -> bool {
        let rows = self.endpoints.len() + self.sessions.len() + self.destinations.len();
        let has_place = rows + self.flows_out.len() + self.flows_in.len() < ROWS_MOST;
        self.left_out += usize::from(!has_place);
        has_place
    }

    fn clear(&mut self) {
        let Report { endpoints, sessions, flows_out, flows_in, destinations, left_out, .. } = self;
        endpoints.clear();
        sessions.clear();
        flows_out.clear();
        flows_in.clear();
        destinations.clear();
        *left_out = 0;
    }

    /// Knowing of channels, says which flows they limit.
    pub fn note_congestion(&mut self) {
        let is_held = |host: &HostReport| host.has_unsent && host.in_flight + host.packet_bytes as u64 > host.window;
        for session in self.sessions.iter().filter(|s| s.host.as_ref().is_some_and(is_held)) {
            let of_session = |flow: &&mut FlowOutReport| flow.session == session.id;
            for flow in self.flows_out.iter_mut().filter(of_session) {
                if matches!(flow.limit, Limit::Nothing | Limit::Room) {
                    flow.limit = Limit::Congestion;
                }
            }
        }
    }
}

impl<T: Tx> State<T> {
    /// The flow that requests to an index of the translation table go by, and its slots that are taken, one bit each.
    pub fn asking(&self, from: Endpoint, to: u32) -> Option<(FlowId, u32)> {
        let Route::Flow { session: index, flow: number } = self.endpoint(from).ok()?.translation(to)?.route else {
            return None;
        };
        let place = self.sessions.get(index as usize)?;
        let flow = place.session.as_ref()?.flows_out.get(usize::from(number))?;
        let session = SessionId { index, life: place.life };
        Some((FlowId { session, number }, flow.window.taken()))
    }

    /// The endpoints that a flow of ours leads from and to.
    pub fn ends_out(&self, flow: FlowId) -> Option<(Name, Name)> {
        let session = self.session(flow.session)?;
        let out = session.flows_out.get(usize::from(flow.number))?;
        Some((self.name(out.source).ok()?, session.name_of(out.to, Uid::UNKNOWN)))
    }

    /// The same of a flow of the peer's.
    pub fn ends_in(&self, flow: FlowId) -> Option<(Name, Name)> {
        let flow = self.session(flow.session)?.flows_in.get(usize::from(flow.number))?;
        Some((flow.source, self.name(flow.destination).ok()?))
    }

    /// Writes down what the bundle is at, in place of what the report said before.
    #[cold]
    pub fn report_into(&mut self, report: &mut Report) {
        report.clear();
        report.counters = self.counters();
        report.unsettled = self.unsettled();
        for (index, place) in self.sessions.iter_mut().enumerate() {
            let id = SessionId { index: index as u32, life: place.life };
            if let Some(session) = &mut place.session {
                session.report_into(id, &self.endpoints, report);
            }
        }
        let mut entries = ENTRIES_MOST;
        for (endpoint, state) in self.endpoints.iter() {
            state.report_into(endpoint, &mut entries, report);
        }
    }
}

impl<T: Tx> Session<T> {
    fn report_into(&mut self, id: SessionId, endpoints: &Endpoints, report: &mut Report) {
        if !report.take_place() {
            report.left_out += self.flows_out.len() + self.flows_in.len();
            return;
        }
        let has_room = self.tx.has_room(lines(MAX_ARGS, MAX_PAYLOAD));
        report.sessions.push(SessionReport {
            id,
            peer: self.peer,
            traffic: self.tx.traffic(),
            has_room,
            backlog: self.backlog.len(),
            backlog_bytes: self.backlog_bytes,
            host: None,
        });
        let is_open = has_room && self.backlog.is_empty();
        for flow in self.flows_out.iter().filter(|flow| flow.phase != Phase::Closed) {
            if report.take_place() {
                // As the program has it, where it has not mapped another name there since.
                let entry = endpoints.get(flow.source);
                let name = entry.and_then(|e| e.translation(flow.destination)).map(|t| t.name);
                let is_it = |name: &Name| (name.epoch, name.endpoint) == (self.peer.epoch, flow.to);
                let to = name.filter(is_it).unwrap_or_else(|| self.name_of(flow.to, Uid::UNKNOWN));
                report.flows_out.push(flow.report(id, to, is_open));
            }
        }
        for flow in self.flows_in.iter().filter(|flow| flow.is_open) {
            if report.take_place() {
                report.flows_in.push(flow.report(id));
            }
        }
    }
}

impl FlowOut {
    fn report(&self, session: SessionId, to: Name, is_open: bool) -> FlowOutReport {
        let credit = self.credit.left();
        let has_credit = self.credit.covers(if self.wants_room { lines(MAX_ARGS, MAX_PAYLOAD) } else { 1 });
        let limit = match (is_open, self.window.is_full(), has_credit) {
            (false, _, _) => Limit::Room,
            (true, true, _) => Limit::Window,
            (true, false, false) => Limit::Credit,
            (true, false, true) => Limit::Nothing,
        };
        FlowOutReport {
            session,
            endpoint: self.source,
            to,
            sent: self.sent,
            requests_sent: self.requests,
            requests: self.window.taken().count_ones(),
            credit,
            unstored: self.sent - self.stored,
            wants_room: self.wants_room,
            limit,
        }
    }
}

impl FlowIn {
    fn report(&self, session: SessionId) -> FlowInReport {
        let requests = self.under_way.taken().count_ones();
        FlowInReport { session, endpoint: self.destination, from: self.source, requests }
    }
}

impl EndpointState {
    fn report_into(&self, endpoint: Endpoint, entries: &mut usize, report: &mut Report) {
        if report.take_place() {
            let EndpointState { name, served, ref parked, .. } = *self;
            report.endpoints.push(EndpointReport { endpoint, name, is_served: served, parked: parked.len() });
        }
        let looked = self.table.len().min(*entries);
        *entries -= looked;
        report.left_out += self.table.len() - looked;
        for &Translation { name, route, .. } in self.table[..looked].iter().flatten() {
            let refused = match route {
                Route::Calling => None,
                Route::Refused(reason) => Some(reason),
                Route::Unknown | Route::Flow { .. } | Route::Served { .. } => continue,
            };
            if report.take_place() {
                report.destinations.push(DestinationReport { endpoint, name, refused });
            }
        }
    }
}
