//! The helper thread: it ends with its node, takes no signals, and sleeps while nothing happens. Everything works without it too.

mod support;

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use support::threads::{helpers, sleeps, status};
use support::{raw, turn, wait_until};
use weft::{Bundle, Key, Node};

const ECHO: u8 = 1;
const ANSWER: u8 = 2;

/// Waits until there are this many helpers. A thread gets its name shortly after its start, and leaves /proc shortly after it was
/// joined.
fn expect_helpers(number: usize) -> Vec<PathBuf> {
    let found = || helpers(std::process::id());
    wait_until("the helpers", || found().len() == number);
    found()
}

/// Two bundles of different nodes in one thread talk to each other, and one notices when the other is gone.
fn talk_and_part(node: &Node, other: &Node) {
    let (mut server, mut client) = (Bundle::new(other).expect("bundle"), Bundle::new(node).expect("bundle"));
    let (there, here) = (server.endpoint(Key(1)).expect("endpoint"), client.endpoint(Key(2)).expect("endpoint"));
    server.on(there, ECHO, |m| m.reply(ANSWER, m.args(), b"").expect("once")).expect("on");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    client.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    client.map(here, 0, server.name(there).expect("name"), Key(1)).expect("map");
    wait_until("a session", || {
        server.poll();
        client.poll();
        client.try_request(here, 0, ECHO, &[1], b"").is_ok()
    });
    wait_until("the answer", || {
        server.poll();
        client.poll();
        answers.get() > 0
    });
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    drop(server);
    wait_until("the loss", || {
        client.poll();
        client.sessions() == 0
    });
    assert_eq!(answers.get(), 1);
}

#[test]
fn sessions_are_made_and_lost_with_and_without_helpers() {
    let _turn = turn("helpers");
    let with = || Node::new().expect("node");
    let without = || Node::without_helper().expect("node");
    talk_and_part(&with(), &with());
    talk_and_part(&with(), &without());
    talk_and_part(&without(), &with());
    talk_and_part(&without(), &without());
}

#[test]
fn a_helper_takes_no_signals_and_ends_with_its_node() {
    let _turn = turn("helpers");
    expect_helpers(0);
    let node = Node::new().expect("node");
    let clone = node.clone();
    let found = expect_helpers(1);
    let blocked = u64::from_str_radix(&status(&found[0], "SigBlk"), 16).expect("a mask");
    // All but SIGKILL (9) and SIGSTOP (19), which cannot be blocked, and the two that the C library reserves (32 and 33).
    let catchable = !(1 << 8 | 1 << 18 | 1 << 31 | 1 << 32);
    assert_eq!(blocked & catchable, catchable, "{blocked:x}");
    drop(node);
    assert_eq!(expect_helpers(1), found, "the clone needs it");
    drop(clone);
    expect_helpers(0);
    let _none = Node::without_helper().expect("node");
    expect_helpers(0);
}

#[test]
fn a_helper_sleeps_while_the_program_does_not_poll() {
    let _turn = turn("helpers");
    let node = Node::new().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let endpoint = bundle.endpoint(Key(1)).expect("endpoint");
    let name = bundle.name(endpoint).expect("name");
    let found = expect_helpers(1);
    let slept = || sleeps(&found[0]);
    wait_until("the helper to sleep", || status(&found[0], "State").starts_with('S'));
    let before = slept();
    let strangers: Vec<_> = (0..50).map(|_| raw::connect(&name).expect("a connection")).collect();
    let woken = slept() - before;
    assert!(woken <= strangers.len() as u64 + 2, "woken {woken} times by {} connections", strangers.len());
    // They are served although the program does not poll, and the program does not notice.
    assert!(strangers.iter().all(|stranger| raw::say(stranger, b"nonsense")));
    wait_until("the end of all", || strangers.iter().all(raw::has_ended));
    wait_until("the helper to sleep", || status(&found[0], "State").starts_with('S'));
    let before = slept();
    std::thread::sleep(Duration::from_millis(300));
    assert!(slept() - before <= 1, "it sleeps while nothing happens");
}

#[test]
fn callers_are_answered_while_the_program_computes() {
    let _turn = turn("helpers");
    let mut busy = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let there = busy.endpoint(Key(1)).expect("endpoint");
    let asked = Rc::new(Cell::new(0));
    let seen = asked.clone();
    busy.on(there, ECHO, move |m| {
        seen.set(seen.get() + 1);
        m.reply(ANSWER, m.args(), m.payload()).expect("a request");
    })
    .expect("on");
    let mut callers: Vec<_> = (0..3)
        .map(|_| {
            let mut caller = Bundle::new(&Node::new().expect("node")).expect("bundle");
            let here = caller.endpoint(Key(2)).expect("endpoint");
            let answers = Rc::new(Cell::new(0));
            let seen = answers.clone();
            caller.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
            caller.map(here, 0, busy.name(there).expect("name"), Key(1)).expect("map");
            // Meanwhile the program of `busy` is in here and does not poll. The call returns once the request is under way.
            caller.request(here, 0, ECHO, &[1], b"").expect("mapped");
            assert_eq!(caller.sessions(), 1);
            (caller, answers)
        })
        .collect();
    assert_eq!((asked.get(), busy.sessions()), (0, 0), "it has not polled");
    wait_until("all answers", || {
        busy.poll();
        callers.iter_mut().for_each(|(caller, _)| _ = caller.poll());
        callers.iter().all(|(_, answers)| answers.get() == 1)
    });
    assert_eq!((asked.get(), busy.sessions()), (3, 3));
}

#[test]
fn without_a_helper_callers_wait_for_a_poll() {
    let _turn = turn("helpers");
    let mut busy = Bundle::new(&Node::without_helper().expect("node")).expect("bundle");
    let there = busy.endpoint(Key(1)).expect("endpoint");
    let mut caller = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = caller.endpoint(Key(2)).expect("endpoint");
    caller.map(here, 0, busy.name(there).expect("name"), Key(1)).expect("map");
    assert_eq!(caller.try_request(here, 0, ECHO, &[], b""), Err(weft::SendError::Full));
    let since = std::time::Instant::now();
    while since.elapsed() < Duration::from_millis(100) {
        caller.poll();
    }
    assert_eq!(caller.sessions(), 0);
    wait_until("the session", || {
        busy.poll();
        caller.poll();
        caller.sessions() == 1 && busy.sessions() == 1
    });
}
