//! Active Messages: a message names a handler, and the receiver runs it with the message's arguments and payload.
//!
//! This is the Active Messages interface of Mainwaring and Culler (AM-II). It has requests and replies; short messages
//! (up to 16 arguments of 32 bits) and medium ones (with up to 64 KiB of payload); and 32 outstanding requests from one
//! endpoint to another. Every request is answered: if the handler does not reply, weft tells the sender that the request has
//! ended. Messages that cannot be delivered come back.
//!
//! The calls are methods of [`Bundle`]: [`Bundle::on`], [`Bundle::request`], [`Bundle::send`], [`Bundle::reply`]. Calls
//! named `try_…` never block, and handlers may make them. [`Bundle::request`] and [`Bundle::send`] poll until there is
//! room, [`Bundle::request_within`] and [`Bundle::send_within`] do so for a limited time. A message that a call did not send is not
//! queued anywhere.
//!
//! Long messages have any length. Their bytes are placed into the receiving endpoint's *segment* before its handler runs:
//! [`Bundle::set_segment`], [`Bundle::request_long`], [`Message::reply_long`]. [`Bundle::get`] reads a part of another endpoint's segment.

mod long;
mod message;
mod moving;
mod shared;
mod stamps;

pub use long::{Get, Long};
pub use message::{Context, Message, NotReplied, ReplyToken};
pub use moving::{AdoptError, Moving};

