//! Finds a program as a shell does, before many processes start and all fail.

use super::usage;
use crate::error::Error;
use rustix::fs::{access, Access};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The path of a program: unchanged if it contains a slash, otherwise the first match in `PATH`.
pub fn find(program: &OsStr) -> Result<PathBuf, Error> {
    let shown = program.to_string_lossy();
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match (path.exists(), is_program(&path)) {
            (_, true) => Ok(path),
            (false, _) => Err(usage(format!("there is no file {shown}"), "See that the path is right")),
            (true, false) => {
                Err(usage(format!("{shown} is no program that may be executed"), "Try chmod +x, or name another file"))
            }
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| is_program(path));
    found.ok_or_else(|| {
        let here = if Path::new(program).exists() {
            format!("This directory has a file of this name: type ./{shown}")
        } else {
            String::new()
        };
        let way_out = if here.is_empty() { "Give its path, or install it".to_owned() } else { here };
        usage(format!("there is no program {shown} in PATH"), way_out)
    })
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}
