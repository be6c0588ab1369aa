//! The status of weftd, for tools that look at it.
//!
//! The tool sends [`Message::Look`](crate::attach::Message::Look) on the daemon's socket. The daemon answers with packets, each of which is
//! a list of [`Item`]s as JSON, and hangs up after [`Item::End`]. The items of an answer are made at different moments, so that an answer
//! of any length delays no messages. `docs/looking.md` is for users.
//!
//! Programs read fields by their names: no field changes its meaning, and new ones may come.

use crate::packet::Integrity;
use crate::{EndpointId, Epoch};
use serde::{Deserialize, Serialize};

/// The version of the answer.
pub const STATUS_VERSION: u32 = 1;

/// The most bytes of a packet of an answer.
pub const ITEMS_BYTES: usize = 64 << 10;

/// What an answer has besides the daemon itself, quotas, hosts and attachments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Nothing else.
    Totals,
    /// Endpoints that are resident, wait for a frame, or have no room, and lines that are stalled.
    Active,
    /// All endpoints and lines.
    All,
    /// An endpoint, and its lines.
    Endpoint(Epoch, EndpointId),
}

/// A part of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// The daemon. The first item, and the only one of its kind.
    Daemon(DaemonStatus),
    /// What a user holds.
    User(UserStatus),
    /// A host that messages go to.
    Host(HostStatus),
    /// A bundle that uses the daemon.
    Attachment(AttachmentStatus),
    /// An endpoint.
    Endpoint(EndpointStatus),
    /// One end of a line.
    Line(LineStatus),
    /// The end: nothing follows.
    End(EndStatus),
}

/// A daemon.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The version of weft that it was built with.
    pub weft: String,
    /// Its process, by its own number.
    pub pid: u32,
    /// Its user, by its own number.
    pub uid: u32,
    /// How long it has run.
    pub runs_ms: u64,
    /// Whether the answer covers all users. Otherwise attachments, endpoints and lines are those of the tool's own user, and hosts are left
    /// out.
    pub tells_all: bool,
    /// The features that it has to do without, and what would help.
    pub degraded: Vec<String>,
    /// Its address in the names of endpoints, if it has a network.
    pub address: Option<String>,
    /// Frames.
    pub frames: u64,
    /// Frames with an endpoint.
    pub frames_used: u64,
    /// How it chooses the endpoint that loses its frame.
    pub policy: String,
    /// Attachments, of all users.
    pub attachments: u64,
    /// Endpoints, of all users.
    pub endpoints: u64,
    /// What all users hold together, and may hold.
    pub limits: Vec<QuotaStatus>,
    /// Its counters since it began.
    pub counters: DaemonCounters,
    /// The network, if it has one.
    pub network: Option<NetworkStatus>,
}

/// Counters of a daemon since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DaemonCounters {
    /// Records handed to programs.
    pub delivered: u64,
    /// Records sent to other hosts.
    pub sent: u64,
    /// Bytes of contents that were copied.
    pub copied_bytes: u64,
    /// Records that were refused for now.
    pub refused: u64,
    /// Times that a stream of another host was paused, because its endpoint took nothing.
    pub paused: u64,
    /// Times that an endpoint was given a frame.
    pub remapped: u64,
    /// Times that an endpoint gave its frame to another one.
    pub evicted: u64,
    /// Requests of programs.
    pub requests: u64,
    /// Bells without cause.
    pub false_bells: u64,
    /// Programs that broke the protocol and were cut off.
    pub violations: u64,
}

/// A daemon's network interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Other hosts that it has a channel to.
    pub hosts: u64,
    /// Packets that were dropped because they were damaged, or are no packets of weft.
    pub packets_damaged: u64,
    /// Undamaged packets that were refused: forged, copies, of another life, or from another address than their peer's.
    pub packets_refused: u64,
}

/// How much is held of a resource that is counted for each user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// What is counted: `endpoints`, `lines`, `pages` or `attachments`.
    pub of: String,
    /// How much is held.
    pub held: u64,
    /// How much may be held now.
    pub most: u64,
}

