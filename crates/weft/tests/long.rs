//! Long messages between real processes, on one host and over UDP: placed before their handler runs, delivered once or returned once.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use support::{bundle_with_endpoint, over_udp, poll_until, returns_of, tell, turn, Address, Dice, Orders, Peer};
use weft::am::{Get, Long};
use weft::memory::Window;
use weft::{
    Admission, AnyThread, Bundle, Certainty, Contents, Endpoint, Event, Key, MessageKind, Node, Placed, Reason,
    Returned, SendError, Settings, SharedBundle, Transfer,
};

/// Reports the placed bytes: the answer's arguments are offset, length and the sum of the bytes.
const CHECK: u8 = 1;
/// Answers with a long message. The first argument is its offset, the second its length.
const FETCH: u8 = 2;
/// Never answers the request.
const KEEP: u8 = 3;
/// Answers with nothing.
const SHORT: u8 = 4;
/// As `FETCH`, from another thread.
const FETCH_AFAR: u8 = 5;
/// Nobody has this handler.
const MISSING: u8 = 6;
/// Handlers of the tests.
const CHECKED: u8 = 20;
const FETCHED: u8 = 21;

const SEGMENT: usize = 11 << 20;
const LENGTHS: [usize; 10] =
    [0, 1, 100, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 10 << 20];

#[test]
fn child() {
    support::play(&[("store", store), ("sleeper", sleeper)]);
}

/// Bytes of which each depends on where it is, and on a number.
fn pattern(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) >> 5 ^ at ^ number as usize) as u8).collect()
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7, |sum: u32, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

fn read(window: &Window, Placed { offset, len }: Placed) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    assert!(window.read(offset, &mut bytes), "{offset} and {len} bytes are in the segment");
    bytes
}

/// An endpoint with a segment.
fn serve(bundle: &mut Bundle, endpoint: Endpoint) -> Window {
    let window = Window::create(SEGMENT).expect("memory");
    bundle.set_segment(endpoint, Some(window.clone())).expect("an endpoint");
    let here = window.clone();
    bundle
        .on(endpoint, CHECK, move |m| {
            let placed = m.placed().expect("a long message");
            assert!(m.payload().is_empty());
            let sum = sum(&read(&here, placed));
            assert_eq!(m.reply(CHECKED, &[placed.offset as u32, placed.len as u32, sum], b""), Ok(()));
        })
        .expect("on");
    let contents = |args: &[u32]| (u64::from(args[0]), pattern(args[1], args[1] as usize));
    bundle
        .on(endpoint, FETCH, move |m| {
            let (offset, contents) = contents(m.args());
            m.reply_long(Long { handler: FETCHED, args: m.args(), offset }, contents).expect("a request");
        })
        .expect("on");
    bundle
        .on(endpoint, FETCH_AFAR, move |m| {
            let ((offset, contents), args) = (contents(m.args()), m.args().to_vec());
            let token = m.defer().expect("a request");
            std::thread::spawn(move || {
                let long = Long { handler: FETCHED, args: &args, offset };
                token.reply_long_from_afar(long, Arc::<[u8]>::from(contents)).expect("few arguments");
            });
        })
        .expect("on");
    let kept = RefCell::new(Vec::new());
    bundle.on(endpoint, KEEP, move |m| kept.borrow_mut().extend(m.defer())).expect("on");
    bundle.on(endpoint, SHORT, |m| assert!(m.placed().is_none() && m.reply(SHORT, &[], b"").is_ok())).expect("on");
    window
}

/// Serves one endpoint, and reports the contents of its segment on request: `sum`, `offset`, `length`.
fn store(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    let window = serve(&mut bundle, here);
    if let Some(word) = orders.words.first() {
        let home = Address::parse(word);
        bundle.map(here, 0, home.name, home.key).expect("map");
    }
    let returned = returns_of(&mut bundle, here);
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |bundle, order| match order {
        "close" => {
            bundle.set_segment(here, None).expect("an endpoint");
            tell("closed");
        }
        "returned" => {
            let returned = std::mem::take(&mut *returned.borrow_mut());
            let said: Vec<String> = returned.iter().map(|r| format!("{:?} {}", r.reason, sum(&r.payload))).collect();
            tell(said.join(", "));
        }
        "zero" => {
            assert!(window.write(0, &vec![0; SEGMENT]));
            tell("zero");
        }
        other => panic!("{other}"),
    });
}

