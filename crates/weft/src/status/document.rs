//! The report of a process about itself: one JSON document, as it is sent over the status socket and printed.
//!
//! Programs read the fields: a field never changes its meaning, but new ones may be added.

use super::board::Told;
use super::digits;
use super::stamps::Stamps;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use weft_core::report::{self, Report};
use weft_core::SessionId;
use weft_wire::packet::Integrity;
use weft_wire::record::{LINE, WINDOW};
use weft_wire::{HostAddress, Uid};

/// The version of the document.
pub const VERSION: u32 = 1;

/// A process's network interface.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// [`VERSION`].
    pub version: u32,
    /// The version of weft that the process was built with.
    pub weft: String,
    /// The process id, as the process sees it: in a container it differs from the one outside.
    pub pid: u32,
    /// Its user, likewise.
    pub uid: u32,
    /// Its epoch, which differs for every process and is part of its endpoints' names: 16 hexadecimal digits.
    pub epoch: String,
    /// Its bundles.
    pub bundles: Vec<Bundle>,
    /// Number of bundles that this document has no room for.
    pub left_out: u64,
}

/// What a bundle's thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// It polls.
    Polls,
    /// It sleeps in a wait.
    Waits,
    /// It did not poll when asked for a report: it computes, or does something else.
    Computes,
}

/// A bundle.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bundle {
    /// Its number in the process.
    pub bundle: u32,
    /// What its thread is doing.
    pub activity: Activity,
    /// The age of the other fields. `None`: the bundle has not reported yet, and they are empty.
    pub age_ms: Option<u64>,
    /// What was counted since it was made.
    pub counters: Counters,
    /// Messages sent whose end is unknown or not yet reported.
    pub unsettled: u64,
    /// Packets from other hosts that it dropped because they were damaged or not weft's.
    pub packets_damaged: u64,
    /// Intact packets from the network that it refused: forged, duplicate, of another epoch, or not from their peer's address.
    #[serde(default)]
    pub packets_refused: u64,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// The bundles that it has a session with.
    pub peers: Vec<Peer>,
    /// Names in its translation tables that were sent to and have no session.
    pub destinations: Vec<Destination>,
    /// Number of endpoints, peers, flows and destinations that this document has no room for.
    pub left_out: u64,
    /// Whether some of its requests are stamped at present, because somebody [asked](super::trace) for it.
    #[serde(default)]
    pub is_stamping: bool,
    /// The stamps, for clients that asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamps: Option<Stamps>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a bundle counted since it was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        #[doc(hidden)]
        impl From<weft_core::Counters> for Counters {
            fn from(counters: weft_core::Counters) -> Counters {
                let weft_core::Counters { $($name,)* } = counters;
                Counters { $($name,)* }
            }
        }

        impl Counters {
            /// Returns all counters with their names.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// One-way messages sent.
    sent,
    /// Requests sent.
    requests_sent,
    /// Replies sent.
    replies_sent,
    /// One-way messages delivered to its endpoints.
    delivered,
    /// Requests delivered to its endpoints.
    requests_delivered,
    /// Replies delivered to its endpoints.
    replies_delivered,
    /// Requests of its own that ended without a reply message.
    ended,
    /// Messages of its own that came back.
    returned,
    /// Messages of others that it refused.
    refused,
    /// Refused messages that were replies to its own requests.
    #[serde(default)]
    replies_refused,
    /// Events dropped because its program takes none.
    #[serde(default)]
    events_dropped,
    /// Messages that may be lost and were dropped here: they found no room, no endpoint that admits them, or arrived incomplete.
    #[serde(default)]
    unreliable_dropped,
    /// Sends that found no room or no credit.
    full,
    /// Replies that found no room and were queued.
    replies_queued,
    /// Messages queued at an endpoint that was not served.
    parked,
    /// Messages forwarded to the bundle that their endpoint had moved to.
    handed_on,
    /// Sessions cut off because the peer broke the protocol.
    violations,
    /// Sessions that ended with their peer, in order or not. Those that the peer refused with their first flow do not count.
    sessions_lost,
}

