//! A bundle's network: a network interface over a UDP socket, and the policy of when to poll it.

use super::deputy::{Deputy, WIND_EVERY};
use super::leaving;
use super::shared::{Interface, UdpNi, Users};
use super::shares::Shares;
use super::spin::Spin;
use crate::paths::{Core, Outlet};
use crate::watch::Signals;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::sync::Arc;
use std::time::Duration;
use weft_core::ni::{Handle, HostSessions, Link, Ni, Secrets};
use weft_core::{Call, Report, SessionId, Sink};
use weft_link::address::Wanted;
use weft_link::take_run;
use weft_link::NetworkError;
use weft_link::RECEIVE_BYTES;
use weft_link::{Switch, UdpLink, PACKET_MOST};
use weft_shm::biased::Visitor;
use weft_transport::{Settings, Time};
use weft_wire::packet::Integrity;
use weft_wire::{Epoch, HostAddress, Reason};

/// Largest number of runs of packets taken in one turn.
const RUNS_MOST: u32 = 4;

/// For this long after a packet arrived, the socket is polled on every turn.
const HOT: Duration = Duration::from_micros(100);

/// The helper watches the socket only after this much silence. A stream has gaps, each of which would wake the helper once.
const QUIET: Duration = Duration::from_millis(10);

/// Turns between two polls of the socket after a longer silence.
const SELDOM: u32 = 64;

/// The same while messages come from processes of the same host.
const SELDOM_BUSY: u32 = 256;

/// The same while an answer from a process of the same host is pending. The time of this many turns is accounted for at once.
const PART: u32 = 128;

/// After this many polls of the socket without a message through memory, every turn polls the socket again.
const STILL: u32 = 2;

/// After this many polls of the socket without a message through memory, memory counts as idle, even if an answer is pending.
const STILL_LONG: u32 = 256;

/// After this many polls in a row that found packets, acknowledgements are delayed no longer.
const ACKS_WAIT: u32 = 8;

/// While polls leave packets unread, up to this many in a row, no peer is declared silent.
const UNFINISHED_MOST: u32 = 16;

/// Polls of the socket between two checks of which peers are waited for: some milliseconds.
const WATCH_EVERY: u32 = 1 << 12;

/// Largest window of a stream, in bytes. It is smaller if the kernel's receive buffer holds less than half of it: half the window
/// may be under way at once, and packets would be lost.
const WINDOW_MOST: usize = 1 << 20;

thread_local! {
    /// The receive buffer. The bundles of a thread share one, because only one of them is polled at a time.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; RECEIVE_BYTES].into());
}

/// How often the socket is polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attention {
    /// Nothing is under way. The helper reports when something arrives.
    Asleep,
    /// Every [`SELDOM`] turns, or [`SELDOM_BUSY`].
    Seldom,
    /// On every turn.
    Hot,
}

/// A bundle's settings for its network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetSettings {
    /// How long a peer may be silent. Overrides the environment.
    pub suspicion: Option<Duration>,
    /// How long an exit of the process waits for acknowledgements.
    pub linger: Duration,
    /// What checksums cover. Overrides the environment.
    pub integrity: Option<Integrity>,
}

/// A bundle's network.
#[derive(Debug)]
pub(crate) struct Net {
    sessions: HostSessions<UdpNi>,
    /// Messages that had come from processes of this host at the last poll of the socket. `still` counts the polls since that
    /// changed.
    local_work: u32,
    still: u32,
    shares: Shares,
    attention: Attention,
    heard_at: Time,
    /// When the deputy's switch was last rewound.
    wound_at: Cell<Time>,
    /// When the bundle last woke up, or began to poll the network again.
    up_at: Cell<Time>,
    /// A sleep of the bundle has ended, and it may sleep again at once. [`Net::get_up`] is called if it stays up.
    is_drowsy: Cell<bool>,
    looks: u32,
    /// Polls of the socket since one found nothing.
    streak: u32,
    /// Largest number of runs that the next poll of the socket takes. It does not check for one more.
    allowance: u32,
    spin: Spin,
    /// While this exists, the process waits for the interface when it exits.
    _leaving: Arc<Visitor<Interface>>,
    /// There is a helper that can watch the sockets.
    has_helper: bool,
    /// The helper watches now. Not while we poll ourselves, because then the kernel would check for each packet whether to wake the
    /// helper.
    is_watched: bool,
    /// The helper's one-shot watch has fired, and must be armed again.
    is_spent: bool,
    /// Polls in a row that may have left packets unread, and so checked no peer's silence.
    unfinished: u32,
}

