//! Handlers of notices through the public calls: they run when all bytes are stored, in the thread that polls, and may post
//! operations.

mod support;

use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Instant;
use support::{contents, turn, Address, BOUND};
use weft::memory::{Completion, Memory, Notice, Outcome, Place, RegionKey, Rights, Settings, Window, Write};
use weft::{Bundle, Certainty, Endpoint, Key, Node, SharedBundle};

const KEY: RegionKey = RegionKey(7);
const BYTES: usize = 1 << 20;

fn at(at: u64) -> Place {
    Place::new(KEY, at)
}

fn initiator(node: &Node, there: Address) -> (Bundle, Endpoint) {
    let mut bundle = Bundle::new(node).expect("bundle");
    let here = bundle.memory_endpoint(Key(2), Settings::default()).expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    (bundle, here)
}

fn post(bundle: &mut Bundle, here: Endpoint, write: Write, bytes: Vec<u8>) {
    bundle.memory(here).expect("ours").try_write(0, write, bytes, 0).expect("posted");
}

/// An initiator and an owner of one thread.
struct Pair {
    a: Bundle,
    here: Endpoint,
    b: Bundle,
    there: Endpoint,
    window: Window,
}

impl Pair {
    fn new(settings: Settings) -> Pair {
        let node = Node::new().expect("node");
        let mut b = Bundle::new(&node).expect("bundle");
        let there = b.memory_endpoint(Key(1), settings).expect("endpoint");
        let window = b.memory(there).expect("ours").allocate(BYTES, KEY, Rights::ALL).expect("memory").1;
        let (a, here) = initiator(&node, Address::of(&b, there));
        Pair { a, here, b, there, window }
    }

    fn end(&mut self) -> Completion {
        let since = Instant::now();
        loop {
            if let Some(end) = self.a.memory(self.here).expect("ours").next_completion() {
                return end;
            }
            assert!(since.elapsed() < BOUND, "no completion");
            self.a.poll();
            self.b.poll();
        }
    }
}

#[test]
fn a_handler_runs_once_for_each_write_when_all_of_it_is_stored() {
    let _turn = turn("notice handlers");
    // More notices than may wait: none waits.
    let mut pair = Pair::new(Settings { notices_most: 2, ..Settings::default() });
    let (seen, window) = (Rc::new(RefCell::new(Vec::new())), pair.window.clone());
    let notes = seen.clone();
    let handler = move |memory: &mut Memory<'_>, notice: Notice| {
        let mut bytes = vec![0; notice.len as usize];
        assert!(window.read(notice.at, &mut bytes));
        assert_eq!(memory.next_notice(), None, "it has been taken");
        notes.borrow_mut().push((notice.value, bytes));
    };
    pair.b.on_notice(pair.there, handler).expect("ours");
    let mut expected = Vec::new();
    for (number, len) in [(0u32, 0usize), (1, 8), (2, 16_384), (3, 16_385), (4, 500_000), (5, 1)] {
        let bytes = contents(number, 0, len).1;
        post(&mut pair.a, pair.here, Write::to(at(3)), vec![0xff; 500_000]);
        post(&mut pair.a, pair.here, Write::to(at(3)).with_notice(number.into()), bytes.clone());
        assert_eq!(pair.end().outcome, Outcome::Done);
        assert_eq!(pair.end().outcome, Outcome::Done);
        expected.push((u64::from(number), bytes));
    }
    assert!(*seen.borrow() == expected, "each once, whole, and in order");
    assert_eq!(pair.b.memory(pair.there).expect("ours").next_notice(), None);
}

#[test]
fn a_handler_may_post_operations_of_its_own() {
    let _turn = turn("handlers that post");
    let mut pair = Pair::new(Settings::default());
    // The owner writes back to a region of the initiator.
    let answer = pair.a.memory(pair.here).expect("ours").allocate(64, KEY, Rights::ALL).expect("memory").1;
    let back = Address::of(&pair.a, pair.here);
    pair.b.map(pair.there, 5, back.name, back.key).expect("map");
    let handler = |memory: &mut Memory<'_>, notice: Notice| {
        memory.try_write(5, Write::to(at(8)), (notice.value * 2).to_le_bytes().to_vec(), 1).expect("posted");
    };
    pair.b.on_notice(pair.there, handler).expect("ours");
    post(&mut pair.a, pair.here, Write::to(at(0)).with_notice(21), vec![1; 100]);
    assert_eq!(pair.end().outcome, Outcome::Done);
    let since = Instant::now();
    let mut word = [0; 8];
    while u64::from_le_bytes(word) != 42 {
        assert!(since.elapsed() < BOUND, "no answer");
        pair.a.poll();
        pair.b.poll();
        assert!(answer.read(8, &mut word));
    }
}

