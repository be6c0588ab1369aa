//! Whether a producer's stores to lines that the consumer had last are slow.
//!
//! Between far cores a single line takes about as long on many machines, but how many lines can be on their way at once differs. On Zen 4
//! stores into a payload that the consumer has read take 10 to 25 ns a line; on Zen 5 storing and reading together take less than 10. The
//! best way to store on the one takes up to three times as long on the other, and only timing the stores tells which it is.

use weft_wire::LINE;

/// Stores are slow from this many nanoseconds per line on.
const SLOW: u64 = 9;

/// Payloads from this size on are timed. Shorter ones fit the store queue, so they seem to be done at once.
pub(super) const TIMED_LEAST: usize = 2048;

/// A payload counts for at most this many nanoseconds per line. More is an interrupt, or a page that is touched for the first time.
const COUNTED_MOST: u64 = 64;

/// Lines of a window, after which it is decided: 1 MiB.
const WINDOW: u64 = 1 << 14;

/// This many windows in a row must be slow, because in the first ones pages are touched for the first time.
const TIMES: u32 = 2;

/// What a producer measures while the consumer is far.
#[derive(Debug, Default)]
pub(super) struct SlowStores {
    /// Lines stored in this window.
    lines: u64,
    /// The time that they took.
    nanoseconds: u64,
    /// How many windows in a row were slow.
    times: u32,
}

impl SlowStores {
    /// Whether stores are slow. Once they are, payloads go past the caches and are not timed any more, so this stays true until
    /// [`SlowStores::forget`].
    #[inline(always)]
    pub(super) fn are_slow(&self) -> bool {
        self.times == TIMES
    }

    /// A payload of `bytes` was stored in that time.
    #[inline(always)]
    pub(super) fn note(&mut self, bytes: usize, nanoseconds: u64) {
        let lines = (bytes / LINE) as u64;
        self.lines += lines;
        self.nanoseconds += nanoseconds.min(COUNTED_MOST * lines);
        if self.lines >= WINDOW {
            let slow = self.nanoseconds >= SLOW * self.lines;
            let times = if slow { TIMES.min(self.times + 1) } else { 0 };
            *self = SlowStores { times, ..SlowStores::default() };
        }
    }

    /// Forgets all: the consumer is near.
    pub(super) fn forget(&mut self) {
        *self = SlowStores::default();
    }
}
