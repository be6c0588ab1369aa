//! Measures weft itself. This is the first process of each measurement, which keeps the time.
//!
//! A message of 8 or 16 bytes is sent as two or four arguments, a longer one as payload. Both sides add up every byte of every
//! message. After each run, the sums and counts are compared with what was sent.

use super::bare::Bare;
use super::meter::{summarize, Meter, Per, Sampled};
use super::peer::{add_idle, answer, ask, contact, expect_life, monotonic_ns, try_ask, Tally, ARGS_BYTES_MOST};
use super::shared::SharedCaller;
use super::source::{sum_args, sum_bytes, Half, Source};
use super::talk::{Account, Contact, Job, Peer, Waiting, PATIENCE};
use crate::error::Error;
use std::hint::black_box;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Admission, Bundle, Endpoint, Node, SendError};

/// Requests under way at once while their rate is measured; AM-II's limit.
pub const WINDOW: u64 = 32;

/// Requests per burst while the sender's overhead is measured: few enough not to wait for credit.
const BURST: u64 = 16;

/// Turns without a message between two checks that the peer lives.
const LOOK_EVERY: u32 = 1 << 18;

/// Round trips per sample, for messages up to 1 KiB.
pub(super) const BATCH: u32 = 64;

/// How long a process polls before it sends a lone message, so that no work is left.
const SETTLE: Duration = Duration::from_millis(2);

/// How long a peer polls before it computes.
const POLLS_BEFORE: Duration = Duration::from_millis(150);

/// The longest pause between two messages to a peer that computes.
const GAP_MOST: Duration = Duration::from_millis(10);

/// Bytes received between two readings of the clock.
const TICK_BYTES: u64 = 16 << 10;

/// A queue is full after this many *full* sends in a row, with a poll between them.
const FULL_AFTER: u32 = 20_000;

/// The process that measures, and its peer.
#[derive(Debug)]
pub struct Bench {
    pub(super) node: Node,
    pub(super) peer: Peer,
    pub(super) source: Rc<Source>,
    pub(super) time: Duration,
    /// The most round trips per sample.
    batch_most: u32,
    /// The endpoints' admission.
    admission: Admission,
}

/// Where a message's bytes are when they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// Where weft has put them.
    InPlace,
    /// In the program's own memory: its handler has copied them there.
    Copied,
}

/// The parameters of LogP that are measured directly.
#[derive(Clone, Copy, Debug)]
pub struct Overheads {
    pub os: Sampled,
    pub or: Sampled,
    pub l: Sampled,
}

/// The round trip to an endpoint whose neighbour is not served: with the neighbour's queue full, and with it empty.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub alone: Sampled,
    pub beside_full: Sampled,
}

/// Which of many bundles asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Always the same one.
    Fixed,
    /// One drawn for each message.
    Drawn,
}

impl Bench {
    /// Measures with this peer. This process must be pinned to the first CPU.
    pub fn new(peer: Peer, time: Duration) -> Result<Bench, Error> {
        let (source, admission) = (Rc::new(Source::new()), Admission::default());
        Ok(Bench { node: Node::new()?, peer, source, time, batch_most: BATCH, admission })
    }

    /// Limits samples to this many round trips.
    pub fn with_batch(self, batch_most: u32) -> Bench {
        Bench { batch_most, ..self }
    }

    /// Measures with another peer and a node of its own. The two take turns with the source.
    pub fn with_another(&self, peer: Peer) -> Result<Bench, Error> {
        let (node, source) = (Node::new()?, self.source.clone());
        let Bench { time, batch_most, admission, .. } = *self;
        Ok(Bench { node, peer, source, time, batch_most, admission })
    }

    /// Admits peers of any user.
    pub fn admitting_all(self) -> Bench {
        Bench { admission: Admission::AnyUser, ..self }
    }

