//! The client's side: asks all addresses of a host in parallel, within a time limit.

use super::{Contact, Place};
use crate::node::lock;
use crate::watch::spawn_without_signals;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{connect, send, socket_with, AddressFamily, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_shm::Descriptor;
use weft_wire::rendezvous::{Answer, Query, RendezvousError, ANSWER_BYTES, VERSION};
use weft_wire::Key;

/// Largest number of addresses of a host to ask.
const ADDRESSES_MOST: usize = 16;

/// Largest number of unfinished lookups of host names. Each has a thread, and the system's resolver may block that thread longer
/// than the caller waits.
const LOOKUPS_MOST: u32 = 16;

/// Bytes of such a thread's stack: it runs the C library's resolver with its plug-ins.
const STACK_BYTES: usize = 1 << 20;

/// The longest limit: about 30 years.
const LIMIT_MOST: Duration = Duration::from_secs(1_000_000_000);

/// Why looking up a name failed.
#[derive(thiserror::Error)]
pub enum ResolveError {
    /// The text is not a place.
    #[error("{0:?} is not a place to ask: give HOST:PORT or HOST:PORT/LABEL, with a port from 1 to 65535, as in localhost:4000")]
    Place(String),
    /// The host was not found.
    #[error("cannot find the host {host}: {source}. Check its name, or give its address")]
    Host {
        /// The host's name.
        host: String,
        /// The error of the system's resolver.
        source: io::Error,
    },
    /// Too many lookups of host names are under way.
    #[error("{LOOKUPS_MOST} lookups of host names are still under way; wait for them, or give the host's address")]
    TooManyLookups,
    /// No thread could be started for the lookup of the host's name.
    #[error(
        "cannot start a thread to look up the host {host}: {source}. Raise the limits of processes and of memory (ulimit -u, \
         ulimit -v; in a container its limit of pids), or give the host's address, which needs none"
    )]
    NoThread {
        /// The host's name.
        host: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused something, or the host refused the connection.
    #[error("cannot ask {place}: {source}. {}", way_out(source))]
    System {
        /// The place that was asked.
        place: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Nobody answered in time.
    #[error(
        "no answer from {place} within {} s. Check that a name server runs there and that TCP gets through",
        limit.as_secs_f64()
    )]
    TimedOut {
        /// The place that was asked.
        place: String,
        /// How long the call waited.
        limit: Duration,
    },
    /// The server there is not a weft name server.
    #[error("the server at {place} is not a weft name server. Check the port")]
    NotWeft {
        /// The place that was asked.
        place: String,
    },
    /// The name server speaks another version.
    #[error("the name server at {place} speaks version {theirs} of its protocol, this weft speaks {VERSION}; use the same weft on both sides")]
    Version {
        /// The place that was asked.
        place: String,
        /// The version that it speaks.
        theirs: u8,
    },
    /// The server has no name with that label.
    #[error("{place}: the name server there has no name with this label. Ask its owner for the label, or try again when its program is ready")]
    NoSuchLabel {
        /// The place that was asked.
        place: String,
    },
}

weft_wire::debug_says_display!(ResolveError);

/// What helps against an error of the kernel's.
fn way_out(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => {
            "No program gives a name at that port: start the program, or correct the port"
        }
        _ => "Check that a name server runs there and that TCP gets through",
    }
}

impl ResolveError {
    /// If several addresses fail, the error with the highest rank is returned.
    fn rank(&self) -> u8 {
        match self {
            ResolveError::NoSuchLabel { .. } => 5,
            ResolveError::Version { .. } => 4,
            ResolveError::NotWeft { .. } => 3,
            ResolveError::TimedOut { .. } => 2,
            _ => 1,
        }
    }
}

/// Asks the [`NameServer`](super::NameServer) at `host:port`, or `host:port/label`, for the name of an endpoint, and its key if the
/// server has it; otherwise the key is [`Key::NONE`]. The host is a name or an address; an IPv6 address is in brackets.
///
/// Blocks until there is an answer or the `limit` is over, even if the lookup of the host's name, the connection or the server
/// hangs. Does not poll, so call it before others depend on this program's answers, or in another thread. Asks all addresses of the
/// host in parallel, and takes the first answer.
///
/// ```
/// use std::time::Duration;
/// use weft::names::{resolve, NameServer, ResolveError};
///
/// let names = NameServer::open(0)?; // no names yet
/// let place = format!("127.0.0.1:{}", names.port());
/// let limit = Duration::from_secs(5);
/// assert!(matches!(resolve(&place, limit), Err(ResolveError::NoSuchLabel { .. })));
/// drop(names);
/// assert!(matches!(resolve(&place, limit), Err(ResolveError::System { .. }))); // refused
/// assert!(matches!(resolve("nonsense", limit), Err(ResolveError::Place(_))));
/// # Ok::<(), weft::Error>(())
/// ```
///
/// # Errors
/// If the text is not a place, if the host is not found, or if no server there has the name or answers in time.
pub fn resolve(place: &str, limit: Duration) -> Result<Contact, ResolveError> {
    let limit = limit.min(LIMIT_MOST);
    let end = Instant::now() + limit;
    let at = Place::parse(place).ok_or_else(|| ResolveError::Place(place.to_owned()))?;
    let timed_out = || ResolveError::TimedOut { place: place.to_owned(), limit };
    let addresses = match at.host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, at.port)],
        Err(_) => match look_up(system_resolver, at.host, at.port, end)? {
            Some(Ok(addresses)) => addresses,
            Some(Err(source)) => return Err(ResolveError::Host { host: at.host.to_owned(), source }),
            None => return Err(timed_out()),
        },
    };
    let query = Query { label: at.label }.to_bytes().ok_or_else(|| ResolveError::Place(place.to_owned()))?;
    ask_all(place, &addresses, &query, end).unwrap_or_else(|worst| {
        // Some addresses have not answered.
        let silent = timed_out();
        Err(worst.into_iter().chain([silent]).max_by_key(ResolveError::rank).unwrap_or_else(timed_out))
    })
}

