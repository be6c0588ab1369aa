//! Programs and the engine of a daemon, in one process: each program is the core's bundle on a port, in memory that it shares with the
//! engine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use weft_core::port::{Allocated, Platform, Port, PortRx, PortSessions, PortTx};
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, MessageKind, Outgoing, Returned, SendError, Settings, Sink, State};
use weft_daemon::testing::MemSegment;
use weft_daemon::{AttachmentId, Engine, Newcomer};
use weft_transport::Time;
use weft_wire::segment::{Part, Sizes, PARTS, SYSTEM};
use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

/// Bytes of a program's file.
pub const FILE: usize = 64 << 20;

#[derive(Debug)]
pub struct Memory {
    pub segment: MemSegment,
    pub asleep: Rc<Cell<u64>>,
    pub wakes: Rc<Cell<u32>>,
}

impl Platform for Memory {
    type Segment = MemSegment;

    fn segment(&self) -> &MemSegment {
        &self.segment
    }

    fn daemon_sleeps(&self) -> u64 {
        self.asleep.get()
    }

    fn wake_daemon(&self) {
        self.wakes.set(self.wakes.get() + 1);
    }
}

pub type Handle = Rc<RefCell<Port<Memory>>>;
pub type Core = Bundle<PortRx<Handle>, PortTx<Handle>, NoBells>;

/// A message that came: to whom, and what it has.
pub type Message = (Endpoint, MessageKind, u8, Vec<u32>, Vec<u8>);

/// What came to a program.
#[derive(Debug, Default)]
pub struct Log {
    pub messages: VecDeque<Message>,
    pub returned: Vec<Returned>,
    /// Requests are answered with what they have.
    pub answers: bool,
}

impl Sink<PortTx<Handle>> for Log {
    fn deliver(&mut self, state: &mut State<PortTx<Handle>>, message: &Delivery<'_>) -> Result<(), Reason> {
        if message.kind() == MessageKind::Request && self.answers {
            if let Some(token) = message.take_reply() {
                state.reply(token, message.op(), message.args, message.payload).map_err(|_| Reason::NoRoom)?;
            }
        }
        let (args, payload) = (message.args.to_vec(), message.payload.to_vec());
        self.messages.push_back((message.endpoint, message.kind(), message.op(), args, payload));
        Ok(())
    }

    fn returned(&mut self, _: &mut State<PortTx<Handle>>, message: Returned) -> Option<Returned> {
        self.returned.push(message);
        None
    }
}

pub struct Program {
    pub core: Core,
    pub sessions: PortSessions<Handle>,
    pub log: Log,
    pub id: AttachmentId,
    pub epoch: Epoch,
    pub user: Uid,
    pub next: u32,
}

pub struct World {
    pub engine: Engine<MemSegment>,
    pub programs: Vec<Program>,
    pub now: Time,
}

impl World {
    pub fn new(settings: weft_daemon::Settings) -> World {
        World { engine: Engine::new(settings), programs: Vec::new(), now: Time::default() }
    }

    /// Attaches a program of a user. Returns its index.
    pub fn attach(&mut self, user: u32) -> usize {
        let segment = MemSegment::new(FILE);
        let epoch = Epoch(1000 + self.programs.len() as u64);
        let newcomer = Newcomer { segment: segment.clone(), user: Uid(user), epoch };
        let id = self.engine.attach(newcomer).expect("attached");
        let memory = Memory { segment, asleep: Rc::default(), wakes: Rc::default() };
        let system = Part { at: PARTS, sizes: SYSTEM };
        let port = Rc::new(RefCell::new(Port::new(memory, system)));
        self.programs.push(Program {
            core: Core::new(NoBells, Settings::default()),
            sessions: PortSessions::new(port, Uid(user)),
            log: Log { answers: true, ..Log::default() },
            id,
            epoch,
            user: Uid(user),
            next: 0,
        });
        self.programs.len() - 1
    }

