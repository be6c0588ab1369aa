//! A host: weft's own network interface and bundle, a clock, and a program.

use crate::checker::{Checker, Contents, Ends};
use crate::clock::Clock;
use crate::model::{Model, Station};
use crate::network::{address, host_at, Event, Network, SimLink};
use crate::program::{Context, Desk, Message, Notice, Program};
use crate::topology::{HostId, HOSTS_MOST};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_core::ni::{HostSessions, Ni, Secrets, StreamRx, StreamTx, Way};
use weft_core::report::HostReport;
use weft_core::testing::NoBells;
use weft_core::{Bundle, Delivery, MessageKind, Returned, Sink, State};
use weft_transport::{Random, Settings, Time};
use weft_wire::{EndpointId, Epoch, Key, Name, Reason, Uid};

/// The key of every endpoint.
pub(crate) const KEY: Key = Key(0x7765_6674);

/// A network interface, as its home and its paths share it.
type SimNi = Rc<RefCell<Ni<SimLink>>>;

/// The writing end of a host's paths: the type parameter of its clients' states.
pub type Outlet = StreamTx<SimNi>;

type Core = Bundle<StreamRx<SimNi>, Outlet, NoBells>;

/// Messages that one poll takes, about.
const BUDGET: u32 = 256;

/// From an event to the next housekeeping: a millisecond.
const TIDY_AFTER: u64 = 1_000_000;

/// From a refused send to the next try: 10 microseconds.
const AGAIN_AFTER: u64 = 10_000;

/// A fault between the network interface and the program, which the checker must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// A message is not handed over.
    Lose,
    /// A message is handed over twice.
    Repeat,
    /// A message is changed.
    Change,
    /// A message that was handed over is sent back.
    Return,
}

/// What all hosts know.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// The name of each host's present life, or of its last one if it is down.
    pub names: Vec<Name>,
    /// All lives so far.
    pub lives: Vec<Epoch>,
    /// A planted fault, and after how many messages it happens.
    pub plant: Option<(Plant, u64)>,
}

/// What the hosts of a simulation share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub network: Rc<RefCell<Network>>,
    pub checker: Rc<RefCell<Checker>>,
    pub directory: Rc<RefCell<Directory>>,
}

/// A host, up or down.
#[derive(Debug)]
pub(crate) struct Host<P> {
    pub id: HostId,
    pub clock: Clock,
    pub life: Option<Life<P>>,
    /// The model that runs in place of weft.
    pub station: Option<Station>,
    shared: Shared,
    /// When its valid timer event comes; any other is stale.
    timer_at: Option<u64>,
    tidy_at: Option<u64>,
    /// The packets of one look. The list is reused by the next.
    packets: Vec<u32>,
}

/// One life of a host.
#[derive(Debug)]
pub(crate) struct Life<P> {
    core: Core,
    sessions: HostSessions<SimNi>,
    local: Rc<Cell<Time>>,
    pub program: P,
    desk: Desk,
    has_started: bool,
}

impl<P: Program> Host<P> {
    pub fn new(id: HostId, clock: Clock, shared: Shared) -> Host<P> {
        Host { id, clock, life: None, station: None, shared, timer_at: None, tidy_at: None, packets: Vec::new() }
    }

    /// The host comes up, with a new epoch.
    pub fn start(&mut self, program: P, settings: Settings, random: &mut Random) {
        let HostId(number) = self.id;
        let Shared { network, checker, directory } = self.shared.clone();
        let now = network.borrow().now;
        let local = Rc::new(Cell::new(self.clock.at(now)));
        let epoch = Epoch(random.bits());
        let link = SimLink { host: number, local: local.clone(), network: network.clone() };
        let secrets = Secrets { door: [random.bits(), random.bits()], seed: random.bits() };
        let sessions = HostSessions::new(Rc::new(RefCell::new(Ni::new(link, epoch, settings, secrets))));
        // All other hosts may be peers.
        let settings = weft_core::Settings { sessions_most: HOSTS_MOST, ..Default::default() };
        let mut core = Core::new(NoBells, settings);
        let name = Name { epoch, endpoint: EndpointId(1), uid: Uid(1000), address: address(number) };
        let endpoint = core.state_mut().add_endpoint(name, KEY);
        let hosts = {
            let directory = &mut *directory.borrow_mut();
            directory.lives.push(epoch);
            directory.names[number as usize] = name;
            directory.names.len()
        };
        let known = vec![Vec::new(); hosts];
        let random = Random::new(random.bits());
        let desk = Desk {
            host: self.id,
            life: epoch,
            endpoint,
            now,
            random,
            alarm: None,
            network: network.clone(),
            checker,
            directory,
            known,
        };
        self.life = Some(Life { core, sessions, local, program, desk, has_started: false });
        (self.timer_at, self.tidy_at) = (None, None);
        let mut network = network.borrow_mut();
        network.set_up(number, true);
        network.look(number, now);
    }

