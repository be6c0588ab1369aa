//! `weft bench report`: one measurement as pictures and tables, or two side by side, in one HTML file; or as Markdown.

mod draw;
mod mpi;
mod page;
mod sketch;

use super::json::{Document, Family};
use super::markdown;
use super::results::Metric;
use crate::error::Error;
use crate::output::{is_standard_output, print, print_line, write_file};
use draw::{Dot, Frame, Name, Sizes};
use page::Page;
use std::path::{Path, PathBuf};

pub use draw::{Curve, Who};
pub use sketch::{Shape, Side, Sketch};

/// Text after the options in `--help`.
const HELP: &str = "\
The benchmarks write the files with `--json FILE`. Of the systems of one kind (the \
kernel's pipes and sockets; UCX's interfaces; the limit programs), the page shows the best one at each size. UCX with receivers that \
read all bytes is preferred, since all other receivers do. Ratios are those of the \
medians in the files; the tables of `weft bench` take them within each round, which is better if the machine changes during a \
measurement. The page is self-contained: no scripts, no fonts, no network.";

/// The arguments of `weft bench report`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The measurement.
    #[arg(value_name = "A.json")]
    first: PathBuf,
    /// Another measurement, drawn beside it, with ratios.
    #[arg(value_name = "B.json")]
    second: Option<PathBuf>,
    /// Prints each measurement as part of a Markdown page instead: one table, and one line of conditions.
    #[arg(long, conflicts_with = "output")]
    markdown: bool,
    /// The page; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "weft-report.html")]
    output: PathBuf,
    /// Also writes each picture to a file of its own in this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "markdown")]
    svg: Option<PathBuf>,
}

/// Draws the page, and prints its path.
pub fn run(options: &Options) -> Result<(), Error> {
    let mut documents = vec![Document::read(&options.first)?];
    documents.extend(options.second.as_deref().map(Document::read).transpose()?);
    if options.markdown {
        let parts: Vec<String> = documents.iter().map(|document| markdown::render(document, false)).collect();
        return print(parts.join("\n"));
    }
    let page = page(&documents)?;
    if let Some(folder) = &options.svg {
        write_pictures(folder, &page.pictures)?;
    }
    write_page(&options.output, page, "")
}

/// A section of a page without a measurement of messages.
#[derive(Clone, Debug)]
pub struct Section {
    pub title: &'static str,
    /// What the picture means, for readers who never saw one like it.
    pub words: String,
    pub picture: String,
    /// The heads of the table below, if there is one. Columns without a head contain text.
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Writes a page of these sections, and of a measurement if there is one. Prints its path behind these words.
pub fn write_demo(path: &Path, sections: &[Section], measured: Option<Document>, words: &str) -> Result<(), Error> {
    let mut page = Page::titled("weft: a demonstration", "");
    for Section { title, words, picture, heads, rows } in sections {
        let table = if heads.is_empty() { String::new() } else { page::table(heads, rows) };
        page.figure((title, words), vec![picture.clone()], table);
    }
    if let Some(document) = measured {
        let documents = [document];
        page.headline("What messages cost");
        page.measured(&documents);
        add_figures(&mut page, &documents)?;
    }
    write_page(path, page, words)
}

/// Draws times by size.
pub fn times_by_size(title: &str, curves: &[Curve]) -> Result<String, Error> {
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1));
    let range = draw::range_of(values).unwrap_or(0.0..1.0);
    let name = Name { letter: "", title };
    let metric = Metric::Rtt;
    let frame = Frame { name, metric, values: "time, logarithmic", width: 820, height: 360, sizes: Sizes::Moved };
    draw::curves(&frame, curves, range)
}

/// Writes a page, and prints its path behind these words unless the page itself goes to standard output.
fn write_page(path: &Path, page: Page, words: &str) -> Result<(), Error> {
    write_file(path, page.finish(), "Name a file in a directory where you may write: --output FILE")?;
    if is_standard_output(path) {
        return Ok(());
    }
    let written = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    print_line(format!("{words}{}", written.display()))
}

