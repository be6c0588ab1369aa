//! The streams of a channel, and the queues of streams that have work to do.
//!
//! Each side opens streams from its own half of the numbers, at the lowest free place of its table. The first records
//! of a stream open it at the other side. A place is free again once both sides have closed its stream: the side that
//! opened it has received the other's last word, or knows that its own last word arrived.

mod pause;
mod rest;

use super::{Event, OpenError, Settings};
use crate::cuts::Whole;
use crate::incoming::{Incoming, Stored};
use crate::memory::{Memory, Packets};
use crate::outgoing::{Outgoing, Ready, Run, Violation};
use crate::rare::{self, Point};
use crate::sent::SentFrame;
pub use pause::SharedRoom;
use pause::{Crowd, Pausing};
use std::collections::VecDeque;
use std::ops::Range;
use weft_wire::frame::{self, stream_bytes, Frame, Side, StreamId, Writer, FIRST_OFFSET, RECORDS_HEADER};
use weft_wire::packet::Integrity;
use weft_wire::path::{Abandoned, Peek, PushError, Traffic};
use weft_wire::{Head, Reason};

/// With less room than this at the end of a packet, another header is not worth it.
const SCRAP: usize = RECORDS_HEADER + 32;

/// The most streams opened by the peer of which the owner has taken no record yet. Together they hold at most a window.
pub(super) const NEW_MOST: u32 = 64;

/// The number of a stream to which the owner gave none.
const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
struct Stream<M> {
    id: StreamId,
    out: Outgoing<M>,
    /// `None` while it is lent, and before any data arrives.
    inc: Option<Box<Incoming>>,
    lent: Lent,
    /// It is in the queue of streams with data to transmit.
    is_queued: bool,
    /// It is in the queue of streams with something to tell the peer.
    is_telling: bool,
    /// A readable event waits in the queue.
    is_readable: bool,
    wants_room: bool,
    has_room_event: bool,
    /// The owner wants to know what the peer takes; and whether an event that says so waits.
    tells_taken: bool,
    has_taken_event: bool,
    is_lent: bool,
    /// The writer was told the state that `lent` holds.
    is_lent_told: bool,
    /// The peer opened it, and the owner has taken no record of it.
    is_new: bool,
    /// The owner's mark and number.
    is_marked: bool,
    owner: u32,
    /// Bytes that arrived and were not taken, as counted in `Crowd::held`.
    held: u32,
    /// Bytes of memory that hold them, if they count against shared room.
    memory: u32,
    pausing: Pausing,
    resting: Resting,
    /// Closed here: the last word, until it is acknowledged.
    last_word: Option<LastWord>,
}

/// The state of the reading half when it was lent.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    /// Everything below was taken before it was lent; the writer may be told so.
    taken: u64,
    /// How far beyond `taken` the writer may go.
    window: u32,
    /// How far beyond `taken` data had arrived.
    came: u32,
}

impl Lent {
    fn news(&self) -> (u64, u64) {
        (self.taken, self.taken + u64::from(self.window))
    }
}

/// How far a stream is on its way to be closed at rest.
#[derive(Clone, Copy, Debug, Default)]
struct Resting {
    state: RestState,
    /// The peer has to be told.
    is_due: bool,
    /// The peer declined a proposal with these numbers.
    was_declined: bool,
    /// How far the opener has sent and taken, according to the last proposal.
    sent: u32,
    taken: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RestState {
    #[default]
    No,
    /// Our owner wants to close it, once everything was taken.
    Wanted,
    /// We proposed it. Nothing is sent until the answer arrives.
    Proposed,
    /// The peer proposed it, and our owner is asked.
    Asked,
    /// The peer is told that the stream stays open.
    Stays,
}

/// The last word of a side that closed a stream: its final report on the records. Offsets are in wire format.
#[derive(Clone, Copy, Debug)]
enum LastWord {
    Nack { taken: u32, touched: u32, reason: Reason },
    Rested,
}

/// Whether the peer was told that the channel ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Ending {
    #[default]
    No,
    Due(Reason),
    Told(Reason),
}

/// A place of a side's table.
#[derive(Debug)]
struct Place<M> {
    /// The stream that has the place, or had it last.
    last: Option<StreamId>,
    stream: Option<Box<Stream<M>>>,
}

