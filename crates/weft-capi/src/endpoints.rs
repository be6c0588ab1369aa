//! The endpoints of C: the bundle that each one lives in, and the settings that C has made.

use crate::bundles::{self, NotHere, Use, BUNDLES};
use crate::handle::{Handle, Kind, Place, Table};
use crate::invoke::ReturnHandler;
use crate::of_either;
use crate::running::Desk;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft::{Endpoint, Name, SendError};

/// All endpoints of the process.
pub static ENDPOINTS: Table<State> = Table::new(Kind::Endpoint);

/// The slot of an endpoint.
#[derive(Default)]
pub struct State {
    home: HomeCell,
    /// The message whose handler runs.
    pub desk: Desk,
    said: Mutex<Said>,
    /// Whether a thread is moving it.
    is_moving: AtomicBool,
}

/// Where an endpoint lives.
#[derive(Clone, Copy)]
pub struct Home {
    pub bundle: &'static Place<bundles::State>,
    pub handle: Handle,
    pub endpoint: Endpoint,
}

/// The settings of an endpoint that C has made, and may ask for.
#[derive(Debug)]
pub struct Said {
    /// Its name, which it keeps wherever it moves.
    pub name: Option<Name>,
    pub tag: u64,
    /// Size of the translation table.
    pub table_size: u32,
    /// The entries in use, below `table_size`.
    pub entries: BTreeMap<u32, (Name, u64)>,
    pub has_resources: bool,
    /// The numbers that have a handler.
    pub handlers: BTreeSet<u8>,
    /// Handler 0.
    pub on_return: Option<ReturnHandler>,
    /// Address and length of the segment.
    pub segment: (usize, usize),
    /// Requests that cannot be sent come back to handler 0, instead of failing with an error code.
    pub returns_misuse: bool,
}

/// The initial size of a translation table, and the smallest.
pub const TABLE_FIRST: u32 = 256;

impl Default for Said {
    fn default() -> Said {
        Said {
            name: None,
            tag: 0,
            table_size: TABLE_FIRST,
            entries: BTreeMap::new(),
            has_resources: false,
            handlers: BTreeSet::new(),
            on_return: None,
            segment: (0, 0),
            returns_misuse: false,
        }
    }
}

/// A [`Home`] that one thread changes while others read it. Its version is odd during a change.
#[derive(Default)]
struct HomeCell {
    version: AtomicU32,
    bundle: AtomicPtr<Place<bundles::State>>,
    handle: AtomicU64,
    endpoint: AtomicU64,
}

impl HomeCell {
    #[inline(always)]
    fn get(&self) -> Option<Home> {
        loop {
            // Acquire: pairs with the release at the end of `set`.
            let version = self.version.load(Ordering::Acquire);
            let bundle = self.bundle.load(Ordering::Relaxed);
            let handle = Handle::from_bits(self.handle.load(Ordering::Relaxed));
            let endpoint = self.endpoint.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version % 2 != 0 || self.version.load(Ordering::Relaxed) != version {
                std::hint::spin_loop();
                continue;
            }
            // SAFETY: it is null or a place of the table of bundles, whose memory is never freed.
            let bundle = unsafe { bundle.as_ref() }?;
            // SAFETY: `set` made it of an `Endpoint`, which is two words of 32 bits without padding.
            let endpoint = unsafe { std::mem::transmute::<u64, Endpoint>(endpoint) };
            return Some(Home { bundle, handle, endpoint });
        }
    }

    /// The same without the bundle's handle, for calls that need only the endpoint's.
    #[inline(always)]
    fn get_short(&self) -> Option<(&'static Place<bundles::State>, Endpoint)> {
        // Acquire: as in `get`.
        let version = self.version.load(Ordering::Acquire);
        let bundle = self.bundle.load(Ordering::Relaxed);
        let endpoint = self.endpoint.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if version % 2 != 0 || self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        // SAFETY: as in `get`.
        let bundle = unsafe { bundle.as_ref() }?;
        // SAFETY: as in `get`.
        Some((bundle, unsafe { std::mem::transmute::<u64, Endpoint>(endpoint) }))
    }

