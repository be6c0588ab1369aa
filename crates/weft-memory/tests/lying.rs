//! An owner that gives false answers: the operation fails as a whole, nothing is written outside its target, and the next one succeeds.

use proptest::prelude::*;
use std::collections::BTreeMap;
use weft_core::bulk::PIECE;
use weft_core::testing::{path, MemRx, MemTx, NoBells};
use weft_core::{Bundle, Client, Delivery, PeerId, Returned, SessionId, Sink, State};
use weft_memory::testing::Plain;
use weft_memory::{Change, Completion, Engine, Fetch, Outcome, Part, ReadList, Settings, Write};
use weft_wire::memory::{Atomic, Mark, Place, RegionKey, Type, Word};
use weft_wire::path::{Peek, Rx, Tx};
use weft_wire::{BundleId, Certainty, EndpointId, Epoch, Head, HostAddress, Key, Kind, Name, Reason, Uid};

/// How one request is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Correctly.
    Truth,
    /// With so many bytes.
    Bytes(usize),
    /// As if it were another piece.
    Piece(u32),
    /// As if it were of another operation.
    Operation(u32),
}

/// An initiator, and the owner's ends of their paths.
struct Asking {
    core: Bundle<MemRx, MemTx, NoBells>,
    engine: Engine<Plain>,
    session: SessionId,
    tx: MemTx,
    rx: MemRx,
}

fn named(epoch: u64) -> Name {
    Name { epoch: Epoch(epoch), endpoint: EndpointId(1), uid: Uid(1), address: HostAddress::NONE }
}

/// The only client of a bundle.
struct Only<'a>(&'a mut Engine<Plain>);

impl Sink<MemTx> for Only<'_> {
    fn deliver(&mut self, state: &mut State<MemTx>, message: &Delivery<'_>) -> Result<(), Reason> {
        self.0.deliver(state, message)
    }

    fn returned(&mut self, state: &mut State<MemTx>, message: Returned) -> Option<Returned> {
        self.0.returned(state, message)
    }

    fn do_chores(&mut self, state: &mut State<MemTx>) -> u32 {
        while let Some(event) = state.next_claimed() {
            self.0.on_event(state, &event);
        }
        while let Some((endpoint, completion)) = state.next_completed() {
            self.0.completed(state, endpoint, completion);
        }
        Client::<MemTx>::go_on(self.0, state)
    }
}

impl Asking {
    fn new() -> Asking {
        let mut core = Bundle::new(NoBells, weft_core::Settings::default());
        let endpoint = core.state_mut().add_endpoint(named(1), Key(1));
        let engine = Engine::new(endpoint, Settings::default());
        engine.attach(core.state_mut());
        let ((to_owner, rx), (tx, from_owner)) = (path(1 << 12), path(1 << 14));
        let owner = PeerId { epoch: Epoch(2), bundle: BundleId(0), uid: Uid(1), address: HostAddress::NONE };
        let index = core.reserve().expect("the first session");
        let session = core.attach(index, owner, to_owner, from_owner);
        core.state_mut().map(endpoint, 0, named(2), Key(1)).expect("an index");
        Asking { core, engine, session, tx, rx }
    }

    fn poll(&mut self) {
        for call in self.core.state_mut().take_calls() {
            self.core.state_mut().connected(call, self.session);
        }
        self.core.poll(1024, &mut Only(&mut self.engine));
    }

    /// Reads. The owner gives `answers` to the first requests, and correct answers to the others.
    fn read(&mut self, len: usize, answers: &[Answer]) -> Completion<Plain> {
        let place = Place::new(RegionKey(1), 5);
        self.engine.try_read(self.core.state_mut(), 0, place, vec![0; len], 9).expect("room");
        let mut answers = answers.iter().copied().chain(std::iter::repeat(Answer::Truth));
        for _ in 0..1000 {
            self.poll();
            if let Some(end) = self.engine.next_completion() {
                return end;
            }
            while let Peek::Record(record) = self.rx.peek() {
                let head = record.head.head();
                if head.kind == Kind::Request {
                    let Some(Word::Read { mark, len, .. }) = Word::unpack(head.op, record.args) else {
                        panic!("{head:?} is no read")
                    };
                    let answer = answers.next().unwrap_or(Answer::Truth);
                    reply(&mut self.tx, &head, mark, len as usize, answer);
                }
                self.rx.pop();
            }
            self.rx.release();
        }
        panic!("the read does not end");
    }
}

