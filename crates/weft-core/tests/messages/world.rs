//! Bundles and the home that connects them. Every path operation of a bundle burns its fuse. A bundle with a burnt fuse
//! is a process that was killed at that point: nothing it does has any effect.

use proptest::test_runner::{Config as ProptestConfig, RngSeed};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use weft_core::testing::{path, MemRx, MemTx};
use weft_core::{
    Bundle, Call, Delivery, Endpoint, Event, FlowId, MessageKind, PeerId, SessionId, Settings, Sink, State,
};
use weft_core::{ReplyToken, Returned};
use weft_wire::path::{Abandoned, Bells, Glance, Peek, PushError, Rx, Traffic, Tx};
use weft_wire::record::lines;
use weft_wire::{BundleId, EndpointId, Epoch, Head, Key, Kind, Name, Reason, Uid, MAX_ARGS, MAX_PAYLOAD};

/// Cases of a random test, from a seed that a failure prints and `PROPTEST_RNG_SEED` sets.
pub fn seeded(cases: u32) -> ProptestConfig {
    let given = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let seed = given.unwrap_or_else(now);
    println!("to run this again: PROPTEST_RNG_SEED={seed}");
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 1000,
        ..ProptestConfig::default()
    }
}

pub type Core = Bundle<TestRx, TestTx, TestBells>;
pub type Inside = State<TestTx>;

/// The lines of the largest record: the smallest path that takes every message.
pub const LARGEST: u32 = lines(MAX_ARGS, MAX_PAYLOAD);

/// The path operations left until a process dies.
#[derive(Clone, Debug)]
pub struct Fuse(Rc<Cell<u64>>);

impl Fuse {
    pub fn new() -> Fuse {
        Fuse(Rc::new(Cell::new(u64::MAX)))
    }

    pub fn set(&self, operations: u64) {
        self.0.set(operations.min(self.0.get()));
    }

    pub fn is_burnt(&self) -> bool {
        self.0.get() == 0
    }

    /// Uses up one operation. Returns whether it takes place.
    fn burn(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }
}

/// A planted defect of the paths, which a checker must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Drop,
    Duplicate,
}

/// When the defect occurs: at the n-th record with an effect.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    pub planted: Rc<Cell<Option<(Fault, u64)>>>,
    /// The kind of record that was hit.
    pub hit: Rc<Cell<Option<Kind>>>,
}

impl FaultPlan {
    /// The number of copies to push.
    fn copies(&self, head: &Head, args: &[u32]) -> u32 {
        let Some((fault, n)) = self.planted.get() else { return 1 };
        // Duplicating or losing a request for credit, or an empty credit record, changes nothing.
        if head.kind == Kind::Credit && args.iter().all(|&a| a == 0) {
            return 1;
        }
        self.planted.set(if n == 0 { None } else { Some((fault, n - 1)) });
        if n > 0 {
            return 1;
        }
        self.hit.set(Some(head.kind));
        if fault == Fault::Drop {
            0
        } else {
            2
        }
    }
}

/// Bells that every push rings, whether requested or not.
#[derive(Clone, Debug, Default)]
pub struct TestBells(Rc<RefCell<BTreeSet<u32>>>);

impl Bells for TestBells {
    fn collect(&mut self, in_use: u32, rung: impl FnMut(u32)) {
        let all = std::mem::take(&mut *self.0.borrow_mut());
        all.into_iter().filter(|&bell| bell < in_use).for_each(rung);
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}

#[derive(Debug)]
pub struct TestTx {
    inner: MemTx,
    bells: TestBells,
    bell: u32,
    fuse: Fuse,
    faults: FaultPlan,
    is_far: Rc<Cell<bool>>,
}

impl TestTx {
    /// A path without a fuse or defects.
    pub fn over(inner: MemTx) -> TestTx {
        let (faults, is_far) = (FaultPlan::default(), Rc::default());
        TestTx { inner, bells: TestBells::default(), bell: 0, fuse: Fuse::new(), faults, is_far }
    }
}

impl Tx for TestTx {
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        if !self.fuse.burn() {
            return Err(PushError::Full);
        }
        self.bells.0.borrow_mut().insert(self.bell);
        match self.faults.copies(&head, args) {
            0 => Ok(()),
            1 => self.inner.push(head, args, payload),
            _ => {
                let pushed = self.inner.push(head, args, payload);
                // If there is no room for the copy, the fault is planted again for the next record.
                if pushed.and_then(|()| self.inner.push(head, args, payload)).is_err() {
                    self.faults.planted.set(Some((Fault::Duplicate, 0)));
                }
                pushed
            }
        }
    }

