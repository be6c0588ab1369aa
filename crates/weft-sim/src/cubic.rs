//! One flow of TCP with CUBIC (RFC 9438), as a model: the traffic that weft's flows meet on links shared with the world.
//!
//! Modelled: slow start, the window's growth as a cubic function of time, its Reno-friendly region, fast convergence, one reduction
//! per round trip (RFC 5681, 3.2), SACK (RFC 2018), loss detection by segments sent later (the order of RFC 8985, the threshold of
//! three of RFC 6675), and time-outs (RFC 6298, at least 200 ms as in Linux). Not modelled: connection set-up, the receiver's
//! window, delayed acknowledgements, HyStart, pacing. The arithmetic is in integers, so that all machines agree.

use crate::model::{Model, Wire};
use crate::topology::HostId;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use weft_transport::Time;

/// The congestion window, in segments.
#[derive(Clone, Copy, Debug)]
pub struct Cubic {
    /// The congestion window. All windows are in [`PARTS`] of a segment.
    window: u64,
    /// Slow start ends at this window.
    threshold: u64,
    /// The window before the last reduction (W_max).
    window_most: u64,
    /// The window that Reno would have by now.
    reno: u64,
    epoch: Option<Epoch>,
}

/// Growth since a reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Time,
    /// K: microseconds until the window is back at its value before the reduction.
    plateau_in: u64,
}

/// Sends segments without end, from a given time on.
#[derive(Debug)]
pub struct CubicSender {
    to: HostId,
    starts: Time,
    cubic: Cubic,
    /// Segments from number `first` on that are not acknowledged in order.
    flight: VecDeque<Segment>,
    first: u32,
    /// Transmissions so far.
    serial: u64,
    /// The latest transmission that is known to have arrived.
    seen: u64,
    /// Segments under way: sent, and neither known to have arrived nor known to be lost.
    under_way: u64,
    /// No further reduction until everything below this segment has arrived.
    recovery_until: Option<u32>,
    round_trip: Option<(Duration, Duration)>,
    timeouts: u32,
    timeout_at: Time,
}

/// Takes segments in and acknowledges each.
#[derive(Debug, Default)]
pub struct CubicReceiver {
    /// All segments before this one have arrived.
    next: u32,
    /// Ranges that arrived ahead of `next`: first segment to one past the last.
    ahead: BTreeMap<u32, u32>,
    /// The last segment that arrived.
    last: u32,
    bytes: Rc<Cell<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    serial: u64,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    UnderWay,
    Came,
    Lost,
}

/// Parts of a segment.
const PARTS: u64 = 1024;

/// The initial window (RFC 6928), and the least.
const WINDOW_FIRST: u64 = 10 * PARTS;
const WINDOW_LEAST: u64 = 2 * PARTS;

/// A segment is lost when this many sent after it have arrived.
const THRESHOLD: u64 = 3;

const TIMEOUT_LEAST: Duration = Duration::from_millis(200);
const TIMEOUT_FIRST: Duration = Duration::from_secs(1);

/// TCP's header with time stamps, less UDP's header, which the link adds.
const HEADER: usize = 24;

/// Ranges of segments in an acknowledgement.
const RANGES: usize = 3;

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic { window: WINDOW_FIRST, threshold: u64::MAX, window_most: 0, reno: 0, epoch: None }
    }
}

impl Cubic {
    /// Segments that may be under way.
    pub fn window(&self) -> u64 {
        self.window / PARTS
    }

    /// `segments` arrived while the window was in full use.
    pub fn on_acked(&mut self, now: Time, segments: u64, round_trip: Duration) {
        if self.window < self.threshold {
            self.window = (self.window + segments * PARTS).min(self.threshold.max(self.window));
            return;
        }
        let epoch = *self.epoch.get_or_insert_with(|| {
            // 4.2: W(0) = W_max * beta, so K is the time at which the cube has grown by the difference.
            let missing = self.window_most.saturating_sub(self.window);
            self.window_most = self.window_most.max(self.window);
            self.reno = self.window;
            // C = 0.4 segments per second cubed: K^3 = missing / 0.4, in microseconds.
            let cube = u128::from(missing) * 10 * 1_000_000_000_000_000_000 / (4 * u128::from(PARTS));
            Epoch { began: now, plateau_in: cube_root(cube) }
        });
        let target = self.cubic_at(epoch, now.since(epoch.began) + round_trip);
        let target = target.clamp(self.window, self.window * 3 / 2);
        // 4.3: with this reduction Reno grows by 3 (1 - 0.7) / (1 + 0.7) = 9/17 segments per round trip, and by one above W_max.
        let (up, down) = if self.reno < self.window_most { (9, 17) } else { (1, 1) };
        self.reno += segments * PARTS * PARTS * up / (down * self.window);
        let grown = self.window + (target - self.window) * segments * PARTS / self.window;
        self.window = grown.max(self.reno);
    }