#[test]
fn a_handler_of_a_serviced_bundle_runs_while_the_program_does_not_poll() {
    let _turn = turn("serviced handlers");
    let node = Node::new().expect("node");
    let owner = SharedBundle::serviced(&node).expect("bundle");
    let there = owner.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    let window = owner.with_memory(there, |m| m.allocate(BYTES, KEY, Rights::ALL)).expect("ours").expect("memory").1;
    let (tell, told) = mpsc::channel();
    let inner = owner.clone();
    let handler = move |_: &mut Memory<'_>, notice: Notice| {
        let mut last = [0];
        assert!(window.read(notice.at + notice.len - 1, &mut last));
        tell.send((notice.value, last[0], inner.with_memory(there, |_| ()).is_err())).expect("somebody listens");
    };
    owner.on_notice(there, handler).expect("ours");
    let (mut a, here) = initiator(&node, Address { name: owner.name(there).expect("ours"), key: Key(1) });
    for number in 0..20 {
        post(&mut a, here, Write::to(at(number)).with_notice(number), vec![number as u8 + 1; 30_000]);
        a.poll_until(|a| a.memory(here).expect("ours").next_completion().is_some_and(|e| e.outcome == Outcome::Done));
        let expected = (number, number as u8 + 1, true);
        assert_eq!(told.recv_timeout(BOUND), Ok(expected), "and the handler cannot call its bundle");
    }
    // The handler holds a handle of its own bundle.
    owner.free(there).expect("ours");
}

#[test]
fn a_handler_that_panics_ends_the_session_of_its_peer_and_no_other() {
    let _turn = turn("handlers that panic");
    let mut pair = Pair::new(Settings::default());
    let (mut other, other_here) = initiator(&Node::new().expect("node"), Address::of(&pair.b, pair.there));
    post(&mut other, other_here, Write::to(at(0)), vec![1; 8]);
    let since = Instant::now();
    while other.memory(other_here).expect("ours").next_completion().is_none() {
        assert!(since.elapsed() < BOUND, "no completion");
        other.poll();
        pair.b.poll();
    }
    pair.b.on_notice(pair.there, |_, notice| assert!(notice.value != 13, "planted")).expect("ours");
    post(&mut pair.a, pair.here, Write::to(at(100)).with_notice(1), vec![2; 8]);
    assert_eq!(pair.end().outcome, Outcome::Done);
    post(&mut pair.a, pair.here, Write::to(at(100)).with_notice(13), vec![3; 40_000]);
    let mut panics = 0;
    let end = loop {
        assert!(since.elapsed() < BOUND, "no completion");
        if let Some(end) = pair.a.memory(pair.here).expect("ours").next_completion() {
            break end;
        }
        pair.a.poll();
        panics += u32::from(catch_unwind(AssertUnwindSafe(|| pair.b.poll())).is_err());
    };
    assert_eq!(panics, 1);
    let is_unknown = matches!(end.outcome, Outcome::Failed { certainty: Certainty::Unknown, .. });
    assert!(is_unknown || end.outcome == Outcome::Done, "it was stored: {end:?}");
    // The other session is not affected, and the peer calls again.
    post(&mut other, other_here, Write::to(at(0)).with_notice(2), vec![4; 8]);
    while other.memory(other_here).expect("ours").next_completion().is_none_or(|end| end.outcome != Outcome::Done) {
        assert!(since.elapsed() < BOUND, "no completion");
        other.poll();
        pair.b.poll();
    }
    post(&mut pair.a, pair.here, Write::to(at(0)).with_notice(3), vec![5; 8]);
    pair.end();
}
