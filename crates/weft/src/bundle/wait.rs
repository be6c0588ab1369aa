//! Waiting: spinning for as long as that has paid lately, then sleeping until something comes.
//!
//! A wake-up costs 20 µs and more where a message costs a fifth of a microsecond, so a wait begins by polling. How long is learnt:
//! if waits have ended soon lately, for as long as a wake-up takes (who then sleeps all the same has lost at most twice the
//! best); if not, for a moment. A core that others want is given to them meanwhile.

use super::{Bundle, Threads, LOOK_EVERY_SETUP, REST_AFTER};
use crate::node::Error;
use crate::watch::{ring, Signals};
use crate::watched::watch_once;
use nix::sys::signal::Signal;
use rustix::event::{epoll, Timespec};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_core::{Endpoint, EventMask, Tally};
use weft_shm::Descriptor;

/// The longest spinning: about what falling asleep and waking up cost.
const SPIN_MOST: Duration = Duration::from_micros(50);

/// The spinning that is always tried.
pub(super) const SPIN_LEAST: Duration = Duration::from_micros(2);

/// A wait that ended so soon would have been worth spinning for, had we not slept.
const SOON: Duration = Duration::from_micros(100);

/// Of the last 16 waits so many must have ended soon for the next one to spin long.
const SOON_LEAST: u32 = 4;

/// The core is offered to others so often while spinning.
pub(super) const YIELD_EVERY: Duration = Duration::from_micros(4);

/// If it took so long to get it back, others want it.
pub(super) const YIELD_LONG: Duration = Duration::from_micros(30);

/// Waits that do not spin long after that.
const CROWDED_WAITS: u32 = 16;

/// Polls between two looks at the clock, as many as make one that looks at what is seldom looked at.
const POLLS_PER_LOOK: u32 = LOOK_EVERY_SETUP;

/// Looks between making ready to sleep and sleeping, whoever allows no spinning. The answer to what was just sent comes back about then, if its
/// sender was still awake too; who halted its processor a moment before pays for being woken, and so does who wakes it. Round trips between
/// two hosts that sleep at once took 50 µs with one look, 38 with three, 29 with five, 28 with nine. A look takes half a microsecond where
/// there is a network, far less than a sleep.
const LAST_LOOKS: u32 = 5;

/// The longest sleep: bounds what a wake-up can cost that was lost with its sender (killed between the bell and the wake-up), or because
/// the kernel's barrier did not reach it ([`weft_shm::barrier`]).
const SLEEP_MOST: Duration = Duration::from_millis(500);

/// The longest sleep while something waits for which nobody wakes us: room in a ring.
const SLEEP_FOR_ROOM: Duration = Duration::from_millis(1);

/// The longest sleep where the kernel gives us no barrier: then who sends while we fall asleep may not see it.
const SLEEP_UNSURE: Duration = Duration::from_millis(1);

/// A rest is due after so much sleep.
const REST_SLEPT: Duration = Duration::from_millis(300);

/// The longest sleep of calls that wait for what nobody may wake us for.
pub(super) const NAP_MOST: Duration = Duration::from_millis(1);

/// Events taken at once; more wake us again.
const EVENTS_MOST: usize = 8;

/// What the set tells of the eventfd: no signal, for bells say more.
const WAKER: u32 = 1 << 31;

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// So many messages were taken, now or since the last wait; their handlers have run.
    Messages(u32),
    /// Events came: see [`Bundle::next_event`].
    Events,
    /// The time is over, or a [`Waker`] was used.
    Nothing,
}

/// Ends a bundle's wait, from any thread.
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
    /// Ends the wait that is going on, or else the next one. Does not block. In a forked child it does nothing.
    pub fn wake(&self) {
        self.0.raise(Signals::NUDGE);
    }

    /// Wakes whoever sleeps in the bundle's wait, without ending it.
    pub(super) fn ring(&self) {
        ring(self.0.waker());
    }
}

