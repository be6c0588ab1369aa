//! Strangers at the set-up socket, and peers that turn hostile: nothing of them is kept, and others are served meanwhile.

mod support;

use rustix::fs::{MemfdFlags, SealFlags};
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};
use support::raw::{self, Said, DESCRIPTORS_MOST};
use support::{left_out, poll_until, returns_of, tell, turn, wait_until, Address, Census, Dice, Orders, Peer};
use weft::am::Bundle;
use weft::{Certainty, Endpoint, EndpointId, Key, Name, Node, Reason, Uid};
use weft_shm::{BellPage, Consumer, Lanes, MapMem, Producer, Shared};
use weft_wire::path::Peek;
use weft_wire::setup::{Geometry, Message, Open, MESSAGE_BYTES};
use weft_wire::{Credit, Head, Kind};

const ECHO: u8 = 1;
const SUM: u8 = 2;
const QUIET: u8 = 3;
const ANSWER: u8 = 20;

#[test]
fn child() {
    support::play(&[("server", server), ("foreigner", foreigner), ("hostile", hostile)]);
}

/// Serves one endpoint; told `census`, says what it holds, and `most` the most descriptors that it ever saw.
fn server(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    // Whoever knows the key may send it as a one-way message, which has no reply.
    bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
    let sum = Rc::new(Cell::new(0u64));
    let seen = sum.clone();
    bundle
        .on(here, SUM, move |m| {
            let bytes: u64 = m.payload().iter().map(|&b| u64::from(b)).sum();
            seen.set(seen.get().wrapping_add(bytes));
            if let Some(token) = m.defer() {
                drop(token);
            }
        })
        .expect("on");
    bundle.on(here, QUIET, |_| {}).expect("on");
    let _ = orders.look(); // its thread and pipes belong to the baseline
    tell(Address::of(&bundle, here));
    let (mut turns, mut most) = (0u32, 0);
    poll_serving(&orders, &mut bundle, |bundle, order| {
        turns = turns.wrapping_add(1);
        if turns % 4096 == 0 {
            most = most.max(Census::take().descriptors);
        }
        match order {
            Some("census") => tell(Census::take()),
            Some("most") => tell(std::mem::take(&mut most)),
            Some("counters") => {
                let c = bundle.counters();
                tell(format!("{} {}", c.violations, bundle.sessions()));
            }
            Some(other) => panic!("order {other:?}"),
            None => {}
        }
        // Whoever is not read is not waited for.
        while bundle.next_event().is_some() {}
    });
}

fn poll_serving(orders: &Orders, bundle: &mut Bundle, mut each: impl FnMut(&mut Bundle, Option<&str>)) {
    bundle.poll_until(|bundle| match orders.look() {
        support::Order::None => {
            each(bundle, None);
            false
        }
        support::Order::Line(line) => {
            each(bundle, Some(&line));
            false
        }
        support::Order::End => true,
    });
}

/// An honest client.
struct Client {
    bundle: Bundle,
    here: Endpoint,
    answers: Rc<Cell<u32>>,
}

impl Client {
    fn new(there: Address) -> Client {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        let answers = Rc::new(Cell::new(0));
        let seen = answers.clone();
        bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
        Client { bundle, here, answers }
    }

    /// One request, answered within the bound. Says how long it took.
    fn ask(&mut self) -> Duration {
        let (since, before) = (Instant::now(), self.answers.get());
        self.bundle.request(self.here, 0, ECHO, &[1, 2, 3], b"honest").expect("mapped");
        let answers = &self.answers;
        poll_until(&mut self.bundle, "an answer among strangers", |_| answers.get() > before);
        assert_eq!(self.bundle.counters().returned, 0);
        since.elapsed()
    }
}

fn census(peer: &mut Peer) -> Census {
    Census::parse(&peer.ask("census"))
}

/// Waits until the server holds what it held before.
fn expect_back(peer: &mut Peer, before: Census, after: &str) {
    let mut now = before;
    wait_until(&format!("the server to hold no more than {before:?} after {after}"), || {
        now = census(peer);
        now == before
    });
}

