//! The program in C of `bench/am`: finds it, builds it if necessary, and talks to it in lines.

use super::plan::{Message, What};
use crate::bench::meter::Sampled;
use crate::bench::talk::lines_of;
use crate::child::{output_of, NoOutput, Owned};
use crate::error::Error;
use crate::repository;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long building it may take.
const BUILD_MOST: Duration = Duration::from_secs(120);

/// How long a job may take on a machine with other work. A job that makes no progress ends the program long before.
const JOB_MOST: Duration = Duration::from_secs(120);

/// How to build it.
const WAY_OUT: &str = "In weft's repository type: cargo build --release -p weft-capi && make -C bench/am";

/// Finds the program, or builds it, unless its path is given. It needs the library, which is not built here.
pub fn find(named: Option<&Path>) -> Result<PathBuf, Error> {
    let failed = |cause| Error::Usage { cause, way_out: WAY_OUT.to_owned() };
    if let Some(path) = named {
        return match path.is_file() {
            true => Ok(path.to_path_buf()),
            false => Err(failed(format!("there is no file {}", path.display()))),
        };
    }
    let Some(root) = repository::root() else {
        let cause = "the program in C is built in weft's repository; run this inside, or name the program (--program)"
            .to_owned();
        return Err(failed(cause));
    };
    let dir = root.join("bench/am");
    let path = dir.join("build/pair");
    if path.is_file() {
        return Ok(path);
    }
    match output_of(Command::new("make").arg("-C").arg(&dir), BUILD_MOST) {
        Ok(output) if output.status.success() && path.is_file() => Ok(path),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            Err(failed(format!("the program in C could not be built: {said}")))
        }
        Err(NoOutput::NotStarted(e)) => Err(failed(format!("`make` cannot be run: {e}"))),
        Err(NoOutput::TooLong) => Err(failed(format!("no end of `make` after {} s", BUILD_MOST.as_secs()))),
    }
}

/// The first line of the program.
#[derive(Clone, Debug, Deserialize)]
struct Hello {
    /// The version of the library.
    version: String,
}

/// An endpoint of the answering process.
#[derive(Debug, Deserialize)]
struct Contact {
    name: String,
    tag: String,
}

/// What a process received.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Received {
    pub count: u64,
    pub sum: u64,
}

/// The figures of the asking process, and what it sent and received.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Asked {
    #[serde(flatten)]
    pub sampled: Sampled,
    pub sent: u64,
    #[serde(flatten)]
    pub received: Received,
}

/// A running program, which ends when this is dropped.
#[derive(Debug)]
struct Program {
    process: Owned,
    jobs: ChildStdin,
    answers: Receiver<String>,
}

impl Program {
    /// Starts it on a CPU with `spawn`. The calling thread becomes its parent, so it must last.
    fn start(
        path: &Path,
        cpu: usize,
        spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
    ) -> Result<Program, Error> {
        let mut command = Command::new(path);
        command.arg(cpu.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = spawn(&mut command).map_err(|e| failed(format!("{} cannot be run: {e}", path.display())));
        let mut process = Owned(spawned?);
        let (Some(jobs), Some(lines)) = (process.0.stdin.take(), process.0.stdout.take()) else {
            return Err(failed("it has no pipes".to_owned()));
        };
        let mut program = Program { process, jobs, answers: lines_of(lines)? };
        let Hello { version } = program.hear()?;
        let own = env!("CARGO_PKG_VERSION");
        match version == own {
            true => Ok(program),
            false => Err(Error::Usage {
                cause: format!("libweft has the version {version}, and this command {own}"),
                way_out: "Build both anew: cargo build --release -p weft-cli -p weft-capi".to_owned(),
            }),
        }
    }

    fn tell(&mut self, job: &str) -> Result<(), Error> {
        writeln!(self.jobs, "{job}").map_err(|e| failed(e.to_string()))
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        match self.answers.recv_timeout(JOB_MOST) {
            Ok(line) => serde_json::from_str(&line).map_err(|e| failed(format!("it said {line:?}, {e}"))),
            Err(RecvTimeoutError::Timeout) => {
                let what = "an answer of the program in C".to_owned();
                Err(Error::Silence { seconds: JOB_MOST.as_secs(), what })
            }
            // Its output has ended, so it has ended, or soon will.
            Err(RecvTimeoutError::Disconnected) => {
                Err(failed(self.process.0.wait().map_or_else(|e| e.to_string(), |status| status.to_string())))
            }
        }
    }
}

/// Two running programs: one asks, the other answers.
#[derive(Debug)]
pub struct Pair {
    asks: Program,
    answers: Program,
}

impl Pair {
    /// Starts both: one on the first CPU in this process's network, the other on the second CPU, where `spawn` runs it.
    pub fn start(
        path: &Path,
        cpus: [usize; 2],
        here: impl FnOnce(&mut Command) -> std::io::Result<Child>,
        there: impl FnOnce(&mut Command) -> std::io::Result<Child>,
    ) -> Result<Pair, Error> {
        Ok(Pair { asks: Program::start(path, cpus[0], here)?, answers: Program::start(path, cpus[1], there)? })
    }

    /// Measures. Also returns what the answering process received.
    pub fn run(&mut self, what: What, time: Duration) -> Result<(Asked, Received), Error> {
        let Message { form, size } = what.message();
        let way = match what {
            What::RoundTrip(_) => "trip",
            What::Rate(_) | What::Stream(_) => "rate",
        };
        let job = format!("{way} {} {size}", form.name());
        self.answers.tell(&format!("answer {job}"))?;
        let Contact { name, tag } = self.answers.hear()?;
        self.asks.tell(&format!("ask {job} {} {} {name} {tag}", time.as_secs_f64(), what.batch()))?;
        let mut asked: Asked = self.asks.hear()?;
        if let What::Stream(_) = what {
            asked.sampled = times(asked.sampled, what.units());
        }
        Ok((asked, self.answers.hear()?))
    }
}

/// A rate of messages as a rate of bytes.
fn times(Sampled { median, p99, mean, n }: Sampled, units: f64) -> Sampled {
    Sampled { median: median * units, p99: p99 * units, mean: mean * units, n }
}

fn failed(cause: String) -> Error {
    Error::Process { who: "the program in C of the measurement".to_owned(), cause, way_out: WAY_OUT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_program_are_read() {
        let line = r#"{"median":504.062,"p99":5108.88,"mean":8818.18,"n":2777,"sent":54849,"count":54849,"sum":17246681431075211263}"#;
        let asked: Asked = serde_json::from_str(line).expect("it is as the program prints it");
        assert_eq!((asked.sampled.n, asked.sent, asked.received.sum), (2777, 54849, 17246681431075211263));
        let bytes = times(asked.sampled, 2.0);
        assert_eq!((bytes.median, bytes.n), (1008.124, 2777));
    }
}
