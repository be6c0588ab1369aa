//! Counting words in several processes over Active Messages, and in this process alone.

use super::count::{self, Counts};
use super::master::{Master, Outcome};
use super::{text, Options};
use crate::error::Error;
use crate::output::print_line;
use crate::progress::Progress;
use std::time::{Duration, Instant};

/// How many words are printed.
const TOP: usize = 8;

/// Counts the words both ways, and compares the results.
pub fn run(options: &Options) -> Result<(), Error> {
    let text = text::read(&options.files)?;
    let chunks = count::chunks(&text.bytes, options.chunk as usize);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = options.workers.map_or(cpus.max(2), |n| n as usize);
    print_line(format!(
        "Counting words in {}: {} in messages of at most {}.",
        text.origin,
        size(text.bytes.len()),
        size(options.chunk as usize)
    ))?;
    let progress = Counted::new(chunks.len());
    let outcome = Master::start(chunks, workers)?.run(options.kill_one, |done| progress.show(done))?;
    progress.end();
    let alone = Instant::now();
    let mut expected = Counts::default();
    count::count(&text.bytes, &mut expected);
    tell(&outcome, workers, alone.elapsed())?;
    compare(&outcome.counts, &expected)?;
    print_line(format!("same result: {workers} processes and a single one counted the same words."))
}

fn tell(outcome: &Outcome, workers: usize, alone: Duration) -> Result<(), Error> {
    let Outcome { counts, chunks, given_again, starting, counting } = outcome;
    let mut words: Vec<(&Vec<u8>, &u64)> = counts.iter().collect();
    words.sort_by_key(|&(word, &count)| (std::cmp::Reverse(count), word));
    for (word, count) in words.iter().take(TOP) {
        print_line(format!("{count:>10}  {}", String::from_utf8_lossy(word)))?;
    }
    let total: u64 = counts.values().sum();
    print_line(format!("{total:>10}  words, {} different ones", counts.len()))?;
    print_line(format!(
        "{workers} processes, {chunks} {} of text: {} to start, {} to count. One process alone: {}.",
        if *chunks == 1 { "message" } else { "messages" },
        ms(*starting),
        ms(*counting),
        ms(alone)
    ))?;
    if *given_again > 0 {
        print_line(format!("A worker died; {given_again} of its messages came back, and other workers got them."))?;
    }
    Ok(())
}

fn compare(counts: &Counts, expected: &Counts) -> Result<(), Error> {
    if counts == expected {
        return Ok(());
    }
    let sum = |counts: &Counts| format!("{} words, {} different ones", counts.values().sum::<u64>(), counts.len());
    Err(Error::Mismatch {
        what: "the counts of the workers and of a single process".to_owned(),
        left: sum(counts),
        right: sum(expected),
    })
}

/// The progress: a bar on a terminal, otherwise up to four lines.
struct Counted {
    bar: Progress,
    chunks: usize,
    told: std::cell::Cell<usize>,
}

impl Counted {
    fn new(chunks: usize) -> Counted {
        let bar = Progress::new();
        bar.set_all(chunks as u64);
        bar.say("messages counted".to_owned());
        Counted { bar, chunks, told: std::cell::Cell::new(0) }
    }

    fn show(&self, done: usize) -> Result<(), Error> {
        self.bar.set_done(done as u64);
        let quarters = 4 * done / self.chunks.max(1);
        if !self.bar.is_shown() && quarters > self.told.replace(quarters) {
            print_line(format!("{done} of {} messages counted", self.chunks))?;
        }
        Ok(())
    }

    fn end(&self) {
        self.bar.clear();
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{:.1} MiB", b as f64 / f64::from(1 << 20)),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
