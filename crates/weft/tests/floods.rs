//! Floods both ways with full rings: nothing is lost, nothing waits for ever, and an idle endpoint holds up no neighbour.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use support::{contents, events, poll_until, tell, turn, Address, Orders, Peer};
use weft::{Bundle, Endpoint, Key, Node, SendError};

const ECHO: u8 = 1;
const FLOOD: u8 = 2;
const QUEUED: u8 = 3;
const ANSWER: u8 = 20;

#[test]
fn child() {
    support::play(&[("flooder", flooder), ("neighbours", neighbours)]);
}

const FLOODS: u32 = 1_000_000;

/// Bytes of the message of a number: mostly small, sometimes large.
fn size(number: u32) -> usize {
    match number % 1000 {
        0 => 65_536,
        1..=9 => 4096 + number as usize % 4096,
        10..=99 => number as usize % 2000,
        _ => number as usize % 100,
    }
}

/// One of two that flood each other with requests and one-way messages at once.
struct Flooder {
    bundle: Bundle,
    here: Endpoint,
    /// Number of arrived messages of each kind: requests, one-way messages, replies; and the sums of their contents.
    arrived: Rc<Cell<[u32; 3]>>,
    sums: Rc<Cell<[u64; 3]>>,
}

/// The receiver's checksum covers the number, the length, and two bytes far apart, which `flood` writes for the number.
fn mark(number: u32, payload: &mut [u8]) {
    if let [first, .., last] = payload {
        (*first, *last) = (number as u8, (number >> 8) as u8);
    }
}

fn weigh(number: u32, payload: &[u8]) -> u64 {
    let ends = match payload {
        [first, .., last] => u64::from(*first) | u64::from(*last) << 8,
        _ => 0,
    };
    u64::from(number) ^ (payload.len() as u64) << 32 ^ ends << 48
}

impl Flooder {
    fn new() -> Flooder {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        let (arrived, sums) = (Rc::new(Cell::new([0u32; 3])), Rc::new(Cell::new([0u64; 3])));
        for (kind, handler) in [ECHO, FLOOD, ANSWER].into_iter().enumerate() {
            let (arrived, sums) = (arrived.clone(), sums.clone());
            bundle
                .on(here, handler, move |m| {
                    let number = m.args()[0];
                    let (mut count, mut sum) = (arrived.get(), sums.get());
                    if handler != ANSWER {
                        assert_eq!(number, count[kind], "each kind arrives in order, without a gap");
                    }
                    count[kind] += 1;
                    sum[kind] = sum[kind].wrapping_add(weigh(number, m.payload()));
                    arrived.set(count);
                    sums.set(sum);
                    if handler == ECHO {
                        m.reply(ANSWER, m.args(), m.payload()).expect("once");
                    }
                })
                .expect("on");
        }
        Flooder { bundle, here, arrived, sums }
    }

    /// Sends everything, taking turns. Then waits for everything that must arrive, and reports.
    fn flood(&mut self, there: Address) -> String {
        let Flooder { bundle, here, arrived, sums } = self;
        bundle.map(*here, 0, there.name, there.key).expect("map");
        let mut buffer = vec![0x5a; 65_536];
        let (mut expected, mut sent) = (0u64, [0u32; 2]);
        poll_until_moving(bundle, "the flood to be taken", &mut |bundle| {
            for (kind, sent) in sent.iter_mut().enumerate() {
                while *sent < FLOODS {
                    let number = *sent;
                    let payload = &mut buffer[..size(number)];
                    mark(number, payload);
                    let tried = match kind {
                        0 => bundle.try_request(*here, 0, ECHO, &[number], payload),
                        _ => bundle.try_send(*here, 0, FLOOD, &[number], payload),
                    };
                    match tried {
                        Ok(()) => *sent += 1,
                        Err(SendError::Full) => break,
                        Err(other) => panic!("{other}"),
                    }
                    if kind == 0 {
                        expected = expected.wrapping_add(weigh(number, payload));
                    }
                }
            }
            while bundle.next_event().is_some() {}
            (sent == [FLOODS; 2], u64::from(sent[0]) + u64::from(sent[1]))
        });
        poll_until_moving(bundle, "the other's flood", &mut |_| {
            (arrived.get() == [FLOODS; 3], arrived.get().iter().map(|&n| u64::from(n)).sum())
        });
        bundle.drain();
        assert_eq!(sums.get(), [expected; 3], "contents of requests, one-way messages and replies");
        let c = bundle.counters();
        format!("{} {} {}", c.returned, c.violations, c.sessions_lost)
    }
}

