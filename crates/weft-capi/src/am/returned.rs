//! Messages that come back: handler 0.

use super::long::MEDIUM_WITHOUT_BYTES;
use super::token::with_running;
use super::{answer, not_done, not_here, Ep, ERR_BAD_ARG, ERR_RESOURCE};
use crate::endpoints;
use crate::guard::store;
use crate::handle::{Handle, Place};
use crate::invoke::ReturnHandler;
use crate::reasons;
use crate::running::{Back, Running};
use crate::{of_either, of_either_held};
use std::ffi::{c_char, c_int, c_void, CStr};

use weft::{Certainty, Error, MessageKind, Reason, Returned, Transfer, MAX_ARGS};

/// The reasons of AM-II why a message came back, with its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Status {
    BadArgs = 1,
    BadEntry = 2,
    BadTag = 3,
    BadHandler = 4,
    BadSegOff = 5,
    BadLength = 6,
    BadEndpoint = 7,
    Congestion = 8,
    Unreachable = 9,
    ReplyRejected = 10,
}

impl Status {
    fn of(returned: &Returned) -> Status {
        let is_reply = returned.kind == MessageKind::Reply;
        match returned.reason {
            Reason::PeerLost | Reason::NobodyThere | Reason::Silent | Reason::Version | Reason::Violation => {
                Status::Unreachable
            }
            _ if is_reply => Status::ReplyRejected,
            Reason::WrongKey | Reason::Closed | Reason::ForeignUser | Reason::WrongOwner => Status::BadTag,
            Reason::NoHandler => Status::BadHandler,
            Reason::NoSuchEndpoint | Reason::WrongEpoch => Status::BadEndpoint,
            Reason::QueueFull | Reason::NoRoom | Reason::PeerLimit => Status::Congestion,
            Reason::OwnDescriptors | Reason::OwnMemory | Reason::OwnFileSize => Status::Congestion,
            Reason::BadOffset | Reason::NoRegion | Reason::Revoked => Status::BadSegOff,
            Reason::BadLength | Reason::OutsideRegion => Status::BadLength,
            Reason::NoRight | Reason::Unaligned => Status::BadArgs,
        }
    }
}

/// The opcode of a message.
fn opcode(returned: &Returned) -> c_int {
    let category = match returned.long {
        Some(Transfer::Put { offset: MEDIUM_WITHOUT_BYTES }) => 1,
        Some(_) => 2,
        None => c_int::from(!returned.payload.is_empty()),
    };
    match returned.kind {
        MessageKind::Reply => 4 + category,
        MessageKind::Request | MessageKind::OneWay => 1 + category,
    }
}

/// The details of a message that came back: `am_returned_t`.
#[repr(C)]
pub struct Told {
    status: c_int,
    opcode: c_int,
    /// The index that it was sent to; -1 for a reply.
    index: c_int,
    handler: c_int,
    numargs: c_int,
    args: [i32; MAX_ARGS],
    contents: *const c_void,
    bytes: usize,
    /// 1 if it is certain that it was not delivered.
    is_certain: c_int,
    reason: *const c_char,
}

/// The handler of an endpoint that has none: reports the message, and ends the program.
pub const DEFAULT: ReturnHandler = undeliverable;

/// Sets handler 0.
pub fn set(endpoint: Handle, handler: ReturnHandler) -> Result<(), c_int> {
    let set = endpoints::with(endpoint, |used, own, place| {
        let run = move |_: &mut weft::am::Context<'_>, returned: Returned| {
            let status = Status::of(&returned) as c_int;
            run(place, handler, Back { returned: &returned, status, is_misuse: false });
        };
        of_either!(used, bundle => bundle.on_return(own, run)).map_err(not_done)?;
        place.said().on_return = Some(handler);
        Ok(())
    });
    set.map_err(not_here)?
}

fn run(place: &Place<endpoints::State>, handler: ReturnHandler, back: Back<'_>) {
    let (status, opcode) = (back.status, opcode(back.returned));
    place.desk.run_for_returned(&back, |token| {
        // SAFETY: the program's promise.
        unsafe { handler(status, opcode, token) }
    });
}

/// Handles a request that is not sent because the call is wrong. It comes back to handler 0 if the program asked for that; otherwise the
/// call returns `code`. The handler runs with the bundle held, as for a message.
#[cold]
#[inline(never)]
pub fn misused(endpoint: Handle, status: Status, code: c_int, what: Outgoing<'_>) -> Result<(), c_int> {
    let place = endpoints::find(endpoint).map_err(not_here)?;
    let (wants, handler) = {
        let said = place.said();
        (said.returns_misuse, said.on_return)
    };
    let Some(handler) = handler.filter(|_| wants) else { return Err(code) };
    let Outgoing { to, handler: op, args, payload } = what;
    let told = endpoints::with(endpoint, |used, own, _| {
        let returned = Returned {
            endpoint: own,
            destination: Some(to),
            kind: MessageKind::Request,
            op,
            args: args.to_vec(),
            payload: payload.to_vec(),
            reason: Reason::NoRoom,
            certainty: Certainty::NotDelivered,
            completion: None,
            long: None,
        };
        let back = Back { returned: &returned, status: status as c_int, is_misuse: true };
        of_either_held!(used, _bundle => run(place, handler, back));
        Ok::<_, Error>(())
    });
    told.map_err(not_here)?.map_err(not_done)
}

