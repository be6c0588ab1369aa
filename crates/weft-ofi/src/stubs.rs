//! Calls that there are not, and objects that need to do nothing.

use crate::abi::{self, EqOps, Fid, FidEq, Ops, Stub, StubOps};
use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::time::Duration;

/// The answer of every call that the provider does not have.
pub unsafe extern "C" fn no_such_call() -> isize {
    -(libc::ENOSYS as isize)
}

pub const NONE: Stub = no_such_call;

/// A table of calls that there are not.
pub const fn none<const N: usize>() -> StubOps<N> {
    StubOps { size: size_of::<StubOps<N>>(), calls: [NONE; N] }
}

/// Nothing is kept that would have to be given back.
pub unsafe extern "C" fn cleanup() {}

pub unsafe extern "C" fn no_bind(_fid: *mut Fid, _other: *mut Fid, _flags: u64) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_control(_fid: *mut Fid, _command: c_int, _arg: *mut c_void) -> c_int {
    -libc::ENOSYS
}

/// The head's table of an object that can only be closed.
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

/// Hands an object to C. It begins with what C knows of it.
///
/// # Safety
/// `place` can be written.
pub unsafe fn give<T, F>(object: Box<T>, place: *mut *mut F) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { *place = Box::into_raw(object).cast() };
    0
}

// ---- event queues: nothing ever happens in one, for endpoints without connections

static EQ_OPS: Ops = ops(eq_close);
static EQ: EqOps = EqOps {
    size: size_of::<EqOps>(),
    read: eq_read,
    readerr: eq_readerr,
    write: NONE,
    sread: eq_sread,
    strerror: eq_strerror,
};

pub unsafe extern "C" fn eq_open(
    _fabric: *mut abi::FidFabric,
    _attr: *mut c_void,
    place: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    let fid = Fid { fclass: abi::CLASS_EQ, context, ops: &EQ_OPS };
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(FidEq { fid, ops: &EQ }), place) }
}

unsafe extern "C" fn eq_close(fid: *mut Fid) -> c_int {
    // SAFETY: `eq_open` made it, and nobody has it after this.
    drop(unsafe { Box::from_raw(fid.cast::<FidEq>()) });
    0
}

unsafe extern "C" fn eq_read(_eq: *mut FidEq, _event: *mut u32, _buf: *mut c_void, _len: usize, _flags: u64) -> isize {
    -(libc::EAGAIN as isize)
}

unsafe extern "C" fn eq_readerr(_eq: *mut FidEq, _buf: *mut c_void, _flags: u64) -> isize {
    -(libc::EAGAIN as isize)
}

unsafe extern "C" fn eq_sread(
    _eq: *mut FidEq,
    _event: *mut u32,
    _buf: *mut c_void,
    _len: usize,
    timeout: c_int,
    _flags: u64,
) -> isize {
    match u64::try_from(timeout) {
        Ok(timeout) => std::thread::sleep(Duration::from_millis(timeout)),
        Err(_) => loop {
            std::thread::park();
        },
    }
    -(libc::EAGAIN as isize)
}

unsafe extern "C" fn eq_strerror(
    _eq: *mut FidEq,
    _number: c_int,
    _data: *const c_void,
    _buf: *mut c_char,
    _len: usize,
) -> *const c_char {
    c"there are no events".as_ptr()
}
