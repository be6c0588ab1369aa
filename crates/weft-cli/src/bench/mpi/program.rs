//! The program in C that the ranks run. This command contains its sources, and each MPI's own compiler builds it. The script that
//! runs hpcc is beside it.

use super::find::{Kind, Mpi};
use crate::child::{output_of, NoOutput};
use crate::error::Error;
use crate::progress::Progress;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long building it may take on a machine with other work.
const BUILD_MOST: Duration = Duration::from_secs(120);

const SOURCES: [(&str, &str); 4] = [
    ("measure.h", include_str!("../../../../../bench/mpi/measure.h")),
    ("measure.c", include_str!("../../../../../bench/mpi/measure.c")),
    ("onesided.c", include_str!("../../../../../bench/mpi/onesided.c")),
    ("nbody.c", include_str!("../../../../../bench/mpi/nbody.c")),
];

/// The script that runs hpcc, and its input.
const HPCC: (&str, &str) = ("hpcc.sh", include_str!("../../../../../bench/mpi/hpcc.sh"));
const HPCC_INPUT: (&str, &str) = ("hpccinf.txt", include_str!("../../../../../bench/mpi/hpccinf.txt"));

/// A folder of this process, removed when this is dropped. Its name is short, because MPIs put sockets into it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it, with the sources.
    pub fn make() -> Result<Folder, Error> {
        let path = std::env::temp_dir().join(format!("weft-mpi-{}", std::process::id()));
        let failed = |path: &Path, source| Error::File {
            verb: "write",
            path: path.to_path_buf(),
            source,
            way_out: "Set TMPDIR to a folder that you may write to",
        };
        fs::create_dir(&path).map_err(|source| failed(&path, source))?;
        let folder = Folder(path);
        for (name, text) in SOURCES.into_iter().chain([HPCC, HPCC_INPUT]) {
            let file = folder.0.join(name);
            fs::write(&file, text).map_err(|source| failed(&file, source))?;
        }
        let script = folder.0.join(HPCC.0);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(|source| failed(&script, source))?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If that fails, files remain in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program for one MPI's ranks.
#[derive(Clone, Debug)]
pub struct Program {
    pub mpi: Mpi,
    pub path: PathBuf,
    /// Environment variables besides the settings of the transport.
    pub variables: Vec<(&'static str, String)>,
}

/// hpcc for this MPI's ranks. Distributions build it with Open MPI 4, whose programs run with Open MPI 5 as well; nobody builds it
/// with MPICH.
pub fn hpcc(mpi: &Mpi, folder: &Folder) -> Option<Program> {
    let libraries = mpi.folder("lib").to_string_lossy().into_owned();
    // Keep numerical libraries from starting threads of their own.
    let variables =
        [("LD_LIBRARY_PATH", libraries), ("OPENBLAS_NUM_THREADS", "1".to_owned()), ("OMP_NUM_THREADS", "1".to_owned())];
    let program = || Program { mpi: mpi.clone(), path: folder.path().join(HPCC.0), variables: variables.to_vec() };
    (mpi.kind == Kind::OpenMpi).then(program)
}

/// Builds it.
pub fn build(mpi: &Mpi, folder: &Folder, progress: &Progress) -> Result<Program, Error> {
    progress.say(format!("builds the program for {}", mpi.kind.title()));
    let path = folder.path().join(format!("measure-{}", mpi.kind.name()));
    let mpicc = mpi.program("mpicc");
    let mut command = Command::new(&mpicc);
    command.args(["-std=c11", "-O2", "-o"]).arg(&path).current_dir(folder.path());
    command.args(SOURCES.iter().map(|source| source.0).filter(|name| name.ends_with(".c"))).arg("-lm");
    let failed = |cause: String| Error::Process {
        who: format!("`{}`, which builds the program of the ranks,", mpicc.display()),
        cause,
        way_out: "It needs a C compiler and the C library's headers (apt-get install gcc libc6-dev)",
    };
    match output_of(&mut command, BUILD_MOST) {
        Ok(output) if output.status.success() => Ok(Program { mpi: mpi.clone(), path, variables: Vec::new() }),
        Ok(output) => {
            let said = String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).trim().replace('\n', "; ");
            Err(failed(if said.is_empty() { output.status.to_string() } else { said }))
        }
        Err(NoOutput::NotStarted(e)) => Err(failed(format!("it cannot be run: {e}"))),
        Err(NoOutput::TooLong) => Err(failed(format!("no end after {} s", BUILD_MOST.as_secs()))),
    }
}
