//! `weft wire`: a bad network between two hosts. It passes frames from one interface to the other, with the faults that the user
//! sets.

mod between;
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
use crate::namespaces::Names;
use crate::output::{note, note_line, write_file};
pub use between::{run_host, HostOptions};
use between::{Between, Commands, ENDS, LETTERS};
use counts::Counts;
use ends::End;
use faults::Wanted;
use features::Offloads;
use forward::{Watch, Wire};
use scenario::Scenario;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Instant;
use table::{Direction, Document};

/// Text after the options in `--help`.
const HELP: &str = "\
Each value may be given once, or twice with a / between: from A to B, and from B to A. `--loss 5%/0` loses nothing on the way back. \
The faults of a frame are random, but depend only on the seed and the frame's number: another run gives the same frames the same faults.

With --here and --there, the wire makes two hosts for the two commands and removes them at the end; this needs root, and `ip` of iproute2. \
A is then 10.77.0.1 (fd77::1), B is 10.77.0.2 (fd77::2). The command of --there begins half a second earlier and is ended after the one of \
--here, whose exit status is that of the wire:

  weft wire --loss 5% --delay 10ms --there 'weft serve --port 7000' --here 'weft ping -c 10 10.77.0.2:7000'

Without them, A and B are interfaces of this network namespace that lead to the two hosts and have no addresses themselves. Their offloads \
are off while the wire runs. If a host's end of a veth pair sends unsegmented frames (`dropped as merged` or `not taken by the \
interface` in the table), type `ip link set IF gso_max_segs 1` there.

A scenario is a TOML file with the same words, and with changes at times after the beginning:

  seed = 7
  delay = \"200us\"
  rate = \"1Gbit\"
  [[step]]
  at = \"2s\"
  rate = \"100Mbit\"

At the end, or on Ctrl-C or SIGTERM, it prints how many frames it treated in which way.";

/// The arguments of `weft wire`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The interface that leads to one host.
    #[arg(requires = "b")]
    a: Option<String>,
    /// The interface that leads to the other.
    b: Option<String>,
    /// Makes two hosts and runs this command in the first (`sh -c`), until it ends.
    #[arg(long, value_name = "COMMAND", conflicts_with = "a")]
    here: Option<String>,
    /// Runs this command in the second host at the same time.
    #[arg(long, value_name = "COMMAND", requires = "here", conflicts_with = "a")]
    there: Option<String>,
    /// The MTU of these hosts' interfaces.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, requires = "here", value_parser = clap::value_parser!(u32).range(68..=9000))]
    interface_mtu: u32,
    #[command(flatten)]
    wanted: Wanted,
    /// Reads a scenario from a TOML file; options given here take precedence.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Uses the seed of another run, to repeat its faults.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Writes the counts as JSON to a file (`-` for standard output).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Forwards until the user asks it to end or the command has ended, and prints the counts.
pub fn run(options: &Options) -> Result<(), Error> {
    let scenario = scenario(options)?;
    let json = options.json.as_deref();
    match (&options.here, &options.a, &options.b) {
        (Some(here), ..) => {
            let status = run_between(options, here, scenario)?;
            match status.code() {
                _ if status.success() => Ok(()),
                // As shells report it.
                code => std::process::exit(code.unwrap_or_else(|| 128 + status.signal().unwrap_or_default())),
            }
        }
        (None, Some(a), Some(b)) => {
            let interrupt = Interrupt::watch(|| {})?;
            let mut wire = Line::open([a, b], scenario)?;
            wire.offloads.iter().for_each(|offloads| note_line(format!("weft: {offloads}")));
            wire.run(json, &mut UntilInterrupted(interrupt))
        }
        // clap would only name one of the two ways.
        _ => Err(Error::Usage {
            cause: "nothing says which hosts to wire".to_owned(),
            way_out: "Name two interfaces, or give --here COMMAND and --there COMMAND".to_owned(),
        }),
    }
}

/// Makes the hosts, and runs the commands there. Returns the exit status of the first.
fn run_between(options: &Options, here: &str, scenario: Scenario) -> Result<ExitStatus, Error> {
    let names = Names::ours(LETTERS);
    let interrupt = Interrupt::watch(move || names.remove())?;
    let between = Between::make(options.interface_mtu)?;
    let mut wire = Line::open(ENDS, scenario)?;
    let commands = Commands::start(&between, here, options.there.as_deref())?;
    let mut until = UntilCommandEnds { commands, status: None, interrupt };
    wire.run(options.json.as_deref(), &mut until)?;
    until.status.ok_or(Error::Interrupted)
}

