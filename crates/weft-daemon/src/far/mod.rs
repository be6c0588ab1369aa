//! Other hosts: lines whose other end is a stream of the network interface.
//!
//! A stream joins two endpoints, as a line does. Arrivals stay in the interface until the endpoint is resident and has room, so a full
//! stream holds up only its own sender. When much from one host waits, the streams of endpoints that take nothing are paused, and little or
//! nothing is kept of them.

mod come;
mod ends;
mod go;
mod opened;

use self::opened::Opened;
use crate::deliver::NotNow;
use crate::engine::Engine;
use crate::lines::{Line, LineRef, Marks, Peer};
use crate::quota::{Quota, Share};
use crate::rows::RowId;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use weft_core::ni::{HostId, HostKey, Link, Ni, NiEvent};
use weft_core::Admitted;
use weft_transport::{Incoming, Time};
use weft_wire::descriptor::{units, Place};
use weft_wire::frame::{stream_bytes, StreamId, FIRST_OFFSET};
use weft_wire::path::{Abandoned, Fate, Peek, PushError};
use weft_wire::segment::Segment;
use weft_wire::setup::{Open, OPEN_ARGS};
use weft_wire::{EndpointId, Epoch, HeadWords, Name, Reason, Uid, MAX_ARGS};

/// Waiting streams and endpoints that are checked in a turn.
const LOOKS: usize = 64;

/// Hosts that were called and have not answered, at most. Users share this number.
const CALLING_MOST: u64 = 256;

/// Streams without a line, because their endpoint has no room. They are paused. Users share this number; further streams are refused.
const STRANGE_MOST: u64 = 2048;

/// Records taken from one stream before the next stream of the endpoint has its turn.
const SHARE: u32 = 4;

/// Bytes that a daemon keeps of what one host sent and nobody took: `held_most` of its network interface.
pub const HELD_MOST: u32 = 4 << 20;

/// Bytes that are kept of a stream paused because its endpoint is full, if its host does not have too much already.
const KEEP: u32 = 64 << 10;

/// A user's bytes under way are counted in chunks of this size. The first chunk of each line may be free: most lines need no other.
const CHUNK: u32 = 16 << 10;

/// Lines that may send again at a time, when their users' bytes under way drop.
const READIES: usize = 8;

/// Paused streams of an endpoint that go on at a time.
const RESUMES: usize = 8;

/// How long a stream delivers what an endpoint sent, after the endpoint is gone.
const LEAVE_MOST: Duration = Duration::from_secs(3);

/// Time between two checks for hosts that are gone.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// Time between two checks for unused hosts. A host without a line at two of them is closed.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A program learns that bytes were taken once there are so many, if more are under way.
const TELL_FROM: u32 = 1 << 14;

/// Bytes that the daemon adds to the first record of a stream that it opens.
const PREFIX: u32 = (stream_bytes(OPEN_ARGS, 8) - stream_bytes(OPEN_ARGS, 0)) as u32;

/// The state of traffic with other hosts.
#[derive(Debug)]
pub(crate) struct Far<L: Link> {
    pub ni: Ni<L>,
    /// The lines of streams. The stream is noted with the line's number here.
    lines: Slab<LineRef>,
    /// Streams that were opened here.
    opened: Opened,
    /// Streams that are paused before they have a line.
    strange: VecDeque<Strange>,
    strangers: Share,
    /// Hosts that were called and have not answered, with the user that called first.
    calling: BTreeMap<HostId, Uid>,
    calls: Share,
    /// Streams of endpoints that are gone, whose peers have not taken all yet.
    leaving: VecDeque<Leaving>,
    /// Endpoints, and those of their lines by which something came.
    come: BTreeMap<RowId, VecDeque<LineRef>>,
    /// Endpoints, and those of their lines whose streams are paused.
    paused: BTreeMap<RowId, VecDeque<LineRef>>,
    /// What streams brought before they ended and found no room yet.
    last: BTreeMap<LineRef, Last>,
    last_bytes: u64,
    last_most: u64,
    /// Lines whose users have as much under way as they may, and the user whose turn was last.
    short: BTreeMap<Uid, VecDeque<LineRef>>,
    short_last: Option<Uid>,
    /// Where the next search for streams to pause begins.
    relieve_from: Option<RowId>,
    /// Lines to each host.
    joined: BTreeMap<HostId, u32>,
    watched_at: Time,
    swept_at: Time,
    /// Hosts without a line at the last sweep.
    idle: BTreeSet<HostId>,
}

