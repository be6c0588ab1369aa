//! The sockets that carry a set-up, and how to close descriptors that another process can make slow to close.
//!
//! The last close of a descriptor takes as long as its maker wants: a TCP socket lingers, and a file system that runs in a process is
//! asked. A message that nobody has received holds the descriptors sent with it, so closing our socket can be the last close of
//! theirs. Therefore:
//!
//! - a message is peeked at before it is received, and is not received if it has descriptors that do not belong there;
//! - a socket that holds such messages, and useless descriptors, are closed by a thread that does nothing else. Only a peer that
//!   breaks the protocol causes such a thread; it lasts as long as the close takes.

use crate::foreigners::Pass;
use crate::node::lock;
use crate::watch::spawn_without_signals;
use rustix::io::Errno;
use rustix::net::{
    self, sockopt, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use weft_shm::fork::without_forks;
use weft_shm::rights;
use weft_shm::Descriptor;
use weft_wire::setup::{Message, SetupError, MESSAGE_BYTES};

/// With this many closes under way, no more strangers are let in.
const CLOSES_MOST: u32 = 64;

/// Unread messages to receive from a socket before closing it. A socket with more is closed by a thread of its own.
const UNREAD_MOST: usize = 64;

/// Buffer size for receiving unread messages.
const UNREAD_BYTES: usize = 256;

/// Bytes of the stack of a thread that closes.
const STACK_BYTES: usize = 64 << 10;

/// Descriptors that come with a ring: the ring, the bell page and, within a trusted class, its owner's waker.
pub(crate) const DESCRIPTORS: usize = 3;

/// Closes under way in threads of their own: the low half is their number, the high half the process id. The id matters because a
/// forked child has none of its parent's threads.
static CLOSES: AtomicU64 = AtomicU64::new(0);

/// The number in such a word, if it is this process's.
fn closes_of_ours(word: u64) -> u32 {
    match (word >> 32) as u32 == std::process::id() {
        true => word as u32,
        false => 0,
    }
}

/// Changes the number of closes under way.
fn count_closes(change: impl Fn(u32) -> u32) {
    let changed = |word| Some(u64::from(std::process::id()) << 32 | u64::from(change(closes_of_ours(word))));
    // Relaxed: the bound orders nothing else. The closure always returns `Some`, so the update cannot fail.
    let _ = CLOSES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
}

/// Whether too many closes are under way to let more strangers in.
pub(crate) fn is_crowded() -> bool {
    closes_of_ours(CLOSES.load(Ordering::Relaxed)) >= CLOSES_MOST
}

/// A socket of a set-up or a session. Its close does not block, whatever the other side has sent.
#[derive(Debug)]
pub(crate) struct Socket {
    /// `None` only while it is dropped.
    socket: Option<Descriptor>,
    /// The kernel lets the other side send descriptors, or has let it.
    takes_descriptors: bool,
    /// Descriptors that came with what was received.
    came: Vec<OwnedFd>,
    /// The quota pass of a session with another user. Given back when everything is closed.
    pass: Option<Pass>,
}

impl Socket {
    /// Makes a socket for calling others.
    pub fn new(socket: Descriptor) -> Socket {
        Socket { socket: Some(socket), takes_descriptors: true, came: Vec::new(), pass: None }
    }

    /// Lets the other side send descriptors from now on, or refuses them as far as the kernel can.
    pub fn take_descriptors(&mut self, takes: bool) {
        self.takes_descriptors |= takes;
        // A kernel that cannot refuse them always takes them.
        let _ = rights::take_descriptors(&*self, takes);
    }

    /// Ties the quota pass of a session to its socket.
    pub fn keep_pass(&mut self, pass: Option<Pass>) {
        self.pass = pass;
    }

    /// The other side broke the protocol. If it belongs to another user, that user is barred for a while.
    pub fn bar(&self) {
        if let Some(pass) = &self.pass {
            pass.bar();
        }
    }

    /// Receives one message and at most three descriptors. Does not block.
    pub fn receive(&mut self) -> Heard {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        self.hear(&mut control, DESCRIPTORS)
    }

    /// Receives one message that may not have descriptors. Does not block.
    pub fn receive_words(&mut self) -> Heard {
        self.hear(&mut RecvAncillaryBuffer::default(), 0)
    }

    /// `room` is the number of descriptors that there is room for.
    fn hear(&mut self, control: &mut RecvAncillaryBuffer<'_>, room: usize) -> Heard {
        let mut bytes = [0u8; MESSAGE_BYTES + 1];
        let (seen, fds) = look(&*self, &mut bytes, control);
        let is_room_left = fds.len() < room;
        self.came.extend(fds);
        match seen {
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Err(_) | Ok((0, false)) => Heard::End,
            // The kernel left some out although there was room: the process has reached its limit of open files.
            Ok((_, true)) if is_room_left => Heard::NoDescriptors,
            // The message stays in the socket, with its descriptors.
            Ok((_, true)) => Heard::Nonsense,
            Ok((got, false)) => {
                // Receives it without its descriptors, of which we have copies.
                if net::recv(&*self, &mut [0u8; 0][..], RecvFlags::DONTWAIT).is_err() {
                    // The other side hung up with unread messages, and the kernel reports that once. Our message is still there.
                    let _ = net::recv(&*self, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
                }
                match Message::from_bytes(&bytes[..got.min(bytes.len())]) {
                    Ok(message) => Heard::Message(message),
                    Err(SetupError::Version(_)) => Heard::Version,
                    Err(_) => Heard::Nonsense,
                }
            }
        }
    }

    /// The descriptors that came with what was received. They are closed with the socket.
    pub fn came(&self) -> &[OwnedFd] {
        &self.came
    }

    /// Closes the descriptors that came. The caller knows that closing them does not block.
    pub fn forget_came(&mut self) {
        self.came.clear();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("taken out only by `drop`").as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.came.is_empty() && !self.takes_descriptors {
            return;
        }
        // The program may have closed it by its number, and opened another one.
        if !self.socket.as_ref().is_some_and(Descriptor::is_ours) {
            return;
        }
        // From now on nobody can send more.
        let _ = net::shutdown(&*self, Shutdown::Both);
        if self.came.is_empty() && matches!(receive_unread(&*self, UNREAD_MOST, false), Unread::None) {
            return;
        }
        let socket = self.socket.take().and_then(Descriptor::release);
        let (came, pass) = (std::mem::take(&mut self.came), self.pass.take());
        // A socket with a pass does not count: the passes bound those already.
        let counts = pass.is_none();
        close_apart(counts, move || {
            drop(came);
            // We may have duplicates of this descriptor. Closing those must find the socket empty too.
            if let Some(socket) = socket {
                receive_unread(&socket, usize::MAX, true);
            }
            drop(pass);
        });
    }
}

/// Peeks at the next message: returns its length and whether it has more descriptors than there is room for, and copies the
/// descriptors.
fn look(
    socket: impl AsFd,
    bytes: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
) -> (Result<(usize, bool), Errno>, Vec<OwnedFd>) {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut got = net::recvmsg(&socket, &mut [IoSliceMut::new(bytes)], control, flags);
    if matches!(got, Err(Errno::CONNRESET)) {
        // The kernel reports this once, before the other side's messages, if that side hung up without reading all of ours.
        got = net::recvmsg(&socket, &mut [IoSliceMut::new(bytes)], control, flags);
    }
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    (got.map(|got| (got.bytes, got.flags.contains(ReturnFlags::CTRUNC))), fds)
}

/// The unread messages of a socket that was shut down.
enum Unread {
    None,
    /// Something else, or messages with descriptors.
    Some,
}

/// Receives the unread messages of a socket that was shut down, up to `most`. Stops at the first one with descriptors unless
/// `with_descriptors`.
fn receive_unread(socket: impl AsFd, most: usize, with_descriptors: bool) -> Unread {
    let mut bytes = [0u8; UNREAD_BYTES];
    for _ in 0..most {
        match look(&socket, &mut bytes, &mut RecvAncillaryBuffer::default()).0 {
            Ok((_, true)) if !with_descriptors => return Unread::Some,
            Ok((0, false)) if is_at_end(&socket) => return Unread::None,
            Ok(_) if net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).is_err() => return Unread::Some,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Unread::None,
        }
    }
    Unread::Some
}

/// Whether nothing is left to receive. An empty message would look like the end, so ask for credentials to tell them apart.
fn is_at_end(socket: impl AsFd) -> bool {
    // A stream has no empty messages, and there the kernel would add credentials at the end too.
    if matches!(sockopt::socket_type(&socket), Ok(SocketType::STREAM)) {
        return true;
    }
    // The kernel now adds credentials to every message but not to the end. There is no room for them, which shows.
    let asked = sockopt::set_socket_passcred(&socket, true);
    let seen = look(&socket, &mut [0u8; 1], &mut RecvAncillaryBuffer::default()).0;
    let asked = asked.and_then(|()| sockopt::set_socket_passcred(&socket, false));
    asked.is_ok() && matches!(seen, Ok((0, false)))
}

/// A socket that others connect to.
#[derive(Debug)]
pub(crate) struct Listener {
    /// `None` only while it is dropped.
    socket: Option<Descriptor>,
    /// The kernel refuses descriptors sent to callers' sockets that nobody has admitted yet.
    refuses: bool,
}

impl Listener {
    /// Opens a socket of this kind under a name.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(name: &SocketAddrUnix, kind: SocketType, backlog: i32) -> Result<Listener, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = Descriptor::make(|| net::socket_with(AddressFamily::UNIX, kind, flags, None))?;
        let refuses = rights::take_descriptors(&socket, false).is_ok();
        net::bind(&socket, name)?;
        net::listen(&socket, backlog)?;
        Ok(Listener { socket: Some(socket), refuses })
    }

    /// The next caller. Does not block.
    ///
    /// # Errors
    /// `AGAIN` if nobody calls, else the kernel's error.
    pub fn accept(&self) -> Result<Socket, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = Descriptor::make(|| net::accept_with(self, flags))?;
        let mut socket = Socket::new(socket);
        socket.takes_descriptors = !self.refuses;
        Ok(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("taken out only by `drop`").as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.refuses {
            return;
        }
        // Somebody may have sent descriptors to a socket that nobody accepted.
        if let Some(socket) = self.socket.take().and_then(Descriptor::release) {
            close_apart(true, move || drop(socket));
        }
    }
}

