//! `weft top` in a terminal: its screen while processes exchange messages, and that the terminal is restored.

mod support;
#[path = "support/terminal.rs"]
mod terminal;

use rustix::process::{kill_process, waitpid, Pid, Signal, WaitOptions};
use rustix::termios::tcgetattr;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use support::{err, out, Server};
use terminal::Terminal;

fn weft(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(arguments).output().expect("it was built")
}

/// `weft top` in a terminal of its own.
fn top(arguments: &[&str]) -> Terminal {
    Terminal::start(&[&["top", "--interval", "0.1"], arguments].concat())
}

/// `weft ping` without end; killed when this is dropped.
struct Pinger(Child);

impl Pinger {
    fn start(server: &Server) -> Pinger {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(["ping", &server.contact, "-i", "0.005"]).stdout(Stdio::null()).stderr(Stdio::null());
        Pinger(command.spawn().expect("it was built"))
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The line of a screen that contains all of these parts.
fn line(screen: &vt100::Screen, parts: &[&str]) -> Option<String> {
    screen.contents().lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned)
}

/// The rate of the flow to a process, if it is shown.
fn rate(screen: &vt100::Screen, to: u32) -> Option<f64> {
    let line = line(screen, &["→", &format!("process {to}"), "memory"])?;
    line.split("memory").nth(1)?.split_whitespace().next()?.parse().ok()
}

#[test]
fn the_screen_has_who_sends_to_whom_how_fast_and_what_limits_it() {
    let server = Server::start();
    let pinger = Pinger::start(&server);
    let mut top = top(&[]);
    let there = server.child.id();
    top.see("a rate", |screen| rate(screen, there).is_some_and(|rate| (5.0..400.0).contains(&rate)));
    assert!(top.emulator.screen().alternate_screen() && top.emulator.screen().hide_cursor());
    top.see("both", |screen| {
        let of = |pid: u32| line(screen, &[&format!("weft, process {pid}, user"), "1 endpoint", "/s"]).is_some();
        of(there) && of(pinger.0.id())
    });
    // The server is stopped: messages to it stay unread.
    kill_process(Pid::from_child(&server.child), Signal::STOP).expect("it lives");
    top.see("the limit", |screen| line(screen, &["→", "the application there"]).is_some());
    top.see_text("kill -CONT");
    kill_process(Pid::from_child(&server.child), Signal::CONT).expect("it lives");
    top.see("no limit", |screen| {
        line(screen, &["→", "the application there"]).is_none() && rate(screen, there).is_some()
    });
    top.press("q");
    top.ends();
    drop(pinger);
    server.interrupt();
}

#[test]
fn a_key_that_ctrl_c_took_away_is_not_waited_for() {
    // The program may hear of the key before both are taken away, so one try is not enough to see it.
    for _ in 0..20 {
        let mut top = top(&[]);
        top.see("the screen", |screen| screen.alternate_screen() && screen.contents().contains("q quit"));
        top.press("p");
        top.press("\x03");
        top.ends();
    }
}

#[test]
fn keys_sort_pause_explain_and_a_small_terminal_has_what_matters() {
    let server = Server::start();
    let pinger = Pinger::start(&server);
    let mut top = top(&[]);
    top.see("a rate", |screen| rate(screen, server.child.id()).is_some());
    top.press("s");
    top.see_text("by bytes/s");
    top.press("h");
    top.see_text("q quit   s sort by another column");
    top.press("h");
    top.see("the table", |screen| rate(screen, server.child.id()).is_some());
    top.resize(8, 50);
    top.see("a narrow table", |screen| {
        let has_names = line(screen, &["messages/s", "limited by"]).is_some();
        has_names && line(screen, &["q quit"]).is_some() && line(screen, &["asking"]).is_none()
    });
    top.resize(30, 150);
    top.see("a wide table", |screen| line(screen, &["messages/s", "asking", "trip", "limited by"]).is_some());
    top.press("p");
    top.see_text("PAUSED");
    // Nobody looks now, so a process that ends stays on the screen until the next look.
    server.interrupt();
    top.press("s");
    // The rows may arrive after the line that names the order.
    top.see("the process that ended, by limit", |screen| {
        screen.contents().contains("by limit") && line(screen, &["1 endpoint"]).is_some()
    });
    top.press("p");
    top.see("one process", |screen| screen.contents().contains(&format!("process {}", pinger.0.id())));
    top.press("\x03");
    top.ends();
}

#[test]
fn where_no_thread_can_be_had_the_terminal_is_given_back_and_that_is_said() {
    // No thread can have such a stack.
    let mut top = Terminal::start_in(&["top"], &[("RUST_MIN_STACK", "70368744177664")]);
    top.see_text("cannot start a thread");
    assert_eq!(top.child.wait().expect("it is ours").code(), Some(1));
    assert!(!top.emulator.screen().alternate_screen() && !top.emulator.screen().hide_cursor());
    let after = tcgetattr(&top.program_end).expect("a terminal");
    assert_eq!(after.local_modes, top.before.local_modes);
}

#[test]
fn processes_come_and_go() {
    let mut top = top(&[]);
    top.see_text("weft top by messages/s:");
    let server = Server::start();
    let title = format!("weft, process {}, user", server.child.id());
    top.see_text(&title);
    server.interrupt();
    top.see("it is gone", |screen| !screen.contents().contains(&title));
    top.press("q");
    top.ends();
}

#[test]
fn the_terminal_is_given_back_on_signals_too_and_lent_while_stopped() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut top = top(&[]);
        top.see_text("weft top");
        top.signal(signal);
        top.ends();
    }
    let mut top = top(&[]);
    top.see_text("weft top");
    top.press("\x1a");
    top.see("the shell's screen", |screen| !screen.alternate_screen() && !screen.hide_cursor());
    assert_eq!(tcgetattr(&top.program_end).expect("a terminal").local_modes, top.before.local_modes);
    // Continues only if it is stopped.
    let stopped = waitpid(Some(Pid::from_child(&top.child)), WaitOptions::UNTRACED).expect("it is ours");
    assert!(stopped.is_some_and(|(_, status)| status.stopped()), "{stopped:?}");
    top.signal(Signal::CONT);
    top.see("its own screen", |screen| screen.alternate_screen() && screen.contents().contains("weft top"));
    top.press("q");
    top.ends();
}

