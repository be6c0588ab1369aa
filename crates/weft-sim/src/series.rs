//! Figures over time: at most a few hundred samples, however long the run is.

use crate::histogram::Histogram;
use std::time::Duration;

/// What happened in one interval.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Payload and argument bytes of messages that were delivered.
    pub bytes: u64,
    /// Messages that were delivered.
    pub messages: u64,
    /// The longest queue at the beginning of any link, in bytes.
    pub queue_most: u64,
    /// Time from the call that sends a message to its handler.
    pub latency: Histogram,
}

/// Samples of equal intervals, from the beginning on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    /// The length of an interval.
    pub interval: Duration,
    /// One for each interval.
    pub samples: Vec<Sample>,
}

/// The most samples. At this number, pairs are merged and the interval doubles.
const SAMPLES_MOST: usize = 512;

/// The first interval, in nanoseconds.
const INTERVAL: u64 = 10_000;

impl Sample {
    fn new() -> Sample {
        Sample { bytes: 0, messages: 0, queue_most: 0, latency: Histogram::new(3) }
    }

    fn merge(&mut self, other: &Sample) {
        self.bytes += other.bytes;
        self.messages += other.messages;
        self.queue_most = self.queue_most.max(other.queue_most);
        self.latency.merge(&other.latency);
    }
}

/// Collects samples.
#[derive(Debug)]
pub(crate) struct Sampler {
    interval: u64,
    /// When the present interval ends.
    until: u64,
    present: Sample,
    samples: Vec<Sample>,
    pub last_delivery: u64,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler { interval: INTERVAL, until: INTERVAL, present: Sample::new(), samples: Vec::new(), last_delivery: 0 }
    }
}

impl Sampler {
    #[inline]
    pub fn note_queue(&mut self, now: u64, bytes: u64) {
        self.roll(now);
        self.present.queue_most = self.present.queue_most.max(bytes);
    }

    #[inline]
    pub fn note_delivery(&mut self, now: u64, bytes: usize, latency: Duration) {
        self.roll(now);
        self.last_delivery = now;
        self.present.bytes += bytes as u64;
        self.present.messages += 1;
        self.present.latency.add(latency);
    }

    /// All samples until now.
    pub fn series(&self) -> Series {
        let mut samples = self.samples.clone();
        samples.push(self.present.clone());
        Series { interval: Duration::from_nanos(self.interval), samples }
    }

    #[inline]
    fn roll(&mut self, now: u64) {
        if now >= self.until {
            self.begin_new(now);
        }
    }

    #[cold]
    fn begin_new(&mut self, now: u64) {
        while now >= self.until {
            self.samples.push(std::mem::replace(&mut self.present, Sample::new()));
            self.until += self.interval;
            if self.samples.len() == SAMPLES_MOST {
                self.halve();
            }
        }
    }

    fn halve(&mut self) {
        let pairs = self.samples.chunks(2).map(|pair| {
            let mut both = pair[0].clone();
            pair[1..].iter().for_each(|other| both.merge(other));
            both
        });
        self.samples = pairs.collect();
        self.interval *= 2;
        self.until = self.interval * (self.samples.len() as u64 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_forgotten_when_intervals_grow() {
        let mut sampler = Sampler::default();
        for n in 0..100_000u64 {
            sampler.note_delivery(n * 1_000_000, 3, Duration::from_micros(n));
            sampler.note_queue(n * 1_000_000, n);
        }
        let series = sampler.series();
        assert!(series.samples.len() <= SAMPLES_MOST + 1);
        assert_eq!(series.samples.iter().map(|s| s.bytes).sum::<u64>(), 300_000);
        assert_eq!(series.samples.iter().map(|s| s.latency.len()).sum::<u64>(), 100_000);
        assert_eq!(series.samples.last().map(|s| s.queue_most), Some(99_999));
        let covered = series.interval * series.samples.len() as u32;
        assert!(covered >= Duration::from_secs(99) && covered < Duration::from_secs(101), "{covered:?}");
    }
}
