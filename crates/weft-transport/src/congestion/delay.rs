//! A window that follows the delay: as much is under way as keeps the narrowest link busy, and little more.
//!
//! After Swift (Kumar et al., SIGCOMM 2020): a target for the time in queues, steps up below it, a cut in proportion to the excess above,
//! windows of less than a packet. What differs, and why:
//!
//! * The round trip without queues is measured, not known. If the queue was not seen empty for a while, all who share it send less for a
//!   moment, so that it empties and shows the round trip to those as well who came when it was full. They do so at the same time, for they
//!   count from when they last saw it (as BBR does: Cardwell et al., 2016).
//! * It decides once per round trip, on the mean of what was sent since it last decided.
//! * Steps grow with the root of the window, so that many who share a short queue do not overrun it by growing, and still come to have the
//!   same (binomial: Bansal and Balakrishnan, 2001).
//! * A cut after which the delay fell by far more than the window was not needed: a host was away, for hosts share their cores with other
//!   work. It is taken back, but for a tenth.
//! * If three quarters of the window were cut in vain, or something is lost while it is being cut, somebody fills the queue who does not look at delay.
//!   Then what was cut is given back, and loss decides, as it does for them, until the queue is short or something is lost.
//! * Loss counts if it comes while the queue is about as long as it was lately seen to be, as at a queue that is full; or when it is a
//!   quarter of all; and if it is four times what is lost while the queue is short. Otherwise the link is to blame, and sending less would not help.

use super::{Acked, Congestion};
use crate::time::Time;
use std::time::Duration;

/// To begin with: ten packets of Ethernet's size (RFC 6928).
const FIRST: u64 = 10 * 1472;

/// The window's range. With the least, a packet of 1,472 bytes goes every 12 round trips.
const LEAST: u64 = 128;
const MOST: u64 = 64 << 20;

/// Time in queues that is aimed at: this, but not less than a part of the round trip without queues. Less is not told apart from
/// the delays of busy hosts.
const TARGET: u64 = 270_000;
const TARGET_PART: u64 = 4;

/// Longer round trips count as this.
const ROUND_TRIP_MOST: u64 = 60_000_000_000;

/// The part of the target up to which a queue is none to speak of.
const NEAR_PART: u64 = 8;

/// No cut leaves less than one in so many of the window.
const CUT_MOST: u64 = 2;

/// If the window was halved so often, and the delay did not fall by a quarter of what it should have, somebody else fills the queue.
const VAIN_MOST: u8 = 2;

/// For how long loss decides, if nothing is lost.
const COMPETING: Duration = Duration::from_secs(2);

/// If the queue is too long all that time, the round trip without queues is measured anew: the way may have become longer.
const LONG_MOST: Duration = Duration::from_secs(10);

/// If nothing was lost for so long, no cut leaves less than a packet, and less than that grows to it. Over a slow link a large packet takes longer than the small ones by which the
/// round trip was measured, and no cut would help.
const NO_LOSS: Duration = Duration::from_secs(1);

/// If the queue was not seen empty for so long, and so many round trips, it is emptied.
const DIP_EVERY: Duration = Duration::from_millis(100);
const DIP_ROUND_TRIPS: u32 = 128;

/// Decisions in a row with no queue to speak of, from which on the steps double.
const CALM: u8 = 4;

/// Round trips for which a decision may count.
const STEPS_MOST: u64 = 4;

/// Who has fewer packets under way has many beside him, as likely as not of his kind, and lets delay decide whatever comes.
const MANY_BELOW: u64 = 2;

/// Packets are spaced evenly while fewer than so many may be under way.
const SPACED_BELOW: u64 = 16;

/// Loss says something if it is so many times what is lost while the queue is short.
const USUAL_TIMES: u64 = 4;

/// All of it, where shares are told.
const ONE: u64 = 1 << 16;

