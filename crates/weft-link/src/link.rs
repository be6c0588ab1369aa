//! The link of a bundle: at each of our addresses a UDP socket for everybody, direct ones for the peers that much is said to, and a
//! clock.
//!
//! A socket for each address, and not one for all of them: so packets leave from the address that their receiver knows us by, and
//! who reads one knows where it came to, without control data in every call.

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

/// Peers with a socket of their own, as many as there are sessions that are looked at on every poll.
const DIRECT_MOST: usize = 4;

/// So many more sends to one peer than to others make it one with a socket of its own.
const DIRECT_FROM: u32 = 64;

/// When it is the turn of a socket for everybody, of another one each time, while there are direct ones (while there are none the other
/// looks are at the one that was heard last). A look counts for so many of these parts: one that found something, or while somebody spoke
/// to a socket for everybody lately, makes each eighth such a turn. One that found nothing makes each 32nd: whoever waits for a packet at
/// a direct socket looks at nothing else meanwhile, and a look at another takes as long as one at it.
const TURN: u32 = 32;
const BUSY_LOOK: u32 = 4;
const IDLE_LOOK: u32 = 1;

/// Such turns, after one that found something, for which that counts as lately.
const LIVELY_TURNS: u32 = 64;

/// What may have lain there for less than this came just now: less is of no account beside what hosts take for a packet.
const LAY_LEAST: Duration = Duration::from_micros(20);

/// The kernel is asked how long packets lay once so many runs did within this time, while the link moved so many bytes: there are no queues
/// without that. For once a socket has asked, the kernel looks at the clock for each packet of the host, and a round trip of 16 bytes takes
/// 3 % longer.
const LATE_MANY: u32 = 100;
const LATE_WITHIN: Duration = Duration::from_millis(100);
const MOVED_MUCH: u64 = 1 << 20;

/// Nobody's way.
const NOWHERE: Way = Way { to: HostAddress::NONE, from: 0 };

/// A socket that is connected to one peer.
#[derive(Debug)]
struct Direct {
    to: Way,
    udp: Udp,
    /// The send at which it was used last.
    used_at: u32,
}

/// The link.
#[derive(Debug)]
pub struct UdpLink {
    /// For everybody: one at each of our addresses, the preferred one first.
    open: Vec<Udp>,
    /// The one of them that was heard last.
    heard: usize,
    /// Somebody has set the addresses: no others are taken.
    are_set: bool,
    direct: Vec<Direct>,
    /// Who may get the next direct socket, and by how many sends it leads.
    favourite: (Way, u32),
    sends: u32,
    /// The direct socket that is looked at first.
    first: usize,
    /// Whose turn it was of those for everybody, what counts towards the next turn, and for how many turns they are lively.
    turn: usize,
    owed: u32,
    lively: u32,
    /// A direct socket was made that nobody watches.
    has_new: bool,
    /// How many sockets were made after the first ones. Wraps around.
    made: u32,
    /// Something woke us: it may be on any socket.
    has_woken: bool,
    /// And no packet was found since.
    has_woken_in_vain: bool,
    /// Sockets are watched: one that is closed would live on for as long as its watcher sleeps.
    is_watched: bool,
    /// The deputy has asked for their word, and the bundle does not know.
    is_watched_by_deputy: bool,
    /// Lets the deputy know that the program is there.
    switch: Option<Arc<Switch>>,
    /// What the interface of our first address carries.
    packet_bytes: usize,
    /// The socket that was heard last.
    last: Source,
    lying: Lying,
}

/// What streams that have much under way lie in: its pages go to direct sockets as they are.
#[derive(Debug)]
pub struct Stock(Pages);

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

/// For how long packets lay in the sockets before somebody looked.
#[derive(Debug, Default)]
struct Lying {
    /// When a look last found nothing: what came since, lay there for less time.
    empty_at: Time,
    /// The kernel is asked from now on.
    asks: bool,
    /// Until then: runs that may have lain there since a time, and bytes that were sent and received.
    late: u32,
    since: Time,
    moved: u64,
}

impl Lying {
    /// When the run came that was received just before `now`. `ask` asks the kernel for its age and then looks at the clock, which is done if it
    /// may be worth it; and for each run anew, for while many are taken that lay there, each came later than the one before.
    ///
    /// Whoever is kept off its core within this finds that the run came later than it did, and never earlier: a round trip that is told to be
    /// too short would be taken for one without queues for ever.
    #[inline]
    fn came_at(&mut self, now: Time, ask: impl FnOnce() -> Option<(Duration, Time)>) -> Time {
        if now.since(self.empty_at) < LAY_LEAST || !self.is_worth_asking(now) {
            return now;
        }
        ask().map_or(now, |(age, told_at)| (told_at - age).max(self.empty_at).min(now))
    }

    /// Whether many runs lay there lately, while much was moved.
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
    /// A link at these addresses, with one port at all of them. An address that nobody asked for is left out if it cannot be had.
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

    /// Replaces sockets at addresses that this host has lost (to DHCP, or with a VPN) by others at the addresses that it has now,
    /// with the same port. What was said over the lost addresses is lost already. Does nothing if somebody has set the
    /// addresses. Makes system calls.
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

    /// Has the kernel keep at most so many bytes of memory of what came to each socket, and has not been received.
    pub fn limit_buffers(&mut self, most: usize) {
        self.open.iter_mut().for_each(|udp| udp.limit_buffers(Some(most)));
    }

    /// From now on a deputy is to know of all that is sent.
    pub fn set_switch(&mut self, switch: Arc<Switch>) {
        self.switch = Some(switch);
    }

    /// The deputy asks for the sockets' word.
    pub fn watch_for_the_deputy(&mut self) {
        (self.is_watched, self.is_watched_by_deputy) = (true, true);
    }

