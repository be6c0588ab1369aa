//! Programs of tests that talk through a daemon: processes of this test program, each with a role.

use crate::daemon::{Folder, BOUND, ROLE};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::time::Duration;
use weft::status::{look_at_daemon, Scope};
use weft::{Admission, Bundle, Certainty, Endpoint, Key, Name, Node};

/// The environment variable with the arguments of a role: the name to ask, and others. Another one says which user to become.
const WORDS: &str = "WEFT_TEST_WORDS";
const USER: &str = "WEFT_TEST_USER";

pub const ECHO: u8 = 1;
pub const ANSWER: u8 = 2;
pub const KEY: Key = Key(7);

/// Requests of a process to one peer that have not ended, at most.
const UNDER_WAY_MOST: usize = 16;

/// A process with a role. It ends when its input does.
pub struct Player {
    pub child: Child,
    said: Receiver<String>,
    orders: Option<ChildStdin>,
}

impl Player {
    /// Starts one at the daemon of a folder, as a user, or as this process's user if that is 0.
    pub fn start(folder: &Folder, role: &str, user: u32, words: &str) -> Player {
        let user = if may_become_others() { user } else { 0 };
        let mut command = Player::command(role, user, words);
        command.env("WEFT_NI", folder.at("socket"));
        Player::run(command)
    }

    /// Starts one that is its own network interface, on loopback.
    pub fn start_as_host(role: &str, words: &str) -> Player {
        let mut command = Player::command(role, 0, words);
        command.env("WEFT_NI", "process").env("WEFT_ADDR", "127.0.0.1");
        Player::run(command)
    }

    fn command(role: &str, user: u32, words: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "program", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(WORDS, words).env(USER, user.to_string()).env("WEFT_LOCAL", "off");
        command
    }

    fn run(mut command: Command) -> Player {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (tell, said) = channel();
        let told = |line: String| line.strip_prefix("told: ").map(str::to_owned);
        std::thread::spawn(move || lines.map_while(Result::ok).filter_map(told).try_for_each(|line| tell.send(line)));
        let orders = child.stdin.take();
        Player { child, said, orders }
    }

    /// Returns the next line that it prints.
    pub fn hear(&self) -> String {
        self.hear_within(BOUND)
    }

    /// The same, for one that takes its time.
    pub fn hear_within(&self, bound: Duration) -> String {
        self.said.recv_timeout(bound).expect("it tells something")
    }

    pub fn order(&mut self, words: &str) {
        writeln!(self.orders.as_mut().expect("piped"), "{words}").expect("it listens");
    }

    /// Closes its input, and so ends its role.
    pub fn end_orders(&mut self) {
        drop(self.orders.take());
    }

