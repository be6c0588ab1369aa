//! The daemon as shipped, with programs of several users: processes of this test program that play roles.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weft::am::{Get, Long};
use weft::memory::Window;
use weft::status::{look_at_daemon, Scope};
use weft::{Admission, Bundle, Certainty, Endpoint, Key, Name, Node, Reason};
use weft_wire::attach::{Message, MESSAGE_BYTES};
use weft_wire::status::ITEMS_BYTES;

/// A time limit for things that should take a moment.
const BOUND: Duration = Duration::from_secs(30);

/// The environment variable that gives a process its role.
const ROLE: &str = "WEFT_TEST_ROLE";
const WORDS: &str = "WEFT_TEST_WORDS";

const ECHO: u8 = 1;
const ANSWER: u8 = 2;
/// A long message, and a long answer with the same bytes.
const LONG: u8 = 3;
const LONG_ANSWER: u8 = 4;

/// Bytes that each client has in a server's segment, and how many clients a segment is for.
const PART: usize = 100_000;
const PARTS: usize = 256;

/// A daemon on a socket of its own.
struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    fn start(configuration: &str) -> Daemon {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weftd-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        // Other users need to pass through it.
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("rights");
        std::fs::write(folder.join("weftd.toml"), configuration).expect("written");
        Daemon { child: Daemon::spawn(&folder), folder }
    }

    fn spawn(folder: &Path) -> Child {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weftd"))
            .args(["--foreground", "--config"])
            .arg(folder.join("weftd.toml"))
            .arg("--socket")
            .arg(folder.join("socket"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("weftd starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        assert!(line.contains("serves"), "{line}");
        // Drains the log, which nobody else reads.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        child
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn use_of_processor(&self) -> (u64, u64) {
        use_of_processor(&self.child)
    }
}

/// How often the first thread of a process went to sleep, and the processor time of all of its threads, in ticks.
fn use_of_processor(process: &Child) -> (u64, u64) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", process.id())).expect("it runs");
    let status = read("status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a line");
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a comm").split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<u64>().expect("a number");
    (line.trim().parse().expect("a number"), ticks(11) + ticks(12))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A process with a role.
struct Player {
    child: Child,
    said: BufReader<ChildStdout>,
    _orders: Option<ChildStdin>,
}

/// Whether this process may start others as other users, as root may. Otherwise all of them run as its own user.
fn may_become_others() -> bool {
    let uid = rustix::thread::Uid::from_raw(65_530);
    // Tried in a thread that ends at once.
    let becomes = std::thread::spawn(move || rustix::thread::set_thread_res_uid(uid, uid, uid).is_ok());
    let may = becomes.join().expect("it ends");
    if !may {
        eprintln!("LEFT OUT: other users: this process may not become them");
    }
    may
}

impl Player {
    fn start(daemon: &Daemon, role: &str, user: u32, words: &[&str]) -> Player {
        let user = if user == 0 || may_become_others() { user } else { 0 };
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(WORDS, words.join(" ")).env("WEFT_TEST_USER", user.to_string());
        command.env("WEFT_NI", daemon.socket()).env("WEFT_LOCAL", "off");
        Player::spawn(command)
    }

    /// Starts one in a process namespace of its own, as in a container.
    fn contained(daemon: &Daemon, role: &str, words: &[&str]) -> Player {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().expect("this program"));
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(WORDS, words.join(" ")).env("WEFT_TEST_USER", "0");
        command.env("WEFT_NI", daemon.socket()).env("WEFT_LOCAL", "off");
        Player::spawn(command)
    }

    /// Starts one with a network interface of its own, which no other process of the host sees.
    fn alone(role: &str, words: &[&str]) -> Player {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(WORDS, words.join(" ")).env("WEFT_TEST_USER", "0");
        command.env("WEFT_NI", "process").env("WEFT_LOCAL", "off").env("WEFT_ADDR", "127.0.0.1");
        Player::spawn(command)
    }

    fn spawn(mut command: Command) -> Player {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let orders = child.stdin.take();
        Player { child, said, _orders: orders }
    }

    /// Returns the next line that it prints.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).expect("it talks"), 0, "it has ended");
            if let Some(said) = line.trim_end().strip_prefix("told: ") {
                return said.to_owned();
            }
        }
    }

    fn finish(mut self) {
        drop(self._orders.take());
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tell(word: impl std::fmt::Display) {
    // On a line of its own, after whatever the test harness began.
    println!("\ntold: {word}");
    std::io::stdout().flush().expect("somebody listens");
}

/// Not a test: runs a process's role.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<String> = std::env::var(WORDS).unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let user: u32 = std::env::var("WEFT_TEST_USER").expect("a user").parse().expect("a number");
    if user != 0 {
        let uid = rustix::thread::Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may become anybody");
        // For the role that writes to its own memory through the kernel's file for that.
        let dumpable = rustix::process::DumpableBehavior::Dumpable;
        rustix::process::set_dumpable_behavior(dumpable).expect("as before");
    }
    match role.as_str() {
        "server" => serve(),
        "client" => ask(words[0].parse().expect("a name"), words[1].parse().expect("a number")),
        "scribbler" => scribble(words[0].parse().expect("a name")),
        "sleeper" => sleep_until_it_comes_back(words[0].parse().expect("a name")),
        "many" => make_endpoints(words[0].parse().expect("a number")),
        "tool" => look(),
        "caller" => call_until_it_comes_back(words[0].parse().expect("a name")),
        _ => panic!("no such role: {role}"),
    }
}

fn open(key: u64) -> (Bundle, Endpoint) {
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let here = bundle.endpoint(Key(key)).expect("an endpoint");
    bundle.set_admission(here, Admission::AnyUser).expect("an endpoint");
    (bundle, here)
}

/// Answers all users until standard input ends.
fn serve() {
    let (mut bundle, here) = open(7);
    bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
    let window = Window::create(PART * PARTS).expect("memory");
    bundle.set_segment(here, Some(window.clone())).expect("an endpoint");
    let answer = move |m: &mut weft::am::Message<'_>| {
        let placed = m.placed().expect("a long message");
        let mut bytes = vec![0; placed.len as usize];
        assert!(window.read(placed.offset, &mut bytes));
        m.reply_long(Long { handler: LONG_ANSWER, args: &[7], offset: 5 }, bytes).expect("a request");
    };
    bundle.on(here, LONG, answer).expect("on");
    tell(bundle.name(here).expect("a name"));
    let (is_over, waker) = (std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)), bundle.waker());
    let ends = is_over.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ends.store(true, Ordering::Release);
        waker.wake();
    });
    bundle.serve_until(|_| is_over.load(Ordering::Acquire));
}

