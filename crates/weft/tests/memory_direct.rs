//! Mapped regions of neighbours: operations by loads and stores, and the ends of mappings.

mod support;

use std::time::{Duration, Instant};
use support::rights::may_read_memory;
use support::{left_out, over_udp, poll_until, tell, turn, Address, Orders, Peer, Turn, BOUND};
use weft::memory::{
    Atomic, Change, Completion, OperationError, Outcome, Part, Place, ReadList, RegionId, RegionKey, Remote,
    RemoteError, Rights, Settings, Type, Window, Write, WriteList,
};
use weft::{Bundle, Endpoint, Key, Node, Reason};

const KEY: RegionKey = RegionKey(7);
const LEN: usize = 4 << 20;

#[test]
fn child() {
    support::play(&[("owner", owner), ("adder", adder), ("writer", writer), ("filler", filler)]);
}

/// A bundle with an endpoint for remote memory.
struct Side {
    bundle: Bundle,
    here: Endpoint,
}

impl Side {
    fn new(settings: Settings) -> Side {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.memory_endpoint(Key(9), settings).expect("endpoint");
        Side { bundle, here }
    }

    fn to(there: Address, settings: Settings) -> Side {
        let mut side = Side::new(settings);
        side.bundle.map(side.here, 0, there.name, there.key).expect("map");
        side
    }

