//! The trace hash, which tells two runs apart.

/// Folds words of 64 bits into one, in order. It is the same on every machine, and not a cryptographic hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trace(u64);

impl Trace {
    pub fn new(seed: u64) -> Trace {
        let mut trace = Trace(0x6a09_e667_f3bc_c908);
        trace.fold(seed);
        trace
    }

    /// Each step is invertible for a known word, so two different words never lead from one hash to the same hash.
    #[inline(always)]
    pub fn fold(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    pub fn value(self) -> u64 {
        self.0
    }
}

/// A hash of a message's contents, in four lanes for large ones.
pub(crate) fn contents_hash(first: u64, args: &[u32], payload: &[u8]) -> u64 {
    let mut lanes = [Trace::new(first), Trace(1), Trace(2), Trace(3)];
    for pair in args.chunks(2) {
        lanes[0].fold(pair.iter().fold(1, |word, arg| word << 32 | u64::from(*arg)));
    }
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut blocks = payload.chunks_exact(32);
    for block in &mut blocks {
        for (lane, bytes) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            lane.fold(word(bytes));
        }
    }
    for byte in blocks.remainder() {
        lanes[1].fold(u64::from(*byte));
    }
    lanes[0].fold((payload.len() as u64) << 8 | args.len() as u64);
    let [mut all, rest @ ..] = lanes;
    rest.iter().for_each(|lane| all.fold(lane.0));
    all.fold(0);
    all.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_its_place_matter() {
        let base: Vec<u8> = (0..100).collect();
        let hash = contents_hash(7, &[1, 2, 3], &base);
        for at in 0..base.len() {
            let mut other = base.clone();
            other[at] ^= 1;
            assert_ne!(contents_hash(7, &[1, 2, 3], &other), hash, "byte {at}");
        }
        let others = [
            contents_hash(8, &[1, 2, 3], &base),
            contents_hash(7, &[1, 2], &base),
            contents_hash(7, &[1, 3, 2], &base),
            contents_hash(7, &[1, 2, 3], &base[..99]),
            contents_hash(7, &[1, 2, 3, 0], &base),
        ];
        assert!(others.iter().all(|other| *other != hash), "{others:x?} {hash:x}");
    }
}
