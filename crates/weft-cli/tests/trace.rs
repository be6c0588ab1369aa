//! `weft trace`, and its captures in Wireshark: tshark reads them with `contrib/wireshark/weft.lua`.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::{err, out, Server};

/// The environment of the server and its clients: they use the network, although they are on one host.
const OVER_UDP: [(&str, &str); 2] = [("WEFT_LOCAL", "off"), ("WEFT_ADDR", "127.0.0.1")];

fn wireshark(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/wireshark").join(file)
}

/// The output of tshark for a capture.
fn tshark(capture: &Path, arguments: &[&str]) -> String {
    let mut script = std::ffi::OsString::from("lua_script:");
    script.push(wireshark("weft.lua"));
    let mut command = Command::new("tshark");
    // Without any user's settings.
    command.env("HOME", "/nonexistent").arg("-X").arg(script).arg("-r").arg(capture).args(arguments);
    let output = command.output().expect("tshark is missing; to have it: scripts/setup.sh --for test");
    assert!(output.status.success(), "{}", err(&output));
    let said = out(&output);
    assert!(!said.contains("Lua Error") && !err(&output).contains("Lua"), "{said}{}", err(&output));
    said
}

/// The protocol and its summary, for each packet.
fn summaries(capture: &Path) -> Vec<(String, String)> {
    let said = tshark(capture, &["-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info"]);
    said.lines().filter_map(|line| line.split_once('\t')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn the_dissector_knows_every_packet_and_frame_of_the_golden_capture() {
    let golden = wireshark("golden.pcapng");
    let expected = [
        "data 7: ping padding",
        "call 7: hello",
        "answer 7: cookie",
        "call 7: hello",
        "answer 7: refuse",
        "data 7: accept",
        "data 7: records acks taken nack ping unreliable rest rested stay end pause resume share",
        "reset 7: reset",
        "data 7: ping; data 7: ping",
        "data 7 DAMAGED",
        "data 7: ping records; data 7: ping records",
    ];
    assert_eq!(summaries(&golden), expected.map(|info| ("WEFT".to_owned(), info.to_owned())));
    let fields = |filter: &str, fields: &[&str]| {
        let mut arguments = vec!["-Y", filter, "-T", "fields"];
        fields.iter().for_each(|field| arguments.extend(["-e", field]));
        tshark(&golden, &arguments)
    };
    let records = fields(
        "weft.frame == 1 and weft.flags.partly == 0 and !weft.damaged",
        &["weft.to", "weft.from", "weft.stream", "weft.records.offset", "weft.records"],
    );
    assert_eq!(records, "0xa1a2a3a4\t0xb1b2b3b4\t1,1,1,1,1,1,1,1,1\t4293918720\t77656674,77656674\n");
    let partly = fields("weft.flags.partly == 1", &["weft.covered", "weft.records"]);
    assert_eq!(partly, "60,60\t6c6f6f6d2c20616e642077656674,7765667420746f6f\n");
    assert_eq!(fields("weft.kind == 1", &["weft.cookie.generation"]), "0\n7\n");
    let unreliable = ["weft.unreliable.message", "weft.unreliable.at", "weft.unreliable.total"];
    assert_eq!(fields("weft.frame == 11 and !weft.damaged", &unreliable), "6\t1400\t1404\n");
    let reflected = ["weft.reflected", "weft.held", "weft.lay", "frame.number"];
    assert_eq!(fields("weft.flags.hurries == 1", &reflected), "70000\t250\t120\t1\n");
    assert_eq!(fields("weft.frame == 4", &["weft.reason", "weft.nack.touched"]), "2,5\t40\n");
    assert_eq!(fields("weft.frame == 7", &["weft.caller", "weft.terms.window"]), "0x0102030405060708\t262144\n");
    assert_eq!(fields("weft.damaged", &["frame.number"]), "10\n");
    assert_eq!(fields("weft.malformed", &["frame.number"]), "");
}

/// `weft trace`, once it hears the server.
fn trace(server: &Server, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["trace", &server.child.id().to_string()]).args(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("it has a pipe")).read_line(&mut line).expect("it says that it begins");
    assert!(line.contains("has 1 UDP port;"), "{line}");
    child
}

fn ping(server: &Server, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["ping", &server.contact, "-i", "0"]).args(arguments).envs(OVER_UDP).output().expect("it was built")
}

