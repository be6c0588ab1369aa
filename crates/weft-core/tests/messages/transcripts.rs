//! One behaviour each: what goes in, and what comes out.

use crate::world::{message, name, op, Fuse, Got, Pair, Script, World, A, B, KEY, LARGEST};
use weft_core::{Call, Event, MessageKind, Outgoing, ReplyError, SendError, Settings};
use weft_transport::Grant;
use weft_wire::path::Tx;
use weft_wire::{Certainty, EndpointId, Head, Key, Kind, Reason, MAX_ARGS, MAX_PAYLOAD};

fn asks<'a>(op: u8, args: &'a [u32], payload: &'a [u8], completion: u64) -> Outgoing<'a> {
    Outgoing { op, args, payload, completion: Some(completion) }
}

fn completions(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|e| if let Event::Completed(c) = e { Some(*c) } else { None }).collect()
}

fn args_of(got: &[Got]) -> Vec<u32> {
    got.iter().map(|g| g.args[0]).collect()
}

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
    // B fills its path to A, then gets a request that it answers.
    p.world.state(B).try_send(b, 0, message(op::TAKE, &[], &vec![1; MAX_PAYLOAD])).unwrap();
    p.world.state(A).try_request(a, 0, message(op::ECHO, &[3], b"xyz")).unwrap();
    for _ in 0..40 {
        // Two lines stay free, so take them.
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
    // More than a grant: it could not go on if credit came only at half a grant without being told.
    for i in 0..200 {
        p.world.state(A).try_send(a, 0, message(op::TAKE, &[i], &[])).unwrap();
        p.world.state(A).try_request(a, 0, message(op::ECHO, &[i], &[])).unwrap();
        p.world.run(2);
        assert_eq!(p.world.state(A).unsettled(), 0, "the reply told that the message was stored");
    }
}

// ---- refusals

