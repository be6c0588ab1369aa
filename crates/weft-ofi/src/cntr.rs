//! Counters of ended operations of endpoints, and of peers' operations on memory here.

use crate::abi::{self, CntrAttr, CntrOps, Fid, FidCntr, FidDomain, Ops};
use crate::bell::Bell;
use crate::cell::DomainCell;
use crate::fabric::Domain;
use crate::state::State;
use crate::stubs::{self, give};
use crate::wait::{Reads, Turns, WaitObject};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::memory::Tally;

/// The numbers of a counter. Ends in the client's calls are counted relaxed, because these calls hold the lock. A service thread may count
/// peers' operations, with release as [`Tally`] documents, so reads of the number acquire.
#[derive(Debug, Default)]
pub struct Count {
    /// Shared with tallies of regions.
    ended: Arc<AtomicU64>,
    /// Rung when the client's own calls change the number. What a tally adds ends the bundle's waits anyway.
    bell: Option<Arc<Bell>>,
    failed: AtomicU64,
}

impl Count {
    /// An operation has ended.
    pub fn add(&self, is_well: bool) {
        let number = if is_well { &self.ended } else { &self.failed };
        number.fetch_add(1, Ordering::Relaxed);
        self.has_news();
    }

    fn has_news(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// A tally of peers' operations of the kinds that flags name: on an endpoint's memory, or on a registration. For a registration an
    /// atomic operation that returns old values also counts as a write.
    pub fn tally(&self, flags: u64, is_of_registration: bool) -> Tally {
        let (reads, writes) = (flags & abi::REMOTE_READ != 0, flags & abi::REMOTE_WRITE != 0);
        let number = |is_counted: bool| is_counted.then(|| self.ended.clone());
        let fetches = reads || (writes && is_of_registration);
        Tally { reads: number(reads), writes: number(writes), fetches: number(fetches) }
    }
}

/// A counter.
#[repr(C)]
pub struct Cntr {
    fid: FidCntr,
    pub state: Arc<DomainCell<State>>,
    pub count: Arc<Count>,
    object: WaitObject,
    reads: Reads,
    /// The numbers of ended and of failed operations when the client was last told to look before it waits.
    seen: [AtomicU64; 2],
}

impl Cntr {
    /// Whether the numbers have changed since the client was last told to look. Counts as telling it.
    pub fn has_news(&self) -> bool {
        // Relaxed: they only decide whether the client looks, and then it acquires.
        let now = [&*self.count.ended, &self.count.failed].map(|number| number.load(Ordering::Relaxed));
        let before = [0, 1].map(|at| self.seen[at].swap(now[at], Ordering::Relaxed));
        now != before
    }

    pub fn bell(&self) -> Option<&Bell> {
        self.object.bell().map(|bell| &**bell)
    }

    fn ended(&self) -> u64 {
        self.count.ended.load(Ordering::Acquire)
    }
}

static OPS: Ops = Ops { bind: stubs::no_bind, control, ..stubs::ops(close) };
static CNTR: CntrOps = CntrOps { size: size_of::<CntrOps>(), read, readerr, add, set, wait, adderr, seterr };

pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CntrAttr,
    place: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: it is a domain of ours, open.
    let domain = unsafe { &*domain.cast::<Domain>() };
    let fid = FidCntr { fid: Fid { fclass: abi::CLASS_CNTR, context, ops: &OPS }, ops: &CNTR };
    // SAFETY: the client's promise: there are attributes, or none.
    let kind = unsafe { attr.as_ref() }.map_or(abi::WAIT_UNSPEC, |attr| attr.wait_obj);
    let object = match domain.state.with(|state| WaitObject::new(state, kind)) {
        Ok(object) => object,
        Err(error) => return error,
    };
    let count = Arc::new(Count { bell: object.bell().cloned(), ..Count::default() });
    let (reads, seen) = Default::default();
    let cntr = Cntr { fid, state: domain.state.clone(), count, object, reads, seen };
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(cntr), place) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let cntr = fid.cast::<Cntr>();
    // SAFETY: `open` made it, and it is still open.
    if !unsafe { (*cntr).state.is_left_behind() } {
        // SAFETY: as above, and nobody has it after this.
        let cntr = unsafe { Box::from_raw(cntr) };
        cntr.state.with(|state| cntr.object.close(state));
    }
    0
}

/// Gives the wait object.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: it is a counter of ours, open.
    let cntr = unsafe { &*fid.cast::<Cntr>() };
    match command {
        // SAFETY: the client's promise: there is room for what the counter was opened with.
        abi::CONTROL_GETWAIT => unsafe { cntr.object.give(arg) },
        _ => -libc::ENOSYS,
    }
}

/// # Safety
/// It is a counter of ours, and open as long as the reference is used.
unsafe fn of<'a>(cntr: *mut FidCntr) -> &'a Cntr {
    // SAFETY: the caller's promise.
    unsafe { &*cntr.cast::<Cntr>() }
}

unsafe extern "C" fn read(cntr: *mut FidCntr) -> u64 {
    // SAFETY: libfabric's promise.
    let cntr = unsafe { of(cntr) };
    let is_vain = cntr.state.with(|state| {
        state.progress();
        Some(state.is_awaited())
    });
    cntr.reads.note(is_vain == Some(true), &cntr.state);
    cntr.ended()
}

unsafe extern "C" fn readerr(cntr: *mut FidCntr) -> u64 {
    // SAFETY: libfabric's promise.
    unsafe { of(cntr) }.count.failed.load(Ordering::Relaxed)
}

unsafe extern "C" fn add(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    let count = unsafe { &of(cntr).count };
    count.ended.fetch_add(value, Ordering::Relaxed);
    count.has_news();
    0
}

unsafe extern "C" fn adderr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    let count = unsafe { &of(cntr).count };
    count.failed.fetch_add(value, Ordering::Relaxed);
    count.has_news();
    0
}

unsafe extern "C" fn set(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    let count = unsafe { &of(cntr).count };
    count.ended.store(value, Ordering::Relaxed);
    count.has_news();
    0
}

unsafe extern "C" fn seterr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    let count = unsafe { &of(cntr).count };
    count.failed.store(value, Ordering::Relaxed);
    count.has_news();
    0
}

/// Waits until a number of operations have ended, or one more has failed. Makes progress meanwhile.
unsafe extern "C" fn wait(cntr: *mut FidCntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: libfabric's promise.
    let cntr = unsafe { of(cntr) };
    let (begin, failed) = (Instant::now(), cntr.count.failed.load(Ordering::Relaxed));
    let most = u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis);
    let mut turns = Turns::default();
    loop {
        let is_usable = cntr.state.with(|state| {
            state.progress();
            Some(())
        });
        if is_usable.is_none() {
            return -abi::EOPBADSTATE;
        }
        if cntr.ended() >= threshold {
            return 0;
        }
        if cntr.count.failed.load(Ordering::Relaxed) != failed {
            return -abi::EAVAIL;
        }
        let left = most.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return -libc::ETIMEDOUT;
        }
        turns.wait(&cntr.state, left);
    }
}
