//! Long messages over the simulated wire, with the code that ships: each ends once, a delivered one was placed completely, and one
//! that is said to be not delivered was not. The links lose and duplicate, hosts are silent or cut off, and all of this is mixed.
//! `WEFT_SIM_SEED=n` begins with another seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use weft_core::testing::Bytes;
use weft_core::{Delivery, Endpoint, Get, Long, Memory, MessageKind, Returned, State, Transfer};
use weft_sim::{
    chaos, Certainty, Change, Client, Config, Context, Faults, HostId, Message, Outlet, Program, Reason, Simulation,
    Topology,
};

/// Bytes that each host has in another's segment for its messages, answers and fetched data; the largest message.
const PART: usize = 100_000;
/// Puts bytes. Arguments: number, who puts, length.
const PUT: u8 = 1;
/// The answer: the same number of bytes.
const ANSWER: u8 = 2;
/// The bytes that were put have come back.
const GOT: u8 = 3;

/// A segment that loses one write if a fault is planted.
#[derive(Clone, Debug)]
struct Faulty {
    bytes: Bytes,
    loses: Arc<AtomicI64>,
}

impl Memory for Faulty {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.bytes.read(at, to)
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        self.loses.fetch_sub(1, Ordering::Relaxed) == 0 || self.bytes.write(at, from)
    }
}

fn pattern(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + at / 256) as u32 ^ number.wrapping_mul(31)) as u8 | 1).collect()
}

/// What is known of all hosts.
#[derive(Default, Debug)]
struct Ledger {
    /// Whether hosts may have another life, whose segment is empty.
    has_restarts: bool,
    numbers: u32,
    delivered: BTreeSet<u32>,
    answered: u64,
    got: u64,
    not_delivered: u64,
    unknown: u64,
    replies_returned: u64,
}

/// A message under way to a host.
#[derive(Debug)]
struct Round {
    number: u32,
    len: usize,
    /// Whether its bytes were put and are now fetched.
    is_get: bool,
    is_sent: bool,
}

/// The client of a host's endpoint.
struct Face {
    own: u32,
    hosts: u32,
    segment: Faulty,
    rounds: BTreeMap<u32, Round>,
    ledger: Rc<RefCell<Ledger>>,
}

impl Face {
    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        assert!(self.segment.read(at, &mut bytes));
        bytes
    }

    fn round(&mut self, number: u32) -> (u32, Round) {
        let other = self.rounds.iter().find(|(_, round)| round.number == number).map(|(other, _)| *other);
        let other = other.expect("a message that has not ended");
        (other, self.rounds.remove(&other).expect("just found"))
    }
}

impl Client<Outlet> for Face {
    fn deliver(&mut self, state: &mut State<Outlet>, message: &Delivery<'_>) -> Result<(), Reason> {
        let placed = state.placed().expect("all messages are long");
        let number = message.args[0];
        let here = self.bytes(placed.offset, placed.len);
        match message.op() {
            PUT => {
                let [_, from, len] = message.args[..] else { panic!("three arguments") };
                assert!(self.ledger.borrow_mut().delivered.insert(number), "{number} was delivered twice");
                assert_eq!((placed.len, placed.offset), (len.into(), u64::from(from) * PART as u64));
                assert!(here == pattern(number, len as usize), "{number} was not placed completely");
                let token = message.take_reply().expect("a request");
                let answer =
                    Long { op: ANSWER, args: &[number], offset: u64::from(self.hosts + self.own) * PART as u64 };
                let contents = pattern(number ^ 77, len as usize);
                state.reply_long(token, answer, contents.into()).expect("few arguments");
            }
            ANSWER => {
                let (other, round) = self.round(number);
                assert!(!round.is_get && here == pattern(number ^ 77, round.len));
                self.ledger.borrow_mut().answered += 1;
                let again = Round { is_get: true, is_sent: false, ..round };
                self.rounds.insert(other, again);
            }
            _ => {
                let (_, round) = self.round(number);
                let is_new = self.ledger.borrow().has_restarts && here.iter().all(|byte| *byte == 0);
                assert!(round.is_get && (is_new || here == pattern(number, round.len)));
                self.ledger.borrow_mut().got += 1;
            }
        }
        Ok(())
    }

