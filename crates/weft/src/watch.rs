//! The helper: a thread that sleeps until a socket of one of the node's bundles has an event, and then sets a flag for that bundle.
//! So a poll needs no system call: it loads one word of its own process.
//!
//! A bundle's descriptor is watched for one event, and again once the bundle has handled it. So a program that does not poll causes
//! one wakeup and no more. The helper reads and writes sockets only as a bundle's deputy, while the program computes.

use crate::net::deputy::Deputy;
use crate::node::{lock, Error};
use crate::office::Office;
use crate::status::board::Board;
use crate::status::desk::{Around, Desk};
use crate::status::stamps::Lease;
use crate::watched::{watch_once, ONE_EVENT};
use nix::sys::signal::{kill, SigSet, SigmaskHow, Signal};
use rustix::event::{epoll, eventfd, EventfdFlags, Timespec};
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_link::RECEIVE_BYTES;
use weft_shm::ring::ring;
use weft_shm::sys::has_address_space;
use weft_shm::Descriptor;
use weft_wire::{BundleId, Epoch, Uid};

/// Flags that others raise for a bundle's next poll, and the means to wake the bundle if it sleeps.
#[derive(Debug)]
pub(crate) struct Signals {
    word: AtomicU32,
    is_asleep: AtomicBool,
    /// The bundle waits in the kernel and wakes up for any event. A bundle armed for an outside event loop is asleep but not
    /// waiting: its program may be busy with something else.
    is_waiting: AtomicBool,
    /// An eventfd. It is watched for edges, so nobody ever reads it.
    waker: Descriptor,
    /// Where the bundle leaves its status report.
    pub board: Board,
    /// Until when the bundle stamps messages.
    pub lease: Lease,
}

impl Signals {
    /// Another thread sent a reply.
    pub const LETTERS: u32 = 1;
    /// A socket has an event, or a caller waits.
    pub const SOCKETS: u32 = 2;
    /// Packets of other hosts have arrived.
    pub const DATAGRAMS: u32 = 4;
    /// End the current wait.
    pub const NUDGE: u32 = 8;
    /// A status report of the bundle is wanted.
    pub const REPORT: u32 = 16;
    /// Start or stop stamping messages.
    pub const STAMP: u32 = 32;

    /// Nothing raised.
    ///
    /// # Errors
    /// If the kernel gives no descriptor.
    pub fn new() -> Result<Signals, Error> {
        let waker = make_eventfd().map_err(|e| Error::shortage("cannot make an eventfd", e))?;
        Ok(Signals {
            word: AtomicU32::new(0),
            is_asleep: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            waker,
            board: Board::default(),
            lease: Lease::default(),
        })
    }

    /// The eventfd that the bundle sleeps on and peers write to.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Makes the waker readable.
    pub fn ring(&self) {
        ring(&self.waker);
    }

    #[inline(always)]
    pub fn are_raised(&self) -> bool {
        // Relaxed: a signal missed now is seen by the next poll, and `take` orders the data behind it.
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Raises a signal, and wakes the bundle if it sleeps.
    pub fn raise(&self, signal: u32) {
        // Release: pairs with the acquire in `take`, so that the data behind the signal is visible there. SeqCst, together with
        // `lie_down`: either the bundle sees the signal or we see that it sleeps.
        self.word.fetch_or(signal, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) {
            ring(&self.waker);
        }
    }

    /// Raises a signal that is not worth waking the bundle for.
    pub fn leave(&self, signal: u32) {
        // Relaxed: the signal publishes no data.
        self.word.fetch_or(signal, Ordering::Relaxed);
    }

    /// The bundle is about to sleep. False if a signal is raised: then it must not sleep.
    pub fn lie_down(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        self.word.load(Ordering::SeqCst) == 0
    }

    /// Whether the bundle waits in the kernel, or is about to.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::SeqCst)
    }

    /// The bundle begins or ends to wait in the kernel.
    pub fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::SeqCst);
    }

    /// The bundle has woken up.
    pub fn get_up(&self) {
        // Relaxed: a thread that sees it late only wakes a bundle that is awake.
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// All signals raised since.
    pub fn take(&self) -> u32 {
        if !self.are_raised() {
            return 0;
        }
        self.word.swap(0, Ordering::Acquire)
    }
}

