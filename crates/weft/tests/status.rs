//! The status of weft processes, compared with what was done with them: processes that poll, wait, compute, are stopped, or belong
//! to another user. Clients that ask for it harm nobody.

mod support;

use rustix::net::{self, AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use support::client::{Client, ANSWER, ECHO};
use support::threads::{helper, sleeps};
use support::{left_out, over_udp, poll_until, tell, turn, wait_until, Address, Census, Order, Orders, Peer, BOUND};
use weft::status::{self, Activity, Found, Limit, Path, Process, Silence};
use weft::{Bundle, Key, Node};

const TAKE: u8 = 2;
const KEEP: u8 = 3;

#[test]
fn child() {
    support::play(&[("server", server), ("foreigner", foreigner)]);
}

/// Endpoints of a bundle that fills a report.
const MANY: usize = 1024;

/// Serves one endpoint, beside as many full bundles as it is told to make. Waits by default; an order makes it do something else.
fn server(orders: Orders) {
    let node = Node::new().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let full = || {
        let mut bundle = Bundle::new(&node).expect("bundle");
        (0..MANY + 1).for_each(|_| _ = bundle.endpoint(Key(1)).expect("endpoint"));
        bundle
    };
    let others = orders.words.first().map_or(0, |word| word.parse().expect("a number"));
    let mut others: Vec<Bundle> = (0..others).map(|_| full()).collect();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    bundle.on(here, TAKE, |_| {}).expect("on");
    let mut kept = Vec::new();
    bundle.on(here, KEEP, move |m| kept.extend(m.defer())).expect("on");
    let _ = orders.look(); // its thread and pipes belong to the baseline
    tell(Address::of(&bundle, here));
    loop {
        match orders.look() {
            Order::None => {
                let wait = Duration::from_millis(if others.is_empty() { 20 } else { 1 });
                bundle.wait(Some(wait));
                others.iter_mut().for_each(|bundle| _ = bundle.poll());
            }
            Order::End => return,
            Order::Line(line) => match line.as_str() {
                "census" => tell(Census::take()),
                // Computes until the next line.
                "compute" => {
                    tell("computing");
                    orders.wait();
                    tell("back");
                }
                other => panic!("order {other:?}"),
            },
        }
    }
}

fn epoch(address: &Address) -> String {
    format!("{:016x}", address.name.epoch.0)
}

/// The result of asking one node.
fn find(epoch: &str) -> Found {
    let look = status::look(BOUND).expect("proc");
    look.processes.into_iter().find(|found| found.epoch == epoch).expect("it is there")
}

/// A node's answer.
fn ask(epoch: &str) -> Process {
    find(epoch).answer.expect("an answer")
}

/// Asks until the only bundle has this activity, which takes a moment.
fn ask_until(epoch: &str, activity: Activity) -> Process {
    let mut process = ask(epoch);
    wait_until(&format!("{activity:?}"), || {
        process = ask(epoch);
        process.bundles[0].activity == activity
    });
    process
}

fn counters_and_peers(path: Path) {
    let peer = Peer::start("server", &[]);
    let there = peer.address();
    let mut client = Client::new(there);
    client.ask(5);
    (0..7).for_each(|_| client.bundle.send(client.here, 0, TAKE, &[], b"x").expect("mapped"));
    client.bundle.drain();
    let look = status::look(BOUND).expect("proc");
    let found = look.processes.iter().find(|found| found.epoch == epoch(&there)).expect("it is there");
    assert_eq!(found.pid, Some(peer.id()));
    let process = found.answer.as_ref().expect("an answer");
    assert_eq!((process.pid, process.bundles.len()), (peer.id(), 1));
    let bundle = &process.bundles[0];
    assert_ne!(bundle.activity, Activity::Computes);
    let expected = status::Counters { delivered: 7, requests_delivered: 5, replies_sent: 5, ..Default::default() };
    assert_eq!(bundle.counters, expected);
    assert_eq!(bundle.endpoints.iter().map(|e| &*e.name).collect::<Vec<_>>(), [there.name.to_string()]);
    let [session] = &bundle.peers[..] else { panic!("{:?}", bundle.peers) };
    assert_eq!((session.path, &session.epoch), (path, &epoch(&client.address())));
    let own: weft::Name = session.from[0].name.parse().expect("a name");
    assert_eq!(own, client.bundle.name(client.here).expect("name"));
    assert_eq!(session.network.is_some(), path == Path::Network);
    if let Some(network) = &session.network {
        assert!(network.packets_received > 0 && network.packets_sent > 0, "{network:?}");
    }
    // Our own node is asked too, by the thread that should be polling.
    let us = look.processes.iter().find(|found| found.epoch == epoch(&client.address())).expect("we are there");
    let us = us.answer.as_ref().expect("an answer");
    assert_eq!((us.pid, us.bundles[0].activity), (std::process::id(), Activity::Computes));
    peer.finish();
}

#[test]
fn counters_and_peers_are_those_of_what_was_sent() {
    let _turn = turn("counters and peers");
    counters_and_peers(Path::Memory);
}

#[test]
fn counters_and_peers_are_those_of_what_was_sent_over_udp() {
    if let Some(_turn) = over_udp("counters_and_peers_are_those_of_what_was_sent_over_udp") {
        counters_and_peers(Path::Network);
    }
}

#[test]
fn a_process_that_computes_is_told_with_its_last_report_and_how_old_that_is() {
    let _turn = turn("computing");
    let mut peer = Peer::start("server", &[]);
    let there = peer.address();
    Client::new(there).ask(3);
    let before = ask_until(&epoch(&there), Activity::Waits);
    let asked = Instant::now();
    assert_eq!(peer.ask("compute"), "computing");
    for _ in 0..2 {
        let now = ask(&epoch(&there));
        let bundle = &now.bundles[0];
        assert_eq!(bundle.activity, Activity::Computes);
        assert_eq!(bundle.counters, before.bundles[0].counters);
        let age = Duration::from_millis(bundle.age_ms.expect("it had reported"));
        assert!(age <= asked.elapsed() + Duration::from_secs(1), "{age:?}");
        wait_until("some time to pass", || asked.elapsed() > Duration::from_millis(500));
    }
    let age = ask(&epoch(&there)).bundles[0].age_ms.expect("it had reported");
    assert!(age >= 400, "{age} ms");
    assert_eq!(peer.ask("go on"), "back");
    let after = ask_until(&epoch(&there), Activity::Waits);
    assert!(after.bundles[0].age_ms.is_some_and(|age| age < 400), "{after:?}");
    peer.finish();
}

#[test]
fn what_limits_a_sender_is_told_while_it_lasts() {
    let _turn = turn("limits");
    let peer = Peer::start("server", &[]);
    let there = peer.address();
    let mut client = Client::new(there);
    client.ask(1);
    while client.bundle.try_request(client.here, 0, KEEP, &[], b"").is_ok() {}
    let node = epoch(&client.address());
    // The next poll makes the report, so another thread has to ask meanwhile.
    let limit = |client: &mut Client| {
        let asks = node.clone();
        let asking = std::thread::spawn(move || ask(&asks));
        poll_until(&mut client.bundle, "an answer", |_| asking.is_finished());
        let process = asking.join().expect("an answer");
        assert_ne!(process.bundles[0].activity, Activity::Computes);
        process.bundles[0].peers[0].to[0].clone()
    };
    let flow = limit(&mut client);
    assert_eq!((flow.limit, flow.requests, flow.requests_most), (Limit::Window, 32, 32));
    assert_eq!(flow.name, there.name.to_string());
    assert_eq!(ask(&epoch(&there)).bundles[0].peers[0].from[0].requests, 32, "as many are not answered there");
    peer.finish();
}

#[test]
fn a_stopped_process_is_told_as_stopped_and_keeps_nobody_waiting() {
    let _turn = turn("stopped");
    let (stopped, runs) = (Peer::start("server", &[]), Peer::start("server", &[]));
    let (there, other) = (stopped.address(), runs.address());
    // Some are asked before the stopped one, some after it.
    let nodes: Vec<Node> = (0..20).map(|_| Node::new().expect("node")).collect();
    stopped.stop();
    wait_until("the stop", || {
        std::fs::read_to_string(format!("/proc/{}/stat", stopped.id())).is_ok_and(|stat| stat.contains(") T "))
    });
    let since = Instant::now();
    let look = status::look(BOUND).expect("proc");
    let took = since.elapsed();
    assert!(took < BOUND / 2, "{took:?}");
    let find = |address| look.processes.iter().find(|found| found.epoch == epoch(address)).expect("it is there");
    assert_eq!(find(&there).answer, Err(Silence::Stopped(stopped.id())));
    assert!(find(&other).answer.is_ok());
    let ours = look.processes.iter().filter(|found| found.pid == Some(std::process::id()) && found.answer.is_ok());
    assert_eq!(ours.count(), nodes.len());
    stopped.go_on();
    assert_eq!(ask(&epoch(&there)).bundles.len(), 1);
    stopped.finish();
    runs.finish();
}

#[test]
fn a_process_without_a_helper_is_counted_only_and_one_that_ended_is_not_there() {
    let _turn = turn("no helper");
    let node = Node::without_helper().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let here = bundle.endpoint(Key(1)).expect("endpoint");
    let here = Address::of(&bundle, here);
    let peer = Peer::start("server", &[]);
    let there = peer.address();
    let look = status::look(BOUND).expect("proc");
    assert!(look.without_helper >= 1);
    assert!(look.processes.iter().all(|found| found.epoch != epoch(&here)));
    assert!(look.processes.iter().any(|found| found.epoch == epoch(&there)));
    peer.finish();
    let look = status::look(BOUND).expect("proc");
    assert!(look.processes.iter().all(|found| found.epoch != epoch(&there)));
}

// ---- askers

fn address(there: &Address) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("weft1-{}-status", epoch(there)).as_bytes()).expect("abstract names")
}

