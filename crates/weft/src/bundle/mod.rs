//! The bundle: endpoints that are polled and waited on together.
//!
//! One thread at a time uses a [`Bundle`]; any number of threads use a [`SharedBundle`].
//!
//! After a fork, calls in the child fail with an error that says so. Calls that return no error (polling, waiting,
//! taking events) panic with the same words. Dropping a bundle in the child is allowed and does nothing.
//!
//! What an endpoint is for is its *face*: [Active Messages](crate::am) or [tagged messages](crate::tagged). Each face
//! adds its calls to the bundle.

pub(crate) mod faces;
mod linger;
mod own;
mod shared;
mod threads;
mod wait;

pub use shared::{Held, InHandler, SharedBundle};
pub use threads::{AnyThread, OneThread, Threads};
pub use wait::{Waited, Waker};

use crate::bells::Pages;
use crate::home::Home;
use crate::net::NetSettings;
use crate::node::{random_u64, Error, Node};
use crate::paths::Core;
use crate::reception::Post;
use crate::status::board::Told;
use crate::watch::Signals;
use faces::{Faces, Kind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wait::{patience, Sleeper, NAP_MOST};
use weft_core::{Admission, Counters, Endpoint, Event, SendError, Service, Settings};
use weft_shm::{BellPage, Forked, Life, Own};
use weft_wire::{Key, Name};

/// Approximate number of messages that one poll takes at most.
const BUDGET: u32 = 256;

/// Idle polls between two checks of the set-up sockets if there is no helper. They take a few microseconds.
const LOOK_EVERY: u32 = 1024;

/// Idle polls between two checks of the set-up sockets while a session is being set up, even if there is a helper.
const LOOK_EVERY_SETUP: u32 = 16;

/// Messages after which a busy bundle polls the network, and checks the set-up sockets if there is no helper. Messages are counted,
/// not polls: a process that shares its core makes few polls, and each of them takes many messages.
const LOOK_EVERY_BUSY: u32 = 1 << 14;

/// Seldom turns (one every [`LOOK_EVERY_SETUP`] idle polls) between two rests: some tenths of a second. A rest gives unused arenas
/// back, and checks the sockets in case the helper gets no processor time.
const REST_AFTER: u32 = 1 << 20;

/// A bundle of endpoints that one thread at a time uses. No call takes a lock.
///
/// By default its handlers run in [one thread](OneThread), and the bundle stays in the thread that made it. With
/// handlers for [any thread](AnyThread) it can be sent to another thread. Several threads at once use a
/// [`SharedBundle`].
///
/// A call that takes an [`Endpoint`] fails if the endpoint was freed or belongs to another face. No call blocks unless it
/// says so. Each call that blocks has a form with a time limit, whose name ends in `_within`; [`Bundle::wait`] takes one anyway.
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
    /// The life of the process that made the bundle; over in a forked child.
    pub(crate) life: Life,
    /// Signals from the helper and from other threads.
    pub(crate) signals: Arc<Signals>,
    /// Messages taken since the network and the sockets were last checked.
    busy: u32,
    /// Polls in a row that found nothing. The state has it too, for clients.
    idle: u32,
    /// The helper reported that sockets are readable, and does not watch them until the bundle has checked them.
    owes_look: bool,
    /// Seldom turns since the last rest.
    restless: u32,
    /// Polls until the network is polled next. A send that leaves packets unsent sets it to zero.
    net_turns: Arc<AtomicU32>,
    sleeper: Sleeper,
    /// How long it lingers when it is dropped.
    linger: Duration,
    /// It has said goodbye.
    has_ended: bool,
    /// Calls for remote memory that were made. Some of them poll.
    pub(crate) memory_calls: u32,
    /// A used report to overwrite, so that reports allocate nothing.
    spare_report: Option<Box<Told>>,
}

impl Bundle {
    /// Makes a bundle of a node, with the default settings.
    ///
    /// # Errors
    /// As [`Bundle::with_settings`].
    pub fn new(node: &Node) -> Result<Bundle, Error> {
        Bundle::with_settings(node, Settings::default())
    }

