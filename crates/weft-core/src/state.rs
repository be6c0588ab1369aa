//! A bundle's state, and everything that sends: what a program and a running handler may do.

use crate::endpoint::{Admission, Endpoint, EndpointState, Route, Translation};
use crate::event::{Counters, Event, EventMask, Events, MessageKind, Returned};
use crate::moving::{Back, Errand, Guest};
use crate::service::{route_to, Reliability};
use crate::session::{head, FlowId, FlowOut, PeerId, Pending, Session, SessionId};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use weft_wire::path::{PushError, Record, Tx, SMALL_MOST};
use weft_wire::record::{lines, ASK_STORED, MAX_ARGS, ORDERED, RETURNED_SEND, URGENT, WINDOW};
use weft_wire::setup::Open;
use weft_wire::{BundleId, Certainty, Credit, Head, HeadWords, Key, Kind, Name, Reason, Uid, MAX_PAYLOAD};

/// Bounds that a program may choose.
///
/// ```
/// use std::time::Duration;
/// use weft_core::Settings;
///
/// // A peer on another host that is silent for a second is taken for dead.
/// let settings = Settings { suspicion: Some(Duration::from_secs(1)), ..Settings::default() };
/// assert_eq!(settings.parked_bytes_most, 64 << 20);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes that all endpoints of a bundle which are not served may hold; then messages go back with *queue full*.
    pub parked_bytes_most: usize,
    /// Sessions of a bundle.
    pub sessions_most: u32,
    /// A peer on another host that is silent for so long although it was asked is lost: from 50 ms to 5 minutes. `None`: what the
    /// environment says (`WEFT_SUSPICION`), else 3 s.
    pub suspicion: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { parked_bytes_most: 64 << 20, sessions_most: 3968, suspicion: None }
    }
}

/// What ends waits, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Events that an endpoint's mask does not leave out.
    pub events: u64,
    /// Messages handed over or queued, likewise.
    pub messages: u64,
}

/// A message on its way out: the client's operation and arguments are its header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// The client's operation (an Active Message handler's number).
    pub op: u8,
    /// At most 16 arguments.
    pub args: &'a [u32],
    /// At most 64 KiB. Copied before the call returns.
    pub payload: &'a [u8],
    /// Reported as [`Event::Completed`] when the message is stored or the request answered.
    pub completion: Option<u64>,
}

/// A message to a destination without a session, without its contents. Not an [`Outgoing`]: handed on by reference, that
/// would be put into memory for every message, for the sake of the rare one. (Why stores are dear: docs/architecture.md,
/// "Few stores".)
struct Unrouted {
    from: Endpoint,
    to: u32,
    /// Whether it is a request.
    asks: bool,
    op: u8,
    completion: Option<u64>,
}

/// Why a message was not taken. *Full* is a normal result: a [`Event::CanSend`] follows.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room, no credit, or no session yet. Poll, and try again after the can-send event.
    #[error("full: poll, and send again after the can-send event")]
    Full,
    /// More than 16 arguments or 64 KiB.
    #[error("too large: a message has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes; split it")]
    TooLarge,
    /// The translation table has nothing at that index.
    #[error("nothing is mapped at index {0} of the endpoint's translation table; map a name there first")]
    NotMapped(u32),
    /// The endpoint was freed.
    #[error("the local endpoint was freed")]
    NoEndpoint,
    /// The endpoint is for tagged messages, and has neither handlers nor what comes with them.
    #[error(
        "the endpoint is for tagged messages; make another one for handlers, or use the calls of `Bundle::tagged`"
    )]
    Tagged,
    /// A handler called the shared bundle that runs it, which would wait for itself.
    #[error("a handler cannot call the shared bundle that runs it; use the message's context")]
    InHandler,
    /// This is a forked child of the process that the endpoint is of.
    #[error("{}", weft_wire::FORKED)]
    Forked,
}

weft_wire::debug_says_display!(SendError);

/// Why a reply was not taken.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// More than 16 arguments or 64 KiB. The token can be used again.
    #[error("too large: a reply has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes")]
    TooLarge,
    /// The one who asked is gone.
    #[error("the peer that asked is gone: nobody waits for this reply any more")]
    PeerLost,
    /// This is a forked child of the process that was asked.
    #[error("{}", weft_wire::FORKED)]
    Forked,
}

weft_wire::debug_says_display!(ReplyError);

/// The right to reply once to one request. Dropping it leaves the request open until the session ends.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a request whose token is dropped stays open; reply or end it"]
pub struct ReplyToken {
    pub(crate) session: SessionId,
    pub(crate) flow: u16,
    pub(crate) slot: u16,
}

impl ReplyToken {
    /// The flow that the request came by.
    pub fn flow(&self) -> FlowId {
        FlowId { session: self.session, number: self.flow }
    }

    /// Which of the flow's requests under way it is.
    pub fn slot(&self) -> u16 {
        self.slot
    }
}

/// A message in the hands of a [`Sink`]. [`State::source`] tells who sent it.
pub struct Delivery<'a> {
    /// The local endpoint it is for.
    pub endpoint: Endpoint,
    /// Its arguments.
    pub args: &'a [u32],
    /// Its payload, valid until the sink returns.
    pub payload: &'a [u8],
    pub(crate) head: HeadWords,
    /// Referred to, not copied: one store instead of two.
    pub(crate) session: &'a SessionId,
    /// A request whose right to reply was not taken. Left so, it ends without a reply when the sink returns.
    pub(crate) is_open: Cell<bool>,
}

