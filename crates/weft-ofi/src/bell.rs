//! Bells: each queue and each counter has one that a client waits for outside of libfabric's calls. It rings once for each time that it
//! was armed.

use crate::mutex_cond::MutexCond;
use rustix::event::{epoll, eventfd, EventfdFlags};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A bell.
#[derive(Debug)]
pub struct Bell {
    /// A client waits, or is about to.
    is_armed: AtomicBool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Event(Event),
    /// It is rung by a thread, because the one that has news may have the mutex.
    Cond {
        cond: Arc<MutexCond>,
        is_due: AtomicBool,
        ringer: Weak<dyn Ringer>,
    },
}

/// A thread that rings what is due.
pub trait Ringer: std::fmt::Debug + Send + Sync {
    /// Has it look. Does not block.
    fn look(&self);
}

/// A descriptor that a client waits for.
#[derive(Debug)]
struct Event {
    /// The client has this one. The next two are in it.
    set: OwnedFd,
    event: OwnedFd,
    /// The bundle's descriptor, while it tells.
    bundle: Mutex<Option<OwnedFd>>,
}

impl Bell {
    /// One that rings a descriptor; `bundle` is the bundle's, if it tells.
    ///
    /// # Errors
    /// As the system's.
    pub fn event(bundle: Option<BorrowedFd<'_>>) -> io::Result<Bell> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        add(&set, event.as_fd())?;
        let bundle = bundle.map(|fd| fd.try_clone_to_owned()).transpose()?;
        if let Some(bundle) = &bundle {
            add(&set, bundle.as_fd())?;
        }
        Ok(Bell::of(Kind::Event(Event { set, event, bundle: Mutex::new(bundle) })))
    }

    /// One that rings a condition.
    pub fn cond(ringer: Weak<dyn Ringer>) -> Bell {
        Bell::of(Kind::Cond { cond: MutexCond::new(), is_due: AtomicBool::new(false), ringer })
    }

    fn of(kind: Kind) -> Bell {
        Bell { is_armed: AtomicBool::new(false), kind }
    }

    /// The bundle's descriptor tells no longer.
    pub fn leave_bundle(&self) {
        if let Kind::Event(Event { set, bundle, .. }) = &self.kind {
            if let Some(bundle) = bundle.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // It is in the set.
                let _ = epoll::delete(set, &bundle);
            }
        }
    }

    /// Forgets that it rang. Before its queue is looked at: what comes later rings anew.
    pub fn hush(&self) {
        if let Kind::Event(Event { event, .. }) = &self.kind {
            // It fails if it has not rung.
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }

    /// The next news rings it, or none does.
    pub fn arm(&self, is_armed: bool) {
        // With `ring`, so that news behind this ring.
        self.is_armed.store(is_armed, Ordering::SeqCst);
    }

    /// There is news: rings if it is armed. Does not block.
    #[inline(always)]
    pub fn ring(&self) {
        if self.is_armed.load(Ordering::SeqCst) {
            self.ring_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn ring_now(&self) {
        if !self.is_armed.swap(false, Ordering::SeqCst) {
            return;
        }
        match &self.kind {
            Kind::Event(Event { event, .. }) => {
                // It fails if it has been rung so often that nobody can have missed it.
                let _ = rustix::io::write(event, &1u64.to_ne_bytes());
            }
            Kind::Cond { is_due, ringer, .. } => {
                is_due.store(true, Ordering::SeqCst);
                if let Some(ringer) = ringer.upgrade() {
                    ringer.look();
                }
            }
        }
    }

    /// Whether a thread is to ring it, which is not asked again then.
    pub fn take_due(&self) -> bool {
        matches!(&self.kind, Kind::Cond { is_due, .. } if is_due.swap(false, Ordering::SeqCst))
    }

    /// Whether a thread is to ring it.
    pub fn is_due(&self) -> bool {
        matches!(&self.kind, Kind::Cond { is_due, .. } if is_due.load(Ordering::SeqCst))
    }

    /// Rings a condition. False if the client has the mutex: then it is to be tried again. Does not block.
    pub fn try_ring(&self) -> bool {
        match &self.kind {
            Kind::Cond { cond, .. } => cond.try_ring(),
            Kind::Event(_) => true,
        }
    }

    /// Gives C what it waits for (`FI_GETWAIT`).
    ///
    /// # Safety
    /// There is room for what it is: a descriptor, or pointers to a mutex and a condition.
    pub unsafe fn give(&self, place: *mut c_void) {
        match &self.kind {
            // SAFETY: the caller's promise.
            Kind::Event(Event { set, .. }) => unsafe { *place.cast::<c_int>() = set.as_raw_fd() },
            // SAFETY: the caller's promise.
            Kind::Cond { cond, .. } => unsafe { cond.give(place) },
        }
    }
}

fn add(set: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}