/// An endpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its number in the bundle.
    pub endpoint: u32,
    /// Its name. The key is not shown.
    pub name: String,
    /// Whether messages are handed to it.
    pub is_served: bool,
    /// Messages that wait because it is not served.
    pub parked: u64,
    /// Its state, if it is for remote memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<RemoteMemory>,
}

/// The state of an endpoint for remote memory. Neither keys nor cookies are shown.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// Regions that are open.
    pub regions: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Regions that were revoked, since the endpoint was made.
    pub revoked: u64,
    /// Cookies that are valid.
    pub cookies: u64,
    /// The largest regions, the largest one first: at most 8.
    pub largest: Vec<Region>,
    /// What was counted since the endpoint was made.
    pub counters: RemoteMemoryCounters,
    /// Notices of peers' writes that the program has not taken.
    pub notices: u64,
    /// Operations of the endpoint on regions of others that have not ended.
    pub pending: u64,
    /// Completions that the program has not taken.
    pub completions: u64,
}

/// A region of an endpoint for remote memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// Its number among the endpoint's regions. A revoked region may have had it before.
    pub index: u32,
    /// How many bytes it has.
    pub bytes: u64,
    /// Whether its key allows reads.
    pub can_read: bool,
    /// Whether its key allows writes.
    pub can_write: bool,
    /// Whether its key allows atomic operations.
    pub can_atomic: bool,
    /// Whether the program lent the memory. Otherwise it is weft's.
    pub is_lent: bool,
    /// Peers that map it.
    pub mapped: u32,
}

/// Counters of peers' operations on the regions of an endpoint, and of its direct operations on theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RemoteMemoryCounters {
    /// Writes that were carried out.
    pub writes: u64,
    /// Reads, in pieces of at most 64 KiB.
    pub reads: u64,
    /// Atomic operations, in words.
    pub atomics: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Writes whose bytes were read from the peer's memory.
    pub pulls: u64,
    /// Bytes that were read there, including those of incomplete writes.
    pub bytes_pulled: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Messages that were refused.
    pub refused: u64,
    /// Refused messages that were for a revoked region or cookie.
    pub refused_revoked: u64,
    /// Operations of the endpoint itself on regions of neighbours that were done by loads and stores, without a message.
    pub direct: u64,
}

/// How a peer is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// Through rings in memory.
    Memory,
    /// Over UDP.
    Network,
    /// Through weftd.
    Daemon,
}

/// A bundle, of this or another process, with which there is a session.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// How it is reached.
    pub path: Path,
    /// The epoch of its process.
    pub epoch: String,
    /// Its bundle's number. Only known for a peer that is reached through memory.
    pub bundle: Option<u32>,
    /// Its user, if the kernel could say.
    pub uid: Option<u32>,
    /// Where other hosts reach it.
    pub address: Option<String>,
    /// Bytes written to the path to it, headers and padding included.
    pub written_bytes: u64,
    /// Written bytes that the peer's program has taken, as far as is known.
    pub taken_bytes: u64,
    /// Whether there is room for the largest message.
    pub has_room: bool,
    /// Replies and returned messages that wait for room.
    pub backlog: u64,
    /// Bytes of these.
    pub backlog_bytes: u64,
    /// The channel below, if it goes over the network.
    pub network: Option<Network>,
    /// The peer's endpoints that messages go to.
    pub to: Vec<FlowTo>,
    /// The peer's endpoints that messages come from.
    pub from: Vec<FlowFrom>,
}

