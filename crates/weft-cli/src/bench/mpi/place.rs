//! The places of the two ranks: this host, or two hosts, which are network namespaces.

use super::find::Kind;
use super::program::Folder;
use crate::bench::hosts::joined::{Joined, SIDES};
use crate::bench::hosts::Side;
use crate::child::{output_of, NoOutput};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::namespaces::{processes_in, Names, INTERFACE};
use rustix::process::{kill_process, Signal};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The largest packet of the network between two hosts.
pub const MTU: u32 = 1500;

/// How long one change of a namespace may take.
const CALL_MOST: Duration = Duration::from_secs(10);

/// Two places for ranks.
#[derive(Debug)]
pub enum Place {
    Here,
    Hosts(Hosts),
}

/// Two namespaces, and the program that MPIs use instead of ssh.
#[derive(Debug)]
pub struct Hosts {
    joined: Joined,
    remote: PathBuf,
}

/// An MPI runs this script instead of ssh, with options and then HOST COMMAND... Open MPI takes two hosts of the same name for one,
/// so each gets its own.
const REMOTE: &str = r#"#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case "$1" in
@ADDRESS_A@) namespace=@NAME_A@ ;;
@ADDRESS_B@) namespace=@NAME_B@ ;;
*) echo "there is no host $1" >&2 && exit 1 ;;
esac
shift
exec ip netns exec "$namespace" unshare --uts sh -c 'echo "$0" >/proc/sys/kernel/hostname; eval "$1"' "$namespace" "$*"
"#;

impl Place {
    /// This host.
    pub fn here() -> Result<(Place, Interrupt), Error> {
        Ok((Place::Here, Interrupt::watch(|| {})?))
    }

    /// Makes two hosts. While they exist, the main thread is in the first.
    pub fn hosts(folder: &Folder) -> Result<(Place, Interrupt), Error> {
        let names = Names::ours(SIDES);
        let interrupt = Interrupt::watch(move || names.remove())?;
        let joined = Joined::make(MTU)?;
        let [a, b] = joined.addresses();
        let (first, second) = (joined.name(Side::Here), joined.name(Side::There));
        // Open MPI's daemons would try link-local addresses first.
        for name in [first, second] {
            let file = format!("/proc/sys/net/ipv6/conf/{INTERFACE}/disable_ipv6");
            let script = format!("[ ! -e {file} ] || echo 1 >{file}");
            run(Command::new("ip").args(["netns", "exec", name, "sh", "-c", &script]))?;
        }
        let text = REMOTE.replace("@ADDRESS_A@", &a.to_string()).replace("@ADDRESS_B@", &b.to_string());
        let text = text.replace("@NAME_A@", first).replace("@NAME_B@", second);
        let remote = folder.path().join("remote");
        let written =
            fs::write(&remote, text).and_then(|()| fs::set_permissions(&remote, fs::Permissions::from_mode(0o755)));
        written.map_err(|source| Error::File {
            verb: "write",
            path: remote.clone(),
            source,
            way_out: "Set TMPDIR to a folder that you may write to",
        })?;
        Ok((Place::Hosts(Hosts { joined, remote }), interrupt))
    }

    pub fn is_of_hosts(&self) -> bool {
        matches!(self, Place::Hosts(_))
    }

    /// The network interface between the ranks.
    pub fn interface(&self) -> &'static str {
        if self.is_of_hosts() {
            INTERFACE
        } else {
            "lo"
        }
    }

    /// The words before the launcher on its command line.
    pub fn before_launcher(&self) -> Vec<OsString> {
        let Place::Hosts(hosts) = self else { return Vec::new() };
        let script = "echo \"$0\" >/proc/sys/kernel/hostname; exec \"$@\"";
        let name = hosts.joined.name(Side::Here);
        ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", script, name].map(OsString::from).to_vec()
    }

    /// The options that make the launcher start one rank at each place.
    pub fn options(&self, kind: Kind) -> Vec<OsString> {
        // The ranks choose their CPUs themselves. Open MPI counts two CPUs of one core as one slot.
        let unbound = ["--bind-to", "none", "--map-by"];
        let Place::Hosts(hosts) = self else {
            return match kind {
                Kind::OpenMpi => unbound.into_iter().chain([":oversubscribe"]).map(OsString::from).collect(),
                Kind::Mpich => Vec::new(),
            };
        };
        let [a, b] = hosts.joined.addresses();
        let mut options: Vec<OsString> = match kind {
            Kind::OpenMpi => {
                let hosts = format!("{a}:1,{b}:1");
                let more = ["ppr:1:node:oversubscribe", "--host", &hosts, "--prtemca", "plm_ssh_agent"];
                unbound.into_iter().chain(more).map(OsString::from).collect()
            }
            Kind::Mpich => {
                let hosts = format!("{a},{b}");
                let all = ["-ppn", "1", "-hosts", &hosts, "-iface", INTERFACE, "-launcher", "ssh", "-launcher-exec"];
                all.map(OsString::from).to_vec()
            }
        };
        options.push(hosts.remote.clone().into_os_string());
        options
    }

    /// Kills the processes that a killed launcher has left on the other host.
    pub fn clear(&self) {
        let Place::Hosts(hosts) = self else { return };
        for pid in processes_in(hosts.joined.name(Side::There)) {
            // It may have ended in the meantime.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn run(command: &mut Command) -> Result<(), Error> {
    let failed = |cause| Error::Process {
        who: "`ip netns exec`".to_owned(),
        cause,
        way_out: "Making network namespaces needs root: type `sudo` before the command",
    };
    match output_of(command, CALL_MOST) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(NoOutput::NotStarted(e)) => Err(failed(e.to_string())),
        Err(NoOutput::TooLong) => Err(failed(format!("no end after {} s", CALL_MOST.as_secs()))),
    }
}
