//! Closing flows and reusing their numbers: one behaviour each.

use crate::world::{message, op, Pair, A, B, KEY, LARGEST};
use weft_core::{Endpoint, Event, SendError, Service};
use weft_wire::path::Record;
use weft_wire::{Head, HeadWords, Kind};

/// The most flows in one direction of a session with a trusted peer.
const FLOWS_MOST: u32 = 4096;

/// The number of the flow that an index leads to.
fn number(pair: &mut Pair, from: Endpoint, to: u32) -> u16 {
    pair.world.state(A).asking(from, to).expect("it leads to a flow").0.number
}

fn send(pair: &mut Pair, from: Endpoint, to: u32, args: &[u32]) {
    crate::world::insist(|| {
        let sent = pair.world.state(A).try_send(from, to, message(op::TAKE, args, &[]));
        pair.world.run(usize::from(sent.is_err()));
        sent.is_ok()
    });
}

fn cuts(pair: &mut Pair) -> u64 {
    [A, B].map(|at| pair.world.state(at).counters().violations).iter().sum()
}

#[test]
fn the_number_of_a_freed_endpoints_flow_and_its_place_are_used_again() {
    let mut pair = Pair::open(LARGEST * 4);
    let (old, b) = (pair.a, pair.b);
    let number_before = number(&mut pair, old, 0);
    send(&mut pair, old, 0, &[1]);
    pair.world.state(A).free_endpoint(old).expect("alive");
    pair.world.run(4);
    let new = pair.world.add_endpoint(A, KEY);
    assert_eq!((new.index(), new == old), (old.index(), false), "its place, and not its handle");
    pair.world.map((A, new), 0, (B, b));
    send(&mut pair, new, 0, &[2]);
    pair.world.run(2);
    assert_eq!(number(&mut pair, new, 0), number_before);
    let got: Vec<_> = pair.got(B).into_iter().map(|got| (got.args, got.source)).collect();
    let source = pair.world.state(A).name(new).expect("alive");
    assert_eq!(got[1], (vec![2], Some(source)));
    // The old handle refers to nothing.
    assert_eq!(pair.world.state(A).name(old), Err(SendError::NoEndpoint));
    assert_eq!(pair.world.state(A).free_endpoint(old), Err(SendError::NoEndpoint));
    assert_eq!(pair.world.state(A).try_send(old, 0, message(op::TAKE, &[], &[])), Err(SendError::NoEndpoint));
    assert_eq!(pair.world.state(A).set_key(old, KEY), Err(SendError::NoEndpoint));
    assert_eq!(cuts(&mut pair), 0);
}

#[test]
fn a_flow_closes_only_when_all_that_was_sent_by_it_has_ended() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b) = (pair.a, pair.b);
    let first = number(&mut pair, a, 0);
    pair.insist_request(op::DEFER, &[7], &[]);
    pair.world.run(2);
    pair.world.state(A).unmap(a, 0).expect("mapped");
    pair.world.run(4);
    pair.world.map((A, a), 1, (B, b));
    send(&mut pair, a, 1, &[8]);
    assert_ne!(number(&mut pair, a, 1), first, "a request is under way there");
    let token = pair.world.node(B).sink.tokens.pop().expect("a request");
    pair.world.state(B).reply(token, op::TAKE, &[9], &[]).expect("a reply");
    pair.world.run(4);
    assert_eq!(pair.got(A).iter().map(|got| got.args[0]).collect::<Vec<_>>(), [9]);
    pair.world.map((A, a), 2, (B, b));
    send(&mut pair, a, 2, &[10]);
    assert_eq!(number(&mut pair, a, 2), first, "it was answered");
    assert_eq!(cuts(&mut pair), 0);
}

