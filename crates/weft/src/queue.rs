//! A sending queue: messages wait in it until there is room for them, a bounded number for each destination.
//!
//! [`Bundle::try_send`] says *full* when a destination has no room, and a program with many destinations cannot wait for one of
//! them. With a [`SendQueue`] it pushes its messages and goes on: the queue sends each as soon as there is room, in order for each
//! destination. A destination that is slow fills its own part of the queue and no other's. When that part is full, `push` says so,
//! and the program decides: drop the message, slow down its source, or give up the destination.
//!
//! Every message that was pushed ends in one way, and [`Counts`] has the number of each:
//!
//! - it is *delivered* (a request: answered);
//! - it comes back, as any message does, with its contents and the reason: *not delivered*, or *unknown*;
//! - it is *taken back* before it was sent, by [`SendQueue::take_back`].

use crate::bundle::{Bundle, InHandler, SharedBundle, Threads};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use weft_core::{Endpoint, Event, MessageKind, Outgoing, Returned, SendError};
use weft_wire::{Certainty, Reason, MAX_ARGS, MAX_PAYLOAD};

/// A queue sends through a carrier: a [`Bundle`] or a [`SharedBundle`].
pub trait Carrier: sealed::Carrier {}

impl<C: sealed::Carrier> Carrier for C {}

mod sealed {
    use weft_core::{Endpoint, Event, MessageKind, Outgoing, SendError};

    /// The calls of both kinds of bundles.
    pub trait Carrier {
        fn post(&mut self, from: Endpoint, to: u32, kind: MessageKind, message: Outgoing<'_>) -> Result<(), SendError>;
        fn event(&mut self) -> Result<Option<Event>, SendError>;
    }
}

impl<H: Threads> sealed::Carrier for Bundle<H> {
    fn post(&mut self, from: Endpoint, to: u32, kind: MessageKind, message: Outgoing<'_>) -> Result<(), SendError> {
        self.try_post(from, to, kind, message)
    }

    fn event(&mut self) -> Result<Option<Event>, SendError> {
        Ok(self.next_event())
    }
}

impl sealed::Carrier for SharedBundle {
    fn post(&mut self, from: Endpoint, to: u32, kind: MessageKind, message: Outgoing<'_>) -> Result<(), SendError> {
        self.try_post(from, to, kind, message)
    }

    fn event(&mut self) -> Result<Option<Event>, SendError> {
        self.next_event().map_err(|InHandler| SendError::InHandler)
    }
}

/// Messages sent to one destination before the next one has its turn.
const TURN: u32 = 32;

/// Layout of the queue's completions: this bit, the queue's number, the life of the destination's entry, the destination.
const OURS: u64 = 1 << 63;
const QUEUE_BITS: u32 = 23;
const LIFE_BITS: u32 = 20;
const INDEX_BITS: u32 = 20;

/// The number of the next queue of this process.
static QUEUES: AtomicU64 = AtomicU64::new(0);

/// How much may be queued for one destination.
///
/// Messages that were sent no longer count, even if the receiver has not read them. The receiver's credit bounds those: at most
/// 32,768 one-way messages and 8 MiB, or 32 requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Number of queued messages.
    pub messages: usize,
    /// Bytes of their arguments and payloads.
    pub bytes: usize,
}

impl Default for Bound {
    fn default() -> Bound {
        Bound { messages: 1024, bytes: 8 << 20 }
    }
}

/// What became of the messages that were pushed for one destination. At any time
/// `pushed == queued + under_way + delivered + not_delivered + unknown + taken_back`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Messages that the queue accepted.
    pub pushed: u64,
    /// Messages that wait to be sent, or to come back.
    pub queued: u64,
    /// Messages that were sent and have not ended.
    pub under_way: u64,
    /// One-way messages that were stored at the destination, and requests that were answered.
    pub delivered: u64,
    /// Messages that came back and were certainly not delivered.
    pub not_delivered: u64,
    /// Messages that came back and may have been delivered.
    pub unknown: u64,
    /// Messages that [`SendQueue::take_back`] returned.
    pub taken_back: u64,
}

impl Counts {
    /// Returns whether every message that was pushed has ended.
    pub fn is_settled(&self) -> bool {
        self.queued == 0 && self.under_way == 0
    }
}

