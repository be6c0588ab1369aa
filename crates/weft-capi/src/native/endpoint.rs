use super::bundle::{give_up, WeftBundle, WeftReturned};
use super::message::WeftMessage;
use super::name::{read, WeftName};
use super::{answer, limit, Fault};
use crate::bundles;
use crate::endpoints;
use crate::guard::{slice, store};
use crate::handle::{Handle, Place};
use crate::of_either;
use crate::running::Back;
use std::ffi::{c_char, c_int, c_void};
use weft::am::Message;
use weft::{Admission, EventMask, Key, Reason, Returned};

/// The object that a program communicates through.
pub struct WeftEndpoint;

/// A handler. `args` and `payload` are good until it returns.
pub type WeftHandler = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        message: *mut WeftMessage,
        args: *const u32,
        numargs: usize,
        payload: *const c_void,
        bytes: usize,
    ),
>;

/// A handler for messages that come back.
pub type WeftReturnHandler = Option<unsafe extern "C" fn(context: *mut c_void, returned: *const WeftReturned)>;

/// Nobody may send to the endpoint.
pub const WEFT_ADMIT_NOBODY: c_int = 0;
/// Processes of its own user that know the key. The default.
pub const WEFT_ADMIT_OWN_USER: c_int = 1;
/// Processes of any user that know the key.
pub const WEFT_ADMIT_ANY_USER: c_int = 2;
/// As WEFT_ADMIT_OWN_USER, but processes of its own user on this host need no key.
pub const WEFT_ADMIT_OWN_USER_WITHOUT_KEY: c_int = 3;
/// All processes, without a key.
pub const WEFT_ADMIT_ANYBODY: c_int = 4;

/// A message came.
pub const WEFT_WAKE_NOT_EMPTY: u32 = 1;
/// A send that was full may be tried again.
pub const WEFT_WAKE_CAN_SEND: u32 = 2;
/// A message came back.
pub const WEFT_WAKE_RETURNED: u32 = 4;
/// A peer is gone.
pub const WEFT_WAKE_PEER_LOST: u32 = 8;

/// Makes an endpoint that accepts messages which carry `key`.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_endpoint_new(
    bundle: *mut WeftBundle,
    key: u64,
    endpoint: *mut *mut WeftEndpoint,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        unsafe { make(Handle::from_c(bundle), Some(Key(key)), endpoint) }
    })
}

/// Makes an endpoint with a random key. weft_endpoint_key returns it.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_endpoint_new_random(bundle: *mut WeftBundle, endpoint: *mut *mut WeftEndpoint) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        unsafe { make(Handle::from_c(bundle), None, endpoint) }
    })
}

/// # Safety
/// The program's promise.
unsafe fn make(bundle: Handle, key: Option<Key>, endpoint: *mut *mut WeftEndpoint) -> Result<(), Fault> {
    if endpoint.is_null() {
        return Err(Fault::Argument);
    }
    let (made, name) = bundles::with(bundle, |used| -> Result<_, weft::Error> {
        of_either!(used, bundle => {
            let made = match key {
                Some(key) => bundle.endpoint(key)?,
                None => bundle.endpoint_with_random_key()?,
            };
            Ok((made, bundle.name(made)?))
        })
    })??;
    let Some(handle) = endpoints::add(bundle, made, name) else {
        give_up(bundle, made);
        return Err(Fault::System);
    };
    // SAFETY: the program's promise.
    unsafe { store(endpoint, handle.to_c()) };
    Ok(())
}

/// Frees an endpoint. From now on messages for it come back to their senders.
#[no_mangle]
pub extern "C" fn weft_endpoint_free(endpoint: *mut WeftEndpoint) -> c_int {
    answer(|| Ok(endpoints::free(Handle::from_c(endpoint))?))
}

/// Moves an endpoint to another bundle of its node, with all that belongs to it. No message is lost.
#[no_mangle]
pub extern "C" fn weft_endpoint_move(endpoint: *mut WeftEndpoint, from: *mut WeftBundle, to: *mut WeftBundle) -> c_int {
    answer(|| Ok(endpoints::move_to(Handle::from_c(endpoint), Handle::from_c(from), Handle::from_c(to))?))
}

