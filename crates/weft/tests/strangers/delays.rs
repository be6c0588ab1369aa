//! Strangers and peers that make a system call of ours take as long as they want, with a page that never comes or with descriptors
//! whose close lingers. Meanwhile other sessions are set up, and polls return.

use crate::hostile::give;
use crate::support::raw::{self, Said};
use crate::support::rights::{is_root, may_read_memory};
use crate::support::{self, left_out, poll_until, returns_of, tell, turn, wait_until, Address, Order, Orders, Peer};
use crate::{census, expect_back, start, Census, Client, ANSWER, ECHO};
use nix::unistd::ForkResult;
use rustix::net::{self, sockopt, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use weft::{Bundle, Key, Name, Node, Reason};
use weft_shm::{BellPage, Lanes, Shared};
use weft_wire::proof::Side;
use weft_wire::setup::{Hello, Message, Nonce};
use weft_wire::Epoch;

/// Longer than any test waits.
const LINGER: Duration = Duration::from_secs(600);

/// More callers than there are threads that read.
const CALLERS: u32 = 6;

/// A process with a page that never comes.
struct Never {
    child: Child,
    orders: ChildStdin,
    lines: BufReader<ChildStdout>,
    page: u64,
}

impl Never {
    /// `None` if this user may have none.
    fn start() -> Option<Never> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/strangers/never.py");
        let mut command = Command::new("python3");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let (orders, out) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut never = Never { child, orders, lines: BufReader::new(out), page: 0 };
        let told = never.hear();
        match told.strip_prefix("none: ") {
            None => never.page = told.parse().expect("an address"),
            Some(why) => {
                assert!(!is_root(), "{why}");
                left_out(&format!("no page that never comes: {why}"));
                return None;
            }
        }
        Some(never)
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn say(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it lives");
    }

    fn ask(&mut self, order: &str) -> String {
        self.say(order);
        self.hear()
    }
}

impl Drop for Never {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn path(name: &Name) -> String {
    format!("weft1-{:016x}", name.epoch.0)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("two digits")).collect()
}

#[test]
fn callers_whose_memory_cannot_be_read_to_the_end_delay_nobody() {
    let _turn = turn("pages that never come");
    let (mut peer, before, there, me) = start();
    let Some(mut never) = Never::start() else { return peer.finish() };
    for number in 1..=CALLERS {
        let hello = Hello { nonce_at: never.page, draw: number.into(), ..raw::unproved(&me, &there.name) };
        let bytes = Message::Hello(hello, hello.proof(there.key, Side::Caller)).to_bytes();
        assert_eq!(never.ask(&format!("call {} {}", path(&there.name), hex(&bytes))), "called");
        let mut client = Client::new(there);
        eprintln!("with {number} callers that are still being read, a new client waited {:?}", client.ask(1));
    }
    // The calls that waited are not the last ones to succeed.
    let mut clients: Vec<Client> = (0..3).map(|_| Client::new(there)).collect();
    clients.iter_mut().for_each(|client| _ = client.ask(1));
    drop(clients);
    // Its death ends the reads and frees what was kept for them.
    drop(never);
    expect_back(&mut peer, before, "callers that could not be read to the end");
    peer.finish();
}

#[test]
fn a_callee_whose_memory_cannot_be_read_to_the_end_delays_no_poll() {
    let _turn = turn("a callee's page that never comes");
    let (peer, _, there, _) = start();
    let Some(mut never) = Never::start() else { return peer.finish() };
    let squatted = raw::nobody(&there.name);
    assert_eq!(never.ask(&format!("listen {}", path(&squatted))), "listening");
    let mut client = Client::new(there);
    let key = Key(77);
    client.bundle.map(client.here, 1, squatted, key).expect("map");
    assert!(client.bundle.try_request(client.here, 1, ECHO, &[], b"").is_err(), "its call is made first");
    let heard = std::thread::scope(|scope| {
        let heard = scope.spawn(|| never.hear());
        wait_until("the call", || {
            client.bundle.poll();
            heard.is_finished()
        });
        unhex(&heard.join().expect("it says something"))
    });
    let Ok(Message::Hello(hello, _)) = Message::from_bytes(&heard) else { panic!("no hello: {heard:?}") };
    let challenge =
        Message::Challenge { seen: Nonce::UNSEEN, nonce_at: never.page, proof: hello.proof(key, Side::Callee) };
    assert_eq!(never.ask(&format!("say {}", hex(&challenge.to_bytes()))), "said");
    client.bundle.poll();
    client.ask(1);
    // Dropping the bundle does not wait for the read either.
    drop(client);
    drop(never);
    peer.finish();
}

#[test]
fn a_callee_may_refuse_while_its_memory_is_read() {
    let _turn = turn("a refusal behind a challenge");
    let (peer, _, there, _) = start();
    let Some(mut never) = Never::start() else { return peer.finish() };
    let squatted = raw::nobody(&there.name);
    assert_eq!(never.ask(&format!("listen {}", path(&squatted))), "listening");
    let mut client = Client::new(there);
    let returns = returns_of(&mut client.bundle, client.here);
    let key = Key(77);
    client.bundle.map(client.here, 1, squatted, key).expect("map");
    assert!(client.bundle.try_request(client.here, 1, ECHO, &[], b"").is_err(), "its call is made first");
    let heard = std::thread::scope(|scope| {
        let heard = scope.spawn(|| never.hear());
        wait_until("the call", || {
            client.bundle.poll();
            heard.is_finished()
        });
        unhex(&heard.join().expect("it says something"))
    });
    let Ok(Message::Hello(hello, _)) = Message::from_bytes(&heard) else { panic!("no hello: {heard:?}") };
    let challenge =
        Message::Challenge { seen: Nonce::UNSEEN, nonce_at: never.page, proof: hello.proof(key, Side::Callee) };
    let refusal = Message::Refuse { reason: Reason::NoSuchEndpoint };
    for message in [challenge, refusal] {
        assert_eq!(never.ask(&format!("say {}", hex(&message.to_bytes()))), "said");
    }
    client.bundle.request(client.here, 1, ECHO, &[], b"").expect("mapped");
    poll_until(&mut client.bundle, "a return", |_| !returns.borrow().is_empty());
    assert_eq!(returns.borrow()[0].reason, Reason::NoSuchEndpoint);
    drop(client);
    drop(never);
    peer.finish();
}

/// A TCP socket whose last close takes [`LINGER`], and its peer, whose close ends that.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    sockopt::set_socket_recv_buffer_size(&listener, 4096).expect("a small buffer");
    let mut full = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    let (other, _) = listener.accept().expect("accept");
    sockopt::set_socket_linger(&full, Some(LINGER)).expect("linger");
    full.set_nonblocking(true).expect("no waiting");
    while full.write(&[0; 65536]).is_ok() {}
    (full.into(), other)
}

