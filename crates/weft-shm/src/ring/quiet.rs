//! How long a consumer waits after a message before it looks for the next one, where messages come one by one.
//!
//! When a producer publishes a record it zeroes the header of the next one, so it owns that line, and its next publication takes no longer
//! than any store. A consumer that looks there too early takes the line away: the producer must take it back, and the consumer fetch it
//! once more. That is a good half of the time that a message needs: a minimal ping-pong through two rings takes 115 ns if both sides look
//! all the time, and 50 ns if each looks only when the answer is there.
//!
//! The time of an answer can be foreseen only where messages follow one another at a steady pace: a request, its reply, the next request.
//! So after [`FIRST_TRY`] messages of one line, none of a stream, that came one by one, the consumer times some. Then it begins to wait
//! before it looks: a little longer after a look in vain, a little less after a hit. It goes on as long as messages come no slower than
//! before, and gives up at once when two come together. Longer messages gain little or nothing, because most of their time goes to other
//! lines.

/// Messages that came one by one before the first try.
const FIRST_TRY: u32 = 64;
/// Each try without success doubles the messages before the next one, up to this many.
const LAST_TRY: u32 = 1 << 16;
/// Messages whose pace is measured before the consumer begins to wait.
const TIMED: u32 = 64;
/// Messages after which the pace is compared with that without waiting.
const EPOCH: u32 = 256;
/// Epochs after which the pace without waiting is measured anew.
const EPOCHS_MOST: u32 = 64;
/// After this many hits in a row the consumer also looks right behind a message: a burst may have begun.
const HITS_MOST: u32 = 16;
/// A pace of more nanoseconds from one message to the next is not followed.
const SLOW: u64 = 1_000;
/// The wait grows by one part in `STEP` after a look in vain, and shrinks by as much after a hit. Two sides that both wait cannot both
/// wait too long: the one that waits longer sets the pace, and the other looks in vain in about a quarter of its looks.
const STEP: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Measures the pace of messages as they come.
    Timing,
    /// Waits before each look.
    Waiting,
}

/// When to look for the next message. Times are the nanoseconds of [`crate::mem::RingMem::nanoseconds`].
#[derive(Debug)]
pub(super) struct Quiet {
    /// Messages that came one by one since two came together. Wraps around.
    singles: u32,
    /// Begin a try once `singles` is this many.
    try_at: u32,
    /// `singles` at the last call.
    known: u32,
    stage: Stage,
    /// The time of the last message.
    since: u64,
    /// How long after `since` not to look.
    rest: u64,
    /// Looks for the next message: 0, 1, or 2 for more.
    looks: u32,
    /// Messages found by the first look: of all while timing, in a row while waiting.
    hits: u32,
    /// How long to wait, in 256ths of a nanosecond.
    wait: u64,
    /// Messages of this stage or epoch, without those that took long.
    messages: u32,
    /// The time between these messages.
    time: u64,
    /// Messages that took long.
    interruptions: u32,
    /// Nanoseconds from one message to the next without waiting.
    pace: u64,
    epochs: u32,
}

impl Default for Quiet {
    fn default() -> Quiet {
        Quiet {
            singles: 0,
            try_at: FIRST_TRY,
            known: 0,
            stage: Stage::Timing,
            since: 0,
            rest: 0,
            looks: 0,
            hits: 0,
            wait: 0,
            messages: 0,
            time: 0,
            interruptions: 0,
            pace: 0,
            epochs: 0,
        }
    }
}

impl Quiet {
    /// Notes a message of one line that belongs to no stream. If it was found right behind another one, the count begins anew.
    #[inline(always)]
    pub fn note_short(&mut self, is_behind: bool) {
        self.singles = if is_behind { 0 } else { self.singles.wrapping_add(1) };
    }

    /// Notes a message of a stream or of more than one line: the count begins anew. Stores only if that changes something, to cost streams
    /// no store.
    #[inline(always)]
    pub fn note_other(&mut self) {
        if self.singles != 0 {
            self.singles = 0;
        }
    }

