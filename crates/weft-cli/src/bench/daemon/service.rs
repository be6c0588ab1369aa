//! Starts weftd for a measurement, in a folder of its own.

use super::folder::Folder;
use crate::bench::talk::lines_of;
use crate::child::{myself, Owned};
use crate::error::Error;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use weft::status::{look_at_daemon, DaemonFound, Scope};
use weft_wire::Uid;

/// The variable that names the daemon, for programs and for commands that look at it.
pub const INTERFACE_VARIABLE: &str = "WEFT_NI";

/// An address whose packets all stay on this host.
pub const LOOPBACK: &str = "127.0.0.1";

/// How long the daemon may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running daemon. It ends when this is dropped, and with this process.
#[derive(Debug)]
pub struct Daemon {
    /// Its log. Kept open, so that it can write to it.
    _lines: Receiver<String>,
    _process: Owned,
}

/// The daemon's state at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub at: Instant,
    pub frames_used: u64,
    /// How often an endpoint got a frame, and how often one lost its frame.
    pub remapped: u64,
    pub evicted: u64,
    pub refused: u64,
    pub paused: u64,
    pub violations: u64,
}

/// The daemon's program, installed beside this one. The error says why there can be no run.
pub fn possible() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| format!("this program's own file cannot be found: {e}"))?;
    let path = here.with_file_name("weftd");
    if !path.is_file() {
        return Err(format!("there is no {}; build it, or install the package", path.display()));
    }
    let user = rustix::process::geteuid().as_raw();
    if Uid(user) == Uid::OVERFLOW {
        return Err(format!(
            "weftd serves no program of user {user}, whom the kernel takes for unknown; run it as another user"
        ));
    }
    carries(LOOPBACK).map_err(|e| format!("{LOOPBACK} carries nothing ({e}); type `ip link set lo up`"))?;
    Ok(path)
}

/// Whether a datagram can be sent to an address of this host.
fn carries(address: &str) -> std::io::Result<()> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.send_to(&[0], socket.local_addr()?).map(drop)
}

impl Daemon {
    /// Starts a daemon with this many frames at this address, with its socket in this folder. The error says why it did not start.
    pub fn start(
        program: &Path,
        folder: &Folder,
        (frames, address): (u32, &str),
        spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
    ) -> Result<Daemon, String> {
        let configuration = folder.file("weftd.toml");
        let text = format!("frames = {frames}\n[network]\naddress = \"{address}\"\n");
        fs::write(&configuration, text).map_err(|e| format!("{} cannot be written: {e}", configuration.display()))?;
        let mut command = command(program).map_err(|error| error.to_string())?;
        command.arg("--foreground").arg("--config").arg(configuration).arg("--socket").arg(folder.socket());
        let spawned = spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut process = Owned(spawned.map_err(|e| format!("weftd did not start: {e}"))?);
        let Some(log) = process.0.stderr.take() else { return Err("weftd has no pipe".to_owned()) };
        let lines = lines_of(log).map_err(|error| error.to_string())?;
        let (mut last, end) = ("weftd says nothing".to_owned(), Instant::now() + PATIENCE);
        while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if line.contains("serves") {
                return Ok(Daemon { _lines: lines, _process: process });
            }
            last = line;
        }
        Err(last)
    }
}

/// The command that becomes the daemon, which ends with this process.
fn command(program: &Path) -> Result<Command, Error> {
    let mut command = myself()?;
    command.args(["bench-launcher", "--"]).arg(program);
    Ok(command)
}

/// Looks at the daemon as `weft status` does. The environment names its socket.
pub fn look() -> Result<Look, Error> {
    let silent = |cause: String| Error::Process {
        who: "weftd".to_owned(),
        cause,
        way_out: "Run it again; if it happens again, report it with this line",
    };
    let found = look_at_daemon(Scope::Totals, PATIENCE)?.ok_or_else(|| silent("its socket is gone".to_owned()))?;
    let DaemonFound { at, answer, .. } = found;
    let daemon = answer.map_err(|silence| silent(silence.to_string()))?.daemon;
    let counted = daemon.counters;
    Ok(Look {
        at,
        frames_used: daemon.frames_used,
        remapped: counted.remapped,
        evicted: counted.evicted,
        refused: counted.refused,
        paused: counted.paused,
        violations: counted.violations,
    })
}