/// The result of a resolver.
type Addresses = io::Result<Vec<SocketAddr>>;

fn system_resolver(host: &str, port: u16) -> Addresses {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.take(ADDRESSES_MOST).collect();
    match addresses.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address")),
        false => Ok(addresses),
    }
}

/// Unfinished lookups.
static LOOKUPS: AtomicU32 = AtomicU32::new(0);

/// Looks up a host's name in a thread of its own, because the system's resolver has no time limit. `None` if it does not finish in
/// time.
fn look_up(
    resolver: impl FnOnce(&str, u16) -> Addresses + Send + 'static,
    host: &str,
    port: u16,
    end: Instant,
) -> Result<Option<Addresses>, ResolveError> {
    // Relaxed, here and below: only the number matters; it publishes nothing.
    let add = |lookups| Some(lookups + 1).filter(|&lookups| lookups <= LOOKUPS_MOST);
    if LOOKUPS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
        return Err(ResolveError::TooManyLookups);
    }
    let found = Arc::new((Mutex::new(None), Condvar::new()));
    let (theirs, name) = (found.clone(), host.to_owned());
    let started = spawn_without_signals("weft-lookup", STACK_BYTES, move || {
        let addresses = resolver(&name, port);
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
        *lock(&theirs.0) = Some(addresses);
        theirs.1.notify_one();
    });
    if let Err(source) = started {
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
        return Err(ResolveError::NoThread { host: host.to_owned(), source });
    }
    let left = end.saturating_duration_since(Instant::now());
    let waited = found.1.wait_timeout_while(lock(&found.0), left, |found| found.is_none());
    let (mut found, _) = waited.unwrap_or_else(PoisonError::into_inner);
    Ok(found.take())
}

/// A connection to one address.
struct Attempt {
    socket: Descriptor,
    /// The query was sent.
    has_asked: bool,
    came: [u8; ANSWER_BYTES],
    length: usize,
}

/// Asks all addresses. Returns the first name that one of them gives, or the error of the highest rank once all have failed. If the
/// time is over before that, fails with the error of the highest rank so far.
fn ask_all(
    place: &str,
    addresses: &[SocketAddr],
    query: &[u8],
    end: Instant,
) -> Result<Result<Contact, ResolveError>, Option<ResolveError>> {
    let mut worst: Option<ResolveError> = None;
    let mut note = |error: ResolveError| {
        if worst.as_ref().is_none_or(|worst| worst.rank() < error.rank()) {
            worst = Some(error);
        }
    };
    let mut attempts = Vec::new();
    for address in addresses {
        match Attempt::begin(address) {
            Ok(attempt) => attempts.push(attempt),
            Err(error) => note(ResolveError::System { place: place.to_owned(), source: error.into() }),
        }
    }
    while !attempts.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(worst);
        }
        let mut watched: Vec<PollFd<'_>> = attempts.iter().map(Attempt::watched).collect();
        // Cannot fail: the limit is within the kernel's range.
        let left = Timespec::try_from(left).ok();
        match poll(&mut watched, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Ok(Err(ResolveError::System { place: place.to_owned(), source: error.into() })),
        }
        let came: Vec<bool> = watched.iter().map(|one| !one.revents().is_empty()).collect();
        let mut told = None;
        let mut came = came.into_iter();
        attempts.retain_mut(|attempt| {
            if !came.next().unwrap_or(false) {
                return true;
            }
            match attempt.go_on(place, query) {
                Ok(None) => true,
                Ok(Some(contact)) => {
                    told = Some(contact);
                    false
                }
                Err(error) => {
                    note(error);
                    false
                }
            }
        });
        if let Some(contact) = told {
            return Ok(Ok(contact));
        }
    }
    worst.map_or(Err(None), |worst| Ok(Err(worst)))
}

