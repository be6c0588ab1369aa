//! Waiting: a wait spins for as long as spinning has paid off recently, then sleeps until something arrives.
//!
//! A wake-up costs a hundred times as much as a message, so a wait begins by polling. How long it spins is learned from recent
//! waits. If recent waits ended soon, it spins for about as long as a wake-up takes, which costs at most twice the best choice.
//! Otherwise it spins for a moment only. While it spins, it yields the core to other threads.

use super::{Bundle, Threads, LOOK_EVERY_SETUP, REST_AFTER};
use crate::node::Error;
use crate::watch::Signals;
use crate::watched::watch_once;
use nix::sys::signal::Signal;
use rustix::event::{epoll, poll, PollFd, PollFlags, Timespec};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_core::{Endpoint, EventMask, Tally};
use weft_shm::Descriptor;

/// The longest time to spin: about the cost of falling asleep and waking up.
const SPIN_MOST: Duration = Duration::from_micros(50);

/// The shortest time to spin: every wait spins this long.
const SPIN_LEAST: Duration = Duration::from_micros(2);

/// A wait that ended within this time counts as short: spinning would have been better than sleeping.
const SOON: Duration = Duration::from_micros(100);

/// A wait spins long if at least this many of the last 16 waits were short.
const SOON_LEAST: u32 = 4;

/// Interval between two yields of the core while spinning.
pub(super) const YIELD_EVERY: Duration = Duration::from_micros(4);

/// If a yield takes longer than this, other threads want the core.
pub(super) const YIELD_LONG: Duration = Duration::from_micros(30);

/// After the core was found contended, this many waits do not spin long.
const CROWDED_WAITS: u32 = 16;

/// Largest number of sleeps that begin without a yield after yields that did not pay off.
const CROWDED_MOST: u32 = 1024;

/// If an answer takes longer than this, yielding did not pay off: a computing thread took its time slice.
const YIELD_FUTILE: Duration = Duration::from_millis(1);

/// A program that only polls yields the core this long after it may have woken a peer, then after twice the time, and so on.
const POLLED_FIRST: Duration = Duration::from_micros(20);

/// It stops yielding this long after it may have woken a peer.
const POLLED_LAST: Duration = Duration::from_millis(8);

/// Polls between two readings of the clock: as many as there are to a seldom turn.
const POLLS_PER_LOOK: u32 = LOOK_EVERY_SETUP;

/// Polls between arming and sleeping, even if spinning is switched off. The answer to the last message often arrives
/// within this time if its sender is still awake, and then neither side pays for a wake-up: this nearly halves round
/// trips between hosts that do not spin. More polls gain nothing.
const LAST_LOOKS: u32 = 5;

/// The longest sleep. It bounds the delay if a wake-up is lost: its sender was killed between the bell and the wake-up,
/// or the kernel's barrier did not reach it ([`weft_shm::barrier`]).
const SLEEP_MOST: Duration = Duration::from_millis(500);

/// The longest sleep where the kernel has no barrier: a peer that sends while we fall asleep may not see that it must
/// wake us.
const SLEEP_UNSURE: Duration = Duration::from_millis(1);

/// Time asleep after which a rest is due.
const REST_SLEPT: Duration = Duration::from_millis(300);

/// The longest sleep of calls that wait for something that may cause no wake-up.
pub(super) const NAP_MOST: Duration = Duration::from_millis(1);

/// The longest sleep of a call that has waited this long for something that may cause no wake-up. It grows with the time waited. So
/// waiting for a peer that is stopped for a minute costs only a few wakeups a second, and the delay until its next action is
/// noticed is at most an eighth of the time waited.
pub(super) fn patience(waited: Duration) -> Duration {
    (waited / 8).clamp(NAP_MOST, SLEEP_MOST)
}

/// Events taken from the epoll set at once. If there are more, the next wait returns them at once.
const EVENTS_MOST: usize = 8;

/// More polls than a wakeup for a message or two needs.
const POLLS_OF_A_MOMENT: u32 = 64;

/// The tag of the eventfd in the epoll set. It is not a signal: the bells tell who sent.
pub(super) const WAKER: u32 = 1 << 31;

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// This many messages were taken since the last wait. Their handlers have run.
    Messages(u32),
    /// Events came; [`Bundle::next_event`] returns them.
    Events,
    /// The time is up, or a [`Waker`] ended the wait.
    Nothing,
}

