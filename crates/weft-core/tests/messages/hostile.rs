//! A peer that pushes whatever it likes. It may lose its own session by that, but must harm nothing else.

mod long;

use crate::world::{epoch, insist, message, name, op, peer, seeded, Fuse, Script, TestRx, TestTx, World, KEY, LARGEST};
use proptest::prelude::*;
use weft_core::{Endpoint, Outgoing, SendError, SessionId, Settings};
use weft_transport::Grant;
use weft_wire::path::{Peek, PushError, Rx, Tx};
use weft_wire::record::{ASK_STORED, GO_ON, ORDERED, RETURNED_REPLY, RETURNED_SEND};
use weft_wire::setup::Open;
use weft_wire::{Credit, EndpointId, Head, Key, Kind, Reason, MAX_ARGS, MAX_PAYLOAD};

/// The node that is attacked, and an honest one that it talks to.
const V: usize = 0;
const HONEST: usize = 1;
/// The attacker's number. The attacker is not a node.
const EVIL: usize = 66;

struct Attack {
    world: World<Script>,
    /// The victim's endpoint. Index 0 of its table is the honest node, index 1 the attacker.
    v: Endpoint,
    honest: Endpoint,
    id: SessionId,
    tx: TestTx,
    rx: TestRx,
}

impl Attack {
    /// An attacker with a session and one open flow, 0, and the victim's flow 0 to it.
    fn new(room: u32) -> Attack {
        Attack::with(room, Settings::default())
    }

    fn with(room: u32, settings: Settings) -> Attack {
        let mut world: World<Script> = World::new(room);
        for _ in 0..2 {
            world.add_node(settings, Script::default(), Fuse::new());
        }
        let (v, honest) = (world.add_endpoint(V, KEY), world.add_endpoint(HONEST, KEY));
        world.map((V, v), 0, (HONEST, honest));
        world.map((HONEST, honest), 0, (V, v));
        let evil = crate::world::name(epoch(EVIL), 1);
        world.state(V).map(v, 1, evil, KEY).unwrap();
        let fuse = Fuse::new();
        let ((to_evil, rx), (tx, from_evil)) = (world.path(&fuse, &fuse), world.path(&fuse, &fuse));
        let core = &mut world.node(V).core;
        let index = core.reserve().unwrap();
        let id = core.attach(index, peer(epoch(EVIL)), to_evil, from_evil);
        assert_eq!(core.state_mut().try_send(v, 1, message(op::TAKE, &[], &[])), Err(SendError::Full));
        for call in core.state_mut().take_calls() {
            core.state_mut().connected(call, id);
        }
        let mut attack = Attack { world, v, honest, id, tx, rx };
        attack.open(0, 1, KEY);
        attack.swallow();
        while attack.world.state(V).next_event().is_some() {}
        attack
    }

    fn open(&mut self, flow: u16, destination: u32, key: Key) {
        let open = Open::to(&name(epoch(V), destination), EndpointId(1), key, weft_wire::Uid(1000));
        self.push(Head { flow, ..Head::new(Kind::Open) }, &open.to_args(), &[]);
    }