/// A connection to a status socket, if there is room for one. It does not block.
fn call(there: &Address) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
    net::connect(&socket, &address(there)).map(|()| socket)
}

#[test]
fn askers_that_do_not_read_hold_up_neither_messages_nor_other_askers() {
    let _turn = turn("askers");
    // A report that is too large for a socket's buffer.
    let mut peer = Peer::start("server", &["3"]);
    let there = peer.address();
    let mut client = Client::new(there);
    client.ask(1);
    let bundles = ask(&epoch(&there)).bundles;
    assert_eq!(bundles[1..].iter().map(|b| (b.endpoints.len(), b.left_out)).collect::<Vec<_>>(), [(MANY, 1); 3]);
    let before = Census::parse(&peer.ask("census"));
    let mut silent: Vec<OwnedFd> = std::iter::from_fn(|| call(&there).ok()).take(100).collect();
    assert!(silent.len() < 50, "{}: as many as are heard and wait", silent.len());
    // More than are served at a time; the others leave before their turn.
    silent.truncate(6);
    client.ask(100);
    let since = Instant::now();
    let bundles = ask(&epoch(&there)).bundles;
    assert!(since.elapsed() > Duration::from_secs(1), "the silent ones had a while to read");
    assert_eq!(bundles[0].counters.requests_delivered, 101);
    wait_until("the end of all askers", || Census::parse(&peer.ask("census")).descriptors <= before.descriptors);
    client.ask(100);
    drop(silent);
    peer.finish();
}

