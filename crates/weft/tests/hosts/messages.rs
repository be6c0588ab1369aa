//! Every size, both ways, many endpoints, floods; and a peer that is stopped for a while.

use super::support::{insist, over_udp, poll_until, tell, Address, Order, Orders, Peer};
use super::{contents, inverted, numbered, Client, Stream, ANSWER, BACK, COUNT, ECHO, NOTE};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Bundle, Key, MessageKind, Outgoing};

/// Sizes around what one packet carries on loopback, and sizes that need many packets.
const SIZES: [usize; 16] = [0, 1, 7, 8, 64, 65, 1200, 1472, 4096, 8192, 8900, 8972, 9001, 16_384, 65_535, 65_536];

#[test]
fn every_size_crosses_both_ways() {
    let Some(_turn) = over_udp("messages::every_size_crosses_both_ways") else { return };
    let peer = Peer::start("server", &[]);
    let there = peer.address();
    let mut client = Client::of(&[there]);
    for (round, &bytes) in SIZES.iter().enumerate() {
        for count in [0, 1, 2, 15, 16] {
            let (args, payload) = contents((round * 17 + count) as u32, count, bytes);
            client.bundle.request(client.here, 0, ECHO, &args, &payload).expect("small enough");
            assert!(client.answer() == inverted(&args, &payload), "{count} arguments, {bytes} bytes");
            client.bundle.send(client.here, 0, BACK, &args, &payload).expect("small enough");
            assert!(client.answer() == inverted(&args, &payload), "{count} arguments, {bytes} bytes, one way");
        }
    }
    assert_eq!(client.bundle.sessions(), 1);
    assert!(!there.name.address.is_none(), "its name says where it is");
    peer.finish();
}

#[test]
fn many_endpoints_share_a_channel_and_are_told_apart() {
    let Some(_turn) = over_udp("messages::many_endpoints_share_a_channel_and_are_told_apart") else { return };
    const THERE: u32 = 16;
    const HERE: u64 = 8;
    let mut peer = Peer::start("server", &[&THERE.to_string()]);
    let there: Vec<Address> = (0..THERE).map(|_| peer.address()).collect();
    let mut client = Client::of(&[]);
    let answers = Rc::new(Cell::new(0u32));
    for key in 1..=HERE {
        let here = client.bundle.endpoint(Key(key)).expect("endpoint");
        for (index, address) in (0..).zip(&there) {
            client.bundle.map(here, index, address.name, address.key).expect("map");
        }
        let (seen, names) = (answers.clone(), there.iter().map(|a| a.name).collect::<Vec<_>>());
        client
            .bundle
            .on(here, ANSWER, move |m| {
                assert_eq!(m.source(), Some(names[m.args()[1] as usize]), "who answers is who says so");
                assert_eq!(m.endpoint(), here);
                seen.set(seen.get() + 1);
            })
            .expect("on");
        for index in 0..THERE {
            client.bundle.request(here, index, COUNT, &[], b"").expect("mapped");
        }
    }
    poll_until(&mut client.bundle, "all answers", |_| answers.get() == THERE * HERE as u32);
    // One for each pair.
    let pairs = THERE * HERE as u32;
    assert_eq!((client.bundle.sessions(), peer.ask("sessions")), (pairs as usize, format!("{pairs} 0")));
    peer.finish();
}

/// Sends a number of numbered one-way messages, takes as many, and sends a request from time to time.
fn exchange(client: &mut Client, count: u32, taken: &Stream) {
    for number in 0..count {
        let (args, payload) = numbered(number);
        let message = Outgoing { op: NOTE, args: &args, payload: &payload, completion: None };
        insist(&mut client.bundle, client.here, 0, MessageKind::OneWay, message);
        if number % 100 == 0 {
            client.ask(0, number, number as usize % 3000);
        }
    }
    poll_until(&mut client.bundle, "as many of the other", |_| taken.0.get() == count);
    client.bundle.drain();
    assert_eq!(client.bundle.counters().returned, 0);
}

