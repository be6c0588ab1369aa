//! Random programs of random users at the daemon, and a ledger with the permitted fate of every message.
//!
//! Programs and daemon sleep as they do outside of tests, so the model also finds a missing wake-up.

use crate::programs::{Log, Program};
use crate::world::World;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};
use weft_core::port::Allocated;
use weft_core::{Admission, Endpoint, MessageKind, Outgoing, Returned, SendError};
use weft_daemon::{Policy, Settings};
use weft_wire::segment::{Cursor, Segment, Sizes, AREA_PAGES, ASLEEP};
use weft_wire::{Certainty, EndpointId, HostAddress, Key, Name, Reason};

/// An endpoint by its place in the list of all, which is also its index in every table.
type Global = usize;

/// A message that was accepted, and what is known of it.
#[derive(Debug)]
struct Entry {
    kind: MessageKind,
    from: Global,
    to: Global,
    len: usize,
    offered: u32,
    returned: Vec<(Certainty, Reason)>,
    answered: u32,
    answer_returned: u32,
}

/// An endpoint of the world.
#[derive(Clone, Copy, Debug)]
struct Seat {
    program: usize,
    local: Endpoint,
    name: Name,
    key: Key,
    is_freed: bool,
}

#[derive(Debug, Default)]
struct Ledger {
    entries: BTreeMap<u32, Entry>,
    seats: Vec<Seat>,
    dead: BTreeSet<usize>,
    /// The last message offered, by pair and kind.
    last: BTreeMap<(Global, Global, bool), u32>,
    faults: Vec<String>,
}

fn payload(id: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(7).wrapping_add(id) as u8).collect()
}

fn args(id: u32, from: Global) -> Vec<u32> {
    let mut args = vec![id, from as u32];
    args.extend((0..id % 15).map(|at| id ^ at));
    args
}

impl Ledger {
    fn fail(&mut self, text: String) {
        self.faults.push(text);
    }

    fn seat_of(&self, program: usize, local: Endpoint) -> Option<Global> {
        self.seats.iter().position(|seat| (seat.program, seat.local) == (program, local))
    }

    fn check_contents(&mut self, what: &str, got_args: &[u32], got_payload: &[u8]) -> Option<u32> {
        let id = *got_args.first()?;
        let Some(entry) = self.entries.get(&id) else {
            self.fail(format!("{what} {id}, which was never sent"));
            return None;
        };
        if got_args != args(id, entry.from) || got_payload != payload(id, entry.len) {
            self.fail(format!("{what} {id} with other contents: {entry:?}"));
        }
        Some(id)
    }

    fn on_message(&mut self, at: Global, kind: MessageKind, got_args: &[u32], got_payload: &[u8]) {
        let Some(id) = self.check_contents("offered", got_args, got_payload) else { return };
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if kind == MessageKind::Reply {
            entry.answered += 1;
            if entry.from != at || entry.kind != MessageKind::Request {
                self.fail(format!("the answer to {id} came to {at}"));
            }
            return;
        }
        entry.offered += 1;
        let place = (entry.from, entry.to, kind == MessageKind::Request);
        if (entry.to, entry.kind) != (at, kind) {
            self.fail(format!("{id} came to {at} as {kind:?}"));
        } else if self.last.insert(place, id) > Some(id) {
            self.fail(format!("{id} came behind a later one of {place:?}"));
        }
    }

    fn on_returned(&mut self, at: Global, message: &Returned) {
        let Some(id) = self.check_contents("returned", &message.args, &message.payload) else { return };
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if message.kind == MessageKind::Reply {
            entry.answer_returned += 1;
            return;
        }
        entry.returned.push((message.certainty, message.reason));
        if (entry.from, entry.kind) != (at, message.kind) {
            self.fail(format!("{id} returned at {at}"));
        }
    }

