//! Shared by the tests of the command: a server, and commands' output.
#![allow(dead_code)] // each test program uses its own part of this
#![allow(clippy::disallowed_methods)] // a test that has no thread may panic

#[path = "../../../weft/tests/support/rights.rs"]
#[allow(clippy::duplicate_mod)] // the tests of wires have both supports
pub mod rights;

use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;

/// `weft serve`, ended when this is dropped.
pub struct Server {
    pub child: Child,
    pub contact: String,
}

impl Server {
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Server {
        Server::start_in(arguments, &[])
    }

    /// The same, with additional variables.
    pub fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        Server::run(command.arg("serve").args(arguments).envs(environment.iter().copied()))
    }

    /// The same, started by a program that executes it, as `unshare` does.
    pub fn start_by(command: &mut Command) -> Server {
        Server::run(command.args([env!("CARGO_BIN_EXE_weft"), "serve"]))
    }

    fn run(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
        let mut contact = String::new();
        let out = child.stdout.take().expect("it has a pipe");
        BufReader::new(out).read_line(&mut contact).expect("it prints its name and key");
        Server { child, contact: contact.trim().to_owned() }
    }

    /// Ends it as Ctrl-C does. Returns its output on standard error.
    pub fn interrupt(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it lives");
        assert!(self.child.wait().expect("it is ours").success());
        let mut said = String::new();
        self.child.stderr.take().expect("it has a pipe").read_to_string(&mut said).expect("it said text");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks it to end with SIGTERM: a process that a shell started in the background ignores Ctrl-C.
pub fn ask_to_end(child: &Child) {
    // If it has ended, it has not been reaped, so no other process has its number.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

/// The longest that a test waits for a line or an end.
const BOUND: Duration = Duration::from_secs(60);

/// A program that exchanges lines with the test, and is ended when this is dropped.
pub struct Program {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    pub fn start(command: &mut Command) -> Program {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it was built");
        let (put, lines) = channel();
        let out = child.stdout.take().expect("it has a pipe");
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| put.send(line))
        });
        Program { stdin: child.stdin.take(), child, lines }
    }

    /// The next line of its output.
    pub fn hear(&self) -> String {
        self.lines.recv_timeout(BOUND).expect("it says more")
    }

    /// Waits for these lines, in any order.
    pub fn hears(&self, wanted: &[&str]) {
        let mut heard: Vec<String> = wanted.iter().map(|_| self.hear()).collect();
        heard.sort();
        assert_eq!(heard, wanted);
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("it was not ended"), "{line}").expect("it listens");
    }

    /// Closes its input, and waits until it has ended by itself. Returns its standard error.
    pub fn finish(mut self) -> String {
        self.stdin = None;
        assert!(self.child.wait().expect("it is ours").success(), "{}", self.complaint());
        self.complaint()
    }

    /// The rest of its standard error, once it has ended.
    pub fn complaint(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().expect("it has a pipe").read_to_string(&mut said).expect("it said text");
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of one test, removed when this is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    /// `name` must be unique among tests.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("there is none yet");
        Folder(path)
    }

    /// The path of a file in it, which may not exist.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("it is text").to_owned()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.file(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `weft` as in a terminal of 80 columns.
pub fn weft(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(arguments).env("COLUMNS", "80").output().expect("weft starts")
}

/// The output of a command that succeeded.
pub fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", err(output));
    out(output)
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// How many namespaces of a process there are.
pub fn namespaces_of(pid: u32) -> usize {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("weft-{pid}-"))).count()
}

/// An example's program: next to the tests', where `cargo test` and `cargo build --examples` put it. Builds it if it is missing.
pub fn example(name: &str) -> PathBuf {
    built(&format!("examples/{name}"), &["-p", "weft", "--example", name])
}

/// An example of another package, in the same way.
pub fn program_example(package: &str, name: &str) -> PathBuf {
    built(&format!("examples/{name}"), &["-p", package, "--example", name])
}

/// A program of another package, in the same way.
pub fn program_of(package: &str, name: &str) -> PathBuf {
    built(name, &["-p", package, "--bin", name])
}

/// A library for C, in the same way.
pub fn library_of(package: &str, file: &str) -> PathBuf {
    built(file, &["-p", package, "--lib"])
}

/// A file below the folder of the tests' profile, which cargo builds with these arguments.
fn built(file: &str, what: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    let profile = test.parent().and_then(Path::parent).expect("tests lie in PROFILE/deps");
    let path = profile.join(file);
    if !path.is_file() {
        // A profile's folder has its name, except that of `dev`.
        let name_of_profile = profile.file_name().expect("a profile has a name");
        let name_of_profile = if name_of_profile == "debug" { "dev".as_ref() } else { name_of_profile };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked"]).args(what).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.arg("--profile").arg(name_of_profile);
        cargo.arg("--target-dir").arg(profile.parent().expect("a profile lies in the target directory"));
        let built = cargo.status().is_ok_and(|status| status.success());
        assert!(built && path.is_file(), "{} is missing: cargo build {}", path.display(), what.join(" "));
    }
    path
}
