//! A value that threads use one after the other, behind a lock that is nearly free while a single thread uses it.
//!
//! A sequential bundle belongs to no thread, but C promises that only one uses it at a time. The library must not rely on that promise, and
//! an ordinary lock costs two locked operations in each call. So at first the lock belongs to the first thread, which merely notes that it
//! is inside, with plain loads and stores. The first other thread ends that for good: it announces itself, has the kernel put a barrier
//! into every running thread of the process, and checks whether the first thread is inside. From then on the lock is an ordinary one. No
//! thread ever waits: a thread that finds another one inside gets an error, because the promise was broken.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use weft_shm::barrier;
use weft_shm::biased::this_thread;

/// Why a thread cannot use the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoTurn {
    /// This thread is using it already: the call comes from a handler.
    InHandler,
    /// Another thread has it.
    Elsewhere,
}

/// Stands in place of the first thread once all threads take the lock. No thread has this number.
const SHARED: usize = 1;

#[derive(Debug, Default)]
pub struct Turns<T> {
    /// The first thread that used the value, until another one came; 0 before, [`SHARED`] afterwards.
    first: AtomicUsize,
    /// The first thread is inside, and does not hold the lock.
    first_is_inside: AtomicBool,
    /// The thread that holds the lock, or 0.
    holder: AtomicUsize,
    lock: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a `Turn` or a `First`, and only one exists at a time. A `Turn` holds the lock while the first
// thread is not inside. A `First` exists without the lock; every other thread checks for it behind a barrier. The lock, or
// `first_is_inside`, passes on what one thread did to the next.
unsafe impl<T: Send> Sync for Turns<T> {}

/// The use of the value by this thread, until it is dropped.
pub struct Turn<'a, T> {
    turns: &'a Turns<T>,
    lock: Option<MutexGuard<'a, ()>>,
}

/// The use of the value by the first thread, without the lock.
pub struct First<'a, T>(&'a Turns<T>);

impl<T> Turns<T> {
    /// Begins a use of the value by the first thread, outside of handlers. `None` otherwise: [`Turns::enter`] says why.
    #[inline(always)]
    pub fn enter_first(&self) -> Option<First<'_, T>> {
        // Relaxed: a thread looks for its own number, which only it has written. A stale value is checked again below.
        if self.first.load(Ordering::Relaxed) != this_thread() || self.first_is_inside.load(Ordering::Relaxed) {
            return None;
        }
        self.first_is_inside.store(true, Ordering::Relaxed);
        let turn = First(self);
        // The other thread's heavy barrier orders these two steps on this processor: either it sees that we are inside, or we see its mark.
        barrier::light();
        // Otherwise dropping `turn` notes that nobody is inside.
        (self.first.load(Ordering::Relaxed) != SHARED).then_some(turn)
    }

    /// Begins a use of the value.
    pub fn enter(&self) -> Result<Turn<'_, T>, NoTurn> {
        let here = this_thread();
        // Relaxed: a thread looks for its own number, which only it has written.
        let is_first = self.first.load(Ordering::Relaxed) == here;
        if self.holder.load(Ordering::Relaxed) == here || (is_first && self.first_is_inside.load(Ordering::Relaxed)) {
            return Err(NoTurn::InHandler);
        }
        if let Some(first) = self.enter_first() {
            std::mem::forget(first);
            return Ok(Turn { turns: self, lock: None });
        }
        let lock = match self.lock.try_lock() {
            Ok(lock) => lock,
            // The lock guards no value of its own.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(NoTurn::Elsewhere),
        };
        let first = self.first.load(Ordering::Relaxed);
        if first == 0 && barrier::register() && barrier::heavy_here() {
            self.first_is_inside.store(true, Ordering::Relaxed);
            self.first.store(here, Ordering::Relaxed);
            return Ok(Turn { turns: self, lock: None });
        }
        if first != SHARED {
            // Without the kernel's barrier, no thread has become the first one.
            self.first.store(SHARED, Ordering::Relaxed);
            if first != 0 && !barrier::heavy_here() {
                // The barrier worked when the first thread became the owner, so it should not fail now.
                std::process::abort();
            }
        }
        // Acquire: pairs with the release at the end of the first thread's turn, which may still be inside.
        if self.first_is_inside.load(Ordering::Acquire) {
            return Err(NoTurn::Elsewhere);
        }
        self.holder.store(here, Ordering::Relaxed);
        Ok(Turn { turns: self, lock: Some(lock) })
    }
}

impl<T> Deref for First<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: there is one turn at a time, by the note on `Sync`.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for First<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one turn at a time, by the note on `Sync`; and it is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for First<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the acquire of a thread that finds nobody inside.
        self.0.first_is_inside.store(false, Ordering::Release);
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: there is one `Turn` at a time, by the note on `Sync`.
        unsafe { &*self.turns.value.get() }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one `Turn` at a time, by the note on `Sync`; and it is borrowed exclusively.
        unsafe { &mut *self.turns.value.get() }
    }
}

impl<T> Drop for Turn<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.lock.is_some() {
            // The lock is released after this.
            true => self.turns.holder.store(0, Ordering::Relaxed),
            // Pairs with the acquire of a thread that finds nobody inside.
            false => self.turns.first_is_inside.store(false, Ordering::Release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Adds in a way that loses an addition if two threads add at once. Returns how often it had a turn.
    fn add(turns: &Turns<u64>, times: u32) -> u64 {
        let mut added = 0;
        for _ in 0..times {
            let Ok(mut turn) = turns.enter() else { continue };
            let before = *turn;
            (0..200).for_each(|_| std::hint::spin_loop());
            *std::hint::black_box(&mut *turn) = before + 1;
            added += 1;
        }
        added
    }

    #[test]
    fn a_handler_is_told_that_its_thread_is_inside() {
        let turns = Turns::<u64>::default();
        for _ in 0..3 {
            let _turn = turns.enter().expect("nobody is inside");
            assert_eq!(turns.enter().err(), Some(NoTurn::InHandler));
        }
    }

    #[test]
    fn a_second_thread_is_told_that_another_is_inside_and_gets_in_later() {
        let turns = Turns::<u64>::default();
        drop(turns.enter());
        let turn = turns.enter().expect("nobody is inside");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| turns.enter().err());
            assert_eq!(other.join().expect("no panic"), Some(NoTurn::Elsewhere));
            drop(turn);
            assert!(scope.spawn(|| turns.enter().is_ok()).join().expect("no panic"));
        });
        assert!(turns.enter().is_ok());
    }

    #[test]
    fn nothing_is_lost_when_threads_break_their_promise() {
        for _ in 0..500 {
            let turns = Turns::<u64>::default();
            let mut sum = add(&turns, 2);
            let start = Barrier::new(2);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    start.wait();
                    add(&turns, 20)
                });
                start.wait();
                sum += add(&turns, 20);
                sum += other.join().expect("it adds");
            });
            assert_eq!(turns.enter().map_or(0, |turn| *turn), sum);
        }
    }
}
