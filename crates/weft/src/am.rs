//! Active Messages: a message names a handler, which the receiver runs with the message's arguments and payload.
//!
//! After the Active Messages of the seeds (AM-II): requests and replies, short (up to 16 arguments of 32 bits) and medium
//! (up to 64 KiB of payload as well), 32 requests outstanding from one endpoint to another, and an answer to every request:
//! if the handler does not reply, weft tells the sender that the request has ended. What cannot be delivered comes back.
//!
//! A [`Bundle`] is used by one thread at a time, a [`SharedBundle`] by any number of them. In a forked child of the process that made
//! it each call gives an error that says so; those that have no error to give (polling, waiting, taking events) panic with the same
//! words. Dropping is always allowed there, and does nothing.
//!
//! Calls named `try_…` never block and may be made by handlers;
//! [`Bundle::request`], [`Bundle::send`] and [`Bundle::drain`] poll until they are done.

mod message;
mod moving;
mod shared;
mod stamps;
mod tagged;
mod threads;
mod wait;

pub use message::{Context, Message, NotReplied, ReplyToken};
pub use moving::{AdoptError, Moving};
pub use shared::{InHandler, SharedBundle};
pub use threads::{AnyThread, OneThread, Threads};
pub use wait::{Waited, Waker};

use crate::bells::Pages;
use crate::home::Home;
use crate::node::{random_u64, Error, Node};
use crate::paths::{Core, Outlet};
use crate::status::board::Told;
use crate::tagged::{Completions, Engine};
use crate::watch::Signals;
use message::Mailbox;
use moving::Leaving;
use stamps::{Gate, Table};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use wait::Sleeper;
use weft_core::{
    Admission, Back, Counters, Delivery, Endpoint, Errand, Event, MessageKind, Outgoing, ReplyError, Returned,
    SendError, Service, Settings, Sink, State,
};
use weft_shm::{BellPage, Life, Own};
use weft_wire::{BundleId, Key, Name, Reason};

/// Messages taken by one poll, about.
const BUDGET: u32 = 256;

/// Without a helper, idle polls between two looks at sockets: a few microseconds.
const LOOK_EVERY: u32 = 1024;

/// The same while a session is being set up, with a helper too.
const LOOK_EVERY_SETUP: u32 = 16;

/// Messages taken between two looks at the network, at most, and without a helper at sockets. Not polls: a process that shares its
/// core finds much in each of few polls.
const LOOK_EVERY_BUSY: u32 = 1 << 14;

/// Seldom turns (every [`LOOK_EVERY_SETUP`] idle polls) between two rests, in which unused arenas are given back, and sockets
/// are looked at in case the helper does not get to run: some tenths of a second.
const REST_AFTER: u32 = 1 << 20;

/// A bundle of endpoints that exchange Active Messages, used by one thread at a time: no call takes a lock. With handlers of
/// [one thread](OneThread), as it has them unless told otherwise, it stays in the thread that made it; with handlers of
/// [any thread](AnyThread) it can be sent to another. What several threads use at once is a [`SharedBundle`].
///
/// ```
/// use std::{cell::RefCell, rc::Rc};
/// use weft::{am::Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let (log, me) = (bundle.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
/// let lines = Rc::new(RefCell::new(Vec::new()));
/// let kept = lines.clone();
/// bundle.on(log, 1, move |m| kept.borrow_mut().push(m.payload().to_vec()))?;
///
/// let name = bundle.name(log)?; // of another process, usually
/// bundle.map(me, 0, name, Key(1))?;
/// bundle.send(me, 0, 1, &[], b"one")?;
/// bundle.send(me, 0, 1, &[], b"two")?;
/// bundle.drain(); // until both have ended
/// assert_eq!(*lines.borrow(), [b"one", b"two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Bundle<H: Threads = OneThread> {
    core: Own<Core>,
    handlers: Handlers<H>,
    home: Own<Home>,
    /// Of the process that made it.
    life: Life,
    /// What the helper and other threads leave.
    signals: Arc<Signals>,
    /// Messages taken since the last look.
    busy: u32,
    /// The helper left word and does not watch until we have looked.
    owes_look: bool,
    /// Seldom turns since the last rest.
    restless: u32,
    /// Polls until the network is looked at. Set to zero by sends that leave something to be sent.
    net_turns: Arc<AtomicU32>,
    sleeper: Sleeper,
    /// A report to be written over.
    spare_report: Option<Box<Told>>,
}

