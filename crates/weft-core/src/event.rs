//! Reports of a bundle: events, returned messages, counters.

use crate::endpoint::Endpoint;
use crate::long::Transfer;
use crate::session::FlowId;
use std::collections::VecDeque;
use std::mem::size_of;
use weft_wire::{Certainty, Reason};

/// The kinds of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// A one-way message.
    OneWay,
    /// A request.
    Request,
    /// A reply.
    Reply,
}

/// A message that came back, with its contents (return to sender, as in virtual networks).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// The endpoint that sent it.
    pub endpoint: Endpoint,
    /// The index in the endpoint's translation table that it was sent to. `None` for a reply.
    pub destination: Option<u32>,
    /// The kind of message.
    pub kind: MessageKind,
    /// Its operation (an Active Message handler's number).
    pub op: u8,
    /// Its arguments.
    pub args: Vec<u32>,
    /// Its payload, unchanged.
    pub payload: Vec<u8>,
    /// Why it came back.
    pub reason: Reason,
    /// Whether it is certain that the message was not delivered.
    pub certainty: Certainty,
    /// The completion that its sender asked for. It is not reported in any other way.
    pub completion: Option<u64>,
    /// The transfer that it was meant to do, if it is a long message.
    pub long: Option<Transfer>,
}

impl Returned {
    /// Bytes of memory that it takes.
    fn bytes(&self) -> usize {
        size_of::<Returned>() + self.args.len() * size_of::<u32>() + self.payload.len()
    }
}

/// Something that happened to a bundle.
///
/// Events wait for the program in a queue of [`Settings::events_bytes_most`] bytes. A program *listens* from its first call of
/// [`State::next_event`] on, or once it has asked for a completion. If it does not listen and the queue is full, each new
/// event takes the place of the oldest ones, and [`Counters::events_dropped`] counts them. A program that listens loses no
/// event. Its sends return *full* instead until it has taken half of the queue, and peers that sent replies back have their
/// requests refused with *queue full*.
///
/// [`Settings::events_bytes_most`]: crate::Settings::events_bytes_most
/// [`State::next_event`]: crate::State::next_event
///
/// ```
/// # use weft_core::testing::{MemRx, MemTx, NoBells};
/// # use weft_core::{Bundle, Event, Outgoing, SendError, Settings};
/// # use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};
/// #
/// # let mut bundle: Bundle<MemRx, MemTx, NoBells> = Bundle::new(NoBells, Settings::default());
/// # let name = |number| Name { epoch: Epoch(9), endpoint: EndpointId(number), uid: Uid(0), address: HostAddress::NONE };
/// # let bundle = bundle.state_mut();
/// # let me = bundle.add_endpoint(name(1), Key(1));
/// # bundle.map(me, 0, name(2), Key(2))?;
/// # assert_eq!(bundle.try_send(me, 0, Outgoing::default()), Err(SendError::Full));
/// # let call = bundle.take_calls().remove(0);
/// # bundle.refused(call, Reason::NobodyThere);
/// # let mut again = Vec::new();
/// while let Some(event) = bundle.next_event() {
///     match event {
///         Event::CanSend { destination, .. } => again.push(destination), // it was full before
///         other => println!("{other:?}"),
///     }
/// }
/// # assert_eq!(again, [0]);
/// # Ok::<(), SendError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The one-way message with this completion was stored at its destination, or the request with it was answered.
    Completed(u64),
    /// A send that returned *full* may be tried again. One per destination waits for the program.
    CanSend {
        /// The endpoint that wanted to send.
        endpoint: Endpoint,
        /// Its index in the translation table.
        destination: u32,
    },
    /// A message came back and its client did not take it.
    Returned(Box<Returned>),
    /// The peer of a translation table entry is gone. Messages under way to it have been returned. One per destination waits
    /// for the program.
    PeerLost {
        /// The local endpoint.
        endpoint: Endpoint,
        /// The index of the entry.
        destination: u32,
        /// Why.
        reason: Reason,
    },
    /// An endpoint refused the reply to its own request: it has no handler for it, or was freed. The reply went back to its
    /// sender. One per destination waits for the program; [`Counters::replies_refused`] counts the replies.
    ReplyRefused {
        /// The local endpoint.
        endpoint: Endpoint,
        /// The index of the entry that the request was sent to.
        destination: u32,
        /// The reply's operation (an Active Message handler's number).
        op: u8,
        /// Why.
        reason: Reason,
    },
}

