//! A simulation: hosts, the network between them, and a plan of what changes when.

use crate::checker::{Checker, Messages, Violation};
use crate::clock::{Clock, ClockChange};
use crate::faults::{Done, Faults, PerMillion};
use crate::histogram::Histogram;
use crate::host::{Directory, Host, Life, Plant, Shared};
use crate::model::Model;
use crate::network::{Event, Link, Network};
use crate::program::Program;
use crate::series::Series;
use crate::topology::{HostId, Links, Topology};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weft_core::report::HostReport;
use weft_transport::{Counters, Random, Settings, Time};
use weft_wire::{EndpointId, Epoch, HostAddress, Name, Uid};

/// The initial state of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The seed of everything random.
    pub seed: u64,
    /// How hosts are joined.
    pub topology: Topology,
    /// The links.
    pub link: Link,
    /// Those between switches, if they differ.
    pub trunk: Option<Link>,
    /// Faults that each packet meets once, on the link from its host.
    pub faults: Faults,
    /// The settings of the hosts' channels.
    pub settings: Settings,
    /// The last host's settings, if they differ.
    pub last_settings: Option<Settings>,
    /// The hosts' clocks begin at this time.
    pub clock_start: Time,
    /// How far the clocks' speeds differ at most, in parts per million. Each host's skew is random.
    pub skew_most: u32,
    /// How often the link refuses a packet for now, in a million calls.
    pub full: PerMillion,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 1,
            topology: Topology::Pair,
            link: Link::default(),
            trunk: None,
            faults: Faults::default(),
            settings: Settings::default(),
            last_settings: None,
            clock_start: Time::from_micros(1_000_000),
            skew_most: 0,
            full: 0,
        }
    }
}

/// What changes at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Links get better or worse.
    Faults(Links, Faults),
    /// Links get other rates, delays or queues. Packets that are queued already keep their times.
    Link(Links, Link),
    /// Packets from one host to the other are lost from now on.
    Cut(HostId, HostId),
    /// Packets from one host to the other get through again.
    Join(HostId, HostId),
    /// Packets from a host, or to it, or both, are lost from now on.
    Isolate {
        /// The host.
        host: HostId,
        /// Packets from it are lost.
        from: bool,
        /// Packets to it are lost.
        to: bool,
    },
    /// All hosts reach each other again.
    Heal,
    /// A host goes down without telling anyone.
    Crash(HostId),
    /// A host comes up again, with a new program and a new epoch.
    Restart(HostId),
    /// A host's process is stopped for this long: packets wait, and its clock goes on.
    Stop(HostId, Duration),
    /// Something happens to a host's clock.
    Clock(HostId, ClockChange),
}

/// Why a simulation did not settle.
#[derive(Clone, PartialEq, Eq)]
pub enum Failure {
    /// Promises were broken: the first violations in time order, and their total number.
    Violations(Vec<Violation>, u64),
    /// Something is still under way.
    Unsettled {
        /// Messages that have not ended.
        messages: usize,
        /// Programs that are not done.
        programs: usize,
    },
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Violations(first, all) => {
                write!(f, "{all} broken promises")?;
                first.iter().take(5).try_for_each(|violation| write!(f, "; {violation}"))
            }
            Failure::Unsettled { messages, programs } => {
                write!(f, "not settled in time: {messages} messages have not ended, {programs} programs are not done")
            }
        }
    }
}

impl std::error::Error for Failure {}

weft_wire::debug_says_display!(Failure);

/// The results of a simulation.
#[derive(Clone, Debug)]
pub struct Report {
    /// A fingerprint of the run: equal for equal seeds and plans, on every machine.
    pub hash: u64,
    /// Events so far: packets at the ends of links, looks and timers of hosts, changes, and messages delivered to programs.
    pub events: u64,
    /// Simulated time.
    pub time: Duration,
    /// When the last message was delivered.
    pub last_delivery: Duration,
    /// Counts of messages by outcome.
    pub messages: Messages,
    /// Counts of packets by outcome.
    pub packets: Done,
    /// The sum of the counters of all present channels.
    pub channels: Counters,
    /// Time from the call that sends a message to its handler.
    pub latency: Histogram,
    /// Time from the call that sends a request to the notice that it was answered.
    pub round_trips: Histogram,
}

