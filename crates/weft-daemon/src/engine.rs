//! The engine: what is attached, and what a turn does.

use crate::frames::{Frames, Policy};
use crate::lines::{Line, LineRef, Marks, Peer};
use crate::pages::Pages;
use crate::quota::{Accounts, Limits, Quota};
use crate::rows::{Residence, Row, RowId, Rows};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use weft_transport::Time;
use weft_wire::descriptor::{Place, Said};
use weft_wire::segment::{Part, Segment, PAGE, PARTS, SYSTEM, TO_DAEMON};
use weft_wire::{EndpointId, Epoch, HostAddress, Name, Reason, Uid};

/// Visits to endpoints in a turn.
const VISITS: usize = 16;

/// Words of bells that are looked at in a turn, of each attachment.
const BELLS: u32 = 64;

/// Endpoints with a full ring that are looked at in a turn.
const BLOCKED: usize = 64;

/// The largest weight.
const WEIGHT_MOST: u32 = 64;

/// Endpoints that are made resident in a turn.
const BINDS: usize = 8;

/// How an engine is set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Frames.
    pub frames: u32,
    /// How an endpoint is chosen that gives its frame to another one.
    pub policy: Policy,
    /// What there is for all users.
    pub limits: Limits,
    /// The address in the names of programs.
    pub address: HostAddress,
    /// For what is drawn by lot.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            frames: 96,
            policy: Policy::default(),
            limits: Limits::default(),
            address: HostAddress::NONE,
            seed: 0,
        }
    }
}

/// An attachment. The life tells it from earlier ones with the same index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttachmentId {
    /// Its place.
    pub index: u32,
    life: u32,
}

/// A program that attaches.
#[derive(Debug)]
pub struct Newcomer<S> {
    /// The memory that is shared with it.
    pub segment: S,
    /// Its user, as the kernel says.
    pub user: Uid,
    /// The epoch of its names.
    pub epoch: Epoch,
}

/// Why a program was not attached.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its user has as many attachments as it may.
    #[error("the user has as many attachments as it may; end some")]
    Quota,
    /// Another user's program has the epoch.
    #[error("another user's program has these names")]
    Epoch,
    /// The memory has no room for the system endpoint.
    #[error("the file is too small for any endpoint")]
    Memory,
}

weft_wire::debug_says_display!(Refused);

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Records handed to programs.
    pub delivered: u64,
    /// Bytes of contents that were copied.
    pub copied: u64,
    /// Records that were refused for now.
    pub refused: u64,
    /// Times that an endpoint was made resident.
    pub bound: u64,
    /// Times that one gave its frame to another one.
    pub evicted: u64,
    /// Requests of programs.
    pub requests: u64,
    /// Bells without cause.
    pub false_bells: u64,
    /// Attachments that broke the protocol.
    pub violations: u64,
}

/// What is attached.
#[derive(Debug)]
pub(crate) struct Attachment<S> {
    pub segment: S,
    pub user: Uid,
    pub epoch: Epoch,
    /// Its endpoints, by the numbers of their parts. The first is the system endpoint.
    pub rows: Slab<RowId>,
    /// The first is that of the system endpoint.
    pub lines: Slab<Line>,
    pub pages: Pages,
    /// The sleep of the program that it was woken from last.
    pub woken: u64,
    /// It broke the protocol.
    pub is_broken: bool,
    life: u32,
}

