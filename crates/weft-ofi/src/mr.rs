//! Memory registration, as C calls it. `regions.rs` does the work.

use crate::abi::{self, Fid, FidMr, MrAttr, MrOps, Ops};
use crate::cell::DomainCell;
use crate::cntr::Cntr;
use crate::fabric::Domain;
use crate::regions::{rights, Wanted};
use crate::state::State;
use crate::stubs::{self, give};
use libc::iovec;
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;
use weft::memory::Window;

/// A registration.
#[repr(C)]
struct Mr {
    fid: FidMr,
    state: Arc<DomainCell<State>>,
    number: usize,
}

static OPS: Ops = Ops { bind, control, ..stubs::ops(close) };

pub static MR: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

/// Registers memory.
///
/// # Safety
/// `domain` is a domain of ours, open, and `place` can be written. Until the registration is closed, the bytes can be read and written
/// as far as `access` says that peers may.
unsafe fn register(
    domain: *mut Fid,
    (start, len): (*mut c_void, usize),
    access: u64,
    key: u64,
    context: *mut c_void,
    place: *mut *mut FidMr,
) -> c_int {
    // SAFETY: the caller's promise.
    let domain = unsafe { &*domain.cast::<Domain>() };
    let window = if len <= isize::MAX as usize {
        // SAFETY: the caller's promise. There are no references to the memory on either side: the client is C, and treats it as shared
        // memory.
        unsafe { Window::lend(start.cast(), len) }
    } else if start.is_null() {
        // All of the process's memory: the client names the parts by their addresses.
        // SAFETY: as above. Unmapped parts may be named, but not accessed.
        match unsafe { Window::whole_address_space() } {
            Ok(window) => window,
            Err(_) => return -libc::ENOSYS,
        }
    } else {
        return -libc::EINVAL;
    };
    let wanted = Wanted { window, start: start as u64, key, rights: rights(access) };
    match domain.state.with(|state| state.register(wanted)) {
        Ok((number, key)) => {
            let fid = Fid { fclass: abi::CLASS_MR, context, ops: &OPS };
            let fid = FidMr { fid, mem_desc: std::ptr::null_mut(), key };
            // SAFETY: the caller's promise.
            unsafe { give(Box::new(Mr { fid, state: domain.state.clone(), number }), place) }
        }
        Err(error) => error,
    }
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    start: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's promise of the domain and the place, and the client's of the memory.
    unsafe { register(domain, (start.cast_mut(), len), access, key, context, place) }
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    // More pieces than `mr_iov_limit` allows.
    if count != 1 {
        return -libc::EINVAL;
    }
    // SAFETY: the client's promise: there is a piece.
    let piece = unsafe { *iov };
    // SAFETY: as in `reg`.
    unsafe { register(domain, (piece.iov_base, piece.iov_len), access, key, context, place) }
}

unsafe extern "C" fn regattr(domain: *mut Fid, attr: *const MrAttr, flags: u64, place: *mut *mut FidMr) -> c_int {
    // SAFETY: the client's promise: there are attributes.
    let attr = unsafe { &*attr };
    let MrAttr { mr_iov, iov_count, access, offset, requested_key, context } = *attr;
    // SAFETY: as in `reg`.
    unsafe { regv(domain, mr_iov, iov_count, access, offset, requested_key, flags, place, context) }
}

/// When this returns, no peer reads or writes the memory by this registration.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let mr = fid.cast::<Mr>();
    // SAFETY: `register` made it, and it is still open.
    if unsafe { (*mr).state.is_left_behind() } {
        return 0;
    }
    // SAFETY: as above, and nobody has it after this.
    let mr = unsafe { Box::from_raw(mr) };
    mr.state.with(|state| {
        state.unregister(mr.number);
        0
    })
}

/// Endpoints may be bound, though all of them have it anyway. Counters count peers' operations.
unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    // SAFETY: the client's promise: it is an object that is open.
    match unsafe { (*other).fclass } {
        abi::CLASS_EP => 0,
        abi::CLASS_CNTR if flags & !(abi::REMOTE_READ | abi::REMOTE_WRITE) == 0 => {
            // SAFETY: `register` made it, and it is still open.
            let mr = unsafe { &*fid.cast::<Mr>() };
            // SAFETY: an object of this class that the client has of this provider is a counter of ours.
            let count = unsafe { &(*other.cast::<Cntr>()).count };
            mr.state.with(|state| {
                state.count_registration(mr.number, &count.tally(flags, true));
                0
            })
        }
        abi::CLASS_CNTR => -abi::EBADFLAGS,
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn control(_fid: *mut Fid, command: c_int, _arg: *mut c_void) -> c_int {
    match command {
        abi::CONTROL_ENABLE => 0,
        _ => -libc::ENOSYS,
    }
}
