//! The node: one process's network interface on its host. Its set-up socket, and who is behind which endpoint.
//!
//! The set-up socket is an abstract Unix socket named by the node's random epoch, so a process that ends leaves nothing
//! behind and nobody inherits its address. A stranger is given nothing before its first message has proved that it knows
//! (endpoint, key): no memory, no descriptor, and a place among at most [`STRANGERS_MOST`].

use crate::net::address::Wanted;
use crate::net::{Net, NetworkError};
use crate::watch::{Helper, Signals};
use crate::watched::Watched;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_core::ni::Secrets;
use weft_wire::setup::{Message, SetupError, MESSAGE_BYTES};
use weft_wire::{BundleId, EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

/// Connections that have not said who they are; the oldest is dropped for the next.
pub const STRANGERS_MOST: usize = 64;

/// Connections accepted in one look at the set-up socket.
const ACCEPTS_MOST: usize = 16;

/// Why the operating system's part of weft failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something.
    #[error("{what}: {source}. {way_out}")]
    System {
        /// What weft was doing.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What helps.
        way_out: &'static str,
    },
    /// The network cannot be had as it is wanted.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The program asked for something that cannot be.
    #[error(transparent)]
    Send(#[from] weft_core::SendError),
}

impl Error {
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>, way_out: &'static str) -> Error {
        Error::System { what, source: source.into(), way_out }
    }
}

/// A process's network interface. Cheap to clone; all clones are the same one.
#[derive(Clone, Debug)]
pub struct Node(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    epoch: Epoch,
    uid: Uid,
    /// Where bundles are reached from other hosts.
    wanted: Option<Wanted>,
    /// `WEFT_LOCAL=off`: all messages go over the network, also those to the same host.
    uses_memory: bool,
    listener: OwnedFd,
    /// Watches the listener and the strangers; watched itself by every bundle.
    epoll: Arc<OwnedFd>,
    /// `None` if there is no thread to be had: then bundles look for themselves.
    helper: Option<Helper>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next_endpoint: u32,
    next_bundle: u32,
    endpoints: HashMap<EndpointId, (BundleId, Key)>,
    inboxes: HashMap<BundleId, Arc<Inbox>>,
    strangers: VecDeque<Watched>,
}

/// Callers that proved themselves and wait for the bundle that they called.
#[derive(Debug)]
pub(crate) struct Inbox {
    signals: Arc<Signals>,
    has_callers: AtomicBool,
    callers: Mutex<Vec<Caller>>,
}

/// Who a caller is and what it wants.
#[derive(Debug)]
pub(crate) struct Caller {
    pub socket: OwnedFd,
    pub source: Name,
    pub bundle: BundleId,
    pub is_alone: bool,
    pub uid: Uid,
}

/// Callers that one bundle may have waiting; more are refused.
const CALLERS_MOST: usize = 256;

impl Inbox {
    /// The callers that wait, if any. One load if there is none.
    pub fn take(&self) -> Vec<Caller> {
        // Acquire pairs with the release in `put`; the mutex orders the list itself.
        if !self.has_callers.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.callers))
    }

    fn put(&self, caller: Caller) -> Result<(), Caller> {
        let mut callers = lock(&self.callers);
        if callers.len() >= CALLERS_MOST {
            return Err(caller);
        }
        callers.push(caller);
        self.has_callers.store(true, Ordering::Release);
        self.signals.raise(Signals::SOCKETS);
        Ok(())
    }
}

