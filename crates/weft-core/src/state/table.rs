//! Endpoints and their translation tables: setting them, and connecting their entries.

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

/// The most entries of a translation table.
const TABLE_MOST: usize = 1 << 20;

impl<T: Tx> State<T> {
    /// Adds an endpoint with this name and key.
    pub fn add_endpoint(&mut self, name: Name, key: Key) -> Endpoint {
        let endpoint = self.endpoints.add(EndpointState::new(name, key));
        self.events.begin(endpoint);
        endpoint
    }

    /// Frees an endpoint. Queued one-way messages are dropped, because they count as delivered. Queued requests, and
    /// everything that arrives later, go back to their senders.
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

    /// Changes the key. Messages of senders that use the old one come back.
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

    /// Sets whether messages are delivered to the endpoint (the default) or queued, up to the granted credit.
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

    /// Sets which of an endpoint's events end a wait.
    pub fn set_event_mask(&mut self, endpoint: Endpoint, mask: EventMask) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.set_mask(endpoint, mask);
        self.admission += 1;
        Ok(())
    }

    /// Passes the endpoint's events, except completions, to its client from now on: see
    /// [`Client::on_event`](crate::Client::on_event).
    pub fn claim_events(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.claim(endpoint);
        Ok(())
    }

    /// Passes the endpoint's completions to its client too, from now on: see
    /// [`Client::completed`](crate::Client::completed). Not for endpoints that move to other bundles.
    pub fn claim_completions(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        self.events.claim_completions(endpoint);
        Ok(())
    }

    /// Whether there is an entry at an index of the endpoint's translation table.
    pub fn is_mapped(&self, from: Endpoint, to: u32) -> bool {
        self.endpoint(from).is_ok_and(|endpoint| endpoint.translation(to).is_some())
    }

    /// The flow that messages to a destination use now. `None` if there is none yet, or no longer.
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

    /// Whether the endpoint that a stranger from another host wants to open exists in this bundle and admits the
    /// stranger, and why.
    #[doc(hidden)] // for the home of a bundle
    pub fn admits(&self, open: &Open) -> Result<Admitted, Reason> {
        let found = self.endpoints.find_opened(open).and_then(|endpoint| self.endpoints.get(endpoint));
        found.ok_or(Reason::NoSuchEndpoint)?.admit(Uid::UNKNOWN, open.key)
    }

    /// The number of messages that wait at an unserved endpoint.
    pub fn parked(&self, endpoint: Endpoint) -> Result<usize, SendError> {
        Ok(self.endpoint(endpoint)?.parked.len())
    }

    /// Maps an index of the translation table to (name, key), replacing the previous entry. Makes no contact yet: the
    /// next message looks for a session, even if the same name and key were mapped before.
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
                    // The result of that call is not for this entry.
                    self.tell(Event::CanSend { endpoint, destination: index });
                }
            }
            false => self.give_up_entry(endpoint, index, &old),
        }
        Ok(())
    }

    /// Like [`State::map`], but the peer need not prove that it knows the key, if it admits callers without one.
    pub fn map_unproven(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), SendError> {
        self.map(endpoint, index, name, key)?;
        let entry = self.endpoint_mut(endpoint)?.translation_mut(index).ok_or(SendError::NotMapped(index))?;
        entry.is_unproven = true;
        Ok(())
    }

    /// Whether an index of the translation table was mapped by [`State::map_unproven`].
    pub fn is_unproven(&self, endpoint: Endpoint, index: u32) -> bool {
        self.endpoint(endpoint).ok().and_then(|state| state.translation(index)).is_some_and(|entry| entry.is_unproven)
    }

    /// Removes an entry of the translation table. Messages in flight there still end as they would have.
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.changes += 1;
        let entry = state.table.get_mut(index as usize).ok_or(SendError::NotMapped(index))?;
        let old = entry.take().ok_or(SendError::NotMapped(index))?;
        self.give_up_entry(endpoint, index, &old);
        Ok(())
    }

    /// Closes the flows of an entry that is removed or replaced.
    fn give_up_entry(&mut self, endpoint: Endpoint, index: u32, old: &Translation) {
        let is_awaited = Lead::all(index, old).any(|lead| self.wants_room(&lead));
        // A client may know something of the peer that is no longer there.
        let is_known = self.events.is_claimed(endpoint) && old.flows().next().is_some();
        self.close_flows(endpoint, Lead::all(index, old));
        if is_awaited || is_known || matches!(old.route, Route::Calling) || old.wants_event {
            // A sender that got *full* waits for this event.
            self.tell(Event::CanSend { endpoint, destination: index });
        }
    }

    /// The name and key at an index of the translation table.
    pub fn translation(&self, endpoint: Endpoint, index: u32) -> Result<(Name, Key), SendError> {
        let entry = self.endpoint(endpoint)?.translation(index).ok_or(SendError::NotMapped(index))?;
        Ok((entry.name, entry.key))
    }

    /// Opens a flow for a call on a session with its destination.
    #[doc(hidden)] // for the home of a bundle
    pub fn connected(&mut self, call: Call, session: SessionId) {
        let Ok(EndpointState { name: source, service, .. }) = self.endpoint(call.endpoint) else { return };
        let (source, service) = (*source, *service);
        let Some(&mut Translation { name, key, kept, .. }) = self.calling(call) else { return };
        let Some(s) = self.session_mut(session) else {
            return self.refused(call, Reason::PeerLost);
        };
        // The same name and key were mapped again: reuse the flow, because its messages in flight go to the same endpoint.
        if let Some((_, flow)) = kept.filter(|(index, _)| *index == session.index) {
            let out = s.flows_out.get(usize::from(flow)).filter(|out| out.phase == Phase::Open);
            let ends = (call.endpoint, call.destination, name.endpoint, service);
            if let Some(out) = out.filter(|out| (out.source, out.destination, out.to, out.service) == ends) {
                let is_longer = out.is_stopped || service.is_longer();
                return self.set_route(call, route_to(session.index, flow, is_longer));
            }
        }
        let Some(flow) = s.take_number() else {
            // Some flows are closing; a number is free when the peer has answered.
            if s.flows_out.iter().any(|out| matches!(out.phase, Phase::Draining | Phase::Told)) {
                s.calls.push_back(call);
                return self.drop_stale_calls(session);
            }
            return self.refused(call, Reason::NoRoom);
        };
        let out = FlowOut::new(call.endpoint, call.destination, name.endpoint, service);
        let generation = s.open(flow, out);
        // Send the open at once, because the peer expects flow numbers in the order they are opened.
        let open = Open::to(&name, source.endpoint, key, source.uid);
        let marks = if service.stops() { ORDERED } else { 0 };
        let header = head(Kind::Open, marks, flow, generation, Credit::default());
        if !(s.backlog.is_empty() && s.tx.push(header, &open.to_args(), &[]).is_ok()) {
            self.queue(session.index, header, &open.to_args(), &[]);
        }
        self.set_route(call, route_to(session.index, flow, service.is_longer()));
    }

    /// A call failed: the next message is returned with this reason, and the one after that calls again.
    #[doc(hidden)] // for the home of a bundle
    pub fn refused(&mut self, call: Call, reason: Reason) {
        self.set_route(call, Route::Refused(reason));
    }

    fn set_route(&mut self, call: Call, route: Route) {
        let Some(entry) = self.calling(call) else { return };
        // A sender that found the old route closed made a call of its own. The first answer to either call ends its wait.
        let waits = matches!(entry.route, Route::Calling);
        let renews = std::mem::take(&mut entry.renews) && !waits;
        if renews && route.flow().is_none() {
            // Keep the old route, which still works.
            return;
        }
        let old = *entry;
        (entry.route, entry.kept) = (route, None);
        let others = Lead::all(call.destination, &old).filter(|lead| Some((lead.session, lead.flow)) != route.flow());
        self.close_flows(call.endpoint, others);
        // Nobody waits for the renewal of a route.
        if !renews {
            self.tell(Event::CanSend { endpoint: call.endpoint, destination: call.destination });
        }
    }

    /// The translation that waits for a call.
    fn calling(&mut self, call: Call) -> Option<&mut Translation> {
        let entry = self.endpoint_mut(call.endpoint).ok()?.translation_mut(call.destination)?;
        // Equal names may carry different addresses, of which only one is called.
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
