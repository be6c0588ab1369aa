//! The link over UDP: one kernel socket. Packets are sent and received in runs, so that bulk costs one system call for many packets,
//! and a single packet costs one call and nothing else.
//!
//! The kernel's abilities are discovered in use: a run goes as one segmented datagram (UDP_SEGMENT), by one `sendmmsg` where that is
//! refused, and packet by packet where there is no `sendmmsg`.
//!
//! Runs come in whole only if the kernel is asked for that (UDP_GRO). Then each receive must also ask for the length of the segments,
//! which makes a single packet a quarter more expensive. So runs are asked for only while packets follow one another, see [`Pace`].
//! The calls for single packets are inlined into their caller, because a return right after a system call is expensive, too.
//!
//! `quinn-udp` is not used, because it sends and receives control data with every datagram, which is 40 % more expensive.

use crate::address::Ports;
use crate::NetworkError as Error;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr, ReceiveTimestampns, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{self, ControlMessageOwned, MsgFlags, SockaddrStorage};
use rustix::io::Errno;
use rustix::net::{self, sockopt, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{addr::SocketAddrArg, MMsgHdr, SendAncillaryBuffer};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;
use weft_shm::fork::without_forks;
use weft_shm::{Descriptor, Pages};

/// Bytes of a buffer that holds any datagram and any run.
pub const RECEIVE_BYTES: usize = 64 << 10;

/// How far a run was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Packets that the kernel took, from the first on.
    pub packets: usize,
    /// Why it took no more; `None` if it took all.
    pub stop: Option<Stop>,
}

/// Why the kernel takes no more packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The link is full: the rest may go when the socket can be written again.
    Full,
    /// The next packet is larger than what the interface carries.
    TooLarge,
    /// The destination cannot be reached now: the rest is to be dropped as if it were lost.
    Unreachable,
}

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing, or so many errors in a row that the caller should do other work first.
    Nothing,
    /// Packets of one sender in the first `bytes` of the buffer, at least one: each has `segment` bytes, the last one may
    /// have fewer. Neither is 0.
    Run { from: SocketAddr, bytes: usize, segment: usize },
}

/// One UDP socket.
#[derive(Debug)]
pub struct Udp<K = Linux> {
    socket: Descriptor,
    local: SocketAddr,
    /// The peer, if the socket is connected.
    peer: Option<SocketAddr>,
    receive_bytes: usize,
    /// The limit of the receive buffer, if one is set.
    receive_most: Option<usize>,
    pace: Pace,
    dropped: u64,
    /// The kernel's error queue may have reports about packets that were sent.
    has_words: Cell<bool>,
    /// The best [`Way`] of sending that the kernel has not refused.
    way: Cell<Way>,
    /// The kernel does not take pages, so they are copied.
    copies: Cell<bool>,
    stamps: Stamps,
    kernel: K,
}

/// Arrival times of runs.
#[derive(Debug, Default)]
struct Stamps {
    /// The kernel gives the time with each run.
    are_on: Cell<bool>,
    /// The time of the last run, if the kernel gave it.
    last: Cell<Option<Duration>>,
}

/// Whether the socket receives runs or single packets, and the counts that decide it.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// The kernel puts packets together that arrive together.
    is_for_runs: bool,
    /// The kernel refused to put packets together.
    is_fixed: bool,
    /// Datagrams since a receive found nothing.
    streak: u32,
    /// Datagrams of a single packet in a row since runs are asked for.
    singles: u32,
    /// Receives in a row that found nothing, while runs are asked for.
    looks: u32,
}

impl Udp {
    /// Opens a socket at one address of this host, on the first free port of these. The unspecified address means all addresses; that of
    /// IPv6 those of both families.
    ///
    /// # Errors
    /// If all of these ports are in use, the address is not this host's, or the kernel gives no socket.
    pub fn open(at: IpAddr, ports: Ports) -> Result<Udp, Error> {
        Udp::with_kernel(at, ports, Linux::default())
    }