/// A server, what it holds, its address, and a name for the stranger.
fn start() -> (Peer, Census, Address, Name) {
    let mut peer = Peer::start("server", &[]);
    let there = peer.address();
    let before = census(&mut peer);
    (peer, before, there, raw::nobody(&there.name))
}

#[test]
fn half_messages_garbage_and_other_versions_are_dropped() {
    let _turn = turn("garbage");
    let (mut peer, before, there, me) = start();
    let good = raw::hello(&me, &there).to_bytes();
    let mut dice = Dice::fresh("garbage");
    for length in 0..=300 {
        let random: Vec<u8> = (0..length).map(|_| dice.roll() as u8).collect();
        // The beginning of a right one, cut or drawn out, and nothing but noise.
        let mut likely = good.to_vec();
        likely.resize(length, 7);
        for bytes in [random, likely] {
            if bytes == good {
                continue;
            }
            let socket = raw::connect(&there.name).expect("connect");
            raw::say(&socket, &bytes);
            match raw::hear(&socket) {
                Said::End => {}
                said => assert_eq!(said.refusal(), Some(Reason::Violation), "{length} bytes"),
            }
            raw::expect_end(&socket, "garbage");
        }
    }
    for version in [0u16, 2, 9, u16::MAX] {
        let mut bytes = good;
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &bytes);
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::Version), "version {version}");
        raw::expect_end(&socket, "another version");
    }
    // Every message but a hello, and a hello with one bit wrong.
    for bit in 0..MESSAGE_BYTES * 8 {
        let mut bytes = good;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &bytes);
        match raw::hear(&socket) {
            // Bits that say who calls, or nothing.
            Said::Message(Message::Accept { .. }, _) => assert!(
                (8..48).contains(&(bit / 8))
                    || bit / 8 >= 96
                    || bit / 8 == 7
                    || (68..84).contains(&(bit / 8))
                    || (50..56).contains(&(bit / 8)),
                "bit {bit}"
            ),
            said => assert!(said.refusal().is_some(), "bit {bit}: {said:?}"),
        }
    }
    expect_back(&mut peer, before, "garbage");
    Client::new(there).ask();
    peer.finish();
}

#[test]
fn ten_thousand_wrong_keys_leave_nothing() {
    let _turn = turn("wrong keys");
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask();
    let with_client = census(&mut peer);
    for number in 0..10_000 {
        let wrong = Address { key: Key(there.key.0 ^ (1 << (number % 64))), ..there };
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &wrong).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::WrongKey));
        if number % 1000 == 0 {
            client.ask();
        }
    }
    expect_back(&mut peer, with_client, "wrong keys");
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

