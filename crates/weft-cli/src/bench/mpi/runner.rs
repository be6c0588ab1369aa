//! Runs the plan round after round, each MPI over each transport for a moment, so that all of them see the same conditions.

use super::find::Kind;
use super::launch::{At, Failure, Launch, Outcome};
use super::place::Place;
use super::plan::{metric, Probe};
use super::program::{hpcc, Folder, Program};
use super::system;
use super::transport::{settings, Half, Settings, Transport};
use crate::bench::limits::Limits;
use crate::bench::machine::Cpus;
use crate::bench::results::{Key, Results, Run};
use crate::bench::runner::in_round;
use crate::bench::table::bytes;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long measurements are, how many rounds there are, and when to stop.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub rounds: u32,
    /// The time of one measurement.
    pub time: Duration,
    /// No run begins after this time.
    pub most: Duration,
}

/// One run of a round: an MPI over a transport.
#[derive(Debug)]
struct Turn {
    program: Program,
    transport: Transport,
    half: Half,
    settings: Settings,
    system: String,
}

/// Runs probes and collects their results.
#[derive(Debug)]
pub struct Runner {
    cpus: Cpus,
    pace: Pace,
    turns: Vec<Turn>,
    limits: Option<Limits>,
    place: Place,
    interrupt: Interrupt,
    folder: PathBuf,
    measured: Measured,
    /// The measurements that failed. They are not tried again.
    failed: Vec<(String, Probe)>,
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct Measured {
    pub results: Results,
    /// The versions that the MPIs report.
    pub versions: Vec<(Kind, String)>,
    /// The measurements that were left out, with the reason.
    pub notes: Vec<String>,
    /// How many measurements over weft failed.
    pub failed_over_weft: usize,
}

impl Runner {
    /// Prepares the runs in an order that puts compared runs next to each other.
    pub fn prepare(
        cpus: Cpus,
        pace: Pace,
        provider: Option<PathBuf>,
        transports: &[Transport],
        programs: Vec<Program>,
        (place, interrupt): (Place, Interrupt),
        folder: &Folder,
    ) -> Runner {
        let mut turns = Vec::new();
        for program in programs {
            for half in [Half::Messages, Half::OneSided, Half::Hpcc] {
                let run = if half == Half::Hpcc { hpcc(&program.mpi, folder) } else { Some(program.clone()) };
                let turn = |&transport: &Transport| {
                    let settings = settings(program.mpi.kind, transport, half, provider.as_deref(), &place)?;
                    let system = system(&program.mpi, transport);
                    Some(Turn { program: run.clone()?, transport, half, settings, system })
                };
                turns.extend(transports.iter().filter_map(turn));
            }
        }
        let mut measured = Measured::default();
        let limits = Limits::find(cpus).map_err(|why| measured.notes.push(format!("the cache line beside it: {why}")));
        let (limits, folder) = (limits.ok(), folder.path().to_path_buf());
        Runner { cpus, pace, turns, limits, place, interrupt, folder, measured, failed: Vec::new() }
    }

    /// Runs everything in all rounds.
    pub fn run(mut self, plan: &[Probe], progress: &Progress) -> Result<Measured, Error> {
        let start = Instant::now();
        let turns = std::mem::take(&mut self.turns);
        let runs = turns.iter().map(|turn| plan.iter().filter(|probe| probe.half == turn.half).count()).sum::<usize>();
        progress.set_all(runs as u64 * u64::from(self.pace.rounds));
        for round in 0..self.pace.rounds {
            self.see_line();
            for turn in in_round(&turns, round) {
                self.interrupt.check()?;
                if start.elapsed() > self.pace.most {
                    let rounds = self.pace.rounds;
                    self.measured.notes.push(format!("the rest of round {} of {rounds}: time was up", round + 1));
                    return Ok(self.measured);
                }
                self.run_turn(turn, plan, round, progress)?;
            }
        }
        Ok(self.measured)
    }

    /// Measures the round trip of a cache line.
    fn see_line(&mut self) {
        let Some(limits) = &self.limits else { return };
        let arguments = ["cache-line", "--size", "8"].map(str::to_owned);
        match limits.run(&arguments, self.pace.time) {
            Ok(line) => line.lines().chain([line.sampled().median]).for_each(|ns| self.measured.results.saw_line(ns)),
            Err(why) => {
                self.measured.notes.push(format!("the cache line beside it: {why}"));
                self.limits = None;
            }
        }
    }

