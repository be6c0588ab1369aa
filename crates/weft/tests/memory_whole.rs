//! The whole address space as a region: offsets are addresses, and bad ones are refused while their owner lives on.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use support::rights::may_read_memory;
use support::{left_out, over_udp, tell, turn, Address, Orders, Peer, BOUND};
use weft::memory::{
    Atomic, Change, OperationError, Place, RegionHandle, RegionKey, Rights, Settings, Type, Window, Write,
};
use weft::{Bundle, Certainty, Endpoint, Key, Node, Reason};

const KEY: RegionKey = RegionKey(7);

/// Words of the owner's that the peer may write.
static WORDS: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

/// Read-only memory.
static FIXED: [u64; 4] = [1, 2, 3, 4];

#[test]
fn child() {
    support::play(&[("owner", owner)]);
}

/// Opens all of its memory, and reports where the words are, the handle, and their contents.
fn owner(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(9), Settings::default()).expect("endpoint");
    // SAFETY: the test accesses nothing by it but `WORDS`, by atomics, `FIXED`, and addresses where it can change nothing.
    let window = unsafe { Window::whole_address_space() }.expect("Linux 5.14, and no filter");
    let mut memory = bundle.memory(here).expect("ours");
    let region = memory.open(window, KEY, Rights::ALL).expect("free");
    let handle = memory.handle(region, 0).expect("it is open");
    tell(Address::of(&bundle, here));
    tell(format!("{} {} {}", WORDS.as_ptr().expose_provenance(), FIXED.as_ptr().expose_provenance(), handle.0));
    orders.serve(&mut bundle, |_, line| tell(WORDS[line.parse::<usize>().expect("a number")].load(Ordering::Acquire)));
}

struct Side {
    bundle: Bundle,
    here: Endpoint,
    peer: Peer,
    words: u64,
    fixed: u64,
    handle: RegionHandle,
}

impl Side {
    fn new() -> Side {
        let peer = Peer::start("owner", &[]);
        let there = peer.address();
        let said = peer.hear();
        let mut numbers = said.split(' ').map(|number| number.parse::<u64>().expect("a number"));
        let [words, fixed, handle] = [(); 3].map(|()| numbers.next().expect("three numbers"));
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.memory_endpoint(Key(8), Settings::default()).expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        Side { bundle, here, peer, words, fixed, handle: RegionHandle(handle as u32) }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), OperationError> {
        self.bundle.write_within(BOUND, self.here, 0, Write::to(Place::new(KEY, at)), bytes)
    }

    fn read(&mut self, place: Place, len: usize) -> Result<Vec<u8>, OperationError> {
        self.bundle.read_within(BOUND, self.here, 0, place, len)
    }

    fn add(&mut self, at: u64, words: usize) -> Result<Vec<u8>, OperationError> {
        let change = Change { place: Place::new(KEY, at), atomic: Atomic::Add, of: Type::U64 };
        self.bundle.change_within(BOUND, self.here, 0, change, &5u64.to_le_bytes().repeat(words), &[])
    }
}

fn expect_refusal<T: std::fmt::Debug>(done: Result<T, OperationError>, what: &str) {
    match done {
        Err(OperationError::Failed { reason: Reason::OutsideRegion, certainty: Certainty::NotDelivered }) => {}
        other => panic!("{what}: {other:?}"),
    }
}

fn addresses_are_used_and_bad_ones_refused() {
    if !may_read_memory() {
        // SAFETY: nothing is accessed by it.
        let window = unsafe { Window::whole_address_space() };
        assert_eq!(window.expect_err("a filter forbids it").kind(), std::io::ErrorKind::PermissionDenied);
        return left_out("accesses to the whole address space: the kernel lets no process read memory by its address");
    }
    let mut side = Side::new();
    let (words, fixed) = (side.words, side.fixed);
    side.write(words + 80, &77u64.to_le_bytes()).expect("it is mapped");
    assert_eq!(side.peer.ask("10"), "77");
    // Across page boundaries, in several pieces.
    let all: Vec<u8> = (0..32_000u32).map(|n| n as u8).collect();
    side.write(words + 8, &all).expect("it is mapped");
    assert_eq!(side.read(Place::new(KEY, words + 8), all.len()).expect("it is mapped"), all);
    let by_handle = Place::new(side.handle, fixed + 8);
    assert_eq!(side.read(by_handle, 8).expect("it is mapped"), 2u64.to_le_bytes());
    side.write(words, &6u64.to_le_bytes()).expect("it is mapped");
    assert_eq!(side.add(words, 1).expect("it is mapped"), 6u64.to_le_bytes());
    assert_eq!(side.peer.ask("0"), "11");
    for at in [0, 8, 1 << 63, u64::MAX - 7, u64::MAX - 4000] {
        expect_refusal(side.read(Place::new(KEY, at), 8), "a read where nothing is");
        expect_refusal(side.write(at, b"anything"), "a write where nothing is");
        expect_refusal(side.add(at & !7, 1), "a change where nothing is");
    }
    expect_refusal(side.write(fixed, &[9; 8]), "a write of what is fixed");
    expect_refusal(side.add(fixed, 2), "a change of what is fixed");
    assert_eq!(side.read(Place::new(KEY, fixed), 8).expect("it is mapped"), 1u64.to_le_bytes());
    assert_eq!(side.peer.ask("0"), "11", "the owner lives, and nothing else was written");
    side.peer.finish();
}

#[test]
fn addresses_are_used_and_bad_ones_refused_by_memory() {
    let _turn = turn("all addresses by memory");
    addresses_are_used_and_bad_ones_refused();
}

#[test]
fn addresses_are_used_and_bad_ones_refused_over_udp() {
    let Some(_turn) = over_udp("addresses_are_used_and_bad_ones_refused_over_udp") else { return };
    addresses_are_used_and_bad_ones_refused();
}