/// A channel to another host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Network {
    /// The address that it leads to.
    pub address: String,
    /// The round-trip time, once it was measured.
    pub round_trip_us: Option<f64>,
    /// The shortest one that was seen.
    pub least_round_trip_us: Option<f64>,
    /// Bytes in packets that are neither acknowledged nor given up.
    pub in_flight_bytes: u64,
    /// Largest number of bytes that may be in flight.
    pub window_bytes: u64,
    /// Bytes of the largest packets that get through, as far as is known, without headers of IP and UDP.
    pub packet_bytes: u64,
    /// What the checksums of packets cover, as agreed by both sides.
    #[serde(default)]
    pub integrity: Integrity,
    /// What this side asked for.
    #[serde(default)]
    pub integrity_wanted: Integrity,
    /// There are records that were not sent completely.
    pub has_unsent: bool,
    /// More would be sent if the peer had room: its program does not take its messages.
    pub waits_for_peer: bool,
    /// Number of times in a row that the peer did not answer in time.
    pub silences: u32,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets taken in.
    pub packets_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets declared lost that had arrived.
    pub packets_late: u64,
    /// Times that no acknowledgement came in time.
    pub timeouts: u64,
    /// Packets dropped, for any reason.
    pub packets_dropped: u64,
}

/// From one of the bundle's endpoints to one of the peer's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlowTo {
    /// The bundle's endpoint.
    pub endpoint: u32,
    /// The peer's.
    pub name: String,
    /// One-way messages sent since the flow was opened.
    #[serde(default)]
    pub sent: u64,
    /// Requests sent since then.
    #[serde(default)]
    pub requests_sent: u64,
    /// Requests under way.
    pub requests: u32,
    /// Largest number of requests under way.
    pub requests_most: u32,
    /// One-way messages that may be sent before the peer grants more.
    pub credit_messages: u32,
    /// Bytes that may be sent before the peer grants more, in lines of 64.
    pub credit_bytes: u64,
    /// One-way messages that are not known to be stored.
    pub unstored: u64,
    /// A send returned *full*, and the can-send event has not come yet.
    pub wants_room: bool,
    /// What keeps a message from being sent.
    pub limit: Limit,
}

/// From one of the peer's endpoints to one of the bundle's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlowFrom {
    /// The bundle's endpoint.
    pub endpoint: u32,
    /// The peer's.
    pub name: String,
    /// Requests that came and were not answered.
    pub requests: u32,
}

/// What keeps a message from being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Nothing does.
    Nothing,
    /// Requests: the largest number is under way.
    Window,
    /// One-way messages: the receiver granted no more.
    Credit,
    /// There is no room on the way to the peer.
    Room,
    /// The congestion window of the network is full.
    Congestion,
}

/// A name without a session.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Destination {
    /// The endpoint whose translation table has it.
    pub endpoint: u32,
    /// The name.
    pub name: String,
    /// Why the last call was refused. `None` while it is being called.
    pub refused: Option<String>,
}

impl Bundle {
    /// A bundle that has not reported yet.
    pub(super) fn silent(bundle: u32, activity: Activity) -> Bundle {
        Bundle {
            bundle,
            activity,
            age_ms: None,
            counters: Counters::default(),
            unsettled: 0,
            packets_damaged: 0,
            packets_refused: 0,
            endpoints: Vec::new(),
            peers: Vec::new(),
            destinations: Vec::new(),
            left_out: 0,
            is_stamping: false,
            stamps: None,
        }
    }