/// Sends a server so many requests, with contents of all sizes, and expects the same back.
fn ask(name: Name, requests: u32) {
    let (mut bundle, here) = open(8);
    bundle.map(here, 0, name, Key(7)).expect("mapped");
    let answers = std::sync::Arc::new(AtomicU32::new(0));
    let seen = answers.clone();
    let take = move |m: &mut weft::am::Message<'_>| {
        let number = m.args()[0];
        assert_eq!(m.payload(), contents(number), "an answer has the contents of its request");
        seen.fetch_add(1, Ordering::Relaxed);
    };
    bundle.on(here, ANSWER, take).expect("on");
    bundle.on_return(here, |_, back| panic!("{} came back: {}", back.args[0], back.reason)).expect("on");
    for number in 0..requests {
        bundle.request(here, 0, ECHO, &[number], &contents(number)).expect("mapped");
        if number % 50 == 49 {
            assert!(bundle.drain_within(BOUND), "{number}");
        }
    }
    assert!(bundle.drain_within(BOUND));
    assert_eq!(answers.load(Ordering::Relaxed), requests);
    exchange_long_messages(&mut bundle, here);
    tell("done");
}

/// Sends long messages that the server places, and gets their bytes back in long replies, and from its segment.
fn exchange_long_messages(bundle: &mut Bundle, here: Endpoint) {
    let window = Window::create(PART).expect("memory");
    bundle.set_segment(here, Some(window.clone())).expect("an endpoint");
    let answers = std::sync::Arc::new(AtomicU32::new(0));
    let seen = answers.clone();
    bundle.on(here, LONG_ANSWER, move |_| _ = seen.fetch_add(1, Ordering::Relaxed)).expect("on");
    let offset = (std::process::id() as usize % PARTS * PART) as u64;
    let expect = |bundle: &mut Bundle, bytes: &[u8], at: u64, count: u32| {
        assert!(bundle.poll_until_within(BOUND, |_| answers.load(Ordering::Relaxed) == count));
        let mut read = vec![0; bytes.len()];
        assert!(window.read(at, &mut read) && read == bytes, "{} bytes", bytes.len());
    };
    let mut count = 0;
    for len in [0, 1, 10_000, 70_000, PART - 5] {
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251 + len) as u8).collect();
        let sent = bundle.request_long(here, 0, Long { handler: LONG, args: &[1], offset }, bytes.clone());
        assert!(sent.is_ok(), "mapped");
        expect(bundle, &bytes, 5, count + 1);
        let get = Get { handler: LONG_ANSWER, args: &[], source: offset, len: len as u64, offset: 0 };
        bundle.get(here, 0, get).expect("mapped");
        expect(bundle, &bytes, 0, count + 2);
        count += 2;
    }
    assert!(bundle.drain_within(BOUND));
}

