//! Stamps: the moments of a request's way, noted by the two processes that it goes between, for whoever asks by [`trace`].
//!
//! Nothing is stamped unless somebody asks, and then for [`LEASE`] from each time that it is asked. All of a process's requests are
//! stamped while its *window* is open. Windows open at the same moments in all processes that are asked, each [`PERIOD`] by the
//! machine's clock, and close once [`WINDOW`] is over and [`MESSAGES_LEAST`] messages are through: so of a million a second one in 500
//! is stamped, by both sides, and of a few each one.
//!
//! [`trace`]: super::trace

use nix::sys::time::TimeValLike;
use nix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// For how long messages are stamped after somebody asked.
pub const LEASE: Duration = Duration::from_secs(2);

/// From one window to the next.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// How long a window is open at least.
pub(crate) const WINDOW: Duration = Duration::from_micros(200);

/// Messages of a window at least.
pub(crate) const MESSAGES_LEAST: u32 = 64;

/// Stamped messages that a bundle keeps, the last ones.
pub const KEPT_MOST: usize = 1024;

/// Flows that they are told of.
pub(crate) const FLOWS_MOST: usize = 64;

/// Requests that a bundle stamped, and how far they came. Moments are nanoseconds of the machine's clock (`CLOCK_MONOTONIC`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stamps {
    /// How many it stamped so far, those included that are not told any more.
    pub so_far: u64,
    /// The flows that they are of.
    pub flows: Vec<StampedFlow>,
    /// Those that the bundle sent and that were answered.
    pub asked: Vec<Asked>,
    /// Those that it answered.
    pub answered: Vec<Answered>,
}

/// The requests of one endpoint to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StampedFlow {
    /// The name of who asks.
    pub from: String,
    /// The name of who answers.
    pub to: String,
    /// Which flow between the two processes it is.
    pub number: u16,
}

/// What a request of remote memory does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads bytes, or a piece of them.
    Read,
    /// Writes bytes: a write that nothing else was under way beside.
    Write,
    /// Changes words and asks for the old values.
    Change,
}

/// A request, as who sent it saw it. Its slot is its own from `called_ns` to `seen_ns`, here and there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// One more than of the one stamped before it.
    pub number: u64,
    /// Index among the flows.
    pub flow: u32,
    /// Which of the flow's 32 requests under way.
    pub slot: u16,
    /// What it does to a region of the peer's, if it is one of [remote memory](crate::memory).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// The program called.
    pub called_ns: u64,
    /// The message was written.
    pub written_ns: u64,
    /// A poll found the reply.
    pub seen_ns: u64,
    /// The reply's handler had run.
    pub done_ns: u64,
}

/// A request, as who answered it saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answered {
    /// One more than of the one stamped before it.
    pub number: u64,
    /// Index among the flows.
    pub flow: u32,
    /// Which of the flow's 32 requests under way.
    pub slot: u16,
    /// The place of the region in the endpoint's table, if it was for one. Keys are told to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<u32>,
    /// A poll found the request.
    pub seen_ns: u64,
    /// The program replied.
    pub replied_ns: u64,
    /// The reply was written.
    pub written_ns: u64,
}

/// The machine's clock.
pub(crate) fn now() -> u64 {
    // It cannot fail. The clock begins with the machine's start, and 584 years fit.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.num_nanoseconds() as u64)
}

/// For how long from now on a bundle stamps messages, as the helper says, and what the bundle says of its window.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until: AtomicU64,
    is_open: AtomicBool,
}

// Relaxed, all of it: it only says when to begin and to end.
impl Lease {
    /// Somebody asks.
    pub fn renew(&self) {
        self.until.store(now() + LEASE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// When it ends, by the machine's clock.
    pub fn until(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    /// Whether messages are to be stamped.
    pub fn runs(&self) -> bool {
        let until = self.until();
        until != 0 && now() < until
    }

    /// Whether the bundle's window is open.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// The bundle opened or closed its window.
    pub fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
    }
}