    /// The same, and waits until it has exited with success.
    pub fn finish(mut self) {
        self.end_orders();
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    pub fn kill(mut self) {
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

/// Whether this process may start others as other users, as root may. Otherwise all of them run as its own user.
pub fn may_become_others() -> bool {
    // Tried in a thread that ends at once.
    std::thread::spawn(|| become_user(65_530).is_ok()).join().expect("it ends")
}

/// Makes this thread another user's.
pub fn become_user(user: u32) -> rustix::io::Result<()> {
    let uid = rustix::thread::Uid::from_raw(user);
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// Plays a role.
pub fn play(role: &str) {
    let words = std::env::var(WORDS).expect("words");
    let user: u32 = std::env::var(USER).expect("a user").parse().expect("a number");
    if user != 0 {
        become_user(user).expect("root may become anybody");
    }
    match role {
        "asker" => ask(&words),
        "tool" => look(),
        "hosts" => tell_hosts(),
        "degraded" => tell(daemon_status().degraded.join("; ")),
        "filler" => crate::memory::fill(),
        "crowd" => crate::memory::crowd(&words),
        "sprayer" => crate::memory::spray(&words),
        "sink" => crate::memory::sink(),
        "echo" => crate::memory::echo(),
        "walker" => crate::walks::walk(&words),
        "violations" => tell(daemon_status().counters.violations),
        "intruder" => crate::views::intrude(&words),
        _ => panic!("no such role: {role}"),
    }
}

/// Prints a line for the test, after whatever the test harness began.
pub fn tell(word: impl std::fmt::Display) {
    println!("\ntold: {word}");
    std::io::stdout().flush().expect("somebody listens");
}

/// A process's orders, line by line.
pub fn orders() -> Receiver<String> {
    let (tell, orders) = channel();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    orders
}

/// The daemon's status of itself.
fn daemon_status() -> weft::status::DaemonStatus {
    let found = look_at_daemon(Scope::Totals, BOUND).expect("WEFT_NI names it").expect("its socket is there");
    found.answer.expect("it answers").daemon
}

/// Prints how many attachments, endpoints, lines and used frames the daemon has.
fn look() {
    let found = look_at_daemon(Scope::Totals, BOUND).expect("WEFT_NI names it").expect("its socket is there");
    let answer = found.answer.expect("it answers");
    let lines: u64 = answer.attachments.iter().map(|attachment| attachment.lines).sum();
    tell(format!(
        "{} attachments, {} endpoints, {lines} lines, {} frames",
        answer.daemon.attachments, answer.daemon.endpoints, answer.daemon.frames_used
    ));
}

/// Prints for each host that the daemon talks to what checksums cover, and what this daemon wants.
fn tell_hosts() {
    let found = look_at_daemon(Scope::Totals, BOUND).expect("WEFT_NI names it").expect("its socket is there");
    let hosts = found.answer.expect("it answers").hosts;
    let covers = hosts.iter().map(|host| format!("{:?}, wants {:?}", host.integrity, host.integrity_wanted));
    tell(covers.collect::<Vec<_>>().join("; "));
}

/// The fate of a process's requests, and the requests that it got.
#[derive(Default)]
struct Ledger {
    /// Requests that have not ended, and their destinations.
    under_way: BTreeMap<u32, u32>,
    answered: u64,
    returned: u64,
    not_delivered: Vec<u32>,
    /// The numbers of requests that came, as ranges, by the epoch and process number of their sender.
    came: BTreeMap<(u64, u32), Vec<RangeInclusive<u32>>>,
    count: u64,
    /// Requests that came twice, or out of order.
    came_again: u64,
}

impl Ledger {
    fn end(&mut self, number: u32) {
        assert!(self.under_way.remove(&number).is_some(), "request {number} ends twice");
    }

    /// Process numbers repeat when thousands of programs are started, so the epoch of the sender's name tells the programs apart.
    fn note_came(&mut self, from: (u64, u32), number: u32) {
        self.count += 1;
        let runs = self.came.entry(from).or_default();
        match runs.last_mut() {
            Some(last) if number <= *last.end() => self.came_again += 1,
            Some(last) if number == *last.end() + 1 => *last = *last.start()..=number,
            _ => runs.push(number..=number),
        }
    }

    fn has_come(&self, from: u32, number: u32) -> bool {
        self.came.iter().any(|((_, who), runs)| *who == from && runs.iter().any(|run| run.contains(&number)))
    }
}

fn contents(number: u32) -> Vec<u8> {
    const SIZES: [usize; 7] = [0, 8, 28, 29, 300, 4096, 20_000];
    vec![number as u8; SIZES[number as usize % SIZES.len()]]
}

/// An endpoint that answers every request and notes what becomes of its own.
fn open(ledger: &Rc<RefCell<Ledger>>) -> (Bundle, Endpoint) {
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let here = bundle.endpoint(KEY).expect("an endpoint");
    bundle.set_admission(here, Admission::AnyUser).expect("an endpoint");
    let noted = ledger.clone();
    let take = move |m: &mut weft::am::Message<'_>| {
        let (number, who) = (m.args()[0], m.args()[1]);
        assert_eq!(m.payload(), contents(number));
        let epoch = m.source().map_or(0, |name| name.epoch.0);
        noted.borrow_mut().note_came((epoch, who), number);
        // A requester that has ended gets no answer.
        let _ = m.reply(ANSWER, m.args(), m.payload());
    };
    bundle.on(here, ECHO, take).expect("on");
    let noted = ledger.clone();
    let take = move |m: &mut weft::am::Message<'_>| {
        noted.borrow_mut().end(m.args()[0]);
        noted.borrow_mut().answered += 1;
    };
    bundle.on(here, ANSWER, take).expect("on");
    let noted = ledger.clone();
    let take = move |_: &mut weft::am::Context<'_>, back: weft::Returned| {
        // Replies come back, too.
        if back.kind != weft::MessageKind::Request {
            return;
        }
        let mut noted = noted.borrow_mut();
        noted.end(back.args[0]);
        noted.returned += 1;
        assert_eq!(back.payload, contents(back.args[0]), "it comes back with its contents");
        if back.certainty == Certainty::NotDelivered {
            noted.not_delivered.push(back.args[0]);
        }
    };
    bundle.on_return(here, take).expect("on");
    (bundle, here)
}

/// Answers all requests, and sends as many requests as it can to peers. Orders: `ask PLACE NAME`, `leave PLACE`, `mark` (prints `went on`
/// when a request sent after it was answered), `came NUMBER..` (prints how many of these came). Without a name at the beginning it asks
/// nobody. At the end of its input it prints the fate of all.
fn ask(name: &str) {
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let (mut bundle, here) = open(&ledger);
    let who = std::process::id();
    let (mut peers, mut number, mut mark) = (BTreeSet::new(), 0u32, None);
    if !name.is_empty() {
        bundle.map(here, 0, name.parse().expect("a name"), KEY).expect("mapped");
        peers.insert(0);
        // Tells the test that the process is under load.
        mark = Some(1);
    }
    tell(bundle.name(here).expect("a name"));
    let orders = orders();
    loop {
        match orders.try_recv() {
            Ok(order) => match order.split(' ').collect::<Vec<_>>()[..] {
                ["ask", place, name] => {
                    let place = place.parse().expect("a number");
                    let name: Name = name.parse().expect("a name");
                    bundle.map(here, place, name, KEY).expect("mapped");
                    peers.insert(place);
                }
                ["leave", place] => _ = peers.remove(&place.parse().expect("a number")),
                ["mark"] => mark = Some(ledger.borrow().answered + ledger.borrow().under_way.len() as u64 + 1),
                ["came", ref numbers @ ..] => {
                    let of = numbers[0].parse().expect("a number");
                    let numbers = numbers[1..].iter().filter_map(|number| number.parse().ok());
                    tell(numbers.filter(|number| ledger.borrow().has_come(of, *number)).count());
                }
                _ => panic!("{order}"),
            },
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        for place in &peers {
            let to_it = ledger.borrow().under_way.values().filter(|of| *of == place).count();
            for _ in to_it..UNDER_WAY_MOST {
                if bundle.try_request(here, *place, ECHO, &[number, who], &contents(number)).is_err() {
                    break;
                }
                ledger.borrow_mut().under_way.insert(number, *place);
                number += 1;
            }
        }
        if bundle.poll() == 0 {
            bundle.wait(Some(Duration::from_millis(1)));
        }
        if mark.is_some_and(|mark| ledger.borrow().answered >= mark) {
            tell("went on");
            mark = None;
        }
    }
    assert!(bundle.drain_within(BOUND), "all that it sent ends");
    let ledger = ledger.borrow();
    assert!(ledger.under_way.is_empty());
    assert_eq!(u64::from(number), ledger.answered + ledger.returned);
    tell(format!("{number} sent, {} returned, {} came, {} again", ledger.returned, ledger.count, ledger.came_again));
    let numbers: Vec<String> = ledger.not_delivered.iter().map(u32::to_string).collect();
    tell(numbers.join(" "));
}
