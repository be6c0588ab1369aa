//! The page around the pictures: the machine, a table below each picture, colours for paper and for dark mode.

use super::draw::{Who, GRID, INK};
use super::mpi;
use crate::bench::json::{Document, Family, Row};
use crate::bench::mpi::table::Line;
use crate::bench::mpi::Transport;
use crate::bench::results::Metric;
use crate::bench::table::{bytes, digits, figure, ns, size_of};
use plotters::style::RGBColor;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The names of two measurements.
pub const LETTERS: [&str; 2] = ["A", "B"];

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #222; --faint: #666; --paper: #fff; --line: #ccc; }
body { font: 15px/1.45 sans-serif; color: var(--ink); background: var(--paper); max-width: 75rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { max-width: 50rem; } .faint { color: var(--faint); }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; }
.pictures > svg { height: auto; flex: 1 1 24rem; min-width: 0; max-width: 55rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; } .left, th:first-child, td:first-child { text-align: left; } td.how { white-space: normal; text-align: left; min-width: 12rem; }
";

/// For paper: light colours, and no page break inside a picture or row.
const PRINT: &str = "
@media print {
  @page { margin: 14mm; }
  :root { color-scheme: light; }
  body { font-size: 10pt; max-width: none; margin: 0; padding: 0; }
  h2 { break-after: avoid; } section > .pictures, tr { break-inside: avoid; } .pictures { flex-wrap: nowrap; }
  .wide { overflow: visible; } table { font-size: 8pt; } th, td { padding: .1rem .35rem; } thead { display: table-header-group; }
  td.how { min-width: 0; }
}
";

/// A page that is being written.
pub struct Page {
    html: String,
    rest: String,
    /// Each picture, and what it is of.
    pub pictures: Vec<(String, String)>,
}

impl Page {
    /// With its head: what was measured, where and when.
    pub fn new(documents: &[Document]) -> Page {
        // Two pictures beside each other need the longer side of a sheet.
        let sheet = if documents.len() > 1 { "@media print { @page { size: landscape; } }" } else { "" };
        let mut page = Page::titled("weft: what messages cost", sheet);
        page.measured(documents);
        page
    }

    /// A page with only a title, and more style rules for paper.
    pub fn titled(title: &str, sheet: &str) -> Page {
        let html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>{STYLE}{}{PRINT}{sheet}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
            by_night()
        );
        Page { html, rest: String::new(), pictures: Vec::new() }
    }

    /// Adds the machine and the time of a measurement, and all figures at the end.
    pub fn measured(&mut self, documents: &[Document]) {
        let html = &mut self.html;
        for (at, document) in documents.iter().enumerate() {
            let letter = if documents.len() > 1 { format!("<b>{}</b>: ", LETTERS[at % 2]) } else { String::new() };
            let _ = writeln!(html, "<p>{letter}{}</p>", machine(document));
        }
        html.push_str("<p class=\"faint\">Figures are medians of the rounds' medians; p99: 99 of 100 samples were as good or better; n is the number of samples. Both axes are logarithmic. ");
        if documents.iter().all(Document::is_of_mpi) {
            html.push_str(
                "Where ÷ stands, weft's figure is divided by the other one: the median of the rounds' ratios. The ranks check both ends of each \
                 message.</p>\n",
            );
        } else {
            html.push_str(others(documents));
        }
        for what in documents.iter().flat_map(|document| &document.left_out) {
            let _ = writeln!(html, "<p class=\"faint\">left out: {}</p>", escaped(what));
        }
        self.rest.push_str(&everything(documents));
    }

    /// Adds a heading above the sections that follow.
    pub fn headline(&mut self, words: &str) {
        let _ = writeln!(self.html, "<h1>{}</h1>", escaped(words));
    }

    /// Adds a picture, or two side by side, with an explanation above and the table below.
    pub fn figure(&mut self, (title, words): (&str, &str), pictures: Vec<String>, table: String) {
        if pictures.is_empty() {
            return;
        }
        let drawn = pictures.concat();
        self.pictures.extend(pictures.into_iter().map(|picture| (title.to_owned(), picture)));
        let (title, words) = (escaped(title), escaped(words));
        let _ = write!(
            self.html,
            "<section>\n<h2>{title}</h2>\n<p class=\"faint\">{words}</p>\n<div class=\"pictures\">\n{drawn}</div>\n<div class=\"wide\">{table}</div>\n</section>\n"
        );
    }

    /// The complete page.
    pub fn finish(self) -> String {
        self.html + &self.rest + "</body>\n</html>\n"
    }
}

