//! weftd and its programs, as the command shows them.

mod support;

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{err, out, printed, program_of, Folder, Server};
use weft::{Bundle, Key, Name, Node};

/// The time limit for operations that normally take a moment.
const BOUND: Duration = Duration::from_secs(30);

/// The variable that tells a process of this test program where to send.
const FLOODS: &str = "WEFT_TEST_FLOODS";

/// A daemon on a socket of its own.
struct Daemon {
    child: Child,
    folder: Folder,
}

impl Daemon {
    #[allow(clippy::disallowed_methods)] // a test that has no thread may panic
    fn start(name: &str, configuration: &str) -> Daemon {
        let folder = Folder::new(&format!("daemon-{name}"));
        std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("rights");
        let configuration = folder.write("weftd.toml", configuration);
        let mut child = Command::new(program_of("weftd", "weftd"))
            .args(["--foreground", "--config", &configuration, "--socket", &folder.file("socket")])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it was built");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        assert!(line.contains("serves"), "{line}");
        // Nobody else reads its log.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Daemon { child, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.0.join("socket")
    }

    /// `weft serve`, attached to it.
    fn server(&self) -> Server {
        let socket = self.folder.file("socket");
        Server::start_in(&[], &[("WEFT_NI", &socket), ("WEFT_LOCAL", "off")])
    }