/// All streams of a channel.
#[derive(Debug)]
pub(super) struct Streams<M> {
    /// The places of both sides alternate, as the low bits of the stream numbers do. One table serves both, to keep an
    /// idle channel small.
    places: Vec<Place<M>>,
    /// Streams with data to transmit, served in turn.
    runs: VecDeque<StreamId>,
    /// Streams with something to tell the peer.
    words: VecDeque<StreamId>,
    events: VecDeque<Event>,
    /// Bytes that the peer may not have taken, over all streams.
    kept: u64,
    /// Bytes that arrived for new streams, and the number of those.
    new_bytes: u32,
    new_streams: u32,
    /// `None` if there is no limit on what is kept, to keep an idle channel small.
    crowd: Option<Box<Crowd>>,
    /// Something to tell the peer cannot wait.
    is_urgent: bool,
    ending: Ending,
    /// The peer is told of the end only after the last words in flight have arrived.
    end_waits: bool,
    has_ended: bool,
    /// What the checksums of packets with records cover.
    integrity: Integrity,
}

impl<M: Memory> Stream<M> {
    fn new(id: StreamId, settings: &Settings, peer_window: u32) -> Stream<M> {
        Stream {
            id,
            out: Outgoing::new(FIRST_OFFSET, settings.send_most, peer_window),
            inc: None,
            lent: Lent::default(),
            is_queued: false,
            is_telling: false,
            is_readable: false,
            wants_room: false,
            has_room_event: false,
            tells_taken: false,
            has_taken_event: false,
            is_lent: false,
            is_lent_told: false,
            is_new: false,
            is_marked: false,
            owner: NOBODY,
            held: 0,
            memory: 0,
            pausing: Pausing::default(),
            resting: Resting::default(),
            last_word: None,
        }
    }

    /// What to tell the peer about how far records were taken; `None` if none arrived. While the reading half is lent,
    /// that is how far they were taken before it was lent: so a reply sent meanwhile acknowledges the messages before.
    #[inline]
    fn tell(&mut self) -> Option<(u64, u64)> {
        match &mut self.inc {
            Some(inc) => {
                let news = inc.news();
                inc.note_told(news);
                Some(news)
            }
            None if self.is_lent => {
                self.is_lent_told = true;
                Some(self.lent.news())
            }
            None => None,
        }
    }

    /// How far records were taken, if none is left.
    fn all_taken(&self) -> Option<u64> {
        match &self.inc {
            Some(inc) => inc.all_taken(),
            None => (!self.is_lent).then_some(FIRST_OFFSET),
        }
    }

    /// Whether nothing was ever written to the stream or arrived on it.
    fn is_unused(&self) -> bool {
        self.out.traffic().pushed == FIRST_OFFSET && self.inc.is_none() && !self.is_lent
    }
}

impl<M> Default for Streams<M> {
    fn default() -> Streams<M> {
        Streams {
            places: Vec::new(),
            runs: VecDeque::new(),
            words: VecDeque::new(),
            events: VecDeque::new(),
            kept: 0,
            new_bytes: 0,
            new_streams: 0,
            crowd: None,
            is_urgent: false,
            ending: Ending::No,
            end_waits: false,
            has_ended: false,
            integrity: Integrity::Full,
        }
    }
}

/// A stream that is open, or whose last word is not acknowledged.
#[inline(always)]
fn any<M>(places: &mut [Place<M>], id: StreamId) -> Option<&mut Stream<M>> {
    places.get_mut(id.index())?.stream.as_deref_mut().filter(|s| s.id == id)
}

/// A stream that is open.
#[inline(always)]
fn find<M>(places: &mut [Place<M>], id: StreamId) -> Option<&mut Stream<M>> {
    any(places, id).filter(|s| s.last_word.is_none())
}

impl<M: Memory> Streams<M> {
    /// Opens the stream of that number.
    pub fn open(&mut self, id: StreamId, settings: &Settings, peer_window: u32) -> Result<(), OpenError> {
        if id.place() >= settings.streams_most as usize {
            return Err(OpenError::TooMany);
        }
        let (places, index) = (&mut self.places, id.index());
        if places.is_empty() {
            // Most channels never have many streams, and the usual first growth to four would be a notable part of an
            // idle channel.
            places.reserve_exact(index + 1);
        }
        if places.len() <= index {
            places.resize_with(index + 1, || Place { last: None, stream: None });
        }
        let place = &mut places[index];
        if place.stream.is_some() {
            return Err(OpenError::InUse);
        }
        let mut stream = Box::new(Stream::new(id, settings, peer_window));
        stream.out.set_integrity(self.integrity);
        *place = Place { last: Some(id), stream: Some(stream) };
        Ok(())
    }

