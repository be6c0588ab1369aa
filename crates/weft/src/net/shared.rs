//! A bundle's network interface, which is the bundle's own, and now and then its deputy's.

use weft_core::ni::{Handle, Ni};
use weft_link::UdpLink;
use weft_shm::biased::{Inside, Owner, Visitor};

/// The network interface over UDP.
pub(crate) type Interface = Ni<UdpLink>;

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
