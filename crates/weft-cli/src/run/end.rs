//! How processes and jobs end, and how this is reported.

use super::ranks::Rank;
use crate::error::Error;
use crate::interrupt::EXIT_STATUS;
use crate::output::cannot;
use nix::sys::signal::Signal;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// The exit status after `--timeout`, as with timeout(1).
const TIMED_OUT: u8 = 124;

/// The exit status if the job went wrong but no process gives a status.
const WRONG: u8 = 1;

/// The error of a job that the user ended.
pub fn interrupted() -> Error {
    Error::Job { cause: "interrupted; all ranks are ended".to_owned(), status: EXIT_STATUS }
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Status(i32),
    Signal { number: i32, has_dumped: bool },
}

impl How {
    /// Of a child of this process, which it has waited for.
    pub fn of(status: ExitStatus) -> How {
        match (status.code(), status.signal()) {
            (Some(status), _) => How::Status(status),
            (None, number) => How::Signal { number: number.unwrap_or_default(), has_dumped: status.core_dumped() },
        }
    }

    /// Whether neither the rank itself nor the launcher caused this end.
    pub fn is_from_elsewhere(self) -> bool {
        let How::Signal { number, .. } = self else { return false };
        let signal = Signal::try_from(number).ok();
        signal.is_some_and(|signal| {
            [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE].contains(&signal)
        })
    }

    /// The exit status, as shells report it.
    fn exit_status(self) -> u8 {
        match self {
            // A process has only one byte of status, and a failure must not become 0.
            How::Status(status) => (status as u8).max(u8::from(status != 0)),
            How::Signal { number, .. } => 128u8.saturating_add(number as u8),
        }
    }

    /// In words, behind the process's name.
    pub fn told(self) -> String {
        match self {
            How::Status(status) => format!("ended with status {status}"),
            How::Signal { number, has_dumped } => {
                let name = Signal::try_from(number).map(|signal| format!(" ({signal})")).unwrap_or_default();
                format!("was ended by signal {number}{name}{}", if has_dumped { ", core dumped" } else { "" })
            }
        }
    }
}

/// Why a job ended before all its processes had ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A rank failed.
    Failed(u32, How),
    /// A rank asked for the end of the job, with this status.
    Asked(u32, i32),
    /// The first rank ended with status 0, and the second failed because of that.
    Left(u32, u32, How),
    /// The first rank ended while the second waited for its contribution.
    Absent(u32, u32),
    /// A rank sent an invalid message.
    Nonsense(u32),
    Interrupted,
    TimedOut(Duration),
    /// Standard output can no longer be written.
    Closed(Errno),
}

/// A job that has ended.
#[derive(Debug)]
pub struct Ended {
    pub program: OsString,
    pub ranks: Vec<Rank>,
    pub cause: Option<Cause>,
    pub time: Duration,
}

impl Ended {
    /// The result for the shell and the user.
    pub fn verdict(&self) -> Result<(), Error> {
        let Some(cause) = self.cause else { return Ok(()) };
        let failed = |status: u8, cause: String| Err(Error::Job { cause, status });
        match cause {
            Cause::Interrupted => Err(interrupted()),
            Cause::Closed(error) => Err(cannot(error.into())),
            Cause::Asked(_, 0) => Ok(()),
            Cause::Asked(rank, status) => failed(
                How::Status(status).exit_status(),
                format!("{} ended the job with status {status}", self.who(rank)),
            ),
            Cause::Failed(rank, how) => failed(how.exit_status(), format!("{} {}", self.who(rank), how.told())),
            Cause::Left(rank, other, how) => failed(
                how.exit_status(),
                format!("{} left the job first, with status 0, and {} {}", self.who(rank), self.who(other), how.told()),
            ),
            Cause::Absent(rank, waiting) => failed(
                WRONG,
                format!(
                    "{} ended and took no part in what rank {waiting} waits for; all ranks must join",
                    self.who(rank)
                ),
            ),
            Cause::Nonsense(rank) => failed(
                WRONG,
                format!(
                    "{} sent an invalid message to the launcher; does it use another version of weft?",
                    self.who(rank)
                ),
            ),
            Cause::TimedOut(limit) => {
                let running = self.ranks.iter().filter(|rank| rank.was_ended).count();
                failed(
                    TIMED_OUT,
                    format!("{} of {} ranks had not ended after {} s", running, self.ranks.len(), limit.as_secs_f64()),
                )
            }
        }
    }

    /// The exit status that goes with the verdict.
    pub fn exit_status(&self) -> u8 {
        self.verdict().map_or_else(|error| error.exit_status(), |()| 0)
    }

    fn who(&self, rank: u32) -> String {
        let process = self.ranks.get(rank as usize).map(|rank| format!(", process {}", rank.pid.as_raw_nonzero()));
        format!("rank {rank} ({}{})", self.program.to_string_lossy(), process.unwrap_or_default())
    }
}
