//! Delivery into the receive rings of programs: records, and control words about lines.

use crate::engine::{refused, Engine, Fate};
use crate::lines::{Line, LineRef, Marks, Needs, Peer, TO_OPEN};
use crate::rows::{Row, RowId};
use std::collections::{BTreeMap, VecDeque};
use weft_core::ni::Link;
use weft_wire::attach::OPENED_BYTES;
use weft_wire::descriptor::{
    contents_bytes, is_inline, lap_at, pack, pack_inline, put_contents, units, Descriptor, LineId, Place, Said, Words,
    UNIT,
};
use weft_wire::frame::stream_bytes;
use weft_wire::segment::{Cursor, Segment, ASLEEP, TO_PROGRAM};
use weft_wire::{Head, HeadWords, Name};

/// Why a record was not delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotNow {
    /// Its ring or its area is full, or earlier lines wait for room.
    Full,
    /// The endpoint no longer exists.
    Gone,
}

/// Where the contents of a record lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub attachment: u32,
    /// The offset in the sender's file. Unused if the contents lie in the descriptor.
    pub at: usize,
}

impl<S: Segment, L: Link> Engine<S, L> {
    /// Hands a record to the program at the other end of a line. With `is_ready` it goes ahead of lines that wait for room.
    #[inline(always)]
    pub(crate) fn deliver(
        &mut self,
        to: LineRef,
        head: HeadWords,
        words: &Words,
        source: Source,
        is_ready: bool,
    ) -> Result<(), NotNow> {
        let found = self.attachments.get_mut(to.attachment as usize).ok_or(NotNow::Gone)?;
        let line = found.lines.get_mut(to.line).ok_or(NotNow::Gone)?;
        let row = self.rows.get_mut(line.row).ok_or(NotNow::Gone)?;
        if row.room() == 0 || !is_inline(head) || (row.has_stalled && !is_ready) {
            return self.deliver_long(to, head, words, source, is_ready);
        }
        store(&found.segment, to.line, line, row, (head, 0), words);
        let part = row.part_number;
        self.note_delivery(to.attachment, part, head);
        Ok(())
    }

    /// The slow path of [`Engine::deliver`]: the contents lie in the area, or there may be no room.
    #[inline(never)]
    fn deliver_long(
        &mut self,
        to: LineRef,
        head: HeadWords,
        words: &Words,
        source: Source,
        is_ready: bool,
    ) -> Result<(), NotNow> {
        let id = self.line_mut(to).ok_or(NotNow::Gone)?.row;
        self.have_room_for(id, head, is_ready)?;
        let row = self.rows.get_mut(id).ok_or(NotNow::Gone)?;
        let mut at = 0;
        if !is_inline(head) {
            let bytes = contents_bytes(head);
            at = row.give_area(bytes);
            let from = &self.attachments.get(source.attachment as usize).ok_or(NotNow::Gone)?.segment;
            let other = &self.attachments.get(to.attachment as usize).ok_or(NotNow::Gone)?.segment;
            from.copy_to(source.at, bytes, other, row.part.receive_area() + at as usize * UNIT);
        }
        let found = self.attachments.get_mut(to.attachment as usize).ok_or(NotNow::Gone)?;
        let line = found.lines.get_mut(to.line).ok_or(NotNow::Gone)?;
        store(&found.segment, to.line, line, row, (head, at), words);
        let part = row.part_number;
        self.note_delivery(to.attachment, part, head);
        Ok(())
    }