    /// Pushes, and polls the victim if there is no room.
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) {
        insist(|| {
            let pushed = self.tx.push(head, args, payload);
            if let Err(error) = pushed {
                assert_eq!(error, PushError::Full);
                self.world.poll(V, 64);
            }
            pushed.is_ok() || self.is_cut()
        });
    }

    fn request(&mut self, flow: u16, slot: u16, op: u8) {
        self.push(Head { flow, slot, op, ..Head::new(Kind::Request) }, &[1], b"request");
    }

    fn send(&mut self, op: u8, payload: &[u8]) {
        self.push(Head { op, ..Head::new(Kind::Send) }, &[], payload);
    }

    fn is_cut(&mut self) -> bool {
        self.world.node(V).core.has_broken()
    }

    /// Reads and discards what the victim wrote.
    fn swallow(&mut self) -> Vec<(Head, Vec<u32>)> {
        let mut all = Vec::new();
        while let Peek::Record(record) = self.rx.peek() {
            all.push((record.head.head(), record.args.to_vec()));
            self.rx.pop();
        }
        self.rx.release();
        all
    }

    /// Lets the victim read everything. Returns whether it cut the attacker off.
    fn poll(&mut self) -> bool {
        while self.world.poll(V, 1024) > 0 {}
        self.is_cut()
    }

    /// The victim must detect the attack, end the session, and continue to work.
    fn expect_cut(mut self) {
        assert!(self.poll(), "not cut off");
        self.lose();
    }

    fn expect_not_cut(mut self) {
        assert!(!self.poll(), "cut off");
        self.live_on();
    }

    fn lose(mut self) {
        let id = self.id;
        let before = self.world.state(V).counters().violations;
        assert_eq!(self.world.node(V).core.take_broken(), [id]);
        assert_eq!(before, 1);
        // Later records are not even read.
        let taken = self.world.node(V).sink.got.len();
        self.send(op::TAKE, &[]);
        self.world.poll(V, 64);
        assert_eq!(self.world.node(V).sink.got.len(), taken);
        let node = self.world.node(V);
        node.core.lose(id, Reason::Violation, &mut node.sink);
        assert_eq!(node.core.state().unsettled(), 0);
        assert!(node.core.state().sessions().all(|(other, _)| other != id));
        for token in std::mem::take(&mut node.sink.tokens) {
            assert!(node.core.state_mut().reply(token, op::TAKE, &[], &[]).is_err());
        }
        self.live_on();
    }

    /// The honest neighbour must be served as if nothing had happened.
    fn live_on(&mut self) {
        self.world.node(HONEST).sink.got.clear();
        let (v, honest) = (self.v, self.honest);
        self.world.state(V).set_served(v, true).unwrap();
        for (at, from) in [(V, v), (HONEST, honest)] {
            insist(|| {
                let sent = self.world.state(at).try_request(from, 0, message(op::ECHO, &[77], b"well?")).is_ok();
                self.world.run(1);
                sent
            });
        }
        self.world.run(50);
        let got = &self.world.node(HONEST).sink.got;
        assert_eq!(got.iter().filter(|g| g.args == [77] && g.payload == b"well?").count(), 2);
    }
}

// ---- particular attacks

#[test]
fn a_grant_overdrawn_in_messages_is_cut() {
    let mut a = Attack::new(1 << 20);
    let v = a.v;
    a.world.state(V).set_served(v, false).unwrap();
    for _ in 0..Grant::V1.messages {
        a.send(op::TAKE, &[]);
    }
    assert!(!a.poll());
    a.send(op::TAKE, &[]);
    a.expect_cut();
}

#[test]
fn a_grant_overdrawn_in_lines_is_cut() {
    let mut a = Attack::new(1 << 20);
    let v = a.v;
    a.world.state(V).set_served(v, false).unwrap();
    let big = vec![0; MAX_PAYLOAD];
    for _ in 0..Grant::V1.lines / 1025 {
        a.send(op::TAKE, &big);
    }
    assert!(!a.poll());
    a.send(op::TAKE, &big);
    a.expect_cut();
}

#[test]
fn a_thirty_third_request_is_cut() {
    let mut a = Attack::new(4096);
    (0..32).for_each(|slot| a.request(0, slot, op::DEFER));
    assert!(!a.poll());
    a.request(0, 32, op::DEFER);
    a.expect_cut();
}

#[test]
fn a_slot_used_twice_is_cut() {
    let mut a = Attack::new(4096);
    a.request(0, 4, op::DEFER);
    a.request(0, 4, op::DEFER);
    a.expect_cut();
}

#[test]
fn a_slot_used_again_before_its_reply_could_be_read_is_cut() {
    let mut a = Attack::new(LARGEST);
    while a.world.state(V).try_send(a.v, 1, message(op::TAKE, &[], &[])).is_ok() {}
    a.request(0, 4, op::ECHO);
    assert!(!a.poll());
    assert_eq!(a.world.state(V).counters().replies_queued, 1);
    a.request(0, 4, op::ECHO);
    a.expect_cut();
}

#[test]
fn answers_to_requests_that_are_not_under_way_are_cut() {
    for slot in [0, 5, 31, 32, 0x0100, 0x1234, u16::MAX] {
        for kind in [Kind::Reply, Kind::Return] {
            let mut a = Attack::new(4096);
            a.world.state(V).try_request(a.v, 1, message(op::TAKE, &[], &[])).unwrap();
            let slot = if slot == 0 { 1 } else { slot };
            a.push(Head { slot, op: Reason::NoHandler.code(), ..Head::new(kind) }, &[], &[]);
            a.expect_cut();
        }
    }
    let mut a = Attack::new(4096);
    a.world.state(V).try_request(a.v, 1, message(op::TAKE, &[], &[])).unwrap();
    a.push(Head::new(Kind::Ended), &[0b11], &[]);
    a.expect_cut();
}

