//! Receiving: dispatch of records that arrived, and the ends of our own messages.

use crate::client::Sink;
use crate::endpoint::{Endpoint, Parked};
use crate::event::{Event, MessageKind, Returned};
use crate::message::Delivery;
use crate::session::{FlowIn, FlowOut, Phase, SessionId};
use crate::state::{Run, State};
use weft_transport::Grant;
use weft_wire::path::{Record, Tx};
use weft_wire::record::{ASK_STORED, GO_ON, MOVED, ORDERED, RETURNED_LONG, RETURNED_REPLY, RETURNED_SEND, WINDOW};
use weft_wire::setup::Open;
use weft_wire::{Certainty, Credit, HeadWords, Kind, Reason};

/// Every eighth reply, a quarter of a window, ends the visit to its session. A reply frees a slot, and the program
/// should use it before all other replies have arrived; otherwise two processes that exchange whole windows wait for
/// each other.
const REPLIES_MOST: u64 = 8;
/// Every fourth reply ends the visit if the other process is far. A divisor of the number above, so that most replies
/// need one check.
const REPLIES_MOST_FAR: u64 = 4;

/// The peer broke the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

/// Why a record needs more than being dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// The peer broke the protocol.
    Violation,
    /// A one-way message was refused and its return waits for room. The record must be held until then.
    Unreturned(Reason),
    /// The record was taken and is the last one of this visit: the client [wants no more](State::end_visit), or enough
    /// replies were taken.
    Enough,
}

impl From<Violation> for Trouble {
    fn from(_: Violation) -> Trouble {
        Trouble::Violation
    }
}

/// What became of a message that was not simply delivered.
enum Outcome {
    /// Queued at the endpoint.
    Parked,
    /// Sent back.
    Refused,
    /// It has to be sent back when there is room.
    Unreturned(Reason),
}

