//! Callers without the key, at endpoints that admit them and at others.

use crate::support::raw::{self, Said};
use crate::support::{over_udp, poll_until, returns_of, tell, turn, Address, Orders, Peer};
use crate::users::{become_foreigner, hear_foreigner};
use crate::{expect_back, start, start_with, Client, ANSWER, ECHO};
use std::cell::Cell;
use std::rc::Rc;
use weft::{Admission, Bundle, Key, Name, Node, Reason};
use weft_core::admission::BURST;
use weft_wire::setup::Message;

/// A key that is not the server's.
const OTHER: Key = Key(0x0bad_0bad);

/// Calls a server once. `None` if the request is answered, else why it came back.
fn ask(there: &Address, key: Key, is_unproven: bool) -> Option<Reason> {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.set_admission(here, Admission::AnyUser).expect("endpoint");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    let returns = returns_of(&mut bundle, here);
    match is_unproven {
        true => bundle.map_unproven(here, 0, there.name, key).expect("map"),
        false => bundle.map(here, 0, there.name, key).expect("map"),
    }
    bundle.request(here, 0, ECHO, &[1], b"hello").expect("mapped");
    poll_until(&mut bundle, "an answer or a return", |_| answers.get() > 0 || !returns.borrow().is_empty());
    let reason = returns.borrow().first().map(|returned| returned.reason);
    reason
}

#[test]
fn processes_of_our_user_need_no_key_where_an_endpoint_says_so() {
    let _turn = turn("callers without the key");
    let wrong = Some(Reason::WrongKey);
    for (word, with_key, without) in [
        ("own", None, wrong),
        ("open", None, wrong),
        ("keyless", None, None),
        ("anybody", None, None),
        ("nobody", Some(Reason::Closed), Some(Reason::Closed)),
    ] {
        let (mut peer, before, there, _) = start_with(&[word]);
        for (key, expected) in [(there.key, with_key), (Key::NONE, without)] {
            for is_unproven in [false, true] {
                assert_eq!(ask(&there, key, is_unproven), expected, "{word}, {}, unproven: {is_unproven}", key.0);
            }
        }
        // The endpoint cannot prove that it knows another key, so the caller rejects it unless the proof is waived.
        let insisting = if without.is_none() { Some(Reason::WrongOwner) } else { without };
        assert_eq!([false, true].map(|is_unproven| ask(&there, OTHER, is_unproven)), [insisting, without], "{word}");
        expect_back(&mut peer, before, word);
        peer.finish();
    }
}

#[test]
fn processes_of_other_hosts_need_no_key_where_everybody_is_admitted() {
    let Some(_turn) = over_udp("admission::processes_of_other_hosts_need_no_key_where_everybody_is_admitted") else {
        return;
    };
    for (word, expected) in [
        ("own", Some(Reason::WrongKey)),
        ("keyless", Some(Reason::WrongKey)),
        ("anybody", None),
        ("nobody", Some(Reason::Closed)),
    ] {
        let (peer, _, there, _) = start_with(&[word]);
        assert_eq!([Key::NONE, OTHER].map(|key| ask(&there, key, false)), [expected; 2], "{word}");
        peer.finish();
    }
}

/// A process of another user, which calls without a key, and with the right one.
pub fn visitor(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
    let [without, with_key] = [Key::NONE, there.key].map(|key| ask(&there, key, false));
    tell(format!("{without:?} {with_key:?}"));
    let _ = orders.wait();
}

#[test]
fn processes_of_other_users_need_no_key_where_everybody_is_admitted() {
    let _turn = turn("visitors without the key");
    let foreign = "Some(another user: ";
    for (word, without, with_key) in [
        ("own", foreign, foreign),
        ("open", foreign, "None"),
        ("keyless", foreign, foreign),
        ("anybody", "None", "None"),
        ("nobody", foreign, foreign),
    ] {
        let (mut peer, before, there, _) = start_with(&[word]);
        let visitor = Peer::start("visitor", &[&there.to_string()]);
        if let Some(told) = hear_foreigner(&visitor) {
            assert!(told.starts_with(without), "{word}: {told}");
            let is_as_said = told.ends_with(with_key) || (with_key == foreign && told.matches(foreign).count() == 2);
            assert!(is_as_said, "{word}: {told}");
            visitor.finish();
        }
        expect_back(&mut peer, before, word);
        peer.finish();
    }
}

