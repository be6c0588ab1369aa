//! Reaching a destination: calls, flows, names and indices.

use super::{args_of, asks};
use crate::world::{message, name, op, Fuse, Pair, Script, World, A, B, KEY};
use weft_core::{Event, MessageKind, SendError, Settings};
use weft_wire::{Certainty, Reason};

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
