//! Networks that lose, duplicate, reorder and damage packets, and strangers that send garbage to a port.

use super::support::{insist, over_udp, poll_until, Address, Dice, Peer};
use super::{numbered, Client, ANSWER, ECHO, NOTE};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use weft::{HostAddress, MessageKind, Name, Outgoing};

pub fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

pub fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(loopback(0)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
    socket
}

/// The faults of a relay. Each hits one datagram in so many.
#[derive(Clone, Copy)]
pub struct Faults {
    pub one_of: u64,
}

/// Counts of what the relay did.
#[derive(Default)]
struct Done {
    relayed: AtomicU64,
    harmed: AtomicU64,
    foreign: AtomicU64,
}

/// Stands between two processes: each takes it for the other. It drops, duplicates, delays, cuts and damages datagrams, and replays
/// old ones. It also sends every passing datagram to both of them from a foreign port.
pub struct Relay {
    /// The port that the caller takes for the server's.
    front: u16,
    done: Arc<Done>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    pub fn start(client: u16, server: u16, faults: Faults, dice: &mut Dice) -> Relay {
        let (front, back, foreign) = (socket(), socket(), socket());
        let port = front.local_addr().expect("bound").port();
        let (done, stop) = (Arc::new(Done::default()), Arc::new(AtomicBool::new(false)));
        let twin = |socket: &UdpSocket| socket.try_clone().expect("a descriptor");
        let ways = [(twin(&front), twin(&back), server, client), (back, front, client, server)];
        let threads = ways.map(|(from, by, to, other)| {
            let way = Way { by, to: loopback(to), other: loopback(other), foreign: twin(&foreign), faults };
            let (done, stop, dice) = (done.clone(), stop.clone(), Dice(dice.roll() | 1));
            std::thread::spawn(move || way.run(&from, &done, &stop, dice))
        });
        Relay { front: port, done, stop, threads: threads.into() }
    }

    /// Ends it. Returns how many datagrams it relayed, how many of these it harmed, and how many it sent from a foreign port.
    pub fn end(self) -> [u64; 3] {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("it ends well");
        }
        [&self.done.relayed, &self.done.harmed, &self.done.foreign].map(|count| count.load(Ordering::Relaxed))
    }
}

/// One of a relay's two directions.
struct Way {
    by: UdpSocket,
    to: SocketAddr,
    /// The sender of the datagrams.
    other: SocketAddr,
    foreign: UdpSocket,
    faults: Faults,
}

impl Way {
    fn run(&self, from: &UdpSocket, done: &Done, stop: &AtomicBool, mut dice: Dice) {
        let mut buffer = vec![0; 65_536];
        let mut old: Vec<Vec<u8>> = Vec::new();
        let mut late: Option<Vec<u8>> = None;
        let send = |bytes: &[u8]| {
            // A datagram that cannot be sent is lost.
            let _ = self.by.send_to(bytes, self.to);
        };
        while !stop.load(Ordering::Relaxed) {
            // An error is the kernel's report of a port that is free by now.
            let Ok((bytes, _)) = from.recv_from(&mut buffer) else {
                late.take().iter().for_each(|datagram| send(datagram));
                continue;
            };
            let datagram = &mut buffer[..bytes];
            done.relayed.fetch_add(1, Ordering::Relaxed);
            match old.len() {
                0..500 => old.push(datagram.to_vec()),
                all => old[dice.below(all as u64) as usize] = datagram.to_vec(),
            }
            if dice.below(8) == 0 {
                done.foreign.fetch_add(1, Ordering::Relaxed);
                let to = if dice.below(2) == 0 { self.to } else { self.other };
                let _ = self.foreign.send_to(datagram, to);
            }
            if dice.below(self.faults.one_of) != 0 {
                send(datagram);
                late.take().iter().for_each(|datagram| send(datagram));
                continue;
            }
            done.harmed.fetch_add(1, Ordering::Relaxed);
            match dice.below(6) {
                0 => {}
                1 => (0..2).for_each(|_| send(datagram)),
                2 => late = Some(datagram.to_vec()),
                3 => {
                    let cut = dice.below(bytes as u64) as usize;
                    send(&datagram[..cut]);
                }
                4 => {
                    let at = dice.below(bytes as u64) as usize;
                    datagram[at] ^= 1 << dice.below(8);
                    send(datagram);
                }
                _ => {
                    send(datagram);
                    (0..4).for_each(|_| send(&old[dice.below(old.len() as u64) as usize]));
                }
            }
        }
    }
}

/// Messages of all kinds, each answered or stored once.
fn traffic(client: &mut Client, count: u32) {
    for number in 0..count {
        let (args, payload) = numbered(number);
        let message = Outgoing { op: NOTE, args: &args, payload: &payload, completion: None };
        insist(&mut client.bundle, client.here, 0, MessageKind::OneWay, message);
        if number % 10 == 0 {
            client.bundle.request(client.here, 0, ECHO, &args, &payload[..payload.len().min(3000)]).expect("mapped");
        }
    }
    client.bundle.drain();
    assert_eq!(client.answers.borrow_mut().drain(..).count() as u32, count.div_ceil(10));
    assert_eq!(client.count(0)[0], count);
    let counters = client.bundle.counters();
    assert_eq!((counters.returned, counters.sessions_lost, counters.violations), (0, 0, 0));
    assert_eq!(client.bundle.sessions(), 1);
}

