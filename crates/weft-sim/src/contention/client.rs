//! A client: a bundle on the network interface in its own process, which keeps 32 requests under way.

use super::costs::Work;
use super::wire::{global, local, Came, Plug, WireLink};
use super::{Config, Plant};
use crate::histogram::Histogram;
use crate::network::address;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_core::ni::{HostSessions, Ni, StreamRx, StreamTx};
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, Endpoint, MessageKind, Outgoing, Returned, SendError, Settings, Sink, State};
use weft_transport::Random;
use weft_wire::{EndpointId, Epoch, Key, Name, Reason, Uid};

/// The key of every endpoint.
pub(super) const KEY: Key = Key(0x7765_6674);

/// Messages that one poll takes, about.
const BUDGET: u32 = 64;

/// From one look for lost hosts to the next.
const WATCH_EVERY: u64 = 50_000_000;

type Interface = Rc<RefCell<Ni<WireLink>>>;
type Out = StreamTx<Interface>;

/// A client on its host.
#[derive(Debug)]
pub(super) struct Client {
    core: Bundle<StreamRx<Interface>, Out, NoBells>,
    sessions: HostSessions<Interface>,
    plug: Plug,
    endpoint: Endpoint,
    number: u32,
    payload: Vec<u8>,
    /// When it begins to send.
    starts: u64,
    watched_at: u64,
    pub ledger: Ledger,
}

/// The state of a client's requests.
#[derive(Debug)]
pub(super) struct Ledger {
    now: u64,
    next: u32,
    /// When each unanswered request was sent.
    waits: BTreeMap<u32, u64>,
    /// Answers; answers that were not expected or have other contents; requests that came back.
    pub answered: u64,
    pub strange: u64,
    pub returned: u64,
    /// Answers in this turn.
    came: u64,
    pub round_trips: Histogram,
    number: u32,
    plant: Option<(Plant, u64)>,
}

impl Client {
    /// Client `number`, on the host after the server's. Its requests go to the endpoint `to`.
    pub fn new(config: &Config, number: u32, to: Name, random: &mut Random) -> Client {
        let plug = Plug::default();
        let epoch = Epoch(random.bits());
        let ni = plug.interface(epoch, config.link.packet_bytes, random);
        let mut core = Bundle::new(NoBells, Settings::default());
        let name = Name { epoch, endpoint: EndpointId(1), uid: Uid(1000), address: address(number + 1) };
        let state = core.state_mut();
        let endpoint = state.add_endpoint(name, KEY);
        state.map(endpoint, 0, to, KEY).expect("an endpoint that was just made");
        let ledger = Ledger {
            now: 0,
            next: 0,
            waits: BTreeMap::new(),
            answered: 0,
            strange: 0,
            returned: 0,
            came: 0,
            round_trips: Histogram::new(5),
            number,
            plant: config.plant.filter(|_| number == 0),
        };
        Client {
            core,
            sessions: HostSessions::new(Rc::new(RefCell::new(ni))),
            plug,
            endpoint,
            number,
            payload: vec![number as u8; config.message.payload()],
            // Clients start one after the other, so that their calls do not crowd the daemon.
            starts: u64::from(number) * 10_000,
            watched_at: 0,
            ledger,
        }
    }

    /// Takes answers in, and sends as many requests as it may. Returns what it did.
    #[inline(never)]
    pub fn turn(&mut self, now: u64, packets: &mut Vec<Came>, may_send: bool) -> Work {
        self.plug.now.set(local(now));
        self.ledger.now = now;
        self.ledger.came = 0;
        let mut done = Work { turns: 1, packets: packets.len() as u64, ..Work::default() };
        self.hear(now, packets);
        self.serve();
        if may_send && now >= self.starts {
            done.messages += self.send();
        }
        // Calls a host that is not known yet.
        self.call();
        self.sessions.ni().borrow_mut().flush();
        done.messages += self.ledger.came;
        done.packets += self.plug.sent();
        done
    }

