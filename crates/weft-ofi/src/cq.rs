//! Completion queues.

use crate::abi::{self, CqAttr, CqEntry, CqErrEntry, CqOps, FiAddr, Fid, FidCq, FidDomain, FidFabric, Ops};
use crate::cell::{DomainCell, Refused};
use crate::cntr::Cntr;
use crate::eq::Eq;
use crate::fabric::Domain;
use crate::state::{CqState, Reader, State};
use crate::stubs::{self, give};
use crate::wait::{Reads, Turns, WaitObject};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::size_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::{Reason, Waker};

const AGAIN: isize = -(libc::EAGAIN as isize);

/// The result of [`Cq::take`].
struct Taken {
    /// The number of completions, or the error code if there are none, for C.
    result: isize,
    /// Nothing has completed, and the poll did no work.
    is_vain: bool,
}

impl Refused for Taken {
    fn refused() -> Taken {
        Taken { result: isize::refused(), is_vain: false }
    }
}

/// A completion queue.
#[repr(C)]
pub struct Cq {
    fid: FidCq,
    state: Arc<DomainCell<State>>,
    pub number: usize,
    /// Bytes of one completion in the queue's format.
    entry: usize,
    object: WaitObject,
    waker: Waker,
    /// The client has signalled it, and no wait has ended by that yet.
    is_signalled: AtomicBool,
    reads: Reads,
}

static OPS: Ops = Ops { control, ..stubs::ops(close) };
static CQ: CqOps = CqOps { size: size_of::<CqOps>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    place: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: it is a domain of ours, open.
    let domain = unsafe { &*domain.cast::<Domain>() };
    // SAFETY: the client's promise: there are attributes, which libfabric lets a provider fill in.
    let attr = unsafe { &mut *attr };
    let entry = match attr.format {
        0 | abi::FORMAT_CONTEXT => 8,
        abi::FORMAT_MSG => 24,
        abi::FORMAT_DATA => 40,
        abi::FORMAT_TAGGED => 48,
        _ => return -libc::ENOSYS,
    };
    if attr.format == 0 {
        attr.format = abi::FORMAT_CONTEXT;
    }
    let made = domain.state.with(|state| {
        let object = WaitObject::new(state, attr.wait_obj)?;
        let cq = CqState { bell: object.bell().cloned(), ..CqState::default() };
        Ok((state.cqs.insert(cq), state.bundle.waker(), object))
    });
    let (number, waker, object) = match made {
        Ok(made) => made,
        Err(error) => return error,
    };
    let fid = FidCq { fid: Fid { fclass: abi::CLASS_CQ, context, ops: &OPS }, ops: &CQ };
    let cq = Cq {
        fid,
        state: domain.state.clone(),
        number,
        entry,
        object,
        waker,
        is_signalled: false.into(),
        reads: Reads::default(),
    };
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(cq), place) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let cq = fid.cast::<Cq>();
    // SAFETY: `open` made it, and it is still open.
    let (state, number, object) = unsafe { (&(*cq).state, (*cq).number, &(*cq).object) };
    if state.is_left_behind() {
        return 0;
    }
    let closed = state.with(|state| {
        let is_bound = |bound: Option<crate::state::Bound>| bound.is_some_and(|bound| bound.cq == number);
        if state.eps.iter().any(|(_, ep)| is_bound(ep.tx) || is_bound(ep.rx)) {
            return -libc::EBUSY;
        }
        state.cqs.remove(number);
        object.close(state);
        0
    });
    if closed == 0 {
        // SAFETY: as above, and nobody has it after this.
        drop(unsafe { Box::from_raw(cq) });
    }
    closed
}

/// Gives the wait object.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: it is a queue of ours, open.
    let cq = unsafe { &*fid.cast::<Cq>() };
    match command {
        // SAFETY: the client's promise: there is room for what the queue was opened with.
        abi::CONTROL_GETWAIT => unsafe { cq.object.give(arg) },
        _ => -libc::ENOSYS,
    }
}

/// `fi_trywait`: prepares to wait for queues and counters, or reports that there is something already.
pub unsafe extern "C" fn trywait(_fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the client's promise: there are `count` objects.
        let fid = unsafe { *fids.add(at) };
        // SAFETY: the client's promise: each is an object that is open.
        let is_armed = match unsafe { (*fid).fclass } {
            abi::CLASS_CQ => {
                // SAFETY: an object of this class that the client has of this provider is a queue of ours.
                let cq = unsafe { &*fid.cast::<Cq>() };
                let bell = cq.object.bell().map(|bell| &**bell);
                let is_signalled = || cq.is_signalled.swap(false, Ordering::Acquire);
                cq.state.with(|state| Some(state.arm(bell, |state| !is_empty(state, cq.number) || is_signalled())))
            }
            abi::CLASS_CNTR => {
                // SAFETY: as above, a counter.
                let cntr = unsafe { &*fid.cast::<Cntr>() };
                cntr.state.with(|state| Some(state.arm(cntr.bell(), |_| cntr.has_news())))
            }
            // SAFETY: as above, a queue of events.
            abi::CLASS_EQ => Some(unsafe { &*fid.cast::<Eq>() }.is_empty()),
            _ => Some(true),
        };
        match is_armed {
            Some(true) => {}
            Some(false) => return -libc::EAGAIN,
            None => return -abi::EOPBADSTATE,
        }
    }
    0
}

