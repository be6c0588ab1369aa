//! The seed's experiment with more endpoints than frames: clients on hosts of their own, and one server whose endpoints `weftd` serves.
//!
//! The network interfaces, the daemon's engine and the programs' ends of it are those that ship. Each has a core to itself, and a turn takes
//! as long as the instructions that were counted for what it did ([`Costs`]). `docs/design/contention.md` says what is modelled, and what is not.
//!
//! ```
//! use weft_sim::contention::{run, Config, Serving};
//!
//! let config = Config { serving: Serving::SingleThread, clients: 4, frames: 2, ..Config::default() };
//! let outcome = run(&config).expect("every request is answered once");
//! assert!(outcome.rate() > 0.0 && outcome.frames_most <= 2);
//! ```

mod client;
mod costs;
mod modes;
mod server;
mod wire;
mod world;

pub use costs::{Costs, Work};

use crate::histogram::Histogram;
use crate::network::Link;
use std::time::Duration;
use weft_daemon::Policy;

/// How the server is built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Serving {
    /// One endpoint for all clients: one virtual network.
    OneVn,
    /// One thread, with an endpoint for each client.
    SingleThread,
    /// A thread for each client, with an endpoint of its own.
    ManyThreads,
}

/// What a client sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Message {
    /// Requests of 16 bytes, and replies of 16 bytes.
    Small,
    /// Requests of 8 KiB, and replies of 8 bytes.
    Bulk,
}

impl Message {
    /// Bytes of a request's payload, behind its two arguments.
    pub(crate) fn payload(self) -> usize {
        match self {
            Message::Small => 8,
            Message::Bulk => 8 << 10,
        }
    }
}

/// A fault of a client's that the check of the answers must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// An answer is overlooked.
    Lose,
    /// An answer is counted twice.
    Repeat,
    /// An answer has other contents.
    Change,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Everything that is drawn by lot comes from it.
    pub seed: u64,
    /// How the server is built.
    pub serving: Serving,
    /// Clients, each on a host of its own, with 32 requests under way.
    pub clients: u32,
    /// The daemon's frames.
    pub frames: u32,
    /// How the daemon chooses the endpoint that gives its frame away.
    pub policy: Policy,
    /// What the clients send.
    pub message: Message,
    /// The links between hosts and a switch.
    pub link: Link,
    /// What everything costs.
    pub costs: Costs,
    /// The seed's writable state. Without it a thread that writes to an endpoint without a frame stands still until it has one.
    pub has_writable_state: bool,
    /// Without it: how long such a thread stands still before the daemon hears of its write. In the seed, the kernel copies the endpoint
    /// to its frame meanwhile, and others go on.
    pub upload: Duration,
    /// Before anything is counted: from when every client got its first answer.
    pub warms: Duration,
    /// For so long it is counted.
    pub lasts: Duration,
    /// A planted fault, and after how many answers it comes.
    pub plant: Option<(Plant, u64)>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 1,
            serving: Serving::SingleThread,
            clients: 16,
            frames: 96,
            policy: Policy::default(),
            message: Message::Small,
            link: Link::default(),
            costs: Costs::default(),
            has_writable_state: true,
            upload: Duration::ZERO,
            warms: Duration::from_millis(2),
            lasts: Duration::from_millis(10),
            plant: None,
        }
    }
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Requests of each client that were answered while it was counted.
    pub answered: Vec<u64>,
    /// For how long it was counted.
    pub lasts: Duration,
    /// Endpoints that were given a frame meanwhile.
    pub remapped: u64,
    /// The part of the daemon's instructions that went into that.
    pub remapping: f64,
    /// What the daemon did in the whole run.
    pub work: Work,
    /// The part of that time in which the daemon's core was busy.
    pub busy: f64,
    /// Records that were refused for now because their endpoint had no room.
    pub refused: u64,
    /// From the call that sends a request to its answer.
    pub round_trips: Histogram,
    /// Endpoints with a frame, at most.
    pub frames_most: usize,
    /// Packets that a queue of the network or a host's socket had no room for.
    pub dropped: u64,
    /// Equal for equal configurations, on every machine.
    pub hash: u64,
}

impl Outcome {
    /// Requests answered in a second, of all clients.
    pub fn rate(&self) -> f64 {
        self.answered.iter().sum::<u64>() as f64 / self.lasts.as_secs_f64()
    }

    /// Requests answered in a second, of one client.
    pub fn rate_of_each(&self) -> f64 {
        self.rate() / self.answered.len().max(1) as f64
    }

    /// The slowest client's rate, as a part of the mean.
    pub fn slowest(&self) -> f64 {
        let least = self.answered.iter().min().copied().unwrap_or_default() as f64;
        least / self.lasts.as_secs_f64() / self.rate_of_each().max(f64::MIN_POSITIVE)
    }

    /// Endpoints that were given a frame in a second.
    pub fn remappings(&self) -> f64 {
        self.remapped as f64 / self.lasts.as_secs_f64()
    }

    /// The round trips that are most frequent in their neighbourhood: one, or two if there are two kinds.
    pub fn modes(&self) -> Vec<Duration> {
        modes::modes(&self.round_trips)
    }
}

/// Why a run is not good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// So many requests were not answered in time.
    Unanswered(u64),
    /// So many answers came that nobody waited for, or with other contents.
    Strange(u64),
    /// So many requests came back.
    Returned(u64),
    /// More endpoints had a frame than there are.
    Frames(usize),
    /// A program broke the daemon's protocol.
    Violation,
    /// The server's endpoints could not be made.
    NoEndpoint,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Unanswered(count) => write!(f, "{count} requests were not answered"),
            Failure::Strange(count) => write!(f, "{count} answers were not those that were waited for"),
            Failure::Returned(count) => write!(f, "{count} requests came back"),
            Failure::Frames(count) => write!(f, "{count} endpoints had a frame, which is more than there are"),
            Failure::Violation => write!(f, "the daemon cut a program off"),
            Failure::NoEndpoint => write!(f, "the daemon made no endpoint for the server"),
        }
    }
}

impl std::error::Error for Failure {}

weft_wire::debug_says_display!(Failure);

/// Runs it, and checks that every request was answered once.
///
/// # Errors
/// What was not as it must be.
pub fn run(config: &Config) -> Result<Outcome, Failure> {
    world::World::new(config)?.run()
}
