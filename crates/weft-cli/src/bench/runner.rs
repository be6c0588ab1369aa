//! Runs the plan round after round, each system for a moment, so that all of them see the same conditions.

use super::hosts::rights;
use super::limits::{Limits, Line};
use super::machine::Cpus;
use super::meter::{median, Sampled};
use super::peer;
use super::plan::{Probe, System, READ_SIZES, SMALL, UNREAD_SIZES};
use super::results::{is_ucx, Key, Metric, Results, Run, Way};
use super::talk::{Peer, Waiting};
use super::ucx::{Api, Question, Ucx};
use super::weft_side::{Bench, Landing, Who, WINDOW};
use crate::error::Error;
use crate::progress::Progress;
use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// Peers of one bundle, where there are many.
const MANY: usize = 64;

/// The user of another user's process: on Debian and similar systems nobody has this number.
const OTHER_USER: u32 = 65_532;

/// Endpoints of one bundle where there are many.
const MANY_ENDPOINTS: usize = 500;

/// How long runs are, how many rounds there are, and when to stop.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub rounds: u32,
    /// The time of one run.
    pub time: Duration,
    /// Whether to save time. Then only the first round searches the best kind of ring, runs the kernel and takes UCX's tails. UCX's
    /// own benchmark is left out where nothing is compared with it, and of UCX with reading receivers only the better interface
    /// runs after the first round.
    pub is_quick: bool,
    /// No run begins after this time.
    pub most: Option<Duration>,
}

