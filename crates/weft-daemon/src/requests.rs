//! The control plane: requests of programs to the system endpoint, and their answers.

use crate::engine::{EarlyCall, Engine};
use crate::lines::{Line, Peer};
use crate::quota::Quota;
use crate::rows::{Row, RowId};
use crate::visit::Violation;
use weft_core::Admission;
use weft_wire::attach::{Answer, Request};
use weft_wire::descriptor::{
    contents, contents_bytes, is_inline, lap_at, pack_inline, put_contents, units, Descriptor, LineId, Place, Said,
    Words, UNIT,
};
use weft_wire::segment::{Cursor, Part, Segment, Sizes, PAGE, PARTS_MOST};
use weft_wire::{EndpointId, Head, HeadWords, Key, Kind, Name, Reason, MAX_ARGS};

/// Requests of an attachment that are served in a turn.
const REQUESTS: u32 = 32;

/// For so long after its first turn the engine waits for programs that somebody calls.
const EARLY_NANOS: u64 = 2_000_000_000;

/// Calls of an attachment that wait then.
const EARLY_MOST: usize = 64;

/// Bytes of the longest request.
const REQUEST_MOST: usize = 256;

impl<S: Segment> Engine<S> {
    /// Serves requests of an attachment. Returns how many, and whether there may be more.
    pub(crate) fn serve_requests(&mut self, attachment: u32) -> (u32, bool) {
        for served in 0..REQUESTS {
            match self.serve_request(attachment) {
                Ok(true) => {}
                Ok(false) => return (served, false),
                Err(Violation) => {
                    self.break_off(attachment);
                    return (served, false);
                }
            }
        }
        (REQUESTS, true)
    }

    /// Serves the next request. False if there is none, or no room for its answer.
    fn serve_request(&mut self, attachment: u32) -> Result<bool, Violation> {
        let Some(found) = self.attachments.get(attachment as usize).filter(|found| !found.is_broken) else {
            return Ok(false);
        };
        let Some(&id) = found.rows.get(0) else { return Ok(false) };
        let Some(row) = self.rows.get_mut(id) else { return Ok(false) };
        if !row.has_room(0) {
            if !row.look_for_room(&found.segment) {
                return Err(Violation);
            }
            if !row.has_room(0) {
                // The program rings when it has taken an answer.
                found.segment.set_cursor(row.part.there(Cursor::WantsRoom), 1);
                return Ok(false);
            }
        }
        let (part, position) = (row.part, row.sent);
        let Some(words) = found.segment.look(part.sent(position), lap_at(position, part.sizes.ring_order)) else {
            return Ok(false);
        };
        let Descriptor { line, at, said: Said::Record(head), .. } = Descriptor::check(&words).map_err(|_| Violation)?
        else {
            return Err(Violation);
        };
        let bytes = contents_bytes(head);
        if line != LineId::SYSTEM || !head.is(Kind::Request) || bytes > REQUEST_MOST {
            return Err(Violation);
        }
        row.sent += 1;
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
        found.segment.set_cursor(part.there(Cursor::Taken), position + 1);
        self.counters.requests += 1;
        let answer = self.answer_bytes(attachment, head, &packed);
        self.contents = packed;
        if let Some(answer) = answer? {
            self.say_answer(attachment, id, head.slot(), &answer);
        }
        Ok(true)
    }