    /// Checks the rules, once nothing is under way.
    fn check(&mut self) {
        let mut faults = std::mem::take(&mut self.faults);
        for (id, entry) in &self.entries {
            let lives = |at: Global| !self.seats[at].is_freed && !self.dead.contains(&self.seats[at].program);
            let has_died = self.dead.contains(&self.seats[entry.to].program);
            if let Err(text) = entry.check(lives(entry.from), lives(entry.to), has_died) {
                faults.push(format!("{id}: {text}: {entry:?}"));
            }
        }
        self.faults = faults;
    }
}

impl Entry {
    fn check(&self, from_lives: bool, to_lives: bool, to_has_died: bool) -> Result<(), &'static str> {
        let rule = |holds: bool, text| if holds { Ok(()) } else { Err(text) };
        let (offered, returned) = (self.offered == 1, self.returned.len() == 1);
        let is_certain = self.returned.iter().all(|(certainty, _)| *certainty == Certainty::NotDelivered);
        rule(self.offered <= 1 && self.returned.len() <= 1 && self.answered <= 1, "it ended twice")?;
        rule(!(returned && is_certain && offered), "delivered, and said not to be")?;
        rule(is_certain || to_has_died || !from_lives, "unknown, and nobody died")?;
        rule(self.answered == 0 || offered, "answered, and not delivered")?;
        if !from_lives {
            return Ok(());
        }
        match self.kind {
            MessageKind::Request => {
                rule(!(returned && self.answered == 1), "answered, and returned")?;
                rule(returned || self.answered == 1, "the request did not end")
            }
            _ => rule(offered || returned || !to_lives, "it is lost"),
        }
    }
}

/// A program's action. Numbers are taken modulo the number of things that exist.
#[derive(Clone, Debug)]
enum Step {
    Send {
        from: u8,
        to: u8,
        asks: bool,
        len: u32,
        times: u8,
    },
    Poll {
        program: u8,
        budget: u32,
    },
    Daemon {
        turns: u8,
    },
    All {
        turns: u8,
    },
    /// It does not poll until it goes on.
    Stop {
        program: u8,
    },
    GoOn {
        program: u8,
    },
    LieDown {
        program: u8,
    },
    Endpoint {
        program: u8,
        order: u8,
    },
    Free {
        endpoint: u8,
    },
    ChangeKey {
        endpoint: u8,
    },
    Map {
        from: u8,
        to: u8,
    },
    Unmap {
        from: u8,
        to: u8,
    },
    /// It dies, having looked at so many records that it did not take.
    Kill {
        program: u8,
        claimed: u8,
    },
    Attach {
        user: u8,
    },
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![3 => Just(0u32), 8 => 0u32..200, 2 => 200u32..5000, 2 => Just(65_536u32)];
    let send = (any::<u8>(), any::<u8>(), any::<bool>(), len, 1u8..40)
        .prop_map(|(from, to, asks, len, times)| Step::Send { from, to, asks, len, times });
    let budget = prop_oneof![1u32..4, 1u32..200];
    let step = prop_oneof![
        40 => send,
        30 => (any::<u8>(), budget).prop_map(|(program, budget)| Step::Poll { program, budget }),
        30 => (1u8..4).prop_map(|turns| Step::Daemon { turns }),
        6 => (1u8..30).prop_map(|turns| Step::All { turns }),
        3 => any::<u8>().prop_map(|program| Step::Stop { program }),
        3 => any::<u8>().prop_map(|program| Step::GoOn { program }),
        4 => any::<u8>().prop_map(|program| Step::LieDown { program }),
        2 => (any::<u8>(), 4u8..7).prop_map(|(program, order)| Step::Endpoint { program, order }),
        2 => any::<u8>().prop_map(|endpoint| Step::Free { endpoint }),
        2 => any::<u8>().prop_map(|endpoint| Step::ChangeKey { endpoint }),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(from, to)| Step::Map { from, to }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(from, to)| Step::Unmap { from, to }),
        1 => (any::<u8>(), 0u8..4).prop_map(|(program, claimed)| Step::Kill { program, claimed }),
        1 => any::<u8>().prop_map(|user| Step::Attach { user }),
    ];
    proptest::collection::vec(step, 0..most)
}

