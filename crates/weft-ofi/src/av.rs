//! Address vectors: they assign numbers to peers, for all endpoints that are bound to one.

use crate::abi::{self, AvAttr, AvOps, FiAddr, Fid, FidAv, FidDomain, Ops};
use crate::addr::{self, Address, Peer, ADDRESS_BYTES};
use crate::cell::DomainCell;
use crate::fabric::Domain;
use crate::state::State;
use crate::stubs::{self, give, NONE};
use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;

/// An address vector.
#[repr(C)]
pub struct Av {
    fid: FidAv,
    state: Arc<DomainCell<State>>,
    pub number: usize,
}

static OPS: Ops = Ops { bind, ..stubs::ops(close) };
static AV: AvOps =
    AvOps { size: size_of::<AvOps>(), insert, insertsvc, insertsym: NONE, remove, lookup, straddr, av_set: NONE };

pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    place: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    /// Insertions are reported by events.
    const EVENT: u64 = abi::COMPLETION;
    // SAFETY: it is a domain of ours, open.
    let domain = unsafe { &*domain.cast::<Domain>() };
    // SAFETY: the client's promise: there are attributes.
    let attr = unsafe { &*attr };
    // Named vectors are shared between processes.
    if !attr.name.is_null() || attr.rx_ctx_bits != 0 || attr.flags & EVENT != 0 {
        return -libc::ENOSYS;
    }
    if ![abi::AV_UNSPEC, abi::AV_MAP, abi::AV_TABLE].contains(&attr.kind) {
        return -libc::EINVAL;
    }
    let number = domain.state.with(|state| Some(state.avs.insert(Arc::default())));
    let Some(number) = number else { return -abi::EOPBADSTATE };
    let fid = Fid { fclass: abi::CLASS_AV, context, ops: &OPS };
    let av = Av { fid: FidAv { fid, ops: &AV }, state: domain.state.clone(), number };
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(av), place) }
}

