//! A visit to an endpoint: reads its send ring, and forwards the records to the other ends of its lines.

use crate::deliver::{NotNow, Source};
use crate::engine::Engine;
use crate::lines::{Line, LineRef, Marks, Needs, Peer, TO_OPEN};
use crate::quota::Quota;
use crate::rows::RowId;
use std::collections::BTreeMap;
use weft_core::ni::{HostId, Link};
use weft_wire::descriptor::{
    contents, contents_bytes, is_inline, lap_at, put_contents, units, Descriptor, LineId, Place, Said, Words,
    INLINE_MOST, UNIT,
};
use weft_wire::frame::{stream_bytes, StreamId};
use weft_wire::segment::{Cursor, Segment, TO_DAEMON};
use weft_wire::setup::Open;
use weft_wire::{EndpointId, HeadWords, Kind, Name, Reason, Uid};

/// Descriptors taken in a visit, at most. (The seed loiters for as many messages.)
const LOITER: u32 = 64;

/// Bytes of contents copied in a visit, at most. The last record may exceed it.
const BYTES: usize = 256 << 10;

/// A program wrote something that no correct program writes.
pub(crate) struct Violation;

/// The origin of a descriptor.
struct From {
    row: RowId,
    attachment: u32,
    user: Uid,
    endpoint: EndpointId,
    send_area: usize,
    area_units: u32,
}

impl<S: Segment, L: Link> Engine<S, L> {
    /// Takes descriptors from an endpoint's send ring. Returns how many, and whether there may be more.
    pub(crate) fn visit(&mut self, id: RowId) -> (u32, bool) {
        let Some(row) = self.rows.get(id) else { return (0, false) };
        let weight = row.weight.max(1);
        let (sent, has_more) = self.take_descriptors(id, LOITER * weight, BYTES * weight as usize);
        if !self.has_come(id) {
            self.resume_lines(id);
            return (sent, has_more);
        }
        let (came, more_came) = self.take_come(id, LOITER * weight, BYTES * weight as usize);
        self.resume_lines(id);
        (sent + came, has_more || more_came)
    }

    /// The last visits to the endpoints of a program that has ended: takes all that it left and had rung for. Skips endpoints with nothing
    /// to do: there may be very many, and some were never used.
    pub(crate) fn visit_all_last(&mut self, attachment: u32, rows: &[RowId]) {
        let mut rung = Vec::new();
        if let Some(found) = self.attachments.get(attachment as usize) {
            found.segment.collect(TO_DAEMON, u32::MAX, |part| {
                rung.extend(found.rows.get(part as usize).filter(|_| part != 0));
            });
        }
        rung.into_iter().for_each(|row| self.rouse(row));
        rows.iter().skip(1).for_each(|row| self.visit_last(*row));
    }

    /// Takes as much as the ring and the area of an endpoint hold: a program cannot have more under way.
    fn visit_last(&mut self, id: RowId) {
        let Some(row) = self.rows.get(id).filter(|row| !row.is_idle()) else { return };
        let sizes = row.part.sizes;
        let bytes = sizes.area_units() as usize * UNIT + sizes.ring() as usize * INLINE_MOST;
        self.take_descriptors(id, sizes.ring(), bytes);
    }

    fn take_descriptors(&mut self, id: RowId, most: u32, bytes: usize) -> (u32, bool) {
        let Some(row) = self.rows.get(id) else { return (0, false) };
        let (part, mut position) = (row.part, row.sent);
        let Some(found) = self.attachments.get(row.attachment as usize).filter(|found| !found.is_broken) else {
            return (0, false);
        };
        let from = From {
            row: id,
            attachment: row.attachment,
            user: found.user,
            endpoint: row.endpoint,
            send_area: part.send_area(),
            area_units: part.sizes.area_units(),
        };
        let copied = self.counters.copied;
        let (mut taken, mut has_more) = (0, true);
        while taken < most && ((self.counters.copied - copied) as usize) < bytes {
            let segment = &self.attachments[from.attachment as usize].segment;
            let Some(words) = segment.look(part.sent(position), lap_at(position, part.sizes.ring_order)) else {
                has_more = false;
                break;
            };
            if self.take(&from, &words).is_err() {
                self.ring_bell();
                self.break_off(from.attachment);
                return (taken, false);
            }
            position += 1;
            taken += 1;
            if let Some(found) = self.attachments.get(from.attachment as usize) {
                found.segment.set_cursor(part.there(Cursor::Taken), position);
            }
        }
        self.ring_bell();
        if let Some(row) = self.rows.get_mut(id) {
            row.sent = position;
        }
        (taken, has_more)
    }

