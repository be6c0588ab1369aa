//! `weft bench contention`: a server with more endpoints than the daemon has frames, as in section 6.4 of *Design Challenges of Virtual
//! Networks*. Simulated with the code that ships, and once for real.

mod draw;
mod goals;
mod plan;
mod real;
mod results;
mod table;

pub use real::{contents, play, show, ContentionJob, Order, RealRow, Returns, Seen};

use super::daemon::Folder;
use super::json;
use super::table::judgement;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::print_beside;
use crate::progress::Progress;
use plan::{Extent, Part};
use results::Results;
use std::path::PathBuf;

/// Text after the options in `--help`.
const HELP: &str = "\
Clients on hosts of their own send endless requests, with 32 under way, to a server whose endpoints weftd serves. OneVN: the server has \
one endpoint for all. ST: one thread, with an endpoint for each client. MT: a thread for each client, with an endpoint of its own. With 8 \
frames and more than 8 endpoints, endpoints take turns.

The hosts are simulated, in virtual time and from one seed: the figures are the same on every machine. The network interfaces and the \
daemon are the code that ships. A turn of a core takes as long as the instructions counted for its work; docs/design/contention.md \
says how, and what is not modelled. Every request must be answered once; if one is not, the exit status is 1.

The part `real` runs on this machine: one weftd, an ST server on it, and all clients in one process that is its own network interface. \
They share its CPUs and communicate through the loopback interface, so its figures do not show the cost of few frames. It is left out if \
there is no weftd beside weft.";

/// The arguments of `weft bench contention`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Prints the goal beside each ratio, and MISSED where it is not reached.
    #[arg(long)]
    goals: bool,
    /// Takes less than a minute: fewer numbers of clients, shorter runs.
    #[arg(long)]
    quick: bool,
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// The seed of everything random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Writes the figures to a file as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws figures 6 and 7 of the paper, and the round trips, into this folder.
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
}

/// Runs the experiment, and prints the tables.
pub fn run(options: &Options) -> Result<(), Error> {
    let folder = Folder::ours();
    let interrupt = Interrupt::watch(move || Folder::remove(&folder))?;
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    let runs = plan::runs(extent, options.seed, &options.only);
    let is_real = options.only.is_empty() || options.only.contains(&Part::Real);
    let progress = Progress::new();
    progress.set_all((runs.len() + if is_real { real::cases(extent).len() } else { 0 }) as u64);
    let mut results = Results::new(options.seed);
    for run in &runs {
        interrupt.check()?;
        progress.say(run.title());
        let outcome = weft_sim::contention::run(&run.config).map_err(|failure| {
            let who = format!("the simulated run \"{}\" with the seed {}", run.title(), run.config.seed);
            wrong(who, failure.to_string())
        })?;
        results.add(run, &outcome);
        progress.one_more();
    }
    if is_real {
        results.real = Some(real::run(extent, &interrupt, &progress)?);
    }
    progress.clear();
    let goals = goals::goals(&results);
    results.judge(&goals);
    let text = table::render(&results, judgement(&goals, options.goals));
    print_beside(options.json.as_deref(), text)?;
    if let Some(folder) = &options.svg {
        draw::write(folder, &results)?;
    }
    options.json.as_deref().map_or(Ok(()), |path| json::write(path, &results))
}

/// The error for a run with a broken promise.
fn wrong(who: String, cause: String) -> Error {
    Error::Process { who, cause, way_out: "This is a fault of weft: please report it with this line" }
}
