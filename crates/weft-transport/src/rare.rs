//! Rare paths that tests fire on purpose (after FoundationDB's BUGGIFY): what happens once in a million packets happens at each tenth.
//!
//! A [`Point`] is a place in the transport or the network interface where something rare, but allowed, may be done instead of the
//! usual: no promise may break for it. The code asks [`fires`], which is `false` for the compiler unless the feature `rare` is on: then
//! nothing of it is left. No crate that is shipped switches it on (`tests/tests/rare.rs`).
//!
//! With the feature, and in a thread that holds a `Switch`, one point in two is *active*, drawn by lot for each switch, so that runs
//! differ in kind; an active one fires with the given chance. All is drawn from the switch's seed: the same seed gives the same run.

/// A place where something rare can be fired.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Point {
    /// An acknowledgement that is due waits once more.
    AckWithheld,
    /// The time-out comes before its time.
    RetryEarly,
    /// A packet that another has overtaken is taken for lost.
    LossSpurious,
    /// Nothing more may be under way, though the window has room.
    WindowFull,
    /// What lies ready to go as a run goes packet by packet.
    RunBroken,
    /// A stream takes no record, though it has room.
    StreamFull,
    /// What came for a stream finds no room there.
    PieceRefused,
    /// A packet number is left out out of turn.
    NumberSkipped,
    /// A channel rests though it is not idle.
    RestEarly,
    /// A good cookie is taken for stale.
    CookieStale,
    /// The link refuses packets for their size.
    TooLarge,
    /// Timers are sorted out.
    TimersSorted,
    /// A caller with a good cookie finds no place.
    StrangerUnheard,
    /// A host that was told of its end is forgotten before it acknowledges that.
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
    /// Whether the rare thing is to be done here, now. Never: the feature `rare` is off.
    #[inline(always)]
    pub const fn fires(_point: super::Point) -> bool {
        false
    }

    // What the compiler can compute here it leaves out everywhere.
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
        /// Half of the points fire, so many of a million times each.
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

    /// Whether the rare thing is to be done here, now.
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
