//! Names by host and port: the answers, misbehaving clients, misbehaving servers, and time limits.

mod support;

use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::ForkResult;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use support::{has_loopback, left_out, turn, wait_until, Census, Dice};
use weft::names::{resolve, Contact, NameServer, ResolveError, TellError};
use weft::{Bundle, Endpoint, Key, Node};
use weft_wire::rendezvous::{Answer, Query, ANSWER_BYTES};

/// Far more than an answer takes.
const LIMIT: Duration = Duration::from_secs(20);

/// A limit that the test waits for.
const SHORT: Duration = Duration::from_millis(300);

fn endpoint() -> (Bundle, Endpoint, Contact) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let contact = bundle.contact(here).expect("contact");
    (bundle, here, contact)
}

/// A server at a free port of the loopback interface, and how to call it. `None` where there is none.
fn server(test: &str) -> Option<(NameServer, String)> {
    if !has_loopback() {
        left_out(&format!("{test}: the loopback interface is down, and to set it up is not allowed"));
        return None;
    }
    let names = NameServer::open_at(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let place = format!("127.0.0.1:{}", names.port());
    Some((names, place))
}

#[test]
fn a_resolved_name_is_all_that_a_client_needs() {
    let _turn = turn("a name by host and port");
    let Some((names, place)) = server("a name by host and port") else { return };
    let (mut bundle, here, contact) = endpoint();
    bundle.on(here, 1, |m| m.reply(2, m.args(), b"").expect("a request")).expect("on");
    names.tell_with_key("", contact).expect("a label");
    // This works while the program computes and does not poll.
    let found = resolve(&place, LIMIT).expect("it tells");
    let (mut client, me, _) = endpoint();
    client.map(me, 0, found.name, found.key).expect("map");
    let (put, answers) = std::sync::mpsc::channel();
    client.on(me, 2, move |m| put.send(m.args().to_vec()).expect("it listens")).expect("on");
    let mut is_sent = false;
    wait_until("an answer", || {
        is_sent = is_sent || client.try_request(me, 0, 1, &[42], b"").is_ok();
        bundle.poll();
        client.poll();
        answers.try_recv() == Ok(vec![42])
    });
}

#[test]
fn each_label_has_its_name_and_a_key_is_told_only_if_the_program_says_so() {
    let _turn = turn("labels");
    let Some((names, place)) = server("labels") else { return };
    let ((_b, _, one), (_c, _, two)) = (endpoint(), endpoint());
    names.tell("one", one.name).expect("a label");
    names.tell_with_key("two", two).expect("a label");
    let ask = |label: &str| resolve(&format!("{place}/{label}"), LIMIT);
    assert_eq!(ask("one").map(|found| (found.name, found.key.0)).ok(), Some((one.name, Key::NONE.0)));
    assert_eq!(ask("two").map(|found| (found.name, found.key.0)).ok(), Some((two.name, two.key.0)));
    let none = |label: &str| matches!(ask(label), Err(ResolveError::NoSuchLabel { .. }));
    assert!(none("three") && none("") && none("ONE"));
    names.tell("two", two.name).expect("the same again, without its key");
    assert_eq!(ask("two").map(|found| found.key.0).ok(), Some(Key::NONE.0));
    assert!(names.withdraw("one") && !names.withdraw("one") && none("one"));
    assert_eq!(names.tell("a b", one.name), Err(TellError::Label));
    let full = (0..5000).map(|n| names.tell(&n.to_string(), one.name)).find(Result::is_err);
    assert_eq!(full, Some(Err(TellError::TooMany)));
    names.tell("two", one.name).expect("one that is there already");
}

#[test]
fn the_port_is_free_again_once_the_server_is_dropped() {
    let _turn = turn("a port that is free again");
    let Some((names, place)) = server("a port that is free again") else { return };
    let port = names.port();
    let held = NameServer::open_at(names.address()).expect_err("somebody has it").to_string();
    assert!(held.contains("choose another port"), "{held}");
    // A client that has not asked yet.
    let mut asker = TcpStream::connect(&place).expect("it listens");
    let before = Instant::now();
    drop(names);
    assert!(before.elapsed() < Duration::from_millis(900), "{:?}", before.elapsed());
    assert!(matches!(asker.read(&mut [0]), Ok(0) | Err(_)), "it is told nothing");
    let refused = resolve(&place, LIMIT).map(|_| ()).expect_err("nobody listens");
    assert!(matches!(refused, ResolveError::System { .. }), "{refused}");
    assert!(refused.to_string().contains(&place) && refused.to_string().contains("start the program"), "{refused}");
    // At all addresses, with IPv6 if there is any.
    let again = NameServer::open(port).expect("it is free");
    let (_b, _, contact) = endpoint();
    again.tell("", contact.name).expect("a label");
    for host in ["127.0.0.1", "localhost"] {
        let found = resolve(&format!("{host}:{port}"), LIMIT);
        assert_eq!(found.map(|found| found.name).ok(), Some(contact.name), "{host}");
    }
}

#[test]
fn connections_that_say_nothing_are_bounded_and_keep_nobody_waiting() {
    let _turn = turn("silent connections");
    let Some((names, place)) = server("silent connections") else { return };
    let (_b, _, contact) = endpoint();
    names.tell_with_key("", contact).expect("a label");
    let before = Census::take().descriptors;
    let mut silent: Vec<TcpStream> = Vec::new();
    for round in 0..20 {
        silent.extend((0..20).map(|_| TcpStream::connect(&place).expect("it listens")));
        let begun = Instant::now();
        let found = resolve(&place, LIMIT).expect("it tells");
        assert_eq!(found.name, contact.name);
        // Each silent connection has a second, so waiting for one of them would take longer.
        assert!(begun.elapsed() < Duration::from_millis(700), "{:?} in round {round}", begun.elapsed());
    }
    // One more while the oldest makes room for it. Other tests of this process hold a few for a moment, but each silent connection is
    // held for a second.
    let held = || Census::take().descriptors.saturating_sub(silent.len() + before);
    let begun = Instant::now();
    while held() > 65 && begun.elapsed() < Duration::from_millis(300) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(held() <= 65, "{} descriptors are held", held());
    // Half a query does not delay others either.
    let query = Query { label: "" }.to_bytes().expect("a label");
    let mut slow = TcpStream::connect(&place).expect("it listens");
    slow.write_all(&query[..9]).expect("it listens");
    slow.set_read_timeout(Some(LIMIT)).expect("a time");
    assert!(matches!(slow.read(&mut [0]), Ok(0)), "it is told nothing");
    drop((silent, slow));
    wait_until("all connections to be closed", || Census::take().descriptors <= before);
}

#[test]
fn garbage_is_answered_with_nothing_and_the_next_query_with_the_name() {
    let _turn = turn("garbage for a name server");
    let Some((names, place)) = server("garbage for a name server") else { return };
    let (_b, _, contact) = endpoint();
    names.tell_with_key("x", contact).expect("a label");
    let before = Census::take().descriptors;
    let mut dice = Dice::fresh("garbage for a name server");
    let good = Query { label: "x" }.to_bytes().expect("a label");
    for round in 0..400 {
        let mut bytes = match dice.below(3) {
            0 => Vec::new(),
            _ => good.clone(), // which begins well
        };
        match dice.below(3) {
            0 => bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize),
            1 => (0..dice.below(3000)).for_each(|_| bytes.push(dice.below(256) as u8)),
            _ if bytes.is_empty() => bytes.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n"),
            _ => {
                let at = dice.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << dice.below(8);
            }
        }
        let is_whole = bytes.starts_with(&good);
        let is_other_version = bytes.get(..7) == good.get(..7) && bytes.get(7).is_some_and(|&version| version != 1);
        let mut caller = TcpStream::connect(&place).expect("it listens");
        let _ = caller.write_all(&bytes); // it may hang up in the middle
        let _ = caller.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // Unread bytes end the connection with a reset.
        let ended = caller.read_to_end(&mut answer);
        match Answer::parse(&answer) {
            Ok(Some(Answer::Told { name, .. })) => assert!(is_whole && name == contact.name, "round {round}"),
            Ok(Some(Answer::OtherVersion)) => assert!(is_other_version, "round {round}"),
            other => {
                assert!(answer.is_empty(), "round {round}: {other:?}");
                assert!(!(is_whole || is_other_version) || ended.is_err(), "round {round}: no answer");
            }
        }
    }
    assert_eq!(resolve(&format!("{place}/x"), LIMIT).map(|found| found.name).ok(), Some(contact.name));
    wait_until("all connections to be closed", || Census::take().descriptors <= before);
}

