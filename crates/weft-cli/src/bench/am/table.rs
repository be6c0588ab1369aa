//! The results as tables: each figure in C beside the one in Rust.

use super::goals::ratio;
use super::plan::{By, What};
use super::Measured;
use crate::bench::machine::Machine;
use crate::bench::results::{Metric, Results, Series};
use crate::bench::table::{digits, figure, left_out, new, right};
use comfy_table::{Cell, Table};
use std::fmt::Write;

/// Everything, as text. `goals` is the table of the ratios.
pub fn render(measured: &Measured, goals: Option<Table>) -> String {
    let Machine { cpu, cores, kernel, date, cpus: [ours, theirs], .. } = &measured.machine;
    let mut text = format!("{cpu}, {cores} CPUs, Linux {kernel}, {date}; two processes on CPUs {ours} and {theirs}\n");
    for (title, results) in [("one host", &measured.local), ("two hosts", &measured.hosts)] {
        if let Some(table) = figures(&measured.all, results) {
            let _ = write!(text, "\nActive Messages, {title}\n{table}\n");
        }
    }
    if let Some(goals) = goals {
        let _ = write!(text, "\n{goals}\n");
    }
    text.push_str(&left_out(&measured.notes));
    text
}

fn figures(all: &[What], results: &Results) -> Option<Table> {
    let mut table = new(&["", "message", "C", "p99", "Rust", "p99", "÷"]);
    let mut last = "";
    for &what in all {
        let Some(ratio) = ratio(results, what) else { continue };
        let kind = what.kind();
        let mut cells = vec![Cell::new(if kind == last { "" } else { kind }), Cell::new(what.message().title())];
        last = kind;
        cells.extend(By::BOTH.into_iter().flat_map(|by| told(results.get(&what.key(by)))));
        cells.push(right(digits(ratio)));
        table.add_row(cells);
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}

/// Median and tail.
fn told(series: Option<&Series>) -> [Cell; 2] {
    let Some(series) = series else { return ["", ""].map(Cell::new) };
    let told = |value: f64| match series.key.metric {
        Metric::Rate => format!("{} k/s", digits(value / 1e3)),
        Metric::Bandwidth => format!("{} MB/s", digits(value / 1e6)),
        metric => figure(metric, value),
    };
    [series.median(), series.p99()].map(|value| right(told(value)))
}
