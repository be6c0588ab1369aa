//! The writing half of a stream: records that the peer may not have taken.

use crate::cuts::{Cuts, Whole, AHEAD};
use crate::kept::{Kept, Window};
use crate::memory::{Memory, Packets};
use crate::ranges::Ranges;
use crate::sequence::widen;
use crate::starts::Starts;
use std::ops::Range;
use weft_wire::frame::stream_bytes;
use weft_wire::packet::{Integrity, RECORD_COVERED};
use weft_wire::path::{Abandoned, Fate, PushError, Traffic};
use weft_wire::record::{packed_payload_at, HEADER};
use weft_wire::{Head, HeadWords, Kind, MAX_ARGS, MAX_PAYLOAD};

/// The most that a peer may grant beyond what it has taken: far less than the ambiguity of a 32-bit offset.
const LIMIT_MOST: u64 = 1 << 30;

/// The packet size of the layout before the real one is known.
const PACKET_USUAL: usize = 1500 - 28;

/// Full packets that must wait before they are sent in place, without a copy.
const READY_LEAST: u64 = 4;

/// At most this fraction of a run may be bytes that were sent before.
const AGAIN_MOST: u64 = 64;

/// Records that are walked to find the last one of a packet. If there are more, they are so short that the checksum
/// covers everything.
const WALKED_MOST: usize = 32;

/// The peer broke the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

/// A run of a stream's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub from: u64,
    pub len: u16,
}

/// Packets that lie ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ready {
    /// Where they begin in the memory.
    pub start: usize,
    pub packets: usize,
}

/// Records in the order in which they were sent, kept until the peer has taken them.
///
/// ```text
/// ... taken | transmitted, some of it lost | not transmitted | room ...
///           ^ taken                        ^ sent            ^ end
/// ```
#[derive(Debug)]
pub(crate) struct Outgoing<M> {
    bytes: Kept<M>,
    taken: u64,
    /// The bytes above were never in a packet.
    sent: u64,
    end: u64,
    /// How far the peer lets us go.
    limit: u64,
    lost: Ranges,
    /// Where records begin, while there are many. A few are found by walking.
    starts: Option<Box<Starts>>,
    most: u32,
    /// Set if the peer takes no more: it touched nothing from here on.
    touched: Option<u64>,
    /// The round of the last pause or resumption from the peer: odd while the stream is paused.
    round: u32,
}

impl<M: Memory> Outgoing<M> {
    /// A stream that begins at `start`, keeps at most `most` bytes and may send `window` bytes.
    pub fn new(start: u64, most: u32, window: u32) -> Outgoing<M> {
        let mut new = Outgoing {
            bytes: Kept::new(PACKET_USUAL),
            taken: start,
            sent: start,
            end: start,
            limit: start,
            lost: Ranges::default(),
            starts: None,
            most,
            touched: None,
            round: 0,
        };
        new.grant(window);
        new
    }

    /// The peer's first grant.
    pub fn grant(&mut self, window: u32) {
        self.limit = self.limit.max(self.taken + u64::from(window).min(LIMIT_MOST));
    }

    /// Copies a record in. Returns its bytes.
    #[inline]
    pub fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<u64, PushError> {
        assert!(!matches!(head.kind, Kind::Pad | Kind::Switch), "a message, not a link within a ring");
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD {
            return Err(PushError::TooLarge);
        }
        if self.touched.is_some() {
            return Err(PushError::Gone);
        }
        let size = stream_bytes(args.len(), payload.len()) as u64;
        if self.end + size - self.taken > u64::from(self.most) {
            return Err(PushError::Full);
        }
        let head = Head { args: args.len() as u8, len: payload.len() as u32, ..head };
        let mut start = [0; HEADER + MAX_ARGS * 4];
        let ahead = packed_payload_at(args.len());
        write_words(&mut start, head.pack());
        for (to, arg) in start[HEADER..].chunks_exact_mut(4).zip(args) {
            to.copy_from_slice(&arg.to_le_bytes());
        }
        self.bytes.reserve(self.window(), self.end + size, u64::from(self.most));
        self.bytes.write(self.end, &start[..ahead]);
        if !payload.is_empty() {
            self.bytes.write(self.end + ahead as u64, payload);
        }
        let written = self.end + (ahead + payload.len()) as u64;
        match &mut self.starts {
            Some(starts) => starts.note(self.end),
            None if self.bytes.cuts().is_some() => self.note_starts(),
            None => {}
        }
        self.end += size;
        if written < self.end {
            // Clear the padding, so that old bytes never reach the peer.
            self.bytes.write(written, &[0; 7][..(self.end - written) as usize]);
        }
        Ok(size)
    }

