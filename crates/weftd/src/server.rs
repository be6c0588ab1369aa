//! The process around the engine: attaches programs, wakes them, and detaches them.

use crate::config::{Config, NetworkConfig};
use crate::kept::{self, Readers};
use crate::logs::{Kind, Logs};
use crate::memory::Bounds;
use crate::socket::Listener;
use crate::start::{cannot, StartError, MORE_FILES};
use crate::status::{interest, own_user, Look, Looks, Onward};
use crate::users::{random, Allowed, Secret};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{epoll, eventfd, EventfdFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use slab::Slab;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use weft_core::ni::{Link, Ni, Secrets};
use weft_daemon::{AttachmentId, Engine, Newcomer, Refused, Settings, HELD_MOST};
use weft_link::address::{Ports, Wanted};
use weft_link::{take_run, NetworkError, UdpLink, PACKET_MOST, RECEIVE_BYTES};
use weft_shm::users::UserMap;
use weft_shm::{barrier, AwakePage, Descriptor, SegmentFile};
use weft_transport::Time;
use weft_wire::attach::{Message, Welcome, MESSAGE_BYTES};
use weft_wire::setup::SetupError;
use weft_wire::status::Scope;
use weft_wire::{Epoch, HostAddress, Reason, Uid};

/// Bytes of messages that may wait in the socket of an attached program, which reads each one before it sleeps again.
const UNREAD_MOST: usize = 16 << 10;

/// Events taken in one look.
const EVENTS_MOST: usize = 32;

/// Turns between two looks at the sockets while there is work.
const LOOK_EVERY: u32 = 64;

/// The longest sleep. It bounds the delay of a wakeup that is lost because the kernel's barrier does not reach a program.
const SLEEP_MOST: Duration = Duration::from_millis(250);

/// How long the daemon accepts no programs after the kernel had no descriptor for one.
const PAUSE: Duration = Duration::from_millis(100);

/// The tokens of the socket at which programs call, of the network's sockets, and of the descriptor that tells the daemon to end.
const LISTENER: u64 = u64::MAX;
const NETWORK: u64 = u64::MAX - 1;
const ENDS: u64 = u64::MAX - 2;

/// Runs of packets that are taken in at once.
const RUNS_MOST: u32 = 4;

/// How long after a packet the daemon looks at the network on every turn. Later it does so on every 16th turn.
const HOT_NANOS: u64 = 100_000;

/// Bytes of a stream that may wait here, at most.
const WINDOW_MOST: usize = 1 << 18;

const SELDOM: u32 = 16;

/// The state of a program's connection.
#[derive(Debug)]
enum Stage {
    /// It has said nothing.
    Stranger,
    /// It got its memory, and has not mapped it yet.
    Welcomed(SegmentFile, Descriptor, Epoch),
    /// It is attached.
    Attached(AttachmentId),
    /// It is a tool that inspects the daemon.
    Looks(Box<Look>),
}

/// A program's bundle.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// Wakes the daemon. Never read: its value means nothing.
    waker: Option<OwnedFd>,
    user: Uid,
    /// Its process, if that is in this process namespace.
    pid: Option<u32>,
    /// Its number in the order of all callers.
    came: u64,
    stage: Stage,
}

/// The state of polling the network.
#[derive(Debug)]
struct Network {
    buffer: Box<[u8]>,
    /// When packets came last, and when the last turn was.
    heard_at: Time,
    turned_at: Time,
    /// How many sockets the link had made when they were last added to epoll. `None` without a network.
    watched: Option<u32>,
}

/// The daemon.
pub struct Server {
    engine: Engine<SegmentFile, UdpLink>,
    network: Network,
    listener: OwnedFd,
    epoll: OwnedFd,
    /// When programs are accepted again, if they are not accepted now.
    accepts_at: Option<Time>,
    logs: Logs,
    bounds: Bounds,
    /// Becomes readable when the daemon is to end.
    _ends: OwnedFd,
    is_over: bool,
    awake: AwakePage,
    awake_fd: Descriptor,
    clients: Slab<Client>,
    /// Programs that have called so far.
    came: u64,
    looks: Looks,
    allowed: Allowed,
    users: UserMap,
    secret: Secret,
    address: HostAddress,
    file_bytes: usize,
    spin: Duration,
    begin: Instant,
}

