//! Messages between hosts, by real processes: over UDP on the loopback interface, and between network namespaces.

mod addresses;
mod deaths;
mod deputy;
mod hostile;
mod integrity;
mod levels;
mod messages;
mod names;
mod namespaces;
#[path = "../support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use support::{contents, poll_until, returns_of, tell, Address, Order, Orders};
use weft::am::{Message, ReplyToken};
use weft::{Bundle, Endpoint, Key, Name, Node, Returned, Settings};

/// Handlers of the servers: replies with everything inverted; keeps the request; counts; says how many were counted; sends back.
const ECHO: u8 = 1;
const KEEP: u8 = 2;
const NOTE: u8 = 3;
const COUNT: u8 = 4;
const BACK: u8 = 5;
/// Handlers of the tests.
const ANSWER: u8 = 20;
const SENT_BACK: u8 = 21;

#[test]
fn child() {
    support::play(&[
        ("server", server),
        ("streamer", messages::streamer),
        ("asker", messages::asker),
        ("opener", names::opener),
        ("far", namespaces::far),
        ("namer", addresses::namer),
        ("sleeper", addresses::sleeper),
        ("taker", levels::taker),
        ("late", deputy::late),
    ]);
}

/// A message's arguments and payload.
type Contents = (Vec<u32>, Vec<u8>);

fn inverted(args: &[u32], payload: &[u8]) -> Contents {
    (args.iter().rev().map(|a| !a).collect(), payload.iter().map(|b| !b).collect())
}

/// Bytes of the payload of a numbered message: mostly small, some of many packets.
fn size(number: u32) -> usize {
    match number % 500 {
        0 => 65_536,
        1..=9 => 9000 + number as usize % 9000,
        10..=99 => number as usize % 2000,
        _ => number as usize % 100,
    }
}

/// A numbered message.
fn numbered(number: u32) -> Contents {
    let (more, payload) = contents(number, number as usize % 16, size(number));
    ([vec![number], more].concat(), payload)
}

/// Takes numbered messages, each once and in order.
#[derive(Clone, Default)]
struct Stream(Rc<Cell<u32>>);

impl Stream {
    fn take(&self, args: &[u32], payload: &[u8]) {
        let (wanted, contents) = numbered(self.0.get());
        assert_eq!(args, wanted, "each once and in order");
        assert!(payload == contents, "message {}: {} bytes of other contents", args[0], payload.len());
        self.0.set(args[0] + 1);
    }
}

/// A server. Its first word is its number of endpoints (default one); its second word names a file to which it writes the numbers
/// of the messages that it handles. Orders: `stop` ends polling, and `drop` after that drops the bundle; `compute …` stops polling
/// for that many milliseconds; `sessions` reports the number of sessions and of violations; `link …`, `addr …` and `route …` are
/// passed to `ip`.
fn server(orders: Orders) {
    let count = orders.words.first().map_or(1, |word| word.parse().expect("a number"));
    let file = orders.words.get(1).map(|path| OpenOptions::new().append(true).open(path).expect("a file"));
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let log = Log { file: file.map(Rc::new), back: Rc::default() };
    let mut first = None;
    for number in 0..count {
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        answer(&mut bundle, here, number, &log);
        first = first.or(Some(here));
        tell(Address::of(&bundle, here));
    }
    let (mut last, mut home) = (Order::None, None);
    bundle.poll_until(|bundle| {
        let next = log.back.borrow_mut().pop_front();
        if let Some((to, (args, payload))) = next {
            let here = first.expect("it was sent to one");
            if home.replace(to) != Some(to) {
                // The key of the sender of these is its endpoint's number.
                bundle.map(here, 0, to, Key(to.endpoint.0.into())).expect("map");
            }
            bundle.send(here, 0, SENT_BACK, &args, &payload).expect("mapped, and small");
        }
        last = orders.look();
        match &last {
            Order::None => false,
            Order::Line(line) if line == "sessions" => {
                tell(format!("{} {}", bundle.sessions(), bundle.counters().violations));
                false
            }
            Order::Line(line) if ["link ", "addr ", "route "].iter().any(|word| line.starts_with(word)) => {
                namespaces::ip(line);
                tell("done");
                false
            }
            Order::Line(line) if line.starts_with("compute ") => {
                tell("computing");
                std::thread::sleep(Duration::from_millis(line["compute ".len()..].parse().expect("milliseconds")));
                false
            }
            Order::Line(_) | Order::End => true,
        }
    });
    if matches!(last, Order::End) {
        return;
    }
    tell("stopped");
    if orders.wait().as_deref() == Some("drop") {
        drop(bundle);
        tell("dropped");
    }
    while orders.wait().is_some() {}
}