impl<'a> Delivery<'a> {
    #[inline(always)]
    pub(crate) fn new(endpoint: Endpoint, session: &'a SessionId, record: Record<'a>, is_open: bool) -> Delivery<'a> {
        let Record { head, args, payload } = record;
        Delivery { endpoint, args, payload, head, session, is_open: Cell::new(is_open) }
    }

    /// What it is.
    #[inline(always)]
    pub fn kind(&self) -> MessageKind {
        if self.head.is(Kind::Request) {
            MessageKind::Request
        } else if self.head.is(Kind::Reply) {
            MessageKind::Reply
        } else {
            MessageKind::OneWay
        }
    }

    /// The client's operation.
    #[inline(always)]
    pub fn op(&self) -> u8 {
        self.head.op()
    }

    /// The flow that a request or one-way message came by: all of one flow are from one endpoint of one peer. Of a reply it is the
    /// flow of its request, whose numbers are counted apart.
    #[inline(always)]
    pub fn flow(&self) -> FlowId {
        FlowId { session: *self.session, number: self.head.flow() }
    }

    /// Which of its flow's requests under way a request or a reply is of, beside [`Delivery::flow`].
    pub fn slot(&self) -> u16 {
        self.head.slot()
    }

    /// The right to reply to a request, once.
    #[inline(always)]
    pub fn take_reply(&self) -> Option<ReplyToken> {
        let token = ReplyToken { session: *self.session, flow: self.head.flow(), slot: self.head.slot() };
        self.is_open.replace(false).then_some(token)
    }

    /// Takes back a right that this message gave and that was not used.
    #[inline(always)]
    pub fn put_reply(&self, token: ReplyToken) {
        debug_assert_eq!((token.session, token.flow, token.slot), (*self.session, self.head.flow(), self.head.slot()));
        self.is_open.set(true);
    }
}

impl std::fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Delivery { endpoint, args, payload, .. } = self;
        write!(f, "{:?} {} for {endpoint:?} with {args:?} and {} bytes", self.kind(), self.op(), payload.len())
    }
}

/// The client of a bundle: gets what arrives and what comes back. Runs inside [`crate::Bundle::poll`].
///
/// ```
/// use weft_core::{Delivery, Sink, State};
/// use weft_wire::Reason;
///
/// /// A client that knows one operation.
/// struct Log(Vec<Vec<u8>>);
///
/// impl<T> Sink<T> for Log {
///     fn deliver(&mut self, _: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
///         match message.op() {
///             1 => Ok(self.0.push(message.payload.to_vec())),
///             _ => Err(Reason::NoHandler), // it goes back to its sender
///         }
///     }
/// }
/// ```
pub trait Sink<T> {
    /// Takes a message, or refuses it, and then it goes back to its sender.
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason>;

    /// Takes a message that came back, or leaves it to the event queue.
    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        let _ = state;
        Some(message)
    }

    /// Goes on with what the client has to do: [`State::next_claimed`] events, and whatever it asked to [`State::come_again`]
    /// for. Called at the end of a poll, if there may be any. Returns how much was done.
    fn do_chores(&mut self, state: &mut State<T>) -> u32 {
        let _ = state;
        0
    }

    /// Carries an errand to the bundle that its endpoint lives in now, or says why nobody takes it.
    fn forward(&mut self, errand: Errand) -> Result<(), (Errand, Reason)> {
        Err((errand, Reason::NoSuchEndpoint))
    }

    /// Carries back to a bundle what became of an errand of its.
    fn carry_back(&mut self, to: BundleId, back: Back) {
        let _ = (to, back);
    }
}

/// A destination that somebody wants to send to and that has no session: the home's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The local endpoint.
    pub endpoint: Endpoint,
    /// The index in its translation table.
    pub destination: u32,
    /// What the index named when the call was made. If it names another now, the outcome of the call is of no interest.
    pub name: Name,
}

/// A session's place. It begins with a cache line: where else its fields lay was up to the allocator and to each other's sizes, and
/// with 32 requests under way a pair took 20.5 or 23 ns by it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Place<T> {
    pub life: u32,
    pub session: Option<Session<T>>,
    /// Set aside for a session that is being set up.
    pub is_reserved: bool,
}

/// One-way messages of one flow that were handed over one after the other, and are noted with their flow together: what a
/// stream does for each message is then a few additions.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub session: u32,
    pub flow: u16,
    /// Where the flow leads.
    pub endpoint: Endpoint,
    /// The state of things in which its messages were found admitted; 0 if they are not simply handed over.
    pub admission: u64,
    pub messages: u32,
    pub lines: u32,
    /// Somebody wants to be told soon that they are stored.
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

