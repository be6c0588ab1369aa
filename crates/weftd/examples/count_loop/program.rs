//! A program of the example: the core's bundle on a port, in memory as weftd shares it.

use crate::daemons_turn;
use std::cell::RefCell;
use std::rc::Rc;
use weft_core::port::{Allocated, Platform, Port, PortRx, PortSessions, PortTx};
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, MessageKind, Settings, Sink, State};
use weft_daemon::{Engine, Newcomer};
use weft_shm::{Descriptor, SegmentFile};
use weft_wire::segment::{Part, Sizes, PARTS, SYSTEM};
use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

const FILE: usize = 16 << 20;

pub struct Memory {
    segment: SegmentFile,
    _file: Descriptor,
}

impl Platform for Memory {
    type Segment = SegmentFile;

    fn segment(&self) -> &SegmentFile {
        &self.segment
    }

    fn daemon_sleeps(&self) -> u64 {
        0
    }

    fn wake_daemon(&self) {}
}

pub type Handle = Rc<RefCell<Port<Memory>>>;
pub type Core = Bundle<PortRx<Handle>, PortTx<Handle>, NoBells>;

/// Counts what comes, and answers requests.
#[derive(Default)]
pub struct Count(pub u64);

impl Sink<PortTx<Handle>> for Count {
    fn deliver(&mut self, state: &mut State<PortTx<Handle>>, message: &Delivery<'_>) -> Result<(), Reason> {
        self.0 += 1;
        if message.kind() == MessageKind::Request {
            if let Some(token) = message.take_reply() {
                state.reply(token, 2, message.args, message.payload).map_err(|_| Reason::NoRoom)?;
            }
        }
        Ok(())
    }
}

pub struct Program {
    pub core: Core,
    sessions: PortSessions<Handle>,
    pub count: Count,
    epoch: Epoch,
}

impl Program {
    pub fn attach(engine: &mut Engine<SegmentFile>, epoch: u64) -> Result<Program, Box<dyn std::error::Error>> {
        let (segment, file) = SegmentFile::create(FILE)?;
        let mapped = SegmentFile::open(&file, FILE)?;
        engine.attach(Newcomer { segment, user: Uid(1000), epoch: Epoch(epoch) })?;
        let port = Port::new(Memory { segment: mapped, _file: file }, Part { at: PARTS, sizes: SYSTEM });
        let sessions = PortSessions::new(Rc::new(RefCell::new(port)), Uid(1000));
        let (core, count) = (Core::new(NoBells, Settings::default()), Count::default());
        Ok(Program { core, sessions, count, epoch: Epoch(epoch) })
    }

    pub fn endpoint(&mut self, engine: &mut Engine<SegmentFile>) -> Result<Endpoint, Box<dyn std::error::Error>> {
        self.sessions.allocate(EndpointId(0), Key(1), Sizes::default());
        while self.sessions.look_for_endpoint() == Allocated::NotYet {
            daemons_turn(engine);
        }
        let name = Name { epoch: self.epoch, endpoint: EndpointId(0), uid: Uid(1000), address: HostAddress::NONE };
        Ok(self.core.state_mut().add_endpoint(name, Key(1)))
    }

    pub fn poll(&mut self) {
        for call in self.core.state_mut().take_calls() {
            self.sessions.call(&mut self.core, call);
        }
        self.sessions.look(&mut self.core, 1000, &mut self.count);
        self.core.poll(1000, &mut self.count);
    }
}
