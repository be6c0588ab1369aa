//! Shares: limits on bytes in flight that a host announces when it cannot keep up with all its peers.

use super::Channel;
use crate::congestion::Congestion;
use crate::memory::Memory;
use crate::time::Time;

/// The announced limits of the two sides: [`Frame::Share`](weft_wire::frame::Frame::Share).
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// The limit that the peer announced last, and how long it holds.
    pub share: u32,
    pub until: Time,
    /// The limit that this side announces.
    pub grants: Option<u32>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares { share: u32::MAX, until: Time::default(), grants: None }
    }
}

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// Announces, with the next acknowledgements, how much the peer may have in flight, so that this host can read what
    /// all peers together send. `None` lifts the limit. A limit holds for
    /// [`SHARE_LASTS`](weft_wire::frame::SHARE_LASTS), so it must be repeated for as long as it should apply.
    #[inline]
    pub fn grant(&mut self, bytes: Option<u32>) {
        if bytes.is_some() || self.shares.is_some() {
            self.shares.get_or_insert_default().grants = bytes;
        }
    }

    /// Lifts a limit that was not repeated in time.
    #[cold]
    pub(super) fn settle_shares(&mut self, now: Time) {
        let Some(shares) = &mut self.shares else { return };
        if shares.until <= now {
            shares.share = u32::MAX;
            if shares.grants.is_none() {
                self.shares = None;
            }
        }
    }
}
