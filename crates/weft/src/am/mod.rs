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
mod tagged;

pub use message::{Context, Message, NotReplied, ReplyToken};
pub use moving::{AdoptError, Moving};

use crate::bundle::{AnyThread, Bundle, Threads};
use crate::node::{Error, Node};
use crate::paths::Outlet;
use crate::tagged::{Completions, Engine};
pub(crate) use message::Mailbox;
use moving::Leaving;
use stamps::{Gate, Table};
use std::sync::Arc;
use weft_core::{
    Back, Delivery, Endpoint, Errand, MessageKind, Outgoing, ReplyError, Returned, SendError, Sink, State,
};
use weft_shm::Life;
use weft_wire::{BundleId, Reason};

pub(crate) struct Handlers<H: Threads> {
    pub(crate) endpoints: Table<H>,
    pub(crate) gate: Gate,
    /// Where endpoints that left are found.
    pub(crate) node: Node,
    pub(crate) bundle: BundleId,
    /// Endpoints that were released and have not arrived anywhere yet.
    pub(crate) leaving: u32,
    /// Endpoints for tagged messages.
    pub(crate) tagged: Vec<Endpoint>,
    /// Completions of tagged messages.
    pub(crate) completions: Completions,
    /// Polls in a row that found nothing. Here, where what is delivered can see it.
    pub(crate) idle: u32,
}

pub(crate) struct EndpointHandlers<H: Threads> {
    pub(crate) on: Vec<Option<H::Handler>>,
    pub(crate) on_return: Option<H::ReturnHandler>,
    /// It was released: its handlers are there until it arrives elsewhere.
    pub(crate) leaving: Option<Arc<Leaving<H>>>,
    /// It is for tagged messages.
    pub(crate) tagged: Option<Box<Engine>>,
}

impl<H: Threads> Default for EndpointHandlers<H> {
    fn default() -> EndpointHandlers<H> {
        EndpointHandlers { on: Vec::new(), on_return: None, leaving: None, tagged: None }
    }
}

impl<H: Threads> std::fmt::Debug for Handlers<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.endpoints.all().iter().flat_map(|e| &e.on).flatten().count();
        write!(f, "{count} handlers")
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
        Ok(self.handlers.set(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler of messages that come back to the endpoint. Without one they are in [`Bundle::next_event`].
    pub fn on_return(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Context<'_>, Returned) + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?.on_return = Some(Box::new(run));
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
        Ok(self.handlers.set(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler of messages that come back to the endpoint. Without one they are in [`Bundle::next_event`].
    pub fn on_return(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Context<'_>, Returned) + Send + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?.on_return = Some(Box::new(run));
        Ok(())
    }
}

impl<H: Threads> Bundle<H> {
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
        if self.handlers.gate.is_shut() {
            // Made for it alone: what is handed on by reference lies in memory, and each store of a sender counts.
            let message = Outgoing { op: handler, args, payload, completion: None };
            return self.handlers.gate.request(self.core.state_mut(), from, to, message);
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
            MessageKind::Request if self.handlers.gate.is_shut() => {
                let Outgoing { op, args, payload, completion } = message;
                let message = Outgoing { op, args, payload, completion };
                self.handlers.gate.request(self.core.state_mut(), from, to, message)
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
        let replied = match self.handlers.gate.is_shut() {
            true => self.handlers.gate.reply(state, right, handler, args, payload),
            false => state.reply(right, handler, args, payload),
        };
        replied.map_err(|(error, right)| {
            token.right = Some(right);
            (error, token)
        })?;
        self.carry_back();
        Ok(())
    }

    /// Replies that other threads gave.
    pub(crate) fn read_letters(&mut self) {
        self.read_post();
        for letter in self.handlers.gate.mailbox.take() {
            let state = self.core.state_mut();
            match letter.reply {
                // What is too large was refused when the letter was written, and for a lost peer there is nobody to tell.
                Some((handler, args, payload)) if self.handlers.gate.is_shut() => {
                    let _ = self.handlers.gate.reply(state, letter.right, handler, &args, &payload);
                }
                Some((handler, args, payload)) => _ = state.reply(letter.right, handler, &args, &payload),
                None => state.end(letter.right),
            }
        }
        self.carry_back();
    }
}

/// An error: this is a forked child.
#[cold]
#[inline(never)]
fn not_sent(life: Life) -> Result<(), SendError> {
    life.check().map_err(|_| SendError::Forked)
}

impl<H: Threads> Handlers<H> {
    pub(crate) fn new(mailbox: Arc<Mailbox>, node: Node, bundle: BundleId) -> Handlers<H> {
        let (endpoints, leaving) = (Table::default(), 0);
        Handlers {
            endpoints,
            gate: Gate::new(mailbox),
            node,
            bundle,
            leaving,
            tagged: Vec::new(),
            completions: Completions::default(),
            idle: 0,
        }
    }

    /// What is set of an endpoint for handlers, unless it was released.
    pub(crate) fn at(&mut self, endpoint: Endpoint) -> Result<&mut EndpointHandlers<H>, SendError> {
        let handlers = self.endpoints.find(endpoint).filter(|h| h.leaving.is_none());
        match handlers {
            Some(handlers) if handlers.tagged.is_none() => Ok(handlers),
            Some(_) => Err(SendError::Tagged),
            None => Err(SendError::NoEndpoint),
        }
    }

    pub(crate) fn set(&mut self, endpoint: Endpoint, handler: u8, run: H::Handler) -> Result<(), SendError> {
        let on = &mut self.at(endpoint)?.on;
        if on.len() <= usize::from(handler) {
            on.resize_with(usize::from(handler) + 1, || None);
        }
        on[usize::from(handler)] = Some(run);
        Ok(())
    }
}

impl<H: Threads> Sink<Outlet> for Handlers<H> {
    #[inline(always)]
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let handlers = self.endpoints.plain(delivery.endpoint);
        let handler = handlers.and_then(|h| h.on.get_mut(usize::from(delivery.op())));
        let Some(Some(run)) = handler else {
            return self.deliver_elsewhere(state, delivery);
        };
        run(&mut Message { context: Context { state, gate: &mut self.gate }, delivery });
        Ok(())
    }

    fn returned(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let handlers = self.endpoints.find(message.endpoint);
        match handlers.and_then(|h| h.on_return.as_mut()) {
            Some(run) => {
                run(&mut Context { state, gate: &mut self.gate }, message);
                None
            }
            None => self.return_elsewhere(state, message),
        }
    }

    fn do_chores(&mut self, state: &mut State<Outlet>) -> u32 {
        self.go_on_with_tagged(state)
    }

    fn forward(&mut self, errand: Errand) -> Result<(), (Errand, Reason)> {
        self.node.office().forward(self.bundle, errand)
    }

    fn carry_back(&mut self, to: BundleId, back: Back) {
        self.node.office().carry_back(to, back);
    }
}
