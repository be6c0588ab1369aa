//! Remote memory over the simulated wire, with the code that ships: each operation ends once, an operation that is reported done
//! was done, one that is reported not done was not, and additions happen exactly once. The links lose and duplicate, hosts are
//! silent or cut off, and all of this is mixed (rows S3, S7, S8 and S16). `WEFT_SIM_SEED=n` begins with another seed; the long form
//! runs under `make soak`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_memory::testing::Bytes;
use weft_memory::{Change, Completion, Engine, Fetch, NoReach, Outcome, Platform, Rights, Settings, Space, Write};
use weft_sim::{
    chaos, Certainty, Change as Event, Client, Config, Context, Faults, HostId, Message, Outlet, Program, Reason,
    Simulation, Topology,
};
use weft_wire::memory::{Atomic, Place, RegionKey, Type};

const KEY: RegionKey = RegionKey(1);
/// Bytes that a host has in another's region, the last eight of them a counter.
const PART: u64 = 100_000;

/// Memory that loses one write if a fault is planted.
#[derive(Clone, Debug)]
struct Faulty {
    bytes: Bytes,
    loses: Rc<Cell<Option<u32>>>,
}

impl Space for Faulty {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.bytes.read(at, to)
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        let left = self.loses.get();
        self.loses.set(left.and_then(|left| left.checked_sub(1)));
        left == Some(0) || self.bytes.write(at, from)
    }

    fn is_word(&self, at: u64, bytes: usize) -> bool {
        self.bytes.is_word(at, bytes)
    }

    fn update(&self, at: u64, bytes: usize, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        self.bytes.update(at, bytes, change)
    }
}

#[derive(Debug)]
enum Test {}

impl Platform for Test {
    type Space = Faulty;
    type Source = Vec<u8>;
    type Target = Vec<u8>;
    type Reach = NoReach;
}

/// Counts over all hosts.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    rounds: u64,
    done: u64,
    not_delivered: u64,
    unknown: u64,
}

/// A write, an addition and a read of the whole part, to one host, and their ends.
struct Round {
    /// The context of the first operation, a multiple of three.
    first: u64,
    at: usize,
    bytes: Vec<u8>,
    ends: BTreeMap<u64, Completion<Test>>,
}

/// What a host knows of its part of another host's region.
#[derive(Default)]
struct Known {
    /// Its bytes, if they are certain.
    bytes: Option<Vec<u8>>,
    round: Option<Round>,
}

/// A host: its region, and its operations on those of others.
struct Host {
    engine: Option<Engine<Test>>,
    space: Faulty,
    known: BTreeMap<u32, Known>,
    /// Rounds still to be done.
    left: u64,
    hosts: u32,
    contexts: u64,
    tally: Rc<RefCell<Tally>>,
}

impl Host {
    fn new(hosts: u32, rounds: u64, tally: Rc<RefCell<Tally>>, loses: Rc<Cell<Option<u32>>>) -> Host {
        let space = Faulty { bytes: Bytes::new((PART * u64::from(hosts)) as usize), loses };
        Host { engine: None, space, known: BTreeMap::new(), left: rounds, hosts, contexts: 0, tally }
    }

    /// Begins a round with another host.
    fn begin(&mut self, cx: &mut Context<'_>) {
        let own = cx.host().0;
        let other = (own + 1 + cx.random().below(u64::from(self.hosts - 1)) as u32) % self.hosts;
        let known = self.known.entry(other).or_default();
        if self.left == 0 || known.round.is_some() {
            return;
        }
        if cx.look_up(HostId(other)) {
            // The next life has another region.
            known.bytes = None;
        }
        let most = [8, 3000, PART - 8][cx.random().below(3) as usize];
        let len = cx.random().below(most) + 1;
        let at = cx.random().below(PART - 8 - len + 1);
        let first = cx.random().below(256) as u8;
        let bytes: Vec<u8> = (0..len).map(|n| first.wrapping_add((n % 251) as u8)).collect();
        let Some(engine) = self.engine.as_mut() else { return };
        let place = |at: u64| Place::new(KEY, PART * u64::from(own) + at);
        let (state, _) = cx.for_client();
        if engine.try_write(state, other, Write::to(place(at)), bytes.clone(), self.contexts).is_err() {
            return; // it is not known yet
        }
        let add = Change { place: place(PART - 8), atomic: Atomic::Add, of: Type::U64 };
        let fetch = Fetch { old: Some(vec![0; 8]), ..Fetch::default() };
        engine.try_change(state, other, add, &1u64.to_le_bytes(), fetch, self.contexts + 1).expect("room");
        engine.try_read(state, other, place(0), vec![0; PART as usize], self.contexts + 2).expect("room");
        known.round = Some(Round { first: self.contexts, at: at as usize, bytes, ends: BTreeMap::new() });
        self.contexts += 3;
        self.left -= 1;
    }