impl<L: Link> Far<L> {
    pub fn new(ni: Ni<L>, last_most: u64) -> Far<L> {
        Far {
            ni,
            lines: Slab::new(),
            opened: Opened::default(),
            strange: VecDeque::new(),
            strangers: Share::new(STRANGE_MOST),
            calling: BTreeMap::new(),
            calls: Share::new(CALLING_MOST),
            leaving: VecDeque::new(),
            come: BTreeMap::new(),
            paused: BTreeMap::new(),
            last: BTreeMap::new(),
            last_bytes: 0,
            last_most,
            short: BTreeMap::new(),
            short_last: None,
            relieve_from: None,
            joined: BTreeMap::new(),
            watched_at: Time::default(),
            swept_at: Time::default(),
            idle: BTreeSet::new(),
        }
    }

    /// Counts of what is kept for lines.
    pub fn kept(&self) -> usize {
        self.lines.len()
            + self.opened.len()
            + self.strange.len()
            + self.calling.len()
            + self.come.len()
            + self.paused.len()
            + self.last.len()
            + self.short.values().map(VecDeque::len).sum::<usize>()
            + self.joined.len()
            + self.leaving.len()
    }

    /// Keeps what is left of a stream. False, with nothing kept, if there is no room.
    fn keep_last(&mut self, line: LineRef, last: Last) -> bool {
        let fits = self.last_bytes + last.half.memory() as u64 <= self.last_most;
        if fits {
            self.put_last(line, last);
        }
        fits
    }

    fn put_last(&mut self, line: LineRef, last: Last) {
        let bytes = last.half.memory() as u64;
        self.last_bytes += bytes;
        self.last.insert(line, Last { bytes, ..last });
    }

    fn take_last(&mut self, line: LineRef) -> Option<Last> {
        let last = self.last.remove(&line)?;
        self.last_bytes -= last.bytes;
        Some(last)
    }

    /// Whether something is to be done now.
    pub fn has_work(&self) -> bool {
        self.ni.has_events() || self.ni.has_unsent()
    }
}

/// The result of a call to another host.
pub(crate) enum Called {
    /// A line of this number.
    Line(u32),
    /// This host has not answered yet.
    Waits(HostId),
}

/// A stream of an endpoint that is gone.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    host: HostId,
    stream: StreamId,
    reason: Reason,
    since: Time,
    /// The user that it counts for, in lines and in bytes under way.
    payer: Uid,
    chunks: u8,
}

/// A stream that has no line yet.
#[derive(Clone, Copy, Debug)]
struct Strange {
    host: HostId,
    stream: StreamId,
    waits: Waits,
    /// The user of the endpoint that it waits for.
    user: Uid,
}

/// What a stream without a line waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    /// Room at an endpoint.
    Room(RowId),
    /// An endpoint of a program that may come back soon.
    Name(Epoch, EndpointId),
}

/// The rest of a stream that has ended: records that nobody has taken yet.
#[derive(Debug)]
struct Last {
    half: Box<Incoming>,
    reason: Reason,
    /// Its memory, as it was counted for the bound.
    bytes: u64,
}

/// How much of a stream an endpoint has taken.
enum Brought {
    /// Nothing is left.
    All,
    /// There may be more.
    Some,
    /// The endpoint has no room.
    Full,
}

