//! CRC32C with the processor's CRC instruction, on three lanes at a time.
//!
//! The instruction takes 8 bytes and three cycles, and the next one waits for its result. So the checksums of three lanes of the message
//! are computed side by side, and then combined: a checksum is shifted over the bytes behind it by a product with x^n modulo the CRC's
//! polynomial (as in `folds.rs`).

// The build script leaves this file out before Rust 1.89.
#![allow(clippy::incompatible_msrv)]

use crate::folds::factor;
use std::arch::x86_64::*;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a step. A lane has one step or several.
const STEP: usize = 64;

/// The most steps of a lane.
const STEPS_MOST: usize = 32;

/// The factors that shift a checksum over one lane and over two, by the steps of a lane.
const FACTORS: [(i64, i64); STEPS_MOST + 1] = {
    let mut factors = [(0, 0); STEPS_MOST + 1];
    let mut steps = 1;
    while steps <= STEPS_MOST {
        let bits = (steps * STEP * 8) as u32;
        factors[steps] = (factor(bits - 32), factor(2 * bits - 32));
        steps += 1;
    }
    factors
};

/// Whether the processor has the instructions; 0 while unknown.
static ANSWER: AtomicU8 = AtomicU8::new(0);
const HAS: u8 = 1;
const LACKS: u8 = 2;

/// The right to run these instructions: only a processor that has them gets one.
#[derive(Clone, Copy, Debug)]
pub struct Lanes(());

impl Lanes {
    /// `None` if the processor lacks an instruction, or has AVX-512: `crc-fast` is faster there.
    #[inline]
    pub fn of_this_processor() -> Option<Lanes> {
        // Relaxed: a thread that sees an old answer asks the processor once more.
        match ANSWER.load(Relaxed) {
            HAS => Some(Lanes(())),
            LACKS => None,
            _ => Lanes::asked(),
        }
    }

    #[cold]
    fn asked() -> Option<Lanes> {
        let has_all = Lanes::can_run() && !is_x86_feature_detected!("avx512vl");
        ANSWER.store(if has_all { HAS } else { LACKS }, Relaxed);
        has_all.then_some(Lanes(()))
    }

    /// On every processor that can run them, even if it has a faster way.
    pub fn wherever_they_run() -> Option<Lanes> {
        Lanes::can_run().then_some(Lanes(()))
    }

    fn can_run() -> bool {
        is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2")
    }

    /// The checksum of these bytes.
    #[inline]
    pub fn crc32c(self, bytes: &[u8]) -> u32 {
        // SAFETY: a `Lanes` exists only on a processor with these instructions.
        unsafe { crc32c(bytes) }
    }
}

#[target_feature(enable = "pclmulqdq,sse4.2")]
fn crc32c(bytes: &[u8]) -> u32 {
    let (mut state, mut rest) = (u32::MAX, bytes);
    while rest.len() >= 3 * STEP {
        let steps = (rest.len() / (3 * STEP)).min(STEPS_MOST);
        let (lanes, behind) = rest.split_at(3 * steps * STEP);
        (state, rest) = (three(state, lanes, steps), behind);
    }
    let (words, rest) = rest.as_chunks::<8>();
    let mut wide = u64::from(state);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    let mut state = wide as u32;
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    !state
}

/// Continues from a state over three lanes of `steps` steps.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn three(state: u32, bytes: &[u8], steps: usize) -> u32 {
    let (first, others) = bytes.split_at(steps * STEP);
    let (second, third) = others.split_at(steps * STEP);
    let (mut a, mut b, mut c) = (u64::from(state), 0, 0);
    let (first, second, third) =
        (first.as_chunks::<STEP>().0, second.as_chunks::<STEP>().0, third.as_chunks::<STEP>().0);
    for ((first, second), third) in first.iter().zip(second).zip(third) {
        let (first, second, third) = (first.as_chunks::<8>().0, second.as_chunks::<8>().0, third.as_chunks::<8>().0);
        for at in 0..STEP / 8 {
            a = _mm_crc32_u64(a, u64::from_le_bytes(first[at]));
            b = _mm_crc32_u64(b, u64::from_le_bytes(second[at]));
            c = _mm_crc32_u64(c, u64::from_le_bytes(third[at]));
        }
    }
    let (one, two) = FACTORS[steps];
    (shifted(a, two) ^ shifted(b, one) ^ c) as u32
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn shifted(state: u64, factor: i64) -> u64 {
    let product = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(state as i64), _mm_cvtsi64_si128(factor));
    _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64)
}
