//! The second process of a measurement: it answers or sends, and reports at the end what it received and sent.

use super::am;
use super::bare;
use super::contention;
use super::daemon;
use super::hosts::rights;
use super::machine::{pin, Cpus};
use super::memory;
use super::source::{sum_args, sum_bytes, Half, Source};
use super::talk::{Account, Answer, Contact, Job, Polls, Waiting};
use super::PeerOptions;
use crate::child;
use crate::error::Error;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use rustix::time::{clock_gettime, ClockId};
use std::cell::{Cell, OnceCell, RefCell};
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::memory::Window;
use weft::{Admission, Bundle, Endpoint, Event, Node, SendError};

/// Handlers of endpoints that answer or send.
pub mod ask {
    /// A request with arguments only.
    pub const ARGS: u8 = 1;
    /// A request with a payload.
    pub const PAYLOAD: u8 = 2;
    /// The measurement is over.
    pub const STOP: u8 = 3;
    /// A request with a payload that nobody reads; the reply is not read either.
    pub const UNREAD: u8 = 4;
    /// A message that carries the time at which it was sent, in two arguments.
    pub const NOTE: u8 = 5;
    /// Makes the peer compute for as many milliseconds as its argument says.
    pub const COMPUTE: u8 = 6;
}

/// Handlers of endpoints that measure.
pub mod answer {
    /// A reply, or a one-way message, with arguments only.
    pub const ARGS: u8 = 1;
    /// The same with a payload.
    pub const PAYLOAD: u8 = 2;
    /// A reply with a payload that nobody reads.
    pub const UNREAD: u8 = 3;
}

/// Messages up to this size are sent as arguments.
pub const ARGS_BYTES_MOST: usize = 16;

/// Sends a request with the source's next message. False if there is no room. Each form of message has a call of its own, so that
/// it is compiled into the loop that asks, as with the bare rings, without the code of the other form.
#[inline(always)]
pub fn try_ask(bundle: &mut Bundle, from: Endpoint, source: &Source, size: usize) -> Result<bool, Error> {
    let asked = match size <= ARGS_BYTES_MOST {
        true => bundle.try_request(from, 0, ask::ARGS, &source.args(size)[..size / 4], &[]),
        false => bundle.try_request(from, 0, ask::PAYLOAD, &[], source.message(size)),
    };
    note_asked(asked, source, size)
}

