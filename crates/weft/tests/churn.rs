//! Pairs of endpoints that are made, used and freed on one session between two processes, over shared memory and over UDP: no message
//! comes back, and the memory of both processes stays flat. `weft-core/tests/churn.rs` does the same within one process.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use support::client::{ANSWER, ECHO};
use support::{events, memory_of, over_udp, poll_until, tell, turn, Address, Order, Orders, Peer};
use weft::am::Message;
use weft::{Bundle, Endpoint, Event};

const PAIRS: u32 = 10_000;
/// Pairs that are made, used and freed together.
const TOGETHER: u32 = 10;
/// After this many pairs memory may not grow.
const WARM: u32 = 1_000;
/// Growth allowed between the `WARM`th and the last pair, in KiB. Less than 100 is usual; endpoints that stay cost 5 KiB a pair.
const KIB_MOST: u64 = 256;
/// Runs of which one must stay flat. A `weft top` on this host makes both processes grow by about 500 KiB, once. A leak shows in
/// each run.
const TRIES: usize = 4;

/// Asks the server for its endpoints of the next pairs. The payload is the addresses of the client's endpoints.
const NEXT: u8 = 2;
/// Answers `NEXT` with the addresses of the server's endpoints.
const MADE: u8 = 21;

#[test]
fn child() {
    support::play(&[("server", server), ("client", client)]);
}

/// The common part of both processes: their endpoints of the pairs.
struct Side {
    bundle: Bundle,
    /// The endpoint for `NEXT` and `MADE`, which lives as long as the session.
    first: Endpoint,
    frees: bool,
    pairs: u32,
    /// Requests of the other side that were answered here.
    answered: Rc<Cell<u32>>,
    /// Answers to requests of this side.
    answers: Rc<Cell<u32>>,
    /// The first endpoint that was freed.
    freed: Option<Endpoint>,
}

impl Side {
    fn new(word: &str) -> Side {
        let frees = match word {
            "frees" => true,
            "keeps" => false,
            other => panic!("{other}: a side frees or keeps its endpoints"),
        };
        let (bundle, first) = support::bundle_with_endpoint();
        Side { bundle, first, frees, pairs: 0, answered: Rc::default(), answers: Rc::default(), freed: None }
    }

    /// Makes the endpoints of the next pairs.
    fn make(&mut self) -> Vec<Endpoint> {
        let make = |_| {
            let here = self.bundle.endpoint_with_random_key().expect("endpoint");
            let (answered, answers) = (self.answered.clone(), self.answers.clone());
            let echo = move |m: &mut Message<'_>| {
                m.reply(ANSWER, m.args(), m.payload()).expect("once");
                answered.set(answered.get() + 1);
            };
            self.bundle.on(here, ECHO, echo).expect("on");
            self.bundle.on(here, ANSWER, move |_| answers.set(answers.get() + 1)).expect("on");
            here
        };
        (0..TOGETHER).map(make).collect()
    }

    /// The addresses of these endpoints, one a line.
    fn addresses(&self, endpoints: &[Endpoint]) -> String {
        endpoints.iter().map(|&here| format!("{}\n", Address::of(&self.bundle, here))).collect()
    }

    /// Sends a request from each endpoint to the other of its pair, waits until both sides' requests are answered, and frees the endpoints.
    fn meet(&mut self, endpoints: &[Endpoint], others: &[Address]) {
        self.pairs += TOGETHER;
        for (&here, there) in endpoints.iter().zip(others) {
            self.bundle.map(here, 0, there.name, there.key).expect("map");
            self.bundle.request(here, 0, ECHO, &[1, 2], &[3; 100]).expect("mapped");
        }
        let (pairs, answered, answers) = (self.pairs, self.answered.clone(), self.answers.clone());
        poll_until(&mut self.bundle, "the answers of both sides", |bundle| {
            expect_no_loss(bundle);
            answered.get() >= pairs && answers.get() >= pairs
        });
        assert_eq!((answered.get(), answers.get()), (pairs, pairs), "one request and one answer a pair");
        // Between hosts each pair has its own session beside that of the first endpoints, and two if both sides begin it at once.
        let most = if is_over_udp() { 1 + 2 * TOGETHER as usize } else { 1 };
        assert!((1..=most).contains(&self.bundle.sessions()), "{} after {pairs} pairs", self.bundle.sessions());
        if self.frees {
            endpoints.iter().for_each(|&here| self.bundle.free(here).expect("an endpoint of ours"));
            let freed = *self.freed.get_or_insert(endpoints[0]);
            assert!(self.bundle.name(freed).is_err(), "a handle of a freed endpoint names no later one");
            // A pair's session ends some round trips after its endpoints are gone on both sides. Without this wait more of them would
            // be there at once, and memory larger, when the machine is busy.
            poll_until(&mut self.bundle, "the ends of the pairs' sessions", |bundle| {
                expect_no_loss(bundle);
                bundle.sessions() == 1
            });
        }
    }

    /// Pairs, messages that came back, messages that were refused, sessions that were lost.
    fn report(&self) -> String {
        let counters = self.bundle.counters();
        format!("{} {} {} {}", self.pairs, counters.returned, counters.refused, counters.sessions_lost)
    }
}

/// Whether the two processes treat each other as being on other hosts.
fn is_over_udp() -> bool {
    std::env::var("WEFT_LOCAL").is_ok_and(|local| local == "off")
}

