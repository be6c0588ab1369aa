//! The node: one process's network interface on its host.

use crate::daemon::{Attached, Door};
use crate::net::{Net, NetSettings, Users};
use crate::office::Office;
use crate::settings;
use crate::watch::Helper;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weft_core::ni::Secrets;
use weft_link::address::{linger_from_environment, Wanted};
use weft_link::NetworkError;
use weft_shm::{Forked, Own};
use weft_wire::attach::Token;
use weft_wire::{Epoch, Uid};

/// Why a call that needs the operating system failed.
#[derive(thiserror::Error)]
pub enum Error {
    /// The kernel refused something.
    #[error("{what}: {source}; {way_out}")]
    System {
        /// What weft was doing.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What helps.
        way_out: &'static str,
    },
    /// The network cannot be set up as the settings ask.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The program asked for something impossible.
    #[error(transparent)]
    Send(#[from] weft_core::SendError),
    /// A name server cannot serve a name.
    #[error(transparent)]
    Tell(#[from] crate::names::TellError),
    /// A name could not be looked up.
    #[error(transparent)]
    Resolve(#[from] crate::names::ResolveError),
    /// A region or a cookie was not made.
    #[error(transparent)]
    Region(#[from] weft_memory::RegionError),
    /// This is a forked child of the process that owns the node or bundle.
    #[error(transparent)]
    Forked(#[from] Forked),
}

weft_wire::debug_says_display!(Error);

impl Error {
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>, way_out: &'static str) -> Error {
        Error::System { what, source: source.into(), way_out }
    }

    /// The kernel ran out of something; the advice depends on what it is.
    pub(crate) fn shortage(what: &'static str, source: impl Into<io::Error>) -> Error {
        let source = source.into();
        let way_out = match Errno::from_io_error(&source) {
            Some(Errno::FBIG) => "raise the limit of file size (ulimit -f): shared memory counts as a file",
            Some(Errno::NOMEM | Errno::NOBUFS) => "raise the limit of address space (ulimit -v), or free memory",
            Some(Errno::NFILE) => "the whole machine has too many files open: raise fs.file-max, or close some",
            Some(Errno::NOSPC) => "raise fs.epoll.max_user_watches",
            Some(Errno::BADF | Errno::INVAL | Errno::PERM) => {
                "if the program closes descriptors that it did not open, it must do so before it makes the Node"
            }
            _ => "raise the limit of open files (ulimit -n), or close some",
        };
        Error::System { what, source, way_out }
    }
}

/// How long a bundle lingers by default: about as long as it takes to declare a silent peer dead.
const LINGER: Duration = Duration::from_secs(3);

/// A process's network interface. Cheap to clone; all clones are the same one.
///
/// ```
/// use weft::{Bundle, Key, Node};
///
/// let node = Node::new()?;
/// let mut first = Bundle::new(&node)?;
/// let mut second = Bundle::new(&node)?; // for another thread, perhaps
/// let (a, b) = (first.endpoint(Key(1))?, second.endpoint(Key(2))?);
/// let (a, b) = (first.name(a)?, second.name(b)?);
/// assert!(a != b && a.epoch == b.epoch); // two endpoints of one life
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Node(Arc<Own<Shared>>);

#[derive(Debug)]
struct Shared {
    office: Arc<Office>,
    /// The address at which other hosts reach the bundles.
    wanted: Option<Wanted>,
    /// How long bundles linger, if the environment says so.
    linger: Option<Duration>,
    /// Messages that bundles had accepted but could not get out before they ended.
    unsettled: AtomicU64,
    /// `WEFT_LOCAL=off`: all messages go over the network, even those to the same host.
    uses_memory: bool,
    /// `None` if the program or `WEFT_HELPER=off` wants none: then bundles check their sockets themselves.
    helper: Option<Helper>,
    /// How bundles reach weftd, if they attach there.
    entrance: Option<Entrance>,
}

/// How bundles of an attached process attach.
#[derive(Debug)]
struct Entrance {
    door: Door,
    /// The epoch and token in the process's names.
    life: (Epoch, Token),
    /// The first attachment, until a bundle takes it.
    first: Mutex<Option<Attached>>,
}

/// Locks a list. A poisoned lock is no problem: every change is one push or one take, so a panic leaves the list whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Opens the set-up socket under a fresh random epoch, and starts a helper: a thread that sleeps until a socket has an event,
    /// so that polls make no system calls. With `WEFT_HELPER=off` this is [`Node::without_helper`].
    ///
    /// # Errors
    /// If the kernel gives no socket, no descriptor, no thread or no randomness, or if an environment variable has an invalid
    /// value.
    pub fn new() -> Result<Node, Error> {
        // Registering is fast while the process has one thread, so do it before starting ours.
        weft_shm::barrier::register();
        Node::with_helper(if settings::is_on(settings::HELPER)? { Some(Helper::start()?) } else { None })
    }

    /// Like [`Node::new`], but without the helper: after 1,024 idle polls, and after 16,384 messages, a poll checks the sockets
    /// with a system call. For programs that must not have another thread. Such a program must poll: after 3 s without a poll, its
    /// peers on other hosts take it for dead.
    ///
    /// # Errors
    /// As [`Node::new`].
    pub fn without_helper() -> Result<Node, Error> {
        weft_shm::barrier::register();
        Node::with_helper(None)
    }

    fn with_helper(helper: Option<Helper>) -> Result<Node, Error> {
        settings::tell_unknown()?;
        let wanted = Wanted::from_environment()?;
        let linger = linger_from_environment()?;
        let uses_memory = settings::is_on(settings::LOCAL)?;
        let trusts = settings::is_on(settings::TRUST)?;
        let entrance = match Door::find()? {
            None => None,
            Some(door) => door.attach(None)?.map(|attached| Entrance {
                door,
                life: attached.life(),
                first: Mutex::new(Some(attached)),
            }),
        };
        let office = Office::open(trusts, entrance.as_ref().map(|entrance| entrance.life.0))?;
        if let Some(helper) = &helper {
            helper.open_office(office.clone())?;
            helper.open_desk(office.epoch, Uid(rustix::process::geteuid().as_raw()));
        }
        Ok(Node(Arc::new(Own::new(Shared {
            office,
            wanted,
            linger,
            unsettled: AtomicU64::new(0),
            uses_memory,
            helper,
            entrance,
        }))))
    }

    /// Returns the number of messages that may have been lost because their bundle ended. A message counts if, at the end of the
    /// [linger time](crate::Settings::linger), it was not in memory shared with the peer and the peer's host had not acknowledged
    /// it. [`Bundle::close`](crate::Bundle::close) returns the number of one bundle.
    pub fn unsettled(&self) -> u64 {
        self.0.unsettled.load(Ordering::Relaxed)
    }

    pub(crate) fn count_unsettled(&self, messages: u64) {
        self.0.unsettled.fetch_add(messages, Ordering::Relaxed);
    }

    /// How long bundles linger unless their settings say otherwise.
    pub(crate) fn linger(&self) -> Duration {
        self.0.linger.unwrap_or(LINGER)
    }

    /// Fails in a forked child of the process that made the node.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.0.life().check()
    }

    /// Whether both are handles to the same node.
    pub(crate) fn is(&self, other: &Node) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn office(&self) -> &Arc<Office> {
        &self.0.office
    }

    /// Whether processes of this host are reached through memory.
    pub(crate) fn uses_memory(&self) -> bool {
        self.0.uses_memory
    }

    pub(crate) fn helper(&self) -> Option<&Helper> {
        self.0.helper.as_ref()
    }

    /// An attachment to weftd for a bundle, if the process is attached. Blocks for 2 s at most.
    pub(crate) fn attach(&self) -> Result<Option<Attached>, Error> {
        let Some(entrance) = &self.0.entrance else { return Ok(None) };
        let first = lock(&entrance.first).take();
        first.map_or_else(|| entrance.door.attach(Some(entrance.life)), |first| Ok(Some(first)))
    }

    /// A network interface for a bundle, or none if this host has no network or the settings switch it off.
    pub(crate) fn open_network(
        &self,
        users: Users,
        has_helper: bool,
        chosen: NetSettings,
    ) -> Result<Option<Net>, Error> {
        let Some(wanted) = &self.0.wanted else { return Ok(None) };
        let secrets = Secrets { door: [random_u64()?, random_u64()?], seed: random_u64()? };
        Ok(Some(Net::new(wanted, self.0.office.epoch, secrets, users, has_helper, chosen)?))
    }
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