/// The helper of a node.
#[derive(Debug)]
pub(crate) struct Helper {
    list: Arc<Watchlist>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watchlist {
    epoll: Descriptor,
    /// Written to end the thread.
    stop: Descriptor,
    /// Ends the thread too, in case the program closed `stop`.
    is_stopped: AtomicBool,
    /// The thread has ended.
    has_ended: Mutex<bool>,
    /// Wakes a thread that waits for `has_ended`.
    ended: Condvar,
    /// Written when the desk has opened or a bundle left a report. Watched for edges, so nobody ever reads it.
    calls: Arc<Descriptor>,
    bundles: Mutex<HashMap<BundleId, Duty>>,
    /// Answers the node's callers.
    office: OnceLock<Arc<Office>>,
    /// Answers status queries. Locked before `bundles`.
    desk: Mutex<Option<Desk>>,
}

/// What the helper does for a bundle.
#[derive(Debug)]
struct Duty {
    signals: Arc<Signals>,
    /// The signal to send to the process when something arrives for the bundle, if it asked for one.
    signal: Option<Signal>,
    deputy: Option<Deputy>,
}

/// The tokens of `stop`, of `calls`, of the office and of the desk; bundles have their number.
const STOP: u64 = u64::MAX;
const CALLS: u64 = u64::MAX - 1;
const OFFICE: u64 = u64::MAX - 2;
const DESK: u64 = u64::MAX - 3;

/// In a token: a client of the desk.
const ASKER: u64 = 1 << 33;

/// In a token: the descriptor that the bundle would sleep on.
const ARMED: u64 = 1 << 34;

/// In a token: the timer that tells the bundle's deputy that the program does not poll.
const SWITCH: u64 = 1 << 35;

/// In a token: the bundle's network.
const NETWORK: u64 = 1 << 32;

/// How long a caller waits if there is no descriptor for it.
const STUCK: Duration = Duration::from_millis(100);

/// Events taken at once.
const EVENTS_MOST: usize = 32;

/// How long dropping a node waits for the helper to end. That takes some microseconds unless the machine is overloaded.
const END_MOST: Duration = Duration::from_secs(3);

/// The same if nothing can wake the helper, which ends within this time only if it was awake.
const END_UNWOKEN: Duration = Duration::from_millis(20);

/// Bytes of the thread's stack: it runs the protocol, and no code of the program.
const STACK_BYTES: usize = 256 << 10;

impl Helper {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel gives no descriptor or no thread.
    pub fn start() -> Result<Helper, Error> {
        let failed = |e| Error::shortage("cannot make the helper's descriptors", e);
        let epoll = Descriptor::make(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(failed)?;
        let stop = make_eventfd().map_err(failed)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN).map_err(failed)?;
        let calls = make_eventfd().map_err(failed)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &calls, epoll::EventData::new_u64(CALLS), edges).map_err(failed)?;
        let list = Arc::new(Watchlist {
            epoll,
            stop,
            is_stopped: AtomicBool::new(false),
            has_ended: Mutex::new(false),
            ended: Condvar::new(),
            calls: Arc::new(calls),
            bundles: Mutex::default(),
            office: OnceLock::new(),
            desk: Mutex::default(),
        });
        let watchlist = list.clone();
        let run = move || {
            let end = AtEnd(watchlist);
            end.0.run();
        };
        let way_out = "raise the limits of processes and of memory (ulimit -u, ulimit -v; in a container its limit of pids), or do \
                       without the helper (WEFT_HELPER=off or Node::without_helper): then the program must poll, for after 3 s \
                       without a poll its peers on other hosts take it for dead";
        let thread = spawn_without_signals("weft-helper", STACK_BYTES, run)
            .map_err(|e| Error::system("cannot start the helper thread", e, way_out))?;
        Ok(Helper { list, thread: Some(thread) })
    }

    /// Has callers answered from now on.
    ///
    /// # Errors
    /// If the kernel has no room for it.
    pub fn open_office(&self, office: Arc<Office>) -> Result<(), Error> {
        let office = self.list.office.get_or_init(|| office);
        watch_once(&self.list.epoll, office.epoll(), OFFICE)
            .map_err(|e| Error::shortage("cannot have the helper watch the set-up socket", e))
    }

    /// Opens the desk of the node. If no descriptor is free there is no desk, and nobody can query the status of the process.
    pub fn open_desk(&self, epoch: Epoch, uid: Uid) {
        *lock(&self.list.desk) = Desk::open(epoch, uid).ok();
        // Has the thread notice it.
        ring(&self.list.calls);
    }

    /// Watches a bundle's descriptor.
    ///
    /// # Errors
    /// If the kernel has no room for it. The caller must remove the bundle then.
    pub fn add(&self, bundle: BundleId, fd: impl AsFd, signals: Arc<Signals>) -> Result<(), Error> {
        lock(&self.list.bundles).insert(bundle, Duty { signals, signal: None, deputy: None });
        self.list.watch(fd, token(bundle), ONE_EVENT)
    }