/// Ends a bundle's wait. Can be used from any thread.
///
/// ```
/// use weft::{Bundle, Node, Waited};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let waker = bundle.waker();
/// let thread = std::thread::spawn(move || waker.wake());
/// assert_eq!(bundle.wait(None), Waited::Nothing); // no message and no event: the thread woke it
/// thread.join().expect("it ended");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Waker(Arc<Signals>);

impl Waker {
    /// Ends the current wait, or the next one if there is none. Does not block. In a forked child it does nothing.
    pub fn wake(&self) {
        self.0.raise(Signals::NUDGE);
    }

    /// Wakes a thread that sleeps in the bundle's wait, without ending the wait.
    pub(super) fn ring(&self) {
        self.0.ring();
    }
}

impl<H: Threads> Bundle<H> {
    /// Waits until a message was taken or an event came, for at most `timeout` (`None`: no limit). Polls, so handlers
    /// run here.
    ///
    /// Spins first if recent waits were short, then sleeps without using a core until a sender wakes it. Events that an
    /// endpoint's [`EventMask`] leaves out do not end the wait. Each message and each event ends one wait: the current
    /// one, or the next if there is none.
    ///
    /// [`EventMask`]: crate::EventMask
    pub fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        self.expect_own();
        let since = self.sleeper.told.without_room();
        self.sleeper.is_nudged |= std::mem::take(&mut self.sleeper.kept_nudge);
        let waited = self.poll_a_few(since);
        if waited != Waited::Nothing {
            self.sleeper.habit.ended_after(Duration::ZERO);
            self.sleeper.told = self.core.state().tally();
            return waited;
        }
        let begin = Instant::now();
        loop {
            let left = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_sub(begin.elapsed()));
            let waited = self.doze(begin, since, left);
            let is_over = timeout.is_some_and(|timeout| begin.elapsed() >= timeout);
            if waited != Waited::Nothing || is_over || std::mem::take(&mut self.sleeper.is_nudged) {
                self.home.get_up();
                self.sleeper.told = self.core.state().tally();
                return waited;
            }
        }
    }

    /// Runs handlers for ever, and sleeps while nothing comes. For servers that do all their work in handlers. Drops
    /// events, because nobody could take them; [`Bundle::on_return`] still gets returned messages.
    pub fn serve(&mut self) -> ! {
        loop {
            self.serve_until(|_| false);
        }
    }

    /// Runs handlers until `done` returns true, and sleeps while nothing comes. Calls `done` first, and again after
    /// messages, after events, and when a [`Waker`] was used. Drops the events that `done` does not take. Blocks
    /// without limit.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::sync::Arc;
    /// use weft::{Bundle, Node};
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let door = bundle.endpoint_with_random_key()?;
    /// bundle.on(door, 1, |m| _ = m.reply(2, m.args(), b"welcome"))?;
    ///
    /// let (is_over, waker) = (Arc::new(AtomicBool::new(false)), bundle.waker());
    /// let ends = is_over.clone();
    /// let other = std::thread::spawn(move || {
    ///     ends.store(true, Ordering::Release);
    ///     waker.wake();
    /// });
    /// bundle.serve_until(|_| is_over.load(Ordering::Acquire));
    /// other.join().expect("it ended");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve_until(&mut self, mut done: impl FnMut(&mut Bundle<H>) -> bool) {
        self.expect_own();
        while !done(self) {
            self.core.state_mut().drop_events();
            self.wait(None);
        }
    }

    /// Returns a handle with which other threads end this bundle's waits.
    pub fn waker(&self) -> Waker {
        Waker(self.signals.clone())
    }

    /// Sets which of an endpoint's events end a wait. The default is all of them.
    pub fn set_event_mask(&mut self, endpoint: Endpoint, mask: EventMask) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.core.state_mut().set_event_mask(endpoint, mask)?)
    }

    /// Sets the longest time that a wait spins before it sleeps. By default it is 50 µs while spinning pays off. With zero a wait
    /// polls a few times and then sleeps: this needs the least processor time, and each message costs a wakeup.
    pub fn set_spin_limit(&mut self, most: Duration) {
        self.sleeper.spin_most = Some(most);
    }

    /// Returns a descriptor that becomes readable when something comes for an [armed](Bundle::arm) bundle. Pass it to
    /// `epoll`, `poll` or `select`; don't read or write it. It stays the same for the bundle's life.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.expect_own();
        self.sleeper.set.as_fd()
    }

    /// Arms [`Bundle::wait_fd`]. Does not block.
    ///
    /// Returns false if there was something to do: messages may have been taken, events may have come. Handle them and
    /// call again.
    ///
    /// Returns true if the bundle is armed. Then don't poll until the descriptor is readable or [`Bundle::wait_limit`] has passed.
    /// There is a limit because nobody runs the protocol's timers meanwhile.
    pub fn arm(&mut self) -> bool {
        self.expect_own();
        // Take pending events out of the epoll set, so that the descriptor becomes unreadable.
        let told = listen(&self.sleeper.set, Duration::ZERO);
        self.get_up(told);
        self.home.get_up();
        let since = std::mem::replace(&mut self.sleeper.told, self.core.state().tally()).without_room();
        let is_armed = self.lie_down(since) == (Waited::Nothing, true);
        // The deputy may have begun to rest, and then nobody watches our sockets: put it back to work.
        self.home.get_up();
        let was_nudged = std::mem::take(&mut self.sleeper.is_nudged) | std::mem::take(&mut self.sleeper.kept_nudge);
        is_armed && !was_nudged
    }

    /// Arms the bundle so that the helper sends the process the signal with this number when something comes. This is
    /// U-Net's third way to receive, beside polling and waiting, for programs that compute. Returns false if there was
    /// something to do, as [`Bundle::arm`] does; then handle it and call again.
    ///
    /// The process gets the signal once; call this again to get another. The signal's handler must not call weft: let
    /// it set a flag. A signal may also arrive for a message that a poll has just taken, because senders ring after
    /// they publish. [`Bundle::wait_limit`] does not apply here, because the helper runs the protocol. Each signal
    /// costs 10 µs or more: a wake-up of the helper and the signal itself.
    ///
    /// # Errors
    /// If there is no such signal, or no helper that could send it.
    pub fn arm_signal(&mut self, signal: i32) -> Result<bool, Error> {
        let way_out = "pass the number of a signal that programs may use, such as SIGUSR1 or SIGIO";
        let signal = Signal::try_from(signal).map_err(|e| Error::system("cannot have that signal sent", e, way_out))?;
        if !self.arm() {
            return Ok(false);
        }
        self.home.send_when_readable(self.sleeper.set.as_fd(), signal)?;
        Ok(true)
    }

    /// Returns how long a program that armed the bundle may wait for its descriptor before it must poll.
    pub fn wait_limit(&self) -> Duration {
        self.expect_own();
        self.sleep_limit(NAP_MOST)
    }

    /// Like [`Bundle::wait_limit`]. While something waits for room, the limit is `for_room`, because nobody wakes us for that.
    pub(super) fn sleep_limit(&self, for_room: Duration) -> Duration {
        let mut most = SLEEP_MOST.min(self.home.until_due().unwrap_or(SLEEP_MOST));
        if let Some(left) = self.faces.memory.until_end() {
            most = most.min(left);
        }
        if self.waits_for_room() {
            most = most.min(for_room);
        }
        if !self.sleeper.is_sure {
            most = most.min(SLEEP_UNSURE);
        }
        most
    }

    /// Whether something is pending whose end causes no wakeup: room in a ring, or a peer that can be called again.
    pub(super) fn waits_for_room(&self) -> bool {
        self.core.state().has_unfinished() || self.home.has_retries()
    }

    /// Polls, and dozes if nothing comes. Room for a send ends it too, whatever the endpoints' masks say. Used by calls that a
    /// [`Waker`] does not end: a nudge during such a call ends the next wait. `begin` is the start of the current series of
    /// fruitless polls; while messages come, the clock is not read. `most` gives the longest sleep for the time since `begin`; a
    /// sleep never exceeds `left`.
    pub(super) fn nap(&mut self, begin: &mut Option<Instant>, most: fn(Duration) -> Duration, left: Duration) {
        let since = self.core.state().tally();
        if self.poll_a_few(since) != Waited::Nothing {
            return self.end_naps(begin.take());
        }
        self.sleeper.kept_nudge |= std::mem::take(&mut self.sleeper.is_nudged);
        let began = *begin.get_or_insert_with(Instant::now);
        if self.doze(began, since, most(began.elapsed()).min(left)) != Waited::Nothing {
            self.end_naps(begin.take());
        }
    }

    /// Ends a series of naps: tells the home that the bundle is up, if it may have slept.
    pub(super) fn end_naps(&self, begin: Option<Instant>) {
        if begin.is_some() {
            self.home.get_up();
        }
    }

    /// Spins for the rest of the wait's spinning time, then sleeps at most once. Returns what came since `since`. After the last
    /// doze the caller tells the home that the bundle is up.
    fn doze(&mut self, begin: Instant, since: Tally, most: Duration) -> Waited {
        let spin = self.sleeper.spin_after(begin.elapsed()).min(most);
        let dozed = Instant::now();
        let mut waited = self.spin(since, spin);
        let may_sleep = |waited| waited == Waited::Nothing && dozed.elapsed() < most;
        if may_sleep(waited) && self.may_give_way() {
            waited = self.give_way(since);
        }
        if may_sleep(waited) {
            let most = most.saturating_sub(dozed.elapsed());
            waited = self.sleep(since, most, patience(begin.elapsed()));
        }
        if waited != Waited::Nothing {
            self.sleeper.habit.ended_after(begin.elapsed());
        }
        waited
    }

    fn spin(&mut self, since: Tally, most: Duration) -> Waited {
        let begin = Instant::now();
        let mut yield_at = YIELD_EVERY;
        loop {
            let waited = self.poll_a_few(since);
            if waited != Waited::Nothing {
                return waited;
            }
            let now = begin.elapsed();
            if now >= most || self.sleeper.is_nudged {
                return Waited::Nothing;
            }
            if now >= yield_at {
                std::thread::yield_now();
                let after = begin.elapsed();
                if after.saturating_sub(now) > YIELD_LONG {
                    self.sleeper.habit.is_crowded();
                }
                yield_at = after + YIELD_EVERY;
            }
        }
    }

    /// Whether to yield the core before the next sleep: a peer may have been woken since the last time.
    pub(super) fn may_give_way(&mut self) -> bool {
        let wakes = self.wakes();
        std::mem::replace(&mut self.sleeper.wakes, wakes) != wakes && self.sleeper.courtesy.may_give_way()
    }

    /// How often something was done that may have woken a peer: it was woken here, or something went to another host.
    fn wakes(&self) -> u32 {
        self.home.sends().wrapping_add(weft_shm::wakes_by_this_thread())
    }

    /// While polls find nothing, yields the core from time to time after a peer may have been woken. The kernel often wakes a peer
    /// on the core of the thread that sent to it. A polling thread never sleeps, so the peer would have to wait until this thread's
    /// time slice ends.
    pub(super) fn give_way_while_polling(&mut self) {
        let wakes = self.wakes();
        let polled = &mut self.sleeper.polled;
        if std::mem::replace(&mut polled.wakes, wakes) != wakes {
            (polled.since, polled.next) = (Some(Instant::now()), POLLED_FIRST);
            return;
        }
        let Some(since) = polled.since else { return };
        let time = since.elapsed();
        if time > POLLED_LAST {
            polled.since = None;
        } else if time >= polled.next {
            polled.next *= 2;
            match polled.is_shared {
                true => polled.is_due = true,
                false => std::thread::yield_now(),
            }
        }
    }

    /// Yields the core, then polls. The kernel often wakes a peer on the core of the thread that sent to it. The peer then runs
    /// now, and answers before this thread goes to sleep.
    fn give_way(&mut self, since: Tally) -> Waited {
        let begin = Instant::now();
        std::thread::yield_now();
        let waited = self.poll_a_few(since);
        self.sleeper.courtesy.gave_way(begin.elapsed(), waited != Waited::Nothing);
        waited
    }

    /// Polls a few times without reading the clock; once if spinning is switched off.
    #[inline(always)]
    pub(super) fn poll_a_few(&mut self, since: Tally) -> Waited {
        let polls = if self.sleeper.spin_most == Some(Duration::ZERO) { 1 } else { POLLS_PER_LOOK };
        for _ in 0..polls {
            let (waited, _) = self.poll_once(since);
            if waited != Waited::Nothing {
                return waited;
            }
            std::hint::spin_loop();
        }
        Waited::Nothing
    }

    /// Polls. Returns what came since `since`, and whether the poll itself found nothing.
    #[inline(always)]
    fn poll_once(&mut self, since: Tally) -> (Waited, bool) {
        let taken = self.poll();
        (self.came(since), taken == 0)
    }

    /// Returns what came since `since`.
    #[inline(always)]
    pub(super) fn came(&self, since: Tally) -> Waited {
        let Tally { events, messages, room } = self.core.state().tally();
        match messages.wrapping_sub(since.messages) {
            0 if events != since.events || (since.room.is_some() && room != since.room) => Waited::Events,
            0 => Waited::Nothing,
            messages => Waited::Messages(messages as u32),
        }
    }

    /// Sleeps until something comes, then polls. Sleeps for at most `most`, or `for_room` if something waits for room.
    fn sleep(&mut self, since: Tally, most: Duration, for_room: Duration) -> Waited {
        let (waited, may_sleep) = self.lie_down(since);
        let mut told = 0;
        if may_sleep {
            let begin = Instant::now();
            // Before the limit is read: a deputy that misses the flag has finished by then, and its timers count.
            self.signals.set_waiting(true);
            let most = most.min(self.sleep_limit(for_room));
            told = listen(&self.sleeper.set, most);
            self.has_slept(begin.elapsed(), told);
        }
        self.get_up(told);
        if told == 0 && self.restless >= REST_AFTER {
            // Rest now, because nobody waits for an answer.
            self.poll_seldom();
        }
        match waited {
            Waited::Nothing => self.poll_once_or_twice(since),
            waited => waited,
        }
    }

    /// Notes a sleep, and the events that ended it.
    pub(super) fn has_slept(&mut self, slept: Duration, told: u32) {
        self.signals.set_waiting(false);
        self.home.has_slept();
        self.rests_after(slept);
        if told == 0 {
            // Find messages whose bell was lost.
            self.core.look_at_all();
        }
    }

    /// Polls after a sleep. The first poll may only collect the signals, so a second follows.
    pub(super) fn poll_once_or_twice(&mut self, since: Tally) -> Waited {
        match self.poll_once(since) {
            (Waited::Nothing, _) => self.poll_once(since).0,
            (waited, _) => waited,
        }
    }

    /// Counts the time asleep towards the next rest.
    fn rests_after(&mut self, slept: Duration) {
        let turns = u128::from(REST_AFTER) * slept.as_micros() / REST_SLEPT.as_micros();
        self.restless = self.restless.saturating_add(turns.try_into().unwrap_or(u32::MAX));
    }

    /// Prepares to sleep. Returns the result of the last polls, and whether the bundle may sleep now.
    pub(super) fn lie_down(&mut self, since: Tally) -> (Waited, bool) {
        if self.home.is_busy() || self.core.state().has_calls() {
            self.home.service(&mut self.core, &mut self.faces);
        }
        self.core.arm();
        self.home.arm();
        self.sleeper.is_sure = weft_shm::barrier::heavy();
        self.sleeper.took_word = false;
        let (mut waited, mut is_still) = self.poll_once(since);
        for _ in 1..LAST_LOOKS {
            if !is_still || waited != Waited::Nothing || self.sleeper.took_word {
                break;
            }
            (waited, is_still) = self.poll_once(since);
        }
        // Don't sleep after signals were taken, because the next poll acts on them, nor while a peer may not know that
        // it must ring.
        let may_sleep = is_still
            && waited == Waited::Nothing
            && !self.sleeper.took_word
            && self.core.all_ring()
            && !self.sleeper.is_nudged
            && self.home.lie_down(&mut self.core)
            && self.watch()
            && self.signals.lie_down();
        (waited, may_sleep)
    }

    /// Tells peers that they need not wake us. The next polls find what `told` reports.
    pub(super) fn get_up(&mut self, told: u32) {
        self.stop_sleeping(told);
        if told != 0 {
            // Before a handler runs: nobody watches the sockets now, and a handler may compute for long.
            self.home.get_up();
        }
    }

    /// The same for a brief moment, without telling the network. The deputy does not stand in for the bundle until it sleeps again,
    /// its sockets stay watched, and polls skip them.
    pub(super) fn get_up_for_a_moment(&mut self, told: u32) {
        self.stop_sleeping(told);
        let turns = self.net_turns.load(Ordering::Relaxed);
        if turns > 0 {
            self.net_turns.store(turns.max(POLLS_OF_A_MOMENT), Ordering::Relaxed);
        }
    }

    fn stop_sleeping(&mut self, told: u32) {
        if told & Signals::SOCKETS != 0 {
            self.sleeper.watches_sockets = false;
        }
        if told & Signals::DATAGRAMS != 0 {
            self.sleeper.watches_network = None;
        }
        self.signals.get_up();
        self.core.disarm();
        self.home.disarm();
        self.faces.memory.expire();
        if told & !WAKER != 0 {
            self.signals.raise(told & !WAKER);
        }
        if self.home.until_due().is_some_and(|left| left.is_zero()) {
            self.net_turns.store(0, Ordering::Relaxed);
        }
    }

    /// Watches again the sockets whose one-shot watch has fired. Returns false if one could not be watched.
    fn watch(&mut self) -> bool {
        let set = &self.sleeper.set;
        if !self.sleeper.watches_sockets && !self.home.is_stuck() {
            self.sleeper.watches_sockets = watch_once(set, self.home.sockets(), Signals::SOCKETS.into()).is_ok();
        }
        // Sockets that have not fired are still watched.
        let made = self.home.network_sockets_made();
        if self.sleeper.watches_network != Some(made) {
            let watches = self.home.for_network(|socket| watch_once(set, socket, Signals::DATAGRAMS.into()).is_ok());
            self.sleeper.watches_network = watches.then_some(made);
        }
        self.sleeper.watches_network.is_some()
    }
}