/// The endpoint's name, which peers need to send to it.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_endpoint_name(endpoint: *mut WeftEndpoint, name: *mut WeftName) -> c_int {
    answer(|| {
        let told = endpoints::with(
            Handle::from_c(endpoint),
            |used, endpoint, _| of_either!(used, bundle => bundle.name(endpoint)),
        )??;
        // SAFETY: the program's promise.
        unsafe { store(name, WeftName::new(&told)) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// The endpoint's key, which peers need to send to it.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_endpoint_key(endpoint: *mut WeftEndpoint, key: *mut u64) -> c_int {
    answer(|| {
        let told = endpoints::with(
            Handle::from_c(endpoint),
            |used, endpoint, _| of_either!(used, bundle => bundle.key(endpoint)),
        )??;
        // SAFETY: the program's promise.
        unsafe { store(key, told.0) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// A call that changes an endpoint.
macro_rules! change {
    ($endpoint:expr, |$bundle:ident, $own:ident| $call:expr) => {
        answer(|| {
            endpoints::with(Handle::from_c($endpoint), |used, $own, _| of_either!(used, $bundle => $call))??;
            Ok(())
        })
    };
}

/// Changes the key. Messages that carry the old one come back to their senders.
#[no_mangle]
pub extern "C" fn weft_endpoint_set_key(endpoint: *mut WeftEndpoint, key: u64) -> c_int {
    change!(endpoint, |bundle, own| bundle.set_key(own, Key(key)))
}

/// Sets who may send to the endpoint: one of WEFT_ADMIT_...
#[no_mangle]
pub extern "C" fn weft_endpoint_set_admission(endpoint: *mut WeftEndpoint, admission: c_int) -> c_int {
    let admission = match admission {
        WEFT_ADMIT_NOBODY => Admission::Nobody,
        WEFT_ADMIT_OWN_USER => Admission::OwnUser,
        WEFT_ADMIT_ANY_USER => Admission::AnyUser,
        WEFT_ADMIT_OWN_USER_WITHOUT_KEY => Admission::OwnUserWithoutKey,
        WEFT_ADMIT_ANYBODY => Admission::Anybody,
        _ => return Fault::Argument.code(),
    };
    change!(endpoint, |bundle, own| bundle.set_admission(own, admission))
}

/// Sets whether messages are delivered (1, the default) or wait at the endpoint (0).
#[no_mangle]
pub extern "C" fn weft_endpoint_set_served(endpoint: *mut WeftEndpoint, is_served: c_int) -> c_int {
    change!(endpoint, |bundle, own| bundle.set_served(own, is_served != 0))
}

/// Sets what ends a wait: the sum of WEFT_WAKE_...
#[no_mangle]
pub extern "C" fn weft_endpoint_set_event_mask(endpoint: *mut WeftEndpoint, mask: u32) -> c_int {
    const ALL: u32 = WEFT_WAKE_NOT_EMPTY | WEFT_WAKE_CAN_SEND | WEFT_WAKE_RETURNED | WEFT_WAKE_PEER_LOST;
    if mask & !ALL != 0 {
        return Fault::Argument.code();
    }
    let has = |bit| mask & bit != 0;
    let mask = EventMask {
        not_empty: has(WEFT_WAKE_NOT_EMPTY),
        can_send: has(WEFT_WAKE_CAN_SEND),
        returned: has(WEFT_WAKE_RETURNED),
        peer_lost: has(WEFT_WAKE_PEER_LOST),
    };
    change!(endpoint, |bundle, own| bundle.set_event_mask(own, mask))
}

/// Enters a peer's name and key at an index of the endpoint's translation table.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_endpoint_map(
    endpoint: *mut WeftEndpoint,
    index: u32,
    name: *const WeftName,
    key: u64,
) -> c_int {
    // SAFETY: the program's promise.
    let name = match unsafe { read(name) } {
        Ok(name) => name,
        Err(fault) => return fault.code(),
    };
    change!(endpoint, |bundle, own| bundle.map(own, index, name, Key(key)))
}

/// As weft_endpoint_map, for a peer that may admit callers without its key. The peer need not know the key, and learns it.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_endpoint_map_unproven(
    endpoint: *mut WeftEndpoint,
    index: u32,
    name: *const WeftName,
    key: u64,
) -> c_int {
    // SAFETY: the program's promise.
    let name = match unsafe { read(name) } {
        Ok(name) => name,
        Err(fault) => return fault.code(),
    };
    change!(endpoint, |bundle, own| bundle.map_unproven(own, index, name, Key(key)))
}

/// Empties an index of the translation table.
#[no_mangle]
pub extern "C" fn weft_endpoint_unmap(endpoint: *mut WeftEndpoint, index: u32) -> c_int {
    change!(endpoint, |bundle, own| bundle.unmap(own, index))
}

/// A value of the program that its handler is called with. It is used by the thread that polls.
struct Context(*mut c_void);

// SAFETY: this library only passes it on. The program promises that its handlers may run in the thread that polls.
unsafe impl Send for Context {}

impl Context {
    /// A method, so that closures capture the whole value, which is `Send`.
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Sets the handler of a number, in place of the one before.
#[no_mangle]
pub extern "C" fn weft_on(
    endpoint: *mut WeftEndpoint,
    number: u8,
    handler: WeftHandler,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let handler = handler.ok_or(Fault::Argument)?;
        let (handle, context) = (Handle::from_c(endpoint), Context(context));
        endpoints::with(handle, |used, own, place: &'static Place<endpoints::State>| {
            let run = move |message: &mut Message<'_>| {
                let (args, payload) = (message.args(), message.payload());
                place.desk.run(message, |token| {
                    let (bytes, payload) = (payload.len(), payload.as_ptr().cast());
                    // SAFETY: the program's promise.
                    unsafe { handler(context.get(), token.cast(), args.as_ptr(), args.len(), payload, bytes) }
                });
            };
            of_either!(used, bundle => bundle.on(own, number, run))
        })??;
        Ok(())
    })
}

/// Sets the handler for messages that come back. Without one they are events.
#[no_mangle]
pub extern "C" fn weft_on_return(
    endpoint: *mut WeftEndpoint,
    handler: WeftReturnHandler,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let handler = handler.ok_or(Fault::Argument)?;
        let (handle, context) = (Handle::from_c(endpoint), Context(context));
        endpoints::with(handle, |used, own, place: &'static Place<endpoints::State>| {
            let run = move |_: &mut weft::am::Context<'_>, returned: Returned| {
                let told = WeftReturned::new(&returned);
                let back = Back { returned: &returned, status: 0, is_misuse: false };
                place.desk.run_for_returned(&back, |_| {
                    // SAFETY: the program's promise.
                    unsafe { handler(context.get(), &told) }
                });
            };
            of_either!(used, bundle => bundle.on_return(own, run))
        })??;
        Ok(())
    })
}

