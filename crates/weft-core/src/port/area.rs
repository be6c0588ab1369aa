//! The send area of an endpoint: which of its blocks are in use.

use weft_wire::descriptor::UNIT;
use weft_wire::segment::PAGE;

/// Units of a block. Contents take whole blocks.
const BLOCK: u32 = 16;

/// Bytes of a block: a quarter of a page.
const BLOCK_BYTES: usize = BLOCK as usize * UNIT;

const _: () = assert!(PAGE % BLOCK_BYTES == 0);

/// A range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Blocks {
    first: u32,
    count: u32,
}

impl Blocks {
    /// Where they begin, in units.
    pub fn at(self) -> u32 {
        self.first * BLOCK
    }

    pub fn count(self) -> u32 {
        self.count
    }
}

/// The number of blocks for `bytes` bytes.
pub(super) fn blocks(bytes: usize) -> u32 {
    bytes.div_ceil(BLOCK_BYTES) as u32
}

/// Which blocks are in use: one bit for each.
#[derive(Debug)]
pub(super) struct Area {
    used: Vec<u64>,
    blocks: u32,
    free: u32,
    /// Where the last search ended: the next one begins there.
    next: u32,
}

impl Area {
    /// An area of `units` units with all blocks free.
    pub fn new(units: u32) -> Area {
        let blocks = units / BLOCK;
        Area { used: vec![0; blocks.div_ceil(64) as usize], blocks, free: blocks, next: 0 }
    }

    /// The number of free blocks.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Takes `count` adjacent blocks. `None` if there are none.
    pub fn take(&mut self, count: u32) -> Option<Blocks> {
        if count > self.free {
            return None;
        }
        let first = self.find(self.next, self.blocks, count).or_else(|| self.find(0, self.blocks, count))?;
        (first..first + count).for_each(|block| self.used[block as usize / 64] |= 1 << (block % 64));
        self.free -= count;
        self.next = first + count;
        Some(Blocks { first, count })
    }

    /// Frees blocks that were taken.
    pub fn give_back(&mut self, blocks: Blocks) {
        let Blocks { first, count } = blocks;
        (first..first + count).for_each(|block| self.used[block as usize / 64] &= !(1 << (block % 64)));
        self.free += count;
    }

    fn find(&self, from: u32, to: u32, count: u32) -> Option<u32> {
        let (mut first, mut at) = (from, from);
        while at < to {
            let word = self.used[at as usize / 64] >> (at % 64);
            if word & 1 != 0 {
                at += 1;
                first = at;
            } else {
                // The free blocks from here on in this word.
                at += (word.trailing_zeros()).min(64 - at % 64).min(to - at);
                if at - first >= count {
                    return Some(first);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_blocks_are_found_again() {
        let mut area = Area::new(BLOCK * 100);
        let all: Vec<Blocks> = (0..50).map(|_| area.take(2).expect("room")).collect();
        assert_eq!((area.take(1), area.free()), (None, 0));
        area.give_back(all[10]);
        area.give_back(all[12]);
        assert_eq!(area.take(4), None, "they do not touch");
        area.give_back(all[11]);
        assert_eq!(area.take(7), None);
        assert_eq!(area.take(6).map(Blocks::at), Some(all[10].at()));
    }

    proptest! {
        #[test]
        fn no_block_is_given_out_twice(steps in proptest::collection::vec((1u32..70, any::<bool>(), any::<u8>()), 1..200)) {
            let mut area = Area::new(BLOCK * 130);
            let mut given: Vec<Blocks> = Vec::new();
            for (count, takes, which) in steps {
                if takes {
                    if let Some(blocks) = area.take(count) {
                        prop_assert!(blocks.first + count <= 130);
                        let overlap = |other: &Blocks| blocks.first < other.first + other.count && other.first < blocks.first + count;
                        prop_assert!(!given.iter().any(overlap));
                        given.push(blocks);
                    } else {
                        // There must be no gap of that size.
                        let is_used = |block: u32| given.iter().any(|b| (b.first..b.first + b.count).contains(&block));
                        let longest = (0..130).fold((0, 0), |(most, run), block| {
                            let run = if is_used(block) { 0 } else { run + 1 };
                            (run.max(most), run)
                        }).0;
                        prop_assert!(longest < count);
                    }
                } else if !given.is_empty() {
                    let blocks = given.swap_remove(usize::from(which) % given.len());
                    area.give_back(blocks);
                }
                prop_assert_eq!(area.free(), 130 - given.iter().map(|blocks| blocks.count).sum::<u32>());
            }
        }
    }
}
