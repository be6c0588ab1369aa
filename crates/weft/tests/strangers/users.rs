//! Processes of other users.

use crate::support::raw;
use crate::support::{left_out, poll_until, returns_of, tell, turn, Address, Orders, Peer};
use crate::{expect_back, start, Client, ECHO};
use weft::am::Bundle;
use weft::{Certainty, EndpointId, Key, Name, Node, Reason, Uid};

const FOREIGNER: u32 = 65_533;

/// Turns into another user, then calls, is called, and knocks by hand.
pub fn foreigner(orders: Orders) {
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
