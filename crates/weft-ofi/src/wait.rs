//! Waiting for what ends, outside of the domain's lock; and what a client may wait for by itself.

use crate::abi;
use crate::bell::Bell;
use crate::bundle::Sleeper;
use crate::cell::DomainCell;
use crate::state::State;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

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

/// After so many reads in vain the client waits: each further one offers the processor to others, who may be what it waits for. With more
/// ranks than processors each message of more than 16 KiB took a time slice or two without that.
const VAIN: u32 = 16;

/// Reads of a queue or a counter since one brought something.
#[derive(Debug, Default)]
pub struct Reads(AtomicU32);

impl Reads {
    /// One was made. If it was in vain, as many before it, other threads of this processor have a turn.
    #[inline(always)]
    pub fn note(&self, is_vain: bool) {
        // Relaxed, and not counted in one step: it only decides whether to give way.
        let vain = self.0.load(Ordering::Relaxed);
        if !is_vain {
            if vain > 0 {
                self.0.store(0, Ordering::Relaxed);
            }
        } else if vain < VAIN {
            self.0.store(vain + 1, Ordering::Relaxed);
        } else {
            std::thread::yield_now();
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
        let most = most.min(LOOK_EVERY);
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
}

/// Sleeps until a descriptor can be read, for so long at most.
fn sleep(fd: c_int, most: Duration) {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Rounded up: with 0 it would not sleep.
    let most = most.as_micros().div_ceil(1000).try_into().unwrap_or(c_int::MAX);
    // SAFETY: there is one structure, which the call may change. A descriptor that is none is told as such, and then this returns at once.
    unsafe { libc::poll(&raw mut asked, 1, most) };
}
