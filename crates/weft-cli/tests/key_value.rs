//! The first example for a newcomer: a key-value server and its client.

mod support;

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use support::example;
use weft::{Bundle, Event, Node, Reason};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server. Also returns its name and key.
fn server(arguments: &[&str]) -> (Server, Vec<String>) {
    let mut child =
        Command::new(example("kv_server")).args(arguments).stdout(Stdio::piped()).spawn().expect("it was built");
    let mut line = String::new();
    let out = child.stdout.take().expect("it has a pipe");
    BufReader::new(out).read_line(&mut line).expect("it prints its name and key");
    (Server(child), line.split_whitespace().map(str::to_owned).collect())
}

fn client(arguments: &[&str]) -> Output {
    Command::new(example("kv_client")).args(arguments).output().expect("it was built")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn what_was_put_can_be_got() {
    let (_server, contact) = server(&[]);
    let [name, key] = &contact[..] else { panic!("not a name and a key: {contact:?}") };
    assert_eq!(said(&client(&[name, key, "get", "colour"])), "(nothing)");
    assert!(client(&[name, key, "put", "colour", "green"]).status.success());
    assert_eq!(said(&client(&[name, key, "get", "colour"])), "green");
}

#[test]
fn a_wrong_key_an_unparsable_name_and_a_dead_server_are_told_apart() {
    let (server, contact) = server(&[]);
    let [name, key] = &contact[..] else { panic!("not a name and a key: {contact:?}") };
    let fails = |name: &str, key: &str, why: &str| {
        let output = client(&[name, key, "get", "colour"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    fails(name, "12", "wrong key");
    fails("weft1:AQAA", key, "was the name cut");
    drop(server);
    fails(name, key, "nobody there");
}

/// Memory of a process in KiB.
fn memory_of(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("such a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_stopped_server_is_given_up_after_a_while() {
    let (server, contact) = server(&[]);
    let [name, key] = &contact[..] else { panic!("not a name and a key: {contact:?}") };
    let stop = Command::new("kill").args(["-STOP", &server.0.id().to_string()]).status();
    assert!(stop.expect("it is part of every system").success());
    let output = client(&[name, key, "get", "colour"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && (said.contains("no answer within") || said.contains("timed out")), "{said}");
}

#[test]
fn a_client_that_refuses_all_replies_costs_the_server_no_memory() {
    const REQUESTS: u64 = 100_000;
    let (server, contact) = server(&[]);
    let [name, key] = &contact[..] else { panic!("not a name and a key: {contact:?}") };
    assert!(client(&[name, key, "put", "big", &"x".repeat(9000)]).status.success());
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, name.parse().expect("a name"), key.parse().expect("a key")).expect("map");
    // It has no handler for the server's replies, so each reply is returned.
    for _ in 0..REQUESTS {
        bundle.request(here, 0, 1, &[], b"big").expect("mapped");
    }
    bundle.drain();
    // The server counts them.
    assert_eq!(bundle.counters().replies_refused, REQUESTS);
    let told = std::iter::from_fn(|| bundle.next_event());
    let told = told.filter(|event| matches!(event, Event::ReplyRefused { reason: Reason::NoHandler, .. })).count();
    assert_eq!(told, 1);
    let memory = memory_of(server.0.id());
    assert!(memory < 64 << 10, "{memory} KiB");
    // `weft status` shows the counts.
    let status = Command::new(env!("CARGO_BIN_EXE_weft")).args(["status", "--json"]).output().expect("it was built");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let processes = status["processes"].as_array().expect("processes");
    let ours = processes.iter().find(|p| p["pid"] == server.0.id()).expect("the server");
    let dropped = ours["status"]["bundles"][0]["counters"]["events_dropped"].as_u64().expect("a counter");
    assert!((REQUESTS..REQUESTS + 10).contains(&dropped), "{ours}");
}

#[test]
fn a_client_that_knows_the_port_needs_no_name() {
    // A port that was free a moment ago, if the loopback interface is up.
    let free = || TcpStream::connect(TcpListener::bind("127.0.0.1:0")?.local_addr()?)?.peer_addr();
    let Ok(address) = free() else { return eprintln!("LEFT OUT: a name by host and port: there is no loopback") };
    let (port, place) = (address.port().to_string(), address.to_string());
    let (server, _) = server(&[&port]);
    assert!(client(&[&place, "put", "colour", "green"]).status.success());
    assert_eq!(said(&client(&[&place, "get", "colour"])), "green");
    drop(server);
    let output = client(&[&place, "get", "colour"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(&place), "{said}");
    for words in [&[&place[..]][..], &[&place, "pot", "x"], &[]] {
        assert!(String::from_utf8_lossy(&client(words).stderr).contains("usage"), "{words:?}");
    }
}
