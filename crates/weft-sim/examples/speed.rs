//! Events per second of the simulator on this machine: `cargo run --release -p weft-sim --example speed [PART OF A NAME]`.

use std::time::{Duration, Instant};
use weft_sim::{Config, Faults, Pattern, Simulation, Topology, Workload};

fn main() {
    let star = Topology::Star(16);
    let tree = Topology::Tree { switches: 16, hosts: 16 };
    let rows = [
        ("ping-pong, 2 hosts", Topology::Pair, Workload::ping_pong(300_000), 0),
        ("ping-pong, tree of 256", tree, Workload::ping_pong(5_000), 0),
        ("client and server, star of 16", star, Workload::new(Pattern::ClientServer, 40_000, 64), 0),
        ("all to all, star of 16", star, Workload::new(Pattern::AllToAll, 30_000, 64), 0),
        ("bulk of 8 KiB, 2 hosts", Topology::Pair, Workload::new(Pattern::Bulk, 30_000, 8192), 0),
        ("bulk of 64 B, 5 % loss", Topology::Pair, Workload::new(Pattern::Bulk, 300_000, 64), 50_000),
    ];
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (name, topology, workload, loss) in rows.into_iter().filter(|(name, ..)| name.contains(&wanted)) {
        let config = Config { topology, faults: Faults::loss(loss), ..Config::default() };
        let began = Instant::now();
        let mut simulation = Simulation::new(config, move |host| workload.program(host, topology.hosts()));
        let outcome = simulation.settle(Duration::from_secs(600));
        let (took, report) = (began.elapsed().as_secs_f64(), simulation.report());
        println!(
            "{name:32} {:>6.2} M events/s, {:>6.2} M messages/s, {:>8} packets, {:.2} s for {:.2} s, {:016x} {}",
            report.events as f64 / took / 1e6,
            report.messages.delivered as f64 / took / 1e6,
            report.packets.sent,
            took,
            report.time.as_secs_f64(),
            report.hash,
            outcome.err().map_or_else(|| "settled".to_string(), |failure| failure.to_string()),
        );
    }
}
