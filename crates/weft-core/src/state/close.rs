//! Closing flows, so that their numbers can be used again. `docs/design/flows.md` has the reasons.

use super::State;
use crate::endpoint::{Endpoint, Translation};
use crate::session::{head, FlowId, FlowIn, Phase, SessionId};
use std::collections::BTreeSet;
use weft_wire::path::Tx;
use weft_wire::{Credit, Epoch, Head, Kind, Reason};

/// A flow that an entry of a translation table leads to, or led to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    pub destination: u32,
    pub session: u32,
    pub flow: u16,
}

impl Lead {
    /// The flows of an entry.
    pub fn all(destination: u32, entry: &Translation) -> impl Iterator<Item = Lead> {
        entry.flows().map(move |(session, flow)| Lead { destination, session, flow })
    }
}

/// With fewer waiting calls than this, stale ones are not looked for.
const CALLS_LEAST: usize = 32;

impl<T: Tx> State<T> {
    /// Begins to close a flow of ours that no translation uses any more. It closes when everything sent on it has ended.
    ///
    /// The flow must be from `endpoint` to `destination`: an entry may refer to a session that is gone and whose place
    /// another one has.
    fn close_flow(&mut self, endpoint: Endpoint, Lead { destination, session, flow }: Lead) {
        let Some(out) = self.live(session).and_then(|s| s.flows_out.get_mut(usize::from(flow))) else { return };
        if out.phase == Phase::Open && (out.source, out.destination) == (endpoint, destination) {
            out.phase = Phase::Draining;
            // Makes replies take the path that checks for the end; the fast path does not.
            out.wants_room = true;
            // Not at once: a running handler may refuse a reply on this flow, and that reply has to go back first.
            let life = self.sessions[session as usize].life;
            self.draining.push((SessionId { index: session, life }, flow));
            self.has_chores = true;
        }
    }

    /// Whether a send on a flow returned *full*.
    pub(crate) fn wants_room(&mut self, lead: &Lead) -> bool {
        let out = self.live(lead.session).and_then(|s| s.flows_out.get(usize::from(lead.flow)));
        out.is_some_and(|out| out.wants_room && out.phase == Phase::Open)
    }

    /// Continues with flows that began to close. No handler is running.
    pub(crate) fn drain_flows(&mut self) {
        for (id, flow) in std::mem::take(&mut self.draining) {
            if self.session(id).is_some() {
                self.drain_flow(id.index, flow);
            }
        }
    }

    /// Tells the peer that a draining flow closes, if everything in flight has ended; otherwise asks what was stored.
    pub(crate) fn drain_flow(&mut self, session: u32, flow: u16) {
        let Some(out) = self.live(session).and_then(|s| s.flows_out.get_mut(usize::from(flow))) else { return };
        if out.phase != Phase::Draining {
            return;
        }
        if out.has_under_way() || out.held > 0 {
            if out.sent > out.stored && out.asked_at < out.sent {
                out.asked_at = out.sent;
                self.say(session, head(Kind::Credit, 0, flow, 0, Credit::default()));
            }
            return;
        }
        out.shut();
        self.say(session, head(Kind::Close, 0, flow, 0, Credit::default()));
    }

    /// The peer confirmed that a flow of ours is closed: its number is free.
    pub(crate) fn on_closed(&mut self, session: u32, flow: u16) -> bool {
        let Some(s) = self.live(session) else { return false };
        let Some(out) = s.flows_out.get_mut(usize::from(flow)).filter(|out| out.phase == Phase::Told) else {
            return false;
        };
        out.phase = Phase::Closed;
        s.flows_free.push_back(flow);
        self.connect_waiting(session);
        self.note_rest(session);
        true
    }

    /// Opens flows for calls that waited for a number, as far as there are numbers.
    fn connect_waiting(&mut self, session: u32) {
        let id = SessionId { index: session, life: self.sessions[session as usize].life };
        while let Some(s) = self.live(session).filter(|s| !s.flows_free.is_empty()) {
            // A call that is no longer wanted takes no number.
            let Some(call) = s.calls.pop_front() else { return };
            self.connected(call, id);
        }
    }

    /// Drops stale calls from time to time, so that the calls waiting for a number are bounded by the number of translations.
    pub(crate) fn drop_stale_calls(&mut self, session: SessionId) {
        let Some(s) = self.session_mut(session).filter(|s| s.calls.len() >= 2 * s.calls_wanted.max(CALLS_LEAST)) else {
            return;
        };
        let mut calls = std::mem::take(&mut s.calls);
        let mut seen = BTreeSet::new();
        calls.retain(|call| self.is_wanted(*call) && seen.insert((call.endpoint, call.destination)));
        if let Some(s) = self.session_mut(session) {
            s.calls_wanted = calls.len();
            s.calls = calls;
        }
    }

    /// The peer closes a flow of its own. False if it has requests in flight there, which breaks the protocol.
    pub(crate) fn on_close(&mut self, session: u32, flow: u16) -> bool {
        let place = &mut self.sessions[session as usize];
        let id = SessionId { index: session, life: place.life };
        let Some(state) = place.session.as_mut().and_then(|s| s.flows_in.get_mut(usize::from(flow))) else {
            return false;
        };
        if !state.is_open || state.is_closing || state.under_way.taken() != 0 || state.ended != 0 {
            return false;
        }
        state.is_closing = true;
        (state.admitted, state.under_way) = (0, weft_transport::Window::SHUT);
        // The next flow with the number leads elsewhere.
        self.run = Default::default();
        self.may_be_closed(id, flow);
        true
    }

