//! Arrivals from other hosts: the streams that they open, and the records of streams.

use super::*;
use crate::lines::TO_OPEN;
use crate::residency::Residence;
use crate::rows::Row;
use std::ops::Bound;
use weft_wire::frame::PauseReason::{self, NotResident, QueueFull};

/// The result of admitting a stream that a host opened.
enum Opened {
    Line(LineRef),
    /// It waits, and has a place for that.
    Later(Waits, Uid),
}

impl Row {
    /// Whether there is room for another line, and no line waits for it.
    fn has_room_for_all(&self) -> bool {
        self.has_room_for(TO_OPEN) && !self.has_stalled
    }

    /// Whether there is room for another line of a host.
    fn lets_host_in(&self) -> bool {
        self.has_room_for(TO_OPEN) && (!self.has_stalled || self.is_hosts_turn || self.keeps_room)
    }
}

impl<S: Segment, L: Link> Engine<S, L> {
    /// Takes the first record of a stream that a host opened. The stream gets a line if the endpoint that it names admits it.
    pub(super) fn admit_stream(&mut self, host: HostId, stream: StreamId) {
        let Some(far) = &mut self.far else { return };
        let Some(first) = far.ni.first_open(host, stream) else { return };
        match first.and_then(|open| self.open_for_host(host, stream, &open)) {
            Ok(Opened::Line(line)) => self.note_come(line),
            Ok(Opened::Later(waits, user)) => {
                if let Some(far) = &mut self.far {
                    far.ni.pause_stream(host, stream, QueueFull, 0);
                    far.strange.push_back(Strange { host, stream, waits, user });
                }
            }
            Err(reason) => self.with_ni(|ni| ni.refuse_stream(host, stream, reason)),
        }
    }

    fn open_for_host(&mut self, host: HostId, stream: StreamId, open: &Open) -> Result<Opened, Reason> {
        let name = (open.destination_epoch, open.destination);
        let Some(&id) = self.names.get(&name) else {
            let may_wait = self.has_just_begun() && self.may_be_strange(Uid::UNKNOWN);
            return match may_wait {
                true => Ok(Opened::Later(Waits::Name(name.0, name.1), Uid::UNKNOWN)),
                false => Err(Reason::NoSuchEndpoint),
            };
        };
        // Another host cannot speak for a program of this host.
        if open.source_epoch.is_some_and(|epoch| self.epochs.contains_key(&epoch)) {
            return Err(Reason::WrongOwner);
        }
        let row = self.rows.get_mut(id).ok_or(Reason::NoSuchEndpoint)?;
        let index = row.attachment;
        let found = self.attachments.get(index as usize).ok_or(Reason::NoSuchEndpoint)?;
        let user = found.user;
        let admitted = row.admission.admit(user, row.key, Uid::UNKNOWN, open.key)?;
        if !row.look_for_room(&found.segment) {
            self.break_off(index);
            return Err(Reason::Violation);
        }
        let far = self.far.as_mut().ok_or(Reason::NobodyThere)?;
        let key = far.ni.key(host).ok_or(Reason::PeerLost)?;
        if far.ni.is_stranger(host) && !far.ni.has_room_for_host() {
            return Err(Reason::NoRoom);
        }
        if !row.lets_host_in() {
            row.come_needs = row.come_needs.max(TO_OPEN);
            self.wait_for_room(id);
            return match self.may_be_strange(user) {
                true => Ok(Opened::Later(Waits::Room(id), user)),
                false => Err(Reason::NoRoom),
            };
        }
        if admitted == Admitted::WithoutKey && !far.ni.admit_guest(host, stream) {
            return Err(Reason::NoRoom);
        }
        // A caller on another host has no account here.
        if !self.accounts.take(user, Quota::Lines, 1) {
            return Err(Reason::NoRoom);
        }
        let line = self.add_stream(id, (host, stream), user).ok_or(Reason::NoSuchEndpoint)?;
        if let Some(row) = self.rows.get_mut(id) {
            row.keeps_room = false;
        }
        self.with_ni(|ni| ni.accept(host));
        let epoch = open.source_epoch.unwrap_or(key.epoch);
        // No kernel vouches for the user here: each flow states its own.
        let name = Name { epoch, endpoint: open.source, uid: Uid::UNKNOWN, address: key.address };
        self.store_opened(line, id, &name);
        Ok(Opened::Line(line))
    }

