//! In which way long payloads are stored. docs/design/payloads.md has the reasons, docs/measurements/2026-11-payloads.md the figures.

use weft_wire::record::LARGE_LEAST;
use weft_wire::LINE;

/// The sizes in bytes at which the way changes. Payloads outside these ranges are copied by the system's `memcpy`.
pub(super) struct Ways {
    /// Near cores: line by line up to this size.
    pub by_lines_most: usize,
    /// Far cores: past the caches from this size on.
    pub past_caches_least: usize,
    /// Near cores and a [small](SMALL) arena: past the caches from this size on.
    pub past_caches_least_if_small: usize,
}

/// The most lines of a *small* arena. A core's own cache holds all of it, so lines never leave that cache, and the producer has to take
/// each from the consumer's.
pub(super) const SMALL: u32 = (512 << 10) / LINE as u32;

/// For one-way messages that stream. Near cores: `memcpy` is faster than line by line at 8 KiB. Far cores: 1 KiB is twice as fast past the
/// caches, 512 B half as fast.
pub(super) const WAYS_OF_STREAMS: Ways =
    Ways { by_lines_most: 4096, past_caches_least: LARGE_LEAST, past_caches_least_if_small: usize::MAX };

/// For streams whose consumer evicts what it has read, so that the producer's lines come from memory. Between far cores, going through
/// the caches is then faster up to 8 KiB, past them from 16 KiB on. Between near cores with a small arena, 64 KiB have 12.3 GB/s past the
/// caches, and 8.6 through them.
pub(super) const WAYS_WITH_EVICTION: Ways =
    Ways { by_lines_most: 4096, past_caches_least: 16 << 10, past_caches_least_if_small: 16 << 10 };

/// For requests, replies and all other records. Near cores: 1 KiB there and back takes 260 ns line by line, 377 with `memcpy`. Far cores:
/// `memcpy` is faster up to 8 KiB, and both ways are equal from 16 KiB on. Where stores are slow (see `slow_stores.rs`), payloads of
/// `LARGE_LEAST` bytes or more go past the caches, too.
pub(super) const WAYS: Ways =
    Ways { by_lines_most: 16 << 10, past_caches_least: 32 << 10, past_caches_least_if_small: usize::MAX };
