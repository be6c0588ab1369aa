//! Two hosts made for the wire, with a command in each: network namespaces, and a third one between them for the wire.

use super::features::Offloads;
use super::forward::be_as_others;
use crate::child::{self, Owned};
use crate::error::Error;
use crate::namespaces::{await_link, cannot_enter, enter, ip, open, processes_in, Made, Names, INTERFACE};
use crate::output::note_line;
use crate::run::How;
use rustix::process::{kill_process, pidfd_open, Pid, PidfdFlags, Signal};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The letters in the names of the three namespaces: here, there, and between.
pub const LETTERS: [&str; 3] = ["a", "b", "w"];

/// The hosts' addresses, here and there.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const ADDRESSES_V6: [&str; 2] = ["fd77::1", "fd77::2"];

/// The wire's own interfaces, named after the host that they lead to.
pub const ENDS: [&str; 2] = ["here", "there"];

/// The variables that tell commands the addresses.
const VARIABLES: [&str; 2] = ["WEFT_WIRE_HERE", "WEFT_WIRE_THERE"];

/// The head start of the command there, so that it listens when the command here connects.
const THERE_FIRST: Duration = Duration::from_millis(500);

/// How much later than a command this process may hear of Ctrl-C, which goes to both.
const AFTER_OTHERS: Duration = Duration::from_millis(100);

/// How long the processes in the hosts may take to end when asked to.
const END_MOST: Duration = Duration::from_secs(2);

/// The hosts. While they exist, this thread is in the namespace between them; dropping removes them.
pub struct Between {
    home: File,
    made: Made<3>,
}

impl Between {
    /// Makes them, with interfaces of this MTU.
    pub fn make(mtu: u32) -> Result<Between, Error> {
        let home = open(None)?;
        let made = Names::ours(LETTERS).make()?;
        let [here, there, between] = made.names();
        let mtu = mtu.to_string();
        for (at, host) in [here, there].into_iter().enumerate() {
            let pair = ["type", "veth", "peer", "name", ENDS[at], "mtu", &mtu, "netns", between];
            ip(&[&["link", "add", INTERFACE, "mtu", &mtu, "netns", host][..], &pair].concat())?;
            let own = ["-n", host, "addr", "add"];
            ip(&[&own[..], &[&format!("{}/24", ADDRESSES[at]), "dev", INTERFACE]].concat())?;
            // Don't wait for duplicate address detection.
            ip(&[&own[..], &[&format!("{}/64", ADDRESSES_V6[at]), "dev", INTERFACE, "nodad"]].concat())?;
            ip(&["-n", host, "link", "set", INTERFACE, "up"])?;
            // The wire's end sends nothing by itself.
            ip(&["-n", between, "link", "set", ENDS[at], "addrgenmode", "none", "up"])?;
            await_link(host)?;
        }
        for host in [here, there] {
            enter(&open(Some(host))?).map_err(cannot_enter)?;
            // Don't switch them on again: the interface ends with its namespace.
            std::mem::forget(Offloads::off(INTERFACE)?);
        }
        enter(&open(Some(between))?).map_err(cannot_enter)?;
        Ok(Between { home, made })
    }

    /// The command that runs another command in one of the two hosts.
    fn command(&self, host: usize, words: &str) -> Result<Command, Error> {
        let mut command = child::myself()?;
        command.args(["wire-host", self.made.names()[host], words]);
        command.envs(VARIABLES.into_iter().zip(ADDRESSES));
        Ok(command)
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        // If this thread cannot return to its own namespace, it ends soon, and so does the namespace.
        let _ = enter(&self.home);
    }
}

/// A command on a host: `weft wire-host`, which ends with the wire.
#[derive(Clone, Debug, clap::Args)]
pub struct HostOptions {
    namespace: String,
    words: String,
}

/// Executes that command in this process's place.
pub fn run_host(options: &HostOptions) -> Result<(), Error> {
    child::die_with_parent()?;
    be_as_others();
    let mut command = Command::new("ip");
    let source = command.args(["netns", "exec", &options.namespace, "sh", "-c", &options.words]).exec();
    Err(Error::system("run a command in a network namespace", source, "Install iproute2: apt-get install iproute2"))
}

