//! Floods both ways through the smallest paths: perhaps slow, but never stuck.

use crate::world::{op, Fuse, Inside, TestTx, World, KEY, LARGEST};
use weft_core::{Delivery, Endpoint, MessageKind, Outgoing, Returned, SendError, Settings, Sink};
use weft_wire::{Reason, MAX_PAYLOAD};

/// Counts messages, and answers every request with its contents.
#[derive(Debug, Default)]
struct Counter {
    one_way: u64,
    requests: u64,
    replies: u64,
    returned: u64,
    /// Sum of the first arguments, so that a wrong message is noticed.
    sum: u64,
}

impl Sink<TestTx> for Counter {
    fn deliver(&mut self, state: &mut Inside, message: &Delivery<'_>) -> Result<(), Reason> {
        self.sum += u64::from(message.args[0]);
        match message.kind() {
            MessageKind::OneWay => self.one_way += 1,
            MessageKind::Reply => self.replies += 1,
            MessageKind::Request => {
                self.requests += 1;
                if let Some(token) = message.take_reply() {
                    state.reply(token, op::TAKE, message.args, message.payload).expect("a reply");
                }
            }
        }
        Ok(())
    }

    fn returned(&mut self, _state: &mut Inside, _message: Returned) -> Option<Returned> {
        self.returned += 1;
        None
    }
}

/// Each of two nodes sends `each` messages as fast as it can; each poll takes at most `budget`.
fn flood(each: u64, budget: u32, len: impl Fn(u64) -> usize, asks: impl Fn(u64) -> bool) {
    let mut world: World<Counter> = World::new(LARGEST);
    for _ in 0..2 {
        world.add_node(Settings::default(), Counter::default(), Fuse::new());
    }
    let ends: [Endpoint; 2] = [world.add_endpoint(0, KEY), world.add_endpoint(1, KEY)];
    world.map((0, ends[0]), 0, (1, ends[1]));
    world.map((1, ends[1]), 0, (0, ends[0]));
    let payload = vec![0x5a; MAX_PAYLOAD];
    let mut sent = [0; 2];
    let mut stuck = 0;
    while sent != [each; 2] || (0..2).any(|n| world.state(n).unsettled() > 0) {
        let mut moved = 0;
        for node in 0..2 {
            world.answer(node);
            while sent[node] < each {
                let i = sent[node];
                let (args, payload) = ([i as u32], &payload[..len(i)]);
                let message = Outgoing { op: op::TAKE, args: &args, payload, completion: None };
                let state = world.state(node);
                let result = match asks(i) {
                    true => state.try_request(ends[node], 0, message),
                    false => state.try_send(ends[node], 0, message),
                };
                match result {
                    Ok(()) => sent[node] += 1,
                    Err(SendError::Full) => break,
                    Err(other) => panic!("{other}"),
                }
                moved += 1;
            }
            moved += world.poll(node, budget);
            while world.state(node).next_event().is_some() {}
            if sent[node] == each {
                world.state(node).flush();
                world.state(node).hasten();
            }
        }
        stuck = if moved > 0 { 0 } else { stuck + 1 };
        assert!(stuck < 10_000, "stuck at {sent:?}");
    }
    let requests = (0..each).filter(|&i| asks(i)).count() as u64;
    let sum = (0..each).map(|i| i * if asks(i) { 2 } else { 1 }).sum::<u64>();
    for node in 0..2 {
        let c = &world.node(node).sink;
        assert_eq!((c.one_way, c.requests, c.replies, c.returned), (each - requests, requests, requests, 0));
        assert_eq!(c.sum, sum);
        assert!(!world.node(node).core.has_broken());
    }
}

const EACH: u64 = if cfg!(debug_assertions) { 20_000 } else { 500_000 };

#[test]
fn a_million_small_one_way_messages_both_ways_do_not_deadlock() {
    flood(EACH, 64, |i| (i % 40) as usize, |_| false);
}

#[test]
fn a_million_small_requests_both_ways_do_not_deadlock() {
    flood(EACH, 64, |_| 16, |_| true);
}

#[test]
fn large_and_small_messages_of_all_kinds_both_ways_do_not_deadlock() {
    flood(EACH / 10, 7, |i| if i % 100 == 3 { MAX_PAYLOAD } else { (i % 300) as usize }, |i| i % 3 != 0);
}

#[test]
fn requests_that_fill_the_path_both_ways_do_not_deadlock() {
    flood(EACH / 250, 1, |_| MAX_PAYLOAD, |_| true);
}
