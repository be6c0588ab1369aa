//! Endpoints that move to another bundle of their node.
//!
//! An endpoint that was released goes on being answered where it was: its handlers lie where both bundles reach them, and the
//! one it leaves runs them there, under a lock, until the other one takes them. From then on what still comes to the old bundle
//! is handed on (`weft_core`'s errands).

use super::{Context, EndpointHandlers, Face, Message};
use crate::bundle::faces::Kind;
use crate::bundle::{Bundle, Threads};
use crate::node::{lock, Node};
use crate::paths::Outlet;
use crate::watch::Signals;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use weft_core::{Delivery, Endpoint, Luggage, Returned, SendError, State};
use weft_shm::biased::this_thread;
use weft_wire::Reason;

/// An endpoint that was [released](Bundle::release), on its way to another bundle of its node. Dropped, it stays where it is.
///
/// ```
/// use weft::{Bundle, Key, Node, Settings};
///
/// let node = Node::new()?;
/// let mut old = Bundle::for_any_thread(&node, Settings::default())?;
/// let endpoint = old.endpoint(Key(1))?;
/// old.on(endpoint, 1, |m| println!("{} bytes", m.payload().len()))?;
/// let name = old.name(endpoint)?;
///
/// let moving = old.release(endpoint)?;
/// let thread = std::thread::spawn(move || {
///     let mut new = Bundle::for_any_thread(&node, Settings::default()).expect("descriptors");
///     let endpoint = new.adopt(moving).expect("of the same node"); // with its handler
///     new.name(endpoint).expect("it lives here now")
/// });
/// assert_eq!(thread.join().expect("it ended"), name);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, the endpoint stays where it is"]
pub struct Moving<H: Threads> {
    leaving: Arc<Leaving<H>>,
}

/// What two bundles have of an endpoint that moves from one to the other.
pub(super) struct Leaving<H: Threads> {
    node: Node,
    /// What it is in the bundle that it leaves, and what wakes that.
    endpoint: Endpoint,
    signals: Arc<Signals>,
    packed: Mutex<Option<Packed<H>>>,
    /// The thread in which a handler of it runs, or 0.
    holder: AtomicUsize,
    /// Nobody is to adopt it any more.
    is_dropped: AtomicBool,
}

struct Packed<H: Threads> {
    luggage: Luggage,
    handlers: EndpointHandlers<H>,
}

/// Why an endpoint was not adopted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// Names say which node an endpoint is of, so it cannot become another one's.
    #[error("an endpoint cannot move to a bundle of another node; make one there, and tell its name")]
    AnotherNode,
    /// A handler of the endpoint, or of the shared bundle, made the call.
    #[error("a handler cannot adopt the endpoint that it runs for, nor call the shared bundle that runs it")]
    InHandler,
}

weft_wire::debug_says_display!(AdoptError);

impl<H: Threads> std::fmt::Debug for Leaving<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaving").finish_non_exhaustive()
    }
}

impl<H: Threads> Drop for Moving<H> {
    fn drop(&mut self) {
        // Adopted or not: the bundle that it leaves looks.
        self.leaving.is_dropped.store(true, Ordering::Release);
        self.leaving.signals.raise(Signals::LETTERS);
    }
}

impl<H: Threads> Bundle<H> {
    /// Releases an endpoint, for another bundle of the node to [adopt](Bundle::adopt). Until that has adopted it, this one goes on
    /// answering for it: its handlers run here. The program cannot change it meanwhile.
    ///
    /// Its handlers (which ask the message for [their endpoint](Message::endpoint), for it is another one there), key, translation table, event mask and the messages that it holds go along. Nothing is lost,
    /// delivered twice or returned for the move: what comes to this bundle afterwards is handed on to the other one, with each of
    /// this bundle's polls, and the answers come back the same way; so this bundle has to be polled as long as there may be any. Peers
    /// on the same host are told to call again, and soon have nothing to do with this bundle. Peers on other hosts
    /// know it by its address, which is in the endpoint's name, and go on by it.
    ///
    /// # Errors
    /// If there is no such endpoint, or it was released before.
    pub fn release(&mut self, endpoint: Endpoint) -> Result<Moving<H>, SendError> {
        if self.life.is_over() {
            return Err(SendError::Forked);
        }
        let luggage = self.core.state().pack(endpoint)?;
        let handlers = std::mem::take(self.handlers(endpoint)?);
        self.core.state_mut().set_leaving(endpoint, true);
        let leaving = Arc::new(Leaving {
            node: self.home.node().clone(),
            endpoint,
            signals: self.signals.clone(),
            packed: Mutex::new(Some(Packed { luggage, handlers })),
            holder: AtomicUsize::new(0),
            is_dropped: AtomicBool::new(false),
        });
        self.handlers(endpoint)?.leaving = Some(leaving.clone());
        self.faces.am.leaving += 1;
        Ok(Moving { leaving })
    }