/// Something to be closed.
type Close = Box<dyn FnOnce() + Send>;

/// Closes that have no thread yet. Locked only while no other thread can fork, so that a child does not find it locked.
static TO_CLOSE: Mutex<Vec<Close>> = Mutex::new(Vec::new());

/// Has something closed by a thread of its own. If no thread can be started, the thread of a later close does it. `counts` says
/// whether the close counts for [`is_crowded`].
fn close_apart(counts: bool, close: impl FnOnce() + Send + 'static) {
    let closing = counts.then(Closing::begin);
    let close = Box::new(move || {
        close();
        drop(closing);
    });
    without_forks(|| lock(&TO_CLOSE).push(close));
    let _ = spawn_without_signals("weft-closer", STACK_BYTES, || {
        while let Some(close) = without_forks(|| lock(&TO_CLOSE).pop()) {
            close();
        }
    });
}

/// One of the closes under way.
struct Closing;

impl Closing {
    fn begin() -> Closing {
        count_closes(|closes| closes.saturating_add(1));
        Closing
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        count_closes(|closes| closes.saturating_sub(1));
    }
}

/// The result of receiving from a socket.
pub(crate) enum Heard {
    Nothing,
    Message(Message),
    /// It is of another version.
    Version,
    Nonsense,
    /// A message with more descriptors than this process may have.
    NoDescriptors,
    End,
}
