//! `weft bench compare`: what changed between two measurements, beyond noise.

use super::json::{Document, Family, Row};
use super::results::Metric;
use super::table::{digits, figure, new, right, size_of};
use crate::error::Error;
use crate::tell::Form;
use comfy_table::Cell;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// How far a median's range reaches beyond its rounds at least, relative to the median: a machine is not the same a minute later.
/// The second value holds if there was only one round, or if the file does not say.
const ROUNDS: f64 = 0.05;
const ONE_ROUND: f64 = 0.15;

/// Text after the options in `--help`.
const HELP: &str = "\
A figure moved beyond noise if its two ranges do not overlap. A range is that of the rounds' medians, extended at \
both ends by half of itself, and by 5 % of the median at least. For a single round, and in files of an older weft, which do not have \
the rounds, it is the median ± 15 %, or ± three standard errors of a median if that is more: 3 · 1.25 · |p99 - median| / 2.33 / √n.

`÷ limit` shows whether the machine itself changed: it is the figure's ratio divided by that of the limit at that size. A figure \
that moved as its limit did says nothing about weft. Figures of 0 or less (such as L of LogP) are not compared. The exit status is always 0.";

/// The arguments of `weft bench compare`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The measurement before, as `--json` wrote it.
    #[arg(value_name = "OLD.json")]
    old: PathBuf,
    /// The measurement after.
    #[arg(value_name = "NEW.json")]
    new: PathBuf,
    #[command(flatten)]
    form: Form,
}

/// Compares, and prints the result.
pub fn run(options: &Options) -> Result<(), Error> {
    let comparison = compare(&Document::read(&options.old)?, &Document::read(&options.new)?);
    options.form.tell(&comparison, || comparison.words())
}

/// How a figure changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Better,
    Worse,
    WithinNoise,
}

#[derive(Debug, Serialize)]
struct Change {
    metric: String,
    size: usize,
    system: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    way: Option<String>,
    unit: String,
    old: f64,
    new: f64,
    /// The range in which each median is believed to lie.
    old_range: [f64; 2],
    new_range: [f64; 2],
    /// New ÷ old.
    ratio: f64,
    /// That ratio divided by the limit's at the same size.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside_limit: Option<f64>,
    verdict: Verdict,
}

/// The whole comparison.
#[derive(Debug, Serialize)]
struct Comparison {
    old: super::machine::Machine,
    new: super::machine::Machine,
    changes: Vec<Change>,
    /// Rows in only one of the files.
    only_old: Vec<String>,
    only_new: Vec<String>,
}

/// Whether two rows are of the same figure. The result of n_half is itself a size, so sizes are not compared there.
fn is_same(a: &Row, b: &Row) -> bool {
    let key = |row: &Row| (row.place.clone(), row.metric.clone(), row.system.clone(), row.way.clone());
    key(a) == key(b) && (a.size == b.size || a.metric == Metric::NHalf.name())
}

fn compare(old: &Document, new: &Document) -> Comparison {
    let in_other = |row: &Row, other: &Document| other.rows.iter().any(|theirs| is_same(row, theirs));
    let only = |these: &Document, others: &Document| {
        these.rows.iter().filter(|row| !in_other(row, others)).map(name).collect::<Vec<_>>()
    };
    let pairs = old.rows.iter().filter_map(|row| Some((row, new.rows.iter().find(|theirs| is_same(row, theirs))?)));
    Comparison {
        old: old.machine.clone(),
        new: new.machine.clone(),
        changes: pairs.filter_map(|(before, after)| change(before, after, [old, new])).collect(),
        only_old: only(old, new),
        only_new: only(new, old),
    }
}

fn name(row: &Row) -> String {
    let way = row.way.as_ref().map_or_else(String::new, |way| format!(" ({way})"));
    format!("{} {} {}{way}", row.metric, size_of(&row.metric, row.size), row.system)
}

fn change(before: &Row, after: &Row, documents: [&Document; 2]) -> Option<Change> {
    let median = |row: &Row| row.median.filter(|median| *median > 0.0);
    let (old, new) = (median(before)?, median(after)?);
    let (old_range, new_range) = (range(before, old), range(after, new));
    let ratio = new / old;
    let is_apart = old_range[1] < new_range[0] || new_range[1] < old_range[0];
    let metric = Metric::named(&before.metric);
    let more_is_better = metric.is_some_and(Metric::more_is_better);
    let verdict = match ratio {
        _ if !is_apart => Verdict::WithinNoise,
        r if (r > 1.0) == more_is_better => Verdict::Better,
        _ => Verdict::Worse,
    };
    let limit = |document: &Document| document.best(metric?, before.size, Family::Limit).map(|(_, median)| median);
    let of_limit = limit(documents[1]).zip(limit(documents[0])).map(|(new, old)| new / old);
    let is_limit = before.family() == Some(Family::Limit);
    Some(Change {
        metric: before.metric.clone(),
        size: before.size,
        system: before.system.clone(),
        way: before.way.clone(),
        unit: before.unit.clone(),
        old,
        new,
        old_range,
        new_range,
        ratio,
        beside_limit: of_limit.filter(|_| !is_limit).map(|of_limit| ratio / of_limit),
        verdict,
    })
}

