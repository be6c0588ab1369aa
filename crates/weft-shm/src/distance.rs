//! The distance that a consumer keeps behind a stream of one-way messages.
//!
//! A consumer that has caught up with a stream is fed line by line. It fetches each line while the producer is about to write it, and
//! its processor prefetches the lines behind. The producer's stores leave its core in order, so they wait for all these lines to come
//! back. Each slows the other, and they stay together. If the consumer pauses for a moment the producer gets ahead, and from then on
//! the two cores work side by side: 80 million messages a second instead of 25.
//!
//! So a consumer that has been right behind a fast stream for a while takes no records until the producer is [`LEAD`] plus [`GAP`] lines
//! ahead, and then reads up to [`GAP`] lines behind it. The producer tells its place now and then (see [`Progress`]). If it does not get
//! ahead soon, the stream has ended, and the consumer takes all records as usual. The producer announces a record that is not part of
//! the stream at once, which also ends the wait.

/// Lines that a consumer leaves between itself and its producer. More than processors prefetch.
const GAP: u32 = 64;

/// Lines beyond the gap that the producer must be ahead before the consumer goes on.
const LEAD: u32 = 256;

/// One-way messages in a row that make a stream.
const RUN: u32 = 128;

/// In a run, at least this many visits must have taken all that there was: then the consumer asks often, and is close behind. One that
/// asks seldom finds much in each visit, and loses nothing.
const CATCHES: u32 = 8;

/// The most nanoseconds of a run: 200 per message.
const RUN_TIME: u64 = 25_600;

/// The most nanoseconds per line of a run if lines are evicted, where that allows more than `RUN_TIME`. A far consumer right behind a
/// stream takes lines away before they are written, whatever the length of the messages, and then evicting them is of no use.
const LINE_TIME: u64 = 40;

/// The most nanoseconds that a consumer waits for its producer to get ahead. It also waits no longer than twice the time of the run.
const PATIENCE: u64 = 40_000;

/// The producer tells its place when it comes to a multiple of this many lines.
pub(crate) const TELL_EVERY: u32 = 64;

/// The place that a producer announces. Only a hint: records are found by their headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// The line of the next header.
    pub line: u32,
    /// The line behind the last record that was not part of a stream.
    pub urgent: u32,
    /// The consumer is to evict what it has read (see [`crate::mem::RingMem::evict`]).
    pub evict: bool,
}

/// The bit of a packed line that says `evict`.
const EVICT: u32 = 1 << 31;

impl Progress {
    pub fn pack(self) -> u64 {
        let evict = if self.evict { EVICT } else { 0 };
        u64::from(self.line | evict) | u64::from(self.urgent) << 32
    }

    pub fn unpack(word: u64) -> Progress {
        let line = word as u32;
        Progress { line: line & !EVICT, urgent: (word >> 32) as u32, evict: line & EVICT != 0 }
    }

    /// Lines from `line` to the producer, in a lane from `first` to before `last`. `None` if it is in another lane.
    pub fn ahead(self, line: u32, (first, last): (u32, u32)) -> Option<u32> {
        if !(first..last).contains(&self.line) || !(first..last).contains(&line) {
            return None;
        }
        let (lines, passed) = (last - first, self.line < line);
        let ahead = if passed { self.line + lines - line } else { self.line - line };
        // The announced place is up to two announcements old, so the consumer may have passed it.
        Some(if ahead > lines.saturating_sub(2 * TELL_EVERY) { 0 } else { ahead })
    }
}

/// Whether a consumer keeps its distance from its producer.
#[derive(Debug, Default)]
pub(crate) struct Distance {
    /// One-way messages, and the visits that took all there was, since `since`.
    run: u32,
    catches: u32,
    since: u64,
    /// The position at `since`.
    from: u64,
    /// Lines of a message, at the last count.
    each: u64,
    is_kept: bool,
    /// The last known [`Progress::urgent`].
    urgent: u32,
    /// Nanoseconds to wait for the producer.
    patience: u64,
    /// When the wait began.
    waits_since: Option<u64>,
    /// The position in the lane in use before which records may be taken without another look at the producer's place.
    upto: u64,
}

impl Distance {
    #[inline(always)]
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// A visit took this many one-way messages. True if a run has ended: then call [`Distance::end_run`].
    #[inline(always)]
    pub fn note_visit(&mut self, one_way: u32, caught_up: bool) -> bool {
        self.run = self.run.saturating_add(one_way);
        self.catches = self.catches.saturating_add(u32::from(caught_up));
        caught_up && self.run >= RUN && !self.is_kept
    }

