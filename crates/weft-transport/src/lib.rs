//! The protocol between hosts, without I/O, clock or randomness of its own: time, packets and random numbers come in as
//! arguments, packets go out through the caller's buffer.
//!
//! * [`Channel`]: the engine, one per pair of network interfaces. It carries streams of records over packets that may
//!   be lost, duplicated, reordered, damaged or forged.
//! * [`Door`]: answers packets that belong to no channel. It makes callers prove that they own their address.
//! * [`rtt`], [`sack`], [`congestion`], [`cookie`]: parts of the two.
//! * [`testing`]: a link in memory, in virtual time, with faults; [`rare`]: rare code paths that tests take on purpose.
//!
//! It also has, for all kinds of paths, the [`window`] of outstanding requests and the [`credit`] of one-way messages.
#![forbid(unsafe_code)]

pub mod channel;
pub mod congestion;
pub mod cookie;
pub mod credit;
pub mod door;
pub mod random;
pub mod ranges;
pub mod rare;
pub mod rtt;
pub mod sack;
pub mod sequence;
pub mod testing;
pub mod time;
pub mod window;

mod bytes;
mod cuts;
mod incoming;
mod kept;
mod memory;
mod outgoing;
mod packet_size;
mod sent;
mod starts;

pub use channel::{Channel, Counters, Event, Life, Loose, Lot, OpenError, Settings, SharedRoom, Verdict};
pub use congestion::{Acked, Congestion, Control, DelayWindow, FixedWindow, Method};
pub use credit::{CreditAccount, CreditDue, Grant};
pub use door::{Answer, Caller, Door};
pub use incoming::Incoming;
pub use memory::{Memory, Packets};
pub use random::Random;
pub use time::Time;
pub use window::Window;
