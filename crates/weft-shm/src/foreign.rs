//! The one way by which bytes leave memory that another process can write.
//!
//! A peer that is not trusted, or that is taken for dead and lives, can change such bytes while they are read. So they are
//! never behind a reference: Rust would be free to read them twice and to assume that both reads agree. They are loaded once,
//! by volatile loads, into memory or a register of this process, and only that copy is used.
//!
//! The loads are volatile because Rust's memory model knows only the accesses of this process. To it, another process's stores are
//! like a device's: a volatile load is made exactly once, and the compiler assumes nothing about the value. An atomic load would
//! have to have the size of the peer's store, because the model does not define atomic accesses of mixed sizes.

use std::mem::MaybeUninit;
use weft_wire::LINE;

/// Copies bytes, each loaded once. Bytes that the peer writes meanwhile are in the copy or are not, byte by byte.
///
/// # Safety
/// `from` must be readable for `len` bytes, but may change at any time, and be aligned to 8. `to` must be writable for `len`
/// bytes of memory that is this process's alone.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!(from.cast::<u64>().is_aligned(), "arguments and payloads lie 8-byte aligned");
    let mut at = 0;
    #[cfg(target_arch = "x86_64")]
    if from.align_offset(16) == 0 {
        while at + 16 <= len {
            // SAFETY: the block ends at `len` at the latest, for which the caller vouches; `from` is aligned for it.
            unsafe { copy_block(from.add(at), to.add(at)) };
            at += 16;
        }
    }
    while at + 8 <= len {
        // SAFETY: the word ends at `len` at the latest; `from` is aligned for it, by the caller.
        unsafe { to.add(at).cast::<u64>().write_unaligned(from.add(at).cast::<u64>().read_volatile()) };
        at += 8;
    }
    while at < len {
        // SAFETY: `at` is below `len`.
        unsafe { to.add(at).write(from.add(at).read_volatile()) };
        at += 1;
    }
}

/// Copies `N` bytes, each loaded once, from a source that is aligned to 16: a few loads and stores, without a loop.
///
/// # Safety
/// As for [`copy`], for `N` bytes, and `from` must be aligned to 16.
#[inline(always)]
pub(crate) unsafe fn copy_fixed<const N: usize>(from: *const u8, to: *mut u8) {
    const { assert!(N % 16 == 0) };
    debug_assert!(from.align_offset(16) == 0, "aligned to a block");
    for at in (0..N).step_by(16) {
        // SAFETY: the block ends at `N` at the latest; `from` is aligned for it, by the caller.
        unsafe { copy_block(from.add(at), to.add(at)) };
    }
}

/// # Safety
/// As for [`copy`], for 16 bytes, and `from` must be aligned to 16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_block(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::__m128i;
    // SAFETY: as the caller says.
    unsafe { to.cast::<__m128i>().write_unaligned(from.cast::<__m128i>().read_volatile()) };
}

/// # Safety
/// As for [`copy`], for 16 bytes.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn copy_block(from: *const u8, to: *mut u8) {
    // SAFETY: as the caller says.
    unsafe { copy(from, to, 16) };
}

/// Loads a line once and says which of its bytes are not zero: one bit for each, the lowest for the first.
///
/// # Safety
/// `from` must be readable for a line, but may change at any time, and be aligned to 16.
#[inline(always)]
pub(crate) unsafe fn nonzero(from: *const u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for the line.
    return unsafe { nonzero_by_blocks(from) };
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above.
    return unsafe { nonzero_by_words(from) };
}

/// # Safety
/// As for [`nonzero`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn nonzero_by_blocks(from: *const u8) -> u64 {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_setzero_si128};
    let mut zero = 0;
    for block in 0..LINE / 16 {
        // SAFETY: the block is within the line that the caller vouches for, and aligned as the line is. SSE2 is part of x86-64.
        let bits = unsafe {
            let bytes = from.cast::<__m128i>().add(block).read_volatile();
            _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128()))
        };
        zero |= u64::from(bits as u32) << (16 * block);
    }
    !zero
}

/// # Safety
/// As for [`nonzero`]; aligned to 8 is enough.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
unsafe fn nonzero_by_words(from: *const u8) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let mut nonzero = 0;
    for word in 0..LINE / 8 {
        // SAFETY: the word is within the line that the caller vouches for, and aligned as the line is.
        let bytes = unsafe { from.cast::<u64>().add(word).read_volatile() }.to_le();
        // The highest bit of each byte that is not zero, moved to the lowest. No sum carries into the next byte.
        let ones = (((bytes & LOW) + LOW) | bytes) >> 7 & (!LOW >> 7);
        // The multiplication collects these bits in the highest byte.
        nonzero |= (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * word);
    }
    nonzero
}

