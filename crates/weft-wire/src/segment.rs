//! The memory that a program shares with weftd: its layout, and the seam between the memory and its users.
//!
//! The daemon makes one file for each attachment, and tells the program where its parts are. Neither side reads that from the file.
//!
//! ```text
//! 0       written by the program: the number of its sleep, or 0 while it is awake
//! 4096    bells to the daemon
//! 65536   bells to the program
//! 131072  parts of endpoints, each aligned to a page
//! ```
//!
//! A part:
//!
//! ```text
//! line 0  written by the program: descriptors of the receive ring that it has claimed, and taken; units that it read of the receive area
//! line 1  written by the daemon: descriptors of the send ring that it has taken; whether it wants the bell when there is room
//! line 2  the send ring, the receive ring
//! page    the send area, the receive area
//! ```
//!
//! Bells are a tree of words: a leaf word has one bit for each of 64 parts, and a word above has one bit for each of 64 words. One side
//! sets bits from the leaf up, the other clears them from the root down. So a bit that is set while others are cleared is found either
//! then or the next time.

use crate::descriptor::{Words, DESCRIPTOR, UNIT};
use crate::LINE;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Where the program writes whether it sleeps.
pub const ASLEEP: usize = 0;

/// Where the bells to the daemon lie.
pub const TO_DAEMON: usize = PAGE;

/// Where the bells to the program lie.
pub const TO_PROGRAM: usize = 16 * PAGE;

/// Where parts begin.
pub const PARTS: usize = 32 * PAGE;

/// The most parts that have bells.
pub const PARTS_MOST: u32 = 64 * 64 * 64;

/// The smallest and the largest ring, as powers of two.
pub const RING_ORDERS: std::ops::RangeInclusive<u32> = 4..=14;

/// The smallest and the largest area, in pages. The smallest one holds two records of any size.
pub const AREA_PAGES: std::ops::RangeInclusive<u32> = 33..=1 << 16;

/// The sizes of an endpoint's part, which its program chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Descriptors in each ring, as a power of two.
    pub ring_order: u32,
    /// Pages of the send area, and of the receive area.
    pub area_pages: u32,
}

/// The sizes of the system endpoint's part, which is the first one of a file.
pub const SYSTEM: Sizes = Sizes { ring_order: 6, area_pages: *AREA_PAGES.start() };

impl Default for Sizes {
    /// 256 descriptors and 256 KiB each way.
    fn default() -> Sizes {
        Sizes { ring_order: 8, area_pages: 64 }
    }
}

impl Sizes {
    /// Returns these sizes if they are within the limits.
    pub fn check(self) -> Option<Sizes> {
        (RING_ORDERS.contains(&self.ring_order) && AREA_PAGES.contains(&self.area_pages)).then_some(self)
    }

    /// Bytes of a part of these sizes: whole pages.
    pub fn bytes(self) -> usize {
        self.send_area() + 2 * self.area_bytes()
    }

    /// Descriptors in a ring.
    pub fn ring(self) -> u32 {
        1 << self.ring_order
    }

    /// Units of an area.
    pub fn area_units(self) -> u32 {
        self.area_pages * (PAGE / UNIT) as u32
    }

    fn area_bytes(self) -> usize {
        self.area_pages as usize * PAGE
    }

    fn ring_bytes(self) -> usize {
        DESCRIPTOR << self.ring_order
    }

    fn send_area(self) -> usize {
        (2 * LINE + 2 * self.ring_bytes()).next_multiple_of(PAGE)
    }
}

/// The words by which a side reports on the ring that it reads. The counts only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cursor {
    /// Descriptors that the program has begun to look at. If it dies, the fate of those between *taken* and *claimed* is unknown. The
    /// daemon has no such word: of its ring that is the first descriptor that is not taken.
    Claimed = 0,
    /// Descriptors that the side has finished with.
    Taken = 1,
    /// Units of the receive area that the program has read. The daemon has no such word, because it reads the send area in no order.
    Read = 2,
    /// Written by the daemon: not 0 if it wants the program to ring when the program has taken something.
    WantsRoom = 3,
}

/// An endpoint's part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it begins, in bytes.
    pub at: usize,
    /// Its sizes, within their limits.
    pub sizes: Sizes,
}

impl Part {
    /// The place of a word that the program writes.
    #[inline(always)]
    pub fn here(self, word: Cursor) -> usize {
        self.at + word as usize * 8
    }

