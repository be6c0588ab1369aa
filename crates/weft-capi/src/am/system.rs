//! Beginning and end, limits, version.

use super::{answer, not_done, ERR_BAD_ARG, ERR_NOT_INIT, OK};
use crate::bundles::BUNDLES;
use crate::guard::{guard, slice, store};
use crate::{endpoints, handle::Handle};
use std::ffi::{c_char, c_int, CStr};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use weft::Node;

/// How often it was begun, and the node of all bundles.
struct Open {
    times: u64,
    node: Option<Node>,
}

static OPEN: Mutex<Open> = Mutex::new(Open { times: 0, node: None });

/// Whether AM_Init was called more often than AM_Terminate.
pub fn is_open() -> bool {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).times > 0
}

/// The node of all bundles, if there is one.
pub fn node() -> Result<Node, c_int> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).node.clone().ok_or(ERR_NOT_INIT)
}

#[no_mangle]
pub extern "C" fn AM_Init() -> c_int {
    answer(|| {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if open.times == 0 {
            open.node = Some(Node::new().map_err(not_done)?);
        }
        open.times += 1;
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn AM_Terminate() -> c_int {
    answer(|| {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.times = open.times.checked_sub(1).ok_or(ERR_NOT_INIT)?;
        if open.times > 0 {
            return Ok(());
        }
        let node = open.node.take();
        drop(open);
        let all: Vec<Handle> =
            BUNDLES.all().filter(|(_, place)| place.is_of_am.load(Ordering::Relaxed)).map(|of| of.0).collect();
        for bundle in all {
            // One that another thread uses now ends with the process.
            let _ = endpoints::free_bundle(bundle);
        }
        drop(node);
        Ok(())
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_MaxSegLength(bytes: *mut usize) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { store(bytes, usize::MAX) }.then_some(()).ok_or(ERR_BAD_ARG))
}

/// The version of the library, which may be newer than the header's.
#[no_mangle]
pub extern "C" fn am_version() -> *const c_char {
    super::VERSION.as_ptr()
}

/// What this library has, of what another one may lack.
const FEATURES: [&CStr; 10] =
    [c"long", c"get", c"parallel", c"move", c"remap", c"returned", c"wait", c"tags", c"arguments=16", c"medium=65536"];

/// Whether the library has a feature: 1 or 0.
///
/// # Safety
/// The program's promise: a text that ends.
#[no_mangle]
pub unsafe extern "C" fn am_has(feature: *const c_char) -> c_int {
    guard(0, || {
        // SAFETY: the program's promise.
        let Some([_]) = (unsafe { slice(feature, 1) }) else { return 0 };
        // SAFETY: it is not NULL, and ends, by the program's promise.
        let feature = unsafe { CStr::from_ptr(feature) };
        FEATURES.contains(&feature).into()
    })
}

/// Whether code of the library is as the header expects, by its AM_VERSION: AM_OK or AM_ERR_RESOURCE.
#[no_mangle]
pub extern "C" fn am_check_version(header: c_int) -> c_int {
    const INTERFACE: c_int = 1;
    match header {
        INTERFACE => OK,
        _ => super::ERR_RESOURCE,
    }
}
