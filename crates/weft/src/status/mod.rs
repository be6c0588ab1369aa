//! The status of weft processes, read from outside while they run.
//!
//! A node with a helper has a second abstract Unix socket, its *status socket*. When a client connects, the helper sends the last
//! reports of the node's bundles, in one JSON document, and closes. Bundles report when asked, in their next poll or wait, and
//! whenever they rest, some tenths of a second apart. For a bundle that computes, the helper sends the last report with its age.
//! Only the same user and root get an answer. A node without a helper has no status socket.
//!
//! This costs messages nothing: reports are made from state that exists anyway.
//!
//! weftd is asked at the socket where programs attach, by [`look_at_daemon`].
//!
//! [`trace`] asks for more: some requests are *stamped* on their way for the next two seconds, which has a cost while it lasts. A
//! client asks for this by binding its own socket to a name that begins with `weft-stamps-`.

mod ask;
pub(crate) mod board;
mod daemon;
pub(crate) mod desk;
mod document;
pub(crate) mod recorder;
pub(crate) mod stamps;
mod way;

pub use ask::{look, trace, Found, Look, Silence};
pub use daemon::{look_at_daemon, Attaches, DaemonAnswer, DaemonFound, DaemonSilence};
pub use document::{
    Activity, Bundle, Counters, Destination, Endpoint, FlowFrom, FlowTo, Limit, Network, Path, Peer, Process, Region,
    RemoteMemory, RemoteMemoryCounters, VERSION,
};

pub use stamps::{Answered, Asked, Operation, StampedFlow, Stamps};

pub use crate::settings::switch;
pub use way::{interface_of, left_out, sends_pages, way_to, Holder, Leg, Way, Why};
pub use weft_link::address::LeftOut;
pub use weft_wire::status::{
    AttachmentStatus, DaemonCounters, DaemonStatus, EndStatus, EndpointStatus, HostStatus, LineLimit, LineStatus,
    NetworkStatus, QuotaStatus, ResidenceStatus, Scope, UserStatus, STATUS_VERSION,
};

use crate::node::Error;
use rustix::net::SocketAddrUnix;
use weft_wire::Epoch;

/// Bytes of the longest answer.
const ANSWER_MOST: usize = 8 << 20;

/// Prefix and suffix of the name of a status socket; the epoch is between them.
const BEFORE_EPOCH: &str = "weft1-";
const BEHIND_EPOCH: &str = "-status";

/// Prefix of the socket name of a client that asks for stamps. The rest makes the name unique.
const ASKS_FOR_STAMPS: &str = "weft-stamps-";

/// The address of the status socket of an epoch.
fn address(epoch: Epoch) -> Result<SocketAddrUnix, Error> {
    let name = format!("{BEFORE_EPOCH}{}{BEHIND_EPOCH}", digits(epoch));
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|e| Error::system("cannot name the status socket", e, "this kernel has no abstract Unix sockets"))
}

/// The text of an epoch.
fn digits(epoch: Epoch) -> String {
    format!("{:016x}", epoch.0)
}
