//! What a network interface asks of its link.

use weft_transport::{Memory, Packets, Time};
use weft_wire::HostAddress;

/// The result of giving a run of packets to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// All were sent, or were lost as packets may be.
    All,
    /// This many were sent; the link takes no more now.
    Full(usize),
    /// This many were sent. The next one is larger than the link carries; it and those after it are lost.
    TooLarge(usize),
}

/// Carries packets between network interfaces, and tells the time. No call blocks.
pub trait Link {
    /// The memory for streams with much data in flight.
    type Memory: Memory;
    /// The current time. It never goes back.
    fn now(&self) -> Time;
    /// Sends packets that are stored back to back. Each has `segment` bytes, except that the last may be shorter.
    fn send(&mut self, to: Way, packets: &[u8], segment: usize) -> Sent;
    /// Like [`Link::send`], for packets in [`Link::Memory`]. The link may read them after the call: a packet stays
    /// unchanged until the peer has taken its contents, except for a shorter last packet. The contents of lost packets
    /// are sent again from another place.
    fn send_lasting(&mut self, to: Way, packets: &Packets<'_, Self::Memory>, segment: usize) -> Sent {
        self.send(to, packets, segment)
    }
    /// Answers a stranger with one packet. If there is no room, the packet is lost, and the stranger asks again.
    fn answer(&mut self, to: Way, packet: &[u8]) {
        let _ = self.send(to, packet, packet.len());
    }
    /// Returns the next packet that could not be delivered because nobody has the port, if the network says so: its
    /// destination, and how much of its beginning was written to `quoted`. May make system calls.
    fn next_refusal(&mut self, quoted: &mut [u8]) -> Option<(HostAddress, usize)> {
        let _ = quoted;
        None
    }
    /// Returns the way to an address, if one is known. May make system calls.
    fn way_to(&mut self, address: HostAddress) -> Option<Way> {
        Some(Way { to: address, from: 0 })
    }
    /// Returns the packet size in bytes to begin with on a way: the first guess of what gets through. May make system
    /// calls.
    fn packet_bytes(&self, to: Way) -> u16;
    /// Bytes of packets that the host buffers until they are received; more is lost. `u64::MAX` for no limit.
    fn room(&self) -> u64 {
        u64::MAX
    }
}

/// A way to a host: its address, and our own address by which it knows us.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Way {
    /// The host's address.
    pub to: HostAddress,
    /// The number of our address in the link's list.
    pub from: u8,
}
