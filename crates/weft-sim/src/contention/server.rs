//! The server's host: the daemon's engine, and the threads of the program that it serves.

use super::client::KEY;
use super::costs::Work;
use super::wire::{global, local, server, Came, Plug, WireLink};
use super::{Config, Failure, Serving};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use weft_core::port::{Allocated, Platform, Port, PortRx, PortSessions, PortTx};
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, ReplyToken, Returned, Settings, Sink, State};
use weft_daemon::testing::MemSegment;
use weft_daemon::{Engine, Newcomer, Rates};
use weft_transport::Random;
use weft_wire::segment::{Cursor, Part, Segment, Sizes, PARTS, SYSTEM, TO_DAEMON, TO_PROGRAM};
use weft_wire::{EndpointId, Epoch, Name, Reason, Uid};

/// Messages that a thread takes in a turn.
const BUDGET: u32 = 64;

/// Turns that the daemon may take to answer a request for an endpoint.
const ALLOCATE_MOST: u32 = 1000;

/// The server's user.
const USER: Uid = Uid(1000);

/// The memory of a thread's bundle.
#[derive(Debug)]
pub(super) struct Memory(MemSegment);

impl Platform for Memory {
    type Segment = MemSegment;

    fn segment(&self) -> &MemSegment {
        &self.0
    }

    // The daemon's core polls it.
    fn daemon_sleeps(&self) -> u64 {
        0
    }

    fn wake_daemon(&self) {}
}

type Handle = Rc<RefCell<Port<Memory>>>;
type Out = PortTx<Handle>;

/// The daemon's core.
#[derive(Debug)]
pub(super) struct Daemon {
    engine: Engine<MemSegment, WireLink>,
    plug: Plug,
    frames: usize,
    pub frames_most: usize,
    pub has_violation: bool,
    /// Whether the last turn did something.
    was_busy: bool,
}

/// A thread of the server, with a bundle of its own.
#[derive(Debug)]
pub(super) struct Thread {
    core: Bundle<PortRx<Handle>, Out, NoBells>,
    sessions: PortSessions<Handle>,
    segment: MemSegment,
    desk: Desk,
    names: Vec<(Endpoint, Name)>,
    has_writable_state: bool,
    upload: u64,
    fault: Option<Fault>,
    is_busy: bool,
}

/// A thread's handler for requests.
#[derive(Debug)]
struct Desk {
    payload: usize,
    /// Requests to be answered: at most 32 of each client.
    requests: VecDeque<Taken>,
    strange: u64,
}

/// Without the writable state: why a thread that wants to write to an endpoint without a frame waits.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The kernel copies the endpoint until then.
    Upload(u64),
    /// The endpoint was written to, and waits for the daemon to give it a frame. The count is of descriptors taken from its ring so
    /// far.
    Bind(Name, u64),
}

/// A request.
#[derive(Debug)]
struct Taken {
    endpoint: Endpoint,
    token: ReplyToken,
    args: [u32; 2],
}

impl Daemon {
    pub fn new(config: &Config, random: &mut Random) -> Daemon {
        let plug = Plug::default();
        plug.now.set(local(0));
        let ni = plug.interface(Epoch(random.bits()), config.link.packet_bytes, random);
        let settings = weft_daemon::Settings {
            frames: config.frames,
            policy: config.policy,
            address: server(),
            seed: random.bits(),
            // All endpoints are made at one moment, before the experiment begins: don't limit the rate.
            rates: Rates { endpoints: u64::MAX, ..Rates::default() },
            ..weft_daemon::Settings::default()
        };
        let engine = Engine::with_network(settings, ni);
        let frames = config.frames.max(1) as usize;
        Daemon { engine, plug, frames, frames_most: 0, has_violation: false, was_busy: false }
    }

    /// Takes in packets and has a turn of the engine. `are_all` says that no more packets lie at the host. Returns what it did. It
    /// is a separate function so that callgrind can count its instructions.
    #[inline(never)]
    pub fn turn(&mut self, now: u64, packets: &mut Vec<Came>, are_all: bool) -> Work {
        let at = local(now);
        self.plug.now.set(at);
        let before = *self.engine.counters();
        let came = packets.len() as u64;
        if let Some(ni) = self.engine.network() {
            for packet in packets.drain(..) {
                ni.on_packet_of(at, local(packet.at), packet.way(), &packet.bytes);
            }
            if are_all {
                ni.has_received_all();
            }
        }
        let work = self.engine.poll(at);
        self.was_busy = work > 0 || came > 0;
        // The threads' cores poll.
        self.engine.take_wakes();
        self.has_violation |= !self.engine.take_broken().is_empty();
        self.frames_most = self.frames_most.max(self.engine.resident());
        let after = *self.engine.counters();
        Work {
            packets: came + self.plug.sent(),
            records: after.delivered - before.delivered + after.sent - before.sent,
            bytes: after.copied - before.copied,
            remappings: after.bound - before.bound,
            messages: 0,
            turns: 1,
        }
    }

