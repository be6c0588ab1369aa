//! The figures as tables: each MPI over weft, beside its own transport and libfabric's.

use super::find::Kind;
use super::transport::Transport;
use crate::bench::json::{Document, Row};
use crate::bench::results::{Metric, Way};
use crate::bench::table::{digits, figure, left_out, new, ns, right, size_of};
use comfy_table::{Cell, Table};
use std::fmt::Write;

/// The figures, in the order of their rows.
const FIGURES: [(Metric, &str); 15] = [
    (Metric::MpiRtt, "round trip"),
    (Metric::MpiBandwidth, "bytes one way"),
    (Metric::MpiRate, "messages one way"),
    (Metric::MpiBarrier, "barrier"),
    (Metric::MpiAllReduce, "all-reduce"),
    (Metric::MpiPut, "put and flush"),
    (Metric::MpiPutBytes, "put, bytes"),
    (Metric::MpiGet, "get and flush"),
    (Metric::MpiGetBytes, "get, bytes"),
    (Metric::NBody, "n-body, a step"),
    (Metric::SpeedUp, "n-body, speed-up"),
    (Metric::Hpl, "hpcc, linear equations"),
    (Metric::Transpose, "hpcc, transposition"),
    (Metric::RandomAccess, "hpcc, random updates"),
    (Metric::Fft, "hpcc, Fourier transform"),
];

/// A figure of an MPI over each transport.
#[derive(Debug)]
pub struct Line<'a> {
    pub metric: Metric,
    pub title: &'static str,
    pub size: usize,
    pub rows: [Option<&'a Row>; 4],
}

impl Line<'_> {
    /// The size for display: a number of particles for metrics of particles, and nothing for a barrier.
    pub fn what(&self) -> String {
        match self.metric {
            Metric::MpiBarrier => String::new(),
            metric => size_of(metric.name(), self.size),
        }
    }

    /// weft's figure divided by another one.
    pub fn ratio(&self, other: usize) -> Option<f64> {
        let [Some(weft), ..] = self.rows else { return None };
        weft.divided_by(self.rows[other].filter(|_| other != 0)?)
    }
}

/// All figures of one MPI.
pub fn lines(document: &Document, kind: Kind) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for (metric, title) in FIGURES {
        for size in document.sizes(metric) {
            let of = |transport: Transport| {
                document.get(metric, size, Way::Plain, &format!("{}-{}", kind.name(), transport.name()))
            };
            let rows = Transport::ALL.map(of);
            if rows.iter().any(Option::is_some) {
                lines.push(Line { metric, title, size, rows });
            }
        }
    }
    lines
}

/// The MPIs that have figures, with their lines.
pub fn by_mpi(document: &Document) -> Vec<(&'static str, &'static str, Vec<Line<'_>>)> {
    let all = Kind::ALL.map(|kind| (kind.name(), kind.title(), lines(document, kind)));
    all.into_iter().filter(|(_, _, lines)| !lines.is_empty()).collect()
}

/// The transports that have figures.
pub fn columns(lines: &[Line<'_>]) -> Vec<usize> {
    (0..Transport::ALL.len()).filter(|&at| lines.iter().any(|line| line.rows[at].is_some())).collect()
}

/// The cells of a line after its title: each transport's figure, and weft's divided by it.
pub fn cells(line: &Line<'_>, columns: &[usize]) -> Vec<String> {
    let mut cells = Vec::new();
    for &at in columns {
        let median = line.rows[at].and_then(|row| row.median);
        cells.push(median.map_or_else(String::new, |median| figure(line.metric, median)));
        if at != 0 && columns.first() == Some(&0) {
            cells.push(line.ratio(at).map_or_else(String::new, digits));
        }
    }
    cells
}

/// The headings of these columns.
pub fn heads(columns: &[usize], ratio: &str, is_of_hosts: bool) -> Vec<String> {
    let mut heads = Vec::new();
    for &at in columns {
        heads.push(Transport::ALL[at].title(is_of_hosts).to_owned());
        if at != 0 && columns.first() == Some(&0) {
            heads.push(ratio.to_owned());
        }
    }
    heads
}

/// Everything, as text. If `is_judged`, also the goals and whether they are reached.
pub fn render(document: &Document, is_judged: bool) -> String {
    let machine = &document.machine;
    let between = document.between.as_deref().unwrap_or("two ranks");
    let rounds = match document.rounds {
        Some(1) => "1 round".to_owned(),
        rounds => format!("{} rounds", rounds.unwrap_or(0)),
    };
    let (cpu, cores, kernel, date) = (&machine.cpu, machine.cores, &machine.kernel, &machine.date);
    let mut text = format!("{cpu}, {cores} CPUs, Linux {kernel}, {date}; {between}; {rounds}\n");
    if let Some([least, most]) = machine.line {
        let _ = writeln!(text, "a cache line went there and back in {} to {}", ns(least), ns(most));
    }
    for (_, title, lines) in by_mpi(document) {
        let _ = write!(text, "\n{}\n", figures(title, &lines, document.is_of_hosts()));
    }
    if let Some(goals) = judgement(document, is_judged) {
        let _ = write!(text, "\n{goals}\n");
    }
    let _ = writeln!(text, "{}", samples(document));
    text.push_str(&left_out(&document.left_out));
    text
}

fn figures(title: &str, lines: &[Line<'_>], is_of_hosts: bool) -> Table {
    let columns = columns(lines);
    let heads = heads(&columns, "÷", is_of_hosts);
    let all: Vec<&str> = [title, "size"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut table = new(&all);
    let mut last = "";
    for line in lines {
        let name = if line.title == last { "" } else { line.title };
        last = line.title;
        let cells = cells(line, &columns).into_iter().map(right);
        table.add_row([Cell::new(name), right(line.what())].into_iter().chain(cells));
    }
    table
}

/// The number of samples per figure.
pub fn samples(document: &Document) -> String {
    let ns = || document.rows.iter().map(|row| row.n);
    let (least, most) = (ns().min().unwrap_or(0), ns().max().unwrap_or(0));
    format!("÷: weft's figure divided by the one to its left, the median of the rounds' ratios. Each figure is of {least} to {most} samples.")
}

fn judgement(document: &Document, is_judged: bool) -> Option<Table> {
    let mut table = new(&["how good", "measured", "asked", ""]);
    for goal in document.goals.iter().filter(|_| is_judged) {
        let value = goal.value.map_or_else(String::new, |value| format!("{value:.2}"));
        let (sign, bound) = if goal.at_most.is_some() { ("≤", goal.at_most) } else { ("≥", goal.at_least) };
        let asked = bound.map_or_else(String::new, |bound| format!("{sign} {bound:.2}"));
        let verdict = if goal.holds { "holds" } else { "MISSED" };
        table.add_row([Cell::new(&goal.what), right(value), right(asked), Cell::new(verdict)]);
    }
    let has_rows = table.row_count() > 0;
    has_rows.then_some(table)
}