    /// A second socket at the same address and port, connected to one peer. A round trip of small packets takes a sixth less time over it,
    /// because the kernel looks up no route. From now on packets of that peer come to this socket. `None` if the kernel refuses. `others`
    /// are the sockets that were made by this call before.
    #[cold]
    pub fn direct<'a>(&self, peer: &SocketAddr, others: impl Iterator<Item = &'a Udp> + Clone) -> Option<Udp> {
        let peer = self.reach(peer);
        let socket = socket_for(self.local.ip()).ok()?;
        // Sockets may share a port if all allow it and belong to one user. They allow it only for this moment, so nobody else can join.
        let share = |should| {
            let all = others.clone().map(|u| &u.socket).chain([&self.socket, &socket]);
            all.map(|socket| sockopt::set_socket_reuseport(socket, should)).fold(Ok(()), Result::and)
        };
        let bound = share(true).and_then(|()| net::bind(&socket, &self.local)).is_ok();
        let _ = share(false);
        if !bound || net::connect(&socket, &peer).is_err() {
            return None;
        }
        if let Some(most) = self.receive_most {
            limit_buffer(&socket, most);
        }
        Some(Udp {
            socket,
            local: self.local,
            peer: Some(unmapped(peer)),
            receive_bytes: self.receive_bytes,
            receive_most: self.receive_most,
            pace: Pace::default(),
            dropped: 0,
            has_words: Cell::new(false),
            way: self.way.clone(),
            copies: Cell::new(false),
            stamps: Stamps::default(),
            kernel: Linux::default(),
        })
    }
}

impl<K: Kernel> Udp<K> {
    fn with_kernel(at: IpAddr, ports: Ports, kernel: K) -> Result<Udp<K>, Error> {
        let socket = socket_for(at).map_err(|e| Error::System {
            what: format!("cannot make a UDP socket for {at}"),
            source: e.into(),
            way_out: "Raise the limit of open files (ulimit -n); if this host has no such addresses set WEFT_ADDR to \
                      another, or to `none`",
        })?;
        let local = bind(&socket, at, ports)?;
        let receive_bytes = sockopt::socket_recv_buffer_size(&socket).unwrap_or(0);
        let way = Cell::new(Way::Segments);
        let has_words = Cell::new(false);
        let (peer, receive_most, pace) = (None, None, Pace::default());
        let (copies, stamps) = (Cell::new(false), Stamps::default());
        Ok(Udp {
            socket,
            local,
            peer,
            receive_bytes,
            receive_most,
            pace,
            dropped: 0,
            has_words,
            way,
            copies,
            stamps,
            kernel,
        })
    }

    /// Limits the receive buffer to `most` bytes of kernel memory, also for direct sockets that are made from now on.
    pub fn limit_buffers(&mut self, most: Option<usize>) {
        let Some(most) = most.filter(|most| *most < self.receive_bytes) else { return };
        limit_buffer(&self.socket, most);
        self.receive_most = Some(most);
        self.receive_bytes = sockopt::socket_recv_buffer_size(&self.socket).unwrap_or(0);
    }

    /// The limit that [`Udp::limit_buffers`] has set.
    pub fn receive_most(&self) -> Option<usize> {
        self.receive_most
    }

