//! Explores every state that a few endpoints on fewer frames can reach, by every order of the actions of programs, the network and the
//! engine.
//!
//! The engine does one thing at a time, and a program may write between any two of its looks. Any endpoint may lose its frame at any
//! moment, so every policy is covered.

use super::*;
use crate::frames::Policy;
use crate::rates::Rates;
use std::collections::HashSet;
use weft_wire::segment::{Part, PARTS, SYSTEM};
use weft_wire::EndpointId;

/// The bounds of an exploration.
#[derive(Clone, Copy)]
struct Bounds {
    /// The user of each endpoint.
    users: &'static [u32],
    frames: u32,
    /// Descriptors that a ring holds.
    ring: u32,
    /// Records come from other hosts, and requests for endpoints are made and arrive late.
    has_network: bool,
}

/// What the engine does next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Next {
    Anything,
    /// It cleared this bell, and will look into the ring.
    Hear(usize),
    /// It visits an endpoint, and has taken so many descriptors.
    Visit(RowId, u32),
    /// It found whether there are more.
    EndVisit(RowId, u32, bool),
    /// It will check whether an endpoint that was bound or evicted has something to do.
    Look(RowId),
}

/// A place for an endpoint. Its program opens, uses and closes endpoints there again and again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Seat {
    id: Option<RowId>,
    ring: u32,
    /// The program wrote, and has not rung yet.
    is_to_ring: bool,
    bell: bool,
    /// Something came from another host.
    has_come: bool,
    /// How often it was opened.
    life: u32,
}

/// A fault in the machine that the exploration must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    ForgetsToLook,
    KeepsFrame,
    KeepsClock,
    KeepsPlaceInQueue,
    KeepsPlaceInSchedule,
    SchedulesTwice,
    GivesFrameTwice,
    ForgetsMore,
    ServesLastUserFirst,
}

const FAULTS: [Fault; 9] = [
    Fault::ForgetsToLook,
    Fault::KeepsFrame,
    Fault::KeepsClock,
    Fault::KeepsPlaceInQueue,
    Fault::KeepsPlaceInSchedule,
    Fault::SchedulesTwice,
    Fault::GivesFrameTwice,
    Fault::ForgetsMore,
    Fault::ServesLastUserFirst,
];

#[derive(Clone)]
struct World {
    bounds: Bounds,
    fault: Option<Fault>,
    rows: Rows,
    residency: Residency,
    /// Without rates.
    meters: Meters,
    now: Time,
    next: Next,
    seats: Vec<Seat>,
    /// A request for an endpoint, made in this life of this seat.
    letter: Option<(RowId, usize, u32)>,
}

/// What happens to a world.
type Change<'a> = &'a dyn Fn(&mut World);

/// Descriptors that a visit takes.
const LOITER: u32 = 1;

