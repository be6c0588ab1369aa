//! A host's link: packets sent in a turn leave at its end.

use crate::network::{address, host_at, INBOX_BYTES};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_core::ni::{Link, Ni, Secrets, Sent, Way};
use weft_transport::{Random, Settings, Time};
use weft_wire::{Epoch, HostAddress};

/// The hosts' clocks begin at this time.
const START: u64 = 1_000_000_000;

/// Packets that wait for the end of a turn, each with its destination host.
pub(super) type Outbox = Rc<RefCell<Vec<(u32, Vec<u8>)>>>;

/// What a host's clock says.
pub(super) fn local(now: u64) -> Time {
    Time::from_nanos(START + now)
}

/// The simulated time at which a host's clock says this.
pub(super) fn global(local: Time) -> u64 {
    local.as_nanos().saturating_sub(START)
}

/// The link of a network interface.
#[derive(Debug)]
pub(super) struct WireLink {
    now: Rc<Cell<Time>>,
    outbox: Outbox,
    packet_bytes: u16,
}

impl Link for WireLink {
    type Memory = Vec<u8>;

    fn now(&self) -> Time {
        self.now.get()
    }

    fn send(&mut self, to: Way, packets: &[u8], segment: usize) -> Sent {
        let packets = packets.chunks(segment.max(1)).map(|packet| (host_at(to.to), packet.to_vec()));
        self.outbox.borrow_mut().extend(packets);
        Sent::All
    }

    fn packet_bytes(&self, _: Way) -> u16 {
        self.packet_bytes
    }

    fn room(&self) -> u64 {
        INBOX_BYTES as u64
    }
}

/// What a network interface shares with its host.
#[derive(Clone, Debug, Default)]
pub(super) struct Plug {
    pub now: Rc<Cell<Time>>,
    pub outbox: Outbox,
}

impl Plug {
    /// A network interface on this link.
    pub fn interface(&self, epoch: Epoch, packet_bytes: u16, random: &mut Random) -> Ni<WireLink> {
        let link = WireLink { now: self.now.clone(), outbox: self.outbox.clone(), packet_bytes };
        let secrets = Secrets { door: [random.bits(), random.bits()], seed: random.bits() };
        Ni::new(link, epoch, Settings::default(), secrets)
    }

    /// Packets that were sent in this turn.
    pub fn sent(&self) -> u64 {
        self.outbox.borrow().len() as u64
    }
}

/// A packet that came.
#[derive(Debug)]
pub(super) struct Came {
    pub from: u32,
    pub at: u64,
    pub bytes: Vec<u8>,
}

impl Came {
    /// The way back to its sender.
    pub fn way(&self) -> Way {
        Way { to: address(self.from), from: 0 }
    }
}

/// The address of the server's host.
pub(super) fn server() -> HostAddress {
    address(0)
}
