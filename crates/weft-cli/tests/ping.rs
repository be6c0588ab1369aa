//! `weft serve` and `weft ping`, between two processes of this host.

mod support;

use serde_json::Value;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use support::rights::is_root;
use support::{err, out, Folder, Server};

/// A user other than the tests'.
const FOREIGNER: u32 = 65_533;

fn ping(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("ping").args(arguments).output().expect("it was built")
}

#[test]
fn every_ping_is_answered_and_the_server_counts_them() {
    let server = Server::start();
    let output = ping(&[&server.contact, "-c", "3", "-i", "0.01"]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(out(&output).contains("3 of 3 answered: at least"), "{}", out(&output));
    let output = ping(&[&server.contact, "-c", "2", "-i", "0", "--json"]);
    let document: Value = serde_json::from_str(&out(&output)).expect("standard output is the document alone");
    assert_eq!((&document["sent"], &document["answered"]), (&2.into(), &2.into()), "{document}");
    let ns = |field: &str| document[field].as_f64().expect("a number of nanoseconds");
    assert!(0.0 < ns("min_ns") && ns("min_ns") <= ns("median_ns") && ns("median_ns") <= ns("p99_ns"), "{document}");
    assert!(server.interrupt().contains("answered 5 requests"));
}

#[test]
fn what_comes_back_is_told_with_the_reason_and_a_failing_status() {
    let server = Server::start();
    let contact = server.contact.clone();
    let (name, _) = contact.split_once('#').expect("a name and a key");
    let fails = |to: &str, reason: &str| {
        let output = ping(&[to, "-c", "2", "-i", "0"]);
        assert_eq!(output.status.code(), Some(1), "{}", out(&output));
        assert_eq!(out(&output).matches(reason).count(), 2, "{}", out(&output));
        assert!(err(&output).contains("no answer (2 sent)"), "{}", err(&output));
    };
    fails(&format!("{name}#12"), "came back: wrong key");
    drop(server);
    fails(&contact, "came back: nobody there");
}

#[test]
fn a_name_without_its_key_is_refused_with_a_hint() {
    for (to, hint) in
        [("weft1:AQAA", "the key is missing"), ("weft1:AQAA#1", "was the name cut"), ("x#1", "a name begins with")]
    {
        let output = ping(&[to]);
        assert_eq!(output.status.code(), Some(2), "{to}");
        assert!(err(&output).contains(hint), "{to}: {}", err(&output));
    }
}

/// A port that was free a moment ago. `None` without a loopback interface.
fn free_port() -> Option<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let address = listener.local_addr().ok()?;
    TcpStream::connect(address).ok()?;
    Some(address.port())
}

#[test]
fn a_host_and_port_are_enough_where_a_server_tells_its_name() {
    let Some(port) = free_port() else {
        let output = ping(&["127.0.0.1:7119", "-c", "1"]);
        assert!(err(&output).contains("cannot get a name and key"), "{}", err(&output));
        return;
    };
    let to = format!("127.0.0.1:{port}");
    let nobody = ping(&[&to, "-c", "1"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(err(&nobody).contains(&to) && err(&nobody).contains("weft serve --port"), "{}", err(&nobody));

    let port = port.to_string();
    let server = Server::start_with(&["--port", &port]);
    // Callers that say nothing, or leave at once, delay nobody.
    let _silent: Vec<_> = (0..20).map(|_| TcpStream::connect(&to).expect("it listens")).collect();
    (0..20).for_each(|_| drop(TcpStream::connect(&to)));
    let output = ping(&[&to, "-c", "2", "-i", "0", "--json"]);
    assert!(output.status.success(), "{}", err(&output));
    let document: Value = serde_json::from_str(&out(&output)).expect("standard output is the document alone");
    let name = document["name"].as_str().expect("a name");
    assert!(server.contact.starts_with(name), "{name} is not of {}", server.contact);

    let mut second = Command::new(env!("CARGO_BIN_EXE_weft"));
    let second = second.args(["serve", "--port", &port]).output().expect("it was built");
    assert_eq!(second.status.code(), Some(1), "two have one port: {}", out(&second));
    assert!(err(&second).contains("port"), "{}", err(&second));
    assert!(server.interrupt().contains("answered 2 requests"));
}

#[test]
fn a_port_that_cannot_be_and_a_host_that_says_nothing_are_told_as_such() {
    for command in ["ping", "explain"] {
        let output = Command::new(env!("CARGO_BIN_EXE_weft")).args([command, "localhost:99999"]).output();
        let output = output.expect("it was built");
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains("from 1 to 65535") && !err(&output).contains("no key"), "{}", err(&output));
    }
    // A listener that accepts, and says nothing.
    let Some(_) = free_port() else { return };
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a loopback");
    let at = silent.local_addr().expect("it has one").to_string();
    let output = ping(&[&at, "-c", "1", "-W", "0.3"]);
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    assert!(
        said.contains("no answer from") && said.contains("within 0.3 s") && !said.contains("temporarily unavailable"),
        "{said}"
    );
}

#[test]
fn another_users_pings_are_answered_where_the_server_says_so_and_only_there() {
    let servers = [("all", Server::start_with(&["--users", "all"])), ("own", Server::start_with(&["--users", "own"]))];
    for (users, server) in &servers {
        let output = ping(&[&server.contact, "-c", "1"]);
        assert!(output.status.success(), "its own user, with --users {users}: {}", err(&output));
    }
    if !is_root() {
        return eprintln!("LEFT OUT: pings of another user: only root may become one");
    }
    // A place where that user may execute it.
    let folder = Folder::new("users");
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let weft = folder.file("weft");
    std::fs::copy(env!("CARGO_BIN_EXE_weft"), &weft).expect("there is room");
    for (users, server) in &servers {
        let mut foreigner = Command::new(&weft);
        let output = foreigner.args(["ping", &server.contact, "-c", "2", "-i", "0"]).uid(FOREIGNER).output();
        let output = output.expect("root may become anybody");
        assert_eq!(output.status.success(), *users == "all", "{users}: {}{}", out(&output), err(&output));
        assert_eq!(out(&output).matches("came back: another user").count(), if *users == "all" { 0 } else { 2 });
    }
}
