//! The streams of a host, as sessions and the ends of their paths use them.

use super::*;
use weft_wire::frame::PauseReason;

impl<L: Link> Ni<L> {
    /// Returns the open record of a stream that a host opened: its first record must be an open before it gets a
    /// session. `None` if the record has not arrived yet; an error if it is something else.
    pub fn first_open(&mut self, id: HostId, stream: StreamId) -> Option<Result<Open, Reason>> {
        match self.hosts.get_mut(id)?.channel.peek(stream) {
            Peek::Empty => None,
            Peek::Record(record) if record.head.is(Kind::Open) => {
                let open = Open::from_record(record.args, record.payload);
                if open.is_some_and(|open| open.source_epoch.is_some()) {
                    self.hosts.get_mut(id)?.serves_many = true;
                }
                Some(open.ok_or(Reason::Violation))
            }
            Peek::Record(_) | Peek::Broken(_) => Some(Err(Reason::Violation)),
        }
    }

    /// Opens a stream to a host. `None` if the channel is not open, or has no more places.
    pub fn open_stream(&mut self, id: HostId) -> Option<StreamId> {
        self.hosts.get_mut(id).filter(|host| !host.is_closing)?.channel.open_next().ok()
    }

    /// Notes the index of a stream's session.
    pub fn set_session(&mut self, id: HostId, stream: StreamId, index: u32) {
        self.hosts.get_mut(id).into_iter().for_each(|host| host.channel.set_owner(stream, index));
    }

    /// The index of a stream's session, if it has one.
    #[inline]
    pub fn session(&mut self, id: HostId, stream: StreamId) -> Option<u32> {
        self.hosts.get_mut(id)?.channel.owner(stream)
    }

    /// Whether a host has taken records of a stream, so that it knows of it.
    pub fn is_confirmed(&mut self, id: HostId, stream: StreamId) -> bool {
        self.hosts.get_mut(id).is_some_and(|host| host.channel.is_confirmed(stream))
    }

    /// Whether there is an open stream to a host.
    pub fn has_streams(&self, id: HostId) -> bool {
        self.hosts.get(id).is_some_and(|host| host.channel.has_streams())
    }

    /// Causes an [`NiEvent::Taken`], from now on, whenever the host has taken more of a stream.
    pub fn watch_taken(&mut self, id: HostId, stream: StreamId) {
        self.hosts.get_mut(id).into_iter().for_each(|host| host.channel.watch_taken(stream));
    }

    /// Pauses a stream. Data that arrived and was not popped is dropped, and the host keeps it; but up to `keep` bytes
    /// stay, and the first record if `keep` is not 0. False if the stream is not open.
    pub fn pause_stream(&mut self, id: HostId, stream: StreamId, reason: PauseReason, keep: u32) -> bool {
        let Some(host) = self.hosts.get_mut(id).filter(|h| !h.is_closing) else { return false };
        let is_paused = host.channel.pause(stream, reason, keep);
        self.mark(id.index);
        is_paused
    }

    /// Resumes a paused stream.
    pub fn resume_stream(&mut self, id: HostId, stream: StreamId) {
        let Some(host) = self.hosts.get_mut(id).filter(|h| !h.is_closing) else { return };
        host.channel.resume(stream);
        self.mark(id.index);
    }

    /// Frees memory if the streams of a host hold much more than they need. Looks at all of them.
    pub fn trim(&mut self, id: HostId) {
        self.hosts.get_mut(id).into_iter().for_each(|host| host.channel.trim());
    }

    /// Whether a stream has a record that nobody has taken.
    pub fn is_readable(&mut self, id: HostId, stream: StreamId) -> bool {
        self.hosts.get_mut(id).is_some_and(|host| host.channel.is_readable(stream))
    }

    /// Bytes that arrived from a host and were not taken.
    pub fn held(&self, id: HostId) -> u64 {
        self.hosts.get(id).map_or(0, |host| host.channel.held())
    }

    /// Whether [`Ni::held`] is above half of its limit (`held_most` of the settings).
    pub fn is_crowded(&self, id: HostId) -> bool {
        self.hosts.get(id).is_some_and(|host| host.channel.is_crowded())
    }

    /// Closes a stream: tells the host why, and what was taken. [`StreamTx::abandoned`] returns what the host may not have
    /// taken.
    ///
    /// [`StreamTx::abandoned`]: weft_wire::path::Tx::abandoned
    pub fn close_stream(&mut self, id: HostId, stream: StreamId, reason: Reason) {
        self.guests.forget(id, stream);
        let Some(host) = self.hosts.get_mut(id).filter(|h| !h.is_closing) else { return };
        let records = host.channel.close(stream, reason);
        if !records.is_empty() {
            host.abandoned.push((stream, records));
        }
        self.mark(id.index);
    }

    /// Refuses the first flow of a stream, and so the stream. A stranger that has no other stream may lose its place to
    /// any other.
    pub fn refuse_stream(&mut self, id: HostId, stream: StreamId, reason: Reason) {
        self.close_stream(id, stream, reason);
        let has_others = self.has_streams(id);
        if let Some(stranger) = self.strangers.iter_mut().find(|stranger| stranger.id == id) {
            stranger.is_refused = !has_others;
        }
    }

