//! Waiting for ends, outside of the domain's lock; and wait objects, with which a client waits by itself.

use crate::abi;
use crate::bell::Bell;
use crate::bundle::Sleeper;
use crate::cell::DomainCell;
use crate::state::State;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The wait object of a queue or a counter.
#[derive(Debug)]
pub enum WaitObject {
    /// The client reads repeatedly.
    None,
    /// The provider's choice: its waiting calls.
    Calls,
    /// A descriptor, or a mutex and a condition.
    Bell(Arc<Bell>),
}

impl WaitObject {
    /// A wait object of a kind of C.
    ///
    /// # Errors
    /// An error code for C: there is no such kind, or the system has no more descriptors.
    pub fn new(state: &mut State, kind: c_int) -> Result<WaitObject, c_int> {
        Ok(match kind {
            abi::WAIT_NONE => WaitObject::None,
            abi::WAIT_UNSPEC | abi::WAIT_YIELD => WaitObject::Calls,
            abi::WAIT_FD => WaitObject::Bell(state.new_event()?),
            abi::WAIT_MUTEX_COND => WaitObject::Bell(state.new_cond()?),
            _ => return Err(-libc::ENOSYS),
        })
    }

    /// Whether the waiting calls are not available.
    pub fn is_none(&self) -> bool {
        matches!(self, WaitObject::None)
    }

    /// The bell, if it is one.
    pub fn bell(&self) -> Option<&Arc<Bell>> {
        match self {
            WaitObject::Bell(bell) => Some(bell),
            WaitObject::None | WaitObject::Calls => None,
        }
    }

    /// Removes it: nobody waits on it any more.
    pub fn close(&self, state: &mut State) {
        if let WaitObject::Bell(bell) = self {
            state.remove_bell(bell);
        }
    }

    /// Gives it to C (`FI_GETWAIT`).
    ///
    /// # Safety
    /// There is room for what it is: a descriptor, or pointers to a mutex and a condition.
    pub unsafe fn give(&self, place: *mut c_void) -> c_int {
        let Some(bell) = self.bell() else { return -libc::ENOSYS };
        // SAFETY: the caller's promise.
        unsafe { bell.give(place) };
        0
    }
}

/// Turns of a wait before it sleeps, if nothing comes. Each turn looks many times; together they take some 20 us, about as long as a
/// wakeup.
const SPINS: u32 = 40;

/// How often to check whether another thread has taken the awaited result.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// After this many empty reads in a row the client is probably waiting, and yields the processor, perhaps to the process that it waits for;
/// and again after each further batch. This matters with more ranks than processors.
const VAIN: u32 = 16;

/// If a yield took so long, another thread had the processor for a time slice.
const LONG: Duration = Duration::from_micros(500);

/// If that happens twice within so many turns, another program is computing. A single one may be a kernel thread, or a thread that sleeps
/// again.
const LATELY: u32 = 64;

/// Then the client dozes so many times, instead of yielding. A thread that dozes gets the processor back as soon as something comes.
const DOZES: u32 = 1000;

/// The length of a doze without an arrival. Short compared to a time slice, because the client may be waiting for something else.
const DOZE: Duration = Duration::from_micros(100);

/// After such a doze it only yields so many times, because a client that works between two reads would lose a doze with each.
const BETWEEN: u32 = 63;

/// The reads of a queue or a counter.
#[derive(Debug, Default)]
pub struct Reads {
    /// Empty reads since the last useful one, or since the last yield, up to [`VAIN`].
    vain: AtomicU32,
    /// Number of dozes left.
    dozes: AtomicU32,
    /// How many yields to make before the next doze.
    between: AtomicU32,
    /// Turns within which a second long yield counts.
    lately: AtomicU32,
}

impl Reads {
    /// Notes a read. After many empty ones it lets other threads use the processor.
    #[inline(always)]
    pub fn note(&self, is_vain: bool, state: &DomainCell<State>) {
        // Relaxed, and not an atomic increment, here and below: it only decides whether to yield.
        let vain = self.vain.load(Ordering::Relaxed);
        if !is_vain {
            if vain > 0 {
                self.vain.store(0, Ordering::Relaxed);
            }
        } else if vain < VAIN {
            self.vain.store(vain + 1, Ordering::Relaxed);
        } else {
            self.vain.store(0, Ordering::Relaxed);
            self.give_way(state);
        }
    }

    #[inline(never)]
    fn give_way(&self, state: &DomainCell<State>) {
        let (dozes, between) = (self.dozes.load(Ordering::Relaxed), self.between.load(Ordering::Relaxed));
        let begin = Instant::now();
        if dozes > 0 && between == 0 {
            self.dozes.store(dozes - 1, Ordering::Relaxed);
            doze(state, DOZE);
            if begin.elapsed() >= DOZE {
                self.between.store(BETWEEN, Ordering::Relaxed);
            }
            return;
        }
        self.between.store(between.saturating_sub(1), Ordering::Relaxed);
        std::thread::yield_now();
        let lately = self.lately.load(Ordering::Relaxed);
        if begin.elapsed() < LONG {
            return self.lately.store(lately.saturating_sub(1), Ordering::Relaxed);
        }
        self.lately.store(LATELY, Ordering::Relaxed);
        if lately > 0 || dozes > 0 {
            self.dozes.store(DOZES, Ordering::Relaxed);
            self.between.store(0, Ordering::Relaxed);
        }
    }
}

/// The turns of a wait.
#[derive(Debug, Default)]
pub struct Turns(u32);

impl Turns {
    /// Ends a turn in which nothing came: at once for the first turns, and later when something comes or the time is over. `most` is the
    /// rest of the wait. The domain is unlocked meanwhile, except for clients that promise to use it from one thread at a time.
    pub fn wait(&mut self, state: &DomainCell<State>, most: Duration) {
        self.0 = self.0.saturating_add(1);
        if self.0 < SPINS {
            return;
        }
        doze(state, most.min(LOOK_EVERY));
    }
}

/// Sleeps until something comes, at most so long. The domain is unlocked meanwhile, except for clients that promise to use it from one
/// thread at a time.
fn doze(state: &DomainCell<State>, most: Duration) {
    if state.is_serialised() {
        return state.with(|state| _ = state.bundle.wait(most));
    }
    match state.with(State::sleeper) {
        Some(Sleeper::Descriptor(fd, limit)) => sleep(fd, most.min(limit)),
        // It fails only in a handler, and there are none.
        Some(Sleeper::Shared(bundle)) => _ = bundle.wait(Some(most)),
        None => {}
    }
}

/// Sleeps until a descriptor can be read, for so long at most.
fn sleep(fd: c_int, most: Duration) {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let most = libc::timespec {
        tv_sec: most.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: most.subsec_nanos().into(),
    };
    // SAFETY: there is one structure, which the call may change, and a time, which it reads. For an invalid descriptor the call reports
    // that, and this returns at once.
    unsafe { libc::ppoll(&raw mut asked, 1, &raw const most, std::ptr::null()) };
}
