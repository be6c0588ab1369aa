//! weft: fast, protected communication between ordinary Linux processes.
//!
//! A process makes a [`Node`] and, in it, [bundles](Bundle) of endpoints. It gives the endpoints' [`Name`]s and
//! [`Key`]s to its peers in any way it likes. Endpoints that name each other in their translation tables form a virtual
//! network. Messages between processes of one host go directly from memory to memory.
//!
//! ```
//! use weft::{Bundle, Key, Node};
//!
//! let node = Node::new()?;
//! let mut bundle = Bundle::new(&node)?;
//! let key = Key(7);
//! let adder = bundle.endpoint(key)?;
//! bundle.on(adder, 1, |m| {
//!     let sum = m.args().iter().sum();
//!     m.reply(2, &[sum], b"").ok(); // nobody waits for an answer to a one-way message
//! })?;
//!
//! // Usually in another process, which got the name from this one.
//! let name = bundle.name(adder)?;
//! let caller = bundle.endpoint(Key(8))?;
//! let answer = std::rc::Rc::new(std::cell::Cell::new(None));
//! let seen = answer.clone();
//! bundle.on(caller, 2, move |m| seen.set(Some(m.args()[0])))?;
//! bundle.map(caller, 0, name, key)?;
//! bundle.request(caller, 0, 1, &[40, 2], b"")?;
//! bundle.poll_until(|_| answer.get().is_some());
//! assert_eq!(answer.get(), Some(42));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`names`] serves names and keys at a port, so that peers can look them up by host and port. [`queue`] keeps messages for
//! destinations that have no room just now.
//!
//! Handlers run inside [`poll`](Bundle::poll), [`wait`](Bundle::wait) and [`serve`](Bundle::serve) only. While a program
//! does none of these, the node's helper thread keeps the protocol going: it answers callers, acknowledges and repeats
//! messages between hosts, and notices deaths.
#![deny(unsafe_code)]

pub mod am;
mod bells;
mod buffers;
mod bundle;
mod daemon;
mod foreigners;
mod home;
pub mod memory;
pub mod names;
mod net;
mod node;
mod office;
mod owner;
mod paths;
pub mod queue;
mod readers;
mod reception;
mod settings;
mod setup;
mod socket;
pub mod status;
pub mod tagged;
mod watch;
mod watched;

/// What a program needs to write its own client: see [`Bundle::attach`].
pub mod client {
    /// The sending end of a path to a peer: shared memory on this host, the network to other hosts.
    pub use crate::paths::Outlet;
    pub use weft_core::{Client, Delivery, FlowId, Get, Long, Memory, ReplyToken, SessionId, State};
    pub use weft_wire::path::{Abandoned, Fate, PushError, Traffic, Tx, SMALL_MOST};
    pub use weft_wire::{Credit, Head, Kind, Malformed};
}

pub use bundle::{AnyThread, Bundle, Held, InHandler, OneThread, SharedBundle, Threads, Waited, Waker};
pub use node::{Error, Node};
pub use weft_core::{
    Admission, Contents, Counters, Endpoint, Event, EventMask, MessageKind, Outgoing, Placed, Reliability, ReplyError,
    Returned, SendError, Service, Settings, Transfer,
};
pub use weft_link::NetworkError;
pub use weft_link::Ports;
pub use weft_shm::Forked;
pub use weft_wire::packet::Integrity;
pub use weft_wire::{
    Certainty, EndpointId, Epoch, HostAddress, Key, KeyError, Name, NameError, Reason, Uid, MAX_ARGS, MAX_PAYLOAD,
};
