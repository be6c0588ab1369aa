//! Two network namespaces joined by a veth pair: two hosts, as far as the network is concerned, with one clock.
//!
//! Their names say whose they are: `weft-PID-START-a`, with the process and the time at which it started (in the kernel's
//! ticks since boot, hexadecimal). Those of a process that was killed are removed when the next ones are made.

use super::place::Side;
use crate::child::{output_of, NoOutput};
use crate::error::Error;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What every name begins with.
const PREFIX: &str = "weft";

/// Where iproute2 keeps namespaces.
const DIRECTORY: &str = "/run/netns";

/// The interface in each of the two.
pub const INTERFACE: &str = "weft0";

/// What one call of `ip` may take.
const CALL_MOST: Duration = Duration::from_secs(10);

/// What helps when a namespace cannot be made.
const WAY_OUT: &str =
    "Making network namespaces needs root: type `sudo weft bench hosts`, in a container with CAP_SYS_ADMIN";

/// Two namespaces. This process' main thread is in the first while they exist; dropping removes them.
#[derive(Debug)]
pub struct Namespaces {
    names: Names,
    home: File,
    here: File,
    there: File,
    addresses: [Ipv4Addr; 2],
}

/// The names of two namespaces, which are removed when this is dropped.
#[derive(Clone, Debug)]
pub struct Names([String; 2]);

impl Names {
    /// Those of this process.
    pub fn ours() -> Names {
        let pid = std::process::id();
        let start = start_of(pid).unwrap_or_default();
        Names(["a", "b"].map(|side| format!("{PREFIX}-{pid}-{start:x}-{side}")))
    }

    /// Removes both, as far as they are there.
    pub fn remove(&self) {
        // What is not there need not go; the pair of interfaces goes with either end.
        let [first, second] = &self.0;
        let _ = ip(&["-n", first, "link", "del", INTERFACE]);
        let _ = ip(&["netns", "del", first]);
        let _ = ip(&["netns", "del", second]);
    }
}

/// Removes what it names when it is dropped.
struct Remover(Option<Names>);

impl Drop for Remover {
    fn drop(&mut self) {
        if let Some(names) = &self.0 {
            names.remove();
        }
    }
}

impl Namespaces {
    /// Makes them, and takes this thread into the first.
    pub fn make(mtu: u32) -> Result<Namespaces, Error> {
        if !rustix::process::geteuid().is_root() {
            let cause = "this measurement makes network namespaces, and you are not root".to_owned();
            return Err(Error::Usage { cause, way_out: WAY_OUT.to_owned() });
        }
        remove_leftovers();
        let names = Names::ours();
        let mut remover = Remover(Some(names.clone()));
        let [a, b] = &names.0;
        let pid = std::process::id();
        let address = |host| Ipv4Addr::new(10, 1 + (pid >> 8) as u8 % 254, pid as u8, host);
        let addresses = [address(1), address(2)];
        let mtu = mtu.to_string();
        for name in [a, b] {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let pair = ["type", "veth", "peer", "name", INTERFACE, "mtu", &mtu, "netns", b];
        ip(&[&["link", "add", INTERFACE, "mtu", &mtu, "netns", a][..], &pair].concat())?;
        for (name, address) in names.0.iter().zip(addresses) {
            ip(&["-n", name, "addr", "add", &format!("{address}/30"), "dev", INTERFACE])?;
            ip(&["-n", name, "link", "set", INTERFACE, "up"])?;
        }
        names.0.iter().try_for_each(|name| await_link(name))?;
        let open = |path: &str| File::open(path).map_err(cannot_enter);
        let made = Namespaces {
            home: open("/proc/thread-self/ns/net")?,
            here: open(&format!("{DIRECTORY}/{a}"))?,
            there: open(&format!("{DIRECTORY}/{b}"))?,
            names,
            addresses,
        };
        remover.0 = None;
        enter(&made.here).map_err(cannot_enter)?;
        Ok(made)
    }

    /// Starts a program in the second one. The thread that calls is its parent, so it must be one that lasts.
    pub fn spawn_there(&self, command: &mut Command) -> io::Result<Child> {
        enter(&self.there)?;
        let child = command.spawn();
        enter(&self.here)?;
        child
    }

    /// The name of one of them.
    pub fn name(&self, side: Side) -> &str {
        let Names([here, there]) = &self.names;
        match side {
            Side::Here => here,
            Side::There => there,
        }
    }

    /// The file that stands for one of them.
    pub fn path(&self, side: Side) -> PathBuf {
        Path::new(DIRECTORY).join(self.name(side))
    }

    /// The address in the first one, and in the second one.
    pub fn addresses(&self) -> [Ipv4Addr; 2] {
        self.addresses
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // If it cannot go home it ends soon, and the namespace with it.
        let _ = enter(&self.home);
        self.names.remove();
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn cannot_enter(source: io::Error) -> Error {
    Error::system("enter a network namespace", source, WAY_OUT)
}

/// The kernel says that a link is up some tenths of a second after it carries packets, and UCX takes no other.
fn await_link(name: &str) -> Result<(), Error> {
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

/// Returns what it printed.
fn ip(arguments: &[&str]) -> Result<String, Error> {
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

/// Removes the namespaces of processes that are gone.
fn remove_leftovers() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| owner_of(name).is_some_and(|(pid, start)| start_of(pid) != Some(start))) {
        // It may be the second of two, whose pair of interfaces went with the first; another run may be at it as well.
        let _ = ip(&["netns", "del", &name]);
    }
}

/// Whose namespace it is: the process, and when that started.
fn owner_of(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.split('-');
    let (Some(PREFIX), Some(pid), Some(start), Some("a" | "b"), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    Some((pid.parse().ok()?, u64::from_str_radix(start, 16).ok()?))
}

/// When a process started, if it lives: in ticks since boot.
fn start_of(pid: u32) -> Option<u64> {
    /// The place of `starttime` behind the program's name, which may hold blanks and brackets itself: proc(5).
    const AFTER_NAME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(AFTER_NAME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_they_are() {
        let Names([a, b]) = Names::ours();
        let pid = std::process::id();
        assert_ne!(a, b);
        assert_eq!(owner_of(&a), Some((pid, start_of(pid).expect("this process lives"))));
        assert_eq!(owner_of(&b), owner_of(&a));
        for foreign in ["weft", "weft-1-2", "weft-1-2-c", "weft-x-2-a", "other-1-2-a", "weft-1-2-a-b"] {
            assert_eq!(owner_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_process_that_is_gone_started_at_no_time() {
        assert_eq!(start_of(u32::MAX), None);
    }
}