/// Everything of a bundle but the reading ends of its sessions. No call blocks.
///
/// ```
/// use weft_core::testing::MemTx;
/// use weft_core::{Bundle, Outgoing, SendError, Settings};
/// use weft_core::testing::{MemRx, NoBells};
/// use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Uid};
///
/// let mut bundle: Bundle<MemRx, MemTx, NoBells> = Bundle::new(NoBells, Settings::default());
/// let name = |number| Name { epoch: Epoch(9), endpoint: EndpointId(number), uid: Uid(0), address: HostAddress::NONE };
/// let state = bundle.state_mut();
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
    pub(crate) endpoints: Vec<Option<EndpointState>>,
    pub(crate) sessions: Vec<Place<T>>,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
    pub(crate) calls: Vec<Call>,
    /// Flows that owe their sender `Ended` or `Credit`.
    pub(crate) dirty: Vec<(u32, u16)>,
    /// Messages that came back and wait for the sink.
    pub(crate) returns: VecDeque<Returned>,
    /// Sessions with a backlog or with a sender that waits for room.
    pub(crate) blocked: Vec<u32>,
    /// Endpoints that are served again and hold messages.
    pub(crate) unparking: Vec<Endpoint>,
    pub(crate) parked_bytes: usize,
    /// Sessions that turned out broken while something was sent.
    pub(crate) broken: Vec<u32>,
    pub(crate) run: Run,
    /// Sessions of which a held record's return is under way now, once per record.
    pub(crate) let_go: Vec<u32>,
    /// Something may be in `dirty`, `blocked`, `let_go`, `unparking`, `returns`, `completed_away` or `backs`, or the client may have
    /// something to do: one look instead of nine on every poll.
    pub(crate) has_chores: bool,
    /// The client asked to be called at the end of the next poll.
    pub(crate) client_waits: bool,
    /// The client wants no more messages in this visit.
    pub(crate) has_enough: bool,
    /// Messages that other bundles handed on and that have not ended.
    pub(crate) guests: BTreeMap<u32, Guest>,
    pub(crate) guests_so_far: u32,
    /// What became of them, on its way back.
    pub(crate) backs: Vec<(BundleId, Back)>,
    /// Completions for endpoints that live in other bundles.
    pub(crate) completed_away: Vec<(Endpoint, u64)>,
    /// Changes with every change that can make an endpoint admit or hold messages otherwise than before: what a flow was
    /// admitted to at this state of things needs no second look. Begins with 1; 0 is never current.
    pub(crate) admission: u64,
}

impl<T: Tx> State<T> {
    pub(crate) fn new(settings: Settings) -> State<T> {
        State {
            settings,
            endpoints: Vec::new(),
            sessions: Vec::new(),
            events: Events::new(),
            counters: Counters::default(),
            calls: Vec::new(),
            dirty: Vec::with_capacity(64),
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
            guests: BTreeMap::new(),
            guests_so_far: 0,
            backs: Vec::new(),
            completed_away: Vec::new(),
            admission: 1,
        }
    }

    // ---- endpoints and translation tables

    /// Adds an endpoint with this name and key.
    pub fn add_endpoint(&mut self, name: Name, key: Key) -> Endpoint {
        self.endpoints.push(Some(EndpointState::new(name, key)));
        Endpoint(self.endpoints.len() as u32 - 1)
    }

    /// Frees an endpoint. One-way messages that it holds unserved are dropped (they were delivered); requests that it holds,
    /// and whatever comes later, go back to their senders.
    pub fn free_endpoint(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        let place = self.endpoints.get_mut(endpoint.index()).ok_or(SendError::NoEndpoint)?;
        let freed = place.take().ok_or(SendError::NoEndpoint)?;
        self.admission += 1;
        for parked in freed.parked {
            self.note_unparked(&parked);
            match parked.head.is(Kind::Request) {
                true => _ = self.bounce(&parked.message(endpoint), Reason::NoSuchEndpoint),
                false => self.settle_parked(&parked),
            }
        }
        Ok(())
    }

    /// Changes the key. Senders that know the old one get their messages back.
    pub fn set_key(&mut self, endpoint: Endpoint, key: Key) -> Result<(), SendError> {
        self.endpoint_mut(endpoint)?.key = key;
        self.admission += 1;
        Ok(())
    }

    /// Whose messages the endpoint admits, of processes of this host: those of its own user's (the default), or all.
    pub fn set_admission(&mut self, endpoint: Endpoint, admission: Admission) -> Result<(), SendError> {
        self.endpoint_mut(endpoint)?.admission = admission;
        self.admission += 1;
        Ok(())
    }

    /// Whose messages the endpoint admits.
    pub fn admission_of(&self, endpoint: Endpoint) -> Result<Admission, SendError> {
        Ok(self.endpoint(endpoint)?.admission)
    }

