//! How much may be under way.

mod delay;

pub use delay::DelayWindow;

use crate::time::Time;
use std::time::Duration;

/// What an acknowledgement brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acked {
    /// Bytes that are no longer under way, for they came.
    pub bytes: u64,
    /// Bytes that were taken for lost, and came.
    pub late: u64,
    /// Bytes that were under way before.
    pub under_way: u64,
    /// Bytes of a full packet.
    pub packet: u64,
}

/// Decides how many bytes may be under way to one peer. A type parameter of the channel: no call through a table per packet.
pub trait Congestion {
    /// Bytes that may be under way now. If that is less than a packet, packets go one at a time, each so much later than the one before
    /// that on average no more is under way.
    fn window(&self) -> u64;
    /// Whether packets of so many bytes are to be spaced evenly over a round trip. More than a few keep their distance by themselves, for
    /// they are sent as others are acknowledged.
    fn spaces(&self, packet: u64) -> bool;
    /// Packets were acknowledged.
    fn on_acked(&mut self, now: Time, acked: Acked);
    /// A packet and its acknowledgement took so long, the time left out that the peer held it. Comes after the [`Congestion::on_acked`]
    /// of the same packet.
    fn on_round_trip(&mut self, now: Time, took: Duration);
    /// Packets of so many bytes were taken for lost.
    fn on_lost(&mut self, now: Time, bytes: u64);
    /// Nothing was heard, nor after it was asked for by a probe.
    fn on_timeout(&mut self, now: Time);
}

/// A window that stays as it is: for links whose rate is known, and to compare with.
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
    fn spaces(&self, packet: u64) -> bool {
        self.0 < packet
    }

    #[inline]
    fn on_acked(&mut self, _now: Time, _acked: Acked) {}

    #[inline]
    fn on_round_trip(&mut self, _now: Time, _took: Duration) {}

    fn on_lost(&mut self, _now: Time, _bytes: u64) {}

    fn on_timeout(&mut self, _now: Time) {}
}