/// Sends one of each kind to a place that refuses them, and looks at what comes back.
fn expect_returned(p: &mut Pair, op: u8, reason: Reason) {
    let a = p.a;
    p.clear();
    p.world.state(A).try_send(a, 0, asks(op, &[1, 2], b"one-way", 1)).unwrap();
    p.world.state(A).try_request(a, 0, asks(op, &[3, 4], b"request", 2)).unwrap();
    p.world.run(3);
    assert_eq!(p.got(B), []);
    let returned = p.returned(A);
    assert_eq!(returned.len(), 2);
    let kinds = [(MessageKind::OneWay, [1, 2], &b"one-way"[..], 1), (MessageKind::Request, [3, 4], b"request", 2)];
    for (r, (kind, args, payload, completion)) in returned.iter().zip(kinds) {
        assert_eq!((r.endpoint, r.destination, r.kind, r.op), (a, Some(0), kind, op));
        assert_eq!((&r.args[..], &r.payload[..], r.completion), (&args[..], payload, Some(completion)));
        assert_eq!((r.reason, r.certainty), (reason, Certainty::NotDelivered));
    }
    assert_eq!(completions(&p.events(A)), []);
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn a_wrong_key_returns_the_message() {
    let mut p = Pair::with_room(4096);
    let (a, b) = (p.a, p.world.state(B).name(p.b).unwrap());
    p.world.state(A).map(a, 0, b, Key(1)).unwrap();
    assert_eq!(p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    p.world.run(1);
    expect_returned(&mut p, op::TAKE, Reason::WrongKey);
}

#[test]
fn an_unknown_endpoint_returns_the_message() {
    let mut p = Pair::with_room(4096);
    let (a, mut b) = (p.a, p.world.state(B).name(p.b).unwrap());
    b.endpoint = EndpointId(99);
    p.world.state(A).map(a, 0, b, KEY).unwrap();
    assert_eq!(p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    p.world.run(1);
    expect_returned(&mut p, op::TAKE, Reason::NoSuchEndpoint);
}

#[test]
fn a_freed_endpoint_returns_the_message() {
    let mut p = Pair::open(4096);
    let b = p.b;
    p.world.state(B).free_endpoint(b).unwrap();
    expect_returned(&mut p, op::TAKE, Reason::NoSuchEndpoint);
    assert_eq!(p.world.state(B).free_endpoint(b), Err(SendError::NoEndpoint));
}

#[test]
fn a_missing_handler_returns_the_message() {
    let mut p = Pair::open(4096);
    expect_returned(&mut p, op::MISSING, Reason::NoHandler);
}

#[test]
fn returned_messages_can_be_left_to_the_event_queue() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.node(A).sink.leaves_returns = true;
    p.world.state(A).try_send(a, 0, message(op::MISSING, &[5], &[])).unwrap();
    p.world.run(2);
    assert!(matches!(&p.events(A)[..], [Event::Returned(r)] if r.args == [5]));
}

#[test]
fn a_refused_reply_goes_back_to_the_replier() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    p.world.state(A).try_request(a, 0, asks(op::ECHO_MISSING, &[8], b"back", 3)).unwrap();
    p.world.run(4);
    let back = p.returned(B).remove(0);
    assert_eq!((back.endpoint, back.destination, back.kind), (b, None, MessageKind::Reply));
    assert_eq!((back.args, back.payload, back.reason), (vec![8], b"back".to_vec(), Reason::NoHandler));
    assert_eq!((back.op, back.certainty), (op::MISSING, Certainty::NotDelivered));
    assert_eq!(completions(&p.events(A)), [3], "the request was answered");
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn a_reply_to_a_freed_endpoint_goes_back_to_the_replier() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.state(A).try_request(a, 0, message(op::ECHO, &[8], &[])).unwrap();
    p.world.state(A).free_endpoint(a).unwrap();
    p.world.run(4);
    assert_eq!(p.returned(B)[0].reason, Reason::NoSuchEndpoint);
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn a_client_that_took_the_token_cannot_refuse_the_request_as_well() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.state(A).try_request(a, 0, message(op::DEFER_MISSING, &[1], &[])).unwrap();
    p.world.run(3);
    assert_eq!(p.returned(A), []);
    let token = p.world.node(B).sink.tokens.pop().unwrap();
    p.world.state(B).reply(token, op::TAKE, &[2], &[]).unwrap();
    p.world.run(3);
    assert_eq!(args_of(&p.got(A)), [2]);
    assert!(!p.world.node(A).core.has_broken());
}

#[test]
fn a_key_that_changes_in_the_middle_parts_the_messages() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    let send = |p: &mut Pair, i| p.world.state(A).try_send(a, 0, asks(op::TAKE, &[i], &[], i.into())).unwrap();
    send(&mut p, 0);
    p.world.poll(B, 64);
    p.world.state(B).set_key(b, Key(77)).unwrap();
    send(&mut p, 1);
    p.world.poll(B, 64);
    p.world.state(B).set_key(b, KEY).unwrap();
    send(&mut p, 2);
    p.world.run(3);
    assert_eq!(args_of(&p.got(B)), [0, 2]);
    let returned = p.returned(A);
    assert_eq!((returned.len(), &returned[0].args[..], returned[0].reason), (1, &[1][..], Reason::WrongKey));
    assert_eq!(returned[0].completion, Some(1));
    assert_eq!(completions(&p.events(A)), [0, 2]);
}

#[test]
fn a_sender_with_the_right_key_is_admitted_even_if_it_had_it_too_early() {
    let mut p = Pair::with_room(4096);
    let (a, b) = (p.a, p.b);
    let name_b = p.world.state(B).name(b).unwrap();
    p.world.state(A).map(a, 0, name_b, Key(5)).unwrap();
    p.insist_send(op::TAKE, &[0], &[]);
    p.world.run(2);
    assert_eq!(p.returned(A)[0].reason, Reason::WrongKey);
    p.world.state(B).set_key(b, Key(5)).unwrap();
    p.insist_send(op::TAKE, &[1], &[]);
    p.world.run(2);
    assert_eq!(args_of(&p.got(B)), [1]);
    assert_eq!(p.returned(A), []);
}

