//! The bundle: endpoints that are polled and waited on together, whatever they are for.
//!
//! A [`Bundle`] is used by one thread at a time, a [`SharedBundle`] by any number of them. In a forked child of the process that made
//! it each call gives an error that says so; those that have no error to give (polling, waiting, taking events) panic with the same
//! words. Dropping is always allowed there, and does nothing.
//!
//! What an endpoint is for is a *face*: [Active Messages](crate::am), [tagged messages](crate::tagged). The faces add their calls to
//! the bundle.

pub(crate) mod faces;
mod own;
mod shared;
mod threads;
mod wait;

pub use shared::{InHandler, SharedBundle};
pub use threads::{AnyThread, OneThread, Threads};
pub use wait::{Waited, Waker};

use crate::bells::Pages;
use crate::home::Home;
use crate::node::{random_u64, Error, Node};
use crate::paths::Core;
use crate::reception::Post;
use crate::status::board::Told;
use crate::watch::Signals;
use faces::{Faces, Kind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use wait::Sleeper;
use weft_core::{Admission, Counters, Endpoint, Event, SendError, Service, Settings};
use weft_shm::{BellPage, Life, Own};
use weft_wire::{Key, Name};

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
/// use weft::{Bundle, Key, Node};
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
    pub(crate) core: Own<Core>,
    pub(crate) faces: Faces<H>,
    pub(crate) home: Own<Home>,
    /// Of the process that made it.
    pub(crate) life: Life,
    /// What the helper and other threads leave.
    pub(crate) signals: Arc<Signals>,
    /// Messages taken since the last look.
    busy: u32,
    /// Polls in a row that found nothing. The state has it too, for clients.
    idle: u32,
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
}

impl Bundle<AnyThread> {
    /// A bundle of a node that can be sent to other threads, and so its handlers.
    ///
    /// # Errors
    /// If the kernel gives no memory or no descriptors.
    pub fn for_any_thread(node: &Node, settings: Settings) -> Result<Bundle<AnyThread>, Error> {
        Bundle::make(node, settings)
    }
}

impl<H: Threads> Bundle<H> {
    fn make(node: &Node, settings: Settings) -> Result<Bundle<H>, Error> {
        node.check()?;
        let bells = BellPage::create()
            .map_err(|e| Error::system("cannot make the bell page", e, "raise the limit of open files (ulimit -n)"))?;
        let signals = Arc::new(Signals::new()?);
        let sleeper = Sleeper::new(&signals)?;
        let mut home = Own::new(Home::new(node, &signals, &bells, H::USERS, settings.suspicion)?);
        let mut core = Own::new(Core::new(Pages::new(bells), settings));
        home.set_places_aside(&mut core);
        let life = home.life();
        Ok(Bundle {
            core,
            faces: Faces::new(node.clone(), home.id(), &signals),
            life,
            net_turns: home.net_turns(),
            home,
            signals,
            busy: 0,
            idle: 0,
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
        self.faces.seat(endpoint, Kind::Am);
        Ok(endpoint)
    }

    /// Makes an endpoint with a random key, which [`Bundle::key`] tells.
    pub fn endpoint_with_random_key(&mut self) -> Result<Endpoint, Error> {
        self.endpoint(Key(random_u64()?))
    }

    /// Frees an endpoint. Messages for it come back to their senders from now on. If its client has something left to say to peers, a
    /// later poll frees it.
    pub fn free(&mut self, endpoint: Endpoint) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_here(endpoint)?;
        let name = self.name(endpoint)?;
        self.home.node().office().remove_endpoint(name.endpoint);
        Ok(self.faces.close(self.core.state_mut(), endpoint)?)
    }

    /// Gives an endpoint of Active Messages that has no handlers to another face.
    pub(crate) fn become_of(&mut self, endpoint: Endpoint, kind: Kind) -> Result<(), Error> {
        self.faces.expect(endpoint, Kind::Am)?;
        self.faces.am.give_up(endpoint)?;
        self.core.state_mut().claim_events(endpoint)?;
        self.faces.seat(endpoint, kind);
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
        self.faces.expect_table(endpoint)?;
        let name = self.name(endpoint)?;
        self.home.node().office().set_key(name.endpoint, key);
        Ok(self.core.state_mut().set_key(endpoint, key)?)
    }

    /// Whose messages the endpoint admits, of processes of this host: those of its own user's (the default), or of all users
    /// who know the key. It also says to whom the endpoint may send, for answers come from there.
    pub fn set_admission(&mut self, endpoint: Endpoint, admission: Admission) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_here(endpoint)?;
        let name = self.name(endpoint)?;
        self.home.node().office().set_admission(name.endpoint, admission);
        Ok(self.core.state_mut().set_admission(endpoint, admission)?)
    }

