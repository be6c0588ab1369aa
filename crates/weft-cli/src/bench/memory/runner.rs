//! Runs the plan round after round, each system for a moment, so that all of them see the same conditions.

use super::initiator::Alone;
use super::plan::{memory, Probe, MESSAGE_BYTES, MESSAGE_TRIP, WORD_BYTES};
use super::target::Whose;
use crate::bench::hosts::Place;
use crate::bench::limits::{Limits, Line};
use crate::bench::machine::Cpus;
use crate::bench::meter::Sampled;
use crate::bench::results::{Key, Metric, Results, Run, Way};
use crate::bench::runner::in_round;
use crate::bench::ucx::{Question, Ucx};
use crate::bench::weft_side::{Bench, Landing};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long runs are, how many rounds there are, and when to stop.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub rounds: u32,
    /// The time of one run.
    pub time: Duration,
    pub is_quick: bool,
    /// No run begins after this time.
    pub most: Option<Duration>,
}

/// Runs probes and collects their results.
#[derive(Debug)]
pub struct Runner {
    pace: Pace,
    weft: Bench,
    limits: Option<Limits>,
    ucx: Option<Ucx>,
    interrupt: Interrupt,
    results: Results,
    /// What was left out, and why.
    notes: Vec<String>,
    /// Probes that failed. They are not tried again.
    failed: Vec<Probe>,
    /// The kind of pipe that won at a size, and the duration of a message of UCX, in the last round.
    variants: HashMap<usize, String>,
    ucx_ns: HashMap<(Metric, usize), f64>,
}

impl Runner {
    /// Finds what the probes need. This process must be pinned to the first CPU and be at the first place.
    pub fn prepare(
        cpus: Cpus,
        pace: Pace,
        place: &Rc<Place>,
        interrupt: Interrupt,
        probes: &[Probe],
    ) -> Result<Runner, Error> {
        let needs = |is: fn(&Probe) -> bool| probes.iter().any(is);
        let mut notes = Vec::new();
        let limits = needs(|probe| matches!(probe, Probe::Line | Probe::Pipe(..)))
            .then(|| Limits::find(cpus).map_err(|why| notes.push(format!("limits: {why}"))));
        let ucx = needs(|probe| matches!(probe, Probe::Ucx(..)))
            .then(|| Ucx::find_between(cpus, place).map_err(|why| notes.push(format!("UCX: {why}"))));
        Ok(Runner {
            pace,
            weft: Bench::new(place.start_peer(cpus)?, pace.time)?,
            limits: limits.and_then(Result::ok),
            ucx: ucx.and_then(Result::ok),
            interrupt,
            results: Results::default(),
            notes,
            failed: Vec::new(),
            variants: HashMap::new(),
            ucx_ns: HashMap::new(),
        })
    }

    /// Runs all probes in all rounds. Returns the results, and notes on what was left out.
    pub fn run(mut self, probes: &[Probe], progress: &Progress) -> Result<(Results, Vec<String>), Error> {
        let start = Instant::now();
        progress.set_all(probes.len() as u64 * u64::from(self.pace.rounds));
        for round in 0..self.pace.rounds {
            for &probe in in_round(probes, round) {
                self.interrupt.check()?;
                if self.pace.most.is_some_and(|most| start.elapsed() > most) {
                    self.notes.push(format!("the rest of round {} of {}: time was up", round + 1, self.pace.rounds));
                    return Ok((self.results, self.notes));
                }
                progress.say(format!("round {}: {}", round + 1, probe.title()));
                self.run_probe(probe, round)?;
                progress.one_more();
            }
        }
        Ok((self.results, self.notes))
    }

    fn run_probe(&mut self, probe: Probe, round: u32) -> Result<(), Error> {
        if self.failed.contains(&probe) {
            return Ok(());
        }
        let outcome = match probe {
            Probe::Line => self.run_limit(("cache-line", WORD_BYTES), Metric::Word, round),
            Probe::Pipe(metric, size) => self.run_limit(("pipe-bandwidth", size), metric, round),
            Probe::Ucx(metric, question) => self.run_ucx(metric, question, round),
            _ => return self.run_weft(probe, round),
        };
        if let Err(why) = outcome {
            self.notes.push(format!("{}: {why}", probe.title()));
            self.failed.push(probe);
        }
        Ok(())
    }

