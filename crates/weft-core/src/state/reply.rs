//! Replies to requests, at once or later.

use super::State;
use crate::endpoint::Translation;
use crate::message::{Delivery, ReplyError, ReplyToken};
use crate::session::head;
use weft_wire::path::{Tx, SMALL_MOST};
use weft_wire::record::MAX_ARGS;
use weft_wire::{Credit, Key, Kind, Name, Uid, MAX_PAYLOAD};

impl<T: Tx> State<T> {
    /// Replies to a request. Never blocks: a reply that finds no room is queued, bounded by the granted requests.
    ///
    /// On `TooLarge` the token is returned for another try.
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

    /// Replies to a request with at most [`SMALL_MOST`] bytes, if a few stores suffice. Otherwise returns false and
    /// changes nothing; then use [`Delivery::take_reply`].
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

    /// Returns the source of a message, for which its session vouches. For a reply it is the name in the translation table.
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

    /// Returns the key that a request or a one-way message carries. `None` for replies, for messages of a peer that is
    /// gone, and for messages that another bundle forwarded.
    pub fn carried_key(&self, message: &Delivery<'_>) -> Option<Key> {
        if message.head.is(Kind::Reply) {
            return None;
        }
        let session = self.session(*message.session)?;
        Some(session.flows_in.get(usize::from(message.head.flow()))?.key)
    }

    /// Whether the session of a token still lives.
    pub fn is_open(&self, token: &ReplyToken) -> bool {
        self.session(token.session).is_some() || self.is_guest_open(token)
    }
}
