//! weft as a provider for libfabric: `libweft-fi.so`, which libfabric finds by `FI_PROVIDER_PATH`. MPI and others send and receive
//! through it; `docs/mpi.md` says what to type.
//!
//! A domain is a node and a bundle of weft's; an endpoint is one for tagged messages ([`weft::tagged`]) and, if it was asked for, one for
//! remote memory ([`weft::memory`]): see `docs/design/libfabric.md`. The provider keeps what libfabric has beyond that: address vectors, completion queues, flags. It calls nothing of libfabric, so it goes with any
//! version from 1.17 on: what is exchanged is in `abi.rs`.
//!
//! The modules that C calls are unsafe: each call from outside turns pointers into references once, at its beginning. A panic ends
//! in `cell.rs`, and all later calls of the domain are refused. What a domain does with its messages (`state.rs`) is safe code.
//!
//! # Promises
//!
//! Nothing that C passes can be checked. Notes on unsafe blocks name the promise that they rely on:
//!
//! - *Libfabric's promise*: a call gets an object of the kind that the table of calls is of. This provider gave it out, and it is not
//!   closed before the call returns. Where libfabric takes the result, there is a place for it.
//! - *The client's promise*, by libfabric's manual pages: arguments are what the page of the call says. Attributes and descriptions are
//!   complete, arrays have as many elements as the call counts, and there is room for results. Memory to send from or receive into
//!   is left alone until the operation has ended. An object is closed once, and not used meanwhile or afterwards.
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

/// Threads of the client share objects by their addresses, of which the compiler knows nothing. So it is asked here whether what objects
/// are made of may be shared.
const _: () = {
    const fn may_be_shared<T: Send + Sync>() {}
    may_be_shared::<Arc<DomainCell<State>>>();
    may_be_shared::<Arc<Count>>();
    may_be_shared::<weft::Waker>();
};

/// The provider's own version.
const VERSION: u32 = abi::version(0, 1);

/// The interface that is spoken. A library leaves out providers that say less than what its client was built with: this is more than
/// there is, since only what 1.17 has is used, and later versions keep that.
const SPOKEN: u32 = abi::version(2, 9);

/// libfabric writes into it.
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

/// What libfabric calls first, and once.
#[allow(unsafe_code)] // a symbol of this name
#[no_mangle]
pub extern "C" fn fi_prov_ini() -> *mut std::ffi::c_void {
    PROVIDER.0.get().cast()
}

#[cfg(test)]
#[allow(unsafe_code)] // it plays C
mod tests;
