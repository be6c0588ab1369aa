//! Programs that do not take their events, and peers that cause more of them: memory is bounded, and a program that
//! takes events loses none.

use crate::world::{insist, message, op, Fuse, Pair, Script, A, B, KEY};
use weft_core::{Event, MessageKind, Outgoing, SendError, Settings};
use weft_wire::{Key, Reason};

/// Bytes of events that B may have.
const BYTES: usize = 64 << 10;
/// Bytes of each reply that goes back to B.
const REPLY: usize = 1000;

/// A pair whose flow from A is open. B leaves returned messages to its event queue.
fn pair(events_bytes_most: usize) -> Pair {
    let mut p = Pair::with(4096, Settings { events_bytes_most, ..Settings::default() });
    p.insist_request(op::TAKE, &[], &[]);
    p.world.run(4);
    p.world.node(B).sink.leaves_returns = true;
    p
}

/// A asks `requests` times, and refuses what B replies.
fn refuse_replies(p: &mut Pair, requests: u32) {
    for number in 0..requests {
        p.insist_request(op::ECHO_MISSING, &[number], &[7; REPLY]);
        p.world.run(1);
    }
    p.world.run(4);
}

/// The numbers of the replies that came back.
fn numbers(events: &[Event]) -> Vec<u32> {
    let number = |event: &Event| match event {
        Event::Returned(back) if back.kind == MessageKind::Reply => Some(back.args[0]),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

fn can_sends(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::CanSend { .. })).count()
}

#[test]
fn a_program_that_takes_no_events_keeps_the_latest_within_the_bound_and_the_others_are_counted() {
    let mut p = pair(BYTES);
    refuse_replies(&mut p, 1000);
    assert_eq!(p.world.state(B).counters().returned, 1000);
    let dropped = p.world.state(B).counters().events_dropped;
    let kept = numbers(&p.events(B));
    assert!(kept.len() > 40 && kept.len() * REPLY < BYTES, "{} kept", kept.len());
    assert_eq!(kept, (1000 - kept.len() as u32..1000).collect::<Vec<_>>());
    assert_eq!(kept.len() as u64 + dropped, 1000);
    // Nobody was delayed by it.
    assert_eq!(p.world.state(A).counters().returned, 0);
}

