//! The results between hosts as tables: each figure of each system, beside weft's.

use crate::bench::machine::Machine;
use crate::bench::results::{Key, Metric, Results, Series, Way};
use crate::bench::table::{bytes, digits, figure, left_out, new, right};
use comfy_table::{Cell, Table};
use std::fmt::Write;

/// Everything, as text. `title` describes the two hosts and processes; `goals` is the table of the ratios.
pub fn render(machine: &Machine, title: &str, results: &Results, goals: Option<Table>, notes: &[String]) -> String {
    let Machine { cpu, cores, kernel, date, .. } = machine;
    let mut text = format!("{cpu}, {cores} CPUs, Linux {kernel}, {date}; {title}\n");
    for part in [figures(results), goals].into_iter().flatten() {
        let _ = write!(text, "\n{part}\n");
    }
    text.push_str(&left_out(notes));
    text
}

fn figures(results: &Results) -> Option<Table> {
    let mut table = new(&["", "size", "", "median", "p99", "÷ weft", "how"]);
    let mut last = ("", 0);
    for series in grouped(results) {
        let Key { metric, size, ref system, .. } = series.key;
        let what = (title(metric), size);
        let begins = what != last;
        last = what;
        let ratio = results
            .compare(&series.key, &Key::plain(metric, size, "weft"), |other, weft| other.median / weft.median)
            .map_or_else(String::new, digits);
        table.add_row(vec![
            Cell::new(if begins { what.0 } else { "" }),
            right(if begins { bytes(size) } else { String::new() }),
            Cell::new(system),
            right(figure(metric, series.median())),
            right(tail(series)),
            right(ratio),
            Cell::new(series.detail().unwrap_or(if series.key.way == Way::Plain { "" } else { "copied" })),
        ]);
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}

/// All series, grouped by figure, in the order in which each figure was first measured.
fn grouped(results: &Results) -> Vec<&Series> {
    let figure = |series: &Series| (series.key.metric, series.key.size);
    let first = |series: &Series| results.series().iter().position(|other| figure(other) == figure(series));
    let mut all: Vec<&Series> = results.series().iter().collect();
    all.sort_by_key(|series| first(series));
    all
}

/// Some systems report none.
fn tail(series: &Series) -> String {
    match series.p99() {
        p99 if p99.is_finite() => figure(series.key.metric, p99),
        _ => String::new(),
    }
}

fn title(metric: Metric) -> &'static str {
    match metric {
        Metric::Rtt => "round trip",
        Metric::Rate => "one way, messages",
        Metric::Bandwidth => "one way, bytes",
        Metric::Lone => "one way, then computing",
        Metric::Ack => "acknowledged by a computing peer",
        Metric::MixedMemory => "round trip, memory",
        Metric::MixedNetwork => "round trip, UDP",
        other => other.name(),
    }
}
