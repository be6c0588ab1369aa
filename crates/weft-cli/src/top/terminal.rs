//! A terminal in full-screen use: its keys and size, the signals that end or resize it. It is restored however the program ends,
//! except by SIGKILL.

use crate::error::Error;
use nix::sys::signal::{raise, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use std::io::{self, Stdin, Stdout, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Control sequences: switch to the alternate screen without cursor and without line wrapping, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Poll events of a terminal that will never deliver another key.
const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::NVAL);

/// The size if the terminal does not report one.
const USUAL: Size = Size { columns: 80, rows: 24 };

/// The size of a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// Something that happened at the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    Key(Key),
    /// The size may have changed, or the drawing may be lost.
    Redraw,
    /// The terminal is gone, or the user asked the command to end.
    End,
}

/// A key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Letter(char),
    Up,
    Down,
    PageUp,
    PageDown,
}

/// The terminal while it is in use.
#[derive(Debug)]
pub struct Terminal {
    keys: Stdin,
    page: Stdout,
    /// Its settings before.
    found: Termios,
    signals: SignalFd,
}

impl Terminal {
    /// Takes over the terminal. From now on [`Terminal::wait`] reports the signals that end, stop and resize.
    ///
    /// Call this before any other thread starts: signals would still end the process through a thread that does not block them.
    pub fn take() -> Result<Terminal, Error> {
        let (keys, page) = (io::stdin(), io::stdout());
        let is_terminal = termios::isatty(&keys) && termios::isatty(&page);
        if !is_terminal || std::env::var_os("TERM").is_none_or(|kind| kind == "dumb") {
            return Err(Error::Usage {
                cause: "this terminal cannot show a full screen, or there is none".into(),
                way_out: "Run it in a terminal, or give --once or --json".into(),
            });
        }
        let found = termios::tcgetattr(&keys)
            .map_err(|e| Error::system("ask the terminal how it is set", e, "Give --once or --json"))?;
        let mut set = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH, Signal::SIGTSTP]
            .into_iter()
            .for_each(|signal| set.add(signal));
        let signals = set
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK))
            .map_err(|e| Error::system("wait for signals", e, "Raise the limit of open files (ulimit -n)"))?;
        let mut terminal = Terminal { keys, page, found, signals };
        terminal.enter()?;
        Ok(terminal)
    }

    /// Its present size.
    pub fn size(&self) -> Size {
        match termios::tcgetwinsize(&self.page) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Size { columns: size.ws_col.into(), rows: size.ws_row.into() }
            }
            _ => USUAL,
        }
    }

    /// Draws these lines, each of which fits, and nothing else.
    pub fn draw(&mut self, lines: &[String]) -> Result<(), Error> {
        // Overwrite each line and clear its rest: no flicker.
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
        self.put(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }

    /// Waits for an event, or until `other` is readable, for at most `most`. Returns the events.
    pub fn wait(&mut self, other: BorrowedFd<'_>, most: Option<Duration>) -> Result<Vec<Happening>, Error> {
        let most = most.map(|most| Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() });
        let mut fds = [
            PollFd::new(&self.keys, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        match poll(&mut fds, most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Error::system("wait for keys", e, "Give --once or --json")),
        }
        let (has_keys, is_gone) = (fds[0].revents().contains(PollFlags::IN), fds[0].revents().intersects(GONE));
        let mut happened = Vec::new();
        while let Ok(Some(signal)) = self.signals.read_signal() {
            happened.push(self.on_signal(signal.ssi_signo)?);
        }
        if has_keys {
            happened.extend(self.read_keys());
        }
        if is_gone {
            happened.push(Happening::End);
        }
        Ok(happened)
    }

    fn on_signal(&mut self, number: u32) -> Result<Happening, Error> {
        match i32::try_from(number).ok().and_then(|number| Signal::try_from(number).ok()) {
            Some(Signal::SIGWINCH) => Ok(Happening::Redraw),
            Some(Signal::SIGTSTP) => {
                self.leave();
                // Execution continues here when the process is continued.
                let _ = raise(Signal::SIGSTOP);
                self.enter()?;
                Ok(Happening::Redraw)
            }
            _ => Ok(Happening::End),
        }
    }

    fn read_keys(&mut self) -> Vec<Happening> {
        let mut bytes = [0u8; 256];
        match rustix::io::read(&self.keys, &mut bytes) {
            Ok(read) => keys(&bytes[..read]).into_iter().map(Happening::Key).collect(),
            Err(Errno::INTR | Errno::AGAIN) => Vec::new(),
            Err(_) => vec![Happening::End],
        }
    }

    /// Keys arrive at once and without echo. Ctrl-C and Ctrl-Z still send signals.
    fn enter(&mut self) -> Result<(), Error> {
        let mut wanted = self.found.clone();
        wanted.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // Don't block in a read: Ctrl-C may have flushed the key after `poll` reported it.
        wanted.special_codes[SpecialCodeIndex::VMIN] = 0;
        wanted.special_codes[SpecialCodeIndex::VTIME] = 0;
        termios::tcsetattr(&self.keys, OptionalActions::Now, &wanted)
            .map_err(|e| Error::system("set the terminal", e, "Give --once or --json"))?;
        self.put(ENTER)
    }

    fn leave(&mut self) {
        // Errors are ignored: the terminal may be gone. A terminal that shows its normal screen again has its old settings.
        let _ = termios::tcsetattr(&self.keys, OptionalActions::Flush, &self.found);
        let _ = self.put(LEAVE);
    }

    fn put(&mut self, text: &str) -> Result<(), Error> {
        let written = self.page.write_all(text.as_bytes()).and_then(|()| self.page.flush());
        written.map_err(|e| Error::system("draw on the terminal", e, "Give --once or --json"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Keys from terminal input. Unknown sequences are skipped.
fn keys(mut bytes: &[u8]) -> Vec<Key> {
    const SEQUENCES: [(&[u8], Key); 6] = [
        (b"\x1b[A", Key::Up),
        (b"\x1bOA", Key::Up),
        (b"\x1b[B", Key::Down),
        (b"\x1bOB", Key::Down),
        (b"\x1b[5~", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
    ];
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        if let Some((sequence, key)) = SEQUENCES.iter().find(|(sequence, _)| bytes.starts_with(sequence)) {
            keys.push(*key);
            bytes = &bytes[sequence.len()..];
        } else if *first == b'\x1b' {
            // An unknown sequence ends with a letter or a tilde.
            let end = rest.iter().skip(1).position(|byte| byte.is_ascii_alphabetic() || *byte == b'~');
            bytes = end.map_or(&[], |end| &rest[end + 2..]);
        } else {
            keys.extend(first.is_ascii_graphic().then_some(Key::Letter(char::from(*first))));
            keys.extend((*first == b' ').then_some(Key::Letter(' ')));
            bytes = rest;
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_from_sequences_that_mean_nothing_here() {
        assert_eq!(keys(b"q"), [Key::Letter('q')]);
        assert_eq!(
            keys(b"\x1b[As\x1bOB \x1b[5~"),
            [Key::Up, Key::Letter('s'), Key::Down, Key::Letter(' '), Key::PageUp]
        );
        assert_eq!(keys(b"\x1b[1;5Cp\x1b[15~h"), [Key::Letter('p'), Key::Letter('h')]);
        for nothing in [&b"\x1b"[..], b"\x1b[", b"\x1b[1;", b"\xff\x00\x7f", b""] {
            assert_eq!(keys(nothing), [], "{nothing:?}");
        }
    }
}
