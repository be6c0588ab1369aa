//! weft as a provider for libfabric: `libweft-fi.so`, which libfabric finds by `FI_PROVIDER_PATH`. MPI and other programs send and receive
//! through it. `docs/mpi.md` explains its use.
//!
//! A domain is a weft node and a bundle. An endpoint is a weft endpoint for tagged messages ([`weft::tagged`]) and, if asked for, another
//! one for remote memory ([`weft::memory`]): see `docs/design/libfabric.md`. The provider adds what only libfabric has: address vectors,
//! completion queues, flags. It calls no function of libfabric, so it works with any version from 1.17 on; `abi.rs` has the shared
//! structures.
//!
//! The modules that C calls are unsafe: each call turns its pointers into references once, at its beginning. A panic stops in `cell.rs`,
//! and all later calls of the domain are refused. The logic of a domain (`state.rs`) is safe code.
//!
//! # Promises
//!
//! Arguments from C cannot be checked. Notes on unsafe blocks name the promise that they rely on:
//!
//! - *Libfabric's promise*: a call gets an object of the kind that its table of calls is for. This provider made the object, and it is not
//!   closed before the call returns. Where libfabric takes a result, there is room for it.
//! - *The client's promise*, by libfabric's manual pages: arguments are as the page of the call demands. Attributes and descriptions are
//!   complete, arrays have as many elements as the call counts, and there is room for results. Memory to send from or receive into is left
//!   alone until the operation has ended. An object is closed once, and not used meanwhile or afterwards.
//!
//! *It is an endpoint of ours, open* and the like are short for the first one.
#![deny(unsafe_code)]

mod abi;
#[allow(unsafe_code)] // strings that C names
mod addr;
mod alarm;
#[allow(unsafe_code)] // C calls it
mod atomic;
#[allow(unsafe_code)] // C calls it
mod av;
#[allow(unsafe_code)] // what C waits for
mod bell;
mod book;
mod bundle;
#[allow(unsafe_code)] // C calls it
mod calls;
#[allow(unsafe_code)] // a lock that may be left out
mod cell;
#[allow(unsafe_code)] // C calls it
mod cntr;
#[allow(unsafe_code)] // C calls it
mod cq;
#[allow(unsafe_code)] // C calls it
mod ep;
#[allow(unsafe_code)] // C calls it
mod eq;
#[allow(unsafe_code)] // C calls it
mod fabric;
#[allow(unsafe_code)] // C calls it
mod info;
mod memory;
#[allow(unsafe_code)] // memory that C names
mod messages;
#[allow(unsafe_code)] // C calls it
mod mr;
#[allow(unsafe_code)] // calls of POSIX
mod mutex_cond;
mod regions;
#[allow(unsafe_code)] // C calls it
mod rma;
mod state;
#[allow(unsafe_code)] // C calls it
mod stubs;
#[allow(unsafe_code)] // a system call
mod wait;

use abi::Provider;
use cell::DomainCell;
use cntr::Count;
use state::State;
use std::ptr;
use std::sync::Arc;

/// Threads of the client share objects by pointers, which the compiler cannot check. So this checks that the parts of objects may be
/// shared.
const _: () = {
    const fn may_be_shared<T: Send + Sync>() {}
    may_be_shared::<Arc<DomainCell<State>>>();
    may_be_shared::<Arc<Count>>();
    may_be_shared::<weft::Waker>();
};

/// The provider's own version.
const VERSION: u32 = abi::version(0, 1);

/// The interface version that the provider claims. libfabric ignores providers that claim less than their client was built with, so this
/// exceeds every existing version. Only what 1.17 has is used, and later versions keep that.
const SPOKEN: u32 = abi::version(2, 9);

/// The provider's record, which libfabric writes into.
struct Shown(std::cell::UnsafeCell<Provider>);

#[allow(unsafe_code)]
// SAFETY: this crate only takes its address, in `fi_prov_ini`. libfabric alone reads and writes it then.
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

/// The first function that libfabric calls, and only once.
#[allow(unsafe_code)] // a symbol of this name
#[no_mangle]
pub extern "C" fn fi_prov_ini() -> *mut std::ffi::c_void {
    PROVIDER.0.get().cast()
}

#[cfg(test)]
#[allow(unsafe_code)] // it plays C
mod tests;
