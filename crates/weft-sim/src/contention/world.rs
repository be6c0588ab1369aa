//! The hosts, their cores and the network between them: the schedule of events.
//!
//! A core has turns. A turn does its work at its beginning. Its packets leave, and others see its work, at its end. Then the next
//! turn begins if there is something to do.

use super::client::Client;
use super::costs::Work;
use super::server::{threads, Daemon, Thread};
use super::wire::{Came, Plug};
use super::{Config, Failure, Outcome};
use crate::histogram::Histogram;
use crate::network::{Event, Network};
use crate::topology::Topology;
use weft_transport::Random;

/// Packets that a core takes in per turn.
const PACKETS: usize = 64;

/// A daemon that only waits looks again after this many nanoseconds.
const SPIN: u64 = 500;

/// At the end, requests under way must be answered within this many nanoseconds.
const DRAIN_MOST: u64 = 20_000_000_000;

/// The first core is the daemon's, then come those of threads, then those of clients.
const DAEMON: u32 = 0;

/// The schedule of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Core {
    is_busy: bool,
    /// When its next turn begins.
    turn_at: Option<u64>,
    /// Something came for it while it was busy.
    is_wanted: bool,
}

/// Everything that takes part.
#[derive(Debug)]
pub(super) struct World {
    config: Config,
    network: Network,
    cores: Vec<Core>,
    daemon: Daemon,
    threads: Vec<Thread>,
    clients: Vec<Client>,
    /// Packets that came to each host and were not yet taken in.
    came: Vec<Vec<Came>>,
    may_send: bool,
    /// The daemon's work, and how long its core was busy.
    work: Work,
    busy: u64,
    ids: Vec<u32>,
}

/// The counters at some time.
#[derive(Clone, Debug)]
struct Snapshot {
    answered: Vec<u64>,
    work: Work,
    busy: u64,
    refused: u64,
    dropped: u64,
}

impl World {
    pub fn new(config: &Config) -> Result<World, Failure> {
        let config = Config { clients: config.clients.max(1), ..*config };
        let mut random = Random::new(config.seed);
        let mut daemon = Daemon::new(&config, &mut random);
        let (threads, names) = threads(&config, &mut daemon)?;
        let clients: Vec<Client> =
            (0..).zip(names).map(|(number, name)| Client::new(&config, number, name, &mut random)).collect();
        let hosts = config.clients + 1;
        let network = Network::new(Topology::Star(hosts), config.link, config.link, random.bits());
        Ok(World {
            network,
            cores: vec![Core::default(); 1 + threads.len() + clients.len()],
            daemon,
            threads,
            clients,
            came: (0..hosts).map(|_| Vec::new()).collect(),
            may_send: true,
            work: Work::default(),
            busy: 0,
            ids: Vec::new(),
            config,
        })
    }

    /// Warms up, measures, and waits until everything is answered.
    pub fn run(mut self) -> Result<Outcome, Failure> {
        for core in 0..self.cores.len() as u32 {
            self.want(core, 0);
        }
        let limit = DRAIN_MOST;
        while self.clients.iter().any(|client| client.ledger.answered == 0) {
            if !self.step(limit) {
                return Err(Failure::Unanswered(self.waits()));
            }
        }
        self.run_for(self.config.warms.as_nanos() as u64);
        let before = self.snapshot();
        self.clients.iter_mut().for_each(|client| client.ledger.round_trips.clear());
        self.run_for(self.config.lasts.as_nanos() as u64);
        let after = self.snapshot();
        let mut round_trips = Histogram::new(5);
        self.clients.iter().for_each(|client| round_trips.merge(&client.ledger.round_trips));
        self.may_send = false;
        let limit = self.network.now + DRAIN_MOST;
        while self.waits() > 0 && self.step(limit) {}
        self.check()?;
        let Config { lasts, costs, .. } = self.config;
        let remapped = after.work.remappings - before.work.remappings;
        Ok(Outcome {
            answered: after.answered.iter().zip(&before.answered).map(|(after, before)| after - before).collect(),
            lasts,
            remapped,
            remapping: (remapped * costs.remapping) as f64
                / ((costs.of(&after.work) - costs.of(&before.work)) as f64).max(1.0),
            work: self.work,
            busy: (after.busy - before.busy) as f64 / (lasts.as_nanos() as f64).max(1.0),
            refused: after.refused - before.refused,
            round_trips,
            frames_most: self.daemon.frames_most,
            dropped: after.dropped - before.dropped,
            hash: self.network.trace.value(),
        })
    }

    /// Whether every request was answered exactly once, and nothing else went wrong.
    fn check(&self) -> Result<(), Failure> {
        let sum = |count: fn(&Client) -> u64| self.clients.iter().map(count).sum::<u64>();
        let strange = sum(|client| client.ledger.strange) + self.threads.iter().map(Thread::strange).sum::<u64>();
        match () {
            () if self.daemon.has_violation => Err(Failure::Violation),
            () if self.daemon.has_exceeded() => Err(Failure::Frames(self.daemon.frames_most)),
            () if strange > 0 => Err(Failure::Strange(strange)),
            () if sum(|client| client.ledger.returned) > 0 => {
                Err(Failure::Returned(sum(|client| client.ledger.returned)))
            }
            () if self.waits() > 0 => Err(Failure::Unanswered(self.waits())),
            () => Ok(()),
        }
    }