    /// Streams whose endpoint had no room: admits those whose endpoint has some now, by their first record.
    pub(super) fn look_at_strange(&mut self) -> u32 {
        let mut work = 0;
        for _ in 0..self.far.as_ref().map_or(0, |far| far.strange.len()).min(LOOKS) {
            let Some(its) = self.far.as_mut().and_then(|far| far.strange.pop_front()) else { break };
            let waits = match its.waits {
                Waits::Name(epoch, endpoint) => self.has_just_begun() && !self.names.contains_key(&(epoch, endpoint)),
                Waits::Room(id) => self.rows.get_mut(id).is_some_and(|row| {
                    let found = self.attachments.get(row.attachment as usize);
                    // A program whose ring holds impossible values is found out when its ring is checked next.
                    found.is_some_and(|found| !row.look_for_room(&found.segment) || !row.has_room_for_all())
                }),
            };
            let Some(far) = &mut self.far else { break };
            if waits {
                far.strange.push_back(its);
            } else {
                far.ni.resume_stream(its.host, its.stream);
                far.strangers.give_back(its.user, 1);
                work += 1;
            }
        }
        work
    }

    /// Takes a place among the waiting streams without a line, from the share of the user of the endpoint.
    fn may_be_strange(&mut self, user: Uid) -> bool {
        self.far.as_mut().is_some_and(|far| far.strangers.take(user, 1))
    }

    pub(super) fn forget_strange(&mut self, goes: impl Fn(&Strange) -> bool) {
        let Some(far) = &mut self.far else { return };
        let Far { strange, strangers, .. } = far;
        strange.retain(|its| {
            let goes = goes(its);
            strangers.give_back(its.user, goes.into());
            !goes
        });
    }

    /// Something came by a line: its endpoint should become resident, and takes it at its next visit.
    pub(super) fn note_come(&mut self, line: LineRef) {
        let Some(entry) = self.line_mut(line) else { return };
        let row = entry.row;
        if !entry.marks.has(Marks::HAS_COME) {
            entry.marks.set(Marks::HAS_COME);
            if let Some(far) = &mut self.far {
                far.come.entry(row).or_default().push_back(line);
            }
        }
        self.rouse(row);
    }

    /// Much from one host waits: pauses the streams of endpoints that take nothing, a few endpoints at a time.
    pub(super) fn relieve(&mut self, host: HostId) {
        let Some(far) = self.far.as_mut().filter(|far| far.ni.is_crowded(host)) else { return };
        let from = far.relieve_from.take().map_or(Bound::Unbounded, Bound::Excluded);
        let rows: Vec<RowId> = far.come.range((from, Bound::Unbounded)).map(|(row, _)| *row).take(LOOKS).collect();
        far.relieve_from = rows.last().copied().filter(|_| rows.len() == LOOKS);
        for keep in [KEEP, 0] {
            for id in &rows {
                let Some(row) = self.rows.get(*id) else { continue };
                let (reason, keep) = match row.residence {
                    Residence::Resident { .. } if !row.waits_for_room => continue,
                    Residence::Resident { .. } => (QueueFull, keep),
                    Residence::Idle | Residence::Waiting(_) => (NotResident, 0),
                };
                for line in self.far.as_ref().and_then(|far| far.come.get(id)).cloned().unwrap_or_default() {
                    self.pause_line(line, host, reason, keep);
                }
            }
            if !self.far.as_ref().is_some_and(|far| far.ni.is_crowded(host)) {
                return;
            }
        }
    }