    /// Whether polls hand messages to the endpoint (the default), or queue them there up to the credit it granted.
    /// An endpoint that is not served does not hold up its neighbours.
    pub fn set_served(&mut self, endpoint: Endpoint, served: bool) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
        Ok(self.core.state_mut().set_served(endpoint, served)?)
    }

    /// How what the endpoint sends is served from now on: whether its one-way messages may be lost, and whether order holds where
    /// messages are refused. Each peer may be told *full* once more, until it knows.
    pub fn set_service(&mut self, endpoint: Endpoint, service: Service) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
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
        self.faces.expect_table(endpoint)?;
        Ok(self.core.state_mut().map(endpoint, index, name, key)?)
    }

    /// Takes an entry out of the translation table.
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
        Ok(self.core.state_mut().unmap(endpoint, index)?)
    }

    // ---- messages

    // ---- progress

    /// Does what there is to do without waiting: runs handlers for what has arrived, sets sessions up, notices deaths.
    /// Returns the number of messages taken, at most about 256.
    #[inline]
    pub fn poll(&mut self) -> u32 {
        self.expect_own();
        let mut work = self.core.poll(BUDGET, &mut self.faces);
        // Relaxed, here as elsewhere: it only says when to look.
        match self.net_turns.load(Ordering::Relaxed).checked_sub(1) {
            Some(turns) => self.net_turns.store(turns, Ordering::Relaxed),
            None => work += self.look_at_network(),
        }
        if work > 0 {
            if self.idle > 0 {
                self.idle = 0;
                self.core.state_mut().set_idle_polls(0);
            }
            self.busy += work;
        } else {
            self.idle = self.idle.wrapping_add(1);
            self.core.state_mut().set_idle_polls(self.idle);
        }
        if (work == 0 && self.idle % LOOK_EVERY_SETUP == 0)
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
    /// use weft::{Bundle, Certainty, Event, Key, Node, Reason};
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
    pub(crate) fn expect_own(&self) {
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

    pub(crate) fn insist(
        &mut self,
        mut attempt: impl FnMut(&mut Bundle<H>) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
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
        let (work, turns) = self.home.look_at_network(&mut self.core, BUDGET, &mut self.faces);
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
            // First: it notices which endpoints have left, and what others hand back may be for those.
            self.faces.am.read_letters(self.core.state_mut());
            self.read_post();
            self.carry_back();
        }
        self.sleeper.is_nudged |= raised & Signals::NUDGE != 0;
        if raised & Signals::DATAGRAMS != 0 {
            self.home.wake_network();
            self.net_turns.store(0, Ordering::Relaxed);
        }
        // Kept until it was done, should a handler of a lost session's last words panic.
        self.owes_look |= raised & Signals::SOCKETS != 0;
        let urgent = self.core.has_broken() || self.core.state().has_calls() || self.home.is_busy();
        let due = !self.home.is_watched() && (self.busy >= LOOK_EVERY_BUSY || self.idle % LOOK_EVERY == 0);
        self.restless = self.restless.saturating_add(1);
        let rests = self.restless >= REST_AFTER;
        if self.owes_look || urgent || due || rests {
            self.home.service(&mut self.core, &mut self.faces);
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
            self.faces.am.open_window(&self.signals.lease);
        }
        if raised & Signals::REPORT != 0 || (rests && self.home.node().helper().is_some()) {
            self.report();
        }
    }

    /// Takes what other bundles of the node left for this one.
    fn read_post(&mut self) {
        for post in self.home.take_post() {
            match post {
                Post::Errand(errand) => self.core.do_errand(errand, &mut self.faces),
                Post::Back(back) => self.core.state_mut().take_back(back),
            }
        }
    }

    /// Carries back what became of the errands of other bundles.
    pub(crate) fn carry_back(&mut self) {
        self.core.carry_back(&mut self.faces);
    }

    /// Leaves a report for whoever asks from outside.
    #[cold]
    #[inline(never)]
    fn report(&mut self) {
        let Bundle { core, home, signals, spare_report, faces, .. } = self;
        signals.board.put(spare_report, |told| {
            core.state_mut().report_into(&mut told.report);
            home.report_into(&mut told.report);
            told.stamps = faces.am.stamps(core.state());
        });
    }
}

#[cold]
#[inline(never)]
fn panic_in_a_forked_child(life: Life) -> ! {
    match life.check() {
        Err(forked) => panic!("{forked}"),
        Ok(()) => unreachable!("it is asked before"),
    }
}

impl<H: Threads> Drop for Bundle<H> {
    fn drop(&mut self) {
        for (to, back) in self.core.state_mut().abandon_guests() {
            self.home.node().office().carry_back(to, back);
        }
    }
}