/// One of two processes that send to each other at once.
pub fn streamer(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let mut client = Client::of(&[there]);
    let taken = takes_a_stream(&mut client);
    tell(Address::of(&client.bundle, client.here));
    exchange(&mut client, orders.words[1].parse().expect("a number"), &taken);
    tell("done");
    orders.serve(&mut client.bundle, |_, _| {});
}

fn takes_a_stream(client: &mut Client) -> Stream {
    let taken = Stream::default();
    let seen = taken.clone();
    client.bundle.on(client.here, NOTE, move |m| seen.take(m.args(), m.payload())).expect("on");
    let reply = |m: &mut weft::am::Message<'_>| {
        let (args, payload) = inverted(m.args(), m.payload());
        m.reply(ANSWER, &args, &payload).expect("once");
    };
    client.bundle.on(client.here, ECHO, reply).expect("on");
    taken
}

#[test]
fn two_stream_to_each_other_at_once() {
    let Some(_turn) = over_udp("messages::two_stream_to_each_other_at_once") else { return };
    const COUNT: u32 = 30_000;
    let mut client = Client::of(&[]);
    let taken = takes_a_stream(&mut client);
    let here = Address::of(&client.bundle, client.here);
    let peer = Peer::start("streamer", &[&here.to_string(), &COUNT.to_string()]);
    let there = peer.address();
    client.bundle.map(client.here, 0, there.name, there.key).expect("map");
    exchange(&mut client, COUNT, &taken);
    assert_eq!(peer.hear_polling(&mut client.bundle), "done");
    // Each may have opened a stream before it learned of the other's.
    assert!(client.bundle.sessions() <= 2, "whoever called first");
    peer.finish();
}

#[test]
fn a_flood_arrives_in_order_and_each_message_once() {
    let Some(_turn) = over_udp("messages::a_flood_arrives_in_order_and_each_message_once") else { return };
    const FLOOD: u32 = 100_000;
    let peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    for number in 0..FLOOD {
        let (args, payload) = numbered(number);
        client.bundle.send(client.here, 0, NOTE, &args, &payload).expect("mapped");
    }
    client.bundle.drain();
    assert_eq!(client.count(0), [FLOOD, 0]);
    let counters = client.bundle.counters();
    assert_eq!((counters.sent, counters.returned, counters.sessions_lost), (u64::from(FLOOD), 0, 0));
    peer.finish();
}

/// The kernel buffers 208 KiB for an ordinary user's socket, including its own overhead, and drops packets beyond that.
#[test]
fn a_flood_of_the_largest_messages_loses_none_whatever_the_kernel_keeps() {
    let name = "messages::a_flood_of_the_largest_messages_loses_none_whatever_the_kernel_keeps";
    let Some(_turn) = over_udp(name) else { return };
    const FLOOD: u32 = 1500;
    let peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    let echoes = Rc::new(Cell::new(0));
    let seen = echoes.clone();
    let take = move |m: &mut weft::am::Message<'_>| {
        assert!(m.payload() == inverted(&[], &contents(!m.args()[0], 0, 65_536).1).1, "other contents");
        seen.set(seen.get() + 1);
    };
    client.bundle.on(client.here, ANSWER, take).expect("on");
    for number in 0..FLOOD {
        let payload = contents(number, 0, 65_536).1;
        client.bundle.request(client.here, 0, ECHO, &[number], &payload).expect("mapped");
    }
    client.bundle.drain();
    assert_eq!((echoes.get(), client.bundle.counters().returned), (FLOOD, 0));
    peer.finish();
}

