//! The results as tables: each figure without weftd and through it.

use super::plan::{Beside, Way, WAYS};
use super::runner::{Written, FRAMES, WRITERS, WRITES_PER_SECOND};
use super::Measured;
use crate::bench::machine::Machine;
use crate::bench::meter::median;
use crate::bench::results::{Key, Metric, Results, Series};
use crate::bench::runner::waiting_way;
use crate::bench::table::{bytes, digits, figure, left_out, new, right};
use comfy_table::{Cell, Table};
use std::fmt::Write;

/// Everything, as text. `goals` is the table of the ratios.
pub fn render(measured: &Measured, goals: Option<Table>) -> String {
    let Machine { cpu, cores, kernel, date, .. } = &measured.machine;
    let mut text = format!("{cpu}, {cores} CPUs, Linux {kernel}, {date}; {}\n", measured.title());
    text.push_str(&measured.warning().map_or_else(String::new, |warning| format!("{warning}\n")));
    let mut part = |title: &str, table: Option<Table>| {
        if let Some(table) = table {
            let _ = write!(text, "\n{title}\n{table}\n");
        }
    };
    part("two programs of one host", pair(&measured.local));
    part("two programs of two hosts", pair(&measured.hosts));
    let title = format!(
        "16 B, a hot endpoint beside {WRITERS} others on {FRAMES} frames that write in turn, {WRITES_PER_SECOND} times a second"
    );
    part(&title, hot(&measured.local, &measured.written));
    if let Some(goals) = goals {
        let _ = write!(text, "\n{goals}\n");
    }
    text.push_str(&left_out(&measured.notes));
    text
}

fn pair(results: &Results) -> Option<Table> {
    let mut table = new(&["", "size", "", "without weftd", "p99", "n", "through weftd", "p99", "n", "÷"]);
    for series in results.series().iter().filter(|series| series.key.system == Way::Without.system()) {
        let Key { metric, size, way, .. } = series.key;
        let through = Key { system: Way::Through.system().to_owned(), ..series.key.clone() };
        let ratio = results.compare(&through, &series.key, |through, without| through.median / without.median);
        let what = match metric {
            Metric::Rate => "one way, messages",
            Metric::Bandwidth => "one way, bytes",
            _ => "round trip",
        };
        let how = WAYS.into_iter().map(waiting_way).find(|(other, _)| metric == Metric::Rtt && *other == way);
        let mut cells = vec![Cell::new(what), right(bytes(size)), Cell::new(how.map_or("", |(_, how)| how))];
        for series in [Some(series), results.get(&through)] {
            cells.extend(told(series));
        }
        cells.push(right(ratio.map_or_else(String::new, times)));
        table.add_row(cells);
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}

/// Median, tail, and number of samples.
fn told(series: Option<&Series>) -> [Cell; 3] {
    let Some(series) = series else { return ["", "", ""].map(Cell::new) };
    let metric = series.key.metric;
    [told_of(metric, series.median()), told_of(metric, series.p99()), series.n().to_string()].map(right)
}

/// Rates in thousands: through a daemon without a CPU of its own they are small.
fn told_of(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Rate => format!("{} k/s", digits(value / 1e3)),
        Metric::Bandwidth => format!("{} MB/s", digits(value / 1e6)),
        _ => figure(metric, value),
    }
}

/// A ratio, even a very small one.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 0.1 => format!("{ratio:.4}"),
        ratio => digits(ratio),
    }
}

fn hot(results: &Results, written: &[Written]) -> Option<Table> {
    let mut table =
        new(&["", "quiet", "p99", "n", "beside remappings", "p99", "n", "÷ of p99", "remappings/s", "written"]);
    for waiting in WAYS {
        let [quiet, beside] = Beside::BOTH.map(|beside| beside.key(waiting));
        let Some(ratio) = results.compare(&beside, &quiet, |beside, quiet| beside.p99 / quiet.p99) else { continue };
        let (way, how) = waiting_way(waiting);
        let of_way = || written.iter().filter(|written| written.way == way.name());
        let mut cells = vec![Cell::new(how)];
        cells.extend(told(results.get(&quiet)));
        cells.extend(told(results.get(&beside)));
        let remappings = median(of_way().map(|written| written.remappings_per_second));
        cells.extend([
            right(times(ratio)),
            right(remappings.map_or_else(String::new, |remappings| format!("{remappings:.0}"))),
            right(of_way().map(|written| written.requests).sum::<u64>().to_string()),
        ]);
        table.add_row(cells);
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}
