//! The link of a bundle: at each of our addresses an *open* UDP socket for all peers, *direct* sockets for the peers that are sent the
//! most, and a clock.
//!
//! Each address has a socket of its own. So packets leave from the address that their receiver knows us by, and the reader of a packet
//! knows which address it came to, without control data in every call.

use crate::address::{self, first_packet_bytes, Ports, Wanted};
use crate::switch::Switch;
use crate::udp::{Received, Sent as Went, Stop, Udp};
use crate::NetworkError;
use nix::sys::time::TimeValLike;
use nix::time::{clock_gettime, ClockId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use weft_core::ni::{Link, Sent, Way};
use weft_shm::fork::without_forks;
use weft_shm::Pages;
use weft_transport::{Memory, Packets, Time};
use weft_wire::HostAddress;

/// Bytes of the largest packet: Ethernet's jumbo frames less the headers of IPv4 and UDP.
pub const PACKET_MOST: u16 = 9000 - 28;

/// The most peers with a direct socket: as many as there are sessions that each poll looks at.
const DIRECT_MOST: usize = 4;

/// A peer gets a direct socket once it was sent this many runs more than others.
const DIRECT_FROM: u32 = 64;

/// When looks add up to this, the next look is at an open socket, at another one each time. (Without direct sockets the other looks are at
/// the open socket that was heard last.) A look that found something, or made while open sockets are lively, counts [`BUSY_LOOK`], so each
/// eighth look is such a turn. Another look in vain counts [`IDLE_LOOK`], so each 32nd is: a bundle that waits for a packet at a direct
/// socket would lose time by looks at others.
const TURN: u32 = 32;
const BUSY_LOOK: u32 = 4;
const IDLE_LOOK: u32 = 1;

/// Open sockets are lively for this many turns after one of them was heard.
const LIVELY_TURNS: u32 = 64;

/// Below this, treat a packet as just arrived: hosts themselves take longer for a packet.
const LAY_LEAST: Duration = Duration::from_micros(20);

/// The kernel is asked for arrival times once this many runs were late within [`LATE_WITHIN`] while the link moved [`MOVED_MUCH`] bytes:
/// with less there are no queues. Asking costs: from then on the kernel reads the clock for each packet of the host, and a round trip of
/// 16 bytes takes 3 % longer.
const LATE_MANY: u32 = 100;
const LATE_WITHIN: Duration = Duration::from_millis(100);
const MOVED_MUCH: u64 = 1 << 20;

/// The way to nobody.
const NOWHERE: Way = Way { to: HostAddress::NONE, from: 0 };

/// A socket that is connected to one peer.
#[derive(Debug)]
struct Direct {
    to: Way,
    udp: Udp,
    /// The value of [`UdpLink::sends`] when it was last used.
    used_at: u32,
}

/// The link.
#[derive(Debug)]
pub struct UdpLink {
    /// The open sockets: one at each of our addresses, the preferred one first.
    open: Vec<Udp>,
    /// The open socket that was heard last.
    heard: usize,
    /// The user has set the addresses: no others are taken.
    are_set: bool,
    direct: Vec<Direct>,
    /// The peer that may get the next direct socket, and by how many sends it leads.
    favourite: (Way, u32),
    sends: u32,
    /// The direct socket that is looked at first.
    first: usize,
    /// The open socket that had the last turn.
    turn: usize,
    /// The sum of looks since that turn, see [`TURN`].
    owed: u32,
    /// For how many more turns open sockets are lively.
    lively: u32,
    /// A socket was made that nobody watches.
    has_new: bool,
    /// How many sockets were made after the first ones. Wraps around.
    made: u32,
    /// Something woke the bundle; a packet may be on any socket.
    has_woken: bool,
    /// Since then no packet was found.
    has_woken_in_vain: bool,
    /// Sockets are watched. A closed socket would stay open in the kernel for as long as its watcher sleeps.
    is_watched: bool,
    /// The deputy has asked for the sockets' events, and the bundle does not know.
    is_watched_by_deputy: bool,
    /// Shows the deputy that the program is active.
    switch: Option<Arc<Switch>>,
    /// The bytes of a packet that the interface of our first address carries.
    packet_bytes: usize,
    /// The socket that was heard last.
    last: Source,
    lying: Lying,
}

/// Memory for streams that have much under way. Its pages go to direct sockets without a copy.
#[derive(Debug)]
pub struct Stock(pub(crate) Pages);

impl Memory for Stock {
    fn zeroed(bytes: usize) -> Stock {
        Stock(Pages::zeroed(bytes))
    }
}

impl AsRef<[u8]> for Stock {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl AsMut<[u8]> for Stock {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.as_mut()
    }
}

/// One of the link's sockets.
#[derive(Clone, Copy, Debug)]
enum Source {
    Open(usize),
    Direct(usize),
}

/// For how long packets lay in the sockets before the bundle looked.
#[derive(Debug, Default)]
struct Lying {
    /// When a look last found nothing. A packet that is found now came after that.
    empty_at: Time,
    /// The kernel is asked for arrival times.
    asks: bool,
    /// Runs since `since` that may have lain there for [`LAY_LEAST`] or longer. Only counted before the kernel is asked.
    late: u32,
    since: Time,
    /// Bytes that were sent and received since `since`.
    moved: u64,
}

impl Lying {
    /// When the run came that was received just before `now`. If that may matter, `ask` asks the kernel for its age and then reads the
    /// clock. It is asked for each run anew: of several runs that lay there, each came later than the one before.
    ///
    /// If the thread is preempted in here, the run seems to have come later than it did, never earlier. A round trip that seems too short
    /// would be taken for one without queues for ever.
    #[inline]
    fn came_at(&mut self, now: Time, ask: impl FnOnce() -> Option<(Duration, Time)>) -> Time {
        if now.since(self.empty_at) < LAY_LEAST || !self.is_worth_asking(now) {
            return now;
        }
        ask().map_or(now, |(age, told_at)| (told_at - age).max(self.empty_at).min(now))
    }

    /// Whether many runs lay there lately, while many bytes were moved.
    fn is_worth_asking(&mut self, now: Time) -> bool {
        if !self.asks {
            if now.since(self.since) > LATE_WITHIN {
                (self.late, self.since, self.moved) = (0, now, 0);
            }
            self.late += 1;
            self.asks = self.late >= LATE_MANY && self.moved >= MOVED_MUCH;
        }
        self.asks
    }
}

impl UdpLink {
    /// A link at these addresses, with the same port at all of them. An address that cannot be had is left out, unless the user set it.
    ///
    /// # Errors
    /// If an address or port cannot be had, or an interface carries packets that are too small.
    pub fn open(wanted: &Wanted) -> Result<UdpLink, NetworkError> {
        let mut open: Vec<Udp> = Vec::new();
        let mut packet_bytes = None;
        for address in &wanted.addresses {
            let ports = open.first().map_or(wanted.ports, |first| Ports::only(first.local().port()));
            match Udp::open(*address, ports).and_then(|udp| Ok((first_packet_bytes(*address)?, udp))) {
                Ok((bytes, udp)) => {
                    packet_bytes.get_or_insert(bytes);
                    open.push(udp);
                }
                Err(error) if open.is_empty() || wanted.are_set => return Err(error),
                Err(_) => {}
            }
        }
        Ok(UdpLink {
            open,
            heard: 0,
            are_set: wanted.are_set,
            direct: Vec::new(),
            favourite: (NOWHERE, 0),
            sends: 0,
            first: 0,
            turn: 0,
            owed: 0,
            lively: 0,
            has_new: false,
            made: 0,
            has_woken: false,
            has_woken_in_vain: false,
            is_watched: false,
            is_watched_by_deputy: false,
            switch: None,
            packet_bytes: packet_bytes.unwrap_or(0),
            last: Source::Open(0),
            lying: Lying::default(),
        })
    }

    /// Replaces sockets at addresses that this host has lost (to DHCP, or with a VPN) by sockets at the addresses that it has now, with
    /// the same port. Packets to the lost addresses are lost in any case. Does nothing if the user has set the addresses. Makes system
    /// calls.
    #[cold]
    pub fn renew(&mut self) {
        if self.are_set {
            return;
        }
        for index in 0..self.open.len() {
            let old = self.open[index].local();
            if address::is_here(old.ip()) {
                continue;
            }
            let is_new = |address: &IpAddr| self.open.iter().all(|udp| udp.local().ip() != *address);
            let Some(here) = address::present().into_iter().find(is_new) else { return };
            let Ok(mut udp) = Udp::open(here, Ports::only(old.port())) else { continue };
            udp.limit_buffers(self.open[index].receive_most());
            self.open[index] = udp;
            if let Ok(bytes) = first_packet_bytes(here) {
                self.packet_bytes = if index == 0 { bytes } else { self.packet_bytes };
            }
            self.direct.retain(|direct| usize::from(direct.to.from) != index);
            self.has_new = true;
            self.made = self.made.wrapping_add(1);
        }
    }

    /// Limits the receive buffer of each socket to `most` bytes of kernel memory.
    pub fn limit_buffers(&mut self, most: usize) {
        self.open.iter_mut().for_each(|udp| udp.limit_buffers(Some(most)));
    }

    /// From now on each send winds the switch if the deputy rests.
    pub fn set_switch(&mut self, switch: Arc<Switch>) {
        self.switch = Some(switch);
    }

    /// The deputy asks for the sockets' events.
    pub fn watch_for_the_deputy(&mut self) {
        (self.is_watched, self.is_watched_by_deputy) = (true, true);
    }

    /// Whether the deputy has asked for the sockets' events since the last call.
    pub fn was_watched_by_deputy(&mut self) -> bool {
        std::mem::take(&mut self.is_watched_by_deputy)
    }

    /// The bundle did something that the deputy should know of. Returns true if the switch was wound.
    #[inline(always)]
    pub fn notice(&self) -> bool {
        self.switch.as_ref().is_some_and(|switch| switch.notice())
    }

    /// Winds the switch, because the bundle looks for packets. A system call.
    pub fn wind(&self) {
        if let Some(switch) = &self.switch {
            switch.wind();
        }
    }

    /// The address by which others reach the link.
    pub fn address(&self) -> HostAddress {
        let Some(first) = self.open.first() else { return HostAddress::NONE };
        let v4 =
            |udp: &Udp| Some(udp.local().ip()).and_then(|ip| if let IpAddr::V4(v4) = ip { Some(v4) } else { None });
        let several: Vec<Ipv4Addr> = self.open.iter().filter_map(v4).collect();
        HostAddress::of_several(&several, first.local().port()).unwrap_or_else(|| host_address(first.local()))
    }

    /// The size of the smallest receive buffer, as the kernel counts it.
    pub fn receive_bytes(&self) -> usize {
        self.open.iter().map(Udp::receive_bytes).min().unwrap_or(0)
    }

    /// The next run of packets, if one came: the way that it came, its bytes, and the bytes of each packet but the last.
    #[inline(always)]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<(Way, usize, usize)> {
        if self.has_woken {
            let (first, all) = (self.next_turn(), self.open.len());
            if let Some(run) = (first..all).chain(0..first).find_map(|index| self.receive_at(index, buffer)) {
                self.has_woken_in_vain = false;
                return Some(run);
            }
            if std::mem::take(&mut self.has_woken_in_vain) {
                // Something woke us, and it was no packet: perhaps an error report.
                self.all().for_each(Udp::look_for_words);
            }
            self.has_woken = false;
        } else if self.owed >= TURN {
            self.owed = 0;
            self.lively = self.lively.saturating_sub(1);
            let turn = self.next_turn();
            if let Some(run) = self.receive_at(turn, buffer) {
                return Some(run);
            }
        } else if self.direct.is_empty() {
            self.owed += BUSY_LOOK;
            return self.receive_at(self.heard, buffer);
        }
        // Start with another socket each time, so that none starves the rest.
        let all = self.direct.len();
        let first = if self.first + 1 < all { self.first + 1 } else { 0 };
        self.first = first;
        for index in (first..all).chain(0..first) {
            let direct = &mut self.direct[index];
            if let Received::Run { bytes, segment, .. } = direct.udp.receive(buffer) {
                self.last = Source::Direct(index);
                self.lying.moved += bytes as u64;
                self.owed += BUSY_LOOK;
                return Some((direct.to, bytes, segment));
            }
        }
        self.owed += if self.lively > 0 { BUSY_LOOK } else { IDLE_LOOK };
        None
    }

    /// When the last run that [`UdpLink::receive`] returned came to this host, as far as it matters. May make a system call.
    #[inline]
    pub fn came_at(&mut self, now: Time) -> Time {
        let (open, direct) = (&self.open, &self.direct);
        let ask = || {
            let age = match self.last {
                Source::Open(index) => open.get(index)?.age_of_last(),
                Source::Direct(index) => direct.get(index)?.udp.age_of_last(),
            };
            Some((age?, monotonic()))
        };
        self.lying.came_at(now, ask)
    }

    /// Whether [`Link::next_refusal`] may find something.
    #[inline]
    pub fn has_words(&self) -> bool {
        self.all().any(Udp::has_words)
    }

    /// Notes that a look found nothing, at about this time.
    #[inline]
    pub fn found_nothing(&mut self, now: Time) {
        self.lying.empty_at = now;
    }

    /// The open socket whose turn it is now.
    #[inline(always)]
    fn next_turn(&mut self) -> usize {
        self.turn = if self.turn + 1 < self.open.len() { self.turn + 1 } else { 0 };
        self.turn
    }

    #[inline(always)]
    fn receive_at(&mut self, index: usize, buffer: &mut [u8]) -> Option<(Way, usize, usize)> {
        match self.open.get_mut(index)?.receive(buffer) {
            Received::Run { from, bytes, segment } => {
                self.heard = index;
                self.lively = LIVELY_TURNS;
                self.last = Source::Open(index);
                self.lying.moved += bytes as u64;
                Some((Way { to: host_address(from), from: index as u8 }, bytes, segment))
            }
            Received::Nothing => None,
        }
    }

    /// How many sends there were. Wraps around.
    #[inline]
    pub fn sends(&self) -> u32 {
        self.sends
    }

    /// Has the next look be at all sockets.
    pub fn look_at_all(&mut self) {
        (self.has_woken, self.has_woken_in_vain) = (true, true);
    }

    /// For a bundle that seldom looks: has the next look be at the open sockets of all our addresses, and counts it as a busy one.
    pub fn look_everywhere(&mut self) {
        self.has_woken |= self.open.len() > 1;
        self.owed += BUSY_LOOK;
    }

    /// Sets whether the sockets are watched. Returns whether there is a socket that was not there when they were last watched.
    pub fn set_watched(&mut self, is_watched: bool) -> bool {
        self.is_watched = is_watched;
        is_watched && std::mem::take(&mut self.has_new)
    }

    /// Whether the program closed all sockets by their numbers. Asks the kernel.
    pub fn has_lost_its_sockets(&self) -> bool {
        !self.all().any(Udp::is_ours)
    }

    /// How many sockets were made after the first ones. Wraps around.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// All sockets.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all().map(AsFd::as_fd)
    }

    #[inline]
    fn all(&self) -> impl Iterator<Item = &Udp> {
        self.open.iter().chain(self.direct.iter().map(|d| &d.udp))
    }

    /// Sends a run, with `send` if the peer has a direct socket.
    #[inline(always)]
    fn send_by(
        &mut self,
        to: Way,
        packets: &[u8],
        segment: usize,
        send: impl FnOnce(&Udp, &[u8], usize) -> Went,
    ) -> Sent {
        self.sends = self.sends.wrapping_add(1);
        self.lying.moved += packets.len() as u64;
        self.notice();
        let went = match self.direct.iter_mut().find(|d| d.to == to) {
            Some(direct) => {
                direct.used_at = self.sends;
                send(&direct.udp, packets, segment)
            }
            None => self.send_plainly(to, packets, segment),
        };
        match went.stop {
            // Packets that cannot get there are lost, as packets may be.
            None | Some(Stop::Unreachable) => Sent::All,
            Some(Stop::Full) => Sent::Full(went.packets),
            Some(Stop::TooLarge) => Sent::TooLarge(went.packets),
        }
    }

    /// Sends to a peer without a direct socket. The peer gets one if it is sent more than others (Boyer and Moore's majority vote).
    fn send_plainly(&mut self, to: Way, packets: &[u8], segment: usize) -> Went {
        let address = socket_address(to.to);
        let (favourite, lead) = &mut self.favourite;
        match (*favourite == to, *lead) {
            (true, DIRECT_FROM) => self.make_direct(to, &address),
            (true, _) => *lead += 1,
            (false, 0) => self.favourite = (to, 1),
            (false, _) => *lead -= 1,
        }
        self.open[usize::from(to.from)].send(&address, packets, segment)
    }

    #[cold]
    fn make_direct(&mut self, to: Way, address: &SocketAddr) {
        self.favourite = (NOWHERE, 0);
        if self.direct.len() == DIRECT_MOST {
            let idle = |d: &Direct| self.sends.wrapping_sub(d.used_at);
            let Some(oldest) = (0..self.direct.len()).max_by_key(|&at| idle(&self.direct[at])) else { return };
            if self.is_watched || idle(&self.direct[oldest]) < DIRECT_FROM * DIRECT_MOST as u32 {
                return; // all of them are busy, or none may be closed now
            }
            // Packets that wait in it are lost, as packets may be.
            self.direct.swap_remove(oldest);
        }
        let others = self.direct.iter().filter(|d| d.to.from == to.from).map(|d| &d.udp);
        if let Some(udp) = self.open[usize::from(to.from)].direct(address, others) {
            self.direct.push(Direct { to, udp, used_at: self.sends });
            self.has_new = true;
            self.made = self.made.wrapping_add(1);
        }
    }
}