impl Net {
    /// A network interface for a bundle of this node on sockets of its own.
    ///
    /// # Errors
    /// Those of [`UdpLink::open`].
    pub fn new(
        wanted: &Wanted,
        epoch: Epoch,
        secrets: Secrets,
        users: Users,
        has_helper: bool,
        chosen: NetSettings,
    ) -> Result<Net, NetworkError> {
        let link = UdpLink::open(wanted)?;
        let window = link.receive_bytes().min(WINDOW_MOST) as u32;
        let send_most = WINDOW_MOST as u32;
        let default = Settings::default();
        let suspicion = chosen.suspicion.or(wanted.suspicion).unwrap_or(default.suspicion);
        let settings = Settings {
            suspicion,
            window,
            send_most,
            packet_most: PACKET_MOST,
            congestion: wanted.congestion,
            integrity: chosen.integrity.unwrap_or(wanted.integrity),
            ..default
        };
        let ni = UdpNi::new(Ni::new(link, epoch, settings, secrets), users);
        Ok(Net {
            _leaving: leaving::wait_at_exit(ni.visitor(), chosen.linger),
            local_work: 0,
            still: STILL_LONG,
            shares: Shares::default(),
            sessions: HostSessions::new(ni),
            attention: Attention::Seldom,
            heard_at: Time::default(),
            wound_at: Cell::default(),
            up_at: Cell::default(),
            is_drowsy: Cell::default(),
            looks: 0,
            streak: 0,
            allowance: 1,
            spin: Spin::default(),
            has_helper,
            is_watched: false,
            is_spent: false,
            unfinished: 0,
        })
    }

    /// The address at which other hosts reach this bundle.
    pub fn address(&self) -> HostAddress {
        self.sessions.ni().borrow_mut().link().address()
    }

    /// Replaces addresses that this host has lost by those that it has now.
    pub fn renew_address(&mut self) {
        self.sessions.ni().borrow_mut().link_mut().renew();
    }

    /// Makes the deputy for the time when the program does not poll.
    ///
    /// # Errors
    /// If the kernel gives no descriptor.
    pub fn deputy(&self, signals: &Arc<Signals>) -> Result<Deputy, Errno> {
        let switch = Arc::new(Switch::new()?);
        let ni = self.sessions.ni();
        ni.borrow_mut().link_mut().set_switch(switch.clone());
        Ok(Deputy::new(ni.visitor(), signals.clone(), switch))
    }

    /// Has the helper watch from the beginning: calls that come before the program's first poll must be answered.
    pub fn watch_at_first(&mut self, watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        self.is_watched = true;
        self.sessions.ni().borrow_mut().link_mut().set_watched(true);
        if !self.for_sockets(watch) {
            self.do_without_helper();
        }
    }

    /// The number of polls until the socket is polled next. Others set it to zero.
    pub fn turns(&self) -> Arc<AtomicU32> {
        self.sessions.ni().borrow_mut().turns()
    }

    /// Calls an endpoint on another host.
    pub fn call(&mut self, core: &mut Core, call: Call) {
        self.sessions.call(core, call);
        self.attention = Attention::Hot;
    }

    /// A session was cut off here: tells the other host why.
    pub fn close(&mut self, session: SessionId, reason: Reason) {
        self.sessions.close(session, reason);
        // The deputy may have to retransmit this while the program computes.
        self.sessions.ni().borrow_mut().link().notice();
    }

    /// Reports the state of the channels.
    pub fn report_into(&self, report: &mut Report) {
        self.sessions.report_into(report);
        report.note_congestion();
    }

    /// The helper reports that packets arrived.
    pub fn wake(&mut self) {
        self.is_spent = true;
        self.shares.close();
        self.attention = Attention::Hot;
        let mut ni = self.sessions.ni().borrow_mut();
        ni.link_mut().look_at_all();
        ni.link().notice();
        self.heard_at = ni.link().now();
    }

    /// The bundle's sleep has ended, perhaps only briefly.
    pub fn has_slept(&self) {
        self.up_at.set(self.sessions.ni().borrow_mut().link().now());
        self.is_drowsy.set(true);
    }

    /// The bundle has slept. Now only the deputy watches its sockets, so the deputy must not rest.
    pub fn get_up(&self) {
        let ni = self.sessions.ni().borrow_mut();
        let now = ni.link().now();
        self.up_at.set(now);
        self.is_drowsy.set(false);
        if ni.link().notice() {
            self.wound_at.set(now);
        }
    }

