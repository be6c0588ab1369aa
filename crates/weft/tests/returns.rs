//! Messages that cannot be delivered come back: with their contents, the right reason, and the certainty that they were not
//! delivered.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use support::{contents, events, insist, poll_until, raw, returns_of, tell, turn, Address, Orders, Peer};
use weft::{
    Bundle, Certainty, Endpoint, EndpointId, Event, HostAddress, Key, MessageKind, Name, NameError, Node, Outgoing,
    Reason, Returned, Uid,
};
use weft_wire::setup::Message;
use weft_wire::Epoch;

const ECHO: u8 = 1;
const NOT_THERE: u8 = 77;
const ANSWER: u8 = 20;

#[test]
fn child() {
    support::play(&[("server", server), ("forger", forger)]);
}

/// Answers at one endpoint. Changes its key, or frees it, when told to.
fn server(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |bundle, line| match line {
        "free" => {
            bundle.free(here).expect("not freed before");
            assert!(bundle.free(here).is_err() && bundle.name(here).is_err(), "freed once");
            tell("freed");
        }
        key => {
            bundle.set_key(here, Key(key.parse().expect("a key"))).expect("endpoint");
            tell(Address::of(bundle, here));
        }
    });
}

/// A bundle with one endpoint that expects returns.
struct Sender {
    bundle: Bundle,
    here: Endpoint,
    returns: Rc<RefCell<Vec<Returned>>>,
    answers: Rc<Cell<u32>>,
}

impl Sender {
    fn new() -> Sender {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        let returns = returns_of(&mut bundle, here);
        let answers = Rc::new(Cell::new(0));
        let seen = answers.clone();
        bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
        Sender { bundle, here, returns, answers }
    }

    /// Everything sent to this address comes back whole for this reason, whatever its kind and size.
    fn expect(&mut self, name: Name, key: Key, op: u8, reason: Reason) {
        let Sender { bundle, here, returns, .. } = self;
        bundle.map(*here, 0, name, key).expect("map");
        for (round, bytes) in [0, 5, 300, 65_536].into_iter().enumerate() {
            for (kind, completion) in [
                (MessageKind::Request, None),
                (MessageKind::OneWay, None),
                (MessageKind::OneWay, Some(7 + round as u64)),
            ] {
                let (args, payload) = contents(bytes as u32, round * 5, bytes);
                insist(bundle, *here, 0, kind, Outgoing { op, args: &args, payload: &payload, completion });
                poll_until(bundle, &format!("a return because of {reason:?}"), |_| !returns.borrow().is_empty());
                let back = returns.borrow_mut().remove(0);
                let certainty = Certainty::NotDelivered;
                let destination = Some(0);
                let expected = Returned {
                    endpoint: *here,
                    destination,
                    kind,
                    op,
                    args,
                    payload,
                    reason,
                    certainty,
                    completion,
                    long: None,
                };
                assert!(back == expected, "{bytes} bytes, {kind:?}: {:?} because of {}", back.certainty, back.reason);
                assert!(returns.borrow().is_empty(), "once");
            }
        }
        let completed = |e: &Event| matches!(e, Event::Completed(_));
        assert!(!events(bundle).iter().any(completed), "a message that comes back is not completed as well");
        bundle.drain();
        let text = reason.to_string();
        assert!(
            text.contains(": "),
            "{reason:?} names the cause, and after a colon more about it or the way out: {text}"
        );
    }

    /// Requests to this address are answered.
    fn expect_answer(&mut self, address: Address) {
        let Sender { bundle, here, returns, answers } = self;
        bundle.map(*here, 0, address.name, address.key).expect("map");
        answers.set(0);
        bundle.request(*here, 0, ECHO, &[1, 2], b"three").expect("mapped");
        poll_until(bundle, "an answer", |_| answers.get() == 1 || !returns.borrow().is_empty());
        assert!(returns.borrow().is_empty(), "{:?}", returns.borrow());
    }
}

#[test]
fn the_first_message_comes_back_when_set_up_is_refused() {
    let _turn = turn("refused set-up");
    let peer = Peer::start("server", &[]);
    let Address { name, key } = peer.address();
    let mut sender = Sender::new();
    sender.expect(name, Key(key.0 ^ 1), ECHO, Reason::WrongKey);
    sender.expect(Name { endpoint: EndpointId(5), ..name }, key, ECHO, Reason::NoSuchEndpoint);
    sender.expect(Name { epoch: Epoch(name.epoch.0 ^ 1), ..name }, key, ECHO, Reason::NobodyThere);
    sender.expect(Name { uid: Uid(name.uid.0 + 1), ..name }, key, ECHO, Reason::WrongOwner);
    assert_eq!(sender.bundle.sessions(), 0, "a refused caller gets nothing");
    sender.expect_answer(Address { name, key });
    peer.finish();
}