/// Waits on the epoll set for at most `most`. Returns the signals that came, with [`WAKER`] if a peer woke us; zero
/// after a timeout.
///
/// If the program closed the set by its number, this only sleeps briefly: the rings can still be polled, but messages are noticed
/// late.
pub(super) fn listen(set: &Descriptor, most: Duration) -> u32 {
    if !set.is_ours_lately() {
        std::thread::sleep(most.min(NAP_MOST));
        return 0;
    }
    let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
    let mut most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    let is_short = most.tv_sec == 0 && (1..1_000_000).contains(&most.tv_nsec);
    if is_short {
        // `epoll_wait` takes whole milliseconds. A more precise call exists only since Linux 5.11, so use `poll` first.
        let mut set = [PollFd::new(set, PollFlags::IN)];
        if !poll(&mut set, Some(&most)).is_ok_and(|ready| ready > 0) {
            return 0;
        }
        most.tv_nsec = 0;
    }
    match epoll::wait(set, &mut events, Some(&most)) {
        Ok((ready, _)) => ready.iter().fold(0, |told, event| told | event.data.u64() as u32),
        Err(_) => 0,
    }
}

/// The epoll set that a bundle sleeps on, and the statistics of its waits.
#[derive(Debug)]
pub(super) struct Sleeper {
    pub set: Arc<Descriptor>,
    pub habit: Habit,
    /// The program's limit on spinning, if it set one.
    pub spin_most: Option<Duration>,
    /// The epoll set watches the sockets of set-up and deaths.
    watches_sockets: bool,
    /// It watches the sockets of the network. The number tells how many had been made then.
    watches_network: Option<u32>,
    /// The last barrier took effect.
    is_sure: bool,
    /// The tally when the last wait ended.
    told: Tally,
    /// A waker ends the current wait.
    pub is_nudged: bool,
    /// A waker fired during a call that it does not end; it ends the next wait.
    pub kept_nudge: bool,
    /// A poll took signals of other threads.
    pub took_word: bool,
    /// The value of [`Bundle::wakes`] when the bundle last considered yielding the core.
    wakes: u32,
    pub courtesy: Courtesy,
    pub polled: Polled,
}

