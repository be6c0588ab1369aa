//! Shared by the whole-process tests: other processes of the test program, bounded waits, and counts of what a process holds.
//!
//! A child is the test program itself, told by its environment which role to play; every test file has a test named `child`
//! that plays it and does nothing otherwise. Children talk to the test in lines over their standard input and output, end
//! when their input ends, and die with the thread that made them. Every wait is bounded, and says what it waited for.
#![allow(dead_code)] // each test program uses its own part of this

pub mod calls;
pub mod client;
pub mod counted;
pub mod raw;
pub mod rights;
pub mod threads;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft::{Bundle, Endpoint, Event, Key, MessageKind, Name, Returned};

/// How long anything may take that takes milliseconds on a quiet machine.
pub const BOUND: Duration = Duration::from_secs(30);

/// How long a test may take before the program is ended, because waiting calls of weft have no bound of their own. [`LONG`] in the
/// environment overrides it, in seconds.
const TEST_BOUND: Duration = Duration::from_secs(150);

/// Set for processes of tests that take longer.
pub const LONG: &str = "WEFT_TEST_BOUND";

const ROLE: &str = "WEFT_TEST_ROLE";
const WORDS: &str = "WEFT_TEST_WORDS";
/// Starts each line from a child to the test; the test harness writes other lines.
const MARK: &str = "@ ";

// ---- the test's side

static TURN: Mutex<()> = Mutex::new(());
static NOW: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// A test's turn: the tests of a program run one at a time, because they count descriptors and need the cores.
pub struct Turn {
    _guard: MutexGuard<'static, ()>,
}

/// Waits for this test's turn, and bounds how long the test takes.
pub fn turn(test: &str) -> Turn {
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    watch(test);
    Turn { _guard: guard }
}

/// The current turn is long, so children may take as long as the test.
static IS_LONG: AtomicBool = AtomicBool::new(false);

/// Bound of a child of such a test, in seconds: a day.
const LONG_BOUND: &str = "86400";

/// Waits for the turn of a test of `make soak`. Neither the test nor its children have a time limit.
pub fn long_turn() -> Turn {
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Relaxed: the lock orders turns.
    IS_LONG.store(true, Ordering::Relaxed);
    Turn { _guard: guard }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IS_LONG.store(false, Ordering::Relaxed);
        *now() = None;
    }
}

fn now() -> MutexGuard<'static, Option<(Instant, String)>> {
    NOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process if the test that begins now still runs after the bound.
fn watch(what: &str) {
    static WATCHMAN: std::sync::Once = std::sync::Once::new();
    *now() = Some((Instant::now(), what.to_owned()));
    let long = std::env::var(LONG).ok().and_then(|seconds| seconds.parse().ok());
    let bound = long.map_or(TEST_BOUND, Duration::from_secs);
    WATCHMAN.call_once(|| {
        let (begins, has_begun) = channel();
        std::thread::spawn(move || {
            begins.send(()).expect("somebody waits");
            loop {
                std::thread::sleep(Duration::from_millis(500));
                if let Some((since, what)) = &*now() {
                    if since.elapsed() > bound {
                        eprintln!("{what}: still going on after {bound:?}; process {} gives up", std::process::id());
                        std::process::abort();
                    }
                }
            }
        });
        // A thread that has not begun may need memory that a test forbids next.
        has_begun.recv().expect("the thread begins");
    });
}

// ---- tests between hosts

/// The environment that makes processes of one host talk over UDP: names carry the loopback address, and memory is not used.
pub const OVER_UDP: [(&str, &str); 2] = [("WEFT_ADDR", "127.0.0.1"), ("WEFT_LOCAL", "off")];

/// Waits for this test's turn, and runs the test again, in a process of its own whose messages and whose children's messages
/// all go over UDP. Returns `Some` in that process. Here it returns `None` once that process has ended well; then the test must
/// return.
pub fn over_udp(test: &str) -> Option<Turn> {
    again(test, &[], &OVER_UDP)
}