    /// Measures bare sockets with the same peer, between two measurements of weft.
    pub fn bare(&mut self, to: IpAddr) -> Bare<'_> {
        Bare { peer: &mut self.peer, source: &self.source, to, time: self.time }
    }

    /// Round trip of a request of `size` bytes and a reply of the same size.
    pub fn round_trip(&mut self, size: usize) -> Result<Sampled, Error> {
        self.round_trip_of_many(size, 1, Who::Fixed)
    }

    /// The same between processes that both wait.
    pub fn round_trip_waiting(&mut self, size: usize, waiting: Waiting) -> Result<Sampled, Error> {
        let (mut caller, tally) = self.waiting_caller(size, waiting)?;
        let sampled = caller.trip().and_then(|()| trips(&mut caller, self.time, self.batch(size)));
        let sampled = self.or_its_cause(sampled)?;
        let account = self.stop(&mut caller)?;
        self.compare(size, &tally, account)?;
        Ok(sampled)
    }

    /// Round trip of a request and a reply of `size` bytes that are the same every time and that nobody reads, which is what UCX's
    /// benchmark measures.
    pub fn round_trip_unread(&mut self, size: usize) -> Result<Sampled, Error> {
        let (mut caller, tally) = self.caller(size)?;
        caller.is_unread = true;
        let sampled = caller.trip().and_then(|()| trips(&mut caller, self.time, self.batch(size)));
        let sampled = self.or_its_cause(sampled)?;
        let account = self.stop(&mut caller)?;
        agree("the numbers of requests and replies", account.received, tally.count.get())?;
        Ok(sampled)
    }

    /// The same with this many bundles of this process in session with the one that answers.
    pub fn round_trip_of_many(&mut self, size: usize, bundles: usize, who: Who) -> Result<Sampled, Error> {
        let contacts = self.peer.give(&Job::Echo { size, waiting: Waiting::Polls })?;
        let tally = Rc::new(Tally::default());
        self.source.rewind(size, Half::First);
        let mut callers = Vec::with_capacity(bundles);
        for _ in 0..bundles {
            let mut caller = Caller::new(&self.node, &contacts[0], &self.source, &tally, size)?;
            caller.bundle.set_admission(caller.endpoint, self.admission)?;
            self.or_its_cause(caller.trip())?;
            callers.push(caller);
        }
        let (time, batch) = (self.time, self.batch(size));
        let sampled = match who {
            Who::Fixed => trips(&mut callers[0], time, batch),
            Who::Drawn => drawn_trips(&mut callers, time, batch),
        };
        let sampled = self.or_its_cause(sampled)?;
        let account = self.stop(&mut callers[0])?;
        self.compare(size, &tally, account)?;
        Ok(sampled)
    }

    /// The same between bundles with this many endpoints, one of which is busy.
    pub fn round_trip_among(&mut self, size: usize, endpoints: usize) -> Result<Sampled, Error> {
        let contacts = self.peer.give(&Job::EchoAmong { size, endpoints })?;
        let tally = Rc::new(Tally::default());
        self.source.rewind(size, Half::First);
        let mut caller = Caller::new(&self.node, &contacts[0], &self.source, &tally, size)?;
        add_idle(&mut caller.bundle, endpoints - 1)?;
        let sampled = caller.trip().and_then(|()| trips(&mut caller, self.time, self.batch(size)));
        let sampled = self.or_its_cause(sampled)?;
        let account = self.stop(&mut caller)?;
        self.compare(size, &tally, account)?;
        Ok(sampled)
    }

    /// The same with a shared bundle that one thread uses.
    pub fn round_trip_shared(&mut self, size: usize) -> Result<Sampled, Error> {
        let contacts = self.peer.give(&Job::Echo { size, waiting: Waiting::Polls })?;
        self.source.rewind(size, Half::First);
        let mut caller = SharedCaller::new(&self.node, &contacts[0], &self.source, size)?;
        let batch = self.batch(size);
        let mut run = || {
            caller.trip()?;
            let mut meter = Meter::start(Per::Unit, self.time);
            loop {
                for _ in 0..batch {
                    caller.trip()?;
                }
                if !meter.tick(f64::from(batch)) {
                    return Ok(meter.finish());
                }
            }
        };
        let sampled = run();
        let sampled = self.or_its_cause(sampled)?;
        caller.stop()?;
        let account = self.peer.finish()?;
        self.compare(size, &caller.tally(), account)?;
        Ok(sampled)
    }

    /// Requests answered per second, with [`WINDOW`] of them under way.
    pub fn request_rate(&mut self, size: usize) -> Result<Sampled, Error> {
        let (mut caller, tally) = self.caller(size)?;
        let mut run = || {
            caller.trip()?;
            let mut meter = Meter::start(Per::Second, self.time);
            let (mut asked, mut ticked) = (tally.count.get(), tally.count.get());
            loop {
                while asked - tally.count.get() < WINDOW && caller.try_ask()? {
                    asked += 1;
                }
                caller.turn()?;
                let answered = tally.count.get();
                if answered - ticked >= TICK_BYTES / size as u64 {
                    if !meter.tick((answered - ticked) as f64) {
                        break;
                    }
                    ticked = answered;
                }
            }
            caller.wait_for(asked)?;
            Ok(meter.finish())
        };
        let sampled = run();
        let sampled = self.or_its_cause(sampled)?;
        let account = self.stop(&mut caller)?;
        self.compare(size, &tally, account)?;
        Ok(sampled)
    }

    /// One-way messages received, per second.
    pub fn rate(&mut self, size: usize) -> Result<Sampled, Error> {
        self.receive(size, 1.0, Landing::InPlace)
    }

    /// Bytes received one way, per second.
    pub fn bandwidth(&mut self, size: usize, landing: Landing) -> Result<Sampled, Error> {
        self.receive(size, size as f64, landing)
    }

    /// How long one-way messages are under way that are sent one at a time. After each, this process computes for `pause` without
    /// polling. Both processes must be on one machine, whose clock they share.
    pub fn lone(&mut self, count: u32, pause: Duration) -> Result<Sampled, Error> {
        let contacts = self.peer.give(&Job::Note)?;
        let tally = Rc::new(Tally::default());
        self.source.rewind(ARGS_BYTES_MOST, Half::First);
        let mut caller = Caller::new(&self.node, &contacts[0], &self.source, &tally, ARGS_BYTES_MOST)?;
        let sent = (0..count).try_for_each(|_| caller.send_alone(pause));
        self.or_its_cause(sent)?;
        let seen = caller.trip();
        self.or_its_cause(seen)?;
        caller.bundle.send(caller.endpoint, 0, ask::STOP, &[], &[])?;
        caller.bundle.flush();
        let noted = self.peer.finish_noting()?;
        agree("the numbers of lone messages sent and received", u64::from(count), noted.len() as u64)?;
        Ok(summarize(noted, Per::Unit))
    }

    /// How long one-way messages wait for their acknowledgement while the peer computes without polling. The peer computes `times`
    /// times, each time after it has polled for a while.
    pub fn acknowledged(&mut self, times: u32, computes: Duration) -> Result<Sampled, Error> {
        let contacts = self.peer.give(&Job::Compute)?;
        let tally = Rc::new(Tally::default());
        self.source.rewind(ARGS_BYTES_MOST, Half::First);
        let mut caller = Caller::new(&self.node, &contacts[0], &self.source, &tally, ARGS_BYTES_MOST)?;
        let mut samples = Vec::new();
        let measured = (0..times).try_for_each(|_| caller.send_while_it_computes(computes, &mut samples));
        self.or_its_cause(measured)?;
        let account = self.stop(&mut caller)?;
        self.compare(ARGS_BYTES_MOST, &tally, account)?;
        Ok(summarize(samples, Per::Unit))
    }

    /// The processor's cost of sending and receiving, after Culler and others ("LogP Performance Assessment of Fast Network
    /// Interfaces", 1996). o_s is the time to issue a request, in bursts that do not stall. For o_r, a delay longer than the round
    /// trip follows each request, so that the reply is there when the processor looks; o_r is the time per request beyond o_s and
    /// the delay. L is half of a round trip less both. All are measured in turns within one run.
    pub fn overheads(&mut self, size: usize) -> Result<Overheads, Error> {
        let (mut caller, tally) = self.caller(size)?;
        let end = Instant::now() + self.time;
        let mut run = || {
            let [mut os, mut both, mut rtt] = [(); 3].map(|()| Vec::with_capacity(1 << 16));
            let clock = clock_ns();
            let delay = delay_beyond(&mut caller)?;
            while os.len() < 16 || Instant::now() < end {
                os.push((caller.burst()? - clock) / BURST as f64);
                let with = caller.spaced(delay)?;
                let start = Instant::now();
                (0..BURST).for_each(|_| spin(delay));
                let without = start.elapsed().as_nanos() as f64;
                both.push((with - without) / BURST as f64);
                rtt.push((caller.spaced(0)? - clock) / BURST as f64);
            }
            Ok([os, both, rtt])
        };
        let samples = run();
        let [os, both, rtt] = self.or_its_cause(samples)?;
        let account = self.stop(&mut caller)?;
        self.compare(size, &tally, account)?;
        let less =
            |samples: Vec<f64>, ns: f64| summarize(samples.iter().map(|s| (s - ns).max(0.0)).collect(), Per::Unit);
        let os = summarize(os, Per::Unit);
        let or = less(both, os.median);
        let l = less(rtt.into_iter().map(|ns| ns / 2.0).collect(), os.median + or.median);
        Ok(Overheads { os, or, l })
    }

    /// Single round trips to an endpoint beside one that is never served: before and after the latter's queue was filled.
    pub fn beside_unserved(&mut self, size: usize) -> Result<Beside, Error> {
        let contacts = self.peer.give(&Job::EchoBesideIdle { size })?;
        let tally = Rc::new(Tally::default());
        self.source.rewind(size, Half::First);
        let mut caller = Caller::new(&self.node, &contacts[0], &self.source, &tally, size)?;
        let time = self.time;
        let mut run = || {
            caller.trip()?;
            let alone = trips(&mut caller, time, 1)?;
            fill(&mut caller, &contacts[1])?;
            let beside_full = trips(&mut caller, time, 1)?;
            Ok(Beside { alone, beside_full })
        };
        let beside = run();
        let beside = self.or_its_cause(beside)?;
        let account = self.stop(&mut caller)?;
        self.compare(size, &tally, account)?;
        Ok(beside)
    }

    fn receive(&mut self, size: usize, units: f64, landing: Landing) -> Result<Sampled, Error> {
        let mut bundle = Bundle::new(&self.node)?;
        let endpoint = bundle.endpoint_with_random_key()?;
        bundle.set_admission(endpoint, self.admission)?;
        let tally = Rc::new(Tally::default());
        count_answers(&mut bundle, endpoint, &tally)?;
        if landing == Landing::Copied {
            copy_answers(&mut bundle, endpoint, &tally, size)?;
        }
        let to = contact(&bundle, endpoint)?;
        let contacts = self.peer.give(&Job::Stream { size, to })?;
        let (name, key) = contacts[0].read()?;
        bundle.map(endpoint, 0, name, key)?;
        let mut run = || {
            let (mut ticked, mut quiet) = (0, Quiet::new());
            let mut meter = Meter::start(Per::Second, self.time);
            loop {
                if bundle.poll() == 0 {
                    quiet.look_now_and_then(&mut bundle, tally.count.get())?;
                }
                let count = tally.count.get();
                if (count - ticked) * size as u64 >= TICK_BYTES {
                    if !meter.tick((count - ticked) as f64 * units) {
                        break;
                    }
                    ticked = count;
                }
            }
            bundle.send(endpoint, 0, ask::STOP, &[], &[])?;
            Ok(meter.finish())
        };
        let sampled = run();
        let sampled = self.or_its_cause(sampled)?;
        let sent = self.drain(&mut bundle, &tally)?;
        let expected = self.source.sum_of(size, Half::First, sent);
        agree("the numbers of messages sent and received one way", sent, tally.count.get())?;
        agree("the sums of the bytes sent and received one way", expected, tally.sum.get())?;
        Ok(sampled)
    }

    /// Receives until the sender is done and all messages are here. Returns how many it has sent.
    fn drain(&mut self, bundle: &mut Bundle, tally: &Tally) -> Result<u64, Error> {
        let start = Instant::now();
        let account = loop {
            if let Some(account) = self.peer.finished()? {
                break account;
            }
            if start.elapsed() > PATIENCE {
                let what = "the sender's word that it is done".to_owned();
                return Err(Error::Silence { seconds: PATIENCE.as_secs(), what });
            }
            (0..256).for_each(|_| _ = bundle.poll());
        };
        while tally.count.get() < account.sent && start.elapsed() < PATIENCE {
            (0..256).for_each(|_| _ = bundle.poll());
        }
        Ok(account.sent)
    }

    fn caller(&mut self, size: usize) -> Result<(Caller, Rc<Tally>), Error> {
        self.waiting_caller(size, Waiting::Polls)
    }

    fn waiting_caller(&mut self, size: usize, waiting: Waiting) -> Result<(Caller, Rc<Tally>), Error> {
        let contacts = self.peer.give(&Job::Echo { size, waiting })?;
        let tally = Rc::new(Tally::default());
        self.source.rewind(size, Half::First);
        let mut caller = Caller::new(&self.node, &contacts[0], &self.source, &tally, size)?;
        waiting.set(&mut caller.bundle);
        caller.waiting = waiting;
        Ok((caller, tally))
    }

    pub(super) fn stop(&mut self, caller: &mut Caller) -> Result<Account, Error> {
        caller.bundle.send(caller.endpoint, 0, ask::STOP, &[], &[])?;
        caller.bundle.flush();
        self.peer.finish()
    }

    /// Round trips per sample.
    fn batch(&self, size: usize) -> u32 {
        self.batch_most.min(if size <= 1024 { BATCH } else { 16 })
    }

    /// Checks that both processes received what the other one sent.
    pub(super) fn compare(&self, size: usize, tally: &Tally, account: Account) -> Result<(), Error> {
        let count = tally.count.get();
        agree("the numbers of requests and replies", account.received, count)?;
        let there = self.source.sum_of(size, Half::First, count);
        agree("the sums of the requests' bytes sent and received", there, account.received_sum)?;
        let back = self.source.sum_of(size, Half::Second, count);
        agree("the sums of the replies' bytes sent and received", back, tally.sum.get())
    }

    /// If the peer was lost, asks it for the reason.
    pub(super) fn or_its_cause<T>(&mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        match outcome {
            Err(seen @ Error::Process { .. }) => Err(self.peer.cause_of_loss(seen)),
            other => other,
        }
    }
}