unsafe extern "C" fn bind(_fid: *mut Fid, other: *mut Fid, _flags: u64) -> c_int {
    // SAFETY: the client's promise: it is an object that is open.
    match unsafe { (*other).fclass } {
        abi::CLASS_EQ => 0,
        _ => -libc::EINVAL,
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let av = fid.cast::<Av>();
    // SAFETY: `open` made it, and it is still open.
    let (state, number) = unsafe { (&(*av).state, (*av).number) };
    if state.is_left_behind() {
        return 0;
    }
    let closed = state.with(|state| {
        if state.eps.iter().any(|(_, ep)| ep.av == Some(number)) {
            return -libc::EBUSY;
        }
        state.avs.remove(number);
        0
    });
    if closed == 0 {
        // SAFETY: as above, and nobody has it after this.
        drop(unsafe { Box::from_raw(av) });
    }
    closed
}

/// Makes an endpoint that is bound to a vector look up addresses there.
pub fn look_up_there(state: &mut State, slot: usize) {
    let ep = &state.eps[slot];
    let Some(book) = ep.av.and_then(|av| state.avs.get(av)).cloned() else { return };
    // Cannot fail: the endpoint exists.
    let _ = state.bundle.tagged(ep.endpoint, |tagged| tagged.set_directory(book));
}

unsafe extern "C" fn insert(
    av: *mut FidAv,
    addresses: *const c_void,
    count: usize,
    numbers: *mut FiAddr,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: it is an address vector of ours, open.
    let av = unsafe { &*av.cast::<Av>() };
    let addresses = addresses.cast::<[u8; ADDRESS_BYTES]>();
    let mut inserted = 0;
    for at in 0..count {
        // SAFETY: the client's promise: there are `count` addresses, one behind the other, each of the length that `getname` gives.
        let address = unsafe { *addresses.add(at) };
        let number = Address::decode(&address).and_then(|address| av.insert(&address));
        inserted += c_int::from(number.is_some());
        if !numbers.is_null() {
            // SAFETY: the client's promise: there is room for `count` numbers.
            unsafe { *numbers.add(at) = number.unwrap_or(abi::ADDR_UNSPEC) };
        }
    }
    inserted
}

/// Inserts the peer that is published at a host and port.
unsafe extern "C" fn insertsvc(
    av: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    numbers: *mut FiAddr,
    flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: it is an address vector of ours, open.
    let av = unsafe { &*av.cast::<Av>() };
    if node.is_null() || service.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the client's promise: they are strings.
    let place = unsafe { addr::place(node, service, flags) };
    let number = place.and_then(|place| av.insert(&Address::Place(place)));
    if !numbers.is_null() {
        // SAFETY: the client's promise: there is room for a number.
        unsafe { *numbers = number.unwrap_or(abi::ADDR_UNSPEC) };
    }
    c_int::from(number.is_some())
}

impl Av {
    /// Inserts an address, and returns its number. If it is a place, asks there first, without the domain's lock.
    fn insert(&self, address: &Address) -> Option<FiAddr> {
        let peer = address.peer()?;
        self.state.with(|state| insert_one(state, self.number, peer))
    }
}

/// Enters a peer. Endpoints map it at the first operation to it, or at its first message; one that has sent already is mapped now.
fn insert_one(state: &mut State, av: usize, peer: Peer) -> Option<FiAddr> {
    let number = state.avs.get(av)?.insert(peer)?;
    let State { bundle, eps, .. } = state;
    for (_, ep) in eps.iter().filter(|(_, ep)| ep.av == Some(av)) {
        // Cannot fail: the endpoint exists.
        let _ = bundle.tagged(ep.endpoint, |tagged| tagged.map_if_known(number, peer.name, peer.key));
    }
    Some(number.into())
}

unsafe extern "C" fn remove(av: *mut FidAv, numbers: *mut FiAddr, count: usize, _flags: u64) -> c_int {
    // SAFETY: it is an address vector of ours, open.
    let av = unsafe { &*av.cast::<Av>() };
    av.state.with(|state| {
        for at in 0..count {
            // SAFETY: the client's promise: there are `count` numbers.
            let number = unsafe { *numbers.add(at) } as usize;
            if !state.avs.get(av.number).is_some_and(|book| book.remove(number)) {
                return -libc::EINVAL;
            }
            for (_, ep) in state.eps.iter_mut().filter(|(_, ep)| ep.av == Some(av.number)) {
                // Nothing is mapped there if no operation went there.
                let _ = state.bundle.tagged(ep.endpoint, |tagged| tagged.unmap(number as u32));
                if let Some(memory) = &mut ep.memory {
                    memory.unmap(&mut state.bundle, number as u32);
                }
            }
        }
        0
    })
}

unsafe extern "C" fn lookup(av: *mut FidAv, number: FiAddr, address: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: it is an address vector of ours, open.
    let av = unsafe { &*av.cast::<Av>() };
    let found = av.state.with(|state| state.avs.get(av.number)?.get(number as usize));
    let Some(peer) = found else { return -libc::EINVAL };
    // SAFETY: the client's promise: there is a length, and room for so many bytes.
    unsafe {
        store_address(&peer.encode(), address, len);
    }
    0
}

/// Stores as much of an address as there is room for, and its length. Returns whether all of it fitted.
///
/// # Safety
/// `len` can be read and written. `place` is null, or `*len` bytes can be written there.
pub unsafe fn store_address(address: &[u8; ADDRESS_BYTES], place: *mut c_void, len: *mut usize) -> bool {
    // SAFETY: the caller's promise.
    let room = unsafe { *len };
    if !place.is_null() {
        // SAFETY: the caller's promise; these are no more than there is room for, and no more than an address has.
        unsafe { std::ptr::copy_nonoverlapping(address.as_ptr(), place.cast(), room.min(ADDRESS_BYTES)) };
    }
    // SAFETY: the caller's promise.
    unsafe { *len = ADDRESS_BYTES };
    room >= ADDRESS_BYTES && !place.is_null()
}

/// An address as text: the name, without the key.
unsafe extern "C" fn straddr(
    _av: *mut FidAv,
    address: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: the client's promise: there is an address of the length that `getname` gives.
    let address = unsafe { *address.cast::<[u8; ADDRESS_BYTES]>() };
    let words =
        Address::decode(&address).map_or_else(|| String::from("no address of weft's"), |address| address.to_string());
    // SAFETY: the client's promise: there is a length.
    let room = unsafe { *len };
    if room > 0 {
        let stored = words.len().min(room - 1);
        // SAFETY: the client's promise: there is room for `*len` bytes. These are fewer, with room for the string's end behind them.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), buf.cast(), stored) };
        // SAFETY: as above.
        unsafe { *buf.add(stored) = 0 };
    }
    // SAFETY: the client's promise: the length can be written.
    unsafe { *len = words.len() + 1 };
    buf
}
