//! weft: fast, protected communication between ordinary Linux processes.
//!
//! A process makes a [`Node`], in it [bundles](Bundle) of endpoints, and gives the endpoints' [`Name`]s and [`Key`]s to
//! its peers by any rendezvous. Endpoints that name each other in their translation tables form a virtual network; messages
//! between processes of one host go straight from memory to memory.
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
//! // Usually in another process, which got the name by any way there is.
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
//! Handlers run inside [`poll`](Bundle::poll) and [`wait`](Bundle::wait) only. What goes on while a program does neither, its node's helper thread
//! does: callers are answered, messages between hosts acknowledged and sent again, deaths noticed.
#![deny(unsafe_code)]

pub mod am;
mod bells;
mod bundle;
mod foreigners;
mod home;
mod net;
mod node;
mod office;
mod owner;
mod paths;
mod reception;
mod setup;
pub mod status;
pub mod tagged;
mod watch;
mod watched;

/// What a client of a program's own is written with: see [`Bundle::attach`].
pub mod client {
    /// The sending end of a path to a peer: memory on this host, the network to others.
    pub use crate::paths::Outlet;
    pub use weft_core::{Client, Delivery, FlowId, ReplyToken, State};
    pub use weft_wire::path::Tx;
}

pub use bundle::{AnyThread, Bundle, InHandler, OneThread, SharedBundle, Threads, Waited, Waker};
pub use net::address::Ports;
pub use net::NetworkError;
pub use node::{Error, Node};
pub use weft_core::{
    Admission, Counters, Endpoint, Event, EventMask, MessageKind, Outgoing, Reliability, ReplyError, Returned,
    SendError, Service, Settings,
};
pub use weft_wire::{
    Certainty, EndpointId, HostAddress, Key, KeyError, Name, NameError, Reason, Uid, MAX_ARGS, MAX_PAYLOAD,
};
