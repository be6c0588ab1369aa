//! `weft bench memory`: the cost of writing and reading another process's memory, beside the machine's limits.

mod goals;
mod initiator;
mod plan;
mod runner;
mod table;
mod target;

pub use target::{serve, MemoryJob};

use super::hosts::joined::{Joined, SIDES};
use super::hosts::Place;
use super::json::{Between, Document};
use super::machine::{self, Machine};
use super::plan::Extent;
use super::table::judgement;
use super::Common;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::namespaces::Names;
use crate::progress::Progress;
use plan::Group;
use runner::{Pace, Runner};
use std::rc::Rc;
use std::time::Duration;

/// The time of each run, without `--quick`.
const TIME: Duration = Duration::from_millis(150);

/// A quick run begins nothing new after this time. The rest of its minute is for runs that have begun.
const QUICK_MOST: Duration = Duration::from_secs(45);

/// The largest packet of the network between the two, with --hosts.
const MTU: u32 = 1500;

/// Text after the options in `--help`.
const HELP: &str = "\
Two processes, pinned to two CPUs. One owns regions, in weft's memory or in memory lent by its program; the other writes and reads \
them. A word there and back: each program polls a word in its own region and writes the other one's, 100,000 times in each run. \
The table shows the median and the time within which 98.6 % end, as CLAN did. Bytes written count when the target's program has read all of \
them, bytes read when the program that asked has; the sums are compared. Sources of 4 KiB and more are taken from 64 MiB in turn; of smaller \
ones there are 16,384. A region has 256 places, and 16 MiB at most.

In every round each system runs once, for a moment; systems that are compared run one after the other, in every second round in the \
opposite order. The limits are a cache line that goes there and back, and a bare pipe of shared memory, with messages up to 1 MiB. \
UCX is measured with ucx_perftest: ucp_put_lat, ucp_put_bw, ucp_get, ucp_fadd and ucp_add. Nobody reads the bytes that these carry, and they \
send the same bytes each time. Crossings are the sizes from which on one way is faster than another.

With --hosts the two are in two network namespaces, as in `weft bench hosts`, which needs root; Active Messages are measured beside them.";

/// The arguments of `weft bench memory`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Prints the goal beside each ratio, and MISSED where it is not reached.
    #[arg(long)]
    goals: bool,
    /// Takes less than a minute: fewer rounds, shorter runs, fewer sizes.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    common: Common,
    /// Only these groups of figures.
    #[arg(long, value_name = "METRIC", value_delimiter = ',')]
    only: Vec<Group>,
    /// Measures between two network namespaces. Needs root.
    #[arg(long)]
    hosts: bool,
}

/// Measures, and prints the tables.
pub fn run(options: &Options) -> Result<(), Error> {
    let before = machine::affinity()?;
    let cpus = machine::choose_cpus()?;
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    let pace = Pace {
        rounds: options.common.rounds(options.quick),
        time: options.common.time(options.quick, TIME),
        is_quick: options.quick,
        most: options.quick.then_some(QUICK_MOST),
    };
    let probes = plan::probes(extent, &options.only, options.hosts);
    let (interrupt, place) = match options.hosts {
        false => (Interrupt::watch(|| {})?, Place::Here),
        true => {
            let names = Names::ours(SIDES);
            (Interrupt::watch(move || names.remove())?, Place::Namespaces(Joined::make(MTU)?))
        }
    };
    let title = place.title(MTU, cpus);
    let mut machine = Machine::describe(cpus);
    let progress = Progress::new();
    machine::pin(cpus.ours)?;
    let measured = Runner::prepare(cpus, pace, &Rc::new(place), interrupt, &probes)
        .and_then(|runner| runner.run(&probes, &progress));
    progress.clear();
    machine::keep_to(&before)?;
    let (results, notes) = measured?;
    machine.line = results.line;
    let goals = goals::goals(&results);
    let between = match options.hosts {
        true => Between::Hosts { mtu: Some(MTU), title: &title },
        false => Between::Local,
    };
    let document = Document::of(&machine, between, &results, &goals);
    let words = || {
        let title = options.hosts.then_some(title.as_str());
        table::render(&machine, title, &results, judgement(&goals, options.goals), &notes)
    };
    options.common.tell(&document, options.goals, &notes, words)
}