// ---- errors of the caller

#[test]
fn misuse_is_a_typed_error_and_has_no_effect() {
    let mut p = Pair::open(4096);
    let a = p.a;
    let (args, payload) = ([0; MAX_ARGS + 1], vec![0; MAX_PAYLOAD + 1]);
    let state = p.world.state(A);
    let before = (state.counters(), state.unsettled());
    for m in [message(1, &args, &[]), message(1, &[], &payload)] {
        assert_eq!(state.try_send(a, 0, m), Err(SendError::TooLarge));
        assert_eq!(state.try_request(a, 0, m), Err(SendError::TooLarge));
        assert_eq!(state.try_send(a, 7, m), Err(SendError::TooLarge));
    }
    for index in [1, 7, u32::MAX] {
        assert_eq!(state.try_send(a, index, message(1, &[], &[])), Err(SendError::NotMapped(index)));
        assert_eq!(state.try_request(a, index, message(1, &[], &[])), Err(SendError::NotMapped(index)));
        assert_eq!(state.unmap(a, index), Err(SendError::NotMapped(index)));
        assert_eq!(state.translation(a, index).err(), Some(SendError::NotMapped(index)));
    }
    let (name, key) = state.translation(a, 0).unwrap();
    assert_eq!(state.map(a, 1 << 20, name, key), Err(SendError::NotMapped(1 << 20)));
    assert_eq!((state.counters(), state.unsettled()), before);
    state.unmap(a, 0).unwrap();
    assert_eq!(state.try_send(a, 0, message(1, &[], &[])), Err(SendError::NotMapped(0)));
    state.free_endpoint(a).unwrap();
    assert_eq!(state.try_send(a, 0, message(1, &[], &[])), Err(SendError::NoEndpoint));
    assert_eq!(state.try_request(a, 0, message(1, &[], &[])), Err(SendError::NoEndpoint));
    assert_eq!(state.set_key(a, KEY), Err(SendError::NoEndpoint));
    assert_eq!(state.set_served(a, true), Err(SendError::NoEndpoint));
    assert_eq!(state.name(a), Err(SendError::NoEndpoint));
}

// ---- set-up

#[test]
fn the_first_send_calls_once_and_is_told_when_it_may_go() {
    let mut p = Pair::with_room(4096);
    let a = p.a;
    for _ in 0..3 {
        assert_eq!(p.world.state(A).try_send(a, 0, message(op::TAKE, &[1], &[])), Err(SendError::Full));
    }
    assert!(p.world.state(A).has_calls());
    let calls = p.world.state(A).take_calls();
    assert_eq!(calls.iter().map(|c| (c.endpoint, c.destination)).collect::<Vec<_>>(), [(a, 0)]);
    p.world.node(A).calls = calls;
    p.world.answer(A);
    assert_eq!(p.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[1], &[])).unwrap();
    p.world.run(1);
    assert_eq!(args_of(&p.got(B)), [1]);
}

