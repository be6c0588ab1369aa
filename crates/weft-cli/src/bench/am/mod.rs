//! `weft bench am`: Active Messages in C, with `am.h` and libweft, beside the same loops in Rust, with the crate `weft`.

mod goals;
mod plan;
mod program;
mod runner;
mod rust;
mod table;

pub use rust::{serve, AmJob};

use super::daemon::INTERFACE_VARIABLE;
use super::goals::Goal;
use super::hosts::joined::{Joined, SIDES};
use super::hosts::{Place, ADDRESS_VARIABLE};
use super::json::{self, Between, Document, Judged, Row};
use super::machine::{self, Cpus, Machine};
use super::results::Results;
use super::table::judgement;
use super::weft_side::Bench;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::namespaces::Names;
use crate::output::print_beside;
use crate::progress::Progress;
use plan::{Extent, Group, What};
use program::Pair;
use runner::{Rounds, Scene};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Rounds, and the time of each run: by default, and for `--quick`.
const ROUNDS: u32 = 5;
const TIME: Duration = Duration::from_millis(150);
const QUICK_ROUNDS: u32 = 3;
const QUICK_TIME: Duration = Duration::from_millis(60);

/// The largest packet between the two namespaces.
const MTU: u32 = 1500;

/// How much later than the programs in C this process may notice Ctrl-C.
const AFTER_PROGRAMS: Duration = Duration::from_millis(200);

/// Text after the options in `--help`.
const HELP: &str = "\
Two processes in C (bench/am/pair.c, which uses am.h and libweft) and two in Rust (this command) do the same: the first sends requests and \
keeps the time, the second answers them. Each pair is pinned to the same two CPUs. In every round each figure is taken once, for a \
moment, in C and in Rust one after the other, in every second round in the opposite order. The table shows the median of the rounds' medians, \
and of their 99th percentiles; a ratio is taken within each round, and the median of the rounds counts. Messages are taken from 64 MiB in \
turn. Both sides add up every byte, and the numbers and sums are compared.

A round trip is a request and a reply of the same form and size. One-way messages are requests that handlers do not reply to, with 32 under \
way: the library answers each by itself. In C every 16th AM_Request polls; in Rust a request polls while there is no room.

The two hosts are network namespaces joined by a veth pair; this needs root, and `ip` of iproute2, and is left out if they cannot be made. \
The program in C is built in weft's repository: cargo build --release -p weft-capi && make -C bench/am. Library and command must be built alike, or the ratios mean nothing.";

/// The arguments of `weft bench am`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Prints the goal beside each ratio, and MISSED where it is not reached.
    #[arg(long)]
    goals: bool,
    /// Fewer rounds, shorter runs, fewer messages.
    #[arg(long)]
    quick: bool,
    /// Only these groups of figures.
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    only: Vec<Group>,
    /// Writes the figures to a file as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program in C, if it is not bench/am/build/pair.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// How often each figure is taken (default: 5; 3 with --quick).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// The time of each run, in milliseconds; for tests.
    #[arg(long, hide = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=5000))]
    ms: Option<u64>,
}

impl Options {
    fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }

    fn extent(&self) -> Extent {
        if self.quick {
            Extent::Quick
        } else {
            Extent::Full
        }
    }
}

/// What all measurements share.
#[derive(Debug)]
struct Stage {
    /// The program in C.
    program: PathBuf,
    machine: Machine,
    cpus: Cpus,
    /// The time of each run.
    time: Duration,
}

/// The results.
#[derive(Debug)]
struct Measured {
    machine: Machine,
    all: Vec<What>,
    local: Results,
    hosts: Results,
    /// What was left out, and why.
    notes: Vec<String>,
}

/// The same as JSON.
#[derive(Serialize)]
struct Told {
    machine: Machine,
    rows: Vec<Row>,
    left_out: Vec<String>,
    goals: Vec<Judged>,
}