    fn push_small(&mut self, head: Head, args: &[u32], payload: &[u8]) -> bool {
        // Check first, so that no planted fault is spent on a record that finds no room.
        self.inner.has_room(lines(args.len(), payload.len())) && self.push(head, args, payload).is_ok()
    }

    fn is_far(&self) -> bool {
        self.is_far.get()
    }

    fn has_room(&mut self, lines: u32) -> bool {
        self.inner.has_room(lines)
    }

    fn abandoned(&mut self) -> Vec<Abandoned> {
        self.inner.abandoned()
    }

    fn traffic(&mut self) -> Traffic {
        self.inner.traffic()
    }

    fn rest(&mut self) {}
}

#[derive(Debug)]
pub struct TestRx {
    inner: MemRx,
    fuse: Fuse,
    /// Set when a held record had to be dropped.
    has_dropped: Rc<Cell<bool>>,
}

impl Rx for TestRx {
    fn peek(&mut self) -> Peek<'_> {
        match self.fuse.burn() {
            true => self.inner.peek(),
            false => Peek::Empty,
        }
    }

    fn hold(&mut self, reason: u8) {
        if self.fuse.burn() {
            self.inner.hold(reason);
        }
    }

    fn let_go(&mut self, records: u32) {
        if self.fuse.burn() {
            self.inner.let_go(records);
        }
    }

    fn glance(&mut self) -> Glance<'_> {
        match self.fuse.burn() {
            true => self.inner.glance(),
            false => Glance::Empty,
        }
    }

    fn pop(&mut self) {
        if self.fuse.burn() {
            self.inner.pop();
            self.note();
        }
    }

    fn release(&mut self) {
        if self.fuse.burn() {
            self.inner.release();
            self.note();
        }
    }

    fn set_attention(&mut self, _wanted: bool) {}
}

impl TestRx {
    fn note(&self) {
        if self.inner.has_dropped() {
            self.has_dropped.set(true);
        }
    }
}

/// A bundle and its client.
#[derive(Debug)]
pub struct Node<S> {
    pub core: Core,
    pub sink: S,
    pub epoch: Epoch,
    pub fuse: Fuse,
    /// Calls that the home has not answered.
    pub calls: Vec<Call>,
    endpoints: u32,
}

/// Bundles, and the home that connects them. Dead nodes are removed from the list.
#[derive(Debug)]
pub struct World<S> {
    pub nodes: Vec<Option<Node<S>>>,
    pub faults: FaultPlan,
    /// Whether the record of a refused message could not be held until its return was sent.
    pub has_dropped: Rc<Cell<bool>>,
    /// Whether all nodes are far from each other.
    pub is_far: Rc<Cell<bool>>,
    pub room: u32,
    /// Endpoints that live at another node than their name's epoch says, because each bundle is a node here.
    pub moved: BTreeMap<Name, usize>,
    epochs: Vec<Epoch>,
}

pub fn epoch(node: usize) -> Epoch {
    Epoch(100 + node as u64)
}

pub fn peer(epoch: Epoch) -> PeerId {
    PeerId { epoch, bundle: BundleId(0), uid: Uid(1000), address: weft_wire::HostAddress::NONE }
}

pub fn name(epoch: Epoch, endpoint: u32) -> Name {
    Name { epoch, endpoint: EndpointId(endpoint), uid: Uid(1000), address: weft_wire::HostAddress::NONE }
}

