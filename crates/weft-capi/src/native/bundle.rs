use super::endpoint::WeftEndpoint;
use super::node::WeftNode;
use super::{answer, limit, node, Fault};
use crate::bundles::{self, Use};
use crate::guard::{slice, store};
use crate::handle::Handle;
use crate::{endpoints, of_either};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use weft::{Certainty, Endpoint, Event, Returned, Settings, Waited};

/// Endpoints that are polled and waited for together.
pub struct WeftBundle;

/// Settings of a bundle. Zero selects weft's default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct WeftOptions {
    /// 1 if several threads use the bundle at once.
    pub is_parallel: c_int,
    /// Bytes of messages that wait at the bundle's endpoints while these are not served.
    pub parked_bytes_most: usize,
    /// Bytes of events that wait for the program.
    pub events_bytes_most: usize,
    /// Sessions with peers.
    pub sessions_most: u32,
    /// Milliseconds until a silent peer on another host is lost.
    pub suspicion: u32,
    /// Milliseconds that freeing the bundle waits for its sent messages to leave.
    pub linger: u32,
}

impl WeftOptions {
    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        let or = |chosen: usize, default| if chosen == 0 { default } else { chosen };
        settings.parked_bytes_most = or(self.parked_bytes_most, settings.parked_bytes_most);
        settings.events_bytes_most = or(self.events_bytes_most, settings.events_bytes_most);
        if self.sessions_most != 0 {
            settings.sessions_most = self.sessions_most;
        }
        let time =
            |milliseconds: u32| (milliseconds != 0).then(|| std::time::Duration::from_millis(milliseconds.into()));
        settings.suspicion = time(self.suspicion);
        settings.linger = time(self.linger);
        settings
    }
}

/// A message that came back. What it points to is good until its handler returns, or until this thread takes the next event.
#[repr(C)]
pub struct WeftReturned {
    /// The index in the translation table that it was sent to; UINT32_MAX for a reply.
    pub destination: u32,
    /// Its handler's number.
    pub handler: u8,
    /// 1 if it is certain that it was not delivered.
    pub is_certain: u8,
    /// The code of the reason, for weft_reason_text.
    pub reason: c_int,
    pub args: *const u32,
    pub numargs: usize,
    pub payload: *const c_void,
    pub bytes: usize,
}

impl WeftReturned {
    pub fn new(returned: &Returned) -> WeftReturned {
        WeftReturned {
            destination: returned.destination.unwrap_or(u32::MAX),
            handler: returned.op,
            is_certain: (returned.certainty == Certainty::NotDelivered).into(),
            reason: returned.reason as c_int,
            args: returned.args.as_ptr(),
            numargs: returned.args.len(),
            payload: returned.payload.as_ptr().cast(),
            bytes: returned.payload.len(),
        }
    }
}

/// Something that happened to a bundle.
#[repr(C)]
pub struct WeftEvent {
    /// One of WEFT_EVENT_...
    pub kind: c_int,
    /// The endpoint. NULL if it was freed.
    pub endpoint: *mut WeftEndpoint,
    /// Its index in the translation table.
    pub destination: u32,
    /// For WEFT_EVENT_PEER_LOST and WEFT_EVENT_REPLY_REFUSED: why, for weft_reason_text.
    pub reason: c_int,
    /// For WEFT_EVENT_RETURNED.
    pub returned: WeftReturned,
}

/// There is no event.
pub const WEFT_EVENT_NONE: c_int = 0;
/// A send that was full may be tried again.
pub const WEFT_EVENT_CAN_SEND: c_int = 1;
/// A message came back, and its endpoint has no handler for that.
pub const WEFT_EVENT_RETURNED: c_int = 2;
/// The peer of an entry is gone. What was under way to it has come back.
pub const WEFT_EVENT_PEER_LOST: c_int = 3;
/// The endpoint refused a reply to its own request.
pub const WEFT_EVENT_REPLY_REFUSED: c_int = 4;

/// Makes a bundle of a node. `options` may be NULL.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_bundle_new(
    node: *mut WeftNode,
    options: *const WeftOptions,
    bundle: *mut *mut WeftBundle,
) -> c_int {
    answer(|| {
        if bundle.is_null() {
            return Err(Fault::Argument);
        }
        let (settings, is_parallel) = if options.is_null() {
            (Settings::default(), false)
        } else {
            // SAFETY: the program's promise.
            let Some([options]) = (unsafe { slice(options, 1) }) else { return Err(Fault::Argument) };
            (options.settings(), options.is_parallel != 0)
        };
        let handle = bundles::make(&node::find(node)?, settings, is_parallel)?.ok_or(Fault::System)?;
        // SAFETY: the program's promise.
        unsafe { store(bundle, handle.to_c()) };
        Ok(())
    })
}

