//! Long messages: placed before their handler runs, delivered once or returned once, with all their contents.

use crate::world::{insist, message, seeded, Common, Fault, Fuse, Inside, TestTx, World, KEY, LARGEST};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use weft_core::bulk::PIECE;
use weft_core::testing::Bytes;
use weft_core::{
    Contents, Delivery, Endpoint, Event, Get, Long, Memory, MessageKind, Placed, Report, Returned, Settings, Sink,
    Transfer,
};
use weft_wire::{Certainty, Key, Reason};

const A: usize = 0;
const B: usize = 1;
/// Takes the message.
const TAKE: u8 = 1;
/// Answers with a long message. The first argument is its offset, the second its length.
const ANSWER: u8 = 2;
/// Like `ANSWER`, but there is no handler for the answer.
const ANSWER_MISSING: u8 = 3;
/// There is no such handler.
const MISSING: u8 = 4;
/// Answers with a short message.
const SHORT: u8 = 5;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Got {
    kind: MessageKind,
    op: u8,
    args: Vec<u32>,
    placed: Option<Placed>,
    payload: usize,
}

/// A client that records what arrives and where it lies.
#[derive(Debug, Default)]
struct Book {
    got: Vec<Got>,
    returned: Vec<Returned>,
    /// Shared, so that it outlives the node.
    shared: Common<Vec<Got>>,
}

impl Sink<TestTx> for Book {
    fn deliver(&mut self, state: &mut Inside, message: &Delivery<'_>) -> Result<(), Reason> {
        let (kind, op, args, payload) = (message.kind(), message.op(), message.args.to_vec(), message.payload.len());
        if op == MISSING {
            return Err(Reason::NoHandler);
        }
        let got = Got { kind, op, args, placed: state.placed(), payload };
        self.shared.borrow_mut().push(got.clone());
        self.got.push(got);
        let answer = |op| Long { op, args: &[9], offset: u64::from(message.args[0]) };
        let contents = || Contents::from(pattern(message.args[1] as usize));
        match op {
            ANSWER | ANSWER_MISSING => {
                let token = message.take_reply().expect("a request");
                let op = if op == ANSWER { TAKE } else { MISSING };
                state.reply_long(token, answer(op), contents()).expect("few arguments");
            }
            SHORT => {
                let token = message.take_reply().expect("a request");
                state.reply(token, TAKE, &[], &[]).expect("a short one");
            }
            _ => {}
        }
        Ok(())
    }

    fn returned(&mut self, _: &mut Inside, message: Returned) -> Option<Returned> {
        self.returned.push(message);
        None
    }
}

/// Bytes that encode their positions.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 251 + at) as u8 | 1).collect()
}

/// Two nodes with an endpoint and a segment each.
struct Pair {
    world: World<Book>,
    a: Endpoint,
    b: Endpoint,
    at_a: Bytes,
    at_b: Bytes,
}

const SEGMENT: usize = 3 << 20;

impl Pair {
    fn new(room: u32) -> Pair {
        let mut world = World::new(room);
        for _ in 0..2 {
            world.add_node(Settings::default(), Book::default(), Fuse::new());
        }
        let (a, b) = (world.add_endpoint(A, KEY), world.add_endpoint(B, KEY));
        world.map((A, a), 0, (B, b));
        world.map((B, b), 0, (A, a));
        let (at_a, at_b) = (Bytes::new(SEGMENT), Bytes::new(SEGMENT));
        let mut pair = Pair { world, a, b, at_a, at_b };
        insist(|| {
            let sent = pair.world.state(A).try_request(a, 0, message(TAKE, &[], &[])).is_ok();
            pair.world.run(1);
            sent
        });
        pair.world.run(4);
        pair.world.state(A).set_segment(a, Some(Box::new(pair.at_a.clone()))).expect("alive");
        pair.world.state(B).set_segment(b, Some(Box::new(pair.at_b.clone()))).expect("alive");
        pair.clear();
        pair
    }

    fn clear(&mut self) {
        for at in [A, B] {
            let node = self.world.node(at);
            node.sink.got.clear();
            node.sink.returned.clear();
            while node.core.state_mut().next_event().is_some() {}
        }
    }

    fn request(&mut self, op: u8, args: &[u32], offset: u64, len: usize) {
        let a = self.a;
        let long = Long { op, args, offset };
        self.world.state(A).try_request_long(a, 0, long, pattern(len).into()).expect("a slot");
    }

