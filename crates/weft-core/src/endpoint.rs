//! Endpoints of a bundle and their translation tables.

use crate::admission::{Admission, Admitted};
use crate::long::{Placed, Segment};
use crate::message::Delivery;
use crate::service::Service;
use crate::session::SessionId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;
use weft_wire::path::Record;
use weft_wire::setup::Open;
use weft_wire::{EndpointId, HeadWords, Key, Kind, Name, Reason, Uid};

/// A local endpoint of a bundle. A handle of a freed endpoint never refers to another one: calls with it report that
/// there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Endpoint {
    index: u32,
    /// How many endpoints had the index before.
    life: u32,
}

impl Endpoint {
    /// No endpoint of any bundle.
    pub(crate) const NONE: Endpoint = Endpoint { index: u32::MAX, life: 0 };

    /// The index, for tables beside the bundle's own. The index of a freed endpoint is used again.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// The endpoints of a bundle. Places of freed ones are used again.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    places: Vec<EndpointPlace>,
    /// Places without an endpoint. The one that was freed first is used first.
    free: VecDeque<u32>,
    by_id: BTreeMap<EndpointId, Endpoint>,
}

/// A place for an endpoint. No handle has the life of an empty place.
#[derive(Debug)]
struct EndpointPlace {
    life: u32,
    state: EndpointState,
}

impl Endpoints {
    /// Adds an endpoint.
    pub fn add(&mut self, state: EndpointState) -> Endpoint {
        let id = state.id;
        let endpoint = match self.free.pop_front() {
            Some(index) => {
                let place = &mut self.places[index as usize];
                place.state = state;
                Endpoint { index, life: place.life }
            }
            None => {
                self.places.push(EndpointPlace { life: 0, state });
                Endpoint { index: self.places.len() as u32 - 1, life: 0 }
            }
        };
        self.by_id.insert(id, endpoint);
        endpoint
    }

    /// Removes an endpoint. Its handle refers to nothing from now on.
    pub fn remove(&mut self, endpoint: Endpoint) -> Option<EndpointState> {
        let place = self.places.get_mut(endpoint.index()).filter(|place| place.life == endpoint.life)?;
        let nobody = EndpointState::new(place.state.name, place.state.key);
        let state = std::mem::replace(&mut place.state, nobody);
        place.life = place.life.wrapping_add(1);
        self.by_id.remove(&state.id);
        self.free.push_back(endpoint.index);
        Some(state)
    }

    #[inline(always)]
    pub fn get(&self, endpoint: Endpoint) -> Option<&EndpointState> {
        let place = self.places.get(endpoint.index())?;
        (place.life == endpoint.life).then_some(&place.state)
    }

    #[inline(always)]
    pub fn get_mut(&mut self, endpoint: Endpoint) -> Option<&mut EndpointState> {
        let place = self.places.get_mut(endpoint.index())?;
        (place.life == endpoint.life).then_some(&mut place.state)
    }

    /// The endpoint with this id.
    pub fn find(&self, id: EndpointId) -> Option<Endpoint> {
        self.by_id.get(&id).copied()
    }

    /// The endpoint that a flow is opened to.
    pub fn find_opened(&self, open: &Open) -> Option<Endpoint> {
        let endpoint = self.find(open.destination)?;
        let state = self.get(endpoint)?;
        (state.name.epoch == open.destination_epoch).then_some(endpoint)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Endpoint, &EndpointState)> {
        self.by_id.values().filter_map(|&endpoint| self.get(endpoint).map(|state| (endpoint, state)))
    }

    /// The states of all places, those of freed endpoints included.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut EndpointState> {
        self.places.iter_mut().map(|place| &mut place.state)
    }
}

impl Drop for Endpoints {
    /// Takes the memory out of segments, because stubs in other bundles may keep a segment while the memory belongs to
    /// the program again.
    fn drop(&mut self) {
        for state in self.iter_mut().filter(|state| !state.is_away && !state.is_leaving) {
            if let Some(segment) = state.segment.get() {
                segment.set(None);
            }
        }
    }
}

/// Where a translation leads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// Nobody has sent there yet.
    Unknown,
    /// The home is setting a session up.
    Calling,
    /// The set-up was refused, or the peer is gone: the next message is returned with this reason.
    Refused(Reason),
    /// A flow of a session.
    Flow { session: u32, flow: u16 },
    /// The same, but messages take the longer way: see [`Service`].
    Served { session: u32, flow: u16 },
}

