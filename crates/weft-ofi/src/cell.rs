//! What all objects of a domain share, behind a lock that costs nothing where the client promises to need none.

use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that calls of a client use one at a time.
#[derive(Debug)]
pub struct DomainCell<T> {
    /// None if the client lets no two threads into a domain at once (`FI_THREAD_DOMAIN`).
    lock: Option<Mutex<()>>,
    value: UnsafeCell<T>,
}

// SAFETY: `with` is the only way to the value, and lets one thread in at a time: by the lock, or because the client has promised it.
unsafe impl<T: Send> Sync for DomainCell<T> {}

impl<T> DomainCell<T> {
    /// A cell that locks unless `is_serialised`.
    ///
    /// # Safety
    /// If it is, no two threads call [`DomainCell::with`] at once.
    pub unsafe fn new(value: T, is_serialised: bool) -> DomainCell<T> {
        DomainCell { lock: (!is_serialised).then(Mutex::default), value: UnsafeCell::new(value) }
    }

    /// Runs something that uses the value, and that does not come here again.
    #[inline(always)]
    pub fn with<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        let _turn: Option<MutexGuard<'_, ()>> =
            self.lock.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: no other thread is here (see `new`), and `run` does not call this again: nothing in this crate hands the cell to
        // what it runs inside.
        run(unsafe { &mut *self.value.get() })
    }
}
