//! The cost of a message between two hosts: system calls and instructions of each side. They are counted in the example
//! `count_hosts`. Its two sides are bundles of one thread that take turns, over the loopback interface of a network namespace, so
//! that packets can have any size. The congestion window is fixed and the helper is off, so that the counts do not depend on the
//! time that counting takes.
#![cfg(target_os = "linux")]

mod support;

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use support::calls::call_that_begins;
use support::counted::{collected, counted_example, CALLGRIND};
use support::{left_out, turn};

/// Messages that are counted.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    bytes: u32,
    mtu: u32,
}

const STREAM: Kind = Kind { name: "stream", bytes: 64 << 10, mtu: 1500 };
const JUMBO_STREAM: Kind = Kind { mtu: 9000, ..STREAM };
const MEDIUM: Kind = Kind { name: "echo", bytes: 8 << 10, mtu: 1500 };
const SMALL: Kind = Kind { bytes: 16, ..MEDIUM };

/// The environment of the processes.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("WEFT_ADDR", "127.0.0.1"),
    ("WEFT_LOCAL", "off"),
    ("WEFT_HELPER", "off"),
    ("WEFT_LINGER", "0"),
    ("WEFT_CONGESTION", "fixed"),
];

/// A command in a namespace whose loopback interface carries packets of this size, if this user may make one.
fn between_hosts(kind: Kind, program: &[&str], count: u32) -> Option<Command> {
    let script = format!("ip link set lo mtu {} && ip link set lo up && exec \"$@\"", kind.mtu);
    let ways: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];
    let works = |way: &&[&str]| Command::new("unshare").args(*way).args(["sh", "-c", &script, "sh", "true"]).status();
    let way = ways.into_iter().find(|way| works(way).is_ok_and(|status| status.success()))?;
    let mut command = Command::new("unshare");
    command.args(way).args(["sh", "-c", &script, "sh"]).args(program).args([kind.name, &count.to_string()]);
    command.arg(kind.bytes.to_string()).envs(ENVIRONMENT);
    Some(command)
}

/// System calls of the client and of the server for each message, without those made once per tick of the clock. `None` where they
/// cannot be counted.
fn calls(kind: Kind, count: u32) -> Option<[f64; 2]> {
    let example = counted_example("count_hosts");
    let mut child = between_hosts(kind, &[example.to_str()?], count)?.stdout(Stdio::null()).spawn().ok()?;
    let tracee = Pid::from_raw(child.id() as i32);
    ptrace::seize(tracee, ptrace::Options::PTRACE_O_TRACESYSGOOD).ok()?;
    ptrace::interrupt(tracee).ok()?;
    let mut numbers = Vec::new();
    loop {
        let signal = match waitpid(tracee, Some(WaitPidFlag::__WALL)).expect("a child") {
            WaitStatus::Exited(_, status) => {
                assert_eq!(status, 0, "the example");
                break;
            }
            WaitStatus::PtraceSyscall(_) => {
                numbers.extend(call_that_begins(tracee).map(|number| number as i64));
                None
            }
            WaitStatus::Stopped(_, signal) if signal != Signal::SIGTRAP => Some(signal),
            WaitStatus::Signaled(_, signal, _) => panic!("{signal} ended the example"),
            _ => None,
        };
        ptrace::syscall(tracee, signal).expect("it is stopped");
    }
    let _ = child.wait();
    Some(of_each_message(kind, count, &numbers))
}

