//! A program's side of weftd: the endpoints that a bundle has there, and the lines that join them with others. A value that is polled; it
//! uses no operating system. `docs/design/weftd.md` has the design, [`weft_wire::segment`] the memory.
//!
//! ```text
//! look()         takes what the daemon stored: words about lines, and which lines have records
//! poll_event()   until there is none; then the bundle is polled, and both again while records came
//! tell_all()     before the bundle sleeps
//! ```
//!
//! A line is the path of a session. Its writing end keeps what it sent until the peer has taken it: to send it again if it was refused for
//! now, and to give it back if the line ends.

mod area;
mod path;
mod sessions;

pub use path::{PortRx, PortTx};
pub use sessions::{Allocated, PortSessions};

use area::{blocks, Area, Blocks};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::DerefMut;
use std::rc::Rc;
use weft_wire::attach::{Answer, Request, OPENED_BYTES};
use weft_wire::descriptor::{
    contents, contents_bytes, is_inline, lap_at, pack, pack_inline, put_contents, units, Descriptor, LineId, Place,
    Said, Words, INLINE_WORDS, UNIT,
};
use weft_wire::frame::stream_bytes;
use weft_wire::path::{Abandoned, Fate, PushError, Traffic};
use weft_wire::segment::{Cursor, Part, Segment, TO_DAEMON, TO_PROGRAM};
use weft_wire::{Head, HeadWords, Kind, Name, Reason, MAX_ARGS, MAX_PAYLOAD};

/// Requests that wait for their answers, at most.
const REQUESTS_MOST: usize = 16;

/// Words of bells that are looked at in a turn.
const BELLS: u32 = 64;

/// What a port stands on.
pub trait Platform {
    /// The memory that is shared with the daemon.
    type Segment: Segment;
    /// That memory.
    fn segment(&self) -> &Self::Segment;
    /// The number of the daemon's sleep, or 0 while it is awake. Called behind [`Segment::light_barrier`].
    fn daemon_sleeps(&self) -> u64;
    /// Wakes the daemon. Does not block.
    fn wake_daemon(&self);
}

/// For use within one thread.
impl<P: Platform> PortHandle for Rc<RefCell<Port<P>>> {
    type Platform = P;
    type Use<'a>
        = RefMut<'a, Port<P>>
    where
        P: 'a;

    fn borrow_mut(&self) -> RefMut<'_, Port<P>> {
        RefCell::borrow_mut(self)
    }
}

/// A handle to a port, by which the home and the ends of lines share it.
pub trait PortHandle: Clone {
    /// What it stands on.
    type Platform: Platform;
    /// Access to the port, until dropped.
    type Use<'a>: DerefMut<Target = Port<Self::Platform>>
    where
        Self: 'a;

    /// Gets access to the port. Only one access may exist at a time.
    fn borrow_mut(&self) -> Self::Use<'_>;
}

/// What the daemon said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// A peer of this name opened a line to the endpoint of this part.
    Opened(LineId, u32, Name),
    /// A record lies at the head of an endpoint's ring: of this line.
    Readable(LineId),
    /// The line has ended.
    Ended(LineId, Reason),
    /// The answer to a request.
    Answered(u16, Answer),
    /// The daemon wrote what none writes, so nothing more of it is read.
    Broken,
}

/// An endpoint at the daemon.
#[derive(Debug)]
struct PartPort {
    part: Part,
    /// Descriptors stored in the send ring, and taken from there as far as is known.
    sent: u64,
    sent_known: u64,
    /// Descriptors taken from the receive ring.
    received: u64,
    /// Units read of the receive area.
    read: u64,
    area: Area,
    /// The record at the head of the receive ring: its words. Its line was told of.
    head: Option<Words>,
    /// Lines of which the daemon is to be told how far they were read.
    owing: Vec<LineId>,
}

/// A record that was sent, and that the peer has not surely taken.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Where it ends.
    end: Place,
    head: HeadWords,
    /// Its contents, if they lie in the descriptor.
    contents: [u64; INLINE_WORDS],
    /// The blocks with its contents, if not.
    blocks: Option<Blocks>,
    /// Where its descriptor lies in the send ring.
    position: u64,
}

/// How a line stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Records go.
    Open,
    /// Records were refused for now, those kept from this place on.
    Refused(Place),
    /// They are to be sent again from this place on, when the ring has room to say so.
    Ready(Place),
    /// They are sent again: those kept before this place were.
    Again(Place),
    /// It has ended: up to this place records were handed to the peer.
    Ended(Place),
}

