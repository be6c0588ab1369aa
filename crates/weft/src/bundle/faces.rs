//! The faces of a bundle: what its endpoints are for, and which client gets their messages.
//!
//! A face is a module of this crate: its calls on the bundle, and a client for all endpoints of its kind. It uses the
//! bundle and imports no other face. To add one, write its module and add a line to `faces!`.

use super::{own, Threads};
use crate::node::Node;
use crate::paths::Outlet;
use crate::status::recorder::{Place, What};
use crate::status::stamps::now;
use crate::watch::Signals;
use crate::{am, memory, tagged};
use std::sync::Arc;
use weft_core::{Back, Client, Delivery, Endpoint, Errand, MessageKind, Returned, SendError, Sink, State};
use weft_wire::{BundleId, Reason};

/// What the bundle needs from a face, in addition to the client for its endpoints.
pub(crate) trait Face: Client<Outlet> {
    /// Makes the face of a new bundle. Other threads use `signals` to report work to it.
    fn new(signals: &Arc<Signals>) -> Self
    where
        Self: Sized;

    /// Whether the face sets its endpoints' keys and translation tables itself. If so, the program's calls that change
    /// them are refused.
    fn keeps_table(&self) -> bool {
        false
    }

    /// Whether its messages must arrive in order, so that the program may choose no other service for its endpoints.
    fn needs_service(&self) -> bool {
        false
    }

    /// Whether an endpoint is moving to another bundle, so that the program may not change it.
    fn is_leaving(&self, endpoint: Endpoint) -> bool {
        let _ = endpoint;
        false
    }

    /// Drops all state of an endpoint that was freed.
    fn remove(&mut self, endpoint: Endpoint);

    /// Number of messages that the program considers sent but that wait in the face.
    fn unsent(&self) -> usize {
        0
    }
}

/// What the bundle knows of an endpoint in addition to the core.
#[derive(Clone, Copy, Debug)]
struct Seat {
    endpoint: Endpoint,
    kind: Kind,
    /// The program freed the endpoint, but its client has more to send.
    is_closing: bool,
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident: $kind:ident($face:ty),)*) => {
        /// The face of an endpoint.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Kind {
            $($(#[$doc])* $kind,)*
        }

        /// The faces of a bundle, and the face of each endpoint.
        pub(crate) struct Faces<H: Threads> {
            /// Indexed by endpoint.
            seats: Vec<Option<Seat>>,
            closing: Vec<Endpoint>,
            /// Messages that came back and that no client took. Wraps around.
            pub unclaimed: u64,
            /// Used to forward messages to endpoints that moved away.
            node: Node,
            bundle: BundleId,
            $($(#[$doc])* pub $name: $face,)*
        }

        impl<H: Threads> Faces<H> {
            /// Makes the faces of a bundle without endpoints.
            pub fn new(node: Node, bundle: BundleId, signals: &Arc<Signals>) -> Faces<H> {
                Faces { seats: Vec::new(), closing: Vec::new(), unclaimed: 0, node, bundle, $($name: Face::new(signals),)* }
            }

            fn face(&mut self, kind: Kind) -> &mut dyn Face {
                match kind {
                    $(Kind::$kind => &mut self.$name,)*
                }
            }

            /// Delivers a message that has no Active Message handler. Calls each face directly: every tagged message takes this
            /// path.
            #[inline(never)]
            fn deliver_elsewhere(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
                let seat = self.seats.get(delivery.endpoint.index()).and_then(Option::as_ref);
                match seat.filter(|seat| seat.endpoint == delivery.endpoint).map(|seat| seat.kind) {
                    Some(Kind::Memory) if self.am.recorder().is_some() => self.deliver_stamped(state, delivery),
                    $(Some(Kind::$kind) => self.$name.deliver(state, delivery),)*
                    None => Err(Reason::NoSuchEndpoint),
                }
            }

            /// Number of messages that the program considers sent but that wait in a face.
            pub fn unsent(&self) -> usize {
                0 $(+ Face::unsent(&self.$name))*
            }

            /// Calls all faces to continue their work. Returns the amount of work done.
            fn go_on(&mut self, state: &mut State<Outlet>) -> u32 {
                0 $(+ self.$name.go_on(state))*
            }
        }
    };
}

faces! {
    /// Active Messages.
    am: Am(am::Face<H>),
    /// Tagged messages.
    tagged: Tagged(tagged::Face),
    /// Remote memory.
    memory: Memory(memory::Face<H>),
    /// Clients that the program attached.
    own: Own(own::Face<H>),
}

impl<H: Threads> std::fmt::Debug for Faces<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.seats.iter().flatten()).finish()
    }
}

impl<H: Threads> Faces<H> {
    /// Delivers a message of remote memory while requests are stamped.
    #[cold]
    #[inline(never)]
    fn deliver_stamped(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let seen = now();
        let place = Place { flow: delivery.flow(), slot: delivery.slot() };
        let region = self.memory.region_of(delivery);
        let taken = self.memory.deliver(state, delivery);
        let done = now();
        if let Some(recorder) = self.am.recorder() {
            match delivery.kind() {
                // The engine has already replied.
                MessageKind::Request if taken.is_ok() => {
                    recorder.answering.put(place, What { operation: None, region }, [seen]);
                    recorder.end_answer(place, done, done);
                }
                MessageKind::Reply => recorder.end_question(place, seen, done),
                MessageKind::Request | MessageKind::OneWay => {}
            }
        }
        self.am.count_stamped(done);
        taken
    }

    /// Whether a poll can run the program's code. Stays true once a handler was set.
    pub fn may_run_handlers(&self) -> bool {
        self.am.may_run_handlers() || self.memory.may_run_handlers()
    }

