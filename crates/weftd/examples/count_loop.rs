//! Moves so many messages of 16 bytes between two programs by the loop of the engine, in memory as weftd shares it, all in one thread: for
//! counts of what the daemon does for a message. The second argument says how: `stream` sends as many one-way messages as there is room for
//! before the engine has a turn, `request` one request, whose reply comes before the next one.
//!
//! ```text
//! cargo build --release -p weftd --example count_loop
//! valgrind --tool=callgrind --toggle-collect='*daemons_turn*' target/release/examples/count_loop 11000 stream
//! ```
//!
//! and the same with 1000; the difference of the two "Collected" lines, divided by 10,000.

use std::cell::RefCell;
use std::rc::Rc;
use weft_core::port::{Allocated, Platform, Port, PortRx, PortSessions, PortTx};
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, MessageKind, Outgoing, SendError, Settings, Sink, State};
use weft_daemon::{Engine, Newcomer};
use weft_shm::{Descriptor, SegmentFile};
use weft_transport::Time;
use weft_wire::segment::{Part, Sizes, PARTS, SYSTEM};
use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

const FILE: usize = 16 << 20;

struct Memory {
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

type Handle = Rc<RefCell<Port<Memory>>>;
type Core = Bundle<PortRx<Handle>, PortTx<Handle>, NoBells>;

/// Counts what comes, and answers requests.
#[derive(Default)]
struct Count(u64);

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

struct Program {
    core: Core,
    sessions: PortSessions<Handle>,
    count: Count,
    epoch: Epoch,
}

impl Program {
    fn attach(engine: &mut Engine<SegmentFile>, epoch: u64) -> Result<Program, Box<dyn std::error::Error>> {
        let (segment, file) = SegmentFile::create(FILE)?;
        let mapped = SegmentFile::open(&file, FILE)?;
        engine.attach(Newcomer { segment, user: Uid(1000), epoch: Epoch(epoch) })?;
        let port = Port::new(Memory { segment: mapped, _file: file }, Part { at: PARTS, sizes: SYSTEM });
        let sessions = PortSessions::new(Rc::new(RefCell::new(port)), Uid(1000));
        let (core, count) = (Core::new(NoBells, Settings::default()), Count::default());
        Ok(Program { core, sessions, count, epoch: Epoch(epoch) })
    }

    fn endpoint(&mut self, engine: &mut Engine<SegmentFile>) -> Result<Endpoint, Box<dyn std::error::Error>> {
        self.sessions.allocate(EndpointId(0), Key(1), Sizes::default());
        while self.sessions.look_for_endpoint() == Allocated::NotYet {
            daemons_turn(engine);
        }
        let name = Name { epoch: self.epoch, endpoint: EndpointId(0), uid: Uid(1000), address: HostAddress::NONE };
        Ok(self.core.state_mut().add_endpoint(name, Key(1)))
    }

    fn poll(&mut self) {
        for call in self.core.state_mut().take_calls() {
            self.sessions.call(&mut self.core, call);
        }
        self.sessions.look(&mut self.core, 1000, &mut self.count);
        self.core.poll(1000, &mut self.count);
    }
}

#[inline(never)]
fn daemons_turn(engine: &mut Engine<SegmentFile>) -> u32 {
    engine.poll(Time::from_micros(1))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().ok_or("say how many messages")?.parse()?;
    let asks = match words.next().as_deref() {
        Some("stream") => false,
        Some("request") => true,
        _ => return Err("the second argument is stream or request".into()),
    };
    let mut engine = Engine::new(weft_daemon::Settings::default());
    let mut programs = [Program::attach(&mut engine, 1)?, Program::attach(&mut engine, 2)?];
    let [from, to] = &mut programs;
    let (here, there) = (from.endpoint(&mut engine)?, to.endpoint(&mut engine)?);
    let name = to.core.state().name(there)?;
    from.core.state_mut().map(here, 0, name, Key(1))?;
    let mut sent = 0;
    while to.count.0 < count || (asks && from.count.0 < count) {
        loop {
            let message = Outgoing { op: 1, args: &[1, 2], payload: &[7; 8], completion: None };
            let state = from.core.state_mut();
            let done = if asks { state.try_request(here, 0, message) } else { state.try_send(here, 0, message) };
            match done {
                Ok(()) => sent += 1,
                Err(SendError::Full) => break,
                Err(error) => return Err(error.into()),
            }
            if sent == count || asks {
                break;
            }
        }
        // One at a time: the next request is sent when this one was answered.
        for _ in 0..4 {
            from.poll();
            daemons_turn(&mut engine);
            to.poll();
            if !asks || from.count.0 >= sent {
                break;
            }
        }
        if sent == count && !asks {
            daemons_turn(&mut engine);
        }
    }
    Ok(())
}