#[derive(Debug)]
struct Line {
    part: u32,
    stage: Stage,
    /// What was sent, and taken by the peer.
    sent: Place,
    taken: Place,
    kept: VecDeque<Kept>,
    /// Blocks of the send area in use by it.
    blocks: u32,
    /// What was read, what the daemon was told of that, and how many records it was not told of.
    got: Place,
    told: Place,
    untold: u32,
    is_owing: bool,
    /// The daemon was told that it is used no more, or is to be told when there is room.
    is_left: bool,
    owes_leave: Option<Reason>,
    /// The daemon has said that it ended.
    has_ended: bool,
    traffic: Traffic,
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    blocks: Option<Blocks>,
    is_answered: bool,
}

/// The endpoints and lines of an attachment.
#[derive(Debug)]
pub struct Port<P> {
    platform: P,
    /// By number; the first is the system endpoint's.
    parts: Vec<Option<PartPort>>,
    lines: Vec<Option<Line>>,
    asked: [Option<Asked>; REQUESTS_MOST + 1],
    events: VecDeque<PortEvent>,
    /// Lines that go on when their ring has room: sending again, or leaving.
    unfinished: VecDeque<LineId>,
    /// The daemon's sleep that it was last woken from.
    woken: u64,
    is_broken: bool,
    /// Buffers that are used again.
    rung: Vec<u32>,
    packed: Vec<u8>,
}

impl<P: Platform> Port<P> {
    /// A port with the system endpoint alone, whose part is this.
    pub fn new(platform: P, system: Part) -> Port<P> {
        Port {
            platform,
            parts: vec![Some(PartPort::new(system))],
            lines: Vec::new(),
            asked: [None; REQUESTS_MOST + 1],
            events: VecDeque::new(),
            unfinished: VecDeque::new(),
            woken: 0,
            is_broken: false,
            rung: Vec::new(),
            packed: Vec::new(),
        }
    }

    /// What it stands on.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Takes what the daemon stored. One load if it stored nothing.
    #[inline]
    pub fn look(&mut self) {
        let mut rung = std::mem::take(&mut self.rung);
        self.platform.segment().collect(TO_PROGRAM, BELLS, |part| rung.push(part));
        for part in rung.drain(..) {
            self.advance(part);
        }
        self.rung = rung;
        if !self.unfinished.is_empty() {
            self.go_on();
        }
    }

    /// What happened, oldest first.
    #[inline]
    pub fn poll_event(&mut self) -> Option<PortEvent> {
        self.events.pop_front()
    }

