//! Prints all figures of weft's congestion control in one table: `cargo run --release -p weft-sim --example congestion [SEED]`.

use std::time::Duration;
use weft_sim::congestion::{
    beside_cubic, busy_hosts, cubic_alone, gigabit, incast, one_flow_share, rate_fall, two_flows, Queue,
};
use weft_transport::Method;

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn queue(queue: Queue) -> String {
    let Queue { p50, p99, most } = queue;
    format!("queue p50 {p50} p99 {p99} most {most}")
}

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("1 Gb/s; queues in bytes; shares of the payload that full packets leave of the link; seed {seed}");
    for senders in [8, 64] {
        let row = incast(seed, senders, gigabit(micros(25), 64 << 10), Duration::from_secs(1));
        println!(
            "incast {senders} -> 1, round trip 100 µs, queue 64 KiB: Jain {:.3}, share {:.3}, {} of {} packets dropped, {} time-outs, {}",
            row.jain,
            row.share,
            row.dropped,
            row.sent,
            row.timeouts,
            queue(row.queue)
        );
    }
    for (round_trip, room) in [(200, 512 << 10), (1000, 512 << 10)] {
        let row = rate_fall(seed, gigabit(micros(round_trip / 2), room), 100_000_000);
        println!(
            "rate falls to 100 Mb/s, round trip {round_trip} µs, queue {} KiB: 1 BDP = {} B, {} dropped, share later {:.3}",
            room >> 10,
            row.bytes_of_a_round_trip,
            row.dropped,
            row.share
        );
        let in_bdp = |bytes: u64| bytes as f64 / row.bytes_of_a_round_trip as f64;
        for (when, seen) in [("before", row.before), ("within 50 round trips", row.within), ("later", row.later)] {
            println!("    {when}: {} (p99 = {:.1} BDP)", queue(seen), in_bdp(seen.p99));
        }
    }
    for room in [64 << 10, 256 << 10] {
        let row = two_flows(seed, gigabit(micros(50), room));
        let [a, b] = row.shares;
        println!(
            "two flows, the second 1 s late, round trip 200 µs, queue {} KiB: {a:.3} and {b:.3}, {} dropped, {}",
            room >> 10,
            row.dropped,
            queue(row.queue)
        );
    }
    for bdps in [1, 4] {
        let bdp = 50_000;
        let link = gigabit(micros(95), bdps * bdp);
        for (what, row) in [("beside CUBIC", beside_cubic(seed, link)), ("CUBIC alone", cubic_alone(seed, link))] {
            let [weft, cubic] = row.shares;
            println!(
                "{what}, round trip 400 µs, queue {bdps} BDP: weft {weft:.3}, CUBIC {cubic:.3}, {} dropped, {}",
                row.dropped,
                queue(row.queue)
            );
        }
    }
    let (share, waits) = one_flow_share(seed, gigabit(micros(200), 512 << 10), 0);
    println!("one flow of 8 KiB, delay 200 µs: share {share:.3}, {}", queue(waits));
    for (runs, away) in [(3000, 50), (1000, 200), (3000, 3000), (300, 300), (50, 50)] {
        for method in [Method::Fixed, Method::Delay] {
            let (share, waits) = busy_hosts(seed, gigabit(micros(100), 512 << 10), method, micros(runs), micros(away));
            println!("hosts away for {away} of {} µs, {method:?}: share {share:.3}, {}", runs + away, queue(waits));
        }
    }
    let good = gigabit(micros(100), 512 << 10);
    let (lossless, _) = one_flow_share(seed, good, 0);
    for loss in [10_000, 50_000, 150_000] {
        let (share, waits) = one_flow_share(seed, good, loss);
        println!(
            "{} % loss each way, delay 100 µs: share {share:.3}, {:.3} of the lossless {lossless:.3}, {}",
            loss / 10_000,
            share / lossless,
            queue(waits)
        );
    }
}