    fn calls(&mut self) -> weft::memory::Memory<'_> {
        self.bundle.memory(self.here).expect("an endpoint for remote memory")
    }

    fn own(&mut self, key: RegionKey) -> (RegionId, Window) {
        self.calls().allocate(LEN, key, Rights::ALL).expect("memory")
    }

    fn direct(&mut self) -> u64 {
        self.calls().counters().direct
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), OperationError> {
        self.bundle.write_within(BOUND, self.here, 0, Write::to(place), bytes)
    }

    fn read(&mut self, place: Place, len: usize) -> Vec<u8> {
        self.bundle.read_within(BOUND, self.here, 0, place, len).expect("it may")
    }

    fn add(&mut self, place: Place, number: u64) -> u64 {
        let add = Change { place, atomic: Atomic::Add, of: Type::U64 };
        let old = self.bundle.change_within(BOUND, self.here, 0, add, &number.to_le_bytes(), &[]).expect("it may");
        u64::from_le_bytes(old.try_into().expect("a word"))
    }

    fn mapped(&mut self, by: impl Into<weft::memory::Credential>) -> Option<Remote> {
        self.bundle.map_region_within(BOUND, self.here, 0, by).expect("it is asked")
    }

    /// Writes empty contents until the engine has mapped the region.
    fn warm_up(&mut self, place: Place) {
        let before = self.direct();
        let since = Instant::now();
        while self.direct() == before {
            assert!(since.elapsed() < BOUND, "nothing is done directly");
            self.write(place, &[]).expect("it may");
        }
    }

    /// How a write fails.
    fn refusal(&mut self, place: Place, bytes: &[u8]) -> Reason {
        match self.write(place, bytes) {
            Err(OperationError::Failed { reason, .. }) => reason,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn next(&mut self) -> Completion {
        let here = self.here;
        let mut end = None;
        poll_until(&mut self.bundle, "a completion", |bundle| {
            end = bundle.memory(here).expect("ours").next_completion();
            end.is_some()
        });
        end.expect("it came")
    }
}

fn at(at: u64) -> Place {
    Place::new(KEY, at)
}

/// Has a region under [`KEY`], and does what it is told.
fn owner(orders: Orders) {
    let mut side = Side::new(Settings::default());
    let (mut region, mut window) = side.own(KEY);
    let here = side.here;
    tell(Address::of(&side.bundle, here));
    orders.serve(&mut side.bundle, |bundle, line| {
        let mut memory = bundle.memory(here).expect("ours");
        match line {
            "sum" => {
                let mut all = vec![0; window.len()];
                assert!(window.read(0, &mut all));
                tell(all.iter().map(|byte| u64::from(*byte)).sum::<u64>());
            }
            "add" => tell(window.update(0, 8, |old| Some(old + 1)).expect("a word")),
            "executed" => {
                let counters = memory.counters();
                tell(counters.writes + counters.reads + counters.atomics);
            }
            "notice" => tell(memory.next_notice().map_or(0, |notice| notice.value)),
            "revoke" => tell(memory.revoke(region)),
            "open" => {
                (region, window) = memory.allocate(LEN, KEY, Rights::ALL).expect("memory");
                tell("open");
            }
            // Revokes the region while a peer writes. Reports whether a byte changed after that, and opens the region again.
            "race" => {
                assert!(memory.revoke(region));
                let word = |window: &Window| {
                    let mut word = [0; 8];
                    assert!(window.read(8, &mut word));
                    u64::from_le_bytes(word)
                };
                let (seen, since) = (word(&window), Instant::now());
                while since.elapsed() < Duration::from_micros(300) {
                    std::hint::spin_loop();
                }
                tell(word(&window) - seen);
                (region, window) = memory.allocate(LEN, KEY, Rights::ALL).expect("memory");
            }
            _ => panic!("what is {line}?"),
        }
    });
}

/// Adds one to the first word, as often and in the way that it is told.
fn adder(orders: Orders) {
    let there = Address::parse(&orders.wait().expect("an address"));
    let is_direct = orders.wait().expect("a way") == "direct";
    let times: u64 = orders.wait().expect("a number").parse().expect("a number");
    let mut side = Side::to(there, Settings { is_direct, ..Settings::default() });
    for _ in 0..times {
        side.add(at(0), 1);
    }
    assert_eq!(side.direct() > times / 2, is_direct);
    tell("done");
}

/// Writes numbers to the second word without a pause, and maps the region again when it was revoked.
fn writer(orders: Orders) {
    let there = Address::parse(&orders.wait().expect("an address"));
    let mut side = Side::to(there, Settings::default());
    let mut number = 0u64;
    loop {
        let remote = side.bundle.map_region_within(BOUND, side.here, 0, KEY);
        if let Ok(Some(remote)) = remote {
            while remote.write(8, &number.to_le_bytes()).is_ok() {
                number += 1;
            }
            tell("mapped");
        }
        if matches!(orders.look(), support::Order::End) {
            return;
        }
    }
}

/// Writes all of the region again and again, until it is killed.
fn filler(orders: Orders) {
    let mut side = Side::to(Address::parse(&orders.wait().expect("an address")), Settings::default());
    let remote = side.mapped(KEY).expect("a neighbour");
    let bytes = vec![1; LEN];
    for round in 0u64.. {
        if remote.write(0, &bytes).is_err() {
            return;
        }
        if round == 0 {
            tell("writing");
        }
    }
}

/// An owner as another process, and a side that is mapped to it.
fn with_owner() -> (Peer, Side) {
    let peer = Peer::start("owner", &[]);
    let side = Side::to(peer.address(), Settings::default());
    (peer, side)
}

/// Two sides of one thread, of which the second owns a region under [`KEY`].
fn pair() -> (Side, Side, RegionId, Window) {
    let mut b = Side::new(Settings::default());
    let (region, window) = b.own(KEY);
    let a = Side::to(Address::of(&b.bundle, b.here), Settings::default());
    (a, b, region, window)
}

/// A turn, where neighbours map each other's regions.
fn mapping(what: &str) -> Option<Turn> {
    if !may_read_memory() {
        left_out(&format!("{what}: nobody's memory can be read here, so nobody is trusted with a mapping"));
        return None;
    }
    Some(turn(what))
}

#[test]
fn a_region_is_mapped_where_neighbours_may_read_memory() {
    let _turn = turn("who maps");
    let (mut a, mut b, _, window) = pair();
    assert_eq!(mapped(&mut a, &mut b, KEY).is_some(), may_read_memory());
    // Writes work with or without a mapping.
    a.calls().try_write(0, Write::to(at(8)), vec![7; 8], 1).expect("room");
    let since = Instant::now();
    let end = loop {
        a.bundle.poll();
        b.bundle.poll();
        if let Some(end) = a.calls().next_completion() {
            break end;
        }
        assert!(since.elapsed() < BOUND, "a write does not end");
    };
    assert_eq!((end.context, end.outcome), (1, Outcome::Done));
    let mut seen = [0; 8];
    assert!(window.read(8, &mut seen) && seen == [7; 8]);
}

#[test]
fn a_stopped_owner_is_written_read_and_changed() {
    let Some(_turn) = mapping("a stopped owner") else { return };
    let (mut peer, mut side) = with_owner();
    side.warm_up(at(0));
    let executed: u64 = peer.ask("executed").parse().expect("a number");
    peer.stop();
    let before = side.direct();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|n| (n % 251) as u8).collect();
    side.write(at(1000), &bytes).expect("no code runs there");
    assert!(side.read(at(1000), bytes.len()) == bytes);
    assert_eq!((side.add(at(8), 5), side.add(at(8), 6)), (0, 5));
    // Lists, with buffers of the program's own.
    let parts = [Part { at: 16, len: 3 }, Part { at: 32, len: 5 }];
    let sources = vec![vec![1; 4].into(), vec![2; 4].into()];
    side.calls().try_write_list(0, WriteList::to(KEY, &parts), sources, 1).expect("posted");
    side.calls().try_read_list(0, ReadList::from(KEY, &parts), vec![vec![0; 8].into()], 2).expect("posted");
    let (written, read) = (side.next(), side.next());
    assert_eq!((written.outcome, read.outcome), (Outcome::Done, Outcome::Done));
    assert_eq!(read.buffers.expect("buffers").targets, [[1, 1, 1, 1, 2, 2, 2, 2]]);
    // A wait ends for an operation that was done at once.
    side.calls().try_flush(0, 3).expect("posted");
    let since = Instant::now();
    side.bundle.wait(None);
    assert!(since.elapsed() < BOUND && side.next().context == 3);
    assert!(side.direct() >= before + 4 + 5, "a list is as many operations as it has runs");
    peer.go_on();
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>() + 11 + 4 + 8;
    assert_eq!(peer.ask("sum"), sum.to_string());
    assert_eq!(peer.ask("executed"), executed.to_string(), "the owner carried nothing out");
    peer.finish();
}

