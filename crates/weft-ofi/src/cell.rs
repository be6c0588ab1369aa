//! The value that all objects of a domain share, behind a lock that is nearly free while a single thread uses it.
//!
//! A client that states no threading model gets a domain that any number of threads may use, though most use it from one. So at first the
//! lock belongs to the first thread, which merely notes that it is inside, with plain loads and stores. The first other thread ends that
//! for good: it announces itself, has the kernel put a barrier into every running thread of the process (`membarrier`), and waits until the
//! first thread is outside. From then on the lock is an ordinary one. (Biased locking, as Java's virtual machines had it.
//! `weft_shm::biased` is for an owner that stays and a visitor that may give up; here nobody may give up, and the second thread has the
//! same rights as the first.)

use crate::abi;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;
use weft_shm::barrier;
use weft_shm::biased::this_thread;
use weft_shm::Life;

/// The result of a call that cannot be made: this is a forked child of the domain's process, or an earlier call panicked.
pub trait Refused {
    fn refused() -> Self;
}

impl Refused for c_int {
    fn refused() -> c_int {
        -abi::EOPBADSTATE
    }
}

impl Refused for isize {
    fn refused() -> isize {
        -(abi::EOPBADSTATE as isize)
    }
}

impl Refused for () {
    fn refused() {}
}

impl<T> Refused for Option<T> {
    fn refused() -> Option<T> {
        None
    }
}

impl<T, E: Refused> Refused for Result<T, E> {
    fn refused() -> Result<T, E> {
        Err(E::refused())
    }
}

/// A value that a client's calls use one at a time.
#[derive(Debug)]
pub struct DomainCell<T> {
    life: Life,
    /// A call panicked, so the value may be inconsistent.
    is_broken: AtomicBool,
    /// The client lets only one thread at a time into a domain (`FI_THREAD_DOMAIN`).
    is_serialised: bool,
    /// The first thread, once there is one.
    first: AtomicUsize,
    /// The first thread is inside, without holding the lock.
    is_inside: AtomicBool,
    /// All threads take the lock.
    is_shared: AtomicBool,
    lock: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: `with` is the only way to the value, and lets one thread in at a time. Either that thread holds the lock; or it is the first
// thread without the lock, and all others wait for it before they go on under the lock; or the caller of `new` promised it. The lock,
// `is_inside`, or the client's own ordering of its threads passes on what one thread did to the next.
unsafe impl<T: Send> Sync for DomainCell<T> {}

/// Leaves when dropped, even by a panic inside.
struct Inside<'a>(&'a AtomicBool);

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the acquire of the thread that ends the first thread's right.
        self.0.store(false, Ordering::Release);
    }
}

impl<T> DomainCell<T> {
    /// A cell that lets threads in one at a time, unless the client guarantees that itself (`is_serialised`).
    ///
    /// # Safety
    /// If `is_serialised`, no two threads are in [`DomainCell::with`] at once, and each use happens after the one before it in the sense of
    /// the memory model.
    pub unsafe fn new(value: T, is_serialised: bool) -> DomainCell<T> {
        // Without the barrier, no thread could end the first thread's right.
        let has_first = is_serialised || (barrier::register() && barrier::heavy_here());
        DomainCell {
            life: Life::current(),
            is_broken: AtomicBool::new(false),
            is_serialised,
            first: AtomicUsize::new(0),
            is_inside: AtomicBool::new(false),
            is_shared: AtomicBool::new(!has_first),
            lock: Mutex::default(),
            value: UnsafeCell::new(value),
        }
    }

    /// Whether this is a forked child, where the domain must not be used.
    pub fn is_left_behind(&self) -> bool {
        self.life.is_over()
    }

    /// Whether the client promised to let only one thread in at a time.
    pub fn is_serialised(&self) -> bool {
        self.is_serialised
    }