#[test]
fn invalid_marks_of_flows_are_cut() {
    let open = |op| {
        let mut a = Attack::new(4096);
        let open = Open::to(&name(epoch(V), 1), EndpointId(1), KEY, weft_wire::Uid(1000));
        a.push(Head { flow: 1, op, ..Head::new(Kind::Open) }, &open.to_args(), &[]);
        a
    };
    for marks in [2, 4, 0x80, 0xff] {
        open(marks).expect_cut();
    }
    let mut a = open(ORDERED);
    assert!(!a.poll());
    // A go-on where nothing was refused has no effect; on a flow that is not open it is a violation.
    a.push(Head { flow: 1, slot: GO_ON, ..Head::new(Kind::Credit) }, &[], &[]);
    assert!(!a.poll());
    a.push(Head { flow: 2, slot: GO_ON, ..Head::new(Kind::Credit) }, &[], &[]);
    a.expect_cut();
}

#[test]
fn unreliable_messages_of_flows_that_are_not_open_are_dropped() {
    let mut a = Attack::new(4096);
    for flow in [1, 7, u16::MAX] {
        a.push(Head { flow, op: op::TAKE, ..Head::new(Kind::Unreliable) }, &[1], b"early");
    }
    assert!(!a.poll());
    assert_eq!(a.world.state(V).counters().unreliable_dropped, 3);
}

#[test]
fn an_answer_given_twice_is_cut() {
    for kind in [Kind::Reply, Kind::Return, Kind::Ended] {
        let mut a = Attack::new(4096);
        a.world.state(V).try_request(a.v, 1, message(op::TAKE, &[], &[])).unwrap();
        for _ in 0..2 {
            let args: &[u32] = if kind == Kind::Ended { &[1] } else { &[] };
            a.push(Head { op: Reason::NoHandler.code(), ..Head::new(kind) }, args, &[]);
        }
        a.expect_cut();
    }
}

#[test]
fn credit_for_more_than_was_spent_is_cut() {
    for args in [[3, 0, 0], [0, 9, 0], [0, 0, 3], [u32::MAX; 3]] {
        let mut a = Attack::new(4096);
        for i in 0..2 {
            let m = Outgoing { completion: Some(i), ..message(op::TAKE, &[], &[]) };
            a.world.state(V).try_send(a.v, 1, m).unwrap();
        }
        a.push(Head::new(Kind::Credit), &args, &[]);
        assert!(a.poll());
        assert!(a.world.state(V).unsettled() <= 2);
        assert!(a.world.state(V).next_event().is_none(), "no completion comes of a lie");
        a.expect_cut();
    }
}

#[test]
fn credit_that_rides_on_a_reply_for_more_than_was_spent_is_cut() {
    let mut a = Attack::new(4096);
    a.world.state(V).try_request(a.v, 1, message(op::TAKE, &[], &[])).unwrap();
    a.push(Head { credit: Credit { messages: 1, lines: 1 }, ..Head::new(Kind::Reply) }, &[], &[]);
    a.expect_cut();
}

#[test]
fn returned_messages_that_were_never_sent_are_cut() {
    for slot in [RETURNED_SEND, RETURNED_REPLY] {
        let mut a = Attack::new(4096);
        a.push(Head { slot, op: Reason::NoHandler.code(), ..Head::new(Kind::Return) }, &[1], b"forged");
        a.expect_cut();
    }
    // More messages come back than were sent.
    let mut a = Attack::new(4096);
    a.world.state(V).try_send(a.v, 1, message(op::TAKE, &[], &[])).unwrap();
    a.push(Head { slot: RETURNED_SEND, op: Reason::NoHandler.code(), ..Head::new(Kind::Return) }, &[], &[1; 500]);
    a.expect_cut();
}

#[test]
fn a_reason_that_does_not_exist_is_cut() {
    for code in [0, 16, 255] {
        let mut a = Attack::new(4096);
        a.world.state(V).try_request(a.v, 1, message(op::TAKE, &[], &[])).unwrap();
        a.push(Head { op: code, ..Head::new(Kind::Return) }, &[], &[]);
        a.expect_cut();
    }
}

