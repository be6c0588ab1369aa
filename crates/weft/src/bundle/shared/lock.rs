//! The lock of a shared bundle: its holder, the threads that wait for it, and the threads to tell of changes.

use super::lead::Inner;
use super::InHandler;
use crate::bundle::{panic_in_a_forked_child, Waker};
use crate::node::lock;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use weft_shm::biased::this_thread;
use weft_shm::{Descriptor, Life};

/// Largest number of times a polling thread yields to threads that want the lock, before it takes the lock again.
const GIVE_WAY_MOST: u32 = 64;

#[derive(Debug)]
pub(super) struct Common {
    /// The life of the process that made the bundle.
    pub(super) life: Life,
    pub(super) inner: Mutex<Inner>,
    /// The thread that holds the lock, or 0.
    pub(super) holder: AtomicUsize,
    /// Number of threads that found the lock taken and wait for it.
    pub(super) wanting: AtomicU32,
    /// Something has come, or the lead is free.
    pub(super) news: Condvar,
    /// The epoll set that the leader sleeps on.
    pub(super) set: Arc<Descriptor>,
    pub(super) waker: Waker,
    /// Wakes the service thread.
    pub(super) rest: Condvar,
    /// The last handle is gone: the service thread ends.
    pub(super) service_is_over: AtomicBool,
}

/// The threads to tell once the lock is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tell {
    pub(super) leader: bool,
    pub(super) followers: bool,
}

pub(super) const NOBODY: Tell = Tell { leader: false, followers: false };

impl Common {
    #[inline(always)]
    pub(super) fn is_held_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }

    /// Takes the lock. Fails if this thread holds it already, which means that a handler is running.
    #[inline(always)]
    pub(super) fn lock(&self) -> Result<Locked<'_>, InHandler> {
        match self.is_held_here() {
            true => Err(InHandler),
            false => Ok(self.wait_for_lock()),
        }
    }

    #[inline(always)]
    pub(super) fn wait_for_lock(&self) -> Locked<'_> {
        if self.life.is_over() {
            // The lock's holder may be a thread that does not exist in this process.
            panic_in_a_forked_child(self.life);
        }
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            // After a panic in a handler the bundle is as usable as an exclusive bundle.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait_in_line(),
        };
        self.hold(guard)
    }

    #[cold]
    #[inline(never)]
    fn wait_in_line(&self) -> MutexGuard<'_, Inner> {
        // Relaxed: the number only decides whether to yield.
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = lock(&self.inner);
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    #[inline(always)]
    pub(super) fn hold<'a>(&'a self, guard: MutexGuard<'a, Inner>) -> Locked<'a> {
        self.holder.store(this_thread(), Ordering::Relaxed);
        Locked { _holding: Holding(&self.holder), guard }
    }

    /// Runs `run` under the lock, then frees the lock. Returns the threads to tell.
    #[inline(always)]
    pub(super) fn finish<R>(&self, mut locked: Locked<'_>, run: impl FnOnce(&mut Inner) -> R) -> (R, Tell) {
        let result = run(&mut locked);
        let tell = locked.whom_to_tell();
        (result, tell)
    }

    #[inline(always)]
    pub(super) fn tell(&self, tell: Tell) {
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

    /// Frees the lock for a moment, so that other threads get it.
    pub(super) fn give_way<'a>(&'a self, locked: Locked<'a>) -> Locked<'a> {
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
}

/// The lock, held.
pub(super) struct Locked<'a> {
    // Dropped first, so that the next thread that takes the lock finds no holder.
    pub(super) _holding: Holding<'a>,
    pub(super) guard: MutexGuard<'a, Inner>,
}

pub(super) struct Holding<'a>(&'a AtomicUsize);

impl Drop for Holding<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Relaxed: a thread only looks for its own id here.
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
