//! Requests, one-way messages, and what limits them: windows, credit, full paths.

use super::{args_of, asks, completions};
use crate::world::{message, op, Fuse, Got, Pair, A, B, LARGEST};
use weft_core::{Call, Event, EventMask, MessageKind, ReplyError, SendError};
use weft_transport::Grant;
use weft_wire::{Reason, MAX_ARGS, MAX_PAYLOAD};

// ---- requests

#[test]
fn a_request_is_answered_and_source_and_contents_are_right() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    p.world.state(A).try_request(a, 0, asks(op::ECHO, &[1, 2, 3], b"hello", 9)).unwrap();
    p.world.run(2);
    let (at_a, at_b) = (p.got(A), p.got(B));
    let (name_a, name_b) = (p.world.state(A).name(a).unwrap(), p.world.state(B).name(b).unwrap());
    let expected = Got {
        endpoint: b,
        source: Some(name_a),
        kind: MessageKind::Request,
        op: op::ECHO,
        args: vec![1, 2, 3],
        payload: b"hello".to_vec(),
    };
    assert_eq!(at_b, std::slice::from_ref(&expected));
    assert_eq!(at_a, [Got { endpoint: a, source: Some(name_b), kind: MessageKind::Reply, op: op::TAKE, ..expected }]);
    assert_eq!(p.events(A), [Event::Completed(9)]);
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn replies_are_taken_a_quarter_of_a_window_at_a_time_or_an_eighth_from_afar_and_requests_all_at_once() {
    let mut p = Pair::open(4096);
    let a = p.a;
    for (is_far, by_poll) in [(false, [8, 8, 8, 0, 0, 0, 0]), (true, [4, 4, 4, 4, 4, 4, 0])] {
        p.world.is_far.set(is_far);
        for i in 0..24 {
            p.world.state(A).try_request(a, 0, message(op::ECHO, &[i], &[])).unwrap();
        }
        assert_eq!(p.world.poll(B, 1024), 24);
        let polls = by_poll.map(|_| p.world.poll(A, 1024));
        assert_eq!((polls, args_of(&p.got(A))), (by_poll, (0..24).collect()));
    }
}

#[test]
fn a_request_whose_handler_does_not_reply_ends_by_itself() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.state(A).try_request(a, 0, asks(op::TAKE, &[7], &[], 1)).unwrap();
    assert_eq!(p.world.state(A).unsettled(), 1);
    p.world.run(2);
    assert_eq!(p.got(B).len(), 1);
    assert_eq!(p.got(A), []);
    assert_eq!(completions(&p.events(A)), [1]);
    assert_eq!(p.world.state(A).unsettled(), 0);
    assert_eq!(p.world.state(A).counters().ended, 1 + 1);
}

