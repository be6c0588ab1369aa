//! The cost of C: instructions in addition to Rust's, and locked operations of calls in a parallel bundle.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{crate_dir, program, run_well, Folder, STRICT};

/// Instructions that C may add to a poll. The goal of 40 is not reached: `docs/measurements/2026-11-29-capi.md`.
const MORE_MOST: f64 = 62.0;

/// The same for a request with its reply: a request, two polls, a reply, and two handlers. The goal of 40 for each of them would be 240.
const ROUND_TRIP_MOST: f64 = 385.0;

/// Instructions of a program for one of `what`, by callgrind.
fn instructions(program: &Path, what: &str) -> f64 {
    let count = |times: u32| -> u64 {
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .arg(times.to_string())
            .arg(what);
        let output = run_well(&mut valgrind);
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find(|line| line.contains("Collected :")).expect("a line of callgrind's with the sum");
        line.rsplit(' ').next().and_then(|sum| sum.parse().ok()).expect("a number")
    };
    let per_one = || count(11_000).saturating_sub(count(1_000)) as f64 / 10_000.0;
    // Other threads of the process count too, so take the run that they disturbed least.
    (0..5).map(|_| per_one()).fold(f64::MAX, f64::min)
}

/// The shipped build, whatever profile these tests have.
fn shipped(file: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let path = test.ancestors().nth(3).expect("a test lies in TARGET/PROFILE/deps").join("release").join(file);
    assert!(path.exists(), "{} is missing; to have it: scripts/test.sh build", path.display());
    path
}

#[test]
fn c_takes_few_instructions_more_than_rust() {
    let folder = Folder::new("costs");
    for name in ["libweft.so", "libweft.so.0"] {
        std::os::unix::fs::symlink(shipped("libweft_c.so"), folder.path().join(name)).expect("a link");
    }
    let in_c = folder.path().join("count");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_DEFAULT_SOURCE", "-O2"]).args(STRICT).arg("-I").arg(crate_dir().join("include"));
    cc.arg(crate_dir().join("tests/c/count.c")).arg("-o").arg(&in_c).arg("-L").arg(folder.path()).arg("-lweft");
    run_well(cc.arg(format!("-Wl,-rpath,{}", folder.path().display())));
    let in_rust = shipped("examples/count_rust");
    let more = |what: &str| {
        let (c, rust) = (instructions(&in_c, what), instructions(&in_rust, what));
        eprintln!("{what}: {c:.1} instructions in C, {rust:.1} in Rust");
        c - rust
    };
    let poll = more("polls");
    assert!(poll <= MORE_MOST, "{poll:.1} more for a poll");
    let round_trip = more("requests");
    assert!(round_trip <= ROUND_TRIP_MOST, "{round_trip:.1} more for a request with its reply");
}

#[test]
fn a_call_in_a_parallel_bundle_takes_two_locked_operations() {
    let folder = Folder::new("locked");
    let program = program(&folder, &crate_dir().join("tests/c/locked.c"));
    let output = run_well(&mut Command::new(program));
    eprint!("{}", String::from_utf8_lossy(&output.stdout));
}
