//! Strangers that knock: half messages, garbage, wrong keys, too many descriptors, silence.

use crate::support::raw::{self, Said, DESCRIPTORS_MOST};
use crate::support::{left_out, turn, Address, Dice};
use crate::{census, expect_back, start, Client};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use weft::{EndpointId, Key, Name, Reason};
use weft_shm::Lanes;
use weft_wire::proof::{KeyProof, Side};
use weft_wire::setup::{Geometry, Hello, Message, MESSAGE_BYTES};

#[test]
fn half_messages_garbage_and_other_versions_are_dropped() {
    let _turn = turn("garbage");
    let (mut peer, before, there, me) = start();
    let good = raw::hello(&me, &there).to_bytes();
    let mut dice = Dice::fresh("garbage");
    for length in 0..=300 {
        let random: Vec<u8> = (0..length).map(|_| dice.roll() as u8).collect();
        // A valid message, cut or extended, and pure noise.
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
    for version in [0u16, 1, 9, u16::MAX] {
        let mut bytes = good;
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &bytes);
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::Version), "version {version}");
        raw::expect_end(&socket, "another version");
    }
    // Every message except a hello, and a hello with one wrong bit.
    for bit in 0..MESSAGE_BYTES * 8 {
        let mut bytes = good;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &bytes);
        match raw::hear(&socket) {
            // Unused bits: the proof covers all others.
            Said::Message(Message::Accept { .. }, _) => assert!([7, 101, 102, 103].contains(&(bit / 8)), "bit {bit}"),
            said => assert!(said.refusal().is_some(), "bit {bit}: {said:?}"),
        }
    }
    expect_back(&mut peer, before, "garbage");
    Client::new(there).ask(1);
    peer.finish();
}

#[test]
fn ten_thousand_wrong_keys_leave_nothing() {
    let _turn = turn("wrong keys");
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask(1);
    let with_client = census(&mut peer);
    for number in 0..10_000 {
        let wrong = Address { key: Key(there.key.0 ^ (1 << (number % 64))), ..there };
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &wrong).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::WrongKey));
        if number % 1000 == 0 {
            client.ask(1);
        }
    }
    expect_back(&mut peer, with_client, "wrong keys");
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

#[test]
fn a_proof_for_another_call_is_a_wrong_key() {
    let _turn = turn("proofs for other calls");
    let (mut peer, before, there, me) = start();
    let hello = raw::unproved(&me, &there.name);
    let endpoint = EndpointId(there.name.endpoint.0 + 1);
    let own = hello.proof(there.key, Side::Caller);
    let proof = |hello: Hello| hello.proof(there.key, Side::Caller);
    for (what, proof) in [
        ("the answerer's", hello.proof(there.key, Side::Callee)),
        ("another endpoint's", proof(Hello { destination: Name { endpoint, ..there.name }, ..hello })),
        ("another process's", proof(Hello { destination: raw::nobody(&there.name), ..hello })),
        ("another caller's", proof(Hello { source: Name { endpoint, ..me }, ..hello })),
        ("another bundle's", proof(Hello { bundle: weft_wire::BundleId(78), ..hello })),
        ("an older one", proof(Hello { draw: hello.draw ^ 1, ..hello })),
        ("half of it", KeyProof(own.0 & u128::from(u64::MAX))),
        ("none", KeyProof(0)),
    ] {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &Message::Hello(hello, proof).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::WrongKey), "{what}");
        raw::expect_end(&socket, what);
    }
    let socket = raw::connect(&there.name).expect("connect");
    raw::say(&socket, &Message::Hello(hello, own).to_bytes());
    assert!(matches!(raw::hear(&socket), Said::Message(Message::Accept { .. }, _)), "the right one");
    drop(socket);
    expect_back(&mut peer, before, "proofs for other calls");
    peer.finish();
}

