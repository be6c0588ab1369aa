//! Endpoints: opening, binding, naming and closing. The calls that send and receive are in `messages.rs` and `calls.rs`.

use crate::abi::{self, CmOps, EpOps, Fid, FidDomain, FidEp, Info, Ops, StubOps};
use crate::addr::tell_at;
use crate::atomic::ATOMIC;
use crate::av::{look_up_there, store_address, Av};
use crate::calls::{MSG, TAGGED};
use crate::cell::DomainCell;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::fabric::Domain;
use crate::info::Chosen;
use crate::memory::EpMemory;
use crate::rma::RMA;
use crate::state::{Bound, EpState, State};
use crate::stubs::{self, give, NONE};
use crate::wait::Turns;
use slab::Slab;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long closing an endpoint waits for receivers to store the last messages.
const LINGER: Duration = Duration::from_secs(1);

/// A multi-receive buffer is released when fewer bytes than this are left, unless the client sets another number.
const LEAST: usize = 64;

/// An endpoint.
#[repr(C)]
pub struct Ep {
    fid: FidEp,
    pub state: Arc<DomainCell<State>>,
    pub slot: usize,
}

static OPS: Ops = Ops { bind, control, ..stubs::ops(close) };
static EP: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: NONE,
    rx_ctx: NONE,
    rx_size_left: NONE,
    tx_size_left: NONE,
};
static CM: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: NONE,
    getname,
    getpeer: NONE,
    connect: NONE,
    listen: NONE,
    accept: NONE,
    reject: NONE,
    shutdown: NONE,
    join: NONE,
};
static COLLECTIVE: StubOps<11> = stubs::none();
/// `fi_endpoint`. From now on the endpoint has its name.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    place: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    // SAFETY: it is a domain of ours, open.
    let domain = unsafe { &*domain.cast::<Domain>() };
    // SAFETY: the client's promise: it is a description that `getinfo` gave, or a copy.
    let chosen = unsafe { Chosen::of(&*info) };
    let made = domain.state.with(|state| {
        let made = state.bundle.endpoints(state.settings, chosen.has_memory).and_then(|(endpoint, memory)| {
            let slot = state.add(EpState {
                endpoint,
                memory: memory.map(EpMemory::new),
                is_directed: chosen.is_directed,
                tx_flags: chosen.tx_flags,
                rx_flags: chosen.rx_flags,
                av: None,
                tx: None,
                rx: None,
                tx_count: None,
                rx_count: None,
                read_count: None,
                write_count: None,
                least: LEAST,
                ops: Slab::new(),
                pieces: HashMap::new(),
                claims: Vec::new(),
                told: None,
                met: HashSet::new(),
                came_back: HashMap::new(),
            });
            state.open_all(slot).map(|()| slot).inspect_err(|_| {
                state.free_endpoint(slot);
                state.forget_endpoint(slot);
            })
        });
        let slot = made.map_err(|error| {
            eprintln!("weft: libfabric's endpoint cannot be opened: {error}");
            -libc::ENOMEM
        })?;
        if let Some(place) = chosen.place {
            let told = state.address(slot).ok_or(-libc::EIO).and_then(|peer| tell_at(place, &peer));
            let told = told.inspect_err(|_| {
                state.free_endpoint(slot);
                state.forget_endpoint(slot);
            })?;
            state.eps[slot].told = Some(told);
        }
        Ok(slot)
    });
    let slot = match made {
        Ok(slot) => slot,
        Err(error) => return error,
    };
    let fid = FidEp {
        fid: Fid { fclass: abi::CLASS_EP, context, ops: &OPS },
        ops: &EP,
        cm: &CM,
        msg: &MSG,
        rma: &RMA,
        tagged: &TAGGED,
        atomic: &ATOMIC,
        collective: &COLLECTIVE,
    };
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(Ep { fid, state: domain.state.clone(), slot }), place) }
}

pub unsafe extern "C" fn open2(
    domain: *mut FidDomain,
    info: *mut Info,
    place: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: libfabric's promise.
        0 => unsafe { open(domain, info, place, context) },
        _ => -abi::EBADFLAGS,
    }
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    // SAFETY: the client's promise: it is an object that is open.
    match unsafe { (*other).fclass } {
        abi::CLASS_CQ => {
            // SAFETY: an object of this class that the client has of this provider is a queue of ours.
            let cq = unsafe { (*other.cast::<Cq>()).number };
            let bound = Bound { cq, is_selective: flags & abi::SELECTIVE_COMPLETION != 0 };
            ep.state.with(|state| {
                let state = &mut state.eps[ep.slot];
                if flags & abi::TRANSMIT != 0 {
                    state.tx = Some(bound);
                }
                if flags & abi::RECV != 0 {
                    state.rx = Some(bound);
                }
            });
            0
        }
        abi::CLASS_AV => {
            // SAFETY: as for a queue.
            let av = unsafe { (*other.cast::<Av>()).number };
            ep.state.with(|state| {
                state.eps[ep.slot].av = Some(av);
                look_up_there(state, ep.slot);
            });
            0
        }
        abi::CLASS_CNTR => {
            // SAFETY: as for a queue.
            let count = unsafe { &(*other.cast::<Cntr>()).count };
            ep.state.with(|state| {
                if flags & (abi::REMOTE_READ | abi::REMOTE_WRITE) != 0 {
                    state.count_endpoint(ep.slot, count.tally(flags, false));
                }
                let state = &mut state.eps[ep.slot];
                let kinds = [
                    (abi::SEND, &mut state.tx_count),
                    (abi::RECV, &mut state.rx_count),
                    (abi::READ, &mut state.read_count),
                    (abi::WRITE, &mut state.write_count),
                ];
                for (_, place) in kinds.into_iter().filter(|(kind, _)| flags & kind != 0) {
                    *place = Some(count.clone());
                }
            });
            0
        }
        abi::CLASS_EQ => 0,
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    ep.state.with(|state| {
        let state = &mut state.eps[ep.slot];
        match command {
            abi::CONTROL_ENABLE if state.av.is_none() => -abi::ENOAV,
            abi::CONTROL_ENABLE if state.tx.is_none() && state.rx.is_none() => -abi::ENOCQ,
            abi::CONTROL_ENABLE => 0,
            abi::CONTROL_GETOPSFLAG | abi::CONTROL_SETOPSFLAG => {
                // SAFETY: the client's promise: there are flags, which can be read and written.
                let flags = unsafe { &mut *arg.cast::<u64>() };
                let mine = match *flags & (abi::TRANSMIT | abi::RECV) {
                    abi::TRANSMIT => &mut state.tx_flags,
                    abi::RECV => &mut state.rx_flags,
                    _ => return -libc::EINVAL,
                };
                match command {
                    abi::CONTROL_GETOPSFLAG => *flags = *mine,
                    _ => *mine = *flags & !(abi::TRANSMIT | abi::RECV),
                }
                0
            }
            _ => -libc::ENOSYS,
        }
    })
}

