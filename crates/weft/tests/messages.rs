//! Messages between real processes: every size and argument count, both ways, and all the ways to answer.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::mpsc::channel;
use support::{contents, events, insist, poll_until, tell, turn, Address, Orders, Peer};
use weft::am::{NotReplied, ReplyToken};
use weft::{Bundle, Event, Key, MessageKind, Node, Outgoing, ReplyError, SendError};

const SIZES: [usize; 12] = [0, 1, 7, 8, 255, 256, 257, 4095, 4096, 16_384, 65_535, 65_536];

/// Handlers of the children.
const ECHO: u8 = 1;
const ONE_WAY: u8 = 2;
const SILENT: u8 = 3;
const LATER: u8 = 4;
const FROM_AFAR: u8 = 5;
const DROP_TOKEN: u8 = 6;
const TOO_LARGE: u8 = 7;
const COUNT: u8 = 8;
const HOLD: u8 = 9;
const RELEASE: u8 = 10;
/// Handlers of the tests.
const ANSWER: u8 = 20;
const BACK: u8 = 21;

#[test]
fn child() {
    support::play(&[
        ("echo", echo),
        ("replier", replier),
        ("threads", threads),
        ("mesh", mesh),
        ("rounds", rounds),
        ("counter", counter),
    ]);
}

fn inverted(args: &[u32], payload: &[u8]) -> (Vec<u32>, Vec<u8>) {
    (args.iter().rev().map(|a| !a).collect(), payload.iter().map(|b| !b).collect())
}

/// Replies to requests, and sends one-way messages back, with everything inverted.
fn echo(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let home = Address::parse(&orders.words[0]);
    bundle.map(here, 0, home.name, home.key).expect("map");
    bundle
        .on(here, ECHO, |m| {
            let (args, payload) = inverted(m.args(), m.payload());
            assert_eq!((m.kind(), m.payload().as_ptr() as usize % 8), (MessageKind::Request, 0));
            m.reply(ANSWER, &args, &payload).expect("once, and small");
            assert_eq!(m.reply(ANSWER, &[], b""), Err(NotReplied::NothingToReplyTo));
        })
        .expect("on");
    let queue = Rc::new(RefCell::new(VecDeque::new()));
    let arrived = queue.clone();
    bundle
        .on(here, ONE_WAY, move |m| {
            assert_eq!(m.kind(), MessageKind::OneWay);
            assert_eq!(m.reply(ANSWER, &[], b""), Err(NotReplied::NothingToReplyTo));
            arrived.borrow_mut().push_back(inverted(m.args(), m.payload()));
        })
        .expect("on");
    tell(Address::of(&bundle, here));
    bundle.poll_until(|bundle| {
        let next = queue.borrow_mut().pop_front();
        if let Some((args, payload)) = next {
            bundle.send(here, 0, BACK, &args, &payload).expect("mapped, and small");
        }
        matches!(orders.look(), support::Order::End)
    });
}

#[test]
fn every_size_and_argument_count_crosses_both_ways() {
    let _turn = turn("every size and argument count");
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let peer = Peer::start("echo", &[&Address::of(&bundle, here).to_string()]);
    let there = peer.address();
    bundle.map(here, 0, there.name, there.key).expect("map");
    let seen = Rc::new(RefCell::new(VecDeque::new()));
    for (handler, kind) in [(ANSWER, MessageKind::Reply), (BACK, MessageKind::OneWay)] {
        let seen = seen.clone();
        bundle
            .on(here, handler, move |m| {
                assert_eq!((m.kind(), m.source()), (kind, Some(there.name)));
                assert_eq!(m.payload().as_ptr() as usize % 8, 0, "payloads are aligned");
                seen.borrow_mut().push_back((m.args().to_vec(), m.payload().to_vec()));
            })
            .expect("on");
    }
    for (round, &bytes) in SIZES.iter().enumerate() {
        for count in 0..=16 {
            let (args, payload) = contents((round * 17 + count) as u32, count, bytes);
            for request in [true, false] {
                if request {
                    bundle.request(here, 0, ECHO, &args, &payload).expect("small enough");
                } else {
                    bundle.send(here, 0, ONE_WAY, &args, &payload).expect("small enough");
                }
                poll_until(&mut bundle, "the echo", |_| !seen.borrow().is_empty());
                let echo = seen.borrow_mut().pop_front().expect("there");
                assert!(echo == inverted(&args, &payload), "{count} arguments, {bytes} bytes, request: {request}");
            }
        }
    }
    assert_eq!(bundle.try_send(here, 0, ONE_WAY, &[0; 17], b""), Err(SendError::TooLarge));
    assert_eq!(bundle.try_request(here, 0, ECHO, &[], &[0; 65_537]), Err(SendError::TooLarge));
    assert_eq!(bundle.try_send(here, 1, ONE_WAY, &[], b""), Err(SendError::NotMapped(1)));
    peer.finish();
}

