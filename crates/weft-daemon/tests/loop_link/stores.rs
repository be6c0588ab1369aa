//! A program that is killed at each of its stores into the memory that it shares: nobody else notices, and nothing of it is left.
//!
//! The program's view of the memory counts stores, and in place of one of them ends the program by unwinding: the stores before are done,
//! and none after. It stores word by word in the order of `SegmentFile`, so a descriptor may stay half written, claimed or unannounced.

use crate::world::World;
use crate::SMALL;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::time::Duration;
use weft_core::{Admission, Endpoint, MessageKind, Outgoing};
use weft_daemon::testing::MemSegment;
use weft_daemon::Settings;
use weft_wire::descriptor::{Words, UNIT};
use weft_wire::segment::{Segment, ASLEEP, PAGE, PARTS, PARTS_MOST, SYSTEM};
use weft_wire::{Certainty, Reason};

/// What is wrong with a program, for tests of the checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// It stores the first word of a descriptor first.
    FirstWordFirst,
    /// It does not say which descriptor it is about to look at.
    NeverClaims,
    /// Nobody notices that it is dead.
    NeverFound,
}

/// The life of a program.
#[derive(Debug)]
struct Life {
    stores: Cell<u64>,
    /// It is killed in place of the store of this number.
    most: u64,
    fault: Option<Fault>,
}

/// The payload of the unwinding that ends a killed program.
struct Killed;

/// The memory of a program that is killed at one of its stores, as the program sees it.
#[derive(Clone, Debug)]
struct Mortal {
    memory: MemSegment,
    life: Rc<Life>,
}

impl Mortal {
    /// Called before each store.
    fn live(&self) {
        let stores = self.life.stores.get();
        if stores == self.life.most {
            resume_unwind(Box::new(Killed));
        }
        self.life.stores.set(stores + 1);
    }

    fn store(&self, at: usize, word: u64) {
        self.live();
        self.memory.set_cursor(at, word);
    }

    /// Sets bits of a word. Says whether none was set.
    fn or(&self, at: usize, bits: u64) -> bool {
        let before = self.memory.cursor(at);
        self.store(at, before | bits);
        before == 0
    }

    fn take(&self, at: usize) -> u64 {
        let before = self.memory.cursor(at);
        self.store(at, 0);
        before
    }
}

/// Where the levels of a tree of bells below its root begin.
const BRANCHES: usize = UNIT;
const LEAVES: usize = BRANCHES + 64 * 8;

impl Segment for Mortal {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn look(&self, at: usize, lap: u16) -> Option<Words> {
        self.memory.look(at, lap)
    }

    fn publish(&self, at: usize, words: &Words) {
        let first_is_first = self.life.fault == Some(Fault::FirstWordFirst);
        let order = if first_is_first { [0, 1, 2, 3, 4, 5, 6, 7] } else { [1, 2, 3, 4, 5, 6, 7, 0] };
        order.into_iter().for_each(|word| self.store(at + word * 8, words[word]));
    }

    fn cursor(&self, at: usize) -> u64 {
        self.memory.cursor(at)
    }

    fn set_cursor(&self, at: usize, value: u64) {
        // *Claimed* is the first word of a part, and parts begin with a page.
        let is_claim = at >= PARTS && at % PAGE == 0;
        if !(is_claim && self.life.fault == Some(Fault::NeverClaims)) {
            self.store(at, value);
        }
    }

    fn read(&self, at: usize, len: usize, to: &mut Vec<u8>) {
        self.memory.read(at, len, to);
    }

