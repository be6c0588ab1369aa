//! A work queue that balances itself: a master hands out pieces as workers ask, here ranges of which to count the primes.
//!
//!     cargo run --release --example work_queue master 4000000      prints NAME and KEY, and at the end the primes below that
//!     cargo run --release --example work_queue worker NAME KEY     one of any number, at any time, on any host
//!
//! A piece goes to a worker as a request; the reply is the result, and asks for the next one. The piece of a worker that dies
//! comes back, and is handed out again.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use weft::am::{Bundle, ReplyToken};
use weft::{Event, Key, Node};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What the master does: let a worker join, which is answered at the end of all work; take a result.
const JOIN: u8 = 1;
const RESULT: u8 = 2;
/// What a worker does: work at a piece; end.
const WORK: u8 = 1;
const END: u8 = 2;
/// Numbers of a piece.
const PIECE: u32 = 50_000;

/// A worker is known by its index in the translation table.
#[derive(Default)]
struct Queue {
    waiting: Vec<Range<u32>>,
    given: HashMap<u32, Range<u32>>,
    idle: Vec<u32>,
    joined: Vec<ReplyToken>,
    primes: u64,
}

impl Queue {
    /// Gives a piece that waits to a worker that has none.
    fn give(&mut self) -> Option<(u32, Range<u32>)> {
        let worker = *self.idle.last()?;
        let piece = self.waiting.pop()?;
        self.idle.pop();
        self.given.insert(worker, piece.clone());
        Some((worker, piece))
    }
}

fn master(end: u32) -> Result<()> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    let pieces = (0..end).step_by(PIECE as usize).map(|start| start..end.min(start.saturating_add(PIECE)));
    let queue = Rc::new(RefCell::new(Queue { waiting: pieces.rev().collect(), ..Queue::default() }));
    let (joins, results) = (queue.clone(), queue.clone());
    bundle.on(me, JOIN, move |m| {
        let mut queue = joins.borrow_mut();
        let (contact, worker) = (String::from_utf8_lossy(m.payload()), queue.joined.len() as u32);
        let Some((name, key)) = contact.split_once(' ') else { return };
        let (Ok(name), Ok(key)) = (name.parse(), parse(key)) else { return };
        if m.context().map(me, worker, name, key).is_ok() {
            queue.joined.extend(m.defer());
            queue.idle.push(worker);
        }
    })?;
    bundle.on(me, RESULT, move |m| {
        let &[worker, primes] = m.args() else { return };
        let mut queue = results.borrow_mut();
        if queue.given.remove(&worker).is_some() {
            queue.primes += u64::from(primes);
            queue.idle.push(worker);
        }
    })?;
    println!("{} {:016x}", bundle.name(me)?, bundle.key(me)?.0);
    while !queue.borrow().waiting.is_empty() || !queue.borrow().given.is_empty() {
        bundle.wait(None);
        while let Some(event) = bundle.next_event() {
            let Event::Returned(m) = event else { continue };
            let mut queue = queue.borrow_mut();
            let Some(piece) = m.destination.and_then(|worker| queue.given.remove(&worker)) else { continue };
            eprintln!("work_queue: {piece:?} came back: {}", m.reason);
            queue.waiting.push(piece);
        }
        // Not in the loop's head: handlers run while the request is made, and need the queue.
        let mut next = queue.borrow_mut().give();
        while let Some((worker, piece)) = next {
            bundle.request(me, worker, WORK, &[worker, piece.start, piece.end], b"")?;
            next = queue.borrow_mut().give();
        }
    }
    println!("{} primes below {end}", queue.borrow().primes);
    for token in std::mem::take(&mut queue.borrow_mut().joined) {
        bundle.reply(token, END, &[], b"").ok(); // who died needs no answer
    }
    bundle.poll_until(Bundle::is_acknowledged);
    Ok(())
}

fn worker(name: &str, key: &str) -> Result<()> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.map(me, 0, name.parse()?, parse(key)?)?;
    let is_over = Rc::new(Cell::new(false));
    let end = is_over.clone();
    bundle.on(me, WORK, |m| {
        let &[worker, start, end] = m.args() else { return };
        println!("{:?}", start..end);
        let primes = (start..end).filter(|&n| n > 1 && (2..).take_while(|d| *d <= n / d).all(|d| n % d != 0)).count();
        m.reply(RESULT, &[worker, primes as u32], b"").ok(); // that the master is gone is told below
    })?;
    bundle.on(me, END, move |_| end.set(true))?;
    let contact = format!("{} {:016x}", bundle.name(me)?, bundle.key(me)?.0);
    bundle.request(me, 0, JOIN, &[], contact.as_bytes())?;
    while !is_over.get() {
        bundle.wait(None);
        while let Some(event) = bundle.next_event() {
            let Event::Returned(m) = event else { continue };
            return Err(format!("no work from the master any more: {}", m.reason).into());
        }
    }
    Ok(())
}

fn parse(key: &str) -> Result<Key> {
    Ok(Key(u64::from_str_radix(key, 16).map_err(|_| "the key is no number of 16 digits")?))
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["master", end] => end.parse().map_err(|_| "that is no NUMBER to count primes below".into()).and_then(master),
        ["worker", name, key] => worker(name, key),
        _ => Err("usage: work_queue master NUMBER | worker NAME KEY (the master prints NAME and KEY)".into()),
    };
    if let Err(why) = done {
        eprintln!("work_queue: {why}");
        std::process::exit(1);
    }
}
