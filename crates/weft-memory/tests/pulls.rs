//! Pulls: the owner reads the bytes in the initiator's memory. They keep the order with all other writes, each piece is checked, and bytes
//! that cannot be read are sent instead.

use proptest::prelude::*;
use std::num::NonZeroU32;
use weft_core::report::Report;
use weft_core::testing::{path, MemRx, MemTx, NoBells};
use weft_core::{Bundle, Client, Delivery, Endpoint, PeerId, Returned, SessionId, Sink, State};
use weft_memory::testing::{allow_pulls, Bytes, Showing, Shown};
use weft_memory::{Change, Engine, Fetch, Notice, Outcome, Part, RegionId, Rights, Settings, Write, WriteList};
use weft_wire::memory::{Atomic, Mark, Origin, Place, PullEnd, RegionKey, Type, Word};
use weft_wire::path::{Peek, Rx, Tx};
use weft_wire::setup::Open;
use weft_wire::{BundleId, Certainty, EndpointId, Epoch, Head, HostAddress, Key, Kind, Name, Reason, Uid};

const KEY: RegionKey = RegionKey(1);
const BYTES: usize = 2 << 20;
const MIB: usize = 1 << 20;
/// Bytes of a piece.
const PIECE: u64 = 256 << 10;

/// A bundle with one endpoint for remote memory.
struct Side {
    core: Bundle<MemRx, MemTx, NoBells>,
    engine: Engine<Showing>,
    endpoint: Endpoint,
    name: Name,
    session: Option<SessionId>,
}

struct Only<'a>(&'a mut Engine<Showing>);

impl Sink<MemTx> for Only<'_> {
    fn deliver(&mut self, state: &mut State<MemTx>, message: &Delivery<'_>) -> Result<(), Reason> {
        self.0.deliver(state, message)
    }

    fn returned(&mut self, state: &mut State<MemTx>, message: Returned) -> Option<Returned> {
        self.0.returned(state, message)
    }

    fn do_chores(&mut self, state: &mut State<MemTx>) -> u32 {
        let mut work = 0;
        while let Some(event) = state.next_claimed() {
            self.0.on_event(state, &event);
            work += 1;
        }
        while let Some((endpoint, completion)) = state.next_completed() {
            self.0.completed(state, endpoint, completion);
            work += 1;
        }
        while let Some((endpoint, flow)) = state.next_closed_flow() {
            self.0.flow_closed(state, endpoint, flow);
        }
        work + Client::<MemTx>::go_on(self.0, state)
    }
}

impl Side {
    fn new(epoch: u64) -> Side {
        let mut core = Bundle::new(NoBells, weft_core::Settings::default());
        let name = Name { epoch: Epoch(epoch), endpoint: EndpointId(1), uid: Uid(1), address: HostAddress::NONE };
        let endpoint = core.state_mut().add_endpoint(name, Key(1));
        // Memory that can be mapped is not pulled.
        let engine = Engine::new(endpoint, Settings { is_direct: false, ..Settings::default() });
        engine.attach(core.state_mut());
        Side { core, engine, endpoint, name, session: None }
    }

    fn attach(&mut self, other: Name, tx: MemTx, rx: MemRx) {
        let peer = PeerId { epoch: other.epoch, bundle: BundleId(0), uid: Uid(1), address: HostAddress::NONE };
        let index = self.core.reserve().expect("room");
        let session = self.core.attach(index, peer, tx, rx);
        for call in self.core.state_mut().take_calls() {
            self.core.state_mut().connected(call, session);
        }
        self.session = Some(session);
    }

    fn poll(&mut self) -> u32 {
        self.core.poll(64, &mut Only(&mut self.engine))
    }

    fn write(&mut self, write: Write, bytes: Vec<u8>, context: u64) {
        self.engine.try_write(self.core.state_mut(), 0, write, Shown::from(bytes), context).expect("posted");
    }

    fn lose(&mut self) {
        let session = self.session.take().expect("there is one");
        self.core.lose(session, Reason::PeerLost, &mut Only(&mut self.engine));
        while self.poll() > 0 {}
    }

