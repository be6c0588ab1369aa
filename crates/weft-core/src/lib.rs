//! The core: endpoints that form virtual networks, and the one-way message on which everything is built.
//!
//! Nothing here depends on an operating system: records come from and go to the ends of paths (`weft_wire::path`), the
//! home that owns the bundle sets sessions up (the in-process one is in the crate `weft`), and there is no clock, no
//! thread and no randomness. The simulator and the tests run this same code.
//!
//! * [`Bundle`]: the unit of polling; owns the reading ends of its sessions.
//! * [`State`]: the rest of a bundle, which a handler may use while it runs.
//! * [`Client`]: handles the messages of an endpoint. The core knows no client by name.
//! * [`Sink`]: receives a bundle's messages; it knows the client of each endpoint.
//! * [`bulk`]: contents of any length, in pieces; for all clients.
//!
//! # What becomes of a message
//!
//! A one-way message ends *delivered* or *returned*, a request ends *answered* or *returned*. A returned message comes
//! with its contents, a [`Reason`](weft_wire::Reason) and a [`Certainty`](weft_wire::Certainty).
#![forbid(unsafe_code)]

pub mod admission;
pub mod bulk;
mod bundle;
mod client;
mod endpoint;
mod event;
mod long;
mod message;
mod moving;
pub mod ni;
mod place;
pub mod port;
mod receive;
pub mod report;
mod service;
mod session;
mod settle;
mod state;
pub mod testing;

pub use admission::{Admission, Admitted};
pub use bundle::Bundle;
pub use client::{Client, Sink};
pub use endpoint::Endpoint;
pub use event::{Counters, Event, EventMask, MessageKind, Returned};
pub use long::{Contents, Get, Long, Memory, Placed, Transfer};
pub use message::{Delivery, Outgoing, ReplyError, ReplyToken, SendError};
pub use moving::{Back, Errand, Luggage};
pub use report::Report;
pub use service::{Reliability, Service};
pub use session::{FlowId, PeerId, SessionId};
pub use state::asked::Reserved;
pub use state::{Call, Settings, State, Tally};
