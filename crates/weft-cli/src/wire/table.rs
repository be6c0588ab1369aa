//! The wire's counts, as a table and as a document.

use super::counts::Counts;
use crate::bench::table::{new, right};
use comfy_table::Cell;
use serde::Serialize;

/// The document that `--json` writes.
#[derive(Debug, Serialize)]
pub struct Document {
    /// The seed that repeats the faults.
    pub seed: u64,
    pub seconds: f64,
    pub directions: [Direction; 2],
}

/// One direction.
#[derive(Debug, Serialize)]
pub struct Direction {
    pub from: String,
    pub to: String,
    #[serde(flatten)]
    pub counts: Counts,
}

impl Document {
    /// The table. A row of zeros in both directions is left out unless it is always shown.
    pub fn text(&self) -> String {
        let Document { seed, seconds, directions } = self;
        let titles = directions.each_ref().map(|way| format!("{} → {}", way.from, way.to));
        let mut table = new(&["", &titles[0], &titles[1]]);
        let [there, back] = directions.each_ref().map(|way| way.counts.each());
        for (at, ((words, there), (_, back))) in there.zip(back).enumerate() {
            if at < ALWAYS || there > 0 || back > 0 {
                table.add_row([Cell::new(words), right(there.to_string()), right(back.to_string())]);
            }
        }
        format!("{table}\nfor {seconds:.1} s, seed {seed}\n")
    }
}

/// The first rows, frames and bytes, are always shown.
const ALWAYS: usize = 2;
