//! Messages between the hosts: each arrives once, complete and in order, whatever the wire does.

use super::lab::{in_lab, in_lab_for_long, Lab, Wire};
use super::rival;
use super::support::{contents, tell, Address, Order, Orders};
use serde_json::Value;
use std::cell::Cell;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft::{Bundle, Endpoint, Event, Key, MessageKind, Node, Outgoing, SendError};

/// Handlers of the receiver: numbered messages; a request whose answer has all bytes inverted.
const NOTE: u8 = 1;
const ECHO: u8 = 2;
/// The sender's handler.
const ANSWER: u8 = 3;

/// How long an operation may take on a bad wire.
const PATIENCE: Duration = Duration::from_secs(1200);

/// After this time, everything under way has been acknowledged and reported.
const REST: Duration = Duration::from_millis(500);

/// Plays the part that a host is told.
pub fn play(word: &str, rest: &str, orders: Orders) {
    match word {
        "receive" => receive(orders),
        "send" => send(rest, orders),
        _ => panic!("no part `{word}`"),
    }
}

/// Bytes of the payload of a numbered message, from 8 to 65,536: mostly small, some of many packets.
fn size(number: u32) -> usize {
    match number % 500 {
        0 => 65_536,
        1..=9 => 8192 + number as usize % 9000,
        10..=99 => 8 + number as usize % 2000,
        _ => 8 + number as usize % 100,
    }
}

/// Receives numbered messages, each once and in order, and answers requests.
fn receive(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    // Messages received, and those that were out of order or had wrong contents.
    let (taken, wrong) = (Rc::new(Cell::new(0u32)), Rc::new(Cell::new(0u32)));
    let (seen, bad) = (taken.clone(), wrong.clone());
    bundle
        .on(here, NOTE, move |m| {
            let number = seen.get();
            let is_next = m.args() == [number] && m.payload() == contents(number, 0, m.payload().len()).1;
            bad.set(bad.get() + u32::from(!is_next));
            seen.set(number + u32::from(is_next));
        })
        .expect("on");
    bundle
        .on(here, ECHO, |m| {
            let inverted: Vec<u8> = m.payload().iter().map(|byte| !byte).collect();
            m.reply(ANSWER, m.args(), &inverted).expect("once, and small");
        })
        .expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |bundle, line| match line {
        "taken" => tell(format!("{} {}", taken.get(), wrong.get())),
        "damaged" => tell_status(bundle, "packets_damaged"),
        "sink" => {
            rival::sink();
            tell("done");
        }
        "lost" => tell(format!("{} {}", bundle.counters().sessions_lost, bundle.counters().violations)),
        other => panic!("no order `{other}`"),
    });
}

/// Sends. The order `stream N BYTES` sends N numbered messages of this size (of all sizes if 0), and reports the microseconds until
/// all were stored; `ask N` sends N requests one after the other.
fn send(there: &str, orders: Orders) {
    let there = Address::parse(there);
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint(Key(1)).expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let mut sender = Sender { answered: answers(&mut bundle, here), bundle, here, number: 0 };
    tell("ready");
    let mut rival = None;
    loop {
        let line = match orders.look() {
            Order::End => return,
            Order::Line(line) => line,
            Order::None => {
                sender.bundle.poll();
                continue;
            }
        };
        let mut words = line.split(' ');
        let order = words.next().unwrap_or_default().to_owned();
        let mut number = || words.next().map_or(0, |word| word.parse().expect("a number"));
        match &*order {
            "stream" => tell(sender.stream(number(), number() as usize).as_micros()),
            "ask" => {
                (0..number()).for_each(|seed| sender.ask(seed));
                tell("answered");
            }
            // An earlier message again, one too early, and one with wrong contents.
            "plant" => {
                let next = sender.number;
                for (number, seed) in [(next - 1, next - 1), (next + 1, next + 1), (next, next + 1)] {
                    sender.post(MessageKind::OneWay, NOTE, number, &contents(seed, 0, 100).1);
                }
                sender.bundle.drain();
                tell("planted");
            }
            "connect" => {
                let (count, at_once) = (number(), number());
                (0..count / at_once).for_each(|_| connect(there, at_once));
                tell("done");
            }
            "flow" => {
                rival = Some(rival::flow());
                tell("done");
            }
            "written" => tell(rival.as_ref().map_or(0, |sent| sent.load(Ordering::Relaxed))),
            "damaged" => tell_status(&mut sender.bundle, "packets_damaged"),
            "packet" => tell_status(&mut sender.bundle, "packet_bytes"),
            "counters" => {
                let counters = sender.bundle.counters();
                tell(format!("{} {} {}", counters.returned, counters.sessions_lost, counters.violations));
            }
            other => panic!("no order `{other}`"),
        }
    }
}

/// Reports from `weft status` for this host's processes: the sum of all fields with this name.
fn tell_status(bundle: &mut Bundle, field: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let mut asker = command.args(["status", "--json"]).stdout(Stdio::piped()).spawn().expect("it was built");
    // Only the bundle's poll writes its report.
    while asker.try_wait().expect("it is ours").is_none() {
        bundle.poll();
    }
    let output = asker.wait_with_output().expect("it is ours");
    let document = serde_json::from_slice(&output.stdout).expect("a document");
    tell(sum_of(&document, field));
}

