//! Sent packets whose fate is open: what was in them, which arrived, which are lost.

use crate::outgoing::{Run, Violation};
use crate::packet_size::PacketSize;
use crate::rare::{self, Point};
use crate::sequence::widen;
use crate::time::Time;
use std::collections::VecDeque;
use weft_wire::frame::StreamId;
use weft_wire::packet::SPAN;

/// What has to be sent again if its packet is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SentFrame {
    Records(StreamId, Run),
    Taken(StreamId),
    /// Of a stream that was closed.
    LastWord(StreamId),
    /// A pause or resumption of a stream.
    Pause(StreamId),
    /// A proposal to close a stream at rest, or that it stays.
    Rest(StreamId),
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    InFlight,
    /// It tries a packet size, and does not count as in flight.
    Trial,
    /// It arrived, or asked for no acknowledgement.
    Done,
    /// Declared lost. It may still arrive.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// When it was sent, or, if it is lost, when it was given up.
    at: Time,
    /// Where its frames begin in the queue, as a wrapping count.
    frames: u32,
    bytes: u16,
    state: State,
}

impl Entry {
    /// Whether it may arrive and was not given up.
    #[inline]
    fn is_open(&self) -> bool {
        matches!(self.state, State::InFlight | State::Trial)
    }
}

/// What acknowledgements changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Acked {
    /// Bytes that were in flight.
    pub bytes: u64,
    /// Packets that had been declared lost, and their bytes.
    pub late: u32,
    pub late_bytes: u64,
}

/// Packets that were declared lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lost {
    pub packets: u64,
    pub bytes: u64,
}

/// The most packets that are tracked: fewer than the peer can track.
const FOLLOWED_MOST: usize = SPAN as usize - 2;

/// Lost packets are remembered for a while, so that a late acknowledgement is recognised, but not beyond this many
/// newer packets.
const REMEMBERED_MOST: usize = SPAN as usize / 2;

/// How many later packets must arrive before a packet is declared lost: at first, and at most once the path was seen to
/// reorder.
const REORDER_FIRST: u64 = 3;
const REORDER_MOST: u64 = 256;

/// A trial that nothing overtakes is given up after this many nanoseconds, the longest that an acknowledgement may be delayed.
const TRIAL_WAIT: u64 = 50_000_000;

/// The most packets that are checked on the fast path for each arrival.
const FEW: usize = 2;

/// The packets from the oldest on whose fate matters.
#[derive(Debug)]
pub(crate) struct Sent {
    entries: VecDeque<Entry>,
    frames: VecDeque<SentFrame>,
    /// The count at the front of `frames`.
    frames_from: u32,
    /// The number of the first entry.
    oldest: u64,
    next: u64,
    /// No packet below is in flight.
    open_from: u64,
    /// One more than the highest that arrived.
    came_below: u64,
    /// The last number that was skipped.
    skipped: Option<u64>,
    in_flight: u64,
    reorder: u64,
    /// The number of the last trial.
    trial: u64,
    /// The packet size, learnt from the fates of packets.
    pub size: PacketSize,
}

impl Sent {
    /// Nothing sent. The first packet gets the number `first` and may have `size` bytes.
    pub fn new(first: u64, size: u16) -> Sent {
        Sent {
            entries: VecDeque::new(),
            frames: VecDeque::new(),
            frames_from: 0,
            oldest: first,
            next: first,
            open_from: first,
            came_below: first,
            skipped: None,
            in_flight: 0,
            reorder: REORDER_FIRST,
            trial: 0,
            size: PacketSize::new(size),
        }
    }

    /// Makes room for one more packet. If necessary the oldest is given up, and its frames have to be sent again.
    pub fn make_room(&mut self, mut lost: impl FnMut(SentFrame)) {
        while self.entries.len() >= FOLLOWED_MOST {
            if self.entries[0].is_open() {
                self.give_up(0, Time::default(), &mut lost);
            }
            self.drop_oldest(1);
        }
    }

