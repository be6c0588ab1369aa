//! Remote memory through the public calls: contents, order, refusals, and how everything ends.

mod support;

use std::time::{Duration, Instant};
use support::rights::may_read_memory;
use support::{contents, over_udp, tell, turn, Address, Dice, Orders, Peer, BOUND};
use weft::memory::{
    Atomic, Change, Completion, Cookie, Fetch, Notice, Outcome, Part, Place, PostError, RegionError, RegionHandle,
    RegionId, RegionKey, Rights, Settings, Type, Window, Write,
};
use weft::{Bundle, Certainty, Endpoint, Key, Node, Reason, SendError, Service};

/// Lengths around every limit: a word, a line, a piece, a record.
const SIZES: [usize; 14] = [0, 1, 7, 8, 9, 24, 25, 4096, 16_383, 16_384, 16_385, 65_536, 1 << 20, 3_000_001];

const KEY: RegionKey = RegionKey(7);

#[test]
fn child() {
    support::play(&[("owner", owner), ("sleeper", sleeper), ("counter", counter)]);
}

/// A bundle with an endpoint for remote memory.
struct Side {
    bundle: Bundle,
    here: Endpoint,
}

impl Side {
    fn new() -> Side {
        Side::with(Settings::default())
    }

    fn with(settings: Settings) -> Side {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.memory_endpoint(Key(9), settings).expect("endpoint");
        Side { bundle, here }
    }

    fn to(there: Address) -> Side {
        let mut side = Side::new();
        side.bundle.map(side.here, 0, there.name, there.key).expect("map");
        side
    }

    fn address(&self) -> Address {
        Address::of(&self.bundle, self.here)
    }

    fn calls(&mut self) -> weft::memory::Memory<'_> {
        self.bundle.memory(self.here).expect("an endpoint for remote memory")
    }

    fn allocate(&mut self, len: usize, key: u64) -> (RegionId, Window) {
        self.calls().allocate(len, RegionKey(key), Rights::ALL).expect("memory")
    }

    fn write(&mut self, place: Place, bytes: Vec<u8>) {
        self.calls().try_write(0, Write::to(place), bytes, 1).expect("posted");
    }

    fn read(&mut self, place: Place, len: usize) {
        self.calls().try_read(0, place, vec![0; len], 2).expect("posted");
    }

    /// Waits alone for a completion.
    fn next(&mut self) -> Completion {
        let since = Instant::now();
        loop {
            if let Some(done) = self.calls().next_completion() {
                return done;
            }
            assert!(since.elapsed() < BOUND, "no completion");
            self.bundle.wait(Some(Duration::from_millis(10)));
        }
    }

    /// Waits for an operation that is done.
    fn done(&mut self) -> Completion {
        let done = self.next();
        assert_eq!(done.outcome, Outcome::Done);
        done
    }

    /// Waits for an operation that fails.
    fn failed(&mut self) -> (Reason, Certainty) {
        match self.next().outcome {
            Outcome::Failed { reason, certainty } => (reason, certainty),
            other => panic!("not failed: {other:?}"),
        }
    }
}

fn at(at: u64) -> Place {
    Place::new(KEY, at)
}