    fn hear(&mut self, now: u64, packets: &mut Vec<Came>) {
        let mut ni = self.sessions.ni().borrow_mut();
        for packet in packets.drain(..) {
            ni.on_packet_of(local(now), local(packet.at), packet.way(), &packet.bytes);
        }
        if ni.next_time().is_some_and(|at| at <= local(now)) {
            ni.on_time(local(now));
        }
        drop(ni);
        if now - self.watched_at >= WATCH_EVERY {
            self.watched_at = now;
            self.sessions.keep_watch(&self.core);
        }
    }

    fn serve(&mut self) {
        let Client { core, sessions, ledger, .. } = self;
        loop {
            let is_readable = sessions.take_events(core, ledger);
            if core.poll(BUDGET, ledger) == 0 && !is_readable {
                break;
            }
        }
        for broken in core.take_broken() {
            sessions.close(broken, Reason::Violation);
            core.lose(broken, Reason::Violation, ledger);
        }
    }

    fn call(&mut self) {
        for call in self.core.state_mut().take_calls() {
            self.sessions.call(&mut self.core, call);
        }
    }

    /// Sends requests until no more are taken. Returns how many.
    fn send(&mut self) -> u64 {
        let mut sent = 0;
        loop {
            let args = [self.number, self.ledger.next];
            let message = Outgoing { op: 1, args: &args, payload: &self.payload, completion: None };
            match self.core.state_mut().try_request(self.endpoint, 0, message) {
                Ok(()) => {
                    self.ledger.note_sent();
                    sent += 1;
                }
                Err(SendError::Full) => return sent,
                // The failure also comes back as an event. Nothing more is sent.
                Err(_) => {
                    self.ledger.returned += 1;
                    self.starts = u64::MAX;
                    return sent;
                }
            }
        }
    }

    /// The packets that leave at the end of the turn.
    pub fn plug(&self) -> &Plug {
        &self.plug
    }

    /// The next time at which a timer needs a turn.
    pub fn next_time(&self, now: u64) -> Option<u64> {
        let ni = self.sessions.ni().borrow().next_time().map(global);
        let start = (now < self.starts && self.starts != u64::MAX).then_some(self.starts);
        [ni, start].into_iter().flatten().min()
    }

    /// Requests not yet answered.
    pub fn waits(&self) -> u64 {
        self.ledger.waits.len() as u64
    }
}

impl Ledger {
    fn note_sent(&mut self) {
        self.waits.insert(self.next, self.now);
        self.next = self.next.wrapping_add(1);
    }

    fn note_answer(&mut self, args: &[u32]) {
        self.came += 1;
        let sent = match *args {
            [number, request] if number == self.number => self.waits.remove(&request),
            _ => None,
        };
        match sent {
            Some(at) => {
                self.answered += 1;
                self.round_trips.add(Duration::from_nanos(self.now - at));
            }
            None => self.strange += 1,
        }
    }

    /// The planted fault, if it is due.
    fn planted(&mut self) -> Option<Plant> {
        let (plant, left) = self.plant.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let plant = *plant;
        self.plant = None;
        Some(plant)
    }
}

impl Sink<Out> for Ledger {
    fn deliver(&mut self, _: &mut State<Out>, message: &Delivery<'_>) -> Result<(), Reason> {
        if message.kind() != MessageKind::Reply {
            return Err(Reason::NoHandler);
        }
        match self.planted() {
            None => self.note_answer(message.args),
            Some(Plant::Lose) => {}
            Some(Plant::Repeat) => (0..2).for_each(|_| self.note_answer(message.args)),
            Some(Plant::Change) => self.note_answer(&message.args[..1]),
        }
        Ok(())
    }

    fn returned(&mut self, _: &mut State<Out>, _: Returned) -> Option<Returned> {
        self.returned += 1;
        None
    }
}
