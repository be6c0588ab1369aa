//! Tallies: numbers that grow with each operation of a peer on a region. For programs that wait for a number of operations, not for
//! notices.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Where a region's owner counts peers' operations on it. Any thread may read and set each number at any time, and regions may share one.
///
/// An operation counts once, when all of it is carried out. One that is refused does not count; a list counts with its last part. (libfabric's counters of remote
/// accesses, `FI_RMA_EVENT`.)
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Reads.
    pub reads: Option<Arc<AtomicU64>>,
    /// Writes, and atomic operations that return no old values.
    pub writes: Option<Arc<AtomicU64>>,
    /// Atomic operations that return old values.
    pub fetches: Option<Arc<AtomicU64>>,
}

/// The kinds of operations that are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    Fetch,
}

impl Tally {
    pub(crate) fn add(&self, access: Access) {
        let number = match access {
            Access::Read => &self.reads,
            Access::Write => &self.writes,
            Access::Fetch => &self.fetches,
        };
        if let Some(number) = number {
            // Release: a thread that sees the number sees what was written before.
            number.fetch_add(1, Ordering::Release);
        }
    }
}
