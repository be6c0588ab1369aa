//! Long messages and gets.

use super::{answer, Ep, ERR_BAD_ARG, ERR_RESOURCE};
use crate::endpoints;
use crate::guard::slice;
use crate::handle::Handle;
use std::ffi::{c_int, c_void};

use super::not_here;
use super::send::arguments;
use super::token::with_running;

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_SetSeg(endpoint: *mut Ep, _address: *mut c_void, _bytes: usize) -> c_int {
    answer(|| {
        endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        Err(ERR_RESOURCE)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_request_xfer(
    endpoint: *mut Ep,
    _to: u32,
    _offset: usize,
    _handler: u8,
    source: *const c_void,
    bytes: usize,
    _is_async: c_int,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        // SAFETY: the program's promise.
        unsafe { arguments(numargs, args) }?;
        // SAFETY: the program's promise.
        unsafe { slice(source.cast::<u8>(), bytes) }.ok_or(ERR_BAD_ARG)?;
        Err(ERR_RESOURCE)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_get_xfer(
    endpoint: *mut Ep,
    _to: u32,
    _source: usize,
    _handler: u8,
    _offset: usize,
    _bytes: usize,
    _is_async: c_int,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        // SAFETY: the program's promise.
        unsafe { arguments(numargs, args) }?;
        Err(ERR_RESOURCE)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_reply_xfer(
    token: *mut c_void,
    _offset: usize,
    _handler: u8,
    _source: *const c_void,
    _bytes: usize,
    numargs: c_int,
    args: *const i32,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        unsafe { arguments(numargs, args) }?;
        with_running(token, |_, _| Err(ERR_RESOURCE))?
    })
}
