//! Directories through the public calls: unmapped peers are found when they are sent to, and when they send.

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use support::BOUND;
use weft::tagged::{Completion, Directory, Label, Outcome, Pattern, PostError, Settings};
use weft::{Bundle, Endpoint, Key, Name, Node};

/// A directory that a test writes.
#[derive(Debug, Default)]
struct List(Mutex<HashMap<u32, (Name, Key)>>);

impl List {
    fn enter(&self, index: u32, peer: (Name, Key)) {
        self.0.lock().expect("whole").insert(index, peer);
    }
}

impl Directory for List {
    fn peer_at(&self, index: u32) -> Option<(Name, Key)> {
        self.0.lock().expect("whole").get(&index).copied()
    }

    fn index_of(&self, name: &Name) -> Option<u32> {
        self.0.lock().expect("whole").iter().find(|(_, (known, _))| known == name).map(|(index, _)| *index)
    }
}

struct Side {
    bundle: Bundle,
    here: Endpoint,
    list: Arc<List>,
}

impl Side {
    fn new() -> Side {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.tagged_endpoint(Key(5), Settings::default()).expect("endpoint");
        let list = Arc::new(List::default());
        bundle.tagged(here).expect("ours").set_directory(list.clone());
        Side { bundle, here, list }
    }

    fn peer(&self) -> (Name, Key) {
        (self.bundle.name(self.here).expect("ours"), Key(5))
    }

    fn send(&mut self, to: u32, tag: u64) -> Result<(), PostError> {
        let sent = self.bundle.tagged(self.here).expect("ours").try_send(to, tagged(tag), b"hello".to_vec(), tag);
        sent.map_err(|(error, _)| error)
    }

    fn receive(&mut self, source: Option<u32>, tag: u64) -> Result<(), PostError> {
        let pattern = Pattern { source, ..Pattern::tagged(tag) };
        let posted = self.bundle.tagged(self.here).expect("ours").try_receive(pattern, vec![0; 8], tag);
        posted.map_err(|(error, _)| error)
    }
}

fn tagged(tag: u64) -> Label {
    Label { tag: Some(tag), ..Label::default() }
}

/// The next completion of the first, while all poll.
fn next_of(sides: &mut [&mut Side]) -> Completion {
    let since = Instant::now();
    loop {
        if let Some(done) = sides[0].bundle.next_completion() {
            return done;
        }
        assert!(since.elapsed() < BOUND, "nothing completes");
        sides.iter_mut().for_each(|side| _ = side.bundle.poll());
    }
}

/// The source index of the first side's next message.
fn source_of(sides: &mut [&mut Side]) -> Option<u32> {
    match next_of(sides).outcome {
        Outcome::Received(received) => received.message.source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn peers_are_found_when_sent_to_and_when_they_send_first() {
    let (mut a, mut b, mut c) = (Side::new(), Side::new(), Side::new());
    a.list.enter(7, b.peer());
    b.list.enter(1_000_000, a.peer());
    // Nothing is mapped, and peeking does not map the peer.
    let pattern = Pattern { source: Some(7), ..Pattern::tagged(1) };
    assert!(a.bundle.tagged(a.here).expect("ours").peek(pattern).expect("it is in the directory").is_none());
    assert_eq!(a.send(8, 1), Err(PostError::NotMapped(8)));
    assert_eq!(a.receive(Some(8), 1), Err(PostError::NotMapped(8)));
    // By its index, and at the other end by its name.
    a.send(7, 1).expect("it is found");
    assert!(matches!(next_of(&mut [&mut a, &mut b]).outcome, Outcome::Sent));
    b.receive(None, 1).expect("posted");
    assert_eq!(source_of(&mut [&mut b, &mut a]), Some(1_000_000));
    // A receive from an index that has sent nothing yet, and the answer to it.
    a.receive(Some(7), 2).expect("posted");
    b.send(1_000_000, 2).expect("it is mapped");
    next_of(&mut [&mut b, &mut a]);
    assert_eq!(source_of(&mut [&mut a, &mut b]), Some(7));
    // A peer that sends before it is in the directory.
    c.list.enter(0, a.peer());
    c.send(0, 3).expect("it is found");
    next_of(&mut [&mut c, &mut a]);
    a.receive(None, 3).expect("posted");
    assert_eq!(source_of(&mut [&mut a, &mut c]), None);
    a.list.enter(9, c.peer());
    let (name, key) = c.peer();
    assert!(a.bundle.tagged(a.here).expect("ours").map_if_known(9, name, key));
    let nobody = Name { epoch: weft::Epoch(1), ..name };
    assert!(!a.bundle.tagged(a.here).expect("ours").map_if_known(10, nobody, key));
    c.send(0, 4).expect("it is mapped");
    next_of(&mut [&mut c, &mut a]);
    a.receive(Some(9), 4).expect("posted");
    assert_eq!(source_of(&mut [&mut a, &mut c]), Some(9));
}

#[test]
fn a_peer_with_two_indexes_is_found_by_either() {
    let (mut a, mut b) = (Side::new(), Side::new());
    b.list.enter(0, a.peer());
    b.send(0, 1).expect("it is found");
    next_of(&mut [&mut b, &mut a]);
    a.receive(None, 1).expect("posted");
    assert_eq!(source_of(&mut [&mut a, &mut b]), None);
    // The peer has sent before there is a directory.
    let list = Arc::new(List::default());
    list.enter(3, b.peer());
    a.bundle.tagged(a.here).expect("ours").set_directory(list.clone());
    b.send(0, 2).expect("it is mapped");
    next_of(&mut [&mut b, &mut a]);
    list.enter(4, b.peer());
    let at = |index| Pattern { source: Some(index), ..Pattern::tagged(2) };
    let since = Instant::now();
    while a.bundle.tagged(a.here).expect("ours").peek(at(3)).expect("mapped").is_none() {
        assert!(since.elapsed() < BOUND, "nothing has come");
        a.bundle.poll();
    }
    assert!(a.bundle.tagged(a.here).expect("ours").peek(at(4)).expect("in the directory").is_some());
    a.receive(Some(4), 2).expect("posted");
    assert!(matches!(source_of(&mut [&mut a, &mut b]), Some(3 | 4)));
    // Without one of the two it has the other.
    list.0.lock().expect("whole").remove(&3);
    a.bundle.tagged(a.here).expect("ours").unmap(3).expect("it was mapped");
    b.send(0, 5).expect("it is mapped");
    next_of(&mut [&mut b, &mut a]);
    a.receive(None, 5).expect("posted");
    assert_eq!(source_of(&mut [&mut a, &mut b]), Some(4));
}
