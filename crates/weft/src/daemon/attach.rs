//! How a bundle attaches to weftd: which socket it trusts, and the handshake.

use super::Memory;
use crate::node::Error;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_link::NetworkError;
use weft_shm::{AwakeView, Descriptor, SegmentFile};
use weft_wire::attach::{Message, Token, Welcome, MESSAGE_BYTES};
use weft_wire::{Epoch, Reason};

/// Which network interface programs use: `process`, `weftd`, or the path of a daemon's socket.
const NI: &str = "WEFT_NI";

/// Where the administrator's daemon listens.
pub(crate) const SOCKET: &str = "/run/weftd/socket";

/// The file in which the administrator names the user that the daemon runs as, if that is not root.
pub(crate) const USER: &str = "/etc/weftd/user";

/// How long to wait for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Descriptors that come with the answer: the file, the page, and the daemon's waker.
const DESCRIPTORS: usize = 3;

/// The socket of a daemon, and whether the user insists on it.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    path: PathBuf,
    /// The user named it, and vouches for it.
    is_named: bool,
}

/// An attachment that no bundle has yet.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(super) socket: Descriptor,
    pub(super) memory: Memory,
    pub(super) welcome: Welcome,
}

impl Attached {
    /// The epoch of the program's names, and the token that proves that the epoch is the program's.
    pub fn life(&self) -> (Epoch, Token) {
        (self.welcome.epoch, self.welcome.token)
    }
}

impl Door {
    /// The door that the environment names, or the administrator's if it exists and can be trusted. `None` if the process should be
    /// its own network interface.
    ///
    /// # Errors
    /// If `WEFT_NI` is invalid, or asks for the administrator's daemon and there is none to trust.
    pub fn find() -> Result<Option<Door>, Error> {
        let path = PathBuf::from(SOCKET);
        match Wish::of_environment()? {
            Wish::Any => Ok(distrust(&path).is_none().then_some(Door { path, is_named: false })),
            Wish::Process => Ok(None),
            Wish::Administrators => match distrust(&path) {
                None => Ok(Some(Door { path, is_named: true })),
                Some(Distrust { kind: io::ErrorKind::NotFound, .. }) => Err(Error::system(
                    "there is no daemon",
                    io::Error::new(io::ErrorKind::NotFound, format!("{SOCKET} does not exist")),
                    "start weftd as root (weftd --foreground), or unset WEFT_NI",
                )),
                Some(distrust) => Err(Error::system(
                    "cannot trust the socket of weftd (/run/weftd/socket)",
                    distrust.kind,
                    "start weftd as root (weftd --foreground), or name the socket of your own: WEFT_NI=PATH",
                )),
            },
            Wish::Named(path) => Ok(Some(Door { path, is_named: true })),
        }
    }

    /// Attaches, with the life of an earlier attachment of this process if there was one. `None` if the daemon refuses, or does not answer,
    /// and the user did not name it. Blocks for 2 s at most.
    ///
    /// # Errors
    /// If attaching fails and the user named the door.
    pub fn attach(&self, life: Option<(Epoch, Token)>) -> Result<Option<Attached>, Error> {
        match self.try_attach(life) {
            Ok(attached) => Ok(Some(attached)),
            // Once the process is attached, its bundles need the daemon.
            Err(_) if !self.is_named && life.is_none() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn try_attach(&self, life: Option<(Epoch, Token)>) -> Result<Attached, Error> {
        let way_out = "start it, or unset WEFT_NI; `weft doctor` names its socket";
        let failed = |error| Error::system("cannot attach to weftd", error, way_out);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = Descriptor::make(|| net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None));
        let socket = socket.map_err(|error| Error::shortage("cannot make a socket for weftd", error))?;
        let address = SocketAddrUnix::new(&self.path).map_err(failed)?;
        net::connect(&socket, &address).map_err(failed)?;
        if !self.is_named || self.path == Path::new(SOCKET) {
            // Not rustix's call, which cannot represent a daemon of another PID namespace.
            let peer = getsockopt(&socket, PeerCredentials);
            let uid = peer.map_err(|error| failed(Errno::from_raw_os_error(error as i32)))?.uid();
            if uid != 0 && Some(uid) != daemons_user() {
                return Err(failed(Errno::PERM));
            }
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match net::send(&socket, &Message::Hello(life).to_bytes(), flags) {
            // On EPIPE it has hung up, and its reason can still be read.
            Ok(_) | Err(Errno::PIPE) => {}
            Err(error) => return Err(failed(error)),
        }
        let (welcome, fds) = hear(&socket)?;
        let Ok([file, page, waker]) = <[OwnedFd; DESCRIPTORS]>::try_from(fds) else {
            return Err(failed(Errno::BADMSG));
        };
        let unmapped = |_| Error::shortage("cannot map the memory of weftd", Errno::NOMEM);
        let segment = SegmentFile::open(&file, usize::try_from(welcome.bytes).unwrap_or(0)).map_err(unmapped)?;
        let awake = AwakeView::open(&page).map_err(unmapped)?;
        let waker = Descriptor::make(|| Ok::<_, Errno>(waker)).map_err(failed)?;
        net::send(&socket, &Message::Mapped.to_bytes(), flags).map_err(failed)?;
        Ok(Attached { socket, memory: Memory { segment, awake, waker }, welcome })
    }
}

/// The user's choice of daemon in the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// No choice: the administrator's, if there is one.
    Any,
    /// None.
    Process,
    /// The administrator's.
    Administrators,
    /// The one at this path.
    Named(PathBuf),
}

impl Wish {
    /// Reads `WEFT_NI`.
    ///
    /// # Errors
    /// If its value is invalid.
    pub fn of_environment() -> Result<Wish, Error> {
        // A program with more rights than its user must not let the user choose its network interface.
        match std::env::var_os(NI).filter(|said| !said.is_empty() && !has_borrowed_rights()) {
            None => Ok(Wish::Any),
            Some(said) if said == "process" => Ok(Wish::Process),
            Some(said) if said == "weftd" => Ok(Wish::Administrators),
            Some(said) if Path::new(&said).is_absolute() => Ok(Wish::Named(said.into())),
            Some(said) => Err(NetworkError::Setting {
                variable: NI,
                value: said.to_string_lossy().into_owned(),
                wanted: "process, weftd, or the absolute path of a daemon's socket",
            }
            .into()),
        }
    }
}

/// Why the administrator's daemon is not trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Distrust {
    pub found: String,
    pub mend: String,
    kind: io::ErrorKind,
}

