use super::endpoint::{contents, Contents, WeftEndpoint};
use super::name::{read, WeftName};
use super::{answer, Fault};
use crate::endpoints::{self, ENDPOINTS};
use crate::guard::store;
use crate::handle::{Handle, Kind, Place, Table};
use crate::running::Running;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};
use weft::am::{Message, ReplyToken};
use weft::{Endpoint, Key, MessageKind};

/// A message, until its handler returns.
pub struct WeftMessage;

/// The right to reply to a request later.
pub struct WeftReply;

static REPLIES: Table<Mutex<Option<ReplyToken>>> = Table::new(Kind::Reply);

/// A one-way message.
pub const WEFT_ONE_WAY: c_int = 0;
/// A request.
pub const WEFT_REQUEST: c_int = 1;
/// A reply.
pub const WEFT_REPLY: c_int = 2;

/// Runs a call on a message.
fn with<R>(
    message: *mut WeftMessage,
    call: impl FnOnce(&mut Message<'_>, &'static Place<endpoints::State>) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let token = Handle::from_c(message);
    let place = ENDPOINTS.place(token).ok_or(Fault::Handle)?;
    let called = place.desk.with(token, |running| match running {
        Running::Message(message) => call(message, place),
        Running::Returned(_) => Err(Fault::NotARequest),
    });
    called.ok_or(Fault::Handle)?
}

/// Replies to a request, once. Does not block.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_reply(
    message: *mut WeftMessage,
    handler: u8,
    args: *const u32,
    numargs: usize,
    payload: *const c_void,
    bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Contents { args, payload } = unsafe { contents(args, numargs, payload, bytes) }?;
        with(message, |message, _| Ok(message.reply(handler, args, payload)?))
    })
}

/// Takes the right to reply, for use after the handler and in any thread.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_defer(message: *mut WeftMessage, reply: *mut *mut WeftReply) -> c_int {
    answer(|| {
        if reply.is_null() {
            return Err(Fault::Argument);
        }
        let token = with(message, |message, _| message.defer().ok_or(Fault::NotARequest))?;
        // If there is no place the token is dropped, and the request ends without a reply.
        let (place, handle) = REPLIES.take().ok_or(Fault::Full)?;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
        place.publish(handle);
        // SAFETY: the program's promise.
        unsafe { store(reply, handle.to_c()) };
        Ok(())
    })
}

/// Takes a right to reply away from C.
fn take(reply: *mut WeftReply) -> Result<ReplyToken, Fault> {
    let handle = Handle::from_c(reply);
    let place = REPLIES.find(handle).ok_or(Fault::Handle)?;
    if !place.withdraw(handle) {
        return Err(Fault::Handle);
    }
    let token = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    REPLIES.give_back(handle);
    token.ok_or(Fault::Handle)
}

/// Replies to a request by a deferred right, from any thread. The right is used up unless the result is WEFT_ERROR_TOO_LARGE or
/// WEFT_ERROR_ARGUMENT. The reply leaves with the bundle's next poll or wait.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_reply_send(
    reply: *mut WeftReply,
    handler: u8,
    args: *const u32,
    numargs: usize,
    payload: *const c_void,
    bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Contents { args, payload } = unsafe { contents(args, numargs, payload, bytes) }?;
        Ok(take(reply)?.reply_from_afar(handler, args, payload).map_err(|(error, _)| error)?)
    })
}

/// Gives a deferred right up: the request ends without a reply. From any thread.
#[no_mangle]
pub extern "C" fn weft_reply_free(reply: *mut WeftReply) -> c_int {
    answer(|| take(reply).map(drop))
}

/// The name of the endpoint that sent the message. WEFT_ERROR_PEER_LOST if the sender is gone.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_source(message: *mut WeftMessage, name: *mut WeftName) -> c_int {
    answer(|| {
        let source = with(message, |message, _| message.source().ok_or(Fault::PeerLost))?;
        // SAFETY: the program's promise.
        unsafe { store(name, WeftName::new(&source)) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// The endpoint that the message came to.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_endpoint(message: *mut WeftMessage, endpoint: *mut *mut WeftEndpoint) -> c_int {
    answer(|| {
        let here = with(message, |_, place| Ok(place.handle()))?;
        // SAFETY: the program's promise.
        unsafe { store(endpoint, here.to_c()) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// The kind of the message: WEFT_ONE_WAY, WEFT_REQUEST or WEFT_REPLY.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_kind(message: *mut WeftMessage, kind: *mut c_int) -> c_int {
    answer(|| {
        let told = with(message, |message, _| {
            Ok(match message.kind() {
                MessageKind::OneWay => WEFT_ONE_WAY,
                MessageKind::Request => WEFT_REQUEST,
                MessageKind::Reply => WEFT_REPLY,
            })
        })?;
        // SAFETY: the program's promise.
        unsafe { store(kind, told) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// An endpoint of the bundle that runs the handler.
fn neighbour(endpoint: *mut WeftEndpoint, here: &Place<endpoints::State>) -> Result<Endpoint, Fault> {
    let home = endpoints::find(Handle::from_c(endpoint))?.home().ok_or(Fault::Handle)?;
    let same = here.home().is_some_and(|here| here.handle == home.handle);
    same.then_some(home.endpoint).ok_or(Fault::NotInBundle)
}

/// Sends a request from the handler of a message, from an endpoint of the same bundle. Does not block.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_request(
    message: *mut WeftMessage,
    endpoint: *mut WeftEndpoint,
    to: u32,
    handler: u8,
    args: *const u32,
    numargs: usize,
    payload: *const c_void,
    bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Contents { args, payload } = unsafe { contents(args, numargs, payload, bytes) }?;
        with(message, |message, place| {
            let from = neighbour(endpoint, place)?;
            Ok(message.context().try_request(from, to, handler, args, payload)?)
        })
    })
}

/// Sends a one-way message from the handler of a message, from an endpoint of the same bundle. Does not block.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_send(
    message: *mut WeftMessage,
    endpoint: *mut WeftEndpoint,
    to: u32,
    handler: u8,
    args: *const u32,
    numargs: usize,
    payload: *const c_void,
    bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Contents { args, payload } = unsafe { contents(args, numargs, payload, bytes) }?;
        with(message, |message, place| {
            let from = neighbour(endpoint, place)?;
            Ok(message.context().try_send(from, to, handler, args, payload)?)
        })
    })
}

/// Enters a peer in the translation table of an endpoint of the same bundle, from the handler of a message.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_message_map(
    message: *mut WeftMessage,
    endpoint: *mut WeftEndpoint,
    index: u32,
    name: *const WeftName,
    key: u64,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let name = unsafe { read(name) }?;
        with(message, |message, place| {
            let own = neighbour(endpoint, place)?;
            Ok(message.context().map(own, index, name, Key(key))?)
        })
    })
}
