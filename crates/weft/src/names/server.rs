//! The server's side: a thread that answers queries at the port.
//!
//! Anybody can connect. So a connection has little time and a buffer of fixed size, there are few connections at once, and a new
//! one replaces the oldest. A client that sends its query at once is answered, however many connections stay silent.

use super::Contact;
use crate::node::{lock, Error};
use crate::watch::{make_eventfd, spawn_without_signals};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{accept_with, getsockname, send, SendFlags, SocketFlags};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_shm::ring::ring;
use weft_shm::{Descriptor, Forked, Own};
use weft_wire::rendezvous::{is_label, Answer, Query, RendezvousError, LABEL_MOST, QUERY_MOST};
use weft_wire::{Key, Name};

/// Largest number of connections. A new one replaces the oldest.
const CONNECTIONS_MOST: usize = 64;

/// How long a connection may take to send its query.
const PATIENCE: Duration = Duration::from_secs(1);

/// Largest number of labels of one server.
const LABELS_MOST: usize = 4096;

/// How long the thread accepts no connections after the kernel had no descriptor or memory for one.
const REST: Duration = Duration::from_millis(100);

/// How long dropping a server waits for its thread.
const END_MOST: Duration = Duration::from_secs(1);

/// Bytes of the thread's stack.
const STACK_BYTES: usize = 64 << 10;

/// Serves names at a TCP port until it is dropped. Its thread sleeps while nobody asks; the program need not poll.
///
/// Every process that can reach the port gets the names, in clear text, and the keys that the program gave with them. The
/// [module](crate::names) explains what that means.
///
/// ```
/// use std::time::Duration;
/// use weft::names::{resolve, NameServer, ResolveError};
/// use weft::{Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let (store, log) = (bundle.endpoint_with_random_key()?, bundle.endpoint_with_random_key()?);
/// let names = NameServer::open(0)?;
/// names.tell_with_key("store", bundle.contact(store)?)?;
/// names.tell("log", bundle.name(log)?)?; // without its key
///
/// let at = |label: &str| format!("localhost:{}/{label}", names.port());
/// let limit = Duration::from_secs(5);
/// assert_eq!(resolve(&at("store"), limit)?.name, bundle.name(store)?);
/// assert_eq!(resolve(&at("log"), limit)?.key.0, Key::NONE.0);
/// names.withdraw("log");
/// assert!(matches!(resolve(&at("log"), limit), Err(ResolveError::NoSuchLabel { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NameServer {
    shared: Arc<Own<Shared>>,
    address: SocketAddr,
}

/// The state that the program and the thread share.
#[derive(Debug)]
struct Shared {
    told: Mutex<BTreeMap<String, Told>>,
    /// Tells the thread to end.
    is_over: AtomicBool,
    /// An eventfd that ends the thread's sleep.
    stop: Descriptor,
    has_ended: Mutex<bool>,
    end: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    name: Name,
    key: Option<Key>,
}

/// Why a server refused a name.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TellError {
    /// The text is not a label.
    #[error("a label has at most {LABEL_MOST} letters, digits, '-', '_' and '.'; choose another one")]
    Label,
    /// The server has as many names as it can hold.
    #[error("a name server has at most {LABELS_MOST} names; withdraw some, or open another server")]
    TooMany,
    /// This is a forked child of the process that opened the server.
    #[error(transparent)]
    Forked(#[from] Forked),
}

weft_wire::debug_says_display!(TellError);

