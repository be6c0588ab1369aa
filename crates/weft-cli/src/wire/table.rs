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
    /// Not 0 where the user asked for a fault that is counted there.
    #[serde(skip)]
    pub asked: Counts,
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
    /// The table. A row of zeros in both directions is left out unless it is always shown, or the user asked for that fault: then
    /// 0 is news.
    pub fn text(&self) -> String {
        let Document { seed, seconds, directions, asked } = self;
        let titles = directions.each_ref().map(|way| format!("{} → {}", way.from, way.to));
        let mut table = new(&["", &titles[0], &titles[1]]);
        let [there, back] = directions.each_ref().map(|way| way.counts.each());
        for (at, (((words, there), (_, back)), (_, asked))) in there.zip(back).zip(asked.each()).enumerate() {
            if at < ALWAYS || there > 0 || back > 0 || asked > 0 {
                table.add_row([Cell::new(words), right(there.to_string()), right(back.to_string())]);
            }
        }
        format!("{table}\nfor {seconds:.1} s, seed {seed}\n")
    }
}

/// The first rows, frames and bytes, are always shown.
const ALWAYS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::faults::Wanted;
    use crate::wire::scenario::{Scenario, Step};
    use crate::wire::values::Nanos;

    #[test]
    fn the_row_of_a_fault_that_was_asked_for_is_shown_though_there_was_none() {
        let text = |scenario: &Scenario| {
            let way = |from: &str, to: &str| Direction { from: from.into(), to: to.into(), counts: Counts::default() };
            let directions = [way("here", "there"), way("there", "here")];
            Document { seed: 0, seconds: 1.0, directions, asked: scenario.asked() }.text()
        };
        let wanted = |word, value| {
            let mut wanted = Wanted::default();
            wanted.set(word, value).expect("a fault");
            wanted
        };
        let none = text(&Scenario::default());
        assert!(none.contains("frames") && none.contains("bytes") && !none.contains("lost"), "{none}");
        let words = [
            ("loss", "5%", "lost "),
            ("burst", "1%,5", "lost in bursts"),
            ("delay", "1ms", "delayed"),
            ("jitter", "1ms", "delayed"),
            ("rate", "1Gbit", "dropped, queue full"),
            ("reorder", "1%", "reordered"),
            ("duplicate", "1%", "duplicated"),
            ("corrupt", "1%", "corrupted"),
            ("mtu", "1400", "lost as too large"),
        ];
        for (word, value, row) in words {
            let first = Scenario { first: wanted(word, value), ..Scenario::default() };
            assert!(text(&first).contains(row), "{word}: {}", text(&first));
            let step = Step { at: Nanos(1), wanted: wanted(word, value) };
            let later = Scenario { steps: vec![step], ..Scenario::default() };
            assert_eq!(text(&later), text(&first));
        }
    }
}