    /// Bytes that were written to the path.
    fn traffic(&mut self) -> u64 {
        let mut report = Report::default();
        self.core.state_mut().report_into(&mut report);
        report.sessions.iter().map(|session| session.traffic.pushed).sum()
    }
}

struct Pair {
    owner: Side,
    initiator: Side,
    space: Bytes,
    region: RegionId,
}

impl Pair {
    fn new() -> Pair {
        let process = NonZeroU32::new(7);
        let mut pair = Pair::apart();
        pair.connect(process);
        pair
    }

    fn apart() -> Pair {
        allow_pulls(u64::MAX);
        let (mut owner, initiator) = (Side::new(1), Side::new(2));
        let space = Bytes::new(BYTES);
        let region = owner.engine.table_mut().open(KEY.0, Rights::ALL, space.clone()).expect("the first one");
        Pair { owner, initiator, space, region }
    }

    fn connect(&mut self, process: Option<NonZeroU32>) {
        let Pair { owner, initiator, .. } = self;
        initiator.core.state_mut().map(initiator.endpoint, 0, owner.name, Key(1)).expect("mapped");
        let add = Change { place: at(0), atomic: Atomic::Read, of: Type::U64 };
        let first = [0; 8];
        initiator.engine.try_change(initiator.core.state_mut(), 0, add, &first, Fetch::default(), 0).expect("posted");
        let [(a, to_a), (b, to_b)] = [(); 2].map(|()| path(1 << 16));
        let leads = |tx: MemTx| match process {
            Some(process) => tx.to_process(process),
            None => tx,
        };
        initiator.attach(owner.name, leads(a), to_b);
        owner.attach(initiator.name, leads(b), to_a);
        self.settle();
        assert_eq!(self.ends(), [(0, Outcome::Done)]);
    }

    /// Polls both until nothing more happens.
    fn settle(&mut self) {
        while self.initiator.poll() + self.owner.poll() > 0 {}
    }

    /// Polls the owner until it has pulled so many pieces.
    fn pull(&mut self, pieces: u64) {
        for _ in 0..1000 {
            if self.pulled().1 >= pieces * PIECE {
                return;
            }
            self.owner.poll();
        }
        panic!("{pieces} pieces are not pulled");
    }

    fn ends(&mut self) -> Vec<(u64, Outcome)> {
        let next = || self.initiator.engine.next_completion().map(|end| (end.context, end.outcome));
        std::iter::from_fn(next).collect()
    }

    fn pulled(&self) -> (u64, u64) {
        let counters = self.owner.engine.counters();
        (counters.pulls, counters.bytes_pulled)
    }
}

fn at(at: u64) -> Place {
    Place::new(KEY, at)
}

fn contents(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| seed.wrapping_add((n % 251) as u8)).collect()
}

fn failed(reason: Reason, certainty: Certainty) -> Outcome {
    Outcome::Failed { reason, certainty }
}

#[test]
fn a_long_write_takes_one_copy_and_little_of_the_path() {
    let mut pair = Pair::new();
    let bytes = contents(3, MIB);
    let before = pair.initiator.traffic();
    pair.initiator.write(Write::to(at(100)).with_notice(5).telling_when_free(), bytes.clone(), 1);
    assert_eq!(pair.initiator.traffic() - before, 128, "two lines say where the bytes are");
    pair.pull(1);
    assert!(
        pair.pulled().1 == PIECE && pair.ends().is_empty() && pair.owner.engine.next_notice().is_none(),
        "one piece in a poll"
    );
    pair.settle();
    assert_eq!(pair.ends(), [(1, Outcome::Free), (1, Outcome::Done)]);
    assert_eq!(pair.pulled(), (1, MIB as u64));
    assert_eq!(pair.owner.engine.counters().bytes_written, MIB as u64);
    assert!(pair.space.all()[100..100 + MIB] == bytes[..]);
    let notice = Notice { region: pair.region, at: 100, len: MIB as u64, value: 5 };
    assert_eq!(pair.owner.engine.next_notice(), Some(notice));
    // A list's runs, too.
    let sources = vec![Shown::from(contents(9, 100_000)), Shown::from(contents(10, 100_000))];
    let parts = [Part { at: 7, len: 150_000 }, Part { at: 400_000, len: 50_000 }];
    let (engine, state) = (&mut pair.initiator.engine, pair.initiator.core.state_mut());
    engine.try_write_list(state, 0, WriteList::to(KEY, &parts).with_notice(6), sources, 2).expect("posted");
    pair.settle();
    assert_eq!((pair.ends(), pair.pulled().0), (vec![(2, Outcome::Done)], 2), "100,000 and 50,000 and 50,000 bytes");
    let all = pair.space.all();
    assert!(all[7..100_007] == contents(9, 100_000) && all[100_007..150_007] == contents(10, 100_000)[..50_000]);
    assert!(all[400_000..450_000] == contents(10, 100_000)[50_000..]);
    assert_eq!(pair.owner.engine.next_notice().map(|notice| notice.value), Some(6));
}

