//! Biased locking: a value that one thread uses all the time and another now and then.
//!
//! An ordinary lock would cost the owner two locked operations for each use, 5 to 10 ns, even when nobody else wants the value. Here
//! the owner stores that it is inside, keeps the compiler from changing the order, and checks whether a visitor wants in. The visitor
//! stores that it wants in, issues a [`crate::barrier`], which takes effect between two instructions of the owner, and checks whether
//! the owner is inside. So at least one of the two sees the other: then the owner waits, or the visitor goes away. (This is Dekker's
//! algorithm with the owner's fence moved to the visitor.)
//!
//! An owner is one thread, or several threads in turn (a bundle behind a lock). Its constructor decides which: one thread is recognised
//! by its number, which costs next to nothing; several need a locked operation for each use.

use crate::barrier;
use crate::fork::{Forked, Life, Own};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A number that no other living thread has. Never 0.
///
/// The thread pointer, where the processor's ELF TLS ABI says how to read it: a thread-local in a shared library would cost a call.
#[inline(always)]
pub fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let pointer: usize;
        // SAFETY: by the ABI, `fs` points to the thread control block, whose first word is the block's own address. It is only read.
        unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly)) };
        pointer
    }
    #[cfg(target_arch = "aarch64")]
    {
        let pointer: usize;
        // SAFETY: the instruction reads a register that programs may read, and no memory.
        unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem)) };
        pointer
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local! {
            static HERE: u8 = const { 0 };
        }
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
}

#[derive(Debug)]
struct Shared<T> {
    /// The thread that made the owner and is the only one to use it; 0 if others may.
    thread: usize,
    /// Written by the owner alone, and counted up when it comes and when it goes: odd while it is inside.
    uses: AtomicU64,
    /// A visitor is inside, or checks whether it may go in.
    is_wanted: AtomicBool,
    /// Held by a visitor, and by an owner that waits for one.
    visit: Mutex<()>,
    life: Life,
    /// Not dropped in a forked child, where a visitor may have left it half changed.
    value: UnsafeCell<Own<T>>,
}

// SAFETY: one thread at a time uses the value.
//
// - An owner uses it while `uses` is odd. One owner makes it odd: the thread that passes the comparison in `enter` and is alone in
//   that, because its number is of no other thread that lives, or the thread whose exchange succeeds.
// - A visitor uses it while it holds `visit`, if it found `uses` even behind its barrier.
// - An owner that comes later finds `is_wanted`, because the barrier is before its look, and waits for `visit`.
//
// Each of them stores with release and loads with acquire when it passes the value on, or locks `visit`, so each sees what the one
// before it did. That barriers take effect between two instructions is the kernel's promise, which Rust's model does not know.
unsafe impl<T: Send> Sync for Shared<T> {}

/// The owner's handle; clones are handles to the same value. It may be sent to other threads, which can use it only if it was made
/// [for several](Owner::of_several_threads).
#[derive(Debug)]
pub struct Owner<T> {
    shared: Arc<Shared<T>>,
    /// Makes it `!Sync`: two threads with references to one owner could both enter.
    _alone: PhantomData<Cell<()>>,
}

/// A visitor's handle, for any thread.
#[derive(Debug)]
pub struct Visitor<T> {
    shared: Arc<Shared<T>>,
    /// Whether barriers reach the threads of this process. Without them a visitor cannot know whether the owner is inside.
    has_barriers: bool,
}

impl<T> Clone for Owner<T> {
    fn clone(&self) -> Owner<T> {
        Owner { shared: self.shared.clone(), _alone: PhantomData }
    }
}

impl<T> Clone for Visitor<T> {
    fn clone(&self) -> Visitor<T> {
        Visitor { shared: self.shared.clone(), has_barriers: self.has_barriers }
    }
}

impl<T> Owner<T> {
    /// A value owned by the thread that makes it.
    pub fn new(value: T) -> Owner<T> {
        Owner::of(value, this_thread())
    }

    /// A value owned by all threads that have a handle, one at a time.
    pub fn of_several_threads(value: T) -> Owner<T> {
        Owner::of(value, 0)
    }

    fn of(value: T, thread: usize) -> Owner<T> {
        let shared = Shared {
            thread,
            uses: AtomicU64::new(0),
            is_wanted: AtomicBool::new(false),
            visit: Mutex::new(()),
            life: Life::current(),
            value: UnsafeCell::new(Own::new(value)),
        };
        Owner { shared: Arc::new(shared), _alone: PhantomData }
    }