    /// Delivers a record of another host.
    pub(crate) fn deliver_far(
        &mut self,
        to: LineRef,
        head: HeadWords,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), NotNow> {
        let head: HeadWords = Head { args: args.len() as u8, len: payload.len() as u32, ..head.head() }.into();
        let id = self.line_mut(to).ok_or(NotNow::Gone)?.row;
        let is_hosts_turn = self.rows.get(id).is_some_and(|row| row.is_hosts_turn);
        let room = self.have_room_for(id, head, is_hosts_turn);
        if let (Err(NotNow::Full), Some(row)) = (room, self.rows.get_mut(id)) {
            let units = if is_inline(head) { 0 } else { units(contents_bytes(head)) };
            row.come_needs = Needs { places: 1, units: units as u16 };
        }
        room?;
        let row = self.rows.get_mut(id).ok_or(NotNow::Gone)?;
        let found = self.attachments.get_mut(to.attachment as usize).ok_or(NotNow::Gone)?;
        let mut words = Words::default();
        let mut at = 0;
        match pack_inline(args, payload) {
            Some(packed) => put_contents(&mut words, packed),
            None => {
                at = row.give_area(contents_bytes(head));
                pack(args, payload, &mut self.contents);
                found.segment.write(row.part.receive_area() + at as usize * UNIT, &self.contents);
            }
        }
        let line = found.lines.get_mut(to.line).ok_or(NotNow::Gone)?;
        store(&found.segment, to.line, line, row, (head, at), &words);
        let part = row.part_number;
        self.note_delivery(to.attachment, part, head);
        Ok(())
    }

    /// A record was stored for an endpoint. Its bell is rung at the end of the visit, or before a record is stored for another endpoint.
    #[inline(always)]
    fn note_delivery(&mut self, attachment: u32, part: u32, head: HeadWords) {
        self.counters.copied += contents_bytes(head) as u64;
        self.counters.delivered += 1;
        if self.bell != Some((attachment, part)) {
            self.ring_bell();
            self.bell = Some((attachment, part));
        }
    }

    /// Rings the bell that was put off until the end of the visit.
    #[inline]
    pub(crate) fn ring_bell(&mut self) {
        if let Some((attachment, part)) = self.bell.take() {
            self.ring(attachment, part);
        }
    }

    /// Whether an endpoint can take a record now. It needs no frame for that: a record of this host goes straight into its program's
    /// memory.
    #[inline(always)]
    fn have_room_for(&mut self, id: RowId, head: HeadWords, is_ready: bool) -> Result<(), NotNow> {
        let row = self.rows.get_mut(id).ok_or(NotNow::Gone)?;
        if row.has_stalled && !is_ready {
            return Err(NotNow::Full);
        }
        let needed = if is_inline(head) { 0 } else { units(contents_bytes(head)) };
        if row.has_room(needed) {
            return Ok(());
        }
        let segment = &self.attachments[row.attachment as usize].segment;
        if !row.look_for_room(segment) {
            let attachment = row.attachment;
            self.break_off(attachment);
            return Err(NotNow::Gone);
        }
        match row.has_room(needed) {
            true => Ok(()),
            false => Err(NotNow::Full),
        }
    }

    /// Sets the bell of a part, and notes a wake if its program sleeps.
    pub(crate) fn ring(&mut self, index: u32, part: u32) {
        let Some(attachment) = self.attachments.get_mut(index as usize) else { return };
        attachment.segment.ring(TO_PROGRAM, part);
        attachment.segment.light_barrier();
        let sleep = attachment.segment.cursor(ASLEEP);
        if sleep != 0 && attachment.woken != sleep {
            attachment.woken = sleep;
            let id = attachment.id(index);
            self.wakes.push(id);
        }
    }

    /// Tells an endpoint's program that a peer opened a line. There is room for it.
    pub(crate) fn store_opened(&mut self, line: LineRef, id: RowId, peer: &Name) {
        let Some(row) = self.rows.get_mut(id) else { return };
        let at = row.give_area(OPENED_BYTES);
        let segment = &self.attachments[line.attachment as usize].segment;
        segment.write(row.part.receive_area() + at as usize * UNIT, &peer.to_bytes());
        let descriptor = Descriptor { line: LineId(line.line), taken: Place::default(), at, said: Said::Opened };
        let words = descriptor.words(lap_at(row.received, row.part.sizes.ring_order));
        segment.publish(row.part.received(row.received), &words);
        row.received += 1;
        let part = row.part_number;
        self.ring(line.attachment, part);
    }