#[derive(Clone, Debug)]
struct Setup {
    programs: usize,
    endpoints: usize,
    frames: u32,
    policy: u8,
    /// Endpoints are freed, keys changed.
    changes: bool,
    /// Programs die and come.
    mortal: bool,
}

fn setups(changes: bool, mortal: bool) -> impl Strategy<Value = Setup> {
    (2usize..5, 1usize..4, 1u32..5, 0u8..3).prop_map(move |(programs, endpoints, frames, policy)| Setup {
        programs,
        endpoints,
        frames,
        policy,
        changes,
        mortal,
    })
}

/// A fault on the way to the ledger, which the ledger must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Drop,
    Double,
    Overtake,
    Spoil,
}

const PROGRAMS_MOST: usize = 6;
const ENDPOINTS_MOST: usize = 14;
const TURNS_MOST: usize = 40_000;

struct Run {
    world: World,
    ledger: Ledger,
    setup: Setup,
    stopped: BTreeSet<usize>,
    /// Sleeps of the daemon.
    sleeps: u64,
    next: u32,
    fault: Option<(Fault, u64)>,
    /// Messages that came.
    seen: u64,
}

impl Run {
    fn new(setup: &Setup, fault: Option<(Fault, u64)>) -> Run {
        let policy = [Policy::Random, Policy::Clock, Policy::Lru][usize::from(setup.policy)];
        let world = World::new(Settings { frames: setup.frames, policy, seed: 5, ..Settings::default() });
        let setup = setup.clone();
        let (ledger, stopped) = (Ledger::default(), BTreeSet::new());
        let mut run = Run { world, ledger, stopped, sleeps: 0, next: 0, fault, seen: 0, setup };
        for program in 0..run.setup.programs {
            run.attach(program as u32 % 2);
        }
        for order in 0..run.setup.endpoints as u8 {
            (0..run.setup.programs).for_each(|program| run.endpoint(program, 4 + order % 3));
        }
        run
    }

    fn attach(&mut self, user: u32) {
        let program = self.world.attach(1000 + user);
        // Each program listens from now on.
        assert_eq!(self.world.programs[program].core.state_mut().next_event(), None);
    }

    fn lives(&self, program: usize) -> bool {
        !self.ledger.dead.contains(&program)
    }

    fn polls(&self, program: usize) -> bool {
        self.lives(program) && !self.stopped.contains(&program)
    }

    fn program(&self, number: u8) -> Option<usize> {
        Some(usize::from(number) % self.world.programs.len()).filter(|program| self.lives(*program))
    }

    fn seat(&self, number: u8) -> Option<Global> {
        let seats = &self.ledger.seats;
        let at = usize::from(number).checked_rem(seats.len())?;
        Some(at).filter(|at| !seats[*at].is_freed && self.lives(seats[*at].program))
    }

