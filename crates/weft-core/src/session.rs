//! Sessions: the state that two communicating bundles keep about each other.

use crate::endpoint::Endpoint;
use crate::long::{Kept, Longs};
use crate::receive::Violation;
use crate::service::Service;
use crate::state::asked::Asked;
use crate::state::Call;
use std::collections::VecDeque;
use weft_transport::{CreditAccount, CreditDue, Grant, Window};
use weft_wire::record::{MAX_ARGS, WINDOW};
use weft_wire::{BundleId, Credit, EndpointId, Epoch, Head, HostAddress, Key, Kind, Name, Reason, Uid};

/// A slot of a resting flow keeps a buffer of up to this many bytes.
const SLOT_BYTES_LEAST: usize = 256;

/// A session of a bundle. The life tells it from earlier sessions with the same index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId {
    /// Index among the bundle's sessions; also the number of its bell.
    pub index: u32,
    /// How often the index was used before.
    pub life: u32,
}

/// Messages from one endpoint of a session's peer to one of ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId {
    /// The session.
    pub session: SessionId,
    /// The number among the flows that the peer opened there.
    pub number: u16,
}

/// The peer of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId {
    /// Its network interface's life.
    pub epoch: Epoch,
    /// The bundle there.
    pub bundle: BundleId,
    /// Its user, as the kernel reports it; unknown for a peer on another host.
    pub uid: Uid,
    /// Where other hosts reach it.
    pub address: HostAddress,
}

/// A record that found no room and waits for it.
#[derive(Debug)]
pub(crate) struct Pending {
    pub head: Head,
    pub args: Vec<u32>,
    pub payload: Vec<u8>,
}

/// A request in flight, kept so that it can be returned.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub op: u8,
    pub args_len: u8,
    pub args: [u32; MAX_ARGS],
    pub payload: Vec<u8>,
    /// `None` again when the request has ended.
    pub completion: Option<u64>,
}

impl Slot {
    /// Keeps a message whose argument count was checked. Its completion is kept separately.
    #[inline(always)]
    pub fn keep(&mut self, op: u8, args: &[u32], payload: &[u8]) {
        self.op = op;
        self.args_len = args.len() as u8;
        copy_args(args, &mut self.args);
        // Avoid stores that are not needed: docs/design/small-messages.md, "Few stores".
        if !payload.is_empty() {
            self.keep_payload(payload);
        } else if !self.payload.is_empty() {
            self.payload.clear();
        }
    }

    #[inline(always)]
    fn keep_payload(&mut self, payload: &[u8]) {
        // Replacing one word by another is a single store.
        match (<&mut [u8; 8]>::try_from(&mut self.payload[..]), <&[u8; 8]>::try_from(payload)) {
            (Ok(kept), Ok(word)) => *kept = *word,
            _ => self.keep_bytes(payload),
        }
    }

    #[inline(never)]
    fn keep_bytes(&mut self, payload: &[u8]) {
        self.payload.clear();
        self.payload.extend_from_slice(payload);
    }

    pub fn args(&self) -> &[u32] {
        &self.args[..usize::from(self.args_len)]
    }
}

