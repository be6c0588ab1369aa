//! `weftd`: shares one network interface among programs that do not trust each other. To run it, see `docs/weftd.md`; to change it,
//! `docs/design/weftd.md`.
#![forbid(unsafe_code)]

mod config;
mod filter;
mod kept;
mod logs;
mod manual;
mod memory;
mod rights;
mod server;
mod service;
mod socket;
mod start;
mod status;
mod users;

use clap::{CommandFactory, Parser};
use config::Config;
use memory::Bounds;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rights::Identity;
use server::Server;
use service::Manager;
use socket::Listener;
use start::{cannot, raise_files, MORE_FILES};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing::{info, warn};
use users::Allowed;

/// Shares one network interface among programs that do not trust each other.
#[derive(Parser)]
#[command(name = "weftd", version)]
struct Arguments {
    /// Stay in the foreground and log to standard error. weftd always does; the option is for supervisors that expect one
    #[arg(long)]
    foreground: bool,
    /// The configuration [default: /etc/weftd/weftd.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The socket at which programs attach; overrides the configuration
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Check the configuration, and exit
    #[arg(long)]
    check: bool,
    /// Print the manual page weftd(8), and exit
    #[arg(long)]
    man: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "weftd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    if arguments.man {
        return Ok(manual::write(Arguments::command(), &mut std::io::stdout().lock())?);
    }
    let mut config = Config::read(arguments.config.as_deref())?;
    if let Some(socket) = &arguments.socket {
        config.socket = std::path::absolute(socket)?;
    }
    let allowed = Allowed::new(&config)?;
    let identity = Identity::of(&config.user)?;
    let limit = memory::limit();
    let complaint = memory::complaint(&config, limit.as_ref());
    if arguments.check {
        println!("the configuration can be used");
        complaint.into_iter().for_each(|complaint| println!("but {complaint}"));
        return Ok(());
    }
    let level = config.level().unwrap_or(tracing::Level::INFO);
    // A line that cannot be logged is dropped: reporting that by the same path would fail too, and end the daemon.
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    log.log_internal_errors(false).with_target(false).init();
    let low = raise_files(config.limits.attachments);
    let manager = Manager::find();
    let listener = Listener::open(&config.socket)?;
    let path = listener.path.clone();
    let bounds = Bounds::new(&config, limit.as_ref().map(|limit| limit.bytes));
    let mut server = Server::open(&config, bounds, allowed, listener, signals_to_end()?)?;
    rights::give_up(identity)?;
    if config.seccomp {
        filter::install()?;
    }
    if let Some(limit) = &limit {
        let (mib, programs_mib) = (limit.bytes >> 20, bounds.programs() >> 20);
        info!(mib, programs_mib, "has a memory limit by {}", limit.file.display());
    }
    if let Some(complaint) = complaint {
        warn!("{complaint}");
        server.note_degraded(complaint);
    }
    info!(socket = %path.display(), frames = config.frames, "serves");
    if let Some(most) = low {
        warn!(most, attachments = config.limits.attachments, "not all bundles will find a descriptor; {MORE_FILES}");
    }
    manager.tell_ready(&format!("serves at {}", path.display()));
    server.run();
    manager.tell_stopping();
    Ok(())
}

/// A descriptor that becomes readable when a signal asks the daemon to end.
fn signals_to_end() -> Result<OwnedFd, Box<dyn std::error::Error>> {
    let ends = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect::<SigSet>();
    ends.thread_block()?;
    let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    Ok(signals
        .map_err(|error| cannot("cannot wait for signals", "use a kernel with signalfd(2)")(error.into()))?
        .into())
}