#[test]
fn a_deferred_request_is_answered_or_ended_later() {
    let mut p = Pair::open(4096);
    let a = p.a;
    for i in 0..2 {
        p.world.state(A).try_request(a, 0, asks(op::DEFER, &[i], &[], u64::from(i))).unwrap();
    }
    p.world.run(3);
    assert_eq!(p.world.state(A).unsettled(), 2);
    let mut tokens = std::mem::take(&mut p.world.node(B).sink.tokens);
    let (first, second) = (tokens.remove(0), tokens.remove(0));
    assert!(p.world.state(B).is_open(&first));
    p.world.state(B).reply(first, op::TAKE, &[10], b"later").unwrap();
    p.world.run(2);
    assert_eq!(args_of(&p.got(A)), [10]);
    assert_eq!(completions(&p.events(A)), [0]);
    p.world.state(B).end(second);
    p.world.run(2);
    assert_eq!(p.got(A), []);
    assert_eq!(completions(&p.events(A)), [1]);
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn thirty_two_requests_then_full_then_can_send() {
    let mut p = Pair::open(4096);
    let a = p.a;
    for i in 0..32 {
        p.world.state(A).try_request(a, 0, message(op::DEFER, &[i], &[])).unwrap();
    }
    assert_eq!(p.world.state(A).try_request(a, 0, message(op::DEFER, &[32], &[])), Err(SendError::Full));
    p.world.run(3);
    assert_eq!(p.events(A), []);
    let token = p.world.node(B).sink.tokens.swap_remove(5);
    p.world.state(B).reply(token, op::TAKE, &[5], &[]).unwrap();
    p.world.run(2);
    assert_eq!(p.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
    p.world.state(A).try_request(a, 0, message(op::DEFER, &[32], &[])).unwrap();
    assert_eq!(p.world.state(A).try_request(a, 0, message(op::DEFER, &[33], &[])), Err(SendError::Full));
}

#[test]
fn room_is_counted_also_where_its_event_ends_no_wait() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.state(A).set_event_mask(a, EventMask::NONE).unwrap();
    for i in 0..32 {
        p.world.state(A).try_request(a, 0, message(op::DEFER, &[i], &[])).unwrap();
    }
    p.world.run(3);
    let before = p.world.state(A).tally();
    assert_eq!(p.world.state(A).try_request(a, 0, message(op::DEFER, &[32], &[])), Err(SendError::Full));
    let token = p.world.node(B).sink.tokens.swap_remove(0);
    p.world.state(B).end(token);
    p.world.run(2);
    let after = p.world.state(A).tally();
    assert_eq!(after.without_room(), before.without_room(), "a wait goes on");
    assert_ne!(after.room, before.room, "who waits for room does not");
}

#[test]
fn events_of_a_claimed_endpoint_go_to_its_client_within_a_poll() {
    let mut p = Pair::with_room(2 * LARGEST);
    let a = p.a;
    p.world.state(A).claim_events(a).unwrap();
    assert_eq!(p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    p.world.run(2);
    let can_send = Event::CanSend { endpoint: a, destination: 0 };
    assert_eq!(
        std::mem::take(&mut p.world.node(A).sink.claimed),
        std::slice::from_ref(&can_send),
        "the session stands"
    );
    while p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[0; MAX_PAYLOAD])).is_ok() {}
    p.world.run(4);
    assert_eq!(std::mem::take(&mut p.world.node(A).sink.claimed), std::slice::from_ref(&can_send), "there is room");
    p.world.kill(B);
    p.world.notice(A);
    p.world.poll(A, 1);
    let lost = Event::PeerLost { endpoint: a, destination: 0, reason: Reason::PeerLost };
    assert_eq!(p.world.node(A).sink.claimed, [lost, can_send]);
    assert_eq!(p.events(A), [], "nothing is left to the program");
}

#[test]
fn a_client_is_called_for_chores_once_when_it_asks_and_not_otherwise() {
    let mut p = Pair::open(4096);
    p.world.run(3);
    assert_eq!(p.world.node(A).sink.chores, 0);
    p.world.state(A).come_again();
    assert!(p.world.state(A).has_unfinished());
    p.world.run(3);
    assert_eq!(p.world.node(A).sink.chores, 1);
    assert!(!p.world.state(A).has_unfinished());
    let before = p.world.state(A).tally();
    p.world.state(A).note();
    assert_eq!(p.world.state(A).tally().events, before.events + 1);
}

#[test]
fn a_full_window_does_not_hold_up_one_way_messages() {
    let mut p = Pair::open(4096);
    let a = p.a;
    while p.world.state(A).try_request(a, 0, message(op::DEFER, &[], &[])).is_ok() {}
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[1], &[])).unwrap();
    p.world.run(2);
    assert_eq!(p.got(B).last().unwrap().kind, MessageKind::OneWay);
}

