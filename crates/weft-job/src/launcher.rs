//! The launcher of this process, and the requests to it.

use crate::pmi::Pmi;
use crate::run::Run;
use crate::JobError;
use weft_launch::pmix::Pmix;
use weft_wire::job::{JOB, SIZE_MOST};

/// The launcher of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launched {
    /// No launcher: it is a job of one.
    Alone,
    /// `weft run`.
    ByWeft,
    /// A launcher that speaks PMI-1: `mpiexec` of MPICH and of Intel MPI, which is Hydra.
    ByPmi,
    /// A launcher that speaks PMIx: `mpirun` and `prterun` of Open MPI.
    ByPmix,
}

/// A connection to the launcher.
#[derive(Debug)]
pub enum Launcher {
    Alone,
    Weft(Run),
    Pmi(Pmi),
    Pmix(Box<Pmix>, Rounds),
}

/// Counts exchanges, as each one needs keys of its own.
#[derive(Debug, Default)]
pub struct Rounds(u32);

impl Rounds {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(1);
        self.0
    }
}

impl Launcher {
    /// `weft run` comes first, because it may itself be a rank of another launcher.
    pub fn find() -> Result<Launcher, JobError> {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let launcher = if is_set(JOB) {
            Launcher::Weft(Run::connect()?)
        } else if is_set(crate::pmi::DESCRIPTOR) {
            Launcher::Pmi(Pmi::connect()?)
        } else if is_set("PMIX_NAMESPACE") && is_set("PMIX_RANK") {
            Launcher::Pmix(Box::new(Pmix::connect()?), Rounds::default())
        } else {
            Launcher::Alone
        };
        match launcher.size() {
            1..=SIZE_MOST if launcher.rank() < launcher.size() => Ok(launcher),
            size => Err(JobError::Launcher(format!(
                "says that this is rank {} of {size}, and jobs have 1 to {SIZE_MOST} ranks",
                launcher.rank()
            ))),
        }
    }

    pub fn launched(&self) -> Launched {
        match self {
            Launcher::Alone => Launched::Alone,
            Launcher::Weft(_) => Launched::ByWeft,
            Launcher::Pmi(_) => Launched::ByPmi,
            Launcher::Pmix(..) => Launched::ByPmix,
        }
    }

    pub fn rank(&self) -> u32 {
        match self {
            Launcher::Alone => 0,
            Launcher::Weft(run) => run.rank,
            Launcher::Pmi(pmi) => pmi.rank,
            Launcher::Pmix(pmix, _) => pmix.rank(),
        }
    }

    pub fn size(&self) -> u32 {
        match self {
            Launcher::Alone => 1,
            Launcher::Weft(run) => run.size,
            Launcher::Pmi(pmi) => pmi.size,
            Launcher::Pmix(pmix, _) => pmix.size(),
        }
    }

    /// Gives bytes to all ranks, and returns every rank's.
    pub fn exchange(&mut self, gift: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        match self {
            Launcher::Alone => Ok(vec![gift.to_vec()]),
            Launcher::Weft(run) => run.exchange(gift),
            Launcher::Pmi(pmi) => pmi.exchange(gift),
            Launcher::Pmix(pmix, rounds) => {
                let key = format!("weft.{}", rounds.next());
                pmix.put(&key, gift)?;
                pmix.fence()?;
                let all: Result<Vec<_>, _> = (0..pmix.size()).map(|rank| pmix.get(rank, &key)).collect();
                Ok(all?)
            }
        }
    }

    /// Asks the launcher to end the whole job.
    pub fn exit(&mut self, status: i32) -> Result<(), JobError> {
        match self {
            Launcher::Alone => Ok(()),
            Launcher::Weft(run) => run.exit(status),
            Launcher::Pmi(pmi) => pmi.exit(status),
            Launcher::Pmix(pmix, _) => Ok(pmix.abort(status)?),
        }
    }

    /// Tells `weft run` that another rank does not answer. Other launchers have no message for that.
    pub fn misses(&mut self, rank: u32) {
        if let Launcher::Weft(run) = self {
            run.misses(rank);
        }
    }

    /// A second handle of the socket of `weft run`, if that is the launcher.
    pub fn socket(&self) -> Option<std::fs::File> {
        match self {
            Launcher::Weft(run) => run.socket(),
            _ => None,
        }
    }

    /// Tells the launcher that this rank no longer needs it.
    pub fn leave(&mut self) -> Result<(), JobError> {
        match self {
            Launcher::Alone | Launcher::Weft(_) => Ok(()),
            Launcher::Pmi(pmi) => pmi.leave(),
            Launcher::Pmix(pmix, _) => Ok(pmix.leave()?),
        }
    }

    /// Forgets the connection without a word: it belongs to the process that this one was forked from.
    pub fn forget(&mut self) {
        match self {
            Launcher::Alone | Launcher::Weft(_) => {}
            Launcher::Pmi(pmi) => pmi.forget(),
            Launcher::Pmix(pmix, _) => pmix.forget(),
        }
    }
}

/// A number that the environment must contain.
pub fn number<N: std::str::FromStr>(variable: &'static str) -> Result<N, JobError> {
    let text = std::env::var(variable).unwrap_or_default();
    text.trim().parse().map_err(|_| JobError::NoLauncher {
        what: "the launcher gives no number",
        why: format!("{variable} is {text:?}"),
        variable,
    })
}
