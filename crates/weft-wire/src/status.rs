//! What weftd tells of itself to a tool that looks at it.
//!
//! The tool sends [`Message::Look`](crate::attach::Message::Look) on the daemon's socket. The daemon answers with packets, each of which is a
//! list of [`Item`]s as JSON, and hangs up behind [`Item::End`]. An item is of the moment at which it was made; the items of an answer are
//! of several moments, so that an answer of any length holds up no messages. `docs/looking.md` is for users.
//!
//! Names of fields are for programs that read them: none changes its meaning; new ones may come.

use crate::packet::Integrity;
use crate::{EndpointId, Epoch};
use serde::{Deserialize, Serialize};

/// The version of the answer.
pub const STATUS_VERSION: u32 = 1;

/// Bytes of a packet of an answer, at most.
pub const ITEMS_BYTES: usize = 64 << 10;

/// What a tool is told of, beside the daemon itself, quotas, hosts and attachments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Nothing.
    Totals,
    /// Endpoints that are resident, wait for a frame, or have no room, and lines that stand still.
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
    /// The daemon: first, and once.
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
    /// Its process, as it knows itself.
    pub pid: u32,
    /// Its user, likewise.
    pub uid: u32,
    /// For how long it runs.
    pub runs_ms: u64,
    /// Whether the tool is told of all users. Otherwise attachments, endpoints and lines are those of its own user, and no hosts are told.
    pub tells_all: bool,
    /// What it does without, and what would help.
    pub degraded: Vec<String>,
    /// Its address in the names of endpoints, if it has a network.
    pub address: Option<String>,
    /// Frames.
    pub frames: u64,
    /// Frames with an endpoint.
    pub frames_used: u64,
    /// How an endpoint is chosen that gives its frame away.
    pub policy: String,
    /// Attachments, of all users.
    pub attachments: u64,
    /// Endpoints, of all users.
    pub endpoints: u64,
    /// What all users hold together, and may hold.
    pub limits: Vec<QuotaStatus>,
    /// What was counted since it began.
    pub counters: DaemonCounters,
    /// The network, if it has one.
    pub network: Option<NetworkStatus>,
}

/// What a daemon counted since it began.
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
    /// Packets that were dropped because they were damaged or are none.
    pub packets_damaged: u64,
    /// Whole packets that were refused: forged, copies, of another life, or from elsewhere than their peer.
    pub packets_refused: u64,
}

/// What is held of a thing that is counted for each user.
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
    /// Where packets go to it.
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
    /// Bytes that may be so.
    pub window_bytes: u64,
    /// Records wait for room there.
    pub waits_for_peer: bool,
    /// How often in a row nothing was heard in time.
    pub silences: u32,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets taken in.
    pub packets_received: u64,
    /// Packets taken for lost.
    pub packets_lost: u64,
}

/// A bundle that uses the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttachmentStatus {
    /// Its number, which is used again.
    pub attachment: u32,
    /// Its user.
    pub uid: u32,
    /// The process that attached it, as the kernel says, if that is in the daemon's process namespace.
    pub pid: Option<u32>,
    /// The life in the names of its endpoints: 16 hexadecimal digits.
    pub epoch: String,
    /// Its endpoints.
    pub endpoints: u64,
    /// Its ends of lines.
    pub lines: u64,
    /// Its program sleeps until the daemon wakes it.
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
    /// Its name. The key is not told.
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
    /// Descriptors taken from it: records, and words about lines.
    pub sent: u64,
    /// Descriptors stored for it.
    pub received: u64,
    /// Those of them that its program has not taken, as far as is known.
    pub not_taken: u64,
    /// Records that were refused here for now, because it had no room.
    pub refused: u64,
    /// Lines that were refused here, or streams of other hosts that were paused, wait for room.
    pub has_stalled: bool,
}

/// What keeps the records of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineLimit {
    /// Nothing does.
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
    /// The number of the line there.
    pub line: u32,
    /// The name of the endpoint at the other end, if it is of this host.
    pub peer: Option<String>,
    /// The other host, if it is of another one.
    pub host: Option<String>,
    /// Bytes that were handed over and are not known to be taken.
    pub under_way_bytes: u64,
    /// What keeps its records.
    pub limit: LineLimit,
}

/// The end of an answer, with what was seen on the way: of the tool's own user if it is not told of all.
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
    /// Those of them that stand still, because their peer has no room.
    pub stalled: u64,
}