/// Answers in every way there is.
fn replier(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let kept: Rc<RefCell<VecDeque<(ReplyToken, u32)>>> = Rc::default();
    let held: Rc<RefCell<Vec<(ReplyToken, u32)>>> = Rc::default();
    let (to_thread, in_thread) = channel::<(ReplyToken, u32)>();
    let helper = std::thread::spawn(move || {
        for (token, number) in in_thread {
            let (_, payload) = contents(number, 0, 300);
            let refused = token.reply_from_afar(ANSWER, &[0; 17], b"").expect_err("17 arguments");
            assert_eq!(refused.0, ReplyError::TooLarge);
            refused.1.reply_from_afar(ANSWER, &[number], &payload).expect("small");
        }
    });
    bundle.on(here, SILENT, |_| {}).expect("on");
    let keep = kept.clone();
    bundle
        .on(here, LATER, move |m| {
            let number = m.args()[0];
            keep.borrow_mut().push_back((m.defer().expect("a request"), number));
            assert!(m.defer().is_none(), "the right to reply is there once");
        })
        .expect("on");
    bundle
        .on(here, FROM_AFAR, move |m| {
            let number = m.args()[0];
            to_thread.send((m.defer().expect("a request"), number)).expect("the thread lives");
        })
        .expect("on");
    bundle.on(here, DROP_TOKEN, |m| drop(m.defer().expect("a request"))).expect("on");
    bundle
        .on(here, TOO_LARGE, |m| {
            assert_eq!(m.reply(ANSWER, &[], &[0; 65_537]), Err(NotReplied::Refused(ReplyError::TooLarge)));
            let args = m.args();
            m.reply(ANSWER, args, &contents(args[0], 0, 300).1).expect("the right is still there");
        })
        .expect("on");
    let hold = held.clone();
    bundle
        .on(here, HOLD, move |m| {
            let number = m.args()[0];
            hold.borrow_mut().push((m.defer().expect("a request"), number));
        })
        .expect("on");
    let (release, to) = (held.clone(), kept.clone());
    bundle.on(here, RELEASE, move |_| to.borrow_mut().extend(release.borrow_mut().drain(..))).expect("on");
    tell(Address::of(&bundle, here));
    bundle.poll_until(|bundle| {
        let next = kept.borrow_mut().pop_front();
        if let Some((token, number)) = next {
            let (error, token) = bundle.reply(token, ANSWER, &[0; 17], b"").expect_err("17 arguments");
            assert_eq!(error, ReplyError::TooLarge);
            bundle.reply(token, ANSWER, &[number], &contents(number, 0, 300).1).expect("small");
        }
        matches!(orders.look(), support::Order::End)
    });
    drop(bundle);
    helper.join().expect("the helper is well");
}