#[test]
fn a_hundred_thousand_descriptors_are_not_taken() {
    let _turn = turn("descriptors");
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask();
    let with_client = census(&mut peer);
    peer.ask("most");
    let file = File::open("/dev/null").expect("open");
    let many = [file.as_fd(); DESCRIPTORS_MOST];
    let wrong = raw::hello(&me, &Address { key: Key(there.key.0 ^ 1), ..there }).to_bytes();
    let (mut sent, mut refused) = (0, 0);
    while sent < 100_000 {
        let socket = raw::connect(&there.name).expect("connect");
        // With the first message, and behind it in the queue.
        for bytes in [&wrong[..], b"half", &wrong[..]] {
            match raw::say_with(&socket, bytes, &many) {
                Ok(()) => sent += many.len(),
                // The kernel's bound on descriptors under way, for who has no privilege; or the server has hung up.
                Err(_) => refused += 1,
            }
        }
        // It says no without looking at the rest; if what came first did not come, nothing is to be heard.
        while !matches!(raw::hear(&socket), Said::End) {}
        assert!(refused < 100_000, "{sent} descriptors sent, no more are taken");
    }
    client.ask();
    let most: usize = peer.ask("most").parse().expect("a number");
    assert!(most <= with_client.descriptors + 70, "{most} descriptors seen in a server that had {with_client:?}");
    // Those that know the key too: beside the hello, and beside the ready.
    for when in 0..2 {
        let socket = raw::connect(&there.name).expect("connect");
        let hello = raw::hello(&me, &there).to_bytes();
        raw::say_with(&socket, &hello, if when == 0 { &many } else { &[] }).expect("say");
        let Said::Message(Message::Accept { ring, .. }, fds) = raw::hear(&socket) else { panic!("no accept") };
        let _ = raw::say_with(&socket, &Message::Ready { ring, bell: 0 }.to_bytes(), &many);
        raw::expect_end(&socket, "a ready with too many descriptors");
        drop(fds);
    }
    expect_back(&mut peer, with_client, "descriptors");
    client.ask();
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

#[test]
fn a_thousand_that_never_speak_and_never_read_hinder_nobody() {
    let _turn = turn("silent strangers");
    let (mut peer, before, there, me) = start();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wide = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, wide);
    let may = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    let many = (may as usize).saturating_sub(100).min(1000);
    if many < 1000 {
        left_out(&format!("this user may open {may} files: {many} silent strangers instead of 1000"));
    }
    peer.ask("most");
    let mut strangers = Vec::new();
    let mut slowest = Duration::ZERO;
    for number in 0..many {
        let socket = raw::connect(&there.name).expect("connect");
        if number % 2 == 1 {
            // Speaks and never reads the answers.
            let wrong = Address { key: Key(there.key.0 ^ 1), ..there };
            for _ in 0..3 {
                raw::say(&socket, &raw::hello(&me, &wrong).to_bytes());
            }
        }
        strangers.push(socket);
        if number % 50 == 0 {
            // Each time a new one, which must get through set-up.
            let mut client = Client::new(there);
            slowest = slowest.max(client.ask());
        }
    }
    eprintln!("{many} silent strangers: the slowest new client waited {slowest:?}");
    let most: usize = peer.ask("most").parse().expect("a number");
    assert!(most <= before.descriptors + 64 + 16 + 10, "{most} descriptors seen in a server that had {before:?}");
    drop(strangers);
    expect_back(&mut peer, before, "silent strangers");
    peer.finish();
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("weft-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("truncate");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seal");
    fd
}

/// Memory of huge pages, of which the machine has none to give: a mapping of it dies at the first touch.
fn huge(bytes: u64) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd = rustix::fs::memfd_create("weft-test", flags).ok()?;
    rustix::fs::ftruncate(&fd, bytes).ok()?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).ok()?;
    Some(fd)
}