    /// The bytes to send next, at most `most`, lost ones first.
    #[inline]
    pub fn next_run(&mut self, most: usize) -> Option<Run> {
        if self.is_paused() {
            return None;
        }
        let mut most = most.min(usize::from(u16::MAX) - 16) as u64;
        if let Some(cuts) = self.bytes.cuts() {
            // A longer run could lie in three pieces.
            most = most.min(cuts.cut());
        }
        if let Some((from, to)) = self.lost.take_first(most) {
            return Some(Run { from, len: (to - from) as u16 });
        }
        if let Some(cuts) = self.bytes.cuts() {
            let left = cuts.beginning(self.sent) + cuts.cut() - self.sent;
            let unsent = self.end.min(self.limit).saturating_sub(self.sent);
            if unsent >= left + READY_LEAST * cuts.cut() {
                // Stop where packets lie ready.
                most = most.min(left);
            }
        }
        let until = self.end.min(self.limit).min(self.sent + most);
        if self.sent >= until {
            return None;
        }
        let run = Run { from: self.sent, len: (until - self.sent) as u16 };
        self.sent = until;
        Some(run)
    }

    /// Whether the bytes are laid out in packets, or the packet size has changed.
    #[inline]
    pub fn may_lie_ready(&self, packet: usize) -> bool {
        self.bytes.cuts().is_some() || self.bytes.packet() != packet
    }

    /// The packets that lie ready in a row, at most `most` of `packet` bytes: all full except perhaps the last. `None`
    /// if what goes next fits into a few packets.
    #[inline]
    pub fn ready(&mut self, most: usize, packet: usize, room: u64) -> Option<Ready> {
        self.bytes.fit(packet, self.window(), u64::from(self.most));
        if !self.has_ready(room) {
            return None;
        }
        let cuts = self.bytes.cuts()?;
        let bytes = self.end.min(self.limit) - cuts.beginning(self.sent);
        let (start, slots) = cuts.position(self.sent);
        Some(Ready { start, packets: most.min(slots).min(bytes.div_ceil(cuts.cut()) as usize) })
    }

    /// Takes the next of those packets. The first may repeat bytes that were sent before, so that it begins at a cut;
    /// repeated bytes do no harm.
    #[inline]
    pub fn next_ready(&mut self) -> Option<(Run, Whole<'_>)> {
        let cuts = self.bytes.cuts()?;
        let from = cuts.beginning(self.sent);
        let until = self.end.min(self.limit).min(from + cuts.cut());
        let run = Run { from, len: (until - from) as u16 };
        self.sent = until;
        let covered = match self.bytes.integrity() {
            Integrity::Full => usize::from(run.len),
            Integrity::Header => self.covered(run),
        };
        Some((run, Whole { covered: AHEAD + covered, ..self.bytes.whole(from, usize::from(run.len))? }))
    }

