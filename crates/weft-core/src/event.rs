//! What a bundle reports: events, returned messages, counters.

use crate::endpoint::Endpoint;
use crate::session::FlowId;
use std::collections::VecDeque;
use weft_wire::{Certainty, Reason};

/// The kinds of messages that can come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// A one-way message.
    OneWay,
    /// A request.
    Request,
    /// A reply.
    Reply,
}

/// A message that came back, with its contents (VN9: return to sender).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// The endpoint that sent it.
    pub endpoint: Endpoint,
    /// Where it was to go: an index of the endpoint's translation table. `None` for a reply.
    pub destination: Option<u32>,
    /// What it was.
    pub kind: MessageKind,
    /// Its operation (an Active Message handler's number).
    pub op: u8,
    /// Its arguments.
    pub args: Vec<u32>,
    /// Its payload, byte for byte.
    pub payload: Vec<u8>,
    /// Why it came back.
    pub reason: Reason,
    /// Whether it is certain that it was not delivered.
    pub certainty: Certainty,
    /// The completion that was asked for, which will not be reported otherwise.
    pub completion: Option<u64>,
}

/// Something that happened to a bundle.
///
/// ```
/// use weft_core::testing::{MemRx, MemTx, NoBells};
/// use weft_core::{Bundle, Event, Outgoing, SendError, Settings};
/// use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};
///
/// let mut bundle: Bundle<MemRx, MemTx, NoBells> = Bundle::new(NoBells, Settings::default());
/// let name = |number| Name { epoch: Epoch(9), endpoint: EndpointId(number), uid: Uid(0), address: HostAddress::NONE };
/// let state = bundle.state_mut();
/// let me = state.add_endpoint(name(1), Key(1));
/// state.map(me, 0, name(2), Key(2))?;
/// assert_eq!(state.try_send(me, 0, Outgoing::default()), Err(SendError::Full));
/// let call = state.take_calls().remove(0);
/// state.refused(call, Reason::NobodyThere); // as the home found out
/// // The next message comes back with that reason.
/// assert_eq!(state.next_event(), Some(Event::CanSend { endpoint: me, destination: 0 }));
/// # Ok::<(), SendError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The one-way message with this completion was stored in its destination, or the request was answered.
    Completed(u64),
    /// A send that said *full* may be tried again.
    CanSend {
        /// The endpoint that wanted to send.
        endpoint: Endpoint,
        /// Its translation table index.
        destination: u32,
    },
    /// A message came back and the client did not take it.
    Returned(Box<Returned>),
    /// The peer that a translation led to is gone; what was under way has been returned.
    PeerLost {
        /// The local endpoint.
        endpoint: Endpoint,
        /// Its translation table index.
        destination: u32,
        /// Why.
        reason: Reason,
    },
}

impl Event {
    /// The endpoint that it is of. `None` for completions, which are of the bundle.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match self {
            Event::Completed(_) => None,
            Event::Returned(returned) => Some(returned.endpoint),
            Event::CanSend { endpoint, .. } | Event::PeerLost { endpoint, .. } => Some(*endpoint),
        }
    }
}

/// Which of an endpoint's events end a wait (VN12). All, unless set otherwise. What is left out still happens: messages are
/// handed over and events are queued.
///
/// ```
/// use weft_core::EventMask;
///
/// // An endpoint that answers whenever its program polls anyway: its messages wake nobody, its losses do.
/// let mask = EventMask { not_empty: false, ..EventMask::ALL };
/// assert!(mask.peer_lost && mask != EventMask::default());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventMask {
    /// A message came.
    pub not_empty: bool,
    /// A send that said *full* may be tried again.
    pub can_send: bool,
    /// A message of this endpoint's came back.
    pub returned: bool,
    /// A peer of this endpoint's is gone.
    pub peer_lost: bool,
}

impl EventMask {
    /// Everything ends a wait.
    pub const ALL: EventMask = EventMask { not_empty: true, can_send: true, returned: true, peer_lost: true };
    /// Nothing does.
    pub const NONE: EventMask = EventMask { not_empty: false, can_send: false, returned: false, peer_lost: false };
}

impl Default for EventMask {
    fn default() -> EventMask {
        EventMask::ALL
    }
}

