//! The calls that read and write peers' memory, as C makes them.

use crate::abi::{self, FiAddr, FidEp, RmaArgs, RmaIov, RmaOps};
use crate::ep::{of, Ep};
use crate::info::IOV_MOST;
use crate::memory::{Action, Listed, Places, Remote};
use libc::iovec;
use std::ffi::c_void;
use std::mem::size_of;
use weft::memory::{Lent, LentMut, Part, Source, Target};

pub static RMA: RmaOps =
    RmaOps { size: size_of::<RmaOps>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

const INVALID: isize = -(libc::EINVAL as isize);

/// An operation without flags of its own.
fn plain(to: FiAddr, addr: u64, key: u64, context: *mut c_void) -> Remote {
    Remote { to, addr, key, context: context as usize, flags: None, data: None, is_quiet: false }
}

/// The operation of a description, and its places at the target. `None` if there are too many of these, or none.
///
/// # Safety
/// There are as many places as it counts, until the result is dropped.
unsafe fn described(msg: &RmaArgs, flags: u64) -> Option<(Remote, &[RmaIov])> {
    if msg.rma_iov_count > IOV_MOST {
        return None;
    }
    // SAFETY: the caller's promise.
    let places = unsafe { list(msg.rma_iov, msg.rma_iov_count) };
    let first = places.first()?;
    let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(msg.data);
    let (to, context) = (msg.addr, msg.context as usize);
    Some((Remote { to, addr: first.addr, key: first.key, context, flags: Some(flags), data, is_quiet: false }, places))
}

/// A list from the client. It may be null if it is empty.
///
/// # Safety
/// There are `count` of them, until the result is dropped.
unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    match count {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(first, count) },
    }
}

/// Pieces here, and the parts of one registration at the target that they are for.
type Group = (Vec<iovec>, Places);

/// Groups consecutive pieces by the registration that their bytes are for. `None` if the two sides differ in their number of bytes.
fn grouped(pieces: &[iovec], places: &[RmaIov]) -> Option<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    let mut pieces = pieces.iter().copied().filter(|piece| piece.iov_len > 0);
    let mut rest = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    for place in places {
        if groups.last().is_none_or(|(_, last)| last.key != place.key) {
            groups.push((Vec::new(), Places { key: place.key, parts: Vec::new() }));
        }
        let (here, there) = groups.last_mut()?;
        there.parts.push(Part { at: place.addr, len: place.len as u64 });
        let mut left = place.len;
        while left > 0 {
            if rest.iov_len == 0 {
                rest = pieces.next()?;
            }
            let iov_len = rest.iov_len.min(left);
            here.push(iovec { iov_len, ..rest });
            rest = iovec { iov_base: rest.iov_base.wrapping_byte_add(iov_len), iov_len: rest.iov_len - iov_len };
            left -= iov_len;
        }
    }
    (rest.iov_len == 0 && pieces.next().is_none()).then_some(groups)
}

/// Whether the pieces of a description have as many bytes as its one place.
///
/// # Safety
/// There are as many pieces as it counts.
unsafe fn fits(msg: &RmaArgs, place: &RmaIov) -> bool {
    // SAFETY: the caller's promise.
    msg.iov_count <= IOV_MOST && total(unsafe { list(msg.iov, msg.iov_count) }) == place.len
}

/// A description's pieces, grouped. `None` if there are too many, or in the cases of [`grouped`].
///
/// # Safety
/// There are as many pieces as it counts.
unsafe fn sorted(msg: &RmaArgs, places: &[RmaIov]) -> Option<Vec<Group>> {
    if msg.iov_count > IOV_MOST {
        return None;
    }
    // SAFETY: the caller's promise.
    grouped(unsafe { list(msg.iov, msg.iov_count) }, places)
}

/// The client's memory to write from.
///
/// # Safety
/// Each piece can be read, and stays as it is as long as the results are there.
unsafe fn sources(pieces: &[iovec]) -> Vec<Source> {
    // SAFETY: the caller's promise.
    pieces.iter().map(|piece| Source::Lent(unsafe { Lent::new(piece.iov_base.cast(), piece.iov_len) })).collect()
}

