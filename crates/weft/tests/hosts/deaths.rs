//! Peers that die, leave or never existed: each message ends once, and its reported end is true.

use super::support::{again, contents, insist, over_udp, poll_until, Address, Dice, Peer, OVER_UDP};
use super::{Client, ECHO, KEEP, NOTE};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft::{Certainty, EndpointId, Event, HostAddress, Key, MessageKind, Name, Outgoing, Reason, Returned};
use weft_wire::Epoch;

/// Sends one message of each kind to a destination that takes none, and checks the returns.
fn expect_returns(client: &mut Client, to: u32, op: u8, reason: Reason) {
    for (round, bytes) in [0usize, 300, 65_536].into_iter().enumerate() {
        for (kind, completion) in
            [(MessageKind::Request, None), (MessageKind::OneWay, None), (MessageKind::OneWay, Some(7 + round as u64))]
        {
            let (args, payload) = contents(bytes as u32, round * 5, bytes);
            insist(
                &mut client.bundle,
                client.here,
                to,
                kind,
                Outgoing { op, args: &args, payload: &payload, completion },
            );
            let returns = client.returns.clone();
            poll_until(&mut client.bundle, &format!("a return because of {reason:?}"), |_| {
                !returns.borrow().is_empty()
            });
            let back = returns.borrow_mut().remove(0);
            let (endpoint, destination, certainty) = (client.here, Some(to), Certainty::NotDelivered);
            let expected =
                Returned { endpoint, destination, kind, op, args, payload, reason, certainty, completion, long: None };
            assert!(back == expected, "{bytes} bytes, {kind:?}: {:?} because of {}", back.certainty, back.reason);
            assert!(returns.borrow().is_empty(), "once");
        }
    }
}

#[test]
fn what_cannot_be_delivered_comes_back_with_contents_reason_and_certainty() {
    let name = "deaths::what_cannot_be_delivered_comes_back_with_contents_reason_and_certainty";
    let Some(_turn) = over_udp(name) else { return };
    let peer = Peer::start("server", &[]);
    let Address { name, key } = peer.address();
    let wrong_key = Address { name, key: Key(key.0 ^ 1) };
    let nobody = Address { name: Name { endpoint: EndpointId(5), ..name }, key };
    let earlier = Address { name: Name { epoch: Epoch(name.epoch.0 ^ 1), ..name }, key };
    let right = Address { name, key };
    let mut client = Client::of(&[wrong_key, nobody, earlier, right]);
    // Without a session, and then within one.
    for sessions in [0, 1] {
        expect_returns(&mut client, 0, ECHO, Reason::WrongKey);
        expect_returns(&mut client, 1, ECHO, Reason::NoSuchEndpoint);
        expect_returns(&mut client, 2, ECHO, Reason::WrongEpoch);
        assert_eq!(client.bundle.sessions(), sessions, "who is refused gets none");
        client.ask(3, 1, 100);
    }
    const NOT_THERE: u8 = 77;
    expect_returns(&mut client, 3, NOT_THERE, Reason::NoHandler);
    peer.finish();
}

#[test]
fn an_address_that_does_not_answer_is_given_up_after_the_suspicion_time() {
    let name = "deaths::an_address_that_does_not_answer_is_given_up_after_the_suspicion_time";
    let Some(_turn) = over_udp(name) else { return };
    // One address that never answers, and one without a route from loopback.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = |socket: &UdpSocket| socket.local_addr().expect("bound").port();
    let mut client = Client::of(&[]);
    let own = client.bundle.name(client.here).expect("name");
    let far = std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets();
    let addresses = [HostAddress { port: port(&silent), ..own.address }, HostAddress { ip: far, port: 9 }];
    for (index, address) in (0..).zip(addresses) {
        let name = Name { epoch: Epoch(own.epoch.0 ^ 5), address, ..own };
        client.bundle.map(client.here, index, name, Key(1)).expect("map");
    }
    let since = Instant::now();
    let (args, payload) = contents(1, 3, 10_000);
    for index in 0..2 {
        let called = client.bundle.try_request(client.here, index, ECHO, &args, &payload);
        assert_eq!(called, Err(weft::SendError::Full), "while it is called");
    }
    for index in 0..2 {
        client.bundle.request(client.here, index, ECHO, &args, &payload).expect("mapped");
        // Settings::default() of the transport says 3 seconds; the clock of the deadline started a moment later than ours.
        assert!(since.elapsed() > Duration::from_millis(2900), "given up after {:?}", since.elapsed());
    }
    let returns = client.returns.clone();
    poll_until(&mut client.bundle, "two returns", |_| returns.borrow().len() == 2);
    for back in returns.borrow_mut().drain(..) {
        assert_eq!((back.reason, back.certainty), (Reason::NobodyThere, Certainty::NotDelivered));
        assert!(back.args == args && back.payload == payload, "with its contents");
    }
    assert_eq!(client.bundle.sessions(), 0);
}