#[test]
fn what_is_revoked_is_refused_and_what_is_opened_again_is_mapped_again() {
    let Some(_turn) = mapping("mapped and revoked") else { return };
    let (mut peer, mut side) = with_owner();
    for round in 0..3 {
        side.warm_up(at(0));
        let remote = side.mapped(KEY).expect("a neighbour");
        assert_eq!((remote.write(8, &[1; 8]), remote.len(), remote.rights()), (Ok(()), LEN, Rights::ALL));
        assert_eq!(peer.ask("sum"), "8", "round {round}");
        assert_eq!(peer.ask("revoke"), "true");
        assert_eq!((remote.write(8, &[2; 8]), remote.is_open()), (Err(RemoteError::Withdrawn), false));
        assert_eq!(side.refusal(at(16), &[2; 8]), Reason::Revoked);
        assert_eq!(peer.ask("sum"), "8", "nothing landed");
        peer.ask("open");
    }
    peer.finish();
}

#[test]
fn a_message_is_behind_what_was_stored_before_it() {
    let Some(_turn) = mapping("stores and messages") else { return };
    let (mut peer, mut side) = with_owner();
    side.warm_up(at(0));
    for round in 1..=50u64 {
        side.write(at(0), &round.to_le_bytes()).expect("it may");
        // A write with a notice is a message, and what follows it waits for it.
        side.calls().try_write(0, Write::to(at(8)).with_notice(round), vec![1; 8], 1).expect("posted");
        side.calls().try_write(0, Write::to(at(16)), vec![2; 8], 2).expect("posted");
        assert_eq!((side.next().outcome, side.next().outcome), (Outcome::Done, Outcome::Done));
        assert_eq!(peer.ask("notice"), round.to_string());
        assert_eq!(peer.ask("sum"), (round + 8 + 16).to_string());
    }
    peer.finish();
}

#[test]
fn direct_executed_and_own_atomics_agree() {
    let Some(_turn) = mapping("atomics of three kinds") else { return };
    const TIMES: u64 = 2000;
    let mut owner = Peer::start("owner", &[]);
    let address = owner.address();
    let adders = ["direct", "executed", "direct"].map(|way| {
        let mut adder = Peer::start("adder", &[]);
        adder.say(&address.to_string());
        adder.say(way);
        adder.say(&TIMES.to_string());
        adder
    });
    let mut own = 0;
    for adder in &adders {
        let since = Instant::now();
        while adder.overhear().is_none() {
            assert!(since.elapsed() < BOUND, "an adder hangs");
            owner.ask("add");
            own += 1;
        }
    }
    let sum: u64 = owner.ask("add").parse().expect("a number");
    assert_eq!(sum, 3 * TIMES + own);
    adders.into_iter().for_each(Peer::finish);
    owner.finish();
}

