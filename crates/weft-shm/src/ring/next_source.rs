//! Where the producer will likely be given its next payload.
//!
//! Who sends an array piece by piece gives payloads at the same distance from one another. The processor sees that by itself and fetches the
//! next one, but loses the thread once a dozen other pages are used between two messages, as a program with its handlers and tables does:
//! two processes that push and pop 1 KiB out of 64 MiB in turn take 354 ns there and back, 448 if they look at 8 other pages in
//! between, 485 at 16, and 342 and 376 with a source that is at hand (Zen 4, line of 105 ns). So it is asked for by instructions, once two
//! distances were the same.

use crate::copy::{fetch_bytes, Cache};

/// Most bytes that are asked for. The rest is fetched while the payload is copied. 8 KiB there and back take 1,551 ns with 4 KiB and 1,455 with
/// this.
const MOST: usize = 8192;

/// So many go to the first cache, more to the second: few lines can be on their way to the first at once. There and back 1 KiB take 347 ns
/// with the first and 361 with the second, 2 KiB 565 and 535, 4 KiB 898 and 782 (Zen 4, line of 105 ns, one build each).
const FIRST_MOST: usize = 1024;

/// The last payload, and how far it lay behind the one before it.
#[derive(Debug, Default)]
pub(super) struct NextSource {
    last: usize,
    distance: usize,
}

impl NextSource {
    /// A payload was copied: asks for the one behind it if there likely is one. A hint to the processor, nothing is read; to be called
    /// when nobody waits for what comes next.
    #[inline(never)]
    pub(super) fn fetch_behind(&mut self, payload: &[u8]) {
        let Some(distance) = self.note(payload.as_ptr() as usize) else { return };
        let next = payload.as_ptr().wrapping_add(distance);
        match payload.len() {
            bytes if bytes <= FIRST_MOST => fetch_bytes(Cache::First, next, bytes),
            bytes => fetch_bytes(Cache::Second, next, bytes.min(MOST)),
        }
    }

    /// Notes the address of a payload. Gives how far behind it the next one will likely be, backwards too: as far as it is behind the last
    /// one, and that behind the one before.
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
