//! Operations that the program posts: sends, receives, and looks at waiting messages.

use super::{cost, space, Body, Engine, Many, Message, Receive, MANY_LEAST};
use crate::tagged::peer::{Ends, Sending};
use crate::tagged::queues::{Once, Taker, Wanted};
use crate::tagged::{self, Claim, Envelope, Outcome, Pattern, PostError, Source, Tags, Target, Working};
use std::collections::VecDeque;
use weft_core::bulk::Demand;
use weft_core::Outgoing;
use weft_wire::tagged::{self as wire, Label, Word};
use weft_wire::Certainty;

impl Engine {
    #[inline(always)]
    fn is_full(&self, cx: &Working<'_>) -> bool {
        self.operations + cx.done.len() >= self.settings.operations_most
    }

    #[inline(always)]
    pub fn send(
        &mut self,
        cx: &mut Working<'_>,
        to: u32,
        label: Label,
        contents: Source,
        ends: Ends,
    ) -> Result<(), (PostError, Source)> {
        let number = match self.number_for(cx, to) {
            Ok(number) if !self.is_full(cx) => number,
            Ok(_) => return Err((PostError::Full, contents)),
            Err(error) => return Err((error, contents)),
        };
        if self.send_at_once(cx, number, label, contents.bytes(), matches!(ends, Ends::Stored(_))) {
            self.has_gone(cx, number, contents, ends);
            return Ok(());
        }
        self.operations += 1;
        self.queue(cx, number, Sending { label, contents, ends });
        Ok(())
    }

    /// Ends a message that was sent at once and so was never posted.
    #[inline(always)]
    fn has_gone(&mut self, cx: &mut Working<'_>, number: u32, contents: Source, ends: Ends) {
        self.operations += 1;
        self.end_eager(cx, number, Sending { label: Label::default(), contents, ends });
    }

    #[inline(always)]
    pub fn inject(&mut self, cx: &mut Working<'_>, to: u32, label: Label, bytes: &[u8]) -> Result<(), PostError> {
        match self.inject_now(cx, to, label, bytes)? {
            true => Ok(()),
            false => self.inject_later(cx, to, label, bytes),
        }
    }

    #[inline(always)]
    pub fn inject_now(&mut self, cx: &mut Working<'_>, to: u32, label: Label, bytes: &[u8]) -> Result<bool, PostError> {
        let number = self.number_for(cx, to)?;
        // It is not an operation, but if it comes back there is one more completion.
        let has_room = cx.done.len() < self.settings.operations_most;
        Ok(has_room && self.send_at_once(cx, number, label, bytes, false))
    }

    /// Whether copies of injected messages wait for room.
    #[inline]
    pub fn keeps_injected(&self) -> bool {
        self.injected_bytes > 0
    }

