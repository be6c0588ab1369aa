//! Flushes, fences, inline writes and waiting calls of remote memory, through the public calls.

mod support;

use std::time::{Duration, Instant};
use support::{turn, Address, Dice, BOUND};
use weft::memory::{
    Atomic, Change, Completion, Fetch, Memory, OperationError, Outcome, Place, PostError, RegionId, RegionKey, Rights,
    Settings, Type, Window, Write, INLINE_MOST,
};
use weft::{Bundle, Certainty, Endpoint, Key, Node, Reason, SharedBundle};

const KEY: RegionKey = RegionKey(7);
const BYTES: usize = 1 << 20;
const ADD: Change =
    Change { place: Place { by: weft::memory::Credential::Key(7), at: 0 }, atomic: Atomic::Add, of: Type::U64 };

fn at(at: u64) -> Place {
    Place::new(KEY, at)
}

/// An initiator and an owner of one thread, with a session.
struct Pair {
    a: Bundle,
    here: Endpoint,
    b: Bundle,
    there: Endpoint,
    region: RegionId,
    window: Window,
}

impl Pair {
    fn new(settings: Settings) -> Pair {
        let node = Node::new().expect("node");
        let (mut a, mut b) = (Bundle::new(&node).expect("bundle"), Bundle::new(&node).expect("bundle"));
        let here = a.memory_endpoint(Key(1), settings).expect("endpoint");
        let there = b.memory_endpoint(Key(2), settings).expect("endpoint");
        let name = Address::of(&b, there);
        a.map(here, 0, name.name, name.key).expect("map");
        let (region, window) = b.memory(there).expect("ours").allocate(BYTES, KEY, Rights::ALL).expect("memory");
        let mut pair = Pair { a, here, b, there, region, window };
        pair.calls().try_write(0, Write::to(at(0)), vec![0; 8], 0).expect("posted");
        assert_eq!(pair.end().outcome, Outcome::Done);
        pair
    }

    fn calls(&mut self) -> Memory<'_> {
        self.a.memory(self.here).expect("ours")
    }

    fn owner(&mut self) -> Memory<'_> {
        self.b.memory(self.there).expect("ours")
    }

    fn end(&mut self) -> Completion {
        let since = Instant::now();
        loop {
            if let Some(end) = self.calls().next_completion() {
                return end;
            }
            assert!(since.elapsed() < BOUND, "no completion");
            self.a.poll();
            self.b.poll();
        }
    }

    /// Polls the owner alone, for longer than anything under way to it takes.
    fn only_the_owner(&mut self) {
        (0..1000).for_each(|_| _ = self.b.poll());
    }
}

#[test]
fn a_flush_ends_behind_what_was_posted_before_it_however_that_ends() {
    let _turn = turn("flushes");
    let mut dice = Dice::fresh("flushes");
    let mut pair = Pair::new(Settings::default());
    pair.calls().try_flush(0, 1).expect("posted");
    let end = pair.calls().next_completion().expect("nothing is under way");
    assert_eq!((end.context, end.outcome), (1, Outcome::Done));
    // Contexts of flushes are odd, others even; all ascend.
    let (mut posted, mut ended, mut open, mut failed) = (0u64, 0u64, Vec::new(), 0);
    while posted < 4000 {
        for _ in 0..dice.below(20) {
            let context = posted * 2;
            let (number, len) = (dice.below(5), [8, 100, 20_000, 70_000][dice.below(4) as usize]);
            let key = RegionKey(if dice.below(10) == 0 { 99 } else { 7 });
            let place = Place::new(key, 0);
            match number {
                0 => pair.calls().try_read(0, place, vec![0; len], context).expect("posted"),
                1 => {
                    let fetch = Fetch { old: Some(vec![0; 8].into()), ..Fetch::default() };
                    let change = Change { place, ..ADD };
                    pair.calls().try_change(0, change, &[1; 8], fetch, context).expect("posted");
                }
                2 => {
                    pair.calls().try_flush(0, context + 1).expect("posted");
                    open.push(context + 1);
                    posted += 1;
                    continue;
                }
                _ => pair.calls().try_write(0, Write::to(place), vec![1; len], context).expect("posted"),
            }
            open.push(context);
            posted += 1;
        }
        let target = posted - dice.below(40).min(posted);
        while ended < target {
            let end = pair.end();
            let place = open.iter().position(|context| *context == end.context).expect("it was posted, and ends once");
            assert!(end.context % 2 == 0 || place == 0, "{} ended before what it flushes", end.context);
            failed += u32::from(end.outcome != Outcome::Done);
            open.remove(place);
            ended += 1;
        }
    }
    assert!(failed > 100, "some failed: {failed}");
}