impl Event {
    /// Returns the endpoint of the event. `None` for completions, which belong to the bundle.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match self {
            Event::Completed(_) => None,
            Event::Returned(returned) => Some(returned.endpoint),
            Event::CanSend { endpoint, .. }
            | Event::PeerLost { endpoint, .. }
            | Event::ReplyRefused { endpoint, .. } => Some(*endpoint),
        }
    }

    /// Bytes of memory that it takes while it waits for the program.
    fn bytes(&self) -> usize {
        let contents = if let Event::Returned(returned) = self { returned.bytes() } else { 0 };
        size_of::<Event>() + contents
    }

    /// The entry of a translation table that it is about, and its bit there. `None` for events that wait each by itself.
    pub(crate) fn once(&self) -> Option<(Endpoint, u32, u8)> {
        match *self {
            Event::CanSend { endpoint, destination } => Some((endpoint, destination, CAN_SEND)),
            Event::PeerLost { endpoint, destination, .. } => Some((endpoint, destination, PEER_LOST)),
            Event::ReplyRefused { endpoint, destination, .. } => Some((endpoint, destination, REPLY_REFUSED)),
            Event::Completed(_) | Event::Returned(_) => None,
        }
    }
}

/// Bits of [`Translation::waiting`](crate::endpoint::Translation::waiting): the events of the entry that wait for the program.
pub(crate) const CAN_SEND: u8 = 1;
const PEER_LOST: u8 = 2;
const REPLY_REFUSED: u8 = 4;

/// The events of an endpoint that end a wait (from virtual networks). All of them by default. Masked events still happen: messages are
/// delivered and events are queued.
///
/// ```
/// # use weft_core::EventMask;
///
/// // An endpoint that answers whenever its program polls anyway: its messages wake nobody, its losses do.
/// let mask = EventMask { not_empty: false, ..EventMask::ALL };
/// assert!(mask.peer_lost && mask != EventMask::default());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventMask {
    /// A message came.
    pub not_empty: bool,
    /// A send that returned *full* may be tried again.
    pub can_send: bool,
    /// A message of this endpoint came back, or the endpoint refused a reply.
    pub returned: bool,
    /// A peer of this endpoint is gone.
    pub peer_lost: bool,
}

impl EventMask {
    /// Everything ends a wait.
    pub const ALL: EventMask = EventMask { not_empty: true, can_send: true, returned: true, peer_lost: true };
    /// Nothing ends a wait.
    pub const NONE: EventMask = EventMask { not_empty: false, can_send: false, returned: false, peer_lost: false };
}

impl Default for EventMask {
    fn default() -> EventMask {
        EventMask::ALL
    }
}

/// What the client of an endpoint takes itself, instead of the program.
#[derive(Clone, Copy, Default, Debug)]
struct Claim {
    events: bool,
    completions: bool,
}

/// Events that wait for the program or for clients, and the masks that decide which of them end a wait.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    /// Bytes of the queue, and how many it may have.
    bytes: usize,
    bytes_most: usize,
    /// The program takes events, so it loses none.
    listens: bool,
    /// The program listens, and its queue was full and is not half empty yet.
    is_full: bool,
    /// A can-send event was dropped.
    lost_can_send: bool,
    /// Events of endpoints whose client takes them itself.
    claimed: VecDeque<Event>,
    /// Flows to these endpoints that their openers closed.
    closed: VecDeque<(Endpoint, FlowId)>,
    /// Completions for clients that take them.
    completed: VecDeque<(Endpoint, u64)>,
    /// What an endpoint's client takes itself, indexed by endpoint.
    claims: Vec<Claim>,
    /// Indexed by endpoint. Endpoints beyond the end have the mask [`EventMask::ALL`].
    masks: Vec<EventMask>,
    /// Number of events that end a wait. Wraps around.
    noted: u64,
    /// Number of can-send events, those that end no wait among them. Wraps around.
    room: u64,
    /// Number of messages that do not end a wait. Wraps around.
    muted: u64,
}

