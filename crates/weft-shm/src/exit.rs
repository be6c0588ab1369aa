//! Functions that run when the process ends by `exit`, or by returning from `main`.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

static REGISTERED: Mutex<Vec<extern "C" fn()>> = Mutex::new(Vec::new());

/// Has the C library call `run` when the process exits, while all threads still run. Later calls with the same function do nothing.
/// A forked child that exits calls it too. It is not called when a signal ends the process, nor by `_exit`.
pub fn at_exit(run: extern "C" fn()) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if registered.iter().any(|&other| std::ptr::fn_addr_eq(other, run)) {
        return;
    }
    // SAFETY: the function has the type that POSIX says, does not unwind (it is `extern "C"`), and lives as long as this code: the C
    // library calls it when it unloads the code. The call fails only for want of memory; then nothing is done at exit.
    if unsafe { atexit(run) } == 0 {
        registered.push(run);
    }
}

extern "C" {
    /// POSIX; in every C library of Linux, with which the standard library is linked anyway.
    fn atexit(run: extern "C" fn()) -> c_int;
}
