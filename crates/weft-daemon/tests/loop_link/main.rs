//! Messages between programs of one host through the daemon.

mod crowd;
mod fair;
mod flood;
mod hostile;
mod looks;
mod many;
mod model;
#[path = "../programs/mod.rs"]
mod programs;
mod rates;
mod restless;
mod stores;
mod world;

use programs::FILE;
use weft_core::port::Allocated;
use weft_core::{Admission, MessageKind};
use weft_daemon::testing::MemSegment;
use weft_daemon::{Engine, Limits, Newcomer, Policy, Refused, Settings};
use weft_wire::attach::{Request, OPENED_BYTES};
use weft_wire::descriptor::{lap_at, units, Descriptor, LineId, Place, Said};
use weft_wire::segment::{Cursor, Segment, Sizes, AREA_PAGES, ASLEEP, PAGE, PARTS, SYSTEM, TO_DAEMON};
use weft_wire::{Certainty, EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};
use world::World;

const SMALL: Sizes = Sizes { ring_order: 4, area_pages: *AREA_PAGES.start() };

fn pair() -> (World, (usize, weft_core::Endpoint), (usize, weft_core::Endpoint)) {
    let mut world = World::new(Settings::default());
    let (a, b) = (world.attach(1000), world.attach(1000));
    let (x, y) = (world.endpoint(a, 7), world.endpoint(b, 8));
    world.map((a, x), 0, (b, y), 8);
    world.map((b, y), 0, (a, x), 7);
    (world, (a, x), (b, y))
}

#[test]
fn messages_of_all_sizes_come_in_order_with_their_contents() {
    let (mut world, from, to) = pair();
    let sizes = [0, 1, 8, 16, 24, 32, 33, 100, 1000, 4096, 5000, 65_536, 3, 65_535];
    for (number, &bytes) in sizes.iter().cycle().take(400).enumerate() {
        let payload: Vec<u8> = (0..bytes).map(|at| (at * 7 + number) as u8).collect();
        let args: Vec<u32> = (0..number as u32 % 17).map(|arg| arg + number as u32).collect();
        world.send(from, 0, &args, &payload);
    }
    world.settle();
    let messages = std::mem::take(&mut world.programs[to.0].log.messages);
    assert_eq!(messages.len(), 400);
    for ((number, &bytes), (endpoint, kind, op, args, payload)) in sizes.iter().cycle().enumerate().zip(messages) {
        assert_eq!((endpoint, kind, op), (to.1, MessageKind::OneWay, 1));
        assert_eq!(args, (0..number as u32 % 17).map(|arg| arg + number as u32).collect::<Vec<_>>());
        assert!(
            payload.len() == bytes && payload.iter().enumerate().all(|(at, byte)| *byte == (at * 7 + number) as u8)
        );
    }
    world.drain(from.0);
}

#[test]
fn requests_are_answered_both_ways() {
    let (mut world, a, b) = pair();
    for number in 0..1000u32 {
        world.request(a, 0, &[number], &number.to_le_bytes());
        world.request(b, 0, &[number, 1], &[]);
    }
    world.settle();
    for (program, expected) in [(a.0, 1000), (b.0, 1000)] {
        let log = &world.programs[program].log;
        let count = |wanted| log.messages.iter().filter(|(_, kind, ..)| *kind == wanted).count();
        assert_eq!([count(MessageKind::Request), count(MessageKind::Reply)], [expected, expected]);
        assert!(log.returned.is_empty());
    }
}

#[test]
fn callers_without_the_key_and_other_users_are_refused() {
    let mut world = World::new(Settings::default());
    let (a, b) = (world.attach(1000), world.attach(1001));
    let (x, y, open) = (world.endpoint(a, 7), world.endpoint(b, 8), world.endpoint(b, 9));
    let set = &mut world.programs[b];
    let id = set.core.state().name(open).expect("an endpoint").endpoint;
    set.sessions.set_admission(id, Admission::AnyUser);
    set.core.state_mut().set_admission(open, Admission::AnyUser).expect("set");
    world.programs[a].core.state_mut().set_admission(x, Admission::AnyUser).expect("set");
    world.map((a, x), 0, (b, y), 8);
    world.map((a, x), 1, (b, open), 8);
    world.map((a, x), 2, (b, open), 9);
    for to in 0..3 {
        world.send((a, x), to, &[to], b"to whom it may concern");
    }
    world.settle();
    let reasons: Vec<_> = world.programs[a].log.returned.iter().map(|r| (r.reason, r.certainty)).collect();
    let not_delivered = Certainty::NotDelivered;
    assert_eq!(reasons, [(Reason::ForeignUser, not_delivered), (Reason::ForeignUser, not_delivered)]);
    assert_eq!(world.programs[b].log.messages.len(), 1);
}