    /// A handle for another thread. Registers the process for barriers, if that was not done.
    pub fn visitor(&self) -> Visitor<T> {
        Visitor { shared: self.shared.clone(), has_barriers: barrier::register() }
    }

    /// Begins a use of the value. Waits for a visitor that is inside, which is rare.
    ///
    /// # Panics
    /// If it is in use already, or belongs to another thread.
    #[inline(always)]
    pub fn enter(&self) -> Inside<'_, T> {
        let shared = &*self.shared;
        // Relaxed: the owner alone writes it.
        let uses = shared.uses.load(Ordering::Relaxed);
        assert!(uses % 2 == 0, "in use already");
        if shared.thread == this_thread() {
            shared.uses.store(uses.wrapping_add(1), Ordering::Relaxed);
        } else {
            shared.enter_in_turn(uses);
        }
        let inside = Inside { owner: self };
        barrier::light();
        // Acquire: pairs with the release at the end of a visit.
        if shared.is_wanted.load(Ordering::Acquire) {
            shared.wait_for_the_visitor(uses);
        }
        inside
    }
}

/// The owner's use of the value, until this is dropped.
#[derive(Debug)]
pub struct Inside<'a, T> {
    owner: &'a Owner<T>,
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `enter` made `uses` odd, and found or waited until no visitor is inside. None will be before this is dropped,
        // because it would find `uses` odd. There is no other `Inside`, because `enter` panics while `uses` is odd.
        unsafe { &*self.owner.shared.value.get() }
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; and this `Inside` is borrowed exclusively.
        unsafe { &mut *self.owner.shared.value.get() }
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let uses = &self.owner.shared.uses;
        // Release: pairs with the acquire of a visitor that finds nobody inside.
        uses.store(uses.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

impl<T> Shared<T> {
    /// Begins a use by an owner of several threads. A single atomic operation: if two threads enter at once, one of them panics.
    #[inline(never)]
    fn enter_in_turn(&self, uses: u64) {
        assert!(self.thread == 0, "used by a thread that it does not belong to");
        // Acquire: pairs with the release at the end of another thread's use.
        let entered = self.uses.compare_exchange(uses, uses.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed);
        assert!(entered.is_ok(), "in use already");
    }

    #[cold]
    #[inline(never)]
    fn wait_for_the_visitor(&self, uses: u64) {
        // In a forked child the visitor does not exist, so the wait would never end.
        assert!(!self.life.is_over(), "{Forked}");
        // An owner of several threads stays inside, because another of its threads could come in meanwhile. A visitor that checks now goes
        // away.
        let gives_way = self.thread != 0;
        loop {
            if gives_way {
                // Go out, so that a visitor that checks now may stay.
                self.uses.store(uses, Ordering::Release);
            }
            let visit = self.visit.lock().unwrap_or_else(PoisonError::into_inner);
            if gives_way {
                // Come in again while nobody can begin a visit.
                self.uses.store(uses.wrapping_add(1), Ordering::SeqCst);
            }
            drop(visit);
            // SeqCst, as the visitor's store: a visitor that began since then sees that we are inside, or we see that it wants in.
            if !self.is_wanted.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

impl<T> Visitor<T> {
    /// Changes with each use that the owner makes.
    pub fn uses(&self) -> u64 {
        self.shared.uses.load(Ordering::Relaxed)
    }

    /// Whether a visit by this thread is possible. It is not if the kernel gives no barrier, or while the thread itself is inside as the
    /// owner.
    pub fn may_visit(&self) -> bool {
        self.has_barriers && !(self.shared.thread == this_thread() && self.uses() % 2 == 1)
    }

    /// Uses the value, unless its owner is inside: then returns `None`. Also `None` if the kernel gives no barrier.
    pub fn try_with<R>(&self, run: impl FnOnce(&mut T) -> R) -> Option<R> {
        let shared = &*self.shared;
        let _visit = shared.visit.lock().unwrap_or_else(PoisonError::into_inner);
        shared.is_wanted.store(true, Ordering::SeqCst);
        let wanted = Wanted { is_wanted: &shared.is_wanted };
        // Acquire: pairs with the release at the end of the owner's use.
        let is_free = self.has_barriers && barrier::heavy_here() && shared.uses.load(Ordering::Acquire) % 2 == 0;
        // SAFETY: no other visitor is inside, because `visit` is held. No owner is, because `uses` was even behind the barrier. An
        // owner that enters later finds `is_wanted` and waits until `visit` is free.
        let result = is_free.then(|| run(unsafe { &mut *shared.value.get() }));
        drop(wanted);
        result
    }
}

/// Clears `is_wanted` when it is dropped, also by a panic.
struct Wanted<'a> {
    is_wanted: &'a AtomicBool,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        // Release: pairs with the acquire of the owner.
        self.is_wanted.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    /// Two numbers that differ only during a use, so a second use at the same time would see it.
    #[derive(Default)]
    struct Halves(u64, u64);

    #[test]
    fn the_owner_and_visitors_are_never_inside_at_once() {
        barrier::register();
        let owner = Owner::new(Halves::default());
        let step = |halves: &mut Halves| {
            assert_eq!(halves.0, halves.1);
            halves.0 += 1;
            std::hint::spin_loop();
            halves.1 += 1;
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let visitors: Vec<_> = (0..2)
            .map(|_| {
                let (visitor, is_over) = (owner.visitor(), is_over.clone());
                thread::spawn(move || {
                    let mut visits = 0u64;
                    while !is_over.load(Ordering::Relaxed) || visits == 0 {
                        visits += u64::from(visitor.try_with(step).is_some());
                    }
                    visits
                })
            })
            .collect();
        // Threads that end: the kernel's global barrier would miss the cores that they ended on (see `barrier`).
        let ending = thread::spawn({
            let is_over = is_over.clone();
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    thread::spawn(|| {}).join().expect("it does nothing");
                }
            }
        });
        let uses = 1_000_000;
        for turn in 0..uses {
            step(&mut owner.enter());
            if turn % 1000 == 0 {
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        ending.join().expect("it starts threads");
        let visits: u64 = visitors.into_iter().map(|v| v.join().expect("a visitor")).sum();
        let halves = owner.enter();
        assert_eq!((halves.0, halves.1), (uses + visits, uses + visits));
    }

    #[test]
    fn a_visitor_goes_away_while_the_owner_is_inside() {
        barrier::register();
        let owner = Owner::new(1);
        let visitor = owner.visitor();
        let inside = owner.enter();
        let theirs = visitor.clone();
        let visited = thread::spawn(move || theirs.try_with(|value| *value += 1));
        assert_eq!(visited.join().expect("it ends"), None);
        drop(inside);
        let before = visitor.uses();
        assert_eq!(thread::spawn(move || visitor.try_with(|value| *value += 1)).join().expect("it ends"), Some(()));
        assert_eq!(*owner.enter(), 2);
        assert_ne!(owner.visitor().uses(), before);
    }

    #[test]
    fn an_owner_of_one_thread_panics_in_another() {
        let owner = Owner::new(1);
        assert_eq!(*owner.enter(), 1);
        assert!(thread::spawn(move || *owner.enter()).join().is_err());
    }

    #[test]
    fn owners_of_several_threads_are_never_inside_at_once() {
        let owner = Owner::of_several_threads(Halves::default());
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let owner = owner.clone();
                thread::spawn(move || {
                    let mut uses = 0;
                    for _ in 0..10_000 {
                        // A thread that enters while another is inside panics, as it should; here that is caught.
                        let used = std::panic::AssertUnwindSafe(|| {
                            let mut halves = owner.enter();
                            assert_eq!(halves.0, halves.1);
                            halves.0 += 1;
                            std::hint::spin_loop();
                            halves.1 += 1;
                        });
                        uses += u64::from(std::panic::catch_unwind(used).is_ok());
                    }
                    uses
                })
            })
            .collect();
        let uses: u64 = threads.into_iter().map(|t| t.join().expect("a thread")).sum();
        let halves = owner.enter();
        assert_eq!((halves.0, halves.1), (uses, uses));
    }

    #[test]
    fn a_panic_inside_lets_others_in() {
        barrier::register();
        let owner = Owner::new(1);
        let panics = std::panic::AssertUnwindSafe(|| {
            let _inside = owner.enter();
            panic!("inside")
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(owner.visitor().try_with(|value| *value), Some(1));
    }
}