/// The same with another environment, and started by another command.
pub fn again(test: &str, before: &[&str], environment: &[(&str, &str)]) -> Option<Turn> {
    const AGAIN: &str = "WEFT_TEST_AGAIN";
    let turn = turn(test);
    if std::env::var_os(AGAIN).is_some() {
        die_with_the_parent();
        return Some(turn);
    }
    if before.is_empty() && !has_loopback() {
        left_out(&format!("{test}: the loopback interface is down, and to set it up is not allowed"));
        return None;
    }
    let program = std::env::current_exe().expect("this program");
    let arguments = ["--exact", test, "--nocapture", "--test-threads=1", "--include-ignored"];
    let mut command = match before {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    command.args(arguments).env(AGAIN, "").envs(environment.iter().copied()).stdout(Stdio::null());
    let status = command.status();
    let status = status.unwrap_or_else(|e| panic!("{test}: cannot run it again by {command:?}: {e}"));
    assert!(status.success(), "{test}, in a process of its own with {environment:?}: {status} (see above)");
    None
}

/// Whether messages can go over 127.0.0.1. In a new network namespace that interface is down at first.
pub fn has_loopback() -> bool {
    let works = || {
        let there = std::net::UdpSocket::bind("127.0.0.1:0")?;
        there.send_to(b"", there.local_addr()?)
    };
    works().is_ok() || (Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok() && works().is_ok())
}

pub fn die_with_the_parent() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("die with the parent");
}

/// Memory of a process in KiB: a line of its status, as `VmRSS` or `RssAnon` (proc(5)).
pub fn memory_of(process: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let found = status.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':')).expect("such a line");
    found.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Another process of this test program.
pub struct Peer {
    role: String,
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts a child in a role. It gets `words` at the start.
    pub fn start(role: &str, words: &[&str]) -> Peer {
        Peer::start_with(role, words, &[])
    }

    /// The same, with more in its environment.
    pub fn start_with(role: &str, words: &[&str], environment: &[(&str, &OsStr)]) -> Peer {
        Peer::start_by(Command::new(std::env::current_exe().expect("this program")), role, words, environment)
    }