#[test]
fn a_reply_that_is_refused_goes_back_before_its_flow_closes() {
    for frees in [false, true] {
        let mut pair = Pair::open(LARGEST * 4);
        let a = pair.a;
        pair.insist_request(op::DEFER, &[7], &[]);
        pair.world.run(2);
        match frees {
            true => pair.world.state(A).free_endpoint(a).expect("alive"),
            false => pair.world.state(A).unmap(a, 0).expect("mapped"),
        }
        let token = pair.world.node(B).sink.tokens.pop().expect("a request");
        pair.world.state(B).reply(token, op::MISSING, &[9], &[]).expect("a reply");
        pair.world.run(4);
        assert_eq!(pair.returned(B).iter().map(|back| back.args[0]).collect::<Vec<_>>(), [9]);
        assert_eq!(cuts(&mut pair), 0);
    }
}

#[test]
fn the_next_flow_with_a_number_leads_to_its_own_endpoint_in_the_same_state_of_things() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, other) = (pair.a, pair.world.add_endpoint(B, KEY));
    let first = number(&mut pair, a, 0);
    send(&mut pair, a, 0, &[1]);
    pair.world.run(2);
    pair.world.state(A).unmap(a, 0).expect("mapped");
    pair.world.run(4);
    pair.world.map((A, a), 1, (B, other));
    send(&mut pair, a, 1, &[2]);
    pair.world.run(2);
    assert_eq!(number(&mut pair, a, 1), first);
    let b = pair.b;
    let got: Vec<_> = pair.got(B).into_iter().map(|got| (got.endpoint, got.args[0])).collect();
    assert_eq!(got, [(b, 1), (other, 2)]);
}

#[test]
fn a_number_is_not_used_again_while_messages_of_its_flow_wait_at_an_endpoint() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b, other) = (pair.a, pair.b, pair.world.add_endpoint(B, KEY));
    let first = number(&mut pair, a, 0);
    pair.world.state(B).set_served(b, false).expect("alive");
    (0..3).for_each(|n| send(&mut pair, a, 0, &[n]));
    pair.world.run(2);
    pair.world.state(A).unmap(a, 0).expect("mapped");
    pair.world.run(4);
    assert_eq!(pair.world.state(A).unsettled(), 0, "they are stored, so the flow has nothing under way");
    pair.world.map((A, a), 1, (B, other));
    send(&mut pair, a, 1, &[10]);
    assert_ne!(number(&mut pair, a, 1), first, "credit of three messages is still out");
    pair.world.state(B).set_served(b, true).expect("alive");
    pair.world.run(4);
    assert_eq!(pair.got(B).len(), 4);
    pair.world.map((A, a), 2, (B, other));
    send(&mut pair, a, 2, &[11]);
    assert_eq!(number(&mut pair, a, 2), first, "they were taken");
    assert_eq!(cuts(&mut pair), 0);
}

#[test]
fn who_finds_all_numbers_closing_waits_for_one() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b) = (pair.a, pair.b);
    // Index 0 has a flow already.
    for index in 1..FLOWS_MOST {
        pair.world.map((A, a), index, (B, b));
        assert_eq!(pair.world.state(A).try_send(a, index, message(op::TAKE, &[], &[])), Err(SendError::Full));
    }
    // A visit takes 64 records.
    pair.world.run(80);
    pair.world.map((A, a), FLOWS_MOST, (B, b));
    let mut attempts = 0;
    while pair.world.state(A).try_send(a, FLOWS_MOST, message(op::TAKE, &[1], &[])).is_err() {
        pair.world.run(1);
        attempts += 1;
    }
    assert!(attempts < 10);
    pair.world.run(1);
    let returned: Vec<_> = pair.returned(A).iter().map(|back| back.reason).collect();
    assert_eq!(returned, [weft_wire::Reason::NoRoom], "all are open, and nobody closes one");
    // Now some close; the peer has not answered yet.
    pair.clear();
    (1..5).for_each(|index| pair.world.state(A).unmap(a, index).expect("mapped"));
    pair.world.map((A, a), FLOWS_MOST, (B, b));
    assert_eq!(pair.world.state(A).try_send(a, FLOWS_MOST, message(op::TAKE, &[2], &[])), Err(SendError::Full));
    pair.world.answer(A);
    pair.world.poll(A, 64);
    assert_eq!(pair.events(A), []);
    pair.world.run(4);
    assert_eq!(pair.events(A), [Event::CanSend { endpoint: a, destination: FLOWS_MOST }]);
    pair.world.state(A).try_send(a, FLOWS_MOST, message(op::TAKE, &[3], &[])).expect("room");
    pair.world.run(2);
    assert_eq!(pair.got(B).iter().map(|got| got.args[0]).collect::<Vec<_>>(), [3]);
    assert_eq!(pair.returned(A), []);
}

