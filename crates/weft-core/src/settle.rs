//! How messages end that are not simply delivered: loss of a session, and returns.

use crate::endpoint::{Endpoint, Route};
use crate::event::{Event, MessageKind, Returned};
use crate::long::What;
use crate::message::Delivery;
use crate::session::{head, FlowId, FlowIn, FlowOut, Pending, Phase, Session, SessionId};
use crate::state::{Run, State};
use std::collections::{BTreeMap, VecDeque};
use weft_wire::path::{Abandoned, Fate, Tx};
use weft_wire::record::{BEGUN, RETURNED_REPLY, RETURNED_SEND};
use weft_wire::{Certainty, Credit, Head, Kind, Reason};

impl<T: Tx> State<T> {
    /// Ends a session and every message in flight on it.
    pub(crate) fn lose(&mut self, id: SessionId, reason: Reason) {
        let Some(place) = self.sessions.get_mut(id.index as usize) else {
            return;
        };
        if place.life != id.life {
            return;
        }
        let Some(mut s) = place.session.take() else { return };
        // The next session in this place has other flows.
        self.run = Run::default();
        self.let_go.retain(|&index| index != id.index);
        place.life = place.life.wrapping_add(1);
        self.placed = None;
        self.leaving.retain(|(session, ..)| *session != id);
        // The next session in this place has not broken the protocol.
        self.broken.retain(|&index| index != id.index);
        // A session that was refused with its first flow does not count.
        let is_refusal = matches!(
            reason,
            Reason::WrongKey | Reason::NoSuchEndpoint | Reason::Closed | Reason::NoRoom | Reason::ForeignUser
        );
        self.counters.sessions_lost += u64::from(!is_refusal);
        self.closing.retain(|(session, _)| *session != id);
        self.draining.retain(|(session, _)| *session != id);
        let untouched = self.return_abandoned(&mut s, reason);
        self.refuse_calls(std::mem::take(&mut s.calls), reason);
        let is_in_use = |out: &FlowOut| !matches!(out.phase, Phase::Closed | Phase::Told);
        for (flow, out) in s.flows_out.iter_mut().enumerate().filter(|(_, out)| is_in_use(out)) {
            self.return_requests(out, reason, |slot| untouched.requests.contains(&(flow as u16, slot)));
            let (endpoint, destination) = (out.source, out.destination);
            let entry = self.endpoint_mut(endpoint).ok().and_then(|e| e.translation_mut(destination));
            if let Some(entry) = entry.filter(|e| e.route.flow().is_some_and(|(session, _)| session == id.index)) {
                entry.route = Route::Refused(reason);
                self.tell(Event::PeerLost { endpoint, destination, reason });
                self.tell(Event::CanSend { endpoint, destination });
            }
        }
        for (flow, state) in (0u16..).zip(&mut s.flows_in) {
            self.return_long_replies(state, reason, |slot| untouched.replies.contains(&(flow, slot)));
        }
        for (flow, state) in (0u16..).zip(&s.flows_in).filter(|(_, state)| state.is_open) {
            self.events.flow_closed(state.destination, FlowId { session: id, number: flow });
            self.has_chores = true;
        }
    }

