//! How streams, their lines, and hosts end.

use super::*;
use weft_wire::frame::PauseReason;

impl<S: Segment, L: Link> Engine<S, L> {
    /// A program no longer uses a line, or is gone: tells the host why. Does nothing for lines within this host.
    pub(crate) fn close_far(&mut self, line: LineRef, reason: Reason) {
        self.forget_last(line);
        self.let_go(line, reason);
    }

    /// An endpoint is gone. The stream of its line stays until the peer has taken what was sent, for [`LEAVE_MOST`] at most. False if there
    /// is nothing to wait for: then the stream is closed.
    pub(crate) fn leave_far(&mut self, line: LineRef, reason: Reason) -> bool {
        self.forget_last(line);
        let Some(entry) = self.line_mut(line) else { return false };
        let (peer, payer) = (entry.peer, entry.payer);
        let (Peer::Stream(host, stream), Some(far)) = (peer, &mut self.far) else { return false };
        let traffic = far.ni.traffic(host, stream);
        if traffic.taken >= traffic.pushed {
            self.let_go(line, reason);
            return false;
        }
        // Nobody will take what this stream brings.
        far.ni.pause_stream(host, stream, PauseReason::QueueFull, 0);
        let since = self.now;
        let chunks = self.line_mut(line).map_or(0, |entry| std::mem::take(&mut entry.chunks));
        self.far
            .iter_mut()
            .for_each(|far| far.leaving.push_back(Leaving { host, stream, reason, since, payer, chunks }));
        self.part(line);
        true
    }

    pub(super) fn is_leaving(&self, host: HostId, stream: StreamId) -> bool {
        let mut leaving = self.far.iter().flat_map(|far| &far.leaving);
        leaving.any(|leaving| (leaving.host, leaving.stream) == (host, stream))
    }

    /// Forgets streams of endpoints that are gone.
    pub(super) fn end_leaving(&mut self, mut ends: impl FnMut(&Leaving) -> bool) {
        let Some(far) = &mut self.far else { return };
        let (ended, left): (VecDeque<_>, _) =
            std::mem::take(&mut far.leaving).into_iter().partition(|leaving| ends(leaving));
        far.leaving = left;
        for Leaving { host, stream, reason, payer, chunks, .. } in ended {
            self.with_ni(|ni| ni.close_stream(host, stream, reason));
            self.far.iter_mut().for_each(|far| far.opened.close((host, stream)));
            self.accounts.give_back(payer, Quota::Lines, 1);
            self.give_back_chunks(payer, chunks);
        }
    }

    /// Closes streams of endpoints that are gone, once all was taken or their time is over.
    pub(super) fn look_at_leaving(&mut self) -> u32 {
        let now = self.now;
        let Some(far) = &mut self.far else { return 0 };
        let mut work = 0;
        for _ in 0..far.leaving.len().min(LOOKS) {
            let Some(far) = &mut self.far else { break };
            let Some(its) = far.leaving.pop_front() else { break };
            let traffic = far.ni.traffic(its.host, its.stream);
            if traffic.taken < traffic.pushed && now.since(its.since) < LEAVE_MOST {
                far.leaving.push_back(its);
                continue;
            }
            far.ni.close_stream(its.host, its.stream, its.reason);
            far.opened.close((its.host, its.stream));
            self.accounts.give_back(its.payer, Quota::Lines, 1);
            self.give_back_chunks(its.payer, its.chunks);
            work += 1;
        }
        work
    }

    /// A stream has ended. Its program gets what came by it, and then learns of the end and the fate of what it sent.
    pub(super) fn end_stream(&mut self, line: LineRef, reason: Reason) {
        let Some(entry) = self.line_mut(line) else { return };
        let (row, Peer::Stream(host, stream)) = (entry.row, entry.peer) else { return };
        // This needs no frame.
        let brought = loop {
            match self.take_stream(line, SHARE) {
                (_, Brought::Some) => {}
                (_, brought) => break brought,
            }
        };
        self.ring_bell();
        let half = match brought {
            Brought::Full => self.far.as_mut().and_then(|far| far.ni.lend(host, stream)),
            Brought::All | Brought::Some => None,
        };
        self.let_go(line, reason);
        let is_kept = half.is_some_and(|mut half| {
            half.trim();
            let last = Last { half, reason, bytes: 0 };
            self.far.as_mut().is_some_and(|far| far.keep_last(line, last))
        });
        if is_kept {
            self.note_come(line);
            self.wait_for_room(row);
        } else {
            self.end_line(line, reason);
        }
    }

