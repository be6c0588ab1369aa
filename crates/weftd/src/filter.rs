//! The system calls that the daemon may make once it serves. The kernel ends the daemon at any other one: a daemon that makes one was taken
//! over, or has a fault. The kernel writes the call's number to its log (`audit: type=1326`).
//!
//! If the loop comes to need another call, give it a row here, with conditions if the call can do more than the loop needs. All tests of
//! the daemon run with the filter.

use crate::start::{cannot, StartError};
use seccompiler::{
    apply_filter_all_threads, BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::io;

/// Calls that are allowed whatever their arguments are.
const PLAIN: &[i64] = &[
    // For programs: their socket, their memory, and the daemon's wakeups.
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fcntl,
    libc::SYS_eventfd2,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_membarrier,
    libc::SYS_close,
    // For the network: runs of packets, sockets that are made later, and the kernel's news about interfaces.
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_ppoll,
    libc::SYS_uname,
    // For reading files: `openat` is below.
    libc::SYS_read,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    // For the log.
    libc::SYS_write,
    libc::SYS_writev,
    // For memory: `mmap` and `mprotect` are below.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Clocks where the kernel has no vDSO, random bits, locks, naps.
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    // Its own process, and its end.
    libc::SYS_getpid,
    libc::SYS_geteuid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls that other processors have only in their newer forms.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_stat, libc::SYS_lstat];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

/// `_IOR(0x89, 7, long long[2])`, as in `weft_shm::arrival`: when a packet came.
const SIOCGSTAMPNS_NEW: u64 = 0x8010_8907;

/// Makes the kernel end the process when any of its threads makes a call that is not allowed. This cannot be undone.
///
/// # Errors
/// If the kernel has no filters.
pub fn install() -> Result<(), StartError> {
    let way_out = "use a kernel with seccomp, or set seccomp = false in weftd.toml";
    let failed = || cannot("cannot install the filter of system calls", way_out);
    let program = program().map_err(io::Error::other).map_err(failed())?;
    apply_filter_all_threads(&program).map_err(io::Error::other).map_err(failed())
}

fn program() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = PLAIN.iter().chain(OLD).map(|call| (*call, Vec::new())).collect();
    // For reading, but not for writing or making a file.
    let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    rules.insert(libc::SYS_openat, vec![all([is(2, SeccompCmpOp::MaskedEq(writes as u64), 0)?])?]);
    // No local sockets: root's own services listen at those, and trust a caller that is root.
    let netlink = [equals(0, libc::AF_NETLINK as u64)?, equals(2, libc::NETLINK_ROUTE as u64)?];
    let families = [libc::AF_INET, libc::AF_INET6].map(|family| all([equals(0, family as u64)?]));
    let families = families.into_iter().chain([all(netlink)]).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, families);
    // No memory that can be executed.
    let executes = || is(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    rules.insert(libc::SYS_mmap, vec![all([executes()?])?]);
    rules.insert(libc::SYS_mprotect, vec![all([executes()?])?]);
    rules.insert(libc::SYS_ioctl, vec![all([equals(1, SIOCGSTAMPNS_NEW)?])?]);
    // Limits are asked for, and not set.
    let only_asks = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![all([only_asks])?]);
    // Its own end by a signal (abort).
    rules.insert(libc::SYS_tgkill, vec![all([equals(0, std::process::id().into())?])?]);
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?.try_into()
}

/// A rule that holds if all conditions do.
fn all<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

fn equals(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    is(argument, SeccompCmpOp::Eq, value)
}

/// A condition on the low 32 bits of an argument: all arguments above fit into these.
fn is(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};
    use weft_link::address::Wanted;
    use weft_link::UdpLink;

    /// The call that a process of its own makes, a file that it may use, and whether it has the filter.
    const CALL: &str = "WEFT_TEST_CALL";
    const FILE: &str = "WEFT_TEST_FILE";
    const FILTERED: &str = "WEFT_TEST_FILTERED";

    /// Calls that the daemon never makes. Without the filter, each of them does what it should.
    const FORBIDDEN: [&str; 7] = ["execute", "write", "append", "local", "thread", "remove", "signal"];

    /// Calls like those, which it does make.
    const ALLOWED: [&str; 5] = ["read", "memory", "network", "interfaces", "panic"];

    fn run(call: &str, filtered: bool) -> ExitStatus {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let file = std::env::temp_dir().join(format!("weftd-filter-{}-{call}-{filtered}", std::process::id()));
        std::fs::write(&file, "there").expect("written");
        command.args(["--exact", "filter::tests::role", "--nocapture"]).env(CALL, call).env(FILE, &file);
        if filtered {
            command.env(FILTERED, "yes");
        }
        // The filter does not allow the calls of a backtrace.
        let status = command.env_remove("RUST_BACKTRACE").status().expect("it runs");
        let _ = std::fs::remove_file(&file);
        status
    }

    /// Not a test: such a process.
    #[test]
    fn role() {
        let Ok(call) = std::env::var(CALL) else { return };
        let file = std::env::var_os(FILE).expect("a file");
        if std::env::var_os(FILTERED).is_some() {
            install().expect("a kernel with filters");
        }
        match call.as_str() {
            "execute" => drop(Command::new("true").status().expect("it runs")),
            "write" => std::fs::write(&file, "changed").expect("written"),
            "append" => drop(std::fs::OpenOptions::new().append(true).open(&file).expect("opened")),
            "local" => drop(UnixDatagram::unbound().expect("a socket")),
            "thread" => std::thread::spawn(|| {}).join().expect("it ends"),
            "remove" => std::fs::remove_file(&file).expect("removed"),
            // Signal 0 to the parent: only whether it is there.
            "signal" => {
                let parent = rustix::process::getppid().expect("a parent");
                rustix::process::test_kill_process(parent).expect("it is there");
            }
            "read" => assert_eq!(std::fs::read_to_string(&file).expect("read"), "there"),
            "memory" => drop(weft_shm::SegmentFile::create(1 << 22).expect("a file")),
            "network" => {
                // An address of loopback that no interface has: looks for another one, and makes a socket there if there is one.
                let wanted = Wanted::from_settings(Some("127.0.0.5"), None).expect("an address").expect("a network");
                let mut link = UdpLink::open(&Wanted { are_set: false, ..wanted }).expect("a link");
                link.renew();
                let (here, there) = (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
                let (here, there) = (here.expect("a socket"), there.expect("a socket"));
                here.connect(there.local_addr().expect("bound")).expect("connected");
                here.send(b"packet").expect("sent");
            }
            "interfaces" => _ = weft_link::address::present(),
            "panic" => _ = std::panic::catch_unwind(|| panic!("as a fault would")),
            _ => panic!("no such call: {call}"),
        }
        // At once: the harness would make calls of its own.
        std::process::exit(0);
    }

    #[test]
    fn a_call_that_the_daemon_never_makes_ends_it() {
        for call in FORBIDDEN {
            let (free, filtered) = (run(call, false), run(call, true));
            assert!(free.success(), "{call}: {free}");
            assert_eq!(filtered.signal(), Some(libc::SIGSYS), "{call}: {filtered}");
        }
    }

    #[test]
    fn what_the_daemon_needs_while_it_serves_is_allowed() {
        for call in ALLOWED {
            let filtered = run(call, true);
            assert!(filtered.success(), "{call}: {filtered}");
        }
    }
}