/// Follows the delay. See the head of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayWindow {
    window: u64,
    phase: Phase,
    /// The round trip without queues; nanoseconds, like all times here.
    base: u64,
    /// A round trip of so much says that there was no queue to speak of; and when there was last one.
    near: u64,
    near_at: Time,
    /// The longest time in queues, up to the target; slowly forgotten.
    longest: u64,
    /// The share of bytes that is lost while the queue is short.
    usual_loss: u64,
    /// When something was last lost because there was too much.
    lossy_at: Time,
    /// Decisions in a row with no queue to speak of.
    calm: u8,
    /// Since when the queue is too long, and the least delay since then.
    long: Option<(Time, u64)>,
    /// The cuts since then, if any.
    cuts: Option<Descent>,
    turn: Turn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The window doubles.
    Start,
    /// The delay decides.
    Delay,
    /// Loss decides, for somebody fills the queue. Until then at the latest.
    Competing { until: Time },
    /// So little is sent that the queue empties, until then. And the window after that.
    Dip { until: Time, then: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Descent {
    /// The window before the first.
    origin: u64,
    /// Window and delay when the window was last found to be halved, or before the first.
    first: (u64, u64),
    /// Window and delay before the last.
    last: (u64, u64),
    /// How often it was halved in vain.
    vain: u8,
}

/// What came since the last decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turn {
    since: Time,
    /// Not before this comes the next.
    until: Time,
    /// The round trips of packets sent since then: how many, and their sum.
    samples: u64,
    sum: u64,
    acked: u64,
    lost: u64,
    packet: u64,
    /// The most that was under way.
    under_way: u64,
    /// As much was under way as might be.
    was_full: bool,
}

impl Turn {
    fn new(since: Time, lasts: u64, packet: u64) -> Turn {
        let until = since + Duration::from_nanos(lasts);
        Turn { since, until, samples: 0, sum: 0, acked: 0, lost: 0, packet, under_way: 0, was_full: false }
    }

    /// Their mean. There is one.
    fn delay(&self) -> u64 {
        self.sum / self.samples.max(1)
    }
}

impl Default for DelayWindow {
    fn default() -> DelayWindow {
        DelayWindow {
            window: FIRST,
            phase: Phase::Start,
            base: u64::MAX,
            near: u64::MAX,
            near_at: Time::default(),
            longest: 0,
            usual_loss: 0,
            lossy_at: Time::default(),
            calm: 0,
            long: None,
            cuts: None,
            turn: Turn::new(Time::default(), 0, 0),
        }
    }
}

impl Congestion for DelayWindow {
    #[inline]
    fn window(&self) -> u64 {
        self.window
    }

    #[inline]
    fn spaces(&self, packet: u64) -> bool {
        self.window < SPACED_BELOW * packet && self.phase != Phase::Start
    }

    #[inline]
    fn on_acked(&mut self, _now: Time, acked: Acked) {
        let turn = &mut self.turn;
        turn.acked += acked.bytes + acked.late;
        turn.lost = turn.lost.saturating_sub(acked.late);
        turn.packet = turn.packet.max(acked.packet);
        turn.under_way = turn.under_way.max(acked.under_way);
        turn.was_full |= acked.under_way + acked.packet > self.window;
    }

    #[inline]
    fn on_round_trip(&mut self, now: Time, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).clamp(1, ROUND_TRIP_MOST);
        if took <= self.near {
            self.set_base(took.min(self.base));
            self.near_at = now;
        }
        // Of what was sent before, the last decision was not known.
        let turn = &mut self.turn;
        if u128::from(took) <= now.since(turn.since).as_nanos() {
            turn.samples += 1;
            turn.sum += took;
            if now >= turn.until {
                self.decide(now);
            }
        }
    }

    fn on_lost(&mut self, _now: Time, bytes: u64) {
        self.turn.lost += bytes;
    }

    fn on_timeout(&mut self, _now: Time) {
        self.set_window((self.window / 2).max(self.turn.packet));
        self.phase = Phase::Delay;
        self.cuts = None;
    }
}

impl DelayWindow {
    /// The end of a round trip.
    fn decide(&mut self, now: Time) {
        let turn = self.turn;
        let delay = turn.delay();
        let queue = delay.saturating_sub(self.base);
        let target = target(self.base);
        // Hosts that were away for long are not waited for.
        let lasts = delay.min(self.base + target) / 4 * 5;
        self.turn = Turn::new(now, lasts, turn.packet);
        // Who sends a packet in several round trips decides as seldom, and steps as far.
        let elapsed = now.since(turn.since).as_nanos() / u128::from(lasts.max(1));
        let steps = (elapsed as u64).clamp(1, STEPS_MOST) * self.step(turn.packet);
        let is_lossy = self.note_losses(&turn, queue, target) && turn.was_full;
        if is_lossy {
            self.lossy_at = now;
        }
        self.learn_base(now, queue > target, delay);
        match self.phase {
            Phase::Dip { until, then } => {
                if now >= until {
                    self.phase = Phase::Delay;
                    self.near_at = now;
                    self.set_window(then);
                }
            }
            Phase::Competing { until } => {
                if is_lossy {
                    self.on_full_queue();
                } else if queue <= target || now >= until {
                    self.phase = Phase::Delay;
                } else if turn.was_full {
                    self.set_window(self.window + steps.max(turn.packet / 2));
                }
            }
            // Who has far less under way than he may is not to blame.
            Phase::Start | Phase::Delay if queue > target && turn.under_way >= self.window / 2 => {
                self.set_window(self.window.min(turn.under_way + turn.packet));
                self.cut(now, delay, target, steps, is_lossy);
            }
            Phase::Start | Phase::Delay => {
                self.take_back(delay);
                if is_lossy {
                    self.on_full_queue();
                } else if turn.was_full && self.is_dip_due(now) {
                    self.phase = Phase::Dip { until: now + 2 * Duration::from_nanos(delay), then: self.window };
                    self.set_window(scale(self.window, self.base, delay) / 2);
                } else if queue <= target {
                    self.grow(&turn, queue, target, steps);
                }
            }
        }
    }

