//! Calls that do not exist.

use crate::abi::{Fid, Ops, Stub, StubOps};
use std::ffi::{c_int, c_void};
use std::mem::size_of;

/// The answer of every call that the provider does not have.
pub unsafe extern "C" fn no_such_call() -> isize {
    -(libc::ENOSYS as isize)
}

pub const NONE: Stub = no_such_call;

/// A table of calls that do not exist.
pub const fn none<const N: usize>() -> StubOps<N> {
    StubOps { size: size_of::<StubOps<N>>(), calls: [NONE; N] }
}

/// Nothing to free.
pub unsafe extern "C" fn cleanup() {}

pub unsafe extern "C" fn no_bind(_fid: *mut Fid, _other: *mut Fid, _flags: u64) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_control(_fid: *mut Fid, _command: c_int, _arg: *mut c_void) -> c_int {
    -libc::ENOSYS
}

/// The table of an object's head, for an object that can only be closed.
pub const fn ops(close: unsafe extern "C" fn(*mut Fid) -> c_int) -> Ops {
    Ops {
        size: size_of::<Ops>(),
        close,
        bind: no_bind,
        control: no_control,
        ops_open: NONE,
        tostr: NONE,
        ops_set: NONE,
    }
}

/// Hands an object to C. It begins with the part that C knows.
///
/// # Safety
/// `place` can be written.
pub unsafe fn give<T, F>(object: Box<T>, place: *mut *mut F) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { *place = Box::into_raw(object).cast() };
    0
}
