//! Lines: what joins two endpoints, and how far each direction has come.

use crate::rows::RowId;
use std::mem::size_of;
use weft_wire::descriptor::Place;
use weft_wire::{Reason, Uid};

/// A line of an attachment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LineRef {
    pub attachment: u32,
    pub line: u32,
}

/// The other end of a line. Both ends name each other, or neither does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    /// An endpoint of this host, which does not know of the line yet: the first record opens it.
    Unopened(RowId),
    /// An endpoint of this host.
    Line(LineRef),
    /// Gone.
    None,
}

/// What is to be said to a line's program, and what was said. Bits, so that an entry stays small.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks(u16);

impl Marks {
    /// Records are dropped until the program sends again.
    pub const REFUSED: Marks = Marks(1);
    /// It stands in the queue of those that wait for room at the peer.
    pub const WAITS: Marks = Marks(1 << 1);
    /// There is room for it at the peer, ahead of those that wait.
    pub const READIED: Marks = Marks(1 << 2);
    /// To be said: it was refused.
    pub const OWES_REFUSED: Marks = Marks(1 << 3);
    /// To be said: it is to send again.
    pub const OWES_READY: Marks = Marks(1 << 4);
    /// To be said: how far the peer has taken what was sent.
    pub const OWES_TAKEN: Marks = Marks(1 << 5);
    /// To be said: it has ended.
    pub const OWES_CLOSED: Marks = Marks(1 << 6);
    /// It stands in the list of those that something is to be said of.
    pub const IS_LISTED: Marks = Marks(1 << 7);
    /// The program was told that it has ended.
    pub const IS_TOLD: Marks = Marks(1 << 8);
    /// The program has said that it uses it no more.
    pub const IS_LEFT: Marks = Marks(1 << 9);

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

/// What the first record that was refused needs at the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// Places in the ring.
    pub places: u8,
    /// Units of the area: 1,025 at most.
    pub units: u16,
}

/// One end of a line.
#[derive(Debug)]
pub(crate) struct Line {
    /// The endpoint here.
    pub row: RowId,
    pub peer: Peer,
    /// Places in the records that our program sent: up to here handed to the peer, taken by it, and known to our program as taken.
    pub delivered: Place,
    pub taken: Place,
    pub told: Place,
    /// Places in the records for our program: up to here stored in its ring, and taken by it.
    pub came: Place,
    pub got: Place,
    pub marks: Marks,
    /// While it waits.
    pub needs: Needs,
    /// Once it has ended: why, and up to where its records were handed to the peer's program.
    pub reason: Reason,
    pub touched: Place,
    /// The user whose quota it counts for.
    pub payer: Uid,
}

const _: () = assert!(size_of::<Line>() <= 64, "an entry of a line takes 64 bytes at most");

impl Line {
    pub fn new(row: RowId, peer: Peer, payer: Uid) -> Line {
        let (delivered, taken, told, came, got, marks, needs, touched) = Default::default();
        Line { row, peer, delivered, taken, told, came, got, marks, needs, reason: Reason::Closed, touched, payer }
    }

    /// Notes that the peer has taken so much, if that can be.
    pub fn note_taken(&mut self, taken: Place) {
        if taken.is_between(self.taken, self.delivered) {
            self.taken = taken;
        }
    }
}