/// How figures other than those of MPIs are measured.
fn others(documents: &[Document]) -> &'static str {
    match documents.iter().any(Document::has_ucx_that_reads) {
        true => {
            "Ratios are of the medians shown; where ÷ stands, the first is divided by the second. The receivers of weft and of the limits read \
             every byte. So do UCX's where <i>reading</i> stands behind its name; elsewhere it is measured with ucx_perftest, whose receivers do \
             not read what they receive.</p>\n"
        }
        false => {
            "Ratios are of the medians shown; where ÷ stands, the first is divided by the second. The receivers of weft and of the limits read \
             every byte. UCX is measured with ucx_perftest, whose receivers do not read what they receive.</p>\n"
        }
    }
}

/// The pictures' colours in dark mode. The pictures have them as attributes, which CSS rules override.
fn by_night() -> String {
    let hex = |RGBColor(r, g, b)| format!("#{r:02X}{g:02X}{b:02X}");
    let colours = Who::all().map(Who::colours).chain([(INK, "#e4e4e4"), (GRID, "#3c3c3c")]);
    let rules: String = colours
        .map(|(day, night)| {
            let day = hex(day);
            format!("  svg [fill=\"{day}\"] {{ fill: {night}; }} svg [stroke=\"{day}\"] {{ stroke: {night}; }}\n")
        })
        .collect();
    format!(
        "@media screen and (prefers-color-scheme: dark) {{\n  :root {{ --ink: #e4e4e4; --faint: #a0a0a0; --paper: #17191c; --line: #3c3c3c; }}\n\
         {rules}}}\n"
    )
}

fn machine(document: &Document) -> String {
    let machine = &document.machine;
    let between = match (document.is_of_hosts(), document.mtu) {
        _ if document.is_of_mpi() => document.between.clone().unwrap_or_default(),
        (false, _) => format!("two processes of one host, on CPUs {} and {}", machine.cpus[0], machine.cpus[1]),
        (true, None) => "two hosts".to_owned(),
        (true, Some(mtu)) => format!("two hosts, MTU {mtu}"),
    };
    let mut text = format!(
        "{}, {} CPUs, Linux {}, {}; weft {}; {between}.",
        machine.cpu, machine.cores, machine.kernel, machine.date, machine.weft
    );
    if let Some([least, most]) = machine.line {
        let _ = write!(text, " A cache line went there and back in {} to {}", ns(least), ns(most));
        text.push_str(if most > 1.5 * least {
            ": the machine changed while it was measured; read across, not down."
        } else {
            "."
        });
    }
    escaped(&text)
}

/// A table under construction: numbers are aligned to the right of their columns, words to the left.
struct Table {
    html: String,
    /// The attributes of each column's cells.
    sides: Vec<&'static str>,
}

impl Table {
    /// The columns with words: these, and those without a heading.
    const WORDS: [&str; 3] = ["", "which", "how"];

    fn new(heads: &[&str]) -> Table {
        let side = |head| if Table::WORDS.contains(head) { " class=\"left\"" } else { "" };
        let sides: Vec<&str> = heads.iter().map(side).collect();
        let cells: String =
            heads.iter().zip(&sides).map(|(head, side)| format!("<th{side}>{}</th>", escaped(head))).collect();
        Table { html: format!("<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n"), sides }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().zip(&self.sides);
        let cells: String = cells.map(|(cell, side)| format!("<td{side}>{}</td>", escaped(&cell))).collect();
        let _ = writeln!(self.html, "<tr>{cells}</tr>");
    }

    fn finish(self) -> String {
        self.html + "</tbody>\n</table>\n"
    }
}