    /// Whether the deputy has asked for it since the last time.
    pub fn was_watched_by_deputy(&mut self) -> bool {
        std::mem::take(&mut self.is_watched_by_deputy)
    }

    /// The bundle did something that the deputy should know of. Returns true if the switch was wound.
    #[inline(always)]
    pub fn notice(&self) -> bool {
        self.switch.as_ref().is_some_and(|switch| switch.notice())
    }

    /// The bundle looks for packets. A system call.
    pub fn wind(&self) {
        if let Some(switch) = &self.switch {
            switch.wind();
        }
    }

    /// Where others reach it.
    pub fn address(&self) -> HostAddress {
        let Some(first) = self.open.first() else { return HostAddress::NONE };
        let v4 =
            |udp: &Udp| Some(udp.local().ip()).and_then(|ip| if let IpAddr::V4(v4) = ip { Some(v4) } else { None });
        let several: Vec<Ipv4Addr> = self.open.iter().filter_map(v4).collect();
        HostAddress::of_several(&several, first.local().port()).unwrap_or_else(|| host_address(first.local()))
    }

    /// How much the kernel keeps for us at an address.
    pub fn receive_bytes(&self) -> usize {
        self.open.iter().map(Udp::receive_bytes).min().unwrap_or(0)
    }

    /// The next run of packets, if one came: by which way, bytes, and bytes of each packet but the last.
    #[inline(always)]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<(Way, usize, usize)> {
        if self.has_woken {
            let (first, all) = (self.next_turn(), self.open.len());
            if let Some(run) = (first..all).chain(0..first).find_map(|index| self.receive_at(index, buffer)) {
                self.has_woken_in_vain = false;
                return Some(run);
            }
            if std::mem::take(&mut self.has_woken_in_vain) {
                // Something woke us, and it was no packet.
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
        // Another one first each time, so that none keeps the rest unread.
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

    /// When what [`UdpLink::receive`] gave last came to this host, as far as it matters. May make a system call.
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

    /// A look found nothing, after this time or a little before it.
    #[inline]
    pub fn found_nothing(&mut self, now: Time) {
        self.lying.empty_at = now;
    }

    /// The socket for everybody whose turn it is now.
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

    /// How often something was sent; it comes round.
    #[inline]
    pub fn sends(&self) -> u32 {
        self.sends
    }

    /// The next look is at all sockets.
    pub fn look_at_all(&mut self) {
        (self.has_woken, self.has_woken_in_vain) = (true, true);
    }

    /// Looks are seldom: each is at the sockets of all our addresses if there are several, and counts as a busy one.
    pub fn look_everywhere(&mut self) {
        self.has_woken |= self.open.len() > 1;
        self.owed += BUSY_LOOK;
    }

    /// The sockets are watched from now on, or are not. Says whether there is one that was not there when they last were.
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

    /// Sends, to a peer with a direct socket as is said.
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
            // What cannot get there is lost, as packets may be.
            None | Some(Stop::Unreachable) => Sent::All,
            Some(Stop::Full) => Sent::Full(went.packets),
            Some(Stop::TooLarge) => Sent::TooLarge(went.packets),
        }
    }

    /// Sends to a peer without a direct socket, which it gets if more is said to it than to others (Boyer and Moore's vote).
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
                return; // all of them are busy, or it is not the time
            }
            // What waits in it is lost, as packets may be.
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
        // Whether it went or not; and what strangers are told makes them no favourites.
        let _ = self.open[usize::from(to.from)].send(&socket_address(to.to), packet, packet.len());
    }

    fn next_refusal(&mut self, quoted: &mut [u8]) -> Option<(HostAddress, usize)> {
        let mut telling = self.all().filter(|udp| udp.has_words());
        telling.find_map(|udp| udp.next_refusal(quoted)).map(|(to, bytes)| (host_address(to), bytes))
    }

    /// By the address that the kernel would take by itself if it is one of ours.
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
        // The kernel counts twice, for what it needs itself.
        self.receive_bytes() as u64 / 2
    }
}

#[inline]
fn monotonic() -> Time {
    // It cannot fail. The kernel's clock begins with the machine's start, and 584 years fit.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.num_nanoseconds());
    Time::from_nanos(now as u64)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn the_kernel_is_asked_once_many_runs_lay_there_while_much_was_moved() {
        // Runs that lie, microseconds from one to the next, and bytes of each.
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
    fn of_runs_that_lay_there_each_is_asked_about_for_they_came_one_after_the_other() {
        let mut lying = Lying { empty_at: at(1000), asks: true, ..Lying::default() };
        // Looked at, then asked with this answer.
        let mut came = |now, age, told_at| lying.came_at(at(now), || Some((Duration::from_micros(age), at(told_at))));
        assert_eq!(came(4000, 2900, 4000), at(1100));
        assert_eq!(came(4005, 2000, 4005), at(2005), "a little later, but it came much later");
        assert_eq!(came(4010, 9999, 4010), at(1000), "the last look found nothing");
        assert_eq!(lying.came_at(at(4015), || None), at(4015));
        assert_eq!(lying.came_at(at(1010), || panic!("not worth it")), at(1010));
    }

    #[test]
    fn who_was_kept_off_between_the_look_and_the_question_finds_no_run_older_than_it_is() {
        let mut lying = Lying { empty_at: at(1000), asks: true, ..Lying::default() };
        let mut came = |now, age, told_at| lying.came_at(at(now), || Some((Duration::from_micros(age), at(told_at))));
        assert_eq!(came(2000, 3100, 5000), at(1900), "3 ms away before the kernel was asked");
        assert_eq!(came(2000, 100, 5000), at(2000), "or after it");
    }
}