/// A bundle that sends requests and counts the answers.
pub(super) struct Caller {
    pub bundle: Bundle,
    endpoint: Endpoint,
    source: Rc<Source>,
    pub tally: Rc<Tally>,
    size: usize,
    /// Whether the same bytes go every time and are not read.
    is_unread: bool,
    waiting: Waiting,
    quiet: Quiet,
}

impl Caller {
    pub fn new(
        node: &Node,
        to: &Contact,
        source: &Rc<Source>,
        tally: &Rc<Tally>,
        size: usize,
    ) -> Result<Caller, Error> {
        let mut bundle = Bundle::new(node)?;
        let endpoint = bundle.endpoint_with_random_key()?;
        let (name, key) = to.read()?;
        bundle.map(endpoint, 0, name, key)?;
        count_answers(&mut bundle, endpoint, tally)?;
        let (source, tally) = (source.clone(), tally.clone());
        Ok(Caller {
            bundle,
            endpoint,
            source,
            tally,
            size,
            is_unread: false,
            waiting: Waiting::Polls,
            quiet: Quiet::new(),
        })
    }

    /// Sends a request. False if there is no room.
    #[inline(always)]
    pub fn try_ask(&mut self) -> Result<bool, Error> {
        let (source, size) = (&self.source, self.size);
        if self.is_unread {
            return Ok(self.bundle.try_request(self.endpoint, 0, ask::UNREAD, &[], source.message(size)).is_ok());
        }
        try_ask(&mut self.bundle, self.endpoint, source, size)
    }

