//! The modes of a histogram.

use crate::histogram::Histogram;
use std::time::Duration;

/// Classes per factor of two in which peaks are looked for: finer classes would show accidental peaks.
const FINE: u32 = 2;

/// A second peak has at least this share of all durations.
const PART_LEAST: f64 = 0.01;

/// Two peaks are distinct if the counts between them fall to this part of the lower one.
const VALLEY_MOST: f64 = 0.5;

/// The highest peak, and the highest other one behind a valley, sorted by duration.
pub(super) fn modes(histogram: &Histogram) -> Vec<Duration> {
    let coarse = coarse(histogram);
    let Some(first) = (0..coarse.len()).max_by_key(|at| coarse[*at].1) else { return Vec::new() };
    let is_second = |at: &usize| {
        let (low, high) = (first.min(*at), first.max(*at));
        let valley = coarse[low..=high].iter().map(|class| class.1).min().unwrap_or(0) as f64;
        let count = coarse[*at].1 as f64;
        count >= histogram.len() as f64 * PART_LEAST && valley <= count * VALLEY_MOST
    };
    let second = (0..coarse.len()).filter(is_second).max_by_key(|at| coarse[*at].1);
    let mut found: Vec<usize> = std::iter::once(first).chain(second).collect();
    found.sort_unstable();
    found.into_iter().map(|at| coarse[at].0).collect()
}

/// The counts in wider classes, each with the duration in its middle.
fn coarse(histogram: &Histogram) -> Vec<(Duration, u64)> {
    let mut coarse: Vec<(Duration, u64)> = Vec::new();
    let class_of = |nanos: f64| (nanos.max(1.0).log2() * f64::from(FINE)).floor();
    let Some(least) = histogram.classes().map(|(top, _)| class_of(top.as_nanos() as f64)).reduce(f64::min) else {
        return coarse;
    };
    for (top, count) in histogram.classes() {
        let at = (class_of(top.as_nanos() as f64) - least) as usize;
        while coarse.len() <= at {
            let middle = 2f64.powf((least + coarse.len() as f64 + 0.5) / f64::from(FINE));
            coarse.push((Duration::from_nanos(middle as u64), 0));
        }
        coarse[at].1 += u64::from(count);
    }
    coarse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(counts: &[(u64, u64)]) -> Histogram {
        let mut histogram = Histogram::new(5);
        counts
            .iter()
            .for_each(|(micros, count)| (0..*count).for_each(|_| histogram.add(Duration::from_micros(*micros))));
        histogram
    }

    #[test]
    fn two_kinds_of_round_trips_are_two_modes_but_a_shoulder_is_not() {
        let found = |counts: &[(u64, u64)]| -> Vec<u128> {
            modes(&histogram(counts)).iter().map(|mode| mode.as_micros().ilog2().into()).collect()
        };
        assert_eq!(found(&[(20, 100), (1000, 50)]), [4, 9], "sorted by duration");
        assert_eq!(found(&[(1000, 100), (20, 50)]), [4, 9]);
        let shoulder = [(20, 100), (28, 90), (40, 80), (57, 70), (80, 60)];
        assert_eq!(found(&shoulder), [4], "no valley");
        assert_eq!(found(&[(20, 1000), (1000, 5)]), [4], "too few");
        assert_eq!(found(&[]), [0u128; 0]);
    }
}