    /// Skips a number: a peer that acknowledges it lies.
    pub fn skip(&mut self) {
        self.skipped = Some(self.next);
        self.push(Entry { at: Time::default(), frames: self.frames_end(), bytes: 0, state: State::Done });
    }

    /// Notes a frame of the packet that is being built.
    #[inline]
    pub fn note(&mut self, frame: SentFrame) {
        self.frames.push_back(frame);
    }

    /// Completes the packet; `noted` frames of it were noted. One that asks is in flight until it is acknowledged.
    #[inline]
    pub fn finish(&mut self, now: Time, bytes: usize, noted: u32, asks: bool) {
        let frames = self.frames_end().wrapping_sub(noted);
        let state = if asks { State::InFlight } else { State::Done };
        self.push(Entry { at: now, frames, bytes: bytes as u16, state });
        self.in_flight += if asks { bytes as u64 } else { 0 };
    }

    /// Completes a packet that tries a size.
    pub fn finish_trial(&mut self, now: Time, bytes: usize) {
        self.size.on_trial(bytes as u16);
        self.trial = self.next;
        self.push(Entry { at: now, frames: self.frames_end(), bytes: bytes as u16, state: State::Trial });
    }

    /// Whether this acknowledgement covers everything and is the simple case: only a few packets were in flight, none
    /// of them lost, and no number was skipped.
    #[inline]
    pub fn has_all_come(&self, acked: u32) -> bool {
        acked == self.next as u32
            && self.entries.len() <= FEW
            && self.entries.iter().all(|entry| entry.state == State::InFlight)
    }

    /// Whether no packet's fate is open or remembered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Processes acknowledgements: that of the header, and a bitmap from there on. `came` is called with each frame
    /// that arrived.
    pub fn on_acks(
        &mut self,
        now: Time,
        acked: u32,
        bitmap: &[u8],
        mut came: impl FnMut(SentFrame),
    ) -> Result<Acked, Violation> {
        let below = widen(self.next, acked);
        self.check(below, bitmap)?;
        let mut change = Acked::default();
        for number in self.oldest..below {
            self.on_came(now, number, &mut change, &mut came);
        }
        for (at, _) in bitmap.iter().enumerate().filter(|(_, &byte)| byte != 0) {
            for bit in (0..8).filter(|bit| bitmap[at] >> bit & 1 != 0) {
                self.on_came(now, below + at as u64 * 8 + bit, &mut change, &mut came);
            }
        }
        self.retire(None);
        Ok(change)
    }

    /// Gives up packets that later ones have overtaken: by count, or by `patience`, in nanoseconds.
    #[inline]
    pub fn find_lost(&mut self, now: Time, patience: u64, lost: impl FnMut(SentFrame)) -> Lost {
        if self.entries.is_empty() {
            // Everything arrived: the usual case with request/reply traffic.
            self.open_from = self.open_from.max(self.came_below);
            return Lost::default();
        }
        self.find_lost_of_some(now, patience, lost)
    }

    fn find_lost_of_some(&mut self, now: Time, patience: u64, mut lost: impl FnMut(SentFrame)) -> Lost {
        let before = self.in_flight;
        let mut packets = 0;
        let mut is_first = true;
        for number in self.open_from..self.came_below {
            let Some(at) = self.index(number).filter(|&at| self.entries[at].is_open()) else { continue };
            let is_late =
                self.came_below - 1 - number >= self.reorder || now >= self.entries[at].at.plus_nanos(patience);
            if is_late || rare::fires(Point::LossSpurious) {
                packets += u64::from(self.entries[at].state == State::InFlight);
                self.give_up(at, now, &mut lost);
            } else if std::mem::take(&mut is_first) {
                self.open_from = number;
            }
        }
        if is_first {
            self.open_from = self.open_from.max(self.came_below);
        }
        let is_late = |e: &Entry| e.state == State::Trial && now >= e.at.plus_nanos(patience * 2 + TRIAL_WAIT);
        if let Some(at) = self.index(self.trial).filter(|&at| is_late(&self.entries[at])) {
            self.give_up(at, now, &mut lost);
        }
        self.retire(Some((now, patience)));
        Lost { packets, bytes: before - self.in_flight }
    }

