//! The CPU cost of a channel, without any link: two channels in one thread hand each other their packets.
//!
//! ```text
//! cargo run --release -p weft-transport --example channel_cost [CASE [ROUNDS [header]]]
//! ```
//! With `header`, checksums leave payloads out. Prints the minimum and the median over the rounds, in time per record
//! for both sides together.

mod pair;

use pair::Pair;
use std::time::Instant;
use weft_wire::packet::Integrity;

/// The cases: name, packet size, payload, records in a burst (1: there and back), and bursts in a round.
const CASES: [(&str, u16, usize, u32, u32); 6] = [
    ("ping-16", 1472, 16, 1, 20_000),
    ("burst-16", 1472, 16, 1000, 100),
    ("burst-1k", 1472, 1024, 200, 100),
    ("bulk-64k-1472", 1472, 65_536, 8, 40),
    ("bulk-64k-8972", 8972, 65_536, 8, 40),
    ("ping-64k-8972", 8972, 65_536, 1, 100),
];

fn main() {
    let wanted = std::env::args().nth(1);
    let rounds = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(40);
    let integrity = match std::env::args().nth(3).as_deref() {
        Some("header") => Integrity::Header,
        _ => Integrity::Full,
    };
    for (name, packet_size, bytes, records, bursts) in CASES {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let (mut pair, payload) = (Pair::new(packet_size, integrity), vec![7; bytes]);
        let each = if records == 1 { 2 } else { records };
        let mut round = || {
            let start = Instant::now();
            for _ in 0..bursts {
                match records {
                    1 => pair.there_and_back(&payload),
                    _ => pair.burst(records, &payload),
                }
            }
            start.elapsed().as_nanos() as f64 / f64::from(bursts * each)
        };
        round();
        let mut times: Vec<f64> = (0..rounds).map(|_| round()).collect();
        times.sort_by(f64::total_cmp);
        let (least, median) = (times[0], times[times.len() / 2]);
        let packets = pair.packets as f64 / f64::from((rounds + 1) * bursts * each);
        println!(
            "{name:<15} {least:>9.0} ns a record at the least, {median:>9.0} at the median; {packets:.2} packets, {:.2} GB/s",
            bytes as f64 / least
        );
    }
}