    /// Pauses the stream of a line, if it leads to this host.
    fn pause_line(&mut self, line: LineRef, host: HostId, reason: PauseReason, keep: u32) {
        let Some(entry) = self.line_mut(line) else { return };
        let (row, Peer::Stream(its, stream)) = (entry.row, entry.peer) else { return };
        let Some(far) = self.far.as_mut().filter(|_| its == host) else { return };
        if !far.ni.pause_stream(host, stream, reason, keep) {
            return;
        }
        if !far.ni.is_readable(host, stream) {
            self.forget_come(row, line);
        }
        let Some(entry) = self.line_mut(line) else { return };
        if !entry.marks.has(Marks::IS_PAUSED) {
            entry.marks.set(Marks::IS_PAUSED);
            self.counters.paused += 1;
            self.far.iter_mut().for_each(|far| far.paused.entry(row).or_default().push_back(line));
        }
    }

    /// A record of another host waits for room at an endpoint.
    pub(super) fn wait_for_room(&mut self, id: RowId) {
        if let Some(row) = self.rows.get_mut(id) {
            row.waits_for_room = true;
            self.block(id);
        }
    }

    /// Whether streams to an endpoint are paused.
    pub(crate) fn has_paused(&self, id: RowId) -> bool {
        self.far.as_ref().is_some_and(|far| !far.paused.is_empty() && far.paused.contains_key(&id))
    }

    /// An endpoint is resident: resumes some of its paused streams, if it has room and has taken what was kept of them.
    pub(crate) fn resume_lines(&mut self, id: RowId) {
        if !self.has_paused(id) || self.has_come(id) {
            return;
        }
        let Some(row) = self.rows.get_mut(id) else { return };
        if !row.lets_host_in() || !row.has_room_for(row.come_needs) {
            row.come_needs = row.come_needs.max(TO_OPEN);
            return self.wait_for_room(id);
        }
        for _ in 0..RESUMES {
            let Some(line) = self.far.as_mut().and_then(|far| far.paused.get_mut(&id)?.pop_front()) else { break };
            let Some(entry) = self.line_mut(line) else { continue };
            entry.marks.clear(Marks::IS_PAUSED);
            if let Peer::Stream(host, stream) = entry.peer {
                self.with_ni(|ni| ni.resume_stream(host, stream));
            }
        }
        let Some(far) = &mut self.far else { return };
        if far.paused.get(&id).is_some_and(VecDeque::is_empty) {
            far.paused.remove(&id);
        }
        if self.has_paused(id) {
            // If these streams bring nothing, no other event resumes the next ones.
            self.rouse(id);
        }
    }

    /// Lines of this host wait for room at an endpoint. If other hosts wait too, they join the same queue.
    pub(crate) fn queue_hosts(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(id).filter(|row| row.has_stalled && row.waits_for_room) else { return };
        if !std::mem::replace(&mut row.do_hosts_wait, true) {
            self.stalled.entry(id).or_default().push_back(LineRef::HOSTS);
        }
    }

    /// Other hosts have their turn at an endpoint for which lines of this host wait too: some records, and one stream without a line.
    pub(crate) fn take_hosts_turn(&mut self, id: RowId) -> u32 {
        let Some(row) = self.rows.get_mut(id) else { return 0 };
        (row.do_hosts_wait, row.is_hosts_turn, row.keeps_room) = (false, true, false);
        let taken = self.take_come(id, SHARE, usize::MAX).0;
        self.resume_lines(id);
        let stranger = self.far.as_mut().and_then(|far| {
            let at = far.strange.iter().position(|its| its.waits == Waits::Room(id))?;
            let its = far.strange.remove(at)?;
            far.strangers.give_back(its.user, 1);
            Some(its)
        });
        if let Some(its) = stranger {
            self.with_ni(|ni| ni.resume_stream(its.host, its.stream));
        }
        let waits = stranger.is_some() || self.has_come(id) || self.has_paused(id);
        if let Some(row) = self.rows.get_mut(id) {
            (row.is_hosts_turn, row.keeps_room, row.waits_for_room) = (false, stranger.is_some(), waits);
        }
        taken
    }

    /// Whether something came for an endpoint that it has not taken.
    pub(crate) fn has_come(&self, id: RowId) -> bool {
        self.far.as_ref().is_some_and(|far| far.come.contains_key(&id))
    }