    /// Has a bundle's deputy stand in while its program does not poll.
    ///
    /// # Errors
    /// If the kernel has no room for it.
    pub fn add_deputy(&self, bundle: BundleId, deputy: Deputy) -> Result<(), Error> {
        let (token, edges) = (u64::from(bundle.0) | SWITCH, epoll::EventFlags::IN | epoll::EventFlags::ET);
        self.list.watch(deputy.switch(), epoll::EventData::new_u64(token), edges)?;
        if let Some(duty) = lock(&self.list.bundles).get_mut(&bundle) {
            duty.deputy = Some(deputy);
        }
        Ok(())
    }

    /// Watches for one more event, after the bundle has handled all.
    pub fn rearm(&self, bundle: BundleId, fd: impl AsFd) {
        // Fails only if the program closed the set: the descriptor is being watched.
        let _ = epoll::modify(self.list.epoll.checked(), fd, token(bundle), ONE_EVENT);
    }

    /// Watches the socket of a bundle's network for one event. False if the kernel has no room for it.
    pub fn watch_network(&self, bundle: BundleId, fd: impl AsFd) -> bool {
        self.list.watch_network(bundle, fd.as_fd())
    }

    /// Has the process sent a signal when `fd`, on which an armed bundle would sleep, becomes readable. False if the kernel has no
    /// room to watch it.
    pub fn send_when_readable(&self, bundle: BundleId, fd: BorrowedFd<'_>, signal: Signal) -> bool {
        if let Some(duty) = lock(&self.list.bundles).get_mut(&bundle) {
            duty.signal = Some(signal);
        }
        watch_once(&self.list.epoll, fd, u64::from(bundle.0) | ARMED).is_ok()
    }

    /// Stops watching it.
    pub fn unwatch_network(&self, fd: impl AsFd) -> bool {
        self.list.forget(fd);
        true
    }

    /// Forgets a bundle.
    pub fn remove(&self, bundle: BundleId, fd: impl AsFd) {
        self.list.forget(fd);
        if let Some(Duty { deputy: Some(deputy), .. }) = lock(&self.list.bundles).remove(&bundle) {
            self.list.forget(deputy.switch());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.list.is_stopped.store(true, Ordering::SeqCst);
        // If the program closed the descriptors, nothing wakes the thread: it ends at its next turn, if there is one.
        let can_wake = self.list.stop.is_ours() && self.list.epoll.is_ours();
        let most = if can_wake { END_MOST } else { END_UNWOKEN };
        ring(&self.list.stop);
        if let Some(thread) = self.thread.take() {
            if self.list.ends_within(most) {
                // The thread has no code that panics. If it did panic, nothing is left to clean up.
                let _ = thread.join();
            }
        }
    }
}

/// Reports the end of the thread, even after a panic.
struct AtEnd(Arc<Watchlist>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        *lock(&self.0.has_ended) = true;
        self.0.ended.notify_all();
    }
}

