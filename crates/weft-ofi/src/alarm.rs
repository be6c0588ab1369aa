//! What a client waits for outside of libfabric's calls: a descriptor, or a mutex with a condition. `fi_trywait` arms it; then it tells
//! when something has come.
//!
//! As long as the client's calls alone poll the bundle, the bundle has a descriptor. Once a thread of weft's polls it too, that thread
//! takes what the descriptor would tell of. So another thread waits for the client then, in the bundle's own wait, and tells it. The client
//! has the same descriptor before and after: a set with the bundle's descriptor in it, or with the one that this thread rings.

use crate::mutex_cond::MutexCond;
use rustix::event::{epoll, eventfd, EventfdFlags};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use weft::{SharedBundle, Waited, Waker};

/// Looks before a wait, each of which finds nothing if nothing comes meanwhile.
const LOOKS_MOST: u32 = 4;

/// What is rung.
#[derive(Debug)]
struct Bells {
    event: OwnedFd,
    conds: Mutex<Vec<Arc<MutexCond>>>,
}

impl Bells {
    fn ring(&self) {
        // It fails if it has been rung so often that nobody can have missed it.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        lock(&self.conds).iter().for_each(|cond| cond.ring());
    }

    /// Has the descriptor be silent until the next ring.
    fn hush(&self) {
        // It fails if it is silent.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

/// Where the handle of the bundle is that the thread waits with.
#[derive(Debug)]
enum Handle {
    /// It is to be armed.
    Idle(SharedBundle),
    /// The thread is to wait with it.
    Armed(SharedBundle),
    /// The thread waits, or the arming thread has it.
    Used,
    /// The thread is to end.
    Over,
}

/// A thread that waits for a client.
#[derive(Debug)]
struct Watcher {
    place: Arc<(Mutex<Handle>, Condvar)>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(bundle: &SharedBundle, bells: Arc<Bells>) -> io::Result<Watcher> {
        let place = Arc::new((Mutex::new(Handle::Idle(bundle.clone())), Condvar::new()));
        let (mine, waker) = (place.clone(), bundle.waker());
        let thread = std::thread::Builder::new().name(String::from("weft-watch"));
        let thread = thread.spawn(move || watch(&mine, &bells))?;
        Ok(Watcher { place, waker, thread: Some(thread) })
    }

    fn put(&self, handle: Handle) {
        *lock(&self.place.0) = handle;
        self.place.1.notify_one();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.put(Handle::Over);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It ends after the wait that it is in. It does not panic.
            let _ = thread.join();
        }
    }
}

/// What the thread does.
fn watch(place: &(Mutex<Handle>, Condvar), bells: &Bells) {
    let mut handle = lock(&place.0);
    loop {
        match std::mem::replace(&mut *handle, Handle::Used) {
            Handle::Over => return,
            Handle::Armed(bundle) => {
                drop(handle);
                // Whatever has come since it was armed ends it. It fails in a handler alone, and there are none.
                let _ = bundle.wait(None);
                handle = lock(&place.0);
                if !matches!(*handle, Handle::Over) {
                    // Before it rings: who is woken finds it idle, and arms it anew.
                    *handle = Handle::Idle(bundle);
                    drop(handle);
                    bells.ring();
                    handle = lock(&place.0);
                }
            }
            other => {
                *handle = other;
                handle = place.1.wait(handle).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What tells a domain's client that something has come.
#[derive(Debug)]
pub struct Alarm {
    set: OwnedFd,
    /// The bundle's descriptor, while it tells.
    bundle: Option<OwnedFd>,
    bells: Arc<Bells>,
    watcher: Option<Watcher>,
}

impl Alarm {
    /// One that tells nothing.
    ///
    /// # Errors
    /// As the system's.
    pub fn new() -> io::Result<Alarm> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        add(&set, event.as_fd())?;
        Ok(Alarm { set, bundle: None, bells: Arc::new(Bells { event, conds: Mutex::default() }), watcher: None })
    }

    /// The descriptor that clients wait for.
    pub fn descriptor(&self) -> c_int {
        self.set.as_raw_fd()
    }

    /// Rings these, too.
    pub fn add(&self, cond: Arc<MutexCond>) {
        lock(&self.bells.conds).push(cond);
    }

    /// Rings these no more.
    pub fn remove(&self, cond: &Arc<MutexCond>) {
        lock(&self.bells.conds).retain(|other| !Arc::ptr_eq(other, cond));
    }

    /// Tells what a bundle's descriptor tells, until [`Alarm::follow`].
    ///
    /// # Errors
    /// As the system's.
    pub fn listen(&mut self, bundle: BorrowedFd<'_>) -> io::Result<()> {
        let bundle = bundle.try_clone_to_owned()?;
        add(&self.set, bundle.as_fd())?;
        self.bundle = Some(bundle);
        Ok(())
    }

    /// Has a thread wait for what a shared bundle takes from now on, once it is armed.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn follow(&mut self, bundle: &SharedBundle) -> io::Result<()> {
        if self.watcher.is_none() {
            self.watcher = Some(Watcher::start(bundle, self.bells.clone())?);
        }
        if let Some(before) = self.bundle.take() {
            epoll::delete(&self.set, &before)?;
        }
        // Who waits now looks once more, and arms the thread.
        self.bells.ring();
        Ok(())
    }

    /// Begins to arm the thread. It gives its handle, which has seen all that came so far; none if the thread is armed already, or there
    /// is none.
    pub fn begin(&self) -> Option<SharedBundle> {
        let watcher = self.watcher.as_ref()?;
        // What it rang for until now is looked at now. If it waits, it rings for what comes later.
        self.bells.hush();
        let mut place = lock(&watcher.place.0);
        let bundle = match std::mem::replace(&mut *place, Handle::Used) {
            Handle::Idle(bundle) => bundle,
            other => {
                *place = other;
                return None;
            }
        };
        drop(place);
        for _ in 0..LOOKS_MOST {
            if bundle.wait(Some(Duration::ZERO)) == Ok(Waited::Nothing) {
                break;
            }
        }
        Some(bundle)
    }

    /// Ends what [`Alarm::begin`] began: the thread waits from now on for what has come since, or is left alone.
    pub fn end(&self, bundle: SharedBundle, is_armed: bool) {
        if let Some(watcher) = &self.watcher {
            watcher.put(if is_armed { Handle::Armed(bundle) } else { Handle::Idle(bundle) });
        }
    }
}

fn add(set: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}
