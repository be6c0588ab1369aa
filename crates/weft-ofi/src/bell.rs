//! Bells: each queue and each counter has one, for clients that wait outside of libfabric's calls. A bell rings once for each time that it
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
    /// A thread rings it, because the thread that has news may hold the mutex.
    Cond {
        cond: Arc<MutexCond>,
        is_due: AtomicBool,
        ringer: Weak<dyn Ringer>,
    },
}

/// A thread that rings bells that are due.
pub trait Ringer: std::fmt::Debug + Send + Sync {
    /// Makes it look. Does not block.
    fn look(&self);
}

/// A descriptor that a client waits on.
#[derive(Debug)]
struct Event {
    /// The client waits on this one, which contains the next two.
    set: OwnedFd,
    event: OwnedFd,
    /// The bundle's descriptor, while that reports arrivals.
    bundle: Mutex<Option<OwnedFd>>,
}

impl Bell {
    /// A bell that rings a descriptor. `bundle` is the bundle's descriptor, if that reports arrivals.
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

    /// A bell that rings a condition.
    pub fn cond(ringer: Weak<dyn Ringer>) -> Bell {
        Bell::of(Kind::Cond { cond: MutexCond::new(), is_due: AtomicBool::new(false), ringer })
    }

    fn of(kind: Kind) -> Bell {
        Bell { is_armed: AtomicBool::new(false), kind }
    }

    /// The bundle's descriptor no longer reports arrivals.
    pub fn leave_bundle(&self) {
        if let Kind::Event(Event { set, bundle, .. }) = &self.kind {
            if let Some(bundle) = bundle.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // It is in the set.
                let _ = epoll::delete(set, &bundle);
            }
        }
    }

    /// Forgets that it rang. Call it before looking at the queue, so that later news rings again.
    pub fn hush(&self) {
        if let Kind::Event(Event { event, .. }) = &self.kind {
            // Fails if it has not rung.
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }

    /// Arms it for the next news, or disarms it.
    pub fn arm(&self, is_armed: bool) {
        // SeqCst, as in `ring`: news that comes after this rings.
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
                // Fails if it was rung so often that nobody can have missed it.
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

    /// Whether a thread must ring it. Resets that.
    pub fn take_due(&self) -> bool {
        matches!(&self.kind, Kind::Cond { is_due, .. } if is_due.swap(false, Ordering::SeqCst))
    }

    /// Whether a thread must ring it.
    pub fn is_due(&self) -> bool {
        matches!(&self.kind, Kind::Cond { is_due, .. } if is_due.load(Ordering::SeqCst))
    }

    /// Rings a condition. False if the client holds the mutex: then try again. Does not block.
    pub fn try_ring(&self) -> bool {
        match &self.kind {
            Kind::Cond { cond, .. } => cond.try_ring(),
            Kind::Event(_) => true,
        }
    }

    /// Gives C the wait object (`FI_GETWAIT`).
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