impl<H: Threads> Bundle<H> {
    /// Waits until a message was taken or an event came, at most for `timeout` (`None`: without end). Polls: handlers run here.
    ///
    /// Spins first if waits have been short lately, then sleeps: no core is used, and whoever sends wakes us. What an
    /// endpoint's [`EventMask`] leaves out does not end the wait. Each message and each event ends one wait: the next, if
    /// none goes on.
    ///
    /// [`EventMask`]: crate::EventMask
    pub fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        self.expect_own();
        let since = self.sleeper.told;
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

    /// What ends this bundle's waits from other threads.
    pub fn waker(&self) -> Waker {
        Waker(self.signals.clone())
    }

    /// Which of an endpoint's events end a wait: all, unless set otherwise.
    pub fn set_event_mask(&mut self, endpoint: Endpoint, mask: EventMask) -> Result<(), Error> {
        self.life.check()?;
        Ok(self.core.state_mut().set_event_mask(endpoint, mask)?)
    }

    /// The most that a wait spins before it sleeps. Not set, it is 50 µs where that has paid lately. With zero a wait looks a few times
    /// and sleeps: least work for the processor, and 20 µs and more to wake up for each message.
    pub fn set_spin_limit(&mut self, most: Duration) {
        self.sleeper.spin_most = Some(most);
    }

