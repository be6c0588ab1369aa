//! What a bundle does with a record that arrived: the dispatch, and the ends of our own messages.

use crate::endpoint::{Endpoint, EndpointState, Parked, ParkedKind};
use crate::event::{Event, MessageKind, Returned};
use crate::session::{FlowIn, FlowOut, SessionId, BACKLOG_MOST, FLOWS_MOST};
use crate::state::{Delivery, ReplyToken, Sink, State};
use std::cell::Cell;
use weft_transport::Grant;
use weft_wire::path::{Record, Tx};
use weft_wire::record::{lines, ASK_STORED, RETURNED_REPLY, RETURNED_SEND, WINDOW};
use weft_wire::setup::Open;
use weft_wire::{Certainty, Credit, Head, Kind, Reason};

/// The peer wrote what no weft writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

/// How a message fared at its endpoint.
enum Outcome {
    /// Handed over.
    Consumed,
    /// Queued at the endpoint.
    Parked,
    /// Sent back.
    Refused,
}

impl<T: Tx> State<T> {
    /// Takes one record of a session.
    #[inline(always)]
    pub(crate) fn receive<S: Sink<T>>(
        &mut self,
        session: u32,
        record: &Record<'_>,
        sink: &mut S,
    ) -> Result<(), Violation> {
        match record.head.kind {
            Kind::Request => self.receive_request(session, record.head, record.args, record.payload, sink),
            Kind::Reply => self.receive_reply(session, record.head, record.args, record.payload, sink),
            Kind::Send => self.receive_send(session, record.head, record.args, record.payload, sink),
            _ => self.receive_control(session, record.head, record.args, record.payload),
        }
    }

    #[inline(always)]
    fn receive_request<S: Sink<T>>(
        &mut self,
        session: u32,
        head: Head,
        args: &[u32],
        payload: &[u8],
        sink: &mut S,
    ) -> Result<(), Violation> {
        let Head { op, flow, slot, .. } = head;
        let place = self.sessions.get_mut(session as usize).ok_or(Violation)?;
        let id = SessionId { index: session, life: place.life };
        let s = place.session.as_mut().ok_or(Violation)?;
        let state = s.flows_in.get_mut(usize::from(flow)).ok_or(Violation)?;
        if !state.under_way.take_slot(slot) {
            return Err(Violation);
        }
        let endpoint = Endpoint(state.destination);
        let is_plain = s.backlog_bytes <= BACKLOG_MOST && is_plain(&self.endpoints, state);
        let reply = Cell::new(Some(ReplyToken { session: id, flow, slot }));
        let kind = MessageKind::Request;
        let mut message = Delivery { endpoint, kind, op, args, payload, reply, session: id, flow, slot };
        if is_plain {
            self.counters.requests_delivered += 1;
            match sink.deliver(self, &mut message) {
                Ok(()) => {}
                Err(reason) => self.send_back(&mut message, reason),
            }
        } else {
            self.hold_or_refuse(&mut message);
        }
        if message.reply.take().is_some() {
            self.end_request(session, flow, slot);
        }
        Ok(())
    }

    #[inline(always)]
    fn receive_send<S: Sink<T>>(
        &mut self,
        session: u32,
        head: Head,
        args: &[u32],
        payload: &[u8],
        sink: &mut S,
    ) -> Result<(), Violation> {
        let Head { op, flow, slot, .. } = head;
        let need = head.lines();
        let place = self.sessions.get_mut(session as usize).ok_or(Violation)?;
        let id = SessionId { index: session, life: place.life };
        let s = place.session.as_mut().ok_or(Violation)?;
        let state = s.flows_in.get_mut(usize::from(flow)).ok_or(Violation)?;
        if !state.due.on_arrived(need, Grant::V1) {
            return Err(Violation);
        }
        let endpoint = Endpoint(state.destination);
        let is_plain = is_plain(&self.endpoints, state);
        let kind = MessageKind::OneWay;
        let mut message =
            Delivery { endpoint, kind, op, args, payload, reply: Cell::new(None), session: id, flow, slot };
        let outcome = if is_plain {
            self.counters.delivered += 1;
            match sink.deliver(self, &mut message) {
                Ok(()) => Outcome::Consumed,
                Err(reason) => {
                    self.send_back(&mut message, reason);
                    Outcome::Refused
                }
            }
        } else {
            self.hold_or_refuse(&mut message)
        };
        let Some(s) = self.session_mut(id) else { return Ok(()) };
        let state = &mut s.flows_in[usize::from(flow)];
        match outcome {
            Outcome::Consumed => {
                state.due.on_stored(slot & ASK_STORED != 0);
                state.due.on_consumed(need);
            }
            Outcome::Parked => state.due.on_stored(slot & ASK_STORED != 0),
            // The return gives the credit back.
            Outcome::Refused if s.backlog_bytes > 2 * BACKLOG_MOST => return Err(Violation),
            Outcome::Refused => return Ok(()),
        }
        if state.due.is_urgent(Grant::V1) {
            self.mark_dirty(session, flow);
        }
        Ok(())
    }

