//! Progress of a command: one line on a terminal at standard error, and nothing without a terminal.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The shortest time between two drawings of the line.
const PAUSE: Duration = Duration::from_millis(80);

/// Characters of the bar.
const WIDTH: u64 = 30;

/// A line that shows progress.
#[derive(Debug)]
pub struct Progress {
    is_shown: bool,
    done: Cell<u64>,
    /// The amount of work; 0 if it is not known: then there is no bar.
    all: Cell<u64>,
    message: RefCell<String>,
    drawn: Cell<Option<Instant>>,
}

impl Progress {
    /// A line on standard error, if that is a terminal.
    pub fn new() -> Progress {
        Progress::shown(std::io::stderr().is_terminal())
    }

    /// No line at all.
    pub fn hidden() -> Progress {
        Progress::shown(false)
    }

    fn shown(is_shown: bool) -> Progress {
        let (done, all, message) = (Cell::new(0), Cell::new(0), RefCell::new(String::new()));
        Progress { is_shown, done, all, message, drawn: Cell::new(None) }
    }

    /// Whether the line is visible.
    pub fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Sets the amount of work.
    pub fn set_all(&self, all: u64) {
        self.all.set(all);
        self.draw(false);
    }

    /// Sets how much of it is done.
    pub fn set_done(&self, done: u64) {
        self.done.set(done);
        self.draw(false);
    }

    /// One more is done.
    pub fn one_more(&self) {
        self.set_done(self.done.get().saturating_add(1));
    }

    /// Sets the text beside the bar. It is shown at once unless the line was drawn just before.
    pub fn say(&self, message: String) {
        self.message.replace(message);
        self.draw(false);
    }

    /// Clears the line while `print` writes other lines.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.clear();
        let printed = print();
        self.draw(true);
        printed
    }

    /// Removes the line.
    pub fn clear(&self) {
        if self.drawn.take().is_some() {
            // Go to the start of the line, and erase it. A failure means that the terminal is gone, and the line with it.
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn draw(&self, at_once: bool) {
        let is_due = || self.drawn.get().is_none_or(|last| last.elapsed() >= PAUSE);
        if self.is_shown && (at_once || is_due()) {
            // Line wrapping is off, so the terminal cuts off what does not fit.
            let _ = write!(std::io::stderr(), "\r\x1b[?7l\x1b[K{}\x1b[?7h", self.line());
            self.drawn.set(Some(Instant::now()));
        }
    }

    fn line(&self) -> String {
        let (done, all, message) = (self.done.get(), self.all.get(), self.message.borrow());
        if all == 0 {
            return message.clone();
        }
        let full = (WIDTH * done.min(all) / all) as usize;
        format!("{}{} {done}/{all} {message}", "█".repeat(full), "░".repeat(WIDTH as usize - full))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_as_full_as_what_is_done() {
        let progress = Progress::hidden();
        progress.say("counting".to_owned());
        assert_eq!(progress.line(), "counting");
        for (done, full) in [(0, 0), (1, 3), (5, 15), (10, 30), (11, 30)] {
            progress.set_all(10);
            progress.set_done(done);
            let line = progress.line();
            assert_eq!(line.matches('█').count(), full, "{line}");
            assert_eq!(line.matches(['█', '░']).count(), 30, "{line}");
            assert!(line.ends_with(&format!(" {done}/10 counting")), "{line}");
        }
        assert!(progress.drawn.get().is_none(), "a hidden line is not drawn");
    }
}
