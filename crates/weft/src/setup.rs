//! What both sides of a set-up share: sending descriptors with messages, making and opening rings, and the class of the other side.

use crate::socket::{Socket, DESCRIPTORS};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use rustix::fs::{statx, AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weft_shm::{Bell, BellPage, Consumer, Descriptor, Lanes, MapMem, OpenError, Producer, Ringing, Shared, Waker};
use weft_wire::setup::{Geometry, Message};
use weft_wire::{Reason, Uid};

/// Bytes of a hot lane. Small enough that all lines of a busy pair stay in the private caches.
const HOT_BYTES: usize = 16 << 10;

/// Bytes of an arena. A stream must run ahead until its lines have left the writer's private cache.
const ARENA_BYTES: usize = 8 << 20;

/// Bytes of a small arena. A process with many sessions uses it to bound its memory, and so does a session with another user.
const SMALL_ARENA_BYTES: usize = 512 << 10;

/// The class of the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Of the same user, and the kernel lets each read the other's memory.
    Trusted,
    /// Of the same user, but one of them may not read the other's memory. Foreign: its messages are copied before anyone reads
    /// them, and it has a bell page of its own.
    Unreadable,
    /// Of another user. Foreign, and a quota bounds what all processes of that user may hold here.
    OtherUser,
}

/// What a side gives the other for one direction of a session: where to write, and what to ring.
pub(crate) struct Gift {
    pub rx: Box<Consumer<MapMem>>,
    pub ring: Geometry,
    ring_fd: Descriptor,
    /// The bell page of a foreign peer.
    pub page: Option<BellPage>,
    /// The number of the bell on the page.
    pub bell: u32,
}

impl Gift {
    /// Makes a ring, and a bell page if the other side is foreign. `index` is the session's.
    pub fn make(class: Class, index: u32, is_one_of_many: bool) -> Result<Gift, Reason> {
        let is_small = is_one_of_many || class == Class::OtherUser;
        let lanes = Lanes::new(HOT_BYTES, if is_small { SMALL_ARENA_BYTES } else { ARENA_BYTES });
        let (shared, ring_fd) = Shared::create("weft-ring", lanes.bytes()).map_err(shortage)?;
        let rx = Consumer::new(MapMem::new(shared, lanes), lanes);
        let (rx, page, bell) = match class {
            Class::Trusted => (rx, None, index),
            _ => {
                let page = BellPage::create().map_err(shortage)?;
                (rx.distrust(class == Class::OtherUser), Some(page), 0)
            }
        };
        Ok(Gift { rx: Box::new(rx), ring: lanes.geometry(), ring_fd, page, bell })
    }

    /// Sends it with a message. `own` are the bell page and the waker of the bundle, which only trusted peers get.
    pub fn send(&self, socket: impl AsFd, message: &Message, own: [BorrowedFd<'_>; 2]) -> Result<(), Reason> {
        let [bells, waker] = own;
        let ring = self.ring_fd.as_fd();
        match &self.page {
            Some(page) => send_with(socket, message, &[ring, page.fd()]),
            None => send_with(socket, message, &[ring, bells, waker]),
        }
    }
}

fn send_with(socket: impl AsFd, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Reason> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Reason::NoRoom);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = net::sendmsg(socket, &[IoSlice::new(&message.to_bytes())], &mut control, flags);
    sent.map(|_| ()).map_err(|error| match error {
        Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM => shortage(error),
        _ => Reason::NobodyThere,
    })
}

/// Which of this process's limits made the kernel refuse a part of a set-up.
pub(crate) fn shortage(error: impl Into<io::Error>) -> Reason {
    match Errno::from_io_error(&error.into()) {
        Some(Errno::FBIG) => Reason::OwnFileSize,
        Some(Errno::NOMEM | Errno::NOBUFS) => Reason::OwnMemory,
        // Open files of the process (MFILE, TOOMANYREFS), of the machine (NFILE), or watches of sockets (NOSPC).
        _ => Reason::OwnDescriptors,
    }
}

