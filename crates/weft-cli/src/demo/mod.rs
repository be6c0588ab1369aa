//! `weft demo`: several processes count words over Active Messages, then the machine tells what messages cost on it.

mod count;
mod master;
mod text;
mod worker;

use crate::bench;
use crate::error::Error;
use crate::output::print_line;
use crate::progress::Progress;
use count::Counts;
use master::{Master, Outcome};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use worker::run as run_worker;

/// How the master's name and key reach the workers.
const MASTER_VARIABLE: &str = "WEFT_DEMO_MASTER";

/// Handlers of the master.
mod master_op {
    /// A worker is there: its key in two arguments, and its process.
    pub const HELLO: u8 = 1;
    /// Some counts of a chunk: its number, the attempt, the number of parts.
    pub const PART: u8 = 2;
}

/// Handlers of a worker.
mod worker_op {
    /// Count the words of the payload, which is this chunk in this attempt.
    pub const COUNT: u8 = 1;
}

/// Bytes of a part of a worker's counts.
const PART_MOST: usize = weft::MAX_PAYLOAD;

/// Words that are shown.
const TOP: usize = 8;

/// What can be asked of `weft demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Files to count words in (this repository's text if none is given).
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How many processes count (as many as there are CPUs, and at least 2).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    /// Bytes of text in one message; for tests.
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = weft::MAX_PAYLOAD as u32,
          value_parser = clap::value_parser!(u32).range(512..=weft::MAX_PAYLOAD as i64))]
    chunk: u32,
    /// Kills one worker in the middle; for tests.
    #[arg(long, hide = true)]
    kill_one: bool,
    /// Only counts words, without the measurement.
    #[arg(long)]
    no_bench: bool,
    /// Draws the measurement, too: one HTML file for a browser.
    #[arg(long, value_name = "FILE", conflicts_with = "no_bench")]
    report: Option<PathBuf>,
}

/// Counts, compares with a single process, and measures.
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
    print_line(format!("same result: {workers} processes and a single one count the same."))?;
    if options.no_bench {
        return Ok(());
    }
    print_line("\nNow what messages cost on this machine (half a minute) ...\n")?;
    let measured = bench::measure_quickly()?;
    print_line(bench::explain(&measured))?;
    print_line("\nThe figures themselves: weft bench local")?;
    if let Some(path) = &options.report {
        print_line(format!("As pictures, for a browser: {}", measured.write_page(path)?.display()))?;
    }
    Ok(())
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
        print_line(format!("A worker died; {given_again} of its messages came back and were given to another."))?;
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

/// A bar on a terminal, four lines otherwise.
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
