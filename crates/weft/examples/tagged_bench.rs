//! What tagged messages cost between two processes, beside requests with replies, a pipe and a copy, in one run:
//! `cargo run --release --example tagged_bench [ROUNDS]`. Each figure is the median of the rounds; the rounds are interleaved.

use std::cell::Cell;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::tagged::{Label, Outcome, Pattern, Settings};
use weft::{am::Bundle, Endpoint, Key, Node};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const KEY: Key = Key(7);
const PING: u64 = 1;
const PONG: u64 = 2;
/// Its data says what comes next: how many, how long, and whether a receive is posted before.
const SERIES: u64 = 3;
const ECHO: u8 = 1;
const ANSWER: u8 = 2;

/// The two ends of a process: one that sends all with its contents, as far as that goes, and one that announces all.
struct Side {
    bundle: Bundle,
    ends: [Endpoint; 2],
    handlers: Endpoint,
    answers: Rc<Cell<u64>>,
}

/// So many messages of so many bytes there and back.
#[derive(Clone, Copy)]
struct Series {
    end: usize,
    count: u32,
    size: usize,
    is_posted: bool,
}

impl Side {
    fn new() -> Result<Side> {
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

    fn names(&self) -> Result<String> {
        let all = [self.ends[0], self.ends[1], self.handlers].map(|end| self.bundle.name(end).map(|n| n.to_string()));
        Ok(all.into_iter().collect::<std::result::Result<Vec<_>, _>>()?.join(" "))
    }

    fn map(&mut self, names: &str) -> Result<()> {
        let names: Vec<_> = names.split_whitespace().collect();
        for (end, name) in self.ends.into_iter().zip(&names) {
            self.bundle.tagged(end)?.map(0, name.parse()?, KEY)?;
        }
        Ok(self.bundle.map(self.handlers, 0, names[2].parse()?, KEY)?)
    }

    fn receive(&mut self, end: usize, tag: u64, room: Vec<u8>) -> Result<()> {
        let mut calls = self.bundle.tagged(self.ends[end])?;
        Ok(calls.try_receive(Pattern::tagged(tag).from(0), room, 1).map_err(|(error, _)| error)?)
    }

    fn send(&mut self, end: usize, tag: u64, bytes: Vec<u8>) -> Result<()> {
        let mut calls = self.bundle.tagged(self.ends[end])?;
        Ok(calls.try_send(0, Label::tagged(tag), bytes, 2).map_err(|(error, _)| error)?)
    }

    /// Polls until a receive and, unless `sends` is false, a send have ended. Gives their buffers.
    fn both(&mut self, sends: bool) -> Result<(Vec<u8>, Vec<u8>)> {
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

    /// The time of one message there and back.
    fn measure(&mut self, series: Series) -> Result<Duration> {
        let Series { end, count, size, is_posted } = series;
        let data = (count as u64) << 32 | (size as u64) << 1 | u64::from(is_posted);
        self.receive(end, PONG, vec![0; size])?;
        self.bundle.tagged(self.ends[end])?.try_inject(0, Label::tagged(SERIES).with(data), b"")?;
        let (mut room, _) = self.both(false)?;
        let mut bytes = vec![1; size];
        let begin = Instant::now();
        for _ in 0..count {
            self.receive(end, PONG, room)?;
            self.send(end, PING, bytes)?;
            (room, bytes) = self.both(true)?;
        }
        black_box(&room);
        Ok(begin.elapsed() / count)
    }

    /// The other side of it.
    fn answer(&mut self, series: Series) -> Result<()> {
        let Series { end, count, size, is_posted } = series;
        let (mut room, mut bytes) = (vec![0; size], vec![0; size]);
        if is_posted {
            self.receive(end, PING, std::mem::take(&mut room))?;
        }
        self.send(end, PONG, vec![0; size])?;
        let mut sends = true;
        for round in 0..count {
            if !is_posted {
                while self.bundle.tagged(self.ends[end])?.peek(Pattern::tagged(PING).from(0))?.is_none() {
                    self.bundle.poll();
                }
                self.receive(end, PING, std::mem::take(&mut room))?;
            }
            let (got, spare) = self.both(sends)?;
            sends = true;
            if is_posted && round + 1 < count {
                let next = if spare.len() == size { spare } else { std::mem::replace(&mut bytes, vec![0; size]) };
                self.receive(end, PING, next)?;
            } else {
                room = spare;
                room.resize(size, 0);
            }
            self.send(end, PONG, got)?;
        }
        // The last answer's end.
        loop {
            while let Some(done) = self.bundle.next_completion() {
                if done.outcome == Outcome::Sent {
                    return Ok(());
                }
            }
            self.bundle.poll();
        }
    }

    fn requests(&mut self, count: u32, size: usize) -> Result<Duration> {
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

/// Echoes series until a line comes; then what comes by the pipe.
fn child(names: &str) -> Result<()> {
    let mut side = Side::new()?;
    println!("{}", side.names()?);
    side.map(names)?;
    loop {
        side.bundle.poll();
        for end in 0..2 {
            let Some((message, claim)) = side.bundle.tagged(side.ends[end])?.claim(Pattern::tagged(SERIES))? else {
                continue;
            };
            side.bundle.tagged(side.ends[end])?.discard(claim);
            let data = message.label.data.ok_or("no data")?;
            if data == u64::MAX {
                return pipe_echo();
            }
            let (count, size) = ((data >> 32) as u32, (data as u32 >> 1) as usize);
            side.answer(Series { end, count, size, is_posted: data & 1 != 0 })?;
        }
    }
}

fn pipe_echo() -> Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut word = [0; 8];
    while input.read_exact(&mut word).is_ok() {
        output.write_all(&word)?;
        output.flush()?;
    }
    Ok(())
}

/// One copy of so many bytes, from and to more memory than the caches hold.
fn copy(count: u32, size: usize) -> Duration {
    let (from, mut to) = (vec![1u8; 64 << 20], vec![0u8; 64 << 20]);
    let places = (from.len() / size).max(1);
    to.fill(2);
    let begin = Instant::now();
    for round in 0..count as usize {
        let at = (round % places) * size;
        to[at..at + size].copy_from_slice(black_box(&from[at..at + size]));
    }
    black_box(&to);
    begin.elapsed() / count
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [names] = words.as_slice() {
        if names.contains("weft1:") {
            return child(names);
        }
    }
    let rounds: usize = words.first().map_or(Ok(9), |word| word.parse())?;
    let mut side = Side::new()?;
    let mut command = Command::new(std::env::current_exe()?);
    let mut peer = command.arg(side.names()?).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut output = BufReader::new(peer.stdout.take().ok_or("no output")?);
    let mut names = String::new();
    output.read_line(&mut names)?;
    side.map(&names)?;

    let count = |size: usize| (20_000_000 / (size + 2000)).clamp(20, 5000) as u32;
    let sizes = [8, 64 << 10, 1 << 20];
    let grid = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
    let mut table: Vec<(String, Vec<Duration>)> = Vec::new();
    let mut note = |what: String, time: Duration| match table.iter_mut().find(|(name, _)| *name == what) {
        Some((_, times)) => times.push(time),
        None => table.push((what, vec![time])),
    };
    for _ in 0..rounds {
        for size in sizes {
            // As the default settings have it: announced from 16 KiB on.
            let end = usize::from(size > 16 << 10);
            let series = Series { end, count: count(size), size, is_posted: true };
            side.measure(series)?; // idle paths have given their memory back
            note(format!("tagged, {size} B there and back"), side.measure(series)?);
            if size <= 64 << 10 {
                note(format!("request and reply, {size} B"), side.requests(count(size), size)?);
            }
        }
        for size in grid {
            for (end, how) in [(0, "eager"), (1, "announced")] {
                for (is_posted, when) in [(true, "waited for"), (false, "not waited for")] {
                    let series = Series { end, count: count(size) / 2 + 1, size, is_posted };
                    note(format!("{size} B, {how}, {when}"), side.measure(series)?);
                }
            }
        }
    }
    side.bundle.tagged(side.ends[0])?.try_inject(0, Label::tagged(SERIES).with(u64::MAX), b"")?;
    // The other side reads its input from then on, and polls no more.
    side.bundle.poll_until(weft::am::Bundle::is_acknowledged);
    let mut input = peer.stdin.take().ok_or("no input")?;
    for _ in 0..rounds {
        for size in &sizes[1..] {
            note(format!("one copy of {size} B"), copy(count(*size), *size));
        }
        let begin = Instant::now();
        for _ in 0..2000 {
            input.write_all(&[1; 8])?;
            input.flush()?;
            output.read_exact(&mut [0; 8])?;
        }
        note("pipe, blocking, 8 B there and back".to_owned(), begin.elapsed() / 2000);
    }
    drop(input);
    peer.wait()?;
    for (what, times) in table {
        println!("{:>10.2} µs  {what}", median(times));
    }
    println!("medians of {rounds} rounds");
    Ok(())
}
