//! Sending: building packets.

use super::coverage::PARTLY_LEAST;
use super::receive::Reflect;
use super::{Acks, Channel, Phase};
use crate::congestion::Congestion;
use crate::cuts::{Whole, AHEAD};
use crate::memory::{Memory, Packets};
use crate::rare::{self, Point};
use crate::rtt::short_micros;
use crate::sent::SentFrame;
use crate::time::Time;
use std::time::Duration;
use weft_wire::frame::{records_header, Cookie, Frame, Hello, Writer, BITMAP_MOST, FRAME_HEADER};
use weft_wire::packet::{reseal, reseal_partly, Header, PacketKind, Reflected, HEADER, PACKET_LEAST};

/// Bytes of the frame that says there is no such channel.
const RESET_FRAME: usize = FRAME_HEADER + 8;

/// With a window of fewer packets than this (as many as are acknowledged at once), each packet asks for an immediate
/// acknowledgement once half of the window is in flight.
const HURRIES_BELOW: u64 = 4;

/// With a window of fewer packets than this, every second packet of the second half asks. Acknowledging only each
/// fourth packet would let a short link idle.
const HALF_HURRIES_BELOW: u64 = 16;

/// The longest time between two packets, in nanoseconds.
const PACE_MOST: u64 = 100_000_000;

/// The longest queueing delay that counts when packets are paced, in nanoseconds. A longer delay is a host that was
/// away, not a queue.
const PACED_QUEUE_MOST: u64 = 1_000_000;

/// A sender that is late may at once send what it would have sent within this fraction of a round trip, but at least
/// within the second figure and at most within the third. Busy hosts are late most of the time.
const PACED_LATE_PART: u64 = 4;
const PACED_LATE_LEAST: u64 = 200_000;
const PACED_LATE_MOST: u64 = 1_000_000;

/// At most one packet number in this many is skipped, so at most one among those that are tracked.
const SKIP_EVERY: u64 = 1024;

