//! System calls of a traced process.

use nix::sys::ptrace;
use nix::unistd::Pid;

/// The number of the system call that a stopped process begins. `None` if one ends.
#[cfg(target_arch = "x86_64")]
pub fn call_that_begins(tracee: Pid) -> Option<u64> {
    let registers = ptrace::getregs(tracee).expect("stopped");
    // The result register holds ENOSYS when a call begins.
    (registers.rax as i64 == -38).then_some(registers.orig_rax)
}

/// The number of the system call that a stopped process begins. `None` if one ends.
#[cfg(target_arch = "aarch64")]
pub fn call_that_begins(tracee: Pid) -> Option<u64> {
    let registers = ptrace::getregset::<ptrace::regset::NT_PRSTATUS>(tracee).expect("stopped");
    // The kernel tells the two stops apart by this register.
    (registers.regs[7] == 0).then_some(registers.regs[8])
}