    /// Writes contents in two stores, so that they can be there in part.
    fn write(&self, at: usize, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len() / 16 * 8);
        self.live();
        self.memory.write(at, first);
        self.live();
        self.memory.write(at + first.len(), second);
    }

    fn copy_to(&self, _: usize, _: usize, _: &Mortal, _: usize) {
        unreachable!("the daemon's");
    }

    fn ring(&self, bells: usize, part: u32) {
        let part = (part % PARTS_MOST) as usize;
        let (leaf, branch) = (part / 64, part / 4096);
        if self.or(bells + LEAVES + leaf * 8, 1 << (part % 64))
            && self.or(bells + BRANCHES + branch * 8, 1 << (leaf % 64))
        {
            self.or(bells, 1 << branch);
        }
    }

    /// Of parts below 64, which is more than a program of these tests has.
    fn collect(&self, bells: usize, _: u32, mut rung: impl FnMut(u32)) {
        if self.memory.cursor(bells) == 0 {
            return;
        }
        self.take(bells);
        self.take(bells + BRANCHES);
        let parts = self.take(bells + LEAVES);
        (0..64).filter(|part| parts >> part & 1 != 0).for_each(&mut rung);
    }

    fn light_barrier(&self) {}
}

/// A message that was accepted. Programs are numbered, and the last one is the mortal one.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: usize,
    to: usize,
    asks: bool,
    len: usize,
    /// The daemon certainly knows of it: the program was not killed while sending it.
    is_told: bool,
}

/// The fate of a message.
#[derive(Clone, Debug, Default)]
struct Fate {
    offered: u32,
    answered: u32,
    returned: Vec<Certainty>,
}

/// The programs that live on. Their messages to each other must come, whatever happens to the last one.
const LIVING: [usize; 2] = [0, 1];

/// The one that is killed.
const MORTAL: usize = 2;

/// Entry in the table of each endpoint: the peer of this program. The entry after those is the second endpoint of the mortal program.
const SECOND: u32 = 3;

type TestWorld = World<MemSegment, Mortal>;

/// Two programs that live, and another one after the other that is killed.
struct Trial {
    world: TestWorld,
    endpoints: Vec<Endpoint>,
    sent: Vec<Sent>,
    /// What the engine kept before the mortal program came.
    before: [(&'static str, usize); 12],
}

fn memory(life: Life) -> (Mortal, MemSegment) {
    let memory = MemSegment::new(PARTS + SYSTEM.bytes() + 4 * SMALL.bytes());
    (Mortal { memory: memory.clone(), life: Rc::new(life) }, memory)
}

fn payload(id: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 5 + id) as u8).collect()
}

impl Trial {
    fn new() -> Trial {
        let mut world = TestWorld::over(Settings::default());
        // Passes the time in which calls wait for programs that may come back.
        world.turn();
        world.now = world.now.plus_nanos(Duration::from_secs(3).as_nanos() as u64);
        let endpoints = LIVING.map(|_| {
            let program = world.attach_as(1000, memory(Life { stores: Cell::new(0), most: u64::MAX, fault: None }));
            endpoint(&mut world, program)
        });
        let (endpoints, before) = (endpoints.to_vec(), world.engine.kept());
        let mut trial = Trial { world, endpoints, sent: Vec::new(), before };
        LIVING.into_iter().for_each(|from| LIVING.into_iter().for_each(|to| trial.map(from, to as u32, to)));
        trial.talk();
        trial.world.settle();
        trial.before = trial.world.engine.kept();
        trial
    }

    fn map(&mut self, from: usize, index: u32, to: usize) {
        let ends = [from, to].map(|program| (program, self.endpoints[program]));
        self.world.map(ends[0], index, ends[1], KEY);
    }

    /// Sends a message, with turns until there is room.
    fn send(&mut self, from: usize, to: usize, asks: bool, len: usize) {
        let id = self.sent.len();
        let (args, payload) = ([id as u32, len as u32], payload(id, len));
        // Nobody knows whether a message was sent if its program was killed while sending it.
        if from == MORTAL {
            self.sent.push(Sent { from, to, asks, len, is_told: false });
        }
        match asks {
            true => self.world.request((from, self.endpoints[from]), to as u32, &args, &payload),
            false => self.world.send((from, self.endpoints[from]), to as u32, &args, &payload),
        }
        self.sent.truncate(id);
        self.sent.push(Sent { from, to, asks, len, is_told: true });
    }