    /// Asks to close a stream that we opened, once everything was taken and if it has no flow at the host either: see
    /// [`NiEvent::Rested`] and [`NiEvent::Stays`].
    pub fn wish_rest(&mut self, id: HostId, stream: StreamId) {
        let Some(host) = self.hosts.get_mut(id).filter(|h| !h.is_closing) else { return };
        host.channel.wish_rest(stream);
        self.mark(id.index);
        self.take_events(id.index);
    }

    /// Answers [`NiEvent::Asks`]. Returns whether the stream is closed now.
    pub fn answer_rest(&mut self, id: HostId, stream: StreamId, agrees: bool) -> bool {
        let Some(host) = self.hosts.get_mut(id).filter(|h| !h.is_closing) else { return false };
        let is_closed = host.channel.answer_rest(stream, agrees);
        if is_closed {
            self.guests.forget(id, stream);
        }
        self.mark(id.index);
        is_closed
    }

    /// Whether records of a stream wait for room at the host.
    pub fn waits_for_peer(&mut self, id: HostId, stream: StreamId) -> bool {
        self.hosts.get_mut(id).is_some_and(|host| host.channel.waits_for_peer(stream))
    }

    /// Writes a record to a stream. See [`Tx::push`](weft_wire::path::Tx::push).
    #[inline]
    pub fn push(
        &mut self,
        id: HostId,
        stream: StreamId,
        head: Head,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), PushError> {
        let Some(host) = self.hosts.get_mut(id) else { return Err(PushError::Gone) };
        let was_quiet = host.channel.is_quiet();
        host.channel.send(stream, head, args, payload)?;
        host.unsent += stream_bytes(args.len(), payload.len());
        if was_quiet || host.unsent >= BURST_MOST {
            // Send one full run. Further records wait until they fill packets, because a packet costs the same whatever
            // its size.
            let runs = if was_quiet { u32::MAX } else { 1 };
            let now = self.link.now();
            self.flush_host(id.index, now, runs);
        } else if !self.has_unsent_records || !host.is_marked {
            self.leave_unsent(id.index);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn push_unreliable(
        &mut self,
        id: HostId,
        stream: StreamId,
        head: Head,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), PushError> {
        let Some(host) = self.hosts.get_mut(id) else { return Err(PushError::Gone) };
        let was_quiet = host.channel.is_quiet();
        host.channel.send_unreliable(stream, head, args, payload)?;
        host.unsent += stream_bytes(args.len(), payload.len());
        if was_quiet || host.unsent >= BURST_MOST {
            let now = self.link.now();
            self.flush_host(id.index, now, u32::MAX);
        } else {
            self.leave_unsent(id.index);
        }
        Ok(())
    }

    /// Whether a record with `payload` bytes would be accepted.
    pub fn has_room(&mut self, id: HostId, stream: StreamId, payload: usize) -> bool {
        // Report room for a host that is gone: the send then fails, and the sender learns at once.
        self.hosts.get_mut(id).is_none_or(|h| h.channel.has_room(stream, 0, payload))
    }

    /// How far a stream was written and taken.
    pub fn traffic(&mut self, id: HostId, stream: StreamId) -> Traffic {
        self.hosts.get_mut(id).map_or_else(Traffic::default, |h| h.channel.traffic(stream))
    }

    /// Lends a stream's reading half, if it has a record.
    #[inline]
    pub fn lend(&mut self, id: HostId, stream: StreamId) -> Option<Box<Incoming>> {
        let host = self.hosts.get_mut(id)?;
        host.channel.is_readable(stream).then(|| host.channel.lend(stream))?
    }

    /// Takes a reading half back.
    #[inline]
    pub fn take_back(&mut self, id: HostId, stream: StreamId, half: Box<Incoming>) {
        if let Some(host) = self.hosts.get_mut(id) {
            host.channel.take_back(stream, half);
            self.mark(id.index);
        }
    }

    /// Closes a stream, and returns the records that the host may not have taken.
    pub fn take_abandoned(&mut self, id: HostId, stream: StreamId) -> Vec<Abandoned> {
        self.close_stream(id, stream, Reason::PeerLost);
        let Some(host) = self.hosts.get_mut(id) else { return Vec::new() };
        let found = host.abandoned.iter().position(|(its, _)| *its == stream);
        found.map(|at| host.abandoned.swap_remove(at).1).unwrap_or_default()
    }

    /// The records of all streams that a host may not have taken.
    pub(super) fn take_all_abandoned(&mut self, id: HostId) -> Vec<Abandoned> {
        let abandoned = self.hosts.get_mut(id).map(|host| std::mem::take(&mut host.abandoned)).unwrap_or_default();
        abandoned.into_iter().flat_map(|(_, records)| records).collect()
    }

    /// A session rests. The first session of a host also lets the channel rest.
    pub(super) fn rest(&mut self, id: HostId, stream: StreamId) {
        if let Some(host) = self.hosts.get_mut(id).filter(|host| host.channel.first_stream() == Some(stream)) {
            host.channel.rest();
        }
    }
}