/// Reads the lines of a message as addresses.
fn read_addresses(m: &Message<'_>) -> Vec<Address> {
    std::str::from_utf8(m.payload()).expect("text").lines().map(Address::parse).collect()
}

/// Fails if a message came back or a peer was lost.
fn expect_no_loss(bundle: &mut Bundle) {
    for event in events(bundle) {
        assert!(!matches!(event, Event::Returned(_) | Event::PeerLost { .. }), "{event:?}");
    }
}

/// Makes endpoints when the client asks for them. Answers each order with a report.
fn server(orders: Orders) {
    let mut side = Side::new(&orders.words[0]);
    let asked = Rc::new(RefCell::new(None));
    let sink = asked.clone();
    let next = move |m: &mut Message<'_>| {
        let others = read_addresses(m);
        *sink.borrow_mut() = m.defer().map(|token| (token, others));
    };
    side.bundle.on(side.first, NEXT, next).expect("on");
    tell(Address::of(&side.bundle, side.first));
    loop {
        let mut order = Order::None;
        side.bundle.poll_until(|bundle| {
            expect_no_loss(bundle);
            order = orders.look();
            asked.borrow().is_some() || !matches!(order, Order::None)
        });
        match order {
            Order::None => {}
            Order::Line(_) => tell(side.report()),
            Order::End => return,
        }
        let Some((token, others)) = asked.take() else { continue };
        let endpoints = side.make();
        let addresses = side.addresses(&endpoints);
        side.bundle.reply(token, MADE, &[], addresses.as_bytes()).expect("small");
        side.meet(&endpoints, &others);
    }
}

/// Makes as many pairs as it is told, and reports.
fn client(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let mut side = Side::new(&orders.words[1]);
    side.bundle.map(side.first, 0, there.name, there.key).expect("map");
    let made = Rc::new(Cell::new(None));
    let sink = made.clone();
    side.bundle.on(side.first, MADE, move |m| sink.set(Some(read_addresses(m)))).expect("on");
    while let Some(line) = orders.wait() {
        for _ in 0..line.parse::<u32>().expect("a number") / TOGETHER {
            let endpoints = side.make();
            let addresses = side.addresses(&endpoints);
            side.bundle.request(side.first, 0, NEXT, &[], addresses.as_bytes()).expect("mapped");
            let mut others = None;
            poll_until(&mut side.bundle, "the other endpoints of the pairs", |bundle| {
                expect_no_loss(bundle);
                others = made.take();
                others.is_some()
            });
            side.meet(&endpoints, &others.expect("just there"));
        }
        tell(side.report());
    }
}

/// Growth of the server and of the client between the `WARM`th pair and the last, in KiB. Each side frees its endpoints or keeps them.
fn growth(server: &str, client: &str, pairs: u32) -> [u64; 2] {
    let mut server = Peer::start("server", &[server]);
    let mut client = Peer::start("client", &[&server.address().to_string(), client]);
    // Pages of the program's file are left out: they become resident when they are first used.
    let processes = [server.id(), client.id()];
    let memory = || processes.map(|process| ["RssAnon", "RssShmem"].map(|line| memory_of(process, line)));
    assert_eq!(client.ask(&WARM.to_string()), format!("{WARM} 0 0 0"));
    let before = memory();
    for so_far in (WARM..pairs).step_by(WARM as usize) {
        assert_eq!(client.ask(&WARM.to_string()), format!("{} 0 0 0", so_far + WARM));
    }
    let after = memory();
    eprintln!("KiB [own, shared] of server and client after {WARM} pairs: {before:?}; after {pairs}: {after:?}");
    assert_eq!(server.ask("report"), format!("{pairs} 0 0 0"));
    // The server ends first, because it still polls and would see a lost peer.
    server.finish();
    client.finish();
    [0, 1].map(|at| after[at].iter().sum::<u64>().saturating_sub(before[at].iter().sum()))
}

fn expect_flat() {
    let mut tries = Vec::new();
    while tries.len() < TRIES {
        let grown = growth("frees", "frees", PAIRS);
        if grown.iter().all(|&kib| kib <= KIB_MOST) {
            return;
        }
        tries.push(grown);
    }
    panic!("KiB of the server and the client after {PAIRS} pairs, beyond those after {WARM}: {tries:?}");
}

#[test]
fn ten_thousand_pairs_on_one_session_return_nothing_and_keep_nothing() {
    let _turn = turn("pairs of endpoints");
    expect_flat();
}

#[test]
fn ten_thousand_pairs_over_udp_return_nothing_and_keep_nothing() {
    let Some(_turn) = over_udp("ten_thousand_pairs_over_udp_return_nothing_and_keep_nothing") else {
        return;
    };
    expect_flat();
}

/// Shows that the other tests would fail if one side did not free its endpoints.
#[test]
fn endpoints_that_are_not_freed_are_seen_as_growth() {
    let _turn = turn("pairs of endpoints that stay");
    for (server, client, keeper) in [("keeps", "frees", 0), ("frees", "keeps", 1)] {
        let grown = growth(server, client, 2 * WARM);
        assert!(grown[keeper] > KIB_MOST, "{grown:?} KiB more after {} pairs than after {WARM}", 2 * WARM);
    }
}