/// A message that was not sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsent {
    /// A one-way message or a request.
    pub kind: MessageKind,
    /// Its handler's number.
    pub op: u8,
    /// Its arguments.
    pub args: Vec<u32>,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Unsent {
    fn bytes(&self) -> usize {
        bytes_of(&self.args, &self.payload)
    }
}

fn bytes_of(args: &[u32], payload: &[u8]) -> usize {
    size_of_val(args) + payload.len()
}

/// Why a queue did not accept a message.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The queue's bound for that destination is reached.
    #[error(
        "full: the queue's bound for this destination is reached; push again after the can-send event, or drop the message"
    )]
    Full,
    /// More than 16 arguments, more than 64 KiB, or more bytes than the bound allows.
    #[error("too large: a message has at most {MAX_ARGS} arguments, {MAX_PAYLOAD} bytes, and no more than the queue's bound allows; split it")]
    TooLarge,
}

weft_wire::debug_says_display!(PushError);

/// Queued messages of one endpoint. See the [module](self).
///
/// Take events with [`SendQueue::next_event`] instead of [`Bundle::next_event`]: it sends queued messages, and returns
///
/// - [`Event::CanSend`] when there is room in the queue again for a destination for which a push was refused,
/// - [`Event::Returned`] for each message that came back. If a destination is gone, everything queued for it comes back at once,
/// - all other events of the bundle as they are.
///
/// After a push, don't sleep in [`Bundle::wait`] until `next_event` has returned `None` or you have called [`SendQueue::pump`]:
/// otherwise the message stays queued until the wait ends.
///
/// The queue needs the events of its endpoint. So the endpoint must not have a [`Bundle::on_return`] handler, and must send all its
/// messages through the queue. Completions from 2^63 on belong to the queue. A program that takes the bundle's events elsewhere
/// hands them to [`SendQueue::take`].
///
/// ```
/// use weft::queue::{Bound, PushError, SendQueue};
/// use weft::{Bundle, Event, Key, Node};
///
/// let node = Node::new()?;
/// let (mut here, mut there) = (Bundle::new(&node)?, Bundle::new(&node)?); // two processes, usually
/// let (me, log) = (here.endpoint(Key(1))?, there.endpoint(Key(2))?);
/// there.on(log, 1, |m| assert_eq!(m.payload(), b"line"))?;
/// here.map(me, 0, there.name(log)?, Key(2))?;
///
/// let mut queue = SendQueue::new(me, Bound { messages: 100, bytes: 1 << 20 });
/// // Nobody polls, so nothing is sent yet.
/// while queue.push(0, 1, &[], b"line").is_ok() {}
/// assert_eq!(queue.push(0, 1, &[], b"line"), Err(PushError::Full));
/// assert_eq!(queue.counts(0).queued, 100);
///
/// let mut has_room = false;
/// while !queue.counts(0).is_settled() {
///     here.poll();
///     there.poll();
///     while let Some(event) = queue.next_event(&mut here)? {
///         has_room |= event == Event::CanSend { endpoint: me, destination: 0 };
///     }
/// }
/// assert!(has_room && queue.counts(0).delivered == 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SendQueue {
    endpoint: Endpoint,
    bound: Bound,
    /// Tells this queue from the others of the process.
    number: u64,
    destinations: BTreeMap<u32, Destination>,
    /// Destinations with messages to try to send, each once.
    active: VecDeque<u32>,
    /// Destinations with messages that come back, each once.
    lost: VecDeque<u32>,
    /// Destinations whose can-send event is due, each once.
    roomy: VecDeque<u32>,
    /// The life of the next entry.
    lives: u64,
}

#[derive(Debug, Default)]
struct Destination {
    /// Tells this entry from an earlier one of the same index.
    life: u64,
    waiting: VecDeque<Unsent>,
    /// Bytes of the messages that wait.
    bytes: usize,
    is_active: bool,
    /// This many of the queued messages, from the front, come back unsent.
    lost: usize,
    reason: Option<Reason>,
    is_lost: bool,
    /// This many of the messages under way were lost with the peer, and will come back.
    lost_under_way: u64,
    /// A peer was lost: the next message sent to it comes back at once, without a new call.
    is_refused: bool,
    /// Bytes of the push that was refused.
    wanted: Option<usize>,
    is_roomy: bool,
    /// `queued` is not kept here; it is the length of the list.
    counts: Counts,
}

