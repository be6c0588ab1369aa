//! A bundle that several threads use at once, behind a lock.
//!
//! Each call holds the lock; a sleeping thread never does. One of the waiting threads *leads*: it polls, and sleeps as
//! an exclusive bundle does. The others follow: they sleep until some thread has taken something, or until the lead is
//! free. A thread that takes a message or leaves work to do tells the waiting threads; a thread that only sends does
//! not.

mod held;
mod lead;
mod lock;
mod service;

pub use held::Held;

use super::wait::patience;
use super::{AnyThread, Bundle, Waited, Waker};
use crate::node::{Error, Node};
use lead::{Inner, Lead, Wait};
use lock::{Common, Locked};
use service::Keeper;
use std::cell::Cell;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use weft_core::{Admission, Counters, Endpoint, Event, EventMask, SendError, Service, Settings, Tally};
use weft_wire::{Key, Name};

/// A handler called the shared bundle that runs it, which would deadlock. Handlers use their message's
/// [context](crate::am::Message::context) instead.
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

/// A bundle that any number of threads use at once. Clones are handles to the same bundle; each thread has its own
/// handle.
///
/// The calls are those of [`Bundle`] and do the same, but take `&self`. Each call takes the bundle's lock. Handlers run
/// under the lock, one at a time, in the thread that polls. They must not call the bundle: every such call returns
/// [`InHandler`] ([`SendError::InHandler`]).
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
    /// Ends the service thread with the last handle.
    keeper: Option<Arc<Keeper>>,
    common: Arc<Common>,
    /// The tally at the end of this handle's last wait. A cell, so that two threads cannot share a handle: each would
    /// consume events that the other has not seen.
    told: Cell<Tally>,
    /// The tally when this handle last polled.
    seen: Cell<Tally>,
    /// The number of wake-ups at the end of this handle's last wait.
    nudges: Cell<u64>,
}

impl From<Bundle<AnyThread>> for SharedBundle {
    fn from(mut bundle: Bundle<AnyThread>) -> SharedBundle {
        bundle.sleeper.polled.is_shared = true;
        let (set, waker) = (bundle.sleeper.set.clone(), bundle.waker());
        let (tally, bundle_life) = (bundle.core.state().tally(), bundle.life);
        let inner = Inner {
            bundle,
            lead: Lead::Free,
            followers: 0,
            nudges: 0,
            announced: (tally, 0),
            visits: 0,
            serves: false,
            lead_is_wanted: false,
            service_rests: false,
            lies: false,
        };
        SharedBundle {
            keeper: None,
            common: Arc::new(Common {
                life: bundle_life,
                inner: Mutex::new(inner),
                holder: AtomicUsize::new(0),
                wanting: AtomicU32::new(0),
                news: Condvar::new(),
                set,
                waker,
                rest: Condvar::new(),
                service_is_over: AtomicBool::new(false),
            }),
            told: Cell::default(),
            seen: Cell::new(Tally { room: Some(0), ..Tally::default() }),
            nudges: Cell::default(),
        }
    }
}

impl Clone for SharedBundle {
    fn clone(&self) -> SharedBundle {
        let SharedBundle { keeper, common, told, seen, nudges } = self;
        SharedBundle {
            keeper: keeper.clone(),
            common: common.clone(),
            told: told.clone(),
            seen: seen.clone(),
            nudges: nudges.clone(),
        }
    }
}

impl SharedBundle {
    /// Makes a shared bundle of a node, with the default settings.
    ///
    /// # Errors
    /// As [`Bundle::with_settings`].
    pub fn new(node: &Node) -> Result<SharedBundle, Error> {
        SharedBundle::with_settings(node, Settings::default())
    }

    /// Makes a shared bundle of a node.
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

    /// As [`Bundle::set_admission`].
    pub fn set_admission(&self, endpoint: Endpoint, admission: Admission) -> Result<(), Error> {
        self.with(|bundle| bundle.set_admission(endpoint, admission))?
    }

    /// As [`Bundle::set_event_mask`].
    pub fn set_event_mask(&self, endpoint: Endpoint, mask: EventMask) -> Result<(), Error> {
        self.with(|bundle| bundle.set_event_mask(endpoint, mask))?
    }

    /// As [`Bundle::map`].
    pub fn map(&self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.with(|bundle| bundle.map(endpoint, index, name, key))?
    }

    /// As [`Bundle::map_unproven`].
    pub fn map_unproven(&self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.with(|bundle| bundle.map_unproven(endpoint, index, name, key))?
    }

    /// As [`Bundle::unmap`].
    pub fn unmap(&self, endpoint: Endpoint, index: u32) -> Result<(), Error> {
        self.with(|bundle| bundle.unmap(endpoint, index))?
    }

    // ---- progress

    /// As [`Bundle::poll`].
    #[inline]
    pub fn poll(&self) -> Result<u32, InHandler> {
        Ok(self.hold()?.poll())
    }

