//! The limit programs of `bench/limits` for bare sockets between two hosts: one side there, the other here.

use super::place::Place;
use crate::bench::limits::{Limits, Line};
use crate::child::Owned;
use std::process::Stdio;
use std::time::Duration;

/// Runs a program on both sides. `arguments` name it and its job.
pub fn run(limits: &Limits, place: &Place, arguments: &[String], time: Duration) -> Result<Line, String> {
    let port = place.port()?.to_string();
    let there = place.there().to_string();
    let both = [arguments, &["--port".to_owned(), port]].concat();
    let mut listener = limits.command(&[&both[..], &["--listen".to_owned(), there.clone()]].concat(), time);
    listener.stdin(Stdio::null()).stdout(Stdio::null());
    let _listener =
        Owned(place.spawn_there(&mut listener).map_err(|e| format!("the listening side did not start: {e}"))?);
    limits.run(&[&both[..], &["--connect".to_owned(), there]].concat(), time)
}
