//! A bundle's network: a UDP socket under its network interface, and when it is looked at.

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

/// Runs of packets taken in one turn.
const RUNS_MOST: u32 = 4;

/// For so long after something was heard the socket is looked at on every turn.
const HOT: Duration = Duration::from_micros(100);

/// The helper watches only after so long: a stream has gaps, each of which would wake it once.
const QUIET: Duration = Duration::from_millis(10);

/// Turns between two looks when nothing was heard for longer.
const SELDOM: u32 = 64;

/// And while messages come from processes of the same host.
const SELDOM_BUSY: u32 = 256;

/// And while an answer is waited for from one of them: the time of so many turns is accounted for at once.
const PART: u32 = 128;

/// Looks without such a message after which every turn is the network's again.
const STILL: u32 = 2;

/// Looks without such a message after which memory is not busy, whatever is waited for.
const STILL_LONG: u32 = 256;

/// Looks in a row that find something after which acknowledgements are sent all the same.
const ACKS_WAIT: u32 = 8;

/// Looks in a row, each of which may have left packets unread, in which nobody is taken for silent.
const UNFINISHED_MOST: u32 = 16;

/// Looks between two checks of who waits for something from which host: some milliseconds.
const WATCH_EVERY: u32 = 1 << 12;

/// Bytes of a stream that may wait here, at most. Less if the kernel keeps less than half of it for us, for half of it may be under
/// way: then packets would be lost.
const WINDOW_MOST: usize = 1 << 20;

thread_local! {
    /// Where packets are received. The bundles of a thread share one: only one of them is polled at a time.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; RECEIVE_BYTES].into());
}

/// How closely the socket is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attention {
    /// Nothing is under way: the helper says when something comes.
    Asleep,
    /// Every [`SELDOM`] turns, or [`SELDOM_BUSY`].
    Seldom,
    /// On every turn.
    Hot,
}

/// What a bundle's settings say of its network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetSettings {
    /// How long a peer may be silent. Goes before what the environment says.
    pub suspicion: Option<Duration>,
    /// How long an exit of the process waits for what was sent to be acknowledged.
    pub linger: Duration,
    /// What checksums cover. Goes before what the environment says.
    pub integrity: Option<Integrity>,
}

/// A bundle's network.
#[derive(Debug)]
pub(crate) struct Net {
    sessions: HostSessions<UdpNi>,
    /// Messages that had come from processes of this host at the last look, and looks since that changed.
    local_work: u32,
    still: u32,
    shares: Shares,
    attention: Attention,
    heard_at: Time,
    /// When the deputy was last told that we look.
    wound_at: Cell<Time>,
    /// When the bundle last woke up, or began to look at the network again.
    up_at: Cell<Time>,
    /// A sleep of the bundle has ended, and it may sleep again at once: whoever sleeps says so when it gets up.
    is_drowsy: Cell<bool>,
    looks: u32,
    /// Looks since one found nothing.
    streak: u32,
    /// Runs that the next look takes at the most, without asking whether there is one more.
    allowance: u32,
    spin: Spin,
    /// As long as this is here, the process waits for the interface when it exits.
    _leaving: Arc<Visitor<Interface>>,
    /// There is a helper to say when something comes.
    has_helper: bool,
    /// It watches now. Not while we look ourselves: the kernel would have to ask for each packet whether to wake it.
    is_watched: bool,
    /// It has told, and does not watch any more until it is asked again.
    is_spent: bool,
    /// Looks in a row after which more may wait, and in which nothing was said to be late.
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

    /// Where other hosts reach this bundle.
    pub fn address(&self) -> HostAddress {
        self.sessions.ni().borrow_mut().link().address()
    }

    /// Replaces addresses that this host has lost by those that it has now.
    pub fn renew_address(&mut self) {
        self.sessions.ni().borrow_mut().link_mut().renew();
    }

