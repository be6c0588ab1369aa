//! Runs the plan between hosts round after round, each system for a moment, so that all of them see the same conditions.

use super::place::Place;
use super::plan::{Probe, System, LARGE, SMALL};
use super::{rights, sockets};
use crate::bench::limits::Limits;
use crate::bench::machine::Cpus;
use crate::bench::meter::Sampled;
use crate::bench::mixed::{Beside, Route};
use crate::bench::results::{Key, Metric, Results, Run, Way};
use crate::bench::runner::{in_round, waiting_way};
use crate::bench::table::bytes;
use crate::bench::ucx::{Api, Question, Ucx};
use crate::bench::weft_side::{Bench, Landing};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// Round trips of weft per sample: as many as with spinning sockets.
const BATCH: u32 = 16;

/// How long the acknowledging peer computes at a time.
const COMPUTES: Duration = Duration::from_millis(100);

/// How often it does so in one run.
const COMPUTES_TIMES: u32 = 16;

/// How long runs are, and how many rounds there are.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub rounds: u32,
    /// The time of one run.
    pub time: Duration,
    /// How long the sender of a lone message computes after it.
    pub pause: Duration,
    /// Lone messages of one run.
    pub lone: u32,
}

/// Runs probes and collects their results.
#[derive(Debug)]
pub struct Runner {
    pace: Pace,
    weft: Option<Bench>,
    /// The same with the rights of an ordinary user.
    ordinary: Option<Bench>,
    limits: Option<Limits>,
    ucx: Option<Ucx>,
    place: Rc<Place>,
    interrupt: Interrupt,
    results: Results,
    /// What was left out, and why.
    notes: Vec<String>,
    /// Probes that failed. They are not tried again.
    failed: Vec<Probe>,
    /// How long a message of UCX took in the last round.
    ucx_ns: HashMap<(Metric, usize), f64>,
}

impl Runner {
    /// Finds what the probes need. This process must be pinned to the first CPU and be at the first place.
    pub fn prepare(
        cpus: Cpus,
        pace: Pace,
        place: Rc<Place>,
        interrupt: Interrupt,
        probes: &[Probe],
    ) -> Result<Runner, Error> {
        let needs = |systems: &[System]| probes.iter().any(|probe| systems.contains(&probe.system()));
        let mut notes = Vec::new();
        let limits = needs(&[System::Udp, System::Tcp])
            .then(|| Limits::find(cpus).map_err(|why| notes.push(format!("bare UDP and TCP: {why}"))));
        let ucx = needs(&[System::Ucx])
            .then(|| Ucx::find_between(cpus, &place).map_err(|why| notes.push(format!("UCX: {why}"))));
        let weft = match needs(&[System::Weft]) {
            true => Some(Bench::new(place.start_peer(cpus)?, pace.time)?.with_batch(BATCH)),
            false => None,
        };
        let ordinary = match (&weft, probes.iter().any(|probe| matches!(probe, Probe::Ordinary(_)))) {
            (Some(weft), true) => {
                Some(rights::as_ordinary_user(|| weft.with_another(place.start_ordinary_peer(cpus)?))??)
            }
            _ => None,
        };
        Ok(Runner {
            pace,
            weft,
            ordinary,
            limits: limits.and_then(Result::ok),
            ucx: ucx.and_then(Result::ok),
            place,
            interrupt,
            results: Results::default(),
            notes,
            failed: Vec::new(),
            ucx_ns: HashMap::new(),
        })
    }

