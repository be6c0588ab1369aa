//! How much may be under way.

use crate::time::Time;
use std::time::Duration;

/// Decides how many bytes may be under way. A type parameter of the channel: no call through a table per packet.
pub trait Congestion {
    /// Bytes that may be under way now.
    fn window(&self) -> u64;
    /// A packet was acknowledged; `round_trip` is the smoothed estimate.
    fn on_acked(&mut self, now: Time, bytes: u64, round_trip: Option<Duration>);
    /// A packet was taken for lost.
    fn on_lost(&mut self, now: Time, bytes: u64);
    /// Nothing was heard for a whole time-out.
    fn on_timeout(&mut self, now: Time);
}

/// A window that stays as it is: for links whose rate is known, and until there is something better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedWindow(pub u64);

impl Default for FixedWindow {
    /// 256 KiB: a gigabit over two milliseconds, ten over 200 microseconds.
    fn default() -> FixedWindow {
        FixedWindow(256 << 10)
    }
}

impl Congestion for FixedWindow {
    #[inline]
    fn window(&self) -> u64 {
        self.0
    }

    #[inline]
    fn on_acked(&mut self, _now: Time, _bytes: u64, _round_trip: Option<Duration>) {}

    fn on_lost(&mut self, _now: Time, _bytes: u64) {}

    fn on_timeout(&mut self, _now: Time) {}
}
