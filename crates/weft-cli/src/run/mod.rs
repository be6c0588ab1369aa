//! `weft run`: processes of this machine as one job.
//!
//! The launcher is one thread with one `poll` over the ranks' output, their sockets and their ends. No process outlives the job, as
//! `ranks.rs` and `keeper.rs` explain.

mod end;
mod gathering;
mod keeper;
mod launcher;
mod lines;
mod outlet;
mod program;
mod ranks;
mod report;

pub use end::How;
pub use keeper::run_keeper;
pub use ranks::{run_rank, RankOptions};

use crate::error::Error;
use crate::interrupt::Interrupt;
use launcher::Launcher;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use weft_wire::job::SIZE_MOST;

/// The arguments of `weft run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each process has its rank in WEFT_RANK and their number in WEFT_SIZE. Output comes line by line, with the rank in front; standard input \
goes to rank 0. The first process that ends with a signal or a status other than 0 ends the job, and the job has its exit status (128 plus \
the number of the signal). After --timeout it is 124, after Ctrl-C 130.")]
pub struct Options {
    /// How many processes
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: u32,
    /// Print lines as they are, without the rank in front
    #[arg(long)]
    no_prefix: bool,
    /// End the job after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Write how and when each process ended to this file (`-`: to standard output, after what the processes print)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program
    #[arg(value_name = "PROGRAM")]
    program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds, such as 30 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "a number of seconds that is not negative".to_owned())
}

/// Runs a job to its end.
pub fn run(options: &Options) -> Result<(), Error> {
    if options.ranks == 0 {
        return Err(usage("a job has at least one process", "Give -n 1, or more"));
    }
    if options.ranks > SIZE_MOST {
        let way_out = format!("Give -n {SIZE_MOST} at most; several jobs can run side by side");
        return Err(usage(format!("{} processes are more than a job may have", options.ranks), way_out));
    }
    let program = program::find(&options.program)?;
    // Fail now, not after the job has run for minutes.
    let mut report = options.json.as_deref().map(report::File::create).transpose()?;
    // A second Ctrl-C ends this process, and the kernel then ends the ranks.
    let interrupt = Interrupt::watch(|| {})?;
    let ended = Launcher::start(options, &program, interrupt)?.run();
    if let Some(report) = &mut report {
        report.write(&ended, options)?;
    }
    ended.verdict()
}

fn usage(cause: impl Into<String>, way_out: impl Into<String>) -> Error {
    Error::Usage { cause: cause.into(), way_out: way_out.into() }
}