/// As `store`, but sleeps whenever it can.
fn sleeper(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    serve(&mut bundle, here);
    bundle.set_spin_limit(Duration::ZERO);
    tell(Address::of(&bundle, here));
    let waker = bundle.waker();
    std::thread::spawn(move || {
        while orders.wait().is_some() {}
        waker.wake();
        std::process::exit(0);
    });
    bundle.serve();
}

/// The arguments of a long reply, and where it was placed.
type Fetched = (Vec<u32>, Placed);

/// A bundle whose endpoint records everything that comes.
struct Asker {
    bundle: Bundle,
    here: Endpoint,
    window: Window,
    checked: Rc<RefCell<Vec<Vec<u32>>>>,
    fetched: Rc<RefCell<Vec<Fetched>>>,
    shorts: Rc<Cell<u32>>,
    returns: Rc<RefCell<Vec<Returned>>>,
}

impl Asker {
    fn new() -> Asker {
        let (mut bundle, here) = bundle_with_endpoint();
        let window = Window::create(SEGMENT).expect("memory");
        bundle.set_segment(here, Some(window.clone())).expect("an endpoint");
        let (checked, fetched): (Rc<RefCell<Vec<_>>>, Rc<RefCell<Vec<_>>>) = Default::default();
        let shorts = Rc::new(Cell::new(0));
        let (seen_checked, seen_fetched, seen_shorts) = (checked.clone(), fetched.clone(), shorts.clone());
        bundle.on(here, CHECKED, move |m| seen_checked.borrow_mut().push(m.args().to_vec())).expect("on");
        bundle
            .on(here, FETCHED, move |m| {
                assert_eq!(m.kind(), MessageKind::Reply);
                seen_fetched.borrow_mut().push((m.args().to_vec(), m.placed().expect("a long message")));
            })
            .expect("on");
        bundle.on(here, SHORT, move |_| seen_shorts.set(seen_shorts.get() + 1)).expect("on");
        let returns = returns_of(&mut bundle, here);
        Asker { bundle, here, window, checked, fetched, shorts, returns }
    }

    fn map(&mut self, peer: &Peer) {
        let Address { name, key } = peer.address();
        self.bundle.map(self.here, 0, name, key).expect("map");
    }

    fn put(&mut self, handler: u8, args: &[u32], offset: u64, contents: impl Into<Contents>) {
        let sent = self.bundle.request_long(self.here, 0, Long { handler, args, offset }, contents);
        assert!(sent.is_ok(), "{:?}", sent.map_err(|(error, _)| error));
    }

    fn poll_until(&mut self, what: &str, mut done: impl FnMut(&Asker) -> bool) {
        let mut is_done = false;
        while !is_done {
            poll_until(&mut self.bundle, what, {
                let mut polls = 0;
                move |_| {
                    polls += 1;
                    polls > 1
                }
            });
            is_done = done(self);
        }
    }

    /// Puts, and expects the peer to have seen it.
    fn check(&mut self, args: &[u32], offset: u64, bytes: Vec<u8>) {
        let expected = [offset as u32, bytes.len() as u32, sum(&bytes)];
        self.put(CHECK, args, offset, bytes);
        self.poll_until("what was placed", |asker| !asker.checked.borrow().is_empty());
        assert_eq!(self.checked.borrow_mut().remove(0), expected);
    }

    /// Asks for a long reply, and expects it to be here.
    fn fetch(&mut self, handler: u8, offset: u32, len: usize) {
        assert!(self.window.write(0, &vec![0; SEGMENT]));
        self.bundle.request(self.here, 0, handler, &[offset, len as u32], b"").expect("mapped");
        self.poll_until("a long reply", |asker| !asker.fetched.borrow().is_empty());
        let (args, placed) = self.fetched.borrow_mut().remove(0);
        assert_eq!((&args[..], placed), (&[offset, len as u32][..], Placed { offset: offset.into(), len: len as u64 }));
        assert!(read(&self.window, placed) == pattern(len as u32, len), "{len} bytes");
    }