    /// Receives one datagram, or some that the kernel has put together. Does not block. Datagrams that do not fit into `buffer` are
    /// dropped, and so are errors that the network reported: the transport detects losses by itself.
    #[inline(always)]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Received {
        for _ in 0..ERRORS_MOST {
            let socket = self.socket.checked();
            let got = match self.pace.is_for_runs {
                false => self.kernel.receive_one(socket, self.peer, buffer),
                true => self.kernel.receive_run(socket, buffer),
            };
            match got {
                Ok(Got { from: Some(from), bytes, segment, is_whole: true, came_at }) if bytes > 0 => {
                    self.stamps.last.set(came_at);
                    let segment = segment.filter(|bytes| *bytes > 0).map_or(bytes, |segment| segment.min(bytes));
                    self.note_datagram(segment < bytes);
                    return Received::Run { from, bytes, segment };
                }
                Err(Errno::AGAIN) => {
                    self.note_nothing();
                    return Received::Nothing;
                }
                Err(Errno::INTR) => {}
                Ok(_) => self.dropped += 1,
                Err(_) => {
                    self.dropped += 1;
                    self.has_words.set(true);
                }
            }
        }
        Received::Nothing
    }

    /// Sends a run of packets that have `segment` bytes each, but the last, which may have fewer. Does not block.
    #[inline(always)]
    pub fn send(&self, to: &SocketAddr, packets: &[u8], segment: usize) -> Sent {
        self.send_to(Some(self.reach(to)), packets, segment)
    }

    /// As [`Udp::send`], to the peer that the socket is connected to.
    #[inline(always)]
    pub fn send_to_peer(&self, packets: &[u8], segment: usize) -> Sent {
        self.send_to(None, packets, segment)
    }

    /// As [`Udp::send_to_peer`], of memory that stays unchanged, see [`weft_core::ni::Link::send_lasting`]. A long run goes without a copy
    /// if the kernel can do that; a last packet that is shorter is copied.
    #[inline]
    pub fn send_lasting_to_peer(&self, pages: &Pages, place: Range<usize>, segment: usize) -> Sent {
        let packets = &pages.as_ref()[place.clone()];
        let count = packets.len() / segment.max(1);
        let whole = place.start..place.start + count * segment;
        let rest = &packets[whole.len()..];
        let is_run =
            (PAGES_LEAST..=DATAGRAM_MOST).contains(&whole.len()) && count <= SEGMENTS_MOST && pages.can_be_sent();
        let takes_pages = self.way.get() == Way::Segments && !self.copies.get();
        let length = u16::try_from(segment).ok().filter(|_| is_run && takes_pages);
        let went = length.map(|length| self.kernel.send_pages(self.socket.checked(), pages, whole, length));
        match went.map(|went| went.or_else(was_dropped)) {
            Some(Ok(())) if rest.is_empty() => Sent { packets: count, stop: None },
            Some(Ok(())) => {
                let Sent { packets, stop } = self.send_to_peer(rest, segment);
                Sent { packets: count + packets, stop }
            }
            Some(Err(Errno::AGAIN)) => Sent { packets: 0, stop: Some(Stop::Full) },
            // Try the other way: the error comes again, or the kernel takes the packets.
            Some(Err(error)) => {
                // An error of the network, or of memory at this moment, says nothing about pages. Neither does an error of
                // packets that no way carries, such as those that older kernels find too large.
                let says_nothing = self.note(error) || error == Errno::NOMEM;
                let sent = self.send_to_peer(packets, segment);
                self.copies.set(!says_nothing && sent.stop.is_none());
                sent
            }
            None => self.send_to_peer(packets, segment),
        }
    }

    #[inline(always)]
    fn send_to(&self, to: Option<SocketAddr>, packets: &[u8], segment: usize) -> Sent {
        if packets.len() > segment && segment > 0 {
            return self.send_run(to.as_ref(), packets, segment);
        }
        match self.retried((), || self.kernel.send_one(self.socket.checked(), to.as_ref(), packets)) {
            Ok(()) => Sent { packets: 1, stop: None },
            Err(error) => Sent { packets: 0, stop: Some(stop(error)) },
        }
    }

    /// Calls again if a signal interrupts the call, or if the error may be about an earlier packet.
    ///
    /// The kernel reports a network error by failing the next call on the socket, whichever that is, and then forgets it; that call did
    /// nothing. An error that comes again is about this packet. An attacker who guesses our port can forge a report that a packet is too
    /// large, once for each call or a few times.
    ///
    /// If the interface dropped the packets, the result is `dropped`: they are lost, as packets may be.
    #[inline(always)]
    fn retried<T>(&self, dropped: T, mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        let mut errors = 0;
        loop {
            match call() {
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => return Ok(dropped),
                Err(error) if errors < ERRORS_DOUBTED && self.note(error) => errors += 1,
                done => return done,
            }
        }
    }

    /// Notes an error of a call. Returns whether the network may have reported it, for an earlier packet.
    #[cold]
    #[inline(never)]
    fn note(&self, error: Errno) -> bool {
        let may_be_told = is_told_by_networks(error);
        self.has_words.set(self.has_words.get() | may_be_told);
        may_be_told
    }

    /// Whether [`Udp::next_refusal`] may find something.
    #[inline]
    pub fn has_words(&self) -> bool {
        self.has_words.get()
    }

    /// Has the next look read the error queue, although no call failed.
    pub fn look_for_words(&self) {
        self.has_words.set(true);
    }

    /// Reads the kernel's error queue up to the next report that nobody has a packet's port. Returns the packet's destination, and how many
    /// bytes of its beginning were written to `quoted`. Unread reports would wake the socket's watchers again and again. Does not block.
    #[cold]
    pub fn next_refusal(&self, quoted: &mut [u8]) -> Option<(SocketAddr, usize)> {
        for _ in 0..WORDS_MOST {
            match next_word(self.socket.as_fd(), quoted) {
                Ok(Some(refusal)) => return Some(refusal),
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => {
                    self.has_words.set(false);
                    return None;
                }
            }
        }
        None
    }

    /// How long ago the datagram or run that was received last came to this host, if the kernel says so. A system call; while runs are
    /// received only the first time, because from then on each run comes with its time.
    pub fn age_of_last(&self) -> Option<Duration> {
        if self.stamps.are_on.get() {
            return self.stamps.last.get().and_then(weft_shm::arrival::age_at);
        }
        let age = weft_shm::arrival::age_of_last(self.socket.as_fd());
        if self.pace.is_for_runs {
            self.stamps.are_on.set(self.kernel.stamp(self.socket.as_fd(), true).is_ok());
        }
        age
    }

    /// The socket's address, with the port that it got.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The bytes, without headers, of a packet that the first interface on the way to an address carries. `None` if the kernel does not
    /// know.
    #[cold]
    pub fn packet_bytes(&self, to: &SocketAddr) -> Option<usize> {
        without_forks(|| {
            // Connecting sends nothing; it looks up the route.
            let probe = UdpSocket::bind((self.local.ip(), 0)).ok()?;
            probe.connect(self.reach(to)).ok()?;
            let (mtu, headers) = match to.ip() {
                IpAddr::V4(_) => (sockopt::ip_mtu(&probe).ok()?, 28),
                IpAddr::V6(_) => (sockopt::ipv6_mtu(&probe).ok()?, 48),
            };
            (mtu as usize).checked_sub(headers)
        })
    }

    /// The size of the receive buffer as the kernel counts it: with its own overhead, so far fewer bytes of small packets fit.
    pub fn receive_bytes(&self) -> usize {
        self.receive_bytes
    }

    /// How many datagrams and errors [`receive`](Udp::receive) has dropped.
    #[cfg(test)]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    #[inline(always)]
    fn note_datagram(&mut self, is_run: bool) {
        self.pace.looks = 0;
        self.pace.streak = self.pace.streak.saturating_add(1);
        self.pace.singles = if is_run { 0 } else { self.pace.singles.saturating_add(1) };
        if self.pace.streak >= RUNS_FROM && !self.pace.is_for_runs && !self.pace.is_fixed {
            self.ask_for_runs();
        }
    }

    #[inline(always)]
    fn note_nothing(&mut self) {
        self.pace.streak = 0;
        if self.pace.is_for_runs {
            self.pace.looks += 1;
            if self.pace.singles >= SINGLES_MOST || self.pace.looks >= LOOKS_MOST {
                self.ask_for_no_runs();
            }
        }
    }

    #[cold]
    fn ask_for_runs(&mut self) {
        (self.pace.singles, self.pace.looks) = (0, 0);
        match self.kernel.put_together(self.socket.as_fd(), true) {
            Ok(()) => self.pace.is_for_runs = true,
            Err(_) => self.pace.is_fixed = true,
        }
    }

    /// Nothing was there a moment ago. A run that came since was put together, and must be received as a run: otherwise nobody would know
    /// where its packets end.
    #[cold]
    fn ask_for_no_runs(&mut self) {
        (self.pace.singles, self.pace.looks) = (0, 0);
        let socket = self.socket.as_fd();
        if self.stamps.are_on.take() {
            // Single packets are received without control data, so they would have no time.
            let _ = self.kernel.stamp(socket, false);
        }
        if self.kernel.put_together(socket, false).is_err() {
            return;
        }
        let is_still_empty = self.kernel.is_empty(socket);
        self.pace.is_for_runs = !is_still_empty && self.kernel.put_together(socket, true).is_ok();
    }

    #[inline(never)]
    fn send_run(&self, to: Option<&SocketAddr>, run: &[u8], segment: usize) -> Sent {
        let all = run.len().div_ceil(segment);
        let mut packets = 0;
        while packets < all {
            match self.send_some(to, &run[packets * segment..], segment) {
                Ok(some) => packets += some,
                Err(stop) => return Sent { packets, stop: Some(stop) },
            }
        }
        Sent { packets, stop: None }
    }

    /// Sends the first packet or packets of a run. Returns how many.
    fn send_some(&self, to: Option<&SocketAddr>, run: &[u8], segment: usize) -> Result<usize, Stop> {
        let most = (DATAGRAM_MOST / segment).min(SEGMENTS_MOST);
        let part = &run[..run.len().min(most * segment)];
        let has_segments = self.way.get() == Way::Segments;
        let length = u16::try_from(segment).ok().filter(|_| has_segments && part.len() > segment);
        let Some(length) = length else { return self.send_separately(to, run, segment) };
        match self.retried((), || self.kernel.send_segments(self.socket.checked(), to, part, length)) {
            Ok(()) => Ok(part.len().div_ceil(segment)),
            // Older kernels also say this of packets that cannot be sent in any way (too large ones). Only if the packets can be sent
            // separately, the segments were refused: by the interface, or by a tunnel of the kernel.
            Err(Errno::IO | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOPROTOOPT) => {
                self.kernel.forget_segments(self.socket.checked());
                let some = self.send_separately(to, run, segment)?;
                self.way.set(self.way.get().max(Way::Many));
                Ok(some)
            }
            Err(error) => Err(stop(error)),
        }
    }

    /// As `send_some`, with each packet as a datagram of its own.
    #[cold]
    fn send_separately(&self, to: Option<&SocketAddr>, run: &[u8], segment: usize) -> Result<usize, Stop> {
        if self.way.get() != Way::Single {
            match self.retried(1, || self.kernel.send_many(self.socket.checked(), to, run, segment)) {
                Ok(0) => return Err(Stop::Full),
                Ok(some) => return Ok(some),
                Err(Errno::NOSYS) => self.way.set(Way::Single),
                Err(error) => return Err(stop(error)),
            }
        }
        let packet = &run[..run.len().min(segment)];
        self.retried((), || self.kernel.send_one(self.socket.checked(), to, packet)).map(|()| 1).map_err(stop)
    }

    /// The address as the socket needs it: an IPv6 socket reaches IPv4 addresses by their mapped form (RFC 4291, section 2.5.5.2).
    #[inline(always)]
    fn reach(&self, to: &SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V4(v4) if self.local.is_ipv6() => {
                SocketAddr::V6(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0))
            }
            _ => *to,
        }
    }
}