/// Formats rows as a table.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new(heads);
    rows.iter().for_each(|row| table.row(row.iter().cloned()));
    table.finish()
}

/// A median, its slow tail and n, or blanks.
fn told(metric: Metric, found: Option<(&Row, f64)>) -> [String; 3] {
    let Some((row, median)) = found else { return Default::default() };
    let p99 = row.p99.map_or_else(String::new, |p99| figure(metric, p99));
    [figure(metric, median), p99, row.n.to_string()]
}

/// The name of a system, and whether it is UCX whose receivers read.
fn system(row: &Row) -> String {
    format!("{}{}", row.system, if row.is_ucx_that_reads() { ", reading" } else { "" })
}

fn ratio(above: Option<f64>, below: Option<f64>) -> String {
    above.zip(below).filter(|(_, below)| *below > 0.0).map_or_else(String::new, |(above, below)| digits(above / below))
}

/// The figures of a metric by size: one measurement beside the other systems, or two side by side.
pub fn by_size(documents: &[Document], metric: Metric) -> String {
    let sizes: BTreeSet<usize> = documents.iter().flat_map(|document| document.sizes(metric)).collect();
    match documents {
        [one] => beside_others(one, metric, &sizes),
        _ => beside_each_other(documents, metric, &sizes),
    }
}

/// The same at the one size of rates.
pub fn rates(documents: &[Document]) -> String {
    by_size(documents, Metric::Rate)
}

/// A metric of an MPI over each transport: one measurement with ratios, or two side by side.
pub fn of_mpi(documents: &[Document], name: &str, metric: Metric) -> String {
    let mut table = match documents {
        [_] => Table::new(&["", "which", "median", "p99", "n", "weft ÷ it"]),
        _ => Table::new(&["", "which", "A", "B", "B ÷ A", "A p99", "B p99", "A n", "B n"]),
    };
    let all: Vec<_> = documents.iter().map(|document| mpi::lines_of(document, name, metric)).collect();
    let is_of_hosts = documents.iter().any(Document::is_of_hosts);
    let mut lines: Vec<_> = all.iter().flatten().collect();
    lines.sort_by_key(|line| line.size);
    lines.dedup_by_key(|line| line.size);
    for line in lines {
        for (at, transport) in Transport::ALL.into_iter().enumerate() {
            let found: Vec<Option<(&Row, f64)>> = all.iter().map(|lines| figure_in(lines, line.size, at)).collect();
            let (what, which) = (line.what(), transport.title(is_of_hosts).to_owned());
            match found.as_slice() {
                [Some(one)] => {
                    let [median, p99, n] = told(metric, Some(*one));
                    table.row([what, which, median, p99, n, line.ratio(at).map_or_else(String::new, digits)]);
                }
                found if found.iter().any(Option::is_some) => table.row(in_both(what, which, metric, found)),
                _ => {}
            }
        }
    }
    table.finish()
}

/// A figure of an MPI over a transport.
fn figure_in<'a>(lines: &[Line<'a>], size: usize, transport: usize) -> Option<(&'a Row, f64)> {
    let row = lines.iter().find(|line| line.size == size)?.rows[transport]?;
    Some((row, row.median?))
}

fn beside_others(document: &Document, metric: Metric, sizes: &BTreeSet<usize>) -> String {
    let mut table = Table::new(&["size", "", "which", "median", "p99", "n", "weft ÷ it"]);
    for &size in sizes {
        let weft = document.best(metric, size, Family::Weft).map(|(_, median)| median);
        for family in Family::ALL {
            let Some(found) = document.best(metric, size, family) else { continue };
            let [median, p99, n] = told(metric, Some(found));
            let ratio = if family == Family::Weft { String::new() } else { ratio(weft, Some(found.1)) };
            let (who, which) = (family.name(document.is_of_hosts()), system(found.0));
            let which = if who == which { String::new() } else { which };
            table.row([bytes(size), who.to_owned(), which, median, p99, n, ratio]);
        }
    }
    table.finish()
}

