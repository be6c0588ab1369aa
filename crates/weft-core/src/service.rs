//! The service of an endpoint's outgoing messages: unreliable messages, messages reported as received, and order after
//! refusals.

use crate::endpoint::{Endpoint, Route};
use crate::message::{Outgoing, SendError};
use crate::session::{head, Session};
use crate::state::State;
use weft_wire::path::{Traffic, Tx};
use weft_wire::record::GO_ON;
use weft_wire::{Credit, Kind};

/// How reliable the one-way messages of an endpoint are (the reliability levels of VIA).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reliability {
    /// Each is delivered at most once, and may be lost. None comes back and its fate is not reported: a completion only
    /// says that it was sent. A lost packet delays no others. Messages that exceed what the network or the receiver can
    /// take are dropped, and counted where that happens.
    Unreliable,
    /// Each is delivered exactly once or comes back. A completion says that it was stored at its destination.
    #[default]
    Delivery,
    /// The same, and each is reported as received without being asked for ([`State::unreceived`]). After one that is
    /// refused nothing is delivered until the program sends again: see [`Service::is_ordered`].
    ///
    /// [`State::unreceived`]: crate::State::unreceived
    Reception,
}

/// The service of an endpoint's outgoing messages. Requests and replies are always reliable, because an answer is owed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Service {
    /// How reliable its one-way messages are.
    pub reliability: Reliability,
    /// Keeps the order even if messages are refused. Without it, messages of a pair of endpoints arrive in the order in
    /// which they were sent, but a message that was refused and sent again arrives after later ones. With it, the
    /// receiver refuses everything that follows a refused message, for the same reason. The messages come back in
    /// order, sends return *full* until the last one is back, and what is sent then is accepted. Does not apply to
    /// unreliable messages.
    pub is_ordered: bool,
}

impl Service {
    /// Whether a refused message stops what follows.
    pub(crate) fn stops(&self) -> bool {
        self.is_ordered || self.reliability == Reliability::Reception
    }

    /// Whether sends take the longer way from the first one on.
    pub(crate) fn is_longer(&self) -> bool {
        self.reliability != Reliability::Delivery
    }
}

