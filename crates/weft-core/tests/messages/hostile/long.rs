//! Malformed records of long messages: they place nothing outside of the segment, and nothing that was not admitted.

use super::{Attack, V};
use crate::world::{message, op, seeded, KEY};
use proptest::prelude::*;
use weft_core::testing::Bytes;
use weft_core::{Get, Long, MessageKind, Settings};
use weft_wire::record::{BEGUN, OF_REPLY, RETURNED_LONG};
use weft_wire::{Head, Key, Kind, Reason, MAX_ARGS, MAX_PAYLOAD};

const SEGMENT: usize = 10_000;

/// An attack on an endpoint with a segment.
fn attack() -> (Attack, Bytes) {
    let mut a = Attack::with(4096, Settings { parked_bytes_most: 100_000, ..Settings::default() });
    let (v, bytes) = (a.v, Bytes::new(SEGMENT));
    a.world.state(V).set_segment(v, Some(Box::new(bytes.clone()))).expect("alive");
    (a, bytes)
}

fn begin(offset: u64, len: u64) -> [u32; 4] {
    [offset as u32, (offset >> 32) as u32, len as u32, (len >> 32) as u32]
}

impl Attack {
    fn say(&mut self, kind: Kind, slot: u16, args: &[u32], payload: &[u8]) {
        self.push(Head { op: op::TAKE, slot, ..Head::new(kind) }, args, payload);
    }

    /// The victim sends the attacker a request, in slot 0.
    fn asked(&mut self) {
        let v = self.v;
        self.world.state(V).try_request(v, 1, message(op::TAKE, &[], b"")).expect("a slot");
        self.swallow();
    }

    /// The reasons for which the victim sent records back.
    fn refusals(&mut self) -> Vec<(u16, Option<Reason>)> {
        self.poll();
        let all = self.swallow().into_iter().filter(|(head, _)| head.kind == Kind::Return);
        all.map(|(head, _)| (head.slot, Reason::from_code(head.op))).collect()
    }
}

#[test]
fn pieces_that_belong_to_nothing_are_cut() {
    type Shot = fn(&mut Attack);
    let shots: [Shot; 22] = [
        // A piece without a beginning.
        |a| a.say(Kind::Piece, 0, &[], &[1; 10]),
        |a| a.say(Kind::Long, BEGUN, &[], &[1; 10]),
        // Two beginnings, as pieces or not.
        |a| (0..2).for_each(|_| a.say(Kind::Piece, 0, &begin(0, 20), &[1; 10])),
        |a| {
            a.say(Kind::Piece, 0, &begin(0, 20), &[1; 10]);
            a.say(Kind::Long, 0, &[0, 0], &[1; 10]);
        },
        // A beginning with too short a length, and one with missing arguments.
        |a| a.say(Kind::Piece, 0, &begin(0, 9), &[1; 10]),
        |a| a.say(Kind::Piece, 0, &[1, 2, 3], &[1; 10]),
        |a| a.say(Kind::Long, 0, &[], &[1; 10]),
        |a| a.say(Kind::Long, 0, &[1], &[1; 10]),
        // More bytes than announced, and fewer.
        |a| {
            a.say(Kind::Piece, 0, &begin(0, 20), &[1; 10]);
            a.say(Kind::Piece, 0, &[], &[1; 11]);
        },
        |a| {
            a.say(Kind::Piece, 0, &begin(0, 20), &[1; 10]);
            a.say(Kind::Long, BEGUN, &[], &[1; 9]);
        },
        |a| {
            a.say(Kind::Piece, 0, &begin(u64::MAX - 5, u64::MAX), &[1; 10]);
            a.say(Kind::Long, BEGUN, &[], &[1; 9]);
        },
        // An empty piece.
        |a| {
            a.say(Kind::Piece, 0, &begin(0, 20), &[1; 10]);
            a.say(Kind::Piece, 0, &[], &[]);
        },
        // Invalid slots and invalid marks.
        |a| a.say(Kind::Piece, 32, &begin(0, 20), &[1; 10]),
        |a| a.say(Kind::Piece, 0x200, &begin(0, 20), &[1; 10]),
        |a| a.say(Kind::Long, 0x400, &[0, 0], &[]),
        |a| a.say(Kind::Get, BEGUN, &[0; 6], &[]),
        // A request in a slot that is in use.
        |a| {
            a.push(Head { op: op::DEFER, ..Head::new(Kind::Request) }, &[], &[]);
            a.say(Kind::Piece, 0, &begin(0, 20), &[1; 10]);
        },
        // Replies to requests that were never sent.
        |a| a.say(Kind::Piece, OF_REPLY, &begin(0, 20), &[1; 10]),
        |a| a.say(Kind::LongReply, 0, &[0, 0], &[1; 10]),
        |a| a.say(Kind::Taken, 0, &[], &[]),
        |a| a.push(Head { slot: RETURNED_LONG, op: Reason::NoHandler.code(), ..Head::new(Kind::Return) }, &[], &[]),
        |a| a.say(Kind::Get, 0, &[0; 5], &[]),
    ];
    for (number, shot) in shots.into_iter().enumerate() {
        let (mut a, bytes) = attack();
        shot(&mut a);
        assert!(a.poll(), "shot {number} is not cut");
        assert!(bytes.all()[20..].iter().all(|byte| *byte == 0), "shot {number}");
        a.lose();
    }
}