/// The engine.
#[derive(Debug)]
pub struct Engine<S> {
    pub(crate) settings: Settings,
    pub(crate) attachments: Slab<Attachment<S>>,
    pub(crate) rows: Rows,
    pub(crate) names: BTreeMap<(Epoch, EndpointId), RowId>,
    /// Whose an epoch is, and how many attachments have it.
    epochs: BTreeMap<Epoch, (Uid, u32)>,
    pub(crate) accounts: Accounts,
    /// Weights of users in the schedule, where they are not one.
    weights: BTreeMap<Uid, u32>,
    pub(crate) frames: Frames,
    /// Resident endpoints with something to send, in turn.
    pub(crate) schedule: VecDeque<RowId>,
    /// Endpoints whose receive ring was full when something was for it.
    pub(crate) blocked: VecDeque<RowId>,
    /// Lines that were refused by an endpoint and wait for room there, in the order in which they came.
    pub(crate) stalled: BTreeMap<RowId, VecDeque<LineRef>>,
    /// Lines of which something is to be said to an endpoint's program, when its ring has room.
    pub(crate) owing: BTreeMap<RowId, VecDeque<u32>>,
    pub(crate) wakes: Vec<AttachmentId>,
    /// The endpoint whose bell is to be rung: its attachment and its part.
    pub(crate) bell: Option<(u32, u32)>,
    broken: Vec<AttachmentId>,
    /// Attachments whose system endpoint has something.
    callers: VecDeque<u32>,
    /// Calls of programs that nobody here has heard of, soon after the start: they may attach yet.
    pub(crate) early: Vec<EarlyCall>,
    /// When the first turn was.
    pub(crate) started: Option<Time>,
    pub(crate) counters: Counters,
    pub(crate) now: Time,
    lives: u32,
    /// Buffers that are used again.
    rung: Vec<u32>,
    pub(crate) contents: Vec<u8>,
}

