//! The master: it tracks which worker has which piece.

use super::{Result, END, JOIN, RESULT, WORK};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use weft::am::ReplyToken;
use weft::{Bundle, Event, Node};

/// How many numbers a piece has.
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
    /// Gives a waiting piece to an idle worker.
    fn give(&mut self) -> Option<(u32, Range<u32>)> {
        let worker = *self.idle.last()?;
        let piece = self.waiting.pop()?;
        self.idle.pop();
        self.given.insert(worker, piece.clone());
        Some((worker, piece))
    }
}

pub fn master(end: u32) -> Result<()> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    let pieces = (0..end).step_by(PIECE as usize).map(|start| start..end.min(start.saturating_add(PIECE)));
    let queue = Rc::new(RefCell::new(Queue { waiting: pieces.rev().collect(), ..Queue::default() }));
    let (joins, results) = (queue.clone(), queue.clone());
    bundle.on(me, JOIN, move |m| {
        let mut queue = joins.borrow_mut();
        let (contact, worker) = (String::from_utf8_lossy(m.payload()), queue.joined.len() as u32);
        let Some((name, key)) = contact.split_once(' ') else { return };
        let (Ok(name), Ok(key)) = (name.parse(), key.parse()) else { return };
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
        // Not in the loop's head: handlers run while the request is made, and they borrow the queue.
        let mut next = queue.borrow_mut().give();
        while let Some((worker, piece)) = next {
            bundle.request(me, worker, WORK, &[worker, piece.start, piece.end], b"")?;
            next = queue.borrow_mut().give();
        }
    }
    println!("{} primes below {end}", queue.borrow().primes);
    for token in std::mem::take(&mut queue.borrow_mut().joined) {
        bundle.reply(token, END, &[], b"").ok(); // a dead worker needs no answer
    }
    bundle.poll_until(Bundle::is_acknowledged);
    Ok(())
}
