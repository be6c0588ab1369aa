//! A value that threads use one after the other, behind a lock that costs next to nothing while one thread uses it.
//!
//! A sequential bundle belongs to no thread, but C has promised that one at a time uses it. The promise cannot be relied on, and a
//! lock costs two locked operations for each call. So the lock begins as the first thread's own: that thread only notes that it
//! is inside, with plain loads and stores. The first other thread ends that for good: it says so, has the kernel put a barrier into
//! every running thread of the process, and looks whether the first one is inside. From then on it is a lock as usual. No thread
//! ever waits: the promise is broken where one finds another inside, and it is told so.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use weft_shm::barrier;
use weft_shm::biased::this_thread;

/// Why a thread does not get the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoTurn {
    /// It has it already: a handler calls.
    InHandler,
    /// Another thread has it.
    Elsewhere,
}

/// In place of the first thread: all threads take the lock. No thread has this number.
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

// SAFETY: a `Turn` or a `First` is the only way to the value, and there is one at a time: of who holds the lock, if the first thread is
// not inside; or of the first thread without the lock, which every other thread makes sure of behind a barrier. What one thread did is
// passed on by the lock or by `first_is_inside`.
unsafe impl<T: Send> Sync for Turns<T> {}

/// The use of the value by this thread, until it is dropped.
pub struct Turn<'a, T> {
    turns: &'a Turns<T>,
    lock: Option<MutexGuard<'a, ()>>,
}

/// The same by the first thread, without the lock.
pub struct First<'a, T>(&'a Turns<T>);

impl<T> Turns<T> {
    /// Begins a use of the value by the first thread, outside of handlers. `None` otherwise: [`Turns::enter`] says why.
    #[inline(always)]
    pub fn enter_first(&self) -> Option<First<'_, T>> {
        // Relaxed: a thread looks for itself, which only it has written. And a stale value is looked at again below.
        if self.first.load(Ordering::Relaxed) != this_thread() || self.first_is_inside.load(Ordering::Relaxed) {
            return None;
        }
        self.first_is_inside.store(true, Ordering::Relaxed);
        let turn = First(self);
        // The other thread's barrier stands between these two on the processor: either it sees that we are inside, or we see it.
        barrier::light();
        // If not, the drop of `turn` says that nobody is inside.
        (self.first.load(Ordering::Relaxed) != SHARED).then_some(turn)
    }

    /// Begins a use of the value.
    pub fn enter(&self) -> Result<Turn<'_, T>, NoTurn> {
        let here = this_thread();
        // Relaxed: a thread looks for itself, which only it has written.
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
            // It guards no value of its own.
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
            // Where there is no barrier, nobody has become the first thread.
            self.first.store(SHARED, Ordering::Relaxed);
            if first != 0 && !barrier::heavy_here() {
                // It took effect when the first thread got its right.
                std::process::abort();
            }
        }
        // Acquire: pairs with the release at the end of the first thread's turn. It may be inside since before.
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
        // SAFETY: there is one turn at a time, as said above.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for First<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one turn at a time, as said above; and it is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for First<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the acquire of who finds nobody inside.
        self.0.first_is_inside.store(false, Ordering::Release);
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: there is one `Turn` at a time, as said above.
        unsafe { &*self.turns.value.get() }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one `Turn` at a time, as said above; and it is borrowed exclusively.
        unsafe { &mut *self.turns.value.get() }
    }
}

impl<T> Drop for Turn<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.lock.is_some() {
            // The lock is dropped after this.
            true => self.turns.holder.store(0, Ordering::Relaxed),
            // Pairs with the acquire of who finds nobody inside.
            false => self.turns.first_is_inside.store(false, Ordering::Release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Adds in a way that loses what two threads add at once. Returns how often it had a turn.
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
