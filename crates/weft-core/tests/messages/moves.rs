//! Endpoints that move between the bundles of one network interface, under traffic.
//!
//! Node 0 is the peer; nodes 1 to 3 are bundles of one network interface.

mod long;

use crate::world::{insist, message, op, Fuse, Inside, Script, TestTx, World, KEY, LARGEST};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use weft_core::{Admission, Settings, Sink};
use weft_core::{Back, Delivery, Endpoint, Errand, Event, EventMask, MessageKind, Outgoing, Returned, SendError};
use weft_wire::{BundleId, EndpointId, Key, Name, Reason, Uid};

const PEER: usize = 0;

/// Where endpoints live, and the errands that bundles leave for each other.
#[derive(Debug, Default)]
struct Office {
    lives: BTreeMap<EndpointId, (usize, Key)>,
    errands: BTreeMap<usize, VecDeque<Errand>>,
    backs: BTreeMap<usize, VecDeque<Back>>,
}

/// A client of a bundle that shares its network interface with others.
#[derive(Debug)]
struct Mover {
    script: Script,
    at: usize,
    office: Rc<RefCell<Office>>,
}

impl Sink<TestTx> for Mover {
    fn deliver(&mut self, state: &mut Inside, message: &Delivery<'_>) -> Result<(), Reason> {
        self.script.deliver(state, message)
    }

    fn returned(&mut self, state: &mut Inside, message: Returned) -> Option<Returned> {
        self.script.returned(state, message)
    }

    fn forward(&mut self, mut errand: Errand) -> Result<(), (Errand, Reason)> {
        let mut office = self.office.borrow_mut();
        errand.from.get_or_insert(BundleId(self.at as u32));
        let Some(&(there, key)) = office.lives.get(&errand.endpoint) else {
            return Err((errand, Reason::NoSuchEndpoint));
        };
        if let Err(reason) = errand.is_admitted(Uid(1000), key, Admission::default()) {
            return Err((errand, reason));
        }
        office.errands.entry(there).or_default().push_back(errand);
        Ok(())
    }

    fn carry_back(&mut self, to: BundleId, back: Back) {
        self.office.borrow_mut().backs.entry(to.0 as usize).or_default().push_back(back);
    }
}

/// A peer, and three bundles.
struct Bundles {
    world: World<Mover>,
    office: Rc<RefCell<Office>>,
    peer: Endpoint,
    /// The endpoint that moves: its bundle, and its handle there.
    at: usize,
    it: Endpoint,
    name: Name,
}

impl Bundles {
    fn new() -> Bundles {
        Bundles::with(Settings::default())
    }

    fn with(settings: Settings) -> Bundles {
        let office = Rc::new(RefCell::new(Office::default()));
        let mut world = World::new(4 * LARGEST);
        for at in 0..4 {
            let sink = Mover { script: Script::default(), at, office: office.clone() };
            world.add_node(settings, sink, Fuse::new());
        }
        let peer = world.add_endpoint(PEER, KEY);
        let it = world.add_endpoint(1, KEY);
        world.map((PEER, peer), 0, (1, it));
        world.map((1, it), 0, (PEER, peer));
        let name = world.state(1).name(it).expect("alive");
        let mut bundles = Bundles { world, office, peer, at: 1, it, name };
        bundles.tell(1, KEY);
        bundles
    }

    /// The same, with both flows open.
    fn open() -> Bundles {
        Bundles::open_with(Settings::default())
    }

    fn open_with(settings: Settings) -> Bundles {
        let mut bundles = Bundles::with(settings);
        bundles.ask(op::ECHO, &[]);
        bundles.ask_back(op::ECHO, &[]);
        bundles.run(8);
        bundles.clear();
        bundles
    }

    fn tell(&mut self, at: usize, key: Key) {
        self.office.borrow_mut().lives.insert(self.name.endpoint, (at, key));
        self.world.moved.insert(self.name, at);
    }