struct Handlers<H: Threads> {
    endpoints: Table<H>,
    gate: Gate,
    /// Where endpoints that left are found.
    node: Node,
    bundle: BundleId,
    /// Endpoints that were released and have not arrived anywhere yet.
    leaving: u32,
    /// Endpoints for tagged messages.
    tagged: Vec<Endpoint>,
    /// Completions of tagged messages.
    completions: Completions,
    /// Polls in a row that found nothing. Here, where what is delivered can see it.
    idle: u32,
}

struct EndpointHandlers<H: Threads> {
    on: Vec<Option<H::Handler>>,
    on_return: Option<H::ReturnHandler>,
    /// It was released: its handlers are there until it arrives elsewhere.
    leaving: Option<Arc<Leaving<H>>>,
    /// It is for tagged messages.
    tagged: Option<Box<Engine>>,
}

impl<H: Threads> Default for EndpointHandlers<H> {
    fn default() -> EndpointHandlers<H> {
        EndpointHandlers { on: Vec::new(), on_return: None, leaving: None, tagged: None }
    }
}

impl<H: Threads> std::fmt::Debug for Handlers<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.endpoints.all().iter().flat_map(|e| &e.on).flatten().count();
        write!(f, "{count} handlers")
    }
}

impl Bundle {
    /// A bundle of a node, with the default settings.
    ///
    /// # Errors
    /// As [`Bundle::with_settings`].
    pub fn new(node: &Node) -> Result<Bundle, Error> {
        Bundle::with_settings(node, Settings::default())
    }

    /// A bundle of a node.
    ///
    /// # Errors
    /// If the kernel gives no memory or no descriptors, or the node is of the process that this one was forked from.
    pub fn with_settings(node: &Node, settings: Settings) -> Result<Bundle, Error> {
        Bundle::make(node, settings)
    }

    /// Sets the handler of a number, in place of the one before. It runs inside [`Bundle::poll`].
    ///
    /// If it panics, the session that the message came by is unusable afterwards.
    pub fn on(
        &mut self,
        endpoint: Endpoint,
        handler: u8,
        run: impl FnMut(&mut Message<'_>) + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.handlers.set(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler of messages that come back to the endpoint. Without one they are in [`Bundle::next_event`].
    pub fn on_return(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Context<'_>, Returned) + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?.on_return = Some(Box::new(run));
        Ok(())
    }
}

impl Bundle<AnyThread> {
    /// A bundle of a node that can be sent to other threads, and so its handlers.
    ///
    /// # Errors
    /// If the kernel gives no memory or no descriptors.
    pub fn for_any_thread(node: &Node, settings: Settings) -> Result<Bundle<AnyThread>, Error> {
        Bundle::make(node, settings)
    }

    /// Sets the handler of a number, in place of the one before. It runs inside [`Bundle::poll`], in the thread that polls.
    ///
    /// If it panics, the session that the message came by is unusable afterwards.
    pub fn on(
        &mut self,
        endpoint: Endpoint,
        handler: u8,
        run: impl FnMut(&mut Message<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.handlers.set(endpoint, handler, Box::new(run))?)
    }

    /// Sets the handler of messages that come back to the endpoint. Without one they are in [`Bundle::next_event`].
    pub fn on_return(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Context<'_>, Returned) + Send + 'static,
    ) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?.on_return = Some(Box::new(run));
        Ok(())
    }
}

impl<H: Threads> Bundle<H> {
    fn make(node: &Node, settings: Settings) -> Result<Bundle<H>, Error> {
        node.check()?;
        let bells = BellPage::create()
            .map_err(|e| Error::system("cannot make the bell page", e, "raise the limit of open files (ulimit -n)"))?;
        let signals = Arc::new(Signals::new()?);
        let mailbox = Arc::new(Mailbox { signals: signals.clone(), letters: Own::new(Mutex::default()) });
        let sleeper = Sleeper::new(&signals)?;
        let mut home = Own::new(Home::new(node, &signals, &bells, H::USERS, settings.suspicion)?);
        let mut core = Own::new(Core::new(Pages::new(bells), settings));
        home.set_places_aside(&mut core);
        let life = home.life();
        Ok(Bundle {
            core,
            handlers: Handlers::new(mailbox, node.clone(), home.id()),
            life,
            net_turns: home.net_turns(),
            home,
            signals,
            busy: 0,
            owes_look: false,
            restless: 0,
            sleeper,
            spare_report: None,
        })
    }

