//! The source: 64 MiB that messages are taken from in turn, so that no cache holds the bytes sent; and the sum of the bytes
//! received.
//!
//! It is the same as in `bench/limits/common.c`, so that weft and the limits move and read the same bytes.

use std::cell::Cell;

const BYTES: usize = 64 << 20;
const LINE: usize = 64;
const PAGE: usize = 4096;

/// The largest message that is taken from the source: a long one of Active Messages.
const MESSAGE_MOST: usize = 1 << 20;

/// Word i of the source is i + 1 times this odd number: all words differ.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Memory that messages are taken from in turn. Equal in every process.
#[derive(Debug)]
pub struct Source {
    bytes: Vec<u8>,
    /// Where the first page begins, as with the limits: a message that crosses one page more takes longer to read.
    base: usize,
    at: Cell<usize>,
}

/// Where in the source a process begins. The two sides of a round trip use different halves, so that neither finds in a cache what
/// the other has just read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// The side that asks, or sends one way.
    First,
    /// The side that answers.
    Second,
}

impl Source {
    /// Fills the memory, so that all pages are present.
    pub fn new() -> Source {
        let mut bytes = vec![0u8; BYTES + PAGE];
        // If the alignment is unknown, messages start anywhere; that is still correct.
        let base = match bytes.as_ptr().align_offset(PAGE) {
            offset if offset < PAGE => offset,
            _ => 0,
        };
        for (i, word) in bytes[base..base + BYTES].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(i as u64 + 1).wrapping_mul(SPREAD).to_le_bytes());
        }
        Source { bytes, base, at: Cell::new(0) }
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.base..self.base + BYTES]
    }

    /// Begins again at the start of a half.
    pub fn rewind(&self, size: usize, half: Half) {
        self.at.set(first(size, half) * stride(size));
    }

    /// The next message of `size` bytes. All messages between two rewinds must have that size.
    #[inline(always)]
    pub fn message(&self, size: usize) -> &[u8] {
        let at = self.base + self.at.get();
        &self.bytes[at..at + size]
    }

    /// The same for 8 or 16 bytes, as arguments: the first `size / 4` of the four.
    #[inline(always)]
    pub fn args(&self, size: usize) -> [u32; 4] {
        let message = self.message(size);
        let arg = |bytes: &[u8], i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        // With a known length, the bytes are copied at once.
        if let Some(bytes) = message.first_chunk::<16>() {
            [arg(bytes, 0), arg(bytes, 4), arg(bytes, 8), arg(bytes, 12)]
        } else if let Some(bytes) = message.first_chunk::<8>() {
            [arg(bytes, 0), arg(bytes, 4), 0, 0]
        } else {
            [0; 4]
        }
    }

    /// Goes on to the next message: this one was accepted.
    #[inline(always)]
    pub fn advance(&self, size: usize) {
        let next = self.at.get() + stride(size);
        self.at.set(if next + stride(size) > BYTES { 0 } else { next });
    }

    /// The sum of the first `count` messages after a rewind.
    pub fn sum_of(&self, size: usize, half: Half, count: u64) -> u64 {
        let slots = BYTES / stride(size);
        let from = first(size, half);
        let message = |slot: usize| {
            let at = self.base + slot % slots * stride(size);
            sum_bytes(&self.bytes[at..at + size])
        };
        let add = |sum: u64, slot| sum.wrapping_add(message(slot));
        let (laps, rest) = (count / slots as u64, (count % slots as u64) as usize);
        let lap = if laps > 0 { (0..slots).fold(0, add) } else { 0 };
        (from..from + rest).fold(laps.wrapping_mul(lap), add)
    }
}

fn stride(size: usize) -> usize {
    debug_assert!(size <= MESSAGE_MOST);
    size.div_ceil(LINE) * LINE
}

fn first(size: usize, half: Half) -> usize {
    match half {
        Half::First => 0,
        Half::Second => BYTES / stride(size) / 2,
    }
}

/// The sum of little-endian 64-bit words and of the remaining bytes, modulo 2^64.
#[inline(never)]
pub fn sum_bytes(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut sum = 0u64;
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        sum = sum.wrapping_add(word);
    }
    words.remainder().iter().fold(sum, |sum, &byte| sum.wrapping_add(u64::from(byte)))
}

/// The same for a message sent as arguments: two of them make a word.
#[inline(never)]
pub fn sum_args(args: &[u32]) -> u64 {
    args.chunks_exact(2).fold(0u64, |sum, pair| sum.wrapping_add(u64::from(pair[0]) | u64::from(pair[1]) << 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_many_messages_is_the_sum_of_each_over_the_end_of_the_source() {
        let source = Source::new();
        for (size, half) in [(16, Half::First), (65536, Half::Second), (1024, Half::Second)] {
            let count = 3 * BYTES / stride(size) / 2 + 5;
            source.rewind(size, half);
            let each = (0..count).fold(0u64, |sum, _| {
                let of_one = sum_bytes(source.message(size));
                source.advance(size);
                sum.wrapping_add(of_one)
            });
            assert_eq!(source.sum_of(size, half, count as u64), each, "size {size}");
        }
    }

    #[test]
    fn arguments_sum_up_like_the_bytes_they_were() {
        let source = Source::new();
        source.rewind(16, Half::First);
        assert_eq!(sum_args(&source.args(16)), sum_bytes(source.message(16)));
        assert_eq!(sum_bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 5]), 6);
    }
}