    fn get(&mut self, source: u64, len: usize, offset: u64, expected: &[u8]) {
        let get = Get { handler: FETCHED, args: &[1, 2, 3], source, len: len as u64, offset };
        self.bundle.get(self.here, 0, get).expect("mapped");
        self.poll_until("bytes of a segment", |asker| !asker.fetched.borrow().is_empty());
        let (args, placed) = self.fetched.borrow_mut().remove(0);
        assert_eq!((&args[..], placed), (&[1, 2, 3][..], Placed { offset, len: len as u64 }));
        assert!(read(&self.window, placed) == expected, "{len} bytes");
    }

    /// The one message that came back.
    fn back(&mut self) -> Returned {
        self.poll_until("what comes back", |asker| !asker.returns.borrow().is_empty());
        let back = self.returns.borrow_mut().remove(0);
        assert!(self.bundle.drain_within(Duration::from_secs(10)), "everything has ended");
        assert!(self.returns.borrow().is_empty() && self.checked.borrow().is_empty(), "once");
        back
    }
}

fn every_length_crosses(role: &str) {
    let mut asker = Asker::new();
    let peer = Peer::start(role, &[]);
    asker.map(&peer);
    for (round, len) in LENGTHS.into_iter().enumerate() {
        let args: Vec<u32> = (0..[0, 4, 16][round % 3]).collect();
        let offset = 1000 + round as u64;
        let contents = pattern(round as u32, len);
        asker.check(&args, offset, contents.clone());
        asker.fetch(FETCH, 500 + round as u32, len);
        asker.get(offset, len, 77, &contents);
    }
    asker.fetch(FETCH_AFAR, 9, 300_000);
    assert_eq!(asker.bundle.counters().returned, 0);
    peer.finish();
}

#[test]
fn every_length_crosses_both_ways_on_one_host() {
    let _turn = turn("every length on one host");
    every_length_crosses("store");
}

#[test]
fn every_length_crosses_to_a_peer_that_sleeps() {
    let _turn = turn("every length to a sleeper");
    every_length_crosses("sleeper");
}

#[test]
fn every_length_crosses_between_hosts() {
    let Some(_turn) = over_udp("every_length_crosses_between_hosts") else { return };
    every_length_crosses("store");
}

fn refusals_come_back() {
    let mut asker = Asker::new();
    let mut peer = Peer::start("store", &[]);
    asker.map(&peer);
    let size = SEGMENT as u64;
    let cases = [
        (CHECK, size, 1, Reason::BadOffset),
        (CHECK, u64::MAX - 5, 100_000, Reason::BadOffset),
        (CHECK, size - 70_000, 70_001, Reason::BadLength),
        (MISSING, 0, 10, Reason::NoHandler),
        (MISSING, 0, 1 << 20, Reason::NoHandler),
    ];
    for (handler, offset, len, reason) in cases {
        let contents = pattern(len as u32, len);
        asker.put(handler, &[1, 2], offset, contents.clone());
        let back = asker.back();
        assert_eq!((back.kind, back.op, &back.args[..]), (MessageKind::Request, handler, &[1, 2][..]));
        assert_eq!((back.reason, back.certainty), (reason, Certainty::NotDelivered));
        assert_eq!((back.long, back.destination), (Some(Transfer::Put { offset }), Some(0)));
        assert!(back.payload == contents, "whole");
    }
    for (source, len, offset, reason) in [
        (size, 1, 0, Reason::BadOffset),
        (0, size + 1, 0, Reason::BadLength),
        (0, 100_000, size - 1, Reason::BadLength),
    ] {
        let get = Get { handler: FETCHED, args: &[], source, len, offset };
        asker.bundle.get(asker.here, 0, get).expect("mapped");
        let back = asker.back();
        assert_eq!((back.reason, back.long), (reason, Some(Transfer::Get { source, len, offset })));
    }
    // A reply that cannot be placed here goes back to the replier.
    asker.bundle.request(asker.here, 0, FETCH, &[SEGMENT as u32 - 1, 200_000], b"").expect("mapped");
    asker.poll_until("a refused reply", |asker| asker.bundle.counters().replies_refused == 1);
    let event = std::iter::from_fn(|| asker.bundle.next_event())
        .find(|event| matches!(event, Event::ReplyRefused { reason: Reason::BadLength, .. }));
    assert!(event.is_some() && asker.fetched.borrow().is_empty());
    assert!(asker.bundle.drain_within(Duration::from_secs(10)));
    assert_eq!(peer.ask("returned"), format!("{:?} {}", Reason::BadLength, sum(&pattern(200_000, 200_000))));
    assert_eq!(peer.ask("close"), "closed");
    asker.put(CHECK, &[], 0, vec![1; 100_000]);
    assert_eq!(asker.back().reason, Reason::BadOffset);
    asker.check(&[], 5, Vec::new());
    peer.finish();
}

