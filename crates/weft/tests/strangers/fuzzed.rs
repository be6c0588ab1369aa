//! Strangers that send messages similar to those of a set-up, in any order, with any descriptors.

use crate::support::raw::{self, DESCRIPTORS_MOST};
use crate::support::{long_turn, turn, Address, Dice};
use crate::{census, expect_back, start, Client};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weft::{Key, Name, Reason};
use weft_shm::{BellPage, Lanes, Shared};
use weft_wire::proof::{KeyProof, Side};
use weft_wire::setup::{Geometry, Hello, Message, Nonce, MESSAGE_BYTES};
use weft_wire::BundleId;

/// Number of connections kept open; a new one replaces the oldest. More than the server serves at a time.
const KEPT: usize = 300;

/// Messages between two requests of an honest client.
const ASK_EVERY: u64 = 2048;

/// One of the messages, right or nearly.
fn message(dice: &mut Dice, me: &Name, there: &Address) -> [u8; MESSAGE_BYTES] {
    let wrong = Address { key: Key(dice.roll()), ..*there };
    let ring = match dice.below(2) {
        0 => Lanes::new(16 << 10, 512 << 10).geometry(),
        _ => Geometry { hot_lines: dice.roll() as u32, arena_lines: dice.roll() as u32 },
    };
    let (bell, bundle) = (dice.below(3) as u32, BundleId(dice.below(3) as u32));
    let seen = Nonce(u128::from(dice.roll()) * u128::from(dice.below(2)));
    let proof = KeyProof(u128::from(dice.roll()));
    let message = match dice.below(12) {
        0..=2 => raw::hello(me, there),
        3 => {
            let (is_alone, nonce_at, draw) = (dice.below(2) == 0, dice.roll(), dice.roll());
            let hello = Hello { bundle, is_alone, nonce_at, draw, ..raw::unproved(me, &there.name) };
            Message::Hello(hello, hello.proof(there.key, Side::Caller))
        }
        4 => raw::hello(me, &wrong),
        5 => Message::Proof { seen },
        6..=7 => Message::Ready { ring, bell },
        8 => Message::Accept { ring, bell, bundle, is_trusted: dice.below(2) == 0, proof },
        9 => Message::Challenge { seen, nonce_at: dice.roll(), proof },
        10 => Message::Refuse { reason: Reason::NoRoom },
        _ => Message::Wake,
    };
    let mut bytes = message.to_bytes();
    // Half of them stay unchanged.
    for _ in 0..dice.below(8).saturating_sub(4) {
        bytes[dice.below(MESSAGE_BYTES as u64) as usize] = dice.roll() as u8;
    }
    bytes
}

/// Descriptors of all kinds, some of which a session is made of.
fn descriptors() -> Vec<OwnedFd> {
    let lanes = Lanes::new(16 << 10, 512 << 10);
    let (_, ring) = Shared::create("weft-ring", lanes.bytes()).expect("memfd");
    let ring = ring.as_fd().try_clone_to_owned().expect("dup");
    let page = BellPage::create().expect("page").fd().try_clone_to_owned().expect("dup");
    let null = File::open("/dev/null").expect("open");
    vec![ring, page, raw::waker(), null.into()]
}

/// Sends this many messages to the set-up socket of a server, while an honest client sends requests.
fn knock(messages: u64) {
    let (mut peer, before, there, me) = start();
    let mut client = Client::new(there);
    client.ask(1);
    let with_client = census(&mut peer);
    peer.ask("most");
    let mut dice = Dice::fresh("fuzzed set-up");
    let given = descriptors();
    let mut kept: VecDeque<OwnedFd> = VecDeque::new();
    let (mut said, mut asked_at) = (0, 0);
    while said < messages {
        let me = Name { epoch: weft_wire::Epoch(dice.roll()), ..me };
        let socket = raw::connect(&there.name).expect("connect");
        for _ in 0..=dice.below(4) {
            let bytes = message(&mut dice, &me, &there);
            let length = if dice.below(16) == 0 { dice.below(MESSAGE_BYTES as u64) as usize } else { MESSAGE_BYTES };
            let count = [0, 0, 0, 1, 2, 3, dice.below(8), dice.below(DESCRIPTORS_MOST as u64)][dice.below(8) as usize];
            let fds: Vec<BorrowedFd<'_>> =
                (0..count as usize).map(|_| given[dice.below(given.len() as u64) as usize].as_fd()).collect();
            said += 1;
            if raw::say_with(&socket, &bytes[..length], &fds).is_err() {
                break; // it has hung up
            }
        }
        if dice.below(2) == 0 {
            // The answers are never read.
            kept.push_back(socket);
            if kept.len() > KEPT {
                kept.pop_front();
            }
        }
        if said >= asked_at + ASK_EVERY {
            asked_at = said;
            client.ask(1);
        }
    }
    let most: usize = peer.ask("most").parse().expect("a number");
    eprintln!("{said} messages; {most} descriptors at most in a server that had {with_client:?}");
    // These include sessions of strangers whose messages were valid.
    assert!(most <= with_client.descriptors + 3 * KEPT, "{most} descriptors");
    drop(kept);
    client.ask(1);
    expect_back(&mut peer, with_client, "fuzzed messages");
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

#[test]
fn thirty_thousand_fuzzed_messages_leave_nothing() {
    let _turn = turn("fuzzed messages");
    knock(30_000);
}

#[test]
#[ignore = "takes minutes"]
fn ten_million_fuzzed_messages_leave_nothing() {
    let _turn = long_turn();
    let messages = std::env::var("WEFT_TEST_MESSAGES").map_or(10_000_000, |n| n.parse().expect("a number"));
    knock(messages);
}