    /// Whether something is to be done that no bell tells of.
    pub fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty() || !self.events.is_empty()
    }

    /// Puts events back that were taken too early, in front of all others.
    fn put_back(&mut self, events: VecDeque<PortEvent>) {
        events.into_iter().rev().for_each(|event| self.events.push_front(event));
    }

    /// Whether the daemon has taken all that was sent, and has refused nothing of it.
    pub fn is_handed_over(&mut self) -> bool {
        let segment = self.platform.segment();
        let has_taken = |part: &PartPort| segment.cursor(part.part.there(Cursor::Taken)) == part.sent;
        let is_over = |line: &Line| matches!(line.stage, Stage::Open | Stage::Ended(_));
        self.parts.iter().flatten().all(has_taken) && self.lines.iter().flatten().all(is_over)
    }

    /// Whether the daemon has taken all that an endpoint sent.
    fn has_taken_all(&self, number: u32) -> bool {
        let part = self.parts.get(number as usize).and_then(Option::as_ref);
        part.is_none_or(|part| self.platform.segment().cursor(part.part.there(Cursor::Taken)) == part.sent)
    }

    /// The same, and it has refused nothing of that, nor has it to say so, and all that it said to the endpoint was heard.
    fn is_at_rest(&self, number: u32) -> bool {
        let Some(part) = self.parts.get(number as usize).and_then(Option::as_ref) else { return true };
        let segment = self.platform.segment();
        let lap = lap_at(part.received, part.part.sizes.ring_order);
        let is_over = |line: &Line| line.part != number || matches!(line.stage, Stage::Open | Stage::Ended(_));
        // In this order: what it has to say of what it took is in the ring, or it wants room.
        self.has_taken_all(number)
            && segment.cursor(part.part.there(Cursor::WantsRoom)) == 0
            && segment.look(part.part.received(part.received), lap).is_none()
            && part.head.is_none()
            && self.events.is_empty()
            && self.lines.iter().flatten().all(is_over)
    }

    /// Messages that the daemon has refused for now, or not taken.
    pub fn unsent(&mut self) -> u64 {
        let mut unsent = 0;
        for entry in self.lines.iter().flatten() {
            let Some(part) = self.parts.get(entry.part as usize).and_then(Option::as_ref) else { continue };
            let taken = self.platform.segment().cursor(part.part.there(Cursor::Taken));
            let from = match entry.stage {
                Stage::Refused(from) | Stage::Ready(from) | Stage::Again(from) => Some(from),
                _ => None,
            };
            let is_refused =
                |kept: &&Kept| from.is_some_and(|from| kept.end.since(entry.taken) > from.since(entry.taken));
            let those = entry.kept.iter().filter(|kept| kept.position >= taken || is_refused(kept));
            unsent += those.filter(|kept| kept.head.kind().is_message()).count() as u64;
        }
        unsent
    }

    /// Asks the daemon for something. Returns the number of the request, which its answer has. `None` if too many wait.
    pub fn ask(&mut self, request: &Request) -> Option<u16> {
        let slot = self.asked.iter().take(REQUESTS_MOST).position(Option::is_none)?;
        self.ask_in(slot, request)
    }

    /// The same for a request that the caller waits for, and hears no answer to others meanwhile: there is a place for one of them.
    pub fn ask_and_wait(&mut self, request: &Request) -> Option<u16> {
        let slot = self.asked.iter().rposition(Option::is_none)?;
        self.ask_in(slot, request)
    }

    fn ask_in(&mut self, slot: usize, request: &Request) -> Option<u16> {
        let system = self.parts[0].as_mut()?;
        if !system.has_place(self.platform.segment()) {
            return None;
        }
        let segment = self.platform.segment();
        let asked = request.with(|op, args, payload| {
            let head = Head {
                op,
                slot: slot as u16,
                args: args.len() as u8,
                len: payload.len() as u32,
                ..Head::new(Kind::Request)
            };
            let (contents, blocks) = match pack_inline(args, payload) {
                Some(contents) => (contents, None),
                None => {
                    pack(args, payload, &mut self.packed);
                    let blocks = system.area.take(blocks(self.packed.len()))?;
                    segment.write(system.part.send_area() + blocks.at() as usize * UNIT, &self.packed);
                    ([0; INLINE_WORDS], Some(blocks))
                }
            };
            let at = blocks.map_or(0, Blocks::at);
            let said = Said::Record(head.into());
            system.publish(segment, Descriptor { line: LineId::SYSTEM, taken: Place::default(), at, said }, contents);
            Some(Asked { blocks, is_answered: false })
        })?;
        self.asked[slot] = Some(asked);
        self.ring(0);
        Some(slot as u16)
    }

    /// The answer to a request was heard: another one may have its number.
    fn end_request(&mut self, slot: u16) {
        if let Some(asked) = self.asked.get_mut(usize::from(slot)) {
            *asked = None;
        }
    }

    /// An endpoint was made: its part. Takes what the daemon stored there already.
    pub fn add_part(&mut self, number: u32, part: Part) {
        let at = number as usize;
        if self.parts.len() <= at {
            self.parts.resize_with(at + 1, || None);
        }
        self.parts[at] = Some(PartPort::new(part));
        // Its bell may have been taken together with that of the answer: peers know the name of an endpoint that is made again.
        self.advance(number);
    }

    /// An endpoint is freed. Its lines are used no more.
    pub fn remove_part(&mut self, number: u32) {
        if let Some(part) = self.parts.get_mut(number as usize) {
            *part = None;
        }
        for line in self.lines.iter_mut().filter(|line| line.as_ref().is_some_and(|line| line.part == number)) {
            *line = None;
        }
    }

    /// A line of an endpoint, which the daemon gave a number.
    pub fn add_line(&mut self, line: LineId, part: u32) {
        let at = line.0 as usize;
        if self.lines.len() <= at {
            self.lines.resize_with(at + 1, || None);
        }
        self.lines[at] = Some(Line {
            part,
            stage: Stage::Open,
            sent: Place::default(),
            taken: Place::default(),
            kept: VecDeque::new(),
            blocks: 0,
            got: Place::default(),
            told: Place::default(),
            untold: 0,
            is_owing: false,
            is_left: false,
            owes_leave: None,
            has_ended: false,
            traffic: Traffic::default(),
        });
    }

    // ---- a line's writing end

    /// Sends a record by a line, and keeps it.
    #[inline]
    pub fn push(&mut self, line: LineId, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD {
            return Err(PushError::TooLarge);
        }
        let segment = self.platform.segment();
        let entry = line_mut(&mut self.lines, line).ok_or(PushError::Gone)?;
        match entry.stage {
            Stage::Open => {}
            Stage::Refused(_) | Stage::Ready(_) | Stage::Again(_) => return Err(PushError::Full),
            Stage::Ended(_) => return Err(PushError::Gone),
        }
        let number = entry.part;
        let part = self.parts.get_mut(number as usize).and_then(Option::as_mut).ok_or(PushError::Gone)?;
        if entry.kept.len() >= part.window() || !part.has_place(segment) {
            return Err(PushError::Full);
        }
        let head = HeadWords::from(Head { args: args.len() as u8, len: payload.len() as u32, ..head });
        let (contents, taken_blocks) = match pack_inline(args, payload) {
            Some(contents) => (contents, None),
            None => {
                let count = blocks(contents_bytes(head));
                // A line may have as much as it leaves free, so that the next one finds something.
                let is_share = entry.blocks == 0 || entry.blocks + count <= part.area.free().saturating_sub(count);
                let found = if is_share { part.area.take(count) } else { None }.ok_or(PushError::Full)?;
                pack(args, payload, &mut self.packed);
                segment.write(part.part.send_area() + found.at() as usize * UNIT, &self.packed);
                entry.blocks += count;
                ([0; INLINE_WORDS], Some(found))
            }
        };
        entry.sent = entry.sent.plus(stream_bytes(head.args(), head.len()) as u32);
        entry.traffic.pushed += stream_bytes(head.args(), head.len()) as u64;
        let kept = Kept { end: entry.sent, head, contents, blocks: taken_blocks, position: part.sent };
        entry.kept.push_back(kept);
        publish_kept(part, segment, line, entry, &kept);
        self.ring(number);
        Ok(())
    }

    /// Whether a record of so many bytes of contents would be taken now.
    pub fn has_room(&mut self, line: LineId, bytes: usize) -> bool {
        let Some(entry) = line_mut(&mut self.lines, line).filter(|entry| entry.stage == Stage::Open) else {
            return false;
        };
        let Some(part) = self.parts.get_mut(entry.part as usize).and_then(Option::as_mut) else { return false };
        let count = blocks(bytes);
        entry.kept.len() < part.window()
            && part.has_place(self.platform.segment())
            && (entry.blocks == 0 || entry.blocks + count <= part.area.free().saturating_sub(count))
            && count <= part.area.free()
    }

    /// Gives back the records that the peer has not surely taken, oldest first, and leaves the line.
    pub fn take_abandoned(&mut self, line: LineId) -> Vec<Abandoned> {
        let segment = self.platform.segment();
        let Some(entry) = line_mut(&mut self.lines, line) else { return Vec::new() };
        let Some(part) = self.parts.get_mut(entry.part as usize).and_then(Option::as_mut) else { return Vec::new() };
        let touched = match entry.stage {
            Stage::Ended(touched) => touched,
            // Those that were refused are not sent again, and of the others nobody knows how far they got.
            Stage::Refused(from) | Stage::Ready(from) | Stage::Again(from) => from,
            Stage::Open => entry.sent,
        };
        let mut abandoned = Vec::new();
        let mut packed = std::mem::take(&mut self.packed);
        for kept in std::mem::take(&mut entry.kept) {
            let begin = Place(kept.end.0.wrapping_sub(kept.bytes()));
            let is_untouched = begin.since(entry.taken) >= touched.since(entry.taken);
            match kept.blocks {
                None => {
                    packed.clear();
                    packed.extend(kept.contents.iter().flat_map(|word| word.to_le_bytes()));
                }
                Some(blocks) => {
                    let at = part.part.send_area() + blocks.at() as usize * UNIT;
                    segment.read(at, contents_bytes(kept.head), &mut packed);
                    part.area.give_back(blocks);
                }
            }
            let (args, payload) = unpack(kept.head, &packed);
            let fate = if is_untouched { Fate::Untouched } else { Fate::InHand };
            abandoned.push(Abandoned { head: kept.head.head(), args, payload, fate });
        }
        entry.blocks = 0;
        self.packed = packed;
        self.leave(line, Reason::PeerLost);
        abandoned
    }

    /// How far a line was written, and read by the peer.
    pub fn traffic(&self, line: LineId) -> Traffic {
        let entry = self.lines.get(line.0 as usize).and_then(Option::as_ref);
        entry.map_or_else(Traffic::default, |entry| entry.traffic)
    }

    /// The program uses a line no more. Nothing of what it holds is given back.
    pub fn leave(&mut self, line: LineId, reason: Reason) {
        let Some(entry) = line_mut(&mut self.lines, line) else { return };
        if std::mem::replace(&mut entry.is_left, true) {
            return;
        }
        entry.owes_leave = Some(reason);
        let number = entry.part;
        if let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) {
            // The records that it has not read are nobody's any more.
            let is_of_line = |words: &Words| Descriptor::check(words).is_ok_and(|descriptor| descriptor.line == line);
            if let Some(Ok(descriptor)) =
                part.head.take_if(|head| is_of_line(head)).map(|head| Descriptor::check(&head))
            {
                part.drop_record(self.platform.segment(), &descriptor);
                self.advance(number);
            }
        }
        self.finish(line);
    }

    /// The daemon has ended. What it did not look at was not delivered; of the rest nobody knows.
    pub fn daemon_ended(&mut self) {
        for entry in self.lines.iter_mut().flatten() {
            let Some(part) = self.parts.get(entry.part as usize).and_then(Option::as_ref) else { continue };
            // The first one that it has not taken may have been in its hands.
            let claimed = self.platform.segment().cursor(part.part.there(Cursor::Taken)).saturating_add(1);
            let begin = |kept: &Kept| Place(kept.end.0.wrapping_sub(kept.bytes()));
            let mut touched = entry.kept.iter().find(|kept| kept.position >= claimed).map_or(entry.sent, begin);
            if let Stage::Refused(from) | Stage::Ready(from) | Stage::Again(from) = entry.stage {
                if from.since(entry.taken) < touched.since(entry.taken) {
                    touched = from;
                }
            }
            if !matches!(entry.stage, Stage::Ended(_)) {
                entry.stage = Stage::Ended(touched);
            }
        }
    }

    // ---- a line's reading end

    /// Copies the record at the head of the ring out, if it is of this line.
    #[inline]
    fn read(&mut self, line: LineId, args: &mut [u32; MAX_ARGS], payload: &mut Vec<u8>) -> Option<HeadWords> {
        let entry = line_mut(&mut self.lines, line)?;
        let part = self.parts.get_mut(entry.part as usize)?.as_mut()?;
        let words = part.head.as_ref()?;
        let Ok(Descriptor { line: of, at, said: Said::Record(head), .. }) = Descriptor::check(words) else {
            return None;
        };
        if of != line {
            return None;
        }
        let segment = self.platform.segment();
        segment.set_cursor(part.part.here(Cursor::Claimed), part.received + 1);
        let bytes = contents_bytes(head);
        let packed = &mut self.packed;
        if is_inline(head) {
            packed.clear();
            packed.extend(contents(words).iter().flat_map(|word| word.to_le_bytes()));
        } else {
            segment.read(part.part.receive_area() + at as usize * UNIT, bytes, packed);
        }
        for (arg, bytes) in args[..head.args()].iter_mut().zip(packed.chunks_exact(4)) {
            *arg = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let begin = bytes - head.len();
        payload.clear();
        payload.extend_from_slice(&packed[begin..bytes]);
        Some(head)
    }

    /// The record at the head of the ring was handled.
    #[inline]
    fn pop(&mut self, line: LineId) {
        let Some(entry) = line_mut(&mut self.lines, line) else { return };
        let number = entry.part;
        let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) else { return };
        let Some(words) = part.head.take() else { return };
        let Ok(Descriptor { said: Said::Record(head), at, .. }) = Descriptor::check(&words) else { return };
        let bytes = stream_bytes(head.args(), head.len()) as u32;
        entry.got = entry.got.plus(bytes);
        entry.untold += 1;
        if !std::mem::replace(&mut entry.is_owing, true) {
            part.owing.push(line);
        }
        if !is_inline(head) {
            part.note_read(at, units(contents_bytes(head)));
        }
        part.step(self.platform.segment());
        let is_due = entry.untold >= part.untold_most() || entry.got.since(entry.told) >= part.untold_bytes_most();
        if is_due {
            self.tell_taken(line);
        }
        self.advance(number);
    }

    /// A visit to a line's records is over.
    #[inline]
    fn release(&mut self, line: LineId) {
        let Some(part) = line_mut(&mut self.lines, line).map(|entry| entry.part) else { return };
        self.platform.segment().light_barrier();
        self.ring_for_room(part);
    }

    /// Tells the daemon of all that was read and that it does not know: before the bundle sleeps.
    pub fn tell_all(&mut self) {
        for number in 0..self.parts.len() {
            let Some(part) = self.parts[number].as_mut().filter(|part| !part.owing.is_empty()) else { continue };
            for line in std::mem::take(&mut part.owing) {
                if let Some(entry) = line_mut(&mut self.lines, line) {
                    entry.is_owing = false;
                }
                self.tell_taken(line);
            }
        }
    }

    fn tell_taken(&mut self, line: LineId) {
        let segment = self.platform.segment();
        let Some(entry) = line_mut(&mut self.lines, line).filter(|entry| !entry.is_left) else { return };
        if entry.got == entry.told {
            return;
        }
        let number = entry.part;
        let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) else { return };
        if !part.has_place(segment) {
            // With the next record, or when it is due again.
            if !std::mem::replace(&mut entry.is_owing, true) {
                part.owing.push(line);
            }
            return;
        }
        let said = Descriptor { line, taken: entry.tell(), at: 0, said: Said::Taken };
        part.publish(segment, said, [0; INLINE_WORDS]);
        self.ring(number);
    }

    // ---- inside

    /// Goes through what the daemon stored for an endpoint, up to the next record.
    fn advance(&mut self, number: u32) {
        let before = self.received(number);
        self.advance_to_record(number);
        if self.received(number) != before {
            self.platform.segment().light_barrier();
            self.ring_for_room(number);
        }
    }

    fn received(&self, number: u32) -> Option<u64> {
        Some(self.parts.get(number as usize)?.as_ref()?.received)
    }

    fn advance_to_record(&mut self, number: u32) {
        while !self.is_broken {
            let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) else { return };
            if part.head.is_some() {
                return;
            }
            let segment = self.platform.segment();
            let lap = lap_at(part.received, part.part.sizes.ring_order);
            let Some(words) = segment.look(part.part.received(part.received), lap) else { return };
            let Ok(descriptor) = Descriptor::check(&words) else { return self.break_off() };
            let Descriptor { line, taken, at, said } = descriptor;
            match said {
                Said::Record(head) if number == 0 => {
                    let packed: Vec<u8> = contents(&words).iter().flat_map(|word| word.to_le_bytes()).collect();
                    let (args, _) = unpack(head, &packed);
                    part.step(segment);
                    self.answered(head, &args);
                    continue;
                }
                Said::Record(_) => {
                    if line_mut(&mut self.lines, line).is_some_and(|entry| !entry.is_left) {
                        part.head = Some(words);
                        self.note_taken(line, taken);
                        self.events.push_back(PortEvent::Readable(line));
                        return;
                    }
                    // Nobody has the line any more.
                    part.drop_record(segment, &descriptor);
                    continue;
                }
                Said::Opened => {
                    let mut name = Vec::new();
                    segment.read(part.part.receive_area() + at as usize * UNIT, OPENED_BYTES, &mut name);
                    part.note_read(at, units(OPENED_BYTES));
                    let Ok(name) = Name::from_bytes(&name) else { return self.break_off() };
                    part.step(segment);
                    self.add_line(line, number);
                    self.events.push_back(PortEvent::Opened(line, number, name));
                    continue;
                }
                Said::Taken | Said::Again => self.note_taken(line, taken),
                Said::Refused { from, .. } => {
                    self.note_taken(line, taken);
                    if let Some(entry) = line_mut(&mut self.lines, line) {
                        entry.stage = Stage::Refused(from);
                    }
                }
                Said::Ready => {
                    self.note_taken(line, taken);
                    if let Some(entry) = line_mut(&mut self.lines, line) {
                        if let Stage::Refused(from) = entry.stage {
                            entry.stage = Stage::Ready(from);
                        }
                    }
                    self.send_again(line);
                }
                Said::Closed { reason, touched } => {
                    self.note_taken(line, taken);
                    self.ended(line, reason, touched);
                }
            }
            if let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) {
                part.step(self.platform.segment());
            }
        }
    }

    /// The peer has taken what a line sent up to a place: it is kept no more.
    fn note_taken(&mut self, line: LineId, taken: Place) {
        let Some(entry) = line_mut(&mut self.lines, line) else { return };
        if taken == entry.taken || !taken.is_between(entry.taken, entry.sent) {
            return;
        }
        entry.traffic.taken += u64::from(taken.since(entry.taken));
        let before = std::mem::replace(&mut entry.taken, taken);
        let Some(part) = self.parts.get_mut(entry.part as usize).and_then(Option::as_mut) else { return };
        while let Some(kept) = entry.kept.front().filter(|kept| kept.end.since(before) <= taken.since(before)) {
            if let Some(blocks) = kept.blocks {
                entry.blocks -= blocks.count();
                part.area.give_back(blocks);
            }
            entry.kept.pop_front();
        }
        if entry.kept.is_empty() && entry.kept.capacity() > 64 {
            entry.kept = VecDeque::new();
        }
    }

    fn answered(&mut self, head: HeadWords, args: &[u32]) {
        let slot = head.slot();
        let asked = self.asked.get_mut(usize::from(slot)).and_then(Option::as_mut).filter(|asked| !asked.is_answered);
        let (Some(asked), Ok(answer)) = (asked, Answer::from_record(head.op(), args)) else { return self.break_off() };
        asked.is_answered = true;
        if let (Some(blocks), Some(system)) = (asked.blocks.take(), self.parts[0].as_mut()) {
            system.area.give_back(blocks);
        }
        self.events.push_back(PortEvent::Answered(slot, answer));
    }

    fn ended(&mut self, line: LineId, reason: Reason, touched: Place) {
        let Some(entry) = line_mut(&mut self.lines, line) else { return };
        entry.has_ended = true;
        let touched = if touched.is_between(entry.taken, entry.sent) { touched } else { entry.sent };
        entry.stage = Stage::Ended(touched);
        if entry.is_left && entry.owes_leave.is_none() {
            self.lines[line.0 as usize] = None;
        } else if !entry.is_left {
            self.events.push_back(PortEvent::Ended(line, reason));
        }
    }

    /// What was refused goes again.
    fn send_again(&mut self, line: LineId) {
        // What is sent behind the end would break the protocol.
        let Some(entry) = line_mut(&mut self.lines, line).filter(|entry| !entry.is_left) else { return };
        let Stage::Ready(from) = entry.stage else { return };
        let segment = self.platform.segment();
        let Some(part) = self.parts.get_mut(entry.part as usize).and_then(Option::as_mut) else { return };
        if !part.has_place(segment) {
            return self.unfinished.push_back(line);
        }
        let again = Descriptor { line, taken: entry.tell(), at: 0, said: Said::Again };
        entry.stage = Stage::Again(from);
        let number = entry.part;
        part.publish(segment, again, [0; INLINE_WORDS]);
        self.ring(number);
        self.finish(line);
    }

    fn go_on(&mut self) {
        for _ in 0..self.unfinished.len() {
            let Some(line) = self.unfinished.pop_front() else { return };
            match line_mut(&mut self.lines, line).map(|entry| (entry.stage, entry.is_left)) {
                Some((Stage::Ready(_), false)) => self.send_again(line),
                Some(_) => self.finish(line),
                None => {}
            }
        }
    }

    /// Goes on with what a line has to say, as far as there is room.
    fn finish(&mut self, line: LineId) {
        let segment = self.platform.segment();
        let Some(entry) = line_mut(&mut self.lines, line) else { return };
        let number = entry.part;
        let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) else { return };
        let mut has_said = false;
        while let Some(from) = entry.sends_again_from() {
            // The first one that ends behind the place.
            let taken = entry.taken;
            let next = entry.kept.iter_mut().find(|kept| kept.end.since(taken) > from.since(taken));
            let Some(kept) = next else {
                entry.stage = Stage::Open;
                break;
            };
            if !part.has_place(segment) {
                break;
            }
            kept.position = part.sent;
            let kept = *kept;
            publish_kept(part, segment, line, entry, &kept);
            (entry.stage, has_said) = (Stage::Again(kept.end), true);
        }
        if let Some(reason) = entry.owes_leave {
            if part.has_place(segment) {
                let said = Said::Closed { reason, touched: entry.got };
                part.publish(segment, Descriptor { line, taken: entry.got, at: 0, said }, [0; INLINE_WORDS]);
                (entry.owes_leave, has_said) = (None, true);
            }
        }
        let is_through = entry.owes_leave.is_none() && entry.sends_again_from().is_none();
        if entry.has_ended && entry.is_left && entry.owes_leave.is_none() {
            self.lines[line.0 as usize] = None;
        } else if !is_through {
            self.unfinished.push_back(line);
        }
        if has_said {
            self.ring(number);
        }
    }

    #[cold]
    fn break_off(&mut self) {
        self.is_broken = true;
        self.events.push_back(PortEvent::Broken);
    }

    /// Tells the daemon that something lies in a part's send ring, or that there is room in its receive ring.
    #[inline(always)]
    fn ring(&mut self, part: u32) {
        let segment = self.platform.segment();
        segment.ring(TO_DAEMON, part);
        segment.light_barrier();
        let sleep = self.platform.daemon_sleeps();
        if sleep != 0 && self.woken != sleep {
            self.woken = sleep;
            self.platform.wake_daemon();
        }
    }

    /// The daemon asked to hear of room in a part's receive ring, and there is some.
    fn ring_for_room(&mut self, number: u32) {
        let wants = self
            .parts
            .get(number as usize)
            .and_then(Option::as_ref)
            .is_some_and(|part| self.platform.segment().cursor(part.part.there(Cursor::WantsRoom)) != 0);
        if wants {
            self.ring(number);
        }
    }
}

