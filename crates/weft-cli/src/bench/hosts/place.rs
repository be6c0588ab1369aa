//! Where the two processes of a measurement are.

use super::joined::Joined;
use crate::bench::machine::Cpus;
use crate::bench::peer;
use crate::bench::talk::Peer;
use crate::error::Error;
use crate::namespaces::INTERFACE;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command};

/// The port of the limit programs' listening side, where it cannot be taken by anybody else.
const LIMITS_PORT: u16 = 7117;

/// The variable by which weft is told the address that its names carry.
pub const ADDRESS_VARIABLE: &str = "WEFT_ADDR";

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Where the process runs that measures.
    Here,
    /// Where its peer runs.
    There,
}

/// Two places with a network between them. This process is at the first.
#[derive(Debug)]
pub enum Place {
    /// Two network namespaces.
    Namespaces(Joined),
    /// Both here, by loopback: the sockets' figures are not those between hosts, and weft goes by memory. For tests.
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

    /// A command that runs a program at one of the two, which finds in /sys the network of that place. (A program that is
    /// only started there finds this host's.)
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

    /// Starts the second process of weft's measurements there. From now on the names of both processes carry addresses.
    pub fn start_peer(&self, cpus: Cpus) -> Result<Peer, Error> {
        self.start(peer::command(cpus)?)
    }

    /// The same with no more rights over the network than an ordinary user has.
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

    /// The addresses of the two.
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

    /// A port of the second that nobody uses at this moment.
    pub fn port(&self) -> Result<u16, String> {
        match self {
            Place::Namespaces(_) => Ok(LIMITS_PORT),
            Place::Here => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr());
                listener.map(|address| address.port()).map_err(|e| format!("no free port: {e}"))
            }
        }
    }

    /// The network interface by which the first reaches the second.
    pub fn interface(&self) -> &'static str {
        match self {
            Place::Namespaces(_) => INTERFACE,
            Place::Here => "lo",
        }
    }

    /// For the headline.
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
