//! Input of an engine: words from peers, messages that came back, events of the core. Every word of a peer is checked
//! against what was sent to that peer.

use super::engine::{space, Body, Engine, Flows, Message, Transfer, UNMAPPED_MOST};
use super::peer::{units, Ends, Peer, Sending, Stream, MESSAGES_MOST};
use super::queues::Taker;
use super::{CameBack, Envelope, Outcome, Received, Source, Working};
use weft_core::bulk::Demand;
use weft_core::{Delivery, Event, FlowId, MessageKind, Returned};
use weft_wire::tagged::{self as wire, Told, Word};
use weft_wire::{Key, Reason};

/// A peer broke the protocol.
struct Violation;

impl Engine {
    /// Takes a message, or refuses it so that it goes back to its sender.
    #[inline(always)]
    pub fn deliver(&mut self, cx: &mut Working<'_>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        if delivery.kind() != MessageKind::OneWay {
            return Err(Reason::NoHandler);
        }
        let source = self.source_of(delivery.flow());
        if self.is_closing && !self.has_last_words_for(cx, source, delivery) {
            return Err(Reason::NoSuchEndpoint);
        }
        if let (Some(envelope), Some(number)) = (wire::Envelope::plain(delivery.op(), delivery.args), source) {
            let taken = self.take_eager(cx, number, &envelope, delivery.payload);
            return if let Ok(true) = taken { Ok(()) } else { self.not_taken(cx, number, taken) };
        }
        self.deliver_other(cx, source, delivery)
    }

    /// Whether the endpoint, which the program has freed, still has words to send to the sender of this message. As long as it has,
    /// it keeps taking that peer's messages: a peer whose message came back would drop our words.
    #[cold]
    fn has_last_words_for(&mut self, cx: &mut Working<'_>, source: Option<u32>, delivery: &Delivery<'_>) -> bool {
        // This may be the last message that the endpoint waits for, so have this poll check whether it has ended.
        cx.state.come_again();
        let named = || self.by_name.get(&cx.state.source(delivery)?).copied();
        let number = source.or_else(named);
        number.and_then(|number| self.peer(number)).is_some_and(|peer| peer.has_last_words())
    }

    /// Takes a message of any but the most frequent kind.
    #[inline(never)]
    fn deliver_other(
        &mut self,
        cx: &mut Working<'_>,
        source: Option<u32>,
        delivery: &Delivery<'_>,
    ) -> Result<(), Reason> {
        let word = Word::unpack(delivery.op(), delivery.args).ok_or(Reason::NoHandler)?;
        let Some(number) = source.filter(|_| !matches!(word, Word::Hello(_))) else {
            return self.welcome(cx, delivery, word);
        };
        let taken = match word {
            Word::Eager(envelope) => self.take_eager(cx, number, &envelope, delivery.payload),
            Word::Data(transfer) => self.take_data(cx, number, transfer, delivery.payload).map(|()| true),
            word => self.take_word(cx, delivery, number, word).map(|()| true),
        };
        self.not_taken(cx, number, taken)
    }

    /// Returns the answer to a message after the attempt to take it. A peer that broke the protocol is given up.
    fn not_taken(&mut self, cx: &mut Working<'_>, number: u32, taken: Result<bool, Violation>) -> Result<(), Reason> {
        match taken {
            Ok(true) => Ok(()),
            Ok(false) => Err(Reason::QueueFull),
            // It may be about an operation that ended when the program freed the endpoint.
            Err(Violation) if self.is_closing => Ok(()),
            Err(Violation) => {
                self.fail_peer(cx, number, Reason::Violation);
                Err(Reason::Violation)
            }
        }
    }

    /// Takes the first word of a flow, which must be a hello.
    #[cold]
    #[inline(never)]
    fn welcome(&mut self, cx: &mut Working<'_>, delivery: &Delivery<'_>, word: Word) -> Result<(), Reason> {
        let Word::Hello(key) = word else { return Err(Reason::NoHandler) };
        let name = cx.state.source(delivery).ok_or(Reason::PeerLost)?;
        let number = match self.by_name.get(&name) {
            Some(&number) => number,
            None if self.by_name.len() >= UNMAPPED_MOST && self.index_of(&name).is_none() => {
                return Err(Reason::NoRoom)
            }
            None => {
                let number = self.add_peer(cx, name, key).ok_or(Reason::NoRoom)?;
                self.enter_found(number, &name);
                number
            }
        };
        self.meet(cx, number, delivery.flow(), key)
    }

    /// Takes a hello on a flow. If the peer has said hello before, it has started over, and its old operations end. It then has a
    /// full window of credit, so it is refused while a full window of its old messages waits here.
    fn meet(&mut self, cx: &mut Working<'_>, number: u32, flow: FlowId, key: Key) -> Result<(), Reason> {
        if self.peer(number).is_some_and(|p| p.flow.is_some()) {
            self.fail_peer(cx, number, Reason::PeerLost);
        }
        if self.messages.numbers(|m| m.peer == number).len() >= MESSAGES_MOST as usize {
            return Err(Reason::NoRoom);
        }
        // If we have greeted it already, with another key or with none, keep that key: another flow would begin without a hello.
        if self.peer(number).is_some_and(|p| !p.is_greeted) {
            self.set_key(cx, number, key);
        }
        let at = flow.session.index as usize;
        if self.sources.len() <= at {
            self.sources.resize_with(at + 1, Flows::default);
        }
        let flows = &mut self.sources[at];
        if flows.life != flow.session.life {
            *flows = Flows { life: flow.session.life, peers: Vec::new() };
        }
        let at = usize::from(flow.number);
        if flows.peers.len() <= at {
            flows.peers.resize(at + 1, None);
        }
        flows.peers[at] = Some(number);
        if let Some(peer) = self.peer(number) {
            (peer.flow, peer.lost, peer.has_left) = (Some(flow), None, false);
        }
        // So that its death is noticed, and credit can be sent.
        self.greet(cx, number);
        Ok(())
    }

    /// Takes a message that carries its contents. Returns false if there is no memory for them: they go back and are
    /// fetched later.
    #[inline(always)]
    fn take_eager(
        &mut self,
        cx: &mut Working<'_>,
        number: u32,
        said: &wire::Envelope,
        contents: &[u8],
    ) -> Result<bool, Violation> {
        let units = units(contents.len());
        let Engine { peers, posted, .. } = self;
        let peer = peers.get_mut(number as usize).and_then(Option::as_mut).ok_or(Violation)?;
        if !peer.due.arrive(said.number, units) || !peer.window.take(said.credit) {
            return Err(Violation);
        }
        if peer.has_asked {
            peer.has_asked = !peer.window.has_message();
        }
        let space = space(said.label.tag.is_some());
        let Some(taker) = posted[space].take(number, said.label.tag.unwrap_or(0)) else {
            return Ok(self.take_unexpected(cx, number, said, contents));
        };
        peer.due.matched(units);
        let owes = !peer.queue.is_empty() || !peer.words.is_empty() || said.wants_done || peer.due.is_urgent();
        let source = peer.index;
        let message = Envelope { peer: super::Peer(number), source, label: said.label, len: contents.len() };
        match taker {
            Taker::One(mut once) => {
                let stored = once.target.write(0, contents);
                self.end_once(cx, once, Outcome::Received(Received { message, at: 0, stored }));
            }
            Taker::Many(receive) => self.store(cx, receive, message, contents),
        }
        if owes {
            self.told_stored(number, said);
            self.flush(cx, number);
        }
        Ok(true)
    }

    /// Stores a message that no receive is posted for, with its contents. Returns false if there is no memory for them.
    #[inline(never)]
    fn take_unexpected(&mut self, cx: &mut Working<'_>, number: u32, said: &wire::Envelope, contents: &[u8]) -> bool {
        let len = contents.len();
        let has_room = len == 0 || self.waiting_bytes + len <= self.settings.unexpected_most;
        let body = if has_room { Body::Here(contents.to_vec()) } else { Body::There };
        self.wait(number, *said, Sizes { len, units: units(len) }, body);
        if has_room {
            self.told_stored(number, said);
            self.flush(cx, number);
        }
        has_room
    }

    /// Finds the oldest receive for a message that is to be fetched. A receive of a single message leaves its queue.
    fn match_receive(&mut self, space: usize, peer: u32, tag: u64) -> Option<u32> {
        Some(match self.posted[space].take(peer, tag)? {
            Taker::One(once) => self.receives.insert(once.into()),
            Taker::Many(receive) => receive,
        })
    }

    /// Tells the sender that its message is stored, if it asked for that.
    #[inline(always)]
    fn told_stored(&mut self, number: u32, said: &wire::Envelope) {
        // A freed endpoint keeps nothing of what it still takes.
        if said.wants_done && !self.is_closing {
            self.say(number, Word::Done(said.number));
        }
    }

    /// Stores a message that no receive is posted for.
    fn wait(&mut self, peer: u32, said: wire::Envelope, sizes: Sizes, body: Body) {
        let Sizes { len, units } = sizes;
        let life = self.peer(peer).map_or(0, |p| p.life);
        if let Body::Here(contents) = &body {
            self.waiting_bytes += contents.len();
        }
        self.age += 1;
        let (age, label) = (self.age, said.label);
        let (number, wants_done, is_claimed) = (said.number, said.wants_done, false);
        let message = Message { peer, life, age, number, label, len, units, wants_done, body, is_claimed };
        let message = self.messages.insert(message);
        self.waiting[space(label.tag.is_some())].push(peer, age, label.tag.unwrap_or(0), message);
    }

    /// Takes credit for our messages. Returns whether messages wait that may go now.
    #[inline(always)]
    fn take_credit(&mut self, number: u32, told: Told) -> Result<bool, Violation> {
        let peer = self.peer(number).ok_or(Violation)?;
        if !peer.window.take(told) {
            return Err(Violation);
        }
        peer.has_asked &= !peer.window.has_message();
        Ok(!peer.queue.is_empty())
    }

    #[inline(never)]
    fn take_word(
        &mut self,
        cx: &mut Working<'_>,
        delivery: &Delivery<'_>,
        number: u32,
        word: Word,
    ) -> Result<(), Violation> {
        if !delivery.payload.is_empty() {
            return Err(Violation);
        }
        match word {
            // `deliver_other` handles it.
            Word::Hello(_) => return Err(Violation),
            Word::Announce(said, len) => self.take_announced(cx, number, said, len)?,
            Word::Fetch { number: message, receive, bytes, credit } => {
                self.take_credit(number, credit)?;
                self.take_fetch(cx, number, Demand { number: message, into: receive, bytes })?;
            }
            Word::Done(message) => {
                let peer = self.peer(number).ok_or(Violation)?;
                let unstored = peer.unstored.remove(&message).ok_or(Violation)?;
                self.end_unstored(cx, unstored, Outcome::Sent);
            }
            Word::Credit(told) => _ = self.take_credit(number, told)?,
            Word::Ask => {
                self.peer(number).ok_or(Violation)?.due.asked = true;
                self.asked(number);
            }
            Word::Bye => {
                self.peer_left(cx, number);
                return Ok(());
            }
            // `deliver` handles them.
            Word::Eager(_) | Word::Data(_) => return Err(Violation),
        }
        self.flush(cx, number);
        Ok(())
    }

    fn take_announced(
        &mut self,
        cx: &mut Working<'_>,
        number: u32,
        said: wire::Envelope,
        len: u64,
    ) -> Result<(), Violation> {
        let len = usize::try_from(len).map_err(|_| Violation)?;
        let peer = self.peer(number).ok_or(Violation)?;
        if !peer.due.arrive(said.number, 0) {
            return Err(Violation);
        }
        let life = peer.life;
        self.take_credit(number, said.credit)?;
        let space = space(said.label.tag.is_some());
        let Some(receive) = self.match_receive(space, number, said.label.tag.unwrap_or(0)) else {
            self.wait(number, said, Sizes { len, units: 0 }, Body::There);
            return Ok(());
        };
        self.peer(number).ok_or(Violation)?.due.matched(0);
        let message = Message {
            peer: number,
            life,
            age: 0,
            number: said.number,
            label: said.label,
            len,
            units: 0,
            wants_done: said.wants_done,
            body: Body::There,
            is_claimed: false,
        };
        self.fetch(cx, receive, &message);
        Ok(())
    }

    /// Takes the request for the contents of a message of ours. The message may have come back during this poll; then the core
    /// hands it over at the end of the poll.
    fn take_fetch(&mut self, cx: &mut Working<'_>, number: u32, demand: Demand) -> Result<(), Violation> {
        let peer = self.peer(number).ok_or(Violation)?;
        let answer = peer.announced.answer(demand).map_err(|_| Violation)?;
        let Some((sending, bytes)) = answer else { return Ok(()) };
        peer.bounced -= usize::from(sending.ends == Ends::Bounced);
        if bytes == 0 {
            self.end_fetched(cx, number, demand.number, sending);
        } else {
            peer.streams.post(Stream { number: demand.number, receive: demand.into, sending }, bytes);
        }
        Ok(())
    }

    /// Takes the next bytes of contents that we fetch.
    #[inline(always)]
    fn take_data(&mut self, cx: &mut Working<'_>, number: u32, at: u32, bytes: &[u8]) -> Result<(), Violation> {
        let transfer = self.transfers.get_mut(at).filter(|t| t.peer == number).ok_or(Violation)?;
        let to = transfer.rest.next(bytes.len()).map_err(|_| Violation)?;
        let r = self.receives.get_mut(transfer.receive).ok_or(Violation)?;
        r.target.write(to as usize, bytes);
        if !transfer.rest.is_whole() {
            return Ok(());
        }
        r.transfers -= 1;
        let Some(transfer) = self.transfers.remove(at) else { return Err(Violation) };
        let Transfer { receive, message, start, room, number: done, wants_done, .. } = transfer;
        self.on_taken(cx, receive, Outcome::Received(Received { message, at: start, stored: room }));
        if wants_done {
            self.say(number, Word::Done(done));
            self.flush(cx, number);
        }
        Ok(())
    }

    // ---- events of the core

    /// Takes a message of ours that came back.
    pub fn returned(&mut self, cx: &mut Working<'_>, returned: Returned) {
        let Some(number) = returned.destination else { return };
        let is_closing = self.is_closing;
        if is_closing {
            cx.state.come_again();
        }
        let Some(peer) = self.peer(number) else { return };
        let (index, is_greeted) = (peer.index, peer.is_greeted);
        let Some(word) = Word::unpack(returned.op, &returned.args) else { return };
        let Returned { reason, certainty, payload, .. } = returned;
        if let Word::Eager(said) = word {
            let is_unstored = peer.unstored.contains_key(&said.number);
            let contents = Source::Owned(payload);
            let may_fetch = !is_closing || peer.says_bye;
            if reason == Reason::QueueFull && is_greeted && may_fetch && !peer.announced.contains(said.number) {
                let sending = Sending { label: said.label, contents, ends: Ends::Bounced };
                self.keep_announced(cx, number, said.number, sending);
                return self.flush(cx, number);
            }
            // `fail_peer` below tells a send that waits for the message to be stored.
            if !is_unstored {
                let contents = contents.give_back().unwrap_or_default();
                self.come_back(cx, CameBack { to: index, label: said.label, contents, reason, certainty });
            }
        }
        // Words that a peer sent before it ended may still be on their way, and are taken until its flow ends.
        let is_gone = matches!(
            reason,
            Reason::NobodyThere | Reason::PeerLost | Reason::WrongEpoch | Reason::NoSuchEndpoint | Reason::WrongOwner
        );
        let flow = self.peer(number).and_then(|p| p.flow);
        let lives = |flow: FlowId| cx.state.sessions().any(|(session, _)| session == flow.session);
        match flow.is_some_and(|flow| is_gone && lives(flow)) {
            true => self.fail_sends(cx, number, reason),
            false => self.fail_peer(cx, number, reason),
        }
    }

    /// Keeps a message until the peer fetches its contents. If the message came back, the peer may have asked for them already.
    pub fn keep_announced(&mut self, cx: &mut Working<'_>, number: u32, message: u32, sending: Sending) {
        let Some(peer) = self.peer(number) else { return };
        peer.bounced += usize::from(sending.ends == Ends::Bounced);
        let len = sending.contents.bytes().len();
        let Some(demand) = peer.announced.add(message, sending, len) else { return };
        if let Err(Violation) = self.take_fetch(cx, number, demand) {
            self.fail_peer(cx, number, Reason::Violation);
        }
    }

    /// Takes an event about a peer.
    pub fn on_event(&mut self, cx: &mut Working<'_>, event: &Event) {
        match *event {
            Event::CanSend { destination, .. } => {
                if let Some(peer) = self.peer(destination) {
                    peer.streams.on_room();
                    self.flush(cx, destination);
                }
            }
            Event::PeerLost { destination, reason, .. } => {
                self.fail_peer(cx, destination, reason);
                self.forget_peer(cx, destination);
            }
            Event::Completed(_) | Event::Returned(_) | Event::ReplyRefused { .. } => {}
        }
    }

    /// A flow has ended. A peer that closes it without a goodbye is lost.
    pub fn flow_closed(&mut self, cx: &mut Working<'_>, flow: FlowId) {
        if let Some(number) = self.source_of(flow) {
            self.fail_peer(cx, number, Reason::PeerLost);
            self.forget_flow(flow);
        }
    }

    /// Frees the place of a lost peer that is not mapped and has no messages waiting here.
    fn forget_peer(&mut self, cx: &mut Working<'_>, number: u32) {
        let is_mapped = self.peer(number).is_some_and(|p: &mut Peer| p.index.is_some());
        if is_mapped || !self.messages.numbers(|m| m.peer == number).is_empty() {
            return;
        }
        // Fail the receives that stayed after the peer left, because its number may be given to another peer.
        self.fail_receives(cx, number, Reason::NoSuchEndpoint, false);
        if let Some(peer) = self.peers.get_mut(number as usize).and_then(Option::take) {
            self.by_name.remove(&peer.name);
            // Cannot fail: it was mapped when the peer was added.
            let _ = cx.state.unmap(self.endpoint, number);
        }
    }
}

/// The length of a message, and the units of credit that it counts for.
struct Sizes {
    len: usize,
    units: u32,
}
