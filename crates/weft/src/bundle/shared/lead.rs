//! The leader of a shared bundle: the thread that polls and sleeps for all threads that wait.

use super::lock::{Common, Locked, Tell, NOBODY};
use super::InHandler;
use crate::bundle::wait::{listen, patience, NAP_MOST, WAKER, YIELD_EVERY, YIELD_LONG};
use crate::bundle::{AnyThread, Bundle, Waited};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use weft_core::Tally;

/// A sleeping leader is woken for a deadline that is nearer than its own by more than this.
const SOONER: Duration = Duration::from_micros(100);

/// The longest time that a follower sleeps before it polls itself: bounds the delay if a panic ended the leader.
const FOLLOW_MOST: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) bundle: Bundle<AnyThread>,
    pub(super) lead: Lead,
    /// Threads that wait and do not lead.
    pub(super) followers: u32,
    /// Number of wake-ups so far.
    pub(super) nudges: u64,
    /// The state that waiting threads were last told of.
    pub(super) announced: (Tally, u64),
    /// Polls and waits of the program so far; the service thread's do not count.
    pub(super) visits: u64,
    /// The service thread leads.
    pub(super) serves: bool,
    /// A waiting thread wants to lead instead, and has told the service thread.
    pub(super) lead_is_wanted: bool,
    /// The service thread sleeps until the lead is free.
    pub(super) service_rests: bool,
    /// The service thread got up and did not tell the network. The next thread that polls must tell it.
    pub(super) lies: bool,
}

/// Whether a thread leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lead {
    Free,
    Awake,
    /// It sleeps, at the latest until this time. If more messages wait for room meanwhile, it must not sleep longer than this.
    Asleep(Instant, Duration),
}

/// The parameters of a wait in progress.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) since: Tally,
    /// The number of wake-ups before the wait, or `None` if a wake-up does not end it.
    pub(super) nudges: Option<u64>,
    pub(super) begin: Instant,
    pub(super) most: Duration,
    /// Whether it spins before it sleeps.
    pub(super) spins: bool,
}

impl Wait {
    pub(super) fn left(&self) -> Duration {
        self.most.saturating_sub(self.begin.elapsed())
    }
}

