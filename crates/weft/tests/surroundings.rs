//! Programs with few resources: limits of file size, descriptors and memory on either side, no thread for the helper, descriptors
//! that the program closed behind weft's back, and invalid settings. Each error says what helps, and nothing waits forever.

mod support;

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::rights::may_read_memory;
use support::{
    bundle_with_endpoint, has_loopback, left_out, poll_until, returns_of, tell, turn, Address, Orders, Peer,
};
use support::{wait_until, BOUND};
use weft::{Bundle, Key, Node, Reason, SendError};

const ECHO: u8 = 1;
const ANSWER: u8 = 2;

#[test]
fn child() {
    support::play(&[
        ("server", server),
        ("caller", caller),
        ("bundle maker", bundle_maker),
        ("closer", closer),
        ("woken closer", woken_closer),
        ("node maker", node_maker),
    ]);
}

/// Limits a resource of this process to what it has now, plus a little.
fn limit(what: &str) {
    let set = |resource, most| {
        let before = getrlimit(resource);
        setrlimit(resource, Rlimit { current: Some(most), ..before }).expect("less is always allowed");
    };
    // This much more than is in use.
    let memory = |more: u64| {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc");
        let pages: u64 = pages.split(' ').next().expect("a number").parse().expect("a number");
        set(Resource::As, pages * rustix::param::page_size() as u64 + more);
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("/proc").count() as u64 - 1;
    match what {
        // What `ulimit -f 1024` sets.
        "file size" => set(Resource::Fsize, 1 << 20),
        "no file size" => set(Resource::Fsize, 0),
        "no descriptor" => set(Resource::Nofile, descriptors()),
        "one descriptor" => set(Resource::Nofile, descriptors() + 1),
        "two descriptors" => set(Resource::Nofile, descriptors() + 2),
        "memory" => memory(2 << 20),
        // A ring takes 8 MiB.
        "memory of one ring" => memory(12 << 20),
        "nothing" => {}
        other => panic!("no such limit: {other}"),
    }
}

/// Answers, under a limit.
fn server(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), b"").expect("once")).expect("on");
    // Start listening for orders now, because that takes a thread.
    let _ = orders.look();
    limit(&orders.words[0]);
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| ());
}

/// Calls, under a limit, and reports the result.
fn caller(orders: Orders) {
    let there = Address::parse(&orders.words[1]);
    let (mut bundle, here) = bundle_with_endpoint();
    let returns = returns_of(&mut bundle, here);
    bundle.map(here, 0, there.name, there.key).expect("map");
    limit(&orders.words[0]);
    let end = Instant::now() + BOUND;
    while bundle.try_request(here, 0, ECHO, &[1], b"") == Err(SendError::Full) && Instant::now() < end {
        bundle.poll();
    }
    while returns.borrow().is_empty() && Instant::now() < end {
        bundle.poll();
    }
    let back = returns.borrow_mut().pop().expect("it came back");
    tell(format!("{} {}", back.reason as u8, back.reason));
}

/// The result of a request between two processes under these limits: the reason why it came back, also as text.
fn refusal(caller_has: &str, server_has: &str) -> (Reason, String) {
    let server = Peer::start("server", &[server_has]);
    let caller = Peer::start("caller", &[caller_has, &server.address().to_string()]);
    let said = caller.hear();
    let (code, words) = said.split_once(' ').expect("two words");
    caller.finish();
    server.finish();
    let code: u8 = code.parse().expect("a number");
    (Reason::ALL.into_iter().find(|reason| *reason as u8 == code).expect("a reason"), words.to_owned())
}

#[test]
fn a_caller_that_runs_out_is_told_of_what_and_that_it_is_its_own() {
    let _turn = turn("limits of a caller");
    for (has, reason, helps) in [
        ("file size", Reason::OwnFileSize, "ulimit -f"),
        ("no descriptor", Reason::OwnDescriptors, "ulimit -n"),
        ("two descriptors", Reason::OwnDescriptors, "ulimit -n"),
        ("memory", Reason::OwnMemory, "ulimit -v"),
        ("memory of one ring", Reason::OwnMemory, "ulimit -v"),
    ] {
        let (told, words) = refusal(has, "nothing");
        assert_eq!(told, reason, "{has}");
        assert!(words.contains(helps) && words.contains("this process, not the peer"), "{has}: {words}");
    }
}

