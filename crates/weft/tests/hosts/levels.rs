//! The levels of reliability, by real processes: over a bad network, through memory, and to processes that are killed.

use super::hostile::through_relay;
use super::support::{again, events, insist, over_udp, poll_until, tell, turn, Address, Dice, Orders, Peer, OVER_UDP};
use super::{numbered, Client, NOTE};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use weft::{Bundle, Event, MessageKind, Node, Outgoing, Reliability, Service};

const UNRELIABLE: Service = Service { reliability: Reliability::Unreliable, is_ordered: false };
const RECEPTION: Service = Service { reliability: Reliability::Reception, is_ordered: false };

/// Takes numbered messages, each at most once, in any order. On `taken` it reports how many.
pub fn taker(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let taken: Rc<RefCell<BTreeSet<u32>>> = Rc::default();
    let seen = taken.clone();
    bundle
        .on(here, NOTE, move |m| {
            let number = m.args()[0];
            assert!((m.args().to_vec(), m.payload().to_vec()) == numbered(number), "message {number} was changed");
            assert!(seen.borrow_mut().insert(number), "message {number} came twice");
        })
        .expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, line| match line {
        "taken" => tell(taken.borrow().len()),
        other => panic!("no order `{other}`"),
    });
}

/// Sends the messages with these numbers, waiting for room.
fn send(client: &mut Client, numbers: Range<u32>, asks: bool) {
    for number in numbers {
        let (args, payload) = numbered(number);
        let completion = asks.then_some(u64::from(number));
        let message = Outgoing { op: NOTE, args: &args, payload: &payload, completion };
        insist(&mut client.bundle, client.here, 0, MessageKind::OneWay, message);
    }
}

#[test]
fn unreliable_messages_over_a_bad_network_come_once_at_the_most_and_never_back() {
    let name = "levels::unreliable_messages_over_a_bad_network_come_once_at_the_most_and_never_back";
    let Some(_turn) = over_udp(name) else { return };
    let mut dice = Dice::fresh("a relay");
    let mut peer = Peer::start("taker", &[]);
    let (mut client, relay) = through_relay(peer.address(), &mut dice);
    client.bundle.set_service(client.here, UNRELIABLE).expect("an endpoint");
    const COUNT: u32 = 20_000;
    const PORTION: u32 = 100;
    // In portions, waiting after each: so only the network loses messages, and none are lost because the taker has no processor
    // time.
    for portion in 0..COUNT / PORTION {
        send(&mut client, portion * PORTION..(portion + 1) * PORTION, false);
        poll_until(&mut client.bundle, "all to be acknowledged or given up", |bundle| bundle.is_acknowledged());
        peer.ask("taken");
    }
    client.bundle.drain();
    let taken: u32 = peer.ask("taken").parse().expect("a number");
    let [relayed, harmed, _] = relay.end();
    eprintln!("{taken} of {COUNT} taken; {relayed} datagrams relayed, {harmed} of them harmed");
    assert!(taken < COUNT && taken > COUNT / 2, "{taken} of {COUNT}");
    let counters = client.bundle.counters();
    assert_eq!((counters.sent, counters.returned, counters.sessions_lost), (COUNT.into(), 0, 0));
    peer.finish();
}

#[test]
fn unreliable_messages_through_memory_all_come_and_none_comes_back_from_the_dead() {
    let _turn = turn("levels::unreliable_messages_through_memory_all_come_and_none_comes_back_from_the_dead");
    let mut peer = Peer::start("taker", &[]);
    let there = peer.address();
    let mut client = Client::of(&[there]);
    client.bundle.set_service(client.here, UNRELIABLE).expect("an endpoint");
    send(&mut client, 0..20_000, false);
    let bundle = &mut client.bundle;
    let mut taken = 0;
    poll_until(bundle, "all to be taken", |_| {
        taken = peer.ask("taken").parse().expect("a number");
        taken == 20_000
    });
    peer.kill();
    for _ in 0..100 {
        let (args, payload) = numbered(1);
        let message = Outgoing { op: NOTE, args: &args, payload: &payload, completion: Some(7) };
        insist(&mut client.bundle, client.here, 0, MessageKind::OneWay, message);
    }
    let (mut completed, mut lost) = (0, 0);
    poll_until(&mut client.bundle, "its death to be told", |bundle| {
        for event in events(bundle) {
            completed += u32::from(event == Event::Completed(7));
            lost += u32::from(matches!(event, Event::PeerLost { .. }));
        }
        lost > 0
    });
    assert_eq!((completed, lost), (100, 1), "a completion says that it was sent");
    assert!(client.returns.borrow().is_empty());
}

/// Messages reported as received have reached the program. All others come back.
fn received_or_back(dice: &mut Dice) {
    let mut peer = Peer::start("taker", &[]);
    let there = peer.address();
    let mut client = Client::of(&[there]);
    client.bundle.set_service(client.here, RECEPTION).expect("an endpoint");
    send(&mut client, 0..500, true);
    let mut completed = BTreeSet::new();
    let most = dice.below(500) as usize;
    poll_until(&mut client.bundle, "some to be received", |bundle| {
        completed.extend(events(bundle).into_iter().filter_map(|event| match event {
            Event::Completed(number) => Some(number),
            _ => None,
        }));
        completed.len() >= most
    });
    let taken: usize = peer.ask("taken").parse().expect("a number");
    assert!(taken >= completed.len(), "{} are said to be received, {taken} are", completed.len());
    peer.kill();
    for number in 500..700 {
        let (args, payload) = numbered(number);
        let message = Outgoing { op: NOTE, args: &args, payload: &payload, completion: Some(number.into()) };
        insist(&mut client.bundle, client.here, 0, MessageKind::OneWay, message);
    }
    let returns = client.returns.clone();
    poll_until(&mut client.bundle, "the end of each message", |bundle| {
        completed.extend(events(bundle).into_iter().filter_map(|event| match event {
            Event::Completed(number) => Some(number),
            _ => None,
        }));
        completed.len() + returns.borrow().len() >= 700
    });
    assert!(completed.iter().all(|number| *number < 500), "none of those that were sent to a dead process");
    let back: BTreeSet<u64> = returns.borrow().iter().filter_map(|message| message.completion).collect();
    assert_eq!((back.len(), completed.len() + back.len()), (returns.borrow().len(), 700), "each ended once");
    assert!(completed.is_disjoint(&back));
    assert_eq!(client.bundle.unreceived(client.here, 0).expect("mapped"), 0);
}

#[test]
fn reception_through_memory_is_told_of_what_was_received() {
    let _turn = turn("levels::reception_through_memory_is_told_of_what_was_received");
    let mut dice = Dice::fresh("deaths");
    (0..5).for_each(|_| received_or_back(&mut dice));
}

#[test]
fn reception_over_the_network_is_told_of_what_was_received() {
    let name = "levels::reception_over_the_network_is_told_of_what_was_received";
    let Some(_turn) = again(name, &[], &[OVER_UDP[0], OVER_UDP[1], ("WEFT_SUSPICION", "300")]) else { return };
    let mut dice = Dice::fresh("deaths");
    (0..5).for_each(|_| received_or_back(&mut dice));
}
