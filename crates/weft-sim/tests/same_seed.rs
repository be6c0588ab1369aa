//! The same seed gives the same run: twice here, and on every machine. `golden.txt` has the hashes that all machines must find. A
//! change of what is sent or when (in the protocol, its settings or the simulator) changes the hashes. Then `WEFT_GOLDEN=write
//! cargo test -p weft-sim --test same_seed` writes the file again, and the commit says why.

use std::time::Duration;
use weft_sim::{chaos, Config, Faults, HostId, Pattern, Report, Simulation, Topology, Workload};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");

fn run(seed: u64, topology: Topology, mut workload: Workload, faults: Faults, is_chaotic: bool) -> Report {
    let config = Config { seed, topology, faults, skew_most: 100, ..Config::default() };
    let until = Duration::from_secs(2);
    if is_chaotic {
        (workload.persists, workload.pace) = (true, Some(Duration::from_millis(5)));
    }
    let mut simulation = Simulation::new(config, move |host: HostId| workload.program(host, topology.hosts()));
    if is_chaotic {
        chaos(seed, topology.hosts(), until).into_iter().for_each(|(at, change)| simulation.at(at, change));
    }
    simulation.settle(Duration::from_secs(100)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

/// Runs that between them take every path of the simulator.
fn all() -> Vec<(&'static str, Report)> {
    let bad = Faults { duplicate: 50_000, reorder: 100_000, corrupt: 50_000, ..Faults::loss(100_000) };
    let tree = Topology::Tree { switches: 16, hosts: 16 };
    let all_to_all = |count| Workload::new(Pattern::AllToAll, count, 200);
    vec![
        ("ping-pong", run(1, Topology::Pair, Workload::ping_pong(2000), Faults::default(), false)),
        ("ping-pong with 30 % loss", run(2, Topology::Pair, Workload::ping_pong(500), Faults::loss(300_000), false)),
        ("bulk with all faults", run(3, Topology::Pair, Workload::new(Pattern::Bulk, 500, 9000), bad, false)),
        ("tree of 256", run(4, tree, all_to_all(20), Faults::default(), false)),
        ("chaos on a star of 5", run(5, Topology::Star(5), all_to_all(500), Faults::default(), true)),
        ("chaos on a star of 9", run(6, Topology::Star(9), all_to_all(500), Faults::default(), true)),
    ]
}

#[test]
fn the_same_seed_gives_the_same_hash_on_every_machine() {
    let (first, second) = (all(), all());
    let lines = first.iter().map(|(name, report)| format!("{:016x} {name}\n", report.hash));
    let found: String = lines.collect();
    for ((name, a), (_, b)) in first.iter().zip(&second) {
        assert_eq!((a.hash, a.events), (b.hash, b.events), "{name}: twice on one machine");
    }
    if std::env::var("WEFT_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(GOLDEN, &found).expect("golden.txt can be written");
    }
    let golden = std::fs::read_to_string(GOLDEN).expect("golden.txt is there");
    assert_eq!(found, golden, "see the top of tests/same_seed.rs");
}

#[test]
fn other_seeds_give_other_hashes() {
    let hash = |seed| run(seed, Topology::Pair, Workload::ping_pong(20), Faults::loss(100_000), false).hash;
    let hashes: std::collections::BTreeSet<u64> = (1..50).map(hash).collect();
    assert_eq!(hashes.len(), 49);
}

#[test]
fn a_few_damaged_packets_change_the_hash() {
    let hash = |corrupt| {
        let faults = Faults { corrupt, ..Faults::default() };
        run(1, Topology::Pair, Workload::ping_pong(200), faults, false)
    };
    let (whole, damaged) = (hash(0), hash(30_000));
    assert!((1..30).contains(&damaged.packets.corrupted), "{:?}", damaged.packets);
    assert_ne!(whole.hash, damaged.hash);
}
