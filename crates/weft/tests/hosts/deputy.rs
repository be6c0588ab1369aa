//! Programs that compute and do not poll: their helper keeps the protocol going.

use super::hostile::{Faults, Relay};
use super::support::{over_udp, poll_until, tell, wait_until, Address, Dice, Order, Orders, Peer, BOUND};
use super::{numbered, Client, ANSWER, ECHO, NOTE};
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use weft::{AnyThread, Bundle, Certainty, Endpoint, Node, Reason, Settings, SharedBundle, Waited};

/// Longer than a peer may be silent.
const COMPUTES: Duration = Duration::from_millis(4000);

/// Waits for this time. No message may come meanwhile.
fn wait_in_vain(client: &mut Client, time: Duration) {
    let since = Instant::now();
    // An earlier event may still end one wait.
    client.bundle.wait(Some(Duration::ZERO));
    while since.elapsed() < time {
        let waited = client.bundle.wait(Some(time.saturating_sub(since.elapsed())));
        assert!(!matches!(waited, Waited::Messages(_)), "an answer of somebody who computes");
        assert!(client.returns.borrow().is_empty(), "{:?}", client.returns.borrow());
    }
}

#[test]
fn a_peer_that_computes_is_not_taken_for_dead() {
    let Some(_turn) = over_udp("deputy::a_peer_that_computes_is_not_taken_for_dead") else { return };
    let mut peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    client.ask(0, 1, 100);
    peer.say(&format!("compute {}", COMPUTES.as_millis()));
    assert_eq!(peer.hear_polling(&mut client.bundle), "computing");
    let (args, payload) = numbered(0);
    for _ in 0..3 {
        client.bundle.request(client.here, 0, ECHO, &args, &payload).expect("mapped");
    }
    // Its helper has taken them, its program has not.
    poll_until(&mut client.bundle, "an acknowledgement of who computes", Bundle::is_acknowledged);
    // More than a window is taken in as well, as far as there is room.
    for number in 0..200 {
        let (args, payload) = numbered(number);
        client.bundle.send(client.here, 0, NOTE, &args, &payload).expect("mapped");
    }
    wait_in_vain(&mut client, COMPUTES - Duration::from_millis(500));
    for _ in 0..3 {
        client.answer();
    }
    client.bundle.drain();
    assert_eq!(client.count(0)[0], 200);
    assert_eq!((client.bundle.counters().sessions_lost, client.bundle.counters().returned), (0, 0));
    peer.finish();
}

#[test]
fn without_its_helper_a_peer_that_computes_is_taken_for_dead() {
    let Some(_turn) = over_udp("deputy::without_its_helper_a_peer_that_computes_is_taken_for_dead") else { return };
    let mut peer = Peer::start_with("server", &[], &[("WEFT_HELPER", OsStr::new("off"))]);
    let mut client = Client::of(&[peer.address()]);
    client.ask(0, 1, 100);
    peer.say(&format!("compute {}", 2 * COMPUTES.as_millis()));
    assert_eq!(peer.hear_polling(&mut client.bundle), "computing");
    // Small enough to be sent completely: a message larger than the initial window would certainly not be delivered.
    let (args, payload) = numbered(150);
    client.bundle.request(client.here, 0, ECHO, &args, &payload).expect("mapped");
    let since = Instant::now();
    while client.returns.borrow().is_empty() {
        assert!(since.elapsed() < BOUND, "nothing comes back");
        client.bundle.wait(Some(Duration::from_secs(1)));
    }
    let returned = client.returns.borrow_mut().remove(0);
    assert_eq!((returned.reason, returned.certainty), (Reason::Silent, Certainty::Unknown));
    assert!(returned.args == args && returned.payload == payload);
}

/// A file in which a server logs the messages that it handles.
struct Log(PathBuf);

impl Log {
    fn new(name: &str) -> Log {
        let path = std::env::temp_dir().join(format!("weft-deputy-{name}-{}", std::process::id()));
        fs::write(&path, b"").expect("a file");
        Log(path)
    }