    fn get(&mut self, source: u64, len: u64, offset: u64) {
        let a = self.a;
        self.world.state(A).try_get(a, 0, Get { op: TAKE, args: &[5, 6], source, len, offset }).expect("a slot");
    }

    /// Polls until everything has ended.
    fn settle(&mut self) {
        insist(|| {
            self.world.run(1);
            let is_over = |state: &mut Inside| state.flush() && state.unsettled() == 0 && !state.has_unfinished();
            is_over(self.world.state(A)) && is_over(self.world.state(B))
        });
    }

    fn got(&mut self, at: usize) -> Vec<Got> {
        std::mem::take(&mut self.world.node(at).sink.got)
    }

    fn returned(&mut self, at: usize) -> Vec<Returned> {
        std::mem::take(&mut self.world.node(at).sink.returned)
    }

    /// The only returned message, with all its contents.
    fn expect_return(&mut self, at: usize, kind: MessageKind, reason: Reason, len: usize) -> Returned {
        let mut returned = self.returned(at);
        assert_eq!(returned.len(), 1, "{reason:?}");
        let one = returned.remove(0);
        assert_eq!((one.kind, one.reason, one.certainty), (kind, reason, Certainty::NotDelivered));
        assert!(one.payload == pattern(len));
        assert!(self.returned(A).is_empty() && self.returned(B).is_empty());
        one
    }

    /// Everything is free again: 32 short requests are answered.
    fn lives_on(&mut self) {
        self.clear();
        let a = self.a;
        for number in 0..100 {
            insist(|| {
                let sent = self.world.state(A).try_request(a, 0, message(SHORT, &[number], b"short")).is_ok();
                self.world.run(1);
                sent
            });
        }
        self.settle();
        let numbers: Vec<u32> = self.got(B).iter().map(|got| got.args[0]).collect();
        assert_eq!((numbers, self.got(A).len()), ((0..100).collect(), 100));
    }
}

fn lengths() -> impl Iterator<Item = usize> {
    [0, 1, 8, 64 << 10, 1 << 20, PIECE, 2 * PIECE].into_iter().flat_map(|len| [len.saturating_sub(1), len, len + 1])
}

#[test]
fn bytes_are_placed_before_the_handler_runs_and_no_others() {
    for room in [LARGEST, 4 * LARGEST] {
        let mut p = Pair::new(room);
        for len in lengths() {
            for args in [0, 1, 14, 15, 16] {
                let args: Vec<u32> = (0..args).collect();
                p.at_b.all().fill(0);
                p.request(TAKE, &args, 1000, len);
                p.settle();
                let placed = Some(Placed { offset: 1000, len: len as u64 });
                let got = Got { kind: MessageKind::Request, op: TAKE, args, placed, payload: 0 };
                assert_eq!(p.got(B), [got], "{len}");
                let all = p.at_b.all();
                assert!(all[1000..1000 + len] == pattern(len), "{len}");
                assert!(all[..1000].iter().chain(&all[1000 + len..]).all(|byte| *byte == 0), "{len}");
            }
        }
        assert!(p.returned(A).is_empty());
        p.lives_on();
    }
}

#[test]
fn a_short_long_message_is_one_record() {
    let mut p = Pair::new(4 * LARGEST);
    let mut pushed = |request: bool| {
        if request {
            p.request(TAKE, &[1], 0, 100);
        }
        let mut report = Report::default();
        p.world.state(A).report_into(&mut report);
        report.sessions[0].traffic.pushed
    };
    let before = pushed(false);
    let after = pushed(true);
    // Header, three arguments and 100 bytes: three lines of 64 bytes.
    assert_eq!(after - before, 192);
}

/// A segment that counts the bytes written and read.
#[derive(Clone, Debug)]
struct Counting(Bytes, Arc<[AtomicU64; 2]>);

impl Memory for Counting {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.1[1].fetch_add(to.len() as u64, Ordering::Relaxed);
        self.0.read(at, to)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.1[0].fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.0.write(at, bytes)
    }
}