impl<S: Segment, L: Link> Engine<S, L> {
    /// The network interface, if the engine has one. Give it the packets that came before each turn.
    pub fn network(&mut self) -> Option<&mut Ni<L>> {
        self.far.as_mut().map(|far| &mut far.ni)
    }

    /// Whether a name is of another host.
    pub(crate) fn is_far(&self, name: &Name) -> bool {
        self.far.is_some() && name.address != self.settings.address && !self.epochs.contains_key(&name.epoch)
    }

    /// Handles the network's events.
    pub(crate) fn look_far(&mut self) -> u32 {
        let now = self.now;
        let Some(far) = &mut self.far else { return 0 };
        if far.ni.next_time().is_some_and(|at| at <= now) {
            far.ni.on_time(now);
        }
        let mut work = 0;
        while let Some(event) = self.far.as_mut().and_then(|far| far.ni.poll_event()) {
            work += 1;
            self.take_event(event);
        }
        work += self.look_at_strange() + self.look_at_leaving();
        if self.far.as_ref().is_some_and(|far| now.since(far.watched_at) >= WATCH_EVERY) {
            self.keep_watch();
        }
        work
    }

    /// Sends packets that wait.
    pub(crate) fn flush_far(&mut self) {
        if let Some(far) = &mut self.far {
            far.ni.flush();
        }
    }

    fn take_event(&mut self, event: NiEvent) {
        match event {
            NiEvent::Readable(host, stream) => match self.line_of(host, stream) {
                Some(line) => {
                    self.note_come(line);
                    self.relieve(host);
                }
                // Its endpoint is gone.
                None if self.is_leaving(host, stream) => {}
                None => self.admit_stream(host, stream),
            },
            NiEvent::Taken(host, stream) => {
                if let Some(line) = self.line_of(host, stream) {
                    self.note_taken_far(line, (host, stream));
                }
            }
            NiEvent::Unreliable(host) => self.take_unreliable(host),
            NiEvent::Refused(host, stream, reason) => match self.line_of(host, stream) {
                Some(line) => self.end_stream(line, reason),
                None => {
                    self.forget_strange(|its| (its.host, its.stream) == (host, stream));
                    self.end_leaving(|leaving| (leaving.host, leaving.stream) == (host, stream));
                    self.with_ni(|ni| ni.close_stream(host, stream, reason));
                }
            },
            // Only the program knows whether it has a flow there.
            NiEvent::Asks(host, stream) => self.with_ni(|ni| _ = ni.answer_rest(host, stream, false)),
            NiEvent::Rested(host, stream, _) => {
                if let Some(line) = self.line_of(host, stream) {
                    self.end_stream(line, Reason::PeerLost);
                }
            }
            NiEvent::Ended(host, reason) => self.end_host(host, reason),
            NiEvent::Open(host) => {
                self.end_calling(host);
                self.early_due = self.early.len();
            }
            NiEvent::Stays(..) => {}
        }
    }

    /// A host that was called has answered, or never will.
    fn end_calling(&mut self, host: HostId) {
        let Some(far) = &mut self.far else { return };
        if let Some(user) = far.calling.remove(&host) {
            far.calls.give_back(user, 1);
        }
    }

    fn with_ni(&mut self, run: impl FnOnce(&mut Ni<L>)) {
        if let Some(far) = &mut self.far {
            run(&mut far.ni);
        }
    }

    fn line_of(&mut self, host: HostId, stream: StreamId) -> Option<LineRef> {
        let far = self.far.as_mut()?;
        let index = far.ni.session(host, stream)?;
        far.lines.get(index as usize).copied()
    }

    // ---- calls