impl SendQueue {
    /// Makes the queue of an Active Messages endpoint.
    pub fn new(endpoint: Endpoint, bound: Bound) -> SendQueue {
        // Relaxed: only the number matters; it publishes nothing.
        let number = QUEUES.fetch_add(1, Ordering::Relaxed) & mask(QUEUE_BITS);
        let (active, lost, roomy) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        SendQueue { endpoint, bound, number, destinations: BTreeMap::new(), active, lost, roomy, lives: 0 }
    }

    /// Queues a one-way message to index `to` of the endpoint's translation table. Sends nothing itself, so handlers may call it.
    ///
    /// # Errors
    /// [`PushError::Full`] if there is no room for that destination. [`SendQueue::next_event`] returns [`Event::CanSend`] once
    /// half of the bound is free, and the message that was refused fits.
    pub fn push(&mut self, to: u32, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.push_any(to, MessageKind::OneWay, handler, args, payload)
    }

    /// Like [`SendQueue::push`], for a request. It counts as delivered when it is answered.
    ///
    /// # Errors
    /// As [`SendQueue::push`].
    pub fn push_request(&mut self, to: u32, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.push_any(to, MessageKind::Request, handler, args, payload)
    }

    fn push_any(&mut self, to: u32, kind: MessageKind, op: u8, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        let (bound, bytes) = (self.bound, bytes_of(args, payload));
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD || bytes > bound.bytes || bound.messages == 0 {
            return Err(PushError::TooLarge);
        }
        let lives = &mut self.lives;
        let destination = self.destinations.entry(to).or_insert_with(|| {
            *lives += 1;
            Destination { life: *lives & mask(LIFE_BITS), ..Destination::default() }
        });
        if destination.waiting.len() >= bound.messages || destination.bytes + bytes > bound.bytes {
            destination.wanted = destination.wanted.max(Some(bytes));
            return Err(PushError::Full);
        }
        destination.waiting.push_back(Unsent { kind, op, args: args.to_vec(), payload: payload.to_vec() });
        destination.bytes += bytes;
        destination.counts.pushed += 1;
        destination.activate(to, &mut self.active);
        Ok(())
    }

    /// Sends queued messages while there is room, taking the destinations in turn. Does not block and takes no events.
    ///
    /// # Errors
    /// If nothing is mapped at an index with queued messages, if the endpoint was freed, or if this is a forked child. Messages to
    /// other destinations are sent all the same. Those to the unmapped index stay queued; [`SendQueue::take_back`] returns them.
    pub fn pump(&mut self, bundle: &mut impl Carrier) -> Result<(), SendError> {
        let mut failed = Ok(());
        let mut stuck = Vec::new();
        while let Some(to) = self.active.pop_front() {
            let Some(destination) = self.destinations.get_mut(&to) else { continue };
            destination.is_active = false;
            let completion = completion(self.number, destination.life, to);
            let mut sent = Ok(());
            for _ in 0..TURN {
                sent = destination.send_one(bundle, self.endpoint, to, completion);
                if sent.is_err() || destination.waiting.is_empty() {
                    break;
                }
            }
            destination.look_for_room(to, &self.bound, &mut self.roomy);
            match sent {
                Ok(()) => destination.activate(to, &mut self.active),
                // The can-send event makes it active again.
                Err(SendError::Full) => {}
                Err(error) => {
                    failed = failed.and(Err(error));
                    stuck.push(to);
                }
            }
        }
        for to in stuck {
            if let Some(destination) = self.destinations.get_mut(&to) {
                destination.activate(to, &mut self.active);
            }
        }
        failed
    }

    /// Sends queued messages, and takes the next event of the queue or the bundle. Does not block.
    ///
    /// # Errors
    /// As [`SendQueue::pump`], and if a handler calls it with the shared bundle that runs it.
    pub fn next_event(&mut self, bundle: &mut impl Carrier) -> Result<Option<Event>, SendError> {
        // Before sending, because an event may say that a destination is gone.
        while let Some(event) = bundle.event()? {
            let event = self.take(event);
            if event.is_some() {
                return Ok(event);
            }
        }
        let pumped = self.pump(bundle);
        match self.pop_event() {
            None => pumped.map(|()| None),
            event => Ok(event),
        }
    }

