//! The home's connection to weftd: a bundle is attached to the daemon of its host, and its endpoints send and receive there.
//!
//! [`attach`] sets up an attachment; the core's [`PortSessions`] runs the protocol over it. `docs/design/weftd.md` has the design.

mod attach;

pub(crate) use attach::{distrust, said_user, Attached, Distrust, Door, Wish, SOCKET, USER};

use crate::net::Users;
use crate::node::Error;
use crate::paths::{Core, Outlet};
use crate::socket::Socket;
use crate::watched::Watched;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_core::port::{Allocated, Platform, Port, PortHandle, PortSessions};
use weft_core::report::Report;
use weft_core::{Admission, Call, SessionId, Sink};
use weft_shm::biased::{Inside, Owner};
use weft_shm::{AwakeView, Descriptor, SegmentFile};
use weft_wire::attach::{Message, MESSAGE_BYTES};
use weft_wire::segment::{Part, Segment, Sizes, ASLEEP, PARTS, SYSTEM};
use weft_wire::{EndpointId, HostAddress, Key, Reason};

/// How long to wait for a new endpoint.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long such a wait spins before it naps between checks.
const SPIN: Duration = Duration::from_micros(200);

/// Length of a nap.
const NAP: Duration = Duration::from_micros(100);

/// The memory that a bundle shares with the daemon.
#[derive(Debug)]
pub(crate) struct Memory {
    segment: SegmentFile,
    awake: AwakeView,
    /// Wakes the daemon.
    waker: Descriptor,
}

impl Platform for Memory {
    type Segment = SegmentFile;

    #[inline(always)]
    fn segment(&self) -> &SegmentFile {
        &self.segment
    }

    #[inline(always)]
    fn daemon_sleeps(&self) -> u64 {
        self.awake.sleep()
    }

    fn wake_daemon(&self) {
        // The program may have closed it by its number.
        if self.waker.is_ours_lately() {
            // The daemon made it non-blocking. If the write fails because it is full, the daemon was already woken.
            let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
        }
    }
}

/// A bundle's handle to its port.
#[derive(Clone, Debug)]
pub(crate) struct DaemonPort(Owner<Port<Memory>>);

impl PortHandle for DaemonPort {
    type Platform = Memory;
    type Use<'a> = Inside<'a, Port<Memory>>;

    #[inline(always)]
    fn borrow_mut(&self) -> Inside<'_, Port<Memory>> {
        self.0.enter()
    }
}

/// A bundle's attachment.
#[derive(Debug)]
pub(crate) struct Daemon {
    sessions: PortSessions<DaemonPort>,
    address: HostAddress,
    /// Brings wakeups, and shows the daemon's end. `None` then: it would stay readable, and nobody could sleep.
    socket: Option<Watched>,
    /// Sleeps so far.
    sleeps: u64,
}

impl Daemon {
    /// Makes a bundle's part of an attachment. Its socket is watched in this set under this token.
    ///
    /// # Errors
    /// If the kernel has no room to watch the socket.
    pub fn new(attached: Attached, users: Users, set: &Arc<Descriptor>, token: u64) -> Result<Daemon, Errno> {
        let Attached { socket, memory, welcome } = attached;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let socket = Watched::new(Socket::new(socket), set, token, flags).map_err(|(_, error)| error)?;
        let port = Port::new(memory, Part { at: PARTS, sizes: SYSTEM });
        let port = DaemonPort(match users {
            Users::OneThread => Owner::new(port),
            Users::SeveralThreads => Owner::of_several_threads(port),
        });
        let sessions = PortSessions::new(port, welcome.user);
        Ok(Daemon { sessions, address: welcome.address, socket: Some(socket), sleeps: 0 })
    }

    /// The address in the names of endpoints.
    pub fn address(&self) -> HostAddress {
        self.address
    }

    /// Makes an endpoint. Blocks until the daemon has answered, for 5 s at most; no handler runs meanwhile.
    ///
    /// # Errors
    /// If the daemon refuses it, does not answer, or has ended.
    pub fn add_endpoint(&mut self, endpoint: EndpointId, key: Key) -> Result<(), Error> {
        let begin = Instant::now();
        let mut has_asked = false;
        loop {
            let is_over = self.sessions.is_lost() || begin.elapsed() > PATIENCE;
            has_asked = has_asked || self.sessions.allocate(endpoint, key, Sizes::default());
            match if has_asked { self.sessions.look_for_endpoint() } else { Allocated::NotYet } {
                Allocated::Yes => return Ok(()),
                Allocated::No(reason) => return Err(refused(reason)),
                Allocated::NotYet if is_over => return Err(refused(Reason::NobodyThere)),
                Allocated::NotYet if begin.elapsed() < SPIN => std::thread::yield_now(),
                Allocated::NotYet => std::thread::sleep(NAP),
            }
        }
    }

