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
//! * A queue is too long if it was for every packet of two turns: hosts and links are away for a moment, for hosts share their cores with
//!   other work. A cut after which the delay fell by far more than the window was not needed either, and is taken back but for a tenth.
//! * The target is longer where packets lie at hosts that are busy: the queue is to last until they come back.
//! * If the queue is not seen empty though this one lets it empty time and again, or is long in the mean, somebody fills it who does not look
//!   at delay (TCP CUBIC). Then delay is given up and loss decides, as it does for him, until the queue is seen empty again.
//! * Loss counts if it comes while the queue is about as long as it was lately seen to be, as at a queue that is full; or when it is a
//!   quarter of all; and if it is four times what is lost while the queue is short. Otherwise the link is to blame, and sending less would not help.

use super::{Acked, Congestion};
use crate::time::Time;
use std::time::Duration;

/// The window's range. With the least, a packet of 1,472 bytes goes every 12 round trips.
const LEAST: u64 = 128;
const MOST: u64 = 64 << 20;

/// Time in queues that is aimed at: this, but not less than a part of the round trip without queues. Less is not told apart from
/// the delays of busy hosts.
const TARGET: u64 = 270_000;
const TARGET_PART: u64 = 4;

/// What is under way lies at hosts that share their cores with other work, and then comes all at once. The queue is to last until it does: the
/// target is longer by so many times what packets lie at hosts in the mean, up to the second figure.
const AWAY_TIMES: u64 = 4;
const AWAY_MOST: u64 = 3 * TARGET;

/// But if the queue was found full twice within [`NO_LOSS`], no longer than such a part of it: others want some.
const FULL_PART: u64 = 2;

/// Longer round trips count as this.
const ROUND_TRIP_MOST: u64 = 60_000_000_000;

/// The part of the target up to which a queue is none to speak of; and with a packet's time on the link, by which a queue of one is longer than base
/// says if that was measured with small packets or before the link became slower.
const NEAR_PART: u64 = 8;
const NEAR_PART_MOST: u64 = 2;

/// No cut leaves less than one in so many of the window.
const CUT_MOST: u64 = 3;

/// If the queue is too long all that time, the round trip without queues is measured anew: the way may have become longer.
const LONG_MOST: Duration = Duration::from_secs(10);

/// If nothing was lost for so long, no cut leaves less than a packet, and less than that grows to it. Over a slow link a large packet takes longer than the small ones by which the
/// round trip was measured, and no cut would help.
const NO_LOSS: Duration = Duration::from_secs(1);

/// If the queue was not seen empty for so long, and so many round trips, it is emptied.
const DIP_EVERY: Duration = Duration::from_millis(200);
const DIP_ROUND_TRIPS: u32 = 128;

/// No dip waits for longer delays than so many times base and target.
const DELAY_MOST: u64 = 64;

/// In a dip the window is less by such a part than what would just fill the way if all who share it dipped; and beside a rival, where it is to
/// tell whether he is still there.
const DIP_PART: u64 = 2;
const RIVAL_DIP_PART: u64 = 4;

/// After so many dips in which the queue did not empty there is a rival, who does not look at delay. They are counted up to the second
/// figure; one in which it did empty takes back two, for it may do so by chance.
const BLIND_DIPS: u8 = 5;
const BLIND_DIPS_MOST: u8 = 9;
const SEEING_DIP: u8 = 2;

/// Beside a rival: what the window grows by in a turn, in eighths of a packet, and what is left of it after a loss, in tenths. CUBIC grows by
/// half a packet in a round trip where its links are short, and goes on with seven tenths; its packets come one by one, ours a few at a
/// time, and find a full queue more often.
const RIVAL_GROWTH: u64 = 4;
const RIVAL_KEEPS: u64 = 8;

/// Over shorter ways a decision is for as many round trips as last so long: deciding is work too.
const TURN_LEAST: u64 = 20_000;

/// Decisions in a row with no queue to speak of, from which on the steps double.
const CALM: u8 = 4;

/// Round trips for which a decision may count.
const STEPS_MOST: u64 = 4;

