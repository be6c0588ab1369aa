//! How often a poll of the network tries to receive, and when it reads the clock.
//!
//! A bundle's poll takes a fifth as long as one try to receive, and delays a packet that arrives meanwhile. So a program that only
//! waits for a packet makes several tries per poll.

use std::time::Duration;
use weft_transport::Time;

/// Tries per poll after a poll that found nothing.
const TRIES: u32 = 4;

/// The time of a try, and of the rest of a poll, if the program does nothing else.
const TRY_MOST: Duration = Duration::from_nanos(450);
const BESIDE_MOST: Duration = Duration::from_nanos(250);

/// While fruitless polls follow one another, the clock is read once for this many. A poll takes about a microsecond, and nothing
/// needs a finer clock.
const CLOCK_EVERY: u32 = 2;

/// A bundle's recent polls of its network.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Polls since one found something.
    misses: u32,
    /// The program did nothing else between its last polls.
    is_spinning: bool,
    /// How many sends there had been at the last poll.
    sends: u32,
    /// How often this poll tries.
    tries: u32,
    /// When a poll last found something, or read the clock.
    now: Time,
}

impl Spin {
    /// Begins a poll. `is_alone`: the network is polled on every turn, and nothing comes through memory. `sends` counts the sends
    /// so far. Returns how often to try: more than once only if the last poll found nothing, nothing was sent since, and the
    /// program only polls.
    #[inline]
    pub fn begin(&mut self, is_alone: bool, sends: u32) -> u32 {
        let has_sent = std::mem::replace(&mut self.sends, sends) != sends;
        let only_waits = is_alone && self.is_spinning && self.misses > 0 && !has_sent;
        self.tries = if only_waits { TRIES } else { 1 };
        self.tries
    }

    /// The poll found something, which the kernel handed over at this time.
    #[inline]
    pub fn found(&mut self, at: Time) {
        (self.misses, self.now) = (0, at);
    }

    /// The poll found nothing. The clock is read every second time, or if the time `matters`.
    #[inline]
    pub fn missed(&mut self, matters: bool, clock: impl FnOnce() -> Time) {
        self.misses = self.misses.wrapping_add(1);
        if matters || self.misses % CLOCK_EVERY == 1 {
            let now = clock();
            // Work after the last packet must not count.
            let most = CLOCK_EVERY * (self.tries * TRY_MOST + BESIDE_MOST);
            self.is_spinning = self.misses > 1 && now.since(self.now) <= most;
            self.now = now;
        }
    }

    /// The time, as far as it is known.
    #[inline]
    pub fn now(&self) -> Time {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `looks` fruitless polls, `apart` nanoseconds after one another. Returns how often each tried, and how often the clock
    /// was read.
    fn looks(spin: &mut Spin, looks: u32, apart: u64, sends: impl Fn(u32) -> u32) -> (Vec<u32>, u32) {
        let (mut at, mut read) = (spin.now().as_nanos(), 0);
        let tries = (0..looks).map(|nth| {
            let tries = spin.begin(true, sends(nth));
            at += apart * u64::from(tries);
            spin.missed(false, || {
                read += 1;
                Time::from_nanos(at)
            });
            tries
        });
        (tries.collect(), read)
    }

    fn found() -> Spin {
        let mut spin = Spin::default();
        spin.begin(true, 0);
        spin.found(Time::from_nanos(1_000_000));
        spin
    }

    #[test]
    fn a_program_that_only_waits_tries_several_times_and_seldom_reads_the_clock() {
        let (tries, read) = looks(&mut found(), 9, 400, |_| 0);
        assert_eq!(tries, [1, 1, 1, 4, 4, 4, 4, 4, 4]);
        assert_eq!(read, 5);
    }

    #[test]
    fn a_program_that_works_between_polls_tries_once() {
        let (tries, _) = looks(&mut found(), 9, 1000, |_| 0);
        assert_eq!(tries, [1; 9]);
    }

    #[test]
    fn after_a_send_there_is_one_try() {
        let (tries, _) = looks(&mut found(), 8, 400, |nth| u32::from(nth >= 5));
        assert_eq!(tries, [1, 1, 1, 4, 4, 1, 4, 4]);
    }

    #[test]
    fn after_a_packet_or_beside_memory_there_is_one_try() {
        let mut spin = found();
        looks(&mut spin, 6, 400, |_| 0);
        assert_eq!(spin.begin(true, 0), 4);
        spin.found(Time::from_nanos(2_000_000));
        assert_eq!(spin.begin(true, 0), 1, "the program answers the packet first");
        let mut spin = found();
        looks(&mut spin, 6, 400, |_| 0);
        assert_eq!(spin.begin(false, 0), 1, "an answer through memory is pending");
    }

    #[test]
    fn the_clock_is_read_whenever_the_time_matters() {
        let mut spin = found();
        for nth in 1..5 {
            spin.begin(false, 0);
            spin.missed(true, || Time::from_nanos(1_000_000 + nth));
            assert_eq!(spin.now(), Time::from_nanos(1_000_000 + nth));
        }
    }
}