    /// Has an endpoint of an earlier daemon made again. Does not wait for it.
    pub fn restore(&mut self, endpoint: EndpointId, key: Key, admission: Admission) {
        self.sessions.restore(endpoint, key, admission, Sizes::default());
    }

    /// Marks the sessions that go through the daemon.
    pub fn report_into(&self, report: &mut Report) {
        self.sessions.report_into(report);
    }

    /// Whether the daemon has ended.
    pub fn is_lost(&self) -> bool {
        self.sessions.is_lost()
    }

    pub fn set_key(&mut self, endpoint: EndpointId, key: Key) {
        self.sessions.set_key(endpoint, key);
    }

    pub fn set_admission(&mut self, endpoint: EndpointId, admission: Admission) {
        self.sessions.set_admission(endpoint, admission);
    }

    /// An endpoint was freed, and has sent its last messages.
    pub fn free(&mut self, endpoint: EndpointId) {
        self.sessions.free(endpoint);
    }

    /// Calls a peer.
    pub fn call(&mut self, core: &mut Core, call: Call) {
        self.sessions.call(core, call);
    }

    /// Takes messages. Returns how many.
    #[inline]
    pub fn look<S: Sink<Outlet>>(&mut self, core: &mut Core, budget: u32, sink: &mut S) -> u32 {
        self.sessions.look(core, budget, sink)
    }

    /// The socket is readable.
    pub fn hear<S: Sink<Outlet>>(&mut self, core: &mut Core, sink: &mut S) {
        let mut bytes = [0; MESSAGE_BYTES];
        while let Some(socket) = &self.socket {
            match net::recv(&**socket, &mut bytes[..], RecvFlags::DONTWAIT).map(|(got, _)| got) {
                // It only serves to end a sleep.
                Ok(MESSAGE_BYTES) if matches!(Message::from_bytes(&bytes), Ok(Message::Wake)) => {}
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => {
                    self.socket = None;
                    self.sessions.lose_all(core, sink);
                }
            }
        }
    }

    /// A session was cut off here.
    pub fn close(&mut self, session: SessionId, reason: Reason) {
        self.sessions.close(session, reason);
    }

    /// The bundle is about to sleep. After the caller's next barrier, the daemon wakes it.
    pub fn arm(&mut self) {
        self.sessions.lie_down();
        self.sleeps += 1;
        self.sessions.port().borrow_mut().platform().segment.set_cursor(ASLEEP, self.sleeps);
    }

    /// The bundle is awake.
    pub fn disarm(&mut self) {
        self.sessions.port().borrow_mut().platform().segment.set_cursor(ASLEEP, 0);
    }

    /// Whether there is work that nobody wakes the bundle for.
    pub fn has_unfinished(&self) -> bool {
        self.sessions.has_unfinished()
    }

    /// Whether the daemon has all that was sent.
    pub fn is_handed_over(&self) -> bool {
        self.sessions.is_lost() || self.sessions.port().borrow_mut().is_handed_over()
    }

    /// Number of messages that the daemon does not have.
    pub fn unsent(&self) -> u64 {
        self.sessions.port().borrow_mut().unsent()
    }
}

/// The search for a new daemon after one has ended: often at first, rarely later.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// When it began, and when the next attempt is due.
    times: Option<(Instant, Instant)>,
}

impl Search {
    const OFTEN: Duration = Duration::from_millis(100);
    const SELDOM: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(10);

    /// Whether to try now. If so, schedules the next attempt.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let (begin, next) = *self.times.get_or_insert((now, now));
        let is_due = now >= next;
        if is_due {
            let pause = if now - begin < Search::LONG { Search::OFTEN } else { Search::SELDOM };
            self.times = Some((begin, now + pause));
        }
        is_due
    }

    /// The time until the next attempt.
    pub fn until_due(&self) -> Duration {
        self.times.map_or(Duration::ZERO, |(_, next)| next.saturating_duration_since(Instant::now()))
    }
}

fn refused(reason: Reason) -> Error {
    let (kind, way_out) = match reason {
        Reason::NoRoom => (
            std::io::ErrorKind::QuotaExceeded,
            "free endpoints, or have the administrator raise the limits of weftd (weftd(8))",
        ),
        Reason::NobodyThere => (std::io::ErrorKind::NotConnected, "start weftd again, or unset WEFT_NI"),
        _ => (std::io::ErrorKind::InvalidInput, "use programs and a weftd of the same version"),
    };
    Error::system("weftd did not make the endpoint", kind, way_out)
}