#[test]
fn flows_opened_out_of_order_or_twice_or_without_end_are_cut() {
    for flow in [0, 2, 4096, u16::MAX] {
        let mut a = Attack::new(4096);
        a.open(flow, 1, KEY);
        a.expect_cut();
    }
    let mut a = Attack::new(4096);
    (1..4096).for_each(|flow| a.open(flow, 1, KEY));
    assert!(!a.poll());
    a.open(4096, 1, KEY);
    a.expect_cut();
}

/// Once its flow is closed, the attacker may only open it again.
#[test]
fn a_closed_number_may_be_opened_again_and_nothing_else() {
    let mut a = Attack::new(4096);
    a.push(Head { flow: 0, ..Head::new(Kind::Close) }, &[], &[]);
    assert!(!a.poll());
    assert_eq!(a.swallow().iter().filter(|(head, _)| head.kind == Kind::Closed).count(), 1);
    a.open(0, 1, KEY);
    a.send(op::TAKE, &[]);
    assert!(!a.poll());
    assert_eq!(a.world.node(V).sink.got.len(), 1);
    a.open(0, 1, KEY);
    a.expect_cut();
    for kind in [Kind::Send, Kind::Request, Kind::Credit, Kind::Close, Kind::Return] {
        let mut a = Attack::new(4096);
        a.push(Head { flow: 0, ..Head::new(Kind::Close) }, &[], &[]);
        let slot = if kind == Kind::Return { RETURNED_REPLY } else { 0 };
        a.push(Head { flow: 0, slot, op: Reason::NoHandler.code(), ..Head::new(kind) }, &[], &[]);
        a.expect_cut();
    }
}

#[test]
fn a_flow_that_closes_with_requests_under_way_is_cut() {
    let mut a = Attack::new(4096);
    a.request(0, 3, op::DEFER);
    a.push(Head { flow: 0, ..Head::new(Kind::Close) }, &[], &[]);
    a.expect_cut();
}

#[test]
fn an_answer_to_a_close_that_nobody_said_is_cut() {
    for flow in [0, 1, 4096, u16::MAX] {
        let mut a = Attack::new(4096);
        a.push(Head { flow, ..Head::new(Kind::Closed) }, &[], &[]);
        a.expect_cut();
    }
    // The same answer twice.
    let mut a = Attack::new(4096);
    let v = a.v;
    a.world.state(V).unmap(v, 1).expect("mapped");
    assert!(!a.poll());
    assert_eq!(a.swallow().iter().filter(|(head, _)| head.kind == Kind::Close).count(), 1);
    a.push(Head { flow: 0, ..Head::new(Kind::Closed) }, &[], &[]);
    assert!(!a.poll());
    a.push(Head { flow: 0, ..Head::new(Kind::Closed) }, &[], &[]);
    a.expect_cut();
}

#[test]
fn a_peer_that_never_answers_a_close_costs_a_number_and_the_buffers_are_given_back() {
    let mut a = Attack::new(4096);
    let v = a.v;
    for _ in 0..100 {
        a.world.state(V).unmap(v, 1).expect("mapped");
        a.world.state(V).map(v, 1, crate::world::name(epoch(EVIL), 1), KEY).expect("alive");
        assert_eq!(a.world.state(V).try_send(v, 1, message(op::TAKE, &[], &[])), Err(SendError::Full));
        let id = a.id;
        for call in a.world.state(V).take_calls() {
            a.world.state(V).connected(call, id);
        }
        a.swallow();
    }
    let mut report = weft_core::Report::default();
    a.world.state(V).report_into(&mut report);
    assert_eq!(report.flows_out.iter().filter(|flow| flow.session == a.id).count(), 101);
    a.expect_not_cut();
}

/// A peer reports *stored* and *closed* without taking what it was sent: when it dies, messages that ended long ago are
/// not returned again.
#[test]
fn a_message_of_a_closed_flow_does_not_come_back_with_the_next_flows() {
    let mut a = Attack::new(4096);
    let (v, id) = (a.v, a.id);
    a.world.state(V).try_send(v, 1, message(op::TAKE, &[1], &[])).expect("room");
    a.push(Head { flow: 0, ..Head::new(Kind::Credit) }, &[1, 1, 1], &[]);
    a.poll();
    a.world.state(V).unmap(v, 1).expect("mapped");
    a.push(Head { flow: 0, ..Head::new(Kind::Closed) }, &[], &[]);
    a.poll();
    a.world.state(V).map(v, 1, crate::world::name(epoch(EVIL), 1), KEY).expect("alive");
    assert_eq!(a.world.state(V).try_send(v, 1, message(op::TAKE, &[], &[])), Err(SendError::Full));
    for call in a.world.state(V).take_calls() {
        a.world.state(V).connected(call, id);
    }
    a.world.state(V).try_send(v, 1, message(op::TAKE, &[2], &[])).expect("room");
    let node = a.world.node(V);
    node.core.lose(id, Reason::PeerLost, &mut node.sink);
    assert_eq!(node.sink.returned.iter().map(|back| back.args[0]).collect::<Vec<_>>(), [2]);
}

