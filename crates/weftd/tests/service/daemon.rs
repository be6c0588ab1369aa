//! Starts a daemon, reads its log, and attaches programs to it.

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// A time limit for things that should take a moment.
pub const BOUND: Duration = Duration::from_secs(30);

/// The environment variable that gives the test `program` its role.
pub const ROLE: &str = "WEFT_TEST_ROLE";

/// No network, and little memory for each bundle.
pub const SMALL: &str = "file_mib = 2\n[network]\naddress = \"none\"\n";

/// A folder of a test, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weftd-service-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        // Other users need to pass through it.
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("rights");
        Folder(folder)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The daemon's command, with this configuration and its socket in the folder.
pub fn weftd(folder: &Folder, configuration: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weftd"));
    command.args(arguments(folder, configuration));
    command
}

/// The arguments of that command.
pub fn arguments(folder: &Folder, configuration: &str) -> Vec<String> {
    std::fs::write(folder.at("weftd.toml"), configuration).expect("written");
    let path = |name: &str| folder.at(name).display().to_string();
    vec!["--foreground".into(), "--config".into(), path("weftd.toml"), "--socket".into(), path("socket")]
}

/// A daemon that runs.
pub struct Daemon {
    pub child: Child,
    log: Receiver<String>,
}

impl Daemon {
    /// Starts a command that becomes the daemon.
    pub fn start(mut command: Command) -> Daemon {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("weftd starts");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let (tell, log) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Daemon { child, log }
    }

    /// Starts it and waits until it serves.
    pub fn serve(folder: &Folder, configuration: &str) -> Daemon {
        let daemon = Daemon::start(weftd(folder, configuration));
        daemon.hear("serves");
        daemon
    }

    /// The first line of its log.
    pub fn first_line(&self) -> String {
        self.log.recv_timeout(BOUND).unwrap_or_default()
    }

    /// The next line of its log with these words.
    pub fn hear(&self, words: &str) -> String {
        loop {
            let line = self.log.recv_timeout(BOUND).unwrap_or_else(|_| panic!("it does not log {words:?}"));
            eprintln!("weftd logs: {line}");
            if line.contains(words) {
                return line;
            }
        }
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }

    /// Its resident memory, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Asks it to end, and waits for that.
    pub fn end(&mut self) -> ExitStatus {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).expect("it runs");
        self.child.wait().expect("it ends")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition that the daemon or a program brings about in a moment.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {BOUND:?}");
        std::thread::yield_now();
    }
}

/// Connects to the daemon without sending anything.
pub fn connect(socket: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let caller = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    net::connect(&caller, &SocketAddrUnix::new(socket).expect("a short path")).expect("it listens");
    caller
}

/// Runs a program that attaches, makes an endpoint, and ends.
pub fn attach(socket: &Path) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "program", "--nocapture"]).env(ROLE, "program");
    command.env("WEFT_NI", socket).env("WEFT_LOCAL", "off").stdout(Stdio::null()).status().expect("it runs")
}

/// The error message of a command that fails.
pub fn complaint(mut command: Command) -> String {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1), "{said}");
    said
}
