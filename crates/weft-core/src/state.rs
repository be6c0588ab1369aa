//! A bundle's state, which a program and a running handler may use.

pub(crate) mod asked;
pub(crate) mod close;
mod events;
mod flush;
pub(crate) mod long;
mod reply;
mod requests;
mod send;
mod table;

use crate::endpoint::{Endpoint, EndpointState, Endpoints};
use crate::event::{Counters, Event, Events, Returned};
use crate::long::{Placed, Side};
use crate::message::SendError;
use crate::moving::{Back, Guest};
use crate::session::{FlowId, FlowOut, PeerId, Session, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use weft_wire::packet::Integrity;
use weft_wire::path::Tx;
use weft_wire::{BundleId, Name};

/// Settings that a program may choose.
///
/// ```
/// use std::time::Duration;
/// # use weft_core::Settings;
///
/// // A peer on another host counts as dead after a second of silence.
/// let settings = Settings { suspicion: Some(Duration::from_secs(1)), ..Settings::default() };
/// assert_eq!(settings.parked_bytes_most, 64 << 20);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes that all unserved endpoints of a bundle together may hold; beyond that messages go back with *queue full*.
    pub parked_bytes_most: usize,
    /// Bytes of the [events](Event) that wait for the program. Beyond that, a program that takes no events loses the
    /// oldest, and a program that takes events cannot send.
    pub events_bytes_most: usize,
    /// The most sessions of a bundle.
    pub sessions_most: u32,
    /// A peer on another host that stays silent for this long although it was asked is lost: from 50 ms to 5 minutes.
    /// `None`: the value of `WEFT_SUSPICION` in the environment, otherwise 3 s.
    pub suspicion: Option<Duration>,
    /// How long a dropped bundle waits, at most, until everything it sent is out: in memory that it shares with its
    /// peers, or acknowledged by other hosts. `None`: the value of `WEFT_LINGER` in the environment, otherwise 3 s.
    pub linger: Option<Duration>,
    /// What the checksums of packets to and from other hosts cover. [`Integrity::Header`] applies to peers that want it
    /// too; all others have [`Integrity::Full`]. `None`: the value of `WEFT_INTEGRITY` in the environment, otherwise
    /// full.
    pub integrity: Option<Integrity>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            parked_bytes_most: 64 << 20,
            events_bytes_most: 16 << 20,
            sessions_most: 3968,
            suspicion: None,
            linger: None,
            integrity: None,
        }
    }
}

/// Counts of what ends waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Events, except those that an endpoint's mask excludes.
    pub events: u64,
    /// Messages delivered or queued, with the same exception.
    pub messages: u64,
    /// Can-send events, whatever the masks say. `None` for a wait that these do not end.
    pub room: Option<u64>,
}

impl Tally {
    /// The tally for a wait that can-send events do not end.
    pub fn without_room(self) -> Tally {
        Tally { room: None, ..self }
    }
}

/// A destination that a sender needs and that has no session. The home sets one up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The local endpoint.
    pub endpoint: Endpoint,
    /// The index in its translation table.
    pub destination: u32,
    /// The name at the index when the call was made. If another is mapped there now, the result of the call is ignored.
    pub name: Name,
}

/// A session's place. Aligned to a cache line; unaligned, latency varied between 20.5 and 23 ns.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Place<T> {
    pub life: u32,
    pub session: Option<Session<T>>,
    /// Reserved for a session that is being set up.
    pub is_reserved: bool,
}

/// One-way messages of one flow that were delivered in a row and are booked on their flow together, so that each
/// message of a stream costs only a few additions.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub session: u32,
    pub flow: u16,
    /// Where the flow leads.
    pub endpoint: Endpoint,
    /// The value of [`State::admission`] at which its messages were found admitted; 0 if they are not simply delivered.
    pub admission: u64,
    pub messages: u32,
    pub lines: u32,
    /// The sender wants to be told soon that they are stored.
    pub asked: bool,
}

impl Run {
    #[inline(always)]
    pub fn count(&mut self, lines: u32, asked: bool) {
        self.messages += 1;
        self.lines += lines;
        if asked {
            self.asked = true;
        }
    }
}