#[test]
fn records_of_flows_that_are_not_open_are_cut() {
    let kinds =
        [Kind::Send, Kind::Request, Kind::Reply, Kind::Ended, Kind::Return, Kind::Credit, Kind::Close, Kind::Closed];
    for kind in kinds {
        for args in [&[][..], &[0], &[0, 0, 0]] {
            let mut a = Attack::new(4096);
            a.push(Head { flow: 1, op: Reason::NoHandler.code(), ..Head::new(kind) }, args, &[]);
            a.expect_cut();
        }
    }
}

#[test]
fn links_and_records_with_arguments_that_do_not_fit_them_are_cut() {
    for (kind, args) in [
        (Kind::Pad, &[][..]),
        (Kind::Switch, &[]),
        (Kind::Open, &[1, 2, 3]),
        (Kind::Open, &[]),
        (Kind::Ended, &[]),
        (Kind::Ended, &[0, 0]),
        (Kind::Credit, &[0]),
        (Kind::Credit, &[0; MAX_ARGS]),
    ] {
        let mut a = Attack::new(4096);
        a.push(Head { flow: u16::from(kind == Kind::Open), ..Head::new(kind) }, args, &[]);
        a.expect_cut();
    }
}

#[test]
fn wrong_keys_and_unknown_endpoints_are_refused_as_often_as_one_likes() {
    let mut a = Attack::new(4096);
    a.open(1, 1, Key(0));
    a.open(2, 99, KEY);
    for _ in 0..1000 {
        for flow in [1, 2] {
            a.push(Head { flow, op: op::TAKE, ..Head::new(Kind::Send) }, &[], &[]);
            a.request(flow, 0, op::TAKE);
        }
        a.world.poll(V, 64);
        a.swallow();
    }
    assert_eq!(a.world.node(V).sink.got, []);
    a.expect_not_cut();
}

#[test]
fn a_peer_that_never_reads_costs_a_bounded_backlog() {
    // Echoed requests: at most a window of replies per flow, and beyond the bound only refusals of a few bytes.
    let mut a = Attack::new(LARGEST);
    let big = vec![0; MAX_PAYLOAD];
    let flows = 64;
    (1..flows).for_each(|flow| a.open(flow, 1, KEY));
    for flow in 0..flows {
        for slot in 0..32 {
            a.push(Head { flow, slot, op: op::ECHO, ..Head::new(Kind::Request) }, &[], &big);
            a.world.poll(V, 64);
            a.world.node(V).sink.got.clear();
        }
    }
    assert!(!a.poll());
    let counters = a.world.state(V).counters();
    // 64 MiB hold 1,024 replies; the rest was refused.
    assert!((1000..=1030).contains(&counters.replies_sent), "{counters:?}");
    assert_eq!(counters.replies_sent + counters.refused, u64::from(flows) * 32);
    a.live_on();
    // The bytes do not stay taken: once the attacker reads, its slots become free.
    for _ in 0..3000 {
        a.swallow();
        a.world.poll(V, 64);
    }
    assert!(a.world.state(V).flush());
    a.request(0, 0, op::ECHO);
    a.expect_not_cut();
}

#[test]
fn returns_that_are_never_read_are_bounded() {
    let mut a = Attack::new(LARGEST);
    let big = vec![0; MAX_PAYLOAD];
    let mut sent = 0;
    while !a.is_cut() && sent < 4000 {
        a.send(op::MISSING, &big);
        a.world.poll(V, 64);
        sent += 1;
    }
    // 128 MiB.
    assert!((2040..2060).contains(&sent), "{sent}");
    a.expect_cut();
}