#[test]
fn replies_come_at_once_later_from_another_thread_or_not_at_all() {
    let _turn = turn("replies of every kind");
    let peer = Peer::start("replier", &[]);
    let there = peer.address();
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answered = Rc::new(RefCell::new(Vec::new()));
    let seen = answered.clone();
    bundle
        .on(here, ANSWER, move |m| {
            assert_eq!(m.payload(), contents(m.args()[0], 0, 300).1);
            seen.borrow_mut().push(m.args()[0]);
        })
        .expect("on");
    let ways = [LATER, FROM_AFAR, TOO_LARGE, SILENT, DROP_TOKEN];
    for number in 0..2000u32 {
        let op = ways[number as usize % ways.len()];
        let message =
            Outgoing { op, args: &[number], payload: &number.to_le_bytes(), completion: Some(u64::from(number)) };
        insist(&mut bundle, here, 0, MessageKind::Request, message);
    }
    let mut completed = Vec::new();
    poll_until(&mut bundle, "2000 completions", |bundle| {
        completed.extend(events(bundle).into_iter().filter_map(|e| match e {
            Event::Completed(number) => Some(number as u32),
            Event::CanSend { .. } => None,
            other => panic!("{other:?}"),
        }));
        completed.len() == 2000
    });
    completed.sort_unstable();
    assert_eq!(completed, (0..2000).collect::<Vec<_>>());
    let mut answers = answered.borrow().clone();
    answers.sort_unstable();
    let expected: Vec<u32> = (0..2000).filter(|n| n % 5 < 3).collect();
    assert_eq!(answers, expected, "LATER, FROM_AFAR and TOO_LARGE reply, the others end");
    assert_eq!((bundle.counters().ended, bundle.counters().returned), (800, 0));
    peer.finish();
}

#[test]
fn a_full_window_says_so_and_a_can_send_event_follows() {
    let _turn = turn("can-send events");
    let peer = Peer::start("replier", &[]);
    let there = peer.address();
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    assert_eq!(bundle.try_request(here, 0, HOLD, &[0], b""), Err(SendError::Full), "there is no session yet");
    let can_send = Event::CanSend { endpoint: here, destination: 0 };
    poll_until(&mut bundle, "the first can-send event", |bundle| events(bundle).contains(&can_send));
    for number in 0..32 {
        bundle.try_request(here, 0, HOLD, &[number], b"").expect("32 requests may be outstanding");
    }
    assert_eq!(bundle.try_request(here, 0, HOLD, &[32], b""), Err(SendError::Full));
    // A one-way message has its own credit, and makes the child answer.
    bundle.try_send(here, 0, RELEASE, &[], b"").expect("no window for one-way messages");
    poll_until(&mut bundle, "the can-send event of the window", |bundle| events(bundle).contains(&can_send));
    bundle.try_request(here, 0, HOLD, &[32], b"").expect("room, as the event said");
    bundle.try_send(here, 0, RELEASE, &[], b"").expect("credit");
    bundle.drain();
    poll_until(&mut bundle, "33 answers", |_| answers.get() == 33);
    peer.finish();
}

/// Counts one-way messages and says how many when asked.
fn counter(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let count = Rc::new(Cell::new(0));
    for key in 0..orders.words[0].parse().expect("a number") {
        let here = bundle.endpoint(Key(key)).expect("endpoint");
        let seen = count.clone();
        bundle.on(here, ONE_WAY, move |_| seen.set(seen.get() + 1)).expect("on");
        let seen = count.clone();
        bundle.on(here, COUNT, move |m| m.reply(ANSWER, &[seen.get()], b"").expect("once")).expect("on");
        tell(Address::of(&bundle, here));
    }
    orders.serve(&mut bundle, |bundle, _| tell(format!("{} {}", bundle.sessions(), bundle.counters().violations)));
}

