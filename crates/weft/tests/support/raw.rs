//! The set-up protocol written by hand, correctly or not: everything that a stranger can do with a socket.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::uio::{process_vm_readv, RemoteIoVec};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weft::{Key, Name, Reason};
use weft_wire::proof::Side;
use weft_wire::setup::{Hello, Message, Nonce, MESSAGE_BYTES};
use weft_wire::{BundleId, Epoch};

use super::{Address, BOUND};

/// Descriptors that the kernel takes in one message.
pub const DESCRIPTORS_MOST: usize = 253;

/// The address of an epoch's set-up socket.
pub fn address(epoch: Epoch) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("weft1-{:016x}", epoch.0).as_bytes()).expect("abstract names")
}

/// A connection to the set-up socket of a name's epoch. The socket is blocking.
pub fn connect(name: &Name) -> rustix::io::Result<OwnedFd> {
    let socket = socket();
    net::connect(&socket, &address(name.epoch)).map(|()| socket)
}

/// A set-up socket of our own, as a node has one.
pub fn listen(epoch: Epoch) -> OwnedFd {
    let listener = socket();
    net::bind(&listener, &address(epoch)).and_then(|()| net::listen(&listener, 16)).expect("a fresh address");
    listener
}

/// The next connection.
pub fn accept(listener: &OwnedFd) -> OwnedFd {
    assert!(readable(listener.as_fd()), "nobody called within {BOUND:?}");
    net::accept_with(listener, SocketFlags::CLOEXEC).expect("a connection")
}

fn socket() -> OwnedFd {
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// A correct `Hello`.
pub fn hello(from: &Name, to: &Address) -> Message {
    let hello = unproved(from, &to.name);
    Message::Hello(hello, hello.proof(to.key, Side::Caller))
}

/// A `Hello` that lacks its proof.
pub fn unproved(from: &Name, to: &Name) -> Hello {
    let nonce_at = std::ptr::from_ref(&NONCE) as u64;
    Hello { source: *from, destination: *to, bundle: BundleId(77), is_alone: false, nonce_at, draw: 0xd1ce }
}

/// A process that knows it has read our memory.
static NONCE: Nonce = Nonce(0x6e6f_6e63_6500_1234_5678_9abc_def0_4321);

/// Reads the nonce of the process at the other end of a socket.
fn read_nonce(socket: &OwnedFd, nonce_at: u64) -> Nonce {
    let there = getsockopt(socket, PeerCredentials).expect("credentials");
    let mut bytes = [0u8; 16];
    let nonce = RemoteIoVec { base: nonce_at as usize, len: bytes.len() };
    match process_vm_readv(Pid::from_raw(there.pid()), &mut [IoSliceMut::new(&mut bytes)], &[nonce]) {
        Ok(16) => Nonce(u128::from_ne_bytes(bytes)),
        _ => Nonce::UNSEEN,
    }
}

/// A descriptor that could wake us.
pub fn waker() -> OwnedFd {
    use rustix::event::{eventfd, EventfdFlags};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// The name of a process that does not exist, of the same user.
pub fn nobody(like: &Name) -> Name {
    Name { epoch: Epoch(like.epoch.0 ^ 0x5555), ..*like }
}

/// Sends bytes. False if the other side has hung up.
pub fn say(socket: &OwnedFd, bytes: &[u8]) -> bool {
    net::send(socket, bytes, SendFlags::NOSIGNAL).is_ok()
}

/// Sends bytes with descriptors.
pub fn say_with(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)), "room for descriptors");
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
}

/// A message of the other side.
#[derive(Debug)]
pub enum Said {
    Message(Message, Vec<OwnedFd>),
    Nonsense(usize),
    /// It hung up.
    End,
}

impl Said {
    /// The reason, if it was a refusal.
    pub fn refusal(&self) -> Option<Reason> {
        match self {
            Said::Message(Message::Refuse { reason }, _) => Some(*reason),
            _ => None,
        }
    }
}

