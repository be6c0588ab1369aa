//! CRC32C by folding with 256-bit carry-less multiplications.
//!
//! The method is Intel's ("Fast CRC computation for generic polynomials using PCLMULQDQ", 2009). The message is a polynomial, and a part
//! that stands *n* bits in front of the end can be replaced by its product with x^n modulo the CRC's polynomial. So each 256 bytes are
//! folded onto the next 256, and the last 256 onto their last 16. The processor's CRC instruction computes the CRC of these 16 bytes and
//! of the rest, which is shorter than a block.

// The build script leaves this file out before Rust 1.89.
#![allow(clippy::incompatible_msrv)]

use std::arch::x86_64::*;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes that are folded at a time: eight registers of 32 bytes.
const BLOCK: usize = 8 * 32;

/// CRC32C's polynomial without its highest term; the highest bit is x^31.
const POLYNOMIAL: u32 = 0x1edc_6f41;

/// x^n modulo the polynomial, as a factor for words whose bits are in reverse order.
pub const fn factor(n: u32) -> i64 {
    let mut rest = 1u32;
    let mut power = 0;
    while power < n {
        rest = rest << 1 ^ if rest >> 31 != 0 { POLYNOMIAL } else { 0 };
        power += 1;
    }
    (rest.reverse_bits() as i64) << 1
}

/// The factors that move 16 bytes forward by `bytes`: for their first word, and for their second.
const fn factors(bytes: u32) -> (i64, i64) {
    (factor(bytes * 8 + 32), factor(bytes * 8 - 32))
}

const BY_BLOCK: (i64, i64) = factors(BLOCK as u32);
const BY_HALF: (i64, i64) = factors(128);
const BY_QUARTER: (i64, i64) = factors(64);
const BY_REGISTER: (i64, i64) = factors(32);
const BY_LANE: (i64, i64) = factors(16);

/// Whether the processor has the instructions; 0 while unknown. Kept so that a packet costs one check instead of five.
static ANSWER: AtomicU8 = AtomicU8::new(0);
const WIDE: u8 = 1;
const NARROW: u8 = 2;

/// The right to run these instructions: only a processor that has them gets one.
#[derive(Clone, Copy, Debug)]
pub struct Folds(());

impl Folds {
    /// `None` if the processor lacks an instruction, or has AVX-512: `crc-fast` is faster there.
    #[inline]
    pub fn of_this_processor() -> Option<Folds> {
        // Relaxed: a thread that sees an old answer asks the processor once more.
        match ANSWER.load(Relaxed) {
            WIDE => Some(Folds(())),
            NARROW => None,
            _ => Folds::asked(),
        }
    }

    #[cold]
    fn asked() -> Option<Folds> {
        let has_all = Folds::can_run() && !is_x86_feature_detected!("avx512vl");
        ANSWER.store(if has_all { WIDE } else { NARROW }, Relaxed);
        has_all.then_some(Folds(()))
    }

    /// For every processor that can run them, even if another way is faster.
    pub fn wherever_they_run() -> Option<Folds> {
        Folds::can_run().then_some(Folds(()))
    }

    fn can_run() -> bool {
        is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("sse4.2")
    }

    /// The checksum of these bytes.
    #[inline]
    pub fn crc32c(self, bytes: &[u8]) -> u32 {
        // SAFETY: a `Folds` exists only on a processor with these instructions.
        unsafe { crc32c(bytes) }
    }
}

#[target_feature(enable = "vpclmulqdq,avx2,pclmulqdq,sse4.2")]
fn crc32c(bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let Some((first, blocks)) = blocks.split_first() else { return !short(u32::MAX, rest) };
    let mut folded = load(first);
    // The state before the first byte is all ones: they are added to the first four bytes.
    folded[0] = _mm256_xor_si256(folded[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(-1)));
    let by_block = both_lanes(BY_BLOCK);
    for block in blocks {
        let next = load(block);
        #[allow(clippy::needless_range_loop)] // see `load`
        for at in 0..8 {
            folded[at] = fold(folded[at], by_block, next[at]);
        }
    }
    let [a, b, c, d, e, f, g, h] = folded;
    let by_half = both_lanes(BY_HALF);
    let [a, b, c, d] = [fold(a, by_half, e), fold(b, by_half, f), fold(c, by_half, g), fold(d, by_half, h)];
    let by_quarter = both_lanes(BY_QUARTER);
    let [a, b] = [fold(a, by_quarter, c), fold(b, by_quarter, d)];
    let all = fold(a, both_lanes(BY_REGISTER), b);
    let (front, back) = (_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
    let by_lane = _mm_set_epi64x(BY_LANE.1, BY_LANE.0);
    let moved =
        _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(front, by_lane), _mm_clmulepi64_si128::<0x11>(front, by_lane));
    let last = _mm_xor_si128(moved, back);
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(last) as u64);
    let state = _mm_crc32_u64(state, _mm_extract_epi64::<1>(last) as u64);
    !short(state as u32, rest)
}

/// Continues from a state over fewer bytes than a block.
#[inline]
#[target_feature(enable = "sse4.2")]
fn short(state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = u64::from(state);
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    let mut state = state as u32;
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    state
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(block: &[u8; BLOCK]) -> [__m256i; 8] {
    let (places, _) = block.as_chunks::<32>();
    // A loop instead of iterators: generic code is compiled without these instructions, and would be a call.
    let mut registers = [_mm256_setzero_si256(); 8];
    for at in 0..8 {
        // SAFETY: 32 bytes are readable there, and the load asks for no alignment.
        registers[at] = unsafe { _mm256_loadu_si256(places[at].as_ptr().cast()) };
    }
    registers
}

/// Moves both lanes forward, and adds the bytes there.
#[inline]
#[target_feature(enable = "vpclmulqdq,avx2")]
fn fold(folded: __m256i, by: __m256i, next: __m256i) -> __m256i {
    let first = _mm256_clmulepi64_epi128::<0x00>(folded, by);
    let second = _mm256_clmulepi64_epi128::<0x11>(folded, by);
    _mm256_xor_si256(_mm256_xor_si256(first, next), second)
}

#[inline]
#[target_feature(enable = "avx2")]
fn both_lanes((first, second): (i64, i64)) -> __m256i {
    _mm256_set_epi64x(second, first, second, first)
}