impl<T: Tx> State<T> {
    /// Takes one record of a session.
    #[inline(always)]
    pub(crate) fn receive<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        record: Record<'_>,
        sink: &mut S,
    ) -> Result<(), Trouble> {
        let head = record.head;
        if head.is(Kind::Request) {
            Ok(self.receive_request(id, record, sink)?)
        } else if head.is(Kind::Reply) {
            self.receive_reply(id, record, sink)
        } else if head.is(Kind::Send) {
            self.receive_send(id, record, sink)
        } else {
            let Record { head, args, payload } = record;
            self.receive_other(id, head, args, payload, sink)
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_other<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        head: HeadWords,
        args: &[u32],
        payload: &[u8],
        sink: &mut S,
    ) -> Result<(), Trouble> {
        match head.kind() {
            Kind::Unreliable => self.receive_unreliable(id, Record { head, args, payload }, sink),
            Kind::Piece | Kind::Long | Kind::LongReply | Kind::Get | Kind::Taken => {
                Ok(self.receive_long(id, Record { head, args, payload }, sink)?)
            }
            _ => Ok(self.receive_control(id.index, head, args, payload)?),
        }
    }

    /// Takes an unreliable message. If its endpoint does not admit it or has no room, it is dropped.
    pub(crate) fn receive_unreliable<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        record: Record<'_>,
        sink: &mut S,
    ) -> Result<(), Trouble> {
        self.end_run()?;
        // Its flow may not be open yet, because the open travels separately.
        let flow = self.session(*id).and_then(|s| s.flows_in.get(usize::from(record.head.flow())));
        // A late message may belong to an earlier flow with the same number.
        let flow = flow.filter(|f| f.is_open && !f.is_closing && f.generation == record.head.slot());
        let (true, Some(flow)) = (record.head.is(Kind::Unreliable), flow) else {
            self.counters.unreliable_dropped += 1;
            return Ok(());
        };
        let message = Delivery::new(flow.destination, id, record, false);
        if self.take_unreliable(&message, sink).is_err() {
            self.counters.unreliable_dropped += 1;
        }
        match std::mem::take(&mut self.has_enough) {
            true => Err(Trouble::Enough),
            false => Ok(()),
        }
    }

    fn take_unreliable<S: Sink<T>>(&mut self, message: &Delivery<'_>, sink: &mut S) -> Result<(), Reason> {
        self.admit(message)?;
        if self.endpoint(message.endpoint).is_ok_and(|endpoint| endpoint.holds()) {
            return self.park(message);
        }
        self.counters.delivered += 1;
        self.events.mute(message.endpoint, 1);
        let taken = sink.deliver(self, message);
        self.counters.delivered -= u64::from(taken.is_err());
        taken
    }

    #[inline(always)]
    fn receive_request<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        record: Record<'_>,
        sink: &mut S,
    ) -> Result<(), Violation> {
        // So that the credit of earlier messages can ride on its reply.
        self.end_run()?;
        let head = record.head;
        let admission = self.admission;
        let s = self.live(id.index).ok_or(Violation)?;
        let flow = s.flows_in.get_mut(usize::from(head.flow())).ok_or(Violation)?;
        if !flow.under_way.take_slot(head.slot()) {
            return Err(Violation);
        }
        let message = Delivery::new(flow.destination, id, record, true);
        let is_plain = flow.admitted == admission && s.backlog_bytes <= s.limits.backlog_bytes;
        if is_plain || self.becomes_plain(message.endpoint, id.index, head) {
            self.counters.requests_delivered += 1;
            if let Err(reason) = sink.deliver(self, &message) {
                self.refuse_request(&message, reason, sink);
            }
        } else {
            self.hold_or_refuse(&message, sink);
        }
        if message.is_open.get() {
            self.end_request(message.session.index, message.head.flow(), message.head.slot());
        }
        Ok(())
    }

    #[inline(always)]
    fn receive_send<S: Sink<T>>(&mut self, id: &SessionId, record: Record<'_>, sink: &mut S) -> Result<(), Trouble> {
        let head = record.head;
        let run = &self.run;
        if run.flow != head.flow() || run.session != id.index || run.admission != self.admission {
            self.begin_run(id, head)?;
        }
        let message = Delivery::new(self.run.endpoint, id, record, false);
        if self.run.admission == 0 {
            return self.receive_unplain(&message, sink);
        }
        self.counters.delivered += 1;
        let (lines, asked) = (head.lines(), head.slot() & ASK_STORED != 0);
        match sink.deliver(self, &message) {
            Ok(()) => self.run.count(lines, asked),
            Err(reason) => self.refuse_send(&message, reason, sink)?,
        }
        // Rare, so it is not stored for each message.
        if self.has_enough {
            self.has_enough = false;
            return Err(Trouble::Enough);
        }
        Ok(())
    }

    /// Begins a run: a one-way message of another flow than the last one, or the first after the state has changed.
    #[inline(never)]
    fn begin_run(&mut self, id: &SessionId, head: HeadWords) -> Result<(), Violation> {
        self.end_run()?;
        let s = self.live(id.index).ok_or(Violation)?;
        let flow = s.flows_in.get(usize::from(head.flow())).ok_or(Violation)?;
        let endpoint = flow.destination;
        let is_plain = flow.admitted == self.admission || self.becomes_plain(endpoint, id.index, head);
        let admission = if is_plain { self.admission } else { 0 };
        self.run = Run { session: id.index, flow: head.flow(), endpoint, admission, ..Run::default() };
        Ok(())
    }

    /// Books the messages of a run on their flow. A run is at most one visit to a session, so a peer that overdraws its
    /// credit does not get far.
    #[inline(always)]
    pub(crate) fn end_run(&mut self) -> Result<(), Violation> {
        if self.run.messages > 0 {
            return self.note_run();
        }
        Ok(())
    }

    #[inline(never)]
    fn note_run(&mut self) -> Result<(), Violation> {
        let Run { session, flow, endpoint, messages, lines, asked, .. } = self.run;
        self.events.mute(endpoint, messages);
        (self.run.messages, self.run.lines, self.run.asked) = (0, 0, false);
        // The session was lost meanwhile, so there is nobody to tell.
        let Some(s) = self.live(session) else { return Ok(()) };
        let state = s.flows_in.get_mut(usize::from(flow)).ok_or(Violation)?;
        if !state.due.on_arrived(messages, lines, Grant::V1) {
            return Err(Violation);
        }
        state.due.on_stored(messages, asked);
        state.due.on_consumed(messages, lines);
        if state.due.is_urgent(Grant::V1) {
            self.mark_dirty(session, flow);
        }
        Ok(())
    }

    /// Delivers, queues or refuses a long request.
    pub(crate) fn deliver_request<S: Sink<T>>(&mut self, message: &Delivery<'_>, head: HeadWords, sink: &mut S) {
        if self.becomes_plain(message.endpoint, message.session.index, head) {
            self.counters.requests_delivered += 1;
            if let Err(reason) = sink.deliver(self, message) {
                self.refuse_request(message, reason, sink);
            }
        } else {
            self.hold_or_refuse(message, sink);
        }
    }

    /// Delivers or queues a long reply.
    ///
    /// # Errors
    /// If it is refused: the caller sends it back.
    pub(crate) fn deliver_reply<S: Sink<T>>(
        &mut self,
        message: &Delivery<'_>,
        head: HeadWords,
        sink: &mut S,
    ) -> Result<(), Reason> {
        if !self.becomes_plain(message.endpoint, message.session.index, head) {
            return self.hold(message, sink);
        }
        self.counters.replies_delivered += 1;
        let taken = sink.deliver(self, message);
        if taken.is_err() && self.is_away(message.endpoint) {
            self.counters.replies_delivered -= 1;
            return self.hold(message, sink);
        }
        taken
    }

    /// Whether a request that no client sees is admitted: by its endpoint, or by the segment that a stub shares.
    pub(crate) fn admit_here(&self, message: &Delivery<'_>) -> Result<(), Reason> {
        match self.is_away(message.endpoint) {
            true => self.check_backlog(message),
            false => self.admit(message),
        }
    }

    /// A one-way message that is not simply delivered to the sink.
    #[cold]
    #[inline(never)]
    fn receive_unplain<S: Sink<T>>(&mut self, message: &Delivery<'_>, sink: &mut S) -> Result<(), Trouble> {
        let head = message.head;
        self.note_arrival(message)?;
        match self.hold_or_refuse(message, sink) {
            Outcome::Parked => {
                let state = self.flow_in(message.session.index, head.flow())?;
                state.due.on_stored(1, head.slot() & ASK_STORED != 0);
                if state.due.is_urgent(Grant::V1) {
                    self.mark_dirty(message.session.index, head.flow());
                }
                Ok(())
            }
            Outcome::Refused => Ok(()),
            Outcome::Unreturned(reason) => Err(self.unreturned(message, reason)),
        }
    }

    /// The sink refuses a one-way message. Its return gives the credit back.
    #[cold]
    #[inline(never)]
    fn refuse_send<S: Sink<T>>(&mut self, message: &Delivery<'_>, reason: Reason, sink: &mut S) -> Result<(), Trouble> {
        // The sender identifies the returned message by the number of those stored before it.
        self.end_run()?;
        if self.is_away(message.endpoint) {
            self.counters.delivered -= 1;
            return self.receive_unplain(message, sink);
        }
        self.note_arrival(message)?;
        match self.send_back(message, reason) {
            true => Ok(()),
            false => Err(self.unreturned(message, reason)),
        }
    }

    /// The sink refuses a request or a reply.
    #[cold]
    #[inline(never)]
    fn refuse_request<S: Sink<T>>(&mut self, message: &Delivery<'_>, reason: Reason, sink: &mut S) {
        if !self.is_away(message.endpoint) {
            _ = self.send_back(message, reason);
            return;
        }
        match message.kind() {
            MessageKind::Reply => self.counters.replies_delivered -= 1,
            _ => self.counters.requests_delivered -= 1,
        }
        self.hold_or_refuse(message, sink);
    }

    /// Notes a one-way message that is in no run.
    fn note_arrival(&mut self, message: &Delivery<'_>) -> Result<(), Violation> {
        let state = self.flow_in(message.session.index, message.head.flow())?;
        match state.due.on_arrived(1, message.head.lines(), Grant::V1) {
            true => Ok(()),
            false => Err(Violation),
        }
    }

    /// The return of a one-way message waits for room. A peer that does not read its returned messages is cut off.
    fn unreturned(&mut self, message: &Delivery<'_>, reason: Reason) -> Trouble {
        match self.live(message.session.index) {
            Some(s) if s.backlog_bytes > 2 * s.limits.backlog_bytes => Trouble::Violation,
            _ => Trouble::Unreturned(reason),
        }
    }

    #[inline(always)]
    fn receive_reply<S: Sink<T>>(&mut self, id: &SessionId, record: Record<'_>, sink: &mut S) -> Result<(), Trouble> {
        let head = record.head;
        let admission = self.admission;
        let s = self.live(id.index).ok_or(Violation)?;
        let out = s.flows_out.get_mut(usize::from(head.flow())).ok_or(Violation)?;
        if !out.window.put(head.slot()) {
            return Err(Trouble::Violation);
        }
        let message = Delivery::new(out.source, id, record, false);
        let is_plain = out.admitted == admission;
        if out.asked != 0 || out.wants_room || head.has_credit() {
            if out.phase != Phase::Open {
                return self.receive_last_reply(id, &message, sink);
            }
            self.after_reply(id.index, head)?;
        }
        if !is_plain && !self.becomes_plain(message.endpoint, id.index, head) {
            self.hold_or_refuse(&message, sink);
            return Ok(());
        }
        self.counters.replies_delivered += 1;
        if let Err(reason) = sink.deliver(self, &message) {
            self.refuse_request(&message, reason, sink);
        }
        match self.ends_visit(id) {
            true => Err(Trouble::Enough),
            false => Ok(()),
        }
    }

    /// A reply on a flow that is draining. The flow closes only after the reply was delivered, because the client may
    /// refuse it.
    #[cold]
    #[inline(never)]
    fn receive_last_reply<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        message: &Delivery<'_>,
        sink: &mut S,
    ) -> Result<(), Trouble> {
        let (flow, endpoint) = (message.head.flow(), message.endpoint);
        self.count_held_reply(*id, flow, true);
        self.after_reply(id.index, message.head)?;
        match self.becomes_plain(endpoint, id.index, message.head) {
            true => {
                self.counters.replies_delivered += 1;
                if let Err(reason) = sink.deliver(self, message) {
                    self.refuse_request(message, reason, sink);
                }
            }
            false => _ = self.hold_or_refuse(message, sink),
        }
        self.count_held_reply(*id, flow, false);
        Ok(())
    }

    /// Whether the last delivered reply ends its visit.
    #[inline(always)]
    fn ends_visit(&self, id: &SessionId) -> bool {
        let replies = self.counters.replies_delivered;
        replies % REPLIES_MOST_FAR == 0
            && (replies % REPLIES_MOST == 0 || self.session(*id).is_some_and(|s| s.tx.is_far()))
    }

    /// Whether a message can be delivered at once: admitted, and not to be queued. If so, later messages of its flow
    /// need no check until something changes.
    #[cold]
    #[inline(never)]
    pub(crate) fn becomes_plain(&mut self, endpoint: Endpoint, session: u32, head: HeadWords) -> bool {
        let admission = self.admission;
        let State { endpoints, sessions, events, .. } = self;
        let Some(state) = endpoints.get(endpoint) else { return false };
        let place = sessions.get_mut(session as usize);
        let Some(s) = place.and_then(|p| p.session.as_mut()) else { return false };
        let flow = usize::from(head.flow());
        let admitted = if head.is(Kind::Reply) {
            s.flows_out.get_mut(flow).map(|out| &mut out.admitted)
        } else {
            let admits =
                |f: &&mut FlowIn| f.stopped.is_none() && !f.is_closing && state.admit(s.peer.uid, f.key).is_ok();
            s.flows_in.get_mut(flow).filter(admits).map(|f| &mut f.admitted)
        };
        let Some(admitted) = admitted.filter(|_| !state.holds()) else { return false };
        if head.is(Kind::Request) && s.replies_returned > 0 && events.is_full() {
            return false;
        }
        if events.mask(endpoint).not_empty {
            *admitted = admission;
        } else if !head.is(Kind::Send) {
            // Not marked as admitted, so that the next one is counted here too. Runs count one-way messages.
            events.mute(endpoint, 1);
        }
        !head.is(Kind::Request) || s.backlog_bytes <= s.limits.backlog_bytes
    }

    /// Handles what a reply carries besides itself: a completion and credit.
    #[inline(never)]
    fn after_reply(&mut self, session: u32, head: HeadWords) -> Result<(), Violation> {
        let out = self.flow_out(session, head.flow())?;
        let (source, completion) = (out.source, out.take_completion(head.slot())?);
        if let Some(completion) = completion {
            self.complete(source, completion);
        }
        let Credit { messages, lines } = head.credit();
        self.take_credit(session, head.flow(), messages.into(), lines.into(), messages.into())
    }

    /// Handles messages that are not simply delivered: they are refused, queued at their endpoint, or forwarded.
    #[cold]
    #[inline(never)]
    fn hold_or_refuse<S: Sink<T>>(&mut self, message: &Delivery<'_>, sink: &mut S) -> Outcome {
        match self.hold(message, sink) {
            Ok(()) => Outcome::Parked,
            Err(reason) if self.send_back(message, reason) => Outcome::Refused,
            Err(reason) => Outcome::Unreturned(reason),
        }
    }

    /// Queues a message at its endpoint, or forwards it.
    pub(crate) fn hold<S: Sink<T>>(&mut self, message: &Delivery<'_>, sink: &mut S) -> Result<(), Reason> {
        match self.is_away(message.endpoint) {
            true => self.hand_on(message, sink),
            false => self.admit(message).and_then(|()| self.park(message)),
        }
    }

    /// Returns false if the return waits for room.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_back(&mut self, message: &Delivery<'_>, reason: Reason) -> bool {
        // A client that took the token will answer the request, even if it refuses the message.
        if message.kind() == MessageKind::Request && !message.is_open.replace(false) {
            return true;
        }
        self.bounce(message, reason)
    }

    /// Whether the message's endpoint admits it, or why not.
    fn admit(&self, message: &Delivery<'_>) -> Result<(), Reason> {
        let endpoint = self.endpoint(message.endpoint).map_err(|_| Reason::NoSuchEndpoint);
        if message.kind() == MessageKind::Reply {
            return endpoint.map(|_| ());
        }
        let s = self.session(*message.session).ok_or(Reason::PeerLost)?;
        let state = s.flows_in.get(usize::from(message.head.flow())).ok_or(Reason::PeerLost)?;
        endpoint?.admit(s.peer.uid, state.key)?;
        state.stopped.map_or(Ok(()), Err)?;
        self.check_backlog(message)
    }

    /// Whether a request may be answered: not if its sender leaves too many answers unread, nor if the sender returns
    /// replies and the program has to take events first.
    pub(crate) fn check_backlog(&self, message: &Delivery<'_>) -> Result<(), Reason> {
        let s = self.session(*message.session).ok_or(Reason::PeerLost)?;
        let is_too_much = s.backlog_bytes > s.limits.backlog_bytes || (s.replies_returned > 0 && self.events.is_full());
        match is_too_much && message.kind() == MessageKind::Request {
            true => Err(Reason::QueueFull),
            false => Ok(()),
        }
    }

    /// Queues a message at its endpoint.
    fn park(&mut self, message: &Delivery<'_>) -> Result<(), Reason> {
        let bytes = Parked::bytes(message.args.len(), message.payload.len());
        self.check_room(*message.session, bytes)?;
        self.count_parked(*message.session, bytes);
        let parked = Parked {
            head: message.head,
            session: *message.session,
            args: message.args.to_vec(),
            payload: message.payload.to_vec(),
            placed: self.placed,
        };
        // Queued counts as taken: a request stays open until it is served.
        message.is_open.set(false);
        self.counters.parked += 1;
        if message.kind() == MessageKind::Reply {
            self.count_held_reply(*message.session, message.head.flow(), true);
        }
        if message.head.is(Kind::Unreliable) {
            if let Ok(flow) = self.flow_in(message.session.index, message.head.flow()) {
                flow.held = flow.held.saturating_add(1);
            }
        }
        self.events.mute(message.endpoint, 1);
        if let Ok(endpoint) = self.endpoint_mut(message.endpoint) {
            endpoint.parked.push_back(parked);
        }
        Ok(())
    }

    /// Delivers what waits at endpoints that are served again. Returns the number of messages.
    pub(crate) fn unpark<S: Sink<T>>(&mut self, sink: &mut S, budget: u32) -> u32 {
        let mut work = 0;
        while let Some(&endpoint) = self.unparking.last() {
            let next = match self.endpoints.get_mut(endpoint) {
                Some(state) if state.served || state.is_away => state.parked.pop_front(),
                _ => None,
            };
            let Some(parked) = next else {
                self.unparking.pop();
                continue;
            };
            if work == budget {
                if let Some(state) = self.endpoints.get_mut(endpoint) {
                    state.parked.push_front(parked);
                }
                // Begin with another endpoint next time, so that a full budget starves none.
                self.unparking.rotate_right(1);
                break;
            }
            work += 1;
            match self.is_away(endpoint) {
                true => self.hand_on_parked(endpoint, parked, sink),
                false => self.serve_parked(endpoint, parked, sink),
            }
        }
        work
    }

    pub(crate) fn serve_parked<S: Sink<T>>(&mut self, endpoint: Endpoint, parked: Parked, sink: &mut S) {
        self.note_unparked(&parked);
        let message = parked.message(endpoint);
        match message.kind() {
            MessageKind::Request => self.counters.requests_delivered += 1,
            MessageKind::Reply => self.counters.replies_delivered += 1,
            MessageKind::OneWay => self.counters.delivered += 1,
        }
        self.events.mute(endpoint, 1);
        self.placed = parked.placed;
        let taken = sink.deliver(self, &message);
        self.placed = None;
        if taken.is_err() && self.is_away(endpoint) {
            self.count_parked(parked.session, Parked::bytes(parked.args.len(), parked.payload.len()));
            return self.hand_on_parked(endpoint, parked, sink);
        }
        match (taken, message.kind()) {
            // It was stored, so it counts as delivered whatever the sink returns.
            (_, MessageKind::OneWay) => self.settle_parked(&parked),
            (Err(reason), MessageKind::Reply) if Self::is_guest(parked.session) => _ = self.bounce(&message, reason),
            (_, MessageKind::Reply) => {}
            (Err(reason), MessageKind::Request) => _ = self.send_back(&message, reason),
            (Ok(()), MessageKind::Request) => {
                if let Some(token) = message.take_reply() {
                    self.end(token);
                }
            }
        }
        self.guest_is_taken(parked.session);
        self.note_reply_done(&parked);
    }

    /// A queued reply has left the queue, whatever became of it.
    pub(crate) fn note_reply_done(&mut self, parked: &Parked) {
        if parked.head.is(Kind::Reply) {
            self.count_held_reply(parked.session, parked.head.flow(), false);
        }
    }

    /// Whether a session's peer may have `bytes` more queued here.
    pub(crate) fn check_room(&self, session: SessionId, bytes: usize) -> Result<(), Reason> {
        let s = self.session(session).ok_or(Reason::PeerLost)?;
        let (of_session, total) = (s.parked_bytes.saturating_add(bytes), self.parked_bytes.saturating_add(bytes));
        match of_session > s.limits.parked_bytes || total > self.settings.parked_bytes_most {
            true => Err(Reason::QueueFull),
            false => Ok(()),
        }
    }

    /// Counts `bytes` more that are queued here.
    pub(crate) fn count_parked(&mut self, session: SessionId, bytes: usize) {
        self.parked_bytes = self.parked_bytes.saturating_add(bytes);
        if let Some(s) = self.session_mut(session) {
            s.parked_bytes = s.parked_bytes.saturating_add(bytes);
        }
    }

    /// Counts `bytes` that are no longer queued.
    pub(crate) fn uncount_parked(&mut self, session: SessionId, bytes: usize) {
        self.parked_bytes = self.parked_bytes.saturating_sub(bytes);
        if let Some(s) = self.session_mut(session) {
            s.parked_bytes = s.parked_bytes.saturating_sub(bytes);
        }
    }

    /// A message has left its endpoint's queue.
    pub(crate) fn note_unparked(&mut self, parked: &Parked) {
        self.uncount_parked(parked.session, Parked::bytes(parked.args.len(), parked.payload.len()));
    }

    /// Returns the credit of a one-way message that has left the queue. An unreliable one has no credit, but its flow
    /// may close now.
    pub(crate) fn settle_parked(&mut self, parked: &Parked) {
        let Some(s) = self.session_mut(parked.session) else { return };
        let Some(state) = s.flows_in.get_mut(usize::from(parked.head.flow())) else { return };
        match parked.head.kind() {
            Kind::Send => state.due.on_consumed(1, parked.head.lines()),
            Kind::Unreliable => state.held = state.held.saturating_sub(1),
            _ => return,
        }
        if state.is_closing {
            self.may_be_closed(parked.session, parked.head.flow());
        } else if state.due.is_urgent(Grant::V1) {
            self.mark_dirty(parked.session.index, parked.head.flow());
        }
    }

    // ---- records between the two sessions

    #[cold]
    #[inline(never)]
    fn receive_control(
        &mut self,
        session: u32,
        head: HeadWords,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), Violation> {
        // Note earlier messages before anything is reported.
        self.end_run()?;
        let record = &Record { head, args, payload };
        let (flow, slot) = (record.head.flow(), record.head.slot());
        match record.head.kind() {
            Kind::Open => self.receive_open(session, flow, record),
            Kind::Ended => match *record.args {
                [mask] => {
                    self.receive_ended(session, flow, mask)?;
                    if slot & MOVED != 0 {
                        self.call_again(session, flow);
                    }
                    Ok(())
                }
                _ => Err(Violation),
            },
            Kind::Credit => match *record.args {
                [messages, lines, stored] => self.take_credit(session, flow, messages, lines, stored),
                [] if slot & GO_ON != 0 => self.receive_go_on(session, flow),
                [] => self.receive_ask(session, flow),
                _ => Err(Violation),
            },
            Kind::Return => {
                let reason = Reason::from_code(record.head.op()).ok_or(Violation)?;
                match slot & 0xff00 {
                    RETURNED_SEND => self.receive_returned_send(session, record, reason),
                    RETURNED_REPLY => self.receive_returned_reply(session, record, reason),
                    RETURNED_LONG => self.receive_returned_long(session, flow, slot & !RETURNED_LONG, reason),
                    _ => self.receive_returned_request(session, flow, slot, reason),
                }
            }
            Kind::Close => self.on_close(session, flow).then_some(()).ok_or(Violation),
            Kind::Closed => self.on_closed(session, flow).then_some(()).ok_or(Violation),
            Kind::Pad | Kind::Switch | Kind::Send | Kind::Unreliable | Kind::Request | Kind::Reply => Err(Violation),
            Kind::Piece | Kind::Long | Kind::LongReply | Kind::Get | Kind::Taken => Err(Violation),
        }
    }

    fn receive_open(&mut self, session: u32, flow: u16, record: &Record<'_>) -> Result<(), Violation> {
        let open = Open::from_record(record.args, record.payload).ok_or(Violation)?;
        let marks = record.head.op();
        if marks & !ORDERED != 0 {
            return Err(Violation);
        }
        // The key is checked with every message, because it may change.
        let destination = self.endpoints.find_opened(&open).unwrap_or(Endpoint::NONE);
        let s = self.live(session).ok_or(Violation)?;
        let source = s.name_of(open.source, open.uid);
        let opened = FlowIn {
            generation: record.head.slot(),
            ..FlowIn::new(source, destination, open.key, marks & ORDERED != 0)
        };
        // Flows are numbered in the order they are opened, so a peer cannot make us hold more than it opens.
        let next = s.flows_in.len();
        match s.flows_in.get_mut(usize::from(flow)) {
            Some(closed) if !closed.is_open && !closed.is_closing => {
                *closed = FlowIn { is_dirty: closed.is_dirty, ..opened };
            }
            None if usize::from(flow) == next && next < s.limits.flows => s.flows_in.push(opened),
            _ => return Err(Violation),
        }
        Ok(())
    }

    fn receive_ended(&mut self, session: u32, flow: u16, mask: u32) -> Result<(), Violation> {
        let out = self.flow_out(session, flow)?;
        if mask & !out.window.taken() != 0 {
            return Err(Violation);
        }
        let mut completions = [None; WINDOW];
        for (slot, completion) in completions.iter_mut().enumerate().filter(|(slot, _)| mask & (1 << slot) != 0) {
            out.window.put(slot as u16);
            *completion = out.take_completion(slot as u16)?;
        }
        let source = out.source;
        self.counters.ended += u64::from(mask.count_ones());
        completions.into_iter().flatten().for_each(|completion| self.complete(source, completion));
        self.tell_room(session, flow)
    }

    fn take_credit(
        &mut self,
        session: u32,
        flow: u16,
        messages: u32,
        lines: u32,
        stored: u32,
    ) -> Result<(), Violation> {
        let out = self.flow_out(session, flow)?;
        if !out.credit.refund(messages, lines) || !out.on_stored(stored) {
            return Err(Violation);
        }
        let source = self.flow_out(session, flow)?.source;
        while let Some(completion) = self.flow_out(session, flow)?.due_completion() {
            self.complete(source, completion);
        }
        self.tell_room(session, flow)
    }

    fn receive_ask(&mut self, session: u32, flow: u16) -> Result<(), Violation> {
        let state = self.flow_in(session, flow)?;
        state.due.ask();
        self.mark_dirty(session, flow);
        Ok(())
    }

    /// The sender of an ordered flow has got back all refused messages and starts again.
    fn receive_go_on(&mut self, session: u32, flow: u16) -> Result<(), Violation> {
        self.flow_in(session, flow)?.stopped = None;
        Ok(())
    }

    fn receive_returned_request(
        &mut self,
        session: u32,
        flow: u16,
        slot: u16,
        reason: Reason,
    ) -> Result<(), Violation> {
        let out = self.flow_out(session, flow)?;
        if !out.window.put(slot) {
            return Err(Violation);
        }
        let (source, destination) = (out.source, out.destination);
        if let Some(kept) = out.end_long(slot)? {
            self.stop(session, flow);
            self.return_long(source, Some(destination), MessageKind::Request, kept, reason, Certainty::NotDelivered);
            return self.tell_room(session, flow);
        }
        let mut kept = std::mem::take(out.slot(slot));
        self.stop(session, flow);
        self.return_request(source, destination, Some(&kept), reason, Certainty::NotDelivered);
        kept.completion = None;
        *self.flow_out(session, flow)?.slot(slot) = kept;
        self.tell_room(session, flow)
    }

    fn receive_returned_send(&mut self, session: u32, record: &Record<'_>, reason: Reason) -> Result<(), Violation> {
        let flow = record.head.flow();
        let out = self.flow_out(session, flow)?;
        // Messages stored before it were reported before it, so it is the next one.
        let is_this = out.completions.front().is_some_and(|&(number, _)| number == out.stored + 1);
        let completion = if is_this { out.completions.pop_front().map(|(_, completion)| completion) } else { None };
        if !out.credit.refund(1, record.head.lines()) || !out.on_stored(1) {
            return Err(Violation);
        }
        let returned = Returned {
            endpoint: out.source,
            destination: Some(out.destination),
            kind: MessageKind::OneWay,
            op: record.head.slot() as u8,
            args: record.args.to_vec(),
            payload: record.payload.to_vec(),
            reason,
            certainty: Certainty::NotDelivered,
            completion,
            long: None,
        };
        self.stop(session, flow);
        self.come_back(returned);
        self.tell_room(session, flow)
    }

    fn receive_returned_reply(&mut self, session: u32, record: &Record<'_>, reason: Reason) -> Result<(), Violation> {
        let endpoint = self.note_returned_reply(session, record.head.flow())?;
        let returned = Returned {
            endpoint,
            destination: None,
            kind: MessageKind::Reply,
            op: record.head.slot() as u8,
            args: record.args.to_vec(),
            payload: record.payload.to_vec(),
            reason,
            certainty: Certainty::NotDelivered,
            completion: None,
            long: None,
        };
        self.come_back(returned);
        Ok(())
    }

    /// Counts a reply that the peer sent back. Returns the endpoint that sent it.
    pub(crate) fn note_returned_reply(&mut self, session: u32, flow: u16) -> Result<Endpoint, Violation> {
        let replies_sent = self.counters.replies_sent;
        let endpoint = self.flow_in(session, flow)?.destination;
        let s = self.live(session).ok_or(Violation)?;
        s.replies_returned += 1;
        if s.replies_returned > replies_sent {
            return Err(Violation);
        }
        // From now on this peer's requests are refused while the program has to take events.
        let is_first = s.replies_returned == 1;
        self.admission += u64::from(is_first);
        Ok(endpoint)
    }

    // ---- small things

    pub(crate) fn flow_in(&mut self, session: u32, flow: u16) -> Result<&mut FlowIn, Violation> {
        let flow = self.live(session).and_then(|s| s.flows_in.get_mut(usize::from(flow)));
        flow.filter(|flow| flow.is_open && !flow.is_closing).ok_or(Violation)
    }

    pub(crate) fn flow_out(&mut self, session: u32, flow: u16) -> Result<&mut FlowOut, Violation> {
        let flow = self.live(session).and_then(|s| s.flows_out.get_mut(usize::from(flow)));
        flow.filter(|flow| flow.phase != Phase::Closed).ok_or(Violation)
    }

    pub(crate) fn tell_room(&mut self, session: u32, flow: u16) -> Result<(), Violation> {
        let out = self.flow_out(session, flow)?;
        if out.phase != Phase::Open {
            self.drain_flow(session, flow);
            return Ok(());
        }
        if out.is_stopped && out.wants_room {
            self.tell_stopped(session, flow);
            return Ok(());
        }
        if std::mem::take(&mut out.wants_room) {
            let event = Event::CanSend { endpoint: out.source, destination: out.destination };
            self.tell(event);
        }
        Ok(())
    }
}