    /// Keeps a copy of an injected message until there is room.
    #[cold]
    #[inline(never)]
    fn inject_later(&mut self, cx: &mut Working<'_>, to: u32, label: Label, bytes: &[u8]) -> Result<(), PostError> {
        let number = self.number_for(cx, to)?;
        if cx.done.len() >= self.settings.operations_most {
            return Err(PostError::Full);
        }
        let bytes_after = self.injected_bytes + cost(bytes.len());
        if bytes_after > self.settings.injected_most {
            return Err(if self.injected_bytes == 0 { PostError::TooLarge } else { PostError::Full });
        }
        self.injected_bytes = bytes_after;
        let contents = Source::Owned(bytes.to_vec());
        self.queue(cx, number, Sending { label, contents, ends: Ends::Injected });
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn queue(&mut self, cx: &mut Working<'_>, number: u32, sending: Sending) {
        if let Some(peer) = self.peer(number) {
            peer.queue.push_back(sending);
        }
        self.flush(cx, number);
    }

    /// Sends a message with its contents, if nothing has to go before it.
    #[inline(always)]
    fn send_at_once(
        &mut self,
        cx: &mut Working<'_>,
        number: u32,
        label: Label,
        bytes: &[u8],
        wants_done: bool,
    ) -> bool {
        let (endpoint, most) = (self.endpoint, self.settings.eager_most);
        let Some(peer) = self.peer(number) else { return false };
        if !(peer.is_free() && peer.window.has_message() && peer.goes_whole(bytes.len(), most)) {
            return false;
        }
        let envelope = wire::Envelope { number: peer.window.next, credit: peer.due.to_tell(), label, wants_done };
        match envelope.pack_plain() {
            Some((op, args)) => {
                let message = Outgoing { op, args: &args, payload: bytes, completion: None };
                peer.on_sent_eager(cx.state.try_send_urgent(endpoint, number, message), bytes.len())
            }
            None if envelope.label.tag.is_some() => self.send_with_data(cx, number, envelope, bytes),
            None => self.send_eager(cx, number, envelope, bytes),
        }
    }

    /// Sends a message that has a tag and data, with its contents. Returns false if there is no room.
    #[inline(never)]
    fn send_with_data(&mut self, cx: &mut Working<'_>, number: u32, envelope: wire::Envelope, bytes: &[u8]) -> bool {
        let endpoint = self.endpoint;
        let (Some(peer), Some((op, args))) = (self.peer(number), envelope.pack_plain_with_data()) else { return false };
        let message = Outgoing { op, args: &args, payload: bytes, completion: None };
        peer.on_sent_eager(cx.state.try_send_urgent(endpoint, number, message), bytes.len())
    }

    /// Sends a message with its contents. Returns false if there is no room.
    #[inline(never)]
    pub(super) fn send_eager(
        &mut self,
        cx: &mut Working<'_>,
        number: u32,
        envelope: wire::Envelope,
        bytes: &[u8],
    ) -> bool {
        let endpoint = self.endpoint;
        let Some(peer) = self.peer(number) else { return false };
        let packed = Word::Eager(envelope).pack();
        let message = Outgoing { op: packed.op, args: packed.args(), payload: bytes, completion: None };
        peer.on_sent_eager(cx.state.try_send_urgent(endpoint, number, message), bytes.len())
    }

    #[inline(always)]
    pub fn receive(
        &mut self,
        cx: &mut Working<'_>,
        pattern: Pattern,
        target: Target,
        context: u64,
        least: Option<usize>,
    ) -> Result<(), (PostError, Target)> {
        let peer = match pattern.source {
            None => None,
            Some(index) => match self.number_for(cx, index) {
                Ok(number) => Some(number),
                Err(error) => return Err((error, target)),
            },
        };
        if self.is_full(cx) {
            return Err((PostError::Full, target));
        }
        self.operations += 1;
        let (space, tags) = (space(pattern.tags.is_some()), pattern.tags.unwrap_or_default());
        let once = Once { target, context };
        let taker = match (least, self.waiting[space].find(peer, tags)) {
            (None, None) => Taker::One(once),
            (None, Some(message)) => {
                self.receive_one_that_waits(cx, once, space, message);
                return Ok(());
            }
            (Some(least), _) => {
                let many = Many { peer, space, least, at: 0, left: once.target.len() / MANY_LEAST + 1 };
                let receive = self.receives.insert(Receive { many: Some(many), is_posted: true, ..once.into() });
                if self.receive_what_waits(cx, receive, peer, space, tags) {
                    return Ok(());
                }
                Taker::Many(receive)
            }
        };
        self.age += 1;
        self.posted[space].push(peer, Wanted { age: self.age, tags, taker });
        if let Some(number) = peer {
            self.greet(cx, number);
        }
        self.there_is_room(cx);
        Ok(())
    }

    /// Gives a receive of one message the waiting message.
    #[inline(never)]
    fn receive_one_that_waits(&mut self, cx: &mut Working<'_>, once: Once, space: usize, message: u32) {
        let receive = self.receives.insert(once.into());
        self.take_waiting(message, space);
        self.receive_waiting(cx, receive, message);
    }

    /// Gives a receive of many messages the waiting messages. Returns whether the receive is complete.
    #[inline(never)]
    fn receive_what_waits(
        &mut self,
        cx: &mut Working<'_>,
        receive: u32,
        peer: Option<u32>,
        space: usize,
        tags: Tags,
    ) -> bool {
        while let Some(message) = self.waiting[space].find(peer, tags) {
            self.take_waiting(message, space);
            self.receive_waiting(cx, receive, message);
            if !self.receives.get(receive).is_some_and(|r| r.is_posted) {
                return true;
            }
        }
        false
    }

    /// Says hello to a peer from which a message is expected, so that its death is noticed.
    #[inline(always)]
    pub(in crate::tagged) fn greet(&mut self, cx: &mut Working<'_>, number: u32) {
        let Some(peer) = self.peer(number).filter(|p| !p.is_greeted) else { return };
        peer.wants_hello = true;
        self.flush(cx, number);
    }

    /// As [`Engine::greet`], for an index of the program's table. Returns whether there is a session.
    pub fn greet_at(&mut self, cx: &mut Working<'_>, index: u32) -> Result<bool, PostError> {
        let number = self.number_for(cx, index)?;
        self.greet(cx, number);
        self.has_session(index)
    }

    /// Removes a waiting message from its queues.
    fn take_waiting(&mut self, message: u32, space: usize) {
        let Some(waiting) = self.messages.get(message) else { return };
        self.waiting[space].remove(waiting.peer, waiting.age);
    }

    /// Receives a message that waited.
    fn receive_waiting(&mut self, cx: &mut Working<'_>, receive: u32, message: u32) {
        let Some(waiting) = self.messages.remove(message) else { return };
        self.matched(&waiting);
        let number = waiting.peer;
        match waiting.body {
            Body::Here(ref contents) => {
                self.waiting_bytes -= contents.len();
                let envelope = self.envelope(&waiting);
                self.store(cx, receive, envelope, contents);
            }
            Body::There => self.fetch(cx, receive, &waiting),
            Body::Gone(reason) => self.fail_receive(cx, receive, reason, Certainty::NotDelivered),
        }
        self.flush(cx, number);
        self.there_is_room(cx);
    }

    pub(in crate::tagged) fn envelope(&self, message: &Message) -> Envelope {
        let peer = self.peers.get(message.peer as usize).and_then(Option::as_ref);
        let source = peer.and_then(|p| p.index);
        Envelope { peer: tagged::Peer(message.peer), source, label: message.label, len: message.len }
    }

    pub fn peek(&mut self, pattern: Pattern) -> Result<Option<Envelope>, PostError> {
        Ok(self.find(pattern)?.map(|(_, _, envelope)| envelope))
    }

    pub fn claim(&mut self, pattern: Pattern) -> Result<Option<(Envelope, Claim)>, PostError> {
        let Some((number, space, envelope)) = self.find(pattern)? else { return Ok(None) };
        self.take_waiting(number, space);
        let Some(message) = self.messages.get_mut(number) else { return Ok(None) };
        message.is_claimed = true;
        let age = message.age;
        Ok(Some((envelope, Claim { endpoint: self.endpoint, message: number, age })))
    }

    fn find(&self, pattern: Pattern) -> Result<Option<(u32, usize, Envelope)>, PostError> {
        let peer = match pattern.source.map(|index| (index, self.number_at(index))) {
            None => None,
            Some((_, Ok(number))) => Some(number),
            Some((index, Err(error))) => match self.known_at(index).ok_or(error)? {
                Some(number) => Some(number),
                None => return Ok(None),
            },
        };
        let space = space(pattern.tags.is_some());
        let found = self.waiting[space].find(peer, pattern.tags.unwrap_or_default());
        let message = found.and_then(|number| Some((number, self.messages.get(number)?)));
        Ok(message.map(|(number, message)| (number, space, self.envelope(message))))
    }

    /// Whether a claim belongs to a message that is here.
    fn is_claimed(&self, claim: &Claim) -> bool {
        let message = self.messages.get(claim.message).filter(|_| claim.endpoint == self.endpoint);
        message.is_some_and(|m| m.is_claimed && m.age == claim.age)
    }

    pub fn receive_claimed(
        &mut self,
        cx: &mut Working<'_>,
        claim: Claim,
        target: Target,
        context: u64,
    ) -> Result<(), (PostError, Claim, Target)> {
        if !self.is_claimed(&claim) {
            return Err((PostError::NoMessage, claim, target));
        }
        if self.is_full(cx) {
            return Err((PostError::Full, claim, target));
        }
        self.operations += 1;
        let receive = self.receives.insert(Once { target, context }.into());
        self.receive_waiting(cx, receive, claim.message);
        Ok(())
    }

    pub fn discard(&mut self, cx: &mut Working<'_>, claim: &Claim) {
        if !self.is_claimed(claim) {
            return;
        }
        let Some(message) = self.messages.remove(claim.message) else { return };
        self.matched(&message);
        match message.body {
            Body::Here(contents) => self.waiting_bytes -= contents.len(),
            Body::There => self.say_fetch(message.peer, Demand { number: message.number, into: 0, bytes: 0 }),
            Body::Gone(_) => {}
        }
        self.flush(cx, message.peer);
        self.there_is_room(cx);
    }

    pub fn cancel(&mut self, cx: &mut Working<'_>, context: u64) -> bool {
        let is_it = |taker: &Taker| match taker {
            Taker::One(once) => once.context == context,
            Taker::Many(receive) => self.receives.get(*receive).is_some_and(|r| r.context == context),
        };
        let oldest = |space: usize| self.posted[space].oldest(is_it).map(|age| (age, space));
        if let Some((age, space)) = (0..self.posted.len()).filter_map(oldest).min() {
            match self.posted[space].remove_aged(age) {
                Some(Taker::One(once)) => self.end_once(cx, once, Outcome::Cancelled),
                Some(Taker::Many(receive)) => self.withdraw(cx, receive),
                None => {}
            }
            return true;
        }
        let has_it = |s: &Sending| s.ends == Ends::Sent(context) || s.ends == Ends::Stored(context);
        for peer in self.peers.iter_mut().flatten() {
            let Some(sending) = peer.queue.iter().position(has_it).and_then(|at| peer.queue.remove(at)) else {
                continue;
            };
            self.end_send(cx, sending, Outcome::Cancelled, None);
            return true;
        }
        false
    }

    /// Withdraws the messages to a peer that it has not heard of.
    pub fn cancel_unsent(&mut self, cx: &mut Working<'_>, to: u32) -> Result<usize, PostError> {
        let number = self.number_at(to)?;
        let Some(peer) = self.peer(number) else { return Ok(0) };
        // Bounced messages were sent once, and their sends have ended.
        let is_bounced = |sending: &Sending| sending.ends == Ends::Bounced;
        let (kept, unsent): (VecDeque<Sending>, _) = std::mem::take(&mut peer.queue).into_iter().partition(is_bounced);
        peer.queue = kept;
        let count = unsent.len();
        unsent.into_iter().for_each(|sending| self.end_send(cx, sending, Outcome::Cancelled, None));
        Ok(count)
    }

    /// Cancels a receive of many messages that was taken out of its queue.
    fn withdraw(&mut self, cx: &mut Working<'_>, receive: u32) {
        let Some(r) = self.receives.get_mut(receive) else { return };
        r.is_posted = false;
        // If contents are still being fetched, the last of them ends the receive.
        if r.transfers == 0 {
            self.end_receive(cx, receive, Outcome::Cancelled);
        }
    }

    pub fn waiting(&self) -> (usize, usize) {
        let of = |space: usize| (0..self.peers.len()).map(|p| self.waiting[space].of_peer(p as u32)).sum::<usize>();
        (of(0) + of(1), self.waiting_bytes)
    }
}
