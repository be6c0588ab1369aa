//! Tallies through the public calls: each operation of a peer on a region counts once, whatever its kind and length, and ends a
//! wait.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::rights::may_read_memory;
use support::{over_udp, tell, turn, Address, Orders, Peer, BOUND};
use weft::memory::{
    Atomic, Change, OperationError, Part, Place, ReadList, RegionKey, Rights, Settings, Source, Tally, Target, Type,
    Window, Write, WriteList,
};
use weft::{Bundle, Endpoint, Key, Node, Reason, Waited};

const KEY: RegionKey = RegionKey(7);
const BYTES: usize = 4 << 20;

#[test]
fn child() {
    support::play(&[("owner", owner)]);
}

/// A region's tally, of which each kind has its own number.
#[derive(Clone, Default)]
struct Numbers([Arc<AtomicU64>; 3]);

impl Numbers {
    fn tally(&self) -> Tally {
        let [reads, writes, fetches] = self.0.clone().map(Some);
        Tally { reads, writes, fetches }
    }

    fn now(&self) -> [u64; 3] {
        self.0.each_ref().map(|number| number.load(Ordering::Acquire))
    }
}

/// Has a region of lent memory, which peers cannot map, so that it pulls their writes. Reports its numbers on request.
fn owner(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(9), Settings::default()).expect("endpoint");
    let window = Window::leaked(vec![0; BYTES].into());
    let mut memory = bundle.memory(here).expect("ours");
    let region = memory.open(window, KEY, Rights::ALL).expect("new");
    let numbers = Numbers::default();
    assert!(memory.count(region, numbers.tally()));
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |bundle, order| match order {
        "numbers" => tell(format!("{:?}", numbers.now())),
        "pulled" => tell(bundle.memory(here).expect("ours").counters().pulls),
        _ => panic!("what is {order}?"),
    });
}

fn to(there: Address) -> (Bundle, Endpoint) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    (bundle, here)
}

fn end(bundle: &mut Bundle, here: Endpoint) {
    let mut is_done = |bundle: &mut Bundle| bundle.memory(here).expect("ours").next_completion().is_some();
    assert!(bundle.poll_until_within(BOUND, &mut is_done), "no completion");
}

/// Returns how many writes the owner pulled from memory here.
fn every_operation_counts_once() -> u64 {
    let mut peer = Peer::start("owner", &[]);
    let (mut bundle, here) = to(peer.address());
    let mut expected = [0; 3];
    let mut counts = |step: &str, more: [u64; 3]| {
        expected.iter_mut().zip(more).for_each(|(number, more)| *number += more);
        assert_eq!(peer.ask("numbers"), format!("{expected:?}"), "{step}");
    };
    let at = |at| Write::to(Place::new(KEY, at));
    for len in [0, 8, 20_000, 3 << 20] {
        bundle.write(here, 0, at(8), vec![1; len]).expect("written");
        counts("a write", [0, 1, 0]);
        let read = bundle.read(here, 0, Place::new(KEY, 8), len).expect("read");
        assert!(read == vec![1; len]);
        counts("a read", [1, 0, 0]);
    }
    // Runs of every kind: short ones, long ones, and ones that an owner of the same host pulls.
    let parts = [Part { at: 8, len: 1 << 20 }, Part { at: 2 << 20, len: 4 }, Part { at: 3 << 20, len: 300_000 }];
    let len = parts.iter().map(|part| part.len as usize).sum::<usize>();
    let sources = || vec![Source::from(vec![2; len / 2]), Source::from(vec![2; len - len / 2])];
    for notice in [None, Some(5)] {
        let list = WriteList { notice, ..WriteList::to(KEY, &parts) };
        bundle.memory(here).expect("ours").try_write_list(0, list, sources(), 1).expect("posted");
        end(&mut bundle, here);
        counts("a list of writes", [0, 1, 0]);
    }
    let list = ReadList::from(KEY, &parts);
    let targets = vec![Target::from(vec![0; 9]), Target::from(vec![0; len - 9])];
    bundle.memory(here).expect("ours").try_read_list(0, list, targets, 1).expect("posted");
    end(&mut bundle, here);
    counts("a list of reads", [1, 0, 0]);
    for words in [1, 30_000] {
        let change = |atomic| Change { place: Place::new(KEY, 8), atomic, of: Type::U64 };
        let operands = vec![1; 8 * words];
        bundle.change(here, 0, change(Atomic::Add), &operands, &[]).expect("changed");
        counts("words that are changed and fetched", [0, 0, 1]);
        bundle.change(here, 0, change(Atomic::Read), &operands, &[]).expect("read");
        counts("words that are fetched alone", [1, 0, 0]);
        let mut memory = bundle.memory(here).expect("ours");
        memory.try_change(0, change(Atomic::Add), &operands, Default::default(), 1).expect("posted");
        end(&mut bundle, here);
        counts("words that are changed alone", [0, 1, 0]);
    }
    let refused = bundle.write(here, 0, at(BYTES as u64), vec![1; 9]);
    assert!(matches!(refused, Err(OperationError::Failed { reason: Reason::OutsideRegion, .. })), "{refused:?}");
    counts("what is refused", [0, 0, 0]);
    let pulled = peer.ask("pulled");
    peer.finish();
    pulled.parse().expect("a number")
}

