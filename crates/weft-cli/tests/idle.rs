//! How often waiting commands and examples are woken, by the kernel's count. `scripts/programs.sh` runs this program alone, because
//! a command that looks at processes wakes all of them.

mod support;

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use support::rights::is_root;
use support::{example, Folder, Server};

/// How long wake-ups are counted.
const TIME: Duration = Duration::from_secs(5);

/// How long commands have to start.
const BEGINNING: Duration = Duration::from_secs(3);

/// The most wake-ups of a command per second, all of its threads together.
const MOST: f64 = 5.0;

/// One test at a time: each would wake the others' commands.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command that is ended when this is dropped.
struct Waiting {
    what: String,
    child: Child,
}

impl Waiting {
    fn start(arguments: &[&str]) -> Waiting {
        Waiting::run(&mut Command::new(env!("CARGO_BIN_EXE_weft")), arguments)
    }

    /// The same in a network namespace of its own, where it sees no other processes. Needs root.
    fn start_alone(arguments: &[&str]) -> Waiting {
        Waiting::run(Command::new("unshare").args(["--net", env!("CARGO_BIN_EXE_weft")]), arguments)
    }

    /// The same in the network namespace of a server.
    fn start_beside(server: &Server, arguments: &[&str]) -> Waiting {
        match is_root() {
            true => {
                let namespace = format!("--net=/proc/{}/ns/net", server.child.id());
                Waiting::run(Command::new("nsenter").args([&namespace, env!("CARGO_BIN_EXE_weft")]), arguments)
            }
            false => Waiting::start(arguments),
        }
    }

    fn run(command: &mut Command, arguments: &[&str]) -> Waiting {
        // An input without data that does not end.
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Waiting { what: arguments.join(" "), child: command.spawn().expect("it was built") }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A wire removes its hosts when it is asked to end.
        support::ask_to_end(&self.child);
        let _ = self.child.wait();
    }
}

/// How often a process's threads have slept and been woken.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
    let of_task = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.map(of_task).sum()
}

/// Wake-ups per second of each process.
fn woken(pids: &[u32], beginning: Duration) -> Vec<f64> {
    // The start does not count, nor does the helper's last second of attention to a peer.
    std::thread::sleep(beginning);
    let before: Vec<u64> = pids.iter().map(|&pid| sleeps(pid)).collect();
    std::thread::sleep(TIME);
    let each = pids.iter().zip(before);
    each.map(|(&pid, before)| (sleeps(pid) - before) as f64 / TIME.as_secs_f64()).collect()
}

fn check(commands: &[Waiting], beginning: Duration, most: f64) {
    let pids: Vec<u32> = commands.iter().map(|command| command.child.id()).collect();
    for (command, woken) in commands.iter().zip(woken(&pids, beginning)) {
        eprintln!("{}: {woken} wake-ups a second", command.what);
        assert!(woken < most, "{}: {woken} wake-ups a second", command.what);
    }
}

/// A server; for root in a network namespace of its own, where commands that look at all processes do not wake it.
fn server() -> Server {
    match is_root() {
        true => Server::start_by(Command::new("unshare").arg("--net")),
        false => Server::start(),
    }
}

#[test]
fn a_command_that_waits_is_hardly_woken() {
    let _turn = turn();
    let server = server();
    let mut commands = vec![
        Waiting::start_beside(&server, &["serve"]),
        Waiting::start_beside(&server, &["ping", &server.contact, "-i", "3600"]),
        Waiting::start(&["bench", "pair", "--listen", "--port", "0"]),
    ];
    if is_root() {
        commands.push(Waiting::start(&["wire", "--here", "sleep 60", "--there", "sleep 60"]));
    }
    check(&commands, BEGINNING, MOST);
}

#[test]
fn an_example_that_waits_is_hardly_woken() {
    let _turn = turn();
    let folder = Folder::new("idle");
    let to = folder.file("to");
    let examples: [(&str, &[&str]); 6] = [
        ("first", &[]),
        ("own_client", &[]),
        ("kv_server", &[]),
        ("chat", &["ann"]),
        ("copy_file", &["receive", &to]),
        ("work_queue", &["master", "1000"]),
    ];
    let mut commands: Vec<Waiting> = Vec::new();
    for (name, arguments) in examples {
        let mut waiting = Waiting::run(&mut Command::new(example(name)), arguments);
        waiting.what = format!("{name} {}", waiting.what);
        commands.push(waiting);
    }
    check(&commands, BEGINNING, MOST);
}

#[test]
fn a_command_that_looks_each_second_is_woken_for_that_alone() {
    let _turn = turn();
    if !is_root() {
        return eprintln!("LEFT OUT: commands that look at all processes: only root may have them see none here");
    }
    let commands = [&["trace", "--stages", "--json"][..], &["trace"], &["top", "--json"]];
    // A trace of stages looks four times a second until nothing has been stamped for 10 s.
    check(&commands.map(Waiting::start_alone), Duration::from_secs(14), MOST);
}

#[test]
fn a_ping_sleeps_until_its_answer_comes() {
    let _turn = turn();
    let server = server();
    // Twice its own wake-up and that of its answer, and the helper's attention to a peer.
    check(&[Waiting::start_beside(&server, &["ping", &server.contact, "-i", "1"])], BEGINNING, 3.0 * MOST);
}
