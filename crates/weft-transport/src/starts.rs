//! Where the records of a stream begin: one bit for each possible place.

/// Records begin at multiples of this from where the stream began.
const GRAIN: u64 = 8;

/// The beginnings of records in a window on a stream.
#[derive(Debug)]
pub(crate) struct Starts {
    /// The beginning of the stream, or of any record.
    base: u64,
    /// One bit for each place in the window; the number of words is a power of two. Bits outside of the window are zero.
    words: Vec<u64>,
}

impl Starts {
    /// No records, for a window of at most `window` bytes.
    pub fn new(base: u64, window: u64) -> Starts {
        let words = window.div_ceil(GRAIN * 64).next_power_of_two() as usize;
        Starts { base, words: vec![0; words] }
    }

    /// Notes that a record begins there.
    #[inline]
    pub fn note(&mut self, at: u64) {
        let (word, bit) = self.place(at);
        self.words[word] |= 1 << bit;
    }

    /// Whether a record of the window begins there.
    #[inline]
    pub fn has(&self, at: u64) -> bool {
        let (word, bit) = self.place(at);
        (at - self.base) % GRAIN == 0 && self.words[word] >> bit & 1 != 0
    }

    /// Where the last record of the window begins that begins at `from` or above and below `to`.
    pub fn last(&self, from: u64, to: u64) -> Option<u64> {
        let first = (from - self.base).div_ceil(GRAIN);
        let mut end = (to - self.base).div_ceil(GRAIN);
        while end > first {
            let (word, bit) = self.place(self.base + (end - 1) * GRAIN);
            let bits = self.words[word] << (63 - bit);
            if bits != 0 {
                let place = end - 1 - u64::from(bits.leading_zeros());
                return (place >= first).then(|| self.base + place * GRAIN);
            }
            end -= bit + 1;
        }
        None
    }

    /// Moves the beginning of the window from `from` to `to`, by at most its own length.
    pub fn forget(&mut self, from: u64, to: u64) {
        let (mut at, until) = ((from - self.base) / GRAIN, (to - self.base) / GRAIN);
        while at < until {
            let (bit, left) = (at % 64, until - at);
            let bits = left.min(64 - bit);
            let mask = (u64::MAX >> (64 - bits)) << bit;
            let word = (at / 64) as usize & (self.words.len() - 1);
            self.words[word] &= !mask;
            at += bits;
        }
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        std::mem::size_of::<Self>() + self.words.capacity() * 8
    }

    #[inline]
    fn place(&self, at: u64) -> (usize, u64) {
        let place = (at - self.base) / GRAIN;
        ((place / 64) as usize & (self.words.len() - 1), place % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn beginnings_in_the_window_match_a_set(
            base in 0u64..10_000,
            steps in proptest::collection::vec((1u64..200, 0u64..4000), 1..300),
        ) {
            const WINDOW: u64 = 5000;
            let mut starts = Starts::new(base, WINDOW);
            let (mut from, mut end, mut known) = (base, base, BTreeSet::new());
            for (units, take) in steps {
                if end + units * GRAIN - from <= WINDOW {
                    starts.note(end);
                    known.insert(end);
                    end += units * GRAIN;
                }
                for at in from..end {
                    prop_assert_eq!(starts.has(at), known.contains(&at));
                }
                for (low, high) in [(from, end), (from, from + (end - from) / 2), (from + (end - from) / 3, end), (end, end)] {
                    prop_assert_eq!(starts.last(low, high), known.range(low..high).next_back().copied());
                }
                let to = known.range(..=from + take).next_back().copied().unwrap_or(from);
                starts.forget(from, to);
                known = known.split_off(&to);
                from = to;
            }
        }
    }
}
