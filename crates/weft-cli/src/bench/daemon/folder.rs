//! A folder of this process, for sockets and configurations of daemons.

use crate::error::Error;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// It goes with this value.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The one of this process, which may not be there.
    pub fn ours() -> PathBuf {
        std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()))
    }

    /// Makes it, for this user alone.
    pub fn make() -> Result<Folder, Error> {
        Folder::at(Folder::ours())
    }

    /// Makes one in it.
    pub fn make_within(&self, name: &str) -> Result<Folder, Error> {
        Folder::at(self.file(name))
    }

    fn at(path: PathBuf) -> Result<Folder, Error> {
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| Error::File {
            verb: "make",
            path: path.clone(),
            source,
            way_out: "Name a folder where you may write in TMPDIR",
        })?;
        Ok(Folder(path))
    }

    /// Where a file of it is, or is to be.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where programs attach to the daemon.
    pub fn socket(&self) -> PathBuf {
        self.file("socket")
    }

    /// Removes it, as far as it is there.
    pub fn remove(path: &Path) {
        // If that fails, files stay in the folder for temporary files.
        let _ = fs::remove_dir_all(path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        Folder::remove(&self.0);
    }
}
