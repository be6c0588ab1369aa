//! What a side may have under way because the other's host cannot read all that comes.

use super::Channel;
use crate::congestion::Congestion;
use crate::memory::Memory;
use crate::time::Time;

/// What the two sides may have under way because a host cannot read all that comes: [`Frame::Share`](weft_wire::frame::Frame::Share).
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// What the peer said last, and until when that holds.
    pub share: u32,
    pub until: Time,
    /// What the peer is told.
    pub grants: Option<u32>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares { share: u32::MAX, until: Time::default(), grants: None }
    }
}

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// Tells the peer with the next acknowledgements how much it may have under way, so that this host can read what all peers
    /// together have; `None` for as much as it wants. It holds for [`SHARE_LASTS`](weft_wire::frame::SHARE_LASTS), and so is to be said for as long as it should.
    #[inline]
    pub fn grant(&mut self, bytes: Option<u32>) {
        if bytes.is_some() || self.shares.is_some() {
            self.shares.get_or_insert_default().grants = bytes;
        }
    }

    /// A share that was not told again for long holds no more.
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