/// A request that is not sent.
pub struct Outgoing<'a> {
    pub to: u32,
    pub handler: u8,
    pub args: &'a [u32],
    pub payload: &'a [u8],
}

/// Makes requests that cannot be sent because the call is wrong come back to handler 0, with EBADARGS or EBADENTRY, as the report says. By
/// default the call returns AM_ERR_BAD_ARG instead.
#[no_mangle]
pub extern "C" fn am_set_returns_misuse(endpoint: *mut Ep, is_on: c_int) -> c_int {
    answer(|| {
        let place = endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        place.said().returns_misuse = is_on != 0;
        Ok(())
    })
}

extern "C" fn undeliverable(status: c_int, _opcode: c_int, token: *mut c_void) {
    let line = with_running(token, |running, _| match running {
        Running::Returned(back) => Some(describe(back)),
        Running::Message(_) => None,
    });
    match line {
        Ok(Some(line)) => eprintln!("{line}"),
        _ => eprintln!("weft: a message came back with status {status}"),
    }
    // What the program printed before must not be lost. Not all streams: another thread may be blocked in one of them.
    // SAFETY: the C library's own stream, which a program may only set to another one.
    unsafe { fflush(stdout) };
    std::process::abort();
}

extern "C" {
    /// The C library's standard output, and its function.
    static stdout: *mut c_void;
    fn fflush(stream: *mut c_void) -> c_int;
}

/// A line for the user.
fn describe(back: &Back<'_>) -> String {
    let Returned { destination, kind, op, args, payload, reason, .. } = back.returned;
    let status = status_text(back.status).to_string_lossy();
    let why = if back.is_misuse { String::new() } else { format!(": {reason}") };
    let what = match kind {
        MessageKind::Reply => "a reply",
        MessageKind::Request | MessageKind::OneWay => "a request",
    };
    let place = destination.map_or(String::new(), |index| format!(" at index {index}"));
    format!(
        "weft: {what} to handler {op}{place} ({} arguments, {} bytes) came back: {status}{why}. Set handler 0 to go on without it",
        args.len(),
        payload.len(),
    )
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_get_returned(token: *mut c_void, told: *mut Told) -> c_int {
    answer(|| {
        let read = with_running(token, |running, _| {
            let Running::Returned(back) = running else { return Err(ERR_RESOURCE) };
            let returned = back.returned;
            let mut args = [0; MAX_ARGS];
            for (place, arg) in args.iter_mut().zip(&returned.args) {
                *place = *arg as i32;
            }
            Ok(Told {
                status: back.status,
                opcode: opcode(returned),
                index: returned.destination.map_or(-1, |index| index as c_int),
                handler: returned.op.into(),
                numargs: returned.args.len() as c_int,
                args,
                contents: returned.payload.as_ptr().cast(),
                bytes: returned.payload.len(),
                is_certain: (returned.certainty == Certainty::NotDelivered).into(),
                reason: match back.is_misuse {
                    true => status_text(back.status).as_ptr(),
                    false => reasons::text(returned.reason),
                },
            })
        })??;
        // SAFETY: the program's promise.
        unsafe { store(told, read) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// The name of a status, as `am.h` writes it. Never NULL.
#[no_mangle]
pub extern "C" fn am_status_text(status: c_int) -> *const c_char {
    status_text(status).as_ptr()
}

fn status_text(status: c_int) -> &'static CStr {
    match status {
        1 => c"EBADARGS: the arguments are not what a request or reply may have",
        2 => c"EBADENTRY: nothing is mapped at that index of the sender's translation table",
        3 => c"EBADTAG: the tag is not the destination's, or that admits nobody, as until its owner calls AM_SetTag",
        4 => c"EBADHANDLER: the destination has no handler of that number",
        5 => c"EBADSEGOFF: the destination has no segment, or none at that offset",
        6 => c"EBADLENGTH: the contents run past the end of the destination's segment",
        7 => c"EBADENDPOINT: there is no such endpoint",
        8 => c"ECONGESTION: one side has no room for it",
        9 => c"EUNREACHABLE: the peer's process or host is gone, or silent",
        10 => c"EREPLYREJECTED: the destination refused a reply",
        _ => c"no status of Active Messages",
    }
}