/// Makes so many endpoints, and stays until standard input ends.
fn make_endpoints(count: u32) {
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    (0..count).for_each(|key| _ = bundle.endpoint(Key(key.into())).expect("an endpoint"));
    tell("made");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// Asks the daemon for its status. Prints whether it lists all users, how many endpoints there are, and the processes that own them.
fn look() {
    let found = look_at_daemon(Scope::All, BOUND).expect("WEFT_NI names it").expect("its socket is there");
    match found.answer {
        Ok(answer) => {
            let pids: Vec<u32> = answer.endpoints.iter().filter_map(|told| told.pid).collect();
            tell(format!("{} {} {} {pids:?}", answer.daemon.tells_all, answer.daemon.endpoints, answer.users.len()));
        }
        Err(silence) => tell(silence),
    }
}

fn contents(number: u32) -> Vec<u8> {
    const SIZES: [usize; 9] = [0, 8, 20, 28, 29, 300, 4096, 20_000, 65_536];
    let size = SIZES[number as usize % SIZES.len()];
    (0..size).map(|at| (at as u32).wrapping_mul(number + 3) as u8).collect()
}

/// Exchanges messages correctly, then writes random words all over the memory that it shares with the daemon.
fn scribble(name: Name) {
    let (mut bundle, here) = open(9);
    bundle.map(here, 0, name, Key(7)).expect("mapped");
    bundle.on(here, ANSWER, |_| {}).expect("on");
    bundle.request(here, 0, ECHO, &[1], b"honest").expect("mapped");
    assert!(bundle.drain_within(BOUND));
    let maps = std::fs::read_to_string("/proc/thread-self/maps").expect("maps");
    let line = maps.lines().find(|line| line.contains("weft-segment")).expect("it is attached");
    let at = u64::from_str_radix(line.split('-').next().expect("an address"), 16).expect("an address");
    let memory = std::fs::OpenOptions::new().write(true).open("/proc/thread-self/mem").expect("own memory");
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    tell("goes wild");
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        for _ in 0..200 {
            // Bells, cursors and rings, which lie at the beginning of the file.
            let place = (next() % (1 << 20)) & !7;
            memory.write_at(&next().to_ne_bytes(), at + place).expect("it is mapped");
        }
        // Sets the bells too, so that the daemon looks.
        for bell in 0..70 {
            memory.write_at(&u64::MAX.to_ne_bytes(), at + 4096 + bell * 8).expect("it is mapped");
        }
    }
    tell("has scribbled");
    std::process::exit(0);
}

