//! The engine: its attachments, and its turn.

use crate::far::Far;
use crate::frames::{Frames, Policy};
use crate::lines::{Line, LineRef, Lines, Marks, Peer};
use crate::pages::Pages;
use crate::queue::Queue;
use crate::quota::{Accounts, Limits, Quota};
use crate::rates::{Meters, Rates};
use crate::residency::Residency;
use crate::rows::{Row, RowId, Rows};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_core::ni::{HostId, Link, Ni, Sent, Way};
use weft_transport::Time;
use weft_wire::descriptor::{Place, Said};
use weft_wire::segment::{Part, Segment, PAGE, PARTS, SYSTEM, TO_DAEMON};
use weft_wire::{EndpointId, Epoch, HostAddress, Name, Reason, Uid};

/// Words of bells that are read in a turn, for each attachment.
const BELLS: u32 = 64;

/// Endpoints with a full ring that are checked in a turn.
const BLOCKED: usize = 64;

/// The largest weight.
const WEIGHT_MOST: u32 = 64;

/// Settings of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Frames.
    pub frames: u32,
    /// Which resident endpoint gives up its frame to another.
    pub policy: Policy,
    /// Whether a program may write to an endpoint that is not resident. If not (for experiments), an endpoint becomes resident when its
    /// program rings, and the program must wait for [`Engine::is_resident`] before it writes. The engine cannot enforce that.
    pub has_writable_state: bool,
    /// Bounds for all users together.
    pub limits: Limits,
    /// Rates for each user.
    pub rates: Rates,
    /// Whether each line's first 16 KiB that other hosts have not taken are free of the quota. Most lines need no more, but many lines that
    /// use it need much memory together.
    pub has_free_chunk: bool,
    /// Bytes that are kept of streams that have ended, for all hosts together. If the rest of a stream does not fit, all of it is dropped.
    pub last_most: u64,
    /// The address in the names of programs.
    pub address: HostAddress,
    /// Seed of the random generator.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            frames: 96,
            policy: Policy::default(),
            has_writable_state: true,
            limits: Limits::default(),
            rates: Rates::default(),
            has_free_chunk: true,
            last_most: 64 << 20,
            address: HostAddress::NONE,
            seed: 0,
        }
    }
}

/// An attachment. `life` distinguishes it from earlier ones with the same index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttachmentId {
    /// Its index.
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
    /// Its user has as many attachments, or as much memory, as it may.
    #[error("the user has as many attachments, or as much memory, as it may; end some")]
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
    /// Records sent to other hosts.
    pub sent: u64,
    /// Times that a stream of another host was paused, because its endpoint took nothing.
    pub paused: u64,
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
    pub lines: Lines,
    pub pages: Pages,
    /// The sleep of the program for which it was last woken.
    pub woken: u64,
    /// It broke the protocol.
    pub is_broken: bool,
    /// When to serve its requests.
    calls: Calls,
    life: u32,
}

/// When the requests of an attachment are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Calls {
    /// There are none.
    Never,
    /// It is in the queue of callers.
    Now,
    /// At this time, when its user may ask again.
    At(Time),
}

/// The link of an engine without a network, which joins programs of one host alone.
#[derive(Debug)]
pub enum NoLink {}

impl Link for NoLink {
    type Memory = Vec<u8>;

    fn now(&self) -> Time {
        match *self {}
    }

    fn send(&mut self, _: Way, _: &[u8], _: usize) -> Sent {
        match *self {}
    }

    fn packet_bytes(&self, _: Way) -> u16 {
        match *self {}
    }
}