#[test]
fn who_does_not_poll_holds_up_its_own_messages_alone() {
    let mut world = World::new(Settings::default());
    let programs = [0; 3].map(|_| world.attach(1000));
    let [y, z] = [1, 2].map(|program| (programs[program], world.endpoint(programs[program], 5)));
    // Each sender may have half a ring of messages under way, so the ring of the stopped program is full before they are told *full*.
    let senders = [1, 2, 3, 4].map(|key| (0, world.endpoint(0, key)));
    for from in senders {
        world.map(from, 0, y, 5);
        world.map(from, 1, z, 5);
        world.send(from, 0, &[0], b"first");
        world.send(from, 1, &[0], b"first");
    }
    world.settle();
    let stopped = world.programs.remove(1);
    let mut sent = [1; 4];
    for (from, sent) in senders.iter().zip(&mut sent) {
        while world.programs[0].core.state_mut().try_send(from.1, 0, outgoing(&[*sent], b"to one that sleeps")).is_ok()
        {
            *sent += 1;
            world.turn();
        }
    }
    for number in 1..2000u32 {
        for from in senders {
            world.send(from, 1, &[number], b"to one that listens");
        }
    }
    world.settle_without_returns();
    assert_eq!(world.programs[1].log.messages.len(), 4 * 2000);
    assert!(world.engine.counters().refused > 0 && world.engine.stalled() > 0);
    // It polls again, and gets everything in order.
    world.programs.insert(1, stopped);
    world.settle();
    let log = &world.programs[1].log;
    assert_eq!(log.messages.len() as u32, sent.iter().sum::<u32>());
    assert_eq!(world.engine.stalled(), 0);
    world.drain(0);
}

fn outgoing<'a>(args: &'a [u32], payload: &'a [u8]) -> weft_core::Outgoing<'a> {
    weft_core::Outgoing { op: 1, args, payload, completion: None }
}

#[test]
fn more_endpoints_than_frames_all_get_their_messages() {
    for policy in [Policy::Random, Policy::Clock, Policy::Lru] {
        let mut world = World::new(Settings { frames: 4, policy, ..Settings::default() });
        let (a, b) = (world.attach(1000), world.attach(1000));
        let mut small = |program, key| world.endpoint_with(program, key, SMALL).expect("an endpoint");
        let pairs: Vec<_> = (0..40).map(|n| (small(a, n + 1), small(b, n + 100))).collect();
        for (number, (x, y)) in pairs.iter().enumerate() {
            world.map((a, *x), 0, (b, *y), number as u64 + 100);
        }
        for round in 0..30u32 {
            for (x, _) in &pairs {
                world.send((a, *x), 0, &[round], &[round as u8; 100]);
            }
        }
        world.settle();
        for (_, y) in &pairs {
            let log = &world.programs[b].log;
            let rounds: Vec<u32> =
                log.messages.iter().filter(|(to, ..)| to == y).map(|(.., args, _)| args[0]).collect();
            assert_eq!(rounds, (0..30).collect::<Vec<_>>(), "{policy:?}");
        }
        assert!(world.engine.resident() <= 4);
        assert!(world.engine.counters().evicted > 40, "{:?}", world.engine.counters());
    }
}

