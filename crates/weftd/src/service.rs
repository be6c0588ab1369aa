//! Notifies a service manager such as systemd: sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// The variable that names the manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
///
/// Its socket is connected at the start. The existing crates open one for each message, which the daemon's filter of system calls refuses.
#[derive(Debug)]
pub struct Manager(Option<UnixDatagram>);

impl Manager {
    /// The manager that the environment names.
    pub fn find() -> Manager {
        let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return Manager(None) };
        match connect(&name) {
            Ok(socket) => Manager(Some(socket)),
            Err(error) => {
                warn!(%error, ?name, "cannot reach the service manager, and sends it nothing");
                Manager(None)
            }
        }
    }

    /// Reports that the daemon serves.
    pub fn tell_ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// Reports that the daemon ends.
    pub fn tell_stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=ends\n");
    }

    fn tell(&self, words: &str) {
        // If sending fails, nothing waits for it.
        let _ = self.0.as_ref().map(|socket| socket.send(words.as_bytes()));
    }
}

/// Connects to a path, or to a name without a file, which begins with `@`.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}
