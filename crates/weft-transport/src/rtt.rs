//! The round-trip time, estimated from reflected time stamps, and how long to wait for an answer.

use crate::random::Random;
use crate::time::nanos;
use std::time::Duration;

/// The timeout before anything was measured, in nanoseconds: longer than a round trip within a continent.
pub const INITIAL_TIMEOUT: u64 = 100_000_000;

/// The minimum allowance for a peer that was not running when the packet arrived.
const GRANULARITY: u64 = 1_000_000;

/// Samples are clamped to this, so that a peer that reflects nonsense cannot make us wait for ever. Nanoseconds, like
/// the next two.
const SAMPLE_MOST: u64 = 10_000_000_000;

/// The resolution of time stamps.
const SAMPLE_LEAST: u64 = 1000;

/// A peer that claims to have held a time stamp for longer counts as busy for this long.
const BUSY_MOST: u64 = 10_000_000;

/// The estimate: means and a deviation, with the weights of RFC 6298, section 2, and the minimum seen.
///
/// The *round trip* is the time in the network. An *answer* takes longer if hosts are busy, because packets wait there
/// until a program polls. Timeouts use answers; queue estimates use round trips.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtt {
    estimate: Option<Estimate>,
}

/// In nanoseconds: it is used for each packet, and converting a [`Duration`] takes divisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Estimate {
    smoothed: u64,
    least: u64,
    answer: u64,
    /// Of answers.
    deviation: u64,
}

impl Rtt {
    /// Takes a sample from one of our time stamps, which is read at `now`, was held by the peer for `held`, and waited
    /// here for `lay`.
    ///
    /// Time stamps and `held` are in microseconds, and stamps wrap around at 32 bits; everything else is in
    /// nanoseconds. A time stamp from the future, or one held for longer than it was away, gives no sample. Holding it
    /// up to `ack_delay` is intended and does not count as busy. Returns the round trip.
    #[inline]
    pub fn on_reflected(&mut self, now: u32, lay: u64, sent_at: u32, held: u16, ack_delay: u64) -> Option<u64> {
        let away = now.wrapping_sub(sent_at);
        if held == u16::MAX || away > i32::MAX as u32 {
            return None;
        }
        let under_way = u64::from(away.checked_sub(u32::from(held))?) * 1000;
        let busy = (u64::from(held) * 1000).saturating_sub(ack_delay).min(BUSY_MOST);
        // Time stamps are whole microseconds, so `lay` may seem longer than the time away.
        let sample = under_way.saturating_sub(lay);
        self.on_sample(sample, under_way + busy);
        Some(sample)
    }

    /// Takes a sample: a round trip, and the time to its answer, in nanoseconds.
    #[inline]
    pub fn on_sample(&mut self, sample: u64, answered: u64) {
        let [sample, answered] = [sample, answered].map(|time| time.clamp(SAMPLE_LEAST, SAMPLE_MOST));
        self.estimate = Some(match self.estimate {
            None => Estimate { smoothed: sample, least: sample, answer: answered, deviation: answered / 2 },
            Some(Estimate { smoothed, least, answer, deviation }) => Estimate {
                smoothed: (smoothed * 7 + sample) / 8,
                least: least.min(sample),
                answer: (answer * 7 + answered) / 8,
                deviation: (deviation * 3 + answered.abs_diff(answer)) / 4,
            },
        });
    }

    /// The smoothed round-trip time, once there was a sample.
    #[inline]
    pub fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|e| Duration::from_nanos(e.smoothed))
    }

    /// The shortest round trip seen: the path without queues.
    #[inline]
    pub fn least(&self) -> Option<Duration> {
        self.estimate.map(|e| Duration::from_nanos(e.least))
    }

    /// Both in nanoseconds; zero before there was a sample.
    #[inline]
    pub(crate) fn smoothed_and_least(&self) -> (u64, u64) {
        self.estimate.map_or((0, 0), |e| (e.smoothed, e.least))
    }

    /// How long to wait for the acknowledgement of a packet, if the peer may hold it back for `ack_delay`. Nanoseconds.
    #[inline]
    pub fn timeout(&self, ack_delay: u64) -> u64 {
        match self.estimate {
            Some(e) => e.answer + (e.deviation * 4).max(GRANULARITY) + ack_delay,
            None => INITIAL_TIMEOUT,
        }
    }

    /// How much later than its neighbours a packet may arrive before it is declared lost, in nanoseconds.
    #[inline]
    pub fn patience(&self) -> u64 {
        self.estimate.map_or(INITIAL_TIMEOUT, |e| e.answer + (e.answer / 8).max(e.deviation))
    }
}

/// Nanoseconds as microseconds, for a reflected time stamp; saturates.
#[inline]
pub fn short_micros(nanos: u64) -> u16 {
    u16::try_from(nanos / 1000).unwrap_or(u16::MAX)
}