    fn returned(&mut self, _: &mut State<Outlet>, message: Returned) -> Option<Returned> {
        let mut ledger = self.ledger.borrow_mut();
        if message.kind == MessageKind::Reply {
            ledger.replies_returned += 1;
            let number = message.args[0];
            assert!(message.payload == pattern(number ^ 77, message.payload.len()));
            return None;
        }
        match message.certainty {
            Certainty::NotDelivered => ledger.not_delivered += 1,
            Certainty::Unknown => ledger.unknown += 1,
        }
        let was_delivered = ledger.delivered.contains(&message.args[0]);
        drop(ledger);
        let (_, round) = self.round(message.args[0]);
        match message.long {
            Some(Transfer::Put { .. }) => {
                assert!(!round.is_get && message.payload == pattern(round.number, round.len), "whole");
                assert!(message.certainty == Certainty::Unknown || !was_delivered, "it was delivered");
            }
            _ => assert!(round.is_get),
        }
        None
    }
}

/// A host: its segment, and what it sends.
struct Host {
    face: Face,
    /// Messages still to be begun.
    left: u64,
    hosts: u32,
}

impl Host {
    fn begin(&mut self, cx: &mut Context<'_>) {
        let own = cx.host().0;
        let other = (own + 1 + cx.random().below(u64::from(self.hosts - 1)) as u32) % self.hosts;
        cx.look_up(HostId(other));
        if self.left > 0 && !self.face.rounds.contains_key(&other) {
            let most = [1, 3000, 40_000, PART as u64][cx.random().below(4) as usize];
            let len = cx.random().below(most + 1) as usize;
            let mut ledger = self.face.ledger.borrow_mut();
            ledger.numbers += 1;
            self.face.rounds.insert(other, Round { number: ledger.numbers, len, is_get: false, is_sent: false });
            self.left -= 1;
        }
        let (state, me) = cx.for_client();
        self.send(state, me);
    }

    /// Sends what is not sent yet.
    fn send(&mut self, state: &mut State<Outlet>, me: Endpoint) {
        let mut unsent: Vec<(u32, u32, usize, bool)> = Vec::new();
        for (other, round) in self.face.rounds.iter_mut().filter(|(_, round)| !round.is_sent) {
            round.is_sent = true;
            unsent.push((*other, round.number, round.len, round.is_get));
        }
        for (other, number, len, is_get) in unsent {
            let (offset, back) = (self.face.own as usize * PART, (2 * self.hosts + other) as usize * PART);
            let sent = match is_get {
                false => {
                    let long = Long { op: PUT, args: &[number, self.face.own, len as u32], offset: offset as u64 };
                    state.try_request_long(me, other, long, pattern(number, len).into()).map_err(|(error, _)| error)
                }
                true => {
                    let (source, len) = (offset as u64, len as u64);
                    state.try_get(me, other, Get { op: GOT, args: &[number], source, len, offset: back as u64 })
                }
            };
            if let (Err(_), Some(round)) = (sent, self.face.rounds.get_mut(&other)) {
                round.is_sent = false;
            }
        }
    }
}

impl Program for Host {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.face.own = cx.host().0;
        let (state, me) = cx.for_client();
        state.set_segment(me, Some(Box::new(self.face.segment.clone()))).expect("an endpoint");
        self.on_alarm(cx);
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        self.begin(cx);
        if !self.is_done() {
            cx.wake_in(Duration::from_millis(3));
        }
    }

    fn on_message(&mut self, _: &mut Context<'_>, _: &Message<'_>) -> Result<(), Reason> {
        Err(Reason::NoHandler)
    }

    fn client(&mut self) -> Option<&mut dyn Client<Outlet>> {
        Some(&mut self.face)
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.face.rounds.is_empty()
    }
}

/// Runs one seed after the other.
fn seeds(row: &str, runs: u64, mut run: impl FnMut(u64)) {
    let first = std::env::var("WEFT_SIM_SEED").ok().and_then(|value| value.parse().ok()).unwrap_or(1);
    for seed in first..first + runs {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(cause) = outcome {
            println!("to repeat: WEFT_SIM_SEED={seed} cargo test -p weft-sim --profile tests --test long {row}");
            std::panic::resume_unwind(cause);
        }
    }
}