    /// Moves the endpoint. The bundle that it leaves notices later.
    fn move_to(&mut self, to: usize) -> (usize, Endpoint) {
        let luggage = self.world.state(self.at).pack(self.it).expect("it is there");
        let left = (self.at, self.it);
        let key = luggage.key();
        self.it = self.world.state(to).arrive(luggage);
        self.at = to;
        self.tell(to, key);
        left
    }

    fn leave(&mut self, (at, it): (usize, Endpoint)) {
        self.world.state(at).leave(it).expect("it was there");
    }

    fn post(&mut self) {
        for at in 1..4 {
            let errands = self.office.borrow_mut().errands.remove(&at).unwrap_or_default();
            let node = self.world.node(at);
            errands.into_iter().for_each(|errand| node.core.do_errand(errand, &mut node.sink));
            let backs = self.office.borrow_mut().backs.remove(&at).unwrap_or_default();
            backs.into_iter().for_each(|back| self.world.state(at).take_back(back));
        }
    }

    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.world.run(1);
            self.post();
        }
    }

    fn ask(&mut self, op: u8, args: &[u32]) {
        insist(|| {
            let sent = self.world.state(PEER).try_request(self.peer, 0, message(op, args, &[7; 100])).is_ok();
            if !sent {
                self.run(1);
            }
            sent
        });
    }

    fn send(&mut self, op: u8, args: &[u32]) {
        insist(|| {
            let sent = self.world.state(PEER).try_send(self.peer, 0, message(op, args, &[7; 100])).is_ok();
            if !sent {
                self.run(1);
            }
            sent
        });
    }

    /// The endpoint sends its peer a request.
    fn ask_back(&mut self, op: u8, args: &[u32]) {
        let (at, it) = (self.at, self.it);
        insist(|| {
            let sent = self.world.state(at).try_request(it, 0, message(op, args, &[9; 100])).is_ok();
            if !sent {
                self.run(1);
            }
            sent
        });
    }

    fn got(&mut self, at: usize) -> Vec<(MessageKind, u8, Vec<u32>)> {
        let got = std::mem::take(&mut self.world.node(at).sink.script.got);
        got.into_iter().map(|g| (g.kind, g.op, g.args)).collect()
    }

    fn clear(&mut self) {
        for at in 0..4 {
            self.got(at);
            while self.world.state(at).next_event().is_some() {}
        }
    }

    /// Fills the event queue of a bundle whose program listens, with returned messages of another endpoint.
    fn fill_events(&mut self, at: usize) {
        self.world.node(at).sink.script.leaves_returns = true;
        let other = self.world.add_endpoint(at, KEY);
        let nobody = Name { epoch: weft_wire::Epoch(0xdead), ..self.name };
        self.world.state(at).map(other, 0, nobody, KEY).expect("a table index");
        assert_eq!(self.world.state(at).next_event(), None);
        insist(|| {
            _ = self.world.state(at).try_send(other, 0, message(op::TAKE, &[], &[7; 1000]));
            self.run(1);
            self.world.state(at).has_full_events()
        });
    }

    fn returned(&mut self, at: usize) -> Vec<Returned> {
        std::mem::take(&mut self.world.node(at).sink.script.returned)
    }

    fn events(&mut self, at: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.world.state(at).next_event()).collect()
    }

    fn handed_on(&mut self, at: usize) -> u64 {
        self.world.state(at).counters().handed_on
    }
}

fn request(args: &[u32]) -> (MessageKind, u8, Vec<u32>) {
    (MessageKind::Request, op::ECHO, args.to_vec())
}

fn reply(args: &[u32]) -> (MessageKind, u8, Vec<u32>) {
    (MessageKind::Reply, op::TAKE, args.to_vec())
}

#[test]
fn requests_in_flight_are_answered_where_the_endpoint_lives_now() {
    let mut b = Bundles::open();
    b.ask(op::ECHO, &[1]);
    let left = b.move_to(2);
    b.leave(left);
    b.ask(op::ECHO, &[2]);
    b.run(8);
    assert_eq!(b.got(1), []);
    assert_eq!(b.got(2), [request(&[1]), request(&[2])]);
    assert_eq!(b.got(PEER), [reply(&[1]), reply(&[2])]);
    assert!(b.returned(PEER).is_empty());
}

