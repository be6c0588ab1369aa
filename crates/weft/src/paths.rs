//! The paths of this home's sessions: rings to processes of the same host, streams to other hosts. The kind of path is
//! checked once per record, by a word next to the fields that are needed next.

use crate::bells::Pages;
use crate::daemon::DaemonPort;
use crate::net::UdpNi;
use std::num::NonZeroU32;
use weft_core::ni::{StreamRx, StreamTx};
use weft_core::port::{PortRx, PortTx};
use weft_core::Bundle;
use weft_shm::{Consumer, MapMem, Ringing};
use weft_wire::path::{Abandoned, Glance, Peek, PushError, Rx, Traffic, Tx};
use weft_wire::Head;

/// A bundle over rings in shared memory and streams between hosts.
pub(crate) type Core = Bundle<Inlet, Outlet, Pages>;

/// The sending end of a session's path. A program's own clients name it as the parameter of their
/// [`State`](weft_core::State).
#[derive(Debug)]
pub struct Outlet {
    way: Way,
    neighbour: Option<NonZeroU32>,
}

impl Outlet {
    /// To a process of this host. `neighbour` is that process if it is trusted.
    pub(crate) fn to_process(ring: Ringing, neighbour: Option<NonZeroU32>) -> Outlet {
        Outlet { way: Way::Ring(ring), neighbour }
    }
}

/// Where a path leads.
// Rings must be fast, so they are stored without an indirection.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum Way {
    /// To a process of this host.
    Ring(Ringing),
    /// To another host.
    Stream(StreamTx<UdpNi>),
    /// Through weftd.
    Line(PortTx<DaemonPort>),
}

/// The reading end of a path.
// Rings must be fast, so they are stored without an indirection.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(crate) enum Inlet {
    /// From a process of this host.
    Ring(Consumer<MapMem>),
    /// From another host.
    Stream(StreamRx<UdpNi>),
    /// Through weftd. Boxed, because it has room for a record's arguments.
    Line(Box<PortRx<DaemonPort>>),
}

#[doc(hidden)]
impl From<StreamTx<UdpNi>> for Outlet {
    fn from(stream: StreamTx<UdpNi>) -> Outlet {
        Outlet { way: Way::Stream(stream), neighbour: None }
    }
}

#[doc(hidden)]
impl From<PortTx<DaemonPort>> for Outlet {
    fn from(line: PortTx<DaemonPort>) -> Outlet {
        Outlet { way: Way::Line(line), neighbour: None }
    }
}

impl From<PortRx<DaemonPort>> for Inlet {
    fn from(line: PortRx<DaemonPort>) -> Inlet {
        Inlet::Line(Box::new(line))
    }
}

impl From<StreamRx<UdpNi>> for Inlet {
    fn from(stream: StreamRx<UdpNi>) -> Inlet {
        Inlet::Stream(stream)
    }
}

impl Tx for Outlet {
    #[inline(always)]
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        match &mut self.way {
            Way::Ring(ring) => ring.push(head, args, payload),
            way => {
                let [first, second] = head.pack();
                push_far(way, first, second, args, payload)
            }
        }
    }

    #[inline(always)]
    fn push_small(&mut self, head: Head, args: &[u32], payload: &[u8]) -> bool {
        match &mut self.way {
            Way::Ring(ring) => ring.push_small(head, args, payload),
            Way::Stream(_) | Way::Line(_) => false,
        }
    }

    #[inline(always)]
    fn signal(&mut self) {
        if let Way::Ring(ring) = &mut self.way {
            ring.signal();
        }
    }

    #[inline(always)]
    fn is_far(&self) -> bool {
        matches!(&self.way, Way::Ring(ring) if ring.is_far())
    }

    #[cold]
    fn push_unreliable(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        match &mut self.way {
            Way::Ring(ring) => ring.push(head, args, payload),
            Way::Stream(stream) => stream.push_unreliable(head, args, payload),
            Way::Line(line) => line.push_unreliable(head, args, payload),
        }
    }

    fn neighbour(&self) -> Option<NonZeroU32> {
        self.neighbour
    }

    fn closes_at_rest(&self) -> bool {
        match &self.way {
            Way::Ring(ring) => ring.closes_at_rest(),
            Way::Stream(stream) => stream.closes_at_rest(),
            Way::Line(line) => line.closes_at_rest(),
        }
    }

    fn has_room(&mut self, lines: u32) -> bool {
        match &mut self.way {
            Way::Ring(ring) => ring.has_room(lines),
            Way::Stream(stream) => stream.has_room(lines),
            Way::Line(line) => line.has_room(lines),
        }
    }

    fn abandoned(&mut self) -> Vec<Abandoned> {
        match &mut self.way {
            Way::Ring(ring) => ring.abandoned(),
            Way::Stream(stream) => stream.abandoned(),
            Way::Line(line) => line.abandoned(),
        }
    }

    fn traffic(&mut self) -> Traffic {
        match &mut self.way {
            Way::Ring(ring) => ring.traffic(),
            Way::Stream(stream) => stream.traffic(),
            Way::Line(line) => line.traffic(),
        }
    }

    fn is_ahead(&mut self, bytes: u64) -> bool {
        match &mut self.way {
            Way::Ring(ring) => {
                let Traffic { pushed, taken } = ring.traffic();
                pushed.saturating_sub(taken) > bytes
            }
            // Their buffers are small enough.
            Way::Stream(_) | Way::Line(_) => false,
        }
    }

    fn rest(&mut self) {
        match &mut self.way {
            Way::Ring(ring) => ring.rest(),
            Way::Stream(stream) => stream.rest(),
            Way::Line(line) => line.rest(),
        }
    }
}

