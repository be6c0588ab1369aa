//! A bundle that several threads use at once, behind a lock.
//!
//! The lock is held for single calls, never while a thread sleeps. Of the threads that wait one *leads*: it polls, and sleeps
//! as an exclusive bundle does. The others follow: they sleep until something has come, whoever took it, or until the lead is
//! free. Who takes a message or leaves something to be done tells those who wait, if any do; who only sends tells nobody.

use super::wait::{listen, NAP_MOST, SPIN_LEAST, YIELD_EVERY, YIELD_LONG};
use super::{AnyThread, Bundle, Waited, Waker};
use crate::node::{lock, Error, Node};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use weft_core::{Counters, Endpoint, Event, EventMask, SendError, Service, Settings, Tally};
use weft_shm::biased::this_thread;
use weft_shm::{Descriptor, Life};
use weft_wire::{Key, Name};

/// How often a thread that polls gives way to others that want the lock, before it takes the lock again all the same.
const GIVE_WAY_MOST: u32 = 64;

/// A leader that sleeps is told of what is due before it would wake up, if it is by more than this.
const SOONER: Duration = Duration::from_micros(100);

/// A handler called the shared bundle that runs it, which would wait for itself. Handlers have their message's
/// [context](crate::am::Message::context).
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a handler cannot call the shared bundle that runs it; use the message's context")]
pub struct InHandler;

weft_wire::debug_says_display!(InHandler);

impl From<InHandler> for SendError {
    fn from(_: InHandler) -> SendError {
        SendError::InHandler
    }
}

impl From<InHandler> for Error {
    fn from(_: InHandler) -> Error {
        Error::Send(SendError::InHandler)
    }
}

/// A bundle that any number of threads use at once. Clones are handles to the same bundle; each thread has its own.
///
/// The calls are those of [`Bundle`], and do the same; they take `&self`. Handlers run under the lock, one at a time, in
/// whichever thread polls, and must not call the bundle: then every call says [`InHandler`] ([`SendError::InHandler`]).
///
/// ```
/// use weft::{Key, Node, SharedBundle};
///
/// let bundle = SharedBundle::new(&Node::new()?)?;
/// let (log, me) = (bundle.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
/// bundle.on(log, 1, |m| assert_eq!(m.payload().len(), 4))?;
/// bundle.map(me, 0, bundle.name(log)?, Key(1))?;
/// let threads = [b"from", b"here"].map(|line| {
///     let bundle = bundle.clone();
///     std::thread::spawn(move || bundle.send(me, 0, 1, &[], line))
/// });
/// for thread in threads {
///     thread.join().expect("it ended")?;
/// }
/// bundle.drain()?;
/// assert_eq!(bundle.counters()?.sent, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SharedBundle {
    pub(crate) common: Arc<Common>,
    /// What has ended a wait of this handle's. A cell, so that two threads cannot share it: each would take what is the
    /// other's to see.
    told: Cell<Tally>,
    /// What had come when it last polled.
    seen: Cell<Tally>,
    /// The wake-ups that have ended a wait of its.
    nudges: Cell<u64>,
}

#[derive(Debug)]
pub(crate) struct Common {
    /// Of the process that made it.
    life: Life,
    inner: Mutex<Inner>,
    /// The thread that holds the lock, or 0.
    holder: AtomicUsize,
    /// Threads that found the lock taken.
    wanting: AtomicU32,
    /// Something has come, or the lead is free.
    news: Condvar,
    /// What the leader sleeps on.
    set: Arc<Descriptor>,
    waker: Waker,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) bundle: Bundle<AnyThread>,
    lead: Lead,
    /// Threads that wait and do not lead.
    followers: u32,
    /// Wake-ups so far.
    nudges: u64,
    /// What those who wait have been told of.
    announced: (Tally, u64),
}

/// Whether a thread leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lead {
    Free,
    Awake,
    /// It sleeps, until then if nothing comes.
    Asleep(Instant),
}

/// Whom to tell, once the lock is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tell {
    leader: bool,
    followers: bool,
}

const NOBODY: Tell = Tell { leader: false, followers: false };

/// A wait, as far as it has come.
#[derive(Clone, Copy)]
struct Wait {
    since: Tally,
    /// The wake-ups before it, if a wake-up ends it.
    nudges: Option<u64>,
    begin: Instant,
    most: Duration,
}