fn simulation(config: Config, rounds: u64, loses: Option<i64>) -> (Simulation<Host>, Rc<RefCell<Ledger>>) {
    let (ledger, loses) = (Rc::new(RefCell::new(Ledger::default())), Arc::new(AtomicI64::new(loses.unwrap_or(-1))));
    let (told, hosts) = (ledger.clone(), config.topology.hosts());
    let host = move |_| {
        let bytes = Bytes::new(PART * 3 * hosts as usize);
        let segment = Faulty { bytes, loses: loses.clone() };
        let face = Face { own: 0, hosts, segment, rounds: BTreeMap::new(), ledger: told.clone() };
        Host { face, left: rounds, hosts }
    };
    (Simulation::new(config, host), ledger)
}

/// Runs until everything has ended.
fn settle(simulation: &mut Simulation<Host>, hosts: u32) {
    let latest = simulation.now() + Duration::from_secs(3600);
    while (0..hosts).any(|host| simulation.program(HostId(host)).is_some_and(|program| !program.is_done())) {
        assert!(simulation.now() < latest, "a message does not end");
        simulation.run_for(Duration::from_millis(20));
    }
}

fn lossy(seed: u64, rounds: u64, loses: Option<i64>) {
    let faults = Faults { reorder: 300_000, window: 64, ..Faults::loss(300_000) };
    let (mut simulation, ledger) = simulation(Config { seed, faults, ..Config::default() }, rounds, loses);
    settle(&mut simulation, 2);
    let ledger = ledger.borrow();
    assert_eq!((ledger.answered, ledger.got), (2 * rounds, 2 * rounds), "{ledger:?}");
}

#[test]
fn loss_copies_and_reordering_lose_no_byte_and_repeat_none() {
    seeds("loss", 4, |seed| lossy(seed, 100, None));
}

#[test]
fn everything_ends_when_a_peer_dies_or_is_silent() {
    let mut ends = (0, 0, 0);
    seeds("everything", 40, |seed| {
        let (mut simulation, ledger) = simulation(Config { seed, ..Config::default() }, 50, None);
        let mut random = weft_sim::Random::new(seed);
        simulation.run_until(Duration::from_nanos(random.below(100_000_000)));
        simulation.change(match random.chance(500_000) {
            true => Change::Crash(HostId(1)),
            false => Change::Isolate { host: HostId(1), from: true, to: true },
        });
        let latest = simulation.now() + Duration::from_secs(3600);
        while !simulation.program(HostId(0)).is_some_and(Program::is_done) {
            assert!(simulation.now() < latest, "a message does not end");
            simulation.run_for(Duration::from_millis(50));
        }
        let ledger = ledger.borrow();
        ends = (ends.0 + ledger.answered, ends.1 + ledger.not_delivered, ends.2 + ledger.unknown);
    });
    assert!(ends.0 > 0 && ends.1 > 0 && ends.2 > 0, "{ends:?}");
}

#[test]
fn crashes_restarts_and_partitions_mixed_leave_each_message_one_end() {
    let mut ends = (0, 0, 0);
    seeds("crashes", 40, |seed| {
        let mut random = weft_sim::Random::new(seed);
        let hosts = 2 + random.below(5) as u32;
        let topology = if hosts == 2 { Topology::Pair } else { Topology::Star(hosts) };
        let (mut simulation, ledger) = simulation(Config { seed, topology, ..Config::default() }, 40, None);
        ledger.borrow_mut().has_restarts = true;
        for (at, change) in chaos(seed, hosts, Duration::from_millis(1 + random.below(3000))) {
            simulation.at(at, change);
        }
        settle(&mut simulation, hosts);
        let ledger = ledger.borrow();
        ends = (ends.0 + ledger.answered, ends.1 + ledger.not_delivered, ends.2 + ledger.unknown);
    });
    assert!(ends.0 > 0 && ends.1 > 0 && ends.2 > 0, "{ends:?}");
}

#[test]
fn a_planted_lost_write_is_found() {
    let found = (0..4).filter(|loses| std::panic::catch_unwind(|| lossy(1, 30, Some(5 + 7 * loses))).is_err());
    assert_eq!(found.count(), 4);
}
