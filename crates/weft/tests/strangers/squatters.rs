//! Squatters: processes that have taken the socket name of a dead process. Nothing prevents that, but a squatter learns and gets
//! nothing.

use crate::hostile::give;
use crate::support::raw::{self, Said};
use crate::support::{poll_until, returns_of, tell, turn, Orders, Peer};
use crate::users::{become_foreigner, is_left_out, open_bundle};
use crate::QUIET;
use std::os::fd::OwnedFd;
use weft::{Certainty, Key, Name, Reason, SendError, Uid};
use weft_wire::path::Peek;
use weft_wire::proof::{KeyProof, Side};
use weft_wire::setup::{Hello, Message, Nonce, MESSAGE_BYTES};
use weft_wire::BundleId;

/// The key of the dead process's endpoint.
const KEY: Key = Key(0x5ec2_e7a1_9b04_d3f6);

/// Takes the name in the first word, as the user in the second. Answers each call as ordered, and reports what it received: the
/// number of descriptors, and all bytes.
pub fn squatter(orders: Orders) {
    let name: Name = orders.words[0].parse().expect("a name");
    if orders.words[1] == "another" && !become_foreigner() {
        return;
    }
    let listener = raw::listen(name.epoch);
    tell("there");
    match orders.words[2].as_str() {
        "twice" => return answer_two_calls(&orders, &listener, KEY),
        "twice open" => return answer_two_calls(&orders, &listener, Key::NONE),
        _ => {}
    }
    while let Some(order) = orders.wait() {
        let (way, proof) = order.split_once(' ').expect("a way and a proof");
        let socket = raw::accept(&listener);
        let (mut heard, _) = raw::hear_bytes(&socket).expect("a hello");
        let Ok(Message::Hello(hello, own)) = Message::from_bytes(&heard) else { panic!("no hello: {heard:?}") };
        let proof = prove(&hello, own, proof);
        let bundle = BundleId(0);
        match way {
            "challenge" => {
                let (seen, nonce_at) = (Nonce::UNSEEN, hello.nonce_at);
                raw::say(&socket, &Message::Challenge { seen, nonce_at, proof }.to_bytes());
            }
            "accept" => {
                let accept = |ring| Message::Accept { ring, bell: 0, bundle, is_trusted: false, proof };
                drop(give(&socket, false, accept));
            }
            "join" => _ = raw::say(&socket, &Message::Join { bundle, proof }.to_bytes()),
            other => panic!("no way: {other}"),
        }
        let mut descriptors = 0;
        if let Some((bytes, fds)) = raw::hear_bytes(&socket) {
            heard.extend(bytes);
            descriptors += fds.len();
        }
        let hex: String = heard.iter().map(|byte| format!("{byte:02x}")).collect();
        tell(format!("{descriptors} {hex}"));
    }
}

/// Proves a key that is right for the first call but not for the second, which comes before the first is answered. Reports how many
/// records were in the ring when the second call had ended.
fn answer_two_calls(orders: &Orders, listener: &OwnedFd, key: Key) {
    let [first, second] = ["first", "second"].map(|which| {
        let socket = raw::accept(listener);
        let hello = raw::hear_hello(&socket);
        tell(which);
        (socket, hello.proof(key, Side::Callee))
    });
    let bundle = BundleId(0);
    let accept = |ring| Message::Accept { ring, bell: 0, bundle, is_trusted: false, proof: first.1 };
    let (mut consumer, _) = give(&first.0, false, accept);
    let Said::Message(Message::Ready { .. }, _) = raw::hear(&first.0) else { panic!("not ready") };
    raw::say(&second.0, &Message::Join { bundle, proof: second.1 }.to_bytes());
    raw::expect_end(&second.0, "a wrong proof");
    let mut records = 0;
    while let Peek::Record(_) = consumer.peek() {
        consumer.pop();
        records += 1;
    }
    tell(records);
    while orders.wait().is_some() {}
}

/// A proof of the kind that a word says, by a process that has received the caller's proof `own`.
fn prove(hello: &Hello, own: KeyProof, word: &str) -> KeyProof {
    match word {
        "none" => KeyProof(0),
        // Like an endpoint that admits callers without its key.
        "open" => hello.proof(Key::NONE, Side::Callee),
        "reflected" => own,
        "guessed" => hello.proof(Key(KEY.0 ^ 1), Side::Callee),
        "older" => Hello { draw: hello.draw ^ 1, ..*hello }.proof(KEY, Side::Callee),
        "right" => hello.proof(KEY, Side::Callee),
        other => panic!("no proof: {other}"),
    }
}

