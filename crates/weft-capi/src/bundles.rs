//! The bundles of C, sequential and parallel, and how a call gets access to one.

use crate::handle::{Handle, Kind, Place, Table};
use crate::turns::{First, NoTurn, Turns};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use weft::{AnyThread, Bundle, InHandler, Node, Settings, SharedBundle, Waker};
use weft_shm::Life;

/// All bundles of the process.
pub static BUNDLES: Table<State> = Table::new(Kind::Bundle);

/// A place for a bundle.
#[derive(Default)]
pub struct State {
    /// Whether several threads may use it at once.
    is_parallel: AtomicBool,
    /// A sequential bundle.
    own: Turns<Option<Own>>,
    /// The handle of a parallel bundle, which each thread copies.
    shared: Mutex<Option<SharedBundle>>,
    /// Whether Active Messages made it, and so frees it with them.
    pub is_of_am: AtomicBool,
    /// The process that made it.
    life: Mutex<Option<Life>>,
    /// What ends its waits.
    waker: Mutex<Option<Waker>>,
    /// The event mask of Active Messages.
    pub mask: AtomicU32,
}

pub struct Own {
    pub bundle: Bundle<AnyThread>,
    pub life: Life,
    /// Requests of Active Messages so far.
    pub requests: u32,
}

/// One request in so many polls. Between hosts a poll sends the packet that waits for more messages, so if each request polled, each would
/// be a packet of its own.
const REQUESTS_A_POLL: u32 = 16;

/// Counts a request. True if it is this one's turn to poll.
#[inline(always)]
pub fn polls(requests: &mut u32) -> bool {
    *requests = requests.wrapping_add(1);
    *requests % REQUESTS_A_POLL == 0
}

/// Why a call cannot use a bundle or an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotHere {
    /// The handle is of no object, or not of this kind.
    Stale,
    /// A handler calls the bundle that runs it.
    InHandler,
    /// Another thread is inside a sequential bundle.
    Elsewhere,
    /// This is a forked child of the process that made the bundle.
    Forked,
}

impl From<NoTurn> for NotHere {
    fn from(no: NoTurn) -> NotHere {
        match no {
            NoTurn::InHandler => NotHere::InHandler,
            NoTurn::Elsewhere => NotHere::Elsewhere,
        }
    }
}

impl From<InHandler> for NotHere {
    fn from(_: InHandler) -> NotHere {
        NotHere::InHandler
    }
}

/// A bundle of either kind, for one call.
pub enum Use<'a> {
    Own(&'a mut Bundle<AnyThread>),
    Shared(&'a SharedBundle),
}

/// Makes the same call for either kind.
#[macro_export]
macro_rules! of_either {
    ($used:expr, $bundle:ident => $call:expr) => {
        match $used {
            $crate::bundles::Use::Own($bundle) => $call,
            $crate::bundles::Use::Shared($bundle) => $call,
        }
    };
}

/// Makes the same call for either kind, holding the lock of a parallel bundle. Any other lock must be taken inside of it, because handlers
/// take theirs while the bundle's is held.
#[macro_export]
macro_rules! of_either_held {
    ($used:expr, $bundle:ident => $call:expr) => {
        match $used {
            $crate::bundles::Use::Own($bundle) => $call,
            $crate::bundles::Use::Shared(shared) => {
                #[allow(unused_mut)] // not every call changes it
                let mut $bundle = shared.hold()?;
                $call
            }
        }
    };
}

/// A slot of a thread's list.
type Known = Option<(Handle, Rc<Mine>)>;

thread_local! {
    /// This thread's handles of parallel bundles, by slot, because a `SharedBundle` belongs to one thread.
    static MINE: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
}

/// A parallel bundle, as used by one thread.
pub struct Mine {
    pub bundle: SharedBundle,
    pub life: Life,
    /// Requests of Active Messages by this thread so far.
    pub requests: Cell<u32>,
}

/// Makes a bundle of a node.
pub fn make(node: &Node, settings: Settings, is_parallel: bool) -> Result<Option<Handle>, weft::Error> {
    let bundle = Bundle::for_any_thread(node, settings)?;
    let Some((place, handle)) = BUNDLES.take() else { return Ok(None) };
    *place.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(bundle.waker());
    *place.life.lock().unwrap_or_else(PoisonError::into_inner) = Some(Life::current());
    place.is_parallel.store(is_parallel, Ordering::Relaxed);
    place.mask.store(0, Ordering::Relaxed);
    place.is_of_am.store(false, Ordering::Relaxed);
    if is_parallel {
        *place.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(bundle.into());
    } else {
        // Nobody else has the handle. A thread that tries an old one leaves soon.
        let mut turn = loop {
            match place.own.enter() {
                Ok(turn) => break turn,
                Err(_) => std::thread::yield_now(),
            }
        };
        *turn = Some(Own { bundle, life: Life::current(), requests: 0 });
    }
    place.publish(handle);
    Ok(Some(handle))
}

impl State {
    #[inline(always)]
    pub fn is_parallel(&self) -> bool {
        self.is_parallel.load(Ordering::Relaxed)
    }

    /// Begins a use of a sequential bundle by its first thread, outside of handlers.
    #[inline(always)]
    pub fn own_first(&self) -> Option<First<'_, Option<Own>>> {
        self.own.enter_first()
    }

    /// Begins a use of a sequential bundle.
    pub fn own(&self) -> Result<crate::turns::Turn<'_, Option<Own>>, NotHere> {
        self.own.enter().map_err(|no| self.refused(no))
    }

    /// Why there is no turn. In a forked child, the thread whose turn it was is not there.
    #[cold]
    fn refused(&self, no: NoTurn) -> NotHere {
        if self.is_of_a_parent() {
            return NotHere::Forked;
        }
        no.into()
    }

    /// Whether this is a forked child of the process that made the bundle.
    fn is_of_a_parent(&self) -> bool {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(Life::is_over)
    }
}

