//! `weft demo`: several processes count words over Active Messages, then the machine tells what messages cost on it.

mod count;
mod master;
mod text;
mod words;
mod worker;

use crate::bench;
use crate::error::Error;
use crate::output::print_line;
use std::path::PathBuf;

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
    /// Only counts words, without the measurement.
    #[arg(long)]
    no_bench: bool,
    /// Draws the measurement, too: one HTML file for a browser.
    #[arg(long, value_name = "FILE", conflicts_with = "no_bench")]
    report: Option<PathBuf>,
}

/// Counts words, and measures.
pub fn run(options: &Options) -> Result<(), Error> {
    words::run(options)?;
    if options.no_bench {
        return Ok(());
    }
    print_line("\nNow what messages cost on this machine (half a minute) ...\n")?;
    let measured = bench::measure_quickly()?;
    print_line(bench::explain(&measured))?;
    print_line("\nThe figures themselves: weft bench local")?;
    if let Some(path) = &options.report {
        print_line(format!(
            "As pictures, for a browser: {}",
            bench::report::write_demo(path, &[], Some(measured.document()))?.display()
        ))?;
    }
    Ok(())
}
