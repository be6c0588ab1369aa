//! Standard output or standard error of the launcher. Writes never block: a slow reader delays the ranks' output and nothing else,
//! and the launcher still reacts to Ctrl-C.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{write, Errno};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// With more unwritten bytes than this, the ranks' output stays in their pipes.
const PENDING_MOST: usize = 64 << 10;

/// Bytes that a writable pipe takes at once (PIPE_BUF).
const PIECE: usize = 4096;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Where an outlet leads.
#[derive(Debug)]
pub enum Stream {
    Output(io::Stdout),
    Error(io::Stderr),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Output(to) => to.as_fd(),
            Stream::Error(to) => to.as_fd(),
        }
    }
}

/// The output that waits to be written.
#[derive(Debug)]
pub struct Outlet {
    pub stream: Stream,
    pending: Vec<u8>,
    /// This much of it is written.
    written: usize,
    /// Why it can no longer be written: nobody reads it, or there is no room. Further output is dropped.
    pub closed_by: Option<Errno>,
}

impl Outlet {
    pub fn new(stream: Stream) -> Outlet {
        Outlet { stream, pending: Vec::new(), written: 0, closed_by: None }
    }

    /// Appends a line.
    pub fn push(&mut self, parts: &[&[u8]]) {
        if self.closed_by.is_none() {
            parts.iter().for_each(|part| self.pending.extend_from_slice(part));
        }
    }

    /// Whether more output may be read from ranks.
    pub fn has_room(&self) -> bool {
        self.pending().len() < PENDING_MOST
    }

    /// The bytes not yet written.
    pub fn pending(&self) -> &[u8] {
        &self.pending[self.written..]
    }

    /// Writes as much as possible without blocking.
    pub fn write_some(&mut self) {
        while !self.pending().is_empty() && is_writable(self.stream.as_fd()) {
            self.write_piece();
        }
        if self.pending().is_empty() {
            self.pending.clear();
            self.written = 0;
        }
    }

    fn write_piece(&mut self) {
        let piece = &self.pending[self.written..];
        let piece = &piece[..piece.len().min(PIECE)];
        match write(&self.stream, piece) {
            Ok(bytes) => self.written += bytes,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => {
                self.closed_by = Some(error);
                self.written = self.pending.len();
            }
        }
    }
}

/// Whether it takes a piece at once or reports an error.
fn is_writable(to: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
}