    #[inline(always)]
    fn ask(&mut self) -> Result<(), Error> {
        while !self.try_ask()? {
            self.turn()?;
        }
        Ok(())
    }

    /// One poll.
    #[inline(always)]
    fn turn(&mut self) -> Result<(), Error> {
        if self.waiting.turn(&mut self.bundle) == 0 {
            self.quiet.look_now_and_then(&mut self.bundle, self.tally.count.get())?;
        }
        Ok(())
    }

    #[inline(always)]
    fn wait_for(&mut self, answers: u64) -> Result<(), Error> {
        while self.tally.count.get() < answers {
            self.turn()?;
        }
        Ok(())
    }

    /// One request and its answer.
    #[inline(always)]
    fn trip(&mut self) -> Result<(), Error> {
        let answers = self.tally.count.get() + 1;
        self.ask()?;
        self.wait_for(answers)
    }

    /// Makes a round trip, so that nothing is under way, sends a message that carries its time, then works without polling.
    fn send_alone(&mut self, pause: Duration) -> Result<(), Error> {
        self.trip()?;
        let settled = Instant::now();
        while settled.elapsed() < SETTLE {
            self.turn()?;
        }
        let now = monotonic_ns();
        self.bundle.try_send(self.endpoint, 0, ask::NOTE, &[now as u32, (now >> 32) as u32], &[])?;
        let sent = Instant::now();
        while sent.elapsed() < pause {
            spin(1000);
        }
        Ok(())
    }

