//! Random programs on two hosts, and a ledger with the permitted fate of each message.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weft_core::{Endpoint, MessageKind, Outgoing, Returned, SendError};
use weft_transport::Random;
use weft_wire::segment::{Sizes, AREA_PAGES};
use weft_wire::{Certainty, Name, Reason};

/// An endpoint, and its program.
struct Seat {
    program: usize,
    endpoint: Endpoint,
    name: Name,
}

#[derive(Debug, Default)]
struct Entry {
    from: usize,
    to: usize,
    asks: bool,
    len: usize,
    came: u32,
    answered: u32,
    returned: Vec<Certainty>,
}

struct Model {
    world: World,
    random: Random,
    seats: Vec<Seat>,
    dead: BTreeSet<usize>,
    entries: BTreeMap<u32, Entry>,
    /// The last message that came, by pair and kind.
    last: BTreeMap<(usize, usize, bool), u32>,
    faults: Vec<String>,
    /// A planted fault: a message that the ledger is told of twice, or not at all, and must find.
    planted: Option<(u32, bool)>,
}

fn payload(id: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(5).wrapping_add(id) as u8).collect()
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut random = Random::new(seed);
        let frames = 1 + random.below(6) as u32;
        let mut world = World::holding(frames, [128 << 10, 200 << 10, 512 << 10, 2 << 20][random.below(4) as usize]);
        world.wire.borrow_mut().lose = [0, 0, 40, 10][random.below(4) as usize];
        world.sizes = Sizes { ring_order: 4 + random.below(3) as u32, area_pages: *AREA_PAGES.start() };
        let mut seats = Vec::new();
        for host in [0, 1, 0, 1] {
            let program = world.attach(host, 7);
            for _ in 0..1 + random.below(20) {
                let endpoint = world.endpoint(program, 6);
                let name = world.name(program, endpoint);
                seats.push(Seat { program, endpoint, name });
            }
        }
        let names: Vec<Name> = seats.iter().map(|seat| seat.name).collect();
        for seat in &seats {
            for (to, name) in (0u32..).zip(&names) {
                world.map((seat.program, seat.endpoint), to, *name, 6);
            }
        }
        let (dead, entries, last, faults) = Default::default();
        Model { world, random, seats, dead, entries, last, faults, planted: None }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn step(&mut self, mortal: bool) {
        let program = self.below(self.world.programs.len());
        match self.below(100) {
            0..60 => {
                let (from, to) = (self.below(self.seats.len()), self.below(self.seats.len()));
                let len = [0, 30, 500, 20_000, 60_000][self.below(5)];
                let (times, asks) = (1 + self.below(12), self.below(3) == 0);
                match self.below(4) {
                    // Small and large ones in turn.
                    0 => _ = (0..times).all(|n| self.send(from, to, asks, if n % 2 == 0 { 8 } else { 60_000 })),
                    // From all to one.
                    1 => (0..self.seats.len()).for_each(|from| _ = self.send(from, to, asks, len)),
                    _ => _ = (0..times).all(|_| self.send(from, to, asks, len)),
                }
            }
            60..70 => _ = self.world.stopped.insert(program),
            70..74 => {
                self.world.stopped.remove(&program);
                self.world.stopped.extend(&self.dead);
            }
            74..76 if mortal && self.dead.len() < 3 => {
                self.note(program);
                if self.dead.insert(program) {
                    self.world.kill(program);
                }
            }
            _ => {
                let time = self.below(400) as u64;
                self.world.run(Duration::from_micros(time));
            }
        }
        (0..self.world.programs.len()).for_each(|program| self.note(program));
    }

    fn send(&mut self, from: usize, to: usize, asks: bool, len: usize) -> bool {
        let Seat { program, endpoint, .. } = self.seats[from];
        if self.dead.contains(&program) {
            return false;
        }
        let id = self.entries.len() as u32;
        let message = Outgoing { op: 1, args: &[id], payload: &payload(id, len), completion: None };
        let state = self.world.programs[program].1.core.state_mut();
        let sent = match asks {
            true => state.try_request(endpoint, to as u32, message),
            false => state.try_send(endpoint, to as u32, message),
        };
        match sent {
            Ok(()) => _ = self.entries.insert(id, Entry { from, to, asks, len, ..Entry::default() }),
            Err(SendError::Full) => {}
            Err(error) => self.faults.push(format!("send said {error}")),
        }
        sent.is_ok()
    }

    /// Enters a program's arrivals.
    fn note(&mut self, program: usize) {
        let log = &mut self.world.programs[program].1.log;
        let (messages, returned) = (std::mem::take(&mut log.messages), std::mem::take(&mut log.returned));
        for (endpoint, kind, _, args, payload) in messages {
            let times = match self.planted {
                Some((id, is_doubled)) if id == args[0] && kind != MessageKind::Reply => 2 * u32::from(is_doubled),
                _ => 1,
            };
            (0..times).for_each(|_| self.note_message(program, endpoint, kind, args[0], &payload));
        }
        returned.into_iter().for_each(|message| self.note_returned(program, &message));
    }

    fn note_message(&mut self, program: usize, endpoint: Endpoint, kind: MessageKind, id: u32, got: &[u8]) {
        let at = self.seats.iter().position(|seat| (seat.program, seat.endpoint) == (program, endpoint));
        let Some(entry) = self.entries.get_mut(&id) else { return self.faults.push(format!("{id} was never sent")) };
        if got != payload(id, entry.len) {
            self.faults.push(format!("{id} came with other contents"));
        }
        if kind == MessageKind::Reply {
            entry.answered += 1;
            return;
        }
        entry.came += 1;
        if at != Some(entry.to) {
            self.faults.push(format!("{id} came to {at:?}: {entry:?}"));
        }
        if self.last.insert((entry.from, entry.to, entry.asks), id) > Some(id) {
            self.faults.push(format!("{id} came behind a later one: {entry:?}"));
        }
    }

    fn note_returned(&mut self, program: usize, message: &Returned) {
        match self.entries.get_mut(&message.args[0]) {
            // A reply whose requester is gone.
            Some(_) if message.kind == MessageKind::Reply => {}
            Some(entry) if self.seats[entry.from].program == program => entry.returned.push(message.certainty),
            _ => self.faults.push(format!("{:?} came back to {program}", message.args)),
        }
        if self.dead.is_empty() && message.reason != Reason::NoRoom {
            self.faults.push(format!("{:?} came back, and nobody died: {:?}", message.args, message.reason));
        }
    }

    /// Everybody polls until nothing is under way. Then the rules are checked.
    fn finish(mut self) -> Vec<String> {
        self.world.stopped = self.dead.clone();
        let living: Vec<usize> = (0..self.world.programs.len()).filter(|at| !self.dead.contains(at)).collect();
        let mut turns = 0;
        // Polls all of them each time: polling also makes them acknowledge what they have taken.
        while turns < 2_000_000 && living.iter().filter(|program| !self.world.is_settled(**program)).count() > 0 {
            self.world.turn();
            turns += 1;
        }
        if turns == 2_000_000 {
            let kept: Vec<_> = self.world.engines.iter().map(|engine| engine.kept()).collect();
            self.faults.push(format!("it does not settle: {kept:?}"));
        }
        self.world.run(Duration::from_millis(20));
        (0..self.world.programs.len()).for_each(|program| self.note(program));
        for (id, entry) in &self.entries {
            let is_dead = |seat: usize| self.dead.contains(&self.seats[seat].program);
            if let Err(rule) = entry.check(is_dead(entry.from), is_dead(entry.to)) {
                self.faults.push(format!("{id}: {rule}: {entry:?}"));
            }
        }
        for program in living {
            self.world.kill(program);
        }
        self.world.run(Duration::from_secs(4));
        for engine in &self.world.engines {
            if engine.kept().iter().any(|kept| kept.1 > 0) {
                self.faults.push(format!("when all have gone: {:?}", engine.kept()));
            }
        }
        self.faults
    }
}