#[test]
fn a_refused_call_gives_the_next_message_back_and_then_calls_again() {
    let mut p = Pair::with_room(4096);
    let a = p.a;
    let send = |p: &mut Pair, i| p.world.state(A).try_send(a, 0, asks(op::TAKE, &[i], b"x", 1));
    assert_eq!(send(&mut p, 0), Err(SendError::Full));
    let call = p.world.state(A).take_calls()[0];
    p.world.state(A).refused(call, Reason::NobodyThere);
    assert_eq!(p.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
    assert_eq!(send(&mut p, 1), Ok(()));
    p.world.poll(A, 1);
    let returned = p.returned(A).remove(0);
    assert_eq!((returned.args, returned.payload), (vec![1], b"x".to_vec()));
    assert_eq!((returned.reason, returned.certainty), (Reason::NobodyThere, Certainty::NotDelivered));
    assert_eq!((returned.completion, returned.kind), (Some(1), MessageKind::OneWay));
    assert_eq!(send(&mut p, 2), Err(SendError::Full));
    assert_eq!(p.world.state(A).take_calls(), [call]);
    p.world.node(A).calls = vec![call];
    p.world.answer(A);
    assert_eq!(send(&mut p, 3), Ok(()));
    p.world.run(1);
    assert_eq!(args_of(&p.got(B)), [3]);
}

#[test]
fn flows_may_be_used_in_another_order_than_they_were_connected() {
    let mut p = Pair::with_room(4096);
    let second = p.world.add_endpoint(A, KEY);
    let (a, b) = (p.a, p.b);
    p.world.map((A, second), 0, (B, b));
    for e in [a, second] {
        assert_eq!(p.world.state(A).try_send(e, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    }
    p.world.answer(A);
    p.world.state(A).try_send(second, 0, message(op::TAKE, &[2], &[])).unwrap();
    p.world.poll(B, 64);
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[1], &[])).unwrap();
    p.world.poll(B, 64);
    assert!(!p.world.node(B).core.has_broken());
    assert_eq!(args_of(&p.got(B)), [2, 1]);
}

#[test]
fn a_call_for_a_name_that_was_replaced_meanwhile_does_not_lead_the_new_one_there() {
    let mut world: World<Script> = World::new(4096);
    for _ in 0..3 {
        world.add_node(Settings::default(), Script::default(), Fuse::new());
    }
    let [a, b, c] = [0, 1, 2].map(|n| world.add_endpoint(n, KEY));
    world.map((0, a), 0, (1, b));
    assert_eq!(world.state(0).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    let old = world.state(0).take_calls()[0];
    world.map((0, a), 0, (2, c));
    assert_eq!(world.state(0).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    let to_b = world.make_session(0, 1);
    world.state(0).connected(old, to_b);
    let _ = world.state(0).try_send(a, 0, message(op::TAKE, &[1], &[]));
    world.state(0).refused(old, Reason::NobodyThere);
    world.run(2);
    while world.state(0).try_send(a, 0, message(op::TAKE, &[2], &[])).is_err() {
        world.run(1);
    }
    world.run(2);
    assert_eq!(world.node(1).sink.got, []);
    assert_eq!(world.node(0).sink.returned, []);
    assert_eq!(args_of(&world.node(2).sink.got), [2]);
}

#[test]
fn a_reply_names_the_endpoint_that_was_asked_even_if_the_index_names_another_now() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    let name_b = p.world.state(B).name(b).unwrap();
    p.world.state(A).try_request(a, 0, message(op::ECHO, &[1], &[])).unwrap();
    p.world.state(A).map(a, 0, name(crate::world::epoch(7), 7), KEY).unwrap();
    p.world.run(2);
    assert_eq!(p.got(A)[0].source, Some(name_b));
}

#[test]
fn a_bundle_may_talk_to_itself() {
    let mut p = Pair::with_room(4096);
    let (a, other) = (p.a, p.world.add_endpoint(A, KEY));
    p.world.map((A, a), 1, (A, other));
    p.world.map((A, other), 0, (A, a));
    while p.world.state(A).try_request(a, 1, message(op::ECHO, &[4], b"self")).is_err() {
        p.world.run(1);
    }
    p.world.run(2);
    let got = p.got(A);
    assert_eq!(
        got.iter().map(|g| (g.endpoint, g.kind)).collect::<Vec<_>>(),
        [(other, MessageKind::Request), (a, MessageKind::Reply)]
    );
}

// ---- endpoints that are not served

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
    // What arrives before the queue is empty goes behind it.
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[20], &[20; 100])).unwrap();
    for _ in 0..50 {
        p.world.poll(B, 1);
    }
    let got = p.got(B);
    let expected: Vec<u32> = (0..20).flat_map(|i| [i, 50 + i]).chain([20]).collect();
    assert_eq!(args_of(&got), expected);
    assert!(got.iter().filter(|g| g.args[0] < 50).all(|g| g.payload == vec![g.args[0] as u8; 100]));
    p.world.run(2);
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
    // `other` gets as much as a poll takes, all the time; the first one's message must come through all the same.
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
    // The room is back.
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
    // Polls with the smallest budget give room back too.
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

