//! The results, as written to JSON and used by tables and pictures.

use super::plan::{name_of, name_of_message, Part, Run};
use super::real::Real;
use crate::bench::goals::Goal;
use crate::bench::json::Judged;
use serde::Serialize;
use std::collections::BTreeSet;
use weft_sim::contention::{Message, Outcome, Serving};

/// All runs.
#[derive(Debug, Serialize)]
pub struct Results {
    seed: u64,
    weft: &'static str,
    pub rows: Vec<Row>,
    /// The runs with real processes, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real: Option<Real>,
    goals: Vec<Judged>,
}

/// One run.
#[derive(Debug, Serialize)]
pub struct Row {
    pub part: Part,
    pub serving: &'static str,
    pub message: &'static str,
    pub clients: u32,
    pub frames: u32,
    pub has_writable_state: bool,
    /// Without the writable state: how long a thread waits before the daemon hears of its write.
    pub upload_ns: u64,
    /// Instructions per remapping.
    pub remapping_instructions: u64,
    pub requests_per_second: f64,
    pub requests_per_second_of_each: f64,
    /// Relative to the mean.
    pub slowest_client: f64,
    pub remappings_per_second: f64,
    /// The share of the daemon's instructions spent on remapping.
    pub remapping_share: f64,
    pub daemon_busy: f64,
    pub refused: u64,
    pub packets_dropped: u64,
    pub round_trip_p50_ns: u64,
    pub round_trip_p99_ns: u64,
    pub round_trip_modes_ns: Vec<u64>,
    /// The largest round trip of each class, and its count.
    pub round_trips: Vec<(u64, u32)>,
    /// The same on every machine.
    pub hash: String,
}

impl Results {
    pub fn new(seed: u64) -> Results {
        Results { seed, weft: env!("CARGO_PKG_VERSION"), rows: Vec::new(), real: None, goals: Vec::new() }
    }

    pub fn add(&mut self, run: &Run, outcome: &Outcome) {
        let config = &run.config;
        let nanos = |time: std::time::Duration| time.as_nanos() as u64;
        let quantile = |part| nanos(outcome.round_trips.quantile(part));
        self.rows.push(Row {
            part: run.part,
            serving: name_of(config.serving),
            message: name_of_message(config.message),
            clients: config.clients,
            frames: config.frames,
            has_writable_state: config.has_writable_state,
            upload_ns: nanos(config.upload),
            remapping_instructions: config.costs.remapping,
            requests_per_second: outcome.rate(),
            requests_per_second_of_each: outcome.rate_of_each(),
            slowest_client: outcome.slowest(),
            remappings_per_second: outcome.remappings(),
            remapping_share: outcome.remapping,
            daemon_busy: outcome.busy,
            refused: outcome.refused,
            packets_dropped: outcome.dropped,
            round_trip_p50_ns: quantile(5000),
            round_trip_p99_ns: quantile(9900),
            round_trip_modes_ns: outcome.modes().into_iter().map(nanos).collect(),
            round_trips: outcome.round_trips.classes().map(|(top, count)| (nanos(top), count)).collect(),
            hash: format!("{:016x}", outcome.hash),
        });
    }

    /// Stores the goals, and whether they are reached.
    pub fn judge(&mut self, goals: &[Goal]) {
        self.goals = goals.iter().map(Judged::from).collect();
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The runs of a part.
    pub fn of(&self, part: Part) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.part == part)
    }

    /// A run of a part.
    pub fn get(&self, part: Part, serving: Serving, message: Message, clients: u32, frames: u32) -> Option<&Row> {
        let is_it = |row: &&Row| {
            (row.serving, row.message) == (name_of(serving), name_of_message(message))
                && (row.clients, row.frames) == (clients, frames)
        };
        self.of(part).find(is_it)
    }

    /// The numbers of clients in a part, each once.
    pub fn clients(&self, part: Part) -> Vec<u32> {
        each(self.of(part).map(|row| row.clients))
    }

    /// The durations of an upload in the runs without the writable state.
    pub fn uploads(&self) -> Vec<u64> {
        each(self.of(Part::Ablation).map(|row| row.upload_ns))
    }

    /// A run without the writable state.
    pub fn without_writable_state(&self, serving: Serving, clients: u32, upload_ns: u64) -> Option<&Row> {
        let mut rows = self.of(Part::Ablation);
        rows.find(|row| (row.serving, row.clients, row.upload_ns) == (name_of(serving), clients, upload_ns))
    }
}

/// Each value once, sorted.
pub fn each<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<BTreeSet<_>>().into_iter().collect()
}