fn sum_of(value: &Value, field: &str) -> u64 {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| if name == field { value.as_u64().unwrap_or(0) } else { sum_of(value, field) })
            .sum(),
        Value::Array(values) => values.iter().map(|value| sum_of(value, field)).sum(),
        _ => 0,
    }
}

/// Each of `count` bundles, with a session of its own, exchanges a message of 1 KB with the receiver.
fn connect(there: Address, count: u32) {
    let node = Node::new().expect("node");
    let mut bundles: Vec<_> = (0..count)
        .map(|_| {
            let mut bundle = Bundle::new(&node).expect("bundle");
            let here = bundle.endpoint(Key(1)).expect("endpoint");
            bundle.map(here, 0, there.name, there.key).expect("map");
            (answers(&mut bundle, here), bundle, here, false)
        })
        .collect();
    let since = Instant::now();
    while bundles.iter().any(|(answered, ..)| answered.get() == 0) {
        assert!(since.elapsed() < PATIENCE, "not all were answered");
        for (seed, (_, bundle, here, is_asked)) in (0..).zip(&mut bundles) {
            let (_, payload) = contents(seed, 0, 1024);
            *is_asked = *is_asked || bundle.try_request(*here, 0, ECHO, &[seed], &payload).is_ok();
            bundle.poll();
            while let Some(event) = bundle.next_event() {
                if let Event::Returned(message) = event {
                    panic!("{} ({}) after {:?}", message.reason, message.certainty, since.elapsed());
                }
            }
        }
    }
}

fn answers(bundle: &mut Bundle, here: Endpoint) -> Rc<Cell<u32>> {
    let answered = Rc::new(Cell::new(0));
    let seen = answered.clone();
    bundle
        .on(here, ANSWER, move |m| {
            let (_, payload) = contents(m.args()[0], 0, m.payload().len());
            assert!(m.payload().iter().zip(&payload).all(|(a, b)| *a == !b), "an answer to another question");
            seen.set(seen.get() + 1);
        })
        .expect("on");
    answered
}

struct Sender {
    bundle: Bundle,
    here: Endpoint,
    answered: Rc<Cell<u32>>,
    number: u32,
}

impl Sender {
    fn stream(&mut self, count: u32, bytes: usize) -> Duration {
        let start = Instant::now();
        for _ in 0..count {
            let number = self.number;
            let (_, payload) = contents(number, 0, if bytes == 0 { size(number) } else { bytes });
            self.post(MessageKind::OneWay, NOTE, number, &payload);
            self.number += 1;
        }
        self.bundle.drain();
        start.elapsed()
    }

    /// Sends a request and waits for its answer. The seed gives its size.
    fn ask(&mut self, seed: u32) {
        let before = self.answered.get();
        let (_, payload) = contents(seed, 0, [8, 100, 1400, 8192, 65_536][seed as usize % 5]);
        self.post(MessageKind::Request, ECHO, seed, &payload);
        let answered = self.answered.clone();
        self.wait("an answer", |_| answered.get() > before);
    }

    fn post(&mut self, kind: MessageKind, op: u8, number: u32, payload: &[u8]) {
        let here = self.here;
        let message = Outgoing { op, args: &[number], payload, completion: None };
        self.wait("room for a message", |bundle| match bundle.try_post(here, 0, kind, message) {
            Ok(()) => true,
            Err(SendError::Full) => false,
            Err(other) => panic!("not sent: {other}"),
        });
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Bundle) -> bool) {
        let since = Instant::now();
        self.bundle.poll_until(|bundle| {
            assert!(since.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}; {:?}", bundle.counters());
            done(bundle)
        });
    }
}

/// Two hosts, one of which streams to the other.
pub struct Talk {
    pub lab: Lab,
}

impl Talk {
    pub fn start(mtu: u32) -> Talk {
        Talk { lab: Lab::new(mtu) }
    }

    /// Starts the hosts; the wire must be there.
    pub fn begin(&mut self) {
        let Lab { a, b } = &mut self.lab;
        b.say("receive");
        let there = b.hear();
        a.say(&format!("send {there}"));
        assert_eq!(a.hear(), "ready");
    }

    /// Sends numbered messages, each of which must arrive once, complete and in order.
    pub fn stream(&mut self, count: u32, bytes: usize) -> Duration {
        let Lab { a, .. } = &mut self.lab;
        a.say(&format!("stream {count} {bytes}"));
        let took = a.hear_for(PATIENCE).expect("the stream ends");
        Duration::from_micros(took.parse().expect("microseconds"))
    }

    /// Sends requests, one after the other, each of which must be answered.
    pub fn ask(&mut self, count: u32) {
        let Lab { a, .. } = &mut self.lab;
        a.say(&format!("ask {count}"));
        assert_eq!(a.hear_for(PATIENCE).as_deref(), Some("answered"));
    }

    /// Waits until nothing is under way.
    pub fn rest(&self) {
        std::thread::sleep(REST);
    }

