//! How shared memory and the network share a bundle's polling time while an answer through memory is pending.
//!
//! A round trip over UDP keeps the kernel busy all the time, first on one processor and then on the other. A round trip through
//! memory needs both processors. If the network were polled whenever it may have a packet, it would take all the time: a round trip
//! through memory beside one over UDP took 13 times as long as alone. So memory gets as much time as it was kept waiting.

use std::time::Duration;
use weft_transport::Time;

/// The network never waits longer than this at a time. It does not wait for an answer that takes longer: that peer is computing.
const WAIT_MOST: Duration = Duration::from_micros(20);

/// A bundle's account of time owed. Time is counted in parts, the intervals between two checks.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// When the last part ended. `None` while no answer through memory is pending.
    at: Option<Time>,
    /// How many sends to other hosts there had been by then.
    sends: u32,
    /// Time owed to shared-memory polling.
    owed: Duration,
    /// How long the pending answer has taken so far.
    silent: Duration,
    /// When the network was last polled.
    looked_at: Time,
}

impl Shares {
    /// No answer through memory is pending, or the network must be polled for another reason.
    #[inline]
    pub fn close(&mut self) {
        self.at = None;
    }

    /// Whether an answer through memory was pending at the end of the last part.
    #[inline]
    pub fn are_open(&self) -> bool {
        self.at.is_some()
    }

    /// Ends a part, at whose end an answer through memory is pending. `went_on`: an answer came meanwhile. `sends` counts sends to
    /// other hosts. Returns whether the network should wait for another part.
    pub fn is_memorys_turn(&mut self, now: Time, went_on: bool, sends: u32) -> bool {
        let Some(at) = self.at else {
            *self = Shares { at: Some(now), sends, looked_at: now, ..Shares::default() };
            return false;
        };
        let passed = now.since(at);
        self.silent = if went_on { Duration::ZERO } else { self.silent + passed };
        if self.silent >= WAIT_MOST {
            self.owed = Duration::ZERO;
        } else if went_on && sends == self.sends {
            self.owed = self.owed.saturating_sub(passed);
        } else {
            self.owed = (self.owed + passed).min(WAIT_MOST);
        }
        (self.at, self.sends) = (Some(now), sends);
        let is_memorys = !self.owed.is_zero() && now.since(self.looked_at) < WAIT_MOST;
        if !is_memorys {
            self.looked_at = now;
        }
        is_memorys
    }

    /// The network was busy until now.
    pub fn end_networks_turn(&mut self, now: Time, sends: u32) {
        if let Some(at) = self.at.replace(now) {
            self.owed = (self.owed + now.since(at)).min(WAIT_MOST);
            self.sends = sends;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that ends at a microsecond.
    fn part(shares: &mut Shares, at: u64, went_on: bool) -> bool {
        shares.is_memorys_turn(Time::from_nanos(at * 1000), went_on, 0)
    }

    #[test]
    fn memory_gets_as_much_time_as_it_was_kept_waiting() {
        let mut shares = Shares::default();
        assert!(!part(&mut shares, 100, true), "nothing is owed at first");
        shares.end_networks_turn(Time::from_nanos(103_000), 0);
        assert!(part(&mut shares, 104, false), "and it waits on");
        for at in 105..108 {
            assert!(part(&mut shares, at, true), "at {at}");
        }
        assert!(!part(&mut shares, 108, true), "four microseconds for four");
        assert!(!part(&mut shares, 109, true));
    }

    #[test]
    fn a_part_in_which_something_was_sent_is_the_networks() {
        let mut shares = Shares::default();
        assert!(!part(&mut shares, 100, true));
        assert!(shares.is_memorys_turn(Time::from_nanos(104_000), true, 1));
        assert!(shares.is_memorys_turn(Time::from_nanos(107_000), true, 1));
        assert!(!shares.is_memorys_turn(Time::from_nanos(108_000), true, 1));
    }

    #[test]
    fn the_network_waits_for_no_answer_that_took_long() {
        let mut shares = Shares::default();
        assert!(!part(&mut shares, 100, true));
        let waits: Vec<bool> = (101..160).map(|at| part(&mut shares, at, false)).collect();
        assert_eq!(waits.iter().filter(|waits| **waits).count(), 19);
        assert!(
            waits[19..].iter().all(|waits| !waits),
            "20 µs after the last answer memory's peer computes: {waits:?}"
        );
        assert!(!part(&mut shares, 160, true), "a late answer is owed nothing");
    }

    #[test]
    fn the_network_is_polled_in_time_whatever_is_owed() {
        let mut shares = Shares::default();
        assert!(!part(&mut shares, 100, true));
        // Each part sends something, so every part counts as the network's.
        let looks =
            (1..=100).filter(|nth| !shares.is_memorys_turn(Time::from_nanos((100 + nth) * 1000), true, *nth as u32));
        assert_eq!(looks.collect::<Vec<_>>(), [20, 40, 60, 80, 100]);
    }

    #[test]
    fn without_a_pending_answer_nothing_is_owed() {
        let mut shares = Shares::default();
        assert!(!part(&mut shares, 100, true));
        shares.end_networks_turn(Time::from_nanos(110_000), 1);
        assert!(shares.are_open());
        shares.close();
        assert!(!shares.are_open());
        shares.end_networks_turn(Time::from_nanos(120_000), 2);
        assert!(!part(&mut shares, 121, true));
    }
}
