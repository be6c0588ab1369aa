//! Endpoints that move between bundles while processes talk to them.

mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use support::{
    again, bundle_with_endpoint, poll_until, returns_of, tell, turn, wait_until, Address, Order, Orders, Peer, OVER_UDP,
};
use weft::am::{AdoptError, Moving};
use weft::{AnyThread, Bundle, Endpoint, Event, Key, Node, Reason, SendError, Settings, SharedBundle};

/// Handlers of the endpoint that moves: replies; counts.
const ECHO: u8 = 1;
const COUNT: u8 = 2;
/// Handlers of the asking processes.
const ANSWER: u8 = 20;

#[test]
fn child() {
    support::play(&[("asker", asker), ("server", server)]);
}

fn server(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

/// Sends the given number of requests and as many one-way messages, with 16 requests under way. Reports how many requests were not
/// answered exactly once, and how many came back. After the first two shares of the requests, it waits for a line before each
/// further `share`.
fn asker(orders: Orders) {
    let [there, requests, share] = &orders.words[..] else { panic!("an address and two numbers") };
    let there = Address::parse(there);
    let [requests, share] = [requests, share].map(|word| word.parse::<u32>().expect("a number"));
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answers: Rc<Vec<Cell<u32>>> = Rc::new((0..requests).map(|_| Cell::new(0)).collect());
    let count = Rc::new(Cell::new(0));
    let (seen, counted) = (answers.clone(), count.clone());
    let take = move |m: &mut weft::am::Message<'_>| {
        let answer = &seen[m.args()[0] as usize];
        answer.set(answer.get() + 1);
        counted.set(counted.get() + 1);
    };
    bundle.on(here, ANSWER, take).expect("on");
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    let returns = returns_of(&mut bundle, here);
    for asked in 0..requests {
        if asked >= 2 * share && asked % share == 0 {
            poll_until(&mut bundle, "an order to go on", |_| matches!(orders.look(), Order::Line(_)));
        }
        bundle.request(here, 0, ECHO, &[asked], &asked.to_le_bytes()).expect("mapped");
        bundle.send(here, 0, COUNT, &[asked], &[1; 80]).expect("mapped");
        poll_until(&mut bundle, "fewer under way", |_| asked + 1 - count.get() < 16 || !returns.borrow().is_empty());
    }
    poll_until(&mut bundle, "all answers", |_| count.get() == requests || !returns.borrow().is_empty());
    bundle.drain();
    let wrong = answers.iter().filter(|n| n.get() != 1).count();
    tell(format!("{wrong} {}", returns.borrow().len()));
    while orders.wait().is_some() {}
}

/// State shared by the threads that an endpoint visits.
struct Round {
    is_over: AtomicBool,
    /// One-way messages that the endpoint has received.
    told: AtomicU32,
    /// How often a thread got it.
    visits: AtomicU32,
    /// Number of one-way messages that end a stay. So the number of moves follows from the number of messages, however rarely a
    /// thread runs.
    share: u32,
}