/// Goes on to the source's next message if this one was accepted.
#[inline(always)]
pub fn note_asked(asked: Result<(), SendError>, source: &Source, size: usize) -> Result<bool, Error> {
    match asked {
        Ok(()) => {
            source.advance(size);
            Ok(true)
        }
        Err(SendError::Full) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The most messages per job whose time is noted.
const NOTES_MOST: usize = 1 << 12;

/// Turns without a message between two checks that the other process lives.
const LOOK_EVERY: u32 = 1 << 16;

/// The variable that tells weft the address for its names.
const ADDRESS_VARIABLE: &str = "WEFT_ADDR";

/// Messages that a sender sends between two polls.
const SENDS_PER_POLL: u32 = 64;

/// What the handlers received.
#[derive(Debug, Default)]
pub struct Tally {
    pub count: Cell<u64>,
    pub sum: Cell<u64>,
    pub is_stopped: Cell<bool>,
}

impl Tally {
    /// Counts one message, with the sum of its bytes.
    #[inline(always)]
    pub fn add(&self, sum: u64) {
        self.count.set(self.count.get() + 1);
        self.sum.set(self.sum.get().wrapping_add(sum));
    }
}

/// The command that starts the second process, on the second CPU.
pub fn command(cpus: Cpus) -> Result<Command, Error> {
    let mut command = child::myself()?;
    command.args(["bench-peer", "--cpu", &cpus.theirs.to_string()]);
    Ok(command)
}

/// Does the jobs that arrive on standard input until it ends.
pub fn run(options: &PeerOptions) -> Result<(), Error> {
    child::die_with_parent()?;
    options.cpu.map_or(Ok(()), pin)?;
    if options.ordinary {
        rights::give_up()?;
    }
    let mut admission = Admission::OwnUser;
    if let Some(user) = options.user {
        rights::become_user(user)?;
        // Changing the user has cut the process off from its parent's death; ask for it again.
        child::die_with_parent()?;
        admission = Admission::AnyUser;
    }
    let worker = Worker { local_in: options.local_in.clone(), admission, ..Worker::new(Gone::default())? };
    let mut out = std::io::stdout();
    std::io::stdin().lock().lines().try_for_each(|line| worker.answer(line, &mut out))
}

/// What a worker needs for its jobs.
#[derive(Debug)]
pub struct Worker {
    node: Node,
    /// The network namespace of the process that measures, if it differs.
    local_in: Option<PathBuf>,
    /// A node in that namespace, without a network. Made on demand.
    local: OnceCell<Node>,
    /// The endpoints' admission.
    admission: Admission,
    /// Made on demand: a process that is killed at once does not spend time on freeing it.
    source: OnceCell<Rc<Source>>,
    /// This program's own memory, which is lent to one region after the other.
    lent: OnceCell<Window>,
    gone: Gone,
}

/// Set when the process that gives the jobs is gone.
pub type Gone = Arc<AtomicBool>;

impl Worker {
    /// With a node of its own.
    pub fn new(gone: Gone) -> Result<Worker, Error> {
        let (local_in, local, admission) = (None, OnceCell::new(), Admission::default());
        Ok(Worker {
            node: Node::new()?,
            local_in,
            local,
            admission,
            source: OnceCell::new(),
            lent: OnceCell::new(),
            gone,
        })
    }

    /// Does the job in a line.
    pub fn answer(&self, line: std::io::Result<String>, out: &mut dyn Write) -> Result<(), Error> {
        let cannot = |e| Error::system("read the next job", e, "Start this role through `weft bench` only");
        let job: Job = serde_json::from_str(&line.map_err(cannot)?).map_err(|e| cannot(e.into()))?;
        let answer = self.work(&job, out);
        say(&answer.unwrap_or_else(|error| Answer::Failed(error.to_string())), out)
    }

    fn work(&self, job: &Job, out: &mut dyn Write) -> Result<Answer, Error> {
        let Worker { node, gone, .. } = self;
        let mut bundle = Bundle::new(node)?;
        let tally = Rc::new(Tally::default());
        let endpoint = bundle.endpoint_with_random_key()?;
        bundle.set_admission(endpoint, self.admission)?;
        let stopped = tally.clone();
        bundle.on(endpoint, ask::STOP, move |_| stopped.is_stopped.set(true))?;
        let noted = Rc::new(RefCell::new(Vec::with_capacity(NOTES_MOST)));
        let mut contacts = vec![contact(&bundle, endpoint)?];
        let mut waiting = Waiting::Polls;
        match job {
            Job::Echo { size, waiting: how } => {
                echo(&mut bundle, endpoint, self.source(), &tally, *size)?;
                how.set(&mut bundle);
                waiting = *how;
            }
            Job::EchoAmong { size, endpoints } => {
                add_idle(&mut bundle, endpoints - 1)?;
                echo(&mut bundle, endpoint, self.source(), &tally, *size)?;
            }
            Job::EchoBesideIdle { size } => {
                let idle = bundle.endpoint_with_random_key()?;
                bundle.on(idle, ask::PAYLOAD, |_| {})?;
                bundle.set_served(idle, false)?;
                contacts.push(contact(&bundle, idle)?);
                echo(&mut bundle, endpoint, self.source(), &tally, *size)?;
            }
            Job::Keep => {
                let mut kept = Vec::new();
                bundle.on(endpoint, ask::ARGS, move |m| kept.extend(m.defer()))?;
                waiting = Waiting::Sleeps;
                waiting.set(&mut bundle);
            }
            Job::Memory(job) => return memory::serve((node, self.source(), gone), &self.lent, job, out),
            Job::Contention(job) => {
                // The daemon must serve only the experiment's endpoints.
                drop(bundle);
                return contention::play(node, job, out);
            }
            Job::Write(job) => {
                drop(bundle);
                return daemon::write(node, job, out);
            }
            Job::Am(job) => {
                drop(bundle);
                return am::serve((node, self.source(), gone), *job, out);
            }
            Job::Bare(job) => return bare::serve(*job, self.source(), gone, out),
            Job::EchoAtTwo { size, polls } => return self.echo_at_two(*size, *polls, out),
            Job::Note => {
                echo(&mut bundle, endpoint, self.source(), &tally, ARGS_BYTES_MOST)?;
                note(&mut bundle, endpoint, &noted)?;
            }
            Job::Compute => echo(&mut bundle, endpoint, self.source(), &tally, ARGS_BYTES_MOST)?,
            Job::Stream { size, to } => {
                let (name, key) = to.read()?;
                bundle.map(endpoint, 0, name, key)?;
                self.source().rewind(*size, Half::First);
            }
        }
        say(&Answer::Ready(contacts), out)?;
        let sent = match job {
            Job::Stream { size, .. } => send_until_stopped(&mut bundle, endpoint, self.source(), &tally, *size)?,
            Job::Compute => compute_until_stopped(&mut bundle, endpoint, &tally, gone)?,
            _ => {
                serve_until_stopped(&mut bundle, &tally, gone, waiting)?;
                tally.count.get()
            }
        };
        Ok(match job {
            Job::Note => Answer::Noted(noted.take()),
            _ => Answer::Done(Account { received: tally.count.get(), received_sum: tally.sum.get(), sent }),
        })
    }
}

impl Worker {
    /// One thread answers on both paths, so that no two processes take turns on the CPU.
    fn echo_at_two(&self, size: usize, polls: Polls, out: &mut dyn Write) -> Result<Answer, Error> {
        let tally = Rc::new(Tally::default());
        let open = |node: &Node| {
            let mut bundle = Bundle::new(node)?;
            let endpoint = bundle.endpoint_with_random_key()?;
            let stopped = tally.clone();
            bundle.on(endpoint, ask::STOP, move |_| stopped.is_stopped.set(true))?;
            echo(&mut bundle, endpoint, self.source(), &tally, size)?;
            let contact = contact(&bundle, endpoint)?;
            Ok::<_, Error>((bundle, contact))
        };
        let (mut memory, near) = open(self.local_node()?)?;
        let (mut network, far) = open(&self.node)?;
        say(&Answer::Ready(vec![near, far]), out)?;
        let mut turns = 0u32;
        while !tally.is_stopped.get() {
            let mut still = 0;
            for _ in 0..polls.memory {
                still = if memory.poll() == 0 { still + 1 } else { 0 };
                if still == polls.still {
                    break;
                }
            }
            (0..polls.network).for_each(|_| _ = network.poll());
            turns = turns.wrapping_add(1);
            if turns % LOOK_EVERY == 0 {
                expect_life(&mut memory)?;
                expect_life(&mut network)?;
                expect_jobs(&self.gone)?;
            }
        }
        Ok(Answer::Done(Account { received: tally.count.get(), received_sum: tally.sum.get(), sent: 0 }))
    }

    fn source(&self) -> &Rc<Source> {
        self.source.get_or_init(|| Rc::new(Source::new()))
    }

    /// A node that the measuring process reaches only through memory: its set-up socket is in that process's network namespace.
    fn local_node(&self) -> Result<&Node, Error> {
        if let Some(node) = self.local.get() {
            return Ok(node);
        }
        let address = std::env::var_os(ADDRESS_VARIABLE);
        std::env::set_var(ADDRESS_VARIABLE, "none");
        let node = match &self.local_in {
            Some(there) => within(there),
            None => Node::new().map_err(Error::from),
        };
        match address {
            Some(address) => std::env::set_var(ADDRESS_VARIABLE, address),
            None => std::env::remove_var(ADDRESS_VARIABLE),
        }
        let node = node?;
        Ok(self.local.get_or_init(|| node))
    }
}

/// A node whose set-up socket is in another network namespace. This thread then returns to its own.
fn within(namespace: &Path) -> Result<Node, Error> {
    let cannot = |e| Error::system("enter a network namespace", e, "Start this role through `weft bench hosts` only");
    let enter = |namespace: &File| {
        let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        entered.map_err(|e| cannot(e.into()))
    };
    let own = File::open("/proc/thread-self/ns/net").map_err(cannot)?;
    enter(&File::open(namespace).map_err(cannot)?)?;
    let node = Node::new();
    enter(&own)?;
    Ok(node?)
}

/// Sends an answer to the first process.
pub fn say(answer: &Answer, out: &mut dyn Write) -> Result<(), Error> {
    let cannot = |e| Error::system("answer the first process", e, "Start this role through `weft bench` only");
    let line = serde_json::to_string(answer).map_err(|e| cannot(e.into()))?;
    // One write: on a network, the end must not wait for the beginning's acknowledgement.
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).map_err(cannot)
}

/// The address of an endpoint.
pub fn contact(bundle: &Bundle, endpoint: Endpoint) -> Result<Contact, Error> {
    Ok(Contact::new(bundle.name(endpoint)?, bundle.key(endpoint)?))
}

/// Answers each request with a message of the same size from the source's second half.
fn echo(
    bundle: &mut Bundle,
    endpoint: Endpoint,
    source: &Rc<Source>,
    tally: &Rc<Tally>,
    size: usize,
) -> Result<(), Error> {
    source.rewind(size, Half::Second);
    let (seen, from) = (tally.clone(), source.clone());
    bundle.on(endpoint, ask::ARGS, move |m| {
        seen.add(sum_args(m.args()));
        // If a reply is not accepted, the other process misses it and reports that.
        let _ = m.reply(answer::ARGS, &from.args(size)[..size / 4], &[]);
        from.advance(size);
    })?;
    let (seen, from) = (tally.clone(), source.clone());
    bundle.on(endpoint, ask::PAYLOAD, move |m| {
        seen.add(sum_bytes(m.payload()));
        let _ = m.reply(answer::PAYLOAD, &[], from.message(size));
        from.advance(size);
    })?;
    let (seen, from) = (tally.clone(), source.clone());
    bundle.on(endpoint, ask::UNREAD, move |m| {
        seen.add(0);
        let _ = m.reply(answer::UNREAD, &[], from.message(size));
    })?;
    Ok(())
}

/// Makes endpoints that stay idle.
pub fn add_idle(bundle: &mut Bundle, endpoints: usize) -> Result<(), Error> {
    for _ in 0..endpoints {
        let idle = bundle.endpoint_with_random_key()?;
        bundle.on(idle, ask::ARGS, |_| {})?;
    }
    Ok(())
}

/// Notes how long messages were under way. Both sides must read the same clock.
fn note(bundle: &mut Bundle, endpoint: Endpoint, noted: &Rc<RefCell<Vec<f64>>>) -> Result<(), Error> {
    let noted = noted.clone();
    bundle.on(endpoint, ask::NOTE, move |m| {
        let now = monotonic_ns();
        let mut noted = noted.borrow_mut();
        if let (&[low, high], true) = (m.args(), noted.len() < NOTES_MOST) {
            let sent = u64::from(low) | u64::from(high) << 32;
            noted.push(now.wrapping_sub(sent) as f64);
        }
    })?;
    Ok(())
}

/// The clock that all processes of a machine share, across network namespaces.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn serve_until_stopped(bundle: &mut Bundle, tally: &Tally, gone: &Gone, waiting: Waiting) -> Result<(), Error> {
    let mut idle = 0u32;
    let patience = waiting.patience(LOOK_EVERY);
    while !tally.is_stopped.get() {
        if waiting.turn(bundle) == 0 {
            idle += 1;
            if idle % patience == 0 {
                expect_life(bundle)?;
                expect_jobs(gone)?;
            }
        }
    }
    Ok(())
}

