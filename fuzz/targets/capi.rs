//! The C interface: calls in any order with any arguments, also from handlers. Handles are valid, stale or made up. The results do not
//! matter, as long as each call returns. The target keeps to two rules, as any program must: it does not wait without end for messages that
//! nobody sends, and does not pass memory that does not exist.
#![no_main]

extern crate weft_c as _;

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicU8;
use weft_fuzz::Input;

type Handle = *mut c_void;
type Handler = unsafe extern "C" fn();

#[derive(Clone, Copy)]
#[repr(C)]
struct Name {
    bytes: [u8; 40],
}

extern "C" {
    fn AM_Init() -> c_int;
    fn AM_Terminate() -> c_int;
    fn AM_AllocateBundle(mode: c_int, bundle: *mut Handle) -> c_int;
    fn AM_FreeBundle(bundle: Handle) -> c_int;
    fn AM_AllocateEndpoint(bundle: Handle, endpoint: *mut Handle, name: *mut Name) -> c_int;
    fn AM_FreeEndpoint(endpoint: Handle) -> c_int;
    fn AM_MoveEndpoint(endpoint: Handle, from: Handle, to: Handle) -> c_int;
    fn AM_SetTag(endpoint: Handle, tag: u64) -> c_int;
    fn AM_GetTag(endpoint: Handle, tag: *mut u64) -> c_int;
    fn AM_SetSeg(endpoint: Handle, address: *mut c_void, bytes: usize) -> c_int;
    fn AM_Map(endpoint: Handle, index: c_int, name: Name, tag: u64) -> c_int;
    fn AM_MapAny(endpoint: Handle, index: *mut c_int, name: Name, tag: u64) -> c_int;
    fn AM_UnMap(endpoint: Handle, index: c_int) -> c_int;
    fn AM_SetNumTranslations(endpoint: Handle, count: c_int) -> c_int;
    fn AM_GetTranslationName(endpoint: Handle, index: c_int, name: *mut Name) -> c_int;
    fn AM_SetExpectedResources(endpoint: Handle, endpoints: c_int, outstanding: c_int) -> c_int;
    fn AM_Poll(bundle: Handle) -> c_int;
    fn AM_Wait(bundle: Handle) -> c_int;
    fn AM_GetEventMask(bundle: Handle, mask: *mut c_int) -> c_int;
    fn AM_GetSourceEndpoint(token: Handle, name: *mut Name) -> c_int;
    fn AM_GetDestEndpoint(token: Handle, endpoint: *mut Handle) -> c_int;
    fn AM_GetMsgTag(token: Handle, tag: *mut u64) -> c_int;
    fn am_set_handler(endpoint: Handle, number: u8, handler: Option<Handler>) -> c_int;
    fn am_set_returns_misuse(endpoint: Handle, is_on: c_int) -> c_int;
    fn am_request_xfer(
        endpoint: Handle,
        to: u32,
        offset: usize,
        handler: u8,
        source: *const c_void,
        bytes: usize,
        is_async: c_int,
        numargs: c_int,
        args: *const i32,
    ) -> c_int;
    fn am_get_xfer(
        endpoint: Handle,
        to: u32,
        source: usize,
        handler: u8,
        offset: usize,
        bytes: usize,
        is_async: c_int,
        numargs: c_int,
        args: *const i32,
    ) -> c_int;
    fn am_reply(token: Handle, handler: u8, numargs: c_int, args: *const i32) -> c_int;
    fn am_reply_i(
        token: Handle,
        handler: u8,
        source: *const c_void,
        bytes: usize,
        numargs: c_int,
        args: *const i32,
    ) -> c_int;
    fn am_reply_xfer(
        token: Handle,
        offset: usize,
        handler: u8,
        source: *const c_void,
        bytes: usize,
        numargs: c_int,
        args: *const i32,
    ) -> c_int;
    fn am_error_text(error: c_int) -> *const c_char;
    fn am_status_text(status: c_int) -> *const c_char;
    fn weft_request(
        endpoint: Handle,
        to: u32,
        handler: u8,
        args: *const u32,
        numargs: usize,
        payload: *const c_void,
        bytes: usize,
        milliseconds: c_int,
    ) -> c_int;
    fn weft_send(
        endpoint: Handle,
        to: u32,
        handler: u8,
        args: *const u32,
        numargs: usize,
        payload: *const c_void,
        bytes: usize,
        milliseconds: c_int,
    ) -> c_int;
    fn weft_bundle_wait(bundle: Handle, milliseconds: c_int) -> c_int;
    fn weft_endpoint_set_served(endpoint: Handle, is_served: c_int) -> c_int;
    fn weft_error_text(error: c_int) -> *const c_char;
}