#[test]
fn peers_call_again_and_then_go_straight_there() {
    let mut b = Bundles::open();
    let left = b.move_to(2);
    b.leave(left);
    b.run(8);
    let handed_on = b.handed_on(1);
    assert_eq!(b.events(PEER), [], "nothing of this is seen");
    for n in 0..40 {
        b.ask(op::ECHO, &[n]);
        b.run(1);
    }
    b.run(4);
    assert_eq!(b.got(2).len(), 40);
    assert_eq!(b.got(PEER).len(), 40);
    assert_eq!(b.handed_on(1), handed_on, "the bundle that it left has nothing to do with them");
    assert!(b.world.session(PEER, 2).is_some());
}

#[test]
fn a_message_arrives_from_the_source_that_sent_it() {
    let mut b = Bundles::open();
    b.send(op::TAKE, &[1]);
    let left = b.move_to(2);
    b.leave(left);
    b.run(4);
    let source = b.world.node(2).sink.script.got[0].source;
    let peer = b.peer;
    assert_eq!(source, Some(b.world.state(PEER).name(peer).expect("alive")));
}

#[test]
fn its_own_requests_under_way_are_answered_where_it_lives_now() {
    let mut b = Bundles::open();
    let (at, it) = (b.at, b.it);
    let asked = Outgoing { completion: Some(77), ..message(op::ECHO, &[5], &[]) };
    b.world.state(at).try_request(it, 0, asked).expect("room");
    let sent = Outgoing { completion: Some(78), ..message(op::TAKE, &[6], &[]) };
    b.world.state(at).try_send(it, 0, sent).expect("room");
    b.world.state(at).try_request(it, 0, message(op::MISSING, &[8], &[3; 9])).expect("room");
    let left = b.move_to(3);
    b.leave(left);
    b.run(8);
    assert_eq!(b.got(3), [reply(&[5])]);
    let events = b.events(3);
    assert!(events.contains(&Event::Completed(77)) && events.contains(&Event::Completed(78)), "{events:?}");
    assert_eq!(b.events(1), []);
    let returned = b.returned(3);
    let [back] = &returned[..] else { panic!("{returned:?}") };
    assert_eq!((back.endpoint, back.destination, back.reason), (b.it, Some(0), Reason::NoHandler));
    assert_eq!((&back.args[..], &back.payload[..]), (&[8][..], &[3; 9][..]));
}

/// The endpoint, where it is now, sends its peer a request with a completion.
fn ask_with_completion(b: &mut Bundles, completion: u64) {
    let (at, it) = (b.at, b.it);
    let asked = Outgoing { completion: Some(completion), ..message(op::ECHO, &[5], &[]) };
    b.world.state(at).try_request(it, 0, asked).expect("room");
}

#[test]
fn a_completion_follows_its_endpoint_though_the_bundle_has_not_heard_that_it_left() {
    let mut b = Bundles::open();
    let it = b.it;
    ask_with_completion(&mut b, 77);
    b.world.state(1).set_leaving(it, true);
    let left = b.move_to(2);
    b.run(8);
    assert_eq!((b.events(1), b.events(2)), (vec![], vec![Event::Completed(77)]));
    b.leave(left);
    b.run(8);
    settled(&mut b);
}

#[test]
fn completions_of_an_endpoint_that_stays_after_all_go_no_detour() {
    let mut b = Bundles::open();
    let it = b.it;
    for (is_leaving, comes_at_once) in [(true, false), (false, true)] {
        b.world.state(1).set_leaving(it, is_leaving);
        ask_with_completion(&mut b, 78);
        b.world.run(8);
        assert_eq!(b.events(1) == [Event::Completed(78)], comes_at_once);
        b.post();
        assert_eq!(b.events(1).len(), usize::from(!comes_at_once), "by the office, and no second time");
    }
}

