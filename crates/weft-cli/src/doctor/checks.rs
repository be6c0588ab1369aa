//! The checks of a machine: each is a function of its facts.

use super::facts::{Address, DaemonFacts, Facts};
use crate::daemon::quota_in_words;
use serde::Serialize;
use weft::status::{self, Attaches, DaemonStatus};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Something optional is missing.
    Missing,
    /// It costs speed.
    Speed,
    /// It costs safety: messages may be lost because a live peer is taken for dead, or access differs from what the user expects.
    Safety,
    /// weft does not work.
    Broken,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub level: Level,
    /// The state found.
    pub found: String,
    /// What it costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// What fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// A check of a machine.
type Check = fn(&Facts) -> Verdict;

/// The result of one check; the name is beside it in [`CHECKS`].
struct Verdict {
    level: Level,
    found: String,
    cost: Option<String>,
    mend: Option<String>,
}

/// All checks, in order of output.
const CHECKS: [(&str, Check); 18] = [
    ("bundle", bundle),
    ("user", user),
    ("variables", variables),
    ("helper", helper),
    ("memory path", memory_path),
    ("trust", trust),
    ("network", network),
    ("mtu", mtu),
    ("socket buffers", socket_buffers),
    ("segments", segments),
    ("wake-ups", wake_ups),
    ("cpus", cpus),
    ("load", load),
    ("frequency", frequency),
    ("clock", clock),
    ("descriptors", descriptors),
    ("weftd", weftd),
    ("ucx", ucx),
];

/// The results of all checks.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let finding = |&(check, run): &(&'static str, Check)| {
        let Verdict { level, found, cost, mend } = run(facts);
        Finding { check, level, found, cost, mend }
    };
    CHECKS.iter().map(finding).collect()
}

/// The user ID that the kernel shows for all users that a user namespace does not map.
const OVERFLOW_USER: u32 = 65534;

/// The least bound on receive buffers that has room for a window of 512 KiB. The kernel counts its own overhead as well.
const RMEM_WANTED: u64 = 512 << 10;

/// Room in a send buffer for a run of 64 KiB and the next one.
const WMEM_WANTED: u64 = 128 << 10;

/// The packet size that every IPv6 host must carry; smaller packets cost more of them.
const MTU_WANTED: u32 = 1280;

/// Reading the clock without a system call takes some 20 to 60 ns.
const CLOCK_MOST_NS: f64 = 150.0;

/// Descriptors that a process has before its first peer, and descriptors per peer on the same host.
const FILES_BASE: u64 = 20;
const FILES_EACH: u64 = 2;

/// Descriptors that are enough for many peers.
const FILES_WANTED: u64 = 1024;

/// The variables that weft reads.
const VARIABLES: [&str; 14] = [
    "WEFT_ADDR",
    "WEFT_PORT",
    "WEFT_SUSPICION",
    "WEFT_LINGER",
    "WEFT_CONGESTION",
    "WEFT_INTEGRITY",
    "WEFT_HELPER",
    "WEFT_LOCAL",
    "WEFT_NI",
    "WEFT_TRUST",
    "WEFT_SERVICE",
    "WEFT_SEND_BUFFER",
    "WEFT_QUIET",
    "WEFT_LIMITS",
];

fn ok(found: impl Into<String>) -> Verdict {
    Verdict { level: Level::Ok, found: found.into(), cost: None, mend: None }
}

fn bad(level: Level, found: impl Into<String>, cost: impl Into<String>, mend: impl Into<String>) -> Verdict {
    Verdict { level, found: found.into(), cost: Some(cost.into()), mend: Some(mend.into()) }
}

fn bundle(facts: &Facts) -> Verdict {
    match &facts.failure {
        None => ok(format!("a bundle can be made (Linux {})", facts.kernel)),
        Some(failure) => {
            bad(Level::Broken, failure, "no program can use weft like this", "follow the advice in that line")
        }
    }
}