// ---- death

/// A sends these to B, which takes up only `taken` of them before it dies.
fn die_after(taken: u32, sends: &[(MessageKind, u32, Option<u64>)]) -> Pair {
    let mut p = Pair::open(1 << 16);
    let a = p.a;
    for &(kind, i, completion) in sends {
        let m = Outgoing { op: op::DEFER, args: &[i], payload: &i.to_le_bytes(), completion };
        match kind {
            MessageKind::Request => p.world.state(A).try_request(a, 0, m).unwrap(),
            _ => p.world.state(A).try_send(a, 0, m).unwrap(),
        }
    }
    if taken > 0 {
        p.world.poll(B, taken);
    }
    p.world.kill(B);
    p.world.notice(A);
    p
}

#[test]
fn requests_that_a_dead_peer_never_saw_are_surely_not_delivered_and_others_unknown() {
    let request = |i| (MessageKind::Request, i, Some(u64::from(i)));
    let mut p = die_after(2, &[request(0), request(1), request(2), request(3)]);
    let returned = p.returned(A);
    assert_eq!(
        returned.iter().map(|r| (r.args[0], r.certainty)).collect::<Vec<_>>(),
        [(0, Certainty::Unknown), (1, Certainty::Unknown), (2, Certainty::NotDelivered), (3, Certainty::NotDelivered),]
    );
    assert!(returned.iter().all(|r| r.reason == Reason::PeerLost && r.kind == MessageKind::Request));
    assert!(returned.iter().all(|r| r.payload == r.args[0].to_le_bytes() && r.completion == Some(r.args[0].into())));
    let a = p.a;
    let lost = Event::PeerLost { endpoint: a, destination: 0, reason: Reason::PeerLost };
    assert_eq!(p.events(A), [lost, Event::CanSend { endpoint: a, destination: 0 }]);
    assert_eq!(p.world.state(A).unsettled(), 0);
}

#[test]
fn one_way_messages_that_a_dead_peer_never_saw_come_back_and_others_complete() {
    let send = |i| (MessageKind::OneWay, i, Some(u64::from(i)));
    let mut p = die_after(2, &[send(0), send(1), send(2), send(3)]);
    let returned = p.returned(A);
    assert_eq!(
        returned.iter().map(|r| (r.args[0], r.certainty, r.completion)).collect::<Vec<_>>(),
        [(2, Certainty::NotDelivered, Some(2)), (3, Certainty::NotDelivered, Some(3)),]
    );
    assert_eq!(completions(&p.events(A)), [0, 1]);
}

#[test]
fn what_was_in_hand_when_the_peer_died_is_unknown() {
    for kind in [MessageKind::OneWay, MessageKind::Request] {
        let mut p = Pair::open(1 << 16);
        let a = p.a;
        for i in 0..2 {
            let args = [i];
            let m = asks(op::TAKE, &args, b"hand", i.into());
            match kind {
                MessageKind::Request => p.world.state(A).try_request(a, 0, m).unwrap(),
                _ => p.world.state(A).try_send(a, 0, m).unwrap(),
            }
        }
        // It lives to take the first one up, and not to drop it.
        p.world.node(B).fuse.set(1);
        p.world.poll(B, 64);
        p.world.kill(B);
        p.world.notice(A);
        let returned = p.returned(A);
        assert_eq!(
            returned.iter().map(|r| (r.args[0], r.certainty, r.completion)).collect::<Vec<_>>(),
            [(0, Certainty::Unknown, Some(0)), (1, Certainty::NotDelivered, Some(1)),]
        );
        assert_eq!(completions(&p.events(A)), []);
    }
}

