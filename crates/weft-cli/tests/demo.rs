//! The parts of `weft demo`: what each prints, what it prints if a program that it needs is missing, and that it removes what it made.

mod support;

use rustix::process::{kill_process_group, Pid, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{err, library_of, out, printed, program_of, Folder};

/// The time limit for anything that should take a moment.
const BOUND: Duration = Duration::from_secs(30);

/// A command that runs the demonstration in weft's repository.
fn demo(weft: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(weft);
    command.arg("demo").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

fn shown(arguments: &[&str]) -> String {
    printed(&demo(Path::new(env!("CARGO_BIN_EXE_weft")), arguments).output().expect("it was built"))
}

/// Copies the command into a folder in which there is no weftd and no libweft.
fn alone_in(folder: &Folder) -> PathBuf {
    let weft = folder.0.join("weft");
    std::fs::copy(env!("CARGO_BIN_EXE_weft"), &weft).expect("copied");
    weft
}

/// Writes a shell script into a folder, as a stand-in for a program.
fn stand_in(folder: &Folder, name: &str, does: &str) {
    let path = folder.write(name, &format!("#!/bin/sh\n{does}\n"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// The text between `left` and `right`, in the first line that begins with `begin`.
fn between<'a>(text: &'a str, begin: &str, (left, right): (&str, &str)) -> &'a str {
    let line = text.lines().find(|line| line.trim().starts_with(begin)).unwrap_or_else(|| panic!("no {begin}: {text}"));
    let (_, rest) = line.split_once(left).unwrap_or_else(|| panic!("no {left}: {line}"));
    rest.split_once(right).unwrap_or_else(|| panic!("no {right}: {line}")).0
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn a_put_arrives_while_the_owner_sleeps() {
    let text = shown(&["--only", "put"]);
    let put = between(&text, "put:", ("\"", "\"")).to_owned();
    assert_eq!(between(&text, "process", ("\"", "\"")), put);
    let (here, there) = (put.rsplit(' ').next().expect("a number"), between(&text, "process", ("process ", " ")));
    assert_ne!(number(here), number(there), "{text}");
    assert!(text.contains("its program slept: the kernel did not run it once"), "{text}");
    assert!(text.contains("a put of 64 B takes ") && text.contains(", a get of 64 B "), "{text}");
    assert!(!text.contains("words"), "only what was asked for: {text}");
}

#[test]
fn a_put_arrives_without_rings_in_memory() {
    let mut command = demo(Path::new(env!("CARGO_BIN_EXE_weft")), &["--only", "put"]);
    let text =
        printed(&command.envs([("WEFT_LOCAL", "off"), ("WEFT_ADDR", "127.0.0.1")]).output().expect("it was built"));
    assert!(text.contains("a thread of weft in that process carries puts and gets out"), "{text}");
    assert!(text.contains("the kernel did not run it once"), "{text}");
}

#[test]
fn a_job_in_c_is_built_and_prints_its_sum() {
    library_of("weft-capi", "libweft_c.so");
    let text = shown(&["--only", "job"]);
    assert!(text.contains("rank 0 prints: 4 ranks: the sum is 500000500000"), "{text}");
    let mut processes: Vec<u64> =
        (0..4).map(|rank| number(between(&text, &format!("rank {rank}: process"), ("process ", ",")))).collect();
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes.len(), 4, "{text}");
}

#[test]
fn without_libweft_or_a_compiler_the_job_is_left_out_with_a_hint() {
    let folder = Folder::new("demo-no-libweft");
    let mut command = demo(&alone_in(&folder), &["--only", "job"]);
    let text = printed(&command.env("PATH", "/nonexistent").output().expect("it was copied"));
    assert!(text.contains("left out: there is no libweft") && text.contains("sudo make install"), "{text}");

    library_of("weft-capi", "libweft_c.so");
    let mut command = demo(Path::new(env!("CARGO_BIN_EXE_weft")), &["--only", "job"]);
    let text = printed(&command.env("PATH", "/nonexistent").output().expect("it was built"));
    assert!(text.contains("left out: no C compiler") && text.contains("apt-get install gcc"), "{text}");
}

/// Checks that a demonstration failed, and returns what it wrote to standard error.
fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}{}", out(output), err(output));
    err(output)
}

#[test]
fn a_compiler_that_fails_is_quoted_and_the_demonstration_fails() {
    library_of("weft-capi", "libweft_c.so");
    let folder = Folder::new("demo-bad-cc");
    stand_in(&folder, "cc", "echo 'no stdio.h here' >&2; exit 1");
    let mut command = demo(Path::new(env!("CARGO_BIN_EXE_weft")), &["--only", "job"]);
    let said = failed(&command.env("PATH", &folder.0).output().expect("it was built"));
    assert!(said.contains("cc failed: no stdio.h here. See that"), "{said}");
}

#[test]
fn a_job_with_a_wrong_sum_fails_the_demonstration() {
    library_of("weft-capi", "libweft_c.so");
    let folder = Folder::new("demo-bad-job");
    // The demo calls `cc -O2 -o PROGRAM ...`, so $3 is the program.
    let says = "printf '#!/bin/sh\\n[ $WEFT_RANK != 0 ] || echo 41\\n' >\"$3\"; chmod +x \"$3\"";
    stand_in(&folder, "cc", says);
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").expect("there is one"));
    let mut command = demo(Path::new(env!("CARGO_BIN_EXE_weft")), &["--only", "job"]);
    let said = failed(&command.env("PATH", path).output().expect("it was built"));
    assert!(said.contains("the sum is 500000500000 and 41"), "{said}");
}

#[test]
fn endpoints_take_turns_on_few_frames_and_every_request_is_answered() {
    program_of("weftd", "weftd");
    let text = shown(&["--only", "frames"]);
    let line = text.lines().find(|line| line.contains(" requests to 64 endpoints")).unwrap_or_else(|| panic!("{text}"));
    let requests = number(line.split_whitespace().next().expect("a number"));
    assert!(requests > 0 && line.contains(&format!(", {requests} answers")), "{text}");
    let used = number(between(&text, "at most", ("at most ", " ")));
    assert!((1..=8).contains(&used), "{text}");
    let got = number(between(&text, "at most", ("got a frame ", " times")));
    let evicted = number(between(&text, "at most", ("lost it ", " times")));
    assert!(got >= 64 && evicted >= 64 - 8, "{text}");
}

#[test]
fn without_weftd_the_frames_are_left_out_with_a_hint() {
    let folder = Folder::new("demo-no-weftd");
    let text = printed(&demo(&alone_in(&folder), &["--only", "frames"]).output().expect("it was copied"));
    assert!(text.contains("left out: there is no ") && text.contains("weftd; build it, or install"), "{text}");
}

#[test]
fn a_weftd_that_does_not_start_is_quoted_and_the_demonstration_fails() {
    let folder = Folder::new("demo-bad-weftd");
    let weft = alone_in(&folder);
    stand_in(&folder, "weftd", "echo 'weftd: no frames today' >&2; exit 1");
    let said = failed(&demo(&weft, &["--only", "frames"]).output().expect("it was copied"));
    assert!(said.contains("weftd failed: weftd: no frames today. See that it starts"), "{said}");
}

#[test]
fn a_page_draws_each_part_and_loads_nothing() {
    library_of("weft-capi", "libweft_c.so");
    program_of("weftd", "weftd");
    let folder = Folder::new("demo-page");
    let path = folder.file("page.html");
    let text = shown(&["--only", "put,job,frames", "--report", &path]);
    assert!(text.contains("Report for a browser: "), "{text}");
    let page = std::fs::read_to_string(path).expect("a page");
    // The put has two pictures: the processes, and the times.
    assert_eq!((page.matches("<svg ").count(), page.matches("</svg>").count()), (4, 4));
    for title in [
        "A put into the memory of another process",
        "What a put and a get take",
        "A job in C",
        "More endpoints than frames",
    ] {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert!(page.contains(between(&text, "put:", ("\"", "\""))), "what was put is drawn");
    for rank in 0..4 {
        let process = between(&text, &format!("rank {rank}: process"), ("process ", ","));
        assert!(page.contains(&format!("\nrank {rank}, process {process}\n")), "rank {rank} is drawn");
    }
    for foreign in ["<script", "<link", "<img", "@import", "url(", "src=", "href=", "NaN", "inf"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(!page.contains("What messages cost"), "nothing was measured");
}

#[test]
fn no_bench_and_only_exclude_each_other() {
    let output =
        demo(Path::new(env!("CARGO_BIN_EXE_weft")), &["--no-bench", "--only", "put"]).output().expect("it was built");
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("--only"), "{}", err(&output));
}

#[test]
fn an_interrupted_demonstration_leaves_nothing_behind() {
    program_of("weftd", "weftd");
    let mut command = demo(Path::new(env!("CARGO_BIN_EXE_weft")), &["--only", "frames"]);
    // A process group of its own, as a shell makes one, because Ctrl-C goes to the whole group.
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().expect("it was built");
    let folder = std::env::temp_dir().join(format!("weft-bench-{}", run.id()));
    let since = Instant::now();
    while !folder.join("socket").exists() {
        assert!(since.elapsed() < BOUND, "it starts no daemon");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process_group(Pid::from_child(&run), Signal::INT).expect("it lives");
    let output = run.wait_with_output().expect("it is ours");
    assert_eq!(output.status.code(), Some(130), "{}{}", out(&output), err(&output));
    assert!(err(&output).contains("interrupted"), "{}", err(&output));
    assert!(!folder.exists());
}
