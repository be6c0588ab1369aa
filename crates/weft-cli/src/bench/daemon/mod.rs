//! `weft bench daemon`: the cost of messages through weftd, beside the same two programs without it.

mod folder;
mod goals;
mod plan;
mod runner;
mod scene;
mod service;
mod table;
mod writer;

pub use folder::Folder;
pub use service::{look, possible, Daemon, Look, INTERFACE_VARIABLE, LOOPBACK};
pub use writer::{write, WriteJob};

use super::goals::Goal;
use super::hosts::joined::{Joined, SIDES};
use super::json::{self, Between, Document, Judged, Row};
use super::machine::{self, Machine};
use super::results::Results;
use super::table::judgement;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::namespaces::Names;
use crate::output::print_beside;
use crate::progress::Progress;
use plan::{Extent, Group};
use runner::{Rounds, Written, FRAMES};
use scene::Stage;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Rounds, and the time of each run: by default, and for `--quick`.
const ROUNDS: u32 = 5;
const TIME: Duration = Duration::from_millis(200);
const QUICK_ROUNDS: u32 = 3;
const QUICK_TIME: Duration = Duration::from_millis(60);

/// The largest packet between the two namespaces.
const MTU: u32 = 1500;

/// How much later than a daemon this process may notice Ctrl-C.
const AFTER_DAEMONS: Duration = Duration::from_millis(200);

/// Processes that run at the same time: two programs and their daemons.
const LOCAL_PROCESSES: usize = 3;
const HOSTS_PROCESSES: usize = 4;

/// Text after the options in `--help`.
const HELP: &str = "\
Two programs, pinned to two CPUs, once without weftd and once through it. On one host they reach each other through rings in memory \
without it; set-up sockets are switched off (WEFT_LOCAL=off) to make them use it. The two hosts are network namespaces joined by a \
veth pair, with a weftd in each; this needs root, and `ip` of iproute2, and is left out if they cannot be made. In every round each \
figure is taken once, for a moment, with weftd and without one after the other, in every second round in the opposite order. The tables show \
the median of the rounds' medians, and of their 99th percentiles; a ratio is taken within each round, and the median of the rounds counts. \
Both sides add up every byte, and the numbers and sums are compared.

Beside remappings: two programs communicate through a weftd with 8 frames. A third one has 64 endpoints that write in turn, 300 times a \
second, so each of them needs a frame that another one has. The 99th percentiles of single round trips are compared. Each message of the third \
program must be answered once and in order; if one is not, the exit status is 1.

A daemon has a CPU of its own if there is one beside those of the two programs. If not, it and the programs keep each other waiting: \
programs that poll rarely give up their CPU, programs that sleep do. The ratios are then not those of a machine where each has a CPU, \
and the output says so. This takes 3 CPUs on one host, and 4 for two.";

/// The arguments of `weft bench daemon`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Prints the goal beside each ratio, and MISSED where it is not reached.
    #[arg(long)]
    goals: bool,
    /// Fewer rounds, shorter runs, fewer sizes.
    #[arg(long)]
    quick: bool,
    /// Only these groups of figures.
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    only: Vec<Group>,
    /// Writes the figures to a file as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
}

/// The results.
#[derive(Debug)]
struct Measured {
    machine: Machine,
    /// Of two programs on this host, and during remappings.
    local: Results,
    hosts: Results,
    written: Vec<Written>,
    /// What was left out, and why.
    notes: Vec<String>,
}

/// The same as JSON.
#[derive(Serialize)]
struct Told {
    machine: Machine,
    /// Whether each program and daemon had a CPU of its own.
    has_own_cpus: bool,
    rows: Vec<Row>,
    /// The counts of the program that wrote in turn, for each round.
    written: Vec<Written>,
    left_out: Vec<String>,
    goals: Vec<Judged>,
}

