//! The program's side of weftd: the endpoints that a bundle has there, and the lines that connect them with others. A
//! value that is polled; it makes no system calls. `docs/design/weftd.md` has the design, [`weft_wire::segment`] the
//! memory.
//!
//! ```text
//! look()         takes what the daemon stored: reports about lines, and which lines have records
//! poll_event()   until there is none; then the bundle is polled, and both again while records arrive
//! tell_all()     before the bundle sleeps
//! ```
//!
//! A line is the path of a session. Its writing end keeps each record until the peer has taken it, to send it again if
//! it was refused for now, and to return it if the line ends.

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

/// The most requests that wait for answers.
const REQUESTS_MOST: usize = 16;

/// The most words of bells that are read in a turn.
const BELLS: u32 = 64;

/// The operating system under a port.
pub trait Platform {
    /// The memory that is shared with the daemon.
    type Segment: Segment;
    /// Returns that memory.
    fn segment(&self) -> &Self::Segment;
    /// The number of the daemon's current sleep, or 0 while it is awake. Called after [`Segment::light_barrier`].
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

/// A handle to a port, through which the home and the ends of lines share it.
pub trait PortHandle: Clone {
    /// Its platform.
    type Platform: Platform;
    /// Access to the port, until dropped.
    type Use<'a>: DerefMut<Target = Port<Self::Platform>>
    where
        Self: 'a;

    /// Gets access to the port. Only one access may exist at a time.
    fn borrow_mut(&self) -> Self::Use<'_>;
}

/// What the daemon reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// The peer with this name opened a line to the endpoint of this part.
    Opened(LineId, u32, Name),
    /// The record at the head of an endpoint's ring is of this line.
    Readable(LineId),
    /// The line has ended.
    Ended(LineId, Reason),
    /// The answer to a request.
    Answered(u16, Answer),
    /// The daemon broke the protocol, so nothing more of it is read.
    Broken,
}

/// An endpoint at the daemon.
#[derive(Debug)]
struct PartPort {
    part: Part,
    /// Descriptors stored in the send ring; and those known to be taken from it.
    sent: u64,
    sent_known: u64,
    /// Descriptors taken from the receive ring.
    received: u64,
    /// Units read of the receive area.
    read: u64,
    area: Area,
    /// The words of the record at the head of the receive ring, if an event reported it.
    head: Option<Words>,
    /// Lines for which the daemon has to be told how far they were read.
    owing: Vec<LineId>,
}

/// A record that was sent and that the peer may not have taken.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Where it ends.
    end: Place,
    head: HeadWords,
    /// Its contents, if they fit in the descriptor.
    contents: [u64; INLINE_WORDS],
    /// The blocks with its contents, if not.
    blocks: Option<Blocks>,
    /// Where its descriptor lies in the send ring.
    position: u64,
}

/// The state of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Records can be sent.
    Open,
    /// Records were refused for now: the kept ones from this place on.
    Refused(Place),
    /// Records have to be sent again from this place on, once the ring has room.
    Ready(Place),
    /// Records are being sent again; those before this place were.
    Again(Place),
    /// The line has ended; records up to this place were handed to the peer.
    Ended(Place),
}

#[derive(Debug)]
struct Line {
    part: u32,
    stage: Stage,
    /// How far it was sent, and taken by the peer.
    sent: Place,
    taken: Place,
    kept: VecDeque<Kept>,
    /// Blocks of the send area that it uses.
    blocks: u32,
    /// How far it was read, how far the daemon was told so, and the number of records it was not told of.
    got: Place,
    told: Place,
    untold: u32,
    is_owing: bool,
    /// The program has left it: the daemon was told, or has to be told when there is room.
    is_left: bool,
    owes_leave: Option<Reason>,
    /// The daemon has reported its end.
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
    /// Indexed by number; the first is the system endpoint's.
    parts: Vec<Option<PartPort>>,
    lines: Vec<Option<Line>>,
    asked: [Option<Asked>; REQUESTS_MOST + 1],
    events: VecDeque<PortEvent>,
    /// Lines that wait for room in their ring, to send again or to leave.
    unfinished: VecDeque<LineId>,
    /// The number of the sleep that the daemon was last woken from.
    woken: u64,
    is_broken: bool,
    /// Buffers that are used again.
    rung: Vec<u32>,
    packed: Vec<u8>,
}