    /// Returns the messages that the dead peer left in the path and those that waited for it. Returns which requests
    /// and long replies it certainly never saw.
    fn return_abandoned(&mut self, s: &mut Session<T>, reason: Reason) -> Untouched {
        let mut untouched = Untouched::default();
        let mut left = vec![0u64; s.flows_out.len()];
        let mut abandoned = s.tx.abandoned();
        drop_closed(&mut abandoned, &s.backlog);
        for record in abandoned.iter().filter(|r| r.head.kind == Kind::Send) {
            if let Some(count) = left.get_mut(usize::from(record.head.flow)) {
                *count += 1;
            }
        }
        // One-way messages are consumed in order, so those left are the last ones, and all before them were stored.
        for (out, left) in s.flows_out.iter_mut().zip(&left) {
            out.stored = out.stored.max(out.sent.saturating_sub(*left));
            while let Some(completion) = out.due_completion() {
                self.complete(out.source, completion);
            }
        }
        for record in abandoned {
            let head = record.head;
            match head.kind {
                Kind::Request | Kind::Long | Kind::Get if record.fate == Fate::Untouched => {
                    untouched.requests.push((head.flow, head.slot & !BEGUN));
                }
                Kind::LongReply if record.fate == Fate::Untouched => {
                    untouched.replies.push((head.flow, head.slot & !BEGUN));
                }
                Kind::Send => {
                    let Some(out) = s.flows_out.get_mut(usize::from(head.flow)) else {
                        continue;
                    };
                    let left = &mut left[usize::from(head.flow)];
                    let number = out.sent.saturating_sub(*left) + 1;
                    *left = left.saturating_sub(1);
                    if number <= out.stored {
                        continue; // already reported as stored, or already returned
                    }
                    out.stored = number;
                    let completion = out.due_completion();
                    let (certainty, reason) = match record.fate {
                        Fate::Untouched => (Certainty::NotDelivered, reason),
                        Fate::InHand => (Certainty::Unknown, reason),
                        Fate::Refused(code) => (Certainty::NotDelivered, Reason::from_code(code).unwrap_or(reason)),
                        Fate::Done => {
                            if let Some(completion) = completion {
                                self.complete(out.source, completion);
                            }
                            continue;
                        }
                    };
                    self.come_back(Returned {
                        endpoint: out.source,
                        destination: Some(out.destination),
                        kind: MessageKind::OneWay,
                        op: head.op,
                        args: record.args,
                        payload: record.payload,
                        reason,
                        certainty,
                        completion,
                        long: None,
                    });
                }
                // A reply in hand may already have come back, and nobody waits for it any more.
                Kind::Reply if record.fate == Fate::Untouched => {
                    self.return_reply(s, head, record.args, record.payload, reason)
                }
                _ => {}
            }
        }
        for pending in std::mem::take(&mut s.backlog) {
            if pending.head.kind == Kind::Reply {
                self.return_reply(s, pending.head, pending.args, pending.payload, reason);
            }
        }
        untouched
    }

    fn return_reply(&mut self, s: &Session<T>, head: Head, args: Vec<u32>, payload: Vec<u8>, reason: Reason) {
        let Some(flow) = s.flows_in.get(usize::from(head.flow)) else {
            return;
        };
        self.come_back(Returned {
            endpoint: flow.destination,
            destination: None,
            kind: MessageKind::Reply,
            op: head.op,
            args,
            payload,
            reason,
            certainty: Certainty::NotDelivered,
            completion: None,
            long: None,
        });
    }

    fn return_requests(&mut self, out: &mut FlowOut, reason: Reason, untouched: impl Fn(u16) -> bool) {
        for slot in (0..32u16).filter(|slot| out.window.taken() & (1 << slot) != 0) {
            let certainty = if untouched(slot) { Certainty::NotDelivered } else { Certainty::Unknown };
            if let Some(kept) = out.longs.as_mut().and_then(|longs| longs.kept.remove(&slot)) {
                let certainty = if kept.has_left { certainty } else { Certainty::NotDelivered };
                self.return_long(out.source, Some(out.destination), MessageKind::Request, kept, reason, certainty);
                continue;
            }
            self.return_request(out.source, out.destination, out.slots.get(usize::from(slot)), reason, certainty);
        }
    }

    /// Returns the long replies that the peer may not have taken.
    fn return_long_replies(&mut self, flow: &mut FlowIn, reason: Reason, untouched: impl Fn(u16) -> bool) {
        let Some(longs) = flow.longs.take() else { return };
        for (slot, kept) in longs.kept {
            let is_seen = kept.has_left && !untouched(slot);
            let certainty = if is_seen { Certainty::Unknown } else { Certainty::NotDelivered };
            if matches!(kept.what, What::Put { .. }) {
                self.return_long(flow.destination, None, MessageKind::Reply, kept, reason, certainty);
            }
        }
    }

    pub(crate) fn return_request(
        &mut self,
        source: Endpoint,
        destination: u32,
        slot: Option<&crate::session::Slot>,
        reason: Reason,
        certainty: Certainty,
    ) {
        let Some(slot) = slot else { return };
        self.come_back(Returned {
            endpoint: source,
            destination: Some(destination),
            kind: MessageKind::Request,
            op: slot.op,
            args: slot.args().to_vec(),
            payload: slot.payload.clone(),
            reason,
            certainty,
            completion: slot.completion,
            long: None,
        });
    }

