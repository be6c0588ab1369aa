//! The table of endpoints: a row for each, resident or not.

use crate::lines::Needs;
use crate::queue::Ticket;
use crate::residency::Residence;
use std::mem::size_of;
use weft_core::Admission;
use weft_wire::segment::Part;
use weft_wire::{EndpointId, Key, Uid};

/// A place in the table, and how often endpoints came and went there, so that events meant for an earlier one do not reach a later one.
/// (The seed's logical clock.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RowId {
    pub index: u32,
    clock: u32,
}

/// An endpoint, as the daemon knows it. The cursors are the daemon's own copies, which the program cannot change.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Row {
    pub attachment: u32,
    /// The number of its part in its attachment, which is also that of its bell.
    pub part_number: u32,
    pub endpoint: EndpointId,
    pub part: Part,
    pub key: Key,
    pub admission: Admission,
    pub user: Uid,
    pub residence: Residence,
    /// Visits in a round of the schedule.
    pub weight: u32,
    /// Descriptors taken from the send ring.
    pub sent: u64,
    /// Descriptors stored in the receive ring, and how many of them are known to be taken.
    pub received: u64,
    pub received_known: u64,
    /// Units of the receive area that were allocated, and how many of them are known to be read.
    pub area: u64,
    pub area_known: u64,
    /// Its lines.
    pub lines: u32,
    /// Records that were refused here for now.
    pub refused: u64,
    /// Its ticket in the queue of endpoints whose ring was full, if it is there.
    pub blocked: Option<Ticket>,
    /// Whether lines that were refused here wait for the news that there is room.
    pub has_stalled: bool,
    /// Records of other hosts wait for room.
    pub waits_for_room: bool,
    /// The room that the first of them needs.
    pub come_needs: Needs,
    /// Other hosts are in the queue of those that wait for room.
    pub do_hosts_wait: bool,
    /// It is the turn of other hosts in that queue.
    pub is_hosts_turn: bool,
    /// Room is reserved for a stream of another host that will open a line.
    pub keeps_room: bool,
}

const _: () = assert!(size_of::<Row>() <= 256, "a row takes 256 bytes at most");

impl Row {
    /// A new endpoint: idle, with empty rings.
    pub fn new((attachment, part_number): (u32, u32), user: Uid, endpoint: EndpointId, part: Part) -> Row {
        Row {
            attachment,
            part_number,
            endpoint,
            part,
            key: Key::NONE,
            admission: Admission::Nobody,
            user,
            residence: Residence::Idle,
            weight: 1,
            sent: 0,
            received: 0,
            received_known: 0,
            area: 0,
            area_known: 0,
            lines: 0,
            refused: 0,
            blocked: None,
            has_stalled: false,
            waits_for_room: false,
            come_needs: Needs::default(),
            do_hosts_wait: false,
            is_hosts_turn: false,
            keeps_room: false,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.residence == Residence::Idle
    }

    pub fn is_resident(&self) -> bool {
        matches!(self.residence, Residence::Resident { .. })
    }
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Place {
    clock: u32,
    row: Option<Row>,
}

/// All rows.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Rows {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Rows {
    pub fn add(&mut self, row: Row) -> RowId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { clock: 0, row: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.row = Some(row);
        RowId { index, clock: place.clock }
    }

    pub fn remove(&mut self, id: RowId) -> Option<Row> {
        let place = self.places.get_mut(id.index as usize).filter(|place| place.clock == id.clock)?;
        let row = place.row.take()?;
        place.clock = place.clock.wrapping_add(1);
        self.free.push(id.index);
        Some(row)
    }

    #[inline(always)]
    pub fn get(&self, id: RowId) -> Option<&Row> {
        self.places.get(id.index as usize).filter(|place| place.clock == id.clock)?.row.as_ref()
    }

    #[inline(always)]
    pub fn get_mut(&mut self, id: RowId) -> Option<&mut Row> {
        self.places.get_mut(id.index as usize).filter(|place| place.clock == id.clock)?.row.as_mut()
    }

    /// Resets the clock of each place: a fault for tests.
    #[cfg(test)]
    pub fn forget_clocks(&mut self) {
        self.places.iter_mut().for_each(|place| place.clock = 0);
    }

    /// Places, free ones included.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The endpoint at a place.
    pub fn at(&self, index: usize) -> Option<(RowId, &Row)> {
        let place = self.places.get(index)?;
        Some((RowId { index: index as u32, clock: place.clock }, place.row.as_ref()?))
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
