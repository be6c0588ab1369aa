//! Active Messages II from C: each case of the programs in `tests/c` is a process of its own.

mod support;

use std::process::Command;
use support::{crate_dir, program, run, run_well, Folder};

/// Builds a program and runs the cases that it lists.
fn run_cases(source: &str, at_least: usize) {
    let folder = Folder::new(source.trim_end_matches(".c"));
    let program = program(&folder, &crate_dir().join("tests/c").join(source));
    let listed = run_well(&mut Command::new(&program));
    let names = String::from_utf8(listed.stdout).expect("names are text");
    let mut faults = Vec::new();
    for name in names.lines() {
        let output = run(Command::new(&program).arg(name));
        if !output.status.success() {
            faults.push(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(names.lines().count() >= at_least, "{source} has lost cases: {names}");
}

#[test]
fn objects_behave_as_the_report_says() {
    run_cases("objects.c", 9);
}

#[test]
fn messages_behave_as_the_report_says() {
    run_cases("messages.c", 22);
}

#[test]
fn long_messages_behave_as_the_report_says() {
    run_cases("long.c", 10);
}

#[test]
fn parallel_bundles_take_several_threads() {
    run_cases("parallel.c", 4);
}

#[test]
#[ignore = "takes minutes"]
fn each_of_ten_million_requests_of_eight_threads_is_answered_once() {
    let folder = Folder::new("ten-million");
    let program = program(&folder, &crate_dir().join("tests/c/parallel.c"));
    run_well(Command::new(program).arg("eight_threads").env("REQUESTS", "10000000"));
}

#[test]
fn weft_h_does_what_it_says() {
    run_cases("native.c", 6);
}