impl Watchlist {
    /// Waits for the thread to end. Returns whether it did in time.
    fn ends_within(&self, most: Duration) -> bool {
        let ended = self.ended.wait_timeout_while(lock(&self.has_ended), most, |has_ended| !*has_ended);
        *ended.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Watches a descriptor.
    fn watch(&self, fd: impl AsFd, data: epoll::EventData, events: epoll::EventFlags) -> Result<(), Error> {
        epoll::add(self.epoll.checked(), fd, data, events)
            .map_err(|e| Error::shortage("cannot have the helper watch a bundle", e))
    }

    /// Stops watching a descriptor.
    fn forget(&self, fd: impl AsFd) {
        // Fails if it was not watched, which is fine.
        let _ = epoll::delete(self.epoll.checked(), fd);
    }

    /// The thread: one call per turn, and nothing while nothing happens.
    fn run(&self) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
        let mut buffer = Vec::new();
        let mut due = None;
        let mut stuck = None;
        loop {
            // If the program closed our set, one of its own may have the number now.
            if self.is_stopped.load(Ordering::SeqCst) || !self.epoll.is_ours_lately() {
                return;
            }
            let most = due.map(until);
            let ready = match epoll::wait(&self.epoll, &mut events, most.as_ref()) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                // Happens only if the program closed our descriptor.
                Err(_) => return,
            };
            for event in ready.iter() {
                match event.data.u64() {
                    STOP => return,
                    // Every turn checks the desk anyway.
                    CALLS => {}
                    OFFICE => stuck = self.answer_callers(),
                    DESK => self.hear_askers(),
                    token if token & ASKER != 0 => _ = self.at_desk(|desk, around| desk.go_on(token as u32, around)),
                    token => self.pass_on(token, &mut buffer),
                }
            }
            if stuck.is_some_and(|until| until <= Instant::now()) {
                stuck = self.answer_callers();
            }
            due = self.tick(&mut buffer).into_iter().chain(stuck).min();
            due = due.into_iter().chain(self.at_desk(|desk, around| desk.tick(Instant::now(), around)).flatten()).min();
        }
    }

    /// Answers callers. If there is no descriptor for one, says when to try again.
    fn answer_callers(&self) -> Option<Instant> {
        let office = self.office.get()?;
        if !office.service() {
            return Some(Instant::now() + STUCK);
        }
        // Cannot fail: the descriptor was watched before.
        let _ = watch_once(&self.epoll, office.epoll(), OFFICE);
        None
    }

    /// Answers status queries.
    fn hear_askers(&self) {
        if let Some(desk) = &mut *lock(&self.desk) {
            desk.is_called();
        }
        self.at_desk(|desk, around| desk.hear(Instant::now(), around));
    }

    /// Runs `run` at the desk, unless there is none or it is idle.
    fn at_desk<T>(&self, run: impl FnOnce(&mut Desk, &Around<'_>) -> T) -> Option<T> {
        let mut desk = lock(&self.desk);
        let desk = desk.as_mut().filter(|desk| !desk.is_idle())?;
        let bundles: Vec<(BundleId, Arc<Signals>)> =
            lock(&self.bundles).iter().map(|(bundle, duty)| (*bundle, duty.signals.clone())).collect();
        let around = Around { epoll: &self.epoll, listener: DESK, asker: ASKER, bell: &self.calls, bundles: &bundles };
        Some(run(desk, &around))
    }

    /// Signals a bundle, and stands in for it if its program computes.
    fn pass_on(&self, token: u64, buffer: &mut Vec<u8>) {
        let bundle = BundleId(token as u32);
        let mut bundles = lock(&self.bundles);
        let Some(Duty { signals, signal, deputy }) = bundles.get_mut(&bundle) else { return };
        if token & ARMED != 0 {
            if let Some(signal) = signal.take() {
                // Cannot fail: the process is this one.
                let _ = kill(nix::unistd::Pid::this(), signal);
            }
            return;
        }
        let is_switch = token & SWITCH != 0;
        if !is_switch {
            signals.raise(if token & NETWORK == 0 { Signals::SOCKETS } else { Signals::DATAGRAMS });
        }
        let Some(deputy) = deputy.as_mut().filter(|_| token & (NETWORK | SWITCH) != 0) else { return };
        let (now, watch) = (Instant::now(), |socket: BorrowedFd<'_>| self.watch_network(bundle, socket));
        match is_switch {
            true => deputy.on_switch(now, room(buffer), watch),
            false => deputy.on_word(now, room(buffer), watch),
        }
    }

    /// Has deputies look after their bundles. Returns when to do so again.
    fn tick(&self, buffer: &mut Vec<u8>) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (&bundle, duty) in lock(&self.bundles).iter_mut() {
            let Some(deputy) = &mut duty.deputy else { continue };
            if deputy.due().is_some_and(|due| due <= now) {
                deputy.tick(now, room(buffer), |socket| self.watch_network(bundle, socket));
            }
            next = next.into_iter().chain(deputy.due()).min();
        }
        next
    }

    /// Watches a socket of a bundle's network for one event.
    fn watch_network(&self, bundle: BundleId, socket: BorrowedFd<'_>) -> bool {
        watch_once(&self.epoll, socket, u64::from(bundle.0) | NETWORK).is_ok()
    }
}

/// The time left until `due`.
fn until(due: Instant) -> Timespec {
    let left = due.saturating_duration_since(Instant::now());
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
}

/// The buffer for packets, allocated when first needed.
fn room(buffer: &mut Vec<u8>) -> &mut [u8] {
    if buffer.is_empty() {
        buffer.resize(RECEIVE_BYTES, 0);
    }
    buffer
}

pub(crate) fn make_eventfd() -> Result<Descriptor, Errno> {
    Descriptor::make(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
}

fn token(bundle: BundleId) -> epoll::EventData {
    epoll::EventData::new_u64(bundle.0.into())
}

/// Address space that a thread needs beside its stack: the standard library's signal stack and the C library's guard pages.
const BESIDE_STACK_BYTES: usize = 256 << 10;

/// Starts a thread with all signals blocked: the program's handlers run in the program's threads.
///
/// Checks for address space first: the standard library aborts the process if a started thread gets no memory for its signal stack.
pub(crate) fn spawn_without_signals(
    name: &str,
    stack_bytes: usize,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    has_address_space(stack_bytes.saturating_add(BESIDE_STACK_BYTES))?;
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let started = std::thread::Builder::new().name(name.into()).stack_size(stack_bytes).spawn(run);
    // Cannot fail: this mask was in force a moment ago.
    let _ = before.thread_set_mask();
    started
}
