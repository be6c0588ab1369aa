//! Requests: sending them, and ending them without a reply.

use super::send::Unrouted;
use super::State;
use crate::endpoint::Endpoint;
use crate::message::{Outgoing, SendError};
use crate::session::head;
use weft_wire::path::{Tx, SMALL_MOST};
use weft_wire::record::{MAX_ARGS, WINDOW};
use weft_wire::{Credit, Kind, MAX_PAYLOAD};

impl<T: Tx> State<T> {
    /// Sends a request. It ends answered (a reply, or the notice that there is none), or comes back. Also *full* while
    /// the program has to take [events](State::has_full_events).
    #[inline(always)]
    pub fn try_request(&mut self, from: Endpoint, to: u32, message: Outgoing<'_>) -> Result<(), SendError> {
        if self.events.is_full() {
            return self.refuse_for_events(from, to);
        }
        let Some((session, flow)) = self.route(from, to) else {
            let Outgoing { op, args, payload, completion } = message;
            return self.send_unrouted(Unrouted { from, to, asks: true, op, completion }, args, payload, 0);
        };
        self.request_on(session, flow, message)
    }

    #[inline(always)]
    pub(super) fn request_on(&mut self, session: u32, flow: u16, message: Outgoing<'_>) -> Result<(), SendError> {
        let Outgoing { op, args, payload, completion } = message;
        if payload.len() <= SMALL_MOST && completion.is_none() && self.request_small(session, flow, op, args, payload) {
            return Ok(());
        }
        self.request_any(session, flow, op, completion, args, payload)
    }

    /// Sends a request of at most [`SMALL_MOST`] bytes, if a few stores suffice. Made to be inlined: after none of its
    /// calls is work left, so nothing is spilled to memory across a call. Returns false and changes nothing if that is
    /// not possible.
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
                if message.completion.is_some() {
                    self.events.expect_completion(out.source);
                }
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

    /// Notes that a request ended without a reply. The peer is told at the end of the poll, together with others.
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
}