#[test]
fn a_process_that_is_not_there_or_has_no_port_is_told_of() {
    if !may_hear() {
        return;
    }
    let trace = |pid: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(["trace", pid, "--duration", "0.5"]).output().expect("it was built")
    };
    let missing = trace("1");
    assert_eq!(missing.status.code(), Some(2));
    assert!(err(&missing).contains("process 1 has no node of weft here") && err(&missing).contains("`weft status`"));
    let server = Server::start_in(&[], &[("WEFT_ADDR", "none")]);
    let pid = server.child.id().to_string();
    assert!(err(&trace(&pid)).contains(&format!("`weft trace --stages {pid}` tells")), "{}", err(&trace(&pid)));
}

#[test]
fn what_is_captured_while_processes_talk_is_all_weft_and_whole() {
    if !may_hear() {
        return;
    }
    let server = Server::start_in(&[], &OVER_UDP);
    let file = std::env::temp_dir().join(format!("weft-trace-{}.pcapng", std::process::id()));
    let child = trace(&server, &["--count", "60", "--pcap", file.to_str().expect("made of letters")]);
    assert!(ping(&server, &["-c", "40"]).status.success());
    let output = child.wait_with_output().expect("it ends by itself");
    assert!(output.status.success());
    let packets = summaries(&file);
    let numbers = tshark(&file, &["-T", "fields", "-e", "udp.srcport", "-e", "weft.from", "-e", "weft.number"]);
    let _ = std::fs::remove_file(&file);
    assert_eq!(packets.len(), 60);
    assert!(packets.iter().all(|(protocol, info)| protocol == "WEFT" && !info.contains("DAMAGED")), "{packets:?}");
    let starts =
        ["call", "answer", "call", "data"].iter().zip(&packets).all(|(kind, (_, info))| info.starts_with(kind));
    assert!(starts && packets.iter().any(|(_, info)| info.contains("records")), "{packets:?}");
    // Each packet once, although the loopback interface shows it twice.
    let data: Vec<&str> = numbers.lines().skip(3).collect();
    assert_eq!(data.iter().collect::<BTreeSet<_>>().len(), data.len(), "{data:?}");
    server.interrupt();
}

#[test]
fn packets_are_told_line_by_line() {
    if !may_hear() {
        return;
    }
    let server = Server::start_in(&[], &OVER_UDP);
    let child = trace(&server, &["--count", "20", "--json"]);
    assert!(ping(&server, &["-c", "20"]).status.success());
    let output = child.wait_with_output().expect("it ends by itself");
    let told = out(&output);
    let packets: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("a document a line")).collect();
    assert_eq!(packets.len(), 20);
    assert_eq!((&packets[0]["kind"], &packets[0]["frames"][0]["frame"]), (&"call".into(), &"hello".into()));
    assert!(packets.iter().all(|packet| packet["fault"].is_null() && packet["bytes"].as_u64() >= Some(40)), "{told}");
    // The server may still tell the first client, which has ended, that its stream ends.
    let child = trace(&server, &["--count", "40"]);
    assert!(ping(&server, &["-c", "20"]).status.success());
    let words = out(&child.wait_with_output().expect("it ends by itself"));
    assert!(words.lines().count() == 40 && words.contains(" call ") && words.contains("hello"), "{words}");
    server.interrupt();
}

/// Whether this process may open packet sockets in its network namespace, by its capabilities.
fn may_hear() -> bool {
    const NET_RAW: u64 = 1 << 13;
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("its capabilities");
    u64::from_str_radix(line.trim(), 16).expect("a number") & NET_RAW != 0
}

#[test]
fn who_may_not_see_the_wire_is_told_what_it_takes() {
    let weft = env!("CARGO_BIN_EXE_weft");
    let mut command = Command::new(if may_hear() { "setpriv" } else { weft });
    if may_hear() {
        command.args(["--bounding-set=-net_raw", "--inh-caps=-all", weft]);
    }
    let output = command.args(["trace", "--count", "1"]).output();
    let output = output.expect("setpriv is missing; to have it: scripts/setup.sh --for test");
    assert_eq!(output.status.code(), Some(1), "{}", out(&output));
    assert!(err(&output).contains("needs root, or CAP_NET_RAW: type `sudo`"), "{}", err(&output));
}