/// Writes the pictures, named after their titles; those of the second measurement end with `-b`.
fn write_pictures(folder: &Path, pictures: &[(String, String)]) -> Result<(), Error> {
    let failed = |path: &Path, source| Error::File {
        verb: "write",
        path: path.to_path_buf(),
        source,
        way_out: "Name a folder where you may write: --svg FOLDER",
    };
    std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
    for (at, (title, picture)) in pictures.iter().enumerate() {
        let words = title.to_lowercase();
        let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let is_second = at > 0 && pictures[at - 1].0 == *title;
        let name = words.chain(is_second.then_some("b")).collect::<Vec<_>>().join("-");
        let path = folder.join(name + ".svg");
        std::fs::write(&path, picture).map_err(|source| failed(&path, source))?;
    }
    Ok(())
}

/// A picture of values by size.
struct BySize {
    metric: Metric,
    title: &'static str,
    /// An explanation for newcomers.
    words: &'static str,
    values: &'static str,
    has_tail: bool,
}

const BY_SIZE: [BySize; 2] = [
    BySize {
        metric: Metric::Rtt,
        title: "Round trip: a request and its reply",
        words: "Less is better. Beside weft stand a small C program that does nothing else, and the best of the kernel's pipes and sockets \
                and of UCX's interfaces.",
        values: "time of a round trip, logarithmic",
        has_tail: true,
    },
    BySize {
        metric: Metric::Bandwidth,
        title: "One way, bytes",
        words: "More is better. One process sends without waiting for answers.",
        values: "bytes per second, logarithmic",
        has_tail: false,
    },
];

const LOGP: [(Metric, &str); 4] = [
    (Metric::LogpOs, "o_s, to send"),
    (Metric::LogpOr, "o_r, to receive"),
    (Metric::LogpL, "L, on the way"),
    (Metric::LogpG, "g, the interval"),
];

const RATE_WORDS: &str = "More is better.";

const LOGP_WORDS: &str = "o_s and o_r: how long sender and receiver are busy with one message, and can do nothing else. L: the rest of half a \
                          round trip (RTT/2); 0 or less where both are busy at the same time. g: the time from one message to the next, \
                          of many. For requests of 16 B.";

fn page(documents: &[Document]) -> Result<Page, Error> {
    let mut page = Page::new(documents);
    add_figures(&mut page, documents)?;
    Ok(page)
}

fn add_figures(page: &mut Page, documents: &[Document]) -> Result<(), Error> {
    mpi::add(page, documents)?;
    for by_size in &BY_SIZE {
        page.figure(
            (by_size.title, by_size.words),
            by_size.pictures(documents)?,
            page::by_size(documents, by_size.metric),
        );
    }
    let (rate, parameters) = (rates(documents)?, logp(documents)?);
    page.figure(("One way, messages of 16 B per second", RATE_WORDS), rate, page::rates(documents));
    page.figure(("LogP: where the time of a message goes", LOGP_WORDS), parameters, page::logp(documents, &LOGP));
    Ok(())
}

/// The size of pictures: two side by side have less room.
fn frame<'a>(documents: &[Document], name: Name<'a>, metric: Metric, values: &'a str, height: u32) -> Frame<'a> {
    Frame { name, metric, values, width: if documents.len() > 1 { 600 } else { 820 }, height, sizes: Sizes::Bytes }
}

/// The text above a picture: which of the two it is. The page has the title.
fn lettered(documents: &[Document], at: usize) -> &'static str {
    match documents.len() {
        0 | 1 => "",
        _ => page::LETTERS[at % page::LETTERS.len()],
    }
}

