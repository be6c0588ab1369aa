//! Calling C's handlers with exactly as many arguments as were sent.
//!
//! C's type for all handlers says nothing of their parameters. A handler that takes fewer than were sent is called correctly all the same, by
//! the calling conventions of the processors that Linux runs on; that is what programs of Active Messages rely on.

use std::ffi::{c_int, c_void};

/// A handler of Active Messages, whatever its parameters are.
pub type Handler = unsafe extern "C" fn();

/// A handler for messages that came back: status, opcode, token.
pub type ReturnHandler = unsafe extern "C" fn(c_int, c_int, *mut c_void);

/// Types and calls for one number of arguments, after the leading parameters.
macro_rules! by_count {
    ($args:expr, $call:ident, $else:expr, $($n:literal: $($i:literal)*;)*) => {
        match $args.len() {
            $($n => $call!($($i)*),)*
            _ => $else,
        }
    };
}

macro_rules! int {
    ($i:literal) => {
        c_int
    };
}

/// Calls a handler of short messages.
///
/// # Safety
/// It is a handler of C that takes a token and numbers.
#[inline(always)]
pub unsafe fn short(handler: Handler, token: *mut c_void, args: &[u32]) {
    macro_rules! call {
        ($($i:literal)*) => {{
            type Exact = unsafe extern "C" fn(*mut c_void $(, int!($i))*);
            // SAFETY: both are pointers to functions, and the caller says that the handler takes these parameters.
            let handler = unsafe { std::mem::transmute::<Handler, Exact>(handler) };
            // SAFETY: as the caller says.
            unsafe { handler(token $(, args[$i] as c_int)*) }
        }};
    }
    by_count!(args, call, // SAFETY: as the caller says.
        unsafe { short_of_many(handler, token, args) },
        0:;
        1: 0;
        2: 0 1;
        3: 0 1 2;
        4: 0 1 2 3;
        5: 0 1 2 3 4;
        6: 0 1 2 3 4 5;
    );
}

/// As [`short`], out of the way of handlers with few arguments: they need fewer registers.
///
/// # Safety
/// That of [`short`].
#[inline(never)]
unsafe fn short_of_many(handler: Handler, token: *mut c_void, args: &[u32]) {
    macro_rules! call {
        ($($i:literal)*) => {{
            type Exact = unsafe extern "C" fn(*mut c_void $(, int!($i))*);
            // SAFETY: both are pointers to functions, and the caller says that the handler takes these parameters.
            let handler = unsafe { std::mem::transmute::<Handler, Exact>(handler) };
            // SAFETY: as the caller says.
            unsafe { handler(token $(, args[$i] as c_int)*) }
        }};
    }
    by_count!(args, call, (),
        7: 0 1 2 3 4 5 6;
        8: 0 1 2 3 4 5 6 7;
        9: 0 1 2 3 4 5 6 7 8;
        10: 0 1 2 3 4 5 6 7 8 9;
        11: 0 1 2 3 4 5 6 7 8 9 10;
        12: 0 1 2 3 4 5 6 7 8 9 10 11;
        13: 0 1 2 3 4 5 6 7 8 9 10 11 12;
        14: 0 1 2 3 4 5 6 7 8 9 10 11 12 13;
        15: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
        16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15;
    );
}

/// Calls a handler of messages with a payload.
///
/// # Safety
/// It is a handler of C that takes a token, a buffer, its length and numbers.
#[inline(always)]
pub unsafe fn with_buffer(handler: Handler, token: *mut c_void, buffer: *mut c_void, bytes: usize, args: &[u32]) {
    macro_rules! call {
        ($($i:literal)*) => {{
            type Exact = unsafe extern "C" fn(*mut c_void, *mut c_void, usize $(, int!($i))*);
            // SAFETY: both are pointers to functions, and the caller says that the handler takes these parameters.
            let handler = unsafe { std::mem::transmute::<Handler, Exact>(handler) };
            // SAFETY: as the caller says.
            unsafe { handler(token, buffer, bytes $(, args[$i] as c_int)*) }
        }};
    }
    by_count!(args, call, // SAFETY: as the caller says.
        unsafe { with_buffer_of_many(handler, token, buffer, bytes, args) },
        0:;
        1: 0;
        2: 0 1;
        3: 0 1 2;
        4: 0 1 2 3;
        5: 0 1 2 3 4;
        6: 0 1 2 3 4 5;
    );
}

/// As [`with_buffer`], out of the way of handlers with few arguments: they need fewer registers.
///
/// # Safety
/// That of [`with_buffer`].
#[inline(never)]
unsafe fn with_buffer_of_many(handler: Handler, token: *mut c_void, buffer: *mut c_void, bytes: usize, args: &[u32]) {
    macro_rules! call {
        ($($i:literal)*) => {{
            type Exact = unsafe extern "C" fn(*mut c_void, *mut c_void, usize $(, int!($i))*);
            // SAFETY: both are pointers to functions, and the caller says that the handler takes these parameters.
            let handler = unsafe { std::mem::transmute::<Handler, Exact>(handler) };
            // SAFETY: as the caller says.
            unsafe { handler(token, buffer, bytes $(, args[$i] as c_int)*) }
        }};
    }
    by_count!(args, call, (),
        7: 0 1 2 3 4 5 6;
        8: 0 1 2 3 4 5 6 7;
        9: 0 1 2 3 4 5 6 7 8;
        10: 0 1 2 3 4 5 6 7 8 9;
        11: 0 1 2 3 4 5 6 7 8 9 10;
        12: 0 1 2 3 4 5 6 7 8 9 10 11;
        13: 0 1 2 3 4 5 6 7 8 9 10 11 12;
        14: 0 1 2 3 4 5 6 7 8 9 10 11 12 13;
        15: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
        16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15;
    );
}
