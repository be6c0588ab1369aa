//! The channel between two network interfaces: many streams of records, over packets that may be lost, duplicated or
//! reordered.
//!
//! The order of calls, in a loop that has the clock and the link:
//!
//! ```text
//! on_packet(now, ..)      for each packet that came
//! on_refusal(now, ..)     when the network reports that nobody has the port a packet was sent to
//! on_timeout(now)         if next_timeout() is not later than now
//! peek / pop / release    on the streams of the events
//! send                    as the program wishes
//! transmit_run(now, ..)   for bulk data: packets that are laid out already, for one call of the link
//! transmit(now, ..)       for the rest, until it returns none or a packet that is not full
//! catch_up()              once the link has the packets; next_timeout() is right only after it
//! too_large(now, ..)      if the link refused a packet for its size; then transmit again
//! ```
//!
//! Each record is taken exactly once and in the order of its stream; streams do not wait for each other. What a peer
//! can make grow is bounded: per stream by the two windows and by 256 pieces ahead of holes, per channel by the number
//! of streams and by the 1,024 packets that are tracked. A peer counts as lost when it stays silent for the suspicion
//! time although it was asked, never because of the fate of a single packet.

mod coverage;
mod receive;
mod refusal;
mod shares;
mod streams;
mod timers;
mod transmit;
mod unreliable;

use receive::{Reflect, Word};
use refusal::Refusal;
use shares::Shares;

pub use receive::Verdict;
pub use streams::SharedRoom;
pub use unreliable::Loose;

use crate::congestion::{Congestion, FixedWindow, Method};
use crate::door::Caller;
use crate::incoming::Incoming;
use crate::memory::Memory;
use crate::random::Random;
use crate::rtt::{Backoff, Rtt};
use crate::sack::Received;
use crate::sent::Sent;
use crate::time::{nanos, Time};
use std::sync::Arc;
use std::time::Duration;
use streams::Streams;
use unreliable::Unreliable;
use weft_wire::frame::{Accept, Cookie, PauseReason, Side, StreamId, Terms, HEADER_INTEGRITY};
use weft_wire::frame::{PLACE_BITS, RECORD_MOST, UNRELIABLE};
use weft_wire::packet::{ChannelId, Integrity, FIRST_NUMBER, PACKET_LEAST};
use weft_wire::path::{Abandoned, Peek, PushError, Traffic};
use weft_wire::{Epoch, Head, Reason, MAX_ARGS, MAX_PAYLOAD};

/// One life of a network interface, and the id that addresses one of its channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// The life.
    pub epoch: Epoch,
    /// The id: 32 random bits, not zero.
    pub id: ChannelId,
}

/// Random numbers for one channel. They must come from an unpredictable source.
#[derive(Clone, Copy)]
pub struct Lot {
    /// Proves that whoever answers saw the call. It goes over the wire.
    pub nonce: u64,
    /// Seeds the channel's random choices. It never leaves the host.
    pub seed: u64,
}

impl std::fmt::Debug for Lot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lot(..)")
    }
}

/// Bytes that may be in flight to any peer: half of the smallest window.
const UNDER_WAY_LEAST: u64 = 64 << 10;

/// The minimum timeout until a first packet is lost, in nanoseconds. It covers a queue of a megabyte at a gigabit,
/// which many senders that start at once can fill.
const LOSSLESS_TIMEOUT: u64 = 10_000_000;

/// The settings of a channel. Values out of range are clamped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A peer that stays silent for this long although it was asked is lost. From 50 ms to 5 minutes.
    pub suspicion: Duration,
    /// Bytes of a stream that may wait here to be taken; half of them may be in flight at once. From 128 KiB, so that
    /// every record fits, to 256 MiB.
    pub window: u32,
    /// Bytes of a stream that are kept until the peer has taken them. The same range.
    pub send_most: u32,
    /// Bytes that may wait here to be taken, over all streams of a channel. Data beyond that is dropped, and its stream
    /// is paused until there is room. From 128 KiB, so that every record fits; `u32::MAX`, the default, is no limit.
    pub held_most: u32,
    /// Streams that each side may open at once. A closed stream counts until its last word is acknowledged. At most
    /// 2^[`PLACE_BITS`].
    pub streams_most: u32,
    /// How long an acknowledgement may wait for a packet to ride on. At most 50 ms.
    pub ack_delay: Duration,
    /// The largest packet that is accepted, and the largest size that is tried.
    pub packet_most: u16,
    /// The packet size to begin with, which the link should carry: the interface's MTU less headers, where most paths
    /// carry that much. Larger sizes are tried, and a smaller one is found if this one does not get through.
    pub packet_first: u16,
    /// Which congestion control decides how much may be in flight, for owners of channels that choose it by setting.
    pub congestion: Method,
    /// What packet checksums cover. They cover less than everything only if the peer wants the same. See
    /// [`Channel::integrity`].
    pub integrity: Integrity,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            suspicion: Duration::from_secs(3),
            window: 256 << 10,
            send_most: 256 << 10,
            held_most: u32::MAX,
            streams_most: 4096,
            ack_delay: Duration::from_millis(1),
            packet_most: 9000,
            packet_first: 1200,
            congestion: Method::default(),
            integrity: Integrity::Full,
        }
    }
}

