//! Active Messages: a message names a handler, which the receiver runs with the message's arguments and payload.
//!
//! After the Active Messages of the seeds (AM-II): requests and replies, short (up to 16 arguments of 32 bits) and medium
//! (up to 64 KiB of payload as well), 32 requests outstanding from one endpoint to another, and an answer to every request:
//! if the handler does not reply, weft tells the sender that the request has ended. What cannot be delivered comes back.
//!
//! The calls are those of [`Bundle`]: [`Bundle::on`], [`Bundle::request`], [`Bundle::send`], [`Bundle::reply`]. Calls named `try_…`
//! never block and may be made by handlers; [`Bundle::request`] and [`Bundle::send`] poll until there is room.

mod message;
mod moving;
mod shared;
mod stamps;

pub use message::{Context, Message, NotReplied, ReplyToken};
pub use moving::{AdoptError, Moving};

use crate::bundle::faces::{self, Kind};
use crate::bundle::{AnyThread, Bundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use crate::watch::Signals;
use message::Mailbox;
use moving::Leaving;
use stamps::{Gate, Table};
use std::sync::{Arc, Mutex};
use weft_core::{Client, Delivery, Endpoint, MessageKind, Outgoing, ReplyError, Returned, SendError, State};
use weft_shm::{Life, Own};
use weft_wire::Reason;

/// The handlers of a bundle's endpoints for Active Messages.
pub(crate) struct Face<H: Threads> {
    endpoints: Table<H>,
    gate: Gate,
    /// Endpoints that were released and have not arrived anywhere yet.
    leaving: u32,
}

struct EndpointHandlers<H: Threads> {
    on: Vec<Option<H::Handler>>,
    on_return: Option<H::ReturnHandler>,
    /// It was released: its handlers are there until it arrives elsewhere.
    leaving: Option<Arc<Leaving<H>>>,
}

impl<H: Threads> Default for EndpointHandlers<H> {
    fn default() -> EndpointHandlers<H> {
        EndpointHandlers { on: Vec::new(), on_return: None, leaving: None }
    }
}

impl Bundle {
    /// Sets the handler of a number, in place of the one before. It runs inside [`Bundle::poll`].
    ///
    /// If it panics, the session that the message came by is unusable afterwards.
    pub fn on(
        &mut self,
        endpoint: Endpoint,
        handler: u8,
        run: impl FnMut(&mut Message<'_>) + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.set_handler(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler of messages that come back to the endpoint. Without one they are in [`Bundle::next_event`].
    pub fn on_return(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Context<'_>, Returned) + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        self.handlers(endpoint)?.on_return = Some(Box::new(run));
        Ok(())
    }
}

impl Bundle<AnyThread> {
    /// Sets the handler of a number, in place of the one before. It runs inside [`Bundle::poll`], in the thread that polls.
    ///
    /// If it panics, the session that the message came by is unusable afterwards.
    pub fn on(
        &mut self,
        endpoint: Endpoint,
        handler: u8,
        run: impl FnMut(&mut Message<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.set_handler(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler of messages that come back to the endpoint. Without one they are in [`Bundle::next_event`].
    pub fn on_return(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Context<'_>, Returned) + Send + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        self.handlers(endpoint)?.on_return = Some(Box::new(run));
        Ok(())
    }
}

impl<H: Threads> Bundle<H> {
    /// What is set of an endpoint, unless it was released.
    fn handlers(&mut self, endpoint: Endpoint) -> Result<&mut EndpointHandlers<H>, SendError> {
        self.faces.expect(endpoint, Kind::Am)?;
        let handlers = self.faces.am.endpoints.get_or_make(endpoint);
        match handlers.leaving {
            Some(_) => Err(SendError::NoEndpoint),
            None => Ok(handlers),
        }
    }

    fn set_handler(&mut self, endpoint: Endpoint, handler: u8, run: H::Handler) -> Result<(), SendError> {
        let on = &mut self.handlers(endpoint)?.on;
        if on.len() <= usize::from(handler) {
            on.resize_with(usize::from(handler) + 1, || None);
        }
        on[usize::from(handler)] = Some(run);
        Ok(())
    }

    /// Sends a request to the peer at index `to`, without waiting. *Full* is a normal answer.
    #[inline(always)]
    pub fn try_request(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if self.faces.am.gate.is_shut() {
            // Made for it alone: what is handed on by reference lies in memory, and each store of a sender counts.
            let message = Outgoing { op: handler, args, payload, completion: None };
            return self.faces.am.gate.request(self.core.state_mut(), from, to, message);
        }
        self.core.state_mut().try_request(from, to, Outgoing { op: handler, args, payload, completion: None })
    }

    /// Sends a one-way message to the peer at index `to`, without waiting. *Full* is a normal answer.
    #[inline(always)]
    pub fn try_send(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if self.life.is_over() {
            return not_sent(self.life);
        }
        self.core.state_mut().try_send(from, to, Outgoing { op: handler, args, payload, completion: None })
    }

    /// Like [`Bundle::try_request`] and [`Bundle::try_send`], for messages that ask for a completion.
    #[inline(always)]
    pub fn try_post(
        &mut self,
        from: Endpoint,
        to: u32,
        kind: MessageKind,
        message: Outgoing<'_>,
    ) -> Result<(), SendError> {
        if self.life.is_over() {
            return not_sent(self.life);
        }
        match kind {
            MessageKind::Request if self.faces.am.gate.is_shut() => {
                let Outgoing { op, args, payload, completion } = message;
                let message = Outgoing { op, args, payload, completion };
                self.faces.am.gate.request(self.core.state_mut(), from, to, message)
            }
            MessageKind::Request => self.core.state_mut().try_request(from, to, message),
            _ => self.core.state_mut().try_send(from, to, message),
        }
    }

    /// Sends a request; polls until there is room for it.
    pub fn request(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(|bundle| bundle.try_request(from, to, handler, args, payload))
    }

    /// Sends a one-way message; polls until there is room for it.
    pub fn send(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(|bundle| bundle.try_send(from, to, handler, args, payload))
    }

    /// Replies to a request whose token was kept. On *too large* the token comes back.
    pub fn reply(
        &mut self,
        mut token: ReplyToken,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if self.life.check().is_err() {
            return Err((ReplyError::Forked, token));
        }
        let Some(right) = token.right.take() else { return Ok(()) };
        let state = self.core.state_mut();
        let replied = match self.faces.am.gate.is_shut() {
            true => self.faces.am.gate.reply(state, right, handler, args, payload),
            false => state.reply(right, handler, args, payload),
        };
        replied.map_err(|(error, right)| {
            token.right = Some(right);
            (error, token)
        })?;
        self.carry_back();
        Ok(())
    }
}

/// An error: this is a forked child.
#[cold]
#[inline(never)]
fn not_sent(life: Life) -> Result<(), SendError> {
    life.check().map_err(|_| SendError::Forked)
}

impl<H: Threads> Face<H> {
    /// Runs the handler that a message is for. False if there is none here.
    #[inline(always)]
    pub fn run_handler(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> bool {
        let handlers = self.endpoints.plain(delivery.endpoint);
        let Some(Some(run)) = handlers.and_then(|h| h.on.get_mut(usize::from(delivery.op()))) else { return false };
        run(&mut Message { context: Context { state, gate: &mut self.gate }, delivery });
        true
    }

    /// Sends the replies that other threads gave, and looks which endpoints arrived in other bundles.
    pub fn read_letters(&mut self, state: &mut State<Outlet>) {
        if self.leaving > 0 {
            self.notice_arrivals(state);
        }
        for letter in self.gate.mailbox.take() {
            match letter.reply {
                // A reply that is too large was refused when the letter was written, and for a lost peer there is nobody to tell.
                Some((handler, args, payload)) if self.gate.is_shut() => {
                    let _ = self.gate.reply(state, letter.right, handler, &args, &payload);
                }
                Some((handler, args, payload)) => _ = state.reply(letter.right, handler, &args, &payload),
                None => state.end(letter.right),
            }
        }
    }

    /// An endpoint becomes another face's, unless it has handlers or was released.
    pub fn give_up(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        match self.endpoints.find(endpoint) {
            Some(EndpointHandlers { leaving: Some(_), .. }) => Err(SendError::NoEndpoint),
            Some(EndpointHandlers { on, on_return, .. }) if !on.is_empty() || on_return.is_some() => {
                Err(SendError::OtherClient)
            }
            _ => Ok(()),
        }
    }
}

impl<H: Threads> Client<Outlet> for Face<H> {
    /// A message that [`Face::run_handler`] found no handler for.
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        match self.is_window_open() {
            true => self.deliver_stamped(state, delivery),
            false => self.deliver_leaving(state, delivery),
        }
    }

    fn returned(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let handlers = self.endpoints.find(message.endpoint);
        match handlers.and_then(|h| h.on_return.as_mut()) {
            Some(run) => {
                run(&mut Context { state, gate: &mut self.gate }, message);
                None
            }
            None => self.return_leaving(state, message),
        }
    }
}

impl<H: Threads> faces::Face for Face<H> {
    fn new(signals: &Arc<Signals>) -> Face<H> {
        let mailbox = Mailbox { signals: signals.clone(), letters: Own::new(Mutex::default()) };
        Face { endpoints: Table::default(), gate: Gate::new(Arc::new(mailbox)), leaving: 0 }
    }

    fn is_leaving(&self, endpoint: Endpoint) -> bool {
        self.endpoints.all().get(endpoint.index()).is_some_and(|h| h.leaving.is_some())
    }

    fn remove(&mut self, endpoint: Endpoint) {
        if let Some(handlers) = self.endpoints.find(endpoint) {
            *handlers = EndpointHandlers::default();
        }
    }
}
