//! The face for remote memory: the engines of a bundle's endpoints.

use super::{Engine, Memory, Platform, Settings};
use crate::buffers::{Source, Target};
use crate::bundle::faces;
use crate::bundle::faces::Kind;
use crate::bundle::{Bundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use crate::status::recorder::Recorder;
use crate::watch::Signals;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weft_core::report::EndpointReport;
use weft_core::{Client, Delivery, Endpoint, Event, FlowId, Returned, SendError, State};
use weft_memory::{NotPulled, Pulled, Report};
use weft_shm::{Ticket, Window};
use weft_wire::Reason;

/// An endpoint and what it knows.
struct Seat<H: Threads> {
    endpoint: Endpoint,
    engine: Engine,
    on_notice: Option<H::NoticeHandler>,
    is_closing: bool,
}

impl<H: Threads> Seat<H> {
    #[inline(never)]
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        if self.engine.needs_time(delivery) {
            // The timer may be late.
            self.engine.expire(now());
        }
        let taken = self.engine.deliver(state, delivery);
        self.run_handler(state);
        taken
    }

    /// Runs the program's handler for the notices that came.
    fn run_handler(&mut self, state: &mut State<Outlet>) {
        if let Some(run) = &mut self.on_notice {
            while let Some(notice) = self.engine.next_notice() {
                run(&mut Memory { engine: &mut self.engine, state, stamps: None }, notice);
            }
        }
    }
}

/// The engines of a bundle's endpoints for remote memory.
pub(crate) struct Face<H: Threads> {
    /// Indexed by endpoint.
    seats: Vec<Option<Box<Seat<H>>>>,
    /// The endpoints that have an engine.
    endpoints: Vec<Endpoint>,
    /// A handler for notices was set at some time.
    has_had_handlers: bool,
}

impl<H: Threads> Face<H> {
    fn add(&mut self, endpoint: Endpoint, engine: Engine) {
        if self.seats.len() <= endpoint.index() {
            self.seats.resize_with(endpoint.index() + 1, || None);
        }
        self.seats[endpoint.index()] = Some(Box::new(Seat { endpoint, engine, on_notice: None, is_closing: false }));
        self.endpoints.push(endpoint);
    }

    fn seat(&mut self, endpoint: Endpoint) -> Option<&mut Seat<H>> {
        self.seats.get_mut(endpoint.index())?.as_deref_mut().filter(|seat| seat.endpoint == endpoint)
    }

    fn engine(&mut self, endpoint: Endpoint) -> Option<&mut Engine> {
        self.seat(endpoint).map(|seat| &mut seat.engine)
    }

    /// The place of the region that a message is for.
    pub fn region_of(&mut self, message: &Delivery<'_>) -> Option<u32> {
        self.engine(message.endpoint)?.region_of(message)
    }

    /// Time until the next region or cookie expires, if one does.
    pub fn until_end(&self) -> Option<Duration> {
        let ends = self.endpoints.iter().filter_map(|endpoint| {
            let seat = self.seats.get(endpoint.index())?.as_deref()?;
            seat.engine.next_end()
        });
        ends.min().map(|end| end.saturating_sub(now()))
    }

    /// Revokes regions and cookies that have expired.
    pub fn expire(&mut self) {
        for at in 0..self.endpoints.len() {
            if let Some(engine) = self.engine(self.endpoints[at]).filter(|engine| engine.next_end().is_some()) {
                engine.expire(now());
            }
        }
    }

    pub(super) fn notice_handler(&mut self, endpoint: Endpoint) -> Option<&mut Option<H::NoticeHandler>> {
        self.has_had_handlers = true;
        self.seat(endpoint).filter(|seat| !seat.is_closing).map(|seat| &mut seat.on_notice)
    }

    /// Whether a poll can run one of the program's handlers here. Stays true once one was set.
    pub fn may_run_handlers(&self) -> bool {
        self.has_had_handlers
    }

    /// Reports the state of those endpoints that are for remote memory, and overwrites older reports.
    pub fn report_into(&self, endpoints: &[EndpointReport], reports: &mut Vec<(Endpoint, Report)>) {
        let mut used = 0;
        for &EndpointReport { endpoint, .. } in endpoints {
            let seat = self.seats.get(endpoint.index()).and_then(Option::as_deref);
            let Some(seat) = seat.filter(|seat| seat.endpoint == endpoint) else { continue };
            if used == reports.len() {
                reports.push((endpoint, Report::default()));
            }
            let (of, report) = &mut reports[used];
            *of = endpoint;
            seat.engine.report_into(report);
            used += 1;
        }
        reports.truncate(used);
    }
}