impl Settings {
    /// The settings, clamped to their ranges.
    fn checked(self) -> Settings {
        let packet_most = self.packet_most.max(PACKET_LEAST as u16);
        let bytes = (RECORD_MOST as u32).next_power_of_two()..=256 << 20;
        Settings {
            suspicion: self.suspicion.clamp(Duration::from_millis(50), Duration::from_secs(300)),
            window: self.window.clamp(*bytes.start(), *bytes.end()),
            send_most: self.send_most.clamp(*bytes.start(), *bytes.end()),
            held_most: self.held_most.max(*bytes.start()),
            ack_delay: self.ack_delay.min(Duration::from_millis(50)),
            packet_most,
            packet_first: self.packet_first.clamp(PACKET_LEAST as u16, packet_most),
            streams_most: self.streams_most.clamp(1, 1 << PLACE_BITS),
            ..self
        }
    }

    fn terms(&self) -> Terms {
        let wanted = match self.integrity {
            Integrity::Full => 0,
            Integrity::Header => HEADER_INTEGRITY,
        };
        Terms {
            features: UNRELIABLE | wanted,
            window: self.window,
            ack_delay: self.ack_delay.as_micros() as u16,
            packet_most: self.packet_most,
        }
    }
}

/// What happened on a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The peer answered the call, or we gave way to its own.
    Open,
    /// A stream has records: [`Channel::peek`] until it is empty.
    Readable(StreamId),
    /// A stream on which [`Channel::send`] returned *full* has room again.
    Room(StreamId),
    /// The peer has taken more of a stream for which [`Channel::watch_taken`] was called.
    Taken(StreamId),
    /// Unreliable messages arrived: [`Channel::take_unreliable`] until there is none.
    Unreliable,
    /// The peer takes no more of this stream: [`Channel::close`] it.
    Refused(StreamId, Reason),
    /// The peer proposes to close this stream of its own at rest: [`Channel::answer_rest`].
    Asks(StreamId),
    /// The stream for which [`Channel::wish_rest`] was called is closed: both sides have taken everything. Carries the
    /// owner's number, or `u32::MAX` if it had none.
    Rested(StreamId, u32),
    /// The peer keeps using the stream for which [`Channel::wish_rest`] was called.
    Stays(StreamId),
    /// The peer has closed all streams and opens no more: [`Channel::end`] the channel here too.
    Ended(Reason),
    /// The peer is gone; nothing more will happen: [`Channel::abandon`].
    Lost(Reason),
}

impl Event {
    /// The stream that the event is about.
    fn stream(&self) -> Option<StreamId> {
        match *self {
            Event::Readable(id) | Event::Room(id) | Event::Taken(id) | Event::Refused(id, _) => Some(id),
            Event::Asks(id) | Event::Rested(id, _) | Event::Stays(id) => Some(id),
            Event::Open | Event::Unreliable | Event::Ended(_) | Event::Lost(_) => None,
        }
    }
}

/// Why a stream was not opened.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The limit of open streams is reached.
    #[error("the channel has as many streams as it may have; close some, or raise the limit")]
    TooMany,
    /// The stream is open, or was closed a moment ago.
    #[error("the stream is in use; use another number, because a channel uses each number once")]
    InUse,
    /// The channel is not open yet, so it is not known which half of the numbers belongs to this side.
    #[error("the channel is not open yet; open streams once the peer has answered")]
    Calling,
    /// The peer is gone.
    #[error("the peer of this channel is gone")]
    Lost,
}

weft_wire::debug_says_display!(OpenError);

/// The counters of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets built.
    pub packets_sent: u64,
    /// Packets accepted.
    pub packets_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets declared lost that arrived after all.
    pub packets_late: u64,
    /// Packets that tried a larger size. Only `packets_sent` counts them too.
    pub trials_sent: u64,
    /// Trial packets that were declared lost.
    pub trials_lost: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Duplicates, and packets that their sender had given up.
    pub dropped_old: u64,
    /// Packets of other channels or lives, with forged ids, or with an authenticator, which this version cannot check.
    pub dropped_foreign: u64,
    /// Damaged packets, and bytes that are no packet.
    pub dropped_malformed: u64,
    /// Packets of the peer that break the protocol.
    pub dropped_violation: u64,
    /// Packets for which there was no room, or whose stream was not open.
    pub dropped_no_room: u64,
    /// Unreliable messages dropped here: those to a peer that does not support them, those that found no room on
    /// arrival, and those of which a part was missing.
    pub unreliable_dropped: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The peer has not answered.
    Calling {
        cookie: Option<Cookie>,
        next_at: Time,
    },
    Open,
    Lost(Reason),
}

