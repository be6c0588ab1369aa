//! Polling, event masks, waiting.

use super::{answer, not_here, stale, Eb, ERR_BAD_ARG, ERR_NOT_INIT, ERR_RESOURCE, OK};
use crate::bundles::{self, Use, BUNDLES};
use crate::guard::{guard, store};
use crate::handle::Handle;
use std::ffi::c_int;
use std::sync::atomic::Ordering;

const NO_EVENTS: u32 = 0;
const NOT_EMPTY: u32 = 1;

#[no_mangle]
pub extern "C" fn AM_Poll(bundle: *mut Eb) -> c_int {
    guard(ERR_RESOURCE, || {
        let handle = Handle::from_c(bundle);
        // The fast path: the first thread of a sequential bundle, outside of handlers.
        if let Some((place, mut turn)) = BUNDLES.place(handle).and_then(|place| Some((place, place.own_first()?))) {
            let polled = turn.as_mut().filter(|_| place.is(handle)).map(|own| own.bundle.try_poll());
            if let Some(Ok(_)) = polled {
                return OK;
            }
        }
        poll_otherwise(handle).err().unwrap_or(OK)
    })
}

#[inline(never)]
fn poll_otherwise(handle: Handle) -> Result<(), c_int> {
    let Some(place) = BUNDLES.find(handle) else { return Err(stale()) };
    if place.is_parallel() {
        let mine = bundles::mine(place, handle).map_err(not_here)?;
        mine.bundle.poll().map_err(|in_handler| not_here(in_handler.into()))?;
        return Ok(());
    }
    let mut turn = place.own().map_err(not_here)?;
    let Some(own) = turn.as_mut().filter(|_| place.is(handle)) else { return Err(stale()) };
    if own.life.is_over() {
        return Err(ERR_NOT_INIT);
    }
    own.bundle.poll();
    Ok(())
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetEventMask(bundle: *mut Eb, mask: *mut c_int) -> c_int {
    answer(|| {
        let place = BUNDLES.find(Handle::from_c(bundle)).ok_or_else(stale)?;
        // SAFETY: the program's promise.
        unsafe { store(mask, place.mask.load(Ordering::Relaxed) as c_int) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

#[no_mangle]
pub extern "C" fn AM_SetEventMask(bundle: *mut Eb, mask: c_int) -> c_int {
    answer(|| {
        let place = BUNDLES.find(Handle::from_c(bundle)).ok_or_else(stale)?;
        let mask = u32::try_from(mask).ok().filter(|mask| [NO_EVENTS, NOT_EMPTY].contains(mask)).ok_or(ERR_BAD_ARG)?;
        place.mask.store(mask, Ordering::Relaxed);
        Ok(())
    })
}

/// Waits for a message, and polls. The handlers have run when it returns. With the mask AM_NOEVENTS it returns at once.
fn wait(handle: Handle) -> Result<(), c_int> {
    let place = BUNDLES.find(handle).ok_or_else(stale)?;
    if place.mask.load(Ordering::Relaxed) == NO_EVENTS {
        // A handler still gets the error that it may not wait.
        return bundles::with(handle, |used| match used {
            Use::Own(_) => Ok(()),
            Use::Shared(shared) => shared.hold().map(drop),
        })
        .map_err(not_here)?
        .map_err(|in_handler| not_here(in_handler.into()));
    }
    let waited = bundles::with(handle, |used| match used {
        Use::Own(bundle) => Ok(bundle.wait(None)),
        Use::Shared(bundle) => bundle.wait(None),
    });
    waited.map_err(not_here)?.map(|_| ()).map_err(|in_handler| not_here(in_handler.into()))
}

#[no_mangle]
pub extern "C" fn AM_Wait(bundle: *mut Eb) -> c_int {
    answer(|| wait(Handle::from_c(bundle)))
}

#[no_mangle]
pub extern "C" fn AM_WaitSema(bundle: *mut Eb) -> c_int {
    answer(|| wait(Handle::from_c(bundle)))
}