#[test]
fn what_is_left_of_a_session_that_was_cut_harms_no_other() {
    let mut a = Attack::new(LARGEST);
    let from_honest = |a: &mut Attack| {
        let honest = a.honest;
        while a.world.state(HONEST).try_send(honest, 0, message(op::TAKE, &[], &[])).is_err() {
            a.world.run(1);
        }
    };
    from_honest(&mut a);
    assert!(!a.poll());
    // There is no room to tell the attacker of its credit, and it has spent all of it.
    while a.world.state(V).try_send(a.v, 1, message(op::TAKE, &[], &[])).is_ok() {}
    for _ in 0..weft_transport::Grant::V1.messages {
        a.send(op::TAKE, &[]);
    }
    assert!(!a.poll());
    // The attacker overdraws its credit and breaks the protocol in another way in one poll, and the honest node sends
    // before and after.
    for _ in 0..10 {
        a.tx.push(Head { op: op::TAKE, ..Head::new(Kind::Send) }, &[], &[]).expect("room");
    }
    a.tx.push(Head::new(Kind::Ended), &[], &[]).expect("room");
    for _ in 0..2 {
        from_honest(&mut a);
        a.world.poll(V, 1024);
    }
    assert_eq!(a.world.node(V).core.take_broken(), [a.id]);
}

#[test]
fn asks_and_ended_requests_that_are_never_read_cost_nothing() {
    let mut a = Attack::new(LARGEST);
    while a.world.state(V).try_send(a.v, 1, message(op::TAKE, &[], &[])).is_ok() {}
    for _ in 0..100_000 {
        a.push(Head::new(Kind::Credit), &[], &[]);
        a.request(0, 0, op::TAKE);
    }
    assert!(!a.poll());
    a.swallow();
    a.world.poll(V, 1);
    // One `Ended` and one `Credit` report everything.
    let told: Vec<Kind> = a.swallow().into_iter().map(|(head, _)| head.kind).collect();
    assert_eq!(told, [Kind::Ended, Kind::Credit]);
    a.expect_not_cut();
}

#[test]
fn a_peer_that_is_lost_and_writes_on_and_on_does_not_hold_the_victim_up() {
    /// A path that is never empty.
    #[derive(Debug)]
    struct Endless(bool, [u32; 7]);
    impl Rx for Endless {
        fn peek(&mut self) -> Peek<'_> {
            let kind = if std::mem::replace(&mut self.0, true) { Kind::Send } else { Kind::Open };
            let args: &[u32] = if kind == Kind::Open { &self.1 } else { &[] };
            Peek::Record(weft_wire::path::Record {
                head: Head { op: op::MISSING, ..Head::new(kind) }.into(),
                args,
                payload: &[],
            })
        }
        fn pop(&mut self) {}
        fn hold(&mut self, _reason: u8) {}
        fn let_go(&mut self, _records: u32) {}
        fn release(&mut self) {}
        fn set_attention(&mut self, _wanted: bool) {}
    }
    struct Deaf;
    impl weft_core::Sink<TestTx> for Deaf {
        fn deliver(
            &mut self,
            _: &mut crate::world::Inside,
            _: &weft_core::Delivery<'_>,
        ) -> Result<(), weft_wire::Reason> {
            Ok(())
        }
    }
    let open = [1, 1, 0, 0, 1000, epoch(V).0 as u32, 0];
    let mut core = weft_core::Bundle::<Endless, TestTx, _>::new(weft_core::testing::NoBells, Settings::default());
    core.state_mut().add_endpoint(crate::world::name(epoch(V), 1), Key(0));
    let index = core.reserve().unwrap();
    let id = core.attach(index, peer(epoch(EVIL)), TestTx::over(weft_core::testing::path(100).0), Endless(false, open));
    core.lose(id, Reason::PeerLost, &mut Deaf);
    assert_eq!(core.state().sessions().count(), 0);
}