    /// A turn of everybody. Returns how much was done.
    pub fn turn(&mut self) -> u32 {
        self.now = self.now.plus_nanos(10_000);
        let mut work = self.engine.poll(self.now);
        for program in &mut self.programs {
            work += program.poll();
        }
        work
    }

    /// Turns until nothing is done for some of them.
    pub fn settle(&mut self) {
        let (mut quiet, mut turns) = (0, 0);
        while quiet < 600 {
            quiet = if self.turn() == 0 { quiet + 1 } else { 0 };
            turns += 1;
            assert!(turns < 1_000_000, "it does not settle");
        }
    }

    /// Turns until all that a program sent has ended.
    pub fn drain(&mut self, program: usize) {
        for _ in 0..10_000 {
            let state = self.programs[program].core.state_mut();
            if state.flush() && state.unsettled() == 0 {
                return;
            }
            state.hasten();
            self.turn();
        }
        panic!("it does not settle");
    }

    /// The same while somebody does not poll: a fixed number of turns.
    pub fn settle_without_returns(&mut self) {
        (0..5000).for_each(|_| _ = self.turn());
    }

    pub fn endpoint(&mut self, program: usize, key: u64) -> Endpoint {
        self.endpoint_with(program, key, Sizes::default()).expect("an endpoint")
    }

    pub fn endpoint_with(&mut self, program: usize, key: u64, sizes: Sizes) -> Result<Endpoint, Reason> {
        let found = &mut self.programs[program];
        let id = EndpointId(found.next);
        found.next += 1;
        assert!(found.sessions.allocate(id, Key(key), sizes));
        loop {
            self.turn();
            match self.programs[program].sessions.allocated() {
                Allocated::NotYet => {}
                Allocated::Yes => break,
                Allocated::No(reason) => return Err(reason),
            }
        }
        let found = &mut self.programs[program];
        let name = Name { epoch: found.epoch, endpoint: id, uid: found.user, address: HostAddress::NONE };
        Ok(found.core.state_mut().add_endpoint(name, Key(key)))
    }

    pub fn name(&self, program: usize, endpoint: Endpoint) -> Name {
        self.programs[program].core.state().name(endpoint).expect("an endpoint")
    }

    /// Enters an endpoint of one program in the table of another one's.
    pub fn map(&mut self, from: (usize, Endpoint), index: u32, to: (usize, Endpoint), key: u64) {
        let name = self.name(to.0, to.1);
        self.programs[from.0].core.state_mut().map(from.1, index, name, Key(key)).expect("mapped");
    }

    /// Sends a one-way message, with turns until there is room.
    pub fn send(&mut self, from: (usize, Endpoint), to: u32, args: &[u32], payload: &[u8]) {
        self.insist(|programs| {
            let message = Outgoing { op: 1, args, payload, completion: None };
            programs[from.0].core.state_mut().try_send(from.1, to, message)
        });
    }

    pub fn request(&mut self, from: (usize, Endpoint), to: u32, args: &[u32], payload: &[u8]) {
        self.insist(|programs| {
            let message = Outgoing { op: 2, args, payload, completion: None };
            programs[from.0].core.state_mut().try_request(from.1, to, message)
        });
    }

    fn insist(&mut self, mut send: impl FnMut(&mut [Program]) -> Result<(), SendError>) {
        for _ in 0..100_000 {
            match send(&mut self.programs) {
                Ok(()) => return,
                Err(SendError::Full) => _ = self.turn(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no room for ever: {:?}", self.engine.counters());
    }

    /// The program of that index dies.
    pub fn kill(&mut self, program: usize) {
        let id = self.programs[program].id;
        self.engine.detach(id, Reason::PeerLost);
    }
}

impl Program {
    pub fn poll(&mut self) -> u32 {
        self.poll_some(1000)
    }

    /// The same, with a bound on the messages taken.
    pub fn poll_some(&mut self, budget: u32) -> u32 {
        for call in self.core.state_mut().take_calls() {
            self.sessions.call(&mut self.core, call);
        }
        let work = self.sessions.look(&mut self.core, budget, &mut self.log);
        work + self.core.poll(budget, &mut self.log)
    }
}