#[test]
fn a_caller_of_a_peer_that_runs_out_is_told_that_it_is_the_peers() {
    let _turn = turn("limits of a peer");
    for has in ["file size", "one descriptor", "two descriptors", "memory", "memory of one ring"] {
        let (told, words) = refusal("nothing", has);
        assert_eq!(told, Reason::PeerLimit, "{has}");
        assert!(words.contains("there (ulimit -n, -v, -f)"), "{has}: {words}");
    }
}

fn bundle_maker(orders: Orders) {
    let node = Node::new().expect("node");
    limit(&orders.words[0]);
    tell(Bundle::new(&node).map(drop).expect_err("no bundle"));
}

#[test]
fn a_bundle_that_cannot_be_made_says_which_limit_to_raise() {
    let _turn = turn("limits of a bundle");
    for (has, helps) in [("no file size", "ulimit -f"), ("no descriptor", "ulimit -n")] {
        let maker = Peer::start("bundle maker", &[has]);
        let words = maker.hear();
        assert!(words.contains(helps), "{has}: {words}");
        maker.finish();
    }
}

// ---- descriptors that the program closes

/// Closes all descriptors but standard input, output and error, as daemons do, and opens files that take their numbers.
fn close_all_and_open(folder: &std::path::Path) -> Vec<(PathBuf, File)> {
    let numbers = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let numbers: Vec<i32> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for &number in numbers.iter().filter(|&&number| number > 2) {
        // SAFETY: such programs are unsound. Here only weft relies on the number, and its behaviour is under test.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // The number of /proc's own folder is closed already.
        // SAFETY: as above.
        if unsafe { nix::libc::fcntl(fd.as_raw_fd(), nix::libc::F_GETFD) } < 0 {
            std::mem::forget(fd);
        }
    }
    (0..numbers.len())
        .map(|number| {
            let path = folder.join(format!("log-{number}"));
            (path.clone(), OpenOptions::new().append(true).create_new(true).open(path).expect("a file"))
        })
        .collect()
}

