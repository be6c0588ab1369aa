//! One run of the program by an MPI's launcher: starts it, reads its output, and ends it if it falls silent.

use super::find::Kind;
use super::line::Line;
use super::place::Place;
use super::plan::Probe;
use super::program::Program;
use super::transport::Settings;
use crate::bench::machine::Cpus;
use crate::bench::meter::Sampled;
use crate::child::{die_with_parent, myself, Owned};
use crate::error::Error;
use crate::interrupt::{self, Interrupt};
use crate::thread;
use rustix::process::{kill_process, Pid, Signal};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often to check whether the user asked for the end: rarely, because the ranks use all CPUs.
const TICK: Duration = Duration::from_millis(200);

/// How long a launcher may take to clean up after it was asked to end.
const END_MOST: Duration = Duration::from_secs(3);

/// The prefixes of variables with settings of MPIs and of libfabric. The user's settings are removed.
const FOREIGN: [&str; 7] = ["FI_", "OMPI_", "OPAL_", "PMIX_", "PRTE_", "MPIR_", "MPICH_"];

/// The most characters of a run's output that are reported.
const SAID_MOST: usize = 280;

/// The arguments for a program that ends with this command.
#[derive(Clone, Debug, clap::Args)]
pub struct LauncherOptions {
    /// The command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Executes an MPI's launcher, or weftd. It receives the signals that this command blocks, and ends when this command does.
pub fn run_launcher(options: &LauncherOptions) -> Result<(), Error> {
    die_with_parent()?;
    interrupt::hear_again()?;
    let Some((program, arguments)) = options.command.split_first() else { return Ok(()) };
    let source = Command::new(program).args(arguments).exec();
    Err(Error::System {
        what: "run a program",
        source,
        way_out: "See that it may be executed; name another MPI by --mpi PATH",
    })
}

/// A run to be started.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    pub program: &'a Program,
    pub settings: &'a Settings,
    /// How long it may print nothing.
    pub silence: Duration,
    pub probes: &'a [Probe],
    pub cpus: Cpus,
    pub time: Duration,
    pub folder: &'a Path,
    pub place: &'a Place,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub version: Option<String>,
    pub results: Vec<(String, usize, Sampled)>,
    /// The measurement that began last.
    begun: Option<(String, usize)>,
    /// Whether all measurements are done.
    has_ended: bool,
    /// Its other output.
    said: Vec<String>,
    /// Why it did not end as it should.
    why: Option<String>,
}

/// Where a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// Before the first measurement.
    Start,
    /// During this measurement.
    Measurement(String, usize),
    /// After the last measurement: all figures are there.
    End,
}

/// Where and why a run failed.
#[derive(Debug)]
pub struct Failure {
    pub at: At,
    pub why: String,
}