    /// The same, by a command that begins with another program and ends with this one.
    pub fn start_by(mut command: Command, role: &str, words: &[&str], environment: &[(&str, &OsStr)]) -> Peer {
        if IS_LONG.load(Ordering::Relaxed) {
            command.env(LONG, LONG_BOUND);
        }
        let mut child = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(WORDS, words.join("\n"))
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a child");
        let out = child.stdout.take().expect("piped");
        let orders = child.stdin.take();
        let (heard, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(word) = line.strip_prefix(MARK) {
                    if heard.send(word.to_owned()).is_err() {
                        break;
                    }
                }
            }
        });
        Peer { role: role.to_owned(), child, orders, lines }
    }

    /// The child's next line.
    pub fn hear(&self) -> String {
        match self.lines.recv_timeout(BOUND) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("child {:?} said nothing for {BOUND:?}", self.role),
            Err(RecvTimeoutError::Disconnected) => panic!("child {:?} ended without a word (see above)", self.role),
        }
    }

    /// The child's next line, if it is there.
    pub fn overhear(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// The child's next line, if it comes within that time.
    pub fn hear_for(&self, time: Duration) -> Option<String> {
        self.lines.recv_timeout(time).ok()
    }

    /// The child's next line, while a bundle of ours is polled.
    pub fn hear_polling(&self, bundle: &mut Bundle) -> String {
        let mut line = None;
        poll_until(bundle, &format!("a line of child {:?}", self.role), |_| {
            line = match self.lines.try_recv() {
                Ok(line) => Some(line),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => panic!("child {:?} ended without a word (see above)", self.role),
            };
            line.is_some()
        });
        line.expect("just heard")
    }

    /// The address in the child's next line.
    pub fn address(&self) -> Address {
        Address::parse(&self.hear())
    }

    /// Tells the child something.
    pub fn say(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("the child's input is open");
        writeln!(orders, "{order}").and_then(|()| orders.flush()).expect("the child listens");
    }

    /// Asks, and gives the answer.
    pub fn ask(&mut self, order: &str) -> String {
        self.say(order);
        self.hear()
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Stops the process until [`Peer::go_on`]. It is stopped when this returns.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let stands = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).expect("it lives");
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        let threads = || std::fs::read_dir(format!("/proc/{}/task", self.id())).expect("it lives").flatten();
        wait_until("a process to stand still", || threads().all(stands));
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).expect("it lives");
    }

    /// Ends the child's input, without waiting for its end.
    pub fn hang_up(&mut self) {
        self.orders = None;
    }

    /// Ends the child's input and expects it to end well.
    pub fn finish(mut self) {
        self.orders = None;
        let since = Instant::now();
        while since.elapsed() < BOUND {
            if let Some(status) = self.child.try_wait().expect("wait") {
                assert!(status.success(), "child {:?} failed (see above): {status}", self.role);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("child {:?} did not end within {BOUND:?}", self.role);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- the child's side

/// A role and what plays it.
pub type Role = (&'static str, fn(Orders));

/// Plays the role that the environment asks for. The body of each program's test `child`.
pub fn play(roles: &[Role]) {
    let Ok(role) = std::env::var(ROLE) else { return };
    die_with_the_parent();
    watch(&format!("child {role:?}"));
    let words = std::env::var(WORDS).unwrap_or_default();
    let words = words.split('\n').filter(|w| !w.is_empty()).map(str::to_owned).collect();
    let (_, run) = roles.iter().find(|(name, _)| *name == role).expect("a role of this program");
    run(Orders { words, lines: RefCell::new(None) });
}

/// Says a line to the test.
pub fn tell(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // The harness leaves its own line unfinished.
    writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush()).expect("the test listens");
}

/// The lines that a child gets from the test.
pub struct Orders {
    /// The words given at the start.
    pub words: Vec<String>,
    lines: RefCell<Option<Receiver<String>>>,
}

/// The result of looking for an order.
pub enum Order {
    /// Nothing yet.
    None,
    /// A line.
    Line(String),
    /// The input has ended: so should the child.
    End,
}

impl Orders {
    /// Waits for a line; `None` at the end.
    pub fn wait(&self) -> Option<String> {
        if self.lines.borrow().is_some() {
            return self.lines.borrow().as_ref().and_then(|lines| lines.recv().ok());
        }
        let mut line = String::new();
        let bytes = std::io::stdin().read_line(&mut line).expect("input");
        (bytes > 0).then(|| line.trim_end().to_owned())
    }

    /// The next line, if there is one; a thread listens from now on.
    pub fn look(&self) -> Order {
        let mut lines = self.lines.borrow_mut();
        let lines = lines.get_or_insert_with(|| {
            let (heard, lines) = channel();
            let (begins, has_begun) = channel();
            std::thread::spawn(move || {
                begins.send(()).expect("somebody waits");
                for line in std::io::stdin().lines().map_while(Result::ok) {
                    if heard.send(line).is_err() {
                        break;
                    }
                }
            });
            // A thread that has not begun may need memory that a test forbids next.
            has_begun.recv().expect("the thread begins");
            lines
        });
        match lines.try_recv() {
            Ok(line) => Order::Line(line),
            Err(TryRecvError::Empty) => Order::None,
            Err(TryRecvError::Disconnected) => Order::End,
        }
    }

    /// Polls a bundle until the input ends; lines go to `obey`.
    pub fn serve(&self, bundle: &mut Bundle, mut obey: impl FnMut(&mut Bundle, &str)) {
        bundle.poll_until(|bundle| match self.look() {
            Order::None => false,
            Order::End => true,
            Order::Line(line) => {
                obey(bundle, &line);
                false
            }
        });
    }
}

// ---- both sides

/// A name and its key, as one line.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub name: Name,
    pub key: Key,
}

impl Address {
    pub fn of(bundle: &Bundle, endpoint: Endpoint) -> Address {
        let name = bundle.name(endpoint).expect("an endpoint of ours");
        Address { name, key: bundle.key(endpoint).expect("an endpoint of ours") }
    }

    pub fn parse(line: &str) -> Address {
        let (name, key) = line.split_once(' ').expect("a name and a key");
        let name = name.parse().expect("a name");
        Address { name, key: key.parse().expect("a key") }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:x}", self.name, self.key.0)
    }
}

/// A bundle of a node of its own, with one endpoint.
pub fn bundle_with_endpoint() -> (Bundle, Endpoint) {
    let mut bundle = Bundle::new(&weft::Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    (bundle, here)
}

/// Polls a bundle until `done`, for at most [`BOUND`].
pub fn poll_until(bundle: &mut Bundle, what: &str, mut done: impl FnMut(&mut Bundle) -> bool) {
    let since = Instant::now();
    bundle.poll_until(|bundle| {
        assert!(since.elapsed() < BOUND, "waited {BOUND:?} in vain for {what}; {:?}", bundle.counters());
        done(bundle)
    });
}

/// Waits for something without a bundle, for at most [`BOUND`].
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < BOUND, "waited {BOUND:?} in vain for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Sends whatever the kind; polls until it is taken.
pub fn insist(bundle: &mut Bundle, from: Endpoint, to: u32, kind: MessageKind, message: weft::Outgoing<'_>) {
    poll_until(bundle, "room for a message", |bundle| match bundle.try_post(from, to, kind, message) {
        Ok(()) => true,
        Err(weft::SendError::Full) => false,
        Err(other) => panic!("not sent: {other}"),
    });
}

/// The messages that come back to an endpoint from now on.
pub fn returns_of(bundle: &mut Bundle, endpoint: Endpoint) -> Rc<RefCell<Vec<Returned>>> {
    let returns = Rc::new(RefCell::new(Vec::new()));
    let sink = returns.clone();
    bundle.on_return(endpoint, move |_, message| sink.borrow_mut().push(message)).expect("an endpoint of ours");
    returns
}

/// The events there are.
pub fn events(bundle: &mut Bundle) -> Vec<Event> {
    std::iter::from_fn(|| bundle.next_event()).collect()
}

/// Contents that depend on a number, such that neighbouring bytes differ.
pub fn contents(seed: u32, args: usize, bytes: usize) -> (Vec<u32>, Vec<u8>) {
    let mut dice = Dice(u64::from(seed) + 1);
    let args = (0..args).map(|_| dice.roll() as u32).collect();
    let start = dice.roll();
    let payload = (0..bytes as u64).map(|i| (start.wrapping_add(i.wrapping_mul(0x9e37_79b9)) >> 16) as u8).collect();
    (args, payload)
}

/// A small generator of repeatable numbers (xorshift*).
pub struct Dice(pub u64);

impl Dice {
    /// One with a fresh seed, which it prints. `WEFT_TEST_SEED` repeats one.
    pub fn fresh(what: &str) -> Dice {
        let fresh = || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64);
        let seed = std::env::var("WEFT_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(fresh);
        eprintln!("{what}: WEFT_TEST_SEED={seed}");
        Dice(seed | 1)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }
}

/// The resources that a process holds: descriptors, and mappings of weft's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Census {
    pub descriptors: usize,
    pub mappings: usize,
}

impl Census {
    /// Of this process. The descriptor of the listing itself is always counted.
    pub fn take() -> Census {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("/proc").count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        Census { descriptors, mappings: maps.lines().filter(|l| l.contains("weft-")).count() }
    }

    /// Whether this is no more than that.
    pub fn is_within(self, most: Census) -> bool {
        self.descriptors <= most.descriptors && self.mappings <= most.mappings
    }

    pub fn parse(line: &str) -> Census {
        let (descriptors, mappings) = line.split_once(' ').expect("two numbers");
        Census { descriptors: descriptors.parse().expect("number"), mappings: mappings.parse().expect("number") }
    }
}

impl std::fmt::Display for Census {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.descriptors, self.mappings)
    }
}

/// Reports that something could not be tested here.
pub fn left_out(what: &str) {
    eprintln!("LEFT OUT: {what}");
}
