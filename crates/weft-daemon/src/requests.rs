//! The control plane: programs' requests to the system endpoint, and the answers.

use crate::engine::{Calls, EarlyCall, Engine};
use crate::far::Called;
use crate::lines::{Line, Peer};
use crate::quota::Quota;
use crate::rates::Rate;
use crate::rows::{Row, RowId};
use crate::visit::Violation;
use weft_core::ni::{HostId, Link};
use weft_core::Admission;
use weft_wire::attach::{Answer, Request};
use weft_wire::descriptor::{
    contents, contents_bytes, is_inline, lap_at, pack_inline, put_contents, units, Descriptor, LineId, Place, Said,
    Words, UNIT,
};
use weft_wire::segment::{Cursor, Part, Segment, Sizes, PAGE, PARTS_MOST};
use weft_wire::{EndpointId, Head, HeadWords, Key, Kind, Name, Reason, Uid, MAX_ARGS};

/// Requests of an attachment that are served in a turn.
const REQUESTS: u32 = 32;

/// How long after its first turn the engine waits for programs that others call.
const EARLY_NANOS: u64 = 2_000_000_000;

/// Waiting calls that are checked in a turn.
const EARLY_LOOKS: usize = 64;

/// For the rate of endpoints made, zeroing this many bytes counts as one more endpoint.
const CLEARED: usize = 64 << 10;

/// Bytes of the longest request.
const REQUEST_MOST: usize = 256;

impl<S: Segment, L: Link> Engine<S, L> {
    /// Serves requests of an attachment. Returns how many, and when to serve more.
    pub(crate) fn serve_requests(&mut self, attachment: u32) -> (u32, Calls) {
        for served in 0..REQUESTS {
            match self.serve_request(attachment) {
                Ok(Calls::Now) => {}
                Ok(calls) => return (served, calls),
                Err(Violation) => {
                    self.break_off(attachment);
                    return (served, Calls::Never);
                }
            }
        }
        (REQUESTS, Calls::Now)
    }

    /// Serves the next request, if there is one, there is room for its answer, and its user may ask. Returns when to serve another one.
    fn serve_request(&mut self, attachment: u32) -> Result<Calls, Violation> {
        let Some(found) = self.attachments.get(attachment as usize).filter(|found| !found.is_broken) else {
            return Ok(Calls::Never);
        };
        let Some(&id) = found.rows.get(0) else { return Ok(Calls::Never) };
        let Some(row) = self.rows.get_mut(id) else { return Ok(Calls::Never) };
        if !row.has_room(0) {
            if !row.look_for_room(&found.segment) {
                return Err(Violation);
            }
            if !row.has_room(0) {
                // The program rings once it has taken an answer.
                found.segment.set_cursor(row.part.there(Cursor::WantsRoom), 1);
                return Ok(Calls::Never);
            }
        }
        let (part, position) = (row.part, row.sent);
        let Some(words) = found.segment.look(part.sent(position), lap_at(position, part.sizes.ring_order)) else {
            return Ok(Calls::Never);
        };
        let user = found.user;
        if let Some(time) = self.meters.later(user, Rate::Requests, self.now) {
            return Ok(Calls::At(time));
        }
        let Descriptor { line, at, said: Said::Record(head), .. } = Descriptor::check(&words).map_err(|_| Violation)?
        else {
            return Err(Violation);
        };
        let bytes = contents_bytes(head);
        if line != LineId::SYSTEM || !head.is(Kind::Request) || bytes > REQUEST_MOST {
            return Err(Violation);
        }
        let mut packed = std::mem::take(&mut self.contents);
        packed.clear();
        if is_inline(head) {
            packed.extend(contents(&words).iter().flat_map(|word| word.to_le_bytes()));
        } else {
            if at.checked_add(units(bytes)).is_none_or(|end| end > part.sizes.area_units()) {
                return Err(Violation);
            }
            found.segment.read(part.send_area() + at as usize * UNIT, bytes, &mut packed);
        }
        let request = request_of(head, &packed);
        self.contents = packed;
        let request = request?;
        if matches!(request, Request::Allocate { .. }) {
            if let Some(time) = self.meters.later(user, Rate::Endpoints, self.now) {
                return Ok(Calls::At(time));
            }
        }
        row.sent += 1;
        found.segment.set_cursor(part.there(Cursor::Taken), position + 1);
        self.counters.requests += 1;
        self.meters.note(user, Rate::Requests, 1, self.now);
        if let Some(answer) = self.answer_or_wait(attachment, head.slot(), request) {
            self.say_answer(attachment, id, head.slot(), &answer);
        }
        Ok(Calls::Now)
    }

