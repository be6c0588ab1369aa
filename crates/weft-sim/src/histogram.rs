//! Counts of durations, for percentiles.

use std::time::Duration;

/// Durations in classes whose width is a fixed part of their size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// Classes per power of two, as a power of two.
    fine: u32,
    counts: Vec<u32>,
    total: u64,
    largest: u64,
}

impl Histogram {
    /// An empty histogram. A class is at most a 2^-`fine` part wide: 5 gives 3 %.
    pub fn new(fine: u32) -> Histogram {
        Histogram { fine: fine.min(10), counts: Vec::new(), total: 0, largest: 0 }
    }

    /// Counts a duration.
    #[inline]
    pub fn add(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let class = self.class(nanos);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] = self.counts[class].saturating_add(1);
        self.total += 1;
        self.largest = self.largest.max(nanos);
    }

    /// Adds the counts of another histogram with the same classes.
    ///
    /// # Panics
    /// If its classes differ.
    pub fn merge(&mut self, other: &Histogram) {
        assert_eq!(self.fine, other.fine, "equal classes");
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.total += other.total;
        self.largest = self.largest.max(other.largest);
    }

    /// Forgets all durations.
    pub fn clear(&mut self) {
        self.counts.clear();
        (self.total, self.largest) = (0, 0);
    }

    /// Durations counted.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether none was counted.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The duration that `per_10000` of 10,000 do not exceed, to within the width of a class; the largest duration is exact.
    pub fn quantile(&self, per_10000: u32) -> Duration {
        let wanted = (u128::from(self.total) * u128::from(per_10000)).div_ceil(10_000) as u64;
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted.max(1) {
                return Duration::from_nanos(self.top(class).min(self.largest));
            }
        }
        Duration::from_nanos(self.largest)
    }

    /// The classes that are not empty: the largest duration of each, and its count.
    pub fn classes(&self) -> impl Iterator<Item = (Duration, u32)> + '_ {
        let classes = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        classes.map(|(class, count)| (Duration::from_nanos(self.top(class)), *count))
    }

    #[inline]
    fn class(&self, nanos: u64) -> usize {
        let bits = 64 - nanos.leading_zeros();
        match bits.checked_sub(self.fine + 1) {
            None => nanos as usize,
            // The leading bit and the `fine` bits behind it.
            Some(shift) => ((shift as usize) << self.fine) + (nanos >> shift) as usize,
        }
    }

    /// The largest duration of a class.
    fn top(&self, class: usize) -> u64 {
        let first = 2usize << self.fine;
        if class < first {
            return class as u64;
        }
        let shift = (class >> self.fine) - 1;
        let head = (class - (shift << self.fine)) as u64;
        (((u128::from(head) + 1) << shift) - 1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_without_gap() {
        let histogram = Histogram::new(3);
        let mut last = 0;
        for nanos in 0..100_000u64 {
            let class = histogram.class(nanos);
            assert!(class == last || class == last + 1, "{nanos}");
            assert!(histogram.top(class) >= nanos && histogram.top(class) - nanos <= nanos / 8);
            last = class;
        }
        assert_eq!(histogram.top(histogram.class(u64::MAX)), u64::MAX);
    }

    #[test]
    fn quantiles_are_within_a_class() {
        let mut histogram = Histogram::new(5);
        (1..=10_000).for_each(|n| histogram.add(Duration::from_nanos(n * 100)));
        for per_10000 in [1, 100, 5000, 9900, 9999, 10_000] {
            let (exact, found) = (u64::from(per_10000) * 100, histogram.quantile(per_10000).as_nanos() as u64);
            assert!((exact..=exact + exact / 32 + 1).contains(&found), "{per_10000}: {found}");
        }
        assert_eq!(histogram.quantile(10_000), Duration::from_millis(1));
    }
}
