//! Flows that close at any moment, over a network that loses, duplicates, damages and reorders packets.

use crate::world::{millis, seed, World, ECHO, ECHOED, KEY, NOTE};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_core::{Endpoint, MessageKind, Outgoing, Reliability, SendError, Service};
use weft_transport::testing::Faults;
use weft_wire::{EndpointId, Name};

/// Copies and delayed packets arrive up to 30 ms late: by then many flows have used the number.
const BAD: Faults = Faults {
    drop: 100_000,
    duplicate: 150_000,
    corrupt: 20_000,
    reorder: 150_000,
    late_most: Duration::from_millis(30),
};

/// The number of endpoints of each side at any time.
const PLACES: usize = 3;

/// An endpoint. Each has a unique number, which is the first argument of messages to it.
#[derive(Clone, Copy)]
struct Place {
    endpoint: Endpoint,
    name: Name,
    number: u32,
}

struct Churn {
    world: World,
    /// Of the requesting side and of the answering side.
    places: [Vec<Place>; 2],
    numbers: u32,
    dice: u64,
    /// The sent messages, by number: their kind, and whether they are unreliable.
    sent: BTreeMap<u32, (MessageKind, bool)>,
}

impl Churn {
    fn new() -> Churn {
        let seed = seed();
        let world = World::connected(seed);
        let mut churn =
            Churn { world, places: [Vec::new(), Vec::new()], numbers: 0, dice: seed, sent: BTreeMap::new() };
        for side in [0, 1] {
            churn.world.processes[side].program.numbers = Some(BTreeMap::new());
            for _ in 0..PLACES {
                let place = churn.add(side);
                churn.places[side].push(place);
            }
        }
        churn.world.network.borrow_mut().faults = BAD;
        churn
    }

    fn draw(&mut self, below: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) as usize % below
    }

    fn add(&mut self, side: usize) -> Place {
        self.numbers += 1;
        let process = &mut self.world.processes[side];
        let name = Name { endpoint: EndpointId(100 + self.numbers), ..process.name };
        let endpoint = process.core.state_mut().add_endpoint(name, KEY);
        process.program.numbers.as_mut().expect("set").insert(endpoint, self.numbers);
        Place { endpoint, name, number: self.numbers }
    }

    fn renew(&mut self, side: usize, at: usize) {
        let old = self.places[side][at].endpoint;
        self.world.processes[side].core.state_mut().free_endpoint(old).expect("alive");
        self.places[side][at] = self.add(side);
    }

    /// Sends from a place of the first side to one of the second.
    fn send(&mut self, from: usize, to: usize, kind: MessageKind) {
        let (from, to) = (self.places[0][from], self.places[1][to]);
        let state = self.world.processes[0].core.state_mut();
        if state.translation(from.endpoint, to.number).is_err() {
            state.map(from.endpoint, to.number, to.name, KEY).expect("alive");
        }
        let id = self.sent.len() as u32;
        let is_lossy = state.service(from.endpoint).expect("alive").reliability == Reliability::Unreliable;
        let op = if kind == MessageKind::Request { ECHO } else { NOTE };
        // A reply is checked against the number of the requesting endpoint.
        let args = [to.number, id, from.number];
        let message = Outgoing { op, args: &args, payload: &[id as u8; 40], completion: None };
        let sent = match kind {
            MessageKind::Request => state.try_request(from.endpoint, to.number, message),
            _ => state.try_send(from.endpoint, to.number, message),
        };
        match sent {
            Ok(()) => _ = self.sent.insert(id, (kind, is_lossy && kind == MessageKind::OneWay)),
            Err(error) => assert_eq!(error, SendError::Full),
        }
    }

    fn step(&mut self) {
        let (from, to) = (self.draw(PLACES), self.draw(PLACES));
        match self.draw(21) {
            0 => self.renew(0, from),
            1 => self.renew(1, to),
            2 => {
                let (from, to) = (self.places[0][from], self.places[1][to]);
                // There may be no entry.
                let _ = self.world.processes[0].core.state_mut().unmap(from.endpoint, to.number);
            }
            3 => {
                let reliability = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception][to];
                let service = Service { reliability, is_ordered: from == 0 };
                let endpoint = self.places[0][from].endpoint;
                self.world.processes[0].core.state_mut().set_service(endpoint, service).expect("alive");
            }
            4..8 => self.send(from, to, MessageKind::Request),
            8..16 => self.send(from, to, MessageKind::OneWay),
            // Mapped again, with messages in flight there.
            16 => {
                let (from, to) = (self.places[0][from], self.places[1][to]);
                self.world.processes[0].core.state_mut().map(from.endpoint, to.number, to.name, KEY).expect("alive");
            }
            _ => {
                let micros = self.draw(3000) as u64;
                self.world.run(Duration::from_micros(micros));
            }
        }
    }

    /// How often each message was delivered, answered and returned.
    fn ends(&self) -> BTreeMap<u32, [u32; 3]> {
        let mut ends: BTreeMap<u32, [u32; 3]> = BTreeMap::new();
        let [asker, answerer] = &self.world.processes[..] else { panic!("two") };
        for got in &answerer.program.got {
            ends.entry(got.args[1]).or_default()[0] += 1;
        }
        for got in asker.program.got.iter().filter(|got| got.op == ECHOED) {
            ends.entry(got.args[1]).or_default()[1] += 1;
        }
        for back in &asker.program.returned {
            ends.entry(back.args[1]).or_default()[2] += 1;
        }
        ends
    }
}