impl Server {
    /// Prepares to serve at a socket, until `ends` becomes readable.
    ///
    /// # Errors
    /// If the kernel refuses something.
    pub fn open(
        config: &Config,
        bounds: Bounds,
        allowed: Allowed,
        listener: Listener,
        ends: OwnedFd,
    ) -> Result<Server, StartError> {
        if !barrier::register() {
            return Err(cannot("cannot issue barriers", "use a kernel with membarrier(2), Linux 4.16 or later")(
                io::ErrorKind::Unsupported.into(),
            ));
        }
        let mut seed = [0; 8];
        random(&mut seed).map_err(cannot("cannot draw random bits", "use a kernel with getrandom(2)"))?;
        let Listener { socket: listener, path } = listener;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let place = folder.join("secret");
        let what = format!("cannot keep the secret in {}", place.display());
        let way_out =
            "run weftd as the folder's owner, or remove the file: then programs that ran before get new names";
        let secret = Secret::at(&place).map_err(cannot(what, way_out))?;
        let shortage = || cannot("cannot make an epoll set", MORE_FILES);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from).map_err(shortage())?;
        for (socket, token) in [(&listener, LISTENER), (&ends, ENDS)] {
            epoll::add(&epoll, socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(io::Error::from)
                .map_err(shortage())?;
        }
        let (awake, awake_fd) = AwakePage::create()
            .map_err(cannot("cannot make sealed memory", "use Linux 5.1 or later, and see ulimit -v"))?;
        let seed = u64::from_le_bytes(seed);
        let mut looks = Looks::new();
        let network = network(config, bounds, folder, &mut looks)?;
        let address = network.as_ref().map_or(HostAddress::NONE, |ni| ni.link().address());
        let settings = Settings { address, ..bounds.apply(config.settings(seed)) };
        let has_network = network.is_some();
        let mut engine = match network {
            Some(ni) => Engine::with_network(settings, ni),
            None => Engine::alone(settings),
        };
        let users = UserMap::of_this_process();
        allowed.weights.iter().for_each(|(user, weight)| engine.set_weight(users.outside(*user), *weight));
        let network = Network {
            buffer: vec![0; RECEIVE_BYTES].into(),
            heard_at: Time::default(),
            turned_at: Time::default(),
            watched: has_network.then_some(u32::MAX),
        };
        Ok(Server {
            address,
            engine,
            network,
            listener,
            epoll,
            accepts_at: None,
            logs: Logs::default(),
            bounds,
            _ends: ends,
            is_over: false,
            awake,
            awake_fd,
            clients: Slab::new(),
            came: 0,
            looks,
            allowed,
            users,
            secret,
            file_bytes: config.file_bytes(),
            spin: Duration::from_micros(config.spin_us),
            begin: Instant::now(),
        })
    }

    /// The daemon runs without something, or may have to. Tools are shown this note.
    pub fn note_degraded(&mut self, what: impl Into<String>) {
        self.looks.note_degraded(what);
    }