    /// Runs an MPI over a transport, without measurements that failed before. If one fails, those after it run separately.
    fn run_turn(&mut self, turn: &Turn, plan: &[Probe], round: u32, progress: &Progress) -> Result<(), Error> {
        let has_failed =
            |probe: &Probe| self.failed.iter().any(|(system, failed)| *system == turn.system && failed == probe);
        let all: Vec<Probe> = plan.iter().filter(|probe| probe.half == turn.half).copied().collect();
        let mut left: Vec<Probe> = all.iter().filter(|probe| !has_failed(probe)).copied().collect();
        (left.len()..all.len()).for_each(|_| progress.one_more());
        while !left.is_empty() {
            let launch = Launch {
                program: &turn.program,
                settings: &turn.settings,
                silence: turn.half.silence(),
                probes: &left,
                cpus: self.cpus,
                time: self.pace.time,
                folder: &self.folder,
                place: &self.place,
            };
            progress.say(format!("round {}: {}", round + 1, turn.system));
            let mut outcome = launch.run(&self.interrupt, |name, size| {
                progress.say(format!("round {}: {}, {}", round + 1, turn.system, title(name, size)));
                progress.one_more();
            })?;
            let failure = outcome.failure();
            let failure = failure.or_else(|| unproven(turn, &mut outcome));
            self.take(turn, outcome, round);
            let Some(failure) = failure else { break };
            left = self.note(turn, left, failure);
        }
        Ok(())
    }

    fn take(&mut self, turn: &Turn, outcome: Outcome, round: u32) {
        let kind = turn.program.mpi.kind;
        if !self.measured.versions.iter().any(|known| known.0 == kind) {
            self.measured.versions.extend(outcome.version.map(|version| (kind, version)));
        }
        let detail = turn.settings.detail.or(turn.transport.provider()).map(str::to_owned);
        for (name, size, sampled) in outcome.results {
            // A barrier has no size, and all metrics of the program are known.
            let Some(metric) = metric(&name) else { continue };
            let key = Key::plain(metric, size, &turn.system);
            self.measured.results.add(key, Run { round, sampled, detail: detail.clone() });
        }
    }

    /// Notes a failure. Returns the measurements that are still to be run.
    fn note(&mut self, turn: &Turn, left: Vec<Probe>, failure: Failure) -> Vec<Probe> {
        let position = |name: &str, size| left.iter().position(|probe| (probe.name, probe.size) == (name, size));
        let all = turn.half.title();
        let (failed, what, rest) = match &failure.at {
            At::End => (Vec::new(), format!("the end of {all}"), Vec::new()),
            At::Measurement(name, size) => match position(name, *size) {
                Some(at) => (vec![left[at]], title(name, *size), left[at + 1..].to_vec()),
                None => (left, all.to_owned(), Vec::new()),
            },
            At::Start => (left, all.to_owned(), Vec::new()),
        };
        if turn.transport == Transport::Weft {
            self.measured.failed_over_weft += failed.len().max(1);
        }
        let what = format!("{}, {what}: ", turn.system);
        // The same failure may occur in each round.
        if !self.measured.notes.iter().any(|note| note.starts_with(&what)) {
            self.measured.notes.push(what + &failure.why);
        }
        self.failed.extend(failed.into_iter().map(|probe| (turn.system.clone(), probe)));
        rest
    }
}

/// Fails a run whose output does not show that it used the transport that it was told to use.
fn unproven(turn: &Turn, outcome: &mut Outcome) -> Option<Failure> {
    let sign = turn.settings.sign.as_deref().filter(|sign| !outcome.has_said(sign))?;
    outcome.results.clear();
    Some(Failure { at: At::Start, why: format!("it ran over something else: nowhere does it say `{}`", sign.trim()) })
}

/// A measurement, for display.
fn title(name: &str, size: usize) -> String {
    match name {
        "barrier" => name.to_owned(),
        "nbody" | "hpcc" => format!("{name} of {size}"),
        _ => format!("{name} of {}", bytes(size)),
    }
}