#[test]
fn what_cannot_be_placed_comes_back_whole() {
    let _turn = turn("refusals on one host");
    refusals_come_back();
}

#[test]
fn what_cannot_be_placed_comes_back_whole_from_another_host() {
    let Some(_turn) = over_udp("what_cannot_be_placed_comes_back_whole_from_another_host") else { return };
    refusals_come_back();
}

#[test]
fn nobody_there_and_a_wrong_key_give_the_contents_back() {
    let _turn = turn("nobody there");
    let mut asker = Asker::new();
    let mut peer = Peer::start("store", &[]);
    let Address { name, key } = peer.address();
    asker.bundle.map(asker.here, 0, name, Key(key.0 ^ 1)).expect("map");
    asker.put(CHECK, &[], 0, vec![7; 100_000]);
    let back = asker.back();
    assert_eq!(
        (back.reason, back.certainty, back.payload),
        (Reason::WrongKey, Certainty::NotDelivered, vec![7; 100_000])
    );
    peer.kill();
    asker.bundle.map(asker.here, 0, name, key).expect("map");
    asker.put(CHECK, &[], 3, vec![8; 100_000]);
    let back = asker.back();
    assert_eq!(
        (back.reason, back.certainty, back.payload),
        (Reason::NobodyThere, Certainty::NotDelivered, vec![8; 100_000])
    );
    assert_eq!(back.long, Some(Transfer::Put { offset: 3 }));
}

/// A peer is killed at some time while long messages go both ways: each ends once, and the contents that arrived are right.
#[test]
fn a_peer_that_is_killed_in_the_middle_leaves_each_message_one_end() {
    let _turn = turn("killed in the middle");
    let mut dice = Dice::fresh("killed in the middle");
    for _ in 0..6 {
        let mut asker = Asker::new();
        let mut peer = Peer::start("store", &[]);
        asker.map(&peer);
        asker.check(&[], 0, pattern(0, 100_000));
        for number in 0..4u32 {
            asker.put(CHECK, &[], u64::from(number) << 21, pattern(number, 2 << 20));
            asker.bundle.request(asker.here, 0, FETCH, &[number << 21, 2 << 20], b"").expect("mapped");
        }
        for _ in 0..dice.below(400) {
            asker.bundle.poll();
        }
        peer.kill();
        asker.poll_until("all ends", |asker| {
            let ended = asker.checked.borrow().len() + asker.fetched.borrow().len() + asker.returns.borrow().len();
            ended == 8
        });
        assert!(asker.bundle.drain_within(Duration::from_secs(10)));
        for back in asker.returns.borrow().iter().filter(|back| back.op == CHECK) {
            assert_eq!(back.reason, Reason::PeerLost);
            let Some(Transfer::Put { offset }) = back.long else { panic!("{back:?}") };
            assert!(back.payload == pattern((offset >> 21) as u32, 2 << 20), "whole");
        }
        for (_, placed) in asker.fetched.borrow().iter() {
            assert!(read(&asker.window, *placed) == pattern(2 << 20, 2 << 20));
        }
    }
}

