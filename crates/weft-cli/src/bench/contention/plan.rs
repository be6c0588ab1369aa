//! The runs, and their order.

use std::time::Duration;
use weft_sim::contention::{Config, Costs, Message, Serving};

/// Few frames, and as many as the daemon has by default: the seed's numbers.
pub const FEW: u32 = 8;
pub const ENOUGH: u32 = 96;

/// Numbers of clients, as in the seed; with nine, one endpoint has no frame.
const CLIENTS: [u32; 10] = [1, 2, 4, 8, 9, 12, 16, 24, 32, 64];
const QUICK_CLIENTS: [u32; 6] = [1, 4, 8, 9, 16, 64];

/// The most clients of figures 6 and 7.
pub const MOST: u32 = 64;

/// Clients of runs with many more endpoints than frames: 32 and 128 per frame.
pub const CROWDS: [u32; 2] = [256, 1024];

/// Prices of a remapping besides the counted one, in answered requests. The price of 0 is the first control.
const PRICES: [u64; 4] = [0, 1, 10, 100];

/// Instructions of the daemon for one request and its answer if all endpoints have frames.
pub const REQUEST: u64 = 1850;

/// The duration of an upload in the seed, in requests: 250 remappings a second, 78,000 requests a second.
const UPLOAD_REQUESTS: u64 = 312;

/// A part of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Figures 6 and 7 of the paper: up to 64 clients.
    Figures,
    /// 256 and 1,024 clients.
    Crowds,
    /// Remappings that cost nothing, or more than was counted.
    Prices,
    /// Without the writable state: a write waits for a frame.
    Ablation,
    /// Processes of this machine.
    Real,
}

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    Full,
    Quick,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    pub part: Part,
    pub config: Config,
}

impl Run {
    /// Its text in the progress bar.
    pub fn title(&self) -> String {
        let Config { serving, clients, frames, message, .. } = self.config;
        format!("{}, {clients} clients, {frames} frames, {}", name_of(serving), name_of_message(message))
    }
}

/// The seed's name for it.
pub fn name_of(serving: Serving) -> &'static str {
    match serving {
        Serving::OneVn => "OneVN",
        Serving::SingleThread => "ST",
        Serving::ManyThreads => "MT",
    }
}

pub fn name_of_message(message: Message) -> &'static str {
    match message {
        Message::Small => "small",
        Message::Bulk => "bulk",
    }
}

/// The five configurations of the seed.
pub const CONFIGURATIONS: [(Serving, u32); 5] = [
    (Serving::OneVn, ENOUGH),
    (Serving::SingleThread, FEW),
    (Serving::SingleThread, ENOUGH),
    (Serving::ManyThreads, FEW),
    (Serving::ManyThreads, ENOUGH),
];

/// Servers with an endpoint for each client.
pub const BOTH: [Serving; 2] = [Serving::SingleThread, Serving::ManyThreads];

/// All simulated runs of these parts, or of all parts.
pub fn runs(extent: Extent, seed: u64, parts: &[Part]) -> Vec<Run> {
    let mut runs = figures(extent);
    runs.extend(crowds(extent));
    runs.extend(prices());
    runs.extend(ablation(extent));
    runs.retain(|run| parts.is_empty() || parts.contains(&run.part));
    runs.iter_mut().for_each(|run| {
        run.config.seed = seed;
        (run.config.warms, run.config.lasts) = times(extent, &run.config);
    });
    runs
}

/// The numbers of clients of figures 6 and 7.
fn clients(extent: Extent) -> &'static [u32] {
    match extent {
        Extent::Full => &CLIENTS,
        Extent::Quick => &QUICK_CLIENTS,
    }
}

fn config(serving: Serving, clients: u32, frames: u32, message: Message) -> Config {
    Config { serving, clients, frames, message, ..Config::default() }
}

fn figures(extent: Extent) -> Vec<Run> {
    let mut runs = Vec::new();
    for message in [Message::Small, Message::Bulk] {
        for &clients in clients(extent) {
            let of = |(serving, frames)| config(serving, clients, frames, message);
            runs.extend(CONFIGURATIONS.map(|configuration| Run { part: Part::Figures, config: of(configuration) }));
        }
    }
    runs
}

fn crowds(extent: Extent) -> Vec<Run> {
    let mut runs = Vec::new();
    for clients in CROWDS {
        for message in [Message::Small, Message::Bulk] {
            if message == Message::Bulk && extent == Extent::Quick {
                continue;
            }
            for (serving, frames) in BOTH.into_iter().flat_map(|serving| [FEW, clients].map(|frames| (serving, frames)))
            {
                runs.push(Run { part: Part::Crowds, config: config(serving, clients, frames, message) });
            }
        }
    }
    runs
}

fn prices() -> Vec<Run> {
    let counted = Costs::default();
    let run = |serving, frames, remapping| {
        let costs = Costs { remapping, ..counted };
        Run { part: Part::Prices, config: Config { costs, ..config(serving, MOST, frames, Message::Small) } }
    };
    let mut prices = PRICES.map(|price| price * REQUEST).to_vec();
    prices.push(counted.remapping);
    prices.sort_unstable();
    let few = prices.iter().flat_map(|price| BOTH.map(|serving| run(serving, FEW, *price)));
    let mut runs: Vec<Run> = few.collect();
    runs.extend(BOTH.map(|serving| run(serving, ENOUGH, counted.remapping)));
    runs
}

fn ablation(extent: Extent) -> Vec<Run> {
    let upload = Duration::from_nanos(UPLOAD_REQUESTS * REQUEST * 1000 / Costs::default().per_microsecond);
    let mut runs = Vec::new();
    for &clients in clients(extent) {
        for (serving, upload) in
            [(BOTH[0], Duration::ZERO), (BOTH[0], upload), (BOTH[1], Duration::ZERO), (BOTH[1], upload)]
        {
            let config = Config { has_writable_state: false, upload, ..config(serving, clients, FEW, Message::Small) };
            runs.push(Run { part: Part::Ablation, config });
        }
    }
    runs
}

/// The warm-up and duration of a run: long enough for all clients to get an equal share if nothing prevents it.
fn times(extent: Extent, config: &Config) -> (Duration, Duration) {
    let rounds = config.clients.div_ceil(MOST);
    // With longer runs, bulk transfers of the largest crowd would take minutes.
    let rounds = if config.message == Message::Bulk { rounds.min(CROWDS[0] / MOST) } else { rounds };
    let (warms, lasts) = match (config.message, extent) {
        (Message::Small, Extent::Full) => (20, 40),
        (Message::Small, Extent::Quick) => (5, 10),
        (Message::Bulk, Extent::Full) => (50, 100),
        (Message::Bulk, Extent::Quick) => (20, 40),
    };
    (Duration::from_millis((warms * rounds).into()), Duration::from_millis((lasts * rounds).into()))
}