    /// Carries out a descriptor.
    #[inline(always)]
    fn take(&mut self, from: &From, words: &Words) -> Result<(), Violation> {
        let Descriptor { line: LineId(number), taken, at, said } = Descriptor::check(words).map_err(|_| Violation)?;
        let line = LineRef { attachment: from.attachment, line: number };
        let entry = self.line_mut(line).filter(|entry| entry.row == from.row).ok_or(Violation)?;
        if entry.marks.has(Marks::IS_LEFT) || !taken.is_between(entry.got, entry.came) {
            return Err(Violation);
        }
        let (has_got, marks, peer) = (entry.got != taken, entry.marks, entry.peer);
        entry.got = taken;
        if has_got {
            self.note_got(line, said == Said::Taken);
        }
        match said {
            Said::Record(head) => self.forward(from, line, (peer, marks), head, at, words),
            Said::Taken => Ok(()),
            Said::Again => {
                if let Some(entry) = self.line_mut(line) {
                    entry.marks.clear(Marks::REFUSED);
                }
                Ok(())
            }
            Said::Closed { reason, touched } => {
                self.leave(line, reason, touched);
                Ok(())
            }
            Said::Opened | Said::Refused { .. } | Said::Ready => Err(Violation),
        }
    }

    /// Forwards a record to the other end of its line.
    #[inline(always)]
    fn forward(
        &mut self,
        from: &From,
        line: LineRef,
        (peer, marks): (Peer, Marks),
        head: HeadWords,
        at: u32,
        words: &Words,
    ) -> Result<(), Violation> {
        if marks.has(Marks::REFUSED) || peer == Peer::None {
            // The program sends it again; or the line has ended, and the program learns how far it was read.
            return Ok(());
        }
        if head.is(Kind::Open) {
            return self.forward_open(from, line, (peer, marks), head, words);
        }
        let mut source = Source { attachment: from.attachment, at: 0 };
        if !is_inline(head) {
            let end = at.checked_add(units(contents_bytes(head))).ok_or(Violation)?;
            if end > from.area_units {
                return Err(Violation);
            }
            source.at = from.send_area + at as usize * UNIT;
        }
        // Links of a ring are no records, and a flow must be opened before it is used.
        if head.is(Kind::Pad) || head.is(Kind::Switch) {
            return Err(Violation);
        }
        let to = match peer {
            Peer::Line(to) => to,
            Peer::Stream(host, stream) => {
                self.forward_far(line, (host, stream), head, words, source);
                return Ok(());
            }
            Peer::Unopened(_) | Peer::None => return Err(Violation),
        };
        let delivered = self.deliver(to, head, words, source, marks.has(Marks::READIED));
        self.delivered(line, to, head, delivered);
        Ok(())
    }

    /// Forwards a record to another host.
    #[inline(never)]
    fn forward_far(&mut self, line: LineRef, to: (HostId, StreamId), head: HeadWords, words: &Words, source: Source) {
        let mut packed = std::mem::take(&mut self.contents);
        let bytes = contents_bytes(head);
        if is_inline(head) {
            packed.clear();
            packed.extend(contents(words).iter().flat_map(|word| word.to_le_bytes()).take(bytes));
        } else if let Some(found) = self.attachments.get(source.attachment as usize) {
            found.segment.read(source.at, bytes, &mut packed);
        }
        self.counters.copied += bytes as u64;
        self.send_far(line, to, head, &packed);
        self.contents = packed;
    }

    /// Notes the result of a delivery.
    #[inline(always)]
    fn delivered(&mut self, line: LineRef, to: LineRef, head: HeadWords, delivered: Result<(), NotNow>) {
        match delivered {
            Ok(()) => {
                if let Some(entry) = self.line_mut(line) {
                    entry.delivered = entry.delivered.plus(stream_bytes(head.args(), head.len()) as u32);
                }
            }
            Err(NotNow::Gone) => {}
            Err(NotNow::Full) => {
                if let Some(row) = self.line_mut(to).map(|peer| peer.row) {
                    let units = if is_inline(head) { 0 } else { units(contents_bytes(head)) };
                    self.stall(line, row, Needs { places: 1, units: units as u16 });
                }
            }
        }
    }