impl Report {
    /// Bits of arguments and payloads delivered per second, until the last delivery.
    pub fn goodput(&self) -> f64 {
        let seconds = self.last_delivery.as_secs_f64();
        if seconds == 0.0 {
            0.0
        } else {
            self.messages.bytes as f64 * 8.0 / seconds
        }
    }
}

/// Hosts that run programs, in virtual time.
///
/// ```
/// use std::time::Duration;
/// use weft_sim::{Change, Config, Faults, Links, Pattern, Simulation, Topology, Workload};
///
/// let config = Config { seed: 3, topology: Topology::Star(4), ..Config::default() };
/// let workload = Workload::new(Pattern::AllToAll, 200, 100);
/// let mut simulation = Simulation::new(config, move |host| workload.program(host, 4));
/// simulation.at(Duration::from_micros(50), Change::Faults(Links::Up, Faults::loss(200_000)));
/// simulation.at(Duration::from_millis(5), Change::Faults(Links::Up, Faults::default()));
/// let report = simulation.settle(Duration::from_secs(60)).expect("each message ends in one way");
/// assert_eq!(report.messages.delivered, 4 * 200);
/// ```
pub struct Simulation<P> {
    config: Config,
    shared: Shared,
    hosts: Vec<Host<P>>,
    make: Box<dyn FnMut(HostId) -> P>,
    random: Random,
    plan: Vec<Change>,
    /// The ends of all messages are asked for.
    hurries: bool,
}

impl<P> std::fmt::Debug for Simulation<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulation of {} hosts with seed {}", self.hosts.len(), self.config.seed)
    }
}

impl<P: Program> Simulation<P> {
    /// Makes the hosts. `make` makes the program of each, once at the start and again after each restart.
    pub fn new(config: Config, make: impl FnMut(HostId) -> P + 'static) -> Simulation<P> {
        let Config { seed, topology, link, trunk, .. } = config;
        let hosts = topology.hosts();
        let mut random = Random::new(seed);
        let mut network = Network::new(topology, link, trunk.unwrap_or(link), random.bits());
        network.set_faults(Links::Up, config.faults);
        network.full = config.full;
        let nobody = Name { epoch: Epoch(0), endpoint: EndpointId(0), uid: Uid(0), address: HostAddress::NONE };
        let directory = Directory { names: vec![nobody; hosts as usize], ..Directory::default() };
        let shared = Shared {
            network: Rc::new(RefCell::new(network)),
            checker: Rc::new(RefCell::new(Checker::new(hosts))),
            directory: Rc::new(RefCell::new(directory)),
        };
        let all = (0..hosts).map(|number| {
            let skew = random.below(2 * u64::from(config.skew_most) + 1) as i32 - config.skew_most as i32;
            Host::new(HostId(number), Clock::new(config.clock_start, skew), shared.clone())
        });
        let hosts = all.collect();
        let make = Box::new(make);
        let mut simulation = Simulation { config, shared, hosts, make, random, plan: Vec::new(), hurries: false };
        for number in 0..simulation.hosts.len() {
            simulation.start(number);
        }
        simulation
    }

    /// Plans a change at `time` after the beginning, or now if that has passed.
    pub fn at(&mut self, time: Duration, change: Change) {
        let number = self.plan.len() as u32;
        self.plan.push(change);
        self.shared.network.borrow_mut().at(nanos(time), Event::Change { number });
    }

    /// Makes a change now.
    pub fn change(&mut self, change: Change) {
        let now = self.shared.network.borrow().now;
        match change {
            Change::Crash(host) => self.hosts[host.0 as usize].crash(),
            Change::Restart(host) => {
                self.hosts[host.0 as usize].crash();
                self.start(host.0 as usize);
            }
            Change::Clock(host, change) => {
                let host = &mut self.hosts[host.0 as usize];
                host.clock.change(now, change);
                host.disturb(now);
            }
            Change::Stop(host, time) => {
                self.shared.network.borrow_mut().hold_looks(host.0, now.saturating_add(nanos(time)));
            }
            _ => self.change_network(change),
        }
    }