impl<K> Udp<K> {
    /// Whether the socket is still ours: the program has not closed it by its number. Asks the kernel.
    pub fn is_ours(&self) -> bool {
        self.socket.is_ours()
    }
}

impl<K> AsFd for Udp<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Ways to send a run, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// The kernel, or the network card, cuts it.
    Segments,
    /// One call, many datagrams.
    Many,
    Single,
}

/// The system calls of the fast path. Tests can make them fail.
pub trait Kernel {
    fn send_one(&self, socket: BorrowedFd<'_>, to: Option<&SocketAddr>, packet: &[u8]) -> Result<(), Errno>;
    /// Sends a run as one datagram for the kernel to cut. The kernel takes all or nothing.
    fn send_segments(
        &self,
        socket: BorrowedFd<'_>,
        to: Option<&SocketAddr>,
        run: &[u8],
        segment: u16,
    ) -> Result<(), Errno>;
    /// Sends a run of whole packets, in pages that stay unchanged, to the socket's peer.
    fn send_pages(&self, socket: BorrowedFd<'_>, pages: &Pages, run: Range<usize>, segment: u16) -> Result<(), Errno>;
    /// Sets whether the kernel gives the arrival time with each run.
    fn stamp(&self, socket: BorrowedFd<'_>, should: bool) -> Result<(), Errno>;
    /// From now on the kernel cuts no datagrams.
    fn forget_segments(&self, socket: BorrowedFd<'_>);
    /// Sends the first packets of a run as separate datagrams. Returns how many.
    fn send_many(
        &self,
        socket: BorrowedFd<'_>,
        to: Option<&SocketAddr>,
        run: &[u8],
        segment: usize,
    ) -> Result<usize, Errno>;
    /// Receives a datagram while the kernel puts none together. A connected socket passes its `peer`, which is then the sender.
    fn receive_one(&self, socket: BorrowedFd<'_>, peer: Option<SocketAddr>, buffer: &mut [u8]) -> Result<Got, Errno>;
    /// Receives a datagram, or some that the kernel has put together.
    fn receive_run(&self, socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Got, Errno>;
    /// Sets whether the kernel puts datagrams together.
    fn put_together(&self, socket: BorrowedFd<'_>, should: bool) -> Result<(), Errno>;
    /// Whether there is nothing to receive.
    fn is_empty(&self, socket: BorrowedFd<'_>) -> bool;
}

/// A received datagram or run, as the kernel describes it.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    from: Option<SocketAddr>,
    bytes: usize,
    /// `None` for one datagram as it was sent.
    segment: Option<usize>,
    is_whole: bool,
    /// When it came, by the host's clock, if the kernel was asked for that.
    came_at: Option<Duration>,
}

/// The kernel itself.
#[derive(Debug, Default)]
pub struct Linux {
    /// The segment length that is set on the socket, or 0. Set on the socket and not given with each datagram, because it rarely changes.
    segment: Cell<u16>,
}

impl Linux {
    /// From now on the kernel cuts datagrams into packets of `segment` bytes.
    fn cut_into(&self, socket: BorrowedFd<'_>, segment: u16) -> Result<(), Errno> {
        if self.segment.get() != segment {
            socket::setsockopt(&socket, UdpGsoSegment, &segment.into()).map_err(errno)?;
            self.segment.set(segment);
        }
        Ok(())
    }
}

impl Kernel for Linux {
    #[inline(always)]
    fn send_one(&self, socket: BorrowedFd<'_>, to: Option<&SocketAddr>, packet: &[u8]) -> Result<(), Errno> {
        let segment = usize::from(self.segment.get());
        if packet.len() > segment && segment != 0 {
            self.forget_segments(socket);
        }
        send(socket, to, packet)
    }

    fn send_segments(
        &self,
        socket: BorrowedFd<'_>,
        to: Option<&SocketAddr>,
        run: &[u8],
        segment: u16,
    ) -> Result<(), Errno> {
        self.cut_into(socket, segment)?;
        send(socket, to, run)
    }

    fn send_pages(&self, socket: BorrowedFd<'_>, pages: &Pages, run: Range<usize>, segment: u16) -> Result<(), Errno> {
        self.cut_into(socket, segment)?;
        pages.send(socket, run)
    }

    #[cold]
    fn stamp(&self, socket: BorrowedFd<'_>, should: bool) -> Result<(), Errno> {
        socket::setsockopt(&socket, ReceiveTimestampns, &should).map_err(errno)
    }

    #[cold]
    fn forget_segments(&self, socket: BorrowedFd<'_>) {
        if self.segment.replace(0) != 0 {
            // It took another length before, so this cannot fail.
            let _ = socket::setsockopt(&socket, UdpGsoSegment, &0);
        }
    }

    fn send_many(
        &self,
        socket: BorrowedFd<'_>,
        to: Option<&SocketAddr>,
        run: &[u8],
        segment: usize,
    ) -> Result<usize, Errno> {
        let to = to.map(|to| to.as_any());
        let mut packets = run.chunks(segment);
        let slices: [_; MANY_MOST] = std::array::from_fn(|_| packets.next().map(IoSlice::new));
        let mut controls: [_; MANY_MOST] = std::array::from_fn(|_| SendAncillaryBuffer::default());
        let slices = slices.iter().flatten().map(std::slice::from_ref);
        let headers = slices.zip(&mut controls).map(|(slice, control)| match &to {
            Some(to) => MMsgHdr::new_with_addr(to, slice, control),
            None => MMsgHdr::new(slice, control),
        });
        net::sendmmsg(socket, &mut headers.collect::<Vec<_>>(), SendFlags::empty())
    }

    #[inline(always)]
    fn receive_one(&self, socket: BorrowedFd<'_>, peer: Option<SocketAddr>, buffer: &mut [u8]) -> Result<Got, Errno> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        if peer.is_some() {
            let (bytes, whole) = net::recv(socket, buffer, flags)?;
            return Ok(Got { from: peer, bytes, segment: None, is_whole: whole == bytes, came_at: None });
        }
        let (bytes, whole, from) = net::recvfrom(socket, buffer, flags)?;
        let from = from.and_then(|from| SocketAddr::try_from(from).ok()).map(unmapped);
        Ok(Got { from, bytes, segment: None, is_whole: whole == bytes, came_at: None })
    }

    #[inline(never)]
    fn receive_run(&self, socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Got, Errno> {
        let mut control = Control([0; CONTROL_BYTES]);
        let mut slices = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = socket::recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control.0), flags)
            .map_err(errno)?;
        let (mut segment, mut came_at) = (None, None);
        for control in message.cmsgs().into_iter().flatten() {
            match control {
                ControlMessageOwned::UdpGroSegments(bytes) => segment = usize::try_from(bytes).ok(),
                ControlMessageOwned::ScmTimestampns(at) => came_at = Some(at.into()),
                _ => {}
            }
        }
        let is_whole = !message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
        Ok(Got { from: message.address.as_ref().and_then(sender), bytes: message.bytes, segment, is_whole, came_at })
    }

    fn put_together(&self, socket: BorrowedFd<'_>, should: bool) -> Result<(), Errno> {
        socket::setsockopt(&socket, UdpGroSegment, &should).map_err(errno)
    }

    fn is_empty(&self, socket: BorrowedFd<'_>) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        matches!(net::recv(socket, &mut [0u8; 1], flags), Err(Errno::AGAIN))
    }
}

#[inline(always)]
fn send(socket: BorrowedFd<'_>, to: Option<&SocketAddr>, datagram: &[u8]) -> Result<(), Errno> {
    match to {
        Some(to) => net::sendto(socket, datagram, SendFlags::empty(), to).map(drop),
        None => net::send(socket, datagram, SendFlags::empty()).map(drop),
    }
}

/// Room for a report of the kernel, aligned as its headers are.
#[repr(C, align(8))]
struct Words([u8; WORD_BYTES]);

/// Room for the control messages of a run, aligned as the kernel's headers are.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

fn sender(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::from((v4.ip(), v4.port())));
    }
    let v6 = address.as_sockaddr_in6()?;
    Some(unmapped(SocketAddr::V6(SocketAddrV6::new(v6.ip(), v6.port(), 0, v6.scope_id()))))
}

/// Turns an IPv4-mapped address, as a socket of both families gives it, into the IPv4 address.
#[inline(always)]
fn unmapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
    }
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

/// Turns `NOBUFS` into success: the interface dropped the packets, because its queue is full or its other end does not take them. The
/// kernel reports that only to sockets that ask for network errors; others are told that the packets were sent.
#[cold]
fn was_dropped(error: Errno) -> Result<(), Errno> {
    if error == Errno::NOBUFS {
        Ok(())
    } else {
        Err(error)
    }
}

/// Whether an error of a call may be one that the network reported for an earlier packet.
fn is_told_by_networks(error: Errno) -> bool {
    let told = [
        Errno::MSGSIZE,
        Errno::CONNREFUSED,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::ACCESS,
        Errno::PROTO,
    ];
    told.contains(&error)
}

/// Takes one report from the kernel's error queue. It is a refusal if it says that nobody has the packet's port.
fn next_word(socket: BorrowedFd<'_>, quoted: &mut [u8]) -> Result<Option<(SocketAddr, usize)>, Errno> {
    let mut control = Words([0; WORD_BYTES]);
    let mut slices = [IoSliceMut::new(quoted)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = socket::recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control.0), flags)
        .map_err(errno)?;
    let is_refusal = message.cmsgs().is_ok_and(|mut controls| {
        controls.any(|control| match control {
            ControlMessageOwned::Ipv4RecvErr(word, _) | ControlMessageOwned::Ipv6RecvErr(word, _) => {
                // Reports of our own kernel do not count: it knows nothing about ports of other hosts.
                let is_of_network = [ICMP, ICMP6].contains(&word.ee_origin);
                is_of_network && Errno::from_raw_os_error(word.ee_errno as i32) == Errno::CONNREFUSED
            }
            _ => false,
        })
    });
    let to = message.address.as_ref().and_then(sender).filter(|_| is_refusal);
    Ok(to.map(|to| (unmapped(to), message.bytes)))
}

#[cold]
fn stop(error: Errno) -> Stop {
    match error {
        Errno::AGAIN | Errno::NOMEM => Stop::Full,
        Errno::MSGSIZE => Stop::TooLarge,
        // No route, no such host, a firewall. For any other error the same holds: the transport sends again.
        _ => Stop::Unreachable,
    }
}

/// A socket for addresses of this one's family.
fn socket_for(address: IpAddr) -> Result<Descriptor, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = Descriptor::make(|| net::socket_with(family, SocketType::DGRAM, flags, None))?;
    ask_for_features(&socket, family);
    Ok(socket)
}

