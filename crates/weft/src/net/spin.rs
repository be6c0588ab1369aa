//! How often a look tries to receive, and when it reads the clock.
//!
//! A poll around a try takes a fifth as long as the try, and a packet that comes meanwhile lies there for as long. So who does nothing but
//! wait for one tries several times in a look.

use std::time::Duration;
use weft_transport::Time;

/// Tries of a look behind one that found nothing.
const TRIES: u32 = 4;

/// What a try takes, and a poll besides, if the program does nothing else.
const TRY_MOST: Duration = Duration::from_nanos(450);
const BESIDE_MOST: Duration = Duration::from_nanos(250);

/// Looks in a row that find nothing for which the clock is read once, while they follow one another: they last a microsecond each, and
/// nothing is timed more closely.
const CLOCK_EVERY: u32 = 2;

/// The looks of a bundle at its network.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Looks since one found something.
    misses: u32,
    /// The program did nothing else between its last polls.
    is_spinning: bool,
    /// How often something had been sent at the last look.
    sends: u32,
    /// How often this look tries.
    tries: u32,
    /// When a look last found something, or read the clock.
    now: Time,
}

impl Spin {
    /// A look begins. `is_alone`: the network is looked at on every poll, and nothing comes through memory; `sends` counts what was sent. Says
    /// how often to try: more than once only if the last look found nothing, nothing was sent since, and the program only polls.
    #[inline]
    pub fn begin(&mut self, is_alone: bool, sends: u32) -> u32 {
        let has_sent = std::mem::replace(&mut self.sends, sends) != sends;
        let only_waits = is_alone && self.is_spinning && self.misses > 0 && !has_sent;
        self.tries = if only_waits { TRIES } else { 1 };
        self.tries
    }

    /// The look found something, which came out of the kernel then.
    #[inline]
    pub fn found(&mut self, at: Time) {
        (self.misses, self.now) = (0, at);
    }

    /// The look found nothing. The clock is read for each second one, or if the time `matters`.
    #[inline]
    pub fn missed(&mut self, matters: bool, clock: impl FnOnce() -> Time) {
        self.misses = self.misses.wrapping_add(1);
        if matters || self.misses % CLOCK_EVERY == 1 {
            let now = clock();
            // What was done behind the last packet is not to count.
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

    /// So many looks that find nothing, each so many nanoseconds behind the one before: how often each tried, and how often the clock was read.
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
    fn who_does_nothing_but_wait_tries_several_times_and_seldom_reads_the_clock() {
        let (tries, read) = looks(&mut found(), 9, 400, |_| 0);
        assert_eq!(tries, [1, 1, 1, 4, 4, 4, 4, 4, 4]);
        assert_eq!(read, 5);
    }

    #[test]
    fn who_does_something_between_its_polls_tries_once() {
        let (tries, _) = looks(&mut found(), 9, 1000, |_| 0);
        assert_eq!(tries, [1; 9]);
    }

    #[test]
    fn who_sends_tries_once_behind_it() {
        let (tries, _) = looks(&mut found(), 8, 400, |nth| u32::from(nth >= 5));
        assert_eq!(tries, [1, 1, 1, 4, 4, 1, 4, 4]);
    }

    #[test]
    fn behind_a_packet_and_beside_memory_there_is_one_try() {
        let mut spin = found();
        looks(&mut spin, 6, 400, |_| 0);
        assert_eq!(spin.begin(true, 0), 4);
        spin.found(Time::from_nanos(2_000_000));
        assert_eq!(spin.begin(true, 0), 1, "who got a packet answers it");
        let mut spin = found();
        looks(&mut spin, 6, 400, |_| 0);
        assert_eq!(spin.begin(false, 0), 1, "memory waits meanwhile");
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