    // ---- endpoints

    /// Makes an endpoint that admits messages carrying `key`.
    pub fn endpoint(&mut self, key: Key) -> Result<Endpoint, Error> {
        self.life.check()?;
        let name = self.home.add_endpoint(key);
        let endpoint = self.core.state_mut().add_endpoint(name, key);
        self.handlers.endpoints.set(endpoint, EndpointHandlers::default());
        Ok(endpoint)
    }

    /// Makes an endpoint with a random key, which [`Bundle::key`] tells.
    pub fn endpoint_with_random_key(&mut self) -> Result<Endpoint, Error> {
        self.endpoint(Key(random_u64()?))
    }

    /// Frees an endpoint. Messages for it come back to their senders from now on.
    pub fn free(&mut self, endpoint: Endpoint) -> Result<(), Error> {
        self.life.check()?;
        if self.tagged_parts(endpoint).is_ok() {
            return self.free_tagged(endpoint);
        }
        self.handlers.at(endpoint)?;
        let name = self.name(endpoint)?;
        self.home.node().office().remove_endpoint(name.endpoint);
        self.core.state_mut().free_endpoint(endpoint)?;
        self.handlers.endpoints.set(endpoint, EndpointHandlers::default());
        Ok(())
    }

    /// The endpoint's name, to be given to peers.
    pub fn name(&self, endpoint: Endpoint) -> Result<Name, Error> {
        self.life.check()?;
        Ok(self.core.state().name(endpoint)?)
    }

    /// The endpoint's key, to be given to the peers that may send to it.
    pub fn key(&self, endpoint: Endpoint) -> Result<Key, Error> {
        self.life.check()?;
        Ok(self.core.state().key(endpoint)?)
    }

    /// Changes the key. Messages that carry the old one come back to their senders.
    pub fn set_key(&mut self, endpoint: Endpoint, key: Key) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?;
        let name = self.name(endpoint)?;
        self.home.node().office().set_key(name.endpoint, key);
        Ok(self.core.state_mut().set_key(endpoint, key)?)
    }

    /// Whose messages the endpoint admits, of processes of this host: those of its own user's (the default), or of all users
    /// who know the key. It also says to whom the endpoint may send, for answers come from there.
    pub fn set_admission(&mut self, endpoint: Endpoint, admission: Admission) -> Result<(), Error> {
        self.life.check()?;
        if self.tagged_parts(endpoint).is_err() {
            self.handlers.at(endpoint)?;
        }
        let name = self.name(endpoint)?;
        self.home.node().office().set_admission(name.endpoint, admission);
        Ok(self.core.state_mut().set_admission(endpoint, admission)?)
    }

