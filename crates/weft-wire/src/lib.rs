//! Formats that two sides of a trust boundary share: names and ids, the header of a record in a ring, the messages of the
//! set-up socket, and the packets between hosts. Nothing here does I/O, or allocates for each message.
//!
//! Every decoder is total: any bytes give a value or an error, never a panic.
#![forbid(unsafe_code)]

pub mod attach;
pub mod descriptor;
mod error;
pub mod frame;
pub mod job;
pub mod memory;
pub mod name;
pub mod packet;
pub mod path;
pub mod proof;
pub mod reason;
pub mod record;
pub mod rendezvous;
pub mod segment;
pub mod setup;
pub mod status;
pub mod tagged;

pub use name::{BundleId, EndpointId, Epoch, HostAddress, Key, KeyError, Name, NameError, Uid, ADDRESSES_MOST};
pub use reason::{Certainty, Reason, FORKED};
pub use record::{Credit, Head, HeadWords, Kind, Malformed, LINE, MAX_ARGS, MAX_PAYLOAD};

/// The version of everything in this crate. Two sides talk only if it is equal; a change of any format changes it.
pub const VERSION: u16 = 3;
