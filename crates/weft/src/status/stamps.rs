//! Stamps: timestamps along a request's path, recorded by its two processes for clients that call [`trace`].
//!
//! Requests are stamped only for [`LEASE`] after a client has asked. A process stamps all requests while its *window* is open.
//! Windows open at the same moments in all asked processes, once every [`PERIOD`] of the machine's clock. They close when
//! [`WINDOW`] is over and [`MESSAGES_LEAST`] messages have passed. So at a million requests a second, one in 500 is stamped, by
//! both sides; at a few a second, every one.
//!
//! [`trace`]: super::trace

use nix::sys::time::TimeValLike;
use nix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long messages are stamped after a client has asked.
pub const LEASE: Duration = Duration::from_secs(2);

/// From one window to the next.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// The shortest time that a window is open.
pub(crate) const WINDOW: Duration = Duration::from_micros(200);

/// The smallest number of messages of a window.
pub(crate) const MESSAGES_LEAST: u32 = 64;

/// Number of stamped messages that a bundle keeps: the last ones.
pub const KEPT_MOST: usize = 1024;

/// Largest number of flows in a report.
pub(crate) const FLOWS_MOST: usize = 64;

/// Requests that a bundle stamped, with the times of their stages. Moments are nanoseconds of the machine's clock
/// (`CLOCK_MONOTONIC`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stamps {
    /// Number of requests stamped so far, including those no longer kept.
    pub so_far: u64,
    /// The flows that they belong to.
    pub flows: Vec<StampedFlow>,
    /// Those that the bundle sent and that were answered.
    pub asked: Vec<Asked>,
    /// Those that it answered.
    pub answered: Vec<Answered>,
}

/// The requests of one endpoint to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StampedFlow {
    /// The name of the requesting endpoint.
    pub from: String,
    /// The name of the answering endpoint.
    pub to: String,
    /// The flow's number between the two processes.
    pub number: u16,
}

/// What a request of remote memory does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads bytes, or a piece of them.
    Read,
    /// Writes bytes. Only recorded if nothing else was under way.
    Write,
    /// Changes words and asks for the old values.
    Change,
}

/// A request, as its sender saw it. It owns its slot from `called_ns` to `seen_ns`, on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// One more than of the one stamped before it.
    pub number: u64,
    /// Index among the flows.
    pub flow: u32,
    /// Which of the flow's 32 requests under way.
    pub slot: u16,
    /// The operation on a region of the peer, if it is a request of [remote memory](crate::memory).
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

/// A request, as the answering process saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answered {
    /// One more than of the one stamped before it.
    pub number: u64,
    /// Index among the flows.
    pub flow: u32,
    /// Which of the flow's 32 requests under way.
    pub slot: u16,
    /// The place of the region in the endpoint's table, if the request was for a region. Keys are never shown.
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
    // Cannot fail. The clock starts at boot, and 64 bits last 584 years.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.num_nanoseconds() as u64)
}

/// How long a bundle stamps messages, set by the helper, and whether its window is open, set by the bundle.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until: AtomicU64,
    is_open: AtomicBool,
}

// Relaxed everywhere: it only decides when to begin and to end.
impl Lease {
    /// A client has asked.
    pub fn renew(&self) {
        self.until.store(now() + LEASE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// When the lease ends, by the machine's clock.
    pub fn until(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    /// Whether messages should be stamped.
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
