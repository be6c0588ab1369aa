//! Programs, and a host that runs short of resources, can neither make the daemon fill its log nor make it loop for nothing.

use crate::daemon::{attach, connect, weftd, Daemon, Folder, BOUND, SMALL};
use rustix::net::{self, SendFlags};
use rustix::process::{getrlimit, prlimit, Pid, Resource, Rlimit, Signal};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weft_wire::attach::{Message, MESSAGE_BYTES};
use weft_wire::Reason;

#[test]
fn programs_that_break_the_protocol_do_not_fill_the_log() {
    const CALLS: u64 = 300;
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    let begin = Instant::now();
    for _ in 0..CALLS {
        let caller = connect(&folder.at("socket"));
        net::send(&caller, &Message::Mapped.to_bytes(), SendFlags::empty()).expect("sent");
        // Wait for the refusal before the next call: the daemon keeps only few callers that are not attached.
        net::recv(&caller, &mut [0; 256][..], net::RecvFlags::empty()).expect("an answer");
    }
    let (mut lines, mut counted) = (0, 0);
    while lines + counted < CALLS {
        let line = daemon.hear("refused");
        match line.split(" more lines").next().filter(|before| *before != line) {
            Some(before) => counted += before.rsplit(' ').next().expect("a word").parse::<u64>().expect("a number"),
            None => lines += 1,
        }
    }
    assert_eq!(lines + counted, CALLS, "none is forgotten");
    let most = begin.elapsed().as_secs() + 1;
    assert!(lines <= most, "{lines} lines, and at most {most} are allowed");
}

#[test]
fn a_daemon_without_descriptors_says_so_waits_and_goes_on() {
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    let of_proc = |file: &str| format!("/proc/{}/{file}", daemon.child.id());
    let has_open = std::fs::read_dir(of_proc("fd")).expect("it runs").count() as u64;
    // Lowers only the soft limit: the hard limit is also this process's.
    let short = Rlimit { current: Some(has_open), maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(Some(daemon.pid()), Resource::Nofile, short).expect("a process of this user");
    let callers: Vec<OwnedFd> = (0..20).map(|_| connect(&folder.at("socket"))).collect();
    let said = daemon.hear("cannot accept programs");
    assert!(said.contains("LimitNOFILE"), "{said}");
    // Processor time in ticks, at a hundred a second. A daemon that loops for nothing uses them all.
    let used = || {
        let stat = std::fs::read_to_string(of_proc("stat")).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a comm").split_whitespace().collect();
        [11, 12].map(|field: usize| fields[field].parse::<u64>().expect("a number")).iter().sum::<u64>()
    };
    let used_before = used();
    std::thread::sleep(Duration::from_secs(1));
    let ticks = used() - used_before;
    assert!(ticks <= 10, "{ticks} ticks in a second");
    prlimit(Some(daemon.pid()), Resource::Nofile, before).expect("raised again");
    assert!(attach(&folder.at("socket")).success());
    drop(callers);
}

#[test]
fn a_daemon_serves_and_ends_in_order_though_its_log_cannot_be_written() {
    let folder = Folder::new();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let mut daemon = weftd(&folder, SMALL).stderr(full).spawn().expect("weftd starts");
    let begin = Instant::now();
    while !folder.at("socket").exists() {
        assert!(begin.elapsed() < BOUND && daemon.try_wait().expect("it is ours").is_none(), "it does not serve");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(attach(&folder.at("socket")).success());
    // A refused program is logged too.
    net::send(connect(&folder.at("socket")), &Message::Mapped.to_bytes(), SendFlags::empty()).expect("sent");
    assert!(attach(&folder.at("socket")).success());
    rustix::process::kill_process(Pid::from_child(&daemon), Signal::TERM).expect("it runs");
    assert!(daemon.wait().expect("it ends").success());
}

#[test]
fn a_program_of_another_version_is_told_so() {
    let folder = Folder::new();
    let _daemon = Daemon::serve(&folder, SMALL);
    let caller = connect(&folder.at("socket"));
    let mut hello = Message::Hello(None).to_bytes();
    hello[4] += 1;
    net::send(&caller, &hello, SendFlags::empty()).expect("sent");
    let mut answer = [0; MESSAGE_BYTES];
    net::recv(&caller, &mut answer[..], net::RecvFlags::empty()).expect("an answer");
    assert!(matches!(Message::from_bytes(&answer), Ok(Message::Refuse(Reason::Version))), "{answer:?}");
    // The other version can read it as well.
    answer[4] += 1;
    assert!(matches!(Message::from_bytes(&answer), Ok(Message::Refuse(Reason::Version))));
}
