//! Sockets in an epoll set.

use crate::socket::Socket;
use rustix::event::epoll;
use rustix::io::Errno;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use weft_shm::Descriptor;

/// One event, and then none until the descriptor is watched again.
pub(crate) const ONE_EVENT: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// Has a set report one more event of a descriptor, whether or not the set has watched it before.
///
/// # Errors
/// If the kernel has no room for it. `BADF` if the program closed the set.
pub(crate) fn watch_once(set: &Descriptor, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
    let (set, token) = (set.checked(), epoll::EventData::new_u64(token));
    match epoll::modify(set, fd, token, ONE_EVENT) {
        Err(Errno::NOENT) => epoll::add(set, fd, token, ONE_EVENT),
        modified => modified,
    }
}

/// A socket in an epoll set, which it leaves before it is closed.
///
/// A set forgets closed sockets by itself, but Linux since 6.10 lets a thread that waits for the set, or for a set around it,
/// hold the socket for a moment; if the socket is closed just then, it lives on until that thread wakes up, and its other end does
/// not see the close.
#[derive(Debug)]
pub(crate) struct Watched {
    /// `None` only when it was taken out.
    socket: Option<Socket>,
    set: Arc<Descriptor>,
}

impl Watched {
    /// Puts a socket into a set. If the kernel has no room for it, the socket comes back with the kernel's error.
    pub fn new(
        socket: Socket,
        set: &Arc<Descriptor>,
        token: u64,
        events: epoll::EventFlags,
    ) -> Result<Watched, (Socket, Errno)> {
        match epoll::add(set.checked(), &socket, epoll::EventData::new_u64(token), events) {
            Ok(()) => Ok(Watched { socket: Some(socket), set: set.clone() }),
            Err(error) => Err((socket, error)),
        }
    }

    /// Takes the socket out of the set.
    pub fn into_inner(mut self) -> Socket {
        let socket = self.socket.take().expect("taken out only here");
        self.forget(&socket);
        socket
    }

    fn forget(&self, socket: &Socket) {
        // Cannot fail: the socket is in the set.
        let _ = epoll::delete(self.set.checked(), socket);
    }
}

impl Deref for Watched {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        self.socket.as_ref().expect("taken out only by `into_inner`")
    }
}

impl DerefMut for Watched {
    fn deref_mut(&mut self) -> &mut Socket {
        self.socket.as_mut().expect("taken out only by `into_inner`")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.forget(&socket);
        }
    }
}
