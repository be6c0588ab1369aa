//! Waiting calls have a form with a time limit. It ends in time whatever the peer does, and reports whether it is done.

mod support;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{over_udp, poll_until, tell, turn, Address, Orders, Peer, BOUND};
use weft::am::AdoptError;
use weft::{AnyThread, Bundle, Event, Key, Node, SendError, Settings, SharedBundle};

const COUNT: u8 = 1;
const ECHO: u8 = 2;
const ANSWER: u8 = 20;

/// The limit of the calls below.
const LIMIT: Duration = Duration::from_millis(200);

#[test]
fn child() {
    support::play(&[("server", server)]);
}

/// Answers at one endpoint, and says how many messages have come.
fn server(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(here, COUNT, |_| ()).expect("on");
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |bundle, _| {
        let counted = bundle.counters();
        tell(counted.delivered + counted.requests_delivered);
    });
}

/// Runs a call that must take the limit, and not much longer.
fn takes_the_limit<R>(call: impl FnOnce() -> R) -> R {
    let since = Instant::now();
    let result = call();
    let took = since.elapsed();
    assert!((LIMIT..LIMIT + Duration::from_secs(1)).contains(&took), "took {took:?}");
    result
}

fn stopped_peer_ends_calls_in_time() {
    let mut peer = Peer::start("server", &[]);
    let Address { name, key } = peer.address();
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(here, ANSWER, |_| ()).expect("on");
    bundle.map(here, 0, name, key).expect("map");
    bundle.request(here, 0, COUNT, &[], b"").expect("mapped");
    assert!(bundle.drain_within(BOUND));
    peer.stop();
    let payload = [7; 30_000];
    let mut sent = 1;
    // As many of each kind as there is room for.
    while bundle.request_within(Duration::from_millis(1), here, 0, ECHO, &[], &payload).is_ok() {
        sent += 1;
    }
    while bundle.send_within(Duration::from_millis(1), here, 0, COUNT, &[], &payload).is_ok() {
        sent += 1;
    }
    let refused = takes_the_limit(|| bundle.request_within(LIMIT, here, 0, ECHO, &[], &payload));
    assert_eq!(refused, Err(SendError::TimedOut));
    let refused = takes_the_limit(|| bundle.send_within(LIMIT, here, 0, COUNT, &[], &payload));
    assert_eq!(refused, Err(SendError::TimedOut));
    assert!(!takes_the_limit(|| bundle.drain_within(LIMIT)));
    assert!(!takes_the_limit(|| bundle.poll_until_within(LIMIT, |_| false)));
    peer.go_on();
    assert!(bundle.drain_within(BOUND), "all that was sent ends");
    assert_eq!(peer.ask("how many"), sent.to_string(), "nothing of what timed out was sent");
    bundle.request_within(BOUND, here, 0, ECHO, &[], &payload).expect("room");
    assert!(bundle.poll_until_within(BOUND, |bundle| bundle.counters().replies_delivered > 0));
    peer.finish();
}

#[test]
fn calls_to_a_stopped_peer_end_in_time_and_send_nothing() {
    let _turn = turn("calls to a stopped peer");
    stopped_peer_ends_calls_in_time();
}

#[test]
fn calls_to_a_stopped_peer_on_another_host_end_in_time_and_send_nothing() {
    let Some(_turn) = over_udp("calls_to_a_stopped_peer_on_another_host_end_in_time_and_send_nothing") else { return };
    stopped_peer_ends_calls_in_time();
}

#[test]
fn calls_of_a_shared_bundle_to_a_stopped_peer_end_in_time() {
    let _turn = turn("calls of a shared bundle to a stopped peer");
    let peer = Peer::start("server", &[]);
    let Address { name, key } = peer.address();
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, name, key).expect("map");
    bundle.request(here, 0, COUNT, &[], b"").expect("mapped");
    assert_eq!(bundle.drain_within(BOUND), Ok(true));
    peer.stop();
    let payload = [7; 30_000];
    while bundle.request_within(Duration::from_millis(1), here, 0, COUNT, &[], &payload).is_ok() {}
    while bundle.send_within(Duration::from_millis(1), here, 0, COUNT, &[], &payload).is_ok() {}
    let refused = takes_the_limit(|| bundle.request_within(LIMIT, here, 0, COUNT, &[], &payload));
    assert_eq!(refused, Err(SendError::TimedOut));
    let refused = takes_the_limit(|| bundle.send_within(LIMIT, here, 0, COUNT, &[], &payload));
    assert_eq!(refused, Err(SendError::TimedOut));
    assert_eq!(takes_the_limit(|| bundle.drain_within(LIMIT)), Ok(false));
    assert_eq!(takes_the_limit(|| bundle.poll_until_within(LIMIT, |_| false)), Ok(false));
    peer.go_on();
    assert_eq!(bundle.drain_within(BOUND), Ok(true));
    peer.finish();
}