/// Measures, and prints the tables.
pub fn run(options: &Options) -> Result<(), Error> {
    let before = machine::affinity()?;
    let cpus = machine::choose_cpus()?;
    let program = program::find(options.program.as_deref())?;
    let usual = if options.quick { QUICK_TIME } else { TIME };
    let time = options.ms.map_or(usual, Duration::from_millis);
    let stage = Stage { program, machine: Machine::describe(cpus), cpus, time };
    // Don't measure a weftd that runs on this machine.
    std::env::set_var(INTERFACE_VARIABLE, "process");
    let names = Names::ours(SIDES);
    let interrupt = Interrupt::watch(move || names.remove())?;
    let progress = Progress::new();
    machine::pin(cpus.ours)?;
    let measured = measure(options, &stage, &interrupt, &progress);
    progress.clear();
    machine::keep_to(&before)?;
    if measured.is_err() {
        // The programs in C get Ctrl-C as well, perhaps earlier than this process. Their end is then no failure.
        interrupt.wait(&[], Some(Instant::now() + AFTER_PROGRAMS));
    }
    interrupt.check()?;
    tell(options, &measured?)
}

fn measure(options: &Options, stage: &Stage, interrupt: &Interrupt, progress: &Progress) -> Result<Measured, Error> {
    let all = plan::all(options.extent());
    let mut measured = Measured {
        machine: stage.machine.clone(),
        all,
        local: Results::default(),
        hosts: Results::default(),
        notes: Vec::new(),
    };
    let usual = if options.quick { QUICK_ROUNDS } else { ROUNDS };
    let rounds = Rounds { rounds: options.rounds.unwrap_or(usual), interrupt, progress };
    let groups = [Group::Local, Group::Hosts].into_iter().filter(|&group| options.wants(group)).count() as u64;
    let probes = plan::probes(&measured.all);
    progress.set_all(groups * probes.len() as u64 * u64::from(rounds.rounds));
    if options.wants(Group::Local) {
        measured.local = rounds.of("one host", &mut stage.scene(&Place::Here)?, &probes)?;
    }
    if options.wants(Group::Hosts) {
        match Joined::make(MTU) {
            Ok(joined) => {
                let place = Place::Namespaces(joined);
                // Drop the scene before the namespaces.
                measured.hosts = rounds.of("two hosts", &mut stage.scene(&place)?, &probes)?;
            }
            Err(error) if options.only.is_empty() => measured.notes.push(format!("two hosts: {error}")),
            Err(error) => return Err(error),
        }
    }
    Ok(measured)
}

impl Stage {
    /// Starts both pairs at a place.
    fn scene(&self, place: &Place) -> Result<Scene, Error> {
        let rust = Bench::new(place.start_peer(self.cpus)?, self.time)?;
        let addresses = match place {
            Place::Namespaces(_) => place.addresses().map(Some),
            Place::Here => [None; 2],
        };
        let at = |command: &mut Command, address: Option<Ipv4Addr>| {
            if let Some(address) = address {
                command.env(ADDRESS_VARIABLE, address.to_string());
            }
        };
        let here = |command: &mut Command| {
            at(command, addresses[0]);
            command.spawn()
        };
        let there = |command: &mut Command| {
            at(command, addresses[1]);
            place.spawn_there(command)
        };
        let c = Pair::start(&self.program, [self.cpus.ours, self.cpus.theirs], here, there)?;
        Ok(Scene { c, rust })
    }
}

fn tell(options: &Options, measured: &Measured) -> Result<(), Error> {
    let goals = measured.goals();
    let text = table::render(measured, judgement(&goals, options.goals));
    print_beside(options.json.as_deref(), text)?;
    options.json.as_deref().map_or(Ok(()), |path| json::write(path, &measured.told(&goals)))
}

impl Measured {
    fn goals(&self) -> Vec<Goal> {
        let places = [("one host", &self.local), ("two hosts", &self.hosts)];
        places.into_iter().flat_map(|(place, results)| goals::goals(place, &self.all, results)).collect()
    }

    fn told(&self, goals: &[Goal]) -> Told {
        let title = "two processes in C, and two in Rust";
        let hosts = Between::Hosts { mtu: Some(MTU), title };
        let rows = |between, results| Document::of(&self.machine, between, results, &[]).rows;
        Told {
            machine: self.machine.clone(),
            rows: [rows(Between::Local, &self.local), rows(hosts, &self.hosts)].concat(),
            left_out: self.notes.clone(),
            goals: goals.iter().map(Judged::from).collect(),
        }
    }
}
