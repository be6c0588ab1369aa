//! Checksums that leave payloads out, over links that damage packets: the checker finds the damaged payloads, and nothing else is
//! damaged.

use std::time::Duration;
use weft_sim::{
    Config, Counters, Failure, Faults, HostId, Integrity, Load, Pattern, Settings, Simulation, Workload, Wrong,
};

use Integrity::{Full, Header};

/// Two hosts that ask for these checksums, over links that damage three packets in ten: anywhere, or only where checksums cover
/// them.
fn simulation(seed: u64, wanted: [Integrity; 2], asks: bool, spares_uncovered: bool) -> Simulation<Load> {
    let faults = Faults { corrupt: 300_000, spares_uncovered, ..Faults::default() };
    let [settings, last] = wanted.map(|integrity| Settings { integrity, ..Settings::default() });
    let config = Config { seed, faults, settings, last_settings: Some(last), ..Config::default() };
    let mut workload = Workload::new(Pattern::Bulk, 300, 8_000);
    workload.asks = asks;
    Simulation::new(config, move |host| workload.program(host, 2))
}

/// The counters of each host's channel, and the checksum agreed on it.
fn channels(simulation: &Simulation<Load>) -> [(Counters, Integrity); 2] {
    [0, 1].map(|host| {
        let channels = simulation.channels(HostId(host));
        assert_eq!(channels.len(), 1);
        (channels[0].counters, channels[0].integrity)
    })
}

#[test]
fn a_payload_that_was_damaged_is_delivered_and_the_checker_finds_it() {
    for (seed, asks) in [(1, false), (2, true)] {
        let mut simulation = simulation(seed, [Header; 2], asks, false);
        let failure = simulation.settle(Duration::from_secs(3600)).expect_err("payloads are damaged");
        let Failure::Violations(first, all) = failure else { panic!("seed {seed}: {failure}") };
        let changed = first.iter().filter(|violation| violation.what == Wrong::DeliveredTooOften).count();
        assert!(changed > 0 && all > 20, "seed {seed}: {changed} of {all}");
        // No stream broke, and no packet was inconsistent.
        for (counters, integrity) in channels(&simulation) {
            assert_eq!((counters.dropped_violation, integrity), (0, Header), "seed {seed}");
        }
    }
}

#[test]
fn damage_of_everything_else_is_found() {
    for seed in 1..=10 {
        let mut simulation = simulation(seed, [Header; 2], seed % 2 == 0, true);
        let report = simulation.settle(Duration::from_secs(3600)).unwrap_or_else(|failure| panic!("{seed}: {failure}"));
        assert_eq!((report.messages.delivered, simulation.violations().len()), (300, 0), "seed {seed}");
        assert!(report.packets.corrupted > 100 && report.channels.dropped_malformed > 50, "seed {seed}: {report:?}");
        for (counters, integrity) in channels(&simulation) {
            assert_eq!((counters.dropped_violation, integrity), (0, Header), "seed {seed}");
        }
    }
}

#[test]
fn with_one_side_that_does_not_want_it_all_damage_is_found() {
    for (seed, wanted) in (1..=10).zip([[Header, Full], [Full, Header]].into_iter().cycle()) {
        let mut simulation = simulation(seed, wanted, true, false);
        let report = simulation.settle(Duration::from_secs(3600)).unwrap_or_else(|failure| panic!("{seed}: {failure}"));
        assert_eq!((report.messages.delivered, simulation.violations().len()), (300, 0), "seed {seed}");
        assert!(report.channels.dropped_malformed > 50, "seed {seed}: {report:?}");
        for (counters, integrity) in channels(&simulation) {
            assert_eq!((counters.dropped_violation, integrity), (0, Full), "seed {seed}");
        }
    }
}
