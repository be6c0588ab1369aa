//! The larger examples, as processes: a work queue, a file that is copied, a chat, tokio.

mod support;

use rustix::process::{kill_process, Pid, Signal};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::rights::is_root;
use support::{err, example, out, Folder, Program};

fn start(name: &str, arguments: &[&str]) -> Program {
    Program::start(Command::new(example(name)).args(arguments))
}

/// Starts an example that prints its name and key first.
fn start_with_contact(name: &str, arguments: &[&str]) -> (Program, Vec<String>) {
    let program = start(name, arguments);
    let contact = program.hear().split(' ').map(str::to_owned).collect();
    (program, contact)
}

/// The error of an example that cannot work with these arguments.
fn refusal(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(example(name)).args(arguments).output().expect("it was built");
    assert!(!output.status.success(), "{}", out(&output));
    err(&output)
}

#[test]
fn the_first_program_asks_and_answers_and_says_what_is_wrong() {
    let mut server = start("first", &[]);
    let name = server.hear();
    let asker = start("first", &[&name]);
    assert_eq!(asker.hear(), "HELLO");
    assert_eq!(asker.finish(), "");
    assert!(refusal("first", &["weft1:AQAA"]).contains("was the name cut"));
    server.child.kill().expect("it lives");
    server.child.wait().expect("it is ours");
    let told = refusal("first", &[&name]);
    assert!(
        told.starts_with("it came back: nobody there") && told.ends_with("Error: \"there was no answer\"\n"),
        "{told}"
    );
}

#[test]
fn a_client_whose_request_ends_without_its_answer_says_so() {
    // A server that answers requests to handler 1, but not as a store does.
    let server = start("first", &[]);
    let told = refusal("kv_client", &[&server.hear(), "7", "get", "warp"]);
    assert!(told.contains("no value came"), "{told}");
}

#[test]
fn a_client_of_ones_own_adds_and_reads_at_another_process() {
    let mut owner = start("own_client", &[]);
    let name = owner.hear();
    for sum in ["55", "110"] {
        let adder = start("own_client", &[&name]);
        assert_eq!(adder.hear(), sum);
        assert_eq!(adder.finish(), "");
    }
    owner.child.kill().expect("it lives");
    owner.child.wait().expect("it is ours");
    assert!(refusal("own_client", &[&name]).contains("nobody is there"));
}

#[test]
fn an_error_that_leaves_main_names_the_way_out() {
    // One example whose main returns `weft::Error`, and one with `Box<dyn Error>`.
    for name in ["kv_server", "first"] {
        let output = Command::new(example(name)).env("WEFT_PORT", "70000").output().expect("it was built");
        assert_eq!(output.status.code(), Some(1));
        let told = "Error: WEFT_PORT is \"70000\", and should be a port from 1 to 65535, or the first and the last of a range: 4000-4099\n";
        assert_eq!(err(&output), told, "{name}");
    }
}

#[test]
fn the_piece_of_a_worker_that_is_killed_is_done_by_another_one() {
    let (mut master, contact) = start_with_contact("work_queue", &["master", "4000000"]);
    let worker = || start("work_queue", &["worker", &contact[0], &contact[1]]);
    let mut first = worker();
    assert_eq!(first.hear(), "0..50000");
    first.child.kill().expect("it lives");
    first.child.wait().expect("it is ours");
    let (second, third) = (worker(), worker());
    assert_eq!(master.hear(), "283146 primes below 4000000");
    assert!(master.child.wait().expect("it is ours").success());
    let complaint = master.complaint();
    assert_eq!(complaint.matches("came back").count(), 1, "{complaint}");
    // The master tells them that there is no more work.
    assert_eq!([second.finish(), third.finish()], ["", ""]);
}

#[test]
fn readings_come_and_each_entry_is_told_as_received() {
    let output = Command::new(example("levels")).output().expect("it was built");
    assert!(output.status.success(), "{}", err(&output));
    // Through memory, none is lost.
    let said = out(&output);
    for line in ["log: switched on", "log: warmed up", "entry 0 was received", "entry 1 was received"] {
        assert_eq!(said.matches(line).count(), 1, "{said}");
    }
    assert!(said.ends_with("1000 of 1000 readings came, the last of them number 999\n"), "{said}");
}

