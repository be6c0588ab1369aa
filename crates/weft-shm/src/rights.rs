//! Whether a socket takes descriptors that others send with their messages (SO_PASSRIGHTS, Linux 6.16).

use rustix::io::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};

/// Numbers of the kernel (asm-generic/socket.h); they are the same on x86-64 and aarch64.
const SOL_SOCKET: c_int = 1;
const SO_PASSRIGHTS: c_int = 83;

/// Has a Unix socket take descriptors, which is the default, or refuse messages with descriptors. An accepted socket inherits this from
/// the listening one. Does not block.
///
/// # Errors
/// `NOPROTOOPT` from a kernel before 6.16, where every Unix socket takes them.
pub fn take_descriptors(socket: impl AsFd, takes: bool) -> Result<(), Errno> {
    let value = c_int::from(takes);
    let bytes = size_of::<c_int>() as c_uint;
    // SAFETY: the kernel reads one integer, which lives until the call returns, and keeps no reference to it.
    let set = unsafe {
        setsockopt(socket.as_fd().as_raw_fd(), SOL_SOCKET, SO_PASSRIGHTS, std::ptr::from_ref(&value).cast(), bytes)
    };
    match set {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

extern "C" {
    /// POSIX; in the C library with which the standard library is linked anyway.
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, bytes: c_uint) -> c_int;
}