    /// A segment was lost, the first one since the flow recovered from the last reduction.
    pub fn on_lost(&mut self) {
        // 4.7, fast convergence: a flow that gets less than last time makes room for others.
        self.window_most = if self.window < self.window_most { self.window * 17 / 20 } else { self.window };
        self.window = (self.window * 7 / 10).max(WINDOW_LEAST);
        (self.threshold, self.epoch) = (self.window, None);
    }

    /// Nothing arrived for a whole time-out.
    pub fn on_timeout(&mut self) {
        self.on_lost();
        self.window = PARTS;
    }

    /// W_cubic(t) = C (t - K)^3 + W_max.
    fn cubic_at(&self, epoch: Epoch, passed: Duration) -> u64 {
        let from_plateau = passed.as_micros() as i128 - i128::from(epoch.plateau_in);
        let gained = from_plateau.pow(3) * i128::from(PARTS) * 4 / 10_000_000_000_000_000_000;
        u64::try_from(i128::from(self.window_most) + gained).unwrap_or(0)
    }
}

/// The whole part of the cube root.
fn cube_root(of: u128) -> u64 {
    (0..42).rev().fold(0u64, |root, bit| {
        let next = root | 1 << bit;
        if u128::from(next).pow(3) <= of {
            next
        } else {
            root
        }
    })
}

impl CubicSender {
    /// Sends to this host, beginning at `starts`.
    pub fn new(to: HostId, starts: Duration) -> CubicSender {
        let starts = Time::default() + starts;
        CubicSender {
            to,
            starts,
            cubic: Cubic::default(),
            flight: VecDeque::new(),
            first: 0,
            serial: 0,
            seen: 0,
            under_way: 0,
            recovery_until: None,
            round_trip: None,
            timeouts: 0,
            timeout_at: starts,
        }
    }

    /// Sends what may be sent: lost segments first.
    fn send_more(&mut self, wire: &mut Wire<'_>) {
        let mut from = 0;
        while self.under_way < self.cubic.window().max(1) {
            let lost = (from..self.flight.len()).find(|at| self.flight[*at].fate == Fate::Lost);
            let at = lost.unwrap_or(self.flight.len());
            from = at + usize::from(lost.is_some());
            if self.under_way == 0 {
                self.timeout_at = wire.now() + self.timeout();
            }
            self.serial += 1;
            let segment = Segment { serial: self.serial, fate: Fate::UnderWay };
            match lost {
                Some(at) => self.flight[at] = segment,
                None => self.flight.push_back(segment),
            }
            self.under_way += 1;
            self.transmit(wire, self.first.wrapping_add(at as u32), lost.is_none());
        }
        wire.wake_at(self.timeout_at);
    }

    fn transmit(&self, wire: &mut Wire<'_>, number: u32, is_fresh: bool) {
        let mut packet = vec![0; usize::from(wire.packet_bytes())];
        packet[..4].copy_from_slice(&number.to_le_bytes());
        packet[4..12].copy_from_slice(&wire.now().as_nanos().to_le_bytes());
        if is_fresh {
            wire.note_sent(self.to, &[number], &packet[HEADER..]);
        }
        wire.send(self.to, &packet);
    }