impl Line {
    /// How far it was read, which the daemon is told now.
    #[inline(always)]
    fn tell(&mut self) -> Place {
        (self.told, self.untold) = (self.got, 0);
        self.got
    }

    /// From where it is sent again now. Nothing is once it is left.
    fn sends_again_from(&self) -> Option<Place> {
        match self.stage {
            Stage::Again(from) if !self.is_left => Some(from),
            _ => None,
        }
    }
}

impl Kept {
    /// What it takes of the line.
    fn bytes(&self) -> u32 {
        stream_bytes(self.head.args(), self.head.len()) as u32
    }
}

impl PartPort {
    fn new(part: Part) -> PartPort {
        PartPort {
            part,
            sent: 0,
            sent_known: 0,
            received: 0,
            read: 0,
            area: Area::new(part.sizes.area_units()),
            head: None,
            owing: Vec::new(),
        }
    }

    /// Records that a line may have under way.
    fn window(&self) -> usize {
        self.part.sizes.ring() as usize / 2
    }

    /// Records of a line that may be read before the daemon is told, and bytes: a quarter of what it may have under way, if the peer's rings and
    /// areas are of the same sizes.
    fn untold_most(&self) -> u32 {
        self.part.sizes.ring() / 8
    }

    fn untold_bytes_most(&self) -> u32 {
        self.part.sizes.area_units() * UNIT as u32 / 8
    }