/// A time far below the suspicion time, which a busy machine can still keep.
const SOON: Duration = Duration::from_millis(1500);

#[test]
fn a_port_that_nobody_has_is_told_soon_and_each_further_message_at_once() {
    let name = "deaths::a_port_that_nobody_has_is_told_soon_and_each_further_message_at_once";
    let Some(_turn) = over_udp(name) else { return };
    let free = UdpSocket::bind("127.0.0.1:0").expect("a socket").local_addr().expect("bound").port();
    let mut client = Client::of(&[]);
    let own = client.bundle.name(client.here).expect("name");
    let nobody = Name { epoch: Epoch(own.epoch.0 ^ 5), address: HostAddress { port: free, ..own.address }, ..own };
    client.bundle.map(client.here, 0, nobody, Key(1)).expect("map");
    let since = Instant::now();
    empty_a_queue(&mut client, 1);
    assert!(since.elapsed() < SOON, "told after {:?}", since.elapsed());
    assert_eq!(client.returns.borrow()[0].reason, Reason::NobodyThere);
    empty_a_queue(&mut client, 20_000);
}

/// Sends messages to a destination that takes none, and waits until all have come back. A call for each would take hours.
fn empty_a_queue(client: &mut Client, messages: usize) {
    let returns = client.returns.clone();
    let before = returns.borrow().len();
    for number in 0..messages {
        client.bundle.send(client.here, 0, NOTE, &[number as u32], b"queued").expect("mapped");
    }
    poll_until(&mut client.bundle, "all to come back", |_| returns.borrow().len() == before + messages);
    let returns = returns.borrow();
    let back = &returns[before..];
    assert!(back.iter().all(|back| back.certainty == Certainty::NotDelivered && back.payload == b"queued"));
    assert!((0..messages as u32).eq(back.iter().map(|back| back.args[0])), "each once, in order");
}

#[test]
fn a_killed_process_is_noticed_soon_and_all_that_is_queued_for_it_comes_back() {
    let name = "deaths::a_killed_process_is_noticed_soon_and_all_that_is_queued_for_it_comes_back";
    let Some(_turn) = over_udp(name) else { return };
    let mut peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    lose_soon(&mut client, &mut peer);
    empty_a_queue(&mut client, 20_000);
}

/// Kills a peer that has kept a request, and expects the loss to be reported soon.
pub fn lose_soon(client: &mut Client, peer: &mut Peer) {
    client.bundle.request(client.here, 0, KEEP, &[1], b"kept").expect("mapped");
    client.ask(0, 1, 10); // so the message before it was taken
    while client.bundle.next_event().is_some() {}
    peer.kill();
    let since = Instant::now();
    client.bundle.send(client.here, 0, NOTE, &[2], b"late").expect("mapped");
    let returns = client.returns.clone();
    poll_until(&mut client.bundle, "both to come back", |_| returns.borrow().len() == 2);
    let took = since.elapsed();
    assert!(took < SOON, "told after {took:?}");
    eprintln!("a killed process was noticed after {took:?}");
    for back in returns.borrow_mut().drain(..) {
        assert_eq!((back.reason, back.certainty), (Reason::PeerLost, Certainty::Unknown));
    }
    let events: Vec<Event> = std::iter::from_fn(|| client.bundle.next_event()).collect();
    assert!(events.iter().any(|e| matches!(e, Event::PeerLost { reason: Reason::PeerLost, .. })), "{events:?}");
}