    /// Called by one thread at a time.
    fn set(&self, home: Home) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        // SAFETY: an `Endpoint` is two words of 32 bits without padding: the compiler checks the size.
        let endpoint = unsafe { std::mem::transmute::<Endpoint, u64>(home.endpoint) };
        self.bundle.store(std::ptr::from_ref(home.bundle).cast_mut(), Ordering::Relaxed);
        self.handle.store(home.handle.to_bits(), Ordering::Relaxed);
        self.endpoint.store(endpoint, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

impl State {
    /// The bundle that the endpoint lives in. `None` if there never was an endpoint.
    pub fn home(&self) -> Option<Home> {
        self.home.get()
    }

    /// The same, unless the endpoint is moving.
    #[inline(always)]
    pub fn home_now(&self) -> Option<(&'static Place<bundles::State>, Endpoint)> {
        self.home.get_short()
    }

    /// Whether a thread is moving it now.
    pub fn is_moving(&self) -> bool {
        self.is_moving.load(Ordering::Acquire)
    }

    /// The endpoint's settings as C made them. While this is held, no call of a bundle is made, except by the bundle's owner.
    pub fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Enters an endpoint of a bundle. `None` if there are too many.
pub fn add(bundle: Handle, endpoint: Endpoint, name: Name) -> Option<Handle> {
    let home = Home { bundle: BUNDLES.place(bundle)?, handle: bundle, endpoint };
    let (place, handle) = ENDPOINTS.take()?;
    *place.said() = Said { name: Some(name), ..Said::default() };
    place.home.set(home);
    place.desk.begin(handle.index());
    place.publish(handle);
    Some(handle)
}

/// The place of an endpoint, if there is one.
pub fn find(handle: Handle) -> Result<&'static Place<State>, NotHere> {
    ENDPOINTS.find(handle).ok_or(NotHere::Stale)
}

/// Runs a call on an endpoint and its bundle.
pub fn with<R>(handle: Handle, call: impl FnOnce(Use<'_>, Endpoint, &'static Place<State>) -> R) -> Result<R, NotHere> {
    let place = find(handle)?;
    let home = place.home().ok_or(NotHere::Stale)?;
    bundles::with(home.handle, |used| call(used, home.endpoint, place))
}

/// Frees an endpoint.
pub fn free(handle: Handle) -> Result<(), NotHere> {
    with(handle, |used, endpoint, place| {
        if !place.withdraw(handle) {
            return Err(NotHere::Stale);
        }
        // Fails only in a handler of a parallel bundle; for a sequential one `with` has failed already.
        let freed = of_either!(used, bundle => bundle.free(endpoint));
        match freed {
            Err(weft::Error::Send(SendError::InHandler)) => {
                place.publish(handle);
                Err(NotHere::InHandler)
            }
            _ => {
                ENDPOINTS.give_back(handle);
                Ok(())
            }
        }
    })?
}

/// The endpoints of a bundle.
pub fn of_bundle(bundle: Handle) -> Vec<Handle> {
    ENDPOINTS
        .all()
        .filter(|(_, place)| place.home().is_some_and(|home| home.handle == bundle))
        .map(|(handle, _)| handle)
        .collect()
}

/// The handle of an endpoint of a bundle. NULL if it was freed.
pub fn find_by(bundle: Handle, endpoint: Endpoint) -> Handle {
    let is_it = |home: Home| home.handle == bundle && home.endpoint == endpoint;
    let found = ENDPOINTS.all().find(|(_, place)| place.home().is_some_and(is_it));
    found.map_or(Handle::NULL, |(handle, _)| handle)
}

/// Frees a bundle and its endpoints.
pub fn free_bundle(bundle: Handle) -> Result<(), NotHere> {
    // Checks that the bundle can be freed at all, so that a handler that tries loses none of its endpoints.
    bundles::with(bundle, |_| ())?;
    for endpoint in of_bundle(bundle) {
        free(endpoint)?;
    }
    bundles::free(bundle)
}

/// Why an endpoint was not moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotMoved {
    NotHere(NotHere),
    /// It lives in another bundle than the caller named.
    NotIn,
    /// The bundles are of different nodes.
    AnotherNode,
}

impl From<NotHere> for NotMoved {
    fn from(not: NotHere) -> NotMoved {
        NotMoved::NotHere(not)
    }
}

/// The right to move an endpoint.
struct Moving<'a>(&'a AtomicBool);

impl Moving<'_> {
    fn begin(is_moving: &AtomicBool) -> Option<Moving<'_>> {
        // Acquire: pairs with the release of the move before.
        (!is_moving.swap(true, Ordering::Acquire)).then_some(Moving(is_moving))
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Moves an endpoint to another bundle, under traffic. Blocks while one of its handlers runs in another thread.
pub fn move_to(handle: Handle, from: Handle, to: Handle) -> Result<(), NotMoved> {
    let place = find(handle)?;
    let to_place = BUNDLES.find(to).ok_or(NotHere::Stale)?;
    BUNDLES.find(from).ok_or(NotHere::Stale)?;
    if place.desk.is_here() {
        return Err(NotHere::InHandler.into());
    }
    // One move at a time: homes have one writer.
    let _moving = Moving::begin(&place.is_moving).ok_or(NotHere::Elsewhere)?;
    let home = place.home().filter(|home| home.handle == from).ok_or(NotMoved::NotIn)?;
    if from == to {
        return Ok(());
    }
    // Before the endpoint is released, check that the other bundle can be used.
    bundles::with(to, |_| ())?;
    let released = bundles::with(from, |used| of_either!(used, bundle => bundle.release(home.endpoint)))?;
    let moving = released.map_err(|error| match error {
        SendError::InHandler => NotHere::InHandler,
        SendError::Forked => NotHere::Forked,
        _ => NotHere::Stale,
    })?;
    let adopted = bundles::with(to, |used| of_either!(used, bundle => bundle.adopt(moving)))?;
    match adopted {
        Ok(endpoint) => {
            place.home.set(Home { bundle: to_place, handle: to, endpoint });
            Ok(())
        }
        Err((weft::am::AdoptError::AnotherNode, _)) => Err(NotMoved::AnotherNode),
        Err(_) => Err(NotHere::InHandler.into()),
    }
}