#[test]
fn short_messages_do_not_wait_for_long_ones() {
    let _turn = turn("short ones among long ones");
    let mut asker = Asker::new();
    let peer = Peer::start("store", &[]);
    asker.map(&peer);
    asker.check(&[], 0, vec![1; 10]);
    for number in 0..4 {
        asker.put(CHECK, &[], 0, pattern(number, 10 << 20));
    }
    let mut shorts = 0;
    while asker.checked.borrow().is_empty() {
        asker.bundle.request(asker.here, 0, SHORT, &[], b"").expect("mapped");
        asker.poll_until("a short answer", |asker| asker.shorts.get() > shorts);
        shorts = asker.shorts.get();
    }
    // Each waits only for the ring's contents before it, which are a part of a long message.
    assert!(shorts > 2, "{shorts} were answered before the first of the long ones");
    asker.poll_until("the long ones", |asker| asker.checked.borrow().len() == 4);
    peer.finish();
}

/// Eight endpoints of one bundle and eight of a peer, with long requests, replies and gets under way at once.
#[test]
fn eight_endpoints_at_once_get_what_is_theirs() {
    let _turn = turn("eight endpoints");
    let (mut bundle, _) = bundle_with_endpoint();
    let peers: Vec<Peer> = (0..2).map(|_| Peer::start("store", &[])).collect();
    let addresses: Vec<Address> = peers.iter().map(Peer::address).collect();
    let ends = Rc::new(Cell::new(0));
    let mut all = Vec::new();
    for number in 0..8u32 {
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        let window = Window::create(SEGMENT).expect("memory");
        bundle.set_segment(here, Some(window.clone())).expect("an endpoint");
        let Address { name, key } = addresses[number as usize % 2];
        bundle.map(here, 0, name, key).expect("map");
        let (offset, len) = (number * 1_000_000, 700_000 + number);
        let expected = [offset, len, sum(&pattern(number, len as usize))];
        let seen = ends.clone();
        bundle
            .on(here, CHECKED, move |m| {
                assert_eq!(m.args(), expected);
                seen.set(seen.get() + 1);
            })
            .expect("on");
        let (seen, mine) = (ends.clone(), window.clone());
        bundle
            .on(here, FETCHED, move |m| {
                let placed = m.placed().expect("a long message");
                assert!(read(&mine, placed) == pattern(len, len as usize));
                seen.set(seen.get() + 1);
            })
            .expect("on");
        all.push((here, offset, len, number));
    }
    for round in 0..3 {
        for &(here, offset, len, number) in &all {
            let long = Long { handler: CHECK, args: &[], offset: offset.into() };
            let contents: Arc<[u8]> = pattern(number, len as usize).into();
            assert!(bundle.request_long(here, 0, long, contents).is_ok());
            bundle.request(here, 0, FETCH, &[round, len], b"").expect("mapped");
        }
    }
    poll_until(&mut bundle, "all of it", |_| ends.get() == 48);
    peers.into_iter().for_each(Peer::finish);
}

/// The whole address space as a segment, and lent memory: an offset is an address, and unmapped addresses are refused.
#[test]
fn a_whole_address_space_is_a_segment() {
    let _turn = turn("the whole address space");
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let (server, me) = (bundle.endpoint(Key(1)).expect("endpoint"), bundle.endpoint(Key(2)).expect("endpoint"));
    // SAFETY: the memory written below is accessed through its pointer alone.
    let Ok(whole) = (unsafe { Window::whole_address_space() }) else {
        println!("left out: the kernel does not allow it");
        return;
    };
    bundle.set_segment(server, Some(whole)).expect("an endpoint");
    let target = Window::create(200_000).expect("memory");
    let seen = Rc::new(Cell::new(None));
    let told = seen.clone();
    bundle.on(server, CHECK, move |m| told.set(m.placed())).expect("on");
    let name = bundle.name(server).expect("an endpoint");
    bundle.map(me, 0, name, Key(1)).expect("map");
    let offset = target.as_ptr().expose_provenance() as u64;
    let put = |bundle: &mut Bundle, offset, contents: Vec<u8>| {
        let long = Long { handler: CHECK, args: &[], offset };
        assert!(bundle.request_long(me, 0, long, contents).is_ok());
        bundle.drain();
    };
    put(&mut bundle, offset, pattern(5, 200_000));
    assert_eq!(seen.take(), Some(Placed { offset, len: 200_000 }));
    assert!(read(&target, Placed { offset: 0, len: 200_000 }) == pattern(5, 200_000));
    let returns = returns_of(&mut bundle, me);
    for offset in [0, 4096, u64::MAX - 1_000_000] {
        put(&mut bundle, offset, vec![1; 50_000]);
        let back = returns.borrow_mut().remove(0);
        assert_eq!((back.reason, back.payload.len(), seen.get()), (Reason::BadOffset, 50_000, None));
    }
}