#[test]
fn bad_memory_and_lying_shapes_end_the_set_up_and_nothing_else() {
    let _turn = turn("bad memory");
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask();
    let with_client = census(&mut peer);
    let lanes = Lanes::new(16 << 10, 1 << 20);
    let (ring, size) = (lanes.geometry(), lanes.bytes() as u64);
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let good = || memfd(size, all);
    let page = || memfd(4096, all);
    let waker = raw::waker;
    let regular = || {
        let path = std::env::temp_dir().join(format!("weft-strangers-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        std::fs::remove_file(path).expect("remove");
        file.write_all(&vec![0; size as usize]).expect("write");
        OwnedFd::from(file)
    };
    let pipe = || rustix::pipe::pipe().expect("pipe").0;
    let read_only = || {
        let fd = good();
        use std::os::fd::AsRawFd;
        OwnedFd::from(File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("open"))
    };
    let shape = |hot_lines, arena_lines| Geometry { hot_lines, arena_lines };
    // 2 MiB in all, so that huge pages could hold it.
    let even = shape(252, (2 << 20) / 64 - 256);
    let mut cases: Vec<(&str, Geometry, u32, Vec<OwnedFd>)> = vec![
        ("unsealed memory", ring, 0, vec![memfd(size, SealFlags::empty()), page(), waker()]),
        ("memory sealed against growing only", ring, 0, vec![memfd(size, SealFlags::GROW), page(), waker()]),
        ("memory sealed against writing", ring, 0, vec![memfd(size, all | SealFlags::WRITE), page(), waker()]),
        ("memory open for reading only", ring, 0, vec![read_only(), page(), waker()]),
        ("a ring too small", ring, 0, vec![memfd(size - 4096, all), page(), waker()]),
        ("a ring too large", ring, 0, vec![memfd(size + 4096, all), page(), waker()]),
        ("an empty ring", ring, 0, vec![memfd(0, all), page(), waker()]),
        ("a pipe for a ring", ring, 0, vec![pipe(), page(), waker()]),
        ("a file for a ring", ring, 0, vec![regular(), page(), waker()]),
        ("unsealed bells", ring, 0, vec![good(), memfd(4096, SealFlags::empty()), waker()]),
        ("an empty bell page", ring, 0, vec![good(), memfd(0, all), waker()]),
        ("a pipe for bells", ring, 0, vec![good(), pipe(), waker()]),
        ("a bell outside the page", ring, 3968, vec![good(), page(), waker()]),
        ("a bell far outside", ring, u32::MAX, vec![good(), page(), waker()]),
        ("no descriptors", ring, 0, vec![]),
        ("one descriptor", ring, 0, vec![good()]),
        ("no waker", ring, 0, vec![good(), page()]),
        ("a waker that blocks", ring, 0, vec![good(), page(), pipe()]),
        ("no lines", shape(0, 0), 0, vec![good(), page(), waker()]),
        ("no arena", shape(ring.hot_lines, 0), 0, vec![good(), page(), waker()]),
        ("lines without end", shape(u32::MAX, u32::MAX), 0, vec![good(), page(), waker()]),
        ("a sum that overflows", shape(u32::MAX - 3, ring.arena_lines), 0, vec![good(), page(), waker()]),
        ("another hot lane", shape(ring.hot_lines + 64, ring.arena_lines), 0, vec![good(), page(), waker()]),
        ("an odd hot lane", shape(ring.hot_lines + 1, ring.arena_lines), 0, vec![good(), page(), waker()]),
        ("lanes exchanged", shape(ring.arena_lines, ring.hot_lines), 0, vec![good(), page(), waker()]),
    ];
    match huge(2 << 20) {
        Some(fd) => cases.push(("huge pages that are not there", even, 0, vec![fd, page(), waker()])),
        None => left_out("this kernel makes no memory of huge pages"),
    }
    let honest = Message::Accept { ring, bell: 0, bundle: weft_wire::BundleId(0), is_trusted: true };
    for (what, ring, bell, fds) in cases {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &there).to_bytes());
        let Said::Message(Message::Accept { .. }, theirs) = raw::hear(&socket) else { panic!("no accept") };
        let mut fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if theirs.len() == 2 {
            // Not of one trusted class: there are no wakers.
            if what.contains("waker") {
                continue;
            }
            fds.truncate(2);
        }
        raw::say_with(&socket, &Message::Ready { ring, bell }.to_bytes(), &fds).expect("say");
        raw::expect_end(&socket, what);
        client.ask();
        drop(theirs);
        expect_back(&mut peer, with_client, what);
    }
    for (what, answer) in [("another accept", honest.to_bytes()), ("zeros", [0; MESSAGE_BYTES])] {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &there).to_bytes());
        let Said::Message(Message::Accept { .. }, _theirs) = raw::hear(&socket) else { panic!("no accept") };
        raw::say(&socket, &answer);
        raw::expect_end(&socket, what);
    }
    expect_back(&mut peer, with_client, "bad memory");
    client.ask();
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

#[test]
fn those_that_are_never_ready_hinder_nobody() {
    let _turn = turn("never ready");
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask();
    let with_client = census(&mut peer);
    let mut held = Vec::new();
    for _ in 0..100 {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &there).to_bytes());
        let Said::Message(Message::Accept { .. }, fds) = raw::hear(&socket) else { panic!("no accept") };
        held.push((socket, fds));
        client.ask();
    }
    Client::new(there).ask();
    drop(held);
    expect_back(&mut peer, with_client, "a hundred that were never ready");
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

