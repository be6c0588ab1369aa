//! Messages that are not admitted or not wanted, and errors of the caller.

use super::{args_of, asks, completions};
use crate::world::{message, op, Pair, A, B, KEY};
use weft_core::{Event, MessageKind, SendError};
use weft_wire::{Certainty, EndpointId, Key, Reason, MAX_ARGS, MAX_PAYLOAD};

// ---- refusals

/// Sends one of each kind to an endpoint that refuses them, and checks what comes back.
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