    /// Gives up the oldest packet in flight, so that its frames are sent again. False if there is none.
    pub fn give_up_oldest(&mut self, now: Time, mut lost: impl FnMut(SentFrame)) -> bool {
        let oldest = self.first_in_flight();
        if let Some(at) = oldest {
            self.give_up(at, now, &mut lost);
            self.retire(None);
        }
        oldest.is_some()
    }

    /// Gives up all packets of at least `bytes` bytes, because the link refuses them.
    pub fn give_up_large(&mut self, now: Time, bytes: u16, mut lost: impl FnMut(SentFrame)) -> u64 {
        let mut packets = 0;
        for at in 0..self.entries.len() {
            let entry = self.entries[at];
            if entry.is_open() && entry.bytes >= bytes {
                packets += u64::from(entry.state == State::InFlight);
                self.give_up(at, now, &mut lost);
            }
        }
        self.size.on_refused(bytes);
        self.retire(None);
        packets
    }

    /// Frees memory that is not needed.
    pub fn rest(&mut self) {
        self.entries.shrink_to_fit();
        self.frames.shrink_to_fit();
    }

    /// The number of the next packet.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The distance from the oldest tracked packet to the next one.
    #[inline]
    pub fn behind(&self) -> u16 {
        (self.next - self.oldest) as u16
    }

