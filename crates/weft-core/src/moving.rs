//! Endpoints that move to another bundle of the same network interface.
//!
//! Sessions belong to bundles, so peers go on using the sessions that they have with the bundle that an endpoint left.
//! That bundle keeps a *stub* of the endpoint. The stub forwards messages, as *errands*, to the bundle where the
//! endpoint lives; the results come *back* the same way. A move never causes a message to be sent twice or returned.
//! Peers on the same host are told to call again, and once they have, their messages go straight there; others keep
//! using the stub.

use crate::admission::Admission;
use crate::client::Sink;
use crate::endpoint::{Endpoint, EndpointState, Parked, Route, Translation};
use crate::event::{Event, EventMask, MessageKind, Returned};
use crate::long::{Contents, Long, Placed, Segment};
use crate::message::{Delivery, ReplyError, ReplyToken, SendError};
use crate::service::Service;
use crate::session::{head, SessionId};
use crate::state::{Call, State};
use weft_transport::Grant;
use weft_wire::path::Tx;
use weft_wire::record::{MOVED, RETURNED_REPLY};
use weft_wire::{BundleId, Credit, EndpointId, Head, HeadWords, Key, Kind, Name, Reason, Uid};

/// The session index of messages that another bundle forwarded. No real session has it.
const GUEST: u32 = u32::MAX;

/// The state that moves along with an endpoint.
#[derive(Clone, Debug)]
pub struct Luggage {
    name: Name,
    key: Key,
    admission: Admission,
    served: bool,
    service: Service,
    mask: EventMask,
    /// The translation table, with no entry connected.
    table: Vec<Option<Translation>>,
    /// Changes of the table so far.
    changes: u64,
    /// Indices at which a send returned *full*.
    wanted: Vec<u32>,
    segment: Segment,
}

impl Luggage {
    /// The endpoint.
    pub fn endpoint(&self) -> EndpointId {
        self.name.endpoint
    }

    /// Its key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Whom it admits.
    pub fn admission(&self) -> Admission {
        self.admission
    }
}

/// Something for an endpoint, forwarded by a bundle that it has left.
#[derive(Debug)]
pub struct Errand {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// The bundle that forwarded it first, to which the result goes back. Set by that bundle's sink.
    pub from: Option<BundleId>,
    task: Box<Task>,
}

#[derive(Debug)]
enum Task {
    Message(Handed),
    /// A message of the endpoint came back.
    Returned(Returned),
    /// A message with this completion ended.
    Completed(u64),
}

/// A forwarded message.
#[derive(Debug)]
struct Handed {
    kind: Kind,
    op: u8,
    args: Vec<u32>,
    payload: Vec<u8>,
    source: Option<Name>,
    /// If it carries a key: the key, and the user of the process that sent it.
    key: Option<(Key, Uid)>,
    origin: Origin,
    /// Where its bytes lie, if it is a long message.
    placed: Option<Placed>,
}

/// Where a forwarded message came from.
#[derive(Debug)]
pub struct Origin {
    kind: Kind,
    session: SessionId,
    flow: u16,
    slot: u16,
    lines: u32,
    /// Bytes that it counts for in its first bundle until it is taken.
    bytes: usize,
}

impl Origin {
    fn token(&self) -> ReplyToken {
        ReplyToken { session: self.session, flow: self.flow, slot: self.slot }
    }
}

/// The result of an errand.
#[derive(Debug)]
pub enum Back {
    /// Delivered there, perhaps after it was queued.
    Taken(Origin),
    /// Refused; with its contents, if it was a reply.
    Refused(Origin, Reason, Option<(u8, Vec<u32>, Vec<u8>)>),
    /// The request was answered.
    Replied(ReplyToken, u8, Vec<u32>, Vec<u8>),
    /// The same with a long message: operation, arguments, offset and contents.
    RepliedLong(ReplyToken, u8, Vec<u32>, u64, Contents),
    /// The request ended without a reply.
    Ended(ReplyToken),
}

