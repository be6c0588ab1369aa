//! Ctrl-C, for commands that have to clean up first.

use crate::error::Error;
use crate::thread;
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft::Waker;

/// As shells report it: 128 plus the number of the signal.
pub const EXIT_STATUS: u8 = 130;

/// Whether the user has asked the command to end.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Noted>);

#[derive(Debug)]
struct Noted {
    came: AtomicBool,
    /// An eventfd that becomes readable when the user asks for the end. Nobody reads it, so it stays readable.
    bell: OwnedFd,
    /// Ends the wait of this bundle.
    waker: Mutex<Option<Waker>>,
}

impl Interrupt {
    /// Catches Ctrl-C, hang-up and SIGTERM from now on. The first signal is only noted; the second runs `at_once` and ends the
    /// process.
    ///
    /// Call this before any other thread starts: a signal still ends the process through a thread that does not block it.
    pub fn watch(at_once: impl Fn() + Send + 'static) -> Result<Interrupt, Error> {
        let set = noted();
        set.thread_block().map_err(cannot)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::system("make a descriptor", e, "Raise the limit of open files (ulimit -n)"))?;
        let noted = Arc::new(Noted { came: AtomicBool::new(false), bell, waker: Mutex::new(None) });
        let note = noted.clone();
        thread::start(move || {
            while set.wait().is_ok() {
                if note.take() {
                    at_once();
                    std::process::exit(i32::from(EXIT_STATUS));
                }
            }
        })?;
        Ok(Interrupt(noted))
    }

    /// Ends a bundle's current or next wait when the user asks for the end. Only for one bundle of the process.
    ///
    /// Before each wait, check whether the user has asked already.
    pub fn ends_waits_of(&self, waker: Waker) {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Whether the user has asked for the end.
    #[inline]
    pub fn came(&self) -> bool {
        // Relaxed: no other data depends on it. A wait that begins after this check is ended by its waker: `take` sets `came`
        // before it takes the lock on `waker`, and `ends_waits_of` has released that lock before.
        self.0.came.load(Ordering::Relaxed)
    }

    /// An error if the user has asked for the end.
    pub fn check(&self) -> Result<(), Error> {
        match self.came() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// A descriptor that becomes readable when the user asks for the end. Don't read it.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    /// Waits until one of these descriptors is readable, the user asks for the end, or `until`.
    pub fn wait(&self, others: &[BorrowedFd<'_>], until: Option<Instant>) {
        let all = others.iter().copied().chain([self.bell()]);
        let mut fds: Vec<PollFd> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let most = until.map(|at| at.saturating_duration_since(Instant::now()));
        // Even if a signal interrupted it: the caller checks again.
        let _ = poll(&mut fds, most.map(timespec).as_ref());
    }
}

/// The signals that ask for the end.
fn noted() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect()
}

/// The error if signals cannot be received.
fn cannot(e: nix::Error) -> Error {
    Error::system("wait for signals", e, "Run it on Linux")
}

/// In a child of a process that only notes these signals: makes them end it or call its handlers again, as usual. Call this before
/// any other thread starts.
pub fn hear_again() -> Result<(), Error> {
    noted().thread_unblock().map_err(cannot)
}

/// Ignores these signals in a process that only its parent may end, although it gets them as well.
pub fn hear_nothing() -> Result<(), Error> {
    noted().thread_block().map_err(cannot)
}

/// A duration in the kernel's format.
pub fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

impl Noted {
    /// Notes a request to end. Returns whether there was one before.
    fn take(&self) -> bool {
        let came = self.came.swap(true, Ordering::Relaxed);
        // The write fails only if the eventfd is readable already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
        came
    }
}