#[test]
fn a_worker_says_that_its_master_is_gone() {
    // More work than can be done.
    let (mut master, contact) = start_with_contact("work_queue", &["master", "4000000000"]);
    let mut worker = start("work_queue", &["worker", &contact[0], &contact[1]]);
    worker.hear();
    master.child.kill().expect("it lives");
    master.child.wait().expect("it is ours");
    assert_eq!(worker.child.wait().expect("it is ours").code(), Some(1));
    let complaint = worker.complaint();
    assert!(complaint.contains("no work from the master any more: peer lost"), "{complaint}");
    assert!(refusal("work_queue", &["worker", &contact[0], &contact[1]]).contains("nobody there"));
    assert!(refusal("work_queue", &["worker", &contact[0], "key"]).contains("a key is 1 to 16 hexadecimal digits"));
    assert!(refusal("work_queue", &["master", "many"]).contains("that is not a NUMBER"));
    assert!(refusal("work_queue", &[]).contains("usage"));
}

/// Bytes that do not repeat at the length of a piece.
fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn a_copied_file_has_the_same_bytes_whatever_its_length_and_another_sender_may_have_died() {
    let folder = Folder::new("copy");
    let (from, to) = (folder.file("from"), folder.file("to"));
    for length in [0, 1, 65_536, 20 << 20 | 12_345] {
        let contents = bytes(length);
        std::fs::write(&from, &contents).expect("there is room");
        let (receiver, contact) = start_with_contact("copy_file", &["receive", &to]);
        if length > 1 << 20 {
            // This sender is killed in the middle of a file: a fifo has no end.
            let fifo = folder.file("fifo");
            assert!(Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()));
            let mut dying = Command::new(example("copy_file"));
            let mut dying = Program::start(dying.args(["send", &contact[0], &contact[1], &fifo]));
            let mut pipe = std::fs::OpenOptions::new().write(true).open(&fifo).expect("it reads");
            std::io::Write::write_all(&mut pipe, &contents[..1 << 20]).expect("it reads");
            dying.child.kill().expect("it lives");
            dying.child.wait().expect("it is ours");
        }
        let output = Command::new(example("copy_file")).args(["send", &contact[0], &contact[1], &from]).output();
        let output = output.expect("it was built");
        assert!(output.status.success(), "{}", err(&output));
        assert!(out(&output).starts_with(&format!("{length} bytes, CRC-64 ")), "{}", out(&output));
        assert_eq!(err(&output).contains(" of 20 MiB"), length > 8 << 20, "{}", err(&output));
        assert_eq!(receiver.finish(), "");
        assert!(std::fs::read(&to).expect("it is there") == contents, "{length} bytes differ");
        assert!(!Path::new(&format!("{to}.part")).exists());
    }
}

#[test]
fn a_sender_says_what_went_wrong() {
    let folder = Folder::new("refused");
    let to = folder.file("to");
    let from = folder.file("from");
    std::fs::write(&from, bytes(100_000)).expect("there is room");
    let (receiver, contact) = start_with_contact("copy_file", &["receive", &to]);
    assert!(refusal("copy_file", &["send", &contact[0], &contact[1], &folder.file("nothing")]).contains("No such file"));
    assert!(refusal("copy_file", &["send", &contact[0], "12", &from]).contains("wrong key"));
    drop(receiver);
    assert!(refusal("copy_file", &["send", &contact[0], &contact[1], &from]).contains("nobody there"));
    assert!(refusal("copy_file", &["receive", &folder.file("no/folder")]).contains("No such file"));
    assert!(refusal("copy_file", &["send"]).contains("usage"));
    assert!(!Path::new(&to).exists());
}

#[test]
fn each_line_of_a_chat_reaches_all_members_and_who_is_killed_has_left() {
    let (mut ann, contact) = start_with_contact("chat", &["ann"]);
    let (mut bob, contact_of_bob) = start_with_contact("chat", &["bob", &contact[0], &contact[1]]);
    ann.hears(&["* bob is here"]);
    bob.hears(&["* ann is here"]);
    let (mut cid, _) = start_with_contact("chat", &["cid", &contact_of_bob[0], &contact_of_bob[1]]);
    cid.hears(&["* ann is here", "* bob is here"]);
    for other in [&ann, &bob] {
        other.hears(&["* cid is here"]);
    }
    ann.say("good morning");
    for other in [&bob, &cid] {
        other.hears(&["ann: good morning"]);
    }
    cid.say("a bell\u{7}");
    for other in [&ann, &bob] {
        other.hears(&["cid: a bell?"]);
    }
    kill_process(Pid::from_child(&cid.child), Signal::KILL).expect("it lives");
    cid.child.wait().expect("it is ours");
    bob.say("still there?");
    ann.hears(&["bob: still there?"]);
    assert!(bob.hear().starts_with("* cid has left: "));
    assert_eq!([ann.finish(), bob.finish()], ["", ""]);
    assert!(refusal("chat", &["ann", &contact[0], &contact[1]]).contains("nobody there"));
    assert!(refusal("chat", &["ann", &contact[0]]).contains("usage"));
}