/// Sends to a server until a message comes back, and prints the reason.
fn call_until_it_comes_back(name: Name) {
    let (mut bundle, here) = open(10);
    bundle.map(here, 0, name, Key(7)).expect("mapped");
    bundle.on(here, ANSWER, |_| {}).expect("on");
    let back = std::sync::Arc::new(std::sync::Mutex::new(None));
    let seen = back.clone();
    bundle
        .on_return(here, move |_, back| _ = seen.lock().expect("whole").get_or_insert((back.reason, back.certainty)))
        .expect("on");
    bundle.request(here, 0, ECHO, &[0], b"first").expect("mapped");
    assert!(bundle.drain_within(BOUND));
    tell("answered");
    let begin = Instant::now();
    while back.lock().expect("whole").is_none() {
        assert!(begin.elapsed() < BOUND, "nothing comes back");
        let _ = bundle.try_request(here, 0, ECHO, &[1], b"again");
        bundle.wait(Some(Duration::from_millis(1)));
    }
    let (reason, certainty): (Reason, Certainty) = back.lock().expect("whole").take().expect("it came");
    tell(format!("{reason:?} {certainty:?}"));
    let made = bundle.endpoint(Key(5)).map(|_| ()).map_err(|error| error.to_string());
    tell(format!("{made:?}"));
    if std::env::var("WEFT_TEST_WORDS").is_ok_and(|words| words.contains("again")) {
        let before = bundle.counters().replies_delivered;
        let begin = Instant::now();
        while bundle.counters().replies_delivered == before {
            assert!(begin.elapsed() < BOUND, "it is not answered again");
            let _ = bundle.try_request(here, 0, ECHO, &[2], b"and again");
            bundle.wait(Some(Duration::from_millis(5)));
        }
        tell("answered again");
    }
}

/// Sends when told to, and sleeps until the message comes back.
fn sleep_until_it_comes_back(name: Name) {
    let (mut bundle, here) = open(11);
    bundle.map(here, 0, name, Key(7)).expect("mapped");
    bundle.on(here, ANSWER, |_| {}).expect("on");
    let back = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = back.clone();
    bundle.on_return(here, move |_, _| seen.store(true, Ordering::Relaxed)).expect("on");
    bundle.request(here, 0, ECHO, &[0], b"first").expect("mapped");
    assert!(bundle.drain_within(BOUND));
    tell("answered");
    std::io::stdin().read_line(&mut String::new()).expect("an order");
    bundle.request(here, 0, ECHO, &[1], b"to one that does not listen").expect("mapped");
    tell("sent");
    while !back.load(Ordering::Relaxed) {
        bundle.wait(Some(BOUND));
    }
    tell("came back");
}

