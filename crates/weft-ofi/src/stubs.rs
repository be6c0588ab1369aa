//! Calls that there are not, and objects that need to do nothing.

use crate::abi::{self, EqOps, Fid, FidEq, FidMr, MrAttr, MrOps, Ops, Stub, StubOps};
use libc::iovec;
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

// ---- memory regions: nothing needs one, and whoever registers memory all the same gets one

static MR_OPS: Ops = Ops { bind: mr_bind, control: mr_control, ..ops(mr_close) };

pub static MR: MrOps = MrOps { size: size_of::<MrOps>(), reg: mr_reg, regv: mr_regv, regattr: mr_regattr };

/// # Safety
/// `place` can be written.
unsafe fn mr(key: u64, context: *mut c_void, place: *mut *mut FidMr) -> c_int {
    let fid = Fid { fclass: abi::CLASS_MR, context, ops: &MR_OPS };
    // SAFETY: the caller's promise.
    unsafe { give(Box::new(FidMr { fid, mem_desc: std::ptr::null_mut(), key }), place) }
}

unsafe extern "C" fn mr_reg(
    _domain: *mut Fid,
    _start: *const c_void,
    _len: usize,
    _access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's promise.
    unsafe { mr(key, context, place) }
}

unsafe extern "C" fn mr_regv(
    _domain: *mut Fid,
    _iov: *const iovec,
    _count: usize,
    _access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's promise.
    unsafe { mr(key, context, place) }
}

unsafe extern "C" fn mr_regattr(_domain: *mut Fid, attr: *const MrAttr, _flags: u64, place: *mut *mut FidMr) -> c_int {
    // SAFETY: libfabric's promise of the place, and the client's of the attributes.
    unsafe { mr((*attr).requested_key, (*attr).context, place) }
}

unsafe extern "C" fn mr_close(fid: *mut Fid) -> c_int {
    // SAFETY: `mr` made it, and nobody has it after this.
    drop(unsafe { Box::from_raw(fid.cast::<FidMr>()) });
    0
}

unsafe extern "C" fn mr_bind(_fid: *mut Fid, _other: *mut Fid, _flags: u64) -> c_int {
    0
}

unsafe extern "C" fn mr_control(_fid: *mut Fid, command: c_int, _arg: *mut c_void) -> c_int {
    match command {
        abi::CONTROL_ENABLE => 0,
        _ => -libc::ENOSYS,
    }
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