    /// A bundle with a report of this age. Takes at most `rows` rows, and counts them down.
    pub(super) fn told(self, age: Duration, told: &Told, rows: &mut usize) -> Bundle {
        let Told { report, memory, .. } = told;
        let Report { endpoints, sessions, flows_out, flows_in, destinations, .. } = report;
        let wanted =
            endpoints.len() + memory.len() + sessions.len() + flows_out.len() + flows_in.len() + destinations.len();
        let base = Bundle {
            age_ms: Some(age.as_millis() as u64),
            counters: report.counters.into(),
            unsettled: report.unsettled,
            packets_damaged: report.packets_damaged,
            packets_refused: report.packets_refused,
            left_out: report.left_out as u64,
            ..self
        };
        if wanted > *rows {
            return Bundle { left_out: base.left_out + wanted as u64, ..base };
        }
        *rows -= wanted;
        let mut memory = memory.iter().peekable();
        let endpoints = endpoints.iter().map(|endpoint| Endpoint {
            memory: memory.next_if(|(of, _)| *of == endpoint.endpoint).map(|(_, told)| RemoteMemory::from(told)),
            ..Endpoint::from(endpoint)
        });
        Bundle {
            endpoints: endpoints.collect(),
            peers: sessions.iter().map(|session| Peer::of(session, report)).collect(),
            destinations: destinations.iter().map(Destination::from).collect(),
            ..base
        }
    }
}

#[doc(hidden)]
impl From<&report::EndpointReport> for Endpoint {
    fn from(told: &report::EndpointReport) -> Endpoint {
        let &report::EndpointReport { endpoint, name, is_served, parked } = told;
        let (endpoint, name) = (endpoint.index() as u32, name.to_string());
        Endpoint { endpoint, name, is_served, parked: parked as u64, memory: None }
    }
}

#[doc(hidden)]
impl From<&weft_memory::Report> for RemoteMemory {
    fn from(told: &weft_memory::Report) -> RemoteMemory {
        let weft_memory::Report { regions, bytes, revoked, cookies, largest, counters, .. } = told;
        RemoteMemory {
            regions: *regions as u64,
            bytes: *bytes,
            revoked: *revoked,
            cookies: *cookies as u64,
            largest: largest.iter().map(Region::from).collect(),
            counters: (*counters).into(),
            notices: told.notices as u64,
            pending: told.pending as u64,
            completions: told.completions as u64,
        }
    }
}

#[doc(hidden)]
impl From<&weft_memory::RegionReport> for Region {
    fn from(told: &weft_memory::RegionReport) -> Region {
        let &weft_memory::RegionReport { index, bytes, rights, is_lent, mapped } = told;
        let (can_read, can_write, can_atomic) = (rights.read, rights.write, rights.atomic);
        Region { index, bytes, can_read, can_write, can_atomic, is_lent, mapped }
    }
}

#[doc(hidden)]
impl From<weft_memory::Counters> for RemoteMemoryCounters {
    fn from(counters: weft_memory::Counters) -> RemoteMemoryCounters {
        let weft_memory::Counters { writes, reads, atomics, bytes_written, pulls, bytes_pulled, .. } = counters;
        let weft_memory::Counters { bytes_read, refused, refused_revoked, direct, .. } = counters;
        RemoteMemoryCounters {
            writes,
            reads,
            atomics,
            bytes_written,
            pulls,
            bytes_pulled,
            bytes_read,
            refused,
            refused_revoked,
            direct,
        }
    }
}

#[doc(hidden)]
impl From<&report::DestinationReport> for Destination {
    fn from(told: &report::DestinationReport) -> Destination {
        let &report::DestinationReport { endpoint, name, refused } = told;
        let refused = refused.map(|reason| reason.to_string());
        Destination { endpoint: endpoint.index() as u32, name: name.to_string(), refused }
    }
}

impl Peer {
    fn of(told: &report::SessionReport, report: &Report) -> Peer {
        let &report::SessionReport { id, peer, traffic, has_room, backlog, backlog_bytes, host, is_by_daemon } = told;
        let is_of = |session: SessionId| session == id;
        let path = match (is_by_daemon, host.is_some()) {
            (true, _) => Path::Daemon,
            (false, true) => Path::Network,
            (false, false) => Path::Memory,
        };
        Peer {
            path,
            epoch: digits(peer.epoch),
            bundle: (path == Path::Memory).then_some(peer.bundle.0),
            uid: (peer.uid != Uid::UNKNOWN).then_some(peer.uid.0),
            address: printed(peer.address),
            written_bytes: traffic.pushed,
            taken_bytes: traffic.taken,
            has_room,
            backlog: backlog as u64,
            backlog_bytes: backlog_bytes as u64,
            network: host.map(Network::from),
            to: report.flows_out.iter().filter(|flow| is_of(flow.session)).map(FlowTo::from).collect(),
            from: report.flows_in.iter().filter(|flow| is_of(flow.session)).map(FlowFrom::from).collect(),
        }
    }
}