fn reply(tx: &mut MemTx, request: &Head, mark: Mark, len: usize, answer: Answer) {
    let (mark, len) = match answer {
        Answer::Truth => (mark, len),
        Answer::Bytes(len) => (mark, len),
        Answer::Piece(piece) => (Mark { piece, ..mark }, len),
        Answer::Operation(operation) => (Mark { operation, ..mark }, len),
    };
    let packed = Word::Bytes(mark).pack();
    let head = Head { op: packed.op, slot: request.slot, flow: request.flow, ..Head::new(Kind::Reply) };
    tx.push(head, packed.args(), &vec![(mark.piece as u8).wrapping_add(1); len]).expect("room");
}

fn expected(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / PIECE) as u8 + 1).collect()
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![
        3 => Just(Answer::Truth),
        1 => (0..=PIECE + 9).prop_map(Answer::Bytes),
        1 => prop_oneof![0..50u32, any::<u32>()].prop_map(Answer::Piece),
    ]
}

#[test]
fn a_true_owner_is_believed_and_a_short_answer_is_found() {
    let mut asking = Asking::new();
    for len in [0, 1, PIECE, 40 * PIECE + 3] {
        let end = asking.read(len, &[]);
        assert_eq!((end.outcome, end.target), (Outcome::Done, Some(expected(len))), "{len} bytes");
    }
    let end = asking.read(2 * PIECE, &[Answer::Bytes(PIECE - 1)]);
    let failed = Outcome::Failed { reason: Reason::Violation, certainty: Certainty::Unknown };
    assert_eq!(end.outcome, failed);
    assert_eq!(asking.engine.pending(0), 0);
}

/// Operations of every kind with one request each, and one that has much under way and more to send.
fn post_all(asking: &mut Asking) -> u64 {
    let (engine, state) = (&mut asking.engine, asking.core.state_mut());
    let place = Place::new(RegionKey(1), 0);
    let change = Change { place, atomic: Atomic::Add, of: Type::U64 };
    engine.try_write(state, 0, Write::to(place), vec![1; 8], 1).expect("room");
    engine.try_change(state, 0, change, &[1; 8], Fetch { second: &[], old: Some(vec![0; 8]) }, 2).expect("room");
    engine
        .try_read_list(state, 0, ReadList::from(RegionKey(1), &[Part { at: 0, len: 8 }]), vec![vec![0; 8]], 3)
        .expect("room");
    engine.try_read(state, 0, place, vec![0; 40 * PIECE], 4).expect("room");
    4
}

/// An answer ends one request. If it fits none, nobody knows which one it ended, and no operation may wait for it.
#[test]
fn what_waits_for_an_owner_ends_when_an_answer_fits_nothing() {
    let mut asking = Asking::new();
    asking.read(1, &[]);
    for _ in 0..3 {
        let posted = post_all(&mut asking);
        asking.poll();
        let (mut requests, mut lies) = (Vec::new(), 1);
        while let Peek::Record(record) = asking.rx.peek() {
            let head = record.head.head();
            if let (Kind::Request, Some(word)) = (head.kind, Word::unpack(head.op, record.args)) {
                requests.push((head, word));
            }
            asking.rx.pop();
        }
        asking.rx.release();
        for (head, word) in requests {
            let (mark, len) = match word {
                Word::Read { mark, len, .. } => (mark, len as usize),
                Word::Atomic { mark, .. } => (mark, 8),
                Word::Write { mark: Some(mark), .. } => (mark, 0),
                other => panic!("{other:?} waits for no answer"),
            };
            let answer = if std::mem::take(&mut lies) == 1 { Answer::Operation(77) } else { Answer::Truth };
            reply(&mut asking.tx, &head, mark, len, answer);
        }
        for _ in 0..10 {
            asking.poll();
        }
        let mut ends: Vec<u64> = Vec::new();
        while let Some(end) = asking.engine.next_completion() {
            let failed = Outcome::Failed { reason: Reason::Violation, certainty: Certainty::Unknown };
            assert_eq!(end.outcome, failed, "{}", end.context);
            ends.push(end.context);
        }
        ends.sort_unstable();
        assert_eq!((ends, asking.engine.pending(0)), ((1..=posted).collect(), 0));
        let end = asking.read(3 * PIECE, &[]);
        assert_eq!((end.outcome, end.target), (Outcome::Done, Some(expected(3 * PIECE))));
    }
}

