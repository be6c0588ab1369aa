//! The command `weft` as a user types it: its output, its files, and its errors.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use support::Folder;

fn weft(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).current_dir(std::env::temp_dir());
    command.output().expect("the command was built with this test")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file of this test, removed when this is dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, content: &str) -> TempFile {
        let path = std::env::temp_dir().join(format!("weft-cli-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("the directory for temporary files can be written");
        TempFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("made of letters")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn a_text(words: usize) -> String {
    (0..words).map(|i| format!("word{} the {}\n", i % 977, i / 3)).collect()
}

#[test]
fn workers_and_a_single_process_count_the_same() {
    let file = TempFile::new("count", &a_text(40_000));
    let output = weft(&["demo", "--no-bench", file.path()]);
    let text = out(&output);
    assert!(output.status.success(), "{text}{}", err(&output));
    assert!(text.contains("same result"), "{text}");
    assert!(text.contains("40000  the"), "{text}");
    assert!(text.contains("120000  words"), "{text}");
}

#[test]
fn a_worker_that_dies_does_not_change_the_result() {
    let file = TempFile::new("kill", &a_text(60_000));
    let output = weft(&["demo", "--no-bench", "--kill-one", "--chunk", "2048", "--workers", "3", file.path()]);
    let text = out(&output);
    assert!(output.status.success(), "{text}{}", err(&output));
    assert!(text.contains("A worker died"), "{text}");
    assert!(text.contains("same result"), "{text}");
}

#[test]
fn without_files_and_outside_of_a_checkout_the_embedded_text_is_counted() {
    let output = weft(&["demo", "--no-bench"]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(out(&output).contains("same result"), "{}", out(&output));
}

#[test]
fn an_empty_file_has_no_words() {
    let file = TempFile::new("empty", "");
    let output = weft(&["demo", "--no-bench", file.path()]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(out(&output).contains("0  words"), "{}", out(&output));
}

#[test]
fn a_file_that_is_not_there_is_named_with_the_way_out() {
    let output = weft(&["demo", "/nonexistent/text"]);
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    assert!(said.contains("/nonexistent/text") && said.contains("Name files that exist"), "{said}");
}

#[test]
fn unknown_words_and_options_end_with_status_2_and_a_hint() {
    for (arguments, hint) in [
        (&["bench", "locally"][..], "local"),
        (&["demo", "--worker", "3"], "--workers"),
        (&["bench", "local", "--only", "latency"], "rtt"),
        (&["bench", "local", "--rounds", "0"], "1..=1000"),
        (&["demo-worker"], "weft demo"),
        (&["bench-peer", "--cpu", "100000"], "taskset"),
    ] {
        let output = weft(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(hint), "{arguments:?}: {}", err(&output));
    }
}

#[test]
fn a_port_in_use_names_the_option_that_asked_for_it() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = taken.local_addr().expect("it has one").port().to_string();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = serve.args(["serve", "--port", &port]).env("WEFT_ADDR", "127.0.0.1").output().expect("it was built");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains(&format!("UDP port {port} is in use")), "{}", err(&output));
    assert!(err(&output).contains("--port, or none") && !err(&output).contains("WEFT_PORT"), "{}", err(&output));
}

#[test]
fn what_is_no_listener_of_a_pair_is_told_what_to_type() {
    for text in ["somebody", "127.0.0.1:4000", "127.0.0.1:4000#key"] {
        let output = weft(&["bench", "pair", "--connect", text]);
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains("`weft bench pair --listen` printed"), "{}", err(&output));
    }
}

#[test]
fn a_worker_with_an_unparsable_master_says_why() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.arg("demo-worker").env("WEFT_DEMO_MASTER", "10.0.0.1:80 12").output().expect("it was built");
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("a name begins with"), "{}", err(&output));
}

/// Needs two CPUs, like the measurement itself; with one CPU, checks that the command says so.
fn bench(arguments: &[&str]) -> Option<Output> {
    let output = weft(&[&["bench", "local", "--quick", "--rounds", "1", "--ms", "2"], arguments].concat());
    let is_alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2);
    if is_alone {
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains("need two"), "{}", err(&output));
        return None;
    }
    assert!(output.status.success(), "{}", err(&output));
    Some(output)
}

