//! `weft trace --stages`: where the time of requests goes, between processes that know nothing of the trace, and that stop stamping
//! when nobody traces.

#![allow(clippy::disallowed_methods)] // a test that has no thread may panic

mod support;
#[path = "support/terminal.rs"]
mod terminal;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::rights::is_root;
use support::{ask_to_end, err, out, Server};
use terminal::Terminal;
use weft::{Bundle, Node};

/// Longer than any step takes on a machine that is not stuck.
const BOUND: Duration = Duration::from_secs(60);

/// A tracer makes all processes stamp requests, those of other tests too: one test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes processes of one host communicate over the network.
const OVER_UDP: [(&str, &str); 2] = [("WEFT_LOCAL", "off"), ("WEFT_ADDR", "127.0.0.1")];

fn weft(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A command that runs until it is killed when this is dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Running {
        Running(command.spawn().expect("it was built"))
    }

    /// Waits for the line on standard error that says that it has begun.
    fn has_begun(&mut self) {
        let mut line = String::new();
        let stderr = self.0.stderr.as_mut().expect("it has a pipe");
        BufReader::new(stderr).read_line(&mut line).expect("it says that it begins");
        assert!(
            line.contains("process stamps requests now") || line.contains("processes stamp requests now"),
            "{line}"
        );
    }

    /// Waits for its end, no longer than the bound.
    fn finish(mut self) -> Output {
        let mut out = self.0.stdout.take().expect("it has a pipe");
        let (put, printed) = channel();
        std::thread::spawn(move || {
            let mut stdout = Vec::new();
            out.read_to_end(&mut stdout).expect("what it prints");
            put.send(stdout)
        });
        let stdout = printed.recv_timeout(BOUND).expect("it ends in time");
        let status = self.0.wait().expect("it is ours");
        Output { status, stdout, stderr: Vec::new() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", err(output));
    out(output).lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

/// Traced requests of one process to another, and the median round trip that the requester itself measured.
fn traced(environment: &[(&str, &str)]) -> (Vec<Value>, f64, [u32; 2]) {
    let server = Server::start_in(&[], environment);
    let pid = server.child.id().to_string();
    let mut trace = Running::start(weft(&["trace", "--stages", "--json", "--count", "60", &pid]));
    trace.has_begun();
    // Long enough for the tracer to get its requests: on a busy machine it may miss some.
    let mut command = weft(&["ping", &server.contact, "-i", "0.02", "--json"]);
    let pinger = Running::start({
        command.envs(environment.iter().copied());
        command
    });
    let asker = pinger.0.id();
    let lines = lines(&trace.finish());
    ask_to_end(&pinger.0);
    let pinged: Value = serde_json::from_slice(&pinger.finish().stdout).expect("a document");
    // Only about as many as are traced: on a busy machine, the later ones may be slower.
    let requests = pinged["requests"].as_array().expect("a list").iter().take(75);
    let mut times: Vec<f64> = requests.filter_map(|request| request["ns"].as_f64()).collect();
    times.sort_by(f64::total_cmp);
    (lines, times[times.len() / 2], [asker, server.child.id()])
}

fn check_stages(environment: &[(&str, &str)], path: &str) {
    let _turn = turn();
    let (lines, pinged, [asker, answerer]) = traced(environment);
    let requests = of_kind(&lines, "request");
    assert_eq!(requests.len(), 60);
    for request in requests {
        let stages = request["stages_ns"].as_object().expect("stages");
        let sum: u64 = ["send", "there", "handle", "reply", "back", "take"]
            .iter()
            .map(|stage| stages[*stage].as_u64().expect("nanoseconds"))
            .sum();
        let round_trip = request["round_trip_ns"].as_u64().expect("nanoseconds");
        assert!(round_trip > 0 && sum.abs_diff(round_trip) * 20 <= round_trip, "{request}");
        assert_eq!(request["path"], path);
        let is_of = |end: &str, pid: u32| request[end].as_str().is_some_and(|who| who.ends_with(&format!(" {pid}")));
        assert!(is_of("from", asker) && is_of("to", answerer), "{request}");
    }
    let [figures] = of_kind(&lines, "figures")[..] else { panic!("{lines:?}") };
    assert_eq!(figures["n"], 60);
    let ratio = figures["ratio"].as_f64().expect("a number");
    assert!((0.95..=1.05).contains(&ratio), "{figures}");
    // The stamped time lies within the time that the program measured, and is nearly all of it.
    let round_trip = figures["round_trip"]["median_ns"].as_f64().expect("a number");
    assert!(round_trip <= pinged * 1.5 && round_trip >= pinged * 0.3, "{round_trip} ns, pinged {pinged} ns");
    let [end] = of_kind(&lines, "end")[..] else { panic!("{lines:?}") };
    assert_eq!((&end["requests"], &end["odd"]), (&json!(60), &json!(0)));
}

#[test]
fn stages_through_memory_sum_to_the_round_trip_and_have_both_processes() {
    check_stages(&[], "memory");
}

#[test]
fn stages_over_udp_sum_to_the_round_trip_and_have_both_processes() {
    check_stages(&OVER_UDP, "UDP");
}

#[test]
fn the_table_has_each_stage_the_sum_and_the_round_trip() {
    let _turn = turn();
    let server = Server::start();
    let _pinger = Running::start(weft(&["ping", &server.contact, "-i", "0.01"]));
    let pid = server.child.id().to_string();
    let output = weft(&["trace", "--stages", "--count", "20", &pid]).output().expect("it was built");
    assert!(output.status.success(), "{}", err(&output));
    let said = out(&output);
    for part in ["1 sending", "2 on its way", "3 handled", "4 replying", "5 on its way back", "6 taken"] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
    let there = format!("process {}, memory: ", server.child.id());
    assert!(said.contains(&there) && said.contains("│ sum ") && said.contains("│ round trip "), "{said}");
    assert!(said.contains("median") && said.contains("p99"), "{said}");
}

#[test]
fn the_table_is_drawn_in_its_own_place_and_what_else_is_said_stays() {
    let _turn = turn();
    let (server, other) = (Server::start(), Server::start());
    let pinger = Running::start(weft(&["ping", &server.contact, "-i", "0.01"]));
    let mut trace = Terminal::start(&["trace", "--stages", &server.child.id().to_string()]);
    let there = format!("process {}, memory: ", server.child.id());
    // Drawn more than once: the count of requests grows.
    let told = |screen: &vt100::Screen| {
        let text = screen.contents();
        let count = text.lines().find_map(|line| line.split_once(&there)).map(|(_, rest)| rest.to_owned());
        count.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    trace.see("a table", |screen| told(screen) > 0);
    let first = told(trace.emulator.screen());
    trace.see("a newer one", |screen| told(screen) > first);
    // A process that no longer answers is reported once, above the table.
    kill_process(Pid::from_child(&other.child), Signal::STOP).expect("it lives");
    let why = format!("kill -CONT {}", other.child.id());
    trace.see_text(&why);
    let first = told(trace.emulator.screen());
    trace.see("a newer one below", |screen| told(screen) > first);
    // With the signal, the kernel discards output that was not read. A lost drawing of another height would make the last drawing
    // start in the wrong place. Without requests the height stays the same.
    drop(pinger);
    trace.rest(Duration::from_millis(500));
    // The terminal echoes Ctrl-C at the cursor.
    trace.press("\x03");
    trace.finish();
    let text = trace.emulator.screen().contents();
    for part in [&there[..], "1 sending", "│ sum ", "│ round trip ", &why, " requests now"] {
        assert_eq!(text.matches(part).count(), 1, "{part:?} in\n{text}");
    }
    let table: Vec<&str> = text.lines().filter(|line| line.contains(['│', '┌', '└', '├'])).collect();
    assert!(table.iter().all(|line| line.starts_with(['│', '┌', '└', '├'])), "{text}");
    assert!(!text.contains("^C"), "{text}");
    kill_process(Pid::from_child(&other.child), Signal::CONT).expect("it lives");
}

/// Whether the server stamps requests, by its own report.
fn is_stamping(server: &Server) -> bool {
    let output = weft(&["status", "--json"]).output().expect("it was built");
    let status: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let processes = status["processes"].as_array().expect("a list");
    let it = processes.iter().find(|process| process["pid"] == server.child.id()).expect("it is seen");
    it["status"]["bundles"][0]["is_stamping"].as_bool().expect("it says so")
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !done() {
        assert!(Instant::now() < end, "{what}: not in time");
    }
}

#[test]
fn nothing_is_stamped_before_a_tracer_comes_and_after_it_was_killed() {
    let _turn = turn();
    let server = Server::start();
    // Only because of tests before, at most.
    wait_until("no stamping", || !is_stamping(&server));
    let mut trace = Running::start(weft(&["trace", "--stages"]));
    trace.has_begun();
    assert!(is_stamping(&server));
    // By SIGKILL, so it cannot sign off.
    drop(trace);
    wait_until("the end of stamping", || !is_stamping(&server));
}

/// A status socket that gives this answer to everybody, until this is dropped: the next test's trace must not see it.
struct Impostor {
    socket: OwnedFd,
    speaker: Option<JoinHandle<()>>,
}

impl Impostor {
    fn start(epoch: &str, answer: impl Fn() -> Vec<u8> + Send + 'static) -> Impostor {
        let name = SocketAddrUnix::new_abstract_name(format!("weft1-{epoch}-status").as_bytes()).expect("a name");
        let socket: OwnedFd =
            net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        net::bind(&socket, &name).and_then(|()| net::listen(&socket, 16)).expect("its own name");
        let listener = socket.try_clone().expect("a descriptor");
        let speaker = std::thread::spawn(move || {
            while let Ok(asker) = net::accept(&listener) {
                let _ = net::send(&asker, &answer(), net::SendFlags::NOSIGNAL);
            }
        });
        Impostor { socket, speaker: Some(speaker) }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        // Nobody is accepted any more; the name is released with the descriptors.
        let _ = net::shutdown(&self.socket, net::Shutdown::Both);
        let _ = self.speaker.take().map(JoinHandle::join);
    }
}

#[test]
fn stamps_that_cannot_be_make_no_figures_and_nonsense_is_named() {
    let _turn = turn();
    let server = Server::start();
    let epochs = [0u64, 1].map(|n| format!("{:016x}", u64::from(std::process::id()) << 8 | n));
    let name = server.contact.split('#').next().expect("a name").to_owned();
    // It claims that the server sent it requests, that time ran backwards, and a flow that does not exist.
    let flow = json!({"from": name, "to": name, "number": 0});
    let asked = |number: u64, flow: u32, done: u64| json!({"number": number, "flow": flow, "slot": 65535, "called_ns": 9, "written_ns": 10, "seen_ns": 11, "done_ns": done});
    let stamps = json!({"so_far": u64::MAX, "flows": [flow], "answered": [],
        "asked": [asked(0, 0, 12), asked(1, 0, 1), asked(2, 4_000_000_000, 12), asked(u64::MAX, 0, u64::MAX)]});
    let counters = json!({"sent": 0, "requests_sent": 0, "replies_sent": 0, "delivered": 0, "requests_delivered": 0,
        "replies_delivered": 0, "ended": 0, "returned": 0, "refused": 0, "full": 0, "replies_queued": 0, "parked": 0,
        "handed_on": 0, "violations": 0, "sessions_lost": 0});
    let bundle = json!({"bundle": 0, "activity": "polls", "age_ms": 0, "counters": counters, "unsettled": 0,
        "packets_damaged": 0, "endpoints": [], "peers": [], "destinations": [], "left_out": 0, "is_stamping": true,
        "stamps": stamps});
    let process =
        json!({"version": 1, "weft": "", "pid": 1, "uid": 0, "epoch": "", "bundles": [bundle], "left_out": 0});
    let _lies = Impostor::start(&epochs[0], move || process.to_string().into_bytes());
    let _nonsense = Impostor::start(&epochs[1], || b"{\"version\": 1, \x1b[2J".to_vec());
    let output = weft(&["trace", "--stages", "--json", "--duration", "1"]).output().expect("it was built");
    let lines = lines(&output);
    let mine = |line: &&Value| line["to"].as_str().is_some_and(|to| to.contains(&format!(" {}", server.child.id())));
    assert_eq!(of_kind(&lines, "request").into_iter().filter(mine).count(), 0);
    let [end] = of_kind(&lines, "end")[..] else { panic!("{lines:?}") };
    assert!(end["odd"].as_u64().is_some_and(|odd| odd >= 4), "{end}");
    assert!(err(&output).contains("an answer that this weft does not read"), "{}", err(&output));
}

#[test]
fn requests_that_handlers_do_not_reply_to_are_told_as_such() {
    let _turn = turn();
    let [mut answers, mut asks] = [(); 2].map(|()| Bundle::new(&Node::new().expect("a node")).expect("a bundle"));
    let there = answers.endpoint_with_random_key().expect("an endpoint");
    answers.on(there, 1, |_| ()).expect("it is ours");
    let here = asks.endpoint_with_random_key().expect("an endpoint");
    asks.map(here, 0, answers.name(there).expect("ours"), answers.key(there).expect("ours")).expect("it is ours");
    let pid = std::process::id().to_string();
    // On a busy machine, a trace may not look twice.
    wait_until("the reason", || {
        let mut trace = weft(&["trace", "--stages", "--duration", "1.5", &pid]).spawn().expect("it was built");
        while trace.try_wait().expect("it is ours").is_none() {
            let _ = asks.try_request(here, 0, 1, &[], &[]);
            asks.wait(Some(Duration::from_millis(1)));
            answers.wait(Some(Duration::from_millis(1)));
        }
        let said = err(&trace.wait_with_output().expect("it is ours"));
        said.contains("requests ended meanwhile without a reply of their handlers")
    });
}

#[test]
fn processes_of_two_time_namespaces_are_told_why_stages_are_missing() {
    let _turn = turn();
    if !is_root() {
        return eprintln!("LEFT OUT: stages between time namespaces: only root may make them here");
    }
    let server = Server::start_by(Command::new("unshare").args(["--time", "--monotonic", "1000"]));
    let _pinger = Running::start(weft(&["ping", &server.contact, "-i", "0.01"]));
    let pid = server.child.id().to_string();
    let output =
        weft(&["trace", "--stages", "--count", "20", "--duration", "30", &pid]).output().expect("it was built");
    let (said, complaint) = (out(&output), err(&output));
    assert!(output.status.success(), "{complaint}");
    let why = format!("process {pid} are in different time namespaces");
    assert!(complaint.contains(&why) && complaint.contains("nsenter --time"), "{complaint}");
    // The table is of all processes of this host, and may have requests of other processes.
    assert!(said.contains("│ 2 away "), "{said}");
}

#[test]
fn a_process_that_is_not_there_is_told_with_the_way_out() {
    let output = weft(&["trace", "--stages", "1"]).output().expect("it was built");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains("process 1 has no node of weft here") && err(&output).contains("`weft status` tells")
    );
    let output = weft(&["trace", "--stages", "--pcap", "-"]).output().expect("it was built");
    assert_eq!(output.status.code(), Some(2));
}
