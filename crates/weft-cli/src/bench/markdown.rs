//! The results as part of a Markdown page: one table of figures beside their limits and peers, and one line of conditions.

use super::json::{Document, Family, Judged, Row};
use super::mpi::table::{by_mpi, cells, columns, heads, Line as MpiLine};
use super::results::{Metric, Way};
use super::table::{bytes, digits, figure, ns};
use std::fmt::Write;

/// The metrics that have rows, in order, each measured in these ways.
const FIGURES: [(Metric, &[Way]); 12] = [
    (Metric::Rtt, &[Way::Plain, Way::Waiting, Way::Sleeping]),
    (Metric::Rate, &[Way::Plain, Way::RequestReply]),
    (Metric::Bandwidth, &[Way::Plain]),
    (Metric::Lone, &[Way::Plain]),
    (Metric::Word, &[Way::Plain]),
    (Metric::WordTail, &[Way::Plain]),
    (Metric::Write, &[Way::Plain, Way::Executed, Way::Lent]),
    (Metric::WriteTime, &[Way::Plain, Way::Executed]),
    (Metric::Read, &[Way::Plain, Way::Executed, Way::Lent]),
    (Metric::ReadTime, &[Way::Plain, Way::Executed]),
    (Metric::FetchAdd, &[Way::Plain, Way::Executed]),
    (Metric::Adds, &[Way::Plain, Way::Executed]),
];

/// The families that weft is compared with, in column order.
const OTHERS: [Family; 3] = [Family::Limit, Family::Kernel, Family::Ucx];

/// The table and its conditions; with `has_goals` also the ratios that have goals.
pub fn render(document: &Document, has_goals: bool) -> String {
    let mut text = String::new();
    for (_, title, lines) in by_mpi(document) {
        let _ = writeln!(text, "{}", of_mpi(title, &lines, document.is_of_hosts()));
    }
    let lines = figures(document);
    if !lines.is_empty() {
        let _ = writeln!(text, "{}", beside(document, &lines));
    }
    let _ = writeln!(text, "{}", conditions(document));
    if has_goals && !document.goals.is_empty() {
        let _ = write!(text, "\n{}", goals(&document.goals));
    }
    text
}

/// A figure of weft, and the best of each family for the same figure.
struct Line<'a> {
    metric: Metric,
    way: Way,
    weft: &'a Row,
    others: [Option<&'a Row>; 3],
}

/// All lines that have a figure of weft.
fn figures(document: &Document) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for (metric, ways) in FIGURES {
        for &way in ways {
            for size in document.sizes(metric) {
                let Some(weft) = document.get(metric, size, way, "weft") else { continue };
                let others = OTHERS.map(|family| other(document, metric, size, way, family));
                lines.push(Line { metric, way, weft, others });
            }
        }
    }
    lines
}

/// The best of a family that does the same work as weft does in this way.
fn other(document: &Document, metric: Metric, size: usize, way: Way, family: Family) -> Option<&Row> {
    let by = |system| document.get(metric, size, Way::Plain, system);
    match (way, family) {
        (Way::Plain, _) => document.best(metric, size, family).map(|(row, _)| row),
        (Way::RequestReply, Family::Limit) => document.get(metric, size, way, "ring"),
        // A side that sleeps is compared with calls that block.
        (Way::Waiting | Way::Sleeping, Family::Limit) if document.is_of_hosts() => by("udp-block"),
        (Way::Waiting | Way::Sleeping, Family::Kernel) if document.is_of_hosts() => by("tcp-block"),
        (Way::Waiting | Way::Sleeping, Family::Kernel) => by("kpipe-block"),
        _ => None,
    }
}