#[test]
fn drain_ends_when_every_message_has_ended() {
    let _turn = turn("drain");
    let peer = Peer::start("counter", &["1"]);
    let there = peer.address();
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let count = Rc::new(Cell::new(None));
    let seen = count.clone();
    bundle.on(here, ANSWER, move |m| seen.set(Some(m.args()[0]))).expect("on");
    let mut sent = 0u32;
    for burst in [1u32, 10, 100, 1000, 50_000] {
        for number in 0..burst {
            let completion = (number % 7 == 0).then_some(u64::from(sent));
            let payload = vec![1; number as usize % 300];
            let message = Outgoing { op: ONE_WAY, args: &[number], payload: &payload, completion };
            insist(&mut bundle, here, 0, MessageKind::OneWay, message);
            sent += 1;
        }
        bundle.drain();
        // Stored means delivered here, because the endpoint is served: the next answer counts all of them.
        bundle.request(here, 0, COUNT, &[], b"").expect("mapped");
        bundle.drain();
        assert_eq!(count.take(), Some(sent));
    }
    let completions: Vec<u64> = events(&mut bundle)
        .into_iter()
        .filter_map(|e| if let Event::Completed(n) = e { Some(n) } else { None })
        .collect();
    assert!(completions.is_sorted(), "one-way messages complete in order");
    assert_eq!(completions.len() as u32, [1u32, 10, 100, 1000, 50_000].map(|b| b.div_ceil(7)).iter().sum::<u32>());
    peer.finish();
}

#[test]
fn further_endpoints_join_the_session_of_their_bundles_in_any_order() {
    let _turn = turn("join");
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut peer = Peer::start("counter", &["3"]);
        let there = [peer.address(), peer.address(), peer.address()];
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = there.map(|there| {
            let here = bundle.endpoint_with_random_key().expect("endpoint");
            bundle.map(here, 0, there.name, there.key).expect("map");
            here
        });
        // Each connects before any sends, so that flows are opened in another order than the endpoints were made.
        for (at, &from) in here.iter().enumerate() {
            assert_eq!(bundle.try_send(from, 0, ONE_WAY, &[], b""), Err(SendError::Full));
            let can_send = Event::CanSend { endpoint: from, destination: 0 };
            poll_until(&mut bundle, "the session", |bundle| events(bundle).contains(&can_send));
            assert_eq!(bundle.sessions(), 1, "after {} endpoints", at + 1);
        }
        for at in order {
            bundle.send(here[at], 0, ONE_WAY, &[], b"").expect("mapped");
        }
        bundle.drain();
        let count = Rc::new(Cell::new(0));
        let seen = count.clone();
        bundle.on(here[0], ANSWER, move |m| seen.set(m.args()[0])).expect("on");
        bundle.request(here[0], 0, COUNT, &[], b"").expect("mapped");
        bundle.drain();
        assert_eq!((count.get(), bundle.counters().returned), (3, 0));
        assert_eq!(peer.ask("sessions"), "1 0", "one session and no violation there");
        peer.finish();
    }
}

#[test]
fn a_translation_changed_during_set_up_leads_to_the_new_peer_only() {
    let _turn = turn("a changed translation");
    let old = Peer::start("counter", &["1"]);
    let new = Peer::start("counter", &["1"]);
    // The same key and the same number of endpoint, so that only the session tells the two apart.
    let (old_address, new_address) = (old.address(), new.address());
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let count = Rc::new(Cell::new(0));
    let seen = count.clone();
    bundle.on(here, ANSWER, move |m| seen.set(m.args()[0])).expect("on");
    bundle.map(here, 0, old_address.name, old_address.key).expect("map");
    assert_eq!(bundle.try_send(here, 0, ONE_WAY, &[], b""), Err(SendError::Full));
    // Let the call go out, and map another peer before the answer is received.
    for _ in 0..16 {
        bundle.poll();
    }
    bundle.map(here, 0, new_address.name, new_address.key).expect("map");
    for _ in 0..10 {
        bundle.send(here, 0, ONE_WAY, &[], b"").expect("mapped");
    }
    bundle.drain();
    for (address, expected) in [(new_address, 10), (old_address, 0)] {
        bundle.map(here, 1, address.name, address.key).expect("map");
        bundle.request(here, 1, COUNT, &[], b"").expect("mapped");
        bundle.drain();
        assert_eq!(count.get(), expected);
    }
    old.finish();
    new.finish();
}

