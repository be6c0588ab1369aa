//! How long payloads are stored.

use weft_wire::record::LARGE_LEAST;
use weft_wire::LINE;

/// How long payloads are stored, by their bytes.
pub(super) struct Ways {
    /// If the cores are near: line by line up to so many, and more as the system copies.
    pub by_lines_most: usize,
    /// If they are far: past the caches from so many on, and less as the system copies.
    pub past_caches_least: usize,
    /// If they are near and the arena is [small](SMALL): past the caches from so many on.
    pub past_caches_least_if_small: usize,
}

/// Lines of an arena that a core's own cache holds: they never leave it, so that the producer has to take each from the consumer's.
pub(super) const SMALL: u32 = (512 << 10) / LINE as u32;

/// Of one-way messages that stream. Those of 8 KiB have 26 GB/s with the system's copy and 18 line by line (line of 110 ns), and 14.4 with
/// the system's copy and 16.5 past the caches (500 ns); those of 1 KiB 1.7 and 3.8 (490 ns, Zen 4), of 512 B 1.8 and 0.8.
pub(super) const WAYS_OF_STREAMS: Ways =
    Ways { by_lines_most: 4096, past_caches_least: LARGE_LEAST, past_caches_least_if_small: usize::MAX };

/// The same, where the consumer evicts what it has read: then what is stored comes from memory. Far, 1 KiB have 12 GB/s through the caches and
/// 3.9 past them, 8 KiB 13.2 and 10.8 (five runs each, line of 490 ns, Zen 4), 16 and 32 KiB 12.5 and 16.1, 12.8 and 18.1 (one run).
/// Near, through a small arena, 64 KiB have 8.6 and 12.3 GB/s (24 runs each, line of 105 to 130 ns, Zen 4).
pub(super) const WAYS_WITH_EVICTION: Ways =
    Ways { by_lines_most: 4096, past_caches_least: 16 << 10, past_caches_least_if_small: 16 << 10 };

/// Of all else. There and back, near: 1 and 2 KiB take 377 and 682 ns with the system's copy, and 260 and 400 line by line; 8 KiB 1,255 and
/// 1,150, and 390 and 312 where nobody reads them. Far: 4 and 8 KiB take 2,570 and 3,420 ns past the caches, and 1,900 and 3,000 with the
/// system's copy, 16 and 32 KiB the same with both (Zen 5). Where stores are slow (see `slow_stores.rs`) large ones go past the caches, too:
/// there 4 and 8 KiB take 2,260 and 3,510 ns past them, and 5,240 and 9,330 with the system's copy (Zen 4).
pub(super) const WAYS: Ways =
    Ways { by_lines_most: 16 << 10, past_caches_least: 32 << 10, past_caches_least_if_small: usize::MAX };