impl Events {
    pub fn new(bytes_most: usize) -> Events {
        Events {
            queue: VecDeque::with_capacity(16),
            bytes: 0,
            bytes_most,
            listens: false,
            is_full: false,
            lost_can_send: false,
            claimed: VecDeque::new(),
            closed: VecDeque::new(),
            completed: VecDeque::new(),
            claims: Vec::new(),
            masks: Vec::new(),
            noted: 0,
            room: 0,
            muted: 0,
        }
    }

    /// Queues an event for the client of its endpoint. Returns the event if it is for the program.
    pub fn push_claimed(&mut self, event: Event) -> Option<Event> {
        // A returned message that the client did not take goes to the program.
        let is_return = matches!(event, Event::Returned(_));
        if is_return || !event.endpoint().is_some_and(|endpoint| self.is_claimed(endpoint)) {
            return Some(event);
        }
        self.claimed.push_back(event);
        None
    }

    /// Counts an event for the program if it ends a wait.
    pub fn count(&mut self, event: &Event) {
        let ends_wait = match event {
            Event::Completed(_) => true,
            Event::CanSend { endpoint, .. } => self.mask(*endpoint).can_send,
            Event::Returned(returned) => self.mask(returned.endpoint).returned,
            Event::PeerLost { endpoint, .. } => self.mask(*endpoint).peer_lost,
            Event::ReplyRefused { endpoint, .. } => self.mask(*endpoint).returned,
        };
        self.noted = self.noted.wrapping_add(u64::from(ends_wait));
        self.room = self.room.wrapping_add(u64::from(matches!(event, Event::CanSend { .. })));
    }

    /// Queues an event for the program. Returns true if that made the queue of a program that listens full.
    pub fn push(&mut self, event: Event) -> bool {
        self.bytes += event.bytes();
        self.queue.push_back(event);
        let becomes_full = self.listens && !self.is_full && self.bytes >= self.bytes_most;
        self.is_full |= becomes_full;
        becomes_full
    }

    /// Removes the oldest event if the queue is over its limit and the program does not listen. Keeps the latest one.
    pub fn drop_oldest(&mut self) -> Option<Event> {
        if self.listens || self.bytes <= self.bytes_most || self.queue.len() < 2 {
            return None;
        }
        let event = self.take_first()?;
        self.lost_can_send |= matches!(event, Event::CanSend { .. });
        Some(event)
    }

    /// The program listens from now on.
    #[inline(always)]
    pub fn listen(&mut self) {
        self.listens = true;
    }

    /// Returns true, once, if a can-send event was dropped.
    pub fn take_lost_can_send(&mut self) -> bool {
        std::mem::take(&mut self.lost_can_send)
    }

    /// Takes the next event for the program.
    pub fn take_first(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.bytes -= event.bytes();
        Some(event)
    }

    /// Whether the queue is full and the program listens: then it has to take events before it sends more.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns true if the queue was full and half of it is empty again.
    pub fn gets_room(&mut self) -> bool {
        let has_room = self.is_full && self.bytes <= self.bytes_most / 2;
        self.is_full &= !has_room;
        has_room
    }

    /// Frees memory that is left from a burst.
    pub fn rest(&mut self) {
        if self.queue.capacity() / 4 > self.queue.len() {
            self.queue.shrink_to(self.queue.len().max(16));
        }
    }

    /// A new endpoint takes the place of another one.
    pub fn begin(&mut self, endpoint: Endpoint) {
        if let Some(claim) = self.claims.get_mut(endpoint.index()) {
            *claim = Claim::default();
        }
        if let Some(mask) = self.masks.get_mut(endpoint.index()) {
            *mask = EventMask::ALL;
        }
    }

    /// From now on an endpoint's events go to its client.
    pub fn claim(&mut self, endpoint: Endpoint) {
        self.claim_mut(endpoint).events = true;
    }

    /// From now on an endpoint's completions go to its client, too.
    pub fn claim_completions(&mut self, endpoint: Endpoint) {
        self.claim_mut(endpoint).completions = true;
    }

    fn claim_mut(&mut self, endpoint: Endpoint) -> &mut Claim {
        if self.claims.len() <= endpoint.index() {
            self.claims.resize(endpoint.index() + 1, Claim::default());
        }
        &mut self.claims[endpoint.index()]
    }

    fn claim_of(&self, endpoint: Endpoint) -> Claim {
        self.claims.get(endpoint.index()).copied().unwrap_or_default()
    }

