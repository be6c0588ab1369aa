//! `weftd`: shares one network interface among programs that do not trust each other. `docs/weftd.md` is for those who run it,
//! `docs/design/weftd.md` for those who change it.
#![forbid(unsafe_code)]

mod config;
mod server;
mod users;

use clap::Parser;
use config::Config;
use nix::sys::signal::{SigSet, Signal};
use server::Server;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use tracing::info;
use users::Allowed;

/// Shares one network interface among programs that do not trust each other.
#[derive(Parser)]
#[command(name = "weftd", version)]
struct Arguments {
    /// Stay in the foreground and log to standard error: all that is needed to begin. So does weftd without this; it is there for those
    /// who expect daemons to need it
    #[arg(long)]
    foreground: bool,
    /// The configuration [default: /etc/weftd/weftd.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The socket at which programs attach, in place of the configuration's
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Say whether the configuration can be used, and end
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weftd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::read(arguments.config.as_deref())?;
    if let Some(socket) = &arguments.socket {
        config.socket = std::path::absolute(socket)?;
    }
    let allowed = Allowed::new(&config)?;
    if arguments.check {
        println!("the configuration can be used");
        return Ok(());
    }
    let level = config.level().unwrap_or(tracing::Level::INFO);
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false).init();
    // Before there is another thread: all of them leave the signals to the one that waits for them.
    let ends = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect::<SigSet>();
    ends.thread_block()?;
    let mut server = Server::open(&config, allowed)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let told = is_over.clone();
    std::thread::Builder::new().name("weftd-signals".into()).spawn(move || {
        // It fails for no set of signals.
        let _ = ends.wait();
        told.store(true, Ordering::Relaxed);
    })?;
    info!(socket = %config.socket.display(), frames = config.frames, "serves");
    server.run(&is_over);
    // It may be the next daemon's already, which replaced it; then it is not there for long.
    let _ = std::fs::remove_file(&config.socket);
    Ok(())
}
