//! Domains, and the fabric, which has nothing but a name.

use crate::abi::{self, DomainOps, FabricAttr, FabricOps, Fid, FidDomain, FidFabric, Info, Ops};
use crate::bundle::{message_settings, DomainBundle};
use crate::cell::DomainCell;
use crate::regions::Registrations;
use crate::state::State;
use crate::stubs::{self, give, NONE};
use crate::{atomic, av, cntr, cq, ep, eq, mr};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;
use weft::{Bundle, Node, Settings};

/// A fabric.
#[repr(C)]
pub struct Fabric {
    fid: FidFabric,
    /// Held by every open object of the fabric.
    users: Arc<()>,
}

impl Fabric {
    /// Keeps the fabric in use until the result is dropped.
    pub fn user(&self) -> Arc<()> {
        self.users.clone()
    }
}

/// A domain.
#[repr(C)]
pub struct Domain {
    fid: FidDomain,
    _fabric: Arc<()>,
    pub state: Arc<DomainCell<State>>,
}

static OPS: Ops = stubs::ops(close);
static FABRIC: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain,
    passive_ep: NONE,
    eq_open: eq::open,
    wait_open: NONE,
    trywait: cq::trywait,
    domain2,
};

static DOMAIN_OPS: Ops = Ops { bind: domain_bind, ..stubs::ops(close_domain) };
static DOMAIN: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: ep::open,
    scalable_ep: NONE,
    cntr_open: cntr::open,
    poll_open: NONE,
    stx_ctx: NONE,
    srx_ctx: NONE,
    query_atomic: atomic::query,
    query_collective: NONE,
    endpoint2: ep::open2,
};

/// `fi_fabric`.
pub unsafe extern "C" fn open(attr: *mut FabricAttr, place: *mut *mut FidFabric, context: *mut c_void) -> c_int {
    let fid = Fid { fclass: abi::CLASS_FABRIC, context, ops: &OPS };
    // SAFETY: libfabric's promise: these are attributes, the client's or a copy.
    let api_version = unsafe { (*attr).api_version };
    // SAFETY: libfabric's promise.
    unsafe {
        give(Box::new(Fabric { fid: FidFabric { fid, ops: &FABRIC, api_version }, users: Arc::default() }), place)
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let fabric = fid.cast::<Fabric>();
    // SAFETY: `open` made it, and it is still open.
    if Arc::strong_count(unsafe { &(*fabric).users }) > 1 {
        return -libc::EBUSY;
    }
    // SAFETY: as above, and nobody has it after this.
    drop(unsafe { Box::from_raw(fabric) });
    0
}

unsafe extern "C" fn domain(
    fabric: *mut FidFabric,
    info: *mut Info,
    place: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the client's promise: there is a description.
    let attr = unsafe { (*info).domain_attr };
    // SAFETY: the client's promise: the pointer is null, or there are attributes.
    let (threading, progress, mode) = unsafe { attr.as_ref() }
        .map_or((abi::THREAD_SAFE, abi::PROGRESS_MANUAL, 0), |attr| (attr.threading, attr.data_progress, attr.mr_mode));
    let settings = match message_settings() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("weft: libfabric's domain cannot be opened: {error}");
            return -libc::EINVAL;
        }
    };
    let made = Node::new().and_then(|node| {
        let mut bundle = DomainBundle::Own(Bundle::for_any_thread(&node, Settings::default())?);
        if progress == abi::PROGRESS_AUTO {
            bundle.serve()?;
        }
        Ok(bundle)
    });
    let bundle = match made {
        Ok(bundle) => bundle,
        Err(error) => {
            eprintln!("weft: libfabric's domain cannot be opened: {error}");
            return -libc::EIO;
        }
    };
    // SAFETY: by FI_THREAD_DOMAIN the client promises that no two threads use the objects of a domain at once.
    let cell = unsafe {
        DomainCell::new(State::new(bundle, Registrations::new(mode), settings), threading == abi::THREAD_DOMAIN)
    };
    let fid = Fid { fclass: abi::CLASS_DOMAIN, context, ops: &DOMAIN_OPS };
    let fid = FidDomain { fid, ops: &DOMAIN, mr: &mr::MR };
    // SAFETY: it is a fabric of ours, open.
    let user = unsafe { &*fabric.cast::<Fabric>() }.user();
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(Domain { fid, _fabric: user, state: Arc::new(cell) }), place) }
}

unsafe extern "C" fn domain2(
    fabric: *mut FidFabric,
    info: *mut Info,
    place: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: libfabric's promise.
        0 => unsafe { domain(fabric, info, place, context) },
        _ => -abi::EBADFLAGS,
    }
}

/// Event queues may be bound, and get no events.
unsafe extern "C" fn domain_bind(_fid: *mut Fid, other: *mut Fid, _flags: u64) -> c_int {
    // SAFETY: the client's promise: it is an object that is open.
    match unsafe { (*other).fclass } {
        abi::CLASS_EQ => 0,
        _ => -libc::EINVAL,
    }
}

unsafe extern "C" fn close_domain(fid: *mut Fid) -> c_int {
    let domain = fid.cast::<Domain>();
    // SAFETY: `domain` made it, and it is still open.
    let state = unsafe { &(*domain).state };
    if state.is_left_behind() {
        return 0;
    }
    if Arc::strong_count(state) > 1 {
        return -libc::EBUSY;
    }
    // SAFETY: as above, and nobody has it after this.
    drop(unsafe { Box::from_raw(domain) });
    0
}
