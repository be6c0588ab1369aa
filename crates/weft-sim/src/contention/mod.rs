//! The seed's experiment with more endpoints than frames: clients on hosts of their own, and a server whose endpoints `weftd`
//! serves.
//!
//! The network interfaces, the daemon's engine and the programs' ends are the code that ships. Each has a core to itself. A turn
//! takes as long as the instructions counted for its work ([`Costs`]). `docs/design/contention.md` says what is modelled and what
//! is not.
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

/// A fault in a client, which the check of the answers must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// An answer is dropped.
    Lose,
    /// An answer is counted twice.
    Repeat,
    /// An answer's contents are changed.
    Change,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The seed of everything random.
    pub seed: u64,
    /// How the server is built.
    pub serving: Serving,
    /// Clients, each on a host of its own, with 32 requests under way.
    pub clients: u32,
    /// The daemon's frames.
    pub frames: u32,
    /// How the daemon picks the endpoint that loses its frame.
    pub policy: Policy,
    /// What the clients send.
    pub message: Message,
    /// The links between hosts and a switch.
    pub link: Link,
    /// What each part of a turn costs.
    pub costs: Costs,
    /// Whether there is the seed's writable state. Without it, a thread that writes to an endpoint without a frame waits until it
    /// has one.
    pub has_writable_state: bool,
    /// Without the writable state: how long such a thread waits before the daemon hears of its write. In the seed, the kernel
    /// copies the endpoint to its frame in that time, and other threads go on.
    pub upload: Duration,
    /// Warm-up, which begins when every client has got its first answer.
    pub warms: Duration,
    /// How long the run is measured after the warm-up.
    pub lasts: Duration,
    /// A planted fault, and after how many answers it happens.
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

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Requests of each client that were answered in the measured time.
    pub answered: Vec<u64>,
    /// The measured time.
    pub lasts: Duration,
    /// How often an endpoint was given a frame in that time.
    pub remapped: u64,
    /// The share of the daemon's instructions spent on that.
    pub remapping: f64,
    /// The daemon's work in the whole run.
    pub work: Work,
    /// The share of the measured time in which the daemon's core was busy.
    pub busy: f64,
    /// Records that were refused for now because their endpoint had no room.
    pub refused: u64,
    /// Time from the call that sends a request to its answer.
    pub round_trips: Histogram,
    /// The most endpoints that had a frame at once.
    pub frames_most: usize,
    /// Packets dropped because a queue of the network or a host's socket was full.
    pub dropped: u64,
    /// Equal for equal configurations, on every machine.
    pub hash: u64,
}

impl Outcome {
    /// Requests answered per second, of all clients.
    pub fn rate(&self) -> f64 {
        self.answered.iter().sum::<u64>() as f64 / self.lasts.as_secs_f64()
    }

    /// Requests answered per second, of one client.
    pub fn rate_of_each(&self) -> f64 {
        self.rate() / self.answered.len().max(1) as f64
    }

    /// The slowest client's rate, as a part of the mean.
    pub fn slowest(&self) -> f64 {
        let least = self.answered.iter().min().copied().unwrap_or_default() as f64;
        least / self.lasts.as_secs_f64() / self.rate_of_each().max(f64::MIN_POSITIVE)
    }

    /// How often per second an endpoint was given a frame.
    pub fn remappings(&self) -> f64 {
        self.remapped as f64 / self.lasts.as_secs_f64()
    }

    /// The modes of the round trips: one or two.
    pub fn modes(&self) -> Vec<Duration> {
        modes::modes(&self.round_trips)
    }
}

/// Why a run failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Requests that were not answered in time.
    Unanswered(u64),
    /// Answers that no request was waiting for, or with wrong contents.
    Strange(u64),
    /// Requests that came back.
    Returned(u64),
    /// The most endpoints that had a frame at once: more than there are frames.
    Frames(usize),
    /// A program broke the daemon's protocol, and the daemon cut it off.
    Violation,
    /// The server's endpoints could not be made.
    NoEndpoint,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Unanswered(count) => write!(f, "{count} requests were not answered"),
            Failure::Strange(count) => write!(f, "{count} answers were unexpected or had wrong contents"),
            Failure::Returned(count) => write!(f, "{count} requests came back"),
            Failure::Frames(count) => write!(f, "{count} endpoints had a frame at once, more than there are frames"),
            Failure::Violation => write!(f, "the daemon cut a program off"),
            Failure::NoEndpoint => write!(f, "the daemon made no endpoint for the server"),
        }
    }
}

impl std::error::Error for Failure {}

weft_wire::debug_says_display!(Failure);

/// Runs the experiment, and checks that every request was answered once.
///
/// # Errors
/// The first check that failed.
pub fn run(config: &Config) -> Result<Outcome, Failure> {
    world::World::new(config)?.run()
}
