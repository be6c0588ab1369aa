//! A folder of this process for daemons' sockets and configurations.

use crate::error::Error;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The path of this process's folder, which may not exist.
    pub fn ours() -> PathBuf {
        std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()))
    }

    /// Makes it, accessible to this user only.
    pub fn make() -> Result<Folder, Error> {
        Folder::at(Folder::ours())
    }

    /// Makes a folder in it.
    pub fn make_within(&self, name: &str) -> Result<Folder, Error> {
        Folder::at(self.file(name))
    }

    fn at(path: PathBuf) -> Result<Folder, Error> {
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| Error::File {
            verb: "make",
            path: path.clone(),
            source,
            way_out: "Set TMPDIR to a folder that you may write to",
        })?;
        Ok(Folder(path))
    }

    /// The path of a file in it, which may not exist.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The socket at which programs attach to the daemon.
    pub fn socket(&self) -> PathBuf {
        self.file("socket")
    }

    /// Removes the folder, if it exists.
    pub fn remove(path: &Path) {
        // If that fails, files remain in the directory for temporary files.
        let _ = fs::remove_dir_all(path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        Folder::remove(&self.0);
    }
}