#[test]
fn short_writes_and_peers_that_cannot_be_trusted_are_sent() {
    let mut pair = Pair::new();
    pair.initiator.write(Write::to(at(0)), contents(1, (64 << 10) - 1), 1);
    pair.settle();
    assert_eq!((pair.ends(), pair.pulled()), (vec![(1, Outcome::Done)], (0, 0)));
    let mut pair = Pair::apart();
    pair.connect(None);
    pair.initiator.write(Write::to(at(0)), contents(1, MIB), 1);
    pair.settle();
    assert_eq!((pair.ends(), pair.pulled()), (vec![(1, Outcome::Done)], (0, 0)));
    assert!(pair.space.all()[..MIB] == contents(1, MIB));
}

/// Whenever the kernel begins to refuse, in the middle of a write too.
#[test]
fn bytes_that_cannot_be_read_are_sent_in_their_turn() {
    for allowed in 0..14 {
        let mut pair = Pair::new();
        allow_pulls(allowed);
        for n in 0..3 {
            // Later writes overlap earlier ones.
            pair.initiator.write(Write::to(at(1000 * n)).with_notice(n), contents(n as u8, MIB), n);
        }
        pair.initiator.write(Write::to(at(2500)), contents(77, 8), 3);
        pair.settle();
        assert_eq!(pair.ends(), [0, 1, 2, 3].map(|n| (n, Outcome::Done)), "{allowed}");
        let mut expected = vec![0; BYTES];
        for (n, bytes) in [contents(0, MIB), contents(1, MIB), contents(2, MIB)].iter().enumerate() {
            expected[1000 * n..1000 * n + MIB].copy_from_slice(bytes);
        }
        expected[2500..2508].copy_from_slice(&contents(77, 8));
        assert!(pair.space.all() == expected, "{allowed}");
        assert_eq!(pair.pulled().0, (allowed / 4).min(3), "{allowed}");
        let notices: Vec<u64> =
            std::iter::from_fn(|| pair.owner.engine.next_notice().map(|notice| notice.value)).collect();
        assert_eq!(notices, [0, 1, 2]);
        // The refusal is remembered: no further pull is tried.
        allow_pulls(u64::MAX);
        pair.initiator.write(Write::to(at(0)), contents(5, MIB), 4);
        pair.settle();
        assert_eq!(
            (pair.ends(), pair.pulled().0),
            (vec![(4, Outcome::Done)], (allowed / 4).min(3) + u64::from(allowed >= 12))
        );
    }
}