/// Says hello to a daemon, and takes the descriptors that it hands out.
fn say_hello(daemon: &Daemon) -> (OwnedFd, Vec<OwnedFd>) {
    use rustix::net::{
        self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
    };
    // Close-on-exec, so that daemons which other tests start do not inherit them.
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    net::connect(&socket, &net::SocketAddrUnix::new(daemon.socket()).expect("a path")).expect("it listens");
    net::send(&socket, &Message::Hello(None).to_bytes(), SendFlags::empty()).expect("sent");
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    net::recvmsg(&socket, &mut [std::io::IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .expect("it answers");
    let taken = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let taken = taken.collect();
    (socket, taken)
}

#[test]
fn programs_that_do_not_go_on_with_attaching_leave_room_to_others() {
    let daemon = Daemon::start("file_mib = 2\n");
    let halfway: Vec<_> = (0..200).map(|_| say_hello(&daemon)).collect();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).expect("it runs").count();
    assert!(open() < 100, "{}", open());
    let mut server = Player::start(&daemon, "server", 65_531, &[]);
    server.hear();
    server.finish();
    drop(halfway);
}

#[test]
fn a_daemon_watches_nothing_of_programs_that_have_gone() {
    let daemon = Daemon::start("file_mib = 2\n[network]\naddress = \"none\"\n");
    // They keep the descriptors that they were given.
    let kept: Vec<_> = (0..50).map(|_| say_hello(&daemon).1).collect();
    let watched = || {
        let folder = format!("/proc/{}/fdinfo", daemon.child.id());
        let files = std::fs::read_dir(folder).expect("it runs").flatten();
        let texts = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
        texts.map(|text| text.lines().filter(|line| line.starts_with("tfd:")).count()).sum::<usize>()
    };
    let end = Instant::now() + BOUND;
    // Its own ones: the socket at which programs call, and the descriptor that tells it to end.
    while watched() > 2 {
        assert!(Instant::now() < end, "{}", watched());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(kept);
}

#[test]
fn programs_that_sleep_hear_of_the_end_of_a_peer_and_the_daemon_sleeps_then() {
    let daemon = Daemon::start("");
    let mut server = Player::start(&daemon, "server", 65_531, &[]);
    let name = server.hear();
    // It sleeps for long, so that its own naps wake nobody.
    let mut sleeper = Player::start(&daemon, "sleeper", 65_532, &[&name]);
    assert_eq!(sleeper.hear(), "answered");
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it runs");
    // A stop signal takes effect once one thread takes it. The kernel reports when all threads have stopped.
    let stopped = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).expect("it is ours");
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    sleeper._orders.as_mut().expect("piped").write_all(b"go on\n").expect("it listens");
    assert_eq!(sleeper.hear(), "sent");
    std::thread::sleep(Duration::from_millis(300));
    server.kill();
    let begin = Instant::now();
    assert_eq!(sleeper.hear(), "came back");
    eprintln!("came back after {:?}", begin.elapsed());
    sleeper.finish();
    drop(daemon);
}

#[test]
fn programs_of_two_users_talk_through_the_daemon() {
    let daemon = Daemon::start("");
    let mut server = Player::start(&daemon, "server", 65_531, &[]);
    let name = server.hear();
    let mut clients = [65_532, 65_533, 0].map(|user| Player::start(&daemon, "client", user, &[&name, "900"]));
    clients.iter_mut().for_each(|client| assert_eq!(client.hear(), "done"));
    clients.into_iter().for_each(Player::finish);
    server.finish();
}

#[test]
fn a_program_in_a_process_namespace_of_its_own_attaches() {
    if !may_become_others() {
        return eprintln!("LEFT OUT: only root makes process namespaces");
    }
    let daemon = Daemon::start("");
    let mut server = Player::contained(&daemon, "server", &[]);
    let mut client = Player::start(&daemon, "client", 0, &[&server.hear(), "20"]);
    assert_eq!(client.hear(), "done");
    client.finish();
    server.finish();
}

#[test]
fn programs_of_two_daemons_and_of_none_talk_over_the_network() {
    let network = "[network]\naddress = \"127.0.0.1\"\n";
    let (here, there) = (Daemon::start(network), Daemon::start(&format!("frames = 2\n{network}")));
    let mut servers = [Player::start(&there, "server", 65_531, &[]), Player::alone("server", &[])];
    let names = servers.each_mut().map(Player::hear);
    let mut clients = Vec::new();
    for (name, server) in names.iter().zip(["with", "without"]) {
        // The third one needs a daemon at one end at least.
        clients.push(Player::start(&here, "client", 65_532, &[name, "900"]));
        clients.push(Player::start(&here, "client", 65_533, &[name, "900"]));
        if server == "with" {
            clients.push(Player::alone("client", &[name, "900"]));
        }
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.hear(), "done"));
    clients.into_iter().for_each(Player::finish);
    servers.into_iter().for_each(Player::finish);
}

#[test]
fn a_program_that_scribbles_is_cut_off_and_nobody_else_notices() {
    let mut daemon = Daemon::start("frames = 4\n");
    let mut server = Player::start(&daemon, "server", 65_531, &[]);
    let name = server.hear();
    let mut scribblers = [65_532, 65_533].map(|user| Player::start(&daemon, "scribbler", user, &[&name]));
    scribblers.iter_mut().for_each(|wild| assert_eq!(wild.hear(), "goes wild"));
    let mut client = Player::start(&daemon, "client", 65_530, &[&name, "2000"]);
    assert_eq!(client.hear(), "done");
    client.finish();
    scribblers.iter_mut().for_each(|wild| assert_eq!(wild.hear(), "has scribbled"));
    server.finish();
    assert!(daemon.child.try_wait().expect("it can be asked").is_none(), "the daemon lives");
}

