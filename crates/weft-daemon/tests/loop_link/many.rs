//! Far more endpoints than are active: what the engine reads, and whether the active ones are served.

use crate::world::World;
use crate::SMALL;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_core::Endpoint;
use weft_daemon::testing::MemSegment;
use weft_daemon::Settings;
use weft_wire::attach::Request;
use weft_wire::descriptor::Words;
use weft_wire::segment::{Segment, PAGE, PARTS, SYSTEM};
use weft_wire::{EndpointId, Key};

/// How often the engine loaded from or stored to each page.
type Uses = Rc<RefCell<BTreeMap<usize, u32>>>;

/// Memory that records the engine's accesses.
struct Noted {
    segment: MemSegment,
    uses: Uses,
}

impl Noted {
    fn note(&self, at: usize, len: usize) {
        (at / PAGE..=(at + len.max(1) - 1) / PAGE)
            .for_each(|page| *self.uses.borrow_mut().entry(page).or_default() += 1);
    }
}

impl Segment for Noted {
    fn bytes(&self) -> usize {
        self.segment.bytes()
    }

    fn look(&self, at: usize, lap: u16) -> Option<Words> {
        self.note(at, 64);
        self.segment.look(at, lap)
    }

    fn publish(&self, at: usize, words: &Words) {
        self.note(at, 64);
        self.segment.publish(at, words);
    }

    fn cursor(&self, at: usize) -> u64 {
        self.note(at, 8);
        self.segment.cursor(at)
    }

    fn set_cursor(&self, at: usize, value: u64) {
        self.note(at, 8);
        self.segment.set_cursor(at, value);
    }

    fn read(&self, at: usize, len: usize, to: &mut Vec<u8>) {
        self.note(at, len);
        self.segment.read(at, len, to);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.note(at, bytes.len());
        self.segment.write(at, bytes);
    }

    fn copy_to(&self, at: usize, len: usize, other: &Noted, to: usize) {
        self.note(at, len);
        other.note(to, len);
        self.segment.copy_to(at, len, &other.segment, to);
    }

    fn ring(&self, bells: usize, part: u32) {
        self.note(bells, 8);
        self.segment.ring(bells, part);
    }

    fn collect(&self, bells: usize, words: u32, rung: impl FnMut(u32)) {
        self.note(bells, 8);
        self.segment.collect(bells, words, rung);
    }

    fn light_barrier(&self) {}
}

/// A world of two programs with pairs of endpoints between them that have exchanged messages, and a record of the engine's accesses from
/// now on.
fn talked(pairs: u32) -> (World<Noted>, Vec<[Endpoint; 2]>, [Uses; 2]) {
    let mut world = World::<Noted>::over(Settings { frames: 2, ..Settings::default() });
    let uses: [Uses; 2] = Default::default();
    let bytes = PARTS + SYSTEM.bytes() + (pairs as usize + 3) * SMALL.bytes();
    for uses in &uses {
        world.attach_with(1000, bytes, |segment| Noted { segment, uses: uses.clone() });
    }
    let pairs = (0..pairs)
        .map(|number| {
            let x = world.endpoint_with(0, 1, SMALL).expect("an endpoint");
            let y = world.endpoint_with(1, u64::from(number), SMALL).expect("an endpoint");
            world.map((0, x), 0, (1, y), number.into());
            world.send((0, x), 0, &[], b"first");
            [x, y]
        })
        .collect();
    world.settle();
    uses.iter().for_each(|uses| uses.borrow_mut().clear());
    (world, pairs, uses)
}

#[test]
fn nothing_of_an_endpoint_that_is_idle_is_looked_at_while_others_talk_and_frames_change_hands() {
    let (mut world, pairs, uses) = talked(8);
    // Half of them talk from here on. The others lose their frames, and are looked at then.
    pairs[..4].iter().for_each(|[x, _]| world.send((0, *x), 0, &[], b"first"));
    world.settle();
    uses.iter().for_each(|uses| uses.borrow_mut().clear());
    let bound = world.engine.counters().bound;
    for round in 0..50 {
        for [x, _] in &pairs[..4] {
            world.send((0, *x), 0, &[round], b"hello");
            world.now = world.now.plus_nanos(2_000_000);
        }
    }
    world.settle();
    assert!(world.engine.counters().bound > bound + 8, "frames changed hands");
    for (program, uses) in uses.iter().enumerate() {
        let pages_of = |program, endpoint| {
            let part = world.engine.part_of(&world.name(program, endpoint)).expect("an endpoint");
            part.at / PAGE..part.end() / PAGE
        };
        let used =
            |pair: &[_; 2]| pages_of(program, pair[program]).filter(|page| uses.borrow().contains_key(page)).count();
        let used: Vec<usize> = pairs.iter().map(used).collect();
        assert!(used[..4].iter().all(|pages| *pages > 0), "{used:?}");
        assert!(used[4..].iter().all(|pages| *pages == 0), "{used:?}");
    }
}