    /// Whether polls hand messages to the endpoint (the default), or queue them there up to the credit it granted.
    /// An endpoint that is not served does not hold up its neighbours.
    pub fn set_served(&mut self, endpoint: Endpoint, served: bool) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?;
        Ok(self.core.state_mut().set_served(endpoint, served)?)
    }

    /// How what the endpoint sends is served from now on: whether its one-way messages may be lost, and whether order holds where
    /// messages are refused. Each peer may be told *full* once more, until it knows.
    pub fn set_service(&mut self, endpoint: Endpoint, service: Service) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?;
        Ok(self.core.state_mut().set_service(endpoint, service)?)
    }

    /// One-way messages sent to index `to` that are not known to be received: in the memory of their endpoint, handed to it or queued
    /// there. Those that came back are not among them, nor those that may be lost. For an endpoint of [`Reliability::Reception`] it
    /// falls to zero by itself; for others once their receiver tells it for another reason, or [`Bundle::drain`] asks.
    ///
    /// [`Reliability::Reception`]: crate::Reliability::Reception
    pub fn unreceived(&self, from: Endpoint, to: u32) -> Result<u64, Error> {
        self.life.check()?;
        Ok(self.core.state().unreceived(from, to)?)
    }

    /// Enters a peer's name and key in the endpoint's translation table. Makes no contact yet.
    pub fn map(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?;
        Ok(self.core.state_mut().map(endpoint, index, name, key)?)
    }

    /// Takes an entry out of the translation table.
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), Error> {
        self.life.check()?;
        self.handlers.at(endpoint)?;
        Ok(self.core.state_mut().unmap(endpoint, index)?)
    }

    // ---- messages

    /// Sends a request to the peer at index `to`, without waiting. *Full* is a normal answer.
    #[inline(always)]
    pub fn try_request(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if self.handlers.gate.is_shut() {
            // Made for it alone: what is handed on by reference lies in memory, and each store of a sender counts.
            let message = Outgoing { op: handler, args, payload, completion: None };
            return self.handlers.gate.request(self.core.state_mut(), from, to, message);
        }
        self.core.state_mut().try_request(from, to, Outgoing { op: handler, args, payload, completion: None })
    }

    /// Sends a one-way message to the peer at index `to`, without waiting. *Full* is a normal answer.
    #[inline(always)]
    pub fn try_send(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if self.life.is_over() {
            return not_sent(self.life);
        }
        self.core.state_mut().try_send(from, to, Outgoing { op: handler, args, payload, completion: None })
    }

    /// Like [`Bundle::try_request`] and [`Bundle::try_send`], for messages that ask for a completion.
    #[inline(always)]
    pub fn try_post(
        &mut self,
        from: Endpoint,
        to: u32,
        kind: MessageKind,
        message: Outgoing<'_>,
    ) -> Result<(), SendError> {
        if self.life.is_over() {
            return not_sent(self.life);
        }
        match kind {
            MessageKind::Request if self.handlers.gate.is_shut() => {
                let Outgoing { op, args, payload, completion } = message;
                let message = Outgoing { op, args, payload, completion };
                self.handlers.gate.request(self.core.state_mut(), from, to, message)
            }
            MessageKind::Request => self.core.state_mut().try_request(from, to, message),
            _ => self.core.state_mut().try_send(from, to, message),
        }
    }

    /// Sends a request; polls until there is room for it.
    pub fn request(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(|bundle| bundle.try_request(from, to, handler, args, payload))
    }

    /// Sends a one-way message; polls until there is room for it.
    pub fn send(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(|bundle| bundle.try_send(from, to, handler, args, payload))
    }

    /// Replies to a request whose token was kept. On *too large* the token comes back.
    pub fn reply(
        &mut self,
        mut token: ReplyToken,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if self.life.check().is_err() {
            return Err((ReplyError::Forked, token));
        }
        let Some(right) = token.right.take() else { return Ok(()) };
        let state = self.core.state_mut();
        let replied = match self.handlers.gate.is_shut() {
            true => self.handlers.gate.reply(state, right, handler, args, payload),
            false => state.reply(right, handler, args, payload),
        };
        replied.map_err(|(error, right)| {
            token.right = Some(right);
            (error, token)
        })?;
        self.carry_back();
        Ok(())
    }

    // ---- progress

    /// Does what there is to do without waiting: runs handlers for what has arrived, sets sessions up, notices deaths.
    /// Returns the number of messages taken, at most about 256.
    #[inline]
    pub fn poll(&mut self) -> u32 {
        self.expect_own();
        let mut work = self.core.poll(BUDGET, &mut self.handlers);
        // Relaxed, here as elsewhere: it only says when to look.
        match self.net_turns.load(Ordering::Relaxed).checked_sub(1) {
            Some(turns) => self.net_turns.store(turns, Ordering::Relaxed),
            None => work += self.look_at_network(),
        }
        if work > 0 {
            self.handlers.idle = 0;
            self.busy += work;
        } else {
            self.handlers.idle = self.handlers.idle.wrapping_add(1);
        }
        if (work == 0 && self.handlers.idle % LOOK_EVERY_SETUP == 0)
            || self.busy >= LOOK_EVERY_BUSY
            || self.core.has_broken()
            || self.signals.are_raised()
        {
            self.poll_seldom();
        }
        work
    }

    /// Waits until `done` says so, which is asked after each wake-up and every millisecond.
    pub fn poll_until(&mut self, mut done: impl FnMut(&mut Bundle<H>) -> bool) {
        self.expect_own();
        let mut begin = None;
        while !done(self) {
            self.nap(&mut begin);
        }
        self.end_naps(begin);
    }

    /// Polls until every message sent has ended: delivered, answered or returned.
    pub fn drain(&mut self) {
        self.expect_own();
        self.poll_until(Bundle::is_settled);
    }

    /// Pushes what waits in this process, as far as there is room. Says whether nothing waits any more.
    pub fn flush(&mut self) -> bool {
        self.expect_own();
        let is_done = self.core.state_mut().flush();
        self.home.flush_network() && is_done
    }

    /// Whether everything sent so far is in its receivers' hands: in the memory that it shares with those of this host, and
    /// acknowledged by the network interfaces of other hosts. Their programs may compute all the while, and have to take it yet:
    /// [`Bundle::drain`] waits for that too. Does not wait.
    pub fn is_acknowledged(&mut self) -> bool {
        self.flush() && self.home.is_acknowledged()
    }

    /// The next event, oldest first.
    ///
    /// ```
    /// use weft::{am::Bundle, Certainty, Event, Key, Node, Reason};
    ///
    /// let node = Node::new()?;
    /// let mut gone = Bundle::new(&node)?;
    /// let nobody = gone.endpoint(Key(1))?;
    /// let name = gone.name(nobody)?;
    /// gone.free(nobody)?;
    ///
    /// let mut bundle = Bundle::new(&node)?;
    /// let me = bundle.endpoint(Key(2))?;
    /// bundle.map(me, 0, name, Key(1))?;
    /// bundle.send(me, 0, 1, &[7], b"kept")?;
    /// bundle.poll_until(|bundle| {
    ///     let Some(Event::Returned(back)) = bundle.next_event() else { return false };
    ///     assert_eq!((&back.args[..], &back.payload[..]), (&[7][..], &b"kept"[..]));
    ///     assert_eq!((back.reason, back.certainty), (Reason::NoSuchEndpoint, Certainty::NotDelivered));
    ///     true
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_event(&mut self) -> Option<Event> {
        self.expect_own();
        self.core.state_mut().next_event()
    }

    /// What was counted since the bundle was made.
    pub fn counters(&self) -> Counters {
        self.core.state().counters()
    }

    /// Peers that this bundle has a session with.
    pub fn sessions(&self) -> usize {
        self.core.state().sessions().count()
    }

    /// For calls that have no error to give.
    #[inline(always)]
    fn expect_own(&self) {
        if self.life.is_over() {
            panic_in_a_forked_child(self.life);
        }
    }

    /// Whether every message sent has ended. Hastens it if not.
    fn is_settled(&mut self) -> bool {
        let state = self.core.state_mut();
        let settled = state.flush() && state.unsettled() == 0;
        if !settled {
            state.hasten();
        }
        settled
    }

    fn insist(&mut self, mut attempt: impl FnMut(&mut Bundle<H>) -> Result<(), SendError>) -> Result<(), SendError> {
        let mut begin = None;
        loop {
            match attempt(self) {
                Err(SendError::Full) => self.nap(&mut begin),
                done => {
                    self.end_naps(begin);
                    return done;
                }
            }
        }
    }

    /// Looks for packets of other hosts.
    #[inline(never)]
    fn look_at_network(&mut self) -> u32 {
        let (work, turns) = self.home.look_at_network(&mut self.core, BUDGET, &mut self.handlers);
        self.net_turns.store(turns, Ordering::Relaxed);
        work
    }

    /// What is not done on every poll.
    #[cold]
    #[inline(never)]
    fn poll_seldom(&mut self) {
        let raised = self.signals.take();
        self.sleeper.took_word |= raised != 0;
        if raised & Signals::LETTERS != 0 {
            self.read_letters();
        }
        self.sleeper.is_nudged |= raised & Signals::NUDGE != 0;
        if raised & Signals::DATAGRAMS != 0 {
            self.home.wake_network();
            self.net_turns.store(0, Ordering::Relaxed);
        }
        // Kept until it was done, should a handler of a lost session's last words panic.
        self.owes_look |= raised & Signals::SOCKETS != 0;
        let urgent = self.core.has_broken() || self.core.state().has_calls() || self.home.is_busy();
        let due = !self.home.is_watched() && (self.busy >= LOOK_EVERY_BUSY || self.handlers.idle % LOOK_EVERY == 0);
        self.restless = self.restless.saturating_add(1);
        let rests = self.restless >= REST_AFTER;
        if self.owes_look || urgent || due || rests {
            self.home.service(&mut self.core, &mut self.handlers);
        }
        // What could not be accepted for want of descriptors would be told again at once.
        if rests || (self.owes_look && !self.home.is_stuck()) {
            self.home.watch_on();
        }
        self.owes_look = false;
        if self.busy >= LOOK_EVERY_BUSY {
            self.busy = 0;
            // Polls that take many messages last longer than others.
            self.net_turns.store(0, Ordering::Relaxed);
        }
        if rests {
            self.restless = 0;
            self.core.rest();
        }
        if raised & Signals::STAMP != 0 {
            self.handlers.open_window(&self.signals.lease);
        }
        if raised & Signals::REPORT != 0 || (rests && self.home.node().helper().is_some()) {
            self.report();
        }
    }

    /// Leaves a report for whoever asks from outside.
    #[cold]
    #[inline(never)]
    fn report(&mut self) {
        let Bundle { core, home, signals, spare_report, handlers, .. } = self;
        signals.board.put(spare_report, |told| {
            core.state_mut().report_into(&mut told.report);
            home.report_into(&mut told.report);
            told.stamps = handlers.stamps(core.state());
        });
    }

    /// Replies that other threads gave.
    fn read_letters(&mut self) {
        self.read_post();
        for letter in self.handlers.gate.mailbox.take() {
            let state = self.core.state_mut();
            match letter.reply {
                // What is too large was refused when the letter was written, and for a lost peer there is nobody to tell.
                Some((handler, args, payload)) if self.handlers.gate.is_shut() => {
                    let _ = self.handlers.gate.reply(state, letter.right, handler, &args, &payload);
                }
                Some((handler, args, payload)) => _ = state.reply(letter.right, handler, &args, &payload),
                None => state.end(letter.right),
            }
        }
        self.carry_back();
    }
}