/// The engine, over memory that it shares with programs and a link to other hosts.
#[derive(Debug)]
pub struct Engine<S, L: Link = NoLink> {
    pub(crate) settings: Settings,
    pub(crate) attachments: Slab<Attachment<S>>,
    pub(crate) rows: Rows,
    pub(crate) names: BTreeMap<(Epoch, EndpointId), RowId>,
    /// The user of each epoch, and the number of attachments that have it.
    pub(crate) epochs: BTreeMap<Epoch, (Uid, u32)>,
    pub(crate) accounts: Accounts,
    pub(crate) meters: Meters,
    /// Weights of users in the schedule, other than 1.
    weights: BTreeMap<Uid, u32>,
    pub(crate) residency: Residency,
    /// Endpoints whose receive ring was full when something was to be delivered.
    pub(crate) blocked: Queue<RowId>,
    /// Lines that were refused by an endpoint and wait for room there, in the order in which they came.
    pub(crate) stalled: BTreeMap<RowId, VecDeque<LineRef>>,
    /// Lines about which an endpoint's program is owed a word, when its ring has room.
    pub(crate) owing: BTreeMap<RowId, VecDeque<u32>>,
    pub(crate) wakes: Vec<AttachmentId>,
    /// The endpoint whose bell is to be rung: its attachment and its part number.
    pub(crate) bell: Option<(u32, u32)>,
    broken: Vec<AttachmentId>,
    /// Attachments with requests at their system endpoint.
    callers: VecDeque<u32>,
    /// Attachments whose user may not ask again before these times.
    later: BTreeSet<(Time, u32)>,
    /// Calls that wait: for hosts that have not answered, or, soon after the start, for programs that may still attach.
    pub(crate) early: VecDeque<EarlyCall>,
    /// How many of these are to be checked: something happened that they may wait for.
    pub(crate) early_due: usize,
    /// Whether the time for programs to attach again was over at the last check.
    pub(crate) early_is_over: bool,
    /// When the first turn was.
    pub(crate) started: Option<Time>,
    pub(crate) counters: Counters,
    pub(crate) now: Time,
    lives: u32,
    /// Buffers that are reused.
    rung: Vec<u32>,
    pub(crate) contents: Vec<u8>,
    pub(crate) far: Option<Far<L>>,
}

impl<S: Segment> Engine<S> {
    /// An engine without attachments, for programs of one host.
    pub fn new(settings: Settings) -> Engine<S> {
        Engine::alone(settings)
    }
}

impl<S: Segment, L: Link> Engine<S, L> {
    /// An engine without attachments, for programs of one host.
    pub fn alone(settings: Settings) -> Engine<S, L> {
        Engine::over(settings, None)
    }

    /// An engine without attachments, with a network interface at the address that `settings` says.
    pub fn with_network(settings: Settings, ni: Ni<L>) -> Engine<S, L> {
        Engine::over(settings, Some(Far::new(ni, settings.last_most)))
    }