    /// Whether the send ring has a place.
    #[inline(always)]
    fn has_place(&mut self, segment: &impl Segment) -> bool {
        let ring = u64::from(self.part.sizes.ring());
        if self.sent - self.sent_known < ring {
            return true;
        }
        let taken = segment.cursor(self.part.there(Cursor::Taken));
        if (self.sent_known..=self.sent).contains(&taken) {
            self.sent_known = taken;
        }
        self.sent - self.sent_known < ring
    }

    /// Stores a descriptor, for which there is a place.
    #[inline(always)]
    fn publish(&mut self, segment: &impl Segment, descriptor: Descriptor, contents: [u64; INLINE_WORDS]) {
        let mut words = descriptor.words(lap_at(self.sent, self.part.sizes.ring_order));
        put_contents(&mut words, contents);
        segment.publish(self.part.sent(self.sent), &words);
        self.sent += 1;
    }

    /// Units of the receive area were read.
    fn note_read(&mut self, at: u32, count: u32) {
        let units = u64::from(self.part.sizes.area_units());
        let here = self.read % units;
        if u64::from(at) != here {
            // The daemon left out what was too short.
            self.read += units - here;
        }
        self.read += u64::from(count);
    }

    /// The record at the head of the receive ring is nobody's.
    fn drop_record(&mut self, segment: &impl Segment, descriptor: &Descriptor) {
        if let Said::Record(head) = descriptor.said {
            if !is_inline(head) {
                self.note_read(descriptor.at, units(contents_bytes(head)));
            }
        }
        self.step(segment);
    }