/// Has a region of 4 MiB under [`KEY`], and reports on request.
fn owner(orders: Orders) {
    let mut side = Side::new();
    let (region, window) = side.allocate(4 << 20, KEY.0);
    tell(side.address());
    let here = side.here;
    orders.serve(&mut side.bundle, |bundle, line| match line {
        "sum" => {
            let mut all = vec![0; window.len()];
            assert!(window.read(0, &mut all));
            tell(all.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
        "notice" => {
            let mut memory = bundle.memory(here).expect("ours");
            tell(format!("{:?}", memory.next_notice().map(|notice| (notice.at, notice.len, notice.value))));
        }
        "revoke" => tell(bundle.memory(here).expect("ours").revoke(region)),
        _ => panic!("what is {line}?"),
    });
}

/// Has such a region in a serviced bundle, and never polls.
fn sleeper(orders: Orders) {
    let bundle = weft::SharedBundle::serviced(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(9), Settings::default()).expect("endpoint");
    bundle.with_memory(here, |m| m.allocate(4 << 20, KEY, Rights::ALL)).expect("ours").expect("memory");
    tell(Address { name: bundle.name(here).expect("ours"), key: Key(9) });
    assert_eq!(orders.wait(), None);
}

/// Adds one to the first word of the region under [`KEY`], as often as it is told.
fn counter(orders: Orders) {
    let mut side = Side::to(Address::parse(&orders.wait().expect("an address")));
    let times: u64 = orders.wait().expect("a number").parse().expect("a number");
    let change = Change { place: at(0), atomic: Atomic::Add, of: Type::U64 };
    for time in 0..times {
        let fetch = match time % 2 {
            0 => Fetch::default(),
            _ => Fetch { old: Some(vec![0; 8].into()), ..Fetch::default() },
        };
        side.calls().try_change(0, change, &1u64.to_le_bytes(), fetch, 0).expect("posted");
        side.done();
    }
    tell("done");
}

fn every_size_is_written_and_read_back(role: &'static str) {
    let peer = Peer::start(role, &[]);
    let mut side = Side::to(peer.address());
    for (number, len) in SIZES.into_iter().enumerate() {
        let bytes = contents(number as u32, 0, len).1;
        let place = at(number as u64 * 13);
        side.write(place, bytes.clone());
        side.read(place, len);
        let mut ends = [side.done(), side.done()];
        ends.sort_by_key(|end| end.context);
        let [written, read] = ends;
        assert_eq!((written.context, written.source.as_ref()), (1, Some(&bytes)), "{len}: the source comes back");
        assert!(read.context == 2 && read.target == Some(bytes), "{len} bytes are read as they were written");
        assert_eq!(side.calls().pending(0), 0);
    }
    // All posted at once, one after the other.
    let all: Vec<Vec<u8>> = (0..20).map(|n| contents(100 + n, 0, 150_000 + n as usize).1).collect();
    for (number, bytes) in all.iter().enumerate() {
        side.write(at(number as u64 * 200_000), bytes.clone());
    }
    for (number, bytes) in all.iter().enumerate() {
        side.read(at(number as u64 * 200_000), bytes.len());
    }
    let ends: Vec<Completion> = (0..2 * all.len()).map(|_| side.done()).collect();
    let read: Vec<Vec<u8>> = ends.into_iter().filter_map(|end| end.target).collect();
    assert!(read == all, "in the order in which they were posted");
    peer.finish();
}

#[test]
fn every_size_crosses_by_memory() {
    let _turn = turn("remote memory by memory");
    every_size_is_written_and_read_back("owner");
}

#[test]
fn every_size_crosses_between_hosts() {
    let Some(_turn) = over_udp("every_size_crosses_between_hosts") else { return };
    every_size_is_written_and_read_back("owner");
}

#[test]
fn every_size_crosses_to_a_process_that_never_polls() {
    let _turn = turn("a process that never polls");
    every_size_is_written_and_read_back("sleeper");
}

#[test]
fn every_size_crosses_between_hosts_to_a_process_that_never_polls() {
    let Some(_turn) = over_udp("every_size_crosses_between_hosts_to_a_process_that_never_polls") else { return };
    every_size_is_written_and_read_back("sleeper");
}

#[test]
fn without_its_thread_a_serviced_bundle_does_nothing_by_itself() {
    let _turn = turn("no service");
    let peer = Peer::start_with("sleeper", &[], &[("WEFT_SERVICE", std::ffi::OsStr::new("off"))]);
    let mut side = Side::to(peer.address());
    side.write(at(0), vec![1; 8]);
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        side.bundle.wait(Some(Duration::from_millis(10)));
        assert!(side.calls().next_completion().is_none(), "nobody was there to take it");
    }
    peer.finish();
}

#[test]
fn what_an_owner_of_another_process_says_fits_what_was_written() {
    let _turn = turn("an owner of another process");
    let mut peer = Peer::start("owner", &[]);
    let mut side = Side::to(peer.address());
    side.calls().try_write(0, Write::to(at(5)).with_notice(77), vec![3; 100_000], 0).expect("posted");
    side.done();
    for (ask, answer) in
        [("sum", "300000"), ("notice", "Some((5, 100000, 77))"), ("notice", "None"), ("revoke", "true")]
    {
        peer.say(ask);
        assert_eq!(peer.hear(), answer, "{ask}");
    }
    side.write(at(5), vec![4; 100_000]);
    assert_eq!(side.failed(), (Reason::Revoked, Certainty::NotDelivered));
    for (ask, answer) in [("sum", "300000"), ("revoke", "false")] {
        peer.say(ask);
        assert_eq!(peer.hear(), answer, "{ask}");
    }
    peer.finish();
}

/// Two sides of one thread, of which the second owns a region of 64 KiB under [`KEY`].
fn pair(settings: Settings) -> (Side, Side, RegionId, Window) {
    let (mut a, mut b) = (Side::new(), Side::with(settings));
    let (region, window) = b.allocate(64 << 10, KEY.0);
    let there = b.address();
    a.bundle.map(a.here, 0, there.name, there.key).expect("map");
    (a, b, region, window)
}

/// Polls both until `is_done`.
fn together(a: &mut Side, b: &mut Side, what: &str, mut is_done: impl FnMut(&mut Side, &mut Side) -> bool) {
    let since = Instant::now();
    while !is_done(a, b) {
        assert!(since.elapsed() < BOUND, "waited in vain for {what}");
        a.bundle.poll();
        b.bundle.poll();
    }
}

/// The next completion of the first side, while both poll.
fn end_of(a: &mut Side, b: &mut Side) -> Completion {
    let mut end = None;
    together(a, b, "a completion", |a, _| {
        end = a.calls().next_completion();
        end.is_some()
    });
    end.expect("it was waited for")
}

fn bytes_of(window: &Window) -> Vec<u8> {
    let mut all = vec![0; window.len()];
    assert!(window.read(0, &mut all));
    all
}

#[test]
fn what_is_not_allowed_is_refused_with_its_reason_and_changes_nothing() {
    let _turn = turn("refusals");
    let (mut a, mut b, region, window) = pair(Settings::default());
    b.calls().open(window.clone(), RegionKey(8), Rights::READ).expect("a second view");
    let cookie = b.calls().cookie(region, Part { at: 100, len: 8 }, Rights::WRITE).expect("a cookie");
    let forged = {
        let mut bytes = cookie.to_bytes();
        bytes[19] ^= 1;
        Cookie::from_bytes(bytes)
    };
    let most = 64u64 << 10;
    let word = |place| Change { place, atomic: Atomic::Add, of: Type::U64 };
    let rows = [
        (Place::new(RegionKey(99), 0), Reason::NoRegion, [true; 3]),
        (Place::new(forged, 0), Reason::NoRegion, [true; 3]),
        (at(most - 7), Reason::OutsideRegion, [true; 3]),
        (at(most + 1), Reason::OutsideRegion, [true; 3]),
        (at(u64::MAX), Reason::OutsideRegion, [true; 3]),
        (at(u64::MAX - 7), Reason::OutsideRegion, [true; 3]),
        (Place::new(cookie, 1), Reason::OutsideRegion, [true, false, false]),
        (Place::new(cookie, 0), Reason::NoRight, [false, true, true]),
        (Place::new(RegionKey(8), 0), Reason::NoRight, [true, false, true]),
        (at(4), Reason::Unaligned, [false, false, true]),
    ];
    for (place, expected, [writes, reads, changes]) in rows {
        let expected = Outcome::Failed { reason: expected, certainty: Certainty::NotDelivered };
        if writes {
            a.write(place, vec![1; 8]);
            let end = end_of(&mut a, &mut b);
            assert_eq!((end.outcome, end.source), (expected, Some(vec![1; 8])), "write at {}", place.at);
        }
        if reads {
            a.read(place, 8);
            let end = end_of(&mut a, &mut b);
            assert_eq!((end.outcome, end.target), (expected, Some(vec![0; 8])), "read at {}", place.at);
        }
        for old in [None, Some(vec![0; 8].into())].into_iter().filter(|_| changes) {
            let fetch = Fetch { old, ..Fetch::default() };
            a.calls().try_change(0, word(place), &[1; 8], fetch, 3).expect("posted");
            assert_eq!(end_of(&mut a, &mut b).outcome, expected, "atomic at {}", place.at);
        }
    }
    // Three long writes: the last byte is outside, only the beginning is inside, and the range wraps around.
    for place in [at(0), at(most - 1), at(u64::MAX - 1000)] {
        a.write(place, vec![1; (64 << 10) + 1]);
        let expected = Outcome::Failed { reason: Reason::OutsideRegion, certainty: Certainty::NotDelivered };
        assert_eq!(end_of(&mut a, &mut b).outcome, expected);
    }
    assert!(bytes_of(&window).iter().all(|byte| *byte == 0), "nothing was changed");
    assert!(b.calls().counters().refused > 20 && b.calls().counters().writes == 0);
    // Allowed accesses still work.
    a.write(Place::new(cookie, 0), vec![7; 8]);
    assert_eq!(end_of(&mut a, &mut b).outcome, Outcome::Done);
    assert_eq!(bytes_of(&window)[99..109], [0, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
}

#[test]
fn a_region_is_reached_by_its_handle_and_by_addresses() {
    let _turn = turn("handles");
    let (mut a, mut b, region, window) = pair(Settings::default());
    let base = window.as_ptr().addr() as u64;
    let handle = b.calls().handle(region, base).expect("it is open");
    a.write(Place::new(handle, base + 100), vec![3; 40_000]);
    assert_eq!(end_of(&mut a, &mut b).outcome, Outcome::Done);
    a.read(Place::new(handle, base + 99), 3);
    assert_eq!(end_of(&mut a, &mut b).target, Some(vec![0, 3, 3]));
    let add = Change { place: Place::new(handle, base), atomic: Atomic::Add, of: Type::U64 };
    a.calls().try_change(0, add, &[1; 8], Fetch::default(), 0).expect("posted");
    assert_eq!(end_of(&mut a, &mut b).outcome, Outcome::Done);
    assert_eq!(bytes_of(&window)[..8], [1; 8]);
    let guessed = RegionHandle(handle.0 + 1);
    let rows = [(handle, base - 1, Reason::OutsideRegion), (guessed, base, Reason::NoRegion)];
    for (handle, at, reason) in rows {
        a.write(Place::new(handle, at), vec![1; 8]);
        let expected = Outcome::Failed { reason, certainty: Certainty::NotDelivered };
        assert_eq!(end_of(&mut a, &mut b).outcome, expected);
    }
    b.calls().revoke(region);
    a.write(Place::new(handle, base), vec![1; 8]);
    let expected = Outcome::Failed { reason: Reason::Revoked, certainty: Certainty::NotDelivered };
    assert_eq!(end_of(&mut a, &mut b).outcome, expected);
}

#[test]
fn invalid_calls_fail_at_once() {
    let _turn = turn("calls that cannot be");
    let (mut a, mut b, region, _) = pair(Settings { regions_most: 2, cookies_most: 1, ..Settings::default() });
    assert_eq!(a.calls().try_write(1, Write::to(at(0)), vec![1], 0).unwrap_err().0, PostError::NotMapped(1));
    assert_eq!(a.calls().try_read(1, at(0), vec![1], 0).unwrap_err().0, PostError::NotMapped(1));
    let change = |atomic, of| Change { place: at(0), atomic, of };
    let rows = [
        (change(Atomic::Xor, Type::F64), 8, 0, None),
        (change(Atomic::Add, Type::U64), 7, 0, None),
        (change(Atomic::Add, Type::U64), 0, 0, None),
        (change(Atomic::CompareSwap, Type::U64), 8, 0, None),
        (change(Atomic::Add, Type::U64), 8, 8, None),
        (change(Atomic::Add, Type::U64), 8, 0, Some(16)),
    ];
    for (change, operands, second, old) in rows {
        let fetch = Fetch { second: &vec![0; second], old: old.map(|len| vec![0; len].into()) };
        assert_eq!(a.calls().try_change(0, change, &vec![0; operands], fetch, 0), Err(PostError::NoSuchAtomic));
    }
    let again = b.calls().allocate(8, KEY, Rights::ALL).map(|_| ()).unwrap_err();
    assert!(again.to_string().contains("choose another key"), "{again}");
    b.allocate(8, 100);
    let third = b.calls().open(Window::create(8).expect("memory"), RegionKey(101), Rights::ALL);
    assert_eq!(third, Err(RegionError::TooMany));
    b.calls().cookie(region, Part { at: 0, len: 8 }, Rights::ALL).expect("one");
    assert!(b.calls().cookie(region, Part { at: 0, len: 8 }, Rights::ALL).is_err());
    let (here, service) = (b.here, Service::default());
    assert!(matches!(b.bundle.set_service(here, service), Err(weft::Error::Send(SendError::OtherClient))));
    b.bundle.free(here).expect("ours");
    assert!(b.bundle.memory(here).is_err());
}

#[test]
fn notices_say_what_was_written_and_are_bounded() {
    let _turn = turn("notices");
    let (mut a, mut b, region, window) = pair(Settings { notices_most: 3, ..Settings::default() });
    for (number, len) in [(0u64, 8usize), (1, 40_000), (2, 0)] {
        let write = Write::to(at(number)).with_notice(number + 10);
        a.calls().try_write(0, write, vec![5; len], 0).expect("posted");
        assert_eq!(end_of(&mut a, &mut b).outcome, Outcome::Done);
    }
    // The program takes none, so there is no room for more.
    for len in [8, 40_000] {
        a.calls().try_write(0, Write::to(at(0)).with_notice(1), vec![6; len], 0).expect("posted");
        let expected = Outcome::Failed { reason: Reason::QueueFull, certainty: Certainty::NotDelivered };
        assert_eq!(end_of(&mut a, &mut b).outcome, expected);
    }
    assert!(bytes_of(&window).iter().all(|byte| *byte != 6), "what cannot be told is not written");
    let notices: Vec<Notice> = std::iter::from_fn(|| b.calls().next_notice()).collect();
    let expected = [(0, 8, 10), (1, 40_000, 11), (2, 0, 12)];
    assert_eq!(notices, expected.map(|(at, len, value)| Notice { region, at, len, value }));
    a.calls().try_write(0, Write::to(at(0)).with_notice(1), vec![6; 40_000], 0).expect("posted");
    assert_eq!(end_of(&mut a, &mut b).outcome, Outcome::Done);
    assert_eq!(b.calls().next_notice().map(|notice| notice.value), Some(1));
}

#[test]
fn a_write_ends_twice_if_that_is_asked_for() {
    let _turn = turn("twice");
    let (mut a, mut b, _, _) = pair(Settings::default());
    a.calls().try_write(0, Write::to(at(0)).telling_when_free(), vec![1; 50_000], 4).expect("posted");
    let free = end_of(&mut a, &mut b);
    assert_eq!((free.context, free.outcome, free.source), (4, Outcome::Free, Some(vec![1; 50_000])));
    let done = end_of(&mut a, &mut b);
    assert_eq!((done.context, done.outcome, done.source), (4, Outcome::Done, None));
}

#[test]
fn atomic_operations_change_each_word_and_give_the_old_values() {
    let _turn = turn("atomics");
    for is_direct in [false, true] {
        atomic_operations(is_direct);
    }
}

fn atomic_operations(is_direct: bool) {
    let (mut a, mut b, _, window) = pair(Settings { is_direct, ..Settings::default() });
    let words = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    a.write(at(8), words(&[10, 20, 30]));
    end_of(&mut a, &mut b);
    let mut change = |atomic, operands: &[u64], second: &[u64]| {
        let change = Change { place: at(8), atomic, of: Type::U64 };
        let fetch = Fetch { second: &words(second), old: Some(vec![0; operands.len() * 8].into()) };
        a.calls().try_change(0, change, &words(operands), fetch, 0).expect("posted");
        let end = end_of(&mut a, &mut b);
        assert_eq!(end.outcome, Outcome::Done);
        let old = end.target.expect("the old values");
        old.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect::<Vec<u64>>()
    };
    assert_eq!(change(Atomic::Add, &[1, 2, 3], &[]), [10, 20, 30]);
    assert_eq!(change(Atomic::CompareSwap, &[100, 200, 300], &[11, 0, 33]), [11, 22, 33]);
    assert_eq!(change(Atomic::MaskedSwap, &[0xff, 0xff, 0xff], &[0x0f, 0xf0, 0]), [100, 22, 300]);
    assert_eq!(change(Atomic::Read, &[0, 0, 0], &[]), [0x6f, 0xf6, 300]);
    assert_eq!(change(Atomic::Write, &[1, 1, 1], &[]), [0x6f, 0xf6, 300]);
    assert_eq!(bytes_of(&window)[..40], words(&[0, 1, 1, 1, 0]));
    // More words than fit into one piece.
    let many = 5000;
    let change = Change { place: at(0), atomic: Atomic::Add, of: Type::U64 };
    for old in [None, Some(vec![0; many * 8].into())] {
        let fetch = Fetch { old, ..Fetch::default() };
        a.calls().try_change(0, change, &words(&vec![7; many]), fetch, 0).expect("posted");
        assert_eq!(end_of(&mut a, &mut b).outcome, Outcome::Done);
    }
    assert_eq!(bytes_of(&window)[many * 8 - 8..many * 8 + 8], words(&[14, 0]));
    let executed = b.calls().counters().atomics;
    match is_direct && may_read_memory() {
        false => assert_eq!(executed, 15 + 2 * many as u64),
        true => assert!(executed < 15 && a.calls().counters().direct > 2, "{executed} were not direct"),
    }
}

#[test]
fn every_atomic_operation_there_is_does_to_words_of_every_type_what_it_says() {
    let _turn = turn("atomics");
    for is_direct in [false, true] {
        every_atomic_operation(is_direct);
    }
}

fn every_atomic_operation(is_direct: bool) {
    let mut dice = Dice::fresh("atomics");
    let (mut a, mut b, _, window) = pair(Settings { is_direct, ..Settings::default() });
    for (of, atomic) in Type::ALL.into_iter().flat_map(|of| Atomic::ALL.map(|atomic| (of, atomic))) {
        let bytes = of.bytes();
        let words = 1 + dice.below(5) as usize;
        // Small numbers, so that many are equal.
        let mut some = || -> Vec<u8> {
            let some = (0..words).map(|_| dice.below(4).wrapping_sub(1));
            let as_float = |word: u64| word as i64 as f64;
            some.flat_map(|word| match of {
                Type::F32 => (as_float(word) as f32).to_bits().to_le_bytes().to_vec(),
                Type::F64 => as_float(word).to_bits().to_le_bytes().to_vec(),
                _ => word.to_le_bytes()[..bytes].to_vec(),
            })
            .collect()
        };
        let (before, operands, second) = (some(), some(), if atomic.has_second() { some() } else { Vec::new() });
        assert!(window.write(8, &[0; 48]) && window.write(8, &before));
        let change = Change { place: at(8), atomic, of };
        let fetch = Fetch { second: &second, old: Some(vec![0; operands.len()].into()) };
        let posted = a.calls().try_change(0, change, &operands, fetch, 0);
        assert_eq!(posted.is_ok(), atomic.is_for(of), "{atomic:?} {of:?}");
        if posted.is_err() {
            continue;
        }
        assert_eq!(&end_of(&mut a, &mut b).target.expect("old values")[..], before, "{atomic:?} {of:?}");
        let word = |all: &[u8], n: usize| {
            all.chunks_exact(bytes)
                .nth(n)
                .map_or(0, |word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
        };
        let expected: Vec<u8> = (0..words)
            .flat_map(|n| {
                let old = word(&before, n);
                let new = atomic.apply(of, old, word(&operands, n), word(&second, n)).unwrap_or(old);
                new.to_le_bytes()[..bytes].to_vec()
            })
            .collect();
        assert_eq!(bytes_of(&window)[8..8 + expected.len()], expected, "{atomic:?} {of:?}");
        assert!(bytes_of(&window)[8 + expected.len()..64].iter().all(|byte| *byte == 0), "{atomic:?} {of:?}");
    }
    assert_eq!(a.calls().counters().direct > 100, is_direct && may_read_memory());
}

fn processes_add_without_losing_any() {
    const TIMES: u64 = 2000;
    let peer = Peer::start("owner", &[]);
    let there = peer.address();
    let mut counters = [0; 2].map(|_| Peer::start("counter", &[]));
    for counter in &mut counters {
        counter.say(&there.to_string());
        counter.say(&TIMES.to_string());
    }
    for counter in counters {
        assert_eq!(counter.hear(), "done");
        counter.finish();
    }
    let mut side = Side::to(there);
    side.read(at(0), 8);
    assert_eq!(side.done().target, Some((2 * TIMES).to_le_bytes().to_vec()));
    peer.finish();
}

#[test]
fn processes_add_to_one_word_without_losing_any() {
    let _turn = turn("adding");
    processes_add_without_losing_any();
}

#[test]
fn processes_of_several_hosts_add_to_one_word_without_losing_any() {
    let Some(_turn) = over_udp("processes_of_several_hosts_add_to_one_word_without_losing_any") else { return };
    processes_add_without_losing_any();
}

/// Writers write while regions are opened and revoked: the memory of a revoked window must never change again.
#[test]
fn nothing_is_written_behind_a_revocation() {
    let _turn = turn("revocations");
    let mut dice = Dice::fresh("revocations");
    let (mut a, mut b, first, window) = pair(Settings::default());
    b.calls().revoke(first);
    let (mut ends, mut posted, mut late) = ([0u64; 2], 0, 0);
    for _ in 0..3000 {
        let region = b.calls().open(window.clone(), KEY, Rights::ALL).expect("the key is free");
        for _ in 0..dice.below(4) {
            let len = [8, 1000, 40_000][dice.below(3) as usize];
            let place = at(dice.below(20_000));
            a.write(place, vec![dice.roll() as u8; len]);
            posted += 1;
        }
        for _ in 0..dice.below(6) {
            a.bundle.poll();
            b.bundle.poll();
        }
        assert!(b.calls().revoke(region));
        let before = bytes_of(&window);
        for _ in 0..dice.below(6) {
            a.bundle.poll();
            b.bundle.poll();
        }
        late += u64::from(bytes_of(&window) != before);
        while let Some(end) = a.calls().next_completion() {
            match end.outcome {
                Outcome::Done => ends[0] += 1,
                Outcome::Failed { reason: Reason::Revoked, .. } => ends[1] += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    together(&mut a, &mut b, "all ends", |a, _| {
        while let Some(end) = a.calls().next_completion() {
            ends[usize::from(end.outcome != Outcome::Done)] += 1;
        }
        ends[0] + ends[1] == posted
    });
    assert_eq!(late, 0, "writes landed behind a revocation");
    assert!(ends[0] > 100 && ends[1] > 100, "both were seen: {ends:?}");
    assert!(b.calls().counters().refused_revoked > 0);
}

/// A cookie is revoked in the middle of a long write under it: bytes that come later are not stored.
#[test]
fn nothing_is_written_behind_the_revocation_of_a_cookie() {
    let _turn = turn("a cookie's revocation");
    let (mut a, mut b, _, _) = pair(Settings::default());
    let (region, window) = b.allocate(4 << 20, 8);
    let len = window.len();
    let mut in_the_middle = 0;
    for polls in 0..30 {
        let cookie = b.calls().cookie(region, Part { at: 0, len: len as u64 }, Rights::WRITE).expect("a cookie");
        a.write(Place::new(cookie, 0), vec![polls as u8 + 1; len]);
        (0..polls % 10).for_each(|_| {
            a.bundle.poll();
            b.bundle.poll();
        });
        assert!(b.calls().revoke_cookie(cookie));
        let before = bytes_of(&window);
        let end = end_of(&mut a, &mut b);
        assert!(bytes_of(&window) == before, "nothing lands behind the revocation");
        if let Outcome::Failed { reason, certainty } = end.outcome {
            assert_eq!(reason, Reason::Revoked);
            in_the_middle += u32::from(certainty == Certainty::Unknown);
        }
    }
    assert!(in_the_middle > 0, "some were caught in the middle");
}

#[test]
fn what_is_under_way_to_a_killed_owner_ends() {
    let _turn = turn("a killed owner");
    let mut peer = Peer::start("owner", &[]);
    let mut side = Side::to(peer.address());
    side.write(at(0), vec![1; 8]);
    side.done();
    peer.stop();
    for number in 0..200 {
        side.write(at(number), vec![1; 100_000]);
        side.read(at(number), 100_000);
    }
    side.bundle.poll();
    peer.kill();
    for _ in 0..400 {
        let (reason, _) = side.failed();
        assert!(matches!(reason, Reason::PeerLost | Reason::NobodyThere), "{reason:?}");
    }
    assert_eq!(side.calls().pending(0), 0);
    assert!(side.calls().next_completion().is_none());
}

#[test]
fn operations_are_bounded() {
    let _turn = turn("bounded operations");
    let (mut a, mut b, _, _) = pair(Settings::default());
    let here = a.bundle.memory_endpoint(Key(3), Settings { operations_most: 10, ..Settings::default() }).expect("room");
    let there = b.address();
    a.bundle.map(here, 0, there.name, there.key).expect("map");
    let post = |a: &mut Side| a.bundle.memory(here).expect("ours").try_write(0, Write::to(at(0)), vec![1], 0);
    for _ in 0..10 {
        post(&mut a).expect("room");
    }
    assert_eq!(post(&mut a).unwrap_err().0, PostError::Full);
    let mut ended = 0;
    together(&mut a, &mut b, "all", |a, _| {
        let done = a.bundle.memory(here).expect("ours").pending(0) == 0;
        // Completions count until they are taken.
        assert!(post(a).is_err());
        done
    });
    let mut memory = a.bundle.memory(here).expect("ours");
    while memory.next_completion().is_some() {
        ended += 1;
    }
    assert_eq!(ended, 10);
    post(&mut a).expect("room again");
}

#[test]
fn an_endpoint_writes_to_itself_and_threads_share_one() {
    let _turn = turn("shared");
    let bundle = weft::SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    bundle.map(here, 0, bundle.name(here).expect("ours"), Key(1)).expect("map");
    let window = bundle.with_memory(here, |m| m.allocate(64, KEY, Rights::ALL)).expect("ours").expect("memory").1;
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let bundle = bundle.clone();
            std::thread::spawn(move || {
                for _ in 0..500 {
                    let change = Change { place: at(0), atomic: Atomic::Add, of: Type::U64 };
                    let post = |m: &mut weft::memory::Memory<'_>| {
                        m.try_change(0, change, &1u64.to_le_bytes(), Fetch::default(), 0)
                    };
                    bundle.with_memory(here, post).expect("ours").expect("posted");
                    bundle.poll().expect("no handler");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it ended"));
    let since = Instant::now();
    let mut ended = 0;
    while ended < 1500 {
        assert!(since.elapsed() < BOUND, "{ended} have ended");
        bundle.poll().expect("no handler");
        ended += bundle.with_memory(here, |m| std::iter::from_fn(|| m.next_completion()).count()).expect("ours");
    }
    assert_eq!(bytes_of(&window)[..8], 1500u64.to_le_bytes());
}