    /// The answer to a request. `None` if it must wait.
    fn answer_or_wait(&mut self, attachment: u32, slot: u16, request: Request) -> Option<Answer> {
        if let Request::Open { part, to } = request {
            if self.is_far(&to) {
                let user = self.attachments.get(attachment as usize)?.user;
                let may_call = self.accounts.take(user, Quota::Calls, 1);
                let called = self.call_far(attachment, part, &to, may_call);
                let answer = match called {
                    Ok(Called::Line(line)) => Answer::Line(line, Uid::UNKNOWN),
                    Ok(Called::Waits(host)) if may_call => {
                        let host = Some(host);
                        self.keep_call(EarlyCall { attachment, user, slot, part, to, host, failed: None });
                        return None;
                    }
                    Ok(Called::Waits(_)) => Answer::Refused(Reason::NoRoom),
                    Err(reason) => Answer::Refused(reason),
                };
                if may_call {
                    self.accounts.give_back(user, Quota::Calls, 1);
                }
                return Some(answer);
            }
        }
        match (self.answer(attachment, request), request) {
            (Err(Reason::NobodyThere), Request::Open { part, to }) if self.has_just_begun() => {
                let user = self.attachments.get(attachment as usize)?.user;
                if !self.accounts.take(user, Quota::Calls, 1) {
                    return Some(Answer::Refused(Reason::NobodyThere));
                }
                self.keep_call(EarlyCall { attachment, user, slot, part, to, host: None, failed: None });
                None
            }
            (answer, _) => Some(answer.unwrap_or_else(Answer::Refused)),
        }
    }

    /// Whether the engine has just begun, so that programs of an earlier one may not be back yet.
    pub(crate) fn has_just_begun(&self) -> bool {
        self.started.is_some_and(|at| self.now.nanos_since(at) < EARLY_NANOS)
    }

    /// Keeps a call that waits, and counts it for its user.
    fn keep_call(&mut self, call: EarlyCall) {
        self.early.push_back(call);
        self.early_due = self.early.len();
    }

    /// Ends a call's wait.
    pub(crate) fn end_call(&mut self, call: &EarlyCall) {
        self.accounts.give_back(call.user, Quota::Calls, 1);
    }

    /// Answers calls that wait for programs to come back or for hosts, if these are there or it is too late. Checks only calls for which
    /// something has changed, and at most so many in a turn.
    pub(crate) fn answer_early_calls(&mut self) -> u32 {
        let is_over = !self.has_just_begun();
        if is_over != std::mem::replace(&mut self.early_is_over, is_over) {
            self.early_due = self.early.len();
        }
        let looks = self.early_due.min(self.early.len()).min(EARLY_LOOKS);
        self.early_due -= looks;
        let mut work = 0;
        for _ in 0..looks {
            let Some(call) = self.early.pop_front() else { break };
            let system = self.attachments.get(call.attachment as usize).and_then(|found| found.rows.get(0).copied());
            let Some(system) = system.filter(|id| self.has_room_now(*id)) else {
                // No event reliably reports room.
                self.early_due += 1;
                self.early.push_back(call);
                continue;
            };
            work += 1;
            match self.answer_call(&call, is_over) {
                Ok(answer) => {
                    self.say_answer(call.attachment, system, call.slot, &answer);
                    self.end_call(&call);
                }
                Err(host) => self.early.push_back(EarlyCall { host, ..call }),
            }
        }
        work
    }