// ---- another user

const FOREIGNER: u32 = 65_533;

/// Turns into another user, then calls, is called, and knocks by hand.
fn foreigner(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let uid = rustix::thread::Uid::from_raw(FOREIGNER);
    // Of this thread only, which makes all the calls.
    if let Err(why) = rustix::thread::set_thread_res_uid(uid, uid, uid) {
        tell(format!("left out: {why}"));
        return;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("die with the parent");
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    assert_eq!(bundle.name(here).expect("name").uid, Uid(FOREIGNER));
    let returns = returns_of(&mut bundle, here);
    bundle.map(here, 0, there.name, there.key).expect("map");
    bundle.request(here, 0, ECHO, &[1], b"let me in").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    assert_eq!((back.reason, back.certainty), (Reason::ForeignUser, Certainty::NotDelivered));
    assert_eq!((back.args, back.payload), (vec![1], b"let me in".to_vec()));
    // It is not told whether the key was right, nor the endpoint.
    let own = bundle.name(here).expect("name");
    for address in [
        there,
        Address { key: Key(1), ..there },
        Address { name: Name { endpoint: EndpointId(9), ..there.name }, ..there },
    ] {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&own, &address).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::ForeignUser));
        raw::expect_end(&socket, "a foreigner's hello");
    }
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

#[test]
fn another_user_is_refused_and_refuses() {
    let _turn = turn("another user");
    let (mut peer, before, there, _) = start();
    let foreigner = Peer::start("foreigner", &[&there.to_string()]);
    let answer = foreigner.hear();
    if let Some(why) = answer.strip_prefix("left out: ") {
        left_out(&format!("another user's process, for this one may not become another user: {why}"));
        // What can be asserted: a name that says another user is not believed (returns.rs), and the own user is served.
        Client::new(there).ask();
        peer.finish();
        return;
    }
    let Address { name, key } = Address::parse(&answer);
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let returns = returns_of(&mut bundle, here);
    for (uid, reason) in [(name.uid, Reason::ForeignUser), (there.name.uid, Reason::WrongOwner)] {
        bundle.map(here, 0, Name { uid, ..name }, key).expect("map");
        bundle.send(here, 0, ECHO, &[7], b"from root").expect("mapped");
        poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
        let back = returns.borrow_mut().remove(0);
        assert_eq!((back.reason, back.certainty), (reason, Certainty::NotDelivered));
        assert_eq!(back.payload, b"from root");
    }
    foreigner.finish();
    expect_back(&mut peer, before, "a foreigner");
    peer.finish();
}

// ---- a peer that turns hostile

/// A session made by hand.
struct ByHand {
    socket: OwnedFd,
    /// Ours to write records into.
    producer: Producer<MapMem>,
    /// The same memory, to write anything into.
    ring: File,
    bytes: u64,
    bells: File,
    /// What the victim writes into, and its memory.
    consumer: Consumer<MapMem>,
    own: File,
}

impl ByHand {
    fn make(me: &Name, there: &Address) -> ByHand {
        let socket = raw::connect(&there.name).expect("connect");
        assert!(raw::say(&socket, &raw::hello(me, there).to_bytes()));
        let Said::Message(Message::Accept { ring, .. }, fds) = raw::hear(&socket) else { panic!("no accept") };
        let is_trusted = fds.len() == 3;
        let mut fds = fds.into_iter();
        let (ring_fd, bell_fd) = (fds.next().expect("a ring"), fds.next().expect("a bell page"));
        let lanes = Lanes::check(ring).expect("a shape");
        let file = File::from(ring_fd.try_clone().expect("dup"));
        let shared = Shared::open(ring_fd, lanes.bytes()).expect("map");
        let producer = Producer::new(MapMem::new(shared, lanes), lanes);
        let own_lanes = Lanes::new(16 << 10, 512 << 10);
        let (own, own_fd) = Shared::create("weft-ring", own_lanes.bytes()).expect("memfd");
        let consumer = Consumer::new(MapMem::new(own, own_lanes), own_lanes);
        let page = BellPage::create().expect("page");
        let ready = Message::Ready { ring: own_lanes.geometry(), bell: 0 }.to_bytes();
        let waker = raw::waker();
        raw::say_with(&socket, &ready, &raw::gifts(own_fd.as_fd(), page.fd(), &waker, is_trusted)).expect("say");
        let bytes = lanes.bytes() as u64;
        ByHand { socket, producer, ring: file, bytes, bells: File::from(bell_fd), consumer, own: File::from(own_fd) }
    }