#[test]
fn messages_to_a_program_that_is_killed_come_back() {
    let daemon = Daemon::start("");
    let mut server = Player::start(&daemon, "server", 65_531, &[]);
    let name = server.hear();
    let mut caller = Player::start(&daemon, "caller", 65_532, &[&name]);
    assert_eq!(caller.hear(), "answered");
    server.kill();
    let said = caller.hear();
    assert!(said.contains("peer lost") || said.contains("nobody there"), "{said}");
    assert_eq!(caller.hear(), "Ok(())");
    caller.finish();
}

#[test]
fn programs_outlive_the_daemon() {
    let mut daemon = Daemon::start("");
    let mut server = Player::start(&daemon, "server", 65_531, &[]);
    let name = server.hear();
    let mut caller = Player::start(&daemon, "caller", 65_532, &[&name, "again"]);
    assert_eq!(caller.hear(), "answered");
    daemon.child.kill().expect("it runs");
    daemon.child.wait().expect("it ends");
    let said = caller.hear();
    assert!(said.contains("peer lost") || said.contains("nobody there"), "{said}");
    let made = caller.hear();
    assert!(made.contains("weftd did not make the endpoint") && made.contains("start weftd again"), "{made}");
    // Its socket is still there, and the next daemon takes it over. The programs attach again, with their names.
    daemon.child = Daemon::spawn(&daemon.folder);
    assert_eq!(caller.hear(), "answered again");
    caller.finish();
    server.finish();
}

#[test]
fn a_program_that_waits_sleeps_while_there_is_no_daemon() {
    let mut daemon = Daemon::start("");
    let mut server = Player::start(&daemon, "server", 0, &[]);
    let name = server.hear();
    let mut client = Player::start(&daemon, "client", 0, &[&name, "100"]);
    assert_eq!(client.hear(), "done");
    client.finish();
    daemon.child.kill().expect("it runs");
    daemon.child.wait().expect("it ends");
    // Counts processor time: however slow the machine is, one that sleeps takes none.
    let (_, used) = use_of_processor(&server.child);
    std::thread::sleep(Duration::from_secs(2));
    let (_, used_then) = use_of_processor(&server.child);
    assert!(used_then - used <= 10, "{} ticks of processor time in 2 s", used_then - used);
    // It still looks for a daemon.
    daemon.child = Daemon::spawn(&daemon.folder);
    let mut client = Player::start(&daemon, "client", 0, &[&name, "100"]);
    assert_eq!(client.hear(), "done");
    client.finish();
    server.finish();
}

#[test]
fn a_second_daemon_says_that_there_is_one() {
    let daemon = Daemon::start("");
    let second =
        Command::new(env!("CARGO_BIN_EXE_weftd")).arg("--socket").arg(daemon.socket()).output().expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("another weftd runs there"), "{said}");
}

#[test]
fn a_configuration_is_checked() {
    let check = |text: &str| {
        let path = std::env::temp_dir().join(format!("weftd-check-{}.toml", std::process::id()));
        std::fs::write(&path, text).expect("written");
        let out = Command::new(env!("CARGO_BIN_EXE_weftd"))
            .args(["--check", "--config"])
            .arg(&path)
            .output()
            .expect("it runs");
        std::fs::remove_file(&path).expect("removed");
        (
            out.status.success(),
            String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
        )
    };
    assert_eq!(check("frames = 8\npolicy = \"lru\"\n"), (true, "the configuration can be used\n".into()));
    for (text, words) in [
        ("frames = 0", "from 1 to 65536"),
        ("\n\nframe = 8", "unknown field"),
        ("allow_users = [\"no-such\"]", "no-such"),
    ] {
        let (is_good, said) = check(text);
        assert!(!is_good && said.starts_with("weftd: ") && said.contains(words), "{said}");
    }
}

#[test]
fn a_user_who_may_not_attach_is_told_so() {
    let daemon = Daemon::start("allow_users = [\"4711\"]\n");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "role", "--nocapture"]).env(ROLE, "server").env("WEFT_TEST_USER", "0");
    let out = command.env("WEFT_NI", daemon.socket()).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && said.contains("weftd refuses this process") && said.contains("allow_users"),
        "{said}"
    );
}

