//! The calls by which a handler asks about its message.

use super::long::MEDIUM_WITHOUT_BYTES;
use super::{answer, En, Ep, ERR_BAD_ARG, ERR_RESOURCE};
use crate::endpoints::{self, ENDPOINTS};
use crate::guard::store;
use crate::handle::{Handle, Place};
use crate::running::{Back, Running};
use std::ffi::{c_int, c_void};

use weft::{MessageKind, Transfer};

/// Runs a call on the message of a token.
pub fn with_running<R>(
    token: *mut c_void,
    call: impl FnOnce(Running<'_, '_>, &'static Place<endpoints::State>) -> R,
) -> Result<R, c_int> {
    let token = Handle::from(token);
    let place = ENDPOINTS.place(token).ok_or(ERR_BAD_ARG)?;
    place.desk.with(token, |running| call(running, place)).ok_or(ERR_BAD_ARG)
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetSourceEndpoint(token: *mut c_void, name: *mut En) -> c_int {
    answer(|| {
        let source = with_running(token, |running, place| match running {
            Running::Message(message) => message.source(),
            // The endpoint sent it itself.
            Running::Returned(_) => place.said().name,
        })?;
        let source = source.ok_or(ERR_RESOURCE)?;
        // SAFETY: the program's promise.
        unsafe { store(name, En::new(&source)) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetDestEndpoint(token: *mut c_void, endpoint: *mut *mut Ep) -> c_int {
    answer(|| {
        let here = with_running(token, |_, place| place.handle())?;
        // SAFETY: the program's promise.
        unsafe { store(endpoint, here.to_c()) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetMsgTag(token: *mut c_void, tag: *mut u64) -> c_int {
    answer(|| {
        let carried = with_running(token, |running, place| match running {
            // A reply carries no tag. It was admitted as if it had the endpoint's own.
            Running::Message(message) => message.key().map_or_else(|| place.said().tag, |key| key.0),
            Running::Returned(back) => {
                let said = place.said();
                let entry = back.returned.destination.and_then(|index| said.entries.get(&index));
                entry.map_or(said.tag, |(_, tag)| *tag)
            }
        })?;
        // SAFETY: the program's promise.
        unsafe { store(tag, carried) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// The sender's index in the endpoint's own translation table, the lowest one if there are several; -1 if it has none.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_get_source_index(token: *mut c_void, index: *mut c_int) -> c_int {
    answer(|| {
        let found = with_running(token, |running, place| {
            let Running::Message(message) = running else { return Err(ERR_RESOURCE) };
            let source = message.source();
            let said = place.said();
            let at = said.entries.iter().find(|(_, (name, _))| Some(*name) == source);
            Ok(at.map_or(-1, |(index, _)| *index as c_int))
        })??;
        // SAFETY: the program's promise.
        unsafe { store(index, found) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// The category of a message: short, medium or long.
fn category_of(offset: Option<u64>, payload: &[u8]) -> c_int {
    match offset {
        Some(MEDIUM_WITHOUT_BYTES) => 1,
        Some(_) => 2,
        None => c_int::from(!payload.is_empty()),
    }
}

/// What kind of message a handler runs for.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_get_token_info(
    token: *mut c_void,
    handler: *mut u8,
    category: *mut c_int,
    is_request: *mut c_int,
) -> c_int {
    answer(|| {
        let (number, kind, of_what) = with_running(token, |running, _| match running {
            Running::Message(message) => {
                let offset = message.placed().map(|placed| placed.offset);
                (message.handler(), message.kind(), category_of(offset, message.payload()))
            }
            Running::Returned(Back { returned, .. }) => {
                let offset = returned.long.map(|long| match long {
                    Transfer::Put { offset } | Transfer::Get { offset, .. } => offset,
                });
                (returned.op, returned.kind, category_of(offset, &returned.payload))
            }
        })?;
        let is_no_reply = kind != MessageKind::Reply;
        // SAFETY: the program's promise, here and below.
        let is_stored = unsafe { store(handler, number) };
        // SAFETY: as above.
        let is_stored = is_stored && unsafe { store(category, of_what) };
        // SAFETY: as above.
        let is_stored = is_stored && unsafe { store(is_request, c_int::from(is_no_reply)) };
        is_stored.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// Whether two names mean the same endpoint: 1 or 0. Their bytes may differ in the address.
#[no_mangle]
pub extern "C" fn am_same_name(one: En, other: En) -> c_int {
    crate::guard::guard(0, || match (one.name(), other.name()) {
        (Ok(one), Ok(other)) => (one == other).into(),
        _ => 0,
    })
}
