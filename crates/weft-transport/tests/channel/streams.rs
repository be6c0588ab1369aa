//! Streams that arriving records open, and that are closed at rest.

use crate::hostile::{Liar, START};
use crate::world::{micros, record, seed, World};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_transport::testing::Faults;
use weft_transport::{Event, Random, Verdict};
use weft_wire::frame::{Frame, Rest, Side, StreamId};
use weft_wire::path::{Fate, Peek, PushError};
use weft_wire::Reason;

/// Opens a stream at a host, whose program and the other's read it from now on.
fn open(world: &mut World, at: usize) -> StreamId {
    let stream = world.channel(at).open_next().expect("room");
    for host in &mut world.hosts {
        host.program.got.insert(stream, 0);
        host.program.to_send.insert(stream, (0, 0));
    }
    stream
}

/// Orders records on one stream.
fn order(world: &mut World, at: usize, stream: StreamId, records: u32) {
    world.hosts[at].program.to_send.entry(stream).or_default().0 += records;
}

/// The events at a host since the last call, except for readable ones.
fn events(world: &mut World, at: usize) -> Vec<Event> {
    let events = std::mem::take(&mut world.hosts[at].program.events);
    events.into_iter().filter(|event| !matches!(event, Event::Readable(_) | Event::Open)).collect()
}

fn run(world: &mut World) {
    world.run(Duration::from_millis(20)).expect("in order");
}

/// A stream with records in both directions, all of which were taken.
fn used(world: &mut World, at: usize) -> StreamId {
    let stream = open(world, at);
    order(world, 0, stream, 20);
    order(world, 1, stream, 10);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    run(world);
    stream
}

/// Has the opener ask to close a stream at rest, and the other side agree or not. Returns the opener's events.
fn rest(world: &mut World, at: usize, stream: StreamId, agrees: bool) -> Vec<Event> {
    world.channel(at).wish_rest(stream);
    run(world);
    assert_eq!(events(world, 1 - at), [Event::Asks(stream)]);
    assert_eq!(world.channel(1 - at).answer_rest(stream, agrees), agrees);
    run(world);
    events(world, at)
}

#[test]
fn the_first_records_of_a_stream_open_it_at_the_other_side() {
    let mut world = World::connected(0, seed());
    let bad = Faults { drop: 100_000, duplicate: 100_000, reorder: 200_000, corrupt: 0, late_most: micros(2000) };
    world.links.iter_mut().for_each(|link| link.faults = bad);
    let streams: Vec<StreamId> = (0..40).map(|n| open(&mut world, n % 2)).collect();
    assert_eq!(streams[..3], [0, 1, 2].map(StreamId));
    for (n, stream) in streams.iter().enumerate() {
        order(&mut world, n % 2, *stream, 100);
    }
    world.run_until_done(Duration::from_secs(20)).expect("in order");
    // The other side answers by the same streams.
    for (n, stream) in streams.iter().enumerate() {
        order(&mut world, 1 - n % 2, *stream, 50);
    }
    world.run_until_done(Duration::from_secs(20)).expect("in order");
}

#[test]
fn a_stream_at_rest_is_closed_by_both_sides_and_its_place_has_the_next_life() {
    for at in [0, 1] {
        let mut world = World::connected(0, 1);
        let [first, other] = [0, 1].map(|_| used(&mut world, at));
        for life in 0..5 {
            let stream = StreamId::new(first.side(), 0, life);
            let memory = world.channel(1 - at).memory();
            assert_eq!(rest(&mut world, at, stream, true), [Event::Rested(stream, u32::MAX)]);
            assert_eq!(world.channel(at).send(stream, record(stream, 0, 8).0, &[], &[]), Err(PushError::Gone));
            assert!(world.channel(1 - at).memory() < memory);
            for host in &mut world.hosts {
                host.program.got.remove(&stream);
                host.program.to_send.remove(&stream);
            }
            assert_eq!(used(&mut world, at), stream.next_life());
        }
        // The other stream goes on.
        order(&mut world, 0, other, 10);
        world.run_until_done(Duration::from_secs(1)).expect("in order");
    }
}

