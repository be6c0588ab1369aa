//! Serviced bundles: messages are taken while the program does not poll, the program leads when it waits, and the service thread
//! ends with the bundle.

mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{poll_until, tell, turn, wait_until, Address, Orders, Peer, BOUND};
use weft::{Bundle, Endpoint, Key, Node, SharedBundle, Waited};

const ECHO: u8 = 1;
const ANSWER: u8 = 2;
const PANIC: u8 = 3;

#[test]
fn child() {
    support::play(&[("computer", computer), ("waiter", waiter), ("latecomer", latecomer)]);
}

/// A serviced bundle with an endpoint that echoes and panics.
fn serviced() -> (SharedBundle, Endpoint) {
    let bundle = SharedBundle::serviced(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint(Key(5)).expect("endpoint");
    bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
    bundle.on(here, PANIC, |_| panic!("a handler panics, as the test wants")).expect("on");
    (bundle, here)
}

/// Answers, and never polls.
fn computer(orders: Orders) {
    let (bundle, here) = serviced();
    tell(Address { name: bundle.name(here).expect("ours"), key: Key(5) });
    assert_eq!(orders.wait(), None);
}

/// Answers the first request itself, and then starts a service thread for the rest.
fn latecomer(orders: Orders) {
    let mut bundle = Bundle::for_any_thread(&Node::new().expect("node"), weft::Settings::default()).expect("bundle");
    let here = bundle.endpoint(Key(5)).expect("endpoint");
    let answered = Arc::new(AtomicU32::new(0));
    let count = answered.clone();
    bundle
        .on(here, ECHO, move |m| {
            _ = m.reply(ANSWER, m.args(), m.payload());
            count.fetch_add(1, Ordering::Relaxed);
        })
        .expect("on");
    tell(Address { name: bundle.name(here).expect("ours"), key: Key(5) });
    assert!(bundle.poll_until_within(BOUND, |_| answered.load(Ordering::Relaxed) > 0));
    let mut bundle = SharedBundle::from(bundle);
    bundle.start_service().expect("a thread");
    bundle.start_service().expect("the same");
    assert_eq!(orders.wait(), None);
    assert_eq!(threads_named("weft-service"), 1, "the second call started none");
}

/// Answers while it waits, polls and computes by turns.
fn waiter(orders: Orders) {
    let (bundle, here) = serviced();
    tell(Address { name: bundle.name(here).expect("ours"), key: Key(5) });
    for turn in 0u64.. {
        if matches!(orders.look(), support::Order::End) {
            return;
        }
        match turn % 3 {
            0 => _ = bundle.wait(Some(Duration::from_millis(turn % 7))).expect("no handler"),
            1 => (0..turn % 1000).for_each(|_| _ = bundle.poll().expect("no handler")),
            _ => std::thread::sleep(Duration::from_millis(turn % 5)),
        }
    }
}

/// Threads of this process with a name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

fn asker(there: Address) -> (Bundle, Endpoint, Rc<Cell<u32>>) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let answers = Rc::new(Cell::new(0));
    let count = answers.clone();
    bundle.on(here, ANSWER, move |_| count.set(count.get() + 1)).expect("on");
    bundle.map(here, 0, there.name, there.key).expect("map");
    (bundle, here, answers)
}

fn all_are_answered_by(role: &'static str) {
    let peer = Peer::start(role, &[]);
    let (mut bundle, here, answers) = asker(peer.address());
    for number in 1..=300 {
        bundle.request(here, 0, ECHO, &[number], b"").expect("mapped");
        if number % 10 == 0 {
            // Let the other side fall asleep.
            std::thread::sleep(Duration::from_millis(u64::from(number % 4)));
        }
        poll_until(&mut bundle, "an answer", |_| answers.get() == number);
    }
    peer.finish();
}

#[test]
fn a_program_that_computes_answers_all_the_same() {
    let _turn = turn("computing");
    all_are_answered_by("computer");
}

#[test]
fn a_bundle_becomes_serviced_with_its_sessions() {
    let _turn = turn("becoming serviced");
    all_are_answered_by("latecomer");
}

#[test]
fn a_program_that_waits_polls_and_computes_in_turn_answers_all() {
    let _turn = turn("in turn");
    all_are_answered_by("waiter");
}

#[test]
fn a_thread_that_waits_is_told_although_the_service_thread_led_before() {
    let _turn = turn("waiting");
    let (bundle, here) = serviced();
    let there = Address { name: bundle.name(here).expect("ours"), key: Key(5) };
    let got = Arc::new(AtomicU32::new(0));
    let count = got.clone();
    bundle.on(here, 9, move |_| _ = count.fetch_add(1, Ordering::SeqCst)).expect("on");
    let (mut other, me, _) = asker(there);
    for number in 1..=50 {
        // The service thread leads by now.
        std::thread::sleep(Duration::from_millis(3));
        let waiting = bundle.clone();
        let seen = got.clone();
        let waits = std::thread::spawn(move || {
            waiting.poll_until_within(BOUND, |_| seen.load(Ordering::SeqCst) >= number).expect("no handler")
        });
        other.send(me, 0, 9, &[], b"").expect("mapped");
        poll_until(&mut other, "the message", |_| got.load(Ordering::SeqCst) >= number);
        assert!(waits.join().expect("it ended"), "the wait ended in time");
    }
    // A wait ends at its limit although the service thread leads, and a waker ends it.
    std::thread::sleep(Duration::from_millis(3));
    let since = Instant::now();
    while bundle.wait(Some(Duration::from_millis(5))).expect("no handler") != Waited::Nothing {}
    assert!(since.elapsed() < BOUND);
    let (waker, since) = (bundle.waker(), Instant::now());
    let wakes = std::thread::spawn(move || waker.wake());
    bundle.wait(Some(BOUND)).expect("no handler");
    assert!(since.elapsed() < BOUND / 2);
    wakes.join().expect("it ended");
}

#[test]
fn the_service_thread_ends_with_the_last_handle() {
    let _turn = turn("the end of a service thread");
    let before = threads_named("weft-service");
    let (bundle, _) = serviced();
    let other = bundle.clone();
    wait_until("the thread", || threads_named("weft-service") == before + 1);
    drop(bundle);
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(threads_named("weft-service"), before + 1);
    drop(other);
    wait_until("its end", || threads_named("weft-service") == before);
}

#[test]
fn a_handler_that_panics_ends_the_service_thread_and_not_the_bundle() {
    let _turn = turn("a panic");
    let (bundle, here) = serviced();
    wait_until("the thread", || threads_named("weft-service") > 0);
    let (mut other, me, _) = asker(Address { name: bundle.name(here).expect("ours"), key: Key(5) });
    other.send(me, 0, PANIC, &[], b"").expect("mapped");
    poll_until(&mut other, "the end of the thread", |_| threads_named("weft-service") == 0);
    bundle.on(here, PANIC, |_| ()).expect("on");
    assert!(bundle
        .poll_until_within(BOUND, |bundle| bundle.counters().is_ok_and(|c| c.delivered == 1))
        .expect("no handler"));
}