#[test]
fn memory_that_was_taken_away_is_not_touched() {
    let _turn = turn("a segment that changes");
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let (server, me) = (bundle.endpoint(Key(1)).expect("endpoint"), bundle.endpoint(Key(2)).expect("endpoint"));
    let (first, second) = (Window::create(SEGMENT).expect("memory"), Window::create(SEGMENT).expect("memory"));
    bundle.set_segment(server, Some(first.clone())).expect("an endpoint");
    let seen = Rc::new(Cell::new(0));
    let told = seen.clone();
    bundle.on(server, CHECK, move |_| told.set(told.get() + 1)).expect("on");
    let name = bundle.name(server).expect("an endpoint");
    bundle.map(me, 0, name, Key(1)).expect("map");
    let all = Placed { offset: 0, len: SEGMENT as u64 };
    let contents = pattern(1, 10 << 20);
    assert!(bundle.request_long(me, 0, Long { handler: CHECK, args: &[], offset: 0 }, contents.clone()).is_ok());
    poll_until(&mut bundle, "the first bytes", |_| read(&first, Placed { offset: 0, len: 9 })[8] != 0);
    // Another segment in its place takes the rest. That the message is now split is the program's own choice.
    bundle.set_segment(server, Some(second.clone())).expect("an endpoint");
    let before = read(&first, all);
    bundle.drain();
    assert!(seen.get() == 1 && read(&first, all) == before);
    let rest = before.iter().rposition(|byte| *byte != 0).expect("some were placed") + 1;
    assert!(
        read(&second, all)[rest.next_multiple_of(16 << 10)..10 << 20] == contents[rest.next_multiple_of(16 << 10)..]
    );
    bundle.set_segment(server, None).expect("an endpoint");
    let returns = returns_of(&mut bundle, me);
    assert!(bundle.request_long(me, 0, Long { handler: CHECK, args: &[], offset: 0 }, contents.clone()).is_ok());
    bundle.drain();
    assert!(returns.borrow()[0].payload == contents && seen.get() == 1);
    // Memory of the program's own, lent for a while.
    let mut memory = vec![0u8; 100_000];
    // SAFETY: the vector is not touched until the segment is taken away.
    let lent = unsafe { Window::lend(memory.as_mut_ptr(), memory.len()) };
    bundle.set_segment(server, Some(lent)).expect("an endpoint");
    assert!(bundle.request_long(me, 0, Long { handler: CHECK, args: &[], offset: 0 }, pattern(9, 100_000)).is_ok());
    bundle.drain();
    bundle.set_segment(server, None).expect("an endpoint");
    assert!(memory == pattern(9, 100_000));
    // A caller without a key gets nowhere in a whole address space, unless it is a process of the same user on this host, as here.
    bundle.set_admission(server, Admission::Anybody).expect("an endpoint");
    bundle.free(server).expect("an endpoint");
    assert!(bundle.set_segment(server, None).is_err());
}