    /// Whether messages are handed to the endpoint (the default) or queued, up to the credit granted.
    pub fn set_served(&mut self, endpoint: Endpoint, served: bool) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.served = served;
        if served && !state.parked.is_empty() {
            self.unparking.push(endpoint);
            self.has_chores = true;
        }
        self.admission += 1;
        Ok(())
    }

    /// Which of an endpoint's events end a wait.
    pub fn set_event_mask(&mut self, endpoint: Endpoint, mask: EventMask) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.set_mask(endpoint, mask);
        self.admission += 1;
        Ok(())
    }

    /// From now on the endpoint's events, but for completions, are for its client: see [`Sink::do_chores`].
    pub fn claim_events(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.claim(endpoint);
        Ok(())
    }

    /// The next event of an endpoint whose client [claimed](State::claim_events) them. These end no waits by themselves.
    pub fn next_claimed(&mut self) -> Option<Event> {
        self.events.pop_claimed()
    }

    /// The client has more to do: its [`Sink::do_chores`] is called with the next poll, which comes soon.
    pub fn come_again(&mut self) {
        self.client_waits = true;
        self.has_chores = true;
    }

    /// The client has a one-way message that the program should see before another is looked for: said while it is delivered,
    /// it ends the visit to its session. The look for what comes next costs a line of the other core's, and can wait.
    #[inline(always)]
    pub fn end_visit(&mut self) {
        self.has_enough = true;
    }

    /// The client has something for the program: a wait ends.
    pub fn note(&mut self) {
        self.events.note();
    }

    /// The endpoint's name.
    pub fn name(&self, endpoint: Endpoint) -> Result<Name, SendError> {
        Ok(self.endpoint(endpoint)?.name)
    }

    /// The endpoint's key.
    pub fn key(&self, endpoint: Endpoint) -> Result<Key, SendError> {
        Ok(self.endpoint(endpoint)?.key)
    }

    /// Whether there is an endpoint of this bundle for what a stranger wants to open, and whether it knows the key.
    pub fn admits(&self, open: &Open) -> Result<(), Reason> {
        let found = self.endpoints.iter().flatten().find(|e| e.id == open.destination);
        found.ok_or(Reason::NoSuchEndpoint)?.admits(Uid::UNKNOWN, open.key)
    }

    /// Whether requests or one-way messages of ours are under way on a session: then its peer is to be watched.
    pub fn awaits(&self, session: SessionId) -> bool {
        let flows = self.session(session).into_iter().flat_map(|s| &s.flows_out);
        flows.into_iter().any(FlowOut::has_under_way)
    }

    /// Messages that wait at an endpoint which is not served.
    pub fn parked(&self, endpoint: Endpoint) -> Result<usize, SendError> {
        Ok(self.endpoint(endpoint)?.parked.len())
    }

    /// Enters (name, key) at an index of the translation table, in place of what was there. Makes no contact yet.
    pub fn map(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), SendError> {
        if index as usize >= TABLE_MOST {
            return Err(SendError::NotMapped(index));
        }
        let state = self.endpoint_mut(endpoint)?;
        state.changes += 1;
        let table = &mut state.table;
        if table.len() <= index as usize {
            table.resize(index as usize + 1, None);
        }
        table[index as usize] = Some(Translation { name, key, route: Route::Unknown, renews: false });
        Ok(())
    }

    /// Empties an index of the translation table. What is under way there still ends as it would have.
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.changes += 1;
        let entry = state.table.get_mut(index as usize).ok_or(SendError::NotMapped(index))?;
        entry.take().map(|_| ()).ok_or(SendError::NotMapped(index))
    }

    /// What an index of the translation table names.
    pub fn translation(&self, endpoint: Endpoint, index: u32) -> Result<(Name, Key), SendError> {
        let entry = self.endpoint(endpoint)?.translation(index).ok_or(SendError::NotMapped(index))?;
        Ok((entry.name, entry.key))
    }

    // ---- sending

    /// Sends a one-way message. It ends delivered, or comes back.
    #[inline(always)]
    pub fn try_send(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>) -> Result<(), SendError> {
        self.send_marked(from, to, message, 0)
    }

    /// The same for a message that somebody waits for: its reader never lets it lie to have the sender get ahead, which it
    /// does for some microseconds behind a stream of others.
    #[inline(always)]
    pub fn try_send_urgent(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>) -> Result<(), SendError> {
        self.send_marked(from, to, message, URGENT)
    }

    #[inline(always)]
    fn send_marked(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>, marks: u16) -> Result<(), SendError> {
        let Some((session, flow)) = self.route(from, to) else {
            let Outgoing { op, args, payload, completion } = message;
            return self.send_unrouted(Unrouted { from, to, asks: false, op, completion }, args, payload, marks);
        };
        self.send_on(session, flow, message, marks)
    }

    #[inline(always)]
    fn send_on(&mut self, session: u32, flow: u16, message: Outgoing<'_>, marks: u16) -> Result<(), SendError> {
        if message.args.len() > MAX_ARGS || message.payload.len() > MAX_PAYLOAD {
            return Err(SendError::TooLarge);
        }
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return Err(SendError::Full);
        };
        let out = &mut s.flows_out[usize::from(flow)];
        let need = lines(message.args.len(), message.payload.len());
        if !s.backlog.is_empty() || !out.credit.covers(need) {
            return Err(self.send_unready(session, flow));
        }
        let ask = if message.completion.is_some() { ASK_STORED } else { 0 };
        let header = head(Kind::Send, message.op, flow, ask | marks, Credit::default());
        match s.tx.push(header, message.args, message.payload) {
            Ok(()) => {
                out.credit.spend_covered(need);
                out.sent += 1;
                if let Some(completion) = message.completion {
                    out.completions.push_back((out.sent, completion));
                }
                self.counters.sent += 1;
                Ok(())
            }
            Err(error) => Err(self.not_pushed(session, flow, error)),
        }
    }

    /// Sends a request. It ends answered (a reply, or the notice that there is none), or comes back.
    #[inline(always)]
    pub fn try_request(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>) -> Result<(), SendError> {
        let Some((session, flow)) = self.route(from, to) else {
            let Outgoing { op, args, payload, completion } = message;
            return self.send_unrouted(Unrouted { from, to, asks: true, op, completion }, args, payload, 0);
        };
        self.request_on(session, flow, message)
    }

    #[inline(always)]
    fn request_on(&mut self, session: u32, flow: u16, message: Outgoing<'_>) -> Result<(), SendError> {
        let Outgoing { op, args, payload, completion } = message;
        if payload.len() <= SMALL_MOST && completion.is_none() && self.request_small(session, flow, op, args, payload) {
            return Ok(());
        }
        self.request_any(session, flow, op, completion, args, payload)
    }

    /// Sends a request of at most [`SMALL_MOST`] bytes, if a few stores do it; made to be inlined, and no call is in it behind which
    /// anything is still to do, so that nothing has to be put into memory over a call. False if not, and nothing was changed.
    #[inline(always)]
    fn request_small(&mut self, session: u32, flow: u16, op: u8, args: &[u32], payload: &[u8]) -> bool {
        let place = self.sessions.get_mut(session as usize).and_then(|place| place.session.as_mut());
        let Some(s) = place.filter(|s| s.backlog.is_empty()) else { return false };
        let Some(out) = s.flows_out.get_mut(usize::from(flow)) else { return false };
        let mut window = out.window;
        let Some(slot) = window.take() else { return false };
        let Some(kept) = out.slots.get_mut(usize::from(slot)) else { return false };
        if !s.tx.push_small(head(Kind::Request, op, flow, slot, Credit::default()), args, payload) {
            return false;
        }
        out.window = window;
        out.requests += 1;
        self.counters.requests_sent += 1;
        s.tx.signal();
        kept.keep(op, args, payload);
        true
    }

    /// Sends any request.
    #[inline(never)]
    fn request_any(
        &mut self,
        session: u32,
        flow: u16,
        op: u8,
        completion: Option<u64>,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let message = Outgoing { op, args, payload, completion };
        if message.args.len() > MAX_ARGS || message.payload.len() > MAX_PAYLOAD {
            return Err(SendError::TooLarge);
        }
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return Err(SendError::Full);
        };
        let out = &mut s.flows_out[usize::from(flow)];
        if !s.backlog.is_empty() || out.window.is_full() {
            return Err(self.send_unready(session, flow));
        }
        let Some(slot) = out.window.take() else {
            return Err(SendError::Full);
        };
        let header = head(Kind::Request, message.op, flow, slot, Credit::default());
        match s.tx.push(header, message.args, message.payload) {
            Ok(()) => {
                out.asked |= u32::from(message.completion.is_some()) << (slot % WINDOW as u16);
                let kept = out.slot(slot);
                kept.completion = message.completion;
                kept.keep(message.op, message.args, message.payload);
                out.requests += 1;
                self.counters.requests_sent += 1;
                Ok(())
            }
            Err(error) => {
                out.window.put(slot);
                Err(self.not_pushed(session, flow, error))
            }
        }
    }

    /// Replies to a request. Never blocks: what finds no room is queued, bounded by the requests that were granted.
    ///
    /// On `TooLarge` the token comes back for another try.
    #[inline(always)]
    pub fn reply(
        &mut self,
        token: ReplyToken,
        op: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD {
            return Err((ReplyError::TooLarge, token));
        }
        let Some(place) = self.sessions.get_mut(token.session.index as usize) else {
            return self.reply_to_guest(token, op, args, payload);
        };
        let (true, Some(s)) = (place.life == token.session.life, place.session.as_mut()) else {
            return Err((ReplyError::PeerLost, token));
        };
        let Some(flow) = s.flows_in.get_mut(usize::from(token.flow)) else { return Err((ReplyError::PeerLost, token)) };
        let credit = flow.due.take_ride();
        self.counters.replies_sent += 1;
        if s.backlog.is_empty() {
            let header = head(Kind::Reply, op, token.flow, token.slot, credit);
            if s.tx.push(header, args, payload).is_ok() {
                flow.under_way.put(token.slot);
                return Ok(());
            }
        }
        self.queue_reply(token, op, credit, args, payload);
        Ok(())
    }

    /// Replies to a request with at most [`SMALL_MOST`] bytes, if a few stores do it. False if not, and nothing was changed: then
    /// there is [`Delivery::take_reply`].
    #[inline(always)]
    pub fn reply_small(&mut self, message: &Delivery<'_>, op: u8, args: &[u32], payload: &[u8]) -> bool {
        if payload.len() > SMALL_MOST || !message.is_open.get() {
            return false;
        }
        let (number, slot) = (message.head.flow(), message.head.slot());
        let place = self.sessions.get_mut(message.session.index as usize).filter(|p| p.life == message.session.life);
        let s = place.and_then(|place| place.session.as_mut());
        let Some(s) = s.filter(|s| s.backlog.is_empty()) else { return false };
        let flow = s.flows_in.get_mut(usize::from(number)).filter(|flow| !flow.due.has_ride());
        let Some(flow) = flow else { return false };
        if !s.tx.push_small(head(Kind::Reply, op, number, slot, Credit::default()), args, payload) {
            return false;
        }
        message.is_open.set(false);
        flow.under_way.put(slot);
        self.counters.replies_sent += 1;
        s.tx.signal();
        true
    }

    /// Queues a reply that found no room. Its slot stays taken until it is pushed, so the backlog holds at most a window of
    /// replies per flow.
    #[cold]
    #[inline(never)]
    fn queue_reply(&mut self, token: ReplyToken, op: u8, credit: Credit, args: &[u32], payload: &[u8]) {
        let header = head(Kind::Reply, op, token.flow, token.slot, credit);
        self.queue(token.session.index, header, args, payload);
        self.counters.replies_queued += 1;
    }

    /// Ends a request without a reply.
    pub fn end(&mut self, token: ReplyToken) {
        let index = token.session.index;
        if self.session(token.session).is_some() {
            self.end_request(index, token.flow, token.slot);
        } else {
            self.end_guest(&token);
        }
    }

    /// Who sent a message, as its session vouches for it. For a reply, as the translation names it.
    pub fn source(&self, message: &Delivery<'_>) -> Option<Name> {
        let Some(session) = self.session(*message.session) else { return self.guest_source(*message.session) };
        let number = message.head.flow();
        if message.head.is(Kind::Reply) {
            let flow = session.flows_out.get(usize::from(number))?;
            let entry = self.endpoint(message.endpoint).ok().and_then(|e| e.translation(flow.destination));
            let leads_here = |entry: &&Translation| entry.route.flow() == Some((message.session.index, number));
            return Some(
                entry.filter(leads_here).map_or_else(|| session.name_of(flow.to, Uid::UNKNOWN), |entry| entry.name),
            );
        }
        Some(session.flows_in.get(usize::from(number))?.source)
    }

    /// Whether the session of a token still lives.
    pub fn is_open(&self, token: &ReplyToken) -> bool {
        self.session(token.session).is_some() || self.is_guest_open(token)
    }

    /// Pushes whatever waits locally. Says whether nothing waits any more.
    pub fn flush(&mut self) -> bool {
        self.flush_dirty();
        self.flush_blocked();
        self.sessions.iter().flat_map(|p| &p.session).all(|s| s.backlog.is_empty()) && self.dirty.is_empty()
    }

    /// Asks every peer that holds one-way messages of ours to tell soon that they are stored.
    pub fn hasten(&mut self) {
        for place in &mut self.sessions {
            let Some(s) = place.session.as_mut().filter(|s| s.backlog.is_empty()) else {
                continue;
            };
            for (flow, out) in s.flows_out.iter_mut().enumerate() {
                if out.sent > out.stored && out.asked_at < out.sent {
                    let header = head(Kind::Credit, 0, flow as u16, 0, Credit::default());
                    if s.tx.push(header, &[], &[]).is_ok() {
                        out.asked_at = out.sent;
                    }
                }
            }
        }
    }

    /// Messages sent whose end is not known or not told: requests not ended, one-way messages not known to be stored, and
    /// messages that came back and were not handed to the sink yet.
    pub fn unsettled(&self) -> u64 {
        let flows = self.sessions.iter().flat_map(|p| &p.session).flat_map(|s| &s.flows_out);
        let under_way: u64 = flows.map(|f| u64::from(f.window.taken().count_ones()) + (f.sent - f.stored)).sum();
        under_way + self.returns.len() as u64
    }

    /// The next event, oldest first.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Events and messages so far that end a wait; both come round.
    pub fn tally(&self) -> Tally {
        let Counters { delivered, requests_delivered, replies_delivered, parked, .. } = self.counters;
        let messages = delivered.wrapping_add(requests_delivered).wrapping_add(replies_delivered).wrapping_add(parked);
        Tally { events: self.events.noted(), messages: messages.wrapping_sub(self.events.muted()) }
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Destinations that want a session, each once.
    pub fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// Whether the home has sessions to set up.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The sessions there are.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, PeerId)> + '_ {
        self.sessions.iter().enumerate().filter_map(|(index, place)| {
            let id = SessionId { index: index as u32, life: place.life };
            place.session.as_ref().map(|s| (id, s.peer))
        })
    }

    // ---- what the home says

    /// A session leads to the destination of a call.
    pub fn connected(&mut self, call: Call, session: SessionId) {
        let Ok(EndpointState { name: source, service, .. }) = self.endpoint(call.endpoint) else { return };
        let (source, service) = (*source, *service);
        let Some(&mut Translation { name, key, .. }) = self.calling(call) else { return };
        let Some(s) = self.session_mut(session) else {
            return self.refused(call, Reason::PeerLost);
        };
        // Mapped there before: the peer knows the flow, and what is under way on it is under way to the same endpoint.
        let ends = (call.endpoint.0, call.destination, name.endpoint);
        let is_it = |f: &FlowOut| {
            (f.source, f.destination, f.to, f.service) == (ends.0, ends.1, ends.2, service) && f.key.matches(key)
        };
        if let Some(flow) = s.flows_out.iter().position(is_it) {
            let is_longer = s.flows_out[flow].is_stopped || service.is_longer();
            return self.set_route(call, route_to(session.index, flow as u16, is_longer));
        }
        let flow = s.flows_out.len();
        if flow >= s.limits.flows {
            return self.refused(call, Reason::NoRoom);
        }
        s.flows_out.push(FlowOut::new(call.endpoint.0, call.destination, name.endpoint, key, service));
        // At once, whoever sends first: the peer numbers flows in the order they are opened.
        let open = Open { source: source.endpoint, destination: name.endpoint, key, uid: source.uid };
        let marks = if service.stops() { ORDERED } else { 0 };
        let header = head(Kind::Open, marks, flow as u16, 0, Credit::default());
        if !(s.backlog.is_empty() && s.tx.push(header, &open.to_args(), &[]).is_ok()) {
            self.queue(session.index, header, &open.to_args(), &[]);
        }
        self.set_route(call, route_to(session.index, flow as u16, service.is_longer()));
    }

    /// No session leads there; the next message is returned with this reason, and the one after that calls again.
    pub fn refused(&mut self, call: Call, reason: Reason) {
        self.set_route(call, Route::Refused(reason));
    }

    fn set_route(&mut self, call: Call, route: Route) {
        let Some(entry) = self.calling(call) else { return };
        if std::mem::take(&mut entry.renews) {
            // Nobody waits for it: the old route leads there too.
            if route.flow().is_some() {
                entry.route = route;
            }
            return;
        }
        entry.route = route;
        self.tell(Event::CanSend { endpoint: call.endpoint, destination: call.destination });
    }

    /// Queues an event for the program or for a client.
    pub(crate) fn tell(&mut self, event: Event) {
        self.events.push(event);
        self.has_chores |= self.events.has_claimed();
    }

    /// The translation that waits for a call.
    fn calling(&mut self, call: Call) -> Option<&mut Translation> {
        let entry = self.endpoint_mut(call.endpoint).ok()?.translation_mut(call.destination)?;
        // Equal names may say different addresses, of which one is called.
        let is_of_call = entry.name == call.name && entry.name.address == call.name.address;
        ((matches!(entry.route, Route::Calling) || entry.renews) && is_of_call).then_some(entry)
    }

    // ---- inside

    /// Whether something waits here for room in a path, or for the sink.
    pub fn has_unfinished(&self) -> bool {
        let nothing = self.unparking.is_empty() && self.dirty.is_empty() && self.blocked.is_empty();
        let nothing = nothing && self.backs.is_empty() && self.completed_away.is_empty();
        let nothing = nothing && !self.client_waits && !self.events.has_claimed();
        !(nothing && self.returns.is_empty() && self.let_go.is_empty())
    }

    pub(crate) fn endpoint(&self, endpoint: Endpoint) -> Result<&EndpointState, SendError> {
        let state = self.endpoints.get(endpoint.index()).and_then(Option::as_ref);
        state.filter(|e| !e.is_away).ok_or(SendError::NoEndpoint)
    }

    pub(crate) fn endpoint_mut(&mut self, endpoint: Endpoint) -> Result<&mut EndpointState, SendError> {
        let state = self.endpoints.get_mut(endpoint.index()).and_then(Option::as_mut);
        state.filter(|e| !e.is_away).ok_or(SendError::NoEndpoint)
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

    #[inline(always)]
    fn route(&self, from: Endpoint, to: u32) -> Option<(u32, u16)> {
        let entry = self.endpoints.get(from.index())?.as_ref()?.translation(to)?;
        match entry.route {
            Route::Flow { session, flow } => Some((session, flow)),
            _ => None,
        }
    }

    /// A destination without a session: call, wait, or give the message back.
    #[cold]
    #[inline(never)]
    fn send_unrouted(&mut self, message: Unrouted, args: &[u32], payload: &[u8], marks: u16) -> Result<(), SendError> {
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD {
            return Err(SendError::TooLarge);
        }
        let Unrouted { from, to, asks, op, completion } = message;
        let entry = self.endpoint_mut(from)?.translation_mut(to).ok_or(SendError::NotMapped(to))?;
        match entry.route {
            Route::Unknown => {
                entry.route = Route::Calling;
                let name = entry.name;
                self.calls.push(Call { endpoint: from, destination: to, name });
                Err(SendError::Full)
            }
            Route::Refused(reason) => {
                entry.route = Route::Unknown;
                if !asks && self.service(from)?.reliability == Reliability::Unreliable {
                    self.counters.sent += 1;
                    completion.into_iter().for_each(|completion| self.complete(from.0, completion));
                    return Ok(());
                }
                self.give_back(from, to, Outgoing { op, args, payload, completion }, asks, reason);
                Ok(())
            }
            Route::Calling | Route::Flow { .. } => Err(SendError::Full),
            Route::Served { session, flow } => {
                self.go_on(from, to, session, flow)?;
                let message = Outgoing { op, args, payload, completion };
                if asks {
                    return self.request_on(session, flow, message);
                }
                match self.live(session).map(|s| s.flows_out[usize::from(flow)].service.reliability) {
                    Some(Reliability::Unreliable) => self.send_unreliable(session, flow, message),
                    Some(Reliability::Reception) => self.send_on(session, flow, message, marks | ASK_STORED),
                    _ => self.send_on(session, flow, message, marks),
                }
            }
        }
    }

    /// A flow that has no credit or no slot, or stands behind a backlog.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_unready(&mut self, session: u32, flow: u16) -> SendError {
        if let Some(s) = self.sessions[session as usize].session.as_mut() {
            s.flows_out[usize::from(flow)].wants_room = true;
        }
        self.counters.full += 1;
        SendError::Full
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn not_pushed(&mut self, session: u32, flow: u16, error: PushError) -> SendError {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return SendError::Full;
        };
        s.flows_out[usize::from(flow)].wants_room = true;
        match error {
            PushError::TooLarge => return SendError::TooLarge,
            // Who is gone is lost in a moment, when the network says why.
            PushError::Full | PushError::Gone => self.block(session),
            PushError::Broken => self.cut(session),
        }
        self.counters.full += 1;
        SendError::Full
    }

    fn give_back(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>, asks: bool, reason: Reason) {
        self.come_back(Returned {
            endpoint: from,
            destination: Some(to),
            kind: if asks { MessageKind::Request } else { MessageKind::OneWay },
            op: message.op,
            args: message.args.to_vec(),
            payload: message.payload.to_vec(),
            reason,
            certainty: Certainty::NotDelivered,
            completion: message.completion,
        });
    }

    pub(crate) fn block(&mut self, session: u32) {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return;
        };
        if !s.is_blocked {
            s.is_blocked = true;
            self.blocked.push(session);
            self.has_chores = true;
        }
    }

    /// A message of ours came back; the sink gets it at the end of the poll.
    pub(crate) fn come_back(&mut self, message: Returned) {
        self.counters.returned += 1;
        self.returns.push_back(message);
        self.has_chores = true;
    }

    /// Queues a record that found no room.
    #[cold]
    #[inline(never)]
    pub(crate) fn queue(&mut self, session: u32, head: Head, args: &[u32], payload: &[u8]) {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return;
        };
        s.backlog_bytes += payload.len() + std::mem::size_of::<Pending>();
        s.backlog.push_back(Pending { head, args: args.to_vec(), payload: payload.to_vec() });
        self.block(session);
    }

    /// Notes that a request ended without a reply; it is told at the end of the poll, together with others.
    #[inline(never)]
    pub(crate) fn end_request(&mut self, session: u32, flow: u16, slot: u16) {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return;
        };
        let state = &mut s.flows_in[usize::from(flow)];
        if state.under_way.put(slot) {
            state.ended |= 1 << slot;
            self.mark_dirty(session, flow);
        }
    }

    #[inline(always)]
    pub(crate) fn mark_dirty(&mut self, session: u32, flow: u16) {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return;
        };
        let state = &mut s.flows_in[usize::from(flow)];
        if !state.is_dirty {
            state.is_dirty = true;
            self.dirty.push((session, flow));
            self.has_chores = true;
        }
    }

    /// Tells senders of requests that ended and of credit.
    pub(crate) fn flush_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&(session, flow)| !self.flush_flow(session, flow));
        self.dirty = dirty;
    }

    /// Tells one sender. True if there is nothing more to tell.
    fn flush_flow(&mut self, session: u32, flow: u16) -> bool {
        let Some(s) = self.sessions.get_mut(session as usize).and_then(|p| p.session.as_mut()) else {
            return true;
        };
        let Some(state) = s.flows_in.get_mut(usize::from(flow)) else {
            return true;
        };
        if !s.backlog.is_empty() {
            return false;
        }
        if state.ended != 0 {
            let header = head(Kind::Ended, 0, flow, 0, Credit::default());
            if s.tx.push(header, &[state.ended], &[]).is_err() {
                return false;
            }
            state.ended = 0;
        }
        if state.due.is_urgent(weft_transport::Grant::V1) {
            let mut due = state.due;
            if s.tx.push(head(Kind::Credit, 0, flow, 0, Credit::default()), &due.take(), &[]).is_err() {
                return false;
            }
            state.due = due;
        }
        state.is_dirty = false;
        true
    }

    /// Pushes backlogs and tells waiting senders of room.
    pub(crate) fn flush_blocked(&mut self) {
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|&index| !self.unblock(index));
        self.blocked = blocked;
    }

    /// True if the session is not blocked any more.
    fn unblock(&mut self, index: u32) -> bool {
        let Some(s) = self.sessions.get_mut(index as usize).and_then(|p| p.session.as_mut()) else {
            return true;
        };
        while let Some(next) = s.backlog.front() {
            match s.tx.push(next.head, &next.args, &next.payload) {
                Ok(()) => {
                    // Only the returns of one-way messages that found no room are in a backlog.
                    if next.head.kind == Kind::Return && next.head.slot & 0xff00 == RETURNED_SEND {
                        self.let_go.push(index);
                        self.has_chores = true;
                    }
                    s.pop_backlog();
                }
                Err(PushError::Broken) => {
                    self.cut(index);
                    return true;
                }
                Err(_) => return false,
            };
        }
        if !s.tx.has_room(UNBLOCK_LINES) {
            return false;
        }
        let has_returns = !self.returns.is_empty();
        if has_returns && s.flows_out.iter().any(|f| f.wants_room && f.is_stopped) {
            // They are to be seen before anything new is sent.
            return false;
        }
        s.is_blocked = false;
        for out in s.flows_out.iter_mut().filter(|f| f.wants_room && !(f.is_stopped && f.has_under_way())) {
            out.wants_room = false;
            let endpoint = Endpoint(out.source);
            self.events.push(Event::CanSend { endpoint, destination: out.destination });
        }
        self.has_chores |= self.events.has_claimed();
        true
    }

    /// A peer broke the protocol; the home is told.
    #[cold]
    pub(crate) fn cut(&mut self, session: u32) {
        if !self.broken.contains(&session) {
            self.counters.violations += 1;
            self.broken.push(session);
        }
    }
}

/// Entries of a translation table, at most.
const TABLE_MOST: usize = 1 << 20;

/// Room that a blocked session must have before its senders are told: the largest record.
const UNBLOCK_LINES: u32 = lines(MAX_ARGS, MAX_PAYLOAD);