    fn handled(&self) -> usize {
        fs::read(&self.0).expect("its file").len() / 4
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A program sends messages and then computes. All of them arrive, although some packets are lost.
#[test]
fn what_was_sent_arrives_while_its_sender_computes() {
    let Some(_turn) = over_udp("deputy::what_was_sent_arrives_while_its_sender_computes") else { return };
    let mut dice = Dice::fresh("a relay");
    for one_of in [u64::MAX, 3] {
        let log = Log::new("log");
        let peer = Peer::start("server", &["1", log.0.to_str().expect("a path in words")]);
        let there = peer.address();
        let mut client = Client::of(&[]);
        let own = client.bundle.name(client.here).expect("name").address.port;
        let relay = Relay::start(own, there.name.address.port, Faults { one_of }, &mut dice);
        let seen: Address = super::hostile::behind(there, &relay);
        client.bundle.map(client.here, 0, seen.name, seen.key).expect("map");
        client.ask(0, 1, 100);
        client.bundle.drain();
        let before = log.handled();
        for number in 0..100 {
            let (args, payload) = numbered(number);
            client.bundle.try_send(client.here, 0, NOTE, &args, &payload).expect("room");
        }
        // From now on this thread does not poll.
        wait_until("all messages", || log.handled() == before + 100);
        client.bundle.drain();
        assert_eq!(client.bundle.counters().returned, 0);
        relay.end();
        peer.finish();
    }
}

fn poll_for(bundle: &mut Bundle, time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        bundle.poll();
    }
}

/// The server's handler for this computes for longer than a peer may be silent.
const SLOW: u32 = 9;

/// Starts a server in a thread of its own. It answers a request, polls until its network is asleep, and then runs `then`.
fn server_then(then: impl FnOnce(&mut Bundle) + Send + 'static) -> (Client, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::channel();
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle
            .on(here, ECHO, |m| {
                if m.args() == [SLOW] {
                    std::thread::sleep(COMPUTES + Duration::from_secs(1));
                }
                m.reply(ANSWER, m.args(), m.payload()).expect("once");
            })
            .expect("on");
        tell.send(Address::of(&bundle, here)).expect("the test listens");
        while bundle.counters().requests_delivered == 0 {
            bundle.poll();
        }
        poll_for(&mut bundle, Duration::from_millis(300));
        say.send(()).expect("the test listens");
        then(&mut bundle);
    });
    let mut client = Client::of(&[told.recv().expect("its address")]);
    client.bundle.request(client.here, 0, ECHO, &[1], b"").expect("mapped");
    client.answer();
    poll_for(&mut client.bundle, Duration::from_millis(300));
    (client, said)
}

#[test]
fn a_program_that_computes_then_waits_and_then_only_polls_is_reached() {
    let Some(_turn) = over_udp("deputy::a_program_that_computes_then_waits_and_then_only_polls_is_reached") else {
        return;
    };
    let (computed, has_computed) = mpsc::channel();
    let (mut client, _said) = server_then(move |bundle| {
        std::thread::sleep(Duration::from_millis(700));
        for _ in 0..2 {
            bundle.wait(Some(Duration::from_millis(1)));
        }
        computed.send(()).expect("the test listens");
        poll_for(bundle, BOUND);
    });
    has_computed.recv().expect("it computes");
    poll_for(&mut client.bundle, Duration::from_millis(500));
    client.bundle.request(client.here, 0, ECHO, &[2], b"").expect("mapped");
    client.answer();
}

/// While asleep, it polls itself when something comes, and its deputy rests. Once awake, it computes before it polls anything else.
#[test]
fn a_handler_that_computes_right_after_a_sleep_is_not_taken_for_dead() {
    let name = "deputy::a_handler_that_computes_right_after_a_sleep_is_not_taken_for_dead";
    let Some(_turn) = over_udp(name) else { return };
    let (mut client, said) = server_then(|bundle| {
        bundle.set_spin_limit(Duration::ZERO);
        loop {
            bundle.wait(Some(BOUND));
        }
    });
    said.recv().expect("it polls until then");
    for slow in [1, SLOW] {
        poll_for(&mut client.bundle, Duration::from_millis(100));
        client.bundle.request(client.here, 0, ECHO, &[slow], b"").expect("mapped");
        client.answer();
    }
    assert_eq!(client.bundle.counters().sessions_lost, 0);
}

/// One thread sleeps and would be woken. The other one polls, and its handler blocks both.
#[test]
fn a_handler_that_computes_beside_a_thread_that_sleeps_is_not_taken_for_dead() {
    let name = "deputy::a_handler_that_computes_beside_a_thread_that_sleeps_is_not_taken_for_dead";
    let Some(_turn) = over_udp(name) else { return };
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        let poller = std::thread::current().id();
        bundle
            .on(here, ECHO, move |m| {
                if m.args() == [SLOW] && std::thread::current().id() == poller {
                    std::thread::sleep(COMPUTES + Duration::from_secs(1));
                }
                m.reply(ANSWER, m.args(), m.payload()).expect("once");
            })
            .expect("on");
        bundle.set_spin_limit(Duration::ZERO).expect("not in a handler");
        let address = Address { name: bundle.name(here).expect("name"), key: bundle.key(here).expect("key") };
        tell.send(address).expect("the test listens");
        let sleeper = bundle.clone();
        std::thread::spawn(move || loop {
            sleeper.wait(Some(BOUND)).expect("not in a handler");
        });
        loop {
            bundle.poll().expect("not in a handler");
        }
    });
    let mut client = Client::of(&[told.recv().expect("its address")]);
    let since = Instant::now();
    let mut slowest = Duration::ZERO;
    while slowest < COMPUTES {
        assert!(since.elapsed() < BOUND, "the thread that polls takes nothing");
        poll_for(&mut client.bundle, Duration::from_millis(100));
        let asked = Instant::now();
        client.bundle.request(client.here, 0, ECHO, &[SLOW], b"").expect("mapped");
        client.answer();
        slowest = slowest.max(asked.elapsed());
    }
    assert_eq!(client.bundle.counters().sessions_lost, 0);
}