impl BySize {
    fn curves(&self, document: &Document) -> Vec<Curve> {
        let sizes = document.sizes(self.metric);
        let points = |family| {
            let best = |&size: &usize| document.best(self.metric, size, family);
            sizes.iter().filter_map(|size| Some((*size, best(size)?))).collect::<Vec<_>>()
        };
        let mut curves = Vec::new();
        for family in Family::ALL {
            let found = points(family);
            let medians =
                found.iter().map(|(size, (_, median))| (*size, *median)).filter(|(_, median)| *median > 0.0).collect();
            let name = family.name(document.is_of_hosts()).to_owned();
            curves.push(Curve { who: Who::Family(family), name, points: medians });
            if family == Family::Weft && self.has_tail {
                let tails =
                    found.iter().filter_map(|(size, (row, _))| Some((*size, row.p99.filter(|p99| *p99 > 0.0)?)));
                curves.push(Curve {
                    who: Who::Tail,
                    name: "weft, 99th percentile".to_owned(),
                    points: tails.collect(),
                });
            }
        }
        curves.retain(|curve| !curve.points.is_empty());
        curves
    }

    fn pictures(&self, documents: &[Document]) -> Result<Vec<String>, Error> {
        let all: Vec<Vec<Curve>> = documents.iter().map(|document| self.curves(document)).collect();
        let values = all.iter().flatten().flat_map(|curve| curve.points.iter().map(|point| point.1));
        let Some(range) = draw::range_of(values) else { return Ok(Vec::new()) };
        let one = |(at, curves): (usize, &Vec<Curve>)| {
            let name = Name { letter: lettered(documents, at), title: self.title };
            let frame = frame(documents, name, self.metric, self.values, 440);
            draw::curves(&frame, curves, range.clone())
        };
        all.iter().enumerate().map(one).collect()
    }
}

/// Dots of all measurements, on the same axis.
fn rows_of_dots(
    documents: &[Document],
    title: &str,
    frame_of: (Metric, &str),
    dots: &[Vec<Dot>],
) -> Result<Vec<String>, Error> {
    let values = dots.iter().flatten().map(|dot| dot.value);
    let Some(range) = draw::range_of(values) else { return Ok(Vec::new()) };
    let most = dots.iter().map(Vec::len).max().unwrap_or(0);
    let one = |(at, dots): (usize, &Vec<Dot>)| {
        let name = Name { letter: lettered(documents, at), title };
        let frame = frame(documents, name, frame_of.0, frame_of.1, 100 + 34 * most as u32);
        draw::dots(&frame, dots, range.clone())
    };
    dots.iter().enumerate().map(one).collect()
}

fn rates(documents: &[Document]) -> Result<Vec<String>, Error> {
    let Some(size) = documents.iter().find_map(|document| document.sizes(Metric::Rate).first().copied()) else {
        return Ok(Vec::new());
    };
    let dots = |document: &Document| {
        let best = |family| Some((family, document.best(Metric::Rate, size, family)?.1));
        let dot = |(family, value): (Family, f64)| Dot {
            who: Who::Family(family),
            name: family.name(document.is_of_hosts()).to_owned(),
            value,
        };
        Family::ALL.into_iter().filter_map(best).map(dot).collect()
    };
    let all: Vec<Vec<Dot>> = documents.iter().map(dots).collect();
    rows_of_dots(documents, "One way, messages per second", (Metric::Rate, "messages per second, logarithmic"), &all)
}

fn logp(documents: &[Document]) -> Result<Vec<String>, Error> {
    let dots = |document: &Document| {
        let of = |(metric, name): &(Metric, &str)| {
            let size = *document.sizes(*metric).first()?;
            let value = document.best(*metric, size, Family::Weft)?.1;
            Some(Dot { who: Who::Family(Family::Weft), name: (*name).to_owned(), value })
        };
        let mut dots: Vec<Dot> = LOGP.iter().filter_map(of).collect();
        let half = |family| Some((family, document.best(Metric::Rtt, super::plan::SMALL, family)?.1 / 2.0));
        let halves = if dots.is_empty() { Vec::new() } else { Family::ALL.into_iter().filter_map(half).collect() };
        dots.extend(halves.into_iter().map(|(family, value)| {
            let name = format!("RTT/2, {}", family.name(document.is_of_hosts()));
            Dot { who: Who::Family(family), name, value }
        }));
        dots
    };
    let all: Vec<Vec<Dot>> = documents.iter().map(dots).collect();
    rows_of_dots(documents, "LogP of requests of 16 B", (Metric::LogpL, "time, logarithmic"), &all)
}
