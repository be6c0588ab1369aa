//! Counters of what has ended at endpoints, and of what peers did to memory here.

use crate::abi::{self, CntrAttr, CntrOps, Fid, FidCntr, FidDomain, Ops};
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

/// What is counted. Relaxed for what ends in the client's calls, which are made under the lock. A service thread may count what peers do:
/// with release, as [`Tally`] says, so reads of the number acquire.
#[derive(Debug, Default)]
pub struct Count {
    /// Tallies of regions add to it, too.
    ended: Arc<AtomicU64>,
    failed: AtomicU64,
}

impl Count {
    /// An operation has ended.
    pub fn add(&self, is_well: bool) {
        let number = if is_well { &self.ended } else { &self.failed };
        number.fetch_add(1, Ordering::Relaxed);
    }

    /// What counts operations of peers here, of the kinds that flags name: those on an endpoint's memory, or on a registration, where an
    /// atomic operation that returns old values is also a write.
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
    /// What the client was told last: what has ended, and what has failed.
    told: [AtomicU64; 2],
}

impl Cntr {
    /// Whether the numbers are others than what the client was told last.
    pub fn has_news(&self) -> bool {
        let Count { ended, failed } = &*self.count;
        let [told, told_failed] = &self.told;
        // Relaxed: they only decide whether the client looks, and then it acquires.
        ended.load(Ordering::Relaxed) != told.load(Ordering::Relaxed)
            || failed.load(Ordering::Relaxed) != told_failed.load(Ordering::Relaxed)
    }

    /// What has ended, as it is told now.
    fn ended(&self) -> u64 {
        let ended = self.count.ended.load(Ordering::Acquire);
        self.told[0].store(ended, Ordering::Relaxed);
        ended
    }

    /// What has failed, as it is told now.
    fn failed(&self) -> u64 {
        let failed = self.count.failed.load(Ordering::Relaxed);
        self.told[1].store(failed, Ordering::Relaxed);
        failed
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
    let cntr = Cntr {
        fid,
        state: domain.state.clone(),
        count: Arc::default(),
        object,
        reads: Reads::default(),
        told: Default::default(),
    };
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

/// What to wait for.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: it is a counter of ours, open.
    let cntr = unsafe { &*fid.cast::<Cntr>() };
    match command {
        // SAFETY: the client's promise: there is room for what the counter was opened with.
        abi::CONTROL_GETWAIT => cntr.state.with(|state| unsafe { cntr.object.give(state, arg) }),
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
    cntr.state.with(State::progress);
    let told = cntr.told[0].load(Ordering::Relaxed);
    let ended = cntr.ended();
    cntr.reads.note(ended == told);
    ended
}

unsafe extern "C" fn readerr(cntr: *mut FidCntr) -> u64 {
    // SAFETY: libfabric's promise.
    unsafe { of(cntr) }.failed()
}

unsafe extern "C" fn add(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    unsafe { of(cntr) }.count.ended.fetch_add(value, Ordering::Relaxed);
    0
}

unsafe extern "C" fn adderr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    unsafe { of(cntr) }.count.failed.fetch_add(value, Ordering::Relaxed);
    0
}

unsafe extern "C" fn set(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    unsafe { of(cntr) }.count.ended.store(value, Ordering::Relaxed);
    0
}

unsafe extern "C" fn seterr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric's promise.
    unsafe { of(cntr) }.count.failed.store(value, Ordering::Relaxed);
    0
}

/// Waits until so many have ended, or one more has failed; makes progress meanwhile.
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