#[test]
fn adopting_an_endpoint_whose_handler_runs_ends_in_time() {
    let _turn = turn("adopting an endpoint whose handler runs");
    let node = Node::new().expect("node");
    let mut caller = Bundle::new(&node).expect("bundle");
    let me = caller.endpoint(Key(1)).expect("endpoint");
    let (begun, begins) = channel();
    let (ends, end) = channel::<()>();
    let (give, given) = channel();
    let there = node.clone();
    let old = std::thread::spawn(move || {
        let mut old: Bundle<AnyThread> = Bundle::for_any_thread(&there, Settings::default()).expect("bundle");
        let moves = old.endpoint(Key(2)).expect("endpoint");
        let run = move |_: &mut weft::am::Message<'_>| {
            begun.send(()).expect("the test listens");
            _ = end.recv_timeout(BOUND);
        };
        old.on(moves, COUNT, run).expect("on");
        let name = old.name(moves).expect("name");
        give.send((name, old.release(moves).expect("it is here"))).expect("the test listens");
        assert!(old.poll_until_within(BOUND, |old| old.counters().delivered == 1));
        assert!(old.drain_within(BOUND));
    });
    let (name, moving) = given.recv_timeout(BOUND).expect("released");
    caller.map(me, 0, name, Key(2)).expect("map");
    caller.send_within(BOUND, me, 0, COUNT, &[], b"").expect("room");
    begins.recv_timeout(BOUND).expect("the handler runs");
    let mut new = Bundle::for_any_thread(&node, Settings::default()).expect("bundle");
    let (error, moving) = takes_the_limit(|| new.adopt_within(LIMIT, moving)).expect_err("the handler runs");
    assert_eq!(error, AdoptError::TimedOut);
    let shared = SharedBundle::new(&node).expect("bundle");
    let (error, moving) = takes_the_limit(|| shared.adopt_within(LIMIT, moving)).expect_err("the handler runs");
    assert_eq!(error, AdoptError::TimedOut);
    ends.send(()).expect("the handler listens");
    new.adopt_within(BOUND, moving).expect("the handler has ended");
    old.join().expect("it ended well");
}

#[test]
fn a_program_that_takes_events_is_told_full_at_their_bound_instead_of_waiting_for_itself() {
    let _turn = turn("full events");
    let node = Node::new().expect("node");
    let mut gone = Bundle::new(&node).expect("bundle");
    let nobody = gone.endpoint(Key(1)).expect("endpoint");
    let name = gone.name(nobody).expect("name");
    gone.free(nobody).expect("it was there");
    let settings = Settings { events_bytes_most: 64 << 10, ..Settings::default() };
    let mut bundle = Bundle::with_settings(&node, settings).expect("bundle");
    let here = bundle.endpoint(Key(2)).expect("endpoint");
    bundle.map(here, 0, name, Key(1)).expect("map");
    assert_eq!(bundle.next_event(), None, "it takes events from now on");
    let mut sent = 0;
    let refused = loop {
        match bundle.send(here, 0, COUNT, &[sent], &[7; 1000]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        bundle.poll();
    };
    assert_eq!(refused, SendError::Full);
    assert_eq!(bundle.request_within(BOUND, here, 0, COUNT, &[], b""), Err(SendError::Full), "at once");
    assert!((40..80).contains(&sent), "{sent} were sent");
    let mut back = Vec::new();
    poll_until(&mut bundle, "what was sent", |bundle| {
        let args = |event| if let Event::Returned(m) = event { Some(m.args[0]) } else { None };
        back.extend(std::iter::from_fn(|| bundle.next_event()).filter_map(args));
        back.len() as u32 == sent
    });
    assert_eq!(back, (0..sent).collect::<Vec<_>>(), "each of them");
    bundle.send_within(BOUND, here, 0, COUNT, &[], b"").expect("there is room again");
}