impl<S: Sink<TestTx>> World<S> {
    pub fn new(room: u32) -> World<S> {
        let (faults, has_dropped) = (FaultPlan::default(), Rc::default());
        let (nodes, moved, epochs) = (Vec::new(), BTreeMap::new(), Vec::new());
        World { nodes, faults, has_dropped, is_far: Rc::default(), room, moved, epochs }
    }

    pub fn add_node(&mut self, settings: Settings, sink: S, fuse: Fuse) -> usize {
        let at = self.nodes.len();
        self.epochs.push(epoch(at));
        self.nodes.push(Some(Node {
            core: Bundle::new(TestBells::default(), settings),
            sink,
            epoch: epoch(at),
            fuse,
            calls: Vec::new(),
            endpoints: 0,
        }));
        at
    }

    pub fn node(&mut self, at: usize) -> &mut Node<S> {
        self.nodes[at].as_mut().expect("a live node")
    }

    pub fn state(&mut self, at: usize) -> &mut Inside {
        self.node(at).core.state_mut()
    }

    pub fn add_endpoint(&mut self, at: usize, key: Key) -> Endpoint {
        let node = self.node(at);
        node.endpoints += 1;
        let name = name(node.epoch, node.endpoints);
        node.core.state_mut().add_endpoint(name, key)
    }

    /// Maps `to` of another node in the table of `from`, with its current key.
    pub fn map(&mut self, (at, from): (usize, Endpoint), index: u32, (there, to): (usize, Endpoint)) {
        let (name, key) = (self.state(there).name(to).expect("alive"), self.state(there).key(to).expect("alive"));
        self.state(at).map(from, index, name, key).expect("a table index");
    }

    /// Answers the calls of one node.
    pub fn answer(&mut self, at: usize) {
        let node = self.node(at);
        let mut calls = std::mem::take(&mut node.calls);
        calls.extend(node.core.state_mut().take_calls());
        for call in calls {
            self.connect(at, call);
        }
    }

    fn connect(&mut self, at: usize, call: Call) {
        let Ok((name, _)) = self.state(at).translation(call.endpoint, call.destination) else {
            return;
        };
        let there = self.moved.get(&name).copied().or_else(|| self.epochs.iter().position(|&e| e == name.epoch));
        let there = there.filter(|&t| self.nodes[t].as_ref().is_some_and(|n| !n.fuse.is_burnt()));
        let Some(there) = there else {
            return self.state(at).refused(call, Reason::NobodyThere);
        };
        let known = self.session(at, there);
        let id = known.unwrap_or_else(|| self.make_session(at, there));
        self.state(at).connected(call, id);
    }

    /// Makes a session; a node may have one with itself.
    pub fn make_session(&mut self, a: usize, b: usize) -> SessionId {
        let (fuse_a, fuse_b) = (self.node(a).fuse.clone(), self.node(b).fuse.clone());
        let (mut tx_ab, rx_ab) = self.path(&fuse_a, &fuse_b);
        let (mut tx_ba, rx_ba) = self.path(&fuse_b, &fuse_a);
        let (epoch_a, epoch_b) = (self.epochs[a], self.epochs[b]);
        let at_a = self.node(a).core.reserve().expect("room");
        let at_b = self.node(b).core.reserve().expect("room");
        (tx_ab.bell, tx_ab.bells) = (at_b, self.node(b).core.bells().clone());
        (tx_ba.bell, tx_ba.bells) = (at_a, self.node(a).core.bells().clone());
        let id = self.node(a).core.attach(at_a, peer(epoch_b), tx_ab, rx_ba);
        self.node(b).core.attach(at_b, peer(epoch_a), tx_ba, rx_ab);
        id
    }

    pub fn path(&self, writer: &Fuse, reader: &Fuse) -> (TestTx, TestRx) {
        let (tx, rx) = path(self.room);
        let (fuse, faults, is_far) = (writer.clone(), self.faults.clone(), self.is_far.clone());
        let tx = TestTx { fuse, faults, is_far, ..TestTx::over(tx) };
        (tx, TestRx { inner: rx, fuse: reader.clone(), has_dropped: self.has_dropped.clone() })
    }