/// Receives one message, within the bound. If it is a challenge, answers it as well as possible, and receives the next.
pub fn hear(socket: &OwnedFd) -> Said {
    match hear_all(socket) {
        Said::Message(challenge @ Message::Challenge { .. }, _) => {
            prove(socket, &challenge);
            hear_all(socket)
        }
        other => other,
    }
}

/// Answers a challenge as well as possible.
pub fn prove(socket: &OwnedFd, challenge: &Message) {
    let &Message::Challenge { nonce_at, .. } = challenge else { panic!("no challenge: {challenge:?}") };
    say(socket, &Message::Proof { seen: read_nonce(socket, nonce_at) }.to_bytes());
}

/// Receives a caller's first message.
pub fn hear_hello(socket: &OwnedFd) -> Hello {
    match hear(socket) {
        Said::Message(Message::Hello(hello, _), _) => hello,
        other => panic!("no hello: {other:?}"),
    }
}

/// Challenges a caller whose hello came, and receives its proof. Returns whether both are of one trusted class.
pub fn challenge(socket: &OwnedFd, hello: &Hello, key: Key) -> bool {
    let own = std::ptr::from_ref(&NONCE) as u64;
    let read = read_nonce(socket, hello.nonce_at);
    let proof = hello.proof(key, Side::Callee);
    say(socket, &Message::Challenge { seen: read, nonce_at: own, proof }.to_bytes());
    let Said::Message(Message::Proof { seen }, _) = hear_all(socket) else { panic!("no proof") };
    seen == NONCE && read != Nonce::UNSEEN
}

/// The descriptors that go with a ring, for a trusted or an untrusted peer.
pub fn gifts<'a>(
    ring: BorrowedFd<'a>,
    page: BorrowedFd<'a>,
    waker: &'a OwnedFd,
    is_trusted: bool,
) -> Vec<BorrowedFd<'a>> {
    let mut fds = vec![ring, page];
    fds.extend(is_trusted.then_some(waker.as_fd()));
    fds
}

/// Receives one message, within the bound.
pub fn hear_all(socket: &OwnedFd) -> Said {
    match hear_bytes(socket) {
        None => Said::End,
        Some((bytes, fds)) => match Message::from_bytes(&bytes) {
            Ok(message) => Said::Message(message, fds),
            Err(_) => Said::Nonsense(bytes.len()),
        },
    }
}

/// The bytes of one message and its descriptors, within the bound; `None` at the end.
pub fn hear_bytes(socket: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    assert!(readable(socket.as_fd()), "the other side said nothing for {BOUND:?}");
    let mut bytes = [0u8; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut hear = || net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
    // The kernel reports a reset once, before the other side's messages.
    let got = match hear() {
        Err(rustix::io::Errno::CONNRESET) => hear(),
        other => other,
    };
    let fds = control.drain().flat_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let fds: Vec<OwnedFd> = fds.collect();
    let length = got.map_or(0, |got| got.bytes.min(bytes.len()));
    (length > 0).then(|| (bytes[..length].to_vec(), fds))
}

/// Whether the other side has hung up, without waiting.
pub fn has_ended(socket: &OwnedFd) -> bool {
    is_readable(socket) && matches!(hear(socket), Said::End)
}

/// Whether a caller waits to be accepted.
pub fn is_called(listener: &OwnedFd) -> bool {
    is_readable(listener)
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

/// Expects the other side to hang up within the bound, after a refusal at most.
pub fn expect_end(socket: &OwnedFd, after: &str) {
    for _ in 0..4 {
        assert!(
            readable(socket.as_fd()),
            "after {after} the other side does not hang up, nor say anything, for {BOUND:?}"
        );
        match hear(socket) {
            Said::End => return,
            Said::Message(Message::Refuse { .. }, _) => {}
            other => panic!("after {after} the other side said {other:?}"),
        }
    }
    panic!("after {after} the other side does not hang up");
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let bound = rustix::event::Timespec { tv_sec: BOUND.as_secs() as i64, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&bound)), Ok(n) if n > 0)
}