#[test]
fn without_the_writable_state_a_bell_asks_for_a_frame_and_writing_waits_for_it() {
    for has_writable_state in [true, false] {
        let mut world = World::new(Settings { frames: 1, has_writable_state, ..Settings::default() });
        let (a, b) = (world.attach(1000), world.attach(1000));
        let mut small = |program, key| world.endpoint_with(program, key, SMALL).expect("an endpoint");
        let pairs: Vec<_> = (0..4).map(|n| (small(a, n + 1), small(b, n + 100))).collect();
        for (number, (x, y)) in pairs.iter().enumerate() {
            world.map((a, *x), 0, (b, *y), number as u64 + 100);
            world.send((a, *x), 0, &[], b"first");
        }
        world.settle();
        let segment = world.programs[a].sessions.port().borrow().platform().segment.clone();
        let bound = world.engine.counters().bound;
        for (number, (x, _)) in pairs.iter().enumerate() {
            let name = world.name(a, *x);
            // The part of the system endpoint is number 0.
            segment.ring(TO_DAEMON, number as u32 + 1);
            let waits = (0..1000).take_while(|_| !world.engine.is_resident(&name) && world.turn() < 1000).count();
            if !has_writable_state {
                assert!(waits < 1000 && world.engine.is_resident(&name), "it comes within a few milliseconds");
                world.send((a, *x), 0, &[], b"second");
            }
        }
        world.settle();
        assert_eq!(world.engine.counters().bound == bound, has_writable_state);
        let came = world.programs[b].log.messages.len();
        assert_eq!(came, if has_writable_state { 4 } else { 8 });
        assert!(!world.engine.is_resident(&Name { epoch: Epoch(9), ..world.name(a, pairs[0].0) }));
    }
}

#[test]
fn what_a_dead_program_had_not_taken_comes_back() {
    let (mut world, a, b) = pair();
    world.send(a, 0, &[], b"taken");
    world.settle();
    let dead = world.programs.remove(b.0);
    for number in 0..50u32 {
        world.send(a, 0, &[number], &[number as u8; 60]);
        world.turn();
    }
    world.programs.insert(b.0, dead);
    world.kill(b.0);
    world.programs.remove(b.0);
    world.settle();
    let log = &world.programs[a.0].log;
    let numbers: Vec<u32> = log.returned.iter().map(|returned| returned.args[0]).collect();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    assert!(log.returned.iter().all(|r| (r.reason, r.certainty) == (Reason::PeerLost, Certainty::NotDelivered)));
    assert_eq!((world.engine.attachments(), world.engine.endpoints()), (1, 1));
}

#[test]
fn what_a_program_sent_before_it_died_comes() {
    let (mut world, a, b) = pair();
    world.send(a, 0, &[], b"first");
    world.settle();
    for number in 0..20u32 {
        let message = outgoing(std::slice::from_ref(&number), b"last words");
        world.programs[a.0].core.state_mut().try_send(a.1, 0, message).expect("room");
    }
    world.kill(a.0);
    world.programs.remove(a.0);
    world.settle();
    assert_eq!(world.programs[0].log.messages.len(), 21);
    let _ = b;
}

#[test]
fn calls_of_programs_that_are_not_back_yet_wait() {
    let mut world = World::new(Settings::default());
    let a = world.attach(1000);
    let x = world.endpoint(a, 7);
    // Its name is known from before, and it attaches later.
    let to = Name { epoch: Epoch(1001), endpoint: EndpointId(0), uid: Uid(1000), address: HostAddress::NONE };
    let gone = Name { epoch: Epoch(9), ..to };
    let state = world.programs[a].core.state_mut();
    state.map(x, 0, to, Key(8)).expect("mapped");
    state.map(x, 1, gone, Key(8)).expect("mapped");
    for index in [0, 1] {
        assert!(world.programs[a].core.state_mut().try_send(x, index, outgoing(&[], b"first")).is_err(), "it calls");
    }
    (0..100).for_each(|_| _ = world.turn());
    assert!(world.programs[a].log.returned.is_empty());
    let b = world.attach(1000);
    assert_eq!(world.programs[b].epoch, to.epoch);
    world.endpoint(b, 8);
    world.send((a, x), 0, &[], b"to who is back");
    world.settle();
    assert_eq!(world.programs[b].log.messages.len(), 1);
    // The other program does not come.
    world.now = world.now.plus_nanos(3_000_000_000);
    world.send((a, x), 1, &[], b"to who is gone");
    world.settle();
    assert_eq!(world.programs[a].log.returned[0].reason, Reason::NobodyThere);
}