const THREADS: u64 = 3;
const ENDPOINTS: u64 = 8;

/// Several threads, each with a bundle of one node and several endpoints in it.
fn threads(orders: Orders) {
    let node = Node::new().expect("node");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (node, stop) = (&node, &stop);
            scope.spawn(move || {
                let mut bundle = Bundle::new(node).expect("bundle");
                for number in 0..ENDPOINTS {
                    let here = bundle.endpoint(Key(thread << 8 | number)).expect("endpoint");
                    bundle
                        .on(here, ECHO, move |m| {
                            let args = [thread as u32, number as u32, m.args()[0]];
                            m.reply(ANSWER, &args, b"").expect("once");
                        })
                        .expect("on");
                    tell(Address::of(&bundle, here));
                }
                bundle.poll_until(|_| stop.load(std::sync::atomic::Ordering::Relaxed));
            });
        }
        while orders.wait().is_some() {}
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn many_endpoints_and_bundles_in_many_threads_reach_one_another() {
    let _turn = turn("many endpoints and bundles");
    let peer = Peer::start("threads", &[]);
    let there: Vec<Address> = (0..THREADS * ENDPOINTS).map(|_| peer.address()).collect();
    let node = Node::new().expect("node");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // The node goes to other threads; each makes its bundle there.
            let (node, there) = (node.clone(), &there);
            scope.spawn(move || {
                let mut bundle = Bundle::new(&node).expect("bundle");
                let answers = Rc::new(Cell::new(0));
                let mut here = Vec::new();
                for _ in 0..4 {
                    let endpoint = bundle.endpoint_with_random_key().expect("endpoint");
                    for (index, address) in there.iter().enumerate() {
                        bundle.map(endpoint, index as u32, address.name, address.key).expect("map");
                    }
                    let (seen, keys) = (answers.clone(), there.iter().map(|a| a.key.0).collect::<Vec<_>>());
                    bundle
                        .on(endpoint, ANSWER, move |m| {
                            let &[thread, number, index] = m.args() else { panic!("three arguments") };
                            assert_eq!(
                                u64::from(thread << 8 | number),
                                keys[index as usize],
                                "from the right endpoint"
                            );
                            seen.set(seen.get() + 1);
                        })
                        .expect("on");
                    here.push(endpoint);
                }
                for _ in 0..25 {
                    for &endpoint in &here {
                        for index in 0..there.len() as u32 {
                            bundle.request(endpoint, index, ECHO, &[index], b"").expect("mapped");
                        }
                    }
                }
                poll_until(&mut bundle, "all answers", |_| answers.get() == 25 * 4 * there.len());
                bundle.drain();
                assert_eq!(bundle.counters().returned, 0);
            });
        }
    });
    peer.finish();
}

const MESH: usize = 8;
const MESH_REQUESTS: u32 = 10_000;

/// One of several processes that all ask each other.
fn mesh(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    let answers = Rc::new(Cell::new((0u32, 0u64)));
    let seen = answers.clone();
    bundle
        .on(here, ANSWER, move |m| {
            assert_eq!(m.payload(), &m.args()[0].to_le_bytes()[..m.payload().len()]);
            let (count, sum) = seen.get();
            seen.set((count + 1, sum + u64::from(m.args()[0])));
        })
        .expect("on");
    tell(Address::of(&bundle, here));
    let mut peers = 0;
    orders.serve(&mut bundle, |bundle, line| {
        if line != "go" {
            let there = Address::parse(line);
            bundle.map(here, peers, there.name, there.key).expect("map");
            peers += 1;
            return;
        }
        for number in 0..MESH_REQUESTS {
            let payload = number.to_le_bytes();
            bundle.request(here, number % peers, ECHO, &[number], &payload[..number as usize % 5]).expect("mapped");
        }
        poll_until(bundle, "all answers", |_| answers.get().0 == MESH_REQUESTS);
        let c = bundle.counters();
        tell(format!("{} {} {}", answers.get().1, c.returned, c.violations));
    });
}