/// What a user holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user.
    pub uid: u32,
    /// What it holds. What it may hold follows from what others hold.
    pub quotas: Vec<QuotaStatus>,
}

/// Another host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostStatus {
    /// The address that packets to it go to.
    pub address: String,
    /// The round-trip time, once it was measured.
    pub round_trip_us: Option<f64>,
    /// What the checksums of packets cover, as both sides agreed.
    #[serde(default)]
    pub integrity: Integrity,
    /// What the daemon asked for.
    #[serde(default)]
    pub integrity_wanted: Integrity,
    /// Bytes of packets that were neither acknowledged nor given up.
    pub in_flight_bytes: u64,
    /// The most bytes that may be in flight.
    pub window_bytes: u64,
    /// Whether records wait for room at the host.
    pub waits_for_peer: bool,
    /// How often in a row nothing was heard from it in time.
    pub silences: u32,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets received and accepted.
    pub packets_received: u64,
    /// Packets taken for lost.
    pub packets_lost: u64,
}

/// A bundle that uses the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttachmentStatus {
    /// Its number, which may be reused later.
    pub attachment: u32,
    /// Its user.
    pub uid: u32,
    /// The process that attached it, as the kernel says, if that is in the daemon's process namespace.
    pub pid: Option<u32>,
    /// The epoch in the names of its endpoints: 16 hexadecimal digits.
    pub epoch: String,
    /// Its endpoints.
    pub endpoints: u64,
    /// Its ends of lines.
    pub lines: u64,
    /// Whether its program sleeps until the daemon wakes it.
    pub sleeps: bool,
}

/// Where an endpoint's working state is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidenceStatus {
    /// It has a frame.
    Resident,
    /// It has something to do, and waits for a frame.
    Waiting,
    /// It has nothing to do.
    Idle,
}

/// An endpoint, as the daemon knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Its name. The answer never has the key.
    pub name: String,
    /// Its attachment.
    pub attachment: u32,
    /// Its user.
    pub uid: u32,
    /// Its process, as for [`AttachmentStatus::pid`].
    pub pid: Option<u32>,
    /// Where its working state is.
    pub residence: ResidenceStatus,
    /// Its frame, if it has one.
    pub frame: Option<u32>,
    /// Visits in a round of the schedule.
    pub weight: u32,
    /// Its lines.
    pub lines: u32,
    /// Descriptors taken from it: records, and control words about lines.
    pub sent: u64,
    /// Descriptors stored for it.
    pub received: u64,
    /// Descriptors stored for it that its program has not taken, as far as is known.
    pub not_taken: u64,
    /// Records that were refused for now because it had no room.
    pub refused: u64,
    /// Whether refused lines, or paused streams of other hosts, wait for room at it.
    pub has_stalled: bool,
}

/// What holds the records of a line back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineLimit {
    /// Nothing.
    Nothing,
    /// The endpoint at the other end has no room.
    Peer,
    /// The stream to the other host has no room.
    Network,
}

/// One end of a line: what the endpoint here sends to the one at the other end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LineStatus {
    /// The name of the endpoint here.
    pub endpoint: String,
    /// Its attachment.
    pub attachment: u32,
    /// The line's number in that attachment.
    pub line: u32,
    /// The name of the endpoint at the other end, if that is on this host.
    pub peer: Option<String>,
    /// The other host, if the other end is on another host.
    pub host: Option<String>,
    /// Bytes that were handed over and are not known to be taken.
    pub under_way_bytes: u64,
    /// What holds its records back.
    pub limit: LineLimit,
}

/// The end of an answer, with totals of what was looked at: of the tool's own user, unless the answer covers all users.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EndStatus {
    /// Endpoints with a frame.
    pub resident: u64,
    /// Endpoints that wait for one.
    pub waiting: u64,
    /// Endpoints with nothing to do.
    pub idle: u64,
    /// Ends of lines.
    pub lines: u64,
    /// Ends of lines that are stalled because their peer has no room.
    pub stalled: u64,
}
