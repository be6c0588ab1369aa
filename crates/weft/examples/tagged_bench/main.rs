//! What tagged messages cost between two processes, beside requests with replies, a pipe and a copy, in one run:
//! `cargo run --release --example tagged_bench [ROUNDS]`. Each figure is the median of the rounds; the rounds are interleaved.

mod series;
mod side;

use series::{child, Series, SERIES};
use side::Side;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weft::tagged::Label;
use weft::Key;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const KEY: Key = Key(7);

/// Copies `size` bytes `count` times, from and to more memory than the caches hold.
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
            // As in the default settings: messages are announced from 16 KiB on.
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
    // From now on the other side reads its input and no longer polls.
    side.bundle.poll_until(weft::Bundle::is_acknowledged);
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
    if !peer.wait()?.success() {
        return Err("the other side failed".into());
    }
    for (what, times) in table {
        println!("{:>10.2} µs  {what}", median(times));
    }
    println!("medians of {rounds} rounds");
    Ok(())
}
