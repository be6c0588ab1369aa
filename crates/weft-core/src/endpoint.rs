//! Endpoints of a bundle and their translation tables.

use crate::message::Delivery;
use crate::service::Service;
use crate::session::SessionId;
use std::collections::VecDeque;
use weft_wire::path::Record;
use weft_wire::{EndpointId, HeadWords, Key, Kind, Name, Reason, Uid};

/// A local endpoint, by its index in its bundle. Never used again for another endpoint of that bundle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Endpoint(pub(crate) u32);

impl Endpoint {
    /// The index, for tables beside the bundle's own.
    pub fn index(self) -> usize {
        self.0 as usize
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
    /// The same, but what is sent there takes the longer way: see [`Service`].
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
    /// It is called again, for its endpoint moved. Until it is reached the route leads there too.
    pub renews: bool,
}

/// A message that waits at an endpoint which is not being served.
#[derive(Debug)]
pub(crate) struct Parked {
    pub head: HeadWords,
    pub session: SessionId,
    pub args: Vec<u32>,
    pub payload: Vec<u8>,
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

/// Whose messages an endpoint admits, of processes of this host. On other hosts it is who knows the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Admission {
    /// Those of its own user.
    #[default]
    OwnUser,
    /// Those of every user who knows the key. Processes of other users are *foreign*: what they send is copied before it is
    /// looked at, and what they may have held here is bounded.
    AnyUser,
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
}

impl Admission {
    /// Whether an endpoint of a user's with a key admits a message of another user's that carries a key.
    pub(crate) fn admits(self, own: Uid, key: Key, user: Uid, carried: Key) -> Result<(), Reason> {
        let has_key = key.matches(carried);
        if user == Uid::UNKNOWN || user.is_same_as(own) {
            return if has_key { Ok(()) } else { Err(Reason::WrongKey) };
        }
        if has_key && self == Admission::AnyUser {
            Ok(())
        } else {
            Err(Reason::ForeignUser)
        }
    }
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
        }
    }

    /// Whether messages of a user's that carry a key are for it. Other users that it does not admit do not hear more than that.
    pub fn admits(&self, user: Uid, key: Key) -> Result<(), Reason> {
        self.admission.admits(self.name.uid, self.key, user, key)
    }

    #[inline(always)]
    pub fn translation(&self, index: u32) -> Option<&Translation> {
        self.table.get(index as usize)?.as_ref()
    }

    pub fn translation_mut(&mut self, index: u32) -> Option<&mut Translation> {
        self.table.get_mut(index as usize)?.as_mut()
    }

    /// Whether messages for it must be queued, or handed on, rather than handed over.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        !self.served || !self.parked.is_empty() || self.is_away
    }
}