    #[inline(always)]
    fn receive_reply<S: Sink<T>>(
        &mut self,
        session: u32,
        head: Head,
        args: &[u32],
        payload: &[u8],
        sink: &mut S,
    ) -> Result<(), Violation> {
        let Head { op, flow, slot, credit, .. } = head;
        let place = self.sessions.get_mut(session as usize).ok_or(Violation)?;
        let id = SessionId { index: session, life: place.life };
        let s = place.session.as_mut().ok_or(Violation)?;
        let out = s.flows_out.get_mut(usize::from(flow)).ok_or(Violation)?;
        if !out.window.put(slot) {
            return Err(Violation);
        }
        let endpoint = Endpoint(out.source);
        let completion = out.slot(slot).completion.take();
        if completion.is_some() || out.wants_room || credit != Credit::default() {
            self.after_reply(session, flow, completion, credit)?;
        }
        let kind = MessageKind::Reply;
        let mut message =
            Delivery { endpoint, kind, op, args, payload, reply: Cell::new(None), session: id, flow, slot };
        let holds = self.endpoints.get(endpoint.index()).and_then(Option::as_ref).is_none_or(EndpointState::holds);
        if holds {
            self.hold_or_refuse(&mut message);
            return Ok(());
        }
        self.counters.replies_delivered += 1;
        if let Err(reason) = sink.deliver(self, &mut message) {
            self.send_back(&mut message, reason);
        }
        Ok(())
    }

    /// What a reply brings beside itself.
    #[inline(never)]
    fn after_reply(
        &mut self,
        session: u32,
        flow: u16,
        completion: Option<u64>,
        credit: Credit,
    ) -> Result<(), Violation> {
        self.events.extend(completion.map(Event::Completed));
        self.take_credit(session, flow, credit.messages.into(), credit.lines.into(), credit.messages.into())
    }