#[test]
fn a_message_that_came_back_before_the_peer_died_comes_back_once() {
    let mut p = Pair::open(1 << 16);
    let a = p.a;
    p.world.state(A).try_send(a, 0, asks(op::MISSING, &[1], &[], 1)).unwrap();
    // It lives to take the message up and to send it back, not to drop it.
    p.world.node(B).fuse.set(2);
    p.world.poll(B, 64);
    p.world.kill(B);
    p.world.notice(A);
    let returned = p.returned(A);
    assert_eq!(returned.len(), 1);
    assert_eq!((returned[0].certainty, returned[0].completion), (Certainty::NotDelivered, Some(1)));
    assert_eq!(completions(&p.events(A)), []);
}

#[test]
fn a_reply_that_came_back_before_the_peer_died_comes_back_once() {
    let mut p = Pair::open(1 << 16);
    let a = p.a;
    p.world.state(A).try_request(a, 0, message(op::ECHO_MISSING, &[1], &[])).unwrap();
    p.world.poll(B, 64);
    // It lives to take the reply up and to send it back, not to drop it.
    p.world.node(A).fuse.set(2);
    p.world.poll(A, 64);
    p.world.kill(A);
    p.world.notice(B);
    assert_eq!(p.returned(B).len(), 1);
}

#[test]
fn what_a_dead_peer_had_sent_is_delivered_first() {
    let mut p = Pair::open(1 << 16);
    let (a, b) = (p.a, p.b);
    p.world.state(A).try_request(a, 0, asks(op::ECHO, &[1], &[], 1)).unwrap();
    for i in 10..200 {
        p.world.state(B).try_send(b, 0, message(op::TAKE, &[i], &[])).unwrap();
    }
    p.world.poll(B, 64);
    p.world.kill(B);
    p.world.notice(A);
    assert_eq!(p.got(A).len(), 191);
    assert_eq!(p.returned(A), []);
    assert_eq!(completions(&p.events(A)), [1]);
}

#[test]
fn replies_that_a_dead_peer_did_not_see_come_back_and_its_tokens_are_refused() {
    let mut p = Pair::open(LARGEST);
    let (a, b) = (p.a, p.b);
    for i in 0..3 {
        p.world.state(A).try_request(a, 0, message(op::DEFER, &[i], &[])).unwrap();
    }
    p.world.poll(B, 64);
    let mut tokens = std::mem::take(&mut p.world.node(B).sink.tokens);
    let [first, second, third] = [tokens.remove(0), tokens.remove(0), tokens.remove(0)];
    // One lies in the path, one waits for room, one was not given yet.
    p.world.state(B).reply(first, op::TAKE, &[1], &vec![0; MAX_PAYLOAD]).unwrap();
    p.world.state(B).reply(second, op::TAKE, &[2], &vec![0; MAX_PAYLOAD]).unwrap();
    p.world.kill(A);
    p.world.notice(B);
    let returned = p.returned(B);
    let seen: Vec<_> = returned.iter().map(|r| (r.endpoint, r.kind, r.args[0], r.destination, r.certainty)).collect();
    assert_eq!(
        seen,
        [
            (b, MessageKind::Reply, 1, None, Certainty::NotDelivered),
            (b, MessageKind::Reply, 2, None, Certainty::NotDelivered)
        ]
    );
    assert!(returned.iter().all(|r| r.payload.len() == MAX_PAYLOAD && r.reason == Reason::PeerLost));
    assert!(!p.world.state(B).is_open(&third));
    let (error, third) = p.world.state(B).reply(third, op::TAKE, &[3], &[]).unwrap_err();
    assert_eq!(error, ReplyError::PeerLost);
    p.world.state(B).end(third);
    p.world.poll(B, 1);
    assert!(p.world.state(B).flush());
}