    /// Takes the ends of operations, and checks complete rounds.
    fn take(&mut self) {
        while let Some(end) = self.engine.as_mut().and_then(Engine::next_completion) {
            let rounds = self.known.values_mut().filter_map(|known| known.round.as_mut());
            let round = rounds.into_iter().find(|round| (round.first..round.first + 3).contains(&end.context));
            let again = round.expect("it was posted").ends.insert(end.context % 3, end);
            assert!(again.is_none(), "an operation ended twice");
        }
        let whole: Vec<u32> = self
            .known
            .iter()
            .filter(|(_, k)| k.round.as_ref().is_some_and(|r| r.ends.len() == 3))
            .map(|(n, _)| *n)
            .collect();
        for other in whole {
            let Some(known) = self.known.get_mut(&other) else { continue };
            let Some(round) = known.round.take() else { continue };
            self.tally.borrow_mut().rounds += 1;
            check(known, round, &mut self.tally.borrow_mut());
        }
    }
}

/// Checks that a round's results fit what was known before.
fn check(known: &mut Known, round: Round, tally: &mut Tally) {
    let Round { at, bytes, mut ends, .. } = round;
    let outcomes: Vec<Outcome> = ends.values().map(|end| end.outcome).collect();
    for outcome in &outcomes {
        match outcome {
            Outcome::Done => tally.done += 1,
            Outcome::Failed { certainty: Certainty::NotDelivered, .. } => tally.not_delivered += 1,
            Outcome::Failed { .. } => tally.unknown += 1,
            Outcome::Free => panic!("nobody asked for it"),
        }
    }
    let is_certain = |outcome: Outcome| !matches!(outcome, Outcome::Failed { certainty: Certainty::Unknown, .. });
    let mut expected = known.bytes.take().filter(|_| is_certain(outcomes[0]) && is_certain(outcomes[1]));
    if let Some(expected) = &mut expected {
        if outcomes[0] == Outcome::Done {
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        if outcomes[1] == Outcome::Done {
            let counter = expected.len() - 8..;
            let old = u64::from_le_bytes(expected[counter.clone()].try_into().expect("8 bytes"));
            let told = ends.get_mut(&1).and_then(|end| end.target.take()).expect("old values");
            assert_eq!(told, old.to_le_bytes(), "the counter was added to once for each addition");
            expected[counter].copy_from_slice(&(old + 1).to_le_bytes());
        }
    }
    if outcomes[2] == Outcome::Done {
        let read = ends.get_mut(&2).and_then(|end| end.target.take()).expect("what was read");
        if outcomes[0] == Outcome::Done {
            assert!(read[at..at + bytes.len()] == bytes[..], "a write that is done can be read");
        }
        if let Some(expected) = expected {
            assert!(read == expected, "no other byte was changed");
        }
        known.bytes = Some(read);
    } else {
        // The next life begins with zeros.
        known.bytes = None;
    }
}

impl Program for Host {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        let (state, endpoint) = cx.for_client();
        let mut engine = Engine::new(endpoint, Settings::default());
        engine.attach(state);
        engine.table_mut().open(KEY.0, Rights::ALL, self.space.clone()).expect("the first one");
        self.engine = Some(engine);
        self.on_alarm(cx);
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        self.take();
        self.begin(cx);
        if !self.is_done() {
            cx.wake_in(Duration::from_millis(3));
        }
    }

    fn on_message(&mut self, _: &mut Context<'_>, _: &Message<'_>) -> Result<(), Reason> {
        Err(Reason::NoHandler)
    }

    fn client(&mut self) -> Option<&mut dyn Client<Outlet>> {
        self.engine.as_mut().map(|engine| engine as &mut dyn Client<Outlet>)
    }

    fn on_client(&mut self, _: &mut Context<'_>) {
        self.take();
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.known.values().all(|known| known.round.is_none())
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Runs one seed after the other.
fn seeds(row: &str, runs: u64, mut run: impl FnMut(u64)) {
    let first = number("WEFT_SIM_SEED", 1);
    for seed in first..first + runs {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(cause) = outcome {
            println!("to repeat: WEFT_SIM_SEED={seed} cargo test -p weft-sim --profile tests --test memory {row}");
            std::panic::resume_unwind(cause);
        }
    }
}

fn simulation(config: Config, rounds: u64, loses: Option<u32>) -> (Simulation<Host>, Rc<RefCell<Tally>>) {
    let (tally, loses) = (Rc::new(RefCell::new(Tally::default())), Rc::new(Cell::new(loses)));
    let (told, hosts) = (tally.clone(), config.topology.hosts());
    (Simulation::new(config, move |_| Host::new(hosts, rounds, told.clone(), loses.clone())), tally)
}

/// Runs until all rounds are done.
fn settle(simulation: &mut Simulation<Host>, hosts: u32) {
    let latest = simulation.now() + Duration::from_secs(3600);
    while (0..hosts).any(|host| simulation.program(HostId(host)).is_some_and(|program| !program.is_done())) {
        assert!(simulation.now() < latest, "an operation does not end");
        simulation.run_for(Duration::from_millis(20));
    }
}

fn lossy(seed: u64, rounds: u64, loses: Option<u32>) -> Tally {
    let faults = Faults { reorder: 300_000, window: 64, ..Faults::loss(300_000) };
    let config = Config { seed, faults, ..Config::default() };
    let (mut simulation, tally) = simulation(config, rounds, loses);
    settle(&mut simulation, 2);
    let tally = *tally.borrow();
    assert_eq!(tally.done, 3 * 2 * rounds, "all is done: {tally:?}");
    tally
}

fn s3(runs: u64, rounds: u64) {
    seeds("s3", runs, |seed| _ = lossy(seed, rounds, None));
}

/// A peer is silent for ever from some moment on: every operation ends.
fn s7(runs: u64) {
    let mut unknown = 0;
    seeds("s7", runs, |seed| {
        let (mut simulation, tally) = simulation(Config { seed, ..Config::default() }, 50, None);
        let mut random = weft_sim::Random::new(seed);
        simulation.run_until(Duration::from_nanos(random.below(100_000_000)));
        simulation.change(match random.chance(500_000) {
            true => Event::Crash(HostId(1)),
            false => Event::Isolate { host: HostId(1), from: true, to: true },
        });
        let latest = simulation.now() + Duration::from_secs(3600);
        while !simulation.program(HostId(0)).is_some_and(Program::is_done) {
            assert!(simulation.now() < latest, "an operation does not end");
            simulation.run_for(Duration::from_millis(50));
        }
        unknown += tally.borrow().unknown;
    });
    assert!(unknown > 0, "some were caught in the middle");
}

/// Partitions that come and go.
fn s8(runs: u64) {
    let mut all = Tally::default();
    seeds("s8", runs, |seed| {
        let (mut simulation, tally) = simulation(Config { seed, ..Config::default() }, 60, None);
        let mut random = weft_sim::Random::new(seed);
        for _ in 0..3 {
            simulation.run_for(Duration::from_nanos(random.below(50_000_000)));
            let (from, to) = if random.chance(500_000) { (0, 1) } else { (1, 0) };
            simulation.change(Event::Cut(HostId(from), HostId(to)));
            simulation.run_for(Duration::from_micros(1000 * 10u64.pow(random.below(5) as u32)));
            simulation.change(Event::Heal);
        }
        settle(&mut simulation, 2);
        let tally = *tally.borrow();
        all.done += tally.done;
        all.unknown += tally.unknown;
    });
    assert!(all.done > 100 && all.unknown > 0, "{all:?}");
}

/// Crashes, restarts, bad links, stopped processes and clocks that jump, mixed.
fn s16(runs: u64) {
    let mut all = Tally::default();
    seeds("s16", runs, |seed| {
        let mut random = weft_sim::Random::new(seed);
        let hosts = 2 + random.below(5) as u32;
        let topology = if hosts == 2 { Topology::Pair } else { Topology::Star(hosts) };
        let (mut simulation, tally) = simulation(Config { seed, topology, ..Config::default() }, 60, None);
        for (at, change) in chaos(seed, hosts, Duration::from_millis(1 + random.below(3000))) {
            simulation.at(at, change);
        }
        settle(&mut simulation, hosts);
        let tally = *tally.borrow();
        all.done += tally.done;
        all.not_delivered += tally.not_delivered;
        all.unknown += tally.unknown;
    });
    assert!(all.done > 1000 && all.not_delivered > 0 && all.unknown > 0, "{all:?}");
}

#[test]
fn s3_loss_copies_and_reordering_lose_no_operation_and_repeat_none() {
    s3(5, 300);
}

#[test]
fn s7_everything_ends_when_a_peer_is_silent() {
    s7(60);
}

#[test]
fn s8_partitions_leave_nothing_half_done() {
    s8(30);
}

#[test]
fn s16_all_of_it_mixed() {
    s16(60);
}

#[test]
#[ignore = "takes minutes"]
fn the_rows_of_remote_memory_in_their_long_form() {
    s3(100, 1000);
    s7(3000);
    s8(1000);
    s16(3000);
}

#[test]
fn a_planted_lost_write_is_found() {
    let found = (0..5).filter(|loses| {
        let run = || lossy(1, 50, Some(20 + 7 * loses));
        std::panic::catch_unwind(run).is_err()
    });
    assert_eq!(found.count(), 5);
}
