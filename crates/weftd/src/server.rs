//! The process around the engine: programs attach, are woken, and go.

use crate::config::Config;
use crate::users::{random, Allowed, Secret};
use rustix::event::{epoll, eventfd, EventfdFlags, Timespec};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    self, sockopt, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use slab::Slab;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use weft_daemon::{AttachmentId, Engine, Newcomer, Refused};
use weft_shm::users::UserMap;
use weft_shm::{barrier, AwakePage, Descriptor, SegmentFile};
use weft_transport::Time;
use weft_wire::attach::{Message, Welcome, MESSAGE_BYTES};
use weft_wire::{Epoch, HostAddress, Reason, Uid};

/// Programs that are not attached yet, at most: of one user, and of all.
const STRANGERS_OF_USER_MOST: usize = 16;
const STRANGERS_MOST: usize = 256;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Events of one look.
const EVENTS_MOST: usize = 32;

/// Turns between two looks at the sockets while there is work.
const LOOK_EVERY: u32 = 64;

/// The longest sleep: a wake-up can be lost where the kernel's barrier does not reach a program.
const SLEEP_MOST: Duration = Duration::from_millis(250);

/// The token of the socket at which programs call.
const LISTENER: u64 = u64::MAX;

/// How far a program has come.
#[derive(Debug)]
enum Stage {
    /// It has said nothing.
    Stranger,
    /// It was given its memory, and has not mapped it yet.
    Welcomed(SegmentFile, Descriptor, Epoch),
    /// It is attached.
    Attached(AttachmentId),
}

/// A program's bundle.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// Wakes the daemon. Never read: who wakes it says nothing by that.
    waker: Option<OwnedFd>,
    user: Uid,
    /// Its place among all that called.
    came: u64,
    stage: Stage,
}

/// The daemon.
pub struct Server {
    engine: Engine<SegmentFile>,
    listener: OwnedFd,
    epoll: OwnedFd,
    awake: AwakePage,
    awake_fd: Descriptor,
    clients: Slab<Client>,
    /// Programs that called so far.
    came: u64,
    allowed: Allowed,
    users: UserMap,
    secret: Secret,
    address: HostAddress,
    file_bytes: usize,
    spin: Duration,
    begin: Instant,
}

/// Why the daemon does not start: what it was doing, what the kernel said, and what helps.
#[derive(thiserror::Error)]
#[error("{what}: {source}. {way_out}")]
pub struct StartError {
    what: String,
    source: io::Error,
    way_out: &'static str,
}

weft_wire::debug_says_display!(StartError);

fn cannot(what: impl Into<String>, way_out: &'static str) -> impl FnOnce(io::Error) -> StartError {
    let what = what.into();
    move |source| StartError { what, source, way_out }
}

