//! Time, as the caller tells it.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time, in nanoseconds since some beginning. It never goes back; the caller has the clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// `nanos` nanoseconds after the beginning.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// `micros` microseconds after the beginning.
    #[inline]
    pub const fn from_micros(micros: u64) -> Time {
        Time(micros.saturating_mul(1000))
    }

    /// Nanoseconds since the beginning.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// As packets carry it: the low 32 bits of the microseconds, which wrap around after 71 minutes.
    #[inline]
    pub const fn stamp(self) -> u32 {
        (self.0 / 1000) as u32
    }

    /// The time since `earlier`; zero if that is later.
    #[inline]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The same in nanoseconds. Making and reading a [`Duration`] takes a division each.
    #[inline]
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time `later` nanoseconds on; it too avoids a [`Duration`].
    #[inline]
    pub const fn plus_nanos(self, later: u64) -> Time {
        Time(self.0.saturating_add(later))
    }
}

/// A duration in nanoseconds; saturates.
#[inline]
pub(crate) const fn nanos(time: Duration) -> u64 {
    let nanos = time.as_nanos();
    if nanos > u64::MAX as u128 {
        u64::MAX
    } else {
        nanos as u64
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    #[inline]
    fn add(self, later: Duration) -> Time {
        self.plus_nanos(nanos(later))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    #[inline]
    fn sub(self, earlier: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(earlier)))
    }
}
