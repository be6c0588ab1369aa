//! `weft demo`: one thing of each capability. Several processes count words over Active Messages, one writes into the memory of another, a
//! job in C runs, weftd serves more endpoints than it has frames; then the machine tells what messages cost on it.

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

/// How the master's name and key reach the workers.
const MASTER_VARIABLE: &str = "WEFT_DEMO_MASTER";

/// Handlers of the master.
mod master_op {
    /// A worker is there: its key in two arguments, and its process.
    pub const HELLO: u8 = 1;
    /// Some counts of a chunk: its number, the attempt, the number of parts.
    pub const PART: u8 = 2;
}

/// Handlers of a worker.
mod worker_op {
    /// Count the words of the payload, which is this chunk in this attempt.
    pub const COUNT: u8 = 1;
}

/// Bytes of a part of a worker's counts.
const PART_MOST: usize = weft::MAX_PAYLOAD;

/// How much later than a process that it started this one may hear of Ctrl-C.
const AFTER_OTHERS: Duration = Duration::from_millis(200);

/// A part of the demonstration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Part {
    /// Words, counted in several processes over Active Messages.
    Words,
    /// A put into the memory of another process.
    Put,
    /// A job in C. Needs a C compiler and libweft.
    Job,
    /// More endpoints than frames. Needs weftd beside weft.
    Frames,
    /// What messages cost: half a minute.
    Costs,
}

/// What can be asked of `weft demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Files to count words in (this repository's text if none is given).
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How many processes count (as many as there are CPUs, and at least 2).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    /// Bytes of text in one message; for tests.
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = weft::MAX_PAYLOAD as u32,
          value_parser = clap::value_parser!(u32).range(512..=weft::MAX_PAYLOAD as i64))]
    chunk: u32,
    /// Kills one worker in the middle; for tests.
    #[arg(long, hide = true)]
    kill_one: bool,
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Only counts words, as `--only words`.
    #[arg(long, conflicts_with = "only")]
    no_bench: bool,
    /// Draws what was shown, too: one HTML file for a browser.
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

/// Shows all parts, and draws them. The first one that fails ends it; what cannot be shown for want of a program is left out.
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
    print_line(format!("As pictures, for a browser: {}", report::write_demo(path, &sections, measured)?.display()))
}

/// Shows the parts that leave something behind if they are not ended in order. Returns what is drawn of them.
fn show(options: &Options) -> Result<Vec<Section>, Error> {
    let folder = Folder::ours();
    let interrupt = Interrupt::watch(move || Folder::remove(&folder))?;
    let shown = show_each(options, &interrupt);
    if shown.is_err() {
        // Others hear Ctrl-C as well, perhaps sooner than this process; that one ended is no fault then.
        interrupt.wait(&[], Some(Instant::now() + AFTER_OTHERS));
    }
    interrupt.check()?;
    // From now on the kernel ends this process at once again: there is nothing to put away.
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
