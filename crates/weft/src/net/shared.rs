//! A bundle's network interface. The bundle owns it, and its deputy uses it from time to time.

use weft_core::ni::{Handle, Ni};
use weft_link::UdpLink;
use weft_shm::biased::{Inside, Owner, Visitor};

/// The network interface over UDP.
pub(crate) type Interface = Ni<UdpLink>;

/// The threads that use a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Users {
    /// The thread that made it.
    OneThread,
    /// Several threads, one at a time.
    SeveralThreads,
}

/// The bundle's handle to it.
#[derive(Clone, Debug)]
pub(crate) struct UdpNi(Owner<Interface>);

impl UdpNi {
    /// Makes an interface for this thread, or for several threads one at a time.
    pub fn new(interface: Interface, users: Users) -> UdpNi {
        UdpNi(match users {
            Users::OneThread => Owner::new(interface),
            Users::SeveralThreads => Owner::of_several_threads(interface),
        })
    }

    /// Returns the deputy's handle.
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
