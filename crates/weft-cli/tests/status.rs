//! `weft status` beside processes in known states.

mod support;

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::{err, out, Server};

fn weft(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).output().expect("it was built")
}

/// The entry of a server in `weft status --json`.
fn status_of(server: &Server) -> Value {
    let output = weft(&["status", "--json"]);
    assert!(output.status.success(), "{}", err(&output));
    let mut document: Value = serde_json::from_str(&out(&output)).expect("standard output is the document alone");
    let processes = document["processes"].as_array_mut().expect("a list");
    let found = processes.iter_mut().find(|process| process["pid"] == server.child.id());
    found.expect("the server is found").take()
}

fn is_stopped(server: &Server) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", server.child.id())).is_ok_and(|stat| stat.contains(") T "))
}

#[test]
fn a_server_is_found_with_what_it_has_answered() {
    let server = Server::start();
    assert!(weft(&["ping", &server.contact, "-c", "5", "-i", "0"]).status.success());
    let found = status_of(&server);
    assert_eq!(found["program"], "weft");
    let bundle = &found["status"]["bundles"][0];
    assert_eq!(
        (&bundle["counters"]["requests_delivered"], &bundle["counters"]["replies_sent"]),
        (&5.into(), &5.into())
    );
    let (name, _) = server.contact.split_once('#').expect("a name and a key");
    assert_eq!(bundle["endpoints"][0]["name"], name);
    assert!(
        !out(&weft(&["status", "--json"])).contains(server.contact.split_once('#').expect("a key").1),
        "keys are told"
    );
    let text = out(&weft(&["status"]));
    for part in [&format!("weft, process {}, user", server.child.id()), "5 requests delivered", name] {
        assert!(text.contains(part), "{part}: {text}");
    }
    server.interrupt();
}

#[test]
fn a_client_that_ended_in_order_is_not_told_as_a_loss() {
    let server = Server::start();
    assert!(weft(&["ping", &server.contact, "-c", "1"]).status.success());
    let since = Instant::now();
    loop {
        let text = out(&weft(&["status"]));
        if text.contains("1 reply sent, 1 request delivered, 1 peer gone") {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{text}");
    }
    server.interrupt();
}

#[test]
fn a_stopped_server_is_told_as_such_and_the_command_ends_soon() {
    let server = Server::start();
    let pid = Pid::from_child(&server.child);
    kill_process(pid, Signal::STOP).expect("it lives");
    let since = Instant::now();
    while !is_stopped(&server) {
        assert!(since.elapsed() < Duration::from_secs(10), "it does not stop");
    }
    let found = status_of(&server);
    let silent = found["silent"].as_str().expect("it says why");
    assert!(silent.contains("stopped") && silent.contains(&format!("kill -CONT {}", server.child.id())), "{silent}");
    assert!(out(&weft(&["status"])).contains("kill -CONT"));
    kill_process(pid, Signal::CONT).expect("it lives");
    assert!(status_of(&server)["status"].is_object());
    server.interrupt();
}

#[test]
fn a_process_without_a_helper_is_mentioned() {
    let server = Server::start_in(&[], &[("WEFT_HELPER", "off")]);
    let text = out(&weft(&["status"]));
    assert!(text.contains("without a helper (WEFT_HELPER=off)"), "{text}");
    server.interrupt();
}