#[test]
fn a_process_that_sleeps_is_woken_by_the_refusal_of_its_peers_host() {
    let name = "deaths::a_process_that_sleeps_is_woken_by_the_refusal_of_its_peers_host";
    let Some(_turn) = over_udp(name) else { return };
    let mut peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    client.ask(0, 1, 10);
    peer.kill();
    client.bundle.set_spin_limit(Duration::ZERO);
    let since = Instant::now();
    client.bundle.request(client.here, 0, ECHO, &[1], b"").expect("mapped");
    while client.returns.borrow().is_empty() {
        client.bundle.wait(Some(Duration::from_secs(10)));
        assert!(since.elapsed() < SOON, "told after {:?}", since.elapsed());
    }
    // A reported loss wakes the process only once: a second of sleep takes no processor time.
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let before = used();
    std::thread::sleep(Duration::from_secs(1));
    client.bundle.wait(Some(Duration::from_secs(1)));
    let after = used();
    let took = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1_000_000;
    assert!(took < 100, "{took} ms of the processor's time");
}

#[test]
fn a_process_restarted_on_the_same_port_is_another_one() {
    let Some(_turn) = over_udp("deaths::a_process_restarted_on_the_same_port_is_another_one") else { return };
    let mut old = Peer::start("server", &[]);
    let there = old.address();
    let mut client = Client::of(&[there]);
    client.ask(0, 1, 10);
    client.bundle.request(client.here, 0, KEEP, &[7], b"kept").expect("mapped");
    client.ask(0, 2, 10); // so the message before it was taken
    old.kill();
    let port = there.name.address.port.to_string();
    let new = Peer::start_with("server", &[], &[("WEFT_PORT", OsStr::new(&port))]);
    let successor = new.address();
    assert_eq!(successor.name.address, there.name.address);
    // The session learns of it by the first packet that it sends there.
    let returns = client.returns.clone();
    poll_until(&mut client.bundle, "what was kept there", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    // If the successor took long to start, the old one was known to be gone before.
    assert!(matches!(back.reason, Reason::WrongEpoch | Reason::PeerLost), "{}", back.reason);
    assert_eq!(back.certainty, Certainty::Unknown);
    assert_eq!((back.args, back.payload), (vec![7], b"kept".to_vec()));
    // That is remembered for a second.
    std::thread::sleep(Duration::from_millis(1100));
    // Messages to the old name now come back as certainly not delivered.
    client.bundle.map(client.here, 0, there.name, there.key).expect("map");
    expect_returns(&mut client, 0, ECHO, Reason::WrongEpoch);
    client.bundle.map(client.here, 1, successor.name, successor.key).expect("map");
    client.ask(1, 3, 10);
    new.finish();
}

/// The reported end of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Done,
    Returned(Certainty),
}

/// A server that will be killed, its log of handled messages, and how each message to it ended.
struct Victim {
    peer: Peer,
    file: PathBuf,
    sent: BTreeMap<u32, (MessageKind, Option<End>)>,
    next: [u32; 2],
}

impl Victim {
    fn end(&mut self, number: u32, end: End) {
        let (_, ended) = self.sent.get_mut(&number).expect("it was sent");
        assert_eq!(*ended, None, "message {number} ends twice, the second time as {end:?}");
        *ended = Some(end);
    }