#[test]
fn an_unused_stream_is_closed_without_a_packet() {
    let mut world = World::connected(0, 1);
    let stream = open(&mut world, 0);
    world.channel(0).set_owner(stream, 7);
    let packets = world.packets;
    world.channel(0).wish_rest(stream);
    run(&mut world);
    assert_eq!((events(&mut world, 0), world.packets), (vec![Event::Rested(stream, 7)], packets));
    assert_eq!(world.channel(0).open_next(), Ok(stream.next_life()));
}

#[test]
fn a_stream_on_which_the_other_side_has_something_stays() {
    let mut world = World::connected(0, 1);
    let stream = used(&mut world, 0);
    assert_eq!(rest(&mut world, 0, stream, false), [Event::Stays(stream)]);
    // The same proposal is not made again, because the answer would be the same.
    world.channel(0).wish_rest(stream);
    run(&mut world);
    assert_eq!(events(&mut world, 1), []);
    order(&mut world, 0, stream, 10);
    order(&mut world, 1, stream, 10);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    run(&mut world);
    assert_eq!(rest(&mut world, 0, stream, true), [Event::Rested(stream, u32::MAX)]);
}

#[test]
fn nothing_is_sent_on_a_stream_while_its_opener_waits_for_the_answer() {
    let mut world = World::connected(0, 1);
    let stream = used(&mut world, 0);
    world.channel(0).wish_rest(stream);
    run(&mut world);
    let (head, args, payload) = record(stream, 20, 40);
    assert_eq!(world.channel(0).send(stream, head, &args, &payload), Err(PushError::Full));
    assert!(!world.channel(0).has_room(stream, 1, 1));
    assert!(!world.channel(1).answer_rest(stream, false));
    run(&mut world);
    assert_eq!(events(&mut world, 0), [Event::Stays(stream), Event::Room(stream)]);
    assert_eq!(world.channel(0).send(stream, head, &args, &payload), Ok(()));
}

#[test]
fn what_the_other_side_has_sent_meanwhile_keeps_a_stream_open() {
    let mut world = World::connected(0, 1);
    let stream = used(&mut world, 0);
    // It is in flight when the proposal arrives.
    world.channel(0).wish_rest(stream);
    world.transmit(0);
    order(&mut world, 1, stream, 1);
    run(&mut world);
    assert_eq!(events(&mut world, 1), [Event::Asks(stream)]);
    assert!(!world.channel(1).answer_rest(stream, true), "it has sent something since");
    run(&mut world);
    assert_eq!(events(&mut world, 0), [Event::Stays(stream)]);
    assert_eq!(world.hosts[0].program.got[&stream], 11);
}

#[test]
fn sending_before_the_proposal_cancels_it() {
    let mut world = World::connected(0, 1);
    let stream = used(&mut world, 0);
    world.hosts[1].program.deaf.push(stream);
    order(&mut world, 0, stream, 1);
    run(&mut world);
    // Not everything is taken, so nobody is asked.
    world.channel(0).wish_rest(stream);
    run(&mut world);
    order(&mut world, 0, stream, 1);
    run(&mut world);
    world.hosts[1].program.deaf.clear();
    order(&mut world, 1, stream, 1);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
    run(&mut world);
    assert_eq!((events(&mut world, 0), events(&mut world, 1)), (vec![], vec![]));
}

#[test]
fn a_refusal_closes_one_stream_and_no_other() {
    let mut world = World::connected(0, 1);
    let [refused, other] = [0, 1].map(|_| open(&mut world, 0));
    world.hosts[1].program.deaf.push(refused);
    order(&mut world, 0, refused, 5);
    order(&mut world, 0, other, 5);
    run(&mut world);
    assert!(world.channel(1).close(refused, Reason::WrongKey).is_empty());
    run(&mut world);
    assert_eq!(events(&mut world, 0), [Event::Refused(refused, Reason::WrongKey)]);
    let returned = world.channel(0).close(refused, Reason::WrongKey);
    assert_eq!((returned.len(), returned.iter().filter(|r| r.fate == Fate::Untouched).count()), (5, 5));
    // The peer has closed it as well, so the place is free at once.
    let packets = world.packets[0];
    assert_eq!(open(&mut world, 0), refused.next_life());
    assert_eq!(world.packets[0], packets);
    order(&mut world, 0, refused.next_life(), 5);
    order(&mut world, 0, other, 5);
    world.hosts[0].program.to_send.remove(&refused);
    world.run_until_done(Duration::from_secs(1)).expect("in order");
}

