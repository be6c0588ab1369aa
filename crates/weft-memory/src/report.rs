//! What an endpoint for remote memory reports to a process that inspects its own: never a key, a cookie or a secret.

use crate::engine::{Counters, Engine};
use crate::platform::{Platform, Space};
use crate::table::Rights;

/// Regions that are reported one by one, at most: the largest ones.
pub const LARGEST_MOST: usize = 8;

/// The state of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Regions that are open.
    pub regions: usize,
    /// Bytes of these.
    pub bytes: u64,
    /// Regions that were revoked since the endpoint was made.
    pub revoked: u64,
    /// Cookies that are valid.
    pub cookies: usize,
    /// The largest regions, the largest one first: at most [`LARGEST_MOST`].
    pub largest: Vec<RegionReport>,
    /// What was counted.
    pub counters: Counters,
    /// Notices of peers' writes that the program has not taken.
    pub notices: usize,
    /// Operations on peers' regions that have not ended.
    pub pending: usize,
    /// Completions that the program has not taken.
    pub completions: usize,
}

/// A region that is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionReport {
    /// Its index in the table, which another region may have had before.
    pub index: u32,
    /// How many bytes it has.
    pub bytes: u64,
    /// What its key allows.
    pub rights: Rights,
    /// Whether the program lent the memory.
    pub is_lent: bool,
    /// Peers that map it.
    pub mapped: u32,
}

impl<P: Platform> Engine<P> {
    /// Writes the state of the endpoint over an older report. The cost does not depend on the number of regions.
    pub fn report_into(&self, report: &mut Report) {
        let table = self.table();
        let mut largest = std::mem::take(&mut report.largest);
        largest.clear();
        largest.extend(table.largest().take(LARGEST_MOST).map(|(id, rights, space)| RegionReport {
            index: id.index(),
            bytes: space.len(),
            rights,
            is_lent: space.is_lent(),
            mapped: table.mapped(id),
        }));
        *report = Report {
            regions: table.open_regions(),
            bytes: table.bytes(),
            revoked: table.revoked(),
            cookies: table.cookies(),
            largest,
            counters: self.counters(),
            notices: self.notices(),
            pending: self.pending_in_all(),
            completions: self.completions(),
        };
    }
}