impl<H: Threads> Client<Outlet> for Face<H> {
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let Some(seat) = self.seat(delivery.endpoint) else { return Err(Reason::NoSuchEndpoint) };
        match seat.engine.deliver_short(state, delivery) {
            true => Ok(()),
            false => seat.deliver(state, delivery),
        }
    }

    fn returned(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        match self.engine(message.endpoint) {
            Some(engine) => engine.returned(state, message),
            None => Some(message),
        }
    }

    fn on_event(&mut self, state: &mut State<Outlet>, event: &Event) {
        if let Some(engine) = event.endpoint().and_then(|endpoint| self.engine(endpoint)) {
            engine.on_event(state, event);
        }
    }

    fn completed(&mut self, state: &mut State<Outlet>, endpoint: Endpoint, completion: u64) {
        if let Some(engine) = self.engine(endpoint) {
            engine.completed(state, endpoint, completion);
        }
    }

    fn flow_closed(&mut self, state: &mut State<Outlet>, endpoint: Endpoint, flow: FlowId) {
        if let Some(engine) = self.engine(endpoint) {
            engine.flow_closed(state, endpoint, flow);
        }
    }

    fn go_on(&mut self, state: &mut State<Outlet>) -> u32 {
        let mut work = 0;
        for at in 0..self.endpoints.len() {
            if let Some(seat) = self.seat(self.endpoints[at]) {
                if seat.engine.needs_time_to_go_on() {
                    seat.engine.expire(now());
                }
                work += Client::<Outlet>::go_on(&mut seat.engine, state);
                seat.run_handler(state);
            }
        }
        work
    }

    fn close(&mut self, state: &mut State<Outlet>, endpoint: Endpoint) {
        if let Some(seat) = self.seat(endpoint) {
            seat.is_closing = true;
            seat.engine.close(state, endpoint);
        }
    }
}

impl<H: Threads> faces::Face for Face<H> {
    fn new(_: &Arc<Signals>) -> Face<H> {
        Face { seats: Vec::new(), endpoints: Vec::new(), has_had_handlers: false }
    }

    fn needs_service(&self) -> bool {
        true
    }

    fn remove(&mut self, endpoint: Endpoint) {
        if let Some(seat) = self.seats.get_mut(endpoint.index()) {
            *seat = None;
        }
        self.endpoints.retain(|&other| other != endpoint);
    }
}

impl<H: Threads> Bundle<H> {
    /// Makes a new endpoint one for remote memory.
    pub(super) fn make_memory(&mut self, endpoint: Endpoint, settings: Settings) -> Result<(), Error> {
        self.become_of(endpoint, Kind::Memory)?;
        let engine = weft_memory::Engine::<Platform>::new(endpoint, settings);
        engine.attach(self.core.state_mut());
        self.faces.memory.add(endpoint, engine);
        Ok(())
    }

    /// Returns what the calls of an endpoint for remote memory work with, and the recorder if requests are stamped now.
    #[allow(clippy::type_complexity)] // taken apart by each caller
    pub(super) fn memory_parts(
        &mut self,
        endpoint: Endpoint,
    ) -> Result<(&mut Engine, &mut State<Outlet>, Option<&mut Recorder>), Error> {
        self.life.check()?;
        match self.faces.memory.seat(endpoint).filter(|seat| !seat.is_closing) {
            Some(seat) => Ok((&mut seat.engine, self.core.state_mut(), self.faces.am.recorder())),
            None => Err(Error::Send(SendError::NoEndpoint)),
        }
    }
}

/// The clock for the expiry of regions and cookies. It starts at the first call.
pub(super) fn now() -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed()
}

/// A region's memory.
#[derive(Debug)]
pub(super) struct Space(pub Window);

impl weft_memory::Space for Space {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn is_lent(&self) -> bool {
        !self.0.is_own()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.0.read(at, to)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.0.write(at, bytes)
    }

    fn pull(&self, at: u64, from: Pulled<'_>) -> Result<(), NotPulled> {
        let Pulled { process, origin, skip, len } = from;
        let address = origin.from.checked_add(skip).ok_or(NotPulled::Unreadable)?;
        let from = weft_shm::PullFrom { process, address, len, proof_at: origin.proof_at, proof: origin.proof };
        self.0.pull(at, from).map_err(|error| match error {
            weft_shm::PullError::Unreadable => NotPulled::Unreadable,
            weft_shm::PullError::Gone => NotPulled::Gone,
            weft_shm::PullError::Outside => NotPulled::Outside,
        })
    }

    fn is_word(&self, at: u64, bytes: usize) -> bool {
        self.0.is_word(at, bytes)
    }

    fn can_be_changed(&self, at: u64, len: u64) -> bool {
        self.0.can_be_changed(at, len)
    }

    fn update(&self, at: u64, bytes: usize, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        self.0.update(at, bytes, change)
    }

    fn offer(&self, at: u64, len: u64) -> Option<(u64, Vec<u8>)> {
        let (ticket, offer) = self.0.offer(at, len)?;
        Some((ticket.into(), offer.to_bytes().to_vec()))
    }

    fn withdraw(&self, offers: &[u64]) {
        let tickets: Vec<Ticket> = offers.iter().copied().map(Ticket::from).collect();
        self.0.withdraw(&tickets);
    }

    fn is_offered(&self, offer: u64) -> bool {
        self.0.is_offered(offer.into())
    }

    fn let_go(&self, offer: u64) {
        self.0.let_go(offer.into());
    }
}

#[doc(hidden)] // users need not know the trait
impl weft_memory::Source for Source {
    fn bytes(&self) -> &[u8] {
        Source::bytes(self)
    }

    // Neither a vector's bytes nor lent ones move.
    fn address(&self) -> Option<u64> {
        Some(Source::bytes(self).as_ptr().addr() as u64)
    }
}

#[doc(hidden)]
impl weft_memory::Target for Target {
    fn len(&self) -> usize {
        Target::len(self)
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        Target::write(self, at, bytes);
    }
}