#[test]
fn an_end_closes_all_streams_for_certain() {
    let mut world = World::connected(0, 1);
    let streams: Vec<StreamId> = (0..200).map(|n| open(&mut world, n % 2)).collect();
    world.hosts[1].program.deaf.clone_from(&streams);
    for stream in &streams {
        order(&mut world, 0, *stream, 3);
        order(&mut world, 1, *stream, 3);
    }
    // More streams than may be new at once: some records are sent again after the program has read others.
    world.hosts[1].program.deaf.clear();
    world.run_until_done(Duration::from_secs(30)).expect("in order");
    world.hosts[1].program.deaf.clone_from(&streams);
    for stream in &streams {
        order(&mut world, 0, *stream, 3);
    }
    run(&mut world);
    events(&mut world, 0);
    // The last words do not fit into one packet, and the first of them is lost.
    world.links[1].faults.drop = 1_000_000;
    assert!(world.channel(1).end(Reason::PeerLost).iter().all(|(_, records)| records.is_empty()));
    world.transmit(1);
    world.links[1].faults.drop = 0;
    world.run(Duration::from_secs(1)).expect("in order");
    let told = events(&mut world, 0);
    assert_eq!(told.last(), Some(&Event::Ended(Reason::PeerLost)), "behind all others");
    assert_eq!(told.len(), streams.len() + 1);
    for stream in streams {
        let returned = world.channel(0).close(stream, Reason::PeerLost);
        assert!(returned.len() == 3 && returned.iter().all(|r| r.fate == Fate::Untouched), "{stream:?}");
    }
    // A stream that is opened afterwards is refused, and none of it was delivered.
    let late = open(&mut world, 0);
    order(&mut world, 0, late, 3);
    run(&mut world);
    assert_eq!(events(&mut world, 0), [Event::Refused(late, Reason::PeerLost)]);
    assert!(world.channel(0).close(late, Reason::PeerLost).iter().all(|r| r.fate == Fate::Untouched));
}

/// Streams come and go in both directions over a bad link. No record is lost, doubled or returned.
#[test]
fn streams_that_close_at_rest_at_any_moment_lose_nothing() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut world = World::connected(0, seed);
    let bad = Faults { drop: 100_000, duplicate: 100_000, reorder: 200_000, corrupt: 0, late_most: micros(2000) };
    world.links.iter_mut().for_each(|link| link.faults = bad);
    let mut open_streams: BTreeMap<StreamId, usize> = BTreeMap::new();
    let (mut rested, mut stayed, mut records) = (0, 0, 0);
    for _ in 0..6000 {
        let at = random.below(2) as usize;
        if open_streams.len() < 6 {
            let stream = open(&mut world, at);
            open_streams.insert(stream, at);
        }
        let nth = random.below(open_streams.len() as u64) as usize;
        let (&stream, &opener) = open_streams.iter().nth(nth).expect("there are so many");
        match random.below(4) {
            0 => world.channel(opener).wish_rest(stream),
            // The program sends on a stream that it knows to be open. The other side may have closed it, which the
            // opener has not heard.
            1 if world.channel(1 - opener).is_confirmed(stream) => order(&mut world, 1 - opener, stream, 1),
            _ => order(&mut world, opener, stream, random.below(3) as u32),
        }
        world.run(micros(random.below(1500))).expect("in order");
        for host in [0, 1] {
            for event in events(&mut world, host) {
                match event {
                    Event::Asks(stream) => {
                        let agrees = random.below(4) > 0;
                        world.channel(host).answer_rest(stream, agrees);
                    }
                    Event::Rested(stream, _) => {
                        rested += 1;
                        open_streams.remove(&stream);
                        let sent = [0, 1].map(|at| world.hosts[at].program.to_send.remove(&stream).expect("known"));
                        let got = [1, 0].map(|at| world.hosts[at].program.got.remove(&stream).expect("known"));
                        // Records that were ordered later find the stream gone.
                        assert_eq!(sent.map(|(_, sent)| sent), got, "{stream:?}, seed {seed}");
                        records += got.iter().sum::<u32>();
                    }
                    Event::Stays(_) => stayed += 1,
                    Event::Room(_) => {}
                    other => panic!("{other:?}, seed {seed}"),
                }
            }
        }
    }
    assert!(rested > 200 && stayed > 30 && records > 500, "{rested} {stayed} {records}, seed {seed}");
}