    /// Gives the queue an event that the program took from the bundle itself. Returns the event unless only the queue needs it.
    /// Call [`SendQueue::pump`] and [`SendQueue::pop_event`] afterwards.
    pub fn take(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Completed(completion) => {
                let Some((life, to)) = self.own(completion) else { return Some(event) };
                if let Some(counts) = self.counts_of(life, to) {
                    counts.under_way = counts.under_way.saturating_sub(1);
                    counts.delivered += 1;
                }
                None
            }
            Event::CanSend { endpoint, destination: to } if endpoint == self.endpoint => {
                let Some(destination) = self.destinations.get_mut(&to) else { return Some(event) };
                destination.activate(to, &mut self.active);
                None
            }
            Event::PeerLost { endpoint, destination, reason } if endpoint == self.endpoint => {
                // An entry that has sent nothing was not lost: the event is about an earlier peer, from before `forget`.
                if let Some(entry) = self.destinations.get_mut(&destination).filter(|entry| entry.has_sent()) {
                    (entry.lost_under_way, entry.is_refused) = (entry.counts.under_way, true);
                    self.lose(destination, reason);
                }
                Some(event)
            }
            Event::Returned(mut message) if message.endpoint == self.endpoint => {
                let Some((life, to)) = message.completion.and_then(|completion| self.own(completion)) else {
                    return Some(Event::Returned(message));
                };
                message.completion = None;
                if let Some(counts) = self.counts_of(life, to) {
                    counts.under_way = counts.under_way.saturating_sub(1);
                    match message.certainty {
                        Certainty::NotDelivered => counts.not_delivered += 1,
                        Certainty::Unknown => counts.unknown += 1,
                    }
                    if !self.is_of_a_loss(to) && !matches!(message.reason, Reason::NoHandler | Reason::QueueFull) {
                        self.lose(to, message.reason);
                    }
                }
                Some(Event::Returned(message))
            }
            event => Some(event),
        }
    }

    /// Takes the next event of the queue itself. Only for programs that take the bundle's events themselves.
    pub fn pop_event(&mut self) -> Option<Event> {
        while let Some(&to) = self.lost.front() {
            let returned = self.pop_lost(to);
            match self.destinations.get_mut(&to) {
                Some(destination) if destination.lost > 0 => {}
                destination => {
                    self.lost.pop_front();
                    if let Some(destination) = destination {
                        destination.is_lost = false;
                        destination.activate(to, &mut self.active);
                    }
                }
            }
            if returned.is_some() {
                return returned;
            }
        }
        while let Some(to) = self.roomy.pop_front() {
            let Some(destination) = self.destinations.get_mut(&to) else { continue };
            destination.is_roomy = false;
            if destination.wanted.take().is_some() {
                return Some(Event::CanSend { endpoint: self.endpoint, destination: to });
            }
        }
        None
    }

    /// The next message for a destination that comes back unsent.
    fn pop_lost(&mut self, to: u32) -> Option<Event> {
        let destination = self.destinations.get_mut(&to)?;
        let reason = destination.reason?;
        destination.lost = destination.lost.checked_sub(1)?;
        let message = destination.pop()?;
        destination.counts.not_delivered += 1;
        destination.look_for_room(to, &self.bound, &mut self.roomy);
        let Unsent { kind, op, args, payload } = message;
        let (endpoint, destination, certainty) = (self.endpoint, Some(to), Certainty::NotDelivered);
        let completion = None;
        Some(Event::Returned(Box::new(Returned {
            endpoint,
            destination,
            kind,
            op,
            args,
            payload,
            reason,
            certainty,
            completion,
            long: None,
        })))
    }

    /// Takes back all messages for a destination that were not sent yet, oldest first. Messages under way are not affected.
    pub fn take_back(&mut self, to: u32) -> Vec<Unsent> {
        let Some(destination) = self.destinations.get_mut(&to) else { return Vec::new() };
        let taken: Vec<Unsent> = std::mem::take(&mut destination.waiting).into();
        destination.counts.taken_back += taken.len() as u64;
        (destination.bytes, destination.lost) = (0, 0);
        destination.look_for_room(to, &self.bound, &mut self.roomy);
        taken
    }

    /// Forgets a destination, and returns its last counts. Messages still queued count as taken back. Messages that have not ended
    /// count as under way; from now on, the program hears of them only if they come back. Call this before mapping another peer at
    /// the index, or the new peer would be taken for the old one.
    pub fn forget(&mut self, to: u32) -> Counts {
        self.take_back(to);
        let counts = self.counts(to);
        self.destinations.remove(&to);
        for list in [&mut self.active, &mut self.lost, &mut self.roomy] {
            list.retain(|&other| other != to);
        }
        counts
    }

    /// Returns what became of the messages for a destination.
    pub fn counts(&self, to: u32) -> Counts {
        self.destinations.get(&to).map_or(Counts::default(), Destination::counts)
    }

    /// Returns whether everything that was pushed has ended.
    pub fn is_settled(&self) -> bool {
        self.destinations.values().all(|destination| destination.counts().is_settled())
    }

    /// Returns the destinations for which something was pushed and that were not forgotten.
    pub fn destinations(&self) -> impl Iterator<Item = u32> + '_ {
        self.destinations.keys().copied()
    }

    /// A destination is gone: everything queued for it comes back.
    fn lose(&mut self, to: u32, reason: Reason) {
        let Some(destination) = self.destinations.get_mut(&to) else { return };
        (destination.lost, destination.reason) = (destination.waiting.len(), Some(reason));
        if destination.lost > 0 && !destination.is_lost {
            destination.is_lost = true;
            self.lost.push_back(to);
        }
    }

    /// Whether a message came back because of a loss that was reported before. Messages queued since then may still arrive.
    fn is_of_a_loss(&mut self, to: u32) -> bool {
        let Some(entry) = self.destinations.get_mut(&to) else { return false };
        if entry.lost_under_way > 0 {
            entry.lost_under_way -= 1;
            return true;
        }
        std::mem::take(&mut entry.is_refused)
    }

    /// The life and the destination of a completion, if it is of this queue.
    fn own(&self, completion: u64) -> Option<(u64, u32)> {
        let rest = completion & mask(LIFE_BITS + INDEX_BITS);
        let is_own = completion - rest == OURS | self.number << (LIFE_BITS + INDEX_BITS);
        is_own.then_some((rest >> INDEX_BITS, (rest & mask(INDEX_BITS)) as u32))
    }

    /// The counts of a destination's entry. `None` if it was forgotten.
    fn counts_of(&mut self, life: u64, to: u32) -> Option<&mut Counts> {
        self.destinations.get_mut(&to).filter(|destination| destination.life == life).map(|it| &mut it.counts)
    }
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// An index of a translation table fits into the bits left, so it is not cut off.
fn completion(queue: u64, life: u64, to: u32) -> u64 {
    OURS | queue << (LIFE_BITS + INDEX_BITS) | life << INDEX_BITS | u64::from(to) & mask(INDEX_BITS)
}