#[test]
fn a_reply_that_is_too_large_gives_the_token_back() {
    let mut p = Pair::open(4096);
    p.insist_request(op::DEFER, &[], &[]);
    p.world.run(2);
    let token = p.world.node(B).sink.tokens.pop().unwrap();
    let (error, token) = p.world.state(B).reply(token, 0, &[0; MAX_ARGS + 1], &[]).unwrap_err();
    assert_eq!(error, ReplyError::TooLarge);
    let (_, token) = p.world.state(B).reply(token, 0, &[], &vec![0; MAX_PAYLOAD + 1]).unwrap_err();
    p.world.state(B).reply(token, op::TAKE, &[0; MAX_ARGS], &vec![0; MAX_PAYLOAD]).unwrap();
    p.world.run(2);
    assert_eq!(p.got(A)[0].payload.len(), MAX_PAYLOAD);
}

#[test]
fn a_reply_that_finds_the_path_full_is_queued_and_its_slot_stays_taken() {
    let mut p = Pair::open(LARGEST);
    let (a, b) = (p.a, p.b);
    // B fills its path to A, then gets a request and answers it.
    p.world.state(B).try_send(b, 0, message(op::TAKE, &[], &vec![1; MAX_PAYLOAD])).unwrap();
    p.world.state(A).try_request(a, 0, message(op::ECHO, &[3], b"xyz")).unwrap();
    for _ in 0..40 {
        // Two lines are still free, so use them.
        let _ = p.world.state(B).try_send(b, 0, message(op::TAKE, &[], &[]));
    }
    p.world.poll(B, 64);
    assert_eq!(p.world.state(B).counters().replies_queued, 1);
    assert!(!p.world.state(B).flush());
    assert_eq!(p.world.state(B).try_send(b, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    p.world.poll(A, 1);
    // The path has room now, but the reply goes first.
    assert_eq!(p.world.state(B).try_send(b, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    assert!(p.world.state(B).flush());
    p.world.run(4);
    let replies: Vec<Got> = p.got(A).into_iter().filter(|g| g.kind == MessageKind::Reply).collect();
    assert_eq!((args_of(&replies), replies[0].payload.as_slice()), (vec![3], &b"xyz"[..]));
    assert_eq!(p.world.state(A).unsettled(), 0);
    assert!(p.events(B).contains(&Event::CanSend { endpoint: b, destination: 0 }));
}

// ---- one-way messages

#[test]
fn a_one_way_message_with_a_completion_is_told_soon() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[1], &[])).unwrap();
    p.world.run(3);
    assert_eq!(p.world.state(A).unsettled(), 1, "nobody asked");
    p.world.state(A).try_send(a, 0, asks(op::TAKE, &[2], &[], 5)).unwrap();
    assert_eq!(p.events(A), []);
    p.world.poll(B, 64);
    p.world.poll(A, 64);
    assert_eq!(p.events(A), [Event::Completed(5)]);
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn a_message_to_an_endpoint_that_is_not_served_completes_when_it_is_stored() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    p.world.state(B).set_served(b, false).unwrap();
    p.world.state(A).try_send(a, 0, asks(op::TAKE, &[1], &[], 1)).unwrap();
    p.world.run(2);
    assert_eq!((p.got(B), completions(&p.events(A))), (vec![], vec![1]));
}

#[test]
fn hasten_makes_peers_tell_and_asks_once() {
    let mut p = Pair::open(4096);
    let a = p.a;
    for i in 0..10 {
        p.world.state(A).try_send(a, 0, message(op::TAKE, &[i], &[])).unwrap();
    }
    p.world.state(A).hasten();
    p.world.state(A).hasten();
    assert_eq!(p.world.poll(B, 64), 11);
    assert_eq!(p.world.state(A).unsettled(), 10);
    p.world.poll(A, 64);
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn credit_in_messages_runs_out_and_comes_back() {
    let mut p = Pair::open(1 << 20);
    let (a, b) = (p.a, p.b);
    p.world.state(B).set_served(b, false).unwrap();
    let mut sent = 0;
    while p.world.state(A).try_send(a, 0, message(op::TAKE, &[sent], &[])).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, Grant::V1.messages);
    p.world.run(1000);
    assert_eq!(p.world.state(B).parked(b), Ok(sent as usize));
    assert_eq!(p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    assert_eq!(p.events(A), []);
    p.world.state(B).set_served(b, true).unwrap();
    p.world.run(1000);
    assert_eq!(p.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
    assert_eq!(args_of(&p.got(B)), (0..sent).collect::<Vec<u32>>());
    p.world.state(A).hasten();
    p.world.run(2);
    p.world.state(B).set_served(b, false).unwrap();
    let again = (0..=sent).take_while(|_| p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])).is_ok());
    assert_eq!(again.count(), sent as usize);
}