/// Copies up to 16 arguments without a call: four and more as two blocks that may overlap.
#[inline(always)]
fn copy_args(from: &[u32], to: &mut [u32; MAX_ARGS]) {
    if let (Some(first), Some(last)) = (from.first_chunk::<8>(), from.last_chunk::<8>()) {
        copy_ends(first, last, from.len(), to);
    } else if let (Some(first), Some(last)) = (from.first_chunk::<4>(), from.last_chunk::<4>()) {
        copy_ends(first, last, from.len(), to);
    } else {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// Copies `len` arguments that begin with `first` and end with `last`, which together cover them.
#[inline(always)]
fn copy_ends<const N: usize>(first: &[u32; N], last: &[u32; N], len: usize, to: &mut [u32; MAX_ARGS]) {
    to[..N].copy_from_slice(first);
    if let Some(to) = to.get_mut(len - N..len).filter(|_| len > N) {
        to.copy_from_slice(last);
    }
}

/// The phase of a flow on its way to be closed by its opener. See `docs/design/flows.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It carries messages.
    Open,
    /// Nothing more is sent on it. Messages in flight have to end first.
    Draining,
    /// The peer was told that it closes. Its number stays taken until the peer has answered.
    Told,
    /// It is closed, and the number may be used again.
    Closed,
}

/// Messages from one of our endpoints to one of the peer's.
#[derive(Debug)]
pub(crate) struct FlowOut {
    pub source: Endpoint,
    pub destination: u32,
    pub phase: Phase,
    /// How many flows had the number before. Wraps around.
    pub generation: u16,
    /// Its replies that are queued at our endpoint or were forwarded, and may have to go back.
    pub held: u32,
    /// The peer's endpoint.
    pub to: EndpointId,
    pub window: Window,
    pub slots: Vec<Slot>,
    /// Slots whose message asked for a completion, one bit each.
    pub asked: u32,
    pub credit: CreditAccount,
    /// One-way messages sent, and those that the peer reported as stored.
    pub sent: u64,
    pub stored: u64,
    /// Requests sent.
    pub requests: u64,
    /// The last message sent when the peer was last asked to report.
    pub asked_at: u64,
    /// Completions asked for, each with the number of its message, in order.
    pub completions: VecDeque<(u64, u64)>,
    /// A send returned *full*, and its sender waits for a can-send event.
    pub wants_room: bool,
    pub service: Service,
    /// The peer knows the flow once it has read the path up to here; 0 if it is known to, `u64::MAX` before that was
    /// checked. Needed for unreliable messages, which could overtake the open.
    pub known_at: u64,
    /// A message was refused: nothing is sent until everything in flight has ended and the peer is told to go on.
    pub is_stopped: bool,
    /// The value of [`State::admission`] at which replies were found to need no check.
    ///
    /// [`State::admission`]: crate::state::State::admission
    pub admitted: u64,
    /// Long requests, and the replies to requests that are long. `None` until there is one.
    pub longs: Option<Box<Longs>>,
}

impl FlowOut {
    pub fn new(source: Endpoint, destination: u32, to: EndpointId, service: Service) -> FlowOut {
        FlowOut {
            source,
            destination,
            phase: Phase::Open,
            generation: 0,
            held: 0,
            to,
            window: Window::default(),
            slots: Vec::new(),
            asked: 0,
            credit: CreditAccount::new(Grant::V1),
            sent: 0,
            stored: 0,
            requests: 0,
            asked_at: 0,
            completions: VecDeque::new(),
            wants_room: false,
            service,
            known_at: u64::MAX,
            is_stopped: false,
            admitted: 0,
            longs: None,
        }
    }

    /// Whether messages were sent whose end is not known.
    pub fn has_under_way(&self) -> bool {
        self.window.taken() != 0 || self.sent > self.stored
    }

    /// Frees buffers that are not needed now.
    pub fn rest(&mut self) {
        if self.window.taken() == 0 {
            for slot in self.slots.iter_mut().filter(|slot| slot.payload.capacity() > SLOT_BYTES_LEAST) {
                slot.payload = Vec::new();
            }
        }
        if self.completions.is_empty() {
            self.completions = VecDeque::new();
        }
        self.longs.take_if(|longs| longs.is_empty());
    }

    /// Frees its buffers, because nothing more is sent on it.
    pub fn shut(&mut self) {
        self.phase = Phase::Told;
        (self.slots, self.completions, self.wants_room) = (Vec::new(), VecDeque::new(), false);
        self.longs = None;
    }

    /// A slot. The slots are allocated at the first request, so an idle peer has none.
    #[inline(always)]
    pub fn slot(&mut self, slot: u16) -> &mut Slot {
        if self.slots.is_empty() {
            self.slots.resize_with(WINDOW, Slot::default);
        }
        &mut self.slots[usize::from(slot) % WINDOW]
    }

    /// Ends the message in a slot. Returns the completion that it asked for.
    ///
    /// # Errors
    /// If it is a long one that has not left completely: then the peer cannot have answered it.
    pub fn take_completion(&mut self, slot: u16) -> Result<Option<u64>, Violation> {
        self.end_long(slot)?;
        Ok(self.slot(slot).completion.take())
    }

    /// Ends the long request in a slot, and returns it, if there is one.
    ///
    /// # Errors
    /// If it has not left completely: then the peer cannot know of it.
    pub fn end_long(&mut self, slot: u16) -> Result<Option<Kept>, Violation> {
        self.asked &= !(1u32.checked_shl(slot.into()).unwrap_or(0));
        self.longs.as_mut().map_or(Ok(None), |longs| longs.end(slot))
    }

    /// Notes that `messages` more were stored. Returns false and notes nothing if that is more than were sent.
    pub fn on_stored(&mut self, messages: u32) -> bool {
        let stored = self.stored.saturating_add(u64::from(messages));
        let honest = stored <= self.sent;
        if honest {
            self.stored = stored;
        }
        honest
    }

    /// The next completion that is due.
    pub fn due_completion(&mut self) -> Option<u64> {
        let &(number, completion) = self.completions.front()?;
        if number > self.stored {
            return None;
        }
        self.completions.pop_front();
        Some(completion)
    }
}

/// Messages from one of the peer's endpoints to one of ours.
#[derive(Debug)]
pub(crate) struct FlowIn {
    pub source: Name,
    pub destination: Endpoint,
    pub is_open: bool,
    /// The peer closes it. What arrived on it has to be consumed first. Set without `is_open` while the answer waits for room.
    pub is_closing: bool,
    pub generation: u16,
    pub key: Key,
    /// Requests delivered or queued, and not ended.
    pub under_way: Window,
    /// Requests that ended without a reply and were not reported yet.
    pub ended: u32,
    pub due: CreditDue,
    /// Unreliable messages that wait at our endpoint; they use the flow's source and key.
    pub held: u32,
    pub is_dirty: bool,
    /// A refused message stops those that follow.
    pub is_ordered: bool,
    /// Why a message was refused, until the sender goes on.
    pub stopped: Option<Reason>,
    /// The value of `State::admission` at which messages were found admitted and not to be queued, as in [`FlowOut`].
    pub admitted: u64,
    /// Long requests, and long replies to requests. `None` until there is one.
    pub longs: Option<Box<Longs>>,
}

impl FlowIn {
    pub fn new(source: Name, destination: Endpoint, key: Key, is_ordered: bool) -> FlowIn {
        FlowIn {
            source,
            destination,
            is_open: true,
            is_closing: false,
            generation: 0,
            key,
            under_way: Window::default(),
            ended: 0,
            due: CreditDue::default(),
            held: 0,
            is_dirty: false,
            is_ordered,
            stopped: None,
            admitted: 0,
            longs: None,
        }
    }
}

impl FlowIn {
    /// Whether the sender has to be told something. If so, that no longer waits for another record to ride on.
    pub fn say_now(&mut self) -> bool {
        let is_due = self.is_open && self.due.is_due();
        if is_due {
            self.due.ask();
        }
        is_due
    }

    /// Whether nothing of it waits at our endpoint.
    pub fn is_all_consumed(&self) -> bool {
        self.held == 0 && self.due.is_all_consumed()
    }

    /// Closes it: anything that arrives on it from now on is a violation.
    pub fn shut(&mut self) {
        *self = FlowIn {
            is_open: false,
            under_way: Window::SHUT,
            // It may still be in the list of flows that owe something.
            is_dirty: self.is_dirty,
            ..FlowIn::new(self.source, Endpoint::NONE, self.key, self.is_ordered)
        };
    }
}

/// Limits on what one session may make us hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Flows in one direction.
    pub flows: usize,
    /// Bytes of the backlog above which the peer's requests are refused. At twice that, one-way messages that would
    /// have to be returned with their contents count as an attack: no honest peer leaves so many returns unread.
    pub backlog_bytes: usize,
    /// Bytes of messages queued at endpoints that are not served.
    pub parked_bytes: usize,
}