impl Common {
    /// Sleeps until something has come or the lead is free.
    pub(super) fn follow<'a>(&'a self, mut locked: Locked<'a>, most: Duration) -> Result<Locked<'a>, InHandler> {
        if locked.serves && !locked.lead_is_wanted {
            locked.lead_is_wanted = true;
            self.waker.ring();
        }
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

    /// Leads: polls, then sleeps at most once.
    pub(super) fn lead<'a>(&'a self, mut locked: Locked<'a>, wait: &Wait) -> Result<Locked<'a>, InHandler> {
        locked.lead = Lead::Awake;
        let leading = Leading(self);
        if locked.lies && !locked.may_lie() {
            locked.get_up();
        }
        let spin = match wait.spins {
            true => locked.bundle.sleeper.spin_after(wait.begin.elapsed()).min(wait.left()),
            false => Duration::ZERO,
        };
        let (mut locked, mut waited) = self.spin(locked, wait, spin);
        if waited == Waited::Nothing && wait.spins && locked.bundle.may_give_way() {
            (locked, waited) = self.yield_core(locked, wait);
        }
        if waited == Waited::Nothing && !wait.left().is_zero() && !locked.was_nudged(wait.nudges) {
            (locked, waited) = self.sleep(locked, wait);
        }
        if waited != Waited::Nothing && wait.spins {
            locked.bundle.sleeper.habit.ended_after(wait.begin.elapsed());
        }
        if locked.service_rests {
            self.rest.notify_one();
        }
        locked.lead = Lead::Free;
        match locked.may_lie() {
            // The service thread leads again at once, or checks in a millisecond.
            true => locked.lies = true,
            false => locked.get_up(),
        }
        std::mem::forget(leading);
        if locked.followers > 0 {
            self.news.notify_one();
        }
        Ok(locked)
    }

    /// Yields the core with the lock free, then polls, as an exclusive bundle does before it sleeps.
    fn yield_core<'a>(&'a self, locked: Locked<'a>, wait: &Wait) -> (Locked<'a>, Waited) {
        let ((), tell) = self.finish(locked, |_| ());
        self.tell(tell);
        let begin = Instant::now();
        std::thread::yield_now();
        let time = begin.elapsed();
        let mut locked = self.wait_for_lock();
        let waited = locked.look(wait.since);
        locked.bundle.sleeper.courtesy.gave_way(time, waited != Waited::Nothing);
        (locked, waited)
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

    /// Sleeps without the lock until something comes, then polls.
    fn sleep<'a>(&'a self, mut locked: Locked<'a>, wait: &Wait) -> (Locked<'a>, Waited) {
        let (mut waited, may_sleep) = locked.bundle.lie_down(wait.since);
        let mut told = 0;
        if may_sleep {
            let begin = Instant::now();
            // The order matters: see `Bundle::sleep`.
            locked.bundle.signals.set_waiting(true);
            let for_room = patience(wait.begin.elapsed());
            let most = wait.left().min(locked.bundle.sleep_limit(for_room));
            let for_more = if locked.bundle.waits_for_room() { for_room } else { NAP_MOST };
            let tally = locked.bundle.core.state().tally();
            (locked.lead, locked.announced) = (Lead::Asleep(begin + most, for_more), (tally, locked.nudges));
            drop(locked);
            told = listen(&self.set, most);
            locked = self.wait_for_lock();
            locked.lead = Lead::Awake;
            locked.bundle.has_slept(begin.elapsed(), told);
        }
        match told & !WAKER == 0 && locked.may_lie() {
            true => locked.bundle.get_up_for_a_moment(told),
            false => locked.bundle.get_up(told),
        }
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
            (locked.lead, locked.serves, locked.lead_is_wanted) = (Lead::Free, false, false);
            locked.bundle.get_up(0);
            locked.get_up();
        }
        self.0.news.notify_all();
    }
}

impl Inner {
    /// Returns what has come since `since`. Polls if nothing has.
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

    /// Polls. A leader that sleeps cannot serve the network meanwhile, because the handler that runs holds the lock.
    /// So the bundle does not count as waiting, and the deputy serves the network.
    #[inline(always)]
    pub(super) fn attended<R>(&mut self, poll: impl FnOnce(&mut Bundle<AnyThread>) -> R) -> R {
        let sleeps = self.bundle.signals.is_waiting();
        if sleeps {
            self.bundle.signals.set_waiting(false);
        }
        if sleeps || (self.lies && !self.serves) {
            self.get_up();
        }
        let done = poll(&mut self.bundle);
        if sleeps {
            self.bundle.signals.set_waiting(true);
        }
        done
    }

    /// Tells the network that the bundle is awake.
    fn get_up(&mut self) {
        self.lies = false;
        self.bundle.home.get_up();
    }

    /// Whether the network need not know that this thread is awake: it is the service thread and runs no code of the program, so it
    /// sleeps again soon. Telling the network would cost a wakeup of the helper and several system calls.
    fn may_lie(&self) -> bool {
        self.serves && !self.bundle.faces.may_run_handlers()
    }

    /// Returns whether a wake-up came since `since`.
    pub(super) fn was_nudged(&self, since: Option<u64>) -> bool {
        since.is_some_and(|since| since != self.nudges)
    }

    /// Returns the threads to tell of what was done under the lock.
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
            Lead::Asleep(until, for_room) => is_new || self.is_leader_needed(until, for_room),
            _ => false,
        };
        if leader {
            // Once is enough.
            self.lead = Lead::Awake;
        }
        Tell { leader, followers: is_new && self.followers > 0 }
    }

    /// Whether a leader that sleeps until `until` has new work: calls to make, peers that may not ring, or an earlier
    /// deadline.
    fn is_leader_needed(&self, until: Instant, for_room: Duration) -> bool {
        let core = &self.bundle.core;
        core.state().has_calls()
            || !core.all_ring()
            || Instant::now() + self.bundle.sleep_limit(for_room) + SOONER < until
    }
}
