//! The places of the two processes of a measurement.

use super::joined::Joined;
use crate::bench::machine::Cpus;
use crate::bench::peer;
use crate::bench::talk::Peer;
use crate::error::Error;
use crate::namespaces::INTERFACE;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command};

/// The port of the limit programs' listening side in a namespace, where nobody else uses it.
const LIMITS_PORT: u16 = 7117;

/// The variable that tells weft the address for its names.
pub const ADDRESS_VARIABLE: &str = "WEFT_ADDR";

/// One of the two places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The place of the process that measures.
    Here,
    /// The place of its peer.
    There,
}

/// Two places with a network between them. This process is at the first.
#[derive(Debug)]
pub enum Place {
    /// Two network namespaces.
    Namespaces(Joined),
    /// Both on this host, over loopback. The sockets' figures are then not those between hosts, and weft uses memory. For tests.
    Here,
}

impl Place {
    /// Starts a program at the second place.
    pub fn spawn_there(&self, command: &mut Command) -> std::io::Result<Child> {
        match self {
            Place::Namespaces(namespaces) => namespaces.spawn_there(command),
            Place::Here => command.spawn(),
        }
    }

    /// A command that runs a program at one of the places, with the network of that place in /sys. (A program that is just spawned
    /// there sees this host's /sys.)
    pub fn command(&self, side: Side, program: &str) -> Command {
        match self {
            Place::Namespaces(namespaces) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespaces.name(side), program]);
                command
            }
            Place::Here => Command::new(program),
        }
    }

    /// Starts the second process of weft's measurements there. From now on, the names of both processes carry addresses.
    pub fn start_peer(&self, cpus: Cpus) -> Result<Peer, Error> {
        self.start(peer::command(cpus)?)
    }

    /// The same, with only the network rights of an ordinary user.
    pub fn start_ordinary_peer(&self, cpus: Cpus) -> Result<Peer, Error> {
        let mut command = peer::command(cpus)?;
        command.arg("--ordinary");
        self.start(command)
    }

    fn start(&self, mut command: Command) -> Result<Peer, Error> {
        if let Place::Namespaces(namespaces) = self {
            let [ours, theirs] = self.addresses();
            std::env::set_var(ADDRESS_VARIABLE, ours.to_string());
            command.env(ADDRESS_VARIABLE, theirs.to_string());
            command.arg("--local-in").arg(namespaces.path(Side::Here));
        }
        Peer::start(command, |command| self.spawn_there(command))
    }

    /// The addresses of the two places.
    pub fn addresses(&self) -> [Ipv4Addr; 2] {
        match self {
            Place::Namespaces(namespaces) => namespaces.addresses(),
            Place::Here => [Ipv4Addr::LOCALHOST; 2],
        }
    }

    /// The address of the second.
    pub fn there(&self) -> Ipv4Addr {
        self.addresses()[1]
    }

    /// A port of the second place that is free at this moment.
    pub fn port(&self) -> Result<u16, String> {
        match self {
            Place::Namespaces(_) => Ok(LIMITS_PORT),
            Place::Here => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr());
                listener.map(|address| address.port()).map_err(|e| format!("no free port: {e}"))
            }
        }
    }

    /// The interface through which the first place reaches the second.
    pub fn interface(&self) -> &'static str {
        match self {
            Place::Namespaces(_) => INTERFACE,
            Place::Here => "lo",
        }
    }

    /// The text for the headline.
    pub fn title(&self, mtu: u32, cpus: Cpus) -> String {
        let Cpus { ours, theirs } = cpus;
        match self {
            Place::Namespaces(_) => {
                format!(
                    "two network namespaces, a veth pair, MTU {mtu}, a process in each, on CPUs {ours} and {theirs}"
                )
            }
            Place::Here => "one host without namespaces: no figures between hosts".to_owned(),
        }
    }
}
