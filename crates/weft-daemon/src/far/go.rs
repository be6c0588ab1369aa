//! Departures to other hosts.

use super::*;
use crate::engine::Settings;
use std::ops::Bound;

impl<S: Segment, L: Link> Engine<S, L> {
    /// Sends a program's record to another host.
    pub(crate) fn send_far(
        &mut self,
        line: LineRef,
        (host, stream): (HostId, StreamId),
        head: HeadWords,
        contents: &[u8],
    ) {
        let mut args = [0; MAX_ARGS];
        let count = head.args().min(MAX_ARGS);
        for (arg, bytes) in args.iter_mut().zip(contents.chunks_exact(4)).take(count) {
            *arg = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let begin = contents.len().saturating_sub(head.len());
        self.push_far(line, (host, stream), head, &args[..count], &contents[begin..]);
    }

    pub(super) fn push_far(
        &mut self,
        line: LineRef,
        (host, stream): (HostId, StreamId),
        head: HeadWords,
        args: &[u32],
        payload: &[u8],
    ) -> bool {
        let bytes = stream_bytes(head.args(), head.len()) as u32;
        if !self.may_be_under_way(line, bytes) {
            self.keep_short(line);
            self.refuse_far(line, payload.len(), Marks::IS_SHORT);
            return false;
        }
        let Some(far) = &mut self.far else { return false };
        let pushed = far.ni.push(host, stream, head.head(), args, payload);
        match pushed {
            Ok(()) => {
                let Some(entry) = self.line_mut(line) else { return false };
                entry.delivered = entry.delivered.plus(bytes);
                self.counters.sent += 1;
                true
            }
            Err(PushError::Full) => {
                self.refuse_far(line, payload.len(), Marks::IS_FULL);
                false
            }
            // An event reports this.
            Err(PushError::Gone | PushError::TooLarge | PushError::Broken) => false,
        }
    }

    /// Refuses a record for now. The mark says why.
    fn refuse_far(&mut self, line: LineRef, payload: usize, why: Marks) {
        self.counters.refused += 1;
        let Some(entry) = self.line_mut(line) else { return };
        // Counts room for all arguments: a program that is told to send again must not be refused at once.
        entry.needs.units = units(payload + MAX_ARGS * 4) as u16;
        entry.marks.set(Marks::REFUSED);
        entry.marks.set(Marks::OWES_REFUSED);
        entry.marks.set(why);
        self.tell(line);
    }

    /// Whether a line's user may have `bytes` more under way. If so, counts them.
    fn may_be_under_way(&mut self, line: LineRef, bytes: u32) -> bool {
        let Some(found) = self.attachments.get_mut(line.attachment as usize) else { return false };
        let user = found.user;
        let Some(entry) = found.lines.get_mut(line.line) else { return false };
        let needed = chunks_of(entry.delivered.since(entry.taken).saturating_add(bytes), &self.settings);
        let more = needed.saturating_sub(entry.chunks);
        if more > 0 && !self.accounts.take(user, Quota::UnderWay, more.into()) {
            return false;
        }
        entry.chunks = entry.chunks.max(needed);
        true
    }

    /// A user has fewer chunks under way: lines that waited for that go on, its own first.
    pub(super) fn give_back_chunks(&mut self, user: Uid, chunks: u8) {
        if chunks > 0 {
            self.accounts.give_back(user, Quota::UnderWay, chunks.into());
            self.ready_short(user);
            self.ready_next_user();
        }
    }

    fn keep_short(&mut self, line: LineRef) {
        let Some(user) = self.attachments.get(line.attachment as usize).map(|found| found.user) else { return };
        self.far.iter_mut().for_each(|far| far.short.entry(user).or_default().push_back(line));
    }

    /// Lets lines of a user that had too much under way try again.
    fn ready_short(&mut self, user: Uid) {
        for _ in 0..READIES {
            let Some(far) = &mut self.far else { return };
            let Some(lines) = far.short.get_mut(&user) else { return };
            let line = lines.pop_front();
            if lines.is_empty() {
                far.short.remove(&user);
            }
            let Some(line) = line else { return };
            self.end_shortage(line);
        }
    }

    /// The same for the next user with such lines: chunks that others give back enlarge its share.
    pub(super) fn ready_next_user(&mut self) {
        let Some(far) = self.far.as_mut().filter(|far| !far.short.is_empty()) else { return };
        let behind = far.short_last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = far.short.range((behind, Bound::Unbounded)).next().or_else(|| far.short.iter().next());
        far.short_last = next.map(|(user, _)| *user);
        if let Some(user) = far.short_last {
            self.ready_short(user);
        }
    }

    fn end_shortage(&mut self, line: LineRef) {
        let Some(entry) = self.line_mut(line) else { return };
        entry.marks.clear(Marks::IS_SHORT);
        entry.marks.set(Marks::OWES_READY);
        self.tell(line);
    }

    /// A line that waits because its user's other lines have much under way goes on once its next record needs no chunk.
    fn look_at_shortage(&mut self, line: LineRef) {
        let settings = self.settings;
        let Some(entry) = self.line_mut(line).filter(|entry| entry.marks.has(Marks::IS_SHORT)) else { return };
        let needs = u32::from(entry.needs.units).saturating_mul(weft_wire::descriptor::UNIT as u32);
        if chunks_of(entry.delivered.since(entry.taken).saturating_add(needs), &settings) <= entry.chunks {
            self.forget_short(line);
            self.end_shortage(line);
        }
    }

    /// Takes a line out of those that wait for their user to have less under way.
    pub(super) fn forget_short(&mut self, line: LineRef) {
        let Some(user) = self.attachments.get(line.attachment as usize).map(|found| found.user) else { return };
        let Some(far) = &mut self.far else { return };
        if let Some(lines) = far.short.get_mut(&user) {
            lines.retain(|other| *other != line);
            if lines.is_empty() {
                far.short.remove(&user);
            }
        }
    }

    /// Sends the record that opens a flow. In the first record of a stream opened here, the daemon adds the epoch of the program.
    pub(crate) fn open_far(
        &mut self,
        line: LineRef,
        to: (HostId, StreamId),
        head: HeadWords,
        open: &Open,
        epoch: Epoch,
    ) {
        let Some(entry) = self.line_mut(line) else { return };
        let says_epoch = entry.marks.has(Marks::SAYS_EPOCH);
        let epoch = epoch.0.to_le_bytes();
        let payload: &[u8] = if says_epoch { &epoch } else { &[] };
        if self.push_far(line, to, head, &open.to_args(), payload) {
            if let Some(entry) = self.line_mut(line) {
                entry.marks.clear(Marks::SAYS_EPOCH);
            }
        }
    }

    /// The host has taken more of a stream. Tells the program if that is much, or everything. If the program had no room it may send again.
    pub(super) fn note_taken_far(&mut self, line: LineRef, (host, stream): (HostId, StreamId)) {
        let settings = self.settings;
        let taken = self.far.as_mut().map_or(0, |far| far.ni.traffic(host, stream).taken);
        let Some(entry) = self.line_mut(line) else { return };
        entry.note_taken(place_of(taken, entry.marks.has(Marks::OPENED_HERE)));
        let is_done = entry.taken == entry.delivered;
        if entry.taken != entry.told && (is_done || entry.taken.since(entry.told) >= TELL_FROM) {
            entry.marks.set(Marks::OWES_TAKEN);
        }
        let (marks, needs) = (entry.marks, entry.needs);
        let left = chunks_of(entry.delivered.since(entry.taken), &settings);
        let freed = entry.chunks.saturating_sub(left);
        entry.chunks -= freed;
        let user = self.attachments.get(line.attachment as usize).map(|found| found.user);
        if let Some(user) = user {
            self.give_back_chunks(user, freed);
        }
        self.look_at_shortage(line);
        if marks.has(Marks::IS_FULL) {
            let payload = usize::from(needs.units) * weft_wire::descriptor::UNIT;
            if self.far.as_mut().is_some_and(|far| far.ni.has_room(host, stream, payload)) {
                if let Some(entry) = self.line_mut(line) {
                    entry.marks.clear(Marks::IS_FULL);
                    entry.marks.set(Marks::OWES_READY);
                }
            }
        }
        self.tell(line);
    }
}

/// The number of chunks that so many bytes count as.
fn chunks_of(bytes: u32, settings: &Settings) -> u8 {
    let chunks = bytes.div_ceil(CHUNK).saturating_sub(settings.has_free_chunk.into());
    u8::try_from(chunks).unwrap_or(u8::MAX)
}