/// A panic elsewhere leaves these lists whole: every change is one push or one take.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Opens the set-up socket under a fresh random epoch, and starts a helper: a thread that sleeps until there is something
    /// to look at, so that polls make no system calls. Where no thread is to be had this is [`Node::without_helper`].
    ///
    /// # Errors
    /// If the kernel gives no socket, no descriptor or no randomness.
    pub fn new() -> Result<Node, Error> {
        // Before there is another thread of ours: then it takes no time.
        weft_shm::barrier::register();
        let is_wanted = std::env::var_os("WEFT_HELPER").is_none_or(|value| value != "off");
        Node::with_helper(if is_wanted { Helper::start().ok() } else { None })
    }

    /// As [`Node::new`], without the helper: every 1,024 idle polls, and after 16,384 messages, a poll looks at the sockets by
    /// a system call. For programs that must not have a thread more.
    ///
    /// # Errors
    /// As [`Node::new`].
    pub fn without_helper() -> Result<Node, Error> {
        weft_shm::barrier::register();
        Node::with_helper(None)
    }

    fn with_helper(helper: Option<Helper>) -> Result<Node, Error> {
        let way_out = "raise the limit of open files (ulimit -n), or close some";
        let epoch = Epoch(random_u64()?);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| Error::system("cannot make the set-up socket", e, way_out))?;
        net::bind(&listener, &address(epoch)?)
            .and_then(|()| net::listen(&listener, 128))
            .map_err(|e| Error::system("cannot bind the set-up socket", e, "try again: its name is random"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .and_then(|epoll| {
                epoll::add(&epoll, &listener, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map(|()| epoll)
            })
            .map_err(|e| Error::system("cannot watch the set-up socket", e, way_out))?;
        let uid = Uid(rustix::process::geteuid().as_raw());
        let wanted = Wanted::from_environment()?;
        let uses_memory = std::env::var_os("WEFT_LOCAL").is_none_or(|value| value != "off");
        Ok(Node(Arc::new(Shared {
            epoch,
            uid,
            wanted,
            uses_memory,
            listener,
            epoll: Arc::new(epoll),
            helper,
            inner: Mutex::default(),
        })))
    }

    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.0.epoll.as_fd()
    }

    /// Whether processes of this host are reached through memory.
    pub(crate) fn uses_memory(&self) -> bool {
        self.0.uses_memory
    }

    pub(crate) fn helper(&self) -> Option<&Helper> {
        self.0.helper.as_ref()
    }

    pub(crate) fn add_bundle(&self, signals: Arc<Signals>) -> (BundleId, Arc<Inbox>) {
        let mut inner = lock(&self.0.inner);
        let id = BundleId(inner.next_bundle);
        inner.next_bundle += 1;
        let inbox = Arc::new(Inbox { signals, has_callers: AtomicBool::new(false), callers: Mutex::default() });
        inner.inboxes.insert(id, inbox.clone());
        (id, inbox)
    }

    /// A network interface for a bundle, or none if this host has no network, or is to have none.
    pub(crate) fn open_network(&self, has_helper: bool) -> Result<Option<Net>, Error> {
        let Some(wanted) = &self.0.wanted else { return Ok(None) };
        let secrets = Secrets { door: [random_u64()?, random_u64()?], seed: random_u64()? };
        Ok(Some(Net::new(wanted, self.0.epoch, secrets, has_helper)?))
    }

    pub(crate) fn remove_bundle(&self, bundle: BundleId) {
        let mut inner = lock(&self.0.inner);
        inner.inboxes.remove(&bundle);
        inner.endpoints.retain(|_, (owner, _)| *owner != bundle);
    }

    /// A name for a new endpoint of a bundle.
    pub(crate) fn add_endpoint(&self, bundle: BundleId, key: Key, address: HostAddress) -> Name {
        let mut inner = lock(&self.0.inner);
        let endpoint = EndpointId(inner.next_endpoint);
        inner.next_endpoint += 1;
        inner.endpoints.insert(endpoint, (bundle, key));
        Name { epoch: self.0.epoch, endpoint, uid: self.0.uid, address }
    }

    pub(crate) fn set_key(&self, endpoint: EndpointId, key: Key) {
        if let Some((_, old)) = lock(&self.0.inner).endpoints.get_mut(&endpoint) {
            *old = key;
        }
    }

    pub(crate) fn remove_endpoint(&self, endpoint: EndpointId) {
        lock(&self.0.inner).endpoints.remove(&endpoint);
    }

    /// Accepts connections and hears what strangers say. Returns at once; leaves it to another thread that is at it. False if
    /// connections wait that the kernel has no descriptor for.
    pub(crate) fn service(&self) -> bool {
        let Ok(mut inner) = self.0.inner.try_lock() else { return true };
        let mut can_accept = true;
        for _ in 0..ACCEPTS_MOST {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match net::accept_with(&self.0.listener, flags) {
                Ok(socket) => self.admit_stranger(&mut inner, socket),
                Err(error) => {
                    can_accept = !matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM);
                    break;
                }
            }
        }
        for _ in 0..inner.strangers.len() {
            let Some(socket) = inner.strangers.pop_front() else {
                break;
            };
            self.hear(&mut inner, socket);
        }
        can_accept
    }

    fn admit_stranger(&self, inner: &mut Inner, socket: OwnedFd) {
        if !is_own_user(&socket, self.0.uid) {
            return refuse(&socket, Reason::ForeignUser);
        }
        let socket = match Watched::new(socket, &self.0.epoll, 1, epoll::EventFlags::IN) {
            Ok(socket) => socket,
            Err(socket) => return refuse(&socket, Reason::NoRoom),
        };
        if inner.strangers.len() == STRANGERS_MOST {
            inner.strangers.pop_front();
        }
        inner.strangers.push_back(socket);
    }

    /// Hears a stranger's first message, if it is there. One that says anything else is dropped.
    fn hear(&self, inner: &mut Inner, socket: Watched) {
        let mut buffer = [0u8; MESSAGE_BYTES + 1];
        // No room for descriptors: the kernel closes any that were sent.
        let heard = match net::recv(&socket, &mut buffer, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return inner.strangers.push_back(socket),
            Err(_) | Ok((_, 0)) => return,
            Ok((_, bytes)) => Message::from_bytes(&buffer[..bytes.min(buffer.len())]),
        };
        let socket = socket.into_inner();
        let reason = match heard {
            Ok(Message::Hello { source, destination, key, bundle, is_alone }) => {
                match self.find(inner, &destination, key) {
                    Ok(inbox) => {
                        let uid = self.0.uid;
                        match inbox.put(Caller { socket, source, bundle, is_alone, uid }) {
                            Ok(()) => return,
                            Err(caller) => return refuse(&caller.socket, Reason::NoRoom),
                        }
                    }
                    Err(reason) => reason,
                }
            }
            Err(SetupError::Version(_)) => Reason::Version,
            _ => Reason::Violation,
        };
        refuse(&socket, reason);
    }

    /// The inbox behind (endpoint, key), or why there is none. A wrong key and a wrong endpoint are told apart only to a
    /// process of the own user; others were refused before.
    fn find(&self, inner: &Inner, destination: &Name, key: Key) -> Result<Arc<Inbox>, Reason> {
        if destination.epoch != self.0.epoch {
            return Err(Reason::WrongEpoch);
        }
        let (bundle, right) = inner.endpoints.get(&destination.endpoint).ok_or(Reason::NoSuchEndpoint)?;
        if !right.matches(key) {
            return Err(Reason::WrongKey);
        }
        inner.inboxes.get(bundle).cloned().ok_or(Reason::NoSuchEndpoint)
    }
}

