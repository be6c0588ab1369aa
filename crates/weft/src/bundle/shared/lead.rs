//! Which thread of a shared bundle polls and sleeps for all that wait.

use super::lock::{Common, Locked, Tell, NOBODY};
use super::InHandler;
use crate::bundle::wait::{listen, SPIN_LEAST, YIELD_EVERY, YIELD_LONG};
use crate::bundle::{AnyThread, Bundle, Waited};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use weft_core::Tally;

/// A leader that sleeps is told of what is due before it would wake up, if it is by more than this.
const SOONER: Duration = Duration::from_micros(100);

/// The longest that a follower waits before it looks for itself: bounds what a leader costs that a panic ended.
const FOLLOW_MOST: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) bundle: Bundle<AnyThread>,
    pub(super) lead: Lead,
    /// Threads that wait and do not lead.
    pub(super) followers: u32,
    /// Wake-ups so far.
    pub(super) nudges: u64,
    /// What those who wait have been told of.
    pub(super) announced: (Tally, u64),
}

/// Whether a thread leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lead {
    Free,
    Awake,
    /// It sleeps, until then if nothing comes.
    Asleep(Instant),
}

/// A wait, as far as it has come.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) since: Tally,
    /// The wake-ups before it, if a wake-up ends it.
    pub(super) nudges: Option<u64>,
    pub(super) begin: Instant,
    pub(super) most: Duration,
}

impl Wait {
    pub(super) fn left(&self) -> Duration {
        self.most.saturating_sub(self.begin.elapsed())
    }
}

impl Common {
    /// Waits with the others until something has come or the lead is free.
    pub(super) fn follow<'a>(&'a self, mut locked: Locked<'a>, most: Duration) -> Result<Locked<'a>, InHandler> {
        let tell = locked.whom_to_tell();
        self.tell(tell);
        locked.followers += 1;
        let tally = locked.bundle.core.state().tally();
        locked.announced = (tally, locked.nudges);
        let Locked { _holding, guard } = locked;
        drop(_holding);
        let (guard, _) = self.news.wait_timeout(guard, most.min(FOLLOW_MOST)).unwrap_or_else(PoisonError::into_inner);
        let mut locked = self.hold(guard);
        locked.followers -= 1;
        Ok(locked)
    }

    /// Leads: polls, and then sleeps at most once.
    pub(super) fn lead<'a>(&'a self, mut locked: Locked<'a>, wait: &Wait) -> Result<Locked<'a>, InHandler> {
        locked.lead = Lead::Awake;
        let leading = Leading(self);
        let sleeper = &locked.bundle.sleeper;
        let spin = sleeper.habit.spin().saturating_sub(wait.begin.elapsed()).max(SPIN_LEAST);
        let spin = spin.min(wait.left()).min(sleeper.spin_most.unwrap_or(spin));
        let (mut locked, mut waited) = self.spin(locked, wait, spin);
        if waited == Waited::Nothing && !wait.left().is_zero() && !locked.was_nudged(wait.nudges) {
            (locked, waited) = self.sleep(locked, wait);
        }
        if waited != Waited::Nothing {
            locked.bundle.sleeper.habit.ended_after(wait.begin.elapsed());
        }
        locked.lead = Lead::Free;
        locked.bundle.home.get_up();
        std::mem::forget(leading);
        if locked.followers > 0 {
            self.news.notify_one();
        }
        Ok(locked)
    }