    /// Whatever is not plainly handed to the sink: messages that are refused or queued at their endpoint.
    #[cold]
    #[inline(never)]
    fn hold_or_refuse(&mut self, message: &mut Delivery<'_>) -> Outcome {
        match self.admit(message).and_then(|()| self.park(message)) {
            Ok(()) => Outcome::Parked,
            Err(reason) => {
                self.send_back(message, reason);
                Outcome::Refused
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn send_back(&mut self, message: &mut Delivery<'_>, reason: Reason) {
        // A client that took the token answers the request, whatever else it says.
        if message.kind == MessageKind::Request && message.reply.take().is_none() {
            return;
        }
        self.bounce(message, reason);
    }

    /// Whether the message's endpoint admits it, or why not.
    fn admit(&self, message: &Delivery<'_>) -> Result<(), Reason> {
        let endpoint = self.endpoint(message.endpoint).map_err(|_| Reason::NoSuchEndpoint);
        if message.kind == MessageKind::Reply {
            return endpoint.map(|_| ());
        }
        let s = self.session(message.session).ok_or(Reason::PeerLost)?;
        let state = s.flows_in.get(usize::from(message.flow)).ok_or(Reason::PeerLost)?;
        if !endpoint?.key.matches(state.key) {
            return Err(Reason::WrongKey);
        }
        if s.backlog_bytes > BACKLOG_MOST && message.kind == MessageKind::Request {
            return Err(Reason::QueueFull);
        }
        Ok(())
    }

    /// Queues a message at its endpoint.
    fn park(&mut self, message: &mut Delivery<'_>) -> Result<(), Reason> {
        let bytes = Parked::bytes(message.args.len(), message.payload.len());
        if self.parked_bytes.saturating_add(bytes) > self.settings.parked_bytes_most {
            return Err(Reason::QueueFull);
        }
        let kind = match message.kind {
            MessageKind::Request => ParkedKind::Request { slot: message.slot },
            MessageKind::Reply => ParkedKind::Reply,
            MessageKind::OneWay => ParkedKind::OneWay { lines: lines(message.args.len(), message.payload.len()) },
        };
        let parked = Parked {
            kind,
            session: message.session,
            flow: message.flow,
            op: message.op,
            args: message.args.to_vec(),
            payload: message.payload.to_vec(),
        };
        // Queued counts as taken: a request stays open until it is served.
        message.reply.set(None);
        self.parked_bytes += bytes;
        self.counters.parked += 1;
        if let Ok(endpoint) = self.endpoint_mut(message.endpoint) {
            endpoint.parked.push_back(parked);
        }
        Ok(())
    }

    /// Hands over what waits at endpoints that are served again. Returns how many messages.
    pub(crate) fn unpark<S: Sink<T>>(&mut self, sink: &mut S, budget: u32) -> u32 {
        let mut work = 0;
        while let Some(&endpoint) = self.unparking.last() {
            let next = match self.endpoint_mut(endpoint) {
                Ok(state) if state.served => state.parked.pop_front(),
                _ => None,
            };
            let Some(parked) = next else {
                self.unparking.pop();
                continue;
            };
            if work == budget {
                if let Ok(state) = self.endpoint_mut(endpoint) {
                    state.parked.push_front(parked);
                }
                // Begin with another one next time, so that a full budget starves nobody.
                self.unparking.rotate_right(1);
                break;
            }
            work += 1;
            self.serve_parked(endpoint, parked, sink);
        }
        work
    }

    fn serve_parked<S: Sink<T>>(&mut self, endpoint: Endpoint, parked: Parked, sink: &mut S) {
        self.parked_bytes = self.parked_bytes.saturating_sub(Parked::bytes(parked.args.len(), parked.payload.len()));
        let mut message = parked.message(endpoint);
        match message.kind {
            MessageKind::Request => self.counters.requests_delivered += 1,
            MessageKind::Reply => self.counters.replies_delivered += 1,
            MessageKind::OneWay => self.counters.delivered += 1,
        }
        let taken = sink.deliver(self, &mut message);
        match (taken, parked.kind) {
            // It was stored, so it counts as delivered whatever the sink says.
            (_, ParkedKind::OneWay { .. }) => self.settle_parked(&parked),
            (_, ParkedKind::Reply) => {}
            (Err(reason), ParkedKind::Request { .. }) => self.send_back(&mut message, reason),
            (Ok(()), ParkedKind::Request { .. }) => {
                if let Some(token) = message.reply.take() {
                    self.end(token);
                }
            }
        }
    }

    /// Gives the credit of a one-way message that was queued back, once it is out of the queue.
    pub(crate) fn settle_parked(&mut self, parked: &Parked) {
        let (ParkedKind::OneWay { lines }, Some(s)) = (parked.kind, self.session_mut(parked.session)) else {
            return;
        };
        let state = &mut s.flows_in[usize::from(parked.flow)];
        state.due.on_consumed(lines);
        if state.due.is_urgent(Grant::V1) {
            self.mark_dirty(parked.session.index, parked.flow);
        }
    }

    // ---- records between the two sessions

    #[cold]
    #[inline(never)]
    fn receive_control(&mut self, session: u32, head: Head, args: &[u32], payload: &[u8]) -> Result<(), Violation> {
        let Head { flow, slot, .. } = head;
        let record = &Record { head, args, payload };
        match head.kind {
            Kind::Open => self.receive_open(session, flow, record.args),
            Kind::Ended => match *record.args {
                [mask] => self.receive_ended(session, flow, mask),
                _ => Err(Violation),
            },
            Kind::Credit => match *record.args {
                [messages, lines, stored] => self.take_credit(session, flow, messages, lines, stored),
                [] => self.receive_ask(session, flow),
                _ => Err(Violation),
            },
            Kind::Return => {
                let reason = Reason::from_code(record.head.op).ok_or(Violation)?;
                match slot & 0xff00 {
                    RETURNED_SEND => self.receive_returned_send(session, record, reason),
                    RETURNED_REPLY => self.receive_returned_reply(session, record, reason),
                    _ => self.receive_returned_request(session, flow, slot, reason),
                }
            }
            Kind::Pad | Kind::Switch | Kind::Send | Kind::Request | Kind::Reply => Err(Violation),
        }
    }

    fn receive_open(&mut self, session: u32, flow: u16, args: &[u32]) -> Result<(), Violation> {
        let open = Open::from_args(args).ok_or(Violation)?;
        let found = self.endpoints.iter().position(|e| e.as_ref().is_some_and(|e| e.id == open.destination));
        // The key is checked with every message: it may change.
        let destination = found.map_or(u32::MAX, |index| index as u32);
        let s = self.sessions[session as usize].session.as_mut().ok_or(Violation)?;
        // Flows are numbered in the order they are opened, so a peer cannot make us hold more than it opens.
        if usize::from(flow) != s.flows_in.len() || s.flows_in.len() >= FLOWS_MOST {
            return Err(Violation);
        }
        let source = s.name_of(open.source);
        s.flows_in.push(FlowIn::new(source, destination, open.key));
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
            *completion = out.slot(slot as u16).completion.take();
        }
        self.counters.ended += u64::from(mask.count_ones());
        self.events.extend(completions.into_iter().flatten().map(Event::Completed));
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
        while let Some(completion) = self.flow_out(session, flow)?.due_completion() {
            self.events.push_back(Event::Completed(completion));
        }
        self.tell_room(session, flow)
    }

    fn receive_ask(&mut self, session: u32, flow: u16) -> Result<(), Violation> {
        let (_, state) = self.flow_in(session, flow)?;
        state.due.ask();
        self.mark_dirty(session, flow);
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
        let kept = std::mem::take(out.slot(slot));
        self.return_request(source, destination, Some(&kept), reason, Certainty::NotDelivered);
        *self.flow_out(session, flow)?.slot(slot) = kept;
        self.tell_room(session, flow)
    }

    fn receive_returned_send(&mut self, session: u32, record: &Record<'_>, reason: Reason) -> Result<(), Violation> {
        let flow = record.head.flow;
        let out = self.flow_out(session, flow)?;
        // What was stored before it has been told before it, so it is the next one.
        let is_this = out.completions.front().is_some_and(|&(number, _)| number == out.stored + 1);
        let completion = if is_this { out.completions.pop_front().map(|(_, completion)| completion) } else { None };
        if !out.credit.refund(1, record.head.lines()) || !out.on_stored(1) {
            return Err(Violation);
        }
        let returned = Returned {
            endpoint: Endpoint(out.source),
            destination: Some(out.destination),
            kind: MessageKind::OneWay,
            op: record.head.slot as u8,
            args: record.args.to_vec(),
            payload: record.payload.to_vec(),
            reason,
            certainty: Certainty::NotDelivered,
            completion,
        };
        self.counters.returned += 1;
        self.returns.push_back(returned);
        self.tell_room(session, flow)
    }

    fn receive_returned_reply(&mut self, session: u32, record: &Record<'_>, reason: Reason) -> Result<(), Violation> {
        let replies_sent = self.counters.replies_sent;
        let place = self.sessions.get_mut(session as usize).ok_or(Violation)?;
        let s = place.session.as_mut().ok_or(Violation)?;
        let state = s.flows_in.get(usize::from(record.head.flow)).ok_or(Violation)?;
        s.replies_returned += 1;
        if s.replies_returned > replies_sent {
            return Err(Violation);
        }
        let returned = Returned {
            endpoint: Endpoint(state.destination),
            destination: None,
            kind: MessageKind::Reply,
            op: record.head.slot as u8,
            args: record.args.to_vec(),
            payload: record.payload.to_vec(),
            reason,
            certainty: Certainty::NotDelivered,
            completion: None,
        };
        self.counters.returned += 1;
        self.returns.push_back(returned);
        Ok(())
    }

    // ---- small things

    #[inline(always)]
    fn flow_in(&mut self, session: u32, flow: u16) -> Result<(SessionId, &mut FlowIn), Violation> {
        let place = self.sessions.get_mut(session as usize).ok_or(Violation)?;
        let id = SessionId { index: session, life: place.life };
        let s = place.session.as_mut().ok_or(Violation)?;
        Ok((id, s.flows_in.get_mut(usize::from(flow)).ok_or(Violation)?))
    }

    fn flow_out(&mut self, session: u32, flow: u16) -> Result<&mut FlowOut, Violation> {
        let place = self.sessions.get_mut(session as usize).ok_or(Violation)?;
        let s = place.session.as_mut().ok_or(Violation)?;
        s.flows_out.get_mut(usize::from(flow)).ok_or(Violation)
    }

    fn tell_room(&mut self, session: u32, flow: u16) -> Result<(), Violation> {
        let out = self.flow_out(session, flow)?;
        if std::mem::take(&mut out.wants_room) {
            let event = Event::CanSend { endpoint: Endpoint(out.source), destination: out.destination };
            self.events.push_back(event);
        }
        Ok(())
    }
}

/// Whether messages of a flow can be handed over without further ado: admitted, and not to be queued.
#[inline(always)]
fn is_plain(endpoints: &[Option<EndpointState>], flow: &FlowIn) -> bool {
    let Some(Some(endpoint)) = endpoints.get(flow.destination as usize) else { return false };
    endpoint.key.matches(flow.key) && !endpoint.holds()
}
