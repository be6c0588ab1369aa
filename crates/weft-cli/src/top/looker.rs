//! Looking beside the screen: a process that does not answer at once keeps no key from being heard.

use crate::error::Error;
use crate::status::PATIENCE;
use crate::thread;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};
/// What a look came to, and when it was asked for.
type Done<T> = (Instant, Result<T, weft::Error>);

/// The thread that looks. It ends with the process.
#[derive(Debug)]
pub struct Looker<T> {
    asked: Sender<Instant>,
    done: Receiver<Done<T>>,
    bell: Arc<OwnedFd>,
}

impl<T: Send + 'static> Looker<T> {
    /// Starts it. `look` waits as long as it is told, and no longer.
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
                // It says no only when it rings already.
                let _ = rustix::io::write(&ring, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Looker { asked, done, bell })
    }

    /// Has it look.
    pub fn ask(&mut self) {
        // It fails if the thread is gone, which ends with this.
        let _ = self.asked.send(Instant::now());
    }

    /// What can be read when a look is done.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// A look that is done.
    pub fn take(&mut self) -> Option<Done<T>> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        self.done.try_recv().ok()
    }
}