/// The parts of a message.
pub struct Contents<'a> {
    pub args: &'a [u32],
    pub payload: &'a [u8],
}

/// # Safety
/// The program's promise.
pub unsafe fn contents<'a>(
    args: *const u32,
    numargs: usize,
    payload: *const c_void,
    bytes: usize,
) -> Result<Contents<'a>, Fault> {
    if numargs > weft::MAX_ARGS || bytes > weft::MAX_PAYLOAD {
        return Err(Fault::TooLarge);
    }
    // SAFETY: the program's promise.
    let args = unsafe { slice(args, numargs) }.ok_or(Fault::Argument)?;
    // SAFETY: the program's promise.
    let payload = unsafe { slice(payload.cast::<u8>(), bytes) }.ok_or(Fault::Argument)?;
    Ok(Contents { args, payload })
}

/// Sends a request to the peer at index `to` of the translation table. Blocks until there is room, for `milliseconds` at most; without limit
/// if that is negative. With 0 it does not block: WEFT_ERROR_FULL if there is no room.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_request(
    endpoint: *mut WeftEndpoint,
    to: u32,
    handler: u8,
    args: *const u32,
    numargs: usize,
    payload: *const c_void,
    bytes: usize,
    milliseconds: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Contents { args, payload } = unsafe { contents(args, numargs, payload, bytes) }?;
        endpoints::with(Handle::from_c(endpoint), |used, own, _| {
            of_either!(used, bundle => match limit(milliseconds) {
                Some(limit) if limit.is_zero() => bundle.try_request(own, to, handler, args, payload),
                Some(limit) => bundle.request_within(limit, own, to, handler, args, payload),
                None => bundle.request(own, to, handler, args, payload),
            })
        })??;
        Ok(())
    })
}

/// Sends a one-way message, as weft_request sends a request.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_send(
    endpoint: *mut WeftEndpoint,
    to: u32,
    handler: u8,
    args: *const u32,
    numargs: usize,
    payload: *const c_void,
    bytes: usize,
    milliseconds: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let Contents { args, payload } = unsafe { contents(args, numargs, payload, bytes) }?;
        endpoints::with(Handle::from_c(endpoint), |used, own, _| {
            of_either!(used, bundle => match limit(milliseconds) {
                Some(limit) if limit.is_zero() => bundle.try_send(own, to, handler, args, payload),
                Some(limit) => bundle.send_within(limit, own, to, handler, args, payload),
                None => bundle.send(own, to, handler, args, payload),
            })
        })??;
        Ok(())
    })
}

/// The text of a reason, with its cause and the way out. Do not free it. Never NULL.
#[no_mangle]
pub extern "C" fn weft_reason_text(reason: c_int) -> *const c_char {
    crate::guard::guard(c"".as_ptr(), || {
        let known = Reason::ALL.into_iter().find(|known| *known as c_int == reason);
        known.map_or(c"no reason of weft".as_ptr(), crate::reasons::text)
    })
}
