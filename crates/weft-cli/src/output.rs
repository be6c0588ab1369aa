//! What the command writes to standard output and standard error.
//!
//! Everything goes through this module. The macros of the standard library panic when they cannot write; the lints at the top of
//! `main.rs` forbid them.

use crate::error::Error;
use rustix::termios::{isatty, tcgetwinsize};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use unicode_width::UnicodeWidthStr;

/// The width if standard output is no terminal and `COLUMNS` is not set.
const USUAL_COLUMNS: usize = 80;

/// Writes text to standard output and flushes it.
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

/// Whether the path that an option gives for a file means standard output: `-`.
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Writes text to the file that an option names: a new one, or standard output for `-`. The way out is for a file.
pub fn write_file(path: &Path, text: impl AsRef<[u8]>, way_out: &'static str) -> Result<(), Error> {
    if is_standard_output(path) {
        return print(text);
    }
    let cannot = |source| Error::File { verb: "write", path: path.to_owned(), source, way_out };
    std::fs::write(path, text).map_err(cannot)
}

/// Prints text for people beside the file that an option names. If that is standard output, the text goes to standard error:
/// whatever reads the output gets nothing else.
pub fn print_beside(file: Option<&Path>, text: impl AsRef<str>) -> Result<(), Error> {
    match file.is_some_and(is_standard_output) {
        true => note(text),
        false => print(text.as_ref())?,
    }
    Ok(())
}

/// Writes text to standard error. A failure is ignored: there is no other place to report it.
pub fn note(text: impl AsRef<str>) {
    let _ = io::stderr().write_all(text.as_ref().as_bytes());
}

/// Writes a line to standard error.
pub fn note_line(line: impl AsRef<str>) {
    note(format!("{}\n", line.as_ref()));
}

/// The line width: the terminal's, or `COLUMNS` if there is no terminal.
pub fn columns() -> usize {
    let out = io::stdout();
    let terminal = isatty(&out).then(|| tcgetwinsize(&out).ok()).flatten().map(|size| usize::from(size.ws_col));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.filter(|&columns| columns > 0).or_else(variable).unwrap_or(USUAL_COLUMNS)
}

/// Breaks a text between words into lines of at most `columns`. Lines after the first begin with `indent`. A longer word gets a
/// line of its own.
pub fn wrap(text: &str, columns: usize, indent: &str) -> Vec<String> {
    if text.width() <= columns {
        return vec![text.to_owned()];
    }
    // The indentation of the first line stays as it is.
    let (margin, words) = text.split_at(text.len() - text.trim_start().len());
    let mut lines = vec![margin.to_owned()];
    let mut is_begun = false;
    for word in words.split_whitespace() {
        let last = lines.last_mut().expect("there is one from the beginning");
        if is_begun && last.width() + 1 + word.width() > columns {
            lines.push(format!("{indent}{word}"));
            continue;
        }
        if is_begun {
            last.push(' ');
        }
        last.push_str(word);
        is_begun = true;
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_nowhere_else() {
        assert_eq!(wrap("  costs: one two", 80, "    "), ["  costs: one two"]);
        assert_eq!(wrap("  costs: one two three", 12, "    "), ["  costs: one", "    two", "    three"]);
        assert_eq!(wrap("a 織機織機 b", 6, " "), ["a", " 織機織機", " b"]);
        assert_eq!(wrap("", 10, ""), [""]);
    }
}
