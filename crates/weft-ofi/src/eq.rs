//! Event queues. The provider reports no events, because its endpoints have no connections: a client reads only what it wrote.

use crate::abi::{self, EqAttr, EqOps, Fid, FidEq, FidFabric, Ops};
use crate::fabric::Fabric;
use crate::mutex_cond::MutexCond;
use crate::stubs::{self, give};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_shm::Life;

/// Events that a queue keeps by default, and the most that it keeps in any case.
const EVENTS: usize = 256;
const EVENTS_MOST: usize = 1 << 16;

/// The longest event.
const EVENT_BYTES_MOST: usize = 4096;

const AGAIN: isize = -(libc::EAGAIN as isize);

/// An event queue.
#[repr(C)]
pub struct Eq {
    fid: FidEq,
    _fabric: Arc<()>,
    life: Life,
    wait_obj: c_int,
    may_write: bool,
    most: usize,
    events: Mutex<Events>,
    news: Condvar,
    /// Readable while there are events: the end that the client waits on, and the one that is written to.
    signal: Option<(UnixStream, UnixStream)>,
    /// Rung at each event.
    cond: Option<Arc<MutexCond>>,
}

/// The events that wait to be read: what each is, and its data.
type Events = VecDeque<(u32, Vec<u8>)>;

static OPS: Ops = Ops { control, ..stubs::ops(close) };
static EQ: EqOps = EqOps { size: size_of::<EqOps>(), read, readerr, write, sread, strerror };

pub unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    attr: *mut EqAttr,
    place: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the client's promise: there are attributes, or none.
    let (size, flags, wait_obj) =
        unsafe { attr.as_ref() }.map_or((0, 0, abi::WAIT_UNSPEC), |attr| (attr.size, attr.flags, attr.wait_obj));
    let kinds = [abi::WAIT_NONE, abi::WAIT_UNSPEC, abi::WAIT_FD, abi::WAIT_MUTEX_COND, abi::WAIT_YIELD];
    if !kinds.contains(&wait_obj) {
        return -libc::ENOSYS;
    }
    let signal = match (wait_obj == abi::WAIT_FD).then(UnixStream::pair).transpose() {
        Ok(signal) => signal,
        Err(error) => return -error.raw_os_error().unwrap_or(libc::EIO),
    };
    // SAFETY: it is a fabric of ours, open.
    let user = unsafe { &*fabric.cast::<Fabric>() }.user();
    let eq = Eq {
        fid: FidEq { fid: Fid { fclass: abi::CLASS_EQ, context, ops: &OPS }, ops: &EQ },
        _fabric: user,
        life: Life::current(),
        wait_obj,
        may_write: flags & abi::WRITE != 0,
        most: if size == 0 { EVENTS } else { size.min(EVENTS_MOST) },
        events: Mutex::default(),
        news: Condvar::new(),
        signal,
        cond: (wait_obj == abi::WAIT_MUTEX_COND).then(MutexCond::new),
    };
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(eq), place) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: `open` made it, and nobody has it after this.
    drop(unsafe { Box::from_raw(fid.cast::<Eq>()) });
    0
}

/// # Safety
/// It is an event queue of ours, and open as long as the reference is used.
unsafe fn of<'a>(eq: *mut FidEq) -> &'a Eq {
    // SAFETY: the caller's promise.
    unsafe { &*eq.cast::<Eq>() }
}

impl Eq {
    /// `None` in a forked child, where another thread may have held the lock.
    fn events(&self) -> Option<MutexGuard<'_, Events>> {
        (!self.life.is_over()).then(|| self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.events().is_none_or(|events| events.is_empty())
    }

    /// Appends an event.
    fn push(&self, event: u32, data: &[u8]) -> isize {
        let Some(mut events) = self.events() else { return -(abi::EOPBADSTATE as isize) };
        if events.len() >= self.most {
            return -(abi::EOVERRUN as isize);
        }
        events.push_back((event, data.to_vec()));
        if let Some((_, to)) = self.signal.as_ref().filter(|_| events.len() == 1) {
            // The socket holds one byte while there are events, and that always fits.
            let _ = (&mut &*to).write(&[1]);
        }
        drop(events);
        self.news.notify_one();
        if let Some(cond) = &self.cond {
            cond.ring();
        }
        data.len() as isize
    }

