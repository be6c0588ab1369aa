//! Several calls of a shared bundle under one lock.

use super::lock::{Common, Locked, Tell, NOBODY};
use super::{InHandler, SharedBundle};
use crate::{AnyThread, Bundle};

/// A [`SharedBundle`] whose lock this thread holds, for several calls in a row: see [`SharedBundle::hold`].
pub struct Held<'a> {
    // Dropped first: the lock is free when other threads are told.
    pub(super) locked: Locked<'a>,
    after: After<'a>,
}

/// The work to do once the lock is free.
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
    /// Takes the lock once for several calls, which would otherwise lock once each. Other threads wait until the result is dropped,
    /// and other calls of this thread return [`InHandler`]. Blocks while another thread has the lock.
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

    /// The bundle, for the calls of faces.
    #[inline(always)]
    pub(crate) fn bundle(&mut self) -> &mut Bundle<AnyThread> {
        &mut self.locked.bundle
    }
}

impl std::fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}