    /// The numbers of handled messages in its log.
    fn handled(&self) -> Vec<u32> {
        let bytes = fs::read(&self.file).expect("its file");
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}

/// Requests have numbers from here on, one-way messages below.
const REQUESTS: u32 = 1 << 24;

#[test]
fn messages_to_peers_killed_under_traffic_end_once_and_truly() {
    let Some(_turn) = over_udp("deaths::messages_to_peers_killed_under_traffic_end_once_and_truly") else { return };
    let mut dice = Dice::fresh("peers killed under traffic");
    let directory = std::env::temp_dir().join(format!("weft-hosts-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory of our own");
    let mut addresses = Vec::new();
    let mut victims: Vec<Victim> = (0..4)
        .map(|index| {
            let file = directory.join(index.to_string());
            fs::write(&file, b"").expect("a file");
            let peer = Peer::start("server", &["1", file.to_str().expect("a path in words")]);
            addresses.push(peer.address());
            Victim { peer, file, sent: BTreeMap::new(), next: [0, REQUESTS] }
        })
        .collect();
    let mut client = Client::of(&addresses);
    (0..4).for_each(|index| client.ask(index, 1, 10));
    for victim in &victims {
        fs::write(&victim.file, b"").expect("a file");
    }
    while client.bundle.next_event().is_some() {}
    // Each is killed at another time; traffic goes on with those that are left.
    let mut alive: Vec<usize> = (0..4).collect();
    let (mut killed_at, mut lost) = (None, 0);
    while !alive.is_empty() {
        let until = Instant::now() + Duration::from_micros(20_000 + dice.below(200_000));
        while Instant::now() < until {
            for &at in &alive {
                traffic(&mut client, at as u32, &mut victims[at], &mut dice);
            }
            client.bundle.poll();
            lost += take_ends(&mut client, &mut victims, Reason::PeerLost);
        }
        let at = alive[dice.below(alive.len() as u64) as usize];
        if alive.len() % 2 == 0 {
            // Send more than gets there.
            victims[at].peer.stop();
            let until = Instant::now() + Duration::from_millis(50);
            while Instant::now() < until {
                traffic(&mut client, at as u32, &mut victims[at], &mut dice);
                client.bundle.poll();
                lost += take_ends(&mut client, &mut victims, Reason::PeerLost);
            }
        }
        alive.retain(|&other| other != at);
        victims[at].peer.kill();
        killed_at.get_or_insert_with(Instant::now);
    }
    let since = killed_at.expect("some were killed");
    while lost < 4 {
        assert!(since.elapsed() < Duration::from_secs(30), "{lost} of 4 deaths were noticed");
        client.bundle.poll();
        lost += take_ends(&mut client, &mut victims, Reason::PeerLost);
    }
    eprintln!("all four deaths were noticed {:?} after the first", since.elapsed());
    client.bundle.drain();
    take_ends(&mut client, &mut victims, Reason::PeerLost);
    for victim in &victims {
        check(victim);
    }
    let counters = client.bundle.counters();
    assert_eq!((counters.violations, counters.sessions_lost, client.bundle.sessions()), (0, 4, 0));
    fs::remove_dir_all(&directory).expect("our own directory");
}

/// Sends a message or two, if there is room.
fn traffic(client: &mut Client, to: u32, victim: &mut Victim, dice: &mut Dice) {
    let kinds = [(MessageKind::OneWay, NOTE), (MessageKind::Request, if dice.below(50) == 0 { KEEP } else { ECHO })];
    for (place, (kind, op)) in kinds.into_iter().enumerate() {
        let number = victim.next[place];
        let (args, payload) = super::numbered(number);
        let tag = Some(u64::from(to) << 32 | u64::from(number));
        let message = Outgoing { op, args: &args, payload: &payload, completion: tag };
        if client.bundle.try_post(client.here, to, kind, message).is_ok() {
            victim.next[place] += 1;
            victim.sent.insert(number, (kind, None));
        }
    }
}

/// Records how messages ended. Those that came back must have this reason. Returns how many peers were reported lost.
fn take_ends(client: &mut Client, victims: &mut [Victim], why: Reason) -> u32 {
    client.answers.borrow_mut().clear(); // an answer completes as well
    for back in client.returns.borrow_mut().drain(..) {
        let tag = back.completion.expect("each asked for one");
        let number = tag as u32;
        let contents = super::numbered(number);
        assert!((&back.args, &back.payload) == (&contents.0, &contents.1), "message {number} comes back with others");
        assert_eq!(back.reason, why);
        assert_eq!(back.destination, Some((tag >> 32) as u32));
        victims[(tag >> 32) as usize].end(number, End::Returned(back.certainty));
    }
    let mut lost = 0;
    while let Some(event) = client.bundle.next_event() {
        match event {
            Event::Completed(tag) => victims[(tag >> 32) as usize].end(tag as u32, End::Done),
            Event::PeerLost { reason, .. } => {
                assert_eq!(reason, why);
                lost += 1;
            }
            Event::CanSend { .. } => {}
            Event::Returned(back) => panic!("taken by its handler: {back:?}"),
            Event::ReplyRefused { .. } => panic!("there is a handler for them"),
        }
    }
    lost
}

/// Checks that the reported end of each message agrees with its receiver's log.
fn check(victim: &Victim) {
    let handled = victim.handled();
    let all: BTreeSet<u32> = handled.iter().copied().collect();
    assert_eq!(all.len(), handled.len(), "each is handled once");
    let one_way: Vec<u32> = handled.iter().copied().filter(|&number| number < REQUESTS).collect();
    assert!((0..one_way.len() as u32).eq(one_way.iter().copied()), "one-way messages in order, without a gap");
    let mut counts = [0; 3];
    for (number, (kind, end)) in &victim.sent {
        let was_handled = all.contains(number);
        match end {
            None => panic!("{kind:?} {number} never ended"),
            Some(End::Done) => {
                assert!(was_handled, "{kind:?} {number} was told as done");
                counts[0] += 1;
            }
            Some(End::Returned(Certainty::NotDelivered)) => {
                assert!(!was_handled, "{kind:?} {number} was told as not delivered");
                counts[1] += 1;
            }
            Some(End::Returned(Certainty::Unknown)) => counts[2] += 1,
        }
    }
    eprintln!("{} done, {} not delivered, {} unknown", counts[0], counts[1], counts[2]);
    // On a busy machine the window may be so small that no message was sent completely; then none is in doubt.
    assert!(counts[0] > 0 && counts[1] + counts[2] > 0, "it was killed under traffic: {counts:?}");
}

/// Waits for its turn and runs the test again over UDP, with this suspicion time.
fn with_suspicion(test: &str, milliseconds: &str) -> Option<super::support::Turn> {
    again(test, &[], &[OVER_UDP[0], OVER_UDP[1], ("WEFT_SUSPICION", milliseconds)])
}

#[test]
fn a_peer_that_stands_still_is_given_up_after_the_suspicion_time_and_is_reached_again() {
    let name = "deaths::a_peer_that_stands_still_is_given_up_after_the_suspicion_time_and_is_reached_again";
    let Some(_turn) = with_suspicion(name, "400") else { return };
    let suspicion = Duration::from_millis(400);
    let times: Vec<Duration> = (0..3).map(|_| stand_still(suspicion, suspicion * 2)).collect();
    let shortest = *times.iter().min().expect("three");
    eprintln!("of {suspicion:?} of silence all was told after {times:?}");
    // One more timeout takes at most an eighth; the rest is for a busy machine.
    assert!(shortest < suspicion + suspicion / 4, "told after {times:?}");
}

/// For `make soak`.
#[test]
#[ignore = "takes half a minute"]
fn a_peer_that_stands_still_for_half_a_minute_is_given_up_and_reached_again() {
    let name = "deaths::a_peer_that_stands_still_for_half_a_minute_is_given_up_and_reached_again";
    let Some(_turn) = with_suspicion(name, "") else { return };
    let time = stand_still(Duration::from_secs(3), Duration::from_secs(30));
    eprintln!("all was told after {time:?}");
    assert!(time < Duration::from_millis(3750), "told after {time:?}");
}

/// Stops a peer under traffic for the time `stopped`, and lets it go on. Returns how long it took until all messages to it had
/// ended.
fn stand_still(suspicion: Duration, stopped: Duration) -> Duration {
    let mut dice = Dice::fresh("a peer that stands still");
    let file = std::env::temp_dir().join(format!("weft-hosts-still-{}", std::process::id()));
    fs::write(&file, b"").expect("a file");
    let peer = Peer::start("server", &["1", file.to_str().expect("a path in words")]);
    let there = peer.address();
    let mut client = Client::of(&[there]);
    client.ask(0, 1, 10);
    fs::write(&file, b"").expect("a file");
    while client.bundle.next_event().is_some() {}
    let mut victims = [Victim { peer, file, sent: BTreeMap::new(), next: [0, REQUESTS] }];
    let mut traffic_for = |client: &mut Client, victims: &mut [Victim; 1], time: Duration| {
        let until = Instant::now() + time;
        while Instant::now() < until {
            traffic(client, 0, &mut victims[0], &mut dice);
            client.bundle.poll();
            assert_eq!(take_ends(client, victims, Reason::Silent), 0);
        }
    };
    traffic_for(&mut client, &mut victims, Duration::from_millis(100));
    victims[0].peer.stop();
    let since = Instant::now();
    // Send more than gets there.
    traffic_for(&mut client, &mut victims, suspicion / 4);
    let mut lost = 0;
    while lost == 0 || victims[0].sent.values().any(|(_, end)| end.is_none()) {
        assert!(since.elapsed() < Duration::from_secs(30), "{lost} losses told");
        client.bundle.poll();
        lost += take_ends(&mut client, &mut victims, Reason::Silent);
    }
    let time = since.elapsed();
    // It sent something shortly before it was stopped; from then on it was silent.
    assert!(lost == 1 && time > suspicion * 9 / 10, "{lost} losses told, after {time:?}");
    while since.elapsed() < stopped {
        client.bundle.wait(Some(stopped.saturating_sub(since.elapsed())));
        assert_eq!(take_ends(&mut client, &mut victims, Reason::Silent), 0);
    }
    victims[0].peer.go_on();
    // The same process answers under the same name, in another session: a repeated request is answered once.
    client.bundle.map(client.here, 0, there.name, there.key).expect("map");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut answer = None;
    while answer.is_none() {
        assert!(Instant::now() < deadline, "nobody answers; {:?}", client.bundle.counters());
        client.bundle.request(client.here, 0, super::COUNT, &[], b"").expect("mapped");
        client.bundle.drain();
        client.returns.borrow_mut().clear(); // it may not have heard that it was given up
        answer = client.answers.borrow_mut().pop_front();
    }
    client.bundle.drain();
    let said = victims[0].peer.ask("sessions");
    assert_eq!(said, "1 0", "sessions and violations of one that was given up and goes on");
    assert_eq!((client.bundle.sessions(), client.bundle.counters().violations), (1, 0));
    check(&victims[0]);
    fs::remove_file(&victims[0].file).expect("our own file");
    time
}

#[test]
fn a_peer_that_leaves_says_so_at_once_and_what_it_took() {
    let Some(_turn) = over_udp("deaths::a_peer_that_leaves_says_so_at_once_and_what_it_took") else { return };
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let mut peer = Peer::start("server", &[]);
        let mut client = Client::of(&[peer.address()]);
        client.bundle.request(client.here, 0, KEEP, &[0], b"kept").expect("mapped");
        client.ask(0, 1, 10); // so the message before it was taken
        assert_eq!(peer.ask("stop"), "stopped");
        for number in 1..20u32 {
            client.bundle.send(client.here, 0, NOTE, &[number], &[1; 300]).expect("mapped");
        }
        let since = Instant::now();
        assert_eq!(peer.ask("drop"), "dropped");
        let returns = client.returns.clone();
        // The request that it kept ends without a reply, because its token was dropped with the bundle.
        poll_until(&mut client.bundle, "19 returns and the end of a request", |bundle| {
            returns.borrow().len() == 19 && bundle.counters().ended == 1
        });
        shortest = shortest.min(since.elapsed());
        for back in returns.borrow().iter() {
            // If the peer were just silent, nobody could know that it did not take them.
            assert_eq!(back.certainty, Certainty::NotDelivered, "message {:?}", back.args);
            assert!(matches!(back.reason, Reason::PeerLost | Reason::NoSuchEndpoint), "{:?}", back.reason);
        }
        peer.finish();
    }
    eprintln!("a peer that leaves was noticed after {shortest:?}");
    assert!(shortest < Duration::from_secs(1), "noticed after {shortest:?} at best");
}

#[test]
fn a_peer_that_ends_well_is_noticed_without_a_pending_answer() {
    let Some(_turn) = over_udp("deaths::a_peer_that_ends_well_is_noticed_without_a_pending_answer") else { return };
    let peer = Peer::start("server", &[]);
    let mut client = Client::of(&[peer.address()]);
    client.ask(0, 1, 10);
    client.bundle.drain();
    peer.finish();
    // No request is pending, so silence would not be noticed.
    poll_until(&mut client.bundle, "its end", |bundle| bundle.sessions() == 0);
}