impl Link for UdpLink {
    type Memory = Stock;

    #[inline]
    fn now(&self) -> Time {
        monotonic()
    }

    #[inline]
    fn send(&mut self, to: Way, packets: &[u8], segment: usize) -> Sent {
        self.send_by(to, packets, segment, Udp::send_to_peer)
    }

    fn send_lasting(&mut self, to: Way, packets: &Packets<'_, Stock>, segment: usize) -> Sent {
        let Packets { memory: Stock(pages), place } = packets;
        self.send_by(to, packets, segment, |udp, _, segment| udp.send_lasting_to_peer(pages, place.clone(), segment))
    }

    fn answer(&mut self, to: Way, packet: &[u8]) {
        // The result does not matter, and answers to strangers do not count towards a direct socket.
        let _ = self.open[usize::from(to.from)].send(&socket_address(to.to), packet, packet.len());
    }

    fn next_refusal(&mut self, quoted: &mut [u8]) -> Option<(HostAddress, usize)> {
        let mut telling = self.all().filter(|udp| udp.has_words());
        telling.find_map(|udp| udp.next_refusal(quoted)).map(|(to, bytes)| (host_address(to), bytes))
    }

    /// The way from the address that the kernel would choose, or from our preferred one if that is not ours.
    #[cold]
    fn way_to(&mut self, address: HostAddress) -> Option<Way> {
        let there = socket_address(address);
        // Connecting sends nothing; it looks up the route.
        let unspecified: IpAddr =
            if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let here = without_forks(|| {
            let probe = UdpSocket::bind((unspecified, 0)).ok()?;
            probe.connect(there).ok()?;
            Some(probe.local_addr().ok()?.ip())
        })?;
        if self.open.iter().all(|udp| udp.local().ip() != here) {
            self.renew();
        }
        let from = self.open.iter().position(|udp| udp.local().ip() == here).unwrap_or(0);
        Some(Way { to: address, from: from as u8 })
    }