#[test]
fn flushes_count_as_operations_and_end_with_a_peer_that_is_gone() {
    let _turn = turn("flushes of the lost");
    let mut pair = Pair::new(Settings { operations_most: 4, ..Settings::default() });
    pair.calls().try_write(0, Write::to(at(0)), vec![1; 200_000], 0).expect("posted");
    for context in 1..4 {
        pair.calls().try_flush(0, context).expect("room");
    }
    assert_eq!(pair.calls().try_flush(0, 9), Err(PostError::Full));
    assert_eq!(pair.calls().try_flush(1, 9), Err(PostError::NotMapped(1)));
    assert_eq!(pair.calls().fence(1), Err(PostError::NotMapped(1)));
    let there = pair.there;
    pair.b.free(there).expect("ours");
    assert!(matches!(pair.end().outcome, Outcome::Failed { .. }));
    for context in 1..4 {
        let end = pair.end();
        assert_eq!((end.context, end.outcome), (context, Outcome::Done));
    }
}

#[test]
fn what_is_behind_a_fence_leaves_when_all_before_it_has_ended() {
    let _turn = turn("fences");
    // Direct operations end when they are posted.
    let mut pair = Pair::new(Settings { is_direct: false, ..Settings::default() });
    let writes = pair.owner().counters().writes;
    for fences in [false, true] {
        let before = pair.owner().counters().writes;
        pair.calls().try_write(0, Write::to(at(0)), vec![1; 8], 0).expect("posted");
        pair.calls().try_read(0, at(0), vec![0; 8], 1).expect("posted");
        if fences {
            pair.calls().fence(0).expect("mapped");
        }
        pair.calls().try_write(0, Write::to(at(0)), vec![2; 8], 2).expect("posted");
        pair.calls().try_write(0, Write::to(at(8)), vec![3; 8], 3).expect("posted");
        pair.only_the_owner();
        let carried_out = pair.owner().counters().writes - before;
        assert_eq!(carried_out, if fences { 1 } else { 3 }, "with a fence: {fences}");
        let mut ends = Vec::new();
        while ends.len() < 4 {
            let end = pair.end();
            assert_eq!(end.outcome, Outcome::Done);
            ends.push(end.context);
        }
        if fences {
            ends[..2].sort_unstable();
            ends[2..].sort_unstable();
            assert_eq!(ends, [0, 1, 2, 3]);
        }
    }
    assert_eq!(pair.owner().counters().writes - writes, 6);
    // A fence with nothing before it delays nothing, and one after a failure lets later operations go on.
    pair.calls().fence(0).expect("mapped");
    pair.calls().try_write(0, Write::to(Place::new(RegionKey(9), 0)), vec![1; 8], 4).expect("posted");
    pair.calls().fence(0).expect("mapped");
    pair.calls().try_write(0, Write::to(at(16)), vec![4; 8], 5).expect("posted");
    assert!(matches!(pair.end().outcome, Outcome::Failed { reason: Reason::NoRegion, .. }));
    assert_eq!(pair.end().outcome, Outcome::Done);
    let mut seen = [0; 24];
    assert!(pair.window.read(0, &mut seen));
    assert_eq!(seen, [[2; 8], [3; 8], [4; 8]].concat()[..]);
}

#[test]
fn an_inline_write_leaves_its_source_free() {
    let _turn = turn("inline");
    let mut pair = Pair::new(Settings::default());
    // More than fits at once, so that many wait.
    let mut bytes = [0; 1000];
    for number in 0..1000u32 {
        bytes.fill(number as u8);
        let place = at(u64::from(number) * 1000);
        pair.calls().try_write_inline(0, Write::to(place), &bytes, 0).expect("posted");
    }
    (0..1000).for_each(|_| assert_eq!(pair.end().outcome, Outcome::Done));
    let mut all = vec![0; 1_000_000];
    assert!(pair.window.read(0, &mut all));
    assert!(all.chunks(1000).enumerate().all(|(number, part)| part.iter().all(|byte| *byte == number as u8)));
    let long = vec![1; INLINE_MOST + 1];
    assert_eq!(pair.calls().try_write_inline(0, Write::to(at(0)), &long, 0), Err(PostError::TooLong));
    pair.calls().try_write_inline(0, Write::to(at(0)), &long[1..], 0).expect("posted");
    assert_eq!(pair.end().outcome, Outcome::Done);
}

/// A serviced owner of a region of 1 MiB under [`KEY`], which nobody polls, with its region.
fn owner(node: &Node) -> (SharedBundle, Endpoint, RegionId) {
    let owner = SharedBundle::serviced(node).expect("bundle");
    let there = owner.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    let region = owner.with_memory(there, |m| m.allocate(BYTES, KEY, Rights::ALL)).expect("ours").expect("memory").0;
    (owner, there, region)
}

