//! The calls that read and write memory of others, as C makes them.

use crate::abi::{self, FiAddr, FidEp, RmaArgs, RmaOps};
use crate::ep::{of, Ep};
use crate::info::IOV_MOST;
use crate::memory::{Action, Remote};
use libc::iovec;
use std::ffi::c_void;
use std::mem::size_of;
use weft::memory::{Lent, LentMut, Source, Target};

pub static RMA: RmaOps =
    RmaOps { size: size_of::<RmaOps>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

const INVALID: isize = -(libc::EINVAL as isize);

/// An operation without flags of its own.
fn plain(to: FiAddr, addr: u64, key: u64, context: *mut c_void) -> Remote {
    Remote { to, addr, key, context: context as usize, flags: None, data: None, is_quiet: false }
}

/// What a description says beside the client's memory. None if it has other than one place at the target.
///
/// # Safety
/// There are as many places as it counts.
unsafe fn described(msg: &RmaArgs, flags: u64) -> Option<Remote> {
    if msg.rma_iov_count != 1 {
        return None;
    }
    // SAFETY: the caller's promise.
    let place = unsafe { &*msg.rma_iov };
    let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(msg.data);
    let (to, context) = (msg.addr, msg.context as usize);
    Some(Remote { to, addr: place.addr, key: place.key, context, flags: Some(flags), data, is_quiet: false })
}

impl Ep {
    /// Writes pieces, one behind the other.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. Each can be read, and stays as it is, until the operation has ended, or until
    /// this returns if it is injected.
    unsafe fn write_pieces(&self, iov: *const iovec, count: usize, remote: &Remote) -> isize {
        if count > IOV_MOST {
            return INVALID;
        }
        // SAFETY: the caller's promise.
        let pieces = (0..count).map(|at| unsafe { *iov.add(at) });
        // SAFETY: as above.
        let sources = pieces.map(|piece| Source::Lent(unsafe { Lent::new(piece.iov_base.cast(), piece.iov_len) }));
        let mut sources: Vec<Source> = sources.collect();
        let action = match sources.len() {
            0 => Action::Write(Source::Owned(Vec::new())),
            1 => Action::Write(sources.swap_remove(0)),
            _ => Action::WriteAll(sources),
        };
        self.operate(remote, action)
    }

    /// Reads into pieces, one behind the other.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. Each can be written, and is left alone, until the operation has ended.
    unsafe fn read_pieces(&self, iov: *const iovec, count: usize, remote: &Remote) -> isize {
        if count > IOV_MOST {
            return INVALID;
        }
        // SAFETY: the caller's promise.
        let pieces = (0..count).map(|at| unsafe { *iov.add(at) });
        // SAFETY: as above.
        let targets = pieces.map(|piece| Target::Lent(unsafe { LentMut::new(piece.iov_base.cast(), piece.iov_len) }));
        let mut targets: Vec<Target> = targets.collect();
        let action = match targets.len() {
            0 => Action::Read(Target::Owned(Vec::new())),
            1 => Action::Read(targets.swap_remove(0)),
            _ => Action::ReadAll(targets),
        };
        self.operate(remote, action)
    }
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: FiAddr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    // SAFETY: the client's promise.
    let target = unsafe { LentMut::new(buf.cast(), len) };
    ep.operate(&plain(from, addr, key, context), Action::Read(Target::Lent(target)))
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: FiAddr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the pieces.
    unsafe { of(ep).read_pieces(iov, count, &plain(from, addr, key, context)) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const RmaArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the description.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    // SAFETY: the client's promise.
    let Some(remote) = (unsafe { described(msg, flags) }) else { return INVALID };
    // SAFETY: the client's promise.
    unsafe { ep.read_pieces(msg.iov, msg.iov_count, &remote) }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: FiAddr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    // SAFETY: the client's promise.
    let source = unsafe { Lent::new(buf.cast(), len) };
    ep.operate(&plain(to, addr, key, context), Action::Write(Source::Lent(source)))
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: FiAddr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the pieces.
    unsafe { of(ep).write_pieces(iov, count, &plain(to, addr, key, context)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const RmaArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the description.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    // SAFETY: the client's promise.
    let Some(remote) = (unsafe { described(msg, flags) }) else { return INVALID };
    // SAFETY: the client's promise.
    unsafe { ep.write_pieces(msg.iov, msg.iov_count, &remote) }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: FiAddr, addr: u64, key: u64) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    // SAFETY: the client's promise; they are lent until this call returns, which copies them.
    let source = unsafe { Lent::new(buf.cast(), len) };
    let remote = Remote { is_quiet: true, ..plain(to, addr, key, std::ptr::null_mut()) };
    ep.operate(&remote, Action::Write(Source::Lent(source)))
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: FiAddr,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    // SAFETY: the client's promise.
    let source = unsafe { Lent::new(buf.cast(), len) };
    let remote = Remote { data: Some(data), ..plain(to, addr, key, context) };
    ep.operate(&remote, Action::Write(Source::Lent(source)))
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: FiAddr,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    // SAFETY: as in `inject`.
    let source = unsafe { Lent::new(buf.cast(), len) };
    let remote = Remote { data: Some(data), is_quiet: true, ..plain(to, addr, key, std::ptr::null_mut()) };
    ep.operate(&remote, Action::Write(Source::Lent(source)))
}
