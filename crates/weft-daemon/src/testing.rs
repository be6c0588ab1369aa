//! A program's shared memory, in ordinary memory: for tests and the simulator.

use std::cell::RefCell;
use std::rc::Rc;
use weft_wire::descriptor::{lap, Words, WORDS};
use weft_wire::segment::{Segment, PARTS, PARTS_MOST};

/// A file in ordinary memory. Clones share it.
#[derive(Clone, Debug)]
pub struct MemSegment(Rc<RefCell<Vec<u64>>>);

const BRANCHES: usize = 64;
const LEAVES: usize = BRANCHES + 512;

impl MemSegment {
    /// A file of zeros. `bytes` is a number of whole words, and reaches beyond the beginning of the parts.
    pub fn new(bytes: usize) -> MemSegment {
        assert!(bytes > PARTS && bytes % 8 == 0, "room for a part");
        MemSegment(Rc::new(RefCell::new(vec![0; bytes / 8])))
    }

    /// Stores a word anywhere, as a program gone wild would.
    pub fn scribble(&self, at: usize, word: u64) {
        let mut words = self.0.borrow_mut();
        let len = words.len();
        words[at / 8 % len] = word;
    }

    fn or(&self, at: usize, bits: u64) -> u64 {
        let word = &mut self.0.borrow_mut()[at / 8];
        std::mem::replace(word, *word | bits)
    }

    fn take(&self, at: usize) -> u64 {
        std::mem::take(&mut self.0.borrow_mut()[at / 8])
    }
}

impl Segment for MemSegment {
    fn bytes(&self) -> usize {
        self.0.borrow().len() * 8
    }

    fn look(&self, at: usize, expected: u16) -> Option<Words> {
        let words = self.0.borrow();
        let found: Words = words[at / 8..at / 8 + WORDS].try_into().expect("the words of a descriptor");
        (lap(found[0]) == expected).then_some(found)
    }

    fn publish(&self, at: usize, words: &Words) {
        self.0.borrow_mut()[at / 8..at / 8 + WORDS].copy_from_slice(words);
    }

    fn cursor(&self, at: usize) -> u64 {
        self.0.borrow()[at / 8]
    }

    fn set_cursor(&self, at: usize, value: u64) {
        self.0.borrow_mut()[at / 8] = value;
    }

    fn read(&self, at: usize, len: usize, to: &mut Vec<u8>) {
        let words = self.0.borrow();
        to.clear();
        words[at / 8..(at + len).div_ceil(8)].iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
        to.truncate(len);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let words = &mut self.0.borrow_mut()[at / 8..];
        let chunks = bytes.chunks_exact(8);
        let rest = chunks.remainder();
        for (place, chunk) in words.iter_mut().zip(chunks) {
            *place = u64::from_le_bytes(chunk.try_into().expect("the bytes of a word"));
        }
        if let Some(place) = words.get_mut(bytes.len() / 8).filter(|_| !rest.is_empty()) {
            let mut word = place.to_le_bytes();
            word[..rest.len()].copy_from_slice(rest);
            *place = u64::from_le_bytes(word);
        }
    }

    fn copy_to(&self, at: usize, len: usize, other: &MemSegment, to: usize) {
        let mut bytes = Vec::new();
        self.read(at, len, &mut bytes);
        other.write(to, &bytes);
    }

    fn ring(&self, bells: usize, part: u32) {
        let part = (part % PARTS_MOST) as usize;
        self.or(bells + LEAVES + part / 64 * 8, 1 << (part % 64));
        self.or(bells + BRANCHES + part / 4096 * 8, 1 << (part / 64 % 64));
        self.or(bells, 1 << (part / 4096));
    }

    fn collect(&self, bells: usize, mut words: u32, mut rung: impl FnMut(u32)) {
        let mut branches = self.take(bells);
        while branches != 0 {
            let branch = branches.trailing_zeros() as usize;
            let at = bells + BRANCHES + branch * 8;
            let mut leaves = self.take(at);
            while leaves != 0 {
                if words == 0 {
                    self.or(at, leaves);
                    self.or(bells, branches);
                    return;
                }
                words -= 1;
                let leaf = branch * 64 + leaves.trailing_zeros() as usize;
                leaves &= leaves - 1;
                let mut parts = self.take(bells + LEAVES + leaf * 8);
                while parts != 0 {
                    rung((leaf * 64) as u32 + parts.trailing_zeros());
                    parts &= parts - 1;
                }
            }
            branches &= branches - 1;
        }
    }

    fn light_barrier(&self) {}
}
