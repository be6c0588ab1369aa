//! Series of ping-pongs: the measuring side and the answering side.

use super::side::Side;
use super::Result;
use std::hint::black_box;
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use weft::tagged::{Label, Outcome, Pattern};

const PING: u64 = 1;
const PONG: u64 = 2;
/// Its data describes the next series: how many messages, their size, and whether a receive is posted first.
pub const SERIES: u64 = 3;

/// A series of `count` messages of `size` bytes there and back.
#[derive(Clone, Copy)]
pub struct Series {
    pub end: usize,
    pub count: u32,
    pub size: usize,
    pub is_posted: bool,
}

impl Side {
    /// The time of one message there and back.
    pub fn measure(&mut self, series: Series) -> Result<Duration> {
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

    /// The answering side.
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
        // Wait for the last answer's completion.
        loop {
            while let Some(done) = self.bundle.next_completion() {
                if done.outcome == Outcome::Sent {
                    return Ok(());
                }
            }
            self.bundle.poll();
        }
    }
}

/// Echoes series until a line comes on the input, then echoes the pipe.
pub fn child(names: &str) -> Result<()> {
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