/// Polls until done; fails when nothing moves within the bound, however long all of it takes.
fn poll_until_moving(bundle: &mut Bundle, what: &str, step: &mut dyn FnMut(&mut Bundle) -> (bool, u64)) {
    let (mut done, mut before) = (false, u64::MAX);
    while !done {
        poll_until(bundle, what, |bundle| {
            let (ended, now) = step(bundle);
            done = ended;
            let moved = now != before;
            before = now;
            ended || moved
        });
        bundle.poll();
    }
}

fn flooder(orders: Orders) {
    let mut flooder = Flooder::new();
    tell(Address::of(&flooder.bundle, flooder.here));
    let there = Address::parse(&orders.wait().expect("an address"));
    let said = flooder.flood(there);
    tell(said);
    orders.serve(&mut flooder.bundle, |_, _| {});
}

#[test]
fn a_million_requests_and_messages_each_way_at_once() {
    let _turn = turn("floods both ways");
    let mut peer = Peer::start("flooder", &[]);
    let mut flooder = Flooder::new();
    let there = peer.address();
    peer.say(&Address::of(&flooder.bundle, flooder.here).to_string());
    assert_eq!(flooder.flood(there), "0 0 0");
    assert_eq!(peer.hear_polling(&mut flooder.bundle), "0 0 0");
    peer.finish();
}

const WAITING: u32 = 5000;

/// Has two endpoints; serves the second when told to.
fn neighbours(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let busy = bundle.endpoint(Key(1)).expect("endpoint");
    let idle = bundle.endpoint(Key(2)).expect("endpoint");
    bundle.on(busy, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    let next = Rc::new(RefCell::new(0));
    let seen = next.clone();
    bundle
        .on(idle, QUEUED, move |m| {
            let number = m.args()[0];
            assert_eq!(number, *seen.borrow(), "in order");
            assert!(m.payload() == contents(number, 0, number as usize % 700).1);
            *seen.borrow_mut() += 1;
        })
        .expect("on");
    bundle.on(idle, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    bundle.set_served(idle, false).expect("endpoint");
    tell(Address::of(&bundle, busy));
    tell(Address::of(&bundle, idle));
    orders.serve(&mut bundle, |bundle, line| match line {
        "serve" => bundle.set_served(idle, true).expect("endpoint"),
        _ => tell(format!("{} {}", next.borrow(), bundle.counters().parked)),
    });
}

#[test]
fn an_endpoint_that_is_not_served_holds_up_no_neighbour() {
    let _turn = turn("an endpoint not served");
    let mut peer = Peer::start("neighbours", &[]);
    let (busy, idle) = (peer.address(), peer.address());
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, busy.name, busy.key).expect("map");
    bundle.map(here, 1, idle.name, idle.key).expect("map");
    let answers = Rc::new(Cell::new(0u32));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    for number in 0..WAITING {
        bundle.send(here, 1, QUEUED, &[number], &contents(number, 0, number as usize % 700).1).expect("mapped");
        bundle.request(here, 0, ECHO, &[number], b"neighbour").expect("mapped");
    }
    poll_until(&mut bundle, "the neighbour's answers", |_| answers.get() == WAITING);
    // Requests wait there as well: as many as the window holds, and no more are accepted.
    for number in 0..32 {
        bundle.try_request(here, 1, ECHO, &[number], b"waits").expect("the window is open");
    }
    assert_eq!(bundle.try_request(here, 1, ECHO, &[32], b""), Err(SendError::Full));
    bundle.request(here, 0, ECHO, &[0], b"").expect("mapped");
    poll_until(&mut bundle, "the neighbour's answer", |_| answers.get() == WAITING + 1);
    assert_eq!(peer.ask("how many"), format!("0 {}", WAITING + 32));
    peer.say("serve");
    poll_until(&mut bundle, "the answers that waited", |_| answers.get() == WAITING + 33);
    bundle.drain();
    assert_eq!(peer.ask("how many"), format!("{WAITING} {}", WAITING + 32));
    assert_eq!(bundle.counters().returned, 0);
    let _ = events(&mut bundle);
    peer.finish();
}
