//! `weft bench local`: the cost of messages between two processes of this machine, beside the machine's limits.

pub mod am;
mod bare;
pub mod compare;
pub mod contention;
pub mod daemon;
mod deaths;
mod goals;
pub mod hosts;
mod json;
mod limits;
pub mod machine;
mod markdown;
pub mod memory;
pub mod meter;
mod mixed;
pub mod mpi;
pub mod pair;
mod peer;
mod plan;
pub mod report;
mod results;
mod runner;
mod shared;
mod source;
pub mod table;
mod talk;
mod ucx;
mod weft_side;
mod words;

use crate::error::Error;
use crate::output::{note, print_beside};
use crate::progress::Progress;
use goals::Goal;
use json::Document;
use machine::Machine;
use plan::{Extent, Group, System};
use results::Results;
use runner::{Pace, Runner};
use std::path::PathBuf;
use std::time::Duration;

pub use peer::run as run_peer;
pub use talk::lines_of;
pub use words::explain;

/// Rounds, and the time of each run: by default, and for `--quick`.
const ROUNDS: u32 = 5;
const TIME: Duration = Duration::from_millis(150);
const QUICK_ROUNDS: u32 = 3;
const QUICK_TIME: Duration = Duration::from_millis(60);

/// A quick run begins nothing new after this time. The rest of its 40 seconds is for runs that have begun.
const QUICK_MOST: Duration = Duration::from_secs(34);

/// Text after the options in `--help`.
const HELP: &str = "\
Two processes, pinned to two CPUs. In every round each system runs once, for a moment; systems that are compared run one after the \
other, in every second round in the opposite order. The table shows the median of the rounds' medians, and of their 99th \
percentiles. Both sides of weft and of the limits add up every byte, and the sums are compared. Messages are taken from 64 MiB in \
turn, so that no cache holds them.

LogP (Culler and others, 1996), for requests of 16 bytes: o_s is the time to issue a request, in bursts of 16, which \
do not stall. For o_r, a delay longer than the round trip follows each request, and then a poll takes the answer; o_r is their time \
beyond o_s and the delay. L is half the round trip less both. g is the time between answers when 32 requests are \
under way. n_half is the size at which half of the best bandwidth is reached.

UCX is measured with ucx_perftest. It sends the same bytes each time, its receivers do not read what they receive, and it \
reports only the mean of rates. Round trips of 64 B to 8 KiB are also measured with a program whose receivers read all bytes that \
come through UCX (way `read` in JSON; it needs UCX's headers); weft is then compared with that one. At some sizes, weft is also measured \
with bytes that nobody reads (way `unread`).";

/// The arguments of all benchmarks.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Common {
    /// Writes the figures to a file as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Prints the figures as part of a Markdown page: one table, and one line of conditions.
    #[arg(long)]
    markdown: bool,
    /// How often each system runs (default: 5; 3 with --quick).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// The time of each run, in milliseconds; for tests.
    #[arg(long, hide = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=5000))]
    ms: Option<u64>,
}

impl Common {
    /// How often each system runs.
    fn rounds(&self, is_quick: bool) -> u32 {
        self.rounds.unwrap_or(if is_quick { QUICK_ROUNDS } else { ROUNDS })
    }

    /// The time of each run; the default is `usual`.
    fn time(&self, is_quick: bool, usual: Duration) -> Duration {
        self.ms.map_or(if is_quick { QUICK_TIME } else { usual }, Duration::from_millis)
    }

    /// Prints the results, as Markdown or in these words, and writes the JSON file if there is to be one. If the JSON goes to
    /// standard output, the rest goes to standard error. With Markdown, notes on what was left out go beside it, not into it.
    fn tell(
        &self,
        document: &Document,
        has_goals: bool,
        notes: &[String],
        words: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let text = if self.markdown { markdown::render(document, has_goals) } else { words() };
        print_beside(self.json.as_deref(), text)?;
        if self.markdown {
            note(table::left_out(notes));
        }
        self.json.as_deref().map_or(Ok(()), |path| json::write(path, document))
    }
}

/// The arguments of `weft bench local`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Prints the goal beside each ratio, and MISSED where it is not reached.
    #[arg(long)]
    goals: bool,
    /// Takes less than 40 seconds: fewer rounds, shorter runs, fewer sizes of the others.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    common: Common,
    /// Only these groups of figures.
    #[arg(long, value_name = "METRIC", value_delimiter = ',')]
    only: Vec<Group>,
    /// Only these systems.
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    systems: Vec<System>,
}

/// The arguments of the second process.
#[derive(Clone, Debug, clap::Args)]
pub struct PeerOptions {
    /// The CPU that it is pinned to, if any.
    #[arg(long)]
    cpu: Option<usize>,
    /// The network namespace of the process that measures, if it differs.
    #[arg(long)]
    local_in: Option<PathBuf>,
    /// Drops the rights over the network that an ordinary user does not have.
    #[arg(long)]
    ordinary: bool,
    /// Runs as this user. Its endpoints then admit all users.
    #[arg(long)]
    user: Option<u32>,
}

/// A finished measurement.
#[derive(Debug)]
pub struct Report {
    machine: Machine,
    results: Results,
    goals: Vec<Goal>,
    notes: Vec<String>,
}

impl Report {
    /// The document of `--json`.
    pub fn document(&self) -> Document {
        Document::of(&self.machine, json::Between::Local, &self.results, &self.goals)
    }
}

/// Measures, and prints the tables.
pub fn run(options: &Options) -> Result<(), Error> {
    let report = measure(options)?;
    let words = || {
        let goals = table::judgement(&report.goals, options.goals);
        table::render(&report.machine, &report.results, goals, &report.notes)
    };
    options.common.tell(&report.document(), options.goals, &report.notes, words)
}

/// Measures the same as `weft bench local --quick`.
pub fn measure_quickly() -> Result<Report, Error> {
    measure(&Options { quick: true, ..Options::default() })
}

fn measure(options: &Options) -> Result<Report, Error> {
    let before = machine::affinity()?;
    let cpus = machine::choose_cpus()?;
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    let pace = Pace {
        rounds: options.common.rounds(options.quick),
        time: options.common.time(options.quick, TIME),
        is_quick: options.quick,
        most: options.quick.then_some(QUICK_MOST),
    };
    let probes = plan::probes(extent, &options.only, &options.systems);
    let mut machine = Machine::describe(cpus);
    let progress = Progress::new();
    machine::pin(cpus.ours)?;
    let measured = Runner::prepare(cpus, pace, &probes).and_then(|runner| runner.run(&probes, &progress));
    progress.clear();
    machine::keep_to(&before)?;
    let (results, notes) = measured?;
    machine.line = results.line;
    let goals = goals::goals(&results);
    Ok(Report { machine, results, goals, notes })
}