    /// Whether the last turn did something; then the next one may, too.
    pub fn is_busy(&self) -> bool {
        self.was_busy
    }

    /// Whether there is work that no bell and no packet announces.
    pub fn has_work(&self) -> bool {
        self.engine.has_work()
    }

    /// The next time at which a timer needs a turn.
    pub fn next_time(&self) -> Option<u64> {
        self.engine.next_time().map(global)
    }

    pub fn plug(&self) -> &Plug {
        &self.plug
    }

    pub fn refused(&self) -> u64 {
        self.engine.counters().refused
    }

    /// Whether more endpoints had a frame than there are.
    pub fn has_exceeded(&self) -> bool {
        self.frames_most > self.frames
    }
}

/// The threads of a server, and the endpoint that each client sends to.
pub(super) fn threads(config: &Config, daemon: &mut Daemon) -> Result<(Vec<Thread>, Vec<Name>), Failure> {
    let (threads, endpoints) = match config.serving {
        Serving::OneVn => (1, 1),
        Serving::SingleThread => (1, config.clients),
        Serving::ManyThreads => (config.clients, 1),
    };
    let threads: Vec<Thread> =
        (0..threads).map(|number| Thread::new(config, daemon, number, endpoints)).collect::<Result<_, _>>()?;
    let names: Vec<Name> = threads.iter().flat_map(|thread| &thread.names).map(|(_, name)| *name).collect();
    let names = names.iter().copied().cycle().take(config.clients as usize).collect();
    Ok((threads, names))
}

impl Thread {
    fn new(config: &Config, daemon: &mut Daemon, number: u32, endpoints: u32) -> Result<Thread, Failure> {
        let sizes = Sizes::default();
        let segment = MemSegment::new(PARTS + SYSTEM.bytes() + endpoints as usize * sizes.bytes());
        let epoch = Epoch(1 + u64::from(number));
        let newcomer = Newcomer { segment: segment.clone(), user: USER, epoch };
        daemon.engine.attach(newcomer).map_err(|_| Failure::NoEndpoint)?;
        let port = Port::new(Memory(segment.clone()), Part { at: PARTS, sizes: SYSTEM });
        let mut thread = Thread {
            core: Bundle::new(NoBells, Settings::default()),
            sessions: PortSessions::new(Rc::new(RefCell::new(port)), USER),
            segment,
            desk: Desk { payload: config.message.payload(), requests: VecDeque::new(), strange: 0 },
            names: Vec::new(),
            has_writable_state: config.has_writable_state,
            upload: config.upload.as_nanos() as u64,
            fault: None,
            is_busy: false,
        };
        for endpoint in 0..endpoints {
            thread
                .add_endpoint(daemon, Name { epoch, endpoint: EndpointId(endpoint), uid: USER, address: server() })?;
        }
        Ok(thread)
    }

    /// Makes an endpoint, before the experiment begins.
    fn add_endpoint(&mut self, daemon: &mut Daemon, name: Name) -> Result<(), Failure> {
        self.sessions.allocate(name.endpoint, KEY, Sizes::default());
        for _ in 0..ALLOCATE_MOST {
            daemon.engine.poll(local(0));
            match self.sessions.look_for_endpoint() {
                Allocated::NotYet => {}
                Allocated::Yes => {
                    let endpoint = self.core.state_mut().add_endpoint(name, KEY);
                    self.names.push((endpoint, name));
                    return Ok(());
                }
                Allocated::No(_) => break,
            }
        }
        Err(Failure::NoEndpoint)
    }

    /// Takes requests, and answers them. Returns what it did, or `None` if the thread waits.
    #[inline(never)]
    pub fn turn(&mut self, now: u64, daemon: &Daemon) -> Option<Work> {
        if self.stands_still(now, daemon) {
            return None;
        }
        let mut work = Work { turns: 1, ..Work::default() };
        if self.desk.requests.is_empty() {
            work.messages += self.take();
        }
        work.messages += self.answer(now, daemon);
        self.is_busy = work.messages > 0;
        if !self.is_busy {
            self.sessions.lie_down();
        }
        Some(work)
    }