fn is_empty(state: &State, number: usize) -> bool {
    state.cqs.get(number).is_none_or(|cq| cq.entries.is_empty() && cq.errors.is_empty())
}

impl Cq {
    /// Takes at most `count` completions. Sources go to `sources`, if that is not null.
    ///
    /// # Safety
    /// Until this returns there is room for `count` completions of the queue's format at `buf`, and for as many addresses at `sources`,
    /// if that is not null.
    #[inline(always)]
    unsafe fn take(&self, buf: *mut c_void, count: usize, sources: *mut FiAddr) -> Taken {
        let mut room = Room { queue: self.number, place: buf.cast(), entry: self.entry, sources, left: count };
        self.state.with(|state| room.take(state, count))
    }

    /// [`Cq::take`] for a client that reads repeatedly.
    ///
    /// # Safety
    /// As [`Cq::take`].
    #[inline(always)]
    unsafe fn read(&self, buf: *mut c_void, count: usize, sources: *mut FiAddr) -> isize {
        // SAFETY: the caller's promise.
        let taken = unsafe { self.take(buf, count, sources) };
        self.reads.note(taken.is_vain, &self.state);
        taken.result
    }

    /// [`Cq::take`], but waits for the first completion.
    ///
    /// # Safety
    /// As [`Cq::take`].
    unsafe fn wait(&self, buf: *mut c_void, count: usize, sources: *mut FiAddr, timeout: c_int) -> isize {
        if self.object.is_none() {
            return -(libc::ENOSYS as isize);
        }
        let begin = Instant::now();
        let most = u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis);
        let mut turns = Turns::default();
        loop {
            // SAFETY: the caller's promise.
            let taken = unsafe { self.take(buf, count, sources) }.result;
            let left = most.saturating_sub(begin.elapsed());
            if taken != AGAIN || left.is_zero() || self.is_signalled.swap(false, Ordering::Acquire) {
                return taken;
            }
            turns.wait(&self.state, left);
        }
    }
}

/// The client's memory for completions, with room for `left` more: see [`Cq::take`].
struct Room {
    queue: usize,
    place: *mut u8,
    entry: usize,
    sources: *mut FiAddr,
    left: usize,
}

impl Room {
    /// Takes what is in the queue, or what progress brings if the queue is empty.
    #[inline(never)]
    fn take(&mut self, state: &mut State, count: usize) -> Taken {
        let cq = &mut state.cqs[self.queue];
        match cq.entries.is_empty() {
            true => state.progress_for(self),
            false => self.fill(cq),
        }
        let result = match count - self.left {
            0 if !state.cqs[self.queue].errors.is_empty() => -(abi::EAVAIL as isize),
            0 => AGAIN,
            taken => taken as isize,
        };
        Taken { result, is_vain: result == AGAIN && state.is_awaited() }
    }

    /// Takes what is in the queue.
    #[inline(always)]
    fn fill(&mut self, cq: &mut CqState) {
        while self.left > 0 {
            let Some((entry, source)) = cq.entries.front() else { break };
            // SAFETY: some are left.
            unsafe { self.put(entry, *source) };
            cq.entries.pop_front();
        }
    }

    /// Stores a completion behind those before it.
    ///
    /// # Safety
    /// There is room for one more: `left` is not 0.
    #[inline(always)]
    unsafe fn put(&mut self, entry: &CqEntry, source: FiAddr) {
        // SAFETY: `Cq::take` made this from memory where the client has room for so many completions of this format.
        unsafe { store(entry, self.entry, self.place) };
        self.place = self.place.wrapping_add(self.entry);
        if !self.sources.is_null() {
            // SAFETY: as above, for their sources.
            unsafe { *self.sources = source };
            self.sources = self.sources.wrapping_add(1);
        }
        self.left -= 1;
    }
}

impl Reader for Room {
    #[inline(always)]
    fn takes(&mut self, queue: usize, entry: &CqEntry, source: FiAddr) -> bool {
        let takes = queue == self.queue && self.left > 0;
        if takes {
            // SAFETY: some are left.
            unsafe { self.put(entry, source) };
        }
        takes
    }
}