    /// Whether no round trip without a queue was seen for so long that what is held for one may be none.
    fn is_dip_due(&self, now: Time) -> bool {
        let after = DIP_EVERY.max(Duration::from_nanos(self.base).saturating_mul(DIP_ROUND_TRIPS));
        self.phase == Phase::Delay && now.since(self.near_at) >= after
    }

    /// If the queue is too long for very long, the way may have become longer.
    fn learn_base(&mut self, now: Time, is_long: bool, delay: u64) {
        self.long = is_long.then(|| self.long.map_or((now, delay), |(since, least)| (since, least.min(delay))));
        if let Some((_, least)) = self.long.filter(|(since, _)| now.since(*since) >= LONG_MOST) {
            self.set_base(least);
            self.long = None;
        }
    }

    /// Notes how long the queue was and what was lost. Whether that found a queue full: more is lost than while the queue is short.
    fn note_losses(&mut self, turn: &Turn, queue: u64, target: u64) -> bool {
        self.longest = self.longest.max(queue.min(target)) - self.longest.saturating_sub(queue) / 64;
        let share = scale(ONE, turn.lost, turn.lost + turn.acked);
        let is_more = share > USUAL_TIMES * self.usual_loss;
        let least = target / NEAR_PART;
        if queue < least.max(self.longest / 2) {
            self.usual_loss = (self.usual_loss * 7 + share) / 8;
        }
        is_more && (queue >= least.max(self.longest / 4 * 3) || share > ONE / 4)
    }

    /// Something was lost because there was too much.
    fn on_full_queue(&mut self) {
        self.phase = Phase::Delay;
        self.calm = 0;
        self.cuts = None;
        self.set_window(self.window / 10 * 7);
    }

    /// The queue is too long.
    fn cut(&mut self, now: Time, delay: u64, target: u64, steps: u64, is_lossy: bool) {
        let was_start = std::mem::replace(&mut self.phase, Phase::Delay) == Phase::Start;
        self.calm = 0;
        let now_is = (self.window, delay);
        let none = Descent { origin: self.window, first: now_is, last: now_is, vain: 0 };
        // A link that became slower, and not somebody else, makes the delay jump.
        let mut cuts = self.cuts.filter(|cuts| delay <= cuts.first.1 / 2 * 3).unwrap_or(none);
        if self.window <= cuts.first.0 / 2 {
            // The delay should have fallen as well.
            let due = scale(cuts.first.1, self.window, cuts.first.0);
            let is_vain = delay > cuts.first.1.saturating_sub(cuts.first.1.saturating_sub(due) / 4);
            cuts = if is_vain { Descent { first: now_is, vain: cuts.vain + 1, ..cuts } } else { none };
        }
        let is_one_of_many = cuts.origin < MANY_BELOW * self.turn.packet;
        if !is_one_of_many && (cuts.vain >= VAIN_MOST || (is_lossy && self.cuts.is_some())) {
            let kept = if is_lossy { cuts.origin / 10 * 7 } else { cuts.origin };
            self.cuts = None;
            self.phase = Phase::Competing { until: now + COMPETING };
            return self.set_window(kept.max(self.window / 10 * 7));
        }
        // The delay does not know yet how much the window grew last.
        self.cuts = (!was_start).then_some(Descent { last: now_is, ..cuts });
        let excess = delay.saturating_sub(self.base + target);
        let less = self.window - scale(self.window, excess / 5 * 4, delay);
        let least = if now.since(self.lossy_at) < NO_LOSS { 0 } else { self.turn.packet.min(self.window + steps) };
        self.set_window(less.max(self.window / CUT_MOST).max(least));
    }

