//! A work queue that balances itself: a master hands out pieces as workers ask, here ranges of which to count the primes.
//!
//!     cargo run --release --example work_queue master 4000000      prints NAME and KEY, and at the end the primes below that
//!     cargo run --release --example work_queue worker NAME KEY     one of any number, at any time, on any host
//!
//! A piece goes to a worker as a request; the reply is the result, and asks for the next one. The piece of a worker that dies
//! comes back, and is handed out again.
mod master;
mod worker;

use master::master;
use worker::worker;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The master's handlers: let a worker join (answered when all work is done); take a result.
const JOIN: u8 = 1;
const RESULT: u8 = 2;
/// A worker's handlers: work on a piece; end.
const WORK: u8 = 1;
const END: u8 = 2;
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["master", end] => {
            end.parse().map_err(|_| "that is not a NUMBER to count primes below".into()).and_then(master)
        }
        ["worker", name, key] => worker(name, key),
        _ => Err("usage: work_queue master NUMBER | worker NAME KEY (the master prints NAME and KEY)".into()),
    };
    if let Err(why) = done {
        eprintln!("work_queue: {why}");
        std::process::exit(1);
    }
}