    /// Sends a message if there is room.
    fn try_send(&mut self, from: usize, to: usize, asks: bool, len: usize) {
        let id = self.sent.len();
        let (args, payload) = ([id as u32, len as u32], payload(id, len));
        let message = Outgoing { op: 1, args: &args, payload: &payload, completion: None };
        if from == MORTAL {
            self.sent.push(Sent { from, to, asks, len, is_told: false });
        }
        let state = self.world.programs[from].core.state_mut();
        let sent = match asks {
            true => state.try_request(self.endpoints[from], to as u32, message),
            false => state.try_send(self.endpoints[from], to as u32, message),
        };
        self.sent.truncate(id);
        if sent.is_ok() {
            self.sent.push(Sent { from, to, asks, len, is_told: true });
        }
    }

    /// The living programs talk to each other.
    fn talk(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            self.send(from, to, false, 8);
            self.send(from, to, true, 100);
            self.send(from, to, false, LONG);
        }
    }

    /// Everything that the mortal program does.
    fn live(&mut self) {
        let first = endpoint(&mut self.world, MORTAL);
        self.endpoints.push(first);
        let second = endpoint(&mut self.world, MORTAL);
        for other in LIVING {
            self.map(MORTAL, other as u32, other);
            self.map(other, MORTAL as u32, MORTAL);
            self.world.map((MORTAL, second), SECOND, (other, self.endpoints[other]), KEY);
        }
        // It sends messages and requests, with contents in descriptors and in the area. The ring wraps, so it holds words of earlier laps.
        for round in 0..10 {
            self.send(MORTAL, 0, false, round % 3 * 8);
            self.send(MORTAL, 1, round % 2 == 0, 24);
        }
        self.talk();
        self.send(MORTAL, 0, false, 5000);
        self.send(MORTAL, 1, true, LONG);
        // It receives the same, several at a time, and answers.
        for round in 0..8 {
            LIVING.into_iter().for_each(|from| self.send(from, MORTAL, round % 2 == 0, round * 8));
        }
        LIVING.into_iter().for_each(|from| self.send(from, MORTAL, from == 0, LONG));
        self.talk();
        self.world.turn();
        // It is refused for now by a program that does not poll, and sends again.
        for _ in 0..24 {
            self.try_send(MORTAL, 1, false, 16);
            self.world.now = self.world.now.plus_nanos(10_000);
            self.world.engine.poll(self.world.now);
            self.world.programs[MORTAL].poll();
        }
        self.send(MORTAL, 1, true, 16);
        // It goes to sleep, and is woken.
        let program = &mut self.world.programs[MORTAL];
        program.sessions.lie_down();
        program.sessions.port().borrow().platform().segment.set_cursor(ASLEEP, 1);
        self.send(0, MORTAL, true, 8);
        self.world.turn();
        // It leaves a line, and frees an endpoint that has one.
        let message = Outgoing { op: 1, args: &[u32::MAX], payload: b"of the second", completion: None };
        while self.world.programs[MORTAL].core.state_mut().try_send(second, SECOND, message).is_err() {
            self.world.turn();
        }
        let program = &mut self.world.programs[MORTAL];
        let name = program.core.state().name(second).expect("an endpoint");
        program.core.state_mut().free_endpoint(second).expect("an endpoint");
        program.sessions.free(name.endpoint);
        while self.world.engine.endpoints() > 3 {
            self.world.turn();
        }
        let program = &mut self.world.programs[MORTAL];
        let session = program.core.state().sessions().map(|(session, _)| session).next().expect("a session");
        program.sessions.close(session, Reason::Closed);
        program.core.lose(session, Reason::Closed, &mut program.log);
        (0..50).for_each(|_| _ = self.world.turn());
    }

    /// A program attaches, is killed at a store, and is found dead after so many turns. Returns what was wrong, and whether it got that
    /// far.
    fn run(&mut self, most: u64, turns: u32, fault: Option<Fault>) -> (Vec<String>, bool) {
        let program = self.world.attach_as(1001, memory(Life { stores: Cell::new(0), most, fault }));
        assert_eq!(program, MORTAL);
        let ended = catch_unwind(AssertUnwindSafe(|| self.live()));
        let is_killed = ended.is_err();
        if let Some(cause) = ended.err().filter(|cause| !cause.is::<Killed>()) {
            resume_unwind(cause);
        }
        let dead = self.world.programs.remove(MORTAL);
        for _ in 0..turns {
            LIVING.into_iter().for_each(|from| self.try_send(from, MORTAL, from == 0, 8));
            self.world.turn();
        }
        if turns > 0 {
            self.talk();
        }
        if fault != Some(Fault::NeverFound) {
            self.world.engine.detach(dead.id, Reason::PeerLost);
        }
        self.talk();
        LIVING.into_iter().for_each(|program| self.world.drain(program));
        self.world.settle();
        self.world.programs.push(dead);
        let faults = self.check();
        self.world.programs.truncate(MORTAL);
        self.endpoints.truncate(MORTAL);
        self.sent.clear();
        self.world.programs.iter_mut().for_each(|found| (found.log.messages, found.log.returned) = Default::default());
        (faults, is_killed)
    }

    /// Returns what was wrong, once nothing is under way. The log of a dead program is still readable.
    fn check(&mut self) -> Vec<String> {
        let mut faults = Vec::new();
        let broken = self.world.engine.take_broken();
        if !broken.is_empty() || self.world.engine.counters().violations > 0 {
            faults.push(format!("{broken:?} broke the protocol"));
        }
        let kept = self.world.engine.kept();
        if kept != self.before {
            faults.push(format!("is left: {kept:?} and not {:?}", self.before));
        }
        let fates = self.fates(&mut faults);
        let fate = |id: usize| fates.get(&id).cloned().unwrap_or_default();
        for (id, sent) in self.sent.iter().enumerate() {
            if let Err(text) = fate(id).check(sent) {
                faults.push(format!("{id}: {text}: {sent:?}, {:?}", fate(id)));
            }
        }
        // A program handles one message at a time.
        let is_unknown = |id: &usize| fate(*id).returned == [Certainty::Unknown];
        let unknown: Vec<usize> =
            (0..self.sent.len()).filter(|id| self.sent[*id].from != MORTAL && is_unknown(id)).collect();
        if unknown.len() > 1 {
            faults.push(format!("{unknown:?} are unknown"));
        }
        faults
    }

    fn fates(&self, faults: &mut Vec<String>) -> BTreeMap<usize, Fate> {
        let mut fates: BTreeMap<usize, Fate> = BTreeMap::new();
        let is_right = |args: &[u32], found: &[u8]| {
            let sent = self.sent.get(args[0] as usize).filter(|sent| args.len() == 2 && args[1] as usize == sent.len);
            sent.is_some_and(|sent| payload(args[0] as usize, sent.len) == found)
        };
        for (at, program) in self.world.programs.iter().enumerate() {
            let mut last = [0; 3];
            let of_second = |args: &[u32]| args == [u32::MAX];
            for (_, kind, _, args, payload) in program.log.messages.iter().filter(|message| !of_second(&message.3)) {
                if !is_right(args, payload) {
                    faults.push(format!("{args:?} came to {at} with {} bytes", payload.len()));
                    continue;
                }
                let id = args[0] as usize;
                let Sent { from, to, .. } = self.sent[id];
                let fate = fates.entry(id).or_default();
                let expected = if *kind == MessageKind::Reply { from } else { to };
                if at != expected {
                    faults.push(format!("{id} came to {at} as {kind:?}"));
                }
                match kind {
                    MessageKind::Reply => fate.answered += 1,
                    _ => {
                        fate.offered += 1;
                        if std::mem::replace(&mut last[from], id) > id {
                            faults.push(format!("{id} came to {at} behind a later one"));
                        }
                    }
                }
            }
            for message in program.log.returned.iter().filter(|message| !of_second(&message.args)) {
                if message.kind == MessageKind::Reply {
                    continue;
                }
                if !is_right(&message.args, &message.payload) {
                    faults.push(format!("{:?} came back to {at} with other contents", message.args));
                    continue;
                }
                fates.entry(message.args[0] as usize).or_default().returned.push(message.certainty);
            }
        }
        fates
    }
}