/// This thread's handle of a parallel bundle.
#[inline(always)]
pub fn mine(place: &'static Place<State>, handle: Handle) -> Result<Rc<Mine>, NotHere> {
    let known = MINE.try_with(|mine| {
        let mine = mine.borrow();
        mine.get(handle.index()).and_then(Option::as_ref).filter(|known| known.0 == handle).map(|known| known.1.clone())
    });
    let known = known.ok().flatten();
    match known {
        Some(mine) if !place.is(handle) => {
            drop(mine);
            Err(NotHere::Stale)
        }
        Some(mine) if mine.life.is_over() => Err(NotHere::Forked),
        Some(mine) => Ok(mine),
        None => first_use(place, handle),
    }
}

#[cold]
#[inline(never)]
fn first_use(place: &'static Place<State>, handle: Handle) -> Result<Rc<Mine>, NotHere> {
    let shared = place.shared.lock().unwrap_or_else(PoisonError::into_inner);
    if !place.is(handle) {
        return Err(NotHere::Stale);
    }
    if place.is_of_a_parent() {
        return Err(NotHere::Forked);
    }
    let bundle = shared.as_ref().ok_or(NotHere::Stale)?.clone();
    drop(shared);
    let new = Rc::new(Mine { bundle, life: Life::current(), requests: Cell::new(0) });
    // A thread that is ending has no list, so the handle serves this call alone.
    let old = MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        if mine.len() <= handle.index() {
            mine.resize_with(handle.index() + 1, || None);
        }
        mine[handle.index()] = Some((handle, new.clone()));
        take_ended(&mut mine)
    });
    drop(old);
    Ok(new)
}

/// Removes the handles of freed bundles from a thread's list. The caller drops them: the last handle ends its bundle.
fn take_ended(mine: &mut [Known]) -> Vec<Known> {
    let is_ended = |known: &Known| known.as_ref().is_some_and(|(handle, _)| BUNDLES.find(*handle).is_none());
    mine.iter_mut().filter(|known| is_ended(known)).map(Option::take).collect()
}

/// Runs a call on a bundle.
pub fn with<R>(handle: Handle, call: impl FnOnce(Use<'_>) -> R) -> Result<R, NotHere> {
    let place = BUNDLES.find(handle).ok_or(NotHere::Stale)?;
    if place.is_parallel() {
        let mine = mine(place, handle)?;
        return Ok(call(Use::Shared(&mine.bundle)));
    }
    let mut turn = place.own()?;
    let own = turn.as_mut().filter(|_| place.is(handle)).ok_or(NotHere::Stale)?;
    if own.life.is_over() {
        return Err(NotHere::Forked);
    }
    Ok(call(Use::Own(&mut own.bundle)))
}

/// Ends a wait of a bundle. From any thread.
pub fn wake(handle: Handle) -> Result<(), NotHere> {
    let place = BUNDLES.find(handle).ok_or(NotHere::Stale)?;
    if let Some(waker) = &*place.waker.lock().unwrap_or_else(PoisonError::into_inner) {
        waker.wake();
    }
    Ok(())
}

/// Whether a bundle can be freed now: neither a handler of it calls this, nor does another thread use it, if it is sequential.
pub fn can_be_freed(handle: Handle) -> Result<(), NotHere> {
    let place = BUNDLES.find(handle).ok_or(NotHere::Stale)?;
    match place.is_parallel() {
        true => drop(mine(place, handle)?.bundle.hold()?),
        false => drop(place.own()?),
    }
    Ok(())
}

/// Ends a bundle, whose endpoints the caller has freed. What others are waiting for in it ends with their next call.
pub fn free(handle: Handle) -> Result<(), NotHere> {
    let place = BUNDLES.find(handle).ok_or(NotHere::Stale)?;
    let ended;
    if place.is_parallel() {
        // A handler cannot end the bundle that runs it.
        can_be_freed(handle)?;
        if !place.withdraw(handle) {
            return Err(NotHere::Stale);
        }
        let waker = place.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let shared = place.shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mine = MINE.try_with(|mine| take_ended(&mut mine.borrow_mut()));
        // Threads that wait in it return, and find that it is gone.
        if let Some(waker) = waker {
            waker.wake();
        }
        drop((shared, mine));
    } else {
        let mut turn = place.own()?;
        if !place.withdraw(handle) {
            return Err(NotHere::Stale);
        }
        ended = turn.take();
        place.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        drop(ended);
    }
    BUNDLES.give_back(handle);
    Ok(())
}