    /// The packets that were taken, in the memory.
    #[inline]
    pub fn packets(&self, place: Range<usize>) -> Option<Packets<'_, M>> {
        self.bytes.cuts().map(|cuts| cuts.packets(place))
    }

    /// Whether the data that goes next lies ready and is enough for a run, if `room` bytes may be sent.
    #[inline]
    pub fn has_ready(&self, room: u64) -> bool {
        let unsent = self.end.min(self.limit).saturating_sub(self.sent);
        let is_much = |cuts: &Cuts<M>| {
            let again = self.sent - cuts.beginning(self.sent);
            unsent >= READY_LEAST * cuts.cut() && unsent.min(room) >= AGAIN_MOST * again
        };
        self.lost.is_empty() && !self.is_paused() && self.bytes.cuts().is_some_and(is_much)
    }

    /// Sets what the checksums of packets with records cover, from now on.
    pub fn set_integrity(&mut self, integrity: Integrity) {
        self.bytes.set_integrity(integrity);
    }

    /// How many bytes of a run its checksum has to cover if it may leave payloads out: up to [`RECORD_COVERED`] bytes
    /// into the last record that has bytes in it. All of them, if it is not known where records begin.
    pub fn covered(&self, run: Run) -> usize {
        let len = usize::from(run.len);
        let to = run.from + len as u64;
        // The peer ignores what it has already taken.
        let from = run.from.saturating_sub(RECORD_COVERED as u64).max(self.taken);
        let last = match &self.starts {
            _ if from >= to => None,
            Some(starts) => starts.last(from, to),
            None => match self.walk_to(to) {
                Some(last) => Some(last).filter(|last| *last >= from),
                None => return len,
            },
        };
        last.map_or(0, |last| (last + RECORD_COVERED as u64).saturating_sub(run.from).min(len as u64) as usize)
    }

    /// The same for a run in wire format.
    pub fn covered_at(&self, offset: u32, len: usize) -> usize {
        self.covered(Run { from: widen(self.taken, offset), len: len as u16 })
    }

    /// The last record that begins below `to`, if it is among the first few kept records.
    fn walk_to(&self, to: u64) -> Option<u64> {
        let mut at = self.taken;
        for _ in 0..WALKED_MOST {
            let next = if at < self.end { self.record_at(at).1 } else { at };
            if next >= to || next == at {
                return Some(at);
            }
            at = next;
        }
        None
    }

    /// A packet with this run was lost.
    pub fn on_lost(&mut self, run: Run) {
        // Bytes beyond `sent` belong to an earlier stream with this number. Its owner should not reuse the number, but
        // that must do no harm.
        let to = (run.from + u64::from(run.len)).min(self.sent);
        if self.touched.is_none() {
            self.lost.insert(run.from.max(self.taken), to);
        }
    }

    /// A packet with this run arrived, perhaps after it was declared lost.
    #[inline]
    pub fn on_acked(&mut self, run: Run) {
        // A peer that paused the stream acknowledges even what it drops.
        if !self.lost.is_empty() && self.round == 0 {
            self.lost.remove(run.from, run.from + u64::from(run.len));
        }
    }

    /// The peer has taken everything below `taken` and grants up to `limit`. Returns the bytes that are free again.
    pub fn on_taken(&mut self, taken: u32, limit: u32) -> Result<u64, Violation> {
        let freed = self.take_to(taken)?;
        let limit = widen(self.limit, limit);
        if limit > self.limit && limit <= self.taken + LIMIT_MOST && self.touched.is_none() {
            self.limit = limit;
        }
        Ok(freed)
    }

    /// The peer takes no more. Returns the bytes that are free again.
    pub fn on_nack(&mut self, taken: u32, touched: u32) -> Result<u64, Violation> {
        let freed = self.take_to(taken)?;
        self.touched = Some(widen(self.taken, touched).max(self.taken));
        self.lost.clear();
        self.limit = self.sent;
        Ok(freed)
    }

    /// The peer paused the stream and dropped everything from `from` on, or resumed it there. Ignored unless the round
    /// is newer than the last one.
    pub fn on_pause(&mut self, from: u32, round: u32) -> Result<(), Violation> {
        let from = widen(self.taken, from);
        if from > self.sent && from < u64::MAX / 2 {
            return Err(Violation);
        }
        let is_news = (round.wrapping_sub(self.round) as i32) > 0;
        if !is_news || self.touched.is_some() {
            return Ok(());
        }
        self.round = round;
        if !self.is_paused() {
            // Also if the pause before it was never seen.
            self.lost.insert(from.clamp(self.taken, self.sent), self.sent);
        }
        Ok(())
    }

    /// Whether the peer has paused the stream.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.round % 2 == 1
    }

    /// The records that the peer may not have taken, oldest first. None of them is sent from now on.
    ///
    /// A record that was not sent completely cannot have been delivered, nor can one that the peer's last word says it
    /// did not touch.
    pub fn abandon(&mut self) -> Vec<Abandoned> {
        let touched = self.touched.unwrap_or(u64::MAX);
        let mut abandoned = Vec::new();
        while self.taken < self.end {
            let (head, to) = self.record_at(self.taken);
            let mut args = [0; MAX_ARGS * 4];
            let args = &mut args[..head.args() * 4];
            self.bytes.read(self.taken + HEADER as u64, args);
            let mut payload = vec![0; head.len()];
            self.bytes.read(self.taken + head.packed_payload_at() as u64, &mut payload);
            let may_be_delivered = to <= self.sent && self.taken < touched;
            abandoned.push(Abandoned {
                head: head.head(),
                args: args.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
                payload,
                fate: if may_be_delivered { Fate::InHand } else { Fate::Untouched },
            });
            self.taken = to;
        }
        self.touched = Some(self.end);
        self.sent = self.end;
        self.lost.clear();
        self.free();
        abandoned
    }

    /// Frees the memory if nothing is kept.
    pub fn rest(&mut self) {
        if self.taken == self.end {
            self.free();
            self.lost.clear();
        }
    }

    /// The bytes of a run.
    #[inline]
    pub fn slices(&self, run: Run) -> [&[u8]; 2] {
        self.bytes.slices(run.from, usize::from(run.len))
    }

    /// Whether there is something to transmit.
    #[inline]
    pub fn has_run(&self) -> bool {
        !self.is_paused() && (!self.lost.is_empty() || self.sent < self.end.min(self.limit))
    }

    /// Whether something was never in a packet, regardless of the peer's limit.
    pub fn has_unsent(&self) -> bool {
        self.touched.is_none() && self.sent < self.end
    }

    /// Whether a record of `bytes` bytes would be accepted now.
    #[inline]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.touched.is_none() && self.end + bytes as u64 - self.taken <= u64::from(self.most)
    }

    /// How far the stream was written and taken.
    pub fn traffic(&self) -> Traffic {
        Traffic { pushed: self.end, taken: self.taken }
    }

    /// Whether more would be sent if the peer had room for it.
    pub fn waits_for_peer(&self) -> bool {
        self.is_paused() || (self.has_unsent() && self.sent >= self.limit)
    }

    /// Whether the peer said that it takes no more.
    pub fn is_refused(&self) -> bool {
        self.touched.is_some()
    }

    /// Bytes that the peer may not have taken.
    #[inline]
    pub fn kept(&self) -> u64 {
        self.end - self.taken
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.bytes.memory() + self.lost.memory() + self.starts.as_ref().map_or(0, |starts| starts.memory())
    }

    /// Notes that everything below `taken` was taken. It must have been sent, and be the end of a record.
    #[inline]
    fn take_to(&mut self, taken: u32) -> Result<u64, Violation> {
        let taken = widen(self.taken, taken);
        if taken > self.sent && taken < u64::MAX / 2 {
            return Err(Violation);
        }
        if taken <= self.taken || taken > self.sent {
            // An old report.
            return Ok(0);
        }
        // Nearly always everything was taken; otherwise a record must begin there.
        let is_between = taken == self.end
            || match &self.starts {
                Some(starts) => starts.has(taken),
                None => self.is_start(taken),
            };
        if !is_between {
            return Err(Violation);
        }
        let freed = taken - self.taken;
        if !self.lost.is_empty() {
            self.lost.remove(self.taken, taken);
        }
        if let Some(starts) = &mut self.starts {
            starts.forget(self.taken, taken);
        }
        self.taken = taken;
        self.bytes.forget(taken);
        Ok(freed)
    }

    /// Whether a record begins there, found by walking the ones before it.
    fn is_start(&self, place: u64) -> bool {
        let mut at = self.taken;
        while at < place {
            at = self.record_at(at).1;
        }
        at == place
    }

    /// Begins to note where records begin, because they became many. The record being written is the last one.
    #[cold]
    fn note_starts(&mut self) {
        let mut starts = Box::new(Starts::new(self.taken, u64::from(self.most)));
        let mut at = self.taken;
        while at < self.end {
            starts.note(at);
            at = self.record_at(at).1;
        }
        starts.note(self.end);
        self.starts = Some(starts);
    }

    fn free(&mut self) {
        self.bytes.free();
        self.starts = None;
    }

    #[inline]
    fn window(&self) -> Window {
        Window { from: self.taken, edge: self.sent, end: self.end }
    }

    /// The header of the record that begins at `at`, and where the record ends.
    #[inline]
    fn record_at(&self, at: u64) -> (HeadWords, u64) {
        let head = HeadWords::check(read_words(&self.bytes.array(at))).expect("a header that push wrote");
        (head, at + stream_bytes(head.args(), head.len()) as u64)
    }
}