#[test]
fn nothing_lands_after_a_revocation_while_another_process_writes() {
    let Some(_turn) = mapping("revocations and a writer") else { return };
    let mut owner = Peer::start("owner", &[]);
    let mut writer = Peer::start("writer", &[]);
    writer.say(&owner.address().to_string());
    let mut mapped = 0;
    for _ in 0..1000 {
        assert_eq!(owner.ask("race"), "0", "a late write");
        mapped += usize::from(writer.overhear().is_some());
    }
    assert!(mapped > 100, "it had the region mapped {mapped} times");
    owner.finish();
    writer.finish();
}

#[test]
fn a_writer_that_is_killed_in_an_access_holds_up_no_revocation() {
    let Some(_turn) = mapping("killed writers") else { return };
    let mut owner = Peer::start("owner", &[]);
    let address = owner.address();
    for round in 0..20 {
        let mut filler = Peer::start("filler", &[]);
        filler.say(&address.to_string());
        assert_eq!(filler.hear(), "writing");
        std::thread::sleep(Duration::from_micros(100 * round));
        filler.kill();
        let since = Instant::now();
        assert_eq!(owner.ask("race"), "0", "a late write");
        assert!(since.elapsed() < BOUND / 10, "the owner was held up for {:?}", since.elapsed());
    }
    owner.finish();
}

#[test]
fn a_mapping_has_the_part_and_the_rights_of_its_credential() {
    let Some(_turn) = mapping("mapped parts") else { return };
    let (peer, mut side) = with_owner();
    side.warm_up(at(0));
    // Outside of the region: the owner refuses it, as it refuses messages.
    let before = side.direct();
    assert_eq!(side.refusal(at(LEN as u64 - 7), &[1; 8]), Reason::OutsideRegion);
    assert_eq!(side.refusal(at(u64::MAX), &[1; 8]), Reason::OutsideRegion);
    assert_eq!(side.direct(), before);
    let remote = side.mapped(KEY).expect("a neighbour");
    assert_eq!(remote.write(LEN as u64, &[1]), Err(RemoteError::Outside));
    assert_eq!(remote.change(4, (Atomic::Add, Type::U64), 1, 0), Err(RemoteError::Outside));
    assert_eq!(remote.change(0, (Atomic::Xor, Type::F64), 1, 0), Err(RemoteError::Outside));
    assert_eq!(remote.change(8, (Atomic::Add, Type::U64), 3, 0), Ok(0));
    assert_eq!(remote.change(8, (Atomic::CompareSwap, Type::U64), 9, 3), Ok(3));
    let mut word = [0; 8];
    assert_eq!((remote.read(8, &mut word), word), (Ok(()), 9u64.to_le_bytes()));
    peer.finish();
}

#[test]
fn cookies_and_handles_are_mapped_as_they_say() {
    let Some(_turn) = mapping("mapped cookies") else { return };
    let (mut a, mut b, region, window) = pair();
    let cookie = b.calls().cookie(region, Part { at: 100, len: 50 }, Rights::WRITE).expect("a cookie");
    let timed = b.calls().cookie(region, Part { at: 0, len: 50 }, Rights::ALL).expect("a cookie");
    assert!(b.calls().revoke_cookie_after(timed, Duration::from_secs(3600)));
    let handle = b.calls().handle(region, 1 << 40).expect("a handle");
    let lent = Window::leaked(vec![0; 100].into());
    b.calls().open(lent, RegionKey(8), Rights::ALL).expect("room");
    let narrow = mapped(&mut a, &mut b, cookie).expect("a neighbour");
    assert_eq!((narrow.len(), narrow.rights()), (50, Rights::WRITE));
    assert_eq!(narrow.write(1, b"x"), Ok(()));
    assert_eq!(narrow.read(1, &mut [0]), Err(RemoteError::NoRight));
    assert_eq!(narrow.change(4, (Atomic::Add, Type::U64), 1, 0), Err(RemoteError::NoRight));
    let mut seen = [0; 2];
    assert!(window.read(100, &mut seen) && &seen == b"\0x");
    let whole = mapped(&mut a, &mut b, handle).expect("a neighbour");
    assert_eq!((whole.len(), whole.write(101, b"y")), (LEN, Ok(())));
    assert!(mapped(&mut a, &mut b, timed).is_none(), "what ends in time is carried out by its owner");
    assert!(mapped(&mut a, &mut b, RegionKey(8)).is_none(), "it is lent");
    // Revoking one cookie ends only its own mapping.
    assert!(b.calls().revoke_cookie(cookie));
    assert_eq!((narrow.is_open(), whole.is_open()), (false, true));
    // An expiry that is set later ends the mapping.
    assert!(b.calls().revoke_after(region, Duration::from_secs(3600)));
    assert!(!whole.is_open() && mapped(&mut a, &mut b, KEY).is_none());
    // Freeing the endpoint ends all its mappings.
    assert!(b.calls().revoke_after(region, Duration::MAX));
    let last = mapped(&mut a, &mut b, KEY).expect("a neighbour");
    b.bundle.free(b.here).expect("ours");
    assert!(!last.is_open());
}

