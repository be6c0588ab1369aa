//! Processes of other users.

use crate::hostile::{attack, ByHand};
use crate::support::{
    contents, left_out, poll_until, raw, returns_of, tell, turn, wait_until, Address, Census, Dice, Orders, Peer, BOUND,
};
use crate::{census, expect_back, start, start_with, Client, ANSWER, ECHO, QUIET};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::am::{Bundle, Waited};
use weft::{Admission, Certainty, Endpoint, EndpointId, Key, Name, Node, Reason, Uid};

const FOREIGNER: u32 = 65_533;

/// Makes this thread, and those that it starts, another user's. False if that is not allowed, which the test is told.
fn become_foreigner() -> bool {
    let uid = rustix::thread::Uid::from_raw(FOREIGNER);
    if let Err(why) = rustix::thread::set_thread_res_uid(uid, uid, uid) {
        tell(format!("left out: {why}"));
        return false;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("die with the parent");
    true
}

/// Hears from a child that was to become another user. `None`, and said, if it may not.
fn hear_foreigner(child: &Peer) -> Option<String> {
    Some(child.hear()).filter(|line| !is_left_out(line))
}

/// Turns into another user, then calls, is called, and knocks by hand.
pub fn foreigner(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
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
    let Some(answer) = hear_foreigner(&foreigner) else {
        // What can be asserted: a name that says another user is not believed (returns.rs), and the own user is served.
        Client::new(there).ask();
        return peer.finish();
    };
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

/// A bundle with an endpoint that admits all users, echoes, and counts the answers that are right.
fn open_bundle() -> (Bundle, Endpoint, Rc<Cell<u32>>) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.set_admission(here, Admission::AnyUser).expect("endpoint");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("a request")).expect("on");
    bundle
        .on(here, ANSWER, move |m| {
            let (args, payload) = contents(m.args()[0], 3, m.payload().len());
            assert!(m.args()[1..] == args && m.payload() == payload, "an answer has the contents of its request");
            seen.set(seen.get() + 1);
        })
        .expect("on");
    (bundle, here, answers)
}

const SIZES: [usize; 8] = [0, 16, 64, 65, 300, 4096, 20_000, 65_536];

/// Sends requests of all sizes and waits for the answers, asleep now and then.
fn exchange(bundle: &mut Bundle, here: Endpoint, answers: &Cell<u32>) {
    let before = answers.get();
    for round in 0..40 {
        let (mut args, payload) = contents(round, 3, SIZES[round as usize % SIZES.len()]);
        args.insert(0, round);
        bundle.request(here, 0, ECHO, &args, &payload).expect("mapped");
        if round % 10 == 9 {
            bundle.set_spin_limit(Duration::ZERO);
            while answers.get() < before + round + 1 {
                assert_ne!(bundle.wait(Some(BOUND)), Waited::Nothing, "an answer within {BOUND:?}");
            }
        }
    }
    assert_eq!((answers.get(), bundle.counters().returned), (before + 40, 0));
}

/// Another user's, who admits all users as well.
pub fn guest(orders: Orders) {
    let [there, closed] = [0, 1].map(|word| Address::parse(&orders.words[word]));
    if !become_foreigner() {
        return;
    }
    let (mut bundle, here, answers) = open_bundle();
    bundle.map(here, 0, there.name, there.key).expect("map");
    exchange(&mut bundle, here, &answers);
    // An endpoint of the same bundle that does not admit others, over the session there is and with the right key.
    let returns = returns_of(&mut bundle, here);
    bundle.map(here, 1, closed.name, closed.key).expect("map");
    bundle.request(here, 1, ECHO, &[1, 2], b"let me in").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    assert_eq!((back.reason, back.certainty), (Reason::ForeignUser, Certainty::NotDelivered));
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

#[test]
fn other_users_are_served_and_serve_where_endpoints_say_so() {
    let _turn = turn("a guest");
    let (mut bundle, here, answers) = open_bundle();
    let closed = bundle.endpoint_with_random_key().expect("endpoint");
    let before = Census::take();
    let words = [Address::of(&bundle, here), Address::of(&bundle, closed)].map(|address| address.to_string());
    let guest = Peer::start("guest", &[&words[0], &words[1]]);
    let line = guest.hear_polling(&mut bundle);
    if is_left_out(&line) {
        return;
    }
    let there = Address::parse(&line);
    // Now the other way, over the session that the guest made.
    bundle.map(here, 0, there.name, there.key).expect("map");
    exchange(&mut bundle, here, &answers);
    assert_eq!(bundle.sessions(), 1);
    // From an endpoint that admits only its own user no message goes there, and none comes back.
    let returns = returns_of(&mut bundle, closed);
    bundle.map(closed, 0, there.name, there.key).expect("map");
    bundle.request(closed, 0, ECHO, &[1], b"").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    assert_eq!(returns.borrow()[0].reason, Reason::ForeignUser);
    drop(guest);
    poll_until(&mut bundle, "all to be given back", |_| Census::take() == before);
}

/// Another user's, with more bundles than may have sessions.
pub fn crowd(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
    let node = Node::new().expect("node");
    let (mut served, mut refused) = (Vec::new(), 0);
    for _ in 0..SESSIONS_OF_A_USER + 8 {
        let mut bundle = Bundle::new(&node).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.set_admission(here, Admission::AnyUser).expect("endpoint");
        let returns = returns_of(&mut bundle, here);
        bundle.map(here, 0, there.name, there.key).expect("map");
        bundle.request(here, 0, QUIET, &[], b"").expect("mapped");
        poll_until(&mut bundle, "an end", |bundle| bundle.counters().ended > 0 || !returns.borrow().is_empty());
        let reason = returns.borrow().first().map(|back| back.reason);
        match reason {
            None => served.push(bundle),
            Some(reason) => {
                assert_eq!(reason, Reason::NoRoom);
                refused += 1;
            }
        }
    }
    tell(format!("{} {refused}", served.len()));
    assert_eq!(orders.wait().as_deref(), Some("knock"));
    // A thousand that do not know the key, and some that know it and say no more.
    let own = Name { uid: Uid(FOREIGNER), ..raw::nobody(&there.name) };
    for number in 0..1000u64 {
        let wrong = Address { key: Key(there.key.0 ^ 1 << (number % 64)), ..there };
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&own, &wrong).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::ForeignUser));
    }
    tell("refused");
    while orders.wait().is_some() {}
}