/// Everything of a bundle except the reading ends of its sessions. No call blocks.
///
/// ```
/// # use weft_core::testing::MemTx;
/// # use weft_core::{Bundle, Outgoing, SendError, Settings};
/// # use weft_core::testing::{MemRx, NoBells};
/// # use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Uid};
///
/// # let mut bundle: Bundle<MemRx, MemTx, NoBells> = Bundle::new(NoBells, Settings::default());
/// let name = |number| Name { epoch: Epoch(9), endpoint: EndpointId(number), uid: Uid(0), address: HostAddress::NONE };
/// # let state = bundle.state_mut();
/// let me = state.add_endpoint(name(1), Key(1));
/// state.map(me, 0, name(2), Key(2))?;
/// // There is no session yet: the home that owns the bundle is asked for one, and the sender is told *full*.
/// assert_eq!(state.try_send(me, 0, Outgoing::default()), Err(SendError::Full));
/// let calls = state.take_calls();
/// assert_eq!((calls.len(), calls[0].name), (1, name(2)));
/// # Ok::<(), SendError>(())
/// ```
#[derive(Debug)]
pub struct State<T> {
    pub(crate) settings: Settings,
    pub(crate) endpoints: Endpoints,
    pub(crate) sessions: Vec<Place<T>>,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
    pub(crate) calls: Vec<Call>,
    /// Flows of ours that began to close.
    pub(crate) draining: Vec<(SessionId, u16)>,
    /// Flows that their openers close, and whose openers can be told that they are closed.
    pub(crate) closing: Vec<(SessionId, u16)>,
    /// Sessions whose last flow has closed, so that their path can be closed.
    pub(crate) rests: Vec<SessionId>,
    /// Flows that owe their sender `Ended` or `Credit`.
    pub(crate) dirty: Vec<(u32, u16)>,
    /// Messages that came back and wait for the sink.
    pub(crate) returns: VecDeque<Returned>,
    /// Sessions with a backlog or with a sender that waits for room.
    pub(crate) blocked: Vec<u32>,
    /// Endpoints that are served again and hold messages.
    pub(crate) unparking: Vec<Endpoint>,
    pub(crate) parked_bytes: usize,
    /// Sessions that were found broken while sending.
    pub(crate) broken: Vec<u32>,
    pub(crate) run: Run,
    /// Sessions with a held record whose return was now sent; one entry per record.
    pub(crate) let_go: Vec<u32>,
    /// Set if there may be entries in `draining`, `closing`, `dirty`, `blocked`, `let_go`, `unparking`, `returns`,
    /// `completed_away` or `backs`, or work for the client. So a poll makes one check instead of one for each.
    pub(crate) has_chores: bool,
    /// The client asked to be called at the end of the next poll.
    pub(crate) client_waits: bool,
    /// The client wants no more messages in this visit.
    pub(crate) has_enough: bool,
    /// Polls in a row that found nothing, counted by the home.
    pub(crate) idle_polls: u32,
    /// Messages that other bundles forwarded and that have not ended.
    pub(crate) guests: BTreeMap<u32, Guest>,
    pub(crate) guests_so_far: u32,
    /// The results of guests, on their way back.
    pub(crate) backs: Vec<(BundleId, Back)>,
    /// Completions for endpoints that live in other bundles.
    pub(crate) completed_away: Vec<(Endpoint, u64)>,
    /// Changes whenever an endpoint may begin to admit or hold messages differently. A flow that was found admitted at
    /// the current value needs no check. Begins with 1; 0 is never current.
    pub(crate) admission: u64,
    /// Flows that have pieces of long messages to send.
    pub(crate) leaving: VecDeque<(SessionId, Side, u16)>,
    /// A buffer for bytes of a segment while they are sent: at most one piece.
    pub(crate) scratch: Vec<u8>,
    /// Where the bytes of the long message that is being delivered lie.
    pub(crate) placed: Option<Placed>,
}

impl<T: Tx> State<T> {
    pub(crate) fn new(settings: Settings) -> State<T> {
        State {
            settings,
            endpoints: Endpoints::default(),
            sessions: Vec::new(),
            events: Events::new(settings.events_bytes_most),
            counters: Counters::default(),
            calls: Vec::new(),
            draining: Vec::new(),
            closing: Vec::new(),
            rests: Vec::new(),
            dirty: Vec::with_capacity(16),
            returns: VecDeque::new(),
            blocked: Vec::with_capacity(8),
            unparking: Vec::new(),
            parked_bytes: 0,
            broken: Vec::new(),
            run: Run::default(),
            let_go: Vec::new(),
            has_chores: false,
            client_waits: false,
            has_enough: false,
            idle_polls: 0,
            guests: BTreeMap::new(),
            guests_so_far: 0,
            backs: Vec::new(),
            completed_away: Vec::new(),
            admission: 1,
            leaving: VecDeque::new(),
            scratch: Vec::new(),
            placed: None,
        }
    }

    /// The next event of an endpoint whose client [claimed](State::claim_events) them. These end no waits by themselves.
    pub fn next_claimed(&mut self) -> Option<Event> {
        self.events.pop_claimed()
    }

    /// The next completion of an endpoint whose client [claimed](State::claim_completions) them. These end no waits by themselves.
    pub fn next_completed(&mut self) -> Option<(Endpoint, u64)> {
        self.events.pop_completed()
    }

    /// The next flow that a peer closed, to an endpoint whose client [claimed](State::claim_events) its events. Nothing
    /// more arrives on it, and the next flow that the peer opens may have its number.
    pub fn next_closed_flow(&mut self) -> Option<(Endpoint, FlowId)> {
        self.events.pop_closed()
    }

    /// Notes that a client has more to do: [`Client::go_on`] is called by the next poll, which follows soon.
    ///
    /// [`Client::go_on`]: crate::Client::go_on
    pub fn come_again(&mut self) {
        self.client_waits = true;
        self.has_chores = true;
    }