#[test]
fn programs_are_told_once_or_line_by_line_and_without_a_terminal_it_says_so() {
    let server = Server::start();
    let pinger = Pinger::start(&server);
    let text = out(&weft(&["top", "--once", "--interval", "0.2"]));
    assert!(text.contains("messages/s") && text.contains(&format!("process {}", server.child.id())), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    let output = weft(&["top", "--once", "--json", "--interval", "0.2"]);
    let document: Value = serde_json::from_str(&out(&output)).expect("standard output is the document alone");
    let processes = document["processes"].as_array().expect("a list");
    let found = processes.iter().find(|process| process["pid"] == pinger.0.id()).expect("it is found");
    let flow = &found["bundles"][0]["peers"][0]["flows"][0];
    assert!(flow["messages_per_s"].as_f64().is_some_and(|rate| rate > 5.0), "{flow}");
    assert_eq!((&flow["limited_by"], &flow["requests_most"]), (&"nothing".into(), &32.into()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let mut lines = command.args(["top", "--json", "--interval", "0.1"]).stdout(Stdio::piped()).spawn().expect("built");
    let mut reader = std::io::BufReader::new(lines.stdout.take().expect("it has a pipe"));
    for _ in 0..3 {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut reader, &mut line).expect("it prints");
        let _: Value = serde_json::from_str(&line).expect("a document a line");
    }
    // It ends when nobody reads its output.
    drop(reader);
    let status = lines.wait().expect("it is ours");
    assert!(status.code() == Some(141) && status.signal().is_none(), "{status}");
    let refused = weft(&["top"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("--once or --json"), "{}", err(&refused));
    server.interrupt();
}
