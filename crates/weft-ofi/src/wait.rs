//! Waiting for what ends, outside of the domain's lock; and what a client may wait for by itself.

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
    /// It reads again and again.
    None,
    /// The provider's choice: its own calls.
    Calls,
    /// A descriptor, or a mutex and a condition.
    Bell(Arc<Bell>),
}

impl WaitObject {
    /// One of the kind that C names so.
    ///
    /// # Errors
    /// As C wants them: there is no such kind, or the system has no more.
    pub fn new(state: &mut State, kind: c_int) -> Result<WaitObject, c_int> {
        Ok(match kind {
            abi::WAIT_NONE => WaitObject::None,
            abi::WAIT_UNSPEC | abi::WAIT_YIELD => WaitObject::Calls,
            abi::WAIT_FD => WaitObject::Bell(state.new_event()?),
            abi::WAIT_MUTEX_COND => WaitObject::Bell(state.new_cond()?),
            _ => return Err(-libc::ENOSYS),
        })
    }

    /// Whether there are no calls that wait.
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

    /// Nobody waits for it any more.
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

/// A wait that nothing comes for takes so many turns before it sleeps, of which each looks many times: some 20 us in all. A wake-up
/// costs about as much.
const SPINS: u32 = 40;

/// It looks so often whether another thread has got what it waits for.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// After so many reads in vain the client may wait, and offers the processor to others, who may be what it waits for; and after as many once
/// more. With more ranks than processors each announced message took a time slice or two without that.
const VAIN: u32 = 16;

/// Somebody else had the processor if giving way took so long: for a time slice.
const LONG: Duration = Duration::from_micros(500);

/// Another program computes if that comes twice within so many turns. Once is a thread of the kernel's, or of somebody who sleeps again.
const LATELY: u32 = 64;

/// After that the client dozes so many times instead. A thread that dozes gets the processor back as soon as something comes.
const DOZES: u32 = 1000;

/// A doze without an arrival takes so long. The client may wait for something else, so it is short beside a time slice.
const DOZE: Duration = Duration::from_micros(100);

/// After such a doze it only yields the processor so many times. A client that works between two reads would lose a doze with each:
/// beside two other programs hpcc's random access took some ten times as long.
const BETWEEN: u32 = 63;

/// Reads of a queue or a counter.
#[derive(Debug, Default)]
pub struct Reads {
    /// Number of them in vain since one brought something, or since it gave way, up to [`VAIN`].
    vain: AtomicU32,
    /// Number of dozes left.
    dozes: AtomicU32,
    /// How often it only yields before the next one of them.
    between: AtomicU32,
    /// Number of yields in which one that takes long is the second one lately.
    lately: AtomicU32,
}

impl Reads {
    /// One was made. If it was in vain, as many before it, other threads of this processor have a turn.
    #[inline(always)]
    pub fn note(&self, is_vain: bool, state: &DomainCell<State>) {
        // Relaxed, and not counted in one step, here and below: it only decides whether to give way.
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
    /// Ends a turn in which nothing came: at once for the first ones, later when something comes or the time is over. `most` is what is
    /// left of the wait. The domain is free meanwhile, except for clients that use it from one thread at a time.
    pub fn wait(&mut self, state: &DomainCell<State>, most: Duration) {
        self.0 = self.0.saturating_add(1);
        if self.0 < SPINS {
            return;
        }
        doze(state, most.min(LOOK_EVERY));
    }
}

/// Sleeps until something comes, for so long at most. The domain is free meanwhile, except for clients that use it from one thread at a
/// time.
fn doze(state: &DomainCell<State>, most: Duration) {
    if state.is_serialised() {
        return state.with(|state| _ = state.bundle.wait(most));
    }
    match state.with(State::sleeper) {
        Some(Sleeper::Descriptor(fd, limit)) => sleep(fd, most.min(limit)),
        // It fails in a handler alone, and there are none.
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
    // SAFETY: there is one structure, which the call may change, and a time, which it reads. A descriptor that is none is told as such, and
    // then this returns at once.
    unsafe { libc::ppoll(&raw mut asked, 1, &raw const most, std::ptr::null()) };
}