    /// The descriptor at the head of the receive ring was handled.
    #[inline(always)]
    fn step(&mut self, segment: &impl Segment) {
        self.received += 1;
        segment.set_cursor(self.part.here(Cursor::Read), self.read);
        segment.set_cursor(self.part.here(Cursor::Taken), self.received);
    }
}

#[inline(always)]
fn line_mut(lines: &mut [Option<Line>], line: LineId) -> Option<&mut Line> {
    lines.get_mut(line.0 as usize)?.as_mut()
}

/// Stores the descriptor of a record that is kept.
#[inline(always)]
fn publish_kept(part: &mut PartPort, segment: &impl Segment, line: LineId, entry: &mut Line, kept: &Kept) {
    let at = kept.blocks.map_or(0, Blocks::at);
    part.publish(segment, Descriptor { line, taken: entry.tell(), at, said: Said::Record(kept.head) }, kept.contents);
}

/// A record's arguments and payload, from its contents.
fn unpack(head: HeadWords, packed: &[u8]) -> (Vec<u32>, Vec<u8>) {
    let words = packed.chunks_exact(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let begin = contents_bytes(head) - head.len();
    let payload = packed.get(begin..begin + head.len()).unwrap_or_default();
    (words.take(head.args()).collect(), payload.to_vec())
}