    /// Runs a closure on the value; it must not call this again. [Refused] in a forked child, before anything is locked. A panic stops
    /// here, because it must not unwind into C: this call and all later ones are refused.
    #[inline(always)]
    pub fn with<R: Refused>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        if self.life.is_over() || self.is_broken.load(Ordering::Relaxed) {
            return R::refused();
        }
        // The value is not used again after a panic.
        match catch_unwind(AssertUnwindSafe(|| self.with_value(run))) {
            Ok(result) => result,
            Err(_) => self.broken(),
        }
    }

    #[cold]
    #[inline(never)]
    fn broken<R: Refused>(&self) -> R {
        self.is_broken.store(true, Ordering::Relaxed);
        R::refused()
    }

    #[inline(always)]
    fn with_value<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        if self.is_serialised {
            // SAFETY: no other thread is here (see `new`). `run` does not call this again: the closures of this crate get the value, and
            // never the cell.
            return run(unsafe { &mut *self.value.get() });
        }
        // Relaxed: a thread looks for its own number, which only it has written.
        if self.first.load(Ordering::Relaxed) == this_thread() {
            self.is_inside.store(true, Ordering::Relaxed);
            let inside = Inside(&self.is_inside);
            // The other thread's heavy barrier orders these two steps on this processor: either it sees that we are inside, or we see its
            // mark.
            barrier::light();
            if !self.is_shared.load(Ordering::Relaxed) {
                // SAFETY: only this thread comes in without the lock. Every other thread first sets `is_shared`, and waits behind its
                // barrier until `is_inside` is false. `run` does not call this again, as above.
                return run(unsafe { &mut *self.value.get() });
            }
            drop(inside);
        }
        self.with_lock(run)
    }

    #[inline(never)]
    fn with_lock<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        // A panic under the lock poisons it, because the value may be inconsistent.
        let Ok(_turn) = self.lock.lock() else { panic!("a call before this one panicked") };
        if !self.is_shared.load(Ordering::Relaxed) {
            // Under the lock, so exactly one thread becomes the first. It has the right from its next call on.
            let was_none = self.first.compare_exchange(0, this_thread(), Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if !was_none {
                self.is_shared.store(true, Ordering::Relaxed);
                if !barrier::heavy_here() {
                    // The barrier worked when the cell was made, so it should not fail now.
                    std::process::abort();
                }
                while self.is_inside.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            }
        }
        // SAFETY: this thread has the lock. The first thread is outside and takes the lock from now on; or it is this thread; or there was
        // none before. `run` does not call this again, as above.
        run(unsafe { &mut *self.value.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Adds in a way that loses an addition if two threads add at once.
    fn add(cell: &DomainCell<u64>, times: u32) {
        for _ in 0..times {
            cell.with(|value| {
                // SAFETY: a number of ours.
                let before = unsafe { std::ptr::from_ref(value).read_volatile() };
                // Long enough for another thread to interfere, if it could.
                (0..200).for_each(|_| std::hint::spin_loop());
                // SAFETY: as above.
                unsafe { std::ptr::from_mut(value).write_volatile(before + 1) };
            });
        }
    }

    #[test]
    fn a_panic_ends_here_and_so_do_the_calls_after_it() {
        for is_serialised in [false, true] {
            // SAFETY: only this thread uses it.
            let cell = unsafe { DomainCell::new(0, is_serialised) };
            assert_eq!(cell.with(|value| std::mem::replace(value, 1) as c_int), 0);
            assert_eq!(cell.with(|_| -> c_int { panic!("as planned") }), -abi::EOPBADSTATE);
            assert_eq!(cell.with(|value| Some(*value)), None);
        }
    }

    #[test]
    fn nothing_is_lost_when_other_threads_come() {
        for round in 0..2000 {
            // SAFETY: it is not said to be serialised.
            let cell = unsafe { DomainCell::new(0, false) };
            let start = Barrier::new(2);
            std::thread::scope(|scope| {
                let others = scope.spawn(|| {
                    start.wait();
                    add(&cell, 20);
                });
                if round % 2 == 0 {
                    // Still the first thread's own, until another one comes.
                    add(&cell, 1);
                }
                start.wait();
                add(&cell, 20);
                others.join().expect("it adds");
            });
            assert_eq!(cell.with(|value| Some(*value)), Some(40 + u64::from(round % 2 == 0)));
        }
    }
}