    /// Whether one more packet could be tracked without giving up another.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.entries.len() < FOLLOWED_MOST - 2
    }

    /// Bytes of packets that were neither acknowledged nor given up.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// When to give up the first packet that others overtook.
    pub fn lost_at(&self, patience: impl FnOnce() -> u64) -> Option<Time> {
        let numbers = self.open_from.max(self.oldest)..self.came_below;
        let mut open = numbers.filter_map(|n| self.index(n)).map(|at| &self.entries[at]);
        open.find(|e| e.is_open()).map(|e| e.at.plus_nanos(patience()))
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * std::mem::size_of::<Entry>()
            + self.frames.capacity() * std::mem::size_of::<SentFrame>()
    }

    /// Checks that only packets that were sent are acknowledged.
    fn check(&self, below: u64, bitmap: &[u8]) -> Result<(), Violation> {
        let last_set = bitmap.iter().rposition(|&b| b != 0).map(|at| at as u64 * 8 + u64::from(bitmap[at].ilog2()));
        // A number below zero has wrapped around to a large one.
        let top = last_set.map_or(Some(below), |last| below.checked_add(last + 1)).ok_or(Violation)?;
        let lies = self.skipped.filter(|&n| n >= self.oldest).is_some_and(|n| {
            let bit = n.wrapping_sub(below);
            below > n || bitmap.get((bit / 8) as usize).is_some_and(|b| b >> (bit % 8) & 1 != 0)
        });
        match top > self.next || lies {
            true => Err(Violation),
            false => Ok(()),
        }
    }

    fn on_came(&mut self, now: Time, number: u64, change: &mut Acked, came: &mut impl FnMut(SentFrame)) {
        self.came_below = self.came_below.max(number + 1);
        let Some(at) = self.index(number) else { return };
        let entry = self.entries[at];
        match entry.state {
            State::Done => return,
            State::Trial => self.size.on_trial_came(entry.bytes),
            State::InFlight => {
                self.size.on_came(now, entry.bytes);
                self.in_flight -= u64::from(entry.bytes);
                change.bytes += u64::from(entry.bytes);
            }
            State::Lost => {
                self.size.on_came(now, entry.bytes);
                change.late += 1;
                change.late_bytes += u64::from(entry.bytes);
                let overtaken = self.came_below - number;
                self.reorder = self.reorder.max(overtaken + 1).min(REORDER_MOST);
            }
        }
        self.entries[at].state = State::Done;
        self.frames_of(at).for_each(|i| came(self.frames[i]));
    }

    fn give_up(&mut self, at: usize, now: Time, lost: &mut impl FnMut(SentFrame)) {
        let entry = self.entries[at];
        if entry.state == State::Trial {
            self.entries[at].state = State::Done;
            return self.size.on_trial_lost(entry.bytes);
        }
        self.size.on_lost(now, entry.bytes, entry.at);
        (self.entries[at].state, self.entries[at].at) = (State::Lost, now);
        self.in_flight -= u64::from(entry.bytes);
        self.frames_of(at).for_each(|i| lost(self.frames[i]));
    }

    /// Forgets settled packets at the old end, and lost packets that would have arrived by now.
    fn retire(&mut self, patience: Option<(Time, u64)>) {
        let all = self.entries.len();
        let is_settled = |(at, entry): (usize, &Entry)| match entry.state {
            State::InFlight | State::Trial => false,
            State::Done => true,
            State::Lost => {
                all - at > REMEMBERED_MOST
                    || patience.is_some_and(|(now, patience)| now >= entry.at.plus_nanos(patience * 2))
            }
        };
        let settled = self.entries.iter().enumerate().take_while(|&e| is_settled(e)).count();
        if settled > 0 {
            self.drop_oldest(settled);
        }
    }

    /// Forgets the oldest `packets`, at least one.
    fn drop_oldest(&mut self, packets: usize) {
        if packets == self.entries.len() {
            // The usual case, and cheaper than draining.
            self.frames_from = self.frames_end();
            self.frames.clear();
            self.entries.clear();
        } else {
            let frames = self.frames_of(packets - 1).end;
            self.frames.drain(..frames);
            self.frames_from = self.frames_from.wrapping_add(frames as u32);
            self.entries.drain(..packets);
        }
        self.oldest += packets as u64;
        self.open_from = self.open_from.max(self.oldest);
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        self.next += 1;
        if self.entries.is_empty() && entry.state == State::Done {
            // There is nothing to track.
            self.oldest = self.next;
            self.open_from = self.next;
        } else {
            self.entries.push_back(entry);
        }
    }

    fn first_in_flight(&self) -> Option<usize> {
        if self.in_flight == 0 {
            return None;
        }
        let from = self.index(self.open_from)?;
        (from..self.entries.len()).find(|&at| self.entries[at].state == State::InFlight)
    }

    /// Where an entry's frames are.
    fn frames_of(&self, at: usize) -> std::ops::Range<usize> {
        let from = self.entries[at].frames.wrapping_sub(self.frames_from) as usize;
        let end = self.entries.get(at + 1).map_or(self.frames_end(), |next| next.frames);
        from..end.wrapping_sub(self.frames_from) as usize
    }

    #[inline]
    fn frames_end(&self) -> u32 {
        self.frames_from.wrapping_add(self.frames.len() as u32)
    }

    #[inline]
    fn index(&self, number: u64) -> Option<usize> {
        let at = number.checked_sub(self.oldest)?;
        (at < self.entries.len() as u64).then_some(at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: u64 = 1_000_000;

    fn frame(n: u64) -> SentFrame {
        SentFrame::Records(StreamId(1), Run { from: n, len: 1 })
    }

    /// Packets 0.. with a frame each, one every microsecond.
    fn sent(packets: u64) -> Sent {
        let mut sent = Sent::new(0, 1472);
        for n in 0..packets {
            sent.note(frame(n));
            sent.finish(Time::from_micros(n), 100, 1, true);
        }
        sent
    }

    fn acked(sent: &mut Sent, below: u32, bitmap: &[u8]) -> (Acked, Vec<SentFrame>) {
        let mut came = Vec::new();
        let change = sent.on_acks(Time::default(), below, bitmap, |f| came.push(f)).expect("honest");
        (change, came)
    }

    fn lost(sent: &mut Sent, now: u64) -> Vec<SentFrame> {
        let mut lost = Vec::new();
        sent.find_lost(Time::from_micros(now), PATIENCE, |f| lost.push(f));
        lost
    }

    #[test]
    fn a_packet_that_three_have_overtaken_is_lost_and_the_next_waits_for_its_time() {
        let mut sent = sent(6);
        let (change, came) = acked(&mut sent, 1, &[0b11000]);
        assert_eq!((change.bytes, came), (300, vec![frame(0), frame(4), frame(5)]));
        assert_eq!(lost(&mut sent, 10), [frame(1), frame(2)]);
        assert_eq!(sent.lost_at(|| PATIENCE), Some(Time::from_micros(1003)));
        assert_eq!(lost(&mut sent, 1002), []);
        assert_eq!(lost(&mut sent, 1003), [frame(3)]);
        assert_eq!((sent.in_flight(), sent.behind()), (0, 5));
        assert_eq!(lost(&mut sent, 5000), []);
        assert_eq!(sent.behind(), 0);
    }

    #[test]
    fn a_packet_that_came_late_after_all_makes_for_more_patience() {
        let mut sent = sent(20);
        acked(&mut sent, 0, &[0b1111_0000]);
        assert_eq!(lost(&mut sent, 30), (0..4).map(frame).collect::<Vec<_>>());
        let (change, came) = acked(&mut sent, 8, &[]);
        assert_eq!((change.late, change.bytes), (4, 0));
        assert_eq!(came, (0..4).map(frame).collect::<Vec<_>>());
        acked(&mut sent, 8, &[0b1100_0000]);
        assert_eq!(lost(&mut sent, 40), []);
    }

    #[test]
    fn acknowledging_unsent_packets_is_a_violation() {
        let mut sent = sent(4);
        sent.skip();
        sent.note(frame(5));
        sent.finish(Time::from_micros(5), 100, 1, true);
        for (below, bitmap) in
            [(7, &[][..]), (u32::MAX, &[]), (0, &[0b1000_0000]), (0, &[0, 1]), (6, &[]), (0, &[0b11_0000]), (4, &[1])]
        {
            assert_eq!(sent.on_acks(Time::default(), below, bitmap, |_| panic!("{below} {bitmap:?}")), Err(Violation));
        }
        assert_eq!(sent.in_flight(), 500);
        assert_eq!(acked(&mut sent, 4, &[0b10]).0.bytes, 500);
        assert_eq!(sent.behind(), 0);
        // Now the peer may know that nothing below is outstanding.
        assert_eq!(acked(&mut sent, 6, &[]).0, Acked::default());
    }

    #[test]
    fn packets_that_ask_for_nothing_push_the_oldest_out_rather_than_grow_the_list() {
        let mut sent = sent(1);
        let mut lost = Vec::new();
        for n in 1..5000 {
            sent.make_room(|f| lost.push(f));
            sent.finish(Time::from_micros(n), 40, 0, false);
            assert!(sent.behind() < SPAN);
        }
        assert_eq!((lost, sent.in_flight()), (vec![frame(0)], 0));
    }

    #[test]
    fn numbers_and_frame_counts_wrap() {
        let mut sent = Sent::new((1 << 32) - 3, 1472);
        sent.frames_from = u32::MAX - 1;
        for n in 0..6 {
            sent.note(frame(n));
            sent.note(frame(100 + n));
            sent.finish(Time::from_micros(n), 10, 2, true);
        }
        let (change, came) = acked(&mut sent, 1, &[0b10]);
        assert_eq!(change.bytes, 50);
        assert_eq!(came.len(), 10);
        assert!(sent.give_up_oldest(Time::default(), |f| assert!([frame(4), frame(104)].contains(&f))));
        assert!(!sent.give_up_oldest(Time::default(), |_| ()));
    }
}
