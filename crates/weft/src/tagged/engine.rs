//! What an endpoint for tagged messages knows, and what the program and the way to the peers make of it. What comes from the
//! peers is in `arrivals.rs`.

use super::peer::{Ends, Peer, Sending};
use super::queues::{Posted, Slab, Waiting, Wanted};
use super::{
    CameBack, Claim, Completion, Envelope, Outcome, Pattern, PostError, Settings, Source, Tags, Target, Working,
};
use std::collections::HashMap;
use weft_core::{Endpoint, FlowId, Outgoing, SendError};
use weft_wire::tagged::{self as wire, Label, Word};
use weft_wire::{Certainty, Key, Name, Reason, MAX_PAYLOAD};

/// Bytes of contents that go in one message.
pub(super) const PIECE: usize = 16 << 10;

/// Bytes of contents that go to one peer before others have their turn.
const PIECES_MOST: usize = 1 << 20;

/// Peers that only said hello and are not mapped; who comes behind them is refused.
pub(super) const UNMAPPED_MOST: usize = 1 << 16;

/// Entries of a translation table, at most.
const TABLE_MOST: usize = 1 << 20;

/// A message that a receive of many took counts for so many bytes at least.
const MANY_LEAST: usize = 64;

/// The state of an endpoint for tagged messages.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) endpoint: Endpoint,
    key: Key,
    pub(super) settings: Settings,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) by_name: HashMap<Name, u32>,
    by_index: Vec<Option<u32>>,
    /// Which peer sends by a flow: by session and number.
    pub(super) sources: Vec<Flows>,
    pub(super) receives: Slab<Receive>,
    /// Without tags and with tags.
    pub(super) posted: [Posted; 2],
    pub(super) messages: Slab<Message>,
    pub(super) waiting: [Waiting; 2],
    pub(super) transfers: Slab<Transfer>,
    /// Of receives and of messages, in the order they came.
    pub(super) age: u64,
    /// Posted and not ended.
    pub(super) operations: usize,
    pub(super) waiting_bytes: usize,
    injected_bytes: usize,
    /// Peers to go on with.
    ready: Vec<u32>,
    /// The program freed the endpoint: what is to be said is said, and then it ends.
    pub is_closing: bool,
}

/// Which peers send by the flows of a session.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub life: u32,
    pub peers: Vec<Option<u32>>,
}

/// A receive. Moved in and out with each message: what few have is apart.
#[derive(Debug)]
pub(super) struct Receive {
    pub target: Target,
    pub context: u64,
    many: Option<Box<Many>>,
    peer: Option<u32>,
    is_tagged: bool,
    /// Messages whose contents are being fetched into it.
    pub transfers: u32,
    /// It stands in a line.
    pub is_posted: bool,
}

/// What a receive of many has taken.
#[derive(Debug)]
struct Many {
    least: usize,
    at: usize,
    left: usize,
}

/// A message that is not matched, or claimed.
#[derive(Debug)]
pub(super) struct Message {
    pub peer: u32,
    /// The peer's, when it came.
    pub life: u32,
    pub age: u64,
    pub number: u32,
    pub label: Label,
    pub len: usize,
    pub units: u32,
    pub wants_done: bool,
    pub body: Body,
    pub is_claimed: bool,
}

#[derive(Debug)]
pub(super) enum Body {
    Here(Vec<u8>),
    /// To be fetched.
    There,
    /// It cannot be fetched any more.
    Gone(Reason),
}

/// Contents that are being fetched.
#[derive(Debug)]
pub(super) struct Transfer {
    pub peer: u32,
    pub receive: u32,
    pub message: Envelope,
    pub number: u32,
    pub wants_done: bool,
    pub start: usize,
    pub at: usize,
    pub end: usize,
}

/// The space that messages are matched in.
#[inline(always)]
pub(super) fn space(is_tagged: bool) -> usize {
    usize::from(is_tagged)
}

/// What one injected message that waits counts for.
fn cost(len: usize) -> usize {
    len + std::mem::size_of::<Sending>()
}