#[test]
fn messages_that_come_before_a_program_learns_of_its_new_endpoint_are_not_lost() {
    let mut world = World::new(Settings::default());
    let (a, b) = (world.attach(1000), world.attach(1000));
    let x = world.endpoint(a, 7);
    let name =
        Name { epoch: world.programs[b].epoch, endpoint: EndpointId(0), uid: Uid(1000), address: HostAddress::NONE };
    world.programs[b].core.state_mut().add_endpoint(name, Key(8));
    world.programs[b].sessions.restore(name.endpoint, Key(8), Admission::default(), SMALL);
    world.programs[b].poll();
    // While its program does other things, the endpoint is made, and a peer that waited for it writes.
    world.programs[a].core.state_mut().map(x, 0, name, Key(8)).expect("mapped");
    let mut has_sent = false;
    for _ in 0..100 {
        world.now = world.now.plus_nanos(10_000);
        has_sent = has_sent || world.programs[a].core.state_mut().try_send(x, 0, outgoing(&[], b"early")).is_ok();
        world.engine.poll(world.now);
        world.programs[a].poll();
    }
    assert!(has_sent);
    world.settle();
    assert_eq!(world.programs[b].log.messages.len(), 1);
}

#[test]
fn a_user_has_so_many_calls_waiting_in_all_its_programs_and_their_end_gives_them_back() {
    let limits = Limits { calls: 6, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..Settings::default() });
    let callers = [1000, 1000, 1001].map(|user| world.attach(user));
    let asked = callers.map(|program| {
        let x = world.endpoint(program, 7);
        for index in 0..4 {
            let to = Name { epoch: Epoch(1), endpoint: EndpointId(index), uid: Uid(1000), address: HostAddress::NONE };
            let state = world.programs[program].core.state_mut();
            state.map(x, index, to, Key(8)).expect("mapped");
            assert!(state.try_send(x, index, outgoing(&[], b"first")).is_err(), "it calls");
        }
        (0..20).for_each(|_| _ = world.turn());
        x
    });
    // Three of the six calls are the first user's. Of those left, one is the next user's.
    let counts = |world: &mut World| {
        callers.map(|program| {
            (0..4)
                .filter(|to| {
                    let found = world.programs[program].core.state_mut();
                    let at = callers.iter().position(|other| *other == program).expect("a caller");
                    matches!(found.try_send(asked[at], *to, outgoing(&[], b"first")), Err(weft_core::SendError::Full))
                })
                .count()
        })
    };
    assert_eq!(counts(&mut world), [3, 0, 1]);
    world.kill(callers[0]);
    world.kill(callers[1]);
    world.kill(callers[2]);
    assert_eq!(world.engine.kept().into_iter().find(|(what, _)| *what == "accounts"), Some(("accounts", 0)));
}

#[test]
fn who_may_not_attach_is_refused() {
    let limits = Limits { attachments: 4, ..Limits::default() };
    let mut engine = Engine::new(Settings { limits, ..Settings::default() });
    let mut attach = |user, epoch, bytes| {
        let newcomer = Newcomer { segment: MemSegment::new(bytes), user: Uid(user), epoch: Epoch(epoch) };
        engine.attach(newcomer).map(|_| ())
    };
    assert_eq!(attach(1, 7, FILE), Ok(()));
    assert_eq!(attach(1, 7, FILE), Ok(()), "another bundle of the same process");
    assert_eq!(attach(2, 7, FILE), Err(Refused::Epoch));
    assert_eq!(attach(1, 8, FILE), Err(Refused::Quota));
    assert_eq!(attach(2, 9, PARTS + 4096), Err(Refused::Memory));
}

#[test]
fn the_quota_of_a_user_leaves_something_to_the_next() {
    let limits = Limits { endpoints: 12, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..Settings::default() });
    let (a, b) = (world.attach(1000), world.attach(1001));
    let made =
        |world: &mut World, program| (0..12).take_while(|n| world.endpoint_with(program, *n, SMALL).is_ok()).count();
    assert_eq!([made(&mut world, a), made(&mut world, b)], [6, 2]);
}

#[test]
fn an_endpoint_is_made_though_as_many_other_requests_wait_as_may() {
    let mut world = World::new(Settings::default());
    let a = world.attach(1000);
    let x = world.endpoint(a, 1);
    let id = world.name(a, x).endpoint;
    let found = &mut world.programs[a].sessions;
    (0..100).for_each(|key| found.set_key(id, Key(key)));
    // Its program gets no other answer until it has this one.
    assert!(found.allocate(EndpointId(99), Key(1), Sizes::default()));
    for _ in 0..100 {
        world.now = world.now.plus_nanos(10_000);
        world.engine.poll(world.now);
        world.programs[a].sessions.look_for_endpoint();
    }
    assert_eq!(world.programs[a].sessions.allocated(), Allocated::Yes);
}

