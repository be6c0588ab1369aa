//! `weft bench hosts`: the cost of messages between two hosts, which are two network namespaces of this machine.

mod goals;
pub mod joined;
mod place;
mod plan;
pub mod rights;
mod runner;
mod sockets;
pub mod table;

pub use place::{Place, Side, ADDRESS_VARIABLE};

use super::json::{Between, Document};
use super::machine::{self, Machine};
use super::plan::Extent;
use super::table::judgement;
use super::Common;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::namespaces::Names;
use crate::progress::Progress;
use joined::{Joined, SIDES};
use plan::{Group, System};
use runner::{Pace, Runner};
use std::rc::Rc;
use std::time::Duration;

/// The time of each run; and the number of lone messages with the computing time after each: by default, and for `--quick`.
const TIME: Duration = Duration::from_millis(150);
const LONE: (u32, Duration) = (3, Duration::from_secs(1));
const QUICK_LONE: (u32, Duration) = (5, Duration::from_millis(50));

/// Text after the options in `--help`.
const HELP: &str = "\
Makes two network namespaces joined by a veth pair, with one process in each, and removes them at the end; this needs root, and \
`ip` of iproute2. In every round each system runs once, for a moment; systems that are compared run one after the other, in \
every second round in the opposite order. The table shows the median of the rounds' medians, and of their 99th percentiles. The \
receivers add up every byte. One-way messages are counted by the receiver.

After a lone message its sender computes for a second without calling weft. The time that the message was \
under way is measured by the clock that both namespaces share.

udp-spin and tcp-spin never wait in the kernel, udp-block and tcp-block sleep there. udp-mmsg sends and receives 64 datagrams \
with each call. udp-offload lets the kernel split bursts into datagrams, and merge them again. \
weft-ordinary is weft without CAP_NET_ADMIN: it gets the socket buffers of an ordinary user (net.core.rmem_max).

A computing peer has polled for 150 ms and then computes for 100 ms without a poll. Messages to it are sent one after the other, with \
pauses of up to 10 ms, and timed until their acknowledgement, which the peer's helper sends.

The group mixed has round trips of a process with a peer on its own host, reached through memory, and one on the \
other host, in one bundle: with one of them alone, with the other one idle, with both at once, and with both in turns. The peers are one thread \
on the other CPU. At once, the two share both CPUs, and a round trip over UDP keeps one or the other busy all the time.";

/// The arguments of `weft bench hosts`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Prints the goal beside each ratio, and MISSED where it is not reached.
    #[arg(long)]
    goals: bool,
    /// Fewer rounds, shorter runs, fewer sizes of the others.
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
    /// The largest packet of the network between the two.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65535))]
    mtu: u32,
    /// Uses no namespaces: both sides are on this host; for tests.
    #[arg(long, hide = true)]
    here: bool,
}

/// Measures, and prints the tables.
pub fn run(options: &Options) -> Result<(), Error> {
    let before = machine::affinity()?;
    let cpus = machine::choose_cpus()?;
    let (lone, pause) = if options.quick { QUICK_LONE } else { LONE };
    let pace = Pace {
        rounds: options.common.rounds(options.quick),
        time: options.common.time(options.quick, TIME),
        pause,
        lone,
    };
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    let probes = plan::probes(extent, &options.only, &options.systems);
    let machine = Machine::describe(cpus);
    let (interrupt, place) = match options.here {
        true => (Interrupt::watch(|| {})?, Place::Here),
        false => {
            let names = Names::ours(SIDES);
            (Interrupt::watch(move || names.remove())?, Place::Namespaces(Joined::make(options.mtu)?))
        }
    };
    let title = place.title(options.mtu, cpus);
    let progress = Progress::new();
    machine::pin(cpus.ours)?;
    let measured = Runner::prepare(cpus, pace, Rc::new(place), interrupt, &probes)
        .and_then(|runner| runner.run(&probes, &progress));
    progress.clear();
    machine::keep_to(&before)?;
    let (results, notes) = measured?;
    let goals = goals::goals(&results);
    let mtu = (!options.here).then_some(options.mtu);
    let document = Document::of(&machine, Between::Hosts { mtu, title: &title }, &results, &goals);
    let words = || table::render(&machine, &title, &results, judgement(&goals, options.goals), &notes);
    options.common.tell(&document, options.goals, &notes, words)
}