    /// Marks these ranges as arrived. Returns how many segments are new.
    fn on_came(&mut self, ranges: &[(u32, u32)]) -> u64 {
        let mut came = 0;
        for &(from, until) in ranges {
            let from = from.wrapping_sub(self.first) as i32;
            let until = until.wrapping_sub(self.first) as i32;
            for at in from.max(0)..until.min(self.flight.len() as i32) {
                let segment = &mut self.flight[at as usize];
                match std::mem::replace(&mut segment.fate, Fate::Came) {
                    Fate::Came => continue,
                    Fate::UnderWay => self.under_way -= 1,
                    Fate::Lost => {}
                }
                self.seen = self.seen.max(segment.serial);
                came += 1;
            }
        }
        while self.flight.front().is_some_and(|segment| segment.fate == Fate::Came) {
            self.flight.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        came
    }

    /// Finds segments that must be lost. True if there are any.
    fn find_lost(&mut self) -> bool {
        let before = self.under_way;
        for segment in &mut self.flight {
            if segment.fate == Fate::UnderWay && segment.serial + THRESHOLD <= self.seen {
                segment.fate = Fate::Lost;
                self.under_way -= 1;
            }
        }
        self.under_way < before
    }

    fn note_round_trip(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((smoothed, deviation)) => {
                ((smoothed * 7 + sample) / 8, (deviation * 3 + smoothed.abs_diff(sample)) / 4)
            }
        });
    }

    fn timeout(&self) -> Duration {
        let once = self.round_trip.map_or(TIMEOUT_FIRST, |(smoothed, deviation)| smoothed + deviation * 4);
        once.max(TIMEOUT_LEAST) * (1 << self.timeouts.min(6))
    }
}

impl Model for CubicSender {
    fn on_start(&mut self, wire: &mut Wire<'_>) {
        wire.wake_at(self.starts);
    }

    fn on_packet(&mut self, wire: &mut Wire<'_>, from: HostId, packet: &[u8]) {
        let Some((sent_at, next, ranges)) = read_ack(packet).filter(|_| from == self.to) else { return };
        let now = wire.now();
        let all: Vec<_> = std::iter::once((self.first, next)).chain(ranges).collect();
        let was_in_use = self.under_way + 1 >= self.cubic.window();
        let came = self.on_came(&all);
        if came > 0 {
            let round_trip = now.since(sent_at);
            self.note_round_trip(round_trip);
            self.timeouts = 0;
            self.timeout_at = now + self.timeout();
            self.recovery_until = self.recovery_until.filter(|until| (self.first.wrapping_sub(*until) as i32) < 0);
            if self.recovery_until.is_none() && was_in_use {
                self.cubic.on_acked(now, came, round_trip);
            }
        }
        if self.find_lost() && self.recovery_until.is_none() {
            self.recovery_until = Some(self.first.wrapping_add(self.flight.len() as u32));
            self.cubic.on_lost();
        }
        self.send_more(wire);
    }

    fn on_alarm(&mut self, wire: &mut Wire<'_>) {
        if wire.now() >= self.timeout_at && self.under_way > 0 {
            for segment in self.flight.iter_mut().filter(|segment| segment.fate == Fate::UnderWay) {
                segment.fate = Fate::Lost;
            }
            self.under_way = 0;
            self.timeouts += 1;
            self.recovery_until = Some(self.first.wrapping_add(self.flight.len() as u32));
            self.cubic.on_timeout();
        }
        self.send_more(wire);
    }
}

impl CubicReceiver {
    /// The counter of bytes that have arrived, each counted once.
    pub fn bytes(&self) -> Rc<Cell<u64>> {
        self.bytes.clone()
    }

    fn take(&mut self, number: u32) -> bool {
        if (number.wrapping_sub(self.next) as i32) < 0 {
            return false;
        }
        let before = self.ahead.range(..=number).next_back().map(|(from, until)| (*from, *until));
        if before.is_some_and(|(_, until)| number < until) {
            return false;
        }
        let mut range = (number, number + 1);
        if let Some((from, _)) = before.filter(|(_, until)| *until == number) {
            range.0 = from;
        }
        if let Some(until) = self.ahead.remove(&range.1) {
            range.1 = until;
        }
        self.ahead.insert(range.0, range.1);
        if let Some(until) = self.ahead.remove(&self.next) {
            self.next = until;
        }
        true
    }

    /// The range of the last segment first, then those nearest to the first gap.
    fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let last = self.ahead.range(..=self.last).next_back().filter(|(_, until)| self.last < **until);
        last.into_iter().chain(&self.ahead).take(RANGES).map(|(from, until)| (*from, *until))
    }
}