/// The range in which a median is believed to lie.
fn range(row: &Row, median: f64) -> [f64; 2] {
    match row.rounds {
        Some([least, most]) if most > least => {
            let wider = ((most - least) / 2.0).max(ROUNDS * median);
            [least - wider, most + wider]
        }
        _ => {
            let tail = row.p99.map_or(0.0, |p99| (p99 - median).abs());
            let error = 3.0 * 1.25 * tail / 2.33 / (row.n.max(1) as f64).sqrt();
            let wider = error.max(ONE_ROUND * median);
            [median - wider, median + wider]
        }
    }
}

impl Comparison {
    fn words(&self) -> String {
        let machine =
            |m: &super::machine::Machine| format!("{}, Linux {}, {}, weft {}", m.cpu, m.kernel, m.date, m.weft);
        let mut text = format!("old: {}\nnew: {}\n", machine(&self.old), machine(&self.new));
        let moved: Vec<&Change> = self.changes.iter().filter(|change| change.verdict != Verdict::WithinNoise).collect();
        let mut table = new(&["", "size", "", "old", "new", "new ÷ old", "÷ limit", ""]);
        for change in &moved {
            let tell = |value| match Metric::named(&change.metric) {
                Some(metric) => figure(metric, value),
                None => format!("{} {}", digits(value), change.unit),
            };
            let way = change.way.as_ref().map_or_else(String::new, |way| format!(", {way}"));
            table.add_row(vec![
                Cell::new(&change.metric),
                right(size_of(&change.metric, change.size)),
                Cell::new(format!("{}{way}", change.system)),
                right(tell(change.old)),
                right(tell(change.new)),
                right(digits(change.ratio)),
                right(change.beside_limit.map_or_else(String::new, digits)),
                Cell::new(if change.verdict == Verdict::Better { "better" } else { "WORSE" }),
            ]);
        }
        if !moved.is_empty() {
            let _ = write!(text, "\n{table}\n");
        }
        let _ = writeln!(text, "\n{} of {} figures moved beyond noise.", moved.len(), self.changes.len());
        for (which, names) in [("old", &self.only_old), ("new", &self.only_new)] {
            if !names.is_empty() {
                let _ = writeln!(text, "Only in the {which} file: {}.", names.join(", "));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(median: f64, rounds: Option<[f64; 2]>) -> Document {
        let text = serde_json::json!({
            "machine": { "cpu": "c", "cores": 2, "cpus": [0, 1], "kernel": "6", "date": "d", "weft": "0", "line": null },
            "rows": [
                { "where": "local", "metric": "rtt", "size": 16, "unit": "ns", "system": "weft", "median": median, "p99": median * 1.1,
                  "n": 900, "rounds": rounds },
                { "where": "local", "metric": "rtt", "size": 16, "unit": "ns", "system": "ring", "median": 100.0, "p99": null, "n": 9 },
            ],
        });
        serde_json::from_value(text).expect("a document")
    }

    fn verdict(old: &Document, new: &Document) -> Verdict {
        compare(old, new).changes[0].verdict
    }

    #[test]
    fn what_lies_within_the_rounds_of_both_is_noise() {
        let old = document(200.0, Some([190.0, 210.0]));
        assert_eq!(verdict(&old, &document(225.0, Some([220.0, 240.0]))), Verdict::WithinNoise);
        assert_eq!(verdict(&old, &document(260.0, Some([250.0, 270.0]))), Verdict::Worse);
        assert_eq!(verdict(&old, &document(150.0, Some([140.0, 160.0]))), Verdict::Better);
        let narrow = document(200.0, Some([199.0, 201.0]));
        assert_eq!(
            verdict(&narrow, &document(215.0, Some([214.0, 216.0]))),
            Verdict::WithinNoise,
            "5 % on either side"
        );
        assert_eq!(verdict(&narrow, &document(225.0, Some([224.0, 226.0]))), Verdict::Worse);
        assert_eq!(verdict(&document(200.0, Some([100.0, 300.0])), &document(450.0, None)), Verdict::WithinNoise);
    }

    #[test]
    fn a_median_of_one_round_is_believed_to_15_percent() {
        for rounds in [None, Some([200.0, 200.0])] {
            let old = document(200.0, rounds);
            assert_eq!(verdict(&old, &document(265.0, None)), Verdict::WithinNoise);
            assert_eq!(verdict(&old, &document(275.0, None)), Verdict::Worse);
        }
    }

    #[test]
    fn more_is_better_where_it_is() {
        let rates = |median| {
            let mut document = document(median, None);
            document.rows[0].metric = "rate".to_owned();
            document
        };
        assert_eq!(verdict(&rates(1e6), &rates(2e6)), Verdict::Better);
        assert_eq!(verdict(&rates(2e6), &rates(1e6)), Verdict::Worse);
    }

    #[test]
    fn a_figure_is_held_against_its_limit() {
        let change = &compare(&document(200.0, None), &document(300.0, None)).changes[0];
        assert_eq!((change.ratio, change.beside_limit), (1.5, Some(1.5)));
        let mut slower = document(300.0, None);
        slower.rows[1].median = Some(150.0);
        let change = &compare(&document(200.0, None), &slower).changes[0];
        assert_eq!(change.beside_limit, Some(1.0), "the machine was slower, not weft");
    }

    #[test]
    fn what_is_in_one_file_only_is_told() {
        let mut old = document(200.0, None);
        old.rows[1].system = "unknown".to_owned();
        let comparison = compare(&old, &document(200.0, None));
        assert_eq!((comparison.only_old.len(), comparison.only_new.len()), (1, 1));
        assert!(comparison.words().contains("0 of 1 figures moved"), "{}", comparison.words());
    }
}
