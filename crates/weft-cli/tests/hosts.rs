//! `weft bench hosts` and `weft bench pair`: their figures, their output, and that nothing is left behind.

mod support;

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::rights::is_root;
use support::{err, namespaces_of, out};

/// In the repository, which has the limit programs.
fn weft(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

fn run(arguments: &[&str]) -> Output {
    weft(arguments).output().expect("it was built")
}

/// Metric, size and system of all rows.
fn rows(output: &Output) -> BTreeSet<(String, u64, String)> {
    let document: Value = serde_json::from_str(&out(output)).expect("standard output is the document alone");
    let text = |row: &Value, field: &str| row[field].as_str().expect("a text").to_owned();
    let row = |row: &Value| {
        assert_eq!(row["where"], "hosts", "{row}");
        assert!(row["median"].as_f64().is_some_and(|median| median > 0.0), "{row}");
        (text(row, "metric"), row["size"].as_u64().expect("a number"), text(row, "system"))
    };
    document["rows"].as_array().expect("rows are a list").iter().map(row).collect()
}

fn has(rows: &BTreeSet<(String, u64, String)>, wanted: &[(&str, u64, &str)]) {
    for &(metric, size, system) in wanted {
        assert!(rows.contains(&(metric.to_owned(), size, system.to_owned())), "no {metric} {size} {system}: {rows:?}");
    }
}

/// Checks that all figures of weft are there.
fn has_weft(rows: &BTreeSet<(String, u64, String)>) {
    [16, 64, 1024, 8192].iter().for_each(|&size| has(rows, &[("rtt", size, "weft")]));
    has(rows, &[("rate", 16, "weft"), ("bandwidth", 65536, "weft"), ("lone", 16, "weft")]);
    has(rows, &[("rate", 16, "weft-ordinary"), ("bandwidth", 65536, "weft-ordinary")]);
    for system in ["weft-alone", "weft-beside-idle", "weft-at-once", "weft-in-turns"] {
        has(rows, &[("mixed.memory", 16, system), ("mixed.network", 16, system)]);
    }
}

/// Held by a test with spinning processes: two CPUs have room for only two of them.
fn alone() -> MutexGuard<'static, ()> {
    static SPINNING: Mutex<()> = Mutex::new(());
    SPINNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

/// The error that users other than root must get.
fn asks_for_root(output: &Output) {
    assert!(!output.status.success());
    assert!(err(output).contains("needs root") && err(output).contains("sudo"), "{}", err(output));
}

#[test]
fn weft_has_all_its_figures_without_namespaces_too() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    let output =
        run(&["bench", "hosts", "--here", "--quick", "--rounds", "1", "--ms", "2", "--systems", "weft", "--json", "-"]);
    assert!(output.status.success(), "{}", err(&output));
    let rows = rows(&output);
    has_weft(&rows);
    assert!(err(&output).contains("copies them into its own memory"), "{}", err(&output));
    assert!(err(&output).contains("no figures between hosts"), "{}", err(&output));
}

#[test]
fn weft_and_bare_sockets_are_measured_between_namespaces_that_are_gone_afterwards() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    let arguments = [
        "bench",
        "hosts",
        "--quick",
        "--rounds",
        "1",
        "--ms",
        "5",
        "--systems",
        "weft,udp,tcp",
        "--mtu",
        "9000",
        "--goals",
    ];
    let command =
        weft(&[&arguments[..], &["--json", "-"]].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = command.expect("it was built");
    let pid = child.id();
    let output = child.wait_with_output().expect("it is ours");
    assert_eq!(namespaces_of(pid), 0);
    if !is_root() {
        return asks_for_root(&output);
    }
    assert!(output.status.success(), "{}", err(&output));
    assert!(err(&output).contains("MTU 9000") && err(&output).contains("datagrams of 8960 B"), "{}", err(&output));
    let rows = rows(&output);
    has_weft(&rows);
    for goal in ["round trip, 16 B ÷ bare UDP", "a UDP peer idle ÷ without it", "both at once ÷ alone"] {
        let said = err(&output);
        let line = said.lines().find(|line| line.contains(goal)).unwrap_or_else(|| panic!("no {goal}: {said}"));
        assert!(line.contains("holds") || line.contains("MISSED"), "{line}");
    }
    has(&rows, &["udp-spin", "udp-block", "tcp-spin", "tcp-block"].map(|system| ("rtt", 16, system)));
    has(&rows, &[("rate", 16, "udp-mmsg"), ("bandwidth", 65536, "udp-offload")]);
    has(&rows, &[("bandwidth", 65536, "tcp-stream"), ("lone", 16, "udp-spin")]);
}