/// The acknowledgements that are owed to the peer.
#[derive(Clone, Copy, Debug, Default)]
struct Acks {
    /// Packets that asked for an acknowledgement and have none yet.
    asking: u32,
    /// Something arrived since the last packet was sent.
    has_news: bool,
    is_due: bool,
    due_at: Option<Time>,
}

/// What is known about whether the peer is alive.
#[derive(Clone, Copy, Debug)]
struct Watch {
    heard_at: Time,
    /// When the peer's silence began: when it was asked, or was last heard with packets in flight.
    asked_at: Option<Time>,
    /// Timeouts since the peer was last heard.
    probes: u32,
    /// Our own absence was forgiven once; it is not again until the peer is heard.
    has_forgiven: bool,
    /// The owner wants the peer watched even though nothing is in flight.
    is_wanted: bool,
    /// The peer's host reported that nobody has its port; the peer is being asked.
    refusal: Option<Refusal>,
}

/// One channel: the state that one life of a network interface keeps about one life of another.
///
/// ```
/// use weft_transport::{Channel, Event, FixedWindow, Life, Lot, Settings, Time, Verdict};
/// use weft_transport::{Answer, Door};
/// use weft_wire::{packet::ChannelId, Epoch};
///
/// let (now, settings) = (Time::from_micros(1), Settings::default());
/// let ours = Life { epoch: Epoch(1), id: ChannelId(11) };
/// let theirs = Life { epoch: Epoch(2), id: ChannelId(22) };
/// let door = Door::new(theirs.epoch, [3, 4]); // of the host that is called
/// let mut calling = Channel::call(now, ours, theirs.epoch, settings, Lot { nonce: 5, seed: 6 }, FixedWindow(1 << 16));
/// let mut packet = [0; 2048];
///
/// // A call without a cookie gets one, and a call with it is admitted.
/// let length = calling.transmit(now, &mut packet).expect("a call");
/// let Answer::Reply(cookie) = door.answer(now, b"where it came from", &packet[..length]) else { panic!() };
/// assert_eq!(calling.on_packet(now, cookie.bytes()), Verdict::Taken);
/// let length = calling.transmit(now, &mut packet).expect("another call");
/// let Answer::Admit(caller) = door.answer(now, b"where it came from", &packet[..length]) else { panic!() };
/// let mut answering = Channel::answer(now, theirs, &caller, settings, Lot { nonce: 7, seed: 8 }, FixedWindow(1 << 16));
///
/// let length = answering.transmit(now, &mut packet).expect("it accepts");
/// assert_eq!(calling.on_packet(now, &packet[..length]), Verdict::Taken);
/// assert_eq!(calling.poll_event(), Some(Event::Open));
/// ```
#[derive(Debug)]
pub struct Channel<C = FixedWindow, M = Vec<u8>> {
    phase: Phase,
    ours: Life,
    theirs: Life,
    nonce: u64,
    settings: Settings,
    /// Which side opens the streams of this one.
    side: Side,
    /// The peer's terms: what it grants and asks for.
    terms: Terms,
    /// We answered a call, and the caller has not yet shown that it knows our id.
    is_unconfirmed: bool,
    streams: Streams<M>,
    /// Allocated with the first unreliable message.
    unreliable: Option<Box<Unreliable>>,
    /// The number of the next unreliable message, kept while `unreliable` is freed.
    unreliable_from: u32,
    /// Unreliable messages wait to be sent.
    has_unreliable: bool,
    sent: Sent,
    received: Received,
    congestion: C,
    /// Present only while one of the two hosts cannot keep up with all its peers.
    shares: Option<Box<Shares>>,
    rtt: Rtt,
    backoff: Backoff,
    random: Random,
    acks: Acks,
    watch: Watch,
    /// What the last packet reported about our packets, until `catch_up` processes it.
    word: Option<Word>,
    reflect: Reflect,
    /// When to ask again because no acknowledgement came.
    retry_at: Option<Time>,
    /// Packets that may be sent regardless of the congestion control.
    probes_due: u32,
    /// No packet with records is sent before this time.
    paced_until: Time,
    /// The next packet number to skip.
    skip_at: u64,
    called_at: Time,
    counters: Counters,
    /// Packets sent and received up to the last rest.
    rested_at: u64,
}

impl<C: Congestion> Channel<C> {
    /// Calls the life `peer`, which knows nothing of us.
    pub fn call(now: Time, ours: Life, peer: Epoch, settings: Settings, lot: Lot, congestion: C) -> Channel<C> {
        Channel::call_in(now, ours, peer, settings, lot, congestion)
    }

