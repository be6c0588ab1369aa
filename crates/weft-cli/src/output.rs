//! What the command writes to standard output and standard error.
//!
//! Everything goes through this module. The macros of the standard library panic when they cannot write; the lints at the top of
//! `main.rs` forbid them.

use crate::error::Error;
use std::io::{self, ErrorKind, Write};

/// Writes text to standard output, at once.
///
/// Fails with [`Error::Closed`] if nobody reads it any more, as in `weft ping NAME | head -1`.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Error> {
    let mut out = io::stdout();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(cannot)
}

/// Writes a line to standard output.
pub fn print_line(line: impl AsRef<str>) -> Result<(), Error> {
    // One write, so that a reader gets whole lines.
    print(format!("{}\n", line.as_ref()))
}

/// Writes text to standard error. A failure is ignored: there is no other place to report it.
pub fn note(text: impl AsRef<str>) {
    let _ = io::stderr().write_all(text.as_ref().as_bytes());
}

/// Writes a line to standard error.
pub fn note_line(line: impl AsRef<str>) {
    note(format!("{}\n", line.as_ref()));
}

/// Why standard output could not be written.
pub fn cannot(source: io::Error) -> Error {
    match source.kind() {
        ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::system(
            "write to standard output",
            source,
            "Make room there, or redirect it to another file or program",
        ),
    }
}