/// Calls a dead process whose name a process of that user has taken. The squatter answers in all ways.
fn call_squatter(user: &str) {
    let (mut bundle, here, _) = open_bundle();
    let own = bundle.name(here).expect("name");
    // As a process in a container sees all others: with the overflow user, which the kernel shows for users without a number there.
    let uid = if user == "another" { Uid::OVERFLOW } else { own.uid };
    let dead = Name { uid, ..raw::nobody(&own) };
    let mut squatter = Peer::start("squatter", &[&dead.to_string(), user, "once"]);
    if is_left_out(&squatter.hear()) {
        return;
    }
    let returns = returns_of(&mut bundle, here);
    let mut call = |way: &str, proof: &str| {
        squatter.say(&format!("{way} {proof}"));
        bundle.map(here, 0, dead, KEY).expect("map");
        bundle.request(here, 0, QUIET, &[], b"").expect("mapped");
        poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
        let back = returns.borrow_mut().remove(0);
        let line = squatter.hear_polling(&mut bundle);
        let (descriptors, heard) = line.split_once(' ').expect("descriptors and bytes");
        for key in [KEY.0.to_be_bytes(), KEY.0.to_le_bytes()] {
            let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(!heard.contains(&key), "{way}, {proof}: the key in the clear, in {heard}");
        }
        let descriptors: usize = descriptors.parse().expect("a number");
        (back.reason, back.certainty, descriptors, heard.len() / 2 / MESSAGE_BYTES)
    };
    for way in ["challenge", "accept", "join"] {
        for proof in ["none", "open", "reflected", "guessed", "older"] {
            let refused = (Reason::WrongOwner, Certainty::NotDelivered, 0, 1);
            assert_eq!(call(way, proof), refused, "{way}, {proof}: no word but the hello, and no descriptor");
        }
    }
    // A process that knows the key gets a ring and a bell page, and its end is the end of a session.
    let (reason, _, descriptors, words) = call("accept", "right");
    assert_eq!((reason, descriptors, words), (Reason::PeerLost, 2, 2));
    squatter.finish();
}

#[test]
fn a_process_that_takes_a_dead_ones_place_gets_no_key_and_no_ring() {
    let _turn = turn("a squatter");
    call_squatter("our");
}

#[test]
fn another_user_that_takes_a_dead_processs_place_gets_no_key_and_no_ring() {
    let _turn = turn("another user's squatter");
    call_squatter("another");
}

#[test]
fn a_key_mapped_during_a_call_is_not_told_to_a_peer_that_proved_the_old_one() {
    let _turn = turn("another key during a call");
    let (mut bundle, here, _) = open_bundle();
    let dead = raw::nobody(&bundle.name(here).expect("name"));
    let squatter = Peer::start("squatter", &[&dead.to_string(), "our", "twice"]);
    assert_eq!(squatter.hear(), "there");
    let returns = returns_of(&mut bundle, here);
    for (key, heard) in [(KEY, "first"), (Key(KEY.0 ^ 1), "second")] {
        bundle.map(here, 0, dead, key).expect("map");
        assert_eq!(bundle.try_request(here, 0, QUIET, &[], b""), Err(SendError::Full), "there is no session yet");
        assert_eq!(squatter.hear_polling(&mut bundle), heard);
    }
    assert_eq!(squatter.hear_polling(&mut bundle), "0", "records for who does not know the present key");
    bundle.request(here, 0, QUIET, &[], b"").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    assert_eq!(returns.borrow()[0].reason, Reason::WrongOwner, "of the call with the present key");
    squatter.finish();
}

#[test]
fn a_proof_that_was_demanded_during_a_call_is_not_waived() {
    let _turn = turn("a proof demanded during a call");
    let (mut bundle, here, _) = open_bundle();
    let dead = raw::nobody(&bundle.name(here).expect("name"));
    let squatter = Peer::start("squatter", &[&dead.to_string(), "our", "twice open"]);
    assert_eq!(squatter.hear(), "there");
    let returns = returns_of(&mut bundle, here);
    for heard in ["first", "second"] {
        match heard {
            "first" => bundle.map_unproven(here, 0, dead, KEY).expect("map"),
            _ => bundle.map(here, 0, dead, KEY).expect("map"),
        }
        assert_eq!(bundle.try_request(here, 0, QUIET, &[], b""), Err(SendError::Full), "there is no session yet");
        assert_eq!(squatter.hear_polling(&mut bundle), heard);
    }
    assert_eq!(squatter.hear_polling(&mut bundle), "0", "records for who has not proved the key");
    bundle.request(here, 0, QUIET, &[], b"").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    assert_eq!(returns.borrow()[0].reason, Reason::WrongOwner, "of the call that demands a proof");
    squatter.finish();
}