#[test]
fn pages_count_until_the_attachment_ends_because_they_stay_allocated() {
    let pages = |sizes: Sizes| (sizes.bytes() / PAGE) as u64;
    let own = (PARTS / PAGE) as u64 + pages(SYSTEM);
    // The first user's half fits two small parts and nothing else.
    let limits = Limits { pages: 2 * (own + 2 * pages(SMALL)), ..Limits::default() };
    let mut world = World::new(Settings { limits, ..Settings::default() });
    let a = world.attach(1000);
    let first = world.endpoint_with(a, 1, SMALL).expect("room");
    world.endpoint_with(a, 2, SMALL).expect("room");
    assert_eq!(world.endpoint_with(a, 3, SMALL).err(), Some(Reason::NoRoom));
    assert!(!world.engine.may_attach(Uid(1000)));
    let free = |world: &mut World, endpoint| {
        let id = world.name(a, endpoint).endpoint;
        world.programs[a].core.state_mut().free_endpoint(endpoint).expect("it is there");
        world.programs[a].sessions.free(id);
        world.settle();
    };
    free(&mut world, first);
    let larger = Sizes { area_pages: SMALL.area_pages + 1, ..SMALL };
    assert_eq!(world.endpoint_with(a, 4, larger).err(), Some(Reason::NoRoom), "the freed one's pages are in use still");
    let again = world.endpoint_with(a, 5, SMALL).expect("the place of the first one");
    free(&mut world, again);
    world.kill(a);
    assert!(world.engine.may_attach(Uid(1000)));
    assert_eq!(world.engine.kept().into_iter().find(|(what, _)| *what == "accounts"), Some(("accounts", 0)));
}

/// A part of an endpoint that a test uses by hand: its program does not poll.
struct Raw {
    segment: MemSegment,
    part: weft_wire::segment::Part,
    sent: u64,
}

impl Raw {
    fn of(world: &World, (program, endpoint): (usize, weft_core::Endpoint)) -> Raw {
        let segment = world.programs[program].sessions.port().borrow().platform().segment.clone();
        let part = world.engine.part_of(&world.name(program, endpoint)).expect("an endpoint");
        Raw { segment, part, sent: 0 }
    }

    fn say(&mut self, line: u32, said: Said) {
        let words = Descriptor { line: LineId(line), taken: Place(0), at: 0, said };
        self.segment.publish(self.part.sent(self.sent), &words.words(lap_at(self.sent, self.part.sizes.ring_order)));
        self.segment.ring(TO_DAEMON, 1);
        self.sent += 1;
    }

    /// What lies in the receive ring from a position on.
    fn said(&self, from: u64) -> Vec<Descriptor> {
        let at =
            |position| self.segment.look(self.part.received(position), lap_at(position, self.part.sizes.ring_order));
        (from..).map_while(at).map(|words| Descriptor::check(&words).expect("the daemon's")).collect()
    }

    fn take(&self, descriptors: u64) {
        let units = 2 * units(OPENED_BYTES);
        self.segment.set_cursor(self.part.here(Cursor::Read), units.into());
        self.segment.set_cursor(self.part.here(Cursor::Taken), descriptors);
        self.segment.ring(TO_DAEMON, 1);
    }
}

/// An endpoint whose ring is full, and two others that send to it. Its program does not poll.
fn full() -> (World, Raw, usize, [weft_core::Endpoint; 2]) {
    let mut world = World::new(Settings::default());
    let (a, b) = (world.attach(1000), world.attach(1000));
    let y = world.endpoint_with(b, 8, SMALL).expect("an endpoint");
    let senders = [1, 2].map(|key| world.endpoint(a, key));
    for from in senders {
        world.map((a, from), 0, (b, y), 8);
    }
    let raw = Raw::of(&world, (b, y));
    world.programs.truncate(b);
    for number in 0..20 {
        for from in senders {
            world.send((a, from), 0, &[number], b"more than it has room for");
        }
        // Both have opened their lines before the ring is full.
        (0..if number == 0 { 20 } else { 0 }).for_each(|_| _ = world.turn());
    }
    world.settle_without_returns();
    assert_eq!(raw.said(0).len(), 16, "it is full");
    (world, raw, a, senders)
}