impl Limits {
    /// For a peer of our own class, and for peers on other hosts. Queued messages are bounded for the whole bundle.
    pub const TRUSTED: Limits = Limits { flows: 4096, backlog_bytes: 64 << 20, parked_bytes: usize::MAX };

    /// For a peer of another user: a share that leaves enough of the bundle's limits to others.
    pub const OTHER_USER: Limits = Limits { flows: 64, backlog_bytes: 2 << 20, parked_bytes: 1 << 20 };
}

/// The state of a session, except its reading end.
#[derive(Debug)]
pub(crate) struct Session<T> {
    pub peer: PeerId,
    pub tx: T,
    pub flows_out: Vec<FlowOut>,
    /// Numbers of closed flows, the earliest first; that one is used next.
    pub flows_free: VecDeque<u16>,
    /// Calls that wait for the number of a flow that is closing.
    pub calls: VecDeque<Call>,
    /// How many of them were still wanted at the last check.
    pub calls_wanted: usize,
    pub flows_in: Vec<FlowIn>,
    pub limits: Limits,
    /// Replies, returns and the like that found no room. Bounded by the requests and messages that we granted, and by
    /// [`Limits::backlog_bytes`], above which requests are refused.
    pub backlog: VecDeque<Pending>,
    pub backlog_bytes: usize,
    /// Bytes of the peer's messages that are queued at endpoints.
    pub parked_bytes: usize,
    /// Reserved answers.
    pub asked: Asked,
    /// A send found the path full.
    pub is_blocked: bool,
    /// It is in the list of sessions whose last flow has closed.
    pub is_noted_at_rest: bool,
    /// Replies that the peer sent back.
    pub replies_returned: u64,
}

