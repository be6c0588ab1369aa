//! The link of a bundle: a UDP socket for everybody, direct ones for the peers that much is said to, and a clock.

use super::address::first_packet_bytes;
use super::udp::{Received, Sent as Went, Stop, Udp};
use super::NetworkError;
use nix::sys::time::TimeValLike;
use nix::time::{clock_gettime, ClockId};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use weft_core::ni::{Link, Sent, Way};
use weft_transport::Time;
use weft_wire::HostAddress;

/// Bytes of the largest packet: Ethernet's jumbo frames less the headers of IPv4 and UDP.
pub(crate) const PACKET_MOST: u16 = 9000 - 28;

/// Peers with a socket of their own, as many as there are sessions that are looked at on every poll.
const DIRECT_MOST: usize = 4;

/// So many more sends to one peer than to others make it one with a socket of its own.
const DIRECT_FROM: u32 = 64;

/// The socket for everybody is looked at once in so many looks while there are direct ones.
const OTHERS_EVERY: u32 = 8;

/// A socket that is connected to one peer.
#[derive(Debug)]
struct Direct {
    to: HostAddress,
    udp: Udp,
    /// The send at which it was used last.
    used_at: u32,
}

/// The link.
#[derive(Debug)]
pub(crate) struct UdpLink {
    udp: Udp,
    direct: Vec<Direct>,
    /// Who may get the next direct socket, and by how many sends it leads.
    favourite: (HostAddress, u32),
    sends: u32,
    looks: u32,
    /// A direct socket was made that nobody watches.
    has_new: bool,
    /// Something woke us: it may be on any socket.
    has_woken: bool,
    /// Sockets are watched: one that is closed would live on for as long as its watcher sleeps.
    is_watched: bool,
    /// What the interface of our address carries.
    packet_bytes: usize,
}

impl UdpLink {
    /// A link over a socket.
    ///
    /// # Errors
    /// If the interface of its address carries packets that are too small.
    pub fn new(udp: Udp) -> Result<UdpLink, NetworkError> {
        let packet_bytes = first_packet_bytes(udp.local().ip())?;
        let favourite = (HostAddress::NONE, 0);
        Ok(UdpLink {
            udp,
            direct: Vec::new(),
            favourite,
            sends: 0,
            looks: 0,
            has_new: false,
            has_woken: false,
            is_watched: false,
            packet_bytes,
        })
    }

    /// Where others reach it.
    pub fn address(&self) -> HostAddress {
        host_address(self.udp.local())
    }

    /// The next run of packets, if one came: from whom, bytes, and bytes of each packet but the last.
    #[inline(always)]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<(HostAddress, usize, usize)> {
        self.looks = self.looks.wrapping_add(1);
        let is_others_turn = self.direct.is_empty() || self.has_woken || self.looks % OTHERS_EVERY == 0;
        if is_others_turn {
            if let Received::Run { from, bytes, segment } = self.udp.receive(buffer) {
                return Some((host_address(from), bytes, segment));
            }
            self.has_woken = false;
        }
        // Another one first each time, so that none keeps the rest unread.
        let all = self.direct.len();
        for at in 0..all {
            let direct = &mut self.direct[(self.looks as usize + at) % all];
            if let Received::Run { bytes, segment, .. } = direct.udp.receive(buffer) {
                return Some((direct.to, bytes, segment));
            }
        }
        None
    }

    /// The next look is at all sockets.
    pub fn look_at_all(&mut self) {
        self.has_woken = true;
    }

    /// The sockets are watched from now on, or are not. Says whether there is one that was not there when they last were.
    pub fn set_watched(&mut self, is_watched: bool) -> bool {
        self.is_watched = is_watched;
        is_watched && std::mem::take(&mut self.has_new)
    }

    /// All sockets.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.udp.as_fd()).chain(self.direct.iter().map(|d| d.udp.as_fd()))
    }

    /// Sends to a peer without a direct socket, which it gets if more is said to it than to others (Boyer and Moore's vote).
    fn send_plainly(&mut self, to: HostAddress, packets: &[u8], segment: usize) -> Went {
        let address = socket_address(to);
        let (favourite, lead) = &mut self.favourite;
        match (*favourite == to, *lead) {
            (true, DIRECT_FROM) => self.make_direct(to, &address),
            (true, _) => *lead += 1,
            (false, 0) => self.favourite = (to, 1),
            (false, _) => *lead -= 1,
        }
        self.udp.send(&address, packets, segment)
    }

    #[cold]
    fn make_direct(&mut self, to: HostAddress, address: &SocketAddr) {
        self.favourite = (HostAddress::NONE, 0);
        if self.direct.len() == DIRECT_MOST {
            let idle = |d: &Direct| self.sends.wrapping_sub(d.used_at);
            let Some(oldest) = (0..self.direct.len()).max_by_key(|&at| idle(&self.direct[at])) else { return };
            if self.is_watched || idle(&self.direct[oldest]) < DIRECT_FROM * DIRECT_MOST as u32 {
                return; // all of them are busy, or it is not the time
            }
            // What waits in it is lost, as packets may be.
            self.direct.swap_remove(oldest);
        }
        if let Some(udp) = self.udp.direct(address, self.direct.iter().map(|d| &d.udp)) {
            self.direct.push(Direct { to, udp, used_at: self.sends });
            self.has_new = true;
        }
    }
}

impl Link for UdpLink {
    #[inline]
    fn now(&self) -> Time {
        // It cannot fail. The kernel's clock begins with the machine's start, and 584 years fit.
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.num_nanoseconds());
        Time::from_nanos(now as u64)
    }

    #[inline]
    fn send(&mut self, Way { to, .. }: Way, packets: &[u8], segment: usize) -> Sent {
        self.sends = self.sends.wrapping_add(1);
        let went = match self.direct.iter_mut().find(|d| d.to == to) {
            Some(direct) => {
                direct.used_at = self.sends;
                direct.udp.send_to_peer(packets, segment)
            }
            None => self.send_plainly(to, packets, segment),
        };
        match went.stop {
            // What cannot get there is lost, as packets may be.
            None | Some(Stop::Unreachable) => Sent::All,
            Some(Stop::Full) => Sent::Full(went.packets),
            Some(Stop::TooLarge) => Sent::TooLarge(went.packets),
        }
    }

    fn answer(&mut self, Way { to, .. }: Way, packet: &[u8]) {
        // Whether it went or not; and what strangers are told makes them no favourites.
        let _ = self.udp.send(&socket_address(to), packet, packet.len());
    }

    fn packet_bytes(&self, Way { to, .. }: Way) -> u16 {
        let known = self.udp.packet_bytes(&socket_address(to)).unwrap_or(self.packet_bytes);
        u16::try_from(known).unwrap_or(u16::MAX)
    }
}

/// An address as the kernel wants it.
#[inline]
fn socket_address(address: HostAddress) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(address.ip).to_canonical(), address.port)
}

/// An address as names carry it.
#[inline]
fn host_address(address: SocketAddr) -> HostAddress {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    HostAddress { ip: ip.octets(), port: address.port() }
}
