//! Bundles and endpoints: making, moving and freeing them; tags and segments.

use super::{answer, not_done, not_here, not_moved, system, Eb, En, Ep, ERR_BAD_ARG, ERR_RESOURCE, TAG_ALL, TAG_NONE};
use crate::bundles::{self, Use, BUNDLES};
use crate::endpoints;
use crate::guard::store;
use crate::handle::Handle;
use crate::{of_either, of_either_held};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use weft::{Admission, Endpoint, Error, EventMask, Key, Name, Settings};

pub const SEQUENTIAL: c_int = 0;
const PARALLEL: c_int = 1;

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_AllocateBundle(mode: c_int, bundle: *mut *mut Eb) -> c_int {
    answer(|| {
        let is_parallel = match mode {
            SEQUENTIAL => false,
            PARALLEL => true,
            _ => return Err(ERR_BAD_ARG),
        };
        if bundle.is_null() {
            return Err(ERR_BAD_ARG);
        }
        let made = bundles::make(&system::node()?, Settings::default(), is_parallel).map_err(not_done)?;
        let handle = made.ok_or(ERR_RESOURCE)?;
        if let Some(place) = BUNDLES.find(handle) {
            place.is_of_am.store(true, Ordering::Relaxed);
        }
        // SAFETY: the program's promise.
        unsafe { store(bundle, handle.to_c()) };
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn AM_FreeBundle(bundle: *mut Eb) -> c_int {
    answer(|| endpoints::free_bundle(Handle::from_c(bundle)).map_err(not_here))
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_AllocateEndpoint(bundle: *mut Eb, endpoint: *mut *mut Ep, name: *mut En) -> c_int {
    answer(|| {
        if endpoint.is_null() || name.is_null() {
            return Err(ERR_BAD_ARG);
        }
        let bundle = Handle::from_c(bundle);
        let (made, its_name) = bundles::with(bundle, make).map_err(not_here)?.map_err(not_done)?;
        let Some(handle) = endpoints::add(bundle, made, its_name) else {
            let _ = bundles::with(bundle, |used| of_either!(used, bundle => bundle.free(made)));
            return Err(ERR_RESOURCE);
        };
        super::returned::set(handle, super::returned::DEFAULT)?;
        // SAFETY: the program's promise.
        unsafe { store(name, En::new(&its_name)) };
        // SAFETY: the program's promise.
        unsafe { store(endpoint, handle.to_c()) };
        Ok(())
    })
}

/// Makes an endpoint with the tag AM_NONE. Its key is random, so that nobody can guess it before there is a tag.
fn make(used: Use<'_>) -> Result<(Endpoint, Name), Error> {
    // Only messages, and those that came back, end a wait: AM-II knows no other events.
    let mask = EventMask { not_empty: true, returned: true, ..EventMask::NONE };
    of_either!(used, bundle => {
        let made = bundle.endpoint_with_random_key()?;
        bundle.set_admission(made, Admission::Nobody)?;
        bundle.set_event_mask(made, mask)?;
        Ok((made, bundle.name(made)?))
    })
}

#[no_mangle]
pub extern "C" fn AM_FreeEndpoint(endpoint: *mut Ep) -> c_int {
    answer(|| endpoints::free(Handle::from_c(endpoint)).map_err(not_here))
}

#[no_mangle]
pub extern "C" fn AM_MoveEndpoint(endpoint: *mut Ep, from: *mut Eb, to: *mut Eb) -> c_int {
    answer(|| endpoints::move_to(Handle::from_c(endpoint), Handle::from_c(from), Handle::from_c(to)).map_err(not_moved))
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetTag(endpoint: *mut Ep, tag: *mut u64) -> c_int {
    answer(|| {
        let place = endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        let told = place.said().tag;
        // SAFETY: the program's promise.
        unsafe { store(tag, told) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

#[no_mangle]
pub extern "C" fn AM_SetTag(endpoint: *mut Ep, tag: u64) -> c_int {
    answer(|| {
        let set = |used: Use<'_>, endpoint, place: &endpoints::State| -> Result<(), Error> {
            let admission = match tag {
                TAG_NONE => Admission::Nobody,
                TAG_ALL => Admission::Anybody,
                _ => Admission::OwnUser,
            };
            of_either_held!(used, bundle => {
                // Between the two changes, nobody is admitted whom neither the old nor the new tag admits.
                if admission == Admission::OwnUser {
                    bundle.set_key(endpoint, Key(tag))?;
                }
                bundle.set_admission(endpoint, admission)?;
                place.said().tag = tag;
            });
            Ok(())
        };
        endpoints::with(Handle::from_c(endpoint), |used, endpoint, place| set(used, endpoint, place))
            .map_err(not_here)?
            .map_err(not_done)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetSeg(endpoint: *mut Ep, address: *mut *mut c_void, bytes: *mut usize) -> c_int {
    answer(|| {
        let place = endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        if address.is_null() || bytes.is_null() {
            return Err(ERR_BAD_ARG);
        }
        let (start, length) = place.said().segment;
        // SAFETY: the program's promise.
        unsafe { store(address, std::ptr::with_exposed_provenance_mut(start)) };
        // SAFETY: the program's promise.
        unsafe { store(bytes, length) };
        Ok(())
    })
}