impl Engine {
    pub fn new(endpoint: Endpoint, key: Key, settings: Settings) -> Engine {
        Engine {
            endpoint,
            key,
            settings: Settings { eager_most: settings.eager_most.min(MAX_PAYLOAD), ..settings },
            peers: Vec::new(),
            by_name: HashMap::new(),
            by_index: Vec::new(),
            sources: Vec::new(),
            receives: Slab::default(),
            posted: Default::default(),
            messages: Slab::default(),
            waiting: Default::default(),
            transfers: Slab::default(),
            age: 0,
            operations: 0,
            waiting_bytes: 0,
            injected_bytes: 0,
            ready: Vec::new(),
            is_closing: false,
        }
    }

    // ---- peers

    pub fn map(&mut self, cx: &mut Working<'_>, index: u32, name: Name, key: Key) -> Result<(), PostError> {
        if index as usize >= TABLE_MOST {
            return Err(PostError::NotMapped(index));
        }
        let number = match self.by_name.get(&name) {
            Some(&number) => number,
            None => self.add_peer(cx, name, key).ok_or(PostError::Full)?,
        };
        self.set_key(cx, number, key);
        self.enter(index, number);
        Ok(())
    }

    pub fn map_peer(&mut self, index: u32, peer: u32) -> Result<(), PostError> {
        if index as usize >= TABLE_MOST || self.peer(peer).is_none() {
            return Err(PostError::NotMapped(index));
        }
        self.enter(index, peer);
        Ok(())
    }

    pub fn unmap(&mut self, index: u32) -> Result<(), PostError> {
        let number = self.by_index.get_mut(index as usize).and_then(Option::take).ok_or(PostError::NotMapped(index))?;
        if let Some(peer) = self.peer(number).filter(|p| p.index == Some(index)) {
            peer.index = None;
        }
        Ok(())
    }

    pub fn lost(&self, index: u32) -> Option<Reason> {
        let number = self.number_at(index).ok()?;
        self.peers.get(number as usize)?.as_ref()?.lost
    }

    pub fn name_of(&self, peer: u32) -> Option<Name> {
        self.peers.get(peer as usize)?.as_ref().map(|p| p.name)
    }

    fn enter(&mut self, index: u32, number: u32) {
        // What was there is entered there no more.
        let _ = self.unmap(index);
        if self.by_index.len() <= index as usize {
            self.by_index.resize(index as usize + 1, None);
        }
        self.by_index[index as usize] = Some(number);
        if let Some(peer) = self.peer(number) {
            peer.index.get_or_insert(index);
        }
    }

    /// Adds a peer, whose number is also its index in the endpoint's own translation table.
    pub(super) fn add_peer(&mut self, cx: &mut Working<'_>, name: Name, key: Key) -> Option<u32> {
        let free = self.peers.iter().position(Option::is_none).filter(|_| self.by_name.len() < self.peers.len());
        let number = free.unwrap_or(self.peers.len()) as u32;
        cx.state.map(self.endpoint, number, name, key).ok()?;
        if free.is_none() {
            self.peers.push(None);
        }
        self.peers[number as usize] = Some(Peer::new(name, key));
        self.by_name.insert(name, number);
        Some(number)
    }

    /// Whoever says so knows the peer's key.
    pub(super) fn set_key(&mut self, cx: &mut Working<'_>, number: u32, key: Key) {
        let endpoint = self.endpoint;
        let Some(peer) = self.peer(number).filter(|p| !p.key.matches(key)) else { return };
        peer.key = key;
        // The endpoint is there, and the index was.
        let _ = cx.state.map(endpoint, number, peer.name, key);
    }

    #[inline(always)]
    pub(super) fn peer(&mut self, number: u32) -> Option<&mut Peer> {
        self.peers.get_mut(number as usize)?.as_mut()
    }

    #[inline(always)]
    fn number_at(&self, index: u32) -> Result<u32, PostError> {
        self.by_index.get(index as usize).copied().flatten().ok_or(PostError::NotMapped(index))
    }

    /// Which peer sends by a flow.
    #[inline(always)]
    pub(super) fn source_of(&self, flow: FlowId) -> Option<u32> {
        let flows = self.sources.get(flow.session.index as usize).filter(|flows| flows.life == flow.session.life)?;
        flows.peers.get(usize::from(flow.number)).copied().flatten()
    }

