//! weft as a provider for libfabric: `libweft-fi.so`, which libfabric finds by `FI_PROVIDER_PATH`. MPI and others send and receive
//! through it; `docs/mpi.md` says what to type.
//!
//! A domain is a node and a bundle of weft's; an endpoint is one for tagged messages ([`weft::tagged`]). The provider keeps what libfabric
//! has beyond that: address vectors, completion queues, flags. It calls nothing of libfabric, so it goes with any
//! version from 1.17 on: what is exchanged is in [`abi`].
//!
//! This crate is unsafe where C comes in: each call from outside turns pointers into references once, at its beginning, by the
//! interface's promise that the objects are those which were given out and are not closed meanwhile. A panic ends the process:
//! it cannot go through C.

mod abi;
mod addr;
mod av;
mod cell;
mod cntr;
mod cq;
mod ep;
mod fabric;
mod info;
mod state;
mod stubs;

use abi::Provider;
use std::ptr;

/// The provider's own version.
const VERSION: u32 = abi::version(0, 1);

/// The interface that is spoken. A library leaves out providers that say less than what its client was built with: this is more than
/// there is, since only what 1.17 has is used, and later versions keep that.
const SPOKEN: u32 = abi::version(2, 9);

/// libfabric writes into it.
struct Shown(std::cell::UnsafeCell<Provider>);

// SAFETY: libfabric alone touches it, and does so as it needs.
unsafe impl Sync for Shown {}

static PROVIDER: Shown = Shown(std::cell::UnsafeCell::new(Provider {
    version: VERSION,
    fi_version: SPOKEN,
    context: [ptr::null_mut(); 4],
    name: c"weft".as_ptr(),
    getinfo: info::getinfo,
    fabric: fabric::open,
    cleanup: stubs::cleanup,
}));

/// What libfabric calls first, and once.
#[no_mangle]
pub extern "C" fn fi_prov_ini() -> *mut std::ffi::c_void {
    PROVIDER.0.get().cast()
}