impl Round {
    fn has_told(&self, many: u32) -> bool {
        self.told.load(Ordering::Relaxed) >= many
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Until the endpoint has arrived where `bundle` sent it, it answers here. It takes at most a share of the messages; otherwise
    /// it could take all of them before the receiving thread runs.
    fn answer_until_it_arrives(&self, bundle: &mut Bundle<AnyThread>, sent_after: u32) {
        let until = self.told.load(Ordering::Relaxed) + self.share;
        while self.visits.load(Ordering::Acquire) == sent_after && !self.is_over() {
            if self.has_told(until) {
                thread::yield_now();
            } else {
                bundle.poll();
            }
        }
    }
}

/// Number of visits that end after a few polls. If all did, then on a busy machine peers would never find the endpoint where they
/// were told it is, and all messages would go through the bundle that it left first.
const HURRIED_VISITS: u32 = 100;
const FEW_POLLS: u32 = 200;

/// A thread with a bundle that the endpoint visits. It leaves again after a share of the one-way messages, the first times already
/// after a few polls.
fn stop_over(
    node: &Node,
    from: Receiver<Moving<AnyThread>>,
    to: Sender<Moving<AnyThread>>,
    round: Arc<Round>,
) -> thread::JoinHandle<()> {
    let node = node.clone();
    thread::spawn(move || {
        let mut bundle = Bundle::for_any_thread(&node, Settings::default()).expect("bundle");
        let (mut here, mut polls, mut until, mut is_hurried) = (None, 0, 0, false);
        while !round.is_over() {
            bundle.poll();
            if let Ok(moving) = from.try_recv() {
                let endpoint = bundle.adopt(moving).expect("of this node, and by no handler");
                is_hurried = round.visits.fetch_add(1, Ordering::Release) < HURRIED_VISITS;
                (here, polls) = (Some(endpoint), 0);
                until = round.told.load(Ordering::Relaxed) + round.share;
            }
            polls += 1;
            let goes = (is_hurried && polls >= FEW_POLLS) || round.has_told(until);
            if let Some(endpoint) = here.take_if(|_| goes) {
                let visits = round.visits.load(Ordering::Acquire);
                let moving = bundle.release(endpoint).expect("it is here");
                // The last thread to have it keeps it.
                if to.send(moving).is_err() {
                    break;
                }
                round.answer_until_it_arrives(&mut bundle, visits);
            }
        }
        bundle.drain();
    })
}

fn goes_round(requests: u32) {
    let node = Node::new().expect("node");
    let mut first = Bundle::for_any_thread(&node, Settings::default()).expect("bundle");
    let it = first.endpoint_with_random_key().expect("endpoint");
    let address = Address { name: first.name(it).expect("ours"), key: first.key(it).expect("ours") };
    let round = Arc::new(Round {
        is_over: AtomicBool::new(false),
        told: AtomicU32::new(0),
        visits: AtomicU32::new(0),
        share: requests / 20,
    });
    let counts = round.clone();
    let echo = |m: &mut weft::am::Message<'_>| m.reply(ANSWER, m.args(), m.payload()).expect("once");
    first.on(it, ECHO, echo).expect("on");
    first.on(it, COUNT, move |_| _ = counts.told.fetch_add(1, Ordering::Relaxed)).expect("on");
    let ((to_a, at_a), (to_b, at_b)) = (channel(), channel());
    let stop = |at, to| stop_over(&node, at, to, round.clone());
    let threads = [stop(at_a, to_b.clone()), stop(at_b, to_a.clone())];
    let words = [address.to_string(), requests.to_string(), requests.to_string()];
    let peers: Vec<_> = (0..2).map(|_| Peer::start("asker", &words.each_ref().map(String::as_str))).collect();
    // Make sessions with the first bundle, so that it has messages to forward.
    while !round.has_told(requests / 10) {
        first.poll();
    }
    to_a.send(first.release(it).expect("it is here")).expect("the thread listens");
    round.answer_until_it_arrives(&mut first, 0);
    for peer in &peers {
        let line = loop {
            // Peers on other hosts keep using the bundle that it left first.
            first.poll();
            if let Some(line) = peer.overhear() {
                break line;
            }
        };
        assert_eq!(line, "0 0", "requests not answered once, and messages that came back");
    }
    // The last one-way messages may still be on their way to where it is now.
    let since = Instant::now();
    while !round.has_told(2 * requests) && since.elapsed() < Duration::from_secs(30) {
        first.poll();
    }
    round.is_over.store(true, Ordering::Release);
    drop((to_a, to_b));
    threads.into_iter().for_each(|t| t.join().expect("a thread"));
    let visits = round.visits.load(Ordering::Acquire);
    assert!(visits > 4, "it went round only {visits} times");
    assert_eq!(round.told.load(Ordering::Relaxed), 2 * requests, "one-way messages, each once");
    peers.into_iter().for_each(Peer::finish);
}

#[test]
fn each_message_is_delivered_once_to_an_endpoint_that_goes_round() {
    let _turn = turn("an endpoint that goes round");
    goes_round(20_000);
}

#[test]
fn peers_on_other_hosts_reach_an_endpoint_by_the_bundle_that_it_left() {
    let Some(_turn) = again("peers_on_other_hosts_reach_an_endpoint_by_the_bundle_that_it_left", &[], &OVER_UDP) else {
        return;
    };
    goes_round(2_000);
}

/// Two bundles of one node, and an endpoint in the first one that counts what it is asked.
fn two_bundles() -> (Bundle, Bundle, Endpoint, Rc<Cell<u32>>) {
    let node = Node::new().expect("node");
    let mut first = Bundle::new(&node).expect("bundle");
    let second = Bundle::new(&node).expect("bundle");
    let it = first.endpoint(Key(7)).expect("endpoint");
    let count = Rc::new(Cell::new(0));
    let counts = count.clone();
    let echo = move |m: &mut weft::am::Message<'_>| {
        counts.set(counts.get() + 1);
        m.reply(ANSWER, m.args(), b"").expect("once");
    };
    first.on(it, ECHO, echo).expect("on");
    (first, second, it, count)
}

/// A bundle of a node of its own that asks an endpoint.
fn asking(to: Address) -> (Bundle, Endpoint, Rc<Cell<u32>>) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.map(here, 0, to.name, to.key).expect("map");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    (bundle, here, answers)
}

