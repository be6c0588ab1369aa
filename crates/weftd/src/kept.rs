//! Small files beside the socket, which a daemon leaves for the next one. Other users may be able to make files in that folder, if it is
//! one like `/tmp`. They must not be able to have the daemon read their files, or to redirect where it writes.

use rustix::fs::{fstat, open, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes of such a file, at most.
const BYTES_MOST: u64 = 64;

/// The users that may read such a file besides its owner. The owner alone may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    Everybody,
    Nobody,
}

impl Readers {
    fn mode(self) -> Mode {
        Mode::from_raw_mode(match self {
            Readers::Everybody => 0o644,
            Readers::Nobody => 0o600,
        })
    }
}

/// The contents of a file, if there is one.
///
/// # Errors
/// What the kernel says, or that the file is not one that a daemon of this user wrote.
pub fn read(path: &Path, readers: Readers) -> io::Result<Option<Vec<u8>>> {
    // Non-blocking, because opening a pipe that somebody put there would wait.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(unfit("it is a symbolic link")),
        Err(error) => return Err(error.into()),
    };
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(unfit("it is no ordinary file"));
    }
    let owner = rustix::process::Uid::from_raw(found.st_uid);
    if !owner.is_root() && owner != rustix::process::geteuid() {
        return Err(unfit("it belongs to another user"));
    }
    if !(Mode::from_raw_mode(found.st_mode) & Mode::from_raw_mode(0o077)).difference(readers.mode()).is_empty() {
        return Err(unfit("other users have rights to it that they should not have"));
    }
    let mut bytes = Vec::new();
    File::from(file).take(BYTES_MOST).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Replaces a file: afterwards it has either the old contents or the new ones. A link under its name is replaced, not followed.
///
/// # Errors
/// What the kernel says.
pub fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match open(&new, flags, readers.mode()) {
        // Left by a daemon that was killed here.
        Err(Errno::EXIST) => {
            std::fs::remove_file(&new)?;
            open(&new, flags, readers.mode())?
        }
        made => made?,
    };
    let mut file = File::from(file);
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn unfit(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