#[test]
fn a_turn_with_nothing_to_do_looks_at_a_word_of_each_attachment() {
    for pairs in [2, 200] {
        let (mut world, _, uses) = talked(pairs);
        (0..100).for_each(|_| _ = world.engine.poll(world.now));
        for uses in uses {
            assert_eq!(uses.borrow().iter().collect::<Vec<_>>(), [(&1, &100)], "{pairs} pairs: the bells alone");
        }
    }
}

#[test]
fn the_end_of_a_program_touches_nothing_of_endpoints_that_it_never_used() {
    let (mut world, pairs, uses) = talked(3);
    let unused: Vec<Endpoint> = (0..3).map(|key| world.endpoint_with(0, key, SMALL).expect("room for it")).collect();
    let page_of =
        |world: &World<Noted>, endpoint| world.engine.part_of(&world.name(0, endpoint)).expect("there").at / PAGE;
    let unused: Vec<usize> = unused.into_iter().map(|endpoint| page_of(&world, endpoint)).collect();
    // One was written to, and only its bell says so.
    let last = page_of(&world, pairs[2][0]);
    let message = crate::outgoing(&[], b"last words");
    world.programs[0].core.state_mut().try_send(pairs[2][0], 0, message).expect("room");
    uses.iter().for_each(|uses| uses.borrow_mut().clear());
    world.kill(0);
    assert!(uses[0].borrow().contains_key(&last));
    assert!(unused.iter().all(|page| !uses[0].borrow().contains_key(page)));
    world.programs[1].poll();
    assert_eq!(world.programs[1].log.messages.len(), 4);
}

/// Waits for the answers to so many requests of a program.
fn ask_for_all(world: &mut World, program: usize, count: u32, request: impl Fn(u32) -> Request) {
    let (begin, mut asked) = (world.engine.counters().requests, 0);
    while world.engine.counters().requests - begin < count.into() {
        let port = world.programs[program].sessions.port();
        while asked < count && port.borrow_mut().ask(&request(asked)).is_some() {
            asked += 1;
        }
        // Advances the clock, because a user's rate of requests is bounded.
        world.now = world.now.plus_nanos(10_000_000);
        world.engine.poll(world.now);
        world.programs[program].poll();
    }
}

#[test]
fn of_a_hundred_thousand_endpoints_none_is_refused_and_the_active_ones_share_the_frames() {
    const EACH: u32 = 9_900;
    let mut world = World::new(Settings::default());
    let bytes = PARTS + SYSTEM.bytes() + (EACH as usize + 100) * SMALL.bytes();
    let programs: Vec<usize> = (0..10).map(|_| world.attach_with(1000, bytes, |segment| segment)).collect();
    // One in a hundred is active, in two programs.
    let mut pairs = Vec::new();
    for number in 0..500 {
        let x = world.endpoint_with(programs[0], 1, SMALL).expect("an endpoint");
        let y = world.endpoint_with(programs[1], number, SMALL).expect("an endpoint");
        world.map((programs[0], x), 0, (programs[1], y), number);
        pairs.push(x);
    }
    let allocate = |number: u32| Request::Allocate {
        endpoint: EndpointId(1000 + number),
        key: Key(1),
        admission: 0,
        sizes: SMALL,
    };
    // The first two programs have had their five hundred.
    for &program in &programs {
        let count = if program < 2 { EACH - 500 + 100 } else { EACH + 100 };
        ask_for_all(&mut world, program, count, allocate);
    }
    assert_eq!(world.engine.endpoints(), 100_000);
    for round in 0..3 {
        pairs.iter().for_each(|x| world.send((programs[0], *x), 0, &[round], b"hello"));
        assert!(world.engine.resident() <= 96);
    }
    world.settle();
    assert_eq!(world.programs[programs[1]].log.messages.len(), 1500);
    assert!(world.engine.counters().bound > 1000, "they took turns");
    // They are freed one by one.
    for &program in &programs {
        ask_for_all(&mut world, program, if program < 2 { 9_500 } else { 10_000 }, |number| Request::Free {
            part: number + if program < 2 { 501 } else { 1 },
        });
    }
    assert_eq!(world.engine.endpoints(), 1000);
}
