//! Programs of tests: each is a bundle of the core on a port, in memory that it shares with the engine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use weft_core::ni::Link;
use weft_core::port::{Platform, Port, PortRx, PortSessions, PortTx};
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, MessageKind, Returned, Settings, Sink, State};
use weft_daemon::testing::MemSegment;
use weft_daemon::{AttachmentId, Engine, Newcomer};
use weft_wire::segment::{Part, Segment, PARTS, SYSTEM};
use weft_wire::{Epoch, Reason, Uid};

/// Bytes of a program's file.
pub const FILE: usize = 64 << 20;

#[derive(Debug)]
pub struct Memory<G = MemSegment> {
    pub segment: G,
    pub asleep: Rc<Cell<u64>>,
    pub wakes: Rc<Cell<u32>>,
}

impl<G: Segment> Platform for Memory<G> {
    type Segment = G;

    fn segment(&self) -> &G {
        &self.segment
    }

    fn daemon_sleeps(&self) -> u64 {
        self.asleep.get()
    }

    fn wake_daemon(&self) {
        self.wakes.set(self.wakes.get() + 1);
    }
}

pub type Handle<G = MemSegment> = Rc<RefCell<Port<Memory<G>>>>;
pub type Core<G = MemSegment> = Bundle<PortRx<Handle<G>>, PortTx<Handle<G>>, NoBells>;

/// A message that came: its endpoint, kind, operation, arguments and payload.
pub type Message = (Endpoint, MessageKind, u8, Vec<u32>, Vec<u8>);

/// What a program received.
#[derive(Debug, Default)]
pub struct Log {
    pub messages: VecDeque<Message>,
    pub returned: Vec<Returned>,
    /// Whether requests are answered with their own contents.
    pub answers: bool,
}

impl<G: Segment> Sink<PortTx<Handle<G>>> for Log {
    fn deliver(&mut self, state: &mut State<PortTx<Handle<G>>>, message: &Delivery<'_>) -> Result<(), Reason> {
        if message.kind() == MessageKind::Request && self.answers {
            if let Some(token) = message.take_reply() {
                state.reply(token, message.op(), message.args, message.payload).map_err(|_| Reason::NoRoom)?;
            }
        }
        let (args, payload) = (message.args.to_vec(), message.payload.to_vec());
        self.messages.push_back((message.endpoint, message.kind(), message.op(), args, payload));
        Ok(())
    }

    fn returned(&mut self, _: &mut State<PortTx<Handle<G>>>, message: Returned) -> Option<Returned> {
        self.returned.push(message);
        None
    }
}

/// A program, with memory of this kind.
pub struct Program<G: Segment = MemSegment> {
    pub core: Core<G>,
    pub sessions: PortSessions<Handle<G>>,
    pub log: Log,
    pub id: AttachmentId,
    pub epoch: Epoch,
    pub user: Uid,
    pub next: u32,
}

impl<G: Segment> Program<G> {
    /// Attaches a program of a user. `memory` is its view of the memory, and the engine gets the other one. It answers requests with their
    /// own contents.
    pub fn attach<S: Segment, L: Link>(
        engine: &mut Engine<S, L>,
        (user, epoch): (u32, Epoch),
        (segment, shared): (G, S),
    ) -> Program<G> {
        let newcomer = Newcomer { segment: shared, user: Uid(user), epoch };
        let id = engine.attach(newcomer).expect("attached");
        let memory = Memory { segment, asleep: Rc::default(), wakes: Rc::default() };
        let port = Rc::new(RefCell::new(Port::new(memory, Part { at: PARTS, sizes: SYSTEM })));
        Program {
            core: Core::new(NoBells, Settings::default()),
            sessions: PortSessions::new(port, Uid(user)),
            log: Log { answers: true, ..Log::default() },
            id,
            epoch,
            user: Uid(user),
            next: 0,
        }
    }

    pub fn poll(&mut self) -> u32 {
        self.poll_some(1000)
    }

    /// The same, taking at most so many messages.
    pub fn poll_some(&mut self, budget: u32) -> u32 {
        for call in self.core.state_mut().take_calls() {
            self.sessions.call(&mut self.core, call);
        }
        let work = self.sessions.look(&mut self.core, budget, &mut self.log);
        work + self.core.poll(budget, &mut self.log)
    }
}