    fn waits(&self) -> u64 {
        self.clients.iter().map(Client::waits).sum()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            answered: self.clients.iter().map(|client| client.ledger.answered).collect(),
            work: self.work,
            busy: self.busy,
            refused: self.daemon.refused(),
            dropped: self.network.done.queue_full + self.network.done.not_taken,
        }
    }

    fn run_for(&mut self, nanos: u64) {
        let end = self.network.now + nanos;
        while self.step(end) {}
        self.network.now = end;
    }

    /// The next event, unless it is later than `end`.
    fn step(&mut self, end: u64) -> bool {
        let Some(event) = self.network.next(end) else { return false };
        match event {
            Event::Look { host } => self.want(self.core_of(host), self.network.now),
            Event::Timer { host: core } => self.on_turn(core),
            Event::Tidy { host: core } => self.on_end(core),
            Event::Arrive { .. } | Event::Release { .. } | Event::Change { .. } => {}
        }
        true
    }

    /// The packets at a host, those taken out of its socket earlier first.
    fn packets(&mut self, host: u32) -> Vec<Came> {
        let Self { network, ids, came, .. } = self;
        let came = &mut came[host as usize];
        if came.len() > PACKETS {
            return came.drain(..PACKETS).collect();
        }
        network.take_inbox(host, ids);
        let now = network.now;
        for id in ids.drain(..) {
            let (from, bytes, lay) = network.take_packet(id);
            came.push(Came { from, at: now - lay.as_nanos() as u64, bytes: bytes.clone() });
            network.give_back(id, bytes);
        }
        came.drain(..came.len().min(PACKETS)).collect()
    }

    /// The core that takes in a host's packets.
    fn core_of(&self, host: u32) -> u32 {
        match host {
            0 => DAEMON,
            _ => self.threads.len() as u32 + host,
        }
    }

    /// Gives a core a turn at `at`.
    fn want(&mut self, core: u32, at: u64) {
        let found = &mut self.cores[core as usize];
        if found.is_busy {
            found.is_wanted |= at <= self.network.now;
        } else if found.turn_at.is_none_or(|turn| at < turn) {
            found.turn_at = Some(at.max(self.network.now));
            self.network.at(at, Event::Timer { host: core });
        }
    }

    /// A core's turn begins, unless the event is stale.
    fn on_turn(&mut self, core: u32) {
        let (now, found) = (self.network.now, &mut self.cores[core as usize]);
        if found.is_busy || found.turn_at != Some(now) {
            return;
        }
        found.turn_at = None;
        let Some(done) = self.turn_of(core, now) else { return };
        let costs = &self.config.costs;
        let nanos = costs.nanos(costs.of(&done));
        if core == DAEMON {
            self.work += done;
            self.busy += nanos;
        }
        let found = &mut self.cores[core as usize];
        (found.is_busy, found.is_wanted) = (true, false);
        self.network.at(now + nanos, Event::Tidy { host: core });
    }

    /// The work of a core's turn. `None` if its thread waits.
    fn turn_of(&mut self, core: u32, now: u64) -> Option<Work> {
        let threads = self.threads.len() as u32;
        match core {
            DAEMON => {
                let mut packets = self.packets(0);
                let are_all = self.came[0].is_empty();
                Some(self.daemon.turn(now, &mut packets, are_all))
            }
            _ if core <= threads => self.threads[core as usize - 1].turn(now, &self.daemon),
            _ => {
                let client = (core - threads - 1) as usize;
                let mut packets = self.packets(client as u32 + 1);
                Some(self.clients[client].turn(now, &mut packets, self.may_send))
            }
        }
    }

    /// A core's turn ends.
    fn on_end(&mut self, core: u32) {
        let now = self.network.now;
        self.cores[core as usize].is_busy = false;
        let threads = self.threads.len() as u32;
        let again = match core {
            DAEMON => {
                send(&mut self.network, 0, self.daemon.plug());
                self.wake_threads(now);
                let timer = self.daemon.next_time();
                let look = self.daemon.has_work().then_some(now + SPIN).into_iter().chain(timer).min();
                if self.daemon.is_busy() || !self.came[0].is_empty() {
                    Some(now)
                } else {
                    look
                }
            }
            _ if core <= threads => {
                let thread = &mut self.threads[core as usize - 1];
                let (has_rung, next) = (thread.has_rung(), thread.next_time(now, &self.daemon));
                if has_rung {
                    self.want(DAEMON, now);
                }
                next
            }
            _ => {
                let client = (core - threads - 1) as usize;
                send(&mut self.network, client as u32 + 1, self.clients[client].plug());
                let has_more = !self.came[client + 1].is_empty();
                if has_more {
                    Some(now)
                } else {
                    self.clients[client].next_time(now)
                }
            }
        };
        let again = if self.cores[core as usize].is_wanted { Some(now) } else { again };
        if let Some(at) = again {
            // A timer may fire without effect. Time must pass all the same.
            self.want(core, if at < now { now + 1 } else { at });
        }
    }

    /// Wakes threads that the daemon did something for.
    fn wake_threads(&mut self, now: u64) {
        for number in 0..self.threads.len() {
            if self.cores[number + 1].is_busy {
                continue;
            }
            if let Some(at) = self.threads[number].next_time(now, &self.daemon) {
                self.want(number as u32 + 1, at);
            }
        }
    }
}

/// Sends the packets that leave a host.
fn send(network: &mut Network, host: u32, plug: &Plug) {
    for (to, bytes) in plug.outbox.borrow_mut().drain(..) {
        network.send(host, to, &bytes);
    }
}
