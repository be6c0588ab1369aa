//! The examples in C, built as any user's program is, and run.

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use support::{program, root, run, Folder};

fn example(folder: &Folder, name: &str) -> PathBuf {
    program(folder, &root().join("examples/c").join(name).with_extension("c"))
}

/// Runs an example and returns what it printed.
fn said(name: &str, args: &[&str]) -> String {
    let folder = Folder::new(name);
    let output = run(Command::new(example(&folder, name)).args(args));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {args:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

#[test]
fn echo_answers_another_process() {
    let folder = Folder::new("echo");
    let program = example(&folder, "echo");
    let mut server =
        Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the server starts");
    let mut name = String::new();
    BufReader::new(server.stdout.take().expect("it is piped")).read_line(&mut name).expect("the server's name");
    let output = run(Command::new(&program).args([name.trim(), "hello over there"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello over there\n");
    let wrong = run(Command::new(&program).args(["nonsense", "hello"]));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("weft1:"));
    // The server ends at the end of its input.
    drop(server.stdin.take());
    assert!(server.wait().expect("the server ends").success());
}

#[test]
fn store_keeps_words_of_several_processes() {
    assert_eq!(said("store", &["4"]), "3 processes used the store\n");
}

#[test]
fn ring_passes_a_token_round() {
    assert_eq!(said("ring", &["4", "500"]), "the token was passed on 2000 times\n");
}

#[test]
fn sum_adds_up_in_several_processes() {
    assert_eq!(said("sum", &["5", "1000000"]), "the sum is 500000500000\n");
}

#[test]
fn transfer_places_memory() {
    assert_eq!(said("transfer", &["16"]), "16 MiB are there\n");
}
