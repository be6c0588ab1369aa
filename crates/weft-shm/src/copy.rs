//! Short copies without a call.

/// Copies up to 32 bytes in at most two blocks, which may overlap each other, and more as the system does.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and they must not overlap. No alignment is needed.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each block begins and ends within the bytes that the caller vouches for.
    unsafe {
        match len {
            0 => {}
            1..=3 => {
                block::<1>(from, to, 0);
                block::<1>(from, to, len / 2);
                block::<1>(from, to, len - 1);
            }
            4..=7 => ends::<4>(from, to, len),
            8..=15 => ends::<8>(from, to, len),
            16..=32 => ends::<16>(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies the first and the last `N` bytes.
///
/// # Safety
/// As for [`copy`]; `len` is at least `N`.
#[inline(always)]
unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: both are within `len`.
    unsafe {
        block::<N>(from, to, 0);
        block::<N>(from, to, len - N);
    }
}

/// Copies `N` bytes from the offset `at` on.
///
/// # Safety
/// As for [`copy`], for the bytes `at .. at + N`.
#[inline(always)]
unsafe fn block<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
    // SAFETY: the caller vouches for the bytes; the accesses are made unaligned.
    unsafe { to.add(at).cast::<[u8; N]>().write_unaligned(from.add(at).cast::<[u8; N]>().read_unaligned()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_is_copied_and_nothing_beside_it() {
        let from: Vec<u8> = (1..=100).collect();
        for len in 0..=100 {
            let mut to = [0u8; 102];
            // SAFETY: both are long enough, and not the same.
            unsafe { copy(from.as_ptr(), to[1..].as_mut_ptr(), len) };
            assert_eq!(to[1..=len], from[..len], "{len} bytes");
            assert_eq!((to[0], to[len + 1]), (0, 0), "beside {len} bytes");
        }
    }
}
