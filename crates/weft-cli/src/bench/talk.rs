//! The conversation of the two processes of a measurement, apart from the measured messages: lines of JSON through pipes or a TCP
//! connection, before and after each run. They are silent during a run.

use super::am::AmJob;
use super::contention::{ContentionJob, Seen};
use super::daemon::WriteJob;
use super::memory::MemoryJob;
use crate::child::Owned;
use crate::error::Error;
use crate::thread;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use weft::{Bundle, Key, Name, Waited};

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long a peer that seems lost may take to give the reason.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The peer's job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Answer requests of `size` bytes with replies of the same size.
    Echo { size: usize, waiting: Waiting },
    /// The same with one of this many endpoints; the others are idle.
    EchoAmong { size: usize, endpoints: usize },
    /// The same, beside a second endpoint that is never served.
    EchoBesideIdle { size: usize },
    /// Answer requests of `size` bytes at two endpoints: one that is reached through memory, one over the network. Gives the
    /// contact of the first, then of the second.
    EchoAtTwo { size: usize, polls: Polls },
    /// Keep all requests without polling, until killed.
    Keep,
    /// Note how long messages were under way that carry their send time, and answer requests of 16 bytes.
    Note,
    /// Answer requests of 16 bytes, and compute without polling whenever a message says so, for as many milliseconds as it says.
    Compute,
    /// Send messages of `size` bytes to an endpoint until told to stop.
    Stream { size: usize, to: Contact },
    /// Own regions that the other process writes and reads.
    Memory(MemoryJob),
    /// Be the server of the experiment with few frames, or its clients.
    Contention(ContentionJob),
    /// Write from many endpoints in turn until told to stop.
    Write(WriteJob),
    /// Answer or receive Active Messages as the program in C does.
    Am(AmJob),
    /// A job without weft.
    Bare(BareJob),
}

/// What a process does while it has no messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Waiting {
    /// It polls.
    Polls,
    /// It waits, and spins as long as that has paid off.
    Waits,
    /// It waits, and sleeps at once.
    Sleeps,
}

impl Waiting {
    /// Sets a bundle accordingly.
    pub fn set(self, bundle: &mut Bundle) {
        if self == Waiting::Sleeps {
            bundle.set_spin_limit(Duration::ZERO);
        }
    }

    /// Handles incoming messages. Returns how many.
    #[inline(always)]
    pub fn turn(self, bundle: &mut Bundle) -> u32 {
        match self {
            Waiting::Polls => bundle.poll(),
            _ => match bundle.wait(Some(Duration::from_secs(1))) {
                Waited::Messages(messages) => messages,
                _ => 0,
            },
        }
    }

    /// Turns without messages between two checks of other things: as many as take a moment.
    pub fn patience(self, polls: u32) -> u32 {
        if self == Waiting::Polls {
            polls
        } else {
            1
        }
    }
}

/// How often each of two bundles is polled in one turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Polls {
    pub memory: u32,
    /// The first bundle's polls end after this many in a row without messages.
    pub still: u32,
    pub network: u32,
}

/// A job with bare sockets. The measuring side connects to the port in the answer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum BareJob {
    /// Answer datagrams of `size` bytes.
    UdpEcho { size: usize },
    /// Send datagrams of `size` bytes to the sender of the first datagram.
    UdpStream { size: usize },
    /// Return the bytes received, `size` at a time, through a connection.
    TcpEcho { size: usize },
    /// Send through a connection, `size` bytes per call.
    TcpStream { size: usize },
}

/// The peer's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It does the job, with these endpoints.
    Ready(Vec<Contact>),
    /// It does a job without weft, at this port.
    ReadyAt(u16),
    /// It was told to stop, and has.
    Done(Account),
    /// The same for messages that carry their send time: the nanoseconds that each was under way.
    Noted(Vec<f64>),
    /// The experiment with few frames, or the job of many endpoints in turn, is over.
    Contended(Seen),
    /// It failed.
    Failed(String),
}

/// What a process received, and what it sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Account {
    pub received: u64,
    pub received_sum: u64,
    pub sent: u64,
}

/// An endpoint's name and key, as text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contact {
    name: String,
    key: u64,
}

impl Contact {
    /// From a name and a key.
    pub fn new(name: Name, key: Key) -> Contact {
        Contact { name: name.to_string(), key: key.0 }
    }

    /// The name and the key.
    pub fn read(&self) -> Result<(Name, Key), Error> {
        let name = self.name.parse().map_err(|e| Error::Usage {
            cause: format!("the name of an endpoint cannot be read: {e}"),
            way_out: "Start this role through `weft bench local` only".to_owned(),
        })?;
        Ok((name, Key(self.key)))
    }
}

