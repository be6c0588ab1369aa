//! The deputy: the helper's work for a bundle's network while the program computes. It takes in and acknowledges packets,
//! retransmits lost ones, and notices silent peers. Messages stay in the network interface until the next poll; none of the
//! program's handlers run here.
//!
//! A dead man's *switch* tells whether the program computes. The switch is a timer that the program rewinds whenever it polls the
//! network, and that wakes the helper when it expires. So a program that polls costs no wakeup of the helper, and when a program
//! stops polling, its deputy takes over within [`SWITCH`].
//!
//! A deputy that stands in has the sockets watched itself and *ticks* when something is due. It *rests* when nothing is under way,
//! or when the bundle sleeps: a sleeping bundle wakes up for its packets and timers. A send, or the end of a sleep, rewinds the
//! switch of a resting deputy.

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

/// A poll of the network rewinds the switch if the last time was at least this long ago.
pub(crate) const WIND_EVERY: Duration = Duration::from_millis(1);

/// A deputy that received something checks again after this, before it rests.
const TICK_LEAST: Duration = Duration::from_millis(1);

/// Time between two ticks of a deputy that has no timer due and whose sockets nobody watches.
const TICK_MOST: Duration = Duration::from_millis(200);

/// Shortest time between two ticks for a timer.
const TIMER_LEAST: Duration = Duration::from_micros(100);

/// Runs of packets taken in at once: roughly a stream's window.
const RUNS_MOST: u32 = 64;

/// A bundle's deputy.
#[derive(Debug)]
pub(crate) struct Deputy {
    interface: Visitor<Interface>,
    signals: Arc<Signals>,
    switch: Arc<Switch>,
    /// Uses of the network interface at the last check. `windings` counts how often the switch had been rewound.
    seen: u64,
    windings: u64,
    /// The next tick; none while it rests, or relies on the switch.
    due: Option<Instant>,
}

impl Deputy {
    /// Makes a deputy that rests.
    pub fn new(interface: Visitor<Interface>, signals: Arc<Signals>, switch: Arc<Switch>) -> Deputy {
        let seen = interface.uses();
        Deputy { interface, signals, switch, seen, windings: 0, due: None }
    }

    /// When to tick.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Becomes readable when [`Deputy::on_switch`] must be called.
    pub fn switch(&self) -> BorrowedFd<'_> {
        self.switch.timer()
    }

    /// The switch has expired: the program does not poll its network.
    pub fn on_switch(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        self.windings = self.switch.windings();
        self.look_after(now, buffer, watch);
    }

    /// The bundle's sockets are readable. If the program computes, handles the packets at once.
    pub fn on_word(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        if self.interface.uses() == self.seen && !self.signals.is_waiting() {
            self.look_after(now, buffer, watch);
        } else {
            // The program may handle them itself.
            self.switch.stand_in();
            self.due = Some(now + TICK_LEAST);
        }
    }

    /// Looks after the bundle if it is time to. `watch` has a socket watched.
    pub fn tick(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let windings = self.switch.windings();
        if std::mem::replace(&mut self.windings, windings) != windings {
            // The program polls its network itself. If it stops, the switch expires.
            self.due = None;
        } else {
            self.look_after(now, buffer, watch);
        }
    }

    /// The program does not poll its network.
    fn look_after(&mut self, now: Instant, buffer: &mut [u8], watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        self.seen = self.interface.uses();
        // Packets that the deputy sends itself must not rewind the switch.
        self.switch.stand_in();
        match self.signals.is_waiting() {
            true => self.rest(now),
            false => self.stand_in(now, buffer, watch),
        }
    }

    /// The bundle sleeps, and polls itself when something comes. Stops ticking until the switch expires, which any use of the
    /// network rewinds.
    fn rest(&mut self, now: Instant) {
        self.switch.rest(true);
        // After the barrier, any user of the network interface sees that we rest. Uses before the barrier are visible now.
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
                // The bundle went to sleep just now, and does not check its timers again before it wakes up.
                return None;
            }
            let has_heard = take_in(ni, buffer);
            ni.flush_and_acknowledge();
            ni.drop_stale_timers();
            ni.link_mut().watch_for_the_deputy();
            let is_watched = ni.link().sockets().all(&mut watch);
            let left = ni.next_time().map(|at| at.since(ni.link().now()));
            let left = left.or((ni.has_unsent() || !is_watched).then_some(TICK_MOST));
            // During the visit, so that the next user of the network interface sees it.
            self.switch.rest(!has_heard && left.is_none());
            Some((has_heard, ni.has_events(), left))
        });
        let done = done.flatten();
        if let Some((_, true, _)) = done {
            // The next poll takes the messages, and learns which peers are lost.
            self.signals.raise(Signals::DATAGRAMS);
        }
        match done {
            Some((false, _, None)) => self.due = None,
            Some((has_heard, _, left)) => {
                let most = if has_heard { TICK_LEAST } else { TICK_MOST };
                self.due = Some(now + left.unwrap_or(most).max(TIMER_LEAST).min(most));
            }
            // The program is using the network interface just now, or the bundle sleeps.
            None => self.due = Some(now + SWITCH),
        }
    }
}

/// Takes in packets, and runs the timers unless more packets are unread: those may be from a peer that seems silent. Returns
/// whether packets came.
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