    /// The queue is not too long any more. Takes the last cut back, but for a tenth, if the delay fell by far more than by what it can have
    /// brought.
    fn take_back(&mut self, delay: u64) {
        if let Some(Descent { last: (window, before), .. }) = self.cuts.take() {
            let due = scale(before, self.window, window);
            if delay < due / 2 {
                self.set_window(self.window.max(window / 10 * 9));
            }
        }
    }

    fn grow(&mut self, turn: &Turn, queue: u64, target: u64, steps: u64) {
        self.calm = if queue < target / NEAR_PART { self.calm.saturating_add(1) } else { 0 };
        if self.phase == Phase::Start && queue >= target / 2 {
            self.phase = Phase::Delay;
        }
        let doublings = u32::from(self.calm.saturating_sub(CALM).min(16));
        if turn.was_full {
            let most = if self.phase == Phase::Start { self.window } else { (steps << doublings).min(self.window / 2) };
            self.set_window(self.window + most.max(1));
        } else if doublings > 0 && self.window < SPACED_BELOW * turn.packet {
            // It needs no more than this, and the network has room: as at the beginning.
            self.phase = Phase::Start;
            self.set_window(self.window.max(FIRST));
        }
    }

    /// How much the window grows in a round trip.
    fn step(&self, packet: u64) -> u64 {
        ((self.window * packet).isqrt() / 16).clamp(1, packet.max(1))
    }

    fn set_window(&mut self, bytes: u64) {
        self.window = bytes.clamp(LEAST, MOST);
    }

    fn set_base(&mut self, base: u64) {
        self.base = base;
        self.near = base + target(base) / NEAR_PART;
    }
}

/// The time in queues that is aimed at, if a round trip without them takes so long.
fn target(base: u64) -> u64 {
    TARGET.max(base / TARGET_PART)
}

