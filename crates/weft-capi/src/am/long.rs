//! Segments, long messages and gets.

use super::returned::{misused, Outgoing, Status};
use super::send::{arguments, bad_args, reply_error};
use super::token::with_running;
use super::{answer, not_done, not_here, not_sent, Ep, ERR_BAD_ARG, ERR_IN_USE, ERR_RESOURCE};
use crate::bundles::{NotHere, Use};
use crate::endpoints;
use crate::guard::slice;
use crate::handle::Handle;
use crate::of_either_held;
use crate::running::Running;
use std::ffi::{c_int, c_void};
use weft::am::{Get, Long};
use weft::memory::Window;
use weft::{Contents, Endpoint, Error, SendError};

/// The most bytes of a long message: `AM_MaxLong()`.
const LONG_MOST: usize = 0x4000_0000;

/// The offset of a long message that stands for a medium one without bytes. A short message has no buffer for its handler, and the two
/// could not be told apart otherwise. No byte of a segment has this offset.
pub const MEDIUM_WITHOUT_BYTES: u64 = u64::MAX;

/// # Safety
/// The program's promise: what is lent stays, and the program has no references of Rust or C++ to it, until another segment is set or
/// the endpoint is freed.
#[no_mangle]
pub unsafe extern "C" fn AM_SetSeg(endpoint: *mut Ep, address: *mut c_void, bytes: usize) -> c_int {
    answer(|| {
        let is_whole = address.is_null() && bytes == usize::MAX;
        let fits = address.addr().checked_add(bytes).is_some() && bytes <= isize::MAX as usize;
        let window = if is_whole {
            // SAFETY: the program's promise: it lets whoever knows the tag write anywhere.
            Some(unsafe { Window::whole_address_space() }.map_err(|_| ERR_RESOURCE)?)
        } else if bytes == 0 {
            None
        } else if address.is_null() || !fits {
            return Err(ERR_BAD_ARG);
        } else {
            // SAFETY: the program's promise.
            Some(unsafe { Window::lend(address.cast(), bytes) })
        };
        let set = endpoints::with(Handle::from_c(endpoint), |used, own, place| -> Result<(), Error> {
            of_either_held!(used, bundle => {
                bundle.set_segment(own, window)?;
                place.said().segment = (address.expose_provenance(), bytes);
            });
            Ok(())
        });
        set.map_err(not_here)?.map_err(not_done)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_request_xfer(
    endpoint: *mut Ep,
    to: u32,
    offset: usize,
    handler: u8,
    source: *const c_void,
    bytes: usize,
    is_async: c_int,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let args = unsafe { arguments(numargs, args) };
        // SAFETY: the program's promise.
        let contents = unsafe { long_contents(source, bytes, offset) };
        let (Ok(args), Ok(contents)) = (args, contents) else { return bad_args(endpoint, to, handler) };
        let long = Long { handler, args, offset: offset as u64 };
        request(Handle::from_c(endpoint), to, long, contents, is_async != 0)
    })
}

/// The contents of a call that places them at an offset of a segment.
///
/// # Safety
/// The program's promise.
unsafe fn long_contents<'a>(source: *const c_void, bytes: usize, offset: usize) -> Result<&'a [u8], c_int> {
    if bytes > LONG_MOST || offset.checked_add(bytes).is_none() {
        return Err(ERR_BAD_ARG);
    }
    // SAFETY: the program's promise.
    unsafe { slice(source.cast::<u8>(), bytes) }.ok_or(ERR_BAD_ARG)
}

/// Polls, and sends a long request. Blocks until there is room, unless it is asynchronous. Copies the contents, so the program may reuse
/// its buffer when this returns.
pub fn request(handle: Handle, to: u32, long: Long<'_>, contents: &[u8], is_async: bool) -> Result<(), c_int> {
    let mut kept = Some(Contents::from(contents.to_vec()));
    let sent = insist(handle, |used, own| {
        let contents = kept.take().unwrap_or_else(|| Vec::new().into());
        let sent = match used {
            Use::Own(bundle) => {
                bundle.poll();
                match is_async {
                    true => bundle.try_request_long(own, to, long, contents),
                    false => bundle.request_long(own, to, long, contents),
                }
            }
            Use::Shared(bundle) => match (bundle.poll(), is_async) {
                (Err(in_handler), _) => Err((in_handler.into(), contents)),
                (Ok(_), true) => bundle.try_request_long(own, to, long, contents),
                (Ok(_), false) => bundle.request_long(own, to, long, contents),
            },
        };
        sent.map_err(|(error, contents)| {
            kept = Some(contents);
            error
        })
    })?;
    match sent {
        Ok(()) => Ok(()),
        Err(SendError::Full) if is_async => Err(ERR_IN_USE),
        Err(error @ SendError::NotMapped(_)) => {
            let what = Outgoing { to, handler: long.handler, args: long.args, payload: contents };
            misused(handle, Status::BadEntry, not_sent(error), what)
        }
        Err(error) => Err(not_sent(error)),
    }
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_get_xfer(
    endpoint: *mut Ep,
    to: u32,
    source: usize,
    handler: u8,
    offset: usize,
    bytes: usize,
    is_async: c_int,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let args = unsafe { arguments(numargs, args) };
        let fits = source.checked_add(bytes).and(offset.checked_add(bytes)).is_some() && bytes <= LONG_MOST;
        let (Ok(args), true) = (args, fits) else { return bad_args(endpoint, to, handler) };
        let (source, len, offset) = (source as u64, bytes as u64, offset as u64);
        let get = Get { handler, args, source, len, offset };
        let handle = Handle::from_c(endpoint);
        let sent = insist(handle, |used, own| match (used, is_async != 0) {
            (Use::Own(bundle), is_async) => {
                bundle.poll();
                match is_async {
                    true => bundle.try_get(own, to, get),
                    false => bundle.get(own, to, get),
                }
            }
            (Use::Shared(bundle), is_async) => {
                bundle.poll()?;
                match is_async {
                    true => bundle.try_get(own, to, get),
                    false => bundle.get(own, to, get),
                }
            }
        })?;
        match sent {
            Ok(()) => Ok(()),
            Err(SendError::Full) if is_async != 0 => Err(ERR_IN_USE),
            Err(error @ SendError::NotMapped(_)) => {
                misused(handle, Status::BadEntry, not_sent(error), Outgoing { to, handler, args, payload: &[] })
            }
            Err(error) => Err(not_sent(error)),
        }
    })
}

