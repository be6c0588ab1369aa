//! A terminal for tests of commands that draw on one, read by an emulator.
#![allow(dead_code)] // each test program uses its own part of this

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, Pid, Signal};
use rustix::pty::{grantpt, ioctl_tiocgptpeer, openpt, unlockpt, OpenptFlags};
use rustix::termios::{tcgetattr, tcsetwinsize, Termios, Winsize};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any step takes on a machine that is not stuck.
const BOUND: Duration = Duration::from_secs(30);

fn cells(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("more than none")
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A `weft` command in a terminal of its own, ended when this is dropped.
pub struct Terminal {
    pub child: Child,
    /// The test's end of the terminal, and the command's.
    terminal: OwnedFd,
    pub program_end: OwnedFd,
    /// The terminal's settings before the command.
    pub before: Termios,
    pub emulator: vt100::Parser,
}

impl Terminal {
    pub fn start(arguments: &[&str]) -> Terminal {
        Terminal::start_in(arguments, &[])
    }

    /// The same, with additional variables.
    pub fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Terminal {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("a terminal of our own");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let program_end = ioctl_tiocgptpeer(&terminal, flags).expect("its other end");
        let end = || Stdio::from(program_end.try_clone().expect("a descriptor"));
        let before = tcgetattr(&program_end).expect("a terminal");
        tcsetwinsize(&terminal, size(50, 150)).expect("a terminal");
        let child = Terminal::run(arguments, environment, end);
        let emulator = vt100::Parser::new(cells(50), cells(150), 0);
        Terminal { child, terminal, program_end, before, emulator }
    }

    /// In a session that has the terminal, so that it gets Ctrl-C and size changes.
    fn run(arguments: &[&str], environment: &[(&str, &str)], end: impl Fn() -> Stdio) -> Child {
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_weft")]).args(arguments);
        command.env("TERM", "xterm").envs(environment.iter().copied()).stdin(end()).stdout(end()).stderr(end());
        command.spawn().expect("setsid is missing; to have it: scripts/setup.sh --for test")
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        tcsetwinsize(&self.terminal, size(rows, columns)).expect("a terminal");
        self.emulator.screen_mut().set_size(cells(rows), cells(columns));
    }

    pub fn press(&self, keys: &str) {
        rustix::io::write(&self.terminal, keys.as_bytes()).expect("a terminal");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    /// Reads until the screen is as wanted.
    pub fn see(&mut self, what: &str, is_seen: impl Fn(&vt100::Screen) -> bool) {
        let end = Instant::now() + BOUND;
        while !is_seen(self.emulator.screen()) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} is not seen:\n{}", self.emulator.screen().contents());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            if poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&left)).expect("a terminal") == 0 {
                continue;
            }
            self.read();
        }
    }

    /// Waits until nothing has been printed for this long.
    pub fn rest(&mut self, time: Duration) {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        while poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&time)).expect("a terminal") > 0 {
            self.read();
        }
    }

    fn read(&mut self) {
        let mut bytes = [0u8; 4096];
        let read = rustix::io::read(&self.terminal, &mut bytes).expect("the other end is open");
        self.emulator.process(&bytes[..read]);
    }

    pub fn see_text(&mut self, text: &str) {
        self.see(text, |screen| screen.contents().contains(text));
    }

    /// Waits for a successful end, and reads all that it printed to the screen.
    pub fn finish(&mut self) {
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{status}");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&now)).expect("a terminal") > 0 {
            self.read();
        }
    }

    /// Checks that it ends successfully and restores the terminal.
    pub fn ends(mut self) {
        self.see("the end of the screen", |screen| !screen.alternate_screen() && !screen.hide_cursor());
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{status}");
        let after = tcgetattr(&self.program_end).expect("a terminal");
        let modes = |t: &Termios| (t.local_modes, t.input_modes, t.output_modes, t.control_modes);
        assert_eq!(modes(&after), modes(&self.before));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
