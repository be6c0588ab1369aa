//! Output that cannot be written: every command that prints, into a full device and into a pipe without a reader; and commands that
//! need a thread but cannot start one. None may panic.

mod support;

use rustix::pipe::{pipe_with, PipeFlags};
use std::fs::{File, OpenOptions};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::rights::is_root;
use support::{err, Folder, Server};

/// Longer than any of the commands takes on a machine that is not stuck.
const BOUND: Duration = Duration::from_secs(120);

/// The exit status when nobody reads standard output any more: 128 and the number of SIGPIPE.
const CLOSED: i32 = 141;

/// A panic's exit status.
const PANICKED: i32 = 101;

/// A stack size that no thread can have, so that each start of a thread fails.
const NO_THREADS: (&str, &str) = ("RUST_MIN_STACK", "70368744177664");

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("Linux has it")
}

fn closed_pipe() -> Stdio {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    drop(reader);
    Stdio::from(writer)
}

/// Runs a command, which must end by itself.
fn run(arguments: &[String], stdout: Stdio, stderr: Stdio, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).current_dir(std::env::temp_dir()).envs(environment.iter().copied());
    let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().expect("it was built");
    let since = Instant::now();
    while child.try_wait().expect("it is ours").is_none() {
        if since.elapsed() > BOUND {
            let _ = child.kill();
            panic!("{arguments:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it is ours")
}

/// The files and processes that the commands need.
struct Stage {
    server: Server,
    folder: Folder,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = Folder::new(name);
        folder.write("words.txt", &"the words of a text\n".repeat(100));
        let stage = Stage { server: Server::start(), folder };
        if has_two_cpus() {
            let file = stage.folder.file("rows.json");
            let measured = "bench local --quick --rounds 1 --ms 2 --only rate --systems weft --json";
            let mut arguments = words(measured);
            arguments.push(file);
            let output = run(&arguments, Stdio::null(), Stdio::piped(), &[]);
            assert!(output.status.success(), "{}", err(&output));
        }
        stage
    }

    /// All commands that print, as a user types them.
    fn commands(&self) -> Vec<Vec<String>> {
        let (contact, text, rows) =
            (&self.server.contact, self.folder.file("words.txt"), self.folder.file("rows.json"));
        let page = self.folder.file("page.html");
        let mut all = vec![
            "--help".to_owned(),
            "--version".to_owned(),
            "help ping".to_owned(),
            "man".to_owned(),
            "completions bash".to_owned(),
            "doctor".to_owned(),
            "doctor --json".to_owned(),
            "status".to_owned(),
            "status --json".to_owned(),
            format!("explain {contact}"),
            format!("explain {contact} --json"),
            format!("ping {contact} -c 2 -i 0"),
            format!("ping {contact} -c 2 -i 0 --json"),
            "serve".to_owned(),
            "top --once --interval 0.1".to_owned(),
            "top --once --interval 0.1 --json".to_owned(),
            "top --interval 0.1 --json".to_owned(),
            "trace --stages --duration 0.3".to_owned(),
            "trace --stages --duration 0.3 --json".to_owned(),
            "sim --count 10".to_owned(),
            "sim --count 10 --json".to_owned(),
            "sim --count 10 --plot -".to_owned(),
            "run -n 1 --json - true".to_owned(),
            "sim --count 10 --compare-channels=0%".to_owned(),
            "sim --count 10 --compare-channels=0% --json".to_owned(),
            format!("demo --no-bench {text}"),
        ];
        if has_two_cpus() {
            let bench = "bench local --quick --rounds 1 --ms 2 --only rate --systems weft";
            all.extend(["", " --markdown", " --json -"].map(|how| format!("{bench}{how}")));
            all.push("bench pair --listen --port 0".to_owned());
            all.push(format!("bench report {rows} --output {page}"));
            all.push(format!("bench report {rows} --markdown"));
            all.push(format!("bench report {rows} --output -"));
            all.push(format!("bench compare {rows} {rows}"));
        }
        if is_root() {
            all.push("wire --here true --json -".to_owned());
            all.push("trace --pcap -".to_owned());
        }
        all.iter().map(|command| words(command)).collect()
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

#[test]
fn a_full_device_is_an_error_with_its_cause() {
    let stage = Stage::new("output-full");
    for command in stage.commands() {
        let output = run(&command, full().into(), Stdio::piped(), &[]);
        let said = err(&output);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("No space left on device") && said.contains("weft: cannot write"), "{command:?}: {said}");
    }
}

#[test]
fn a_pipe_whose_reader_is_gone_ends_a_command_quietly() {
    let stage = Stage::new("output-closed");
    for command in stage.commands() {
        let output = run(&command, closed_pipe(), Stdio::piped(), &[]);
        let said = err(&output);
        assert_eq!(output.status.code(), Some(CLOSED), "{command:?}: {said}");
        assert!(
            !said.contains("cannot") && !said.contains("nobody") && !said.contains("panicked"),
            "{command:?}: {said}"
        );
    }
}

#[test]
fn standard_error_that_takes_nothing_changes_nothing() {
    let stage = Stage::new("output-error");
    for (what, nowhere) in [("full", &full as &dyn Fn() -> File), ("closed", &|| closed())] {
        // One that succeeds with output there, one that fails, and two with wrong arguments.
        for (command, status) in [
            (format!("ping {} -c 1", stage.server.contact), 0),
            ("trace --stages --duration 0.3".to_owned(), 0),
            ("explain 127.0.0.1:1".to_owned(), 1),
            ("ping x".to_owned(), 2),
            ("no-such-command".to_owned(), 2),
        ] {
            let output = run(&words(&command), Stdio::null(), nowhere().into(), &[]);
            assert_eq!(output.status.code(), Some(status), "{command}, standard error {what}");
        }
    }
}

fn closed() -> File {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    drop(reader);
    File::from(writer)
}

#[test]
fn where_no_thread_can_be_had_that_is_said() {
    let stage = Stage::new("output-threads");
    let contact = &stage.server.contact;
    for command in [
        "serve".to_owned(),
        format!("ping {contact} -c 1"),
        "ping 127.0.0.1:1 -c 1".to_owned(),
        "sim --count 10".to_owned(),
        "trace --stages --duration 0.3".to_owned(),
    ] {
        let output = run(&words(&command), Stdio::null(), Stdio::piped(), &[NO_THREADS]);
        let said = err(&output);
        assert_ne!(output.status.code(), Some(PANICKED), "{command}: {said}");
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("start a thread") && said.contains("ulimit -u"), "{command}: {said}");
    }
    // These need no threads, or find one missing in the processes they look at.
    for command in ["status", "doctor", "man"] {
        let output = run(&words(command), Stdio::null(), Stdio::piped(), &[NO_THREADS]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{command}: {}", err(&output));
    }
}

#[test]
fn a_reader_that_takes_one_line_ends_a_ping_without_end() {
    let server = Server::start();
    let ping = format!("{} ping '{}' -i 0.01 | head -c 1", env!("CARGO_BIN_EXE_weft"), server.contact);
    let script = format!("set -o pipefail; {ping}");
    let output = Command::new("bash").args(["-c", &script]).output().expect("a shell");
    assert_eq!((output.status.code(), err(&output)), (Some(CLOSED), String::new()));
}