#[test]
fn an_armed_program_that_computes_is_not_taken_for_dead() {
    let Some(_turn) = over_udp("deputy::an_armed_program_that_computes_is_not_taken_for_dead") else { return };
    let (mut client, said) = server_then(|bundle| {
        while !bundle.arm() {}
        std::thread::sleep(COMPUTES + Duration::from_secs(1));
        poll_for(bundle, BOUND);
    });
    said.recv().expect("it polls until then");
    poll_for(&mut client.bundle, Duration::from_millis(300));
    client.bundle.request(client.here, 0, ECHO, &[2], b"").expect("mapped");
    client.answer();
}

/// The deputy notices the death. The program, which polls only afterwards, is told.
#[test]
fn a_death_while_the_program_computes_is_told_to_its_next_polls() {
    let Some(_turn) = over_udp("deputy::a_death_while_the_program_computes_is_told_to_its_next_polls") else { return };
    let mut peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    client.ask(0, 1, 100);
    // Nothing is under way any more.
    poll_for(&mut client.bundle, Duration::from_millis(1500));
    peer.kill();
    client.bundle.try_request(client.here, 0, ECHO, &[1], b"").expect("room");
    std::thread::sleep(COMPUTES + Duration::from_secs(2));
    poll_for(&mut client.bundle, Duration::from_millis(500));
    assert_eq!(client.returns.borrow().len(), 1);
}

/// A server that computes between making its bundle, in the way that its word says, and the first poll.
pub fn late(orders: Orders) {
    let node = Node::new().expect("node");
    let compute = || std::thread::sleep(COMPUTES + Duration::from_secs(1));
    let make = |node: &Node| Bundle::for_any_thread(node, Settings::default()).expect("bundle");
    let serve = |bundle: &mut Bundle<AnyThread>, here: Endpoint| {
        bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
        tell(Address { name: bundle.name(here).expect("name"), key: bundle.key(here).expect("key") });
    };
    match orders.words[0].as_str() {
        "own" => {
            let mut bundle = Bundle::new(&node).expect("bundle");
            let here = bundle.endpoint_with_random_key().expect("endpoint");
            bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
            tell(Address::of(&bundle, here));
            compute();
            bundle.poll_until(|_| matches!(orders.look(), Order::End));
        }
        "shared" => {
            let bundle = SharedBundle::new(&node).expect("bundle");
            let here = bundle.endpoint_with_random_key().expect("endpoint");
            bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
            tell(Address { name: bundle.name(here).expect("name"), key: bundle.key(here).expect("key") });
            compute();
            while !matches!(orders.look(), Order::End) {
                bundle.poll().expect("not in a handler");
            }
        }
        "of another thread" => {
            let made = std::thread::spawn(move || {
                let mut bundle = make(&node);
                let here = bundle.endpoint_with_random_key().expect("endpoint");
                serve(&mut bundle, here);
                bundle
            });
            let mut bundle = made.join().expect("it made one");
            compute();
            bundle.poll_until(|_| matches!(orders.look(), Order::End));
        }
        "adopted" => {
            let (mut first, mut second) = (make(&node), make(&node));
            let here = first.endpoint_with_random_key().expect("endpoint");
            serve(&mut first, here);
            let moving = first.release(here).expect("it is here");
            second.adopt(moving).expect("of this node");
            compute();
            while !matches!(orders.look(), Order::End) {
                first.poll();
                second.poll();
            }
        }
        other => panic!("{other}"),
    }
}

/// Callers of a process that has not polled yet wait for it.
fn late_server_is_waited_for(test: &str, made: &str) {
    let Some(_turn) = over_udp(test) else { return };
    let peer = Peer::start("late", &[made]);
    let mut client = Client::of(&[peer.address()]);
    let since = Instant::now();
    for number in 0..3 {
        client.bundle.request(client.here, 0, ECHO, &[number], b"early").expect("mapped");
    }
    for number in 0..3 {
        assert_eq!(client.answer(), (vec![number], b"early".to_vec()));
    }
    assert!(since.elapsed() > COMPUTES, "it computed: {:?}", since.elapsed());
    assert_eq!((client.bundle.counters().sessions_lost, client.bundle.counters().returned), (0, 0));
    peer.finish();
}

#[test]
fn a_peer_that_computes_before_its_first_poll_is_waited_for() {
    late_server_is_waited_for("deputy::a_peer_that_computes_before_its_first_poll_is_waited_for", "own");
}

#[test]
fn a_shared_bundle_that_nobody_polled_yet_is_waited_for() {
    late_server_is_waited_for("deputy::a_shared_bundle_that_nobody_polled_yet_is_waited_for", "shared");
}

#[test]
fn a_bundle_made_in_another_thread_that_nobody_polled_yet_is_waited_for() {
    let test = "deputy::a_bundle_made_in_another_thread_that_nobody_polled_yet_is_waited_for";
    late_server_is_waited_for(test, "of another thread");
}

#[test]
fn an_endpoint_that_was_adopted_before_any_poll_is_waited_for() {
    late_server_is_waited_for("deputy::an_endpoint_that_was_adopted_before_any_poll_is_waited_for", "adopted");
}
