//! The keeper: a process that ends the processes that a killed launcher leaves.
//!
//! The kernel ends the ranks together with their launcher, but not the processes that ranks have started. So each rank leads a
//! process group, and the keeper knows the groups. It reads them from a pipe. If the pipe ends without [`OVER`], the launcher was
//! killed, and the keeper kills the groups. The launcher reaps no rank before its own end, so until then no other process group
//! gets the same number.

use crate::child::{myself, Owned};
use crate::error::Error;
use crate::interrupt;
use rustix::process::{kill_process_group, Pid, Signal};
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Stdio};

/// The message that the job is over.
const OVER: &str = "over";

/// The launcher's side.
#[derive(Debug)]
pub struct Keeper {
    pipe: ChildStdin,
    /// Reaped when this is dropped.
    _child: Owned,
}

impl Keeper {
    /// Starts the keeper.
    pub fn start() -> Result<Keeper, Error> {
        let mut command = myself()?;
        // In a group of its own: signals to the launcher's group must not reach it.
        command.arg("run-keeper").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|source| Error::System {
            what: "start the process that cleans up after a killed job",
            source,
            way_out: "Raise the limit of processes (ulimit -u), or end some",
        })?;
        let mut child = Owned(child);
        let pipe = child.0.stdin.take().expect("it was asked for");
        Ok(Keeper { pipe, _child: child })
    }

    /// Tells it a group. The keeper can be gone only if it was killed; then the kernel still ends the ranks themselves.
    pub fn knows(&mut self, group: Pid) {
        let _ = writeln!(self.pipe, "{}", group.as_raw_nonzero());
    }

    /// Tells it that all groups have ended.
    pub fn let_go(mut self) {
        let _ = writeln!(self.pipe, "{OVER}");
    }
}

/// The keeper itself.
pub fn run_keeper() -> Result<(), Error> {
    interrupt::hear_nothing()?;
    let mut groups = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == OVER {
            return Ok(());
        }
        groups.extend(line.parse().ok().and_then(Pid::from_raw));
    }
    for group in groups {
        // This fails if the whole group has ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(())
}