/// Revokes in the middle of a pull. `planted`: with a deliberate bug, a revocation that returns before it takes effect.
fn revoke_in_the_middle(pieces: u64, planted: bool) {
    let mut pair = Pair::new();
    pair.initiator.write(Write::to(at(0)).with_notice(1), contents(3, MIB), 1);
    pair.initiator.write(Write::to(at(8)), contents(4, MIB), 2);
    pair.pull(pieces);
    let at_end = pair.space.all();
    if planted {
        pair.pull(pieces + 1);
    }
    pair.owner.engine.table_mut().revoke(pair.region).expect("it is open");
    pair.settle();
    assert!(pair.space.all() == at_end, "something landed behind the revocation");
    let refused = |certainty| failed(Reason::Revoked, certainty);
    let expected = match pieces {
        0 => [refused(Certainty::NotDelivered), refused(Certainty::NotDelivered)],
        1..4 => [refused(Certainty::Unknown), refused(Certainty::NotDelivered)],
        4 => [Outcome::Done, refused(Certainty::NotDelivered)],
        _ => [Outcome::Done, refused(Certainty::Unknown)],
    };
    let ends = pair.ends();
    assert_eq!(ends.iter().map(|(_, outcome)| *outcome).collect::<Vec<_>>(), expected, "{pieces}");
    let counters = pair.owner.engine.counters();
    assert_eq!(counters.bytes_pulled, pieces * PIECE);
    assert_eq!(counters.refused_revoked, if pieces < 4 { 2 } else { 1 });
    let has_notice = pair.owner.engine.next_notice().is_some();
    assert_eq!(has_notice, pieces >= 4, "a notice is of a write that is whole");
}

#[test]
fn nothing_lands_behind_a_revocation_in_the_middle_of_a_pull() {
    (0..8).for_each(|pieces| revoke_in_the_middle(pieces, false));
    for pieces in 0..7 {
        let planted = std::panic::catch_unwind(|| revoke_in_the_middle(pieces, true));
        let said = planted.expect_err("a revocation that is late is found");
        assert_eq!(said.downcast_ref(), Some(&"something landed behind the revocation"));
    }
}

#[test]
fn what_may_not_be_written_is_refused_before_a_byte_is_read() {
    let mut pair = Pair::new();
    allow_pulls(0);
    let cookie =
        pair.owner.engine.table_mut().cookie(pair.region, Part { at: 0, len: BYTES as u64 }, Rights::READ, [1; 16]);
    let cookie = cookie.expect("room");
    let rows = [
        (at(BYTES as u64 - MIB as u64 + 1), Reason::OutsideRegion),
        (at(u64::MAX - 5), Reason::OutsideRegion),
        (Place::new(RegionKey(9), 0), Reason::NoRegion),
        (Place::new(cookie, 0), Reason::NoRight),
    ];
    for (place, reason) in rows {
        pair.initiator.write(Write::to(place), contents(3, MIB), 1);
        pair.settle();
        assert_eq!(pair.ends(), [(1, failed(reason, Certainty::NotDelivered))]);
    }
    assert!(pair.space.all().iter().all(|byte| *byte == 0) && pair.pulled() == (0, 0));
}

#[test]
fn an_initiator_that_dies_leaves_a_whole_owner() {
    let mut pair = Pair::new();
    pair.initiator.write(Write::to(at(0)).with_notice(1), contents(3, MIB), 1);
    pair.pull(1);
    let Pair { mut owner, initiator, space, .. } = pair;
    let endpoint = initiator.name;
    drop(initiator);
    // Its memory is gone before the owner learns of its death.
    (0..5).for_each(|_| _ = owner.poll());
    let all = space.all();
    assert!(all[..64] == contents(3, 64) && all[MIB - 8..MIB] == [0; 8], "the last word was never stored");
    owner.lose();
    assert_eq!((owner.engine.next_notice(), owner.engine.counters().writes), (None, 0));
    // The next initiator is served.
    let mut initiator = Side::new(3);
    assert_ne!(initiator.name, endpoint);
    initiator.name.epoch = Epoch(3);
    let mut pair = Pair { owner, initiator, space, region: pair.region };
    pair.connect(NonZeroU32::new(8));
    pair.initiator.write(Write::to(at(0)).with_notice(2), contents(4, MIB), 1);
    pair.settle();
    assert_eq!(pair.ends(), [(1, Outcome::Done)]);
    assert_eq!(pair.owner.engine.next_notice().map(|notice| notice.value), Some(2));
}