    fn packet_bytes(&self, to: Way) -> u16 {
        let known = self.open[usize::from(to.from)].packet_bytes(&socket_address(to.to)).unwrap_or(self.packet_bytes);
        u16::try_from(known).unwrap_or(u16::MAX)
    }

    fn room(&self) -> u64 {
        // The kernel doubles the size for its own overhead.
        self.receive_bytes() as u64 / 2
    }
}

#[inline]
fn monotonic() -> Time {
    // It cannot fail. The kernel's clock begins with the machine's start, and 584 years fit.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.num_nanoseconds());
    Time::from_nanos(now as u64)
}

/// An address in the kernel's form.
#[inline]
fn socket_address(address: HostAddress) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(address.ip).to_canonical(), address.port)
}

/// An address in the form of names.
#[inline]
fn host_address(address: SocketAddr) -> HostAddress {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    HostAddress { ip: ip.octets(), port: address.port() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn the_kernel_is_asked_once_many_runs_lay_there_while_much_was_moved() {
        // A number of late runs, the microseconds from one to the next, and the bytes of each.
        let asks = |runs: u32, apart: u64, bytes: u64| {
            let mut lying = Lying::default();
            let mut asked = false;
            for nth in 1..=u64::from(runs) {
                lying.empty_at = at(1_000_000 + nth * apart - 30);
                lying.came_at(at(1_000_000 + nth * apart), || {
                    asked = true;
                    None
                });
                lying.moved += bytes;
            }
            asked
        };
        let enough = MOVED_MUCH.div_ceil(u64::from(LATE_MANY) - 1);
        assert!(!asks(LATE_MANY - 1, 900, 100 * enough), "few");
        assert!(asks(LATE_MANY, 900, enough));
        assert!(!asks(10 * LATE_MANY, 1100, 100 * enough), "seldom");
        assert!(!asks(LATE_MANY + 10, 900, enough / 2), "little");
        assert!(asks(10 * LATE_MANY, 100, enough / 8), "of many small ones");
    }

    #[test]
    fn the_kernel_is_asked_about_each_run_that_lay_there() {
        let mut lying = Lying { empty_at: at(1000), asks: true, ..Lying::default() };
        // The time of the look, the age in the kernel's answer, and the time of that answer.
        let mut came = |now, age, told_at| lying.came_at(at(now), || Some((Duration::from_micros(age), at(told_at))));
        assert_eq!(came(4000, 2900, 4000), at(1100));
        assert_eq!(came(4005, 2000, 4005), at(2005), "a little later, but it came much later");
        assert_eq!(came(4010, 9999, 4010), at(1000), "the last look found nothing");
        assert_eq!(lying.came_at(at(4015), || None), at(4015));
        assert_eq!(lying.came_at(at(1010), || panic!("not worth it")), at(1010));
    }

    #[test]
    fn a_thread_preempted_between_look_and_question_finds_no_run_older_than_it_is() {
        let mut lying = Lying { empty_at: at(1000), asks: true, ..Lying::default() };
        let mut came = |now, age, told_at| lying.came_at(at(now), || Some((Duration::from_micros(age), at(told_at))));
        assert_eq!(came(2000, 3100, 5000), at(1900), "3 ms away before the kernel was asked");
        assert_eq!(came(2000, 100, 5000), at(2000), "or after it");
    }
}