    /// Takes records of a stream that has ended. After the last one its program learns of the end.
    pub(super) fn take_last(&mut self, line: LineRef, most: u32) -> (u32, Brought) {
        let Some(mut last) = self.far.as_mut().and_then(|far| far.take_last(line)) else {
            return (0, Brought::All);
        };
        let (taken, brought) = self.take_records(line, &mut last.half, most);
        match (brought, &mut self.far) {
            (Ok(brought @ (Brought::Some | Brought::Full)), Some(far)) => {
                // Its room was counted before.
                far.put_last(line, last);
                return (taken, brought);
            }
            (Err(reason), _) => self.end_line(line, reason),
            (Ok(_), _) => self.end_line(line, last.reason),
        }
        (taken, Brought::All)
    }

    /// Forgets what is left of a stream that has ended.
    fn forget_last(&mut self, line: LineRef) {
        if self.far.as_mut().is_some_and(|far| far.take_last(line).is_some()) {
            if let Some(row) = self.line_mut(line).map(|entry| entry.row) {
                self.forget_come(row, line);
            }
        }
    }

    /// Closes the stream of a line, and notes the fate of what its program sent.
    pub(super) fn let_go(&mut self, line: LineRef, reason: Reason) {
        let Some((host, stream)) = self.part(line) else { return };
        let Some(far) = &mut self.far else { return };
        far.ni.close_stream(host, stream, reason);
        far.opened.close((host, stream));
        let abandoned = far.ni.take_abandoned(host, stream);
        let Some(entry) = self.line_mut(line) else { return };
        let under_way = entry.delivered.since(entry.taken);
        let bytes = |record: &Abandoned| stream_bytes(record.head.args.into(), record.head.len as usize) as u32;
        let not_taken: u32 = abandoned.iter().map(bytes).sum();
        let untouched: u32 =
            abandoned.iter().rev().take_while(|record| record.fate == Fate::Untouched).map(bytes).sum();
        entry.note_taken(Place(entry.delivered.0.wrapping_sub(not_taken.min(under_way))));
        entry.touched = Place(entry.delivered.0.wrapping_sub(untouched.min(under_way)));
    }

    /// Separates a line from its stream, which stays as it is.
    pub(super) fn part(&mut self, line: LineRef) -> Option<(HostId, StreamId)> {
        let entry = self.line_mut(line)?;
        let Peer::Stream(host, stream) = entry.peer else { return None };
        entry.peer = Peer::None;
        let (row, marks, chunks) = (entry.row, entry.marks, std::mem::take(&mut entry.chunks));
        entry.marks.clear(Marks::IS_FULL);
        entry.marks.clear(Marks::IS_SHORT);
        entry.marks.clear(Marks::IS_PAUSED);
        self.forget_come(row, line);
        let far = self.far.as_mut()?;
        if let Some(index) = far.ni.session(host, stream) {
            far.lines.try_remove(index as usize);
        }
        if let Some(lines) = far.joined.get_mut(&host) {
            *lines -= 1;
            if *lines == 0 {
                far.joined.remove(&host);
            }
        }
        if let Some(paused) = far.paused.get_mut(&row).filter(|_| marks.has(Marks::IS_PAUSED)) {
            paused.retain(|other| *other != line);
            if paused.is_empty() {
                far.paused.remove(&row);
            }
        }
        if marks.has(Marks::IS_SHORT) {
            self.forget_short(line);
        }
        if let Some(user) = self.attachments.get(line.attachment as usize).map(|found| found.user) {
            self.give_back_chunks(user, chunks);
        }
        if self.has_paused(row) {
            // The endpoint's other lines may have waited for this one.
            self.rouse(row);
        }
        Some((host, stream))
    }

    pub(super) fn end_host(&mut self, host: HostId, reason: Reason) {
        let Some(far) = &mut self.far else { return };
        let lines: Vec<LineRef> = far.lines.iter().map(|(_, line)| *line).collect();
        for line in lines {
            let peer = self.line_mut(line).map(|entry| entry.peer);
            if matches!(peer, Some(Peer::Stream(its, _)) if its == host) {
                self.end_stream(line, reason);
            }
        }
        self.end_leaving(|leaving| leaving.host == host);
        self.forget_strange(|its| its.host == host);
        for call in self.early.iter_mut().filter(|call| call.host == Some(host)) {
            call.failed = Some(reason);
        }
        self.early_due = self.early.len();
        self.end_calling(host);
        self.with_ni(|ni| ni.close(host, reason));
    }
}