#[test]
fn sessions_without_a_key_come_in_a_burst_and_leave_callers_with_the_key_alone() {
    let _turn = turn("many callers without the key");
    let (mut peer, before, there, me) = start_with(&["anybody"]);
    let guest = Address { key: Key::NONE, ..there };
    let (mut sockets, mut refused) = (Vec::new(), 0);
    for number in 0.. {
        // Each caller has its own epoch.
        let me = Name { epoch: weft_wire::Epoch(me.epoch.0 ^ (number + 1)), ..me };
        let _life = raw::listen(me.epoch);
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &guest).to_bytes());
        match raw::hear(&socket) {
            Said::Message(Message::Accept { .. }, _) => sockets.push(socket),
            // Four places are set aside at a time, and the server refills them.
            said => {
                assert_eq!(said.refusal(), Some(Reason::NoRoom), "{said:?}");
                refused += 1;
            }
        }
        if refused == 20 {
            break;
        }
        assert!(number < 10 * u64::from(BURST), "no end of sessions without a key");
        Client::new(there).ask(1);
    }
    assert!(sockets.len() >= BURST as usize, "only {} sessions came about", sockets.len());
    drop(sockets);
    expect_back(&mut peer, before, "callers without the key");
    peer.finish();
}

#[test]
fn nothing_is_kept_of_a_caller_that_is_not_admitted() {
    let _turn = turn("callers without the key that are not admitted");
    let (mut peer, before, there, me) = start();
    for _ in 0..2000 {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&me, &Address { key: Key::NONE, ..there }).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::WrongKey));
    }
    expect_back(&mut peer, before, "callers without the key");
    peer.finish();
}

#[test]
fn a_caller_without_the_key_cannot_say_that_it_is_another_process() {
    let _turn = turn("a caller that says that it is another process");
    let (victim, _, victims, nobody) = start();
    let (mut peer, before, there, _) = start_with(&["keyless"]);
    let own = Name { epoch: weft_wire::Epoch(!nobody.epoch.0), ..nobody };
    let _life = raw::listen(own.epoch);
    let guest = Address { key: Key::NONE, ..there };
    let call = |me: &Name| {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(me, &guest).to_bytes());
        raw::hear(&socket)
    };
    for (me, who) in [(victims.name, "another process"), (there.name, "its callee"), (nobody, "nobody")] {
        assert_eq!(call(&me).refusal(), Some(Reason::WrongKey), "{who}");
    }
    let said = call(&own);
    assert!(matches!(said, Said::Message(Message::Accept { .. }, _)), "itself: {said:?}");
    drop(said);
    expect_back(&mut peer, before, "callers that say that they are others");
    victim.finish();
    peer.finish();
}

#[test]
fn callers_without_the_key_leave_places_for_others_while_the_program_computes() {
    let _turn = turn("callers without the key while the program computes");
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.set_admission(here, Admission::OwnUserWithoutKey).expect("endpoint");
    let there = Address::of(&bundle, here);
    bundle.poll();
    // From here on only the helper answers.
    let lives: Vec<_> =
        (1..=8).map(|n| Name { epoch: weft_wire::Epoch(there.name.epoch.0 ^ n), ..there.name }).collect();
    let _listeners: Vec<_> = lives.iter().map(|me| raw::listen(me.epoch)).collect();
    let call = |me: &Name, key: Key| {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(me, &Address { key, ..there }).to_bytes());
        let Said::Message(challenge, _) = raw::hear_all(&socket) else { panic!("no challenge") };
        raw::prove(&socket, &challenge);
        socket
    };
    let guests: Vec<_> = lives.iter().map(|me| call(me, Key::NONE)).collect();
    let said = raw::hear(&call(&raw::nobody(&there.name), there.key));
    assert!(matches!(said, Said::Message(Message::Accept { .. }, _)), "with the key: {said:?}");
    poll_until(&mut bundle, "all to be answered", |_| guests.iter().all(raw::is_called));
}