/// How long an acknowledgement that a test withholds waits at least.
const ACK_AGAIN: Duration = Duration::from_micros(100);

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// Writes the next packet to `packet`, whose length is the largest packet allowed, and returns its bytes; `None` if
    /// there is nothing to send now. Call it until then. A packet carries everything that can share it. It is larger
    /// than [`Channel::packet_size`] only if it is a trial of a larger size: after everything else, and if `packet` has
    /// room.
    ///
    /// # Panics
    /// If `packet` is smaller than the packet that every link carries.
    #[inline]
    pub fn transmit(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        assert!(packet.len() >= PACKET_LEAST, "a link that carries {PACKET_LEAST} bytes");
        match self.phase {
            Phase::Open => {
                let mut made = self.transmit_data(now, packet);
                if made.is_none() && self.catch_up() {
                    made = self.transmit_data(now, packet);
                }
                made.or_else(|| self.transmit_trial(now, packet))
            }
            Phase::Calling { cookie, next_at } if next_at <= now => Some(self.transmit_call(now, cookie, packet)),
            _ => None,
        }
    }

    /// Completes packets in place, in the memory of their stream, one after the other: at most `most`, all of
    /// [`Channel::packet_size`] except perhaps the last. `None` if [`Channel::transmit`] has to build the next packet.
    #[inline]
    pub fn transmit_run(&mut self, now: Time, most: usize) -> Option<Packets<'_, M>> {
        let size = self.packet_size();
        if !self.may_run(now) {
            return None;
        }
        let (stream, ready) = self.streams.ready(most, size, self.room())?;
        if self.retry_at.is_some_and(|at| at < now) {
            self.forgive_absence(now);
        }
        let mut until = ready.start;
        for _ in 0..ready.packets {
            if !self.may_send(now) {
                break;
            }
            self.prepare_number();
            let header = Header { hurries: self.hurries(size), ..self.header(now) };
            let Some((run, Whole { packet, sum, covered })) = self.streams.next_ready(stream) else { break };
            packet[HEADER..AHEAD].copy_from_slice(&records_header(stream, run.from as u32, run.len));
            match sum {
                Some((sum, shift)) => header.seal_summed(packet, sum, shift),
                None => header.seal_partly(packet, covered),
            }
            let bytes = packet.len();
            until += bytes;
            self.sent.note(SentFrame::Records(stream, run));
            self.sent.finish(now, bytes, 1, true);
            self.counters.packets_sent += 1;
            self.pace(now, bytes);
        }
        self.sent.size.on_filled();
        self.acks = Acks::default();
        self.note_asked(now);
        self.retry_at = Some(self.wait_from(now));
        self.streams.end_turn(stream, ready.start..until)
    }

    /// Whether [`Channel::transmit_run`] would return packets.
    #[inline]
    pub fn has_run(&mut self, now: Time) -> bool {
        self.may_run(now) && self.streams.has_ready(self.room())
    }

    /// Whether only records are sent next, so that they may lie ready in packets.
    #[inline]
    fn may_run(&mut self, now: Time) -> bool {
        if !self.streams.may_lie_ready(self.packet_size()) {
            return false;
        }
        self.catch_up();
        let is_plain = self.phase == Phase::Open && !self.is_unconfirmed && self.backoff.tries() == 0;
        let tells =
            self.streams.has_words() || self.has_unreliable || (self.acks.has_news && self.received.has_holes());
        let goes = is_plain && !tells && self.probes_due == 0 && self.streams.has_runs() && self.may_send(now);
        goes && !rare::fires(Point::RunBroken)
    }

    /// Bytes that may be sent in addition to those in flight.
    #[inline]
    fn room(&self) -> u64 {
        self.congestion_window().saturating_sub(self.sent.in_flight())
    }

    /// Whether one more packet with records may be sent.
    #[inline]
    pub(super) fn may_send(&self, now: Time) -> bool {
        self.sent.has_room() && self.sent.in_flight() < self.congestion_window() && self.paced_until <= now
    }

    /// Whether a packet of `bytes`, sent now, asks for an immediate acknowledgement: half of a small window is then in
    /// flight, and the next packets wait for it.
    #[inline]
    fn hurries(&self, bytes: usize) -> bool {
        let window = self.congestion.window();
        self.sent.in_flight() + bytes as u64 >= window / 2 && self.waits_for_each(window)
    }

    /// Whether a packet that fills half of the window asks for an immediate acknowledgement: every packet in a very
    /// small window, every second one in a small window.
    #[cold]
    fn waits_for_each(&self, window: u64) -> bool {
        let packet = self.packet_size() as u64;
        window < HURRIES_BELOW * packet || (window < HALF_HURRIES_BELOW * packet && self.sent.next() % 2 == 0)
    }

    /// Sets when the next packet may go, if packets are paced. A random addition keeps many senders from staying in
    /// step. A late sender may send a few packets at once; packets that went early, such as probes, do not delay the
    /// next one further.
    #[inline]
    fn pace(&mut self, now: Time, bytes: usize) {
        if self.congestion.spaces(self.packet_size() as u64) {
            let (mean, least) = self.rtt.smoothed_and_least();
            let round_trip = mean.min(least + least.max(PACED_QUEUE_MOST));
            // A round trip is at most 10 s, so the product fits.
            let wait = round_trip * bytes as u64 / self.congestion_window().max(1);
            let wait = wait.saturating_add(self.random.below(wait / 8 + 1)).min(PACE_MOST);
            let late = wait.max((round_trip / PACED_LATE_PART).clamp(PACED_LATE_LEAST, PACED_LATE_MOST));
            let earliest = Time::from_nanos(now.as_nanos().saturating_sub(late));
            self.paced_until = self.paced_until.clamp(earliest, now).plus_nanos(wait);
        }
    }

    fn transmit_data(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        if self.retry_at.is_some_and(|at| at < now) {
            // Before `retry_at` is set again.
            self.forgive_absence(now);
        }
        self.arm_acks(now);
        // A packet that asks whether the peer is alive may take the place of the oldest packet.
        let may_ask = self.sent.has_room() || self.probes_due > 0;
        let may_send = may_ask
            && self.has_more()
            && (self.probes_due > 0 || self.may_send(now))
            // What is in flight will be answered, and then there is another chance.
            && !(self.sent.in_flight() > 0 && rare::fires(Point::WindowFull));
        if !(may_send || self.acks.is_due || (may_ask && self.probes_due > 0)) {
            return None;
        }
        self.prepare_number();
        let size = self.packet_size();
        let most = packet.len().min(size);
        let mut writer = Writer::new(&mut packet[..most]);
        let (mut noted, mut asks) = (0, false);
        self.write_acks(&mut writer);
        if self.is_unconfirmed {
            asks |= writer.push(&Frame::Accept(self.accept()));
        }
        let mut note = |sent: &mut crate::sent::Sent, frame| {
            sent.note(frame);
            noted += 1;
        };
        if may_ask {
            self.streams.write_words(&mut writer, |frame| note(&mut self.sent, frame));
        }
        if may_send {
            if self.has_unreliable {
                asks |= self.write_unreliable(&mut writer);
            }
            self.streams.write_records(&mut writer, |frame: SentFrame| note(&mut self.sent, frame));
            let more_follows = self.streams.has_runs() || self.streams.has_words() || self.has_unreliable;
            if more_follows && !self.streams.has_ready(self.congestion_window()) {
                // In a run of packets all but the last have the same size. What lies ready is a run of its own.
                writer.fill();
            }
        }
        asks |= noted > 0;
        if may_ask && self.probes_due > 0 {
            self.probes_due -= 1;
            if !asks {
                // Large enough that a host that does not know the channel may answer with a reset.
                asks = writer.push(&Frame::Ping) && writer.push(&Frame::Padding { bytes: RESET_FRAME });
            }
        }
        let packet = writer.finish();
        let bytes = packet.len();
        let hurries = may_send && self.hurries(bytes);
        Header { hurries, ..self.header(now) }.write(packet);
        match self.leaves_payloads_out() && bytes > PARTLY_LEAST {
            false => reseal(packet),
            true => reseal_partly(packet, self.covered(packet)),
        }
        self.sent.finish(now, bytes, noted, asks);
        if bytes == size {
            self.sent.size.on_filled();
        }
        self.acks = Acks { is_due: self.streams.is_urgent() && may_ask, ..Acks::default() };
        self.counters.packets_sent += 1;
        if may_send {
            self.pace(now, bytes);
        }
        if asks {
            self.note_asked(now);
            self.retry_at = Some(self.wait_from(now));
        }
        Some(bytes)
    }

    /// Whether there are records or unreliable messages to send.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.streams.has_runs() || self.has_unreliable
    }

    /// Adds unreliable messages to a packet, up to half of it if there are records as well.
    #[cold]
    fn write_unreliable(&mut self, writer: &mut Writer<'_>) -> bool {
        let Some(unreliable) = &mut self.unreliable else { return false };
        let most = if self.streams.has_runs() { writer.room() / 2 } else { writer.room() };
        let has_written = unreliable.write(writer, most);
        self.has_unreliable = unreliable.has_waiting();
        has_written
    }

    /// Writes a packet of zeros that tries a larger size: after everything else, and only while something in flight is
    /// being answered.
    #[inline]
    fn transmit_trial(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        let most = packet.len().min(usize::from(self.settings.packet_most.min(self.terms.packet_most)));
        if most <= self.packet_size() || self.sent.in_flight() == 0 || self.backoff.tries() > 0 || !self.sent.has_room()
        {
            return None;
        }
        let bytes = usize::from(self.sent.size.next_trial(now, most)?);
        self.prepare_number();
        let packet = &mut packet[..bytes];
        let mut writer = Writer::new(packet);
        writer.fill();
        // The trial may be lost, so the reflected time stamp must not ride on it.
        let reflect = self.reflect;
        self.reflect.is_due = false;
        self.header(now).seal(writer.finish());
        self.reflect = reflect;
        self.sent.finish_trial(now, bytes);
        self.counters.packets_sent += 1;
        self.counters.trials_sent += 1;
        Some(bytes)
    }

    fn transmit_call(&mut self, now: Time, cookie: Option<Cookie>, packet: &mut [u8]) -> usize {
        let next_at = self.wait_from(now);
        self.backoff.on_silence();
        self.watch.probes += 1;
        self.phase = Phase::Calling { cookie, next_at };
        let hello = Hello {
            caller: self.ours.epoch,
            callee: self.theirs.epoch,
            nonce: self.nonce,
            cookie,
            terms: self.settings.terms(),
        };
        let mut writer = Writer::new(packet);
        assert!(writer.push(&Frame::Hello(hello)), "room for a hello in the smallest packet");
        let packet = writer.finish();
        let header = Header::new(PacketKind::Call, self.theirs.id, self.ours.id);
        Header { sent_at: now.stamp(), ..header }.seal(packet);
        self.counters.packets_sent += 1;
        packet.len()
    }

    /// Decides when owed acknowledgements must go.
    #[inline]
    fn arm_acks(&mut self, now: Time) {
        let owes = self.acks.asking > 0 || self.streams.has_words();
        if owes && self.acks.due_at.is_none() {
            self.acks.due_at = Some(now + self.settings.ack_delay);
        }
        // Even urgent frames wait while no further packet can be tracked.
        let is_urgent = self.streams.is_urgent() && self.sent.has_room();
        self.acks.is_due |= is_urgent || self.acks.due_at.is_some_and(|at| at <= now);
        if self.acks.is_due && owes && rare::fires(Point::AckWithheld) {
            self.acks.is_due = false;
            self.acks.due_at = Some(now + self.settings.ack_delay.max(ACK_AGAIN));
        }
    }

    /// Makes sure the next packet can have a number.
    #[inline]
    fn prepare_number(&mut self) {
        let Channel { sent, streams, .. } = self;
        sent.make_room(|frame| streams.on_lost(frame));
        if sent.next() >= self.skip_at || rare::fires(Point::NumberSkipped) {
            sent.skip();
            self.skip_at = sent.next() + SKIP_EVERY + self.random.below(SKIP_EVERY);
        }
    }

    #[inline]
    fn write_acks(&mut self, writer: &mut Writer<'_>) {
        if self.acks.has_news && self.received.has_holes() {
            let mut buffer = [0; BITMAP_MOST];
            writer.push(&Frame::Acks { bitmap: self.received.bitmap(&mut buffer) });
        }
        if let Some(bytes) = self.shares.as_ref().and_then(|shares| shares.grants) {
            writer.push(&Frame::Share { bytes });
        }
    }

    #[inline]
    fn header(&mut self, now: Time) -> Header {
        let reflected = self.reflect.take().map(|Reflect { sent_at, came_at, lay, .. }| Reflected {
            sent_at,
            held: short_micros(now.nanos_since(came_at)),
            lay,
        });
        Header {
            number: self.sent.next() as u32,
            behind: self.sent.behind(),
            sent_at: now.stamp(),
            reflected,
            acked: Some(self.received.all_below() as u32),
            ..Header::new(PacketKind::Data, self.theirs.id, self.ours.id)
        }
    }
}