/// The figures beside each other. A family without figures has no columns.
fn beside(document: &Document, lines: &[Line<'_>]) -> String {
    let has: [bool; 3] = std::array::from_fn(|at| lines.iter().any(|line| line.others[at].is_some()));
    let families = || OTHERS.into_iter().enumerate().filter(|(at, _)| has[*at]);
    let mut header = vec!["what".to_owned(), "weft".to_owned()];
    for (_, family) in families() {
        header.extend([family.name(document.is_of_hosts()).to_owned(), "ratio".to_owned()]);
    }
    let mut table = Markdown::new(&header, 1);
    for line in lines {
        let told = |row: &Row| row.median.map_or_else(String::new, |median| figure(line.metric, median));
        let mut cells = vec![what(line), told(line.weft)];
        for (at, _) in families() {
            let other = line.others[at];
            cells.push(other.map_or_else(String::new, |row| format!("{} {}", told(row), name(row))));
            cells.push(other.and_then(|row| line.weft.divided_by(row)).map_or_else(String::new, digits));
        }
        table.row(&cells);
    }
    table.text
}

/// The figures of an MPI over each transport.
fn of_mpi(title: &str, lines: &[MpiLine<'_>], is_of_hosts: bool) -> String {
    let columns = columns(lines);
    let mut header = vec![title.to_owned()];
    header.extend(heads(&columns, "ratio", is_of_hosts));
    let mut table = Markdown::new(&header, 1);
    for line in lines {
        let what = [line.title.to_owned(), line.what()].join(", ");
        let mut row = vec![what.trim_end_matches(", ").to_owned()];
        row.extend(cells(line, &columns));
        table.row(&row);
    }
    table.text
}

fn what(line: &Line<'_>) -> String {
    let title = match (line.metric, line.way) {
        (Metric::Rate, Way::RequestReply) => "requests with replies",
        (Metric::Rate, _) => "messages one way",
        (Metric::Bandwidth, _) => "bytes one way",
        (Metric::Lone, _) => "one message, its sender computing",
        (Metric::Word, _) => "a word there and back",
        (Metric::WordTail, _) => "98.6 % of these within",
        (Metric::Write, _) => "writes",
        (Metric::WriteTime, _) => "one write",
        (Metric::Read, _) => "reads",
        (Metric::ReadTime, _) => "one read",
        (Metric::FetchAdd, _) => "one fetch-and-add",
        (Metric::Adds, _) => "additions",
        _ => "round trip",
    };
    let how = match line.way {
        Way::Waiting => ", both sides wait",
        Way::Sleeping => ", both sides sleep",
        Way::Lent => ", lent memory",
        Way::Executed => ", carried out by the owner",
        _ => "",
    };
    format!("{title}, {}{how}", bytes(line.weft.size))
}

/// A system, and whether it is UCX whose receivers read.
fn name(row: &Row) -> String {
    format!("({}{})", row.system, if row.is_ucx_that_reads() { ", reading" } else { "" })
}

/// The conditions of the figures, and how to read them: one line.
fn conditions(document: &Document) -> String {
    let machine = &document.machine;
    let date = escaped(machine.date.split('T').next().unwrap_or_default());
    let rounds = match document.rounds {
        Some(1) => ", 1 round".to_owned(),
        Some(rounds) => format!(", {rounds} rounds"),
        None => String::new(),
    };
    let [cpu, kernel, weft] = [&machine.cpu, &machine.kernel, &machine.weft].map(|text| escaped(text));
    let between = escaped(&between(document));
    let mut text = format!("{date}, {cpu}, {} CPUs, Linux {kernel}, weft {weft}; {between}{rounds}.", machine.cores);
    if let Some([least, most]) = machine.line {
        let _ = write!(text, " A cache line went there and back in {} to {}.", ns(least), ns(most));
    }
    let ratios =
        if document.has_rounds() { "the median of the rounds' ratios" } else { "a ratio of the medians shown" };
    let _ = write!(
        text,
        " Figures are medians; ratio is weft's figure ÷ the other's, {ratios}; of times less is better, of rates more."
    );
    if document.rows.iter().any(|row| row.family() == Some(Family::Ucx)) {
        text.push_str(" UCX's receivers read the bytes only where *reading* stands behind its name.");
    }
    text
}

fn between(document: &Document) -> String {
    let [ours, theirs] = document.machine.cpus;
    match (&document.between, document.is_of_hosts(), document.mtu) {
        (Some(between), ..) => between.clone(),
        (None, false, _) => format!("two processes on CPUs {ours} and {theirs}"),
        (None, true, Some(mtu)) => format!("two hosts, MTU {mtu}"),
        (None, true, None) => "two hosts".to_owned(),
    }
}

/// The goals, and whether they hold.
fn goals(goals: &[Judged]) -> String {
    let mut table = Markdown::new(&["how good", "measured", "asked", ""].map(str::to_owned), 1);
    for goal in goals {
        let unit = if goal.unit.is_empty() { String::new() } else { format!(" {}", goal.unit) };
        let places = if goal.unit.is_empty() { 2 } else { 0 };
        let told = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.places$}{unit}"));
        let sign = if goal.at_most.is_some() { "≤" } else { "≥" };
        let verdict = if goal.holds { "holds" } else { "MISSED" };
        let asked = format!("{sign} {}", told(goal.at_most.or(goal.at_least)));
        table.row(&[goal.what.clone(), told(goal.value), asked, verdict.to_owned()]);
    }
    table.text
}

/// A table in Markdown.
struct Markdown {
    text: String,
}

impl Markdown {
    /// With a header. The columns from `right` on are aligned to the right.
    fn new(header: &[String], right: usize) -> Markdown {
        let mut table = Markdown { text: String::new() };
        table.row(header);
        let marks = (0..header.len()).map(|at| if at < right { " --- |" } else { " ---: |" });
        let _ = writeln!(table.text, "|{}", marks.collect::<String>());
        table
    }

    fn row(&mut self, cells: &[String]) {
        self.text.push('|');
        for cell in cells {
            let space = if cell.is_empty() { "" } else { " " };
            let _ = write!(self.text, "{space}{} |", escaped(cell));
        }
        self.text.push('\n');
    }
}

/// Escapes Markdown's own characters: those of tables, emphasis and tags.
fn escaped(text: &str) -> String {
    let mut to = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '|' | '<' | '>' | '*' | '_' | '`' | '\\' | '[') {
            to.push('\\');
        }
        to.push(if c.is_control() { ' ' } else { c });
    }
    to
}