#[test]
fn messages_that_a_path_holds_back_are_delivered_when_the_peer_is_lost() {
    /// Opens a flow and has messages that a visit should leave alone for the moment.
    #[derive(Debug)]
    struct Distant {
        is_open: bool,
        left: u32,
        open: [u32; 7],
    }
    impl Rx for Distant {
        fn peek(&mut self) -> Peek<'_> {
            let (kind, args): (_, &[u32]) = match (self.is_open, self.left) {
                (false, _) => (Kind::Open, &self.open),
                (true, 0) => return Peek::Empty,
                (true, _) => (Kind::Send, &[]),
            };
            Peek::Record(weft_wire::path::Record { head: Head::new(kind).into(), args, payload: &[] })
        }
        fn pop(&mut self) {
            match self.is_open {
                true => self.left -= 1,
                false => self.is_open = true,
            }
        }
        fn allowance(&mut self, _most: u32) -> u32 {
            0
        }
        fn hold(&mut self, _reason: u8) {}
        fn let_go(&mut self, _records: u32) {}
        fn release(&mut self) {}
        fn set_attention(&mut self, _wanted: bool) {}
    }
    struct Counting(u32);
    impl weft_core::Sink<TestTx> for Counting {
        fn deliver(
            &mut self,
            _: &mut crate::world::Inside,
            _: &weft_core::Delivery<'_>,
        ) -> Result<(), weft_wire::Reason> {
            self.0 += 1;
            Ok(())
        }
    }
    let mut core = weft_core::Bundle::<Distant, TestTx, _>::new(weft_core::testing::NoBells, Settings::default());
    core.state_mut().add_endpoint(crate::world::name(epoch(V), 1), Key(0));
    let index = core.reserve().unwrap();
    let path = Distant { is_open: false, left: 100, open: [1, 1, 0, 0, 1000, epoch(V).0 as u32, 0] };
    let id = core.attach(index, peer(epoch(EVIL)), TestTx::over(weft_core::testing::path(100).0), path);
    let mut sink = Counting(0);
    assert_eq!((core.poll(256, &mut sink), sink.0), (0, 0));
    core.lose(id, Reason::PeerLost, &mut sink);
    assert_eq!(sink.0, 100);
}

/// A number is not free while its `Closed` waits for room.
#[test]
fn a_peer_that_opens_and_closes_and_reads_nothing_costs_a_bounded_amount() {
    let mut a = Attack::new(256);
    let mut longest = 0;
    for _ in 0..20_000 {
        a.open(1, 1, KEY);
        a.push(Head { flow: 1, ..Head::new(Kind::Close) }, &[], &[]);
        a.poll();
        let mut report = weft_core::Report::default();
        a.world.state(V).report_into(&mut report);
        longest = report.sessions.iter().map(|session| session.backlog).max().unwrap_or(0).max(longest);
    }
    assert!(longest <= 4096, "{longest} records wait for room");
}

// ---- anything at all

/// A record, more or less plausible.
#[derive(Clone, Debug)]
struct Shot {
    head: Head,
    args: Vec<u32>,
    len: usize,
    /// What the victim does afterwards.
    victim: Victim,
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    Nothing,
    Poll,
    Request,
    Send,
    Reply,
    Unserve,
    Serve,
    Hasten,
    Unmap,
    Map,
}

fn kinds() -> impl Strategy<Value = Kind> {
    use Kind::*;
    prop_oneof![
        1 => prop_oneof![Just(Pad), Just(Switch)],
        4 => Just(Open),
        20 => Just(Send),
        20 => Just(Request),
        6 => Just(Reply),
        6 => Just(Ended),
        6 => Just(Return),
        10 => Just(Credit),
        4 => Just(Close),
        4 => Just(Closed),
        4 => Just(Unreliable),
    ]
}

fn shots() -> impl Strategy<Value = Shot> {
    let flow = prop_oneof![20 => 0u16..2, 5 => 0u16..6, 1 => any::<u16>()];
    let slot = prop_oneof![
        20 => 0u16..32,
        3 => Just(ASK_STORED),
        3 => (0u16..8).prop_map(|op| RETURNED_SEND | op),
        3 => (0u16..8).prop_map(|op| RETURNED_REPLY | op),
        1 => any::<u16>(),
    ];
    let credit = prop_oneof![9 => Just((0u16, 0u16)), 2 => (0u16..3, 0u16..3), 1 => any::<(u16, u16)>()];
    let arg = prop_oneof![8 => 0u32..3, 1 => any::<u32>(), 1 => Just(KEY.0 as u32)];
    let len = prop_oneof![20 => 0usize..100, 1 => 0usize..=MAX_PAYLOAD];
    let args = prop_oneof![
        proptest::collection::vec(arg, 0..5),
        Just(Open::to(&name(epoch(V), 1), EndpointId(1), KEY, weft_wire::Uid(1000)).to_args().to_vec()),
        proptest::collection::vec(any::<u32>(), 0..=MAX_ARGS),
    ];
    let victim = prop_oneof![
        6 => Just(Victim::Nothing),
        6 => Just(Victim::Poll),
        3 => Just(Victim::Request),
        3 => Just(Victim::Send),
        2 => Just(Victim::Reply),
        1 => Just(Victim::Unserve),
        1 => Just(Victim::Serve),
        1 => Just(Victim::Hasten),
        2 => Just(Victim::Unmap),
        3 => Just(Victim::Map),
    ];
    (kinds(), 0u8..9, flow, slot, credit, args, len, victim).prop_map(
        |(kind, op, flow, slot, credit, args, len, victim)| {
            let credit = Credit { messages: credit.0, lines: credit.1 };
            // The victim's endpoint and its entry for the neighbour must outlive the attack, so that the neighbour can
            // be served.
            let op = if op >= op::FREE { op::TAKE } else { op };
            Shot { head: Head { op, flow, slot, credit, ..Head::new(kind) }, args, len, victim }
        },
    )
}