/// Packets are spaced evenly while less than this may be under way.
const SPACED_BELOW: u64 = 16 * 1472;

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
    /// The time between two full packets, as they come there.
    spacing: u64,
    /// The longest time in queues, up to the target; slowly forgotten.
    longest: u64,
    /// The share of bytes that is lost while the queue is short.
    usual_loss: u64,
    /// When something was last lost because there was too much.
    lossy_at: Time,
    /// The time in queues, in the mean of the last turns.
    usual_queue: u64,
    /// The time for which packets lie at hosts, in the mean of the last turns in which the window was full.
    away: u64,
    /// The time in the queue when it was last found full; the largest value if that was long ago, or only once.
    full: u64,
    /// Decisions in a row with no queue to speak of.
    calm: u8,
    /// Since when the queue is too long, and the least delay since then.
    long: Option<(Time, u64)>,
    /// Window and delay before the last cut, while the queue is too long.
    cut: Option<(u64, u64)>,
    turn: Turn,
    /// The least round trip of the turn before.
    before: u64,
    /// Dips in which the queue was not seen empty, less those in which it was. See [`BLIND_DIPS`].
    blind: u8,
    /// When the last dip ended, or what counts as one.
    dipped_at: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The window doubles.
    Start,
    /// The delay decides.
    Delay,
    /// So little is sent that the queue empties, since and until when; and the window after that.
    Dip { since: Time, until: Time, then: u64 },
}

