//! What processes of weft are at, read from outside while they run.
//!
//! A node with a helper has a second abstract Unix socket, its *status socket*. To whoever connects to it the helper tells, in one
//! document of JSON, what the node's bundles last reported, and closes. Bundles report when they are asked to, in their next poll
//! or wait, and whenever they rest, some tenths of a second apart; of one that computes the last report is told, with its age.
//! Only the own user is told, and root. A node without a helper cannot be looked at.
//!
//! Messages cost nothing for it: reports are made of what is there anyway.
//!
//! weftd is asked at the socket where programs attach, by [`look_at_daemon`].
//!
//! [`trace`] asks for more: that some requests be *stamped* on their way for the next two seconds, which costs while it lasts. Who asks so
//! says it by the name that its own socket is bound to, which begins with `weft-stamps-`.

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

/// What the name of a status socket begins and ends with; the epoch is between them.
const BEFORE_EPOCH: &str = "weft1-";
const BEHIND_EPOCH: &str = "-status";

/// What the name of an asker's socket begins with that has messages stamped; what follows tells it from others.
const ASKS_FOR_STAMPS: &str = "weft-stamps-";

/// The address of the status socket of an epoch.
fn address(epoch: Epoch) -> Result<SocketAddrUnix, Error> {
    let name = format!("{BEFORE_EPOCH}{}{BEHIND_EPOCH}", digits(epoch));
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|e| Error::system("cannot name the status socket", e, "this kernel has no abstract Unix sockets"))
}

/// An epoch, as everything here says it.
fn digits(epoch: Epoch) -> String {
    format!("{:016x}", epoch.0)
}