/// The running commands.
pub struct Commands<'a> {
    between: &'a Between,
    here: &'a str,
    since: Instant,
    /// The command here, and a descriptor that is readable once it has ended.
    asks: Option<(Owned, OwnedFd)>,
    answers: Option<There>,
}

/// The command there.
struct There {
    child: Owned,
    /// A descriptor that is readable once it has ended. `None` when this has been noticed.
    end: Option<OwnedFd>,
    /// How and when it failed, if that has not been told yet.
    failed: Option<(How, Instant)>,
}

impl<'a> Commands<'a> {
    /// Starts the command there, if there is one. The command here starts a moment later.
    pub fn start(between: &'a Between, here: &'a str, there: Option<&str>) -> Result<Commands<'a>, Error> {
        let start = |words| -> Result<There, Error> {
            // The command here has the terminal.
            let child = Owned(between.command(1, words)?.stdin(Stdio::null()).spawn().map_err(cannot_start)?);
            let end = end_of(&child)?;
            Ok(There { child, end: Some(end), failed: None })
        };
        let answers = there.map(start).transpose()?;
        Ok(Commands { between, here, since: Instant::now(), asks: None, answers })
    }

    /// The exit status of the command here, once it has ended. Starts that command when it is time.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        let is_early = self.starts_at().is_some_and(|at| Instant::now() < at);
        match &mut self.asks {
            Some((Owned(child), _)) => child.try_wait().map_err(cannot_start),
            None if is_early => Ok(None),
            None => {
                let child = Owned(self.between.command(0, self.here)?.spawn().map_err(cannot_start)?);
                let end = end_of(&child)?;
                self.asks = Some((child, end));
                Ok(None)
            }
        }
    }

    /// Notices the end of the command there.
    pub fn look_there(&mut self) {
        let Some(there) = &mut self.answers else { return };
        if let (Some(_), Ok(Some(status))) = (&there.end, there.child.0.try_wait()) {
            there.end = None;
            there.failed = (!status.success()).then(|| (How::of(status), Instant::now()));
        }
    }

    /// When the failure of the command there is to be told, if it has failed and that was not told. It waits a moment, since Ctrl-C
    /// ends the commands too, maybe before this process hears of it.
    pub fn tells_at(&self) -> Option<Instant> {
        self.answers.as_ref()?.failed.map(|(_, at)| at + AFTER_OTHERS)
    }

    /// Tells that the command there has failed.
    pub fn tell_failure(&mut self) {
        if let Some((how, _)) = self.answers.as_mut().and_then(|there| there.failed.take()) {
            note_line(format!("weft wire: the command there {}", how.told()));
        }
    }

    /// Descriptors that are readable once the command here, and that there, have ended. `None` for one that was not started, or
    /// whose end was noticed.
    pub fn bells(&self) -> [Option<BorrowedFd<'_>>; 2] {
        let here = self.asks.as_ref().map(|(_, end)| end.as_fd());
        [here, self.answers.as_ref().and_then(|there| there.end.as_ref()).map(OwnedFd::as_fd)]
    }

    /// When the command here has to start, if it has not yet.
    pub fn starts_at(&self) -> Option<Instant> {
        let wait = if self.answers.is_some() { THERE_FIRST } else { Duration::ZERO };
        self.asks.is_none().then(|| self.since + wait)
    }
}

impl Drop for Commands<'_> {
    fn drop(&mut self) {
        // A shell may have started other processes, which do not end with it.
        let [here, there, _] = self.between.made.names();
        let end = |signal| {
            let running = [here, there].map(processes_in).concat();
            running.iter().for_each(|&pid| _ = kill_process(pid, signal));
            running.is_empty()
        };
        let since = Instant::now();
        let mut all_ended = end(Signal::TERM);
        while !all_ended && since.elapsed() < END_MOST {
            std::thread::sleep(Duration::from_millis(20));
            all_ended = [here, there].map(processes_in).concat().is_empty();
        }
        if !all_ended {
            end(Signal::KILL);
        }
    }
}

/// A descriptor that is readable once a child has ended.
fn end_of(child: &Owned) -> Result<OwnedFd, Error> {
    pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty()).map_err(|e| cannot_start(e.into()))
}

fn cannot_start(source: std::io::Error) -> Error {
    Error::system("run a command", source, "Is there a shell, `sh`, and `ip` of iproute2?")
}