#[test]
fn eight_processes_all_to_all_get_all_answers() {
    let _turn = turn("all to all");
    let mut peers: Vec<Peer> = (0..MESH).map(|_| Peer::start("mesh", &[])).collect();
    let addresses: Vec<Address> = peers.iter().map(Peer::address).collect();
    for (at, peer) in peers.iter_mut().enumerate() {
        for (_, address) in addresses.iter().enumerate().filter(|(other, _)| *other != at) {
            peer.say(&address.to_string());
        }
    }
    for peer in &mut peers {
        peer.say("go");
    }
    let sum = u64::from(MESH_REQUESTS) * u64::from(MESH_REQUESTS - 1) / 2;
    for peer in &peers {
        assert_eq!(peer.hear(), format!("{sum} 0 0"));
    }
    // Each served the others until now.
    for peer in peers {
        peer.finish();
    }
}

const ROUNDS: u64 = 20;

/// For each round a fresh bundle, which calls its peer at the same time as the peer calls it.
fn rounds(orders: Orders) {
    let node = Node::new().expect("node");
    for round in 0..ROUNDS {
        let mut bundle = Bundle::new(&node).expect("bundle");
        let here = bundle.endpoint(Key(round)).expect("endpoint");
        bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), b"").expect("once")).expect("on");
        let answers = Rc::new(Cell::new(0));
        let seen = answers.clone();
        bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
        tell(Address::of(&bundle, here));
        let there = Address::parse(&orders.wait().expect("an address"));
        bundle.map(here, 0, there.name, there.key).expect("map");
        let until = (round + 1) as u32 * 7;
        for _ in 0..until {
            bundle.request(here, 0, ECHO, &[1], b"").expect("mapped");
        }
        poll_until(&mut bundle, "the answers of the round", |_| answers.get() == until);
        tell("done");
        orders_or(&orders, &mut bundle);
        assert_eq!((bundle.counters().returned, bundle.counters().violations), (0, 0));
    }
    while orders.wait().is_some() {}
}

/// Serves until the next line.
fn orders_or(orders: &Orders, bundle: &mut Bundle) {
    bundle.poll_until(|_| !matches!(orders.look(), support::Order::None));
}

#[test]
fn two_that_call_each_other_at_once_both_get_through() {
    let _turn = turn("simultaneous connects");
    let (mut a, mut b) = (Peer::start("rounds", &[]), Peer::start("rounds", &[]));
    for _ in 0..ROUNDS {
        let (there, here) = (b.address(), a.address());
        a.say(&there.to_string());
        b.say(&here.to_string());
        assert_eq!((a.hear().as_str(), b.hear().as_str()), ("done", "done"));
        a.say("next");
        b.say("next");
    }
    a.finish();
    b.finish();
}

#[test]
fn a_bundle_talks_to_itself_and_to_its_neighbour_in_the_process() {
    let _turn = turn("one process");
    let node = Node::new().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let (a, b) = (bundle.endpoint(Key(1)).expect("endpoint"), bundle.endpoint(Key(2)).expect("endpoint"));
    bundle.map(a, 0, bundle.name(b).expect("name"), Key(2)).expect("map");
    bundle.map(a, 1, bundle.name(a).expect("name"), Key(1)).expect("map");
    bundle.map(b, 0, bundle.name(a).expect("name"), Key(1)).expect("map");
    let answers = Rc::new(Cell::new(0));
    for endpoint in [a, b] {
        bundle.on(endpoint, ECHO, |m| m.reply(ANSWER, m.args(), b"").expect("once")).expect("on");
        let seen = answers.clone();
        bundle.on(endpoint, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    }
    for _ in 0..1000 {
        for (from, to) in [(a, 0), (a, 1), (b, 0)] {
            bundle.request(from, to, ECHO, &[1], b"").expect("mapped");
        }
    }
    bundle.drain();
    assert_eq!((answers.get(), bundle.counters().returned, bundle.counters().violations), (3000, 0, 0));
}