fn user(facts: &Facts) -> Verdict {
    match facts.uid {
        OVERFLOW_USER => bad(
            Level::Broken,
            format!("user {OVERFLOW_USER}, which stands for all users that this user namespace does not map"),
            "each process on this host counts as another user's, even one with the same user ID, and `weft status` shows none",
            "run as a user of its own (docker run --user 1000; setpriv --reuid 1000 --clear-groups COMMAND)",
        ),
        uid => ok(format!("user {uid}")),
    }
}

fn variables(facts: &Facts) -> Verdict {
    let unknown: Vec<&str> =
        facts.variables.keys().map(String::as_str).filter(|name| !VARIABLES.contains(name)).collect();
    if !unknown.is_empty() {
        return bad(
            Level::Missing,
            format!("{} set", unknown.join(", ")),
            "weft ignores this unknown variable",
            format!("unset it, or write one of {}", VARIABLES.join(", ")),
        );
    }
    let says_neither = |value: &&String| !value.is_empty() && status::switch(value).is_none();
    let odd: Vec<String> = ["WEFT_HELPER", "WEFT_LOCAL", "WEFT_TRUST", "WEFT_SERVICE", "WEFT_QUIET"]
        .iter()
        .filter_map(|name| Some(format!("{name}={}", facts.variables.get(*name).filter(says_neither)?)))
        .collect();
    if !odd.is_empty() {
        return bad(
            Level::Broken,
            odd.join(", "),
            "it is neither on nor off, so no node can be made",
            "set it to on or off, or unset it",
        );
    }
    let set: Vec<String> = facts.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    ok(if set.is_empty() { "none set".to_owned() } else { set.join(", ") })
}

/// Whether a variable is set to off.
fn is_off(facts: &Facts, name: &str) -> bool {
    facts.variables.get(name).is_some_and(|value| status::switch(value) == Some(false))
}

fn helper(facts: &Facts) -> Verdict {
    let cost = "while a program computes, nothing is acknowledged or sent again, and after 3 s its peers on other hosts take it for \
                dead; polls make system calls; `weft status` cannot look at it";
    if is_off(facts, "WEFT_HELPER") {
        return bad(Level::Safety, "WEFT_HELPER=off", cost, "unset WEFT_HELPER");
    }
    // The overflow user may not ask its own node for its state.
    match facts.has_helper || facts.failure.is_some() || facts.uid == OVERFLOW_USER {
        true => ok("nodes have a helper thread"),
        false => bad(Level::Safety, "the helper thread could not be started", cost, "ulimit -u 4096; ulimit -n 1024"),
    }
}

fn memory_path(facts: &Facts) -> Verdict {
    match is_off(facts, "WEFT_LOCAL") {
        true => bad(
            Level::Speed,
            "WEFT_LOCAL=off",
            "processes on this host talk over UDP, which takes microseconds instead of fractions of one",
            "unset WEFT_LOCAL",
        ),
        false => ok("processes of one host talk through memory"),
    }
}

fn trust(facts: &Facts) -> Verdict {
    let cost = "processes of one user may not read each other's memory, so they are foreign to each other: each payload is copied \
                before it is looked at";
    if is_off(facts, "WEFT_TRUST") {
        return bad(Level::Speed, "WEFT_TRUST=off", cost, "unset WEFT_TRUST, if you trust your own processes");
    }
    if !facts.reads_memory {
        let mend = "a seccomp profile that allows process_vm_readv(2) (docker run --cap-add SYS_PTRACE)";
        return bad(Level::Speed, "process_vm_readv is refused", cost, mend);
    }
    match facts.ptrace_scope {
        Some(scope @ 1..) if !facts.may_trace => {
            let mend = "sudo sysctl -w kernel.yama.ptrace_scope=0, if you trust your own processes (it lets debuggers in as well)";
            bad(Level::Speed, format!("kernel.yama.ptrace_scope is {scope}"), cost, mend)
        }
        _ => ok("processes of this user may read each other's memory, and trust each other"),
    }
}