impl World {
    fn new(bounds: Bounds, fault: Option<Fault>) -> World {
        let residency = Residency::new(Frames::new(bounds.frames, Policy::Clock, 1));
        let meters = Meters::new(Rates { remappings: u64::MAX, ..Rates::default() });
        let (rows, now, next, seats) = (Rows::default(), Time::default(), Next::Anything, Vec::new());
        let mut world = World { bounds, fault, rows, residency, meters, now, next, seats, letter: None };
        world.seats = vec![Seat::default(); bounds.users.len()];
        (0..bounds.users.len()).for_each(|seat| world.open(seat));
        world
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn open(&mut self, seat: usize) {
        let part = Part { at: PARTS, sizes: SYSTEM };
        let row = Row::new((0, seat as u32), Uid(self.bounds.users[seat]), EndpointId(0), part);
        let Seat { bell, life, .. } = self.seats[seat];
        self.seats[seat] = Seat { id: Some(self.rows.add(row)), bell, life: life + 1, ..Seat::default() };
    }

    fn seat_of(&self, id: RowId) -> Option<usize> {
        self.seats.iter().position(|seat| seat.id == Some(id))
    }

    // ---- the machine, with its fault

    fn rouse(&mut self, id: RowId) {
        self.residency.rouse(&mut self.rows, id);
        let is_resident = matches!(self.rows.get(id), Some(Row { residence: Residence::Resident { .. }, .. }));
        if self.is(Fault::SchedulesTwice) && is_resident {
            self.residency.schedule.push_back(id);
        }
    }

    fn visited(&mut self, id: RowId, done: u32, has_more: bool) {
        let has_more = has_more && !self.is(Fault::ForgetsMore);
        self.residency.visited(&mut self.rows, id, (done, has_more));
    }

    fn evict(&mut self, id: RowId) {
        let was_scheduled = self.residency.schedule.contains(&id);
        self.residency.evict(&mut self.rows, id);
        if self.is(Fault::KeepsPlaceInSchedule) && was_scheduled {
            self.residency.schedule.push_back(id);
        }
    }

    fn bind(&mut self) -> Option<RowId> {
        let id = self.residency.bind(&mut self.rows, &mut self.meters, self.now);
        if self.is(Fault::GivesFrameTwice) {
            if let Some(Residence::Resident { frame, .. }) =
                id.and_then(|id| self.rows.get(id)).map(|row| row.residence)
            {
                let copy = self.residency.frames.clone();
                self.residency.frames.take_back(frame);
                if copy.in_use() < self.bounds.frames as usize {
                    self.residency.frames = copy;
                }
            }
        }
        if self.is(Fault::ServesLastUserFirst) {
            let last = self.residency.waiting.users.pop_back();
            last.into_iter().for_each(|user| self.residency.waiting.users.push_front(user));
        }
        id
    }

    fn remove(&mut self, id: RowId) {
        let residence = self.rows.get(id).map(|row| (row.user, row.residence));
        match residence {
            Some((_, Residence::Resident { .. })) if self.is(Fault::KeepsFrame) => _ = self.rows.remove(id),
            Some((user, Residence::Waiting(_))) if self.is(Fault::KeepsPlaceInQueue) => {
                self.residency.remove(&mut self.rows, id);
                self.residency.waiting.push(user, id);
            }
            _ => _ = self.residency.remove(&mut self.rows, id),
        }
        if self.is(Fault::KeepsClock) {
            self.rows.forget_clocks();
        }
    }

    // ---- what may happen

    /// All possible next states.
    fn successors(&self) -> Vec<World> {
        let mut all = Vec::new();
        let mut add = |run: Change<'_>| {
            let mut next = self.clone();
            run(&mut next);
            all.push(next);
        };
        for (at, seat) in self.seats.iter().enumerate() {
            if seat.id.is_some() && seat.ring < self.bounds.ring && !seat.is_to_ring {
                add(&|world| {
                    world.seats[at].ring += 1;
                    world.seats[at].is_to_ring = true;
                });
            }
            // A program may ring without cause, even for an endpoint that it has closed.
            if !seat.bell {
                add(&|world| (world.seats[at].bell, world.seats[at].is_to_ring) = (true, false));
            }
        }
        match self.next {
            Next::Anything => self.engine_may(&mut add),
            Next::Hear(_) | Next::Visit(..) | Next::EndVisit(..) | Next::Look(_) => add(&World::go_on),
        }
        all
    }

