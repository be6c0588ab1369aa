//! Output to peers: words, messages with their contents, announcements, contents that are fetched.

use super::Engine;
use crate::tagged::peer::{Ends, Peer, Sending};
use crate::tagged::{Outcome, Working};
use weft_core::bulk::{Demand, Step, Turn};
use weft_core::{Outgoing, SendError};
use weft_wire::tagged::{self as wire, Word};
use weft_wire::{Certainty, Reason};

impl Engine {
    pub(in crate::tagged) fn say(&mut self, number: u32, word: Word) {
        if let Some(peer) = self.peer(number) {
            peer.words.push_back(word);
        }
    }

    pub(super) fn say_fetch(&mut self, peer: u32, demand: Demand) {
        let Demand { number, into: receive, bytes } = demand;
        // The credit is filled in when the word is sent.
        self.say(peer, Word::Fetch { number, receive, bytes, credit: wire::Told::default() });
    }

    /// A peer asks for credit. It gets some if a receive is posted that none of its messages has matched: the matching message may
    /// be among those that the peer holds back. Otherwise it waits until there is such a receive, or until its messages are
    /// matched.
    pub(in crate::tagged) fn asked(&mut self, number: u32) {
        let has_room = self.messages.len() < self.settings.waiting_most;
        let is_wanted = has_room && self.posted.iter().any(|posted| posted.waits_for(number));
        let Some(peer) = self.peer(number).filter(|peer| peer.due.asked && peer.due.is_exhausted()) else { return };
        if is_wanted {
            peer.due.grant();
        } else if !self.asking.contains(&number) {
            self.asking.push(number);
        }
    }

    /// A receive was posted that nothing has matched, or one more message may wait here. Peers that asked for credit may get some
    /// now.
    #[inline(always)]
    pub(super) fn there_is_room(&mut self, cx: &mut Working<'_>) {
        if !self.asking.is_empty() {
            self.look_at_who_asks(cx);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_who_asks(&mut self, cx: &mut Working<'_>) {
        for number in std::mem::take(&mut self.asking) {
            self.asked(number);
            self.flush(cx, number);
        }
    }

    /// Sends everything queued for a peer, as far as there is room.
    pub(in crate::tagged) fn flush(&mut self, cx: &mut Working<'_>, number: u32) {
        let Some(peer) = self.peer(number).filter(|p| !p.streams.is_full() && p.has_something()) else { return };
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
        let is_last = |p: &&mut Peer| p.says_bye && p.is_greeted && p.words.is_empty() && p.queue.is_empty();
        let is_last =
            |p: &&mut Peer| is_last(p) && p.announced.is_empty() && p.streams.is_empty() && !p.streams.is_full();
        if self.peer(number).filter(is_last).is_some() && self.push(cx, number, Word::Bye, &[]) {
            if let Some(peer) = self.peer(number) {
                peer.says_bye = false;
            }
        }
    }

    /// Sends one word. Returns false if there is no room.
    fn push(&mut self, cx: &mut Working<'_>, number: u32, word: Word, payload: &[u8]) -> bool {
        let packed = word.pack();
        let message = Outgoing { op: packed.op, args: packed.args(), payload, completion: None };
        let sent = cx.state.try_send_urgent(self.endpoint, number, message);
        if let (Err(SendError::Full), Some(peer)) = (sent, self.peer(number)) {
            peer.streams.set_full();
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
                // New messages wait for the peer's program to free credit. Contents that are being fetched continue.
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
                    let message = self.peer(number).map_or(0, |peer| peer.window.next.wrapping_sub(1));
                    self.keep_announced(cx, number, message, first);
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
        let (endpoint, mut turn) = (self.endpoint, Turn::default());
        while let Some(peer) = self.peer(number) {
            let step = peer.streams.send(&mut turn, |stream, piece| {
                let packed = Word::Data(stream.receive).pack();
                let payload = &stream.sending.contents.bytes()[piece.range()];
                let message = Outgoing { op: packed.op, args: packed.args(), payload, completion: None };
                cx.state.try_send_urgent(endpoint, number, message)
            });
            match step {
                Step::Left(stream) => self.end_fetched(cx, number, stream.number, stream.sending),
                Step::Never(stream, _) => {
                    // The peer would wait for the rest forever.
                    let (reason, certainty) = (Reason::PeerLost, Certainty::NotDelivered);
                    self.end_send(cx, stream.sending, Outcome::Failed { reason, certainty }, None);
                    self.fail_peer(cx, number, reason);
                }
                Step::Stopped => return,
                Step::TurnIsOver => return self.turns.come_again(cx.state, number),
            }
        }
    }

    /// Ends a message whose requested contents were all sent.
    pub(in crate::tagged) fn end_fetched(&mut self, cx: &mut Working<'_>, number: u32, message: u32, sending: Sending) {
        match (sending.ends, self.peer(number)) {
            (Ends::Stored(context), Some(peer)) => {
                peer.unstored.insert(message, (context, sending.contents.give_back()));
            }
            _ => self.end_send(cx, sending, Outcome::Sent, None),
        }
    }

    /// Continues with the peers that used up their turn.
    pub fn go_on(&mut self, cx: &mut Working<'_>) -> u32 {
        let ready = self.turns.take();
        for &number in &ready {
            if let Some(peer) = self.peer(number) {
                peer.streams.begin_turn();
            }
            self.flush(cx, number);
        }
        ready.len() as u32
    }
}
