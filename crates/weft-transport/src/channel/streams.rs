//! The streams of a channel, and the queues of those that have something to do.

use super::{Event, OpenError, Settings};
use crate::cuts::Whole;
use crate::incoming::{Incoming, Stored};
use crate::memory::Memory;
use crate::outgoing::{Outgoing, Ready, Run, Violation};
use crate::rare::{self, Point};
use crate::sent::SentFrame;
use std::collections::VecDeque;
use std::ops::Range;
use weft_wire::frame::{stream_bytes, Frame, StreamId, Writer, FIRST_OFFSET, RECORDS_HEADER};
use weft_wire::path::{Abandoned, Peek, PushError, Traffic};
use weft_wire::{Head, Reason};

/// Less room than this is not worth a header at the end of a packet that has something in it.
const SCRAP: usize = RECORDS_HEADER + 32;

#[derive(Debug)]
struct Stream<M> {
    id: StreamId,
    out: Outgoing<M>,
    /// `None` while it is lent.
    inc: Option<Box<Incoming>>,
    lent: Lent,
    /// In the queue of those that have something to transmit.
    is_queued: bool,
    /// In the queue of those with a word for the peer.
    is_telling: bool,
    /// An event waits that says so.
    is_readable: bool,
    wants_room: bool,
    has_room_event: bool,
    /// Closed here: the last word, until it is acknowledged.
    last_word: Option<LastWord>,
}

/// What is known of the reading half while it is lent.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    /// What its writer may be told: what was taken before, and how far it may go.
    news: (u64, u64),
    /// It was told so since.
    is_told: bool,
    /// Where what came ended.
    end: u64,
}

#[derive(Clone, Copy, Debug)]
struct LastWord {
    taken: u64,
    touched: u64,
    reason: Reason,
}

/// All streams of a channel, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Streams<M> {
    list: Vec<Stream<M>>,
    /// Where the last one looked for was.
    last: usize,
    /// Those that have something to transmit, in turn.
    runs: VecDeque<StreamId>,
    /// Those that have a word for the peer.
    words: VecDeque<StreamId>,
    events: VecDeque<Event>,
    /// Bytes that the peer has not surely taken, of all streams.
    kept: u64,
    /// A word cannot wait.
    is_urgent: bool,
}

impl<M: Memory> Stream<M> {
    /// What the peer is told of what was taken, which counts as told. While the reading half is lent that is what was taken before: who
    /// answers what it reads is to tell it with its answers.
    #[inline]
    fn tell(&mut self) -> (u64, u64) {
        match &mut self.inc {
            Some(inc) => {
                let news = inc.news();
                inc.note_told(news);
                news
            }
            None => {
                self.lent.is_told = true;
                self.lent.news
            }
        }
    }
}

impl<M> Default for Streams<M> {
    fn default() -> Streams<M> {
        Streams {
            list: Vec::new(),
            last: 0,
            runs: VecDeque::new(),
            words: VecDeque::new(),
            events: VecDeque::new(),
            kept: 0,
            is_urgent: false,
        }
    }
}

impl<M: Memory> Streams<M> {
    pub fn open(&mut self, id: StreamId, settings: &Settings, peer_window: u32) -> Result<(), OpenError> {
        let Err(at) = self.list.binary_search_by_key(&id, |s| s.id) else {
            return Err(OpenError::InUse);
        };
        if self.list.len() >= settings.streams_most as usize {
            return Err(OpenError::TooMany);
        }
        let stream = Stream {
            id,
            out: Outgoing::new(FIRST_OFFSET, settings.send_most, peer_window),
            inc: Some(Box::new(Incoming::new(FIRST_OFFSET, settings.window))),
            lent: Lent::default(),
            is_queued: false,
            is_telling: false,
            is_readable: false,
            wants_room: false,
            has_room_event: false,
            last_word: None,
        };
        if self.list.is_empty() {
            // Most channels have one for ever, and room for four would be a tenth of what an idle channel takes.
            self.list.reserve_exact(1);
        }
        self.list.insert(at, stream);
        Ok(())
    }