    /// The session that one node has with another.
    pub fn session(&mut self, at: usize, there: usize) -> Option<SessionId> {
        let epoch = self.epochs[there];
        let mut sessions = self.node(at).core.state().sessions();
        sessions.find(|(_, p)| p.epoch == epoch).map(|(id, _)| id)
    }

    pub fn poll(&mut self, at: usize, budget: u32) -> u32 {
        let node = self.node(at);
        node.core.poll(budget, &mut node.sink)
    }

    /// Answers calls and polls everywhere, `rounds` times.
    pub fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for at in 0..self.nodes.len() {
                if self.nodes[at].is_some() {
                    self.answer(at);
                    self.poll(at, 1024);
                }
            }
        }
    }

    /// Ends a process. The others notice with [`World::notice`].
    pub fn kill(&mut self, at: usize) {
        self.node(at).fuse.set(0);
        self.nodes[at] = None;
    }

    /// Lets one node lose its sessions with dead nodes.
    pub fn notice(&mut self, at: usize) {
        let gone: Vec<Epoch> =
            self.nodes.iter().zip(&self.epochs).filter(|(n, _)| n.is_none()).map(|(_, &e)| e).collect();
        let node = self.node(at);
        let lost: Vec<SessionId> =
            node.core.state().sessions().filter(|(_, p)| gone.contains(&p.epoch)).map(|(id, _)| id).collect();
        for id in lost {
            node.core.lose(id, Reason::PeerLost, &mut node.sink);
        }
    }
}

/// A message that a [`Script`] got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Got {
    pub endpoint: Endpoint,
    pub source: Option<Name>,
    pub kind: MessageKind,
    pub op: u8,
    pub args: Vec<u32>,
    pub payload: Vec<u8>,
}

/// What a [`Script`] does with a message, by operation.
pub mod op {
    /// Nothing.
    pub const TAKE: u8 = 1;
    /// Reply with `TAKE` and the same contents.
    pub const ECHO: u8 = 2;
    /// Keep the token.
    pub const DEFER: u8 = 3;
    /// There is no such handler.
    pub const MISSING: u8 = 4;
    /// Reply with `MISSING`, so that the reply is refused.
    pub const ECHO_MISSING: u8 = 5;
    /// Keep the token, and report a missing handler.
    pub const DEFER_MISSING: u8 = 6;
    /// Free the endpoint.
    pub const FREE: u8 = 7;
    /// Unmap index 0 of the endpoint's table, and report a missing handler.
    pub const UNMAP_MISSING: u8 = 8;
    /// Free the endpoint, and report a missing handler.
    pub const FREE_MISSING: u8 = 9;
}

/// A client that records everything.
#[derive(Debug, Default)]
pub struct Script {
    pub got: Vec<Got>,
    pub returned: Vec<Returned>,
    pub tokens: Vec<ReplyToken>,
    /// Leave returned messages to the event queue.
    pub leaves_returns: bool,
    /// Events of endpoints that it claimed, and how often it was called for chores.
    pub claimed: Vec<Event>,
    /// Closed flows to these endpoints.
    pub closed: Vec<(Endpoint, FlowId)>,
    pub chores: u32,
}

impl Sink<TestTx> for Script {
    fn deliver(&mut self, state: &mut Inside, message: &Delivery<'_>) -> Result<(), Reason> {
        if message.op() == op::MISSING {
            return Err(Reason::NoHandler);
        }
        self.got.push(Got {
            endpoint: message.endpoint,
            source: state.source(message),
            kind: message.kind(),
            op: message.op(),
            args: message.args.to_vec(),
            payload: message.payload.to_vec(),
        });
        match message.op() {
            op::ECHO | op::ECHO_MISSING => {
                let answer = if message.op() == op::ECHO { op::TAKE } else { op::MISSING };
                if let Some(token) = message.take_reply() {
                    state.reply(token, answer, message.args, message.payload).expect("a reply");
                }
            }
            op::DEFER | op::DEFER_MISSING => self.tokens.extend(message.take_reply()),
            op::FREE | op::FREE_MISSING => state.free_endpoint(message.endpoint).expect("alive"),
            op::UNMAP_MISSING => state.unmap(message.endpoint, 0).expect("mapped"),
            _ => {}
        }
        match message.op() {
            op::DEFER_MISSING | op::UNMAP_MISSING | op::FREE_MISSING => Err(Reason::NoHandler),
            _ => Ok(()),
        }
    }

