//! The engine of weftd: it moves messages between endpoints whose programs do not trust each other.
//!
//! A value that is polled: no operating system, no clock, no thread. The process `weftd` gives it the memory that it shares with programs
//! ([`Segment`](weft_wire::segment::Segment)); the simulator and the tests give it ordinary memory. `docs/design/weftd.md` has the design.
//!
//! ```text
//! attach(..)    a program came; detach(..) it went
//! poll(..)      bells, requests, endpoints in turn; returns how much was done
//! take_wakes()  the attachments to wake, for something came and they sleep
//! take_broken() the attachments that broke the protocol: to be detached
//! next_time()   when the next turn is due; look_before_sleep() before the process sleeps
//! survey(..)    what it is at, a piece at a time
//! ```
#![forbid(unsafe_code)]

mod deliver;
mod engine;
mod far;
mod frames;
mod lines;
mod pages;
mod queue;
mod quota;
mod rates;
mod requests;
mod residency;
mod rows;
mod status;
pub mod testing;
mod visit;

pub use engine::{AttachmentId, Counters, Engine, Newcomer, NoLink, Refused, Settings};
pub use far::HELD_MOST;
pub use frames::Policy;
pub use quota::{Limits, Quota};
pub use rates::Rates;
pub use status::Survey;
