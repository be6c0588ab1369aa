//! The programs and daemons of a measurement: starts them on their CPUs and with their environments.

use super::folder::Folder;
use super::service::{Daemon, INTERFACE_VARIABLE, LOOPBACK};
use crate::bench::hosts::joined::{Joined, SIDES};
use crate::bench::hosts::ADDRESS_VARIABLE;
use crate::bench::machine::{self, Cpus};
use crate::bench::peer;
use crate::bench::talk::Peer;
use crate::bench::weft_side::Bench;
use crate::child::myself;
use crate::error::Error;
use rustix::thread::CpuSet;
use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// The most round trips per sample.
const BATCH: u32 = 16;

/// The default number of frames, for daemons whose endpoints need not take turns.
const FRAMES: u32 = 96;

/// What all measurements share.
#[derive(Debug)]
pub struct Stage {
    /// The daemon's program.
    pub program: PathBuf,
    pub cpus: Cpus,
    /// The CPUs that this process could use before it was pinned, as a set and as a list.
    pub all: CpuSet,
    pub allowed: Vec<usize>,
    /// The time of each run.
    pub time: Duration,
}

/// Two programs without weftd, and two that reach each other through it. The fields are dropped in this order.
#[derive(Debug)]
pub struct Scene {
    pub without: Bench,
    pub through: Bench,
    _daemons: Vec<Daemon>,
    _folders: Vec<Folder>,
}

/// The part of a program's environment that says how it reaches others.
#[derive(Clone, Debug)]
struct Surroundings {
    interface: OsString,
    /// Whether programs of the host are reached directly.
    is_direct: bool,
    address: Option<Ipv4Addr>,
}

impl Surroundings {
    fn new(interface: impl AsRef<OsStr>) -> Surroundings {
        Surroundings { interface: interface.as_ref().to_owned(), is_direct: true, address: None }
    }

    fn at(self, address: Ipv4Addr) -> Surroundings {
        Surroundings { address: Some(address), ..self }
    }

    fn only_through_daemon(self) -> Surroundings {
        Surroundings { is_direct: false, ..self }
    }

    /// All variables; `None` removes one.
    fn variables(&self) -> [(&'static str, Option<OsString>); 4] {
        let local = if self.is_direct { "on" } else { "off" };
        [
            (INTERFACE_VARIABLE, Some(self.interface.clone())),
            ("WEFT_LOCAL", Some(local.into())),
            (ADDRESS_VARIABLE, self.address.map(|address| address.to_string().into())),
            ("WEFT_PORT", None),
        ]
    }

    /// Applies it to this process from now on.
    fn set_here(&self) {
        for (name, value) in self.variables() {
            match value {
                Some(value) => std::env::set_var(name, value),
                None => std::env::remove_var(name),
            }
        }
    }

    fn set_of(&self, command: &mut Command) {
        for (name, value) in self.variables() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

impl Stage {
    /// Two programs on this host, and a daemon with this many frames.
    pub fn local(&self) -> Result<Scene, Error> {
        let folder = Folder::make()?;
        let daemon = self.daemon(&folder, (FRAMES, LOOPBACK), 0, Command::spawn)?;
        let process = Surroundings::new("process");
        let without = self.bench((&process, &process), None, Command::spawn)?;
        let attached = Surroundings::new(folder.socket()).only_through_daemon();
        let through = self.bench((&attached, &attached), Some(&without), Command::spawn)?;
        Ok(Scene { without, through, _daemons: vec![daemon], _folders: vec![folder] })
    }

    /// Two programs in two network namespaces, and a daemon in each.
    pub fn hosts(&self, joined: &Joined) -> Result<Scene, Error> {
        let folder = Folder::make()?;
        let rooms = [folder.make_within(SIDES[0])?, folder.make_within(SIDES[1])?];
        let [ours, theirs] = joined.addresses();
        let there = |command: &mut Command| joined.spawn_there(command);
        let daemons = vec![
            self.daemon(&rooms[0], (FRAMES, &ours.to_string()), 0, Command::spawn)?,
            self.daemon(&rooms[1], (FRAMES, &theirs.to_string()), 1, there)?,
        ];
        let process = Surroundings::new("process");
        let without = self.bench((&process.clone().at(ours), &process.at(theirs)), None, there)?;
        let [here, far] = rooms.each_ref().map(|room| Surroundings::new(room.socket()));
        let through = self.bench((&here.at(ours), &far.at(theirs)), Some(&without), there)?;
        Ok(Scene { without, through, _daemons: daemons, _folders: rooms.into_iter().chain([folder]).collect() })
    }

    /// Two programs on this host that reach each other through a daemon with few frames, and a third program.
    pub fn crowded(&self, frames: u32) -> Result<Crowded, Error> {
        let folder = Folder::make()?;
        let daemon = self.daemon(&folder, (frames, LOOPBACK), 0, Command::spawn)?;
        let attached = Surroundings::new(folder.socket()).only_through_daemon();
        let hot = self.bench((&attached, &attached), None, Command::spawn)?.with_batch(1);
        let mut command = myself()?;
        command.arg("bench-peer");
        attached.set_of(&mut command);
        let writer = self.on(&self.cpus_of(1), || Peer::start(command, Command::spawn))?;
        Ok(Crowded { hot, writer, _daemon: daemon, _folder: folder })
    }

    /// Two programs: this one, and another on the second CPU, which `spawn` starts.
    fn bench(
        &self,
        (here, there): (&Surroundings, &Surroundings),
        other: Option<&Bench>,
        spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
    ) -> Result<Bench, Error> {
        let mut command = peer::command(self.cpus)?;
        there.set_of(&mut command);
        let peer = Peer::start(command, spawn)?;
        here.set_here();
        match other {
            Some(other) => other.with_another(peer),
            None => Ok(Bench::new(peer, self.time)?.with_batch(BATCH)),
        }
    }

    /// Starts the `nth` daemon, on a CPU that neither program uses, if there is one.
    fn daemon(
        &self,
        folder: &Folder,
        how: (u32, &str),
        nth: usize,
        spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
    ) -> Result<Daemon, Error> {
        let started = self.on(&self.cpus_of(nth), || Ok(Daemon::start(&self.program, folder, how, spawn)))?;
        started.map_err(|cause| Error::Process {
            who: "weftd".to_owned(),
            cause,
            way_out: "See that it starts by itself: weftd --foreground --socket /tmp/weftd/socket",
        })
    }

    /// Starts something that may use these CPUs. Then pins this process again.
    fn on<T>(&self, cpus: &CpuSet, start: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        machine::keep_to(cpus)?;
        let started = start();
        machine::pin(self.cpus.ours)?;
        started
    }

    /// The CPUs of the `nth` process besides the two programs: one of its own, otherwise those that the two do not use, otherwise
    /// all.
    fn cpus_of(&self, nth: usize) -> CpuSet {
        let free = || self.allowed.iter().filter(|cpu| ![self.cpus.ours, self.cpus.theirs].contains(cpu));
        let mut set = CpuSet::new();
        match free().nth(nth) {
            Some(&cpu) => set.set(cpu),
            None if free().next().is_some() => free().for_each(|&cpu| set.set(cpu)),
            None => return self.all,
        }
        set
    }
}

/// Two programs with hot endpoints, and one with many endpoints.
#[derive(Debug)]
pub struct Crowded {
    pub hot: Bench,
    pub writer: Peer,
    _daemon: Daemon,
    _folder: Folder,
}
