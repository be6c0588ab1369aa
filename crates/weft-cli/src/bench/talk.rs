//! What the two processes of a measurement say to each other beside the messages that are measured: lines of JSON through
//! pipes, before and after each run. While a run lasts nothing is said.

use super::machine::Cpus;
use crate::child::{self, Owned};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use weft::{Key, Name};

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the peer shall do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Answer requests of `size` bytes with as many.
    Echo { size: usize },
    /// The same, beside a second endpoint that is never served.
    EchoBesideIdle { size: usize },
    /// Send messages of `size` bytes to an endpoint until told to stop.
    Stream { size: usize, to: Contact },
}

/// What the peer answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It does the job, at these endpoints.
    Ready(Vec<Contact>),
    /// It was told to stop.
    Done(Account),
    /// It cannot.
    Failed(String),
}

/// What was received, and what was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Account {
    pub received: u64,
    pub received_sum: u64,
    pub sent: u64,
}

/// An endpoint's name and key, as they are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contact {
    name: String,
    key: u64,
}

impl Contact {
    /// To tell.
    pub fn new(name: Name, key: Key) -> Contact {
        Contact { name: name.to_string(), key: key.0 }
    }

    /// As it was told.
    pub fn read(&self) -> Result<(Name, Key), Error> {
        let name = self.name.parse().map_err(|e| Error::Usage {
            cause: format!("the name of an endpoint cannot be read: {e}"),
            way_out: "Start this role through `weft bench local` only".to_owned(),
        })?;
        Ok((name, Key(self.key)))
    }
}

/// The second process.
#[derive(Debug)]
pub struct Peer {
    process: Owned,
    jobs: ChildStdin,
    answers: mpsc::Receiver<String>,
}

impl Peer {
    /// Starts it on the second CPU.
    pub fn start(cpus: Cpus) -> Result<Peer, Error> {
        let mut command = child::myself()?;
        command.args(["bench-peer", "--cpu", &cpus.theirs.to_string()]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = Owned(
            spawned
                .map_err(|e| Error::system("start a second process", e, "Check the limit of processes (ulimit -u)"))?,
        );
        let (Some(jobs), Some(lines)) = (process.0.stdin.take(), process.0.stdout.take()) else {
            return Err(failed("it has no pipes".to_owned()));
        };
        let (to, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Peer { process, jobs, answers })
    }

    /// Gives it a job and waits until it is ready. Returns its endpoints.
    pub fn give(&mut self, job: &Job) -> Result<Vec<Contact>, Error> {
        let line = serde_json::to_string(job).map_err(|e| failed(e.to_string()))?;
        writeln!(self.jobs, "{line}").map_err(|e| failed(e.to_string()))?;
        match self.hear()? {
            Answer::Ready(endpoints) => Ok(endpoints),
            other => Err(failed(format!("it answered {other:?}"))),
        }
    }

    /// Waits for the end of the job, of which it was told by a message.
    pub fn finish(&mut self) -> Result<Account, Error> {
        match self.hear()? {
            Answer::Done(account) => Ok(account),
            other => Err(failed(format!("it answered {other:?}"))),
        }
    }

    /// The same without waiting: `None` if it is not at its end yet.
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

    /// What it says if it fails while it is being measured.
    pub fn cause_of_loss(&mut self) -> Error {
        match self.hear() {
            Ok(answer) => failed(format!("it was lost; its last words: {answer:?}")),
            Err(error) => error,
        }
    }

    fn hear(&mut self) -> Result<Answer, Error> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => read(&line),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let what = "an answer of the second process".to_owned();
                Err(Error::Silence { seconds: PATIENCE.as_secs(), what })
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Its output has ended, so it has or will.
    fn ended(&mut self) -> Error {
        failed(self.process.0.wait().map_or_else(|e| e.to_string(), |status| status.to_string()))
    }
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