impl Sleeper {
    /// How much longer a wait spins that began `time` ago. It spins at its beginning, and not again between its sleeps.
    pub fn spin_after(&self, time: Duration) -> Duration {
        let spin = match time > SPIN_MOST {
            true => Duration::ZERO,
            false => self.habit.spin().saturating_sub(time).max(SPIN_LEAST),
        };
        spin.min(self.spin_most.unwrap_or(spin))
    }

    /// Makes a sleeper that the given signals wake.
    pub fn new(signals: &Signals) -> Result<Sleeper, Error> {
        let failed = |e| Error::shortage("cannot make an epoll set", e);
        let set = Descriptor::make(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(failed)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, signals.waker(), epoll::EventData::new_u64(WAKER.into()), edges).map_err(failed)?;
        Ok(Sleeper {
            set: Arc::new(set),
            habit: Habit::default(),
            spin_most: None,
            watches_sockets: false,
            watches_network: None,
            is_sure: false,
            told: Tally::default(),
            is_nudged: false,
            kept_nudge: false,
            took_word: false,
            wakes: 0,
            courtesy: Courtesy::default(),
            polled: Polled::default(),
        })
    }
}

/// How long recent waits lasted, which decides how long the next one spins.
#[derive(Debug, Default)]
pub(super) struct Habit {
    /// The last 16 waits, the latest in the lowest bit: 1 if it was short.
    soon: u16,
    /// Number of waits left that do not spin long because the core is contended.
    crowded: u32,
}

