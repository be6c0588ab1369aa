//! Network namespaces that act as hosts with one clock: made, entered and removed by their owner.
//!
//! A name states the owner: `weft-PID-START-a`, with the process and its start time (in the kernel's ticks since boot,
//! hexadecimal). The namespaces of a killed process are removed when the next ones are made.

use crate::child::{output_of, NoOutput};
use crate::error::Error;
use rustix::process::{kill_process, Pid, Signal};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The prefix of every name.
const PREFIX: &str = "weft";

/// The last letters of names: the two hosts, and the one between them.
const LETTERS: [&str; 3] = ["a", "b", "w"];

/// Where iproute2 keeps namespaces.
const DIRECTORY: &str = "/run/netns";

/// The interface in each host.
pub const INTERFACE: &str = "weft0";

/// How long one call of `ip` may take.
const CALL_MOST: Duration = Duration::from_secs(10);

/// What helps when a namespace cannot be made.
const WAY_OUT: &str =
    "Making network namespaces needs root: type `sudo` before the command; a container needs CAP_SYS_ADMIN";

/// The names of some namespaces of this process.
#[derive(Clone, Debug)]
pub struct Names<const N: usize>([String; N]);

impl<const N: usize> Names<N> {
    /// One name for each of these letters, which must be among [`LETTERS`].
    pub fn ours(letters: [&str; N]) -> Names<N> {
        let pid = std::process::id();
        let start = start_of(pid).unwrap_or_default();
        Names(letters.map(|letter| format!("{PREFIX}-{pid}-{start:x}-{letter}")))
    }

    /// Each of them.
    pub fn each(&self) -> [&str; N] {
        self.0.each_ref().map(String::as_str)
    }

    /// Makes them, with a loopback interface that is up. First removes those of processes that are gone.
    pub fn make(self) -> Result<Made<N>, Error> {
        if !rustix::process::geteuid().is_root() {
            let cause = "this makes network namespaces, and you are not root".to_owned();
            return Err(Error::Usage { cause, way_out: WAY_OUT.to_owned() });
        }
        remove_leftovers();
        let made = Made(self);
        for name in made.0.each() {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(made)
    }

    /// Removes those that exist.
    pub fn remove(&self) {
        for name in self.each() {
            // A missing one need not be removed. Deleting an end of an interface pair removes the pair at once; otherwise the
            // kernel takes its time.
            let _ = ip(&["-n", name, "link", "del", INTERFACE]);
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Existing namespaces, which are removed when this is dropped.
#[derive(Debug)]
pub struct Made<const N: usize>(Names<N>);

impl<const N: usize> Made<N> {
    /// The name of each.
    pub fn names(&self) -> [&str; N] {
        self.0.each()
    }
}

impl<const N: usize> Drop for Made<N> {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// This process' network namespace, or one with this name.
pub fn open(name: Option<&str>) -> Result<File, Error> {
    let path = name.map_or_else(|| PathBuf::from("/proc/thread-self/ns/net"), path_of);
    File::open(path).map_err(cannot_enter)
}

/// The file that stands for a namespace.
pub fn path_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Moves this thread into a namespace.
pub fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Why a namespace could not be entered.
pub fn cannot_enter(source: io::Error) -> Error {
    Error::system("enter a network namespace", source, WAY_OUT)
}

/// Waits until the kernel says that the link is up, some tenths of a second after it carries packets. UCX uses no other link.
pub fn await_link(name: &str) -> Result<(), Error> {
    let start = Instant::now();
    while !ip(&["-n", name, "-o", "link", "show", "dev", INTERFACE])?.contains("state UP") {
        if start.elapsed() > CALL_MOST {
            let what = format!("the word that {INTERFACE} is up, in the network namespace {name}");
            return Err(Error::Silence { seconds: CALL_MOST.as_secs(), what });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The processes in a namespace.
pub fn processes_in(name: &str) -> Vec<Pid> {
    let pids = ip(&["netns", "pids", name]).unwrap_or_default();
    pids.split_whitespace().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)).collect()
}

/// Runs `ip`, and returns what it printed.
pub fn ip(arguments: &[&str]) -> Result<String, Error> {
    let failed = |cause| Error::Process { who: format!("`ip {}`", arguments.join(" ")), cause, way_out: WAY_OUT };
    match output_of(Command::new("ip").args(arguments), CALL_MOST) {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))),
        Err(NoOutput::TooLong) => Err(failed(format!("no end after {} s", CALL_MOST.as_secs()))),
        Err(NoOutput::NotStarted(source)) => {
            Err(Error::System { what: "run `ip`", source, way_out: "Install iproute2: apt-get install iproute2" })
        }
    }
}

/// Removes the namespaces of processes that are gone, and the processes in them.
fn remove_leftovers() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| owner_of(name).is_some_and(|(pid, start)| start_of(pid) != Some(start))) {
        // A grandchild of the owner may have outlived it. Another run may be cleaning up as well.
        for pid in processes_in(&name) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = ip(&["netns", "del", &name]);
    }
}

/// The owner of a namespace: its process and start time.
fn owner_of(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.split('-');
    let (Some(PREFIX), Some(pid), Some(start), Some(letter), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    if !LETTERS.contains(&letter) {
        return None;
    }
    Some((pid.parse().ok()?, u64::from_str_radix(start, 16).ok()?))
}

/// When a process started, in ticks since boot, if it lives.
fn start_of(pid: u32) -> Option<u64> {
    /// Position of `starttime` behind the program's name, which may itself contain blanks and brackets: proc(5).
    const AFTER_NAME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(AFTER_NAME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_their_owner() {
        let names = Names::ours(["a", "w"]);
        let [a, b] = names.each();
        let pid = std::process::id();
        assert_ne!(a, b);
        assert_eq!(owner_of(a), Some((pid, start_of(pid).expect("this process lives"))));
        assert_eq!(owner_of(b), owner_of(a));
        for foreign in ["weft", "weft-1-2", "weft-1-2-c", "weft-x-2-a", "other-1-2-a", "weft-1-2-a-b"] {
            assert_eq!(owner_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_process_that_is_gone_has_no_start_time() {
        assert_eq!(start_of(u32::MAX), None);
    }
}
