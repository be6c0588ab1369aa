//! A delay-based congestion window: enough in flight to keep the narrowest link busy, and little more.
//!
//! It follows Swift (Kumar et al., SIGCOMM 2020): a target for the time in queues, additive steps below it, a cut in
//! proportion to the excess above it, and windows of less than a packet. The differences, and the reasons:
//!
//! * The round trip without queues is measured, not configured. If the queue was not seen empty for a while, all
//!   senders that share it send less for a moment (a *dip*). The queue drains and shows the base round trip also to
//!   senders that joined when it was full. They dip at the same time because they count from when they last saw the
//!   queue empty (as BBR does: Cardwell et al., 2016).
//! * It decides once per round trip, on the mean delay of the packets sent since the last decision.
//! * Steps grow with the square root of the window, so that many senders do not overrun a short queue as they grow, and
//!   still converge to equal windows (binomial: Bansal and Balakrishnan, 2001).
//! * A queue counts as too long only if every packet of two turns saw it: hosts share their cores with other work, and
//!   hosts and links pause for a moment. If the delay falls after a cut by far more than the window did, the cut was
//!   not needed, and all but a tenth of it is taken back.
//! * The target is longer where packets wait at busy hosts: the queue has to last until those run again.
//! * If the queue is not seen empty although this sender dips again and again, or is long on average, a *rival* fills
//!   it that ignores delay (TCP CUBIC). Then loss decides instead of delay, as it does for the rival, until the queue
//!   is seen empty again.
//! * Loss counts as congestion if it occurs while the queue is about as long as it has lately been at most, as with a
//!   full queue, or if it is a quarter of all packets; in both cases only if it is four times what is lost while the
//!   queue is short. Otherwise the link is to blame, and sending less would not help.

use super::{Acked, Congestion};
use crate::time::Time;
use std::time::Duration;

/// The range of the window. At the least, one packet of 1,472 bytes is sent every 12 round trips.
const LEAST: u64 = 128;
const MOST: u64 = 64 << 20;

/// The target for time in queues: this, but at least a fraction of the base round trip. A shorter time could not be
/// told from the delays of busy hosts.
const TARGET: u64 = 270_000;
const TARGET_PART: u64 = 4;

/// Packets wait at hosts that share their cores with other work, and then arrive all at once. So that the queue lasts
/// until then, the target is longer by this multiple of the mean time that packets wait at hosts, up to the second
/// figure.
const AWAY_TIMES: u64 = 4;
const AWAY_MOST: u64 = 3 * TARGET;

/// If the queue was found full twice within [`NO_LOSS`], the target is at most this fraction of it, because others need
/// some of it.
const FULL_PART: u64 = 2;

/// Longer round trips are clamped to this.
const ROUND_TRIP_MOST: u64 = 60_000_000_000;

/// A queue below this fraction of the target counts as empty. The time between two packets is added, up to the second
/// fraction: with one packet in the queue the round trip is that much above base if base was measured with small
/// packets, or before the link became slower.
const NEAR_PART: u64 = 8;
const NEAR_PART_MOST: u64 = 2;

/// No cut leaves less than this fraction of the window.
const CUT_MOST: u64 = 3;

/// If the queue is too long for all this time, the base round trip is measured again: the path may have become longer.
const LONG_MOST: Duration = Duration::from_secs(10);

/// If nothing was lost for this long, no cut leaves less than a packet, and a smaller window grows to one. Over a slow
/// link a large packet takes longer than the small ones that measured the base round trip, and no cut would help.
const NO_LOSS: Duration = Duration::from_secs(1);

/// If the queue was not seen empty for this long, and for this many round trips, a dip drains it.
const DIP_EVERY: Duration = Duration::from_millis(200);
const DIP_ROUND_TRIPS: u32 = 128;

/// The delay that a dip waits out is at most this multiple of base plus target.
const DELAY_MOST: u64 = 64;

