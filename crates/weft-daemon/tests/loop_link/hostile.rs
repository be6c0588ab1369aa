//! A program that writes anything anywhere into the memory that it shares: its neighbours notice nothing.

use crate::world::World;
use crate::{pair, SMALL};
use proptest::prelude::*;
use weft_daemon::Settings;
use weft_wire::descriptor::{lap_at, Descriptor, LineId, Place, Said};
use weft_wire::segment::{Cursor, Part, Segment, ASLEEP, PARTS, SYSTEM, TO_DAEMON};
use weft_wire::{EndpointId, Head, Key, Kind, Reason};

/// Where a wild store goes, and what it stores.
#[derive(Clone, Debug)]
enum Wild {
    /// Any word anywhere.
    Word(usize, u64),
    /// A descriptor of the present lap at the head of a send ring, with this first half.
    Descriptor { kind: u64, line: u64, second: u64, third: u64, fourth: u64 },
    /// A cursor of its own.
    Cursor(bool, u64),
}

fn wild() -> impl Strategy<Value = Wild> {
    let small = || prop_oneof![0u64..9, any::<u64>()];
    prop_oneof![
        (0usize..1 << 22, any::<u64>()).prop_map(|(at, word)| Wild::Word(at * 8, word)),
        (0usize..600, any::<u64>()).prop_map(|(at, word)| Wild::Word(at * 8, word)),
        (0u64..9, small(), any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(kind, line, second, third, fourth)| { Wild::Descriptor { kind, line, second, third, fourth } }),
        (0u64..5, 0u64..3, 0u64..1 << 34, (0u64..70, 1u64..14, 0u64..17), any::<u64>()).prop_map(
            |(kind, line, second, (len, record, args), fourth)| {
                let third = len | record << 32 | args << 48;
                Wild::Descriptor { kind, line, second, third, fourth }
            }
        ),
        (any::<bool>(), small()).prop_map(|(is_read, value)| Wild::Cursor(is_read, value)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_that_writes_anything_does_not_harm_its_neighbours(stores in proptest::collection::vec(wild(), 1..60)) {
        let (mut world, a, b) = pair();
        let wild = world.attach(1001);
        let endpoint = world.endpoint_with(wild, 3, SMALL).expect("an endpoint");
        world.map((wild, endpoint), 0, b, 8);
        world.map(a, 1, (wild, endpoint), 3);
        let segment = world.programs[wild].sessions.port().borrow().platform().segment.clone();
        let part = Part { at: PARTS + SYSTEM.bytes(), sizes: SMALL };
        world.send((wild, endpoint), 0, &[], b"an honest one first");
        world.turn();
        // From here on it no longer polls, but writes at random.
        world.programs.truncate(wild);
        for (number, store) in stores.iter().enumerate() {
            match *store {
                Wild::Word(at, word) => segment.scribble(at, word),
                Wild::Descriptor { kind, line, second, third, fourth } => {
                    let position = number as u64 % 16;
                    let first = u64::from(lap_at(position, SMALL.ring_order)) | kind << 16 | line << 32;
                    segment.publish(part.sent(position), &[first, second, third, fourth, 5, 6, 7, 8]);
                    segment.ring(TO_DAEMON, 1);
                }
                Wild::Cursor(is_read, value) => {
                    segment.set_cursor(part.here(if is_read { Cursor::Read } else { Cursor::Taken }), value);
                    segment.ring(TO_DAEMON, 1);
                }
            }
            world.send(a, 0, &[number as u32], b"to a neighbour");
            world.turn();
            for broken in world.engine.take_broken() {
                world.engine.detach(broken, Reason::Violation);
            }
        }
        world.settle();
        let messages = &world.programs[b.0].log.messages;
        let numbers: Vec<u32> = messages.iter().filter(|message| message.4 == b"to a neighbour").map(|message| message.3[0]).collect();
        prop_assert_eq!(numbers, (0..stores.len() as u32).collect::<Vec<_>>());
        prop_assert!(world.programs[a.0].log.returned.is_empty());
        world.drain(a.0);
    }
}

/// A program that speaks the format correctly, but sends what it has no right to send.
#[test]
fn a_program_that_sends_what_it_may_not_is_cut_off() {
    let open = |source: u32| {
        let args = [source, 0, 8, 0, 0];
        let head = Head { args: 5, ..Head::new(Kind::Open) };
        let mut words =
            Descriptor { line: LineId(1), taken: Place(0), at: 0, said: Said::Record(head.into()) }.words(1);
        weft_wire::descriptor::put_contents(
            &mut words,
            weft_wire::descriptor::pack_inline(&args, &[]).expect("it fits"),
        );
        words
    };
    let say = |line, said| Descriptor { line: LineId(line), taken: Place(0), at: 0, said }.words(1);
    let record = |line, kind| say(line, Said::Record(Head::new(kind).into()));
    let large = Head { len: 65_536, ..Head::new(Kind::Send) };
    let outside =
        Descriptor { line: LineId(1), taken: Place(0), at: u32::MAX, said: Said::Record(large.into()) }.words(1);
    let ahead = Descriptor { line: LineId(1), taken: Place(1), at: 0, said: Said::Taken }.words(1);
    let cases = [
        ("another's endpoint", open(7)),
        ("the system's line", record(0, Kind::Send)),
        ("a line that there is not", record(9, Kind::Send)),
        ("a message before the flow is open", record(1, Kind::Send)),
        ("padding", record(1, Kind::Pad)),
        ("a word of the daemon's", say(1, Said::Ready)),
        ("a peer's opening", say(1, Said::Opened)),
        ("contents outside the area", outside),
        ("more taken than came", ahead),
    ];
    for (what, words) in cases {
        let mut world = World::new(Settings::default());
        let (a, b) = (world.attach(1000), world.attach(1000));
        let (x, y) = (world.endpoint_with(a, 7, SMALL).expect("an endpoint"), world.endpoint(b, 8));
        let to = world.name(b, y);
        // A line that is not open yet.
        let sessions = &mut world.programs[a].sessions;
        let asked = weft_wire::attach::Request::Open { part: 1, to };
        sessions.port().borrow_mut().ask(&asked).expect("room");
        world.turn();
        let segment = world.programs[a].sessions.port().borrow().platform().segment.clone();
        let part = Part { at: PARTS + SYSTEM.bytes(), sizes: SMALL };
        segment.publish(part.sent(0), &words);
        segment.ring(TO_DAEMON, 1);
        world.turn();
        world.turn();
        assert_eq!(world.engine.take_broken(), [world.programs[a].id], "{what}");
        assert_eq!(world.engine.counters().violations, 1, "{what}");
        assert!(world.programs[b].log.messages.is_empty(), "{what}");
        let _ = (x, EndpointId(0), Key::NONE);
    }
}

#[test]
fn a_program_that_rings_without_cause_gets_no_frame() {
    let (mut world, a, b) = pair();
    let wild = world.attach(1001);
    for key in 0..20 {
        world.endpoint_with(wild, key, SMALL).expect("an endpoint");
    }
    world.settle();
    let (bound, segment) =
        (world.engine.counters().bound, world.programs[wild].sessions.port().borrow().platform().segment.clone());
    for _ in 0..100 {
        (0..5000).for_each(|part| segment.ring(TO_DAEMON, part));
        world.turn();
    }
    assert_eq!(world.engine.counters().bound, bound);
    assert!(world.engine.counters().false_bells > 100_000);
    world.send(a, 0, &[], b"still here");
    world.settle();
    assert_eq!(world.programs[b.0].log.messages.len(), 1);
}

#[test]
fn a_program_that_sleeps_is_woken_once() {
    let (mut world, a, b) = pair();
    world.send(a, 0, &[], b"awake");
    world.settle();
    assert_eq!(world.engine.take_wakes(), []);
    let sleeper = world.programs.remove(b.0);
    let segment = sleeper.sessions.port().borrow().platform().segment.clone();
    for sleep in 1..4 {
        segment.set_cursor(ASLEEP, sleep);
        for _ in 0..5 {
            world.send(a, 0, &[], b"wake up");
            world.turn();
        }
        assert_eq!(world.engine.take_wakes(), [sleeper.id]);
    }
}