    fn do_chores(&mut self, state: &mut Inside) -> u32 {
        let before = self.claimed.len();
        self.claimed.extend(std::iter::from_fn(|| state.next_claimed()));
        self.closed.extend(std::iter::from_fn(|| state.next_closed_flow()));
        self.chores += 1;
        (self.claimed.len() - before) as u32
    }

    fn returned(&mut self, _state: &mut Inside, message: Returned) -> Option<Returned> {
        if self.leaves_returns {
            return Some(message);
        }
        self.returned.push(message);
        None
    }
}

/// Two nodes with one endpoint each, mapped to each other at index 0.
pub struct Pair {
    pub world: World<Script>,
    pub a: Endpoint,
    pub b: Endpoint,
}

pub const KEY: Key = Key(0xfeed);

/// Index of the nodes of a pair.
pub const A: usize = 0;
pub const B: usize = 1;

impl Pair {
    pub fn with_room(room: u32) -> Pair {
        Pair::with(room, Settings::default())
    }

    pub fn with(room: u32, settings: Settings) -> Pair {
        let mut world = World::new(room);
        for _ in 0..2 {
            world.add_node(settings, Script::default(), Fuse::new());
        }
        let (a, b) = (world.add_endpoint(A, KEY), world.add_endpoint(B, KEY));
        world.map((A, a), 0, (B, b));
        world.map((B, b), 0, (A, a));
        Pair { world, a, b }
    }

    /// A pair whose flows are open in both directions.
    pub fn open(room: u32) -> Pair {
        let mut pair = Pair::with_room(room);
        pair.insist_request(op::TAKE, &[], &[]);
        let b = pair.b;
        while pair.world.state(B).try_request(b, 0, message(op::TAKE, &[], &[])).is_err() {
            pair.world.run(1);
        }
        pair.world.run(4);
        pair.clear();
        pair
    }

    pub fn insist_request(&mut self, op: u8, args: &[u32], payload: &[u8]) {
        let a = self.a;
        insist(|| {
            let sent = self.world.state(A).try_request(a, 0, message(op, args, payload)).is_ok();
            if !sent {
                self.world.run(1);
            }
            sent
        });
    }

    pub fn insist_send(&mut self, op: u8, args: &[u32], payload: &[u8]) {
        let a = self.a;
        insist(|| {
            let sent = self.world.state(A).try_send(a, 0, message(op, args, payload)).is_ok();
            if !sent {
                self.world.run(1);
            }
            sent
        });
    }

    /// Forgets everything recorded so far.
    pub fn clear(&mut self) {
        for at in [A, B] {
            let node = self.world.node(at);
            node.sink.got.clear();
            node.sink.returned.clear();
            while node.core.state_mut().next_event().is_some() {}
        }
    }

    pub fn got(&mut self, at: usize) -> Vec<Got> {
        std::mem::take(&mut self.world.node(at).sink.got)
    }

    pub fn returned(&mut self, at: usize) -> Vec<Returned> {
        std::mem::take(&mut self.world.node(at).sink.returned)
    }

    pub fn events(&mut self, at: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.world.state(at).next_event()).collect()
    }
}

pub fn message<'a>(op: u8, args: &'a [u32], payload: &'a [u8]) -> weft_core::Outgoing<'a> {
    weft_core::Outgoing { op, args, payload, completion: None }
}

/// Tries until it works; a test that is stuck fails instead of hanging.
pub fn insist(mut attempt: impl FnMut() -> bool) {
    assert!((0..100_000).any(|_| attempt()), "stuck");
}

/// A value that several sinks write to.
pub type Common<T> = Rc<RefCell<T>>;