/// Why a peer's memory was not mapped: this process has no address space left, or the memory is not what weft makes.
fn unmapped(error: OpenError) -> Reason {
    match error {
        OpenError::System(error) if Errno::from_io_error(&error) == Some(Errno::NOMEM) => shortage(error),
        _ => Reason::Violation,
    }
}

/// Sends a message. Does not block. An error is ignored: if the other side has hung up, the next receive shows its last message and
/// the end.
pub(crate) fn say(socket: impl AsFd, message: &Message) {
    let _ = net::send(socket, &message.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// A peer's description of its ring. The descriptors came by the socket.
pub(crate) struct Given {
    pub class: Class,
    pub ring: Geometry,
    pub bell: u32,
}

impl Given {
    /// Maps the ring and the bell. The peer's waker must be of the same kind as `own`, so that writing to it cannot block.
    /// Descriptors of a wrong kind stay with the socket.
    pub fn open(self, socket: &mut Socket, own: BorrowedFd<'_>) -> Result<Ringing, Reason> {
        let lanes = Lanes::check(self.ring).ok_or(Reason::Violation)?;
        let (ring, bells, waker) = match (self.class, socket.came()) {
            (Class::Trusted, [ring, bells, waker]) if can_not_block(waker, own) => {
                let waker = Descriptor::make(|| waker.try_clone()).map_err(shortage)?;
                (ring, bells, Waker::Event(waker))
            }
            (Class::Unreadable | Class::OtherUser, [ring, bells]) => {
                let socket = Descriptor::make(|| socket.as_fd().try_clone_to_owned()).map_err(shortage)?;
                (ring, bells, Waker::Socket(socket))
            }
            _ => return Err(Reason::Violation),
        };
        // Both calls first ask the kernel whether it is a memfd. Any other question could go to a file system that a process
        // serves.
        let shared = Shared::open(ring, lanes.bytes()).map_err(unmapped)?;
        let bell = Bell::open(bells, self.bell).map_err(unmapped)?;
        // These are memfds, and for a trusted process an eventfd. Closing them cannot block.
        socket.forget_came();
        Ok(Ringing::new(Producer::new(MapMem::new(shared, lanes), lanes), bell, waker))
    }
}

/// Whether neither a write to it nor its close blocks: it is non-blocking, and in the file system of eventfds, which has no sockets
/// and no files that a process serves.
fn can_not_block(waker: &OwnedFd, own: BorrowedFd<'_>) -> bool {
    let file_system = |fd: BorrowedFd<'_>| {
        // Takes what the kernel has cached: a file system that runs in a process is not asked.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        statx(fd, "", flags, StatxFlags::empty()).map(|found| (found.stx_dev_major, found.stx_dev_minor)).ok()
    };
    let is_like_ours = file_system(own).is_some_and(|own| file_system(waker.as_fd()) == Some(own));
    is_like_ours && rustix::fs::fcntl_getfl(waker).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

/// The user of the process at the other end of a socket, as the kernel says.
pub(crate) fn owner_of(socket: &impl AsFd) -> Option<Uid> {
    getsockopt(socket, PeerCredentials).ok().map(|c| Uid(c.uid()))
}

/// Whether the process at the other end of a socket is the one that listens at `address`. The kernel remembers which process made a
/// listening socket. A process of another PID namespace cannot be seen, so it matches none.
pub(crate) fn listens_at(socket: &impl AsFd, address: &SocketAddrUnix) -> Result<bool, Reason> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener = Descriptor::make(|| net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None));
    let listener = Socket::new(listener.map_err(shortage)?);
    match net::connect(&listener, address) {
        Ok(()) => Ok(process_of(socket).is_some_and(|process| process_of(&listener) == Some(process))),
        // Its backlog is full.
        Err(Errno::AGAIN) => Err(Reason::NoRoom),
        Err(_) => Ok(false),
    }
}

/// The process at the other end of a socket. `None` if it cannot be seen from here, because it lives in another namespace.
pub(crate) fn process_of(socket: &impl AsFd) -> Option<Pid> {
    getsockopt(socket, PeerCredentials).ok().map(|c| Pid::from_raw(c.pid())).filter(|process| process.as_raw() > 0)
}