    /// Sends a peer's message back, with its contents unless the sender kept them. Returns false if that waits for room.
    pub(crate) fn bounce(&mut self, message: &Delivery<'_>, reason: Reason) -> bool {
        self.counters.refused += 1;
        if message.kind() == MessageKind::Reply {
            self.tell_refused_reply(message, reason);
        }
        if Self::is_guest(*message.session) {
            self.bounce_guest(message, reason);
            return true;
        }
        let index = message.session.index;
        if message.kind() == MessageKind::OneWay {
            self.tell_stored(message);
        }
        if message.kind() != MessageKind::Reply {
            self.refuse_what_follows(message, reason);
        }
        let Some(s) = self.session_mut(*message.session) else { return true };
        let (slot, args, payload) = match message.kind() {
            MessageKind::Request => (message.head.slot(), &[][..], &[][..]),
            MessageKind::Reply => (RETURNED_REPLY | u16::from(message.op()), message.args, message.payload),
            MessageKind::OneWay => (RETURNED_SEND | u16::from(message.op()), message.args, message.payload),
        };
        let header = head(Kind::Return, reason.code(), message.head.flow(), slot, Credit::default());
        if s.backlog.is_empty() && s.tx.push(header, args, payload).is_ok() {
            s.on_pushed(header);
            return true;
        }
        self.queue(index, header, args, payload);
        false
    }

    /// Tells the program that its endpoint refused the reply to one of its requests.
    pub(crate) fn tell_refused_reply(&mut self, message: &Delivery<'_>, reason: Reason) {
        self.counters.replies_refused += 1;
        let endpoint = message.endpoint;
        let flow = self.session(*message.session).and_then(|s| s.flows_out.get(usize::from(message.head.flow())));
        // A client knows what it refused, so only the program is told.
        let Some(flow) = flow.filter(|_| !self.events.is_claimed(endpoint)) else { return };
        let destination = flow.destination;
        self.tell(Event::ReplyRefused { endpoint, destination, op: message.op(), reason });
    }

    /// Refuses what follows a refused message of an ordered flow, until its sender goes on.
    fn refuse_what_follows(&mut self, message: &Delivery<'_>, reason: Reason) {
        let Some(s) = self.session_mut(*message.session) else { return };
        let Some(flow) = s.flows_in.get_mut(usize::from(message.head.flow())).filter(|flow| flow.is_ordered) else {
            return;
        };
        flow.stopped.get_or_insert(reason);
        flow.admitted = 0;
        self.run.admission = 0;
    }

    /// Reports what was stored before a message that goes back, so that its sender knows which message that is.
    fn tell_stored(&mut self, message: &Delivery<'_>) {
        let Some(s) = self.session_mut(*message.session) else { return };
        let Some(state) = s.flows_in.get_mut(usize::from(message.head.flow())) else { return };
        let due = state.due.take();
        state.due.on_returned(message.head.lines());
        let header = head(Kind::Credit, 0, message.head.flow(), 0, Credit::default());
        if due != [0; 3] && !(s.backlog.is_empty() && s.tx.push(header, &due, &[]).is_ok()) {
            self.queue(message.session.index, header, &due, &[]);
        }
    }
}

/// Messages that a dead peer certainly never saw: the flow and slot of each.
#[derive(Default)]
struct Untouched {
    requests: Vec<(u16, u16)>,
    /// Long replies, by the slots of their requests.
    replies: Vec<(u16, u16)>,
}

/// Drops records of closed flows whose numbers were used again: all their messages have ended.
fn drop_closed(abandoned: &mut Vec<Abandoned>, backlog: &VecDeque<Pending>) {
    // Our flows begin with `Open`, and our records about the peer's flows end with `Closed`. So count, per number, the
    // records of earlier flows.
    let (mut sent, mut said) = (BTreeMap::new(), BTreeMap::new());
    let heads = abandoned.iter().map(|record| record.head).chain(backlog.iter().map(|pending| pending.head));
    for (at, head) in heads.enumerate() {
        match head.kind {
            Kind::Open => _ = sent.insert(head.flow, at),
            Kind::Closed => _ = said.insert(head.flow, at),
            _ => {}
        }
    }
    let mut at = 0;
    abandoned.retain(|record| {
        let begins = match record.head.kind {
            Kind::Reply | Kind::LongReply => &said,
            _ => &sent,
        };
        let is_old = begins.get(&record.head.flow).is_some_and(|&begin| at < begin);
        at += 1;
        !is_old
    });
}
