//! The two ends of a line, as the path of a session. They are not inlined into the loops over sessions, because that would slow the code
//! for rings.

use super::PortHandle;
use weft_wire::descriptor::LineId;
use weft_wire::path::{Abandoned, Peek, PushError, Record, Rx, Traffic, Tx};
use weft_wire::record::{LINE, MAX_PAYLOAD};
use weft_wire::{Head, HeadWords, MAX_ARGS};

/// The writing end of a line.
#[derive(Debug)]
pub struct PortTx<H> {
    port: H,
    line: LineId,
}

/// The reading end of a line.
#[derive(Debug)]
pub struct PortRx<H> {
    port: H,
    line: LineId,
    /// The record in hand: its header, arguments and payload.
    head: Option<HeadWords>,
    args: [u32; MAX_ARGS],
    payload: Vec<u8>,
    is_of_other_user: bool,
}

impl<H: PortHandle> PortTx<H> {
    /// The writing end of a line.
    pub fn new(port: H, line: LineId) -> PortTx<H> {
        PortTx { port, line }
    }
}

impl<H: PortHandle> PortRx<H> {
    /// The reading end of a line. `is_of_other_user` says whether its peer belongs to another user of this host.
    pub fn new(port: H, line: LineId, is_of_other_user: bool) -> PortRx<H> {
        PortRx { port, line, head: None, args: [0; MAX_ARGS], payload: Vec::new(), is_of_other_user }
    }
}

#[doc(hidden)]
impl<H: PortHandle> Tx for PortTx<H> {
    #[inline(never)]
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.port.borrow_mut().push(self.line, head, args, payload)
    }

    fn has_room(&mut self, lines: u32) -> bool {
        self.port.borrow_mut().has_room(self.line, (lines as usize * LINE).min(MAX_PAYLOAD))
    }

    fn abandoned(&mut self) -> Vec<Abandoned> {
        self.port.borrow_mut().take_abandoned(self.line)
    }

    fn traffic(&mut self) -> Traffic {
        self.port.borrow_mut().traffic(self.line)
    }

    fn rest(&mut self) {}
}

#[doc(hidden)]
impl<H: PortHandle> Rx for PortRx<H> {
    #[inline(never)]
    fn peek(&mut self) -> Peek<'_> {
        if self.head.is_none() {
            self.head = self.port.borrow_mut().read(self.line, &mut self.args, &mut self.payload);
        }
        match self.head {
            Some(head) => Peek::Record(Record { head, args: &self.args[..head.args()], payload: &self.payload }),
            None => Peek::Empty,
        }
    }

    #[inline(never)]
    fn pop(&mut self) {
        if self.head.take().is_some() {
            self.port.borrow_mut().pop(self.line);
        }
    }

    /// Nothing to hold: the backlog keeps the contents of a refused message.
    fn hold(&mut self, _reason: u8) {}

    fn let_go(&mut self, _records: u32) {}

    fn release(&mut self) {
        self.port.borrow_mut().release(self.line);
    }

    fn set_attention(&mut self, _wanted: bool) {}

    fn stays_cold(&self) -> bool {
        true
    }

    fn is_of_other_user(&self) -> bool {
        self.is_of_other_user
    }
}