/// Why someone other than root could have put this socket in its place.
pub(crate) fn distrust(socket: &Path) -> Option<Distrust> {
    socket.ancestors().find_map(|path| {
        let shown = path.display();
        let refuse = |found, mend| Some(Distrust { found, mend, kind: io::ErrorKind::PermissionDenied });
        let found = match std::fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) => {
                let (kind, mend) = (error.kind(), "sudo weftd --foreground, or its systemd unit".to_owned());
                return Some(Distrust { found: format!("{shown}: {error}"), mend, kind });
            }
        };
        if found.is_symlink() {
            return refuse(format!("{shown} is a symbolic link"), format!("replace {shown} by what it points to"));
        }
        if found.uid() != 0 {
            let mend = format!("sudo chown root {shown}");
            return refuse(format!("{shown} belongs to user {}, not to root", found.uid()), mend);
        }
        // The daemon may let others write to the socket, because that lets them attach. Only root may write to its folders.
        if path != socket && found.mode() & 0o022 != 0 {
            let found = format!("users other than root may write to {shown} (mode {:04o})", found.mode() & 0o7777);
            return refuse(found, format!("sudo chmod go-w {shown}"));
        }
        None
    })
}

/// Whether the program runs with more rights than its user.
fn has_borrowed_rights() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() != geteuid() || getgid() != getegid()
}

/// The user that the daemon runs as, according to the administrator.
fn daemons_user() -> Option<u32> {
    said_user(Path::new(USER)).ok()?
}

/// The user named in a file of the administrator, if the file exists.
///
/// # Errors
/// A message that says why the file is unusable.
pub(crate) fn said_user(file: &Path) -> Result<Option<u32>, String> {
    let found = match std::fs::symlink_metadata(file) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if found.uid() != 0 || found.mode() & 0o022 != 0 {
        return Err("users other than root may write to it".into());
    }
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    text.trim().parse().map(Some).map_err(|_| "it does not contain a user id".into())
}

/// The daemon's answer.
fn hear(socket: &Descriptor) -> Result<(Welcome, Vec<OwnedFd>), Error> {
    let failed = |error| Error::system("weftd does not answer", error, "check that it runs: weft doctor");
    let most = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut asked = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut asked, Some(&most)) {
        Ok(0) => return Err(failed(Errno::TIMEDOUT)),
        Ok(_) => {}
        Err(error) => return Err(failed(error)),
    }
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut got = net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    if matches!(got, Err(Errno::CONNRESET)) {
        // The kernel reports this once, before the daemon's message, if the daemon refused and hung up without reading all of ours.
        got = net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    }
    let got = got.map_err(failed)?.bytes;
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    match Message::from_bytes(&bytes[..got]) {
        Ok(Message::Welcome(welcome)) => Ok((welcome, fds)),
        Ok(Message::Refuse(reason)) => Err(refused(reason)),
        Ok(_) | Err(_) => Err(failed(Errno::PROTO)),
    }
}

fn refused(reason: Reason) -> Error {
    let (kind, way_out) = match reason {
        Reason::NoRoom => {
            (io::ErrorKind::QuotaExceeded, "end programs of this user, or have the limits of weftd raised (weftd(8))")
        }
        Reason::ForeignUser => {
            (io::ErrorKind::PermissionDenied, "have the administrator let this user in (allow_users in weftd.toml)")
        }
        _ => (io::ErrorKind::Unsupported, "use programs and a weftd of the same version"),
    };
    Error::system("weftd refuses this process", kind, way_out)
}