#[test]
fn a_peer_that_is_stopped_for_a_second_loses_nothing() {
    let Some(_turn) = over_udp("messages::a_peer_that_is_stopped_for_a_second_loses_nothing") else { return };
    let peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    let (mut number, mut asked) = (0, 0u32);
    let answers = client.answers.clone();
    let mut traffic = |bundle: &mut Bundle, time: Duration| {
        let since = Instant::now();
        while since.elapsed() < time {
            let (args, payload) = numbered(number);
            number += u32::from(bundle.try_send(client.here, 0, NOTE, &args, &payload).is_ok());
            asked += u32::from(bundle.try_request(client.here, 0, ECHO, &[number], b"").is_ok());
            bundle.poll();
        }
        (number, asked)
    };
    traffic(&mut client.bundle, Duration::from_millis(200));
    for _ in 0..2 {
        peer.stop();
        traffic(&mut client.bundle, Duration::from_secs(1));
        peer.go_on();
        traffic(&mut client.bundle, Duration::from_millis(200));
    }
    let (sent, asked) = traffic(&mut client.bundle, Duration::ZERO);
    client.bundle.drain();
    assert_eq!(answers.borrow_mut().drain(..).count(), asked as usize);
    assert_eq!(client.count(0), [sent, 0]);
    assert!(sent > 0 && asked > 0);
    let counters = client.bundle.counters();
    assert_eq!((counters.returned, counters.sessions_lost), (0, 0));
    peer.finish();
}

/// As when a machine is suspended: much time has passed for both, and one of them wakes up slightly later.
#[test]
fn two_that_are_stopped_together_go_on_together() {
    let Some(_turn) = over_udp("messages::two_that_are_stopped_together_go_on_together") else { return };
    let server = Peer::start("server", &[]);
    let mut asker = Peer::start("asker", &[&server.address().to_string()]);
    asker.say("begin");
    assert_eq!(asker.hear(), "begun");
    server.stop();
    asker.stop();
    std::thread::sleep(Duration::from_secs(4));
    asker.go_on();
    std::thread::sleep(Duration::from_millis(50));
    server.go_on();
    assert_eq!(asker.ask("end"), "0 lost");
    asker.finish();
    server.finish();
}

/// Sends requests without a pause from the first order to the second, and reports how many sessions were lost.
pub fn asker(orders: Orders) {
    let mut client = Client::of(&[Address::parse(&orders.words[0])]);
    client.ask(0, 1, 10);
    assert_eq!(orders.wait().as_deref(), Some("begin"));
    tell("begun");
    let mut number = 0;
    while let Order::None = orders.look() {
        if client.returns.borrow().is_empty() {
            let _ = client.bundle.try_request(client.here, 0, ECHO, &[number], b"");
            number += 1;
        }
        client.bundle.poll();
        client.answers.borrow_mut().clear();
    }
    client.bundle.drain();
    tell(format!("{} lost", client.bundle.counters().sessions_lost));
    while orders.wait().is_some() {}
}

#[test]
fn bundles_of_one_process_call_each_other_at_once() {
    let Some(_turn) = over_udp("messages::bundles_of_one_process_call_each_other_at_once") else { return };
    let node = weft::Node::new().expect("node");
    let mut bundles: Vec<Bundle> = (0..2).map(|_| Bundle::new(&node).expect("bundle")).collect();
    let ends: Vec<_> = bundles.iter_mut().map(|b| b.endpoint(Key(5)).expect("endpoint")).collect();
    let names: Vec<_> = (0..2).map(|at| bundles[at].name(ends[at]).expect("name")).collect();
    let answers = Rc::new(Cell::new(0));
    for at in 0..2 {
        let seen = answers.clone();
        bundles[at].on(ends[at], ECHO, |m| m.reply(ANSWER, &[], b"").expect("asked")).expect("on");
        bundles[at].on(ends[at], ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
        bundles[at].map(ends[at], 0, names[1 - at], Key(5)).expect("map");
        assert!(bundles[at].try_request(ends[at], 0, ECHO, &[], b"").is_err(), "no session yet");
    }
    let mut asked = [false; 2];
    let until = Instant::now() + Duration::from_secs(30);
    while answers.get() < 2 {
        assert!(Instant::now() < until, "no answers");
        for at in 0..2 {
            bundles[at].poll();
            asked[at] = asked[at] || bundles[at].try_request(ends[at], 0, ECHO, &[], b"").is_ok();
        }
    }
    // Each may have opened a stream before it learned of the other's.
    assert!(bundles.iter().all(|b| b.sessions() <= 2));
}