    /// The host goes down at once, without telling anyone.
    pub fn crash(&mut self) {
        self.shared.network.borrow_mut().set_up(self.id.0, false);
        self.station = None;
        if let Some(life) = self.life.take() {
            self.shared.checker.borrow_mut().on_death(life.desk.life);
        }
    }

    /// The host runs a model from now on.
    pub fn install(&mut self, model: Box<dyn Model>, random: Random) {
        self.crash();
        self.station = Some(Station::new(model, random));
        let mut network = self.shared.network.borrow_mut();
        network.set_up(self.id.0, true);
        network.look(self.id.0, 0);
    }

    /// Looks at packets, timers and the program.
    pub fn look(&mut self) {
        let Some(life) = &mut self.life else {
            return self.station.iter_mut().for_each(|station| station.look(self.id, &self.shared));
        };
        let mut network = self.shared.network.borrow_mut();
        network.take_inbox(self.id.0, &mut self.packets);
        let now = network.now;
        drop(network);
        life.desk.now = now;
        life.local.set(self.clock.at(now));
        let mut has_work = !self.packets.is_empty();
        for id in self.packets.drain(..) {
            life.take_packet(&self.shared.network, id);
        }
        life.on_time();
        has_work |= life.serve();
        life.sessions.ni().borrow_mut().flush();
        self.plan(now, has_work);
    }

    /// A timer event came. It is stale if the timer was set again since.
    pub fn on_timer(&mut self, now: u64) {
        if self.timer_at == Some(now) || self.station.as_mut().is_some_and(|station| station.on_timer(now)) {
            self.timer_at = None;
            self.shared.network.borrow_mut().look(self.id.0, now);
        }
    }

    /// Does the housekeeping. `hurries` asks for the ends of all messages.
    pub fn tidy(&mut self, now: u64, hurries: bool) {
        if self.tidy_at != Some(now) {
            return;
        }
        self.tidy_at = None;
        let Some(life) = &mut self.life else { return };
        life.local.set(self.clock.at(now));
        life.sessions.keep_watch(&life.core);
        let waits = hurries && life.core.state().unsettled() > 0;
        if waits {
            life.core.state_mut().hasten();
        }
        life.sessions.ni().borrow_mut().drop_stale_timers();
        self.shared.network.borrow_mut().look(self.id.0, now);
        self.plan(now, waits);
    }

    /// The clock was changed, or `hurries` was set: plan the next events again.
    pub fn disturb(&mut self, now: u64) {
        if self.life.is_some() {
            self.timer_at = None;
            self.shared.network.borrow_mut().look(self.id.0, now);
            self.plan(now, true);
        }
    }

    /// Whether the program or model here has done all that it meant to.
    pub fn is_done(&self) -> bool {
        self.life.as_ref().is_none_or(|life| life.program.is_done())
            && self.station.as_ref().is_none_or(Station::is_done)
    }

    /// Sets the next events.
    fn plan(&mut self, now: u64, has_work: bool) {
        let Some(life) = &self.life else { return };
        let timer = life.sessions.ni().borrow().next_time().map(|local| self.clock.when(local));
        let wanted = [timer, life.desk.alarm].into_iter().flatten().min();
        let host = self.id.0;
        if let Some(at) = wanted.filter(|at| self.timer_at.is_none_or(|timer| *at < timer)) {
            // A timer may fire without effect, as when the clock stands still. Time must pass all the same.
            let at = at.max(now + 1);
            self.timer_at = Some(at);
            self.shared.network.borrow_mut().at(at, Event::Timer { host });
        }
        if life.sessions.ni().borrow().has_unsent() {
            // The link had no room.
            self.shared.network.borrow_mut().look(host, now + AGAIN_AFTER);
        }
        if has_work && self.tidy_at.is_none() {
            let at = now + TIDY_AFTER;
            self.tidy_at = Some(at);
            self.shared.network.borrow_mut().at(at, Event::Tidy { host });
        }
    }
}