#[test]
fn the_same_name_and_key_mapped_again_keep_their_flow() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b) = (pair.a, pair.b);
    let first = number(&mut pair, a, 0);
    pair.insist_request(op::DEFER, &[7], &[]);
    pair.world.map((A, a), 0, (B, b));
    send(&mut pair, a, 0, &[8]);
    assert_eq!(number(&mut pair, a, 0), first);
    assert_eq!(pair.world.state(A).asking(a, 0).expect("it leads to a flow").1, 1, "with what is under way there");
    // If the entry is removed before the next message looks for a session, the flow still closes.
    let token = pair.world.node(B).sink.tokens.pop().expect("a request");
    pair.world.state(B).end(token);
    pair.world.map((A, a), 0, (B, b));
    pair.world.state(A).unmap(a, 0).expect("mapped");
    pair.world.run(4);
    pair.world.map((A, a), 1, (B, b));
    send(&mut pair, a, 1, &[9]);
    assert_eq!(number(&mut pair, a, 1), first);
}

#[test]
fn a_message_that_may_be_lost_and_comes_late_does_not_reach_the_next_flow() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, other) = (pair.a, pair.world.add_endpoint(B, KEY));
    let unreliable = Service { reliability: weft_core::Reliability::Unreliable, ..Service::default() };
    pair.world.state(A).set_service(a, unreliable).expect("alive");
    pair.world.run(4);
    send(&mut pair, a, 0, &[1]);
    pair.world.run(2);
    assert_eq!(pair.got(B).len(), 1);
    pair.world.state(A).unmap(a, 0).expect("mapped");
    pair.world.run(4);
    pair.world.map((A, a), 1, (B, other));
    send(&mut pair, a, 1, &[2]);
    pair.world.run(2);
    assert_eq!(pair.got(B).iter().map(|got| got.endpoint).collect::<Vec<_>>(), [other]);
    // Send messages of all generations of all numbers that were used, outside the path: one is the current flow's, all
    // others are late.
    let id = pair.world.session(B, A).expect("a session");
    let dropped = pair.world.state(B).counters().unreliable_dropped;
    for flow in 0..3 {
        for generation in 0..4 {
            let head = Head { op: op::TAKE, args: 1, flow, slot: generation, ..Head::new(Kind::Unreliable) };
            let record = Record { head: HeadWords::from(head), args: &[3], payload: &[] };
            let node = pair.world.node(B);
            node.core.take_unreliable(id, record, &mut node.sink);
        }
    }
    let got: Vec<_> = pair.got(B).into_iter().map(|got| got.endpoint).collect();
    assert_eq!(got, [other]);
    assert_eq!(pair.world.state(B).counters().unreliable_dropped - dropped, 11);
}

#[test]
fn a_client_learns_that_a_flow_closed_before_the_number_is_free() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b) = (pair.a, pair.b);
    pair.world.state(B).claim_events(b).expect("alive");
    let first = number(&mut pair, a, 0);
    pair.world.state(A).unmap(a, 0).expect("mapped");
    pair.world.poll(A, 64);
    pair.world.poll(B, 64);
    let closed = pair.world.node(B).sink.closed.clone();
    assert_eq!(closed.iter().map(|(endpoint, flow)| (*endpoint, flow.number)).collect::<Vec<_>>(), [(b, first)]);
    pair.world.run(2);
    pair.world.map((A, a), 1, (B, b));
    send(&mut pair, a, 1, &[1]);
    assert_eq!(number(&mut pair, a, 1), first);
    assert_eq!(pair.world.node(B).sink.closed.len(), 1);
}

