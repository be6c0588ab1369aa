//! A client of an echo server, which most test programs use.

use super::{poll_until, Address};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Bundle, Endpoint, Node};

/// The request: the server sends the same contents back as [`ANSWER`].
pub const ECHO: u8 = 1;
pub const ANSWER: u8 = 20;

/// An endpoint that is mapped to one address, and the answers it got.
pub struct Client {
    pub bundle: Bundle,
    pub here: Endpoint,
    pub answers: Rc<Cell<u64>>,
}

impl Client {
    /// In a node of its own.
    pub fn new(there: Address) -> Client {
        Client::of(&Node::new().expect("node"), there)
    }

    pub fn of(node: &Node, there: Address) -> Client {
        let mut bundle = Bundle::new(node).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        let answers = Rc::new(Cell::new(0));
        let seen = answers.clone();
        bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
        Client { bundle, here, answers }
    }

    /// Sends requests one after the other. All must be answered within the bound, and none returned. Returns the time taken.
    pub fn ask(&mut self, times: u32) -> Duration {
        let (since, wanted) = (Instant::now(), self.answers.get() + u64::from(times));
        (0..times).for_each(|n| self.bundle.request(self.here, 0, ECHO, &[n], b"honest").expect("mapped"));
        let answers = &self.answers;
        poll_until(&mut self.bundle, "answers", |_| answers.get() >= wanted);
        assert_eq!((self.answers.get(), self.bundle.counters().returned), (wanted, 0));
        since.elapsed()
    }

    pub fn address(&self) -> Address {
        Address::of(&self.bundle, self.here)
    }
}