impl<P: Platform> Port<P> {
    /// A port with only the system endpoint, which has the part `system`.
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

    /// Its platform.
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

    /// The next event, oldest first.
    #[inline]
    pub fn poll_event(&mut self) -> Option<PortEvent> {
        self.events.pop_front()
    }

    /// Whether there is work that no bell reports.
    pub fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty() || !self.events.is_empty()
    }

    /// Puts back events that were taken too early, before all others.
    fn put_back(&mut self, events: VecDeque<PortEvent>) {
        events.into_iter().rev().for_each(|event| self.events.push_front(event));
    }

    /// Whether the daemon has taken everything that was sent and refused none of it.
    pub fn is_handed_over(&mut self) -> bool {
        let segment = self.platform.segment();
        let has_taken = |part: &PartPort| segment.cursor(part.part.there(Cursor::Taken)) == part.sent;
        let is_over = |line: &Line| matches!(line.stage, Stage::Open | Stage::Ended(_));
        self.parts.iter().flatten().all(has_taken) && self.lines.iter().flatten().all(is_over)
    }

    /// Whether the daemon has taken everything that an endpoint sent.
    fn has_taken_all(&self, number: u32) -> bool {
        let part = self.parts.get(number as usize).and_then(Option::as_ref);
        part.is_none_or(|part| self.platform.segment().cursor(part.part.there(Cursor::Taken)) == part.sent)
    }

    /// Whether, in addition, the daemon has refused none of it and has no refusal left to report, and everything that
    /// it told the endpoint was handled.
    fn is_at_rest(&self, number: u32) -> bool {
        let Some(part) = self.parts.get(number as usize).and_then(Option::as_ref) else { return true };
        let segment = self.platform.segment();
        let lap = lap_at(part.received, part.part.sizes.ring_order);
        let is_over = |line: &Line| line.part != number || matches!(line.stage, Stage::Open | Stage::Ended(_));
        // The order matters: once the daemon has taken everything, its reports about that are in the ring, or it wants room.
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

    /// Sends the daemon a request. Returns its number, which the answer carries. `None` if too many requests wait.
    pub fn ask(&mut self, request: &Request) -> Option<u16> {
        let slot = self.asked.iter().take(REQUESTS_MOST).position(Option::is_none)?;
        self.ask_in(slot, request)
    }

    /// Like [`Port::ask`], for a request whose answer the caller waits for without handling others. One place is
    /// reserved for it.
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

    /// Frees the number of a request that was answered.
    fn end_request(&mut self, slot: u16) {
        if let Some(asked) = self.asked.get_mut(usize::from(slot)) {
            *asked = None;
        }
    }

    /// Adds the part of a new endpoint. Takes what the daemon already stored there.
    pub fn add_part(&mut self, number: u32, part: Part) {
        let at = number as usize;
        if self.parts.len() <= at {
            self.parts.resize_with(at + 1, || None);
        }
        self.parts[at] = Some(PartPort::new(part));
        // Its bell may have been collected together with that of the answer, because peers may already know the name of
        // an endpoint that is restored.
        self.advance(number);
    }

    /// Removes the part of a freed endpoint. Its lines are no longer used.
    pub fn remove_part(&mut self, number: u32) {
        if let Some(part) = self.parts.get_mut(number as usize) {
            *part = None;
        }
        for line in self.lines.iter_mut().filter(|line| line.as_ref().is_some_and(|line| line.part == number)) {
            *line = None;
        }
    }

    /// Adds a line of an endpoint. The daemon chose its number.
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

    /// Sends a record on a line, and keeps it.
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
                // A line may use at most as much as it leaves free, so that the next line finds some.
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

    /// Whether a record with `bytes` bytes of contents would be accepted now.
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

    /// Returns the records that the peer may not have taken, oldest first, and leaves the line.
    pub fn take_abandoned(&mut self, line: LineId) -> Vec<Abandoned> {
        let segment = self.platform.segment();
        let Some(entry) = line_mut(&mut self.lines, line) else { return Vec::new() };
        let Some(part) = self.parts.get_mut(entry.part as usize).and_then(Option::as_mut) else { return Vec::new() };
        let touched = match entry.stage {
            Stage::Ended(touched) => touched,
            // Refused records are not sent again. The fate of the others is unknown.
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

    /// The program stops using a line. Kept records are dropped, not returned.
    pub fn leave(&mut self, line: LineId, reason: Reason) {
        let Some(entry) = line_mut(&mut self.lines, line) else { return };
        if std::mem::replace(&mut entry.is_left, true) {
            return;
        }
        entry.owes_leave = Some(reason);
        let number = entry.part;
        if let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) {
            // Records of the line that were not read are dropped.
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

    /// The daemon has ended. Records that it did not look at were not delivered; the fate of the others is unknown.
    pub fn daemon_ended(&mut self) {
        for entry in self.lines.iter_mut().flatten() {
            let Some(part) = self.parts.get(entry.part as usize).and_then(Option::as_ref) else { continue };
            // It may have begun with the first record that it has not taken.
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

    /// Drops the record at the head of the ring after it was handled.
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

    /// Ends a visit to a line's records.
    #[inline]
    fn release(&mut self, line: LineId) {
        let Some(part) = line_mut(&mut self.lines, line).map(|entry| entry.part) else { return };
        self.platform.segment().light_barrier();
        self.ring_for_room(part);
    }

    /// Tells the daemon of everything that was read. Call it before the bundle sleeps.
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
            // Told with the next record, or when it is due again.
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

    /// Handles what the daemon stored for an endpoint, up to the next record.
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
                    // The line is no longer used.
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

    /// Forgets kept records up to a place, because the peer has taken them.
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

    /// Begins to send refused records again.
    fn send_again(&mut self, line: LineId) {
        // Sending after the end would break the protocol.
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

    /// Sends what a line still has to send, as far as there is room.
    fn finish(&mut self, line: LineId) {
        let segment = self.platform.segment();
        let Some(entry) = line_mut(&mut self.lines, line) else { return };
        let number = entry.part;
        let Some(part) = self.parts.get_mut(number as usize).and_then(Option::as_mut) else { return };
        let mut has_said = false;
        while let Some(from) = entry.sends_again_from() {
            // The first record that ends after the place.
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

    /// Rings if the daemon asked to be told of room in a part's receive ring and there is some.
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
    /// Returns how far it was read, and notes that the daemon is told so.
    #[inline(always)]
    fn tell(&mut self) -> Place {
        (self.told, self.untold) = (self.got, 0);
        self.got
    }

    /// The place from which it is being sent again, unless the line was left.
    fn sends_again_from(&self) -> Option<Place> {
        match self.stage {
            Stage::Again(from) if !self.is_left => Some(from),
            _ => None,
        }
    }
}

impl Kept {
    /// The bytes that it takes of the line.
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

    /// The most records that a line may have in flight.
    fn window(&self) -> usize {
        self.part.sizes.ring() as usize / 2
    }

    /// The records, and bytes, of a line that may be read before the daemon is told: a quarter of its window, if the
    /// peer's rings and areas have the same sizes.
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

    /// Stores a descriptor. The caller has checked that there is a place.
    #[inline(always)]
    fn publish(&mut self, segment: &impl Segment, descriptor: Descriptor, contents: [u64; INLINE_WORDS]) {
        let mut words = descriptor.words(lap_at(self.sent, self.part.sizes.ring_order));
        put_contents(&mut words, contents);
        segment.publish(self.part.sent(self.sent), &words);
        self.sent += 1;
    }

    /// Notes that units of the receive area were read.
    fn note_read(&mut self, at: u32, count: u32) {
        let units = u64::from(self.part.sizes.area_units());
        let here = self.read % units;
        if u64::from(at) != here {
            // The daemon skipped the rest of the area, which was too short.
            self.read += units - here;
        }
        self.read += u64::from(count);
    }

    /// Drops the record at the head of the receive ring, which nobody wants.
    fn drop_record(&mut self, segment: &impl Segment, descriptor: &Descriptor) {
        if let Said::Record(head) = descriptor.said {
            if !is_inline(head) {
                self.note_read(descriptor.at, units(contents_bytes(head)));
            }
        }
        self.step(segment);
    }

    /// Removes the descriptor at the head of the receive ring after it was handled.
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

/// Stores the descriptor of a kept record.
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