impl Entry {
    fn check(&self, from_died: bool, to_died: bool) -> Result<(), &'static str> {
        let rule = |holds: bool, text| if holds { Ok(()) } else { Err(text) };
        rule(self.came <= 1 && self.answered <= 1 && self.returned.len() <= 1, "it ended twice")?;
        rule(self.came == 0 || !self.returned.contains(&Certainty::NotDelivered), "delivered, and said not to be")?;
        rule(to_died || !self.returned.contains(&Certainty::Unknown), "unknown, and nobody died")?;
        rule(self.came == 1 || self.answered == 0, "answered, and not delivered")?;
        if from_died {
            return Ok(());
        }
        match self.asks {
            true => rule(self.answered as usize + self.returned.len() == 1, "the request did not end once"),
            false => rule(self.came == 1 || !self.returned.is_empty() || to_died, "it is lost"),
        }
    }
}

/// Runs so many steps. Returns what was wrong, and how often a stream was paused.
fn run(seed: u64, steps: usize, mortal: bool, planted: Option<(u32, bool)>) -> (Vec<String>, u64) {
    let mut model = Model::new(seed);
    model.planted = planted;
    (0..steps).for_each(|_| model.step(mortal));
    let paused = model.world.engines.iter().map(|engine| engine.counters().paused).sum();
    (model.finish(), paused)
}

/// Seeds from `WEFT_TEST_MODEL_SEED` on, or random ones.
fn seeds() -> impl Iterator<Item = u64> {
    let given = std::env::var("WEFT_TEST_MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let count = std::env::var("WEFT_TEST_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(6);
    let first: u64 = given.unwrap_or_else(now);
    println!("to run this again: WEFT_TEST_MODEL_SEED={first}");
    (0..count).map(move |n| first.wrapping_add(n))
}

#[test]
fn every_message_between_hosts_ends_once_and_nothing_is_left() {
    for seed in seeds() {
        let (faults, _) = run(seed, 300, false, None);
        assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    }
}

#[test]
fn the_same_between_hosts_when_programs_die() {
    for seed in seeds() {
        let (faults, _) = run(seed, 300, true, None);
        assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    }
}

/// Tests the checker: a message that is lost or comes twice is found.
#[test]
fn a_fault_of_one_message_between_hosts_is_found() {
    for planted in [(3, false), (3, true), (25, false), (25, true)] {
        assert!(!run(11, 200, false, Some(planted)).0.is_empty(), "{planted:?} was not noticed");
    }
    let (faults, paused): (Vec<_>, Vec<_>) = (11..19).map(|seed| run(seed, 300, false, None)).unzip();
    assert_eq!(faults.concat(), Vec::<String>::new());
    assert!(paused.iter().sum::<u64>() > 5, "{paused:?}");
}