    /// Assigns an endpoint to a face.
    pub fn seat(&mut self, endpoint: Endpoint, kind: Kind) {
        if self.seats.len() <= endpoint.index() {
            self.seats.resize(endpoint.index() + 1, None);
        }
        self.seats[endpoint.index()] = Some(Seat { endpoint, kind, is_closing: false });
    }

    /// Checks that an endpoint belongs to a face and that the program may use it.
    pub fn expect(&self, endpoint: Endpoint, kind: Kind) -> Result<(), SendError> {
        match self.kind_of(endpoint) {
            Some(found) if found == kind => Ok(()),
            Some(_) => Err(SendError::OtherClient),
            None => Err(SendError::NoEndpoint),
        }
    }

    /// Checks that the program may change an endpoint: it exists and is not moving to another bundle.
    pub fn expect_here(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        let kind = self.kind_of(endpoint).ok_or(SendError::NoEndpoint)?;
        match self.face(kind).is_leaving(endpoint) {
            true => Err(SendError::NoEndpoint),
            false => Ok(()),
        }
    }

    /// Checks that the program may change an endpoint's key and translation table.
    pub fn expect_table(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.expect_here(endpoint)?;
        let kind = self.kind_of(endpoint).ok_or(SendError::NoEndpoint)?;
        match self.face(kind).keeps_table() {
            true => Err(SendError::OtherClient),
            false => Ok(()),
        }
    }

    /// Checks that the program may choose the service of an endpoint's sends.
    pub fn expect_service(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        self.expect_table(endpoint)?;
        let kind = self.kind_of(endpoint).ok_or(SendError::NoEndpoint)?;
        match self.face(kind).needs_service() {
            true => Err(SendError::OtherClient),
            false => Ok(()),
        }
    }

    /// Frees an endpoint: at once, or when its client has sent everything.
    pub fn close(&mut self, state: &mut State<Outlet>, endpoint: Endpoint) -> Result<(), SendError> {
        self.expect_here(endpoint)?;
        let Some(seat) = self.seats.get_mut(endpoint.index()).and_then(Option::as_mut) else { return Ok(()) };
        seat.is_closing = true;
        let kind = seat.kind;
        self.face(kind).close(state, endpoint);
        if !self.has_ended(state, endpoint) {
            self.closing.push(endpoint);
            state.come_again();
        }
        Ok(())
    }

    /// Returns the endpoints that the program has not freed.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.seats.iter().flatten().filter(|seat| !seat.is_closing).map(|seat| seat.endpoint).collect()
    }

    /// Whether endpoints that the program freed have more to send.
    pub fn are_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Frees a closing endpoint if its client is done. Returns true if the endpoint is gone.
    fn has_ended(&mut self, state: &mut State<Outlet>, endpoint: Endpoint) -> bool {
        let Some(&Some(Seat { kind, .. })) = self.seats.get(endpoint.index()) else { return true };
        if !self.face(kind).is_closed(endpoint) {
            return false;
        }
        // Peers could call it until now, because they answer its last messages.
        if let Ok(name) = state.name(endpoint) {
            self.node.office().remove_endpoint(name.endpoint);
        }
        // Cannot fail: the endpoint exists, because its seat does.
        let _ = state.free_endpoint(endpoint);
        self.face(kind).remove(endpoint);
        self.seats[endpoint.index()] = None;
        true
    }

    fn kind_of(&self, endpoint: Endpoint) -> Option<Kind> {
        let seat = self.seats.get(endpoint.index())?.as_ref()?;
        (seat.endpoint == endpoint && !seat.is_closing).then_some(seat.kind)
    }

    /// Returns the client of an endpoint that the core delivers to, even if the endpoint is closing.
    fn client(&mut self, endpoint: Endpoint) -> Option<&mut dyn Face> {
        let seat = self.seats.get(endpoint.index())?.filter(|seat| seat.endpoint == endpoint)?;
        Some(self.face(seat.kind))
    }
}

impl<H: Threads> Sink<Outlet> for Faces<H> {
    #[inline(always)]
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        // Active Messages take the shortest path: this call is inlined.
        match self.am.run_handler(state, delivery) {
            true => Ok(()),
            false => self.deliver_elsewhere(state, delivery),
        }
    }

    fn returned(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let left = match self.client(message.endpoint) {
            Some(client) => client.returned(state, message),
            None => Some(message),
        };
        self.unclaimed = self.unclaimed.wrapping_add(u64::from(left.is_some()));
        left
    }

    fn do_chores(&mut self, state: &mut State<Outlet>) -> u32 {
        let mut work = 0;
        while let Some(event) = state.next_claimed() {
            if let Some(client) = event.endpoint().and_then(|endpoint| self.client(endpoint)) {
                client.on_event(state, &event);
                work += 1;
            }
        }
        while let Some((endpoint, completion)) = state.next_completed() {
            if let Some(client) = self.client(endpoint) {
                client.completed(state, endpoint, completion);
                work += 1;
            }
        }
        while let Some((endpoint, flow)) = state.next_closed_flow() {
            if let Some(client) = self.client(endpoint) {
                client.flow_closed(state, endpoint, flow);
            }
        }
        work += self.go_on(state);
        for at in (0..self.closing.len()).rev() {
            if self.has_ended(state, self.closing[at]) {
                self.closing.swap_remove(at);
            }
        }
        work
    }

    fn forward(&mut self, errand: Errand) -> Result<(), (Errand, Reason)> {
        self.node.office().forward(self.bundle, errand)
    }

    fn carry_back(&mut self, to: BundleId, back: Back) {
        self.node.office().carry_back(to, back);
    }
}