    /// Takes the first event, or looks at it. Returns its number, and its data if they fit.
    fn take(&self, room: usize, looks: bool) -> Result<(u32, Vec<u8>), isize> {
        let mut events = self.events().ok_or(-(abi::EOPBADSTATE as isize))?;
        let (event, data) = events.front().ok_or(AGAIN)?;
        if data.len() > room {
            return Err(-(abi::ETOOSMALL as isize));
        }
        if looks {
            return Ok((*event, data.clone()));
        }
        let first = events.pop_front().ok_or(AGAIN)?;
        if let Some((from, _)) = self.signal.as_ref().filter(|_| events.is_empty()) {
            let _ = (&mut &*from).read(&mut [0]);
        }
        Ok(first)
    }

    /// Waits until there is an event, at most so long.
    fn wait(&self, most: Duration) {
        let begin = Instant::now();
        let Some(mut events) = self.events() else { return };
        while events.is_empty() {
            let left = most.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return;
            }
            events = self.news.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Stores an event where the client wants it.
///
/// # Safety
/// There is a place for the event's number, and room for `room` bytes at `buf`.
unsafe fn tell(eq: &Eq, event: *mut u32, buf: *mut c_void, room: usize, flags: u64) -> isize {
    match eq.take(room, flags & abi::PEEK != 0) {
        Ok((number, data)) => {
            // SAFETY: the caller's promise; these are no more bytes than there is room for.
            unsafe {
                *event = number;
                std::ptr::copy_nonoverlapping(data.as_ptr(), buf.cast(), data.len());
            }
            data.len() as isize
        }
        Err(error) => error,
    }
}

unsafe extern "C" fn read(eq: *mut FidEq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    // SAFETY: it is a queue of ours, open. The places are the client's promise.
    unsafe { tell(of(eq), event, buf, len, flags) }
}

unsafe extern "C" fn sread(
    eq: *mut FidEq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: it is a queue of ours, open.
    let eq = unsafe { of(eq) };
    if eq.wait_obj == abi::WAIT_NONE {
        return -(libc::ENOSYS as isize);
    }
    eq.wait(u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis));
    // SAFETY: the places are the client's promise.
    unsafe { tell(eq, event, buf, len, flags) }
}

unsafe extern "C" fn write(eq: *mut FidEq, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    // SAFETY: it is a queue of ours, open.
    let eq = unsafe { of(eq) };
    if !eq.may_write || len > EVENT_BYTES_MOST {
        return -(libc::EINVAL as isize);
    }
    let mut data = vec![0; len];
    // SAFETY: the client's promise: there are `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(buf.cast(), data.as_mut_ptr(), len) };
    eq.push(event, &data)
}

unsafe extern "C" fn readerr(_eq: *mut FidEq, _buf: *mut c_void, _flags: u64) -> isize {
    AGAIN
}

/// Gives the wait object.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: it is a queue of ours, open.
    let eq = unsafe { &*fid.cast::<Eq>() };
    match (command, &eq.signal, &eq.cond) {
        (abi::CONTROL_GETWAIT, Some((from, _)), _) => {
            // SAFETY: the client's promise: there is room for a descriptor.
            unsafe { *arg.cast::<c_int>() = from.as_raw_fd() };
            0
        }
        (abi::CONTROL_GETWAIT, None, Some(cond)) => {
            // SAFETY: the client's promise: there is room for the two pointers.
            unsafe { cond.give(arg) };
            0
        }
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn strerror(
    _eq: *mut FidEq,
    _number: c_int,
    _data: *const c_void,
    _buf: *mut c_char,
    _len: usize,
) -> *const c_char {
    c"there are no errors".as_ptr()
}