/// The initiator loses the owner, which does not know it yet: whatever the owner reads from then on is not stored as the write.
#[test]
fn bytes_that_were_given_up_are_not_taken_for_a_write() {
    let mut pair = Pair::new();
    pair.initiator.write(Write::to(at(0)).with_notice(1), contents(3, MIB), 1);
    pair.pull(1);
    pair.initiator.lose();
    let kept: Vec<_> = std::iter::from_fn(|| pair.initiator.engine.next_completion()).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].outcome, failed(Reason::PeerLost, Certainty::Unknown));
    assert!(kept[0].source.is_some(), "the program has its bytes again, at the same place");
    let before = pair.space.all();
    (0..5).for_each(|_| _ = pair.owner.poll());
    assert!(pair.space.all() == before && pair.pulled().0 == 0);
    assert_eq!(pair.owner.engine.next_notice(), None);
}

/// A peer may have only a few pulls open at a time, and the owner enforces that.
#[test]
fn a_peer_has_four_pulls_open_at_most() {
    let mut pair = Pair::new();
    let before = pair.initiator.core.state().counters().requests_sent;
    for n in 0..9 {
        pair.initiator.write(Write::to(at(0)), contents(n as u8, MIB), n);
    }
    assert_eq!(pair.initiator.core.state().counters().requests_sent - before, 4);
    pair.settle();
    assert_eq!(pair.ends(), (0..9).map(|n| (n, Outcome::Done)).collect::<Vec<_>>());
    assert!(pair.space.all()[..MIB] == contents(8, MIB));
}

/// Two peers: while the owner pulls a long write of one, it carries out the short ones of the other.
#[test]
fn a_long_pull_does_not_hold_up_others() {
    let mut pair = Pair::new();
    let mut other = Pair { owner: pair.owner, initiator: Side::new(3), space: pair.space.clone(), region: pair.region };
    other.connect(NonZeroU32::new(8));
    pair.initiator.write(Write::to(at(0)), contents(1, 2 * MIB), 1);
    other.owner.poll();
    other.initiator.write(Write::to(at(8)), vec![9; 8], 2);
    other.owner.poll();
    other.initiator.poll();
    assert_eq!(other.ends(), [(2, Outcome::Done)]);
    pair.initiator.poll();
    assert!(pair.initiator.engine.next_completion().is_none(), "its pull goes on");
}