/// Asks for options that make the link faster. It works without those that are refused.
fn ask_for_features(socket: &Descriptor, family: AddressFamily) {
    // Beyond the host's limit (net.core.rmem_max) if we are privileged, otherwise up to it.
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES));
    let _ = sockopt::set_socket_send_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, BUFFER_BYTES));
    // Routers do not fragment packets, and the kernel ignores its own path MTU: the transport finds it out itself.
    let _ = sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::PROBE);
    // The kernel queues network errors, each with the packet's beginning and destination.
    let _ = socket::setsockopt(socket, Ipv4RecvErr, &true);
    if family == AddressFamily::INET6 {
        let _ = socket::setsockopt(socket, Ipv6RecvErr, &true);
        let _ = sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::PROBE);
        // IPv4 as well, if the socket is for all addresses.
        let _ = sockopt::set_ipv6_v6only(socket, false);
    }
}

/// Makes the buffer smaller. The kernel doubles the value that it is given, for its own overhead.
fn limit_buffer(socket: &Descriptor, most: usize) {
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, most / 2)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, most / 2));
}

/// Binds the first port that is free, and returns the socket's address.
fn bind(socket: &Descriptor, at: IpAddr, ports: Ports) -> Result<SocketAddr, Error> {
    for port in ports.iter() {
        match net::bind(socket, &SocketAddr::new(at, port)) {
            Ok(()) => return local(socket),
            Err(Errno::ADDRINUSE) => {}
            Err(error) => {
                return Err(Error::System {
                    what: format!("cannot bind UDP port {port} at {at}"),
                    source: error.into(),
                    way_out:
                        "Set WEFT_ADDR to an address of this host (`ip addr` lists them), and WEFT_PORT to a port \
                              above 1023, or unset them",
                })
            }
        }
    }
    Err(Error::PortInUse { address: at, ports })
}

