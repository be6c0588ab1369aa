//! Two network namespaces joined by a veth pair.

use super::place::Side;
use crate::error::Error;
use crate::namespaces::{await_link, cannot_enter, enter, ip, open, path_of, Made, Names, INTERFACE};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command};

/// The last letters of their names.
pub const SIDES: [&str; 2] = ["a", "b"];

/// Two namespaces. While they exist, this process's main thread is in the first; dropping removes them.
#[derive(Debug)]
pub struct Joined {
    home: File,
    here: File,
    there: File,
    addresses: [Ipv4Addr; 2],
    made: Made<2>,
}

impl Joined {
    /// Makes them, and moves this thread into the first.
    pub fn make(mtu: u32) -> Result<Joined, Error> {
        let made = Names::ours(SIDES).make()?;
        let [a, b] = made.names();
        let pid = std::process::id();
        let address = |host| Ipv4Addr::new(10, 1 + (pid >> 8) as u8 % 254, pid as u8, host);
        let addresses = [address(1), address(2)];
        let mtu = mtu.to_string();
        let pair = ["type", "veth", "peer", "name", INTERFACE, "mtu", &mtu, "netns", b];
        ip(&[&["link", "add", INTERFACE, "mtu", &mtu, "netns", a][..], &pair].concat())?;
        for (name, address) in [a, b].into_iter().zip(addresses) {
            ip(&["-n", name, "addr", "add", &format!("{address}/30"), "dev", INTERFACE])?;
            ip(&["-n", name, "link", "set", INTERFACE, "up"])?;
        }
        await_link(a)?;
        await_link(b)?;
        let joined = Joined { home: open(None)?, here: open(Some(a))?, there: open(Some(b))?, addresses, made };
        enter(&joined.here).map_err(cannot_enter)?;
        Ok(joined)
    }

    /// Starts a program in the second one. The calling thread becomes its parent, so it must last.
    pub fn spawn_there(&self, command: &mut Command) -> io::Result<Child> {
        enter(&self.there)?;
        let child = command.spawn();
        enter(&self.here)?;
        child
    }

    /// The name of one of them.
    pub fn name(&self, side: Side) -> &str {
        let [here, there] = self.made.names();
        match side {
            Side::Here => here,
            Side::There => there,
        }
    }

    /// The file of one of them.
    pub fn path(&self, side: Side) -> PathBuf {
        path_of(self.name(side))
    }

    /// The address in the first one, and in the second one.
    pub fn addresses(&self) -> [Ipv4Addr; 2] {
        self.addresses
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // If this thread cannot return to its own namespace, it ends soon, and so does the namespace.
        let _ = enter(&self.home);
    }
}