impl Attempt {
    fn begin(address: &SocketAddr) -> Result<Attempt, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Descriptor::make(|| socket_with(family, SocketType::STREAM, flags, None))?;
        match connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {
                Ok(Attempt { socket, has_asked: false, came: [0; ANSWER_BYTES], length: 0 })
            }
            Err(error) => Err(error),
        }
    }

    /// The events to wait for: connected, or readable.
    fn watched(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, if self.has_asked { PollFlags::IN } else { PollFlags::OUT })
    }

    /// Does as much as possible without blocking. Returns the contact once it has come.
    fn go_on(&mut self, place: &str, query: &[u8]) -> Result<Option<Contact>, ResolveError> {
        let refused = |error: Errno| ResolveError::System { place: place.to_owned(), source: error.into() };
        if !self.has_asked {
            socket_error(&self.socket).and_then(|refused| refused).map_err(refused)?;
            // Does not block: the buffer of a new connection has room for it.
            send(&self.socket, query, SendFlags::NOSIGNAL).map_err(refused)?;
            self.has_asked = true;
            return Ok(None);
        }
        let not_weft = || ResolveError::NotWeft { place: place.to_owned() };
        match rustix::io::read(&self.socket, &mut self.came[self.length..]) {
            Ok(0) => return Err(not_weft()),
            Ok(bytes) => self.length += bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(refused(error)),
        }
        match Answer::parse(&self.came[..self.length]) {
            Ok(None) => Ok(None),
            Ok(Some(Answer::Told { name, key })) => Ok(Some(Contact { name, key: key.unwrap_or(Key::NONE) })),
            Ok(Some(Answer::NoSuchLabel)) => Err(ResolveError::NoSuchLabel { place: place.to_owned() }),
            Err(RendezvousError::Version(theirs)) => Err(ResolveError::Version { place: place.to_owned(), theirs }),
            Ok(Some(Answer::OtherVersion)) | Err(_) => Err(not_weft()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use weft_wire::{EndpointId, Epoch, HostAddress, Name, Uid};

    /// A server that sends these bytes to every client. `None` if the network has no loopback.
    fn server_that_sends(bytes: &'static [u8]) -> Option<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").ok()?;
        let address = listener.local_addr().ok()?;
        TcpStream::connect(address).ok()?;
        std::thread::spawn(move || {
            for mut caller in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let _ = caller.write_all(bytes);
                    while caller.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
                    // Until the other side is gone.
                });
            }
        });
        Some(address)
    }

    #[test]
    fn a_silent_or_wrong_address_does_not_delay_the_others() {
        let name = Name { epoch: Epoch(7), endpoint: EndpointId(3), uid: Uid(1000), address: HostAddress::NONE };
        let told: &'static [u8] = Box::leak(Box::new(Answer::Told { name, key: Some(Key(7)) }.to_bytes()));
        let query = Query { label: "" }.to_bytes().expect("a label");
        let servers: [&[u8]; 4] = [b"", b"SSH-2.0-x\r\n", told, b""];
        let all: Option<Vec<SocketAddr>> = servers.into_iter().map(server_that_sends).collect();
        let Some(all) = all else { return eprintln!("LEFT OUT: asking several addresses: there is no loopback") };
        let begun = Instant::now();
        let answer = ask_all("there", &all, &query, begun + Duration::from_secs(60)).unwrap_or_else(|_| panic!("late"));
        let contact = answer.expect("one has it");
        assert_eq!((contact.name, contact.key.0), (name, 7));
        // Without that one, the wrong one is reported when the time is over. If all are wrong, that is reported at once.
        let wrong = [all[0], all[1]];
        let late = ask_all("there", &wrong, &query, Instant::now() + Duration::from_millis(200));
        assert!(matches!(late, Err(Some(ResolveError::NotWeft { .. }))));
        let end = Instant::now() + Duration::from_secs(60);
        assert!(matches!(ask_all("there", &wrong[1..], &query, end), Ok(Err(ResolveError::NotWeft { .. }))));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_lookup_that_hangs_is_not_waited_for_and_hanging_ones_are_bounded() {
        let (end, begun) = (Arc::new((Mutex::new(false), Condvar::new())), Instant::now());
        for _ in 0..LOOKUPS_MOST {
            let hangs = end.clone();
            let resolver = move |_: &str, _| {
                let is_over = hangs.1.wait_while(lock(&hangs.0), |is_over| !*is_over);
                drop(is_over.unwrap_or_else(PoisonError::into_inner));
                Ok(Vec::new())
            };
            let soon = Instant::now() + Duration::from_millis(5);
            assert!(matches!(look_up(resolver, "host", 1, soon), Ok(None)));
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
        let far = Instant::now() + Duration::from_secs(60);
        let resolver = |_: &str, port| Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]);
        assert!(matches!(look_up(resolver, "host", 7, far), Err(ResolveError::TooManyLookups)));
        *lock(&end.0) = true;
        end.1.notify_all();
        while LOOKUPS.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let found = look_up(resolver, "host", 7, far).expect("a thread").expect("in time").expect("an address");
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 7))]);
    }
}
