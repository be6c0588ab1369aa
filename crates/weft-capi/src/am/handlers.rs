//! Handler tables, and how a C handler is run for a message.

use super::long::MEDIUM_WITHOUT_BYTES;
use super::{answer, not_done, not_here, returned, Ep, ERR_BAD_ARG, ERR_RESOURCE};
use crate::endpoints;
use crate::guard::store;
use crate::handle::{Handle, Place};
use crate::invoke::{self, Handler, ReturnHandler};
use crate::of_either;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use weft::am::Message;
use weft::Placed;

const HANDLERS: c_int = 256;

/// Sets a handler, or replaces one. Handler 0 gets the messages that come back.
fn set(endpoint: Handle, number: u8, handler: Handler) -> Result<(), c_int> {
    if number == 0 {
        // SAFETY: both are pointers to functions; by the program's promise handler 0 takes what a `ReturnHandler` takes.
        let handler = unsafe { std::mem::transmute::<Handler, ReturnHandler>(handler) };
        return returned::set(endpoint, handler);
    }
    let set = endpoints::with(endpoint, |used, own, place| {
        let run = move |message: &mut Message<'_>| run(place, handler, message);
        of_either!(used, bundle => bundle.on(own, number, run)).map_err(not_done)?;
        place.said().handlers.insert(number);
        Ok(())
    });
    set.map_err(not_here)?
}

#[no_mangle]
pub extern "C" fn am_set_handler(endpoint: *mut Ep, number: u8, handler: Option<Handler>) -> c_int {
    answer(|| set(Handle::from_c(endpoint), number, handler.ok_or(ERR_BAD_ARG)?))
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_set_handler_any(endpoint: *mut Ep, number: *mut u8, handler: Option<Handler>) -> c_int {
    answer(|| {
        let (endpoint, handler) = (Handle::from_c(endpoint), handler.ok_or(ERR_BAD_ARG)?);
        if number.is_null() {
            return Err(ERR_BAD_ARG);
        }
        let place = endpoints::find(endpoint).map_err(not_here)?;
        let free = (1..=u8::MAX).find(|number| !place.said().handlers.contains(number)).ok_or(ERR_RESOURCE)?;
        set(endpoint, free, handler)?;
        // SAFETY: the program's promise.
        unsafe { store(number, free) };
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn AM_MaxNumHandlers() -> c_int {
    HANDLERS
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetNumHandlers(endpoint: *mut Ep, count: *mut c_int) -> c_int {
    answer(|| {
        endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        // SAFETY: the program's promise.
        unsafe { store(count, HANDLERS) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

#[no_mangle]
pub extern "C" fn AM_SetNumHandlers(endpoint: *mut Ep, count: c_int) -> c_int {
    answer(|| {
        endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        match count {
            ..0 => Err(ERR_BAD_ARG),
            0..=HANDLERS => Ok(()),
            _ => Err(ERR_RESOURCE),
        }
    })
}

/// Runs a handler of C for a message.
#[inline(always)]
fn run(place: &'static Place<endpoints::State>, handler: Handler, message: &mut Message<'_>) {
    let (args, payload, placed) = (message.args(), message.payload(), message.placed());
    place.desk.run(message, |token| {
        if let Some(placed) = placed {
            long(place, handler, token, args, placed);
        } else if payload.is_empty() {
            // SAFETY: the program's promise.
            unsafe { invoke::short(handler, token, args) }
        } else {
            medium(handler, token, args, payload);
        }
    });
}

/// Calls a handler of long messages, whose bytes are in the segment, or of a medium one without bytes.
#[cold]
#[inline(never)]
fn long(place: &Place<endpoints::State>, handler: Handler, token: *mut c_void, args: &[u32], placed: Placed) {
    let mut nothing = [0u64; 1];
    let buffer: *mut c_void = match placed.offset {
        MEDIUM_WITHOUT_BYTES => nothing.as_mut_ptr().cast(),
        // The bytes lie within the segment. Without bytes the pointer is one that the handler must not follow.
        offset => {
            let start = place.said().segment.0;
            std::ptr::with_exposed_provenance_mut(start.wrapping_add(offset as usize))
        }
    };
    // SAFETY: the program's promise.
    unsafe { invoke::with_buffer(handler, token, buffer, placed.len as usize, args) }
}

/// Payloads of at most so many bytes are copied to the stack.
const FEW: usize = 256;

/// Words that a payload is copied to, for its alignment.
type Buffer = Box<[u64; super::MEDIUM_MOST / 8]>;

thread_local! {
    /// The buffer for longer payloads, unless a handler that polls another bundle is using it.
    static SPARE: Cell<Option<Buffer>> = const { Cell::new(None) };
}

/// Calls a handler of medium messages with a copy of the payload: AM-II lets the handler write into its buffer, and the original may be the
/// peer's memory.
#[inline(never)]
fn medium(handler: Handler, token: *mut c_void, args: &[u32], payload: &[u8]) {
    let call = |buffer: &mut [u64]| {
        let buffer: *mut c_void = buffer.as_mut_ptr().cast();
        // SAFETY: both callers below have room for the payload, and the buffer is theirs alone.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), buffer.cast(), payload.len()) };
        // SAFETY: the program's promise.
        unsafe { invoke::with_buffer(handler, token, buffer, payload.len(), args) }
    };
    if payload.len() <= FEW {
        return call(&mut [0; FEW / 8]);
    }
    if payload.len() > super::MEDIUM_MOST {
        // No message of weft is longer.
        return;
    }
    // A thread that is ending has no buffer, and keeps none.
    let spare = SPARE.try_with(Cell::take).ok().flatten();
    let mut buffer = spare.unwrap_or_else(|| Box::new([0; super::MEDIUM_MOST / 8]));
    call(&mut buffer[..]);
    _ = SPARE.try_with(|spare| spare.set(Some(buffer)));
}
