//! Runs the experiment with more endpoints than frames once, and prints the daemon's work. Under callgrind it gives the costs of
//! the parts of a turn.
//!
//! ```text
//! cargo build --release -p weft-sim --example contention
//! valgrind --tool=callgrind --toggle-collect='*Daemon*turn*' target/release/examples/contention st 64 8 small 4
//! ```
//!
//! The arguments: `one`, `st` or `mt`; clients; frames; `small` or `bulk`; milliseconds. `docs/design/contention.md` explains the
//! figures.

use std::time::Duration;
use weft_sim::contention::{run, Config, Message, Serving, Work};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [serving, clients, frames, message, millis] = &words[..] else {
        return Err(
            "expected five arguments (serving, clients, frames, message, milliseconds), as in: st 64 8 small 4".into(),
        );
    };
    let config = Config {
        serving: match serving.as_str() {
            "one" => Serving::OneVn,
            "st" => Serving::SingleThread,
            "mt" => Serving::ManyThreads,
            _ => return Err("the first argument (serving) must be one, st or mt".into()),
        },
        clients: clients.parse()?,
        frames: frames.parse()?,
        message: match message.as_str() {
            "small" => Message::Small,
            "bulk" => Message::Bulk,
            _ => return Err("the fourth argument (message) must be small or bulk".into()),
        },
        warms: Duration::ZERO,
        lasts: Duration::from_millis(millis.parse()?),
        ..Config::default()
    };
    let outcome = run(&config)?;
    let Work { turns, packets, records, bytes, remappings, .. } = outcome.work;
    println!("{:.0} requests/s, the slowest client {:.2} of the mean", outcome.rate(), outcome.slowest());
    println!(
        "{:.0} remappings/s, {:.1} % of the daemon's instructions",
        outcome.remappings(),
        outcome.remapping * 100.0
    );
    println!("daemon: {turns} turns, {packets} packets, {records} records, {bytes} bytes, {remappings} remappings");
    println!(
        "round trips {:?} and {:?}, {} packets dropped",
        outcome.round_trips.quantile(5000),
        outcome.round_trips.quantile(9900),
        outcome.dropped
    );
    println!("hash {:016x}", outcome.hash);
    Ok(())
}
