//! The deputy: what the helper does for a bundle's network while the program computes. Packets are taken in and acknowledged,
//! what is lost is sent again, silent peers are noticed. What they bring waits in the network interface for the next poll; no
//! handler of the program's runs here.
//!
//! Whether the program computes is told by a *switch* of the kind that stops a train whose driver does nothing: a timer that
//! the program winds up again with its looks at the network, and that the helper hears when it runs down. So a program that polls
//! costs no wake-up of the helper, and one that stops polling is stood in for within [`SWITCH`].
//!
//! A deputy that stands in sees to the sockets' word itself and *ticks* when something is due. It *rests* when nothing is under
//! way, or when the bundle sleeps: a sleeping bundle wakes up for its packets and timers. Whoever sends, or wakes up, winds
//! the switch of a deputy that rests.

use super::shared::Interface;
use crate::watch::Signals;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_core::ni::Link;
use weft_link::take_run;
use weft_link::{Switch, SWITCH};
use weft_shm::barrier;
use weft_shm::biased::Visitor;

/// How old a winding of the switch may be when the program looks at the network again.
pub(crate) const WIND_EVERY: Duration = Duration::from_millis(1);

/// A deputy that heard something looks again after this, before it rests.
const TICK_LEAST: Duration = Duration::from_millis(1);

/// Between two ticks of a deputy that nothing is due for and whose sockets nobody watches.
const TICK_MOST: Duration = Duration::from_millis(200);

/// A timer that is due is not ticked for more often than this.
const TIMER_LEAST: Duration = Duration::from_micros(100);

/// Runs of packets taken in at once: as many as a stream's window has, more or less.
const RUNS_MOST: u32 = 64;

/// A bundle's deputy.
#[derive(Debug)]
pub(crate) struct Deputy {
    interface: Visitor<Interface>,
    signals: Arc<Signals>,
    switch: Arc<Switch>,
    /// Uses of the network interface, and windings of the switch, when it last looked.
    seen: u64,
    windings: u64,
    /// The next tick; none while it rests, or relies on the switch.
    due: Option<Instant>,
}

impl Deputy {
    /// One that rests.
    pub fn new(interface: Visitor<Interface>, signals: Arc<Signals>, switch: Arc<Switch>) -> Deputy {
        let seen = interface.uses();
        Deputy { interface, signals, switch, seen, windings: 0, due: None }
    }

    /// When to tick.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What becomes readable when [`Deputy::on_switch`] is to be called.
    pub fn switch(&self) -> BorrowedFd<'_> {
        self.switch.timer()
    }

    /// The switch has run down: the program does not look at its network.
    pub fn on_switch(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        self.windings = self.switch.windings();
        self.look_after(now, buffer, watch);
    }

    /// The bundle's sockets have something. If the program computes, it is seen to at once.
    pub fn on_word(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        if self.interface.uses() == self.seen && !self.signals.is_waiting() {
            self.look_after(now, buffer, watch);
        } else {
            // It may see to it itself.
            self.switch.stand_in();
            self.due = Some(now + TICK_LEAST);
        }
    }

    /// Looks after the bundle if it is time to. `watch` asks for a socket's word.
    pub fn tick(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let windings = self.switch.windings();
        if std::mem::replace(&mut self.windings, windings) != windings {
            // It looks at its network itself; if it stops, the switch runs down.
            self.due = None;
        } else {
            self.look_after(now, buffer, watch);
        }
    }

    /// The program does not look at its network.
    fn look_after(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        self.seen = self.interface.uses();
        // What it sends itself is to wind nothing.
        self.switch.stand_in();
        match self.signals.is_waiting() {
            true => self.rest(now),
            false => self.stand_in(now, buffer, watch),
        }
    }

    /// The bundle sleeps, and looks itself when something comes. Ticks no more until the switch runs down, which whoever does
    /// something winds.
    fn rest(&mut self, now: Instant) {
        self.switch.rest(true);
        // After the barrier whoever does something sees that we rest; what was done before is seen now.
        if barrier::heavy_here() && self.interface.uses() == self.seen {
            self.due = None;
        } else {
            self.switch.stand_in();
            self.due = Some(now + SWITCH);
        }
    }

    /// The program computes: does what its polls would do for the network.
    fn stand_in(&mut self, now: Instant, buffer: &mut [u8], mut watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        let signals = &self.signals;
        let done = self.interface.try_with(|ni| {
            if signals.is_waiting() {
                // It went to sleep just now, and does not look again at what is due before it wakes up.
                return None;
            }
            let has_heard = take_in(ni, buffer);
            ni.flush_and_acknowledge();
            ni.drop_stale_timers();
            ni.link_mut().watch_for_the_deputy();
            let is_watched = ni.link().sockets().all(&mut watch);
            let left = ni.next_time().map(|at| at.since(ni.link().now()));
            let left = left.or((ni.has_unsent() || !is_watched).then_some(TICK_MOST));
            // Within the visit, so that whoever uses the network interface after it sees it.
            self.switch.rest(!has_heard && left.is_none());
            Some((has_heard, ni.has_events(), left))
        });
        let done = done.flatten();
        if let Some((_, true, _)) = done {
            // The next poll takes what was brought, and hears who is lost.
            self.signals.raise(Signals::DATAGRAMS);
        }
        match done {
            Some((false, _, None)) => self.due = None,
            Some((has_heard, _, left)) => {
                let most = if has_heard { TICK_LEAST } else { TICK_MOST };
                self.due = Some(now + left.unwrap_or(most).max(TIMER_LEAST).min(most));
            }
            // It is at work just now, or asleep.
            None => self.due = Some(now + SWITCH),
        }
    }
}

/// Takes in what came, and does what is due unless more waits: who seems silent may have answered with that. Says whether
/// something came.
pub(super) fn take_in(ni: &mut Interface, buffer: &mut [u8]) -> bool {
    ni.link_mut().look_at_all();
    let mut runs = 0;
    while runs < RUNS_MOST && take_run(ni, buffer).is_some() {
        runs += 1;
    }
    let now = ni.link().now();
    if runs < RUNS_MOST {
        ni.link_mut().found_nothing(now);
        if ni.link().has_words() {
            ni.take_refusals(now);
        }
    }
    if runs < RUNS_MOST && ni.next_time().is_some_and(|at| at <= now) {
        ni.on_time(now);
    }
    runs > 0
}