/// Events that wait for the program, and what of them it waits for.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    /// Those of endpoints whose client takes them itself.
    claimed: VecDeque<Event>,
    /// Flows to these endpoints that their openers closed.
    closed: VecDeque<(Endpoint, FlowId)>,
    /// These endpoints, by index.
    claims: Vec<bool>,
    /// By the index of the endpoint; those behind the end have all.
    masks: Vec<EventMask>,
    /// Events so far that end a wait. It comes round.
    noted: u64,
    /// Messages so far that do not. It comes round.
    muted: u64,
}

impl Events {
    pub fn new() -> Events {
        Events {
            queue: VecDeque::with_capacity(64),
            claimed: VecDeque::new(),
            closed: VecDeque::new(),
            claims: Vec::new(),
            masks: Vec::new(),
            noted: 0,
            muted: 0,
        }
    }

    pub fn push(&mut self, event: Event) {
        // A message that came back and that the client did not take is the program's.
        let is_return = matches!(event, Event::Returned(_));
        if !is_return && event.endpoint().is_some_and(|endpoint| self.is_claimed(endpoint)) {
            self.claimed.push_back(event);
            return;
        }
        let ends_wait = match &event {
            Event::Completed(_) => true,
            Event::CanSend { endpoint, .. } => self.mask(*endpoint).can_send,
            Event::Returned(returned) => self.mask(returned.endpoint).returned,
            Event::PeerLost { endpoint, .. } => self.mask(*endpoint).peer_lost,
        };
        self.noted = self.noted.wrapping_add(u64::from(ends_wait));
        self.queue.push_back(event);
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    /// A new endpoint has the place of another one.
    pub fn begin(&mut self, endpoint: Endpoint) {
        if let Some(claim) = self.claims.get_mut(endpoint.index()) {
            *claim = false;
        }
        if let Some(mask) = self.masks.get_mut(endpoint.index()) {
            *mask = EventMask::ALL;
        }
    }

    /// From now on an endpoint's events are for its client.
    pub fn claim(&mut self, endpoint: Endpoint) {
        if self.claims.len() <= endpoint.index() {
            self.claims.resize(endpoint.index() + 1, false);
        }
        self.claims[endpoint.index()] = true;
    }

    fn is_claimed(&self, endpoint: Endpoint) -> bool {
        self.claims.get(endpoint.index()).copied().unwrap_or_default()
    }

    /// The next event for a client.
    pub fn pop_claimed(&mut self) -> Option<Event> {
        self.claimed.pop_front()
    }

    /// Whether there are events for clients.
    pub fn has_claimed(&self) -> bool {
        !self.claimed.is_empty() || !self.closed.is_empty()
    }

    /// A flow was closed that led to an endpoint. Its client is told, if it takes the events itself.
    pub fn flow_closed(&mut self, endpoint: Endpoint, flow: FlowId) {
        if self.is_claimed(endpoint) {
            self.closed.push_back((endpoint, flow));
        }
    }

    /// The next closed flow for a client.
    pub fn pop_closed(&mut self) -> Option<(Endpoint, FlowId)> {
        self.closed.pop_front()
    }

    /// Something ends a wait that is no event of this queue.
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

    /// So many messages came to an endpoint, which may not care.
    pub fn mute(&mut self, endpoint: Endpoint, messages: u32) {
        if !self.mask(endpoint).not_empty {
            self.muted = self.muted.wrapping_add(messages.into());
        }
    }

    /// Events so far that end a wait.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Messages so far that do not.
    pub fn muted(&self) -> u64 {
        self.muted
    }
}

/// What a bundle counted since it was made. All are totals.
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
    /// Messages of others that were refused here.
    pub refused: u64,
    /// Messages that came and may be lost, and were: for want of room, of a handler, of their endpoint or of its key. A report adds those
    /// that were lost within the channels of other hosts.
    pub unreliable_dropped: u64,
    /// Sends that found no room or no credit.
    pub full: u64,
    /// Replies that found no room and were queued.
    pub replies_queued: u64,
    /// Messages queued at an endpoint that was not being served.
    pub parked: u64,
    /// Messages handed on to the bundle that their endpoint had moved to.
    pub handed_on: u64,
    /// Sessions cut off because the peer broke the protocol.
    pub violations: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
}