/// As [`weft`]'s bound.
const SESSIONS_OF_A_USER: usize = 16;

#[test]
fn one_user_takes_no_more_than_its_share_and_wrong_keys_leave_nothing() {
    let _turn = turn("a crowd");
    let (mut peer, before, there, _) = start_with(&["open"]);
    let mut client = Client::new(there);
    client.ask();
    let mut crowd = Peer::start("crowd", &[&there.to_string()]);
    let Some(numbers) = hear_foreigner(&crowd) else { return peer.finish() };
    assert_eq!(numbers, format!("{SESSIONS_OF_A_USER} 8"));
    let with_crowd = census(&mut peer);
    assert_eq!(crowd.ask("knock"), "refused");
    expect_back(&mut peer, with_crowd, "a thousand wrong keys");
    // The own user has its own share.
    Client::new(there).ask();
    client.ask();
    crowd.finish();
    drop(client);
    expect_back(&mut peer, before, "the crowd");
    peer.finish();
}

/// Another user's, who attacks in all ways, each until it is cut off.
pub fn vandal(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
    let mut dice = Dice::fresh("vandal");
    for word in &orders.words[1..] {
        let way = word.replace('_', " ");
        let me = Name { epoch: weft_wire::Epoch(dice.roll()), uid: Uid(FOREIGNER), ..there.name };
        // Whoever was cut off is not heard for a while.
        let mut session = None;
        wait_until("to be let in again", || {
            session = ByHand::try_make(&me, &there);
            session.is_some()
        });
        let mut session = session.expect("a session");
        session.open(&there);
        let (since, mut writes) = (Instant::now(), 0u64);
        while !session.is_cut_off() && since.elapsed() < Duration::from_secs(2) {
            for _ in 0..64 {
                attack(&way, &mut session, &mut dice);
            }
            writes += 64;
        }
        tell(format!("{word} {writes} {}", session.is_cut_off()));
    }
    tell("done");
    while orders.wait().is_some() {}
}

#[test]
fn whatever_another_user_does_ends_its_own_session_and_nobody_elses() {
    let _turn = turn("a vandal");
    let (mut peer, before, there, _) = start_with(&["open"]);
    let mut client = Client::new(there);
    client.ask();
    let with_client = census(&mut peer);
    let must_be_cut = ["noise", "headers", "cursor", "idle_bells", "wakes"];
    // Lengths lie where the server has looked already, perhaps.
    let may_be_cut = ["lengths", "compute", "bells", "changing", "holes"];
    let place = there.to_string();
    let words: Vec<&str> = [&place[..]].into_iter().chain(must_be_cut).chain(may_be_cut).collect();
    let vandal = Peer::start("vandal", &words);
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    let (mut said, mut took) = (Vec::new(), Vec::new());
    while said.last().map(String::as_str) != Some("done") {
        if let Some(line) = vandal.overhear() {
            if is_left_out(&line) {
                return peer.finish();
            }
            took.sort_unstable();
            let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or_default();
            eprintln!("vandal: {line}; an honest client meanwhile: median {:?}, p99 {:?}", at(0.5), at(0.99));
            took.clear();
            said.push(line);
        }
        took.push(client.ask());
        slowest = slowest.max(took.last().copied().unwrap_or_default());
        asked += 1;
    }
    eprintln!("an honest client asked {asked} times and waited {slowest:?} at most");
    for way in must_be_cut {
        assert!(
            said.iter().any(|line| line.starts_with(&format!("{way} ")) && line.ends_with("true")),
            "{way}: {said:?}"
        );
    }
    vandal.finish();
    client.ask();
    expect_back(&mut peer, with_client, "a vandal");
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

/// Whether a child says that it may not become another user, which the test's reader is told.
fn is_left_out(line: &str) -> bool {
    let why = line.strip_prefix("left out: ");
    if let Some(why) = why {
        left_out(&format!("another user's process, for this one may not become another user: {why}"));
    }
    why.is_some()
}
