//! Endpoints that are not served for a while, or never again.

use super::{args_of, asks, completions};
use crate::world::{message, op, Pair, A, B, KEY};
use weft_core::{MessageKind, Settings};
use weft_wire::{Certainty, Reason};

#[test]
fn an_endpoint_that_is_not_served_holds_nobody_up_and_gets_its_messages_in_order() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    let neighbour = p.world.add_endpoint(B, KEY);
    p.world.map((A, a), 1, (B, neighbour));
    while p.world.state(A).try_send(a, 1, message(op::TAKE, &[100], &[])).is_err() {
        p.world.run(1);
    }
    p.world.state(B).set_served(b, false).unwrap();
    for i in 0..20 {
        p.world.state(A).try_send(a, 0, message(op::TAKE, &[i], &[i as u8; 100])).unwrap();
        p.world.state(A).try_request(a, 0, message(op::ECHO, &[50 + i], &[])).unwrap();
        p.world.state(A).try_send(a, 1, message(op::TAKE, &[101 + i], &[])).unwrap();
    }
    p.world.run(4);
    assert_eq!(args_of(&p.got(B)), (100..121).collect::<Vec<u32>>());
    assert_eq!(p.world.state(B).parked(b), Ok(40));
    p.world.state(B).set_served(b, true).unwrap();
    // A message that arrives before the queue is empty goes to its end.
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[20], &[20; 100])).unwrap();
    for _ in 0..50 {
        p.world.poll(B, 1);
    }
    let got = p.got(B);
    let expected: Vec<u32> = (0..20).flat_map(|i| [i, 50 + i]).chain([20]).collect();
    assert_eq!(args_of(&got), expected);
    assert!(got.iter().filter(|g| g.args[0] < 50).all(|g| g.payload == vec![g.args[0] as u8; 100]));
    p.world.run(3);
    assert_eq!(args_of(&p.got(A)), (50..70).collect::<Vec<u32>>());
}

#[test]
fn endpoints_that_are_served_again_share_the_budget() {
    let mut p = Pair::open(1 << 20);
    let (a, b) = (p.a, p.b);
    let other = p.world.add_endpoint(B, KEY);
    p.world.map((A, a), 1, (B, other));
    for e in [b, other] {
        p.world.state(B).set_served(e, false).unwrap();
    }
    while p.world.state(A).try_send(a, 1, message(op::TAKE, &[1], &[])).is_err() {
        p.world.run(1);
    }
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[0], &[])).unwrap();
    p.world.run(2);
    for e in [b, other] {
        p.world.state(B).set_served(e, true).unwrap();
    }
    // `other` gets as many messages as a poll takes, all the time; the first one's message must get through nevertheless.
    for _ in 0..20 {
        for _ in 0..4 {
            p.world.state(A).try_send(a, 1, message(op::TAKE, &[1], &[])).unwrap();
        }
        p.world.poll(B, 4);
    }
    assert!(args_of(&p.got(B)).contains(&0));
}

#[test]
fn a_parked_reply_waits_like_any_message() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.state(A).try_request(a, 0, message(op::ECHO, &[6], b"r")).unwrap();
    p.world.state(A).set_served(a, false).unwrap();
    p.world.run(3);
    assert_eq!((p.got(A), p.world.state(A).parked(a)), (vec![], Ok(1)));
    p.world.state(A).set_served(a, true).unwrap();
    p.world.run(1);
    assert_eq!(args_of(&p.got(A)), [6]);
}