/// Frees a bundle and its endpoints. Blocks until its sent messages have left, for its linger time at most.
#[no_mangle]
pub extern "C" fn weft_bundle_free(bundle: *mut WeftBundle) -> c_int {
    answer(|| Ok(endpoints::free_bundle(Handle::from_c(bundle))?))
}

/// Runs handlers for messages that came. Does not block. Unless `taken` is NULL, it gets the number of messages.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_bundle_poll(bundle: *mut WeftBundle, taken: *mut u32) -> c_int {
    answer(|| {
        let messages = bundles::with(Handle::from_c(bundle), |used| match used {
            Use::Own(bundle) => Ok(bundle.poll()),
            Use::Shared(bundle) => bundle.poll(),
        })??;
        if !taken.is_null() {
            // SAFETY: the program's promise.
            unsafe { store(taken, messages) };
        }
        Ok(())
    })
}

/// Waits until a message was taken or an event came, and runs handlers. Blocks for `milliseconds` at most; without limit if that is
/// negative. WEFT_ERROR_TIMED_OUT if nothing came. weft_bundle_wake ends it, too.
#[no_mangle]
pub extern "C" fn weft_bundle_wait(bundle: *mut WeftBundle, milliseconds: c_int) -> c_int {
    answer(|| {
        let waited = bundles::with(Handle::from_c(bundle), |used| match used {
            Use::Own(bundle) => Ok(bundle.wait(limit(milliseconds))),
            Use::Shared(bundle) => bundle.wait(limit(milliseconds)),
        })??;
        match waited {
            Waited::Nothing if milliseconds >= 0 => Err(Fault::TimedOut),
            _ => Ok(()),
        }
    })
}

/// Ends a wait of the bundle, or the next one if there is none. From any thread.
#[no_mangle]
pub extern "C" fn weft_bundle_wake(bundle: *mut WeftBundle) -> c_int {
    answer(|| Ok(bundles::wake(Handle::from_c(bundle))?))
}