    /// A deputy for the times in which the program does not poll.
    ///
    /// # Errors
    /// If the kernel gives no descriptor.
    pub fn deputy(&self, signals: &Arc<Signals>) -> Result<Deputy, Errno> {
        let switch = Arc::new(Switch::new()?);
        let ni = self.sessions.ni();
        ni.borrow_mut().link_mut().set_switch(switch.clone());
        Ok(Deputy::new(ni.visitor(), signals.clone(), switch))
    }

    /// Has the helper watch from the beginning: who is called before the program polls for the first time is to answer.
    pub fn watch_at_first(&mut self, watch: impl FnMut(BorrowedFd<'_>) -> bool) {
        self.is_watched = true;
        self.sessions.ni().borrow_mut().link_mut().set_watched(true);
        if !self.for_sockets(watch) {
            self.do_without_helper();
        }
    }

    /// A count of the polls until the next look, which others set to zero.
    pub fn turns(&self) -> Arc<AtomicU32> {
        self.sessions.ni().borrow_mut().turns()
    }

    /// Calls what a name is of, on another host.
    pub fn call(&mut self, core: &mut Core, call: Call) {
        self.sessions.call(core, call);
        self.attention = Attention::Hot;
    }

    /// A session was cut off here: its host hears why.
    pub fn close(&mut self, session: SessionId, reason: Reason) {
        self.sessions.close(session, reason);
        // What tells the host may have to be said again while the program computes.
        self.sessions.ni().borrow_mut().link().notice();
    }

    /// How the channels of sessions stand.
    pub fn report_into(&self, report: &mut Report) {
        self.sessions.report_into(report);
        report.note_congestion();
    }

    /// The helper says that something came.
    pub fn wake(&mut self) {
        self.is_spent = true;
        self.shares.close();
        self.attention = Attention::Hot;
        let mut ni = self.sessions.ni().borrow_mut();
        ni.link_mut().look_at_all();
        ni.link().notice();
        self.heard_at = ni.link().now();
    }

    /// The bundle's sleep has ended, maybe for a moment only.
    pub fn has_slept(&self) {
        self.up_at.set(self.sessions.ni().borrow_mut().link().now());
        self.is_drowsy.set(true);
    }

    /// The bundle has slept. Nobody watches its sockets now but a deputy that does not rest.
    pub fn get_up(&self) {
        let ni = self.sessions.ni().borrow_mut();
        let now = ni.link().now();
        self.up_at.set(now);
        self.is_drowsy.set(false);
        if ni.link().notice() {
            self.wound_at.set(now);
        }
    }

    /// Looks for packets and hands over what they bring.
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
        // Before any handler runs, which may compute.
        if now.since(self.wound_at.get()) >= WIND_EVERY {
            let ni = self.sessions.ni().borrow_mut();
            // A bundle that slept, and found nothing, winds when it gets up. So its helper may sleep on.
            if found || ni.has_events() || !self.is_drowsy.get() {
                self.wound_at.set(now);
                ni.link().wind();
            }
        }
        let is_readable = self.sessions.take_events(core, sink);
        let mut work = if is_readable { core.poll(budget, sink) } else { 0 };
        work += self.sessions.take_unreliable(core, budget, sink);
        match found && self.streak < ACKS_WAIT {
            // Acknowledgements wait: the program may have more to say at once.
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

    /// Whether an answer is waited for through memory, as far as it matters: other ones came lately. Just behind one the program has not asked
    /// again yet.
    #[inline]
    fn memory_waits(&self, core: &Core) -> bool {
        self.still < STILL_LONG && ((self.still == 0 && self.shares.are_open()) || core.awaits_hot())
    }

    /// Whether memory is to go on before the network is looked at, which is its own to say if it has something to send or to tell.
    fn is_memorys_turn(&mut self) -> bool {
        let ni = self.sessions.ni().borrow_mut();
        let is_its_turn = self.shares.is_memorys_turn(ni.link().now(), self.still == 0, ni.link().sends());
        is_its_turn && !ni.has_unsent() && !ni.has_events()
    }

    /// Sends what waits, as far as the link takes it. Says whether nothing waits any more.
    pub fn flush(&mut self) -> bool {
        let mut ni = self.sessions.ni().borrow_mut();
        ni.flush();
        ni.has_sent_all()
    }

    /// Whether the program closed all sockets by their numbers, so that nothing comes or goes any more.
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

    /// Whether other hosts have said that they have all that was sent.
    pub fn is_acknowledged(&self) -> bool {
        self.sessions.ni().borrow_mut().is_acknowledged()
    }

    /// Sends what waits, and makes ready for the bundle to sleep. False if the link takes no more now.
    pub fn lie_down(&mut self, core: &mut Core) -> bool {
        self.sessions.close_rests(core);
        let may_sleep = self.is_idle(core) || {
            let mut ni = self.sessions.ni().borrow_mut();
            ni.flush();
            !ni.has_unsent()
        };
        // Nobody watches while the bundle is awake again, until a look has settled that.
        self.attention = Attention::Seldom;
        may_sleep
    }

    /// The helper watches no more: `forget` is called for each socket that it may watch. In one use of the network interface,
    /// so that the deputy does not ask for a word in between.
    pub fn unwatch(&mut self, forget: impl FnMut(BorrowedFd<'_>)) {
        let mut ni = self.sessions.ni().borrow_mut();
        let by_deputy = ni.link_mut().was_watched_by_deputy();
        if std::mem::take(&mut self.is_watched) || by_deputy {
            ni.link().sockets().for_each(forget);
        }
    }

    /// How long until something is due, if anything is.
    pub fn until_due(&self) -> Option<Duration> {
        let ni = self.sessions.ni().borrow_mut();
        ni.next_time().map(|at| at.since(ni.link().now()))
    }

    /// There is nobody to watch.
    pub fn do_without_helper(&mut self) {
        self.has_helper = false;
        self.attention = Attention::Seldom;
    }

    /// Calls `run` for each socket until one says no. Says whether none did.
    pub fn for_sockets(&self, run: impl FnMut(BorrowedFd<'_>) -> bool) -> bool {
        self.sessions.ni().borrow_mut().link().sockets().all(run)
    }

    /// Another number if sockets were made since.
    pub fn sockets_made(&self) -> u32 {
        self.sessions.ni().borrow_mut().link().made()
    }

    fn has_work(&self) -> bool {
        let ni = self.sessions.ni().borrow_mut();
        ni.has_unsent() || ni.has_events() || ni.next_time().is_some() || self.sessions.has_unreliable()
    }

    /// Takes in what came, and does what is due. Says whether something came, and the time.
    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> (bool, Time) {
        let ni = &mut *self.sessions.ni().borrow_mut();
        if self.attention != Attention::Hot {
            ni.link_mut().look_everywhere();
        }
        let mut runs = 0;
        let is_hot = self.attention == Attention::Hot;
        let mut tries = self.spin.begin(is_hot && self.still >= STILL, ni.link().sends());
        // One only if the last look found nothing: whoever waits for it should have it before another call is made. Else as many as the last
        // look found, or one more if that took all that it might: between the runs of a stream hardly a call finds nothing.
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

    /// How closely to look from now on, and whether the helper is to watch, if that changes.
    #[inline]
    fn settle_down(&mut self, core: &Core, now: Time) -> Option<bool> {
        let silence = now.since(self.heard_at);
        // A bundle that just woke up looks itself for a while: it often sends now, and the answer comes soon.
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

    /// Whether nothing is under way, and nothing is waited for.
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
    /// Says goodbye, so that nobody waits for us.
    fn drop(&mut self) {
        self.sessions.say_goodbye();
    }
}

/// What a look brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    /// Messages taken.
    pub work: u32,
    /// The helper is to watch from now on, or not any more.
    pub watch: Option<bool>,
    /// Polls until the next look, if nothing happens before.
    pub turns: u32,
}