impl Launch<'_> {
    /// Runs it to its end. Calls `begins` for each measurement.
    pub fn run(&self, interrupt: &Interrupt, begins: impl Fn(&str, usize)) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        let mut child = match self.command()?.spawn() {
            Ok(child) => Owned(child),
            Err(e) => {
                outcome.why = Some(format!("it cannot be started: {e}"));
                return Ok(outcome);
            }
        };
        let lines = lines_of(child.0.stdout.take())?;
        let errors = lines_of(child.0.stderr.take())?;
        let mut heard = Instant::now();
        loop {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    heard = Instant::now();
                    outcome.hear(line, &begins);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if interrupt.came() => {
                    ask_to_end(&mut child.0);
                    self.place.clear();
                    return Err(Error::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > self.silence => {
                    outcome.why = Some(format!("it said nothing for {} s", self.silence.as_secs()));
                    ask_to_end(&mut child.0);
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        let status = wait(&mut child.0, END_MOST);
        if outcome.why.is_none() {
            outcome.why = match status {
                Some(status) if status.success() => None,
                Some(status) => Some(status.to_string()),
                None => Some(format!("it did not end within {} s", END_MOST.as_secs())),
            };
        }
        // When the program has ended or was killed, the pipe closes.
        drop(child);
        if outcome.why.is_some() {
            self.place.clear();
        }
        while let Ok(line) = errors.recv_timeout(END_MOST) {
            outcome.said.push(line);
        }
        Ok(outcome)
    }

    fn command(&self) -> Result<Command, Error> {
        let Program { mpi, path, .. } = self.program;
        let mut command = myself()?;
        command.args(["bench-launcher", "--"]).args(self.place.before_launcher());
        command.arg(mpi.program("mpiexec")).args(["-n", "2"]).args(self.place.options(mpi.kind));
        for (name, _) in std::env::vars_os() {
            if FOREIGN.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        // If the launcher is killed, its sockets and files are removed with the folder.
        command.env("TMPDIR", self.folder);
        if mpi.kind == Kind::OpenMpi {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
        for (name, value) in self.settings.variables.iter().chain(&self.program.variables) {
            command.env(name, value);
            if mpi.kind == Kind::OpenMpi && !name.starts_with("OMPI_") {
                command.args(["-x", name]);
            }
        }
        let Cpus { ours, theirs } = self.cpus;
        command.arg(path).arg(format!("{ours},{theirs}")).arg(self.time.as_millis().to_string());
        command.args(self.probes.iter().map(Probe::argument));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

impl Outcome {
    fn hear(&mut self, line: String, begins: &impl Fn(&str, usize)) {
        match Line::read(&line) {
            Some(Line::Library(version)) => self.version = Some(version),
            Some(Line::Begin { name, size }) => {
                begins(&name, size);
                self.begun = Some((name, size));
            }
            Some(Line::Result { name, size, sampled }) => self.results.push((name, size, sampled)),
            Some(Line::End) => self.has_ended = true,
            None => self.said.push(line),
        }
    }

    /// Whether a line of the output contains this.
    pub fn has_said(&self, sign: &str) -> bool {
        self.said.iter().any(|line| line.contains(sign))
    }

    /// Why it failed, if it did. The measurement at which it failed has no result, since its last check may be the one that failed.
    pub fn failure(&mut self) -> Option<Failure> {
        let why = match (self.why.take(), self.has_ended) {
            (None, true) => return None,
            (Some(why), _) => why,
            (None, false) => "it ended early".to_owned(),
        };
        let at = match self.begun.take() {
            _ if self.has_ended => At::End,
            Some((name, size)) => At::Measurement(name, size),
            None => At::Start,
        };
        self.results.retain(|(name, size, _)| at != At::Measurement(name.clone(), *size));
        let said = summary(&self.said);
        Some(Failure { at, why: if said.is_empty() { why } else { format!("{why}: {said}") } })
    }
}

/// A run's output as one line: the program's own complaints first, without the lines that Open MPI was asked for.
fn summary(said: &[String]) -> String {
    let is_word = |line: &&str| line.chars().any(char::is_alphanumeric) && !line.contains("_component.c:");
    let (own, others): (Vec<&str>, Vec<&str>) =
        said.iter().map(|line| line.trim()).filter(is_word).partition(|line| line.starts_with("measure: "));
    let mut text = own.into_iter().chain(others).take(3).collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = text.char_indices().nth(SAID_MOST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The lines of a pipe, as they arrive.
fn lines_of(from: Option<impl Read + Send + 'static>) -> Result<Receiver<String>, Error> {
    let (to, lines) = channel();
    thread::start(move || {
        let Some(from) = from else { return };
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        // A read error ends the lines as the end of the pipe does; the exit status tells more. The receiver is gone if the run took
        // too long.
        while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if to.send(text).is_err() {
                break;
            }
        }
    })?;
    Ok(lines)
}

/// Asks a launcher to end its ranks and itself. If it does not in time, its owner kills it, and the kernel kills its ranks.
fn ask_to_end(child: &mut Child) {
    // It may have ended by itself; it has not been reaped, so no other process has its number.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    wait(child, END_MOST);
}

/// Waits for its end, for a limited time.
fn wait(child: &mut Child, most: Duration) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < most => std::thread::sleep(Duration::from_millis(5)),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[&str]) -> Outcome {
        let mut outcome = Outcome::default();
        lines.iter().for_each(|line| outcome.hear((*line).to_owned(), &|_, _| {}));
        outcome
    }

    #[test]
    fn a_result_whose_last_check_failed_does_not_count() {
        let lines = [
            "begin rtt 8",
            "result rtt 8 1 2 3 4",
            "begin rtt 64",
            "result rtt 64 1 2 3 4",
            "measure: rtt, 64 B: wrong",
        ];
        let mut ended_early = outcome(&lines);
        let failure = ended_early.failure().expect("it did not end");
        assert_eq!(failure.at, At::Measurement("rtt".to_owned(), 64));
        assert!(failure.why.contains("measure: rtt, 64 B: wrong"), "{}", failure.why);
        assert_eq!(ended_early.results.len(), 1);
        let mut whole = outcome(&[&lines[..4], &["end"]].concat());
        assert!(whole.failure().is_none());
        whole.why = Some("signal: 11".to_owned());
        assert_eq!(whole.failure().map(|failure| failure.at), Some(At::End));
        assert_eq!(whole.results.len(), 2);
    }

    #[test]
    fn what_never_began_says_why_without_what_was_asked_for() {
        let mut outcome =
            outcome(&["----", "[vm:1] mtl_ofi_component.c:587: mtl:ofi:provider: weft", "No components."]);
        assert!(outcome.has_said("mtl:ofi:provider: weft"));
        let failure = outcome.failure().expect("it did not end");
        assert_eq!(failure.at, At::Start);
        assert_eq!(failure.why, "it ended early: No components.");
    }
}
