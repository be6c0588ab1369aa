//! Looks in a thread of their own, so that keys work while a process is slow to answer.

use crate::error::Error;
use crate::status::PATIENCE;
use crate::thread;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};
/// The result of a look, and when it was asked for.
type Done<T> = (Instant, Result<T, weft::Error>);

/// The thread that looks. It ends with the process.
#[derive(Debug)]
pub struct Looker<T> {
    asked: Sender<Instant>,
    done: Receiver<Done<T>>,
    bell: Arc<OwnedFd>,
}

impl<T: Send + 'static> Looker<T> {
    /// Starts the thread. `look` waits at most for the time it is given.
    pub fn start(look: fn(Duration) -> Result<T, weft::Error>) -> Result<Looker<T>, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::system("make a descriptor", e, "Raise the limit of open files (ulimit -n)"))?;
        let bell = Arc::new(bell);
        let ((asked, to_do), (tell, done)) = (channel(), channel());
        let ring = bell.clone();
        thread::start(move || {
            for asked_at in to_do {
                if tell.send((asked_at, look(PATIENCE))).is_err() {
                    return;
                }
                // The write fails only if the bell is ringing already.
                let _ = rustix::io::write(&ring, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Looker { asked, done, bell })
    }

    /// Asks for a look.
    pub fn ask(&mut self) {
        // This fails if the thread is gone, and the thread lives as long as this.
        let _ = self.asked.send(Instant::now());
    }

    /// A descriptor that is readable when a look is done.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// A finished look.
    pub fn take(&mut self) -> Option<Done<T>> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        self.done.try_recv().ok()
    }
}