/// A shell in a network namespace of its own. At the end it executes the program.
fn host() -> Program {
    let mut shell = Program::start(Command::new("unshare").args(["--net", "sh"]));
    shell.say("echo there");
    assert_eq!(shell.hear(), "there");
    shell
}

#[test]
fn a_chat_goes_between_two_hosts() {
    if !is_root() {
        return eprintln!("LEFT OUT: a chat between two hosts: only root may join network namespaces here");
    }
    let (mut ann, mut bob) = (host(), host());
    let [of_ann, of_bob] = [&ann, &bob].map(|host| host.child.id().to_string());
    let pair = ["link", "add", "weft0", "netns", &of_ann, "type", "veth", "peer", "name", "weft0", "netns", &of_bob];
    assert!(Command::new("ip").args(pair).status().is_ok_and(|status| status.success()), "ip, of iproute2");
    for (host, own, other) in [(&mut ann, "10.77.0.1", "10.77.0.2"), (&mut bob, "10.77.0.2", "10.77.0.1")] {
        host.say("ip link set lo up && ip link set weft0 up");
        host.say(&format!("ip addr add {own}/24 dev weft0 && ip route add default via {other} && echo set up"));
        assert_eq!(host.hear(), "set up");
    }
    for host in [&mut ann, &mut bob] {
        host.say("until ip -br link show weft0 | grep -q ' UP '; do :; done; echo carrier");
        assert_eq!(host.hear(), "carrier");
    }
    let chat = example("chat").display().to_string();
    ann.say(&format!("exec '{chat}' ann"));
    let contact = ann.hear();
    bob.say(&format!("exec '{chat}' bob {contact}"));
    bob.hear();
    ann.hears(&["* bob is here"]);
    bob.hears(&["* ann is here"]);
    ann.say("how is the weather there?");
    bob.hears(&["ann: how is the weather there?"]);
    bob.say("as here");
    ann.hears(&["bob: as here"]);
    bob.child.kill().expect("it lives");
    ann.say("here it rains");
    // Only after the suspicion time: between hosts, nothing reports the death of a process.
    assert!(ann.hear().starts_with("* bob has left: "));
    assert_eq!(ann.finish(), "");
}

/// Whether processes of this host can connect by TCP. In some test networks they cannot.
fn has_loopback() -> bool {
    let works = || TcpStream::connect(TcpListener::bind("127.0.0.1:0")?.local_addr()?);
    if works().is_err() {
        eprintln!("LEFT OUT: names by host and port: there is no loopback interface that is up");
        return false;
    }
    true
}

/// The numbers in a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn each_line_of_a_broker_is_accounted_for_though_one_subscriber_dies_and_one_is_slow() {
    if !has_loopback() {
        return;
    }
    let broker = start("broker", &["serve", "0"]);
    let place = format!("localhost:{}", broker.hear());
    let subscriber = |ms: &str| {
        let subscriber = start("broker", &["subscribe", &place, ms]);
        assert_eq!(subscriber.hear(), "joined");
        subscriber
    };
    let (fast, mut doomed, slow) = (subscriber("0"), subscriber("30"), subscriber("3"));
    let mut publisher = start("broker", &["publish", &place]);
    let (line, lines) = ("x".repeat(16 << 10), 3000);
    for n in 0..lines {
        publisher.say(&line);
        if n == 300 {
            assert_eq!(doomed.hear(), "the first line has 16384 bytes");
            doomed.child.kill().expect("it lives");
            doomed.child.wait().expect("it is ours");
        }
    }
    assert_eq!(publisher.finish(), "");
    let mut told = Vec::new();
    for to in 0..3 {
        let line = broker.hear();
        let [number, published, delivered, not_delivered, unknown, missed] = numbers(&line)[..] else {
            panic!("{line}")
        };
        assert_eq!(published, delivered + not_delivered + unknown + missed, "{line}");
        assert_eq!(number, to);
        told.push((published, delivered, not_delivered + unknown, missed));
    }
    let [to_fast, to_doomed, to_slow] = told[..] else { panic!("three subscribers") };
    // Messages counted as delivered were read, and no others.
    for ((published, delivered, returned, _), subscriber) in [(to_fast, &fast), (to_slow, &slow)] {
        assert_eq!((published, returned), (lines, 0), "{told:?}");
        assert_eq!(subscriber.hear(), "the first line has 16384 bytes");
        assert_eq!(subscriber.hear(), format!("{delivered} lines"));
    }
    assert!(to_slow.3 > 0, "one that reads too slowly misses lines: {told:?}");
    assert!(to_doomed.0 < lines && to_doomed.2 > 0, "what was under way to the dead one came back: {told:?}");
    assert_eq!([fast.finish(), slow.finish()], ["", ""]);
    let complaint = broker.finish();
    assert_eq!(complaint.matches("has gone").count(), 1, "{complaint}");
    assert!(refusal("broker", &["subscribe", &place]).contains(&place));
    assert!(refusal("broker", &["publish", "nonsense"]).contains("HOST:PORT"));
    assert!(refusal("broker", &["serve", "x"]).contains("that is not a PORT"));
    assert!(refusal("broker", &[]).contains("usage"));
}