/// A server that sends these bytes to every client, and then nothing.
fn server_that_sends(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut caller in listener.incoming().flatten() {
            let _ = caller.write_all(&bytes);
            while caller.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {} // until the other side is gone
        }
    });
    place
}

#[test]
fn a_port_that_says_something_else_or_nothing_is_not_waited_for_longer_than_asked() {
    let _turn = turn("servers of others");
    if !has_loopback() {
        return left_out("servers of others: the loopback interface is down, and to set it up is not allowed");
    }
    let (_b, _, contact) = endpoint();
    let good = Answer::Told { name: contact.name, key: Some(contact.key) }.to_bytes();
    let (mut damaged, mut newer) = (good, good);
    damaged[20] ^= 4;
    newer[7] = 2;
    let garbage = vec![b'x'; 4096];
    for bytes in [b"SSH-2.0-x\r\n".to_vec(), b"\n".to_vec(), garbage, damaged.to_vec()] {
        let (place, begun) = (server_that_sends(bytes), Instant::now());
        let error = resolve(&place, LIMIT).map(|_| ()).expect_err("there is no name");
        assert!(matches!(error, ResolveError::NotWeft { .. }), "{error}");
        assert!(error.to_string().contains(&place) && begun.elapsed() < LIMIT / 2, "{error}");
    }
    let error = resolve(&server_that_sends(newer.to_vec()), LIMIT).map(|_| ()).expect_err("another version");
    assert!(matches!(error, ResolveError::Version { theirs: 2, .. }), "{error}");
    for bytes in [Vec::new(), good[..ANSWER_BYTES - 1].to_vec()] {
        let (place, begun) = (server_that_sends(bytes), Instant::now());
        let error = resolve(&place, SHORT).map(|_| ()).expect_err("there is no name");
        assert!(matches!(error, ResolveError::TimedOut { .. }), "{error}");
        assert!(error.to_string().contains("within 0.3 s"), "{error}");
        assert!(begun.elapsed() >= SHORT && begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
    let error = resolve("no-such-host.invalid:4000", LIMIT).map(|_| ()).expect_err("there is no such host");
    assert!(matches!(error, ResolveError::Host { .. } | ResolveError::TimedOut { .. }), "{error}");
}

/// The descriptor of this process that listens at a port.
fn listening_at(port: u16) -> i32 {
    let all = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |number: &i32| {
        let name = nix::sys::socket::getsockname::<nix::sys::socket::SockaddrIn>(*number);
        let listens = nix::sys::socket::getsockopt(
            // SAFETY: it was listed a moment ago, and nobody else makes or closes descriptors: the tests take turns.
            &unsafe { std::os::fd::BorrowedFd::borrow_raw(*number) },
            nix::sys::socket::sockopt::AcceptConn,
        );
        name.is_ok_and(|name| name.port() == port) && listens == Ok(true)
    };
    numbers.into_iter().find(is_it).expect("it listens")
}

#[test]
fn a_socket_of_the_programs_that_has_the_servers_number_is_left_alone() {
    let _turn = turn("a number that is used again");
    let Some((names, place)) = server("a number that is used again") else { return };
    let (_b, _, contact) = endpoint();
    names.tell("", contact.name).expect("a label");
    assert!(resolve(&place, LIMIT).is_ok());
    // Wait until the thread sleeps again: between its check of the number and its use, replacing the number is a race that nobody
    // can win.
    std::thread::sleep(Duration::from_millis(100));
    // As a daemon does that closes all descriptors; then another server of the program gets the number.
    let programs = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let number = listening_at(names.port());
    // SAFETY: `dup2` only replaces a descriptor. The server finds another file there, which is what this test is about.
    let copied = unsafe { nix::libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&programs), number) };
    assert_eq!(copied, number);
    let mut caller = TcpStream::connect(programs.local_addr().expect("an address")).expect("it listens");
    // The thread wakes up for a client at its port, or at the number.
    let _ = TcpStream::connect(&place);
    let (mut connection, _) = programs.accept().expect("nobody took it away");
    connection.write_all(b"the program's").expect("it is connected");
    let mut came = [0; 13];
    caller.read_exact(&mut came).expect("it says so");
    assert_eq!(&came, b"the program's");
    let begun = Instant::now();
    drop(names);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_forked_child_neither_tells_names_nor_holds_the_port() {
    let _turn = turn("a name server in a forked child");
    let Some((names, place)) = server("a name server in a forked child") else { return };
    let (_b, _, contact) = endpoint();
    names.tell_with_key("", contact).expect("a label");
    let (mut parents, childs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    // SAFETY: the C library's allocator works in forked children, and the child takes no lock that another thread may hold.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        ForkResult::Child => {
            support::die_with_the_parent();
            drop(parents);
            let is_refused = matches!(names.tell("x", contact.name), Err(TellError::Forked(_))) && !names.withdraw("");
            drop(names);
            // The child lives until the parent has seen that the port is free.
            let _ = (&childs).write(&[u8::from(is_refused)]);
            let _ = (&childs).read(&mut [0]);
            // SAFETY: it ends the process, and runs nothing that is the parent's.
            unsafe { nix::libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            let mut is_refused = [0];
            parents.read_exact(&mut is_refused).expect("it lives");
            assert_eq!(is_refused, [1]);
            assert_eq!(resolve(&place, LIMIT).map(|found| found.name).ok(), Some(contact.name), "the parent's goes on");
            let address = names.address();
            drop(names);
            drop(NameServer::open_at(address).expect("the child does not hold the port"));
            drop((parents, childs));
            assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        }
    }
}

/// A server that has slept for long gives a client its whole time.
#[test]
fn a_slow_asker_is_answered_by_a_server_that_was_idle() {
    let Some((server, place)) = server("a slow asker") else { return };
    let (_bundle, _, contact) = endpoint();
    server.tell_with_key("", contact).expect("a label");
    // Longer than a connection may take.
    std::thread::sleep(Duration::from_millis(1500));
    let mut slow = TcpStream::connect(&place).expect("connect");
    std::thread::sleep(Duration::from_millis(100));
    let query = Query { label: "" }.to_bytes().expect("a label");
    slow.write_all(&query).expect("send");
    let mut answer = [0; ANSWER_BYTES];
    slow.read_exact(&mut answer).expect("an answer");
}