impl Rx for Inlet {
    #[inline(always)]
    fn peek(&mut self) -> Peek<'_> {
        match self {
            Inlet::Ring(ring) => ring.peek(),
            Inlet::Stream(stream) => stream.peek(),
            Inlet::Line(line) => line.peek(),
        }
    }

    #[inline(always)]
    fn glance(&mut self) -> Glance<'_> {
        match self {
            Inlet::Ring(ring) => ring.glance(),
            // `More`, not the record: a glance at a stream would force the records of rings through memory too.
            Inlet::Stream(_) | Inlet::Line(_) => Glance::More,
        }
    }

    #[inline(always)]
    fn pop(&mut self) {
        match self {
            Inlet::Ring(ring) => ring.pop(),
            Inlet::Stream(stream) => stream.pop(),
            Inlet::Line(line) => line.pop(),
        }
    }

    fn hold(&mut self, reason: u8) {
        match self {
            Inlet::Ring(ring) => ring.hold(reason),
            Inlet::Stream(stream) => stream.hold(reason),
            Inlet::Line(line) => line.hold(reason),
        }
    }

    fn let_go(&mut self, records: u32) {
        match self {
            Inlet::Ring(ring) => ring.let_go(records),
            Inlet::Stream(stream) => stream.let_go(records),
            Inlet::Line(line) => line.let_go(records),
        }
    }

    #[inline(always)]
    fn release(&mut self) {
        match self {
            Inlet::Ring(ring) => ring.release(),
            Inlet::Stream(stream) => stream.release(),
            Inlet::Line(line) => line.release(),
        }
    }

    fn set_attention(&mut self, wanted: bool) {
        match self {
            Inlet::Ring(ring) => ring.set_attention(wanted),
            Inlet::Stream(stream) => stream.set_attention(wanted),
            Inlet::Line(line) => line.set_attention(wanted),
        }
    }

    #[inline(always)]
    fn allowance(&mut self, most: u32) -> u32 {
        match self {
            Inlet::Ring(ring) => ring.allowance(most),
            Inlet::Stream(stream) => stream.allowance(most),
            Inlet::Line(line) => line.allowance(most),
        }
    }

    #[inline(always)]
    fn note_visit(&mut self, one_way: u32, caught_up: bool) {
        match self {
            Inlet::Ring(ring) => ring.note_visit(one_way, caught_up),
            Inlet::Stream(stream) => stream.note_visit(one_way, caught_up),
            Inlet::Line(line) => line.note_visit(one_way, caught_up),
        }
    }

    fn stays_cold(&self) -> bool {
        match self {
            Inlet::Ring(ring) => ring.stays_cold(),
            Inlet::Stream(stream) => stream.stays_cold(),
            Inlet::Line(line) => line.stays_cold(),
        }
    }

    fn is_of_other_user(&self) -> bool {
        match self {
            Inlet::Ring(ring) => ring.is_of_other_user(),
            Inlet::Stream(stream) => stream.is_of_other_user(),
            Inlet::Line(line) => line.is_of_other_user(),
        }
    }

    #[inline(always)]
    fn note_bell(&mut self) -> bool {
        match self {
            Inlet::Ring(ring) => ring.note_bell(),
            Inlet::Stream(stream) => stream.note_bell(),
            Inlet::Line(line) => line.note_bell(),
        }
    }
}

/// Pushes a record to another host, or to weftd. The header is passed in two words: passed by reference, it would have to be stored
/// to memory for rings too, which slows the sender.
#[inline(never)]
fn push_far(way: &mut Way, first: u64, second: u64, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
    let head = Head::unpack([first, second]).map_err(|_| PushError::TooLarge)?;
    match way {
        // Rings are not far.
        Way::Ring(ring) => ring.push(head, args, payload),
        Way::Stream(stream) => stream.push(head, args, payload),
        Way::Line(line) => line.push(head, args, payload),
    }
}