/// Posted operations end without completions. Sent messages get a moment to leave, as they may wait for a session, for room, or for an
/// acknowledgement of another host.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let ep = fid.cast::<Ep>();
    // SAFETY: `open` made it, and it is still open.
    if unsafe { (*ep).state.is_left_behind() } {
        return 0;
    }
    // SAFETY: as above, and nobody has it after this.
    let ep = unsafe { Box::from_raw(ep) };
    let begin = Instant::now();
    ep.wait_for(begin, LINGER, |state| !state.has_memory_under_way(ep.slot));
    ep.wait_for(begin, LINGER, |state| state.bundle.is_acknowledged());
    ep.state.with(|state| {
        let mine = &mut state.eps[ep.slot];
        // No peer is mapped there any more.
        (mine.tx, mine.rx, mine.told, mine.av) = (None, None, None, None);
        state.free_endpoint(ep.slot);
    });
    ep.wait_for(begin, LINGER, |state| state.bundle.is_acknowledged());
    ep.state.with(|state| state.forget_endpoint(ep.slot));
    0
}

impl Ep {
    /// Makes progress until `done`, at least once, and at most until `most` after `begin`. Other threads have turns meanwhile.
    pub fn wait_for(&self, begin: Instant, most: Duration, mut done: impl FnMut(&mut State) -> bool) {
        let mut turns = Turns::default();
        loop {
            let is_done = self.state.with(|state| {
                state.progress();
                Some(done(state))
            });
            let left = most.saturating_sub(begin.elapsed());
            if is_done != Some(false) || left.is_zero() {
                return;
            }
            turns.wait(&self.state, left);
        }
    }
}

unsafe extern "C" fn getname(fid: *mut Fid, address: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    let Some(peer) = ep.state.with(|state| state.address(ep.slot)) else { return -abi::EOPBADSTATE };
    // SAFETY: the client's promise: there is room for `*len` bytes.
    match unsafe { store_address(&peer.encode(), address, len) } {
        true => 0,
        false => -abi::ETOOSMALL,
    }
}

unsafe extern "C" fn getopt(fid: *mut Fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    if (level, name) != (abi::OPT_ENDPOINT, abi::OPT_MIN_MULTI_RECV) {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    // SAFETY: the client's promise: there is a length.
    if unsafe { *len } < size_of::<usize>() {
        return -abi::ETOOSMALL;
    }
    let Some(least) = ep.state.with(|state| Some(state.eps[ep.slot].least)) else { return -abi::EOPBADSTATE };
    // SAFETY: the client's promise: there is room for `*len` bytes, of this option's type.
    unsafe { *value.cast::<usize>() = least };
    // SAFETY: the client's promise: the length can be written.
    unsafe { *len = size_of::<usize>() };
    0
}

unsafe extern "C" fn setopt(fid: *mut Fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    if (level, name) != (abi::OPT_ENDPOINT, abi::OPT_MIN_MULTI_RECV) {
        return -libc::ENOPROTOOPT;
    }
    if len != size_of::<usize>() {
        return -libc::EINVAL;
    }
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    // SAFETY: the client's promise: there is a value of this option's type.
    let least = unsafe { *value.cast::<usize>() };
    ep.state.with(|state| state.eps[ep.slot].least = least);
    0
}

/// Ends the oldest unmatched operation with that context, receives first. It ends by a completion.
unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    ep.state.with(|state| {
        let mine = &state.eps[ep.slot];
        let of =
            |kind: u64| mine.ops.iter().filter(move |(_, op)| op.context == context as usize && op.kind & kind != 0);
        let found: Vec<usize> = of(abi::RECV).chain(of(abi::SEND)).map(|(at, _)| at).collect();
        // Cannot fail: the endpoint exists.
        let _ = state.bundle.tagged(mine.endpoint, |tagged| found.into_iter().any(|at| tagged.cancel(at as u64)));
        state.hand_over();
        0
    })
}

/// # Safety
/// It is an endpoint of ours, and open as long as the reference is used.
#[inline(always)]
pub unsafe fn of<'a>(ep: *mut FidEp) -> &'a Ep {
    // SAFETY: the caller's promise.
    unsafe { &*ep.cast::<Ep>() }
}