/// A client that knows a server through a relay only, which harms one datagram in ten.
pub fn through_relay(there: Address, dice: &mut Dice) -> (Client, Relay) {
    let mut client = Client::of(&[]);
    let own = client.bundle.name(client.here).expect("name").address.port;
    let relay = Relay::start(own, there.name.address.port, Faults { one_of: 10 }, dice);
    let seen = behind(there, &relay);
    client.bundle.map(client.here, 0, seen.name, seen.key).expect("map");
    (client, relay)
}

/// A server as it is seen through a relay.
pub fn behind(there: Address, relay: &Relay) -> Address {
    let address = HostAddress { port: relay.front, ..there.name.address };
    Address { name: Name { address, ..there.name }, ..there }
}

#[test]
fn packets_lost_copied_mixed_cut_damaged_and_replayed_change_nothing() {
    let name = "hostile::packets_lost_copied_mixed_cut_damaged_and_replayed_change_nothing";
    let Some(_turn) = over_udp(name) else { return };
    let mut dice = Dice::fresh("a relay");
    let mut peer = Peer::start("server", &[]);
    let (mut client, relay) = through_relay(peer.address(), &mut dice);
    traffic(&mut client, 40_000);
    assert_eq!(peer.ask("sessions"), "1 0", "one session and no violation there");
    let [relayed, harmed, foreign] = relay.end();
    eprintln!("{relayed} datagrams relayed, {harmed} of them harmed; {foreign} from a foreign port");
    assert!(relayed > 1000 && harmed > relayed / 20 && foreign > relayed / 16, "the relay does what it should");
    peer.finish();
}

#[test]
fn garbage_thrown_at_the_ports_during_traffic_changes_nothing() {
    let Some(_turn) = over_udp("hostile::garbage_thrown_at_the_ports_during_traffic_changes_nothing") else { return };
    let mut dice = Dice::fresh("garbage");
    let mut peer = Peer::start("server", &[]);
    let there = peer.address();
    let mut client = Client::of(&[there]);
    let ports = [there.name.address.port, client.bundle.name(client.here).expect("name").address.port];
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, mut roll) = (stop.clone(), Dice(dice.roll() | 1));
    let thrower = std::thread::spawn(move || {
        let socket = socket();
        let mut thrown = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            let bytes = [0, 1, 39, 40, 41, 100, 1472, 9000, 60_000][roll.below(9) as usize];
            let mut garbage: Vec<u8> = (0..bytes).map(|_| roll.roll() as u8).collect();
            if bytes >= 40 && roll.below(4) > 0 {
                // As valid as a stranger can make it.
                garbage[4] = 1;
                garbage[5] = roll.below(6) as u8;
                garbage[6..8].fill(0);
                garbage[36..40].fill(0);
                weft_wire::packet::reseal(&mut garbage);
            }
            thrown += u64::from(socket.send_to(&garbage, loopback(ports[roll.below(2) as usize])).is_ok());
            std::thread::sleep(Duration::from_micros(50));
        }
        thrown
    });
    traffic(&mut client, 10_000);
    // More garbage while nothing is under way. After that, messages still work.
    std::thread::sleep(Duration::from_millis(200));
    client.ask(0, 1, 100);
    stop.store(true, Ordering::Relaxed);
    let thrown = thrower.join().expect("it ends well");
    eprintln!("{thrown} datagrams of garbage");
    assert!(thrown > 100, "it was thrown");
    assert_eq!(peer.ask("sessions"), "1 0");
    client.ask(0, 2, 100);
    peer.finish();
}

/// An empty datagram wakes the helper, and the program's poll then finds nothing. Later packets must wake it again all the same.
#[test]
fn an_empty_datagram_does_not_stop_later_wakeups() {
    let Some(_turn) = over_udp("hostile::an_empty_datagram_does_not_stop_later_wakeups") else { return };
    let mut bundle = weft::Bundle::new(&weft::Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint(weft::Key(5)).expect("endpoint");
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("asked")).expect("on");
    let there = Address::of(&bundle, here);
    // A program that polls from time to time, and does something else in between.
    let mut polls = |count: u32| {
        for _ in 0..count {
            bundle.poll();
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    polls(20);
    for _ in 0..3 {
        socket().send_to(&[], loopback(there.name.address.port)).expect("sent");
        polls(20);
    }
    let caller = std::thread::spawn(move || {
        let mut client = Client::of(&[there]);
        client.bundle.request(client.here, 0, ECHO, &[1], b"heard?").expect("mapped");
        poll_until(&mut client.bundle, "an answer or a return", |b| {
            !client.answers.borrow().is_empty() || b.counters().returned > 0
        });
        client.bundle.counters().returned
    });
    while !caller.is_finished() {
        polls(1);
    }
    assert_eq!(caller.join().expect("it ends well"), 0, "somebody is there");
}
