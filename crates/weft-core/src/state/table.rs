//! Endpoints and their translation tables: how they are set, and where their entries lead.

use super::close::Lead;
use super::State;
use crate::admission::{Admission, Admitted};
use crate::endpoint::{Endpoint, EndpointState, Route, Translation};
use crate::event::{Event, EventMask};
use crate::message::SendError;
use crate::service::route_to;
use crate::session::{head, FlowId, FlowOut, Phase, SessionId};
use crate::state::Call;
use std::num::NonZeroU32;
use weft_wire::path::Tx;
use weft_wire::record::ORDERED;
use weft_wire::setup::Open;
use weft_wire::{Credit, Key, Kind, Name, Reason, Uid};

/// Entries of a translation table, at most.
const TABLE_MOST: usize = 1 << 20;

impl<T: Tx> State<T> {
    /// Adds an endpoint with this name and key.
    pub fn add_endpoint(&mut self, name: Name, key: Key) -> Endpoint {
        let endpoint = self.endpoints.add(EndpointState::new(name, key));
        self.events.begin(endpoint);
        endpoint
    }

    /// Frees an endpoint. One-way messages that it holds unserved are dropped (they were delivered); requests that it holds,
    /// and whatever comes later, go back to their senders.
    pub fn free_endpoint(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        let flows = self.flows_of(endpoint);
        let freed = self.endpoints.remove(endpoint).ok_or(SendError::NoEndpoint)?;
        self.admission += 1;
        self.close_flows(endpoint, flows);
        if let Some(segment) = freed.segment.get() {
            segment.set(None);
        }
        for parked in freed.parked {
            self.note_unparked(&parked);
            match parked.head.is(Kind::Request) {
                true => _ = self.bounce(&parked.message(endpoint), Reason::NoSuchEndpoint),
                false => self.settle_parked(&parked),
            }
            self.note_reply_done(&parked);
        }
        Ok(())
    }