fn beside_each_other(documents: &[Document], metric: Metric, sizes: &BTreeSet<usize>) -> String {
    let mut table = Table::new(&["size", "", "A", "B", "B ÷ A", "A p99", "B p99", "A n", "B n"]);
    for &size in sizes {
        for family in Family::ALL {
            let found: Vec<_> = documents.iter().map(|document| document.best(metric, size, family)).collect();
            if found.iter().all(Option::is_none) {
                continue;
            }
            let is_of_hosts = documents.iter().any(Document::is_of_hosts);
            table.row(in_both(bytes(size), family.name(is_of_hosts).to_owned(), metric, &found));
        }
    }
    table.finish()
}

fn in_both(what: String, who: String, metric: Metric, found: &[Option<(&Row, f64)>]) -> Vec<String> {
    let first = found.first().copied().flatten();
    let second = found.get(1).copied().flatten();
    let ([a, a99, an], [b, b99, bn]) = (told(metric, first), told(metric, second));
    vec![what, who, a, b, ratio(second.map(|s| s.1), first.map(|f| f.1)), a99, b99, an, bn]
}

/// The parameters of LogP.
pub fn logp(documents: &[Document], parameters: &[(Metric, &str)]) -> String {
    let of = |document: &Document, metric: Metric| document.sizes(metric).first().copied();
    let mut table = match documents {
        [_] => Table::new(&["", "weft", "p99", "n", "how"]),
        _ => Table::new(&["", "", "A", "B", "B ÷ A", "A p99", "B p99", "A n", "B n"]),
    };
    for (metric, name) in parameters {
        let best = |document| Document::best(document, *metric, of(document, *metric)?, Family::Weft);
        let found: Vec<Option<(&Row, f64)>> = documents.iter().map(best).collect();
        match found.as_slice() {
            [one] => {
                let mut cells = vec![(*name).to_owned()];
                cells.extend(told(*metric, *one));
                cells.push(one.and_then(|(row, _)| row.detail.clone()).unwrap_or_default());
                table.row(cells);
            }
            _ => table.row(in_both((*name).to_owned(), "weft".to_owned(), *metric, &found)),
        }
    }
    table.finish()
}

/// All rows of the files.
fn everything(documents: &[Document]) -> String {
    let mut html = String::new();
    for (at, document) in documents.iter().enumerate() {
        let letter = if documents.len() > 1 { format!(" of {}", LETTERS[at % 2]) } else { String::new() };
        let _ = write!(
            html,
            "<section>\n<h2>Every figure{letter}</h2>\n<div class=\"wide\"><table>\n<thead><tr><th class=\"left\">figure</th><th class=\"left\">size</th>\
             <th class=\"left\">system</th><th>median</th><th>p99</th><th>n</th><th>medians of the rounds</th><th class=\"left\">how</th>\
             </tr></thead>\n<tbody>\n"
        );
        for row in &document.rows {
            let tell = |value: f64| match Metric::named(&row.metric) {
                Some(metric) => figure(metric, value),
                None => format!("{} {}", digits(value), row.unit),
            };
            let value = |value: Option<f64>| value.map_or_else(String::new, tell);
            let rounds = row.rounds.map_or_else(String::new, |[a, b]| format!("{} to {}", tell(a), tell(b)));
            let how = row.detail.as_deref().or(row.way.as_deref()).unwrap_or_default();
            let cells = [
                size_of(&row.metric, row.size),
                system(row),
                value(row.median),
                value(row.p99),
                row.n.to_string(),
                rounds,
            ];
            let [size, system, median, p99, n, rounds] = cells.map(|cell| escaped(&cell));
            let _ = writeln!(
                html,
                "<tr><td class=\"left\">{}</td><td class=\"left\">{size}</td><td class=\"left\">{system}</td><td>{median}</td><td>{p99}</td><td>{n}</td>\
                 <td>{rounds}</td><td class=\"how\">{}</td></tr>",
                escaped(&row.metric),
                escaped(how)
            );
        }
        html.push_str("</tbody>\n</table></div>\n</section>\n");
    }
    html
}

/// Text escaped for a page, between tags and in attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