impl<P: Program> Life<P> {
    fn take_packet(&mut self, network: &RefCell<Network>, id: u32) {
        // Don't keep the network borrowed: the host answers strangers at once.
        let (from, bytes, lay) = network.borrow_mut().take_packet(id);
        let (way, now) = (Way { to: address(from), from: 0 }, self.local.get());
        self.sessions.ni().borrow_mut().on_packet_of(now, now - lay, way, &bytes);
        network.borrow_mut().give_back(id, bytes);
    }

    fn on_time(&mut self) {
        let now = self.local.get();
        let mut ni = self.sessions.ni().borrow_mut();
        if ni.next_time().is_some_and(|at| at <= now) {
            ni.on_time(now);
        }
    }

    /// Delivers messages and lets the program go on. True if something happened.
    fn serve(&mut self) -> bool {
        let Life { core, sessions, program, desk, has_started, .. } = self;
        let mut has_work = false;
        if !std::mem::replace(has_started, true) {
            program.on_start(&mut Context { state: core.state_mut(), desk });
            has_work = true;
        }
        if desk.alarm.is_some_and(|at| at <= desk.now) {
            desk.alarm = None;
            program.on_alarm(&mut Context { state: core.state_mut(), desk });
            has_work = true;
        }
        let mut driver = Driver { program, desk };
        loop {
            let mut work = 0;
            if sessions.take_events(core, &mut driver) {
                work += 1;
            }
            work += core.poll(BUDGET, &mut driver);
            work += sessions.take_unreliable(core, BUDGET, &mut driver);
            for call in core.state_mut().take_calls() {
                sessions.call(core, call);
                work += 1;
            }
            for broken in core.take_broken() {
                sessions.close(broken, Reason::Violation);
                core.lose(broken, Reason::Violation, &mut driver);
                work += 1;
            }
            work += driver.tell(core.state_mut());
            if work == 0 {
                return has_work;
            }
            has_work = true;
        }
    }

    /// Idle paths free the memory that they do not need.
    pub fn rest(&mut self) {
        self.core.rest();
    }

    /// Messages that have not ended.
    pub fn unsettled(&self) -> u64 {
        self.core.state().unsettled()
    }

    /// Whether everything was sent and acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        self.sessions.ni().borrow().is_acknowledged()
    }

    /// The state of the channels to other hosts, except those that have ended.
    pub fn channels(&self) -> Vec<HostReport> {
        let mut ni = self.sessions.ni().borrow_mut();
        let hosts: Vec<_> = ni.hosts().map(|(id, _)| id).collect();
        hosts.into_iter().filter_map(|id| ni.report(id)).collect()
    }
}

/// The program and its desk, as a client of the bundle.
struct Driver<'a, P> {
    program: &'a mut P,
    desk: &'a mut Desk,
}

