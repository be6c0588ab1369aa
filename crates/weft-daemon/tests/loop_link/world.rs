//! Programs and the engine of a daemon, in one process.

use crate::programs::{Program, FILE};
use weft_core::port::Allocated;
use weft_core::{Endpoint, Outgoing, SendError};
use weft_daemon::testing::MemSegment;
use weft_daemon::Engine;
use weft_transport::Time;
use weft_wire::segment::{Segment, Sizes};
use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason};

/// The engine has its views of one kind of memory, and the programs have theirs of another kind.
pub struct World<S = MemSegment, G: Segment = MemSegment> {
    pub engine: Engine<S>,
    pub programs: Vec<Program<G>>,
    pub now: Time,
}

impl World {
    pub fn new(settings: weft_daemon::Settings) -> World {
        World::over(settings)
    }

    /// Attaches a program of a user. Returns its index.
    pub fn attach(&mut self, user: u32) -> usize {
        self.attach_with(user, FILE, |segment| segment)
    }
}

impl<S: Segment> World<S> {
    /// Attaches a program of a user with a file of so many bytes, of which the engine gets what `share` makes. Returns its index.
    pub fn attach_with(&mut self, user: u32, bytes: usize, share: impl FnOnce(MemSegment) -> S) -> usize {
        let segment = MemSegment::new(bytes);
        self.attach_as(user, (segment.clone(), share(segment)))
    }
}

impl<S: Segment, G: Segment> World<S, G> {
    /// The same over other kinds of memory.
    pub fn over(settings: weft_daemon::Settings) -> World<S, G> {
        World { engine: Engine::new(settings), programs: Vec::new(), now: Time::default() }
    }

    /// Attaches a program of a user with the two ends of its memory. Returns its index.
    pub fn attach_as(&mut self, user: u32, memory: (G, S)) -> usize {
        let epoch = Epoch(1000 + self.programs.len() as u64);
        self.programs.push(Program::attach(&mut self.engine, (user, epoch), memory));
        self.programs.len() - 1
    }

    /// Everybody takes a turn. Returns how much was done.
    pub fn turn(&mut self) -> u32 {
        self.now = self.now.plus_nanos(10_000);
        let mut work = self.engine.poll(self.now);
        for program in &mut self.programs {
            work += program.poll();
        }
        work
    }

    /// Takes turns until nothing was done in several of them.
    pub fn settle(&mut self) {
        let (mut quiet, mut turns) = (0, 0);
        while quiet < 600 {
            quiet = if self.turn() == 0 { quiet + 1 } else { 0 };
            turns += 1;
            assert!(turns < 1_000_000, "it does not settle");
        }
    }

    /// Takes turns until all that a program sent has ended.
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

    /// The same while a program does not poll: a fixed number of turns.
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

    fn insist(&mut self, mut send: impl FnMut(&mut [Program<G>]) -> Result<(), SendError>) {
        for _ in 0..100_000 {
            match send(&mut self.programs) {
                Ok(()) => return,
                Err(SendError::Full) => _ = self.turn(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no room for ever: {:?}", self.engine.counters());
    }

    /// Kills the program of that index.
    pub fn kill(&mut self, program: usize) {
        let id = self.programs[program].id;
        self.engine.detach(id, Reason::PeerLost);
    }
}