impl Habit {
    pub fn spin(&self) -> Duration {
        match self.crowded == 0 && self.soon.count_ones() >= SOON_LEAST {
            true => SPIN_MOST,
            false => SPIN_LEAST,
        }
    }

    pub fn ended_after(&mut self, wait: Duration) {
        self.soon = self.soon << 1 | u16::from(wait <= SOON);
        self.crowded = self.crowded.saturating_sub(1);
    }

    pub fn is_crowded(&mut self) {
        self.crowded = CROWDED_WAITS;
    }
}

/// When a program that only polls yields the core.
#[derive(Debug, Default)]
pub(super) struct Polled {
    /// The value of [`Bundle::wakes`] at the last check.
    wakes: u32,
    /// When a check first saw that value. None after [`POLLED_LAST`].
    since: Option<Instant>,
    /// Time since then at which the next yield is due.
    next: Duration,
    /// The bundle is polled under a lock. The polling thread yields after it has freed the lock.
    pub is_shared: bool,
    /// A yield is due once the lock is free.
    pub is_due: bool,
}

/// Whether yielding the core before a sleep pays off. It does if the peer runs and answers. It is expensive if a computing thread
/// gets the core instead: that thread keeps it for milliseconds, and only a sleeping thread gets the core back when a message
/// arrives.
#[derive(Debug, Default)]
pub(super) struct Courtesy {
    /// Sleeps left that begin without a yield.
    left: u32,
    /// Number of them after the last yield that did not pay.
    last: u32,
}

