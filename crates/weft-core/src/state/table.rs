//! Endpoints and their translation tables: how they are set, and where their entries lead.

use super::State;
use crate::endpoint::{Admission, Endpoint, EndpointState, Route, Translation};
use crate::event::{Event, EventMask};
use crate::message::SendError;
use crate::service::route_to;
use crate::session::{head, FlowOut, SessionId};
use crate::state::Call;
use weft_wire::path::Tx;
use weft_wire::record::ORDERED;
use weft_wire::setup::Open;
use weft_wire::{Credit, Key, Kind, Name, Reason, Uid};

/// Entries of a translation table, at most.
const TABLE_MOST: usize = 1 << 20;

impl<T: Tx> State<T> {
    /// Adds an endpoint with this name and key.
    pub fn add_endpoint(&mut self, name: Name, key: Key) -> Endpoint {
        self.endpoints.push(Some(EndpointState::new(name, key)));
        Endpoint(self.endpoints.len() as u32 - 1)
    }

    /// Frees an endpoint. One-way messages that it holds unserved are dropped (they were delivered); requests that it holds,
    /// and whatever comes later, go back to their senders.
    pub fn free_endpoint(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.endpoint(endpoint)?;
        let place = self.endpoints.get_mut(endpoint.index()).ok_or(SendError::NoEndpoint)?;
        let freed = place.take().ok_or(SendError::NoEndpoint)?;
        self.admission += 1;
        for parked in freed.parked {
            self.note_unparked(&parked);
            match parked.head.is(Kind::Request) {
                true => _ = self.bounce(&parked.message(endpoint), Reason::NoSuchEndpoint),
                false => self.settle_parked(&parked),
            }
        }
        Ok(())
    }

    /// Changes the key. Senders that know the old one get their messages back.
    pub fn set_key(&mut self, endpoint: Endpoint, key: Key) -> Result<(), SendError> {
        self.endpoint_mut(endpoint)?.key = key;
        self.admission += 1;
        Ok(())
    }

    /// Whose messages the endpoint admits, of processes of this host: those of its own user's (the default), or all.
    pub fn set_admission(&mut self, endpoint: Endpoint, admission: Admission) -> Result<(), SendError> {
        self.endpoint_mut(endpoint)?.admission = admission;
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

    /// The endpoint's name.
    pub fn name(&self, endpoint: Endpoint) -> Result<Name, SendError> {
        Ok(self.endpoint(endpoint)?.name)
    }

    /// The endpoint's key.
    pub fn key(&self, endpoint: Endpoint) -> Result<Key, SendError> {
        Ok(self.endpoint(endpoint)?.key)
    }

    /// Whether there is an endpoint of this bundle for what a stranger wants to open, and whether it knows the key.
    pub fn admits(&self, open: &Open) -> Result<(), Reason> {
        let found = self.endpoints.iter().flatten().find(|e| e.id == open.destination);
        found.ok_or(Reason::NoSuchEndpoint)?.admits(Uid::UNKNOWN, open.key)
    }

    /// Messages that wait at an endpoint which is not served.
    pub fn parked(&self, endpoint: Endpoint) -> Result<usize, SendError> {
        Ok(self.endpoint(endpoint)?.parked.len())
    }

    /// Enters (name, key) at an index of the translation table, in place of what was there. Makes no contact yet.
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
        table[index as usize] = Some(Translation { name, key, route: Route::Unknown, renews: false });
        Ok(())
    }

    /// Empties an index of the translation table. What is under way there still ends as it would have.
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        state.changes += 1;
        let entry = state.table.get_mut(index as usize).ok_or(SendError::NotMapped(index))?;
        entry.take().map(|_| ()).ok_or(SendError::NotMapped(index))
    }

    /// What an index of the translation table names.
    pub fn translation(&self, endpoint: Endpoint, index: u32) -> Result<(Name, Key), SendError> {
        let entry = self.endpoint(endpoint)?.translation(index).ok_or(SendError::NotMapped(index))?;
        Ok((entry.name, entry.key))
    }

    /// A session leads to the destination of a call.
    pub fn connected(&mut self, call: Call, session: SessionId) {
        let Ok(EndpointState { name: source, service, .. }) = self.endpoint(call.endpoint) else { return };
        let (source, service) = (*source, *service);
        let Some(&mut Translation { name, key, .. }) = self.calling(call) else { return };
        let Some(s) = self.session_mut(session) else {
            return self.refused(call, Reason::PeerLost);
        };
        // Mapped there before: the peer knows the flow, and what is under way on it is under way to the same endpoint.
        let ends = (call.endpoint.0, call.destination, name.endpoint);
        let is_it = |f: &FlowOut| {
            (f.source, f.destination, f.to, f.service) == (ends.0, ends.1, ends.2, service) && f.key.matches(key)
        };
        if let Some(flow) = s.flows_out.iter().position(is_it) {
            let is_longer = s.flows_out[flow].is_stopped || service.is_longer();
            return self.set_route(call, route_to(session.index, flow as u16, is_longer));
        }
        let flow = s.flows_out.len();
        if flow >= s.limits.flows {
            return self.refused(call, Reason::NoRoom);
        }
        s.flows_out.push(FlowOut::new(call.endpoint.0, call.destination, name.endpoint, key, service));
        // At once, whoever sends first: the peer numbers flows in the order they are opened.
        let open = Open { source: source.endpoint, destination: name.endpoint, key, uid: source.uid };
        let marks = if service.stops() { ORDERED } else { 0 };
        let header = head(Kind::Open, marks, flow as u16, 0, Credit::default());
        if !(s.backlog.is_empty() && s.tx.push(header, &open.to_args(), &[]).is_ok()) {
            self.queue(session.index, header, &open.to_args(), &[]);
        }
        self.set_route(call, route_to(session.index, flow as u16, service.is_longer()));
    }

    /// No session leads there; the next message is returned with this reason, and the one after that calls again.
    pub fn refused(&mut self, call: Call, reason: Reason) {
        self.set_route(call, Route::Refused(reason));
    }

    fn set_route(&mut self, call: Call, route: Route) {
        let Some(entry) = self.calling(call) else { return };
        if std::mem::take(&mut entry.renews) {
            // Nobody waits for it: the old route leads there too.
            if route.flow().is_some() {
                entry.route = route;
            }
            return;
        }
        entry.route = route;
        self.tell(Event::CanSend { endpoint: call.endpoint, destination: call.destination });
    }

    /// The translation that waits for a call.
    fn calling(&mut self, call: Call) -> Option<&mut Translation> {
        let entry = self.endpoint_mut(call.endpoint).ok()?.translation_mut(call.destination)?;
        // Equal names may say different addresses, of which one is called.
        let is_of_call = entry.name == call.name && entry.name.address == call.name.address;
        ((matches!(entry.route, Route::Calling) || entry.renews) && is_of_call).then_some(entry)
    }

    #[inline(always)]
    pub(super) fn route(&self, from: Endpoint, to: u32) -> Option<(u32, u16)> {
        let entry = self.endpoints.get(from.index())?.as_ref()?.translation(to)?;
        match entry.route {
            Route::Flow { session, flow } => Some((session, flow)),
            _ => None,
        }
    }
}