    /// The answer to a call. An error if it must wait, with the host that it waits for, if any.
    fn answer_call(&mut self, call: &EarlyCall, is_over: bool) -> Result<Answer, Option<HostId>> {
        if self.is_far(&call.to) {
            let called = call.failed.map_or_else(|| self.call_far(call.attachment, call.part, &call.to, true), Err);
            return match called {
                Ok(Called::Waits(host)) => Err(Some(host)),
                Ok(Called::Line(line)) => Ok(Answer::Line(line, Uid::UNKNOWN)),
                Err(reason) => Ok(Answer::Refused(reason)),
            };
        }
        if !is_over && !self.names.contains_key(&(call.to.epoch, call.to.endpoint)) {
            return Err(call.host);
        }
        Ok(self.open(call.attachment, call.part, &call.to).unwrap_or_else(Answer::Refused))
    }

    /// Whether there is a place in an endpoint's ring, after a fresh look at how far its program has read.
    fn has_room_now(&mut self, id: RowId) -> bool {
        let Some(row) = self.rows.get_mut(id) else { return false };
        let Some(found) = self.attachments.get(row.attachment as usize) else { return false };
        if !row.has_room(0) && !row.look_for_room(&found.segment) {
            let attachment = row.attachment;
            self.break_off(attachment);
            return false;
        }
        self.rows.get(id).is_some_and(|row| row.has_room(0))
    }

    fn say_answer(&mut self, attachment: u32, id: RowId, slot: u16, answer: &Answer) {
        let Some(row) = self.rows.get_mut(id) else { return };
        let words = answer.with(|op, args| {
            let head = Head { op, slot, args: args.len() as u8, ..Head::new(Kind::Reply) };
            let said = Said::Record(head.into());
            let descriptor = Descriptor { line: LineId::SYSTEM, taken: Place::default(), at: 0, said };
            let mut words: Words = descriptor.words(lap_at(row.received, row.part.sizes.ring_order));
            // Every answer has at most two arguments.
            put_contents(&mut words, pack_inline(args, &[]).unwrap_or_default());
            words
        });
        let found = &self.attachments[attachment as usize];
        found.segment.publish(row.part.received(row.received), &words);
        row.received += 1;
        self.ring(attachment, 0);
    }

    fn answer(&mut self, attachment: u32, request: Request) -> Result<Answer, Reason> {
        match request {
            Request::Allocate { endpoint, key, admission, sizes } => {
                self.allocate(attachment, endpoint, key, admission, sizes)
            }
            Request::Free { part } => {
                let row = self.row_of(attachment, part)?;
                self.remove_row(row, Reason::PeerLost);
                Ok(Answer::Done)
            }
            Request::SetKey { part, key } => {
                let row = self.row_of(attachment, part)?;
                self.rows.get_mut(row).ok_or(Reason::NoSuchEndpoint)?.key = key;
                Ok(Answer::Done)
            }
            Request::SetAdmission { part, admission } => {
                let row = self.row_of(attachment, part)?;
                let admission = Admission::from_code(admission).ok_or(Reason::Violation)?;
                self.rows.get_mut(row).ok_or(Reason::NoSuchEndpoint)?.admission = admission;
                Ok(Answer::Done)
            }
            Request::Open { part, to } => self.open(attachment, part, &to),
        }
    }

    /// An endpoint of an attachment, by its part.
    pub(crate) fn row_of(&self, attachment: u32, part: u32) -> Result<RowId, Reason> {
        let found = self.attachments.get(attachment as usize).ok_or(Reason::NobodyThere)?;
        found.rows.get(part as usize).copied().filter(|_| part != 0).ok_or(Reason::NoSuchEndpoint)
    }

