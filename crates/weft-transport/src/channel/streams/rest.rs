//! Closing streams at rest: neither side uses them any more, and no message is lost.
//!
//! ```text
//! opener    No --wish--> Wanted --all was taken--> Proposed --Rested--> forgotten
//!            ^              | something is sent        | Stay
//!            +--------------+--------------------------+
//! other     No --Rest--> Asked --agrees, nothing sent--> last word Rested, until it is acknowledged
//!            ^              +-- declines --> Stays
//! ```

use super::*;

impl<M: Memory> Streams<M> {
    /// The owner no longer uses a stream that this side opened. Once everything was taken, the peer is asked to close
    /// it; an event reports the outcome.
    pub fn wish_rest(&mut self, id: StreamId) {
        if let Some(s) = find(&mut self.places, id).filter(|s| s.resting.state == RestState::No) {
            s.resting.state = RestState::Wanted;
            self.propose(id);
        }
    }

    /// Asks the peer to close a stream, if the owner wants that and everything was taken.
    pub(super) fn propose(&mut self, id: StreamId) {
        let Some(s) = find(&mut self.places, id).filter(|s| s.resting.state == RestState::Wanted) else { return };
        if s.is_unused() {
            // The peer does not know the stream.
            let owner = s.owner;
            self.remove(id);
            return self.events.push_back(Event::Rested(id, owner));
        }
        let Some(taken) = s.all_taken().filter(|_| s.out.kept() == 0 && !s.out.is_refused()) else { return };
        let (sent, taken) = (s.out.traffic().pushed as u32, taken as u32);
        // The same proposal is never made twice, so a late answer cannot be taken for the answer to the next one.
        if s.resting.was_declined && (s.resting.sent, s.resting.taken) == (sent, taken) {
            s.resting.state = RestState::No;
            return;
        }
        s.resting = Resting { state: RestState::Proposed, is_due: true, was_declined: false, sent, taken };
        self.tell(id);
    }

    /// The peer proposes to close a stream of its own.
    pub fn on_rest(&mut self, rest: &frame::Rest, ours: Side) -> Result<(), Violation> {
        let frame::Rest { stream: id, sent, taken } = *rest;
        if id.side() == ours {
            return Err(Violation);
        }
        let Some(s) = find(&mut self.places, id) else { return Ok(()) };
        let was_asked = s.resting.state == RestState::Asked;
        s.resting = Resting { state: RestState::Asked, is_due: false, was_declined: false, sent, taken };
        if !was_asked {
            self.events.push_back(Event::Asks(id));
        }
        Ok(())
    }

    /// Answers the peer's proposal: closes the stream if the owner agrees, everything was taken and nothing was sent
    /// since. Returns whether it did.
    pub fn answer_rest(&mut self, id: StreamId, agrees: bool) -> bool {
        let Some(s) = find(&mut self.places, id).filter(|s| s.resting.state == RestState::Asked) else { return false };
        let all_came = s.all_taken().is_some_and(|taken| taken as u32 == s.resting.sent);
        let all_went = s.out.kept() == 0 && s.out.traffic().pushed as u32 == s.resting.taken && !s.out.is_refused();
        let closes = agrees && all_came && all_went;
        if closes {
            s.out.rest();
            (s.inc, s.last_word) = (None, Some(LastWord::Rested));
            self.forget_events(id);
            self.end_newness(id);
            self.drop_held(id);
        } else {
            (s.resting.state, s.resting.is_due) = (RestState::Stays, true);
        }
        self.tell(id);
        closes
    }

    /// The peer has closed a stream at rest.
    pub fn on_rested(&mut self, id: StreamId) -> Result<(), Violation> {
        let Some(s) = any(&mut self.places, id) else { return Ok(()) };
        if s.last_word.is_none() {
            if s.resting.state != RestState::Proposed {
                return Err(Violation);
            }
            let owner = s.owner;
            self.forget_events(id);
            self.events.push_back(Event::Rested(id, owner));
        }
        self.remove(id);
        Ok(())
    }

    /// The peer declined to close a stream.
    pub fn on_stay(&mut self, rest: &frame::Rest) {
        let Some(s) = find(&mut self.places, rest.stream) else { return };
        let Resting { state, sent, taken, .. } = s.resting;
        if state != RestState::Proposed || (sent, taken) != (rest.sent, rest.taken) {
            return;
        }
        s.resting = Resting { state: RestState::No, is_due: false, was_declined: true, sent, taken };
        let tells_room = std::mem::take(&mut s.wants_room) && !std::mem::replace(&mut s.has_room_event, true);
        self.events.push_back(Event::Stays(rest.stream));
        if tells_room {
            self.events.push_back(Event::Room(rest.stream));
        }
    }

    /// The peer has ended the channel.
    pub fn on_end(&mut self, reason: Reason) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.events.push_back(Event::Ended(reason));
        }
    }
}
