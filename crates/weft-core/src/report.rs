//! The state of a bundle as plain values, for tools that look at it from outside. Reports cost nothing until somebody
//! asks: they are read from state that exists anyway.

use crate::endpoint::{Endpoint, EndpointState, Endpoints, Route, Translation};
use crate::event::Counters;
use crate::session::{FlowId, FlowIn, FlowOut, PeerId, Phase, Session, SessionId};
use crate::state::State;
use std::time::Duration;
use weft_transport::Grant;
use weft_wire::packet::Integrity;
use weft_wire::path::{Traffic, Tx};
use weft_wire::record::{lines, MAX_ARGS};
use weft_wire::{HostAddress, Name, Reason, Uid, MAX_PAYLOAD};

/// Largest number of rows of a report: endpoints, sessions, flows and destinations together.
pub const ROWS_MOST: usize = 1024;

/// Largest number of translation table entries examined for one report.
const ENTRIES_MOST: usize = 16 << 10;

/// The state of a bundle at one moment. Rows above [`ROWS_MOST`] are only counted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Totals since the bundle was made.
    pub counters: Counters,
    /// Messages sent whose end is not known or not reported yet.
    pub unsettled: u64,
    /// Packets from the network that were dropped because they were damaged or not weft packets.
    pub packets_damaged: u64,
    /// Intact packets from the network that were refused: forged, duplicate, of another epoch, or from another address
    /// than their channel's peer.
    pub packets_refused: u64,
    /// Its endpoints.
    pub endpoints: Vec<EndpointReport>,
    /// Its sessions.
    pub sessions: Vec<SessionReport>,
    /// The flows of its outgoing messages, session by session.
    pub flows_out: Vec<FlowOutReport>,
    /// The flows of its incoming messages, session by session.
    pub flows_in: Vec<FlowInReport>,
    /// Destinations of messages that have no session yet.
    pub destinations: Vec<DestinationReport>,
    /// Rows above the limit, and translation table entries that were not examined.
    pub left_out: usize,
}

/// An endpoint.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EndpointReport {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its name.
    pub name: Name,
    /// Whether messages are delivered to it.
    pub is_served: bool,
    /// Messages that wait because it is not served.
    pub parked: usize,
}

/// A session.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SessionReport {
    /// The session.
    pub id: SessionId,
    /// The peer at the other end.
    pub peer: PeerId,
    /// How far the path to the peer was written and read.
    pub traffic: Traffic,
    /// Whether the path has room for the largest message.
    pub has_room: bool,
    /// Replies and returned messages that wait for room.
    pub backlog: usize,
    /// Bytes of these messages.
    pub backlog_bytes: usize,
    /// The session's channel, if the peer is on another host.
    pub host: Option<HostReport>,
    /// The session uses a line of weftd.
    pub is_by_daemon: bool,
}

/// A channel to another host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostReport {
    /// The address of the other host.
    pub address: HostAddress,
    /// The smoothed round-trip time, once it was measured.
    pub round_trip: Option<Duration>,
    /// The shortest round-trip time so far.
    pub least_round_trip: Option<Duration>,
    /// Bytes of packets that are neither acknowledged nor given up.
    pub in_flight: u64,
    /// Bytes that congestion control allows to be in flight.
    pub window: u64,
    /// What the checksums of packets cover, as both sides agreed.
    pub integrity: Integrity,
    /// What this side asked for.
    pub integrity_wanted: Integrity,
    /// Bytes of the largest packets that are known to get through.
    pub packet_bytes: usize,
    /// Records wait that were not fully sent.
    pub has_unsent: bool,
    /// Records wait for room at the peer, because its program does not take messages.
    pub waits_for_peer: bool,
    /// Number of timeouts in a row in which nothing was heard.
    pub silences: u32,
    /// The channel's totals.
    pub counters: weft_transport::Counters,
}

/// A flow from one of our endpoints to one of the peer's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowOutReport {
    /// The flow's session.
    pub session: SessionId,
    /// Our endpoint.
    pub endpoint: Endpoint,
    /// The peer's endpoint.
    pub to: Name,
    /// One-way messages sent since the flow opened.
    pub sent: u64,
    /// Requests sent since the flow opened.
    pub requests_sent: u64,
    /// Requests in flight, in a window of 32.
    pub requests: u32,
    /// Credit left for one-way messages.
    pub credit: Grant,
    /// One-way messages that are not known to be stored.
    pub unstored: u64,
    /// A send returned *full*, and no can-send event followed yet.
    pub wants_room: bool,
    /// What prevents the next message from being sent now.
    pub limit: Limit,
}

/// A flow from one of the peer's endpoints to one of ours.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowInReport {
    /// The flow's session.
    pub session: SessionId,
    /// Our endpoint.
    pub endpoint: Endpoint,
    /// The peer's endpoint.
    pub from: Name,
    /// Requests that arrived and were not answered.
    pub requests: u32,
}

/// A translation table entry that leads to no session.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DestinationReport {
    /// Our endpoint.
    pub endpoint: Endpoint,
    /// The name in the entry.
    pub name: Name,
    /// Why the last call was refused. `None` during a call.
    pub refused: Option<Reason>,
}

/// What prevents a message from being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Nothing.
    Nothing,
    /// 32 requests are in flight. One-way messages can be sent.
    Window,
    /// The receiver granted no more credit for one-way messages. Requests can be sent.
    Credit,
    /// The path to the peer has no room.
    Room,
    /// Congestion control allows no more bytes in flight.
    Congestion,
}

impl Report {
    /// Counts one more row. Returns whether there is room for it.
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

    /// Marks the flows that congestion control limits. Call after the sessions' channels were added.
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
    /// Returns the flow for requests to an index of the translation table, and a bit mask of its used slots.
    pub fn asking(&self, from: Endpoint, to: u32) -> Option<(FlowId, u32)> {
        let Route::Flow { session: index, flow: number } = self.endpoint(from).ok()?.translation(to)?.route else {
            return None;
        };
        let place = self.sessions.get(index as usize)?;
        let flow = place.session.as_ref()?.flows_out.get(usize::from(number))?;
        let session = SessionId { index, life: place.life };
        Some((FlowId { session, number }, flow.window.taken()))
    }

    /// Returns the source and the destination of one of our flows.
    pub fn ends_out(&self, flow: FlowId) -> Option<(Name, Name)> {
        let session = self.session(flow.session)?;
        let out = session.flows_out.get(usize::from(flow.number))?;
        Some((self.name(out.source).ok()?, session.name_of(out.to, Uid::UNKNOWN)))
    }

    /// Returns the source and the destination of one of the peer's flows.
    pub fn ends_in(&self, flow: FlowId) -> Option<(Name, Name)> {
        let flow = self.session(flow.session)?.flows_in.get(usize::from(flow.number))?;
        Some((flow.source, self.name(flow.destination).ok()?))
    }

    /// Writes the bundle's state over an old report.
    #[cold]
    #[doc(hidden)] // for the home of a bundle
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
            is_by_daemon: false,
        });
        let is_open = has_room && self.backlog.is_empty();
        for flow in self.flows_out.iter().filter(|flow| flow.phase != Phase::Closed) {
            if report.take_place() {
                // The name that the program mapped, unless it has since mapped another one there.
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