#[test]
fn tools_of_another_user_are_told_of_its_own_endpoints_and_those_that_may_not_attach_of_nothing() {
    if !may_become_others() {
        return eprintln!("LEFT OUT: only root looks as other users");
    }
    let daemon = Daemon::start("allow_users = [\"root\", \"65530\"]\n");
    let (mut roots, mut own) =
        (Player::start(&daemon, "server", 0, &[]), Player::start(&daemon, "server", 65_530, &[]));
    for player in [&mut roots, &mut own] {
        player.hear();
    }
    let told = |user| Player::start(&daemon, "tool", user, &[]).hear();
    assert_eq!(told(65_530), format!("false 2 1 [{}]", own.child.id()));
    let all = told(0);
    assert!(all.starts_with("true 2 2 ") && all.contains(&roots.child.id().to_string()), "{all}");
    let refused = told(65_529);
    assert!(refused.starts_with("it refuses to tell"), "{refused}");
    own.finish();
    roots.finish();
}

/// A tool that asks for everything, and does not read.
fn ask_for_all(daemon: &Daemon) -> OwnedFd {
    use rustix::net::{self, AddressFamily, SendFlags, SocketType};
    let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    net::connect(&socket, &net::SocketAddrUnix::new(daemon.socket()).expect("a path")).expect("it listens");
    net::send(&socket, &Message::Look(Scope::All).to_bytes(), SendFlags::empty()).expect("sent");
    socket
}

/// The number of endpoints in an answer, read to its end.
fn read_endpoints(socket: &OwnedFd) -> usize {
    let (mut endpoints, mut packet) = (0, vec![0; ITEMS_BYTES]);
    loop {
        let (_, bytes) =
            rustix::net::recv(socket, &mut packet[..], rustix::net::RecvFlags::empty()).expect("it answers");
        assert_ne!(bytes, 0, "it hung up before the end");
        let said = std::str::from_utf8(&packet[..bytes]).expect("text");
        endpoints += said.matches("{\"endpoint\":{").count();
        if said.contains("{\"end\":{") {
            return endpoints;
        }
    }
}

#[test]
fn tools_that_do_not_read_hold_up_nobody_and_are_told_all_when_they_do() {
    let daemon = Daemon::start("");
    // More than the kernel buffers for a socket.
    let mut many = Player::start(&daemon, "many", 0, &["1500"]);
    assert_eq!(many.hear(), "made");
    let mut server = Player::start(&daemon, "server", 0, &[]);
    let name = server.hear();
    let tools: Vec<OwnedFd> = (0..10).map(|_| ask_for_all(&daemon)).collect();
    let mut client = Player::start(&daemon, "client", 0, &[&name, "100"]);
    assert_eq!(client.hear(), "done");
    client.finish();
    std::thread::sleep(Duration::from_millis(200));
    let (_, used) = daemon.use_of_processor();
    std::thread::sleep(Duration::from_secs(1));
    let (_, used_then) = daemon.use_of_processor();
    assert!(used_then - used <= 2, "{} ticks while nobody reads", used_then - used);
    for tool in &tools {
        assert_eq!(read_endpoints(tool), 1501);
    }
    many.finish();
    server.finish();
}

#[test]
fn a_daemon_with_nothing_to_do_sleeps() {
    let daemon = Daemon::start("");
    let mut server = Player::start(&daemon, "server", 0, &[]);
    let name = server.hear();
    let mut client = Player::start(&daemon, "client", 0, &[&name, "100"]);
    assert_eq!(client.hear(), "done");
    client.finish();
    // Counts wakeups, not time, so the bound holds however slow the machine is.
    std::thread::sleep(Duration::from_millis(200));
    let ((slept, used), begin) = (daemon.use_of_processor(), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let (slept_then, used_then) = daemon.use_of_processor();
    let seconds = begin.elapsed().as_secs_f64();
    let per_second = (slept_then - slept) as f64 / seconds;
    eprintln!("wake-ups a second: {per_second:.1}, ticks of processor time: {}", used_then - used);
    assert!(per_second < 5.0, "{per_second}");
    assert!(used_then - used <= 2, "{} ticks", used_then - used);
    server.finish();
}