impl Fate {
    fn check(&self, sent: &Sent) -> Result<(), &'static str> {
        let rule = |holds: bool, text| if holds { Ok(()) } else { Err(text) };
        let (offered, returned) = (self.offered == 1, !self.returned.is_empty());
        rule(self.offered <= 1 && self.answered <= 1 && self.returned.len() <= 1, "it ended twice")?;
        rule(!(offered && self.returned == [Certainty::NotDelivered]), "delivered, and said not to be")?;
        rule(self.answered == 0 || offered || sent.to == MORTAL, "answered, and not delivered")?;
        match sent {
            // Nobody is told the fate of its own messages. Those that the daemon knew of are delivered, if their receiver has room.
            Sent { from: MORTAL, to: 0, is_told: true, .. } => {
                rule(offered, "it was sent before the death and did not come")
            }
            Sent { from: MORTAL, .. } => Ok(()),
            Sent { to: MORTAL, asks: true, .. } => {
                rule((self.answered == 1) != returned, "the request did not end once")
            }
            Sent { to: MORTAL, .. } => rule(offered || returned, "it is lost"),
            _ => rule(offered && !returned && self.answered == u32::from(sent.asks), "it did not come"),
        }
    }
}

const KEY: u64 = 7;

/// Bytes of a long message.
const LONG: usize = 20_000;

