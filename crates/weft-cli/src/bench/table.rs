//! The results as tables: figures beside their limits and peers, and the goals.

use super::goals::{Asked, Goal};
use super::machine::Machine;
use super::plan::{BANDWIDTH_SIZES, RTT_SIZES, SMALL};
use super::results::{is_kernel, is_ucx, Key, Metric, Results, Series, Way};
use comfy_table::{presets::UTF8_BORDERS_ONLY, Cell, CellAlignment, Row, Table};
use std::fmt::Write;

/// Everything, as text. `goals` is the table of the ratios.
pub fn render(machine: &Machine, results: &Results, goals: Option<Table>, notes: &[String]) -> String {
    let mut text = format!("{}\n", headline(machine));
    if let Some(figures) = figures(results) {
        let _ = write!(text, "\n{figures}\n{}", on_ucx(results));
    }
    for part in [parameters(results), goals].into_iter().flatten() {
        let _ = write!(text, "\n{part}\n");
    }
    text.push_str(&left_out(notes));
    text
}

/// The notes on what was left out.
pub fn left_out(notes: &[String]) -> String {
    let lines: String = notes.iter().map(|note| format!("\nleft out: {note}")).collect();
    if lines.is_empty() {
        lines
    } else {
        lines + "\n"
    }
}

fn headline(machine: &Machine) -> String {
    let Machine { cpu, cores, kernel, date, cpus: [a, b], .. } = machine;
    let mut text = format!("{cpu}, {cores} CPUs, Linux {kernel}, {date}; two processes on CPUs {a} and {b}");
    if let Some([least, most]) = machine.line {
        let _ = write!(text, "\na cache line went there and back in {} to {}", ns(least), ns(most));
        if most > 1.5 * least {
            text.push_str(
                ": the machine changed while it was measured; trust the ratios, which compare neighbours in time",
            );
        }
    }
    text
}

/// The suffix of UCX's interface if its receivers read.
const READS: &str = ", reading";

/// How to read the column of UCX.
fn on_ucx(results: &Results) -> String {
    let has = |way| results.series().iter().any(|s| is_ucx(&s.key.system) && s.key.way == way);
    match (has(Way::Plain), has(Way::Read)) {
        (_, true) => format!("UCX{READS}: both sides read all bytes, as weft and the limits do; else by ucx_perftest, whose receivers do not.\n"),
        (true, false) => "UCX: by ucx_perftest, whose receivers do not read what comes.\n".to_owned(),
        (false, false) => String::new(),
    }
}