    /// Takes requests. Returns how many.
    fn take(&mut self) -> u64 {
        let Thread { core, sessions, desk, .. } = self;
        sessions.look(core, BUDGET, desk);
        core.poll(BUDGET, desk);
        desk.requests.len() as u64
    }

    /// Answers requests. Returns how many.
    fn answer(&mut self, now: u64, daemon: &Daemon) -> u64 {
        let mut answered = 0;
        while answered < BUDGET.into() {
            let Some(request) = self.desk.requests.front() else { break };
            let fault = self.fault_at(request.endpoint, now, daemon);
            if let Some(Fault::Upload(_)) = fault {
                self.fault = fault;
                break;
            }
            self.answer_first();
            answered += 1;
            self.fault = fault;
            if fault.is_some() {
                break;
            }
        }
        answered
    }

    fn answer_first(&mut self) {
        let Some(Taken { token, args, .. }) = self.desk.requests.pop_front() else { return };
        let payload = [args[0] as u8; 8];
        let payload = if self.desk.payload == payload.len() { &payload[..] } else { &[] };
        // The clients wait for their answers, so they are there.
        if self.core.state_mut().reply(token, 2, &args, payload).is_err() {
            self.desk.strange += 1;
        }
    }

    /// What a write to an endpoint has to wait for now.
    fn fault_at(&self, endpoint: Endpoint, now: u64, daemon: &Daemon) -> Option<Fault> {
        if self.has_writable_state {
            return None;
        }
        let (_, name) = self.names.iter().find(|(own, _)| *own == endpoint)?;
        match self.fault {
            _ if daemon.engine.is_resident(name) => None,
            Some(Fault::Upload(_)) => Some(Fault::Bind(*name, self.taken(daemon, name))),
            _ => Some(Fault::Upload(now + self.upload)),
        }
    }

    fn stands_still(&self, now: u64, daemon: &Daemon) -> bool {
        match self.fault {
            None => false,
            Some(Fault::Upload(ends)) => now < ends,
            // If the daemon took what was written, the endpoint had a frame, even if it has lost it again.
            Some(Fault::Bind(name, taken)) => !daemon.engine.is_resident(&name) && self.taken(daemon, &name) == taken,
        }
    }

    /// The next time at which it has something to do.
    pub fn next_time(&self, now: u64, daemon: &Daemon) -> Option<u64> {
        match self.fault {
            Some(Fault::Upload(ends)) => Some(ends),
            Some(Fault::Bind(..)) => (!self.stands_still(now, daemon)).then_some(now),
            None => {
                let has_work = self.is_busy || !self.desk.requests.is_empty();
                (has_work || self.segment.cursor(TO_PROGRAM) != 0).then_some(now)
            }
        }
    }

    /// Descriptors that the daemon has taken from an endpoint's ring.
    fn taken(&self, daemon: &Daemon, name: &Name) -> u64 {
        daemon.engine.part_of(name).map_or(0, |part| self.segment.cursor(part.there(Cursor::Taken)))
    }

    /// Whether it rang the daemon's bell.
    pub fn has_rung(&self) -> bool {
        self.segment.cursor(TO_DAEMON) != 0
    }

    /// Requests with wrong contents.
    pub fn strange(&self) -> u64 {
        self.desk.strange
    }
}

impl Sink<Out> for Desk {
    fn deliver(&mut self, _: &mut State<Out>, message: &Delivery<'_>) -> Result<(), Reason> {
        let (args, payload) = (message.args, message.payload);
        let is_good = args.len() == 2
            && payload.len() == self.payload
            && payload.first().zip(payload.last()).is_some_and(|(a, b)| *a == args[0] as u8 && a == b);
        self.strange += u64::from(!is_good);
        let [number, request] = *args else { return Err(Reason::NoHandler) };
        // Clients send no one-way messages.
        let token = message.take_reply().ok_or(Reason::NoHandler)?;
        self.requests.push_back(Taken { endpoint: message.endpoint, token, args: [number, request] });
        Ok(())
    }

    fn returned(&mut self, _: &mut State<Out>, _: Returned) -> Option<Returned> {
        None
    }
}