/// Measures, and prints the tables.
pub fn run(options: &Options) -> Result<(), Error> {
    let before = machine::affinity()?;
    let cpus = machine::choose_cpus()?;
    let program = possible().map_err(|cause| Error::Usage {
        cause,
        way_out: "`weft bench daemon` measures the weftd that lies beside weft".to_owned(),
    })?;
    let usual = if options.quick { QUICK_TIME } else { TIME };
    let time = options.ms.map_or(usual, Duration::from_millis);
    let (folder, names) = (Folder::ours(), Names::ours(SIDES));
    let interrupt = Interrupt::watch(move || {
        Folder::remove(&folder);
        names.remove();
    })?;
    let stage = Stage { program, cpus, all: before, allowed: machine::allowed()?, time };
    let progress = Progress::new();
    machine::pin(cpus.ours)?;
    let measured = measure(options, &stage, &interrupt, &progress);
    progress.clear();
    machine::keep_to(&before)?;
    if measured.is_err() {
        // The daemons get Ctrl-C as well, perhaps earlier than this process. Their end is then no failure.
        interrupt.wait(&[], Some(Instant::now() + AFTER_DAEMONS));
    }
    interrupt.check()?;
    tell(options, &measured?)
}

fn measure(options: &Options, stage: &Stage, interrupt: &Interrupt, progress: &Progress) -> Result<Measured, Error> {
    let mut measured = Measured {
        machine: Machine { cores: stage.allowed.len(), ..Machine::describe(stage.cpus) },
        local: Results::default(),
        hosts: Results::default(),
        written: Vec::new(),
        notes: Vec::new(),
    };
    let probes = plan::probes(if options.quick { Extent::Quick } else { Extent::Full });
    let usual = if options.quick { QUICK_ROUNDS } else { ROUNDS };
    let rounds = Rounds { rounds: options.rounds.unwrap_or(usual), interrupt, progress };
    let pairs = [Group::Local, Group::Hosts].into_iter().filter(|&group| options.wants(group)).count();
    let hot = if options.wants(Group::Remapping) { plan::hot().len() } else { 0 };
    progress.set_all((pairs * probes.len() + hot) as u64 * u64::from(rounds.rounds));
    if options.wants(Group::Local) {
        measured.local = rounds.of_pair("one host", &mut stage.local()?, &probes)?;
    }
    if options.wants(Group::Remapping) {
        measured.written = rounds.of_hot(&mut stage.crowded(FRAMES)?, &mut measured.local)?;
    }
    if options.wants(Group::Hosts) {
        match Joined::make(MTU) {
            // Drop the scene before the namespaces.
            Ok(joined) => measured.hosts = rounds.of_pair("two hosts", &mut stage.hosts(&joined)?, &probes)?,
            Err(error) if options.only.is_empty() => measured.notes.push(format!("two hosts: {error}")),
            Err(error) => return Err(error),
        }
    }
    Ok(measured)
}

fn tell(options: &Options, measured: &Measured) -> Result<(), Error> {
    let goals = measured.goals();
    let text = table::render(measured, judgement(&goals, options.goals));
    print_beside(options.json.as_deref(), text)?;
    options.json.as_deref().map_or(Ok(()), |path| json::write(path, &measured.told(&goals)))
}

impl Measured {
    fn goals(&self) -> Vec<Goal> {
        let pairs = [("one host", &self.local), ("two hosts", &self.hosts)];
        let pairs = pairs.into_iter().flat_map(|(place, results)| goals::of_pair(place, results));
        pairs.chain(goals::of_hot(&self.local)).collect()
    }

    fn told(&self, goals: &[Goal]) -> Told {
        let title = self.title();
        let hosts = Between::Hosts { mtu: Some(MTU), title: &title };
        let rows = |between, results| Document::of(&self.machine, between, results, &[]).rows;
        Told {
            machine: self.machine.clone(),
            has_own_cpus: self.warning().is_none(),
            rows: [rows(Between::Local, &self.local), rows(hosts, &self.hosts)].concat(),
            written: self.written.clone(),
            left_out: self.notes.clone(),
            goals: goals.iter().map(Judged::from).collect(),
        }
    }

    /// Names the CPUs of the programs and daemons.
    fn title(&self) -> String {
        let [ours, theirs] = self.machine.cpus;
        let others = match self.machine.cores.saturating_sub(2) {
            0 => "weftd on either".to_owned(),
            1 => "weftd on the third".to_owned(),
            _ => "each weftd on another".to_owned(),
        };
        format!("two programs on CPUs {ours} and {theirs}, {others}")
    }

    /// The warning if there are too few CPUs.
    fn warning(&self) -> Option<String> {
        let processes = if self.hosts.series().is_empty() { LOCAL_PROCESSES } else { HOSTS_PROCESSES };
        let cores = self.machine.cores;
        (cores < processes).then(|| {
            format!(
                "{processes} processes share {cores} CPUs: these ratios are not those of a machine where each program and daemon has a CPU"
            )
        })
    }
}
