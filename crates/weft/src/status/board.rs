//! A bundle's last report, kept for the helper to send. A bundle writes it when asked, and when it rests.

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
    /// A report was asked for, and has not come yet.
    is_asked: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: Option<Box<Told>>,
    /// Rung when a requested report has come.
    bell: Option<Arc<Descriptor>>,
    /// The bundle slept when it was last asked.
    did_wait: bool,
}

/// A report, and when it was made.
#[derive(Debug)]
pub(crate) struct Told {
    pub report: Report,
    /// The state of its endpoints for remote memory, in the order of the endpoints above.
    pub memory: Vec<(Endpoint, weft_memory::Report)>,
    /// Its stamps, if a client asked for them.
    pub stamps: Option<Stamps>,
    pub at: Instant,
}

impl Board {
    /// Asks for a report, and for `bell` to be rung when it has come. The caller must signal the bundle.
    pub fn ask(&self, bell: &Arc<Descriptor>, does_wait: bool) {
        let mut inner = lock(&self.inner);
        inner.bell = Some(bell.clone());
        inner.did_wait = does_wait;
        drop(inner);
        // Release: a thread that sees the flag finds the bell.
        self.is_asked.store(true, Ordering::Release);
    }

    /// Whether a requested report has not come yet.
    pub fn is_asked(&self) -> bool {
        // Acquire: pairs with the release in `put`.
        self.is_asked.load(Ordering::Acquire)
    }

    /// Whether the bundle slept when it was last asked.
    pub fn did_wait(&self) -> bool {
        lock(&self.inner).did_wait
    }

    /// Has `fill` make a report in the memory of an older one, so that frequent reports allocate nothing.
    #[cold]
    pub fn put(&self, spare: &mut Option<Box<Told>>, fill: impl FnOnce(&mut Told)) {
        let at = Instant::now();
        let none = || Box::new(Told { report: Report::default(), memory: Vec::new(), stamps: None, at });
        let mut told = spare.take().unwrap_or_else(none);
        told.at = at;
        fill(&mut told);
        let is_asked = self.is_asked();
        // Held only briefly, so that neither the bundle nor the helper waits for the other's work.
        let mut inner = lock(&self.inner);
        *spare = inner.last.replace(told);
        let bell = if is_asked { inner.bell.take() } else { None };
        drop(inner);
        if let Some(bell) = bell {
            self.is_asked.store(false, Ordering::Release);
            ring(&bell);
        }
    }

    /// Takes the last report away, to read it.
    pub fn take(&self) -> Option<Box<Told>> {
        lock(&self.inner).last.take()
    }

    /// Puts it back, unless there is a newer one.
    pub fn put_back(&self, told: Box<Told>) {
        lock(&self.inner).last.get_or_insert(told);
    }
}