    /// Runs all probes in all rounds. Returns the results, and notes on what was left out.
    pub fn run(mut self, probes: &[Probe], progress: &Progress) -> Result<(Results, Vec<String>), Error> {
        progress.set_all(probes.len() as u64 * u64::from(self.pace.rounds));
        for round in 0..self.pace.rounds {
            for &probe in in_round(probes, round) {
                self.interrupt.check()?;
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
            Probe::Socket { program, how, size } => self.run_socket(program, how, size, round),
            Probe::Ucx { metric, size } => self.run_ucx(Question { api: Api::Tcp, metric, size }, round),
            Probe::Ordinary(metric) => return self.run_ordinary(metric, round),
            _ => return self.run_weft(probe, round),
        };
        if let Err(why) = outcome {
            self.notes.push(format!("{}: {why}", probe.title()));
            self.failed.push(probe);
        }
        Ok(())
    }

    fn run_weft(&mut self, probe: Probe, round: u32) -> Result<(), Error> {
        let Some(weft) = &mut self.weft else { return Ok(()) };
        if let Probe::MixedBoth(beside) = probe {
            let both = match beside {
                Beside::Turns => weft.round_trips_in_turns()?,
                _ => weft.round_trips_by_both()?,
            };
            for (route, sampled) in [Route::Memory, Route::Network].into_iter().zip(both) {
                let detail = Some(beside.detail(route).to_owned());
                self.results.add(mixed_key(route, beside), Run { round, sampled, detail });
            }
            return Ok(());
        }
        let key = |metric, size| Key::plain(metric, size, "weft");
        let (key, sampled, detail) = match probe {
            Probe::RoundTrip(size) => (key(Metric::Rtt, size), weft.round_trip(size)?, "request and reply".to_owned()),
            Probe::WaitingRoundTrip(size, waiting) => {
                let (way, detail) = waiting_way(waiting);
                (key(Metric::Rtt, size).by(way), weft.round_trip_waiting(size, waiting)?, detail.to_owned())
            }
            Probe::Rate(size) => (key(Metric::Rate, size), weft.rate(size)?, "one pair of endpoints".to_owned()),
            Probe::Bandwidth(size, landing) => {
                let (way, detail) = match landing {
                    Landing::InPlace => (Way::Plain, "the handler reads all bytes where they are"),
                    Landing::Copied => {
                        (Way::Copied, "the handler copies them into its own memory and reads them there")
                    }
                };
                (key(Metric::Bandwidth, size).by(way), weft.bandwidth(size, landing)?, detail.to_owned())
            }
            Probe::Lone => {
                let detail = format!("behind it {} ms of computing without polls", self.pace.pause.as_millis());
                (key(Metric::Lone, SMALL), weft.lone(self.pace.lone, self.pace.pause)?, detail)
            }
            Probe::Computing => {
                let detail = format!("it polled before, then computes for {} ms", COMPUTES.as_millis());
                (key(Metric::Ack, SMALL), weft.acknowledged(COMPUTES_TIMES, COMPUTES)?, detail)
            }
            Probe::Mixed(route, beside) => {
                (mixed_key(route, beside), weft.round_trip_by(route, beside)?, beside.detail(route).to_owned())
            }
            Probe::Ordinary(_) | Probe::MixedBoth(_) | Probe::Socket { .. } | Probe::Ucx { .. } => return Ok(()),
        };
        self.results.add(key, Run { round, sampled, detail: Some(detail) });
        Ok(())
    }

    /// One way, with the kernel's limits on buffers. Fails if a message does not arrive.
    fn run_ordinary(&mut self, metric: Metric, round: u32) -> Result<(), Error> {
        let Some(weft) = &mut self.ordinary else { return Ok(()) };
        let before = rights::dropped_datagrams();
        let (size, sampled) = rights::as_ordinary_user(|| match metric {
            Metric::Rate => (SMALL, weft.rate(SMALL)),
            _ => (LARGE, weft.bandwidth(LARGE, Landing::InPlace)),
        })?;
        let dropped = match (before, rights::dropped_datagrams()) {
            (Some(before), Some(after)) => format!("; the kernel dropped {} packets", after.wrapping_sub(before)),
            _ => String::new(),
        };
        let most = rights::receive_buffer_most().map_or_else(String::new, |most| format!(" (at most {})", bytes(most)));
        let detail = Some(format!("an ordinary user's buffers{most}: all messages arrived{dropped}"));
        self.results.add(Key::plain(metric, size, "weft-ordinary"), Run { round, sampled: sampled?, detail });
        Ok(())
    }

    fn run_socket(&mut self, program: &str, how: &str, size: usize, round: u32) -> Result<(), String> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let words = [program, "--how", how, "--size", &size.to_string()];
        let mut arguments: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let mut time = self.pace.time;
        if program == "host-lone" {
            arguments.extend(["--pause".to_owned(), self.pace.pause.as_secs_f64().to_string()]);
            // A little more, so that the number of pauses in it is not rounded down.
            time = self.pace.pause * self.pace.lone + self.pace.pause / 2;
        }
        let line = sockets::run(limits, &self.place, &arguments, time)?;
        let key = line.key(Way::Plain).ok_or("it printed a metric that is not known here")?;
        self.results.add(key, Run { round, sampled: line.sampled(), detail: Some(line.detail()) });
        Ok(())
    }

    fn run_ucx(&mut self, question: Question, round: u32) -> Result<(), String> {
        let Some(ucx) = &self.ucx else { return Ok(()) };
        let Question { api, metric, size } = question;
        let last = self.ucx_ns.get(&(metric, size)).copied();
        let (sampled, ns): (Sampled, f64) = ucx.run(question, self.pace.time, last, round == 0)?;
        self.ucx_ns.insert((metric, size), ns);
        let detail = match metric {
            Metric::Rtt => "ucp_am_lat",
            _ => "ucp_am_bw: the mean of each run, its receiver reads nothing",
        };
        self.results
            .add(Key::plain(metric, size, api.system()), Run { round, sampled, detail: Some(detail.to_owned()) });
        Ok(())
    }
}

/// The key of a round trip on one path, given what happens on the other.
pub fn mixed_key(route: Route, beside: Beside) -> Key {
    let metric = match route {
        Route::Memory => Metric::MixedMemory,
        Route::Network => Metric::MixedNetwork,
    };
    Key::plain(metric, SMALL, beside.system())
}