    /// Checks whether a flow that its opener closes has nothing left to be consumed. If so, the endpoint's client is
    /// told, and then the opener.
    pub(crate) fn may_be_closed(&mut self, session: SessionId, flow: u16) {
        let state = self.session(session).and_then(|s| s.flows_in.get(usize::from(flow)));
        let is_over = |state: &&FlowIn| state.is_open && state.is_closing && state.is_all_consumed();
        if let Some(endpoint) = state.filter(is_over).map(|state| state.destination) {
            self.events.flow_closed(endpoint, FlowId { session, number: flow });
            self.closing.push((session, flow));
            self.has_chores = true;
        }
    }

    /// Tells openers that their flows are closed, once the endpoints' clients know it. So a client never mistakes the
    /// state of a closed flow for that of the next one.
    pub(crate) fn say_closed(&mut self, closing: Vec<(SessionId, u16)>) {
        for (id, flow) in closing {
            let state = self.session_mut(id).and_then(|s| s.flows_in.get_mut(usize::from(flow)));
            let Some(state) = state.filter(|state| state.is_open && state.is_closing) else { continue };
            // The number is not free until the answer is in the path, so a peer that reads nothing cannot make us queue
            // more than one answer.
            state.is_open = false;
            if self.say(id.index, head(Kind::Closed, 0, flow, 0, Credit::default())) {
                self.free_number_of_peer(id, flow);
            }
        }
    }

    /// Lets the peer open the number again.
    fn free_number_of_peer(&mut self, session: SessionId, flow: u16) {
        let state = self.session_mut(session).and_then(|s| s.flows_in.get_mut(usize::from(flow)));
        if let Some(state) = state {
            state.shut();
        }
        self.note_rest(session.index);
    }

    /// Called when a flow has closed or waiting records have gone: notes that the session's path can be closed, if it
    /// has no flow.
    pub(crate) fn note_rest(&mut self, session: u32) {
        let Some(place) = self.sessions.get_mut(session as usize) else { return };
        let id = SessionId { index: session, life: place.life };
        let Some(s) = place.session.as_mut() else { return };
        if s.tx.closes_at_rest() && s.is_at_rest() && !std::mem::replace(&mut s.is_noted_at_rest, true) {
            self.rests.push(id);
        }
    }

    /// Takes the sessions whose last flow has closed, each once.
    #[doc(hidden)] // for the home of a bundle
    pub fn take_rests(&mut self) -> Vec<SessionId> {
        let rests = std::mem::take(&mut self.rests);
        for id in &rests {
            self.session_mut(*id).into_iter().for_each(|s| s.is_noted_at_rest = false);
        }
        rests
    }

    /// Whether [`State::take_rests`] has some.
    #[doc(hidden)] // for the home of a bundle
    #[inline]
    pub fn has_rests(&self) -> bool {
        !self.rests.is_empty()
    }

    /// The epoch of a session's peer.
    #[doc(hidden)] // for the home of a bundle
    pub fn peer_epoch(&self, session: SessionId) -> Option<Epoch> {
        Some(self.session(session)?.peer.epoch)
    }

    /// Whether a session has no flow in either direction and nothing to send.
    #[doc(hidden)] // for the home of a bundle
    pub fn is_at_rest(&self, session: SessionId) -> bool {
        self.session(session).is_some_and(|s| s.is_at_rest())
    }

    /// Forgets a session at rest. Returns false, and does nothing, if it is not at rest.
    pub(crate) fn forget(&mut self, id: SessionId) -> bool {
        if !self.is_at_rest(id) {
            return false;
        }
        let Some(place) = self.sessions.get_mut(id.index as usize) else { return false };
        place.session = None;
        place.life = place.life.wrapping_add(1);
        // The next session in this place has other flows.
        self.run = Default::default();
        self.let_go.retain(|&index| index != id.index);
        self.broken.retain(|&index| index != id.index);
        self.closing.retain(|(session, _)| *session != id);
        self.draining.retain(|(session, _)| *session != id);
        true
    }

    /// Closes flows that an endpoint's translations led to.
    pub(crate) fn close_flows(&mut self, endpoint: Endpoint, flows: impl IntoIterator<Item = Lead>) {
        for lead in flows {
            self.close_flow(endpoint, lead);
        }
    }

    /// Refuses calls whose session is gone before there was a number for their flows.
    pub(crate) fn refuse_calls(&mut self, calls: impl IntoIterator<Item = super::Call>, reason: Reason) {
        for call in calls {
            self.refused(call, reason);
        }
    }

    /// Counts a reply that is held at our endpoint, or no longer held.
    pub(crate) fn count_held_reply(&mut self, session: SessionId, flow: u16, is_held: bool) {
        let Some(out) = self.session_mut(session).and_then(|s| s.flows_out.get_mut(usize::from(flow))) else { return };
        out.held = if is_held { out.held.saturating_add(1) } else { out.held.saturating_sub(1) };
        if !is_held {
            self.drain_flow(session.index, flow);
        }
    }

    /// Pushes a record without contents, or queues it and returns false. For records of which there is at most one for each flow.
    fn say(&mut self, session: u32, header: Head) -> bool {
        let Some(s) = self.live(session) else { return false };
        if s.backlog.is_empty() && s.tx.push(header, &[], &[]).is_ok() {
            return true;
        }
        self.queue(session, header, &[], &[]);
        false
    }

    /// The flows of an endpoint's table.
    pub(crate) fn flows_of(&self, endpoint: Endpoint) -> Vec<Lead> {
        let table = self.endpoints.get(endpoint).map_or(&[][..], |state| &state.table);
        let entries = table.iter().zip(0u32..).filter_map(|(entry, index)| entry.as_ref().map(|entry| (entry, index)));
        entries.flat_map(|(entry, index)| Lead::all(index, entry)).collect()
    }
}
