//! The engine of weftd, and a program that writes anything anywhere into its shared memory. The input is a list of its stores. Only this
//! program may be cut off, and each message of an honest pair beside it comes once.
#![no_main]

// The world of the engine's own tests, of which only a part is used here.
#[allow(dead_code)]
#[path = "../../crates/weft-daemon/tests/programs/mod.rs"]
mod programs;
#[allow(dead_code)]
#[path = "../../crates/weft-daemon/tests/loop_link/world.rs"]
mod world;

use weft_daemon::testing::MemSegment;
use weft_daemon::Settings;
use weft_fuzz::Input;
use weft_wire::attach::Request;
use weft_wire::descriptor::{lap_at, pack_inline, put_contents, Descriptor, LineId, Place, Said};
use weft_wire::segment::{Cursor, Part, Segment, Sizes, AREA_PAGES, ASLEEP, PARTS, SYSTEM, TO_DAEMON};
use weft_wire::{EndpointId, Epoch, Head, HostAddress, Key, Kind, Name, Reason, Uid};
use world::World;

const SMALL: Sizes = Sizes { ring_order: 4, area_pages: *AREA_PAGES.start() };

/// Bytes of each file: the system endpoint and a few more.
const FILE: usize = 1 << 20;

/// Steps of one run.
const STEPS_MOST: usize = 300;

/// The wild program: its memory, and how far it has written its rings.
struct Wild {
    id: weft_daemon::AttachmentId,
    segment: MemSegment,
    sent: [u64; PARTS_OF_WILD],
}

/// Its parts: the system endpoint's, and two more.
const PARTS_OF_WILD: usize = 3;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    // Few frames, so that they change hands.
    let mut world = World::new(Settings { frames: 2, ..Settings::default() });
    let small = |segment| segment;
    let (a, b) = (world.attach_with(1000, FILE, small), world.attach_with(1000, FILE, small));
    let (x, y) = (world.endpoint_with(a, 7, SMALL).expect("room"), world.endpoint_with(b, 8, SMALL).expect("room"));
    world.map((a, x), 0, (b, y), 8);
    let mut wild = go_wild(&mut world, (b, y));
    let mut sent = 0;
    for _ in 0..STEPS_MOST {
        if step(&mut world, &mut wild, &mut input).is_none() {
            break;
        }
        if input.0.len() % 4 == 0 {
            world.send((a, x), 0, &[sent], b"honest");
            sent += 1;
        }
        world.turn();
        let broken = world.engine.take_broken();
        assert!(broken.iter().all(|id| *id == wild.id), "an honest program is cut off");
        if !broken.is_empty() {
            world.engine.detach(wild.id, Reason::Violation);
            wild = go_wild(&mut world, (b, y));
        }
    }
    world.send((a, x), 0, &[sent], b"honest");
    world.drain(a);
    let messages = world.programs[b].log.messages.iter();
    let numbers: Vec<u32> = messages.filter(|message| message.4 == b"honest").map(|message| message.3[0]).collect();
    assert_eq!(numbers, (0..=sent).collect::<Vec<_>>());
    assert!(world.programs[a].log.returned.is_empty());
    world.engine.detach(wild.id, Reason::PeerLost);
    world.turn();
    let violations = world.engine.take_broken();
    assert!(violations.is_empty(), "an honest program is cut off");
});

/// A program attaches, sends correctly to an endpoint, and is not polled any more.
fn go_wild(world: &mut World, to: (usize, weft_core::Endpoint)) -> Wild {
    let program = world.attach_with(1001, FILE, |segment| segment);
    let first = world.endpoint_with(program, 3, SMALL).expect("room");
    let second = world.endpoint_with(program, 4, SMALL).expect("room");
    world.map((program, first), 0, to, 8);
    world.map((program, second), 0, to, 8);
    world.send((program, first), 0, &[], b"first");
    world.turn();
    let found = world.programs.pop().expect("the last one");
    let segment = found.sessions.port().borrow().platform().segment.clone();
    let mut wild = Wild { id: found.id, segment, sent: [0; PARTS_OF_WILD] };
    for part in 0..PARTS_OF_WILD {
        wild.sent[part] = wild.segment.cursor(part_at(part).there(Cursor::Taken));
    }
    wild
}

/// The places of its parts: one after the other.
fn part_at(part: usize) -> Part {
    match part {
        0 => Part { at: PARTS, sizes: SYSTEM },
        part => Part { at: PARTS + SYSTEM.bytes() + (part - 1) * SMALL.bytes(), sizes: SMALL },
    }
}

fn long(input: &mut Input<'_>) -> Option<u64> {
    let words = [input.word()?, input.word()?, input.word()?, input.word()?];
    Some(words.iter().fold(0, |all, word| all << 16 | u64::from(*word)))
}

