//! Programs with weft under valgrind's memcheck, with the suppressions for users: nothing is reported. Without them something is,
//! so the suppressions are still needed.

mod support;

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::{ask_to_end, example, Folder};

/// The exit status of a program with reports.
const REPORTED: i32 = 99;

/// A command under memcheck, with the suppressions or without.
fn memcheck(is_suppressed: bool, log: &str) -> Command {
    let suppressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/valgrind/weft.supp");
    let mut command = Command::new("valgrind");
    command.args(["--leak-check=full", "--trace-children=yes", &format!("--log-file={log}")]);
    command.arg(format!("--error-exitcode={REPORTED}"));
    if is_suppressed {
        command.arg(format!("--suppressions={}", suppressions.display()));
    }
    command
}

/// The reports of memcheck on a server with a waiting helper, which a signal ends, and on a client that sends one request.
fn reported(is_suppressed: bool, environment: &[(&str, &str)]) -> String {
    let folder = Folder::new(&format!("valgrind-{is_suppressed}-{}", environment.len()));
    let log = folder.file("server-%p");
    let mut server = memcheck(is_suppressed, &log);
    server.arg(example("kv_server")).envs(environment.iter().copied());
    let program = support::Program::start(&mut server);
    let contact = program.hear();
    let mut client = memcheck(is_suppressed, &folder.file("client-%p"));
    client.arg(example("kv_client")).args(contact.split(' ')).args(["get", "a"]).envs(environment.iter().copied());
    let output = client.output().expect("valgrind is missing; to have it: scripts/setup.sh --for test");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "(nothing)", "{}", support::err(&output));
    end(&program.child);
    drop(program);
    let logs = std::fs::read_dir(&folder.0).expect("it is ours").flatten();
    logs.map(|log| std::fs::read_to_string(log.path()).expect("memcheck wrote it")).collect()
}

fn end(child: &Child) {
    ask_to_end(child);
    // It writes its report after its end.
    let since = std::time::Instant::now();
    while std::fs::read_to_string(format!("/proc/{}/stat", child.id())).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(since.elapsed().as_secs() < 60, "valgrind does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn has_loopback() -> bool {
    UdpSocket::bind("127.0.0.1:0")
        .is_ok_and(|socket| socket.local_addr().is_ok_and(|at| socket.send_to(b"x", at).is_ok()))
}

/// The number of reported contexts of all processes.
fn contexts(logs: &str) -> u32 {
    let sums =
        logs.lines().filter_map(|line| line.split_once("ERROR SUMMARY: ")?.1.split(' ').next()?.parse::<u32>().ok());
    let all: Vec<u32> = sums.collect();
    assert_eq!(all.len(), 2, "each process has a sum: {logs}");
    all.iter().sum()
}

#[test]
fn memcheck_reports_nothing_of_programs_within_a_host_and_between_hosts() {
    for environment in [&[][..], &[("WEFT_LOCAL", "off"), ("WEFT_ADDR", "127.0.0.1")]] {
        // Some test networks have no loopback.
        if !environment.is_empty() && !has_loopback() {
            continue;
        }
        let logs = reported(true, environment);
        assert_eq!(contexts(&logs), 0, "{logs}");
    }
}

#[test]
fn without_the_suppressions_memcheck_reports_what_they_are_for() {
    let logs = reported(false, &[]);
    // The report on epoll_pwait depends on what was on the stack.
    assert!(contexts(&logs) > 0 && logs.contains("hashbrown") && logs.contains("_dl_allocate_tls"), "{logs}");
}

#[test]
fn memcheck_reports_nothing_of_a_command_with_workers() {
    let folder = Folder::new("valgrind-demo");
    let text = folder.write("words.txt", &"the words of a text\n".repeat(100));
    let mut command = memcheck(true, &folder.file("demo-%p"));
    command.arg(env!("CARGO_BIN_EXE_weft")).args(["demo", "--no-bench", &text]);
    let output =
        command.stdin(Stdio::null()).output().expect("valgrind is missing; to have it: scripts/setup.sh --for test");
    assert!(output.status.success(), "{}{}", support::out(&output), support::err(&output));
}
