//! The bytes of a stream that its writer keeps: few in a small ring, many laid out as packets.

use crate::bytes::Bytes;
use crate::cuts::{Cuts, Whole, AHEAD};
use crate::memory::Memory;
use weft_wire::packet::Integrity;

/// More bytes than this are laid out in cuts. Request/reply traffic stays below it, in less memory than a few packets take.
const FEW: u64 = 32 << 10;

/// A window on a stream's bytes.
#[derive(Debug)]
pub(crate) struct Kept<M> {
    few: Bytes,
    many: Option<Box<Cuts<M>>>,
    /// The packet size of the layout.
    packet: usize,
    integrity: Integrity,
}

/// The bounds of the kept bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub from: u64,
    /// The next byte to send, which should lie at the beginning of a cut.
    pub edge: u64,
    pub end: u64,
}

impl<M: Memory> Kept<M> {
    /// An empty window, for packets of `packet` bytes.
    pub fn new(packet: usize) -> Kept<M> {
        Kept { few: Bytes::default(), many: None, packet, integrity: Integrity::Full }
    }

    /// Makes room up to before `to`, which is at most `most` bytes from the beginning.
    #[inline]
    pub fn reserve(&mut self, window: Window, to: u64, most: u64) {
        match &self.many {
            None if to - window.from <= FEW => self.few.reserve(window.from, window.end, to),
            Some(cuts) if cuts.has_room(window.from, to) => {}
            _ => self.lay_out(window, (to - window.from).next_power_of_two().min(most)),
        }
    }

    /// Changes the packet size.
    #[inline]
    pub fn fit(&mut self, packet: usize, window: Window, most: u64) {
        if self.packet != packet {
            self.packet = packet;
            if self.many.is_some() {
                self.lay_out(window, most);
            }
        }
    }

    /// Appends bytes for which room was made.
    #[inline]
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        match &mut self.many {
            None => self.few.write(at, bytes),
            Some(cuts) => cuts.write(at, bytes),
        }
    }

    /// The bytes from `at` on, at most as many as a packet has, in two pieces if necessary.
    #[inline]
    pub fn slices(&self, at: u64, len: usize) -> [&[u8]; 2] {
        match &self.many {
            None => self.few.slices(at, len),
            Some(cuts) => cuts.slices(at, len),
        }
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, at: u64, to: &mut [u8]) {
        match &self.many {
            None => self.few.read(at, to),
            Some(cuts) => cuts.read(at, to),
        }
    }

    /// `N` bytes, by value.
    #[inline]
    pub fn array<const N: usize>(&self, at: u64) -> [u8; N] {
        match &self.many {
            None => self.few.array(at),
            Some(cuts) => {
                let mut bytes = [0; N];
                cuts.read(at, &mut bytes);
                bytes
            }
        }
    }

    /// The bytes below `from` are no longer needed.
    #[inline]
    pub fn forget(&mut self, from: u64) {
        if let Some(cuts) = &mut self.many {
            cuts.forget(from);
        }
    }

    /// Sets what checksums cover from now on. Checksums that were computed stay.
    pub fn set_integrity(&mut self, integrity: Integrity) {
        self.integrity = integrity;
    }

    /// What checksums cover.
    #[inline]
    pub fn integrity(&self) -> Integrity {
        self.integrity
    }

    /// The packet size of the layout, now or once there is one.
    #[inline]
    pub fn packet(&self) -> usize {
        self.packet
    }

    /// The cuts, if the bytes are laid out in cuts.
    #[inline]
    pub fn cuts(&self) -> Option<&Cuts<M>> {
        self.many.as_deref()
    }

    /// The packet of a cut, see [`Cuts::whole`].
    #[inline]
    pub fn whole(&mut self, at: u64, len: usize) -> Option<Whole<'_>> {
        self.many.as_mut().map(|cuts| cuts.whole(at, len))
    }

    /// Frees the memory.
    pub fn free(&mut self) {
        self.few.free();
        self.many = None;
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.few.memory() + self.many.as_ref().map_or(0, |cuts| cuts.memory())
    }

    /// Lays out room for `bytes` bytes in cuts, and copies the kept ones there.
    #[cold]
    fn lay_out(&mut self, window: Window, bytes: u64) {
        let Window { from, edge, end } = window;
        // The first and the last cut may be used in part only.
        let to = from + bytes + (self.packet - AHEAD) as u64;
        let mut cuts = Cuts::new(from, to, edge, self.packet, self.integrity);
        let mut piece = [0; 512];
        let mut at = from;
        while at < end {
            let piece = &mut piece[..(end - at).min(512) as usize];
            self.read(at, piece);
            cuts.write(at, piece);
            at += piece.len() as u64;
        }
        self.few.free();
        self.many = Some(Box::new(cuts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_wire::packet::checksum_of;

    const MOST: u64 = 100_000;

    proptest! {
        #[test]
        fn kept_bytes_survive_every_layout_and_lie_in_their_packets(
            start in prop_oneof![0u64..10_000, (1u64 << 33)..(1 << 33) + 10_000],
            steps in proptest::collection::vec((1usize..20_000, 0u64..20_000, any::<u8>()), 1..40),
        ) {
            let mut kept = Kept::<Vec<u8>>::new(1472);
            let mut model = Vec::new();
            let (mut from, mut edge) = (start, start);
            for (nth, (push, pop, how)) in steps.into_iter().enumerate() {
                let end = start + model.len() as u64;
                let push = push.min((MOST - (end - from)) as usize);
                let window = Window { from, edge, end };
                if how % 16 == 0 {
                    kept.fit([548, 1200, 1472, 8972][usize::from(how >> 6)], window, MOST);
                }
                let new: Vec<u8> = (0..push).map(|i| (i * 31 + nth) as u8).collect();
                kept.reserve(window, end + push as u64, MOST);
                kept.write(end, &new);
                model.extend(new);
                let end = start + model.len() as u64;
                let at = |offset: u64| (offset - start) as usize;
                let mut all = vec![0; (end - from) as usize];
                kept.read(from, &mut all);
                prop_assert_eq!(&all, &model[at(from)..]);
                if end - from >= 500 {
                    let middle = from + (end - from) / 2;
                    prop_assert_eq!(kept.slices(middle, 250).concat(), &model[at(middle)..at(middle) + 250]);
                    prop_assert_eq!(&kept.array::<16>(middle)[..], &model[at(middle)..at(middle) + 16]);
                }
                // The next packet may begin with bytes that were sent before, but with none that were not written.
                while let Some((cut, first)) = kept.cuts().map(|cuts| (cuts.cut(), cuts.beginning(edge))) {
                    if first + cut > end {
                        break;
                    }
                    let Whole { packet, sum, .. } = kept.whole(first, cut as usize).expect("cuts");
                    let bytes = &model[at(first)..at(first + cut)];
                    prop_assert_eq!(&packet[AHEAD..], bytes);
                    prop_assert!(sum.is_none_or(|(sum, _)| sum == checksum_of(bytes)));
                    packet[..AHEAD].fill(0xee);
                    edge = first + cut;
                }
                edge = edge.max(end - (end - edge) / 2);
                from = (from + pop).min(edge);
                kept.forget(from);
            }
            prop_assert!(kept.memory() < 2 * MOST as usize + 40_000);
        }
    }
}
