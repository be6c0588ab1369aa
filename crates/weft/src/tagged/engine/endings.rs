//! How operations, receives, peers and the endpoint end.

use super::{cost, space, Body, Engine, Message, Transfer};
use crate::tagged::peer::{Ends, Peer, Sending};
use crate::tagged::queues::{Once, Posted, Taker, Wanted};
use crate::tagged::{CameBack, Completion, Envelope, Outcome, PostError, Received, Working};
use std::collections::VecDeque;
use weft_core::bulk::{Demand, Placement};
use weft_core::FlowId;
use weft_wire::tagged::Word;
use weft_wire::{Certainty, Reason};

impl Engine {
    #[inline(always)]
    pub(in crate::tagged) fn complete(
        &mut self,
        cx: &mut Working<'_>,
        context: u64,
        outcome: Outcome,
        is_last: bool,
        buffer: Option<Vec<u8>>,
    ) {
        cx.done.push(Completion { endpoint: self.endpoint, context, outcome, is_last, buffer });
        cx.state.note();
    }

    /// Ends a message of ours.
    pub(in crate::tagged) fn end_send(
        &mut self,
        cx: &mut Working<'_>,
        sending: Sending,
        outcome: Outcome,
        index: Option<u32>,
    ) {
        let Sending { label, contents, ends } = sending;
        match ends {
            Ends::Sent(context) | Ends::Stored(context) => {
                self.operations -= 1;
                self.complete(cx, context, outcome, true, contents.give_back());
            }
            Ends::Injected | Ends::Bounced => {
                let contents = contents.give_back().unwrap_or_default();
                if ends == Ends::Injected {
                    self.injected_bytes -= cost(contents.len());
                }
                match outcome {
                    // The program has freed the endpoint, so it gets no completions.
                    Outcome::Failed { .. } if self.is_closing => self.lost += 1,
                    Outcome::Failed { reason, certainty } => {
                        self.come_back(cx, CameBack { to: index, label, contents, reason, certainty });
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reports a message that came back after its end.
    pub(in crate::tagged) fn come_back(&mut self, cx: &mut Working<'_>, message: CameBack) {
        self.complete(cx, 0, Outcome::CameBack(Box::new(message)), true, None);
    }

    /// Ends a send that waited to be stored at the receiver.
    pub(in crate::tagged) fn end_unstored(
        &mut self,
        cx: &mut Working<'_>,
        unstored: (u64, Option<Vec<u8>>),
        outcome: Outcome,
    ) {
        self.operations -= 1;
        self.complete(cx, unstored.0, outcome, true, unstored.1);
    }

    /// Ends a message that was sent with its contents, unless it waits to be stored.
    #[inline(always)]
    pub(super) fn end_eager(&mut self, cx: &mut Working<'_>, number: u32, sending: Sending) {
        if let Ends::Stored(context) = sending.ends {
            let buffer = sending.contents.give_back();
            if let Some(peer) = self.peer(number) {
                peer.unstored.insert(peer.window.next.wrapping_sub(1), (context, buffer));
            }
            return;
        }
        self.end_send(cx, sending, Outcome::Sent, None);
    }

    /// Ends a receive of one message that was in a queue.
    #[inline(always)]
    pub(in crate::tagged) fn end_once(&mut self, cx: &mut Working<'_>, once: Once, outcome: Outcome) {
        self.operations -= 1;
        self.complete(cx, once.context, outcome, true, once.target.give_back());
    }

    /// Ends a receive that took no message, or takes no more.
    pub(in crate::tagged) fn end_receive(&mut self, cx: &mut Working<'_>, receive: u32, outcome: Outcome) {
        let Some(r) = self.receives.remove(receive) else { return };
        self.operations -= 1;
        self.complete(cx, r.context, outcome, true, r.target.give_back());
    }

    /// Notes that a receive has taken or lost a message. The receive ends, unless it takes many messages and continues.
    #[inline(always)]
    pub(in crate::tagged) fn on_taken(&mut self, cx: &mut Working<'_>, receive: u32, outcome: Outcome) {
        let Some(r) = self.receives.get(receive) else { return };
        if r.is_posted || r.transfers > 0 {
            let context = r.context;
            self.complete(cx, context, outcome, false, None);
        } else {
            self.end_receive(cx, receive, outcome);
        }
    }

    /// Makes room in a receive for a message matched with it. Returns where the message begins, and how many of its
    /// bytes fit.
    #[inline(always)]
    pub(in crate::tagged) fn make_room(&mut self, receive: u32, len: usize) -> Option<(usize, usize)> {
        let r = self.receives.get_mut(receive)?;
        let Some(many) = &mut r.many else { return Some((0, len.min(r.target.len()))) };
        let at = many.at;
        let room = len.min(r.target.len() - at);
        many.at = (at + room).next_multiple_of(8).min(r.target.len());
        many.left -= 1;
        // The receive continues if there is room left.
        r.is_posted = many.left > 0 && r.target.len() - many.at >= many.least.max(1);
        if !r.is_posted {
            let (space, peer) = (many.space, many.peer);
            self.posted[space].remove(peer, receive);
        }
        Some((at, room))
    }

    /// Stores a message whose contents are here.
    #[inline(always)]
    pub(in crate::tagged) fn store(&mut self, cx: &mut Working<'_>, receive: u32, message: Envelope, contents: &[u8]) {
        let Some((at, room)) = self.make_room(receive, contents.len()) else { return };
        if let Some(r) = self.receives.get_mut(receive) {
            r.target.write(at, &contents[..room]);
        }
        self.on_taken(cx, receive, Outcome::Received(Received { message, at, stored: room }));
    }

    /// Fetches the contents of a message.
    pub(in crate::tagged) fn fetch(&mut self, cx: &mut Working<'_>, receive: u32, message: &Message) {
        let Some((start, room)) = self.make_room(receive, message.len) else { return };
        let envelope = self.envelope(message);
        if room == 0 {
            self.say_fetch(message.peer, Demand { number: message.number, into: 0, bytes: 0 });
            if message.wants_done {
                self.say(message.peer, Word::Done(message.number));
            }
            let received = Received { message: envelope, at: start, stored: 0 };
            return self.on_taken(cx, receive, Outcome::Received(received));
        }
        if let Some(r) = self.receives.get_mut(receive) {
            r.transfers += 1;
        }
        let Message { peer, number, wants_done, .. } = *message;
        let rest = Placement::new(start as u64, room as u64);
        let transfer = Transfer { peer, receive, message: envelope, number, wants_done, start, room, rest };
        let into = self.transfers.insert(transfer);
        self.say_fetch(peer, Demand { number, into, bytes: room as u64 });
    }

    /// Reports that a receive lost the message that was matched with it.
    pub(in crate::tagged) fn fail_receive(
        &mut self,
        cx: &mut Working<'_>,
        receive: u32,
        reason: Reason,
        certainty: Certainty,
    ) {
        self.on_taken(cx, receive, Outcome::Failed { reason, certainty });
    }

    /// Notes that a waiting message was matched or dropped.
    pub(super) fn matched(&mut self, message: &Message) {
        let peer = self.peer(message.peer).filter(|p| p.life == message.life);
        if let Some(peer) = peer {
            peer.due.matched(message.units);
        }
    }

    // ---- peers and the endpoint

    /// A peer has freed its endpoint.
    pub(in crate::tagged) fn peer_left(&mut self, cx: &mut Working<'_>, number: u32) {
        let receives_stay = self.settings.receives_stay;
        if let Some(peer) = self.peer(number) {
            peer.has_left = receives_stay;
        }
        self.fail_peer(cx, number, Reason::NoSuchEndpoint);
    }

    /// Ends everything under way with a peer, except for messages whose contents are here, and for receives from a peer that
    /// [left](Engine::peer_left) if they are to stay.
    pub(in crate::tagged) fn fail_peer(&mut self, cx: &mut Working<'_>, number: u32, reason: Reason) {
        let endpoint = self.endpoint;
        let Some(peer) = self.peer(number) else { return };
        let (name, key, index, has_left) = (peer.name, peer.key, peer.index, peer.has_left);
        let life = peer.life.wrapping_add(1);
        let after = Peer { index, life, has_left, lost: Some(reason), ..Peer::new(name, key) };
        let before = std::mem::replace(peer, after);
        // A later send calls the peer again.
        let _ = cx.state.map(endpoint, number, name, key);
        if let Some(flow) = before.flow {
            self.forget_flow(flow);
        }
        self.end_sends(cx, before, reason);
        self.fail_receives(cx, number, reason, has_left);
    }

    /// Ends the sends under way to a peer. Its own messages are still taken.
    pub(in crate::tagged) fn fail_sends(&mut self, cx: &mut Working<'_>, number: u32, reason: Reason) {
        let endpoint = self.endpoint;
        let Some(peer) = self.peer(number) else { return };
        let (name, key, index, life, flow) = (peer.name, peer.key, peer.index, peer.life, peer.flow);
        let has_left = peer.has_left;
        let due = std::mem::take(&mut peer.due);
        let after = Peer { index, life, flow, due, has_left, lost: Some(reason), ..Peer::new(name, key) };
        let before = std::mem::replace(peer, after);
        let _ = cx.state.map(endpoint, number, name, key);
        self.end_sends(cx, before, reason);
    }

    /// Ends the sends of a peer's former state.
    fn end_sends(&mut self, cx: &mut Working<'_>, mut before: Peer, reason: Reason) {
        let index = before.index;
        let failed = |certainty| Outcome::Failed { reason, certainty };
        let mut announced = before.announced.withdraw(|_| true);
        announced.sort_by_key(|&(message, _)| message.wrapping_sub(before.window.next));
        let streams = before.streams.withdraw(|_| true).into_iter().map(|s| s.sending);
        let sends = streams.chain(announced.into_iter().map(|(_, s)| s)).chain(before.queue);
        for sending in sends.collect::<Vec<_>>() {
            self.end_send(cx, sending, failed(Certainty::NotDelivered), index);
        }
        for (_, unstored) in before.unstored {
            self.end_unstored(cx, unstored, failed(Certainty::Unknown));
        }
    }

    /// Ends the peer's announced messages, and the receives posted for this peer alone unless they are to stay.
    pub(in crate::tagged) fn fail_receives(
        &mut self,
        cx: &mut Working<'_>,
        number: u32,
        reason: Reason,
        posted_stay: bool,
    ) {
        for transfer in self.transfers.numbers(|t| t.peer == number) {
            let Some(transfer) = self.transfers.remove(transfer) else { continue };
            if let Some(r) = self.receives.get_mut(transfer.receive) {
                r.transfers -= 1;
            }
            self.fail_receive(cx, transfer.receive, reason, Certainty::NotDelivered);
        }
        let spaces = if posted_stay { 0 } else { self.posted.len() };
        for space in 0..spaces {
            for wanted in self.posted[space].take_all_of(number) {
                let receive = match wanted.taker {
                    Taker::One(once) => {
                        self.end_once(cx, once, Outcome::Failed { reason, certainty: Certainty::NotDelivered });
                        continue;
                    }
                    Taker::Many(receive) => receive,
                };
                if let Some(r) = self.receives.get_mut(receive) {
                    r.is_posted = false;
                }
                self.fail_receive(cx, receive, reason, Certainty::NotDelivered);
            }
        }
        for message in self.messages.numbers(|m| m.peer == number && matches!(m.body, Body::There)) {
            let Some(waiting) = self.messages.get_mut(message) else { continue };
            waiting.body = Body::Gone(reason);
            let (age, space) = (waiting.age, space(waiting.label.tag.is_some()));
            if !waiting.is_claimed {
                self.waiting[space].remove(number, age);
                self.messages.remove(message);
            }
        }
    }

    pub(in crate::tagged) fn forget_flow(&mut self, flow: FlowId) {
        let flows = self.sources.get_mut(flow.session.index as usize).filter(|f| f.life == flow.session.life);
        if let Some(place) = flows.and_then(|f| f.peers.get_mut(usize::from(flow.number))) {
            *place = None;
        }
    }

    /// Closes the endpoint, which the program has freed: cancels posted operations and tells the peers. Messages that the program
    /// considers sent, and the words that messages were stored, go before the goodbye.
    pub fn close(&mut self, cx: &mut Working<'_>) {
        self.is_closing = true;
        for number in 0..self.peers.len() as u32 {
            let Some(peer) = self.peer(number) else { continue };
            let was_told = |sending: &Sending| sending.ends.was_told();
            let announced = peer.announced.withdraw(|sending| !was_told(sending));
            let mut sends: Vec<_> = announced.into_iter().map(|(_, sending)| sending).collect();
            let streams = peer.streams.withdraw(|stream| !was_told(&stream.sending));
            sends.extend(streams.into_iter().map(|stream| stream.sending));
            let (queue, ended): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut peer.queue).into_iter().partition(was_told);
            peer.queue = queue;
            sends.extend(ended);
            let unstored = std::mem::take(&mut peer.unstored);
            peer.words.retain(|word| matches!(word, Word::Done(_)));
            peer.says_bye = peer.is_greeted || peer.flow.is_some() || peer.has_last_words();
            sends.into_iter().for_each(|sending| self.end_send(cx, sending, Outcome::Cancelled, None));
            unstored.into_values().for_each(|unstored| self.end_unstored(cx, unstored, Outcome::Cancelled));
            self.flush(cx, number);
        }
        let mut posted: Vec<Wanted> = self.posted.iter_mut().flat_map(Posted::take_all).collect();
        posted.sort_by_key(|wanted| wanted.age);
        for wanted in posted {
            if let Taker::One(once) = wanted.taker {
                self.end_once(cx, once, Outcome::Cancelled);
            }
        }
        for receive in self.receives.numbers(|_| true) {
            self.end_receive(cx, receive, Outcome::Cancelled);
        }
    }

    /// Whether the endpoint is closed and all peers were told.
    pub fn is_closed(&self) -> bool {
        self.is_closing && !self.peers.iter().flatten().any(Peer::has_last_words)
    }

    /// Number of messages that the program considers sent but that wait in this process.
    pub fn unsent(&self) -> usize {
        self.peers.iter().flatten().map(Peer::unsent).sum()
    }

    /// Whether we have said hello to the peer of a destination.
    #[inline]
    pub fn has_session(&self, index: u32) -> Result<bool, PostError> {
        let number = self.number_at(index)?;
        Ok(self.peers.get(number as usize).and_then(Option::as_ref).is_some_and(|p| p.is_greeted))
    }

    /// Whether the peer at an index of the program's table has freed its endpoint, and receives from it stay.
    pub fn has_left(&self, index: u32) -> bool {
        let number = self.number_at(index).ok();
        number.and_then(|number| self.peers.get(number as usize)?.as_ref()).is_some_and(|peer| peer.has_left)
    }

    /// As [`Engine::unsent`], for one destination, an index of the program's table.
    pub fn unsent_to(&self, index: u32) -> Result<usize, PostError> {
        let number = self.number_at(index)?;
        Ok(self.peers.get(number as usize).and_then(Option::as_ref).map_or(0, Peer::unsent))
    }
}