fn local(socket: &Descriptor) -> Result<SocketAddr, Error> {
    net::getsockname(socket).and_then(SocketAddr::try_from).map_err(|e| Error::System {
        what: "cannot learn the UDP socket's address".into(),
        source: e.into(),
        way_out: "Set WEFT_ADDR to `none`: then weft does without the network",
    })
}

/// Buffers of a socket, to hold packets while the program computes: 4 ms at 1 GB/s, including the kernel's overhead.
const BUFFER_BYTES: usize = 4 << 20;

/// The most segments that every kernel with UDP_SEGMENT takes (from 6.9 on it takes 128).
const SEGMENTS_MOST: usize = 64;

/// The most bytes of an IPv4 datagram: 65,535 less the headers of IP and UDP.
const DATAGRAM_MOST: usize = 65_535 - 20 - 8;

/// The fewest bytes that are sent as pages. Handing pages over costs as much as copying a part of this.
const PAGES_LEAST: usize = 16 << 10;

/// The most packets of one `sendmmsg`.
const MANY_MOST: usize = 32;

/// This many errors in a row are taken to be about earlier packets. The kernel reports one with each call, so several come in a row only
/// if somebody floods us.
const ERRORS_DOUBTED: u32 = 3;

/// The most reports of the kernel that are read in one go.
const WORDS_MOST: usize = 64;

/// Origins of an error that the kernel reports: ICMP and ICMPv6 (`SO_EE_ORIGIN_ICMP`, `SO_EE_ORIGIN_ICMP6`).
const ICMP: u8 = 2;
const ICMP6: u8 = 3;

/// A control message's header, a report and the address that it came from, and some to spare.
const WORD_BYTES: usize = 128;

/// The most errors and unusable datagrams that one receive skips.
const ERRORS_MOST: usize = 8;

/// After this many datagrams, with no empty receive between them, runs are asked for.
const RUNS_FROM: u32 = 3;

/// After this many datagrams in a row that were no runs, runs are no longer asked for.
const SINGLES_MOST: u32 = 64;

/// After this many empty receives in a row runs are no longer asked for, either, because looking at a quiet socket should be cheap, too.
/// These receives last longer than a peer is kept off a core that it shares. When it is back it sends runs, and a run that is received
/// packet by packet takes more of the socket's memory and a call for each packet. With 1,024, a tenth less arrives while another process
/// computes on each core.
const LOOKS_MOST: u32 = 1 << 16;

/// The headers of two control messages, an integer padded to whole words, and a time.
const CONTROL_BYTES: usize = 16 + 8 + 16 + 16;

#[cfg(test)]
mod tests;