#[test]
fn a_measurement_writes_all_rows_of_weft_as_json() {
    let Some(output) = bench(&["--systems", "weft", "--json", "-"]) else { return };
    let document: Value = serde_json::from_str(&out(&output)).expect("standard output is the document alone");
    for field in ["cpu", "cores", "kernel", "date"] {
        assert!(!document["machine"][field].is_null(), "{field}: {}", document["machine"]);
    }
    let mut seen = BTreeSet::new();
    for row in document["rows"].as_array().expect("rows are a list") {
        assert_eq!((row["where"].as_str(), row["system"].as_str()), (Some("local"), Some("weft")), "{row}");
        for field in ["median", "p99"] {
            assert!(row[field].as_f64().is_some_and(|value| value >= 0.0), "{field}: {row}");
        }
        assert!(row["n"].as_u64().is_some_and(|n| n > 0), "{row}");
        let units = ["ns", "1/s", "B/s", "B"];
        assert!(row["unit"].as_str().is_some_and(|unit| units.contains(&unit)), "{row}");
        let metric = row["metric"].as_str().expect("a metric is a text").to_owned();
        seen.insert((
            metric,
            row["size"].as_u64().expect("a size is a number"),
            row["detail"].as_str().unwrap_or("").to_owned(),
        ));
    }
    let has = |metric: &str, size: u64, detail: &str| {
        let found = seen.iter().any(|(m, s, d)| m == metric && (*s == size || size == 0) && d.contains(detail));
        assert!(found, "no row {metric} {size} {detail}: {seen:?}");
    };
    [8, 16, 64, 256, 1024, 4096, 8192, 65536].iter().for_each(|&size| has("rtt", size, ""));
    [256, 512, 1024, 8192, 65536].iter().for_each(|&size| has("bandwidth", size, ""));
    ["logp.os", "logp.or", "logp.l", "logp.g"].iter().for_each(|metric| has(metric, 16, ""));
    has("rate", 16, "request and reply, window 32");
    has("n_half", 0, "");
    [1024, 4096, 8192].iter().for_each(|&size| has("rtt", size, "read by nobody"));
    has("rtt", 16, "from one fixed sender of 64 peers");
    has("rtt", 16, "from a sender drawn at random per message of 64 peers");
    has("rtt", 16, "two endpoints of one bundle, one never served");
    has("rtt", 16, "before the kill of another peer");
    has("rtt", 16, "behind the kill of another peer");
    has("settled", 16, "a peer that was killed");
    let left_out = err(&output).lines().any(|line| line.starts_with("left out: weft, with another user's process"));
    for (metric, size, detail) in
        [("rtt", 16, "processes of two users"), ("bandwidth", 65536, "another user's process")]
    {
        assert_ne!(
            left_out,
            seen.iter().any(|(m, s, d)| m == metric && *s == size && d.contains(detail)),
            "{metric}: {seen:?}"
        );
    }
}

#[test]
fn only_what_is_asked_for_is_measured_and_shown() {
    let file = TempFile::new("rows.json", "");
    let Some(output) = bench(&["--only", "rate", "--systems", "weft", "--json", file.path()]) else { return };
    assert!(out(&output).contains("one way, messages"), "{}", out(&output));
    assert!(!out(&output).contains("round trip"), "{}", out(&output));
    let written = std::fs::read_to_string(file.path()).expect("it was written");
    let document: Value = serde_json::from_str(&written).expect("it is JSON");
    assert_eq!(
        document["rows"].as_array().map(|rows| rows.iter().filter(|row| row["metric"] != "rate").count()),
        Some(1)
    );
}

#[test]
fn what_cannot_be_measured_here_is_left_out_with_a_line() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["bench", "local", "--quick", "--rounds", "1", "--ms", "2", "--only", "rate"]);
    command.env("WEFT_LIMITS", "/nonexistent/limits").env("PATH", "/nonexistent");
    let output = command.output().expect("it was built");
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return;
    }
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    assert!(text.contains("left out: limits and kernel: WEFT_LIMITS names /nonexistent/limits"), "{text}");
    assert!(text.contains("left out: UCX: ucx_perftest is not installed"), "{text}");
}

#[test]
fn what_was_asked_is_told_on_request_only_and_always_in_json() {
    let folder = Folder::new("goals");
    let file = folder.file("rows.json");
    let arguments = ["--only", "peers", "--systems", "weft", "--json", &file];
    let ratio = "from one fixed of 64 peers ÷ of 1";
    let Some(output) = bench(&arguments) else { return };
    assert!(out(&output).contains(ratio), "{}", out(&output));
    for verdict in ["asked", "MISSED", "holds", "≤"] {
        assert!(!out(&output).contains(verdict), "{verdict}: {}", out(&output));
    }
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("it was written")).expect("it is JSON");
    let goals = document["goals"].as_array().expect("a list");
    let goal = goals.iter().find(|goal| goal["what"] == ratio).expect("it is told");
    assert_eq!(goal["at_most"], 1.3);
    let value = goal["value"].as_f64().expect("a number");
    assert_eq!(goal["holds"], value <= 1.3, "{goal}");

    let output = bench(&[&arguments[..], &["--goals"]].concat()).expect("there are two CPUs");
    let text = out(&output);
    let line = text.lines().find(|line| line.contains(ratio)).unwrap_or_else(|| panic!("no {ratio}: {text}"));
    assert!(line.contains("≤ 1.30") && (line.contains("holds") || line.contains("MISSED")), "{line}");
}

