//! Whether lines come slowly into the producer's hands when it stores to them, one after the other, and the consumer had them last.
//!
//! Between far cores a line takes about as long on many machines, but how many are on their way at once differs. On Zen 4 (lines of 490 ns
//! there and back) stores into a payload that the consumer has read take 10 to 25 ns a line, and 1 to 4 where nobody reads. On Zen 5 they must
//! take less than 10, for there storing and reading do together. So what is best on the one takes up to three times as long on the
//! other, and only the stores tell which it is.

use weft_wire::LINE;

/// Nanoseconds for each line from which on stores are slow.
const SLOW: u64 = 9;

/// Payloads of so many bytes and more are timed. Shorter ones fit the queue of stores, so that they seem to be done at once.
pub(super) const TIMED_LEAST: usize = 2048;

/// More are not counted: then it was an interrupt, or a page that is touched for the first time.
const COUNTED_MOST: u64 = 64;

/// Lines after which it is decided, 1 MiB.
const WINDOW: u64 = 1 << 14;

/// So many windows in a row must have been slow: in the first ones pages are touched for the first time.
const TIMES: u32 = 2;

/// What a producer keeps of it, while the consumer is far.
#[derive(Debug, Default)]
pub(super) struct SlowStores {
    /// Of this window.
    lines: u64,
    nanoseconds: u64,
    /// How many windows in a row were slow.
    times: u32,
}

impl SlowStores {
    /// Whether stores are slow. Once they are, nothing is stored into the consumer's cache anymore, so that it stays so.
    #[inline(always)]
    pub(super) fn are_slow(&self) -> bool {
        self.times == TIMES
    }

    /// A payload of so many bytes was stored within that time.
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

    /// The consumer is near.
    pub(super) fn forget(&mut self) {
        *self = SlowStores::default();
    }
}