fn expect_untouched(files: Vec<(PathBuf, File)>) {
    for (path, file) in files {
        let number = file.as_raw_fd();
        file.metadata().unwrap_or_else(|e| panic!("{number} was closed: {e}"));
        let mut text = Vec::new();
        File::open(&path).and_then(|mut file| file.read_to_end(&mut text)).expect("it is there");
        assert!(text.is_empty(), "{number}, {}: {text:?} was written there", path.display());
        drop(file);
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Has a node, a bundle and a session; closes everything, goes on for a while, and ends all of it.
fn closer(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let folder = Folder::new("closer");
    let node = Node::new().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let here = bundle.endpoint(Key(5)).expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    bundle.request(here, 0, ECHO, &[1], b"").expect("mapped");
    poll_until(&mut bundle, "a session", |bundle| bundle.sessions() == 1);
    let waker = bundle.waker();
    let files = close_all_and_open(&folder.0);
    // Each of these could write into a file, or wait forever.
    waker.wake();
    // Frequent operations check their descriptors once per tick of the clock.
    std::thread::sleep(Duration::from_millis(10));
    for _ in 0..20 {
        let _ = bundle.try_request(here, 0, ECHO, &[1], b"");
        bundle.wait(Some(Duration::from_millis(5)));
        waker.wake();
    }
    let second = Bundle::new(&node).map(drop).expect_err("the node's descriptors are closed");
    assert!(second.to_string().contains("before it makes the Node"), "{second}");
    let since = Instant::now();
    drop(bundle);
    drop(node);
    let took = since.elapsed();
    assert!(took < Duration::from_secs(2), "the end took {took:?}");
    // A new node has descriptors of its own, and leaves the files alone as well.
    let (mut again, here) = bundle_with_endpoint();
    again.map(here, 0, there.name, there.key).expect("map");
    again.request(here, 0, ECHO, &[1], b"").expect("mapped");
    poll_until(&mut again, "a session", |bundle| bundle.sessions() == 1);
    drop(again);
    expect_untouched(files);
    tell("done");
}

#[test]
fn a_program_that_closes_all_descriptors_ends_and_its_files_stay_as_they_are() {
    let _turn = turn("closed descriptors");
    let server = Peer::start("server", &["nothing"]);
    let closer = Peer::start("closer", &[&server.address().to_string()]);
    assert_eq!(closer.hear(), "done");
    closer.finish();
    server.finish();
}

#[test]
fn a_program_that_closes_all_descriptors_leaves_its_files_alone_between_hosts() {
    let _turn = turn("closed descriptors between hosts");
    if !has_loopback() {
        return left_out("closed descriptors between hosts: the loopback interface is down");
    }
    let over_udp = support::OVER_UDP.map(|(name, value)| (name, OsStr::new(value)));
    let server = Peer::start_with("server", &["nothing"], &over_udp);
    let closer = Peer::start_with("closer", &[&server.address().to_string()], &over_udp);
    assert_eq!(closer.hear(), "done");
    closer.finish();
    server.finish();
}

/// Its peer sleeps, and would be woken through a descriptor that the program closed.
fn woken_closer(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let folder = Folder::new("woken-closer");
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.map(here, 0, there.name, there.key).expect("map");
    bundle.request(here, 0, ECHO, &[1], b"").expect("mapped");
    poll_until(&mut bundle, "a session", |bundle| bundle.sessions() == 1);
    let files = close_all_and_open(&folder.0);
    for _ in 0..20 {
        // The server sleeps by now.
        std::thread::sleep(Duration::from_millis(20));
        let _ = bundle.try_request(here, 0, ECHO, &[1], b"");
        bundle.poll();
    }
    drop(bundle);
    expect_untouched(files);
    tell("done");
}

#[test]
fn a_sleeping_peer_is_not_woken_through_a_number_that_is_another_files() {
    let _turn = turn("a sleeping peer");
    // Trusted processes are woken by an eventfd, others by a message on a socket.
    for trust in ["on", "off"] {
        let (mut bundle, here) = bundle_with_endpoint();
        bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), b"").expect("once")).expect("on");
        let address = Address::of(&bundle, here).to_string();
        let closer = Peer::start_with("woken closer", &[&address], &[("WEFT_TRUST", OsStr::new(trust))]);
        let mut said = None;
        wait_until("the end of a child", || {
            bundle.wait(Some(Duration::from_millis(50)));
            said = closer.overhear().or(said.take());
            said.is_some()
        });
        assert_eq!(said.as_deref(), Some("done"), "trust {trust}");
        closer.finish();
    }
}

// ---- settings, and threads

/// Too few bytes for a thread.
const NO_STACK: &str = "131072";

/// Makes a node, and reports the result. An order gives the bytes of address space for that.
fn node_maker(orders: Orders) {
    if let Some(room) = orders.words.first().and_then(|word| word.parse::<u64>().ok()) {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc");
        let pages: u64 = pages.split(' ').next().expect("a number").parse().expect("a number");
        let before = getrlimit(Resource::As);
        let most = Some(pages * rustix::param::page_size() as u64 + room);
        setrlimit(Resource::As, Rlimit { current: most, ..before }).expect("less is always allowed");
    }
    match Node::new() {
        Ok(_) => tell("made"),
        Err(error) => tell(error),
    }
    match Node::without_helper() {
        Ok(_) => tell("made"),
        Err(error) => tell(error),
    }
}