/// The second process.
pub struct Peer {
    /// `None` if it was started by somebody else, on another machine.
    process: Option<Owned>,
    jobs: Box<dyn Write>,
    answers: mpsc::Receiver<String>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Peer {
    /// Starts it with a command, which `spawn` runs.
    pub fn start(
        mut command: Command,
        spawn: impl FnOnce(&mut Command) -> std::io::Result<std::process::Child>,
    ) -> Result<Peer, Error> {
        let spawned = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut process = Owned(
            spawned
                .map_err(|e| Error::system("start a second process", e, "Check the limit of processes (ulimit -u)"))?,
        );
        let (Some(jobs), Some(lines)) = (process.0.stdin.take(), process.0.stdout.take()) else {
            return Err(failed("it has no pipes".to_owned()));
        };
        Ok(Peer { process: Some(process), jobs: Box::new(jobs), answers: lines_of(lines)? })
    }

    /// Talks to a process on another machine.
    pub fn on_line(connection: TcpStream) -> Result<Peer, Error> {
        let lines = connection.try_clone().map_err(|e| failed(e.to_string()))?;
        Ok(Peer { process: None, jobs: Box::new(connection), answers: lines_of(lines)? })
    }

    /// Gives it a job and waits until it is ready. Returns its endpoints.
    pub fn give(&mut self, job: &Job) -> Result<Vec<Contact>, Error> {
        self.tell(job)?;
        match self.hear()? {
            Answer::Ready(endpoints) => Ok(endpoints),
            other => Err(failed(format!("it answered {other:?}"))),
        }
    }

    /// The same for a job without weft. Returns its port.
    pub fn give_bare(&mut self, job: BareJob) -> Result<u16, Error> {
        self.tell(&Job::Bare(job))?;
        match self.hear()? {
            Answer::ReadyAt(port) => Ok(port),
            other => Err(failed(format!("it answered {other:?}"))),
        }
    }

    /// Kills it without waiting for its end.
    pub fn kill(&mut self) -> Result<(), Error> {
        let killed = self.process.as_mut().map_or(Ok(()), |process| process.0.kill());
        killed.map_err(|e| failed(format!("it cannot be killed: {e}")))
    }

    /// Waits for the end of the job, after a message has told it to stop.
    pub fn finish(&mut self) -> Result<Account, Error> {
        match self.hear()? {
            Answer::Done(account) => Ok(account),
            other => Err(failed(format!("it answered {other:?}"))),
        }
    }

    /// The same for a job that notes how long messages were under way.
    pub fn finish_noting(&mut self) -> Result<Vec<f64>, Error> {
        match self.hear()? {
            Answer::Noted(ns) => Ok(ns),
            other => Err(failed(format!("it answered {other:?}"))),
        }
    }

    /// The same without waiting: `None` if it has not ended yet.
    pub fn finished(&mut self) -> Result<Option<Account>, Error> {
        match self.answers.try_recv() {
            Ok(line) => match read(&line)? {
                Answer::Done(account) => Ok(Some(account)),
                other => Err(failed(format!("it answered {other:?}"))),
            },
            Err(mpsc::TryRecvError::Empty) => Ok(None),
            Err(mpsc::TryRecvError::Disconnected) => Err(self.ended()),
        }
    }

    /// The same for jobs with few frames, with this time limit: `None` if it has not ended by then.
    pub fn contended(&mut self, most: Duration) -> Result<Option<Seen>, Error> {
        match self.hear_within(most) {
            Ok(Answer::Contended(seen)) => Ok(Some(seen)),
            Ok(other) => Err(failed(format!("it answered {other:?}"))),
            Err(Error::Silence { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The peer's reason if it fails during a measurement; if it gives none, the error that this process saw.
    pub fn cause_of_loss(&mut self, seen: Error) -> Error {
        match self.hear_within(LAST_WORDS) {
            Ok(answer) => failed(format!("it was lost; its last words: {answer:?}")),
            Err(Error::Silence { .. }) => seen,
            Err(error) => error,
        }
    }

    fn tell(&mut self, job: &Job) -> Result<(), Error> {
        let line = serde_json::to_string(job).map_err(|e| failed(e.to_string()))?;
        // One write: on a network, the end must not wait for the beginning's acknowledgement.
        self.jobs.write_all(format!("{line}\n").as_bytes()).map_err(|e| failed(e.to_string()))
    }

    fn hear(&mut self) -> Result<Answer, Error> {
        self.hear_within(PATIENCE)
    }

    fn hear_within(&mut self, most: Duration) -> Result<Answer, Error> {
        match self.answers.recv_timeout(most) {
            Ok(line) => read(&line),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let what = "an answer of the second process".to_owned();
                Err(Error::Silence { seconds: most.as_secs(), what })
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Its output has ended, so it has ended, or soon will.
    fn ended(&mut self) -> Error {
        match &mut self.process {
            Some(process) => failed(process.0.wait().map_or_else(|e| e.to_string(), |status| status.to_string())),
            None => failed("its connection ended; look at what it said".to_owned()),
        }
    }
}

/// Lines as they arrive, until the end.
pub fn lines_of(from: impl Read + Send + 'static) -> Result<mpsc::Receiver<String>, Error> {
    let (to, lines) = mpsc::channel();
    thread::start(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                break;
            }
        }
    })?;
    Ok(lines)
}

fn read(line: &str) -> Result<Answer, Error> {
    match serde_json::from_str(line) {
        Ok(Answer::Failed(cause)) => Err(failed(cause)),
        Ok(answer) => Ok(answer),
        Err(e) => Err(failed(format!("it said {line:?}, {e}"))),
    }
}

fn failed(cause: String) -> Error {
    let way_out = "Run it again; if it happens again, report it with this line";
    Error::Process { who: "the second process of the measurement".to_owned(), cause, way_out }
}
