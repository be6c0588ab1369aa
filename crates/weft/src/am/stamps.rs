//! Timestamps of messages, for requests on the status socket (`status/stamps.rs`). Messages are stamped while a window
//! is open.
//!
//! While no window is open, stamping costs nothing. An open window uses checks that every call makes anyway: the check
//! for a forked child ([`Gate::is_shut`]) returns true, and the handlers are moved to where the usual path does not
//! find them ([`Table`]). Both send the call down its slow path, which does the stamping.

use super::{not_sent, Context, EndpointHandlers, Face, Mailbox, Message};
use crate::bundle::Threads;
use crate::paths::Outlet;
use crate::status::recorder::{Place, Recorder, What};
use crate::status::stamps::{now, Lease, Stamps};
use std::sync::Arc;
use weft_core::{Delivery, Endpoint, MessageKind, Outgoing, ReplyError, ReplyToken, SendError, State};
use weft_shm::Life;
use weft_wire::Reason;

/// The check at the start of each call of a bundle and its handlers.
#[derive(Debug)]
pub(super) struct Gate {
    /// The life of the process that made the bundle. While messages are stamped, a life that is over.
    plain: Life,
    life: Life,
    pub mailbox: Arc<Mailbox>,
    /// Present while stamps are asked for.
    recorder: Option<Box<Recorder>>,
}

impl Gate {
    pub fn new(mailbox: Arc<Mailbox>) -> Gate {
        let life = mailbox.life();
        Gate { plain: life, life, mailbox, recorder: None }
    }

    /// Whether calls take the slow path: this is a forked child, or messages are stamped.
    #[inline(always)]
    pub fn is_shut(&self) -> bool {
        self.plain.is_over()
    }

    /// The life of the process that made the bundle.
    #[inline(always)]
    pub fn life(&self) -> Life {
        self.life
    }

    /// Sends a request while the gate is shut.
    #[cold]
    #[inline(never)]
    pub fn request(
        &mut self,
        state: &mut State<Outlet>,
        from: Endpoint,
        to: u32,
        message: Outgoing<'_>,
    ) -> Result<(), SendError> {
        if self.life.is_over() {
            return not_sent(self.life);
        }
        let before = state.asking(from, to);
        let called = now();
        state.try_request(from, to, message)?;
        let written = now();
        if let (Some(recorder), Some((flow, before)), Some((_, after))) =
            (&mut self.recorder, before, state.asking(from, to))
        {
            let slot = (after & !before).trailing_zeros() as u16;
            recorder.asking.put(Place { flow, slot }, What::default(), [called, written]);
        }
        Ok(())
    }

    /// Sends a reply while the gate is shut.
    #[cold]
    #[inline(never)]
    pub fn reply(
        &mut self,
        state: &mut State<Outlet>,
        right: ReplyToken,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if self.life.check().is_err() {
            return Err((ReplyError::Forked, right));
        }
        let place = Place { flow: right.flow(), slot: right.slot() };
        let replied = now();
        state.reply(right, handler, args, payload)?;
        let written = now();
        if let Some(recorder) = &mut self.recorder {
            recorder.end_answer(place, replied, written);
        }
        Ok(())
    }
}

/// The handlers of a bundle's endpoints. While messages are stamped, they are hidden from the usual path.
pub(super) struct Table<H: Threads> {
    plain: Vec<EndpointHandlers<H>>,
    hidden: Vec<EndpointHandlers<H>>,
    is_hidden: bool,
    /// An endpoint had handlers at some time.
    pub has_had_some: bool,
}

impl<H: Threads> Default for Table<H> {
    fn default() -> Table<H> {
        Table { plain: Vec::new(), hidden: Vec::new(), is_hidden: false, has_had_some: false }
    }
}

impl<H: Threads> Table<H> {
    /// Returns an endpoint's handlers, unless messages are stamped.
    #[inline(always)]
    pub fn plain(&mut self, endpoint: Endpoint) -> Option<&mut EndpointHandlers<H>> {
        self.plain.get_mut(endpoint.index())
    }