/// The index of the destination is given to another endpoint while an operation is under way.
#[test]
fn an_operation_ends_at_the_peer_where_it_began() {
    for pieces in [1, 40] {
        let mut asking = Asking::new();
        asking.read(1, &[]);
        let place = Place::new(RegionKey(1), 0);
        asking.engine.try_read(asking.core.state_mut(), 0, place, vec![0; pieces * PIECE], 1).expect("room");
        asking.poll();
        let other = Name { endpoint: EndpointId(2), ..named(2) };
        let endpoint = asking.engine.endpoint();
        asking.core.state_mut().map(endpoint, 0, other, Key(1)).expect("an index");
        asking.engine.try_read(asking.core.state_mut(), 0, place, vec![0; 8], 2).expect("room");
        let (mut flows, mut ends) = (BTreeMap::<u16, usize>::new(), BTreeMap::new());
        for _ in 0..100 {
            asking.poll();
            while let Peek::Record(record) = asking.rx.peek() {
                let head = record.head.head();
                if let (Kind::Request, Some(Word::Read { mark, len, .. })) =
                    (head.kind, Word::unpack(head.op, record.args))
                {
                    *flows.entry(head.flow).or_default() += 1;
                    reply(&mut asking.tx, &head, mark, len as usize, Answer::Truth);
                }
                asking.rx.pop();
            }
            asking.rx.release();
            while let Some(end) = asking.engine.next_completion() {
                ends.insert(end.context, end.outcome);
            }
        }
        let is_whole = pieces == 1;
        let cut = Outcome::Failed { reason: Reason::PeerLost, certainty: Certainty::Unknown };
        assert_eq!(ends, BTreeMap::from([(1, if is_whole { Outcome::Done } else { cut }), (2, Outcome::Done)]));
        assert_eq!(
            flows.values().copied().min(),
            Some(1),
            "the other peer got a piece of the first operation: {flows:?}"
        );
        assert_eq!((flows.len(), asking.engine.pending(0)), (2, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_an_owner_answers_the_read_ends_as_a_whole_and_the_next_one_goes_well(
        len in 1..50 * PIECE,
        answers in proptest::collection::vec(answers(), 0..60),
    ) {
        let mut asking = Asking::new();
        let pieces = len.div_ceil(PIECE);
        let is_true = |(number, answer): (usize, &Answer)| match *answer {
            Answer::Truth => true,
            Answer::Bytes(bytes) => bytes == PIECE.min(len - number * PIECE),
            Answer::Piece(piece) => piece as usize == number,
            Answer::Operation(_) => false,
        };
        let first_lie = answers.iter().take(pieces).enumerate().position(|answer| !is_true(answer));
        let end = asking.read(len, &answers);
        prop_assert_eq!(end.context, 9);
        match first_lie {
            None => prop_assert_eq!((end.outcome, end.target), (Outcome::Done, Some(expected(len)))),
            Some(lie) => {
                let failed = Outcome::Failed { reason: Reason::Violation, certainty: Certainty::Unknown };
                prop_assert_eq!(end.outcome, failed);
                let before = lie * PIECE;
                let target = end.target.expect("it comes back");
                prop_assert_eq!(target.len(), len);
                prop_assert_eq!(&target[..before], &expected(len)[..before]);
            }
        }
        prop_assert_eq!(asking.engine.pending(0), 0);
        let end = asking.read(3 * PIECE, &[]);
        prop_assert_eq!((end.outcome, end.target), (Outcome::Done, Some(expected(3 * PIECE))));
    }
}
