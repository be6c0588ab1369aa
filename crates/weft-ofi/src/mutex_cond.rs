//! A mutex and a condition that C waits on.

use crate::abi::MutexCondPlace;
use libc::{pthread_cond_t, pthread_mutex_t};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;

/// A mutex and a condition of POSIX, which a client waits on.
#[derive(Debug)]
pub struct MutexCond {
    mutex: UnsafeCell<pthread_mutex_t>,
    cond: UnsafeCell<pthread_cond_t>,
}

// SAFETY: both are used only by calls of POSIX, which any thread may make.
unsafe impl Send for MutexCond {}
// SAFETY: as above.
unsafe impl Sync for MutexCond {}

impl MutexCond {
    /// They never move from now on, as POSIX demands.
    pub fn new() -> Arc<MutexCond> {
        let made = Arc::new(MutexCond {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            cond: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
        });
        // SAFETY: zero is a valid value, which the first call turns into attributes. The mutex is initialised before anybody uses it.
        unsafe {
            let mut kind: libc::pthread_mutexattr_t = std::mem::zeroed();
            libc::pthread_mutexattr_init(&mut kind);
            // A thread that already holds the mutex gets an error, instead of waiting for itself.
            libc::pthread_mutexattr_settype(&mut kind, libc::PTHREAD_MUTEX_ERRORCHECK);
            libc::pthread_mutex_init(made.mutex(), &kind);
            libc::pthread_mutexattr_destroy(&mut kind);
        }
        made
    }

    fn mutex(&self) -> *mut pthread_mutex_t {
        self.mutex.get()
    }

    fn cond(&self) -> *mut pthread_cond_t {
        self.cond.get()
    }

    /// Tells C the addresses of both.
    ///
    /// # Safety
    /// There is room for the two pointers.
    pub unsafe fn give(&self, place: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe { *place.cast::<MutexCondPlace>() = MutexCondPlace { mutex: self.mutex(), cond: self.cond() } };
    }

    /// Wakes all waiting threads. Takes the mutex, so that no thread is between its check and its wait. Blocks while another thread has the
    /// mutex. If this thread has it, no other thread is in between.
    pub fn ring(&self) {
        // SAFETY: both are initialised and not destroyed, and never move.
        unsafe {
            let is_locked = libc::pthread_mutex_lock(self.mutex()) == 0;
            libc::pthread_cond_broadcast(self.cond());
            if is_locked {
                libc::pthread_mutex_unlock(self.mutex());
            }
        }
    }

    /// The same without blocking. False if another thread has the mutex.
    pub fn try_ring(&self) -> bool {
        // SAFETY: as above.
        unsafe {
            let is_locked = libc::pthread_mutex_trylock(self.mutex()) == 0;
            if is_locked {
                libc::pthread_cond_broadcast(self.cond());
                libc::pthread_mutex_unlock(self.mutex());
            }
            is_locked
        }
    }
}

impl Drop for MutexCond {
    fn drop(&mut self) {
        // SAFETY: nobody uses them any more.
        unsafe {
            libc::pthread_cond_destroy(self.cond());
            libc::pthread_mutex_destroy(self.mutex());
        }
    }
}
