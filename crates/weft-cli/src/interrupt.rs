//! Ctrl-C for commands that have something to put away first.

use crate::error::Error;
use crate::thread;
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft::Waker;

/// As shells tell it: 128 and the number of the signal.
pub const EXIT_STATUS: u8 = 130;

/// Says whether somebody asked for the end.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Noted>);

#[derive(Debug)]
struct Noted {
    came: AtomicBool,
    /// An eventfd that is readable once somebody asked for the end. Nobody reads it.
    bell: OwnedFd,
    /// The bundle whose wait ends then.
    waker: Mutex<Option<Waker>>,
}

impl Interrupt {
    /// From now on Ctrl-C, a hang-up and SIGTERM are only noted. The second one runs `at_once` and ends the process.
    ///
    /// To be called before there are other threads: those that there are go on to end the process.
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

    /// Ends a bundle's current or next wait when somebody asks for the end. Only for one bundle of the process.
    ///
    /// Look whether somebody has asked already before each wait.
    pub fn ends_waits_of(&self, waker: Waker) {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Whether somebody asked for the end.
    #[inline]
    pub fn came(&self) -> bool {
        // Relaxed: nothing else is read because of it. A wait that begins behind this look is ended by its waker: `take` sets
        // `came` before it takes the lock on `waker`, and `ends_waits_of` has released that before.
        self.0.came.load(Ordering::Relaxed)
    }

    /// An error if somebody asked for the end.
    pub fn check(&self) -> Result<(), Error> {
        match self.came() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// What can be read once somebody asked for the end. It is not to be read.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    /// Waits until one of these can be read or somebody asks for the end, at most until then.
    pub fn wait(&self, others: &[BorrowedFd<'_>], until: Option<Instant>) {
        let all = others.iter().copied().chain([self.bell()]);
        let mut fds: Vec<PollFd> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let most = until.map(|at| at.saturating_duration_since(Instant::now()));
        // Interrupted by a signal or not: the caller looks again.
        let _ = poll(&mut fds, most.map(timespec).as_ref());
    }
}

/// The signals by which somebody asks for the end.
fn noted() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect()
}

/// Why signals cannot be waited for, or heard.
fn cannot(e: nix::Error) -> Error {
    Error::system("wait for signals", e, "Run it on Linux")
}

/// In a child of a process that only notes these signals: they end it, or go to its handlers, as elsewhere. To be called before there are
/// other threads.
pub fn hear_again() -> Result<(), Error> {
    noted().thread_unblock().map_err(cannot)
}

/// In a process that only its parent may end, though it is asked for the end as well: it never hears of these signals.
pub fn hear_nothing() -> Result<(), Error> {
    noted().thread_block().map_err(cannot)
}

/// A time as the kernel wants it.
pub fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

impl Noted {
    /// Notes that somebody asks for the end. Returns whether somebody did before.
    fn take(&self) -> bool {
        let came = self.came.swap(true, Ordering::Relaxed);
        // It fails only where it can be read already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
        came
    }
}