    fn segment(&self, program: usize) -> weft_daemon::testing::MemSegment {
        self.world.programs[program].sessions.port().borrow().platform().segment.clone()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { from, to, asks, len, times } => {
                let (Some(from), Some(to)) = (self.seat(from), self.any_seat(to)) else { return };
                let times = if len > 10_000 { times.min(3) } else { times };
                (0..times).all(|_| self.send(from, to, asks, len as usize));
            }
            Step::Poll { program, budget } => {
                if let Some(program) = self.program(program) {
                    self.poll(program, budget);
                }
            }
            Step::Daemon { turns } => (0..turns).for_each(|_| _ = self.daemon()),
            Step::All { turns } => {
                for _ in 0..turns {
                    self.daemon();
                    (0..self.world.programs.len()).for_each(|program| _ = self.poll(program, 1000));
                }
            }
            Step::Stop { program } => {
                if let Some(program) = self.program(program) {
                    self.stopped.insert(program);
                }
            }
            Step::GoOn { program } => {
                if let Some(program) = self.program(program) {
                    self.stopped.remove(&program);
                }
            }
            Step::LieDown { program } => {
                if let Some(program) = self.program(program) {
                    self.world.programs[program].sessions.lie_down();
                }
            }
            Step::Endpoint { program, order } => {
                if let Some(program) = self.program(program) {
                    self.endpoint(program, order);
                }
            }
            Step::Free { endpoint } if self.setup.changes => self.free(endpoint),
            Step::ChangeKey { endpoint } if self.setup.changes => {
                let Some(at) = self.seat(endpoint) else { return };
                let Seat { program, local, name, .. } = self.ledger.seats[at];
                let key = Key(5000 + u64::from(self.next));
                self.ledger.seats[at].key = key;
                let found = &mut self.world.programs[program];
                found.core.state_mut().set_key(local, key).expect("it is there");
                found.sessions.set_key(name.endpoint, key);
            }
            Step::Map { from, to } if self.setup.changes => {
                if let (Some(from), Some(to)) = (self.seat(from), self.any_seat(to)) {
                    self.map(from, to);
                }
            }
            Step::Unmap { from, to } if self.setup.changes => {
                if let (Some(from), Some(to)) = (self.seat(from), self.any_seat(to)) {
                    let Seat { program, local, .. } = self.ledger.seats[from];
                    let _ = self.world.programs[program].core.state_mut().unmap(local, to as u32);
                }
            }
            Step::Kill { program, claimed } if self.setup.mortal => {
                if let Some(program) = self.program(program) {
                    self.kill(program, claimed);
                }
            }
            Step::Attach { user } if self.setup.mortal && self.world.programs.len() < PROGRAMS_MOST => {
                self.attach(u32::from(user) % 3);
                let program = self.world.programs.len() - 1;
                self.endpoint(program, 4);
            }
            _ => {}
        }
    }

    fn any_seat(&self, number: u8) -> Option<Global> {
        usize::from(number).checked_rem(self.ledger.seats.len())
    }

    fn send(&mut self, from: Global, to: Global, asks: bool, len: usize) -> bool {
        let (id, Seat { program, local, .. }) = (self.next, self.ledger.seats[from]);
        let (args, payload) = (args(id, from), payload(id, len));
        let message = Outgoing { op: 1, args: &args, payload: &payload, completion: None };
        let state = self.world.programs[program].core.state_mut();
        let sent = match asks {
            true => state.try_request(local, to as u32, message),
            false => state.try_send(local, to as u32, message),
        };
        match sent {
            Ok(()) => {
                self.next += 1;
                let kind = if asks { MessageKind::Request } else { MessageKind::OneWay };
                let (returned, offered, answered, answer_returned) = (Vec::new(), 0, 0, 0);
                let entry = Entry { kind, from, to, len, offered, returned, answered, answer_returned };
                self.ledger.entries.insert(id, entry);
                true
            }
            Err(SendError::Full | SendError::NoEndpoint | SendError::NotMapped(_)) => false,
            Err(error) => {
                self.ledger.fail(format!("send said {error}"));
                false
            }
        }
    }

    /// A turn of the daemon. Returns how much was done.
    fn daemon(&mut self) -> u32 {
        self.world.now = self.world.now.plus_nanos(10_000);
        let had_wakes = self.world.engine.has_wakes();
        let work = self.world.engine.poll(self.world.now);
        if work == 0 && !had_wakes && self.world.engine.has_wakes() {
            self.ledger.fail("the daemon says that it did nothing, and wakes somebody".into());
        }
        for broken in self.world.engine.take_broken() {
            self.ledger.fail(format!("the daemon cut {broken:?} off"));
            self.world.engine.detach(broken, Reason::Violation);
        }
        work
    }

    /// A program polls, unless it is stopped. Returns how much was done.
    fn poll(&mut self, program: usize, budget: u32) -> u32 {
        if !self.polls(program) {
            return 0;
        }
        let found = &mut self.world.programs[program];
        let work = found.poll_some(budget);
        let broken = found.core.take_broken();
        let is_lost = found.sessions.is_lost();
        while found.core.state_mut().next_event().is_some() {}
        self.note(program);
        if is_lost || !broken.is_empty() {
            self.ledger.fail(format!("{program} found its peers or the daemon to break the protocol: {broken:?}"));
        }
        work
    }

    /// Enters a program's arrivals into the ledger.
    fn note(&mut self, program: usize) {
        let Log { messages, returned, .. } = &mut self.world.programs[program].log;
        let mut messages: Vec<_> = messages.drain(..).collect();
        let returned = std::mem::take(returned);
        for at in 0..messages.len() {
            self.seen += 1;
            let (local, kind, _, args, payload) = messages[at].clone();
            let Some(seat) = self.ledger.seat_of(program, local) else {
                self.ledger.fail(format!("a message to {local:?} of {program}, which is not"));
                continue;
            };
            match self.fault.filter(|(_, place)| *place <= self.seen).map(|(fault, _)| fault) {
                None => {}
                Some(Fault::Overtake) => {
                    let next =
                        messages.get(at + 1).filter(|next| (next.0, next.1, next.3[1]) == (local, kind, args[1]));
                    if next.is_some() && kind != MessageKind::Reply {
                        messages.swap(at, at + 1);
                        self.fault = None;
                    }
                }
                Some(Fault::Drop) => {
                    self.fault = None;
                    continue;
                }
                Some(Fault::Double) => {
                    self.fault = None;
                    self.ledger.on_message(seat, kind, &args, &payload);
                }
                Some(Fault::Spoil) => {
                    self.fault = None;
                    messages[at].3[1] ^= 1;
                }
            }
            let (_, kind, _, args, payload) = messages[at].clone();
            self.ledger.on_message(seat, kind, &args, &payload);
        }
        for message in returned {
            match self.ledger.seat_of(program, message.endpoint) {
                Some(seat) => self.ledger.on_returned(seat, &message),
                None => self.ledger.fail(format!("{message:?} came back to nobody")),
            }
        }
    }

    fn endpoint(&mut self, program: usize, order: u8) {
        if self.ledger.seats.len() >= ENDPOINTS_MOST || !self.lives(program) {
            return;
        }
        let sizes = Sizes { ring_order: order.into(), area_pages: *AREA_PAGES.start() };
        let key = Key(self.ledger.seats.len() as u64 + 1);
        let found = &mut self.world.programs[program];
        let id = EndpointId(found.next);
        if !found.sessions.allocate(id, key, sizes) {
            return;
        }
        found.next += 1;
        loop {
            self.daemon();
            match self.world.programs[program].sessions.look_for_endpoint() {
                Allocated::NotYet => {}
                Allocated::Yes => break,
                Allocated::No(_) => return,
            }
        }
        let found = &mut self.world.programs[program];
        let name = Name { epoch: found.epoch, endpoint: id, uid: found.user, address: HostAddress::NONE };
        let local = found.core.state_mut().add_endpoint(name, key);
        found.core.state_mut().set_admission(local, Admission::AnyUser).expect("it is there");
        found.sessions.set_admission(id, Admission::AnyUser);
        let new = self.ledger.seats.len();
        self.ledger.seats.push(Seat { program, local, name, key, is_freed: false });
        for other in 0..=new {
            self.map(other, new);
            self.map(new, other);
        }
    }

    fn map(&mut self, from: Global, to: Global) {
        let (Seat { program, local, is_freed, .. }, Seat { name, key, .. }) =
            (self.ledger.seats[from], self.ledger.seats[to]);
        if !is_freed && self.lives(program) {
            let state = self.world.programs[program].core.state_mut();
            state.map(local, to as u32, name, key).expect("it is there");
        }
    }

    fn free(&mut self, number: u8) {
        let Some(at) = self.seat(number) else { return };
        let Seat { program, local, name, .. } = self.ledger.seats[at];
        let found = &mut self.world.programs[program];
        found.core.state_mut().free_endpoint(local).expect("it is there");
        found.sessions.free(name.endpoint);
        self.ledger.seats[at].is_freed = true;
    }

    fn kill(&mut self, program: usize, claimed: u8) {
        // It had looked at more than it had taken.
        let segment = self.segment(program);
        for seat in self.ledger.seats.iter().filter(|seat| seat.program == program) {
            if let Some(part) = self.world.engine.part_of(&seat.name) {
                let taken = segment.cursor(part.here(Cursor::Taken));
                segment.set_cursor(part.here(Cursor::Claimed), taken + u64::from(claimed));
            }
        }
        self.world.kill(program);
        self.ledger.dead.insert(program);
    }

    /// Everybody polls, and sleeps when there is nothing to do, until all sleep. Returns whether they do.
    fn settle(&mut self) -> bool {
        let (mut idle, mut asleep) = (vec![0; PROGRAMS_MOST], BTreeSet::new());
        let (mut daemon_sleeps, mut rest) = (None, 0);
        for _ in 0..TURNS_MOST {
            let wakes = self.wakes();
            if daemon_sleeps.is_none_or(|before| before != wakes) {
                let work = match daemon_sleeps.take() {
                    Some(_) => {
                        self.set_daemon_asleep(0);
                        self.daemon().max(1)
                    }
                    None => self.daemon(),
                };
                for id in self.world.engine.take_wakes() {
                    let woken = self.world.programs.iter().position(|found| found.id == id);
                    woken.inspect(|program| _ = asleep.remove(program));
                }
                if work == 0 {
                    self.sleeps += 1;
                    self.set_daemon_asleep(self.sleeps);
                    match self.daemon() == 0 && !self.world.engine.has_work() {
                        true => daemon_sleeps = Some(wakes),
                        false => self.set_daemon_asleep(0),
                    }
                }
            }
            for (program, idle) in idle.iter_mut().enumerate().take(self.world.programs.len()) {
                if asleep.contains(&program) || !self.polls(program) {
                    continue;
                }
                self.segment(program).set_cursor(ASLEEP, 0);
                *idle = if self.poll(program, 1000) == 0 { *idle + 1 } else { 0 };
                if *idle >= 3 && self.lie_down(program) {
                    asleep.insert(program);
                }
            }
            // A program that was told *full* checks again now and then, and does not sleep while the other one does not poll.
            let is_idle = |n: usize| asleep.contains(&n) || !self.polls(n) || !self.stopped.is_empty() && idle[n] > 0;
            let is_at_rest = daemon_sleeps == Some(self.wakes()) && (0..self.world.programs.len()).all(is_idle);
            rest = if is_at_rest { rest + 1 } else { 0 };
            if rest > if self.stopped.is_empty() { 0 } else { 30 } {
                return true;
            }
        }
        false
    }

    /// How often programs have woken the daemon.
    fn wakes(&self) -> u32 {
        self.world.programs.iter().map(|found| found.sessions.port().borrow().platform().wakes.get()).sum()
    }

    fn set_daemon_asleep(&self, sleep: u64) {
        self.world.programs.iter().for_each(|found| found.sessions.port().borrow().platform().asleep.set(sleep));
    }

    /// Sleeps as a bundle does, unless there is something to do. Returns whether it sleeps.
    fn lie_down(&mut self, program: usize) -> bool {
        self.sleeps += 1;
        self.world.programs[program].sessions.lie_down();
        self.segment(program).set_cursor(ASLEEP, self.sleeps);
        let work = self.poll(program, 1000);
        let Program { core, sessions, .. } = &mut self.world.programs[program];
        let may_sleep = work == 0 && !core.state().has_unfinished() && !sessions.has_unfinished();
        if !may_sleep {
            self.segment(program).set_cursor(ASLEEP, 0);
        }
        may_sleep
    }

    /// Ends the run. Returns what was wrong.
    fn finish(mut self) -> Vec<String> {
        // Even while some programs do not poll, the others come to rest.
        let is_quiet = self.settle();
        self.stopped.clear();
        if !is_quiet || !self.settle() {
            let kept = self.world.engine.kept();
            self.ledger.fail(format!("it does not settle: {kept:?}, {:?}", self.world.engine.counters()));
        }
        (0..4).for_each(|_| _ = self.daemon());
        for (what, count) in self.world.engine.kept() {
            let may_be = matches!(what, "attachments" | "endpoints" | "lines" | "names" | "frames" | "accounts");
            if !may_be && count > 0 {
                self.ledger.fail(format!("at rest: {count} {what}"));
            }
        }
        self.ledger.check();
        (0..self.world.programs.len()).for_each(|program| self.world.kill(program));
        for (what, count) in self.world.engine.kept() {
            if count > 0 {
                self.ledger.fail(format!("when all have gone: {count} {what}"));
            }
        }
        self.ledger.faults
    }
}