    /// Whether [`Quiet::allowance`] is to be asked before a look.
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        self.singles >= self.try_at
    }

    /// How many messages to take now, at most `most`; 0 means to wait. Reads the clock once per message, and in each call while it waits.
    #[inline(always)]
    pub fn allowance(&mut self, clock: impl Fn() -> Option<u64>, most: u32) -> u32 {
        if self.known != self.singles || self.looks == 0 {
            let Some(now) = clock() else { return most };
            self.note_messages(now);
            // A clock that jumps back ends the wait, too.
            if now.wrapping_sub(self.since) < self.rest {
                return 0;
            }
            self.looks = 1;
        } else {
            self.looks = 2;
        }
        match self.stage {
            Stage::Waiting if self.hits < HITS_MOST => 1,
            _ => most,
        }
    }

    /// Notes the messages that came since the last call.
    fn note_messages(&mut self, now: u64) {
        let new = self.singles.wrapping_sub(self.known);
        self.known = self.singles;
        match new {
            0 => return,
            1 => self.note_next(now.wrapping_sub(self.since)),
            _ => self.begin(),
        }
        let rest = if self.stage == Stage::Waiting { self.wait / 256 } else { 0 };
        (self.since, self.rest, self.looks) = (now, rest, 0);
    }

    /// Begins a try: messages came one by one for a while.
    fn begin(&mut self) {
        // An earlier try ended because two messages came together.
        if self.messages > 0 {
            self.put_off();
        }
        self.time_anew();
    }

    fn time_anew(&mut self) {
        (self.stage, self.epochs, self.hits) = (Stage::Timing, 0, 0);
        self.count_anew();
    }

    fn put_off(&mut self) {
        self.try_at = (self.try_at * 2).min(LAST_TRY);
    }

    /// A single message came `took` nanoseconds after the one before.
    fn note_next(&mut self, took: u64) {
        // One interruption says nothing; many are a slow pace.
        if took > 2 * SLOW {
            self.interruptions += 1;
            if self.interruptions == TIMED {
                self.give_up();
            }
            return;
        }
        self.messages += 1;
        self.time += took;
        match self.stage {
            Stage::Timing => {
                self.hits += u32::from(self.looks == 1);
                if self.messages == TIMED {
                    self.end_timing();
                }
            }
            Stage::Waiting => {
                if self.looks == 1 {
                    self.hits += 1;
                    self.wait -= self.wait / STEP;
                } else {
                    self.hits = 0;
                    self.wait = (self.wait + self.wait / STEP + 256).min(256 * self.pace);
                }
                if self.messages == EPOCH {
                    self.end_epoch();
                }
            }
        }
    }

    fn end_timing(&mut self) {
        self.pace = self.mean();
        // Waiting gains nothing if most messages are there at the first look.
        if self.pace > SLOW || self.hits > TIMED / 2 {
            return self.give_up();
        }
        (self.stage, self.wait, self.hits) = (Stage::Waiting, 0, 0);
    }

    fn end_epoch(&mut self) {
        let pace = self.mean();
        self.epochs += 1;
        if pace > self.pace + self.pace / 32 {
            return self.give_up();
        }
        self.try_at = FIRST_TRY;
        if self.epochs == EPOCHS_MOST {
            self.time_anew();
        }
    }

    /// The mean time between the counted messages. Begins to count anew.
    fn mean(&mut self) -> u64 {
        let mean = self.time / u64::from(self.messages.max(1));
        self.count_anew();
        mean
    }

    fn count_anew(&mut self) {
        (self.messages, self.time, self.interruptions) = (0, 0, 0);
    }

    /// Ends a try that did harm, or would.
    fn give_up(&mut self) {
        self.put_off();
        self.time_anew();
        (self.singles, self.known) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 64;
    /// Nanoseconds between two polls.
    const POLL: u64 = 10;

    #[derive(Default)]
    struct World {
        quiet: Quiet,
        now: u64,
        /// Polls that were told not to look.
        waits: u64,
    }

    impl World {
        fn poll(&mut self) -> u32 {
            self.now += POLL;
            let now = self.now;
            let most = if self.quiet.is_asked() { self.quiet.allowance(|| Some(now), MOST) } else { MOST };
            self.waits += u64::from(most == 0);
            most
        }

        /// Polls until a message comes: `comes` nanoseconds from now, or `or_if_looked_for` if somebody looks before that. Returns how long
        /// that took.
        fn take(&mut self, comes: u64, or_if_looked_for: u64) -> u64 {
            let begin = self.now;
            let mut at = begin + comes;
            loop {
                let may_look = self.poll() > 0;
                if may_look && self.now >= at {
                    self.quiet.note_short(false);
                    return self.now - begin;
                } else if may_look {
                    at = begin + or_if_looked_for;
                }
            }
        }

        fn time_of(&mut self, messages: u64, comes: impl Fn(u64) -> u64, penalty: u64) -> u64 {
            (0..messages).map(|i| self.take(comes(i), comes(i) + penalty)).sum()
        }
    }

    #[test]
    fn messages_at_a_steady_pace_are_looked_for_when_they_are_there() {
        for (comes, penalty) in [(60, 50), (250, 200)] {
            let mut world = World::default();
            world.time_of(2000, |_| comes, penalty);
            let mean = world.time_of(2000, |_| comes, penalty) / 2000;
            assert!(mean < comes + penalty * 3 / 4, "{mean} ns for {comes} or {}", comes + penalty);
            assert!(mean >= comes);
        }
    }

    #[test]
    fn nothing_waits_for_messages_that_come_seldom() {
        let mut world = World::default();
        world.time_of(1000, |_| 5_000, 50);
        assert_eq!(world.waits, 0);
        assert!(!world.quiet.is_asked() && world.quiet.try_at > 200, "it is tried less and less");
    }

    #[test]
    fn nobody_waits_for_messages_that_are_always_there() {
        let mut world = World::default();
        world.time_of(100_000, |_| 0, 0);
        assert_eq!(world.waits, 0);
        assert!(world.quiet.try_at > 10_000, "it is tried less and less");
    }

    #[test]
    fn a_burst_ends_the_waiting_within_a_few_looks() {
        let mut world = World::default();
        world.time_of(2000, |_| 60, 50);
        assert!(world.waits > 1000);
        let mut polls = 0;
        loop {
            polls += 1;
            match world.poll() {
                0 => {}
                1 => world.quiet.note_short(false),
                _ => break,
            }
        }
        assert!(polls < 200, "{polls} polls took one message or none");
        // Two are taken in that visit.
        world.quiet.note_short(false);
        world.quiet.note_short(true);
        assert_eq!(world.poll(), MOST);
        assert!(!world.quiet.is_asked());
    }

    #[test]
    fn bursts_now_and_then_are_tried_less_and_less() {
        let mut world = World::default();
        for _ in 0..1000 {
            world.time_of(100, |_| 60, 50);
            world.quiet.note_other();
        }
        assert_eq!(world.waits, 0, "a hundred are soon too few to be worth a try");
        assert!(world.quiet.try_at > 100);
    }

    #[test]
    fn an_unsteady_pace_takes_hardly_longer_than_without() {
        let unsteady: [fn(u64) -> u64; 3] =
            [|i| [40, 600][i as usize % 2], |i| 40 + i * 7919 % 500, |i| 1 << (3 + i * 31 % 7)];
        for comes in unsteady {
            let without: u64 = (0..100_000).map(|i| (comes(i) + 40).next_multiple_of(POLL)).sum();
            let with = World::default().time_of(100_000, comes, 40);
            assert!(with < without + without / 10, "{with} ns, without waiting {without}");
        }
    }

    #[test]
    fn a_clock_that_jumps_back_ends_the_wait() {
        let mut world = World { now: 1 << 40, ..World::default() };
        world.time_of(2000, |_| 60, 50);
        assert_eq!(world.poll(), 0);
        world.now = 0;
        assert!(world.poll() > 0);
    }

    #[test]
    fn without_a_clock_nobody_waits() {
        let mut quiet = Quiet::default();
        (0..1000).for_each(|_| quiet.note_short(false));
        assert!(quiet.is_asked());
        assert_eq!(quiet.allowance(|| None, MOST), MOST);
    }
}