/// Starts this program as if on a kernel that cannot refuse descriptors.
fn on_an_old_kernel() -> Command {
    let mut command = Command::new("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/strangers/old_kernel.py"));
    command.arg(std::env::current_exe().expect("this program"));
    command
}

/// A server, as on this kernel or as on one that cannot refuse descriptors.
pub fn start_on(is_old: bool) -> (Peer, Census, Address, Name) {
    if !is_old {
        return start();
    }
    let mut peer = Peer::start_by(on_an_old_kernel(), "server", &[], &[]);
    let there = peer.address();
    let before = census(&mut peer);
    (peer, before, there, raw::nobody(&there.name))
}

/// Ways to send descriptors that do not belong there.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A stranger sends nonsense with them.
    Nonsense,
    /// A stranger sends an empty message, which looks like the end, and then nonsense with them.
    BehindNothing,
    /// They come with a hello.
    Hello,
    /// A ready has one too many.
    TooMany,
    /// A ready has them in place of memory.
    Wrong,
    /// A ready has one in place of the waker, and the session ends.
    Waker,
    /// They come after a ready, and the session ends.
    Behind,
}

/// Forks on order; parent and child each serve one endpoint in a node of their own.
pub fn forker(orders: Orders) {
    let (mut bundle, here) = open_one();
    tell(Address::of(&bundle, here));
    let mut child = None;
    loop {
        bundle.poll();
        match orders.look() {
            Order::None => {}
            Order::End => break,
            Order::Line(_) => {
                // SAFETY: the C library's allocator works in forked children, and no lock of this program that the child takes is
                // held by another thread now.
                match unsafe { nix::unistd::fork() }.expect("fork") {
                    ForkResult::Parent { child: process } => child = Some(process),
                    ForkResult::Child => {
                        support::die_with_the_parent();
                        let (mut bundle, here) = open_one();
                        tell(Address::of(&bundle, here));
                        bundle.poll_until(|_| false);
                    }
                }
            }
        }
    }
    if let Some(child) = child {
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).expect("a child of ours");
        nix::sys::wait::waitpid(child, None).expect("a child of ours");
    }
}

