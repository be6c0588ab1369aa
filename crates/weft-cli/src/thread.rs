//! Threads of the command. `std::thread::spawn` panics if it cannot create a thread, so `clippy.toml` forbids it.

use crate::error::Error;
use std::io;

/// Starts a thread. It ends by itself or with the process.
pub fn start(run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    try_start(run).map_err(cannot)
}

/// The same, for callers that can do without the thread.
pub fn try_start(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().spawn(run).map(drop)
}

/// Why no thread could be started.
pub fn cannot(source: io::Error) -> Error {
    Error::system(
        "start a thread",
        source,
        "Raise the limits of processes and of memory (ulimit -u, ulimit -v; in a container its limit of pids), or end other processes",
    )
}
