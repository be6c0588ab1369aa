//! A window on a stream's bytes, laid out in slots as full packets will have them, so that packets are sent without a copy.

use crate::memory::{Memory, Packets};
use std::ops::Range;
use weft_wire::frame::RECORDS_HEADER;
use weft_wire::packet::{checksum_of, Integrity, Shift, HEADER};

/// Room before each cut for the packet's headers.
pub(crate) const AHEAD: usize = HEADER + RECORDS_HEADER;

/// Memory for the bytes of a stream between two rising offsets, in a ring of slots. A *cut* is the part of the stream
/// in one slot.
///
/// ```text
/// | room, cut 0 | room, cut 1 | ... | room, cut n-1 |      the stream's bytes from `origin` on; after one lap it moves up
/// ```
#[derive(Debug)]
pub(crate) struct Cuts<M> {
    memory: M,
    /// The checksums of cuts that were written in one piece. They are computed on write, while the bytes are in the
    /// cache anyway.
    sums: Vec<Option<u32>>,
    /// With [`Integrity::Header`] none are computed.
    integrity: Integrity,
    shift: Shift,
    /// Bytes of a cut.
    cut: u64,
    /// 2^64 / cut, rounded up: to multiply instead of divide.
    reciprocal: u64,
    /// Bytes of the stream in all slots.
    lap: u64,
    /// Where the bytes of the first slot begin: at most a lap below the kept bytes.
    origin: u64,
}

/// A packet that lies ready except for its headers.
pub(crate) struct Whole<'a> {
    pub packet: &'a mut [u8],
    /// The checksum of its bytes, and what is needed to combine it with that of the headers.
    pub sum: Option<(u32, &'a Shift)>,
    /// How much the checksum has to cover, if that of the bytes is not known.
    pub covered: usize,
}

impl<M: Memory> Cuts<M> {
    /// Creates room for the bytes from `kept` to before `to`, in packets of `packet` bytes, one of which begins at `edge`.
    pub fn new(kept: u64, to: u64, edge: u64, packet: usize, integrity: Integrity) -> Cuts<M> {
        let cut = (packet - AHEAD) as u64;
        let before = edge.saturating_sub(kept).div_ceil(cut) * cut;
        // Near the beginning of a stream no cut can begin below zero; then cuts begin at `kept` instead.
        let origin = edge.checked_sub(before).unwrap_or(kept);
        let slots = (to - origin).div_ceil(cut) as usize;
        Cuts {
            memory: M::zeroed(slots * packet),
            sums: vec![None; slots],
            integrity,
            shift: Shift::new(cut as usize),
            cut,
            reciprocal: u64::MAX / cut + 1,
            lap: slots as u64 * cut,
            origin,
        }
    }

    /// Whether all bytes from `kept` to before `to` have room.
    #[inline]
    pub fn has_room(&self, kept: u64, to: u64) -> bool {
        let (_, within) = self.place(kept);
        to - (kept - within as u64) <= self.lap
    }

    /// The bytes below `kept` are no longer needed.
    #[inline]
    pub fn forget(&mut self, kept: u64) {
        while kept >= self.origin + self.lap {
            self.origin += self.lap;
        }
    }

    /// Appends bytes.
    #[inline]
    pub fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (slot, within) = self.place(at);
            let (piece, rest) = bytes.split_at(bytes.len().min(self.cut as usize - within));
            if within == 0 {
                let is_summed = piece.len() == self.cut as usize && self.integrity == Integrity::Full;
                self.sums[slot] = is_summed.then(|| checksum_of(piece));
            }
            let start = self.start(slot) + within;
            self.memory.as_mut()[start..start + piece.len()].copy_from_slice(piece);
            (at, bytes) = (at + piece.len() as u64, rest);
        }
    }

    /// The bytes from `at` on, in two pieces if they lie in two cuts; at most what both hold.
    #[inline]
    pub fn slices(&self, at: u64, len: usize) -> [&[u8]; 2] {
        let (slot, within) = self.place(at);
        let first = len.min(self.cut as usize - within);
        let start = self.start(slot) + within;
        let next = self.start(if slot + 1 == self.sums.len() { 0 } else { slot + 1 });
        let second = (len - first).min(self.cut as usize);
        let memory = self.memory.as_ref();
        [&memory[start..start + first], &memory[next..next + second]]
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, mut at: u64, mut to: &mut [u8]) {
        while !to.is_empty() {
            let [bytes, _] = self.slices(at, to.len());
            let (now, later) = to.split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            (at, to) = (at + bytes.len() as u64, later);
        }
    }

    /// Where the cut of an offset begins.
    #[inline]
    pub fn beginning(&self, at: u64) -> u64 {
        at - self.place(at).1 as u64
    }

    /// Bytes of a cut.
    #[inline]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// The packet of a cut that begins there, or of its first `len` bytes.
    #[inline]
    pub fn whole(&mut self, at: u64, len: usize) -> Whole<'_> {
        let (slot, _) = self.place(at);
        let start = self.start(slot);
        let sum = self.sums[slot].filter(|_| len == self.cut as usize).map(|sum| (sum, &self.shift));
        Whole { packet: &mut self.memory.as_mut()[start - AHEAD..start + len], sum, covered: AHEAD + len }
    }

    /// Where the packet of a cut lies in the memory, and how many slots there are from it to the end.
    #[inline]
    pub fn position(&self, at: u64) -> (usize, usize) {
        let (slot, _) = self.place(at);
        (self.start(slot) - AHEAD, self.sums.len() - slot)
    }

    /// Packets in a row.
    #[inline]
    pub fn packets(&self, place: Range<usize>) -> Packets<'_, M> {
        Packets { memory: &self.memory, place }
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        std::mem::size_of::<Self>()
            + self.memory.as_ref().len()
            + self.sums.capacity() * std::mem::size_of::<Option<u32>>()
    }

    /// The slot that an offset lies in, and where in it.
    #[inline]
    fn place(&self, at: u64) -> (usize, usize) {
        let mut from = at - self.origin;
        if from >= self.lap {
            from -= self.lap;
        }
        // Exact, because a window is far below 2^32 bytes.
        let slot = (u128::from(from) * u128::from(self.reciprocal)) >> 64;
        (slot as usize, (from - slot as u64 * self.cut) as usize)
    }

    /// Where a slot's bytes begin.
    #[inline]
    fn start(&self, slot: usize) -> usize {
        slot * (self.cut as usize + AHEAD) + AHEAD
    }
}