#[test]
fn without_a_thread_for_the_helper_there_is_no_node_unless_that_is_asked_for() {
    let _turn = turn("no thread");
    // A thread needs a stack.
    let maker = Peer::start("node maker", &[NO_STACK]);
    let words = maker.hear();
    assert!(words.contains("cannot start the helper thread"), "{words}");
    assert!(["ulimit -u", "WEFT_HELPER=off", "Node::without_helper"].iter().all(|way| words.contains(way)), "{words}");
    assert_eq!(maker.hear(), "made", "without a helper");
    maker.finish();
    let maker = Peer::start_with("node maker", &[NO_STACK], &[("WEFT_HELPER", OsStr::new("off"))]);
    assert_eq!([maker.hear(), maker.hear()], ["made", "made"]);
    maker.finish();
}

#[test]
fn too_little_memory_for_a_thread_is_an_error_and_does_not_end_the_process() {
    let _turn = turn("hardly a thread");
    let mut made = Vec::new();
    for room in (0..1 << 20).step_by(4 << 10) {
        let maker = Peer::start("node maker", &[&room.to_string()]);
        made.push(maker.hear() == "made");
        maker.hear();
        maker.finish();
    }
    assert!(made.contains(&true) && made.contains(&false), "both ends were seen: {made:?}");
}

#[test]
fn settings_are_on_or_off_and_other_values_are_errors() {
    let _turn = turn("settings");
    for name in ["WEFT_TRUST", "WEFT_LOCAL", "WEFT_HELPER"] {
        for value in ["no", "0", "False", "off", "on", "yes", "1", ""] {
            let maker = Peer::start_with("node maker", &[], &[(name, OsStr::new(value))]);
            assert_eq!(maker.hear(), "made", "{name}={value}");
            maker.finish();
        }
        let maker = Peer::start_with("node maker", &[], &[(name, OsStr::new("perhaps"))]);
        let words = maker.hear();
        assert!(words.contains(name) && words.contains("perhaps") && words.contains("on or off"), "{words}");
        maker.finish();
    }
}

/// The lines on standard error of a process that makes nodes with this in its environment.
fn complaint(environment: &[(&str, &str)]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env("WEFT_TEST_ROLE", "node maker").envs(environment.iter().copied());
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).expect("text");
    said.lines().filter(|line| line.starts_with("weft:")).map(str::to_owned).collect()
}

#[test]
fn an_unknown_setting_is_reported_once_with_the_nearest_known_one() {
    let _turn = turn("unknown settings");
    let said = complaint(&[("WEFT_TRSUT", "off")]);
    assert_eq!(said.len(), 1, "two nodes, one line: {said:?}");
    assert!(
        said[0].contains("WEFT_TRSUT") && said[0].contains("WEFT_TRUST") && said[0].contains("WEFT_QUIET"),
        "{said:?}"
    );
    assert_eq!(complaint(&[("WEFT_TRSUT", "off"), ("WEFT_QUIET", "on")]), [""; 0]);
    assert_eq!(complaint(&[("WEFT_TRUST", "off"), ("WEFT_SEED", "1")]), [""; 0]);
}

#[test]
fn trust_that_is_off_in_other_words_is_off() {
    let _turn = turn("trust in other words");
    // The mappings tell: trusted peers share a bell page and a waker, others have pages of their own.
    let memory = |value: &str| {
        let server = Peer::start_with("server", &["nothing"], &[("WEFT_TRUST", OsStr::new(value))]);
        let there = server.address();
        let (mut bundle, here) = bundle_with_endpoint();
        bundle.on(here, ANSWER, |_| ()).expect("on");
        bundle.map(here, 0, there.name, there.key).expect("map");
        bundle.request(here, 0, ECHO, &[1], b"").expect("mapped");
        poll_until(&mut bundle, "an answer", |bundle| bundle.counters().replies_delivered == 1);
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.id())).expect("/proc");
        server.finish();
        maps.lines().filter(|line| line.contains("weft-bells")).count()
    };
    let trusting = memory("on");
    if !may_read_memory() {
        assert_eq!((memory("no"), memory("off")), (trusting, trusting), "nobody is trusted here");
        return left_out("trust that is off in other words: nobody's memory can be read here, so nobody is trusted");
    }
    assert!(memory("no") > trusting && memory("off") > trusting);
}
