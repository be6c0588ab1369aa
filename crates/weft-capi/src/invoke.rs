//! Calls C handlers with exactly as many arguments as were sent.
//!
//! C's one type for all handlers does not tell their parameters. A handler that takes fewer parameters than were sent is still called
//! correctly, by the calling conventions of the processors that Linux runs on. Programs of Active Messages rely on that.

use std::ffi::{c_int, c_void};

/// A handler of Active Messages, whatever its parameters are.
pub type Handler = unsafe extern "C" fn();

/// A handler for messages that came back: status, opcode, token.
pub type ReturnHandler = unsafe extern "C" fn(c_int, c_int, *mut c_void);

macro_rules! int {
    ($i:literal) => {
        c_int
    };
}

/// Calls a handler with parameters of these kinds, followed by the arguments of these indexes.
macro_rules! exact {
    ($handler:ident, ($($kind:ty),*), ($($lead:ident),*), $args:ident, $($i:literal)*) => {{
        type Exact = unsafe extern "C" fn($($kind,)* $(int!($i)),*);
        // SAFETY: both are pointers to functions, and the caller guarantees that the handler takes these parameters.
        let handler = unsafe { std::mem::transmute::<Handler, Exact>($handler) };
        // SAFETY: the caller's guarantee.
        unsafe { handler($($lead,)* $($args[$i] as c_int),*) }
    }};
}

/// Calls a handler with as many arguments as there are, up to six.
macro_rules! few {
    ($handler:ident, $kinds:tt, $leads:tt, $args:ident, $else:expr) => {
        match $args.len() {
            0 => exact!($handler, $kinds, $leads, $args,),
            1 => exact!($handler, $kinds, $leads, $args, 0),
            2 => exact!($handler, $kinds, $leads, $args, 0 1),
            3 => exact!($handler, $kinds, $leads, $args, 0 1 2),
            4 => exact!($handler, $kinds, $leads, $args, 0 1 2 3),
            5 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4),
            6 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5),
            _ => $else,
        }
    };
}

/// The same for more arguments. In a function of its own, because handlers with few arguments need fewer registers.
macro_rules! many {
    ($handler:ident, $kinds:tt, $leads:tt, $args:ident) => {
        match $args.len() {
            7 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6),
            8 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7),
            9 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8),
            10 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8 9),
            11 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8 9 10),
            12 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8 9 10 11),
            13 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8 9 10 11 12),
            14 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8 9 10 11 12 13),
            15 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            16 => exact!($handler, $kinds, $leads, $args, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
            _ => {}
        }
    };
}

/// Calls a handler of short messages.
///
/// # Safety
/// It is a handler of C that takes a token and numbers.
#[inline(always)]
pub unsafe fn short(handler: Handler, token: *mut c_void, args: &[u32]) {
    // SAFETY: the caller's guarantee.
    few!(handler, (*mut c_void), (token), args, unsafe { short_of_many(handler, token, args) })
}

/// As [`short`], for more than six numbers.
///
/// # Safety
/// That of [`short`].
#[inline(never)]
unsafe fn short_of_many(handler: Handler, token: *mut c_void, args: &[u32]) {
    many!(handler, (*mut c_void), (token), args)
}

/// Calls a handler of messages with a payload.
///
/// # Safety
/// It is a handler of C that takes a token, a buffer, its length and numbers.
#[inline(always)]
pub unsafe fn with_buffer(handler: Handler, token: *mut c_void, buffer: *mut c_void, bytes: usize, args: &[u32]) {
    // SAFETY: the caller's guarantee.
    few!(handler, (*mut c_void, *mut c_void, usize), (token, buffer, bytes), args, unsafe {
        with_buffer_of_many(handler, token, buffer, bytes, args)
    })
}

/// As [`with_buffer`], for more than six numbers.
///
/// # Safety
/// That of [`with_buffer`].
#[inline(never)]
unsafe fn with_buffer_of_many(handler: Handler, token: *mut c_void, buffer: *mut c_void, bytes: usize, args: &[u32]) {
    many!(handler, (*mut c_void, *mut c_void, usize), (token, buffer, bytes), args)
}
