//! What a bundle's messages are handed to.

use crate::event::Returned;
use crate::message::Delivery;
use crate::moving::{Back, Errand};
use crate::state::State;
use weft_wire::{BundleId, Reason};

/// The client of a bundle: gets what arrives and what comes back. Runs inside [`crate::Bundle::poll`].
///
/// ```
/// use weft_core::{Delivery, Sink, State};
/// use weft_wire::Reason;
///
/// /// A client that knows one operation.
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

    /// Goes on with what the client has to do: [`State::next_claimed`] events, and whatever it asked to [`State::come_again`]
    /// for. Called at the end of a poll, if there may be any. Returns how much was done.
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
