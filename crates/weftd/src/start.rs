//! Errors at the daemon's start.

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::io;

/// Why the daemon does not start: what it was doing, the kernel's error, and the way out.
#[derive(thiserror::Error)]
#[error("{what}: {source}; {way_out}")]
pub struct StartError {
    what: String,
    source: io::Error,
    way_out: &'static str,
}

weft_wire::debug_says_display!(StartError);

/// Returns a function that makes the error from the kernel's error.
pub fn cannot(what: impl Into<String>, way_out: &'static str) -> impl FnOnce(io::Error) -> StartError {
    let what = what.into();
    move |source| {
        let is_short = source.raw_os_error().is_some_and(|raw| Errno::from_raw_os_error(raw) == Errno::MFILE);
        StartError { what, source, way_out: if is_short { MORE_FILES } else { way_out } }
    }
}

/// The way out if there are too few descriptors.
pub const MORE_FILES: &str = "raise the limit of open files (LimitNOFILE= of the unit, ulimit -n)";

/// Descriptors for each program: its socket and its waker. There is a third one while it attaches.
const FILES_OF_PROGRAM: u64 = 2;

/// Descriptors for everything else: programs that attach, and the network's sockets.
const FILES_BESIDE: u64 = 1024;

/// Raises the limit of open files to the hard limit. Returns that if it is lower than what so many bundles need.
pub fn raise_files(attachments: u64) -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Raising the hard limit takes rights that a daemon need not have.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let has = getrlimit(Resource::Nofile).current?;
    (has < attachments.saturating_mul(FILES_OF_PROGRAM).saturating_add(FILES_BESIDE)).then_some(has)
}
