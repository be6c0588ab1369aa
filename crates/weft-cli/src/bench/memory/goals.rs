//! Goals for remote memory, relative to the machine in the same round; and the sizes at which one way overtakes another.

use super::plan::{MESSAGE_BYTES, MESSAGE_TRIP, SIZES, WORD_BYTES};
use crate::bench::goals::{Asked, Goal};
use crate::bench::results::{Key, Metric, Results, Way};

/// All goals for which both sides were measured.
pub fn goals(results: &Results) -> Vec<Goal> {
    let weft = |metric, size| Key::plain(metric, size, "weft");
    let pipe = |size| Key::plain(Metric::Write, size, "pipe");
    let word = weft(Metric::Word, WORD_BYTES);
    let asked = [
        (
            "one word there and back ÷ cache line",
            word.clone(),
            Key::plain(Metric::Word, WORD_BYTES, "cache-line"),
            Asked::AtMost(1.15),
        ),
        ("writes of 64 KiB ÷ bare pipe", weft(Metric::Write, 64 << 10), pipe(64 << 10), Asked::AtLeast(0.85)),
        ("writes of 1 MiB ÷ bare pipe", weft(Metric::Write, 1 << 20), pipe(1 << 20), Asked::AtLeast(0.85)),
        (
            "one word there and back ÷ an Active Message's round trip",
            word,
            weft(Metric::Rtt, MESSAGE_TRIP),
            Asked::AtMost(1.0),
        ),
        (
            "writes of 64 KiB ÷ Active Messages",
            weft(Metric::Write, 64 << 10),
            weft(Metric::Bandwidth, MESSAGE_BYTES),
            Asked::AtLeast(1.0),
        ),
    ];
    let measured = asked.into_iter().filter_map(|(what, ours, theirs, asked)| {
        let value = results.compare(&ours, &theirs, |a, b| a.median / b.median)?;
        Some(Goal { what: what.to_owned(), value, asked, unit: "" })
    });
    measured.collect()
}

/// Two ways to do the same, one of which may overtake the other as the size grows.
struct Pair {
    what: &'static str,
    metric: Metric,
    from: Way,
    to: Way,
}

/// The compared pairs of ways.
const PAIRS: [Pair; 4] = [
    Pair { what: "writes, lent memory ahead of weft's", metric: Metric::Write, from: Way::Plain, to: Way::Lent },
    Pair { what: "reads, lent memory ahead of weft's", metric: Metric::Read, from: Way::Plain, to: Way::Lent },
    Pair {
        what: "writes, the owner ahead of the initiator's stores",
        metric: Metric::Write,
        from: Way::Plain,
        to: Way::Executed,
    },
    Pair {
        what: "reads, the owner ahead of the initiator's loads",
        metric: Metric::Read,
        from: Way::Plain,
        to: Way::Executed,
    },
];

/// A way is ahead if it is faster by this factor: less is noise.
const AHEAD: f64 = 1.05;

/// For each pair that crosses: its name, and the size from which on the second way is faster.
pub fn crossings(results: &Results) -> Vec<(&'static str, usize)> {
    let at = |pair: &Pair| Some((pair.what, crossing(results, pair)?));
    PAIRS.iter().filter_map(at).collect()
}

/// The least size from which on the second way is ahead at all sizes. `None` if it is ahead at all sizes or at none.
fn crossing(results: &Results, pair: &Pair) -> Option<usize> {
    let key = |size, way| Key::plain(pair.metric, size, "weft").by(way);
    let ratio = |size| results.compare(&key(size, pair.to), &key(size, pair.from), |to, from| to.median / from.median);
    let ratios: Vec<(usize, f64)> = SIZES.into_iter().filter_map(|size| Some((size, ratio(size)?))).collect();
    let behind = ratios.iter().rposition(|&(_, ratio)| ratio < AHEAD)?;
    ratios.get(behind + 1).map(|&(size, _)| size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::meter::Sampled;
    use crate::bench::results::Run;

    fn results(series: &[(Metric, usize, &str, Way, f64)]) -> Results {
        let mut results = Results::default();
        for &(metric, size, system, way, median) in series {
            let sampled = Sampled { median, p99: median, mean: median, n: 1 };
            results.add(Key::plain(metric, size, system).by(way), Run { round: 0, sampled, detail: None });
        }
        results
    }

    #[test]
    fn goals_are_ratios_to_what_was_measured_beside() {
        let results = results(&[
            (Metric::Word, 8, "weft", Way::Plain, 230.0),
            (Metric::Word, 8, "cache-line", Way::Plain, 200.0),
            (Metric::Write, 1 << 20, "weft", Way::Plain, 8e9),
            (Metric::Write, 1 << 20, "pipe", Way::Plain, 1e10),
        ]);
        let goals = goals(&results);
        let told: Vec<_> = goals.iter().map(|goal| (&*goal.what, goal.value, goal.asked.holds(goal.value))).collect();
        assert_eq!(
            told,
            [("one word there and back ÷ cache line", 1.15, true), ("writes of 1 MiB ÷ bare pipe", 0.8, false)]
        );
    }

    #[test]
    fn a_way_overtakes_where_it_is_faster_at_all_larger_sizes() {
        let at = |lent: [f64; 4]| {
            let sizes = [8, 512, 4096, 64 << 10];
            let series: Vec<_> = sizes
                .into_iter()
                .zip(lent)
                .flat_map(|(size, lent)| {
                    [(Metric::Write, size, "weft", Way::Plain, 10.0), (Metric::Write, size, "weft", Way::Lent, lent)]
                })
                .collect();
            crossings(&results(&series))
        };
        assert_eq!(at([9.0, 11.0, 9.0, 12.0]), [("writes, lent memory ahead of weft's", 64 << 10)]);
        assert_eq!(at([9.0, 10.6, 11.0, 12.0]), [("writes, lent memory ahead of weft's", 512)]);
        assert_eq!(at([9.0, 10.0, 10.1, 10.2]), []);
        assert_eq!(at([11.0; 4]), []);
    }
}