    /// Plants a fault, which the checker must find: one message is mishandled after `after` others were not.
    pub fn plant(&mut self, plant: Plant, after: u64) {
        self.shared.directory.borrow_mut().plant = Some((plant, after));
    }

    /// Makes a host run another protocol in place of weft from now on.
    pub fn install(&mut self, host: HostId, model: impl Model + 'static) {
        let random = Random::new(self.random.bits());
        if let Some(host) = self.hosts.get_mut(host.0 as usize) {
            host.install(Box::new(model), random);
        }
    }

    /// Runs until `time` after the beginning.
    pub fn run_until(&mut self, time: Duration) {
        let end = nanos(time);
        loop {
            let (event, now) = {
                let mut network = self.shared.network.borrow_mut();
                let event = network.next(end);
                if event.is_none() {
                    network.now = network.now.max(end);
                }
                (event, network.now)
            };
            match event {
                None => return,
                Some(Event::Look { host }) => self.hosts[host as usize].look(),
                Some(Event::Timer { host }) => self.hosts[host as usize].on_timer(now),
                Some(Event::Tidy { host }) => self.hosts[host as usize].tidy(now, self.hurries),
                Some(Event::Change { number }) => self.change(self.plan[number as usize]),
                Some(Event::Arrive { .. } | Event::Release { .. }) => {}
            }
        }
    }