fn network(facts: &Facts) -> Verdict {
    let told: Vec<String> = facts.addresses.iter().map(in_words).collect();
    if facts.variables.get("WEFT_ADDR").is_some_and(|value| value == "none") {
        return bad(Level::Missing, "WEFT_ADDR=none", "only processes on this host are reached", "unset WEFT_ADDR");
    }
    if told.is_empty() {
        let cost = "only processes on this host are reached: no interface has an address that others could reach";
        return bad(Level::Missing, "no address", cost, "ip link set dev INTERFACE up, or export WEFT_ADDR=ADDRESS");
    }
    if facts.addresses.iter().all(|address| address.ip.is_loopback()) {
        let cost = "names carry only the loopback address, at which no other host can reach this one";
        return bad(
            Level::Missing,
            told.join(", "),
            cost,
            "unset WEFT_ADDR, or set it to an address that `ip addr` lists",
        );
    }
    let carried = match facts.variables.get("WEFT_PORT") {
        Some(port) => format!("names carry {}, port {port}", told.join(", ")),
        None => format!(
            "names carry {}, any free port; behind a firewall set WEFT_PORT and open that for UDP",
            told.join(", ")
        ),
    };
    let left_out = facts.left_out.iter().map(|(address, why)| format!("; not {}: {why}", in_words(address)));
    ok(carried + &left_out.collect::<String>())
}

fn in_words(address: &Address) -> String {
    match &address.interface {
        Some(interface) => format!("{} ({interface})", address.ip),
        None => address.ip.to_string(),
    }
}

fn mtu(facts: &Facts) -> Verdict {
    let known = || facts.addresses.iter().filter_map(|a| Some((a.interface.as_deref()?, a.mtu?)));
    if let Some((interface, mtu)) = known().find(|(_, mtu)| *mtu < MTU_WANTED) {
        return bad(
            Level::Speed,
            format!("{interface} carries packets of {mtu} bytes"),
            "small packets cost speed: a message takes more of them, and each costs the same",
            format!("sudo ip link set dev {interface} mtu 1500 (if the network behind it carries that)"),
        );
    }
    let told: Vec<String> = known().map(|(interface, mtu)| format!("{interface} {mtu}")).collect();
    ok(if told.is_empty() { "not known".to_owned() } else { told.join(", ") })
}