#[test]
fn a_program_that_takes_events_loses_none_and_is_told_full_until_it_takes_them() {
    let mut p = pair(BYTES);
    let b = p.b;
    let honest = p.world.add_node(Settings::default(), Script::default(), Fuse::new());
    let asks = p.world.add_endpoint(honest, Key(3));
    p.world.map((honest, asks), 0, (B, b));
    insist(|| {
        p.world.run(1);
        p.world.state(honest).try_request(asks, 0, message(op::ECHO, &[], &[])).is_ok()
    });
    assert_eq!(p.world.state(B).next_event(), None, "it listens from now on");
    refuse_replies(&mut p, 1000);
    // By now A's requests are refused; those of others are not.
    let refused = p.returned(A);
    assert!(refused.iter().all(|m| (m.kind, m.reason) == (MessageKind::Request, Reason::QueueFull)));
    assert!((900..960).contains(&refused.len()), "{} refused", refused.len());
    let before = p.world.node(honest).sink.got.len();
    p.world.state(honest).try_request(asks, 0, message(op::ECHO, &[], &[])).unwrap();
    p.world.run(2);
    assert_eq!(p.world.node(honest).sink.got.len(), before + 1);
    // B cannot send until it has taken half of the events.
    assert!(p.world.state(B).has_full_events());
    for _ in 0..2 {
        assert_eq!(p.world.state(B).try_send(b, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
        assert_eq!(p.world.state(B).try_request(b, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    }
    assert_eq!(p.world.state(B).try_send(b, 9, message(op::TAKE, &[], &[])), Err(SendError::NotMapped(9)));
    let events = p.events(B);
    assert_eq!(numbers(&events), (0..1000 - refused.len() as u32).collect::<Vec<_>>(), "each of them");
    assert_eq!(events.last(), Some(&Event::CanSend { endpoint: b, destination: 0 }));
    assert_eq!(can_sends(&events), 1);
    assert_eq!(p.world.state(B).counters().events_dropped, 0);
    insist(|| {
        p.world.run(1);
        p.world.state(B).try_send(b, 0, message(op::TAKE, &[], &[])).is_ok()
    });
    p.insist_request(op::ECHO, &[1], &[]);
    p.world.run(4);
    assert!(p.returned(A).is_empty(), "A is served again");
}

#[test]
fn a_program_is_told_once_that_its_endpoint_refuses_replies() {
    let mut p = pair(BYTES);
    let told = Event::ReplyRefused { endpoint: p.a, destination: 0, op: op::MISSING, reason: Reason::NoHandler };
    for round in 1..3 {
        let before = p.world.state(A).tally().events;
        refuse_replies(&mut p, 50);
        assert_eq!(p.world.state(A).counters().replies_refused, 50 * round);
        assert!(p.world.state(A).tally().events >= before + 50, "each ends a wait");
        let events = p.events(A);
        assert_eq!(events.iter().filter(|event| **event == told).count(), 1, "{events:?}");
    }
}

#[test]
fn can_send_and_peer_lost_wait_once_per_destination() {
    let mut p = Pair::open(300);
    let a = p.a;
    assert!(p.events(A).is_empty());
    for _ in 0..50 {
        while p.world.state(A).try_request(a, 0, message(op::ECHO, &[], &[1; 3000])).is_ok() {}
        p.world.run(8);
    }
    assert!(p.world.state(A).counters().full >= 50);
    for _ in 0..50 {
        let id = p.world.session(A, B).expect("a session");
        let node = p.world.node(A);
        node.core.lose(id, Reason::PeerLost, &mut node.sink);
        let other = p.world.session(B, A).expect("a session");
        let node = p.world.node(B);
        node.core.lose(other, Reason::PeerLost, &mut node.sink);
        insist(|| {
            p.world.run(1);
            p.world.state(A).try_request(a, 0, message(op::TAKE, &[], &[])).is_ok() && p.world.session(A, B).is_some()
        });
    }
    let events = p.events(A);
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(can_sends(&events), 1);
    // The events come again once they were taken.
    while p.world.state(A).try_request(a, 0, message(op::ECHO, &[], &[1; 3000])).is_ok() {}
    p.world.run(8);
    assert_eq!(p.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
}

#[test]
fn completions_that_were_asked_for_and_not_taken_stop_the_sender_and_none_is_lost() {
    let mut p = pair(BYTES);
    let a = p.a;
    let mut sent = 0;
    for number in 0..100_000 {
        let kind = number % 2;
        let message = Outgoing { op: op::TAKE, args: &[], payload: &[], completion: Some(sent) };
        let state = p.world.state(A);
        sent += match kind {
            0 => u64::from(state.try_send(a, 0, message).is_ok()),
            _ => u64::from(state.try_request(a, 0, message).is_ok()),
        };
        if number % 16 == 0 {
            p.world.state(A).hasten();
            p.world.run(1);
        }
    }
    assert!(sent < 5000, "{sent} were sent");
    p.world.run(4);
    p.world.state(A).hasten();
    p.world.run(4);
    let mut ended: Vec<u64> =
        p.events(A).iter().filter_map(|event| if let Event::Completed(c) = event { Some(*c) } else { None }).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..sent).collect::<Vec<_>>());
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])).expect("room again");
}

#[test]
fn a_program_that_begins_to_listen_is_told_where_it_can_send() {
    let mut p = pair(BYTES);
    let b = p.b;
    let other = p.world.add_endpoint(A, KEY);
    p.world.map((B, b), 5, (A, other));
    assert_eq!(p.world.state(B).try_send(b, 5, message(op::TAKE, &[], &[])), Err(SendError::Full));
    p.world.run(2);
    // The event for this makes room for others.
    refuse_replies(&mut p, 500);
    let events = p.events(B);
    assert!(events.contains(&Event::CanSend { endpoint: b, destination: 5 }), "{}", can_sends(&events));
    p.world.state(B).try_send(b, 5, message(op::TAKE, &[], &[])).expect("there is a flow");
}

#[test]
fn events_that_were_taken_give_their_memory_back() {
    let mut p = pair(BYTES);
    assert_eq!(p.world.state(B).next_event(), None);
    for round in 0..20 {
        refuse_replies(&mut p, 20);
        assert_eq!(numbers(&p.events(B)).len(), 20, "round {round}: what was taken counts no longer");
    }
    assert_eq!(p.world.state(B).counters().refused, 0);
}
