//! The lock of a shared bundle: who holds it, who waits for it, and who is told of what was done under it.

use super::lead::Inner;
use super::InHandler;
use crate::bundle::{panic_in_a_forked_child, Waker};
use crate::node::lock;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use weft_shm::biased::this_thread;
use weft_shm::{Descriptor, Life};

/// How often a thread that polls gives way to others that want the lock, before it takes the lock again all the same.
const GIVE_WAY_MOST: u32 = 64;

#[derive(Debug)]
pub(super) struct Common {
    /// Of the process that made it.
    pub(super) life: Life,
    pub(super) inner: Mutex<Inner>,
    /// The thread that holds the lock, or 0.
    pub(super) holder: AtomicUsize,
    /// Threads that found the lock taken.
    pub(super) wanting: AtomicU32,
    /// Something has come, or the lead is free.
    pub(super) news: Condvar,
    /// What the leader sleeps on.
    pub(super) set: Arc<Descriptor>,
    pub(super) waker: Waker,
}

/// Whom to tell, once the lock is free.
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

    /// Takes the lock, unless this thread holds it: then a handler is running.
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
            // A thread that is not in this process may have it.
            panic_in_a_forked_child(self.life);
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
    pub(super) fn hold<'a>(&'a self, guard: MutexGuard<'a, Inner>) -> Locked<'a> {
        self.holder.store(this_thread(), Ordering::Relaxed);
        Locked { _holding: Holding(&self.holder), guard }
    }

    /// Runs the last of what is done under the lock, and frees it. Says whom to tell then.
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

    /// Frees the lock for a moment, so that others get on.
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
    // Dropped first: who takes the lock next finds no holder.
    pub(super) _holding: Holding<'a>,
    pub(super) guard: MutexGuard<'a, Inner>,
}

pub(super) struct Holding<'a>(&'a AtomicUsize);

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