/// The messages that ended in a wrong way.
fn faults_of(churn: &Churn) -> Vec<String> {
    let ends = churn.ends();
    let asked_back: Vec<u32> = churn.world.processes[1].program.returned.iter().map(|back| back.args[1]).collect();
    let is_wrong = |(id, (kind, is_lossy)): (&u32, &(MessageKind, bool))| {
        let [delivered, answered, returned] = ends.get(id).copied().unwrap_or_default();
        let is_right = match kind {
            _ if *is_lossy => delivered <= 1 && returned == 0,
            // The requesting endpoint was freed meanwhile, so the reply went back to the replier.
            MessageKind::Request => delivered <= 1 && answered + returned + u32::from(asked_back.contains(id)) == 1,
            _ => delivered + returned == 1,
        };
        (!is_right).then(|| format!("{id}: {kind:?}, lossy {is_lossy}: {delivered}, {answered}, {returned}"))
    };
    churn.sent.iter().filter_map(is_wrong).collect()
}

fn run(steps: usize) -> Churn {
    let mut churn = Churn::new();
    for _ in 0..steps {
        churn.step();
    }
    for _ in 0..400 {
        churn.world.processes.iter_mut().for_each(|process| process.core.state_mut().hasten());
        churn.world.run(millis(20));
    }
    churn
}

#[test]
fn flows_that_close_at_any_moment_lose_nothing_and_mix_nothing_up() {
    let churn = run(100_000);
    assert!(churn.numbers > 1000 && churn.sent.len() > 5000, "{} endpoints", churn.numbers);
    let faults = faults_of(&churn);
    assert!(faults.is_empty(), "of {} messages: {faults:#?}", churn.sent.len());
    let mixed: Vec<_> = churn.world.processes.iter().flat_map(|process| &process.program.mixed_up).collect();
    assert!(mixed.is_empty(), "came to another endpoint than they were for: {mixed:?}");
    for process in &churn.world.processes {
        let counters = process.core.state().counters();
        assert_eq!((counters.violations, counters.sessions_lost), (0, 0));
    }
    let dropped = churn.world.processes[1].core.state().counters().unreliable_dropped;
    assert!(dropped > 0, "some that may be lost came late");
    let mut report = weft_core::Report::default();
    let mut world = churn.world;
    world.processes[0].core.state_mut().report_into(&mut report);
    assert!(report.flows_out.len() <= 2 * PLACES * PLACES + 1, "{} flows are open", report.flows_out.len());
}

/// Tests the check itself: a message that is sent to another endpoint than it says must be found.
#[test]
fn a_message_at_another_endpoint_is_noticed() {
    let mut churn = Churn::new();
    let numbers = churn.world.processes[1].program.numbers.as_mut().expect("set");
    numbers.values_mut().for_each(|number| *number += 1);
    for _ in 0..300 {
        churn.send(0, 0, MessageKind::OneWay);
        churn.world.run(millis(1));
    }
    assert!(!churn.world.processes[1].program.mixed_up.is_empty());
}