#[test]
fn an_endpoint_that_arrived_sends_by_its_table() {
    let mut b = Bundles::open();
    let left = b.move_to(2);
    b.leave(left);
    for n in 0..3 {
        b.ask_back(op::ECHO, &[n]);
    }
    b.run(8);
    assert_eq!(b.got(2).len(), 3);
    assert_eq!(b.world.state(1).try_request(left.1, 0, message(op::ECHO, &[], &[])), Err(SendError::NoEndpoint));
    assert_eq!(b.world.state(1).set_key(left.1, Key(1)), Err(SendError::NoEndpoint));
    assert_eq!(b.world.state(1).free_endpoint(left.1), Err(SendError::NoEndpoint));
}

#[test]
fn an_entry_that_asks_for_no_proof_asks_for_none_where_its_endpoint_lives_now() {
    let mut b = Bundles::new();
    let (at, it, name) = (b.at, b.it, b.name);
    b.world.state(at).map_unproven(it, 7, name, KEY).expect("room in the table");
    for to in [2, 3, 1] {
        let left = b.move_to(to);
        b.leave(left);
        let (at, it) = (b.at, b.it);
        assert_eq!([0, 7].map(|index| b.world.state(at).is_unproven(it, index)), [false, true], "in bundle {to}");
    }
}

#[test]
fn unserved_messages_move_along() {
    let mut b = Bundles::open();
    let it = b.it;
    b.world.state(1).set_served(it, false).expect("alive");
    b.world.state(1).set_event_mask(it, EventMask::NONE).expect("alive");
    b.ask(op::ECHO, &[1]);
    b.send(op::TAKE, &[2]);
    b.run(2);
    let left = b.move_to(2);
    b.leave(left);
    b.send(op::TAKE, &[3]);
    b.run(8);
    assert_eq!(b.got(2), [], "it is not served there either");
    assert_eq!(b.world.state(2).tally().without_room(), weft_core::Tally::default(), "and its mask came along");
    assert_eq!(b.world.state(2).parked(b.it), Ok(3));
    let it = b.it;
    b.world.state(2).set_served(it, true).expect("alive");
    b.run(8);
    let one_way = |n| (MessageKind::OneWay, op::TAKE, vec![n]);
    assert_eq!(b.got(2), [request(&[1]), one_way(2), one_way(3)]);
    assert_eq!(b.got(PEER), [reply(&[1])]);
    settled(&mut b);
}

/// Nothing is in flight, and nothing counts as held.
fn settled(b: &mut Bundles) {
    for _ in 0..50 {
        b.world.state(PEER).hasten();
        b.run(2);
    }
    for at in 0..4 {
        let it = if at == PEER { b.peer } else { b.it };
        assert_eq!(b.world.state(at).unsettled(), 0, "node {at}");
        assert!(b.world.state(at).parked(it).unwrap_or(0) == 0);
        assert!(!b.world.state(at).has_unfinished(), "node {at}");
    }
}

#[test]
fn credit_and_slots_come_back_through_the_stub() {
    let mut b = Bundles::open();
    let left = b.move_to(2);
    b.leave(left);
    // The peer does not call again, like one on another host.
    let answers = |b: &mut Bundles| {
        b.world.run(1);
        b.post();
    };
    b.world.moved.insert(b.name, 1);
    for n in 0..40_000u32 {
        b.send(op::TAKE, &[n]);
        if n % 64 == 0 {
            answers(&mut b);
        }
    }
    for n in 0..100 {
        b.ask(op::ECHO, &[n]);
    }
    b.run(20);
    assert_eq!(b.got(2).len(), 40_100);
    assert_eq!(b.got(PEER).len(), 100);
    assert_eq!(b.handed_on(1), 40_100);
    settled(&mut b);
}