/// The client's memory to read into.
///
/// # Safety
/// Each piece can be written, and is left alone as long as the results are there.
unsafe fn targets(pieces: &[iovec]) -> Vec<Target> {
    // SAFETY: the caller's promise.
    pieces.iter().map(|piece| Target::Lent(unsafe { LentMut::new(piece.iov_base.cast(), piece.iov_len) })).collect()
}

/// The one place of an operation, with the length of its pieces.
fn at(remote: &Remote, pieces: &[iovec]) -> Places {
    Places { key: remote.key, parts: vec![Part { at: remote.addr, len: total(pieces) as u64 }] }
}

fn total(pieces: &[iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).fold(0, usize::saturating_add)
}

impl Ep {
    /// Writes pieces, one after the other.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. Each can be read, and stays as it is, until the operation has ended, or until
    /// this returns if it is injected.
    unsafe fn write_pieces(&self, iov: *const iovec, count: usize, remote: &Remote) -> isize {
        if count > IOV_MOST {
            return INVALID;
        }
        // SAFETY: the caller's promise.
        let pieces = unsafe { list(iov, count) };
        // SAFETY: as above.
        let mut sources = unsafe { sources(pieces) };
        let action = match sources.len() {
            0 => Action::Write(Source::Owned(Vec::new())),
            1 => Action::Write(sources.swap_remove(0)),
            _ => Action::WriteAll(Box::new(Listed { pieces: sources, places: at(remote, pieces) })),
        };
        self.operate(remote, action)
    }

    /// Reads into pieces, one after the other.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. Each can be written, and is left alone, until the operation has ended.
    unsafe fn read_pieces(&self, iov: *const iovec, count: usize, remote: &Remote) -> isize {
        if count > IOV_MOST {
            return INVALID;
        }
        // SAFETY: the caller's promise.
        let pieces = unsafe { list(iov, count) };
        // SAFETY: as above.
        let mut targets = unsafe { targets(pieces) };
        let action = match targets.len() {
            0 => Action::Read(Target::Owned(Vec::new())),
            1 => Action::Read(targets.swap_remove(0)),
            _ => Action::ReadAll(Box::new(Listed { pieces: targets, places: at(remote, pieces) })),
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
    let Some((remote, places)) = (unsafe { described(msg, flags) }) else { return INVALID };
    if let [place] = places {
        // SAFETY: the client's promise.
        return unsafe {
            if fits(msg, place) {
                ep.read_pieces(msg.iov, msg.iov_count, &remote)
            } else {
                INVALID
            }
        };
    }
    // SAFETY: the client's promise.
    let Some(groups) = (unsafe { sorted(msg, places) }) else { return INVALID };
    // SAFETY: the client's promise: they are left alone until the operation has ended.
    let lists = groups.into_iter().map(|(here, places)| Listed { pieces: unsafe { targets(&here) }, places });
    let actions = lists.map(|list| Action::ReadAll(Box::new(list)));
    ep.operate_all(&remote, actions.collect())
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
    let Some((remote, places)) = (unsafe { described(msg, flags) }) else { return INVALID };
    if let [place] = places {
        // SAFETY: the client's promise.
        return unsafe {
            if fits(msg, place) {
                ep.write_pieces(msg.iov, msg.iov_count, &remote)
            } else {
                INVALID
            }
        };
    }
    // SAFETY: the client's promise.
    let Some(groups) = (unsafe { sorted(msg, places) }) else { return INVALID };
    // SAFETY: the client's promise: they stay as they are until the operation has ended, or until this returns if it is injected.
    let lists = groups.into_iter().map(|(here, places)| Listed { pieces: unsafe { sources(&here) }, places });
    let actions = lists.map(|list| Action::WriteAll(Box::new(list)));
    ep.operate_all(&remote, actions.collect())
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
