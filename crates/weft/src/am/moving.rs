//! Endpoints that move to another bundle of their node.
//!
//! After its release an endpoint is still served by the bundle that it leaves. Its handlers are stored where both
//! bundles reach them, behind a lock; the old bundle runs them there until the new one takes them. From then on the old bundle
//! forwards messages that still arrive, as errands of `weft_core`.

use super::{Context, EndpointHandlers, Face, Message};
use crate::bundle::faces::Kind;
use crate::bundle::{Bundle, Threads};
use crate::node::{lock, Node};
use crate::paths::Outlet;
use crate::watch::Signals;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};
use weft_core::{Delivery, Endpoint, Luggage, Returned, SendError, State};
use weft_shm::biased::this_thread;
use weft_wire::Reason;

/// An endpoint that was [released](Bundle::release), on its way to another bundle of its node. If dropped, the endpoint
/// stays where it is.
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

/// The state of a moving endpoint that both bundles share.
pub(super) struct Leaving<H: Threads> {
    node: Node,
    /// The endpoint in the bundle that it leaves, and that bundle's signals.
    endpoint: Endpoint,
    signals: Arc<Signals>,
    packed: Mutex<Option<Packed<H>>>,
    /// The thread that runs one of its handlers now, or 0.
    holder: AtomicUsize,
    /// The [`Moving`] was dropped, so nobody will adopt the endpoint.
    is_dropped: AtomicBool,
}

struct Packed<H: Threads> {
    luggage: Luggage,
    handlers: EndpointHandlers<H>,
}

/// Why an endpoint was not adopted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// The bundle is of another node. A name says which node its endpoint is of, so an endpoint cannot change nodes.
    #[error("an endpoint cannot move to a bundle of another node; make one there, and give peers its name")]
    AnotherNode,
    /// A handler of the endpoint or of the shared bundle made the call.
    #[error("a handler cannot adopt the endpoint that it runs for, nor call the shared bundle that runs it")]
    InHandler,
    /// A handler of the endpoint still ran in the other bundle when the time limit was over.
    #[error("timed out: a handler of the endpoint still runs in the other bundle; try again when it has returned")]
    TimedOut,
}

weft_wire::debug_says_display!(AdoptError);

impl<H: Threads> std::fmt::Debug for Leaving<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaving").finish_non_exhaustive()
    }
}

impl<H: Threads> Drop for Moving<H> {
    fn drop(&mut self) {
        // This happens after an adoption too: the old bundle finds out which case it is.
        self.leaving.is_dropped.store(true, Ordering::Release);
        self.leaving.signals.raise(Signals::LETTERS);
    }
}

impl<H: Threads> Bundle<H> {
    /// Releases an endpoint, so that another bundle of the node can [adopt](Bundle::adopt) it. Until then this bundle
    /// serves it and runs its handlers here, and the program cannot change it. Does not block.
    ///
    /// The handlers, key, translation table, event mask and queued messages move with the endpoint. A handler must ask
    /// its message for [the endpoint](Message::endpoint), because the number differs in the new bundle.
    ///
    /// No message is lost, delivered twice or returned because of the move. Polls of this bundle forward messages that arrive here
    /// later, and carry the answers back. So keep polling this bundle while such messages may come. Peers on the same host are told
    /// to call again and soon reach the new bundle directly. Peers on other hosts continue to reach it through this bundle, because
    /// its name contains this bundle's address.
    ///
    /// # Errors
    /// If there is no such endpoint, if it was released before, or if this is a forked child.
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

    /// Takes over an endpoint that another bundle of the node released. It belongs to this bundle when the call
    /// returns. Blocks while one of the endpoint's handlers runs in the other bundle.
    ///
    /// # Errors
    /// If the other bundle is of another node, or if a handler of the endpoint makes the call. The endpoint stays where
    /// it was, and the error contains it for another attempt.
    pub fn adopt(&mut self, moving: Moving<H>) -> Result<Endpoint, (AdoptError, Moving<H>)> {
        self.adopt_by(None, moving)
    }