    /// Changes the key. Senders that know the old one get their messages back.
    pub fn set_key(&mut self, endpoint: Endpoint, key: Key) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.key = key;
        state.guard_segment();
        self.admission += 1;
        Ok(())
    }

    /// Whose messages the endpoint admits.
    pub fn set_admission(&mut self, endpoint: Endpoint, admission: Admission) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.admission = admission;
        state.guard_segment();
        self.admission += 1;
        Ok(())
    }

    /// Whose messages the endpoint admits.
    pub fn admission_of(&self, endpoint: Endpoint) -> Result<Admission, SendError> {
        Ok(self.endpoint(endpoint)?.admission)
    }

    /// Whether messages are handed to the endpoint (the default) or queued, up to the credit granted.
    pub fn set_served(&mut self, endpoint: Endpoint, served: bool) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.served = served;
        if served && !state.parked.is_empty() {
            self.unparking.push(endpoint);
            self.has_chores = true;
        }
        self.admission += 1;
        Ok(())
    }

    /// Which of an endpoint's events end a wait.
    pub fn set_event_mask(&mut self, endpoint: Endpoint, mask: EventMask) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.set_mask(endpoint, mask);
        self.admission += 1;
        Ok(())
    }

    /// From now on the endpoint's events, but for completions, are for its client: see [`Client::on_event`](crate::Client::on_event).
    pub fn claim_events(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.claim(endpoint);
        Ok(())
    }

    /// From now on the endpoint's completions are for its client, too: see [`Client::completed`](crate::Client::completed). Not for
    /// endpoints that move to other bundles.
    pub fn claim_completions(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.claim_completions(endpoint);
        Ok(())
    }

    /// Whether there is an entry at an index of the endpoint's translation table.
    pub fn is_mapped(&self, from: Endpoint, to: u32) -> bool {
        self.endpoint(from).is_ok_and(|endpoint| endpoint.translation(to).is_some())
    }

    /// The flow by which messages go to a destination now. `None` if there is none yet, or none any more.
    #[inline(always)]
    pub fn flow_to(&self, from: Endpoint, to: u32) -> Option<FlowId> {
        let (index, number) = self.endpoint(from).ok()?.translation(to)?.route.flow()?;
        let life = self.sessions.get(index as usize)?.life;
        Some(FlowId { session: SessionId { index, life }, number })
    }

    /// The process at the other end of a session, if it can be trusted with memory: see [`Tx::neighbour`].
    pub fn neighbour(&self, session: SessionId) -> Option<NonZeroU32> {
        self.session(session)?.tx.neighbour()
    }

    /// The endpoint's name.
    pub fn name(&self, endpoint: Endpoint) -> Result<Name, SendError> {
        Ok(self.endpoint(endpoint)?.name)
    }

    /// The endpoint's key.
    pub fn key(&self, endpoint: Endpoint) -> Result<Key, SendError> {
        Ok(self.endpoint(endpoint)?.key)
    }

    /// Whether there is an endpoint of this bundle for what a stranger of another host wants to open, whether it admits the stranger,
    /// and why.
    #[doc(hidden)] // for the home of a bundle
    pub fn admits(&self, open: &Open) -> Result<Admitted, Reason> {
        let found = self.endpoints.find_opened(open).and_then(|endpoint| self.endpoints.get(endpoint));
        found.ok_or(Reason::NoSuchEndpoint)?.admit(Uid::UNKNOWN, open.key)
    }

    /// Messages that wait at an endpoint which is not served.
    pub fn parked(&self, endpoint: Endpoint) -> Result<usize, SendError> {
        Ok(self.endpoint(endpoint)?.parked.len())
    }

    /// Enters (name, key) at an index of the translation table, in place of what was there. Makes no contact yet: the next message is
    /// the first that looks for a session, also if the same name and key stood there.
    pub fn map(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), SendError> {
        if index as usize >= TABLE_MOST {
            return Err(SendError::NotMapped(index));
        }
        let state = self.endpoint_mut(endpoint)?;
        state.changes += 1;
        let table = &mut state.table;
        if table.len() <= index as usize {
            table.resize(index as usize + 1, None);
        }
        let entry = &mut table[index as usize];
        let Some(old) = entry.replace(Translation::new(name, key)) else { return Ok(()) };
        match old.name == name && old.key.matches(key) {
            true => {
                entry.iter_mut().for_each(|entry| entry.kept = old.flows().next());
                if matches!(old.route, Route::Calling) {
                    // The answer to that call is not for this entry.
                    self.tell(Event::CanSend { endpoint, destination: index });
                }
            }
            false => self.give_up_entry(endpoint, index, &old),
        }
        Ok(())
    }

    /// As [`State::map`], but whoever answers need not prove that it knows the key, if it admits callers without one.
    pub fn map_unproven(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), SendError> {
        self.map(endpoint, index, name, key)?;
        let entry = self.endpoint_mut(endpoint)?.translation_mut(index).ok_or(SendError::NotMapped(index))?;
        entry.is_unproven = true;
        Ok(())
    }

    /// Whether an index of the translation table was entered by [`State::map_unproven`].
    pub fn is_unproven(&self, endpoint: Endpoint, index: u32) -> bool {
        self.endpoint(endpoint).ok().and_then(|state| state.translation(index)).is_some_and(|entry| entry.is_unproven)
    }

    /// Empties an index of the translation table. What is under way there still ends as it would have.
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.changes += 1;
        let entry = state.table.get_mut(index as usize).ok_or(SendError::NotMapped(index))?;
        let old = entry.take().ok_or(SendError::NotMapped(index))?;
        self.give_up_entry(endpoint, index, &old);
        Ok(())
    }

    /// Closes the flows of an entry that is taken away or replaced.
    fn give_up_entry(&mut self, endpoint: Endpoint, index: u32, old: &Translation) {
        let is_awaited = Lead::all(index, old).any(|lead| self.wants_room(&lead));
        // A client may know something of the peer that is no longer there.
        let is_known = self.events.is_claimed(endpoint) && old.flows().next().is_some();
        self.close_flows(endpoint, Lead::all(index, old));
        if is_awaited || is_known || matches!(old.route, Route::Calling) || old.wants_event {
            // A caller that was told of a full queue waits for this event.
            self.tell(Event::CanSend { endpoint, destination: index });
        }
    }

    /// What an index of the translation table names.
    pub fn translation(&self, endpoint: Endpoint, index: u32) -> Result<(Name, Key), SendError> {
        let entry = self.endpoint(endpoint)?.translation(index).ok_or(SendError::NotMapped(index))?;
        Ok((entry.name, entry.key))
    }

    /// A session leads to the destination of a call.
    #[doc(hidden)] // for the home of a bundle
    pub fn connected(&mut self, call: Call, session: SessionId) {
        let Ok(EndpointState { name: source, service, .. }) = self.endpoint(call.endpoint) else { return };
        let (source, service) = (*source, *service);
        let Some(&mut Translation { name, key, kept, .. }) = self.calling(call) else { return };
        let Some(s) = self.session_mut(session) else {
            return self.refused(call, Reason::PeerLost);
        };
        // The same name and key were entered again: what is under way on their flow is under way to the same endpoint.
        if let Some((_, flow)) = kept.filter(|(index, _)| *index == session.index) {
            let out = s.flows_out.get(usize::from(flow)).filter(|out| out.phase == Phase::Open);
            let ends = (call.endpoint, call.destination, name.endpoint, service);
            if let Some(out) = out.filter(|out| (out.source, out.destination, out.to, out.service) == ends) {
                let is_longer = out.is_stopped || service.is_longer();
                return self.set_route(call, route_to(session.index, flow, is_longer));
            }
        }
        let Some(flow) = s.take_number() else {
            // Of those that close, one is free when the peer has answered.
            if s.flows_out.iter().any(|out| matches!(out.phase, Phase::Draining | Phase::Told)) {
                s.calls.push_back(call);
                return self.drop_stale_calls(session);
            }
            return self.refused(call, Reason::NoRoom);
        };
        let out = FlowOut::new(call.endpoint, call.destination, name.endpoint, service);
        let generation = s.open(flow, out);
        // At once, whoever sends first: the peer numbers flows in the order they are opened.
        let open = Open::to(&name, source.endpoint, key, source.uid);
        let marks = if service.stops() { ORDERED } else { 0 };
        let header = head(Kind::Open, marks, flow, generation, Credit::default());
        if !(s.backlog.is_empty() && s.tx.push(header, &open.to_args(), &[]).is_ok()) {
            self.queue(session.index, header, &open.to_args(), &[]);
        }
        self.set_route(call, route_to(session.index, flow, service.is_longer()));
    }

    /// No session leads there; the next message is returned with this reason, and the one after that calls again.
    #[doc(hidden)] // for the home of a bundle
    pub fn refused(&mut self, call: Call, reason: Reason) {
        self.set_route(call, Route::Refused(reason));
    }

    fn set_route(&mut self, call: Call, route: Route) {
        let Some(entry) = self.calling(call) else { return };
        // A sender that found the old route given up made a call of its own. The first answer to either call ends its wait.
        let waits = matches!(entry.route, Route::Calling);
        let renews = std::mem::take(&mut entry.renews) && !waits;
        if renews && route.flow().is_none() {
            // The old route leads there too.
            return;
        }
        let old = *entry;
        (entry.route, entry.kept) = (route, None);
        let others = Lead::all(call.destination, &old).filter(|lead| Some((lead.session, lead.flow)) != route.flow());
        self.close_flows(call.endpoint, others);
        // Nobody waits for a route that is renewed.
        if !renews {
            self.tell(Event::CanSend { endpoint: call.endpoint, destination: call.destination });
        }
    }

    /// The translation that waits for a call.
    fn calling(&mut self, call: Call) -> Option<&mut Translation> {
        let entry = self.endpoint_mut(call.endpoint).ok()?.translation_mut(call.destination)?;
        // Equal names may say different addresses, of which one is called.
        let is_of_call = entry.name == call.name && entry.name.address == call.name.address;
        ((matches!(entry.route, Route::Calling) || entry.renews) && is_of_call).then_some(entry)
    }

    /// Whether a translation waits for a call.
    pub(super) fn is_wanted(&mut self, call: Call) -> bool {
        self.calling(call).is_some()
    }

    #[inline(always)]
    pub(super) fn route(&self, from: Endpoint, to: u32) -> Option<(u32, u16)> {
        let entry = self.endpoints.get(from)?.translation(to)?;
        match entry.route {
            Route::Flow { session, flow } => Some((session, flow)),
            _ => None,
        }
    }
}
