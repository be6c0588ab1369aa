//! Examples whose instructions are counted.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Counts the instructions of the example with callgrind. The example's arguments are the number of messages and `words`.
pub fn instructions(example: &Path, count: u32, words: &[&str], environment: &[(&str, &str)]) -> u64 {
    let mut command = Command::new("valgrind");
    command.args(CALLGRIND).arg(example).arg(count.to_string()).args(words).envs(environment.iter().copied());
    collected(command)
}

/// The arguments that make valgrind count instructions.
pub const CALLGRIND: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// The number of instructions that a command reports. The command has valgrind run a program with [`CALLGRIND`].
pub fn collected(mut command: Command) -> u64 {
    let out = command
        .current_dir(std::env::temp_dir())
        .output()
        .expect("valgrind is missing; to have it: scripts/setup.sh --for test");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "callgrind failed: {said}");
    let line = said.lines().find(|l| l.contains("Collected :")).expect("a line of callgrind's with the sum");
    line.rsplit(' ').next().expect("a number").parse().expect("a number")
}

/// The example as it is shipped, however these tests were built: the recorded counts are for that build.
pub fn counted_example(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let target = program.ancestors().nth(3).expect("a test lies in TARGET/PROFILE/deps");
    let example = target.join("release/examples").join(name);
    assert!(example.exists(), "{} is missing; to have it: scripts/test.sh build", example.display());
    example
}