#[test]
fn messages_come_back_while_the_session_lives() {
    let _turn = turn("returns within a session");
    let mut peer = Peer::start("server", &[]);
    let address = peer.address();
    let Address { name, key } = address;
    let mut sender = Sender::new();
    sender.expect_answer(address);
    sender.expect(name, key, NOT_THERE, Reason::NoHandler);
    sender.expect(name, Key(key.0 ^ 1), ECHO, Reason::WrongKey);
    sender.expect(Name { endpoint: EndpointId(5), ..name }, key, ECHO, Reason::NoSuchEndpoint);
    sender.expect_answer(address);
    assert_eq!(sender.bundle.sessions(), 1, "all that over one session");
    let changed = Address::parse(&peer.ask("12345"));
    assert_eq!(changed.name, name);
    sender.expect(name, key, ECHO, Reason::WrongKey);
    sender.expect_answer(changed);
    peer.ask("free");
    sender.expect(name, changed.key, ECHO, Reason::NoSuchEndpoint);
    peer.finish();
    sender.expect(name, changed.key, ECHO, Reason::NobodyThere);
}

#[test]
fn a_key_changed_under_an_open_flow_returns_what_follows() {
    let _turn = turn("a key changed under an open flow");
    let mut peer = Peer::start("server", &[]);
    let address = peer.address();
    let mut sender = Sender::new();
    sender.expect_answer(address);
    peer.ask("777");
    // No new map: the flow was opened with the old key.
    let Sender { bundle, here, returns, .. } = &mut sender;
    bundle.request(*here, 0, ECHO, &[9], b"old key").expect("mapped");
    bundle.send(*here, 0, ECHO, &[10], b"old key").expect("mapped");
    poll_until(bundle, "two returns", |_| returns.borrow().len() == 2);
    for (back, number) in returns.borrow_mut().drain(..).zip([9, 10]) {
        assert_eq!((back.reason, back.certainty), (Reason::WrongKey, Certainty::NotDelivered));
        assert_eq!((back.args, back.payload), (vec![number], b"old key".to_vec()));
    }
    let changed = Address { key: Key(777), ..address };
    sender.expect_answer(changed);
    peer.finish();
}

#[test]
fn the_name_of_a_dead_process_leads_to_nobody() {
    let _turn = turn("a dead process's name");
    let mut peer = Peer::start("server", &[]);
    let Address { name, key } = peer.address();
    peer.kill();
    Sender::new().expect(name, key, ECHO, Reason::NobodyThere);
}

/// Refuses every caller for the given reason, like a peer of another version or one that is full.
fn forger(orders: Orders) {
    let like: Name = orders.words[0].parse().expect("a name");
    let epoch = raw::nobody(&like).epoch;
    let listener = raw::listen(epoch);
    tell(Address { name: Name { epoch, ..like }, key: Key(1) });
    loop {
        let socket = raw::accept(&listener);
        let called = raw::hear_hello(&socket).destination.endpoint;
        let reason = Reason::from_code(called.0 as u8).expect("the endpoint says which");
        assert!(raw::say(&socket, &Message::Refuse { reason }.to_bytes()));
    }
}

#[test]
fn every_reason_that_a_peer_can_give_arrives() {
    let _turn = turn("every reason");
    let mut sender = Sender::new();
    let own = sender.bundle.name(sender.here).expect("name");
    let mut peer = Peer::start("forger", &[&own.to_string()]);
    let Address { name, key } = peer.address();
    for reason in Reason::ALL {
        let endpoint = EndpointId(u32::from(reason.code()));
        let expected = Reason::from_code(reason.code()).expect("its code");
        sender.expect(Name { endpoint, ..name }, key, ECHO, expected);
    }
    peer.kill();
}

#[test]
fn an_invalid_name_says_what_is_wrong_with_it() {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let name = bundle.name(here).expect("name");
    assert_eq!(name.to_string().parse::<Name>(), Ok(name));
    // Without an address, whose bits would show up in the characters that are changed below.
    let good = Name { address: HostAddress::NONE, ..name }.to_string();
    for (text, error, hint) in [
        ("", NameError::Prefix, "Pass the name"),
        ("localhost:80", NameError::Prefix, "Pass the name"),
        ("weft1:**", NameError::Encoding, "copied"),
        (&good[..good.len() - 4], NameError::Length(37), "copied"),
        (&good.replacen("weft1:AQ", "weft1:Ag", 1), NameError::Format(2), "same weft"),
        (&good.replacen("weft1:AQA", "weft1:AQE", 1), NameError::Reserved, "damaged"),
    ] {
        let said = text.parse::<Name>().expect_err(text);
        assert_eq!(said, error, "{text}");
        assert!(said.to_string().contains(hint), "{said}");
    }
    for cut in 0..good.len() {
        assert!(good[..cut].parse::<Name>().is_err());
    }
}

#[test]
fn calls_that_fail_say_why_and_what_helps() {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let _turn = turn("calls that fail");
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let error = bundle.unmap(here, 3).expect_err("nothing is mapped");
    assert!(matches!(error, weft::Error::Send(weft::SendError::NotMapped(3))), "{error}");
    assert!(error.to_string().contains("map a name there"), "{error}");
    // No descriptor is left.
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).expect("less is always allowed");
    let (node, other) = (Node::without_helper(), bundle.endpoint(Key(1)));
    setrlimit(Resource::Nofile, before).expect("as it was");
    let error = node.expect_err("a node without descriptors");
    assert!(matches!(error, weft::Error::System { .. }) && error.to_string().contains("ulimit -n"), "{error}");
    bundle.free(other.expect("it takes none")).expect("an endpoint");
    Node::new().expect("there are some again");
}