    fn allocate(
        &mut self,
        attachment: u32,
        endpoint: EndpointId,
        key: Key,
        admission: u8,
        sizes: Sizes,
    ) -> Result<Answer, Reason> {
        let sizes = sizes.check().ok_or(Reason::Violation)?;
        let admission = Admission::from_code(admission).ok_or(Reason::Violation)?;
        let user = self.attachments.get(attachment as usize).ok_or(Reason::NobodyThere)?.user;
        let weight = self.weight_of(user);
        let found = self.attachments.get_mut(attachment as usize).ok_or(Reason::NobodyThere)?;
        let name = (found.epoch, endpoint);
        if self.names.contains_key(&name) {
            return Err(Reason::Violation);
        }
        let pages = (sizes.bytes() / PAGE) as u32;
        if found.rows.vacant_key() >= PARTS_MOST as usize || !self.accounts.take(user, Quota::Endpoints, 1) {
            return Err(Reason::NoRoom);
        }
        // Pages that an endpoint had before count already.
        let fresh = if found.pages.would_be_fresh(pages) { pages.into() } else { 0 };
        let may_have = self.accounts.take(user, Quota::Pages, fresh);
        let taken = if may_have { found.pages.take(pages) } else { None };
        let Some(taken) = taken else {
            self.accounts.give_back(user, Quota::Pages, if may_have { fresh } else { 0 });
            self.accounts.give_back(user, Quota::Endpoints, 1);
            return Err(Reason::NoRoom);
        };
        let part = Part { at: taken.page as usize * PAGE, sizes };
        let mut times = 1;
        if taken.is_used {
            clear(&found.segment, part);
            times += ((part.send_area() - part.at) / CLEARED) as u64;
        }
        self.meters.note(user, Rate::Endpoints, times, self.now);
        let part_number = found.rows.vacant_key() as u32;
        let new = Row::new((attachment, part_number), user, endpoint, part);
        let row = self.rows.add(Row { key, admission, weight, ..new });
        found.rows.insert(row);
        self.names.insert(name, row);
        self.early_due = self.early.len();
        Ok(Answer::Part { part: part_number, page: taken.page })
    }

    fn open(&mut self, attachment: u32, part: u32, to: &Name) -> Result<Answer, Reason> {
        let row = self.row_of(attachment, part)?;
        let Some(&peer) = self.names.get(&(to.epoch, to.endpoint)) else {
            let is_here = self.epochs.contains_key(&to.epoch);
            return Err(if is_here { Reason::NoSuchEndpoint } else { Reason::NobodyThere });
        };
        let there = self.rows.get(peer).and_then(|row| self.attachments.get(row.attachment as usize));
        let user = there.ok_or(Reason::NoSuchEndpoint)?.user;
        let found = self.attachments.get_mut(attachment as usize).ok_or(Reason::NobodyThere)?;
        if !self.accounts.take(found.user, Quota::Lines, 1) {
            return Err(Reason::NoRoom);
        }
        let number = found.lines.insert(Line::new(row, Peer::Unopened(peer), found.user));
        if let Some(row) = self.rows.get_mut(row) {
            row.lines += 1;
        }
        Ok(Answer::Line(number, user))
    }
}

/// Decodes a request.
fn request_of(head: HeadWords, packed: &[u8]) -> Result<Request, Violation> {
    let mut args = [0; MAX_ARGS];
    let args = &mut args[..head.args()];
    for (arg, bytes) in args.iter_mut().zip(packed.chunks_exact(4)) {
        *arg = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let begin = contents_bytes(head) - head.len();
    let payload = packed.get(begin..begin + head.len()).ok_or(Violation)?;
    Request::from_record(head.op(), args, payload).map_err(|_| Violation)
}

/// Zeroes the rings and cursors of a part that another endpoint had before.
fn clear(segment: &impl Segment, part: Part) {
    segment.write(part.at, &vec![0; part.send_area() - part.at]);
}