/// # Safety
/// At `place` there are `bytes` bytes to write: those of a format.
#[inline(always)]
unsafe fn store(entry: &CqEntry, bytes: usize, place: *mut u8) {
    let from = std::ptr::from_ref(entry).cast::<u8>();
    // In fixed lengths, which the compiler turns into plain stores.
    // SAFETY: the caller's promise. Every format is a beginning of the longest, which an entry has.
    unsafe {
        match bytes {
            8 => std::ptr::copy_nonoverlapping(from, place, 8),
            24 => std::ptr::copy_nonoverlapping(from, place, 24),
            40 => std::ptr::copy_nonoverlapping(from, place, 40),
            _ => std::ptr::copy_nonoverlapping(from, place, 48),
        }
    }
}

unsafe extern "C" fn read(cq: *mut FidCq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: it is a queue of ours, open. The room is the client's promise.
    unsafe { (*cq.cast::<Cq>()).read(buf, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(cq: *mut FidCq, buf: *mut c_void, count: usize, sources: *mut FiAddr) -> isize {
    // SAFETY: it is a queue of ours, open. The room is the client's promise.
    unsafe { (*cq.cast::<Cq>()).read(buf, count, sources) }
}

unsafe extern "C" fn sread(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: it is a queue of ours, open. The room is the client's promise.
    unsafe { (*cq.cast::<Cq>()).wait(buf, count, std::ptr::null_mut(), timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    sources: *mut FiAddr,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: it is a queue of ours, open. The room is the client's promise.
    unsafe { (*cq.cast::<Cq>()).wait(buf, count, sources, timeout) }
}

unsafe extern "C" fn readerr(cq: *mut FidCq, buf: *mut CqErrEntry, _flags: u64) -> isize {
    // SAFETY: it is a queue of ours, open.
    let cq = unsafe { &*cq.cast::<Cq>() };
    match cq.state.with(|state| state.cqs[cq.number].errors.pop_front()) {
        Some(error) => {
            // SAFETY: the client's promise: there is room for an error. What later versions append to it is left alone.
            unsafe { *buf = error };
            1
        }
        None => AGAIN,
    }
}

unsafe extern "C" fn signal(cq: *mut FidCq) -> c_int {
    // SAFETY: it is a queue of ours, open.
    let cq = unsafe { &*cq.cast::<Cq>() };
    cq.is_signalled.store(true, Ordering::Release);
    cq.waker.wake();
    if let Some(bell) = cq.object.bell() {
        bell.ring();
    }
    0
}

/// The text for a failed operation. The number is that of weft's reason.
unsafe extern "C" fn strerror(
    _cq: *mut FidCq,
    number: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let reason = Reason::ALL.into_iter().find(|reason| *reason as c_int == number);
    let words = match reason {
        Some(Reason::PeerLost) => c"the peer is gone",
        Some(Reason::Silent) => c"nothing was heard of the peer for the suspicion time",
        Some(Reason::NobodyThere | Reason::WrongEpoch | Reason::NoSuchEndpoint) => c"nobody has that address any more",
        Some(Reason::Closed) => c"the peer admits nobody at present",
        Some(Reason::WrongKey) => c"the address has another key",
        Some(Reason::ForeignUser | Reason::WrongOwner) => c"the peer is another user's, and does not admit others",
        Some(Reason::NoRoom | Reason::QueueFull) => c"the peer has no room",
        Some(Reason::PeerLimit) => c"the peer's process has no descriptor, memory or file size left (ulimit there)",
        Some(Reason::OwnDescriptors) => c"this process may open no more files (ulimit -n)",
        Some(Reason::OwnMemory) => c"this process gets no more memory (ulimit -v)",
        Some(Reason::OwnFileSize) => c"this process may not make such large shared memory (ulimit -f)",
        Some(Reason::Version) => c"the peer speaks another version of weft",
        Some(Reason::Revoked | Reason::NoRegion) => c"the peer has no memory registered under that key",
        Some(Reason::OutsideRegion | Reason::BadOffset | Reason::BadLength) => {
            c"the range leaves the memory that the peer registered"
        }
        Some(Reason::NoRight) => c"the peer registered that memory without this right",
        Some(Reason::Unaligned) => c"the word is not aligned",
        Some(Reason::Violation | Reason::NoHandler) => c"the peer broke the protocol",
        None => c"the operation itself: see its error",
    };
    // SAFETY: the client's promise: there is room for `len` bytes, or no place at all.
    unsafe { copy(words, buf, len) };
    words.as_ptr()
}

/// Copies a text to C if there is room for all of it.
///
/// # Safety
/// `buf` is null, or `len` bytes can be written there.
unsafe fn copy(words: &CStr, buf: *mut c_char, len: usize) {
    let bytes = words.to_bytes_with_nul();
    if !buf.is_null() && len >= bytes.len() {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len()) };
    }
}
