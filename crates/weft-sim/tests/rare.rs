//! Fires rare paths on purpose (`weft_transport::rare`): each fires, no promise is broken, and the same seed repeats the run.

use std::time::Duration;
use weft_sim::{chaos, Config, Faults, HostId, Pattern, Report, Settings, Simulation, Topology, Workload};
use weft_transport::rare::{Point, Switch};

/// A run that takes most paths. Its rare points fire `per_million` times in a million. Returns how often each fired.
fn run(seed: u64, per_million: u32) -> (Report, [u64; Point::ALL.len()]) {
    let switch = Switch::on(seed, per_million);
    let topology = if seed % 2 == 0 { Topology::Star(5) } else { Topology::Pair };
    let (pattern, size) = if seed % 2 == 0 { (Pattern::AllToAll, 300) } else { (Pattern::Bulk, 20_000) };
    let until = Duration::from_secs(4);
    let mut workload = Workload::new(pattern, 300, size);
    (workload.persists, workload.pace) = (true, Some(until / 300));
    let settings = Settings { suspicion: Duration::from_millis(300), ..Settings::default() };
    let config = Config { seed, topology, settings, faults: Faults::loss(20_000), ..Config::default() };
    let mut simulation = Simulation::new(config, move |host: HostId| workload.program(host, topology.hosts()));
    chaos(seed, topology.hosts(), until).into_iter().for_each(|(at, change)| simulation.at(at, change));
    let report = simulation.settle(Duration::from_secs(120)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    (report, switch.fired())
}

#[test]
fn each_point_fires_and_no_promise_breaks() {
    let mut fired = [0; Point::ALL.len()];
    for seed in 1..=40 {
        let (_, now) = run(seed, 100_000);
        fired.iter_mut().zip(now).for_each(|(all, now)| *all += now);
    }
    println!("{:?}", Point::ALL.iter().zip(fired).collect::<Vec<_>>());
    for (point, fired) in Point::ALL.iter().zip(fired) {
        assert!(fired > 0, "{point:?} never fired");
    }
}

#[test]
fn the_seed_repeats_what_fired() {
    for seed in 1..4 {
        let ((a, fired), (b, again)) = (run(seed, 100_000), run(seed, 100_000));
        assert_eq!((a.hash, a.events, fired), (b.hash, b.events, again));
        assert_ne!(a.hash, run(seed, 0).0.hash, "seed {seed}: nothing changed");
    }
}
