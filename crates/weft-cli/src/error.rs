//! Why a command failed: every error names its cause and the way out.

use crate::output;
use std::io;
use std::path::PathBuf;
use weft::SendError;

/// Exit statuses besides 0: the command failed, or the command line was wrong (clap uses the same).
const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// The exit status when nobody reads standard output any more: 128 plus the number of SIGPIPE, as shells report a program that the
/// signal ended.
const CLOSED: u8 = 141;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Two processes need two CPUs.
    #[error(
        "only {allowed} CPU may be used, and the two processes of a measurement need two. \
         Give the machine (or the container, or `taskset`) a second CPU"
    )]
    TooFewCpus {
        /// How many CPUs may be used.
        allowed: usize,
    },
    /// A file could not be read or written.
    #[error("cannot {verb} {path}: {source}. {way_out}", path = path.display())]
    File { verb: &'static str, path: PathBuf, source: io::Error, way_out: &'static str },
    /// The kernel refused something.
    #[error("cannot {what}: {source}. {way_out}")]
    System { what: &'static str, source: io::Error, way_out: &'static str },
    /// A process that this one started failed.
    #[error("{who} failed: {cause}. {way_out}")]
    Process { who: String, cause: String, way_out: &'static str },
    /// Two ways to compute the same result differ.
    #[error(
        "{what} differ: {left} and {right}. This is a fault of weft: please report it with the command and this line"
    )]
    Mismatch { what: String, left: String, right: String },
    /// Something that had to arrive did not.
    #[error("nothing came for {seconds} s: {what}. Is the machine overloaded, or one of the processes stopped? Run it again")]
    Silence { seconds: u64, what: String },
    /// The request cannot be fulfilled.
    #[error("{cause}. {way_out}")]
    Usage { cause: String, way_out: String },
    /// Another process has the port.
    #[error(
        "UDP port {port} is in use, maybe by another `weft serve`. Give another one with --port, or none: then any free port is taken; \
         `ss -ulpn` shows which process has it"
    )]
    PortInUse { port: u16 },
    /// The command line cannot be understood. clap says why.
    #[error(transparent)]
    CommandLine(clap::Error),
    /// Nobody reads standard output any more.
    #[error("nobody reads standard output any more")]
    Closed,
    /// The user asked the command to end.
    #[error("interrupted; everything that the command made is removed")]
    Interrupted,
    /// A host did not tell its endpoint's name.
    #[error(
        "cannot get a name and key (a host gives them if `weft serve --port` runs there; or type the NAME#KEY that it printed): {0}"
    )]
    Resolve(#[from] weft::names::ResolveError),
    /// Nobody answered.
    #[error("no answer ({sent} sent). {way_out}")]
    Unanswered { sent: usize, way_out: &'static str },
    /// A check of this machine failed.
    #[error("{checks}: not as it must be; the costs and the commands that help are printed above")]
    Unsound { checks: String },
    /// A simulation found a broken promise, or did not come to rest.
    #[error("{failed} of {runs} runs failed; the causes, and the commands that repeat them, are printed above")]
    Broken {
        /// Runs that failed.
        failed: u64,
        /// All runs.
        runs: u64,
    },
    /// Messages cannot reach the name.
    #[error("no message of this user gets there from here: {0}")]
    NoWay(weft::status::Why),
    /// A job did not end well.
    #[error("{cause}")]
    Job {
        cause: String,
        /// The job's exit status.
        status: u8,
    },
    /// weft refused a call.
    #[error(transparent)]
    Weft(#[from] weft::Error),
    /// weft did not take a message.
    #[error("a message was not taken: {0}")]
    Send(#[from] SendError),
}

impl Error {
    /// The exit status for the shell.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Interrupted => crate::interrupt::EXIT_STATUS,
            Error::Closed => CLOSED,
            Error::Job { status, .. } => *status,
            Error::Usage { .. } | Error::TooFewCpus { .. } | Error::CommandLine(_) => USAGE,
            _ => FAILED,
        }
    }

    /// Reports the error to the user on standard error.
    pub fn note(&self) {
        match self {
            // Be as quiet as a program that SIGPIPE ends: whoever closed the pipe wants no more output.
            Error::Closed => {}
            Error::CommandLine(error) => output::note(error.render().to_string()),
            error => output::note_line(format!("weft: {error}")),
        }
    }

    /// The kernel refused something.
    pub fn system(what: &'static str, source: impl Into<io::Error>, way_out: &'static str) -> Error {
        Error::System { what, source: source.into(), way_out }
    }
}