#[test]
fn a_freed_endpoint_ends_what_was_pulled() {
    let mut pair = Pair::new();
    pair.initiator.write(Write::to(at(0)), contents(1, MIB), 1);
    pair.pull(1);
    let endpoint = pair.owner.endpoint;
    pair.owner.engine.close(pair.owner.core.state_mut(), endpoint);
    pair.settle();
    assert_eq!(pair.ends(), [(1, failed(Reason::NoSuchEndpoint, Certainty::Unknown))]);
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, len: usize, has_notice: bool, is_fenced: bool },
    Add,
    Poll { owner: bool },
    Allow(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![1..2000usize, 60_000..70_000usize, 200_000..900_000usize];
    let write = (0..MIB, len, any::<bool>(), proptest::bool::weighted(0.1))
        .prop_map(|(at, len, has_notice, is_fenced)| Step::Write { at: at + 8, len, has_notice, is_fenced });
    let step = prop_oneof![
        4 => write,
        1 => Just(Step::Add),
        6 => any::<bool>().prop_map(|owner| Step::Poll { owner }),
        1 => (0..30u64).prop_map(Step::Allow),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is posted, and whenever the kernel refuses: in the end the region is as if all operations had been carried out in order.
    #[test]
    fn operations_are_carried_out_in_the_order_in_which_they_were_posted(steps in steps()) {
        let mut pair = Pair::new();
        let mut expected = vec![0; BYTES];
        let (mut posted, mut added, mut notices) = (0u64, 0u64, 0);
        for step in steps {
            let Side { engine, core, .. } = &mut pair.initiator;
            match step {
                Step::Write { at: place, len, has_notice, is_fenced } => {
                    let bytes = contents(posted as u8, len);
                    expected[place..place + len].copy_from_slice(&bytes);
                    let write = Write { notice: has_notice.then_some(notices), ..Write::to(at(place as u64)) };
                    notices += u64::from(has_notice);
                    if is_fenced {
                        engine.fence(core.state(), 0).expect("mapped");
                    }
                    engine.try_write(core.state_mut(), 0, write, Shown::from(bytes), posted).expect("posted");
                    posted += 1;
                }
                Step::Add => {
                    let add = Change { place: at(0), atomic: Atomic::Add, of: Type::U64 };
                    let one = 1u64.to_le_bytes();
                    engine.try_change(core.state_mut(), 0, add, &one, Fetch::default(), posted).expect("posted");
                    (posted, added) = (posted + 1, added + 1);
                }
                Step::Poll { owner: true } => _ = pair.owner.poll(),
                Step::Poll { owner: false } => _ = pair.initiator.poll(),
                Step::Allow(times) => allow_pulls(times),
            }
        }
        pair.settle();
        expected[..8].copy_from_slice(&added.to_le_bytes());
        let ends = pair.ends();
        prop_assert_eq!(ends.len() as u64, posted);
        prop_assert!(ends.iter().all(|(_, outcome)| *outcome == Outcome::Done));
        prop_assert!(pair.space.all() == expected);
        let told: Vec<u64> = std::iter::from_fn(|| pair.owner.engine.next_notice().map(|n| n.value)).collect();
        prop_assert_eq!(told, (0..notices).collect::<Vec<_>>());
        prop_assert_eq!(pair.initiator.engine.pending_in_all(), 0);
    }
}

/// A hostile peer's ends of the paths.
struct Liar {
    tx: MemTx,
    rx: MemRx,
}

impl Liar {
    fn with(victim: &mut Side) -> Liar {
        let ((to_liar, rx), (tx, from_liar)) = (path(1 << 12), path(1 << 12));
        victim.attach(Side::new(9).name, to_liar.to_process(NonZeroU32::MIN), from_liar);
        Liar { tx, rx }
    }

    fn push(&mut self, head: Head, word: Word, payload: &[u8]) {
        let packed = word.pack();
        self.tx.push(Head { op: packed.op, ..head }, packed.args(), payload).expect("room");
    }

    /// All that has come.
    fn take(&mut self) -> Vec<(Head, Vec<u32>)> {
        let mut all = Vec::new();
        while let Peek::Record(record) = self.rx.peek() {
            all.push((record.head.head(), record.args.to_vec()));
            self.rx.pop();
        }
        self.rx.release();
        all
    }
}

/// The owner enforces the bound, and answers each pull that it does not carry out.
#[test]
fn more_pulls_than_a_peer_may_have_open_are_refused() {
    let mut pair = Pair::apart();
    let mut liar = Liar::with(&mut pair.owner);
    let open = Open::to(&pair.owner.name, EndpointId(1), Key(1), Uid(1));
    liar.tx.push(Head::new(Kind::Open), &open.to_args(), &[]).expect("room");
    let origin = Origin { from: 8, proof_at: 8, proof: 1 }.to_bytes();
    for slot in 0..32 {
        let mark = Mark { operation: slot, piece: 0 };
        let word = Word::Pull { place: at(0), len: MIB as u64, notice: Some(1), mark, is_part: false };
        // The last requests are malformed.
        let payload = if slot < 30 { &origin[..] } else { &origin[1..] };
        liar.push(Head { slot: slot as u16, ..Head::new(Kind::Request) }, word, payload);
    }
    (0..100).for_each(|_| _ = pair.owner.poll());
    let (mut unreadable, mut refused) = (0, 0);
    for (head, args) in liar.take() {
        match head.kind {
            Kind::Reply => {
                let word = Word::unpack(head.op, &args);
                assert!(matches!(word, Some(Word::Pulled(_, PullEnd::Unreadable { .. }))), "{word:?}");
                unreadable += 1;
            }
            Kind::Return => refused += 1,
            _ => {}
        }
    }
    assert_eq!((unreadable, refused), (4, 28), "addresses where nothing is, and four at a time");
    assert_eq!((pair.owner.engine.counters().refused, pair.owner.engine.counters().writes), (28, 0));
    assert_eq!(pair.owner.engine.next_notice(), None);
}

/// An owner that lies about pulls: its session ends with a violation, and no operation ends twice.
#[test]
fn ends_of_pulls_that_are_none_are_not_believed() {
    let mut side = Side::new(2);
    let target = Side::new(9).name;
    side.core.state_mut().map(side.endpoint, 0, target, Key(1)).expect("mapped");
    side.write(Write::to(at(0)), contents(1, 8), 0);
    let mut liar = Liar::with(&mut side);
    (0..10).for_each(|_| _ = side.poll());
    side.write(Write::to(at(0)), contents(2, MIB), 1);
    side.write(Write::to(at(0)), contents(3, 8), 2);
    let came = liar.take();
    let pull = came.iter().find(|(head, _)| head.kind == Kind::Request).expect("a pull");
    let Some(Word::Pull { mark, .. }) = Word::unpack(pull.0.op, &pull.1) else { panic!("{came:?}") };
    let reply = Head { slot: pull.0.slot, flow: pull.0.flow, ..Head::new(Kind::Reply) };
    // Another operation's number.
    let other = Mark { operation: mark.operation + 1, piece: 0 };
    liar.push(reply, Word::Pulled(other, PullEnd::Unreadable { is_partly: false }), &[]);
    (0..10).for_each(|_| _ = side.poll());
    // It is unknown which request the answer ended, so all that wait for this owner end.
    for context in [0, 1] {
        let end = side.engine.next_completion().expect("it is given up");
        assert_eq!((end.context, end.outcome), (context, failed(Reason::Violation, Certainty::Unknown)));
    }
    // The operation behind them leaves, and ends with the session.
    assert!(liar.take().iter().any(|(head, _)| head.kind == Kind::Request || head.kind == Kind::Send));
    assert_eq!(side.engine.pending(0), 1);
    side.lose();
    let ends: Vec<_> = std::iter::from_fn(|| side.engine.next_completion()).map(|end| end.context).collect();
    assert_eq!(ends, [2]);
    assert_eq!(side.engine.pending_in_all(), 0);
}

/// Short writes take a path of their own. They end like all others, whatever else goes on at either side.
#[test]
fn short_writes_end_once_and_what_is_behind_them_goes_on() {
    let mut pair = Pair::new();
    for ends in [false, true] {
        // A region of the initiator's own that ends in time changes nothing.
        let own = pair.initiator.engine.table_mut().open(9, Rights::ALL, Bytes::new(8)).expect("new");
        let end = ends.then(|| std::time::Duration::from_secs(1));
        pair.initiator.engine.table_mut().set_end(own, end);
        pair.owner.engine.table_mut().set_end(pair.region, end);
        pair.initiator.write(Write::to(at(0)), vec![1; 8], 1);
        assert_eq!(pair.initiator.engine.pending(0), 1);
        let Side { engine, core, .. } = &mut pair.initiator;
        engine.try_flush(core.state_mut(), 0, 2).expect("posted");
        engine.fence(core.state(), 0).expect("mapped");
        pair.initiator.write(Write::to(at(0)), vec![2; 8], 3);
        assert_eq!((pair.ends(), pair.initiator.engine.pending_in_all()), (Vec::new(), 2));
        pair.settle();
        assert_eq!(pair.ends(), [1, 2, 3].map(|n| (n, Outcome::Done)), "{ends}");
        assert_eq!(pair.space.all()[..8], [2; 8]);
        pair.owner.engine.table_mut().set_end(pair.region, None);
        pair.initiator.engine.table_mut().revoke(own);
    }
    pair.initiator.write(Write::to(at(BYTES as u64 - 7)), vec![1; 8], 4);
    pair.initiator.write(Write::to(at(16)), vec![3; 8], 5);
    pair.settle();
    let refused = failed(Reason::OutsideRegion, Certainty::NotDelivered);
    assert_eq!(pair.ends(), [(4, refused), (5, Outcome::Done)]);
    pair.initiator.write(Write::to(at(0)), vec![1; 8], 6);
    pair.initiator.lose();
    let ends = pair.ends();
    assert!(matches!(ends[..], [(6, Outcome::Failed { reason: Reason::PeerLost, .. })]), "{ends:?}");
    assert_eq!((pair.initiator.engine.pending(0), pair.initiator.engine.pending_in_all()), (0, 0));
}