    /// A flow that is right, so that what follows gets deeper.
    fn open(&mut self, there: &Address) {
        let open = Open { source: EndpointId(0), destination: there.name.endpoint, key: there.key, uid: weft::Uid(0) };
        self.producer.push(Head::new(Kind::Open), &open.to_args(), &[]).expect("room");
    }

    fn is_cut_off(&self) -> bool {
        raw::has_ended(&self.socket)
    }
}

/// Attacks in a way that the first word says, with so many writes.
fn hostile(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let (way, writes): (&str, u64) = (&orders.words[1], orders.words[2].parse().expect("a number"));
    let mut dice = Dice::fresh(&format!("hostile, {way}"));
    let (mut done, mut sessions, mut cut_off) = (0u64, 0u64, 0u64);
    while done < writes {
        let me = Name { epoch: weft_wire::Epoch(dice.roll()), ..there.name };
        let mut session = ByHand::make(&me, &there);
        sessions += 1;
        if sessions % 4 != 0 {
            session.open(&there);
        }
        for turn in 0..2000 {
            let burst = 1 + dice.below(64);
            for _ in 0..burst {
                attack(way, &mut session, &mut dice);
            }
            done += burst;
            if turn % 4 == 3 && session.is_cut_off() {
                cut_off += 1;
                break;
            }
            if done >= writes {
                break;
            }
        }
        if way == "deserter" {
            // Says that it is dead, and writes on.
            drop(std::mem::replace(&mut session.socket, raw::listen(me.epoch)));
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(100) {
                attack(way, &mut session, &mut dice);
            }
        }
    }
    tell(format!("{done} {sessions} {cut_off}"));
}

fn attack(way: &str, s: &mut ByHand, dice: &mut Dice) {
    match way {
        // Anything anywhere, most of it where the victim looks.
        "noise" => {
            let reach = if dice.below(4) == 0 { s.bytes } else { 4096 };
            let at = dice.below(reach - 8) & if dice.below(2) == 0 { !63 } else { !0 };
            s.ring.write_at(&dice.roll().to_le_bytes(), at).expect("write");
        }
        // Headers that are within their limits and lie about everything else.
        "headers" => {
            let kind = [Kind::Open, Kind::Send, Kind::Request, Kind::Reply, Kind::Ended, Kind::Return, Kind::Credit];
            let few =
                |dice: &mut Dice, end: u64| if dice.below(16) == 0 { dice.roll() } else { dice.below(end) } as u16;
            let head = Head {
                op: few(dice, 13) as u8,
                flow: few(dice, 2),
                slot: few(dice, 33) | [0, 0, 0xff00, 0xfe00][dice.below(4) as usize],
                credit: Credit { messages: few(dice, 2), lines: few(dice, 2) },
                ..Head::new(kind[dice.below(7) as usize])
            };
            let args: Vec<u32> = (0..dice.below(17)).map(|_| dice.below(5) as u32).collect();
            let payload = vec![1; dice.below(400) as usize];
            let _ = s.producer.push(head, &args, &payload);
        }
        // Lengths: raw header words at the line that comes first, in all shapes.
        "lengths" => {
            let word = dice.below(70_000) | (1 + dice.below(10)) << 32 | dice.below(18) << 48;
            let line = 4 + dice.below(12);
            s.ring.write_at(&dice.below(1 << 20).to_le_bytes(), line * 64 + 8).expect("write");
            s.ring.write_at(&word.to_le_bytes(), line * 64).expect("write");
        }
        // Requests that are right, and lies about how far the answers were read.
        "cursor" => {
            let slot = dice.below(32) as u16;
            let head = Head { op: ECHO, slot, ..Head::new(Kind::Request) };
            let _ = s.producer.push(head, &[1, 2], &[7; 300]);
            if dice.below(2) == 0 {
                if let Peek::Record(_) = s.consumer.peek() {
                    s.consumer.pop();
                }
            } else {
                let lie = [dice.below(300), dice.roll(), u64::MAX, 0][dice.below(4) as usize];
                s.own.write_at(&lie.to_le_bytes(), dice.below(20) * 8).expect("write");
            }
        }
        // All bells, all the time, with attention wanted at random.
        "bells" => {
            s.bells.write_at(&[1; 4096], 0).expect("write");
            s.own.write_at(&(dice.below(2) as u32).to_le_bytes(), 128).expect("write");
            let _ = s.producer.push(Head { op: SUM, ..Head::new(Kind::Send) }, &[], &[1; 30]);
        }
        // Messages that are right and change while they are read.
        "changing" => {
            let _ = s.producer.push(Head { op: SUM, ..Head::new(Kind::Send) }, &[], &vec![3; 20_000]);
            s.ring.write_at(&dice.roll().to_le_bytes(), dice.below(s.bytes - 8)).expect("write");
        }
        // Requests that end at once: no credit nor window stops them.
        "deserter" => {
            let _ = s.producer.push(Head { op: QUIET, ..Head::new(Kind::Request) }, &[], b"still here");
        }
        other => panic!("way {other:?}"),
    }
}