    /// Answers a caller that the [`Door`](crate::Door) admitted.
    pub fn answer(now: Time, ours: Life, caller: &Caller, settings: Settings, lot: Lot, congestion: C) -> Channel<C> {
        Channel::answer_in(now, ours, caller, settings, lot, congestion)
    }
}

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// Like [`Channel::call`], for links with memory of their own.
    pub fn call_in(now: Time, ours: Life, peer: Epoch, settings: Settings, lot: Lot, congestion: C) -> Channel<C, M> {
        let settings = settings.checked();
        // No stream data may be sent before the answer grants a window.
        let terms = Terms { features: 0, window: 0, ack_delay: 0, packet_most: PACKET_LEAST as u16 };
        let theirs = Life { epoch: peer, id: ChannelId::NOBODY };
        let mut channel = Channel::new(now, ours, theirs, settings, lot, congestion);
        channel.set_terms(terms);
        channel
    }

    /// Like [`Channel::answer`], for links with memory of their own.
    pub fn answer_in(
        now: Time,
        ours: Life,
        caller: &Caller,
        settings: Settings,
        lot: Lot,
        congestion: C,
    ) -> Channel<C, M> {
        let theirs = Life { epoch: caller.epoch, id: caller.id };
        let mut channel = Channel::new(now, ours, theirs, settings.checked(), lot, congestion);
        channel.begin_answer(caller);
        channel
    }

    fn new(now: Time, ours: Life, theirs: Life, settings: Settings, lot: Lot, congestion: C) -> Channel<C, M> {
        assert!(ours.id != ChannelId::NOBODY, "an id of our own");
        let mut random = Random::new(lot.seed);
        let skip_at = FIRST_NUMBER + 1 + random.below(1024);
        Channel {
            phase: Phase::Calling { cookie: None, next_at: now },
            ours,
            theirs,
            nonce: lot.nonce,
            settings,
            side: Side::Caller,
            terms: settings.terms(),
            is_unconfirmed: false,
            streams: Streams::holding(settings.held_most),
            unreliable: None,
            unreliable_from: 0,
            has_unreliable: false,
            sent: Sent::new(FIRST_NUMBER, settings.packet_first),
            received: Received::new(FIRST_NUMBER),
            congestion,
            shares: None,
            rtt: Rtt::default(),
            backoff: Backoff::default(),
            random,
            acks: Acks::default(),
            watch: Watch {
                heard_at: now,
                asked_at: None,
                probes: 0,
                has_forgiven: false,
                is_wanted: false,
                refusal: None,
            },
            word: None,
            reflect: Reflect::default(),
            retry_at: None,
            probes_due: 0,
            paced_until: now,
            skip_at,
            called_at: now,
            counters: Counters::default(),
            rested_at: 0,
        }
    }

    /// Answers an admitted caller instead of calling it, if both sides called at once and this side has to give way:
    /// the side with the larger epoch, or, between two bundles of one life, the one with the larger nonce. What was
    /// sent stays. Returns false and does nothing if this channel does not have to; then the peer gives way. The caller
    /// must be at the address that this channel calls.
    pub fn give_way(&mut self, caller: &Caller) -> bool {
        // Between two interfaces of one life the nonces decide.
        let is_larger = (self.ours.epoch, self.nonce) > (caller.epoch, caller.nonce);
        let gives_way = self.is_calling() && is_larger;
        if gives_way {
            // The epoch may differ from that of the program that was called.
            self.theirs = Life { epoch: caller.epoch, id: caller.id };
            self.begin_answer(caller);
            self.streams.push_event(Event::Open);
        }
        gives_way
    }

    /// Opens a stream of this side at the lowest free place. The peer opens it when its first records arrive.
    ///
    /// # Errors
    /// `TooMany`, and nothing is opened, if all places are taken; `Calling` before the channel is open, and `Lost` at its end.
    pub fn open_next(&mut self) -> Result<StreamId, OpenError> {
        match self.phase {
            Phase::Lost(_) => Err(OpenError::Lost),
            Phase::Calling { .. } => Err(OpenError::Calling),
            Phase::Open => self.streams.open_next(self.side, &self.settings, self.terms.window),
        }
    }

    /// Opens the stream with a number that both sides agreed on by other means. Possible at any time.
    ///
    /// # Errors
    /// Those of [`Channel::open_next`], and `InUse` if the place of the number is taken.
    pub fn open(&mut self, stream: StreamId) -> Result<(), OpenError> {
        if matches!(self.phase, Phase::Lost(_)) {
            return Err(OpenError::Lost);
        }
        self.streams.open(stream, &self.settings, self.terms.window)
    }

    /// Asks to close a stream that this side opened and that its owner no longer uses. Once everything was taken, the
    /// peer is asked. If it agrees, both sides close the stream, nothing is returned and [`Event::Rested`] follows;
    /// otherwise [`Event::Stays`] follows. Meanwhile the stream is *full*. Sending anything before the peer is asked
    /// cancels the request.
    pub fn wish_rest(&mut self, stream: StreamId) {
        if stream.side() == self.side {
            self.streams.wish_rest(stream);
        }
    }

    /// Answers [`Event::Asks`]: closes the stream if this owner agrees, or keeps it. Returns false, and the stream
    /// stays open, if it is not at rest here: something was sent, or is not taken.
    pub fn answer_rest(&mut self, stream: StreamId, agrees: bool) -> bool {
        let is_closed = self.streams.answer_rest(stream, agrees);
        if is_closed {
            self.forget_unreliable(stream);
        }
        is_closed
    }

    /// Closes all streams as [`Channel::close`] does, and tells the peer that this side accepts and opens no others.
    pub fn end(&mut self, reason: Reason) -> Vec<(StreamId, Vec<Abandoned>)> {
        self.catch_up();
        let abandoned = self.streams.end(reason);
        (self.unreliable, self.has_unreliable) = (None, false);
        self.acks.is_due |= self.streams.has_nacks();
        abandoned
    }

    /// Closes both halves of a stream: tells the peer for certain what was taken, and returns the records that the peer
    /// may not have taken. Does nothing if the stream is not open. If its reading half is lent, the peer is told that
    /// all that arrived is in hand.
    pub fn close(&mut self, stream: StreamId, reason: Reason) -> Vec<Abandoned> {
        self.catch_up();
        let abandoned = self.streams.close(stream, reason);
        self.forget_unreliable(stream);
        self.acks.is_due |= self.streams.has_nacks();
        abandoned
    }

    /// Ends the channel. Returns each stream with the records that the peer may not have taken. Nothing is sent
    /// afterwards.
    pub fn abandon(&mut self) -> Vec<(StreamId, Vec<Abandoned>)> {
        self.catch_up();
        if !matches!(self.phase, Phase::Lost(_)) {
            self.phase = Phase::Lost(Reason::PeerLost);
        }
        (self.unreliable, self.has_unreliable) = (None, false);
        self.streams.abandon()
    }

    /// Copies a record into a stream. `head.args` and `head.len` are set from the slices.
    ///
    /// Returns `Full` until the peer has taken enough; then an [`Event::Room`] follows. Returns `Gone` if the stream is
    /// not open, or the peer takes no more. At most one record for each 16 bytes of `send_most` is kept.
    ///
    /// # Panics
    /// If the head is of a kind that only links parts of a ring.
    #[inline]
    pub fn send(&mut self, stream: StreamId, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        if matches!(self.phase, Phase::Lost(_)) {
            return Err(PushError::Gone);
        }
        self.streams.send(stream, head, args, payload)
    }

    /// Copies an unreliable record: it is sent once, beside the stream, and its fate is not reported. Up to 128 KiB
    /// wait for the congestion control; beyond that it returns `Full` until [`Channel::has_room`] returns true. If the
    /// peer does not support unreliable messages, nothing is sent. Returns `Gone` if the channel is lost.
    #[cold]
    pub fn send_unreliable(
        &mut self,
        stream: StreamId,
        head: Head,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), PushError> {
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD {
            return Err(PushError::TooLarge);
        }
        match self.phase {
            Phase::Lost(_) => return Err(PushError::Gone),
            Phase::Calling { .. } => return Err(PushError::Full),
            Phase::Open if self.terms.features & UNRELIABLE == 0 => {
                self.counters.unreliable_dropped += 1;
                return Ok(());
            }
            Phase::Open => {}
        }
        let Channel { unreliable, unreliable_from, .. } = self;
        let unreliable = unreliable.get_or_insert_with(|| Box::new(Unreliable::from_number(*unreliable_from)));
        if !unreliable.push(stream, head, args, payload) {
            return Err(PushError::Full);
        }
        self.has_unreliable = true;
        Ok(())
    }

    /// The next unreliable message that arrived.
    pub fn take_unreliable(&mut self) -> Option<Loose> {
        self.unreliable.as_mut()?.take()
    }

    /// Looks for the next record of a stream; it stays until [`Channel::pop`].
    #[inline]
    pub fn peek(&mut self, stream: StreamId) -> Peek<'_> {
        self.streams.peek(stream)
    }

    /// Drops the record in hand.
    #[inline]
    pub fn pop(&mut self, stream: StreamId) {
        self.streams.pop(stream);
    }

    /// Lets the peer know of all that was popped, with the next packet or acknowledgement.
    #[inline]
    pub fn release(&mut self, stream: StreamId) {
        self.streams.release(stream);
    }

    /// Reports by event, from now on, whenever the peer has taken more of a stream.
    pub fn watch_taken(&mut self, stream: StreamId) {
        self.streams.watch_taken(stream);
    }

    /// Pauses a stream: the peer keeps what nobody here has popped, and sends nothing more of it. What arrived and was
    /// not popped is dropped and will be sent again; but the first record, if it is complete, and up to `keep` bytes
    /// stay. With `keep` 0 nothing stays, and a record in hand must not be popped afterwards. A paused stream may be
    /// paused again, to keep less. Returns false and does nothing if the stream is not open, or is lent.
    pub fn pause(&mut self, stream: StreamId, reason: PauseReason, keep: u32) -> bool {
        let is_paused = self.streams.pause(stream, reason, keep);
        self.acks.is_due |= self.streams.is_urgent();
        is_paused
    }

    /// Resumes a paused stream. The peer resends what was dropped. Returns false if [`Channel::pause`] had not paused
    /// it.
    pub fn resume(&mut self, stream: StreamId) -> bool {
        let is_resumed = self.streams.resume(stream);
        self.acks.is_due |= self.streams.is_urgent();
        is_resumed
    }

    /// Whether the peer has paused a stream.
    pub fn is_paused(&mut self, stream: StreamId) -> bool {
        self.streams.is_paused(stream)
    }

    /// Frees memory if streams hold much more than they need. Looks at all streams.
    pub fn trim(&mut self) {
        self.streams.trim();
    }

    /// When the peer was heard last.
    pub fn heard_at(&self) -> Time {
        self.watch.heard_at
    }

    /// Bytes that arrived and were not taken yet, over all streams.
    pub fn held(&self) -> u64 {
        self.streams.held()
    }

    /// Whether [`Channel::held`] is above half of its limit.
    pub fn is_crowded(&self) -> bool {
        self.streams.is_crowded()
    }

    /// Charges received data of this channel, from now on, to room that it shares with other channels.
    pub fn share_room(&mut self, room: Arc<SharedRoom>) {
        self.streams.share_room(room);
    }

    /// Resumes streams that wait for room, if other channels left some. Returns whether the peer has to be told
    /// something.
    pub fn look_for_room(&mut self) -> bool {
        self.streams.make_room();
        self.acks.is_due |= self.streams.is_urgent();
        self.acks.is_due
    }

    /// Lends a stream's reading half, so that its records can be looked at while the channel is used. Until it is back,
    /// [`Channel::peek`] finds nothing, and data that arrives for the stream is not acknowledged. `None` if there is no
    /// such stream, or it is lent.
    #[inline]
    pub fn lend(&mut self, stream: StreamId) -> Option<Box<Incoming>> {
        self.streams.lend(stream)
    }

    /// Takes a reading half back and releases all that was popped. If the stream was closed meanwhile, the half is
    /// dropped.
    #[inline]
    pub fn take_back(&mut self, stream: StreamId, half: Box<Incoming>) {
        self.streams.take_back(stream, half);
    }

    /// Whether a stream has a whole record, and its reading half is not lent.
    #[inline]
    pub fn is_readable(&mut self, stream: StreamId) -> bool {
        self.streams.is_readable(stream)
    }

    /// Whether any stream has a whole record. Looks at all streams.
    pub fn has_readable(&mut self) -> bool {
        self.streams.has_readable()
    }

    /// Sets the owner's mark on a stream and returns the previous one. `None` if the stream is not open.
    #[inline]
    pub fn mark(&mut self, stream: StreamId, is_marked: bool) -> Option<bool> {
        self.streams.mark(stream, is_marked)
    }

    /// Sets the owner's number of a stream. It is below `u32::MAX`.
    pub fn set_owner(&mut self, stream: StreamId, owner: u32) {
        self.streams.set_owner(stream, owner);
    }

    /// The owner's number of a stream, if it is open and has one.
    #[inline]
    pub fn owner(&mut self, stream: StreamId) -> Option<u32> {
        self.streams.owner(stream)
    }

    /// Whether there is an open stream. Looks at all places.
    pub fn has_streams(&self) -> bool {
        self.streams.has_open()
    }

    /// Whether the peer's program has taken a record of a stream, and so knows of the stream.
    pub fn is_confirmed(&mut self, stream: StreamId) -> bool {
        self.streams.is_confirmed(stream)
    }

    /// Whether [`Channel::poll_event`] would return an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.streams.has_events()
    }

    /// The next event, oldest first. At most one event of a kind waits per stream.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.streams.poll_event();
        if matches!(event, Some(Event::Unreliable)) {
            self.unreliable.iter_mut().for_each(|unreliable| unreliable.is_told = false);
        }
        event
    }

    /// The link refused a packet of `bytes` bytes for its size (EMSGSIZE). All packets in flight that are as large
    /// count as lost, without a congestion response, and the packet size is reduced. Call [`Channel::transmit`]
    /// afterwards.
    pub fn too_large(&mut self, now: Time, bytes: usize) {
        self.catch_up();
        let Channel { sent, streams, counters, .. } = self;
        let bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
        counters.packets_lost += sent.give_up_large(now, bytes, |frame| streams.on_lost(frame));
        counters.trials_lost = sent.size.trials_lost();
        if sent.in_flight() == 0 {
            self.retry_at = None;
        }
    }

    /// Sets whether to ask the peer now and then if it is alive even though nothing is in flight. The caller wants that
    /// while a request waits for its reply.
    pub fn keep_watch(&mut self, wanted: bool) {
        self.watch.is_wanted = wanted;
    }

    /// Asks the peer once whether it is alive. If it has forgotten this channel, it says so.
    pub fn ask(&mut self) {
        if self.phase == Phase::Open {
            self.probes_due = self.probes_due.max(1);
        }
    }

    /// Calls again now, instead of waiting for an answer.
    pub fn call_again(&mut self, now: Time) {
        if let Phase::Calling { next_at, .. } = &mut self.phase {
            *next_at = now;
        }
    }

    /// Frees the memory that an idle channel can do without, if it was idle since the last rest. A channel that pauses
    /// between bursts keeps it, because it would have to allocate again each time.
    pub fn rest(&mut self) {
        self.catch_up();
        let used = self.counters.packets_sent + self.counters.packets_received;
        if std::mem::replace(&mut self.rested_at, used) == used {
            self.streams.rest();
            self.sent.rest();
            self.congestion.rest();
            if let Some(unreliable) = &mut self.unreliable {
                self.counters.unreliable_dropped += unreliable.rest();
                self.unreliable_from = unreliable.number();
            }
            self.unreliable = self.unreliable.take().filter(|unreliable| !unreliable.is_idle());
        }
    }

    /// Whether a record with this many arguments and payload bytes would be accepted now, and an unreliable message
    /// too. If the stream has no room, an [`Event::Room`] follows; for unreliable messages there is no event, and the
    /// caller asks again.
    pub fn has_room(&mut self, stream: StreamId, args: usize, payload: usize) -> bool {
        self.streams.has_room(stream, args, payload) && self.unreliable.as_ref().is_none_or(|u| u.has_room())
    }

    /// Sends owed acknowledgements with the next packet that is transmitted, instead of waiting for data to ride on.
    pub fn hurry_acks(&mut self) {
        self.acks.is_due |= self.acks.asking > 0 || self.streams.has_words();
    }

    /// Whether nothing is in flight, so that the next message should be sent at once.
    pub fn is_quiet(&self) -> bool {
        let has_all_come = self.sent.in_flight() == 0 || self.word.is_some_and(|word| word.says_all(self.sent.next()));
        has_all_come && !self.streams.has_runs() && !self.has_unreliable
    }

    /// Whether something waits here until the congestion control lets it go.
    pub fn has_waiting(&self) -> bool {
        self.has_more()
    }

    /// Whether records, unreliable ones included, were not sent completely. Looks at all streams.
    pub fn has_unsent(&self) -> bool {
        self.streams.has_unsent() || self.has_unreliable
    }

    /// Whether this channel was made for that call.
    pub fn is_of(&self, caller: &Caller) -> bool {
        // An id belongs to one channel. The nonce is not compared: after two simultaneous calls it may be that of the
        // other call.
        self.theirs == Life { epoch: caller.epoch, id: caller.id }
    }

    /// Whether that call was made by this channel and came back to its own host.
    pub fn made(&self, caller: &Caller) -> bool {
        (self.ours, self.nonce) == (Life { epoch: caller.epoch, id: caller.id }, caller.nonce)
    }

    /// Our side.
    pub fn ours(&self) -> Life {
        self.ours
    }

    /// The peer's side; its id is not known before the channel is open.
    pub fn theirs(&self) -> Life {
        self.theirs
    }

    /// Whether we called and have heard nothing from the peer.
    pub fn is_unheard(&self) -> bool {
        matches!(self.phase, Phase::Calling { cookie: None, .. })
    }

    /// Whether we called and are not admitted yet.
    pub fn is_calling(&self) -> bool {
        matches!(self.phase, Phase::Calling { .. })
    }

    /// Whether the channel is open, so that it carries records.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Why the peer is gone, if it is.
    pub fn lost(&self) -> Option<Reason> {
        match self.phase {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// The largest packet size known to get through. Only single trial packets are larger, and a channel with much to
    /// send fills its packets completely. So buffers of this size give a run of equal packets, of which only the last
    /// may be shorter, for segmentation offload. They have no room for a trial, which needs one more call with a larger
    /// buffer.
    #[inline]
    pub fn packet_size(&self) -> usize {
        usize::from(self.sent.size.after(self.backoff.tries()).min(self.terms.packet_most))
    }

    /// How far a stream was written, and how far the peer's program has taken it.
    pub fn traffic(&mut self, stream: StreamId) -> Traffic {
        self.streams.traffic(stream)
    }

    /// Whether more of a stream would be sent if the peer had room: its program does not take what arrived.
    pub fn waits_for_peer(&mut self, stream: StreamId) -> bool {
        self.streams.waits_for_peer(stream)
    }

    /// Whether more of any stream would be sent if the peer had room for it. Looks at all streams.
    pub fn any_waits_for_peer(&self) -> bool {
        self.streams.any_waits_for_peer()
    }

    /// The first of the open streams. Looks at all places before it.
    pub fn first_stream(&self) -> Option<StreamId> {
        self.streams.first_open()
    }

    /// Bytes of packets that were neither acknowledged nor given up.
    pub fn in_flight(&self) -> u64 {
        self.sent.in_flight()
    }

    /// Bytes that may be in flight. The smallest of three limits: the congestion window; half of a stream's window at
    /// the peer, so that a lost packet, which keeps all later ones waiting there, does not stop sending until it is
    /// repaired; and the share that the peer's host announced, if it did.
    pub fn congestion_window(&self) -> u64 {
        let window = self.congestion.window().min(u64::from(self.terms.window / 2).max(UNDER_WAY_LEAST));
        self.shares.as_ref().map_or(window, |shares| window.min(shares.share.max(1).into()))
    }

    /// Consecutive timeouts without an answer.
    pub fn silences(&self) -> u32 {
        self.backoff.tries()
    }

    /// The round-trip time.
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of memory that the channel takes, itself included.
    pub fn memory(&self) -> usize {
        let unreliable = self.unreliable.as_ref().map_or(0, |unreliable| unreliable.memory());
        let shares = self.shares.as_ref().map_or(0, |shares| std::mem::size_of_val(&**shares));
        std::mem::size_of::<Self>() + self.streams.memory() + self.sent.memory() + unreliable + shares
    }

    fn begin_answer(&mut self, caller: &Caller) {
        (self.phase, self.side) = (Phase::Open, Side::Answerer);
        self.nonce = caller.nonce;
        self.is_unconfirmed = true;
        self.acks.is_due = true;
        self.reflect = Reflect { came_at: caller.arrived, sent_at: caller.sent_at, lay: 0, is_due: true };
        self.backoff.on_answer();
        let Watch { is_wanted, .. } = self.watch;
        let heard_at = caller.arrived;
        self.watch = Watch { heard_at, asked_at: None, probes: 0, has_forgiven: false, is_wanted, refusal: None };
        self.set_terms(caller.terms);
    }

    fn set_terms(&mut self, terms: Terms) {
        let features = terms.features & self.settings.terms().features;
        self.terms = Terms { features, packet_most: terms.packet_most.max(PACKET_LEAST as u16), ..terms };
        self.streams.grant(terms.window);
        self.streams.set_integrity(self.integrity());
    }

    fn accept(&self) -> Accept {
        let terms = Terms { features: self.terms.features, ..self.settings.terms() };
        Accept { nonce: self.nonce, caller: self.theirs.epoch, callee: self.ours.epoch, terms }
    }

    fn forget_unreliable(&mut self, stream: StreamId) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.forget(stream);
            self.has_unreliable = unreliable.has_waiting();
        }
    }

    fn lose(&mut self, reason: Reason) {
        self.phase = Phase::Lost(reason);
        self.streams.push_event(Event::Lost(reason));
    }

    /// How long to wait for an acknowledgement, in nanoseconds, before randomisation. The wait is longer while nothing
    /// was lost yet: a late acknowledgement is then more likely in a queue that filled during the last round trip.
    #[inline]
    fn base_timeout(&self) -> u64 {
        let timeout = self.rtt.timeout(self.their_ack_delay());
        if self.counters.packets_lost == 0 {
            timeout.max(LOSSLESS_TIMEOUT)
        } else {
            timeout
        }
    }

    /// How long the peer may delay an acknowledgement, in nanoseconds.
    #[inline]
    fn their_ack_delay(&self) -> u64 {
        u64::from(self.terms.ack_delay) * 1000
    }

    /// Returns when the wait that begins now is over. The wait grows up to a 32nd of the suspicion time, so that a peer
    /// that hears one packet in three, and is heard as seldom, is not taken for silent (I1: 31 tries). It never begins
    /// above a quarter of the suspicion time, whatever the peer reflects, so that a silent peer is found in time.
    #[inline]
    fn wait_from(&mut self, now: Time) -> Time {
        let suspicion = nanos(self.settings.suspicion);
        let base = self.base_timeout().min(suspicion / 4);
        now.plus_nanos(self.backoff.wait_nanos(base, suspicion / 32, &mut self.random))
    }
}