    /// Makes the peer poll for a while and then compute, and sends it messages at the same time. Notes how many nanoseconds each
    /// waits for its acknowledgement.
    fn send_while_it_computes(&mut self, computes: Duration, samples: &mut Vec<f64>) -> Result<(), Error> {
        let start = Instant::now();
        while start.elapsed() < POLLS_BEFORE {
            self.trip()?;
        }
        let told = Instant::now();
        // The peer begins to compute before it has acknowledged this message.
        let mut message = (ask::COMPUTE, computes.as_millis() as u32);
        let mut gaps = (1u32..).map(|n| GAP_MOST * (n * 37 % 100) / 100);
        while told.elapsed() + 2 * GAP_MOST < computes {
            let sent = Instant::now();
            self.bundle.try_send(self.endpoint, 0, message.0, &[message.1], &[])?;
            while !self.bundle.is_acknowledged() {
                self.turn()?;
            }
            samples.push(sent.elapsed().as_nanos() as f64);
            message = (ask::NOTE, 0);
            let (start, gap) = (Instant::now(), gaps.next().unwrap_or(GAP_MOST));
            while start.elapsed() < gap {
                self.turn()?;
            }
        }
        // The peer polls again.
        self.trip()
    }

    /// Nanoseconds to issue a burst of requests. Waits for their answers afterwards.
    fn burst(&mut self) -> Result<f64, Error> {
        let answers = self.tally.count.get() + BURST;
        let start = Instant::now();
        for _ in 0..BURST {
            self.ask()?;
        }
        let ns = start.elapsed().as_nanos() as f64;
        self.wait_for(answers)?;
        Ok(ns)
    }