impl Model for CubicReceiver {
    fn on_start(&mut self, _wire: &mut Wire<'_>) {}

    fn on_packet(&mut self, wire: &mut Wire<'_>, from: HostId, packet: &[u8]) {
        let Some(number) = word(packet, 0).filter(|_| packet.len() > HEADER) else { return };
        self.last = number;
        if self.take(number) {
            self.bytes.set(self.bytes.get() + (packet.len() - HEADER) as u64);
            wire.note_delivered(from, &[number], &packet[HEADER..]);
        }
        // 12 bytes of time stamp and number, then the segments that came in order and those that came ahead.
        let mut ack = packet[4..12].to_vec();
        ack.extend_from_slice(&self.next.to_le_bytes());
        for (from, until) in self.ranges() {
            ack.extend_from_slice(&from.to_le_bytes());
            ack.extend_from_slice(&until.to_le_bytes());
        }
        ack.resize(HEADER.max(ack.len()), 0);
        wire.send(from, &ack);
    }
}

fn word(packet: &[u8], at: usize) -> Option<u32> {
    packet.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

type Ack = (Time, u32, Vec<(u32, u32)>);

fn read_ack(packet: &[u8]) -> Option<Ack> {
    let sent_at = u64::from_le_bytes(*packet.first_chunk()?);
    let next = word(packet, 8)?;
    let pairs = packet[12..].chunks_exact(8).filter_map(|pair| Some((word(pair, 0)?, word(pair, 4)?)));
    Some((Time::from_nanos(sent_at), next, pairs.filter(|(from, until)| from < until).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{cubic_alone, gigabit};

    /// A window that was reduced from 1,000 segments.
    fn reduced() -> Cubic {
        let mut cubic = Cubic { window: 1000 * PARTS, ..Cubic::default() };
        cubic.on_lost();
        cubic
    }

    /// The window a given time after the first acknowledgement that follows a reduction, with a round trip of 100 ms.
    fn after(mut cubic: Cubic, time: Duration) -> u64 {
        let (round_trip, mut now) = (Duration::from_millis(100), Time::from_micros(77));
        let ends = now + time;
        while now + round_trip <= ends {
            (0..cubic.window()).for_each(|_| cubic.on_acked(now, 1, round_trip));
            now = now + round_trip;
        }
        cubic.window()
    }

    #[test]
    fn the_window_follows_the_cubic_function() {
        // K = cbrt(1000 * 0.3 / 0.4) = 9.086 s; W(t) = 0.4 (t - K)^3 + 1000.
        assert_eq!(reduced().window(), 700);
        for (seconds, wanted) in [(2, 858), (5, 972), (9, 1000), (12, 1010), (15, 1083)] {
            let found = after(reduced(), Duration::from_secs(seconds));
            assert!(found.abs_diff(wanted) <= wanted / 50, "{found} after {seconds} s, not {wanted}");
        }
    }

    #[test]
    fn a_small_window_grows_as_reno_would() {
        // W_max = 20, so 14 at first, then 9/17 of a segment more per round trip: 20 after 11.4 of them.
        let mut cubic = Cubic { window: 20 * PARTS, ..Cubic::default() };
        cubic.on_lost();
        let (round_trip, mut now) = (Duration::from_micros(400), Time::default());
        for _ in 0..12 {
            (0..cubic.window()).for_each(|_| cubic.on_acked(now, 1, round_trip));
            now = now + round_trip;
        }
        assert!((19..=21).contains(&cubic.window()), "{cubic:?}");
    }

    #[test]
    fn a_loss_below_the_last_maximum_leaves_room_for_others() {
        let mut cubic = reduced();
        cubic.on_acked(Time::default(), 1, Duration::from_millis(1));
        cubic.on_lost();
        assert_eq!((cubic.window(), cubic.window_most / PARTS), (490, 700 * 17 / 20));
        cubic.on_timeout();
        assert_eq!(cubic.window(), 1);
    }

    #[test]
    fn a_cube_root_is_the_largest_whole_number_that_fits() {
        for root in [1u64, 2, 9_086_000, 1 << 41] {
            let cube = u128::from(root).pow(3);
            assert_eq!((cube_root(cube), cube_root(cube + 1)), (root, root));
            assert_eq!(cube_root(cube - 1), root - 1);
        }
    }

    #[test]
    fn segments_are_taken_once_and_in_any_order() {
        let mut receiver = CubicReceiver::default();
        let taken = [3, 1, 1, 0, 5, 2, 3, 0].map(|number| receiver.take(number));
        assert_eq!(taken, [true, true, false, true, true, true, false, false]);
        assert_eq!((receiver.next, receiver.ahead.len()), (4, 1));
    }

    #[test]
    fn one_flow_fills_a_link_whose_queue_holds_a_round_trip() {
        let row = cubic_alone(1, gigabit(Duration::from_micros(95), 50_000));
        let [weft, cubic] = row.shares;
        assert_eq!(weft, 0.0);
        assert!(cubic >= 0.95, "{row:?}");
        assert!((10..5000).contains(&row.dropped), "it finds the queue's end now and then: {row:?}");
    }
}