/// Makes a call, and repeats it if the endpoint moved before the call reached its bundle.
fn insist(
    handle: Handle,
    mut call: impl FnMut(Use<'_>, Endpoint) -> Result<(), SendError>,
) -> Result<Result<(), SendError>, c_int> {
    loop {
        let place = endpoints::find(handle).map_err(not_here)?;
        let before = place.home().map(|home| home.handle);
        let sent = match endpoints::with(handle, |used, own, _| call(used, own)) {
            Ok(sent) => sent,
            Err(NotHere::InHandler) => Err(SendError::InHandler),
            Err(not) => return Err(not_here(not)),
        };
        if sent != Err(SendError::NoEndpoint) {
            return Ok(sent);
        }
        while place.is_moving() {
            std::thread::yield_now();
        }
        if place.home().map(|home| home.handle) == before {
            return Ok(sent);
        }
    }
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_reply_xfer(
    token: *mut c_void,
    offset: usize,
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
        let contents = unsafe { long_contents(source, bytes, offset) }?;
        reply(token, Long { handler, args, offset: offset as u64 }, contents)
    })
}

/// Replies with a long message. Does not block.
pub fn reply(token: *mut c_void, long: Long<'_>, contents: &[u8]) -> Result<(), c_int> {
    with_running(token, |running, _| match running {
        Running::Message(message) => message.reply_long(long, contents.to_vec()).map_err(reply_error),
        Running::Returned(_) => Err(ERR_RESOURCE),
    })?
}
