//! A bundle's network interface, which is the bundle's own, and now and then its deputy's.

use super::link::UdpLink;
use weft_core::ni::{Handle, Link, Ni};
use weft_shm::biased::{Inside, Owner, Visitor};
use weft_transport::Time;

/// The network interface over UDP.
pub(crate) type Interface = Ni<UdpLink>;

/// Takes in the next run of packets, if one came. Returns when that was.
#[inline]
pub(crate) fn take_run(ni: &mut Interface, buffer: &mut [u8]) -> Option<Time> {
    let (way, bytes, segment) = ni.link_mut().receive(buffer)?;
    let now = ni.link().now();
    let came_at = ni.link_mut().came_at(now);
    for packet in buffer[..bytes].chunks(segment) {
        ni.on_packet_of(now, came_at, way, packet);
    }
    Some(now)
}

/// Who uses a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Users {
    /// The thread that made it.
    OneThread,
    /// Several, one after the other.
    SeveralThreads,
}

/// The bundle's handle to it.
#[derive(Clone, Debug)]
pub(crate) struct UdpNi(Owner<Interface>);

impl UdpNi {
    /// This thread's, or of whichever thread has it.
    pub fn new(interface: Interface, users: Users) -> UdpNi {
        UdpNi(match users {
            Users::OneThread => Owner::new(interface),
            Users::SeveralThreads => Owner::of_several_threads(interface),
        })
    }

    /// For the deputy.
    pub fn visitor(&self) -> Visitor<Interface> {
        self.0.visitor()
    }
}

impl Handle for UdpNi {
    type Link = UdpLink;
    type Use<'a> = Inside<'a, Interface>;

    #[inline(always)]
    fn borrow_mut(&self) -> Inside<'_, Interface> {
        self.0.enter()
    }
}
