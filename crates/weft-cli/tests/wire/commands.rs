//! `weft wire` as a user types it: hosts made for commands, its reports, and that nothing is left behind.

use super::lab::{in_lab, ip, wait_for_carrier};
use super::support::{turn, wait_until};
use super::typed::rights::is_root;
use super::typed::{err, namespaces_of, out, Folder};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};

fn weft(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("wire").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> Output {
    weft(arguments).output().expect("it was built")
}

/// Whether `--here` was refused because it needs root.
fn is_refused(output: &Output) -> bool {
    if !is_root() {
        assert!(err(output).contains("needs root") && err(output).contains("sudo"), "{}", err(output));
    }
    !is_root()
}

#[test]
fn an_interface_is_not_wired_to_itself() {
    let output = weft(&["lo", "lo"]).output().expect("it was built");
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(
        err(&output).contains("lo cannot be wired to itself") && err(&output).contains("Name two"),
        "{}",
        err(&output)
    );
}

#[test]
fn two_commands_talk_over_a_wire_that_is_gone_afterwards() {
    let _turn = turn("commands::two_commands_talk_over_a_wire_that_is_gone_afterwards");
    let program = env!("CARGO_BIN_EXE_weft");
    let there = format!("'{program}' serve --port 7000");
    let here = format!("'{program}' ping -c 5 -i 0 \"$WEFT_WIRE_THERE:7000\"");
    let command = weft(&["--delay", "5ms", "--there", &there, "--here", &here, "--json", "-"]).spawn();
    let child = command.expect("it was built");
    let pid = child.id();
    let output = child.wait_with_output().expect("it is ours");
    assert_eq!(namespaces_of(pid), 0);
    if is_refused(&output) {
        return;
    }
    let said = out(&output);
    assert!(output.status.success() && said.contains("5 of 5 answered: at least 1"), "{said}{}", err(&output));
    let json = &said[said.find("\n{").expect("a document behind what the commands say")..];
    let document: Value = serde_json::from_str(json).expect("JSON");
    for way in [0, 1] {
        let count = |what: &str| document["directions"][way][what].as_u64().expect("a count");
        assert!(count("delayed") > 10 && count("handed_on") >= count("delayed") && count("lost") == 0, "{json}");
    }
    assert!(err(&output).contains("here → there") && err(&output).contains("delayed"), "{}", err(&output));
}

#[test]
fn the_wire_ends_as_its_command_does() {
    let _turn = turn("commands::the_wire_ends_as_its_command_does");
    let output = run(&["--here", "exit 7"]);
    if !is_refused(&output) {
        assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    }
}

#[test]
fn a_command_there_that_fails_is_told_and_one_that_the_wire_ends_is_not() {
    let _turn = turn("commands::a_command_there_that_fails_is_told_and_one_that_the_wire_ends_is_not");
    let folder = Folder::new("wire-there");
    let begun = format!("until [ -s {} ]; do sleep 0.02; done", folder.file("pid"));
    // A process that has ended is there until the wire notices it.
    let ended = format!(
        "{begun}; for i in $(seq 500); do kill -0 $(cat {}) 2>/dev/null || break; sleep 0.02; done",
        folder.file("pid")
    );
    for (there, here, says) in [
        ("exit 3", &ended, Some("weft wire: the command there ended with status 3\n")),
        ("kill -KILL $$", &ended, Some("weft wire: the command there was ended by signal 9 (SIGKILL)\n")),
        ("exit 0", &ended, None),
        ("exec sleep 4711", &begun, None),
    ] {
        folder.write("pid", "");
        let output = run(&["--there", &format!("echo $$ >{}; {there}", folder.file("pid")), "--here", here]);
        if is_refused(&output) {
            return;
        }
        let said = err(&output);
        assert_eq!(output.status.code(), Some(0), "{there}: {said}");
        assert_eq!(said.matches("the command there").count(), usize::from(says.is_some()), "{there}: {said}");
        assert!(says.is_none_or(|says| said.contains(says)), "{there}: {said}");
    }
}

/// A wire with sleeping commands, started by a shell that waits for them.
fn asleep() -> (Child, Vec<u32>) {
    let child = weft(&["--there", "sleep 4711; true", "--here", "sleep 4711; true"]).spawn().expect("it was built");
    let mut all = Vec::new();
    wait_until("the commands to run", || {
        let shells = children_of(child.id());
        let sleepers: Vec<u32> = shells.iter().flat_map(|&shell| children_of(shell)).collect();
        all = [shells, sleepers].concat();
        all.len() == 4
    });
    (child, all)
}

/// The children of a process.
fn children_of(pid: u32) -> Vec<u32> {
    let file = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn a_signal_leaves_neither_commands_nor_hosts_and_the_next_wire_those_of_a_killed_one() {
    let _turn = turn("commands::a_signal_leaves_neither_commands_nor_hosts_and_the_next_wire_those_of_a_killed_one");
    if !is_root() {
        assert!(is_refused(&run(&["--here", "true"])));
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let (child, commands) = asleep();
        let pid = child.id();
        kill_process(Pid::from_child(&child), signal).expect("it lives");
        let output = child.wait_with_output().expect("it is ours");
        assert_eq!((output.status.code(), namespaces_of(pid)), (Some(130), 0), "{}", err(&output));
        assert!(!commands.into_iter().any(lives), "{signal:?}");
    }
    let (mut child, commands) = asleep();
    let pid = child.id();
    child.kill().expect("it lives");
    child.wait().expect("it is ours");
    assert_eq!(namespaces_of(pid), 3, "a killed process cannot clean up");
    wait_until("the shells to end", || !commands[..2].iter().copied().any(lives));
    // The next wire cleans up.
    assert!(run(&["--here", "true"]).status.success());
    assert_eq!(namespaces_of(pid), 0);
    wait_until("the commands to end", || !commands.iter().copied().any(lives));
}

/// The first line of a wire about interfaces whose offloads it switches off.
fn switched_off() -> String {
    let child = weft(&["one0", "two0"]).spawn().expect("it was built");
    // Before it forwards, a signal ends it at once and silently.
    std::thread::sleep(std::time::Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it lives");
    let output = child.wait_with_output().expect("it is ours");
    assert!(output.status.success(), "{}", err(&output));
    err(&output).lines().find(|line| line.starts_with("weft: one0: off")).unwrap_or_default().to_owned()
}

#[test]
fn offloads_are_off_while_the_wire_is_there_and_on_again() {
    in_lab("commands::offloads_are_off_while_the_wire_is_there_and_on_again", || {
        for (interface, other) in [("one0", "one1"), ("two0", "two1")] {
            ip(&format!("link add {interface} type veth peer name {other}"));
            ip(&format!("link set {interface} up"));
            ip(&format!("link set {other} up"));
            wait_for_carrier(interface);
        }
        let first = switched_off();
        for feature in ["tx-checksum", "tx-udp-segmentation", "tx-generic-segmentation"] {
            assert!(first.contains(feature), "{first}");
        }
        // An offload that was not switched on again could not be switched off.
        assert_eq!(switched_off(), first);
    });
}

#[test]
fn what_cannot_be_says_what_to_type() {
    for (arguments, says) in [
        (&["lo", "there-is-none"][..], "no interface"),
        (&["lo"], "<B>"),
        (&[], "Name two interfaces, or give --here COMMAND and --there COMMAND"),
        (&["--loss", "5%"], "Name two interfaces, or give --here COMMAND and --there COMMAND"),
        (&["a", "b", "--loss", "5"], "0% to 100%"),
        (&["a", "b", "--here", "true"], "cannot be used with"),
        (&["a", "b", "--there", "true"], "cannot be used with"),
        (&["--there", "true"], "--here"),
        (&["a", "b", "--scenario", "/there/is/none"], "cannot read"),
    ] {
        let output = run(arguments);
        assert!(!output.status.success() && err(&output).contains(says), "{arguments:?}: {}", err(&output));
    }
}