    /// A descriptor that becomes readable when something came for a bundle that is [armed](Bundle::arm): for `epoll`, `poll`
    /// and `select`. To be waited for only, not read or written. It stays the same for the bundle's life.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.expect_own();
        self.sleeper.set.as_fd()
    }

    /// Arms [`Bundle::wait_fd`]. False if there was something to do (messages may have been taken, events may have come): then
    /// do what there is, and call again. True if there is nothing: the descriptor becomes readable when there is, and no poll
    /// may be made before it is, or before [`Bundle::wait_limit`] is over, for until then nobody runs the protocol's timers.
    pub fn arm(&mut self) -> bool {
        self.expect_own();
        // What was told is told: the descriptor becomes unreadable.
        let told = listen(&self.sleeper.set, Duration::ZERO);
        self.get_up(told);
        self.home.get_up();
        let since = std::mem::replace(&mut self.sleeper.told, self.core.state().tally());
        let is_armed = self.lie_down(since) == (Waited::Nothing, true);
        // It may rest since, and our sockets are unwatched.
        self.home.get_up();
        let was_nudged = std::mem::take(&mut self.sleeper.is_nudged) | std::mem::take(&mut self.sleeper.kept_nudge);
        is_armed && !was_nudged
    }

    /// Arms the bundle so that the process is sent a signal, by its number, when something came: U-Net's third way, beside polling
    /// and waiting, for programs that compute and want to be told. True if it is armed; false if there was something to do
    /// (messages may have been taken, events may have come): then do what there is, and call again.
    ///
    /// The signal goes to the process, once, and says no more than that: the handler may call nothing of weft, but note it.
    /// The program then calls this again. One may come for a message that a poll has just taken, since its sender rings after it has
    /// published, and if the program calls [`Bundle::wait`] all the same before the signal came, for what that wait has taken. Until then [`Bundle::wait_limit`] does not bound it, for the helper runs the
    /// protocol. Costs a wake-up of the helper and the signal: 10 µs and more for each.
    ///
    /// # Errors
    /// If there is no such signal, or no helper to send it.
    pub fn arm_signal(&mut self, signal: i32) -> Result<bool, Error> {
        let way_out = "take the number of a signal that programs may use, as SIGUSR1 or SIGIO";
        let signal = Signal::try_from(signal).map_err(|e| Error::system("cannot have that signal sent", e, way_out))?;
        if !self.arm() {
            return Ok(false);
        }
        self.home.send_when_readable(self.sleeper.set.as_fd(), signal)?;
        Ok(true)
    }

    /// For how long a program that has armed the bundle may wait for its descriptor before it polls.
    pub fn wait_limit(&self) -> Duration {
        self.expect_own();
        let mut most = SLEEP_MOST.min(self.home.until_due().unwrap_or(SLEEP_MOST));
        if self.core.state().has_unfinished() || self.home.has_retries() {
            most = most.min(SLEEP_FOR_ROOM);
        }
        if !self.sleeper.is_sure {
            most = most.min(SLEEP_UNSURE);
        }
        most
    }

    /// Polls, and dozes if nothing comes, in a call that no [`Waker`] ends: a nudge is for the next wait. `begin` is when the
    /// last polls that found nothing began; the clock is not read while something comes.
    pub(super) fn nap(&mut self, begin: &mut Option<Instant>) {
        let since = self.core.state().tally();
        if self.poll_a_few(since) != Waited::Nothing {
            return self.end_naps(begin.take());
        }
        self.sleeper.kept_nudge |= std::mem::take(&mut self.sleeper.is_nudged);
        let began = *begin.get_or_insert_with(Instant::now);
        if self.doze(began, since, NAP_MOST) != Waited::Nothing {
            self.end_naps(begin.take());
        }
    }

    /// Behind naps the home is told that the bundle is up, if it may have slept.
    pub(super) fn end_naps(&self, begin: Option<Instant>) {
        if begin.is_some() {
            self.home.get_up();
        }
    }

    /// Spins, as far as the wait that began then has not done so, and then sleeps at most once. Ends by what came since a
    /// tally was taken. Behind the last one the home is to be told that the bundle is up.
    fn doze(&mut self, begin: Instant, since: Tally, most: Duration) -> Waited {
        let spin = self.sleeper.habit.spin().saturating_sub(begin.elapsed()).max(SPIN_LEAST);
        let spin = spin.min(most).min(self.sleeper.spin_most.unwrap_or(spin));
        let dozed = Instant::now();
        let mut waited = self.spin(since, spin);
        let left = most.saturating_sub(dozed.elapsed());
        if waited == Waited::Nothing && !left.is_zero() {
            waited = self.sleep(since, left);
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

    /// Some polls without a look at the clock; one if the program is not to spin.
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

    /// A poll: what came since a tally was taken, and whether the poll found nothing at all.
    #[inline(always)]
    fn poll_once(&mut self, since: Tally) -> (Waited, bool) {
        let taken = self.poll();
        (self.came(since), taken == 0)
    }

    /// What came since a tally was taken.
    #[inline(always)]
    pub(super) fn came(&self, since: Tally) -> Waited {
        let Tally { events, messages } = self.core.state().tally();
        match messages.wrapping_sub(since.messages) {
            0 if events != since.events => Waited::Events,
            0 => Waited::Nothing,
            messages => Waited::Messages(messages as u32),
        }
    }

    /// Sleeps until something comes, and polls.
    fn sleep(&mut self, since: Tally, most: Duration) -> Waited {
        let (waited, may_sleep) = self.lie_down(since);
        let mut told = 0;
        if may_sleep {
            let begin = Instant::now();
            // Said first: a deputy that does not see it is done before the limit is read.
            self.signals.set_waiting(true);
            let most = most.min(self.wait_limit());
            told = listen(&self.sleeper.set, most);
            self.has_slept(begin.elapsed(), told);
        }
        self.get_up(told);
        match waited {
            Waited::Nothing => self.poll_once_or_twice(since),
            waited => waited,
        }
    }

    /// Notes a sleep, and what the set told.
    pub(super) fn has_slept(&mut self, slept: Duration, told: u32) {
        self.signals.set_waiting(false);
        self.rests_after(slept);
        if told == 0 {
            // Whose bell was lost is found now.
            self.core.look_at_all();
        }
    }

    /// The polls behind a sleep. The first may only find who left word.
    pub(super) fn poll_once_or_twice(&mut self, since: Tally) -> Waited {
        match self.poll_once(since) {
            (Waited::Nothing, _) => self.poll_once(since).0,
            (waited, _) => waited,
        }
    }

    /// Time that was slept counts for the next rest as turns would have.
    fn rests_after(&mut self, slept: Duration) {
        let turns = u128::from(REST_AFTER) * slept.as_micros() / REST_SLEPT.as_micros();
        self.restless = self.restless.saturating_add(turns.try_into().unwrap_or(u32::MAX));
    }

    /// Makes ready to sleep. What the last look before it brought, and whether to sleep now.
    pub(super) fn lie_down(&mut self, since: Tally) -> (Waited, bool) {
        if self.home.is_busy() || self.core.state().has_calls() {
            self.home.service(&mut self.core, &mut self.faces);
        }
        self.core.arm();
        self.sleeper.is_sure = weft_shm::barrier::heavy();
        self.sleeper.took_word = false;
        let (mut waited, mut is_still) = self.poll_once(since);
        for _ in 1..LAST_LOOKS {
            if !is_still || waited != Waited::Nothing || self.sleeper.took_word {
                break;
            }
            (waited, is_still) = self.poll_once(since);
        }
        // What was left word of is looked at by the next poll, and who came in this one may not know that it is to ring.
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

    /// Nobody is to wake us any more. What was told is found by the next polls.
    pub(super) fn get_up(&mut self, told: u32) {
        if told & Signals::SOCKETS != 0 {
            self.sleeper.watches_sockets = false;
        }
        self.signals.get_up();
        self.core.disarm();
        if told != 0 {
            // Before a handler runs, which may compute: nobody watches the sockets now.
            self.home.get_up();
        }
        if told & !WAKER != 0 {
            self.signals.raise(told & !WAKER);
        }
        if self.home.until_due().is_some_and(|left| left.is_zero()) {
            self.net_turns.store(0, Ordering::Relaxed);
        }
    }

    /// Has the set tell of what it has told of, and does not watch since.
    fn watch(&mut self) -> bool {
        let set = &self.sleeper.set;
        if !self.sleeper.watches_sockets && !self.home.is_stuck() {
            self.sleeper.watches_sockets = watch_once(set, self.home.sockets(), Signals::SOCKETS.into());
        }
        self.home.for_network(|socket| watch_once(set, socket, Signals::DATAGRAMS.into()))
    }
}

/// Waits for the set. Returns the signals that it tells, and [`WAKER`] if a peer woke us; nothing if the time is over.
pub(super) fn listen(set: &Descriptor, most: Duration) -> u32 {
    let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    match epoll::wait(set, &mut events, Some(&most)) {
        Ok((ready, _)) => ready.iter().fold(0, |told, event| told | event.data.u64() as u32),
        Err(_) => 0,
    }
}

/// What a bundle sleeps on, and what it has learnt of its waits.
#[derive(Debug)]
pub(super) struct Sleeper {
    pub set: Arc<Descriptor>,
    pub habit: Habit,
    /// What the program allows, if it has said so.
    pub spin_most: Option<Duration>,
    /// The set tells when the sockets of set-up and deaths have something.
    watches_sockets: bool,
    /// The last barrier took effect.
    is_sure: bool,
    /// What has ended a wait.
    told: Tally,
    /// A wait is to end.
    pub is_nudged: bool,
    /// The next one is, for it was no wait that it came in.
    pub kept_nudge: bool,
    /// A poll took what others had left word of.
    pub took_word: bool,
}

impl Sleeper {
    /// Sleeps until these signals wake it, at least.
    pub fn new(signals: &Signals) -> Result<Sleeper, Error> {
        let failed = |e| Error::system("cannot make an epoll set", e, "raise the limit of open files (ulimit -n)");
        let set = Descriptor::make(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(failed)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, signals.waker(), epoll::EventData::new_u64(WAKER.into()), edges).map_err(failed)?;
        Ok(Sleeper {
            set: Arc::new(set),
            habit: Habit::default(),
            spin_most: None,
            watches_sockets: false,
            is_sure: false,
            told: Tally::default(),
            is_nudged: false,
            kept_nudge: false,
            took_word: false,
        })
    }
}

/// How long waits last, and so how long to spin in the next one.
#[derive(Debug, Default)]
pub(super) struct Habit {
    /// The last 16 waits, the latest in the lowest bit: 1 if it ended soon.
    soon: u16,
    /// Waits left in which others are let have the core.
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

#[cfg(test)]
mod tests {
    use super::*;

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