    /// Checks that all messages were received, and that no peer was given up.
    pub fn end(mut self, sent: u32) {
        let Lab { a, b } = &mut self.lab;
        assert_eq!(b.ask("taken"), format!("{sent} 0"), "taken, and wrong ones");
        assert_eq!(a.ask("counters"), "0 0 0", "returned, sessions lost, violations");
        assert_eq!(b.ask("lost"), "0 0");
    }
}

#[test]
fn planted_copies_gaps_and_other_contents_are_found() {
    in_lab("messages::planted_copies_gaps_and_other_contents_are_found", || {
        let mut talk = Talk::start(1500);
        let wire = Wire::start("");
        talk.begin();
        talk.stream(10, 0);
        assert_eq!(talk.lab.a.ask("plant"), "planted");
        assert_eq!(talk.lab.b.ask("taken"), "10 3");
        wire.stop();
    });
}

/// 8 B to 64 KiB; a third is lost in each direction, some are late, some are damaged.
fn through_a_bad_wire(count: u32) {
    let mut talk = Talk::start(1500);
    let wire = Wire::start("--loss 30% --reorder 10%,64 --corrupt 1% --seed 1");
    talk.begin();
    talk.stream(count, 0);
    talk.end(count);
    let counts = wire.stop();
    for way in [0, 1] {
        let share = counts.of(way, "lost") as f64 / counts.of(way, "frames") as f64;
        assert!((0.25..0.35).contains(&share), "{share} lost");
    }
    for what in ["reordered", "corrupted"] {
        assert!(counts.sum(what) > 0, "{what}");
    }
    eprintln!("{count} messages through {} frames", counts.of(0, "frames"));
}

#[test]
fn each_message_arrives_once_through_loss_reordering_and_damage() {
    let test = "messages::each_message_arrives_once_through_loss_reordering_and_damage";
    in_lab(test, || through_a_bad_wire(100_000));
}

#[test]
#[ignore = "takes minutes"]
fn a_million_messages_arrive_once_through_loss_reordering_and_damage() {
    let test = "messages::a_million_messages_arrive_once_through_loss_reordering_and_damage";
    in_lab_for_long(test, || through_a_bad_wire(1_000_000));
}

/// The most memory of a wire, in KiB: frames under way, spare buffers, and the program. A full-sized buffer for each frame would be
/// ten times that.
const RESIDENT_MOST: u64 = 64 << 10;

/// One flow of 8 KiB messages over 1 Gb/s with 200 µs of delay each way. Reports the share of the rate that it used.
fn over_a_shaped_wire(count: u32, mtu: u32) {
    const BYTES: usize = 8192;
    let mut talk = Talk::start(mtu);
    let wire = Wire::start("--rate 1Gbit --delay 200us");
    talk.begin();
    let warm = 2_000;
    talk.stream(warm, BYTES);
    let took = talk.stream(count, BYTES);
    talk.end(warm + count);
    let resident = wire.resident();
    assert!(resident < RESIDENT_MOST, "the wire has {resident} KiB");
    let counts = wire.stop();
    for what in ["lost", "queue_dropped", "refused", "merged"] {
        assert_eq!(counts.sum(what), 0, "{what}");
    }
    // Headers: of Ethernet, IP and UDP, of the packet and its frame; of the record, with an argument.
    let most = (f64::from(mtu) - 28.0 - 40.0 - 12.0) / (f64::from(mtu) + 14.0) * 8192.0 / (16.0 + 8.0 + 8192.0);
    let rate = f64::from(count) * BYTES as f64 * 8.0 / took.as_secs_f64();
    eprintln!("MTU {mtu}: {:.0} Mbit/s, {:.1} % of what headers leave of 1 Gbit/s", rate / 1e6, rate / most / 1e7);
}

#[test]
fn a_shaped_wire_loses_nothing_of_a_flow() {
    in_lab("messages::a_shaped_wire_loses_nothing_of_a_flow", || over_a_shaped_wire(10_000, 1500));
}

#[test]
#[ignore = "measures"]
fn the_share_of_a_shaped_rate_is_told() {
    in_lab_for_long("messages::the_share_of_a_shaped_rate_is_told", || {
        [1500, 9000].into_iter().for_each(|mtu| over_a_shaped_wire(60_000, mtu));
    });
}

#[test]
#[ignore = "measures"]
fn what_a_wire_without_faults_carries_is_told() {
    in_lab_for_long("messages::what_a_wire_without_faults_carries_is_told", || {
        for mtu in [1500, 9000] {
            const COUNT: u32 = 60_000;
            let mut talk = Talk::start(mtu);
            let wire = Wire::start("");
            talk.begin();
            let took = talk.stream(COUNT, 8192).as_secs_f64();
            talk.end(COUNT);
            let counts = wire.stop();
            let [mbit, frames] = [f64::from(COUNT) * 8.0 * 8192.0 / 1e6, counts.sum("frames") as f64];
            let missed = counts.sum("missed");
            eprintln!("MTU {mtu}: {:.0} Mbit/s, {:.0} frames/s, {missed} missed", mbit / took, frames / took);
        }
    });
}