    /// Serves until it is told to end.
    pub fn run(&mut self) {
        let (mut turns, mut idle_since) = (0u32, None);
        while !self.is_over {
            turns = turns.wrapping_add(1);
            // By the clock of the last turn: another reading in each turn would cost as much as the look.
            let is_hot = self.network.turned_at.nanos_since(self.network.heard_at) < HOT_NANOS;
            let came = if is_hot || turns % SELDOM == 0 { self.receive() } else { 0 };
            let work = came + self.turn() + if turns % LOOK_EVERY == 0 { self.look(Duration::ZERO) } else { 0 };
            let work = work + self.tell_some(work > 0);
            if work > 0 {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.spin {
                self.sleep();
            } else {
                std::hint::spin_loop();
            }
        }
        info!("ends");
    }

    /// A turn of the engine, and its consequences.
    fn turn(&mut self) -> u32 {
        let now = self.now();
        self.network.turned_at = now;
        let work = self.engine.poll(now);
        self.watch_network();
        if self.accepts_at.is_some_and(|at| at <= now) {
            self.accept_again();
        }
        // In idle turns too: peers are told that a program has ended between two turns, and they may sleep.
        for id in self.engine.take_wakes() {
            self.wake(id);
        }
        for id in self.engine.take_broken() {
            self.cut(id);
        }
        work
    }

    /// The time of the network's clock, or of one of the daemon's own.
    fn now(&mut self) -> Time {
        match self.engine.network() {
            Some(ni) => ni.link().now(),
            None => Time::from_nanos(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    /// Takes in packets. Returns how many runs of them came.
    fn receive(&mut self) -> u32 {
        let Some(ni) = self.engine.network() else { return 0 };
        let mut runs = 0;
        while runs < RUNS_MOST && take_run(ni, &mut self.network.buffer).is_some() {
            runs += 1;
        }
        let now = ni.link().now();
        if runs < RUNS_MOST {
            ni.link_mut().found_nothing(now);
        }
        if ni.link().has_words() {
            ni.take_refusals(now);
        }
        if runs > 0 {
            self.network.heard_at = now;
        }
        runs
    }

    /// Makes new sockets of the link wake the daemon too.
    fn watch_network(&mut self) {
        let (Some(watched), Some(ni)) = (self.network.watched, self.engine.network()) else { return };
        let made = ni.link().made();
        if watched != made {
            self.network.watched = Some(made);
            for socket in ni.link().sockets() {
                // Fails for a socket that is watched already.
                let _ = epoll::add(&self.epoll, socket, epoll::EventData::new_u64(NETWORK), epoll::EventFlags::IN);
            }
        }
    }

    /// How long the daemon may sleep.
    fn sleep_limit(&mut self) -> Duration {
        let Some(next) = self.engine.next_time().into_iter().chain(self.accepts_at).min() else { return SLEEP_MOST };
        Duration::from_nanos(next.nanos_since(self.now())).min(SLEEP_MOST)
    }

    /// Sleeps until a program rings or a socket has an event.
    fn sleep(&mut self) {
        self.awake.lie_down();
        // From here on, programs that ring see that they must wake the daemon. The turn below finds earlier rings.
        let is_sure = barrier::heavy();
        if self.receive() + self.turn() + self.engine.look_before_sleep() == 0 && !self.engine.has_work() {
            let most = self.sleep_limit();
            self.look(if is_sure { most } else { most.min(Duration::from_millis(1)) });
        }
        self.awake.get_up();
    }

    /// Looks at the sockets. Returns how many had events.
    fn look(&mut self, most: Duration) -> u32 {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&most)) else { return 0 };
        let mut told = 0;
        self.logs.tell_left_out(self.network.turned_at);
        for event in ready.iter() {
            told += 1;
            match event.data.u64() {
                LISTENER => self.accept(),
                ENDS => self.is_over = true,
                NETWORK => {
                    self.network.heard_at = self.now();
                    self.engine.network().into_iter().for_each(|ni| ni.link_mut().look_at_all());
                }
                token if token % 2 == 0 => self.hear((token / 2) as usize),
                // A wakeup: the next turn finds its cause.
                _ => {}
            }
        }
        told
    }

    fn accept(&mut self) {
        for _ in 0..EVENTS_MOST {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return self.accept_later(error),
            };
            // Not rustix's call, which has no value for a process of another process namespace.
            let Ok(peer) = getsockopt(&socket, PeerCredentials) else { continue };
            let user = Uid(peer.uid());
            let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
            let is_allowed = self.allowed.has(user, peer.gid());
            // The user's number as names carry it.
            let user = self.users.outside(user);
            if !is_allowed {
                say(&socket, &Message::Refuse(Reason::ForeignUser));
                if self.may_log(Kind::ForeignUser) {
                    debug!(user = user.0, "refused a program of a user that may not attach");
                }
                continue;
            }
            self.make_place(user);
            let entry = self.clients.vacant_entry();
            let token = epoll::EventData::new_u64(entry.key() as u64 * 2);
            if epoll::add(&self.epoll, &socket, token, epoll::EventFlags::IN | epoll::EventFlags::RDHUP).is_ok() {
                self.came += 1;
                entry.insert(Client { socket, waker: None, user, pid, came: self.came, stage: Stage::Stranger });
            }
        }
    }

    /// The kernel has no descriptor for a caller, and would report the same caller again at once.
    fn accept_later(&mut self, error: Errno) {
        if self.may_log(Kind::Shortage) {
            warn!(%error, "cannot accept programs; {MORE_FILES}");
        }
        let token = epoll::EventData::new_u64(LISTENER);
        if epoll::modify(&self.epoll, &self.listener, token, epoll::EventFlags::empty()).is_ok() {
            self.accepts_at = Some(self.now() + PAUSE);
        }
    }

    fn accept_again(&mut self) {
        let token = epoll::EventData::new_u64(LISTENER);
        if epoll::modify(&self.epoll, &self.listener, token, epoll::EventFlags::IN).is_ok() {
            self.accepts_at = None;
        }
    }

    fn may_log(&mut self, kind: Kind) -> bool {
        self.logs.may(kind, self.network.turned_at)
    }

    /// Drops the oldest caller that is not attached, if there are too many: each one holds descriptors and memory here.
    fn make_place(&mut self, user: Uid) {
        let those = || self.clients.iter().filter(|(_, client)| !matches!(client.stage, Stage::Attached(_)));
        let first = |(index, client): (usize, &Client)| (client.came, index);
        let of_user = || those().filter(|(_, client)| client.user == user);
        let found = if of_user().count() >= self.bounds.callers_of_user {
            of_user().map(first).min()
        } else if those().count() >= self.bounds.callers {
            those().map(first).min()
        } else {
            None
        };
        if let Some((_, index)) = found {
            self.forget(index);
        }
    }

    /// A program has sent a message, or has ended.
    fn hear(&mut self, index: usize) {
        let Some(client) = self.clients.get(index) else { return };
        if matches!(client.stage, Stage::Looks(_)) {
            self.listen_to_tool(index, false);
            return self.tell(index);
        }
        let mut bytes = [0; MESSAGE_BYTES + 1];
        // Without room for descriptors: the kernel closes any that the message carries.
        let got = match net::recv(&client.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((got, _)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        let message = match Message::from_bytes(&bytes[..got.min(bytes.len())]) {
            Err(SetupError::Version(_)) => return self.refuse(index, Reason::Version),
            message => message.ok(),
        };
        match (message, &client.stage) {
            (Some(Message::Hello(life)), Stage::Stranger) => {
                if let Err(reason) = self.welcome(index, life) {
                    self.refuse(index, reason);
                }
            }
            (Some(Message::Mapped), Stage::Welcomed(..)) => {
                if let Err(reason) = self.attach(index) {
                    self.refuse(index, reason);
                }
            }
            (Some(Message::Look(scope)), Stage::Stranger) => self.begin_look(index, scope),
            (None, _) => self.forget(index),
            (Some(_), _) => self.refuse(index, Reason::Violation),
        }
    }

    /// Gives a program its memory.
    fn welcome(&mut self, index: usize, life: Option<(Epoch, weft_wire::attach::Token)>) -> Result<(), Reason> {
        let user = self.clients.get(index).ok_or(Reason::NobodyThere)?.user;
        if !self.engine.may_attach(user) {
            return Err(Reason::NoRoom);
        }
        let epoch = match life {
            Some((epoch, token)) if self.secret.token(epoch, user).matches(token) => epoch,
            Some(_) => return Err(Reason::WrongOwner),
            None => {
                let mut bytes = [0; 8];
                random(&mut bytes).map_err(|_| Reason::NoRoom)?;
                Epoch(u64::from_le_bytes(bytes))
            }
        };
        let made = SegmentFile::create(self.file_bytes).and_then(|file| {
            // The program can only write to it, and the daemon only polls it, so if the program changes its flags it harms only itself.
            Ok((file, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        });
        let ((segment, file), waker) = match made {
            Ok(made) => made,
            Err(error) => {
                if self.may_log(Kind::Shortage) {
                    warn!(%error, "cannot make the memory of a program");
                }
                return Err(Reason::NoRoom);
            }
        };
        let token = epoll::EventData::new_u64(index as u64 * 2 + 1);
        epoll::add(&self.epoll, &waker, token, epoll::EventFlags::IN | epoll::EventFlags::ET)
            .map_err(|_| Reason::NoRoom)?;
        let welcome = Welcome {
            epoch,
            token: self.secret.token(epoch, user),
            address: self.address,
            user,
            bytes: self.file_bytes as u64,
        };
        let client = self.clients.get_mut(index).ok_or(Reason::NobodyThere)?;
        let fds = [file.as_fd(), self.awake_fd.as_fd(), waker.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Reason::NoRoom);
        }
        let bytes = Message::Welcome(welcome).to_bytes();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        net::sendmsg(&client.socket, &[IoSlice::new(&bytes)], &mut control, flags).map_err(|_| Reason::NobodyThere)?;
        client.stage = Stage::Welcomed(segment, file, epoch);
        client.waker = Some(waker);
        Ok(())
    }

    /// Attaches a program that has mapped its memory.
    fn attach(&mut self, index: usize) -> Result<(), Reason> {
        let client = self.clients.get_mut(index).ok_or(Reason::NobodyThere)?;
        let Stage::Welcomed(segment, file, epoch) = std::mem::replace(&mut client.stage, Stage::Stranger) else {
            return Err(Reason::Violation);
        };
        // Before anything else is done there: an access to a hole that is being punched would wait.
        SegmentFile::seal(&file).map_err(|_| Reason::NoRoom)?;
        let id =
            self.engine.attach(Newcomer { segment, user: client.user, epoch }).map_err(|refused| match refused {
                Refused::Epoch => Reason::WrongOwner,
                Refused::Quota | Refused::Memory => Reason::NoRoom,
            })?;
        client.stage = Stage::Attached(id);
        // What waits in the socket is this process's memory. Without this bound it could be thirteen times as much.
        let _ = net::sockopt::set_socket_send_buffer_size(&client.socket, UNREAD_MOST);
        self.looks.note_process(id.index, client.pid);
        let user = client.user.0;
        if self.may_log(Kind::Attached) {
            debug!(user, "attached");
        }
        Ok(())
    }

    fn refuse(&mut self, index: usize, reason: Reason) {
        if let Some(client) = self.clients.get(index) {
            say(&client.socket, &Message::Refuse(reason));
            let user = client.user.0;
            if self.may_log(Kind::Refused) {
                info!(user, %reason, "refused");
            }
        }
        self.forget(index);
    }

    /// A program is gone: forgets it.
    fn forget(&mut self, index: usize) {
        let Some(client) = self.clients.try_remove(index) else { return };
        self.looks.forget(index);
        if let Some(waker) = &client.waker {
            // The program may still hold it, and then it would stay in the epoll set.
            let _ = epoll::delete(&self.epoll, waker);
        }
        if let Stage::Attached(id) = client.stage {
            self.engine.detach(id, Reason::PeerLost);
            self.looks.note_process(id.index, None);
            if self.may_log(Kind::Detached) {
                debug!(user = client.user.0, "detached");
            }
        }
    }

    /// A tool asks for the status of the daemon. Root and the daemon's own user see everybody's.
    fn begin_look(&mut self, index: usize, scope: Scope) {
        let may_see_all = [Uid(0), own_user()].map(|user| self.users.outside(user));
        let Some(client) = self.clients.get_mut(index) else { return };
        let viewer = Some(client.user).filter(|user| !may_see_all.contains(user));
        client.stage = Stage::Looks(Look::new(scope, viewer).into());
        self.listen_to_tool(index, false);
        self.looks.enqueue(index);
    }

    /// Continues the look of one tool, unless other work goes first. Returns whether it did.
    fn tell_some(&mut self, is_busy: bool) -> u32 {
        let Some(index) = self.looks.next(is_busy, self.network.turned_at) else { return 0 };
        let begin = self.now();
        self.tell(index);
        let end = self.now();
        self.looks.note_step(begin, end);
        1
    }

    /// Sends a tool more of its answer, if it has read the last part.
    fn tell(&mut self, index: usize) {
        let Some(Client { socket, stage: Stage::Looks(look), .. }) = self.clients.get_mut(index) else { return };
        match look.go_on(&mut self.engine, &self.looks, socket) {
            Onward::Later => self.looks.enqueue(index),
            Onward::Blocked => self.listen_to_tool(index, true),
            Onward::Over => self.forget(index),
        }
    }

    /// Watches a tool's socket for room if it is blocked, and otherwise only for its end. Further input from a tool is ignored.
    fn listen_to_tool(&mut self, index: usize, is_blocked: bool) {
        let Some(client) = self.clients.get(index) else { return };
        let token = epoll::EventData::new_u64(index as u64 * 2);
        if epoll::modify(&self.epoll, &client.socket, token, interest(is_blocked)).is_err() {
            self.forget(index);
        }
    }

    /// A program broke the protocol.
    fn cut(&mut self, id: AttachmentId) {
        let found = self.clients.iter().find(|(_, client)| matches!(client.stage, Stage::Attached(of) if of == id));
        if let Some((index, client)) = found {
            let user = client.user.0;
            if self.may_log(Kind::Cut) {
                warn!(user, "a program broke the protocol and was cut off");
            }
            self.refuse(index, Reason::Violation);
        }
    }

    fn wake(&self, id: AttachmentId) {
        let found = self.clients.iter().find(|(_, client)| matches!(client.stage, Stage::Attached(of) if of == id));
        if let Some((_, client)) = found {
            say(&client.socket, &Message::Wake);
        }
    }
}

/// Sends a message to a program. Does not block: a program that does not read loses it.
fn say(socket: &OwnedFd, message: &Message) {
    let _ = net::send(socket, &message.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The network interface, if the configuration wants one.
fn network(
    config: &Config,
    bounds: Bounds,
    folder: &Path,
    looks: &mut Looks,
) -> Result<Option<Ni<UdpLink>>, StartError> {
    let NetworkConfig { address, port, .. } = &config.network;
    let failed = |error: NetworkError| {
        let way_out = "see [network] in weftd.toml; address = \"none\" does without the network";
        cannot("cannot have the network", way_out)(io::Error::other(error.to_string()))
    };
    let Some(wanted) = Wanted::from_settings(Some(address), Some(port)).map_err(failed)? else { return Ok(None) };
    // The port of the daemon before, unless the configuration names one: names contain the port.
    let place = folder.join("port");
    let found = kept::read(&place, Readers::Everybody).unwrap_or_else(|error| {
        warn!(%error, "cannot use the port in {}", place.display());
        None
    });
    let before = found.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok());
    let before: Option<u16> = before.filter(|before| *before != 0 && port.is_empty());
    let again = before.map(|port| UdpLink::open(&Wanted { ports: Ports::only(port), ..wanted.clone() }));
    let mut link = match again {
        Some(Ok(link)) => link,
        Some(Err(_)) | None => UdpLink::open(&wanted).map_err(failed)?,
    };
    bounds.received.into_iter().for_each(|most| link.limit_buffers(most));
    // Kept even if another process uses it now: the next daemon tries it again.
    let written = match before {
        Some(_) => Ok(()),
        None => kept::write(&place, link.address().port.to_string().as_bytes(), Readers::Everybody),
    };
    if let Err(error) = written {
        let effect = "cannot keep the port: the next daemon may have another one, and its programs other names";
        warn!(%error, "{effect}");
        looks.note_degraded(effect);
    }
    let mut bits = [[0; 8]; 4];
    for bits in &mut bits {
        random(bits).map_err(cannot("cannot draw random bits", "use a kernel with getrandom(2)"))?;
    }
    let [epoch, first, second, seed] = bits.map(u64::from_le_bytes);
    let window = link.receive_bytes().min(WINDOW_MOST) as u32;
    let default = weft_transport::Settings::default();
    let settings = weft_transport::Settings {
        suspicion: wanted.suspicion.unwrap_or(default.suspicion),
        window,
        send_most: WINDOW_MOST as u32,
        held_most: HELD_MOST,
        packet_most: PACKET_MOST,
        congestion: wanted.congestion,
        integrity: config.network.integrity().ok().flatten().unwrap_or(wanted.integrity),
        ..default
    };
    let mut ni = Ni::new(link, Epoch(epoch), settings, Secrets { door: [first, second], seed });
    ni.set_bounds(bounds.hosts);
    Ok(Some(ni))
}