/// How much a dip reduces the window below what would just fill the path if all who share it dipped. The second figure
/// applies beside a rival, where the dip tests whether it is still there.
const DIP_PART: u64 = 2;
const RIVAL_DIP_PART: u64 = 4;

/// After this many dips in which the queue did not drain there is a rival. The count stops at the second figure; a dip
/// in which the queue did drain takes back two, because that may happen by chance.
const BLIND_DIPS: u8 = 5;
const BLIND_DIPS_MOST: u8 = 9;
const SEEING_DIP: u8 = 2;

/// Beside a rival: the growth of the window per turn, in eighths of a packet, and what is left of it after a loss, in
/// tenths. CUBIC grows by half a packet per round trip on short paths and keeps seven tenths. Its packets arrive one by
/// one and ours a few at a time, which find a full queue more often.
const RIVAL_GROWTH: u64 = 4;
const RIVAL_KEEPS: u64 = 8;

/// On shorter paths one decision covers as many round trips as take this long, to save the work of deciding.
const TURN_LEAST: u64 = 20_000;

/// After this many decisions in a row with an empty queue, the steps double.
const CALM: u8 = 4;

/// The most round trips that one decision may count for.
const STEPS_MOST: u64 = 4;

/// Packets are paced while the window is below this.
const SPACED_BELOW: u64 = 16 * 1472;

/// Loss is significant if it is this many times what is lost while the queue is short.
const USUAL_TIMES: u64 = 4;

/// The fixed-point unit of shares.
const ONE: u64 = 1 << 16;

/// The delay-based window. See the top of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayWindow {
    window: u64,
    phase: Phase,
    /// The round trip without queues, in nanoseconds like all times here.
    base: u64,
    /// A round trip up to `near` shows an empty queue; and when there was one last.
    near: u64,
    near_at: Time,
    /// The time between two full packets on arrival.
    spacing: u64,
    /// The longest time in queues, up to the target; it decays slowly.
    longest: u64,
    /// The share of bytes that is lost while the queue is short.
    usual_loss: u64,
    /// When something was last lost to a full queue.
    lossy_at: Time,
    /// The mean time in queues over the last turns.
    usual_queue: u64,
    /// The mean time that packets wait at hosts, over the last turns in which the window was full.
    away: u64,
    /// The time in the queue when it was last found full; `u64::MAX` if that was long ago, or only once.
    full: u64,
    /// Decisions in a row with an empty queue.
    calm: u8,
    /// Since when the queue has been too long, and the least delay since then.
    long: Option<(Time, u64)>,
    /// Window and delay before the last cut, while the queue is too long.
    cut: Option<(u64, u64)>,
    turn: Turn,
    /// The least round trip of the turn before.
    before: u64,
    /// Dips in which the queue did not drain, less those in which it did. See [`BLIND_DIPS`].
    blind: u8,
    /// When the last dip, or what counts as one, ended.
    dipped_at: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The window doubles.
    Start,
    /// The delay determines the window.
    Delay,
    /// The sender holds back so that the queue drains: since when, until when, and the window afterwards.
    Dip { since: Time, until: Time, then: u64 },
}

/// What arrived since the last decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turn {
    since: Time,
    /// The next decision is not before this.
    until: Time,
    /// The round trips of packets sent since then: their number, sum and minimum.
    samples: u64,
    sum: u64,
    least: u64,
    /// The sum of the times that they waited at hosts.
    lay: u64,
    acked: u64,
    lost: u64,
    packet: u64,
    /// The most bytes that were in flight.
    under_way: u64,
    /// The window was used completely.
    was_full: bool,
}

impl Turn {
    fn new(since: Time, lasts: u64, packet: u64) -> Turn {
        let until = since + Duration::from_nanos(lasts);
        Turn {
            since,
            until,
            samples: 0,
            sum: 0,
            least: u64::MAX,
            lay: 0,
            acked: 0,
            lost: 0,
            packet,
            under_way: 0,
            was_full: false,
        }
    }