#[inline]
fn write_words(to: &mut [u8], words: [u64; 2]) {
    to[..8].copy_from_slice(&words[0].to_le_bytes());
    to[8..HEADER].copy_from_slice(&words[1].to_le_bytes());
}

/// The two words of a record's header.
#[inline]
pub(crate) fn read_words(b: &[u8; HEADER]) -> [u64; 2] {
    let [mut first, mut second] = [[0; 8]; 2];
    first.copy_from_slice(&b[..8]);
    second.copy_from_slice(&b[8..]);
    [u64::from_le_bytes(first), u64::from_le_bytes(second)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 16 + 8 + 8;

    fn stream(records: u32, start: u64) -> Outgoing<Vec<u8>> {
        let mut out = Outgoing::new(start, 1 << 20, 1 << 20);
        for n in 0..records {
            out.push(Head::new(Kind::Send), &[n], &[n as u8; 8]).expect("room");
        }
        out
    }

    fn fates(out: &mut Outgoing<Vec<u8>>) -> Vec<(u32, Fate)> {
        out.abandon().into_iter().map(|r| (r.args[0], r.fate)).collect()
    }

    #[test]
    fn only_what_was_transmitted_whole_and_not_taken_is_in_doubt() {
        let mut out = stream(4, 0);
        // Two records and a half.
        assert_eq!(out.next_run(80), Some(Run { from: 0, len: 80 }));
        assert_eq!(out.on_taken(SIZE, 1 << 20), Ok(u64::from(SIZE)));
        assert_eq!(fates(&mut out), [(1, Fate::InHand), (2, Fate::Untouched), (3, Fate::Untouched)]);
        assert_eq!((out.kept(), out.has_run()), (0, false));
    }

    #[test]
    fn the_last_word_settles_records_that_were_not_touched() {
        let mut out = stream(5, 0);
        assert!(out.next_run(1000).is_some());
        assert_eq!(out.on_nack(SIZE, 2 * SIZE), Ok(u64::from(SIZE)));
        assert_eq!(out.push(Head::new(Kind::Send), &[], &[]), Err(PushError::Gone));
        assert_eq!(
            fates(&mut out),
            [(1, Fate::InHand), (2, Fate::Untouched), (3, Fate::Untouched), (4, Fate::Untouched)]
        );
    }

    #[test]
    fn a_reader_that_took_what_was_not_sent_or_half_a_record_lies() {
        let mut out = stream(3, 0);
        assert!(out.next_run(2 * SIZE as usize).is_some());
        assert_eq!(out.on_taken(3 * SIZE, 1 << 20), Err(Violation));
        assert_eq!(out.on_taken(SIZE + 1, 1 << 20), Err(Violation));
        assert_eq!(out.on_taken(SIZE, 1 << 20), Ok(u64::from(SIZE)));
        // An old report changes nothing.
        assert_eq!(out.on_taken(0, 0), Ok(0));
        assert_eq!(fates(&mut out).len(), 2);
    }

    #[test]
    fn offsets_come_round_after_32_bits() {
        let start = (1 << 32) - 40;
        let mut out = stream(3, start);
        let run = out.next_run(1000).expect("all");
        assert_eq!(run, Run { from: start, len: 3 * SIZE as u16 });
        out.on_lost(run);
        assert_eq!(out.on_taken((start as u32).wrapping_add(2 * SIZE), 0), Ok(u64::from(2 * SIZE)));
        assert_eq!(out.next_run(1000), Some(Run { from: start + u64::from(2 * SIZE), len: SIZE as u16 }));
        assert_eq!(fates(&mut out), [(2, Fate::InHand)]);
    }

    #[test]
    fn the_loss_of_unsent_bytes_sends_nothing() {
        let mut out = Outgoing::<Vec<u8>>::new(0, 1000, 1000);
        out.on_lost(Run { from: 10, len: 500 });
        assert_eq!((out.has_run(), out.next_run(1000)), (false, None));
        out.push(Head::new(Kind::Send), &[1], &[0; 8]).expect("room");
        assert_eq!(out.next_run(20), Some(Run { from: 0, len: 20 }));
        out.on_lost(Run { from: 10, len: 500 });
        assert_eq!(out.next_run(1000), Some(Run { from: 10, len: 10 }));
    }

    #[test]
    fn large_packets_lie_ready_after_a_partly_sent_one() {
        const MOST: u32 = 1 << 20;
        let (packet, message) = (8972, vec![7; 65_000]);
        let mut out = Outgoing::<Vec<u8>>::new(0, MOST, MOST);
        out.push(Head::new(Kind::Send), &[], &message).expect("room");
        assert!(out.ready(7, packet, u64::MAX).is_some());
        let cut = out.bytes.cuts().expect("they are many").cut();
        while out.next_run(packet).is_some() {}
        out.push(Head::new(Kind::Send), &[], &message).expect("room");
        assert!(!out.has_ready(u64::MAX), "too much would go again");
        let rest = out.next_run(packet).expect("unsent");
        assert!(u64::from(rest.len) < cut && (rest.from + u64::from(rest.len)) % cut == 0, "{rest:?}, cuts of {cut}");
        assert!(out.has_ready(u64::MAX));
        assert_eq!(out.ready(7, packet, u64::MAX).map(|ready| ready.packets), Some(7));
    }

    #[test]
    fn a_full_stream_refuses_then_recovers() {
        let mut out = Outgoing::new(0, 3 * SIZE, 0);
        let push = |out: &mut Outgoing<Vec<u8>>| out.push(Head::new(Kind::Send), &[1], &[0; 8]);
        assert!((0..3).all(|_| push(&mut out).is_ok()));
        assert_eq!((push(&mut out), out.has_room(SIZE as usize)), (Err(PushError::Full), false));
        assert!(!out.has_run());
        out.grant(1000);
        assert!(out.next_run(1000).is_some());
        assert_eq!(out.on_taken(SIZE, 1000), Ok(u64::from(SIZE)));
        assert!(out.has_room(SIZE as usize) && push(&mut out).is_ok());
    }
}