#[test]
fn markdown_takes_the_place_of_the_table_and_what_was_left_out_stands_beside_it() {
    let folder = Folder::new("markdown");
    let file = folder.file("rows.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["bench", "local", "--quick", "--rounds", "2", "--ms", "2", "--only", "rate", "--markdown"]);
    command.args(["--json", &file]).env("WEFT_LIMITS", "/nonexistent/limits").env("PATH", "/nonexistent");
    let output = command.output().expect("it was built");
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return;
    }
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["| what | weft |", "| --- | ---: |"], "nobody else was measured: {text}");
    assert!(text.contains("\n| messages one way, 16 B | ") && text.contains(" M/s |\n"), "{text}");
    assert!(lines.last().is_some_and(|line| line.contains(", 2 rounds. ")), "{text}");
    assert!(err(&output).contains("left out: limits and kernel") && !text.contains("left out"), "{}", err(&output));
    assert_eq!(out(&weft(&["bench", "report", &file, "--markdown"])), text, "the file has all that the table needs");
}

/// A folder with replacements for the limit programs, and the output of a run with them. `ucx_read` is what the program for UCX
/// does.
fn bench_beside(name: &str, ucx_read: &str) -> (Folder, Output) {
    let folder = Folder::new(name);
    for (program, script) in [("limits", "exit 1"), ("ucx-read", ucx_read)] {
        let path = folder.write(program, &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["bench", "local", "--quick", "--rounds", "1", "--ms", "2", "--only", "rtt"]);
    command.args(["--systems", "weft,ucx", "--goals", "--json"]).arg(folder.0.join("rows.json"));
    command.env("WEFT_LIMITS", folder.0.join("limits")).env("PATH", "/nonexistent");
    let output = command.output().expect("it was built");
    (folder, output)
}

#[test]
fn ucx_whose_receivers_read_is_told_apart_and_held_against_weft() {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return;
    }
    let prints = r#"[ "$1 $3" = "--how --size" ] && echo '{"metric":"rtt","size":'$4',"unit":"ns","system":"ucx-'$2'-am","median":5e9,"p99":5e9,"mean":5e9,"n":7,"detail":"all read"}'"#;
    let (folder, output) = bench_beside("ucx-that-reads", prints);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let document = std::fs::read_to_string(folder.0.join("rows.json")).expect("it was written");
    let document: Value = serde_json::from_str(&document).expect("it is JSON");
    let rows = document["rows"].as_array().expect("rows are a list");
    for size in [64, 256, 1024, 4096, 8192] {
        for system in ["ucx-ucp-am", "ucx-uct-am"] {
            let is_it = |row: &&Value| row["system"] == system && row["size"] == size && row["metric"] == "rtt";
            let ways: Vec<&Value> = rows.iter().filter(is_it).map(|row| &row["way"]).collect();
            assert_eq!(ways, ["read"], "{system}, {size} B: {document}");
        }
        let goal = format!("round trip, {size} B ÷ better UCX am, both reading all");
        let line = text.lines().find(|line| line.contains(&goal)).unwrap_or_else(|| panic!("no {goal}: {text}"));
        assert!(line.contains("holds"), "{line}");
    }
    assert!(text.contains("ucx-uct-am, reading") || text.contains("ucx-ucp-am, reading"), "{text}");
    assert!(!text.contains("UCX nothing"), "{text}");
}

#[test]
fn ucx_whose_receivers_read_is_left_out_with_what_it_said() {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return;
    }
    let (_folder, output) = bench_beside("ucx-that-fails", "echo 'ucx-read: it has no posix' >&2; exit 1");
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    assert!(text.contains("ucx-uct-am: rtt of 64 B, all read") && text.contains(": it has no posix"), "{text}");
    assert!(!text.contains("ucx-read: it has"), "{text}");
    assert!(!text.contains("both reading all"), "{text}");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let output = weft(&["bench", "local", "--systems", "ucx", "--only", "peers", "--json", "/nonexistent/rows.json"]);
    assert_ne!(output.status.code(), Some(0));
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2) {
        assert!(err(&output).contains("/nonexistent/rows.json"), "{}", err(&output));
    }
}