fn socket_buffers(facts: &Facts) -> Verdict {
    let kib = |bytes: Option<u64>| bytes.map_or("not known".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    let found = format!("at most {} to receive, {} to send", kib(facts.rmem_max), kib(facts.wmem_max));
    if facts.may_force_buffers || facts.addresses.is_empty() {
        return ok(format!(
            "{found}; {}",
            if facts.addresses.is_empty() { "no network" } else { "this user may have more" }
        ));
    }
    let small = |most: Option<u64>, wanted| most.is_some_and(|bytes| bytes < wanted);
    match (small(facts.rmem_max, RMEM_WANTED), small(facts.wmem_max, WMEM_WANTED)) {
        (false, false) => ok(found),
        (receive, _) => bad(
            Level::Speed,
            found,
            match receive {
                true => "a sender has less than 512 KiB under way to this host, and bursts from several are lost and retransmitted",
                false => "the kernel takes fewer packets at once",
            },
            "sudo sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304 (and a file in /etc/sysctl.d to keep it)",
        ),
    }
}

fn segments(facts: &Facts) -> Verdict {
    let mend = "a newer kernel (sudo apt-get install linux-image-generic; uname -r says which runs)";
    let lacks = [(facts.cuts_segments, "UDP_SEGMENT (Linux 4.18)"), (facts.joins_segments, "UDP_GRO (Linux 5.0)")];
    let lacks: Vec<&str> = lacks.iter().filter(|(has, _)| !has).map(|(_, what)| *what).collect();
    if !lacks.is_empty() {
        return bad(Level::Speed, format!("no {}", lacks.join(", no ")), "each packet costs a system call", mend);
    }
    match facts.takes_pages {
        true => ok("runs of packets go and come with one call (UDP_SEGMENT, UDP_GRO), long ones without a copy"),
        false => bad(
            Level::Speed,
            format!("Linux {} does not send packets from a program's pages (6.5 does)", facts.kernel),
            "each long message to another host is copied once more; without the copy, 64 KiB messages reach 1.3 times the bandwidth",
            mend,
        ),
    }
}

fn wake_ups(facts: &Facts) -> Verdict {
    match facts.has_barrier {
        true => ok("sleeping processes are woken at once (membarrier)"),
        false => bad(
            Level::Speed,
            "no membarrier (MEMBARRIER_CMD_GLOBAL_EXPEDITED)",
            "a sleeping process looks every millisecond, since a wakeup may be missed",
            "Linux 4.16 or newer with CONFIG_MEMBARRIER; in a container a seccomp profile that allows membarrier(2)",
        ),
    }
}

fn cpus(facts: &Facts) -> Verdict {
    let cost = "two processes that talk take turns: a message waits until its receiver gets to run";
    match (facts.cpus, facts.quota) {
        (0 | 1, _) => {
            let mend = "give the machine, the container or `taskset` a second CPU";
            bad(Level::Speed, format!("{} CPU may be used", facts.cpus), cost, mend)
        }
        (cpus, Some(quota)) if quota < 2.0 => bad(
            Level::Speed,
            format!("{cpus} CPUs, but the control group gives the time of {quota} (cpu.max)"),
            "a process that polls uses this up, and is then stopped until the next period",
            "docker run --cpus 2, or CPUQuota=200% in the unit, or more",
        ),
        (cpus, _) => ok(format!("{cpus} CPUs may be used")),
    }
}

fn load(facts: &Facts) -> Verdict {
    match facts.load {
        Some(load) if load >= facts.cpus as f64 => bad(
            Level::Speed,
            format!("{load} processes wanted to run, on average over the last minute, on {} CPUs", facts.cpus),
            "messages wait while other processes have the CPU, and measurements are unreliable now",
            "end processes that need not run: `top` shows them",
        ),
        Some(load) => ok(format!("{load} in the last minute")),
        None => ok("not known"),
    }
}

fn frequency(facts: &Facts) -> Verdict {
    let slow: Vec<&str> =
        facts.governors.iter().map(String::as_str).filter(|governor| *governor != "performance").collect();
    match &slow[..] {
        [] if facts.governors.is_empty() => ok("this machine does not choose it"),
        [] => ok("performance"),
        slow => bad(
            Level::Speed,
            format!("CPUs choose their speed by {}", slow.join(", ")),
            "an idle CPU starts slowly, so the first messages after a pause take longer",
            "sudo cpupower frequency-set -g performance",
        ),
    }
}

fn clock(facts: &Facts) -> Verdict {
    let source = facts.clock_source.as_deref().unwrap_or("not known");
    let found = format!("{source}: {:.0} ns per reading", facts.clock_ns);
    match facts.clock_ns > CLOCK_MOST_NS {
        true => bad(
            Level::Speed,
            found,
            "reading the clock takes a system call or longer, and weft reads it for every packet and every wait",
            "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource (if available_clocksource has it)",
        ),
        false => ok(found),
    }
}

fn descriptors(facts: &Facts) -> Verdict {
    let [soft, hard] = facts.files;
    let Some(soft) = soft else { return ok("no limit") };
    let peers = soft.saturating_sub(FILES_BASE) / FILES_EACH;
    let found = format!("a process may open {soft}: about {peers} peers of its host");
    if soft >= FILES_WANTED {
        return ok(found);
    }
    let wanted = hard.unwrap_or(FILES_WANTED).min(FILES_WANTED);
    let mend = match wanted > soft {
        true => format!("ulimit -n {wanted}"),
        false => format!("have root raise the limit: sudo prlimit --pid $$ --nofile={FILES_WANTED}"),
    };
    bad(Level::Missing, found, "further peers are refused with *no room*", mend)
}

fn weftd(facts: &Facts) -> Verdict {
    let Some(found) = &facts.daemon else { return ok("no daemon: each process is its own network interface") };
    let by_themselves = "programs of this user do not use it by themselves: each is its own network interface";
    if let Attaches::Distrusted { because, mend } = &found.attaches {
        return bad(Level::Missing, format!("not trusted: {because}"), by_themselves, mend);
    }
    let (daemon, end) = match &found.told {
        Ok(told) => told,
        Err(silence) => return silent_daemon(found, silence),
    };
    let DaemonStatus { weft, frames, frames_used, degraded, endpoints, limits, .. } = daemon;
    let attaches = match &found.attaches {
        Attaches::Told => "programs use it, as WEFT_NI says",
        Attaches::ByThemselves => "programs use it by themselves",
        Attaches::Forbidden | Attaches::Distrusted { .. } => "programs do not use it: WEFT_NI=process",
    };
    let limits: Vec<String> = limits.iter().map(quota_in_words).collect();
    let all = format!(
        "{}: version {weft}, {attaches}; {frames_used} of {frames} frames in use, {endpoints} endpoints; held: {}",
        found.title,
        limits.join(", ")
    );
    if weft != env!("CARGO_PKG_VERSION") {
        let found = format!("{}: version {weft}, but this weft is {}", found.title, env!("CARGO_PKG_VERSION"));
        return bad(
            Level::Missing,
            found,
            "programs of another version may be refused",
            "install the same version of both",
        );
    }
    if !degraded.is_empty() {
        return bad(
            Level::Speed,
            all,
            degraded.join("; "),
            "see the log of weftd for the reason, and docs/weftd.md for what helps",
        );
    }
    if end.waiting > 0 && frames_used == frames {
        let cost = format!("{} endpoints with something to do wait for a frame", end.waiting);
        return bad(Level::Speed, all, cost, format!("frames = {} in /etc/weftd/weftd.toml", frames.saturating_mul(2)));
    }
    ok(all)
}

/// The finding if the daemon does not answer.
fn silent_daemon(found: &DaemonFacts, silence: &str) -> Verdict {
    let said = format!("{}: {silence}", found.title);
    match found.attaches {
        Attaches::Told => {
            let mend = "weftd --foreground --socket PATH with the path of WEFT_NI, or unset WEFT_NI";
            bad(Level::Broken, said, "no program of this user gets a bundle: WEFT_NI wants this daemon", mend)
        }
        _ => {
            let mend = "sudo systemctl restart weftd, or sudo weftd --foreground";
            bad(Level::Missing, said, "programs do without it: each is its own network interface", mend)
        }
    }
}

fn ucx(facts: &Facts) -> Verdict {
    match facts.has_ucx {
        true => ok("ucx_perftest is there to compare with"),
        false => bad(
            Level::Missing,
            "no ucx_perftest",
            "`weft bench` leaves UCX out; nothing else needs it",
            "sudo apt-get install -y ucx-utils",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft::status::EndStatus;

    /// A daemon that serves; `change` breaks something.
    fn daemon(change: fn(&mut DaemonStatus, &mut EndStatus)) -> DaemonFacts {
        let weft = env!("CARGO_PKG_VERSION").to_owned();
        let mut daemon = DaemonStatus { weft, frames: 8, frames_used: 1, ..DaemonStatus::default() };
        let mut end = EndStatus::default();
        change(&mut daemon, &mut end);
        DaemonFacts { title: "weftd".into(), attaches: Attaches::ByThemselves, told: Ok((daemon, end)) }
    }

    fn distrusted() -> DaemonFacts {
        let (because, mend) = ("others may write to /run/weftd".to_owned(), "sudo chmod go-w /run/weftd".to_owned());
        DaemonFacts { attaches: Attaches::Distrusted { because, mend }, ..daemon(|_, _| ()) }
    }

    fn silent(attaches: Attaches) -> DaemonFacts {
        DaemonFacts { attaches, told: Err("nobody listens".into()), ..daemon(|_, _| ()) }
    }

    #[test]
    fn a_daemon_that_serves_is_told_with_its_frames_and_none_is_no_fault() {
        let facts = Facts { daemon: Some(daemon(|_, _| ())), ..good() };
        let all = examine(&facts);
        let found = all.iter().find(|found| found.check == "weftd").expect("the check is there");
        assert!(found.level == Level::Ok && found.found.contains("1 of 8 frames in use"), "{found:?}");
        let all = examine(&good());
        assert!(all.iter().any(|found| found.check == "weftd" && found.found.contains("no daemon")), "{all:?}");
    }

    /// A machine without any fault.
    fn good() -> Facts {
        Facts {
            kernel: "6.18.0".into(),
            uid: 1000,
            variables: Default::default(),
            failure: None,
            has_helper: true,
            addresses: vec![Address { ip: [10, 0, 0, 1].into(), interface: Some("eth0".into()), mtu: Some(1500) }],
            left_out: Vec::new(),
            ptrace_scope: Some(0),
            may_trace: false,
            reads_memory: true,
            has_barrier: true,
            rmem_max: Some(4 << 20),
            wmem_max: Some(4 << 20),
            may_force_buffers: false,
            cuts_segments: true,
            joins_segments: true,
            takes_pages: true,
            cpus: 2,
            quota: None,
            load: Some(0.5),
            governors: Vec::new(),
            clock_source: Some("tsc".into()),
            clock_ns: 30.0,
            files: [Some(1024), Some(1 << 20)],
            has_ucx: true,
            daemon: None,
        }
    }

    /// The only finding on a machine with this one fault: all other checks pass.
    fn only(change: impl FnOnce(&mut Facts)) -> Finding {
        let mut facts = good();
        change(&mut facts);
        let mut bad: Vec<Finding> = examine(&facts).into_iter().filter(|f| f.level != Level::Ok).collect();
        assert_eq!(bad.len(), 1, "{bad:#?}");
        let found = bad.remove(0);
        assert!(found.cost.is_some() && found.mend.is_some(), "{found:?}");
        found
    }

    fn set(facts: &mut Facts, name: &str, value: &str) {
        facts.variables.insert(name.into(), value.into());
    }

    #[test]
    fn a_machine_that_has_everything_is_found_so() {
        let all = examine(&good());
        assert!(all.iter().all(|f| f.level == Level::Ok && f.cost.is_none() && f.mend.is_none()), "{all:#?}");
        assert_eq!(all.len(), CHECKS.len());
    }

    #[test]
    fn every_variable_that_the_documents_tell_of_is_known() {
        let page = include_str!("../../../../docs/hosts.md");
        let told = page.lines().filter_map(|line| line.strip_prefix("| `WEFT_")?.split_once('`'));
        let told: Vec<String> = told.map(|(name, _)| format!("WEFT_{name}")).collect();
        assert!(told.len() >= 6, "{told:?}");
        for name in told {
            assert!(VARIABLES.contains(&&*name), "{name}");
        }
    }

    /// Each fault is found by its own check, with a command that fixes it, and by no other check.
    #[test]
    fn each_fault_is_found_by_its_own_check() {
        use Level::{Broken, Missing, Safety, Speed};
        type Change = fn(&mut Facts);
        let faults: [(&str, Level, &str, Change); 35] = [
            ("bundle", Broken, "follow the advice", |f| f.failure = Some("cannot make a socket".into())),
            ("user", Broken, "setpriv", |f| (f.uid, f.has_helper) = (65534, false)),
            ("variables", Missing, "WEFT_ADDR", |f| set(f, "WEFT_ADDRESS", "10.0.0.1")),
            ("variables", Broken, "on or off", |f| set(f, "WEFT_HELPER", "of")),
            ("variables", Broken, "on or off", |f| set(f, "WEFT_LOCAL", "maybe")),
            ("helper", Safety, "unset WEFT_HELPER", |f| set(f, "WEFT_HELPER", "off")),
            ("helper", Safety, "ulimit -u", |f| f.has_helper = false),
            ("memory path", Speed, "unset WEFT_LOCAL", |f| set(f, "WEFT_LOCAL", "off")),
            ("trust", Speed, "unset WEFT_TRUST", |f| set(f, "WEFT_TRUST", "no")),
            ("trust", Speed, "unset WEFT_TRUST", |f| set(f, "WEFT_TRUST", "off")),
            ("trust", Speed, "seccomp", |f| f.reads_memory = false),
            ("trust", Speed, "ptrace_scope=0", |f| f.ptrace_scope = Some(1)),
            ("network", Missing, "unset WEFT_ADDR", |f| set(f, "WEFT_ADDR", "none")),
            ("network", Missing, "ip link set", |f| f.addresses.clear()),
            ("network", Missing, "unset WEFT_ADDR", |f| f.addresses[0].ip = [127, 0, 0, 1].into()),
            ("mtu", Speed, "ip link set dev eth0 mtu 1500", |f| f.addresses[0].mtu = Some(1000)),
            ("socket buffers", Speed, "net.core.rmem_max=4194304", |f| f.rmem_max = Some(212_992)),
            ("socket buffers", Speed, "net.core.wmem_max=4194304", |f| f.wmem_max = Some(64 << 10)),
            ("segments", Speed, "newer kernel", |f| f.cuts_segments = false),
            ("segments", Speed, "newer kernel", |f| f.joins_segments = false),
            ("segments", Speed, "newer kernel", |f| f.takes_pages = false),
            ("wake-ups", Speed, "seccomp", |f| f.has_barrier = false),
            ("cpus", Speed, "taskset", |f| (f.cpus, f.load) = (1, None)),
            ("cpus", Speed, "--cpus", |f| f.quota = Some(1.5)),
            ("load", Speed, "top", |f| f.load = Some(2.0)),
            ("frequency", Speed, "cpupower", |f| f.governors = vec!["performance".into(), "powersave".into()]),
            ("clock", Speed, "clocksource", |f| f.clock_ns = 900.0),
            ("descriptors", Missing, "ulimit -n 1024", |f| f.files[0] = Some(256)),
            ("descriptors", Missing, "prlimit", |f| f.files = [Some(256); 2]),
            ("weftd", Missing, "chmod go-w", |f| f.daemon = Some(distrusted())),
            ("weftd", Missing, "weftd --foreground", |f| f.daemon = Some(silent(Attaches::ByThemselves))),
            ("weftd", Broken, "weftd --foreground", |f| f.daemon = Some(silent(Attaches::Told))),
            ("weftd", Missing, "same version", |f| f.daemon = Some(daemon(|d, _| d.weft = "0.0.1".into()))),
            ("weftd", Speed, "log of weftd", |f| f.daemon = Some(daemon(|d, _| d.degraded = vec!["no port".into()]))),
            ("weftd", Speed, "frames = 16", |f| {
                f.daemon = Some(daemon(|d, end| (d.frames_used, end.waiting) = (8, 3)));
            }),
        ];
        for (check, level, mend, change) in faults {
            let found = only(change);
            assert_eq!((found.check, found.level), (check, level), "{found:?}");
            assert!(found.mend.as_ref().is_some_and(|m| m.contains(mend)), "{mend}: {found:?}");
        }
        assert_eq!(only(|f| f.has_ucx = false).check, "ucx");
        let checked: std::collections::BTreeSet<&str> = faults.iter().map(|f| f.0).chain(["ucx"]).collect();
        assert_eq!(checked.len(), CHECKS.len(), "a check without a fault that it finds");
    }

    #[test]
    fn what_does_not_matter_is_not_found() {
        let mut facts = good();
        (facts.rmem_max, facts.may_force_buffers) = (Some(212_992), true);
        facts.governors = vec!["performance".into()];
        facts.quota = Some(2.0);
        facts.files = [None, None];
        (facts.ptrace_scope, facts.may_trace) = (Some(2), true);
        set(&mut facts, "WEFT_PORT", "4000-4099");
        let all = examine(&facts);
        assert!(all.iter().all(|f| f.level == Level::Ok), "{all:#?}");
    }
}