impl Courtesy {
    pub fn may_give_way(&mut self) -> bool {
        let may = self.left == 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// This thread got the core back after this time, with or without an answer.
    pub fn gave_way(&mut self, time: Duration, is_answered: bool) {
        let was_bad = time > if is_answered { YIELD_FUTILE } else { YIELD_LONG };
        self.last = if was_bad { (self.last * 2).clamp(CROWDED_WAITS, CROWDED_MOST) } else { 0 };
        self.left = self.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_seldom_while_threads_that_compute_take_the_core() {
        let yields = |courtesy: &mut Courtesy, time: Duration, is_answered: bool| {
            let each = (0..10_000).filter(|_| {
                let may = courtesy.may_give_way();
                if may {
                    courtesy.gave_way(time, is_answered);
                }
                may
            });
            each.count()
        };
        let mut courtesy = Courtesy::default();
        let (short, long) = (Duration::from_micros(20), Duration::from_millis(3));
        assert_eq!(yields(&mut courtesy, short, false), 10_000, "the core is free");
        assert_eq!(yields(&mut courtesy, short * 10, true), 10_000, "the peer answers");
        assert!(yields(&mut courtesy, short * 10, false) < 20);
        assert!(yields(&mut courtesy, long, true) < 20);
    }

    #[test]
    fn spins_long_only_while_waits_are_short_and_nobody_wants_the_core() {
        let mut habit = Habit::default();
        assert_eq!(habit.spin(), SPIN_LEAST);
        for _ in 0..SOON_LEAST {
            habit.ended_after(Duration::from_micros(60));
        }
        assert_eq!(habit.spin(), SPIN_MOST);
        habit.is_crowded();
        for _ in 0..CROWDED_WAITS {
            assert_eq!(habit.spin(), SPIN_LEAST);
            habit.ended_after(Duration::from_micros(60));
        }
        assert_eq!(habit.spin(), SPIN_MOST);
        for _ in 0..16 {
            habit.ended_after(Duration::from_millis(1));
        }
        assert_eq!(habit.spin(), SPIN_LEAST);
    }
}