impl Wait {
    fn left(&self) -> Duration {
        self.most.saturating_sub(self.begin.elapsed())
    }
}

impl From<Bundle<AnyThread>> for SharedBundle {
    fn from(bundle: Bundle<AnyThread>) -> SharedBundle {
        let (set, waker) = (bundle.sleeper.set.clone(), bundle.waker());
        let (tally, bundle_life) = (bundle.core.state().tally(), bundle.life);
        let inner = Inner { bundle, lead: Lead::Free, followers: 0, nudges: 0, announced: (tally, 0) };
        SharedBundle {
            common: Arc::new(Common {
                life: bundle_life,
                inner: Mutex::new(inner),
                holder: AtomicUsize::new(0),
                wanting: AtomicU32::new(0),
                news: Condvar::new(),
                set,
                waker,
            }),
            told: Cell::default(),
            seen: Cell::default(),
            nudges: Cell::default(),
        }
    }
}

impl Clone for SharedBundle {
    fn clone(&self) -> SharedBundle {
        let SharedBundle { common, told, seen, nudges } = self;
        SharedBundle { common: common.clone(), told: told.clone(), seen: seen.clone(), nudges: nudges.clone() }
    }
}

impl SharedBundle {
    /// A shared bundle of a node, with the default settings.
    ///
    /// # Errors
    /// As [`Bundle::with_settings`].
    pub fn new(node: &Node) -> Result<SharedBundle, Error> {
        SharedBundle::with_settings(node, Settings::default())
    }

    /// A shared bundle of a node.
    ///
    /// # Errors
    /// As [`Bundle::with_settings`].
    pub fn with_settings(node: &Node, settings: Settings) -> Result<SharedBundle, Error> {
        Ok(Bundle::for_any_thread(node, settings)?.into())
    }

    // ---- endpoints

    /// As [`Bundle::endpoint`].
    pub fn endpoint(&self, key: Key) -> Result<Endpoint, Error> {
        self.with(|bundle| bundle.endpoint(key))?
    }

    /// As [`Bundle::endpoint_with_random_key`].
    pub fn endpoint_with_random_key(&self) -> Result<Endpoint, Error> {
        self.with(|bundle| bundle.endpoint_with_random_key())?
    }

    /// As [`Bundle::free`].
    pub fn free(&self, endpoint: Endpoint) -> Result<(), Error> {
        self.with(|bundle| bundle.free(endpoint))?
    }

    /// As [`Bundle::name`].
    pub fn name(&self, endpoint: Endpoint) -> Result<Name, Error> {
        self.with(|bundle| bundle.name(endpoint))?
    }

    /// As [`Bundle::key`].
    pub fn key(&self, endpoint: Endpoint) -> Result<Key, Error> {
        self.with(|bundle| bundle.key(endpoint))?
    }

    /// As [`Bundle::set_key`].
    pub fn set_key(&self, endpoint: Endpoint, key: Key) -> Result<(), Error> {
        self.with(|bundle| bundle.set_key(endpoint, key))?
    }

    /// As [`Bundle::set_service`].
    pub fn set_service(&self, endpoint: Endpoint, service: Service) -> Result<(), Error> {
        self.with(|bundle| bundle.set_service(endpoint, service))?
    }

    /// As [`Bundle::unreceived`].
    pub fn unreceived(&self, from: Endpoint, to: u32) -> Result<u64, Error> {
        self.with(|bundle| bundle.unreceived(from, to))?
    }

    /// As [`Bundle::set_served`].
    pub fn set_served(&self, endpoint: Endpoint, served: bool) -> Result<(), Error> {
        self.with(|bundle| bundle.set_served(endpoint, served))?
    }

    /// As [`Bundle::set_event_mask`].
    pub fn set_event_mask(&self, endpoint: Endpoint, mask: EventMask) -> Result<(), Error> {
        self.with(|bundle| bundle.set_event_mask(endpoint, mask))?
    }

    /// As [`Bundle::map`].
    pub fn map(&self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.with(|bundle| bundle.map(endpoint, index, name, key))?
    }

    /// As [`Bundle::unmap`].
    pub fn unmap(&self, endpoint: Endpoint, index: u32) -> Result<(), Error> {
        self.with(|bundle| bundle.unmap(endpoint, index))?
    }