    pub fn is_claimed(&self, endpoint: Endpoint) -> bool {
        self.claim_of(endpoint).events
    }

    /// Queues a completion for the client of its endpoint. Returns false if it is for the program.
    pub fn push_completed(&mut self, endpoint: Endpoint, completion: u64) -> bool {
        let is_claimed = self.claim_of(endpoint).completions;
        if is_claimed {
            self.completed.push_back((endpoint, completion));
        }
        is_claimed
    }

    /// Takes the next completion for a client.
    pub fn pop_completed(&mut self) -> Option<(Endpoint, u64)> {
        self.completed.pop_front()
    }

    /// A message of an endpoint asks for a completion. If the program will get it, the program listens from now on.
    #[inline(always)]
    pub fn expect_completion(&mut self, endpoint: Endpoint) {
        if !self.listens && !self.claim_of(endpoint).completions {
            self.listens = true;
        }
    }

    /// Takes the next event for a client.
    pub fn pop_claimed(&mut self) -> Option<Event> {
        self.claimed.pop_front()
    }

    /// Whether there are events for clients.
    pub fn has_claimed(&self) -> bool {
        !self.claimed.is_empty() || !self.closed.is_empty() || !self.completed.is_empty()
    }

    /// A flow to an endpoint was closed. Tells its client, if that takes the events itself.
    pub fn flow_closed(&mut self, endpoint: Endpoint, flow: FlowId) {
        if self.is_claimed(endpoint) {
            self.closed.push_back((endpoint, flow));
        }
    }

    /// The next closed flow for a client.
    pub fn pop_closed(&mut self) -> Option<(Endpoint, FlowId)> {
        self.closed.pop_front()
    }

    /// Counts an event that ends a wait but is not in this queue.
    pub fn note(&mut self) {
        self.noted = self.noted.wrapping_add(1);
    }

    pub fn mask(&self, endpoint: Endpoint) -> EventMask {
        self.masks.get(endpoint.index()).copied().unwrap_or_default()
    }

    pub fn set_mask(&mut self, endpoint: Endpoint, mask: EventMask) {
        if self.masks.len() <= endpoint.index() {
            self.masks.resize(endpoint.index() + 1, EventMask::ALL);
        }
        self.masks[endpoint.index()] = mask;
    }

    /// Counts messages for an endpoint that do not end a wait if its mask says so.
    pub fn mute(&mut self, endpoint: Endpoint, messages: u32) {
        if !self.mask(endpoint).not_empty {
            self.muted = self.muted.wrapping_add(messages.into());
        }
    }

    /// Returns the number of can-send events.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Returns the number of events that end a wait.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Returns the number of messages that do not end a wait.
    pub fn muted(&self) -> u64 {
        self.muted
    }
}

/// Totals that a bundle counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// One-way messages sent.
    pub sent: u64,
    /// Requests sent.
    pub requests_sent: u64,
    /// Replies sent.
    pub replies_sent: u64,
    /// One-way messages delivered to local endpoints.
    pub delivered: u64,
    /// Requests delivered to local endpoints.
    pub requests_delivered: u64,
    /// Replies delivered to local endpoints.
    pub replies_delivered: u64,
    /// Requests of ours that ended without a reply message.
    pub ended: u64,
    /// Messages of ours that came back.
    pub returned: u64,
    /// Messages of peers that were refused here.
    pub refused: u64,
    /// The part of `refused` that were replies to requests of ours: their endpoint has no handler for them, or was freed.
    pub replies_refused: u64,
    /// Events dropped to make room for newer ones, of a program that takes none.
    pub events_dropped: u64,
    /// Unreliable messages that arrived and were dropped: no room, no handler, no such endpoint or a wrong key. `weft
    /// status` adds those lost in channels to other hosts.
    pub unreliable_dropped: u64,
    /// Sends that found no room or no credit.
    pub full: u64,
    /// Replies that found no room and were queued.
    pub replies_queued: u64,
    /// Messages queued at an endpoint that was not being served.
    pub parked: u64,
    /// Messages forwarded to the bundle that their endpoint moved to.
    pub handed_on: u64,
    /// Sessions cut off because the peer broke the protocol.
    pub violations: u64,
    /// Sessions that ended with their peer, in order or not. Those that the peer refused with their first flow do not count.
    pub sessions_lost: u64,
}
