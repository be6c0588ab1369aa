//! Goals for weft's figures: ratios within one run, and whether they hold.
//!
//! Each ratio is taken in every round, from two runs close in time; the median of the rounds counts.

use super::meter::Sampled;
use super::plan::{BANDWIDTH_SIZES, LARGE, READ_SIZES, RTT_SIZES, SMALL, UNREAD_SIZES};
use super::results::{is_ucx, Key, Metric, Results, Way};

/// The bound on a ratio.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Asked {
    AtMost(f64),
    AtLeast(f64),
}

impl Asked {
    /// Whether it holds.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Asked::AtMost(most) => value <= most,
            Asked::AtLeast(least) => value >= least,
        }
    }
}

/// A ratio or difference, with its bound.
#[derive(Clone, PartialEq, Debug)]
pub struct Goal {
    pub what: String,
    pub value: f64,
    pub asked: Asked,
    /// Nanoseconds if it is a difference.
    pub unit: &'static str,
}

/// All goals for which both sides were measured.
pub fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut ratio = |what: String, value: Option<f64>, asked| {
        goals.extend(value.map(|value| Goal { what, value, asked, unit: "" }));
    };
    let weft = |metric, size| Key::plain(metric, size, "weft");
    let rtt = |size| weft(Metric::Rtt, size);
    let medians = |a: Sampled, b: Sampled| a.median / b.median;
    let small = rtt(SMALL);
    let line = Key::plain(Metric::Rtt, 8, "cache-line");
    let two_rings = |metric| Key::plain(metric, SMALL, "ring").by(Way::RequestReply);

    ratio(format!("round trip, {SMALL} B ÷ cache line"), results.compare(&small, &line, medians), Asked::AtMost(1.7));
    let what = format!("round trip, {SMALL} B ÷ two bare rings");
    ratio(what, results.compare(&small, &two_rings(Metric::Rtt), medians), Asked::AtMost(1.2));
    let rate = weft(Metric::Rate, SMALL).by(Way::RequestReply);
    let inverse = |a: Sampled, b: Sampled| b.median / a.median;
    let what = "g of request + reply ÷ two bare rings, window 32".to_owned();
    ratio(what, results.compare(&rate, &two_rings(Metric::Rate), inverse), Asked::AtMost(1.6));
    for size in RTT_SIZES.into_iter().filter(|size| (64..=8192).contains(size)) {
        let ring = Key::plain(Metric::Rtt, size, "ring");
        ratio(
            format!("round trip, {size} B ÷ best bare ring"),
            results.compare(&rtt(size), &ring, medians),
            Asked::AtMost(1.25),
        );
    }
    for size in READ_SIZES {
        // If UCX was not measured with receivers that read, compare with receivers that do less work.
        let (ucx, how) = match results.best_by(Way::Read, Metric::Rtt, size, is_ucx) {
            Some(series) => (Some(series.key.clone()), "both reading all"),
            None => (best_ucx(results, Metric::Rtt, size), "weft reading all, UCX nothing"),
        };
        let value = ucx.and_then(|ucx| results.compare(&rtt(size), &ucx, medians));
        ratio(format!("round trip, {size} B ÷ better UCX am, {how}"), value, Asked::AtMost(1.0));
    }
    for size in UNREAD_SIZES {
        let unread = rtt(size).by(Way::Unread);
        let value = best_ucx(results, Metric::Rtt, size).and_then(|ucx| results.compare(&unread, &ucx, medians));
        ratio(format!("the same, {size} B, read by neither, as ucx_perftest does"), value, Asked::AtMost(1.0));
    }
    // UCX reports only the mean of a run, so means are compared.
    let means = |a: Sampled, b: Sampled| a.mean / b.mean;
    let one_way = weft(Metric::Rate, SMALL);
    let value = best_ucx(results, Metric::Rate, SMALL).and_then(|ucx| results.compare(&one_way, &ucx, means));
    ratio(format!("one-way rate, {SMALL} B ÷ UCX's best (means)"), value, Asked::AtLeast(4.0));
    for size in BANDWIDTH_SIZES.into_iter().filter(|&size| size != 8192) {
        let pipe = Key::plain(Metric::Bandwidth, size, "pipe");
        let asked = Asked::AtLeast(if size == 65536 { 0.85 } else { 0.6 });
        ratio(
            format!("bandwidth, {size} B ÷ bare pipe"),
            results.compare(&weft(Metric::Bandwidth, size), &pipe, medians),
            asked,
        );
    }
    let one = small.clone().by(Way::OnePeer);
    for (way, who, most) in [(Way::FixedOfMany, "fixed", 1.3), (Way::DrawnOfMany, "drawn at random", 2.0)] {
        let value = results.compare(&small.clone().by(way), &one, medians);
        ratio(format!("from one {who} of 64 peers ÷ of 1"), value, Asked::AtMost(most));
    }
    let value = results.compare(&small.clone().by(Way::OneOfMany), &small.clone().by(Way::OneEndpoint), medians);
    ratio("one busy endpoint of 500 ÷ of 1".to_owned(), value, Asked::AtMost(1.2));
    let value = results.compare(&small.clone().by(Way::Shared), &small, medians);
    ratio(format!("round trip, {SMALL} B, shared bundle ÷ exclusive one"), value, Asked::AtMost(1.3));
    let large = weft(Metric::Bandwidth, LARGE);
    for (way, who) in [(Way::Foreign, "foreign"), (Way::OtherUser, "another user's")] {
        let value = results.compare(&small.clone().by(way), &small, medians);
        ratio(format!("round trip, {SMALL} B, {who} ÷ trusted"), value, Asked::AtMost(1.15));
        let value = results.compare(&large.clone().by(way), &large, medians);
        ratio(format!("bandwidth, {LARGE} B, {who} ÷ trusted"), value, Asked::AtLeast(0.5));
    }
    let tails = |a: Sampled, b: Sampled| a.p99 / b.p99;
    let value = results.compare(&small.clone().by(Way::BesideFull), &small.clone().by(Way::Alone), tails);
    ratio("p99 beside an endpoint never served ÷ alone".to_owned(), value, Asked::AtMost(1.2));
    let value = results.compare(&small.clone().by(Way::BesideDeaths), &small.clone().by(Way::BeforeDeaths), tails);
    ratio("p99 behind the kills of other peers ÷ before".to_owned(), value, Asked::AtMost(1.1));

    let pipe = Key::plain(Metric::Rtt, SMALL, "kpipe-block");
    for (way, what) in [(Way::Waiting, "wait"), (Way::Sleeping, "sleep")] {
        let value = results.compare(&small.clone().by(way), &pipe, medians);
        ratio(format!("round trip, {SMALL} B, both sides {what} ÷ blocking pipe"), value, Asked::AtMost(1.0));
    }

    if let Some(value) = results.compare(&small, &line, |a, b| a.median - b.median) {
        let what = format!("round trip, {SMALL} B − cache line");
        goals.insert(1, Goal { what, value, asked: Asked::AtMost(75.0), unit: " ns" });
    }
    goals
}

