//! Descriptors that a process inherits, with their numbers in an environment variable.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A copy of the descriptor with this number. The number itself stays open: whoever opened it may still use it.
///
/// # Errors
/// If no descriptor has the number, or there is no room for one more.
pub fn copy(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: this call reads no memory, and fails for a number that no descriptor has.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Keeps programs that this process starts from inheriting the descriptor with this number.
///
/// # Errors
/// If no descriptor has the number.
pub fn keep(number: RawFd) -> io::Result<()> {
    // SAFETY: this call reads no memory. What is open stays open here.
    match unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_copy_is_the_same_file_and_an_unused_number_is_an_error() {
        let (mut from, to) = UnixStream::pair().expect("a pair");
        let copy = copy(to.as_raw_fd()).expect("it is open");
        drop(to);
        File::from(copy).write_all(b"by the copy").expect("it is open");
        let mut text = String::new();
        from.read_to_string(&mut text).expect("both are closed");
        assert_eq!(text, "by the copy");
        assert_eq!(super::copy(-1).expect_err("no number").raw_os_error(), Some(libc::EBADF));
        assert_eq!(keep(-1).expect_err("no number").raw_os_error(), Some(libc::EBADF));
    }
}
