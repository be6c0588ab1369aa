//! `weft bench daemon`: its figures, its output, and that nothing is left behind.

mod support;

use rustix::process::{kill_process_group, Pid, Signal};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::rights::is_root;
use support::{err, namespaces_of, out, program_of, Folder};

/// The time limit for operations that normally take a moment.
const BOUND: Duration = Duration::from_secs(30);

fn bench(weft: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(weft);
    command.args(["bench", "daemon"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A process group of its own, as in a shell: Ctrl-C goes to all of its processes.
    command.process_group(0).spawn().expect("it was built")
}

fn run(arguments: &[&str]) -> (u32, Output) {
    let child = bench(Path::new(env!("CARGO_BIN_EXE_weft")), arguments);
    let pid = child.id();
    (pid, child.wait_with_output().expect("it is ours"))
}

/// Held by a test with spinning processes: two CPUs have room for only two of them.
fn alone() -> MutexGuard<'static, ()> {
    static SPINNING: Mutex<()> = Mutex::new(());
    SPINNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

/// Where a run has its sockets and configurations.
fn folder_of(pid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("weft-bench-{pid}"))
}

/// Programs whose command line contains a run's folder: its daemons.
fn daemons_of(pid: u32) -> usize {
    let folder = folder_of(pid).to_str().expect("a name of letters").to_owned();
    let entries = std::fs::read_dir("/proc").expect("there is one").flatten();
    entries
        .filter(|entry| std::fs::read_to_string(entry.path().join("cmdline")).is_ok_and(|c| c.contains(&folder)))
        .count()
}

fn nothing_is_left_of(pid: u32) {
    assert_eq!(namespaces_of(pid), 0);
    assert!(!folder_of(pid).exists());
    let start = Instant::now();
    // The kernel ends the processes that a run started, perhaps a moment after the run itself.
    while daemons_of(pid) > 0 {
        assert!(start.elapsed() < BOUND, "a daemon is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_figures_have_rows_with_weftd_and_without_and_every_message_is_answered() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    program_of("weftd", "weftd");
    let (pid, output) = run(&["--quick", "--rounds", "1", "--ms", "4", "--goals", "--json", "-"]);
    assert!(output.status.success(), "{}", err(&output));
    nothing_is_left_of(pid);
    let document: Value = serde_json::from_str(&out(&output)).expect("standard output is the document alone");
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or("plain").to_owned();
    let row = |row: &Value| {
        assert!(row["median"].as_f64().is_some_and(|median| median > 0.0), "{row}");
        assert!(row["n"].as_u64().is_some_and(|n| n > 0), "{row}");
        let named = ["where", "metric", "system", "way"].map(|field| text(row, field)).join(" ");
        format!("{named} {}", row["size"])
    };
    let rows: BTreeSet<String> = document["rows"].as_array().expect("rows").iter().map(row).collect();
    let mut wanted = BTreeSet::new();
    let places: &[&str] = if is_root() { &["local", "hosts"] } else { &["local"] };
    for place in places {
        for system in ["weft", "weftd"] {
            for way in ["plain", "waiting", "sleeping"] {
                wanted.extend([16, 8192].map(|size| format!("{place} rtt {system} {way} {size}")));
            }
            wanted.insert(format!("{place} rate {system} plain 16"));
            wanted.extend([8192, 65536].map(|size| format!("{place} bandwidth {system} plain {size}")));
        }
    }
    for way in ["plain", "waiting", "sleeping"] {
        wanted.extend(["quiet", "beside-remappings"].map(|what| format!("local rtt weftd-{what} {way} 16")));
    }
    assert_eq!(rows, wanted);
    let written = document["written"].as_array().expect("a list");
    assert_eq!(written.len(), 3);
    for written in written {
        let number = |name: &str| written[name].as_u64().expect("a number");
        assert!(number("requests") >= 64 && number("answers") == number("requests"), "{written}");
        assert_eq!((number("out_of_order"), number("returned")), (0, 0), "{written}");
    }
    let cpus = document["machine"]["cores"].as_u64().expect("a number");
    let has_own_cpus = cpus >= if is_root() { 4 } else { 3 };
    assert_eq!(document["has_own_cpus"], has_own_cpus);
    let said = err(&output);
    assert_eq!(said.contains("are not those of a machine where each"), !has_own_cpus, "{said}");
    assert_eq!(said.contains("left out: two hosts"), !is_root(), "{said}");
    assert!(said.contains("holds") || said.contains("MISSED"), "{said}");
}

/// Waits until a run has made a daemon, and, if it makes namespaces, until it has made these.
fn begun(run: &Child) {
    let start = Instant::now();
    while daemons_of(run.id()) == 0 {
        assert!(start.elapsed() < BOUND, "it starts no daemon");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    program_of("weftd", "weftd");
    let group = if is_root() { "hosts" } else { "local" };
    let run = bench(Path::new(env!("CARGO_BIN_EXE_weft")), &["--rounds", "1000", "--only", group]);
    begun(&run);
    let pid = run.id();
    kill_process_group(Pid::from_child(&run), Signal::INT).expect("it lives");
    let output = run.wait_with_output().expect("it is ours");
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    assert!(err(&output).contains("interrupted"), "{}", err(&output));
    nothing_is_left_of(pid);
}

#[test]
fn two_hosts_that_are_asked_for_and_cannot_be_made_are_an_error() {
    if is_root() || !has_two_cpus() {
        return;
    }
    program_of("weftd", "weftd");
    let (pid, output) = run(&["--quick", "--only", "hosts"]);
    assert!(!output.status.success() && out(&output).is_empty(), "{}", out(&output));
    assert!(err(&output).contains("needs root"), "{}", err(&output));
    nothing_is_left_of(pid);
}

#[test]
fn without_weftd_beside_weft_the_command_says_so() {
    let folder = Folder::new("bench-daemon-alone");
    let weft = folder.0.join("weft");
    std::fs::copy(env!("CARGO_BIN_EXE_weft"), &weft).expect("copied");
    let output = bench(&weft, &["--quick"]).wait_with_output().expect("it is ours");
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("there is no") && err(&output).contains("weftd"), "{}", err(&output));
}
