//! What messages are handed to: the client of an endpoint, and the sink of a bundle, which knows which client each endpoint has.

use crate::endpoint::Endpoint;
use crate::event::{Event, Returned};
use crate::message::Delivery;
use crate::moving::{Back, Errand};
use crate::session::FlowId;
use crate::state::State;
use weft_wire::{BundleId, Reason};

/// What an endpoint's messages are for: Active Messages, tagged messages, or a program's own purpose.
///
/// A client gets the messages that arrive for the endpoints it is attached to, its own messages that came back, and the endpoints'
/// events. It sends through the [`State`] that each call is given. All calls are made inside [`crate::Bundle::poll`], by one thread at a
/// time; none may block. `T` is the sending end of a path: a client that is written for any `T` runs over shared memory, between
/// hosts and in the simulator.
///
/// ```
/// use weft_core::{Client, Delivery, State};
/// use weft_wire::path::Tx;
/// use weft_wire::Reason;
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
    /// Takes a message for one of its endpoints, or refuses it. A refused message goes back to its sender with the reason.
    ///
    /// A request is answered with [`State::reply`]. If the client neither answers it nor takes its [token](Delivery::take_reply), the
    /// request ends without a reply when this returns.
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason>;

    /// Takes a message that an endpoint sent and that came back. One that it does not take is an [`Event::Returned`] for the program.
    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        let _ = state;
        Some(message)
    }

    /// Something happened to an endpoint whose events the client [claimed](State::claim_events): there is room to send again, or a peer
    /// is gone.
    fn on_event(&mut self, state: &mut State<T>, event: &Event) {
        let _ = (state, event);
    }

    /// A peer closed a flow to an endpoint whose events the client claimed. Nothing more comes by it, and another flow may have its number:
    /// what the client knows of the flow is to be forgotten.
    fn flow_closed(&mut self, state: &mut State<T>, endpoint: Endpoint, flow: FlowId) {
        let _ = (state, endpoint, flow);
    }

    /// Continues with work that it left unfinished. Called at the end of a poll, after events and whenever a client asked to
    /// [come again](State::come_again). Returns how much it did, in messages.
    fn go_on(&mut self, state: &mut State<T>) -> u32 {
        let _ = state;
        0
    }

    /// The program frees the endpoint. Nothing more is delivered to it; the client ends what it began there, and may still send.
    fn close(&mut self, state: &mut State<T>, endpoint: Endpoint) {
        let _ = (state, endpoint);
    }

    /// Whether a closed endpoint has nothing more to send: then it is freed.
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

/// Where a bundle hands over what arrives and what comes back: to the [client](Client) of the endpoint, if the endpoints of the bundle
/// have several. Called inside [`crate::Bundle::poll`].
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
    /// Takes a message, or refuses it, and then it goes back to its sender.
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason>;

    /// Takes a message that came back, or leaves it to the event queue.
    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        let _ = state;
        Some(message)
    }

    /// Hands [`State::next_claimed`] events and [`State::next_closed_flow`] to the clients and lets them go on. Called at the end of a poll, if there are such events or a
    /// client asked to [come again](State::come_again). Returns how much was done.
    fn do_chores(&mut self, state: &mut State<T>) -> u32 {
        let _ = state;
        0
    }

    /// Carries an errand to the bundle that its endpoint lives in now, or says why nobody takes it.
    fn forward(&mut self, errand: Errand) -> Result<(), (Errand, Reason)> {
        Err((errand, Reason::NoSuchEndpoint))
    }

    /// Carries back to a bundle what became of an errand of its.
    fn carry_back(&mut self, to: BundleId, back: Back) {
        let _ = (to, back);
    }
}