/// The descriptor that becomes readable when something comes for an armed bundle. Use it only with epoll, poll or select: it belongs to the
/// bundle, so do not read or close it. A parallel bundle has none (WEFT_ERROR_ARGUMENT).
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_bundle_wait_fd(bundle: *mut WeftBundle, descriptor: *mut c_int) -> c_int {
    answer(|| {
        let fd = bundles::with(Handle::from_c(bundle), |used| match used {
            Use::Own(bundle) => Ok(bundle.wait_fd().as_raw_fd()),
            Use::Shared(_) => Err(Fault::Argument),
        })??;
        // SAFETY: the program's promise.
        unsafe { store(descriptor, fd) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// Arms the descriptor of a sequential bundle. `is_armed` gets 0 if there was something to do: do it and call this again. Once armed, poll
/// when the descriptor is readable, and at the latest after the time that `milliseconds` gets.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_bundle_arm(
    bundle: *mut WeftBundle,
    is_armed: *mut c_int,
    milliseconds: *mut c_int,
) -> c_int {
    answer(|| {
        if is_armed.is_null() || milliseconds.is_null() {
            return Err(Fault::Argument);
        }
        let (armed, most) = bundles::with(Handle::from_c(bundle), |used| match used {
            Use::Own(bundle) => Ok((bundle.arm(), bundle.wait_limit())),
            Use::Shared(_) => Err(Fault::Argument),
        })??;
        // SAFETY: the program's promise.
        unsafe { store(is_armed, armed.into()) };
        // SAFETY: the program's promise. A limit of 0 would have the program spin.
        unsafe { store(milliseconds, c_int::try_from(most.as_millis()).unwrap_or(c_int::MAX).max(1)) };
        Ok(())
    })
}

/// Waits until everything sent has ended: delivered, answered or come back. Blocks for `milliseconds` at most; without limit if
/// that is negative.
#[no_mangle]
pub extern "C" fn weft_bundle_drain(bundle: *mut WeftBundle, milliseconds: c_int) -> c_int {
    answer(|| {
        let is_done = bundles::with(Handle::from_c(bundle), |used| match (used, limit(milliseconds)) {
            (Use::Own(bundle), Some(limit)) => Ok(bundle.drain_within(limit)),
            (Use::Own(bundle), None) => {
                bundle.drain();
                Ok(true)
            }
            (Use::Shared(bundle), Some(limit)) => bundle.drain_within(limit),
            (Use::Shared(bundle), None) => bundle.drain().map(|()| true),
        })??;
        is_done.then_some(()).ok_or(Fault::TimedOut)
    })
}

thread_local! {
    /// The contents of the last returned message that this thread took as an event.
    static TAKEN: RefCell<Option<Box<Returned>>> = const { RefCell::new(None) };
}

/// Takes the oldest event. Its kind is WEFT_EVENT_NONE if there is none. After the first call no event is lost, and sends return
/// WEFT_ERROR_FULL while many events wait.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_bundle_next_event(bundle: *mut WeftBundle, event: *mut WeftEvent) -> c_int {
    answer(|| {
        if event.is_null() {
            return Err(Fault::Argument);
        }
        let taken = bundles::with(Handle::from_c(bundle), |used| match used {
            Use::Own(bundle) => Ok(bundle.next_event()),
            Use::Shared(bundle) => bundle.next_event(),
        })??;
        let find = |endpoint| endpoints::find_by(Handle::from_c(bundle), endpoint).to_c();
        let told = TAKEN.with(|kept| tell(taken, find, &mut kept.borrow_mut()));
        // SAFETY: the program's promise.
        unsafe { store(event, told) };
        Ok(())
    })
}

/// Makes an event for C. Keeps the contents of a returned message.
fn tell(
    event: Option<Event>,
    find: impl Fn(Endpoint) -> *mut WeftEndpoint,
    kept: &mut Option<Box<Returned>>,
) -> WeftEvent {
    let returned = WeftReturned {
        destination: 0,
        handler: 0,
        is_certain: 0,
        reason: 0,
        args: std::ptr::null(),
        numargs: 0,
        payload: std::ptr::null(),
        bytes: 0,
    };
    let mut told =
        WeftEvent { kind: WEFT_EVENT_NONE, endpoint: std::ptr::null_mut(), destination: 0, reason: 0, returned };
    match event {
        // Nothing in this library asks for completions.
        None | Some(Event::Completed(_)) => {}
        Some(Event::CanSend { endpoint, destination }) => {
            (told.kind, told.endpoint, told.destination) = (WEFT_EVENT_CAN_SEND, find(endpoint), destination);
        }
        Some(Event::PeerLost { endpoint, destination, reason }) => {
            (told.kind, told.endpoint, told.destination) = (WEFT_EVENT_PEER_LOST, find(endpoint), destination);
            told.reason = reason as c_int;
        }
        Some(Event::ReplyRefused { endpoint, destination, reason, .. }) => {
            (told.kind, told.endpoint, told.destination) = (WEFT_EVENT_REPLY_REFUSED, find(endpoint), destination);
            told.reason = reason as c_int;
        }
        Some(Event::Returned(returned)) => {
            let returned = kept.insert(returned);
            (told.kind, told.endpoint) = (WEFT_EVENT_RETURNED, find(returned.endpoint));
            told.destination = returned.destination.unwrap_or(u32::MAX);
            told.reason = returned.reason as c_int;
            told.returned = WeftReturned::new(returned);
        }
    }
    told
}

/// Sends what waits in this process, as far as there is room. Does not block.
#[no_mangle]
pub extern "C" fn weft_bundle_flush(bundle: *mut WeftBundle) -> c_int {
    answer(|| {
        bundles::with(Handle::from_c(bundle), |used| match used {
            Use::Own(bundle) => Ok(bundle.flush()),
            Use::Shared(bundle) => bundle.flush(),
        })??;
        Ok(())
    })
}

/// Sets the longest time that a wait spins before it sleeps.
#[no_mangle]
pub extern "C" fn weft_bundle_set_spin_limit(bundle: *mut WeftBundle, microseconds: u32) -> c_int {
    let most = std::time::Duration::from_micros(microseconds.into());
    answer(|| {
        bundles::with(Handle::from_c(bundle), |used| match used {
            Use::Own(bundle) => {
                bundle.set_spin_limit(most);
                Ok(())
            }
            Use::Shared(bundle) => bundle.set_spin_limit(most),
        })??;
        Ok(())
    })
}

/// Frees what was made for a call that then failed.
pub fn give_up(bundle: Handle, endpoint: Endpoint) {
    let _ = bundles::with(bundle, |used| of_either!(used, bundle => bundle.free(endpoint)));
}
