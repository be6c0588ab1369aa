//! The deputy: what the helper does for a bundle's network while the program computes. Packets are taken in and acknowledged,
//! what is lost is sent again, silent peers are noticed. What they bring waits in the network interface for the next poll; no
//! handler of the program's runs here.
//!
//! The helper looks (*ticks*) whether the program has used its network interface since the last look: after 1 ms, then after
//! twice the time, up to 200 ms. If it has not, the deputy stands in, and sees to the sockets' word itself. It *rests* when
//! nothing is under way, or when the bundle sleeps: a sleeping bundle wakes up for its packets and timers. Whoever sends, or
//! wakes up, calls a deputy that rests.

use super::shared::{take_run, Interface};
use crate::watch::{ring, Signals};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_core::ni::Link;
use weft_shm::barrier;
use weft_shm::biased::Visitor;
use weft_shm::Descriptor;

/// Between two ticks.
const TICK_LEAST: Duration = Duration::from_millis(1);
const TICK_MOST: Duration = Duration::from_millis(200);

/// A bundle that sleeps for longer needs no deputy.
const NAP: Duration = Duration::from_millis(16);

/// A timer that is due is not ticked for more often than this.
const TIMER_LEAST: Duration = Duration::from_micros(100);

/// Runs of packets taken in at once: as many as a stream's window has, more or less.
const RUNS_MOST: u32 = 64;

/// How a bundle calls its deputy.
#[derive(Debug)]
pub(crate) struct Summons {
    is_resting: AtomicBool,
    is_called: AtomicBool,
    /// An eventfd that the helper watches for edges.
    bell: Arc<Descriptor>,
}

impl Summons {
    /// For a deputy that rests.
    pub fn new(bell: Arc<Descriptor>) -> Summons {
        Summons { is_resting: AtomicBool::new(true), is_called: AtomicBool::new(false), bell }
    }

    /// The bundle did something that the deputy should know of. One load, but for a deputy that rests.
    #[inline(always)]
    pub fn notice(&self) {
        // Relaxed: the deputy issues a barrier after it has said that it rests, and looks again.
        if self.is_resting.load(Ordering::Relaxed) {
            self.call();
        }
    }

    #[cold]
    #[inline(never)]
    fn call(&self) {
        self.is_resting.store(false, Ordering::Relaxed);
        // Release: pairs with the acquire in `was_called`.
        self.is_called.store(true, Ordering::Release);
        ring(&*self.bell);
    }

    fn was_called(&self) -> bool {
        self.is_called.swap(false, Ordering::Acquire)
    }
}

/// A bundle's deputy.
#[derive(Debug)]
pub(crate) struct Deputy {
    interface: Visitor<Interface>,
    signals: Arc<Signals>,
    summons: Arc<Summons>,
    /// Uses of the network interface by the last tick.
    seen: u64,
    interval: Duration,
    /// The next tick; none while it rests.
    due: Option<Instant>,
}

impl Deputy {
    /// One that rests.
    pub fn new(interface: Visitor<Interface>, signals: Arc<Signals>, summons: Arc<Summons>) -> Deputy {
        let seen = interface.uses();
        Deputy { interface, signals, summons, seen, interval: TICK_LEAST, due: None }
    }

    /// When to tick.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Begins to tick if the bundle has called.
    pub fn hear(&mut self, now: Instant) {
        if self.summons.was_called() {
            self.begin(now);
        }
    }

    /// The bundle's sockets have something. If the program computes, it is seen to at once.
    pub fn on_word(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        if self.interface.uses() == self.seen && !self.signals.is_waiting() {
            self.stand_in(now, buffer, watch);
        } else {
            self.summons.is_resting.store(false, Ordering::Relaxed);
            self.begin(now);
        }
    }

    /// Looks after the bundle if it is time to. `watch` asks for a socket's word.
    pub fn tick(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let uses = self.interface.uses();
        if uses != self.seen {
            self.seen = uses;
            self.later(now);
        } else if self.signals.is_waiting() {
            // Short naps are not worth the calls.
            match self.interval < NAP {
                true => self.later(now),
                false => self.rest(now),
            }
        } else {
            self.stand_in(now, buffer, watch);
        }
    }

    fn begin(&mut self, now: Instant) {
        self.seen = self.interface.uses();
        self.interval = TICK_LEAST;
        self.due = Some(now + TICK_LEAST);
    }

    fn later(&mut self, now: Instant) {
        self.interval = (self.interval * 2).min(TICK_MOST);
        self.due = Some(now + self.interval);
    }

    /// Ticks no more until it is called.
    fn rest(&mut self, now: Instant) {
        self.summons.is_resting.store(true, Ordering::SeqCst);
        // After the barrier whoever does something sees that we rest; what was done before is seen now.
        if barrier::heavy() && self.interface.uses() == self.seen {
            self.due = None;
        } else {
            self.summons.is_resting.store(false, Ordering::Relaxed);
            self.later(now);
        }
    }

    /// The program computes: does what its polls would do for the network.
    fn stand_in(&mut self, now: Instant, buffer: &mut [u8], mut watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        let done = self.interface.try_with(|ni| {
            let has_heard = take_in(ni, buffer);
            ni.flush();
            ni.drop_stale_timers();
            ni.link_mut().watch_for_the_deputy();
            let is_watched = ni.link().sockets().all(&mut watch);
            let left = ni.next_time().map(|at| at.since(ni.link().now()));
            let left = left.or((ni.has_unsent() || !is_watched).then_some(TICK_MOST));
            (has_heard, ni.has_events(), left)
        });
        if let Some((_, true, _)) = done {
            // The next poll takes what was brought, and hears who is lost.
            self.signals.raise(Signals::DATAGRAMS);
        }
        match done {
            Some((false, _, None)) => self.rest(now),
            Some((has_heard, _, left)) => {
                self.interval = if has_heard { TICK_LEAST } else { (self.interval * 2).min(TICK_MOST) };
                self.due = Some(now + left.unwrap_or(self.interval).max(TIMER_LEAST).min(self.interval));
            }
            // It is at work just now.
            None => self.later(now),
        }
    }
}

/// Takes in what came, and does what is due unless more waits: who seems silent may have answered with that. Says whether
/// something came.
fn take_in(ni: &mut Interface, buffer: &mut [u8]) -> bool {
    ni.link_mut().look_at_all();
    let mut runs = 0;
    while runs < RUNS_MOST && take_run(ni, buffer).is_some() {
        runs += 1;
    }
    let now = ni.link().now();
    if runs < RUNS_MOST && ni.next_time().is_some_and(|at| at <= now) {
        ni.on_time(now);
    }
    runs > 0
}