/// Several threads at a shared bundle, each with long requests of its own.
#[test]
fn threads_of_a_shared_bundle_send_long_messages() {
    let _turn = turn("a shared bundle");
    let node = Node::new().expect("node");
    let server = SharedBundle::new(&node).expect("bundle");
    let there = server.endpoint(Key(1)).expect("endpoint");
    let window = Window::create(SEGMENT).expect("memory");
    server.set_segment(there, Some(window.clone())).expect("an endpoint");
    let count = Arc::new(AtomicU32::new(0));
    let (here, seen) = (window.clone(), count.clone());
    server
        .on(there, CHECK, move |m| {
            let placed = m.placed().expect("a long message");
            assert_eq!(sum(&read(&here, placed)), m.args()[0]);
            seen.fetch_add(1, Ordering::SeqCst);
        })
        .expect("on");
    let name = server.name(there).expect("an endpoint");
    let client = SharedBundle::new(&node).expect("bundle");
    let me = client.endpoint(Key(2)).expect("endpoint");
    client.map(me, 0, name, Key(1)).expect("map");
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let client = client.clone();
            scope.spawn(move || {
                for round in 0..5 {
                    let contents = pattern(thread * 5 + round, 300_000);
                    let long = Long { handler: CHECK, args: &[sum(&contents)], offset: u64::from(thread) * 400_000 };
                    // The next one goes to the same place.
                    let sent = client.request_long(me, 0, long, contents);
                    assert!(sent.is_ok(), "{:?}", sent.map_err(|(error, _)| error));
                    assert_eq!(client.drain_within(support::BOUND), Ok(true));
                }
            });
        }
        assert!(server.poll_until(|_| count.load(Ordering::SeqCst) == 20).is_ok());
    });
    assert_eq!(count.load(Ordering::SeqCst), 20);
}

/// An endpoint moves to another bundle while long messages come: each is placed, and delivered once, here or there.
#[test]
fn an_endpoint_that_moves_takes_its_segment_along() {
    let _turn = turn("an endpoint that moves");
    let node = Node::new().expect("node");
    let mut old: Bundle<AnyThread> = Bundle::for_any_thread(&node, Settings::default()).expect("bundle");
    let mut new: Bundle<AnyThread> = Bundle::for_any_thread(&node, Settings::default()).expect("bundle");
    let endpoint = old.endpoint(Key(1)).expect("endpoint");
    let window = Window::create(SEGMENT).expect("memory");
    old.set_segment(endpoint, Some(window.clone())).expect("an endpoint");
    let count = Arc::new(AtomicU32::new(0));
    let (seen, here) = (count.clone(), window.clone());
    old.on(endpoint, CHECK, move |m| {
        let placed = m.placed().expect("a long message");
        assert_eq!(sum(&read(&here, placed)), m.args()[0]);
        seen.fetch_add(1, Ordering::SeqCst);
        m.reply_long(Long { handler: FETCHED, args: &[], offset: 0 }, pattern(4, 100_000)).expect("a request");
    })
    .expect("on");
    let mut asker = Asker::new();
    let name = old.name(endpoint).expect("an endpoint");
    asker.bundle.map(asker.here, 0, name, Key(1)).expect("map");
    let send = |asker: &mut Asker, number: u32, old: &mut Bundle<AnyThread>| {
        let contents = pattern(number, 500_000);
        let (args, mut kept) = ([sum(&contents)], Some(contents.into()));
        while let Some(contents) = kept.take() {
            let long = Long { handler: CHECK, args: &args, offset: u64::from(number) * 500_000 };
            match asker.bundle.try_request_long(asker.here, 0, long, contents) {
                Ok(()) => {}
                Err((SendError::Full, contents)) => kept = Some(contents),
                Err((error, _)) => panic!("{error}"),
            }
            asker.bundle.poll();
            old.poll();
        }
    };
    for number in 0..6 {
        send(&mut asker, number, &mut old);
    }
    let moving = old.release(endpoint).expect("an endpoint");
    for _ in 0..3 {
        asker.bundle.poll();
        old.poll();
    }
    new.adopt(moving).expect("of the same node");
    for number in 6..12 {
        send(&mut asker, number, &mut old);
    }
    let since = std::time::Instant::now();
    while asker.fetched.borrow().len() < 12 {
        assert!(since.elapsed() < support::BOUND, "{:?} {:?}", old.counters(), new.counters());
        asker.bundle.poll();
        old.poll();
        new.poll();
    }
    assert_eq!((count.load(Ordering::SeqCst), asker.returns.borrow().len()), (12, 0));
    assert!(old.counters().handed_on > 0 || new.counters().requests_delivered > 0);
    assert!(asker.fetched.borrow().iter().all(|(_, placed)| read(&asker.window, *placed) == pattern(4, 100_000)));
}