/// Handles that calls have returned, valid or stale.
#[derive(Default)]
struct World {
    /// The rest of the input, which handlers read too.
    input: Vec<u8>,
    handles: Vec<usize>,
    names: Vec<Name>,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

/// Memory that calls send from, and segments.
static CONTENTS: [u8; 70_000] = [7; 70_000];
static SEGMENT: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
static ARGS: [i32; 16] = [1; 16];

fn byte() -> u8 {
    WORLD.with(|world| world.borrow_mut().input.pop().unwrap_or_default())
}

/// A handle: mostly one that a call has returned.
fn handle() -> Handle {
    let (which, bits) = (byte(), byte());
    let known = WORLD.with(|world| {
        let handles = &world.borrow().handles;
        (!handles.is_empty()).then(|| handles[usize::from(which) % handles.len()])
    });
    let bits = match (known, bits) {
        (Some(known), 0..=230) => known,
        (Some(known), _) => known ^ 1 << (bits % 64),
        (None, _) => usize::from(which) << bits % 60,
    };
    bits as Handle
}

fn keep(handle: Handle) {
    WORLD.with(|world| world.borrow_mut().handles.push(handle as usize));
}

/// A name: one of ours, or with another endpoint or life. It has no address, so nothing leaves this host.
fn name() -> Name {
    let (which, change) = (byte(), byte());
    let known = WORLD.with(|world| {
        let names = &world.borrow().names;
        (!names.is_empty()).then(|| names[usize::from(which) % names.len()])
    });
    let mut name = known.unwrap_or(Name { bytes: [0; 40] });
    if change > 240 {
        name.bytes[8 + usize::from(change) % 12] ^= which;
    }
    name
}

/// A handler of messages of any kind: it looks only at its token.
unsafe extern "C" fn on_message(token: Handle) {
    keep(token);
    calls(usize::from(byte() % 3), token);
}

unsafe extern "C" fn on_return(_status: c_int, _opcode: c_int, token: Handle) {
    keep(token);
    calls(usize::from(byte() % 3), token);
}

/// Makes `count` calls.
fn calls(count: usize, token: Handle) {
    for _ in 0..count {
        // SAFETY: whatever the handles and numbers are, the memory that is passed exists.
        unsafe { call(token) };
    }
}

unsafe fn call(token: Handle) {
    let (index, tag, numargs) = (c_int::from(byte() % 9) - 1, u64::from(byte() % 4), c_int::from(byte() % 19) - 1);
    // No more than exist.
    let args = if numargs > 16 || byte() == 1 { std::ptr::null() } else { ARGS.as_ptr() };
    let (handler, bytes) = (byte() % 4, usize::from(byte()) << (byte() % 9));
    let (source, to) = (CONTENTS.as_ptr().cast::<c_void>(), u32::from(byte() % 9));
    let token = if byte() % 4 == 0 { handle() } else { token };
    let (mut made, mut told, mut number, mut named) = (std::ptr::null_mut(), 0, 0, Name { bytes: [0; 40] });
    let code = match byte() % 30 {
        0 => AM_Init(),
        1 if byte() % 8 == 0 => AM_Terminate(),
        2 | 3 => {
            let code = AM_AllocateBundle(index % 3, &mut made);
            keep(made);
            code
        }
        4 if byte() % 4 == 0 => AM_FreeBundle(handle()),
        5 | 6 => {
            let code = AM_AllocateEndpoint(handle(), &mut made, &mut named);
            if code == 0 {
                keep(made);
                WORLD.with(|world| world.borrow_mut().names.push(named));
                // Without this handler a message that comes back would end the program.
                let handler = std::mem::transmute::<unsafe extern "C" fn(c_int, c_int, Handle), Handler>(on_return);
                am_set_handler(made, 0, Some(handler));
            }
            code
        }
        7 if byte() % 4 == 0 => AM_FreeEndpoint(handle()),
        8 => AM_MoveEndpoint(handle(), handle(), handle()),
        9 => AM_SetTag(handle(), tag),
        10 => AM_GetTag(handle(), &mut told),
        11 => {
            // Atomics, because other threads write there.
            AM_SetSeg(handle(), SEGMENT.as_ptr().cast_mut().cast(), bytes.min(SEGMENT.len()))
        }
        12 | 13 => AM_Map(handle(), index, name(), tag),
        14 => AM_MapAny(handle(), &mut number, name(), tag),
        15 => AM_UnMap(handle(), index),
        16 => AM_SetNumTranslations(handle(), index * 200),
        17 => AM_GetTranslationName(handle(), index, &mut named),
        18 => AM_SetExpectedResources(handle(), index, index),
        // The mask stays AM_NOEVENTS.
        19 => AM_Wait(handle()) | AM_GetEventMask(handle(), &mut number),
        20 => {
            AM_GetSourceEndpoint(token, &mut named)
                | AM_GetDestEndpoint(token, &mut made)
                | AM_GetMsgTag(token, &mut told)
        }
        21 => {
            let run = std::mem::transmute::<unsafe extern "C" fn(Handle), Handler>(on_message);
            am_set_handler(handle(), handler.max(1), (byte() > 9).then_some(run))
        }
        22 => am_set_returns_misuse(handle(), index),
        23 => am_request_xfer(handle(), to, bytes, handler, source, bytes, 1, numargs, args),
        24 => am_get_xfer(handle(), to, bytes, handler, bytes / 2, bytes, 1, numargs, args),
        25 => am_reply(token, handler, numargs, args),
        26 => am_reply_i(token, handler, source, bytes, numargs, args),
        27 => am_reply_xfer(token, bytes, handler, source, bytes, numargs, args),
        28 => {
            let count = if args.is_null() { 0 } else { numargs.max(0) as usize };
            let send = if tag == 0 { weft_send } else { weft_request };
            send(handle(), to, handler, args.cast(), count, source, bytes, c_int::from(byte() % 2))
        }
        _ => weft_bundle_wait(handle(), 0) | weft_endpoint_set_served(handle(), index % 2),
    };
    let texts = [am_error_text(code), am_status_text(code), weft_error_text(code)];
    assert!(texts.iter().all(|text| !text.is_null()));
}

libfuzzer_sys::fuzz_target!(
    init: {
        std::env::set_var("WEFT_ADDR", "none");
        std::env::set_var("WEFT_LINGER", "1ms");
    },
    |data: &[u8]| {
        let mut input = Input(data);
        let turns = input.byte().unwrap_or_default();
        WORLD.with(|world| {
            let mut world = world.borrow_mut();
            world.input = data.iter().rev().copied().collect();
            world.handles.clear();
            world.names.clear();
        });
        // SAFETY: they take no arguments.
        unsafe { AM_Init() };
        for _ in 0..u16::from(turns % 64) * 4 {
            calls(1, std::ptr::null_mut());
            // All bundles, so that messages come.
            let all: Vec<usize> = WORLD.with(|world| world.borrow().handles.clone());
            // SAFETY: it takes any handle.
            all.into_iter().for_each(|handle| _ = unsafe { AM_Poll(handle as Handle) });
            if WORLD.with(|world| world.borrow().input.is_empty()) {
                break;
            }
        }
        // SAFETY: it takes no arguments.
        while unsafe { AM_Terminate() } == 0 {}
    }
);