/// An error: this is a forked child.
#[cold]
#[inline(never)]
fn not_sent(life: Life) -> Result<(), SendError> {
    life.check().map_err(|_| SendError::Forked)
}

#[cold]
#[inline(never)]
fn panic_in_a_forked_child(life: Life) -> ! {
    match life.check() {
        Err(forked) => panic!("{forked}"),
        Ok(()) => unreachable!("it is asked before"),
    }
}

impl<H: Threads> Handlers<H> {
    fn new(mailbox: Arc<Mailbox>, node: Node, bundle: BundleId) -> Handlers<H> {
        let (endpoints, leaving) = (Table::default(), 0);
        Handlers {
            endpoints,
            gate: Gate::new(mailbox),
            node,
            bundle,
            leaving,
            tagged: Vec::new(),
            completions: Completions::default(),
            idle: 0,
        }
    }

    /// What is set of an endpoint for handlers, unless it was released.
    fn at(&mut self, endpoint: Endpoint) -> Result<&mut EndpointHandlers<H>, SendError> {
        let handlers = self.endpoints.find(endpoint).filter(|h| h.leaving.is_none());
        match handlers {
            Some(handlers) if handlers.tagged.is_none() => Ok(handlers),
            Some(_) => Err(SendError::Tagged),
            None => Err(SendError::NoEndpoint),
        }
    }