    /// Returns an endpoint's handlers.
    #[inline(always)]
    pub fn find(&mut self, endpoint: Endpoint) -> Option<&mut EndpointHandlers<H>> {
        match endpoint.index() < self.plain.len() {
            true => self.plain.get_mut(endpoint.index()),
            false => self.hidden.get_mut(endpoint.index()),
        }
    }

    /// Returns all handlers.
    pub fn all(&self) -> &[EndpointHandlers<H>] {
        if self.is_hidden {
            &self.hidden
        } else {
            &self.plain
        }
    }

    /// Sets an endpoint's handlers. Returns the previous ones.
    pub fn set(&mut self, endpoint: Endpoint, handlers: EndpointHandlers<H>) -> EndpointHandlers<H> {
        std::mem::replace(self.get_or_make(endpoint), handlers)
    }

    /// Returns an endpoint's handlers, and makes a place for them if there is none.
    pub fn get_or_make(&mut self, endpoint: Endpoint) -> &mut EndpointHandlers<H> {
        self.has_had_some = true;
        let all = if self.is_hidden { &mut self.hidden } else { &mut self.plain };
        if all.len() <= endpoint.index() {
            all.resize_with(endpoint.index() + 1, EndpointHandlers::default);
        }
        &mut all[endpoint.index()]
    }

    fn hide(&mut self, is_hidden: bool) {
        if std::mem::replace(&mut self.is_hidden, is_hidden) != is_hidden {
            std::mem::swap(&mut self.plain, &mut self.hidden);
        }
    }
}

impl<H: Threads> Face<H> {
    /// Opens a window if stamps are still asked for. Otherwise ends stamping.
    #[cold]
    pub(crate) fn open_window(&mut self, lease: &Lease) {
        if !lease.runs() {
            self.close_window(lease);
            self.gate.recorder = None;
            return;
        }
        if !lease.is_open() {
            lease.set_open(true);
            self.gate.recorder.get_or_insert_default().begin();
            self.gate.plain = Life::over();
            self.endpoints.hide(true);
        }
    }

    fn close_window(&mut self, lease: &Lease) {
        lease.set_open(false);
        self.gate.plain = self.gate.life;
        self.endpoints.hide(false);
    }

    /// Whether messages are stamped now.
    pub(super) fn is_window_open(&self) -> bool {
        self.gate.recorder.is_some() && self.gate.is_shut()
    }

    /// Delivers a message while messages are stamped.
    #[inline(never)]
    pub(super) fn deliver_stamped(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let seen = now();
        let handlers = self.endpoints.find(delivery.endpoint);
        let handler = handlers.and_then(|h| h.on.get_mut(usize::from(delivery.op())));
        let Some(Some(run)) = handler else {
            return self.deliver_leaving(state, delivery);
        };
        let place = Place { flow: delivery.flow(), slot: delivery.slot() };
        let is_reply = delivery.kind() == MessageKind::Reply;
        if let (MessageKind::Request, Some(recorder)) = (delivery.kind(), &mut self.gate.recorder) {
            recorder.answering.put(place, What::default(), [seen]);
        }
        run(&mut Message { context: Context { state, gate: &mut self.gate }, delivery });
        let done = now();
        let Some(recorder) = &mut self.gate.recorder else { return Ok(()) };
        if is_reply {
            recorder.end_question(place, seen, done);
        }
        self.count_stamped(done);
        Ok(())
    }

    /// A message was delivered while messages are stamped. Closes the window if there were enough.
    pub(crate) fn count_stamped(&mut self, now: u64) {
        let Some(recorder) = &mut self.gate.recorder else { return };
        recorder.messages += 1;
        if recorder.has_enough(now) || now >= self.gate.mailbox.signals.lease.until() {
            let signals = self.gate.mailbox.signals.clone();
            self.close_window(&signals.lease);
        }
    }

    /// The recorder, while messages are stamped.
    #[inline(always)]
    pub(crate) fn recorder(&mut self) -> Option<&mut Recorder> {
        match self.gate.is_shut() {
            true => self.gate.recorder.as_deref_mut(),
            false => None,
        }
    }

    /// Returns the stamps for a report.
    #[cold]
    pub(crate) fn stamps(&self, state: &State<Outlet>) -> Option<Stamps> {
        self.gate.recorder.as_ref().map(|recorder| recorder.tell(state))
    }
}
