//! Where the producer will likely be given its next payload.
//!
//! A program that sends an array piece by piece gives payloads at equal distances. The processor recognises such a sequence and prefetches
//! the next payload, but loses it once a dozen other pages are used between two messages, as a program with its handlers and tables does.
//! So the producer prefetches the next payload itself once two distances were the same: 1 KiB there and back then takes 374 ns instead of
//! 428 (docs/design/payloads.md).

use crate::copy::{fetch_bytes, Cache};

/// The most bytes that are prefetched; the rest is fetched while the payload is copied. 4 KiB would be too few for a payload of 8 KiB.
const MOST: usize = 8192;

/// Payloads of up to this many bytes are prefetched into the first cache, longer ones into the second: only few lines can be on their way
/// to the first at once, which makes it slower from 2 KiB on.
const FIRST_MOST: usize = 1024;

/// The last payload, and how far it lay behind the one before it.
#[derive(Debug, Default)]
pub(super) struct NextSource {
    last: usize,
    distance: usize,
}

impl NextSource {
    /// A payload was copied: prefetches the next one if there likely is one. Nothing is read. Call it when nobody waits for this thread.
    #[inline(never)]
    pub(super) fn fetch_behind(&mut self, payload: &[u8]) {
        let Some(distance) = self.note(payload.as_ptr() as usize) else { return };
        let next = payload.as_ptr().wrapping_add(distance);
        match payload.len() {
            bytes if bytes <= FIRST_MOST => fetch_bytes(Cache::First, next, bytes),
            bytes => fetch_bytes(Cache::Second, next, bytes.min(MOST)),
        }
    }

    /// Notes the address of a payload. Returns the likely distance to the next one, which may be backwards, if the last two distances were
    /// the same.
    #[inline(always)]
    fn note(&mut self, at: usize) -> Option<usize> {
        let distance = at.wrapping_sub(self.last);
        let is_same = distance == self.distance && distance != 0;
        *self = NextSource { last: at, distance };
        is_same.then_some(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_source_is_known_once_two_distances_were_the_same_and_are_not_zero() {
        let expected = |addresses: &[usize]| {
            let mut source = NextSource::default();
            addresses.iter().map(|&at| source.note(at).map(|distance| at.wrapping_add(distance))).collect::<Vec<_>>()
        };
        assert_eq!(
            expected(&[9000, 9100, 9200, 9300, 9350, 9400]),
            [None, None, Some(9300), Some(9400), None, Some(9450)]
        );
        assert_eq!(expected(&[9000, 8000, 7000]), [None, None, Some(6000)]);
        assert_eq!(expected(&[9000, 9000, 9000, 9000]), [None; 4]);
    }
}
