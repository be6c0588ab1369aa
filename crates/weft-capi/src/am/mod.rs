//! Active Messages II as `am.h` has it.

mod events;
mod handlers;
mod long;
pub mod objects;
mod returned;
mod send;
pub mod system;
pub mod table;
mod token;

use crate::bundles::NotHere;
use crate::endpoints::NotMoved;
use crate::{guard, native};
use std::cell::Cell;
use std::ffi::{c_char, c_int, CStr};
use weft::{Error, Name, SendError};

pub const OK: c_int = 0;
pub const ERR_NOT_INIT: c_int = 1;
pub const ERR_BAD_ARG: c_int = 2;
pub const ERR_RESOURCE: c_int = 3;
pub const ERR_NOT_SENT: c_int = 4;
pub const ERR_IN_USE: c_int = 5;

/// The text of a result, with its cause and the way out. Never NULL.
#[no_mangle]
pub extern "C" fn am_error_text(error: c_int) -> *const c_char {
    error_text(error).as_ptr()
}

fn error_text(error: c_int) -> &'static CStr {
    match error {
        OK => c"AM_OK: no error",
        ERR_NOT_INIT => {
            c"AM_ERR_NOT_INIT: AM_Init was not called in this process; call it first, and once more in a forked child"
        }
        ERR_BAD_ARG => {
            c"AM_ERR_BAD_ARG: an argument is NULL, out of its range or a stale handle, or nothing is mapped at that index: see the \
              manual page of the function; weft_last_error has what the call found"
        }
        ERR_RESOURCE => {
            c"AM_ERR_RESOURCE: a table is full, or a slot of it in use or empty; or a handler may not make this call; or the system \
              refused something: weft_last_error has what the call found"
        }
        ERR_NOT_SENT => {
            c"AM_ERR_NOT_SENT: not sent, because events wait for the program or the peer is gone: take events with \
              weft_bundle_next_event"
        }
        ERR_IN_USE => {
            c"AM_ERR_IN_USE: another thread uses the sequential bundle, or an asynchronous transfer finds no room: try again later, \
              or make the bundle parallel (AM_PAR)"
        }
        6 => c"AM_ERR_NOT_TERM: an older library returned it; this one counts the calls of AM_Init",
        _ => c"this is no code of am.h, which has AM_OK and AM_ERR_ codes from 1 to 6",
    }
}

/// A tag that no delivered message carries, and one that admits all.
pub const TAG_NONE: u64 = 0;
pub const TAG_ALL: u64 = 1;

/// Most bytes of a medium message.
pub const MEDIUM_MOST: usize = weft::MAX_PAYLOAD;

/// Most entries of a translation table.
pub const TABLE_MOST: u32 = 1 << 20;

/// The library's version.
pub const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL"),
};

/// A name by value: `en_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct En {
    bytes: [u8; 40],
}

const _: () = assert!(size_of::<En>() == 40);

impl En {
    /// Space for one.
    pub const NONE: En = En { bytes: [0; 40] };

    fn new(name: &Name) -> En {
        En { bytes: name.to_bytes() }
    }

    fn name(&self) -> Result<Name, c_int> {
        Name::from_bytes(&self.bytes).map_err(|error| detail(ERR_BAD_ARG, &error.to_string()))
    }
}

/// The types behind C's pointers to endpoints and bundles.
pub enum Ep {}
pub enum Eb {}

/// A call's result code for C. A panic counts as a lack of resources: the call has had no effect that C can see.
#[inline(always)]
fn answer(call: impl FnOnce() -> Result<(), c_int>) -> c_int {
    guard::guard(ERR_RESOURCE, || match call() {
        Ok(()) => OK,
        Err(code) => failed(code),
    })
}

thread_local! {
    /// The code of the failing call that has said what it found.
    static DETAILED: Cell<c_int> = const { Cell::new(OK) };
}

/// Says what a call that fails with this code has found, for `weft_last_error`. Returns the code.
#[cold]
fn detail(code: c_int, text: &str) -> c_int {
    native::note(text);
    DETAILED.set(code);
    code
}

/// Leaves the code's own text as details if there are no others: those of an earlier call would mislead.
#[cold]
fn failed(code: c_int) -> c_int {
    if DETAILED.replace(OK) != code {
        native::note(&error_text(code).to_string_lossy());
    }
    code
}

/// The code for a handle that belongs to no object.
#[cold]
fn stale() -> c_int {
    match system::is_open() {
        true => detail(
            ERR_BAD_ARG,
            "stale handle: the object was freed, or it is of another kind; use the one that its maker stored",
        ),
        false => ERR_NOT_INIT,
    }
}

#[cold]
fn not_here(not: NotHere) -> c_int {
    match not {
        NotHere::Stale => stale(),
        NotHere::InHandler => {
            detail(ERR_RESOURCE, "a handler cannot use the bundle that runs it: use the calls that take its token")
        }
        NotHere::Elsewhere => ERR_IN_USE,
        NotHere::Forked => ERR_NOT_INIT,
    }
}

#[cold]
fn not_moved(not: NotMoved) -> c_int {
    match not {
        NotMoved::NotHere(not) => not_here(not),
        NotMoved::NotIn | NotMoved::AnotherNode => ERR_RESOURCE,
    }
}

#[cold]
fn not_sent(error: SendError) -> c_int {
    let code = match error {
        SendError::Full | SendError::TimedOut => ERR_NOT_SENT,
        SendError::TooLarge | SendError::NotMapped(_) | SendError::NoEndpoint | SendError::OtherClient => ERR_BAD_ARG,
        SendError::InHandler => ERR_RESOURCE,
        SendError::Forked => ERR_NOT_INIT,
    };
    detail(code, &error.to_string())
}

#[cold]
fn not_done(error: Error) -> c_int {
    match error {
        Error::Send(error) => not_sent(error),
        Error::Forked(_) => ERR_NOT_INIT,
        error => detail(ERR_RESOURCE, &error.to_string()),
    }
}