/// Runs probes and collects their results.
#[derive(Debug)]
pub struct Runner {
    cpus: Cpus,
    pace: Pace,
    weft: Option<Bench>,
    /// With a peer of another trusted class.
    foreign: Option<Bench>,
    /// With a peer of another user.
    other_user: Option<Bench>,
    limits: Option<Limits>,
    ucx: Option<Ucx>,
    /// UCX with receivers that read.
    ucx_read: Option<Limits>,
    results: Results,
    /// What was left out, and why.
    notes: Vec<String>,
    /// Probes that failed, and why. They are not tried again.
    failed: Vec<(Probe, String)>,
    /// The kind of ring that won in the first round.
    variants: HashMap<(&'static str, usize), String>,
    /// How long a message of UCX took in the last round.
    ucx_ns: HashMap<(&'static str, Metric, usize), f64>,
}

impl Runner {
    /// Finds what the probes need. This process must be pinned to the first CPU.
    pub fn prepare(cpus: Cpus, pace: Pace, probes: &[Probe]) -> Result<Runner, Error> {
        let needs = |is: fn(&Probe) -> bool| probes.iter().any(is);
        let mut notes = Vec::new();
        let needs_limits = needs(|p| matches!(p, Probe::Limit { .. } | Probe::Kernel { .. }));
        let limits =
            needs_limits.then(|| Limits::find(cpus).map_err(|why| notes.push(format!("limits and kernel: {why}"))));
        let ucx = needs(|p| matches!(p, Probe::Ucx(_)))
            .then(|| Ucx::find(cpus).map_err(|why| notes.push(format!("UCX: {why}"))));
        let ucx_read = needs(|p| matches!(p, Probe::UcxRead { .. }))
            .then(|| Limits::find_for_ucx(cpus).map_err(|why| notes.push(format!("UCX, all bytes read: {why}"))));
        let mut weft = None;
        if needs(|p| p.system() == System::Weft) {
            weft = Some(Bench::new(Peer::start(peer::command(cpus)?, Command::spawn)?, pace.time)?);
        }
        let mut foreign = None;
        if needs(|p| matches!(p, Probe::ForeignRoundTrip(_) | Probe::ForeignBandwidth(_))) {
            let mut command = peer::command(cpus)?;
            command.env("WEFT_TRUST", "off");
            let peer = Peer::start(command, Command::spawn)?;
            foreign = weft.as_ref().map(|weft: &Bench| weft.with_another(peer)).transpose()?;
        }
        let mut other_user = None;
        if needs(|p| matches!(p, Probe::OtherUserRoundTrip(_) | Probe::OtherUserBandwidth(_))) {
            match rights::may_become(OTHER_USER) {
                true => {
                    let mut command = peer::command(cpus)?;
                    command.args(["--user", &OTHER_USER.to_string()]);
                    let peer = Peer::start(command, Command::spawn)?;
                    let bench = weft.as_ref().map(|weft: &Bench| weft.with_another(peer)).transpose()?;
                    other_user = bench.map(Bench::admitting_all);
                }
                false => notes.push(format!(
                    "weft, with another user's process: it takes root to start one as user {OTHER_USER}, in a user namespace that has \
                     this user"
                )),
            }
        }
        Ok(Runner {
            cpus,
            pace,
            weft,
            foreign,
            other_user,
            limits: limits.and_then(Result::ok),
            ucx: ucx.and_then(Result::ok),
            ucx_read: ucx_read.and_then(Result::ok),
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
        'rounds: for round in 0..self.pace.rounds {
            for probe in in_round(probes, round) {
                if self.pace.most.is_some_and(|most| start.elapsed() > most) {
                    self.notes.push(format!("the rest of round {} of {}: time was up", round + 1, self.pace.rounds));
                    break 'rounds;
                }
                if self.pace.is_quick && self.is_left_out(probe, round) {
                    progress.one_more();
                    continue;
                }
                progress.say(format!("round {}: {}", round + 1, probe.title()));
                self.run_probe(probe, round)?;
                progress.one_more();
            }
        }
        self.derive();
        self.note_failures();
        Ok((self.results, self.notes))
    }

    /// Whether a quick run skips this probe: the kernel after the first round, the slower interface of UCX, and UCX's own benchmark
    /// at sizes where weft is compared only with UCX whose receivers read.
    fn is_left_out(&self, probe: &Probe, round: u32) -> bool {
        match probe {
            Probe::Kernel { .. } => round > 0,
            Probe::UcxRead { api, size } => {
                let best = self.results.best_by(Way::Read, Metric::Rtt, *size, is_ucx);
                round > 0 && best.is_some_and(|best| best.key.system != api.system())
            }
            Probe::Ucx(Question { metric: Metric::Rtt, size, .. }) => {
                self.ucx_read.is_some() && READ_SIZES.contains(size) && !UNREAD_SIZES.contains(size)
            }
            _ => false,
        }
    }

    /// Notes the failures, one line for each cause.
    fn note_failures(&mut self) {
        while let Some((_, why)) = self.failed.first().cloned() {
            let (same, others) = std::mem::take(&mut self.failed).into_iter().partition(|(_, other)| *other == why);
            self.failed = others;
            let same: Vec<(Probe, String)> = same;
            let titles: Vec<String> = same.iter().map(|(probe, _)| probe.title()).collect();
            self.notes.push(format!("{}: {why}", titles.join("; ")));
        }
    }

    fn run_probe(&mut self, probe: &Probe, round: u32) -> Result<(), Error> {
        if self.failed.iter().any(|(failed, _)| failed == probe) {
            return Ok(());
        }
        let outcome = match probe {
            Probe::Limit { program, size, window, way } => {
                let window = window.map(|w| ["--window".to_owned(), w.to_string()]);
                self.run_limit(program, *size, window.as_ref().map_or(&[], |w| &w[..]), *way, round)
            }
            Probe::Kernel { program, size, how } => {
                self.run_limit(program, *size, &["--how".to_owned(), how.clone()], Way::Plain, round)
            }
            Probe::Ucx(question) => self.run_ucx(*question, round),
            Probe::UcxRead { api, size } => self.run_ucx_read(*api, *size, round),
            _ => return self.run_weft(probe, round),
        };
        if let Err(why) = outcome {
            self.failed.push((probe.clone(), why));
        }
        Ok(())
    }

    fn run_weft(&mut self, probe: &Probe, round: u32) -> Result<(), Error> {
        let bench = match probe {
            Probe::ForeignRoundTrip(_) | Probe::ForeignBandwidth(_) => &mut self.foreign,
            Probe::OtherUserRoundTrip(_) | Probe::OtherUserBandwidth(_) => &mut self.other_user,
            _ => &mut self.weft,
        };
        let Some(weft) = bench else { return Ok(()) };
        let key = |metric, size| Key::plain(metric, size, "weft");
        let single = match *probe {
            Probe::RoundTrip(size) => (key(Metric::Rtt, size), weft.round_trip(size)?, None),
            Probe::UnreadRoundTrip(size) => {
                let detail = format!("{size} B, the same every time and read by nobody, as in ucx_perftest");
                (key(Metric::Rtt, size).by(Way::Unread), weft.round_trip_unread(size)?, Some(detail))
            }
            Probe::WaitingRoundTrip(size, waiting) => {
                let (way, detail) = waiting_way(waiting);
                (key(Metric::Rtt, size).by(way), weft.round_trip_waiting(size, waiting)?, Some(detail.to_owned()))
            }
            Probe::Rate(size) => (key(Metric::Rate, size), weft.rate(size)?, None),
            Probe::Bandwidth(size) => (key(Metric::Bandwidth, size), weft.bandwidth(size, Landing::InPlace)?, None),
            Probe::RequestRate(size) => {
                let detail = format!("request and reply, window {WINDOW}");
                (key(Metric::Rate, size).by(Way::RequestReply), weft.request_rate(size)?, Some(detail))
            }
            Probe::Peers(size, way) => {
                let (bundles, who, detail) = match way {
                    Way::FixedOfMany => (MANY, Who::Fixed, format!("from one fixed sender of {MANY} peers")),
                    Way::DrawnOfMany => {
                        (MANY, Who::Drawn, format!("from a sender drawn at random per message of {MANY} peers"))
                    }
                    _ => (1, Who::Fixed, "from the only one of 1 peer".to_owned()),
                };
                (key(Metric::Rtt, size).by(way), weft.round_trip_of_many(size, bundles, who)?, Some(detail))
            }
            Probe::Overheads(size) => {
                let overheads = weft.overheads(size)?;
                self.add(key(Metric::LogpOs, size), overheads.os, Some("to issue a request".to_owned()), round);
                self.add(key(Metric::LogpOr, size), overheads.or, Some("to take an answer".to_owned()), round);
                let detail = "round trip / 2 - o_s - o_r, all of the same run".to_owned();
                (key(Metric::LogpL, size), overheads.l, Some(detail))
            }
            Probe::BesideUnserved(size) => {
                let beside = weft.beside_unserved(size)?;
                let detail = |neighbour| {
                    Some(format!("two endpoints of one bundle, one never served, {neighbour}; single trips"))
                };
                self.add(key(Metric::Rtt, size).by(Way::Alone), beside.alone, detail("its queue empty"), round);
                (key(Metric::Rtt, size).by(Way::BesideFull), beside.beside_full, detail("its queue full"))
            }
            Probe::BesideDeaths(size) => {
                let cpus = self.cpus;
                let deaths = weft.beside_deaths(size, &|| Peer::start(peer::command(cpus)?, Command::spawn))?;
                let detail = |when: &str| {
                    Some(format!("in the 2 ms {when} the kill of another peer with {WINDOW} requests under way"))
                };
                self.add(key(Metric::Rtt, size).by(Way::BeforeDeaths), deaths.before, detail("before"), round);
                self.add(key(Metric::Rtt, size).by(Way::BesideDeaths), deaths.beside, detail("behind"), round);
                let detail = format!("{WINDOW} requests to a peer that was killed, from the kill on");
                (key(Metric::Settled, size), deaths.settled, Some(detail))
            }
            Probe::Shared(size) => {
                let detail = "by a shared bundle, which one thread uses: a lock for each call".to_owned();
                (key(Metric::Rtt, size).by(Way::Shared), weft.round_trip_shared(size)?, Some(detail))
            }
            Probe::ForeignRoundTrip(size) => {
                let detail = "between processes that do not trust each other".to_owned();
                (key(Metric::Rtt, size).by(Way::Foreign), weft.round_trip(size)?, Some(detail))
            }
            Probe::ForeignBandwidth(size) => {
                let detail = format!("{size} B, copied out of the reach of a sender that is not trusted");
                let sampled = weft.bandwidth(size, Landing::InPlace)?;
                (key(Metric::Bandwidth, size).by(Way::Foreign), sampled, Some(detail))
            }
            Probe::OtherUserRoundTrip(size) => {
                let detail = "between processes of two users: arenas of 512 KiB, copied, a bell page for each session"
                    .to_owned();
                (key(Metric::Rtt, size).by(Way::OtherUser), weft.round_trip(size)?, Some(detail))
            }
            Probe::OtherUserBandwidth(size) => {
                let detail = format!("{size} B, from another user's process: through an arena of 512 KiB, and copied");
                let sampled = weft.bandwidth(size, Landing::InPlace)?;
                (key(Metric::Bandwidth, size).by(Way::OtherUser), sampled, Some(detail))
            }
            Probe::Endpoints(size, way) => {
                let endpoints = if way == Way::OneOfMany { MANY_ENDPOINTS } else { 1 };
                let many = if endpoints == 1 {
                    "one endpoint".to_owned()
                } else {
                    format!("{endpoints} endpoints, one of them busy")
                };
                let detail = format!("between bundles of {many}");
                (key(Metric::Rtt, size).by(way), weft.round_trip_among(size, endpoints)?, Some(detail))
            }
            Probe::Limit { .. } | Probe::Kernel { .. } | Probe::Ucx(_) | Probe::UcxRead { .. } => return Ok(()),
        };
        let (key, sampled, detail) = single;
        self.add(key, sampled, detail, round);
        Ok(())
    }

    fn run_limit(
        &mut self,
        program: &'static str,
        size: usize,
        more: &[String],
        way: Way,
        round: u32,
    ) -> Result<(), String> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let mut arguments = vec![program.to_owned(), "--size".to_owned(), size.to_string()];
        arguments.extend_from_slice(more);
        let known = self.variants.get(&(program, size));
        if let Some(variant) = known.filter(|_| self.pace.is_quick) {
            arguments.extend(["--variant".to_owned(), variant.clone()]);
        }
        let line = limits.run(&arguments, self.pace.time)?;
        if let Some(variant) = &line.variant {
            self.variants.entry((program, size)).or_insert_with(|| variant.clone());
        }
        if program == "cache-line" {
            self.results.saw_line(line.sampled().median);
        }
        self.take_line(&line, way, round)
    }

    fn run_ucx_read(&mut self, api: Api, size: usize, round: u32) -> Result<(), String> {
        let (Some(ucx), Some(how)) = (&self.ucx_read, api.how()) else { return Ok(()) };
        let size = size.to_string();
        let arguments = ["--how", how, "--size", &size].map(str::to_owned);
        let line = ucx.run(&arguments, self.pace.time)?;
        self.take_line(&line, Way::Read, round)
    }

    /// Adds the output of a limit program as a run.
    fn take_line(&mut self, line: &Line, way: Way, round: u32) -> Result<(), String> {
        line.lines().for_each(|ns| self.results.saw_line(ns));
        let Some(key) = line.key(way) else {
            return Err("it printed a metric that is not known here".to_owned());
        };
        self.add(key, line.sampled(), Some(line.detail()), round);
        Ok(())
    }

    fn run_ucx(&mut self, question: Question, round: u32) -> Result<(), String> {
        let Some(ucx) = &self.ucx else { return Ok(()) };
        let Question { api, metric, size } = question;
        let known = (api.system(), metric, size);
        let with_tail = round == 0 || !self.pace.is_quick;
        let (sampled, ns) = ucx.run(question, self.pace.time, self.ucx_ns.get(&known).copied(), with_tail)?;
        self.ucx_ns.insert(known, ns);
        let detail = (metric != Metric::Rtt).then(|| "the mean of each run; ucx_perftest tells no more".to_owned());
        self.add(Key::plain(metric, size, api.system()), sampled, detail, round);
        Ok(())
    }

    fn add(&mut self, key: Key, sampled: Sampled, detail: Option<String>, round: u32) {
        self.results.add(key, Run { round, sampled, detail });
    }

    /// Derives g and n_half in each round.
    fn derive(&mut self) {
        for round in 0..self.pace.rounds {
            let weft = |metric| Key::plain(metric, SMALL, "weft");
            let rate = self.results.in_round(&weft(Metric::Rate).by(Way::RequestReply), round);
            if let Some(rate) = rate {
                let g = Sampled { median: 1e9 / rate.median, p99: 1e9 / rate.p99, mean: 1e9 / rate.mean, n: rate.n };
                let detail = format!("request and reply, window {WINDOW}");
                self.add(weft(Metric::LogpG), g, Some(detail), round);
            }
            if let Some((half, n)) = self.n_half(round) {
                let sampled = Sampled { median: half, p99: half, mean: half, n };
                let key = Key::plain(Metric::NHalf, 0, "weft");
                let detail =
                    "messages of this size reach half of the best bandwidth, between the sizes measured".to_owned();
                self.add(key, sampled, Some(detail), round);
            }
        }
    }

    /// The size at which half of the best bandwidth is reached, interpolated between the sizes measured.
    fn n_half(&self, round: u32) -> Option<(f64, usize)> {
        let at = |metric, size| self.results.in_round(&Key::plain(metric, size, "weft"), round);
        let sizes = super::plan::BANDWIDTH_SIZES;
        let point = |size: usize, s: Sampled, bytes: f64| (size as f64, s.median * bytes, s.n);
        let large: Vec<_> =
            sizes.iter().filter_map(|&size| Some(point(size, at(Metric::Bandwidth, size)?, 1.0))).collect();
        if large.len() < sizes.len() {
            return None;
        }
        let small = at(Metric::Rate, SMALL).map(|s| point(SMALL, s, SMALL as f64));
        let curve: Vec<(f64, f64, usize)> = small.into_iter().chain(large).collect();
        let n = curve.iter().map(|point| point.2).sum();
        let half = curve.iter().map(|point| point.1).fold(0.0, f64::max) / 2.0;
        let above = curve.iter().position(|point| point.1 >= half)?;
        let (size, bandwidth, _) = curve[above];
        let Some((size_below, bandwidth_below, _)) = above.checked_sub(1).map(|below| curve[below]) else {
            return Some((size, n));
        };
        let part = (half - bandwidth_below) / (bandwidth - bandwidth_below);
        Some((size_below * (size / size_below).powf(part), n))
    }
}

impl Results {
    /// The median over the rounds of `figure` applied to two series in one round.
    pub fn compare(&self, a: &Key, b: &Key, figure: impl Fn(Sampled, Sampled) -> f64) -> Option<f64> {
        let runs = &self.get(a)?.runs;
        median(runs.iter().filter_map(|run| Some(figure(run.sampled, self.in_round(b, run.round)?))))
    }
}

/// The probes in the order of a round: every second round runs backwards. A shared machine has two or three speeds and changes them
/// every few seconds, often in step with the programs on it; so neither of two neighbours gets the better speed each time.
pub fn in_round<T>(probes: &[T], round: u32) -> impl Iterator<Item = &T> {
    let count = probes.len();
    (0..count).map(move |at| if round % 2 == 0 { &probes[at] } else { &probes[count - 1 - at] })
}

/// How a round trip between processes that wait is named.
pub fn waiting_way(waiting: Waiting) -> (Way, &'static str) {
    match waiting {
        Waiting::Polls => (Way::Plain, "both sides poll"),
        Waiting::Waits => (Way::Waiting, "both sides wait, and spin while waits are short"),
        Waiting::Sleeps => (Way::Sleeping, "both sides wait, and sleep at once"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_round_goes_the_other_way_round() {
        let order = |round| in_round(&[1, 2, 3], round).copied().collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(2)], [vec![1, 2, 3], vec![3, 2, 1], vec![1, 2, 3]]);
        assert_eq!(in_round::<u32>(&[], 1).count(), 0);
    }
}