impl NameServer {
    /// Opens a TCP port at all addresses of this host. Port 0 stands for any free one, which [`NameServer::port`] returns. TCP
    /// ports and the UDP ports of bundles do not collide.
    ///
    /// # Errors
    /// If the port is in use or may not be opened, or if the kernel gives no descriptor or no thread.
    pub fn open(port: u16) -> Result<NameServer, Error> {
        // The IPv6 socket takes IPv4 connections too. Some hosts have only IPv4.
        NameServer::start(|| {
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| match error.kind() {
                io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
                _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
            })
        })
    }

    /// As [`NameServer::open`], at one address of this host. With `127.0.0.1` or `::1` only processes of this host can ask.
    ///
    /// # Errors
    /// As [`NameServer::open`], and if the address is not of this host.
    pub fn open_at(address: SocketAddr) -> Result<NameServer, Error> {
        NameServer::start(|| TcpListener::bind(address))
    }

    fn start(bind: impl FnOnce() -> io::Result<TcpListener>) -> Result<NameServer, Error> {
        let in_use = "choose another port, or end the program that uses this one (`ss -ltnp` shows it)";
        let cannot_listen = |source| Error::system("cannot open the name server's TCP port", source, in_use);
        let mut address = Err(io::ErrorKind::AddrNotAvailable.into());
        let listener = Descriptor::make(|| {
            let listener = bind()?;
            listener.set_nonblocking(true)?;
            address = listener.local_addr();
            Ok(OwnedFd::from(listener))
        });
        let listener = listener.map_err(cannot_listen)?;
        let address = address.map_err(cannot_listen)?;
        let stop = make_eventfd()
            .map_err(|e| Error::system("cannot make an eventfd", e, "raise the limit of open files (ulimit -n)"))?;
        let shared = Arc::new(Own::new(Shared {
            told: Mutex::default(),
            is_over: AtomicBool::new(false),
            stop,
            has_ended: Mutex::new(false),
            end: Condvar::new(),
        }));
        let desk = Desk { shared: shared.clone(), listener, address, connections: Vec::new(), rests_until: None };
        spawn_without_signals("weft-names", STACK_BYTES, move || desk.run()).map_err(|e| {
            Error::system("cannot start the name server's thread", e, "raise the limit of processes (ulimit -u)")
        })?;
        Ok(NameServer { shared, address })
    }

    /// Returns the TCP port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the address and port that the server listens at. The address is unspecified if the server listens at all of this
    /// host's.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the name, without a key, under the label, and replaces the label's previous name. For endpoints that admit callers
    /// without their key, and where clients know the key from elsewhere.
    ///
    /// # Errors
    /// If the text is not a label, if there are too many names, or if this is a forked child.
    pub fn tell(&self, label: &str, name: Name) -> Result<(), TellError> {
        self.insert(label, Told { name, key: None })
    }

    /// Serves the name and the key under the label. From then on the key keeps out nobody who can reach the port.
    ///
    /// # Errors
    /// As [`NameServer::tell`].
    pub fn tell_with_key(&self, label: &str, contact: Contact) -> Result<(), TellError> {
        self.insert(label, Told { name: contact.name, key: Some(contact.key) })
    }

    fn insert(&self, label: &str, told: Told) -> Result<(), TellError> {
        self.shared.life().check()?;
        if !is_label(label) {
            return Err(TellError::Label);
        }
        let mut all = lock(&self.shared.told);
        if all.len() >= LABELS_MOST && !all.contains_key(label) {
            return Err(TellError::TooMany);
        }
        all.insert(label.to_owned(), told);
        Ok(())
    }

    /// Stops serving the label's name. Returns whether there was one.
    pub fn withdraw(&self, label: &str) -> bool {
        !self.shared.life().is_over() && lock(&self.shared.told).remove(label).is_some()
    }
}

