//! The ranks: how they start and how they are ended.
//!
//! A rank starts as this command in another role. It asks the kernel to end it when the launcher ends, and then becomes the
//! program. It leads a process group, so that the processes that it starts are ended with it.

use super::end::How;
use super::gathering::Talk;
use super::lines::{Lines, Prefix};
use super::Options;
use crate::child::{die_with_parent, myself};
use crate::error::Error;
use crate::interrupt;
use rustix::io::{fcntl_setfd, FdFlags};
use rustix::process::{
    getppid, getrlimit, kill_process_group, pidfd_open, setrlimit, waitid, Pid, PidfdFlags, Resource, Rlimit, Signal,
    WaitId, WaitIdOptions,
};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use weft_wire::job::{Socket, JOB, RANK, SIZE};

/// The exit status if a program cannot be executed, as with shells.
const NOT_EXECUTED: i32 = 126;

/// Descriptors that the launcher needs per rank, and for itself.
const FILES_OF_RANK: u64 = 4;
const FILES_BESIDE: u64 = 32;

/// The arguments of a process that becomes a rank.
#[derive(Debug, clap::Args)]
pub struct RankOptions {
    /// The launcher's process.
    #[arg(long)]
    launcher: i32,
    /// The limit of open files that the launcher had at its start.
    #[arg(long)]
    files: Option<u64>,
    /// The program's file.
    #[arg(long)]
    path: PathBuf,
    /// The program as it was typed, and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program.
pub fn run_rank(options: &RankOptions) -> Result<(), Error> {
    die_with_parent()?;
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(options.launcher) {
        // The launcher died before this process could ask to end with it.
        return Err(Error::Interrupted);
    }
    interrupt::hear_again()?;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, the rank just keeps the launcher's higher limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: options.files, maximum });
    let Some((name, arguments)) = options.command.split_first() else { return Ok(()) };
    let source = Command::new(&options.path).arg0(name).args(arguments).exec();
    let cause = format!("cannot execute {}: {source}", options.path.display());
    let way_out = "See that it is a program for this machine, or a script that begins with #!";
    Error::Process { who: "the rank".to_owned(), cause, way_out }.note();
    std::process::exit(NOT_EXECUTED)
}

/// One process of the job. It is reaped only when this is dropped, so that no other process gets its number or its group's number
/// before.
#[derive(Debug)]
pub struct Rank {
    pub pid: Pid,
    child: Child,
    /// Readable once the process has ended.
    pub death: OwnedFd,
    pub output: Pipe<std::process::ChildStdout>,
    pub errors: Pipe<std::process::ChildStderr>,
    pub talk: Talk,
    /// The rank that does not answer it: the first one of which it told.
    pub misses: Option<usize>,
    began: Instant,
    /// How it ended, and how long it ran.
    pub end: Option<(How, Duration)>,
    /// Whether the launcher asked it to end.
    pub was_ended: bool,
}

/// A stream of a rank's output.
#[derive(Debug)]
pub struct Pipe<R> {
    /// `None` once it has ended.
    pub from: Option<R>,
    pub lines: Lines,
}

/// What is common to the start of all ranks.
#[derive(Debug)]
pub struct Start<'a> {
    pub options: &'a Options,
    pub path: &'a Path,
    /// The limit of open files for the ranks.
    pub files: Option<u64>,
    /// The prefixes of standard output and of standard error.
    pub prefixes: [Prefix; 2],
    /// Whether rank 0 reads from a pipe instead of the launcher's input.
    pub feeds: bool,
}

impl Start<'_> {
    /// Starts a rank. Also returns the pipe to its standard input, if it has one.
    pub fn rank(&self, rank: u32) -> Result<(Rank, Option<ChildStdin>), Error> {
        let failed = |source: std::io::Error| Error::Process {
            who: format!("the start of rank {rank} of {}", self.options.ranks),
            cause: source.to_string(),
            way_out: "Give fewer with -n, or raise the limits of processes and open files (ulimit -u, ulimit -n)",
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let theirs = OwnedFd::from(theirs);
        // Only this rank inherits the descriptor: it is closed here before the next rank starts.
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(|e| failed(e.into()))?;
        let theirs = File::from(theirs);
        let inode = theirs.metadata().map_err(failed)?.ino();
        let mut command = self.command(rank)?;
        command.env(JOB, Socket { descriptor: theirs.as_raw_fd(), inode }.to_string());
        let mut child = command.spawn().map_err(failed)?;
        let began = Instant::now();
        let pid = Pid::from_child(&child);
        let death = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| {
            end_group(pid, Signal::KILL);
            let _ = child.wait();
            Error::system(
                "watch a process",
                e,
                "Raise the limit of open files (ulimit -n); the kernel must be Linux 5.3 or newer",
            )
        })?;
        let stdin = child.stdin.take();
        let output = Pipe { from: child.stdout.take(), lines: Lines::new(rank, self.prefixes[0]) };
        let errors = Pipe { from: child.stderr.take(), lines: Lines::new(rank, self.prefixes[1]) };
        let talk = Talk::new(ours);
        Ok((Rank { pid, child, death, output, errors, talk, misses: None, began, end: None, was_ended: false }, stdin))
    }

    fn command(&self, rank: u32) -> Result<Command, Error> {
        let mut command = myself()?;
        command.arg("run-rank").arg("--launcher").arg(std::process::id().to_string());
        if let Some(files) = self.files {
            command.arg("--files").arg(files.to_string());
        }
        command.arg("--path").arg(self.path).arg("--").arg(&self.options.program).args(&self.options.arguments);
        command.env(RANK, rank.to_string()).env(SIZE, self.options.ranks.to_string());
        command.stdin(match rank {
            0 if self.feeds => Stdio::piped(),
            0 => Stdio::inherit(),
            _ => Stdio::null(),
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        Ok(command)
    }
}

impl Rank {
    /// Checks whether it has ended. Returns true the first time that it has.
    pub fn look(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(WaitId::Pid(self.pid), options) else { return false };
        let how = match (status.exit_status(), status.terminating_signal()) {
            (Some(status), _) => How::Status(status),
            (None, number) => How::Signal { number: number.unwrap_or_default(), has_dumped: status.dumped() },
        };
        self.end = Some((how, self.began.elapsed()));
        true
    }

    /// Sends a signal to the rank and the processes of its group.
    pub fn signal(&mut self, signal: Signal) {
        if self.end.is_none() {
            self.was_ended = true;
        }
        end_group(self.pid, signal);
    }

    /// Kills the processes that it has left behind.
    pub fn end_rest(&self) {
        end_group(self.pid, Signal::KILL);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.end_rest();
        let _ = self.child.wait();
    }
}

fn end_group(group: Pid, signal: Signal) {
    // This fails if the whole group has ended.
    let _ = kill_process_group(group, signal);
}

/// Raises this process's limit of open files as far as `ranks` ranks need. Returns the old limit.
pub fn raise_files(ranks: u32) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = u64::from(ranks) * FILES_OF_RANK + FILES_BESIDE;
    if current.is_some_and(|current| current < wanted) {
        let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        // If that is not enough, the start of a rank fails with a message.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
    current
}
