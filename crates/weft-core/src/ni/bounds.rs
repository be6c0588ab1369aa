//! Bounds on the hosts that a network interface knows, and on what it keeps for them.

use super::{Link, Ni, Origin, Stranger};
use std::time::Duration;
use weft_transport::{SharedRoom, Time};
use weft_wire::Reason;

/// Largest number of strangers: hosts that called and have not shown yet that they know one of our endpoints and its
/// key. Above this, callers are ignored and call again. A caller is ignored too if its origin already holds as many
/// places as are free.
const STRANGERS_MOST: usize = 256;

/// Largest number of hosts that have, or had, a session. Above this, strangers get none.
const HOSTS_MOST: usize = 4096;

/// After this time a stranger that has shown nothing gives its place to another.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a network interface keeps for other hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Hosts that have, or had, a session: at most 4,096.
    pub hosts: usize,
    /// Hosts that called and have none yet: at most 256.
    pub strangers: usize,
    /// Bytes of memory for data that arrived from all hosts together and was not taken; `u64::MAX` is no bound. Data
    /// beyond that is dropped, and its stream is paused until there is room.
    pub held: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { hosts: HOSTS_MOST, strangers: STRANGERS_MOST, held: u64::MAX }
    }
}

impl<L: Link> Ni<L> {
    /// Sets the bounds. Call it before there is a host.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        let Bounds { hosts, strangers, held } = bounds;
        self.bounds = Bounds { hosts: hosts.min(HOSTS_MOST), strangers: strangers.min(STRANGERS_MOST), held };
        self.room = (held < u64::MAX).then(|| SharedRoom::new(held));
    }

    /// Whether another host may have sessions.
    pub fn has_room_for_host(&self) -> bool {
        self.hosts.count().saturating_sub(self.strangers.len() + self.closing) < self.bounds.hosts
    }

    /// Returns whether a stranger gets a place, which may be that of one whose time is up. No origin gets more places
    /// than stay free (the dynamic thresholds of Choudhury and Hahne, 1998), so an origin that takes all it can leaves
    /// half of the places to others.
    pub(super) fn make_place(&mut self, now: Time, origin: Origin) -> bool {
        let taken = self.strangers.iter().filter(|stranger| stranger.origin == origin).count();
        if taken < self.bounds.strangers.saturating_sub(self.strangers.len()) {
            return true;
        }
        let is_due =
            |s: &&Stranger| (taken == 0 || s.origin == origin) && (s.is_refused || now.since(s.since) >= PATIENCE);
        match self.strangers.iter().find(is_due).map(|stranger| stranger.id) {
            Some(id) => {
                self.close(id, Reason::NoRoom);
                true
            }
            None => false,
        }
    }
}
