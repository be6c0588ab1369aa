//! `weft explain` beside processes in known states.

mod support;

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{err, out, Server};
use weft::{Bundle, Node};

fn explain(to: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["explain", "--json", to]).envs(environment.iter().copied()).output().expect("it was built")
}

fn document(output: &Output) -> Value {
    serde_json::from_str(&out(output)).expect("standard output is the document alone")
}

/// A process that pings a server until it is dropped.
struct Pinger(Child);

impl Pinger {
    fn start(server: &Server) -> Pinger {
        Pinger::start_in(server, &[])
    }

    fn start_in(server: &Server, environment: &[(&str, &str)]) -> Pinger {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(["ping", &server.contact, "-i", "0.01"]).envs(environment.iter().copied());
        let command = command.stdout(Stdio::null());
        Pinger(command.spawn().expect("it was built"))
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repeats `weft explain` until the document is right, since its facts take a moment to come about.
fn explain_until(server: &Server, what: &str, right: impl Fn(&Value) -> bool) -> Value {
    let since = Instant::now();
    loop {
        let told = document(&explain(&server.contact, &[]));
        if right(&told) {
            return told;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "waited in vain for {what}: {told:#}");
    }
}

#[test]
fn a_process_of_this_host_is_reached_through_memory_and_once_it_ended_not_at_all() {
    let server = Server::start();
    let contact = server.contact.clone();
    let output = explain(&contact, &[]);
    assert!(output.status.success(), "{}", err(&output));
    let told = document(&output);
    assert_eq!((&told["way"]["path"], &told["way"]["why"]), (&"memory".into(), &"same_host".into()), "{told:#}");
    assert_eq!(told["way"]["holder"]["pid"], server.child.id());
    assert_eq!((&told["endpoint"]["exists"], &told["endpoint"]["is_served"]), (&true.into(), &true.into()));
    assert_eq!(told["senders"], Value::Array(Vec::new()));
    drop(server);
    let output = explain(&contact, &[]);
    assert_eq!(output.status.code(), Some(1));
    let told = document(&output);
    assert!(
        told["way"]["path"].is_null() && ["ended", "no_address"].contains(&told["way"]["why"].as_str().expect("why"))
    );
    assert!(err(&output).contains("no message of this user gets there"), "{}", err(&output));
}

#[test]
fn the_environment_decides_as_it_does_for_programs() {
    let server = Server::start_in(&[], &[("WEFT_ADDR", "127.0.0.1")]);
    let by_udp = [("WEFT_LOCAL", "off"), ("WEFT_ADDR", "127.0.0.1")];
    let told = document(&explain(&server.contact, &by_udp));
    // Some test networks have no loopback.
    if told["way"]["why"] != "no_route" {
        assert_eq!((&told["way"]["path"], &told["way"]["why"]), (&"network".into(), &"local_off".into()), "{told:#}");
        let leg = &told["way"]["addresses"][0];
        assert!(leg["to"].as_str().is_some_and(|to| to.starts_with("127.0.0.1:")), "{leg}");
        assert_eq!((&leg["from"], &leg["interface"]), (&"127.0.0.1".into(), &"lo".into()));
    }
    let told = document(&explain(&server.contact, &[("WEFT_LOCAL", "off"), ("WEFT_ADDR", "none")]));
    assert_eq!((&told["way"]["path"], &told["way"]["why"]), (&Value::Null, &"no_network".into()), "{told:#}");
    let wrong = explain(&server.contact, &[("WEFT_LOCAL", "off"), ("WEFT_ADDR", "here")]);
    assert!(err(&wrong).contains("WEFT_ADDR") && wrong.status.code() == Some(1), "{}", err(&wrong));
}

#[test]
fn a_sender_is_told_as_limited_by_nothing_and_by_a_peer_that_stands_still() {
    let server = Server::start();
    let pinger = Pinger::start(&server);
    let sends = |told: &Value| told["senders"][0]["limit"] == "nothing" && told["senders"][0]["flow"].is_object();
    let told = explain_until(&server, "a sender", sends);
    let process = told["senders"][0]["process"].as_str().expect("who");
    assert!(process.contains(&pinger.0.id().to_string()), "{process}");
    kill_process(Pid::from_child(&server.child), Signal::STOP).expect("it lives");
    let told = explain_until(&server, "the limit", |told| told["senders"][0]["limit"] == "application");
    let because = told["senders"][0]["because"].as_str().expect("why");
    assert!(
        because.contains("bytes wait") && because.contains("stopped") && because.contains("Let it go on"),
        "{because}"
    );
    assert!(told["endpoint"]["state"].as_str().expect("its state").contains("kill -CONT"), "{told:#}");
    kill_process(Pid::from_child(&server.child), Signal::CONT).expect("it lives");
    explain_until(&server, "the end of the limit", sends);
}

#[test]
fn what_checksums_cover_is_told_as_both_sides_agreed_on_it() {
    let by_udp = [("WEFT_LOCAL", "off"), ("WEFT_ADDR", "127.0.0.1")];
    let with = |integrity| [by_udp[0], by_udp[1], ("WEFT_INTEGRITY", integrity)];
    for (there, here, agreed, words) in [
        ("header", "header", "header", "integrity: header (payloads are left to UDP's checksum and the link)"),
        ("full", "header", "full", "integrity: full (this side asked for header, and the peer did not)"),
        ("header", "full", "full", "integrity: full\n"),
    ] {
        let server = Server::start_in(&[], &with(there));
        let told = document(&explain(&server.contact, &by_udp));
        // Some test networks have no loopback.
        if told["way"]["why"] == "no_route" {
            return;
        }
        let _pinger = Pinger::start_in(&server, &with(here));
        let told = explain_until(&server, "a sender", |told| told["senders"][0]["flow"].is_object());
        let sender = &told["senders"][0];
        assert_eq!((&sender["integrity"], &sender["integrity_wanted"]), (&agreed.into(), &here.into()), "{told:#}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        let said = out(&command.args(["explain", &server.contact]).output().expect("it was built"));
        assert!(said.contains(words), "{said}");
    }
    let server = Server::start();
    let _pinger = Pinger::start(&server);
    let told = explain_until(&server, "a sender", |told| told["senders"][0]["flow"].is_object());
    assert!(told["senders"][0].get("integrity").is_none(), "memory has no checksums: {told:#}");
}

#[test]
fn what_is_no_name_is_refused_with_a_hint() {
    for (to, hint) in
        [("weft1:AQAA", "was the name cut or wrapped"), ("x", "a name begins with"), ("weft1:AQAA#x", "hexadecimal")]
    {
        let output = explain(to, &[]);
        assert_eq!(output.status.code(), Some(2), "{to}");
        assert!(err(&output).contains(hint), "{to}: {}", err(&output));
    }
}

#[test]
fn a_mistyped_reason_is_told_with_those_near_it() {
    for (to, hint) in [
        ("revokd", "It is no reason either; near it: Revoked"),
        ("noregon", "near it: NoSuchEndpoint, NoHandler, NobodyThere, NoRoom, NoRegion, NoRight"),
        ("xyz", "the reasons are WrongKey, NoSuchEndpoint, "),
    ] {
        let output = explain(to, &[]);
        assert_eq!(output.status.code(), Some(2), "{to}");
        assert!(err(&output).contains(hint), "{to}: {}", err(&output));
    }
    for to in ["weft1:AQAA", "10.0.0.1"] {
        assert!(!err(&explain(to, &[])).contains("reason"), "{to}");
    }
}

/// Runs `weft explain` while a bundle of the test is polled.
fn explain_beside(bundle: &mut Bundle, to: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["explain", to]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it was built");
    while child.try_wait().expect("it is ours").is_none() {
        bundle.wait(Some(Duration::from_millis(5)));
    }
    child.wait_with_output().expect("it is ours")
}

#[test]
fn an_endpoint_that_is_not_served_is_told_as_what_limits_its_senders() {
    let node = Node::new().expect("a node");
    let mut bundle = Bundle::new(&node).expect("a bundle");
    let endpoint = bundle.endpoint_with_random_key().expect("an endpoint");
    bundle.set_served(endpoint, false).expect("it is ours");
    let contact = format!("{}#{:016x}", bundle.name(endpoint).expect("ours"), bundle.key(endpoint).expect("ours").0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["ping", &contact, "-W", "0.2", "-i", "0"]).stdout(Stdio::null()).stderr(Stdio::null());
    let _pinger = Pinger(command.spawn().expect("it was built"));
    let since = Instant::now();
    loop {
        let said = out(&explain_beside(&mut bundle, &contact));
        let waits = !said.contains("; 0 messages wait") && said.contains("the endpoint is not served");
        if waits && said.contains("limited by the application there: its endpoint is not served") {
            for wrong in ["taken at once", "holds the reply tokens", "answers set the pace"] {
                assert!(!said.contains(wrong), "{wrong}: {said}");
            }
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{said}");
    }
}
