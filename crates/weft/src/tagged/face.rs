//! The face for tagged messages: the engines of a bundle's endpoints, and their completions.

use super::{Completions, Engine, Working};
use crate::bundle::faces;
use crate::bundle::faces::Kind;
use crate::bundle::{Bundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use crate::watch::Signals;
use std::sync::Arc;
use weft_core::{Client, Delivery, Endpoint, Event, FlowId, Returned, SendError, State};
use weft_wire::Reason;

/// The engines of a bundle's endpoints for tagged messages.
#[derive(Debug, Default)]
pub(crate) struct Face {
    /// Indexed by endpoint.
    engines: Vec<Option<Box<Engine>>>,
    /// The endpoints that have an engine.
    endpoints: Vec<Endpoint>,
    /// Completions of all endpoints that the program has not taken.
    done: Completions,
    /// Messages that counted as sent and came back to endpoints that no longer exist.
    lost: u64,
}

impl Face {
    fn add(&mut self, endpoint: Endpoint, engine: Engine) {
        if self.engines.len() <= endpoint.index() {
            self.engines.resize_with(endpoint.index() + 1, || None);
        }
        self.engines[endpoint.index()] = Some(Box::new(engine));
        self.endpoints.push(endpoint);
    }

    /// Number of messages that counted as sent and came back to endpoints that the program had freed.
    pub fn lost(&self) -> u64 {
        self.lost + self.engines.iter().flatten().map(|engine| engine.lost).sum::<u64>()
    }

    /// Returns the engine of an endpoint, and what it works with.
    #[inline(always)]
    fn parts<'a>(
        &'a mut self,
        state: &'a mut State<Outlet>,
        endpoint: Endpoint,
    ) -> Option<(&'a mut Engine, Working<'a>)> {
        let engine = self.engines.get_mut(endpoint.index())?.as_deref_mut()?;
        Some((engine, Working { state, done: &mut self.done }))
    }
}

impl Client<Outlet> for Face {
    #[inline(always)]
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let before = self.done.len();
        let Some((engine, mut working)) = self.parts(state, delivery.endpoint) else {
            return Err(Reason::NoSuchEndpoint);
        };
        let taken = engine.deliver(&mut working, delivery);
        // The program waits for this completion, so end the visit. While a stream arrives, the previous poll found
        // something, and the visit goes on.
        if state.idle_polls() > 0 && taken.is_ok() && self.done.len() > before {
            state.end_visit();
        }
        taken
    }

    fn returned(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let Some((engine, mut working)) = self.parts(state, message.endpoint) else { return Some(message) };
        engine.returned(&mut working, message);
        None
    }

    fn on_event(&mut self, state: &mut State<Outlet>, event: &Event) {
        let Some(endpoint) = event.endpoint() else { return };
        if let Some((engine, mut working)) = self.parts(state, endpoint) {
            engine.on_event(&mut working, event);
        }
    }

    fn flow_closed(&mut self, state: &mut State<Outlet>, endpoint: Endpoint, flow: FlowId) {
        if let Some((engine, mut working)) = self.parts(state, endpoint) {
            engine.flow_closed(&mut working, flow);
        }
    }

    fn go_on(&mut self, state: &mut State<Outlet>) -> u32 {
        let mut work = 0;
        for at in 0..self.endpoints.len() {
            if let Some((engine, mut working)) = self.parts(state, self.endpoints[at]) {
                work += engine.go_on(&mut working);
            }
        }
        work
    }

    /// Ends posted operations now. The endpoint itself ends once its peers are told.
    fn close(&mut self, state: &mut State<Outlet>, endpoint: Endpoint) {
        if let Some((engine, mut working)) = self.parts(state, endpoint) {
            engine.close(&mut working);
        }
    }

    fn is_closed(&self, endpoint: Endpoint) -> bool {
        let engine = self.engines.get(endpoint.index()).and_then(Option::as_deref);
        engine.is_none_or(Engine::is_closed)
    }
}

impl faces::Face for Face {
    fn new(_: &Arc<Signals>) -> Face {
        Face::default()
    }

    fn keeps_table(&self) -> bool {
        true
    }

    fn remove(&mut self, endpoint: Endpoint) {
        if let Some(engine) = self.engines.get_mut(endpoint.index()).and_then(Option::take) {
            self.lost += engine.lost;
        }
        self.endpoints.retain(|&other| other != endpoint);
    }

    fn unsent(&self) -> usize {
        self.engines.iter().flatten().map(|engine| engine.unsent()).sum()
    }
}

impl<H: Threads> Bundle<H> {
    /// Makes a new endpoint one for tagged messages.
    pub(super) fn make_tagged(
        &mut self,
        endpoint: Endpoint,
        engine: impl FnOnce(Endpoint) -> Engine,
    ) -> Result<(), Error> {
        self.become_of(endpoint, Kind::Tagged)?;
        self.faces.tagged.add(endpoint, engine(endpoint));
        Ok(())
    }

    /// Returns what the calls of an endpoint for tagged messages work with.
    #[inline(always)]
    pub(super) fn tagged_parts(&mut self, endpoint: Endpoint) -> Result<(&mut Engine, Working<'_>), Error> {
        if self.life.is_over() {
            self.life.check()?;
        }
        let parts = self.faces.tagged.parts(self.core.state_mut(), endpoint);
        match parts.filter(|(engine, _)| engine.endpoint == endpoint && !engine.is_closing) {
            Some(parts) => Ok(parts),
            None => Err(Error::Send(SendError::NoEndpoint)),
        }
    }

    /// Completions that were not taken.
    #[inline(always)]
    pub(super) fn completions(&mut self) -> &mut Completions {
        self.expect_own();
        &mut self.faces.tagged.done
    }
}