impl<P: Program> Driver<'_, P> {
    /// Passes the events on to the program. Returns how many.
    fn tell(&mut self, state: &mut State<Outlet>) -> u32 {
        let mut told = 0;
        while let Some(event) = state.next_event() {
            told += 1;
            use weft_core::Event;
            let notice = match event {
                Event::Completed(number) => {
                    let by = self.desk.checker.borrow_mut().on_completed(self.desk.now, self.desk.host, number);
                    by.map(Notice::Completed)
                }
                Event::CanSend { destination, .. } => Some(Notice::CanSend(HostId(destination))),
                Event::PeerLost { destination, reason, .. } => Some(Notice::PeerLost(HostId(destination), reason)),
                // The client takes all of these itself.
                Event::Returned(_) | Event::ReplyRefused { .. } => None,
            };
            if let Some(notice) = notice {
                self.program.on_notice(&mut Context { state, desk: self.desk }, notice);
            }
        }
        told
    }

    fn hand_over(&mut self, state: &mut State<Outlet>, message: &Message<'_>) -> Result<(), Reason> {
        let ends =
            Ends { from: message.from, from_life: message.from_life, to: self.desk.host, to_life: self.desk.life };
        let Message { kind, op, args, payload, .. } = *message;
        self.program.on_message(&mut Context { state, desk: self.desk }, message)?;
        let now = self.desk.now;
        let takes = self.desk.checker.borrow_mut().on_delivered(now, ends, Contents { kind, op, args, payload });
        let bytes = args.len() * 4 + payload.len();
        self.desk.network.borrow_mut().sampler.note_delivery(now, bytes, takes.unwrap_or_default());
        Ok(())
    }

    /// Whether a planted fault is due.
    #[inline]
    fn planted(&mut self) -> Option<Plant> {
        let mut directory = self.desk.directory.borrow_mut();
        let (plant, left) = directory.plant.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let plant = *plant;
        directory.plant = None;
        Some(plant)
    }

    /// Carries out a planted fault.
    #[cold]
    fn mishandle(&mut self, state: &mut State<Outlet>, message: &Message<'_>, plant: Plant) -> Result<(), Reason> {
        match plant {
            Plant::Lose => Ok(()),
            Plant::Repeat => {
                self.hand_over(state, message)?;
                let again = Message { delivery: message.delivery, ..*message };
                self.hand_over(state, &again)
            }
            Plant::Change => {
                let (args, mut payload) = (message.args.to_vec(), message.payload.to_vec());
                match payload.first_mut() {
                    Some(byte) => *byte ^= 1,
                    None => payload.push(1),
                }
                self.hand_over(state, &Message { args: &args, payload: &payload, ..*message })
            }
            Plant::Return => self.hand_over(state, message).and(Err(Reason::NoHandler)),
        }
    }
}

impl<P: Program> Sink<Outlet> for Driver<'_, P> {
    fn deliver(&mut self, state: &mut State<Outlet>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        if let Some(client) = self.program.client() {
            let taken = client.deliver(state, delivery);
            self.program.on_client(&mut Context { state, desk: self.desk });
            return taken;
        }
        let source = state.source(delivery).ok_or(Reason::PeerLost)?;
        let message = Message {
            from: HostId(host_at(source.address)),
            kind: delivery.kind(),
            op: delivery.op(),
            args: delivery.args,
            payload: delivery.payload,
            from_life: source.epoch,
            delivery,
        };
        match self.planted() {
            None => self.hand_over(state, &message),
            Some(plant) => self.mishandle(state, &message, plant),
        }
    }

    fn returned(&mut self, state: &mut State<Outlet>, mut message: Returned) -> Option<Returned> {
        if let Some(client) = self.program.client() {
            let left = client.returned(state, message);
            self.program.on_client(&mut Context { state, desk: self.desk });
            return left;
        }
        let Desk { host, life, now, checker, known, directory, .. } = &mut *self.desk;
        let all: Vec<Epoch>;
        let lives = match message.destination {
            Some(to) => known.get(to as usize).map_or(&[][..], Vec::as_slice),
            // A returned reply does not say whose request it was for.
            None => {
                all = directory.borrow().lives.clone();
                &all
            }
        };
        message.completion = checker.borrow_mut().on_returned(*now, *host, *life, &message, lives);
        debug_assert!(message.kind != MessageKind::Reply || message.destination.is_none());
        self.program.on_returned(&mut Context { state, desk: self.desk }, message);
        None
    }

    fn do_chores(&mut self, state: &mut State<Outlet>) -> u32 {
        let Some(client) = self.program.client() else { return 0 };
        let mut work = 0;
        while let Some(event) = state.next_claimed() {
            client.on_event(state, &event);
            work += 1;
        }
        while let Some((endpoint, completion)) = state.next_completed() {
            client.completed(state, endpoint, completion);
            work += 1;
        }
        while let Some((endpoint, flow)) = state.next_closed_flow() {
            client.flow_closed(state, endpoint, flow);
        }
        work += client.go_on(state);
        self.program.on_client(&mut Context { state, desk: self.desk });
        work
    }
}
