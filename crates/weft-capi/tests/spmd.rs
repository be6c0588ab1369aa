//! Programs of many ranks in C: `am_spmd.h`, started by `weft run`.

mod support;

use std::path::Path;
use std::process::{Command, Output};
use support::{built, crate_dir, program, root, run, Folder};

fn job(folder: &Folder, source: &Path, ranks: u32, words: &[&str]) -> Output {
    let program = program(folder, source);
    run(Command::new(built("weft"))
        .args(["run", "-n", &ranks.to_string(), "--no-prefix", "--"])
        .arg(program)
        .args(words))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_parallel_sum_is_right_for_any_number_of_ranks() {
    let folder = Folder::new("ranks");
    for ranks in [1, 2, 5] {
        let output = job(&folder, &root().join("examples/c/ranks.c"), ranks, &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("{ranks} ranks: the sum is 500000500000\n"));
    }
}

#[test]
fn a_program_that_nobody_started_is_a_job_of_one() {
    let folder = Folder::new("alone");
    let program = program(&folder, &root().join("examples/c/ranks.c"));
    let output = run(&mut Command::new(program));
    assert_eq!(text(&output.stdout), "1 ranks: the sum is 500000500000\n", "{}", text(&output.stderr));
}

#[test]
fn every_call_does_what_its_header_says() {
    let folder = Folder::new("spmd");
    let source = crate_dir().join("tests/c/spmd.c");
    for ranks in [1, 3, 8] {
        let output = job(&folder, &source, ranks, &["calls"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().filter(|line| *line == "all is well").count(), ranks as usize);
    }
}

#[test]
fn the_end_of_a_job_waits_for_what_was_sent() {
    let folder = Folder::new("answered");
    let source = crate_dir().join("tests/c/spmd.c");
    for ranks in [1, 2, 4] {
        let output = job(&folder, &source, ranks, &["answered"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().filter(|line| *line == "all is well").count(), ranks as usize);
    }
}

#[test]
fn handlers_run_in_barriers_of_a_job_of_one() {
    let folder = Folder::new("one");
    let program = program(&folder, &crate_dir().join("tests/c/spmd.c"));
    let output = run(Command::new(program).arg("alone"));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn calls_of_a_thread_that_ends_fail_as_others_do() {
    let folder = Folder::new("exiting");
    let program = program(&folder, &crate_dir().join("tests/c/spmd.c"));
    let output = run(Command::new(program).arg("exiting"));
    assert!(output.status.success() && output.stderr.is_empty(), "{}: {}", output.status, text(&output.stderr));
}

#[test]
fn one_rank_ends_all_with_its_status() {
    let folder = Folder::new("exit");
    let output = job(&folder, &crate_dir().join("tests/c/spmd.c"), 3, &["exit", "7"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    // An exit status has only a byte. A failure must not turn into 0.
    let output = job(&folder, &crate_dir().join("tests/c/spmd.c"), 3, &["exit", "256"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

#[test]
fn a_handler_can_end_the_job() {
    let folder = Folder::new("handler");
    let output = job(&folder, &crate_dir().join("tests/c/spmd.c"), 3, &["handler", "9"]);
    assert_eq!(output.status.code(), Some(9), "{}", text(&output.stderr));
}

#[test]
fn a_rank_that_makes_another_call_is_told_and_named() {
    let folder = Folder::new("step");
    let output = job(&folder, &crate_dir().join("tests/c/spmd.c"), 2, &["step"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("in another call"), "{}", text(&output.stdout));
}