impl<T> Session<T> {
    pub fn new(peer: PeerId, tx: T, limits: Limits) -> Session<T> {
        Session {
            peer,
            tx,
            limits,
            flows_out: Vec::new(),
            flows_free: VecDeque::new(),
            calls: VecDeque::new(),
            calls_wanted: 0,
            flows_in: Vec::new(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            parked_bytes: 0,
            asked: Asked::default(),
            is_blocked: false,
            is_noted_at_rest: false,
            replies_returned: 0,
        }
    }

    /// Takes a number for a flow of ours: a free one, otherwise the next. `None` if all are taken.
    pub fn take_number(&mut self) -> Option<u16> {
        let next = self.flows_out.len();
        self.flows_free.pop_front().or_else(|| (next < self.limits.flows).then_some(next as u16))
    }

    /// Adds a flow of ours at a number that was taken for it. Returns its generation.
    pub fn open(&mut self, flow: u16, out: FlowOut) -> u16 {
        match self.flows_out.get_mut(usize::from(flow)) {
            Some(old) => {
                let generation = old.generation.wrapping_add(1);
                *old = FlowOut { generation, ..out };
                generation
            }
            None => {
                self.flows_out.push(out);
                0
            }
        }
    }

    /// Whether there is no flow in either direction, and nothing waits.
    pub fn is_at_rest(&self) -> bool {
        let has_none = self.flows_out.iter().all(|out| out.phase == Phase::Closed)
            && self.flows_in.iter().all(|flow| !flow.is_open && !flow.is_closing);
        has_none && self.backlog.is_empty() && self.calls.is_empty() && self.parked_bytes == 0
    }

    /// Frees memory that is left from a burst.
    pub fn rest(&mut self) {
        self.flows_out.iter_mut().for_each(FlowOut::rest);
        for flow in &mut self.flows_in {
            flow.longs.take_if(|longs| longs.is_empty());
        }
        // Most sessions have one flow, but a list grows to four with its first entry.
        self.flows_out.shrink_to_fit();
        self.flows_in.shrink_to_fit();
        if self.backlog.is_empty() {
            self.backlog = VecDeque::new();
        }
    }

    /// Drops the record at the head of the backlog, which was pushed.
    pub fn pop_backlog(&mut self) {
        if let Some(pushed) = self.backlog.pop_front() {
            self.backlog_bytes =
                self.backlog_bytes.saturating_sub(pushed.payload.len() + std::mem::size_of::<Pending>());
            self.on_pushed(pushed.head);
        }
    }

    /// Notes a pushed record. If it ends a request or a flow, only now may the peer use its slot or number again.
    pub fn on_pushed(&mut self, head: Head) {
        if head.kind == Kind::Closed {
            if let Some(flow) = self.flows_in.get_mut(usize::from(head.flow)) {
                flow.shut();
            }
            return;
        }
        let ends = matches!(head.kind, Kind::Reply | Kind::Return) && usize::from(head.slot) < WINDOW;
        if let Some(flow) = self.flows_in.get_mut(usize::from(head.flow)).filter(|_| ends) {
            flow.under_way.put(head.slot);
        }
    }

    /// The name of an endpoint of the peer. The user is the one it claims only if the kernel reports none.
    pub fn name_of(&self, endpoint: EndpointId, said: Uid) -> Name {
        let PeerId { epoch, uid, address, .. } = self.peer;
        Name { epoch, endpoint, uid: if uid == Uid::UNKNOWN { said } else { uid }, address }
    }
}

/// The header of a record about a flow.
#[inline(always)]
pub(crate) fn head(kind: Kind, op: u8, flow: u16, slot: u16, credit: Credit) -> Head {
    Head { kind, op, flow, slot, credit, ..Head::new(kind) }
}