/// State shared by a server's handlers.
#[derive(Clone)]
struct Log {
    /// The numbers of messages that were handled: each is written before its handler returns.
    file: Option<Rc<File>>,
    /// Messages to send back, with their destinations.
    back: Rc<RefCell<VecDeque<(Name, Contents)>>>,
}

impl Log {
    fn note(&self, args: &[u32]) {
        if let Some(mut file) = self.file.as_deref() {
            file.write_all(&args[0].to_le_bytes()).expect("room in the file");
        }
    }
}

/// Sets all the handlers of a server's endpoint.
fn answer(bundle: &mut Bundle, here: Endpoint, number: u32, log: &Log) {
    let seen = log.clone();
    bundle
        .on(here, ECHO, move |m| {
            if let [number, ..] = m.args() {
                seen.note(&[*number]);
            }
            let (args, payload) = inverted(m.args(), m.payload());
            m.reply(ANSWER, &args, &payload).expect("once, and small");
        })
        .expect("on");
    let (seen, kept) = (log.clone(), RefCell::new(Vec::<ReplyToken>::new()));
    bundle
        .on(here, KEEP, move |m| {
            seen.note(m.args());
            kept.borrow_mut().push(m.defer().expect("a request"));
        })
        .expect("on");
    let stream = Stream::default();
    let (seen, counted) = (log.clone(), stream.clone());
    bundle
        .on(here, NOTE, move |m| {
            stream.take(m.args(), m.payload());
            seen.note(m.args());
        })
        .expect("on");
    bundle.on(here, COUNT, move |m| m.reply(ANSWER, &[counted.0.get(), number], b"").expect("once")).expect("on");
    let waiting = log.back.clone();
    bundle
        .on(here, BACK, move |m| {
            let contents = inverted(m.args(), m.payload());
            waiting.borrow_mut().push_back((m.source().expect("it is there"), contents));
        })
        .expect("on");
}

/// A test's end.
struct Client {
    bundle: Bundle,
    here: Endpoint,
    answers: Rc<RefCell<VecDeque<Contents>>>,
    returns: Rc<RefCell<Vec<Returned>>>,
}

impl Client {
    /// With an endpoint that is mapped to these.
    fn of(there: &[Address]) -> Client {
        Client::with(Settings::default(), there)
    }

    fn with(settings: Settings, there: &[Address]) -> Client {
        let mut bundle = Bundle::with_settings(&Node::new().expect("node"), settings).expect("bundle");
        let here = bundle.endpoint(Key(0)).expect("endpoint");
        let returns = returns_of(&mut bundle, here);
        let answers: Rc<RefCell<VecDeque<_>>> = Rc::default();
        for op in [ANSWER, SENT_BACK] {
            let seen = answers.clone();
            let take =
                move |m: &mut Message<'_>| seen.borrow_mut().push_back((m.args().to_vec(), m.payload().to_vec()));
            bundle.on(here, op, take).expect("on");
        }
        for (index, there) in (0..).zip(there) {
            bundle.map(here, index, there.name, there.key).expect("map");
        }
        Client { bundle, here, answers, returns }
    }

    /// The next answer.
    fn answer(&mut self) -> Contents {
        let Client { answers, returns, .. } = self;
        poll_until(&mut self.bundle, "an answer", |_| {
            assert!(returns.borrow().is_empty(), "it came back because of {}", returns.borrow()[0].reason);
            !answers.borrow().is_empty()
        });
        answers.borrow_mut().pop_front().expect("just there")
    }

    /// Sends a request of this size and checks the answer.
    fn ask(&mut self, to: u32, seed: u32, bytes: usize) {
        let (args, payload) = contents(seed, seed as usize % 17, bytes);
        self.bundle.request(self.here, to, ECHO, &args, &payload).expect("mapped");
        assert!(self.answer() == inverted(&args, &payload), "an answer of {bytes} bytes to another question");
    }

    /// How many one-way messages a server took, and the number of its endpoint.
    fn count(&mut self, to: u32) -> Vec<u32> {
        self.bundle.request(self.here, to, COUNT, &[], b"").expect("mapped");
        self.answer().0
    }
}