/// Maps a region for the first side, while both poll.
fn mapped(a: &mut Side, b: &mut Side, by: impl Into<weft::memory::Credential>) -> Option<Remote> {
    a.calls().try_map_region(0, by, 5).expect("posted");
    let since = Instant::now();
    loop {
        a.bundle.poll();
        b.bundle.poll();
        if let Some(end) = a.calls().next_completion() {
            assert_eq!((end.context, end.outcome), (5, Outcome::Done));
            return end.remote;
        }
        assert!(since.elapsed() < BOUND, "nobody answers");
    }
}

#[test]
fn mappings_end_with_their_owner_and_with_their_initiator() {
    let Some(_turn) = mapping("ends of mappings") else { return };
    let (mut peer, mut side) = with_owner();
    side.warm_up(at(0));
    let remote = side.mapped(KEY).expect("a neighbour");
    peer.kill();
    let since = Instant::now();
    while remote.is_open() {
        assert!(since.elapsed() < BOUND, "nobody noticed the death");
        side.bundle.poll();
    }
    assert_eq!(remote.write(0, &[1]), Err(RemoteError::Withdrawn));
    assert!(side.write(at(0), &[1]).is_err());
    // If the initiator goes, its place is free again.
    let (mut a, mut b, _, window) = pair();
    let mut all: Vec<Remote> = (0..255).map(|_| mapped(&mut a, &mut b, KEY).expect("a place")).collect();
    assert_eq!(window.offers(), 255);
    assert!(mapped(&mut a, &mut b, KEY).is_none(), "there are no more places");
    all.truncate(100);
    assert!(mapped(&mut a, &mut b, KEY).is_some(), "there are some again");
    drop(a);
    assert!(all.iter().all(|remote| !remote.is_open()));
    let since = Instant::now();
    while window.offers() > 0 {
        assert!(since.elapsed() < BOUND, "nobody noticed the end");
        b.bundle.poll();
    }
    let mut c = Side::to(Address::of(&b.bundle, b.here), Settings::default());
    assert!(mapped(&mut c, &mut b, KEY).is_some());
}

/// A program whose calls all end at once need not poll besides.
#[test]
fn calls_that_end_at_once_notice_that_the_owner_is_gone() {
    let Some(_turn) = mapping("calls beside a death") else { return };
    let (mut peer, mut side) = with_owner();
    side.warm_up(at(0));
    peer.kill();
    let since = Instant::now();
    let why = loop {
        match side.write(at(0), &[1]) {
            Ok(()) => assert!(since.elapsed() < BOUND, "nobody noticed the death"),
            Err(why) => break why,
        }
    };
    assert!(matches!(why, OperationError::Failed { reason: Reason::PeerLost | Reason::NobodyThere, .. }), "{why}");
    let shared = weft::SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let here = shared.memory_endpoint(Key(9), Settings::default()).expect("endpoint");
    let mut peer = Peer::start("owner", &[]);
    let there = peer.address();
    shared.map(here, 0, there.name, there.key).expect("map");
    let write = || shared.write_within(BOUND, here, 0, Write::to(at(0)), [1]);
    while shared.with_memory(here, |memory| memory.counters().direct).expect("ours") == 0 {
        write().expect("it may");
    }
    peer.kill();
    let since = Instant::now();
    while write().is_ok() {
        assert!(since.elapsed() < BOUND, "nobody noticed the death");
    }
}

