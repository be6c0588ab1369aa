//! `weft wire`: a bad network between two hosts. It hands frames from one interface to the other and does to them what it is
//! asked for.

mod counts;
mod dice;
mod ends;
mod faults;
mod features;
mod forward;
mod frame;
mod lane;
mod scenario;
mod table;
mod values;

use crate::error::Error;
use crate::interrupt::Interrupt;
use ends::End;
use faults::Wanted;
use features::Offloads;
use forward::Wire;
use scenario::Scenario;
use std::path::{Path, PathBuf};
use std::time::Instant;
use table::{Direction, Document};

/// What is said at the end of `--help`.
const HELP: &str = "\
Each value may be given once, or twice with a / between: from A to B, and from B to A. `--loss 5%/0` loses nothing on the way back. \
What a frame has to suffer is drawn by lot from the seed and the frame's number: the same frames suffer the same again.

A and B are interfaces of this network namespace that lead to the two hosts and have no addresses themselves. Offloads of theirs \
are switched off while the wire is there. Where a host's own end of a veth pair leaves frames to be cut up (`dropped as merged` in the \
table), type there `ip link set IF gso_max_segs 1`.

A scenario is a file of TOML with the same words, and with changes at times after the beginning:

  seed = 7
  delay = \"200us\"
  rate = \"1Gbit\"
  [[step]]
  at = \"2s\"
  rate = \"100Mbit\"

At the end, Ctrl-C or SIGTERM, it tells what it did to how many frames.";

/// What can be asked of `weft wire`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The interface that leads to one host.
    a: String,
    /// The interface that leads to the other.
    b: String,
    #[command(flatten)]
    wanted: Wanted,
    /// Does what stands in a file of TOML; what is given here as well stands above it.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Repeats the lots of another run.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Writes the counts as JSON to a file (`-` for standard output).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Forwards until somebody asks for the end, and tells what it did.
pub fn run(options: &Options) -> Result<(), Error> {
    let scenario = scenario(options)?;
    let interrupt = Interrupt::watch(|| {})?;
    let Options { a, b, .. } = options;
    let ends = [End::open(a)?, End::open(b)?];
    let offloads = [Offloads::off(a)?, Offloads::off(b)?];
    for (end, offloads) in ends.iter().zip(&offloads) {
        if !offloads.names().is_empty() {
            eprintln!("weft: {}: off while the wire is there: {}", end.name, offloads.names().join(", "));
        }
    }
    eprintln!("weft: forwarding between {a} and {b}");
    let (seed, start) = (scenario.seed, Instant::now());
    let mut wire = Wire::new(ends, scenario);
    wire.run(|| Ok(interrupt.came()))?;
    let [there, back] = wire.counts();
    let direction = |from: &str, to: &str, counts| Direction { from: from.to_owned(), to: to.to_owned(), counts };
    let directions = [direction(a, b, there), direction(b, a, back)];
    tell(&Document { seed, seconds: start.elapsed().as_secs_f64(), directions }, options.json.as_deref())
}

fn scenario(options: &Options) -> Result<Scenario, Error> {
    let Options { wanted, scenario, seed, .. } = options;
    let mut scenario = scenario.as_deref().map_or_else(|| Ok(Scenario::default()), Scenario::read)?;
    scenario.first.give_way(wanted);
    scenario.seed = seed.unwrap_or(scenario.seed);
    Ok(scenario)
}

fn tell(document: &Document, json: Option<&Path>) -> Result<(), Error> {
    eprint!("{}", document.text());
    let Some(path) = json else { return Ok(()) };
    if path.as_os_str() == "-" {
        return crate::tell::print_json(document);
    }
    let text = serde_json::to_string_pretty(document).map_err(std::io::Error::from);
    text.and_then(|text| std::fs::write(path, text)).map_err(|source| {
        let way_out = "Give a path that can be written";
        Error::File { verb: "write", path: path.to_owned(), source, way_out }
    })
}