#[test]
fn tokens_of_messages_that_were_handed_on_are_good_for_one_answer() {
    let mut b = Bundles::open();
    for n in 0..3 {
        b.ask(op::DEFER, &[n]);
    }
    let left = b.move_to(2);
    b.leave(left);
    b.run(4);
    let tokens = std::mem::take(&mut b.world.node(2).sink.script.tokens);
    assert_eq!(tokens.len(), 3);
    let mut tokens = tokens.into_iter();
    let [replied, ended, left_open] = [(); 3].map(|()| tokens.next().expect("three"));
    assert!(b.world.state(2).is_open(&replied));
    b.world.state(2).reply(replied, op::TAKE, &[9], &[]).expect("open");
    b.world.state(2).end(ended);
    b.run(8);
    assert_eq!(b.got(PEER), [reply(&[9])]);
    assert_eq!(b.world.state(PEER).counters().ended, 1);
    // The bundle ends, so its unanswered requests end as well.
    let backs = b.world.state(2).abandon_guests();
    assert_eq!(backs.len(), 1);
    for (to, back) in backs {
        b.world.state(to.0 as usize).take_back(back);
    }
    assert!(!b.world.state(2).is_open(&left_open));
    b.run(8);
    assert_eq!(b.world.state(PEER).unsettled(), 0);
}

#[test]
fn messages_that_the_endpoint_refuses_come_back_through_the_stub() {
    let mut b = Bundles::open();
    b.ask(op::MISSING, &[1]);
    b.ask_back(op::ECHO_MISSING, &[2]);
    let left = b.move_to(2);
    b.leave(left);
    b.run(8);
    let returned = b.returned(PEER);
    assert_eq!(
        returned.iter().map(|r| (r.kind, r.reason)).collect::<Vec<_>>(),
        [(MessageKind::Request, Reason::NoHandler), (MessageKind::Reply, Reason::NoHandler)]
    );
    // The key changes where it lives now.
    let mut again = Bundles::open();
    let left = again.move_to(2);
    again.ask(op::ECHO, &[3]);
    again.send(op::TAKE, &[4]);
    again.office.borrow_mut().lives.insert(again.name.endpoint, (2, Key(5)));
    again.leave(left);
    again.run(8);
    let returned = again.returned(PEER);
    assert_eq!(
        returned.iter().map(|r| (r.kind, r.reason)).collect::<Vec<_>>(),
        [(MessageKind::Request, Reason::WrongKey), (MessageKind::OneWay, Reason::WrongKey)]
    );
}

#[test]
fn requests_are_not_handed_on_to_a_bundle_whose_events_are_full() {
    let mut b = Bundles::open_with(Settings { events_bytes_most: 10_000, ..Settings::default() });
    b.fill_events(2);
    b.ask(op::ECHO, &[1]);
    b.send(op::TAKE, &[2]);
    let left = b.move_to(2);
    b.leave(left);
    b.run(8);
    let refused: Vec<_> = b.returned(PEER).into_iter().map(|m| (m.kind, m.args, m.reason)).collect();
    assert_eq!(refused, [(MessageKind::Request, vec![1], Reason::QueueFull)]);
    assert_eq!(b.got(2), [(MessageKind::OneWay, op::TAKE, vec![2])]);
    assert!(!b.events(2).is_empty());
    b.ask(op::ECHO, &[3]);
    b.run(8);
    assert_eq!(b.got(PEER), [reply(&[3])]);
}

#[test]
fn an_endpoint_that_moves_away_from_full_events_is_told_that_it_can_send() {
    let mut b = Bundles::open_with(Settings { events_bytes_most: 10_000, ..Settings::default() });
    b.fill_events(1);
    let it = b.it;
    assert_eq!(b.world.state(1).try_send(it, 0, message(op::TAKE, &[], &[])), Err(SendError::Full));
    let left = b.move_to(2);
    b.leave(left);
    let it = b.it;
    assert_eq!(b.events(2), [Event::CanSend { endpoint: it, destination: 0 }]);
}

#[test]
fn an_endpoint_freed_where_it_lives_is_gone_for_its_old_peers() {
    let mut b = Bundles::open();
    let left = b.move_to(2);
    b.leave(left);
    let it = b.it;
    b.world.state(2).free_endpoint(it).expect("alive");
    b.office.borrow_mut().lives.clear();
    b.ask(op::ECHO, &[1]);
    b.run(8);
    let returned = b.returned(PEER);
    assert_eq!(returned.iter().map(|r| r.reason).collect::<Vec<_>>(), [Reason::NoSuchEndpoint]);
}