    /// Opens a stream of this side at its lowest free place.
    pub fn open_next(&mut self, side: Side, settings: &Settings, peer_window: u32) -> Result<StreamId, OpenError> {
        let mut places = self.places.iter().skip(side as usize).step_by(2);
        let used = (self.places.len() + 1 - side as usize) / 2;
        let at = places.position(|place| place.stream.is_none()).unwrap_or(used);
        let first = StreamId::new(side, at as u32, 0);
        let last = self.places.get(first.index()).and_then(|place| place.last);
        let id = last.map_or(first, StreamId::next_life);
        if at >= settings.streams_most as usize {
            return Err(OpenError::TooMany);
        }
        self.open(id, settings, peer_window).map(|()| id)
    }

    pub fn close(&mut self, id: StreamId, reason: Reason) -> Vec<Abandoned> {
        let Some(s) = find(&mut self.places, id) else { return Vec::new() };
        let (taken, touched) = match &mut s.inc {
            Some(inc) => inc.end(),
            None if s.is_lent => (s.lent.taken, s.lent.taken + u64::from(s.lent.came)),
            None => (FIRST_OFFSET, FIRST_OFFSET),
        };
        s.last_word = Some(LastWord::Nack { taken: taken as u32, touched: touched as u32, reason });
        self.kept -= s.out.kept();
        let has_its_word = s.out.is_refused();
        let abandoned = s.out.abandon();
        self.forget_events(id);
        self.end_newness(id);
        self.drop_held(id);
        if has_its_word {
            // The peer has closed it too, and keeps nothing that depends on our last word.
            self.remove(id);
        } else {
            self.tell(id);
            self.is_urgent = true;
        }
        abandoned
    }

    /// Closes all streams, and tells the peer that no other will follow.
    pub fn end(&mut self, reason: Reason) -> Vec<(StreamId, Vec<Abandoned>)> {
        let ids: Vec<StreamId> = self.iter().filter(|s| s.last_word.is_none()).map(|s| s.id).collect();
        let abandoned = ids.into_iter().map(|id| (id, self.close(id, reason))).collect();
        if self.ending == Ending::No {
            self.ending = Ending::Due(reason);
            self.is_urgent = true;
        }
        abandoned
    }

    pub fn abandon(&mut self) -> Vec<(StreamId, Vec<Abandoned>)> {
        let all = std::mem::take(self);
        let streams = all.places.into_iter().filter_map(|place| place.stream);
        streams.filter(|s| s.last_word.is_none()).map(|mut s| (s.id, s.out.abandon())).collect()
    }

    #[inline]
    pub fn send(&mut self, id: StreamId, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        let s = find(&mut self.places, id).ok_or(PushError::Gone)?;
        if s.out.kept() > 0 && !s.out.is_refused() && rare::fires(Point::StreamFull) {
            s.wants_room = true;
            return Err(PushError::Full);
        }
        if s.resting.state != RestState::No {
            if s.resting.state == RestState::Proposed && !s.out.is_refused() {
                s.wants_room = true;
                return Err(PushError::Full);
            }
            if s.resting.state == RestState::Wanted {
                s.resting.state = RestState::No;
            }
        }
        match s.out.push(head, args, payload) {
            Ok(bytes) => {
                if !s.is_queued && s.out.has_run() {
                    s.is_queued = true;
                    self.runs.push_back(id);
                }
                self.kept += bytes;
                Ok(())
            }
            Err(error) => {
                s.wants_room |= error == PushError::Full;
                Err(error)
            }
        }
    }