    /// Makes a bundle of a node. Makes system calls, but does not block.
    ///
    /// # Errors
    /// If the kernel gives no memory or no descriptors, or if this is a forked child of the process that made the node.
    pub fn with_settings(node: &Node, settings: Settings) -> Result<Bundle, Error> {
        Bundle::make(node, settings)
    }
}

impl Bundle<AnyThread> {
    /// Makes a bundle that can be sent to other threads. Its handlers must be [`Send`].
    ///
    /// # Errors
    /// As [`Bundle::with_settings`].
    pub fn for_any_thread(node: &Node, settings: Settings) -> Result<Bundle<AnyThread>, Error> {
        Bundle::make(node, settings)
    }
}

impl<H: Threads> Bundle<H> {
    fn make(node: &Node, settings: Settings) -> Result<Bundle<H>, Error> {
        node.check()?;
        let bells = BellPage::create().map_err(|e| Error::shortage("cannot make the bell page", e))?;
        let signals = Arc::new(Signals::new()?);
        let sleeper = Sleeper::new(&signals)?;
        let linger = settings.linger.unwrap_or_else(|| node.linger());
        let chosen = NetSettings { suspicion: settings.suspicion, linger, integrity: settings.integrity };
        let mut home = Own::new(Home::new(node, &signals, &bells, H::USERS, chosen)?);
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
            memory_calls: 0,
            sleeper,
            linger,
            has_ended: false,
            spare_report: None,
        })
    }

    // ---- endpoints

    /// Makes an endpoint that accepts messages which carry `key`.
    pub fn endpoint(&mut self, key: Key) -> Result<Endpoint, Error> {
        self.life.check()?;
        let name = self.home.add_endpoint(key)?;
        let endpoint = self.core.state_mut().add_endpoint(name, key);
        self.faces.seat(endpoint, Kind::Am);
        Ok(endpoint)
    }

    /// Makes an endpoint with a random key. [`Bundle::key`] returns the key.
    pub fn endpoint_with_random_key(&mut self) -> Result<Endpoint, Error> {
        self.endpoint(Key(random_u64()?))
    }

    /// Frees an endpoint. From now on messages for it come back to their senders. If its client still has something to
    /// send, a later poll frees the endpoint.
    pub fn free(&mut self, endpoint: Endpoint) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_here(endpoint)?;
        // Fails if the endpoint lives in another bundle.
        self.name(endpoint)?;
        Ok(self.faces.close(self.core.state_mut(), endpoint)?)
    }

    /// Gives an endpoint to another face. The endpoint must be one of Active Messages and must have no handlers.
    pub(crate) fn become_of(&mut self, endpoint: Endpoint, kind: Kind) -> Result<(), Error> {
        self.faces.expect(endpoint, Kind::Am)?;
        self.faces.am.give_up(endpoint)?;
        self.core.state_mut().claim_events(endpoint)?;
        self.faces.seat(endpoint, kind);
        Ok(())
    }

    /// Returns the endpoint's name, which peers need to send to it.
    pub fn name(&self, endpoint: Endpoint) -> Result<Name, Error> {
        self.life.check()?;
        Ok(self.core.state().name(endpoint)?)
    }

    /// Returns the endpoint's key, which peers need to send to it.
    pub fn key(&self, endpoint: Endpoint) -> Result<Key, Error> {
        self.life.check()?;
        Ok(self.core.state().key(endpoint)?)
    }

    /// Changes the key. Messages that carry the old key come back to their senders.
    pub fn set_key(&mut self, endpoint: Endpoint, key: Key) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
        let name = self.name(endpoint)?;
        self.home.set_key(name.endpoint, key);
        Ok(self.core.state_mut().set_key(endpoint, key)?)
    }

    /// Sets who may send to the endpoint: see [`Admission`]. By default it admits every process of its own user that knows its key.
    /// On this host, the endpoint can also only call processes of the users that it admits, because their answers come back to it.
    ///
    /// ```
    /// use weft::{Admission, Bundle, Key, Node};
    ///
    /// let node = Node::new()?;
    /// let mut server = Bundle::new(&node)?;
    /// let door = server.endpoint_with_random_key()?;
    /// server.set_admission(door, Admission::OwnUserWithoutKey)?;
    /// server.on(door, 1, |m| _ = m.reply(2, m.args(), b"welcome"))?;
    /// let name = server.name(door)?; // all that a caller needs
    ///
    /// let mut client = Bundle::new(&node)?;
    /// let here = client.endpoint_with_random_key()?;
    /// client.map(here, 0, name, Key::NONE)?;
    /// let (told, heard) = std::sync::mpsc::channel();
    /// client.on(here, 2, move |m| _ = told.send(m.payload().to_vec()))?;
    /// while client.try_request(here, 0, 1, &[], b"").is_err() {
    ///     client.poll();
    ///     server.poll();
    /// }
    /// let welcome = loop {
    ///     client.poll();
    ///     server.poll();
    ///     if let Ok(welcome) = heard.try_recv() {
    ///         break welcome;
    ///     }
    /// };
    /// assert_eq!(welcome, b"welcome");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_admission(&mut self, endpoint: Endpoint, admission: Admission) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_here(endpoint)?;
        let name = self.name(endpoint)?;
        self.home.set_admission(name.endpoint, admission);
        Ok(self.core.state_mut().set_admission(endpoint, admission)?)
    }

    /// Sets whether polls deliver messages to the endpoint (the default). An endpoint that is not served queues its
    /// messages, up to the credit it granted, and does not hold up other endpoints.
    pub fn set_served(&mut self, endpoint: Endpoint, served: bool) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
        Ok(self.core.state_mut().set_served(endpoint, served)?)
    }

    /// Sets the service of the endpoint's sends: whether its one-way messages may be lost, and whether order holds when
    /// messages are refused. After a change one send to each peer may return *full*, until the peer knows of it.
    pub fn set_service(&mut self, endpoint: Endpoint, service: Service) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_service(endpoint)?;
        Ok(self.core.state_mut().set_service(endpoint, service)?)
    }

    /// Returns the number of one-way messages to index `to` that are not known to be received, that is, delivered to
    /// their endpoint or queued there. Returned messages and messages that may be lost do not count. With
    /// [`Reliability::Reception`] the number falls to zero by itself. Otherwise it falls when the receiver's next
    /// message carries the news, or when [`Bundle::drain`] asks for it.
    ///
    /// [`Reliability::Reception`]: crate::Reliability::Reception
    pub fn unreceived(&self, from: Endpoint, to: u32) -> Result<u64, Error> {
        self.life.check()?;
        Ok(self.core.state().unreceived(from, to)?)
    }

    /// Enters a peer's name and key in the endpoint's translation table. Sends nothing yet. The first
    /// [`try_send`](Bundle::try_send) to a peer begins to set up a session and returns [`SendError::Full`].
    pub fn map(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
        Ok(self.core.state_mut().map(endpoint, index, name, key)?)
    }

    /// As [`Bundle::map`], for an endpoint that may admit callers without its key ([`Admission::OwnUserWithoutKey`],
    /// [`Admission::Anybody`]). Such an endpoint need not prove that it knows the `key` that you have. Then only the name's user,
    /// which the kernel confirms, tells who answers; and whoever answers learns the key. If you have no key, use [`Key::NONE`].
    pub fn map_unproven(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
        Ok(self.core.state_mut().map_unproven(endpoint, index, name, key)?)
    }

    /// Removes an entry from the translation table. Messages under way to it end as they would otherwise, and a late reply still
    /// runs its handler.
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect_table(endpoint)?;
        Ok(self.core.state_mut().unmap(endpoint, index)?)
    }

    // ---- progress

    /// Makes progress without waiting: runs handlers for messages that arrived, sets sessions up, notices deaths.
    /// Returns the number of messages taken, about 256 at most.
    #[inline]
    pub fn poll(&mut self) -> u32 {
        self.expect_own();
        self.advance()
    }

    /// As [`Bundle::poll`], which panics in a forked child of the process that made the bundle.
    ///
    /// # Errors
    /// [`Forked`] in such a child.
    #[inline(always)]
    pub fn try_poll(&mut self) -> Result<u32, Forked> {
        self.life.check()?;
        Ok(self.advance())
    }

    #[inline(always)]
    fn advance(&mut self) -> u32 {
        let mut work = self.core.poll(BUDGET, &mut self.faces);
        // Relaxed, here as elsewhere: the value only decides when to poll the network.
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

    /// Polls and waits until `done` returns true. Calls `done` after each wake-up, and at least every millisecond.
    /// Blocks without limit.
    pub fn poll_until(&mut self, mut done: impl FnMut(&mut Bundle<H>) -> bool) {
        self.expect_own();
        let mut begin = None;
        while !done(self) {
            self.nap(&mut begin, |_| NAP_MOST, Duration::MAX);
        }
        self.end_naps(begin);
    }

    /// As [`Bundle::poll_until`], for at most `limit`. Returns whether `done` returned true. Blocks until then; a handler that
    /// runs is not interrupted.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weft::{Bundle, Node};
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let is_done = bundle.poll_until_within(Duration::from_millis(10), |bundle| bundle.counters().replies_delivered > 0);
    /// assert!(!is_done, "nobody was asked");
    /// # Ok::<(), weft::Error>(())
    /// ```
    pub fn poll_until_within(&mut self, limit: Duration, mut done: impl FnMut(&mut Bundle<H>) -> bool) -> bool {
        self.expect_own();
        let (since, mut begin) = (Instant::now(), None);
        let is_done = loop {
            if done(self) {
                break true;
            }
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                break false;
            }
            self.nap(&mut begin, |_| NAP_MOST, left);
        };
        self.end_naps(begin);
        is_done
    }

    /// Polls and waits until every message sent has ended: delivered, answered or returned. Blocks without limit.
    pub fn drain(&mut self) {
        self.expect_own();
        let mut begin = None;
        while !self.is_settled() {
            self.nap(&mut begin, patience, Duration::MAX);
        }
        self.end_naps(begin);
    }

    /// As [`Bundle::drain`], for at most `limit`. Returns whether every message has ended.
    pub fn drain_within(&mut self, limit: Duration) -> bool {
        self.poll_until_within(limit, Bundle::is_settled)
    }

    /// Sends messages that are queued in this process, as far as there is room. Returns true if nothing is left. Does not block.
    pub fn flush(&mut self) -> bool {
        self.expect_own();
        let is_done = self.core.state_mut().flush() && self.faces.unsent() == 0;
        self.home.flush_network() && is_done
    }

    /// Returns whether all messages sent so far have left this process: they are in memory shared with peers of this
    /// host, and network interfaces of other hosts have acknowledged theirs. The receiving programs need not have taken
    /// them yet; [`Bundle::drain`] waits for that too. Does not block.
    pub fn is_acknowledged(&mut self) -> bool {
        self.flush() && self.home.is_acknowledged()
    }

    /// Takes the oldest event. Does not block.
    ///
    /// Events wait in a queue of [`Settings::events_bytes_most`] bytes. Once the program has called this, or has asked for a
    /// completion, it *listens*: no event is lost, and while the queue is full, sends return [`SendError::Full`]. As long as it
    /// does not listen, the oldest events are dropped, and [`Counters::events_dropped`] counts them. See [`Event`].
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

    /// Returns what the bundle counted since it was made.
    pub fn counters(&self) -> Counters {
        self.core.state().counters()
    }

    /// Returns the number of sessions of the bundle: one for each peer on this host, and for each pair of endpoints that talk to each
    /// other between hosts.
    pub fn sessions(&self) -> usize {
        self.core.state().sessions().count()
    }

    /// Panics in a forked child: for calls that cannot return an error.
    #[inline(always)]
    pub(crate) fn expect_own(&self) {
        if self.life.is_over() {
            panic_in_a_forked_child(self.life);
        }
    }

    /// Returns whether every message sent has ended. If not, asks receivers to report.
    fn is_settled(&mut self) -> bool {
        if self.signals.are_raised() {
            // Takes replies of other threads, and requests whose token was dropped.
            self.poll_seldom();
        }
        let state = self.core.state_mut();
        let settled = state.flush() && state.unsettled() == 0;
        if !settled {
            state.hasten();
        }
        settled
    }

    /// Repeats a send until there is room, for at most `limit` if there is one. Gives up if the event queue is full: waiting does
    /// not empty it.
    pub(crate) fn insist(
        &mut self,
        limit: Option<Duration>,
        mut attempt: impl FnMut(&mut Bundle<H>) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let (mut begin, mut since) = (None, None);
        let sent = loop {
            match attempt(self) {
                Err(SendError::Full) if !self.core.state().has_full_events() => {}
                done => break done,
            }
            // Without a limit the clock is not read while messages come.
            let left = match limit {
                Some(limit) => limit.saturating_sub(since.get_or_insert_with(Instant::now).elapsed()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                break Err(SendError::TimedOut);
            }
            self.nap(&mut begin, patience, left);
        };
        self.end_naps(begin);
        sent
    }

    /// Takes packets of other hosts.
    #[inline(never)]
    fn look_at_network(&mut self) -> u32 {
        let (work, turns) = self.home.look_at_network(&mut self.core, BUDGET, &mut self.faces);
        self.net_turns.store(turns, Ordering::Relaxed);
        work
    }

    /// Does the work that is not needed on every poll.
    #[cold]
    #[inline(never)]
    fn poll_seldom(&mut self) {
        let raised = self.signals.take();
        self.sleeper.took_word |= raised != 0;
        if raised & Signals::LETTERS != 0 {
            // Before the post: letters tell which endpoints have left, and other bundles may hand back messages for those
            // endpoints.
            self.faces.am.read_letters(self.core.state_mut());
            self.read_post();
            self.carry_back();
        }
        self.sleeper.is_nudged |= raised & Signals::NUDGE != 0;
        if raised & Signals::DATAGRAMS != 0 {
            self.home.wake_network();
            self.net_turns.store(0, Ordering::Relaxed);
        }
        // The flag stays set until the sockets are checked: a handler of a lost session may panic before that.
        self.owes_look |= raised & Signals::SOCKETS != 0;
        let urgent = self.core.has_broken() || self.core.state().has_calls() || self.home.is_busy();
        let due = !self.home.is_watched() && (self.busy >= LOOK_EVERY_BUSY || self.idle % LOOK_EVERY == 0);
        self.restless = self.restless.saturating_add(1);
        // Packets come first.
        let rests = self.restless >= REST_AFTER && raised & Signals::DATAGRAMS == 0;
        if self.owes_look || urgent || due || rests {
            self.home.service(&mut self.core, &mut self.faces);
        }
        // Don't rearm the watch if callers wait for a free descriptor: the helper would report them again at once.
        if rests || (self.owes_look && !self.home.is_stuck()) {
            self.home.watch_on();
        }
        self.owes_look = false;
        self.faces.memory.expire();
        if self.idle > 0 {
            self.give_way_while_polling();
        }
        if self.busy >= LOOK_EVERY_BUSY {
            self.busy = 0;
            // Polls that take many messages take longer, so the network must be polled after fewer of them.
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

    /// Takes what other bundles of the node sent to this one.
    fn read_post(&mut self) {
        for post in self.home.take_post() {
            match post {
                Post::Errand(errand) => self.core.do_errand(errand, &mut self.faces),
                Post::Back(back) => self.core.state_mut().take_back(back),
            }
        }
    }

    /// Returns the results of errands to the bundles that sent them.
    pub(crate) fn carry_back(&mut self) {
        self.core.carry_back(&mut self.faces);
    }

    /// Publishes a report for clients of the status socket.
    #[cold]
    #[inline(never)]
    fn report(&mut self) {
        let Bundle { core, home, signals, spare_report, faces, .. } = self;
        signals.board.put(spare_report, |told| {
            core.state_mut().report_into(&mut told.report);
            home.report_into(&mut told.report);
            faces.memory.report_into(&told.report.endpoints, &mut told.memory);
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