#[test]
fn every_operation_of_a_neighbour_counts_once() {
    let _turn = turn("tallies");
    let pulled = every_operation_counts_once();
    assert_eq!(pulled > 0, may_read_memory(), "{pulled} writes were pulled");
}

#[test]
fn every_operation_of_another_host_counts_once() {
    let Some(_turn) = over_udp("every_operation_of_another_host_counts_once") else { return };
    assert_eq!(every_operation_counts_once(), 0, "no host reads another one's memory");
}

#[test]
fn a_counted_region_is_not_mapped_and_counts_no_more_once_it_is_revoked() {
    let node = Node::new().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let here = bundle.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    bundle.map(here, 0, bundle.name(here).expect("ours"), Key(1)).expect("map");
    let mut memory = bundle.memory(here).expect("ours");
    let (region, _) = memory.allocate(64, KEY, Rights::ALL).expect("memory");
    let mapped = bundle.map_region(here, 0, KEY).expect("answered");
    let numbers = [(); 2].map(|()| Numbers::default());
    let mut memory = bundle.memory(here).expect("ours");
    assert!(memory.count(region, numbers[0].tally()) && memory.count(region, numbers[1].tally()));
    if let Some(mapped) = mapped {
        assert!(mapped.write(0, b"uncounted").is_err(), "what was mapped before is taken back");
    }
    assert!(bundle.map_region(here, 0, KEY).expect("answered").is_none());
    for _ in 0..40 {
        // So often that the engine would map it.
        bundle.write(here, 0, Write::to(Place::new(KEY, 0)), b"counted".to_vec()).expect("written");
    }
    assert_eq!(numbers.each_ref().map(Numbers::now), [[0, 40, 0]; 2], "each tally has all");
    let mut memory = bundle.memory(here).expect("ours");
    assert!(memory.revoke(region) && !memory.count(region, Tally::default()));
    let (region, _) = memory.allocate(64, KEY, Rights::ALL).expect("memory");
    bundle.write(here, 0, Write::to(Place::new(KEY, 0)), b"another".to_vec()).expect("written");
    assert_eq!(numbers[0].now(), [0, 40, 0], "{region:?} has the key, and not the tally");
}

#[test]
fn a_counted_write_ends_a_wait() {
    let node = Node::new().expect("node");
    let (mut bundle, number) = (Bundle::new(&node).expect("bundle"), Arc::new(AtomicU64::new(0)));
    let here = bundle.memory_endpoint(Key(9), Settings::default()).expect("endpoint");
    let mut memory = bundle.memory(here).expect("ours");
    let region = memory.open(Window::leaked(vec![0; BYTES].into()), KEY, Rights::ALL).expect("new");
    memory.count(region, Tally { writes: Some(number.clone()), ..Tally::default() });
    let there = Address::of(&bundle, here);
    let writer = std::thread::spawn(move || {
        let (mut bundle, here) = to(there);
        // So long that the owner pulls it: no message tells when it has all of it.
        bundle.write(here, 0, Write::to(Place::new(KEY, 0)), vec![1; BYTES]).expect("written");
    });
    let since = Instant::now();
    while number.load(Ordering::Acquire) == 0 {
        assert!(since.elapsed() < BOUND, "nothing was counted");
        // Other events may come first, but the write itself must end a wait.
        let waited = bundle.wait(Some(Duration::from_secs(3600)));
        assert_ne!(waited, Waited::Nothing);
    }
    assert_eq!(bundle.memory(here).expect("ours").counters().pulls > 0, may_read_memory());
    bundle.poll();
    writer.join().expect("it wrote");
}