impl Errand {
    /// Whether an endpoint with this user, key and admission admits it.
    pub fn is_admitted(&self, own: Uid, key: Key, admission: Admission) -> Result<(), Reason> {
        match &*self.task {
            Task::Message(Handed { key: Some((carried, user)), .. }) => {
                admission.admit(own, key, *user, *carried).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    fn is_request(&self) -> bool {
        matches!(*self.task, Task::Message(Handed { kind: Kind::Request, .. }))
    }

    /// The result for the bundle that forwarded it, if nobody takes it.
    pub fn refuse(self, reason: Reason) -> Option<(BundleId, Back)> {
        let Errand { from, task, .. } = self;
        match *task {
            Task::Message(Handed { kind, op, args, payload, origin, .. }) => {
                let contents = (kind == Kind::Reply).then_some((op, args, payload));
                Some((from?, Back::Refused(origin, reason, contents)))
            }
            _ => None,
        }
    }
}

/// A message of another bundle that was delivered or queued here.
#[derive(Debug)]
pub(crate) struct Guest {
    from: BundleId,
    source: Option<Name>,
    origin: Option<Origin>,
    token: ReplyToken,
    is_open: bool,
}

impl<T: Tx> State<T> {
    /// The state that would move along if the endpoint moved now.
    #[doc(hidden)] // for the home of a bundle
    pub fn pack(&self, endpoint: Endpoint) -> Result<Luggage, SendError> {
        let state = self.endpoint(endpoint)?;
        let wants_room = |route: &Route| match *route {
            Route::Calling => true,
            Route::Flow { session, flow } | Route::Served { session, flow } => {
                let place = self.sessions.get(session as usize).and_then(|p| p.session.as_ref());
                place.and_then(|s| s.flows_out.get(usize::from(flow))).is_some_and(|f| f.wants_room)
            }
            _ => false,
        };
        let entries = || state.table.iter().zip(0u32..);
        let wanted =
            entries().filter(|(entry, _)| entry.as_ref().is_some_and(|t| t.wants_event || wants_room(&t.route)));
        Ok(Luggage {
            name: state.name,
            key: state.key,
            admission: state.admission,
            served: state.served,
            service: state.service,
            mask: self.events.mask(endpoint),
            table: state.table.iter().map(|entry| entry.map(Translation::afresh)).collect(),
            changes: state.changes,
            wanted: wanted.map(|(_, index)| index).collect(),
            segment: {
                let segment = state.segment.get_or_init(Segment::default);
                segment.guard(state);
                segment.clone()
            },
        })
    }

    /// Packs again if the table has changed, because a handler ran meanwhile.
    #[doc(hidden)] // for the home of a bundle
    pub fn repack(&self, endpoint: Endpoint, luggage: &mut Luggage) {
        let is_old = |state: &EndpointState| state.changes != luggage.changes;
        if self.endpoint(endpoint).is_ok_and(is_old) {
            if let Ok(packed) = self.pack(endpoint) {
                *luggage = packed;
            }
        }
    }

    /// Turns an endpoint into a stub: it lives in another bundle from now on, and this one forwards what arrives for it.
    pub fn leave(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        let old = self.flows_of(endpoint);
        let state = self.endpoint_mut(endpoint)?;
        state.is_away = true;
        state.table = Vec::new();
        // Its new bundle opens flows of its own.
        self.close_flows(endpoint, old);
        self.admission += 1;
        self.unparking.push(endpoint);
        self.has_chores = true;
        let mut flows = Vec::new();
        for (place, index) in self.sessions.iter().zip(0u32..) {
            // A peer on another host would only call the address in the name again, which leads here.
            let Some(s) = place.session.as_ref().filter(|s| s.peer.uid != Uid::UNKNOWN) else { continue };
            let its =
                s.flows_in.iter().zip(0u16..).filter(|(f, _)| f.destination == endpoint && f.is_open && !f.is_closing);
            flows.extend(its.map(|(_, flow)| (index, flow)));
        }
        let header = |flow| head(Kind::Ended, 0, flow, MOVED, Credit::default());
        for (session, flow) in flows {
            let Some(s) = self.live(session) else { continue };
            if !(s.backlog.is_empty() && s.tx.push(header(flow), &[0], &[]).is_ok()) {
                self.queue(session, header(flow), &[0], &[]);
            }
        }
        Ok(())
    }

    /// An endpoint arrives from another bundle of this network interface, or comes back.
    #[doc(hidden)] // for the home of a bundle
    pub fn arrive(&mut self, luggage: Luggage) -> Endpoint {
        let Luggage { name, key, admission, served, service, mask, table, changes, wanted, segment } = luggage;
        let segment = segment.into();
        let arrived =
            EndpointState { admission, served, service, table, changes, segment, ..EndpointState::new(name, key) };
        let endpoint = match self.endpoints.find(name.endpoint) {
            Some(endpoint) => {
                if let Some(stub) = self.endpoints.get_mut(endpoint) {
                    let parked = std::mem::take(&mut stub.parked);
                    *stub = EndpointState { parked, ..arrived };
                }
                endpoint
            }
            None => {
                let endpoint = self.endpoints.add(arrived);
                self.events.begin(endpoint);
                endpoint
            }
        };
        self.events.set_mask(endpoint, mask);
        self.admission += 1;
        self.unparking.push(endpoint);
        self.has_chores = true;
        for destination in wanted {
            self.tell(Event::CanSend { endpoint, destination });
        }
        endpoint
    }

    /// Queues a returned message for the sink again, because its endpoint has left meanwhile.
    pub fn return_again(&mut self, returned: Returned) {
        self.returns.push_back(returned);
        self.has_chores = true;
    }

    /// Whether an endpoint lives in another bundle.
    pub fn is_away(&self, endpoint: Endpoint) -> bool {
        self.endpoints.get(endpoint).is_some_and(|e| e.is_away)
    }

    /// Does an errand of another bundle.
    #[doc(hidden)] // for the home of a bundle
    pub fn do_errand<S: Sink<T>>(&mut self, errand: Errand, sink: &mut S) {
        let Some(endpoint) = self.endpoints.find(errand.endpoint) else {
            return self.refuse_errand(errand, Reason::NoSuchEndpoint);
        };
        if self.is_away(endpoint) {
            // It moved on meanwhile.
            if let Err((errand, reason)) = sink.forward(errand) {
                self.refuse_errand(errand, reason);
            }
            return;
        }
        // The reply may be returned, and this bundle cannot tell which peer does that.
        if errand.is_request() && self.events.is_full() {
            return self.refuse_errand(errand, Reason::QueueFull);
        }
        let Errand { from, task, .. } = errand;
        match (*task, from) {
            (Task::Message(message), Some(from)) => self.receive_handed(endpoint, from, message, sink),
            (Task::Message(_), None) => {}
            (Task::Returned(returned), _) => {
                self.come_back(Returned { endpoint, ..returned });
            }
            (Task::Completed(completion), _) => self.tell(Event::Completed(completion)),
        }
    }

    /// Handles the result of an errand of ours.
    #[doc(hidden)] // for the home of a bundle
    pub fn take_back(&mut self, back: Back) {
        match back {
            Back::Taken(origin) => self.settle_origin(&origin),
            Back::Replied(token, op, args, payload) => {
                // If the peer is lost there is nobody to tell, and the size was checked where the reply was made.
                let _ = self.reply(token, op, &args, &payload);
            }
            Back::RepliedLong(token, op, args, offset, contents) => {
                let _ = self.reply_long(token, Long { op, args: &args, offset }, contents);
            }
            Back::Ended(token) => self.end(token),
            Back::Refused(origin, reason, contents) => {
                self.counters.refused += 1;
                match (origin.kind, contents) {
                    (Kind::Request, _) => self.push_return(&origin, reason, origin.slot, &[], &[]),
                    (Kind::Reply, Some((op, args, payload))) => {
                        self.push_return(&origin, reason, RETURNED_REPLY | u16::from(op), &args, &payload);
                    }
                    // A one-way message counts as stored, whatever became of it then.
                    _ => {}
                }
                // After the return, because its flow may close now.
                self.settle_origin(&origin);
            }
        }
    }

    /// The results for unanswered messages of other bundles, because this bundle ends.
    #[doc(hidden)] // for the home of a bundle
    pub fn abandon_guests(&mut self) -> Vec<(BundleId, Back)> {
        let open = std::mem::take(&mut self.guests).into_values().filter(|guest| guest.is_open);
        let ended = open.map(|guest| (guest.from, Back::Ended(guest.token)));
        ended.chain(std::mem::take(&mut self.backs)).collect()
    }

    /// Passes on the results of errands that wait to be carried back.
    pub(crate) fn carry_back<S: Sink<T>>(&mut self, sink: &mut S) {
        for (to, back) in self.backs.drain(..) {
            sink.carry_back(to, back);
        }
    }

    /// Forwards a message, after those that waited there. The credit and slot of its flow stay taken until the result
    /// comes back.
    pub(crate) fn hand_on<S: Sink<T>>(&mut self, message: &Delivery<'_>, sink: &mut S) -> Result<(), Reason> {
        while let Some(parked) = self.endpoints.get_mut(message.endpoint).and_then(|e| e.parked.pop_front()) {
            self.hand_on_parked(message.endpoint, parked, sink);
        }
        self.check_backlog(message)?;
        let bytes = Parked::bytes(message.args.len(), message.payload.len());
        self.check_room(*message.session, bytes)?;
        self.hand_on_counted(message, bytes, sink)?;
        if message.kind() == MessageKind::Reply {
            self.count_held_reply(*message.session, message.head.flow(), true);
        }
        self.count_parked(*message.session, bytes);
        Ok(())
    }

    /// The same for a message whose bytes are already counted, or for a guest.
    fn hand_on_counted<S: Sink<T>>(
        &mut self,
        message: &Delivery<'_>,
        bytes: usize,
        sink: &mut S,
    ) -> Result<(), Reason> {
        let endpoint = self.endpoints.get(message.endpoint).ok_or(Reason::NoSuchEndpoint)?.id;
        let (kind, session) = (message.head.kind(), *message.session);
        let (flow, slot, lines) = (message.head.flow(), message.head.slot(), message.head.lines());
        let carried = self.session(session).and_then(|s| Some((s.flows_in.get(usize::from(flow))?.key, s.peer.uid)));
        let handed = Handed {
            kind,
            op: message.op(),
            args: message.args.to_vec(),
            payload: message.payload.to_vec(),
            source: self.source(message),
            key: if kind == Kind::Reply { None } else { carried },
            origin: Origin { kind, session, flow, slot, lines, bytes },
            placed: self.placed,
        };
        let errand = Errand { endpoint, from: None, task: Box::new(Task::Message(handed)) };
        sink.forward(errand).map_err(|(_, reason)| reason)?;
        message.is_open.set(false);
        self.counters.handed_on += 1;
        Ok(())
    }

    /// Forwards a message that waited at an endpoint when the endpoint left.
    pub(crate) fn hand_on_parked<S: Sink<T>>(&mut self, endpoint: Endpoint, parked: Parked, sink: &mut S) {
        let bytes = Parked::bytes(parked.args.len(), parked.payload.len());
        let message = parked.message(endpoint);
        self.placed = parked.placed;
        let handed = match message.session.index {
            GUEST => self.pass_on_guest(&message, sink),
            _ => self.hand_on_counted(&message, bytes, sink),
        };
        self.placed = None;
        if let Err(reason) = handed {
            self.uncount_parked(parked.session, bytes);
            match message.kind() {
                MessageKind::OneWay => self.settle_parked(&parked),
                _ => _ = self.bounce(&message, reason),
            }
            self.note_reply_done(&parked);
        } else if message.session.index == GUEST {
            self.uncount_parked(*message.session, bytes);
        } else if parked.head.is(Kind::Unreliable) {
            // An unreliable message took its source and key along, so nothing else refers to them.
            self.settle_parked(&parked);
        }
    }

    /// Forwards a guest message once more, with its original sender.
    fn pass_on_guest<S: Sink<T>>(&mut self, message: &Delivery<'_>, sink: &mut S) -> Result<(), Reason> {
        let endpoint = self.endpoints.get(message.endpoint).ok_or(Reason::NoSuchEndpoint)?.id;
        let guest = self.guests.remove(&message.session.life).ok_or(Reason::PeerLost)?;
        let Guest { from, source, origin: Some(origin), .. } = guest else { return Err(Reason::PeerLost) };
        let (args, payload) = (message.args.to_vec(), message.payload.to_vec());
        let (op, placed) = (message.op(), self.placed);
        let handed = Handed { kind: origin.kind, op, args, payload, source, key: None, origin, placed };
        let errand = Errand { endpoint, from: Some(from), task: Box::new(Task::Message(handed)) };
        if let Err((errand, reason)) = sink.forward(errand) {
            self.refuse_errand(errand, reason);
        }
        message.is_open.set(false);
        Ok(())
    }

    /// Forwards a returned message to an endpoint that is away. Returns the message if nobody takes it.
    pub(crate) fn hand_on_returned<S: Sink<T>>(&mut self, returned: Returned, sink: &mut S) -> Option<Returned> {
        let state = self.endpoints.get(returned.endpoint);
        let Some(endpoint) = state.filter(|e| e.is_away).map(|e| e.id) else { return Some(returned) };
        let errand = Errand { endpoint, from: None, task: Box::new(Task::Returned(returned)) };
        let (errand, _) = sink.forward(errand).err()?;
        match *errand.task {
            Task::Returned(returned) => Some(returned),
            _ => None,
        }
    }

    /// A message that asked for a completion ended.
    pub(crate) fn complete(&mut self, source: Endpoint, completion: u64) {
        if self.events.push_completed(source, completion) {
            self.has_chores = true;
        } else if self.endpoints.get(source).is_some_and(|e| e.is_away || e.is_leaving) {
            self.completed_away.push((source, completion));
            self.has_chores = true;
        } else {
            self.tell(Event::Completed(completion));
        }
    }

    /// Sets whether the endpoint was released. A released endpoint may be adopted at any moment, and this bundle learns
    /// of it later.
    pub fn set_leaving(&mut self, endpoint: Endpoint, is_leaving: bool) {
        if let Ok(state) = self.endpoint_mut(endpoint) {
            state.is_leaving = is_leaving;
        }
    }

    /// Forwards completions to the endpoints that asked for them, wherever they live by now, perhaps here.
    pub(crate) fn hand_on_completions<S: Sink<T>>(&mut self, sink: &mut S) {
        for (endpoint, completion) in std::mem::take(&mut self.completed_away) {
            let state = self.endpoints.get(endpoint);
            let errand = |id| Errand { endpoint: id, from: None, task: Box::new(Task::Completed(completion)) };
            let handed = state.map(|e| sink.forward(errand(e.id)));
            if !matches!(handed, Some(Ok(()))) {
                self.tell(Event::Completed(completion));
            }
        }
    }

    /// The peer reports that the destination of a flow lives in another bundle: call it again. Until that call
    /// succeeds, messages use this flow.
    pub(crate) fn call_again(&mut self, session: u32, flow: u16) {
        let Some(out) = self.live(session).and_then(|s| s.flows_out.get(usize::from(flow))) else { return };
        let (endpoint, destination) = (out.source, out.destination);
        let entry = self.endpoint_mut(endpoint).ok().and_then(|e| e.translation_mut(destination));
        let leads_here = |t: &&mut Translation| t.route.flow() == Some((session, flow));
        if let Some(entry) = entry.filter(leads_here).filter(|t| !t.renews) {
            entry.renews = true;
            let name = entry.name;
            self.calls.push(Call { endpoint, destination, name });
        }
    }

    // ---- guests: messages that other bundles forwarded

    fn receive_handed<S: Sink<T>>(&mut self, endpoint: Endpoint, from: BundleId, message: Handed, sink: &mut S) {
        let Handed { kind, op, args, payload, source, origin, placed, .. } = message;
        let header = Head { kind, op, args: args.len() as u8, len: payload.len() as u32, ..Head::new(kind) };
        let Ok(head) = HeadWords::check(header.pack()) else { return };
        self.guests_so_far = self.guests_so_far.wrapping_add(1);
        let session = SessionId { index: GUEST, life: self.guests_so_far };
        let token = origin.token();
        let is_open = kind == Kind::Request;
        self.guests.insert(session.life, Guest { from, source, origin: Some(origin), token, is_open });
        let parked = Parked { head, session, args, payload, placed };
        let holds = self.endpoint(endpoint).is_ok_and(EndpointState::holds);
        if holds {
            self.parked_bytes += Parked::bytes(parked.args.len(), parked.payload.len());
            self.counters.parked += 1;
            self.events.mute(endpoint, 1);
            if let Ok(state) = self.endpoint_mut(endpoint) {
                state.parked.push_back(parked);
            }
            return;
        }
        self.parked_bytes += Parked::bytes(parked.args.len(), parked.payload.len());
        self.serve_parked(endpoint, parked, sink);
    }

    /// A guest was delivered.
    pub(crate) fn guest_is_taken(&mut self, session: SessionId) {
        let Some(guest) = self.guests.get_mut(&session.life).filter(|_| session.index == GUEST) else { return };
        if let Some(origin) = guest.origin.take() {
            self.backs.push((guest.from, Back::Taken(origin)));
        }
        if !guest.is_open {
            self.guests.remove(&session.life);
        }
        self.has_chores = true;
    }

    pub(crate) fn is_guest(session: SessionId) -> bool {
        session.index == GUEST
    }

    pub(crate) fn guest_source(&self, session: SessionId) -> Option<Name> {
        self.guests.get(&session.life).filter(|_| session.index == GUEST)?.source
    }

    pub(crate) fn is_guest_open(&self, token: &ReplyToken) -> bool {
        token.session.index == GUEST && self.guests.get(&token.session.life).is_some_and(|guest| guest.is_open)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn reply_to_guest(
        &mut self,
        token: ReplyToken,
        op: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if !self.is_guest_open(&token) {
            return Err((ReplyError::PeerLost, token));
        }
        self.counters.replies_sent += 1;
        self.close_guest(token.session, |token| Back::Replied(token, op, args.to_vec(), payload.to_vec()));
        Ok(())
    }

    #[cold]
    pub(crate) fn reply_long_to_guest(
        &mut self,
        token: ReplyToken,
        Long { op, args, offset }: Long<'_>,
        contents: Contents,
    ) -> Result<(), (ReplyError, ReplyToken, Contents)> {
        if !self.is_guest_open(&token) {
            return Err((ReplyError::PeerLost, token, contents));
        }
        self.counters.replies_sent += 1;
        self.close_guest(token.session, |token| Back::RepliedLong(token, op, args.to_vec(), offset, contents));
        Ok(())
    }

    pub(crate) fn end_guest(&mut self, token: &ReplyToken) {
        if self.is_guest_open(token) {
            self.close_guest(token.session, Back::Ended);
        }
    }

    /// A guest was refused and goes back.
    pub(crate) fn bounce_guest(&mut self, message: &Delivery<'_>, reason: Reason) {
        let Some(guest) = self.guests.remove(&message.session.life) else { return };
        let Guest { from, origin, token, is_open, .. } = guest;
        let contents = || (message.op(), message.args.to_vec(), message.payload.to_vec());
        let back = match origin {
            Some(origin) => {
                let contents = (origin.kind == Kind::Reply).then(contents);
                Back::Refused(origin, reason, contents)
            }
            None if is_open => Back::Ended(token),
            None => return,
        };
        self.backs.push((from, back));
        self.has_chores = true;
    }

    fn close_guest(&mut self, session: SessionId, back: impl FnOnce(ReplyToken) -> Back) {
        let Some(guest) = self.guests.remove(&session.life) else { return };
        let Guest { from, origin, token, .. } = guest;
        self.backs.extend(origin.map(|origin| (from, Back::Taken(origin))));
        self.backs.push((from, back(token)));
        self.has_chores = true;
    }

    fn refuse_errand(&mut self, errand: Errand, reason: Reason) {
        self.backs.extend(errand.refuse(reason));
        self.has_chores = true;
    }

    // ---- what comes back

    /// A forwarded message has left its queue.
    fn settle_origin(&mut self, origin: &Origin) {
        self.uncount_parked(origin.session, origin.bytes);
        if origin.kind == Kind::Reply {
            self.count_held_reply(origin.session, origin.flow, false);
        }
        let (true, Some(s)) = (origin.kind == Kind::Send, self.session_mut(origin.session)) else { return };
        let Some(state) = s.flows_in.get_mut(usize::from(origin.flow)) else { return };
        state.due.on_consumed(1, origin.lines);
        if state.is_closing {
            self.may_be_closed(origin.session, origin.flow);
        } else if state.due.is_urgent(Grant::V1) {
            self.mark_dirty(origin.session.index, origin.flow);
        }
    }

    fn push_return(&mut self, origin: &Origin, reason: Reason, slot: u16, args: &[u32], payload: &[u8]) {
        let Some(s) = self.session_mut(origin.session) else { return };
        let header = head(Kind::Return, reason.code(), origin.flow, slot, Credit::default());
        if s.backlog.is_empty() && s.tx.push(header, args, payload).is_ok() {
            s.on_pushed(header);
        } else {
            self.queue(origin.session.index, header, args, payload);
        }
    }
}