#[test]
fn beyond_the_bound_of_parked_bytes_messages_come_back() {
    let settings = Settings { parked_bytes_most: 10_000, ..Settings::default() };
    let mut p = Pair::with(1 << 20, settings);
    let (a, b) = (p.a, p.b);
    p.insist_request(op::TAKE, &[], &[]);
    p.world.run(2);
    p.clear();
    p.world.state(B).set_served(b, false).unwrap();
    for i in 0..40 {
        p.world.state(A).try_send(a, 0, message(op::TAKE, &[i], &[0; 500])).unwrap();
    }
    p.world.run(2);
    let parked = p.world.state(B).parked(b).unwrap() as u32;
    assert!((10..20).contains(&parked), "{parked}");
    let returned = p.returned(A);
    assert!(returned.iter().all(|r| (r.reason, r.payload.len()) == (Reason::QueueFull, 500)));
    assert_eq!(returned.iter().map(|r| r.args[0]).collect::<Vec<_>>(), (parked..40).collect::<Vec<_>>());
    p.world.state(B).set_served(b, true).unwrap();
    p.world.run(2);
    assert_eq!(args_of(&p.got(B)), (0..parked).collect::<Vec<_>>());
    // The room is free again.
    p.world.state(B).set_served(b, false).unwrap();
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[0; 500])).unwrap();
    p.world.run(2);
    assert_eq!(p.returned(A), []);
}

#[test]
fn empty_messages_count_against_the_bound_of_parked_bytes_too() {
    let settings = Settings { parked_bytes_most: 10_000, ..Settings::default() };
    let mut p = Pair::with(1 << 20, settings);
    let (a, b) = (p.a, p.b);
    p.world.state(B).set_served(b, false).unwrap();
    p.insist_send(op::TAKE, &[], &[]);
    for _ in 0..1000 {
        p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])).unwrap();
    }
    p.world.run(4);
    assert!(p.world.state(B).parked(b).unwrap() < 200);
}

#[test]
fn a_freed_endpoint_drops_what_was_stored_and_returns_requests_that_nobody_saw() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    p.world.state(B).set_served(b, false).unwrap();
    p.world.state(A).try_send(a, 0, asks(op::TAKE, &[1], &[], 1)).unwrap();
    p.world.state(A).try_request(a, 0, asks(op::ECHO, &[2], b"q", 2)).unwrap();
    p.world.run(2);
    p.world.state(B).free_endpoint(b).unwrap();
    p.world.run(2);
    assert_eq!(p.got(B), []);
    assert_eq!(completions(&p.events(A)), [1], "stored is delivered; a request must be answered");
    let returned = p.returned(A);
    assert_eq!((returned.len(), &returned[0].payload[..]), (1, &b"q"[..]));
    assert_eq!((returned[0].reason, returned[0].certainty), (Reason::NoSuchEndpoint, Certainty::NotDelivered));
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn a_parked_request_without_a_handler_comes_back() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    p.world.state(B).set_served(b, false).unwrap();
    p.world.state(A).try_request(a, 0, asks(op::MISSING, &[2], b"q", 2)).unwrap();
    p.world.run(2);
    p.world.state(B).set_served(b, true).unwrap();
    p.world.run(2);
    let returned = p.returned(A);
    assert_eq!((returned.len(), returned[0].reason), (1, Reason::NoHandler));
    assert_eq!(completions(&p.events(A)), []);
}

#[test]
fn a_handler_may_free_its_own_endpoint() {
    let mut p = Pair::open(4096);
    let a = p.a;
    for kind in [MessageKind::OneWay, MessageKind::Request] {
        let send = |p: &mut Pair, op, i| match kind {
            MessageKind::OneWay => p.world.state(A).try_send(a, 0, message(op, &[i], &[])).unwrap(),
            _ => p.world.state(A).try_request(a, 0, message(op, &[i], &[])).unwrap(),
        };
        send(&mut p, if kind == MessageKind::OneWay { op::FREE } else { op::TAKE }, 1);
        send(&mut p, op::TAKE, 2);
    }
    p.world.run(3);
    assert_eq!(args_of(&p.got(B)), [1]);
    assert_eq!(p.returned(A).len(), 3);
    p.world.state(A).hasten();
    p.world.run(2);
    assert_eq!(p.world.state(A).unsettled(), 0);
}