    /// What the engine may do once it has finished its last action.
    fn engine_may(&self, add: &mut dyn FnMut(Change<'_>)) {
        for (at, seat) in self.seats.iter().enumerate() {
            if seat.bell {
                add(&|world| {
                    world.seats[at].bell = false;
                    world.next = Next::Hear(at);
                });
            }
            match seat.id {
                Some(id) => {
                    add(&|world| world.close(at, id));
                    if self.bounds.has_network && !seat.has_come {
                        add(&|world| {
                            world.seats[at].has_come = true;
                            world.rouse(id);
                        });
                    }
                    if self.bounds.has_network && self.letter.is_none() {
                        add(&|world| world.letter = Some((id, at, seat.life)));
                    }
                    if self.rows.get(id).is_some_and(|row| matches!(row.residence, Residence::Resident { .. })) {
                        add(&|world| {
                            world.evict(id);
                            world.next = Next::Look(id);
                        });
                    }
                }
                None => add(&|world| world.open(at)),
            }
        }
        if self.letter.is_some() {
            add(&World::take_letter);
        }
        if self.residency.scheduled() > 0 {
            add(&World::begin_visit);
        }
        if self.residency.has_waiting() && self.residency.frames.has_free() {
            add(&World::bind_next);
        }
    }

    fn go_on(&mut self) {
        match std::mem::replace(&mut self.next, Next::Anything) {
            Next::Anything => {}
            Next::Hear(at) => {
                if let Some(id) = self.seats[at].id.filter(|_| self.seats[at].ring > 0) {
                    self.rouse(id);
                }
            }
            Next::Visit(id, taken) => {
                let seat = self.seat_of(id);
                self.next = match seat.map(|at| &mut self.seats[at]) {
                    _ if taken == LOITER => Next::EndVisit(id, taken, true),
                    Some(seat) if seat.ring > 0 => {
                        seat.ring -= 1;
                        Next::Visit(id, taken + 1)
                    }
                    _ => Next::EndVisit(id, taken, false),
                };
            }
            Next::EndVisit(id, taken, has_more) => {
                let came = self.seat_of(id).is_some_and(|at| std::mem::take(&mut self.seats[at].has_come));
                self.visited(id, taken + u32::from(came), has_more);
            }
            Next::Look(id) => {
                let has_work = self.seat_of(id).is_some_and(|at| self.seats[at].ring > 0 || self.seats[at].has_come);
                if has_work && !self.is(Fault::ForgetsToLook) {
                    self.rouse(id);
                }
            }
        }
    }

    fn close(&mut self, at: usize, id: RowId) {
        self.remove(id);
        let Seat { bell, life, .. } = self.seats[at];
        self.seats[at] = Seat { bell, life, ..Seat::default() };
    }

    /// The request arrives: it concerns the endpoint that it was made for, and no other.
    fn take_letter(&mut self) {
        let Some((id, at, life)) = self.letter.take() else { return };
        let seat = &mut self.seats[at];
        if seat.life == life && seat.id.is_some() {
            seat.has_come = true;
        }
        self.rouse(id);
    }

    fn begin_visit(&mut self) {
        if let Some(id) = self.residency.next_visit(&mut self.rows) {
            self.next = Next::Visit(id, 0);
        }
    }

    fn bind_next(&mut self) {
        if let Some(id) = self.bind() {
            self.next = Next::Look(id);
        }
    }

    // ---- what must hold

    fn check(&self) -> Result<(), String> {
        let rule = |holds: bool, text: &str| if holds { Ok(()) } else { Err(text.to_owned()) };
        let live: Vec<RowId> = self.seats.iter().filter_map(|seat| seat.id).collect();
        let row_of = |id: &RowId| self.rows.get(*id);
        rule(self.rows.len() == live.len() && live.iter().all(|id| row_of(id).is_some()), "a row is left behind")?;
        let (mut framed, mut waits, mut scheduled) = (0, 0, 0);
        for id in &live {
            let Some(row) = self.rows.get(*id) else { continue };
            match row.residence {
                Residence::Idle => {}
                Residence::Waiting(_) => waits += 1,
                Residence::Resident { frame, is_scheduled } => {
                    rule(self.residency.frames.endpoint(frame) == Some(*id), "its frame is another one's")?;
                    (framed, scheduled) = (framed + 1, scheduled + u32::from(is_scheduled));
                }
            }
        }
        let Residency { frames, waiting, schedule } = &self.residency;
        rule(frames.in_use() == framed && framed <= self.bounds.frames as usize, "frames are not what is resident")?;
        rule(schedule.len() == scheduled as usize, "the schedule is not what is scheduled")?;
        let is_scheduled = |id: &RowId| {
            let residence = row_of(id).map(|row| row.residence);
            matches!(residence, Some(Residence::Resident { is_scheduled: true, .. }))
        };
        rule(schedule.iter().all(is_scheduled), "something else is in the schedule")?;
        let queued: Vec<RowId> = waiting.queues.values().flat_map(Queue::iter).copied().collect();
        let is_waiting = |id: &RowId| matches!(row_of(id), Some(Row { residence: Residence::Waiting(_), .. }));
        rule(queued.len() == waits && queued.iter().all(is_waiting), "the queues are not what waits")?;
        let users: BTreeSet<Uid> = waiting.users.iter().copied().collect();
        let with_queue: BTreeSet<Uid> = waiting.queues.keys().copied().collect();
        rule(users == with_queue && users.len() == waiting.users.len(), "users without queues, or twice")?;
        self.check_wakes()
    }

    /// No wake-up is lost: an endpoint with something to do is waiting or scheduled, or will be looked at.
    fn check_wakes(&self) -> Result<(), String> {
        for (at, seat) in self.seats.iter().enumerate() {
            let Some(id) = seat.id.filter(|_| seat.ring > 0 || seat.has_come) else { continue };
            let Some(row) = self.rows.get(id) else { continue };
            let is_in_turn = match row.residence {
                Residence::Idle => false,
                Residence::Waiting(_) => true,
                Residence::Resident { is_scheduled, .. } => is_scheduled,
            };
            let (ring_is_seen, other_is_seen) = match self.next {
                Next::Anything => (false, false),
                Next::Hear(other) => (other == at, false),
                Next::Visit(other, _) | Next::Look(other) => (other == id, other == id),
                Next::EndVisit(other, _, has_more) => (other == id && has_more, other == id),
            };
            let is_heard = seat.bell || seat.is_to_ring;
            let is_lost = seat.ring > 0 && !ring_is_seen && !is_heard || seat.has_come && !other_is_seen;
            if !is_in_turn && is_lost {
                return Err(format!("seat {at} has something to do, and nobody looks: {seat:?}"));
            }
        }
        Ok(())
    }

    /// When the engine takes its turns and nothing new happens, every endpoint gets its turn, behind at most one of each other user at a
    /// time.
    fn check_fair_turns(&self) -> Result<(), String> {
        let mut world = self.clone();
        let users = self.bounds.users.iter().collect::<BTreeSet<_>>().len();
        let mut limits: Vec<(RowId, usize)> = Vec::new();
        for queue in world.residency.waiting.queues.values() {
            limits.extend(queue.iter().enumerate().map(|(before, id)| (*id, (before + 1) * users)));
        }
        let mut bound = 0;
        for _ in 0..20 {
            for at in 0..world.seats.len() {
                world.seats[at].bell |= std::mem::take(&mut world.seats[at].is_to_ring);
            }
            world.finish();
            for at in 0..world.seats.len() {
                if std::mem::take(&mut world.seats[at].bell) {
                    world.next = Next::Hear(at);
                    world.finish();
                }
            }
            for _ in 0..world.residency.scheduled() {
                world.begin_visit();
                world.finish();
            }
            world.now = world.now.plus_nanos(2_000_000);
            world.residency.turn(world.now);
            while let Some(id) = world.turn_to_bind() {
                bound += 1;
                if limits.iter().any(|(other, most)| *other == id && bound > *most) {
                    return Err(format!("{id:?} came after {} others", bound - 1));
                }
                limits.retain(|(other, _)| *other != id);
            }
            if world.seats.iter().all(|seat| seat.ring == 0 && !seat.has_come) && !world.residency.has_work() {
                return Ok(());
            }
        }
        Err("it waits for ever".into())
    }

    fn turn_to_bind(&mut self) -> Option<RowId> {
        if let Some(victim) = self.residency.victim(&self.meters, self.now) {
            self.evict(victim);
            self.next = Next::Look(victim);
            self.finish();
        }
        let id = self.bind()?;
        self.next = Next::Look(id);
        self.finish();
        Some(id)
    }

    fn finish(&mut self) {
        while self.next != Next::Anything {
            self.go_on();
        }
    }

    /// What distinguishes this state from others. Values of clocks and tickets do not matter, only which of them are equal, and their
    /// order.
    fn key(&self) -> Vec<u8> {
        let place = |id: RowId| self.seat_of(id).map_or(99, |at| at as u8);
        let mut key = Vec::with_capacity(48);
        for seat in &self.seats {
            let residence = seat.id.and_then(|id| self.rows.get(id)).map(|row| row.residence);
            key.push(match residence {
                None => 0,
                Some(Residence::Idle) => 1,
                Some(Residence::Waiting(_)) => 2,
                Some(Residence::Resident { frame, is_scheduled }) => 3 + frame as u8 * 2 + u8::from(is_scheduled),
            });
            let bits = [seat.is_to_ring, seat.bell, seat.has_come, seat.id.is_some()];
            key.push(bits.iter().fold(seat.ring as u8, |bits, bit| bits << 1 | u8::from(*bit)));
        }
        key.extend(self.residency.schedule.iter().map(|id| place(*id)));
        key.push(100);
        for (user, queue) in &self.residency.waiting.queues {
            key.push(200 + user.0 as u8);
            key.extend(queue.iter().map(|id| place(*id)));
        }
        key.push(101);
        key.extend(self.residency.waiting.users.iter().map(|user| user.0 as u8));
        key.push(102);
        match self.next {
            Next::Anything => {}
            Next::Hear(at) => key.extend([1, at as u8]),
            Next::Visit(id, taken) => key.extend([2, place(id), taken as u8]),
            Next::EndVisit(id, taken, has_more) => key.extend([3, place(id), taken as u8, u8::from(has_more)]),
            Next::Look(id) => key.extend([4, place(id)]),
        }
        key.push(103);
        if let Some((id, at, life)) = self.letter {
            key.extend([at as u8, u8::from(self.seats[at].life == life && self.seats[at].id.is_some()), place(id)]);
        }
        key
    }
}

/// Visits all states. Returns their number, or the rule that is broken in one of them and how it was reached.
fn explore(bounds: Bounds, fault: Option<Fault>) -> Result<usize, String> {
    let first = World::new(bounds, fault);
    let mut seen = HashSet::from([first.key()]);
    let mut open = VecDeque::from([first]);
    while let Some(world) = open.pop_front() {
        world.check()?;
        world.check_fair_turns()?;
        for next in world.successors() {
            // An old request changes nothing.
            if let (Some((id, at, life)), None) = (world.letter, next.letter) {
                let is_old = world.seats[at].life != life || world.seats[at].id != Some(id);
                let mut same = next.clone();
                same.letter = world.letter;
                if is_old && same.key() != world.key() {
                    return Err("an old request did something".into());
                }
            }
            if seen.insert(next.key()) {
                open.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

/// Two endpoints of two users on one frame, with the network.
const PAIR: Bounds = Bounds { users: &[1, 2], frames: 1, ring: 2, has_network: true };

/// Three endpoints on two frames. Two of them belong to one user.
const THREE: Bounds = Bounds { users: &[1, 1, 2], frames: 2, ring: 1, has_network: false };

#[test]
fn no_order_of_events_loses_a_wake_up_or_a_frame() {
    for (bounds, least) in [(PAIR, 80_000), (THREE, 250_000)] {
        let states = explore(bounds, None).unwrap_or_else(|text| panic!("{text}"));
        assert!(states > least, "so few states: {states}");
    }
}

#[test]
fn the_exploration_finds_each_fault() {
    for fault in FAULTS {
        let found = explore(PAIR, Some(fault)).and_then(|_| explore(THREE, Some(fault)));
        assert!(found.is_err(), "{fault:?} was not found");
    }
}
