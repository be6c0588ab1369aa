//! Requests and replies, short and medium. The macros and variadic functions of the headers call these.

use super::long::{self, MEDIUM_WITHOUT_BYTES};
use super::returned::{misused, Outgoing, Status};
use super::token::with_running;
use super::{
    answer, not_here, not_sent, stale, Ep, ERR_BAD_ARG, ERR_NOT_INIT, ERR_NOT_SENT, ERR_RESOURCE, MEDIUM_MOST,
};
use crate::bundles;
use crate::endpoints::{Home, ENDPOINTS};
use crate::guard::slice;
use crate::handle::Handle;
use std::ffi::{c_int, c_void};
use weft::am::{Long, NotReplied};
use weft::{ReplyError, SendError, MAX_ARGS};

/// The arguments of a call.
///
/// # Safety
/// The program's promise.
#[inline(always)]
pub unsafe fn arguments<'a>(count: c_int, args: *const i32) -> Result<&'a [u32], c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_ARGS).ok_or(ERR_BAD_ARG)?;
    // SAFETY: the program's promise.
    unsafe { slice(args.cast::<u32>(), count) }.ok_or(ERR_BAD_ARG)
}

/// The payload of a call.
///
/// # Safety
/// The program's promise.
#[inline(always)]
unsafe fn contents<'a>(source: *const c_void, bytes: usize) -> Result<&'a [u8], c_int> {
    if bytes > MEDIUM_MOST {
        return Err(ERR_BAD_ARG);
    }
    // SAFETY: the program's promise.
    unsafe { slice(source.cast::<u8>(), bytes) }.ok_or(ERR_BAD_ARG)
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_request(
    endpoint: *mut Ep,
    to: u32,
    handler: u8,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Ok(args) = (unsafe { arguments(numargs, args) }) else { return bad_args(endpoint, to, handler) };
        request(Handle::from_c(endpoint), to, handler, args, &[])
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_request_i(
    endpoint: *mut Ep,
    to: u32,
    handler: u8,
    source: *const c_void,
    bytes: usize,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Ok(args) = (unsafe { arguments(numargs, args) }) else { return bad_args(endpoint, to, handler) };
        // SAFETY: the program's promise.
        let Ok(payload) = (unsafe { contents(source, bytes) }) else { return bad_args(endpoint, to, handler) };
        if payload.is_empty() {
            let long = Long { handler, args, offset: MEDIUM_WITHOUT_BYTES };
            return long::request(Handle::from_c(endpoint), to, long, payload, false);
        }
        request(Handle::from_c(endpoint), to, handler, args, payload)
    })
}

/// Handles a request whose arguments are wrong. They are not passed on, because they cannot be read.
#[cold]
pub fn bad_args(endpoint: *mut Ep, to: u32, handler: u8) -> Result<(), c_int> {
    misused(Handle::from_c(endpoint), Status::BadArgs, ERR_BAD_ARG, Outgoing { to, handler, args: &[], payload: &[] })
}

/// Sends a request. Every 16th polls first. Blocks until there is room, and polls meanwhile.
#[inline(always)]
fn request(handle: Handle, to: u32, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), c_int> {
    match request_first(handle, to, handler, args, payload) {
        true => Ok(()),
        false => request_otherwise(handle, Outgoing { to, handler, args, payload }),
    }
}

/// The fast path: the first thread of a sequential bundle asks outside of handlers, and there is room. Otherwise false, with nothing sent.
#[inline(always)]
fn request_first(handle: Handle, to: u32, handler: u8, args: &[u32], payload: &[u8]) -> bool {
    let Some(place) = ENDPOINTS.place(handle) else { return false };
    let Some((bundle, endpoint)) = place.home_now() else { return false };
    let Some(mut turn) = bundle.own_first() else { return false };
    // Freeing or moving the endpoint or its bundle takes the turn, so both stay while this call has it.
    let Some(own) = turn.as_mut().filter(|_| place.is(handle)) else { return false };
    if bundles::polls(&mut own.requests) && !poll(own) {
        return false;
    }
    own.bundle.try_request(endpoint, to, handler, args, payload).is_ok()
}

/// A function of its own, to keep it out of the path of requests that do not poll. False in a forked child.
#[inline(never)]
fn poll(own: &mut bundles::Own) -> bool {
    own.bundle.try_poll().is_ok()
}