    // ---- messages

    // ---- progress

    /// As [`Bundle::poll`].
    #[inline]
    pub fn poll(&self) -> Result<u32, InHandler> {
        let (taken, tell) = self.common.finish(self.common.lock()?, |inner| inner.attended(|bundle| bundle.poll()));
        self.common.tell(tell);
        Ok(taken)
    }

    /// Waits until a message was taken or an event came, by whichever thread, at most for `timeout` (`None`: without end).
    /// Polls. Spins first if waits have been short lately, then sleeps; the lock is free meanwhile.
    ///
    /// What comes ends the waits of all handles: of each the one that goes on, or else the next.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Waited, InHandler> {
        let (since, most) = (self.told.get(), timeout.unwrap_or(Duration::MAX));
        let (waited, tally) = self.doze(since, Some(self.nudges.get()), most)?;
        self.told.set(tally);
        Ok(waited)
    }

    /// Waits until `done` says so, which is asked whenever something has come, whoever took it, and every millisecond.
    pub fn poll_until(&self, mut done: impl FnMut(&SharedBundle) -> bool) -> Result<(), InHandler> {
        while !done(self) {
            self.nap()?;
        }
        Ok(())
    }

    /// As [`Bundle::drain`].
    pub fn drain(&self) -> Result<(), InHandler> {
        while !self.with(|bundle| bundle.is_settled())? {
            self.nap()?;
        }
        Ok(())
    }

    /// As [`Bundle::flush`].
    pub fn flush(&self) -> Result<bool, InHandler> {
        self.with(|bundle| bundle.flush())
    }

    /// As [`Bundle::is_acknowledged`].
    pub fn is_acknowledged(&self) -> Result<bool, InHandler> {
        self.with(|bundle| bundle.is_acknowledged())
    }

    /// As [`Bundle::next_event`]. An event is given to one thread.
    pub fn next_event(&self) -> Result<Option<Event>, InHandler> {
        self.with(|bundle| bundle.next_event())
    }

    /// As [`Bundle::counters`].
    pub fn counters(&self) -> Result<Counters, InHandler> {
        self.with(|bundle| bundle.counters())
    }

    /// As [`Bundle::sessions`].
    pub fn sessions(&self) -> Result<usize, InHandler> {
        self.with(|bundle| bundle.sessions())
    }

    /// As [`Bundle::set_spin_limit`].
    pub fn set_spin_limit(&self, most: Duration) -> Result<(), InHandler> {
        self.with(|bundle| bundle.set_spin_limit(most))
    }

    /// What ends waits: of each handle the one that goes on, or else the next.
    pub fn waker(&self) -> Waker {
        self.common.waker.clone()
    }

    // ---- inside

    /// Runs a call of the bundle under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Bundle<AnyThread>) -> R) -> Result<R, InHandler> {
        let locked = self.common.lock()?;
        let (result, tell) = self.common.finish(locked, |inner| run(&mut inner.bundle));
        self.common.tell(tell);
        Ok(result)
    }

    pub(crate) fn is_in_handler(&self) -> bool {
        self.common.is_held_here()
    }

    pub(crate) fn insist(&self, mut attempt: impl FnMut() -> Result<(), SendError>) -> Result<(), SendError> {
        loop {
            match attempt() {
                Err(SendError::Full) => self.nap()?,
                done => return done,
            }
        }
    }

    /// Waits a moment for something to come, in a call that no [`Waker`] ends.
    fn nap(&self) -> Result<(), InHandler> {
        let (_, tally) = self.doze(self.seen.get(), None, NAP_MOST)?;
        self.seen.set(tally);
        Ok(())
    }

    /// Waits for what comes since a tally was taken. Returns the present one as well.
    fn doze(&self, since: Tally, nudges: Option<u64>, most: Duration) -> Result<(Waited, Tally), InHandler> {
        let common = &*self.common;
        let mut locked = common.lock()?;
        let waited = locked.look(since);
        if waited != Waited::Nothing {
            locked.bundle.sleeper.habit.ended_after(Duration::ZERO);
            return Ok(self.end(locked, waited));
        }
        let wait = Wait { since, nudges, begin: Instant::now(), most };
        loop {
            let waited = locked.look(since);
            if waited != Waited::Nothing || wait.left().is_zero() || locked.was_nudged(wait.nudges) {
                return Ok(self.end(locked, waited));
            }
            locked = match locked.lead {
                Lead::Free => common.lead(locked, &wait)?,
                _ => common.follow(locked, wait.left())?,
            };
        }
    }

    /// Ends a wait under the lock.
    fn end(&self, locked: Locked<'_>, waited: Waited) -> (Waited, Tally) {
        let (result, tell) = self.common.finish(locked, |inner| {
            self.nudges.set(inner.nudges);
            (waited, inner.bundle.core.state().tally())
        });
        self.common.tell(tell);
        result
    }
}

