//! The boundary to C: panics stop here, and C's pointers become slices.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs a call of C. A panic must not unwind into C, so it stops here and the call returns `broken`. The objects that the call used are as
/// usable as after a panic in a Rust handler.
#[inline(always)]
pub fn guard<R>(broken: R, call: impl FnOnce() -> R) -> R {
    // A panic leaves partial changes only behind locks, which are then poisoned, or in a bundle, which stays usable.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(broken)
}

/// The memory at an address from C. `None` if that is NULL and `count` is not 0, or if `count` is impossible.
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
    // SAFETY: it is not null; the caller guarantees the rest.
    Some(unsafe { std::slice::from_raw_parts(address, count) })
}

/// Stores a result at an address from C. False if that is NULL.
///
/// # Safety
/// If `place` is not NULL, there is room for a `T`.
#[inline(always)]
pub unsafe fn store<T>(place: *mut T, value: T) -> bool {
    if place.is_null() || !place.is_aligned() {
        return false;
    }
    // SAFETY: it is not null, and aligned; the caller guarantees the rest.
    unsafe { place.write(value) };
    true
}