#[test]
fn each_byte_is_copied_once_into_a_segment_and_once_out_of_it() {
    let mut p = Pair::new(2 * LARGEST);
    let (b, counts) = (p.b, Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
    let segment = Counting(p.at_b.clone(), counts.clone());
    p.world.state(B).set_segment(b, Some(Box::new(segment))).expect("alive");
    p.request(TAKE, &[], 0, 1_000_000);
    p.settle();
    p.get(0, 700_000, 0);
    p.settle();
    assert_eq!(counts.each_ref().map(|count| count.load(Ordering::Relaxed)), [1_000_000, 700_000]);
    assert!(p.at_a.all()[..700_000] == pattern(1_000_000)[..700_000]);
}

#[test]
fn replies_are_placed_at_the_requesting_endpoint() {
    let mut p = Pair::new(2 * LARGEST);
    let a = p.a;
    for len in lengths() {
        p.at_a.all().fill(0);
        p.world.state(A).try_request(a, 0, message(ANSWER, &[77, len as u32], &[])).expect("a slot");
        p.settle();
        let placed = Some(Placed { offset: 77, len: len as u64 });
        assert_eq!(p.got(A), [Got { kind: MessageKind::Reply, op: TAKE, args: vec![9], placed, payload: 0 }]);
        assert!(p.at_a.all()[77..77 + len] == pattern(len) && p.at_a.all()[77 + len] == 0);
    }
    // A long answer to a long request.
    p.request(ANSWER, &[0, 100_000], 0, 200_000);
    p.settle();
    assert_eq!(p.got(A)[0].placed, Some(Placed { offset: 0, len: 100_000 }));
    p.lives_on();
}

#[test]
fn a_get_fetches_bytes_of_a_segment() {
    let mut p = Pair::new(2 * LARGEST);
    p.at_b.all().copy_from_slice(&pattern(SEGMENT));
    for len in lengths() {
        p.at_a.all().fill(0);
        p.get(100, len as u64, 50);
        p.settle();
        let placed = Some(Placed { offset: 50, len: len as u64 });
        assert_eq!(p.got(A), [Got { kind: MessageKind::Reply, op: TAKE, args: vec![5, 6], placed, payload: 0 }]);
        assert!(p.at_a.all()[50..50 + len] == pattern(SEGMENT)[100..100 + len] && p.at_a.all()[50 + len] == 0);
    }
    assert!(p.got(B).is_empty(), "no handler runs there");
    p.lives_on();
}

#[test]
fn what_cannot_be_placed_comes_back_whole() {
    let size = SEGMENT as u64;
    let refused = [
        (size, 1, Reason::BadOffset),
        (size + 1, 100_000, Reason::BadOffset),
        (size - 1, 2, Reason::BadLength),
        (size - 50_000, 50_001, Reason::BadLength),
        (u64::MAX, 1, Reason::BadOffset),
        (u64::MAX - 10, 100_000, Reason::BadOffset),
    ];
    let mut p = Pair::new(2 * LARGEST);
    for (offset, len, reason) in refused {
        p.request(TAKE, &[1, 2], offset, len);
        p.settle();
        let back = p.expect_return(A, MessageKind::Request, reason, len);
        assert_eq!((back.args, back.op, back.long), (vec![1, 2], TAKE, Some(Transfer::Put { offset })));
        assert_eq!(back.destination, Some(0));
        assert!(p.at_b.all().iter().all(|byte| *byte == 0) && p.got(B).is_empty());
    }
    for len in [1, 100_000] {
        p.request(MISSING, &[], 0, len);
        p.settle();
        p.expect_return(A, MessageKind::Request, Reason::NoHandler, len);
    }
    p.at_b.all().fill(0);
    let b = p.b;
    p.world.state(B).set_segment(b, None).expect("alive");
    for len in [1, 100_000] {
        p.request(TAKE, &[], 0, len);
        p.settle();
        p.expect_return(A, MessageKind::Request, Reason::BadOffset, len);
    }
    // A message without bytes needs no segment.
    p.request(TAKE, &[], 1 << 60, 0);
    p.settle();
    assert_eq!(p.got(B)[0].placed, Some(Placed { offset: 1 << 60, len: 0 }));
    p.world.state(B).set_segment(b, Some(Box::new(p.at_b.clone()))).expect("alive");
    p.world.state(B).set_key(b, Key(1)).expect("alive");
    for len in [1, 100_000] {
        p.request(TAKE, &[], 0, len);
        p.settle();
        p.expect_return(A, MessageKind::Request, Reason::WrongKey, len);
    }
    assert!(p.at_b.all().iter().all(|byte| *byte == 0));
    p.world.state(B).set_key(b, KEY).expect("alive");
    p.lives_on();
}

#[test]
fn a_reply_that_cannot_be_placed_comes_back_to_the_replier() {
    let mut p = Pair::new(2 * LARGEST);
    let (a, size) = (p.a, SEGMENT as u32);
    let cases = [
        (ANSWER, size, 5, Reason::BadOffset),
        (ANSWER, size - 1, 200_000, Reason::BadLength),
        (ANSWER_MISSING, 0, 5, Reason::NoHandler),
        (ANSWER_MISSING, 0, 200_000, Reason::NoHandler),
    ];
    for (op, offset, len, reason) in cases {
        p.world.state(A).try_request(a, 0, message(op, &[offset, len], &[])).expect("a slot");
        p.settle();
        let back = p.expect_return(B, MessageKind::Reply, reason, len as usize);
        assert_eq!((back.args, back.long), (vec![9], Some(Transfer::Put { offset: offset.into() })));
        let told: Vec<Event> = std::iter::from_fn(|| p.world.state(A).next_event()).collect();
        assert!(matches!(told[..], [Event::ReplyRefused { reason: told, .. }] if told == reason), "{told:?}");
        assert!(p.got(A).is_empty());
    }
    p.lives_on();
}

#[test]
fn a_get_that_cannot_be_served_comes_back() {
    let mut p = Pair::new(2 * LARGEST);
    let size = SEGMENT as u64;
    let cases = [
        (size, 1, 0, Reason::BadOffset),
        (size - 1, 2, 0, Reason::BadLength),
        (1, u64::MAX, 0, Reason::BadLength),
        (u64::MAX, u64::MAX, 0, Reason::BadOffset),
        // The bytes arrive, but do not fit here.
        (0, 1, size, Reason::BadOffset),
        (0, 200_000, size - 1, Reason::BadLength),
    ];
    for (source, len, offset, reason) in cases {
        p.get(source, len, offset);
        p.settle();
        let back = p.expect_return(A, MessageKind::Request, reason, 0);
        assert_eq!((back.args, back.long), (vec![5, 6], Some(Transfer::Get { source, len, offset })));
        assert!(p.got(A).is_empty() && p.got(B).is_empty());
    }
    let b = p.b;
    p.world.state(B).set_segment(b, None).expect("alive");
    p.get(0, 1, 0);
    p.settle();
    p.expect_return(A, MessageKind::Request, Reason::BadOffset, 0);
    p.lives_on();
}

#[test]
fn a_segment_that_is_taken_away_in_the_middle_takes_no_more() {
    let mut p = Pair::new(LARGEST);
    let b = p.b;
    p.request(TAKE, &[], 0, 1 << 20);
    p.world.run(3);
    p.world.state(B).set_segment(b, None).expect("alive");
    let before = p.at_b.all().clone();
    assert!(before[0] != 0 && before[(1 << 20) - 1] == 0, "it was in the middle");
    p.settle();
    assert!(*p.at_b.all() == before);
    p.expect_return(A, MessageKind::Request, Reason::BadOffset, 1 << 20);
    // The same for bytes that a peer reads.
    p.world.state(B).set_segment(b, Some(Box::new(p.at_b.clone()))).expect("alive");
    p.get(0, 1 << 20, 0);
    p.world.run(3);
    p.world.state(B).set_segment(b, None).expect("alive");
    p.settle();
    p.expect_return(A, MessageKind::Request, Reason::BadOffset, 0);
    p.lives_on();
}

#[test]
fn short_messages_pass_long_ones_of_the_same_flow() {
    let mut p = Pair::new(2 * LARGEST);
    let a = p.a;
    p.request(TAKE, &[], 0, 2 << 20);
    p.world.run(2);
    let mut sent = 0;
    while p.world.node(B).sink.got.iter().all(|got| got.placed.is_none()) {
        if p.world.state(A).try_request(a, 0, message(SHORT, &[], b"short")).is_ok() {
            sent += 1;
        }
        p.world.run(1);
    }
    let short = p.got(B).len() - 1;
    // One is sent in each round, and an answer takes one round.
    assert!(sent >= 30 && short >= sent - 2, "{sent} were sent, {short} came before the long one");
    p.settle();
}

#[test]
fn a_window_of_long_messages_leaves_in_order_and_no_more_are_taken() {
    let mut p = Pair::new(2 * LARGEST);
    let a = p.a;
    for number in 0..32 {
        p.request(TAKE, &[number], u64::from(number) * 50_000, 50_000);
    }
    let long = Long { op: TAKE, args: &[], offset: 0 };
    let refused = p.world.state(A).try_request_long(a, 0, long, vec![1, 2, 3].into());
    assert_eq!(refused.map_err(|(_, contents)| contents.into_vec()), Err(vec![1, 2, 3]));
    p.settle();
    let numbers: Vec<u32> = p.got(B).iter().map(|got| got.args[0]).collect();
    assert_eq!(numbers, (0..32).collect::<Vec<u32>>());
    assert!((0..32).all(|at| p.at_b.all()[at * 50_000..(at + 1) * 50_000] == pattern(50_000)));
    assert!(p.world.node(A).core.state_mut().next_event().is_some(), "there is room again");
}

#[test]
fn messages_for_an_endpoint_that_is_not_served_are_placed_and_wait() {
    let mut p = Pair::new(2 * LARGEST);
    let b = p.b;
    p.world.state(B).set_served(b, false).expect("alive");
    p.request(TAKE, &[1], 10, 100_000);
    p.request(MISSING, &[2], 200_000, 10);
    p.get(0, 10, 0);
    p.world.run(20);
    assert!(p.got(B).is_empty() && p.at_b.all()[10..100_010] == pattern(100_000));
    assert_eq!(p.got(A).len(), 1, "no handler is needed for a get");
    p.world.state(B).set_served(b, true).expect("alive");
    p.settle();
    assert_eq!(p.got(B)[0].placed, Some(Placed { offset: 10, len: 100_000 }));
    p.expect_return(A, MessageKind::Request, Reason::NoHandler, 10);
    p.lives_on();
}

#[test]
fn an_endpoint_that_is_freed_in_the_middle_returns_later_messages() {
    let mut p = Pair::new(LARGEST);
    let b = p.b;
    p.request(TAKE, &[], 0, 1 << 20);
    p.world.run(3);
    p.world.state(B).free_endpoint(b).expect("alive");
    let before = p.at_b.all().clone();
    p.settle();
    assert!(*p.at_b.all() == before);
    p.expect_return(A, MessageKind::Request, Reason::NoSuchEndpoint, 1 << 20);
}

#[test]
fn a_closing_flow_waits_for_messages_in_flight() {
    let mut p = Pair::new(LARGEST);
    let a = p.a;
    p.request(ANSWER, &[0, 1 << 20], 0, 1 << 20);
    p.world.run(3);
    p.world.state(A).unmap(a, 0).expect("mapped");
    p.settle();
    assert_eq!((p.got(A).len(), p.got(B).len()), (1, 1));
    assert!(p.at_a.all()[..1 << 20] == pattern(1 << 20));
}

/// One message, whose receiver dies after a number of operations of its path: it is delivered once or comes back once.
#[test]
fn a_message_ends_once_whenever_its_receiver_dies() {
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    for operations in (0..200).chain((200..2000).step_by(50)) {
        let mut p = Pair::new(LARGEST);
        let shared = p.world.node(B).sink.shared.clone();
        shared.borrow_mut().clear();
        p.request(ANSWER, &[0, 40_000], 0, 100_000);
        p.world.node(B).fuse.set(operations);
        for _ in 0..200 {
            p.world.run(1);
        }
        p.world.kill(B);
        p.world.notice(A);
        p.world.run(2);
        let (got, returned) = (p.got(A), p.returned(A));
        let was_seen = !shared.borrow().is_empty();
        let end = match (&got[..], &returned[..]) {
            ([got], []) => {
                assert!(was_seen && got.placed == Some(Placed { offset: 0, len: 40_000 }));
                assert!(p.at_a.all()[..40_000] == pattern(40_000));
                "answered"
            }
            ([], [one]) => {
                assert!(one.payload == pattern(100_000) && one.reason == Reason::PeerLost);
                assert!(one.certainty == Certainty::Unknown || !was_seen, "it was delivered");
                if one.certainty == Certainty::Unknown {
                    "unknown"
                } else {
                    "not delivered"
                }
            }
            other => panic!("{operations}: {other:?}"),
        };
        *ends.entry(end).or_default() += 1;
        assert_eq!(p.world.state(A).unsettled(), 0);
    }
    assert_eq!(ends.len(), 3, "{ends:?}");
}

/// The same for a reply whose receiver dies: the replier gets it back unless it was taken.
#[test]
fn a_reply_ends_once_whenever_its_receiver_dies() {
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    for operations in (0..150).chain((150..600).step_by(25)) {
        let mut p = Pair::new(LARGEST);
        let shared = p.world.node(A).sink.shared.clone();
        let a = p.a;
        p.world.state(A).try_request(a, 0, message(ANSWER, &[0, 100_000], &[])).expect("a slot");
        p.world.node(A).fuse.set(operations);
        p.world.run(100);
        let is_taken = p.world.state(A).unsettled() == 0;
        let was_seen = shared.borrow().iter().any(|got| got.kind == MessageKind::Reply);
        p.world.kill(A);
        p.world.notice(B);
        p.world.run(2);
        let returned = p.returned(B);
        let was_asked = !p.got(B).is_empty();
        let end = match &returned[..] {
            [] if !was_asked => "not asked",
            [] => {
                assert!(was_seen && is_taken);
                "taken"
            }
            [one] => {
                assert!(one.payload == pattern(100_000) && one.kind == MessageKind::Reply);
                assert!(one.certainty == Certainty::Unknown || !was_seen);
                "returned"
            }
            other => panic!("{operations}: {other:?}"),
        };
        *ends.entry(end).or_default() += 1;
    }
    assert!(ends["taken"] > 0 && ends["returned"] > 0, "{ends:?}");
}

/// A lost or duplicated record is detected: no message is delivered with wrong bytes.
#[test]
fn a_piece_that_is_lost_or_comes_twice_ends_the_session() {
    for fault in [Fault::Drop, Fault::Duplicate] {
        for record in 0..8 {
            let mut p = Pair::new(4 * LARGEST);
            p.world.faults.planted.set(Some((fault, record)));
            p.request(TAKE, &[], 0, 100_000);
            p.world.run(50);
            let (hit, got) = (p.world.faults.hit.get(), p.got(B));
            let is_cut = p.world.node(B).core.has_broken() || p.world.node(A).core.has_broken();
            let is_right = got.len() == 1 && p.at_b.all()[..100_000] == pattern(100_000);
            // Six pieces, the request with the rest, and the record that ends it.
            match (record, fault) {
                (0..6, _) | (_, Fault::Duplicate) => {
                    assert!(is_cut && (got.is_empty() || is_right), "{record}: {hit:?}")
                }
                (6, Fault::Drop) => assert!(!is_cut && got.is_empty(), "nothing says that it is missing"),
                _ => assert!(is_right),
            }
        }
    }
}

proptest! {
    #![proptest_config(seeded(40))]

    /// Many messages of all kinds at once, in any order: each ends once, and every byte is in its place.
    #[test]
    fn many_at_once_end_once_each(
        room in LARGEST..4 * LARGEST,
        sizes in prop::collection::vec((0..4usize, 0..80_000usize), 1..30),
    ) {
        let mut p = Pair::new(room);
        let a = p.a;
        let stripe = 80_000;
        p.at_b.all()[SEGMENT - stripe..].copy_from_slice(&pattern(stripe));
        for (number, &(what, len)) in sizes.iter().enumerate() {
            let offset = number * stripe;
            match what {
                0 => p.request(TAKE, &[number as u32], offset as u64, len),
                1 => p.world.state(A).try_request(a, 0, message(ANSWER, &[offset as u32, len as u32], &[])).expect("a slot"),
                2 => p.get((SEGMENT - stripe) as u64, len as u64, offset as u64),
                _ => p.request(MISSING, &[number as u32], offset as u64, len),
            }
        }
        p.settle();
        let count = |what| sizes.iter().filter(|(is, _)| *is == what).count();
        let (at_a, at_b) = (p.got(A), p.got(B));
        prop_assert_eq!((at_a.len(), at_b.len()), (count(1) + count(2), count(0) + count(1)));
        prop_assert_eq!(p.returned(A).len(), count(3));
        for (number, &(what, len)) in sizes.iter().enumerate() {
            let here = number * stripe..number * stripe + len;
            let all = if what == 0 || what == 3 { p.at_b.all() } else { p.at_a.all() };
            prop_assert!(all[here] == pattern(len), "{number}: {what}, {len}");
        }
    }
}
