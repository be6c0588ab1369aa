//! Copies: short ones without a call, long ones that fill line after line.

#[cfg(target_arch = "x86_64")]
use {
    std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1},
    weft_wire::LINE,
};

/// The most bytes that [`copy`] copies without a call: twice its largest block.
pub(crate) const SHORT_MOST: usize = 128;
// What is pushed without a call is copied without one.
const _: () = assert!(weft_wire::path::SMALL_MOST <= SHORT_MOST);

/// Copies up to [`SHORT_MOST`] bytes in at most three blocks, which may overlap each other, and more by the system's `memcpy`.
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
            33..=64 => ends::<32>(from, to, len),
            65..=SHORT_MOST => ends::<64>(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies with stores that fill one cache line after the other, in order. Only the first part of a line is stored last, because the header
/// that the reader polls lies there. glibc's copy of some hundred to some thousand bytes takes up to twice as long if the lines have to
/// come from another core first (Zen 5, glibc 2.36; the order of its stores was not examined).
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and they must not overlap. No alignment is needed.
#[inline]
pub(crate) unsafe fn copy_by_lines(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= LINE {
        use std::arch::is_x86_feature_detected;
        // VBMI2 implies AVX-512F. Processors with AVX-512F alone, Intel's before Ice Lake, may lower their clock when registers of 64 bytes
        // are used.
        if is_x86_feature_detected!("avx512vbmi2") {
            // SAFETY: the processor has the instructions, `len` is at least a line, and the caller vouches for the bytes.
            return unsafe { each_line::<Whole>(from, to, len) };
        }
        if is_x86_feature_detected!("avx") {
            // SAFETY: as above.
            return unsafe { each_line_by_halves(from, to, len) };
        }
    }
    // SAFETY: the caller vouches for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// The source of a payload longer than this is prefetched this many bytes ahead of the copy, into the second cache. To the first cache only
/// few lines can be on their way at once, too few where they come from memory. 8 KiB there and back take 1,510 ns with it, 1,740 without;
/// shorter payloads would take up to 5 % longer. Nothing behind the payload is fetched: `ring/next_source.rs` does that.
#[cfg(target_arch = "x86_64")]
const FETCH_AHEAD: usize = 4096;

/// A way to copy a line from anywhere to anywhere.
#[cfg(target_arch = "x86_64")]
trait LineCopy {
    /// # Safety
    /// `from` must be readable and `to` writable for a line, and the processor have the instructions.
    unsafe fn copy(from: *const u8, to: *mut u8);
}

/// By one store of 64 bytes (AVX-512): 2 KiB there and back take 0.86 of the time by halves (Zen 4).
#[cfg(target_arch = "x86_64")]
struct Whole;

#[cfg(target_arch = "x86_64")]
impl LineCopy for Whole {
    #[inline(always)]
    unsafe fn copy(from: *const u8, to: *mut u8) {
        // By assembly, because the intrinsics came with Rust 1.89. zmm16 exists only with AVX-512, so it needs no `vzeroupper` behind it.
        // SAFETY: the caller vouches for the bytes and the instructions. Both instructions access one line and no more, without
        // alignment, and the register that they change is named.
        unsafe {
            std::arch::asm!(
                "vmovdqu64 zmm16, [{from}]",
                "vmovdqu64 [{to}], zmm16",
                from = in(reg) from,
                to = in(reg) to,
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// By two stores of 32 bytes (AVX). With four of 16 bytes round trips of 512 B and 2 KiB take a tenth longer.
#[cfg(target_arch = "x86_64")]
struct Halves;

#[cfg(target_arch = "x86_64")]
impl LineCopy for Halves {
    #[inline(always)]
    unsafe fn copy(from: *const u8, to: *mut u8) {
        const HALF: usize = LINE / 2;
        // SAFETY: both halves are within the line that the caller vouches for.
        unsafe {
            block::<HALF>(from, to, 0);
            block::<HALF>(from, to, HALF);
        }
    }
}

/// [`each_line`] of [`Halves`], made for AVX.
///
/// # Safety
/// As for [`each_line`]; the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn each_line_by_halves(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller vouches for the bytes, their number and AVX.
    unsafe { each_line::<Halves>(from, to, len) };
}

/// Copies a line of the destination at a time.
///
/// # Safety
/// As for [`copy_by_lines`]; `len` is at least a line, and the processor has the instructions of `L`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn each_line<L: LineCopy>(from: *const u8, to: *mut u8, len: usize) {
    let ahead = FETCH_AHEAD.min(len);
    if ahead < len {
        fetch_bytes(Cache::Second, from, ahead);
    }
    let begun = (LINE - to as usize % LINE) % LINE;
    let mut at = begun;
    // The whole lines first; then a line's length at each end, which may overlap them.
    // SAFETY: both are within `len`, which is at least a line, as are the lines between them. The caller vouches for the bytes and
    // the instructions.
    unsafe {
        while at + LINE <= len {
            if at + ahead < len {
                fetch::<_MM_HINT_T1>(from.wrapping_add(at + ahead));
            }
            L::copy(from.add(at), to.add(at));
            at += LINE;
        }
        if at < len {
            L::copy(from.add(len - LINE), to.add(len - LINE));
        }
        if begun > 0 {
            L::copy(from, to);
        }
    }
}

/// One of a core's caches.
#[derive(Clone, Copy)]
pub(crate) enum Cache {
    First,
    Second,
}

/// Prefetches that many bytes from `at` into a cache. They need not be mapped.
#[inline(always)]
pub(crate) fn fetch_bytes(cache: Cache, at: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(LINE) {
        match cache {
            Cache::First => fetch::<_MM_HINT_T0>(at.wrapping_add(offset)),
            Cache::Second => fetch::<_MM_HINT_T1>(at.wrapping_add(offset)),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (cache, at, bytes);
}

/// Fetches a line into the cache that `HINT` names, one of `_MM_HINT_*`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch<const HINT: i32>(at: *const u8) {
    // SAFETY: a prefetch is a hint; it neither faults nor changes memory. SSE is part of x86-64.
    unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(at.cast()) };
}

/// Copies the first and the last `N` bytes.
///
/// # Safety
/// As for [`copy`]; `len` is at least `N`.
#[inline(always)]
unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: both are within `len`, which is at least `N`, and for which the caller vouches.
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
    fn any_length_is_copied_to_any_place_and_nothing_beside_it() {
        let from: Vec<u8> = (1..=250).cycle().take(10_000).collect();
        let lengths = (0..=250).chain([1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 4160, 8192, 10_000]);
        for (copy, least) in ways() {
            for (len, at) in
                lengths.clone().filter(|&len| len >= least).flat_map(|len| (1..=65).map(move |at| (len, at)))
            {
                let mut to = [0u8; 10_100];
                // SAFETY: both are long enough, and not the same.
                unsafe { copy(from.as_ptr(), to[at..].as_mut_ptr(), len) };
                assert_eq!(to[at..at + len], from[..len], "{len} bytes");
                assert_eq!((to[at - 1], to[at + len]), (0, 0), "beside {len} bytes");
            }
        }
    }

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// The ways to copy, those by lines for each kind of instructions that the processor has, and their fewest bytes.
    fn ways() -> Vec<(Copy, usize)> {
        #[cfg(target_arch = "x86_64")]
        let by_halves = is_x86_feature_detected!("avx").then_some((each_line_by_halves as Copy, LINE));
        #[cfg(not(target_arch = "x86_64"))]
        let by_halves = None;
        [(copy as Copy, 0), (copy_by_lines, 0)].into_iter().chain(by_halves).collect()
    }
}