/// What came since the last decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turn {
    since: Time,
    /// Not before this comes the next.
    until: Time,
    /// The round trips of packets sent since then: how many, their sum, and the shortest.
    samples: u64,
    sum: u64,
    least: u64,
    /// The sum of the times for which they lay at hosts.
    lay: u64,
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

    /// Their mean. There is one.
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
            // What was sent in a dip says nothing of the queue outside; and a rival lets it empty for a moment too.
            let is_of_dip = self.is_dip() || took >= now.nanos_since(self.dipped_at);
            if !is_of_dip && self.usual_queue < least_target(self.base) {
                self.blind = 0;
            }
        }
        // Of what was sent before, the last decision was not known.
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
    /// To begin with: ten packets of Ethernet's size (RFC 6928).
    pub const FIRST: u64 = 10 * 1472;

    /// The end of a round trip.
    fn decide(&mut self, now: Time) {
        let turn = self.turn;
        let delay = turn.delay();
        // A host or a link that was away makes some packets of a turn late, or all; a queue those of the next one too.
        let lasting = turn.least.min(std::mem::replace(&mut self.before, turn.least));
        let [queue, lasting_queue] = [delay, lasting].map(|delay| delay.saturating_sub(self.base));
        self.learn_away(&turn);
        let target = self.target();
        // Hosts that were away for long are not waited for.
        let lasts = (delay.min(self.base + target) / 4 * 5).max(TURN_LEAST);
        self.turn = Turn::new(now, lasts, turn.packet);
        // Asked only where the window changes: most decisions of who has little to say change nothing.
        let window = self.window;
        let steps = || steps(window, turn.packet, now.nanos_since(turn.since) / lasts.max(1));
        let is_used = turn.under_way >= window / 2;
        let is_lossy = self.note_losses(&turn, queue, target) && (turn.was_full || (self.has_rival() && is_used));
        let is_new_loss = is_lossy && now.since(self.lossy_at) >= 2 * Duration::from_nanos(delay);
        if is_lossy {
            // One may be of the beginning.
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
                // What is too much before the dip is too much after it.
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
            // Who has far less under way than he may is not to blame.
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

    /// Whether no round trip without a queue was seen for so long that what is held for one may be none.
    fn is_dip_due(&self, now: Time) -> bool {
        let after = DIP_EVERY.max(Duration::from_nanos(self.base).saturating_mul(DIP_ROUND_TRIPS));
        self.phase == Phase::Delay && now.since(self.near_at) >= after
    }

    /// Sends so little for a moment that the queue empties, if all who fill it do so. It was filled by windows such as this one.
    fn dip(&mut self, now: Time, delay: u64, window: u64) {
        // A clock that jumped is no delay.
        let delay = delay.min(DELAY_MOST * (self.base + least_target(self.base)));
        let until = now + 2 * Duration::from_nanos(delay);
        self.phase = Phase::Dip { since: now, until, then: self.window };
        let fills = scale(window, self.base, delay);
        self.set_window(fills - fills / if self.has_rival() { RIVAL_DIP_PART } else { DIP_PART });
    }

    /// The dip is over: counts what it showed, and goes on with the window from before.
    fn end_dip(&mut self, now: Time, was_seen_empty: bool, window: u64) {
        self.blind =
            if was_seen_empty { self.blind.saturating_sub(SEEING_DIP) } else { BLIND_DIPS_MOST.min(self.blind + 1) };
        self.phase = Phase::Delay;
        (self.near_at, self.dipped_at) = (now, now);
        self.set_window(window);
    }

    /// Whether somebody fills the queue who does not look at delay.
    fn has_rival(&self) -> bool {
        self.blind >= BLIND_DIPS
    }

    /// How long the queue is in the mean. If it is above the target by the least one, which it is not for long where all look at delay, it
    /// counts once between two dips as not seen empty, though it may be so for a moment: packets of TCP come in bursts.
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

    /// For how long packets lie at hosts while all is under way that may be.
    fn learn_away(&mut self, turn: &Turn) {
        if turn.was_full {
            self.away = (self.away * 15 + (turn.lay / turn.samples.max(1)).min(AWAY_MOST)) / 16;
        }
    }

    /// The time in queues that is aimed at.
    fn target(&self) -> u64 {
        let of_busy_hosts = TARGET + (AWAY_TIMES * self.away).min(AWAY_MOST);
        least_target(self.base).max(of_busy_hosts.min(self.full / FULL_PART))
    }

    fn is_dip(&self) -> bool {
        matches!(self.phase, Phase::Dip { .. })
    }

    /// How far apart packets come, and with it how much of a queue is none to speak of.
    fn learn_spacing(&mut self, turn: &Turn, now: Time) {
        if turn.was_full && turn.acked > 0 {
            let elapsed = now.nanos_since(turn.since);
            self.spacing = (self.spacing * 7 + scale(elapsed, turn.packet, turn.acked).min(ROUND_TRIP_MOST)) / 8;
        }
        self.set_base(self.base);
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
        let share = if turn.lost == 0 { 0 } else { scale(ONE, turn.lost, turn.lost + turn.acked) };
        let is_more = share > USUAL_TIMES * self.usual_loss;
        let least = target / NEAR_PART;
        if queue < least.max(self.longest / 2) && !self.has_rival() {
            self.usual_loss = (self.usual_loss * 7 + share) / 8;
        }
        is_more && (queue >= least.max(self.longest / 4 * 3) || share > ONE / 4)
    }

    /// Something was lost because there was too much.
    fn on_full_queue(&mut self) {
        self.phase = Phase::Delay;
        self.calm = 0;
        self.cut = None;
        self.set_window(self.lossy_window());
    }

    /// What is left of the window if something was lost because there was too much.
    fn lossy_window(&self) -> u64 {
        self.window / 10 * 7
    }

    /// The queue is too long.
    fn cut(&mut self, now: Time, delay: u64, target: u64, steps: u64, is_lossy: bool) {
        // The delay does not know yet how much the window grew last.
        let was_start = std::mem::replace(&mut self.phase, Phase::Delay) == Phase::Start;
        self.cut = (!was_start).then_some((self.window, delay));
        self.calm = 0;
        let excess = delay.saturating_sub(self.base + target);
        let less = self.window - scale(self.window, excess / 5 * 4, delay);
        let least = if now.since(self.lossy_at) < NO_LOSS { 0 } else { self.turn.packet.min(self.window + steps) };
        let less = less.max(self.window / CUT_MOST).max(least);
        self.set_window(if is_lossy { less.min(self.lossy_window()) } else { less });
    }

    /// The queue is not too long any more. Takes the last cut back, but for a tenth, if the delay fell by far more than by what it can have
    /// brought.
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
            // It needs no more than this, and the network has room: as at the beginning.
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

/// The time in queues that is aimed at, if a round trip without them takes so long, and hosts are quick.
fn least_target(base: u64) -> u64 {
    TARGET.max(base / TARGET_PART)
}

/// How much a window grows in so many round trips. Who sends a packet in several of them decides as seldom, and steps as far.
fn steps(window: u64, packet: u64, round_trips: u64) -> u64 {
    let step = ((window * packet).isqrt() / 16).clamp(1, packet.max(1));
    round_trips.clamp(1, STEPS_MOST) * step
}

/// `value` times `by` over `over`.
fn scale(value: u64, by: u64, over: u64) -> u64 {
    let over = over.max(1);
    // Nearly always: 128 bits take far longer to divide.
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

    /// A link as fluids have it: what is under way beyond rate times round trip waits.
    struct Pipe {
        now: u64,
        /// Bytes per millisecond.
        rate: u64,
        base: u64,
        /// Bytes of others that wait.
        others: u64,
        room: u64,
        /// For how long packets lie at hosts.
        lay: u64,
    }

    impl Pipe {
        fn gigabit() -> Pipe {
            Pipe { now: 1_000_000, rate: 125_000, base: BASE, others: 0, room: 1 << 30, lay: 0 }
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
            // Without the dips, and what follows them.
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
            // Gone for every tenth turn or so.
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