#[test]
fn calls_that_wait_return_what_became_of_them() {
    let _turn = turn("waiting calls");
    let node = Node::new().expect("node");
    let (owner, there, region) = owner(&node);
    let mut bundle = Bundle::new(&node).expect("bundle");
    let me = bundle.memory_endpoint(Key(2), Settings::default()).expect("endpoint");
    bundle.map(me, 0, owner.name(there).expect("ours"), Key(1)).expect("map");
    // The program's other operations continue meanwhile, and only `next_completion` returns their ends.
    bundle.memory(me).expect("ours").try_read(0, at(0), vec![9; 8], 77).expect("posted");
    bundle.write(me, 0, Write::to(at(0)), vec![7; 100_000]).expect("done");
    assert_eq!(bundle.read(me, 0, at(10), 50_000).expect("done"), vec![7; 50_000]);
    let old = bundle.change(me, 0, Change { atomic: Atomic::CompareSwap, ..ADD }, &[1; 8], &[7; 8]).expect("done");
    assert_eq!(old, [7; 8]);
    assert_eq!(bundle.read_within(BOUND, me, 0, at(0), 8).expect("done"), [1; 8]);
    bundle.memory(me).expect("ours").try_write(0, Write::to(at(0)), vec![2; 500_000], 78).expect("posted");
    bundle.flush_to(me, 0).expect("all has ended");
    let mut ends = [(); 2].map(|()| bundle.memory(me).expect("ours").next_completion().expect("it has ended").context);
    ends.sort_unstable();
    assert_eq!(ends, [77, 78]);
    assert!(bundle.memory(me).expect("ours").next_completion().is_none());
    // A failure gives its reason.
    let refused = bundle.write(me, 0, Write::to(at(BYTES as u64)), [1]).unwrap_err();
    let OperationError::Failed { reason: Reason::OutsideRegion, certainty: Certainty::NotDelivered } = refused else {
        panic!("{refused:?}")
    };
    let refused = bundle.change(me, 0, ADD, &[1; 7], &[]).unwrap_err();
    assert!(matches!(refused, OperationError::NotPosted(PostError::NoSuchAtomic)), "{refused:?}");
    let refused = bundle.read(me, 3, at(0), 1).unwrap_err();
    assert!(matches!(refused, OperationError::NotPosted(PostError::NotMapped(3))), "{refused:?}");
    owner.with_memory(there, |m| m.revoke(region)).expect("ours");
    let refused = bundle.read(me, 0, at(0), 1).unwrap_err();
    assert!(matches!(refused, OperationError::Failed { reason: Reason::Revoked, .. }), "{refused:?}");
    bundle.free(me).expect("ours");
    assert!(matches!(bundle.read(me, 0, at(0), 1).unwrap_err(), OperationError::Bundle(_)));
}

#[test]
fn threads_of_a_shared_bundle_wait_for_their_own_ends() {
    let _turn = turn("waiting threads");
    let node = Node::new().expect("node");
    let (owner, there, _) = owner(&node);
    let bundle = SharedBundle::new(&node).expect("bundle");
    let me = bundle.memory_endpoint(Key(2), Settings::default()).expect("endpoint");
    bundle.map(me, 0, owner.name(there).expect("ours"), Key(1)).expect("map");
    let threads = (1..4u64).map(|thread| {
        let bundle = bundle.clone();
        std::thread::spawn(move || {
            for round in 0..100u64 {
                let word = (thread * 1000 + round).to_le_bytes();
                bundle.write(me, 0, Write::to(at(thread * 8)), word).expect("done");
                assert_eq!(bundle.read_within(BOUND, me, 0, at(thread * 8), 8).expect("done"), word);
                bundle.change(me, 0, ADD, &1u64.to_le_bytes(), &[]).expect("done");
            }
            bundle.flush_to_within(BOUND, me, 0).expect("all has ended");
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("it ended"));
    assert_eq!(
        bundle.change(me, 0, Change { atomic: Atomic::Read, ..ADD }, &[0; 8], &[]).expect("done"),
        300u64.to_le_bytes()
    );
}

#[test]
fn a_call_that_gave_up_leaves_nothing_behind() {
    let _turn = turn("calls that give up");
    let mut pair = Pair::new(Settings::default());
    let (here, limit) = (pair.here, Duration::from_millis(20));
    let refused = pair.a.write_within(limit, here, 0, Write::to(at(0)), [5; 8]).unwrap_err();
    assert!(matches!(refused, OperationError::TimedOut), "nobody polls the owner: {refused:?}");
    assert!(matches!(pair.a.read_within(limit, here, 0, at(0), 8), Err(OperationError::TimedOut)));
    assert!(matches!(pair.a.flush_to_within(limit, here, 0), Err(OperationError::TimedOut)));
    assert_eq!(pair.calls().pending(0), 2);
    // They are carried out, but not reported.
    pair.calls().try_flush(0, 1).expect("posted");
    assert_eq!(pair.end().context, 1);
    assert!(pair.calls().next_completion().is_none() && pair.calls().pending(0) == 0);
    let mut seen = [0; 8];
    assert!(pair.window.read(0, &mut seen));
    assert_eq!(seen, [5; 8]);
    let region = pair.region;
    assert!(pair.owner().revoke(region));
}