impl Destination {
    fn counts(&self) -> Counts {
        Counts { queued: self.waiting.len() as u64, ..self.counts }
    }

    /// Whether anything was sent.
    fn has_sent(&self) -> bool {
        self.counts.pushed > self.waiting.len() as u64 + self.counts.taken_back
    }

    /// Puts the destination on the active list, unless nothing is queued or some of it has to come back first.
    fn activate(&mut self, to: u32, active: &mut VecDeque<u32>) {
        if !self.is_active && !self.waiting.is_empty() && self.lost == 0 {
            self.is_active = true;
            active.push_back(to);
        }
    }

    fn pop(&mut self) -> Option<Unsent> {
        let message = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(message.bytes());
        Some(message)
    }

    /// Sends the oldest message, unless it has to come back.
    fn send_one(
        &mut self,
        bundle: &mut impl Carrier,
        from: Endpoint,
        to: u32,
        completion: u64,
    ) -> Result<(), SendError> {
        let Some(oldest) = self.waiting.front().filter(|_| self.lost == 0) else { return Ok(()) };
        let Unsent { kind, op, args, payload } = oldest;
        let message = Outgoing { op: *op, args, payload, completion: Some(completion) };
        bundle.post(from, to, *kind, message)?;
        self.counts.under_way += 1;
        self.pop();
        Ok(())
    }

    /// Schedules the can-send event if a push was refused and there is room again.
    fn look_for_room(&mut self, to: u32, bound: &Bound, roomy: &mut VecDeque<u32>) {
        let Some(wanted) = self.wanted.filter(|_| !self.is_roomy) else { return };
        let is_half_free = self.waiting.len() <= bound.messages / 2 && self.bytes <= bound.bytes / 2;
        if is_half_free && self.bytes + wanted <= bound.bytes {
            self.is_roomy = true;
            roomy.push_back(to);
        }
    }
}
