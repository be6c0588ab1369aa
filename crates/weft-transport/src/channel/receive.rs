//! Receiving: from a packet's bytes to events.

use super::unreliable::Unreliable;
use super::{Channel, Event, Life, Phase};
use crate::congestion::{Acked, Congestion};
use crate::incoming::Stored;
use crate::memory::Memory;
use crate::outgoing::Violation;
use crate::rtt::short_micros;
use crate::sack::Arrival;
use crate::sequence::widen;
use crate::time::Time;
use weft_wire::frame::{Frame, StreamId, SHARE_LASTS};
use weft_wire::packet::{Packet, PacketError, PacketKind, Reflected};
use weft_wire::Reason;

/// This many packets that ask for it are acknowledged at once.
const ACK_EVERY: u32 = 4;

/// What became of a packet. All but the first are dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was accepted.
    Taken,
    /// It is a duplicate, or its sender has given it up.
    Old,
    /// It belongs to another channel or another life.
    Foreign,
    /// It is no packet.
    Malformed(PacketError),
    /// It breaks the protocol: an honest peer cannot send it.
    Violation,
    /// Part of it finds no room, or its stream is not open. It will be sent again.
    NoRoom,
}

/// A time stamp of the peer to reflect. Not an `Option`: that would take 8 bytes more for each of many idle peers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reflect {
    /// When it arrived at this host.
    pub came_at: Time,
    pub sent_at: u32,
    /// How long it waited here until it was read, in microseconds.
    pub lay: u16,
    /// There is a time stamp to reflect.
    pub is_due: bool,
}

impl Reflect {
    /// Takes the time stamp, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<Reflect> {
        std::mem::take(&mut self.is_due).then_some(*self)
    }
}

/// What a packet asks of its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Asks {
    /// An acknowledgement.
    any: bool,
    /// It carries records. Without records an acknowledgement is in no hurry.
    records: bool,
    /// It carries unreliable messages.
    unreliable: bool,
}

/// What a packet reports about our packets and about the time on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    /// When it was read.
    at: Time,
    /// How long it had waited here until then, in nanoseconds.
    lay: u64,
    /// All of our packets below this number arrived.
    acked: Option<u32>,
    /// Our bytes in flight at that time.
    under_way: u64,
    reflected: Option<Reflected>,
}

impl Word {
    /// Whether all of our packets below `next` arrived.
    #[inline]
    pub fn says_all(&self, next: u64) -> bool {
        self.acked == Some(next as u32)
    }
}

/// Why the rest of a packet is skipped.
enum Stop {
    Violation,
    NoRoom,
}

