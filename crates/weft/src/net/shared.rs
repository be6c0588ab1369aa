//! A bundle's network interface, which is the bundle's own, and now and then its deputy's.

use super::link::UdpLink;
use weft_core::ni::{Handle, Ni};
use weft_shm::biased::{Inside, Owner, Visitor};

/// The network interface over UDP.
pub(crate) type Interface = Ni<UdpLink>;

/// The bundle's handle to it.
#[derive(Clone, Debug)]
pub(crate) struct UdpNi(Owner<Interface>);

impl UdpNi {
    /// This thread's.
    pub fn new(interface: Interface) -> UdpNi {
        UdpNi(Owner::new(interface))
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
