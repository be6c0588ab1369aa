//! Residency: which endpoints have a frame, which wait for one, and whose turn it is.
//!
//! A state machine that sees neither programs' memory nor a clock. The engine reports events to it:
//!
//! ```text
//! rouse       an endpoint has something to do: its program wrote, or something came for it
//! next_visit  the resident endpoint whose turn it is; visited(..) says what came of it
//! evict       an endpoint gives its frame away: victim(..) says which one should
//! bind        the next endpoint that waits gets a free frame
//! remove      an endpoint is gone, in whatever state
//! ```
//!
//! After `evict` and `bind` the engine checks whether the endpoint has something to do, and rouses it if so: its program may have written
//! while nobody looked. An event for an endpoint that is gone changes nothing, because the clock in its id is old.

#[cfg(test)]
mod tests;

use crate::engine::Engine;
use crate::frames::Frames;
use crate::queue::{Queue, Ticket};
use crate::rates::{Meters, Rate};
use crate::rows::{Row, RowId, Rows};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_core::ni::Link;
use weft_transport::Time;
use weft_wire::segment::Segment;
use weft_wire::Uid;

/// Visits to endpoints in a turn.
const VISITS: usize = 16;

/// Endpoints that are made resident in a turn.
const BINDS: usize = 8;

/// Where an endpoint's working state is. See `docs/design/weftd-endpoints.md`, "Residency".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Residence {
    /// In no frame, with nothing to do.
    Idle,
    /// In no frame, with something to do. It is in its user's queue for frames.
    Waiting(Ticket),
    /// In this frame. It is in the schedule if it has something to do.
    Resident { frame: u32, is_scheduled: bool },
}

/// Frames, the endpoints that wait for one, and the schedule of those that have one.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    frames: Frames,
    waiting: Waiting,
    /// Resident endpoints with something to do, in turn.
    schedule: VecDeque<RowId>,
}

/// Endpoints that wait for a frame: a queue for each user, and users in turn.
#[derive(Clone, Debug, Default)]
struct Waiting {
    queues: BTreeMap<Uid, Queue<RowId>>,
    /// Users whose queue is not empty, and
    users: VecDeque<Uid>,
    /// those of them whose endpoints may not become resident before these times.
    later: BTreeSet<(Time, Uid)>,
}

impl Residency {
    pub fn new(frames: Frames) -> Residency {
        Residency { frames, waiting: Waiting::default(), schedule: VecDeque::new() }
    }

    /// A new turn begins.
    pub fn turn(&mut self, now: Time) {
        self.frames.turn();
        if !self.waiting.later.is_empty() {
            self.waiting.end_of_delay(now);
        }
    }

    /// An endpoint has something to do: it joins the schedule, or waits for a frame.
    pub fn rouse(&mut self, rows: &mut Rows, id: RowId) {
        let Some(row) = rows.get_mut(id) else { return };
        match &mut row.residence {
            Residence::Resident { is_scheduled, .. } => {
                if !std::mem::replace(is_scheduled, true) {
                    self.schedule.push_back(id);
                }
            }
            Residence::Idle => row.residence = Residence::Waiting(self.waiting.push(row.user, id)),
            Residence::Waiting(_) => {}
        }
    }

    /// Takes the endpoint whose turn it is out of the schedule, to be visited.
    pub fn next_visit(&mut self, rows: &mut Rows) -> Option<RowId> {
        let id = self.schedule.pop_front()?;
        if let Some(Residence::Resident { is_scheduled, .. }) = rows.get_mut(id).map(|row| &mut row.residence) {
            *is_scheduled = false;
        }
        Some(id)
    }

    /// An endpoint was visited, with so much done. `has_more` says whether there may be more to do.
    pub fn visited(&mut self, rows: &mut Rows, id: RowId, (done, has_more): (u32, bool)) {
        if let Some(Residence::Resident { frame, .. }) = rows.get(id).map(|row| row.residence).filter(|_| done > 0) {
            self.frames.note_visit(frame, has_more);
        }
        if has_more {
            self.rouse(rows, id);
        }
    }

    /// The endpoint that should give up its frame, if another one waits that may have it, no frame is free, and one can be evicted.
    pub fn victim(&mut self, meters: &Meters, now: Time) -> Option<RowId> {
        self.waiting.delay(meters, now);
        match self.has_waiting() && !self.frames.has_free() {
            true => self.frames.victim(now),
            false => None,
        }
    }

    /// An endpoint gives up its frame.
    pub fn evict(&mut self, rows: &mut Rows, id: RowId) {
        let Some(row) = rows.get_mut(id) else { return };
        let Residence::Resident { frame, is_scheduled } = row.residence else { return };
        row.residence = Residence::Idle;
        self.frames.take_back(frame);
        if is_scheduled {
            self.schedule.retain(|other| *other != id);
        }
    }