    /// Ends the visit to the session of the message that is being delivered, so that the program sees the message
    /// first. Looking for the next one costs a cache-line transfer from the other core, and can wait.
    #[inline(always)]
    pub fn end_visit(&mut self) {
        self.has_enough = true;
    }

    /// Polls in a row that found nothing. Wraps around. If it is not 0 while a message is delivered, the program waited
    /// for the message; in a stream it is 0.
    #[inline(always)]
    pub fn idle_polls(&self) -> u32 {
        self.idle_polls
    }

    /// Sets the number of polls in a row that found nothing. The home counts them.
    #[inline(always)]
    pub fn set_idle_polls(&mut self, idle_polls: u32) {
        self.idle_polls = idle_polls;
    }

    /// Where the bytes of the message that is being delivered lie in its endpoint's segment, if it is a long one.
    pub fn placed(&self) -> Option<Placed> {
        self.placed
    }

    /// Ends a wait, because the client has something for the program.
    pub fn note(&mut self) {
        self.events.note();
    }

    /// Whether requests or one-way messages of ours are in flight on a session: then its peer has to be watched.
    #[doc(hidden)] // for the home of a bundle
    pub fn awaits(&self, session: SessionId) -> bool {
        let flows = self.session(session).into_iter().flat_map(|s| &s.flows_out);
        flows.into_iter().any(FlowOut::has_under_way)
    }

    /// The events and messages so far that end a wait. Both counts wrap around.
    #[doc(hidden)] // for the home of a bundle
    pub fn tally(&self) -> Tally {
        let Counters { delivered, requests_delivered, replies_delivered, parked, .. } = self.counters;
        let messages = delivered.wrapping_add(requests_delivered).wrapping_add(replies_delivered).wrapping_add(parked);
        let room = Some(self.events.room());
        Tally { events: self.events.noted(), messages: messages.wrapping_sub(self.events.muted()), room }
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes the destinations that need a session, each once.
    #[doc(hidden)] // for the home of a bundle
    pub fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// Whether the home has sessions to set up.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The current sessions.
    #[doc(hidden)] // for the home of a bundle
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, PeerId)> + '_ {
        self.sessions.iter().enumerate().filter_map(|(index, place)| {
            let id = SessionId { index: index as u32, life: place.life };
            place.session.as_ref().map(|s| (id, s.peer))
        })
    }

    // ---- inside

    /// Whether something waits here for room in a path, or for the sink.
    pub fn has_unfinished(&self) -> bool {
        let nothing = self.unparking.is_empty() && self.dirty.is_empty() && self.blocked.is_empty();
        let nothing = nothing && self.closing.is_empty() && self.backs.is_empty() && self.completed_away.is_empty();
        let nothing = nothing && self.draining.is_empty() && !self.client_waits && !self.events.has_claimed();
        !(nothing && self.returns.is_empty() && self.let_go.is_empty() && self.leaving.is_empty())
    }

    pub(crate) fn endpoint(&self, endpoint: Endpoint) -> Result<&EndpointState, SendError> {
        self.endpoints.get(endpoint).filter(|e| !e.is_away).ok_or(SendError::NoEndpoint)
    }

    pub(crate) fn endpoint_mut(&mut self, endpoint: Endpoint) -> Result<&mut EndpointState, SendError> {
        self.endpoints.get_mut(endpoint).filter(|e| !e.is_away).ok_or(SendError::NoEndpoint)
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session<T>> {
        let place = self.sessions.get(id.index as usize)?;
        place.session.as_ref().filter(|_| place.life == id.life)
    }

    /// The session at an index, if there is one.
    #[inline(always)]
    pub(crate) fn live(&mut self, index: u32) -> Option<&mut Session<T>> {
        self.sessions.get_mut(index as usize)?.session.as_mut()
    }

    #[inline(always)]
    pub(crate) fn session_mut(&mut self, id: SessionId) -> Option<&mut Session<T>> {
        let place = self.sessions.get_mut(id.index as usize)?;
        place.session.as_mut().filter(|_| place.life == id.life)
    }

    /// Queues a message of ours that came back. The sink gets it at the end of the poll.
    pub(crate) fn come_back(&mut self, message: Returned) {
        self.counters.returned += 1;
        self.returns.push_back(message);
        self.has_chores = true;
    }

    /// Frees memory that is left from a burst.
    pub(crate) fn rest(&mut self) {
        for endpoint in self.endpoints.iter_mut().filter(|endpoint| endpoint.parked.is_empty()) {
            endpoint.parked = VecDeque::new();
        }
        if self.returns.is_empty() {
            self.returns = VecDeque::new();
        }
        self.events.rest();
        self.scratch = Vec::new();
        if self.leaving.is_empty() {
            self.leaving = VecDeque::new();
        }
    }

    /// Reports to the home that a peer broke the protocol.
    #[cold]
    pub(crate) fn cut(&mut self, session: u32) {
        if !self.broken.contains(&session) {
            self.counters.violations += 1;
            self.broken.push(session);
        }
    }
}