/// A store of the wild program, or one of its requests.
fn step(world: &mut World, wild: &mut Wild, input: &mut Input<'_>) -> Option<()> {
    let (what, how) = (input.byte()?, input.byte()?);
    let number = usize::from(how) % PARTS_OF_WILD;
    let part = part_at(number);
    match what % 8 {
        // Any word anywhere, or at the beginning, where bells and cursors are.
        0 => {
            let at = usize::from(input.word()?) * if how & 128 == 0 { 8 } else { 16 };
            wild.segment.scribble(at, long(input)?);
        }
        // A descriptor where the daemon looks next.
        1 => {
            let (kind, line) = (u64::from(input.byte()?), u64::from(input.byte()?));
            let lap = u64::from(lap_at(wild.sent[number], part.sizes.ring_order));
            let mut words = [lap | (kind % 12) << 16 | (line % 6) << 32, 0, 0, 0, 5, 6, 7, 8];
            for word in &mut words[1..4] {
                *word = long(input)?;
            }
            publish(wild, number, &words);
        }
        // A record with a plausible header.
        2 => {
            let (line, op) = (u32::from(input.byte()? % 6), input.byte()?);
            let kinds = [Kind::Open, Kind::Send, Kind::Request, Kind::Reply, Kind::Pad];
            let args: Vec<u32> = input.take(usize::from(how / 32)).iter().map(|byte| u32::from(*byte)).collect();
            let len = u32::from(input.byte()?);
            let head = Head { op, args: args.len() as u8, len, ..Head::new(kinds[usize::from(op) % kinds.len()]) };
            let taken = Place(u32::from(input.byte()?));
            let said = Said::Record(head.into());
            let mut words = Descriptor { line: LineId(line), taken, at: u32::from(op), said }
                .words(lap_at(wild.sent[number], part.sizes.ring_order));
            put_contents(&mut words, pack_inline(&args, &[]).unwrap_or_default());
            publish(wild, number, &words);
        }
        // A cursor, changed a little or to anything.
        3 => {
            let cursor = [Cursor::Claimed, Cursor::Taken, Cursor::Read][usize::from(how / 4) % 3];
            let near = wild.segment.cursor(part.here(cursor)).wrapping_add(u64::from(input.byte()?)).wrapping_sub(8);
            let value = if how & 128 == 0 { near } else { long(input)? };
            wild.segment.set_cursor(part.here(cursor), value);
        }
        // Bells of endpoints, existing or not; a sleep.
        4 => (0..u32::from(how)).for_each(|bell| wild.segment.ring(TO_DAEMON, bell * u32::from(what / 8))),
        5 => wild.segment.set_cursor(ASLEEP, u64::from(how)),
        // A request.
        6 => ask(wild, how, input)?,
        // Time.
        _ => world.now = world.now.plus_nanos(1 << (how % 34)),
    }
    wild.segment.ring(TO_DAEMON, number as u32);
    Some(())
}

fn publish(wild: &mut Wild, number: usize, words: &[u64; 8]) {
    wild.segment.publish(part_at(number).sent(wild.sent[number]), words);
    wild.sent[number] += 1;
}

fn ask(wild: &mut Wild, how: u8, input: &mut Input<'_>) -> Option<()> {
    let (byte, other) = (input.byte()?, input.byte()?);
    let part = u32::from(byte % 5);
    let name = Name {
        epoch: Epoch(1000 + u64::from(other % 4)),
        endpoint: EndpointId(part),
        uid: Uid(1000),
        address: HostAddress::NONE,
    };
    let sizes = Sizes { ring_order: u32::from(byte % 16), area_pages: u32::from(other) };
    let request = match how % 5 {
        0 => Request::Allocate { endpoint: EndpointId(byte.into()), key: Key(3), admission: other % 5, sizes },
        1 => Request::Free { part },
        2 => Request::SetKey { part, key: Key(byte.into()) },
        3 => Request::SetAdmission { part, admission: other },
        _ => Request::Open { part, to: name },
    };
    let system = part_at(0);
    let mut words = request.with(|op, args, payload| {
        let head = Head {
            op,
            slot: other.into(),
            args: args.len() as u8,
            len: payload.len() as u32,
            ..Head::new(Kind::Request)
        };
        let said = Said::Record(head.into());
        let descriptor = Descriptor { line: LineId::SYSTEM, taken: Place(0), at: 0, said };
        let mut words = descriptor.words(lap_at(wild.sent[0], SYSTEM.ring_order));
        match pack_inline(args, payload) {
            Some(contents) => put_contents(&mut words, contents),
            None => {
                let mut packed = Vec::new();
                weft_wire::descriptor::pack(args, payload, &mut packed);
                wild.segment.write(system.send_area(), &packed);
            }
        }
        words
    });
    if how & 64 != 0 {
        words[2] ^= u64::from(byte) << (other % 57);
    }
    publish(wild, 0, &words);
    // Takes its answers, so that there is room for more.
    let taken = wild.segment.cursor(system.here(Cursor::Taken)) + u64::from(how / 128);
    wild.segment.set_cursor(system.here(Cursor::Taken), taken);
    wild.segment.ring(TO_DAEMON, 0);
    Some(())
}
