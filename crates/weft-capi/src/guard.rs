//! The edge to C: panics end here, and what C passes becomes slices.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs a call of C. A panic cannot go through C, so it ends here and the call returns `broken`. What the call used is as usable as after a
/// panic in a handler of Rust.
#[inline(always)]
pub fn guard<R>(broken: R, call: impl FnOnce() -> R) -> R {
    // What is left half done by a panic is behind locks that say so, or in a bundle, which stays usable.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(broken)
}

/// The memory at an address of C. `None` if that is NULL and it is to have bytes, or if there cannot be so many.
///
/// # Safety
/// If `address` is not NULL, `count` values are there, aligned, and nobody changes them before the call returns.
#[inline(always)]
pub unsafe fn slice<'a, T>(address: *const T, count: usize) -> Option<&'a [T]> {
    if count == 0 {
        return Some(&[]);
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if address.is_null() || !fits {
        return None;
    }
    // SAFETY: it is not null; the caller says the rest.
    Some(unsafe { std::slice::from_raw_parts(address, count) })
}

/// Stores a result where C wants it. False if that is NULL.
///
/// # Safety
/// If `place` is not NULL, there is room for a `T`.
#[inline(always)]
pub unsafe fn store<T>(place: *mut T, value: T) -> bool {
    if place.is_null() || !place.is_aligned() {
        return false;
    }
    // SAFETY: it is not null, and aligned; the caller says the rest.
    unsafe { place.write(value) };
    true
}