impl<S: Segment> Engine<S> {
    /// An engine without attachments.
    pub fn new(settings: Settings) -> Engine<S> {
        Engine {
            settings,
            attachments: Slab::new(),
            rows: Rows::default(),
            names: BTreeMap::new(),
            epochs: BTreeMap::new(),
            accounts: Accounts::new(settings.limits),
            weights: BTreeMap::new(),
            frames: Frames::new(settings.frames.max(1), settings.policy, settings.seed),
            schedule: VecDeque::new(),
            blocked: VecDeque::new(),
            stalled: BTreeMap::new(),
            owing: BTreeMap::new(),
            wakes: Vec::new(),
            bell: None,
            broken: Vec::new(),
            callers: VecDeque::new(),
            early: Vec::new(),
            started: None,
            counters: Counters::default(),
            now: Time::default(),
            lives: 0,
            rung: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Sets how much service each endpoint of a user gets, beside one of a user with weight one: from 1 to 64. For endpoints that are made from
    /// now on.
    pub fn set_weight(&mut self, user: Uid, weight: u32) {
        self.weights.insert(user, weight.clamp(1, WEIGHT_MOST));
    }

    pub(crate) fn weight_of(&self, user: Uid) -> u32 {
        self.weights.get(&user).copied().unwrap_or(1)
    }

    /// Attaches a program.
    ///
    /// # Errors
    /// Why not. Nothing is left behind.
    pub fn attach(&mut self, newcomer: Newcomer<S>) -> Result<AttachmentId, Refused> {
        let Newcomer { segment, user, epoch } = newcomer;
        if self.epochs.get(&epoch).is_some_and(|(owner, _)| *owner != user) {
            return Err(Refused::Epoch);
        }
        let pages = u32::try_from(segment.bytes() / PAGE).unwrap_or(u32::MAX);
        let mut pages = Pages::new((PARTS / PAGE) as u32, pages);
        let page = pages.take((SYSTEM.bytes() / PAGE) as u32).ok_or(Refused::Memory)?.page;
        if !self.accounts.take(user, Quota::Attachments, 1) {
            return Err(Refused::Quota);
        }
        self.epochs.entry(epoch).or_insert((user, 0)).1 += 1;
        self.lives = self.lives.wrapping_add(1);
        let entry = self.attachments.vacant_entry();
        let index = entry.key() as u32;
        let part = Part { at: page as usize * PAGE, sizes: SYSTEM };
        // Of no number that a name has, and without a frame, which it does not need.
        let row = self.rows.add(Row::new(index, 0, EndpointId(u32::MAX), part));
        let (mut rows, mut lines) = (Slab::new(), Slab::new());
        rows.insert(row);
        lines.insert(Line::new(row, Peer::None, user));
        let life = self.lives;
        entry.insert(Attachment { segment, user, epoch, rows, lines, pages, woken: 0, is_broken: false, life });
        Ok(AttachmentId { index, life })
    }

    /// Detaches a program: it ended, or broke the protocol. What it had sent before is delivered, as far as it is taken at once; its
    /// peers' lines end.
    pub fn detach(&mut self, id: AttachmentId, reason: Reason) -> Option<S> {
        let attachment = self.attachments.get(id.index as usize).filter(|found| found.life == id.life)?;
        let rows: Vec<RowId> = attachment.rows.iter().map(|(_, row)| *row).collect();
        if !attachment.is_broken {
            rows.iter().skip(1).for_each(|row| self.visit_last(*row));
        }
        for row in rows.into_iter().skip(1) {
            self.remove_row(row, reason);
        }
        let attachment = self.attachments.remove(id.index as usize);
        if let Some((_, system)) = attachment.rows.iter().next() {
            self.rows.remove(*system);
            self.owing.remove(system);
        }
        self.accounts.give_back(attachment.user, Quota::Attachments, 1);
        if let Some(count) = self.epochs.get_mut(&attachment.epoch).map(|(_, count)| count) {
            *count -= 1;
            if *count == 0 {
                self.epochs.remove(&attachment.epoch);
            }
        }
        self.wakes.retain(|other| *other != id);
        self.broken.retain(|other| *other != id);
        self.callers.retain(|other| *other != id.index);
        self.early.retain(|call| call.attachment != id.index);
        Some(attachment.segment)
    }

    /// A turn. Returns how much was done: 0 if there was nothing to do.
    pub fn poll(&mut self, now: Time) -> u32 {
        self.now = now;
        self.started.get_or_insert(now);
        self.frames.turn();
        let mut work = self.hear_bells();
        work += self.serve_callers();
        if !self.early.is_empty() {
            work += self.answer_early_calls();
        }
        work += self.look_at_blocked();
        work += self.visit_some();
        work += self.bind_some();
        work
    }

    /// The attachments that sleep, and are to be woken since the last call. Each one once for a sleep.
    pub fn take_wakes(&mut self) -> Vec<AttachmentId> {
        std::mem::take(&mut self.wakes)
    }

    /// Whether there are attachments to wake.
    #[doc(hidden)]
    pub fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// The attachments that broke the protocol since the last call: to be detached.
    pub fn take_broken(&mut self) -> Vec<AttachmentId> {
        std::mem::take(&mut self.broken)
    }

    /// Whether something is to be done that no bell tells of.
    pub fn has_work(&self) -> bool {
        !self.schedule.is_empty() || self.frames.has_waiting() || !self.callers.is_empty() || !self.wakes.is_empty()
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Attachments.
    pub fn attachments(&self) -> usize {
        self.attachments.len()
    }

    /// Endpoints, without those of the system.
    pub fn endpoints(&self) -> usize {
        self.rows.len() - self.attachments.len()
    }

    /// Frames in use.
    pub fn resident(&self) -> usize {
        self.frames.in_use()
    }

    /// Lines that wait to be told that there is room for them.
    pub fn stalled(&self) -> usize {
        self.stalled.values().map(VecDeque::len).sum()
    }

    /// Numbers of things that are kept for attachments, by name: for tests. All of it is 0 when nothing is attached.
    #[doc(hidden)]
    pub fn kept(&self) -> [(&'static str, usize); 11] {
        let lines = self.attachments.iter().map(|(_, found)| found.lines.len() - 1).sum();
        [
            ("attachments", self.attachments.len()),
            ("endpoints", self.endpoints()),
            ("lines", lines),
            ("names", self.names.len()),
            ("frames", self.frames.in_use()),
            ("accounts", self.accounts.users()),
            ("schedule", self.schedule.len()),
            ("blocked", self.blocked.len()),
            ("stalled", self.stalled.len()),
            ("owing", self.owing.len()),
            ("waiting", usize::from(self.frames.has_waiting()) + self.callers.len()),
        ]
    }

    /// Where an endpoint's part lies: for tests.
    #[doc(hidden)]
    pub fn part_of(&self, name: &Name) -> Option<Part> {
        let row = self.names.get(&(name.epoch, name.endpoint))?;
        Some(self.rows.get(*row)?.part)
    }

    // ---- a turn

    fn hear_bells(&mut self) -> u32 {
        let mut rung = std::mem::take(&mut self.rung);
        let mut work = 0;
        for at in 0..self.attachments.capacity() {
            let Some(attachment) = self.attachments.get(at).filter(|found| !found.is_broken) else { continue };
            attachment.segment.collect(TO_DAEMON, BELLS, |part| rung.push(part));
            for part in rung.drain(..) {
                work += self.hear(at as u32, part);
            }
        }
        self.rung = rung;
        work
    }

    /// A bell was rung. It is only a hint.
    fn hear(&mut self, attachment: u32, part: u32) -> u32 {
        let Some(found) = self.attachments.get(attachment as usize) else { return 0 };
        let Some(&row) = found.rows.get(part as usize) else {
            self.counters.false_bells += 1;
            return 0;
        };
        if part == 0 {
            if !self.callers.contains(&attachment) {
                self.callers.push_back(attachment);
            }
            return 1;
        }
        // It may have told of room as well.
        let told = self.look_for_room(row);
        if self.has_sent(row) {
            self.rouse(row);
            return told + 1;
        }
        self.counters.false_bells += u64::from(told == 0);
        told
    }

    /// Whether there is a descriptor in the endpoint's send ring.
    fn has_sent(&self, id: RowId) -> bool {
        let Some(row) = self.rows.get(id) else { return false };
        let Some(found) = self.attachments.get(row.attachment as usize) else { return false };
        found
            .segment
            .look(row.part.sent(row.sent), weft_wire::descriptor::lap_at(row.sent, row.part.sizes.ring_order))
            .is_some()
    }

    /// An endpoint has something to do: it joins the schedule, or waits for a frame.
    pub(crate) fn rouse(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(id) else { return };
        match row.residence {
            Residence::Resident(_) => {
                if !std::mem::replace(&mut row.is_scheduled, true) {
                    self.schedule.push_back(id);
                }
            }
            Residence::Idle => {
                row.residence = Residence::Waiting;
                if let Some(found) = self.attachments.get(row.attachment as usize) {
                    self.frames.wait(id, found.user);
                }
            }
            Residence::Waiting => {}
        }
    }

    fn serve_callers(&mut self) -> u32 {
        let mut work = 0;
        for _ in 0..self.callers.len() {
            let Some(attachment) = self.callers.pop_front() else { break };
            let (served, has_more) = self.serve_requests(attachment);
            work += served;
            if has_more {
                self.callers.push_back(attachment);
            }
        }
        work
    }

    /// Looks whether rings that were full have room now.
    fn look_at_blocked(&mut self) -> u32 {
        let mut work = 0;
        for _ in 0..self.blocked.len().min(BLOCKED) {
            let Some(row) = self.blocked.pop_front() else { break };
            if let Some(found) = self.rows.get_mut(row) {
                found.is_blocked = false;
                work += self.look_for_room(row);
            }
        }
        work
    }

    fn visit_some(&mut self) -> u32 {
        let mut work = 0;
        for _ in 0..VISITS.min(self.schedule.len()) {
            let Some(id) = self.schedule.pop_front() else { break };
            let Some(row) = self.rows.get_mut(id) else { continue };
            row.is_scheduled = false;
            let Residence::Resident(frame) = row.residence else { continue };
            let (taken, has_more) = self.visit(id);
            work += taken;
            if taken > 0 {
                self.frames.note_visit(frame, has_more);
            }
            if has_more {
                self.rouse(id);
            }
        }
        work
    }

    fn bind_some(&mut self) -> u32 {
        let mut work = 0;
        for _ in 0..BINDS {
            if !self.frames.has_waiting() || !self.have_frame() {
                break;
            }
            let Some(id) = self.frames.next_waiting() else { break };
            work += 1;
            if self.rows.get(id).is_some_and(|row| row.residence == Residence::Waiting) {
                self.bind(id);
                if self.has_sent(id) {
                    self.rouse(id);
                }
            }
        }
        work
    }

    // ---- residency

    /// Whether there is a free frame, once another endpoint has given its frame away if need be.
    fn have_frame(&mut self) -> bool {
        if !self.frames.has_free() {
            if let Some(victim) = self.frames.victim(self.now) {
                self.evict(victim);
            }
        }
        self.frames.has_free()
    }

    fn bind(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(id) else { return };
        let Some(found) = self.attachments.get(row.attachment as usize) else { return };
        if let Some(residence) = self.frames.give(id, found.user, self.now) {
            row.residence = residence;
            self.counters.bound += 1;
        }
    }

    fn evict(&mut self, id: RowId) {
        self.leave_frame(id);
        self.counters.evicted += 1;
        if self.has_sent(id) {
            self.rouse(id);
        }
    }

    fn leave_frame(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(id) else { return };
        if let Residence::Resident(frame) = std::mem::replace(&mut row.residence, Residence::Idle) {
            self.frames.take_back(frame);
        }
        if std::mem::take(&mut row.is_scheduled) {
            self.schedule.retain(|other| *other != id);
        }
    }

    // ---- ends

    /// Removes an endpoint. Its lines end, here and at their peers.
    pub(crate) fn remove_row(&mut self, id: RowId, reason: Reason) {
        let Some(row) = self.rows.get(id) else { return };
        let (index, part_number) = (row.attachment, row.part_number);
        let Some(found) = self.attachments.get(index as usize) else { return };
        let user = found.user;
        let numbers: Vec<u32> =
            found.lines.iter().filter(|(_, line)| line.row == id).map(|(number, _)| number as u32).collect();
        let fates = self.fates(id);
        for number in numbers {
            let line = LineRef { attachment: index, line: number };
            self.settle_peer(line, reason, &fates);
            self.unstall(line);
            // Nothing more is said of it: its program does not use it any more.
            if let Some(line) =
                self.attachments.get_mut(index as usize).and_then(|found| found.lines.try_remove(number as usize))
            {
                self.accounts.give_back(line.payer, Quota::Lines, 1);
            }
        }
        // Lines that would have been opened here.
        for line in self.stalled.remove(&id).unwrap_or_default() {
            self.end_line(line, reason);
        }
        self.leave_frame(id);
        self.frames.forget(id, user);
        self.blocked.retain(|other| *other != id);
        self.owing.remove(&id);
        let Some(row) = self.rows.remove(id) else { return };
        if let Some(found) = self.attachments.get_mut(index as usize) {
            if self.names.get(&(found.epoch, row.endpoint)) == Some(&id) {
                self.names.remove(&(found.epoch, row.endpoint));
            }
            found.rows.try_remove(part_number as usize);
            let pages = (row.part.sizes.bytes() / PAGE) as u32;
            found.pages.give_back((row.part.at / PAGE) as u32, pages);
            self.accounts.give_back(user, Quota::Endpoints, 1);
            self.accounts.give_back(user, Quota::Pages, pages.into());
        }
    }

    /// The peer of a line that ends here hears of it, with what became of what it sent.
    pub(crate) fn settle_peer(&mut self, line: LineRef, reason: Reason, fates: &BTreeMap<u32, Fate>) {
        let Some(entry) = self.line_mut(line) else { return };
        let came = entry.came;
        let Peer::Line(peer) = std::mem::replace(&mut entry.peer, Peer::None) else { return };
        let fate = fates.get(&line.line).copied().unwrap_or_default();
        let Some(other) = self.line_mut(peer) else { return };
        other.note_taken(Place(came.0.wrapping_sub(fate.in_hand).wrapping_sub(fate.untouched)));
        let touched = Place(came.0.wrapping_sub(fate.untouched));
        other.touched = if touched.is_between(other.taken, other.delivered) { touched } else { other.delivered };
        other.peer = Peer::None;
        self.end_line(peer, reason);
    }

    /// A line has ended: its program is told, and answers before the number is used again.
    pub(crate) fn end_line(&mut self, line: LineRef, reason: Reason) {
        self.unstall(line);
        let Some(entry) = self.line_mut(line) else { return };
        if entry.marks.has(Marks::IS_TOLD) || entry.marks.has(Marks::OWES_CLOSED) {
            return;
        }
        (entry.reason, entry.peer) = (reason, Peer::None);
        entry.marks.clear(Marks::OWES_READY);
        entry.marks.clear(Marks::OWES_REFUSED);
        entry.marks.set(Marks::OWES_CLOSED);
        self.tell(line);
    }

    /// A line waits for room no more.
    pub(crate) fn unstall(&mut self, line: LineRef) {
        let Some(entry) = self.line_mut(line) else { return };
        if !entry.marks.take(Marks::WAITS) {
            return;
        }
        let peer = entry.peer;
        let at = match peer {
            Peer::Line(peer) => self.line_mut(peer).map(|peer| peer.row),
            Peer::Unopened(row) => Some(row),
            Peer::None => None,
        };
        match at.and_then(|row| self.stalled.get_mut(&row)) {
            Some(stalled) => stalled.retain(|other| *other != line),
            None => self.stalled.values_mut().for_each(|stalled| stalled.retain(|other| *other != line)),
        }
    }

    /// An attachment broke the protocol: nothing more of it is read, and the process that owns the engine detaches it.
    #[cold]
    pub(crate) fn break_off(&mut self, attachment: u32) {
        let Some(found) = self.attachments.get_mut(attachment as usize) else { return };
        if !std::mem::replace(&mut found.is_broken, true) {
            self.broken.push(AttachmentId { index: attachment, life: found.life });
            self.counters.violations += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn line_mut(&mut self, line: LineRef) -> Option<&mut Line> {
        self.attachments.get_mut(line.attachment as usize)?.lines.get_mut(line.line as usize)
    }

    /// Frees the number of a line that both sides are through with.
    pub(crate) fn forget_line(&mut self, line: LineRef) {
        let Some(entry) = self.line_mut(line) else { return };
        if !(entry.marks.has(Marks::IS_TOLD) && entry.marks.has(Marks::IS_LEFT)) {
            return;
        }
        let row = entry.row;
        if entry.marks.has(Marks::IS_LISTED) {
            if let Some(owing) = self.owing.get_mut(&row) {
                owing.retain(|other| *other != line.line);
                if owing.is_empty() {
                    self.owing.remove(&row);
                }
            }
        }
        if let Some(row) = self.rows.get_mut(row) {
            row.lines = row.lines.saturating_sub(1);
        }
        if let Some(found) = self.attachments.get_mut(line.attachment as usize) {
            if let Some(entry) = found.lines.try_remove(line.line as usize) {
                self.accounts.give_back(entry.payer, Quota::Lines, 1);
            }
        }
    }
}

impl<S> Attachment<S> {
    pub fn id(&self, index: u32) -> AttachmentId {
        AttachmentId { index, life: self.life }
    }
}

/// A call that is answered later.
#[derive(Debug)]
pub(crate) struct EarlyCall {
    pub attachment: u32,
    pub slot: u16,
    pub part: u32,
    pub to: Name,
}

/// Of the records of a line that its program has not taken: bytes that it may have looked at, and bytes that nobody looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    pub in_hand: u32,
    pub untouched: u32,
}

/// What the program is told when it is not for now.
pub(crate) const fn refused(from: Place) -> Said {
    Said::Refused { reason: Reason::QueueFull, from }
}