    /// Runs for `time`.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now() + time);
    }

    /// Runs until all programs are done and all messages have ended, or until `latest` after the beginning. Returns the checker's
    /// verdict.
    ///
    /// # Errors
    /// If a promise was broken, or something is still under way.
    pub fn settle(&mut self, latest: Duration) -> Result<Report, Failure> {
        while self.now() < latest && !self.settle_some(latest) {}
        self.verdict()
    }

    /// Goes on settling for a part of the time that has passed. True when everything is at rest.
    pub fn settle_some(&mut self, latest: Duration) -> bool {
        let step = (self.now() / 64).clamp(Duration::from_millis(1), Duration::from_millis(100));
        self.run_until((self.now() + step).min(latest));
        let is_done = self.hosts.iter().all(Host::is_done);
        if is_done && !self.hurries {
            self.hurry();
            return false;
        }
        is_done && self.is_at_rest()
    }

    /// The checker's verdict, once everything is at rest.
    ///
    /// # Errors
    /// If a promise was broken, or something is still under way.
    pub fn verdict(&mut self) -> Result<Report, Failure> {
        let programs = self.hosts.iter().filter(|host| !host.is_done()).count();
        let now = self.shared.network.borrow().now;
        let is_at_rest = programs == 0 && self.is_at_rest();
        let mut checker = self.shared.checker.borrow_mut();
        if is_at_rest {
            checker.on_rest(now);
        }
        if checker.violated > 0 {
            return Err(Failure::Violations(checker.violations.clone(), checker.violated));
        }
        if !is_at_rest {
            return Err(Failure::Unsettled { messages: checker.open(), programs });
        }
        drop(checker);
        Ok(self.report())
    }

    /// The program of a host's present life, if it is up.
    pub fn program(&self, host: HostId) -> Option<&P> {
        self.hosts.get(host.0 as usize)?.life.as_ref().map(|life| &life.program)
    }

    /// The state of a host's channels; empty if it is down.
    pub fn channels(&self, host: HostId) -> Vec<HostReport> {
        let life = self.hosts.get(host.0 as usize).and_then(|host| host.life.as_ref());
        life.map_or_else(Vec::new, |life| life.channels())
    }

    /// Messages of living hosts that have not ended.
    pub fn open_messages(&self) -> usize {
        self.shared.checker.borrow().open()
    }

    /// Asks for the ends of all messages from now on, as a program does that waits for them.
    pub fn hurry(&mut self) {
        self.hurries = true;
        let now = self.shared.network.borrow().now;
        self.hosts.iter_mut().for_each(|host| host.disturb(now));
    }

    /// Makes all hosts free the memory that idle paths do not need, as polls do that find nothing.
    pub fn rest(&mut self) {
        self.hosts.iter_mut().flat_map(|host| &mut host.life).for_each(Life::rest);
    }

    /// Simulated time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.network.borrow().now)
    }

    /// The longest queue at the beginning of any of these links, in bytes.
    pub fn queued(&self, links: Links) -> u64 {
        self.shared.network.borrow().queued(links)
    }

    /// Broken promises so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.checker.borrow().violations.clone()
    }

    /// Events so far, counted as in [`Report::events`].
    pub fn events(&self) -> u64 {
        self.shared.network.borrow().events + self.messages().delivered
    }

    /// Counts of messages so far.
    pub fn messages(&self) -> Messages {
        self.shared.checker.borrow().messages
    }

    /// The results so far.
    pub fn report(&self) -> Report {
        let (network, checker) = (self.shared.network.borrow(), self.shared.checker.borrow());
        let channels = self.hosts.iter().flat_map(|host| &host.life).flat_map(|life| life.channels());
        Report {
            hash: network.trace.value(),
            events: network.events + checker.messages.delivered,
            time: Duration::from_nanos(network.now),
            last_delivery: Duration::from_nanos(network.sampler.last_delivery),
            messages: checker.messages,
            packets: network.done,
            channels: channels.map(|report| report.counters).fold(Counters::default(), sum),
            latency: checker.latency.clone(),
            round_trips: checker.round_trips.clone(),
        }
    }

    /// Goodput, latencies and queues over time.
    pub fn series(&self) -> Series {
        self.shared.network.borrow().sampler.series()
    }

    fn start(&mut self, number: usize) {
        let program = (self.make)(HostId(number as u32));
        let last = self.config.last_settings.filter(|_| number + 1 == self.hosts.len());
        self.hosts[number].start(program, last.unwrap_or(self.config.settings), &mut self.random);
    }

    fn change_network(&mut self, change: Change) {
        let hosts = self.hosts.len() as u32;
        let network = &mut *self.shared.network.borrow_mut();
        match change {
            Change::Faults(links, faults) => network.set_faults(links, faults),
            Change::Link(links, link) => network.set_link(links, link),
            Change::Cut(from, to) => network.cut(from.0, to.0, true),
            Change::Join(from, to) => network.cut(from.0, to.0, false),
            Change::Isolate { host, from, to } => {
                for other in (0..hosts).filter(|other| *other != host.0) {
                    network.cut(host.0, other, from);
                    network.cut(other, host.0, to);
                }
            }
            Change::Heal => (0..hosts).for_each(|from| (0..hosts).for_each(|to| network.cut(from, to, false))),
            Change::Crash(_) | Change::Restart(_) | Change::Stop(..) | Change::Clock(..) => {}
        }
    }

    fn is_at_rest(&self) -> bool {
        let mut lives = self.hosts.iter().flat_map(|host| &host.life);
        lives.all(|life| life.unsettled() == 0 && life.is_acknowledged())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn sum(a: Counters, b: Counters) -> Counters {
    Counters {
        packets_sent: a.packets_sent + b.packets_sent,
        packets_received: a.packets_received + b.packets_received,
        packets_lost: a.packets_lost + b.packets_lost,
        packets_late: a.packets_late + b.packets_late,
        trials_sent: a.trials_sent + b.trials_sent,
        trials_lost: a.trials_lost + b.trials_lost,
        timeouts: a.timeouts + b.timeouts,
        dropped_old: a.dropped_old + b.dropped_old,
        dropped_foreign: a.dropped_foreign + b.dropped_foreign,
        dropped_malformed: a.dropped_malformed + b.dropped_malformed,
        dropped_violation: a.dropped_violation + b.dropped_violation,
        dropped_no_room: a.dropped_no_room + b.dropped_no_room,
        unreliable_dropped: a.unreliable_dropped + b.unreliable_dropped,
    }
}
