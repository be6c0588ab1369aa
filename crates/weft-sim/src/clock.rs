//! Hosts' clocks, which differ.

use std::time::Duration;
use weft_transport::Time;

/// What happens to a host's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockChange {
    /// From now on it gains this many nanoseconds per millisecond (parts per million), or loses them.
    Skew(i32),
    /// It jumps ahead.
    Ahead(Duration),
    /// It jumps back by this. Its readers are promised a time that never goes back, so they see it stand still for as long.
    Back(Duration),
    /// It stands still for this long, while everything else goes on.
    Freeze(Duration),
}

/// One host's clock, as a function of simulated time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When the last change was, and what the clock said.
    base: u64,
    said: u64,
    ppm: i32,
    /// It shows the same time until then.
    still_until: u64,
}

impl Clock {
    pub fn new(start: Time, ppm: i32) -> Clock {
        Clock { base: 0, said: start.as_nanos(), ppm, still_until: 0 }
    }

    pub fn change(&mut self, now: u64, change: ClockChange) {
        let said = self.at(now).as_nanos();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        (self.base, self.said) = (now.max(self.still_until), said);
        match change {
            ClockChange::Skew(ppm) => self.ppm = ppm.clamp(-100_000, 100_000),
            ClockChange::Ahead(by) => self.said = said.saturating_add(nanos(by)),
            ClockChange::Back(by) | ClockChange::Freeze(by) => {
                self.still_until = now.saturating_add(nanos(by));
                self.base = self.base.max(self.still_until);
            }
        }
    }

    /// The clock's time at `now`.
    #[inline]
    pub fn at(&self, now: u64) -> Time {
        let passed = now.saturating_sub(self.base.max(self.still_until));
        let ticks = match self.ppm {
            0 => passed,
            _ => (u128::from(passed) * self.ticks() / 1_000_000) as u64,
        };
        Time::from_nanos(self.said.saturating_add(ticks))
    }

    /// The first moment at which the clock shows at least this.
    #[inline]
    pub fn when(&self, local: Time) -> u64 {
        let ahead = local.as_nanos().saturating_sub(self.said);
        let takes = match self.ppm {
            0 => ahead,
            _ => (u128::from(ahead) * 1_000_000).div_ceil(self.ticks()) as u64,
        };
        self.base.max(self.still_until).saturating_add(takes)
    }

    /// Nanoseconds of its own in a simulated millisecond.
    fn ticks(&self) -> u128 {
        1_000_000u128.saturating_add_signed(i128::from(self.ppm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_gains_jumps_stands_still_and_never_goes_back() {
        let second = Duration::from_secs(1);
        let mut clock = Clock::new(Time::from_nanos(5_000_000_000), 500);
        assert_eq!(clock.at(2_000_000_000), Time::from_nanos(7_001_000_000));
        clock.change(2_000_000_000, ClockChange::Skew(0));
        clock.change(2_000_000_000, ClockChange::Ahead(second));
        assert_eq!(clock.at(2_000_000_000), Time::from_nanos(8_001_000_000));
        clock.change(3_000_000_000, ClockChange::Freeze(second));
        assert_eq!(clock.at(3_500_000_000), Time::from_nanos(9_001_000_000));
        assert_eq!(clock.at(4_500_000_000), Time::from_nanos(9_501_000_000));
        clock.change(5_000_000_000, ClockChange::Back(second));
        assert_eq!(clock.at(5_900_000_000), Time::from_nanos(10_001_000_000));
        assert_eq!(clock.at(6_100_000_000), Time::from_nanos(10_101_000_000));
    }

    #[test]
    fn when_is_the_first_moment_that_the_clock_says_so() {
        for ppm in [-500, -3, 0, 1, 499] {
            let mut clock = Clock::new(Time::from_nanos(77), ppm);
            clock.change(1000, ClockChange::Freeze(Duration::from_micros(3)));
            for local in [0, 78, 1100, 123_456_789, 5_000_000_000] {
                let (local, at) = (Time::from_nanos(local), clock.when(Time::from_nanos(local)));
                assert!(clock.at(at) >= local && (at <= 4000 || clock.at(at - 1) < local), "{ppm} {local:?}");
            }
        }
    }
}