#[doc(hidden)]
impl From<report::HostReport> for Network {
    fn from(told: report::HostReport) -> Network {
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let counted = told.counters;
        Network {
            address: printed(told.address).unwrap_or_default(),
            round_trip_us: told.round_trip.map(micros),
            least_round_trip_us: told.least_round_trip.map(micros),
            in_flight_bytes: told.in_flight,
            window_bytes: told.window,
            packet_bytes: told.packet_bytes as u64,
            integrity: told.integrity,
            integrity_wanted: told.integrity_wanted,
            has_unsent: told.has_unsent,
            waits_for_peer: told.waits_for_peer,
            silences: told.silences,
            packets_sent: counted.packets_sent,
            packets_received: counted.packets_received,
            packets_lost: counted.packets_lost,
            packets_late: counted.packets_late,
            timeouts: counted.timeouts,
            packets_dropped: counted.dropped_old
                + counted.dropped_foreign
                + counted.dropped_malformed
                + counted.dropped_violation
                + counted.dropped_no_room,
        }
    }
}

#[doc(hidden)]
impl From<&report::FlowOutReport> for FlowTo {
    fn from(told: &report::FlowOutReport) -> FlowTo {
        FlowTo {
            endpoint: told.endpoint.index() as u32,
            name: told.to.to_string(),
            sent: told.sent,
            requests_sent: told.requests_sent,
            requests: told.requests,
            requests_most: WINDOW as u32,
            credit_messages: told.credit.messages,
            credit_bytes: u64::from(told.credit.lines) * LINE as u64,
            unstored: told.unstored,
            wants_room: told.wants_room,
            limit: match told.limit {
                report::Limit::Nothing => Limit::Nothing,
                report::Limit::Window => Limit::Window,
                report::Limit::Credit => Limit::Credit,
                report::Limit::Room => Limit::Room,
                report::Limit::Congestion => Limit::Congestion,
            },
        }
    }
}

#[doc(hidden)]
impl From<&report::FlowInReport> for FlowFrom {
    fn from(told: &report::FlowInReport) -> FlowFrom {
        let &report::FlowInReport { endpoint, from, requests, .. } = told;
        FlowFrom { endpoint: endpoint.index() as u32, name: from.to_string(), requests }
    }
}

fn printed(address: HostAddress) -> Option<String> {
    (!address.is_none()).then(|| format!("{address:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::desk::ROWS_MOST;
    use crate::status::ANSWER_MOST;

    #[test]
    fn a_row_of_remote_memory_stays_within_its_size() {
        let region = Region {
            index: u32::MAX,
            bytes: u64::MAX,
            can_read: false,
            can_write: false,
            can_atomic: false,
            is_lent: false,
            mapped: u32::MAX,
        };
        let most = u64::MAX;
        let counters = RemoteMemoryCounters {
            writes: most,
            reads: most,
            atomics: most,
            bytes_written: most,
            pulls: most,
            bytes_pulled: most,
            bytes_read: most,
            refused: most,
            refused_revoked: most,
            direct: most,
        };
        let told = RemoteMemory {
            regions: most,
            bytes: most,
            revoked: most,
            cookies: most,
            largest: vec![region; weft_memory::LARGEST_MOST],
            counters,
            notices: most,
            pending: most,
            completions: most,
        };
        let bytes = serde_json::to_vec(&told).expect("JSON").len();
        assert!(bytes <= ANSWER_MOST / ROWS_MOST, "{bytes} bytes");
    }
}