    // ---- what the program posts

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
        let number = match self.number_at(to) {
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

    /// A message went with its contents, which was never among those posted.
    #[inline(always)]
    fn has_gone(&mut self, cx: &mut Working<'_>, number: u32, contents: Source, ends: Ends) {
        self.operations += 1;
        self.end_eager(cx, number, Sending { label: Label::default(), contents, ends });
    }

    #[inline(always)]
    pub fn inject(&mut self, cx: &mut Working<'_>, to: u32, label: Label, bytes: &[u8]) -> Result<(), PostError> {
        let number = self.number_at(to)?;
        if self.send_at_once(cx, number, label, bytes, false) {
            return Ok(());
        }
        self.inject_later(cx, number, label, bytes)
    }

    /// Keeps a copy of an injected message until there is room.
    #[cold]
    #[inline(never)]
    fn inject_later(&mut self, cx: &mut Working<'_>, number: u32, label: Label, bytes: &[u8]) -> Result<(), PostError> {
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

    /// Sends a message with its contents, if it can go so before anything else.
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

    /// Sends a message that has a tag and data with its contents. False if there is no room.
    #[inline(never)]
    fn send_with_data(&mut self, cx: &mut Working<'_>, number: u32, envelope: wire::Envelope, bytes: &[u8]) -> bool {
        let endpoint = self.endpoint;
        let (Some(peer), Some((op, args))) = (self.peer(number), envelope.pack_plain_with_data()) else { return false };
        let message = Outgoing { op, args: &args, payload: bytes, completion: None };
        peer.on_sent_eager(cx.state.try_send_urgent(endpoint, number, message), bytes.len())
    }

    /// Sends a message with its contents. False if there is no room.
    #[inline(never)]
    fn send_eager(&mut self, cx: &mut Working<'_>, number: u32, envelope: wire::Envelope, bytes: &[u8]) -> bool {
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
            Some(index) => match self.number_at(index) {
                Ok(number) => Some(number),
                Err(error) => return Err((error, target)),
            },
        };
        if self.is_full(cx) {
            return Err((PostError::Full, target));
        }
        self.operations += 1;
        let (is_tagged, tags) = (pattern.tags.is_some(), pattern.tags.unwrap_or_default());
        let many = least.map(|least| Box::new(Many { least, at: 0, left: target.len() / MANY_LEAST + 1 }));
        let is_of_many = many.is_some();
        let receive = Receive { target, context, many, peer, is_tagged, transfers: 0, is_posted: true };
        let receive = self.receives.insert(receive);
        let waits = self.waiting[space(is_tagged)].find(peer, tags).is_some();
        if waits && self.receive_what_waits(cx, receive, peer, is_tagged, tags) {
            return Ok(());
        }
        self.age += 1;
        self.posted[space(is_tagged)].push(peer, Wanted { age: self.age, tags, receive, is_of_many });
        if let Some(number) = peer {
            self.greet(cx, number);
        }
        Ok(())
    }

    /// Gives a receive the messages that wait for it. Whether that was all it was for.
    #[inline(never)]
    fn receive_what_waits(
        &mut self,
        cx: &mut Working<'_>,
        receive: u32,
        peer: Option<u32>,
        is_tagged: bool,
        tags: Tags,
    ) -> bool {
        let space = space(is_tagged);
        while let Some(message) = self.waiting[space].find(peer, tags) {
            if let Some(r) = self.receives.get_mut(receive) {
                // It stands in no line yet; one of many goes on, until there is no room.
                r.is_posted = r.many.is_some();
            }
            self.take_waiting(message, space);
            self.receive_waiting(cx, receive, message);
            if !self.receives.get(receive).is_some_and(|r| r.is_posted) {
                return true;
            }
        }
        false
    }

    /// Says hello to a peer that something is wanted of, so that its end is noticed.
    #[inline(always)]
    pub(super) fn greet(&mut self, cx: &mut Working<'_>, number: u32) {
        let Some(peer) = self.peer(number).filter(|p| !p.is_greeted) else { return };
        peer.wants_hello = true;
        self.flush(cx, number);
    }

    /// Takes a message out of its lines.
    fn take_waiting(&mut self, message: u32, space: usize) {
        let Some(waiting) = self.messages.get(message) else { return };
        self.waiting[space].remove(waiting.peer, waiting.age);
    }

    /// A message that waited is received.
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
    }