    /// Polls for packets and hands over their messages.
    #[inline]
    pub fn look<S: Sink<Outlet>>(&mut self, core: &mut Core, budget: u32, sink: &mut S) -> Looked {
        if self.attention == Attention::Asleep && !self.has_work() {
            return Looked { work: 0, watch: None, turns: SELDOM };
        }
        let local_work = core.hot_work();
        self.still = if self.local_work == local_work { self.still.saturating_add(1) } else { 0 };
        self.local_work = local_work;
        if self.attention == Attention::Hot && self.memory_waits(core) {
            if self.is_memorys_turn() {
                return Looked { work: 0, watch: None, turns: PART };
            }
        } else {
            self.shares.close();
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks % WATCH_EVERY == 0 {
            self.sessions.keep_watch(core);
        }
        // A bundle in a thread-local variable may be dropped after the buffer.
        let received = BUFFER.try_with(|buffer| self.receive(&mut buffer.borrow_mut()));
        let (found, now) = received.unwrap_or_else(|_| self.receive(&mut vec![0; RECEIVE_BYTES]));
        // Before any handler runs, because a handler may compute for long.
        if now.since(self.wound_at.get()) >= WIND_EVERY {
            let ni = self.sessions.ni().borrow_mut();
            // A bundle that slept and found nothing rewinds the switch when it gets up. So the helper can stay asleep.
            if found || ni.has_events() || !self.is_drowsy.get() {
                self.wound_at.set(now);
                ni.link().wind();
            }
        }
        let is_readable = self.sessions.take_events(core, sink);
        let mut work = if is_readable { core.poll(budget, sink) } else { 0 };
        work += self.sessions.take_unreliable(core, budget, sink);
        match found && self.streak < ACKS_WAIT {
            // Acknowledgements wait a little: the program may send something that carries them.
            true => self.sessions.ni().borrow_mut().flush_records(),
            false => self.sessions.ni().borrow_mut().flush(),
        }
        let watch = self.settle_down(core, now);
        let is_hot = self.attention == Attention::Hot && self.still >= STILL;
        let is_shared = self.shares.are_open();
        let ni = self.sessions.ni().borrow_mut();
        if is_shared && (found || work > 0) {
            self.shares.end_networks_turn(ni.link().now(), ni.link().sends());
        }
        let turns = match self.still {
            _ if is_hot || ni.has_unsent() => 0,
            _ if is_shared => PART,
            0 => SELDOM_BUSY,
            _ => SELDOM,
        };
        Looked { work, watch, turns }
    }

    /// Whether an answer through memory is pending and likely to come soon, because others came recently. Right after an answer the
    /// program may not have sent its next request yet, so that counts too.
    #[inline]
    fn memory_waits(&self, core: &Core) -> bool {
        self.still < STILL_LONG && ((self.still == 0 && self.shares.are_open()) || core.awaits_hot())
    }

    /// Whether to go on with memory before polling the network. Not if the network has packets to send or events to deliver.
    fn is_memorys_turn(&mut self) -> bool {
        let ni = self.sessions.ni().borrow_mut();
        let is_its_turn = self.shares.is_memorys_turn(ni.link().now(), self.still == 0, ni.link().sends());
        is_its_turn && !ni.has_unsent() && !ni.has_events()
    }

    /// Sends queued packets, as far as the link takes them. Returns whether none are left.
    pub fn flush(&mut self) -> bool {
        let mut ni = self.sessions.ni().borrow_mut();
        ni.flush();
        ni.has_sent_all()
    }

    /// Whether the program closed all sockets by their numbers, so that the network is unusable.
    pub fn has_lost_its_sockets(&self) -> bool {
        self.sessions.ni().borrow_mut().link().has_lost_its_sockets()
    }

    /// Tells other hosts that the bundle is gone. Returns the number of messages that may be lost.
    pub fn say_goodbye(&mut self) -> u64 {
        self.sessions.say_goodbye()
    }

    /// How often something was sent. Wraps around.
    pub fn sends(&self) -> u32 {
        self.sessions.ni().borrow_mut().link().sends()
    }

    /// Whether other hosts have acknowledged everything that was sent.
    pub fn is_acknowledged(&self) -> bool {
        self.sessions.ni().borrow_mut().is_acknowledged()
    }

    /// Sends queued packets, and prepares for the bundle to sleep. False if the link takes no more now.
    pub fn lie_down(&mut self, core: &mut Core) -> bool {
        self.sessions.close_rests(core);
        let may_sleep = self.is_idle(core) || {
            let mut ni = self.sessions.ni().borrow_mut();
            ni.flush();
            !ni.has_unsent()
        };
        // When the bundle is awake again, nobody watches the sockets until a poll has decided that.
        self.attention = Attention::Seldom;
        may_sleep
    }

    /// Ends the helper's watch: calls `forget` for each socket that it may watch. Does so in one use of the network interface, so
    /// that the deputy cannot have a socket watched in between.
    pub fn unwatch(&mut self, forget: impl FnMut(BorrowedFd<'_>)) {
        let mut ni = self.sessions.ni().borrow_mut();
        let by_deputy = ni.link_mut().was_watched_by_deputy();
        if std::mem::take(&mut self.is_watched) || by_deputy {
            ni.link().sockets().for_each(forget);
        }
    }

    /// The time until the next deadline, if there is one.
    pub fn until_due(&self) -> Option<Duration> {
        let ni = self.sessions.ni().borrow_mut();
        ni.next_time().map(|at| at.since(ni.link().now()))
    }

    /// The helper cannot watch.
    pub fn do_without_helper(&mut self) {
        self.has_helper = false;
        self.attention = Attention::Seldom;
    }

    /// Calls `run` for each socket until it returns false. Returns whether it never did.
    pub fn for_sockets(&self, run: impl FnMut(BorrowedFd<'_>) -> bool) -> bool {
        self.sessions.ni().borrow_mut().link().sockets().all(run)
    }

    /// A number that changes whenever sockets are made.
    pub fn sockets_made(&self) -> u32 {
        self.sessions.ni().borrow_mut().link().made()
    }

    fn has_work(&self) -> bool {
        let ni = self.sessions.ni().borrow_mut();
        ni.has_unsent() || ni.has_events() || ni.next_time().is_some() || self.sessions.has_unreliable()
    }

    /// Takes in packets, and runs the timers. Returns whether packets came, and the time.
    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> (bool, Time) {
        let ni = &mut *self.sessions.ni().borrow_mut();
        if self.attention != Attention::Hot {
            ni.link_mut().look_everywhere();
        }
        let mut runs = 0;
        let is_hot = self.attention == Attention::Hot;
        let mut tries = self.spin.begin(is_hot && self.still >= STILL, ni.link().sends());
        // Only one run if the last poll found nothing: a waiting program should get it before another system call is made.
        // Otherwise as many as the last poll found, or one more if that took all it was allowed. In a stream, hardly any call then
        // finds nothing.
        let most = self.allowance;
        while runs < most {
            match take_run(ni, buffer) {
                Some(heard_at) => (runs, self.heard_at) = (runs + 1, heard_at),
                None if tries > 1 => tries -= 1,
                None => break,
            }
        }
        self.streak = if runs > 0 { self.streak.saturating_add(1) } else { 0 };
        self.allowance = if runs == most { (most + 1).min(RUNS_MOST) } else { runs.max(1) };
        match runs {
            0 => self.spin.missed(!is_hot || ni.has_unsent(), || ni.link().now()),
            _ => self.spin.found(self.heard_at),
        }
        let now = self.spin.now();
        if runs < most {
            ni.link_mut().found_nothing(now);
        }
        if runs > 0 {
            self.attention = Attention::Hot;
        }
        self.unfinished = if runs == most { self.unfinished + 1 } else { 0 };
        // A host that seems silent or gone may have answered in packets that are still unread.
        let may_be_late = self.unfinished == 0 || self.unfinished > UNFINISHED_MOST;
        if may_be_late && ni.link().has_words() {
            ni.take_refusals(now);
        }
        if may_be_late && ni.next_time().is_some_and(|at| at <= now) {
            self.unfinished = 0;
            ni.on_time(now);
        }
        (runs > 0, now)
    }

    /// Decides how often to poll from now on, and whether the helper should watch, if that changes.
    #[inline]
    fn settle_down(&mut self, core: &Core, now: Time) -> Option<bool> {
        let silence = now.since(self.heard_at);
        // A bundle that just woke up polls itself for a while: it often sends now, and the answer comes soon.
        let is_quiet = self.has_helper && silence > QUIET && now.since(self.up_at.get()) > QUIET;
        if self.attention != Attention::Asleep && silence > HOT {
            self.attention = if is_quiet && self.is_idle(core) { Attention::Asleep } else { Attention::Seldom };
        }
        let watch = is_quiet && self.attention != Attention::Hot;
        let mut ni = self.sessions.ni().borrow_mut();
        self.is_watched |= ni.link_mut().was_watched_by_deputy();
        let is_new = ni.link_mut().set_watched(watch);
        drop(ni);
        if watch && (std::mem::take(&mut self.is_spent) || is_new) {
            self.is_watched = false;
        }
        let is_other = self.is_watched != watch;
        self.is_watched |= watch;
        is_other.then_some(watch)
    }

    /// Whether nothing is under way and no answer is pending.
    fn is_idle(&mut self, core: &Core) -> bool {
        self.sessions.ni().borrow_mut().drop_stale_timers();
        if self.has_work() {
            return false;
        }
        self.sessions.keep_watch(core);
        self.sessions.ni().borrow_mut().flush();
        !self.has_work()
    }
}

impl Drop for Net {
    /// Says goodbye, so that no peer waits for us.
    fn drop(&mut self) {
        self.sessions.say_goodbye();
    }
}

/// The result of a poll of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    /// Messages taken.
    pub work: u32,
    /// The helper should watch from now on, or no longer.
    pub watch: Option<bool>,
    /// Polls of the bundle until the next one, if nothing happens before.
    pub turns: u32,
}
