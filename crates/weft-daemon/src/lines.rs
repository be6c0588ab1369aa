//! Lines: the connections between two endpoints, and how far each direction has come.

use crate::rows::RowId;
use slab::Slab;
use std::collections::BTreeSet;
use std::mem::size_of;
use weft_core::ni::HostId;
use weft_wire::attach::OPENED_BYTES;
use weft_wire::descriptor::{units, Place};
use weft_wire::frame::StreamId;
use weft_wire::{Reason, Uid};

/// A line of an attachment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LineRef {
    pub attachment: u32,
    pub line: u32,
}

impl LineRef {
    /// Stands in a queue of lines that wait for room at an endpoint, for all other hosts together.
    pub const HOSTS: LineRef = LineRef { attachment: u32::MAX, line: u32::MAX };
}

/// The lines of an attachment, by their numbers and by their endpoints.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Slab<Line>,
    of_rows: BTreeSet<(RowId, u32)>,
}

impl Lines {
    /// Adds a line. Returns its number.
    pub fn insert(&mut self, line: Line) -> u32 {
        let row = line.row;
        let number = self.lines.insert(line) as u32;
        self.of_rows.insert((row, number));
        number
    }

    pub fn remove(&mut self, number: u32) -> Option<Line> {
        let line = self.lines.try_remove(number as usize)?;
        self.of_rows.remove(&(line.row, number));
        Some(line)
    }

    #[inline(always)]
    pub fn get(&self, number: u32) -> Option<&Line> {
        self.lines.get(number as usize)
    }

    /// The endpoint of a line stays the same.
    #[inline(always)]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Line> {
        self.lines.get_mut(number as usize)
    }

    /// The lines of an endpoint.
    pub fn of(&self, row: RowId) -> Vec<u32> {
        self.of_rows.range((row, 0)..=(row, u32::MAX)).map(|(_, number)| *number).collect()
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Numbers from here on were never assigned.
    pub fn end(&self) -> u32 {
        self.lines.capacity() as u32
    }
}

/// The other end of a line. Both ends within a host name each other, or neither does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    /// An endpoint of this host, which does not know of the line yet: the first record opens it.
    Unopened(RowId),
    /// An endpoint of this host.
    Line(LineRef),
    /// An endpoint of another host.
    Stream(HostId, StreamId),
    /// Gone.
    None,
}

/// What a line's program is owed, and what it was told. Bits, so that an entry stays small.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks(u16);

impl Marks {
    /// Records are dropped until the program sends again.
    pub const REFUSED: Marks = Marks(1);
    /// It is in the queue of lines that wait for room at the peer.
    pub const WAITS: Marks = Marks(1 << 1);
    /// There is room for it at the peer, ahead of those that wait.
    pub const READIED: Marks = Marks(1 << 2);
    /// Owed to the program: its record was refused.
    pub const OWES_REFUSED: Marks = Marks(1 << 3);
    /// Owed to the program: it may send again.
    pub const OWES_READY: Marks = Marks(1 << 4);
    /// Owed to the program: how far the peer has taken what was sent.
    pub const OWES_TAKEN: Marks = Marks(1 << 5);
    /// Owed to the program: the line has ended.
    pub const OWES_CLOSED: Marks = Marks(1 << 6);
    /// It is in the list of lines with something owed.
    pub const IS_LISTED: Marks = Marks(1 << 7);
    /// The program was told that it has ended.
    pub const IS_TOLD: Marks = Marks(1 << 8);
    /// The program has said that it no longer uses it.
    pub const IS_LEFT: Marks = Marks(1 << 9);
    /// Something came for it from another host, and it is in the list of such lines.
    pub const HAS_COME: Marks = Marks(1 << 10);
    /// Its stream was opened here,
    pub const OPENED_HERE: Marks = Marks(1 << 11);
    /// and the first record, which tells the epoch of the program, was not sent yet.
    pub const SAYS_EPOCH: Marks = Marks(1 << 12);
    /// Its stream is paused, and it is in the list of such lines of its endpoint.
    pub const IS_PAUSED: Marks = Marks(1 << 13);
    /// Its stream had no room.
    pub const IS_FULL: Marks = Marks(1 << 14);
    /// Its user had as much under way as allowed, and it is in the queue of such lines.
    pub const IS_SHORT: Marks = Marks(1 << 15);

    pub fn has(self, mark: Marks) -> bool {
        self.0 & mark.0 != 0
    }

    pub fn set(&mut self, mark: Marks) {
        self.0 |= mark.0;
    }

    pub fn clear(&mut self, mark: Marks) {
        self.0 &= !mark.0;
    }

    /// Clears a mark, and says whether it was set.
    pub fn take(&mut self, mark: Marks) -> bool {
        let had = self.has(mark);
        self.clear(mark);
        had
    }
}

/// The room that the first refused record needs at the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// Places in the ring.
    pub places: u8,
    /// Units of the area: 1,025 at most.
    pub units: u16,
}

/// The room that the first record of a line needs: one place for the peer's name, and one for itself.
pub(crate) const TO_OPEN: Needs = Needs { places: 2, units: units(OPENED_BYTES) as u16 };

impl Needs {
    /// The larger need of both.
    pub fn max(self, other: Needs) -> Needs {
        Needs { places: self.places.max(other.places), units: self.units.max(other.units) }
    }

    /// Adds what another one needs.
    pub fn add(&mut self, other: Needs) {
        self.places = self.places.saturating_add(other.places);
        self.units = self.units.saturating_add(other.units);
    }
}

/// One end of a line.
#[derive(Debug)]
pub(crate) struct Line {
    /// The endpoint here.
    pub row: RowId,
    pub peer: Peer,
    /// Places among the records that our program sent: up to where they were handed to the peer, taken by it, and known to our program as
    /// taken.
    pub delivered: Place,
    pub taken: Place,
    pub told: Place,
    /// Places among the records for our program: up to where they were stored in its ring, and taken by it.
    pub came: Place,
    pub got: Place,
    pub marks: Marks,
    /// What it needs, while it waits.
    pub needs: Needs,
    /// Chunks of what is under way to another host, as its user's quota counts them.
    pub chunks: u8,
    /// After its end: why it ended, and up to where its records were handed to the peer's program.
    pub reason: Reason,
    pub touched: Place,
    /// The user whose quota it counts for.
    pub payer: Uid,
}

const _: () = assert!(size_of::<Line>() <= 64, "an entry of a line takes 64 bytes at most");

impl Line {
    pub fn new(row: RowId, peer: Peer, payer: Uid) -> Line {
        let (delivered, taken, told, came, got, marks, needs, touched) = Default::default();
        let reason = Reason::Closed;
        Line { row, peer, delivered, taken, told, came, got, marks, needs, chunks: 0, reason, touched, payer }
    }

    /// Notes how much the peer has taken, if that is possible.
    pub fn note_taken(&mut self, taken: Place) {
        if taken.is_between(self.taken, self.delivered) {
            self.taken = taken;
        }
    }
}
