//! A broker: passes each line that a publisher sends to all subscribers, and accounts for every one of them.
//!
//!     cargo run --release --example broker serve 4000               prints its port; ends when a publisher has ended
//!     cargo run --release --example broker subscribe HOST:4000      one of any number, on any host
//!     cargo run --release --example broker publish HOST:4000        publishes the lines of its input
//!
//! Lines wait in a sending queue, with a bound for each subscriber. A subscriber that is too slow misses lines and delays nobody
//! else. Lines that wait for a dead subscriber come back. A number after `subscribe HOST:4000` makes it slow: milliseconds for each
//! line.
mod clients;
mod serve;

use clients::{publish, subscribe};
use serve::serve;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The broker's handlers: let a subscriber join; pass a line on; end.
const JOIN: u8 = 1;
const PUBLISH: u8 = 2;
const END: u8 = 3;
/// A subscriber's handlers: note that it has joined; read a line.
const JOINED: u8 = 1;
const LINE: u8 = 2;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", port] => port.parse().map_err(|_| "that is not a PORT".into()).and_then(serve),
        ["subscribe", place] => subscribe(place, 0),
        ["subscribe", place, ms] => {
            ms.parse().map_err(|_| "that is not a number".into()).and_then(|ms| subscribe(place, ms))
        }
        ["publish", place] => publish(place),
        _ => Err("usage: broker serve PORT | subscribe HOST:PORT [MILLISECONDS] | publish HOST:PORT".into()),
    };
    if let Err(why) = done {
        eprintln!("broker: {why}");
        std::process::exit(1);
    }
}
