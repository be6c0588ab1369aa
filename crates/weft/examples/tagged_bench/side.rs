//! One of the two processes: its endpoints, and single messages.

use super::{Result, KEY};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::tagged::{Label, Outcome, Pattern, Settings};
use weft::{Bundle, Endpoint, Node};

const ECHO: u8 = 1;
const ANSWER: u8 = 2;

/// The two endpoints of a process: one sends messages with their contents wherever possible, the other announces all of them.
pub struct Side {
    pub bundle: Bundle,
    pub ends: [Endpoint; 2],
    handlers: Endpoint,
    answers: Rc<Cell<u64>>,
}

impl Side {
    pub fn new() -> Result<Side> {
        let mut bundle = Bundle::new(&Node::new()?)?;
        let with = |eager_most| Settings { eager_most, ..Settings::default() };
        let ends = [bundle.tagged_endpoint(KEY, with(64 << 10))?, bundle.tagged_endpoint(KEY, with(0))?];
        let handlers = bundle.endpoint(KEY)?;
        let answers = Rc::new(Cell::new(0));
        let seen = answers.clone();
        bundle.on(handlers, ECHO, |m| {
            let payload = m.payload();
            m.reply(ANSWER, &[], payload).expect("asked once, and small");
        })?;
        bundle.on(handlers, ANSWER, move |m| seen.set(seen.get() + black_box(m.payload().len() as u64) + 1))?;
        Ok(Side { bundle, ends, handlers, answers })
    }

    pub fn names(&self) -> Result<String> {
        let all = [self.ends[0], self.ends[1], self.handlers].map(|end| self.bundle.name(end).map(|n| n.to_string()));
        Ok(all.into_iter().collect::<std::result::Result<Vec<_>, _>>()?.join(" "))
    }

    pub fn map(&mut self, names: &str) -> Result<()> {
        let names: Vec<_> = names.split_whitespace().collect();
        for (end, name) in self.ends.into_iter().zip(&names) {
            self.bundle.tagged(end)?.map(0, name.parse()?, KEY)?;
        }
        Ok(self.bundle.map(self.handlers, 0, names[2].parse()?, KEY)?)
    }

    pub fn receive(&mut self, end: usize, tag: u64, room: Vec<u8>) -> Result<()> {
        let mut calls = self.bundle.tagged(self.ends[end])?;
        Ok(calls.try_receive(Pattern::tagged(tag).from(0), room, 1).map_err(|(error, _)| error)?)
    }

    pub fn send(&mut self, end: usize, tag: u64, bytes: Vec<u8>) -> Result<()> {
        let mut calls = self.bundle.tagged(self.ends[end])?;
        Ok(calls.try_send(0, Label::tagged(tag), bytes, 2).map_err(|(error, _)| error)?)
    }

    /// Polls until a receive and, unless `sends` is false, a send have ended. Gives their buffers.
    pub fn both(&mut self, sends: bool) -> Result<(Vec<u8>, Vec<u8>)> {
        let (mut received, mut sent) = (None, if sends { None } else { Some(Vec::new()) });
        loop {
            while let Some(done) = self.bundle.next_completion() {
                match (done.outcome, done.buffer) {
                    (Outcome::Received(_), Some(buffer)) => received = Some(buffer),
                    (Outcome::Sent, Some(buffer)) => sent = Some(buffer),
                    (other, _) => return Err(format!("{other:?}").into()),
                }
            }
            match (received, sent) {
                (Some(received), Some(sent)) => return Ok((received, sent)),
                (one, other) => (received, sent) = (one, other),
            }
            self.bundle.poll();
        }
    }

    pub fn requests(&mut self, count: u32, size: usize) -> Result<Duration> {
        let bytes = vec![1; size];
        let begin = Instant::now();
        for _ in 0..count {
            let expected = self.answers.get() + size as u64 + 1;
            self.bundle.request(self.handlers, 0, ECHO, &[], &bytes)?;
            while self.answers.get() < expected {
                self.bundle.poll();
            }
        }
        Ok(begin.elapsed() / count)
    }
}
