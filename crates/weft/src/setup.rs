//! What both sides of a set-up do: messages with descriptors, rings made and opened, and what class the other side is of.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::uio::{process_vm_readv, RemoteIoVec};
use nix::unistd::Pid;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weft_shm::{Bell, BellPage, Consumer, Descriptor, Lanes, MapMem, Producer, Ringing, Shared, Waker};
use weft_wire::setup::{Geometry, Message, Nonce, SetupError, MESSAGE_BYTES};
use weft_wire::{Reason, Uid};

/// Bytes of a hot lane. Small enough that all lines of a busy pair stay in the private caches.
const HOT_BYTES: usize = 16 << 10;

/// Bytes of an arena: what a stream needs to run ahead until its lines have left the writer's private cache.
const ARENA_BYTES: usize = 8 << 20;

/// Bytes of an arena once the process has many sessions, so that all arenas of a process stay bounded; and of one that a
/// foreign peer writes to.
const SMALL_ARENA_BYTES: usize = 512 << 10;

/// Descriptors that come with a ring: the ring, the bell page and, within a trusted class, what wakes its owner.
const DESCRIPTORS: usize = 3;

/// Of which class the other side is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Of the same user, and the kernel lets each read the other's memory.
    Trusted,
    /// Of the same user, but one of them may not read the other's memory. Foreign: what it sends is copied before it is looked
    /// at, and it has a bell page of its own.
    Unreadable,
    /// Of another user. Foreign, and what all processes of that user may have us hold is bounded.
    OtherUser,
}

/// What a side gives the other for one direction of a session: where to write, and what to ring.
pub(crate) struct Gift {
    pub rx: Box<Consumer<MapMem>>,
    pub ring: Geometry,
    ring_fd: Descriptor,
    /// The page of a foreign peer's.
    pub page: Option<BellPage>,
    /// The number of the bell on the page.
    pub bell: u32,
}

impl Gift {
    /// Makes a ring, and a bell page if the other side is foreign. `index` is the session's.
    pub fn make(class: Class, index: u32, is_one_of_many: bool) -> Result<Gift, Reason> {
        let is_small = is_one_of_many || class == Class::OtherUser;
        let lanes = Lanes::new(HOT_BYTES, if is_small { SMALL_ARENA_BYTES } else { ARENA_BYTES });
        let (shared, ring_fd) = Shared::create("weft-ring", lanes.bytes()).map_err(|_| Reason::NoRoom)?;
        let rx = Consumer::new(MapMem::new(shared, lanes), lanes);
        let (rx, page, bell) = match class {
            Class::Trusted => (rx, None, index),
            _ => {
                let page = BellPage::create().map_err(|_| Reason::NoRoom)?;
                (rx.distrust(class == Class::OtherUser), Some(page), 0)
            }
        };
        Ok(Gift { rx: Box::new(rx), ring: lanes.geometry(), ring_fd, page, bell })
    }

    /// Sends it with a message. `own` are the bell page and the waker of the bundle, for those of its class.
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
    sent.map(|_| ()).map_err(|_| Reason::NobodyThere)
}

/// Says something. Whoever does not read is not waited for, and whoever hung up has said why, which is heard.
pub(crate) fn say(socket: impl AsFd, message: &Message) {
    let _ = net::send(socket, &message.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// What a socket said.
pub(crate) enum Heard {
    Nothing,
    Message(Message, Vec<Descriptor>),
    /// It is of another version.
    Version,
    Nonsense,
    End,
}

/// Receives one message and at most three descriptors; the kernel closes any more.
pub(crate) fn receive(socket: impl AsFd + Copy) -> Heard {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    hear(socket, &mut control)
}

/// Receives one message and no descriptors.
pub(crate) fn receive_words(socket: impl AsFd + Copy) -> Heard {
    hear(socket, &mut RecvAncillaryBuffer::default())
}

fn hear(socket: impl AsFd + Copy, control: &mut RecvAncillaryBuffer<'_>) -> Heard {
    let mut bytes = [0u8; MESSAGE_BYTES + 1];
    let (got, fds) = Descriptor::make_several(|| hear_into(socket, &mut bytes, control));
    match got {
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        Err(_) | Ok(0) => Heard::End,
        Ok(got) => match Message::from_bytes(&bytes[..got.min(bytes.len())]) {
            Ok(message) => Heard::Message(message, fds),
            Err(SetupError::Version(_)) => Heard::Version,
            Err(_) => Heard::Nonsense,
        },
    }
}

fn hear_into(
    socket: impl AsFd + Copy,
    bytes: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
) -> (Result<usize, Errno>, Vec<OwnedFd>) {
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut got = net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], control, flags);
    if matches!(got, Err(Errno::CONNRESET)) {
        // Said once, before what the other side had sent, if that side hung up without having read all: a refusal unread.
        got = net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], control, flags);
    }
    let fds = control.drain().flat_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    (got.map(|got| got.bytes), fds)
}

/// What a peer sent with its ring.
pub(crate) struct Given<'a> {
    pub class: Class,
    pub ring: Geometry,
    pub bell: u32,
    pub fds: Vec<Descriptor>,
    /// The socket that it came by, which lives as long as the session.
    pub socket: BorrowedFd<'a>,
}

impl Given<'_> {
    /// Maps the ring and the bell. What wakes the peer is only ever written to, by calls that do not block.
    pub fn open(self) -> Result<Ringing, Reason> {
        let lanes = Lanes::check(self.ring).ok_or(Reason::Violation)?;
        let mut fds = self.fds.into_iter();
        let (Some(ring), Some(bells), waker, None) = (fds.next(), fds.next(), fds.next(), fds.next()) else {
            return Err(Reason::Violation);
        };
        let waker = match (self.class, waker) {
            (Class::Trusted, Some(waker)) if can_not_block(&waker) => Waker::Event(waker),
            (Class::Unreadable | Class::OtherUser, None) => {
                let socket = Descriptor::make(|| self.socket.try_clone_to_owned());
                Waker::Socket(socket.map_err(|_| Reason::NoRoom)?)
            }
            _ => return Err(Reason::Violation),
        };
        let shared = Shared::open(ring, lanes.bytes()).map_err(|_| Reason::Violation)?;
        let bell = Bell::open(bells, self.bell).map_err(|_| Reason::Violation)?;
        Ok(Ringing::new(Producer::new(MapMem::new(shared, lanes), lanes), bell, waker))
    }
}

fn can_not_block(waker: &Descriptor) -> bool {
    rustix::fs::fcntl_getfl(waker).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

/// Whose process is at the other end of a socket, as the kernel says.
pub(crate) fn owner_of(socket: &impl AsFd) -> Option<Uid> {
    getsockopt(socket, PeerCredentials).ok().map(|c| Uid(c.uid()))
}

/// Reads the nonce of the process at the other end of a socket, if the kernel lets us.
pub(crate) fn read_nonce(socket: &impl AsFd, nonce_at: u64) -> Nonce {
    // A process that cannot be seen from here, for it lives in another namespace, has the number 0.
    let Some(there) = getsockopt(socket, PeerCredentials).ok().filter(|c| c.pid() > 0) else { return Nonce::UNSEEN };
    let mut bytes = [0u8; 16];
    let nonce = RemoteIoVec { base: nonce_at as usize, len: bytes.len() };
    match process_vm_readv(Pid::from_raw(there.pid()), &mut [IoSliceMut::new(&mut bytes)], &[nonce]) {
        Ok(16) => Nonce(u128::from_ne_bytes(bytes)),
        _ => Nonce::UNSEEN,
    }
}