    fn spin<'a>(&'a self, mut locked: Locked<'a>, wait: &Wait, most: Duration) -> (Locked<'a>, Waited) {
        let begin = Instant::now();
        let mut yield_at = YIELD_EVERY;
        loop {
            let waited = locked.look(wait.since);
            let now = begin.elapsed();
            if waited != Waited::Nothing || now >= most || locked.was_nudged(wait.nudges) {
                return (locked, waited);
            }
            locked = self.give_way(locked);
            if now >= yield_at {
                std::thread::yield_now();
                let after = begin.elapsed();
                if after.saturating_sub(now) > YIELD_LONG {
                    locked.bundle.sleeper.habit.is_crowded();
                }
                yield_at = after + YIELD_EVERY;
            }
        }
    }

    /// Sleeps until something comes, without the lock, and polls.
    fn sleep<'a>(&'a self, mut locked: Locked<'a>, wait: &Wait) -> (Locked<'a>, Waited) {
        let (mut waited, may_sleep) = locked.bundle.lie_down(wait.since);
        let mut told = 0;
        if may_sleep {
            let begin = Instant::now();
            // In this order, as in `Bundle::sleep`.
            locked.bundle.signals.set_waiting(true);
            let most = wait.left().min(locked.bundle.wait_limit());
            let tally = locked.bundle.core.state().tally();
            (locked.lead, locked.announced) = (Lead::Asleep(begin + most), (tally, locked.nudges));
            drop(locked);
            told = listen(&self.set, most);
            locked = self.wait_for_lock();
            locked.lead = Lead::Awake;
            locked.bundle.has_slept(begin.elapsed(), told);
        }
        locked.bundle.get_up(told);
        if waited == Waited::Nothing {
            waited = locked.bundle.poll_once_or_twice(wait.since);
        }
        (locked, waited)
    }
}

/// Frees the lead if a handler panics in the leader.
struct Leading<'a>(&'a Common);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if let Ok(mut locked) = self.0.lock() {
            locked.lead = Lead::Free;
            locked.bundle.get_up(0);
            locked.bundle.home.get_up();
        }
        self.0.news.notify_all();
    }
}

impl Inner {
    /// What has come since a tally was taken; polls if nothing has.
    #[inline(always)]
    pub(super) fn look(&mut self, since: Tally) -> Waited {
        let waited = match self.bundle.came(since) {
            Waited::Nothing => self.attended(|bundle| bundle.poll_a_few(since)),
            waited => waited,
        };
        if std::mem::take(&mut self.bundle.sleeper.is_nudged) {
            self.nudges += 1;
        }
        waited
    }

    /// Polls. A leader that sleeps meanwhile could not look after the network, since who handles a message holds the lock: for the
    /// deputy nobody waits then.
    #[inline(always)]
    pub(super) fn attended<R>(&mut self, poll: impl FnOnce(&mut Bundle<AnyThread>) -> R) -> R {
        let sleeps = self.bundle.signals.is_waiting();
        if sleeps {
            self.bundle.signals.set_waiting(false);
            self.bundle.home.get_up();
        }
        let done = poll(&mut self.bundle);
        if sleeps {
            self.bundle.signals.set_waiting(true);
        }
        done
    }

    /// Whether there was a wake-up since those.
    pub(super) fn was_nudged(&self, since: Option<u64>) -> bool {
        since.is_some_and(|since| since != self.nudges)
    }

    /// Whom to tell of what was done under the lock.
    #[inline(always)]
    pub(super) fn whom_to_tell(&mut self) -> Tell {
        match (self.lead, self.followers) {
            (Lead::Free | Lead::Awake, 0) => NOBODY,
            _ => self.whom_of_them_to_tell(),
        }
    }

    #[cold]
    #[inline(never)]
    fn whom_of_them_to_tell(&mut self) -> Tell {
        if std::mem::take(&mut self.bundle.sleeper.is_nudged) {
            self.nudges += 1;
        }
        let now = (self.bundle.core.state().tally(), self.nudges);
        let is_new = std::mem::replace(&mut self.announced, now) != now;
        let leader = match self.lead {
            Lead::Asleep(until) => is_new || self.is_leader_needed(until),
            _ => false,
        };
        if leader {
            // Once is enough.
            self.lead = Lead::Awake;
        }
        Tell { leader, followers: is_new && self.followers > 0 }
    }

    /// Whether a leader that sleeps until then has more to do than it knew: calls to make, peers that may not ring, something
    /// that is due before.
    fn is_leader_needed(&self, until: Instant) -> bool {
        let core = &self.bundle.core;
        core.state().has_calls() || !core.all_ring() || Instant::now() + self.bundle.wait_limit() + SOONER < until
    }
}
