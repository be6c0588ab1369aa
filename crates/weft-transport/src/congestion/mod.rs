//! Congestion control: how much may be in flight.

mod delay;

pub use delay::DelayWindow;

use crate::time::Time;

/// What an acknowledgement reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acked {
    /// Bytes that arrived and are no longer in flight.
    pub bytes: u64,
    /// Bytes that were declared lost and arrived after all.
    pub late: u64,
    /// Bytes that were in flight before.
    pub under_way: u64,
    /// Bytes of a full packet.
    pub packet: u64,
}

/// Decides how many bytes may be in flight to one peer. A type parameter of the channel, to avoid a virtual call per packet.
pub trait Congestion {
    /// Bytes that may be in flight now. If that is less than a packet, packets are sent one at a time, with pauses that
    /// keep the average in flight at this value.
    fn window(&self) -> u64;
    /// Whether packets of `packet` bytes must be paced over a round trip. A larger window needs no pacing:
    /// acknowledgements space its packets.
    fn spaces(&self, packet: u64) -> bool;
    /// Packets were acknowledged.
    fn on_acked(&mut self, now: Time, acked: Acked);
    /// A packet and its acknowledgement spent `took` nanoseconds in the network and waited at hosts for `lay`
    /// nanoseconds. Called after the [`Congestion::on_acked`] of the same packet.
    fn on_round_trip(&mut self, now: Time, took: u64, lay: u64);
    /// Packets of `bytes` bytes in all were declared lost.
    fn on_lost(&mut self, now: Time, bytes: u64);
    /// Nothing was heard, not even after a probe.
    fn on_timeout(&mut self, now: Time);
    /// Nothing was sent for a while: frees memory. Knowledge of the load is old then (RFC 2861), and may be dropped.
    fn rest(&mut self) {}
}

/// A constant window: for links of known rate, and for comparison.
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
    fn on_round_trip(&mut self, _now: Time, _took: u64, _lay: u64) {}

    fn on_lost(&mut self, _now: Time, _bytes: u64) {}

    fn on_timeout(&mut self, _now: Time) {}
}

/// Which congestion control a channel uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Method {
    /// A constant window of 512 KiB.
    Fixed,
    /// A window that follows the delay.
    #[default]
    Delay,
}

/// The window of the method that was chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// A constant window.
    Fixed(FixedWindow),
    /// A delay-based window. It is large, so it is allocated at the first acknowledgement, and again after a rest.
    Delay(Option<Box<DelayWindow>>),
}

impl From<Method> for Control {
    fn from(method: Method) -> Control {
        match method {
            Method::Fixed => Control::Fixed(FixedWindow(512 << 10)),
            Method::Delay => Control::Delay(None),
        }
    }
}

impl Congestion for Control {
    #[inline]
    fn window(&self) -> u64 {
        match self {
            Control::Fixed(window) => window.window(),
            Control::Delay(Some(window)) => window.window(),
            Control::Delay(None) => DelayWindow::FIRST,
        }
    }

    #[inline]
    fn spaces(&self, packet: u64) -> bool {
        match self {
            Control::Fixed(window) => window.spaces(packet),
            Control::Delay(window) => window.as_ref().is_some_and(|window| window.spaces(packet)),
        }
    }

    #[inline]
    fn on_acked(&mut self, now: Time, acked: Acked) {
        if let Control::Delay(window) = self {
            window.get_or_insert_default().on_acked(now, acked);
        }
    }

    #[inline]
    fn on_round_trip(&mut self, now: Time, took: u64, lay: u64) {
        if let Control::Delay(window) = self {
            window.get_or_insert_default().on_round_trip(now, took, lay);
        }
    }

    fn on_lost(&mut self, now: Time, bytes: u64) {
        if let Control::Delay(window) = self {
            window.get_or_insert_default().on_lost(now, bytes);
        }
    }

    fn on_timeout(&mut self, now: Time) {
        if let Control::Delay(window) = self {
            window.get_or_insert_default().on_timeout(now);
        }
    }

    fn rest(&mut self) {
        if let Control::Delay(window) = self {
            *window = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_rest_the_window_begins_anew_and_a_fixed_one_stays() {
        let mut control = Control::from(Method::Delay);
        assert_eq!(control.window(), DelayWindow::FIRST);
        let at = Time::from_nanos(1_000_000);
        control.on_acked(at, Acked { bytes: 1472, late: 0, under_way: 1472, packet: 1472 });
        control.on_timeout(at);
        assert!(control.window() < DelayWindow::FIRST);
        control.rest();
        assert_eq!(control, Control::from(Method::Delay));
        let mut fixed = Control::from(Method::Fixed);
        fixed.rest();
        assert_eq!(fixed.window(), 512 << 10);
    }
}