/// A long measurement that has made its namespaces.
fn long_run() -> Child {
    let command = weft(&["bench", "hosts", "--rounds", "1000", "--systems", "udp", "--only", "rtt"])
        .stderr(Stdio::piped())
        .spawn();
    let child = command.expect("it was built");
    let start = Instant::now();
    while namespaces_of(child.id()) < 2 {
        assert!(start.elapsed() < Duration::from_secs(15), "it makes no namespaces");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn an_interrupted_run_removes_its_namespaces_and_the_next_one_those_of_a_killed_one() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    let next = ["bench", "hosts", "--quick", "--only", "lone", "--systems", "ucx"];
    if !is_root() {
        return asks_for_root(&run(&next));
    }
    let interrupted = long_run();
    let pid = interrupted.id();
    kill_process(Pid::from_child(&interrupted), Signal::INT).expect("it lives");
    let output = interrupted.wait_with_output().expect("it is ours");
    assert_eq!((output.status.code(), namespaces_of(pid)), (Some(130), 0), "{}", err(&output));
    assert!(err(&output).contains("interrupted"), "{}", err(&output));

    let mut killed = long_run();
    let pid = killed.id();
    killed.kill().expect("it lives");
    killed.wait().expect("it is ours");
    assert_eq!(namespaces_of(pid), 2, "a killed process cannot clean up");
    let output = run(&next);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(namespaces_of(pid), 0);
}

/// A listener that is killed when this is dropped.
struct Listener(Child);

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In the network namespace of an ordinary user's test, the loopback interface is down.
fn has_loopback() -> bool {
    TcpListener::bind("127.0.0.1:0").and_then(|l| TcpStream::connect(l.local_addr()?)).is_ok()
}

#[test]
fn a_pair_measures_weft_and_bare_sockets_once_the_key_is_known() {
    let _alone = alone();
    if !has_loopback() {
        let output = run(&["bench", "pair", "--connect", "127.0.0.1:7118#1"]);
        assert!(err(&output).contains("cannot reach the machine that listens"), "{}", err(&output));
        return;
    }
    let listener =
        weft(&["bench", "pair", "--listen", "--port", "0"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut listener = Listener(listener.expect("it was built"));
    let mut contact = String::new();
    let lines = listener.0.stdout.take().expect("it has a pipe");
    BufReader::new(lines).read_line(&mut contact).expect("it prints how it is reached");
    let (address, key) = contact.trim().split_once('#').expect("an address and a key");
    let (_, port) = address.split_once(':').expect("a host and a port");
    let connect = |key: &str| {
        let to = format!("127.0.0.1:{port}#{key}");
        run(&["bench", "pair", "--connect", &to, "--quick", "--rounds", "1", "--ms", "5", "--json", "-"])
    };
    let stranger = connect("12");
    assert_eq!(stranger.status.code(), Some(2));
    assert!(err(&stranger).contains("Is the key the one that it printed?"), "{}", err(&stranger));
    let output = connect(key);
    assert!(output.status.success(), "{}", err(&output));
    let rows = rows(&output);
    has(&rows, &["weft", "udp-spin", "tcp-spin"].map(|system| ("rtt", 16, system)));
    has(&rows, &[("rate", 16, "weft"), ("rate", 16, "udp-spin")]);
    has(&rows, &[("bandwidth", 65536, "weft"), ("bandwidth", 65536, "tcp-stream")]);
}

#[test]
fn a_pair_needs_a_side() {
    let output = run(&["bench", "pair"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("--listen"), "{}", err(&output));
    let output = run(&["bench", "pair", "--connect", "10.0.0.1:7118"]);
    assert!(err(&output).contains("HOST:PORT#KEY"), "{}", err(&output));
}
