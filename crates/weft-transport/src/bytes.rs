//! A window on a stream's bytes, kept in a ring that grows with use.

/// Memory for the bytes of a stream between two rising offsets, which the owner keeps.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    /// Its length is a power of two, or zero.
    memory: Vec<u8>,
}

/// The first allocation: a few small messages.
const LEAST: usize = 512;

/// Less memory than this is not worth a copy to trim.
const TRIM_FROM: usize = 16 << 10;

impl Bytes {
    /// Makes room for all bytes from `kept` to before `to`; those before `until` stay as they are.
    #[inline]
    pub fn reserve(&mut self, kept: u64, until: u64, to: u64) {
        if (to - kept) as usize > self.memory.len() {
            self.grow(kept, until, to);
        }
    }

    /// Writes bytes for which room was made.
    #[inline]
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let start = self.index(at);
        let first = bytes.len().min(self.memory.len() - start);
        self.memory[start..start + first].copy_from_slice(&bytes[..first]);
        if first < bytes.len() {
            self.memory[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        }
    }

    /// The bytes from `at` on, in two pieces if they wrap around the end of the memory.
    #[inline]
    pub fn slices(&self, at: u64, len: usize) -> [&[u8]; 2] {
        let start = self.index(at);
        let first = len.min(self.memory.len() - start);
        [&self.memory[start..start + first], &self.memory[..len - first]]
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, at: u64, to: &mut [u8]) {
        let start = self.index(at);
        if let Some(whole) = self.memory.get(start..start + to.len()) {
            return to.copy_from_slice(whole);
        }
        let [first, second] = self.slices(at, to.len());
        let (a, b) = to.split_at_mut(first.len());
        a.copy_from_slice(first);
        b.copy_from_slice(second);
    }

    /// `N` bytes, by value: a plain load if they lie in one piece.
    #[inline]
    pub fn array<const N: usize>(&self, at: u64) -> [u8; N] {
        let start = self.index(at);
        if let Some(whole) = self.memory.get(start..).and_then(|from| from.first_chunk()) {
            return *whole;
        }
        let mut bytes = [0; N];
        self.read(at, &mut bytes);
        bytes
    }

    /// Frees most of the memory if it is much more than the bytes in use, from `kept` to before `until`.
    pub fn trim(&mut self, kept: u64, until: u64) {
        let size = ((until - kept) as usize).next_power_of_two().max(LEAST);
        if self.memory.len() > TRIM_FROM && self.memory.len() >= 4 * size {
            self.resize(kept, until, size);
        }
    }

    /// Frees the memory.
    pub fn free(&mut self) {
        self.memory = Vec::new();
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.memory.capacity()
    }

    #[inline]
    fn index(&self, at: u64) -> usize {
        // With no memory only empty ranges are asked for, so the mask does not matter.
        at as usize & self.memory.len().wrapping_sub(1)
    }

    #[cold]
    fn grow(&mut self, kept: u64, until: u64, to: u64) {
        self.resize(kept, until, ((to - kept) as usize).next_power_of_two().max(LEAST));
    }

    fn resize(&mut self, kept: u64, until: u64, size: usize) {
        let mut grown = Bytes { memory: vec![0; size] };
        if until > kept {
            let [first, second] = self.slices(kept, (until - kept) as usize);
            grown.write(kept, first);
            grown.write(kept + first.len() as u64, second);
        }
        *self = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_stay_while_the_window_moves_and_grows(
            start in 0u64..10_000,
            steps in proptest::collection::vec((1usize..3000, 0usize..3000), 1..40),
        ) {
            let (mut bytes, mut model) = (Bytes::default(), std::collections::VecDeque::new());
            let (mut from, mut to) = (start, start);
            for (at, (push, pop)) in steps.into_iter().enumerate() {
                let new: Vec<u8> = (0..push).map(|i| (i * 31 + at) as u8).collect();
                bytes.reserve(from, to, to + push as u64);
                bytes.write(to, &new);
                to += push as u64;
                model.extend(new);
                let mut all = vec![0; model.len()];
                bytes.read(from, &mut all);
                prop_assert_eq!(&all, &Vec::from(model.clone()));
                if let Some(last) = all.last_chunk::<16>() {
                    prop_assert_eq!(bytes.array(to - 16), *last);
                }
                let pop = pop.min(model.len());
                model.drain(..pop);
                from += pop as u64;
            }
        }
    }
}
