//! A program of the example: a bundle of the core on a port, in memory as weftd shares it.

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

pub struct Memory {
    segment: SegmentFile,
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

/// Counts arrivals, and answers requests.
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
    pub sessions: PortSessions<Handle>,
    pub count: Count,
    epoch: Epoch,
    endpoints: u32,
}

impl Program {
    pub fn attach(
        engine: &mut Engine<SegmentFile>,
        epoch: u64,
        bytes: usize,
    ) -> Result<(Program, Descriptor), Box<dyn std::error::Error>> {
        let (segment, file) = SegmentFile::create(bytes)?;
        let mapped = SegmentFile::open(&file, bytes)?;
        engine.attach(Newcomer { segment, user: Uid(1000), epoch: Epoch(epoch) })?;
        let port = Port::new(Memory { segment: mapped }, Part { at: PARTS, sizes: SYSTEM });
        let sessions = PortSessions::new(Rc::new(RefCell::new(port)), Uid(1000));
        let (core, count) = (Core::new(NoBells, Settings::default()), Count::default());
        Ok((Program { core, sessions, count, epoch: Epoch(epoch), endpoints: 0 }, file))
    }

    pub fn endpoint(
        &mut self,
        engine: &mut Engine<SegmentFile>,
        sizes: Sizes,
    ) -> Result<Endpoint, Box<dyn std::error::Error>> {
        let id = EndpointId(self.endpoints);
        self.endpoints += 1;
        self.sessions.allocate(id, Key(1), sizes);
        while self.sessions.look_for_endpoint() == Allocated::NotYet {
            daemons_turn(engine);
        }
        let name = Name { epoch: self.epoch, endpoint: id, uid: Uid(1000), address: HostAddress::NONE };
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