/// Only the second half of the messages counts, when everything has settled.
fn of_each_message(kind: Kind, count: u32, numbers: &[i64]) -> [f64; 2] {
    let is_mark = |number: &i64| [libc::SYS_getppid, libc::SYS_getpgid].contains(number);
    let marks: Vec<usize> = (0..numbers.len()).filter(|&at| is_mark(&numbers[at])).collect();
    let (first, last) = (marks[marks.len() / 2], marks[marks.len() - 1]);
    let mut sides = [BTreeMap::new(), BTreeMap::new()];
    let mut side = 0;
    for number in &numbers[first..last] {
        match *number {
            libc::SYS_getppid => side = 0,
            libc::SYS_getpgid => side = 1,
            // These check that a descriptor is still ours, once per tick.
            libc::SYS_fcntl | libc::SYS_fstat => {}
            number => *sides[side].entry(number).or_insert(0u32) += 1,
        }
    }
    eprintln!("{kind:?}: system calls by their numbers, of {} messages: {sides:?}", count / 2);
    sides.map(|calls| f64::from(calls.values().sum::<u32>()) / f64::from(count / 2))
}

/// Instructions of both sides for each message: the difference between many messages and few.
fn instructions(kind: Kind, few: u32, many: u32) -> Option<f64> {
    let example = counted_example("count_hosts");
    let mut program = vec!["valgrind"];
    program.extend(CALLGRIND);
    program.push(example.to_str()?);
    let [few_took, many_took] = [few, many].map(|count| between_hosts(kind, &program, count).map(collected));
    Some((many_took? - few_took?) as f64 / f64::from(many - few))
}

fn expect_calls(kind: Kind, count: u32, most: [f64; 2]) {
    let _turn = turn("system calls between hosts");
    let Some(calls) = calls(kind, count) else {
        return left_out("system calls between hosts: no network namespace, or nobody may be traced");
    };
    eprintln!("{kind:?}: {calls:.3?} system calls, client and server");
    assert!(calls.iter().all(|calls| *calls >= 0.9), "{kind:?}: {calls:?}, so something was not counted");
    assert!(calls[0] <= most[0] && calls[1] <= most[1], "{kind:?}: {calls:?} system calls, at most {most:?}");
}

fn expect_instructions(kind: Kind, [few, many]: [u32; 2], most: f64) {
    let _turn = turn("instructions between hosts");
    if cfg!(debug_assertions) {
        return left_out("instructions between hosts: they are counted in release builds");
    }
    let Some(took) = instructions(kind, few, many) else {
        return left_out("instructions between hosts: no network namespace");
    };
    eprintln!("{kind:?}: {took:.0} instructions");
    assert!(took <= most, "{kind:?}: {took:.0} instructions, at most {most}");
}

#[test]
fn a_stream_takes_few_system_calls_for_64_kib() {
    expect_calls(STREAM, 4000, [2.0, 2.0]);
}

#[test]
fn a_stream_of_large_packets_takes_few_system_calls_for_64_kib() {
    expect_calls(JUMBO_STREAM, 4000, [2.0, 2.0]);
}

#[test]
fn a_medium_request_with_its_reply_takes_few_system_calls() {
    expect_calls(MEDIUM, 2000, [3.3, 3.3]);
}

#[test]
fn a_small_request_with_its_reply_takes_few_system_calls() {
    expect_calls(SMALL, 2000, [3.3, 3.3]);
}

#[test]
fn a_small_request_with_its_reply_takes_few_instructions() {
    expect_instructions(SMALL, [500, 2500], 13_600.0);
}

#[test]
fn a_medium_request_with_its_reply_takes_few_instructions() {
    expect_instructions(MEDIUM, [300, 1300], 46_500.0);
}

#[test]
fn a_stream_takes_few_instructions_for_64_kib() {
    expect_instructions(STREAM, [200, 800], 136_000.0);
}

/// Checks the counting: a side that makes too many calls is noticed.
#[test]
fn calls_are_told_apart_by_their_side() {
    let [client, server, send] = [libc::SYS_getppid, libc::SYS_getpgid, libc::SYS_sendto];
    // Two rounds of which the second one counts, up to the last mark.
    let round = [client, send, server, send, send, libc::SYS_fcntl];
    let numbers = [&round[..], &round[..], &[client][..]].concat();
    assert_eq!(of_each_message(SMALL, 2, &numbers), [1.0, 2.0]);
}