/// Asks once, and polls these until it is answered.
fn ask(asker: &mut (Bundle, Endpoint, Rc<Cell<u32>>), others: &mut [&mut Bundle]) {
    let (bundle, here, answers) = asker;
    let before = answers.get();
    wait_until("room for a request", || {
        others.iter_mut().for_each(|other| _ = other.poll());
        bundle.poll();
        bundle.try_request(*here, 0, ECHO, &[1], b"").is_ok()
    });
    wait_until("an answer", || {
        others.iter_mut().for_each(|other| _ = other.poll());
        bundle.poll();
        answers.get() > before
    });
}

#[test]
fn until_it_has_arrived_it_answers_where_it_was() {
    let _turn = turn("an endpoint on its way");
    let (mut first, mut second, it, count) = two_bundles();
    let mut asker = asking(Address::of(&first, it));
    ask(&mut asker, &mut [&mut first]);
    let moving = first.release(it).expect("it is here");
    // Only the bundle that it leaves is polled.
    for _ in 0..10 {
        ask(&mut asker, &mut [&mut first]);
    }
    assert!(first.release(it).is_err(), "it was released");
    assert!(first.set_key(it, Key(8)).is_err() && first.on(it, COUNT, |_| {}).is_err() && first.free(it).is_err());
    let there = second.adopt(moving).expect("adopted");
    assert!(second.key(there).expect("ours").matches(Key(7)));
    // The bundle that it left forwards its peer's messages until the peer has called again.
    ask(&mut asker, &mut [&mut first, &mut second]);
    wait_until("the peer to call again", || {
        let before = first.counters().handed_on;
        ask(&mut asker, &mut [&mut first, &mut second]);
        first.counters().handed_on == before
    });
    for _ in 0..10 {
        ask(&mut asker, &mut [&mut second]);
    }
    assert_eq!(count.get(), asker.2.get(), "the same handler, each time once");
    assert!(matches!(first.try_request(it, 0, ECHO, &[], b""), Err(SendError::NoEndpoint)));
}

#[test]
fn an_endpoint_that_nobody_adopts_stays() {
    let _turn = turn("an endpoint that stays");
    let (mut first, _, it, count) = two_bundles();
    let mut asker = asking(Address::of(&first, it));
    drop(first.release(it).expect("it is here"));
    ask(&mut asker, &mut [&mut first]);
    assert_eq!(count.get(), 1);
    first.on(it, COUNT, |_| {}).expect("it can be changed again");
    let moving = first.release(it).expect("and released again");
    let again = first.adopt(moving).expect("by itself too");
    assert_eq!(again, it);
    ask(&mut asker, &mut [&mut first]);
    assert_eq!(count.get(), 2);
}

#[test]
fn an_endpoint_cannot_become_another_nodes() {
    let _turn = turn("another node");
    let (mut first, mut second, it, _) = two_bundles();
    let mut asker = asking(Address::of(&first, it));
    let moving = first.release(it).expect("it is here");
    let (error, moving) = asker.0.adopt(moving).expect_err("of another node");
    assert_eq!(error, AdoptError::AnotherNode);
    second.adopt(moving).expect("of this one");
}