/// `value` times `by` over `over`.
fn scale(value: u64, by: u64, over: u64) -> u64 {
    (u128::from(value) * u128::from(by) / u128::from(over.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1500;
    const BASE: u64 = 200_000;

    /// A link as fluids have it: what is under way beyond rate times round trip waits.
    struct Pipe {
        now: u64,
        /// Bytes per millisecond.
        rate: u64,
        base: u64,
        /// Bytes of others that wait.
        others: u64,
        room: u64,
    }

    impl Pipe {
        fn gigabit() -> Pipe {
            Pipe { now: 1_000_000, rate: 125_000, base: BASE, others: 0, room: 1 << 30 }
        }

        /// Bytes that may be under way while nothing waits.
        fn bytes(&self) -> u64 {
            self.rate * self.base / 1_000_000
        }

        fn queue(&self, window: u64) -> u64 {
            (window + self.others).saturating_sub(self.bytes()).min(self.room)
        }

        /// A round trip with all of the window under way. Returns the bytes that waited.
        fn turn(&mut self, control: &mut DelayWindow) -> u64 {
            let window = control.window();
            let queue = self.queue(window);
            let lost = (window + self.others).saturating_sub(self.bytes() + self.room);
            let delay = self.base + queue * 1_000_000 / self.rate;
            for _ in 0..4 {
                self.now += delay / 3;
                let now = Time::from_nanos(self.now);
                let (bytes, under_way) = (window.saturating_sub(lost) / 4, window);
                control.on_acked(now, Acked { bytes, late: 0, under_way, packet: PACKET });
                if lost > 0 {
                    control.on_lost(now, lost / 4);
                }
                control.on_round_trip(now, Duration::from_nanos(delay));
            }
            queue
        }

        fn turns(&mut self, control: &mut DelayWindow, turns: usize) -> Vec<u64> {
            (0..turns).map(|_| self.turn(control)).collect()
        }
    }

    #[test]
    fn alone_on_a_link_it_is_kept_busy_and_the_queue_short() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        pipe.turns(&mut control, 50);
        let mut most = 0;
        for _ in 0..500 {
            most = most.max(pipe.turn(&mut control));
            assert!(control.window() >= pipe.bytes() * 9 / 10, "{control:?}");
        }
        assert!(most <= pipe.rate * TARGET / 1_000_000 + 2 * PACKET, "{most}");
    }

    #[test]
    fn a_rate_that_falls_to_a_tenth_is_followed_within_twelve_round_trips() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        pipe.turns(&mut control, 200);
        pipe.rate /= 10;
        pipe.turns(&mut control, 12);
        let queues = pipe.turns(&mut control, 300);
        let most = pipe.rate * TARGET / 1_000_000 + 2 * PACKET;
        assert!(queues.iter().all(|&queue| queue <= most), "{most}: {queues:?}");
        pipe.rate *= 10;
        pipe.turns(&mut control, 60);
        assert!(control.window() >= pipe.bytes() * 9 / 10, "and back: {control:?}");
    }

    #[test]
    fn losses_without_a_queue_change_nothing_up_to_a_quarter() {
        let mut control = DelayWindow::default();
        let mut pipe = Pipe::gigabit();
        pipe.turns(&mut control, 100);
        let mut least = u64::MAX;
        for turn in 0..400 {
            pipe.turn(&mut control);
            if pipe.queue(control.window()) == 0 && turn % 3 == 0 {
                control.on_lost(Time::from_nanos(pipe.now), control.window() / 6);
            }
            least = least.min(control.window());
        }
        assert!(least >= pipe.bytes() * 9 / 10, "{least}");
    }

    #[test]
    fn the_loss_of_more_than_a_quarter_is_answered_whatever_the_queue() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        pipe.turns(&mut control, 100);
        let before = control.window();
        for _ in 0..2 {
            control.on_lost(Time::from_nanos(pipe.now), before * 4);
            pipe.turn(&mut control);
        }
        assert!(control.window() <= before * 7 / 10, "{before} {control:?}");
    }

    #[test]
    fn a_short_queue_that_is_full_is_seen_by_its_losses() {
        let mut pipe = Pipe { room: 10 * PACKET, ..Pipe::gigabit() };
        let mut control = DelayWindow::default();
        pipe.turns(&mut control, 200);
        let windows: Vec<u64> = (0..500).map(|_| (pipe.turn(&mut control), control.window()).1).collect();
        let most = (pipe.bytes() + pipe.room) * 5 / 4;
        assert!(windows.iter().all(|&w| w <= most), "never much more than there is room for");
        assert!(windows.iter().sum::<u64>() / 500 >= pipe.bytes() * 95 / 100);
    }

    #[test]
    fn one_late_packet_of_a_host_that_was_away_costs_a_tenth() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        while control.cuts.is_none() {
            pipe.turn(&mut control);
        }
        pipe.turns(&mut control, 4);
        let before = control.window();
        pipe.base += 5_000_000;
        pipe.turn(&mut control);
        pipe.base -= 5_000_000;
        assert!(control.window() <= before * 6 / 10, "{before} {control:?}");
        pipe.turns(&mut control, 2);
        assert!(control.window() >= before / 10 * 8, "{before} {control:?}");
    }

    #[test]
    fn a_queue_that_others_keep_full_is_answered_as_they_do_and_left_when_they_go() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        pipe.turns(&mut control, 100);
        let alone = control.window();
        pipe.others = 40 * PACKET;
        pipe.turns(&mut control, 40);
        assert!(matches!(control.phase, Phase::Competing { .. }), "{control:?}");
        assert!(control.window() >= alone / 3, "{alone} {control:?}");
        pipe.others = 0;
        pipe.turns(&mut control, 12);
        assert_eq!(control.phase, Phase::Delay);
    }

    #[test]
    fn a_way_that_became_longer_is_learnt() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        pipe.turns(&mut control, 100);
        pipe.base = 2_000_000;
        while pipe.now < 25_000_000_000 {
            pipe.turn(&mut control);
        }
        assert_eq!(control.base, pipe.base);
        pipe.turns(&mut control, 3000);
        assert!(control.window() >= pipe.bytes() * 9 / 10, "{} {control:?}", pipe.bytes());
    }

    #[test]
    fn whatever_comes_the_window_stays_in_its_range() {
        let mut random = crate::random::Random::new(7);
        let mut control = DelayWindow::default();
        let mut now = 0u64;
        for _ in 0..200_000 {
            let at = Time::from_nanos(now);
            let mut lot = || random.bits() >> (24 + random.below(40));
            now += lot();
            match lot() % 5 {
                0 => control.on_lost(at, lot()),
                1 => control.on_timeout(at),
                2 => control.on_round_trip(at, Duration::from_nanos(lot())),
                _ => control.on_acked(at, Acked { bytes: lot(), late: lot(), under_way: lot(), packet: lot() % 9000 }),
            }
            assert!((LEAST..=MOST).contains(&control.window()));
        }
    }
}