#[test]
fn a_token_of_a_dead_session_is_refused_by_the_next_one_in_its_place() {
    let mut p = Pair::open(4096);
    let a = p.a;
    p.world.state(A).try_request(a, 0, message(op::DEFER, &[1], &[])).unwrap();
    p.world.run(1);
    let token = p.world.node(B).sink.tokens.pop().unwrap();
    for (at, there) in [(A, B), (B, A)] {
        let id = p.world.session(at, there).unwrap();
        let node = p.world.node(at);
        node.core.lose(id, Reason::PeerLost, &mut node.sink);
    }
    p.clear();
    p.insist_send(op::TAKE, &[0], &[]); // comes back
    p.insist_request(op::DEFER, &[2], &[]);
    p.world.run(2);
    assert_eq!(args_of(&p.got(B)), [2]);
    let (error, token) = p.world.state(B).reply(token, op::TAKE, &[3], &[]).unwrap_err();
    assert_eq!(error, ReplyError::PeerLost);
    p.world.state(B).end(token);
    p.world.run(3);
    assert_eq!((p.got(A), p.world.state(A).unsettled()), (vec![], 1));
}

#[test]
fn after_a_death_the_next_message_comes_back_and_the_one_after_calls_again() {
    let mut p = die_after(0, &[]);
    let a = p.a;
    p.world.state(A).try_request(a, 0, message(op::TAKE, &[1], &[])).unwrap();
    p.world.poll(A, 1);
    assert_eq!(p.returned(A)[0].reason, Reason::PeerLost);
    assert_eq!(p.world.state(A).try_send(a, 0, message(op::TAKE, &[2], &[])), Err(SendError::Full));
    p.world.answer(A);
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[2], &[])).unwrap();
    p.world.poll(A, 1);
    assert_eq!(p.returned(A)[0].reason, Reason::NobodyThere);
}

#[test]
fn parked_messages_outlive_their_sender() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    p.world.state(B).set_served(b, false).unwrap();
    p.world.state(A).try_send(a, 0, message(op::TAKE, &[1], &[])).unwrap();
    p.world.state(A).try_request(a, 0, message(op::DEFER, &[2], &[])).unwrap();
    p.world.run(2);
    p.world.kill(A);
    p.world.notice(B);
    p.world.state(B).set_served(b, true).unwrap();
    p.world.poll(B, 64);
    assert_eq!(args_of(&p.got(B)), [1, 2]);
    let token = p.world.node(B).sink.tokens.pop().unwrap();
    assert_eq!(p.world.state(B).reply(token, 0, &[], &[]).unwrap_err().0, ReplyError::PeerLost);
}

#[test]
fn a_name_can_be_mapped_again_and_again() {
    let mut p = Pair::open(4096);
    // More often than a session has flows.
    for number in 0..5000 {
        p.world.map((A, p.a), 0, (B, p.b));
        p.insist_send(op::TAKE, &[number], &[]);
        p.world.run(1);
    }
    p.world.run(2);
    assert!(args_of(&p.got(B)).into_iter().eq(0..5000), "{} came", p.got(B).len());
    assert_eq!(p.returned(A).len(), 0);
}

#[test]
fn a_session_that_broke_and_was_lost_does_not_break_the_next_one_in_its_place() {
    let mut p = Pair::open(4096);
    let id = p.world.session(A, B).unwrap();
    // B writes nonsense and dies; A hears of the death first.
    let at_b = p.world.session(B, A).unwrap();
    p.world.node(B).core.lose(at_b, Reason::PeerLost, &mut Script::default());
    let fuse = Fuse::new();
    let (tx, _rx) = p.world.path(&fuse, &fuse);
    let (mut evil, rx) = p.world.path(&fuse, &fuse);
    let node = p.world.node(A);
    node.core.lose(id, Reason::PeerLost, &mut node.sink);
    let index = node.core.reserve().unwrap();
    let id = node.core.attach(index, crate::world::peer(crate::world::epoch(B)), tx, rx);
    evil.push(Head { flow: 9, ..Head::new(Kind::Reply) }, &[], &[]).unwrap();
    node.core.lose(id, Reason::PeerLost, &mut node.sink);
    p.insist_send(op::TAKE, &[0], &[]); // comes back
    p.insist_send(op::TAKE, &[1], &[]);
    assert_eq!(p.world.node(A).core.take_broken(), []);
    p.world.run(2);
    assert_eq!(args_of(&p.got(B)), [1]);
}
