//! The end of a bundle: it sends its last messages, and waits for a limited time until they are out.

use super::wait::NAP_MOST;
use super::{Bundle, Threads};
use std::time::{Duration, Instant};

impl<H: Threads> Bundle<H> {
    /// Ends the bundle, as dropping it does, but waits for `most` at most. Returns the number of sent messages that may be lost:
    /// messages that are not in memory shared with the peer and that the peer's host has not acknowledged, and messages that came
    /// back meanwhile. It may also count a few earlier messages whose reception the peer has not confirmed yet. Blocks.
    ///
    /// A bundle that ends frees its endpoints, so that messages that arrive for them go back to their senders. It tells peers which
    /// messages it has taken, sends its replies and the messages queued in tagged endpoints, and reports the requests that ended
    /// without a reply. The receiving programs may not have taken its messages yet when it is gone; [`Bundle::drain`] waits for
    /// that. A dropped bundle waits for 3 s at most, or for the time set by `WEFT_LINGER` or
    /// [`Settings::linger`](crate::Settings::linger). It does not wait at all while its thread panics, or in a forked child.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weft::{Bundle, Node};
    ///
    /// let node = Node::new()?;
    /// let bundle = Bundle::new(&node)?;
    /// // ... messages to peers ...
    /// let lost = bundle.close(Duration::from_secs(10));
    /// assert_eq!(lost, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(mut self, most: Duration) -> u64 {
        self.end(most)
    }

    /// Sends the last messages. Later calls do nothing.
    fn end(&mut self, most: Duration) -> u64 {
        if std::mem::replace(&mut self.has_ended, true) || self.life.is_over() || std::thread::panicking() {
            return 0;
        }
        self.faces.am.has_ended = true;
        let lost_before = self.faces.tagged.lost();
        for endpoint in self.faces.endpoints() {
            // Fails for an endpoint that is moving to another bundle, and lives on there.
            let _ = self.free(endpoint);
        }
        let (begin, unclaimed_before) = (Instant::now(), self.faces.unclaimed);
        let mut naps = None;
        while !self.has_said_all() && begin.elapsed() < most {
            self.nap(&mut naps, |_| NAP_MOST, most.saturating_sub(begin.elapsed()));
        }
        self.end_naps(naps);
        let unsent = self.core.state().queued() + self.faces.unsent() as u64;
        // Messages that came back meanwhile, from lost peers, belong to endpoints that no longer exist.
        let came_back = self.faces.unclaimed.wrapping_sub(unclaimed_before);
        let left = unsent + came_back + (self.faces.tagged.lost() - lost_before) + self.home.say_goodbye();
        self.home.node().count_unsettled(left);
        left
    }

    /// Sends what is left, as far as there is room. Returns true if nothing is left and other hosts have acknowledged everything.
    fn has_said_all(&mut self) -> bool {
        if self.signals.are_raised() {
            self.poll_seldom();
        }
        let is_pushed = self.core.state_mut().flush_all() && !self.faces.are_closing();
        let has_come = self.home.flush_network() && self.home.is_acknowledged();
        is_pushed && (has_come || self.home.has_lost_its_sockets())
    }
}

impl<H: Threads> Drop for Bundle<H> {
    fn drop(&mut self) {
        if self.life.is_over() {
            return;
        }
        self.end(self.linger);
        for (to, back) in self.core.state_mut().abandon_guests() {
            self.home.node().office().carry_back(to, back);
        }
    }
}