#[test]
fn all_owed_words_are_told_even_if_telling_one_forgets_its_line() {
    let (mut world, mut raw, a, senders) = full();
    // Both sides end a line at once. The other line is ended only by its sender.
    raw.say(1, Said::Closed { reason: Reason::Closed, touched: Place(0) });
    world.turn();
    for from in senders {
        let name = world.name(a, from);
        world.programs[a].core.state_mut().free_endpoint(from).expect("it is there");
        let part = 1 + name.endpoint.0;
        world.programs[a].sessions.port().borrow_mut().ask(&Request::Free { part }).expect("room");
    }
    world.turn();
    raw.take(16);
    world.settle_without_returns();
    let ended = raw.said(16).into_iter().filter(|said| matches!(said.said, Said::Closed { .. }));
    assert_eq!(ended.map(|said| said.line.0).collect::<Vec<_>>(), [1, 2]);
    let owing = world.engine.kept().into_iter().find(|(what, _)| *what == "owing");
    assert_eq!(owing, Some(("owing", 0)));
}

#[test]
fn a_bell_that_tells_of_room_alone_is_work() {
    let (mut world, raw, ..) = full();
    let bells = world.engine.counters().false_bells;
    // The senders sleep, and are woken to send again.
    world.programs[0].sessions.port().borrow().platform().segment.set_cursor(ASLEEP, 1);
    raw.take(16);
    world.now = world.now.plus_nanos(10_000);
    assert!(world.engine.poll(world.now) > 0, "it says that it did something");
    assert_eq!(world.engine.take_wakes(), [world.programs[0].id]);
    assert_eq!(world.engine.counters().false_bells, bells);
}

#[test]
fn a_sender_that_leaves_a_refused_line_sends_nothing_on_it_later() {
    let (mut world, raw, a, _) = full();
    let sessions: Vec<_> = world.programs[a].core.state().sessions().map(|(session, _)| session).collect();
    let program = &mut world.programs[a];
    for session in sessions {
        program.sessions.close(session, Reason::Violation);
        program.core.lose(session, Reason::Violation, &mut program.log);
    }
    // The daemon's word about room and the ends cross each other.
    raw.take(16);
    world.settle_without_returns();
    assert_eq!(world.engine.take_broken(), []);
    let returned = &world.programs[a].log.returned;
    let count = |certainty| returned.iter().filter(|message| message.certainty == certainty).count();
    // The ring had the names and the flows of both senders, and twelve messages.
    assert_eq!([count(Certainty::Unknown), count(Certainty::NotDelivered)], [12, 28]);
}

#[test]
fn the_last_look_before_sleep_finds_room_at_all_endpoints() {
    let mut world = World::new(Settings::default());
    let (a, b) = (world.attach(1000), world.attach(1000));
    let x = world.endpoint(a, 1);
    let full: Vec<Raw> = (0..70)
        .map(|number| {
            let y = world.endpoint_with(b, 8, SMALL).expect("an endpoint");
            world.map((a, x), number, (b, y), 8);
            Raw::of(&world, (b, y))
        })
        .collect();
    world.programs.truncate(b);
    for number in 0..20 {
        for to in 0..70 {
            let _ = world.programs[a].core.state_mut().try_send(x, to, outgoing(&[number], b"more"));
            world.turn();
        }
    }
    world.settle_without_returns();
    assert!(full.iter().all(|raw| raw.said(0).len() == 16) && world.engine.stalled() == 70, "all are full");
    // They make room, and the daemon does not hear their bells.
    for raw in &full {
        raw.segment.set_cursor(raw.part.here(Cursor::Read), units(OPENED_BYTES).into());
        raw.segment.set_cursor(raw.part.here(Cursor::Taken), 16);
    }
    world.engine.poll(world.now);
    assert_eq!(world.engine.stalled(), 70 - 64, "a turn looks at so many");
    assert_eq!((world.engine.look_before_sleep(), world.engine.stalled()), (6, 0));
}