    /// The place of a word that the daemon writes.
    #[inline(always)]
    pub fn there(self, word: Cursor) -> usize {
        self.at + LINE + word as usize * 8
    }

    /// The place of a descriptor in the send ring.
    #[inline(always)]
    pub fn sent(self, position: u64) -> usize {
        self.at + 2 * LINE + self.slot(position)
    }

    /// The place of a descriptor in the receive ring.
    #[inline(always)]
    pub fn received(self, position: u64) -> usize {
        self.at + 2 * LINE + self.sizes.ring_bytes() + self.slot(position)
    }

    /// The send area.
    #[inline(always)]
    pub fn send_area(self) -> usize {
        self.at + self.sizes.send_area()
    }

    /// The receive area.
    #[inline(always)]
    pub fn receive_area(self) -> usize {
        self.send_area() + self.sizes.area_bytes()
    }

    /// The byte behind it.
    pub fn end(self) -> usize {
        self.at + self.sizes.bytes()
    }

    #[inline(always)]
    fn slot(self, position: u64) -> usize {
        (position as usize & (self.sizes.ring() as usize - 1)) * DESCRIPTOR
    }
}

/// A file as one of its two sides sees it. Implementations check every place; no call can reach outside. No call blocks.
///
/// The other side may store anything at any time: each word is loaded once. `publish` is a release and `look` an acquire of the first word;
/// `set_cursor` is a release and `cursor` an acquire. Bells order nothing.
pub trait Segment {
    /// Bytes of the file.
    fn bytes(&self) -> usize;
    /// The descriptor at a place, if it is of this lap.
    fn look(&self, at: usize, lap: u16) -> Option<Words>;
    /// Stores a descriptor, its first word last.
    fn publish(&self, at: usize, words: &Words);
    /// Loads a cursor.
    fn cursor(&self, at: usize) -> u64;
    /// Stores a cursor.
    fn set_cursor(&self, at: usize, value: u64);
    /// Copies bytes out, replacing the contents of `to`.
    fn read(&self, at: usize, len: usize, to: &mut Vec<u8>);
    /// Copies bytes in.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Copies bytes of this file into another one, once.
    fn copy_to(&self, at: usize, len: usize, other: &Self, to: usize);
    /// Rings a part's bell in the tree at `bells`.
    fn ring(&self, bells: usize, part: u32);
    /// Takes bells from the tree at `bells`: calls `rung` for each, and looks at `words` leaf words at most. Bells that it leaves are found
    /// by the next call. One load if no bell was rung.
    fn collect(&self, bells: usize, words: u32, rung: impl FnMut(u32));
    /// Orders stores before it before loads after it, together with the barrier that the other side issues before it sleeps.
    fn light_barrier(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_a_part_do_not_overlap_and_fill_whole_pages() {
        for (ring_order, area_pages) in [(4, 33), (8, 256), (14, 1 << 16), (5, 40)] {
            let sizes = Sizes { ring_order, area_pages }.check().expect("within the limits");
            let part = Part { at: PARTS, sizes };
            let last = u64::from(sizes.ring()) - 1;
            let places = [
                part.here(Cursor::Claimed),
                part.there(Cursor::Claimed),
                part.sent(0),
                part.sent(last),
                part.received(0),
                part.received(last),
                part.send_area(),
                part.receive_area(),
                part.end(),
            ];
            assert!(places.windows(2).all(|pair| pair[0] + LINE <= pair[1]), "{places:?}");
            assert_eq!(part.sent(last + 1), part.sent(0));
            assert_eq!(part.receive_area() - part.send_area(), sizes.area_units() as usize * UNIT);
            assert_eq!([part.send_area(), part.end()].map(|at| at % PAGE), [0, 0]);
        }
    }

    #[test]
    fn sizes_outside_the_limits_are_none() {
        for (ring_order, area_pages) in [(3, 256), (15, 256), (8, 32), (8, (1 << 16) + 1), (u32::MAX, u32::MAX)] {
            assert_eq!(Sizes { ring_order, area_pages }.check(), None);
        }
    }

    #[test]
    fn the_largest_bell_trees_lie_before_the_parts() {
        let words = 1 + 64 + 64 * 64;
        // The root and the words below it begin with a line.
        for room in [TO_PROGRAM - TO_DAEMON, PARTS - TO_PROGRAM] {
            assert!(2 * LINE + words * 8 <= room);
        }
    }
}
