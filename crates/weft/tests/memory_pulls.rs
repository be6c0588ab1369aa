//! Long writes between processes of one host: their owner reads the bytes in the initiator's memory, in one copy.

mod support;

use std::time::{Duration, Instant};
use support::rights::may_read_memory;
use support::{contents, tell, turn, Address, Orders, Peer, BOUND};
use weft::memory::{Outcome, Place, RegionKey, Rights, Settings, Window, Write};
use weft::{Bundle, Key, Node, Reason, SharedBundle};

const KEY: RegionKey = RegionKey(7);
const BYTES: usize = 4 << 20;
const MIB: usize = 1 << 20;

/// Settings without mappings, because a mapped region need not be pulled from.
fn pulled() -> Settings {
    Settings { is_direct: false, ..Settings::default() }
}

#[test]
fn child() {
    support::play(&[("owner", owner), ("writer", writer)]);
}

/// Has a region of lent memory in a serviced bundle, and reports on request.
fn owner(orders: Orders) {
    let bundle = SharedBundle::serviced(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(9), pulled()).expect("endpoint");
    let window = Window::leaked(vec![0; BYTES].into());
    let region = bundle.with_memory(here, |m| m.open(window.clone(), KEY, Rights::ALL)).expect("ours").expect("new");
    tell(Address { name: bundle.name(here).expect("ours"), key: Key(9) });
    while let Some(line) = orders.wait() {
        let counters = bundle.with_memory(here, |m| m.counters()).expect("ours");
        match line.as_str() {
            "pulled" => tell(format!("{} {}", counters.bytes_pulled, counters.bytes_written)),
            "revoke" => {
                // Nothing lands after it.
                assert!(bundle.with_memory(here, |m| m.revoke(region)).expect("ours"));
                let [mut before, mut after] = [(); 2].map(|()| vec![0; BYTES]);
                assert!(window.read(0, &mut before));
                std::thread::sleep(Duration::from_millis(5));
                assert!(window.read(0, &mut after));
                tell(before == after);
            }
            _ => panic!("what is {line}?"),
        }
    }
}

/// Writes to the owner at the given address until it is killed.
fn writer(orders: Orders) {
    let mut side = Side::to(Address::parse(&orders.wait().expect("an address")));
    for round in 1.. {
        let write = Write::to(Place::new(KEY, 0)).with_notice(round);
        side.bundle.memory(side.here).expect("ours").try_write(0, write, vec![round as u8; BYTES], 1).expect("posted");
        if round == 1 {
            tell("writing");
        }
        assert_eq!(side.end(), Outcome::Done);
    }
}

struct Side {
    bundle: Bundle,
    here: weft::Endpoint,
}

impl Side {
    fn to(there: Address) -> Side {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.memory_endpoint(Key(1), pulled()).expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        Side { bundle, here }
    }

    fn write(&mut self, at: u64, bytes: Vec<u8>) -> Outcome {
        let write = Write::to(Place::new(KEY, at));
        self.bundle.memory(self.here).expect("ours").try_write(0, write, bytes, 1).expect("posted");
        self.end()
    }

    fn end(&mut self) -> Outcome {
        let since = Instant::now();
        loop {
            if let Some(end) = self.bundle.memory(self.here).expect("ours").next_completion() {
                return end.outcome;
            }
            assert!(since.elapsed() < BOUND, "no completion");
            self.bundle.wait(Some(Duration::from_millis(10)));
        }
    }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split(' ').map(|number| number.parse().expect("a number")).collect()
}

#[test]
fn lent_memory_is_written_in_one_copy() {
    let _turn = turn("pulls");
    let mut peer = Peer::start("owner", &[]);
    let mut side = Side::to(peer.address());
    let bytes = contents(1, 0, MIB).1;
    assert_eq!(side.write(13, bytes.clone()), Outcome::Done);
    peer.say("pulled");
    let pulled = if may_read_memory() { MIB as u64 } else { 0 };
    assert_eq!(numbers(&peer.hear()), [pulled, MIB as u64]);
    assert_eq!(side.bundle.read(side.here, 0, Place::new(KEY, 13), MIB).expect("read"), bytes);
    peer.finish();
}

#[test]
fn nothing_lands_behind_a_revocation_while_a_pull_goes_on() {
    let _turn = turn("revoked pulls");
    for _ in 0..10 {
        let mut peer = Peer::start("owner", &[]);
        let mut side = Side::to(peer.address());
        assert_eq!(side.write(0, contents(1, 0, 8).1), Outcome::Done);
        let (here, write) = (side.here, Write::to(Place::new(KEY, 0)));
        let mut number = 0u8;
        let mut post = |side: &mut Side| {
            // Other bytes each time, so that late ones are noticed.
            number = number.wrapping_add(1);
            side.bundle.memory(here).expect("ours").try_write(0, write, vec![number; BYTES], 1).expect("posted");
        };
        (0..4).for_each(|_| post(&mut side));
        peer.say("revoke");
        // More writes follow until the revocation is seen: one of them is in the middle of a pull.
        let refusal = loop {
            match side.end() {
                Outcome::Done => post(&mut side),
                refusal => break refusal,
            }
        };
        assert!(matches!(refusal, Outcome::Failed { reason: Reason::Revoked, .. }), "{refusal:?}");
        assert_eq!(peer.hear(), "true", "something landed behind a revocation");
        peer.finish();
    }
}

#[test]
fn an_initiator_that_dies_in_a_pull_leaves_a_whole_owner() {
    let _turn = turn("death in a pull");
    let bundle = SharedBundle::serviced(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(9), pulled()).expect("endpoint");
    let window = Window::leaked(vec![0; BYTES].into());
    bundle.with_memory(here, |m| m.open(window.clone(), KEY, Rights::ALL)).expect("ours").expect("new");
    let address = Address { name: bundle.name(here).expect("ours"), key: Key(9) };
    for round in 0..10u64 {
        let mut peer = Peer::start("writer", &[]);
        peer.say(&address.to_string());
        assert_eq!(peer.hear(), "writing");
        std::thread::sleep(Duration::from_micros(1000 + 700 * round));
        peer.kill();
    }
    // Other initiators are served as before.
    let mut side = Side::to(address);
    assert_eq!(side.write(0, contents(3, 0, BYTES).1), Outcome::Done);
    let mut all = vec![0; BYTES];
    assert!(window.read(0, &mut all));
    assert!(all == contents(3, 0, BYTES).1);
    // Each notice belongs to a complete write, and they came in order.
    let mut last = 0;
    while let Some(notice) = bundle.with_memory(here, |m| m.next_notice()).expect("ours") {
        assert!(
            (notice.value == last + 1 || notice.value == 1) && notice.len == BYTES as u64,
            "{notice:?} behind {last}"
        );
        last = notice.value;
    }
    let counters = bundle.with_memory(here, |m| m.counters()).expect("ours");
    assert!(counters.bytes_pulled > 0 || !may_read_memory());
}
