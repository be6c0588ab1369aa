//! Paused streams: their reader takes nothing for now, and drops what arrives.
//!
//! An owner pauses a stream whose endpoint cannot take its messages. The channel itself pauses a stream when it holds
//! as much as it may for all its streams together. Both use one frame with a round number, so that duplicates and late
//! copies do no harm. (The seed calls these *not resident* and *overrun*.)
//!
//! ```text
//! flows --owner pauses, or too much waits--> paused --owner resumes, and there is room--> flows
//! ```

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use weft_wire::frame::{Pause, PauseReason};

/// Bytes that a stream may deliver when it resumes after a pause for lack of room: at least one record of the largest size.
const TURN: u64 = frame::RECORD_MOST as u64;

/// Room for data that arrived and was not taken, shared by several channels. Its owner passes it to each:
/// [`Channel::share_room`].
///
/// No channel gets more than what remains free (the dynamic thresholds of Choudhury and Hahne, 1998), so a channel
/// whose owner takes nothing leaves half of the room to others.
///
/// [`Channel::share_room`]: crate::Channel::share_room
#[derive(Debug)]
pub struct SharedRoom {
    most: u64,
    /// Bytes of memory in use. Relaxed throughout: only one thread at a time uses the channels; others only read the count.
    used: AtomicU64,
}

impl SharedRoom {
    /// Creates room for `most` bytes of memory. A channel may exceed it by what it allocates for one packet.
    pub fn new(most: u64) -> Arc<SharedRoom> {
        Arc::new(SharedRoom { most, used: AtomicU64::new(0) })
    }

    /// Bytes of memory in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn free(&self) -> u64 {
        self.most.saturating_sub(self.used())
    }
}

/// How much all streams together hold, if that is limited.
#[derive(Debug)]
pub(super) struct Crowd {
    most: u64,
    /// Bytes that arrived and were not taken.
    pub held: u64,
    /// Streams for which there is no room, in turn.
    pub waiting: VecDeque<StreamId>,
    /// The room shared with other channels, and the bytes of it that this channel uses.
    shared: Option<(Arc<SharedRoom>, u64)>,
}

impl Crowd {
    fn new(most: u32) -> Box<Crowd> {
        Box::new(Crowd { most: most.into(), held: 0, waiting: VecDeque::new(), shared: None })
    }

    /// Whether there is no room for `bytes` more.
    #[inline]
    pub fn is_full_for(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        self.held + bytes > self.most || self.shared.as_ref().is_some_and(|(room, used)| used + bytes > room.free())
    }

    /// Replaces what was counted for a stream (`noted`) by what it uses now.
    #[inline]
    pub fn note_memory(&mut self, noted: &mut u32, now: u32) {
        if let Some((room, used)) = self.shared.as_mut().filter(|_| *noted != now) {
            let before = std::mem::replace(noted, now);
            *used = *used - u64::from(before) + u64::from(now);
            room.used.fetch_add(u64::from(now), Ordering::Relaxed);
            room.used.fetch_sub(u64::from(before), Ordering::Relaxed);
        }
    }

    /// Bytes that streams waiting for room may now deliver.
    fn room(&self) -> u64 {
        let own = (self.most / 2).saturating_sub(self.held);
        let shared = self.shared.as_ref().map(|(room, used)| (room.free() / 2).saturating_sub(*used));
        shared.map_or(own, |shared| shared.min(own))
    }

    fn is_crowded(&self) -> bool {
        self.held > self.most / 2 || self.shared.as_ref().is_some_and(|(room, used)| *used > room.free() / 2)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if let Some((room, used)) = &self.shared {
            room.used.fetch_sub(*used, Ordering::Relaxed);
        }
    }
}

/// Whether our side takes a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pausing {
    /// Odd while it is paused.
    round: u32,
    reason: PauseReason,
    by_owner: bool,
    /// It is in the queue of streams that wait for room.
    pub is_crowded: bool,
    /// The peer has to be told.
    pub is_due: bool,
}

impl Default for Pausing {
    fn default() -> Pausing {
        Pausing { round: 0, reason: PauseReason::Crowded, by_owner: false, is_crowded: false, is_due: false }
    }
}

impl Pausing {
    #[inline]
    pub fn is_paused(self) -> bool {
        self.round % 2 == 1
    }
}

impl<M: Memory> Stream<M> {
    /// Updates the count of memory that received data takes, if the room is shared.
    pub(super) fn count_memory(&mut self, crowd: &mut Option<Box<Crowd>>) {
        let memory = self.inc.as_ref().map_or(0, |inc| inc.kept_in());
        crowd.iter_mut().for_each(|crowd| crowd.note_memory(&mut self.memory, memory));
    }

    /// The frame that tells the peer of a pause or its end.
    pub(super) fn pause_word(&self) -> Frame<'static> {
        let from = match &self.inc {
            Some(inc) => inc.came_to(),
            None if self.is_lent => self.lent.taken + u64::from(self.lent.came),
            None => FIRST_OFFSET,
        };
        let Pausing { round, reason, .. } = self.pausing;
        let pause = Pause { stream: self.id, from: from as u32, round };
        match self.pausing.is_paused() {
            true => Frame::Pause { pause, reason },
            false => Frame::Resume(pause),
        }
    }
}

impl<M: Memory> Streams<M> {
    /// A table without streams. All together may hold `most` bytes that arrived and were not taken; `u32::MAX` is no limit.
    pub fn holding(most: u32) -> Streams<M> {
        let crowd = (most < u32::MAX).then(|| Crowd::new(most));
        Streams { crowd, ..Streams::default() }
    }

