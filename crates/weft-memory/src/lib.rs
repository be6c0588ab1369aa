//! Remote memory: *regions* that peers read, write and change by atomic operations, under *keys* and *cookies*; and operations on peers'
//! regions. A client of the one-way message. `docs/design/memory.md` has the reasons.
//!
//! Nothing here knows an operating system. A [`Platform`] supplies the memory: the crate `weft` has windows of real memory, tests and the
//! simulator use [`testing`].
//!
//! * [`Engine`]: an endpoint for remote memory, as owner of regions and as initiator of operations.
//! * [`Table`]: the regions and cookies of an endpoint, and the rights to them.
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