impl Attack {
    fn fire(&mut self, shot: &Shot, zeros: &[u8]) {
        self.push(shot.head, &shot.args, &zeros[..shot.len]);
        let v = self.v;
        let node = self.world.node(V);
        let state = node.core.state_mut();
        match shot.victim {
            Victim::Nothing => {}
            Victim::Poll => {
                self.world.poll(V, 3);
            }
            Victim::Request => {
                let _ = state.try_request(v, 1, Outgoing { completion: Some(1), ..message(op::TAKE, &[1], b"abc") });
            }
            Victim::Send => {
                let _ = state.try_send(v, 1, Outgoing { completion: Some(2), ..message(op::TAKE, &[1], b"abc") });
            }
            Victim::Reply => {
                if let Some(token) = node.sink.tokens.pop() {
                    let _ = state.reply(token, op::TAKE, &[1], b"abc");
                }
            }
            Victim::Unserve => state.set_served(v, false).unwrap(),
            Victim::Serve => state.set_served(v, true).unwrap(),
            Victim::Hasten => state.hasten(),
            // There may be no entry.
            Victim::Unmap => _ = state.unmap(v, 1),
            Victim::Map => {
                state.map(v, 1, crate::world::name(epoch(EVIL), 1), KEY).unwrap();
                let _ = state.try_send(v, 1, message(op::TAKE, &[], &[]));
                let (ours, honest): (Vec<_>, Vec<_>) =
                    state.take_calls().into_iter().partition(|call| call.destination == 1);
                ours.into_iter().for_each(|call| state.connected(call, self.id));
                node.calls.extend(honest);
            }
        }
    }
}

/// The number of cases: 200,000 random records in all in release.
const CASES: u32 = if cfg!(debug_assertions) { 100 } else { 2000 };
const SHOTS: usize = 100;

proptest! {
    #![proptest_config(seeded(CASES))]

    #[test]
    fn whatever_a_peer_writes_is_handled_or_cuts_it_off(
        shots in proptest::collection::vec(shots(), SHOTS),
        reads in any::<bool>(),
    ) {
        let zeros = vec![0; MAX_PAYLOAD];
        let mut a = Attack::with(4096, Settings { parked_bytes_most: 100_000, ..Settings::default() });
        for shot in &shots {
            a.fire(shot, &zeros);
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
            // If nothing was detected, the session can be ended, and nothing is left in flight.
            let id = a.id;
            let node = a.world.node(V);
            node.core.lose(id, Reason::PeerLost, &mut node.sink);
            prop_assert_eq!(node.core.state().unsettled(), 0);
            a.live_on();
        }
    }
}

#[test]
fn a_victim_that_is_cut_off_in_turn_gets_its_messages_back() {
    let mut a = Attack::new(4096);
    a.world.state(V).try_send(a.v, 1, message(op::TAKE, &[1], b"mine")).unwrap();
    a.world.state(V).try_request(a.v, 1, message(op::TAKE, &[2], b"mine too")).unwrap();
    a.push(Head { flow: 9, ..Head::new(Kind::Send) }, &[], &[]);
    assert!(a.poll());
    let id = a.id;
    let node = a.world.node(V);
    node.core.lose(id, Reason::Violation, &mut node.sink);
    let returned: Vec<_> = node.sink.returned.iter().map(|r| (r.args[0], r.reason)).collect();
    assert_eq!(returned, [(1, Reason::Violation), (2, Reason::Violation)]);
}