/// Figures by metric and size, each beside its limit, the kernel's best and UCX's best.
fn figures(results: &Results) -> Option<Table> {
    let mut table = new(&["", "size", "weft", "p99", "limit", "", "kernel", "", "UCX", ""]);
    let rtt = RTT_SIZES.map(|size| (Metric::Rtt, size, Way::Plain, "round trip"));
    let rates = [
        (Metric::Rate, SMALL, Way::Plain, "one way, messages"),
        (Metric::Rate, SMALL, Way::RequestReply, "request + reply"),
    ];
    let bandwidths = BANDWIDTH_SIZES.map(|size| (Metric::Bandwidth, size, Way::Plain, "one way, bytes"));
    let mut last = "";
    for (metric, size, way, title) in rtt.into_iter().chain(rates).chain(bandwidths) {
        let Some(weft) = results.get(&Key::plain(metric, size, "weft").by(way)) else { continue };
        let is_limit = |system: &str| ["cache-line", "ring", "pipe"].contains(&system);
        let limit = match way {
            Way::Plain => results.best(metric, size, is_limit),
            _ => results.at(metric, size, way).find(|series| is_limit(&series.key.system)),
        };
        let (kernel, ucx) = match way {
            Way::Plain => (results.best(metric, size, is_kernel), results.ucx(metric, size)),
            _ => (None, None),
        };
        let mut cells = vec![Cell::new(if title == last { "" } else { title }), right(bytes(size))];
        last = title;
        cells.extend([right(figure(metric, weft.median())), right(figure(metric, weft.p99()))]);
        for other in [limit, kernel, ucx] {
            cells.push(right(other.map_or_else(String::new, |other| figure(metric, other.median()))));
            cells.push(Cell::new(other.map_or_else(String::new, name)));
        }
        table.add_row(cells);
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}

/// The name of a system, and whether it is UCX whose receivers read.
fn name(series: &Series) -> String {
    format!("{}{}", series.key.system, if series.key.way == Way::Read { READS } else { "" })
}

/// Weft's other figures.
fn parameters(results: &Results) -> Option<Table> {
    let mut table = new(&["weft", "", "p99", "how"]);
    let named = |series: &Series| match (series.key.metric, series.key.way) {
        (Metric::LogpOs, _) => Some("LogP o_s"),
        (Metric::LogpOr, _) => Some("LogP o_r"),
        (Metric::LogpL, _) => Some("LogP L"),
        (Metric::LogpG, _) => Some("LogP g"),
        (Metric::NHalf, _) => Some("n_half"),
        (Metric::Settled, _) => Some("all came back"),
        (_, Way::Waiting | Way::Sleeping) => Some("round trip"),
        (_, Way::Unread) => Some("round trip, unread"),
        (_, Way::OnePeer | Way::FixedOfMany | Way::DrawnOfMany | Way::Alone | Way::BesideFull) => Some("round trip"),
        (Metric::Bandwidth, Way::Foreign | Way::OtherUser) => Some("one way, bytes"),
        (_, Way::BeforeDeaths | Way::BesideDeaths) => Some("round trip"),
        (_, Way::Foreign | Way::OtherUser | Way::Shared | Way::OneEndpoint | Way::OneOfMany) => Some("round trip"),
        _ => None,
    };
    for series in results.series() {
        let Some(name) = named(series) else { continue };
        let [median, p99] = [series.median(), series.p99()].map(|value| right(figure(series.key.metric, value)));
        table.add_row(Row::from(vec![Cell::new(name), median, p99, Cell::new(series.detail().unwrap_or_default())]));
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}

/// The ratios with goals; if `is_judged`, also the goals and whether they hold.
pub fn judgement(goals: &[Goal], is_judged: bool) -> Option<Table> {
    let mut table = new(if is_judged { &["how good", "measured", "asked", ""] } else { &["how good", "measured"] });
    for goal in goals {
        let (sign, bound) = match goal.asked {
            Asked::AtMost(bound) => ("≤", bound),
            Asked::AtLeast(bound) => ("≥", bound),
        };
        let digits = if goal.unit.is_empty() { 2 } else { 0 };
        let mut cells = vec![Cell::new(&goal.what), right(format!("{:.digits$}{}", goal.value, goal.unit))];
        if is_judged {
            cells.push(right(format!("{sign} {bound:.digits$}{}", goal.unit)));
            cells.push(Cell::new(if goal.asked.holds(goal.value) { "holds" } else { "MISSED" }));
        }
        table.add_row(cells);
    }
    (!goals.is_empty()).then_some(table)
}

/// An empty table.
pub fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(header);
    table
}

/// A cell aligned to the right.
pub fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// A figure in a suitable unit.
pub fn figure(metric: Metric, value: f64) -> String {
    match metric.unit() {
        "1/s" => format!("{} M/s", digits(value / 1e6)),
        "B/s" => format!("{} GB/s", digits(value / 1e9)),
        "flop/s" => format!("{} Gflop/s", digits(value / 1e9)),
        "B" => format!("{value:.0} B"),
        "times" => digits(value),
        _ => ns(value),
    }
}

/// Nanoseconds, or microseconds from a thousand on.
pub fn ns(value: f64) -> String {
    match value {
        v if v < 999.5 => format!("{} ns", digits(v)),
        v => format!("{} µs", digits(v / 1e3)),
    }
}

/// Three digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A size for display.
pub fn bytes(size: usize) -> String {
    match size {
        s if s >= 1 << 20 && s % (1 << 20) == 0 => format!("{} MiB", s >> 20),
        s if s >= 1024 && s % 1024 == 0 => format!("{} KiB", s / 1024),
        s => format!("{s} B"),
    }
}

/// The size of a metric: a number of particles for metrics of particles.
pub fn size_of(metric: &str, size: usize) -> String {
    match Metric::named(metric) {
        Some(Metric::NBody | Metric::SpeedUp) => format!("{size} particles"),
        Some(Metric::Hpl | Metric::Transpose | Metric::RandomAccess | Metric::Fft) => format!("N = {size}"),
        _ => bytes(size),
    }
}
