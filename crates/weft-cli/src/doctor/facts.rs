//! Facts about this machine, as plain values. Checks see only these, so they can be tested with any machine's facts.

use crate::bench::machine::allowed;
use crate::daemon::title;
use crate::status::PATIENCE;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::uio::{process_vm_readv, RemoteIoVec};
use nix::unistd::Pid;
use rustix::process::{getrlimit, Resource};
use rustix::thread::{membarrier_query, MembarrierCommand};
use std::collections::BTreeMap;
use std::fs;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use weft::status::{self, Attaches, DaemonStatus, EndStatus, Scope};
use weft::{Bundle, Key, Node};

/// How many readings of the clock are timed.
const CLOCK_LOOKS: u32 = 1000;

/// The capability to look into other processes, in the kernel's masks (capabilities(7)).
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// A machine, a user and an environment. `None` means that the fact is unknown.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    pub kernel: String,
    /// The effective user.
    pub uid: u32,
    /// Variables of the environment that begin with `WEFT_`.
    pub variables: BTreeMap<String, String>,
    /// Why no bundle can be made, if that is so.
    pub failure: Option<String>,
    /// Whether a node has a helper, if it may have one.
    pub has_helper: bool,
    /// The addresses that names carry.
    pub addresses: Vec<Address>,
    /// Other addresses, and why names do not carry them.
    pub left_out: Vec<(Address, &'static str)>,
    /// Yama's restriction on looking into processes of the same user: 0 or `None` means unrestricted.
    pub ptrace_scope: Option<u32>,
    /// Whether this user may look into all processes anyway (CAP_SYS_PTRACE).
    pub may_trace: bool,
    /// Whether process_vm_readv works, as opposed to being filtered.
    pub reads_memory: bool,
    /// Whether the kernel interrupts other processes' threads for a barrier.
    pub has_barrier: bool,
    /// The maximum of a user's socket buffers: to receive, and to send.
    pub rmem_max: Option<u64>,
    pub wmem_max: Option<u64>,
    /// Whether the kernel lets this user exceed that maximum.
    pub may_force_buffers: bool,
    /// Whether the kernel segments and merges runs of packets.
    pub cuts_segments: bool,
    pub joins_segments: bool,
    /// Whether it sends long packets from the program's own pages.
    pub takes_pages: bool,
    /// CPUs that may be used.
    pub cpus: usize,
    /// CPUs' worth of time that the control group gives.
    pub quota: Option<f64>,
    /// Processes that wanted to run, averaged over the last minute.
    pub load: Option<f64>,
    /// The frequency governors of the CPUs, each once.
    pub governors: Vec<String>,
    pub clock_source: Option<String>,
    /// Nanoseconds per reading of the clock.
    pub clock_ns: f64,
    /// The limits of open descriptors: the soft and the hard one.
    pub files: [Option<u64>; 2],
    pub has_ucx: bool,
    /// The daemon that programs use, or the administrator's, if there is one.
    pub daemon: Option<DaemonFacts>,
}

/// A daemon.
#[derive(Clone, PartialEq, Debug)]
pub struct DaemonFacts {
    /// The daemon, for display.
    pub title: String,
    /// Whether programs use it.
    pub attaches: Attaches,
    /// Its answer, or why there was none.
    pub told: Result<(DaemonStatus, EndStatus), String>,
}

/// An address that names carry.
#[derive(Clone, PartialEq, Debug)]
pub struct Address {
    pub ip: IpAddr,
    pub interface: Option<String>,
    pub mtu: Option<u32>,
}