    pub(super) fn envelope(&self, message: &Message) -> Envelope {
        let peer = self.peers.get(message.peer as usize).and_then(Option::as_ref);
        let source = peer.and_then(|p| p.index);
        Envelope { peer: super::Peer(message.peer), source, label: message.label, len: message.len }
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
        let peer = pattern.source.map(|index| self.number_at(index)).transpose()?;
        let space = space(pattern.tags.is_some());
        let found = self.waiting[space].find(peer, pattern.tags.unwrap_or_default());
        let message = found.and_then(|number| Some((number, self.messages.get(number)?)));
        Ok(message.map(|(number, message)| (number, space, self.envelope(message))))
    }

    /// Whether a claim is of a message that is here.
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
        let receive =
            Receive { target, context, many: None, peer: None, is_tagged: false, transfers: 0, is_posted: false };
        let receive = self.receives.insert(receive);
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
            Body::There => self.say_fetch(message.peer, message.number, 0, 0),
            Body::Gone(_) => {}
        }
        self.flush(cx, message.peer);
    }

    pub fn cancel(&mut self, cx: &mut Working<'_>, context: u64) -> bool {
        let receives = self.receives.numbers(|r| r.context == context && r.is_posted);
        for receive in receives {
            let Some(r) = self.receives.get_mut(receive) else { continue };
            let (space, peer) = (space(r.is_tagged), r.peer);
            if self.posted[space].remove(peer, receive) {
                self.withdraw(cx, receive);
                return true;
            }
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

    /// A receive that was taken out of its line is cancelled.
    fn withdraw(&mut self, cx: &mut Working<'_>, receive: u32) {
        let Some(r) = self.receives.get_mut(receive) else { return };
        r.is_posted = false;
        // Else the last of its messages ends it.
        if r.transfers == 0 {
            self.end_receive(cx, receive, Outcome::Cancelled);
        }
    }

    pub fn waiting(&self) -> (usize, usize) {
        let of = |space: usize| (0..self.peers.len()).map(|p| self.waiting[space].of_peer(p as u32)).sum::<usize>();
        (of(0) + of(1), self.waiting_bytes)
    }

    // ---- how operations end

    #[inline(always)]
    pub(super) fn complete(
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

    /// Messages of ours end here.
    pub(super) fn end_send(&mut self, cx: &mut Working<'_>, sending: Sending, outcome: Outcome, index: Option<u32>) {
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
                if let Outcome::Failed { reason, certainty } = outcome {
                    self.come_back(cx, CameBack { to: index, label, contents, reason, certainty });
                }
            }
        }
    }

    /// A message that has ended came back.
    pub(super) fn come_back(&mut self, cx: &mut Working<'_>, message: CameBack) {
        self.complete(cx, 0, Outcome::CameBack(Box::new(message)), true, None);
    }

    /// A send that waited to be stored there ends.
    pub(super) fn end_unstored(&mut self, cx: &mut Working<'_>, unstored: (u64, Option<Vec<u8>>), outcome: Outcome) {
        self.operations -= 1;
        self.complete(cx, unstored.0, outcome, true, unstored.1);
    }

    /// A message went with its contents.
    #[inline(always)]
    fn end_eager(&mut self, cx: &mut Working<'_>, number: u32, sending: Sending) {
        if let Ends::Stored(context) = sending.ends {
            let buffer = sending.contents.give_back();
            if let Some(peer) = self.peer(number) {
                peer.unstored.insert(peer.window.next.wrapping_sub(1), (context, buffer));
            }
            return;
        }
        self.end_send(cx, sending, Outcome::Sent, None);
    }

    /// A receive ends that took no message, or none any more.
    pub(super) fn end_receive(&mut self, cx: &mut Working<'_>, receive: u32, outcome: Outcome) {
        let Some(r) = self.receives.remove(receive) else { return };
        self.operations -= 1;
        self.complete(cx, r.context, outcome, true, r.target.give_back());
    }

    /// A receive has taken a message, or lost one: it ends, unless it is one of many that goes on.
    #[inline(always)]
    pub(super) fn on_taken(&mut self, cx: &mut Working<'_>, receive: u32, outcome: Outcome) {
        let Some(r) = self.receives.get(receive) else { return };
        if r.is_posted || r.transfers > 0 {
            let context = r.context;
            self.complete(cx, context, outcome, false, None);
        } else {
            self.end_receive(cx, receive, outcome);
        }
    }

    /// Makes room in a receive for a message that it is matched with. Where it begins, and how much there is.
    #[inline(always)]
    pub(super) fn make_room(&mut self, receive: u32, len: usize) -> Option<(usize, usize)> {
        let r = self.receives.get_mut(receive)?;
        let Some(many) = &mut r.many else { return Some((0, len.min(r.target.len()))) };
        let at = many.at;
        let room = len.min(r.target.len() - at);
        many.at = (at + room).next_multiple_of(8).min(r.target.len());
        many.left -= 1;
        // It goes on if there is room left.
        r.is_posted = many.left > 0 && r.target.len() - many.at >= many.least.max(1);
        if !r.is_posted {
            let (space, peer) = (space(r.is_tagged), r.peer);
            self.posted[space].remove(peer, receive);
        }
        Some((at, room))
    }

    /// Stores a message whose contents are here.
    #[inline(always)]
    pub(super) fn store(&mut self, cx: &mut Working<'_>, receive: u32, message: Envelope, contents: &[u8]) {
        let Some((at, room)) = self.make_room(receive, contents.len()) else { return };
        if let Some(r) = self.receives.get_mut(receive) {
            r.target.write(at, &contents[..room]);
        }
        self.on_taken(cx, receive, Outcome::Received(super::Received { message, at, stored: room }));
    }

    /// Fetches a message's contents.
    pub(super) fn fetch(&mut self, cx: &mut Working<'_>, receive: u32, message: &Message) {
        let Some((start, room)) = self.make_room(receive, message.len) else { return };
        let envelope = self.envelope(message);
        if room == 0 {
            self.say_fetch(message.peer, message.number, 0, 0);
            if message.wants_done {
                self.say(message.peer, Word::Done(message.number));
            }
            let received = super::Received { message: envelope, at: start, stored: 0 };
            return self.on_taken(cx, receive, Outcome::Received(received));
        }
        if let Some(r) = self.receives.get_mut(receive) {
            r.transfers += 1;
        }
        let Message { peer, number, wants_done, .. } = *message;
        let end = start + room;
        let transfer = Transfer { peer, receive, message: envelope, number, wants_done, start, at: start, end };
        let transfer = self.transfers.insert(transfer);
        self.say_fetch(peer, number, transfer, room as u64);
    }

    /// A receive that a message was matched with comes to nothing.
    pub(super) fn fail_receive(&mut self, cx: &mut Working<'_>, receive: u32, reason: Reason, certainty: Certainty) {
        self.on_taken(cx, receive, Outcome::Failed { reason, certainty });
    }

    /// A message that waited was matched, or dropped.
    fn matched(&mut self, message: &Message) {
        let peer = self.peer(message.peer).filter(|p| p.life == message.life);
        if let Some(peer) = peer {
            peer.due.matched(message.units);
        }
    }

    // ---- words to peers

    pub(super) fn say(&mut self, number: u32, word: Word) {
        if let Some(peer) = self.peer(number) {
            peer.words.push_back(word);
        }
    }

    fn say_fetch(&mut self, peer: u32, number: u32, receive: u32, bytes: u64) {
        // The credit is entered when it goes.
        self.say(peer, Word::Fetch { number, receive, bytes, credit: wire::Told::default() });
    }

    /// Says what there is to say to a peer, as far as there is room.
    pub(super) fn flush(&mut self, cx: &mut Working<'_>, number: u32) {
        let Some(peer) = self.peer(number).filter(|p| !p.is_full && p.has_something()) else { return };
        if !peer.is_greeted {
            let hello = Word::Hello(self.key);
            if !self.push(cx, number, hello, &[]) {
                return;
            }
            if let Some(peer) = self.peer(number) {
                peer.is_greeted = true;
            }
        }
        if self.flush_words(cx, number) && self.flush_queue(cx, number) {
            self.flush_streams(cx, number);
        }
    }

    /// Sends one word. False if there is no room.
    fn push(&mut self, cx: &mut Working<'_>, number: u32, word: Word, payload: &[u8]) -> bool {
        let packed = word.pack();
        let message = Outgoing { op: packed.op, args: packed.args(), payload, completion: None };
        let sent = cx.state.try_send_urgent(self.endpoint, number, message);
        if let (Err(SendError::Full), Some(peer)) = (sent, self.peer(number)) {
            peer.is_full = true;
        }
        sent.is_ok()
    }

    fn flush_words(&mut self, cx: &mut Working<'_>, number: u32) -> bool {
        while let Some(peer) = self.peer(number) {
            let credit = peer.due.to_tell();
            let (word, tells) = match peer.words.front() {
                Some(&Word::Fetch { number, receive, bytes, .. }) => {
                    (Word::Fetch { number, receive, bytes, credit }, true)
                }
                Some(&word) => (word, false),
                None if peer.due.is_urgent() => (Word::Credit(credit), true),
                None => return true,
            };
            if !self.push(cx, number, word, &[]) {
                return false;
            }
            let Some(peer) = self.peer(number) else { return false };
            peer.words.pop_front();
            if tells {
                peer.due.on_told();
            }
        }
        false
    }

    fn flush_queue(&mut self, cx: &mut Working<'_>, number: u32) -> bool {
        let most = self.settings.eager_most;
        while let Some(peer) = self.peer(number) {
            let Some(first) = peer.queue.front() else { return true };
            if !peer.window.has_message() {
                // It waits for the peer's program. What was fetched goes on meanwhile.
                let asks = !std::mem::replace(&mut peer.has_asked, true);
                if asks && !self.push(cx, number, Word::Ask, &[]) {
                    if let Some(peer) = self.peer(number) {
                        peer.has_asked = false;
                    }
                    return false;
                }
                return true;
            }
            let is_whole = peer.goes_whole(first.contents.bytes().len(), most);
            let Some(first) = peer.queue.pop_front() else { return true };
            let sent = match is_whole {
                true => {
                    let (label, wants_done) = (first.label, matches!(first.ends, Ends::Stored(_)));
                    let said =
                        wire::Envelope { number: peer.window.next, credit: peer.due.to_tell(), label, wants_done };
                    self.send_eager(cx, number, said, first.contents.bytes())
                }
                false => self.announce(cx, number, &first),
            };
            match (sent, is_whole) {
                (true, true) => self.end_eager(cx, number, first),
                (true, false) => {
                    if let Some(peer) = self.peer(number) {
                        peer.announced.insert(peer.window.next.wrapping_sub(1), first);
                    }
                }
                (false, _) => {
                    if let Some(peer) = self.peer(number) {
                        peer.queue.push_front(first);
                    }
                    return false;
                }
            }
        }
        false
    }

    fn announce(&mut self, cx: &mut Working<'_>, number: u32, first: &Sending) -> bool {
        let Some(peer) = self.peer(number) else { return false };
        let wants_done = matches!(first.ends, Ends::Stored(_));
        let (label, credit) = (first.label, peer.due.to_tell());
        let envelope = wire::Envelope { number: peer.window.next, credit, label, wants_done };
        let word = Word::Announce(envelope, first.contents.bytes().len() as u64);
        let sent = self.push(cx, number, word, &[]);
        if let (true, Some(peer)) = (sent, self.peer(number)) {
            peer.window.spend(0);
            peer.due.on_told();
        }
        sent
    }

    fn flush_streams(&mut self, cx: &mut Working<'_>, number: u32) {
        let mut left = PIECES_MOST;
        let endpoint = self.endpoint;
        while let Some(peer) = self.peer(number) {
            let Some(stream) = peer.streams.front_mut() else { return };
            if left == 0 {
                self.ready.push(number);
                cx.state.come_again();
                return;
            }
            let len = PIECE.min(stream.end - stream.at);
            let packed = Word::Data(stream.receive).pack();
            let payload = &stream.sending.contents.bytes()[stream.at..stream.at + len];
            let message = Outgoing { op: packed.op, args: packed.args(), payload, completion: None };
            if cx.state.try_send_urgent(endpoint, number, message).is_err() {
                peer.is_full = true;
                return;
            }
            left = left.saturating_sub(len);
            stream.at += len;
            if stream.at == stream.end {
                if let Some(stream) = peer.streams.pop_front() {
                    self.end_fetched(cx, number, stream.number, stream.sending);
                }
            }
        }
    }

    /// All that was wanted of a message has gone.
    pub(super) fn end_fetched(&mut self, cx: &mut Working<'_>, number: u32, message: u32, sending: Sending) {
        match (sending.ends, self.peer(number)) {
            (Ends::Stored(context), Some(peer)) => {
                peer.unstored.insert(message, (context, sending.contents.give_back()));
            }
            _ => self.end_send(cx, sending, Outcome::Sent, None),
        }
    }

    /// Goes on with those that had their turn.
    pub fn go_on(&mut self, cx: &mut Working<'_>) -> u32 {
        let ready = std::mem::take(&mut self.ready);
        for &number in &ready {
            self.flush(cx, number);
        }
        ready.len() as u32
    }

    // ---- endings

    /// Ends everything that has to do with a peer, but for messages that came with their contents.
    pub(super) fn fail_peer(&mut self, cx: &mut Working<'_>, number: u32, reason: Reason) {
        let endpoint = self.endpoint;
        let Some(peer) = self.peer(number) else { return };
        let (name, key, index) = (peer.name, peer.key, peer.index);
        let life = peer.life.wrapping_add(1);
        let before = std::mem::replace(peer, Peer { index, life, lost: Some(reason), ..Peer::new(name, key) });
        // Whoever is sent to next is called anew.
        let _ = cx.state.map(endpoint, number, name, key);
        if let Some(flow) = before.flow {
            self.forget_flow(flow);
        }
        let failed = |certainty| Outcome::Failed { reason, certainty };
        let mut announced: Vec<_> = before.announced.into_iter().collect();
        announced.sort_by_key(|&(message, _)| message.wrapping_sub(before.window.next));
        let streams = before.streams.into_iter().map(|s| s.sending);
        let sends = streams.chain(announced.into_iter().map(|(_, s)| s)).chain(before.queue);
        for sending in sends.collect::<Vec<_>>() {
            self.end_send(cx, sending, failed(Certainty::NotDelivered), index);
        }
        for (_, unstored) in before.unstored {
            self.end_unstored(cx, unstored, failed(Certainty::Unknown));
        }
        self.fail_receives(cx, number, reason);
    }

    /// Ends the receives that only this peer could end, and its announced messages.
    fn fail_receives(&mut self, cx: &mut Working<'_>, number: u32, reason: Reason) {
        for transfer in self.transfers.numbers(|t| t.peer == number) {
            let Some(transfer) = self.transfers.remove(transfer) else { continue };
            if let Some(r) = self.receives.get_mut(transfer.receive) {
                r.transfers -= 1;
            }
            self.fail_receive(cx, transfer.receive, reason, Certainty::NotDelivered);
        }
        for space in 0..self.posted.len() {
            for receive in self.posted[space].take_all_of(number) {
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

    pub(super) fn forget_flow(&mut self, flow: FlowId) {
        let flows = self.sources.get_mut(flow.session.index as usize).filter(|f| f.life == flow.session.life);
        if let Some(place) = flows.and_then(|f| f.peers.get_mut(usize::from(flow.number))) {
            *place = None;
        }
    }

    /// The program frees the endpoint: what is posted is cancelled, and peers are told.
    pub fn close(&mut self, cx: &mut Working<'_>) {
        self.is_closing = true;
        for number in 0..self.peers.len() as u32 {
            let Some(peer) = self.peer(number) else { continue };
            let knows_us = peer.is_greeted || peer.flow.is_some();
            let announced = std::mem::take(&mut peer.announced).into_values();
            let streams = std::mem::take(&mut peer.streams).into_iter().map(|s| s.sending);
            let sends: Vec<_> = announced.chain(streams).chain(std::mem::take(&mut peer.queue)).collect();
            let unstored = std::mem::take(&mut peer.unstored);
            peer.words.clear();
            if knows_us {
                peer.words.push_back(Word::Bye);
            }
            sends.into_iter().for_each(|sending| self.end_send(cx, sending, Outcome::Cancelled, None));
            unstored.into_values().for_each(|unstored| self.end_unstored(cx, unstored, Outcome::Cancelled));
            self.flush(cx, number);
        }
        for receive in self.receives.numbers(|_| true) {
            self.end_receive(cx, receive, Outcome::Cancelled);
        }
    }

    /// Whether it is freed and has said so to everybody.
    pub fn is_closed(&self) -> bool {
        self.is_closing && self.peers.iter().flatten().all(|p| p.words.is_empty())
    }
}