impl Drop for NameServer {
    /// Closes the port.
    fn drop(&mut self) {
        if self.shared.life().is_over() {
            return; // the thread belongs to the parent
        }
        self.shared.is_over.store(true, Ordering::Release);
        ring(&self.shared.stop);
        // With a limit: if the program closed our descriptors by number, nothing wakes the thread.
        let has_ended = lock(&self.shared.has_ended);
        let waited = self.shared.end.wait_timeout_while(has_ended, END_MOST, |has_ended| !*has_ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The thread's side.
#[derive(Debug)]
struct Desk {
    shared: Arc<Own<Shared>>,
    listener: Descriptor,
    /// The address that it listens at. If the program reused the number for a socket of its own, the address differs.
    address: SocketAddr,
    /// In the order in which they came.
    connections: Vec<Connection>,
    /// No connection is accepted until then.
    rests_until: Option<Instant>,
}

/// A client's connection.
#[derive(Debug)]
struct Connection {
    socket: Descriptor,
    until: Instant,
    came: [u8; QUERY_MOST],
    length: usize,
}

impl Desk {
    fn run(mut self) {
        loop {
            if self.shared.is_over.load(Ordering::Acquire) || !self.turn() {
                break;
            }
        }
        let Desk { shared, listener, connections, .. } = self;
        drop((listener, connections));
        *lock(&shared.has_ended) = true;
        shared.end.notify_all();
    }

    /// Sleeps until a client asks, and answers. Returns false if the thread must end, or the descriptors are no longer ours.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        self.connections.retain(|connection| connection.until > now);
        self.rests_until = self.rests_until.filter(|&until| until > now);
        let due = self.connections.iter().map(|connection| connection.until).chain(self.rests_until).min();
        let most = due.map(|due| due - now).and_then(|left| Timespec::try_from(left).ok());
        let listens = if self.rests_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut watched = vec![PollFd::new(&self.shared.stop, PollFlags::IN), PollFd::new(&self.listener, listens)];
        watched.extend(self.connections.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)));
        match poll(&mut watched, most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel has no memory.
            Err(_) => std::thread::sleep(REST),
        }
        let came: Vec<PollFlags> = watched.iter().map(PollFd::revents).collect();
        let [stop, listener, connections @ ..] = &came[..] else { return false };
        // If the program did not stop us, it closed our descriptors by number and this is another file.
        if !stop.is_empty() || listener.contains(PollFlags::NVAL) {
            return false;
        }
        let shared = &self.shared;
        let mut came = connections.iter();
        self.connections.retain_mut(|connection| {
            let came = came.next().copied().unwrap_or(PollFlags::empty());
            came.is_empty() || connection.hear(shared)
        });
        // Read the clock again: the sleep may have lasted for hours.
        listener.is_empty() || self.accept(Instant::now())
    }

    /// Whether the listener's number still leads to the listener. The program may have closed it and reused the number.
    fn is_ours(&self) -> bool {
        getsockname(&self.listener).is_ok_and(|at| SocketAddr::try_from(at) == Ok(self.address))
    }

    /// Accepts waiting clients, and reads from them: most have sent their query already. Returns false if the listener is no longer
    /// ours.
    fn accept(&mut self, now: Instant) -> bool {
        for _ in 0..CONNECTIONS_MOST {
            if !self.is_ours() {
                return false;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match Descriptor::make(|| accept_with(&self.listener, flags)) {
                Ok(socket) => {
                    let came = [0; QUERY_MOST];
                    let mut connection = Connection { socket, until: now + PATIENCE, came, length: 0 };
                    if !connection.hear(&self.shared) {
                        continue;
                    }
                    if self.connections.len() >= CONNECTIONS_MOST {
                        self.connections.remove(0);
                    }
                    self.connections.push(connection);
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    self.rests_until = Some(now + REST);
                    return true;
                }
            }
        }
        true
    }
}

impl Connection {
    /// Reads, and answers a complete query. Returns whether more is expected.
    fn hear(&mut self, shared: &Shared) -> bool {
        loop {
            match rustix::io::read(&self.socket, &mut self.came[self.length..]) {
                Ok(0) => return false,
                Ok(bytes) => self.length += bytes,
                Err(Errno::INTR) => continue,
                Err(error) => return error == Errno::AGAIN,
            }
            let answer = match Query::parse(&self.came[..self.length]) {
                Ok(None) => continue,
                Ok(Some(Query { label })) => match lock(&shared.told).get(label) {
                    Some(&Told { name, key }) => Answer::Told { name, key },
                    None => Answer::NoSuchLabel,
                },
                Err(RendezvousError::Version(_)) => Answer::OtherVersion,
                Err(_) => return false,
            };
            // 64 bytes fit into the buffer of a new connection, so this cannot block. An error means that the client is gone.
            let _ = send(&self.socket, &answer.to_bytes(), SendFlags::NOSIGNAL);
            return false;
        }
    }
}
