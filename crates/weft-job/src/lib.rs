//! Processes that were started together: a *job* of ranks 0 to n - 1.
//!
//! [`Job::from_environment`] finds the launcher: `weft run`, `mpiexec` of MPICH and others with Hydra (PMI), `mpirun` and `prterun` of Open
//! MPI (PMIx). A process without a launcher is a job of one. [`Job::join`] exchanges the names of endpoints through the launcher, and
//! enters them in the translation table, each at the index of its rank. From then on barriers and all-gathers use weft's own messages,
//! between endpoints that belong to the job.
//!
//! ```
//! use weft::{Bundle, Node};
//! use weft_job::Job;
//!
//! let mut job = Job::from_environment()?;
//! let mut bundle = Bundle::new(&Node::new()?)?;
//! let me = bundle.endpoint_with_random_key()?;
//! bundle.on(me, 1, |m| println!("rank {} greets", m.args()[0]))?;
//! job.join(&mut bundle, me)?;
//! bundle.send(me, 0, 1, &[job.rank()], b"")?; // index 0 is rank 0
//! bundle.drain();
//! job.barrier(&mut bundle)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod carrier;
mod launcher;
mod pmi;
mod run;
mod team;

pub use carrier::Carrier;
pub use launcher::Launched;

use launcher::Launcher;
use std::fs::File;
use std::time::{Duration, Instant};
use team::{Fault, Kind};
use weft::{Endpoint, Key, Name, Reason};
use weft_launch::pmix::PmixError;

/// Bytes of the largest all-gather over weft, all contributions together.
pub const GATHER_MOST: usize = 64 << 20;

/// The most bytes that a process may give in an exchange through the launcher.
pub use weft_wire::job::GIFT_MOST;

/// How long a rank that has found a fault tries to tell its peers.
const TELL_MOST: Duration = Duration::from_millis(500);

/// A name and a key in an exchange.
const CONTACT_BYTES: usize = weft_wire::name::NAME_BYTES + 8;