#[test]
fn a_hundred_thousand_descriptors_are_not_taken() {
    let _turn = turn("descriptors");
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask(1);
    let with_client = census(&mut peer);
    peer.ask("most");
    let file = File::open("/dev/null").expect("open");
    let many = [file.as_fd(); DESCRIPTORS_MOST];
    let wrong = raw::hello(&me, &Address { key: Key(there.key.0 ^ 1), ..there }).to_bytes();
    let (mut sent, mut refused) = (0, 0);
    // A kernel that lets a socket refuse descriptors (6.16) tells the sender.
    let first = raw::say_with(&raw::connect(&there.name).expect("connect"), &wrong, &many[..1]);
    let are_refused = first == Err(rustix::io::Errno::PERM);
    while are_refused && refused < 1000 {
        let socket = raw::connect(&there.name).expect("connect");
        assert_eq!(raw::say_with(&socket, &wrong, &many), Err(rustix::io::Errno::PERM));
        refused += 1;
    }
    while !are_refused && sent < 100_000 {
        let socket = raw::connect(&there.name).expect("connect");
        // With the first message, and with later ones in the queue.
        for bytes in [&wrong[..], b"half", &wrong[..]] {
            match raw::say_with(&socket, bytes, &many) {
                Ok(()) => sent += many.len(),
                // The kernel's bound on descriptors under way for unprivileged users; or the server has hung up.
                Err(_) => refused += 1,
            }
        }
        // The server refuses without reading the rest. If the first message did not arrive, there is no answer.
        while !matches!(raw::hear(&socket), Said::End) {}
        assert!(refused < 100_000, "{sent} descriptors sent, no more are taken");
    }
    client.ask(1);
    let most: usize = peer.ask("most").parse().expect("a number");
    assert!(most <= with_client.descriptors + 70, "{most} descriptors seen in a server that had {with_client:?}");
    // The same from a caller that knows the key: with the hello, and with the ready.
    let hello = raw::hello(&me, &there).to_bytes();
    let socket = raw::connect(&there.name).expect("connect");
    match raw::say_with(&socket, &hello, &many) {
        Ok(()) => raw::expect_end(&socket, "a hello with descriptors"),
        Err(error) => assert!(are_refused, "{error}"),
    }
    drop(socket);
    let socket = raw::connect(&there.name).expect("connect");
    raw::say(&socket, &hello);
    let Said::Message(Message::Accept { ring, .. }, fds) = raw::hear(&socket) else { panic!("no accept") };
    let _ = raw::say_with(&socket, &Message::Ready { ring, bell: 0 }.to_bytes(), &many);
    raw::expect_end(&socket, "a ready with too many descriptors");
    drop((socket, fds));
    expect_back(&mut peer, with_client, "descriptors");
    client.ask(1);
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
            // Sends messages and never reads the answers.
            let wrong = Address { key: Key(there.key.0 ^ 1), ..there };
            for _ in 0..3 {
                raw::say(&socket, &raw::hello(&me, &wrong).to_bytes());
            }
        }
        strangers.push(socket);
        if number % 50 == 0 {
            // Each time a new client, which must get through set-up.
            let mut client = Client::new(there);
            slowest = slowest.max(client.ask(1));
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

/// Memory of huge pages, which the machine cannot supply: the first access to a mapping of it is fatal.
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
    client.ask(1);
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
    let bundle = weft_wire::BundleId(0);
    let honest = Message::Accept { ring, bell: 0, bundle, is_trusted: true, proof: KeyProof(0) };
    for (what, ring, bell, fds) in cases {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &there).to_bytes());
        let Said::Message(Message::Accept { .. }, theirs) = raw::hear(&socket) else { panic!("no accept") };
        let mut fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if theirs.len() == 2 {
            // The two are not of one trusted class, so there are no wakers.
            if what.contains("waker") {
                continue;
            }
            fds.truncate(2);
        }
        raw::say_with(&socket, &Message::Ready { ring, bell }.to_bytes(), &fds).expect("say");
        raw::expect_end(&socket, what);
        client.ask(1);
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
    client.ask(1);
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

/// While the program computes, four callers are answered. The others wait for places, as the program's own calls do.
#[test]
fn a_call_of_ones_own_finds_a_place_though_many_callers_wait() {
    let _turn = turn("callers that wait");
    let (peer, _, there, me) = start();
    let mut client = Client::new(there);
    let here = Address::of(&client.bundle, client.here);
    let waiting: Vec<OwnedFd> = (0..240)
        .map(|_| {
            let socket = raw::connect(&here.name).expect("connect");
            raw::say(&socket, &raw::hello(&me, &here).to_bytes());
            let Said::Message(challenge @ Message::Challenge { .. }, _) = raw::hear_all(&socket) else {
                panic!("no challenge")
            };
            raw::prove(&socket, &challenge);
            socket
        })
        .collect();
    client.ask(1);
    assert_eq!(client.bundle.counters().returned, 0);
    drop(waiting);
    peer.finish();
}

#[test]
fn those_that_are_never_ready_hinder_nobody() {
    let _turn = turn("never ready");
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask(1);
    let with_client = census(&mut peer);
    let mut held = Vec::new();
    for _ in 0..100 {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &there).to_bytes());
        let Said::Message(Message::Accept { .. }, fds) = raw::hear(&socket) else { panic!("no accept") };
        held.push((socket, fds));
        client.ask(1);
    }
    Client::new(there).ask(1);
    drop(held);
    expect_back(&mut peer, with_client, "a hundred that were never ready");
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}
