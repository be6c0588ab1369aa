//! The bells of a domain, and the thread that rings them when something comes to the bundle.
//!
//! While only the client's calls poll the bundle, its descriptor wakes a waiting client. Once a thread of weft polls the bundle too, that
//! thread takes arrivals before the descriptor can report them. Then a second thread waits on behalf of the client, with the bundle's own
//! wait. It knows nothing of the domain's state: it rings every bell that is armed.

use crate::bell::{Bell, Ringer};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use weft::{SharedBundle, Waited, Waker};

/// Looks before a wait. They find nothing if nothing comes meanwhile.
const LOOKS_MOST: u32 = 4;

/// After this time a condition is rung again if the client held its mutex.
const TRY_AGAIN: Duration = Duration::from_micros(200);

/// Where the bundle's handle is that the thread waits with.
#[derive(Debug)]
enum Handle {
    /// There is no thread.
    None,
    /// The thread is not armed yet.
    Idle(SharedBundle),
    /// The thread will wait with it.
    Armed(SharedBundle),
    /// The thread waits with it, or the arming thread has it.
    Used,
    /// The thread must end.
    Over,
}

/// The part that the thread and the domain share.
#[derive(Debug)]
struct Desk {
    handle: Mutex<Handle>,
    moved: Condvar,
    bells: Mutex<Vec<Arc<Bell>>>,
    /// Ends the thread's wait.
    waker: OnceLock<Waker>,
}

impl Ringer for Desk {
    fn look(&self) {
        // Takes the lock under which the thread looks before it sleeps, so that the thread cannot miss this.
        drop(lock(&self.handle));
        self.moved.notify_one();
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// The bells, for use without the lock.
    fn bells(&self) -> Vec<Arc<Bell>> {
        lock(&self.bells).clone()
    }

    fn put(&self, handle: Handle) {
        *lock(&self.handle) = handle;
        self.moved.notify_one();
    }

    /// Waits and rings, until it must end.
    fn watch(&self) {
        // Conditions whose mutexes were held by clients.
        let mut late: Vec<Arc<Bell>> = Vec::new();
        loop {
            late.extend(self.bells().into_iter().filter(|bell| bell.take_due()));
            late.retain(|bell| !bell.try_ring());
            let most = (!late.is_empty()).then_some(TRY_AGAIN);
            let mut handle = lock(&self.handle);
            match std::mem::replace(&mut *handle, Handle::Used) {
                Handle::Over => return,
                Handle::Armed(bundle) => {
                    drop(handle);
                    // It fails only in a handler, and there are none.
                    let has_news = bundle.wait(most) != Ok(Waited::Nothing);
                    let mut handle = lock(&self.handle);
                    if matches!(*handle, Handle::Over) {
                        return;
                    }
                    // Before it rings: a woken client finds the thread idle, and arms it again.
                    *handle = if has_news { Handle::Idle(bundle) } else { Handle::Armed(bundle) };
                    drop(handle);
                    if has_news {
                        // The next turn rings those that are due.
                        self.bells().iter().for_each(|bell| bell.ring());
                    }
                }
                other => {
                    *handle = other;
                    // A bell that becomes due from now on reports that under this lock.
                    if !lock(&self.bells).iter().any(|bell| bell.is_due()) {
                        let most = most.unwrap_or(Duration::MAX);
                        drop(self.moved.wait_timeout(handle, most).unwrap_or_else(PoisonError::into_inner));
                    }
                }
            }
        }
    }
}

/// A thread that waits for clients.
#[derive(Debug)]
struct Watcher {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.desk.put(Handle::Over);
        self.desk.look();
        if let Some(thread) = self.thread.take() {
            // The thread ends after its present wait. It does not panic.
            let _ = thread.join();
        }
    }
}

/// The bells of a domain.
#[derive(Debug)]
pub struct Alarm {
    desk: Arc<Desk>,
    watcher: Option<Watcher>,
}

impl Alarm {
    /// An alarm without bells.
    pub fn new() -> Alarm {
        let (handle, moved, bells) = (Mutex::new(Handle::None), Condvar::new(), Mutex::default());
        Alarm { desk: Arc::new(Desk { handle, moved, bells, waker: OnceLock::new() }), watcher: None }
    }

    /// Whether nobody has asked for a bell.
    pub fn has_no_bells(&self) -> bool {
        lock(&self.desk.bells).is_empty()
    }

    /// Makes a bell that rings a descriptor. `bundle` is the bundle's descriptor, if that reports arrivals.
    ///
    /// # Errors
    /// As the system's.
    pub fn add_event(&self, bundle: Option<BorrowedFd<'_>>) -> io::Result<Arc<Bell>> {
        Ok(self.add(Bell::event(bundle)?))
    }

    /// Makes a bell that rings a condition. It needs the thread: see [`Alarm::follow`].
    pub fn add_cond(&self) -> Arc<Bell> {
        let desk: Arc<dyn Ringer> = self.desk.clone();
        self.add(Bell::cond(Arc::downgrade(&desk)))
    }

    fn add(&self, bell: Bell) -> Arc<Bell> {
        let bell = Arc::new(bell);
        lock(&self.desk.bells).push(bell.clone());
        bell
    }

    /// Forgets a bell.
    pub fn remove(&self, bell: &Arc<Bell>) {
        lock(&self.desk.bells).retain(|other| !Arc::ptr_eq(other, bell));
    }

    /// Makes a thread wait, once a bell is armed, for what a shared bundle takes from now on. Does nothing if there is a thread already.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn follow(&mut self, bundle: &SharedBundle) -> io::Result<()> {
        if self.watcher.is_some() {
            return Ok(());
        }
        let desk = self.desk.clone();
        desk.waker.get_or_init(|| bundle.waker());
        desk.put(Handle::Idle(bundle.clone()));
        let mine = desk.clone();
        let thread = std::thread::Builder::new().name(String::from("weft-watch"));
        let thread = thread.spawn(move || mine.watch()).inspect_err(|_| desk.put(Handle::None))?;
        self.watcher = Some(Watcher { desk, thread: Some(thread) });
        for bell in self.desk.bells() {
            bell.leave_bundle();
            // A waiting client checks once more, and arms it again.
            bell.ring();
        }
        Ok(())
    }

    /// Begins to arm the thread. Takes the thread's handle, for a last look at everything that came so far. `None` if the thread is armed
    /// already, or there is no thread.
    pub fn begin(&self) -> Option<SharedBundle> {
        let mut place = lock(&self.desk.handle);
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

    /// Ends what [`Alarm::begin`] began: from now on the thread waits for what has come since, or is left idle.
    pub fn end(&self, bundle: SharedBundle, is_armed: bool) {
        self.desk.put(if is_armed { Handle::Armed(bundle) } else { Handle::Idle(bundle) });
    }
}