/// Why a call of a job failed.
#[derive(thiserror::Error)]
pub enum JobError {
    /// The environment names a launcher that cannot be reached.
    #[error("{what}: {why}. Start the program by weft run, mpiexec or mpirun; or unset {variable} to run it alone")]
    NoLauncher {
        /// What was looked for.
        what: &'static str,
        /// What is wrong.
        why: String,
        /// The environment variable that names the launcher.
        variable: &'static str,
    },
    /// The launcher is gone, or its answer makes no sense.
    #[error("the launcher of the job {0}. Was it killed? Start the job again")]
    Launcher(String),
    /// A call of PMIx failed.
    #[error(transparent)]
    Pmix(#[from] PmixError),
    /// A contribution is larger than the call takes.
    #[error("{bytes} bytes are more than a rank of {size} may give here ({most}); send them as messages")]
    TooLarge {
        /// How much it is.
        bytes: usize,
        /// How much it may be.
        most: usize,
        /// The number of ranks.
        size: u32,
    },
    /// A message to a rank came back: the rank has ended, or cannot be reached.
    #[error("rank {rank} does not answer: {}", lost(*reason))]
    Lost {
        /// Which.
        rank: u32,
        /// Why.
        reason: Reason,
    },
    /// The ranks made different calls: for example one is in a barrier, and another in an all-gather.
    #[error("rank {rank} is in another call than others; all ranks make the same calls of a job in the same order")]
    OutOfStep {
        /// Which one differs from its neighbour.
        rank: u32,
    },
    /// The job has no endpoint yet.
    #[error("the job has not joined a bundle; call join first")]
    NotJoined,
    /// This is a forked child of the process that is in the job.
    #[error("{}", weft_wire::FORKED)]
    Forked,
    /// weft refused something.
    #[error(transparent)]
    Weft(#[from] weft::Error),
}

weft_wire::debug_says_display!(JobError);

/// Why a rank does not answer, and the way out. The reasons of a peer that is gone advise to ask for its next name, or to send again, and
/// neither helps in a job.
fn lost(reason: Reason) -> String {
    let told = reason.to_string();
    match reason {
        Reason::PeerLost | Reason::NobodyThere | Reason::NoSuchEndpoint | Reason::WrongEpoch | Reason::Silent => {
            let name = told.split(':').next().unwrap_or_default();
            format!("it ended, or cannot be reached ({name}); look at its output")
        }
        _ => told,
    }
}

impl From<weft::SendError> for JobError {
    fn from(error: weft::SendError) -> JobError {
        JobError::Weft(error.into())
    }
}

/// This process's place in its job. Only one thread at a time may use it.
///
/// All ranks make the same calls of [`exchange`](Job::exchange), [`join`](Job::join), [`barrier`](Job::barrier) and
/// [`all_gather`](Job::all_gather), in the same order. Dropping a job tells the launcher that this rank no longer needs it.
#[derive(Debug)]
pub struct Job {
    launcher: Launcher,
    /// The endpoint of barriers and gathers, once the job has joined.
    team: Option<Endpoint>,
    /// The process that is in the job: a forked child is not.
    process: u32,
}

/// Ends a job on behalf of its [`Job`]: see [`Job::ending`].
#[derive(Debug)]
pub struct Ending {
    /// Tells `weft run` of the end. Other launchers see the process end.
    socket: Option<File>,
    process: u32,
}

impl Ending {
    /// As [`Job::exit`].
    pub fn exit(&self, status: i32) -> ! {
        // A forked child is no rank.
        if let Some(socket) = self.socket.as_ref().filter(|_| self.process == std::process::id()) {
            // If no launcher takes the request, this process still ends with the status.
            let _ = run::ask_for_end(socket, status);
        }
        std::process::exit(status)
    }
}

impl Job {
    /// Finds the launcher by the environment and learns rank and size. Blocks until the launcher has answered.
    ///
    /// # Errors
    /// If the environment names a launcher that does not answer.
    pub fn from_environment() -> Result<Job, JobError> {
        Ok(Job { launcher: Launcher::find()?, team: None, process: std::process::id() })
    }

    /// Returns this process's rank: 0 to size - 1.
    pub fn rank(&self) -> u32 {
        self.launcher.rank()
    }

    /// Returns the number of processes of the job.
    pub fn size(&self) -> u32 {
        self.launcher.size()
    }

    /// Returns which launcher started this process.
    pub fn launched(&self) -> Launched {
        self.launcher.launched()
    }

    /// Gives bytes to all ranks and returns every rank's, by rank. Goes through the launcher: use it for a few words at the start, such as
    /// names. Blocks until all ranks have called it. Polls no bundle.
    ///
    /// # Errors
    /// If these are more than [`GIFT_MOST`] bytes, or the launcher is gone.
    pub fn exchange(&mut self, gift: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        self.check()?;
        if gift.len() > GIFT_MOST {
            return Err(JobError::TooLarge { bytes: gift.len(), most: GIFT_MOST, size: self.size() });
        }
        self.launcher.exchange(gift)
    }

    /// Maps the endpoint of each rank, its own too, at the rank's index in the translation table of `endpoint`. Set the handlers before.
    /// The first call also makes an endpoint of the job's own in the bundle, for barriers and gathers, which must be called with that
    /// bundle. Blocks until all ranks have called it. Returns the entry of each index.
    ///
    /// # Errors
    /// If the launcher is gone, or the endpoint is none of the bundle's.
    pub fn join(&mut self, bundle: &mut impl Carrier, endpoint: Endpoint) -> Result<Vec<(Name, Key)>, JobError> {
        self.check()?;
        let (rank, size) = (self.rank(), self.size());
        let team = match self.team {
            Some(team) => team,
            None => bundle.make_team(rank, size)?,
        };
        let mut gift = contact(bundle, endpoint)?.to_vec();
        gift.extend(contact(bundle, team)?);
        let gifts = self.launcher.exchange(&gift)?;
        let ranks = gifts.iter().map(|gift| contacts(gift)).collect::<Option<Vec<_>>>();
        let ranks = ranks.filter(|ranks| ranks.len() == size as usize).ok_or_else(|| {
            JobError::Launcher(
                "passed on data that is not weft's (do all ranks run the same program and the same version of weft?)"
                    .to_owned(),
            )
        })?;
        for (index, [(name, key), _]) in ranks.iter().enumerate() {
            bundle.enter(endpoint, index as u32, *name, *key)?;
        }
        if self.team.is_none() {
            for (index, peer) in team::peers(rank, size).enumerate() {
                let [_, (name, key)] = ranks[peer as usize];
                bundle.enter(team, index as u32, name, key)?;
            }
            let names = ranks.iter().map(|[_, (name, _)]| *name).collect();
            bundle.with_team(team, |team, _| team.learn(names))?;
            self.team = Some(team);
        }
        Ok(ranks.into_iter().map(|[program, _]| program).collect())
    }

    /// Waits until all ranks have called it. Polls the bundle, so handlers run. n·⌈log₂ n⌉ messages in all.
    ///
    /// # Errors
    /// If a rank does not answer, or calls something else.
    pub fn barrier(&mut self, bundle: &mut impl Carrier) -> Result<(), JobError> {
        self.together(bundle, Kind::Barrier, b"").map(drop)
    }

    /// Gives bytes to all ranks and returns every rank's, by rank. Goes over weft. Contributions may differ in length. Waits until all
    /// ranks have called it, and polls the bundle, so handlers run. Takes n·⌈log₂ n⌉ messages in all, if each round's data fit into one.
    ///
    /// # Errors
    /// If these are more than [`GATHER_MOST`] bytes divided by the size; if a rank does not answer, or calls something else.
    pub fn all_gather(&mut self, bundle: &mut impl Carrier, gift: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        let most = team::gift_most(self.size());
        if gift.len() > most {
            return Err(JobError::TooLarge { bytes: gift.len(), most, size: self.size() });
        }
        self.together(bundle, Kind::Gather, gift)
    }

    /// Tells the launcher that this rank no longer needs it. Dropping the job does the same, without reporting an error.
    ///
    /// # Errors
    /// If the launcher is gone.
    pub fn leave(mut self) -> Result<(), JobError> {
        self.check()?;
        self.launcher.leave()
    }

    /// Ends the job everywhere with this exit status, and this process. Runs no destructors.
    pub fn exit(mut self, status: i32) -> ! {
        if self.check().is_ok() {
            // If no launcher takes the request, this process still ends with the status.
            let _ = self.launcher.exit(status);
        }
        std::process::exit(status)
    }

    /// A handle that ends the job where the job itself is in use: in handlers that run within its calls.
    pub fn ending(&self) -> Ending {
        Ending { socket: self.launcher.socket(), process: std::process::id() }
    }

    fn together(&mut self, bundle: &mut impl Carrier, kind: Kind, gift: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        self.check()?;
        let team = self.team.ok_or(JobError::NotJoined)?;
        bundle.with_team(team, |team, state| team.begin(state, kind, gift))?;
        let done = carrier::wait_until(bundle, |bundle| bundle.with_team(team, |team, _| team.result()))?;
        let fault = match done {
            Ok(gifts) => return Ok(gifts),
            Err(fault) => fault,
        };
        if let Fault::Lost { rank, .. } = fault {
            // First, so that the launcher knows before any rank fails because of it.
            self.launcher.misses(rank);
        }
        // The ranks that wait for this one must learn of the fault, and the program may end now.
        let until = Instant::now() + TELL_MOST;
        carrier::wait_until(bundle, |bundle| bundle.with_team(team, |team, _| team.has_told(until)))?;
        Err(match fault {
            Fault::Lost { rank, reason } => JobError::Lost { rank, reason },
            Fault::OutOfStep { rank } => JobError::OutOfStep { rank },
            Fault::NotSent(error) => error.into(),
        })
    }

    fn check(&self) -> Result<(), JobError> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(JobError::Forked),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // There is nobody to report a failure to.
            let _ = self.launcher.leave();
        } else {
            self.launcher.forget();
        }
    }
}

/// What other ranks need to know of an endpoint.
fn contact(bundle: &mut impl Carrier, endpoint: Endpoint) -> Result<[u8; CONTACT_BYTES], JobError> {
    let (name, key) = bundle.contact(endpoint)?;
    let mut bytes = [0; CONTACT_BYTES];
    bytes[..CONTACT_BYTES - 8].copy_from_slice(&name.to_bytes());
    bytes[CONTACT_BYTES - 8..].copy_from_slice(&key.0.to_le_bytes());
    Ok(bytes)
}

/// The contacts of the program's endpoint and of the job's own.
fn contacts(gift: &[u8]) -> Option<[(Name, Key); 2]> {
    let (program, job) = gift.split_at_checked(CONTACT_BYTES)?;
    Some([read_contact(program)?, read_contact(job)?])
}

fn read_contact(bytes: &[u8]) -> Option<(Name, Key)> {
    let (name, key) = bytes.split_last_chunk()?;
    Some((Name::from_bytes(name).ok()?, Key(u64::from_le_bytes(*key))))
}
