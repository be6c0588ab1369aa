//! What a bundle leaves for the helper to tell: its last report. A bundle writes it when it was asked to, and when it rests.

use super::stamps::Stamps;
use crate::node::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use weft_core::{Endpoint, Report};
use weft_shm::ring::ring;
use weft_shm::Descriptor;

/// A bundle's board.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// Somebody wants a report, and there was none since.
    is_asked: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: Option<Box<Told>>,
    /// What to ring when there is a report that was asked for.
    bell: Option<Arc<Descriptor>>,
    /// When it was last asked, the bundle slept.
    did_wait: bool,
}

/// A report, and when it was made.
#[derive(Debug)]
pub(crate) struct Told {
    pub report: Report,
    /// What its endpoints for remote memory are at, in the order of the endpoints above.
    pub memory: Vec<(Endpoint, weft_memory::Report)>,
    /// What it stamped, if somebody asked for that.
    pub stamps: Option<Stamps>,
    pub at: Instant,
}

impl Board {
    /// Wants a report, and `bell` rung for it. The bundle is to be told by a signal.
    pub fn ask(&self, bell: &Arc<Descriptor>, does_wait: bool) {
        let mut inner = lock(&self.inner);
        inner.bell = Some(bell.clone());
        inner.did_wait = does_wait;
        drop(inner);
        // Release: whoever sees that it is asked finds the bell.
        self.is_asked.store(true, Ordering::Release);
    }

    /// Whether a report that was asked for has not come.
    pub fn is_asked(&self) -> bool {
        // Acquire: pairs with the release in `put`.
        self.is_asked.load(Ordering::Acquire)
    }

    /// Whether the bundle slept when it was last asked.
    pub fn did_wait(&self) -> bool {
        lock(&self.inner).did_wait
    }

    /// Has `fill` make a report, in what is left of an older one, so that a bundle which is seen often allocates nothing.
    #[cold]
    pub fn put(&self, spare: &mut Option<Box<Told>>, fill: impl FnOnce(&mut Told)) {
        let at = Instant::now();
        let none = || Box::new(Told { report: Report::default(), memory: Vec::new(), stamps: None, at });
        let mut told = spare.take().unwrap_or_else(none);
        told.at = at;
        fill(&mut told);
        let is_asked = self.is_asked();
        // Held for a moment only, so that neither the bundle nor the helper waits for the other's work.
        let mut inner = lock(&self.inner);
        *spare = inner.last.replace(told);
        let bell = if is_asked { inner.bell.take() } else { None };
        drop(inner);
        if let Some(bell) = bell {
            self.is_asked.store(false, Ordering::Release);
            ring(&bell);
        }
    }

    /// Takes the last report away, to be looked at.
    pub fn take(&self) -> Option<Box<Told>> {
        lock(&self.inner).last.take()
    }

    /// Puts it back, unless there is a newer one.
    pub fn put_back(&self, told: Box<Told>) {
        lock(&self.inner).last.get_or_insert(told);
    }
}