#[test]
fn it_comes_back_to_the_index_that_it_had() {
    let mut b = Bundles::open();
    let first = b.it;
    let left = b.move_to(2);
    b.leave(left);
    b.run(4);
    let left = b.move_to(1);
    b.leave(left);
    assert_eq!(b.it, first);
    b.ask(op::ECHO, &[1]);
    b.run(8);
    assert_eq!(b.got(1), [request(&[1])]);
    assert_eq!(b.got(PEER), [reply(&[1])]);
}

/// A peer reports again and again that endpoints have moved which did not, also for flows that do not exist.
#[test]
fn a_peer_that_cries_moved_costs_calls_and_nothing_else() {
    let mut b = Bundles::open();
    for n in 0..200 {
        // It leaves, and comes back.
        let left = b.move_to(if n % 2 == 0 { 2 } else { 1 });
        b.leave(left);
        b.ask(op::ECHO, &[n]);
        b.run(6);
    }
    b.run(10);
    assert_eq!(b.got(PEER).len(), 200);
    assert!(b.world.state(PEER).sessions().count() <= 2);
    settled(&mut b);
}

/// A random sequence of messages of both sides, moves, and late notices of moves.
fn random_moves(seed: u64) {
    let mut dice = seed | 1;
    let mut roll = |end: u64| {
        dice ^= dice >> 12;
        dice ^= dice << 25;
        dice ^= dice >> 27;
        dice.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    };
    let mut b = Bundles::open();
    let (mut asked, mut sent, mut asked_back) = (0u32, 0u32, 0u32);
    let mut unnoticed: Vec<(usize, Endpoint)> = Vec::new();
    for _ in 0..400 {
        match roll(10) {
            0..=2 => {
                if b.world.state(PEER).try_request(b.peer, 0, message(op::ECHO, &[asked], &[1; 70])).is_ok() {
                    asked += 1;
                }
            }
            3 | 4 => {
                if b.world.state(PEER).try_send(b.peer, 0, message(op::TAKE, &[sent], &[2; 70])).is_ok() {
                    sent += 1;
                }
            }
            5 => {
                let (at, it) = (b.at, b.it);
                if b.world.state(at).try_request(it, 0, message(op::ECHO, &[asked_back], &[])).is_ok() {
                    asked_back += 1;
                }
            }
            6 => {
                // A bundle that has not noticed the departure yet cannot get the endpoint back.
                let to = 1 + roll(3) as usize;
                if to != b.at && unnoticed.iter().all(|&(at, _)| at != to) {
                    unnoticed.push(b.move_to(to));
                }
            }
            // Bundles notice departures before anything else arrives.
            7 => unnoticed.drain(..).for_each(|left| b.world.state(left.0).leave(left.1).expect("it was there")),
            _ => {
                unnoticed.drain(..).for_each(|left| b.world.state(left.0).leave(left.1).expect("it was there"));
                b.run(1);
            }
        }
    }
    unnoticed.drain(..).for_each(|left| b.world.state(left.0).leave(left.1).expect("it was there"));
    b.run(30);
    let mut requests = Vec::new();
    let mut one_way = Vec::new();
    let mut replies = Vec::new();
    for at in 1..4 {
        for (kind, _, args) in b.got(at) {
            match kind {
                MessageKind::Request => requests.push(args[0]),
                MessageKind::OneWay => one_way.push(args[0]),
                MessageKind::Reply => replies.push(args[0]),
            }
        }
    }
    let answers: Vec<u32> = b.got(PEER).iter().filter(|g| g.0 == MessageKind::Reply).map(|g| g.2[0]).collect();
    for (mut seen, count) in [(requests, asked), (one_way, sent), (replies, asked_back), (answers, asked)] {
        seen.sort_unstable();
        assert_eq!(seen, (0..count).collect::<Vec<_>>(), "each once; seed {seed}");
    }
    for at in 0..4 {
        assert_eq!(b.returned(at), [], "seed {seed}");
        assert_eq!(b.world.state(at).counters().violations, 0, "seed {seed}");
    }
    settled(&mut b);
}

#[test]
fn every_message_is_delivered_and_answered_once_however_it_moves() {
    let fresh = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64);
    for seed in (0..300).chain([fresh]) {
        random_moves(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}
