//! Goals for weft between hosts, relative to bare UDP in the same round.

use super::plan::{LARGE, SMALL};
use super::runner::mixed_key;
use crate::bench::goals::{Asked, Goal};
use crate::bench::mixed::{Beside, Route};
use crate::bench::results::{Key, Metric, Results, Way};

/// All goals for which both sides were measured.
pub fn goals(results: &Results) -> Vec<Goal> {
    let weft = |metric, size| Key::plain(metric, size, "weft");
    let udp = |metric, size, system| Key::plain(metric, size, system);
    let offload = udp(Metric::Bandwidth, LARGE, "udp-offload");
    let copied = weft(Metric::Bandwidth, LARGE).by(Way::Copied);
    let asked = [
        (
            "round trip, 16 B ÷ bare UDP, spinning",
            weft(Metric::Rtt, SMALL),
            udp(Metric::Rtt, SMALL, "udp-spin"),
            Asked::AtMost(1.15),
        ),
        (
            "round trip, 16 B, both sides wait ÷ blocking UDP",
            weft(Metric::Rtt, SMALL).by(Way::Waiting),
            udp(Metric::Rtt, SMALL, "udp-block"),
            Asked::AtMost(1.15),
        ),
        (
            "round trip, 16 B, both sides sleep ÷ blocking UDP",
            weft(Metric::Rtt, SMALL).by(Way::Sleeping),
            udp(Metric::Rtt, SMALL, "udp-block"),
            Asked::AtMost(1.15),
        ),
        (
            "one-way rate, 16 B ÷ bare UDP with sendmmsg",
            weft(Metric::Rate, SMALL),
            udp(Metric::Rate, SMALL, "udp-mmsg"),
            Asked::AtLeast(12.0),
        ),
        (
            "bandwidth, 64 KiB, read in place ÷ UDP with offload",
            weft(Metric::Bandwidth, LARGE),
            offload.clone(),
            Asked::AtLeast(0.75),
        ),
        ("the same, copied into ordinary memory", copied, offload, Asked::AtLeast(0.6)),
        (
            "a lone message, its sender computing ÷ bare UDP",
            weft(Metric::Lone, SMALL),
            udp(Metric::Lone, SMALL, "udp-spin"),
            Asked::AtMost(1.2),
        ),
    ];
    let mixed = |what, route, beside, most| {
        (what, mixed_key(route, beside), mixed_key(route, Beside::Nothing), Asked::AtMost(most))
    };
    let asked = asked.into_iter().chain([
        mixed("16 B through memory, a UDP peer idle ÷ without it", Route::Memory, Beside::Idle, 1.1),
        mixed("16 B over UDP, a local peer idle ÷ without it", Route::Network, Beside::Idle, 1.05),
        mixed("16 B through memory, both at once ÷ alone", Route::Memory, Beside::Busy, 2.0),
        mixed("16 B over UDP, both at once ÷ alone", Route::Network, Beside::Busy, 2.0),
        mixed("16 B through memory, both in turns ÷ alone", Route::Memory, Beside::Turns, 2.0),
        mixed("16 B over UDP, both in turns ÷ alone", Route::Network, Beside::Turns, 2.0),
    ]);
    let measured = asked.filter_map(|(what, ours, theirs, asked)| {
        let value = results.compare(&ours, &theirs, |a, b| a.median / b.median)?;
        Some(Goal { what: what.to_owned(), value, asked, unit: "" })
    });
    let acknowledged = results.compare(&weft(Metric::Ack, SMALL), &weft(Metric::Ack, SMALL), |ours, _| ours.p99 / 1e6);
    let acknowledged = acknowledged.map(|value| Goal {
        what: "a message to a computing peer is acknowledged, p99".to_owned(),
        value,
        asked: Asked::AtMost(5.0),
        unit: " ms",
    });
    measured.chain(acknowledged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::meter::Sampled;
    use crate::bench::results::Run;

    #[test]
    fn a_ratio_is_taken_in_each_round_and_the_median_of_the_rounds_counts() {
        let mut results = Results::default();
        let mut add = |system: &str, medians: [f64; 3]| {
            for (round, median) in (0..).zip(medians) {
                let sampled = Sampled { median, p99: median, mean: median, n: 1 };
                results.add(Key::plain(Metric::Rtt, SMALL, system), Run { round, sampled, detail: None });
            }
        };
        add("weft", [8e3, 80e3, 9e3]);
        add("udp-spin", [8e3, 40e3, 10e3]);
        let goals = goals(&results);
        assert_eq!(goals.len(), 1, "the others were not measured");
        assert_eq!(goals[0].value, 1.0);
        assert!(goals[0].asked.holds(goals[0].value));
    }
}
