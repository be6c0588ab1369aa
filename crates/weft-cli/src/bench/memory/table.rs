//! The results as tables: each figure beside its limit and UCX's.

use super::goals::crossings;
use crate::bench::machine::Machine;
use crate::bench::results::{is_ucx, Key, Metric, Results, Way};
use crate::bench::table::{bytes, digits, figure, left_out, new, ns, right};
use comfy_table::{Cell, Table};
use std::fmt::Write;

/// The figures, in the order of their rows.
const FIGURES: [(Metric, &str); 10] = [
    (Metric::Rtt, "Active Message, round trip"),
    (Metric::Word, "one word, there and back"),
    (Metric::WordTail, "98.6 % of them within"),
    (Metric::Bandwidth, "Active Messages, bytes"),
    (Metric::Write, "writes, bytes"),
    (Metric::WriteTime, "one write"),
    (Metric::Read, "reads, bytes"),
    (Metric::ReadTime, "one read"),
    (Metric::FetchAdd, "one fetch-and-add"),
    (Metric::Adds, "additions"),
];

/// Everything, as text. `title` describes the connection of two hosts; `goals` is the table of the ratios.
pub fn render(
    machine: &Machine,
    title: Option<&str>,
    results: &Results,
    goals: Option<Table>,
    notes: &[String],
) -> String {
    let Machine { cpu, cores, kernel, date, cpus: [a, b], .. } = machine;
    let between = title.map_or_else(|| format!("two processes on CPUs {a} and {b}"), str::to_owned);
    let mut text = format!("{cpu}, {cores} CPUs, Linux {kernel}, {date}; {between}\n");
    if let Some([least, most]) = machine.line {
        let _ = writeln!(text, "a cache line went there and back in {} to {}", ns(least), ns(most));
    }
    for part in [figures(results), goals].into_iter().flatten() {
        let _ = write!(text, "\n{part}\n");
    }
    for (what, size) in crossings(results) {
        let _ = writeln!(text, "{what}: from {} on", bytes(size));
    }
    text.push_str(&left_out(notes));
    text
}

/// Figures by metric and size.
fn figures(results: &Results) -> Option<Table> {
    let mut table = new(&["", "size", "weft", "p99", "by the owner", "lent", "limit", "", "÷", "UCX, unread", "÷"]);
    for (metric, title) in FIGURES {
        let mut sizes: Vec<usize> = results
            .series()
            .iter()
            .map(|series| &series.key)
            .filter(|key| key.metric == metric)
            .map(|key| key.size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut is_first = true;
        for size in sizes {
            let key = Key::plain(metric, size, "weft");
            let Some(weft) = results.get(&key) else { continue };
            let executed = results.get(&key.clone().by(Way::Executed));
            let lent = results.get(&key.clone().by(Way::Lent));
            let limit = results.best(metric, size, |system| ["cache-line", "pipe"].contains(&system));
            let ucx = results.best(metric, size, is_ucx);
            let told = |value: Option<f64>| right(value.map_or_else(String::new, |value| figure(metric, value)));
            let ratio = |other: &Key| results.compare(&key, other, |a, b| a.median / b.median);
            let ratio = |other: Option<&Key>| right(other.and_then(ratio).map_or_else(String::new, digits));
            table.add_row(vec![
                Cell::new(if std::mem::take(&mut is_first) { title } else { "" }),
                right(bytes(size)),
                told(Some(weft.median())),
                told(Some(weft.p99())),
                told(executed.map(|series| series.median())),
                told(lent.map(|series| series.median())),
                told(limit.map(|series| series.median())),
                Cell::new(limit.map_or("", |series| &series.key.system)),
                ratio(limit.map(|series| &series.key)),
                told(ucx.map(|series| series.median())),
                ratio(ucx.map(|series| &series.key)),
            ]);
        }
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}