/// Returns what was wrong, and whether the planted fault, if any, was hit.
fn run(setup: &Setup, steps: &[Step], fault: Option<(Fault, u64)>) -> (Vec<String>, bool) {
    let mut run = Run::new(setup, fault);
    steps.iter().for_each(|step| run.step(step));
    let mut is_hit = false;
    if fault.is_some() {
        run.stopped.clear();
        run.settle();
        is_hit = run.fault.is_none();
    }
    (run.finish(), is_hit)
}

/// Programs that use everything and never die.
fn busy() -> (Setup, Vec<Step>) {
    let setup = Setup { programs: 3, endpoints: 2, frames: 2, policy: 1, changes: false, mortal: false };
    let mut steps = Vec::new();
    for number in 0..60u8 {
        let (from, to, len) = (number % 6, number / 6 % 6, u32::from(number) * 30);
        steps.push(Step::Send { from, to, asks: number % 3 != 0, len, times: 3 });
        steps.push(Step::Daemon { turns: 1 });
        steps.push(Step::Poll { program: number / 2, budget: 5 });
    }
    (setup, steps)
}

/// Tests the checker: a fault of any one message is found.
#[test]
fn a_fault_of_one_message_is_found() {
    let (setup, steps) = busy();
    assert_eq!(run(&setup, &steps, None).0, Vec::<String>::new());
    for fault in [Fault::Drop, Fault::Double, Fault::Overtake, Fault::Spoil] {
        let mut hits = 0;
        for place in 1..400 {
            let (faults, is_hit) = run(&setup, &steps, Some((fault, place)));
            if !is_hit {
                break;
            }
            hits += 1;
            assert!(!faults.is_empty(), "{fault:?} of message {place} was not noticed");
        }
        assert!(hits > 50, "{fault:?} was planted {hits} times");
    }
}

/// Cases, from a seed that is printed and that `PROPTEST_RNG_SEED` sets.
fn seeded(cases: u32) -> ProptestConfig {
    let given = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let seed = given.unwrap_or_else(now);
    println!("to run this again: PROPTEST_RNG_SEED={seed}");
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 1000,
        ..ProptestConfig::default()
    }
}

fn cases() -> u32 {
    std::env::var("WEFT_TEST_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)
}

proptest! {
    #![proptest_config(seeded(cases()))]

    #[test]
    fn every_message_ends_once_and_nothing_is_left(setup in setups(false, false), steps in steps(200)) {
        let (faults, _) = run(&setup, &steps, None);
        prop_assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn the_same_when_programs_die(setup in setups(false, true), steps in steps(200)) {
        let (faults, _) = run(&setup, &steps, None);
        prop_assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn the_same_when_endpoints_are_freed_and_keys_change(setup in setups(true, false), steps in steps(200)) {
        let (faults, _) = run(&setup, &steps, None);
        prop_assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn the_same_when_all_of_that_happens(setup in setups(true, true), steps in steps(200)) {
        let (faults, _) = run(&setup, &steps, None);
        prop_assert!(faults.is_empty(), "{faults:#?}");
    }
}
