//! Rare paths that tests take on purpose (after FoundationDB's BUGGIFY): an event of one in a million packets then
//! happens at every tenth.
//!
//! A [`Point`] is a place in the transport or the network interface where something rare, but allowed, may replace the
//! usual. No promise may break because of it. The code asks [`fires`], which is the constant `false` unless the feature
//! `rare` is on, so the compiler removes it. No shipped crate enables the feature (`tests/tests/layout.rs`).
//!
//! With the feature, and in a thread that holds a `Switch`, half of the points are *active*, chosen at random for each
//! switch, so that runs differ in kind. An active point fires with the given probability. Everything follows from the
//! switch's seed: the same seed gives the same run.

/// A place where something rare can be fired.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Point {
    /// An acknowledgement that is due waits once more.
    AckWithheld,
    /// The retransmission timeout fires early.
    RetryEarly,
    /// A packet that another has overtaken is declared lost.
    LossSpurious,
    /// Nothing more may be sent, although the window has room.
    WindowFull,
    /// Data that lies ready as a run is sent packet by packet.
    RunBroken,
    /// A stream accepts no record, although it has room.
    StreamFull,
    /// Data that arrives for a stream finds no room.
    PieceRefused,
    /// A packet number is skipped early.
    NumberSkipped,
    /// A channel frees memory although it is not idle.
    RestEarly,
    /// A valid cookie is treated as stale.
    CookieStale,
    /// The link refuses a packet for its size.
    TooLarge,
    /// The timer queue is cleaned up.
    TimersSorted,
    /// A caller with a valid cookie finds no room.
    StrangerUnheard,
    /// A host that was told of the end is forgotten before it acknowledges it.
    ClosingForgotten,
}

impl Point {
    /// All of them.
    pub const ALL: [Point; 14] = [
        Point::AckWithheld,
        Point::RetryEarly,
        Point::LossSpurious,
        Point::WindowFull,
        Point::RunBroken,
        Point::StreamFull,
        Point::PieceRefused,
        Point::NumberSkipped,
        Point::RestEarly,
        Point::CookieStale,
        Point::TooLarge,
        Point::TimersSorted,
        Point::StrangerUnheard,
        Point::ClosingForgotten,
    ];
}

#[cfg(not(feature = "rare"))]
mod off {
    /// Whether to take the rare path. Never: the feature `rare` is off.
    #[inline(always)]
    pub const fn fires(_point: super::Point) -> bool {
        false
    }

    // A call that the compiler can evaluate here is removed everywhere.
    const _: () = assert!(!fires(super::Point::AckWithheld));
}

#[cfg(not(feature = "rare"))]
pub use off::fires;

#[cfg(feature = "rare")]
mod on {
    use super::Point;
    use crate::random::Random;
    use std::cell::RefCell;

    struct Lot {
        random: Random,
        active: [bool; Point::ALL.len()],
        per_million: u32,
        fired: [u64; Point::ALL.len()],
    }

    thread_local! {
        static LOT: RefCell<Option<Lot>> = const { RefCell::new(None) };
    }

    /// Rare points fire in this thread until it is dropped.
    #[derive(Debug)]
    #[must_use = "points fire only while the switch is held"]
    pub struct Switch(());

    impl Switch {
        /// Activates half of the points, which then fire `per_million` times in a million.
        ///
        /// # Panics
        /// If the thread holds one already.
        pub fn on(seed: u64, per_million: u32) -> Switch {
            let mut random = Random::new(seed ^ 0x7261_7265);
            let active = [(); Point::ALL.len()].map(|()| random.chance(500_000));
            let lot = Lot { random, active, per_million, fired: [0; Point::ALL.len()] };
            let before = LOT.with(|cell| cell.replace(Some(lot)));
            assert!(before.is_none(), "one switch at a time");
            Switch(())
        }

        /// How often each point fired, in the order of [`Point::ALL`].
        pub fn fired(&self) -> [u64; Point::ALL.len()] {
            LOT.with(|cell| cell.borrow().as_ref().map_or([0; Point::ALL.len()], |lot| lot.fired))
        }
    }

    impl Drop for Switch {
        fn drop(&mut self) {
            LOT.with(|cell| cell.replace(None));
        }
    }

    /// Whether to take the rare path.
    pub fn fires(point: Point) -> bool {
        LOT.with(|cell| {
            let mut lot = cell.borrow_mut();
            let Some(lot) = lot.as_mut().filter(|lot| lot.active[point as usize]) else { return false };
            let fires = lot.random.chance(lot.per_million);
            lot.fired[point as usize] += u64::from(fires);
            fires
        })
    }
}

#[cfg(feature = "rare")]
pub use on::{fires, Switch};