#[test]
fn records_of_an_earlier_life_are_acknowledged_and_dropped() {
    let mut liar = Liar::new();
    let id = |life| StreamId::new(Side::Answerer, 5, life);
    let bytes = &[4; 16][..];
    let say = |liar: &mut Liar, stream| liar.say(&[Frame::Records { stream, offset: START, bytes }]);
    assert_eq!(say(&mut liar, id(3)), Verdict::Taken);
    assert!(matches!(liar.world.channel(0).peek(id(3)), Peek::Broken(_) | Peek::Record(_)));
    assert_eq!(say(&mut liar, id(2)), Verdict::Taken);
    assert!(matches!(liar.world.channel(0).peek(id(2)), Peek::Empty));
    // The owner has not closed the previous stream at this place.
    assert_eq!(say(&mut liar, id(4)), Verdict::NoRoom);
    liar.world.channel(0).close(id(3), Reason::WrongKey);
    assert_eq!((say(&mut liar, id(3)), say(&mut liar, id(4))), (Verdict::Taken, Verdict::Taken));
    assert!(matches!(liar.world.channel(0).peek(id(4)), Peek::Broken(_) | Peek::Record(_)));
}

#[test]
fn what_opens_streams_that_nobody_looks_at_is_bounded() {
    let mut liar = Liar::new();
    let window = liar.world.hosts[0].settings.window;
    let mut verdicts = Vec::new();
    for place in 1..1000 {
        let stream = StreamId::new(Side::Answerer, place, 0);
        verdicts.push(liar.say(&[Frame::Records { stream, offset: START, bytes: &[4; 16] }]));
    }
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Taken).count(), 64);
    // Holes count like data.
    for place in 1..65 {
        let stream = StreamId::new(Side::Answerer, place, 0);
        liar.say(&[Frame::Records { stream, offset: START + window - 100, bytes: &[4; 16] }]);
        liar.say(&[Frame::Records { stream, offset: START + window / 100, bytes: &[4; 16] }]);
    }
    let memory = liar.world.channel(0).memory();
    assert!(memory < 2 * window as usize + (64 << 10), "{memory} bytes");
    let beyond = StreamId::new(Side::Answerer, liar.world.hosts[0].settings.streams_most, 0);
    let records = Frame::Records { stream: beyond, offset: START, bytes: &[4; 16] };
    assert_eq!(liar.say(&[records]), Verdict::NoRoom);
}

#[test]
fn invalid_rest_frames_close_nothing() {
    let mut liar = Liar::new();
    let ours = liar.world.channel(0).open_next().expect("room");
    let (head, args, payload) = record(ours, 0, 40);
    liar.world.channel(0).send(ours, head, &args, &payload).expect("room");
    let rest = Rest { stream: ours, sent: START, taken: START };
    assert_eq!(liar.say(&[Frame::Rested { stream: ours }]), Verdict::Violation);
    assert_eq!(liar.say(&[Frame::Rest(rest)]), Verdict::Violation);
    assert_eq!(liar.say(&[Frame::Stay(rest)]), Verdict::Taken);
    let theirs = StreamId::new(Side::Answerer, 9, 0);
    assert_eq!(liar.say(&[Frame::Rest(Rest { stream: theirs, ..rest })]), Verdict::Taken);
    assert_eq!(liar.say(&[Frame::Rested { stream: theirs }]), Verdict::Taken);
    assert_eq!(std::iter::from_fn(|| liar.world.channel(0).poll_event()).count(), 0);
    // A stream of theirs that is not at rest stays open, whatever they propose; the owner is asked once.
    liar.say(&[Frame::Records { stream: theirs, offset: START, bytes: &[4; 16] }]);
    for n in 0..100 {
        liar.say(&[Frame::Rest(Rest { stream: theirs, sent: START + n, taken: START })]);
    }
    let told: Vec<Event> = std::iter::from_fn(|| liar.world.channel(0).poll_event()).collect();
    assert_eq!(told, [Event::Readable(theirs), Event::Asks(theirs)]);
    assert!(!liar.world.channel(0).answer_rest(theirs, true));
    assert!(liar.world.channel(0).owner(theirs).is_none() && liar.world.channel(0).mark(theirs, true) == Some(false));
}