const FOREIGNER: u32 = 65_533;

/// Turns into another user, asks, and then keeps calling for a while.
fn foreigner(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let uid = rustix::thread::Uid::from_raw(FOREIGNER);
    if let Err(why) = rustix::thread::set_thread_res_uid(uid, uid, uid) {
        tell(format!("left out: {why}"));
        return;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("die with the parent");
    let look = status::look(BOUND).expect("proc");
    assert!(look.of_others >= 1 && look.processes.iter().all(|found| found.epoch != epoch(&there)), "{look:?}");
    let socket = call(&there).expect("a connection");
    wait_until("the end", || {
        !matches!(net::recv(&socket, &mut [0u8; 1], RecvFlags::DONTWAIT), Err(rustix::io::Errno::AGAIN))
    });
    assert_eq!(
        net::recv(&socket, &mut [0u8; 1], RecvFlags::DONTWAIT).map(|(_, bytes)| bytes),
        Ok(0),
        "it hears nothing"
    );
    tell("refused");
    let since = Instant::now();
    let mut calls = 0;
    while since.elapsed() < Duration::from_millis(500) {
        calls += u32::from(call(&there).is_ok());
    }
    tell(format!("{calls} {}", since.elapsed().as_millis()));
    orders.wait();
}

#[test]
fn another_user_is_told_nothing_and_cannot_keep_the_helper_busy() {
    let _turn = turn("another user");
    let peer = Peer::start("server", &[]);
    let there = peer.address();
    let foreigner = Peer::start("foreigner", &[&there.to_string()]);
    let answer = foreigner.hear();
    if let Some(why) = answer.strip_prefix("left out: ") {
        left_out(&format!("another user's process, for this one may not become another user: {why}"));
        return peer.finish();
    }
    assert_eq!(answer, "refused");
    let woken = || sleeps(&helper(peer.id()));
    let before = woken();
    let said = foreigner.hear();
    let woken = woken() - before;
    let (calls, millis): (u64, u64) =
        said.split_once(' ').map(|(a, b)| (a.parse().expect("a number"), b.parse().expect("a number"))).expect("two");
    // One accept in 10 ms, with two wakeups: for the call, and for the end of the pause.
    assert!(woken <= 3 * (millis / 10) + 20, "woken {woken} times by {calls} calls in {millis} ms");
    assert_eq!(ask(&epoch(&there)).bundles.len(), 1, "the own user is told");
    foreigner.finish();
    peer.finish();
}

/// Stamps of a process's bundle, by its endpoint's name; and whether it stamps.
fn stamps_of(look: &status::Look, name: &str) -> Option<(bool, Option<status::Stamps>)> {
    let bundles = look.processes.iter().filter_map(|found| found.answer.as_ref().ok()).flat_map(|p| &p.bundles);
    let mut its = bundles.filter(|bundle| bundle.endpoints.iter().any(|endpoint| endpoint.name == name));
    its.next().map(|bundle| (bundle.is_stamping, bundle.stamps.clone()))
}

#[test]
fn stamps_are_bounded_have_both_sides_and_end_when_nobody_asks_any_more() {
    let _turn = turn("stamps");
    let node = Node::new().expect("node");
    let (mut server, mut client) = (Bundle::new(&node).expect("bundle"), Bundle::new(&node).expect("bundle"));
    let (there, here) = (server.endpoint(Key(1)).expect("endpoint"), client.endpoint(Key(2)).expect("endpoint"));
    let (there_name, here_name) = (server.name(there).expect("name"), client.name(here).expect("name"));
    server.on(there, ECHO, |m| m.reply(ANSWER, m.args(), &[]).expect("once")).expect("on");
    let kept = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let keep = kept.clone();
    server.on(there, KEEP, move |m| keep.borrow_mut().extend(m.defer())).expect("on");
    client.on(here, ANSWER, |_| {}).expect("on");
    client.map(here, 0, there_name, Key(1)).expect("mapped");
    let (tell, told) = std::sync::mpsc::channel();
    let asker = std::thread::spawn(move || {
        let (here_name, there_name) = (here_name.to_string(), there_name.to_string());
        loop {
            let look = status::trace(BOUND).expect("a look");
            let [asked, answered] =
                [&here_name, &there_name].map(|name| stamps_of(&look, name).and_then(|(_, stamps)| stamps));
            let (Some(asked), Some(answered)) = (asked, answered) else { continue };
            if asked.so_far.min(answered.so_far) > 1500 {
                tell.send((asked, answered)).expect("it waits");
                break;
            }
        }
        // Ask without stamps from now on, to see how they end.
        loop {
            let (is_stamping, stamps) =
                stamps_of(&status::look(BOUND).expect("a look"), &there_name).expect("it is there");
            assert_eq!(stamps, None);
            if !is_stamping {
                return;
            }
        }
    });
    // The program goes on meanwhile, in every way to answer.
    let mut turns = 0u32;
    while !asker.is_finished() {
        turns += 1;
        _ = client.try_request(here, 0, if turns % 2 == 0 { ECHO } else { KEEP }, &[turns], &[]);
        server.poll();
        let tokens = std::mem::take(&mut *kept.borrow_mut());
        for token in tokens {
            match turns % 4 {
                1 => server.reply(token, ANSWER, &[], &[]).expect("in time"),
                _ => token.reply_from_afar(ANSWER, &[], &[]).expect("in time"),
            }
        }
        client.poll();
    }
    asker.join().expect("it asserts");
    let (asked, answered) = told.recv().expect("they were sent before");
    assert!(asked.asked.len() <= 1024 && answered.answered.len() <= 1024, "more than may be kept");
    assert!(asked.asked.len() > 500 && answered.answered.len() > 500, "few of those that were stamped");
    assert!(asked.answered.is_empty() && answered.asked.is_empty());
    for one in &asked.asked {
        assert!(
            one.called_ns <= one.written_ns && one.written_ns <= one.seen_ns && one.seen_ns <= one.done_ns,
            "{one:?}"
        );
    }
    for one in &answered.answered {
        assert!(one.seen_ns <= one.replied_ns && one.replied_ns <= one.written_ns, "{one:?}");
    }
    let flow = &asked.flows[0];
    assert_eq!((&flow.from, &flow.to), (&here_name.to_string(), &there_name.to_string()));
}
