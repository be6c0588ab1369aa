//! Several calls of a shared bundle under one lock.

use super::lock::{Common, Locked, Tell, NOBODY};
use super::{InHandler, SharedBundle};
use crate::memory::Memory;
use crate::node::Error;
use crate::tagged::{Ended, Tagged};
use weft_core::Endpoint;

/// A [`SharedBundle`] whose lock this thread holds, for several calls in a row: see [`SharedBundle::hold`].
pub struct Held<'a> {
    // Dropped first: the lock is free when other threads are told.
    pub(super) locked: Locked<'a>,
    after: After<'a>,
}

/// The work that waits until the lock is free.
struct After<'a> {
    common: &'a Common,
    tell: Tell,
    gives_way: bool,
}

impl Drop for After<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.common.tell(self.tell);
        if self.gives_way {
            std::thread::yield_now();
        }
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.after.tell = self.locked.whom_to_tell();
    }
}

impl SharedBundle {
    /// Takes the lock for several calls, which cost one lock each otherwise. Other threads wait until the result is dropped, and other
    /// calls of this thread return [`InHandler`]. Blocks while another thread has the lock.
    ///
    /// # Errors
    /// [`InHandler`].
    #[inline(always)]
    pub fn hold(&self) -> Result<Held<'_>, InHandler> {
        let common = &*self.common;
        Ok(Held { locked: common.lock()?, after: After { common, tell: NOBODY, gives_way: false } })
    }
}

impl Held<'_> {
    /// As [`Bundle::poll`](crate::Bundle::poll).
    #[inline(always)]
    pub fn poll(&mut self) -> u32 {
        let inner = &mut *self.locked;
        inner.visits = inner.visits.wrapping_add(1);
        let taken = inner.attended(|bundle| bundle.poll());
        self.after.gives_way |= std::mem::take(&mut inner.bundle.sleeper.polled.is_due);
        taken
    }

    /// As [`Bundle::tagged`](crate::Bundle::tagged).
    ///
    /// # Errors
    /// If the endpoint is not for tagged messages or was freed.
    #[inline(always)]
    pub fn tagged(&mut self, endpoint: Endpoint) -> Result<Tagged<'_>, Error> {
        self.locked.bundle.tagged(endpoint)
    }

    /// As [`Bundle::ended`](crate::Bundle::ended).
    #[inline(always)]
    pub fn ended(&mut self) -> Ended<'_> {
        self.locked.bundle.ended()
    }

    /// As [`Bundle::memory`](crate::Bundle::memory).
    ///
    /// # Errors
    /// If the endpoint is not for remote memory or was freed.
    #[inline(always)]
    pub fn memory(&mut self, endpoint: Endpoint) -> Result<Memory<'_>, Error> {
        self.locked.bundle.memory(endpoint)
    }
}

impl std::fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}
