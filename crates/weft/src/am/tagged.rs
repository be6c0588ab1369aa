//! Endpoints for tagged messages among those of a bundle: where the two clients of the one-way message part.

use super::{EndpointHandlers, Handlers};
use crate::bundle::{Bundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use crate::tagged::{Completion, Engine, Working};
use weft_core::{Delivery, Endpoint, Event, Returned, SendError, State};
use weft_wire::Reason;

impl<H: Threads> Bundle<H> {
    /// Makes an endpoint one for tagged messages.
    pub(crate) fn make_tagged(
        &mut self,
        endpoint: Endpoint,
        engine: impl FnOnce(Endpoint) -> Engine,
    ) -> Result<(), Error> {
        self.handlers.at(endpoint)?.tagged = Some(Box::new(engine(endpoint)));
        self.handlers.tagged.push(endpoint);
        Ok(self.core.state_mut().claim_events(endpoint)?)
    }

    /// What the calls of such an endpoint work with.
    #[inline(always)]
    pub(crate) fn tagged_parts(&mut self, endpoint: Endpoint) -> Result<(&mut Engine, Working<'_>), Error> {
        if self.life.is_over() {
            self.life.check()?;
        }
        let handlers = self.handlers.endpoints.find(endpoint);
        match handlers.and_then(|h| h.tagged.as_deref_mut()).filter(|engine| !engine.is_closing) {
            Some(engine) => {
                Ok((engine, Working { state: self.core.state_mut(), done: &mut self.handlers.completions }))
            }
            None => Err(Error::Send(SendError::NoEndpoint)),
        }
    }

    /// The next completion.
    #[inline(always)]
    pub(crate) fn take_completion(&mut self) -> Option<Completion> {
        self.expect_own();
        self.handlers.completions.pop()
    }

    /// The next completion, where it lies.
    #[inline(always)]
    pub(crate) fn take_completion_with<R>(&mut self, take: impl FnOnce(&mut Completion) -> R) -> Option<R> {
        self.expect_own();
        self.handlers.completions.pop_with(take)
    }

    /// Frees an endpoint for tagged messages: what is posted ends now, and the endpoint when its peers were told.
    pub(crate) fn free_tagged(&mut self, endpoint: Endpoint) -> Result<(), Error> {
        let name = self.name(endpoint)?;
        self.home.node().office().remove_endpoint(name.endpoint);
        let (engine, mut context) = self.tagged_parts(endpoint)?;
        engine.close(&mut context);
        self.core.state_mut().come_again();
        Ok(())
    }
}

impl<H: Threads> Handlers<H> {
    /// A message that no handler of this bundle is for.
    #[inline(never)]
    pub(super) fn deliver_elsewhere(
        &mut self,
        state: &mut State<Outlet>,
        delivery: &Delivery<'_>,
    ) -> Result<(), Reason> {
        let handlers = self.endpoints.find(delivery.endpoint);
        match handlers.and_then(|h| h.tagged.as_deref_mut()) {
            Some(engine) => {
                let before = self.completions.len();
                let taken = engine.deliver(&mut Working { state, done: &mut self.completions }, delivery);
                // Somebody waited for it. In a stream the poll before was not in vain.
                if self.idle > 0 && taken.is_ok() && self.completions.len() > before {
                    state.end_visit();
                }
                taken
            }
            None => match self.is_window_open() {
                true => self.deliver_stamped(state, delivery),
                false => self.deliver_leaving(state, delivery),
            },
        }
    }

    /// The same of one that came back.
    pub(super) fn return_elsewhere(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let handlers = self.endpoints.find(message.endpoint);
        match handlers.and_then(|h| h.tagged.as_deref_mut()) {
            Some(engine) => {
                engine.returned(&mut Working { state, done: &mut self.completions }, message);
                None
            }
            None => self.return_leaving(state, message),
        }
    }

    /// Goes on with what is under way at endpoints for tagged messages. Returns how much there was.
    pub(super) fn go_on_with_tagged(&mut self, state: &mut State<Outlet>) -> u32 {
        let mut work = 0;
        while let Some(event) = state.next_claimed() {
            let endpoint = match &event {
                Event::CanSend { endpoint, .. } | Event::PeerLost { endpoint, .. } => *endpoint,
                Event::Returned(returned) => returned.endpoint,
                Event::Completed(_) => continue,
            };
            let handlers = self.endpoints.find(endpoint);
            if let Some(engine) = handlers.and_then(|h| h.tagged.as_deref_mut()) {
                engine.on_event(&mut Working { state, done: &mut self.completions }, &event);
                work += 1;
            }
        }
        for at in (0..self.tagged.len()).rev() {
            let endpoint = self.tagged[at];
            let handlers = self.endpoints.find(endpoint);
            let Some(engine) = handlers.and_then(|h| h.tagged.as_deref_mut()) else { continue };
            work += engine.go_on(&mut Working { state, done: &mut self.completions });
            if engine.is_closed() {
                // It was there a moment ago.
                let _ = state.free_endpoint(endpoint);
                self.endpoints.set(endpoint, EndpointHandlers::default());
                self.tagged.swap_remove(at);
            }
        }
        work
    }
}