    /// The answer to a request, if it is not to wait.
    fn answer_bytes(&mut self, attachment: u32, head: HeadWords, packed: &[u8]) -> Result<Option<Answer>, Violation> {
        let mut args = [0; MAX_ARGS];
        let args = &mut args[..head.args()];
        for (arg, bytes) in args.iter_mut().zip(packed.chunks_exact(4)) {
            *arg = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let begin = contents_bytes(head) - head.len();
        let payload = packed.get(begin..begin + head.len()).ok_or(Violation)?;
        let request = Request::from_record(head.op(), args, payload).map_err(|_| Violation)?;
        match (self.answer(attachment, request), request) {
            (Err(Reason::NobodyThere), Request::Open { part, to }) if self.is_early(attachment) => {
                self.early.push(EarlyCall { attachment, slot: head.slot(), part, to });
                Ok(None)
            }
            (answer, _) => Ok(Some(answer.unwrap_or_else(Answer::Refused))),
        }
    }

    /// Whether the engine has just begun, so that programs of an earlier one may not be back yet. An attachment has so many calls waiting at
    /// most.
    fn is_early(&self, attachment: u32) -> bool {
        let has_begun = self.started.is_some_and(|at| self.now.nanos_since(at) < EARLY_NANOS);
        has_begun && self.early.iter().filter(|call| call.attachment == attachment).count() < EARLY_MOST
    }

    /// Answers calls that waited for programs to come back, as far as they are back, or it is too late.
    pub(crate) fn answer_early_calls(&mut self) -> u32 {
        let is_over = self.started.is_none_or(|at| self.now.nanos_since(at) >= EARLY_NANOS);
        let mut work = 0;
        for call in std::mem::take(&mut self.early) {
            let is_known = self.names.contains_key(&(call.to.epoch, call.to.endpoint));
            let system = self.attachments.get(call.attachment as usize).and_then(|found| found.rows.get(0).copied());
            let has_room = system.and_then(|id| self.rows.get(id)).is_some_and(|row| row.has_room(0));
            match system.filter(|_| has_room && (is_known || is_over)) {
                Some(system) => {
                    let answer = self.open(call.attachment, call.part, &call.to).unwrap_or_else(Answer::Refused);
                    self.say_answer(call.attachment, system, call.slot, &answer);
                    work += 1;
                }
                None => self.early.push(call),
            }
        }
        work
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
    fn row_of(&self, attachment: u32, part: u32) -> Result<RowId, Reason> {
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
        let taken = match self.accounts.take(user, Quota::Pages, pages.into()) {
            true => found.pages.take(pages),
            false => None,
        };
        let Some(taken) = taken else {
            self.accounts.give_back(user, Quota::Endpoints, 1);
            return Err(Reason::NoRoom);
        };
        let part = Part { at: taken.page as usize * PAGE, sizes };
        if taken.is_used {
            clear(&found.segment, part);
        }
        let part_number = found.rows.vacant_key() as u32;
        let new = Row::new(attachment, part_number, endpoint, part);
        let row = self.rows.add(Row { key, admission, weight, ..new });
        found.rows.insert(row);
        self.names.insert(name, row);
        Ok(Answer::Part { part: part_number, page: taken.page })
    }

    fn open(&mut self, attachment: u32, part: u32, to: &Name) -> Result<Answer, Reason> {
        let row = self.row_of(attachment, part)?;
        let Some(&peer) = self.names.get(&(to.epoch, to.endpoint)) else {
            let is_here = self.attachments.iter().any(|(_, found)| found.epoch == to.epoch);
            return Err(if is_here { Reason::NoSuchEndpoint } else { Reason::NobodyThere });
        };
        let there = self.rows.get(peer).and_then(|row| self.attachments.get(row.attachment as usize));
        let user = there.ok_or(Reason::NoSuchEndpoint)?.user;
        let found = self.attachments.get_mut(attachment as usize).ok_or(Reason::NobodyThere)?;
        if !self.accounts.take(found.user, Quota::Lines, 1) {
            return Err(Reason::NoRoom);
        }
        let number = found.lines.insert(Line::new(row, Peer::Unopened(peer), found.user)) as u32;
        if let Some(row) = self.rows.get_mut(row) {
            row.lines += 1;
        }
        Ok(Answer::Line(number, user))
    }
}

/// Makes the rings and cursors of a part zero that another endpoint had before.
fn clear(segment: &impl Segment, part: Part) {
    segment.write(part.at, &vec![0; part.send_area() - part.at]);
}