#[test]
fn a_mapping_that_is_dropped_makes_room_for_another_one() {
    let Some(_turn) = mapping("mapped and dropped") else { return };
    let (peer, mut side) = with_owner();
    let kept = side.mapped(KEY).expect("a neighbour");
    for round in 0..2000u64 {
        let remote = side.mapped(KEY).expect("there is room");
        assert_eq!(remote.write(8, &round.to_le_bytes()), Ok(()));
    }
    assert_eq!(kept.change(8, (Atomic::Read, Type::U64), 0, 0), Ok(1999));
    peer.finish();
}

#[test]
fn a_mapping_ends_with_its_index() {
    let Some(_turn) = mapping("mapped and unmapped") else { return };
    let (mut a, mut b, ..) = pair();
    let (_, c, ..) = pair();
    let there = Address::of(&c.bundle, c.here);
    let first = mapped(&mut a, &mut b, KEY).expect("a neighbour");
    assert_eq!(first.write(0, &[1]), Ok(()));
    a.bundle.map(a.here, 0, there.name, there.key).expect("map");
    a.bundle.poll();
    assert_eq!(first.write(0, &[2]), Err(RemoteError::Withdrawn));
    let there = Address::of(&b.bundle, b.here);
    a.bundle.map(a.here, 0, there.name, there.key).expect("map");
    let second = mapped(&mut a, &mut b, KEY).expect("a neighbour");
    a.bundle.unmap(a.here, 0).expect("it was mapped");
    a.bundle.poll();
    assert_eq!((second.write(0, &[2]), first.is_open()), (Err(RemoteError::Withdrawn), false));
}

#[test]
fn of_a_long_write_that_leaves_the_region_nothing_is_stored() {
    let Some(_turn) = mapping("long and outside") else { return };
    let (mut peer, mut side) = with_owner();
    side.warm_up(at(0));
    assert_eq!(side.refusal(at(LEN as u64 - (1 << 20)), &vec![1; 3 << 20]), Reason::OutsideRegion);
    assert_eq!(peer.ask("sum"), "0");
    peer.finish();
}

#[test]
fn a_region_that_counts_from_elsewhere_is_mapped_anew() {
    let Some(_turn) = mapping("mapped and counted anew") else { return };
    let (mut a, mut b, region, window) = pair();
    let remote = mapped(&mut a, &mut b, KEY).expect("a neighbour");
    assert!(b.calls().count_from(region, 4096));
    assert!(!remote.is_open());
    a.calls().try_write(0, Write::to(at(4096 + 8)), vec![7; 8], 1).expect("room");
    let since = Instant::now();
    while a.calls().next_completion().is_none() {
        a.bundle.poll();
        b.bundle.poll();
        assert!(since.elapsed() < BOUND, "a write does not end");
    }
    let mut seen = [0; 8];
    assert!(window.read(8, &mut seen) && seen == [7; 8]);
}

#[test]
fn another_host_maps_nothing() {
    let Some(_turn) = over_udp("another_host_maps_nothing") else { return };
    let (peer, mut side) = with_owner();
    assert!(side.mapped(KEY).is_none());
    for round in 0..20u8 {
        side.write(at(0), &[round; 8]).expect("it may");
    }
    assert_eq!(side.direct(), 0);
    peer.finish();
}

#[test]
fn with_direct_access_off_nothing_is_mapped_either_way() {
    let Some(_turn) = mapping("no direct access") else { return };
    let off = Settings { is_direct: false, ..Settings::default() };
    let mut b = Side::new(off);
    b.own(KEY);
    let there = Address::of(&b.bundle, b.here);
    let mut a = Side::to(there, Settings::default());
    assert!(mapped(&mut a, &mut b, KEY).is_none(), "the owner does not want it");
    let (_, mut b, ..) = pair();
    let there = Address::of(&b.bundle, b.here);
    let mut a = Side::to(there, off);
    assert!(mapped(&mut a, &mut b, KEY).is_none(), "the initiator does not want it");
    let mut a = Side::to(there, Settings::default());
    assert!(mapped(&mut a, &mut b, KEY).is_some());
}
