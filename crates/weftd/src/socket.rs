//! The socket at which programs call.

use crate::start::{cannot, StartError};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, sockopt, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{getpid, pidfd_getfd, pidfd_open, PidfdFlags, PidfdGetfdFlags};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The first descriptor that a service manager passes (sd_listen_fds(3)).
const PASSED: i32 = 3;

/// The socket at which programs call, and its path.
#[derive(Debug)]
pub struct Listener {
    pub socket: OwnedFd,
    pub path: PathBuf,
}

impl Listener {
    /// The socket that the service manager passed, or else a new one at this path.
    ///
    /// # Errors
    /// If another daemon has the path, the kernel refuses it, or the service manager passed something else than such a socket.
    pub fn open(path: &Path) -> Result<Listener, StartError> {
        match count_passed() {
            0 => Ok(Listener { socket: listen(path)?, path: path.into() }),
            count => passed(count),
        }
    }
}

/// How many descriptors the service manager passed to this process.
fn count_passed() -> u32 {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    // The variables may be inherited, and meant for another process.
    number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(std::process::id())).unwrap_or(0)
}

/// The one socket that the service manager passed.
fn passed(count: u32) -> Result<Listener, StartError> {
    let failed = |error: io::Error| {
        let way_out = "weftd.socket should have one ListenSequentialPacket= with a path";
        cannot("cannot use what the service manager passed", way_out)(error)
    };
    let unfit = |what: String| failed(io::Error::new(io::ErrorKind::InvalidInput, what));
    if count != 1 {
        return Err(unfit(format!("weftd listens at one socket, not at {count}")));
    }
    // Makes a copy, by the one safe call that takes a number. The number itself stays open until the process ends.
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from).map_err(failed)?;
    let socket = pidfd_getfd(&own, PASSED, PidfdGetfdFlags::empty()).map_err(io::Error::from).map_err(failed)?;
    match path_of(&socket).map_err(io::Error::from).map_err(failed)? {
        Some(path) => Ok(Listener { socket, path }),
        None => Err(unfit("it is no Unix socket of sequential packets that listens at a path".into())),
    }
}

/// The path at which a socket listens, if it is of the right kind. Makes it non-blocking.
fn path_of(socket: &OwnedFd) -> rustix::io::Result<Option<PathBuf>> {
    let is_fit = sockopt::socket_domain(socket)? == AddressFamily::UNIX
        && sockopt::socket_type(socket)? == SocketType::SEQPACKET
        && sockopt::socket_acceptconn(socket)?;
    if !is_fit {
        return Ok(None);
    }
    rustix::io::ioctl_fionbio(socket, true)?;
    let address = SocketAddrUnix::try_from(net::getsockname(socket)?)?;
    let path = address.path().map(|path| PathBuf::from(OsStr::from_bytes(path.to_bytes())));
    Ok(path.filter(|path| path.is_absolute()))
}

/// Makes a socket at this path. Replaces one that nobody listens at.
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
        Err(Errno::CONNREFUSED) => remove_stale(path).map_err(failed)?,
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
    // The configuration decides which users may attach, not the file's rights.
    rustix::fs::chmod(path, Mode::from_raw_mode(0o666)).map_err(io::Error::from).map_err(failed)?;
    net::listen(&listener, BACKLOG).map_err(io::Error::from).map_err(failed)?;
    Ok(listener)
}

/// Removes a socket that nobody listens at. The kernel returns the same error for a file that is no socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is not a socket"));
    }
    std::fs::remove_file(path)
}
