//! Turns counts of finished work into samples in the same way as `bench/limits/common.c`, so that both are comparable.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The most samples of one run; their memory is allocated before it starts.
const SAMPLES_MOST: usize = 1 << 18;

/// The length of a rate's sample: longer than the bursts between two publications of a ring's head, and shorter than the time
/// slices of other programs on the CPU, so that the median is of slices without them.
const RATE_SAMPLE: Duration = Duration::from_micros(500);

/// The unit of samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Per {
    /// Nanoseconds per item.
    Unit,
    /// Items per second.
    Second,
}

/// Takes samples while something is done repeatedly. The first tenth of the time is warm-up.
#[derive(Debug)]
pub struct Meter {
    per: Per,
    warm_until: Option<Instant>,
    end: Instant,
    sample_start: Instant,
    least: Duration,
    pending: f64,
    units: f64,
    time: Duration,
    samples: Vec<f64>,
}

/// The result of one run. `p99` is the slow tail: for rates, 99 % of the samples were faster.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sampled {
    pub median: f64,
    pub p99: f64,
    /// Of the whole run.
    pub mean: f64,
    pub n: usize,
}

impl Meter {
    /// Starts the clock.
    pub fn start(per: Per, time: Duration) -> Meter {
        let samples = Vec::with_capacity(SAMPLES_MOST);
        let now = Instant::now();
        Meter {
            per,
            warm_until: Some(now + time / 10),
            end: now + time + time / 10,
            sample_start: now,
            least: if per == Per::Unit { Duration::ZERO } else { RATE_SAMPLE.min(time / 5) },
            pending: 0.0,
            units: 0.0,
            time: Duration::ZERO,
            samples,
        }
    }

    /// Counts more finished items. Returns whether to go on.
    #[inline]
    pub fn tick(&mut self, units: f64) -> bool {
        let now = Instant::now();
        self.pending += units;
        match self.warm_until {
            Some(until) if now < until => return true,
            Some(_) => self.warm_until = None,
            None => {
                let passed = now - self.sample_start;
                if passed < self.least || passed.is_zero() {
                    return true;
                }
                self.units += self.pending;
                self.time += passed;
                let ns = passed.as_nanos() as f64;
                self.samples.push(match self.per {
                    Per::Unit => ns / self.pending,
                    Per::Second => self.pending * 1e9 / ns,
                });
            }
        }
        self.sample_start = now;
        self.pending = 0.0;
        self.samples.is_empty() || (now < self.end && self.samples.len() < SAMPLES_MOST)
    }

    /// The result.
    pub fn finish(self) -> Sampled {
        let ns = self.time.as_nanos() as f64;
        let mean = match self.per {
            Per::Unit => ns / self.units,
            Per::Second => self.units * 1e9 / ns,
        };
        Sampled { mean, ..summarize(self.samples, self.per) }
    }
}

/// Median, slow tail and mean of some samples.
pub fn summarize(mut samples: Vec<f64>, per: Per) -> Sampled {
    let n = samples.len();
    if n == 0 {
        return Sampled { median: f64::NAN, p99: f64::NAN, mean: f64::NAN, n };
    }
    samples.sort_by(f64::total_cmp);
    let tail = (n - 1) * 99 / 100;
    let tail = if per == Per::Unit { tail } else { n - 1 - tail };
    let mean = samples.iter().sum::<f64>() / n as f64;
    Sampled { median: samples[n / 2], p99: samples[tail], mean, n }
}

/// The median of a few values; for an even number, the mean of the two in the middle. `None` if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_slow_one_for_times_and_for_rates() {
        let samples: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(summarize(samples.clone(), Per::Unit).p99, 198.0);
        assert_eq!(summarize(samples, Per::Second).p99, 3.0);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median([4.0, 1.0, f64::NAN, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }
}
