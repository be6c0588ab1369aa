//! Finds the MPIs and the provider, or says how to install them.

use crate::error::Error;
use crate::repository;
use std::path::{Path, PathBuf};

/// The file that libfabric loads.
const PROVIDER: &str = "libweft-fi.so";

/// The MPI. Each is recognised by a program that only it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    OpenMpi,
    Mpich,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::OpenMpi, Kind::Mpich];

    /// The name in systems' names, and of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Kind::OpenMpi => "openmpi",
            Kind::Mpich => "mpich",
        }
    }

    /// The name for display.
    pub fn title(self) -> &'static str {
        match self {
            Kind::OpenMpi => "Open MPI",
            Kind::Mpich => "MPICH",
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Kind::OpenMpi => "bin/ompi_info",
            Kind::Mpich => "bin/mpichversion",
        }
    }
}

/// An installed MPI.
#[derive(Clone, Debug)]
pub struct Mpi {
    pub kind: Kind,
    root: PathBuf,
}

impl Mpi {
    /// One of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder("bin").join(name)
    }

    /// One of its folders.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

/// The MPIs to measure, and notes on those that are missing.
#[derive(Debug)]
pub struct Wanted {
    pub mpis: Vec<Mpi>,
    pub missing: Vec<String>,
}

/// The MPIs at these paths; without paths, those installed by `make bench-mpi`.
pub fn mpis(named: &[PathBuf]) -> Result<Wanted, Error> {
    if !named.is_empty() {
        let mpis = named.iter().map(|path| mpi_in(path)).collect::<Result<Vec<Mpi>, Error>>()?;
        return match mpis.iter().enumerate().find(|(at, mpi)| mpis[..*at].iter().any(|other| other.kind == mpi.kind)) {
            None => Ok(Wanted { mpis, missing: Vec::new() }),
            Some((_, mpi)) => Err(Error::Usage {
                cause: format!("two of the folders are of {}", mpi.kind.title()),
                way_out: "Name one of each MPI, and compare two by `weft bench compare`".to_owned(),
            }),
        };
    }
    let usual = repository::root().map(|root| root.join("target/mpi"));
    let (mut mpis, mut missing) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        let found = usual.as_ref().map(|usual| usual.join(kind.name())).filter(|root| root.join(kind.mark()).exists());
        match found {
            Some(root) => mpis.push(Mpi { kind, root }),
            None => missing.push(format!(
                "{}: there is none in target/mpi/{}; type `make bench-mpi` in weft's repository, or name one by --mpi PATH",
                kind.title(),
                kind.name()
            )),
        }
    }
    match mpis.is_empty() {
        false => Ok(Wanted { mpis, missing }),
        true => Err(Error::Usage {
            cause: match usual {
                Some(usual) => format!("there is no MPI in {}", usual.display()),
                None => "this is outside of weft's repository, and no MPI is named".to_owned(),
            },
            way_out:
                "Type `make bench-mpi` in weft's repository, which installs Open MPI and MPICH there and runs this, or \
                      name the folder of one by --mpi PATH"
                    .to_owned(),
        }),
    }
}

/// Whether hpcc is on the path.
pub fn has_hpcc() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("hpcc").is_file())
}

fn mpi_in(path: &Path) -> Result<Mpi, Error> {
    let refused = |cause| Error::Usage {
        cause,
        way_out: "Name the folder whose bin has mpicc and mpiexec of Open MPI 5 or MPICH 5".to_owned(),
    };
    let root =
        std::fs::canonicalize(path).map_err(|e| refused(format!("there is no MPI in {}: {e}", path.display())))?;
    let kind = Kind::ALL.into_iter().find(|kind| root.join(kind.mark()).exists());
    let lacks = |program: &str| !root.join("bin").join(program).exists();
    match kind {
        None => {
            let [one, other] = Kind::ALL.map(Kind::mark);
            Err(refused(format!("{} has neither {one} nor {other}", path.display())))
        }
        Some(_) if ["mpicc", "mpiexec"].into_iter().any(lacks) => {
            Err(refused(format!("{} has no bin/mpicc or no bin/mpiexec", path.display())))
        }
        Some(kind) => Ok(Mpi { kind, root }),
    }
}

/// The folder of the provider: the one given, or that of this checkout, or that of this installation.
pub fn provider(named: Option<&Path>) -> Result<PathBuf, Error> {
    let way_out = "Type `make bench-mpi` in weft's repository, which builds it into target/ofi, or name its folder by --provider PATH";
    let refused = |cause| Error::Usage { cause, way_out: way_out.to_owned() };
    let has = |folder: &PathBuf| folder.join(PROVIDER).is_file();
    let absolute = |folder: PathBuf| std::fs::canonicalize(&folder).unwrap_or(folder);
    if let Some(named) = named {
        let folder = named.to_path_buf();
        return match has(&folder) {
            true => Ok(absolute(folder)),
            false => Err(refused(format!("there is no {PROVIDER} in {}", named.display()))),
        };
    }
    let of_checkout = repository::root().map(|root| root.join("target/ofi"));
    let program = std::env::current_exe().ok();
    // PREFIX/bin/weft and PREFIX/lib/weft.
    let installed = program.and_then(|program| Some(program.parent()?.parent()?.join("lib/weft")));
    let found = [of_checkout, installed].into_iter().flatten().find(has);
    found.map(absolute).ok_or_else(|| refused(format!("there is no {PROVIDER}, the provider for libfabric")))
}
