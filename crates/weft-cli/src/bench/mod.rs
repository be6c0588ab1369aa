//! `weft bench local`: what messages cost between two processes of this machine, beside what they could cost.

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
use crate::output::{note, print};
use crate::progress::Progress;
use goals::Goal;
use json::Document;
use machine::Machine;
use plan::{Extent, Group, System};
use results::Results;
use runner::{Pace, Runner};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use peer::run as run_peer;
pub use words::explain;

/// Rounds, and the time of each run: by default, and when it has to be quick.
const ROUNDS: u32 = 5;
const TIME: Duration = Duration::from_millis(150);
const QUICK_ROUNDS: u32 = 3;
const QUICK_TIME: Duration = Duration::from_millis(60);

/// When a quick run begins nothing new. The rest of its 40 seconds is for what is under way.
const QUICK_MOST: Duration = Duration::from_secs(34);

/// What is said at the end of `--help`.
const HELP: &str = "\
Two processes, pinned to two CPUs. In every round each system runs once, for a moment, and those that are compared run one \
after the other, in each second round the other way round; the table tells the median of the rounds' medians, and of their 99th \
percentiles. Both sides of weft and of the limits add up every byte, and the sums are compared. Messages come out of 64 MiB in \
turn, so that no cache holds them.

LogP (Culler and others, 1996), for requests of 16 bytes: o_s is the time in which a request is issued, in bursts of 16, which \
do not stall; o_r is what a request, a delay longer than the round trip, and the look at the answer that lies there by then \
take longer than o_s and the delay; L is half the round trip less both; g is the interval of requests answered when 32 are \
under way. n_half is the size at which half of the best bandwidth is reached.

UCX is measured with ucx_perftest, which sends the same bytes each time, whose receivers do not read what they receive, and which \
tells the mean of rates only. Round trips of 64 B to 8 KiB are also measured with a program whose receivers read all bytes that \
come through UCX (way `read` in JSON; it takes UCX's headers), and then that is what stands beside weft; and weft is measured at \
some sizes with bytes that nobody reads (way `unread`).";

/// What can be asked of every benchmark.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Common {
    /// Writes the figures to a file as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Prints the figures as a part of a Markdown page: one table, and one line of conditions.
    #[arg(long)]
    markdown: bool,
    /// How often each system runs (5, and 3 if it has to be quick).
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

    /// The time of each run, which is `usual` if nothing else is said.
    fn time(&self, is_quick: bool, usual: Duration) -> Duration {
        self.ms.map_or(if is_quick { QUICK_TIME } else { usual }, Duration::from_millis)
    }

    /// Prints what was measured, as Markdown or in these words, and writes the file that was asked for. What is printed goes to
    /// standard error if the JSON goes to standard output. What was left out is told beside Markdown, not in it.
    fn tell(
        &self,
        document: &Document,
        has_goals: bool,
        notes: &[String],
        words: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let text = if self.markdown { markdown::render(document, has_goals) } else { words() };
        match &self.json {
            Some(path) if path.as_os_str() == "-" => note(text),
            _ => print(text)?,
        }
        if self.markdown {
            note(table::left_out(notes));
        }
        self.json.as_deref().map_or(Ok(()), |path| json::write(path, document))
    }
}

/// What can be asked of `weft bench local`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Tells beside each ratio what was asked of it, and MISSED where it does not hold.
    #[arg(long)]
    goals: bool,
    /// In less than 40 seconds: fewer rounds, shorter runs, fewer sizes of the others.
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

/// How the second process is started.
#[derive(Clone, Debug, clap::Args)]
pub struct PeerOptions {
    /// The CPU on which it stays, if it stays on one.
    #[arg(long)]
    cpu: Option<usize>,
    /// The network namespace of the process that measures, if it is another one.
    #[arg(long)]
    local_in: Option<PathBuf>,
    /// Without the rights over the network that an ordinary user has not.
    #[arg(long)]
    ordinary: bool,
    /// As this user. Its endpoints admit all users then.
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
    fn document(&self) -> Document {
        Document::of(&self.machine, json::Between::Local, &self.results, &self.goals)
    }

    /// Draws it as a page. Returns where that is.
    pub fn write_page(&self, path: &Path) -> Result<PathBuf, Error> {
        report::write(path, &[self.document()])
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

/// Measures what `weft bench local --quick` does.
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
