//! Sending one-way messages, and messages to destinations without a session.

use super::State;
use crate::endpoint::{Endpoint, Route};
use crate::event::{MessageKind, Returned};
use crate::message::{Outgoing, SendError};
use crate::service::Reliability;
use crate::session::head;
use crate::state::Call;
use weft_wire::path::{PushError, Tx};
use weft_wire::record::{lines, ASK_STORED, MAX_ARGS, URGENT};
use weft_wire::{Certainty, Credit, Kind, Reason, MAX_PAYLOAD};

/// A message to a destination without a session, without its contents. Not an [`Outgoing`]: passing that by reference
/// would store every message in memory for the sake of a rare case (docs/design/small-messages.md, "Few stores").
pub(super) struct Unrouted {
    pub from: Endpoint,
    pub to: u32,
    /// Whether it is a request.
    pub asks: bool,
    pub op: u8,
    pub completion: Option<u64>,
}

impl<T: Tx> State<T> {
    /// Sends a one-way message. It ends delivered, or comes back. Also *full* while the program has to take
    /// [events](State::has_full_events).
    #[inline(always)]
    pub fn try_send(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>) -> Result<(), SendError> {
        if self.events.is_full() {
            return self.refuse_for_events(from, to);
        }
        self.send_marked(from, to, message, 0)
    }

    /// Like [`State::try_send`], but urgent: the receiver takes it at its next poll instead of lagging behind a stream.
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
    pub(super) fn send_on(
        &mut self,
        session: u32,
        flow: u16,
        message: Outgoing<'_>,
        marks: u16,
    ) -> Result<(), SendError> {
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
                    self.events.expect_completion(out.source);
                    out.completions.push_back((out.sent, completion));
                }
                self.counters.sent += 1;
                Ok(())
            }
            Err(error) => Err(self.not_pushed(session, flow, error)),
        }
    }

    /// Handles a destination without a session: call, wait, or return the message.
    #[cold]
    #[inline(never)]
    pub(super) fn send_unrouted(
        &mut self,
        message: Unrouted,
        args: &[u32],
        payload: &[u8],
        marks: u16,
    ) -> Result<(), SendError> {
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
                if completion.is_some() {
                    self.events.expect_completion(from);
                }
                if !asks && self.service(from)?.reliability == Reliability::Unreliable {
                    self.counters.sent += 1;
                    completion.into_iter().for_each(|completion| self.complete(from, completion));
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

    /// Handles a flow without credit or a free slot, or with a backlog.
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
            // If the peer is gone, its session is lost in a moment, once the reason is known.
            PushError::Full | PushError::Gone => self.block(session),
            PushError::Broken => self.cut(session),
        }
        self.counters.full += 1;
        SendError::Full
    }

    pub(super) fn give_back(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>, asks: bool, reason: Reason) {
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
            long: None,
        });
    }
}