/// Serves, and computes when told to. Returns how many requests were answered.
fn compute_until_stopped(bundle: &mut Bundle, endpoint: Endpoint, tally: &Tally, gone: &Gone) -> Result<u64, Error> {
    let due = Rc::new(Cell::new(Duration::ZERO));
    let told = due.clone();
    bundle.on(endpoint, ask::NOTE, |_| {})?;
    bundle.on(endpoint, ask::COMPUTE, move |m| {
        told.set(Duration::from_millis(m.args().first().copied().unwrap_or_default().into()));
    })?;
    let mut idle = 0u32;
    while !tally.is_stopped.get() {
        if bundle.poll() == 0 {
            idle += 1;
            if idle % LOOK_EVERY == 0 {
                expect_life(bundle)?;
                expect_jobs(gone)?;
            }
        }
        let (start, time) = (Instant::now(), due.take());
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
    Ok(tally.count.get())
}

/// Sends until told to stop, then flushes. Returns how many messages it has sent.
fn send_until_stopped(
    bundle: &mut Bundle,
    endpoint: Endpoint,
    source: &Source,
    tally: &Tally,
    size: usize,
) -> Result<u64, Error> {
    let args = |b: &mut Bundle| b.try_send(endpoint, 0, answer::ARGS, &source.args(size)[..size / 4], &[]);
    let payload = |b: &mut Bundle| b.try_send(endpoint, 0, answer::PAYLOAD, &[], source.message(size));
    let next = || source.advance(size);
    let sent = match size <= ARGS_BYTES_MOST {
        true => pump(bundle, tally, args, next)?,
        false => pump(bundle, tally, payload, next)?,
    };
    let mut turns = 0u32;
    // Being sent is not enough: only this bundle can retransmit what a host has dropped.
    while !bundle.is_acknowledged() {
        bundle.poll();
        turns += 1;
        if turns % LOOK_EVERY == 0 {
            expect_life(bundle)?;
        }
    }
    Ok(sent)
}

/// Sends continuously, with a poll when there is no room, and after every few messages to learn of the end.
#[inline(always)]
fn pump(
    bundle: &mut Bundle,
    tally: &Tally,
    attempt: impl Fn(&mut Bundle) -> Result<(), SendError>,
    next: impl Fn(),
) -> Result<u64, Error> {
    let (mut sent, mut turns) = (0u64, 0u32);
    while !tally.is_stopped.get() {
        for _ in 0..SENDS_PER_POLL {
            match attempt(bundle) {
                Ok(()) => {
                    sent += 1;
                    next();
                }
                Err(SendError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        bundle.poll();
        turns = turns.wrapping_add(1);
        if turns % LOOK_EVERY == 0 {
            expect_life(bundle)?;
        }
    }
    Ok(sent)
}

/// An error if the process that gives the jobs is gone.
pub fn expect_jobs(gone: &Gone) -> Result<(), Error> {
    // Relaxed: no other data depends on it.
    match gone.load(Ordering::Relaxed) {
        true => Err(Error::Process {
            who: "the process that measures".to_owned(),
            cause: "its connection ended".to_owned(),
            way_out: "Look at what it said",
        }),
        false => Ok(()),
    }
}

/// An error if a message came back or the other process is gone.
#[cold]
#[inline(never)]
pub fn expect_life(bundle: &mut Bundle) -> Result<(), Error> {
    while let Some(event) = bundle.next_event() {
        expect_alive(&event)?;
    }
    Ok(())
}

/// An error if the event says so.
pub fn expect_alive(event: &Event) -> Result<(), Error> {
    let reason = match event {
        Event::PeerLost { reason, .. } => reason,
        Event::Returned(message) => &message.reason,
        Event::ReplyRefused { reason, .. } => reason,
        Event::Completed(_) | Event::CanSend { .. } => return Ok(()),
    };
    Err(Error::Process {
        who: "the other process of the measurement".to_owned(),
        cause: format!("a message came back, or the session ended: {reason}"),
        way_out: "Run it again; if it happens again, report it with this line",
    })
}