    /// Stores a control word about a line, without contents. False if there is no room.
    fn say(&mut self, line: LineRef, said: Said) -> bool {
        let Some(attachment) = self.attachments.get_mut(line.attachment as usize) else { return true };
        let Some(entry) = attachment.lines.get_mut(line.line) else { return true };
        let Some(row) = self.rows.get_mut(entry.row) else { return true };
        let has_room = row.has_room(0) || (row.look_for_room(&attachment.segment) && row.has_room(0));
        if !has_room {
            return false;
        }
        let descriptor = Descriptor { line: LineId(line.line), taken: entry.taken, at: 0, said };
        let words = descriptor.words(lap_at(row.received, row.part.sizes.ring_order));
        attachment.segment.publish(row.part.received(row.received), &words);
        (entry.told, _) = (entry.taken, entry.marks.take(Marks::OWES_TAKEN));
        row.received += 1;
        let part = row.part_number;
        self.ring(line.attachment, part);
        true
    }

    /// Tells a program all that is owed to it about a line. What finds no room is told later.
    pub(crate) fn tell(&mut self, line: LineRef) {
        if !self.tell_now(line) {
            let Some(entry) = self.line_mut(line) else { return };
            let row = entry.row;
            let is_listed = entry.marks.has(Marks::IS_LISTED);
            entry.marks.set(Marks::IS_LISTED);
            if !is_listed {
                self.owing.entry(row).or_default().push_back(line.line);
            }
            self.block(row);
        }
    }

    /// Tells a program what is owed to it about a line. False if there was no room for all of it.
    fn tell_now(&mut self, line: LineRef) -> bool {
        loop {
            let Some(entry) = self.line_mut(line) else { return true };
            let (said, mark) = match entry.marks {
                marks if marks.has(Marks::OWES_REFUSED) => (refused(entry.delivered), Marks::OWES_REFUSED),
                marks if marks.has(Marks::OWES_READY) => (Said::Ready, Marks::OWES_READY),
                marks if marks.has(Marks::OWES_CLOSED) => {
                    (Said::Closed { reason: entry.reason, touched: entry.touched }, Marks::OWES_CLOSED)
                }
                marks if marks.has(Marks::OWES_TAKEN) => (Said::Taken, Marks::OWES_TAKEN),
                _ => return true,
            };
            if !self.say(line, said) {
                return false;
            }
            if let Some(entry) = self.line_mut(line) {
                entry.marks.clear(mark);
                if mark == Marks::OWES_CLOSED {
                    entry.marks.set(Marks::IS_TOLD);
                    self.forget_line(line);
                }
            }
        }
    }

    /// An endpoint's ring is full, and something waits for that to change.
    pub(crate) fn block(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(id) else { return };
        if row.blocked.is_some() {
            return;
        }
        row.blocked = Some(self.blocked.push(id));
        if let Some(found) = self.attachments.get(row.attachment as usize) {
            found.segment.set_cursor(row.part.there(Cursor::WantsRoom), 1);
        }
    }

    /// Checks whether an endpoint's ring has room, and uses it: first for what its program is owed, then for lines that wait.
    pub(crate) fn look_for_room(&mut self, id: RowId) -> u32 {
        let Some(row) = self.rows.get_mut(id) else { return 0 };
        if !row.has_stalled && !row.waits_for_room && !self.owing.contains_key(&id) {
            return 0;
        }
        let attachment = row.attachment;
        let Some(found) = self.attachments.get(attachment as usize).filter(|found| !found.is_broken) else { return 0 };
        if !row.look_for_room(&found.segment) {
            self.break_off(attachment);
            return 0;
        }
        let work = self.tell_owing(id, attachment) + self.wake_stalled(id);
        let Some(row) = self.rows.get_mut(id) else { return work };
        if row.waits_for_room && !row.has_stalled && row.has_room_for(row.come_needs) {
            // If there is not enough room, the visit sets these again.
            (row.waits_for_room, row.come_needs) = (false, Needs::default());
            self.rouse(id);
        }
        let comes = self.has_come(id);
        let Some(row) = self.rows.get(id) else { return work };
        if row.has_stalled || row.waits_for_room || self.owing.contains_key(&id) {
            self.block(id);
        } else if let Some(found) = self.attachments.get(attachment as usize).filter(|_| !comes) {
            // Otherwise the visit that follows determines whether there was enough room.
            found.segment.set_cursor(row.part.there(Cursor::WantsRoom), 0);
        }
        work
    }

