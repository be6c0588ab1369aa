//! Many hosts in one thread and in virtual time, over links that lose, delay, duplicate, reorder and damage packets.
//!
//! The hosts run the code that ships: bundles and network interfaces of `weft_core` over channels of `weft_transport`. A
//! [`Program`] of the user's own, or a [`Workload`], says what they do. The same seed gives the same run on every machine, and
//! [`Report::hash`] tells whether two runs were the same. A checker holds every message to what weft promises: it ends in exactly
//! one outcome, whatever happens to links and hosts. `docs/design/sim.md` says what is simulated, and how.
//!
//! ```
//! use std::time::Duration;
//! use weft_sim::{Config, Faults, Simulation, Workload};
//!
//! let config = Config { seed: 7, faults: Faults::loss(300_000), ..Config::default() };
//! let workload = Workload::ping_pong(1000);
//! let mut simulation = Simulation::new(config, move |host| workload.program(host, 2));
//! let report = simulation.settle(Duration::from_secs(600)).expect("every promise is kept");
//! assert_eq!(report.messages.completed, 1000);
//! ```
#![forbid(unsafe_code)]

mod channels;
mod chaos;
mod checker;
mod clock;
pub mod congestion;
pub mod contention;
mod cubic;
mod faults;
mod histogram;
mod host;
mod model;
mod network;
pub mod plot;
mod program;
mod queue;
mod series;
mod simulation;
mod topology;
mod trace;
mod workload;

pub use channels::{Channels, StopAndWait, TRIES_MOST};
pub use chaos::chaos;
pub use checker::{Messages, Violation, Wrong};
pub use clock::ClockChange;
pub use cubic::{Cubic, CubicReceiver, CubicSender};
pub use faults::{Bursts, Done, Faults, Loss, PerMillion, Rule, Target};
pub use histogram::Histogram;
pub use host::{Outlet, Plant};
pub use model::{Model, Wire};
pub use network::{Link, SimLink};
pub use program::{Context, Message, Notice, Program, ReplyToken};
pub use series::{Sample, Series};
pub use simulation::{Change, Config, Failure, Report, Simulation};
pub use topology::{HostId, Links, Topology, HOSTS_MOST};
pub use weft_core::report::HostReport;
pub use weft_core::{Client, Delivery, Endpoint, Event, FlowId, State};
pub use weft_core::{MessageKind, Outgoing, Reliability, ReplyError, Returned, SendError, Service};
pub use weft_transport::{Counters, Method, Random, Settings, Time};
pub use weft_wire::packet::Integrity;
pub use weft_wire::{Certainty, Reason};
pub use workload::{Load, Pattern, Workload};