    /// Waits until some thread took a message or an event came, for at most `timeout` (`None`: no limit). Polls. Spins
    /// first if recent waits were short, then sleeps; the lock is free meanwhile.
    ///
    /// Each message and event ends one wait of every handle: the current one, or the next if there is none.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Waited, InHandler> {
        let (since, most) = (self.told.get().without_room(), timeout.unwrap_or(Duration::MAX));
        let (waited, tally) = self.doze(since, Some(self.nudges.get()), most)?;
        self.told.set(tally);
        Ok(waited)
    }

    /// Waits until `done` returns true. Calls `done` whenever some thread has taken something, and at least every
    /// millisecond. Blocks without limit.
    pub fn poll_until(&self, mut done: impl FnMut(&SharedBundle) -> bool) -> Result<(), InHandler> {
        while !done(self) {
            self.nap(&mut None, Duration::MAX)?;
        }
        Ok(())
    }

    /// Runs handlers for ever, and sleeps while nothing comes. Returns only if a handler called it. Any number of
    /// threads may serve; each message is handled by one of them. Leaves events to threads that take them.
    pub fn serve(&self) -> Result<Infallible, InHandler> {
        loop {
            self.serve_until(|_| false)?;
        }
    }

    /// Runs handlers until `done` returns true, and sleeps while nothing comes. Calls `done` first, and again after
    /// messages, after events, and when a [`Waker`] was used. Leaves events to threads that take them. Blocks without
    /// limit.
    pub fn serve_until(&self, mut done: impl FnMut(&SharedBundle) -> bool) -> Result<(), InHandler> {
        while !done(self) {
            self.wait(None)?;
        }
        Ok(())
    }

    /// As [`Bundle::poll_until_within`].
    pub fn poll_until_within(
        &self,
        limit: Duration,
        mut done: impl FnMut(&SharedBundle) -> bool,
    ) -> Result<bool, InHandler> {
        self.nap_until_within(limit, |bundle| Ok(done(bundle)))
    }

    /// As [`Bundle::drain`].
    pub fn drain(&self) -> Result<(), InHandler> {
        let mut begin = None;
        while !self.with(|bundle| bundle.is_settled())? {
            self.nap(&mut begin, Duration::MAX)?;
        }
        Ok(())
    }

    /// As [`Bundle::drain_within`].
    pub fn drain_within(&self, limit: Duration) -> Result<bool, InHandler> {
        self.nap_until_within(limit, |bundle| bundle.with(|bundle| bundle.is_settled()))
    }

    /// As [`Bundle::flush`].
    pub fn flush(&self) -> Result<bool, InHandler> {
        self.with(|bundle| bundle.flush())
    }

    /// As [`Bundle::is_acknowledged`].
    pub fn is_acknowledged(&self) -> Result<bool, InHandler> {
        self.with(|bundle| bundle.is_acknowledged())
    }

    /// As [`Bundle::next_event`]. Each event goes to one thread.
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

    /// Returns a [`Waker`]. It ends the current wait of each handle, or the next if there is none.
    pub fn waker(&self) -> Waker {
        self.common.waker.clone()
    }

    // ---- inside

    /// Runs a call of the bundle under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Bundle<AnyThread>) -> R) -> Result<R, InHandler> {
        Ok(run(&mut self.hold()?.locked.bundle))
    }

    /// Runs a call under the lock. In a handler, gives the call back without running it.
    pub(crate) fn with_unless_in_handler<C, R>(
        &self,
        call: C,
        run: impl FnOnce(&mut Bundle<AnyThread>, C) -> R,
    ) -> Result<R, C> {
        if self.common.is_held_here() {
            return Err(call);
        }
        let (result, tell) = self.common.finish(self.common.wait_for_lock(), |inner| run(&mut inner.bundle, call));
        self.common.tell(tell);
        Ok(result)
    }

    /// As [`Bundle::insist`].
    pub(crate) fn insist(
        &self,
        limit: Option<Duration>,
        mut attempt: impl FnMut() -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let (mut begin, mut since) = (None, None);
        loop {
            match attempt() {
                Err(SendError::Full) if !self.with(|bundle| bundle.core.state().has_full_events())? => {}
                done => return done,
            }
            let left = match limit {
                Some(limit) => limit.saturating_sub(since.get_or_insert_with(Instant::now).elapsed()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return Err(SendError::TimedOut);
            }
            self.nap(&mut begin, left)?;
        }
    }

    fn nap_until_within(
        &self,
        limit: Duration,
        mut done: impl FnMut(&SharedBundle) -> Result<bool, InHandler>,
    ) -> Result<bool, InHandler> {
        let since = Instant::now();
        loop {
            if done(self)? {
                return Ok(true);
            }
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.nap(&mut None, left)?;
        }
    }

    /// Waits for something to come: a millisecond at most, or longer if nothing has come since `begin`, which is the start
    /// of the current series of fruitless naps. Waits no longer than `left`. A [`Waker`] does not end it.
    fn nap(&self, begin: &mut Option<Instant>, left: Duration) -> Result<(), InHandler> {
        let began = *begin.get_or_insert_with(Instant::now);
        let (waited, tally) = self.doze(self.seen.get(), None, patience(began.elapsed()).min(left))?;
        self.seen.set(tally);
        if waited != Waited::Nothing {
            *begin = None;
        }
        Ok(())
    }

    /// Waits until something has come since `since`. Returns the current tally too.
    fn doze(&self, since: Tally, nudges: Option<u64>, most: Duration) -> Result<(Waited, Tally), InHandler> {
        let common = &*self.common;
        let mut locked = common.lock()?;
        locked.visits = locked.visits.wrapping_add(1);
        let waited = locked.look(since);
        if waited != Waited::Nothing {
            locked.bundle.sleeper.habit.ended_after(Duration::ZERO);
            return Ok(self.end(locked, waited));
        }
        let wait = Wait { since, nudges, begin: Instant::now(), most, spins: true };
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
