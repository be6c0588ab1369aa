//! Remote memory: *regions* that peers read, write and change by atomic operations, under *keys* and *cookies*; and the operations on
//! regions of others. A client of the one-way message. `docs/design/memory.md` has the reasons.
//!
//! Nothing here knows an operating system. What memory is, a [`Platform`] says: the crate `weft` has windows of real memory, tests and
//! the simulator have [`testing`]'s.
//!
//! * [`Engine`]: what an endpoint for remote memory knows, as owner of regions and as initiator of operations.
//! * [`Table`]: the regions and cookies of an endpoint, and who may do what with them.
#![forbid(unsafe_code)]

mod direct;
mod engine;
mod flush;
mod initiator;
mod lists;
mod offers;
mod owner;
mod platform;
mod report;
mod table;
mod tally;
pub mod testing;

pub use direct::{Mappable, Mapped};
pub use engine::{Completion, Counters, Engine, Notice, Outcome, PostError, Settings};
pub use flush::{Ticket, INLINE_MOST};
pub use initiator::{Change, Fetch, Write};
pub use lists::{Buffers, ReadList, WriteList, LIST_MOST};
pub use platform::{Close, Closer, Missed, NoReach, NotPulled, Platform, Proof, Pulled, Reach, Source, Space, Target};
pub use report::{RegionReport, Report, LARGEST_MOST};
pub use table::{Cookie, CookieError, Grant, Part, RegionError, RegionId, Rights, Table};
pub use tally::Tally;