impl From<Violation> for Stop {
    fn from(_: Violation) -> Stop {
        Stop::Violation
    }
}

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// Processes a packet that arrived just now. Events report its effects.
    #[inline]
    pub fn on_packet(&mut self, now: Time, bytes: &[u8]) -> Verdict {
        self.on_packet_of(now, now, bytes)
    }

    /// Processes a packet that arrived at this host at `came_at` and was read only now. The time between is not
    /// reported to its sender as network time.
    #[inline]
    pub fn on_packet_of(&mut self, now: Time, came_at: Time, bytes: &[u8]) -> Verdict {
        self.catch_up();
        let verdict = match Packet::decode_as(bytes, self.integrity()) {
            Ok(packet) => self.judge(now, came_at, &packet),
            Err(error) => Verdict::Malformed(error),
        };
        let c = &mut self.counters;
        *match verdict {
            Verdict::Taken => &mut c.packets_received,
            Verdict::Old => &mut c.dropped_old,
            Verdict::Foreign => &mut c.dropped_foreign,
            Verdict::Malformed(_) => &mut c.dropped_malformed,
            Verdict::Violation => &mut c.dropped_violation,
            Verdict::NoRoom => &mut c.dropped_no_room,
        } += 1;
        verdict
    }

    #[inline]
    fn judge(&mut self, now: Time, came_at: Time, packet: &Packet<'_>) -> Verdict {
        let header = &packet.header;
        if header.to != self.ours.id || packet.authenticator.is_some() {
            return Verdict::Foreign;
        }
        match (self.phase, header.kind) {
            (Phase::Open, PacketKind::Data) if header.from == self.theirs.id => self.on_data(now, came_at, packet),
            (Phase::Open, PacketKind::Reset) if header.from == self.theirs.id => self.on_reset(packet),
            (Phase::Calling { .. }, PacketKind::Data) => self.on_accept(now, came_at, packet),
            (Phase::Calling { .. }, PacketKind::Answer) => self.on_answer(now, packet),
            _ => Verdict::Foreign,
        }
    }

    #[inline]
    fn on_data(&mut self, now: Time, came_at: Time, packet: &Packet<'_>) -> Verdict {
        let header = &packet.header;
        let Arrival::New(number) = self.received.look(header.number) else {
            return Verdict::Old;
        };
        let acked = header.acked;
        let is_in_time = self.backoff.tries() == 0 && self.retry_at.is_none_or(|at| at >= now);
        let waits = is_in_time && acked.is_some_and(|below| self.sent.has_all_come(below));
        if let Some(below) = acked.filter(|_| !waits) {
            if self.on_acks(now, below, &[]).is_err() {
                return Verdict::Violation;
            }
        }
        // This is the case for all packets of a run but the first.
        let says_nothing = waits && self.sent.is_empty() && header.reflected.is_none();
        let word = Word {
            at: now,
            lay: now.nanos_since(came_at),
            acked: acked.filter(|_| waits),
            under_way: self.sent.in_flight(),
            reflected: header.reflected,
        };
        let asks = match self.on_frames(now, packet) {
            Ok(asks) => asks,
            Err(Stop::Violation) => return Verdict::Violation,
            Err(Stop::NoRoom) => {
                self.take_in(Word { reflected: None, ..word });
                // The packet is not acknowledged, but its sender should learn that this side is alive.
                self.acks.is_due = true;
                self.on_heard(now);
                return Verdict::NoRoom;
            }
        };
        let is_next = number == self.received.all_below() && !self.received.has_holes();
        self.received.insert(number, header.behind);
        self.is_unconfirmed = false;
        self.acks.has_news = true;
        if asks.any {
            self.acks.asking += 1;
            self.acks.is_due |= !is_next || header.hurries || (asks.records && self.acks.asking >= ACK_EVERY);
            // Reflect the stamp of the first packet: of packets that arrived in a row, only the first waited for no
            // other.
            if !self.reflect.is_due {
                let lay = short_micros(now.nanos_since(came_at));
                self.reflect = Reflect { came_at, sent_at: header.sent_at, lay, is_due: true };
            }
        }
        self.on_heard(now);
        if self.shares.is_some() {
            self.settle_shares(now);
        }
        // The program waits for these records, and its answer should go out before the acknowledgements are processed.
        match waits && asks.records {
            _ if says_nothing => {}
            true => self.word = Some(word),
            false => self.take_in(word),
        }
        if asks.unreliable {
            self.on_unreliable(packet);
        }
        Verdict::Taken
    }

    /// Processes what the last packet reported about our packets, if that was deferred until the answer to its records
    /// is sent. Call it after sending, and before anything that depends on it. Returns whether something was deferred.
    #[inline]
    pub fn catch_up(&mut self) -> bool {
        let word = self.word.take();
        let is_behind = word.is_some();
        if let Some(word) = word {
            self.take_in(word);
        }
        is_behind
    }

    #[inline]
    fn take_in(&mut self, word: Word) {
        let now = word.at;
        if let Some(below) = word.acked {
            // It was checked on arrival, and packets sent since have higher numbers.
            let acked = self.note_acked(now, below, &[], word.under_way);
            debug_assert!(acked.is_ok());
            if self.sent.in_flight() == 0 {
                (self.retry_at, self.watch.asked_at) = (None, None);
            }
            self.find_lost(now);
        }
        // A time stamp from before the channel began cannot be ours. Add one because time stamps are truncated.
        let age = now.nanos_since(self.called_at) / 1000 + 1;
        let is_ours = |r: &Reflected| u64::from(now.stamp().wrapping_sub(r.sent_at)) <= age;
        if let Some(Reflected { sent_at, held, lay: lay_there }) = word.reflected.filter(is_ours) {
            if let Some(took) = self.rtt.on_reflected(now.stamp(), word.lay, sent_at, held, self.their_ack_delay()) {
                self.congestion.on_round_trip(now, took, word.lay + u64::from(lay_there.min(held)) * 1000);
            }
        }
    }

    /// Processes the unreliable messages of an accepted packet.
    #[cold]
    fn on_unreliable(&mut self, packet: &Packet<'_>) {
        let Channel { unreliable, unreliable_from, streams, counters, .. } = self;
        for frame in packet.frames() {
            let Ok(Frame::Unreliable(piece)) = frame else { continue };
            if !streams.is_open(piece.stream) {
                counters.unreliable_dropped += 1;
                continue;
            }
            let unreliable = unreliable.get_or_insert_with(|| Box::new(Unreliable::from_number(*unreliable_from)));
            counters.unreliable_dropped += unreliable.on_piece(&piece);
            if unreliable.has_come() && !std::mem::replace(&mut unreliable.is_told, true) {
                streams.push_event(Event::Unreliable);
            }
        }
    }

    /// Processes the frames of a packet.
    ///
    /// Processing a frame twice does no harm, so a packet that is refused half-way is simply sent again.
    #[inline]
    fn on_frames(&mut self, now: Time, packet: &Packet<'_>) -> Result<Asks, Stop> {
        let (mut asks, mut has_bitmap) = (Asks::default(), false);
        for frame in packet.frames() {
            let frame = frame.map_err(|_| Stop::Violation)?;
            if let Frame::Acks { bitmap } = frame {
                // One bitmap is enough; many would let a single packet cause much work.
                let below = packet.header.acked.filter(|_| !has_bitmap).ok_or(Stop::Violation)?;
                has_bitmap = true;
                self.on_acks(now, below, bitmap)?;
                continue;
            }
            if let Frame::Share { bytes } = frame {
                let shares = self.shares.get_or_insert_default();
                (shares.share, shares.until) = (bytes, now + SHARE_LASTS);
                continue;
            }
            asks.any = true;
            asks.records |= matches!(frame, Frame::Records { .. });
            match frame {
                Frame::Records { stream, offset, bytes } => {
                    let mut stored = self.streams.on_records(stream, offset, bytes, &self.settings)?;
                    if stored == Stored::NotOpen {
                        stored = self.on_first_records(stream, offset, bytes)?;
                    }
                    if stored != Stored::Yes {
                        return Err(Stop::NoRoom);
                    }
                }
                Frame::Taken { stream, taken, limit } => self.streams.on_taken(stream, taken, limit)?,
                Frame::Nack { stream, taken, touched, reason } => {
                    self.streams.on_nack(stream, taken, touched, reason, self.side)?
                }
                Frame::Rest(rest) => self.streams.on_rest(&rest, self.side)?,
                Frame::Rested { stream } => self.streams.on_rested(stream)?,
                Frame::Stay(rest) => self.streams.on_stay(&rest),
                Frame::Pause { pause, .. } => self.streams.on_pause(pause, true)?,
                Frame::Resume(pause) => self.streams.on_pause(pause, false)?,
                Frame::End { reason } => self.streams.on_end(reason),
                // A copy of the frame that opened this channel.
                Frame::Accept(accept) if accept.nonce == self.nonce => {}
                Frame::Ping | Frame::Padding { .. } => {}
                // Only once the packet is accepted: otherwise a copy of a refused packet would deliver the message
                // twice.
                Frame::Unreliable(_) => (asks.records, asks.unreliable) = (true, true),
                _ => return Err(Stop::Violation),
            }
        }
        Ok(asks)
    }

    /// Handles records for a stream that is not open here, by opening it if it is the peer's.
    #[cold]
    fn on_first_records(&mut self, stream: StreamId, offset: u32, bytes: &[u8]) -> Result<Stored, Violation> {
        match self.streams.on_unknown(stream, self.side, &self.settings, self.terms.window) {
            Ok(()) => self.streams.on_records(stream, offset, bytes, &self.settings),
            Err(stored) => Ok(stored),
        }
    }

    #[inline]
    fn on_acks(&mut self, now: Time, below: u32, bitmap: &[u8]) -> Result<(), Violation> {
        if self.note_acked(now, below, bitmap, self.sent.in_flight())? {
            self.retry_at = (self.sent.in_flight() > 0).then(|| self.wait_from(now));
        }
        self.find_lost(now);
        Ok(())
    }

    /// Processes acknowledgements. `under_way` is what was in flight before. Returns whether any of it arrived.
    #[inline]
    fn note_acked(&mut self, now: Time, below: u32, bitmap: &[u8], under_way: u64) -> Result<bool, Violation> {
        let Channel { sent, streams, .. } = self;
        let acked = sent.on_acks(now, below, bitmap, |frame| streams.on_came(frame))?;
        self.counters.packets_late += u64::from(acked.late);
        if acked.bytes > 0 {
            let packet = self.packet_size() as u64;
            self.congestion.on_acked(now, Acked { bytes: acked.bytes, late: acked.late_bytes, under_way, packet });
            self.backoff.on_answer();
        }
        Ok(acked.bytes > 0)
    }

    /// Declares packets lost that later ones have overtaken by too much.
    pub(super) fn find_lost(&mut self, now: Time) {
        let Channel { sent, streams, counters, .. } = self;
        let patience = self.rtt.patience();
        let lost = sent.find_lost(now, patience, |frame| streams.on_lost(frame));
        counters.trials_lost = sent.size.trials_lost();
        if lost.packets > 0 {
            counters.packets_lost += lost.packets;
            self.congestion.on_lost(now, lost.bytes);
        }
    }

    /// Notes that the peer is alive.
    #[inline]
    fn on_heard(&mut self, now: Time) {
        self.watch.heard_at = now;
        self.watch.probes = 0;
        self.watch.has_forgiven = false;
        self.watch.refusal = None;
        self.watch.asked_at = (self.sent.in_flight() > 0).then_some(now);
    }

    /// Handles the first packet of the peer that we called, which tells us its id.
    fn on_accept(&mut self, now: Time, came_at: Time, packet: &Packet<'_>) -> Verdict {
        let accepts = packet.frames().find_map(|frame| match frame {
            Ok(Frame::Accept(accept)) => Some(accept),
            _ => None,
        });
        let is_ours = |a: &weft_wire::frame::Accept| a.nonce == self.nonce && a.caller == self.ours.epoch;
        let Some(accept) = accepts.filter(is_ours) else { return Verdict::Foreign };
        // An interface that serves many programs has another epoch than the program that was called.
        self.theirs = Life { epoch: accept.callee, id: packet.header.from };
        self.phase = Phase::Open;
        self.backoff.on_answer();
        self.set_terms(accept.terms);
        self.streams.push_event(Event::Open);
        self.on_data(now, came_at, packet)
    }

    /// Why the sender of a packet refuses our call, if the packet is a refusal. Changes nothing.
    pub fn refusal(&self, bytes: &[u8]) -> Option<Reason> {
        let packet = Packet::decode(bytes).ok()?;
        let is_answer = packet.header.kind == PacketKind::Answer && packet.header.to == self.ours.id;
        match packet.only_frame().filter(|_| is_answer && packet.authenticator.is_none())? {
            Frame::Refuse { nonce, reason } if nonce == self.nonce => Some(reason),
            _ => None,
        }
    }

    /// Handles the answer of a peer that keeps no state for our call.
    fn on_answer(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        match packet.only_frame() {
            Some(Frame::Cookie { nonce, cookie }) if nonce == self.nonce => {
                let Phase::Calling { cookie: known, next_at } = &mut self.phase else { return Verdict::Foreign };
                match known.replace(cookie) {
                    // The answer to a copy of our call. Calling again would only produce more of them.
                    Some(known) if known == cookie => return Verdict::Old,
                    // Either the first cookie went stale, or one of the two was forged; the next call shows which.
                    // Neither hurry that call nor call for longer: anyone who sees our calls could answer each with
                    // another cookie.
                    Some(_) => {}
                    None => {
                        *next_at = now;
                        self.backoff.on_answer();
                        // The peer is alive. It has the suspicion time, from now on, to admit us.
                        self.watch.heard_at = now;
                        self.watch.refusal = None;
                    }
                }
            }
            Some(Frame::Refuse { nonce, reason }) if nonce == self.nonce => self.lose(reason),
            _ => return Verdict::Foreign,
        }
        Verdict::Taken
    }

    /// The peer does not know this channel. Its reset carries both ids and the number of one of our packets.
    fn on_reset(&mut self, packet: &Packet<'_>) -> Verdict {
        let number = widen(self.sent.next(), packet.header.number);
        let Some(Frame::Reset { epoch }) = packet.only_frame().filter(|_| number < self.sent.next()) else {
            return Verdict::Violation;
        };
        // The same epoch means the peer is alive and has given us up because it did not hear us.
        self.lose(if epoch == self.theirs.epoch { Reason::Silent } else { Reason::WrongEpoch });
        Verdict::Taken
    }
}
