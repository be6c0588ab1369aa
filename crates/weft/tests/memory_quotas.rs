//! How much peers can make an owner of regions keep: answers that they do not read. And what readers reserve before they ask.

mod support;

use std::time::Instant;
use support::{turn, BOUND};
use weft::memory::{Outcome, Place, RegionKey, Rights, Settings, Window};
use weft::{Bundle, Endpoint, Key, Name, Node, Reason};

const PLACE: Place = Place { by: weft::memory::Credential::Key(7), at: 0 };

/// More than the answers that a window of requests has.
const LONG: usize = 600 << 10;

struct Owner {
    bundle: Bundle,
    here: Endpoint,
}

impl Owner {
    fn new(settings: Settings) -> Owner {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.memory_endpoint(Key(9), settings).expect("endpoint");
        // Lent, so that no peer maps it.
        let window = Window::leaked(vec![0; LONG].into());
        bundle.memory(here).expect("ours").open(window, RegionKey(7), Rights::ALL).expect("room");
        Owner { bundle, here }
    }

    fn name(&self) -> Name {
        self.bundle.name(self.here).expect("ours")
    }

    /// Polls until nothing more comes.
    fn serve(&mut self) {
        let mut vain = 0;
        while vain < 200 {
            vain = if self.bundle.poll() > 0 { 0 } else { vain + 1 };
        }
    }
}

/// A process with many endpoints that read.
struct Readers {
    bundle: Bundle,
    here: Vec<Endpoint>,
}

impl Readers {
    /// Makes `count` endpoints, each of which has read something.
    fn new(count: usize, owner: &mut Owner) -> Readers {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let mut here = Vec::new();
        for _ in 0..count {
            // Mapped regions would be read without a request.
            let settings = Settings { is_direct: false, ..Settings::default() };
            let endpoint = bundle.memory_endpoint(Key(8), settings).expect("endpoint");
            bundle.map(endpoint, 0, owner.name(), Key(9)).expect("map");
            here.push(endpoint);
        }
        // The first endpoint makes the session. If several did so at once, there could be several sessions.
        let others = here.split_off(1);
        let mut readers = Readers { bundle, here };
        readers.read(1, 8);
        readers.expect_all_done(owner, 1);
        readers.here.extend(others);
        readers.read(1, 8);
        readers.expect_all_done(owner, count);
        assert_eq!(readers.bundle.sessions(), 1);
        readers
    }

    /// Has each read so often.
    fn read(&mut self, times: usize, len: usize) {
        for &endpoint in &self.here {
            let mut memory = self.bundle.memory(endpoint).expect("ours");
            for _ in 0..times {
                memory.try_read(0, PLACE, vec![1; len], 0).expect("room");
            }
        }
    }

    fn ends(&mut self) -> Vec<Outcome> {
        let mut ends = Vec::new();
        for &endpoint in &self.here {
            let mut memory = self.bundle.memory(endpoint).expect("ours");
            ends.extend(std::iter::from_fn(|| memory.next_completion()).map(|end| end.outcome));
        }
        ends
    }

    /// Polls both until `count` reads have ended.
    fn finish(&mut self, owner: &mut Owner, count: usize) -> Vec<Outcome> {
        let since = Instant::now();
        let mut ends = Vec::new();
        while ends.len() < count {
            assert!(since.elapsed() < BOUND, "{} of {count} reads ended", ends.len());
            owner.bundle.poll();
            self.bundle.poll();
            ends.extend(self.ends());
        }
        ends
    }

    fn expect_all_done(&mut self, owner: &mut Owner, count: usize) {
        let ends = self.finish(owner, count);
        let others: Vec<&Outcome> = ends.iter().filter(|end| **end != Outcome::Done).collect();
        assert!(others.is_empty(), "{} of {count} reads failed: {:?}", others.len(), others[0]);
    }
}

/// Without the reservation, the owner would have to keep more than it keeps for a session, and would refuse reads.
#[test]
fn reads_of_many_endpoints_wait_here_rather_than_be_refused_there() {
    let _turn = turn("reads of many endpoints");
    const MANY: usize = 200;
    let mut owner = Owner::new(Settings::default());
    let mut readers = Readers::new(MANY, &mut owner);
    readers.read(1, LONG);
    readers.bundle.poll();
    let asked = owner.bundle.counters().requests_delivered;
    owner.serve();
    // Half of the 64 MiB, in pieces of 16 KiB. Besides, each endpoint may ask to map the region.
    let asked = owner.bundle.counters().requests_delivered - asked;
    assert!((1500..=2048 + MANY as u64).contains(&asked), "{asked} pieces were asked for");
    readers.expect_all_done(&mut owner, MANY);
}

#[test]
fn a_flood_of_small_reads_holds_nobody_up_and_all_are_done() {
    let _turn = turn("a flood of small reads");
    const FLOOD: usize = 100;
    let mut owner = Owner::new(Settings::default());
    let mut flood = Readers::new(100, &mut owner);
    let mut other = Readers::new(1, &mut owner);
    flood.read(FLOOD, 8);
    // The flooding process does not read its answers meanwhile.
    for _ in 0..100 {
        other.read(1, 8);
        other.expect_all_done(&mut owner, 1);
    }
    flood.expect_all_done(&mut owner, 100 * FLOOD);
}

#[test]
fn a_peer_that_leaves_answers_unread_is_refused_above_a_bound_and_others_are_served() {
    let _turn = turn("answers that are not read");
    let mut owner = Owner::new(Settings { unread_bytes_most: 4 << 20, ..Settings::default() });
    let mut lazy = Readers::new(30, &mut owner);
    let mut other = Readers::new(1, &mut owner);
    lazy.read(1, LONG);
    owner.serve();
    for _ in 0..10 {
        other.read(1, LONG);
        other.expect_all_done(&mut owner, 1);
    }
    let ends = lazy.finish(&mut owner, 30);
    let refused = ends.iter().filter(|end| matches!(end, Outcome::Failed { reason: Reason::QueueFull, .. })).count();
    let done = ends.iter().filter(|end| **end == Outcome::Done).count();
    assert!(refused > 0 && refused + done == 30, "{refused} refused, {done} done: {ends:?}");
    // It may read again once it takes its answers.
    for endpoint in lazy.here.clone() {
        lazy.bundle.memory(endpoint).expect("ours").try_read(0, PLACE, vec![0; LONG], 0).expect("room");
        lazy.expect_all_done(&mut owner, 1);
    }
}
