//! Which packets arrived: for acknowledgements, and to recognise duplicates.

use crate::sequence::widen;
use weft_wire::frame::BITMAP_MOST;
use weft_wire::packet::SPAN;

const WORDS: usize = SPAN as usize / 64;

/// What a packet number says about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It did not arrive before.
    New(u64),
    /// It is a duplicate, or its sender does not wait for it.
    Old,
}

/// The packets that arrived, as far as their sender still waits for acknowledgements: at most [`SPAN`] numbers, 128 bytes.
#[derive(Clone, Debug)]
pub struct Received {
    /// Every packet below arrived, or its sender does not wait for it.
    all_below: u64,
    /// One more than the highest that arrived.
    above: u64,
    /// Packets from `all_below` on, bit `number % SPAN`. Outside of the span all are zero.
    bits: [u64; WORDS],
}

impl Received {
    /// No packet arrived yet; the first has this number.
    pub fn new(first: u64) -> Received {
        Received { all_below: first, above: first, bits: [0; WORDS] }
    }

    /// Looks a packet up by the low half of its number, and changes nothing.
    #[inline]
    pub fn look(&self, number: u32) -> Arrival {
        let number = widen(self.above, number);
        // Numbers begin at 0. A number "below" it results from widening an old number or nonsense; 2^63 packets are never sent.
        let is_above = number >= self.above;
        match number > u64::MAX / 2 || (!is_above && (number < self.all_below || self.has(number))) {
            true => Arrival::Old,
            false => Arrival::New(number),
        }
    }

    /// Notes a new packet. Its sender no longer waits for packets more than `behind` (less than [`SPAN`]) before it.
    #[inline]
    pub fn insert(&mut self, number: u64, behind: u16) {
        if number == self.all_below && !self.has_holes() {
            // Nearly always packets arrive in order: no bit is set, and none needs to be.
            (self.all_below, self.above) = (number + 1, number + 1);
            return;
        }
        self.raise(number.saturating_sub(u64::from(behind.min(SPAN - 1))));
        if number < self.all_below {
            return;
        }
        self.above = self.above.max(number + 1);
        let bit = number % u64::from(SPAN);
        self.bits[(bit / 64) as usize] |= 1 << (bit % 64);
        if number == self.all_below {
            self.advance();
        }
    }

    /// Every packet below arrived, or its sender does not wait for it.
    #[inline]
    pub fn all_below(&self) -> u64 {
        self.all_below
    }

    /// Whether a packet is missing below one that arrived.
    #[inline]
    pub fn has_holes(&self) -> bool {
        self.above > self.all_below
    }

    /// Which packets arrived from `all_below` on, one bit each, without trailing zeros.
    pub fn bitmap<'a>(&self, buffer: &'a mut [u8; BITMAP_MOST]) -> &'a [u8] {
        let bits = self.above.saturating_sub(self.all_below).min(u64::from(SPAN));
        let bytes = bits.div_ceil(8) as usize;
        for (at, byte) in buffer[..bytes].iter_mut().enumerate() {
            let from = self.all_below + at as u64 * 8;
            *byte = (0..8).filter(|&i| from + i < self.above && self.has(from + i)).fold(0, |b, i| b | 1 << i);
        }
        &buffer[..bytes]
    }

    /// Whether a packet of the span arrived.
    #[inline]
    fn has(&self, number: u64) -> bool {
        let bit = number % u64::from(SPAN);
        number < self.all_below + u64::from(SPAN) && self.bits[(bit / 64) as usize] >> (bit % 64) & 1 != 0
    }

    /// Forgets the packets below `floor`.
    #[inline]
    fn raise(&mut self, floor: u64) {
        if floor <= self.all_below {
            return;
        }
        if floor - self.all_below >= u64::from(SPAN) {
            self.bits = [0; WORDS];
            self.all_below = floor;
        }
        while self.all_below < floor {
            self.clear_lowest();
        }
        self.above = self.above.max(floor);
        self.advance();
    }

    #[inline]
    fn advance(&mut self) {
        while self.has(self.all_below) {
            self.clear_lowest();
        }
    }

    #[inline]
    fn clear_lowest(&mut self) {
        let bit = self.all_below % u64::from(SPAN);
        self.bits[(bit / 64) as usize] &= !(1 << (bit % 64));
        self.all_below += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn holes_are_told_and_filled() {
        let mut received = Received::new(0);
        for number in [0, 1, 3, 6] {
            assert_eq!(received.look(number as u32), Arrival::New(number));
            received.insert(number, 6);
        }
        assert_eq!((received.all_below(), received.has_holes()), (2, true));
        assert_eq!(received.bitmap(&mut [0; BITMAP_MOST]), [0b10010]);
        assert_eq!(received.look(3), Arrival::Old);
        received.insert(2, 6);
        assert_eq!(received.all_below(), 4);
        received.insert(7, 1);
        assert_eq!((received.all_below(), received.has_holes()), (8, false));
        assert_eq!(received.look(5), Arrival::Old);
    }

    #[test]
    fn copies_are_told_across_the_end_of_32_bits() {
        let mut received = Received::new(0);
        received.insert((1 << 32) - 2, 0);
        for number in (1u64 << 32) - 1..(1 << 32) + 2000 {
            assert_eq!(received.look(number as u32), Arrival::New(number));
            received.insert(number, 100);
            assert_eq!(received.look(number as u32), Arrival::Old);
            assert_eq!(received.all_below(), number + 1);
        }
    }

    proptest! {
        #[test]
        fn any_numbers_are_told_as_a_set_tells_them(
            steps in proptest::collection::vec((0u64..3000, 0u16..1024), 1..400),
            spread in 1u64..3000,
        ) {
            let mut received = Received::new(0);
            let (mut floor, mut came) = (0u64, BTreeSet::new());
            for (at, (number, behind)) in steps.into_iter().enumerate() {
                let number = number % spread + at as u64 * 3;
                let expected = number < floor || came.contains(&number);
                let look = received.look(number as u32);
                prop_assert_eq!(look == Arrival::Old, expected, "packet {}", number);
                if expected {
                    continue;
                }
                received.insert(number, behind);
                floor = floor.max(number.saturating_sub(u64::from(behind)));
                came.insert(number);
                while came.contains(&floor) {
                    floor += 1;
                }
                prop_assert_eq!(received.all_below(), floor);
                let mut buffer = [0; BITMAP_MOST];
                let bitmap = received.bitmap(&mut buffer).to_vec();
                let told: Vec<u64> = (0..bitmap.len() as u64 * 8)
                    .filter(|&i| bitmap[(i / 8) as usize] >> (i % 8) & 1 != 0)
                    .map(|i| floor + i)
                    .collect();
                prop_assert_eq!(told, came.range(floor..).copied().collect::<Vec<_>>());
            }
        }
    }
}