    #[inline]
    pub fn peek(&mut self, id: StreamId) -> Peek<'_> {
        find(&mut self.places, id).and_then(|s| s.inc.as_mut()).map_or(Peek::Empty, |inc| inc.peek())
    }

    #[inline]
    pub fn pop(&mut self, id: StreamId) {
        let Some(s) = find(&mut self.places, id) else { return };
        let Some(inc) = &mut s.inc else { return };
        let has_news = inc.pop();
        if s.is_new {
            self.end_newness(id);
        }
        if has_news {
            self.tell_taken(id);
            self.note_held(id);
            self.make_room();
        }
    }

    #[inline]
    pub fn release(&mut self, id: StreamId) {
        let Some(s) = find(&mut self.places, id) else { return };
        if s.inc.as_mut().is_some_and(|inc| inc.release()) {
            self.tell_taken(id);
            self.note_held(id);
            self.make_room();
        }
        self.propose(id);
    }

    #[inline]
    pub fn lend(&mut self, id: StreamId) -> Option<Box<Incoming>> {
        let s = find(&mut self.places, id)?;
        let half = s.inc.take()?;
        (s.is_lent, s.is_lent_told) = (true, false);
        // Both are within a window of it.
        let (taken, limit) = half.news();
        s.lent = Lent { taken, window: (limit - taken) as u32, came: (half.came_to() - taken) as u32 };
        Some(half)
    }

    /// Whether the reading half is here and has a whole record, or data that is malformed.
    #[inline]
    pub fn is_readable(&mut self, id: StreamId) -> bool {
        find(&mut self.places, id).and_then(|s| s.inc.as_mut()).is_some_and(|inc| inc.is_readable())
    }

    /// Whether any stream has a whole record.
    pub fn has_readable(&mut self) -> bool {
        let streams = self.places.iter_mut().filter_map(|place| place.stream.as_deref_mut());
        let mut open = streams.filter(|s| s.last_word.is_none());
        open.any(|s| s.inc.as_mut().is_some_and(|inc| inc.is_readable()))
    }

    #[inline]
    pub fn take_back(&mut self, id: StreamId, mut half: Box<Incoming>) {
        let Some(s) = find(&mut self.places, id).filter(|s| s.is_lent) else { return };
        if s.is_lent_told {
            half.note_told(s.lent.news());
        }
        let has_news = half.release();
        let is_taken = s.is_new && half.has_taken();
        s.is_lent = false;
        s.inc = Some(half);
        let rests = s.resting.state != RestState::No;
        if is_taken {
            self.end_newness(id);
        }
        if has_news {
            self.tell_taken(id);
            self.note_held(id);
            self.make_room();
        }
        if rests {
            self.propose(id);
        }
    }

    pub fn has_room(&mut self, id: StreamId, args: usize, payload: usize) -> bool {
        find(&mut self.places, id).is_some_and(|s| {
            let has_room = s.resting.state != RestState::Proposed && s.out.has_room(stream_bytes(args, payload));
            s.wants_room |= !has_room;
            has_room
        })
    }

    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Readable(id) | Event::Room(id) | Event::Taken(id) = event {
            if let Some(s) = find(&mut self.places, id) {
                let flag = match event {
                    Event::Room(_) => &mut s.has_room_event,
                    Event::Taken(_) => &mut s.has_taken_event,
                    _ => &mut s.is_readable,
                };
                *flag = false;
            }
        }
        Some(event)
    }

    /// Sets the owner's mark on a stream and returns the previous one. `None` if the stream is not open.
    #[inline]
    pub fn mark(&mut self, id: StreamId, is_marked: bool) -> Option<bool> {
        find(&mut self.places, id).map(|s| std::mem::replace(&mut s.is_marked, is_marked))
    }

    /// Enables the event that tells what the peer takes.
    pub fn watch_taken(&mut self, id: StreamId) {
        if let Some(s) = find(&mut self.places, id) {
            s.tells_taken = true;
        }
    }

    /// Sets the owner's number of a stream, below `u32::MAX`.
    pub fn set_owner(&mut self, id: StreamId, owner: u32) {
        if let Some(s) = find(&mut self.places, id) {
            s.owner = owner;
        }
    }

    /// The owner's number of a stream, if it is open and has one.
    #[inline]
    pub fn owner(&mut self, id: StreamId) -> Option<u32> {
        find(&mut self.places, id).map(|s| s.owner).filter(|owner| *owner != NOBODY)
    }

    /// Whether a stream is open.
    pub fn is_open(&mut self, id: StreamId) -> bool {
        find(&mut self.places, id).is_some()
    }

    /// Whether there is a stream that is open.
    pub fn has_open(&self) -> bool {
        self.first_open().is_some()
    }

    /// The first stream that is open.
    pub fn first_open(&self) -> Option<StreamId> {
        self.iter().find(|s| s.last_word.is_none()).map(|s| s.id)
    }

    pub fn push_event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// The peer's first grant, for all streams.
    pub fn grant(&mut self, window: u32) {
        let ids: Vec<StreamId> = self.iter().map(|s| s.id).collect();
        for id in ids {
            if let Some(s) = find(&mut self.places, id) {
                s.out.grant(window);
                self.queue(id);
            }
        }
    }

    /// Sets the agreed integrity, for all streams and those that are opened later.
    pub fn set_integrity(&mut self, integrity: Integrity) {
        self.integrity = integrity;
        for s in self.places.iter_mut().filter_map(|place| place.stream.as_deref_mut()) {
            s.out.set_integrity(integrity);
        }
    }

    /// How many bytes of a run the checksum of its packet has to cover: see [`Outgoing::covered`].
    pub fn covered(&mut self, id: StreamId, offset: u32, len: usize) -> usize {
        find(&mut self.places, id).map_or(len, |s| s.out.covered_at(offset, len))
    }

    pub fn rest(&mut self) {
        for s in self.places.iter_mut().filter_map(|place| place.stream.as_deref_mut()) {
            s.out.rest();
            s.inc.iter_mut().for_each(|inc| inc.rest());
            s.count_memory(&mut self.crowd);
        }
        self.runs.shrink_to_fit();
        self.words.shrink_to_fit();
        self.events.shrink_to_fit();
    }

    /// Frees memory if streams hold much more than they need.
    pub fn trim(&mut self) {
        for s in self.places.iter_mut().filter_map(|place| place.stream.as_deref_mut()) {
            s.out.rest();
            s.inc.iter_mut().for_each(|inc| inc.trim());
            s.count_memory(&mut self.crowd);
        }
    }

    /// Stores a run of a stream's bytes that arrived.
    #[inline]
    pub fn on_records(
        &mut self,
        id: StreamId,
        offset: u32,
        bytes: &[u8],
        settings: &Settings,
    ) -> Result<Stored, Violation> {
        let Some(s) = any(&mut self.places, id) else { return Ok(Stored::NotOpen) };
        if s.last_word.is_some() {
            return Ok(Stored::Yes);
        }
        if s.is_lent || rare::fires(Point::PieceRefused) {
            return Ok(Stored::NoRoom);
        }
        let inc = s.inc.get_or_insert_with(|| Box::new(Incoming::new(FIRST_OFFSET, settings.window)));
        if s.pausing.is_paused() {
            inc.on_dropped(offset, bytes)?;
            return Ok(Stored::Yes);
        }
        let top = inc.top();
        let is_full = self.crowd.as_ref().is_some_and(|crowd| crowd.is_full_for(bytes.len()));
        if is_full && inc.grows(offset, bytes.len()) > 0 {
            inc.on_dropped(offset, bytes)?;
            self.crowd(id);
            return Ok(Stored::Yes);
        }
        if s.is_new {
            let grows = inc.grows(offset, bytes.len());
            if u64::from(self.new_bytes).saturating_add(grows) > u64::from(settings.window) {
                return Ok(Stored::NoRoom);
            }
        }
        let stored = inc.on_records(offset, bytes)?;
        let grown = (inc.top() - top) as u32;
        s.held += grown;
        if let Some(crowd) = &mut self.crowd {
            crowd.held += u64::from(grown);
            crowd.note_memory(&mut s.memory, inc.kept_in());
        }
        if s.is_new {
            self.new_bytes = self.new_bytes.saturating_add(grown);
        }
        if !s.is_readable && inc.is_readable() {
            s.is_readable = true;
            self.events.push_back(Event::Readable(id));
        }
        Ok(stored)
    }

    /// Handles records for a stream that is not open here. `ours` is our side. Opens the stream, or returns what
    /// becomes of the records.
    #[cold]
    pub fn on_unknown(
        &mut self,
        id: StreamId,
        ours: Side,
        settings: &Settings,
        peer_window: u32,
    ) -> Result<(), Stored> {
        let place = self.places.get(id.index());
        let is_news = place.and_then(|place| place.last).is_none_or(|last| id.is_after(last));
        match place.and_then(|place| place.stream.as_ref()) {
            // The stream was closed long ago, and its writer knows.
            _ if !is_news => return Err(Stored::Yes),
            // Only our side could have opened it.
            _ if id.side() == ours => return Err(Stored::NoRoom),
            // The opener is done with the previous stream, but its owner here has yet to notice.
            Some(old) if old.last_word.is_none() => return Err(Stored::NoRoom),
            _ => {}
        }
        let is_full = self.new_streams >= NEW_MOST || id.place() >= settings.streams_most as usize;
        let ends = match self.ending {
            Ending::No => None,
            Ending::Due(reason) | Ending::Told(reason) => Some(reason),
        };
        if is_full || (ends.is_some() && id.place() >= NEW_MOST as usize) {
            return Err(Stored::NoRoom);
        }
        if let Some(old) = self.places.get(id.index()).and_then(|place| place.last) {
            // The opener already knows what our last word for the previous stream says.
            self.remove(old);
        }
        self.open(id, settings, peer_window).map_err(|_| Stored::NoRoom)?;
        self.new_streams += 1;
        if let Some(s) = any(&mut self.places, id) {
            s.is_new = true;
        }
        if let Some(reason) = ends {
            self.close(id, reason);
        }
        Ok(())
    }

    pub fn on_taken(&mut self, id: StreamId, taken: u32, limit: u32) -> Result<(), Violation> {
        let Some(s) = find(&mut self.places, id) else { return Ok(()) };
        let freed = s.out.on_taken(taken, limit)?;
        let tell_room = freed > 0 && std::mem::take(&mut s.wants_room) && !s.has_room_event;
        s.has_room_event |= tell_room;
        let rests = s.resting.state != RestState::No;
        self.kept -= freed;
        if freed > 0 && s.tells_taken && !std::mem::replace(&mut s.has_taken_event, true) {
            self.events.push_back(Event::Taken(id));
        }
        if tell_room {
            self.events.push_back(Event::Room(id));
        }
        self.queue(id);
        if rests {
            self.propose(id);
        }
        Ok(())
    }

    /// Handles the peer's last word on a stream.
    pub fn on_nack(
        &mut self,
        id: StreamId,
        taken: u32,
        touched: u32,
        reason: Reason,
        ours: Side,
    ) -> Result<(), Violation> {
        let Some(s) = any(&mut self.places, id) else {
            self.note_closed_unseen(id, ours);
            return Ok(());
        };
        if s.last_word.is_some() {
            // Both have closed it.
            self.remove(id);
            return Ok(());
        }
        let is_first = !s.out.is_refused();
        self.kept -= s.out.on_nack(taken, touched)?;
        if is_first {
            self.events.push_back(Event::Refused(id, reason));
        }
        Ok(())
    }

    /// The peer opened and closed a stream of which we saw nothing. Anything that arrives for it from now on is late.
    fn note_closed_unseen(&mut self, id: StreamId, ours: Side) {
        if let Some(place) = self.places.get_mut(id.index()) {
            let is_news = place.last.is_none_or(|last| id.is_after(last));
            if id.side() != ours && place.stream.is_none() && is_news {
                place.last = Some(id);
            }
        }
    }

    /// A packet with this frame was acknowledged.
    #[inline]
    pub fn on_came(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Records(id, run) => {
                if let Some(s) = find(&mut self.places, id) {
                    s.out.on_acked(run);
                }
            }
            SentFrame::LastWord(id) => {
                if any(&mut self.places, id).is_some_and(|s| s.last_word.is_some()) {
                    self.remove(id);
                    self.end_waits = false;
                }
            }
            SentFrame::Taken(_) | SentFrame::Pause(_) | SentFrame::Rest(_) | SentFrame::End => {}
        }
    }

    /// A packet with this frame was lost.
    pub fn on_lost(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Records(id, run) => {
                if let Some(s) = find(&mut self.places, id) {
                    s.out.on_lost(run);
                    self.queue(id);
                }
            }
            SentFrame::Taken(id) => self.tell(id),
            SentFrame::LastWord(id) => {
                self.tell(id);
                self.is_urgent = true;
            }
            SentFrame::Pause(id) => {
                if let Some(s) = find(&mut self.places, id) {
                    s.pausing.is_due = true;
                    self.tell(id);
                    self.is_urgent = true;
                }
            }
            SentFrame::Rest(id) => {
                if let Some(s) = find(&mut self.places, id) {
                    s.resting.is_due = matches!(s.resting.state, RestState::Proposed | RestState::Stays);
                    self.tell(id);
                }
            }
            SentFrame::End => {
                if let Ending::Told(reason) = self.ending {
                    self.ending = Ending::Due(reason);
                    self.is_urgent = true;
                }
            }
        }
    }

    /// Writes what the peer is to be told about streams. Calls `note` for each frame.
    pub fn write_words(&mut self, writer: &mut Writer<'_>, mut note: impl FnMut(SentFrame)) {
        let mut last_words = 0;
        while let Some(&id) = self.words.front() {
            if let Some(s) = any(&mut self.places, id) {
                if let Some(last) = s.last_word {
                    let word = match last {
                        LastWord::Nack { taken, touched, reason } => Frame::Nack { stream: id, taken, touched, reason },
                        LastWord::Rested => Frame::Rested { stream: id },
                    };
                    if !writer.push(&word) {
                        return;
                    }
                    last_words += 1;
                    note(SentFrame::LastWord(id));
                } else {
                    if let Some((taken, limit)) = s.tell() {
                        if !writer.push_taken(id, taken as u32, limit as u32) {
                            return;
                        }
                        note(SentFrame::Taken(id));
                    }
                    if s.pausing.is_due {
                        if !writer.push(&s.pause_word()) {
                            return;
                        }
                        s.pausing.is_due = false;
                        note(SentFrame::Pause(id));
                    }
                    if s.resting.is_due {
                        let Resting { state, sent, taken, .. } = s.resting;
                        let rest = frame::Rest { stream: id, sent, taken };
                        let is_ours = state == RestState::Proposed;
                        if !writer.push(&if is_ours { Frame::Rest(rest) } else { Frame::Stay(rest) }) {
                            return;
                        }
                        s.resting.is_due = false;
                        note(SentFrame::Rest(id));
                    }
                }
                s.is_telling = false;
            }
            self.words.pop_front();
        }
        if let Ending::Due(reason) = self.ending {
            // The end goes with the last words of closed streams or after them. Alone, it would leave the fate of their
            // records in doubt.
            let waiting = self.iter().filter(|s| s.last_word.is_some()).count();
            self.end_waits = waiting > last_words;
            if !self.end_waits {
                if !writer.push(&Frame::End { reason }) {
                    return;
                }
                self.ending = Ending::Told(reason);
                note(SentFrame::End);
            }
        }
        self.is_urgent = false;
    }

    /// Fills the packet with records, from each stream in turn. Calls `note` for each run.
    #[inline]
    pub fn write_records(&mut self, writer: &mut Writer<'_>, mut note: impl FnMut(SentFrame)) {
        let mut has_written = false;
        while let Some(&id) = self.runs.front() {
            if has_written && self.has_ready(u64::MAX) {
                // That data goes in packets of its own, without a copy.
                return;
            }
            let room = writer.room();
            if room < SCRAP && !writer.is_empty() {
                return;
            }
            self.runs.pop_front();
            let Some(s) = find(&mut self.places, id) else { continue };
            s.is_queued = false;
            let Some(run) = s.out.next_run(room - RECORDS_HEADER) else { continue };
            let is_written = writer.push_records(id, run.from as u32, s.out.slices(run));
            assert!(is_written, "a run of at most the room there was");
            note(SentFrame::Records(id, run));
            has_written = true;
            self.queue(id);
        }
    }

    /// Whether the stream whose turn it is may have data laid out in packets of this size. Most streams have few bytes,
    /// which are not laid out in packets.
    #[inline]
    pub fn may_lie_ready(&mut self, packet: usize) -> bool {
        let Some(&id) = self.runs.front() else { return false };
        find(&mut self.places, id).is_some_and(|s| s.out.may_lie_ready(packet))
    }

    /// The stream whose turn it is and its packets that lie ready, at most `most` of `packet` bytes, if `room` is large.
    #[inline]
    pub fn ready(&mut self, most: usize, packet: usize, room: u64) -> Option<(StreamId, Ready)> {
        let &id = self.runs.front()?;
        Some((id, find(&mut self.places, id)?.out.ready(most, packet, room)?))
    }

    /// Takes the next packet that lies ready.
    #[inline]
    pub fn next_ready(&mut self, id: StreamId) -> Option<(Run, Whole<'_>)> {
        find(&mut self.places, id)?.out.next_ready()
    }

    /// Returns the packets that were taken, and passes the turn to another stream.
    #[inline]
    pub fn end_turn(&mut self, id: StreamId, place: Range<usize>) -> Option<Packets<'_, M>> {
        self.runs.pop_front();
        if let Some(s) = find(&mut self.places, id) {
            s.is_queued = false;
        }
        self.queue(id);
        find(&mut self.places, id).and_then(|s| s.out.packets(place))
    }

    /// Whether the data that goes next lies ready, and is enough for a run of packets.
    #[inline]
    pub fn has_ready(&mut self, room: u64) -> bool {
        self.runs.front().copied().and_then(|id| find(&mut self.places, id)).is_some_and(|s| s.out.has_ready(room))
    }

    /// Whether a stream has something to transmit.
    #[inline]
    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Whether the peer has to be told something about a stream, or about the end.
    #[inline]
    pub fn has_words(&self) -> bool {
        !self.words.is_empty() || (matches!(self.ending, Ending::Due(_)) && !self.end_waits)
    }

    /// Whether something to tell the peer cannot wait.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.is_urgent && self.has_words()
    }

    /// Whether the peer was not yet told of a closed stream.
    pub fn has_nacks(&self) -> bool {
        self.is_urgent()
    }

    /// Whether there is something that the peer may not have taken.
    #[inline]
    pub fn has_kept(&self) -> bool {
        self.kept > 0
    }

    /// Whether there are records that were not sent completely. Looks at all streams.
    pub fn has_unsent(&self) -> bool {
        self.iter().any(|s| s.last_word.is_none() && s.out.has_unsent())
    }

    /// How far a stream was written and taken.
    pub fn traffic(&mut self, id: StreamId) -> Traffic {
        find(&mut self.places, id).map_or_else(Traffic::default, |s| s.out.traffic())
    }

    /// Whether the peer's program has taken anything of a stream.
    pub fn is_confirmed(&mut self, id: StreamId) -> bool {
        find(&mut self.places, id).is_some_and(|s| s.out.traffic().taken > FIRST_OFFSET)
    }

    /// Whether more of a stream would be sent if the peer had room for it.
    pub fn waits_for_peer(&mut self, id: StreamId) -> bool {
        find(&mut self.places, id).is_some_and(|s| s.out.waits_for_peer())
    }

    /// Whether that holds for any stream.
    pub fn any_waits_for_peer(&self) -> bool {
        self.iter().any(|s| s.last_word.is_none() && s.out.waits_for_peer())
    }

    pub fn memory(&self) -> usize {
        let of = |s: &Stream<M>| {
            std::mem::size_of::<Stream<M>>() + s.out.memory() + s.inc.as_ref().map_or(0, |inc| inc.memory())
        };
        self.iter().map(of).sum::<usize>()
            + self.places.capacity() * std::mem::size_of::<Place<M>>()
            + (self.runs.capacity() + self.words.capacity()) * std::mem::size_of::<StreamId>()
            + self.events.capacity() * std::mem::size_of::<Event>()
    }

    fn iter(&self) -> impl Iterator<Item = &Stream<M>> {
        self.places.iter().filter_map(|place| place.stream.as_deref())
    }

    /// Notes that records were taken.
    fn tell_taken(&mut self, id: StreamId) {
        self.tell(id);
        self.is_urgent |= find(&mut self.places, id).and_then(|s| s.inc.as_ref()).is_some_and(|inc| inc.is_urgent());
    }

    fn tell(&mut self, id: StreamId) {
        if let Some(s) = any(&mut self.places, id).filter(|s| !s.is_telling) {
            s.is_telling = true;
            self.words.push_back(id);
        }
    }

    #[inline]
    fn queue(&mut self, id: StreamId) {
        if let Some(s) = find(&mut self.places, id).filter(|s| !s.is_queued && s.out.has_run()) {
            s.is_queued = true;
            self.runs.push_back(id);
        }
    }

    /// Forgets a stream and frees its place. Also removes it from the queues: with a peer that acknowledges nothing
    /// they are never emptied.
    fn remove(&mut self, id: StreamId) {
        self.drop_held(id);
        let place = self.places.get_mut(id.index());
        let Some(s) = place.and_then(|place| place.stream.take_if(|s| s.id == id)) else { return };
        if s.is_queued {
            self.runs.retain(|its| *its != id);
        }
        if s.is_telling {
            self.words.retain(|its| *its != id);
        }
    }

    fn forget_events(&mut self, id: StreamId) {
        let is_its = |event: &Event| event.stream() == Some(id);
        self.events.retain(|event| !is_its(event));
    }

    /// A stream is no longer new once the owner has taken a record of it, or it is closed.
    #[cold]
    fn end_newness(&mut self, id: StreamId) {
        if let Some(s) = any(&mut self.places, id).filter(|s| s.is_new) {
            s.is_new = false;
            self.new_streams = self.new_streams.saturating_sub(1);
            self.new_bytes = self.new_bytes.saturating_sub(s.held);
        }
    }
}
