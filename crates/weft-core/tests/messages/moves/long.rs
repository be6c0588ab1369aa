//! Long messages for an endpoint that moves.

use super::{Bundles, Endpoint, PEER};
use crate::world::{insist, op, KEY};
use weft_core::testing::Bytes;
use weft_core::{Get, Long, MessageKind, Transfer};
use weft_wire::{Key, Reason};

const SEGMENT: usize = 1 << 20;

impl Bundles {
    /// Gives an endpoint a segment.
    fn open_segment(&mut self, at: usize, endpoint: Endpoint) -> Bytes {
        let bytes = Bytes::new(SEGMENT);
        self.world.state(at).set_segment(endpoint, Some(Box::new(bytes.clone()))).expect("alive");
        bytes
    }

    fn put(&mut self, op: u8, number: u32, len: usize) {
        let mut kept = Some(vec![number as u8; len]);
        insist(|| {
            let Some(bytes) = kept.take() else { return true };
            let long = Long { op, args: &[number], offset: u64::from(number) * 100_000 };
            let sent = self.world.state(PEER).try_request_long(self.peer, 0, long, bytes.into());
            kept = sent.err().map(|(_, bytes)| bytes.into_vec());
            self.run(1);
            kept.is_none()
        });
    }

    /// Polls until nothing is in flight.
    fn settle(&mut self) {
        insist(|| {
            self.run(1);
            (0..4).all(|at| {
                let state = self.world.state(at);
                state.flush() && state.unsettled() == 0 && !state.has_unfinished()
            })
        });
    }
}

#[test]
fn messages_for_a_moved_endpoint_are_placed_and_forwarded() {
    let mut b = Bundles::open();
    let bytes = b.open_segment(1, b.it);
    b.put(op::TAKE, 1, 90_000);
    let left = b.move_to(2);
    // The bundle that it left does not know that yet.
    b.put(op::TAKE, 2, 90_000);
    b.leave(left);
    b.put(op::ECHO, 3, 90_000);
    b.put(op::TAKE, 4, 10);
    b.settle();
    let mut numbers: Vec<u32> = (1..3).flat_map(|at| b.got(at)).map(|(_, _, args)| args[0]).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4]);
    for (number, len) in [(1, 90_000), (2, 90_000), (3, 90_000), (4, 10)] {
        let begin = number * 100_000;
        assert!(bytes.all()[begin..begin + len].iter().all(|byte| *byte == number as u8), "{number}");
    }
    assert_eq!(b.got(PEER), [(MessageKind::Reply, op::TAKE, vec![3])]);
}

#[test]
fn the_stub_uses_the_current_key_and_segment() {
    let mut b = Bundles::open();
    let old = b.open_segment(1, b.it);
    let left = b.move_to(2);
    b.leave(left);
    let new = b.open_segment(b.at, b.it);
    // The peer still uses the bundle that the endpoint left.
    b.world.moved.insert(b.name, 1);
    b.put(op::TAKE, 1, 50_000);
    b.settle();
    assert!(old.all().iter().all(|byte| *byte == 0) && new.all()[100_000..150_000].iter().all(|byte| *byte == 1));
    let (at, it) = (b.at, b.it);
    b.world.state(at).set_key(it, Key(KEY.0 ^ 1)).expect("alive");
    b.tell(at, Key(KEY.0 ^ 1));
    b.put(op::TAKE, 2, 50_000);
    b.settle();
    assert!(new.all()[200_000..].iter().all(|byte| *byte == 0));
    let back = b.returned(PEER);
    assert_eq!(back.len(), 1);
    assert_eq!((back[0].reason, back[0].payload.len()), (Reason::WrongKey, 50_000));
    assert_eq!(back[0].long, Some(Transfer::Put { offset: 200_000 }));
}

#[test]
fn a_long_answer_reaches_the_requesting_endpoint_where_it_lives() {
    let mut b = Bundles::open();
    let theirs = b.open_segment(PEER, b.peer);
    theirs.all().fill(7);
    let bytes = b.open_segment(1, b.it);
    let (at, it) = (b.at, b.it);
    let get = Get { op: op::TAKE, args: &[8], source: 0, len: 90_000, offset: 5 };
    b.world.state(at).try_get(it, 0, get).expect("a slot");
    let left = b.move_to(3);
    b.leave(left);
    b.settle();
    assert_eq!(b.got(3), [(MessageKind::Reply, op::TAKE, vec![8])]);
    assert!(bytes.all()[5..90_005].iter().all(|byte| *byte == 7) && bytes.all()[90_005] == 0);
}

#[test]
fn an_endpoint_that_moved_answers_with_a_long_message() {
    let mut b = Bundles::open();
    let bytes = b.open_segment(PEER, b.peer);
    b.world.moved.insert(b.name, 1);
    let left = b.move_to(2);
    b.leave(left);
    b.world.moved.insert(b.name, 1);
    b.ask(op::DEFER, &[1]);
    b.run(4);
    let token = b.world.node(2).sink.script.tokens.pop().expect("it was handed on");
    let long = Long { op: op::TAKE, args: &[5], offset: 10 };
    b.world.state(2).reply_long(token, long, vec![3; 70_000].into()).expect("few arguments");
    b.settle();
    assert_eq!(b.got(PEER), [(MessageKind::Reply, op::TAKE, vec![5])]);
    assert!(bytes.all()[10..70_010].iter().all(|byte| *byte == 3));
}