    /// Gives a free frame to the next waiting endpoint; call `victim` before. `None` if there is no such frame or endpoint.
    pub fn bind(&mut self, rows: &mut Rows, meters: &mut Meters, now: Time) -> Option<RowId> {
        if !self.frames.has_free() {
            return None;
        }
        let id = self.waiting.pop()?;
        let row = rows.get_mut(id)?;
        let frame = self.frames.give(id, row.user, now)?;
        row.residence = Residence::Resident { frame, is_scheduled: false };
        meters.note(row.user, Rate::Remappings, 1, now);
        Some(id)
    }

    /// An endpoint is gone.
    pub fn remove(&mut self, rows: &mut Rows, id: RowId) -> Option<Row> {
        let row = rows.get(id)?;
        match row.residence {
            Residence::Idle => {}
            Residence::Waiting(ticket) => self.waiting.take(row.user, ticket),
            Residence::Resident { .. } => self.evict(rows, id),
        }
        rows.remove(id)
    }

    /// When a waiting endpoint may have a frame, if its rate delays it.
    pub fn next_time(&self) -> Option<Time> {
        self.waiting.later.first().map(|(at, _)| *at)
    }

    /// Whether there is an endpoint to visit, or a waiting one that may have a frame.
    pub fn has_work(&self) -> bool {
        !self.schedule.is_empty() || self.has_waiting()
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.users.is_empty()
    }

    /// Endpoints that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.queues.values().map(Queue::len).sum()
    }

    /// Endpoints in the schedule.
    pub fn scheduled(&self) -> usize {
        self.schedule.len()
    }

    /// Frames in use.
    pub fn resident(&self) -> usize {
        self.frames.in_use()
    }
}

impl Waiting {
    /// Puts an endpoint at the end of its user's queue.
    fn push(&mut self, user: Uid, id: RowId) -> Ticket {
        let queue = self.queues.entry(user).or_default();
        if queue.is_empty() {
            self.users.push_back(user);
        }
        queue.push(id)
    }

    /// Takes the next endpoint, from each user in turn.
    fn pop(&mut self) -> Option<RowId> {
        let user = self.users.pop_front()?;
        let queue = self.queues.get_mut(&user)?;
        let id = queue.pop();
        match queue.is_empty() {
            true => _ = self.queues.remove(&user),
            false => self.users.push_back(user),
        }
        id
    }

    /// Removes an endpoint that no longer waits.
    fn take(&mut self, user: Uid, ticket: Ticket) {
        let Some(queue) = self.queues.get_mut(&user) else { return };
        queue.take(ticket);
        if queue.is_empty() {
            self.queues.remove(&user);
            self.users.retain(|other| *other != user);
            self.later.retain(|(_, other)| *other != user);
        }
    }

    /// Sets users aside until the next one may have a frame now.
    fn delay(&mut self, meters: &Meters, now: Time) {
        while let Some(&user) = self.users.front() {
            let Some(at) = meters.later(user, Rate::Remappings, now) else { return };
            self.users.pop_front();
            self.later.insert((at, user));
        }
    }

    /// Brings back users that may have a frame again.
    fn end_of_delay(&mut self, now: Time) {
        while let Some(&(at, user)) = self.later.first().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, user));
            self.users.push_back(user);
        }
    }
}

impl<S: Segment, L: Link> Engine<S, L> {
    /// An endpoint has something to do.
    pub(crate) fn rouse(&mut self, id: RowId) {
        self.residency.rouse(&mut self.rows, id);
    }

    /// Visits endpoints whose turn it is.
    pub(crate) fn visit_some(&mut self) -> u32 {
        let mut work = 0;
        for _ in 0..VISITS.min(self.residency.scheduled()) {
            let Some(id) = self.residency.next_visit(&mut self.rows) else { break };
            let (taken, has_more) = self.visit(id);
            work += taken;
            self.residency.visited(&mut self.rows, id, (taken, has_more));
        }
        work
    }

    /// Gives frames to endpoints that wait.
    pub(crate) fn bind_some(&mut self) -> u32 {
        let mut work = 0;
        for _ in 0..BINDS {
            if !self.residency.has_waiting() {
                break;
            }
            if let Some(victim) = self.residency.victim(&self.meters, self.now) {
                self.residency.evict(&mut self.rows, victim);
                self.counters.evicted += 1;
                self.look_for_work(victim);
            }
            let Some(id) = self.residency.bind(&mut self.rows, &mut self.meters, self.now) else { break };
            self.counters.bound += 1;
            work += 1;
            self.resume_lines(id);
            self.look_for_work(id);
        }
        work
    }

    /// Rouses an endpoint if it has something to send, or if something from other hosts came for it and does not wait for room.
    fn look_for_work(&mut self, id: RowId) {
        let waits_for_room = self.rows.get(id).is_some_and(|row| row.waits_for_room);
        if self.has_sent(id) || (!waits_for_room && (self.has_come(id) || self.has_paused(id))) {
            self.rouse(id);
        }
    }
}
