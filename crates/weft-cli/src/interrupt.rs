//! Ctrl-C for commands that have something to put away first.

use crate::error::Error;
use crate::thread;
use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// As shells tell it: 128 and the number of the signal.
pub const EXIT_STATUS: u8 = 130;

/// Says whether somebody asked for the end.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on Ctrl-C, a hang-up and SIGTERM are only noted. The second one runs `at_once` and ends the process.
    ///
    /// To be called before there are other threads: those that there are go on to end the process.
    pub fn watch(at_once: impl Fn() + Send + 'static) -> Result<Interrupt, Error> {
        let mut set = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
        let cannot = |e: nix::Error| Error::system("wait for signals", e, "Run it on Linux");
        set.thread_block().map_err(cannot)?;
        let noted = Arc::new(AtomicBool::new(false));
        let note = noted.clone();
        thread::start(move || {
            while set.wait().is_ok() {
                // Relaxed: nothing else is told by it.
                if note.swap(true, Ordering::Relaxed) {
                    at_once();
                    std::process::exit(i32::from(EXIT_STATUS));
                }
            }
        })?;
        Ok(Interrupt(noted))
    }

    /// Whether somebody asked for the end.
    #[inline]
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error if somebody asked for the end.
    pub fn check(&self) -> Result<(), Error> {
        match self.came() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }
}
