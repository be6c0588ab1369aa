//! `weft demo`: one example of each capability. Several processes count words over Active Messages; a process writes into another's memory;
//! a job in C runs; weftd serves more endpoints than it has frames. Then a short measurement shows what messages cost on this machine.

mod count;
mod frames;
mod job;
mod master;
mod owner;
mod put;
mod text;
mod words;
mod worker;

use crate::bench;
use crate::bench::daemon::Folder;
use crate::bench::report::{self, Section};
use crate::error::Error;
use crate::interrupt::{self, Interrupt};
use crate::output::print_line;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use owner::run as run_owner;
pub use worker::run as run_worker;

/// The environment variable that gives workers the master's name and key.
const MASTER_VARIABLE: &str = "WEFT_DEMO_MASTER";

/// Handlers of the master.
mod master_op {
    /// A worker has started. Arguments: its key, low and high half, and its process.
    pub const HELLO: u8 = 1;
    /// Part of a chunk's counts. Arguments: the chunk, the attempt, the number of parts.
    pub const PART: u8 = 2;
}

/// Handlers of a worker.
mod worker_op {
    /// Count the words of the payload. Arguments: the chunk and the attempt.
    pub const COUNT: u8 = 1;
}

/// The largest part of a chunk's counts, in bytes.
const PART_MOST: usize = weft::MAX_PAYLOAD;

/// How much later than its children this process may get Ctrl-C.
const AFTER_OTHERS: Duration = Duration::from_millis(200);

/// A part of the demonstration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Part {
    /// Several processes count words over Active Messages.
    Words,
    /// A process writes into another's memory.
    Put,
    /// A job in C runs. Needs a C compiler and libweft.
    Job,
    /// A weftd serves more endpoints than it has frames. Needs weftd beside weft.
    Frames,
    /// A measurement shows what messages cost (half a minute).
    Costs,
}

/// The arguments of `weft demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Files to count words in (this repository's text if none is given).
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The number of processes that count (default: one for each CPU, at least 2).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    /// The most text in one message, in bytes; for tests.
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = weft::MAX_PAYLOAD as u32,
          value_parser = clap::value_parser!(u32).range(512..=weft::MAX_PAYLOAD as i64))]
    chunk: u32,
    /// Kills one worker while it counts; for tests.
    #[arg(long, hide = true)]
    kill_one: bool,
    /// Shows only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Only counts words, like `--only words`.
    #[arg(long, conflicts_with = "only")]
    no_bench: bool,
    /// Also draws the results in one HTML file, for a browser; `-` is standard output.
    #[arg(long, value_name = "FILE", conflicts_with = "no_bench")]
    report: Option<PathBuf>,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        match self.no_bench {
            true => part == Part::Words,
            false => self.only.is_empty() || self.only.contains(&part),
        }
    }
}

/// Shows the parts that were asked for, and draws them. Ends at the first part that fails. Leaves a part out if a program that it needs is
/// missing.
pub fn run(options: &Options) -> Result<(), Error> {
    if options.wants(Part::Words) {
        words::run(options)?;
    }
    let mut sections = Vec::new();
    if [Part::Put, Part::Job, Part::Frames].into_iter().any(|part| options.wants(part)) {
        sections = show(options)?;
    }
    let mut measured = None;
    if options.wants(Part::Costs) {
        print_line("\nNow what messages cost on this machine (half a minute) ...\n")?;
        let quick = bench::measure_quickly()?;
        print_line(bench::explain(&quick))?;
        print_line("\nThe figures themselves: weft bench local")?;
        measured = Some(quick.document());
    }
    let Some(path) = &options.report else { return Ok(()) };
    report::write_demo(path, &sections, measured, "Report for a browser: ")
}

/// Shows the parts that need a clean-up when they are interrupted. Returns their sections of the report.
fn show(options: &Options) -> Result<Vec<Section>, Error> {
    let folder = Folder::ours();
    let interrupt = Interrupt::watch(move || Folder::remove(&folder))?;
    let shown = show_each(options, &interrupt);
    if shown.is_err() {
        // Ctrl-C goes to the children too, and may end one before this process gets it: that is an interruption, not a failure.
        interrupt.wait(&[], Some(Instant::now() + AFTER_OTHERS));
    }
    interrupt.check()?;
    // There is nothing left to clean up, so the default action of signals may end this process again.
    interrupt::hear_again()?;
    shown
}

fn show_each(options: &Options, interrupt: &Interrupt) -> Result<Vec<Section>, Error> {
    let mut sections = Vec::new();
    if options.wants(Part::Put) {
        sections.extend(put::run()?);
    }
    interrupt.check()?;
    if options.wants(Part::Job) {
        sections.extend(job::run(interrupt)?);
    }
    interrupt.check()?;
    if options.wants(Part::Frames) {
        sections.extend(frames::run(interrupt)?);
    }
    Ok(sections)
}