    fn tell_owing(&mut self, id: RowId, attachment: u32) -> u32 {
        let mut work = 0;
        while let Some(line) = self.owing.get_mut(&id).and_then(VecDeque::pop_front) {
            // Removed from the list first, because telling a line its end may make the engine forget it.
            let owed = LineRef { attachment, line };
            if let Some(entry) = self.line_mut(owed) {
                entry.marks.clear(Marks::IS_LISTED);
            }
            if !self.tell_now(owed) {
                if let Some(entry) = self.line_mut(owed) {
                    entry.marks.set(Marks::IS_LISTED);
                }
                self.owing.entry(id).or_default().push_front(line);
                return work;
            }
            work += 1;
        }
        self.owing.remove(&id);
        work
    }

    /// Tells waiting lines that there is room, in order, as many as there is room for.
    fn wake_stalled(&mut self, id: RowId) -> u32 {
        if self.rows.get(id).is_none_or(|row| !row.has_stalled) {
            return 0;
        }
        self.queue_hosts(id);
        let keeps_room = self.rows.get(id).is_some_and(|row| row.keeps_room);
        let mut needed = if keeps_room { TO_OPEN } else { Needs::default() };
        let mut work = 0;
        while let Some(&line) = self.stalled.get(&id).and_then(|stalled| stalled.front()) {
            if line == LineRef::HOSTS {
                let mut for_hosts = needed;
                for_hosts.add(self.rows.get(id).map_or(TO_OPEN, |row| row.come_needs.max(TO_OPEN)));
                if self.rows.get(id).is_none_or(|row| !row.has_room_for(for_hosts)) {
                    break;
                }
                self.stalled.get_mut(&id).map(VecDeque::pop_front);
                work += self.take_hosts_turn(id);
                continue;
            }
            let needs = self.line_mut(line).map(|entry| entry.needs).unwrap_or_default();
            needed.add(needs);
            if self.rows.get(id).is_none_or(|row| !row.has_room_for(needed)) {
                break;
            }
            self.stalled.get_mut(&id).map(VecDeque::pop_front);
            let Some(entry) = self.line_mut(line) else { continue };
            entry.marks.clear(Marks::WAITS);
            entry.marks.set(Marks::READIED);
            entry.marks.set(Marks::OWES_READY);
            self.tell(line);
            work += 1;
        }
        if self.stalled.get(&id).is_none_or(|stalled| stalled.is_empty()) {
            self.stalled.remove(&id);
            if let Some(row) = self.rows.get_mut(id) {
                row.has_stalled = false;
            }
        }
        work
    }

    /// A line's records find no room at an endpoint: it waits behind the lines that wait already.
    pub(crate) fn stall(&mut self, line: LineRef, at: RowId, needs: Needs) {
        self.counters.refused += 1;
        let Some(entry) = self.line_mut(line) else { return };
        entry.needs = needs;
        entry.marks.set(Marks::REFUSED);
        entry.marks.clear(Marks::READIED);
        entry.marks.set(Marks::OWES_REFUSED);
        let waits = entry.marks.has(Marks::WAITS);
        entry.marks.set(Marks::WAITS);
        if !waits {
            self.stalled.entry(at).or_default().push_back(line);
        }
        if let Some(row) = self.rows.get_mut(at) {
            row.has_stalled = true;
            row.refused += 1;
        }
        self.tell(line);
        self.block(at);
    }

    /// A program has taken records of a line up to a place. Tells its peer, unless another message will do so soon.
    pub(crate) fn note_got(&mut self, line: LineRef, is_explicit: bool) {
        let Some(entry) = self.line_mut(line) else { return };
        let (got, Peer::Line(peer)) = (entry.got, entry.peer) else { return };
        let Some(other) = self.line_mut(peer) else { return };
        other.note_taken(got);
        if is_explicit && other.told != other.taken {
            other.marks.set(Marks::OWES_TAKEN);
            self.tell(peer);
        }
    }

