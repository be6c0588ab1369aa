//! Clients that the program itself attaches to endpoints, beside the faces of this crate.

use super::faces::Kind;
use super::{AnyThread, Bundle, InHandler, SharedBundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use crate::watch::Signals;
use std::any::Any;
use std::sync::Arc;
use weft_core::{Client, Delivery, Endpoint, Event, FlowId, Returned, SendError, State};
use weft_wire::Reason;

/// A client that can be downcast to its own type.
pub trait Attached: Client<Outlet> {
    /// Returns the client for downcasting.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<C: Client<Outlet> + 'static> Attached for C {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The clients that the program attached.
pub(crate) struct Face<H: Threads> {
    /// Indexed by endpoint.
    clients: Vec<Option<H::Client>>,
    /// The endpoints that have a client.
    endpoints: Vec<Endpoint>,
}

impl<H: Threads> Face<H> {
    fn attach(&mut self, endpoint: Endpoint, client: H::Client) {
        if self.clients.len() <= endpoint.index() {
            self.clients.resize_with(endpoint.index() + 1, || None);
        }
        self.clients[endpoint.index()] = Some(client);
        self.endpoints.push(endpoint);
    }

    fn client(&mut self, endpoint: Endpoint) -> Option<&mut H::Client> {
        self.clients.get_mut(endpoint.index())?.as_mut()
    }
}

impl<H: Threads> Client<Outlet> for Face<H> {
    fn deliver(&mut self, state: &mut State<Outlet>, message: &Delivery<'_>) -> Result<(), Reason> {
        match self.client(message.endpoint) {
            Some(client) => client.deliver(state, message),
            None => Err(Reason::NoSuchEndpoint),
        }
    }

    fn returned(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        match self.client(message.endpoint) {
            Some(client) => client.returned(state, message),
            None => Some(message),
        }
    }

    fn on_event(&mut self, state: &mut State<Outlet>, event: &Event) {
        if let Some(client) = event.endpoint().and_then(|endpoint| self.client(endpoint)) {
            client.on_event(state, event);
        }
    }

    fn flow_closed(&mut self, state: &mut State<Outlet>, endpoint: Endpoint, flow: FlowId) {
        if let Some(client) = self.client(endpoint) {
            client.flow_closed(state, endpoint, flow);
        }
    }

    fn go_on(&mut self, state: &mut State<Outlet>) -> u32 {
        let mut work = 0;
        for at in 0..self.endpoints.len() {
            if let Some(client) = self.client(self.endpoints[at]) {
                work += client.go_on(state);
            }
        }
        work
    }

    fn close(&mut self, state: &mut State<Outlet>, endpoint: Endpoint) {
        if let Some(client) = self.client(endpoint) {
            client.close(state, endpoint);
        }
    }

    fn is_closed(&self, endpoint: Endpoint) -> bool {
        let client = self.clients.get(endpoint.index()).and_then(Option::as_ref);
        client.is_none_or(|client| client.is_closed(endpoint))
    }
}

impl<H: Threads> super::faces::Face for Face<H> {
    fn new(_: &Arc<Signals>) -> Face<H> {
        Face { clients: Vec::new(), endpoints: Vec::new() }
    }

    fn remove(&mut self, endpoint: Endpoint) {
        if let Some(client) = self.clients.get_mut(endpoint.index()) {
            *client = None;
        }
        self.endpoints.retain(|&other| other != endpoint);
    }
}

impl Bundle {
    /// Attaches a client of the program's own to an endpoint that has no handlers. From now on the client gets the
    /// endpoint's messages, returned messages and events. [`Bundle::client`] returns the client. The program still sets
    /// the endpoint's key and translation table.
    ///
    /// ```
    /// use weft::client::{Client, Delivery, State, Tx};
    /// use weft::{Bundle, Key, Node, Outgoing, Reason};
    ///
    /// /// Adds up what comes.
    /// struct Sum(u64);
    ///
    /// impl<T: Tx> Client<T> for Sum {
    ///     fn deliver(&mut self, _: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
    ///         Ok(self.0 += message.args.iter().map(|&arg| u64::from(arg)).sum::<u64>())
    ///     }
    /// }
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let (sum, me) = (bundle.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
    /// bundle.attach(sum, Sum(0))?;
    /// bundle.map(me, 0, bundle.name(sum)?, Key(1))?;
    /// bundle.send(me, 0, 0, &[40, 2], b"")?;
    /// bundle.drain();
    /// let (client, _) = bundle.client::<Sum>(sum)?;
    /// assert_eq!(client.0, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the endpoint was freed or has another client already, or if this is a forked child.
    pub fn attach(&mut self, endpoint: Endpoint, client: impl Client<Outlet> + 'static) -> Result<(), Error> {
        self.attach_boxed(endpoint, Box::new(client))
    }
}

impl Bundle<AnyThread> {
    /// Attaches a client of the program's own to an endpoint, as `attach` of an ordinary bundle does. The client runs
    /// in the thread that polls.
    ///
    /// # Errors
    /// If the endpoint was freed or has another client already, or if this is a forked child.
    pub fn attach(&mut self, endpoint: Endpoint, client: impl Client<Outlet> + Send + 'static) -> Result<(), Error> {
        self.attach_boxed(endpoint, Box::new(client))
    }
}

impl<H: Threads> Bundle<H> {
    fn attach_boxed(&mut self, endpoint: Endpoint, client: H::Client) -> Result<(), Error> {
        self.life.check()?;
        self.become_of(endpoint, Kind::Own)?;
        self.faces.own.attach(endpoint, client);
        Ok(())
    }

    /// Returns the client that was attached to an endpoint, and the state through which it sends.
    ///
    /// # Errors
    /// If the endpoint was freed, if its client is of another type, or if this is a forked child.
    pub fn client<C: Client<Outlet> + 'static>(
        &mut self,
        endpoint: Endpoint,
    ) -> Result<(&mut C, &mut State<Outlet>), Error> {
        self.life.check()?;
        self.faces.expect(endpoint, Kind::Own)?;
        let client = self.faces.own.client(endpoint).ok_or(SendError::NoEndpoint)?;
        let client = H::as_any_mut(client).downcast_mut().ok_or(SendError::OtherClient)?;
        Ok((client, self.core.state_mut()))
    }
}

impl SharedBundle {
    /// As [`Bundle::attach`]. The client runs in whichever thread polls.
    pub fn attach(&self, endpoint: Endpoint, client: impl Client<Outlet> + Send + 'static) -> Result<(), Error> {
        self.with(|bundle| bundle.attach(endpoint, client))?
    }

    /// Runs a function with the client that was attached to an endpoint, under the lock.
    ///
    /// # Errors
    /// As [`Bundle::client`], and if a handler calls it.
    pub fn with_client<C: Client<Outlet> + 'static, R>(
        &self,
        endpoint: Endpoint,
        run: impl FnOnce(&mut C, &mut State<Outlet>) -> R,
    ) -> Result<R, Error> {
        let done: Result<Result<R, Error>, InHandler> = self.with(|bundle| {
            let (client, state) = bundle.client::<C>(endpoint)?;
            Ok(run(client, state))
        });
        done?
    }
}
