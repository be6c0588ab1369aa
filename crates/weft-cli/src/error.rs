//! Why a command failed: every error names its cause and the way out.

use crate::output;
use std::io;
use std::path::PathBuf;
use weft::SendError;

/// Exit statuses beside 0: it did not work, or it was asked for the wrong way (as clap has it).
const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// The exit status when nobody reads standard output any more: 128 and the number of SIGPIPE. Shells report the same of a program
/// that the signal ended.
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
        /// How many may be used.
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
    /// Two ways to the same result differ.
    #[error(
        "{what} differ: {left} and {right}. This is a fault of weft: please report it with the command and this line"
    )]
    Mismatch { what: String, left: String, right: String },
    /// Nothing came although something had to.
    #[error("nothing came for {seconds} s: {what}. Is the machine overloaded, or one of the processes stopped? Run it again")]
    Silence { seconds: u64, what: String },
    /// What was asked for cannot be.
    #[error("{cause}. {way_out}")]
    Usage { cause: String, way_out: String },
    /// Somebody else has the port.
    #[error(
        "UDP port {port} is in use, maybe by another `weft serve`. Give another one with --port, or none: then any free port is taken; \
         `ss -ulpn` tells who has it"
    )]
    PortInUse { port: u16 },
    /// The command line cannot be understood. clap says why.
    #[error(transparent)]
    CommandLine(clap::Error),
    /// Nobody reads standard output any more.
    #[error("nobody reads standard output any more")]
    Closed,
    /// Somebody asked for the end.
    #[error("interrupted; what was made is removed")]
    Interrupted,
    /// A host did not tell its endpoint's name.
    #[error(
        "cannot get a name and key (`weft serve --port` tells them; the NAME#KEY that it printed will do as well): {0}"
    )]
    Resolve(#[from] weft::names::ResolveError),
    /// Nobody answered.
    #[error("no answer ({sent} sent). {way_out}")]
    Unanswered { sent: usize, way_out: &'static str },
    /// Something about this machine is not as it must be.
    #[error("{checks}: not as it must be; what that costs and what mends it stands above")]
    Unsound { checks: String },
    /// A simulation found that weft does not keep what it promises, or did not come to rest.
    #[error("{failed} of {runs} runs failed; what was wrong and the command that repeats each stand above")]
    Broken {
        /// How many.
        failed: u64,
        /// Of how many.
        runs: u64,
    },
    /// No message gets there.
    #[error("no message of this user gets there from here: {0}")]
    NoWay(weft::status::Why),
    /// A job ended otherwise than well.
    #[error("{cause}")]
    Job {
        cause: String,
        /// That of the job.
        status: u8,
    },
    /// weft said no.
    #[error(transparent)]
    Weft(#[from] weft::Error),
    /// weft did not take a message.
    #[error("a message was not taken: {0}")]
    Send(#[from] SendError),
}

impl Error {
    /// What the shell is told.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Interrupted => crate::interrupt::EXIT_STATUS,
            Error::Closed => CLOSED,
            Error::Job { status, .. } => *status,
            Error::Usage { .. } | Error::TooFewCpus { .. } | Error::CommandLine(_) => USAGE,
            _ => FAILED,
        }
    }

    /// Tells the user on standard error.
    pub fn note(&self) {
        match self {
            // As a program that SIGPIPE ends: whoever closed the pipe wants to hear nothing more.
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