impl Server {
    /// Opens the socket.
    ///
    /// # Errors
    /// If another daemon has it, or the kernel does not let this one.
    pub fn open(config: &Config, allowed: Allowed) -> Result<Server, StartError> {
        if !barrier::register() {
            return Err(cannot("cannot issue barriers", "use a kernel with membarrier(2), Linux 4.16 or later")(
                io::ErrorKind::Unsupported.into(),
            ));
        }
        let mut seed = [0; 8];
        random(&mut seed).map_err(cannot("cannot draw random bits", "use a kernel with getrandom(2)"))?;
        let listener = listen(&config.socket)?;
        let folder = config.socket.parent().unwrap_or(Path::new("/"));
        let secret = Secret::at(&folder.join("secret"))
            .map_err(cannot("cannot keep the secret beside the socket", "run weftd as the folder's owner"))?;
        let shortage = || cannot("cannot make an epoll set", "raise the limit of open files (ulimit -n)");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from).map_err(shortage())?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
            .map_err(io::Error::from)
            .map_err(shortage())?;
        let (awake, awake_fd) = AwakePage::create()
            .map_err(cannot("cannot make sealed memory", "use Linux 5.1 or later, and see ulimit -v"))?;
        let settings = config.settings(u64::from_le_bytes(seed));
        let mut engine = Engine::new(settings);
        let users = UserMap::of_this_process();
        allowed.weights.iter().for_each(|(user, weight)| engine.set_weight(users.outside(*user), *weight));
        Ok(Server {
            address: settings.address,
            engine,
            listener,
            epoll,
            awake,
            awake_fd,
            clients: Slab::new(),
            came: 0,
            allowed,
            users,
            secret,
            file_bytes: config.file_bytes(),
            spin: Duration::from_micros(config.spin_us),
            begin: Instant::now(),
        })
    }

    /// Serves until `is_over`.
    pub fn run(&mut self, is_over: &AtomicBool) {
        let (mut turns, mut idle_since) = (0u32, None);
        // Relaxed: it only ends the loop, a moment sooner or later.
        while !is_over.load(Ordering::Relaxed) {
            turns = turns.wrapping_add(1);
            let work = self.turn() + if turns % LOOK_EVERY == 0 { self.look(Duration::ZERO) } else { 0 };
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

    /// A turn of the engine, and what follows from it.
    fn turn(&mut self) -> u32 {
        let now = Time::from_nanos(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let work = self.engine.poll(now);
        // In idle turns too: the end of a program between two turns is told to its peers, and they may sleep.
        for id in self.engine.take_wakes() {
            self.wake(id);
        }
        for id in self.engine.take_broken() {
            self.cut(id);
        }
        work
    }

    /// Sleeps until a program rings or a socket says something.
    fn sleep(&mut self) {
        self.awake.lie_down();
        // From here on programs that ring see that they are to wake the daemon; what they rang before is found by the turn.
        let is_sure = barrier::heavy();
        if self.turn() == 0 && !self.engine.has_work() {
            self.look(if is_sure { SLEEP_MOST } else { Duration::from_millis(1) });
        }
        self.awake.get_up();
    }

    /// Looks at the sockets. Returns how many told something.
    fn look(&mut self, most: Duration) -> u32 {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&most)) else { return 0 };
        let mut told = 0;
        for event in ready.iter() {
            told += 1;
            match event.data.u64() {
                LISTENER => self.accept(),
                token if token % 2 == 0 => self.hear((token / 2) as usize),
                // A wake-up: the turn that follows finds why.
                _ => {}
            }
        }
        told
    }

    fn accept(&mut self) {
        for _ in 0..EVENTS_MOST {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let Ok(socket) = net::accept_with(&self.listener, flags) else { return };
            let Ok(peer) = sockopt::socket_peercred(&socket) else { continue };
            let user = Uid(peer.uid.as_raw());
            let is_allowed = self.allowed.has(user, peer.gid.as_raw());
            // As names say it.
            let user = self.users.outside(user);
            if !is_allowed {
                say(&socket, &Message::Refuse(Reason::ForeignUser));
                debug!(user = user.0, "a user that may not attach called");
                continue;
            }
            self.make_place(user);
            let entry = self.clients.vacant_entry();
            let token = epoll::EventData::new_u64(entry.key() as u64 * 2);
            if epoll::add(&self.epoll, &socket, token, epoll::EventFlags::IN | epoll::EventFlags::RDHUP).is_ok() {
                self.came += 1;
                entry.insert(Client { socket, waker: None, user, came: self.came, stage: Stage::Stranger });
            }
        }
    }

    /// Forgets the first one of those that are not attached, if there are too many: each of them holds descriptors and memory here.
    fn make_place(&mut self, user: Uid) {
        let those = || self.clients.iter().filter(|(_, client)| !matches!(client.stage, Stage::Attached(_)));
        let first = |(index, client): (usize, &Client)| (client.came, index);
        let of_user = || those().filter(|(_, client)| client.user == user);
        let found = if of_user().count() >= STRANGERS_OF_USER_MOST {
            of_user().map(first).min()
        } else if those().count() >= STRANGERS_MOST {
            those().map(first).min()
        } else {
            None
        };
        if let Some((_, index)) = found {
            self.forget(index);
        }
    }

    /// A program has said something, or has ended.
    fn hear(&mut self, index: usize) {
        let Some(client) = self.clients.get(index) else { return };
        let mut bytes = [0; MESSAGE_BYTES + 1];
        // Without room for descriptors: those that somebody sends are closed by the kernel.
        let got = match net::recv(&client.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((got, _)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        let message = if got == 0 { None } else { Message::from_bytes(&bytes[..got.min(bytes.len())]).ok() };
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
            (None, _) => self.forget(index),
            (Some(_), _) => self.refuse(index, Reason::Violation),
        }
    }

    /// Gives a program its memory.
    fn welcome(&mut self, index: usize, life: Option<(Epoch, weft_wire::attach::Token)>) -> Result<(), Reason> {
        let user = self.clients.get(index).ok_or(Reason::NobodyThere)?.user;
        let epoch = match life {
            Some((epoch, token)) if self.secret.token(epoch, user).matches(token) => epoch,
            Some(_) => return Err(Reason::WrongOwner),
            None => {
                let mut bytes = [0; 8];
                random(&mut bytes).map_err(|_| Reason::NoRoom)?;
                Epoch(u64::from_le_bytes(bytes))
            }
        };
        let (segment, file) = SegmentFile::create(self.file_bytes).map_err(|error| {
            warn!(%error, "cannot make a file");
            Reason::NoRoom
        })?;
        // The program can only write to it, and the daemon only polls it: what it does to its flags harms nobody but itself.
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|_| Reason::NoRoom)?;
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
        // Before anything is done there: an access to a hole that is being punched would wait.
        SegmentFile::seal(&file).map_err(|_| Reason::NoRoom)?;
        let id =
            self.engine.attach(Newcomer { segment, user: client.user, epoch }).map_err(|refused| match refused {
                Refused::Epoch => Reason::WrongOwner,
                Refused::Quota | Refused::Memory => Reason::NoRoom,
            })?;
        client.stage = Stage::Attached(id);
        debug!(user = client.user.0, "attached");
        Ok(())
    }

    fn refuse(&mut self, index: usize, reason: Reason) {
        if let Some(client) = self.clients.get(index) {
            info!(user = client.user.0, %reason, "refused");
            say(&client.socket, &Message::Refuse(reason));
        }
        self.forget(index);
    }

    /// A program is gone.
    fn forget(&mut self, index: usize) {
        let Some(client) = self.clients.try_remove(index) else { return };
        if let Some(waker) = &client.waker {
            // The program may hold it still, and then it would stay in the set.
            let _ = epoll::delete(&self.epoll, waker);
        }
        if let Stage::Attached(id) = client.stage {
            self.engine.detach(id, Reason::PeerLost);
            debug!(user = client.user.0, "detached");
        }
    }

    /// A program broke the protocol.
    fn cut(&mut self, id: AttachmentId) {
        let found = self.clients.iter().find(|(_, client)| matches!(client.stage, Stage::Attached(of) if of == id));
        if let Some((index, client)) = found {
            warn!(user = client.user.0, "a program broke the protocol and was cut off");
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

/// Says something to a program. Does not block: one that does not listen does not hear.
fn say(socket: &OwnedFd, message: &Message) {
    let _ = net::send(socket, &message.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The socket at which programs call. A socket that nobody listens at is replaced.
fn listen(path: &Path) -> Result<OwnedFd, StartError> {
    let what = format!("cannot listen at {}", path.display());
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = || net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(io::Error::from);
    let failed = |error: io::Error| {
        cannot(what.clone(), "run weftd as root, or name another socket (socket in weftd.toml)")(error)
    };
    let address = SocketAddrUnix::new(path).map_err(io::Error::from).map_err(failed)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let caller = socket().map_err(failed)?;
    match net::connect(&caller, &address) {
        Err(Errno::NOENT) => {}
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed)?,
        Err(error) => return Err(failed(error.into())),
        Ok(()) => {
            let error = io::ErrorKind::AddrInUse.into();
            return Err(cannot(
                what,
                "another weftd runs there; end it, or name another socket (socket in weftd.toml)",
            )(error));
        }
    }
    let listener = socket().map_err(failed)?;
    net::bind(&listener, &address).map_err(io::Error::from).map_err(failed)?;
    // The configuration says who may attach, not the file's rights.
    rustix::fs::chmod(path, Mode::from_raw_mode(0o666)).map_err(io::Error::from).map_err(failed)?;
    net::listen(&listener, BACKLOG).map_err(io::Error::from).map_err(failed)?;
    Ok(listener)
}
