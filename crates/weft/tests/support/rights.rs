//! The rights of this user.

use nix::sys::uio::{process_vm_readv, RemoteIoVec};
use nix::unistd::Pid;
use std::io::IoSliceMut;

/// Whether this is root with all its rights, who may make network namespaces.
pub fn is_root() -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    let capabilities = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first_namespace = users.split_whitespace().eq(["0", "0", "4294967295"]);
    is_first_namespace && capabilities & NET_ADMIN != 0 && capabilities & SYS_ADMIN != 0
}

/// Whether a process may read another one's memory here. Where it may not, no process is trusted.
pub fn may_read_memory() -> bool {
    let (own, mut read) = (7_u64, [0; 8]);
    let remote = [RemoteIoVec { base: std::ptr::from_ref(&own).addr(), len: 8 }];
    let done = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut read)], &remote);
    done == Ok(8) && read == own.to_ne_bytes()
}