/// Ends the wire when the user asks for it.
struct UntilInterrupted(Interrupt);

impl Watch for UntilInterrupted {
    fn has_ended(&mut self) -> Result<bool, Error> {
        Ok(self.0.came())
    }

    fn bells(&self) -> [BorrowedFd<'_>; 3] {
        [self.0.bell(); 3]
    }

    fn next_look(&self) -> Option<Instant> {
        None
    }
}

/// Ends the wire when the command here has ended, or the user asks for it.
struct UntilCommandEnds<'a> {
    commands: Commands<'a>,
    /// The exit status of the command.
    status: Option<ExitStatus>,
    interrupt: Interrupt,
}

impl Watch for UntilCommandEnds<'_> {
    fn has_ended(&mut self) -> Result<bool, Error> {
        // The one there first: it is to be told if it failed before the one here ended.
        self.commands.look_there();
        self.status = self.commands.ended()?;
        if let Some(at) = self.commands.tells_at() {
            if self.status.is_some() {
                self.interrupt.wait(&[], Some(at));
            }
            if Instant::now() >= at && !self.interrupt.came() {
                self.commands.tell_failure();
            }
        }
        Ok(self.status.is_some() || self.interrupt.came())
    }

    fn bells(&self) -> [BorrowedFd<'_>; 3] {
        let (interrupt, [here, there]) = (self.interrupt.bell(), self.commands.bells());
        [interrupt, here.unwrap_or(interrupt), there.unwrap_or(interrupt)]
    }

    fn next_look(&self) -> Option<Instant> {
        [self.commands.starts_at(), self.commands.tells_at()].into_iter().flatten().min()
    }
}

/// A wire, with the offloads of its interfaces.
struct Line {
    wire: Wire,
    seed: u64,
    names: [String; 2],
    /// The counts of the faults that the user asked for.
    asked: Counts,
    /// Switched on again when this is dropped.
    offloads: [Offloads; 2],
}

impl Line {
    fn open([a, b]: [&str; 2], scenario: Scenario) -> Result<Line, Error> {
        if a == b {
            // Each frame would come back in at the interface that it left by.
            let cause = format!("{a} cannot be wired to itself: each frame would go round for ever");
            let way_out = "Name two interfaces, or have weft make two hosts with --here and --there".to_owned();
            return Err(Error::Usage { cause, way_out });
        }
        let ends = [End::open(a)?, End::open(b)?];
        let offloads = [Offloads::off(a)?, Offloads::off(b)?];
        let (seed, asked, names) = (scenario.seed, scenario.asked(), [a, b].map(str::to_owned));
        Ok(Line { wire: Wire::new(ends, scenario), seed, names, asked, offloads })
    }

    /// Forwards until the end, and prints the counts.
    fn run(&mut self, json: Option<&Path>, watch: &mut impl Watch) -> Result<(), Error> {
        let [a, b] = self.names.each_ref();
        note_line(format!("weft: forwarding between {a} and {b}"));
        let start = Instant::now();
        self.wire.run(watch)?;
        let [there, back] = self.wire.counts();
        let direction = |from: &str, to: &str, counts| Direction { from: from.to_owned(), to: to.to_owned(), counts };
        let directions = [direction(a, b, there), direction(b, a, back)];
        let (seed, seconds, asked) = (self.seed, start.elapsed().as_secs_f64(), self.asked);
        tell(&Document { seed, seconds, directions, asked }, json)
    }
}

fn scenario(options: &Options) -> Result<Scenario, Error> {
    let Options { wanted, scenario, seed, .. } = options;
    let mut scenario = scenario.as_deref().map_or_else(|| Ok(Scenario::default()), Scenario::read)?;
    scenario.first.give_way(wanted);
    scenario.seed = seed.unwrap_or(scenario.seed);
    Ok(scenario)
}

fn tell(document: &Document, json: Option<&Path>) -> Result<(), Error> {
    note(document.text());
    let Some(path) = json else { return Ok(()) };
    write_file(path, crate::tell::text(document)?, "Give a path that can be written")
}