    /// Gives an endpoint what came for it: at most so many records, and so many bytes, which the last record may exceed. Returns the number
    /// of records, and whether there may be more for which it has room.
    pub(crate) fn take_come(&mut self, id: RowId, most: u32, bytes: usize) -> (u32, bool) {
        let copied = self.counters.copied;
        let mut taken = 0;
        while taken < most && ((self.counters.copied - copied) as usize) < bytes {
            let Some(line) = self.far.as_ref().and_then(|far| far.come.get(&id)?.front().copied()) else {
                return (taken, false);
            };
            let (records, brought) = self.take_stream(line, (most - taken).min(SHARE));
            taken += records;
            match brought {
                Brought::All => self.forget_come(id, line),
                // Let the endpoint's other lines have their turn.
                Brought::Some => {
                    let lines = self.far.as_mut().and_then(|far| far.come.get_mut(&id));
                    lines.into_iter().for_each(|lines| lines.rotate_left(1.min(lines.len())));
                }
                Brought::Full => {
                    self.ring_bell();
                    self.wait_for_room(id);
                    if let Some(Peer::Stream(host, _)) = self.line_mut(line).map(|entry| entry.peer) {
                        self.relieve(host);
                    }
                    return (taken, false);
                }
            }
        }
        self.ring_bell();
        (taken, true)
    }

    pub(super) fn forget_come(&mut self, id: RowId, line: LineRef) {
        if let Some(entry) = self.line_mut(line) {
            entry.marks.clear(Marks::HAS_COME);
        }
        self.ring_bell();
        let Some(far) = &mut self.far else { return };
        if let Some(lines) = far.come.get_mut(&id) {
            lines.retain(|other| *other != line);
            if lines.is_empty() {
                far.come.remove(&id);
            }
        }
    }

    /// Takes records of one stream.
    pub(super) fn take_stream(&mut self, line: LineRef, most: u32) -> (u32, Brought) {
        let Some(Peer::Stream(host, stream)) = self.line_mut(line).map(|entry| entry.peer) else {
            return self.take_last(line, most);
        };
        let half = self.far.as_mut().and_then(|far| far.ni.lend(host, stream));
        let Some(mut half) = half else { return (0, Brought::All) };
        let (taken, brought) = self.take_records(line, &mut half, most);
        self.with_ni(|ni| ni.take_back(host, stream, half));
        match brought {
            Ok(brought) => (taken, brought),
            Err(reason) => {
                self.let_go(line, reason);
                self.end_line(line, reason);
                (taken, Brought::All)
            }
        }
    }

    pub(super) fn take_records(
        &mut self,
        line: LineRef,
        half: &mut Incoming,
        most: u32,
    ) -> (u32, Result<Brought, Reason>) {
        let mut taken = 0;
        while taken < most {
            match half.peek() {
                Peek::Empty => return (taken, Ok(Brought::All)),
                Peek::Broken(_) => return (taken, Err(Reason::Violation)),
                Peek::Record(record) => {
                    // The program knows the epoch of the process that opened the line.
                    let payload = if record.head.is(weft_wire::Kind::Open) { &[] } else { record.payload };
                    match self.deliver_far(line, record.head, record.args, payload) {
                        Ok(()) => {}
                        Err(NotNow::Full) => return (taken, Ok(Brought::Full)),
                        Err(NotNow::Gone) => return (taken, Ok(Brought::All)),
                    }
                }
            }
            half.pop();
            taken += 1;
        }
        (taken, Ok(Brought::Some))
    }

    /// Takes unreliable messages. Those that find no room are lost.
    pub(super) fn take_unreliable(&mut self, host: HostId) {
        while let Some(message) = self.far.as_mut().and_then(|far| far.ni.take_unreliable(host)) {
            if let Some(line) = self.line_of(host, message.stream) {
                let record = message.record();
                _ = self.deliver_far(line, record.head, record.args, record.payload);
            }
        }
        self.ring_bell();
    }
}
