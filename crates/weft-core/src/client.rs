//! Receivers of messages: the client of an endpoint, and the sink of a bundle, which knows the client of each endpoint.

use crate::endpoint::Endpoint;
use crate::event::{Event, Returned};
use crate::message::Delivery;
use crate::moving::{Back, Errand};
use crate::session::FlowId;
use crate::state::State;
use weft_wire::{BundleId, Reason};

/// The purpose of an endpoint's messages: Active Messages, tagged messages, or a program's own.
///
/// A client gets the messages that arrive for its endpoints, its own messages that came back, and the endpoints'
/// events. It sends through the [`State`] that each call passes. All calls happen inside the bundle's `poll`, one at a
/// time; none may block. `T` is the sending end of a path. A client for any `T` runs over shared memory, between
/// hosts and in the simulator.
///
/// ```
/// # use weft_core::{Client, Delivery, State};
/// # use weft_wire::path::Tx;
/// # use weft_wire::Reason;
///
/// /// Counts the bytes that come, and refuses messages without any.
/// struct Bytes(usize);
///
/// impl<T: Tx> Client<T> for Bytes {
///     fn deliver(&mut self, _: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
///         self.0 += message.payload.len();
///         match message.payload {
///             [] => Err(Reason::NoHandler), // it goes back to its sender
///             _ => Ok(()),
///         }
///     }
/// }
/// ```
pub trait Client<T> {
    /// Takes a message for one of its endpoints, or refuses it. A refused message goes back to its sender with the
    /// reason.
    ///
    /// [`State::reply`] answers a request. If the client neither answers a request nor takes its
    /// [token](Delivery::take_reply), the request ends without a reply when this returns.
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason>;

    /// Takes a message of an endpoint that came back. If the client gives it back, the program gets it as
    /// [`Event::Returned`].
    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        let _ = state;
        Some(message)
    }

    /// Handles an event of an endpoint whose events the client [claimed](State::claim_events): there is room to send
    /// again, or a peer is gone. [`Event::CanSend`] comes also when an index that led to a peer was unmapped or mapped
    /// again: see [`State::flow_to`].
    fn on_event(&mut self, state: &mut State<T>, event: &Event) {
        let _ = (state, event);
    }

    /// A message was stored, or a request answered, of an endpoint whose client [claimed](State::claim_completions) its
    /// completions.
    fn completed(&mut self, state: &mut State<T>, endpoint: Endpoint, completion: u64) {
        let _ = (state, endpoint, completion);
    }

    /// A peer closed a flow to an endpoint whose events the client claimed, or its session ended. Nothing more arrives
    /// on the flow, and another flow may get its number, so the client must forget what it knows of it.
    fn flow_closed(&mut self, state: &mut State<T>, endpoint: Endpoint, flow: FlowId) {
        let _ = (state, endpoint, flow);
    }

    /// Continues unfinished work. Called at the end of a poll, after events and whenever a client asked to [come
    /// again](State::come_again). Returns the amount of work done, in messages.
    fn go_on(&mut self, state: &mut State<T>) -> u32 {
        let _ = state;
        0
    }

    /// Closes an endpoint that the program frees. Nothing more is delivered to it. The client ends its operations
    /// there, and may still send.
    fn close(&mut self, state: &mut State<T>, endpoint: Endpoint) {
        let _ = (state, endpoint);
    }

    /// Whether a closed endpoint has nothing more to send. If so, it is freed.
    fn is_closed(&self, endpoint: Endpoint) -> bool {
        let _ = endpoint;
        true
    }
}

impl<T, C: Client<T> + ?Sized> Client<T> for Box<C> {
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
        (**self).deliver(state, message)
    }

    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        (**self).returned(state, message)
    }

    fn on_event(&mut self, state: &mut State<T>, event: &Event) {
        (**self).on_event(state, event);
    }

    fn completed(&mut self, state: &mut State<T>, endpoint: Endpoint, completion: u64) {
        (**self).completed(state, endpoint, completion);
    }

    fn flow_closed(&mut self, state: &mut State<T>, endpoint: Endpoint, flow: FlowId) {
        (**self).flow_closed(state, endpoint, flow);
    }

    fn go_on(&mut self, state: &mut State<T>) -> u32 {
        (**self).go_on(state)
    }

    fn close(&mut self, state: &mut State<T>, endpoint: Endpoint) {
        (**self).close(state, endpoint);
    }

    fn is_closed(&self, endpoint: Endpoint) -> bool {
        (**self).is_closed(endpoint)
    }
}

/// The receiver of a bundle's messages and returned messages. If the endpoints have different [clients](Client), the
/// sink passes each message to the right one. Called inside [`crate::Bundle::poll`].
///
/// ```
/// use weft_core::{Delivery, Sink, State};
/// use weft_wire::Reason;
///
/// /// A bundle whose endpoints all know the same operation.
/// struct Log(Vec<Vec<u8>>);
///
/// impl<T> Sink<T> for Log {
///     fn deliver(&mut self, _: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
///         match message.op() {
///             1 => Ok(self.0.push(message.payload.to_vec())),
///             _ => Err(Reason::NoHandler), // it goes back to its sender
///         }
///     }
/// }
/// ```
pub trait Sink<T> {
    /// Takes a message, or refuses it. A refused message goes back to its sender with the reason.
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason>;

    /// Takes a message that came back. If the sink gives it back, it goes to the event queue.
    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        let _ = state;
        Some(message)
    }

    /// Passes what [`State::next_claimed`], [`State::next_completed`] and [`State::next_closed_flow`] return to the
    /// clients, and lets them continue their work. Called at the end of a poll if there are such events or a client
    /// asked to [come again](State::come_again). Returns the amount of work done.
    fn do_chores(&mut self, state: &mut State<T>) -> u32 {
        let _ = state;
        0
    }

    /// Forwards an errand to the bundle in which its endpoint lives now. Returns the errand with a reason if nobody
    /// takes it.
    fn forward(&mut self, errand: Errand) -> Result<(), (Errand, Reason)> {
        Err((errand, Reason::NoSuchEndpoint))
    }

    /// Returns the result of an errand to the bundle that sent it.
    fn carry_back(&mut self, to: BundleId, back: Back) {
        let _ = (to, back);
    }
}
