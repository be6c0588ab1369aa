//! The goals for C relative to Rust.

use super::plan::{By, What};
use crate::bench::goals::{Asked, Goal};
use crate::bench::meter::Sampled;
use crate::bench::results::Results;

/// The bounds of a round trip and of a rate in C relative to Rust. A call or a handler in C may take 40 instructions more, and a
/// short round trip has eight of them.
const ROUND_TRIP_MOST: f64 = 1.25;
const RATE_LEAST: f64 = 0.8;

/// The goals for one place.
pub fn goals(place: &str, all: &[What], results: &Results) -> Vec<Goal> {
    let of = |&what: &What| {
        let value = ratio(results, what)?;
        let asked = match what {
            What::RoundTrip(_) => Asked::AtMost(ROUND_TRIP_MOST),
            What::Rate(_) | What::Stream(_) => Asked::AtLeast(RATE_LEAST),
        };
        Some(Goal { what: format!("{place}, {}: C ÷ Rust", what.title()), value, asked, unit: "" })
    };
    all.iter().filter_map(of).collect()
}

/// A figure in C divided by the one in Rust: the median of the rounds' ratios.
pub fn ratio(results: &Results, what: What) -> Option<f64> {
    let medians = |c: Sampled, rust: Sampled| c.median / rust.median;
    results.compare(&what.key(By::C), &what.key(By::Rust), medians)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{all, Extent};
    use super::*;
    use crate::bench::results::Run;

    #[test]
    fn a_ratio_is_taken_in_each_round_and_the_median_of_the_rounds_counts() {
        let all = all(Extent::Quick);
        let trip = all.iter().copied().find(|what| matches!(what, What::RoundTrip(_))).expect("there are some");
        let mut results = Results::default();
        for (by, medians) in [(By::C, [2.0, 11.0, 8.0]), (By::Rust, [1.0, 10.0, 2.0])] {
            for (round, median) in (0..).zip(medians) {
                let sampled = Sampled { median, p99: median, mean: median, n: 1 };
                results.add(trip.key(by), Run { round, sampled, detail: None });
            }
        }
        let goals = goals("one host", &all, &results);
        assert!(matches!(&goals[..], [goal] if goal.value == 2.0 && !goal.asked.holds(2.0)), "{goals:?}");
    }
}
