//! Unreliable messages, and order when messages are refused. Paths in memory lose nothing, so here only the receiver
//! drops messages.

use crate::world::{insist, message, op, Fuse, Script, World, KEY, LARGEST};
use weft_core::{Endpoint, Event, Outgoing, Reliability, SendError, Service, Settings};
use weft_wire::{Key, Reason};

const UNRELIABLE: Service = Service { reliability: Reliability::Unreliable, is_ordered: false };
const RECEPTION: Service = Service { reliability: Reliability::Reception, is_ordered: false };
const ORDERED: Service = Service { reliability: Reliability::Delivery, is_ordered: true };

const A: usize = 0;
const B: usize = 1;

/// Two nodes. The first sends to the second with this service.
fn pair(service: Service, settings: Settings) -> (World<Script>, Endpoint, Endpoint) {
    let mut world: World<Script> = World::new(LARGEST * 4);
    for _ in 0..2 {
        world.add_node(settings, Script::default(), Fuse::new());
    }
    let (a, b) = (world.add_endpoint(A, KEY), world.add_endpoint(B, KEY));
    world.map((A, a), 0, (B, b));
    world.state(A).set_service(a, service).expect("an endpoint");
    assert_eq!(world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full), "no session yet");
    world.run(3);
    while world.state(A).next_event().is_some() {}
    (world, a, b)
}

fn send(world: &mut World<Script>, a: Endpoint, op: u8, number: u32) {
    let completion = Some(number.into());
    insist(|| {
        let sent = world.state(A).try_send(a, 0, Outgoing { op, args: &[number], payload: b"contents", completion });
        world.run(usize::from(sent.is_err()));
        sent.is_ok()
    });
}

fn got(world: &mut World<Script>) -> Vec<u32> {
    std::mem::take(&mut world.node(B).sink.got).iter().map(|got| got.args[0]).collect()
}

fn returned(world: &mut World<Script>) -> Vec<(u32, Reason)> {
    std::mem::take(&mut world.node(A).sink.returned).iter().map(|back| (back.args[0], back.reason)).collect()
}

fn completed(world: &mut World<Script>) -> Vec<u64> {
    std::iter::from_fn(|| world.state(A).next_event())
        .filter_map(|event| if let Event::Completed(number) = event { Some(number) } else { None })
        .collect()
}

#[test]
fn an_unreliable_message_is_done_with_when_it_is_sent_and_takes_no_credit() {
    let (mut world, a, _) = pair(UNRELIABLE, Settings::default());
    for number in 0..40_000 {
        send(&mut world, a, op::TAKE, number);
        assert_eq!(world.state(A).unsettled(), 0);
    }
    world.run(200);
    assert_eq!(got(&mut world), (0..40_000).collect::<Vec<_>>());
    assert_eq!(completed(&mut world).len(), 40_000);
    assert_eq!((returned(&mut world), world.state(A).unreceived(a, 0)), (vec![], Ok(0)));
}

#[test]
fn unreliable_messages_that_may_not_be_delivered_are_dropped_and_counted_and_none_comes_back() {
    let (mut world, a, b) = pair(UNRELIABLE, Settings::default());
    send(&mut world, a, op::MISSING, 1);
    world.run(3);
    assert_eq!(world.state(B).counters().unreliable_dropped, 1, "no handler");
    world.state(B).set_key(b, Key(99)).expect("an endpoint");
    send(&mut world, a, op::TAKE, 2);
    world.run(3);
    assert_eq!(world.state(B).counters().unreliable_dropped, 2, "the wrong key");
    world.state(B).free_endpoint(b).expect("an endpoint");
    send(&mut world, a, op::TAKE, 3);
    world.run(3);
    assert_eq!(world.state(B).counters().unreliable_dropped, 3, "no endpoint");
    assert_eq!((got(&mut world), returned(&mut world)), (vec![], vec![]));
    assert_eq!((world.state(B).counters().delivered, world.state(B).counters().refused), (0, 0));
    world.kill(B);
    for number in 4..20 {
        world.notice(A);
        send(&mut world, a, op::TAKE, number);
    }
    world.run(3);
    assert_eq!(returned(&mut world), []);
    assert_eq!(completed(&mut world).len(), 19);
}

#[test]
fn a_flood_of_unreliable_messages_for_who_is_not_served_is_bounded_and_what_is_beyond_is_counted() {
    let settings = Settings { parked_bytes_most: 100_000, ..Settings::default() };
    let (mut world, a, b) = pair(UNRELIABLE, settings);
    world.state(B).set_served(b, false).expect("an endpoint");
    for number in 0..10_000 {
        send(&mut world, a, op::TAKE, number);
    }
    world.run(200);
    let parked = world.state(B).parked(b).expect("an endpoint");
    assert!((300..3_000).contains(&parked), "{parked}");
    assert_eq!(world.state(B).counters().unreliable_dropped, 10_000 - parked as u64);
    world.state(B).set_served(b, true).expect("an endpoint");
    world.run(200);
    assert_eq!(got(&mut world), (0..parked as u32).collect::<Vec<_>>());
    send(&mut world, a, op::TAKE, 7);
    world.run(3);
    assert_eq!(got(&mut world), [7]);
    assert_eq!(returned(&mut world), []);
}

