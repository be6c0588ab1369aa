//! Processes that this command starts: itself in another role, or a program. None of them outlives it.

use crate::error::Error;
use crate::thread;
use rustix::process::{set_parent_process_death_signal, Signal};
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A command that runs this same program.
pub fn myself() -> Result<Command, Error> {
    let path = std::env::current_exe()
        .map_err(|e| Error::system("find this program's own file", e, "Start weft by its path, with /proc mounted"))?;
    Ok(Command::new(path))
}

/// Makes the kernel end this process when its parent dies, in whatever way. A child calls it first.
pub fn die_with_parent() -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| Error::system("ask for the end of the parent process", e, "Run it on Linux"))
}

/// A child that is killed and reaped when its owner drops it.
#[derive(Debug)]
pub struct Owned(pub Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // It may have ended already; then it only needs to be reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Why a program gave no output.
#[derive(Debug)]
pub enum NoOutput {
    /// It could not be started.
    NotStarted(std::io::Error),
    /// It did not end in time and was killed.
    TooLong,
}

/// Runs a program to its end and returns its output. Kills it if that takes longer than `most`.
///
/// It blocks until the output ends. A polling loop would take time from the CPU on which the program may be measuring.
pub fn output_of(command: &mut Command, most: Duration) -> Result<Output, NoOutput> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = Owned(child.map_err(NoOutput::NotStarted)?);
    let out = read_all(child.0.stdout.take()).map_err(NoOutput::NotStarted)?;
    let err = read_all(child.0.stderr.take()).map_err(NoOutput::NotStarted)?;
    let end = Instant::now() + most;
    let stdout = out.recv_timeout(most).map_err(|_| NoOutput::TooLong)?;
    let stderr = err.recv_timeout(end.saturating_duration_since(Instant::now())).map_err(|_| NoOutput::TooLong)?;
    let status = child.0.wait().map_err(NoOutput::NotStarted)?;
    Ok(Output { status, stdout, stderr })
}

fn read_all(from: Option<impl Read + Send + 'static>) -> std::io::Result<mpsc::Receiver<Vec<u8>>> {
    let (to, output) = mpsc::channel();
    thread::try_start(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // Output that cannot be read is missing; the exit status shows why.
            let _ = from.read_to_end(&mut bytes);
        }
        // The receiver is gone if the program took too long.
        let _ = to.send(bytes);
    })?;
    Ok(output)
}