use crate::bundle::faces::{self, Kind};
use crate::bundle::{AnyThread, Bundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use crate::watch::Signals;
use message::{Answer, Letter, Mailbox};
use moving::Leaving;
use stamps::{Gate, Table};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_core::{Client, Delivery, Endpoint, MessageKind, Outgoing, ReplyError, Returned, SendError, State};
use weft_shm::{Life, Own};
use weft_wire::Reason;

/// The Active Message handlers of a bundle's endpoints.
pub(crate) struct Face<H: Threads> {
    endpoints: Table<H>,
    gate: Gate,
    /// Number of endpoints that were released and not adopted yet.
    leaving: u32,
    /// The bundle has ended: no handler runs any more.
    pub(crate) has_ended: bool,
}

struct EndpointHandlers<H: Threads> {
    on: Vec<Option<H::Handler>>,
    on_return: Option<H::ReturnHandler>,
    /// The endpoint was released: its handlers are in here until another bundle adopts it.
    leaving: Option<Arc<Leaving<H>>>,
}

impl<H: Threads> Default for EndpointHandlers<H> {
    fn default() -> EndpointHandlers<H> {
        EndpointHandlers { on: Vec::new(), on_return: None, leaving: None }
    }
}

impl Bundle {
    /// Sets the handler for a number and replaces the previous one. It runs inside [`Bundle::poll`].
    ///
    /// If the handler panics, the session of its message ends. Messages that the peer sends meanwhile come back as if this process had
    /// ended or had broken the protocol; after that, the peer calls again.
    pub fn on(
        &mut self,
        endpoint: Endpoint,
        handler: u8,
        run: impl FnMut(&mut Message<'_>) + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.set_handler(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler for messages that come back to the endpoint. Without one, [`Bundle::next_event`] returns them, within the
    /// bound that it states.
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
    /// Sets the handler for a number and replaces the previous one. It runs inside [`Bundle::poll`], in the thread that
    /// polls.
    ///
    /// If the handler panics, the session of its message ends. Messages that the peer sends meanwhile come back as if this process had
    /// ended or had broken the protocol; after that, the peer calls again.
    pub fn on(
        &mut self,
        endpoint: Endpoint,
        handler: u8,
        run: impl FnMut(&mut Message<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.set_handler(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler for messages that come back to the endpoint. Without one, [`Bundle::next_event`] returns them, within the
    /// bound that it states.
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
    /// Returns the handlers of an endpoint. Fails if it was released.
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

    /// Sends a request to the peer at index `to` of the translation table. Does not block: returns [`SendError::Full`]
    /// if there is no room, and a can-send event follows.
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
            // Built in this branch only: a message passed by reference is stored to memory, which would slow the usual
            // path.
            let message = Outgoing { op: handler, args, payload, completion: None };
            return self.faces.am.gate.request(self.core.state_mut(), from, to, message);
        }
        self.core.state_mut().try_request(from, to, Outgoing { op: handler, args, payload, completion: None })
    }

    /// Sends a one-way message to the peer at index `to` of the translation table. Does not block: returns
    /// [`SendError::Full`] if there is no room, and a can-send event follows.
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

    /// Sends a message that may ask for a completion, as [`Bundle::try_request`] and [`Bundle::try_send`] do.
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

    /// Sends a request. Blocks until there is room for it, and polls meanwhile. Waits for no answer.
    ///
    /// # Errors
    /// As [`Bundle::try_request`]; [`SendError::Full`] only if the program is to take [events](Bundle::next_event) first.
    pub fn request(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(None, |bundle| bundle.try_request(from, to, handler, args, payload))
    }

    /// As [`Bundle::request`], but blocks for `limit` at most. Waits for no answer either;
    /// [`Bundle::poll_until_within`] does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weft::{Bundle, Key, Node, SendError};
    ///
    /// let node = Node::new()?;
    /// let (mut slow, mut bundle) = (Bundle::new(&node)?, Bundle::new(&node)?);
    /// let (there, me) = (slow.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
    /// bundle.map(me, 0, slow.name(there)?, Key(1))?;
    /// // Nobody polls the other bundle, so there is room for 32 requests at most.
    /// let sent = (0..100).map(|_| bundle.request_within(Duration::from_millis(20), me, 0, 1, &[], b"are you there?"));
    /// assert!(sent.take_while(Result::is_ok).count() <= 32);
    /// assert_eq!(bundle.request_within(Duration::ZERO, me, 0, 1, &[], b""), Err(SendError::TimedOut));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Bundle::request`]; [`SendError::TimedOut`] if there was no room within the limit. Then nothing was sent.
    pub fn request_within(
        &mut self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(Some(limit), |bundle| bundle.try_request(from, to, handler, args, payload))
    }

    /// Sends a one-way message. Blocks until there is room for it, and polls meanwhile.
    ///
    /// # Errors
    /// As [`Bundle::try_send`]; [`SendError::Full`] only if the program is to take [events](Bundle::next_event) first.
    pub fn send(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(None, |bundle| bundle.try_send(from, to, handler, args, payload))
    }

    /// As [`Bundle::send`], but blocks for `limit` at most.
    ///
    /// # Errors
    /// As [`Bundle::send`]; [`SendError::TimedOut`] if there was no room within the limit. Then nothing was sent.
    pub fn send_within(
        &mut self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(Some(limit), |bundle| bundle.try_send(from, to, handler, args, payload))
    }

    /// Replies to a request with a token that a handler [deferred](Message::defer). Does not block.
    ///
    /// # Errors
    /// If the reply is too large or this is a forked child. The token comes back.
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

/// Returns the error of calls in a forked child.
#[cold]
#[inline(never)]
fn not_sent(life: Life) -> Result<(), SendError> {
    life.check().map_err(|_| SendError::Forked)
}

impl<H: Threads> Face<H> {
    /// Runs the handler of a message. Returns false if there is none here.
    #[inline(always)]
    pub fn run_handler(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> bool {
        let handlers = self.endpoints.plain(delivery.endpoint);
        let Some(Some(run)) = handlers.and_then(|h| h.on.get_mut(usize::from(delivery.op()))) else { return false };
        run(&mut Message { context: Context { state, gate: &mut self.gate }, delivery });
        true
    }

    /// Sends the replies of other threads, and notices which endpoints other bundles have adopted.
    pub fn read_letters(&mut self, state: &mut State<Outlet>) {
        if self.leaving > 0 {
            self.notice_arrivals(state);
        }
        for letter in self.gate.mailbox.take() {
            let Letter { right, answer } = letter;
            match answer {
                // Errors have no receiver here: too large replies were refused when the letter was written, and a lost
                // peer hears nothing.
                Answer::Reply(handler, args, payload) if self.gate.is_shut() => {
                    let _ = self.gate.reply(state, right, handler, &args, &payload);
                }
                Answer::Reply(handler, args, payload) => _ = state.reply(right, handler, &args, &payload),
                Answer::Long(handler, args, offset, contents) => {
                    let _ = self.gate.reply_long(state, right, Long { handler, args: &args, offset }, contents);
                }
                Answer::None => state.end(right),
            }
        }
    }

    /// Whether a poll can run one of the program's handlers here. Stays true once one was set.
    pub fn may_run_handlers(&self) -> bool {
        self.endpoints.has_had_some
    }

    /// Gives an endpoint up to another face. Fails if it has handlers or was released.
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
    /// Delivers a message that [`Face::run_handler`] found no handler for.
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
        Face { endpoints: Table::default(), gate: Gate::new(Arc::new(mailbox)), leaving: 0, has_ended: false }
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
