//! `weft.h`: weft for C programs. The header is generated from the files of this folder.

mod bundle;
mod endpoint;
mod message;
mod name;
mod node;

use crate::bundles::NotHere;
use crate::endpoints::NotMoved;
use crate::guard;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};
use std::time::Duration;
use weft::am::NotReplied;
use weft::{Error, ReplyError, SendError};

/// No error.
pub const WEFT_OK: c_int = 0;

/// Errors of calls. weft_error_text has the cause and the way out of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum WeftError {
    /// An argument is NULL, or out of its range.
    Argument = 1,
    /// The object was freed, or the handle is of another kind.
    Handle = 2,
    /// A handler calls the bundle that runs it.
    InHandler = 3,
    /// Another thread is using this sequential bundle.
    Busy = 4,
    /// This is a forked child of the process that made the object.
    Forked = 5,
    /// There is no room. Poll, take events, and send again.
    Full = 6,
    /// The time limit is over. Nothing was sent.
    TimedOut = 7,
    /// More than 16 arguments, or more than 65,536 bytes.
    TooLarge = 8,
    /// The translation table has no entry at that index.
    NotMapped = 9,
    /// The local endpoint was freed.
    NoEndpoint = 10,
    /// The endpoint is used for something else.
    OtherClient = 11,
    /// The message is no request, or was answered already.
    NotARequest = 12,
    /// The peer is gone.
    PeerLost = 13,
    /// The operating system refused something: weft_last_error says what.
    System = 14,
    /// The text or the bytes are no name or key.
    Name = 15,
    /// The endpoint does not live in that bundle, or the bundles are of different nodes.
    NotInBundle = 16,
    /// An error inside of weft.
    Broken = 17,
}

pub use WeftError as Fault;

impl Fault {
    const ALL: [Fault; 17] = [
        Fault::Argument,
        Fault::Handle,
        Fault::InHandler,
        Fault::Busy,
        Fault::Forked,
        Fault::Full,
        Fault::TimedOut,
        Fault::TooLarge,
        Fault::NotMapped,
        Fault::NoEndpoint,
        Fault::OtherClient,
        Fault::NotARequest,
        Fault::PeerLost,
        Fault::System,
        Fault::Name,
        Fault::NotInBundle,
        Fault::Broken,
    ];

    fn code(self) -> c_int {
        self as c_int
    }

    /// Cause and way out.
    fn text(self) -> &'static CStr {
        match self {
            Fault::Argument => c"an argument is NULL, or out of its range: see its description in weft.h",
            Fault::Handle => c"stale handle: the object was freed, or the handle is of another kind; use the one that its maker returned",
            Fault::InHandler => c"a handler cannot use the bundle that runs it: use the calls that take its message",
            Fault::Busy => c"another thread is using this sequential bundle: make it parallel, or let one thread at a time use it",
            Fault::Forked => c"this process was forked after weft was opened, and cannot use what its parent opened: make a new node here",
            Fault::Full => c"full: poll, take events, and send again after the can-send event",
            Fault::TimedOut => c"timed out: no room within the time limit, and nothing was sent; the receiver is slow, stopped or unreachable",
            Fault::TooLarge => c"too large: a message has at most 16 arguments and 65,536 bytes; split it",
            Fault::NotMapped => c"nothing is mapped at that index of the endpoint's translation table: map a name there first",
            Fault::NoEndpoint => c"the local endpoint was freed, or is moving to another bundle",
            Fault::OtherClient => c"the endpoint is used for something else: make another endpoint",
            Fault::NotARequest => c"nothing to reply to: the message is not a request, or was answered already",
            Fault::PeerLost => c"the peer that asked is gone: nobody waits for this reply any more",
            Fault::System => c"the operating system refused something: weft_last_error says what, and what helps",
            Fault::Name => c"this is not a name: a name begins with \"weft1:\" and is 60 characters long; copy it whole",
            Fault::NotInBundle => c"the endpoint does not live in that bundle, or the two bundles are of different nodes",
            Fault::Broken => c"an error inside weft: report it, with the output on standard error",
        }
    }
}

thread_local! {
    /// Details of this thread's last failed call.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the details of this thread's failed call.
pub(crate) fn note(text: &str) {
    // A thread that is ending keeps no text.
    _ = LAST.try_with(|last| last.replace(CString::new(text).unwrap_or_default()));
}

/// The result of a call, as C gets it.
#[inline(always)]
fn answer(call: impl FnOnce() -> Result<(), Fault>) -> c_int {
    guard::guard(Fault::Broken.code(), || match call() {
        Ok(()) => WEFT_OK,
        Err(fault) => fault.code(),
    })
}

impl From<NotHere> for Fault {
    fn from(not: NotHere) -> Fault {
        match not {
            NotHere::Stale => Fault::Handle,
            NotHere::InHandler => Fault::InHandler,
            NotHere::Elsewhere => Fault::Busy,
            NotHere::Forked => Fault::Forked,
        }
    }
}

impl From<weft::InHandler> for Fault {
    fn from(_: weft::InHandler) -> Fault {
        Fault::InHandler
    }
}

impl From<NotMoved> for Fault {
    fn from(not: NotMoved) -> Fault {
        match not {
            NotMoved::NotHere(not) => not.into(),
            NotMoved::NotIn | NotMoved::AnotherNode => Fault::NotInBundle,
        }
    }
}

impl From<SendError> for Fault {
    fn from(error: SendError) -> Fault {
        match error {
            SendError::Full => Fault::Full,
            SendError::TimedOut => Fault::TimedOut,
            SendError::TooLarge => Fault::TooLarge,
            SendError::NotMapped(_) => Fault::NotMapped,
            SendError::NoEndpoint => Fault::NoEndpoint,
            SendError::OtherClient => Fault::OtherClient,
            SendError::InHandler => Fault::InHandler,
            SendError::Forked => Fault::Forked,
        }
    }
}

impl From<ReplyError> for Fault {
    fn from(error: ReplyError) -> Fault {
        match error {
            ReplyError::TooLarge => Fault::TooLarge,
            ReplyError::PeerLost => Fault::PeerLost,
            ReplyError::Forked => Fault::Forked,
        }
    }
}

impl From<NotReplied> for Fault {
    fn from(error: NotReplied) -> Fault {
        match error {
            NotReplied::NothingToReplyTo => Fault::NotARequest,
            NotReplied::Refused(error) => error.into(),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error {
            Error::Send(error) => error.into(),
            Error::Forked(_) => Fault::Forked,
            error => {
                note(&error.to_string());
                Fault::System
            }
        }
    }
}

/// The text of a result, with its cause and the way out. Do not free it. Never NULL.
#[no_mangle]
pub extern "C" fn weft_error_text(error: c_int) -> *const c_char {
    let text = match error {
        WEFT_OK => c"no error",
        _ => Fault::ALL.iter().find(|fault| fault.code() == error).map_or(c"no error of weft", |fault| fault.text()),
    };
    text.as_ptr()
}

/// Details of this thread's last error WEFT_ERROR_SYSTEM or WEFT_ERROR_NAME, or of its last AM_ERR_ code. Valid until the next such
/// error. Never NULL.
#[no_mangle]
pub extern "C" fn weft_last_error() -> *const c_char {
    guard::guard(c"".as_ptr(), || LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr()))
}

/// The library's version, as text.
#[no_mangle]
pub extern "C" fn weft_version() -> *const c_char {
    crate::am::VERSION.as_ptr()
}

/// A time limit from C: none if negative.
fn limit(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}
