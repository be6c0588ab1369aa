//! `weft bench am`: its figures, its output, and that nothing is left behind.

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
use support::{err, library_of, namespaces_of, out, Folder};

/// The time limit for operations that normally take a moment.
const BOUND: Duration = Duration::from_secs(30);

/// Held by a test with spinning processes: two CPUs have room for only two of them.
fn alone() -> MutexGuard<'static, ()> {
    static SPINNING: Mutex<()> = Mutex::new(());
    SPINNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

/// Builds the program in C with the library of the tests' profile, in a folder of this test.
fn pair_in(folder: &Folder) -> PathBuf {
    let library = library_of("weft-capi", "libweft_c.so");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/am");
    let mut make = Command::new("make");
    make.arg("-C").arg(sources).arg(format!("BUILD={}", folder.0.display()));
    make.arg(format!("LIB={}", library.parent().expect("it lies in a folder").display()));
    let made = make.output().expect("make starts");
    assert!(made.status.success(), "{}", err(&made));
    folder.0.join("pair")
}

fn bench(pair: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["bench", "am"]).arg("--program").arg(pair).args(arguments);
    // A process group of its own, as in a shell: Ctrl-C goes to all of its processes.
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().expect("it was built")
}

fn run(pair: &Path, arguments: &[&str]) -> (u32, Output) {
    let child = bench(pair, arguments);
    let pid = child.id();
    (pid, child.wait_with_output().expect("it is ours"))
}

/// Processes that run a program.
fn processes_of(program: &Path) -> usize {
    let entries = std::fs::read_dir("/proc").expect("there is one").flatten();
    entries.filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program)).count()
}

fn nothing_is_left_of(pid: u32, pair: &Path) {
    assert_eq!(namespaces_of(pid), 0);
    let start = Instant::now();
    // The kernel ends the processes that a run started, perhaps a moment after the run itself.
    while processes_of(pair) > 0 {
        assert!(start.elapsed() < BOUND, "a process in C is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_figures_have_rows_in_c_and_in_rust_and_every_message_arrives() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    let folder = Folder::new("bench-am");
    let pair = pair_in(&folder);
    let (pid, output) = run(&pair, &["--quick", "--rounds", "1", "--ms", "4", "--goals", "--json", "-"]);
    // Both sides have compared the numbers and sums of all messages; otherwise the run fails.
    assert!(output.status.success(), "{}", err(&output));
    nothing_is_left_of(pid, &pair);
    let document: Value = serde_json::from_str(&out(&output)).expect("standard output is the document alone");
    let row = |row: &Value| {
        assert!(row["median"].as_f64().is_some_and(|median| median > 0.0), "{row}");
        assert!(row["n"].as_u64().is_some_and(|n| n > 0), "{row}");
        let text = |field: &str| row[field].as_str().expect("text").to_owned();
        format!("{} {}", ["where", "metric", "system", "way"].map(text).join(" "), row["size"])
    };
    let rows: BTreeSet<String> = document["rows"].as_array().expect("rows").iter().map(row).collect();
    let figures = [
        "rtt short 0",
        "rtt short 16",
        "rtt medium 64",
        "rtt medium 8192",
        "rtt long 65536",
        "rate short 16",
        "bandwidth medium 65536",
        "bandwidth long 1048576",
    ];
    let places: &[&str] = if is_root() { &["local", "hosts"] } else { &["local"] };
    let mut wanted = BTreeSet::new();
    for (place, system) in places.iter().flat_map(|place| ["libweft", "weft"].map(|system| (place, system))) {
        wanted.extend(figures.iter().map(|figure| {
            let (metric, message) = figure.split_once(' ').expect("two words");
            format!("{place} {metric} {system} {message}")
        }));
    }
    assert_eq!(rows, wanted);
    let said = err(&output);
    assert_eq!(said.contains("left out: two hosts"), !is_root(), "{said}");
    assert!(said.contains("holds") || said.contains("MISSED"), "{said}");
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    let folder = Folder::new("bench-am-interrupted");
    let pair = pair_in(&folder);
    let group = if is_root() { "hosts" } else { "local" };
    let run = bench(&pair, &["--rounds", "1000", "--only", group]);
    let start = Instant::now();
    while processes_of(&pair) < 2 {
        assert!(start.elapsed() < BOUND, "it starts no processes in C");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = run.id();
    kill_process_group(Pid::from_child(&run), Signal::INT).expect("it lives");
    let output = run.wait_with_output().expect("it is ours");
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    assert!(err(&output).contains("interrupted"), "{}", err(&output));
    nothing_is_left_of(pid, &pair);
}

/// A replacement for the program in C, which prints these lines and ends.
fn liar(folder: &Folder, name: &str, says: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = PathBuf::from(folder.write(name, &format!("#!/bin/sh\n{says}\n")));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

#[test]
fn without_the_program_in_c_the_command_says_how_to_build_it() {
    let folder = Folder::new("bench-am-without");
    let (_, output) = run(&folder.0.join("pair"), &["--quick"]);
    assert_eq!(output.status.code(), Some(2));
    let said = err(&output);
    assert!(said.contains("there is no file") && said.contains("make -C bench/am"), "{said}");
}

#[test]
fn numbers_and_sums_that_differ_fail() {
    let _alone = alone();
    if !has_two_cpus() {
        return;
    }
    let folder = Folder::new("bench-am-liar");
    let hello = format!(r#"echo '{{"version":"{}"}}'"#, env!("CARGO_PKG_VERSION"));
    // The first word of a job shows which of the two programs it is for.
    let answers = |asks: &str, answers: &str| {
        format!(
            r#"{hello}
while read -r word rest; do
    case $word in
    ask) echo '{{"median":1,"p99":1,"mean":1,"n":1,{asks}}}' ;;
    answer) echo '{{"name":"00","tag":"0"}}'; echo '{answers}' ;;
    esac
done"#
        )
    };
    let only = ["--quick", "--rounds", "1", "--ms", "1", "--only", "local"];
    let cases = [
        ("lost", r#""sent":10,"count":10,"sum":0"#, r#"{"count":9,"sum":0}"#, "the numbers of requests"),
        ("unanswered", r#""sent":10,"count":9,"sum":0"#, r#"{"count":10,"sum":0}"#, "the numbers of replies"),
        ("changed", r#""sent":10,"count":10,"sum":0"#, r#"{"count":10,"sum":1}"#, "the sums of the bytes of requests"),
    ];
    for (name, asks, answered, wanted) in cases {
        let (_, output) = run(&liar(&folder, name, &answers(asks, answered)), &only);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(err(&output).contains(wanted), "{name}: {}", err(&output));
    }
    let other = r#"echo '{"version":"0.0.0"}'; read -r job"#;
    let (_, output) = run(&liar(&folder, "other", other), &only);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("libweft has the version 0.0.0"), "{}", err(&output));
    let (_, output) = run(&liar(&folder, "ends", "echo why >&2; exit 3"), &only);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("why") && err(&output).contains("exit status: 3"), "{}", err(&output));
}