/// The address of the set-up socket of an epoch: abstract, so it lives exactly as long as its socket.
pub(crate) fn address(epoch: Epoch) -> Result<SocketAddrUnix, Error> {
    let name = format!("weft1-{:016x}", epoch.0);
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|e| Error::system("cannot name the set-up socket", e, "this kernel has no abstract Unix sockets"))
}

/// Who made the other end of a socket, as the kernel says.
pub(crate) fn owner_of(socket: &OwnedFd) -> Option<Uid> {
    net::sockopt::socket_peercred(socket).ok().map(|c| Uid(c.uid.as_raw()))
}

/// The user that the kernel shows for all users which a user namespace does not map: nobody's equal.
const OVERFLOW_USER: Uid = Uid(65534);

/// Whether the other end of a socket is of this user, which is told from others.
fn is_own_user(socket: &OwnedFd, own: Uid) -> bool {
    own != OVERFLOW_USER && owner_of(socket) == Some(own)
}

/// Says no and lets the socket go. A peer that does not read is not waited for.
pub(crate) fn refuse(socket: &OwnedFd, reason: Reason) {
    let _ = net::send(socket, &Message::Refuse { reason }.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Random bits from the kernel.
pub(crate) fn random_u64() -> Result<u64, Error> {
    let mut bytes = [0u8; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        Ok(_) => Err(Error::system("cannot get random bits", io::ErrorKind::UnexpectedEof, "try again")),
        Err(e) => Err(Error::system("cannot get random bits", e, "the kernel has no getrandom; use a newer one")),
    }
}
