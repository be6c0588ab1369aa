//! Strangers at the set-up socket, and peers that turn hostile: nothing is kept of them, and others are served meanwhile.

#[path = "../support/mod.rs"]
mod support;

mod admission;
mod containers;
mod delays;
mod fuzzed;
mod hostile;
mod knocking;
mod long;
mod squatters;
mod users;

use std::cell::Cell;
use std::rc::Rc;
use support::client::{Client, ANSWER, ECHO};
use support::{raw, tell, wait_until, Address, Census, Orders, Peer};
use weft::{Admission, Bundle, Name, Node};

const SUM: u8 = 2;
const QUIET: u8 = 3;

#[test]
fn child() {
    support::play(&[
        ("server", server),
        ("visitor", admission::visitor),
        ("long_guest", long::long_guest),
        ("foreigner", users::foreigner),
        ("guest", users::guest),
        ("crowd", users::crowd),
        ("commuters", users::commuters),
        ("contained", containers::contained),
        ("glutton", users::glutton),
        ("vandal", users::vandal),
        ("forger", users::forger),
        ("hostile", hostile::hostile),
        ("forker", delays::forker),
        ("squatter", squatters::squatter),
    ]);
}

/// Serves one endpoint, for the users that a word says, by default its own. On `census` it reports what it holds, on `most` the
/// largest number of descriptors that it ever had.
fn server(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let admission = |word: &String| match word.as_str() {
        "open" => Some(Admission::AnyUser),
        "keyless" => Some(Admission::OwnUserWithoutKey),
        "anybody" => Some(Admission::Anybody),
        "nobody" => Some(Admission::Nobody),
        _ => None,
    };
    if let Some(admission) = orders.words.iter().find_map(admission) {
        bundle.set_admission(here, admission).expect("endpoint");
    }
    // A peer may send it as a one-way message, which has no reply.
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
        if turns % 4 == 0 {
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
        // Take the events, so that nothing waits for them.
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
    start_with(&[])
}

/// The same, with some words.
fn start_with(words: &[&str]) -> (Peer, Census, Address, Name) {
    let mut peer = Peer::start("server", words);
    let there = peer.address();
    let before = census(&mut peer);
    (peer, before, there, raw::nobody(&there.name))
}