    /// Calls the host of a name, for a line that an endpoint asks for. Without `may_call`, an unknown host is not called.
    ///
    /// # Errors
    /// Why there is no such line.
    pub(crate) fn call_far(&mut self, attachment: u32, part: u32, to: &Name, may_call: bool) -> Result<Called, Reason> {
        let row = self.row_of(attachment, part)?;
        let Some(far) = &mut self.far else { return Err(Reason::NobodyThere) };
        let key = HostKey { address: to.address, epoch: to.epoch };
        let user = self.attachments.get(attachment as usize).ok_or(Reason::NobodyThere)?.user;
        let is_new = far.ni.find(key).is_none();
        if is_new && !(may_call && far.ni.has_room_for_host() && far.calls.take(user, 1)) {
            return Err(Reason::NoRoom);
        }
        let host = far.ni.call(key);
        if is_new {
            far.calling.insert(host, user);
        }
        if !far.ni.is_open(host) {
            return Ok(Called::Waits(host));
        }
        if !far.opened.take(host, user) {
            return Err(Reason::NoRoom);
        }
        let is_paid = self.accounts.take(user, Quota::Lines, 1);
        let Some(stream) = Some(()).filter(|()| is_paid).and_then(|()| far.ni.open_stream(host)) else {
            far.opened.give_back(host, user);
            self.accounts.give_back(user, Quota::Lines, is_paid.into());
            return Err(Reason::NoRoom);
        };
        far.opened.note((host, stream), user);
        let line = self.add_stream(row, (host, stream), user).ok_or(Reason::NoSuchEndpoint)?;
        if let Some(entry) = self.line_mut(line) {
            entry.marks.set(Marks::OPENED_HERE);
            entry.marks.set(Marks::SAYS_EPOCH);
        }
        Ok(Called::Line(line.line))
    }

    /// Adds a line whose other end is a stream. Its quota is taken already.
    fn add_stream(&mut self, row: RowId, (host, stream): (HostId, StreamId), payer: Uid) -> Option<LineRef> {
        let attachment = self.rows.get(row)?.attachment;
        let found = self.attachments.get_mut(attachment as usize)?;
        let number = found.lines.insert(Line::new(row, Peer::Stream(host, stream), payer));
        let line = LineRef { attachment, line: number };
        if let Some(row) = self.rows.get_mut(row) {
            row.lines += 1;
        }
        let far = self.far.as_mut()?;
        let index = far.lines.insert(line) as u32;
        far.ni.set_session(host, stream, index);
        far.ni.watch_taken(host, stream);
        far.ni.join(host);
        *far.joined.entry(host).or_default() += 1;
        Some(line)
    }

    /// Probes the hosts to which there are lines.
    fn keep_watch(&mut self) {
        let (now, has_just_begun) = (self.now, self.has_just_begun());
        let Some(far) = &mut self.far else { return };
        far.watched_at = now;
        far.ni.wait_for_programs(has_just_begun);
        let is_sweep = now.since(far.swept_at) >= SWEEP_EVERY;
        let Far { ni, joined, .. } = far;
        joined.keys().for_each(|host| ni.want_watch(*host));
        ni.keep_watch();
        self.ready_next_user();
        let Some(far) = &mut self.far else { return };
        let Far { ni, joined, .. } = far;
        if is_sweep {
            far.swept_at = now;
            joined.keys().for_each(|host| ni.trim(*host));
            let called: BTreeSet<HostId> = self.early.iter().filter_map(|call| call.host).collect();
            let is_used = |id: &HostId| joined.contains_key(id) || called.contains(id);
            let is_idle = |id: &HostId| !is_used(id) && ni.is_open(*id) && !ni.is_stranger(*id) && !ni.has_streams(*id);
            let idle: BTreeSet<HostId> = ni.hosts().map(|(id, _)| id).filter(is_idle).collect();
            for id in idle.intersection(&far.idle) {
                ni.close(*id, Reason::Closed);
            }
            far.idle = idle;
        }
    }
}

/// The place in a line's records for an offset in its stream.
fn place_of(offset: u64, was_opened_here: bool) -> Place {
    let prefix = if was_opened_here { PREFIX.into() } else { 0 };
    Place(offset.saturating_sub(FIRST_OFFSET).saturating_sub(prefix) as u32)
}