/// Exponential back-off, randomised so that many senders do not retry together (as in virtual networks).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// How long to wait now: `base`, doubled for each try up to `most` (never below `base`), and up to a quarter more.
    pub fn wait(&self, base: Duration, most: Duration, random: &mut Random) -> Duration {
        Duration::from_nanos(self.wait_nanos(nanos(base), nanos(most), random))
    }

    /// The same in nanoseconds.
    #[inline]
    pub(crate) fn wait_nanos(&self, base: u64, most: u64, random: &mut Random) -> u64 {
        let doubled = base.saturating_mul(1 << self.tries.min(16)).min(most.max(base));
        doubled.saturating_add(random.below(doubled / 4))
    }

    /// A timeout passed without an answer.
    pub fn on_silence(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }

    /// An answer arrived.
    #[inline]
    pub fn on_answer(&mut self) {
        self.tries = 0;
    }

    /// Consecutive timeouts without an answer.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK_DELAY: u64 = 1_000_000;

    #[test]
    fn the_estimate_settles_on_a_steady_delay_whatever_the_peer_held_back() {
        let mut rtt = Rtt::default();
        let mut now = 5_000_000u32;
        for held in [0u16, 900, 13, 1000].iter().cycle().take(40) {
            rtt.on_reflected(now, 0, now.wrapping_sub(250 + u32::from(*held)), *held, ACK_DELAY);
            now = now.wrapping_add(1_000);
        }
        assert_eq!(rtt.smoothed(), Some(Duration::from_micros(250)));
        assert_eq!(rtt.least(), Some(Duration::from_micros(250)));
        let timeout = rtt.timeout(ACK_DELAY);
        assert!((2_250_000..2_300_000).contains(&timeout), "{timeout}");
    }

    #[test]
    fn busy_hosts_make_waits_longer_and_not_the_round_trip() {
        for (lay, busy) in [(0u16, 6_000u16), (6_000, 0), (3_000, 3_000), (0, 65_000)] {
            let mut rtt = Rtt::default();
            let mut now = 5_000_000u32;
            for _ in 0..40 {
                let (lay_here, held) = (u64::from(lay) * 1000, 1_000u16.saturating_add(busy).min(u16::MAX - 1));
                rtt.on_reflected(
                    now,
                    lay_here,
                    now.wrapping_sub(250 + u32::from(lay) + u32::from(held)),
                    held,
                    ACK_DELAY,
                );
                now = now.wrapping_add(100_000);
            }
            assert_eq!(rtt.smoothed(), Some(Duration::from_micros(250)), "{lay} {busy}");
            let timeout = rtt.timeout(ACK_DELAY);
            let least = (u64::from(lay) + u64::from(busy).min(10_000)) * 1000;
            assert!((least..least + 3_000_000).contains(&timeout), "{lay} {busy}: {timeout}");
        }
    }

    #[test]
    fn time_stamps_wrap_without_a_bad_sample() {
        let mut rtt = Rtt::default();
        for ahead in 0..200u32 {
            let sent = (u32::MAX - 100).wrapping_add(ahead);
            rtt.on_reflected(sent.wrapping_add(300), 0, sent, 0, ACK_DELAY);
        }
        assert_eq!(rtt.smoothed(), Some(Duration::from_micros(300)));
    }

    #[test]
    fn impossible_time_stamps_give_no_sample() {
        let mut rtt = Rtt::default();
        let mut reflect = |now, sent_at, held| rtt.on_reflected(now, 0, sent_at, held, ACK_DELAY);
        assert_eq!([reflect(100, 101, 0), reflect(100, 50, 51), reflect(100, 50, u16::MAX)], [None; 3]);
        reflect(2_000_000_000, 0, 0);
        assert_eq!(rtt.smoothed(), Some(Duration::from_nanos(SAMPLE_MOST)));
    }

    #[test]
    fn a_jump_of_the_delay_is_followed_within_ten_samples() {
        let mut rtt = Rtt::default();
        for _ in 0..50 {
            rtt.on_sample(100_000, 100_000);
        }
        for _ in 0..10 {
            rtt.on_sample(10_000_000, 10_000_000);
        }
        let (smoothed, timeout) = (rtt.smoothed().expect("samples"), rtt.timeout(0));
        assert!(smoothed > Duration::from_millis(7) && timeout > 10_000_000, "{smoothed:?} {timeout}");
    }

    #[test]
    fn waits_double_up_to_the_bound_and_differ_between_seeds() {
        let (base, most) = (Duration::from_millis(2), Duration::from_millis(90));
        let waits = |seed| {
            let (mut random, mut backoff) = (Random::new(seed), Backoff::default());
            (0..12)
                .map(|_| {
                    let wait = backoff.wait(base, most, &mut random);
                    backoff.on_silence();
                    wait
                })
                .collect::<Vec<_>>()
        };
        let a = waits(1);
        for (n, wait) in a.iter().enumerate() {
            let plain = (base * (1 << n)).min(most);
            assert!(*wait >= plain && *wait <= plain * 5 / 4, "try {n}: {wait:?}");
        }
        assert_ne!(a, waits(2));
        let long = Backoff { tries: 9 }.wait(most * 2, most, &mut Random::new(3));
        assert!(long >= most * 2 && long <= most * 5 / 2, "the bound shortens no first wait: {long:?}");
    }
}