#[test]
fn long_records_of_flows_that_are_not_open_are_cut() {
    for kind in [Kind::Piece, Kind::Long, Kind::LongReply, Kind::Get, Kind::Taken] {
        for slot in [0, 0x100] {
            for args in [&[][..], &[0, 0], &[0; 4], &[0; 6]] {
                let (mut a, _) = attack();
                a.push(Head { flow: 1, slot, ..Head::new(kind) }, args, &[]);
                a.expect_cut();
            }
        }
    }
}

#[test]
fn offsets_near_the_end_of_all_numbers_place_nothing() {
    let (mut a, bytes) = attack();
    let size = SEGMENT as u64;
    let cases = [
        (u64::MAX, 10, Reason::BadOffset),
        (u64::MAX - 9, 10, Reason::BadOffset),
        (u64::MAX - 9, 11, Reason::BadOffset),
        (size, 10, Reason::BadOffset),
        (size - 9, 10, Reason::BadLength),
        (1, u64::MAX, Reason::BadLength),
    ];
    for (offset, len, reason) in cases {
        let [low, high, ..] = begin(offset, len);
        if len < 100 {
            a.say(Kind::Long, 3, &[low, high], &vec![1; len as usize]);
            assert_eq!(a.refusals(), [(3, Some(reason))], "{offset}");
        }
        a.say(Kind::Piece, 4, &begin(offset, len), &[1; 5]);
        a.say(Kind::Piece, 4, &[], &[1; 3]);
        if len < 100 {
            a.say(Kind::Long, 4 | BEGUN, &[], &vec![1; len as usize - 8]);
            assert_eq!(a.refusals(), [(4, Some(reason))], "{offset}");
        } else {
            assert!(!a.poll());
        }
    }
    assert!(bytes.all().iter().all(|byte| *byte == 0));
    assert!(a.world.node(V).sink.got.is_empty());
    a.expect_not_cut();
}

#[test]
fn whoever_has_the_wrong_key_places_nothing_and_reads_nothing() {
    let (mut a, bytes) = attack();
    a.open(1, 1, Key(KEY.0 ^ 1));
    a.open(2, 99, KEY);
    bytes.all()[0] = 7;
    for (flow, reason) in [(1, Reason::WrongKey), (2, Reason::NoSuchEndpoint)] {
        a.push(Head { flow, ..Head::new(Kind::Piece) }, &begin(1, 15), &[1; 10]);
        a.push(Head { flow, slot: BEGUN, ..Head::new(Kind::Long) }, &[], &[1; 5]);
        a.push(Head { flow, slot: 1, ..Head::new(Kind::Long) }, &[1, 0], &[1; 5]);
        a.push(Head { flow, slot: 2, ..Head::new(Kind::Get) }, &[0, 0, 1, 0, 0, 0], &[]);
        // A message without bytes gets the same reason.
        a.push(Head { flow, slot: 3, ..Head::new(Kind::Long) }, &[1, 0], &[]);
        assert_eq!(a.refusals(), [0, 1, 2, 3].map(|slot| (slot, Some(reason))));
    }
    assert!(bytes.all()[1..].iter().all(|byte| *byte == 0));
    // The key changes in the middle.
    a.say(Kind::Piece, 0, &begin(0, 20), &[1; 10]);
    a.poll();
    let v = a.v;
    a.world.state(V).set_key(v, Key(5)).expect("alive");
    a.say(Kind::Long, BEGUN, &[], &[2; 10]);
    assert_eq!(a.refusals(), [(0, Some(Reason::WrongKey))]);
    assert_eq!(bytes.all()[9..11], [1, 0]);
    a.world.state(V).set_key(v, KEY).expect("alive");
    a.expect_not_cut();
}