    fn set(&mut self, endpoint: Endpoint, handler: u8, run: H::Handler) -> Result<(), SendError> {
        let on = &mut self.at(endpoint)?.on;
        if on.len() <= usize::from(handler) {
            on.resize_with(usize::from(handler) + 1, || None);
        }
        on[usize::from(handler)] = Some(run);
        Ok(())
    }
}

impl<H: Threads> Sink<Outlet> for Handlers<H> {
    #[inline(always)]
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        let handlers = self.endpoints.plain(delivery.endpoint);
        let handler = handlers.and_then(|h| h.on.get_mut(usize::from(delivery.op())));
        let Some(Some(run)) = handler else {
            return self.deliver_elsewhere(state, delivery);
        };
        run(&mut Message { context: Context { state, gate: &mut self.gate }, delivery });
        Ok(())
    }

    fn returned(&mut self, state: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let handlers = self.endpoints.find(message.endpoint);
        match handlers.and_then(|h| h.on_return.as_mut()) {
            Some(run) => {
                run(&mut Context { state, gate: &mut self.gate }, message);
                None
            }
            None => self.return_elsewhere(state, message),
        }
    }

    fn do_chores(&mut self, state: &mut State<Outlet>) -> u32 {
        self.go_on_with_tagged(state)
    }

    fn forward(&mut self, errand: Errand) -> Result<(), (Errand, Reason)> {
        self.node.office().forward(self.bundle, errand)
    }

    fn carry_back(&mut self, to: BundleId, back: Back) {
        self.node.office().carry_back(to, back);
    }
}