    fn run_weft(&mut self, probe: Probe, round: u32) -> Result<(), Error> {
        let weft = &mut self.weft;
        let key = |metric, size| Key::plain(metric, size, "weft");
        let (key, sampled, detail) = match probe {
            Probe::Word => {
                let exchange = weft.exchange_words()?;
                let detail = "98.6 % take no longer".to_owned();
                self.add(key(Metric::WordTail, WORD_BYTES), exchange.tail, detail, round);
                (key(Metric::Word, WORD_BYTES), exchange.all, "each side polls a word of its own region")
            }
            Probe::Write(size, whose) => {
                (key(Metric::Write, size).by(way(whose)), weft.write_bytes(size, whose)?, memory(whose))
            }
            Probe::Read(size, whose) => {
                (key(Metric::Read, size).by(way(whose)), weft.read_bytes(size, whose)?, memory(whose))
            }
            Probe::Alone(what, size, whose) => {
                let metric = match what {
                    Alone::Write => Metric::WriteTime,
                    Alone::Read => Metric::ReadTime,
                    Alone::FetchAdd => Metric::FetchAdd,
                };
                (key(metric, size).by(way(whose)), weft.alone(what, size, whose)?, "until its end is told")
            }
            Probe::Adds(whose) => (key(Metric::Adds, WORD_BYTES).by(way(whose)), weft.additions(whose)?, "to one word"),
            Probe::MessageTrip => {
                (key(Metric::Rtt, MESSAGE_TRIP), weft.round_trip(MESSAGE_TRIP)?, "a request and its reply")
            }
            Probe::MessageBytes => {
                let sampled = weft.bandwidth(MESSAGE_BYTES, Landing::InPlace)?;
                (key(Metric::Bandwidth, MESSAGE_BYTES), sampled, "one-way Active Messages")
            }
            Probe::Line | Probe::Pipe(..) | Probe::Ucx(..) => return Ok(()),
        };
        self.add(key, sampled, detail.to_owned(), round);
        Ok(())
    }

    fn run_limit(&mut self, (program, size): (&str, usize), metric: Metric, round: u32) -> Result<(), String> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let mut arguments = [program, "--size", &size.to_string()].map(str::to_owned).to_vec();
        if let Some(variant) = self.variants.get(&size).filter(|_| self.pace.is_quick && metric != Metric::Word) {
            arguments.extend(["--variant".to_owned(), variant.clone()]);
        }
        let line: Line = limits.run(&arguments, self.pace.time)?;
        if let Some(variant) = line.variant.clone() {
            self.variants.insert(size, variant);
        }
        let seen = line.lines().chain((metric == Metric::Word).then(|| line.sampled().median));
        seen.for_each(|ns| self.results.saw_line(ns));
        let key = line.key(Way::Plain).ok_or("it printed a metric that is not known here")?;
        self.add(Key { metric, ..key }, line.sampled(), line.detail(), round);
        Ok(())
    }

    fn run_ucx(&mut self, metric: Metric, question: Question, round: u32) -> Result<(), String> {
        let Some(ucx) = &self.ucx else { return Ok(()) };
        let known = (metric, question.size);
        let with_tail = round == 0 || !self.pace.is_quick;
        let (sampled, ns) = ucx.run(question, self.pace.time, self.ucx_ns.get(&known).copied(), with_tail)?;
        self.ucx_ns.insert(known, ns);
        let key = Key::plain(metric, question.size, question.api.system());
        self.add(key, sampled, "by ucx_perftest: the same bytes each time, which nobody reads".to_owned(), round);
        Ok(())
    }

    fn add(&mut self, key: Key, sampled: Sampled, detail: String, round: u32) {
        self.results.add(key, Run { round, sampled, detail: Some(detail) });
    }
}

/// The way of writes to and reads from this memory.
pub fn way(whose: Whose) -> Way {
    match whose {
        Whose::Weft => Way::Plain,
        Whose::Executed => Way::Executed,
        Whose::Lent => Way::Lent,
    }
}
