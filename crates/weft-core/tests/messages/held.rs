//! Refused one-way messages whose returns find no room: they are held until there is room, in case the refusing process dies.

use crate::world::{message, op, Pair, A, B};
use weft_core::{Event, Outgoing};
use weft_wire::{Certainty, Reason, MAX_PAYLOAD};

fn completions(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|e| if let Event::Completed(c) = e { Some(*c) } else { None }).collect()
}

/// A sends three one-way messages. B refuses the second, and its return finds no room because A does not read.
fn refused_without_room() -> Pair {
    let mut p = Pair::open(3000);
    let (a, b) = (p.a, p.b);
    let big = vec![7; MAX_PAYLOAD];
    for _ in 0..2 {
        p.world.state(B).try_send(b, 0, message(op::TAKE, &[0], &big)).unwrap();
    }
    for (op, number, payload) in [(op::TAKE, 1, &[][..]), (op::MISSING, 2, &big), (op::TAKE, 3, &[])] {
        let completion = Some(u64::from(number));
        p.world.state(A).try_send(a, 0, Outgoing { op, args: &[number], payload, completion }).unwrap();
    }
    p.world.poll(B, 64);
    assert_eq!(p.got(B).iter().map(|got| got.args[0]).collect::<Vec<_>>(), [1, 3]);
    assert!(!p.world.has_dropped.get());
    p
}

#[test]
fn a_refused_message_whose_return_found_no_room_comes_back_when_its_refuser_dies() {
    let mut p = refused_without_room();
    p.world.kill(B);
    p.world.notice(A);
    let returned = p.returned(A);
    let seen: Vec<_> = returned.iter().map(|r| (r.args[0], r.reason, r.certainty, r.completion)).collect();
    // The record that B took last could still be in hand.
    let refused = (2, Reason::NoHandler, Certainty::NotDelivered, Some(2));
    assert_eq!(seen, [refused, (3, Reason::PeerLost, Certainty::Unknown, Some(3))]);
    assert_eq!(returned[0].payload, vec![7; MAX_PAYLOAD]);
    assert_eq!(completions(&p.events(A)), [1]);
}

#[test]
fn a_refused_message_is_held_no_longer_than_until_its_return_is_under_way() {
    let mut p = refused_without_room();
    p.world.run(3);
    let returned = p.returned(A);
    assert_eq!(returned.iter().map(|r| r.args[0]).collect::<Vec<_>>(), [2]);
    assert_eq!(returned[0].payload, vec![7; MAX_PAYLOAD]);
    // The whole path is free again.
    let a = p.a;
    for number in [4, 5] {
        p.world.state(A).try_send(a, 0, message(op::TAKE, &[number], &vec![0; MAX_PAYLOAD])).unwrap();
    }
    p.world.run(3);
    p.world.state(A).hasten();
    p.world.run(3);
    assert_eq!(completions(&p.events(A)), [1, 3]);
    assert_eq!(p.world.state(A).unsettled(), 0);
}