#[inline(never)]
fn request_otherwise(handle: Handle, what: Outgoing<'_>) -> Result<(), c_int> {
    let Outgoing { to, handler, args, payload } = what;
    let Some(place) = ENDPOINTS.place(handle) else { return Err(stale()) };
    let Some(home) = place.home() else { return Err(stale()) };
    if home.bundle.is_parallel() {
        return request_shared(handle, home, to, handler, args, payload);
    }
    let mut turn = home.bundle.own().map_err(not_here)?;
    let Some(own) = turn.as_mut().filter(|_| place.is(handle) && home.bundle.is(home.handle)) else {
        return Err(stale());
    };
    if own.life.is_over() {
        return Err(ERR_NOT_INIT);
    }
    if bundles::polls(&mut own.requests) && !poll(own) {
        return Err(ERR_NOT_INIT);
    }
    let sent = own.bundle.request(home.endpoint, to, handler, args, payload);
    drop(turn);
    sent.or_else(|error| after_error(handle, home, error, what))
}

#[inline(never)]
fn request_shared(handle: Handle, home: Home, to: u32, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), c_int> {
    let mine = bundles::mine(home.bundle, home.handle).map_err(not_here)?;
    if ENDPOINTS.find(handle).is_none() {
        return Err(stale());
    }
    let mut held = mine.bundle.hold().map_err(|in_handler| not_here(in_handler.into()))?;
    let mut requests = mine.requests.get();
    if bundles::polls(&mut requests) {
        held.poll();
    }
    mine.requests.set(requests);
    let sent = held.try_request(home.endpoint, to, handler, args, payload);
    drop(held);
    let sent = match sent {
        Err(SendError::Full) => mine.bundle.request(home.endpoint, to, handler, args, payload),
        sent => sent,
    };
    match sent {
        Ok(()) => Ok(()),
        Err(error) => after_error(handle, home, error, Outgoing { to, handler, args, payload }),
    }
}

/// Handles a request that a bundle did not take. It is repeated if the endpoint moved before it reached its bundle.
#[cold]
#[inline(never)]
fn after_error(handle: Handle, home: Home, error: SendError, what: Outgoing<'_>) -> Result<(), c_int> {
    let code = not_sent(error);
    match error {
        SendError::NotMapped(_) => return misused(handle, Status::BadEntry, code, what),
        SendError::NoEndpoint => {}
        _ => return Err(code),
    }
    let place = ENDPOINTS.find(handle).ok_or_else(stale)?;
    while place.is_moving() {
        std::thread::yield_now();
    }
    match place.home() {
        Some(now) if now.handle != home.handle => request_otherwise(handle, what),
        _ => Err(code),
    }
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_reply(token: *mut c_void, handler: u8, numargs: c_int, args: *const i32) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let args = unsafe { arguments(numargs, args) }?;
        reply(token, handler, args, &[])
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_reply_i(
    token: *mut c_void,
    handler: u8,
    source: *const c_void,
    bytes: usize,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let args = unsafe { arguments(numargs, args) }?;
        // SAFETY: the program's promise.
        let payload = unsafe { contents(source, bytes) }?;
        if payload.is_empty() {
            return long::reply(token, Long { handler, args, offset: MEDIUM_WITHOUT_BYTES }, payload);
        }
        reply(token, handler, args, payload)
    })
}

/// Replies, once, to the request whose handler runs. Does not block and does not poll.
#[inline(always)]
fn reply(token: *mut c_void, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), c_int> {
    let handle = Handle::from(token);
    let Some(place) = ENDPOINTS.place(handle) else { return Err(ERR_BAD_ARG) };
    // Inlined here and not in a closure: a short reply has no payload to check.
    let Some(mut message) = place.desk.message(handle) else {
        return with_running(token, |_, _| Err(ERR_RESOURCE))?;
    };
    // SAFETY: it is used before the handler that makes this call returns, and no handler is called meanwhile.
    let message = unsafe { message.as_mut() };
    message.reply(handler, args, payload).map_err(reply_error)
}

/// The code for a reply that was refused.
#[cold]
pub fn reply_error(error: NotReplied) -> c_int {
    match error {
        NotReplied::Refused(ReplyError::TooLarge) => ERR_BAD_ARG,
        NotReplied::Refused(ReplyError::Forked) => ERR_NOT_INIT,
        // The same as a reply to a peer that ends before it arrives.
        NotReplied::Refused(ReplyError::PeerLost) => ERR_NOT_SENT,
        NotReplied::NothingToReplyTo => ERR_RESOURCE,
    }
}
