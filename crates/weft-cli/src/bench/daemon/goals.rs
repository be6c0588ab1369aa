//! Goals for weftd, relative to programs without it and to itself without remappings.

use super::plan::{Beside, Way, What, SMALL, WAYS};
use crate::bench::goals::{Asked, Goal};
use crate::bench::results::{Metric, Results};
use crate::bench::runner::waiting_way;
use crate::bench::table::bytes;
use crate::bench::talk::Waiting;

/// The bounds of a round trip through weftd relative to one without it, and of the 99th percentile during remappings relative to a
/// quiet daemon.
const ROUND_TRIP_MOST: f64 = 2.5;
const TAIL_MOST: f64 = 1.5;

/// The goals for two programs. `place` says where they are.
pub fn of_pair(place: &str, results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for waiting in WAYS {
        for size in sizes(results) {
            let key = |way| What::RoundTrip(size, waiting).key(way);
            let value = results.compare(&key(Way::Through), &key(Way::Without), |a, b| a.median / b.median);
            let what = format!("{place}, round trip, {}, {}: weftd ÷ without", bytes(size), waiting_way(waiting).1);
            goals.extend(value.map(|value| Goal { what, value, asked: Asked::AtMost(ROUND_TRIP_MOST), unit: "" }));
        }
    }
    goals
}

/// The goals for round trips during remappings.
pub fn of_hot(results: &Results) -> Vec<Goal> {
    let of = |waiting: Waiting| {
        let [quiet, beside] = Beside::BOTH.map(|beside| beside.key(waiting));
        let value = results.compare(&beside, &quiet, |a, b| a.p99 / b.p99)?;
        let what = format!("round trip, {SMALL} B, {}: p99 beside remappings ÷ quiet", waiting_way(waiting).1);
        Some(Goal { what, value, asked: Asked::AtMost(TAIL_MOST), unit: "" })
    };
    WAYS.into_iter().filter_map(of).collect()
}

/// The sizes of round trips measured without weftd.
fn sizes(results: &Results) -> Vec<usize> {
    let key = |series: &crate::bench::results::Series| {
        let is_it = series.key.metric == Metric::Rtt && series.key.system == Way::Without.system();
        is_it.then_some(series.key.size)
    };
    let mut sizes: Vec<usize> = results.series().iter().filter_map(key).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::meter::Sampled;
    use crate::bench::results::{Key, Run};

    fn add(results: &mut Results, key: Key, rounds: [(f64, f64); 3]) {
        for (round, (median, p99)) in (0..).zip(rounds) {
            let sampled = Sampled { median, p99, mean: median, n: 1 };
            results.add(key.clone(), Run { round, sampled, detail: None });
        }
    }

    #[test]
    fn a_ratio_is_taken_in_each_round_and_the_median_of_the_rounds_counts() {
        let mut results = Results::default();
        let what = What::RoundTrip(SMALL, Waiting::Polls);
        add(&mut results, what.key(Way::Without), [(1.0, 1.0), (10.0, 10.0), (2.0, 2.0)]);
        add(&mut results, what.key(Way::Through), [(3.0, 9.0), (20.0, 90.0), (4.0, 9.0)]);
        let goals = of_pair("one host", &results);
        assert_eq!(goals.len(), 1, "the others were not measured");
        assert!(goals[0].value == 2.0 && goals[0].asked.holds(goals[0].value), "{goals:?}");
    }

    #[test]
    fn beside_remappings_the_slow_round_trips_count() {
        let mut results = Results::default();
        add(&mut results, Beside::Quiet.key(Waiting::Waits), [(1.0, 10.0); 3]);
        add(&mut results, Beside::Remappings.key(Waiting::Waits), [(1.0, 16.0); 3]);
        let goals = of_hot(&results);
        assert!(matches!(&goals[..], [goal] if goal.value == 1.6 && !goal.asked.holds(goal.value)), "{goals:?}");
    }
}