    /// Takes over an endpoint that another bundle of the node released. It has arrived when this returns, and is this bundle's
    /// from now on. Waits for a handler of it that runs in the other bundle at this moment.
    ///
    /// # Errors
    /// If the other bundle is of another node, or if this is called by a handler of the endpoint. The endpoint stays where it was;
    /// it comes with the error, for another try.
    pub fn adopt(&mut self, moving: Moving<H>) -> Result<Endpoint, (AdoptError, Moving<H>)> {
        self.expect_own();
        loop {
            match self.try_adopt(&moving) {
                Ok(Some(endpoint)) => return Ok(endpoint),
                Ok(None) => std::thread::yield_now(),
                Err(error) => return Err((error, moving)),
            }
        }
    }

    /// The same without waiting: `None` if a handler of the endpoint runs now.
    pub(crate) fn try_adopt(&mut self, moving: &Moving<H>) -> Result<Option<Endpoint>, AdoptError> {
        let leaving = &moving.leaving;
        if !leaving.node.is(self.home.node()) {
            return Err(AdoptError::AnotherNode);
        }
        if leaving.holder.load(Ordering::Relaxed) == this_thread() {
            return Err(AdoptError::InHandler);
        }
        let mut packed = match leaving.packed.try_lock() {
            Ok(packed) => packed,
            // A handler panicked: the endpoint is as whole as it would be in an exclusive bundle.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        // Only this takes it, and there is one `Moving`.
        let Some(Packed { luggage, handlers }) = packed.take() else { return Ok(None) };
        let (id, key, admission) = (luggage.endpoint(), luggage.key(), luggage.admission());
        let endpoint = self.core.state_mut().arrive(luggage);
        let before = self.faces.am.endpoints.set(endpoint, handlers);
        self.faces.seat(endpoint, Kind::Am);
        self.faces.am.leaving -= u32::from(before.leaving.is_some());
        self.home.node().office().move_endpoint(id, key, admission, self.home.id());
        Ok(Some(endpoint))
    }
}

impl<H: Threads> Face<H> {
    /// A message that no handler of this bundle is for: there is none, or its endpoint was released.
    #[cold]
    #[inline(never)]
    pub(super) fn deliver_leaving(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let Some(leaving) = self.leaving_of(delivery.endpoint) else { return Err(Reason::NoHandler) };
        let ran = leaving.with(|packed| {
            let Some(Some(run)) = packed.handlers.on.get_mut(usize::from(delivery.op())) else {
                return Err(Reason::NoHandler);
            };
            run(&mut Message { context: Context { state, gate: &mut self.gate }, delivery });
            // What it entered in the table goes along.
            state.repack(delivery.endpoint, &mut packed.luggage);
            Ok(())
        });
        ran.unwrap_or_else(|| {
            self.has_left(state, delivery.endpoint);
            Err(Reason::NoSuchEndpoint)
        })
    }

    /// The same of one that came back.
    pub(super) fn return_leaving(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let Some(leaving) = self.leaving_of(message.endpoint) else { return Some(message) };
        let endpoint = message.endpoint;
        let mut message = Some(message);
        let ran = leaving.with(|packed| {
            if let (Some(run), Some(message)) = (&mut packed.handlers.on_return, message.take()) {
                run(&mut Context { state, gate: &mut self.gate }, message);
                state.repack(endpoint, &mut packed.luggage);
            }
        });
        if ran.is_none() {
            self.has_left(state, endpoint);
            if let Some(message) = message.take() {
                state.return_again(message);
            }
        }
        message
    }

    /// Looks which endpoints have arrived elsewhere, and which are to stay.
    pub(super) fn notice_arrivals(&mut self, state: &mut State<Outlet>) {
        let all: Vec<_> = self.endpoints.all().iter().filter_map(|h| h.leaving.clone()).collect();
        for leaving in all {
            let mut packed = lock(&leaving.packed);
            if packed.is_none() {
                drop(packed);
                self.has_left(state, leaving.endpoint);
            } else if leaving.is_dropped.load(Ordering::Acquire) {
                if let Some(Packed { handlers, .. }) = packed.take() {
                    self.endpoints.set(leaving.endpoint, handlers);
                    self.leaving -= 1;
                    state.set_leaving(leaving.endpoint, false);
                }
            }
        }
    }

    /// An endpoint has arrived elsewhere.
    fn has_left(&mut self, state: &mut State<Outlet>, endpoint: Endpoint) {
        if let Some(handlers) = self.endpoints.find(endpoint) {
            self.leaving -= u32::from(handlers.leaving.take().is_some());
        }
        // It was there a moment ago.
        let _ = state.leave(endpoint);
    }

    fn leaving_of(&self, endpoint: Endpoint) -> Option<Arc<Leaving<H>>> {
        self.endpoints.all().get(endpoint.index())?.leaving.clone()
    }
}

impl<H: Threads> Leaving<H> {
    /// Does something with it where it was. `None` if it has arrived elsewhere.
    fn with<R>(&self, run: impl FnOnce(&mut Packed<H>) -> R) -> Option<R> {
        let mut packed = lock(&self.packed);
        let packed = packed.as_mut()?;
        self.holder.store(this_thread(), Ordering::Relaxed);
        let _holding = Holding(&self.holder);
        Some(run(packed))
    }
}

struct Holding<'a>(&'a AtomicUsize);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        // Relaxed: a thread looks only for itself here.
        self.0.store(0, Ordering::Relaxed);
    }
}
