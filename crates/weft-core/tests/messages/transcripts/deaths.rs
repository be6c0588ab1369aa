//! What becomes of messages when a peer dies.

use super::{args_of, asks, completions};
use crate::world::{message, op, Fuse, Pair, Script, A, B, LARGEST};
use weft_core::{Event, MessageKind, Outgoing, ReplyError, SendError};
use weft_wire::path::Tx;
use weft_wire::{Certainty, Head, Kind, Reason, MAX_PAYLOAD};

/// A sends these to B, which looks at only `taken` of them before it dies.
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
fn a_message_in_hand_when_the_peer_died_is_unknown() {
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
        // It lives long enough to look at the first one, but not to pop it.
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
    // It lives long enough to look at the message and send it back, but not to pop it.
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
    // It lives long enough to look at the reply and send it back, but not to pop it.
    p.world.node(A).fuse.set(2);
    p.world.poll(A, 64);
    p.world.kill(A);
    p.world.notice(B);
    assert_eq!(p.returned(B).len(), 1);
}

#[test]
fn messages_of_a_dead_peer_are_delivered_first() {
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
    // One reply is in the path, one waits for room, one was not made yet.
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
    // B writes nonsense and dies; A learns of the death first.
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