impl Facts {
    /// The facts of this machine.
    pub fn gather() -> Facts {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.to_string_lossy().into_owned();
            name.starts_with("WEFT_").then(|| (name, value.to_string_lossy().into_owned()))
        });
        let Trial { failure, has_helper, addresses } = Trial::make();
        let offers = |set: fn(&UdpSocket) -> bool| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).is_ok_and(|s| set(&s));
        let files = getrlimit(Resource::Nofile);
        let carried: Vec<IpAddr> = addresses.iter().map(|address| address.ip).collect();
        let left_out = status::left_out(&carried)
            .into_iter()
            .map(|(interface, ip, why)| (Address { ip, interface: Some(interface), mtu: None }, why.in_words()));
        Facts {
            kernel: word("/proc/sys/kernel/osrelease").unwrap_or_default(),
            uid: rustix::process::geteuid().as_raw(),
            variables: variables.collect(),
            failure,
            has_helper,
            addresses,
            left_out: left_out.collect(),
            ptrace_scope: word("/proc/sys/kernel/yama/ptrace_scope").and_then(|text| text.parse().ok()),
            may_trace: may_trace(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
            reads_memory: reads_memory(),
            has_barrier: membarrier_query().contains_command(MembarrierCommand::GlobalExpedited),
            rmem_max: number("/proc/sys/net/core/rmem_max"),
            wmem_max: number("/proc/sys/net/core/wmem_max"),
            may_force_buffers: offers(|s| rustix::net::sockopt::set_socket_recv_buffer_size_force(s, 64 << 10).is_ok()),
            cuts_segments: offers(|s| setsockopt(s, sockopt::UdpGsoSegment, &1200).is_ok()),
            joins_segments: offers(|s| setsockopt(s, sockopt::UdpGroSegment, &true).is_ok()),
            takes_pages: status::sends_pages(),
            cpus: allowed().map_or(0, |cpus| cpus.len()),
            quota: quota(),
            load: word("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
            governors: governors(),
            clock_source: word("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            clock_ns: clock_ns(),
            files: [files.current, files.maximum],
            has_ucx: runs("ucx_perftest"),
            daemon: daemon(),
        }
    }
}

/// The result of making a bundle as any program does.
struct Trial {
    failure: Option<String>,
    has_helper: bool,
    addresses: Vec<Address>,
}

impl Trial {
    fn make() -> Trial {
        let made = Node::new().and_then(|node| {
            let mut bundle = Bundle::new(&node)?;
            let endpoint = bundle.endpoint(Key(0))?;
            let address = bundle.name(endpoint)?.address;
            // Only a node with a helper can be looked at.
            let look = status::look(std::time::Duration::from_secs(1));
            let has_helper = look.is_ok_and(|look| look.processes.iter().any(|p| p.pid == Some(std::process::id())));
            let ip = |a: weft::HostAddress| IpAddr::V6(Ipv6Addr::from(a.ip)).to_canonical();
            Ok((has_helper, address.each().map(|a| describe(ip(a))).collect()))
        });
        match made {
            Ok((has_helper, addresses)) => Trial { failure: None, has_helper, addresses },
            Err(error) => Trial { failure: Some(error.to_string()), has_helper: false, addresses: Vec::new() },
        }
    }
}

fn describe(ip: IpAddr) -> Address {
    let found = status::interface_of(ip);
    let (interface, mtu) = found.map_or((None, None), |(name, mtu)| (Some(name), mtu));
    Address { ip, interface, mtu }
}

/// The daemon. An environment with bad settings has been found by making a bundle.
fn daemon() -> Option<DaemonFacts> {
    let found = status::look_at_daemon(Scope::Active, PATIENCE).ok().flatten()?;
    let title = title(&found);
    let told = found.answer.map(|answer| (answer.daemon, answer.end)).map_err(|silence| silence.to_string());
    Some(DaemonFacts { title, attaches: found.attaches, told })
}

/// The contents of a kernel file.
fn word(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

fn number(path: &str) -> Option<u64> {
    word(path)?.parse().ok()
}

/// The tightest quota of all control groups of this process.
fn quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = Path::new("/sys/fs/cgroup").join(own.trim_start_matches('/'));
    let bounds = own.ancestors().take_while(|path| path.starts_with("/sys/fs/cgroup"));
    bounds.filter_map(|group| parse_quota(&word(group.join("cpu.max"))?)).min_by(f64::total_cmp)
}

/// Parses `cpu.max`: time and period, or `max` for no limit.
fn parse_quota(text: &str) -> Option<f64> {
    let (time, period) = text.split_once(' ')?;
    let (time, period): (f64, f64) = (time.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then(|| time / period)
}

fn governors() -> Vec<String> {
    let cpus = allowed().unwrap_or_default();
    let governor = |cpu| word(format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"));
    let mut all: Vec<String> = cpus.into_iter().filter_map(governor).collect();
    all.sort();
    all.dedup();
    all
}

/// Whether a process with this status may look into all others.
fn may_trace(status: &str) -> bool {
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok()).is_some_and(|all| all & CAP_SYS_PTRACE != 0)
}

/// Whether a process can read even its own memory this way: not if a filter refuses the call.
fn reads_memory() -> bool {
    let (own, mut read) = ([7u8; 8], [0u8; 8]);
    let remote = [RemoteIoVec { base: own.as_ptr() as usize, len: own.len() }];
    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut read)], &remote).is_ok() && read == own
}

fn clock_ns() -> f64 {
    let begin = Instant::now();
    for _ in 0..CLOCK_LOOKS {
        std::hint::black_box(Instant::now());
    }
    begin.elapsed().as_nanos() as f64 / f64::from(CLOCK_LOOKS)
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_control_groups_are_read() {
        assert_eq!(parse_quota("150000 100000"), Some(1.5));
        for text in ["max 100000", "", "1", "1 0", "x y"] {
            assert_eq!(parse_quota(text), None, "{text}");
        }
    }

    #[test]
    fn the_right_to_trace_is_read() {
        assert!(may_trace("Name:\tweft\nCapEff:\t0000000000080000\n"));
        for text in ["CapEff:\t0000000000040000\n", "CapPrm:\t0000000000080000\n", "CapEff:\tx\n", ""] {
            assert!(!may_trace(text), "{text}");
        }
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = Facts::gather();
        assert!(facts.cpus > 0 && facts.clock_ns > 0.0 && !facts.kernel.is_empty(), "{facts:?}");
        assert_eq!(facts.failure, None);
    }
}