    /// As [`Bundle::adopt`], but blocks for `limit` at most.
    ///
    /// # Errors
    /// As [`Bundle::adopt`]; [`AdoptError::TimedOut`] if the handler still runs then.
    pub fn adopt_within(&mut self, limit: Duration, moving: Moving<H>) -> Result<Endpoint, (AdoptError, Moving<H>)> {
        self.adopt_by(Some(limit), moving)
    }

    fn adopt_by(&mut self, limit: Option<Duration>, moving: Moving<H>) -> Result<Endpoint, (AdoptError, Moving<H>)> {
        self.expect_own();
        let since = Instant::now();
        loop {
            match self.try_adopt(&moving) {
                Ok(Some(endpoint)) => return Ok(endpoint),
                Ok(None) if limit.is_some_and(|limit| since.elapsed() >= limit) => {
                    return Err((AdoptError::TimedOut, moving))
                }
                Ok(None) => std::thread::yield_now(),
                Err(error) => return Err((error, moving)),
            }
        }
    }

    /// As [`Bundle::adopt`], without blocking: `None` if a handler of the endpoint runs now.
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
            // A handler panicked. The endpoint is as usable as after a panic in an exclusive bundle.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        // Always there: only this function takes it, and there is one `Moving`.
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
    /// Delivers a message that has no handler in this bundle: none was set, or its endpoint was released.
    #[cold]
    #[inline(never)]
    pub(super) fn deliver_leaving(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let Some(leaving) = self.leaving_of(delivery.endpoint) else { return Err(Reason::NoHandler) };
        if self.has_ended {
            return Err(Reason::NoSuchEndpoint);
        }
        let ran = leaving.with(|packed| {
            let Some(Some(run)) = packed.handlers.on.get_mut(usize::from(delivery.op())) else {
                return Err(Reason::NoHandler);
            };
            run(&mut Message { context: Context { state, gate: &mut self.gate }, delivery });
            // Entries that the handler made in the translation table move too.
            state.repack(delivery.endpoint, &mut packed.luggage);
            Ok(())
        });
        ran.unwrap_or_else(|| {
            self.has_left(state, delivery.endpoint);
            Err(Reason::NoSuchEndpoint)
        })
    }

    /// Gives a returned message to the return handler of a released endpoint.
    pub(super) fn return_leaving(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let leaving = self.leaving_of(message.endpoint).filter(|_| !self.has_ended);
        let Some(leaving) = leaving else { return Some(message) };
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

    /// Notices which endpoints were adopted, and which stay because their [`Moving`] was dropped.
    pub(super) fn notice_arrivals(&mut self, state: &mut State<Outlet>) {
        let all: Vec<_> = self.endpoints.all().iter().filter_map(|h| h.leaving.clone()).collect();
        for leaving in all {
            let mut packed = lock(&leaving.packed);
            if packed.is_none() {
                drop(packed);
                self.has_left(state, leaving.endpoint);
            } else if !self.has_ended && leaving.is_dropped.load(Ordering::Acquire) {
                if let Some(Packed { handlers, .. }) = packed.take() {
                    self.endpoints.set(leaving.endpoint, handlers);
                    self.leaving -= 1;
                    state.set_leaving(leaving.endpoint, false);
                }
            }
        }
    }

    /// Removes an endpoint that another bundle has adopted.
    fn has_left(&mut self, state: &mut State<Outlet>, endpoint: Endpoint) {
        if let Some(handlers) = self.endpoints.find(endpoint) {
            self.leaving -= u32::from(handlers.leaving.take().is_some());
        }
        // Cannot fail: the endpoint was there a moment ago.
        let _ = state.leave(endpoint);
    }

    fn leaving_of(&self, endpoint: Endpoint) -> Option<Arc<Leaving<H>>> {
        self.endpoints.all().get(endpoint.index())?.leaving.clone()
    }
}

impl<H: Threads> Leaving<H> {
    /// Runs a function on the packed endpoint. `None` if another bundle has adopted it.
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
        // Relaxed: a thread only looks for its own id here.
        self.0.store(0, Ordering::Relaxed);
    }
}