/// The better of UCX's interfaces by its own benchmark, whose receivers do not read.
fn best_ucx(results: &Results, metric: Metric, size: usize) -> Option<Key> {
    results.best(metric, size, is_ucx).map(|series| series.key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::Run;

    /// One round of these: system, way, size, median.
    fn results(series: &[(&str, Way, usize, f64)]) -> Results {
        let mut results = Results::default();
        for &(system, way, size, median) in series {
            let sampled = Sampled { median, p99: median, mean: median, n: 9 };
            results.add(Key::plain(Metric::Rtt, size, system).by(way), Run { round: 0, sampled, detail: None });
        }
        results
    }

    /// The goals about UCX: name, value, whether it holds.
    fn of_ucx(results: &Results) -> Vec<(String, f64, bool)> {
        let goals = goals(results).into_iter();
        let goals = goals.filter(|goal| goal.what.contains("UCX") || goal.what.contains("ucx"));
        goals.map(|goal| (goal.what, goal.value, goal.asked.holds(goal.value))).collect()
    }

    /// By ucx_perftest, beside weft reading and not reading.
    const BY_PERFTEST: [(&str, Way, usize, f64); 4] = [
        ("weft", Way::Plain, 1024, 300.0),
        ("weft", Way::Unread, 1024, 150.0),
        ("ucx-uct-am", Way::Plain, 1024, 200.0),
        ("ucx-ucp-am", Way::Plain, 1024, 250.0),
    ];

    #[test]
    fn ucx_that_reads_stands_beside_weft_that_reads() {
        let reading = [("ucx-uct-am", Way::Read, 1024, 600.0), ("ucx-ucp-am", Way::Read, 1024, 400.0)];
        let found = of_ucx(&results(&[&BY_PERFTEST[..], &reading].concat()));
        let expected = [
            ("round trip, 1024 B ÷ better UCX am, both reading all".to_owned(), 0.75, true),
            ("the same, 1024 B, read by neither, as ucx_perftest does".to_owned(), 0.75, true),
        ];
        assert_eq!(found, expected, "and there is no row of mixed work");
    }

    #[test]
    fn without_ucx_that_reads_the_row_says_that_the_work_is_not_the_same() {
        let found = of_ucx(&results(&BY_PERFTEST));
        let expected = [
            ("round trip, 1024 B ÷ better UCX am, weft reading all, UCX nothing".to_owned(), 1.5, false),
            ("the same, 1024 B, read by neither, as ucx_perftest does".to_owned(), 0.75, true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_ucx_that_reads_faster_than_weft_is_a_goal_missed() {
        let reading = [("weft", Way::Plain, 64, 210.0), ("ucx-uct-am", Way::Read, 64, 200.0)];
        let found = of_ucx(&results(&reading));
        assert_eq!(found, [("round trip, 64 B ÷ better UCX am, both reading all".to_owned(), 1.05, false)]);
    }

    #[test]
    fn the_ways_of_ucx_never_stand_against_each_other() {
        let results = results(&[("ucx-uct-am", Way::Read, 64, 300.0), ("ucx-ucp-am", Way::Plain, 64, 200.0)]);
        let of = |series: Option<&super::super::results::Series>| series.map(|series| series.key.clone());
        let read = Key::plain(Metric::Rtt, 64, "ucx-uct-am").by(Way::Read);
        assert_eq!(of(results.ucx(Metric::Rtt, 64)), Some(read), "although ucx_perftest's is the lesser");
        let plain = Key::plain(Metric::Rtt, 64, "ucx-ucp-am");
        assert_eq!(of(results.best(Metric::Rtt, 64, is_ucx)), Some(plain));
        assert_eq!(of(results.ucx(Metric::Rtt, 16)), None);
    }
}