    /// Bytes that arrived and were not taken, over all streams; counted only if there is a limit.
    pub fn held(&self) -> u64 {
        self.crowd.as_ref().map_or(0, |crowd| crowd.held)
    }

    /// Charges held data to a room shared with other channels, from now on.
    pub fn share_room(&mut self, room: Arc<SharedRoom>) {
        self.crowd.get_or_insert_with(|| Crowd::new(u32::MAX)).shared = Some((room, 0));
    }

    /// Whether there is little room left for arriving data.
    pub fn is_crowded(&self) -> bool {
        self.crowd.as_ref().is_some_and(|crowd| crowd.is_crowded())
    }

    /// Pauses a stream and drops what was not taken, except for `keep` bytes. False if it is not open, or is lent.
    pub fn pause(&mut self, id: StreamId, reason: PauseReason, keep: u32) -> bool {
        let Some(s) = find(&mut self.places, id).filter(|s| !s.is_lent) else { return false };
        s.pausing.by_owner = true;
        s.inc.iter_mut().for_each(|inc| inc.drop_untaken(keep));
        // The owner knows of the stream, and nothing of it is held, so it must not count against other new streams.
        self.end_newness(id);
        self.note_held(id);
        self.note_pause(id, reason);
        self.make_room();
        true
    }

    /// Resumes a stream. False if its owner had not paused it.
    pub fn resume(&mut self, id: StreamId) -> bool {
        let Some(s) = find(&mut self.places, id).filter(|s| s.pausing.by_owner) else { return false };
        s.pausing.by_owner = false;
        self.note_pause(id, PauseReason::Crowded);
        true
    }

    /// Pauses a stream for lack of room, and drops the data that would never become a whole record.
    #[cold]
    pub(super) fn crowd(&mut self, id: StreamId) {
        let Some(s) = find(&mut self.places, id) else { return };
        s.inc.iter_mut().for_each(|inc| inc.drop_untaken(u32::MAX));
        s.pausing.is_crowded = true;
        self.crowd.iter_mut().for_each(|crowd| crowd.waiting.push_back(id));
        self.note_held(id);
        self.note_pause(id, PauseReason::Crowded);
        self.make_room();
    }

    /// Resumes streams for which there is room now.
    #[inline]
    pub fn make_room(&mut self) {
        if self.crowd.as_ref().is_some_and(|crowd| !crowd.waiting.is_empty()) {
            self.let_in();
        }
    }

    #[cold]
    fn let_in(&mut self) {
        let mut room = self.crowd.as_ref().map_or(0, |crowd| crowd.room());
        while room > 0 {
            let Some(id) = self.crowd.as_mut().and_then(|crowd| crowd.waiting.pop_front()) else { return };
            room = room.saturating_sub(TURN);
            if let Some(s) = find(&mut self.places, id) {
                s.pausing.is_crowded = false;
                self.note_pause(id, PauseReason::Crowded);
            }
        }
    }

    /// Begins or ends a pause, and tells the peer, if the stream's reasons to be paused have changed.
    fn note_pause(&mut self, id: StreamId, reason: PauseReason) {
        let Some(s) = find(&mut self.places, id) else { return };
        let pausing = &mut s.pausing;
        if (pausing.by_owner || pausing.is_crowded) == pausing.is_paused() {
            return;
        }
        pausing.round = pausing.round.wrapping_add(1);
        (pausing.reason, pausing.is_due) = (reason, true);
        self.tell(id);
        self.is_urgent = true;
    }

    /// Updates the count of what a stream holds.
    #[inline]
    pub(super) fn note_held(&mut self, id: StreamId) {
        let Some(s) = any(&mut self.places, id) else { return };
        let held = s.inc.as_ref().map_or(0, |inc| inc.held());
        if let Some(crowd) = &mut self.crowd {
            crowd.held = crowd.held - u64::from(s.held) + u64::from(held);
            if crowd.shared.is_some() {
                // Other channels need the memory more than this stream will.
                s.inc.iter_mut().for_each(|inc| inc.rest());
                crowd.note_memory(&mut s.memory, s.inc.as_ref().map_or(0, |inc| inc.kept_in()));
            }
        }
        if s.is_new {
            self.new_bytes = self.new_bytes.saturating_sub(s.held).saturating_add(held);
        }
        s.held = held;
    }

    /// Clears the count of what a stream holds.
    pub(super) fn drop_held(&mut self, id: StreamId) {
        let Some(s) = any(&mut self.places, id) else { return };
        let held = std::mem::take(&mut s.held);
        let is_crowded = std::mem::take(&mut s.pausing.is_crowded);
        let Some(crowd) = &mut self.crowd else { return };
        crowd.held -= u64::from(held);
        crowd.note_memory(&mut s.memory, 0);
        if is_crowded {
            crowd.waiting.retain(|its| *its != id);
        }
        self.make_room();
    }

    /// The peer paused or resumed a stream.
    pub fn on_pause(&mut self, pause: Pause, is_paused: bool) -> Result<(), Violation> {
        if (pause.round % 2 == 1) != is_paused {
            return Err(Violation);
        }
        let Some(s) = find(&mut self.places, pause.stream) else { return Ok(()) };
        s.out.on_pause(pause.from, pause.round)?;
        self.queue(pause.stream);
        Ok(())
    }

    /// Whether the peer has paused a stream.
    pub fn is_paused(&mut self, id: StreamId) -> bool {
        find(&mut self.places, id).is_some_and(|s| s.out.is_paused())
    }
}
