//! Proofs that a process knows an endpoint's key, which reveal nothing about the key.
//!
//! A proof is a keyed hash (SipHash-2-4, 128 bits) of the side that makes it and of the words that it vouches for. Without the key nobody
//! can make one, and a proof for one side, call or endpoint is not valid for another. A process that holds a proof can try keys on it
//! offline: for 64 random bits that takes 2^63 hashes, but a short key, or one from a list, is found.

use crate::Key;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// SipHash has a key of 128 bits. This is the half that an endpoint's key lacks.
const PADDING: u64 = u64::from_le_bytes(*b"weft key");

/// The side that makes a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The side that calls an endpoint.
    Caller,
    /// The side that has the endpoint.
    Callee,
}

/// A proof that its maker knows a key.
///
/// ```
/// use weft_wire::proof::{KeyProof, Side};
/// use weft_wire::Key;
///
/// let said = KeyProof::new(Key(7), Side::Caller, b"what the call says");
/// assert!(said.matches(KeyProof::new(Key(7), Side::Caller, b"what the call says")));
/// assert!(!said.matches(KeyProof::new(Key(7), Side::Callee, b"what the call says")));
/// assert!(!said.matches(KeyProof::new(Key(8), Side::Caller, b"what the call says")));
/// ```
#[derive(Clone, Copy)]
pub struct KeyProof(pub u128);

impl KeyProof {
    /// The proof of one side, bound to these words.
    pub fn new(key: Key, side: Side, words: &[u8]) -> KeyProof {
        let mut hash = SipHasher24::new_with_keys(key.0, PADDING);
        hash.write(&[side as u8]);
        hash.write(words);
        KeyProof(hash.finish128().as_u128())
    }

    /// Compares in constant time: no branch depends on how much of it is right.
    pub fn matches(self, other: KeyProof) -> bool {
        (self.0 ^ other.0) == 0
    }
}

impl fmt::Debug for KeyProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyProof(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_siphash_of_the_side_and_the_words() {
        let proof = KeyProof::new(Key(7), Side::Callee, b"who calls whom");
        assert_eq!(
            proof.0, 0x2ce0_7e4a_e7b8_f7b1_1ddc_485e_f28b_7e96,
            "as an implementation in another language has it"
        );
        assert_eq!(format!("{proof:?}"), "KeyProof(..)", "nothing to try keys on in a log");
    }

    #[test]
    fn a_proof_is_good_for_one_key_side_and_text_only() {
        let good = KeyProof::new(Key(7), Side::Caller, b"words");
        assert!(good.matches(KeyProof::new(Key(7), Side::Caller, b"words")));
        let others = [
            (7, Side::Callee, "words"),
            (6, Side::Caller, "words"),
            (7, Side::Caller, "wordt"),
            (7, Side::Caller, "word"),
        ];
        for (key, side, words) in others {
            assert!(!good.matches(KeyProof::new(Key(key), side, words.as_bytes())), "{key} {side:?} {words}");
        }
        for bit in 0..128 {
            assert!(!good.matches(KeyProof(good.0 ^ 1 << bit)), "bit {bit}");
        }
    }
}