/// As [`copy`], into a vector, whose contents are replaced.
///
/// # Safety
/// `from` must be readable for `len` bytes, but may change at any time, and be aligned to 8.
pub(crate) unsafe fn copy_into(from: *const u8, len: usize, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(len);
    let room: &mut [MaybeUninit<u8>] = out.spare_capacity_mut();
    assert!(room.len() >= len, "reserved");
    // SAFETY: `from` is as the caller says; the room is the vector's own, and at least as long.
    unsafe { copy(from, room.as_mut_ptr().cast(), len) };
    // SAFETY: the bytes up to `len` were just written, and are within the capacity.
    unsafe { out.set_len(len) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_and_alignment_are_whole_and_end_where_they_should() {
        let source: Vec<u64> = (0..64).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let bytes: Vec<u8> = source.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for start in (0..32).step_by(8) {
            for len in 0..300 {
                let mut out = vec![0xaa; 7];
                // SAFETY: `start` and `len` are within the source, whose words are aligned to 8.
                unsafe { copy_into(source.as_ptr().cast::<u8>().add(start), len, &mut out) };
                assert_eq!(out, bytes[start..start + len], "{len} bytes from {start}");
                let mut fenced = [0x55u8; 310];
                // SAFETY: as above; there is room for 300 bytes and more.
                unsafe { copy(source.as_ptr().cast::<u8>().add(start), fenced.as_mut_ptr(), len) };
                assert!(fenced[len..].iter().all(|&byte| byte == 0x55), "{len} bytes, and not one more");
            }
        }
    }

    #[test]
    fn the_bytes_of_a_line_that_are_not_zero_are_found_whatever_they_are() {
        #[repr(align(64))]
        struct Line([u8; LINE]);
        let mut rows = vec![[0; LINE], [0xff; LINE], [1; LINE], [0x80; LINE]];
        rows.extend((0..LINE).flat_map(|at| (0..8).map(move |bit| std::array::from_fn(|n| u8::from(n == at) << bit))));
        rows.extend((0..LINE).map(|at| std::array::from_fn(|n| if n == at { 0 } else { n as u8 | 0x80 })));
        rows.extend((1..200u64).map(|seed| {
            std::array::from_fn(|n| {
                let noise = (seed * 64 + n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                if noise >> 63 == 0 {
                    0
                } else {
                    (noise >> 32) as u8
                }
            })
        }));
        for row in rows {
            let expected = (0..LINE).fold(0, |bits, n| bits | u64::from(row[n] != 0) << n);
            let line = Line(row);
            // SAFETY: it is a line, aligned to 64, which nobody changes.
            let found = unsafe { (nonzero(line.0.as_ptr()), nonzero_by_words(line.0.as_ptr())) };
            assert_eq!(found, (expected, expected), "{row:?}");
        }
    }

    /// While the other side writes, each copied word comes from a single write, and the copy does not change later. The other side
    /// has a mapping of its own, as another process has.
    #[test]
    fn a_copy_does_not_change_with_its_source() {
        use crate::sys::Shared;
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        const BYTES: usize = 4096;
        let (here, fd) = Shared::create("weft-test", BYTES).expect("memfd");
        let there = Shared::open(&fd, BYTES).expect("its own mapping");
        /// Stops the writer when it is dropped, also if an assertion fails.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _done = Done(&is_done);
            scope.spawn(|| {
                let mut turn = 0u64;
                while !is_done.load(Ordering::Relaxed) {
                    turn += 1;
                    let word = 0x0101_0101_0101_0101 * (turn % 256);
                    for at in 0..BYTES / 8 {
                        // SAFETY: the word is inside this mapping, aligned, and accessed as this atomic alone.
                        let to = unsafe { AtomicU64::from_ptr(there.base().as_ptr().cast::<u64>().add(at)) };
                        to.store(word, Ordering::Relaxed);
                    }
                }
            });
            let mut out = Vec::new();
            for _ in 0..2000 {
                // SAFETY: the bytes are readable and aligned, and change meanwhile, as they may.
                unsafe { copy_into(here.base().as_ptr(), BYTES, &mut out) };
                let first = out.clone();
                for word in out.chunks(8) {
                    assert!(word.iter().all(|byte| *byte == word[0]), "a word is loaded at once");
                }
                assert_eq!(out, first);
            }
        });
    }
}
