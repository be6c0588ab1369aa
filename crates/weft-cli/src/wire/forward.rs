//! The loop: frames come in at either end, pass their direction's lane, and leave at the other end.

use super::counts::Counts;
use super::ends::{Clock, End, Gone, Spare};
use super::faults::Faults;
use super::frame;
use super::lane::{Frame, Lane};
use super::scenario::Scenario;
use crate::error::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often a busy wire checks whether it has to end. An idle one is woken for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Don't sleep for a frame that is due this soon: falling asleep and waking up takes as long.
const SOON: u64 = 10_000;

/// With this many frames under way, the wire looks once per [`TURN`] instead of waking for each. On few cores, a wire that is
/// always awake takes half of the machine from the hosts at its ends. Network cards that coalesce interrupts do the same.
const MANY: usize = 8;
const TURN: Duration = Duration::from_micros(50);

/// The highest priority, and the usual one.
const PRIORITY: i32 = -20;
const USUAL_PRIORITY: i32 = 0;

/// The timer slack of the wire's waits, and the usual one, in nanoseconds.
const EXACT: u64 = 1;
const USUAL: u64 = 50_000;

/// Makes this thread wake in time for frames that are due.
fn be_prompt() {
    // By default the kernel may end a wait up to 50 µs late, to end several at once; and a process that spins keeps a core for up
    // to 3 ms, unless it must yield to a higher priority. Without root, the wire does without the priority.
    let _ = set_current_timer_slack(NonZeroU64::new(EXACT));
    let _ = setpriority_process(None, PRIORITY);
}

/// Undoes this for the commands that the wire starts.
pub fn be_as_others() {
    let _ = set_current_timer_slack(NonZeroU64::new(USUAL));
    let _ = setpriority_process(None, USUAL_PRIORITY);
}

/// Tells the wire when to end.
pub trait Watch {
    /// Whether the end has come.
    fn has_ended(&mut self) -> Result<bool, Error>;

    /// Descriptors that are readable when the end may have come.
    fn bells(&self) -> [BorrowedFd<'_>; 3];

    /// When to look again, even if no descriptor is readable.
    fn next_look(&self) -> Option<Instant>;
}

/// A wire between two ends.
pub struct Wire {
    ends: [End; 2],
    lanes: [Lane; 2],
    faults: [Faults; 2],
    scenario: Scenario,
    /// Steps of the scenario taken so far.
    steps: usize,
    clock: Clock,
    /// Frames to be sent.
    leaving: Vec<Frame>,
    spare: Spare,
}

impl Wire {
    pub fn new(ends: [End; 2], scenario: Scenario) -> Wire {
        let mut faults = [Faults::default(); 2];
        scenario.first.change(&mut faults);
        let lane = |way: usize| Lane::new(faults[way], scenario.seed, way);
        let (lanes, leaving, spare) = ([lane(0), lane(1)], Vec::new(), Spare::default());
        Wire { ends, lanes, faults, scenario, steps: 0, clock: Clock::start(), leaving, spare }
    }

    /// Forwards until the end has come.
    pub fn run(&mut self, watch: &mut impl Watch) -> Result<(), Error> {
        be_prompt();
        let (mut looked, mut is_woken) = (0, true);
        loop {
            let now = self.clock.now();
            if is_woken || now >= looked + LOOK_EVERY.as_nanos() as u64 {
                looked = now;
                if watch.has_ended()? {
                    return Ok(());
                }
            }
            self.step(now);
            let received = self.receive(0)? + self.receive(1)?;
            self.hand_on(0);
            self.hand_on(1);
            is_woken = received == 0 && self.wait(watch);
        }
    }

    /// The counts of both directions.
    pub fn counts(&self) -> [Counts; 2] {
        [0, 1].map(|way| Counts { on_way: self.lanes[way].on_way() as u64, ..self.lanes[way].counts })
    }

    /// Takes the scenario's steps that are due.
    fn step(&mut self, now: u64) {
        while let Some(step) = self.scenario.steps.get(self.steps).filter(|step| step.at.0 <= now) {
            step.wanted.change(&mut self.faults);
            self.steps += 1;
            for (lane, faults) in self.lanes.iter_mut().zip(self.faults) {
                lane.change(faults);
            }
        }
    }

    fn receive(&mut self, way: usize) -> Result<usize, Error> {
        let lane = &mut self.lanes[way];
        let received = self.ends[way].receive(self.clock, &mut self.spare, |came, mut buffer| {
            frame::finish_checksum(buffer.frame_mut());
            lane.take(came, buffer)
        })?;
        lane.counts.merged += received.merged;
        lane.counts.missed += received.missed;
        Ok(received.frames)
    }

    fn hand_on(&mut self, way: usize) {
        let lane = &mut self.lanes[way];
        let now = self.clock.now();
        while let Some(frame) = lane.leave(now) {
            self.leaving.push(frame);
        }
        let counts = &mut lane.counts;
        self.ends[1 - way].send(&mut self.leaving, &mut self.spare, |frame, gone| match gone {
            Gone::HandedOn => counts.hand_on(frame),
            Gone::Refused => counts.refused += 1,
        });
    }

    /// Sleeps until a frame comes or is due, or the end may have come. Returns true in the last case.
    fn wait(&self, watch: &impl Watch) -> bool {
        let now = self.clock.now();
        let due = self.lanes.iter().filter_map(Lane::next_due).min().unwrap_or(u64::MAX);
        let step = self.scenario.steps.get(self.steps).map_or(u64::MAX, |step| step.at.0);
        let look = watch.next_look().map(|at| at.saturating_duration_since(Instant::now()).as_nanos() as u64);
        let time = due.min(step).saturating_sub(now).min(look.unwrap_or(u64::MAX));
        if time <= TURN.as_nanos() as u64 && self.lanes.iter().map(Lane::on_way).sum::<usize>() >= MANY {
            std::thread::sleep(TURN);
            return false;
        }
        if time <= SOON {
            std::hint::spin_loop();
            return look.is_some();
        }
        let time = (time < u64::MAX - now).then(|| Timespec::try_from(Duration::from_nanos(time)).ok()).flatten();
        let ([a, b], [c, d, e]) = (self.ends.each_ref().map(End::socket), watch.bells());
        let mut fds = [a, b, c, d, e].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // Even if a signal interrupted it: the next turn looks for work.
        let _ = poll(&mut fds, time.as_ref());
        look.is_some() || fds[2..].iter().any(|bell| !bell.revents().is_empty())
    }
}

impl Counts {
    fn hand_on(&mut self, frame: &Frame) {
        let fate = frame.fate;
        self.handed_on += 1;
        self.handed_on_bytes += frame.buffer.length as u64;
        self.delayed += u64::from(fate.is_late || fate.is_overtaken);
        self.reordered += u64::from(fate.is_overtaken);
        self.duplicated += u64::from(fate.is_copy);
        self.corrupted += u64::from(fate.is_corrupt);
    }
}