impl Route {
    /// The session and the flow that it leads to.
    pub fn flow(&self) -> Option<(u32, u16)> {
        match *self {
            Route::Flow { session, flow } | Route::Served { session, flow } => Some((session, flow)),
            Route::Unknown | Route::Calling | Route::Refused(_) => None,
        }
    }
}

/// An entry of a translation table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    pub name: Name,
    pub key: Key,
    pub route: Route,
    /// The peer need not prove that it knows the key.
    pub is_unproven: bool,
    /// It is called again because its endpoint moved. Until that call succeeds the old route is used.
    pub renews: bool,
    /// The flow from before the same name and key were entered again. It is reused if the call leads to its session.
    pub kept: Option<(u32, u16)>,
    /// The kinds of events about it that wait for the program, one bit each, so that none waits twice.
    pub waiting: u8,
    /// A send was refused because the program has to take events first.
    pub wants_event: bool,
}

impl Translation {
    /// An entry that was not used to send yet.
    pub fn new(name: Name, key: Key) -> Translation {
        let (route, is_unproven, renews) = (Route::Unknown, false, false);
        Translation { name, key, route, is_unproven, renews, kept: None, waiting: 0, wants_event: false }
    }

    /// The entry as it was before anything was sent with it.
    pub fn afresh(self) -> Translation {
        Translation { is_unproven: self.is_unproven, ..Translation::new(self.name, self.key) }
    }

    /// The flows that are its own.
    pub fn flows(&self) -> impl Iterator<Item = (u32, u16)> {
        self.route.flow().into_iter().chain(self.kept)
    }
}

/// A message that waits at an endpoint which is not being served.
#[derive(Debug)]
pub(crate) struct Parked {
    pub head: HeadWords,
    pub session: SessionId,
    pub args: Vec<u32>,
    pub payload: Vec<u8>,
    /// Where its bytes lie, if it is a long message.
    pub placed: Option<Placed>,
}

impl Parked {
    /// Bytes of memory that a message takes while it waits.
    pub const fn bytes(args: usize, payload: usize) -> usize {
        std::mem::size_of::<Parked>() + args * std::mem::size_of::<u32>() + payload
    }

    /// The message, for its endpoint.
    pub fn message(&self, endpoint: Endpoint) -> Delivery<'_> {
        let record = Record { head: self.head, args: &self.args, payload: &self.payload };
        Delivery::new(endpoint, &self.session, record, self.head.is(Kind::Request))
    }
}

/// A local endpoint's state.
#[derive(Debug)]
pub(crate) struct EndpointState {
    pub id: EndpointId,
    pub key: Key,
    pub name: Name,
    pub admission: Admission,
    pub served: bool,
    pub service: Service,
    pub table: Vec<Option<Translation>>,
    /// Changes of the table so far.
    pub changes: u64,
    pub parked: VecDeque<Parked>,
    /// It lives in another bundle, and this is its stub.
    pub is_away: bool,
    /// It was released: it may live in another bundle by now.
    pub is_leaving: bool,
    /// Where long messages are placed. Made when it is first needed.
    pub segment: OnceLock<Segment>,
}

impl EndpointState {
    pub fn new(name: Name, key: Key) -> EndpointState {
        let (table, parked) = (Vec::new(), VecDeque::new());
        let (id, admission) = (name.endpoint, Admission::default());
        EndpointState {
            id,
            key,
            name,
            admission,
            served: true,
            service: Service::default(),
            table,
            changes: 0,
            parked,
            is_away: false,
            is_leaving: false,
            segment: OnceLock::new(),
        }
    }

    /// Whether it admits messages of a user that carry a key, and why.
    pub fn admit(&self, user: Uid, key: Key) -> Result<Admitted, Reason> {
        self.admission.admit(self.name.uid, self.key, user, key)
    }

    /// Tells the segment, which a stub may share, whom the endpoint now admits.
    pub fn guard_segment(&self) {
        if let Some(segment) = self.segment.get() {
            segment.guard(self);
        }
    }

    #[inline(always)]
    pub fn translation(&self, index: u32) -> Option<&Translation> {
        self.table.get(index as usize)?.as_ref()
    }

    pub fn translation_mut(&mut self, index: u32) -> Option<&mut Translation> {
        self.table.get_mut(index as usize)?.as_mut()
    }

    /// Whether messages for it must be queued or forwarded instead of delivered.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        !self.served || !self.parked.is_empty() || self.is_away
    }
}