    /// Nanoseconds for as many requests as in a burst, with a delay between each request and the look for its answer.
    fn spaced(&mut self, delay: u32) -> Result<f64, Error> {
        let start = Instant::now();
        for _ in 0..BURST {
            let answers = self.tally.count.get() + 1;
            self.ask()?;
            spin(delay);
            self.wait_for(answers)?;
        }
        Ok(start.elapsed().as_nanos() as f64)
    }
}

pub(super) fn count_answers(bundle: &mut Bundle, endpoint: Endpoint, tally: &Rc<Tally>) -> Result<(), Error> {
    let seen = tally.clone();
    bundle.on(endpoint, answer::ARGS, move |m| seen.add(sum_args(m.args())))?;
    let seen = tally.clone();
    bundle.on(endpoint, answer::PAYLOAD, move |m| seen.add(sum_bytes(m.payload())))?;
    let seen = tally.clone();
    bundle.on(endpoint, answer::UNREAD, move |_| seen.add(0))?;
    Ok(())
}

/// The same for messages that are copied before they are read.
fn copy_answers(bundle: &mut Bundle, endpoint: Endpoint, tally: &Rc<Tally>, size: usize) -> Result<(), Error> {
    let seen = tally.clone();
    let mut own = vec![0u8; size];
    bundle.on(endpoint, answer::PAYLOAD, move |m| {
        let bytes = m.payload();
        match own.get_mut(..bytes.len()) {
            Some(own) => {
                own.copy_from_slice(bytes);
                seen.add(sum_bytes(black_box(own)));
            }
            None => seen.add(0),
        }
    })?;
    Ok(())
}

/// Guards a wait: the peer must live, and must not be silent for long.
pub(super) struct Quiet {
    idle: u32,
    count: u64,
    since: Instant,
}

impl Quiet {
    pub fn new() -> Quiet {
        Quiet { idle: 0, count: 0, since: Instant::now() }
    }