    /// Decides at the end of a run whether the consumer is right behind a stream.
    #[inline(never)]
    pub fn end_run(&mut self, progress: Progress, pos: u64, now: u64) {
        let time = now.wrapping_sub(self.since);
        let lines = self.count_lines(pos);
        let most = if progress.evict { RUN_TIME.max(lines.saturating_mul(LINE_TIME)) } else { RUN_TIME };
        let is_pure = std::mem::replace(&mut self.urgent, progress.urgent) == progress.urgent;
        self.is_kept = is_pure && self.catches >= CATCHES && time <= most;
        (self.catches, self.since) = (0, now);
        (self.patience, self.waits_since, self.upto) = (time.saturating_mul(2).min(PATIENCE), None, 0);
    }

    /// The lines since the last count. Updates `each` by the messages since then.
    fn count_lines(&mut self, pos: u64) -> u64 {
        let lines = pos.wrapping_sub(std::mem::replace(&mut self.from, pos));
        self.each = lines.checked_div(u64::from(self.run)).unwrap_or(self.each);
        self.run = 0;
        lines
    }

    /// Keeps no distance any more.
    #[cold]
    pub fn give_up(&mut self) {
        (self.run, self.catches, self.is_kept) = (0, 0, false);
    }

    /// How many messages may be taken at this position without another look at the producer's place, if they are as long as those before.
    pub fn free(&self, pos: u64) -> u64 {
        self.upto.saturating_sub(pos).div_ceil(self.each.max(1))
    }

    /// Positions are in another lane from now on.
    pub fn change_lane(&mut self, pos: u64) {
        (self.upto, self.from) = (0, pos);
    }