    fn over(settings: Settings, far: Option<Far<L>>) -> Engine<S, L> {
        Engine {
            settings,
            far,
            attachments: Slab::new(),
            rows: Rows::default(),
            names: BTreeMap::new(),
            epochs: BTreeMap::new(),
            accounts: Accounts::new(settings.limits),
            meters: Meters::new(settings.rates),
            weights: BTreeMap::new(),
            residency: Residency::new(Frames::new(settings.frames.max(1), settings.policy, settings.seed)),
            blocked: Queue::default(),
            stalled: BTreeMap::new(),
            owing: BTreeMap::new(),
            wakes: Vec::new(),
            bell: None,
            broken: Vec::new(),
            callers: VecDeque::new(),
            later: BTreeSet::new(),
            early: VecDeque::new(),
            early_due: 0,
            early_is_over: false,
            started: None,
            counters: Counters::default(),
            now: Time::default(),
            lives: 0,
            rung: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Sets the weight of a user, from 1 to 64: the service that each of its endpoints gets, relative to an endpoint of a user with weight
    /// 1. Applies to endpoints made from now on.
    pub fn set_weight(&mut self, user: Uid, weight: u32) {
        self.weights.insert(user, weight.clamp(1, WEIGHT_MOST));
    }

    pub(crate) fn weight_of(&self, user: Uid) -> u32 {
        self.weights.get(&user).copied().unwrap_or(1)
    }

    /// Whether a user may attach another program now. Ask before the program gets its memory: later it cannot be told why not.
    pub fn may_attach(&self, user: Uid) -> bool {
        let pages = ((PARTS + SYSTEM.bytes()) / PAGE) as u64;
        let may =
            |quota, more| self.accounts.held(user, quota).saturating_add(more) <= self.accounts.share(user, quota);
        may(Quota::Attachments, 1) && may(Quota::Pages, pages)
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
        if !self.accounts.take(user, Quota::Pages, pages.touched().into()) {
            self.accounts.give_back(user, Quota::Attachments, 1);
            return Err(Refused::Quota);
        }
        self.meters.forget(self.now);
        self.epochs.entry(epoch).or_insert((user, 0)).1 += 1;
        self.network().into_iter().for_each(|ni| ni.serve(epoch));
        self.lives = self.lives.wrapping_add(1);
        let entry = self.attachments.vacant_entry();
        let index = entry.key() as u32;
        let part = Part { at: page as usize * PAGE, sizes: SYSTEM };
        // The system endpoint has a number that no name has, and needs no frame.
        let row = self.rows.add(Row::new((index, 0), user, EndpointId(u32::MAX), part));
        let (mut rows, mut lines) = (Slab::new(), Lines::default());
        rows.insert(row);
        lines.insert(Line::new(row, Peer::None, user));
        let life = self.lives;
        entry.insert(Attachment {
            segment,
            user,
            epoch,
            rows,
            lines,
            pages,
            woken: 0,
            is_broken: false,
            calls: Calls::Never,
            life,
        });
        Ok(AttachmentId { index, life })
    }

    /// Detaches a program that has ended or broken the protocol. What it had sent is delivered as far as receivers have room at once. Its
    /// peers' lines end.
    pub fn detach(&mut self, id: AttachmentId, reason: Reason) -> Option<S> {
        let attachment = self.attachments.get(id.index as usize).filter(|found| found.life == id.life)?;
        let rows: Vec<RowId> = attachment.rows.iter().map(|(_, row)| *row).collect();
        if !attachment.is_broken {
            self.visit_all_last(id.index, &rows);
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
        self.accounts.give_back(attachment.user, Quota::Pages, attachment.pages.touched().into());
        if let Some(count) = self.epochs.get_mut(&attachment.epoch).map(|(_, count)| count) {
            *count -= 1;
            if *count == 0 {
                self.epochs.remove(&attachment.epoch);
                self.network().into_iter().for_each(|ni| ni.dismiss(attachment.epoch));
            }
        }
        self.wakes.retain(|other| *other != id);
        self.broken.retain(|other| *other != id);
        match attachment.calls {
            Calls::Never => {}
            Calls::Now => self.callers.retain(|other| *other != id.index),
            Calls::At(time) => _ = self.later.remove(&(time, id.index)),
        }
        for call in std::mem::take(&mut self.early) {
            match call.attachment == id.index {
                true => self.end_call(&call),
                false => self.early.push_back(call),
            }
        }
        Some(attachment.segment)
    }

    /// Takes a turn. Returns how much was done: 0 if there was nothing to do.
    pub fn poll(&mut self, now: Time) -> u32 {
        self.now = now;
        if self.started.is_none() {
            self.started = Some(now);
            self.network().into_iter().for_each(|ni| ni.wait_for_programs(true));
        }
        self.residency.turn(now);
        let mut work = self.look_far();
        work += self.hear_bells();
        if !self.callers.is_empty() || !self.later.is_empty() {
            work += self.serve_callers();
        }
        if !self.early.is_empty() {
            work += self.answer_early_calls();
        }
        work += self.look_at_blocked(BLOCKED);
        work += self.visit_some();
        work += self.bind_some();
        self.flush_far();
        work
    }

    /// The last check before the process sleeps, after a turn that found nothing to do. Checks all rings that were full: their programs may
    /// have made room without knowing of the sleep. Returns how much was done.
    pub fn look_before_sleep(&mut self) -> u32 {
        self.look_at_blocked(usize::MAX)
    }

    /// The sleeping attachments that are to be woken since the last call, each once for a sleep.
    pub fn take_wakes(&mut self) -> Vec<AttachmentId> {
        std::mem::take(&mut self.wakes)
    }

    /// Whether there are attachments to wake.
    #[doc(hidden)]
    pub fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// The attachments that broke the protocol since the last call. The caller detaches them.
    pub fn take_broken(&mut self) -> Vec<AttachmentId> {
        std::mem::take(&mut self.broken)
    }

    /// Whether there is work that no bell announces.
    pub fn has_work(&self) -> bool {
        let has_far = self.far.as_ref().is_some_and(Far::has_work);
        self.residency.has_work() || !self.callers.is_empty() || !self.wakes.is_empty() || has_far
    }

    /// When the next turn is due if nothing happens before.
    pub fn next_time(&self) -> Option<Time> {
        let far = self.far.as_ref().and_then(|far| far.ni.next_time());
        let later = self.later.first().map(|(at, _)| *at);
        [far, later, self.residency.next_time()].into_iter().flatten().min()
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
        self.residency.resident()
    }

    /// Lines that wait for the news that there is room.
    pub fn stalled(&self) -> usize {
        self.stalled.values().map(VecDeque::len).sum()
    }

    /// Counts of what is kept for attachments, by name, for tests. All are 0 when nothing is attached.
    #[doc(hidden)]
    pub fn kept(&self) -> [(&'static str, usize); 12] {
        let lines = self.attachments.iter().map(|(_, found)| found.lines.len() - 1).sum();
        [
            ("attachments", self.attachments.len()),
            ("endpoints", self.endpoints()),
            ("lines", lines),
            ("names", self.names.len()),
            ("frames", self.residency.resident()),
            ("accounts", self.accounts.users()),
            ("schedule", self.residency.scheduled()),
            ("blocked", self.blocked.len()),
            ("stalled", self.stalled.len()),
            ("owing", self.owing.len()),
            ("far", self.far.as_ref().map_or(0, Far::kept)),
            ("waiting", self.residency.waiting() + self.callers.len() + self.later.len()),
        ]
    }

    /// Whether an endpoint has a frame.
    pub fn is_resident(&self, name: &Name) -> bool {
        let row = self.names.get(&(name.epoch, name.endpoint)).and_then(|row| self.rows.get(*row));
        row.is_some_and(Row::is_resident)
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

    /// A bell was rung. A bell is only a hint.
    fn hear(&mut self, attachment: u32, part: u32) -> u32 {
        let Some(found) = self.attachments.get(attachment as usize) else { return 0 };
        let Some(&row) = found.rows.get(part as usize) else {
            self.counters.false_bells += 1;
            return 0;
        };
        if part == 0 {
            return self.hear_caller(attachment);
        }
        // The program may also have made room.
        let told = self.look_for_room(row);
        if self.has_sent(row) || self.asks_for_frame(row) {
            self.rouse(row);
            return told + 1;
        }
        self.counters.false_bells += u64::from(told == 0);
        told
    }

    /// Whether a bell alone asks for a frame, because programs may write only to resident endpoints.
    fn asks_for_frame(&self, id: RowId) -> bool {
        !self.settings.has_writable_state && self.rows.get(id).is_some_and(|row| !row.is_resident())
    }

    /// Whether there is a descriptor in the endpoint's send ring.
    pub(crate) fn has_sent(&self, id: RowId) -> bool {
        let Some(row) = self.rows.get(id) else { return false };
        let Some(found) = self.attachments.get(row.attachment as usize) else { return false };
        found
            .segment
            .look(row.part.sent(row.sent), weft_wire::descriptor::lap_at(row.sent, row.part.sizes.ring_order))
            .is_some()
    }

    /// An attachment has requests.
    fn hear_caller(&mut self, attachment: u32) -> u32 {
        // The program may also have made room for answers.
        self.early_due = self.early.len();
        let Some(found) = self.attachments.get_mut(attachment as usize) else { return 0 };
        if found.calls != Calls::Never {
            return 0;
        }
        found.calls = Calls::Now;
        self.callers.push_back(attachment);
        1
    }

    fn serve_callers(&mut self) -> u32 {
        while let Some(&(_, attachment)) = self.later.first().filter(|(at, _)| *at <= self.now) {
            self.later.pop_first();
            self.attachments.get_mut(attachment as usize).into_iter().for_each(|found| found.calls = Calls::Now);
            self.callers.push_back(attachment);
        }
        let mut work = 0;
        for _ in 0..self.callers.len() {
            let Some(attachment) = self.callers.pop_front() else { break };
            let (served, calls) = self.serve_requests(attachment);
            work += served;
            let Some(found) = self.attachments.get_mut(attachment as usize) else { continue };
            found.calls = calls;
            match calls {
                Calls::Never => {}
                Calls::Now => self.callers.push_back(attachment),
                Calls::At(time) => _ = self.later.insert((time, attachment)),
            }
        }
        work
    }

    /// Checks whether rings that were full have room now: at most `most` of them.
    fn look_at_blocked(&mut self, most: usize) -> u32 {
        let mut work = 0;
        for _ in 0..self.blocked.len().min(most) {
            let Some(row) = self.blocked.pop() else { break };
            if let Some(found) = self.rows.get_mut(row) {
                found.blocked = None;
                work += self.look_for_room(row);
            }
        }
        work
    }

    // ---- ends

    /// Removes an endpoint. Its lines end, here and at their peers.
    pub(crate) fn remove_row(&mut self, id: RowId, reason: Reason) {
        let Some(row) = self.rows.get(id) else { return };
        let (index, part_number) = (row.attachment, row.part_number);
        let Some(found) = self.attachments.get(index as usize) else { return };
        let user = found.user;
        let numbers = found.lines.of(id);
        let fates = self.fates(id);
        for number in numbers {
            let line = LineRef { attachment: index, line: number };
            let leaves = self.leave_far(line, reason);
            self.settle_peer(line, reason, &fates);
            // Its program no longer uses it, so nothing more is told.
            if let Some(line) = self.attachments.get_mut(index as usize).and_then(|found| found.lines.remove(number)) {
                // A line counts for its user until its stream has ended.
                if !leaves {
                    self.accounts.give_back(line.payer, Quota::Lines, 1);
                }
            }
        }
        // Lines of other endpoints that were to be opened here.
        for line in self.stalled.remove(&id).unwrap_or_default() {
            self.end_line(line, reason);
        }
        self.owing.remove(&id);
        let Some(row) = self.residency.remove(&mut self.rows, id) else { return };
        row.blocked.map(|ticket| self.blocked.take(ticket));
        if let Some(found) = self.attachments.get_mut(index as usize) {
            if self.names.get(&(found.epoch, row.endpoint)) == Some(&id) {
                self.names.remove(&(found.epoch, row.endpoint));
            }
            found.rows.try_remove(part_number as usize);
            // Its pages stay allocated, and count until the attachment ends.
            found.pages.give_back((row.part.at / PAGE) as u32, (row.part.sizes.bytes() / PAGE) as u32);
            self.accounts.give_back(user, Quota::Endpoints, 1);
        }
    }

    /// Tells the peer of a line that ends here, with the fate of what the peer sent.
    pub(crate) fn settle_peer(&mut self, line: LineRef, reason: Reason, fates: &BTreeMap<u32, Fate>) {
        // While it still points to where it waits.
        self.unstall(line);
        let Some(entry) = self.line_mut(line) else { return };
        let came = entry.came;
        let Peer::Line(peer) = std::mem::replace(&mut entry.peer, Peer::None) else { return };
        let fate = fates.get(&line.line).copied().unwrap_or_default();
        self.unstall(peer);
        let Some(other) = self.line_mut(peer) else { return };
        other.note_taken(Place(came.0.wrapping_sub(fate.in_hand).wrapping_sub(fate.untouched)));
        let touched = Place(came.0.wrapping_sub(fate.untouched));
        other.touched = if touched.is_between(other.taken, other.delivered) { touched } else { other.delivered };
        other.peer = Peer::None;
        self.end_line(peer, reason);
    }

    /// A line has ended. Its number is reused only after its program was told and has answered.
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

    /// Removes a line from those that wait for room.
    pub(crate) fn unstall(&mut self, line: LineRef) {
        let Some(entry) = self.line_mut(line) else { return };
        if !entry.marks.take(Marks::WAITS) {
            return;
        }
        let peer = entry.peer;
        let at = match peer {
            Peer::Line(peer) => self.line_mut(peer).map(|peer| peer.row),
            Peer::Unopened(row) => Some(row),
            Peer::Stream(..) | Peer::None => None,
        };
        if let Some(stalled) = at.and_then(|row| self.stalled.get_mut(&row)) {
            stalled.retain(|other| *other != line);
        }
    }

    /// An attachment broke the protocol: nothing more of it is read. The process that owns the engine detaches it.
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
        self.attachments.get_mut(line.attachment as usize)?.lines.get_mut(line.line)
    }

    /// Frees the number of a line that neither side uses any more.
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
            if let Some(entry) = found.lines.remove(line.line) {
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
    pub user: Uid,
    pub slot: u16,
    pub part: u32,
    pub to: Name,
    /// The host that was called for it, or why that host is gone.
    pub host: Option<HostId>,
    pub failed: Option<Reason>,
}

/// Bytes of a line's records that its program has not taken: those that it may have read, and those that it has not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    pub in_hand: u32,
    pub untouched: u32,
}

/// The word for a program whose record was refused for now.
pub(crate) const fn refused(from: Place) -> Said {
    Said::Refused { reason: Reason::QueueFull, from }
}
