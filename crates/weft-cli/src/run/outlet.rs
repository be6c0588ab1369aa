//! Standard output or standard error of the launcher. Written only as far as it takes, so that a slow reader holds up the ranks' output and
//! nothing else: the launcher still hears Ctrl-C.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{write, Errno};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Above so many bytes that were not written the ranks' output is left in their pipes.
const PENDING_MOST: usize = 64 << 10;

/// Bytes that a pipe takes at once when it can be written to (PIPE_BUF).
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

/// What is to be written there.
#[derive(Debug)]
pub struct Outlet {
    pub stream: Stream,
    pending: Vec<u8>,
    /// So much of it is written.
    written: usize,
    /// Why it cannot be written any more: nobody reads it, or there is no room. What comes is dropped.
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

    /// Whether more may be read for it.
    pub fn has_room(&self) -> bool {
        self.pending().len() < PENDING_MOST
    }

    /// What was not written.
    pub fn pending(&self) -> &[u8] {
        &self.pending[self.written..]
    }

    /// Writes what can be written at once.
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

/// Whether it takes a piece at once, or tells an error.
fn is_writable(to: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
}