    /// Forwards a record that opens a flow. If it is the first one of its line, it opens the line too.
    #[cold]
    #[inline(never)]
    fn forward_open(
        &mut self,
        from: &From,
        line: LineRef,
        (peer, marks): (Peer, Marks),
        head: HeadWords,
        words: &Words,
    ) -> Result<(), Violation> {
        let mut words = *words;
        let open = check_open(from, head, &mut words)?;
        let to = match peer {
            Peer::Line(to) => {
                // A line joins two endpoints and no others.
                let row = self.line_mut(to).map(|peer| peer.row);
                let endpoint = row.and_then(|row| self.rows.get(row)).map(|row| row.endpoint);
                if endpoint.is_some_and(|endpoint| endpoint != open.destination) {
                    return Err(Violation);
                }
                to
            }
            Peer::Unopened(row) => match self.open_at_peer(from, line, row, &open) {
                Opened::Yes(to) => to,
                Opened::Later => {
                    self.stall(line, row, TO_OPEN);
                    return Ok(());
                }
                Opened::No(reason) => {
                    self.end_line(line, reason);
                    return Ok(());
                }
            },
            Peer::Stream(host, stream) => {
                let epoch = self.attachments.get(from.attachment as usize).ok_or(Violation)?.epoch;
                self.open_far(line, (host, stream), head, &open, epoch);
                return Ok(());
            }
            Peer::None => return Ok(()),
        };
        let source = Source { attachment: from.attachment, at: 0 };
        let delivered = self.deliver(to, head, &words, source, marks.has(Marks::READIED));
        self.delivered(line, to, head, delivered);
        Ok(())
    }

    /// Opens a line at its peer, with its first record.
    #[cold]
    fn open_at_peer(&mut self, from: &From, line: LineRef, at: RowId, open: &Open) -> Opened {
        let Some(row) = self.rows.get(at) else { return Opened::No(Reason::NoSuchEndpoint) };
        let Some(found) = self.attachments.get(row.attachment as usize) else {
            return Opened::No(Reason::NoSuchEndpoint);
        };
        if row.endpoint != open.destination {
            return Opened::No(Reason::NoSuchEndpoint);
        }
        if let Err(reason) = row.admission.admit(found.user, row.key, from.user, open.key) {
            return Opened::No(reason);
        }
        let (index, has_stalled) = (row.attachment, row.has_stalled);
        let Some(row) = self.rows.get_mut(at) else { return Opened::No(Reason::NoSuchEndpoint) };
        let is_ready = self.attachments[from.attachment as usize]
            .lines
            .get(line.line)
            .is_some_and(|entry| entry.marks.has(Marks::READIED));
        let found = &mut self.attachments[index as usize];
        if !row.look_for_room(&found.segment) {
            self.break_off(index);
            return Opened::No(Reason::Violation);
        }
        if !row.has_room_for(TO_OPEN) || (has_stalled && !is_ready) {
            return Opened::Later;
        }
        // The caller is responsible for both ends of the line, so its user pays for both.
        if !self.accounts.take(from.user, Quota::Lines, 1) {
            return Opened::No(Reason::NoRoom);
        }
        let epoch = self.attachments[from.attachment as usize].epoch;
        let name = Name { epoch, endpoint: from.endpoint, uid: from.user, address: self.settings.address };
        let found = &mut self.attachments[index as usize];
        let number = found.lines.insert(Line::new(at, Peer::Line(line), from.user));
        let Some(row) = self.rows.get_mut(at) else { return Opened::No(Reason::NoSuchEndpoint) };
        row.lines += 1;
        let to = LineRef { attachment: index, line: number };
        self.store_opened(to, at, &name);
        if let Some(entry) = self.line_mut(line) {
            entry.peer = Peer::Line(to);
        }
        Opened::Yes(to)
    }

    /// A program no longer uses a line.
    #[cold]
    fn leave(&mut self, line: LineRef, reason: Reason, touched: Place) {
        let Some(entry) = self.line_mut(line) else { return };
        entry.marks.set(Marks::IS_LEFT);
        // Records that it did not touch come back to the peer as not delivered.
        let touched = if touched.is_between(entry.got, entry.came) { touched } else { entry.came };
        let (came, got) = (entry.came, entry.got);
        let fate = crate::engine::Fate { in_hand: touched.since(got), untouched: came.since(touched) };
        self.close_far(line, reason);
        self.settle_peer(line, reason, &BTreeMap::from([(line.line, fate)]));
        self.end_line(line, reason);
        self.forget_line(line);
    }
}

/// Whether a line was opened at its peer.
enum Opened {
    Yes(LineRef),
    Later,
    No(Reason),
}

/// Checks a record that opens a flow: it must name its own endpoint. Writes the user into it.
#[cold]
fn check_open(from: &From, head: HeadWords, words: &mut Words) -> Result<Open, Violation> {
    if !is_inline(head) || !head.is_empty() {
        return Err(Violation);
    }
    let mut packed = contents(words);
    let args: Vec<u32> =
        packed.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).take(head.args()).collect();
    let open = Open::from_record(&args, &[]).ok_or(Violation)?;
    if open.source != from.endpoint {
        return Err(Violation);
    }
    let open = Open { uid: from.user, ..open };
    for (word, pair) in packed.iter_mut().zip(open.to_args().chunks(2)) {
        *word = u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32;
    }
    put_contents(words, packed);
    Ok(open)
}