    /// Takes the producer's announcement: it is `ahead` lines ahead of `pos`, where nothing is [free](Distance::free) any more.
    pub fn look(&mut self, progress: Progress, ahead: u32, pos: u64, now: u64) {
        if progress.urgent != self.urgent {
            self.give_up();
        } else if ahead >= GAP + LEAD {
            self.count_lines(pos);
            self.upto = pos.wrapping_add(u64::from(ahead - GAP));
            self.waits_since = None;
        } else {
            // A clock that jumps back ends the wait too.
            if now.wrapping_sub(*self.waits_since.get_or_insert(now)) > self.patience {
                self.count_lines(pos);
                self.since = now;
                self.give_up();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: (u32, u32) = (4, 10_004);

    /// A producer `ahead` lines ahead of `line`, without an urgent record.
    fn told(line: u32, ahead: u32) -> (Progress, u32) {
        let progress = Progress { line: line + ahead, urgent: 0, evict: false };
        (progress, progress.ahead(line, LANE).expect("in the lane"))
    }

    /// A run of messages, four in each visit, one every `each` nanoseconds.
    fn run(distance: &mut Distance, from: u64, each: u64) -> u64 {
        let mut now = from;
        while !distance.note_visit(4, true) {
            now += 4 * each;
        }
        now += 4 * each;
        distance.end_run(Progress { line: 4, urgent: 0, evict: false }, 0, now);
        now
    }

    /// A consumer that keeps its distance right behind a stream.
    fn behind_a_stream() -> (Distance, u64) {
        let mut distance = Distance::default();
        let now = run(&mut distance, 1 << 40, 50);
        assert!(!distance.is_kept(), "the time before the first run is not known");
        let now = run(&mut distance, now, 50);
        assert!(distance.is_kept());
        (distance, now)
    }

    #[test]
    fn a_consumer_right_behind_a_stream_lets_it_get_ahead() {
        let (mut distance, now) = behind_a_stream();
        let (progress, ahead) = told(100, GAP + LEAD - 1);
        distance.look(progress, ahead, 1000, now);
        assert!(distance.is_kept() && distance.free(1000) == 0);
        let (progress, ahead) = told(100, GAP + LEAD);
        distance.look(progress, ahead, 1000, now + 1);
        assert_eq!(distance.free(1000), u64::from(LEAD));
        assert_eq!(distance.free(1000 + u64::from(LEAD)), 0);
    }

    #[test]
    fn no_more_long_messages_are_free_than_the_lines_hold() {
        let (mut distance, now) = behind_a_stream();
        // A hundred messages of 17 lines, 1,700 lines from where the last run ended.
        (0..25).for_each(|_| assert!(!distance.note_visit(4, true)));
        let (progress, ahead) = told(100, GAP + LEAD);
        distance.look(progress, ahead, 1700, now + 1);
        assert_eq!(distance.free(1700), 16, "256 lines");
        assert_eq!(distance.free(1700 + 15 * 17), 1);
        assert_eq!(distance.free(1700 + 16 * 17), 0);
        // They become longer, and are counted again with the next look.
        assert!(!distance.note_visit(16, true));
        distance.look(progress, ahead, 1700 + 16 * 129, now + 2);
        assert_eq!(distance.free(1700 + 16 * 129), 2);
    }

    #[test]
    fn a_stream_that_ends_is_waited_for_no_longer_than_twice_its_last_run() {
        let (mut distance, now) = behind_a_stream();
        let (progress, ahead) = told(100, 10);
        let waits = |distance: &mut Distance, now| {
            distance.look(progress, ahead, 1000, now);
            distance.is_kept()
        };
        let patience = 2 * 50 * u64::from(RUN);
        assert!(patience < PATIENCE);
        assert!(waits(&mut distance, now) && waits(&mut distance, now + patience));
        assert!(!waits(&mut distance, now + patience + 1));
    }

    #[test]
    fn a_clock_that_jumps_back_ends_a_run() {
        let (mut distance, now) = behind_a_stream();
        distance.give_up();
        while !distance.note_visit(4, true) {}
        distance.end_run(Progress { line: 4, urgent: 0, evict: true }, 4 * u64::from(RUN), now - 1);
        assert!(!distance.is_kept());
        // The next run counts again.
        run(&mut distance, now - 1, 50);
        assert!(distance.is_kept());
    }

    #[test]
    fn a_slow_stream_is_not_waited_for() {
        let mut distance = Distance::default();
        let now = run(&mut distance, 1 << 40, 250);
        run(&mut distance, now, 250);
        assert!(!distance.is_kept());
    }

    #[test]
    fn a_stream_of_long_messages_is_slow_unless_lines_are_evicted() {
        for (evict, each, is_kept) in [(false, 17, false), (true, 17, true), (true, 1, false)] {
            let mut distance = Distance::default();
            for number in 1..=2 {
                while !distance.note_visit(4, true) {}
                let (lines, nanoseconds) = (u64::from(RUN) * each, 400 * u64::from(RUN));
                distance.end_run(
                    Progress { line: 4, urgent: 0, evict },
                    number * lines,
                    (1 << 40) + number * nanoseconds,
                );
            }
            assert_eq!(distance.is_kept(), is_kept, "{each} lines each, evicted: {evict}");
        }
    }

    #[test]
    fn a_consumer_that_finds_much_in_each_visit_is_not_right_behind() {
        let mut distance = Distance::default();
        let now = run(&mut distance, 1 << 40, 50);
        assert!(distance.note_visit(RUN, true));
        distance.end_run(Progress { line: 4, urgent: 0, evict: false }, 0, now + 1000);
        assert!(!distance.is_kept());
    }

    #[test]
    fn a_record_outside_the_stream_ends_the_wait_however_much_came_behind_it() {
        let (mut distance, now) = behind_a_stream();
        let urgent = Progress { line: 164, urgent: 130, evict: false };
        distance.look(urgent, urgent.ahead(100, LANE).expect("in the lane"), 1000, now);
        assert!(!distance.is_kept());
        // A run with such a record in it is not one of a stream alone.
        while !distance.note_visit(4, true) {}
        distance.end_run(urgent, 0, now + 1000);
        assert!(!distance.is_kept());
    }

    #[test]
    fn progress_survives_packing() {
        for evict in [false, true] {
            let progress = Progress { line: (1 << 20) + 300, urgent: u32::MAX, evict };
            assert_eq!(Progress::unpack(progress.pack()), progress);
        }
    }

    #[test]
    fn a_place_outside_the_lane_is_not_believed() {
        let ahead = |line, at| Progress { line, urgent: 0, evict: false }.ahead(at, LANE);
        assert_eq!(ahead(200, 100), Some(100));
        assert_eq!(ahead(104, 9_904), Some(200));
        assert_eq!(ahead(100, 100), Some(0));
        // Passed meanwhile.
        assert_eq!(ahead(100, 130), Some(0));
        // In another lane, or nowhere.
        assert_eq!((ahead(3, 100), ahead(10_004, 100), ahead(u32::MAX, 100)), (None, None, None));
        for word in [0, u64::MAX, 1 << 32, 0x8000_0000] {
            let ahead = Progress::unpack(word).ahead(100, LANE);
            assert!(ahead.is_none_or(|ahead| ahead < 10_000));
        }
    }
}