#[test]
fn two_users_of_one_host_talk_where_both_admit_all_users() {
    if !has_loopback() {
        return;
    }
    let server = start("two_users", &["serve", "0"]);
    let place = format!("localhost:{}", server.hear());
    let asker = start("two_users", &[&place]);
    assert!(asker.hear().starts_with("hello, user "));
    assert_eq!(asker.finish(), "");
    assert!(refusal("two_users", &[]).contains("usage"));
    if !is_root() {
        return eprintln!("LEFT OUT: another user: only root may become one");
    }
    // A place where that user may execute it.
    let folder = Folder::new("two_users");
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let program = folder.file("two_users");
    std::fs::copy(example("two_users"), &program).expect("there is room");
    let asker = Program::start(Command::new(&program).arg(&place).uid(65_533));
    assert_eq!(asker.hear(), "hello, user 65533");
    assert_eq!(asker.finish(), "");
}

#[test]
fn a_region_is_written_and_read_while_its_owner_sleeps() {
    if !has_loopback() {
        return;
    }
    let owner = start("region", &["own", "0"]);
    let told = owner.hear();
    let (port, cookie) = told.split_once(' ').expect("a port and a cookie");
    let place = format!("localhost:{port}");
    let says = |words: &[&str]| {
        let program = start("region", &[&[words[0], &place], &words[1..]].concat());
        let said = if words[0] == "write" { String::new() } else { program.hear() };
        assert_eq!(program.finish(), "");
        said
    };
    says(&["write", "64", "hello"]);
    assert_eq!(says(&["read", "64", "5"]), "hello");
    assert_eq!([says(&["add", "0", "40"]), says(&["add", "0", "2", cookie])], ["0", "40"]);
    while owner.hear() != "the first word is 42" {}
    assert_eq!(says(&["read", "64", "5", cookie]), "hello");
    for (words, why) in [
        (&["write", &place, "64", "x", cookie][..], "no right"),
        (&["read", &place, "4096", "1", cookie], "outside"),
        (&["read", &place, "0", "2000000"], "outside"),
        (&["add", &place, "1", "1"], "unaligned"),
        (&["read", &place, "0", "1", "nonsense"], "not a cookie"),
        (&[], "usage"),
    ] {
        let said = refusal("region", words);
        assert!(said.contains(why), "{words:?}: {said}");
    }
}

/// The example in another workspace, as `scripts/test.sh test` leaves it. Builds it if it is missing.
fn tokio_example() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    let target = test.ancestors().nth(3).expect("a test lies in TARGET/PROFILE/deps");
    let path = target.join("debug/weft-tokio");
    if !path.is_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--manifest-path", "examples/tokio/Cargo.toml", "--target-dir"]).arg(target);
        let built = cargo.current_dir(root).status();
        assert!(built.is_ok_and(|status| status.success()), "{} is missing: scripts/test.sh test", path.display());
    }
    path
}

#[test]
fn under_tokio_each_request_is_a_future_that_ends_with_its_reply_or_why_there_is_none() {
    let ask = |contact: &[&str], words: &[&str]| {
        let output = Command::new(tokio_example()).arg("ask").args(contact).args(words).output();
        output.expect("it was built")
    };
    let server = Program::start(Command::new(tokio_example()).arg("serve"));
    let contact = server.hear();
    let contact: Vec<&str> = contact.split(' ').collect();
    // More requests than may be under way to one endpoint.
    let words: Vec<String> = (0..100).map(|n| format!("word {n}")).collect();
    let output = ask(&contact, &words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(out(&output).lines().collect::<Vec<_>>(), words.iter().map(|w| w.to_uppercase()).collect::<Vec<_>>());
    let fails = |contact: &[&str], why: &str| {
        let output = ask(contact, &["word"]);
        assert!(!output.status.success() && err(&output).contains(why), "{}", err(&output));
    };
    fails(&[contact[0], "12"], "wrong key");
    drop(server);
    fails(&contact, "nobody there");
}