    /// The mean round trip. There is at least one sample.
    fn delay(&self) -> u64 {
        self.sum / self.samples.max(1)
    }
}

impl Default for DelayWindow {
    fn default() -> DelayWindow {
        DelayWindow {
            window: DelayWindow::FIRST,
            phase: Phase::Start,
            base: u64::MAX,
            near: u64::MAX,
            near_at: Time::default(),
            spacing: 0,
            longest: 0,
            usual_loss: 0,
            lossy_at: Time::default(),
            usual_queue: 0,
            away: 0,
            full: u64::MAX,
            calm: 0,
            long: None,
            cut: None,
            turn: Turn::new(Time::default(), 0, 0),
            before: 0,
            blind: 0,
            dipped_at: Time::default(),
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
        (self.window < SPACED_BELOW.max(packet) && self.phase != Phase::Start) || self.has_rival()
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
    fn on_round_trip(&mut self, now: Time, took: u64, lay: u64) {
        let [took, lay] = [took, lay].map(|nanos| nanos.clamp(1, ROUND_TRIP_MOST));
        if took <= self.near {
            self.set_base(took.min(self.base));
            self.near_at = now;
            // Packets sent in a dip say nothing about the queue outside of dips, and even beside a rival the queue is
            // empty for moments.
            let is_of_dip = self.is_dip() || took >= now.nanos_since(self.dipped_at);
            if !is_of_dip && self.usual_queue < least_target(self.base) {
                self.blind = 0;
            }
        }
        // Packets sent earlier do not reflect the last decision.
        let turn = &mut self.turn;
        if took <= now.nanos_since(turn.since) {
            turn.samples += 1;
            turn.sum += took;
            turn.least = turn.least.min(took);
            turn.lay += lay;
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
        self.cut = None;
    }
}

impl DelayWindow {
    /// The initial window: ten packets of Ethernet's size (RFC 6928).
    pub const FIRST: u64 = 10 * 1472;

    /// Decides at the end of a turn.
    fn decide(&mut self, now: Time) {
        let turn = self.turn;
        let delay = turn.delay();
        // A host or link that pauses delays some or all packets of one turn; a queue also delays those of the next.
        let lasting = turn.least.min(std::mem::replace(&mut self.before, turn.least));
        let [queue, lasting_queue] = [delay, lasting].map(|delay| delay.saturating_sub(self.base));
        self.learn_away(&turn);
        let target = self.target();
        // A turn does not wait for hosts that pause for long.
        let lasts = (delay.min(self.base + target) / 4 * 5).max(TURN_LEAST);
        self.turn = Turn::new(now, lasts, turn.packet);
        // Computed only where the window changes; most decisions of a sender with little to send change nothing.
        let window = self.window;
        let steps = || steps(window, turn.packet, now.nanos_since(turn.since) / lasts.max(1));
        let is_used = turn.under_way >= window / 2;
        let is_lossy = self.note_losses(&turn, queue, target) && (turn.was_full || (self.has_rival() && is_used));
        let is_new_loss = is_lossy && now.since(self.lossy_at) >= 2 * Duration::from_nanos(delay);
        if is_lossy {
            // A single loss may come from the start phase.
            let is_again = is_new_loss && now.since(self.lossy_at) < NO_LOSS;
            self.full = if is_again { queue } else { self.full };
            self.lossy_at = now;
        } else if now.since(self.lossy_at) >= NO_LOSS {
            self.full = u64::MAX;
        }
        self.learn_usual_queue(now, queue, target, is_used);
        self.learn_spacing(&turn, now);
        self.learn_base(now, lasting_queue > target, lasting);
        match self.phase {
            Phase::Dip { since, until, then } => {
                if now >= until {
                    self.end_dip(now, self.near_at > since, then);
                }
            }
            Phase::Delay if is_used && self.is_dip_due(now) => {
                // A window that is too large before the dip is too large after it.
                if lasting_queue > target && !self.has_rival() {
                    self.cut(now, lasting, target, steps(), is_lossy);
                }
                self.dip(now, lasting, window);
            }
            Phase::Delay if self.has_rival() => {
                if is_new_loss {
                    self.calm = 0;
                    self.set_window(self.window.min(turn.under_way + turn.packet) / 10 * RIVAL_KEEPS);
                } else if is_used && !is_lossy {
                    self.set_window(self.window + steps().max(turn.packet / 8 * RIVAL_GROWTH));
                }
            }
            // A sender that uses far less than its window is not the cause.
            Phase::Start | Phase::Delay if lasting_queue > target && is_used => {
                self.set_window(window.min(turn.under_way + turn.packet));
                self.cut(now, lasting, target, steps(), is_lossy);
            }
            Phase::Start | Phase::Delay => {
                self.take_back(lasting);
                if is_lossy {
                    self.on_full_queue();
                } else if queue <= target {
                    self.grow(&turn, lasting_queue, target, steps);
                }
            }
        }
    }

    /// Whether an empty queue was not seen for so long that `base` may be wrong.
    fn is_dip_due(&self, now: Time) -> bool {
        let after = DIP_EVERY.max(Duration::from_nanos(self.base).saturating_mul(DIP_ROUND_TRIPS));
        self.phase == Phase::Delay && now.since(self.near_at) >= after
    }

    /// Sends so little for a moment that the queue drains, if all who fill it do the same. It was filled by windows
    /// like this one.
    fn dip(&mut self, now: Time, delay: u64, window: u64) {
        // A jump of the clock is no delay.
        let delay = delay.min(DELAY_MOST * (self.base + least_target(self.base)));
        let until = now + 2 * Duration::from_nanos(delay);
        self.phase = Phase::Dip { since: now, until, then: self.window };
        let fills = scale(window, self.base, delay);
        self.set_window(fills - fills / if self.has_rival() { RIVAL_DIP_PART } else { DIP_PART });
    }

    /// Ends the dip: counts what it showed and restores the window.
    fn end_dip(&mut self, now: Time, was_seen_empty: bool, window: u64) {
        self.blind =
            if was_seen_empty { self.blind.saturating_sub(SEEING_DIP) } else { BLIND_DIPS_MOST.min(self.blind + 1) };
        self.phase = Phase::Delay;
        (self.near_at, self.dipped_at) = (now, now);
        self.set_window(window);
    }

    /// Whether a sender that ignores delay fills the queue.
    fn has_rival(&self) -> bool {
        self.blind >= BLIND_DIPS
    }

    /// Learns the mean length of the queue. A mean above the target by the minimum target does not last where all
    /// senders follow delay. So it counts, once between two dips, as a queue that did not drain, even if it is empty
    /// for moments: TCP sends in bursts.
    fn learn_usual_queue(&mut self, now: Time, queue: u64, target: u64, is_used: bool) {
        if self.is_dip() {
            return;
        }
        self.usual_queue = (self.usual_queue * 15 + queue) / 16;
        let most = target + least_target(self.base);
        if is_used && self.usual_queue > most && now.since(self.dipped_at) >= DIP_EVERY {
            self.blind = BLIND_DIPS_MOST.min(self.blind + 1);
            self.dipped_at = now;
        }
    }

    /// Learns how long packets wait at hosts while the window is full.
    fn learn_away(&mut self, turn: &Turn) {
        if turn.was_full {
            self.away = (self.away * 15 + (turn.lay / turn.samples.max(1)).min(AWAY_MOST)) / 16;
        }
    }

    /// The target for the time in queues.
    fn target(&self) -> u64 {
        let of_busy_hosts = TARGET + (AWAY_TIMES * self.away).min(AWAY_MOST);
        least_target(self.base).max(of_busy_hosts.min(self.full / FULL_PART))
    }

    fn is_dip(&self) -> bool {
        matches!(self.phase, Phase::Dip { .. })
    }

    /// Learns the time between packets on arrival, and with it which queues count as empty.
    fn learn_spacing(&mut self, turn: &Turn, now: Time) {
        if turn.was_full && turn.acked > 0 {
            let elapsed = now.nanos_since(turn.since);
            self.spacing = (self.spacing * 7 + scale(elapsed, turn.packet, turn.acked).min(ROUND_TRIP_MOST)) / 8;
        }
        self.set_base(self.base);
    }

    /// Raises `base` if the queue was too long for very long: the path may have become longer.
    fn learn_base(&mut self, now: Time, is_long: bool, delay: u64) {
        self.long = is_long.then(|| self.long.map_or((now, delay), |(since, least)| (since, least.min(delay))));
        if let Some((_, least)) = self.long.filter(|(since, _)| now.since(*since) >= LONG_MOST) {
            self.set_base(least);
            self.long = None;
        }
    }

    /// Notes the length of the queue and the losses. Returns whether they show a full queue: more is lost than while it
    /// is short.
    fn note_losses(&mut self, turn: &Turn, queue: u64, target: u64) -> bool {
        self.longest = self.longest.max(queue.min(target)) - self.longest.saturating_sub(queue) / 64;
        let share = if turn.lost == 0 { 0 } else { scale(ONE, turn.lost, turn.lost + turn.acked) };
        let is_more = share > USUAL_TIMES * self.usual_loss;
        let least = target / NEAR_PART;
        if queue < least.max(self.longest / 2) && !self.has_rival() {
            self.usual_loss = (self.usual_loss * 7 + share) / 8;
        }
        is_more && (queue >= least.max(self.longest / 4 * 3) || share > ONE / 4)
    }

    /// Reacts to a loss at a full queue.
    fn on_full_queue(&mut self) {
        self.phase = Phase::Delay;
        self.calm = 0;
        self.cut = None;
        self.set_window(self.lossy_window());
    }

    /// The window after a loss at a full queue.
    fn lossy_window(&self) -> u64 {
        self.window / 10 * 7
    }

    /// Cuts the window, because the queue is too long.
    fn cut(&mut self, now: Time, delay: u64, target: u64, steps: u64, is_lossy: bool) {
        // The delay does not reflect the last growth of the window yet.
        let was_start = std::mem::replace(&mut self.phase, Phase::Delay) == Phase::Start;
        self.cut = (!was_start).then_some((self.window, delay));
        self.calm = 0;
        let excess = delay.saturating_sub(self.base + target);
        let less = self.window - scale(self.window, excess / 5 * 4, delay);
        let least = if now.since(self.lossy_at) < NO_LOSS { 0 } else { self.turn.packet.min(self.window + steps) };
        let less = less.max(self.window / CUT_MOST).max(least);
        self.set_window(if is_lossy { less.min(self.lossy_window()) } else { less });
    }

    /// The queue is no longer too long. Takes back the last cut, but for a tenth, if the delay fell by far more than
    /// the cut can explain.
    fn take_back(&mut self, delay: u64) {
        if let Some((window, before)) = self.cut.take() {
            let due = scale(before, self.window, window);
            if delay < due / 2 {
                self.set_window(self.window.max(window / 10 * 9));
            }
        }
    }

    fn grow(&mut self, turn: &Turn, queue: u64, target: u64, steps: impl FnOnce() -> u64) {
        self.calm = if queue < target / NEAR_PART { self.calm.saturating_add(1) } else { 0 };
        if self.phase == Phase::Start && queue >= target / 2 {
            self.phase = Phase::Delay;
        }
        let doublings = u32::from(self.calm.saturating_sub(CALM).min(16));
        if turn.was_full {
            let most = match self.phase {
                Phase::Start => self.window,
                _ => (steps() << doublings).min(self.window / 2),
            };
            self.set_window(self.window + most.max(1));
        } else if doublings > 0 && self.window < SPACED_BELOW.max(turn.packet) {
            // The sender needs no more, and the network has room: restart as at the beginning.
            self.phase = Phase::Start;
            self.set_window(self.window.max(DelayWindow::FIRST));
        }
    }

    fn set_window(&mut self, bytes: u64) {
        self.window = bytes.clamp(LEAST, MOST);
    }

    fn set_base(&mut self, base: u64) {
        self.base = base;
        let target = least_target(base);
        let spacing = if self.has_rival() { 0 } else { self.spacing };
        self.near = base + (target / NEAR_PART + spacing).min(target / NEAR_PART_MOST);
    }
}

/// The target for the time in queues with this base round trip and hosts that are not busy.
fn least_target(base: u64) -> u64 {
    TARGET.max(base / TARGET_PART)
}

/// How much a window grows in `round_trips`. A sender of one packet in several round trips decides less often, so its
/// steps are larger.
fn steps(window: u64, packet: u64, round_trips: u64) -> u64 {
    let step = ((window * packet).isqrt() / 16).clamp(1, packet.max(1));
    round_trips.clamp(1, STEPS_MOST) * step
}

/// `value` times `by` over `over`.
fn scale(value: u64, by: u64, over: u64) -> u64 {
    let over = over.max(1);
    // The usual case; a 128-bit division takes far longer.
    match value.checked_mul(by) {
        Some(product) => product / over,
        None => (u128::from(value) * u128::from(by) / u128::from(over)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1500;
    const BASE: u64 = 200_000;

    /// A fluid model of a link: what is in flight beyond rate times round trip waits.
    struct Pipe {
        now: u64,
        /// Bytes per millisecond.
        rate: u64,
        base: u64,
        /// Bytes of other senders in the queue.
        others: u64,
        room: u64,
        /// How long packets wait at hosts.
        lay: u64,
    }

    impl Pipe {
        fn gigabit() -> Pipe {
            Pipe { now: 1_000_000, rate: 125_000, base: BASE, others: 0, room: 1 << 30, lay: 0 }
        }

        /// Bytes that may be in flight while nothing waits.
        fn bytes(&self) -> u64 {
            self.rate * self.base / 1_000_000
        }

        fn queue(&self, window: u64) -> u64 {
            (window + self.others).saturating_sub(self.bytes()).min(self.room)
        }

        /// A round trip with the whole window in flight. Returns the bytes that waited.
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
                control.on_round_trip(now, delay, self.lay);
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
        let (mut most, mut carried) = (0, 0);
        for _ in 0..500 {
            most = most.max(pipe.turn(&mut control));
            carried += control.window().min(pipe.bytes());
        }
        assert!(carried >= 500 * pipe.bytes() * 98 / 100, "but for a dip now and then: {carried}");
        assert!(most <= pipe.rate * TARGET / 1_000_000 + 2 * PACKET, "{most}");
    }

    #[test]
    fn a_queue_may_be_longer_by_what_packets_lie_at_hosts_up_to_four_times_the_target() {
        for (lay, target) in [(0, TARGET), (100_000, TARGET + 400_000), (100_000_000, 4 * TARGET)] {
            let (mut pipe, mut control) = (Pipe { lay, ..Pipe::gigabit() }, DelayWindow::default());
            pipe.turns(&mut control, 200);
            // Without the dips and their aftermath.
            let queues = pipe.turns(&mut control, 100);
            let most = queues.iter().max().expect("some") * 1_000_000 / pipe.rate;
            assert!((target * 9 / 10..=target + 30_000).contains(&most), "{lay}: {most} of {target}");
            pipe.lay = 0;
            pipe.turns(&mut control, 200);
            let queues = pipe.turns(&mut control, 100);
            let most = queues.iter().max().expect("some") * 1_000_000 / pipe.rate;
            assert!(most <= TARGET + 30_000, "{lay}: {most} when they are quick again");
        }
    }

    #[test]
    fn of_a_queue_that_is_found_full_busy_hosts_want_no_more_than_half() {
        let room = 100 * PACKET;
        let mut pipe = Pipe { room, lay: 1_000_000, others: 80 * PACKET, ..Pipe::gigabit() };
        let mut control = DelayWindow::default();
        pipe.turns(&mut control, 300);
        let full = room * 1_000_000 / pipe.rate;
        assert!(control.target() <= full / 2 + 30_000, "{} of {full}: {control:?}", control.target());
        (pipe.others, pipe.room) = (0, 1 << 30);
        pipe.turns(&mut control, 4000);
        assert_eq!(control.target(), 4 * TARGET, "a while after the last loss");
    }

    #[test]
    fn what_lies_at_hosts_while_less_is_under_way_than_may_be_says_nothing() {
        let mut control = DelayWindow::default();
        let mut now = 1_000_000;
        for _ in 0..1000 {
            now += BASE;
            let acked = Acked { bytes: PACKET, late: 0, under_way: PACKET, packet: PACKET };
            control.on_acked(Time::from_nanos(now), acked);
            control.on_round_trip(Time::from_nanos(now), BASE, 1_000_000);
        }
        assert_eq!(control.target(), TARGET);
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
            if !matches!(control.phase, Phase::Dip { .. }) {
                least = least.min(control.window());
            }
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
    fn one_late_turn_of_a_host_that_was_away_costs_nothing_and_two_a_tenth() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        while control.cut.is_none() {
            pipe.turn(&mut control);
        }
        pipe.turns(&mut control, 4);
        for late in [1, 2] {
            let before = control.window();
            pipe.base += 5_000_000;
            pipe.turns(&mut control, late);
            pipe.base -= 5_000_000;
            let meanwhile = control.window();
            assert!(
                if late == 1 { meanwhile >= before / 10 * 9 } else { meanwhile <= before * 6 / 10 },
                "{before} {control:?}"
            );
            pipe.turns(&mut control, 3);
            assert!(control.window() >= before / 10 * 8, "{late}: {before} {control:?}");
        }
    }

    #[test]
    fn a_queue_that_others_keep_full_is_answered_as_they_do_and_left_when_they_go() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        pipe.turns(&mut control, 100);
        let alone = control.window();
        let mut until = |pipe: &mut Pipe, milliseconds: u64| {
            let end = pipe.now + milliseconds * 1_000_000;
            while pipe.now < end {
                pipe.turn(&mut control);
            }
            control
        };
        pipe.others = 40 * PACKET;
        let beside = until(&mut pipe, 1000);
        assert!(beside.has_rival(), "{beside:?}");
        assert!(beside.window() >= alone / 3, "{alone} {beside:?}");
        pipe.others = 0;
        let after = until(&mut pipe, 500);
        assert!(!after.has_rival(), "{after:?}");
        assert!(pipe.queue(after.window()) <= pipe.rate * TARGET / 1_000_000 + 2 * PACKET, "{after:?}");
    }

    #[test]
    fn a_queue_that_others_fill_in_bursts_and_let_empty_is_answered_too() {
        let (mut pipe, mut control) = (Pipe::gigabit(), DelayWindow::default());
        pipe.turns(&mut control, 100);
        let end = pipe.now + 2_000_000_000;
        let mut random = crate::random::Random::new(3);
        while pipe.now < end {
            // The others are gone in about every tenth turn.
            pipe.others = if random.chance(100_000) { 0 } else { (60 + random.below(60)) * PACKET };
            pipe.turn(&mut control);
        }
        assert!(control.has_rival(), "{control:?}");
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
                2 => control.on_round_trip(at, lot(), lot()),
                _ => control.on_acked(at, Acked { bytes: lot(), late: lot(), under_way: lot(), packet: lot() % 9000 }),
            }
            assert!((LEAST..=MOST).contains(&control.window()));
        }
    }
}