/// One hostile peer, attacking in one way, and an honest client that is served all along.
fn attacked(way: &str, writes: u64, must_cut: bool) {
    let _turn = turn(way);
    let (mut peer, before, there, _) = start();
    let mut client = Client::new(there);
    client.ask();
    let with_client = census(&mut peer);
    let hostile = Peer::start("hostile", &[&there.to_string(), way, &writes.to_string()]);
    let (since, mut asked, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
    let said = loop {
        slowest = slowest.max(client.ask());
        asked += 1;
        if let Some(line) = hostile.overhear() {
            break line;
        }
        assert!(since.elapsed() < Duration::from_secs(100), "the hostile peer takes too long");
    };
    let numbers: Vec<u64> = said.split(' ').map(|n| n.parse().expect("a number")).collect();
    let &[done, sessions, cut_off] = &numbers[..] else { panic!("three numbers") };
    let counters = peer.ask("counters");
    eprintln!(
        "{way}: {done} writes in {sessions} sessions, {cut_off} cut off, in {:?}; violations and sessions {counters}; \
         an honest client asked {asked} times and waited {slowest:?} at most",
        since.elapsed()
    );
    let violations: u64 = counters.split(' ').next().expect("two").parse().expect("a number");
    assert!(violations >= cut_off.min(1), "cut off, and counted");
    assert!(!must_cut || (violations > 0 && cut_off > 0), "such a peer is cut off");
    hostile.finish();
    client.ask();
    expect_back(&mut peer, with_client, way);
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

#[test]
fn a_peer_that_writes_noise_is_cut_off() {
    attacked("noise", 1_000_000, true);
}

#[test]
fn a_peer_whose_headers_lie_is_cut_off() {
    attacked("headers", 300_000, true);
}

#[test]
fn a_peer_whose_lengths_lie_is_cut_off() {
    attacked("lengths", 300_000, true);
}

#[test]
fn a_peer_that_lies_about_its_cursor_is_cut_off() {
    attacked("cursor", 300_000, true);
}

#[test]
fn a_peer_that_rings_all_bells_disturbs_nobody() {
    attacked("bells", 200_000, false);
}

#[test]
fn a_peer_that_changes_messages_under_the_reader_harms_nobody() {
    attacked("changing", 50_000, false);
}

#[test]
fn a_peer_that_plays_dead_and_writes_on_is_left() {
    attacked("deserter", 200_000, false);
}
