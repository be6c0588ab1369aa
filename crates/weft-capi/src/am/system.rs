//! AM_Init and AM_Terminate, limits, version.

use super::{answer, not_done, not_here, ERR_BAD_ARG, ERR_NOT_INIT, OK};
use crate::bundles::{self, NotHere, BUNDLES};
use crate::guard::{guard, slice, store};
use crate::{endpoints, handle::Handle};
use std::ffi::{c_char, c_int, CStr};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft::Node;
use weft_shm::Life;

/// Calls of AM_Init less those of AM_Terminate, and the node of all bundles.
struct Open {
    times: u64,
    node: Option<Node>,
    /// The process that called AM_Init.
    life: Option<Life>,
}

static OPEN: Mutex<Open> = Mutex::new(Open { times: 0, node: None, life: None });

/// The state as of this process: a forked child begins anew.
fn open() -> MutexGuard<'static, Open> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if open.life.is_some_and(Life::is_over) {
        *open = Open { times: 0, node: None, life: None };
    }
    open
}

/// Whether AM_Init was called more often than AM_Terminate.
pub fn is_open() -> bool {
    open().times > 0
}

/// The node of all bundles, if there is one.
pub fn node() -> Result<Node, c_int> {
    open().node.clone().ok_or(ERR_NOT_INIT)
}

#[no_mangle]
pub extern "C" fn AM_Init() -> c_int {
    answer(|| {
        let mut open = open();
        if open.times == 0 {
            open.node = Some(Node::new().map_err(not_done)?);
            open.life = Some(Life::current());
        }
        open.times += 1;
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn AM_Terminate() -> c_int {
    answer(|| {
        // Without the lock, because the ends of bundles run handlers.
        match open().times {
            0 => return Err(ERR_NOT_INIT),
            1 => end_bundles()?,
            _ => {}
        }
        // Other threads may have called AM_Init or AM_Terminate meanwhile.
        let mut open = open();
        open.times = open.times.checked_sub(1).ok_or(ERR_NOT_INIT)?;
        let node = if open.times == 0 { open.node.take() } else { None };
        drop(open);
        drop(node);
        Ok(())
    })
}

/// Ends all bundles of Active Messages; none, if one of them is in use.
fn end_bundles() -> Result<(), c_int> {
    let all: Vec<Handle> =
        BUNDLES.all().filter(|(_, place)| place.is_of_am.load(Ordering::Relaxed)).map(|of| of.0).collect();
    let is_in_use = |not: &NotHere| matches!(not, NotHere::InHandler | NotHere::Elsewhere);
    let ends: [fn(Handle) -> Result<(), NotHere>; 2] = [bundles::can_be_freed, endpoints::free_bundle];
    for end in ends {
        // A forked child leaves its parent's alone.
        if let Some(not) = all.iter().filter_map(|bundle| end(*bundle).err()).find(is_in_use) {
            return Err(not_here(not));
        }
    }
    Ok(())
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_MaxSegLength(bytes: *mut usize) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { store(bytes, usize::MAX) }.then_some(()).ok_or(ERR_BAD_ARG))
}

/// The version of the library, which may be newer than the header.
#[no_mangle]
pub extern "C" fn am_version() -> *const c_char {
    super::VERSION.as_ptr()
}

/// Features of this library that another one may lack.
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

/// Whether the library fits the header, by the header's AM_VERSION: AM_OK or AM_ERR_RESOURCE.
#[no_mangle]
pub extern "C" fn am_check_version(header: c_int) -> c_int {
    const INTERFACE: c_int = 1;
    match header {
        INTERFACE => OK,
        _ => super::ERR_RESOURCE,
    }
}