#[test]
fn requests_of_an_unreliable_endpoint_are_answered() {
    let (mut world, a, _) = pair(UNRELIABLE, Settings::default());
    world.state(A).try_request(a, 0, message(op::ECHO, &[5], b"answer me")).expect("room");
    world.run(5);
    let answers = &world.node(A).sink.got;
    assert_eq!((answers.len(), &answers[0].payload[..]), (1, &b"answer me"[..]));
}

#[test]
fn what_follows_a_refused_message_comes_back_in_order_until_the_sender_goes_on() {
    for service in [ORDERED, RECEPTION] {
        let (mut world, a, _) = pair(service, Settings::default());
        for (number, what) in [(1, op::TAKE), (2, op::MISSING), (3, op::TAKE), (4, op::TAKE)] {
            send(&mut world, a, what, number);
        }
        let request = Outgoing { op: op::TAKE, args: &[5], payload: &[], completion: None };
        world.state(A).try_request(a, 0, request).expect("room");
        world.poll(B, 100);
        world.poll(A, 100);
        // All are back; only now is the sender told that it may send.
        assert_eq!(got(&mut world), [1]);
        let refused = |number| (number, Reason::NoHandler);
        assert_eq!(returned(&mut world), [2, 3, 4, 5].map(refused));
        for number in [2, 3, 4, 5, 6] {
            send(&mut world, a, op::TAKE, number);
        }
        world.run(5);
        assert_eq!(got(&mut world), [2, 3, 4, 5, 6], "{service:?}");
        assert_eq!(returned(&mut world), []);
        world.state(A).hasten();
        world.run(5);
        assert_eq!((world.state(A).unsettled(), world.state(A).unreceived(a, 0)), (0, Ok(0)));
    }
}

#[test]
fn a_sender_that_is_stopped_is_told_full_until_the_last_one_is_back() {
    let (mut world, a, _) = pair(ORDERED, Settings::default());
    for (number, what) in [(1, op::MISSING), (2, op::TAKE)] {
        send(&mut world, a, what, number);
    }
    world.poll(B, 1);
    send(&mut world, a, op::TAKE, 3);
    world.poll(A, 1);
    // The first came back. The others are in flight.
    assert_eq!(world.state(A).try_send(a, 0, message(op::TAKE, &[1], &[])), Err(SendError::Full));
    world.run(3);
    assert_eq!(returned(&mut world).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3]);
    let events: Vec<Event> = std::iter::from_fn(|| world.state(A).next_event()).collect();
    assert!(events.contains(&Event::CanSend { endpoint: a, destination: 0 }), "{events:?}");
    send(&mut world, a, op::TAKE, 1);
    world.run(3);
    assert_eq!(got(&mut world), [1]);
}

/// A program that takes returned messages from the event queue gets its events in an order that it can act on.
#[test]
fn the_can_send_event_of_a_stopped_pair_follows_the_returned_messages() {
    let (mut world, a, _) = pair(ORDERED, Settings::default());
    world.node(A).sink.leaves_returns = true;
    for (number, what) in [(1, op::MISSING), (2, op::TAKE), (3, op::TAKE)] {
        world.state(A).try_send(a, 0, message(what, &[number], &[])).expect("room");
    }
    world.poll(B, 1);
    world.poll(A, 1);
    assert_eq!(world.state(A).try_send(a, 0, message(op::TAKE, &[4], &[])), Err(SendError::Full));
    world.run(5);
    let events: Vec<Event> = std::iter::from_fn(|| world.state(A).next_event()).collect();
    let is_back = |event: &Event| matches!(event, Event::Returned(_));
    assert_eq!(events.iter().map(is_back).collect::<Vec<_>>(), [true, true, true, false], "{events:?}");
    assert_eq!(events[3], Event::CanSend { endpoint: a, destination: 0 });
}

#[test]
fn without_order_messages_after_a_refused_one_are_delivered() {
    let (mut world, a, _) = pair(Service::default(), Settings::default());
    for (number, what) in [(1, op::MISSING), (2, op::TAKE)] {
        send(&mut world, a, what, number);
    }
    world.run(3);
    assert_eq!((got(&mut world), returned(&mut world)), (vec![2], vec![(1, Reason::NoHandler)]));
}

#[test]
fn reception_is_reported_without_being_requested() {
    for (service, told) in [(RECEPTION, true), (Service::default(), false)] {
        let (mut world, a, b) = pair(service, Settings::default());
        world.state(B).set_served(b, false).expect("an endpoint");
        for number in 0..10 {
            world.state(A).try_send(a, 0, message(op::TAKE, &[number], &[])).expect("room");
        }
        assert_eq!(world.state(A).unreceived(a, 0), Ok(10));
        world.run(3);
        assert_eq!(world.state(A).unreceived(a, 0), Ok(if told { 0 } else { 10 }));
    }
}

#[test]
fn a_changed_service_applies_from_the_next_message_on() {
    let (mut world, a, _) = pair(Service::default(), Settings::default());
    send(&mut world, a, op::TAKE, 1);
    for (service, number) in [(UNRELIABLE, 2), (RECEPTION, 3), (Service::default(), 4), (UNRELIABLE, 5)] {
        world.state(A).set_service(a, service).expect("an endpoint");
        assert_eq!(world.state(A).service(a), Ok(service));
        send(&mut world, a, op::TAKE, number);
    }
    world.run(3);
    assert_eq!(got(&mut world), [1, 2, 3, 4, 5]);
    assert_eq!(world.state(B).counters().violations, 0);
}