    /// The fate of the records in an endpoint's receive ring that its program has not taken, by line. Reads the ring again: whatever the
    /// program has written there since concerns only records for itself.
    pub(crate) fn fates(&mut self, id: RowId) -> BTreeMap<u32, Fate> {
        let mut fates: BTreeMap<u32, Fate> = BTreeMap::new();
        // Nothing to read if the program took all, or never got anything.
        let Some(row) = self.rows.get(id).filter(|row| row.received_known < row.received) else { return fates };
        let Some(found) = self.attachments.get(row.attachment as usize) else { return fates };
        let cursor = |which| found.segment.cursor(row.part.here(which));
        let taken = cursor(Cursor::Taken).clamp(row.received_known, row.received);
        let claimed = cursor(Cursor::Claimed).clamp(taken, row.received);
        for position in taken..row.received {
            let words = found.segment.look(row.part.received(position), lap_at(position, row.part.sizes.ring_order));
            let Some(Ok(Descriptor { line, said: Said::Record(head), .. })) =
                words.map(|words| Descriptor::check(&words))
            else {
                continue;
            };
            let fate = fates.entry(line.0).or_default();
            let bytes = stream_bytes(head.args(), head.len()) as u32;
            match position < claimed {
                true => fate.in_hand = fate.in_hand.wrapping_add(bytes),
                false => fate.untouched = fate.untouched.wrapping_add(bytes),
            }
        }
        fates
    }
}

/// Stores the descriptor of a record in the receive ring of an endpoint, where there is room. The contents lie in the descriptor, or at
/// `at` in the area.
#[inline(always)]
fn store(
    segment: &impl Segment,
    number: u32,
    line: &mut Line,
    row: &mut Row,
    (head, at): (HeadWords, u32),
    words: &Words,
) {
    line.came = line.came.plus(stream_bytes(head.args(), head.len()) as u32);
    line.told = line.taken;
    line.marks.clear(Marks::OWES_TAKEN);
    let descriptor = Descriptor { line: LineId(number), taken: line.taken, at, said: Said::Record(head) };
    let [first, second, third, fourth, ..] = descriptor.words(lap_at(row.received, row.part.sizes.ring_order));
    // Contents that lie in the descriptor are copied as they are.
    let [.., a, b, c, d] = *words;
    segment.publish(row.part.received(row.received), &[first, second, third, fourth, a, b, c, d]);
    row.received += 1;
}

impl Row {
    /// Whether the receive ring has a free place, and the receive area `needed` free units.
    #[inline(always)]
    pub fn has_room(&self, needed: u32) -> bool {
        self.room() > 0 && (needed == 0 || self.has_area(needed))
    }

    /// Whether there is room for what a line needs.
    pub fn has_room_for(&self, needs: Needs) -> bool {
        self.room() >= needs.places.into() && (needs.units == 0 || self.has_area(needs.units.into()))
    }

    /// Places in the receive ring.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        u64::from(self.part.sizes.ring()) - (self.received - self.received_known)
    }

    fn has_area(&self, needed: u32) -> bool {
        let (_, end) = self.place_in_area(needed);
        end - self.area_known <= u64::from(self.part.sizes.area_units())
    }

    /// The beginning of the next units, which do not wrap, and the end of the used area after them.
    fn place_in_area(&self, needed: u32) -> (u32, u64) {
        let units = u64::from(self.part.sizes.area_units());
        let at = self.area % units;
        let skipped = if at + u64::from(needed) > units { units - at } else { 0 };
        (((at + skipped) % units) as u32, self.area + skipped + u64::from(needed))
    }

    /// Allocates units for `bytes` bytes, for which there is room.
    fn give_area(&mut self, bytes: usize) -> u32 {
        let (at, end) = self.place_in_area(units(bytes));
        self.area = end;
        at
    }

    /// Reads how far the program has read. False if its answer is impossible.
    pub fn look_for_room(&mut self, segment: &impl Segment) -> bool {
        let taken = segment.cursor(self.part.here(Cursor::Taken));
        let read = segment.cursor(self.part.here(Cursor::Read));
        let is_possible =
            (self.received_known..=self.received).contains(&taken) && (self.area_known..=self.area).contains(&read);
        if is_possible {
            (self.received_known, self.area_known) = (taken, read);
        }
        is_possible
    }
}