impl<T: Tx> State<T> {
    /// Sets the service of the endpoint's messages, from the next one on; messages in flight end as they would have.
    /// Peers learn of it with the first message to each, so one more send to each may return *full*.
    pub fn set_service(&mut self, endpoint: Endpoint, service: Service) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        if std::mem::replace(&mut state.service, service) != service {
            let old = self.flows_of(endpoint);
            let table = self.endpoint_mut(endpoint)?.table.iter_mut().flatten();
            table.filter(|entry| entry.route.flow().is_some()).for_each(|entry| entry.route = Route::Unknown);
            self.close_flows(endpoint, old);
        }
        Ok(())
    }

    /// The service of the endpoint's messages.
    pub fn service(&self, endpoint: Endpoint) -> Result<Service, SendError> {
        Ok(self.endpoint(endpoint)?.service)
    }

    /// The number of one-way messages, sent to an index of the translation table as it is now, that are not known to be
    /// received: that is, in the memory of their endpoint, delivered or queued there. Returned and unreliable messages
    /// do not count.
    pub fn unreceived(&self, endpoint: Endpoint, index: u32) -> Result<u64, SendError> {
        let entry = self.endpoint(endpoint)?.translation(index).ok_or(SendError::NotMapped(index))?;
        let Some((session, flow)) = entry.route.flow() else { return Ok(0) };
        let place = self.sessions.get(session as usize).and_then(|place| place.session.as_ref());
        let out = place.and_then(|s| s.flows_out.get(usize::from(flow)));
        Ok(out.map_or(0, |out| out.sent - out.stored))
    }

    /// Sends an unreliable message. Nothing of it is kept.
    pub(crate) fn send_unreliable(&mut self, session: u32, flow: u16, message: Outgoing<'_>) -> Result<(), SendError> {
        let Some(s) = self.live(session) else { return Err(SendError::Full) };
        let generation = s.flows_out[usize::from(flow)].generation;
        let header = head(Kind::Unreliable, message.op, flow, generation, Credit::default());
        let is_known = s.is_known(flow);
        if !is_known && !s.backlog.is_empty() {
            return Err(self.send_unready(session, flow));
        }
        // Until the flow is known there, send it in order, or it might overtake the open.
        let pushed = match is_known {
            true => s.tx.push_unreliable(header, message.args, message.payload),
            false => s.tx.push(header, message.args, message.payload),
        };
        if let Err(error) = pushed {
            return Err(self.not_pushed(session, flow, error));
        }
        let source = s.flows_out[usize::from(flow)].source;
        self.counters.sent += 1;
        // It was copied, and no more will be known.
        if let Some(completion) = message.completion {
            self.complete(source, completion);
        }
        Ok(())
    }

    /// A message of an ordered flow was refused: nothing more is sent there until everything in flight has ended.
    #[cold]
    pub(crate) fn stop(&mut self, session: u32, flow: u16) {
        let Some(out) = self.live(session).and_then(|s| s.flows_out.get_mut(usize::from(flow))) else { return };
        if !out.service.stops() || std::mem::replace(&mut out.is_stopped, true) {
            return;
        }
        let (endpoint, destination) = (out.source, out.destination);
        let entry = self.endpoint_mut(endpoint).ok().and_then(|e| e.translation_mut(destination));
        if let Some(entry) = entry.filter(|entry| entry.route.flow() == Some((session, flow))) {
            entry.route = Route::Served { session, flow };
        }
    }

    /// A message of a stopped flow ended. After the last one, waiting senders are told, after the returned messages.
    #[cold]
    pub(crate) fn tell_stopped(&mut self, session: u32, flow: u16) {
        let out = self.live(session).and_then(|s| s.flows_out.get(usize::from(flow)));
        if out.is_some_and(|out| !out.has_under_way()) {
            self.block(session);
        }
    }

    /// Restarts a stopped flow, once everything in flight there has ended and the program got what came back. *Full*
    /// before that.
    pub(crate) fn go_on(&mut self, from: Endpoint, to: u32, session: u32, flow: u16) -> Result<(), SendError> {
        let returns = self.returns.len();
        let Some(s) = self.live(session) else { return Err(SendError::Full) };
        let out = &mut s.flows_out[usize::from(flow)];
        if !out.is_stopped {
            return Ok(());
        }
        if out.has_under_way() || !s.backlog.is_empty() {
            return Err(self.send_unready(session, flow));
        }
        if returns > 0 {
            out.wants_room = true;
            self.block(session);
            return Err(SendError::Full);
        }
        if let Err(error) = s.tx.push(head(Kind::Credit, 0, flow, GO_ON, Credit::default()), &[], &[]) {
            return Err(self.not_pushed(session, flow, error));
        }
        out.is_stopped = false;
        if !out.service.is_longer() {
            if let Some(entry) = self.endpoint_mut(from)?.translation_mut(to) {
                entry.route = Route::Flow { session, flow };
            }
        }
        Ok(())
    }
}

impl<T: Tx> Session<T> {
    /// Whether the peer has read the open of a flow.
    fn is_known(&mut self, flow: u16) -> bool {
        let known_at = &mut self.flows_out[usize::from(flow)].known_at;
        // The open may still be in the backlog.
        if *known_at > 0 && self.backlog.is_empty() {
            let Traffic { pushed, taken } = self.tx.traffic();
            *known_at = pushed.min(*known_at);
            if taken >= *known_at {
                *known_at = 0;
            }
        }
        *known_at == 0
    }
}

/// The route for a flow.
pub(crate) fn route_to(session: u32, flow: u16, is_longer: bool) -> Route {
    match is_longer {
        true => Route::Served { session, flow },
        false => Route::Flow { session, flow },
    }
}
