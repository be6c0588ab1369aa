//! What the tests of the command share: a server, and what a command said.
#![allow(dead_code)] // each test program uses its own part of this

use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

/// `weft serve`, which ends with this.
pub struct Server {
    pub child: Child,
    pub contact: String,
}

impl Server {
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Server {
        Server::start_in(arguments, &[])
    }

    /// The same, with more in its environment.
    pub fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        let mut child = command
            .arg("serve")
            .args(arguments)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it was built");
        let mut contact = String::new();
        let out = child.stdout.take().expect("it has a pipe");
        BufReader::new(out).read_line(&mut contact).expect("it prints its name and key");
        Server { child, contact: contact.trim().to_owned() }
    }

    /// As Ctrl-C does it. Returns what it said.
    pub fn interrupt(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it lives");
        assert!(self.child.wait().expect("it is ours").success());
        let mut said = String::new();
        self.child.stderr.take().expect("it has a pipe").read_to_string(&mut said).expect("it said text");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this is root with all its rights, who may make network namespaces.
pub fn is_root() -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    let capabilities = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first_namespace = users.split_whitespace().eq(["0", "0", "4294967295"]);
    is_first_namespace && capabilities & NET_ADMIN != 0 && capabilities & SYS_ADMIN != 0
}

/// The namespaces of a process.
pub fn namespaces_of(pid: u32) -> usize {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("weft-{pid}-"))).count()
}