    /// To be called after a poll without messages. `count` is the number of messages received so far.
    #[inline(always)]
    pub fn look_now_and_then(&mut self, bundle: &mut Bundle, count: u64) -> Result<(), Error> {
        self.idle = self.idle.wrapping_add(1);
        match self.idle % LOOK_EVERY {
            0 => self.look(bundle, count),
            _ => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self, bundle: &mut Bundle, count: u64) -> Result<(), Error> {
        expect_life(bundle)?;
        if std::mem::replace(&mut self.count, count) != count {
            self.since = Instant::now();
        }
        if self.since.elapsed() > PATIENCE {
            let what = "a message of the peer".to_owned();
            return Err(Error::Silence { seconds: PATIENCE.as_secs(), what });
        }
        Ok(())
    }
}

fn trips(caller: &mut Caller, time: Duration, batch: u32) -> Result<Sampled, Error> {
    let mut meter = Meter::start(Per::Unit, time);
    loop {
        for _ in 0..batch {
            caller.trip()?;
        }
        if !meter.tick(f64::from(batch)) {
            return Ok(meter.finish());
        }
    }
}

fn drawn_trips(callers: &mut [Caller], time: Duration, batch: u32) -> Result<Sampled, Error> {
    let mut drawn = 0x2545_f491_4f6c_dd1d_u64;
    let mut meter = Meter::start(Per::Unit, time);
    loop {
        for _ in 0..batch {
            // xorshift64: cheap, and in no order that branch predictors could learn.
            drawn ^= drawn << 13;
            drawn ^= drawn >> 7;
            drawn ^= drawn << 17;
            let which = (drawn >> 32) as usize % callers.len();
            callers[which].trip()?;
        }
        if !meter.tick(f64::from(batch)) {
            return Ok(meter.finish());
        }
    }
}

/// Sends to an endpoint that is not served until it has been full for a while.
fn fill(caller: &mut Caller, to: &Contact) -> Result<(), Error> {
    const AT: u32 = 1;
    let (name, key) = to.read()?;
    let bundle = &mut caller.bundle;
    let sender = bundle.endpoint_with_random_key()?;
    bundle.map(sender, AT, name, key)?;
    let message = [1u8; 1024];
    let mut refusals = 0;
    while refusals < FULL_AFTER {
        match bundle.try_send(sender, AT, ask::PAYLOAD, &[], &message) {
            Ok(()) => refusals = 0,
            Err(SendError::Full) => {
                refusals += 1;
                bundle.poll();
            }
            Err(error) => return Err(error.into()),
        }
    }
    // Messages that came back from the full queue do not matter here.
    while bundle.next_event().is_some() {}
    Ok(())
}

/// Works for a time proportional to `rounds`, without touching memory.
#[inline(never)]
fn spin(rounds: u32) {
    let mut x = black_box(1u64);
    for _ in 0..rounds {
        x = black_box(x.wrapping_mul(5).wrapping_add(1));
    }
}

/// Rounds of [`spin`] that take four round trips and at least 2 µs.
fn delay_beyond(caller: &mut Caller) -> Result<u32, Error> {
    const ROUNDS: u32 = 10_000;
    let mut trips = Vec::new();
    for _ in 0..256 {
        let start = Instant::now();
        caller.trip()?;
        trips.push(start.elapsed().as_nanos() as f64);
    }
    let spins = (0..16).map(|_| {
        let start = Instant::now();
        spin(ROUNDS);
        start.elapsed().as_nanos() as f64
    });
    let round = summarize(spins.collect(), Per::Unit).median / f64::from(ROUNDS);
    let delay = (4.0 * summarize(trips, Per::Unit).median).max(2000.0);
    Ok((delay / round) as u32)
}

/// The time to read the clock.
pub(super) fn clock_ns() -> f64 {
    let reads = (0..1000).map(|_| {
        let start = Instant::now();
        start.elapsed().as_nanos() as f64
    });
    summarize(reads.collect(), Per::Unit).median
}

pub(super) fn agree(what: &str, left: u64, right: u64) -> Result<(), Error> {
    match left == right {
        true => Ok(()),
        false => Err(Error::Mismatch { what: what.to_owned(), left: left.to_string(), right: right.to_string() }),
    }
}