/// Makes an endpoint to which programs of any user may send.
fn endpoint(world: &mut TestWorld, program: usize) -> Endpoint {
    let endpoint = world.endpoint_with(program, KEY, SMALL).expect("an endpoint");
    let found = &mut world.programs[program];
    let id = found.core.state().name(endpoint).expect("an endpoint").endpoint;
    found.core.state_mut().set_admission(endpoint, Admission::AnyUser).expect("an endpoint");
    found.sessions.set_admission(id, Admission::AnyUser);
    endpoint
}

#[test]
fn a_program_that_is_killed_at_any_store_harms_nobody_and_leaves_nothing() {
    for turns in [0, 30] {
        let mut stores = 0;
        // Each time with neighbours that knew no mortal program before.
        loop {
            let (faults, is_killed) = Trial::new().run(stores, turns, None);
            assert!(faults.is_empty(), "killed at store {stores}, found after {turns} turns: {faults:#?}");
            if !is_killed {
                break;
            }
            stores += 1;
        }
        println!("{stores} stores");
        assert!(stores > 500, "{stores} stores: it does not do what it should");
    }
}

/// Small leaks add up: areas, places in rings, lines.
#[test]
fn the_same_neighbours_see_one_program_after_the_other_killed() {
    let mut trial = Trial::new();
    for store in (0..).step_by(11) {
        let (faults, is_killed) = trial.run(store, 2, None);
        assert!(faults.is_empty(), "killed at store {store}: {faults:#?}");
        if !is_killed {
            break;
        }
    }
}

/// Tests the checker.
#[test]
fn a_program_that_stores_in_another_order_or_stays_is_found() {
    for fault in [Fault::FirstWordFirst, Fault::NeverClaims, Fault::NeverFound] {
        let is_noticed = |store| {
            let (faults, is_killed) = Trial::new().run(store, 30, Some(fault));
            assert!(is_killed, "{fault:?} was not noticed at any of {store} stores");
            !faults.is_empty()
        };
        assert!((0..).any(is_noticed));
    }
}