/// The lock, held.
pub(crate) struct Locked<'a> {
    // Dropped first: who takes the lock next finds no holder.
    _holding: Holding<'a>,
    guard: MutexGuard<'a, Inner>,
}

struct Holding<'a>(&'a AtomicUsize);

impl Drop for Holding<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Relaxed: a thread looks only for itself here.
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Deref for Locked<'_> {
    type Target = Inner;

    #[inline(always)]
    fn deref(&self) -> &Inner {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.guard
    }
}

impl Common {
    #[inline(always)]
    fn is_held_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }

    /// Takes the lock, unless this thread holds it: then a handler is running.
    #[inline(always)]
    fn lock(&self) -> Result<Locked<'_>, InHandler> {
        match self.is_held_here() {
            true => Err(InHandler),
            false => Ok(self.wait_for_lock()),
        }
    }

    #[inline(always)]
    pub(crate) fn wait_for_lock(&self) -> Locked<'_> {
        if self.life.is_over() {
            // A thread that is not in this process may have it.
            super::panic_in_a_forked_child(self.life);
        }
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            // A handler that panicked leaves the bundle as usable as an exclusive one would be.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait_in_line(),
        };
        self.hold(guard)
    }

    #[cold]
    #[inline(never)]
    fn wait_in_line(&self) -> MutexGuard<'_, Inner> {
        // Relaxed: it only says whether to give way.
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = lock(&self.inner);
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    #[inline(always)]
    fn hold<'a>(&'a self, guard: MutexGuard<'a, Inner>) -> Locked<'a> {
        self.holder.store(this_thread(), Ordering::Relaxed);
        Locked { _holding: Holding(&self.holder), guard }
    }

    /// Runs the last of what is done under the lock, and frees it. Says whom to tell then.
    #[inline(always)]
    pub(crate) fn finish<R>(&self, mut locked: Locked<'_>, run: impl FnOnce(&mut Inner) -> R) -> (R, Tell) {
        let result = run(&mut locked);
        let tell = locked.whom_to_tell();
        (result, tell)
    }

    #[inline(always)]
    pub(crate) fn tell(&self, tell: Tell) {
        if tell != NOBODY {
            self.tell_them(tell);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_them(&self, tell: Tell) {
        if tell.leader {
            self.waker.ring();
        }
        if tell.followers {
            self.news.notify_all();
        }
    }

    /// Frees the lock for a moment, so that others get on.
    fn give_way<'a>(&'a self, locked: Locked<'a>) -> Locked<'a> {
        let ((), tell) = self.finish(locked, |_| ());
        self.tell(tell);
        for _ in 0..GIVE_WAY_MOST {
            if self.wanting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.wait_for_lock()
    }

    /// Waits with the others until something has come or the lead is free.
    fn follow<'a>(&'a self, mut locked: Locked<'a>, most: Duration) -> Result<Locked<'a>, InHandler> {
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
    fn lead<'a>(&'a self, mut locked: Locked<'a>, wait: &Wait) -> Result<Locked<'a>, InHandler> {
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

/// The longest that a follower waits before it looks for itself: bounds what a leader costs that a panic ended.
const FOLLOW_MOST: Duration = Duration::from_millis(500);

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
    fn look(&mut self, since: Tally) -> Waited {
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
    fn attended<R>(&mut self, poll: impl FnOnce(&mut Bundle<AnyThread>) -> R) -> R {
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
    fn was_nudged(&self, since: Option<u64>) -> bool {
        since.is_some_and(|since| since != self.nudges)
    }

    /// Whom to tell of what was done under the lock.
    #[inline(always)]
    fn whom_to_tell(&mut self) -> Tell {
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