#[test]
fn whoever_answers_a_get_may_place_what_was_asked_for_and_no_more() {
    let answers: [(u64, u64, bool); 5] =
        [(100, 50, true), (101, 50, false), (100, 51, false), (0, 0, false), (100, 49, false)];
    for (offset, len, is_right) in answers {
        for in_pieces in [false, true] {
            let (mut a, bytes) = attack();
            let v = a.v;
            let get = Get { op: op::TAKE, args: &[1, 2], source: 0, len: 50, offset: 100 };
            a.world.state(V).try_get(v, 1, get).expect("a slot");
            assert_eq!(a.swallow()[0].1, [0, 0, 50, 0, 100, 0]);
            let [low, high, ..] = begin(offset, len);
            if in_pieces {
                a.say(Kind::Piece, OF_REPLY, &begin(offset, len), &[]);
                a.push(Head { op: op::FREE, slot: BEGUN, ..Head::new(Kind::LongReply) }, &[], &vec![3; len as usize]);
            } else {
                a.push(Head { op: op::FREE, ..Head::new(Kind::LongReply) }, &[low, high], &vec![3; len as usize]);
            }
            if is_right {
                assert!(!a.poll());
                let got = &a.world.node(V).sink.got[0];
                assert_eq!((got.op, &got.args[..], got.kind), (op::TAKE, &[1, 2][..], MessageKind::Reply));
                let all = bytes.all().clone();
                assert_eq!((all[99], all[149], all[150]), (0, 3, 0));
                a.expect_not_cut();
            } else {
                a.expect_cut();
                assert!(bytes.all().iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn nobody_answers_a_long_request_before_it_has_left() {
    // Only the first pieces find room.
    let answers = [Kind::Reply, Kind::Ended, Kind::Return, Kind::LongReply];
    for kind in answers {
        let mut a = Attack::new(1100);
        let v = a.v;
        let long = Long { op: op::TAKE, args: &[], offset: 0 };
        a.world.state(V).try_request_long(v, 1, long, vec![1; 1 << 20].into()).expect("a slot");
        let args = if kind == Kind::Ended { &[1][..] } else { &[][..] };
        let args = if kind == Kind::LongReply { &[0, 0] } else { args };
        a.push(Head { op: Reason::NoHandler.code(), ..Head::new(kind) }, args, &[]);
        a.expect_cut();
    }
}

#[test]
fn a_reply_is_taken_once_and_not_before_it_has_left() {
    for (is_early, times) in [(false, 1), (false, 2), (true, 1)] {
        let mut a = Attack::new(1100);
        a.push(Head { op: op::DEFER, ..Head::new(Kind::Request) }, &[], &[]);
        assert!(!a.poll());
        let token = a.world.node(V).sink.tokens.pop().expect("deferred");
        let long = Long { op: op::TAKE, args: &[], offset: 0 };
        a.world.state(V).reply_long(token, long, vec![1; 100_000].into()).expect("few arguments");
        while !is_early && !a.world.state(V).flush() {
            a.swallow();
        }
        for _ in 0..times {
            a.say(Kind::Taken, 0, &[], &[]);
        }
        match (is_early, times) {
            (false, 1) => a.expect_not_cut(),
            _ => a.expect_cut(),
        }
    }
}

#[test]
fn answers_that_nobody_reads_are_bounded_by_the_requests_that_were_granted() {
    let (mut a, _) = attack();
    for slot in 0..32 {
        a.say(Kind::Get, slot, &[0, 0, SEGMENT as u32, 0, 0, 0], &[]);
    }
    // All slots stay taken until the answers are.
    assert!(!a.poll());
    a.say(Kind::Get, 5, &[0, 0, 1, 0, 0, 0], &[]);
    a.expect_cut();
}

#[test]
fn a_reply_may_go_anywhere_in_the_segment_and_nowhere_else() {
    let (mut a, bytes) = attack();
    a.asked();
    a.say(Kind::LongReply, 0, &[SEGMENT as u32 - 4, 0], &[1; 5]);
    assert!(!a.poll());
    let said: Vec<_> = a.swallow().into_iter().map(|(head, _)| (head.kind, head.slot, head.op)).collect();
    assert_eq!(said, [(Kind::Return, RETURNED_LONG, Reason::BadLength.code())]);
    a.asked();
    a.say(Kind::LongReply, 0, &[SEGMENT as u32 - 5, 0], &[1; 5]);
    assert!(!a.poll());
    let said: Vec<_> = a.swallow().into_iter().map(|(head, _)| (head.kind, head.slot)).collect();
    assert_eq!(said, [(Kind::Taken, 0)]);
    assert!(bytes.all()[..SEGMENT - 5].iter().all(|byte| *byte == 0));
    a.expect_not_cut();
}

/// A record of the attacker, and what the victim does then.
#[derive(Clone, Debug)]
struct Shot {
    head: Head,
    args: Vec<u32>,
    len: usize,
    victim: u8,
}

fn shots() -> impl Strategy<Value = Shot> {
    use Kind::*;
    let kinds = prop_oneof![
        8 => Just(Piece), 8 => Just(Long), 6 => Just(LongReply), 6 => Just(Get), 4 => Just(Taken),
        4 => Just(Request), 3 => Just(Reply), 2 => Just(Ended), 3 => Just(Return), 1 => Just(Open), 1 => Just(Close),
    ];
    let slot = prop_oneof![12 => 0u16..4, 6 => (0u16..4).prop_map(|s| s | BEGUN), 2 => (0u16..4).prop_map(|s| s | RETURNED_LONG), 1 => any::<u16>()];
    let args = prop_oneof![
        4 => Just(vec![]),
        4 => (0u32..12_000, 0u32..100).prop_map(|(offset, len)| vec![offset, 0, len, 0]),
        3 => (0u32..12_000).prop_map(|offset| vec![offset, 0]),
        3 => (0u32..12_000, 0u32..9000, 0u32..12_000).prop_map(|(a, b, c)| vec![a, 0, b, 0, c, 0]),
        1 => proptest::collection::vec(any::<u32>(), 0..=MAX_ARGS),
    ];
    let len = prop_oneof![6 => 0usize..60, 1 => Just(0), 1 => 0usize..=MAX_PAYLOAD];
    (kinds, 0u8..6, 0u16..2, slot, args, len, 0u8..12).prop_map(|(kind, op, flow, slot, args, len, victim)| Shot {
        head: Head { op, flow, slot, ..Head::new(kind) },
        args,
        len,
        victim,
    })
}

impl Attack {
    fn fire_long(&mut self, shot: &Shot, bytes: &Bytes) {
        self.push(shot.head, &shot.args, &vec![9; shot.len]);
        let v = self.v;
        let long = Long { op: op::TAKE, args: &[1], offset: 5 };
        let node = self.world.node(V);
        let state = node.core.state_mut();
        match shot.victim {
            0 => _ = state.try_request_long(v, 1, long, vec![4; 40_000].into()),
            1 => _ = state.try_request_long(v, 1, long, vec![4; 40].into()),
            2 => _ = state.try_get(v, 1, Get { op: op::TAKE, args: &[], source: 0, len: 50, offset: 0 }),
            3 => _ = state.try_request(v, 1, message(op::TAKE, &[1], b"abc")),
            4 => {
                if let Some(token) = node.sink.tokens.pop() {
                    let _ = state.reply_long(token, long, vec![5; 30_000].into());
                }
            }
            5 => state.set_segment(v, None).expect("alive"),
            6 => state.set_segment(v, Some(Box::new(bytes.clone()))).expect("alive"),
            7 => state.set_served(v, shot.len % 2 == 0).expect("alive"),
            _ => _ = self.world.poll(V, 5),
        }
    }
}

proptest! {
    #![proptest_config(seeded(if cfg!(debug_assertions) { 100 } else { 1500 }))]

    #[test]
    fn whatever_a_peer_writes_of_long_messages_is_handled_or_cuts_it_off(
        shots in proptest::collection::vec(shots(), 60),
        reads in any::<bool>(),
    ) {
        let (mut a, bytes) = attack();
        for shot in &shots {
            a.fire_long(shot, &bytes);
            if a.is_cut() {
                break;
            }
            if reads {
                a.swallow();
            }
        }
        let v = a.v;
        a.world.state(V).set_served(v, true).unwrap();
        if a.poll() {
            a.lose();
        } else {
            let id = a.id;
            let node = a.world.node(V);
            node.core.lose(id, Reason::PeerLost, &mut node.sink);
            prop_assert_eq!(node.core.state().unsettled(), 0);
            a.live_on();
        }
    }
}