fn open_one() -> (Bundle, weft::Endpoint) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
    (bundle, here)
}

#[test]
fn a_child_that_is_forked_while_closes_linger_is_called() {
    let _turn = turn("a fork while closes linger");
    let mut peer = Peer::start_by(on_an_old_kernel(), "forker", &[], &[]);
    let there = peer.address();
    let mut others = Vec::new();
    // Until no more strangers are accepted.
    let is_closer = |name: &String| name.trim() == "weft-closer";
    wait_until("64 closes that linger", || {
        let me = raw::nobody(&there.name);
        others.extend(send_lingering(Way::Nonsense, &peer, &there, &me));
        threads_of(peer.id()).iter().filter(|name| is_closer(name)).count() >= 64
    });
    peer.say("fork");
    let child = Address::parse(&peer.hear());
    Client::new(child).ask(1);
    drop(others);
    peer.finish();
}

#[test]
fn descriptors_whose_close_lingers_delay_nobody() {
    let _turn = turn("descriptors that linger");
    for is_old in [false, true] {
        let (mut peer, before, there, me) = start_on(is_old);
        let mut sent = 0;
        for way in [Way::Nonsense, Way::BehindNothing, Way::Hello, Way::TooMany, Way::Wrong, Way::Waker, Way::Behind] {
            // Each under its own name: a caller that has a session is told to join it.
            let names = (0..3).map(|n| Name { epoch: Epoch(me.epoch.0.wrapping_add(n)), ..me });
            let others: Vec<TcpStream> = names.filter_map(|me| send_lingering(way, &peer, &there, &me)).collect();
            sent += others.len();
            let waited = Client::new(there).ask(1);
            eprintln!("{way:?} (refused by the kernel: {}): a new client waited {waited:?}", others.is_empty());
            // The kernel closes them now.
            drop(others);
            expect_back(&mut peer, before, &format!("{way:?}"));
        }
        assert!(sent >= 9, "only {sent} descriptors came under way");
        let all = if may_read_memory() { 21 } else { 18 };
        assert!(!is_old || sent == all, "only {sent} descriptors came under way, as on an old kernel");
        peer.finish();
    }
}

/// Closes our copy. If the other side was faster this is the last one, and its close lingers.
pub fn let_go(full: OwnedFd) {
    std::thread::spawn(move || drop(full));
}

