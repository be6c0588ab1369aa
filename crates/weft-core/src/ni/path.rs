//! The two ends of a session's path over a network interface. They are not inlined into the loops over sessions,
//! because that would slow the code for rings.

use super::{Handle, HostId};
use weft_transport::Incoming;
use weft_wire::frame::StreamId;
use weft_wire::path::{Abandoned, Peek, PushError, Rx, Traffic, Tx};
use weft_wire::record::{LINE, MAX_PAYLOAD};
use weft_wire::Head;

/// The writing end. If nothing is in flight to the host, a record is sent at once, otherwise with
/// [`Ni::flush`](super::Ni::flush).
#[derive(Debug)]
pub struct StreamTx<H> {
    ni: H,
    host: HostId,
    stream: StreamId,
}

/// The reading end. While it has records, it owns the reading half of the stream.
#[derive(Debug)]
pub struct StreamRx<H: Handle> {
    ni: H,
    host: HostId,
    stream: StreamId,
    half: Option<Box<Incoming>>,
}

impl<H: Handle> StreamTx<H> {
    /// Makes the writing end of a stream to a host.
    pub fn new(ni: H, host: HostId, stream: StreamId) -> StreamTx<H> {
        StreamTx { ni, host, stream }
    }
}

impl<H: Handle> StreamRx<H> {
    /// Makes the reading end of a stream from a host.
    pub fn new(ni: H, host: HostId, stream: StreamId) -> StreamRx<H> {
        StreamRx { ni, host, stream, half: None }
    }

    /// Returns the reading half if it has a record or broken data.
    #[inline]
    fn borrow_half(&mut self) -> Option<&mut Incoming> {
        if self.half.is_none() {
            self.half = self.ni.borrow_mut().lend(self.host, self.stream);
        }
        if !self.half.as_mut()?.is_readable() {
            self.give_back();
        }
        self.half.as_deref_mut()
    }

    #[inline]
    fn give_back(&mut self) {
        if let Some(half) = self.half.take() {
            self.ni.borrow_mut().take_back(self.host, self.stream, half);
        }
    }
}

#[doc(hidden)]
impl<H: Handle> Tx for StreamTx<H> {
    #[inline(never)]
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.ni.borrow_mut().push(self.host, self.stream, head, args, payload)
    }

    #[cold]
    fn push_unreliable(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.ni.borrow_mut().push_unreliable(self.host, self.stream, head, args, payload)
    }

    fn has_room(&mut self, lines: u32) -> bool {
        self.ni.borrow_mut().has_room(self.host, self.stream, (lines as usize * LINE).min(MAX_PAYLOAD))
    }

    fn abandoned(&mut self) -> Vec<Abandoned> {
        self.ni.borrow_mut().take_abandoned(self.host, self.stream)
    }

    fn traffic(&mut self) -> Traffic {
        self.ni.borrow_mut().traffic(self.host, self.stream)
    }

    fn closes_at_rest(&self) -> bool {
        true
    }

    fn rest(&mut self) {
        self.ni.borrow_mut().rest(self.host, self.stream);
    }
}

impl<H: Handle> Rx for StreamRx<H> {
    #[inline(never)]
    fn peek(&mut self) -> Peek<'_> {
        self.borrow_half().map_or(Peek::Empty, |half| half.peek())
    }

    #[inline(never)]
    fn pop(&mut self) {
        if let Some(half) = &mut self.half {
            // The writer learns of the room when the half is returned.
            half.pop();
        }
    }

    /// Nothing to hold: the backlog keeps the contents of a refused message, and the sender keeps its copy until the
    /// record is released, which is soon.
    fn hold(&mut self, _reason: u8) {}

    fn let_go(&mut self, _records: u32) {}

    #[inline(never)]
    fn release(&mut self) {
        self.give_back();
    }

    fn set_attention(&mut self, _wanted: bool) {}

    fn stays_cold(&self) -> bool {
        true
    }
}

impl<H: Handle> Drop for StreamRx<H> {
    fn drop(&mut self) {
        self.give_back();
    }
}