#[test]
fn its_own_requests_and_completions_follow_it() {
    let _turn = turn("requests of an endpoint that moves");
    let server = Peer::start("server", &[]);
    let there = server.address();
    let (mut first, mut second, it, _) = two_bundles();
    first.map(it, 4, there.name, there.key).expect("map");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    first.on(it, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    first.request(it, 4, ECHO, &[1], b"").expect("mapped");
    first.drain();
    let asked = weft::Outgoing { op: ECHO, args: &[2], payload: b"", completion: Some(5) };
    first.try_post(it, 4, weft::MessageKind::Request, asked).expect("room");
    let nobody = weft::Outgoing { op: 99, args: &[3], payload: b"xyz", completion: None };
    first.try_post(it, 4, weft::MessageKind::Request, nobody).expect("room");
    let moving = first.release(it).expect("it is here");
    let here = second.adopt(moving).expect("adopted");
    let mut events = Vec::new();
    wait_until("the answer, the completion and the message that came back", || {
        first.poll();
        second.poll();
        events.extend(std::iter::from_fn(|| second.next_event()));
        answers.get() == 2 && events.len() >= 2
    });
    assert!(events.contains(&Event::Completed(5)), "{events:?}");
    let returned = events.iter().find_map(|e| if let Event::Returned(r) = e { Some(r) } else { None });
    let returned = returned.expect("it came back");
    assert_eq!((returned.endpoint, returned.destination, returned.reason), (here, Some(4), Reason::NoHandler));
    assert_eq!(returned.payload, b"xyz");
    second.request(here, 4, ECHO, &[4], b"").expect("its table came along");
    second.drain();
    assert_eq!(answers.get(), 3);
    server.finish();
}

#[test]
fn a_bundle_that_ends_takes_the_endpoints_it_adopted_along() {
    let _turn = turn("the end of a bundle with a moved endpoint");
    let (mut first, mut second, it, _) = two_bundles();
    let (mut bundle, here, _) = asking(Address::of(&first, it));
    let returns = returns_of(&mut bundle, here);
    // The peer has a session with the endpoint's first bundle.
    wait_until("a session", || {
        first.poll();
        bundle.poll();
        bundle.try_request(here, 0, ECHO, &[], b"").is_ok()
    });
    let moving = first.release(it).expect("it is here");
    second.adopt(moving).expect("adopted");
    bundle.try_request(here, 0, ECHO, &[6], b"abc").expect("room");
    drop(second);
    poll_until(&mut bundle, "the message", |_| {
        first.poll();
        !returns.borrow().is_empty()
    });
    let returned = returns.borrow();
    assert!(returned.iter().all(|r| r.reason == Reason::NoSuchEndpoint), "{returned:?}");
}

#[test]
fn a_handler_cannot_adopt_its_own_endpoint() {
    let _turn = turn("adoption by a handler");
    let node = Node::new().expect("node");
    let (first, second) = (SharedBundle::new(&node).expect("bundle"), SharedBundle::new(&node).expect("bundle"));
    let it = first.endpoint(Key(7)).expect("endpoint");
    let asker = first.endpoint(Key(8)).expect("endpoint");
    first.map(asker, 0, first.name(it).expect("ours"), Key(7)).expect("map");
    let (sender, moves) = channel::<Moving<AnyThread>>();
    let (there, inner) = (std::sync::Mutex::new((second.clone(), moves)), first.clone());
    let inner = std::sync::Mutex::new(inner);
    let refused = Arc::new(AtomicUsize::new(0));
    let counts = refused.clone();
    first
        .on(it, ECHO, move |_| {
            let there = there.lock().expect("nobody panics");
            if let Ok(moving) = there.1.try_recv() {
                let (error, moving) = there.0.adopt(moving).expect_err("its handler");
                assert_eq!(error, AdoptError::InHandler);
                let (error, _) = inner.lock().expect("nobody panics").adopt(moving).expect_err("its handler");
                assert_eq!(error, AdoptError::InHandler);
                counts.fetch_add(1, Ordering::Relaxed);
            }
        })
        .expect("on");
    sender.send(first.release(it).expect("it is here")).expect("room");
    first.request(asker, 0, ECHO, &[], b"").expect("mapped");
    first.drain().expect("not in a handler");
    assert_eq!(refused.load(Ordering::Relaxed), 1);
}

#[test]
fn shared_bundles_pass_an_endpoint_to_and_fro_under_traffic() {
    let _turn = turn("an endpoint between shared bundles");
    let node = Node::new().expect("node");
    let bundles = [(); 2].map(|()| SharedBundle::new(&node).expect("bundle"));
    let mut it = bundles[0].endpoint_with_random_key().expect("endpoint");
    let name = bundles[0].name(it).expect("ours");
    let key = bundles[0].key(it).expect("ours");
    bundles[0].on(it, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    let counted = Arc::new(AtomicU32::new(0));
    let counts = counted.clone();
    bundles[0].on(it, COUNT, move |_| _ = counts.fetch_add(1, Ordering::Relaxed)).expect("on");
    let is_over = Arc::new(AtomicBool::new(false));
    let waiting: Vec<_> = bundles
        .iter()
        .map(|bundle| {
            let (bundle, is_over) = (bundle.clone(), is_over.clone());
            thread::spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    bundle.wait(None).expect("not in a handler");
                }
            })
        })
        .collect();
    let (requests, share) = (30_000, 500);
    let address = Address { name, key }.to_string();
    let mut peer = Peer::start("asker", &[&address, &requests.to_string(), &share.to_string()]);
    let mut moves = 0;
    let line = loop {
        if let Some(line) = peer.overhear() {
            break line;
        }
        // However rarely this thread runs, the peer gets no further than two shares without a move.
        let before = counted.load(Ordering::Relaxed);
        peer.say("go on");
        let moving = bundles[moves % 2].release(it).expect("it is here");
        thread::yield_now();
        it = bundles[(moves + 1) % 2].adopt(moving).expect("adopted");
        moves += 1;
        wait_until("some messages there", || {
            counted.load(Ordering::Relaxed) > before + 20 || counted.load(Ordering::Relaxed) == requests
        });
    };
    assert_eq!(line, "0 0", "after {moves} moves");
    assert_eq!(counted.load(Ordering::Relaxed), requests);
    assert!(moves + 2 >= (requests / share) as usize, "{moves} moves");
    is_over.store(true, Ordering::Release);
    bundles.iter().for_each(|bundle| bundle.waker().wake());
    waiting.into_iter().for_each(|t| t.join().expect("a thread"));
    peer.finish();
}