/// Sends such a descriptor to a server, which then has the last copy. `None` if the kernel refuses.
fn send_lingering(way: Way, peer: &Peer, there: &Address, me: &Name) -> Option<TcpStream> {
    let (full, other) = lingering();
    let fds = [full.as_fd(); 4];
    let socket = raw::connect(&there.name).expect("connect");
    let hello = raw::hello(me, there).to_bytes();
    let sent = match way {
        Way::Nonsense => raw::say_with(&socket, b"nonsense", &fds[..1]),
        Way::BehindNothing => {
            // The server finds both at once.
            peer.stop();
            raw::say(&socket, b"");
            let sent = raw::say_with(&socket, b"nonsense", &fds[..1]);
            peer.go_on();
            sent
        }
        Way::Hello => raw::say_with(&socket, &hello, &fds[..1]),
        Way::TooMany | Way::Wrong | Way::Waker | Way::Behind => {
            raw::say(&socket, &hello);
            let Said::Message(Message::Accept { ring, is_trusted, .. }, _) = raw::hear(&socket) else {
                panic!("no accept")
            };
            let ready = Message::Ready { ring, bell: 0 };
            match way {
                Way::TooMany => raw::say_with(&socket, &ready.to_bytes(), &fds),
                Way::Wrong => raw::say_with(&socket, &ready.to_bytes(), &fds[..3]),
                Way::Waker => {
                    if !is_trusted {
                        assert!(!may_read_memory(), "this user is trusted where its memory can be read");
                        left_out("a waker that lingers: nobody is trusted here, and only who is gives one");
                        return None;
                    }
                    let lanes = Lanes::new(16 << 10, 512 << 10);
                    let (_, memory) = Shared::create("weft-ring", lanes.bytes()).expect("memfd");
                    let page = BellPage::create().expect("page");
                    let ready = Message::Ready { ring: lanes.geometry(), bell: 0 };
                    let sent = raw::say_with(&socket, &ready.to_bytes(), &[memory.as_fd(), page.fd(), fds[0]]);
                    // Wait until it has been received.
                    std::thread::sleep(Duration::from_millis(20));
                    sent
                }
                _ => {
                    // The server finds both at once, before it can refuse the second one.
                    peer.stop();
                    drop(give(&socket, is_trusted, |ring| Message::Ready { ring, bell: 0 }));
                    let sent = raw::say_with(&socket, b"nonsense", &fds[..1]);
                    peer.go_on();
                    sent
                }
            }
        }
    };
    let_go(full);
    drop(socket);
    sent.is_ok().then_some(other)
}

/// A bundle that calls us by a name like the server's, our end of the connection, and a correct challenge.
fn called(there: &Address) -> (Bundle, OwnedFd, Message) {
    let squatted = raw::nobody(&there.name);
    let listener = raw::listen(squatted.epoch);
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, squatted, Key(77)).expect("map");
    assert!(bundle.try_request(here, 0, ECHO, &[], b"").is_err(), "its call is made first");
    wait_until("the call", || {
        bundle.poll();
        raw::is_called(&listener)
    });
    let socket = raw::accept(&listener);
    let proof = raw::hear_hello(&socket).proof(Key(77), Side::Callee);
    (bundle, socket, Message::Challenge { seen: Nonce::UNSEEN, nonce_at: 0, proof })
}

#[test]
fn descriptors_that_come_with_a_callees_challenges_are_not_kept() {
    let _turn = turn("challenges with descriptors");
    let (peer, _, there, _) = start();
    let (mut bundle, socket, challenge) = called(&there);
    let waker = raw::waker();
    raw::say_with(&socket, &challenge.to_bytes(), &[waker.as_fd(); 3]).expect("say");
    wait_until("the call to end", || {
        bundle.poll();
        raw::has_ended(&socket)
    });
    peer.finish();
}

#[test]
fn polls_return_though_a_callee_sends_descriptors_whose_close_lingers() {
    let _turn = turn("a callee's descriptors that linger");
    let (peer, _, there, _) = start();
    let (mut bundle, socket, challenge) = called(&there);
    let (full, other) = lingering();
    raw::say_with(&socket, &challenge.to_bytes(), &[full.as_fd()]).expect("say");
    raw::say_with(&socket, b"nonsense", &[full.as_fd()]).expect("say");
    let_go(full);
    wait_until("the call to end", || {
        bundle.poll();
        raw::has_ended(&socket)
    });
    drop(bundle);
    drop(other);
    peer.finish();
}

/// The names of a process's threads.
fn threads_of(process: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives").flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok()).collect()
}

#[test]
fn a_status_query_leaves_no_thread_behind() {
    let _turn = turn("askers");
    for is_old in [false, true] {
        let (peer, _, there, _) = start_on(is_old);
        let name = format!("{}-status", path(&there.name));
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("abstract names");
        for says in [&b""[..], b"something"] {
            let kind = SocketType::STREAM;
            let asker = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
            net::connect(&asker, &name).expect("connect");
            raw::say(&asker, says);
            while raw::hear_bytes(&asker).is_some() {}
        }
        let is_closer = |name: &String| name.trim() == "weft-closer";
        wait_until("closes to end", || !threads_of(peer.id()).iter().any(is_closer));
        peer.finish();
    }
}