    /// A `weft` command whose programs use it.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(arguments).env("WEFT_NI", self.socket()).env("WEFT_LOCAL", "off").env("COLUMNS", "160");
        command
    }

    fn weft(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("weft starts")
    }

    fn document(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&printed(&self.weft(arguments))).expect("standard output is the document alone")
    }

    /// Looks repeatedly until `is_so`.
    fn until(&self, arguments: &[&str], what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let document = self.document(arguments);
            if is_so(&document) {
                return document;
            }
            assert!(since.elapsed() < BOUND, "{what}: {document:#}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that runs until this is dropped.
struct Runs(Child);

impl Runs {
    fn start(command: &mut Command) -> Runs {
        Runs(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it was built"))
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: a process that sends to a name as long as it lives, and is told *full*.
#[test]
fn role() {
    let Ok(to) = std::env::var(FLOODS) else { return };
    let (name, key) = to.split_once('#').expect("a name and a key");
    let (name, key) = (name.parse::<Name>().expect("a name"), u64::from_str_radix(key, 16).expect("a key"));
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    // Enough endpoints to fill the ring of a receiver that takes nothing: each may have half of the ring under way.
    let senders = [1, 2, 3, 4].map(|own| bundle.endpoint(Key(own)).expect("an endpoint"));
    senders.iter().for_each(|here| bundle.map(*here, 0, name, Key(key)).expect("mapped"));
    loop {
        for here in &senders {
            while bundle.try_send(*here, 0, 9, &[1], b"to one that may not listen").is_ok() {}
        }
        bundle.wait(Some(Duration::from_millis(1)));
    }
}

fn flood(daemon: &Daemon, contact: &str) -> Runs {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "role", "--test-threads=1"]).env(FLOODS, contact);
    Runs::start(command.env("WEFT_NI", daemon.socket()).env("WEFT_LOCAL", "off"))
}

fn name_of(server: &Server) -> &str {
    server.contact.split_once('#').expect("a name and a key").0
}

#[test]
fn status_tells_of_the_daemon_its_endpoints_and_the_way_through_it() {
    let daemon = Daemon::start("status", "frames = 7\n");
    let server = daemon.server();
    let _pinger = Runs::start(&mut daemon.command(&["ping", &server.contact, "-i", "0.01"]));
    let is_active = |told: &Value| told["daemon"]["status"]["daemon"]["counters"]["delivered"].as_u64() > Some(10);
    let told = daemon.until(&["status", "--json"], "messages", is_active);
    let told = &told["daemon"];
    assert_eq!((&told["pid"], &told["attaches"]), (&daemon.child.id().into(), &"told".into()));
    let status = &told["status"];
    assert_eq!((&status["daemon"]["frames"], &status["daemon"]["tells_all"]), (&7.into(), &true.into()));
    assert_eq!(status["daemon"]["weft"], env!("CARGO_PKG_VERSION"));
    let endpoints = status["endpoints"].as_array().expect("a list");
    let found = endpoints.iter().find(|told| told["name"] == name_of(&server)).expect("the server's is told");
    assert_eq!(found["pid"], server.child.id());
    assert!(found["sent"].as_u64() > Some(0) && found["lines"] == 1, "{found}");
    let held = status["users"][0]["quotas"].as_array().expect("a list");
    assert!(held.iter().any(|quota| quota["of"] == "endpoints" && quota["held"] == 2), "{held:?}");
    let text = printed(&daemon.weft(&["status"]));
    for part in ["of 7 frames in use (clock)", name_of(&server), "weftd", "programs attach to it, as WEFT_NI says"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told = daemon.document(&["status", "--json"]);
    let processes = told["processes"].as_array().expect("a list");
    let its = processes.iter().find(|process| process["pid"] == server.child.id()).expect("it is found");
    assert_eq!(its["status"]["bundles"][0]["peers"][0]["path"], "daemon", "{its:#}");
}

#[test]
fn without_a_daemon_none_is_told() {
    let folder = Folder::new("no-daemon");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output =
        command.args(["status", "--json"]).env("WEFT_NI", folder.file("socket")).output().expect("weft starts");
    let told: Value = serde_json::from_str(&printed(&output)).expect("a document");
    assert!(told["daemon"].is_null(), "{told:#}");
}

#[test]
fn a_daemon_that_is_stopped_or_has_ended_is_told_as_such_and_doctor_says_what_helps() {
    let daemon = Daemon::start("ends", "");
    let told = daemon.document(&["doctor", "--json"]);
    let weftd = |told: &Value| {
        let all = told["findings"].as_array().expect("a list");
        all.iter().find(|finding| finding["check"] == "weftd").expect("the check is there").clone()
    };
    let found = weftd(&told);
    let words = found["found"].as_str().expect("words");
    assert!(found["level"] == "ok" && words.contains("as WEFT_NI says") && words.contains("96 frames"), "{found}");
    daemon.signal(Signal::STOP);
    let told = daemon.document(&["status", "--json"]);
    let silent = told["daemon"]["silent"].as_str().expect("it says nothing");
    assert!(silent.contains(&format!("kill -CONT {}", daemon.child.id())), "{silent}");
    daemon.signal(Signal::CONT);
    assert!(daemon.document(&["status", "--json"])["daemon"]["status"].is_object());
    let mut daemon = daemon;
    daemon.child.kill().expect("it lives");
    daemon.child.wait().expect("it ends");
    let told = daemon.document(&["status", "--json"]);
    let silent = told["daemon"]["silent"].as_str().expect("it says nothing");
    assert!(silent.contains("nobody listens"), "{silent}");
    let output = daemon.weft(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let found = weftd(&serde_json::from_str(&out(&output)).expect("a document"));
    assert!(found["level"] == "broken" && found["mend"].as_str().is_some_and(|mend| mend.contains("weftd")), "{found}");
}

#[test]
fn a_sender_that_waits_for_a_frame_is_told_as_limited_by_it() {
    let daemon = Daemon::start("frame", "frames = 1\n");
    let server = daemon.server();
    let _pingers = [0; 4]
        .map(|_| Runs::start(&mut daemon.command(&["ping", &server.contact, "-i", "0", "--json", "-c", "10000000"])));
    let arguments = ["explain", "--json", &server.contact];
    let of_frame = |told: &Value| {
        let senders = told["senders"].as_array().expect("a list");
        senders.iter().find(|sender| sender["limit"] == "frame").cloned()
    };
    let told = daemon.until(&arguments, "a sender without a frame", |told| of_frame(told).is_some());
    let sender = of_frame(&told).expect("it was there");
    assert!(sender["because"].as_str().is_some_and(|words| words.contains("1 of 1 are in use")), "{sender}");
    assert_eq!((&told["way"]["path"], &told["way"]["why"]), (&"daemon".into(), &"by_daemon".into()), "{told:#}");
    assert_eq!(told["daemon"]["endpoint"]["pid"], server.child.id());
}

#[test]
fn a_sender_whose_peer_takes_nothing_is_told_as_limited_by_the_peer() {
    let daemon = Daemon::start("peer", "");
    let server = daemon.server();
    let flooder = flood(&daemon, &server.contact);
    let arguments = ["explain", "--json", &server.contact];
    daemon.until(&arguments, "a sender", |told| told["senders"].as_array().is_some_and(|all| !all.is_empty()));
    kill_process(Pid::from_child(&server.child), Signal::STOP).expect("it lives");
    let of_peer = |told: &Value| {
        let senders = told["senders"].as_array().expect("a list");
        senders.iter().find(|sender| sender["limit"] == "peer").cloned()
    };
    let told = daemon.until(&arguments, "a line that stands still", |told| of_peer(told).is_some());
    let sender = of_peer(&told).expect("it was there");
    let because = sender["because"].as_str().expect("words");
    assert!(because.contains("has no room") && because.contains(&server.child.id().to_string()), "{because}");
    assert!(sender["process"].as_str().is_some_and(|words| words.contains(&flooder.0.id().to_string())), "{sender}");
    assert_eq!(told["daemon"]["limited_by"], "own_application", "{told:#}");
    let text = printed(&daemon.weft(&["explain", &server.contact]));
    assert!(text.contains("limited by the peer") && text.contains("served by weftd"), "{text}");
    // The end is reported live, with the endpoint that has no room.
    let told = daemon.document(&["top", "--once", "--json", "-i", "0.2"]);
    let endpoints = told["daemon"]["endpoints"].as_array().expect("a list");
    assert!(endpoints.iter().any(|told| told["limited_by"] == "own_application" && told["pid"] == server.child.id()));
    let text = printed(&daemon.weft(&["top", "--once", "-i", "0.2"]));
    assert!(text.contains("of 96 frames in use") && text.contains("delivers"), "{text}");
    kill_process(Pid::from_child(&server.child), Signal::CONT).expect("it lives");
    daemon.until(&arguments, "the end of the limit", |told| of_peer(told).is_none());
}

#[test]
fn stages_of_requests_through_the_daemon_say_that_its_work_is_in_them() {
    let daemon = Daemon::start("stages", "");
    let server = daemon.server();
    let _pinger = Runs::start(&mut daemon.command(&["ping", &server.contact, "-i", "0.002"]));
    let name = name_of(&server);
    daemon.until(&["status", "--json"], "the pinger", |told| {
        let endpoints = told["daemon"]["status"]["endpoints"].as_array();
        endpoints.is_some_and(|all| all.iter().any(|told| told["name"] == name && told["lines"] == 1))
    });
    let has_table =
        |text: &str| text.contains(", weftd: ") && text.contains("2 on its way") && text.contains("5 on its way back");
    // On a busy machine, perhaps no request was stamped and answered in that time.
    let since = Instant::now();
    let text = loop {
        let text = printed(&daemon.weft(&["trace", "--stages", "--duration", "2"]));
        if has_table(&text) || since.elapsed() > Duration::from_secs(60) {
            break text;
        }
    };
    assert!(has_table(&text) && text.contains("weftd stamps nothing: its work is in stages 2 and 5"), "{text}");
}

#[test]
fn a_program_that_wants_the_administrators_daemon_is_told_that_there_is_none() {
    // A machine with a daemon has nothing to tell.
    if Path::new("/run/weftd/socket").exists() {
        return eprintln!("LEFT OUT: a machine without a daemon: there is one");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.arg("serve").env("WEFT_NI", "weftd").output().expect("it was built");
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["there is no daemon: /run/weftd/socket does not exist", "start weftd as root", "or unset WEFT_NI"] {
        assert!(said.contains(part), "{said}");
    }
}