#[test]
fn credit_in_lines_runs_out_and_comes_back() {
    let mut p = Pair::open(1 << 20);
    let (a, b) = (p.a, p.b);
    p.world.state(B).set_served(b, false).unwrap();
    let big = vec![7; MAX_PAYLOAD];
    let mut sent = 0;
    while p.world.state(A).try_send(a, 0, message(op::TAKE, &[sent], &big)).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, Grant::V1.lines / 1025);
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[sent], &[])).expect("a small one still fits");
    p.world.run(10);
    p.world.state(B).set_served(b, true).unwrap();
    p.world.run(10);
    assert_eq!(p.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &big)).unwrap();
}

#[test]
fn credit_rides_on_replies() {
    let mut p = Pair::open(1 << 20);
    let a = p.a;
    // More than a grant: this would get stuck if credit came back only at half a grant.
    for i in 0..200 {
        p.world.state(A).try_send(a, 0, message(op::TAKE, &[i], &[])).unwrap();
        p.world.state(A).try_request(a, 0, message(op::ECHO, &[i], &[])).unwrap();
        p.world.run(2);
        assert_eq!(p.world.state(A).unsettled(), 0, "the reply told that the message was stored");
    }
}

// ---- full paths

#[test]
fn a_full_path_says_full_and_then_can_send() {
    let mut p = Pair::open(LARGEST);
    let a = p.a;
    let mut sent = 0;
    while p.world.state(A).try_send(a, 0, message(op::TAKE, &[sent], &[])).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, LARGEST);
    p.world.poll(A, 1);
    assert_eq!(p.events(A), []);
    // Polls with the smallest budget free room too.
    for _ in 0..sent {
        p.world.poll(B, 1);
    }
    p.world.poll(A, 1);
    assert_eq!(p.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[sent], &vec![0; MAX_PAYLOAD])).unwrap();
    p.world.run(2);
    assert_eq!(args_of(&p.got(B)), (0..=sent).collect::<Vec<_>>());
}

#[test]
fn a_broken_path_is_reported_once() {
    let mut p = Pair::with_room(4096);
    let (a, mut world) = (p.a, p.world);
    assert_eq!(world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    let call: Call = world.state(A).take_calls()[0];
    let (tx, _rx) = weft_core::testing::path(100);
    tx.break_it();
    let fuse = Fuse::new();
    let (_, rx) = world.path(&fuse, &fuse);
    let node = world.node(A);
    let index = node.core.reserve().unwrap();
    let tx = crate::world::TestTx::over(tx);
    let id = node.core.attach(index, crate::world::peer(crate::world::epoch(B)), tx, rx);
    node.core.state_mut().connected(call, id);
    for _ in 0..10 {
        assert_eq!(node.core.state_mut().try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
        node.core.poll(1, &mut node.sink);
    }
    assert!(node.core.has_broken());
    assert_eq!(node.core.take_broken(), [id]);
    assert_eq!(node.core.state().counters().violations, 1);
    node.core.lose(id, Reason::Violation, &mut node.sink);
    node.core.state_mut().try_send(a, 0, message(op::TAKE, &[], &[])).unwrap();
    node.core.poll(1, &mut node.sink);
    assert_eq!(node.sink.returned[0].reason, Reason::Violation);
    p = Pair { world, ..p };
    assert_eq!(p.got(A), []);
}