#[test]
fn a_sender_that_got_full_learns_of_room_although_its_route_was_renewed() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b) = (pair.a, pair.b);
    pair.world.state(B).leave(b).expect("alive");
    pair.world.poll(A, 64);
    assert!(pair.world.state(A).has_calls(), "its peer has moved, and is called again");
    let ordered = Service { is_ordered: true, ..Service::default() };
    pair.world.state(A).set_service(a, ordered).expect("alive");
    assert_eq!(pair.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    pair.world.answer(A);
    assert_eq!(pair.events(A), [Event::CanSend { endpoint: a, destination: 0 }]);
}

#[test]
fn a_client_learns_that_a_flow_closed_after_the_messages_that_waited() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b) = (pair.a, pair.b);
    pair.world.state(B).claim_events(b).expect("alive");
    pair.world.state(B).set_served(b, false).expect("alive");
    (0..3).for_each(|n| send(&mut pair, a, 0, &[n]));
    pair.world.run(2);
    pair.world.state(A).unmap(a, 0).expect("mapped");
    pair.world.run(4);
    pair.world.state(B).come_again();
    pair.world.run(1);
    assert_eq!(pair.world.node(B).sink.closed, [], "three messages of it are still to come");
    pair.world.state(B).set_served(b, true).expect("alive");
    pair.world.run(4);
    assert_eq!((pair.got(B).len(), pair.world.node(B).sink.closed.len()), (3, 1));
}

#[test]
fn a_message_that_may_be_lost_and_waits_at_an_endpoint_keeps_its_source_when_its_flow_closes() {
    let mut pair = Pair::open(LARGEST * 4);
    let (a, b) = (pair.a, pair.b);
    let unreliable = Service { reliability: weft_core::Reliability::Unreliable, ..Service::default() };
    pair.world.state(A).set_service(a, unreliable).expect("alive");
    pair.world.run(4);
    let source = pair.world.state(A).name(a).expect("alive");
    pair.world.state(B).set_served(b, false).expect("alive");
    send(&mut pair, a, 0, &[1]);
    pair.world.run(2);
    pair.world.state(A).free_endpoint(a).expect("alive");
    pair.world.run(4);
    // Other flows get the numbers, including its own.
    let others: Vec<_> = (0..4).map(|_| pair.world.add_endpoint(A, KEY)).collect();
    for &other in &others {
        pair.world.map((A, other), 0, (B, b));
        send(&mut pair, other, 0, &[2]);
    }
    pair.world.run(4);
    pair.world.state(B).set_served(b, true).expect("alive");
    pair.world.run(4);
    let got: Vec<_> = pair.got(B).into_iter().filter(|got| got.args == [1]).map(|got| got.source).collect();
    assert_eq!(got, [Some(source)]);
}

#[test]
fn a_reply_whose_handler_closes_the_flow_and_refuses_it_goes_back_all_the_same() {
    for answer in [op::UNMAP_MISSING, op::FREE_MISSING] {
        let mut pair = Pair::open(LARGEST * 4);
        pair.insist_request(op::DEFER, &[7], &[]);
        pair.world.run(2);
        let token = pair.world.node(B).sink.tokens.pop().expect("a request");
        pair.world.state(B).reply(token, answer, &[9], &[]).expect("a reply");
        pair.world.run(4);
        assert_eq!(cuts(&mut pair), 0, "operation {answer}");
        assert_eq!(pair.returned(B).iter().map(|back| back.args[0]).collect::<Vec<_>>(), [9]);
    }
}