    pub fn close(&mut self, id: StreamId, reason: Reason) -> Vec<Abandoned> {
        let Some(s) = self.list.iter_mut().find(|s| s.id == id && s.last_word.is_none()) else {
            return Vec::new();
        };
        let (taken, touched) = s.inc.as_mut().map_or((s.lent.news.0, s.lent.end), |inc| inc.end());
        s.last_word = Some(LastWord { taken, touched, reason });
        self.kept -= s.out.kept();
        let abandoned = s.out.abandon();
        self.events.retain(|e| !matches!(e, Event::Readable(i) | Event::Room(i) | Event::Refused(i, _) if *i == id));
        self.tell(id);
        self.is_urgent = true;
        abandoned
    }

    pub fn abandon(&mut self) -> Vec<(StreamId, Vec<Abandoned>)> {
        let all = std::mem::take(self);
        all.list.into_iter().filter(|s| s.last_word.is_none()).map(|mut s| (s.id, s.out.abandon())).collect()
    }

    #[inline]
    pub fn send(&mut self, id: StreamId, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        let s = self.find(id).ok_or(PushError::Gone)?;
        if s.out.kept() > 0 && !s.out.is_refused() && rare::fires(Point::StreamFull) {
            s.wants_room = true;
            return Err(PushError::Full);
        }
        match s.out.push(head, args, payload) {
            Ok(bytes) => {
                self.kept += bytes;
                self.queue(id);
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
        self.find(id).and_then(|s| s.inc.as_mut()).map_or(Peek::Empty, |inc| inc.peek())
    }

    #[inline]
    pub fn pop(&mut self, id: StreamId) {
        if self.find(id).and_then(|s| s.inc.as_mut()).is_some_and(|inc| inc.pop()) {
            self.tell_taken(id);
        }
    }

    #[inline]
    pub fn release(&mut self, id: StreamId) {
        if self.find(id).and_then(|s| s.inc.as_mut()).is_some_and(|inc| inc.release()) {
            self.tell_taken(id);
        }
    }

    #[inline]
    pub fn lend(&mut self, id: StreamId) -> Option<Box<Incoming>> {
        let s = self.find(id)?;
        let half = s.inc.take()?;
        s.lent = Lent { news: half.news(), is_told: false, end: half.came_to() };
        Some(half)
    }

    #[inline]
    pub fn take_back(&mut self, id: StreamId, mut half: Box<Incoming>) {
        let Some(s) = self.find(id) else { return };
        if s.lent.is_told {
            half.note_told(s.lent.news);
        }
        let has_news = half.release();
        s.inc = Some(half);
        if has_news {
            self.tell_taken(id);
        }
    }

    pub fn has_room(&mut self, id: StreamId, args: usize, payload: usize) -> bool {
        self.find(id).is_some_and(|s| {
            let has_room = s.out.has_room(stream_bytes(args, payload));
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
        if let Event::Readable(id) | Event::Room(id) = event {
            if let Some(s) = self.find(id) {
                *if matches!(event, Event::Room(_)) { &mut s.has_room_event } else { &mut s.is_readable } = false;
            }
        }
        Some(event)
    }

    /// Whether a stream is open.
    pub fn is_open(&mut self, id: StreamId) -> bool {
        self.find(id).is_some()
    }

    pub fn push_event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// The peer's first grant, for all streams.
    pub fn grant(&mut self, window: u32) {
        for at in 0..self.list.len() {
            self.list[at].out.grant(window);
            self.queue(self.list[at].id);
        }
    }

    pub fn rest(&mut self) {
        for s in &mut self.list {
            s.out.rest();
            s.inc.iter_mut().for_each(|inc| inc.rest());
        }
        self.runs.shrink_to_fit();
        self.words.shrink_to_fit();
        self.events.shrink_to_fit();
    }

    /// Stores a run of a stream's bytes that came.
    #[inline]
    pub fn on_records(&mut self, id: StreamId, offset: u32, bytes: &[u8]) -> Result<Stored, Violation> {
        let Some(s) = self.any(id) else {
            // Not open yet, or closed long ago: in the second case the writer knows, and does not send it again.
            return Ok(Stored::NoRoom);
        };
        if s.last_word.is_some() {
            return Ok(Stored::Yes);
        }
        let Some(inc) = &mut s.inc else { return Ok(Stored::NoRoom) };
        if rare::fires(Point::PieceRefused) {
            return Ok(Stored::NoRoom);
        }
        let stored = inc.on_records(offset, bytes)?;
        if !s.is_readable && inc.is_readable() {
            s.is_readable = true;
            self.events.push_back(Event::Readable(id));
        }
        Ok(stored)
    }

    pub fn on_taken(&mut self, id: StreamId, taken: u32, limit: u32) -> Result<(), Violation> {
        let Some(s) = self.find(id) else { return Ok(()) };
        let freed = s.out.on_taken(taken, limit)?;
        let tell_room = freed > 0 && std::mem::take(&mut s.wants_room) && !s.has_room_event;
        s.has_room_event |= tell_room;
        self.kept -= freed;
        if tell_room {
            self.events.push_back(Event::Room(id));
        }
        self.queue(id);
        Ok(())
    }

    pub fn on_nack(&mut self, id: StreamId, taken: u32, touched: u32, reason: Reason) -> Result<(), Violation> {
        let Some(s) = self.find(id) else { return Ok(()) };
        let is_first = !s.out.is_refused();
        self.kept -= s.out.on_nack(taken, touched)?;
        if is_first {
            self.events.push_back(Event::Refused(id, reason));
        }
        Ok(())
    }

    /// A packet with this in it came.
    #[inline]
    pub fn on_came(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Records(id, run) => {
                if let Some(s) = self.find(id) {
                    s.out.on_acked(run);
                }
            }
            SentFrame::Nack(id) => self.list.retain(|s| s.id != id),
            SentFrame::Taken(_) => {}
        }
    }

    /// A packet with this in it was lost.
    pub fn on_lost(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Records(id, run) => {
                if let Some(s) = self.find(id) {
                    s.out.on_lost(run);
                    self.queue(id);
                }
            }
            SentFrame::Taken(id) => self.tell(id),
            SentFrame::Nack(id) => {
                self.tell(id);
                self.is_urgent = true;
            }
        }
    }

    /// Writes what the peer is to be told of streams. Calls `note` for each word.
    pub fn write_words(&mut self, writer: &mut Writer<'_>, mut note: impl FnMut(SentFrame)) {
        while let Some(&id) = self.words.front() {
            if let Some(s) = self.any(id) {
                let (is_written, sent) = match s.last_word {
                    Some(LastWord { taken, touched, reason }) => {
                        let (taken, touched) = (taken as u32, touched as u32);
                        (writer.push(&Frame::Nack { stream: id, taken, touched, reason }), SentFrame::Nack(id))
                    }
                    None => {
                        let (taken, limit) = s.tell();
                        (writer.push_taken(id, taken as u32, limit as u32), SentFrame::Taken(id))
                    }
                };
                if !is_written {
                    return;
                }
                s.is_telling = false;
                note(sent);
            }
            self.words.pop_front();
        }
        self.is_urgent = false;
    }

    /// Fills the packet with records, from each stream in turn. Calls `note` for each run.
    #[inline]
    pub fn write_records(&mut self, writer: &mut Writer<'_>, mut note: impl FnMut(SentFrame)) {
        while let Some(&id) = self.runs.front() {
            let room = writer.room();
            if room < SCRAP && !writer.is_empty() {
                return;
            }
            self.runs.pop_front();
            let Some(s) = self.find(id) else { continue };
            s.is_queued = false;
            let Some(run) = s.out.next_run(room - RECORDS_HEADER) else { continue };
            let is_written = writer.push_records(id, run.from as u32, s.out.slices(run));
            assert!(is_written, "a run of at most the room there was");
            note(SentFrame::Records(id, run));
            self.queue(id);
        }
    }

    /// Whether the stream whose turn it is may have packets of so many bytes that lie ready: most have few bytes, which are laid out for
    /// no packets.
    #[inline]
    pub fn may_lie_ready(&mut self, packet: usize) -> bool {
        let Some(&id) = self.runs.front() else { return false };
        self.find(id).is_some_and(|s| s.out.may_lie_ready(packet))
    }

    /// The stream whose turn it is, and its packets that lie ready: at most so many of so many bytes, if there is room for much.
    #[inline]
    pub fn ready(&mut self, most: usize, packet: usize, room: u64) -> Option<(StreamId, Ready)> {
        let &id = self.runs.front()?;
        Some((id, self.find(id)?.out.ready(most, packet, room)?))
    }

    /// Takes the next of them.
    #[inline]
    pub fn next_ready(&mut self, id: StreamId) -> Option<(Run, Whole<'_>)> {
        self.find(id)?.out.next_ready()
    }

    /// What was made of them; then it is another stream's turn.
    #[inline]
    pub fn end_turn(&mut self, id: StreamId, range: Range<usize>) -> &[u8] {
        self.runs.pop_front();
        if let Some(s) = self.find(id) {
            s.is_queued = false;
        }
        self.queue(id);
        self.find(id).map_or(&[], |s| s.out.packets(range))
    }

    /// Whether what goes next lies ready, and is much.
    #[inline]
    pub fn has_ready(&mut self, room: u64) -> bool {
        self.runs.front().copied().and_then(|id| self.find(id)).is_some_and(|s| s.out.has_ready(room))
    }

    /// Whether a stream has something to transmit.
    #[inline]
    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Whether the peer is to be told something of a stream.
    #[inline]
    pub fn has_words(&self) -> bool {
        !self.words.is_empty()
    }

    /// Whether that cannot wait.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.is_urgent && self.has_words()
    }

    /// Whether a stream was closed whose peer was not told.
    pub fn has_nacks(&self) -> bool {
        self.is_urgent()
    }

    /// Whether the peer has not surely taken everything.
    #[inline]
    pub fn has_kept(&self) -> bool {
        self.kept > 0
    }

    /// Whether there are records that were not sent to their end.
    pub fn has_unsent(&self) -> bool {
        self.list.iter().any(|s| s.last_word.is_none() && s.out.has_unsent())
    }

    /// How far a stream was written and taken.
    pub fn traffic(&mut self, id: StreamId) -> Traffic {
        self.find(id).map_or_else(Traffic::default, |s| s.out.traffic())
    }

    /// Whether more of a stream would be sent if the peer had room for it.
    pub fn waits_for_peer(&mut self, id: StreamId) -> bool {
        self.find(id).is_some_and(|s| s.out.waits_for_peer())
    }

    pub fn memory(&self) -> usize {
        let each: usize = self.list.iter().map(|s| s.out.memory() + s.inc.as_ref().map_or(0, |inc| inc.memory())).sum();
        each + self.list.capacity() * std::mem::size_of::<Stream<M>>()
            + (self.runs.capacity() + self.words.capacity()) * std::mem::size_of::<StreamId>()
            + self.events.capacity() * std::mem::size_of::<Event>()
    }

    /// Notes that records were taken.
    fn tell_taken(&mut self, id: StreamId) {
        self.tell(id);
        self.is_urgent |= self.find(id).and_then(|s| s.inc.as_ref()).is_some_and(|inc| inc.is_urgent());
    }

    fn tell(&mut self, id: StreamId) {
        if let Some(s) = self.any(id).filter(|s| !s.is_telling) {
            s.is_telling = true;
            self.words.push_back(id);
        }
    }

    #[inline]
    fn queue(&mut self, id: StreamId) {
        if let Some(s) = self.find(id).filter(|s| !s.is_queued && s.out.has_run()) {
            s.is_queued = true;
            self.runs.push_back(id);
        }
    }

    /// A stream that is open.
    #[inline]
    fn find(&mut self, id: StreamId) -> Option<&mut Stream<M>> {
        self.any(id).filter(|s| s.last_word.is_none())
    }

    /// A stream that is open, or whose last word is not acknowledged.
    #[inline]
    fn any(&mut self, id: StreamId) -> Option<&mut Stream<M>> {
        if self.list.get(self.last).is_none_or(|s| s.id != id) {
            self.last = self.list.binary_search_by_key(&id, |s| s.id).ok()?;
        }
        self.list.get_mut(self.last)
    }
}
